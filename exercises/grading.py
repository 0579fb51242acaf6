"""How an answer is graded: the reader's function is called, its result compared, a known mistake named."""

import importlib.util
import os
import traceback
import warnings
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
        self.warnings: list[str] = []  # of the last call

    def __getattr__(self, name):
        function, shape_only_weights = getattr(self._module, name), None

        def called(*arguments):
            nonlocal shape_only_weights
            given = [np.copy(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                try:
                    result = function(*given)
                except NotImplementedError as error:
                    shape_only_weights = traceback.extract_tb(error.__traceback__)[-1].name
            if shape_only_weights:
                pytest.fail(f"{shape_only_weights} is not filled in yet", pytrace=False)
            if any(not np.array_equal(*pair) for pair in zip(given, arguments, strict=True)):
                pytest.fail(f"{name} changes what it is given; it should make a new array", pytrace=False)
            self.warnings = [str(warning.message) for warning in caught]
            return result

        return called


def several(answers, count: int, hint: str) -> tuple:
    """Take the answers of a function that returns more than one array."""
    if not isinstance(answers, tuple | list) or len(answers) != count:
        what = f"{len(answers)} of them" if isinstance(answers, tuple | list) else type(answers).__name__
        pytest.fail(f"Not yet: expected {count} arrays, got {what}.\nHint: {hint}.", pytrace=False)
    return tuple(answers)


def compare(answer, right, hint: str, mistakes: dict | None = None) -> None:
    """Compare an answer with the right one; where it is wrong, name the mistake that gives just that, or hint."""
    right = np.asarray(right)
    if not isinstance(answer, np.ndarray | np.generic | int | float):
        pytest.fail(f"Not yet: expected an array, got {type(answer).__name__}.\nHint: {hint}.", pytrace=False)
    answer = np.asarray(answer)
    if same(answer, right):
        return
    for mistake, value in (mistakes or {}).items():
        if same(answer, np.asarray(value)):
            pytest.fail(f"Not yet: {mistake}.", pytrace=False)
    if answer.shape != right.shape:
        wrong = f"expected the shape {right.shape}, got {answer.shape}"
    elif np.isnan(answer).any():
        wrong = "some numbers are NaN"
    elif _kind(answer) != _kind(right) or answer.dtype.itemsize < right.dtype.itemsize:
        wrong = f"expected {right.dtype}, got {answer.dtype}"
    elif not right.shape:
        wrong = f"{answer} is not the number"
    else:
        wrong = "the shape is right, the numbers are not"
    pytest.fail(f"Not yet: {wrong}.\nHint: {hint}.", pytrace=False)


def same(one: np.ndarray, other: np.ndarray) -> bool:
    """Whether two arrays have one shape, one kind of numbers, and agree to nine digits of the largest."""
    if one.shape != other.shape or _kind(one) != _kind(other):
        return False
    finite = np.abs(other[np.isfinite(other)], dtype=float)
    return np.allclose(one, other, rtol=1e-9, atol=1e-9 * finite.max(initial=0), equal_nan=True)


def _kind(array: np.ndarray) -> str:
    return "i" if array.dtype.kind == "u" else array.dtype.kind
