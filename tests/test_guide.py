"""The field guide: every case is there, its numbers differ, and what it names exists."""

import re

import equations
import numpy as np
import pytest

from mha_tutorial.check import FAULTS
from mha_tutorial.examples import guide

FILES = sorted((equations.ROOT / "tests").rglob("test_*.py"))
TESTS = [name for file in FILES for name in re.findall(r"^def (test_\w+)\(", file.read_text("utf-8"), re.MULTILINE)]
IDS = [f"A{number:02}" for number in range(1, 36)] + [f"M{number:02}" for number in range(1, 22)]


def test_every_case_is_in_the_guide_once():
    assert sorted(case.id for case in guide.CASES) == IDS


@pytest.mark.parametrize("case", guide.CASES, ids=lambda case: case.id)
def test_a_case_of_the_guide_shows_what_is_wrong(case):
    given, wrong, right = case.numbers()
    assert given
    assert guide.written(wrong) != guide.written(right)
    assert case.kind in guide.KINDS
    assert case.test in TESTS
    assert not case.check or case.check in FAULTS
    for thread in case.threads:
        assert re.fullmatch(r"https://\S+|[\w.-]+/[\w.-]+[#!]\d+", thread)


NUMBERS = {  # the values of the cases, derived in the tests of these names
    "A01": (2.0, 2.5),
    "A08": (0.0, 2.0),
    "A09": (9.0, 1.0),
    "A10": (1.10373071, 17.31058579),
    "A31": (0.0, 1.53788284),
    "M04": (0.5, 0.56217650),
    "M07": (1.0, 0.25),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers_of_the_guide_are_those_of_the_cases(name):
    (case,) = [case for case in guide.CASES if case.id == name]
    _, *found = case.numbers()
    np.testing.assert_allclose([np.ravel(x)[0] for x in found], NUMBERS[name], rtol=1e-8)


def test_a_listing_shows_all_cases_of_a_kind():
    for kind in guide.KINDS:
        text = guide.listing(kind)
        cases = [case for case in guide.CASES if case.kind == kind]
        assert re.findall(r"\((\w\d\d)\)$", text, re.MULTILINE) == [case.id for case in cases]
    assert "test `test_a_new_file_has_the_mode_that_the_umask_leaves`" in text
    assert guide.link("https://stats.stackexchange.com/questions/619612").startswith("[stats.stackexchange.com](")


def test_long_results_are_cut():
    assert guide.written(np.arange(9.0)) == "0, 1, 2, 3, 4, 5, 6, 7, …"
