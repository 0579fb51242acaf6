"""What every property is given, and how two outputs are compared."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from ..problems import Problem, Sizes, some_visible
from ..subject import Subject, UntestableError

TOLERANCE = 1e-4  # of the largest number: more than roundings of 32 bits, less than any fault


class Evidence(NamedTuple):
    """What contradicts a property: an input, and what the function gave in place of what is right.

    Parameters
    ----------
    problem
        The input.
    found, right
        The output and what it should have been, number by number.
    note
        What was done with the input, if the output alone does not say it.
    faults
        What is likely, before what is likely in general.
    """

    problem: Problem
    found: Array
    right: Array
    note: str = ""
    faults: tuple[str, ...] = ()


class Options(NamedTuple):
    """What else there is to compare the function with."""

    step: Callable[..., Any] | None = None
    compiled: Callable[..., Any] | None = None
    with_weights: Callable[..., Any] | None = None
    against: Subject | None = None


def close(found: Array, right: Array, tolerance: float = TOLERANCE) -> bool:
    """Whether two arrays agree, to a part of the largest number that should be there."""
    if found.shape != right.shape:
        return False
    finite = np.abs(right[np.isfinite(right)])
    return np.allclose(found, right, rtol=0, atol=tolerance * max(finite.max(initial=0), 1e-3), equal_nan=True)


def compare(problem: Problem, found: Array, right: Array, note: str = "", *faults: str) -> Evidence | None:
    """Evidence, if the two do not agree."""
    return None if close(found, right) else Evidence(problem, found, right, note, faults)


def unchanged(subject: Subject, problem: Problem, other: Problem, note: str, *places: Any) -> Evidence | None:
    """Evidence, if the output at some places depends on what differs between two problems."""
    index = (..., *places)
    return compare(other, subject(other)[index], subject(problem)[index], note)


def needs_three(subject: Subject) -> None:
    if subject.call.one:
        raise UntestableError("it takes tokens once, as queries, keys and values together")


def needs_mask(subject: Subject) -> None:
    if subject.call.mask is None:
        raise UntestableError("it takes no mask")


def needs_heads(subject: Subject) -> None:
    if subject.layer:
        raise UntestableError("it takes tokens, not heads")


def needs_no_positions(subject: Subject) -> None:
    if subject.setting.causal or subject.setting.prepare:
        raise UntestableError("it knows the order of tokens")


def masked(subject: Subject, sizes: Sizes) -> Problem:
    """The usual input behind a mask without symmetry."""
    needs_mask(subject)
    problem = subject.problem(sizes)
    return problem.hiding(some_visible(problem.n, problem.m))
