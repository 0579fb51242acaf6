"""Parameters, multiply-adds and bytes: the formulas against what is really there."""

import tracemalloc
from functools import reduce
from operator import or_

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_tutorial import Causal, ColumnWeights, Documents, MultiHeadAttention, Padding, Prefix, Window
from mha_tutorial.analysis import _runs, counting
from mha_tutorial.reference import row
from tests.helpers import D_K, D_MODEL, D_V, M, N
from tests.mask_helpers import EveryOther, combined

SIZES = {"d_model": D_MODEL, "h": 6, "h_kv": 2, "d_k": D_K, "d_v": D_V}


@pytest.mark.equation("eq-parameters")
@pytest.mark.parametrize("bias", [True, False])
def test_parameters_are_the_entries_of_the_arrays(bias, rng):
    weights = ColumnWeights.random(rng, **SIZES, bias=bias)
    entries = sum(array.size for array in weights.arrays().values())
    assert counting.parameters(weights) == counting.parameters(weights.T) == entries


@pytest.mark.equation("eq-parameters")
@pytest.mark.parametrize("h", [1, 2, 8, 64])
def test_usual_widths_have_four_d_squared_parameters(h):
    assert counting.parameters(counting.shape_only_weights(512, h, bias=False)) == 4 * 512**2
    assert counting.parameters(counting.shape_only_weights(512, h)) == 4 * 512**2 + 4 * 512


@pytest.mark.equation("eq-multiply-adds")
def test_multiply_adds_are_those_of_the_products_that_are_made(rng):
    """Every product is made once more with arrays that count their multiplications."""
    weights = ColumnWeights.random(rng, **SIZES)
    arrays = weights.arrays() | {"W_k": np.ones((2, D_K, 19)), "W_v": np.ones((2, D_V, 23))}
    weights = ColumnWeights(**arrays)
    counted = counting.multiply_adds(weights, N, M)

    def product(left, right):
        (rows, inner), (_, columns) = left.shape[-2:], right.shape[-2:]
        heads = max(left.shape[0] if left.ndim > 2 else 1, right.shape[0] if right.ndim > 2 else 1)
        return heads * rows * inner * columns

    Q, K, V = np.ones((D_MODEL, N)), np.ones((19, M)), np.ones((23, M))
    q, k, v = weights.W_q @ Q, weights.W_k @ K, weights.W_v @ V
    shared_k, shared_v = np.repeat(k, 3, axis=0), np.repeat(v, 3, axis=0)
    scores = shared_k.mT @ q
    heads = shared_v @ scores
    assert counted == (
        product(weights.W_q, Q),
        product(weights.W_k, K),
        product(weights.W_v, V),
        product(shared_k.mT, q),
        product(shared_v, scores),
        product(weights.W_o, heads),
    )
    assert counted.total == sum(counted)
    assert counting.multiply_adds(weights.T, N, M) == counted


@pytest.mark.equation("eq-multiply-adds")
def test_usual_widths_take_four_n_d_squared_and_two_n_squared_d():
    n, d = 1024, 512
    costs = counting.multiply_adds(counting.shape_only_weights(d, h=8), n)
    assert costs.queries + costs.keys + costs.values + costs.output == 4 * n * d**2
    assert costs.scores + costs.averages == 2 * n**2 * d


@pytest.mark.equation("eq-crossover")
@pytest.mark.parametrize("h", [1, 8])
def test_the_quadratic_part_overtakes_at_twice_the_width(h):
    assert counting.crossover(counting.shape_only_weights(512, h)) == 2 * 512


@pytest.mark.equation("eq-crossover")
def test_at_the_crossover_both_parts_cost_the_same():
    weights = counting.shape_only_weights(24, h=6, h_kv=2, d_k=8, d_v=24)
    n = counting.crossover(weights)
    assert n == 32
    costs = counting.multiply_adds(weights, int(n))
    assert costs.scores + costs.averages == costs.queries + costs.keys + costs.values + costs.output


@pytest.mark.equation("eq-activations")
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_bytes_are_those_of_the_trace(dtype, rng):
    arrays = {name: array.astype(dtype) for name, array in ColumnWeights.random(rng, **SIZES).arrays().items()}
    weights = ColumnWeights(**arrays)
    trace = MultiHeadAttention(weights).trace(np.ones((N, D_MODEL), dtype), np.ones((M, D_MODEL), dtype))
    counted = counting.activation_bytes(weights, N, M)
    assert counted.queries == trace.queries.nbytes
    assert counted.keys == trace.keys.nbytes
    assert counted.values == trace.values.nbytes
    assert counted.scores == trace.scores.nbytes
    assert counted.averages == trace.attention.nbytes + trace.heads.nbytes
    assert counted.output == trace.output.nbytes
    assert counting.activation_bytes(weights, N) == counting.activation_bytes(weights, N, N)


