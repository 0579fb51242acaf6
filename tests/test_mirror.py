"""`column.py` and `row.py` mirror each other: every line in which they differ is the convention."""

import ast
import re
from collections import Counter
from pathlib import Path

from mha_tutorial.reference import column, row

COLUMN, ROW = (Path(module.__file__).read_text(encoding="utf-8").splitlines() for module in (column, row))

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


def test_lines_that_differ_say_the_same_in_another_order():
    others = [(c, r) for c, r in zip(COLUMN, ROW, strict=True) if words(c) != words(r)]
    assert others == []


def test_same_functions_in_the_same_order_with_the_same_parameters():
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

    assert signatures(COLUMN) == signatures(ROW)
    assert len(COLUMN) == len(ROW)
