"""Softmax of a tile of queries: without the row maximum, where a test says beforehand that this is right."""

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from ..reference import row
from .tiles import KeyTile, Tile
from .workspace import Buffer, Workspace

MAX_SCORE = 45.0  # in size: exponentials lie between 2^-65 and 2^65
MAX_NORMS_OF_VALUES = 2.0**-36, 2.0**36  # products of values with these, and their sums, are normal numbers


class Scoring(NamedTuple):
    """What a layer takes for a score and for its exponential."""

    score: row.Score
    scale: float
    exponential: Callable[..., Array]  # np.exp or np.exp2

    @property
    def query_factor(self) -> float:
        """What queries are multiplied by, so that the exponential of an inner product is what softmax needs."""
        return self.scale / math.log(self.exponential(1.0))


def fast_exponential() -> Callable[..., Array]:
    """Choose the faster of exp2 and exp: NumPy has a vector loop for exp2 only where there is AVX-512.

    Examples
    --------
    >>> fast_exponential() in (np.exp, np.exp2)
    True
    """
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    there = {*extensions.get("baseline", ()), *extensions.get("found", ())}
    return np.exp2 if there & {"AVX512_SKX", "X86_V4"} else np.exp


@np.errstate(all="ignore")
def max_norms(vectors: Array, keep: int = 0) -> Array:
    """The norm of the longest vector, for each key-value head.

    Parameters
    ----------
    vectors
        ``(g, ..., d)``.
    keep
        Another axis along which maxima are kept apart.

    Examples
    --------
    >>> max_norms(np.array([[[3.0, 4.0], [1.0, 1.0]], [[0.0, 2.0], [0.0, 0.0]]]))
    array([5., 2.])
    """
    squares = np.einsum("...d,...d->...", vectors, vectors)  # in the order of memory, unlike np.vecdot
    kept = 0, keep % vectors.ndim
    return np.sqrt(squares.max(axis=tuple(axis for axis in range(squares.ndim) if axis not in kept)))


@np.errstate(all="ignore")  # what is not finite is not within the bounds
def are_bounded(norms: Sequence[Array], scale: float) -> Array:
    """Whether softmax may do without the row maximum, judged before any score is computed.

    By Cauchy and Schwarz no score is larger than the scale times the norms of the longest query and the longest
    key. Where that is below a limit no exponential overflows or vanishes, nor does its product with a value.

    Parameters
    ----------
    norms
        The `max_norms` of queries, keys and values, for every key-value head.

    Examples
    --------
    >>> queries, keys, values = np.array([[3.0, 300.0, 3.0], [4.0, 4.0, 4.0], [1.0, 1.0, 1e30]])
    >>> are_bounded([queries, keys, values], scale=0.5)
    array([ True, False, False])
    """
    of_queries, of_keys, of_values = norms
    least, most = MAX_NORMS_OF_VALUES
    return (abs(scale) * of_queries * of_keys <= MAX_SCORE) & (least <= of_values) & (of_values <= most)


