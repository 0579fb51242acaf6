"""What `test_distributed` runs in processes of their own."""

import copy
import gc
import multiprocessing
from contextlib import contextmanager
from datetime import timedelta

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor

from mha_tutorial import Causal, Padding
from mha_tutorial.examples.shards import all_reduce_bytes
from mha_tutorial.torch import MultiHeadAttention, naive, online
from mha_tutorial.torch.parallel import Collectives, context_parallel, repeat_kv_heads, tensor_parallel

B, N, M, D_MODEL, H, H_KV, D_K, D_V = 2, 5, 12, 11, 12, 4, 3, 7


def data_parallel(folder: str) -> None:
    """A replica in `DistributedDataParallel` has the gradients of the layer alone."""
    store = torch.distributed.FileStore(f"{folder}/store", 1)
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        torch.manual_seed(0)
        layer, x = MultiHeadAttention(12, 4, dtype=torch.float64), torch.randn(2, 5, 12).double()
        parallel = nn.parallel.DistributedDataParallel(copy.deepcopy(layer))
        for model in (layer, parallel):
            model(x, visible=Causal()).square().sum().backward()
        for mine, alone in zip(parallel.module.parameters(), layer.parameters(), strict=True):
            assert mine.grad is not None
            assert alone.grad is not None
            torch.testing.assert_close(mine.grad, alone.grad, rtol=0, atol=0)
        del model, parallel, mine
        gc.collect()  # outliving its group, the module would join a thread that waits for the interpreter
    finally:
        torch.distributed.destroy_process_group()


@contextmanager
def group(rank: int, ranks: int, folder: str, seconds: int = 60):
    """A process group of so many processes, found through a file: no port is taken."""
    store = torch.distributed.FileStore(f"{folder}/store of {ranks}", ranks)
    limit = timedelta(seconds=seconds)
    torch.distributed.init_process_group("gloo", store=store, rank=rank, world_size=ranks, timeout=limit)
    try:
        yield init_device_mesh("cpu", (ranks,))
        gc.collect()  # what is divided has to go before its group does
    finally:
        torch.distributed.destroy_process_group()


def assert_equal(found, expected):
    """Equal to ten digits of the largest among all: the gradient of a key bias is zero, and its terms are not."""
    largest = max(right.abs().max().item() for right in expected)
    for mine, right in zip(found, expected, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-10, atol=1e-10 * largest)


def whole_gradients(layer: nn.Module) -> dict:
    """The gradients of all parameters, put together where a rank has a part."""
    grads = {name: parameter.grad for name, parameter in layer.named_parameters()}
    return {name: grad.full_tensor() if isinstance(grad, DTensor) else grad for name, grad in grads.items()}


def run_layer(layer: nn.Module, *tokens, visible=None):
    """Forward and backward: the output, the gradients of tokens and parameters, the collectives of either pass."""
    tokens = [x.clone().requires_grad_() for x in tokens]
    with Collectives() as forward:
        output = layer(*tokens, visible=visible)
        weights = torch.linspace(-1, 2, output.numel(), dtype=output.dtype).view(output.shape)
    with Collectives() as backward:
        (output * weights).sum().backward()
    return output.detach(), [x.grad for x in tokens], whole_gradients(layer), forward.calls, backward.calls


def seeded_layer(seed: int, h_kv: int = H_KV) -> MultiHeadAttention:
    """A layer whose biases are not zero."""
    torch.manual_seed(seed)
    layer = MultiHeadAttention(D_MODEL, H, h_kv, d_k=D_K, d_v=D_V, dtype=torch.float64)
    for projection in (layer.W_q, layer.W_k, layer.W_v, layer.W_o):
        nn.init.normal_(projection.bias)
    return layer


def seeded_tokens() -> tuple[torch.Tensor, torch.Tensor]:
    """The same tokens and the same memory in every process."""
    torch.manual_seed(100)
    return torch.randn(B, N, D_MODEL).double(), torch.randn(B, M, D_MODEL).double()


def divided(folder: str) -> None:
    """A layer divided by heads, and by keys, among one, two and four ranks is the layer on one device."""
    kinds = multiprocessing.get_all_start_methods()
    context = multiprocessing.get_context("forkserver" if "forkserver" in kinds else "spawn")
    context.set_forkserver_preload([__name__])  # which imports torch once for all
    for ranks in (1, 2, 4):
        processes = [context.Process(target=_divided, args=(rank, ranks, folder)) for rank in range(ranks)]
        for process in processes:
            process.start()
        for process in processes:
            process.join()
        assert [process.exitcode for process in processes] == [0] * ranks


def _divided(rank: int, ranks: int, folder: str) -> None:
    torch.set_num_threads(1)
    x, memory = seeded_tokens()
    with group(rank, ranks, folder) as mesh:
        by_heads(rank, ranks, mesh, x, memory)
        for kernel in (naive, online):
            by_keys(rank, ranks, mesh, kernel, x, memory)


def by_heads(rank: int, ranks: int, mesh, x, memory) -> None:
    """Output, gradients and payload of a divided layer are those of the whole one, and of the formula."""
    for tokens, visible in (((x,), Causal()), ((x, memory), Padding([M, 7]))):
        expected = run_layer(seeded_layer(0), *tokens, visible=visible)
        layer = tensor_parallel(seeded_layer(rank), mesh, inputs=len(tokens))  # the first rank's weights count
        output, of_tokens, of_parameters, forward, backward = run_layer(layer, *tokens, visible=visible)
        assert_equal([output], [expected[0]])
        assert_equal(of_tokens, expected[1])
        assert_equal(of_parameters.values(), expected[2].values())
        payloads = [all_reduce_bytes(B, each.shape[1], D_MODEL, 8) for each in tokens]
        alone = ranks == 1  # who exchanges nothing
        assert forward == ([] if alone else [("all_reduce", payloads[0][0])])
        assert sorted(backward) == ([] if alone else sorted(("all_reduce", payload) for _, payload in payloads))
    few = seeded_layer(0, h_kv=2)
    repeated = tensor_parallel(repeat_kv_heads(few, 2), mesh)
    assert_equal([repeated(x).detach()], [few(x).detach()])


def by_keys(rank: int, ranks: int, mesh, kernel, x, memory) -> None:
    """Blocks of keys, merged, are attention to all keys; the gradients of keys and values are to be added up."""
    visible = torch.from_numpy(Causal("bottom-right").rows(N, M)).clone()
    visible[1] = False  # one query sees nothing
    own = slice(rank * M // ranks, (rank + 1) * M // ranks)
    expected = run_layer(seeded_layer(0), x, memory, visible=visible)
    layer = seeded_layer(0)
    layer.kernel = context_parallel(kernel, mesh)
    output, (of_x, of_block), of_parameters, *_ = run_layer(layer, x, memory[:, own], visible=visible[:, own])
    assert_equal([output], [expected[0]])
    assert_equal([of_x, of_block], [expected[1][0], expected[1][1][:, own]])
    for name, gradient in of_parameters.items():
        if name.startswith(("W_k", "W_v")):
            torch.distributed.all_reduce(gradient)
    assert_equal(of_parameters.values(), expected[2].values())
