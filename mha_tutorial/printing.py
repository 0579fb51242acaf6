"""Print arrays so that a page shows the same digits on every machine, and how far a long loop has come."""

import sys
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy import ndarray as Array

Item = TypeVar("Item")


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


def progress(items: Sequence[Item], width: int = 40) -> Iterator[Item]:
    """Hand out items one by one, and draw a bar of those that are done, if anybody is there to see it.

    It is drawn on a terminal, and in a notebook that a reader runs; where a program runs the notebook nothing is
    written. The bar is erased at the end.

    Examples
    --------
    >>> sum(progress(range(5)))
    10
    """
    if not _is_watched():
        yield from items
        return
    drawn = -1
    for done, item in enumerate(items):
        filled = width * done // len(items)
        if filled > drawn:
            print(f"\r{'█' * filled}{'·' * (width - filled)} {done}/{len(items)}", end="", flush=True)
            drawn = filled
        yield item
    print("\r" + " " * (width + 2 * len(str(len(items))) + 2) + "\r", end="", flush=True)


def _is_watched() -> bool:
    """Whether a person reads along: on a terminal, or in a notebook whose kernel may ask for input.

    Programs that execute notebooks, such as nbval and nbclient, have nobody whom a kernel could ask.
    """
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return sys.stdout.isatty() or bool(getattr(getattr(shell, "kernel", None), "_allow_stdin", False))


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
