"""One rank of a group that sends nothing: how the layer is divided, what is refused, how much is handed over."""

import gc
import re
import runpy
import sys

import pytest
import torch
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import parallelize_module
from torch.testing._internal.distributed.fake_pg import FakeStore

from mha_tutorial import Causal
from mha_tutorial.examples import tensor_parallel as example
from mha_tutorial.examples.shards import all_reduce_bytes
from mha_tutorial.torch import MultiHeadAttention, naive, online
from mha_tutorial.torch.parallel import Collectives, context_parallel, plan, repeat_kv_heads, tensor_parallel
from tests.torch_helpers import one_thread  # noqa: F401

B, N, D_MODEL, H, H_KV = 2, 5, 12, 8, 4


@pytest.fixture
def mesh_of():
    """Makes the mesh of a fake group, in which a collective gives back what it is given."""

    def make(*shape: int):
        size = torch.Size(shape).numel()
        distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=size)
        return init_device_mesh("cpu", shape, mesh_dim_names=("first", "second")[: len(shape)])

    yield make
    gc.collect()
    if distributed.is_initialized():
        distributed.destroy_process_group()


def a_layer(h=H, h_kv=H_KV, **options):
    torch.manual_seed(0)
    layer = MultiHeadAttention(D_MODEL, h, h_kv, d_k=3, d_v=7, dtype=torch.float64, **options)
    for projection in (layer.W_q, layer.W_k, layer.W_v, layer.W_o):
        nn.init.normal_(projection.bias)
    return layer


@pytest.mark.equation("eq-all-reduce-bytes")
@pytest.mark.parametrize("gathered", [1, 3])
@pytest.mark.parametrize("ranks", [2, 4])
def test_parallel_payload_is_what_the_formula_says(ranks, gathered, mesh_of):
    layer, mesh = a_layer(), mesh_of(ranks)
    if gathered == 1:
        tensor_parallel(layer, mesh)
    else:
        parallelize_module(layer, mesh, {name: style for name, style in plan().items() if name})
    x = torch.randn(B, N, D_MODEL, dtype=torch.float64, requires_grad=True)
    with Collectives() as forward:
        loss = layer(x, visible=Causal()).sum()
    with Collectives() as backward:
        loss.backward()
    sizes = all_reduce_bytes(B, N, D_MODEL, 8, gathered)
    assert [sum(payload for _, payload in noted.calls) for noted in (forward, backward)] == list(sizes)
    assert [len(noted.calls) for noted in (forward, backward)] == [1, gathered]
    assert {name for name, _ in forward.calls + backward.calls} == {"all_reduce"}


def test_parallel_layer_holds_a_rank_s_part_of_each_parameter(mesh_of):
    layer, mesh = a_layer(), mesh_of(2)
    tensor_parallel(layer, mesh)
    held = {name: tuple(parameter.to_local().shape) for name, parameter in layer.named_parameters()}
    assert held == {
        "W_q.weight": (12, 12), "W_q.bias": (12,),
        "W_k.weight": (6, 12), "W_k.bias": (6,),
        "W_v.weight": (14, 12), "W_v.bias": (14,),
        "W_o.weight": (12, 28), "W_o.bias": (12,),
    }  # fmt: skip
    assert (layer.h, layer.h_kv) == (H, H_KV)


@pytest.mark.parametrize(
    ("h", "h_kv", "ranks", "message"),
    [
        (8, 2, 4, "4 ranks cannot share 2 key-value heads evenly; repeat_kv_heads(layer, 2) makes"),
        (12, 4, 6, "6 ranks cannot share 4 key-value heads evenly; repeat_kv_heads(layer, 3) makes"),
        (6, 2, 4, "4 ranks cannot share 2 key-value heads evenly; nor do the 6 heads divide"),
    ],
)  # fmt: skip
def test_more_ranks_than_key_value_heads_are_refused_by_parallel(h, h_kv, ranks, message, mesh_of):
    with pytest.raises(ValueError, match=re.escape(message)):
        tensor_parallel(a_layer(h, h_kv), mesh_of(ranks))


def test_parallel_takes_one_axis_of_a_mesh(mesh_of):
    mesh = mesh_of(2, 2)
    with pytest.raises(ValueError, match=re.escape("the mesh must have one axis, got 2; pass one of them")):
        tensor_parallel(a_layer(), mesh)
    assert tensor_parallel(a_layer(), mesh["second"]).W_q.weight.to_local().shape[0] == H // 2 * 3


