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

FACTORS = 2**20  # numbers in all the masks of tiles that are kept as factors: four mebibytes


class KeyTile(NamedTuple):
    """Some keys, and which of them some queries see.

    ``seen`` is for the keys in `partly` alone, from the first that is not visible to all of the queries to the
    last; None where all are. It has axes (g, b, r, p, q), of length one where it does not depend on them, and
    holds truth values or zeros and ones.
    """

    keys: slice
    partly: slice  # counted from the first of the keys
    seen: Shaped[Array, "#h_kv #b #group #p q"] | None

    def rows(self, some: slice) -> "KeyTile":
        """The same for some of the queries."""
        seen = self.seen
        return self if seen is None or seen.shape[-2] == 1 else self._replace(seen=seen[..., some, :])


class Tile(NamedTuple):
    """Some queries, and the keys they meet, piece by piece; none where they see nothing."""

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
        """What some key-value heads of some entries of the batch have to do with it."""
        theirs = [
            tile if tile.seen is None else tile._replace(seen=_part(tile.seen, groups, entries))
            for tile in self.kv_tiles
        ]
        return Tile(self.queries, [tile for tile in theirs if _any_visible(tile)])


class TileMask:
    """What queries see of keys, for any two slices of them, whatever kind of mask says so; rows are queries.

    Keys beyond the m that it is for are a layer's own, and every query sees them.

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
    >>> tiles = mask.tiles(slices(5, 2), slices(5, 2))
    >>> [[(tile.keys.start, tile.keys.stop, tile.seen is None) for tile in tile.kv_tiles] for tile in tiles]
    [[(0, 2, False)], [(0, 2, True), (2, 4, False)], [(0, 2, True), (2, 4, True), (4, 5, True)]]
    """

    def __init__(self, visible: Array | Mask | None, shape: tuple[int, ...], h_kv: int):
        *batch, self._h, self._n, self._m = shape
        self._batch, self._h_kv = tuple(batch), h_kv
        self._visible = np.ones((1, 1), dtype=bool) if visible is None else visible
        if not isinstance(self._visible, Mask):
            convention.visible(self._visible, shape, heads=True)

    def __call__(self, queries: slice, keys: slice) -> Bool[Array, "#h_kv #b #group p q"]:
        """Say which of the keys each of the queries sees; axes on which that does not depend have length one."""
        p, real = queries.stop - queries.start, slice(keys.start, max(keys.start, min(keys.stop, self._m)))
        part = self._tile(queries, real)
        part = np.broadcast_to(part, (*part.shape[:-2], p, real.stop - real.start))
        extra = np.ones((*part.shape[:-1], keys.stop - real.stop), dtype=bool)
        return np.concatenate([part, extra], axis=-1) if extra.size else part

    def tiles(self, rows: list[slice], columns: list[slice]) -> list[Tile]:
        """Find the tiles in which anything is visible, each no larger than it need be."""
        alike: dict[tuple, Array] = {}
        return [
            Tile(queries, [tile for keys in columns if (tile := self._key_tile(queries, keys, alike))])
            for queries in rows
        ]

    def _key_tile(self, queries: slice, keys: slice, alike: dict[tuple, Array]) -> KeyTile | None:
        seen = self._tile(queries, keys)
        if seen.all():
            return KeyTile(keys, slice(0, 0), None)
        if not seen.any():
            return None
        seen = np.broadcast_to(seen, (*seen.shape[:-1], keys.stop - keys.start))
        some = _hull(np.any(seen, axis=(0, 1, 2, 3)))
        seen = seen[..., some]
        partly = _hull(np.any(~seen, axis=(0, 1, 2, 3)))
        keys = slice(keys.start + some.start, keys.start + some.stop)
        return KeyTile(keys, partly, _as_factor(seen[..., partly], alike) if partly.stop else None)

    def _tile(self, queries: slice, keys: slice) -> Array:
        """A tile (g, b, r, p, q), with axes of length one where it does not depend on them; extra keys are seen."""
        if keys.start >= self._m:
            return np.ones((1, 1, 1, 1, 1), dtype=bool)
        if not isinstance(self._visible, Mask):
            (p, q), everything = self._visible.shape[-2:], slice(None)
            part = self._visible[..., queries if p > 1 else everything, keys if q > 1 else everything]
            return by_group(part, self._batch, self._h_kv)
        part = self._visible.tile(queries, keys, self._n, self._m, self._batch)
        if np.ndim(part) > 2:
            part = part[..., None, :, :]  # an axis for the heads, on which it does not depend
        shape = (*self._batch, self._h, queries.stop - queries.start, keys.stop - keys.start)
        convention.visible(part, shape, heads=True)
        return by_group(part, self._batch, self._h_kv)


def by_group(array: Array, batch: tuple[int, ...], h_kv: int) -> Array:
    """Lay out what broadcasts to ``(*batch, h, p, q)`` as ``(g, b, r, p, q)``; axes of length one stay so.

    Examples
    --------
    >>> by_group(np.ones((2, 1, 6, 5, 7)), batch=(2, 3), h_kv=2).shape, by_group(np.ones((5, 7)), (2, 3), 2).shape
    ((2, 6, 3, 5, 7), (1, 1, 1, 5, 7))
    """
    array = array[(None,) * (len(batch) + 3 - array.ndim)]
    *some_batch, h, p, q = array.shape
    if max(some_batch, default=1) > 1:
        array = np.broadcast_to(array, (*batch, h, p, q))
    array = array.reshape(math.prod(array.shape[:-3]), h, p, q)
    return rearrange(array, "b (g r) p q -> g b r p q", g=h_kv if h > 1 else 1)


def _part(seen: Array, groups: slice, entries: slice) -> Array | None:
    """What some heads of some sequences see; None if it is everything."""
    everything = slice(None)
    seen = seen[groups if len(seen) > 1 else everything, entries if seen.shape[1] > 1 else everything]
    return None if seen.all() else seen


def _as_factor(seen: Array, alike: dict[tuple, Array]) -> Array:
    """Zeros and ones of 32 bits, by which weights are multiplied faster than by truth values.

    They take four times the memory: so tiles that are alike share theirs, as those along a diagonal are, and when
    there are many of others these stay as they are.
    """
    if seen.size > FACTORS:
        return seen
    key = seen.shape, seen.tobytes()
    if key not in alike and (len(alike) + 1) * seen.size <= FACTORS:
        alike[key] = seen.astype(np.float32)
    return alike.get(key, seen)


def _hull(some) -> slice:
    """From the first that is true to the last."""
    found = np.flatnonzero(some)
    return slice(int(found[0]), int(found[-1]) + 1) if found.size else slice(0, 0)


def _any_visible(tile: KeyTile) -> bool:
    seen, whole = tile.seen, tile.keys.stop - tile.keys.start
    return seen is None or seen.shape[-1] < whole or bool(seen.any())
