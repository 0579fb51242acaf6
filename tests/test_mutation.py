"""The parts of the mutation runs, and the list of mutants that no test can tell from the original."""

import ast

import mutation
import pytest


@pytest.mark.parametrize("name", mutation.PARTS)
def test_every_part_has_its_files_and_tests(name):
    part = mutation.PARTS[name]
    for pattern in part.files:
        assert list((mutation.ROOT / "mha_tutorial").glob(pattern)), pattern
    for pattern in part.tests:
        assert list((mutation.ROOT / "tests").glob(f"test_{pattern}.py")), pattern


def source_of(function: str) -> str:
    """The text of a function of the package, by its name in full."""
    parts = function.split(".")
    length = next(
        i for i in range(len(parts), 0, -1) if mutation.ROOT.joinpath(*parts[:i]).with_suffix(".py").exists()
    )
    text = mutation.ROOT.joinpath(*parts[:length]).with_suffix(".py").read_text(encoding="utf-8")
    node = ast.parse(text)
    for name in parts[length:]:
        (node,) = (one for one in node.body if getattr(one, "name", None) == name)
    return ast.get_source_segment(text, node)


@pytest.mark.parametrize(
    "entry", mutation.equivalents(), ids=lambda entry: f"{entry['functions'][0]}: {entry['new']}"
)
def test_every_equivalent_is_a_change_of_its_functions(entry):
    assert entry["why"].endswith(".")
    for function in entry["functions"]:
        assert entry["old"] in source_of(function), function


def test_names_are_read_as_mutmut_writes_them():
    assert mutation.function_of("mha_tutorial.masks.x__whole__mutmut_12") == "mha_tutorial.masks._whole"
    assert mutation.function_of("mha_tutorial.masks.x_offset__mutmut_1") == "mha_tutorial.masks.offset"
    assert (
        mutation.function_of("mha_tutorial.masks.xǁPaddingǁ_sees__mutmut_3") == "mha_tutorial.masks.Padding._sees"
    )
    assert (
        mutation.function_of("mha_tutorial.masks.xǁMaskǁ__init____mutmut_3") == "mha_tutorial.masks.Mask.__init__"
    )


def test_a_change_on_the_list_is_equivalent_and_no_other():
    mutant = "mha_tutorial.masks.x__whole__mutmut_12"
    line = "lengths.flags.writeable = False"
    assert mutation.is_equivalent(mutant, line, line.replace("False", "None"))
    assert not mutation.is_equivalent(mutant, line, line.replace("False", "True"))
    assert not mutation.is_equivalent("mha_tutorial.masks.x_offset__mutmut_1", line, line.replace("False", "None"))
    assert not mutation.is_equivalent(mutant, "other", "other")


def test_a_sample_is_always_the_same():
    names = [f"name {i}" for i in range(100)]
    assert mutation.drawn(names, 10) == mutation.drawn(names, 10) == sorted(set(mutation.drawn(names, 10)))
    assert len(mutation.drawn(names, 10)) == 10
    assert mutation.drawn(names, None) == mutation.drawn(names, 100) == names
