"""Multi-head attention on row vectors: a token is a row of X, and queries = X W_q."""

import math
from collections.abc import Callable

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from .._checks import ROWS as convention
from .._checks import Number, check_positive, check_prepare, check_scale
from .._finite import add_bias, bound, settle, unwarned, wide
from .._sizes import count, slices
from ..masks import Mask
from ..trace import Trace
from ..weights import RowWeights

Score = Callable[[Array, Array], Array]  # Q (*h, n, d_k), K (*h, m, d_k) -> scores (*h, n, m)
Prepare = Callable[..., tuple[Array, Array]]  # queries (*b, h, n, d_k), keys (*b, h_kv, m, d_k), positions -> both

KEYS = -1  # a query's scores over the keys are a row of the scores


def hide(scores: Float[Array, "*h n m"], visible: Bool[Array, "*#h #n #m"] | Mask | None) -> Float[Array, "*h n m"]:
    """Put minus infinity in place of each score of a key that the query may not see.

    Computes :eq:`eq-visible-row`: softmax gives such a key no weight. Where `visible` is None, all is visible
    and the scores are returned as they are.

    Raises
    ------
    TypeError, ValueError
        If the scores are not a floating array of two or more axes, or `visible` is not boolean or
        does not broadcast to them.

    Examples
    --------
    >>> hide(np.array([[1.0, 3.0]]), np.array([[False, True]])).tolist()
    [[-inf, 3.0]]
    """
    convention.check_array("scores", scores)
    visible = convention.visible(visible, scores.shape)
    return scores if visible is None else np.where(visible, scores, -np.inf)


def softmax(scores: Float[Array, "*h n m"]) -> Float[Array, "*h n m"]:
    """Turn each query's scores into weights over the keys: none negative, all together one.

    Computes :eq:`eq-softmax-rows`, so that :eq:`eq-weights-sum-to-one-row` holds; a query all of whose scores
    are minus infinity sees no key and gets zeros. The largest score is subtracted first, which changes nothing
    (:eq:`eq-softmax-shift`) and keeps the exponentials from overflowing.

    Raises
    ------
    TypeError, ValueError
        If the scores are not a floating array of two or more axes.

    Examples
    --------
    >>> softmax(np.log([[1.0, 3.0]])).tolist()
    [[0.25, 0.75]]
    """
    convention.check_array("scores", scores)
    dtype = scores.dtype
    (scores,) = wide(scores)  # 16 bits are too few for the sum
    largest = scores.max(axis=KEYS, keepdims=True, initial=-np.inf)
    with unwarned():  # too large a difference has the exponential 0
        shifted = scores - np.where(largest == -np.inf, 0, largest)
    exponentials = np.exp(shifted, out=shifted)  # in place: one more array of this size costs more than exp
    total = exponentials.sum(axis=KEYS, keepdims=True)
    exponentials /= np.where(total == 0, 1, total)
    return exponentials.astype(dtype, copy=False)


def weigh(
    V: Float[Array, "*h m d_v"],
    A: Float[Array, "*h n m"],
    visible: Bool[Array, "*#h #n #m"] | Mask | None = None,
) -> Float[Array, "*h n d_v"]:
    """Average the values that each query sees, weighted by its attention.

    This is the product of A and V, except where a value is not finite: zero times NaN is NaN, so the
    product alone would carry a hidden NaN into every result. Here only queries that see it get NaN.

    Raises
    ------
    TypeError, ValueError
        If V and A are not floating arrays with the same leading axes, A has fewer bits than V, or `visible`
        does not fit A.

    Examples
    --------
    >>> V, A = np.array([[1.0], [np.nan]]), np.array([[1.0, 0.0]])
    >>> weigh(V, A, visible=np.array([[True, False]]))
    array([[1.]])
    """
    convention.check_weighing(V, A)
    visible = convention.visible(visible, A.shape)
    finite = np.isfinite(V)
    with unwarned():
        if finite.all():
            averages = A @ V
        else:
            seen = np.broadcast_to(True if visible is None else visible, A.shape)
            averages = np.where(seen @ ~finite, np.nan, A @ np.where(finite, V, 0))
        return averages.astype(V.dtype)


