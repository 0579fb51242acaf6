"""Every labelled equation of the book has a function and a test, and none of them names one that is not there."""

from collections import Counter

import equations
import pytest

LABELS = [equation.label for equation in equations.equations()]


@pytest.mark.parametrize("label", LABELS)
def test_every_equation_has_a_test(label):
    assert label in equations.tests()


@pytest.mark.parametrize("label", LABELS)
def test_every_equation_has_a_function(label):
    assert label in equations.functions()


def test_labels_are_different_and_named_alike():
    assert [label for label, count in Counter(LABELS).items() if count > 1] == []
    assert [label for label in LABELS if not label.startswith("eq-")] == []


def test_markers_name_equations():
    assert set(equations.tests()) <= set(LABELS)


def test_docstrings_name_equations():
    assert set(equations.functions()) <= set(LABELS)


def test_an_equation_in_both_conventions_has_both_labels():
    """A label that ends in -row has a partner without it."""
    rows = {label for label in LABELS if label.endswith("-row")}
    assert {label.removesuffix("-row") for label in rows} <= set(LABELS)


def test_equations_are_read_off_notebooks(tmp_path):
    (tmp_path / "_toc.yml").write_text("root: book/a\nfile: book/b\n")
    (tmp_path / "book").mkdir()
    (tmp_path / "book/a.md").write_text("$$ 1 $$\n\n$$\nx = y\n$$ (eq-a)\n")
    (tmp_path / "book/b.ipynb").write_text(
        '{"cells": [{"cell_type": "code", "source": "$$ 2 $$ (eq-no)"},'
        ' {"cell_type": "markdown", "source": ["so $$\\n", "z\\n", "$$ (eq-b)"]}]}'
    )
    found = equations.equations(tmp_path)
    assert found == [equations.Equation("eq-a", "x = y", "book/a"), equations.Equation("eq-b", "z", "book/b")]
