"""Which parts of the scores need to be computed, for code that computes them a tile at a time."""

import math
from typing import NamedTuple

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Shaped
from numpy import ndarray as Array

from .._checks import ROWS as convention
from .._sizes import slices
from ..masks import Mask


class KeyTile(NamedTuple):
    """Some keys, and which of them a tile of queries sees.

    ``visible`` is for the keys in `partial` alone, from the first that is hidden from any of the queries to the
    last; None where none is. It has axes (g, b, r, p, q), of length one where it does not depend on them, and
    holds truth values or zeros and ones.
    """

    keys: slice
    partial: slice  # counted from the first of the keys
    visible: Shaped[Array, "#h_kv #b #r #p q"] | None

    def rows(self, some: slice) -> "KeyTile":
        """The same for some of the queries."""
        visible = self.visible
        if visible is None or visible.shape[-2] == 1:
            return self
        return self._replace(visible=visible[..., some, :])

    def of(self, groups: slice, entries: slice) -> "KeyTile | None":
        """The same for some key-value heads and some entries of the batch; None if they see none of the keys."""
        if self.visible is None or self.visible.shape[:2] == (1, 1):
            return self
        visible = job_part(self.visible, groups, entries)
        if visible.all():
            return self._replace(visible=None)
        all_partial = visible.shape[-1] == self.keys.stop - self.keys.start
        return None if all_partial and not visible.any() else self._replace(visible=visible)


class Tile(NamedTuple):
    """Some queries, and the tiles of keys of which they see anything."""

    queries: slice
    kv_tiles: list[KeyTile]

    @property
    def keys(self) -> slice:
        """From the first key that any of the queries sees to the last."""
        return slice(self.kv_tiles[0].keys.start, self.kv_tiles[-1].keys.stop) if self.kv_tiles else slice(0, 0)

    def cut(self, most: int) -> list[slice]:
        """Its queries, not more than so many at a time."""
        start, stop = self.queries.start, self.queries.stop
        return [slice(start + part.start, start + part.stop) for part in slices(stop - start, most)]

    def rows(self, queries: slice) -> "Tile":
        """The same for some of its queries."""
        some = slice(queries.start - self.queries.start, queries.stop - self.queries.start)
        return Tile(queries, [tile.rows(some) for tile in self.kv_tiles])

    def of(self, groups: slice, entries: slice) -> "Tile":
        """The same for some key-value heads and some entries of the batch."""
        theirs = [tile.of(groups, entries) for tile in self.kv_tiles]
        return Tile(self.queries, [tile for tile in theirs if tile is not None])