def dot_product(Q: Float[Array, "*h n d_k"], K: Float[Array, "*h m d_k"]) -> Float[Array, "*h n m"]:
    """Score a key for a query by their inner product.

    Computes :eq:`eq-dot-product-row`, in 32 bits or more. The score is NaN where the query or the key is
    not finite, and where its type cannot hold it, never infinite: minus infinity means hidden.

    Raises
    ------
    TypeError, ValueError
        If Q and K are not floating arrays of one type, one width and the same leading axes.

    Examples
    --------
    >>> dot_product(np.array([[1.0, 2.0]]), np.array([[3.0, 0.0], [0.0, 4.0]])).tolist()
    [[3.0, 8.0]]
    """
    convention.check_arrays(Q=Q, K=K)
    convention.check_one_width(Q, K)
    Q, K = wide(Q, K)
    with unwarned():  # masked positions may hold anything
        scores = Q @ K.mT
    return settle(scores, Q, K, convention.features, bound(Q, K, convention.features))


def scaled_dot_product(Q: Float[Array, "*h n d_k"], K: Float[Array, "*h m d_k"]) -> Float[Array, "*h n m"]:
    """Score a key for a query by their inner product, divided by the root of their width.

    Computes :eq:`eq-scaled-dot-product-row`. Raises what `dot_product` raises.

    References
    ----------
    Vaswani and others, *Attention Is All You Need*, section 3.2.1.

    Examples
    --------
    >>> scaled_dot_product(np.ones((1, 4)), np.ones((1, 4)))
    array([[2.]])
    """
    return dot_product(Q, K) / math.sqrt(Q.shape[convention.features])


def scaled_by(scale: Number) -> Score:
    """Make a score of the inner product times a number of your own, which may be zero or negative.

    Raises
    ------
    ValueError
        If the scale is not a finite number.

    Examples
    --------
    >>> scaled_by(-0.5)(np.array([[4.0]]), np.array([[3.0]]))
    array([[-6.]])
    """
    scale = check_scale(scale)

    def score(Q, K):
        scores = dot_product(Q, K)
        with unwarned():
            scores = scores * scale
        return settle(scores, Q, K, convention.features, max(1, abs(scale)) * bound(Q, K, convention.features))

    return score


def additive(U_q: Float[Array, "d_q d"], U_k: Float[Array, "d_k d"], u: Float[Array, " d"]) -> Score:
    """Make a score that a small network learns: both vectors mapped, added, bent by tanh, summed.

    Computes :eq:`eq-additive-score-row`. Queries and keys may differ in width.

    References
    ----------
    Bahdanau, Cho and Bengio, *Neural Machine Translation by Jointly Learning to Align and Translate*.

    Examples
    --------
    >>> score = additive(np.eye(1), np.eye(2, 1), np.ones(1))
    >>> score(np.zeros((1, 1)), np.array([[0.0, 5.0], [9.0, 5.0]])).round(3).tolist()
    [[0.0, 1.0]]
    """

    convention.check_additive(U_q, U_k, u)

    def score(Q, K):
        convention.check_arrays(Q=Q, K=K)
        convention.check_mapped(Q=(Q, U_q), K=(K, U_k))
        Q, K = wide(Q, K)
        with unwarned():
            queries, keys = Q @ U_q, K @ U_k
            bent = np.tanh(keys[..., None, :, :] + queries[..., :, None, :])
            scores = np.einsum("...nmd,d->...nm", bent, u)
        return settle(scores, Q, K, convention.features)

    return score


def bilinear(W: Float[Array, "d_q d_k"]) -> Score:
    """Make a score that a matrix learns: how well each number of a query goes with each number of a key.

    Computes :eq:`eq-bilinear-score-row`: with ``W_q @ W_k.T`` for W, the inner product of a projected query and
    a projected key. Queries and keys may differ in width.

    Raises
    ------
    TypeError, ValueError
        If W is not a floating matrix; when scoring, if Q is not as wide as it has rows or K as it has columns.

    References
    ----------
    Luong, Pham and Manning, *Effective Approaches to Attention-based Neural Machine Translation*, section 3.1.

    Examples
    --------
    >>> score = bilinear(np.array([[0.0, 1.0]]))
    >>> score(np.array([[2.0]]), np.array([[3.0, 4.0]])).tolist()
    [[8.0]]
    """

    convention.check_matrix("W", W)

    def score(Q, K):
        convention.check_arrays(Q=Q, K=K)
        convention.check_bilinear(W, Q, K)
        Q, K = wide(Q, K)
        with unwarned():
            scores = Q @ W @ K.mT
        return settle(scores, Q, K, convention.features)

    return score