def test_parallel_refuses_extra_keys(mesh_of):
    layer = a_layer(extra_keys=(torch.zeros(H_KV, 1, 3).double(), torch.zeros(H_KV, 1, 7).double()))
    with pytest.raises(NotImplementedError, match="extra keys"):
        tensor_parallel(layer, mesh_of(2))


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize(("h", "h_kv", "r"), [(8, 2, 2), (6, 2, 3), (8, 4, 1)])
def test_repeated_heads_for_parallel_ranks_compute_the_same(h, h_kv, r, learned):
    extra = tuple(torch.randn(h_kv, 2, width, dtype=torch.float64) for width in (3, 7))
    layer = a_layer(h, h_kv, extra_keys=tuple(map(nn.Parameter, extra)) if learned else extra)
    layer.W_v.bias.requires_grad_(False)
    repeated = repeat_kv_heads(layer, r)
    assert (repeated.h, repeated.h_kv, repeated.W_k.out_features, repeated.W_v.out_features) == (
        h, h_kv * r, h_kv * r * 3, h_kv * r * 7,
    )  # fmt: skip
    assert not repeated.W_v.bias.requires_grad
    x = torch.randn(B, N, D_MODEL, dtype=torch.float64)
    for each in (layer, repeated):
        each(x, visible=Causal()).square().sum().backward()
    torch.testing.assert_close(repeated(x, visible=Causal()), layer(x, visible=Causal()), rtol=1e-12, atol=1e-12)
    of_copies = repeated.W_k.weight.grad.unflatten(0, (h_kv, r, 3)).sum(dim=1).flatten(0, 1)
    torch.testing.assert_close(of_copies, layer.W_k.weight.grad, rtol=1e-12, atol=1e-12)
    assert repeated.W_k.weight.data_ptr() != layer.W_k.weight.data_ptr()
    assert [name for name, _ in repeated.named_parameters()] == [name for name, _ in layer.named_parameters()]


@pytest.mark.parametrize(("r", "shared"), [(3, 2), (0, 2), (-1, 2)])
def test_repeated_heads_for_parallel_ranks_must_divide(r, shared):
    with pytest.raises(ValueError, match=f"{r} copies do not divide the {shared} heads that share"):
        repeat_kv_heads(a_layer(), r)


@pytest.mark.parametrize("kernel", [naive, online])
def test_context_parallel_on_one_rank_is_the_kernel(kernel, mesh_of):
    """The merge of one partial result: itself, zero where nothing is seen, in the type of the queries."""
    merged = context_parallel(kernel, mesh_of(1))
    q, k, v = (torch.randn(B, h, N, 3, dtype=torch.bfloat16) for h in (4, 2, 2))
    bias, visible = torch.randn(N, N), Causal().rows(N, N)
    visible = torch.from_numpy(visible).clone()
    visible[2] = False
    options = {"visible": visible, "bias": bias, "scale": 0.7}
    found, right = merged(q, k, v, **options), kernel(q, k, v, **options)
    assert found.dtype == torch.bfloat16
    assert not found[:, :, 2].any()
    torch.testing.assert_close(found, right, rtol=2**-7, atol=2**-7)  # rounded once more than the kernel itself


def test_context_parallel_refuses_a_structured_mask(mesh_of):
    merged = context_parallel(naive, mesh_of(1))
    x = torch.zeros(1, 1, 2, 3)
    with pytest.raises(TypeError, match="the columns of this rank's keys, got Causal"):
        merged(x, x, x, visible=Causal())


@pytest.fixture
def joined(mesh_of, monkeypatch):
    """Lets the program join a fake group as one of its ranks; says with which backend it wanted to."""
    backends, join = [], distributed.init_process_group

    def as_rank(rank, ranks):
        def init_process_group(backend, timeout):
            backends.append(backend)
            join("fake", store=FakeStore(), rank=rank, world_size=ranks)

        monkeypatch.setattr(distributed, "init_process_group", init_process_group)
        monkeypatch.setenv("LOCAL_RANK", str(rank))
        monkeypatch.setenv("LOCAL_WORLD_SIZE", str(ranks))
        return backends

    return as_rank


def test_example_of_tensor_parallel_compares_one_rank_with_itself(joined, monkeypatch, capsys):
    """The program itself; with real ranks it runs in test_distributed."""
    backends = joined(rank=0, ranks=1)
    monkeypatch.delitem(sys.modules, example.__name__)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # runpy would leave code behind that checks signatures
    runpy.run_module(example.__name__, run_name="__main__")
    assert backends == ["gloo"]
    assert not distributed.is_initialized()
    assert capsys.readouterr().out.splitlines() == [
        "1 rank(s), each with 8 of 8 heads and 4 of 4 key-value heads",
        "forward:  nothing",
        "backward: nothing",
        "output and all gradients are those of the whole layer",
    ]


@pytest.mark.parametrize(("rank", "printed"), [(0, "on cuda"), (1, "")])
def test_example_of_tensor_parallel_takes_gpus_and_prints_on_one_rank(rank, printed, joined, monkeypatch, capsys):
    backends, taken = joined(rank, ranks=2), []
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    monkeypatch.setattr(example, "init_device_mesh", lambda kind, shape: kind)
    monkeypatch.setattr(example, "compare", lambda kind: [f"on {kind}"])
    example.main()
    assert (backends, taken) == (["nccl"], [rank])
    assert not distributed.is_initialized()
    assert capsys.readouterr().out.strip() == printed
