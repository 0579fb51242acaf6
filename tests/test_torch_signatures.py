"""What `prepare`, `positions`, `scale`, `bias` and `extra_keys` do in the PyTorch layer: what they do in NumPy."""

import importlib
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import mha_tutorial
from mha_tutorial import Causal, Documents, Padding, RowWeights
from mha_tutorial.torch import ExtraKeys, MultiHeadAttention, flex, fused, guarded, naive, online
from mha_tutorial.trace import Trace
from tests.helpers import D_K, D_MODEL, D_V, M, N, assert_close
from tests.torch_helpers import BLOCKED, WithMask, array, one_thread, tensors  # noqa: F401

H, H_KV, S = 6, 2, 3
BATCHES = [(), (2,), (2, 5)]


@pytest.fixture
def weights(rng):
    return RowWeights.random(rng, D_MODEL, H, h_kv=H_KV, d_k=D_K, d_v=D_V)


def turn(queries, keys, positions):
    """Depends on the place of each token and on each of its numbers; for arrays and for tensors."""
    pair = positions if isinstance(positions, tuple) else (positions, positions)
    return tuple(turned(x, places) for x, places in zip((queries, keys), pair, strict=True))


def turned(x, places):
    cos = np.cos(np.asarray(places)[..., None, :, None] + np.arange(x.shape[-1]))
    return x * (cos if isinstance(x, np.ndarray) else torch.tensor(cos))


def as_tensors(positions):
    if isinstance(positions, tuple):
        return tuple(map(torch.tensor, positions))
    return None if positions is None else torch.tensor(positions)


def places(batch):
    return {
        "left out": None,
        "of all": np.arange(N)[::-1] * 2,
        "of each sequence": np.arange(N * np.prod(batch, dtype=int)).reshape(*batch, N),
        "a pair": (np.arange(N) + 4, np.arange(N * np.prod(batch, dtype=int)).reshape(*batch, N)),
    }


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("given", places(()))
def test_torch_prepare_reads_positions(given, batch, weights, rng):
    x, positions = rng.normal(size=(*batch, N, D_MODEL)), places(batch)[given]
    expected = mha_tutorial.MultiHeadAttention(weights, prepare=turn).trace(x, positions=positions)
    trace = MultiHeadAttention.from_weights(weights, prepare=turn).trace(
        tensors(x), positions=as_tensors(positions)
    )
    for step in Trace._fields:
        assert_close(array(getattr(trace, step)), getattr(expected, step))


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_torch_prepare_reads_a_pair(batch, weights, rng):
    x, memory = rng.normal(size=(*batch, N, D_MODEL)), rng.normal(size=(*batch, M, D_MODEL))
    plain = mha_tutorial.MultiHeadAttention(weights, prepare=turn)
    layer = MultiHeadAttention.from_weights(weights, prepare=turn)
    for positions in (None, (np.arange(N) * 3, np.arange(M * np.prod(batch, dtype=int)).reshape(*batch, M))):
        expected = plain(x, memory, positions=positions)
        assert_close(array(layer(*tensors(x, memory), positions=as_tensors(positions))), expected)


@pytest.mark.parametrize("kernel", BLOCKED)
@pytest.mark.parametrize("scale", [None, 0.0, -0.3, 2.5])
def test_every_argument_at_once(kernel, scale, weights, rng):
    x, bias = rng.normal(size=(2, N, D_MODEL)), rng.normal(size=(H, N, N))
    extra = rng.normal(size=(H_KV, S, D_K)), rng.normal(size=(H_KV, S, D_V))
    options = {"scale": scale, "prepare": turn}
    plain = mha_tutorial.MultiHeadAttention(weights, extra_keys=extra, **options)
    layer = MultiHeadAttention.from_weights(weights, kernel=BLOCKED[kernel], extra_keys=tensors(*extra), **options)
    for visible in (None, Causal(), Padding([3, 2], side="left"), rng.random((H, N, N)) < 0.5):
        expected = plain.trace(x, visible=visible, bias=bias)
        given = torch.tensor(visible) if isinstance(visible, np.ndarray) else visible
        trace = layer.trace(tensors(x), visible=given, bias=torch.tensor(bias))
        for step in Trace._fields:
            assert_close(array(getattr(trace, step)), getattr(expected, step))
        assert_close(array(layer(tensors(x), visible=given, bias=torch.tensor(bias))), expected.output)


def test_positions_without_prepare_change_nothing(weights, rng):
    x, layer = tensors(rng.normal(size=(2, N, D_MODEL))), MultiHeadAttention.from_weights(weights)
    assert torch.equal(layer(x, positions=torch.arange(N)), layer(x))