def gaussian(bandwidth: Number) -> Score:
    """Make a score that falls with the squared distance, so that the weights are a Gaussian kernel's.

    Computes :eq:`eq-gaussian-score-row`. Attention with it is kernel regression.

    References
    ----------
    Nadaraya, *On Estimating Regression*; Watson, *Smooth Regression Analysis*.

    Examples
    --------
    >>> gaussian(bandwidth=1.0)(np.array([[0.0]]), np.array([[2.0], [3.0]])).tolist()
    [[-2.0, -4.5]]
    """

    bandwidth = check_positive("bandwidth", bandwidth)

    def score(Q, K):
        convention.check_arrays(Q=Q, K=K)
        convention.check_one_width(Q, K)
        Q, K = wide(Q, K)
        with unwarned():
            offset = K[..., None, :, :] - Q[..., :, None, :]
            scores = -np.square(offset).sum(axis=-1) / (2 * bandwidth**2)
        return settle(scores, Q, K, convention.features)

    return score


def biased(score: Score, bias: Float[Array, "*h n m"]) -> Score:
    """Make a score with something added: positions, distances, another library's float mask.

    Minus infinity hides a key, whatever it holds. The bias keeps its precision: sums are made in the wider of
    its type and that of the scores.

    Raises
    ------
    TypeError
        If the bias is not a floating array.

    Warns
    -----
    UserWarning
        If the bias holds only 0 and 1: added to the scores they hide nothing, and were surely meant
        as a mask.

    Examples
    --------
    >>> score = biased(dot_product, np.array([[0.0, -np.inf]]))
    >>> attention(np.ones((1, 1)), np.ones((2, 1)), np.array([[5.0], [7.0]]), score)
    array([[5.]])
    """
    convention.check_bias(bias)
    bias = bias.copy()

    def score_and_bias(Q, K):
        scores = score(Q, K)
        convention.check_scores(scores, Q, K)
        convention.check_addend(bias, scores.shape)
        return add_bias(scores, bias)

    return score_and_bias


def attention(
    Q: Float[Array, "*h n d_q"],
    K: Float[Array, "*h m d_k"],
    V: Float[Array, "*h m d_v"],
    score: Score = scaled_dot_product,
    visible: Bool[Array, "*#h #n #m"] | Mask | None = None,
) -> Float[Array, "*h n d_v"]:
    """Give each query the average of the values, weighted by how well their keys match it.

    Computes :eq:`eq-attention-row`, for each query the :eq:`eq-convex-combination-row` of the values.
    It has no parameters: all it does is decided by what comes in.

    Scores, softmax and sums are computed in 32 bits or more, and the averages have the type of the
    values. Masked positions may hold NaN, infinity or any finite number: they have no influence, and a
    query that sees no key gets zeros. A query that is not finite gets NaN if it sees a key; a key that
    is not, or whose score its type cannot hold, gives NaN to every query that sees it; a value gives NaN
    in the numbers where it is not finite. No other result is touched.

    Raises
    ------
    TypeError, ValueError
        If the arrays are not floating, differ in type or leading axes, K and V differ in length, the
        score returns another shape than ``(*h, n, m)``, or `visible` does not fit the scores.

    References
    ----------
    Vaswani and others, *Attention Is All You Need*, section 3.2.1, with any score function.

    Examples
    --------
    >>> attention(np.zeros((1, 3)), np.ones((2, 3)), np.array([[1.0], [5.0]]))
    array([[3.]])
    """
    convention.check_arrays(Q=Q, K=K, V=V)
    convention.check_one_length(K, V)
    score = convention.checked(score)
    visible = convention.visible(visible, convention.scores_shape(Q, K))

    scores = hide(score(Q, K), visible)
    A = softmax(scores)
    return weigh(V, A, scores != -np.inf)  # a bias of minus infinity hides, too