def test_cache_holds_the_keys_and_values_of_the_trace(rng):
    weights = ColumnWeights.random(rng, **SIZES)
    trace = MultiHeadAttention(weights).trace(np.ones((N, D_MODEL)), np.ones((M, D_MODEL)))
    assert counting.cache_bytes(weights, M) == trace.keys.nbytes + trace.values.nbytes
    assert counting.cache_bytes(weights.T, M, dtype=np.float16) == (trace.keys.nbytes + trace.values.nbytes) // 4
    assert counting.cache_bytes(weights, 0) == 0


def test_sharing_keys_and_values_divides_the_cache():
    sizes = {h_kv: counting.cache_bytes(counting.shape_only_weights(512, 8, h_kv=h_kv), 1) for h_kv in (8, 2, 1)}
    assert sizes[8] == 4 * sizes[2] == 8 * sizes[1] == 2 * 512 * 4


@pytest.mark.equation("eq-crossover")
def test_in_a_whole_block_the_quadratic_part_overtakes_at_six_times_the_width():
    """With the MLP, whose two matrices of d by 4 d take 8 d^2 for each token; later under a causal mask."""
    d = 64
    layer = counting.shape_only_weights(d, h=8)
    for visible, n, tolerance in ((None, 6 * d, 0), (Causal(), 12 * d, 2 / (12 * d))):
        costs = counting.multiply_adds(layer, n, visible=visible)
        quadratic = costs.scores + costs.averages
        linear = costs.total - quadratic + 8 * n * d**2
        assert quadratic == pytest.approx(linear, rel=tolerance)


def test_shape_only_weights_take_no_memory_and_are_like_drawn_ones(rng):
    empty, drawn = counting.shape_only_weights(**SIZES), ColumnWeights.random(rng, **SIZES)
    for name, array in drawn.arrays().items():
        assert empty.arrays()[name].shape == array.shape
        assert empty.arrays()[name].strides == (0,) * array.ndim
    assert empty.dtype == np.float32
    assert counting.shape_only_weights(12, 4, bias=False).arrays().keys() == {"W_q", "W_k", "W_v", "W_o"}
    assert (counting.shape_only_weights(12, 4).d_k, counting.shape_only_weights(12, 4).h_kv) == (3, 4)


def test_numpy_integers_do_not_overflow():
    layer = counting.shape_only_weights(12288, 96)
    for count in (counting.multiply_adds, counting.activation_bytes):
        assert count(layer, np.int32(100_000)) == count(layer, 100_000)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize("count", [counting.multiply_adds, counting.activation_bytes])
@pytest.mark.parametrize("which", ["n", "m"])
def test_lengths_are_whole_numbers(count, which):
    layer = counting.shape_only_weights(12, 4)
    assert count(layer, **{"n": 5} | {which: 0}).scores == 0
    for length in (1.5, True, "3", np.ones(2)):
        with pytest.raises(TypeError, match=f"{which} must be a whole number"):
            count(layer, **{"n": 5} | {which: length})
    with pytest.raises(ValueError, match=f"{which} must be at least 0, got -1"):
        count(layer, **{"n": 5} | {which: -1})


@pytest.mark.usefixtures("own_messages")
def test_sizes_that_make_no_layer_are_refused():
    with pytest.raises(ValueError, match=r"d_model \(512\) must be divisible by h \(6\)"):
        counting.shape_only_weights(512, 6)
    with pytest.raises(TypeError, match=r"d_model must be a whole number, got 512\.0"):
        counting.shape_only_weights(512.0, 8)
    with pytest.raises(ValueError, match="h must be at least 1, got -8"):
        counting.shape_only_weights(512, -8)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(
    "count", [counting.parameters, counting.crossover, lambda weights: counting.multiply_adds(weights, 3)]
)
def test_only_weights_can_be_counted(count, rng):
    with pytest.raises(TypeError, match=r"got MultiHeadAttention\. Did you mean its \.weights\?"):
        count(MultiHeadAttention(ColumnWeights.random(rng, **SIZES)))


# --- the pairs that a mask leaves ---------------------------------------------------------------------------------


def dense(mask, n, m, batch=()):
    """The visible pairs, counted one by one."""
    return int(np.broadcast_to(mask.rows(n, m, batch), (*batch, n, m)).sum())


