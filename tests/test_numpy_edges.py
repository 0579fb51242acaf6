"""Numbers at the edges: every kind of fault, in every NumPy implementation, in every type, forward and backward.

The faults are those of `numpy_cases`, the expected numbers those of `numpy_oracle`, in long doubles.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from mha_tutorial import Mask, MultiHeadAttention, Padding, RowWeights, gradients
from mha_tutorial._finite import add_bias
from mha_tutorial.reference import column, loops, row
from tests.helpers import assert_close, in_both_conventions
from tests.numpy_cases import KINDS, drawn, spoiled, texts
from tests.numpy_oracle import Case, assert_near, oracle

B, N, M, D_MODEL, H, H_KV, D_K, D_V = 2, 5, 7, 11, 4, 2, 3, 13
DTYPES = [np.float64, np.float32, np.float16]


# --- the implementations ---------------------------------------------------------------------------------------


def by_reference(ref):
    """The output and the gradients of a reference, read back as rows."""

    def run(case: Case):
        lay = (lambda x: x.mT) if ref is column else (lambda x: x)
        weights = case.weights.T if ref is column else case.weights
        visible = lay(case.visible) if isinstance(case.visible, np.ndarray) else case.visible
        score = ref.scaled_dot_product if case.scale is None else ref.scaled_by(case.scale)
        score = score if case.bias is None else ref.biased(score, lay(case.bias))
        X = lay(case.Q)
        inputs = (X,) * 3 if case.K is None else tuple(lay(x) for x in case.inputs)
        trace = ref.multi_head(*inputs, weights, score, visible)
        found = gradients.backward(lay(case.dY), trace, *inputs, weights, case.scale)
        check_types(trace, case.Q.dtype)
        as_rows = found.weights.T if ref is column else found.weights
        return lay(trace.output), dict(zip("QKV", map(lay, found[:3]), strict=True)) | as_rows.arrays()

    return run


def by_layer(case: Case):
    layer, inputs = MultiHeadAttention(case.weights, scale=case.scale), [x for x in case[1:4] if x is not None]
    trace = layer.trace(*inputs, visible=case.visible, bias=case.bias)
    assert np.array_equal(layer(*inputs, visible=case.visible, bias=case.bias), trace.output, equal_nan=True)
    check_types(trace, case.Q.dtype)
    found = gradients.backward(case.dY, trace, *case.inputs, case.weights, case.scale)
    return trace.output, dict(zip("QKV", found[:3], strict=True)) | found.weights.arrays()


def by_loops(case: Case):
    """Loops have no gradients; a bias is not theirs to add, but what it hides they can hide."""
    visible = case.visible.mT if isinstance(case.visible, np.ndarray) else case.visible

    def score(query, key):
        """In long doubles; what is not finite is NaN."""
        product = query.astype(np.longdouble) @ key.astype(np.longdouble) * case.scale
        return float(product) if np.isfinite(product) else np.nan

    score = loops.scaled_dot_product if case.scale is None else score
    trace = loops.multi_head(*(x.mT for x in case.inputs), case.weights.T, score, visible)
    check_types(trace, case.Q.dtype)
    return trace.output.mT, {}


def check_types(trace, dtype):
    for name, step in trace._asdict().items():
        if name in ("scores", "attention"):
            assert np.promote_types(dtype, np.float32) <= step.dtype
        else:
            assert step.dtype == dtype


class Implementation(NamedTuple):
    run: Callable
    takes_bias: bool = True


IMPLEMENTATIONS = {
    "column": Implementation(by_reference(column)),
    "row": Implementation(by_reference(row)),
    "loops": Implementation(by_loops, takes_bias=False),
    "layer": Implementation(by_layer),
}


# --- the kinds -------------------------------------------------------------------------------------------------


TABLE = [
    pytest.param(make, implementation, dtype, id=f"{kind}: {name} - {by} - {np.dtype(dtype)}")
    for kind, cases in KINDS.items()
    for name, make in cases.items()
    for by, implementation in IMPLEMENTATIONS.items()
    for dtype in DTYPES
    if implementation.takes_bias or make(dtype).bias is None
    if (by, dtype) != ("loops", np.float32)  # they are slow, and count in 64 bits whatever they are given
]


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(("make", "implementation", "dtype"), TABLE)
def test_numbers_at_the_edges(make, implementation, dtype):
    case = make(dtype)
    with np.errstate(all="ignore"):
        expected = oracle(case)
    output, found = implementation.run(case)
    assert_near("output", output, expected, dtype)
    assert not found or set(found) == set(expected) - {"output"}
    for name, gradient in found.items():
        assert_near(name, gradient, expected, dtype)


# --- the table's neighbours: single functions, sentences, and what reaches only some ----------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", ["column", "row", "layer"])
def test_huge_numbers_in_one_text_do_not_reach_the_other(by, dtype):
    """Queries 0, 1 see keys 0 to 2, of which one is so large that its scores overflow."""
    before = drawn(dtype, visible=texts())
    after = spoiled("KV", (slice(None), 1), "huge", visible=texts())(dtype)
    (output, found), (spoiled_output, spoiled_found) = map(IMPLEMENTATIONS[by].run, (before, after))
    assert np.array_equal(output[:, 2:], spoiled_output[:, 2:])
    for name, first in {"Q": 2, "K": 3, "V": 3}.items():
        assert np.array_equal(found[name][:, first:], spoiled_found[name][:, first:])


@in_both_conventions
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_every_score_of_what_is_not_finite_is_nan(convention, dtype, value):
    ref, lay = convention.ref, convention.lay
    Q, K = np.ones((2, N), dtype), np.ones((2, M), dtype)
    Q[0, 1] = K[1, 2] = value
    U = lay(np.array([[1, 2], [3, 5]], dtype))  # without zeros, which would make NaN of infinity
    for score in (
        ref.dot_product,
        ref.scaled_dot_product,
        ref.scaled_by(0.0),
        ref.gaussian(2.0),
        ref.additive(U, U, U[0]),
        ref.bilinear(U),
    ):
        scores = lay(score(*lay(Q, K)))
        assert scores.dtype == np.promote_types(dtype, np.float32)
        expected = np.zeros((M, N), dtype=bool)
        expected[:, 1], expected[2] = True, True
        assert np.array_equal(np.isnan(scores), expected)
        assert np.isfinite(scores[~expected]).all()


@in_both_conventions
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("which", ["inner product", "scaled", "scaled by a number", "Gaussian", "biased"])
def test_a_score_too_large_for_its_type_hides_nothing(convention, which, dtype):
    """Minus infinity would: the query would pass for one that sees no key, and get zeros."""
    ref, lay, most = convention.ref, convention.lay, float(np.finfo(dtype).max)
    score, query, key = {
        "inner product": (ref.dot_product, most / 4, -most / 4),
        "scaled": (ref.scaled_dot_product, most / 4, -most / 4),
        "scaled by a number": (ref.scaled_by(most), 1.0, -8.0),
        "Gaussian": (ref.gaussian(1.0), most / 4, -most / 4),
        "biased": (ref.biased(ref.dot_product, np.full((1, 1), -most, dtype)), 1.0, -most / 4),
    }[which]
    Q, K, V = (np.array([[x]], dtype) for x in (query, key, 5.0))
    assert np.isnan(ref.attention(Q, K, V, score)).all()
    Q, K, V = (np.array([x], dtype) for x in ([query, 0], [key, 0], [5, 7]))
    score = ref.dot_product if which == "biased" else score
    averages = lay(ref.attention(*lay(Q, K, V), score, lay(np.array([[True, False], [True, True]]))))
    assert averages[0, 1] == 7.0


def test_loops_score_what_is_not_finite_or_too_large_as_nan():
    """In the type of the query, or 32 bits."""
    for dtype, large in ((np.float64, 1e200), (np.float32, 1e30), (np.float16, np.inf)):
        query, key = np.array([large, 1.0], dtype), np.array([-large, 1.0], dtype)
        assert np.isnan(loops.scaled_dot_product(query, key))
        assert np.isnan(loops.scaled_dot_product(query, query))
        assert np.isfinite(loops.scaled_dot_product(query[1:], key[1:]))
    sixteen = np.full(2, 6e4, np.float16)
    assert loops.scaled_dot_product(sixteen, sixteen) == pytest.approx(2 * float(sixteen[0]) ** 2 / 2**0.5)


@in_both_conventions
def test_a_bias_of_inf_or_nan_is_seen_by_its_query_alone(convention):
    ref, lay = convention.ref, convention.lay
    Q, K, V = lay(np.zeros((2, 3)), np.zeros((2, 2)), np.array([[1.0, 3.0]]))
    bias = lay(np.array([[np.inf, np.nan, 0.0], [0.0, 0.0, 0.0]]))
    averages = lay(ref.attention(Q, K, V, ref.biased(ref.dot_product, bias)))
    assert np.array_equal(averages, [[np.nan, np.nan, 2.0]], equal_nan=True)


@in_both_conventions
def test_a_bias_that_only_hides_leaves_the_scores_as_they_are(convention):
    ref, lay = convention.ref, convention.lay
    Q, K = (np.ones((2, length), np.float32) for length in (N, M))
    bias = lay(np.where(np.tri(M, N), 0.0, -np.inf))
    scores = ref.biased(ref.dot_product, bias)(*lay(Q, K))
    assert scores.dtype == np.float32
    assert np.array_equal(np.isneginf(scores), np.isneginf(bias))


@in_both_conventions
def test_scores_may_have_more_bits_than_the_tokens_and_not_fewer(convention):
    ref, lay = convention.ref, convention.lay
    Q, K, V = lay(*(np.ones((2, length), np.float16) for length in (N, M, M)))
    for dtype in DTYPES:
        averages = ref.attention(Q, K, V, lambda Q, K, dtype=dtype: ref.dot_product(Q, K).astype(dtype))
        assert averages.dtype == np.float16
    for dtype in (complex, int):
        with pytest.raises(TypeError, match=f"Q is float16 but the score is {np.dtype(dtype)}"):
            ref.attention(Q, K, V, lambda Q, K, dtype=dtype: ref.dot_product(Q, K).astype(dtype))


@in_both_conventions
def test_weights_may_have_more_bits_than_the_values_and_not_fewer(convention):
    ref, lay = convention.ref, convention.lay
    V, A = lay(np.ones((1, 4096), np.float16), np.full((4096, 1), 2.0**-12, np.float32))
    averages = ref.weigh(V, A)
    assert averages.dtype == np.float16
    assert averages.tolist() == [[1.0]]
    with pytest.raises(TypeError, match="V is float32 but A is float16"):
        ref.weigh(V.astype(np.float32), A.astype(np.float16))


@in_both_conventions
@pytest.mark.parametrize("output", ["summed_output", "concatenated_output"])
def test_sums_over_heads_have_more_than_sixteen_bits(convention, output):
    """2048 + 1 - 2048 is 0 where every partial sum has 16 bits; and too large a sum gives no warning."""
    ones = np.ones((3, 1, 1), np.float16)
    weights = RowWeights(ones, ones, ones, ones, b_o=np.ones(1, np.float16))
    weights = weights.T if convention.ref is column else weights
    heads = convention.lay(np.array([[2048, 6e4], [1, 6e4], [-2048, 6e4]], np.float16)[:, None])
    written = convention.lay(getattr(convention.ref, output)(weights, heads))
    assert written.tolist() == [[2.0, np.inf]]


AMBIGUOUS = [
    ((H, N, M), (H, H, N, M), "[:, None]", "[None]"),
    ((H, 1, M), (H, H, N, M), "[:, None]", "[None]"),
    ((H, N, 1), (1, H, H, N, M), "[:, None]", "[None, None]"),
    ((1, H, N, M), (1, H, H, N, M), "[:, :, None]", "[None]"),
]
UNAMBIGUOUS = [
    ((H, N, M), (3, H, N, M)),
    ((1, N, M), (H, H, N, M)),
    ((H, 1, N, M), (H, H, N, M)),
    ((1, H, N, M), (H, H, N, M)),
    ((H, 1, N, M), (3, H, H, N, M)),
    ((N, M), (H, H, N, M)),
    ((H, N, M), (H, N, M)),
]


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(("shape", "scores", "sequences", "heads"), AMBIGUOUS)
def test_a_mask_or_bias_that_could_mean_two_things_is_refused(shape, scores, sequences, heads):
    *batch, h, n, m = scores
    weights = RowWeights.random(np.random.default_rng(0), 8, h)
    x, memory = np.ones((*batch, n, 8)), np.ones((*batch, m, 8))
    mask, bias = np.ones(shape, dtype=bool), np.full(shape, 0.5)
    turned = (*scores[:-2], m, n)
    rows = MultiHeadAttention(weights)
    by_columns = (x.mT, memory.mT, memory.mT, weights.T)
    for name, convention, fits, call in (
        ("visible", "row", f"(..., n, m) = {scores}", lambda: rows(x, memory, visible=mask)),
        ("bias", "row", f"(..., n, m) = {scores}", lambda: rows(x, memory, bias=bias)),
        ("visible", "column", f"(..., m, n) = {turned}", lambda: column.multi_head(*by_columns, visible=mask.mT)),
        (
            "bias",
            "column",
            f"(..., m, n) = {turned}",
            lambda: column.multi_head(*by_columns, column.biased(column.dot_product, bias.mT)),
        ),
        ("visible", "column", f"(..., m, n) = {turned}", lambda: loops.multi_head(*by_columns, visible=mask.mT)),
    ):
        laid = shape if convention == "row" else mask.mT.shape
        sentence = (
            f"{convention} convention: {name} of shape {laid} fits the scores, {fits}, in two ways. "
            f"Write {name}{sequences} for one of each sequence, {name}{heads} for one of each head"
        )
        with pytest.raises(ValueError, match="^" + re.escape(sentence) + "$"):
            call()
    for spelled in (sequences, heads):
        rows(x, memory, visible=eval("mask" + spelled), bias=eval("bias" + spelled))


@pytest.mark.parametrize(("shape", "scores"), UNAMBIGUOUS)
def test_a_mask_that_can_mean_one_thing_only_is_read(shape, scores):
    visible = np.random.default_rng(1).random(shape) < 0.6
    values = np.random.default_rng(2).normal(size=scores)
    expected = row.softmax(row.hide(values, np.broadcast_to(visible, scores)))
    assert np.array_equal(row.softmax(row.hide(values, visible)), expected)
    assert_close(column.softmax(column.hide(values.mT, visible.mT)).mT, expected)


def test_structured_masks_are_not_ambiguous():
    x = np.random.default_rng(3).normal(size=(3, 3, N, 9))
    layer = MultiHeadAttention(RowWeights.random(np.random.default_rng(0), 9, 3))
    lengths = np.arange(9).reshape(3, 3) % N + 1

    class OfTheSecondAxis(Mask):
        def rows(self, n, m, batch=()):
            return (np.arange(m) < lengths[0, :, None, None]) & np.ones((n, 1), dtype=bool)

    assert np.array_equal(
        layer(x, visible=OfTheSecondAxis()), layer(x, visible=Padding(np.tile(lengths[0], (3, 1))))
    )
    scores = np.zeros((3, 3, N, N))
    assert np.array_equal(row.hide(scores, OfTheSecondAxis())[0], row.hide(scores, Padding(lengths))[0])
    masks = OfTheSecondAxis(), Padding(np.tile(lengths[0], (3, 1)))
    assert np.array_equal(*(row.attention(x, x, x, visible=mask) for mask in masks))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_bias_that_just_makes_the_largest_score_overflow_is_nan(dtype):
    limit = np.finfo(dtype)
    assert np.isnan(add_bias(np.array([[limit.max]]), np.array([[limit.max * limit.eps]], dtype)))
    assert add_bias(np.array([[limit.max]]), np.array([[limit.max * limit.eps / 8]], dtype)) == limit.max
