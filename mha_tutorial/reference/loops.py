"""Multi-head attention in scalar loops: the specification that the array code is held to.

Tokens are columns, as in `column`: ``X[c, i]`` is number ``c`` of token ``i``. Nothing here is
vectorised and nothing is clever: every sum of the definition is a loop over one letter.
"""

import math
from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from .._checks import COLUMNS as convention
from ..masks import Mask
from ..trace import Trace
from ..weights import ColumnWeights


def scaled_dot_product(query: Float[Array, " d_k"], key: Float[Array, " d_k"]) -> float:
    """Score one key for one query: the sum of the products of their numbers, over the root of the width.

    Examples
    --------
    >>> scaled_dot_product(np.array([1.0, 2.0, 0.0, 1.0]), np.array([3.0, 1.0, 5.0, 1.0]))
    3.0
    """
    total = 0.0
    for q, k in zip(query, key, strict=True):
        total += float(q * k)
    return total / math.sqrt(len(query))


def multi_head(
    Q: Float[Array, "*b d_query n"],
    K: Float[Array, "*b d_key m"],
    V: Float[Array, "*b d_value m"],
    weights: ColumnWeights,
    score: Callable[[Array, Array], float] = scaled_dot_product,
    visible: Bool[Array, "*#b_h #m #n"] | Mask | None = None,
) -> Trace:
    """Let every head attend in its own projection, and add up what the heads write.

    The arguments are those of `column.multi_head`, except that `score` takes one query and one key,
    and so are the errors. Computes :eq:`eq-multi-head` with nothing but scalars.

    Examples
    --------
    >>> from mha_tutorial.reference import column
    >>> X = np.random.default_rng(0).normal(size=(6, 5))
    >>> weights = ColumnWeights.random(np.random.default_rng(1), d_model=6, h=2)
    >>> np.allclose(multi_head(X, X, X, weights).output, column.multi_head(X, X, X, weights).output)
    True
    """
    convention.check_inputs(Q, K, V, weights)
    batch, n, m = Q.shape[:-2], Q.shape[-1], K.shape[-1]
    scores_shape = (*batch, weights.h, m, n)
    seen = convention.visible(visible, scores_shape, heads=True)
    seen = np.broadcast_to(True if seen is None else seen, scores_shape)
    traces = [_sequence(Q[b], K[b], V[b], weights, score, seen[b]) for b in np.ndindex(batch)]
    return Trace(*(np.array(steps).reshape(*batch, *steps[0].shape) for steps in zip(*traces, strict=True)))


def _sequence(Q: Array, K: Array, V: Array, weights: ColumnWeights, score, seen: Array) -> Trace:
    h, d_v, n, m = weights.h, weights.d_v, Q.shape[1], K.shape[1]
    queries = _project(weights.W_q, Q, weights.b_q)
    keys = _project(weights.W_k, K, weights.b_k)
    values = _project(weights.W_v, V, weights.b_v)
    scores = np.full((h, m, n), -np.inf)
    attention = np.zeros((h, m, n))
    heads = np.zeros((h, d_v, n))
    output = np.zeros((weights.d_model, n))
    for head in range(h):
        shared = head // weights.group
        for i in range(n):
            for j in range(m):
                if seen[head, j, i]:
                    scores[head, j, i] = score(queries[head, :, i], keys[shared, :, j])
            attention[head, :, i] = _softmax(scores[head, :, i])
            for c in range(d_v):
                for j in range(m):
                    if seen[head, j, i]:
                        heads[head, c, i] += attention[head, j, i] * values[shared, c, j]
    for i in range(n):
        for d in range(weights.d_model):
            output[d, i] = 0.0 if weights.b_o is None else weights.b_o[d]
            for head in range(h):
                for c in range(d_v):
                    output[d, i] += weights.W_o[head, d, c] * heads[head, c, i]
    return Trace(queries, keys, values, scores, attention, heads, output)


def _project(W: Array, X: Array, b: Array | None) -> Array:
    projected = np.zeros((W.shape[0], W.shape[1], X.shape[1]))
    for head, c, i in np.ndindex(projected.shape):
        projected[head, c, i] = 0.0 if b is None else b[head, c]
        for d in range(X.shape[0]):
            projected[head, c, i] += W[head, c, d] * X[d, i]
    return projected


def _softmax(scores: Array) -> Array:
    largest = max(scores, default=-math.inf)
    if largest == -math.inf:
        return np.zeros(len(scores))
    exponentials = [math.exp(score - largest) for score in scores]
    return np.array(exponentials) / sum(exponentials)
