"""Attention and its gradients, one query at a time over the keys that it sees: the oracle for input of every kind.

It knows what is hidden by leaving it out, so masked positions cannot matter; and it computes in `numpy.longdouble`,
from scores made in that type too.
"""

from typing import NamedTuple

import numpy as np

WIDE = np.longdouble


class Outcome(NamedTuple):
    heads: np.ndarray
    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray
    d_bias: np.ndarray | None


def attend(q, k, v, d_heads, seen=None, bias=None, scale=None) -> Outcome:
    """The heads, and the gradients of their inner product with `d_heads`.

    Queries are (b, h, n, d_k), keys (b, h_kv, m, d_k); `seen` and `bias` broadcast to (b, h, n, m).
    """
    (b, h, n, d_k), (_, h_kv, m, _) = q.shape, k.shape
    scale = WIDE(d_k) ** WIDE(-0.5) if scale is None else WIDE(scale)
    shape = b, h, n, m
    own_bias = bias
    q, k, v, d_heads = (x.astype(WIDE) for x in (q, k, v, d_heads))
    seen = np.ones(shape, dtype=bool) if seen is None else np.broadcast_to(seen, shape)
    bias = np.zeros(shape, dtype=WIDE) if bias is None else np.broadcast_to(bias.astype(WIDE), shape)
    seen = seen & ~np.isneginf(bias)
    heads, dq, d_bias = np.zeros((b, h, n, v.shape[-1]), WIDE), np.zeros_like(q), np.zeros(shape, WIDE)
    dk, dv = np.zeros_like(k), np.zeros_like(v)
    with np.errstate(invalid="ignore", over="ignore"):
        for entry, head, i in np.ndindex(b, h, n):
            keys = np.flatnonzero(seen[entry, head, i])
            group = head // (h // h_kv)
            if len(keys) == 0:
                continue
            query, K, V = q[entry, head, i], k[entry, group, keys], v[entry, group, keys]
            scores = (K @ query) * scale + bias[entry, head, i, keys]
            bad = ~np.isfinite(K).all(-1) | ~np.isfinite(query).all() | ~np.isfinite(scores)
            scores = np.where(bad, np.nan, scores)
            V = np.where(np.isfinite(V), V, np.nan)
            attention = np.exp(scores - scores.max())
            attention = attention / attention.sum()
            heads[entry, head, i] = attention @ V
            g = d_heads[entry, head, i]
            d_attention = V @ g
            d_scores = attention * (d_attention - attention @ d_attention)
            dq[entry, head, i] = d_scores @ K * scale
            dk[entry, group, keys] += np.outer(d_scores, query) * scale
            dv[entry, group, keys] += np.outer(attention, g)
            d_bias[entry, head, i, keys] = d_scores
    return Outcome(heads, dq, dk, dv, None if own_bias is None else _sum_to(d_bias, own_bias.shape))


def _sum_to(x, shape):
    shape = (1,) * (x.ndim - len(shape)) + shape, shape
    axes = tuple(axis for axis, size in enumerate(shape[0]) if size == 1)
    return x.sum(axis=axes, keepdims=True).reshape(shape[1])
