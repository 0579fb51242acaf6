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

    What is not finite gives NaN, and so does a score too large for the type, of 32 bits or more.

    Examples
    --------
    >>> scaled_dot_product(np.array([1.0, 2.0, 0.0, 1.0]), np.array([3.0, 1.0, 5.0, 1.0]))
    3.0
    """
    total = 0.0
    for q, k in zip(query, key, strict=True):
        total += float(q) * float(k)
    score = total / math.sqrt(len(query))
    largest = float(np.finfo(np.promote_types(query.dtype, np.float32)).max)
    return score if abs(score) <= largest else math.nan


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
    batch, n, m, h, h_kv = Q.shape[:-2], Q.shape[-1], K.shape[-1], weights.h, weights.h_kv
    seen = convention.visible(visible, (*batch, h, m, n), batch)
    seen = np.broadcast_to(True if seen is None else seen, (*batch, h, m, n))
    wide = np.promote_types(Q.dtype, np.float32)
    trace = Trace(
        queries=np.zeros((*batch, h, weights.d_k, n), Q.dtype),
        keys=np.zeros((*batch, h_kv, weights.d_k, m), Q.dtype),
        values=np.zeros((*batch, h_kv, weights.d_v, m), Q.dtype),
        scores=np.full((*batch, h, m, n), -np.inf, wide),
        attention=np.zeros((*batch, h, m, n), wide),
        heads=np.zeros((*batch, h, weights.d_v, n), Q.dtype),
        output=np.zeros((*batch, weights.d_model, n), Q.dtype),
    )
    with np.errstate(over="ignore"):  # a number too large for the type becomes infinite
        for b in np.ndindex(batch):
            one = Trace(*(step[b] for step in trace))
            _project(weights.W_q, Q[b], weights.b_q, one.queries)
            _project(weights.W_k, K[b], weights.b_k, one.keys)
            _project(weights.W_v, V[b], weights.b_v, one.values)
            for head in range(h):
                _attend(one, head, head // weights.group_size, score, seen[b][head])
            _write(weights, one)
    return trace


def _project(W: Array, X: Array, b: Array | None, projected: Array) -> None:
    for head, c, i in np.ndindex(projected.shape):
        total = 0.0 if b is None else float(b[head, c])
        for d in range(X.shape[0]):
            total += float(W[head, c, d]) * float(X[d, i])
        projected[head, c, i] = total


def _attend(trace: Trace, head: int, shared: int, score, seen: Array) -> None:
    """Fill in what one head computes; it reads the keys and values of the key-value head `shared`."""
    m, n = seen.shape
    scores, attention, heads = trace.scores[head], trace.attention[head], trace.heads[head]
    for i in range(n):
        for j in range(m):
            if seen[j, i]:
                scores[j, i] = score(trace.queries[head, :, i], trace.keys[shared, :, j])
        attention[:, i] = _softmax([float(scores[j, i]) for j in range(m)])
        for c in range(len(heads)):
            total = 0.0
            for j in range(m):
                if scores[j, i] != -math.inf:
                    value = float(trace.values[shared, c, j])
                    total += float(attention[j, i]) * (value if math.isfinite(value) else math.nan)
            heads[c, i] = total


def _softmax(scores: list[float]) -> list[float]:
    if any(math.isnan(score) for score in scores):
        return [math.nan] * len(scores)
    largest = max(scores, default=-math.inf)
    if largest == -math.inf:
        return [0.0] * len(scores)
    exponentials = [math.exp(score - largest) for score in scores]
    return [exponential / sum(exponentials) for exponential in exponentials]


def _write(weights: ColumnWeights, trace: Trace) -> None:
    d_model, n = trace.output.shape
    for d in range(d_model):
        for i in range(n):
            total = 0.0 if weights.b_o is None else float(weights.b_o[d])
            for head in range(weights.h):
                for c in range(weights.d_v):
                    total += float(weights.W_o[head, d, c]) * float(trace.heads[head, c, i])
            trace.output[d, i] = total
