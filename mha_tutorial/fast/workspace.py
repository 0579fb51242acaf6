"""Memory that a thread uses again for every tile."""

import math

import numpy as np
from numpy import ndarray as Array


class Workspace:
    """Arrays by name, one thread's own: fresh memory for a tile costs more than its exponentials.

    An array holds until the next one of the same name is asked for.

    Examples
    --------
    >>> workspace = Workspace(np.float32)
    >>> first, second = workspace("scores", 2, 3), workspace("scores", 3, 2)
    >>> np.shares_memory(first, second), np.shares_memory(first, workspace("total", 2, 3))
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
        """A contiguous copy of an array, times a factor."""
        return np.multiply(array, factor, out=self(name, *array.shape))
