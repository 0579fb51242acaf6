"""Multi-head attention in NumPy for long inputs: scores live a tile at a time, and heads share the cores."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from itertools import product
from typing import NamedTuple

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from ._checks import ROWS as convention
from .folds import drop_key_bias, fold_scale, fold_value_bias
from .layer import MultiHeadAttention
from .masks import Mask
from .reference import row
from .threads import ONE_BLAS_THREAD, spread
from .weights import ColumnWeights, RowWeights

TOKENS = 1024  # projected at a time: what one head makes of them stays in a core's cache
SCORES = 2**18  # in a tile: a mebibyte of float32
SIDE = 512  # of a tile, at most
MASKED_SIDE = 256  # the smaller the tiles, the more of what a mask hides can be skipped
TINY = 64  # so few tokens are not worth a thread

SUMS = 2.0**-60, 2.0**60  # Between these a query's exponentials may add up without the largest score taken off,
RESULTS = 2.0**-100, 2.0**100  # if the largest number that they weigh out, before it is divided, lies here.

Exponential = Callable[..., Array]
Sight = Callable[[slice, slice], Array]  # some queries, some keys -> who sees whom, (h_kv, group, b, p, q)


class Tile(NamedTuple):
    """Some queries, and piece by piece the keys that they meet, with what is visible (None: all of it)."""

    queries: slice
    pieces: list[tuple[slice, Array | None]]


class FastMultiHeadAttention:
    """The layer that `MultiHeadAttention` is, without its n×m arrays, and on several cores.

    It has one answer, the output; ``layer.plain.trace`` shows the steps. The score is the scaled dot
    product. The weights are folded and copied once, when the layer is made. What the fast way is not made
    for goes to `plain`: floats of other than 32 or 64 bits, and inputs without a token.

    With threadpoolctl installed the heads are spread over threads, as many as the matrix products would
    have used by themselves. Without it those use them, and the output is the same.

    Parameters
    ----------
    weights
        In either convention.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> layer = FastMultiHeadAttention(RowWeights.random(rng, d_model=512, h=8))
    >>> x = rng.normal(size=(2, 100, 512))
    >>> np.allclose(layer(x), layer.plain(x))
    True
    """

    def __init__(self, weights: RowWeights | ColumnWeights):
        self.plain = MultiHeadAttention(weights)
        given, self._exponential = self.plain.weights, fast_exponential()
        folded = fold_value_bias(drop_key_bias(fold_scale(given, self._exponential)))
        # One head's matrix lies in one piece. Query heads that share keys have an axis of their own.
        self._W_q = np.ascontiguousarray(rearrange(folded.W_q, "(g r) d_in d -> g r d_in d", g=given.h_kv))
        self._W_k, self._W_v = (np.ascontiguousarray(W[:, None]) for W in (folded.W_k, folded.W_v))
        self._W_o = np.ascontiguousarray(rearrange(folded.W_o, "h d_v d_model -> (h d_v) d_model"))
        self._b_q = None if folded.b_q is None else rearrange(folded.b_q, "(g r) d -> g r 1 1 d", g=given.h_kv)
        self._b_v = None if given.b_v is None else rearrange(given.b_v, "g d -> g 1 1 1 d")
        self._b_o, self._folded_b_o = given.b_o, folded.b_o

    def __call__(
        self,
        queries: Float[Array, "*b n d_model"],
        keys: Float[Array, "*b m d_key"] | None = None,
        values: Float[Array, "*b m d_value"] | None = None,
        *,
        visible: Bool[Array, "*#b_h #n #m"] | Mask | None = None,
    ) -> Float[Array, "*b n d_model"]:
        """Attend as `MultiHeadAttention` does, with the same arguments.

        Raises
        ------
        TypeError, ValueError
            What `reference.row.multi_head` raises.
        """
        keys = queries if keys is None else keys
        values = keys if values is None else values
        weights = self.plain.weights
        convention.check_inputs(queries, keys, values, weights)
        if weights.dtype not in (np.float32, np.float64) or not (queries.size and keys.size):
            return self.plain(queries, keys, values, visible=visible)
        *batch, n, _ = queries.shape
        b, m = math.prod(batch), keys.shape[-2]
        tokens = [x.reshape(b, *x.shape[-2:]) for x in (queries, keys, values)]
        sight = _sight(visible, (*batch, weights.h, n, m), weights.h_kv)
        joined = np.empty((b * n, len(self._W_o)), weights.dtype)
        heads = rearrange(joined, "(b n) (g r d) -> g r b n d", n=n, g=weights.h_kv, r=weights.group)
        output = np.empty((b * n, weights.d_model), weights.dtype)

        tiny = b * max(n, m) <= TINY
        with nullcontext(1) if tiny else ONE_BLAS_THREAD as threads:
            groups, entries = (weights.h_kv, b) if tiny else (1, _entries(b, max(n, m), weights.h_kv, threads))
            side = SIDE if visible is None else MASKED_SIDE
            rows = SCORES // (groups * weights.group * entries * min(m, side))
            plan, all_see = _plan(sight, _cut(n, min(max(rows, 1), side)), _cut(m, side))
            b_v, b_o = (None, self._folded_b_o) if all_see else (self._b_v, self._b_o)

            def attend(job: tuple[slice, slice]) -> None:
                groups, entries = job
                here = groups, slice(None), entries
                with np.errstate(all="ignore"):  # what comes of it is looked at instead
                    q = _project(tokens[0][entries], self._W_q[groups], None if self._b_q is None else self._b_q[groups])
                    k = _project(tokens[1][entries], self._W_k[groups])
                    v = _project(tokens[2][entries], self._W_v[groups], None if b_v is None else b_v[groups])
                    _fill(heads[here], q, k, v, _part_of(plan, here), lambda tile: sight(tile, slice(0, m))[here], self._exponential)

            def write(rows: slice) -> None:
                np.matmul(joined[rows], self._W_o, out=output[rows])
                if b_o is not None:
                    output[rows] += b_o

            spread(attend, product(_cut(weights.h_kv, groups), _cut(b, entries)), threads)
            spread(write, _cut(b * n, -(-b * n // threads)), threads)
        return output.reshape(*batch, n, -1)


def fast_exponential() -> Exponential:
    """Choose the faster of exp2 and exp: NumPy has a vector loop for exp2 only where there is AVX-512.

    Examples
    --------
    >>> fast_exponential() in (np.exp, np.exp2)
    True
    """
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    there = {*extensions.get("baseline", ()), *extensions.get("found", ())}
    return np.exp2 if there & {"AVX512_SKX", "X86_V4"} else np.exp


def _sight(visible: Array | Mask | None, shape: tuple[int, ...], h_kv: int) -> Sight:
    """Read any mask tile by tile. ``shape`` is that of the scores."""
    *batch, h, n, m = shape
    if visible is None:
        visible = np.ones((1, 1), dtype=bool)
    if not isinstance(visible, Mask):
        whole = convention.visible(visible, shape, heads=True)
        whole = np.broadcast_to(whole, (*whole.shape[:-2], n, m))

    def sight(queries: slice, keys: slice) -> Array:
        if isinstance(visible, Mask):
            part = visible.tile(queries, keys, n, m, tuple(batch))
            part = part[..., None, :, :] if np.ndim(part) > 2 else part
        else:
            part = whole[..., queries, keys]
        size = queries.stop - queries.start, keys.stop - keys.start
        part = np.broadcast_to(convention.visible(part, (*batch, h, *size), heads=True), (*batch, h, *size))
        return rearrange(part.reshape(-1, h, *size), "b (g r) p q -> g r b p q", g=h_kv)

    return sight


def _plan(sight: Sight, rows: list[slice], columns: list[slice]) -> tuple[list[Tile], bool]:
    """Find the tiles in which anything is visible, and whether every query sees something."""
    plan, all_see = [], True
    for queries in rows:
        tile, seeing = Tile(queries, []), np.False_
        for keys in columns:
            part = sight(queries, keys)
            if part.any():
                tile.pieces.append((keys, None if part.all() else part))
                seeing = seeing | part.any(axis=-1)
        plan.append(tile)
        all_see = all_see and bool(np.all(seeing))
    return plan, all_see


def _part_of(plan: list[Tile], here: tuple[slice, slice, slice]) -> list[Tile]:
    """What some heads of some entries see of a plan."""
    return [
        Tile(queries, [(keys, None if part is None else part[here]) for keys, part in pieces])
        for queries, pieces in plan
    ]


def _project(tokens: Array, W: Array, b: Array | None = None) -> Array:
    """Map tokens (b, n, d_in) by the matrices (g, r, d_in, d), one product a head: (g, r, b, n, d)."""
    projected = tokens.reshape(-1, tokens.shape[-1]) @ W
    projected = projected.reshape(*W.shape[:2], *tokens.shape[:2], -1)
    if b is not None:
        projected += b
    return projected


def _fill(heads: Array, q: Array, k: Array, v: Array, plan: list[Tile], sight, exponential: Exponential) -> None:
    """Write into `heads` what the queries find, a tile of them at a time."""
    for queries, pieces in plan:
        tile, out = q[..., queries, :], heads[..., queries, :]
        sums = _weigh(tile, k, v, pieces, exponential, out)
        if _within(sums, SUMS) and RESULTS[0] < max(out.max(), -out.min()) < RESULTS[1]:
            out /= sums  # the few results, not the many weights
        else:
            out[...] = _exactly(tile, k, v, sight(queries), exponential)


def _weigh(q: Array, k: Array, v: Array, pieces, exponential: Exponential, out: Array) -> Array:
    """Add up the values, weighted by the exponentials of the scores as they are, and return the sums of those."""
    sums = np.zeros((*q.shape[:-1], 1), q.dtype)
    for keys, visible in pieces:
        weights = q @ k[..., keys, :].mT
        exponential(weights, out=weights)
        if visible is not None:
            weights *= visible
        sums += weights @ np.ones((weights.shape[-1], 1), q.dtype)  # faster than weights.sum
        if keys is pieces[0][0]:
            np.matmul(weights, v[..., keys, :], out=out)
        else:
            out += weights @ v[..., keys, :]
    return sums


def _within(sums: Array, limits: tuple[float, float]) -> bool:
    return bool(limits[0] < sums.min() and sums.max() < limits[1])


def _exactly(q: Array, k: Array, v: Array, visible: Array, exponential: Exponential) -> Array:
    """What the reference gives: the largest score is taken off, and nothing hidden reaches the result."""
    k, v = (np.broadcast_to(x, (*q.shape[:-2], *x.shape[-2:])) for x in (k, v))
    natural = q * math.log(exponential(1.0))  # the queries carry the base of the exponential
    return row.attend(natural, k, v, row.dot_product, visible, has_heads=False)[-1]


def _entries(b: int, tokens: int, h_kv: int, threads: int) -> int:
    """How many entries of the batch to take at once: few enough for the cache, and for each thread to get some."""
    return max(1, min(TOKENS // tokens, b * h_kv // threads, b))


def _cut(length: int, step: int) -> list[slice]:
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