class TileMask:
    """Any mask, a tile at a time: which of some keys each of some queries sees; rows are queries.

    Keys beyond the m of the tokens are a layer's own, and every query sees them.

    Parameters
    ----------
    visible
        A structured mask, a boolean array, or None where all is visible.
    shape
        Of the scores that it is for: ``(*batch, h, n, m)``.
    h_kv
        The number of key-value heads, each of which several heads may share.

    Raises
    ------
    TypeError, ValueError
        If the mask does not fit, as `reference.row.multi_head`.

    Examples
    --------
    >>> from mha_tutorial import Causal
    >>> mask = TileMask(Causal(), (2, 6, 5, 5), h_kv=3)
    >>> mask(slice(0, 2), slice(0, 2)).shape
    (1, 1, 1, 2, 2)
    >>> tiles = mask.tiles(slices(5, 2), slices(5, 2), most=100)
    >>> [[(tile.keys.start, tile.keys.stop, tile.visible is None) for tile in tile.kv_tiles] for tile in tiles]
    [[(0, 2, False)], [(0, 2, True), (2, 4, False)], [(0, 2, True), (2, 4, True), (4, 5, True)]]
    """

    def __init__(self, visible: Array | Mask | None, shape: tuple[int, ...], h_kv: int):
        *batch, self._h, self._n, self._m = shape
        self._batch, self._h_kv = tuple(batch), h_kv
        self._visible = np.ones((1, 1), dtype=bool) if visible is None else visible
        if not isinstance(self._visible, Mask):
            convention.visible(self._visible, shape)

    def __call__(self, queries: slice, keys: slice) -> Bool[Array, "#h_kv #b #r p q"]:
        """Say which of the keys each of the queries sees; axes on which that does not depend have length one."""
        p, real = queries.stop - queries.start, slice(keys.start, max(keys.start, min(keys.stop, self._m)))
        part = self._tile(queries, real)
        part = np.broadcast_to(part, (*part.shape[:-2], p, real.stop - real.start))
        extra = np.ones((*part.shape[:-1], keys.stop - real.stop), dtype=bool)
        return np.concatenate([part, extra], axis=-1) if extra.size else part

    def tiles(self, rows: list[slice], columns: list[slice], most: int) -> list[Tile]:
        """Find the tiles in which anything is visible, each no larger than it need be.

        Exponentials are multiplied faster by zeros and ones of 32 bits than by truth values, but these take four
        times the memory. So tiles with the same mask share one, as those along a diagonal do, and at most so many
        numbers are kept as floats in all.
        """
        factors: dict[tuple, Array] = {}

        def as_factor(visible: Array) -> Array:
            if visible.size > most:
                return visible
            key = visible.shape, visible.tobytes()
            if key not in factors and (len(factors) + 1) * visible.size <= most:
                factors[key] = visible.astype(np.float32)
            return factors.get(key, visible)

        def key_tile(queries: slice, keys: slice) -> KeyTile | None:
            tile = self._key_tile(queries, keys)
            return tile if tile is None or tile.visible is None else tile._replace(visible=as_factor(tile.visible))

        return [Tile(queries, [tile for keys in columns if (tile := key_tile(queries, keys))]) for queries in rows]

    def _key_tile(self, queries: slice, keys: slice) -> KeyTile | None:
        visible = self._tile(queries, keys)
        if visible.all():
            return KeyTile(keys, slice(0, 0), None)
        if not visible.any():
            return None
        visible = np.broadcast_to(visible, (*visible.shape[:-1], keys.stop - keys.start))
        some = _span(np.any(visible, axis=(0, 1, 2, 3)))
        visible = visible[..., some]
        partial = _span(np.any(~visible, axis=(0, 1, 2, 3)))
        keys = slice(keys.start + some.start, keys.start + some.stop)
        return KeyTile(keys, partial, visible[..., partial] if partial.stop else None)

    def _tile(self, queries: slice, keys: slice) -> Array:
        """A tile (g, b, r, p, q), with axes of length one where it does not depend on them."""
        if keys.start >= self._m:
            return np.ones((1, 1, 1, 1, 1), dtype=bool)
        if not isinstance(self._visible, Mask):
            (p, q), everything = self._visible.shape[-2:], slice(None)
            part = self._visible[..., queries if p > 1 else everything, keys if q > 1 else everything]
            return group_heads(part, self._batch, self._h_kv)
        part = self._visible.tile(queries, keys, self._n, self._m, self._batch)
        if np.ndim(part) > 2:
            part = part[..., None, :, :]  # an axis for the heads, on which it does not depend
        shape = (*self._batch, self._h, queries.stop - queries.start, keys.stop - keys.start)
        convention.visible(part, shape)
        return group_heads(part, self._batch, self._h_kv)


def group_heads(array: Array, batch: tuple[int, ...], h_kv: int) -> Array:
    """Lay out what broadcasts to ``(*batch, h, p, q)`` as ``(g, b, r, p, q)``; axes of length one stay so.

    Examples
    --------
    >>> group_heads(np.ones((2, 1, 6, 5, 7)), batch=(2, 3), h_kv=2).shape
    (2, 6, 3, 5, 7)
    >>> group_heads(np.ones((5, 7)), batch=(2, 3), h_kv=2).shape
    (1, 1, 1, 5, 7)
    """
    array = array[(None,) * (len(batch) + 3 - array.ndim)]
    *some_batch, h, p, q = array.shape
    if max(some_batch, default=1) > 1:
        array = np.broadcast_to(array, (*batch, h, p, q))
    array = array.reshape(math.prod(array.shape[:-3]), h, p, q)
    return rearrange(array, "b (g r) p q -> g b r p q", g=h_kv if h > 1 else 1)


def job_part(array: Array, groups: slice, entries: slice) -> Array:
    """What some heads of some sequences have of an array (g, b, ...), in which these axes may have length one."""
    everything = slice(None)
    return array[groups if len(array) > 1 else everything, entries if array.shape[1] > 1 else everything]


def _span(some: Array) -> slice:
    """From the first that is true to the last."""
    found = np.flatnonzero(some)
    return slice(int(found[0]), int(found[-1]) + 1) if found.size else slice(0, 0)
