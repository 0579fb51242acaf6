"""Attention one tile at a time, merging of its parts, and its backward pass, in both conventions."""

import math
import tracemalloc
from fractions import Fraction
from functools import reduce

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mha_tutorial import Causal, Documents, Padding, Prefix, RowWeights, Window
from mha_tutorial.gradients import backward
from mha_tutorial.reference import row
from tests.helpers import BATCH, D_K, D_V, M, N, assert_close, in_both_conventions
from tests.mask_helpers import EveryOther

BLOCKS = [1, 2, 3, 100]  # of 5 queries and 7 keys: dividing neither, and more than there are
MASKS = {
    "all": None,
    "array": np.random.default_rng(3).random((M, N)) < 0.5,
    "array of each sequence": np.random.default_rng(4).random((BATCH, M, N)) < 0.5,
    "the same for all queries": np.arange(M)[:, None] % 3 > 0,
    "the same for all keys": np.arange(N)[None, :] % 2 > 0,
    "causal": Causal("bottom-right"),
    "top left": Causal("top-left"),
    "window": Window(2, "top-left") & Causal("top-left"),
    "padding": Padding([M, 3]),
    "padding on the left, and causal": Padding([2, M], side="left") & Causal("top-left"),
    "prefix or causal": Prefix([4, 2]) | Causal("top-left"),
    "not causal": ~Causal("bottom-right"),
    "documents": Documents([[3, 2], [1, 4]], "top-left"),
    "a query that sees nothing": Padding([M, 0]),
    "a rule of one's own": EveryOther(),
}
with_every_mask = pytest.mark.parametrize("visible", MASKS.values(), ids=MASKS)


@pytest.fixture
def qkv(rng):
    """Queries, keys and values of two sequences, as columns."""
    return tuple(rng.normal(size=(BATCH, d, tokens)) for d, tokens in ((D_K, N), (D_K, M), (D_V, M)))


def laid_mask(convention, visible):
    return convention.lay(visible) if isinstance(visible, np.ndarray) else visible


def online(convention, Q, K, V, **options):
    """Heads as columns, and log-sums."""
    if "visible" in options:
        options["visible"] = laid_mask(convention, options["visible"])
    heads, log_sums = convention.ref.online_attention(*convention.lay(Q, K, V), **options)
    return convention.lay(heads), log_sums


def naive(convention, Q, K, V, visible=None, score=None):
    """What `online` is to return, from scores that are all made at once."""
    ref, laid, visible = convention.ref, convention.lay(Q, K, V), laid_mask(convention, visible)
    score = score or ref.scaled_dot_product
    heads = convention.lay(ref.attention(*laid, score, visible))
    scores = convention.lay(ref.hide(score(*laid[:2]), visible)).astype(np.longdouble)
    largest = scores.max(axis=-2, initial=-np.inf)
    finite = np.where(largest == -np.inf, 0, largest)
    with np.errstate(divide="ignore"):
        sums = finite + np.log(np.exp(scores - finite[..., None, :]).sum(axis=-2))
    return heads, sums.astype(float)


def assert_parts_close(actual, expected, rtol=1e-12):
    for found, right in zip(actual, expected, strict=True):
        assert_close(found, right, rtol)


def part(convention, heads, log_sums):
    return convention.lay(heads), log_sums


def merged(convention, *parts):
    """Merge parts whose heads are columns."""
    heads, log_sums = reduce(convention.ref.merge, [part(convention, *one) for one in parts])
    return convention.lay(heads), log_sums


# --- the recurrence ---------------------------------------------------------------------------------------------


@pytest.mark.equation("eq-online-softmax", "eq-log-sum")
@in_both_conventions
def test_online_softmax_is_the_recurrence_key_by_key(convention, qkv):
    Q, K, V = qkv
    heads, log_sums = online(convention, Q, K, V, block=1)
    for b, i in np.ndindex(BATCH, N):
        largest, total, weighted = -math.inf, 0.0, [0.0] * D_V
        for j in range(M):
            score = math.fsum(Q[b, :, i] * K[b, :, j]) / math.sqrt(D_K)
            larger = max(largest, score)
            shrink, exponential = math.exp(largest - larger), math.exp(score - larger)
            total = total * shrink + exponential
            weighted = [w * shrink + exponential * value for w, value in zip(weighted, V[b, :, j], strict=True)]
            largest = larger
        assert_close(heads[b, :, i], np.array(weighted) / total)
        assert log_sums[b, i] == pytest.approx(largest + math.log(total), rel=1e-12)


