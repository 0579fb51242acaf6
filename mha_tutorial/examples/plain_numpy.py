"""Attention as people write it in NumPy, right: `examples.faults` breaks it, one line at a time."""

import numpy as np


def attention(q, k, v, visible=None):
    """Give each query of each head the average of the values, ``(b, h, n, d)``.

    Examples
    --------
    >>> q, k, v = np.zeros((1, 1, 1, 2)), np.ones((1, 1, 2, 2)), np.array([[[[1.0], [3.0]]]])
    >>> attention(q, k, v).tolist()
    [[[[2.0]]]]
    """
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if visible is not None:
        scores = np.where(visible, scores, -np.inf)
    scores = scores - scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores)
    weights = weights / weights.sum(axis=-1, keepdims=True)
    return weights @ v


def causal_attention(q, k, v):
    """The same for a decoder: a query sees the keys up to its own, the last of them up to the last key.

    Examples
    --------
    >>> causal_attention(np.zeros((1, 1, 2, 2)), np.ones((1, 1, 2, 2)), np.eye(2)[None, None]).tolist()
    [[[[1.0, 0.0], [0.5, 0.5]]]]
    """
    n, m = q.shape[-2], k.shape[-2]
    visible = np.tri(n, m, m - n, dtype=bool)
    return attention(q, k, v, visible)


def rotate(x, start=0):
    """Turn pairs of features half a head apart by angles that grow with the place.

    Examples
    --------
    >>> rotate(np.array([[1.0, 0.0], [1.0, 0.0]])).round(3).tolist()
    [[1.0, 0.0], [0.54, 0.841]]
    """
    half = x.shape[-1] // 2
    places = np.arange(start, start + x.shape[-2])
    angles = places[:, None] * 10000.0 ** -(np.arange(half) / half)
    first, second = x[..., :half], x[..., half:]
    cos, sin = np.cos(angles), np.sin(angles)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def rotary_attention(q, k, v, visible=None):
    """Attention of queries and keys that were turned by their places.

    Examples
    --------
    >>> rotary_attention(np.ones((1, 1, 1, 2)), np.ones((1, 1, 1, 2)), np.full((1, 1, 1, 2), 5.0)).tolist()
    [[[[5.0, 5.0]]]]
    """
    q, k = rotate(q), rotate(k)
    return attention(q, k, v, visible)


def step(q, k, v, cache):
    """One more token: attend to what the cache holds and to the token itself; return the larger cache.

    Examples
    --------
    >>> token = np.ones((1, 1, 1, 2)), np.ones((1, 1, 1, 2)), np.full((1, 1, 1, 2), 5.0)
    >>> _, cache = step(*token, None)
    >>> output, cache = step(*token, cache)
    >>> output.round(12).tolist(), cache[0].shape
    ([[[[5.0, 5.0]]]], (1, 1, 2, 2))
    """
    past = 0 if cache is None else cache[0].shape[-2]
    q, k = rotate(q, past), rotate(k, past)
    if cache is not None:
        k, v = (np.concatenate(pair, axis=-2) for pair in zip(cache, (k, v), strict=True))
    return attention(q, k, v), (k, v)


def blockwise(q, k, v, visible=None, size=32):
    """Attention in one pass over blocks of keys, with a running maximum and a running sum.

    Examples
    --------
    >>> q, k, v = np.zeros((1, 1, 1, 2)), np.ones((1, 1, 2, 2)), np.array([[[[1.0], [3.0]]]])
    >>> blockwise(q, k, v, size=1).tolist()
    [[[[2.0]]]]
    """
    n, m = q.shape[-2], k.shape[-2]
    largest = np.full((*q.shape[:-1], 1), -np.inf)
    total, weighted = np.zeros_like(largest), np.zeros((*q.shape[:-1], v.shape[-1]))
    visible = np.ones((n, m), dtype=bool) if visible is None else visible
    for start in range(0, m, size):
        block = slice(start, start + size)
        scores = q @ k[..., block, :].mT / q.shape[-1] ** 0.5
        scores = np.where(visible[..., block], scores, -np.inf)
        higher = np.maximum(largest, scores.max(axis=-1, keepdims=True))
        finite = np.where(higher == -np.inf, 0, higher)
        shrink = np.exp(largest - finite)
        weights = np.exp(scores - finite)
        total = total * shrink + weights.sum(axis=-1, keepdims=True)
        weighted = weighted * shrink + weights @ v[..., block, :]
        largest = higher
    return weighted / np.where(total == 0, 1, total)
