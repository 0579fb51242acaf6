"""Structured masks as runs of keys: what a query sees, told by where it begins and where it ends."""

from typing import NamedTuple

import numpy as np
from jaxtyping import Int
from numpy import ndarray as Array

from ..masks import And, Causal, Documents, Mask, Not, Or, Padding, Prefix, Window, offset

MOST = 256  # runs of one mask: of "or" between many masks there are as many as subsets of them


class Run(NamedTuple):
    """One unbroken run of keys for every query, counted once or, with sign -1, taken away once."""

    sign: int
    start: Int[Array, "*#b #n"]
    stop: Int[Array, "*#b #n"]

    @property
    def length(self) -> Int[Array, "*#b #n"]:
        """How many keys each query sees."""
        return np.maximum(self.stop - self.start, 0)

    def within(self, other: "Run") -> "Run":
        """What lies in both."""
        start, stop = np.maximum(self.start, other.start), np.minimum(self.stop, other.stop)
        return Run(self.sign * other.sign, start, stop)


def runs(mask: Mask, n: int, m: int, batch: tuple[int, ...]) -> list[Run] | None:
    """Write a mask as a sum of runs of keys; None for a mask that is not known here, and for too many runs.

    As a number, 1 for visible and 0 for hidden, ``left & right`` is ``left * right``, ``left | right`` is
    ``left + right - left * right`` and ``~rule`` is ``1 - rule``; the product of two runs is a run.

    Examples
    --------
    >>> [(run.sign, run.length.tolist()) for run in runs(Window(2) | Prefix(1), 3, 3, ())]
    [(1, [2, 3, 2]), (1, [1]), (-1, [1, 1, 0])]
    """
    places = np.arange(n)
    match mask:
        case And(left, right) | Or(left, right):
            first, second = runs(left, n, m, batch), runs(right, n, m, batch)
            if first is None or second is None or len(first) * len(second) > MOST:
                return None
            both = [one.within(other) for one in first for other in second]
            return both if isinstance(mask, And) else [*first, *second, *_less(both)]
        case Not(rule):
            inner = runs(rule, n, m, batch)
            return None if inner is None else [_run(0, m), *_less(inner)]
        case Causal():
            return [_run(0, np.clip(places + offset(mask, n, m) + 1, 0, m))]
        case Window(size):
            reach, middle = min(size, n + m), places + offset(mask, n, m)
            return [_run(np.clip(middle - reach + 1, 0, m), np.clip(middle + reach, 0, m))]
        case Padding() | Prefix():
            mask.check(m, batch)
            lengths = mask.lengths[..., None]
            if isinstance(mask, Padding) and mask.side == "left":
                return [_run(m - lengths, m)]
            return [_run(0, lengths)]
        case Documents():
            mask.check(m, batch)
            number = mask.numbers(places + offset(mask, n, m))
            ends = np.concatenate([np.zeros((*mask.lengths.shape[:-1], 1), int), mask.lengths], -1).cumsum(-1)
            ends = np.broadcast_to(ends, (*number.shape[:-1], ends.shape[-1]))
            start = np.take_along_axis(ends, np.maximum(number, 0), axis=-1)
            stop = np.take_along_axis(ends, number + 1, axis=-1)  # of no document, -1, the first end: zero
            return [_run(start, stop)]
    return None


def _run(start, stop) -> Run:
    return Run(1, np.atleast_1d(start), np.atleast_1d(stop))


def _less(some: list[Run]) -> list[Run]:
    return [run._replace(sign=-run.sign) for run in some]
