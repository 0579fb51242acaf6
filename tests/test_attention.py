"""Softmax, the scores, and attention without projections, in both conventions."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mha_tutorial import Causal, Padding
from mha_tutorial.reference import column
from tests.helpers import D_K, D_V, M, N, assert_close, in_both_conventions

moderate = st.floats(-30, 30).map(lambda x: round(x, 9))  # or averages of the smallest numbers would lose digits


@pytest.fixture
def qkv(rng):
    """Queries, keys and values as columns."""
    return rng.normal(size=(D_K, N)), rng.normal(size=(D_K, M)), rng.normal(size=(D_V, M))


def every_score(ref, rng):
    """Score functions of all kinds for keys and queries of width D_K."""
    inner = 3
    maps = rng.normal(size=(inner, D_K)), rng.normal(size=(inner, D_K))
    U_q, U_k = maps if ref is column else (maps[0].T, maps[1].T)
    yield ref.dot_product
    yield ref.scaled_dot_product
    yield ref.additive(U_q, U_k, rng.normal(size=inner))
    yield ref.bilinear(rng.normal(size=(D_K, D_K)))
    yield ref.gaussian(bandwidth=2.0)


@pytest.mark.equation("eq-softmax-columns", "eq-softmax-rows")
@in_both_conventions
def test_softmax_is_exponentials_over_their_sum_for_each_query(convention, rng):
    scores = rng.normal(size=(M, N))
    weights = convention.lay(convention.ref.softmax(convention.lay(scores)))
    for i in range(N):
        exponentials = [math.exp(score) for score in scores[:, i]]
        assert_close(weights[:, i], np.array(exponentials) / math.fsum(exponentials))


@pytest.mark.equation("eq-weights-sum-to-one", "eq-weights-sum-to-one-row")
@in_both_conventions
@given(scores=arrays(float, (M, N), elements=st.floats(-1e300, 1e300)))
def test_weights_of_a_query_are_not_negative_and_sum_to_one(convention, scores):
    weights = convention.lay(convention.ref.softmax(convention.lay(scores)))
    assert (weights >= 0).all()
    np.testing.assert_allclose(weights.sum(axis=0), 1, rtol=1e-12)


@pytest.mark.equation("eq-softmax-shift")
@in_both_conventions
@given(scores=arrays(float, (M, N), elements=moderate), shift=arrays(float, (1, N), elements=moderate))
def test_a_constant_added_to_a_querys_scores_changes_nothing(convention, scores, shift):
    softmax, lay = convention.ref.softmax, convention.lay
    assert_close(softmax(lay(scores + shift)), softmax(lay(scores)))


@in_both_conventions
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_softmax_does_not_overflow_and_keeps_the_type(convention, dtype):
    largest = np.finfo(dtype).max
    scores = np.array([[largest], [largest], [0]], dtype=dtype)
    weights = convention.lay(convention.ref.softmax(convention.lay(scores)))
    assert weights.dtype == dtype
    assert weights.tolist() == [[0.5], [0.5], [0.0]]


@pytest.mark.equation("eq-visible", "eq-visible-row")
@in_both_conventions
def test_softmax_with_a_mask_is_softmax_over_what_is_visible(convention, rng):
    scores, visible = rng.normal(size=(M, N)), rng.random((M, N)) < 0.6
    weights = convention.lay(convention.ref.softmax(convention.ref.hide(*convention.lay(scores, visible))))
    for i in range(N):
        seen = np.exp(scores[visible[:, i], i])
        assert_close(weights[visible[:, i], i], seen / seen.sum())
        assert not weights[~visible[:, i], i].any()


@in_both_conventions
def test_half_precision_weights_over_many_keys_sum_to_one(convention):
    """A sum in 16 bits stops growing at 2048, where one more is lost to rounding."""
    scores = np.zeros((4096, 2), dtype=np.float16)
    weights = convention.lay(convention.ref.softmax(convention.lay(scores)))
    assert weights.dtype == np.float16
    assert (weights == 2.0**-12).all()


@in_both_conventions
def test_softmax_of_scores_as_far_apart_as_can_be(convention):
    scores = convention.lay(np.array([[1.7e308], [-1.7e308]]))
    assert convention.lay(convention.ref.softmax(scores)).tolist() == [[1.0], [0.0]]


@in_both_conventions
def test_softmax_gives_zeros_to_a_query_that_sees_nothing(convention):
    scores, visible = convention.lay(np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[True, False], [True, False]]))
    weights = convention.lay(convention.ref.softmax(convention.ref.hide(scores, visible)))
    assert_close(weights, np.array([[1 / (1 + math.e**2), 0], [1 / (1 + math.e**-2), 0]]))


@in_both_conventions
def test_softmax_reads_structured_masks(convention, rng):
    scores = convention.lay(rng.normal(size=(N, N)))
    weights = convention.lay(convention.ref.softmax(convention.ref.hide(scores, Causal())))
    assert np.array_equal(weights > 0, np.triu(np.ones((N, N), dtype=bool)))


@pytest.mark.equation("eq-dot-product", "eq-dot-product-row")
@in_both_conventions
def test_dot_product_is_the_sum_of_products(convention, qkv):
    Q, K, _ = qkv
    scores = convention.lay(convention.ref.dot_product(*convention.lay(Q, K)))
    for j in range(M):
        for i in range(N):
            products = [K[c, j] * Q[c, i] for c in range(D_K)]
            assert scores[j, i] == pytest.approx(math.fsum(products), rel=1e-12)


@pytest.mark.equation("eq-scaled-dot-product", "eq-scaled-dot-product-row")
@in_both_conventions
def test_scaled_dot_product_divides_by_the_root_of_the_width(convention, qkv):
    Q, K = convention.lay(*qkv[:2])
    ref = convention.ref
    assert_close(ref.scaled_dot_product(Q, K), ref.dot_product(Q, K) / math.sqrt(D_K))


@pytest.mark.equation("eq-additive-score", "eq-additive-score-row")
@in_both_conventions
def test_additive_score_is_the_small_network(convention, qkv, rng):
    Q, K, _ = qkv
    U_q, U_k, u = rng.normal(size=(2, D_K)), rng.normal(size=(2, D_K)), rng.normal(size=2)
    score = convention.ref.additive(*convention.lay(U_q, U_k), u)
    scores = convention.lay(score(*convention.lay(Q, K)))
    expected = [[u @ np.tanh(U_k @ K[:, j] + U_q @ Q[:, i]) for i in range(N)] for j in range(M)]
    assert_close(scores, np.array(expected))


@pytest.mark.equation("eq-bilinear-score", "eq-bilinear-score-row")
@in_both_conventions
def test_bilinear_score_is_the_inner_product_of_projections(convention, qkv, rng):
    _, K, _ = qkv
    Q, W_q, W_k = rng.normal(size=(2, N)), rng.normal(size=(3, 2)), rng.normal(size=(3, D_K))
    scores = convention.lay(convention.ref.bilinear(convention.lay(W_k.T @ W_q))(*convention.lay(Q, K)))
    expected = [[(W_k @ K[:, j]) @ (W_q @ Q[:, i]) for i in range(N)] for j in range(M)]
    assert_close(scores, np.array(expected))


@pytest.mark.equation("eq-gaussian-score", "eq-gaussian-score-row")
@in_both_conventions
def test_gaussian_score_makes_attention_kernel_regression(convention, qkv):
    Q, K, V = qkv
    ref, lay, bandwidth = convention.ref, convention.lay, 3.0
    fitted = lay(ref.attention(*lay(Q, K, V), score=ref.gaussian(bandwidth)))
    for i in range(N):
        kernel = np.exp(-np.square(K - Q[:, [i]]).sum(axis=0) / (2 * bandwidth**2))
        assert_close(fitted[:, i], (V * kernel).sum(axis=1) / kernel.sum())


@pytest.mark.equation("eq-attention", "eq-attention-row")
@in_both_conventions
def test_attention_is_the_weighted_average_for_every_score(convention, qkv, rng):
    Q, K, V = qkv
    ref, lay = convention.ref, convention.lay
    for score in every_score(ref, rng):
        averages = lay(ref.attention(*lay(Q, K, V), score=score))
        scores = lay(score(*lay(Q, K)))
        for i in range(N):
            kernel = np.exp(scores[:, i] - scores[:, i].max())
            assert_close(averages[:, i], sum(kernel[j] * V[:, j] for j in range(M)) / kernel.sum())


@pytest.mark.equation("eq-convex-combination", "eq-convex-combination-row")
@in_both_conventions
@given(inputs=st.tuples(*(arrays(float, (2, length), elements=moderate) for length in (N, M, M))))
@settings(max_examples=50)
def test_results_lie_in_the_convex_hull_of_the_values(convention, inputs):
    """A point is in the hull when no direction separates it: along each, it is between the extremes."""
    Q, K, V = inputs
    averages = convention.lay(convention.ref.attention(*convention.lay(Q, K, V)))
    angles = np.linspace(0, 2 * np.pi, 37)
    directions = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    farthest = (directions @ V).max(axis=1, keepdims=True)
    assert (directions @ averages <= farthest + 1e-12 * np.abs(V).max()).all()


@in_both_conventions
def test_equal_keys_give_the_plain_average(convention, qkv):
    Q, K, V = qkv
    ref, lay = convention.ref, convention.lay
    same = np.repeat(K[:, :1], M, axis=1)
    averages = lay(ref.attention(*lay(Q, same, V)))
    assert_close(averages, np.repeat(V.mean(axis=1, keepdims=True), N, axis=1))


@in_both_conventions
def test_order_of_keys_does_not_matter_and_order_of_queries_is_kept(convention, qkv, rng):
    Q, K, V = qkv
    ref, lay = convention.ref, convention.lay
    memory, queries = rng.permutation(M), rng.permutation(N)
    averages = lay(ref.attention(*lay(Q, K, V)))
    shuffled = lay(ref.attention(*lay(Q[:, queries], K[:, memory], V[:, memory])))
    assert_close(shuffled, averages[:, queries])


@in_both_conventions
def test_hidden_keys_have_no_influence_even_when_they_are_not_numbers(convention, qkv):
    Q, K, V = qkv
    ref, lay = convention.ref, convention.lay
    visible = np.ones((M, N), dtype=bool)
    visible[2] = False
    averages = lay(ref.attention(*lay(Q, K, V), visible=lay(visible)))
    K[:, 2], V[:, 2] = np.nan, np.inf
    assert np.array_equal(lay(ref.attention(*lay(Q, K, V), visible=lay(visible))), averages)


@in_both_conventions
def test_hidden_infinities_that_cancel_give_no_warning(convention):
    Q, K, V = np.ones((2, 1)), np.array([[np.inf, 1.0], [-np.inf, 1.0]]), np.array([[7.0, 8.0]])
    visible = np.array([[False], [True]])
    average = convention.ref.attention(*convention.lay(Q, K, V), visible=convention.lay(visible))
    assert average.tolist() == [[8.0]]


@in_both_conventions
def test_padding_of_a_batch_belongs_to_its_sequences(convention, rng):
    Q, K, V = rng.normal(size=(2, D_K, N)), rng.normal(size=(2, D_K, M)), rng.normal(size=(2, D_V, M))
    ref, lay = convention.ref, convention.lay
    together = lay(ref.attention(*lay(Q, K, V), visible=Padding([M, 3])))
    assert_close(together[0], lay(ref.attention(*lay(Q[0], K[0], V[0]))))
    assert_close(together[1], lay(ref.attention(*lay(Q[1], K[1, :, :3], V[1, :, :3]))))


@in_both_conventions
def test_what_is_not_a_number_reaches_the_queries_that_see_it_and_no_other(convention, qkv):
    Q, K, V = qkv
    ref, lay = convention.ref, convention.lay
    V[3, 2] = np.inf
    visible = np.ones((M, N), dtype=bool)
    visible[2, 1:] = False
    averages = lay(ref.attention(*lay(Q, K, V), visible=lay(visible)))
    assert np.isnan(averages[3, 0])
    assert np.isnan(averages).sum() == 1


@in_both_conventions
def test_weigh_takes_every_value_as_seen_without_a_mask(convention):
    V, A = convention.lay(np.array([[np.nan, 3.0]]), np.array([[0.0, 0.5], [1.0, 0.5]]))
    assert np.isnan(convention.ref.weigh(V, A)).all()


@in_both_conventions
def test_weigh_reads_structured_masks(convention):
    V, A = convention.lay(np.array([[5.0, np.nan]]), np.array([[1.0, 0.5], [0.0, 0.5]]))
    average = convention.lay(convention.ref.weigh(V, A, visible=Causal()))
    assert average[0, 0] == 5.0
    assert np.isnan(average[0, 1])


@in_both_conventions
def test_no_keys_at_all_give_zero(convention):
    Q, K, V = np.ones((D_K, N)), np.ones((D_K, 0)), np.ones((D_V, 0))
    averages = convention.lay(convention.ref.attention(*convention.lay(Q, K, V)))
    assert np.array_equal(averages, np.zeros((D_V, N)))


@in_both_conventions
def test_leading_axes_are_independent_problems(convention, rng):
    Q, K, V = rng.normal(size=(2, 3, D_K, N)), rng.normal(size=(2, 3, D_K, M)), rng.normal(size=(2, 3, D_V, M))
    ref, lay = convention.ref, convention.lay
    together = lay(ref.attention(*lay(Q, K, V)))
    for entry in np.ndindex(2, 3):
        assert_close(together[entry], lay(ref.attention(*lay(Q[entry], K[entry], V[entry]))))


@in_both_conventions
@pytest.mark.parametrize(
    ("dtype", "bias_dtype", "sum_dtype"),
    [
        (np.float16, np.float16, np.float32),
        (np.float16, np.float32, np.float32),
        (np.float32, np.float64, np.float64),
        (np.float64, np.float32, np.float64),
    ],
)
def test_a_bias_keeps_its_precision(convention, dtype, bias_dtype, sum_dtype, qkv, rng):
    Q, K = (array.astype(dtype) for array in qkv[:2])
    ref, lay, bias = convention.ref, convention.lay, rng.normal(size=(M, N)).astype(bias_dtype)
    scores = lay(ref.biased(ref.dot_product, lay(bias))(*lay(Q, K)))
    assert scores.dtype == sum_dtype
    assert np.array_equal(scores, lay(ref.dot_product(*lay(Q, K))).astype(sum_dtype) + bias)


@in_both_conventions
def test_minus_infinity_in_a_bias_hides(convention, qkv):
    Q, K, V = qkv
    ref, lay = convention.ref, convention.lay
    bias, visible = np.zeros((M, N)), np.ones((M, N), dtype=bool)
    bias[4], visible[4] = -np.inf, False
    K[:, 4], V[:, 4] = np.nan, np.nan
    hidden = ref.attention(*lay(Q, K, V), visible=lay(visible))
    assert np.isfinite(hidden).all()
    biased = ref.biased(ref.scaled_dot_product, lay(bias))
    assert np.array_equal(ref.attention(*lay(Q, K, V), score=biased), hidden)


@in_both_conventions
def test_values_that_are_finite_are_weighed_by_a_product(convention, rng):
    V, A, visible = rng.normal(size=(D_V, M)), rng.random(size=(M, N)), rng.random((M, N)) < 0.5
    for seen in (None, visible):
        laid = None if seen is None else convention.lay(seen)
        assert_close(convention.lay(convention.ref.weigh(*convention.lay(V, A), laid)), V @ A)