def online_attention(
    Q: Float[Array, "*h n d_q"],
    K: Float[Array, "*h m d_k"],
    V: Float[Array, "*h m d_v"],
    score: Score = scaled_dot_product,
    visible: Bool[Array, "*#h #n #m"] | Mask | None = None,
    block: int = 256,
) -> tuple[Float[Array, "*h n d_v"], Float[Array, "*h n"]]:
    """Give each query the average that `attention` gives it, a tile of its scores after the other.

    Computes :eq:`eq-online-softmax`: each query carries the largest score so far, the sum of the exponentials
    beside it, and the sum of the values weighted by them. Where a larger score comes, both sums shrink. No more
    than `block` by `block` scores of each head exist at a time, and tiles in which all is hidden are left out.

    What is not finite, and what is masked, is treated as in `attention`. The sums are divided last: values within
    a factor m of the largest number of 32 bits, or of their type if it has more, may overflow.

    Parameters
    ----------
    score
        It is given some queries and some keys at a time, so it may not depend on where they stand: it cannot be
        `biased` by an array of all scores.
    block
        How many queries, and how many keys, a tile has at most.

    Returns
    -------
    heads, log_sums
        The averages, and for each query the logarithm of the sum of the exponentials of its scores,
        :eq:`eq-log-sum`: what `merge` needs to know. Minus infinity, and a head of zeros, for a query that sees
        no key.

    Raises
    ------
    TypeError, ValueError
        As `attention`; and if `block` is not a whole number, or below 1.

    References
    ----------
    Milakov and Gimelshein, *Online Normalizer Calculation for Softmax*; Rabe and Staats, *Self-attention Does Not
    Need O(n²) Memory*; Dao and others, *FlashAttention*.

    Examples
    --------
    >>> K, V = np.log([[1.0], [3.0], [4.0]]), np.array([[8.0], [0.0], [2.0]])
    >>> heads, log_sums = online_attention(np.ones((1, 1)), K, V, block=2)
    >>> heads.round(12).tolist(), np.exp(log_sums).round(12).tolist()
    ([[2.0]], [8.0])
    """
    convention.check_arrays(Q=Q, K=K, V=V)
    convention.check_one_length(K, V)
    score, block = convention.checked(score), count("block", block)
    seen = convention.tiles(visible, convention.scores_shape(Q, K))
    n, m = (x.shape[convention.tokens] for x in (Q, K))
    h, d_v = Q.shape[:-2], V.shape[convention.features]
    dtype = np.result_type(np.float32, Q)
    heads = np.zeros((*h, *convention.axes(d_v, n)), V.dtype)
    log_sums = np.zeros((*h, n), dtype)

    with unwarned():
        for queries in slices(n, block):
            q, p = Q[..., queries, :], queries.stop - queries.start
            largest = np.full((*h, *convention.axes(1, p)), -np.inf, dtype)
            total, weighted = np.zeros_like(largest), np.zeros((), dtype)
            for keys in slices(m, block):
                tile = seen(queries, keys)
                if tile is not None and not tile.any():
                    continue
                k, (v,) = K[..., keys, :], wide(V[..., keys, :])
                scores = hide(score(q, k), tile)
                larger = np.maximum(largest, scores.max(axis=KEYS, keepdims=True))
                # nothing is taken off for a query that has seen nothing so far
                finite = np.where(larger == -np.inf, 0, larger)
                shrink, exponentials = np.exp(largest - finite), np.exp(scores - finite)
                total = total * shrink + exponentials.sum(axis=KEYS, keepdims=True)
                weighted = weighted * shrink + weigh(v, exponentials, scores != -np.inf)
                largest = larger
            heads[..., queries, :] = weighted / np.where(total == 0, 1, total)
            log_sums[..., queries] = (largest + np.log(total)).squeeze(axis=KEYS)
    return heads, log_sums


