"""What the checker found, in plain words."""

import textwrap
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from .faults import FAULTS
from .problems import Problem
from .properties import Evidence
from .subject import UNKNOWN

WIDTH = 88
FULL = 4  # failures shown in full, with the smallest input
NOT_SEEN = (
    "The layer's matrices are not known, so a wrong scale, or a wrong order of heads or of groups, cannot be seen: "
    "with other matrices it would be right. Pass weights= (on the command line --weights), a function that takes "
    "them from the layer; see practice/field-guide."
)


class Finding(NamedTuple):
    """A property that does not hold.

    Parameters
    ----------
    name
        The property: what should hold.
    problem
        The smallest input found that shows it.
    place
        Where in the output the two numbers stand.
    found, right
        One number of the output, and what it should have been.
    note
        What was done with the input.
    faults
        Names of what is likely, the likeliest first: keys of `FAULTS`.
    """

    name: str
    problem: Problem
    place: tuple[int, ...]
    found: float
    right: float
    note: str
    faults: tuple[str, ...]

    def __str__(self) -> str:
        place = f"[{', '.join(map(str, self.place))}]"
        numbers = f"{place} is {_short(self.found)}, and should be {_short(self.right)}"
        return "\n".join([f"✗ {self.name}", *_inputs(self.problem), _wrapped(f"  {self.note}: {numbers}", 4)])

    @property
    def page(self) -> str:
        """The chapter of the book that explains what is likeliest."""
        return FAULTS[self.faults[0]].page

    @property
    def line(self) -> str:
        """All of it in one sentence."""
        numbers = f"{_short(self.found)}, and should be {_short(self.right)}"
        return _wrapped(f"- {self.name}. {self.note}: {numbers} ({self.faults[0]})", 2)


class Report(NamedTuple):
    """What a check found.

    Parameters
    ----------
    failures
        What is wrong by the definition, on finite and ordinary input. Empty where all holds.
    remarks
        What well-known libraries do too, and what may hurt all the same.
    held
        The properties that hold.
    untested
        Those that could not be asked, each with the reason.
    explained
        Faults that give every number that was found: with one of these there is no guessing.
    reading
        How the matrices of a module with names of its own were read, if they were.
    """

    failures: list[Finding]
    remarks: list[Finding]
    held: list[str]
    untested: dict[str, str]
    explained: list[str]
    reading: str = ""

    @property
    def faults(self) -> list[str]:
        """What is likely, the likeliest first, over all findings; failures before remarks."""
        names = [name for finding in (*self.failures, *self.remarks) for name in finding.faults]
        return list(dict.fromkeys([*self.explained, *names]))

    def __str__(self) -> str:
        tested = len(self.held) + len(self.failures) + len(self.remarks)
        parts = [
            f"{len(self.failures)} of {tested} properties fail, {len(self.remarks)} remarks, "
            f"{len(self.untested)} not tested"
        ]
        unknown = [name for name, reason in self.untested.items() if reason == UNKNOWN]
        if unknown:
            parts.append(_wrapped(f"{NOT_SEEN} Not tested: {'; '.join(unknown)}.", 0))
        if self.reading:
            parts.append(f"Its matrices were recognised: {self.reading}.")
        if self.explained:
            parts.append("One fault explains every number:\n" + _described(self.explained[0]))
        named: set[str] = set(self.explained)
        for finding in self.failures[:FULL]:
            new = [name for name in finding.faults if name not in named]
            named |= set(new)
            likely = [] if self.explained else ["  likely:", *map(_described, new)] if new else []
            parts.append("\n".join([str(finding), *likely]))
        if self.failures[FULL:]:
            lines = "\n".join(finding.line for finding in self.failures[FULL:])
            parts.append(f"These fail as well:\n{lines}")
        if self.remarks:
            lines = "\n".join(finding.line for finding in self.remarks)
            parts.append(f"Remarks, on what well-known libraries do too:\n{lines}")
        return "\n\n".join(parts)


def _described(name: str) -> str:
    """A fault, the line that decides whether it is this one, and the page."""
    fault, indent = FAULTS[name], " " * 6
    lines = [f"    {name}: {fault.what}", f"{indent}decides: {fault.decides}", f"{indent}book: {fault.page}"]
    return "\n".join(_wrapped(line, 6 + 2 * (line.startswith(indent))) for line in lines)


def _wrapped(line: str, indent: int) -> str:
    """A line, or as many as it takes, the others indented."""
    lines = textwrap.wrap(line, WIDTH, subsequent_indent=" " * indent, break_on_hyphens=False)
    return "\n".join(lines)


def found_of(name: str, evidence: Evidence, faults: tuple[str, ...]) -> Finding:
    """The finding that some evidence makes, at the number that is furthest off."""
    found, right = np.broadcast_arrays(evidence.found, evidence.right)
    with np.errstate(invalid="ignore"):
        off = np.abs(found - right)
    place = np.unravel_index(np.where(np.isnan(off), np.inf, off).argmax(), off.shape)
    index = tuple(int(i) for i in place)
    return Finding(name, evidence.problem, index, float(found[place]), float(right[place]), evidence.note, faults)


def _inputs(problem: Problem) -> list[str]:
    """The input, number by number if it is small."""
    names = {"Q": problem.Q, "K": problem.K, "V": problem.V, "visible": problem.visible}
    if problem.Q is problem.K is problem.V:
        names = {"x": problem.Q, "visible": problem.visible}
    lines = []
    for name, array in names.items():
        if array is None:
            continue
        text = f"  {name} {array.shape}"
        if array.size <= 12:
            text += f" = {_numbers(array)}"
        lines.append(_wrapped(text, 4))
    return lines


def _numbers(array: Array) -> str:
    """An array as nested lists, without axes of length one in front."""
    while array.ndim > 2 and len(array) == 1:
        array = array[0]
    return _listed(array.astype(int) if array.dtype == bool else array)


def _listed(array: Array) -> str:
    if array.ndim == 0:
        return _short(float(array))
    return f"[{', '.join(_listed(part) for part in array)}]"


def _short(number: float) -> str:
    """Four digits, the same on every machine: what is nearly zero is zero.

    Examples
    --------
    >>> _short(0.123456), _short(-1e-17), _short(2.0)
    ('0.1235', '0', '2')
    """
    return "0" if abs(number) < 1e-12 else f"{number:.4g}"