@in_both_conventions
def test_online_softmax_of_two_blocks_in_fractions(convention):
    """Scores of 0, 2 ln 2, ln 2 and 3 ln 2: exponentials 1, 4, 2 and 8 of 15."""
    exponentials, values = [1, 4, 2, 8], [Fraction(v) for v in (7, 2, 6, -1)]
    head = sum(e * v for e, v in zip(exponentials, values, strict=True)) / sum(exponentials)
    assert head == Fraction(19, 15)
    K, V = np.log([exponentials]), np.array([values], dtype=float)
    heads, log_sums = online(convention, np.ones((1, 1)), K, V, block=2)
    assert_close(heads, np.array([[float(head)]]))
    assert_close(np.exp(log_sums), np.array([15.0]))


@pytest.mark.no_cover
@in_both_conventions
@with_every_mask
@pytest.mark.parametrize("block", BLOCKS)
def test_online_is_naive_attention_for_every_mask_and_block(convention, visible, block, qkv):
    assert_parts_close(
        online(convention, *qkv, visible=visible, block=block), naive(convention, *qkv, visible=visible)
    )


@pytest.mark.no_cover
@in_both_conventions
@pytest.mark.parametrize("visible", [None, Causal()], ids=["all", "causal"])
def test_online_is_naive_attention_over_many_tokens(convention, visible, rng):
    """2,048 tokens, with tiles that do not divide them."""
    Q, K, V = rng.normal(size=(3, 16, 2048))
    block = 600
    assert_parts_close(
        online(convention, Q, K, V, visible=visible, block=block), naive(convention, Q, K, V, visible=visible)
    )


@in_both_conventions
def test_online_is_naive_attention_for_every_score(convention, qkv, rng):
    ref = convention.ref
    maps = [rng.normal(size=(3, D_K)) for _ in range(2)]
    scores = [
        ref.dot_product,
        ref.scaled_by(-0.5),
        ref.additive(*(convention.lay(*maps)), rng.normal(size=3)),
        ref.bilinear(rng.normal(size=(D_K, D_K))),
        ref.gaussian(2.0),
    ]
    for score in scores:
        assert_parts_close(online(convention, *qkv, score=score, block=3), naive(convention, *qkv, score=score))


@in_both_conventions
@pytest.mark.parametrize("order", [1, -1], ids=["growing", "falling"])
def test_online_with_scores_of_ten_thousand_either_way(convention, order, rng):
    """No exponential overflows, whether the largest score comes first or last."""
    K, V = np.linspace(-1e4, 1e4, 97)[None, ::order], rng.normal(size=(D_V, 97))
    Q = np.array([[1.0, -1.0, 0.0, 1e-3, -1e-3]])
    found = online(convention, Q, K, V, block=10)
    assert np.isfinite(found[0]).all()
    assert_parts_close(found, naive(convention, Q, K, V))
    assert_close(found[1][:3], np.array([1e4, 1e4, math.log(97)]))


@in_both_conventions
def test_online_with_scores_as_far_apart_as_can_be(convention):
    K, V = np.array([[-1.7e308, 1.7e308, -1.7e308]]), np.array([[1.0, 2.0, 4.0]])
    for block in (1, 2, 3):
        heads, log_sums = online(convention, np.ones((1, 1)), K, V, block=block)
        assert heads.tolist() == [[2.0]]
        assert log_sums.tolist() == [1.7e308]


@in_both_conventions
@pytest.mark.parametrize("axes", [(), (3,), (2, 3)])
def test_online_takes_any_leading_axes(convention, axes, rng):
    Q, K, V = (rng.normal(size=(*axes, d, tokens)) for d, tokens in ((D_K, N), (D_K, M), (D_V, M)))
    heads, log_sums = online(convention, Q, K, V, block=2)
    assert heads.shape == (*axes, D_V, N)
    assert log_sums.shape == (*axes, N)
    assert_parts_close((heads, log_sums), naive(convention, Q, K, V))


