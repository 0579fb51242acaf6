"""Which parts of the scores need to be computed, for code that computes them a tile at a time."""

from typing import NamedTuple

import numpy as np
from einops import rearrange
from jaxtyping import Bool
from numpy import ndarray as Array

from ._checks import ROWS as convention
from .masks import Mask


class Tile(NamedTuple):
    """Some queries, and the keys they meet, piece by piece with what is visible of it (None: everything)."""

    queries: slice
    pieces: list[tuple[slice, Array | None]]

    def of(self, groups: slice, entries: slice) -> "Tile":
        """What some key-value heads of some entries of the batch have to do with it."""
        pieces = [(keys, seen if seen is None else seen[groups, :, entries]) for keys, seen in self.pieces]
        return Tile(self.queries, [(keys, seen) for keys, seen in pieces if seen is None or seen.any()])


class Sight:
    """What queries see of keys, for any two slices of them, whatever kind of mask says so; rows are queries.

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
    >>> sight = Sight(Causal(), (2, 6, 5, 5), h_kv=3)
    >>> sight(slice(0, 2), slice(0, 2)).shape
    (3, 2, 2, 2, 2)
    >>> plan, all_see = sight.plan(cut(5, 2), cut(5, 2))
    >>> [[(keys.start, seen is None) for keys, seen in tile.pieces] for tile in plan], all_see
    ([[(0, False)], [(0, True), (2, False)], [(0, True), (2, True), (4, True)]], True)
    """

    def __init__(self, visible: Array | Mask | None, shape: tuple[int, ...], h_kv: int):
        *batch, self._h, self._n, self._m = shape
        self._batch, self._h_kv = tuple(batch), h_kv
        self._visible = np.ones((1, 1), dtype=bool) if visible is None else visible
        if not isinstance(self._visible, Mask):
            convention.visible(self._visible, shape, heads=True)
            self._visible = np.broadcast_to(self._visible, (*self._visible.shape[:-2], self._n, self._m))

    def __call__(self, queries: slice, keys: slice) -> Bool[Array, "h_kv group b p q"]:
        """Say for each head and each entry of the batch which of the keys each of the queries sees."""
        return self._for_all(self._tile(queries, keys), queries, keys)

    def plan(self, rows: list[slice], columns: list[slice]) -> tuple[list[Tile], bool]:
        """Find the tiles in which anything is visible, and whether every query sees a key."""
        plan, all_see = [], True
        for queries in rows:
            tile, seeing = Tile(queries, []), np.zeros(1, dtype=bool)
            for keys in columns:
                part = self._tile(queries, keys)
                if part.any():
                    tile.pieces.append((keys, None if part.all() else self._for_all(part, queries, keys)))
                    seeing = seeing | part.any(axis=-1)
            plan.append(tile)
            all_see = all_see and bool(np.all(seeing))
        return plan, all_see

    def _tile(self, queries: slice, keys: slice) -> Array:
        """A tile as the mask gives it, with axes missing or of length one where it does not depend on them."""
        if not isinstance(self._visible, Mask):
            return self._visible[..., queries, keys]
        part = self._visible.tile(queries, keys, self._n, self._m, self._batch)
        if np.ndim(part) > 2:
            part = part[..., None, :, :]  # an axis for the heads, on which it does not depend
        convention.visible(part, self._shape(queries, keys), heads=True)
        return part

    def _for_all(self, part: Array, queries: slice, keys: slice) -> Array:
        every = np.broadcast_to(part, self._shape(queries, keys))
        flat = every.reshape(-1, *every.shape[-3:])
        return rearrange(flat, "b (g r) p q -> g r b p q", g=self._h_kv)

    def _shape(self, queries: slice, keys: slice) -> tuple[int, ...]:
        return (*self._batch, self._h, queries.stop - queries.start, keys.stop - keys.start)


def cut(length: int, step: int) -> list[slice]:
    """Cut a length into pieces.

    Examples
    --------
    >>> cut(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
