"""`column.py` and `row.py` of a room mirror each other: every line in which they differ is the convention."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from mha_tutorial import positions, reference

in_every_room = pytest.mark.parametrize("room", [reference, positions])


def lines_of(room) -> tuple[list[str], list[str]]:
    """The lines of the column file of a room, and those of its row file."""
    columns, rows = (Path(module.__file__).read_text(encoding="utf-8") for module in (room.column, room.row))
    return columns.splitlines(), rows.splitlines()


SAME_THING = {  # in columns: in rows
    "column": "row",
    "columns": "rows",
    "COLUMNS": "ROWS",
    "ColumnWeights": "RowWeights",
    "Stack": "Join",
    "tall": "long",
}


def words(line: str) -> Counter:
    """The words and numbers of a line, in any order, with those of one convention put for the other's."""
    line = re.sub(r"(eq-[\w-]+?)-rows?\b", r"\1", line.replace("eq-softmax-columns", "eq-softmax"))
    line = re.sub(r"(axis|KEYS) ?= ?-\d", r"\1", line)  # the axes themselves are the convention
    found = re.findall(r"\d+\.\d+|\w+", line)
    return Counter(letters for word in found for letters in _index_letters(SAME_THING.get(word, word)))


def _index_letters(word: str) -> str | list[str]:
    """The letters of an einsum term, in any order; any other word whole."""
    return sorted(word) if word in ("dmn", "nmd", "mn", "nm") else [word]


@in_every_room
def test_lines_that_differ_say_the_same_in_another_order(room):
    others = [(c, r) for c, r in zip(*lines_of(room), strict=True) if words(c) != words(r)]
    assert others == []


@in_every_room
def test_same_functions_in_the_same_order_with_the_same_parameters(room):
    def signatures(lines):
        tree = ast.parse("\n".join(lines))
        return [
            (
                node.name,
                [argument.arg for argument in (*node.args.args, *node.args.kwonlyargs)],
                [ast.unparse(default) for default in (*node.args.defaults, *node.args.kw_defaults)],
            )
            for node in tree.body
            if isinstance(node, ast.FunctionDef)
        ]

    columns, rows = lines_of(room)
    assert signatures(columns) == signatures(rows)
    assert len(columns) == len(rows)