@in_both_conventions
@pytest.mark.parametrize(("n", "m"), [(0, M), (N, 0), (0, 0)])
def test_online_without_queries_or_keys(convention, n, m):
    heads, log_sums = online(convention, np.ones((D_K, n)), np.ones((D_K, m)), np.ones((D_V, m)))
    assert np.array_equal(heads, np.zeros((D_V, n)))
    assert np.array_equal(log_sums, np.full(n, -np.inf))


@in_both_conventions
@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_online_sums_in_32_bits_and_keeps_the_type(convention, dtype, rng):
    """4,096 values of 16: their sum is too large for 16 bits, and their average is not."""
    Q, K, V = np.zeros((2, 1), dtype), np.zeros((2, 4096), dtype), np.full((1, 4096), 16, dtype)
    heads, log_sums = online(convention, Q, K, V, block=100)
    assert (heads.dtype, log_sums.dtype) == (dtype, np.float32)
    assert heads.tolist() == [[16.0]]
    assert_close(log_sums, np.log(np.array([4096], np.float32)), rtol=1e-6)  # 41 sums in 32 bits
    narrow = [rng.normal(size=size).astype(dtype) for size in ((3, 17), (3, 97), (2, 97))]
    exact, _ = online(convention, *(x.astype(float) for x in narrow))
    found = online(convention, *narrow, block=10), naive(convention, *narrow)
    errors = [np.abs(heads - exact).max() for heads, _ in found]
    assert errors[0] <= 2 * errors[1]


# --- what may not be seen, and what is not finite ---------------------------------------------------------------


@in_both_conventions
def test_online_leaves_out_the_tiles_that_are_hidden(convention, rng):
    """Twelve tokens in tiles of three: the six tiles above the diagonal of 4 by 4 are never scored."""
    Q, K, V = rng.normal(size=(3, D_K, 12))
    scored = []

    def score(q, k):
        scored.append((q.shape, k.shape))
        return convention.ref.scaled_dot_product(q, k)

    online(convention, Q, K, V, score=score, visible=Causal(), block=3)
    assert len(scored) == 10
    assert len(set(scored)) == 1
    scored.clear()
    online(convention, Q, K, V, score=score, visible=np.zeros((12, 12), bool), block=3)
    assert scored == []


@in_both_conventions
@pytest.mark.parametrize("block", BLOCKS)
def test_online_query_that_sees_nothing_gets_zeros_and_no_log_sum(convention, block, qkv):
    visible = MASKS["array"].copy()
    visible[:, 1] = False
    heads, log_sums = online(convention, *qkv, visible=visible, block=block)
    assert not heads[..., 1].any()
    assert (log_sums[:, 1] == -np.inf).all()
    assert np.isfinite(np.delete(log_sums, 1, axis=1)).all()


@in_both_conventions
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize(("key", "value"), [(np.nan, np.nan), (np.inf, -np.inf), (1.7e308, 1.7e308), (-1.7e308, 1)])
def test_online_what_is_hidden_reaches_nothing(convention, block, key, value, qkv):
    Q, K, V = qkv
    visible = np.ones((M, N), bool)
    visible[2], visible[:, 3] = False, False
    before = online(convention, Q, K, V, visible=visible, block=block)
    K[..., 2], V[..., 2], Q[..., 3] = key, value, key
    after = online(convention, Q, K, V, visible=visible, block=block)
    assert all(map(np.array_equal, after, before))


@in_both_conventions
@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("spoiled", ["query", "key", "value"])
@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf])
def test_online_what_is_not_finite_shows_where_naive_attention_shows_it(convention, block, spoiled, number, qkv):
    array = qkv[["query", "key", "value"].index(spoiled)]
    array[0, 1, 2] = number
    for visible in (None, Causal("bottom-right"), MASKS["array"]):
        heads, log_sums = online(convention, *qkv, visible=visible, block=block)
        expected, _ = naive(convention, *qkv, visible=visible)
        assert_close(heads, expected)
        assert np.isnan(expected).any()
        spoils_scores = np.isnan(expected).all(axis=-2) if spoiled != "value" else np.zeros((BATCH, N), bool)
        assert np.array_equal(np.isnan(log_sums), spoils_scores)


@in_both_conventions
def test_online_changes_nothing_it_is_given(convention, qkv):
    for array in qkv:
        array.flags.writeable = False
    heads, log_sums = online(convention, *qkv)
    online_gradients(convention, heads, *qkv, heads, log_sums)


