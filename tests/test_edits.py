"""Every equation and every known fault has an edit of the package under which its test was seen to fail."""

import ast

import edits
import equations
import pytest

from mha_tutorial.examples import guide

EDITS = edits.load()
BROKEN = {name for edit in EDITS for name in edit["breaks"]}


@pytest.mark.parametrize("equation", equations.equations(), ids=lambda equation: equation.label)
def test_every_equation_has_an_edit(equation):
    assert equation.label in BROKEN


@pytest.mark.parametrize("file", ["test_cases.py", "test_torch_cases.py"])
def test_every_fault_has_an_edit(file):
    tree = ast.parse((equations.ROOT / "tests" / file).read_text(encoding="utf-8"))
    names = {node.name for node in tree.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")}
    assert names <= BROKEN


@pytest.mark.parametrize("case", guide.CASES, ids=lambda case: case.id)
def test_every_case_of_the_guide_has_an_edit_that_puts_its_fault_in(case):
    put_in = [edit["breaks"] for edit in EDITS if case.id in edit["what"].partition(":")[0].split(", ")]
    assert any(case.test in names for names in put_in)


@pytest.mark.parametrize("edit", EDITS, ids=[f"{number}" for number in range(len(EDITS))])
def test_edits_can_be_made(edit):
    assert (equations.ROOT / edit["file"]).read_text(encoding="utf-8").count(edit["old"]) == 1
    for name in edit["breaks"]:
        assert edits.tests_of(name)