def merge(
    one: tuple[Float[Array, "*h n d_v"], Float[Array, "*h n"]],
    other: tuple[Float[Array, "*h n d_v"], Float[Array, "*h n"]],
) -> tuple[Float[Array, "*h n d_v"], Float[Array, "*h n"]]:
    """Give each query its average over all keys, from its averages over some of the keys and over the others.

    Computes :eq:`eq-merge`: each part counts as much as the exponentials of its scores add up to. Both are
    heads and log-sums, as `online_attention` returns them, and so is the result: it can be merged with a third
    part, in any order. A part in which a query has seen nothing, and its log-sum is minus infinity, adds nothing,
    whatever its head holds.

    Raises
    ------
    TypeError, ValueError
        If the heads are not floating arrays of one shape and type, or the log-sums not one floating number for
        each query.

    References
    ----------
    Rabe and Staats, *Self-attention Does Not Need O(n²) Memory*.

    Examples
    --------
    >>> one, other = (np.array([[2.0]]), np.log([1.0])), (np.array([[6.0]]), np.log([3.0]))
    >>> heads, log_sums = merge(one, other)
    >>> heads.round(12).tolist(), np.exp(log_sums).round(12).tolist()
    ([[5.0]], [4.0])
    """
    convention.check_parts(one, other)
    (heads, log_sums), (other_heads, other_log_sums) = one, other
    dtype = heads.dtype
    log_sums, other_log_sums = wide(log_sums, other_log_sums)

    largest = np.maximum(log_sums, other_log_sums)
    with unwarned():
        finite = np.where(largest == -np.inf, 0, largest)  # of a query that has seen nothing in either part
        total, weighted = np.zeros_like(largest), np.zeros((), largest.dtype)
        for averages, part in ((heads, log_sums), (other_heads, other_log_sums)):
            exponentials = np.exp(part - finite)
            total = total + exponentials
            weights = exponentials[..., :, None]
            weighted = weighted + np.where(weights == 0, 0, weights * averages)
        averages = weighted / np.where(total == 0, 1, total)[..., :, None]
        return averages.astype(dtype), largest + np.log(total)


def online_backward(
    d_heads: Float[Array, "*h n d_v"],
    Q: Float[Array, "*h n d_k"],
    K: Float[Array, "*h m d_k"],
    V: Float[Array, "*h m d_v"],
    heads: Float[Array, "*h n d_v"],
    log_sums: Float[Array, "*h n"],
    scale: Number | None = None,
    visible: Bool[Array, "*#h #n #m"] | Mask | None = None,
    block: int = 256,
) -> tuple[Float[Array, "*h n d_k"], Float[Array, "*h m d_k"], Float[Array, "*h m d_v"]]:
    """Carry the gradient of a loss from the heads of `online_attention` back to queries, keys and values.

    Computes :eq:`eq-flash-backward-row`: no weight was kept, so each tile of them is computed once more, from its
    scores and the log-sums. What is not finite, and what is masked, is treated as in `gradients.backward`.

    A log-sum is rounded to its type, and a weight has that error times the size of the scores: in 32 bits, scores
    of a thousand leave three or four digits.

    Parameters
    ----------
    d_heads
        The derivative of the loss by each number of the heads.
    heads, log_sums
        What ``online_attention(Q, K, V, scaled_by(scale), visible)`` returned, or what `merge` made of parts.
    scale
        The factor between inner product and score: ``1/sqrt(d_k)`` if left out, as in `scaled_dot_product`.

    Returns
    -------
    tuple
        The derivatives of the loss by Q, K and V.

    Raises
    ------
    TypeError, ValueError
        As `online_attention`; and if `d_heads` or `heads` is not shaped like the heads, or `log_sums` is not one
        number for each query.

    References
    ----------
    Dao and others, *FlashAttention*, appendix B.

    Examples
    --------
    >>> Q, K, V = np.zeros((1, 1)), np.ones((2, 1)), np.array([[1.0], [5.0]])
    >>> heads, log_sums = online_attention(Q, K, V)
    >>> [x.round(12).tolist() for x in online_backward(np.ones((1, 1)), Q, K, V, heads, log_sums)]
    [[[0.0]], [[0.0], [0.0]], [[0.5], [0.5]]]
    """
    convention.check_arrays(Q=Q, K=K, V=V)
    convention.check_one_width(Q, K)
    convention.check_one_length(K, V)
    convention.check_made(d_heads, heads, log_sums, Q, V)
    factor = Q.shape[convention.features] ** -0.5 if scale is None else check_scale(scale)
    score, block, dtype = scaled_by(factor), count("block", block), Q.dtype
    seen = convention.tiles(visible, convention.scores_shape(Q, K))
    d_heads, Q, K, V, heads = wide(d_heads, Q, K, V, heads)
    dQ, dK, dV = (np.zeros_like(x) for x in (Q, K, V))

    with unwarned():
        D = (d_heads * heads).sum(axis=convention.features, keepdims=True)
        for queries in slices(Q.shape[convention.tokens], block):
            q, d, mean = (x[..., queries, :] for x in (Q, d_heads, D))
            for keys in slices(K.shape[convention.tokens], block):
                k, v = (x[..., keys, :] for x in (K, V))
                scores = hide(score(q, k), seen(queries, keys))
                hidden = scores == -np.inf
                A = np.where(hidden, 0, np.exp(scores - log_sums[..., queries, None]))
                dA = d @ v.mT
                dS = np.where(hidden, 0, A * (dA - mean) * factor)
                dQ[..., queries, :] += weigh(k, dS, ~hidden)
                dK[..., keys, :] += weigh(q, dS.mT, ~hidden.mT)
                dV[..., keys, :] += weigh(d, A.mT, ~hidden.mT)
        dQ, dK, dV = (x.astype(dtype) for x in (dQ, dK, dV))
    return dQ, dK, dV