@pytest.mark.parametrize(
    ("positions", "error", "message"),
    [
        (np.arange(N), TypeError, "positions must be a tensor of integers, got ndarray"),
        (torch.ones(N), TypeError, "positions must be a tensor of integers, got torch.float32"),
        (torch.ones(N).bool(), TypeError, "positions must be a tensor of integers, got torch.bool"),
        (torch.arange(N + 1), ValueError, r"positions must be \(tokens,\) or .* \(2, 5\), got \(6,\)"),
        (torch.zeros(3, N).long(), ValueError, r"one for each of the tokens \(2, 5\), got \(3, 5\)"),
        ((torch.arange(N),) * 3, ValueError, "positions must be a pair where the keys are not the queries"),
    ],
)
def test_positions_that_do_not_fit(positions, error, message, weights):
    with pytest.raises(error, match=message):
        MultiHeadAttention.from_weights(weights)(torch.zeros(2, N, D_MODEL).double(), positions=positions)


def test_one_tensor_of_positions_is_no_pair(weights):
    layer, x = MultiHeadAttention.from_weights(weights), torch.zeros(2, N, D_MODEL).double()
    with pytest.raises(ValueError, match=r"positions must be a pair .* got Tensor"):
        layer(x, x.clone(), positions=torch.arange(N))


@pytest.mark.parametrize(
    ("prepare", "error", "message"),
    [
        (lambda q, k, positions: q, TypeError, "prepare must return a pair .* got Tensor"),
        (
            lambda q, k, positions: (q.float(), k),
            TypeError,
            "return queries in torch.float64",
        ),
        (
            lambda q, k, positions: (q, k[..., 1:]),
            ValueError,
            r"keys of shape .*, got \(2, 2, 5, 12\)",
        ),
    ],
)
def test_prepare_returns_what_it_was_given(prepare, error, message, weights):
    with pytest.raises(error, match=message):
        MultiHeadAttention.from_weights(weights, prepare=prepare)(torch.zeros(2, N, D_MODEL).double())


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"prepare": 3}, TypeError, r"prepare must be a function \(q, k, positions\) -> \(q, k\), got 3"),
        ({"kernel": None}, TypeError, "kernel must be a function .* got None"),
        ({"scale": "small"}, TypeError, "scale must be a number, got str"),
        ({"scale": np.nan}, ValueError, "scale must be a finite number, got nan"),
        ({"extra_keys": 3}, TypeError, "extra_keys must be ExtraKeys, a pair .* got int"),
        (
            {"extra_keys": (np.zeros((3, 1, 4)),) * 2},
            TypeError,
            "keys must be a floating .* got ndarray",
        ),
        ({"extra_keys": (torch.zeros(3, 4),) * 2}, ValueError, r"ExtraKeys: keys must be \(h_kv, s, width\)"),
        ({"extra_keys": (torch.zeros(3, 1, 4), torch.zeros(3, 2, 4))}, ValueError, "must be as many"),
        ({"extra_keys": (torch.zeros(3, 1, 4), torch.zeros(3, 1, 5))}, ValueError, "with h_kv=3, d_k=4 and d_v=4"),
    ],
)
def test_what_a_layer_cannot_be_made_with(options, error, message):
    with pytest.raises(error, match=message):
        MultiHeadAttention(12, 3, **options)


@pytest.mark.parametrize("kernel", [naive, online, fused, flex])
def test_a_scale_is_a_finite_number(kernel):
    x = torch.zeros(1, 1, 2, 3)
    with pytest.raises(TypeError, match=r"scale must be a number, got torch\.float32"):
        kernel(x, x, x, scale=torch.ones(()))
    with pytest.raises(ValueError, match="scale must be a finite number, got inf"):
        kernel(x, x, x, scale=np.inf)


@pytest.mark.parametrize("kernel", [fused, flex])
def test_a_kernel_without_log_sums_says_so(kernel):
    x = torch.zeros(1, 1, 2, 3)
    with pytest.raises(NotImplementedError, match="log_sums is not offered; choose naive or online"):
        kernel(x, x, x, log_sums=True)


def test_a_block_holds_something():
    x = torch.zeros(1, 1, 2, 3)
    with pytest.raises(ValueError, match="online: block must be at least 1, got 0"):
        online(x, x, x, block=0)


def test_the_trace_of_a_kernel_of_ones_own(weights, rng):
    """Nobody knows what it does to a score; its attention, times the values, is what it computes."""
    x = tensors(rng.normal(size=(2, N, D_MODEL)))
    layer = MultiHeadAttention.from_weights(weights, kernel=lambda *x, **o: naive(*x, **{**o, "scale": 0.7}))
    known = MultiHeadAttention.from_weights(weights, kernel=partial(naive, scale=0.7)).trace(x, visible=Causal())
    for kernel in (layer.kernel, guarded(layer.kernel)):
        layer.kernel = kernel
        trace = layer.trace(x, visible=Causal())
        for step in ("attention", "heads", "output"):
            assert_close(array(getattr(trace, step)), array(getattr(known, step)))
        assert_close(array(trace.scores.softmax(dim=-1)), array(known.attention))


