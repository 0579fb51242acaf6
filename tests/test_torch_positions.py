"""Positions in PyTorch: what the NumPy ones compute, in its types, with its gradients, compiled."""

import re

import numpy as np
import pytest
import torch

import mha_tutorial
from mha_tutorial import RowWeights
from mha_tutorial.positions import Pairs, alibi_slopes, relative_buckets, row
from mha_tutorial.torch import MultiHeadAttention, Rotary, positions
from mha_tutorial.trace import Trace
from tests.helpers import BATCH, D_MODEL, D_V, M, N, assert_close
from tests.torch_helpers import array, tensors

H, H_KV, D_K = 6, 2, 10
in_both_orders = pytest.mark.parametrize("order", Pairs)


@pytest.fixture
def weights(rng):
    return RowWeights.random(rng, D_MODEL, H, h_kv=H_KV, d_k=D_K, d_v=D_V)


@in_both_orders
@pytest.mark.parametrize("places", [None, np.arange(BATCH * N).reshape(BATCH, N), (np.arange(N) + 4, np.arange(N))])
def test_a_torch_layer_turns_as_the_numpy_layer(places, order, weights, rng):
    x = rng.normal(size=(BATCH, N, D_MODEL))
    expected = mha_tutorial.MultiHeadAttention(weights, prepare=row.Rotary(50, order)).trace(x, positions=places)
    layer = MultiHeadAttention.from_weights(weights, prepare=Rotary(50, order))
    if isinstance(places, tuple):
        places = tuple(map(torch.tensor, places))
    elif places is not None:
        places = torch.tensor(places)
    trace = layer.trace(tensors(x), positions=places)
    for step in Trace._fields:
        assert_close(array(getattr(trace, step)), getattr(expected, step))


@in_both_orders
def test_torch_functions_compute_what_numpy_does(order, rng):
    x, places, of_keys = rng.normal(size=(BATCH, N, D_K)), np.array([0, 3, 40, 7, 7]), np.arange(M) * 30
    as_tensor = torch.tensor(places)
    turned = positions.rotate(tensors(x), as_tensor, 50.0, order)
    assert_close(array(turned), row.rotate(x, places, 50.0, order))
    table = positions.sinusoidal(as_tensor, D_K, 50.0, order, torch.float64)
    assert_close(array(table), row.sinusoidal(places, D_K, 50.0, order))
    assert positions.sinusoidal(as_tensor, D_K).dtype == torch.float32
    slopes, learned = alibi_slopes(H), rng.normal(size=(H, 32))
    for of in (None, of_keys):
        given = None if of is None else torch.tensor(of)
        assert_close(array(positions.alibi(tensors(slopes), as_tensor, given)), row.alibi(slopes, places, of))
        found = positions.relative_bias(tensors(learned), as_tensor, given)
        assert_close(array(found), row.relative_bias(learned, places, of))


@pytest.mark.parametrize("both_sides", [True, False])
@pytest.mark.parametrize("sizes", [(32, 128), (16, 40)])
def test_torch_buckets_are_numpys(both_sides, sizes):
    distance = np.arange(-200, 201)
    found = positions.relative_buckets(torch.tensor(distance), *sizes, both_sides)
    assert np.array_equal(found.numpy(), relative_buckets(distance, *sizes, both_sides))


def test_a_bucket_function_of_ones_own(rng):
    learned = tensors(rng.normal(size=(H, 5)))
    found = positions.relative_bias(learned, torch.arange(N), bucket=lambda distance: distance.clamp(-2, 2) + 2)
    assert torch.equal(found[:, 0], learned[:, [2, 3, 4, 4, 4]])


def test_a_learned_bias_is_learned():
    table = torch.zeros(H, 32, requires_grad=True)
    positions.relative_bias(table, torch.arange(N)).sum().backward()
    assert table.grad.sum(dim=1).tolist() == [N * N] * H


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_numbers_keep_their_type_and_are_rounded_once(dtype):
    x = torch.linspace(-3, 3, N * D_K).view(N, D_K).to(dtype)
    places = torch.arange(N) + 3000
    turned = positions.rotate(x, places)
    assert turned.dtype == dtype
    assert torch.equal(turned, positions.rotate(x.float(), places).to(dtype))


