"""Inputs for an attention function: small, with sizes that are all different, and the same on every machine."""

from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array


class Sizes(NamedTuple):
    """How much of everything: different primes, so that no swapped axis fits by luck.

    Parameters
    ----------
    b
        Sequences.
    h
        Heads.
    n
        Queries.
    m
        Keys.
    d_k
        The width of queries and keys; of a layer, that of its tokens.
    d_v
        The width of values.
    """

    b: int = 2
    h: int = 3
    n: int = 5
    m: int = 7
    d_k: int = 11
    d_v: int = 13


class Problem(NamedTuple):
    """Queries, keys and values with tokens in rows, ``(b, h, n, d)`` or of a layer ``(b, n, d)``, and a mask.

    ``visible`` has at least the axes ``(n, m)``, and says True where a query may see a key.
    """

    Q: Array
    K: Array
    V: Array
    visible: Array | None = None

    @property
    def n(self) -> int:
        """The number of queries."""
        return self.Q.shape[-2]

    @property
    def m(self) -> int:
        """The number of keys."""
        return self.K.shape[-2]

    @property
    def scores(self) -> tuple[int, ...]:
        """The shape of a mask that has all axes: sequences and heads, or one for all heads of a layer."""
        return (len(self.Q), self.Q.shape[1] if self.Q.ndim == 4 else 1, self.n, self.m)

    def hiding(self, visible: Array | None) -> "Problem":
        """The same tokens behind another mask."""
        return self._replace(visible=visible)

    def changed(self, name: str, place: tuple, value) -> "Problem":
        """The same with other numbers at one place of Q, K or V."""
        array = getattr(self, name).copy()
        array[place] = value
        return self._replace(**{name: array})


def some_visible(n: int, m: int) -> Array:
    """A mask without symmetry in which every query sees something and most do not see all.

    Examples
    --------
    >>> some_visible(3, 4).astype(int).tolist()
    [[1, 0, 1, 1], [0, 1, 1, 0], [1, 1, 1, 1]]
    """
    i, j = np.ogrid[:n, :m]
    return (m == 1) | ((i + j + i * j) % 3 != 1)


def triangle(n: int, m: int, align: str = "bottom-right", shift: int = 0) -> Array:
    """The causal mask, and those that are off by some places.

    Examples
    --------
    >>> triangle(2, 3).astype(int).tolist()
    [[1, 1, 0], [1, 1, 1]]
    """
    return np.tri(n, m, (m - n if align == "bottom-right" else 0) + shift, dtype=bool)


def draw(shape: tuple[int, ...], seed: int, times: float = 1.0) -> Array:
    """Numbers of one decimal around zero."""
    return (times * np.random.default_rng([2017, seed]).normal(size=shape)).round(1)