def test_online_memory_of_many_tokens_is_a_fiftieth_of_their_scores(rng):
    """One head of width 64 with 16,384 tokens, in float64: the scores alone would take 2 GiB.

    A window leaves out most of the tiles, which is quicker; it does not change what a tile takes.
    """
    n, d, visible = 16_384, 64, Window(1024) & Causal()
    Q, K, V = rng.normal(size=(3, n, d))
    tracemalloc.start()
    try:
        heads, log_sums = row.online_attention(Q, K, V, visible=visible, block=512)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak - heads.nbytes - log_sums.nbytes <= n * n * Q.itemsize / 50
    assert_close(heads[-1:], row.attention(Q[-1:], K[-1024:], V[-1024:]))


# --- merging ----------------------------------------------------------------------------------------------------


@pytest.mark.equation("eq-merge")
@in_both_conventions
@with_every_mask
@pytest.mark.parametrize("at", [1, 4])
def test_merge_of_two_halves_of_the_keys_is_the_whole(convention, visible, at, qkv):
    Q, K, V = qkv
    seen = MASKS["all"]
    if visible is not None:
        seen = visible if isinstance(visible, np.ndarray) else visible.columns(N, M, (BATCH,))
        seen = np.broadcast_to(seen, (*seen.shape[:-2], M, N))
    halves = [
        online(convention, Q, K[..., some], V[..., some], visible=None if seen is None else seen[..., some, :])
        for some in (slice(0, at), slice(at, M))
    ]
    assert_parts_close(merged(convention, *halves), naive(convention, Q, K, V, visible))


@in_both_conventions
def test_merge_of_what_every_rank_computed_is_the_whole(convention, rng):
    Q, K, V = rng.normal(size=(2, D_K, N)), rng.normal(size=(2, D_K, 23)), rng.normal(size=(2, D_V, 23))
    ranks = [online(convention, Q, K[..., j::4], V[..., j::4]) for j in range(4)]
    expected = naive(convention, Q, K, V)
    for order in ([0, 1, 2, 3], [2, 0, 3, 1]):
        assert_parts_close(merged(convention, *(ranks[j] for j in order)), expected)


@in_both_conventions
def test_merge_of_a_shared_prefix_with_what_is_each_sequences_own(convention, rng):
    prefix_K, prefix_V = rng.normal(size=(D_K, 11)), rng.normal(size=(D_V, 11))
    Q, K, V = (rng.normal(size=(BATCH, d, tokens)) for d, tokens in ((D_K, N), (D_K, M), (D_V, M)))
    # the queries of all sequences side by side meet the prefix once
    together = online(convention, np.concatenate(list(Q), axis=-1), prefix_K, prefix_V)
    prefix = np.stack(np.split(together[0], BATCH, axis=-1)), np.stack(np.split(together[1], BATCH))
    found = merged(convention, prefix, online(convention, Q, K, V))
    whole = [
        np.concatenate([np.broadcast_to(a, (BATCH, *a.shape)), b], axis=-1)
        for a, b in ((prefix_K, K), (prefix_V, V))
    ]
    assert_parts_close(found, naive(convention, Q, *whole))


log_sum = st.one_of(st.floats(-1e3, 1e3), st.just(-np.inf))
some_part = st.tuples(arrays(float, (2, 3), elements=st.floats(-30, 30)), arrays(float, 3, elements=log_sum))


@pytest.mark.no_cover
@in_both_conventions
@given(parts=st.tuples(some_part, some_part, some_part))
@settings(deadline=None, max_examples=40)
def test_merge_is_associative_and_commutative_to_rounding(convention, parts):
    """A log-sum of a thousand is rounded by 1e-13, and so are the weights that are made of it."""
    merge = convention.ref.merge
    parts = [part(convention, np.where(log_sums == -np.inf, 0, heads), log_sums) for heads, log_sums in parts]
    one, two, three = parts
    first = merge(merge(one, two), three)
    for other in (merge(one, merge(two, three)), merge(three, merge(two, one))):
        np.testing.assert_allclose(first[0], other[0], rtol=0, atol=30 * 1e-11)
        np.testing.assert_allclose(first[1], other[1], rtol=1e-13, atol=1e-12)