@in_both_orders
def test_gradients_are_turned_back(order, rng):
    x = tensors(rng.normal(size=(N, D_K))).requires_grad_()
    direction = tensors(rng.normal(size=(N, D_K)))
    positions.rotate(x, torch.arange(N), order=order).backward(direction)
    assert_close(array(x.grad), array(positions.rotate(direction, -torch.arange(N), order=order)))


@in_both_orders
def test_turning_compiles_whole(order):
    q, k = torch.linspace(-1, 1, H * N * D_K).view(1, H, N, D_K), torch.ones(1, H_KV, N, D_K)
    compiled = torch.compile(Rotary(order=order), backend="eager", fullgraph=True)
    for found, expected in zip(
        compiled(q, k, torch.arange(N)), Rotary(order=order)(q, k, torch.arange(N)), strict=True
    ):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("change", ["places in place", "other places", "other width", "other type", "more places"])
def test_what_is_kept_of_one_call_does_not_reach_another(change):
    rotary, places = Rotary(), torch.arange(N)
    x = torch.linspace(-1, 1, N * D_K).view(1, 1, N, D_K)
    rotary(x, x, places)
    if change == "places in place":
        places += 3
    elif change == "other places":
        places = places.flip(0)
    elif change == "other width":
        x = x[..., : D_K - 2]
    elif change == "other type":
        x, places = x.double(), places.int()
    else:
        x, places = x.repeat(1, 1, 2, 1), torch.arange(2 * N)
    for found, expected in zip(rotary(x, x, places), Rotary()(x, x, places), strict=True):
        assert torch.equal(found, expected)


def test_layers_that_share_positions_turn_with_the_same_tensors(monkeypatch):
    made, module = [], positions
    original = module._turns
    monkeypatch.setattr(module, "_turns", lambda *given: made.append(given) or original(*given))
    rotary, x = Rotary(), torch.ones(1, 2, N, D_K)
    for places in (torch.arange(N), torch.arange(N), torch.arange(N) + 1):
        rotary(x, x, places)
    assert len(made) == 2


def test_turns_of_inference_mode_are_not_kept_for_gradients():
    rotary, x = Rotary(), torch.ones(1, 1, N, D_K)
    with torch.inference_mode():
        rotary(x, x, torch.arange(N))
    x.requires_grad_()
    rotary(x, x, torch.arange(N))[0].sum().backward()
    assert x.grad.shape == x.shape


def test_turning_many_sequences_by_vmap(rng):
    x, places = tensors(rng.normal(size=(3, 1, H, N, D_K))), torch.arange(3 * N).view(3, N)
    rotary = Rotary()
    found = torch.func.vmap(lambda x, places: rotary(x, x, places)[0])(x, places)
    assert_close(array(found), row.rotate(array(x), places.numpy()[:, None, None], 10000.0))


def test_a_layer_names_its_rotary_positions():
    assert "prepare=Rotary" in repr(MultiHeadAttention(12, 3, prepare=Rotary()))


def test_torch_refuses_what_numpy_refuses():
    x = torch.zeros(N, 4)
    for call in (
        lambda: Rotary(order="halves"),
        lambda: positions.rotate(x, torch.arange(N), order="halves"),
        lambda: positions.sinusoidal(torch.arange(N), 4, order="halves"),
    ):
        with pytest.raises(
            TypeError, match=re.escape("order must be Pairs.HALVES or Pairs.INTERLEAVED, got 'halv")
        ):
            call()
    with pytest.raises(ValueError, match="base must be a positive number, got 0"):
        Rotary(base=0)
    with pytest.raises(ValueError, match="features are paired, so their number must be even, got 3"):
        positions.rotate(x[:, :3], torch.arange(N))
    with pytest.raises(ValueError, match="farthest must be more than 8"):
        positions.relative_buckets(torch.arange(N), farthest=8)
