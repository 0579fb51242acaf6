"""Printing for the page: the same digits everywhere."""

import io
import sys
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest

from mha_tutorial import show
from mha_tutorial.printing import progress


@pytest.mark.parametrize(
    ("array", "printed"),
    [
        (np.array([-0.0001, 0.0004, -0.0]), "[0. 0. 0.]"),
        (np.array([[1 / 3, 20.0]]), "[[ 0.333 20.000]]"),
        (np.array([0.0625, 1e-9, 123456.0]), "[     0.062      0.000 123456.000]"),
        (np.array([1.5, np.nan, -np.inf]), "[ 1.5  nan -inf]"),
        (np.array([1, -2]), "[ 1 -2]"),
        (np.array([1e300, 0.5]), "[1.e+300 5.e-001]"),
        (np.array([True, False]), "[ True False]"),
        (np.array([[Fraction(1, 3), Fraction(-2)]], dtype=object), "[[1/3  -2]]"),
        (Fraction(7, 2), "7/2"),
        (2.0004, "2."),
    ],
)
def test_what_is_printed(array, printed, capsys):
    show(array)
    assert capsys.readouterr().out == printed + "\n"


def test_names_and_decimals(capsys):
    show(np.ones(1), decimals=1, weights=np.array([[0.25, 0.75]]), count=3)
    assert capsys.readouterr().out == "[1.]\nweights (1, 2)\n[[0.2 0.8]]\ncount = 3\n"


@pytest.mark.parametrize("array", [0.1249, np.array([[0.3, -0.1251]]), [2.0, 0.12505]])
def test_a_number_near_a_rounding_edge_is_refused(array, capsys):
    with pytest.raises(ValueError, match=r"0.12\d+ lies within 0.0002 of a rounding edge at 2 decimals"):
        show(array, decimals=2, margin=2e-4)
    with pytest.raises(ValueError, match="rounding edge"):
        show(a=array, decimals=2, margin=2e-4)
    assert capsys.readouterr().out == ""
    show(array, decimals=2, margin=1e-5)
    assert capsys.readouterr().out


def test_long_arrays_are_printed_whole(capsys):
    show(np.arange(2000))
    assert "..." not in capsys.readouterr().out


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_progress_is_a_bar_on_a_terminal_and_is_erased(monkeypatch):
    stream = Terminal()
    monkeypatch.setattr(sys, "stdout", stream)
    seen = [(item, stream.getvalue().rpartition("\r")[2]) for item in progress("abcdef", 3)]
    # a third of the bar for every two of six; it is drawn anew only where it changes
    assert seen == [
        ("a", "··· 0/6"),
        ("b", "··· 0/6"),
        ("c", "█·· 2/6"),
        ("d", "█·· 2/6"),
        ("e", "██· 4/6"),
        ("f", "██· 4/6"),
    ]
    assert stream.getvalue().endswith("\r" + " " * len("██· 4/6") + "\r")


def test_progress_is_silent_where_nobody_reads(capsys):
    assert list(progress(range(5))) == [0, 1, 2, 3, 4]
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("asks", "silent"), [(True, False), (False, True)])
def test_progress_is_shown_in_a_notebook_whose_reader_could_be_asked(asks, silent, monkeypatch, capsys):
    """Programs that run notebooks, nbval among them, let the kernel ask nobody."""
    shell = SimpleNamespace(kernel=SimpleNamespace(_allow_stdin=asks))
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert list(progress([1])) == [1]
    assert (capsys.readouterr().out == "") == silent