def multi_head(
    Q: Float[Array, "*b n d_query"],
    K: Float[Array, "*b m d_key"],
    V: Float[Array, "*b m d_value"],
    weights: RowWeights,
    score: Score = scaled_dot_product,
    visible: Bool[Array, "*#b_h #n #m"] | Mask | None = None,
    *,
    prepare: Prepare | None = None,
    positions: Int[Array, "*#b n"] | tuple[Int[Array, "*#b n"], Int[Array, "*#b m"]] | None = None,
) -> Trace:
    """Let every head attend in its own projection, and add up what the heads write.

    Computes :eq:`eq-multi-head-row`: projections :eq:`eq-projections-row`, heads :eq:`eq-head-row`,
    and their sum. The `Trace` holds every step. Give one X three times for self-attention, which is
    :eq:`eq-whole-layer-row` when the score is the default. A mask array has an axis for the heads before
    its last two, or none; one that could also be read as a mask for each sequence is refused. What is
    not finite, and what is masked, is treated as in `attention`.

    Parameters
    ----------
    prepare
        What happens to projected queries and keys before they are scored, as rotary positions or a
        normalisation: called with both and the positions, it returns both, in the same shapes. The
        `Trace` holds what it returned.
    positions
        The place of every token in its sequence, integers ``(n,)`` or ``(*b, n)``: 0, 1, 2 and so on
        if left out. Where the keys are other tokens than the queries, a pair: of the queries, of the keys.

    Raises
    ------
    TypeError, ValueError
        If an input is not floating or not as wide as its matrix reads it, types or leading axes differ,
        K and V differ in length, the weights are the other convention's, or `visible` does not fit.

    References
    ----------
    Vaswani and others, *Attention Is All You Need*, section 3.2.2; grouped heads: Ainslie and
    others, *GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, weights = rng.normal(size=(5, 6)), RowWeights.random(rng, d_model=6, h=2)
    >>> trace = multi_head(X, X, X, weights)
    >>> trace.attention.shape, trace.heads.shape, trace.output.shape
    ((2, 5, 5), (2, 5, 3), (5, 6))
    """
    convention.check_inputs(Q, K, V, weights)
    check_prepare(prepare)
    score = convention.checked(score)
    visible = convention.visible(visible, convention.scores_shape(Q, K, weights.h), batch=Q.shape[:-2])

    queries = project(weights.W_q, Q, weights.b_q)
    keys = project(weights.W_k, K, weights.b_k)
    queries, keys = convention.prepared(prepare, positions, (Q, K), (queries, keys))
    values = project(weights.W_v, V, weights.b_v)
    scores = hide(score(queries, weights.repeat_kv(keys)), visible)
    A = softmax(scores)
    heads = weigh(weights.repeat_kv(values), A, scores != -np.inf)
    return Trace(queries, keys, values, scores, A, heads, summed_output(weights, heads))


