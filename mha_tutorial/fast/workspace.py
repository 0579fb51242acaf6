"""Memory that a thread uses again for every tile."""

import math
from enum import Enum, auto

import numpy as np
from numpy import ndarray as Array


class Buffer(Enum):
    """What an array of a workspace is for: two that are needed at one time have two names."""

    PACKED = auto()
    QUERIES = auto()
    KEYS = auto()
    VALUES = auto()
    OUTPUT = auto()
    TILE_QUERIES = auto()
    SCORES = auto()
    TOTAL = auto()
    MORE_TOTAL = auto()
    WEIGHTED = auto()
    MORE_WEIGHTED = auto()
    D_KEYS = auto()
    D_VALUES = auto()
    SCALED_QUERIES = auto()
    TILE_D_HEADS = auto()
    TILE_D_SCORES = auto()
    TILE_D_QUERIES = auto()
    TILE_D_KEYS = auto()
    TILE_D_VALUES = auto()


class Workspace:
    """Arrays by their use, one thread's own: fresh memory for a tile costs more than its exponentials.

    An array holds until the next one for the same use is asked for.

    Examples
    --------
    >>> workspace = Workspace(np.float32)
    >>> first, second = workspace(Buffer.SCORES, 2, 3), workspace(Buffer.SCORES, 3, 2)
    >>> np.shares_memory(first, second), np.shares_memory(first, workspace(Buffer.TOTAL, 2, 3))
    (True, False)
    """

    def __init__(self, dtype: np.dtype | type):
        self._dtype = dtype
        self._arrays: dict[Buffer, Array] = {}
        self._ones = np.ones((0, 1), dtype)

    def __call__(self, use: Buffer, *shape: int) -> Array:
        size = math.prod(shape)
        if use not in self._arrays or self._arrays[use].size < size:
            self._arrays[use] = np.empty(size, self._dtype)
        return self._arrays[use][:size].reshape(shape)

    def ones(self, length: int) -> Array:
        """A column of ones."""
        if len(self._ones) < length:
            self._ones = np.ones((length, 1), self._dtype)
        return self._ones[:length]

    def copy(self, use: Buffer, array: Array, factor: float = 1.0) -> Array:
        """A contiguous copy of an array, times a factor."""
        return np.multiply(array, factor, out=self(use, *array.shape))
