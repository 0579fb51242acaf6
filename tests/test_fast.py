"""The fast layer gives what the plain one gives: for every mask and shape, any scores, on any thread."""

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mha_tutorial import (
    Causal,
    ColumnWeights,
    FastMultiHeadAttention,
    MultiHeadAttention,
    Padding,
    RowWeights,
    Window,
    gradients,
)
from mha_tutorial.fast import folding, plan, softmax
from mha_tutorial.fast import layer as layer_module
from mha_tutorial.fast.projections import Projections
from mha_tutorial.reference import row
from tests.helpers import D_K, D_MODEL, GROUPS, H, M, N, assert_close
from tests.layer_helpers import as_dictionary, both_ways, converted, draw, plain_gradients, tokens
from tests.mask_helpers import EveryOther

MANY, MORE = 23, 29  # queries and keys that need several tiles, once these are small


def masks_for(n, m, h=H):
    """Masks of every kind for two sequences, in the row convention."""
    draws = np.random.default_rng(7)
    fully_masked = draws.random((n, m)) < 0.5
    fully_masked[n // 2] = False
    return {
        "none": None,
        "top-left": Causal("top-left"),
        "bottom-right": Causal("bottom-right"),
        "window": Window(4, "top-left") & Causal("bottom-right"),
        "padding": Padding([m - 2, m]),
        "padding, of everything": Padding([0, m]) & ~Window(2, "top-left"),
        "one's own": EveryOther(),
        "array": draws.random((2, h, n, m)) < 0.6,
        "array for all heads": draws.random((2, 1, n, m)) < 0.6,
        "array for all queries": np.arange(m)[None, :] < m - 3,
        "nothing hidden": np.ones((n, m), dtype=bool),
        "a query that sees nothing": fully_masked,
    }


# Tiles and jobs so small that a few tokens need several, of sizes that do not divide the lengths.
SMALL = plan.Block(tokens=31, scores=45, side=7, masked_side=5, rows=60, tiny=0)


blocks = st.builds(plan.Block, **{name: st.integers(1, 64) for name in plan.Block._fields})


def small(*args, threads=2, **options):
    """A layer whose work is cut into many pieces, on two threads."""
    return FastMultiHeadAttention(*args, threads=threads, block=SMALL, **options)


@pytest.fixture
def recomputed(monkeypatch):
    """The shapes of the queries for which the row maximum was subtracted."""
    shapes, safely = [], plan.safe_attention
    monkeypatch.setattr(plan, "safe_attention", lambda q, *rest: shapes.append(q.shape) or safely(q, *rest))
    return shapes


# the folds


@pytest.mark.equation("eq-exp2")
@pytest.mark.parametrize("exponential", [np.exp2, np.exp])
@pytest.mark.parametrize("bias", [True, False])
def test_scale_and_base_fold_into_the_query_projection(exponential, bias, rng):
    weights, (Q, K, _) = draw(rng, bias=bias).T, tokens(rng)
    folded = folding.fold_scale(weights, exponential)
    keys = row.project(weights.W_k, K, weights.b_k)
    before = np.exp(row.scaled_dot_product(row.project(weights.W_q, Q, weights.b_q), keys))
    assert_close(exponential(row.project(folded.W_q, Q, folded.b_q) @ keys.mT), before)


@pytest.mark.equation("eq-key-bias-drops")
def test_the_key_bias_adds_one_number_to_all_scores_of_a_query(rng):
    weights, inputs = draw(rng).T, tokens(rng)
    before, after = (row.multi_head(*inputs, layer) for layer in (weights, folding.drop_key_bias(weights)))
    added = np.einsum("bhnd,hd->bhn", before.queries, weights.b_k) / D_K**0.5
    assert np.abs(added).max() > 0.1
    assert_close(after.scores + added[..., None], before.scores)
    assert_close(after.attention, before.attention)


@pytest.mark.equation("eq-value-bias-folds")
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
def test_the_value_bias_folds_into_the_output_bias(h, h_kv, rng):
    weights, inputs = draw(rng, h, h_kv).T, tokens(rng)
    folded = folding.fold_value_bias(weights)
    assert folded.b_v is None
    assert_close(row.multi_head(*inputs, folded).output, row.multi_head(*inputs, weights).output)


def test_a_value_bias_makes_an_output_bias_and_none_makes_none(rng):
    weights = draw(rng).T
    only = RowWeights(**{name: array for name, array in weights.arrays().items() if name != "b_o"})
    assert_close(folding.fold_value_bias(only).b_o + weights.b_o, folding.fold_value_bias(weights).b_o)
    without = draw(rng, bias=False).T
    assert folding.fold_value_bias(without) is without


def test_folding_keeps_the_type_and_the_weights(rng):
    weights = converted(draw(rng).T, np.float32)
    for array in weights.arrays().values():
        array.flags.writeable = False
    for folded in (folding.fold_scale(weights), folding.drop_key_bias(weights), folding.fold_value_bias(weights)):
        assert folded.dtype == np.float32


# equal to the plain layer


@pytest.mark.parametrize("visible", masks_for(MANY, MORE).values(), ids=masks_for(MANY, MORE))
@pytest.mark.parametrize("bias", [True, False])
def test_every_mask(visible, bias, rng):
    layer, inputs = small(draw(rng, bias=bias)), tokens(rng, MANY, MORE)
    assert_close(layer(*inputs, visible=visible), layer.plain(*inputs, visible=visible))


@pytest.mark.parametrize("visible", masks_for(N, M).values(), ids=masks_for(N, M))
def test_every_mask_on_few_tokens(visible, rng):
    layer, inputs = FastMultiHeadAttention(draw(rng)), tokens(rng)
    assert_close(layer(*inputs, visible=visible), layer.plain(*inputs, visible=visible))


@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("n", [N, MANY])
def test_shared_key_value_heads(h, h_kv, n, rng):
    layer, inputs = small(draw(rng, h, h_kv)), tokens(rng, n)
    for visible in (None, rng.random((2, h, n, M)) < 0.6):
        assert_close(layer(*inputs, visible=visible), layer.plain(*inputs, visible=visible))


@pytest.mark.parametrize("batch", [(), (1,), (3,), (3, 2)])
def test_any_batch_axes(batch, rng):
    layer, inputs = small(draw(rng)), tokens(rng, MANY, MORE, batch)
    lengths = rng.integers(1, MORE, size=batch)
    for visible in (None, Padding(lengths), rng.random((*batch, 1, MANY, MORE)) < 0.6):
        assert_close(layer(*inputs, visible=visible), layer.plain(*inputs, visible=visible))


@pytest.mark.parametrize("visible", [None, Causal()])
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
def test_self_attention_and_attention_to_a_memory(visible, h, h_kv, rng):
    layer = small(draw(rng, h, h_kv, widths=(D_MODEL,) * 3))
    x, memory = rng.normal(size=(2, 2, MANY, D_MODEL))
    for inputs in ((x,), (x, memory), (x, x, memory), (x, memory, x)):
        assert_close(layer(*inputs, visible=visible), layer.plain(*inputs, visible=visible))


def test_either_convention_of_weights(rng):
    weights, x = ColumnWeights.random(rng, 12, h=3), rng.normal(size=(N, 12))
    assert np.array_equal(FastMultiHeadAttention(weights)(x), FastMultiHeadAttention(weights.T)(x))


@pytest.mark.no_cover
@settings(deadline=None, max_examples=60)
@given(data=st.data())
def test_any_lengths_and_any_mask(data):
    n, m, b = (data.draw(st.integers(1, largest)) for largest in (31, 31, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    align = data.draw(st.sampled_from(["top-left", "bottom-right"]))
    simple = st.sampled_from([Causal(align), Window(3, align), Padding(rng.integers(0, m + 1, size=b))])
    rules = st.recursive(
        simple, lambda r: st.one_of(st.builds(lambda a, b: a & b, r, r), st.builds(lambda a: ~a, r))
    )
    density = data.draw(st.floats(0, 1))
    visible = data.draw(st.one_of(st.none(), rules, st.just(rng.random((b, H, n, m)) < density)))
    h, h_kv = data.draw(st.sampled_from(list(GROUPS.values())))
    if isinstance(visible, np.ndarray):
        visible = rng.random((b, h, n, m)) < density
    threads, block = data.draw(st.integers(1, 2)), data.draw(blocks)
    layer = FastMultiHeadAttention(draw(rng, h, h_kv), threads=threads, block=block)
    inputs = tokens(rng, n, m, (b,))
    assert_close(layer(*inputs, visible=visible), layer.plain(*inputs, visible=visible))


@pytest.mark.parametrize("visible", [None, Causal()])
@pytest.mark.parametrize("n", [7, 101, 601])  # all at once, one tile, several tiles
def test_float32_is_as_good_as_the_plain_layer_in_float32(n, visible, rng):
    weights, x = RowWeights.random(rng, 60, h=3), rng.normal(size=(2, n, 60))
    expected = MultiHeadAttention(weights)(x, visible=visible)
    layer, single = FastMultiHeadAttention(converted(weights, np.float32)), x.astype(np.float32)
    output = layer(single, visible=visible)
    assert output.dtype == np.float32
    error, plain_error = (np.linalg.norm(y - expected) for y in (output, layer.plain(single, visible=visible)))
    assert error <= 2 * plain_error


def test_no_step_is_float64_by_accident(rng):
    seen = set()

    def watching(x, out=None):
        seen.update(array.dtype for array in (x, out) if array is not None and np.ndim(array))
        return np.exp(x, out=out)

    layer = small(converted(draw(rng).T, np.float32), exponential=watching)
    inputs = tokens(rng, MANY, dtype=np.float32)
    output, backward = layer.vjp(*inputs)
    found = as_dictionary(backward(output))
    assert {gradient.dtype for gradient in found.values()} == seen == {np.dtype(np.float32)}


# the guards


@pytest.mark.parametrize("size", [200.0, 1e4, 1e6])
@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("visible", [None, Causal("bottom-right")])
def test_scores_of_any_size(size, sign, visible, recomputed, rng):
    """All scores lie around one large number: the exponentials overflow, or all are zero."""
    arrays, (Q, K, V) = draw(rng).T.arrays(), tokens(rng, MANY, MORE)
    arrays["b_q"] = np.full_like(arrays["b_q"], sign * size / D_K**0.5)
    arrays["W_k"][:], arrays["b_k"] = arrays["W_k"] / size, np.zeros_like(arrays["b_k"])
    arrays["W_k"][:, 0] += 1.0
    K[..., 0] = 1.0
    layer = small(RowWeights(**arrays))
    trace = layer.plain.trace(Q, K, V, visible=visible)
    scores = trace.scores[np.isfinite(trace.scores)]
    assert (sign * scores > size / 2).all()
    # a score is a sum of terms of this size: it is right to so much, and its exponential to that part of itself
    assert_close(layer(Q, K, V, visible=visible), trace.output, rtol=max(1e-12, 4 * np.finfo(float).eps * size))
    assert recomputed


@pytest.mark.parametrize("size", [200.0, 1e4])
def test_scores_that_differ_widely(size, rng):
    arrays = draw(rng).T.arrays()
    arrays["W_q"] *= size / 3
    layer, inputs = small(RowWeights(**arrays)), tokens(rng, MANY, MORE)
    trace = layer.plain.trace(*inputs)
    largest = np.abs(trace.scores).max()
    assert trace.scores.max() > size < -trace.scores.min()
    assert_close(layer(*inputs), trace.output, rtol=max(1e-12, 4 * np.finfo(float).eps * largest))


def bounded(q, k, v, scale=0.5):
    """For one key-value head, by the vectors themselves."""
    (answer,) = softmax.are_bounded([softmax.max_norms(x) for x in (q[None, None], k[None], v[None])], scale)
    return answer


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("score", "right"), [(44.9, True), (45.1, False), (np.nan, False), (np.inf, False)])
def test_scores_stay_as_they_are_below_a_limit(score, right, sign):
    q, k = np.array([[0.1, 0.2], [0.0, score / 5]]), np.array([[0.0, 10.0], [10.0, 0.0]])
    assert bounded(q, k, np.ones((2, 3)), sign * 0.5) == right


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize(("power", "right"), [(35.9, True), (36.1, False), (-35.9, True), (-36.1, False)])
def test_values_are_weighed_as_they_are_between_two_limits(power, right, sign):
    v = np.array([[0.0, 0.0], [0.0, sign * 2.0**power]])
    assert bounded(np.ones((3, 2)), np.ones((2, 2)), v) == right


@pytest.mark.parametrize("wrong", [np.nan, np.inf, -np.inf, 1e30])
@pytest.mark.parametrize("place", range(3))
def test_what_is_not_finite_is_not_bounded(wrong, place):
    arrays = [np.ones((2, 2), np.float32) for _ in range(3)]
    arrays[place][1, 1] = wrong
    assert not bounded(*arrays)


@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("d_v", [D_K, 17])
def test_norms_are_those_of_each_heads_own_vectors(h, h_kv, d_v, rng):
    weights = RowWeights.random(rng, D_MODEL, h, h_kv=h_kv, d_k=D_K, d_v=d_v)
    layer, x = MultiHeadAttention(weights), rng.normal(size=(2, MANY, D_MODEL))
    projected = Projections(layer).project((slice(0, h_kv), slice(0, 2)), (x, x, x))
    trace = layer.trace(x)
    for norms, vectors in zip(projected.norms, trace[:3], strict=True):
        of_each = np.linalg.norm(vectors, axis=-1).max(axis=(0, 2)).reshape(h_kv, -1)
        assert_close(norms, of_each.max(axis=1))


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("value", [1e9, 1e30, 1e-30])
@pytest.mark.parametrize("score", [-58.0, 0.0, 58.0])  # in powers of two
def test_values_of_any_size(value, score, dtype, rng):
    """Large exponentials of large values overflow, small ones of small values vanish, before they are divided."""
    one, q = np.ones((1, 1, 1)), np.full((1, 1, 1), score * np.log(2))
    layer = small(converted(RowWeights(q, one, one, one), dtype))
    ones, values = np.ones((MANY, 1), dtype), value * (1 + rng.random((MANY, 1))).astype(dtype)
    expected = layer.plain(ones, ones, values)
    assert_close(layer(ones, ones, values), expected, rtol=1e-12 if dtype is np.float64 else 1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_exact_scores_are_found(dtype, rng):
    q, k = (rng.integers(-9, 9, size=(2, 3, length, 5)).astype(dtype) / 8 for length in (N, M))
    q = q[:, :, None]
    assert softmax.are_exact(q, k).tolist() == [dtype == np.float32] * 2  # the others have bits to spare
    q[0, ..., 0] *= np.pi
    assert softmax.are_exact(q, k).tolist() == [False, dtype == np.float32]


def test_only_the_tile_that_needs_it_has_its_row_maximum_subtracted(recomputed, rng):
    layer, (Q, K, V) = small(draw(rng)), tokens(rng, MANY, MORE, batch=())
    Q[MANY - 1] *= 1e4
    layer(Q, K, V)
    rows = {1, 2}  # 45 scores in a tile of seven keys: six queries, of the last tile five; 60 in whole rows of 29
    assert {shape[:3] for shape in recomputed} == {(1, 1, 1)}
    assert {shape[3] for shape in recomputed} == rows


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("visible", [Padding([MORE - 2, 3]), (np.arange(MORE) < [[[MORE - 2]], [[3]]])[:, None]])
def test_what_is_hidden_does_not_reach_the_result(visible, wrong, rng):
    layer, (Q, K, V) = small(draw(rng)), tokens(rng, MANY, MORE)
    before = layer.plain(Q, K, V, visible=visible)
    K[0, -2:], V[0, -2:], K[1, 3:], V[1, 3:] = (wrong,) * 4
    assert_close(layer(Q, K, V, visible=visible), before)


def test_what_is_seen_reaches_those_who_see_it(rng):
    layer, (Q, K, V) = small(draw(rng)), tokens(rng, MANY, MORE)
    V[1, 11] = np.nan
    output = layer(Q, K, V, visible=Causal("top-left"))
    assert_close(output, layer.plain(Q, K, V, visible=Causal("top-left")))
    assert np.isnan(output[1, 11:]).all()
    assert np.isfinite(output[1, :11]).all()


def test_a_query_that_sees_nothing_gets_the_output_bias_alone(rng):
    weights, inputs = draw(rng).T, tokens(rng, MANY, MORE)
    output = small(weights)(*inputs, visible=Padding([0, MORE]))
    assert np.array_equal(output[0], np.broadcast_to(weights.b_o, output[0].shape))


# what it does not do


class CountingExp:
    """An exponential that counts how many numbers it was asked for, tile by tile."""

    def __init__(self):
        self.sizes = []

    def __call__(self, x, out=None):
        if out is not None:
            self.sizes.append(x.size)
        return np.exp(x, out=out)


def test_hidden_tiles_are_not_computed(rng):
    layer = small(draw(rng, widths=(D_MODEL,) * 3), exponential=(exp := CountingExp()))
    layer(rng.normal(size=(MANY, D_MODEL)), visible=Causal())
    sizes = [5, 5, 5, 5, 3]  # 23 queries, or keys: a tile of queries meets the tiles of keys up to its own
    assert sum(exp.sizes) == H * sum(p * q for place, p in enumerate(sizes) for q in sizes[: place + 1])


def test_what_is_hidden_from_one_sequence_is_not_computed_for_it(rng):
    layer = small(draw(rng), exponential=(exp := CountingExp()))
    layer(*tokens(rng, MANY, MORE), visible=Padding([6, MORE]))
    assert sum(exp.sizes) == H * MANY * (7 + MORE)  # seven keys a tile: one holds the six


def test_scores_are_never_all_in_memory(rng):
    n, layer = 1021, FastMultiHeadAttention(converted(RowWeights.random(rng, 32, h=8), np.float32))
    x = rng.normal(size=(n, 32)).astype(np.float32)
    layer(x)
    tracemalloc.start()
    layer(x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * n * n * 4 / 4


def test_nothing_changes_its_inputs(rng):
    weights, inputs, visible = draw(rng).T, tokens(rng, MANY, MORE), rng.random((MANY, MORE)) < 0.5
    for array in (*inputs, visible, *weights.arrays().values()):
        array.flags.writeable = False
    small(weights)(*inputs, visible=visible)


def test_views_with_gaps_and_transposes(rng):
    layer = small(draw(rng))
    Q = rng.normal(size=(D_MODEL, MANY, 2)).T
    K, V = rng.normal(size=(4, 2 * MORE, 19))[::2, ::2], rng.normal(size=(2, MORE, 46))[..., ::-2]
    visible = (rng.random((MORE, MANY)) < 0.6).T
    assert_close(layer(Q, K, V, visible=visible), layer.plain(Q, K, V, visible=visible))
    once = np.broadcast_to(Q[0], Q.shape)
    assert_close(layer(once, K, V), layer.plain(once, K, V))


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble])
def test_other_floats_go_to_the_plain_layer(dtype, own_messages, rng):
    layer, inputs = FastMultiHeadAttention(converted(draw(rng).T, dtype)), tokens(rng, dtype=dtype)
    output = layer(*inputs, visible=Padding([2, M]))
    assert output.dtype == dtype
    assert np.array_equal(output, layer.plain(*inputs, visible=Padding([2, M])))


@pytest.mark.parametrize(("n", "m", "batch"), [(0, M, (2,)), (N, 0, (2,)), (N, M, (0,))])
def test_without_tokens_there_is_nothing_to_speed_up(n, m, batch, rng):
    layer, inputs = FastMultiHeadAttention(draw(rng)), tokens(rng, n, m, batch)
    assert np.array_equal(layer(*inputs), layer.plain(*inputs))


@pytest.mark.parametrize(
    ("change", "error"),
    [
        (lambda Q, K, V: ((Q.mT, K, V), None), ValueError),
        (lambda Q, K, V: ((Q.astype(int), K, V), None), TypeError),
        (lambda Q, K, V: ((Q, K, V[:, 1:]), None), ValueError),
        (lambda Q, K, V: ((Q, K, V), np.ones((N, M))), TypeError),
        (lambda Q, K, V: ((Q, K, V), np.ones((M, N), dtype=bool)), ValueError),
        (lambda Q, K, V: ((Q, K, V), np.ones(M, dtype=bool)), ValueError),
        (lambda Q, K, V: ((Q, K, V), Causal()), ValueError),
        (lambda Q, K, V: ((Q, K, V), Padding([1, 2, 3])), ValueError),
    ],
)
def test_bad_input_is_refused_in_the_same_words(change, error, own_messages, rng):
    layer, (inputs, visible) = FastMultiHeadAttention(draw(rng)), change(*tokens(rng))
    with pytest.raises(error) as plain:
        layer.plain(*inputs, visible=visible)
    with pytest.raises(error) as ours:
        layer(*inputs, visible=visible)
    assert str(ours.value) == str(plain.value)


# the way back


def assert_gradients_close(found, expected, rtol=1e-12):
    found, expected = as_dictionary(found), as_dictionary(expected)
    assert list(found) == list(expected)
    for name, gradient in expected.items():
        if name == "b_k":  # what the plain layer finds is rounding
            gradient = np.zeros_like(gradient)
        assert_close(found[name], gradient, rtol)


def assert_gradients_close_to_values(found, expected, rtol):
    """Where a query looks at one key alone, its gradient is a difference of numbers as large as the values' one."""
    found, expected = as_dictionary(found), as_dictionary(expected)
    atol = rtol * max(np.abs(gradient).max() for gradient in expected.values())
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=rtol, atol=atol, strict=True, err_msg=name)


@pytest.fixture
def done_again(monkeypatch):
    """Grows by one with every backward pass that the fast way gave up."""
    calls, backward = [], gradients.backward
    monkeypatch.setattr(layer_module.gradients, "backward", lambda *args: calls.append(1) or backward(*args))
    return calls


@pytest.mark.no_cover
@pytest.mark.parametrize("visible", masks_for(MANY, MORE).values(), ids=masks_for(MANY, MORE))
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_with_every_mask(visible, bias, done_again, rng):
    layer, inputs = small(draw(rng, bias=bias)), tokens(rng, MANY, MORE)
    found, expected = both_ways(layer, inputs, visible)
    assert_gradients_close(found, expected)
    assert len(done_again) == 1  # by `both_ways` itself


@pytest.mark.parametrize("visible", masks_for(N, M).values(), ids=masks_for(N, M))
def test_gradients_with_every_mask_on_few_tokens(visible, rng):
    assert_gradients_close(*both_ways(FastMultiHeadAttention(draw(rng)), tokens(rng), visible))


@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("n", [N, MANY])
def test_gradients_of_shared_key_value_heads(h, h_kv, n, rng):
    layer, inputs = small(draw(rng, h, h_kv)), tokens(rng, n)
    for visible in (None, rng.random((2, h, n, M)) < 0.6):
        assert_gradients_close(*both_ways(layer, inputs, visible))


@pytest.mark.no_cover
@pytest.mark.parametrize("batch", [(), (1,), (3,), (3, 2)])
def test_gradients_with_any_batch_axes(batch, rng):
    layer, inputs = small(draw(rng)), tokens(rng, MANY, MORE, batch)
    for visible in (None, Padding(rng.integers(1, MORE, size=batch)), rng.random((*batch, 1, MANY, MORE)) < 0.6):
        assert_gradients_close(*both_ways(layer, inputs, visible))


@pytest.mark.no_cover
@pytest.mark.parametrize("visible", [None, Causal()])
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
def test_gradients_of_self_attention_and_of_a_memory(visible, h, h_kv, rng):
    layer = small(draw(rng, h, h_kv, widths=(D_MODEL,) * 3))
    x, memory = rng.normal(size=(2, 2, MANY, D_MODEL))
    for inputs in ((x,), (x, memory), (x, x, memory), (x, memory, x)):
        assert_gradients_close(*both_ways(layer, inputs, visible))


@pytest.mark.no_cover
@settings(deadline=None, max_examples=40)
@given(data=st.data())
def test_gradients_of_any_lengths_in_any_tiles(data):
    n, m, b = (data.draw(st.integers(1, largest)) for largest in (31, 31, 3))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    visible = data.draw(st.sampled_from([None, Causal("top-left"), Causal("bottom-right"), "drawn"]))
    if visible == "drawn":
        visible = rng.random((b, H, n, m)) < data.draw(st.floats(0, 1))
    layer = FastMultiHeadAttention(draw(rng), block=data.draw(blocks), threads=data.draw(st.integers(1, 2)))
    assert_gradients_close_to_values(*both_ways(layer, tokens(rng, n, m, (b,)), visible), rtol=1e-12)


@pytest.mark.parametrize("visible", masks_for(MANY, MORE).values(), ids=masks_for(MANY, MORE))
def test_the_output_beside_the_way_back_is_that_of_a_call(visible, rng):
    layer, inputs = small(draw(rng)), tokens(rng, MANY, MORE)
    assert_close(layer.vjp(*inputs, visible=visible)[0], layer(*inputs, visible=visible))


@pytest.mark.parametrize("visible", [None, Causal()])
@pytest.mark.parametrize("n", [29, 101, 601])  # all at once, one tile, several tiles
def test_gradients_in_float32_are_as_good_as_the_plain_ones_in_float32(n, visible, rng):
    weights, x, output_gradient = RowWeights.random(rng, 60, h=3), *rng.normal(size=(2, 2, n, 60))
    exact = as_dictionary(plain_gradients(MultiHeadAttention(weights), [x], output_gradient, visible))
    layer, single = FastMultiHeadAttention(converted(weights, np.float32)), x.astype(np.float32)
    output, backward = layer.vjp(single, visible=visible)
    assert output.dtype == np.float32
    ours, plain = (
        as_dictionary(found)
        for found in (
            backward(output_gradient.astype(np.float32)),
            plain_gradients(layer.plain, [single], output_gradient.astype(np.float32), visible),
        )
    )
    for name, gradient in exact.items():
        assert ours[name].dtype == np.float32
        error, plain_error = (np.linalg.norm(found[name] - gradient) for found in (ours, plain))
        assert error <= 2 * plain_error, name  # the norm, since the largest of many errors is a matter of luck


def test_logarithms_of_large_sums_cost_no_precision(rng):
    """All scores lie around 30, the logarithms of the sums above: rounded, they would move all weights alike."""
    arrays, x, output_gradient = RowWeights.random(rng, 60, h=3).arrays(), *rng.normal(size=(2, 2, 601, 60))
    arrays["b_q"] = np.full_like(arrays["b_q"], 30 / 20**0.5)
    arrays["W_k"][:] /= 30
    arrays["W_k"][:, 0] += 1.0
    x[..., 0] = 1.0
    layer = FastMultiHeadAttention(converted(RowWeights(**arrays), np.float32))
    x, output_gradient = x.astype(np.float32), output_gradient.astype(np.float32)
    exact = as_dictionary(
        plain_gradients(
            MultiHeadAttention(converted(layer.plain.weights, float)),
            [x.astype(float)],
            output_gradient.astype(float),
        )
    )["b_v"]
    ours = layer.vjp(x)[1](output_gradient).weights.b_v
    plain = plain_gradients(layer.plain, [x], output_gradient).weights.b_v
    assert np.linalg.norm(ours - exact) <= 2 * np.linalg.norm(plain - exact)


@pytest.mark.parametrize("exponential", [np.exp, np.exp2])
def test_gradients_by_either_exponential(exponential, rng):
    assert_gradients_close(*both_ways(small(draw(rng).T, exponential=exponential), tokens(rng, MANY, MORE)))


@pytest.mark.parametrize("size", [60.0, 1e4])
@pytest.mark.parametrize("visible", [None, Causal("bottom-right"), Padding([0, MORE])])
def test_gradients_for_scores_of_any_size(size, visible, recomputed, done_again, rng):
    arrays = draw(rng).T.arrays()
    arrays["W_q"] *= size
    layer, inputs = small(RowWeights(**arrays)), tokens(rng, MANY, MORE)
    found, expected = both_ways(layer, inputs, visible)
    largest = np.abs(layer.plain.trace(*inputs).scores).max()
    # a score is a sum of terms of this size: it is right to so much, and its exponential to that part of itself
    assert_gradients_close_to_values(found, expected, rtol=max(1e-12, 4 * np.finfo(float).eps * largest))
    assert recomputed
    assert len(done_again) == 1


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
@pytest.mark.parametrize("length", [3, MORE - 2])
def test_what_is_hidden_reaches_no_gradient(wrong, length, done_again, rng):
    layer, (Q, K, V) = small(draw(rng)), tokens(rng, MANY, MORE)
    visible = Padding([length, MORE])
    _, before = both_ways(layer, (Q, K, V), visible)
    K[0, length:], V[0, length:] = wrong, wrong
    found, _ = both_ways(layer, (Q, K, V), visible)
    assert_gradients_close(found, before)
    assert len(done_again) == 2  # by `both_ways` itself


def test_what_a_fully_masked_query_holds_and_is_blamed_for_reaches_no_gradient(done_again, rng):
    layer, (Q, K, V) = small(draw(rng)), tokens(rng, MANY, MORE)
    visible = np.ones((MANY, MORE), dtype=bool)
    visible[11] = False
    found, _ = both_ways(layer, (Q, K, V), visible)
    assert len(done_again) == 1
    assert not found.Q[:, 11].any()
    Q[:, 11] = np.nan
    again, _ = both_ways(layer, (Q, K, V), visible)
    assert_close(again.weights.W_q, found.weights.W_q)


def test_what_is_seen_reaches_the_gradients(rng):
    layer, (Q, K, V) = small(draw(rng)), tokens(rng, MANY, MORE)
    V[1, 11] = np.nan
    found, expected = both_ways(layer, (Q, K, V), Causal("top-left"))
    for name, gradient in as_dictionary(expected).items():
        assert np.array_equal(as_dictionary(found)[name], gradient, equal_nan=True)
    assert np.isnan(found.Q[1, 11:]).all()


@pytest.mark.parametrize("dtype", [np.float16, np.longdouble])
def test_gradients_in_other_floats_are_the_plain_ones(dtype, own_messages, rng):
    layer, inputs = FastMultiHeadAttention(converted(draw(rng).T, dtype)), tokens(rng, dtype=dtype)
    found, expected = both_ways(layer, inputs, Padding([2, M]))
    for name, gradient in as_dictionary(expected).items():
        assert np.array_equal(as_dictionary(found)[name], gradient)
        assert gradient.dtype == dtype


@pytest.mark.parametrize(("n", "m", "batch"), [(0, M, (2,)), (N, 0, (2,)), (N, M, (0,))])
def test_gradients_without_tokens(n, m, batch, rng):
    found, expected = both_ways(FastMultiHeadAttention(draw(rng)), tokens(rng, n, m, batch))
    for name, gradient in as_dictionary(expected).items():
        assert np.array_equal(as_dictionary(found)[name], gradient)


def test_attention_beyond_what_is_visible_is_not_computed_again(rng):
    layer = small(draw(rng, widths=(D_MODEL,) * 3), exponential=(exp := CountingExp()))
    output, backward = layer.vjp(rng.normal(size=(MANY, D_MODEL)), visible=Causal())
    exp.sizes.clear()
    backward(output)
    tiles = [5, 5, 5, 5, 3]
    expected = H * sum(p * q for place, p in enumerate(tiles) for q in tiles[: place + 1])
    assert sum(exp.sizes) == expected


def test_no_gradient_has_all_scores_in_memory(rng):
    n, layer = 1021, FastMultiHeadAttention(converted(RowWeights.random(rng, 32, h=8), np.float32), threads=1)
    x = rng.normal(size=(n, 32)).astype(np.float32)
    layer.vjp(x)[1](x)
    tracemalloc.start()
    layer.vjp(x)[1](x)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8 * n * n * 4 / 4


def test_the_way_back_changes_nothing_and_can_be_gone_again(rng):
    weights, inputs, visible = draw(rng).T, tokens(rng, MANY, MORE), rng.random((MANY, MORE)) < 0.5
    for array in (*inputs, visible, *weights.arrays().values()):
        array.flags.writeable = False
    output, backward = small(weights).vjp(*inputs, visible=visible)
    output.flags.writeable = False
    once, twice = as_dictionary(backward(output)), as_dictionary(backward(output))
    for name, gradient in once.items():
        assert np.array_equal(twice[name], gradient)


@pytest.mark.parametrize("change", [lambda dY: dY.mT, lambda dY: dY.astype(np.float32), lambda dY: dY[0]])
def test_gradients_that_do_not_fit_are_refused_in_the_same_words(change, own_messages, rng):
    layer, inputs = FastMultiHeadAttention(draw(rng)), tokens(rng)
    output, backward = layer.vjp(*inputs)
    with pytest.raises((TypeError, ValueError)) as plain:
        plain_gradients(layer.plain, inputs, change(output))
    with pytest.raises(plain.type) as ours:
        backward(change(output))
    assert str(ours.value) == str(plain.value)


# the exponential and the threads


@pytest.mark.parametrize(
    ("extensions", "exponential"),
    [
        ({"baseline": ["X86_V2"], "found": ["X86_V3", "X86_V4"]}, np.exp2),
        ({"baseline": ["SSE3"], "found": ["AVX2", "AVX512_SKX"]}, np.exp2),
        ({"baseline": ["X86_V4"]}, np.exp2),
        ({"baseline": ["NEON"], "found": ["ASIMDHP"]}, np.exp),
        ({"baseline": ["X86_V2"], "found": ["X86_V3"], "not found": ["X86_V4"]}, np.exp),
    ],
)
def test_the_exponential_that_the_processor_is_fast_at(extensions, exponential, monkeypatch, rng):
    monkeypatch.setattr(np, "show_config", lambda mode: {"SIMD Extensions": extensions})
    assert softmax.fast_exponential() is exponential
    layer, inputs = FastMultiHeadAttention(draw(rng)), tokens(rng)
    assert_close(layer(*inputs), layer.plain(*inputs))
    for scale in (1, 1e4):
        Q, K, V = inputs
        assert_close(layer(scale * Q, K, V), layer.plain(scale * Q, K, V), rtol=1e-12 * scale)


@pytest.mark.parametrize("several", [1, 2, 3])
def test_any_number_of_threads(several, rng):
    layer, inputs = small(draw(rng), threads=several), tokens(rng, MANY, MORE)
    assert_close(layer(*inputs), layer.plain(*inputs))
    assert_gradients_close(*both_ways(layer, inputs))


@pytest.mark.parametrize(
    ("scores", "power"), [((-58, -152), 100), ((-40, -152), 110), ((-20, -152), 127), ((-58, -130), 60)]
)
def test_attention_that_vanishes_may_belong_to_a_value_that_counts(scores, power):
    """Two keys; the exponential of the second is below the smallest float32, and its value is large."""
    arrays = {name: np.zeros((1, 3, 1), np.float32) for name in ("W_q", "W_k", "W_v")}
    for feature, matrix in enumerate(arrays.values()):
        matrix[0, feature] = 1
    weights = RowWeights(**arrays, W_o=arrays["W_v"].mT)
    x = np.array(
        [[1, score * math.log(2), value] for score, value in zip(scores, (1, 2.0**power), strict=True)], np.float32
    )
    expected = (1 + 2.0 ** (scores[1] - scores[0] + power)) / (1 + 2.0 ** (scores[1] - scores[0]))
    np.testing.assert_allclose(FastMultiHeadAttention(weights)(x)[0, 2], expected, rtol=1e-4)