@np.errstate(all="ignore")
def are_exact(q: Array, k: Array) -> Array:
    """Whether inner products in float32 come out without rounding, as those of small integers do.

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
    q: Array,
    k: Array,
    v: Array,
    kv_tiles: list[KeyTile],
    exponential: Callable,
    workspace: Workspace,
    heads: Array,
) -> None:
    """Average the values by the exponentials of the scores as they are, a tile of keys after the other.

    Softmax subtracts the maximum of a row first, which protects from overflow. Where `are_bounded` says that
    there is none, the exponentials and the weighted values of one tile of keys are simply added to those of the
    next: there is no maximum that a later tile could change.

    Parameters
    ----------
    q
        ``(g, b, r, p, d_k)``: a tile of queries of the r heads that share a key-value head, contiguous and
        scaled so that ``exponential(q @ k)`` is what softmax needs.
    k, v
        ``(g, b, m, d_k)`` and ``(g, b, m, d_v)``.
    heads
        ``(g, b, r, p, d_v)``, where the averages are written to.

    References
    ----------
    Milakov and Gimelshein, *Online normalizer calculation for softmax* (the sum carried along from tile to
    tile); Rabe and Staats, *Self-attention Does Not Need O(n²) Memory* (the average carried along with it, and
    divided last); Dao and others, *FlashAttention* (tiles as large as a cache). All three carry a running
    maximum too, which the bound makes needless.

    Examples
    --------
    >>> q, k, v = np.random.default_rng(0).normal(size=(3, 1, 1, 4, 2))
    >>> kv_tiles = [KeyTile(slice(0, 3), slice(0, 0), None), KeyTile(slice(3, 4), slice(0, 0), None)]
    >>> heads = np.empty((1, 1, 1, 4, 2))
    >>> unshifted_attention(q[:, :, None], k, v, kv_tiles, np.exp, Workspace(float), heads)
    >>> np.allclose(heads[:, :, 0], row.attention(q, k, v, score=row.dot_product))
    True
    """
    if not kv_tiles:
        heads[...] = 0
        return
    weighted, total = (
        workspace(Buffer.WEIGHTED, *q.shape[:-1], v.shape[-1]),
        workspace(Buffer.TOTAL, *q.shape[:-1], 1),
    )
    # Heads that share keys, one below the other: their queries are rows of one product.
    stacked, stacked_total = (x.reshape(*q.shape[:2], -1, x.shape[-1]) for x in (weighted, total))
    for number, tile in enumerate(kv_tiles):
        exponentials = tile_exponentials(q, k, tile, exponential, workspace)
        values, ones = v[..., tile.keys, :], workspace.ones(exponentials.shape[-1])
        if number == 0:
            np.matmul(exponentials, ones, out=stacked_total)  # faster than exponentials.sum(axis=-1)
            np.matmul(exponentials, values, out=stacked)
        else:
            stacked_total += np.matmul(exponentials, ones, out=workspace(Buffer.MORE_TOTAL, *stacked_total.shape))
            stacked += np.matmul(exponentials, values, out=workspace(Buffer.MORE_WEIGHTED, *stacked.shape))
    total[total == 0] = 1  # of a query that sees nothing
    np.divide(weighted, total, out=heads)  # p d_v quotients, not p m


def tile_exponentials(q: Array, k: Array, tile: KeyTile, exponential: Callable, workspace: Workspace) -> Array:
    """The exponentials (g, b, r p, q) of the scores of a tile, zero where a key is hidden."""
    keys = k[..., tile.keys, :]
    queries = q.reshape(*q.shape[:2], -1, q.shape[-1])
    scores = np.matmul(queries, keys.mT, out=workspace(Buffer.SCORES, *queries.shape[:-1], keys.shape[-2]))
    exponentials = exponential(scores, out=scores)
    if tile.visible is not None:
        partial = exponentials.reshape(*q.shape[:-1], -1)[..., tile.partial]
        np.multiply(partial, tile.visible, out=partial)
    return exponentials


def unshifted_softmax(q: Array, k: Array, tile: Tile, exponential: Callable, workspace: Workspace) -> Array:
    """The attention (g, b, r p, q) of queries to all keys from the first to the last that they see."""
    whole = KeyTile(tile.keys, slice(0, 0), None)
    attention = tile_exponentials(q, k, whole, exponential, workspace)
    by_head, end = attention.reshape(*q.shape[:-1], -1), 0
    for keys, partial, visible in tile.kv_tiles:
        start = keys.start - tile.keys.start
        by_head[..., end:start] = 0  # what lies between the tiles is hidden
        end = keys.stop - tile.keys.start
        if visible is not None:
            some = by_head[..., start + partial.start : start + partial.stop]
            np.multiply(some, visible, out=some)
    ones = workspace.ones(attention.shape[-1])
    total = np.matmul(attention, ones, out=workspace(Buffer.TOTAL, *attention.shape[:-1], 1))
    total[total == 0] = 1  # of a query that sees nothing
    attention /= total
    return attention


def safe_attention(
    q: Array, k: Array, v: Array, score: row.Score, visible: Array, bias: Array | None
) -> tuple[Array, Array, Array]:
    """Scores, attention and averages as the reference makes them, with the row maximum subtracted.

    Parameters
    ----------
    q
        ``(g, b, r, p, d_k)``, of the r heads that share a key-value head.
    visible, bias
        ``(g, b, r, p, q)``, or what broadcasts to it.
    """
    shape = (*q.shape[:-1], k.shape[-2])
    stacked = (*q.shape[:2], -1)  # the heads that share keys, one below the other
    some_hidden = None if visible.all() else np.broadcast_to(visible, shape).reshape(*stacked, shape[-1])
    bias = None if bias is None else np.broadcast_to(bias, shape).reshape(*stacked, shape[-1])

    with np.errstate(over="ignore", invalid="ignore"):  # masked positions may hold NaN
        scores = score(q.reshape(*stacked, q.shape[-1]), k)
        if bias is not None:
            scores = np.where(np.isneginf(bias), -np.inf, scores + bias)
        scores = row.hide(scores, some_hidden)
    attention = row.softmax(scores)
    heads = row.weigh(v, attention, scores != -np.inf)
    scores, attention, heads = (x.reshape(*q.shape[:-1], -1) for x in (scores, attention, heads))
    return scores, attention, heads
