"""The parts of the mutation runs, and the list of mutants that no test can tell from the original."""

import ast

import mutants
import pytest


@pytest.mark.parametrize("name", mutants.PARTS)
def test_every_part_has_its_files_and_tests(name):
    part = mutants.PARTS[name]
    for pattern in part.files:
        assert list((mutants.ROOT / "mha_tutorial").glob(pattern)), pattern
    for pattern in part.tests:
        assert list((mutants.ROOT / "tests").glob(f"test_{pattern}.py")), pattern


def source_of(function: str) -> str:
    """The text of a function of the package, by its name in full."""
    parts = function.split(".")
    length = next(
        i for i in range(len(parts), 0, -1) if mutants.ROOT.joinpath(*parts[:i]).with_suffix(".py").exists()
    )
    text = mutants.ROOT.joinpath(*parts[:length]).with_suffix(".py").read_text(encoding="utf-8")
    node = ast.parse(text)
    for name in parts[length:]:
        (node,) = (one for one in node.body if getattr(one, "name", None) == name)
    return ast.get_source_segment(text, node)


@pytest.mark.parametrize(
    "entry", mutants.equivalents(), ids=lambda entry: f"{entry['functions'][0]}: {entry['new']}"
)
def test_every_equivalent_is_a_change_of_its_functions(entry):
    assert entry["why"].endswith(".")
    for function in entry["functions"]:
        assert entry["old"] in source_of(function), function


def test_names_are_read_as_mutmut_writes_them():
    assert mutants.function_of("mha_tutorial.masks.x__whole__mutmut_12") == "mha_tutorial.masks._whole"
    assert mutants.function_of("mha_tutorial.masks.x_offset__mutmut_1") == "mha_tutorial.masks.offset"
    assert mutants.function_of("mha_tutorial.masks.xǁPaddingǁ_sees__mutmut_3") == "mha_tutorial.masks.Padding._sees"
    assert mutants.function_of("mha_tutorial.masks.xǁMaskǁ__init____mutmut_3") == "mha_tutorial.masks.Mask.__init__"


def test_a_change_on_the_list_is_equivalent_and_no_other():
    mutant = "mha_tutorial.masks.x__whole__mutmut_12"
    line = "lengths.flags.writeable = False"
    assert mutants.is_equivalent(mutant, line, line.replace("False", "None"))
    assert not mutants.is_equivalent(mutant, line, line.replace("False", "True"))
    assert not mutants.is_equivalent("mha_tutorial.masks.x_offset__mutmut_1", line, line.replace("False", "None"))
    assert not mutants.is_equivalent(mutant, "other", "other")


def test_a_sample_is_always_the_same():
    names = [f"name {i}" for i in range(100)]
    assert mutants.drawn(names, 10) == mutants.drawn(names, 10) == sorted(set(mutants.drawn(names, 10)))
    assert len(mutants.drawn(names, 10)) == 10
    assert mutants.drawn(names, None) == mutants.drawn(names, 100) == names
