"""What the field guide says of one fault, and the numbers it shows."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from ...check.imitations import IMITATIONS
from ...check.problems import Problem
from ...check.steps import Setting, Steps, run


class Numbers(NamedTuple):
    """The smallest input that shows a fault, in words or numbers, and what comes out."""

    given: str
    wrong: Any
    right: Any


class Case(NamedTuple):
    """A fault that people have met.

    Parameters
    ----------
    id
        Its name in the tests.
    kind
        The part of the guide it stands in, a key of `KINDS`.
    symptom
        What people say of it.
    why, rule
        Why it happens, and how not to have it.
    threads
        Where it was met: ``owner/name#12`` for an issue, ``owner/name!12`` for a pull request, or an address.
    test
        The test that fails when the fault is put into the package.
    check
        What the checker calls it; empty where it sees a function and the fault is elsewhere.
    numbers
        Computes the input, the wrong value and the right one.
    """

    id: str
    kind: str
    symptom: str
    why: str
    rule: str
    threads: tuple[str, ...]
    test: str
    check: str
    numbers: Callable[[], Numbers]


KINDS = {
    "masks": "Masks",
    "scores": "Softmax, scores and their scale",
    "heads": "Heads, axes and sizes",
    "stored": "Stored weights",
    "numbers": "Numbers at their limits",
    "torch": "Compiled, traced, differentiated twice",
    "files": "Files, threads and processes",
}


def sines(*shape: int, a: float = 1.3, b: float = 0.4) -> Array:
    """Numbers without symmetry, the same everywhere: sines rounded to two decimals.

    Examples
    --------
    >>> sines(3).tolist()
    [0.39, 0.99, 0.14]
    """
    return np.round(np.sin(a * np.arange(np.prod(shape)) + b), 2).reshape(shape)


def imitated(name: str, q: Array, k: Array, v: Array, visible: Array | None = None, **known: Any) -> Array:
    """What attention with a fault gives; `name` is one of the checker's, or empty for none.

    Examples
    --------
    >>> q, k, v = np.zeros((1, 1, 2, 1)), np.zeros((1, 1, 1, 1)), np.ones((1, 1, 1, 1))
    >>> imitated("", q, k, v).ravel().tolist(), imitated("softmax-over-queries", q, k, v).ravel().tolist()
    ([1.0, 1.0], [0.5, 0.5])
    """
    steps = Steps(**IMITATIONS[name]) if name else Steps()
    with np.errstate(all="ignore"):
        return run(Problem(q, k, v, visible), Setting(**known), steps)


def both(given: str, name: str, q: Array, k: Array, v: Array, visible: Array | None = None) -> Numbers:
    """The numbers of attention with a fault and without."""
    return Numbers(given, imitated(name, q, k, v, visible), imitated("", q, k, v, visible))


def three_tokens() -> tuple[Array, Array, Array]:
    """Queries, keys and values of three tokens, two features wide."""
    return sines(1, 1, 3, 2), sines(1, 1, 3, 2, a=0.9), sines(1, 1, 3, 2, a=2.1)


def written(value: Any, most: int = 8) -> str:
    """A number, some numbers, or words, as the guide shows them: three decimals, and no more than fit.

    Examples
    --------
    >>> written(np.array([0.5, -0.0])), written("an error")
    ('0.5, 0', 'an error')
    """
    if isinstance(value, str):
        return value
    flat = [float(x) for x in np.ravel(value)]
    texts = [f"{x + 0.0:.3f}".rstrip("0").rstrip(".") if np.isfinite(x) else str(x) for x in flat[:most]]
    texts = ["0" if text == "-0" else text for text in texts]
    return ", ".join(texts) + (", …" if len(flat) > most else "")