@in_both_conventions
@pytest.mark.parametrize("head", [0.0, 5.0, np.nan, np.inf])
def test_merge_with_a_part_that_saw_nothing_changes_nothing(convention, head, rng):
    nothing = np.full((D_V, N), head), np.full(N, -np.inf)
    something = rng.normal(size=(D_V, N)), rng.normal(size=N)
    for parts in ([nothing, something], [something, nothing]):
        assert_parts_close(merged(convention, *parts), something)
    heads, log_sums = merged(convention, nothing, nothing)
    assert np.array_equal(heads, np.zeros((D_V, N)))
    assert np.array_equal(log_sums, np.full(N, -np.inf))


@in_both_conventions
def test_merge_of_not_a_number_shows_in_its_query_alone(convention, rng):
    one, other = ((rng.normal(size=(D_V, N)), rng.normal(size=N)) for _ in range(2))
    before = merged(convention, one, other)
    one[0][2, 3], other[0][:, 1], other[1][1] = np.nan, np.nan, np.nan
    heads, log_sums = merged(convention, one, other)
    spoiled = np.zeros((D_V, N), bool)
    spoiled[2, 3] = spoiled[:, 1] = True
    assert np.array_equal(np.isnan(heads), spoiled)
    assert np.isnan(log_sums).tolist() == [i == 1 for i in range(N)]
    assert np.array_equal(heads[~spoiled], before[0][~spoiled])


@in_both_conventions
def test_merge_of_large_log_sums_overflows_nowhere(convention):
    heads = [np.array([[2.0, 2.0, 2.0]]), np.array([[6.0, 6.0, 6.0]])]
    log_sums = [np.array([1e4, -1e4, 1e308]), np.array([1e4 + math.log(3), -1e4, -1e308])]
    found, together = merged(convention, *zip(heads, log_sums, strict=True))
    assert_close(found, np.array([[5.0, 4.0, 2.0]]), rtol=1e-11)  # 1e4 is rounded by 1e-12
    assert_close(together, np.array([1e4 + math.log(4), math.log(2) - 1e4, 1e308]))


@in_both_conventions
def test_merge_keeps_the_type_of_the_heads(convention):
    heads, log_sums = np.array([[0.1], [3.0]], np.float16), np.array([5.0], np.float32)
    found = merged(convention, (heads, log_sums), (heads, log_sums))
    assert [x.dtype for x in found] == [np.float16, np.float32]
    assert np.array_equal(found[0], heads)


# --- the backward pass ------------------------------------------------------------------------------------------


def online_gradients(convention, d_heads, Q, K, V, heads, log_sums, **options):
    """The gradients as columns."""
    if "visible" in options:
        options["visible"] = laid_mask(convention, options["visible"])
    laid = (*convention.lay(d_heads, Q, K, V, heads), log_sums)
    return convention.lay(*convention.ref.online_backward(*laid, **options))


def kept_gradients(convention, d_heads, Q, K, V, visible=None, scale=None):
    """The same from weights that were kept, by the backward pass of a layer that projects with unit matrices."""
    weights = convention.lay_weights(RowWeights(*(np.eye(len(x[0]))[None] for x in (Q, K, V, V))).T)
    score = convention.ref.scaled_dot_product if scale is None else convention.ref.scaled_by(scale)
    visible = laid_mask(convention, visible)
    laid = convention.lay(Q, K, V)
    if isinstance(visible, np.ndarray) and visible.ndim > 2:
        visible = visible[:, None]
    trace = convention.ref.multi_head(*laid, weights, score, visible)
    gradients = backward(convention.lay(d_heads), trace, *laid, weights, scale=scale)
    return convention.lay(*gradients[:3])


@pytest.mark.no_cover
@pytest.mark.equation("eq-flash-backward", "eq-flash-backward-row")
@in_both_conventions
@with_every_mask
@pytest.mark.parametrize("block", BLOCKS)
def test_online_backward_is_the_backward_pass_from_kept_weights(convention, visible, block, qkv, rng):
    d_heads = rng.normal(size=(BATCH, D_V, N))
    made = online(convention, *qkv, visible=visible)
    found = online_gradients(convention, d_heads, *qkv, *made, visible=visible, block=block)
    expected = kept_gradients(convention, d_heads, *qkv, visible)
    for gradient, right in zip(found, expected, strict=True):
        assert_close(gradient, right, rtol=1e-11)  # D is a sum of products whose sum may be far smaller


