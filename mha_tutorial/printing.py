"""Print arrays so that a page shows the same digits on every machine."""

from typing import Any

import numpy as np
from numpy import ndarray as Array


def show(*arrays: Any, decimals: int = 3, margin: float = 0.0, **named: Any) -> None:
    """Print each array, rounded, without negative zeros; a keyword becomes its title with the shape.

    Fractions are printed as fractions.

    Parameters
    ----------
    decimals
        How many decimals a floating number keeps; fewer are printed where all entries need fewer.
    margin
        How much a number may differ on another machine. One so near to where it would be rounded otherwise is
        refused.

    Raises
    ------
    ValueError
        If a number lies within the margin of a rounding edge.

    Examples
    --------
    >>> show(np.array([1 / 3, -1e-9, 2.0]))
    [0.333 0.000 2.000]
    >>> from fractions import Fraction
    >>> show(scores=np.array([[1.5, 2.0]]), half=Fraction(1, 2))
    scores (1, 2)
    [[1.5 2.0]]
    half = 1/2
    """
    for array in (*arrays, *named.values()) if margin else ():
        _refuse_edges(np.asarray(array, dtype=float), decimals, margin)
    for array in arrays:
        print(_text(array, decimals))
    for name, array in named.items():
        if np.ndim(array):
            print(f"{name} {np.shape(array)}")
            print(_text(array, decimals))
        else:
            print(f"{name} = {_text(array, decimals)}")


def _refuse_edges(array: Array, decimals: int, margin: float) -> None:
    """Refuse numbers that might be rounded up on one machine and down on another."""
    steps = array * 10.0**decimals
    near = np.abs(steps - np.floor(steps) - 0.5) <= margin * 10.0**decimals
    if near.any():
        raise ValueError(
            f"{array[near].flat[0]!s} lies within {margin:g} of a rounding edge at {decimals} decimals, and might "
            "be printed otherwise on another machine; choose another example"
        )


def _text(array: Any, decimals: int) -> str:
    array = np.asarray(array)
    with np.printoptions(
        linewidth=88, threshold=10_000, precision=decimals, floatmode="maxprec_equal", suppress=True
    ):
        if array.dtype == object:
            width = max((len(str(entry)) for entry in array.flat), default=0)
            return np.array2string(array, formatter={"object": lambda entry: str(entry).rjust(width)})
        if np.issubdtype(array.dtype, np.inexact):
            rounded = np.round(array, decimals) + 0.0  # -0.0 + 0.0 is 0.0
            array = np.where(np.abs(array) < 1e12, rounded, array).astype(np.float64)
        return np.array2string(array)
