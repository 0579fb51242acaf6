"""How an answer is graded: the reader's function is called, its result compared, a known mistake named."""

import importlib.util
import os
from pathlib import Path

import numpy as np
import pytest

ANSWERS = Path(os.environ.get("ANSWERS", Path(__file__).parent))  # the solutions are graded in the same way


class Answers:
    """The functions of one file of answers; none may write to what it is given."""

    def __init__(self, name: str):
        spec = importlib.util.spec_from_file_location(f"answers_{name}", ANSWERS / f"{name}.py")
        self._module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self._module)

    def __getattr__(self, name):
        function = getattr(self._module, name)

        def called(*arguments):
            given = [np.copy(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]
            try:
                result = function(*given)
            except NotImplementedError:
                result = NotImplemented
            if result is NotImplemented:
                pytest.fail(f"{name} is not filled in yet", pytrace=False)
            if any(not np.array_equal(*pair) for pair in zip(given, arguments, strict=True)):
                pytest.fail(f"{name} changes what it is given; it should make a new array", pytrace=False)
            return result

        return called


def compare(answer, right, hint: str, mistakes: dict | None = None) -> None:
    """Compare an answer with the right one; where it is wrong, name the mistake that gives just that, or hint."""
    right = np.asarray(right)
    if not isinstance(answer, np.ndarray | np.generic | int):
        pytest.fail(f"expected an array, got {type(answer).__name__}\nHint: {hint}.", pytrace=False)
    answer = np.asarray(answer)
    if same(answer, right):
        return
    for mistake, value in (mistakes or {}).items():
        if same(answer, np.asarray(value)):
            pytest.fail(f"Not yet: {mistake}.", pytrace=False)
    wrong = (
        f"expected the shape {right.shape}, got {answer.shape}"
        if answer.shape != right.shape
        else f"expected {right.dtype}, got {answer.dtype}"
        if answer.dtype.kind != right.dtype.kind
        else "the shape is right, the numbers are not"
    )
    pytest.fail(f"Not yet: {wrong}.\nHint: {hint}.", pytrace=False)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have one shape, one kind of numbers, and agree to nine digits."""
    alike = one.shape == other.shape and one.dtype.kind == other.dtype.kind
    return alike and np.allclose(one, other, rtol=1e-9, equal_nan=True)