@in_both_conventions
@pytest.mark.parametrize("scale", [0.0, -0.5, 2.0])
def test_online_backward_knows_the_scale(convention, scale, qkv, rng):
    d_heads = rng.normal(size=(BATCH, D_V, N))
    made = online(convention, *qkv, score=convention.ref.scaled_by(scale))
    found = online_gradients(convention, d_heads, *qkv, *made, scale=scale)
    for gradient, right in zip(found, kept_gradients(convention, d_heads, *qkv, scale=scale), strict=True):
        assert_close(gradient, right, rtol=1e-11)


@in_both_conventions
def test_online_backward_of_parts_adds_up_once_they_are_merged(convention, qkv, rng):
    """Each half of the keys needs the whole's heads and log-sums, and nothing else of the other half."""
    Q, K, V = qkv
    d_heads, halves = rng.normal(size=(BATCH, D_V, N)), (slice(0, 3), slice(3, M))
    made = merged(convention, *(online(convention, Q, K[..., some], V[..., some]) for some in halves))
    dQ, dK, dV = zip(
        *(online_gradients(convention, d_heads, Q, K[..., some], V[..., some], *made) for some in halves),
        strict=True,
    )
    found = sum(dQ), np.concatenate(dK, axis=-1), np.concatenate(dV, axis=-1)
    for gradient, right in zip(found, kept_gradients(convention, d_heads, Q, K, V), strict=True):
        assert_close(gradient, right, rtol=1e-11)


@in_both_conventions
@pytest.mark.parametrize("block", [2, 100])
@pytest.mark.parametrize("number", [np.nan, np.inf, 1e307])
def test_online_backward_what_is_hidden_reaches_no_gradient(convention, block, number, qkv, rng):
    Q, K, V = qkv
    d_heads, visible = rng.normal(size=(BATCH, D_V, N)), np.ones((M, N), bool)
    visible[2], visible[:, 3] = False, False
    made = online(convention, Q, K, V, visible=visible)
    before = online_gradients(convention, d_heads, Q, K, V, *made, visible=visible, block=block)
    K[..., 2], V[..., 2], Q[..., 3], d_heads[..., 3] = number, number, number, number
    after = online_gradients(convention, d_heads, Q, K, V, *made, visible=visible, block=block)
    assert all(map(np.array_equal, after, before))
    dQ, dK, dV = before
    for gradient in (dQ[..., 3], dK[..., 2], dV[..., 2]):
        assert not gradient.any()


@in_both_conventions
@pytest.mark.parametrize("spoiled", range(4), ids=["d_heads", "query", "key", "value"])
def test_online_backward_of_not_a_number_shows_where_the_kept_weights_show_it(convention, spoiled, qkv, rng):
    """Two texts in one sequence: queries 0, 1 see keys 0 to 2, the others keys 3 to 6."""
    visible = np.zeros((M, N), bool)
    visible[:3, :2] = visible[3:, 2:] = True
    arrays = rng.normal(size=(BATCH, D_V, N)), *qkv
    arrays[spoiled][0, :, 1] = np.nan
    made = online(convention, *qkv, visible=visible)
    found = online_gradients(convention, *arrays, *made, visible=visible, block=2)
    for gradient, right in zip(found, kept_gradients(convention, *arrays, visible), strict=True):
        assert np.array_equal(np.isnan(gradient), np.isnan(right))
        assert np.isfinite(gradient[0, :, -2:]).all()
        assert np.isfinite(gradient[1]).all()


@in_both_conventions
def test_online_backward_sums_16_bits_in_more(convention):
    """4,096 queries blame one value each by one; in 16 bits sums stop at 2,048."""
    Q, K, V = (np.zeros((2, tokens), np.float16) for tokens in (4096, 1, 1))
    made = online(convention, Q, K, V)
    gradients = online_gradients(convention, np.ones((2, 4096), np.float16), Q, K, V, *made)
    assert [x.dtype for x in gradients] == [np.float16] * 3
    assert gradients[2].tolist() == [[4096.0], [4096.0]]


# --- what does not fit ------------------------------------------------------------------------------------------

REFUSED_ATTENTION = {
    "block of none": ({"block": 0}, ValueError, r"^block must be at least 1, got 0$"),
    "half a block": ({"block": 2.5}, TypeError, r"^block must be a whole number, got 2\.5$"),
    "mask of numbers": ({"visible": np.ones((N, N))}, TypeError, "visible must be a boolean array"),
    "mask of another size": (
        {"visible": np.ones((N, N + 1), bool)},
        ValueError,
        "does not broadcast to the scores",
    ),
    "lengths of another batch": ({"visible": Padding([N, N, N])}, ValueError, "do not fit the batch axes"),
}