@given(data=st.data(), b=st.integers(1, 3), n=st.integers(1, 9), m=st.integers(1, 9))
@settings(deadline=None)
def test_visible_pairs_are_those_of_the_array(data, b, n, m):
    mask = data.draw(combined(b, n, m))
    assert counting.visible_pairs(mask, n, m, (b,)) == dense(mask, n, m, (b,))


LONG = 100_003


@pytest.mark.parametrize(
    ("mask", "n", "m", "pairs"),
    [
        (Causal(), LONG, LONG, LONG * (LONG + 1) // 2),
        (Causal("bottom-right"), 1, LONG, LONG),
        (Causal("top-left"), 1, LONG, 1),
        (Window(1000), LONG, LONG, LONG * 1999 - 999 * 1000),
        (Window(1000) & Causal(), LONG, LONG, LONG * 1000 - 999 * 1000 // 2),
        (Window(10**30) & Causal(), LONG, LONG, LONG * (LONG + 1) // 2),
        (Causal() | Prefix(1000), LONG, LONG, LONG * (LONG + 1) // 2 + 1000 * 999 // 2),
        (Causal() & Padding(LONG - 7), LONG, LONG, LONG * (LONG + 1) // 2 - 7 * 8 // 2),
        (Causal() & Padding(LONG - 7, "left"), LONG, LONG, (LONG - 7) * (LONG - 6) // 2),
        (~Causal(), LONG, LONG, LONG * (LONG - 1) // 2),
        (Documents([1000, 0, 2000]), LONG, LONG, 5_000_000),
        (Documents([1000, 2000]) & Causal(), LONG, LONG, 1000 * 1001 // 2 + 2000 * 2001 // 2),
    ],
    ids=repr,
)
def test_visible_pairs_of_long_texts_are_counted_in_little_memory(mask, n, m, pairs):
    """Ten thousand million pairs; an array of them would take as many bytes."""
    tracemalloc.start()
    assert counting.visible_pairs(mask, n, m) == pairs
    assert tracemalloc.get_traced_memory()[1] < 200 * LONG
    tracemalloc.stop()


def test_visible_pairs_of_a_mask_of_ones_own_are_counted_tile_by_tile(monkeypatch):
    monkeypatch.setattr(counting, "SIDE", 3)
    for mask in (EveryOther(), ~EveryOther(), EveryOther() & Padding([2, M]), Causal("top-left") | EveryOther()):
        assert _runs.runs(mask, N, M, (2,)) is None
        assert counting.visible_pairs(mask, N, M, (2,)) == dense(mask, N, M, (2,))


def test_visible_pairs_of_very_many_masks_are_counted_tile_by_tile():
    mask = reduce(or_, [Window(1), *(Prefix(k) & Window(k) for k in range(1, 12))])
    assert _runs.runs(mask, 13, 13, ()) is None
    assert counting.visible_pairs(mask, 13) == dense(mask, 13, 13)


def test_visible_pairs_of_nothing():
    assert counting.visible_pairs(Causal(), 0) == counting.visible_pairs(EveryOther(), 0, 3) == 0
    assert counting.visible_pairs(Padding([]), 3, 4, (0,)) == 0


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: counting.visible_pairs(np.eye(3) > 0, 3), TypeError, "a structured mask such as .*, got ndarray"),
        (lambda: counting.visible_pairs(Causal(), 2.0), TypeError, "n must be a whole number, got 2.0"),
        (lambda: counting.visible_pairs(Causal(), 2, -1), ValueError, "m must be at least 0, got -1"),
        (lambda: counting.visible_pairs(Causal(), 2, 3), ValueError, "the alignment must be stated"),
        (lambda: counting.visible_pairs(Padding([1, 2]), 3), ValueError, r"do not fit the batch axes \(\)"),
        (lambda: counting.visible_pairs(Documents([9]), 3), ValueError, "must not exceed the 3 keys together"),
        (
            lambda: counting.multiply_adds(counting.shape_only_weights(12, 3), 5, visible=np.ones((4, 4), bool)),
            ValueError,
            "does not broadcast to the scores",
        ),
        (
            lambda: counting.multiply_adds(counting.shape_only_weights(12, 3), 5, visible=np.ones((5, 5))),
            TypeError,
            "visible must be a boolean array",
        ),
    ],
)
def test_pairs_that_cannot_be_counted_are_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()


@pytest.mark.parametrize(
    "visible",
    [Causal("top-left"), Window(2, "bottom-right") & Causal("bottom-right"), Prefix(3), ~Padding(2), EveryOther()],
    ids=["causal", "window", "prefix", "not padding", "own"],
)
def test_multiply_adds_left_by_a_mask(visible):
    """What is not quadratic stays; scores and averages shrink with the pairs, in every head."""
    weights = counting.shape_only_weights(**SIZES)
    every, left = (counting.multiply_adds(weights, N, M, visible) for visible in (None, visible))
    assert left[:3] + left[5:] == every[:3] + every[5:]
    assert (left.scores, left.averages) == tuple(6 * dense(visible, N, M) * width for width in (D_K, D_V))
    rows = np.broadcast_to(visible.rows(N, M), (N, M))
    assert counting.multiply_adds(weights, N, M, rows.mT) == left
    assert counting.multiply_adds(weights.T, N, M, rows) == counting.multiply_adds(weights.T, N, M, visible) == left


def test_multiply_adds_left_by_an_array_for_each_head(rng):
    visible = rng.random((6, N, M)) < 0.3
    costs = counting.multiply_adds(counting.shape_only_weights(**SIZES).T, N, M, visible)
    assert (costs.scores, costs.averages) == (visible.sum() * D_K, visible.sum() * D_V)
    of_keys = rng.random((1, M)) < 0.3
    assert (
        counting.multiply_adds(counting.shape_only_weights(**SIZES).T, N, M, of_keys).scores
        == 6 * N * of_keys.sum() * D_K
    )


def test_a_causal_mask_leaves_half_of_the_quadratic_part():
    n, weights = 1024, counting.shape_only_weights(512, 8)
    every, causal = (counting.multiply_adds(weights, n, visible=visible) for visible in (None, Causal()))
    assert causal.scores / every.scores == causal.averages / every.averages == (n + 1) / (2 * n)


@pytest.mark.equation("eq-traffic")
@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_naive_traffic_is_what_each_step_reads_and_writes(dtype, rng):
    weights = counting.shape_only_weights(**SIZES, dtype=dtype)
    q, k, v = (rng.normal(size=(6, *shape)).astype(dtype) for shape in ((N, D_K), (M, D_K), (M, D_V)))
    scores = q @ k.mT
    attention = row.softmax(scores)
    heads = attention @ v
    read, written = (q, k, scores, attention, v), (scores, attention, heads)
    expected = counting.Traffic(*(sum(array.nbytes for array in arrays) for arrays in (read, written)))
    assert counting.naive_traffic(weights, N, M) == counting.naive_traffic(weights.T, N, M) == expected
    assert expected.total == expected.read + expected.written


@pytest.mark.equation("eq-traffic")
@pytest.mark.parametrize("block", [1, 2, 3, 100])
def test_tiled_traffic_is_what_tiles_are_given(block, rng):
    """Keys and values are as many as those that the scores of all tiles are made of."""
    weights = counting.shape_only_weights(**SIZES, dtype=np.float64)
    q, k, v = (rng.normal(size=(6, *shape)) for shape in ((N, D_K), (M, D_K), (M, D_V)))
    keys = 0

    def score(queries, some_keys):
        nonlocal keys
        keys += some_keys.shape[-2]
        return row.scaled_dot_product(queries, some_keys)

    heads, log_sums = row.online_attention(q, k, v, score, block=block)
    expected = q.nbytes + keys * (k[:, 0].nbytes + v[:, 0].nbytes), heads.nbytes + log_sums.nbytes
    assert counting.tiled_traffic(weights, N, M, block) == expected
    assert counting.tiled_traffic(weights.T, N, M, block) == expected


def test_traffic_of_self_attention_has_as_many_keys_as_queries():
    weights = counting.shape_only_weights(512, h=8)
    assert counting.naive_traffic(weights, 1000) == counting.naive_traffic(weights, 1000, 1000)
    assert counting.tiled_traffic(weights, 1000, block=256) == counting.tiled_traffic(weights, 1000, 1000, 256)


@pytest.mark.equation("eq-roofline")
def test_arithmetic_is_limited_by_the_memory_or_by_the_processor():
    speeds = [
        counting.attainable(intensity, peak=300.0, bandwidth=2.0)
        for intensity in (0.0, 3.0, 149.0, 150.0, 151.0, 9e9)
    ]
    assert speeds == [0, 6, 298, 300, 300, 300]


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(
    ("sizes", "error"), [((-1, 1, 1), ValueError), ((1, 1.5, 1), TypeError), ((1, 1, 0), ValueError)]
)
def test_traffic_of_what_is_no_size_is_refused(sizes, error):
    with pytest.raises(error, match="must be"):
        counting.tiled_traffic(counting.shape_only_weights(64, 1), *sizes)
    if sizes[-1]:
        with pytest.raises(error, match="must be"):
            counting.naive_traffic(counting.shape_only_weights(64, 1), *sizes[:2])
