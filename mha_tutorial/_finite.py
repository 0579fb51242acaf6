"""What becomes of 16-bit numbers, of scores too large for their type and of what is not finite.

Scores, softmax and sums are computed in 32 bits or more. A score that its type cannot hold is NaN, as is one of a
query or key that is not finite: minus infinity among the scores therefore always means hidden, by a mask, by a bias
or by a score of one's own.
"""

import numpy as np
from numpy import ndarray as Array


def wide(*arrays: Array) -> list[Array]:
    """Cast arrays to the widest of their types and 32 bits.

    Examples
    --------
    >>> [x.dtype.name for x in wide(np.ones(2, np.float16), np.ones(3, np.float16))]
    ['float32', 'float32']
    """
    if len({array.dtype for array in arrays}) == 1 and arrays[0].itemsize >= 4:
        return list(arrays)  # at once: a small layer would notice the rest
    dtype = np.result_type(np.float32, *arrays)
    return [array.astype(dtype, copy=False) for array in arrays]


def unwarned() -> np.errstate:
    """Say nothing, within a ``with`` block, of sums that overflow or are not numbers.

    Masked positions may hold anything, and what is not finite is dealt with afterwards.

    Examples
    --------
    >>> with unwarned():
    ...     np.array([1e308, np.inf, 1.0]) * 10 - np.array([0, np.inf, 0])
    array([inf, nan, 10.])
    """
    return np.errstate(over="ignore", invalid="ignore", divide="ignore")


def bound(Q: Array, K: Array, features: int) -> float:
    """Return what no inner product of a query and a key exceeds; infinity or NaN if one of them is not finite.

    Examples
    --------
    >>> bound(np.array([[1.0, -2.0]]), np.array([[3.0, 0.0]]), features=-1)
    12.0
    """
    return Q.shape[features] * _largest(Q) * _largest(K)


def settle(scores: Array, Q: Array, K: Array, features: int, bound: float = np.inf) -> Array:
    """Make NaN of scores that are not finite, and of those of queries and keys that are not.

    Nothing is looked at if a `bound` of the scores says that all of them are finite, and so are Q and K.

    Examples
    --------
    >>> settle(np.array([[1.0, -np.inf]]), np.array([[1.0]]), np.array([[2.0], [3.0]]), features=-1)
    array([[ 1., nan]])
    """
    if bound < np.finfo(scores.dtype).max / 2:  # half: sums are rounded
        return scores
    queries, keys = (np.isfinite(x).all(axis=features, keepdims=True) for x in (Q, K))
    return np.where(queries & keys.mT & np.isfinite(scores), scores, np.nan)


def add_bias(scores: Array, bias: Array) -> Array:
    """Add a bias in the wider of both types; minus infinity hides, whatever the score is, and overflow is NaN.

    A bias of nothing but zeros and minus infinity leaves the other scores as they are, type included.

    Examples
    --------
    >>> add_bias(np.array([[np.nan, -1e308, 1.0]]), np.array([[-np.inf, -1.7e308, 2.0]]))
    array([[-inf,  nan,   3.]])
    """
    hides = np.isneginf(bias)
    added = np.where(hides, 0, bias)
    largest = _largest(added)
    if largest == 0:
        return np.where(hides, -np.inf, scores)
    scores, added = wide(scores, added)
    with unwarned():
        total = np.where(hides, -np.inf, scores + added)
    limit = np.finfo(total.dtype)
    if largest < limit.max * limit.eps / 8:  # less than half a step of the largest number: no sum overflows
        return total
    return np.where(np.isinf(total) & np.isfinite(scores) & ~hides, np.nan, total)


def _largest(array: Array) -> float:
    return float(np.abs(array).max(initial=0))
