"""Attention of a tile of queries: with the scores as they are, where a test says beforehand that this is right."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from ..reference import row
from .tiles import KeyTile, Tile

LIMIT = 45.0  # for scores: their exponentials lie between 2^-65 and 2^65
VALUES = 2.0**-36, 2.0**36  # for the longest value: its products with these, and their sums, are normal numbers


class Base(NamedTuple):
    """An exponential, and the factor that turns a natural exponent into one of its own."""

    power: Callable[..., Array]
    factor: float


EXP, EXP2 = Base(np.exp, 1.0), Base(np.exp2, 1 / math.log(2))


def fast_base() -> Base:
    """Choose the faster of exp2 and exp: NumPy has a vector loop for exp2 only where there is AVX-512.

    Examples
    --------
    >>> fast_base() in (EXP, EXP2)
    True
    """
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    there = {*extensions.get("baseline", ()), *extensions.get("found", ())}
    return EXP2 if there & {"AVX512_SKX", "X86_V4"} else EXP


class Room:
    """Memory for the tiles of one thread, one after the other: asking for it anew costs more than an exponential.

    Examples
    --------
    >>> room = Room(np.float32)
    >>> first, second = room("scores", 2, 3), room("scores", 3, 2)
    >>> np.shares_memory(first, second), np.shares_memory(first, room("sums", 2, 3))
    (True, False)
    """

    def __init__(self, dtype: np.dtype | type):
        self._dtype = dtype
        self._arrays: dict[str, Array] = {}
        self._ones = np.ones((0, 1), dtype)

    def __call__(self, name: str, *shape: int) -> Array:
        size = math.prod(shape)
        if name not in self._arrays or self._arrays[name].size < size:
            self._arrays[name] = np.empty(size, self._dtype)
        return self._arrays[name][:size].reshape(shape)

    def ones(self, length: int) -> Array:
        """A column of ones."""
        if len(self._ones) < length:
            self._ones = np.ones((length, 1), self._dtype)
        return self._ones[:length]

    def copy(self, name: str, array: Array, factor: float = 1.0) -> Array:
        """A copy of an array, side by side in memory, times a factor."""
        return np.multiply(array, factor, out=self(name, *array.shape))


@np.errstate(all="ignore")
def longest(*arrays: Array) -> list[Array]:
    """The length of the longest vector, for each key-value head.

    Parameters
    ----------
    arrays
        Vectors ``(g, ..., d)``.

    Examples
    --------
    >>> longest(np.array([[[3.0, 4.0], [1.0, 1.0]], [[0.0, 2.0], [0.0, 0.0]]]))
    [array([5., 2.])]
    """
    return [np.sqrt(np.vecdot(x, x).max(axis=tuple(range(1, x.ndim - 1)))) for x in arrays]


@np.errstate(all="ignore")  # what is not finite is not within the bounds
def are_bounded(longest_of_each: Sequence[Array], scale: float) -> Array:
    """Whether softmax may do without taking the largest score off, judged by the lengths of the vectors alone.

    No score is larger than the scale times the length of the longest query times that of the longest key. Where
    that is below a limit no exponential overflows or vanishes, nor does its product with a value.

    Parameters
    ----------
    longest_of_each
        Of the queries, the keys and the values, in every key-value head.

    Examples
    --------
    >>> queries, keys, values = np.array([[3.0, 300.0, 3.0], [4.0, 4.0, 4.0], [1.0, 1.0, 1e30]])
    >>> are_bounded([queries, keys, values], scale=0.5)
    array([ True, False, False])
    """
    longest_q, longest_k, longest_v = longest_of_each
    return (abs(scale) * longest_q * longest_k <= LIMIT) & (VALUES[0] <= longest_v) & (longest_v <= VALUES[1])


@np.errstate(all="ignore")
def are_exact(q: Array, k: Array) -> Array:
    """Whether inner products of single precision come out without rounding, as those of small integers do.

    A few of the first sequence are tried for each key-value head. Exact scores deserve exact exponents, and a
    scale folded into the queries would round them.

    Parameters
    ----------
    q, k
        ``(g, b, r, n, d_k)`` and ``(g, b, m, d_k)``.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> q, k = rng.integers(-9, 9, (2, 3, 1, 5, 8)).astype(np.float32)
    >>> q[1] *= np.pi
    >>> are_exact(q[:, :, None], k)
    array([ True, False,  True])
    """
    if q.dtype != np.float32:
        return np.zeros(len(q), dtype=bool)
    some_q, some_k = (x[:, 0, :: x.shape[-2] // 3 + 1] for x in (q[:, :, 0], k))
    exact = some_q.astype(float) @ some_k.mT.astype(float)
    return (some_q @ some_k.mT == exact).all(axis=(1, 2))


def unshifted_attention(
    q: Array, k: Array, v: Array, kv_tiles: list[KeyTile], power: Callable, room: Room, heads: Array
) -> None:
    """Average the values by the exponentials of the scores as they are, a tile of keys after the other.

    Softmax takes the largest score off first, which costs two passes over the scores and protects from
    overflow. Where `is_bounded` there is none.

    Parameters
    ----------
    q
        ``(g, b, r, p, d_k)``: a tile of queries of the r heads that share a key-value head, side by side in
        memory and scaled so that ``power(q @ k)`` are the exponentials.
    k, v
        ``(g, b, m, d_k)`` and ``(g, b, m, d_v)``.
    heads
        ``(g, b, r, p, d_v)``, where the averages are written to.

    References
    ----------
    Rabe and Staats, *Self-attention Does Not Need O(n^2) Memory*; Dao and others, *FlashAttention*.
    """
    if not kv_tiles:
        heads[...] = 0
        return
    averages, sums = room("averages", *q.shape[:-1], v.shape[-1]), room("sums", *q.shape[:-1], 1)
    below = averages.reshape(*q.shape[:2], -1, v.shape[-1])  # the heads that share keys, one below the other
    for number, tile in enumerate(kv_tiles):
        weights = exponentials(q, k, tile, power, room)
        values, ones = v[..., tile.keys, :], room.ones(weights.shape[-1])
        if number == 0:
            np.matmul(weights, ones, out=sums.reshape(*below.shape[:-1], 1))  # faster than weights.sum(axis=-1)
            np.matmul(weights, values, out=below)
        else:
            more = room("more sums", *below.shape[:-1], 1)
            sums += np.matmul(weights, ones, out=more).reshape(sums.shape)
            below += np.matmul(weights, values, out=room("more averages", *below.shape))
    sums[sums == 0] = 1  # of a query that sees nothing
    np.divide(averages, sums, out=heads)  # the few averages, not the many weights


def exponentials(q: Array, k: Array, tile: KeyTile, power: Callable, room: Room) -> Array:
    """The exponentials (g, b, r p, q) of the scores of a tile, zero where a key is hidden."""
    keys = k[..., tile.keys, :]
    queries = q.reshape(*q.shape[:2], -1, q.shape[-1])
    weights = np.matmul(queries, keys.mT, out=room("scores", *queries.shape[:-1], keys.shape[-2]))
    power(weights, out=weights)
    if tile.seen is not None:
        partly = weights.reshape(*q.shape[:-1], -1)[..., tile.partly]
        np.multiply(partly, tile.seen, out=partly)
    return weights


def unshifted_weights(q: Array, k: Array, tile: Tile, power: Callable, room: Room) -> Array:
    """The attention weights (g, b, r p, q) of queries for all keys from the first to the last that they see."""
    whole = KeyTile(tile.keys, slice(0, 0), None)
    weights = exponentials(q, k, whole, power, room)
    by_head, end = weights.reshape(*q.shape[:-1], -1), 0
    for keys, partly, seen in tile.kv_tiles:
        start = keys.start - tile.keys.start
        by_head[..., end:start] = 0  # what lies between the tiles is hidden
        end = keys.stop - tile.keys.start
        if seen is not None:
            some = by_head[..., start + partly.start : start + partly.stop]
            np.multiply(some, seen, out=some)
    sums = np.matmul(weights, room.ones(weights.shape[-1]), out=room("sums", *weights.shape[:-1], 1))
    sums[sums == 0] = 1  # of a query that sees nothing
    weights /= sums
    return weights


def safe_attention(
    q: Array, k: Array, v: Array, score: row.Score, visible: Array, bias: Array | None
) -> tuple[Array, Array, Array]:
    """Scores, attention weights and averages as the reference makes them, with the largest score taken off.

    Parameters
    ----------
    q
        ``(g, b, r, p, d_k)``, of the r heads that share a key-value head.
    visible, bias
        ``(g, b, r, p, q)``, or what broadcasts to it.
    """
    shape = (*q.shape[:-1], k.shape[-2])
    below = (*q.shape[:2], -1)  # the heads that share keys, one below the other
    seen = None if visible.all() else np.broadcast_to(visible, shape).reshape(*below, shape[-1])
    added = None if bias is None else np.broadcast_to(bias, shape).reshape(*below, shape[-1])

    def score_and_bias(Q: Array, K: Array) -> Array:
        scores = score(Q, K)
        return scores if added is None else np.where(np.isneginf(added), -np.inf, scores + added)

    made = row.attend(q.reshape(*below, q.shape[-1]), k, v, score_and_bias, seen, has_heads=False)
    scores, attention, heads = (x.reshape(*q.shape[:-1], -1) for x in made)
    return scores, attention, heads
