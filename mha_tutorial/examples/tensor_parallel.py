"""One layer on several devices: what its ranks exchange, and whether it is still the layer that it was.

Two processes, each a rank, are started by ::

    torchrun --standalone --nproc-per-node 2 -m mha_tutorial.examples.tensor_parallel

They take a GPU each where there are enough (NCCL), and compute on the CPU otherwise (Gloo). A rank
that fails, or does not answer for a minute, ends them all with an error.
"""

import gc
import os
from datetime import timedelta
from typing import Any

import torch
from torch import Tensor, distributed
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor

from mha_tutorial import Causal
from mha_tutorial.torch import MultiHeadAttention
from mha_tutorial.torch.parallel import Collectives, tensor_parallel

B, N, D_MODEL, H, H_KV = 2, 5, 24, 8, 4


def main(seconds: float = 60.0) -> None:
    """Join the other ranks, compare, print on one of them, and leave in time."""
    here = int(os.environ["LOCAL_RANK"])
    on_gpus = torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"])
    if on_gpus:
        torch.cuda.set_device(here)
    device, backend = ("cuda", "nccl") if on_gpus else ("cpu", "gloo")
    distributed.init_process_group(backend, timeout=timedelta(seconds=seconds))
    try:
        mesh = init_device_mesh(device, (distributed.get_world_size(),))
        lines = compare(mesh)
        if distributed.get_rank() == 0:
            print(*lines, sep="\n")
        gc.collect()  # what is divided has to go before its group does
    finally:
        distributed.destroy_process_group()


def compare(mesh: DeviceMesh) -> list[str]:
    """Compare a divided layer with the whole one, and say what was exchanged.

    Raises
    ------
    AssertionError
        If output or gradients are not equal to ten digits.
    """
    torch.manual_seed(0)  # the same layer and the same tokens on every rank
    options: dict[str, Any] = {"device": mesh.device_type, "dtype": torch.float64}
    layer, x = MultiHeadAttention(D_MODEL, H, H_KV, **options), torch.randn(B, N, D_MODEL, **options)
    expected, *_ = run(layer, x)
    found, forward, backward = run(tensor_parallel(layer, mesh), x)
    for name, right in expected.items():
        torch.testing.assert_close(found[name], right, rtol=1e-10, atol=1e-10)
    ranks = mesh.size()
    return [
        f"{ranks} rank(s), each with {H // ranks} of {H} heads and {H_KV // ranks} of {H_KV} key-value heads",
        f"forward:  {in_words(forward)}",
        f"backward: {in_words(backward)}",
        "output and all gradients are those of the whole layer",
    ]


def run(
    layer: MultiHeadAttention,
    x: Tensor,
) -> tuple[dict[str, Tensor], Collectives, Collectives]:
    """Go forward and backward once: output, gradients, collectives of either pass."""
    x = x.clone().requires_grad_()
    with Collectives() as forward:
        output = layer(x, visible=Causal())
    with Collectives() as backward:
        output.square().sum().backward()
    found = {"output": output.detach(), "input": x.grad}
    for name, parameter in layer.named_parameters():
        grad = parameter.grad
        found[name] = grad.full_tensor() if isinstance(grad, DTensor) else grad
    return found, forward, backward


def in_words(noted: Collectives) -> str:
    """List what was exchanged."""
    return ", ".join(f"{name} of {payload:,} bytes" for name, payload in noted.calls) or "nothing"


if __name__ == "__main__":
    main()