def project(
    W: Float[Array, "h d_in d"], X: Float[Array, "*b n d_in"], b: Float[Array, "h d"] | None
) -> Float[Array, "*b h n d"]:
    """Map each token by the matrix of every head, and add that head's bias.

    Computes one of the :eq:`eq-projections-row`, of what `multi_head` has checked.

    Examples
    --------
    >>> project(np.ones((2, 3, 1)), np.ones((5, 3)), b=None).shape
    (2, 5, 1)
    """
    dtype = X.dtype
    W, X = wide(W, X)
    with unwarned():  # masked positions may hold anything
        return _add_bias(X[..., None, :, :] @ W, b).astype(dtype)


def concatenated_output(weights: RowWeights, heads: Float[Array, "*b h n d_v"]) -> Float[Array, "*b n d_model"]:
    """Join each token's heads into one long vector and multiply it once by the whole W_o.

    Computes the left side of :eq:`eq-concat-is-sum-row`, that is :eq:`eq-output-blocks-row` times
    :eq:`eq-stack-row`, plus the output bias; number by number it is :eq:`eq-output-components-row`.

    Raises
    ------
    TypeError, ValueError
        If the heads are not a floating array ``(*b, h, n, d_v)`` that fits the weights.

    Examples
    --------
    >>> weights = RowWeights.random(np.random.default_rng(0), d_model=6, h=2)
    >>> concatenated_output(weights, np.ones((2, 5, 3))).shape
    (5, 6)
    """
    convention.check_heads(weights, heads)
    concat_heads = rearrange(heads, "... h n d_v -> ... n (h d_v)")
    W_o = rearrange(weights.W_o, "h d_v d_model -> (h d_v) d_model")
    W_o, concat_heads = wide(W_o, concat_heads)
    with unwarned():  # a head may be too large for its type
        return _add_bias(concat_heads @ W_o, weights.b_o).astype(heads.dtype)


def summed_output(weights: RowWeights, heads: Float[Array, "*b h n d_v"]) -> Float[Array, "*b n d_model"]:
    """Let each head write through its own block of W_o, and add what they write.

    Computes the right side of :eq:`eq-concat-is-sum-row`, plus the output bias. Raises what
    `concatenated_output` raises.

    Examples
    --------
    >>> weights = RowWeights.random(np.random.default_rng(0), d_model=6, h=2)
    >>> summed_output(weights, np.ones((2, 5, 3))).shape
    (5, 6)
    """
    convention.check_heads(weights, heads)
    W_o, terms = wide(weights.W_o, heads)
    with unwarned():  # a head may be too large for its type
        output = _add_bias((terms @ W_o).sum(axis=-3), weights.b_o)
        return output.astype(heads.dtype)


def residual_attention(
    X: Float[Array, "*b n d_model"],
    weights: RowWeights,
    score: Score = dot_product,
) -> Trace:
    """Add to each token what the heads write about it: the form of the mathematical papers.

    Computes :eq:`eq-residual-update-row`. Mind the default score: it is the plain inner product that
    those papers use, not the scaled one of `multi_head`. With it, this is :eq:`eq-residual-attention-row`,
    which they write :eq:`eq-papers-attention`.

    Raises
    ------
    TypeError, ValueError
        As `multi_head`; and if the output is not as wide as X, so that they cannot be added.

    Examples
    --------
    >>> weights = RowWeights.random(np.random.default_rng(0), d_model=6, h=2)
    >>> X = np.ones((5, 6))
    >>> trace = residual_attention(X, weights)
    >>> np.array_equal(trace.output, X + multi_head(X, X, X, weights, dot_product).output)
    True
    """
    trace = multi_head(X, X, X, weights, score)
    convention.check_residual(X, weights)
    return trace._replace(output=X + trace.output)


def _add_bias(tokens: Array, b: Array | None) -> Array:
    return tokens if b is None else tokens + b[..., None, :]
