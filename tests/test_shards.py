"""Heads divided among simulated ranks: the shards add up to the layer, forward and backward."""

import numpy as np
import pytest

from mha_tutorial import Causal, RowWeights
from mha_tutorial.examples import shards
from mha_tutorial.gradients import backward
from mha_tutorial.reference import column
from tests.helpers import BATCH, D_K, D_MODEL, D_V, M, N, assert_close, in_both_conventions

H, H_KV = 12, 4


@pytest.fixture
def weights(rng):
    return RowWeights.random(rng, D_MODEL, H, h_kv=H_KV, d_k=D_K, d_v=D_V).T


@pytest.mark.equation("eq-shards", "eq-shards-row", "eq-all-reduce")
@in_both_conventions
@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("bias", [True, False])
def test_shards_add_up_to_the_layer_forward_and_backward(bias, ranks, convention, weights, rng):
    if not bias:
        weights = type(weights)(weights.W_q, weights.W_k, weights.W_v, weights.W_o)
    X, memory = convention.lay(rng.normal(size=(BATCH, D_MODEL, N)), rng.normal(size=(BATCH, D_MODEL, M)))
    whole = convention.lay_weights(weights)
    options = {"visible": Causal("bottom-right")}
    trace = convention.ref.multi_head(X, memory, memory, whole, **options)
    d_output = rng.normal(size=trace.output.shape)
    expected = backward(d_output, trace, X, memory, memory, whole)

    parts = [shards.shard(whole, rank, ranks) for rank in range(ranks)]
    traces = [convention.ref.multi_head(X, memory, memory, part, **options) for part in parts]
    for output in shards.all_reduce([one.output for one in traces]):
        assert_close(output, trace.output)
    of_ranks = [
        backward(d_output, *each)
        for each in ((t, X, memory, memory, p) for t, p in zip(traces, parts, strict=True))
    ]
    for name in ("Q", "K", "V"):
        for gradient in shards.all_reduce([getattr(gradients, name) for gradients in of_ranks]):
            assert_close(gradient, getattr(expected, name))
    for name, gradient in expected.weights.arrays().items():
        own = [gradients.weights.arrays()[name] for gradients in of_ranks if name in gradients.weights.arrays()]
        assert_close(own[0] if name == "b_o" else np.concatenate(own), gradient)


def test_shards_hold_heads_in_order_and_the_output_bias_once(weights):
    parts = [shards.shard(weights, rank, 2) for rank in range(2)]
    for name, array in weights.arrays().items():
        if name != "b_o":
            assert np.array_equal(np.concatenate([part.arrays()[name] for part in parts]), array)
    assert np.array_equal(parts[0].b_o, weights.b_o)
    assert parts[1].b_o is None


@pytest.mark.parametrize(
    ("rank", "ranks", "message"),
    [
        (0, 8, "8 ranks cannot share 4 key-value heads evenly"),
        (0, 3, "3 ranks cannot share 4 key-value heads evenly"),
        (2, 2, "ranks are 0 to 1, got rank 2"),
        (-1, 2, "rank must be at least 0, got -1"),
        (0, 0, "ranks must be at least 1, got 0"),
    ],
)
@pytest.mark.usefixtures("own_messages")
def test_shard_refuses_what_does_not_divide(rank, ranks, message, weights):
    with pytest.raises(ValueError, match=message):
        shards.shard(weights, rank, ranks)


@pytest.mark.usefixtures("own_messages")
def test_shard_refuses_a_rank_that_is_no_whole_number(weights):
    with pytest.raises(TypeError, match=r"rank must be a whole number, got 0\.5"):
        shards.shard(weights, 0.5, 2)


def test_all_reduce_of_shards_gives_every_rank_an_array_of_its_own(rng):
    parts = list(rng.normal(size=(3, 2, 5)))
    first, *others = shards.all_reduce(parts)
    first[:] = 0
    assert all(np.array_equal(other, parts[0] + parts[1] + parts[2]) for other in others)


@pytest.mark.equation("eq-ring")
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
def test_ring_of_shards_adds_up_and_sends_its_share_of_the_payload(ranks, rng):
    size = 5 * ranks
    parts = rng.normal(size=(ranks, size))
    ring = shards.ring_all_reduce(parts)
    assert len(ring.held) == 2 * (ranks - 1) + 1
    assert_close(ring.held[-1], np.tile(parts.sum(axis=0), (ranks, 1)))
    assert 8 * ring.sent[0] == shards.ring_bytes(8 * size, ranks)
    assert len(set(ring.sent)) == 1
    assert np.array_equal(ring.held[0], parts)


def test_ring_of_shards_adds_up_what_cannot_be_cut_evenly(rng):
    parts = rng.normal(size=(4, 6))
    ring = shards.ring_all_reduce(parts)
    assert_close(ring.held[-1], np.tile(parts.sum(axis=0), (4, 1)))
    assert sum(ring.sent) == 2 * 3 * 6


def test_ring_of_shards_moves_one_chunk_of_every_rank_in_a_step():
    """Of four ranks with ones: after three steps each has one complete chunk, after three more all four."""
    held = shards.ring_all_reduce(np.ones((4, 4))).held
    assert [int((state == 4).sum()) for state in held] == [0, 0, 0, 4, 8, 12, 16]
    assert [sorted(state[0].tolist()) for state in held[:4]] == [
        [1, 1, 1, 1],
        [1, 1, 1, 2],
        [1, 1, 2, 3],
        [1, 2, 3, 4],
    ]


@pytest.mark.equation("eq-all-reduce-bytes")
@pytest.mark.parametrize("ranks", [2, 4])
def test_shards_hand_over_the_bytes_of_the_formula(ranks, weights, rng):
    """One partial output and one partial gradient of the input from every rank; three, where they are not added."""
    X = rng.normal(size=(BATCH, D_MODEL, N))
    parts = [shards.shard(weights, rank, ranks) for rank in range(ranks)]
    for part in parts:
        trace = column.multi_head(X, X, X, part)
        gradients = backward(np.ones_like(trace.output), trace, X, X, X, part)
        of_projections = [gradients.Q, gradients.K, gradients.V]
        forward, once = shards.all_reduce_bytes(BATCH, N, D_MODEL, X.itemsize)
        assert (trace.output.nbytes, sum(of_projections).nbytes) == (forward, once)
        three = shards.all_reduce_bytes(BATCH, N, D_MODEL, X.itemsize, gathered=3)[1]
        assert sum(gradient.nbytes for gradient in of_projections) == three