@pytest.mark.parametrize(("add_bias_kv", "add_zero_attn"), [(True, False), (False, True), (True, True)])
def test_extra_keys_and_scale_go_to_pytorch_and_back(add_bias_kv, add_zero_attn):
    torch.manual_seed(0)
    options = {"add_bias_kv": add_bias_kv, "add_zero_attn": add_zero_attn, "batch_first": True}
    module, x = nn.MultiheadAttention(12, 3, **options).double().eval(), torch.randn(2, N, 12).double()
    expected = module(x, x, x)[0]
    layer = MultiHeadAttention.from_torch(module)
    assert_close(array(layer(x)), array(expected))
    assert_close(array(layer.to_torch()(x, x, x)[0]), array(expected))
    layer.scale = -0.7
    assert "scale=-0.7" in repr(layer)
    assert_close(array(layer.to_torch()(x, x, x)[0]), array(layer(x)))


def test_the_scale_of_a_kernel_goes_to_pytorch():
    torch.manual_seed(0)
    layer = MultiHeadAttention(12, 3, kernel=partial(fused, scale=0.2), bias=False, dtype=torch.float64)
    x = torch.randn(2, N, 12).double()
    assert_close(array(layer.to_torch()(x, x, x)[0]), array(layer(x)))


def test_a_mask_before_extra_keys_is_of_the_tokens(weights):
    extra = ExtraKeys(torch.zeros(H_KV, 1, D_K).double(), torch.zeros(H_KV, 1, D_V).double())
    layer, x = MultiHeadAttention.from_weights(weights, extra_keys=extra), torch.zeros(2, N, D_MODEL).double()
    with pytest.raises(ValueError, match=r"visible of shape .* does not broadcast"):
        layer(x, visible=torch.ones(N, N + 1).bool())


@pytest.mark.parametrize("name", ["visible", "bias"])
def test_three_axes_that_could_be_sequences_or_heads_are_refused(name):
    """M14: as many sequences as heads."""
    given = torch.ones(3, N, N)
    given = given.bool() if name == "visible" else given
    layer, x = MultiHeadAttention(12, 3), torch.zeros(3, N, 12)
    for accept in (given[:, None], given[None]):
        layer(x, **{name: accept})
    with pytest.raises(ValueError, match=rf"{name} of shape \(3, 5, 5\) could have one entry .* {name}\[None\]"):
        layer(x, **{name: given})
    with pytest.raises(ValueError, match=r"does not broadcast .* Did you mean .*\[\.\.\., None, :, :\]"):
        layer(x[:2], **{name: given[:2]})


def test_queries_beside_no_document_reach_nothing(rng):
    """Of blocks of queries, those behind the last document have no tile to compute."""
    q, k, v = tensors(rng.normal(size=(1, 1, 7, 3)), rng.normal(size=(1, 1, 7, 3)), rng.normal(size=(1, 1, 7, 3)))
    visible = Documents([2, 1])
    found = online(q, k, v, visible=visible, block=2)
    assert_close(array(found), array(naive(q, k, v, visible=visible)))
    assert not found[:, :, 3:].any()


def test_an_exported_mask_of_another_batch_is_refused():
    with pytest.raises(ValueError, match=r"lengths of shape \(3,\) do not fit the batch \(2,\)"):
        torch.export.export(WithMask(MultiHeadAttention(12, 4), Padding([3, 2, 1])), (torch.zeros(2, N, 12),))


def test_a_scale_is_exported():
    x, module = torch.ones(2, N, 12), WithMask(MultiHeadAttention(12, 4, scale=0.3), Causal())
    assert torch.equal(torch.export.export(module, (x,)).module()(x), module(x))


def test_flex_without_a_look_at_the_data(monkeypatch, rng):
    """Keys that nobody sees are zeros there."""
    module = importlib.import_module("mha_tutorial.torch.kernels.flex")
    monkeypatch.setattr(module, "is_eager", lambda x: False)
    monkeypatch.setattr(module, "_compiled", lambda: lambda q, k, v, **options: naive(q, k, v))
    q, k, v = (torch.tensor(rng.normal(size=(2, 1, 5, 3)), dtype=torch.float32) for _ in range(3))
    k[:, :, 3:] = torch.nan
    expected = naive(q, k.masked_fill(k.isnan(), 0), v * (torch.arange(5) < 3)[:, None])
    assert torch.equal(flex(q, k, v, visible=Padding([3, 3])), expected)
    assert flex(q, k, v).isnan().all()