@pytest.mark.usefixtures("own_messages")
@in_both_conventions
@pytest.mark.parametrize(("options", "error", "message"), REFUSED_ATTENTION.values(), ids=REFUSED_ATTENTION)
def test_online_refuses_what_does_not_fit(convention, options, error, message, rng):
    X = convention.lay(rng.normal(size=(D_K, N)))
    made = convention.ref.online_attention(X, X, X)
    with pytest.raises(error, match=message):
        convention.ref.online_attention(X, X, X, **options)
    with pytest.raises(error, match=message):
        convention.ref.online_backward(X, X, X, X, *made, **options)


@pytest.mark.usefixtures("own_messages")
@in_both_conventions
def test_online_refuses_a_rule_whose_tiles_are_no_masks(convention, rng):
    class Numbers(EveryOther):
        def rows(self, n, m, batch=()):
            return super().rows(n, m, batch).astype(int)

    X = convention.lay(rng.normal(size=(D_K, N)))
    with pytest.raises(TypeError, match="visible must be a boolean array"):
        convention.ref.online_attention(X, X, X, visible=Numbers())


@pytest.mark.usefixtures("own_messages")
@in_both_conventions
def test_online_refuses_arrays_that_do_not_fit(convention):
    ref, ones = convention.ref, lambda d, tokens: convention.lay(np.ones((d, tokens)))
    with pytest.raises(ValueError, match="K and V must hold the same number m of tokens"):
        ref.online_attention(ones(2, 3), ones(2, 5), ones(2, 7))
    with pytest.raises(ValueError, match="must share d_k"):
        ref.online_attention(ones(2, 3), ones(3, 5), ones(2, 5))
    with pytest.raises(TypeError, match="Q must hold floating-point numbers"):
        ref.online_attention(ones(2, 3).astype(int), ones(2, 5), ones(2, 5))
    biased = ref.biased(ref.dot_product, convention.lay(np.zeros((5, 3))))
    with pytest.raises(ValueError, match=r"bias of shape .* does not broadcast to the scores"):
        ref.online_attention(ones(2, 3), ones(2, 5), ones(2, 5), biased, block=2)


@pytest.mark.usefixtures("own_messages")
@in_both_conventions
def test_merge_refuses_what_does_not_fit(convention):
    merge, heads, log_sums = convention.ref.merge, convention.lay(np.ones((D_V, N))), np.ones(N)
    for other, error, message in [
        (heads, TypeError, "a part must be a pair, heads and log-sums, got ndarray"),
        ((heads, log_sums, log_sums), TypeError, "a part must be a pair, heads and log-sums, got a tuple of 3"),
        (
            (heads, np.ones(D_V)),
            ValueError,
            r"log_sums must hold one number for each query .*\(5,\), got shape \(17,\)",
        ),
        ((heads, np.ones(N, int)), TypeError, "log_sums must hold floating-point numbers"),
        ((heads.T, np.ones(D_V)), ValueError, "the other heads must be like the heads"),
        ((heads.astype(np.float32), log_sums), TypeError, "the heads is float64 but the other heads is float32"),
    ]:
        with pytest.raises(error, match=message):
            merge((heads, log_sums), other)


@pytest.mark.usefixtures("own_messages")
@in_both_conventions
def test_online_backward_refuses_what_attention_has_not_made(convention):
    X = convention.lay(np.ones((D_K, N)))
    heads, log_sums = convention.ref.online_attention(X, X, X)
    for made, error, message in [
        ((heads.T, heads, log_sums), ValueError, r"d_heads must be \(\.\.\., .*got shape"),
        ((heads, heads.T, log_sums), ValueError, r" heads must be \(\.\.\., .*got shape"),
        ((heads.astype(int), heads, log_sums), TypeError, "d_heads must hold floating-point numbers"),
        ((heads.astype(np.float32), heads, log_sums), TypeError, "V is float64 but d_heads is float32"),
        ((heads, heads, log_sums[1:]), ValueError, "log_sums must hold one number for each query"),
    ]:
        with pytest.raises(error, match=message):
            convention.ref.online_backward(made[0], X, X, X, *made[1:])
