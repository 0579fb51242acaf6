"""The modules of the package need each other in one direction: what imports what has no circle."""

import ast
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter

import equations
import pytest

PACKAGE = equations.ROOT / "mha_tutorial"


def modules() -> dict[str, ast.Module]:
    """Every module by its dotted name; a room goes by the name of the room."""
    trees = {}
    for path in PACKAGE.rglob("*.py"):
        parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        trees[name] = ast.parse(path.read_text(encoding="utf-8"))
    return trees


def imports(name: str, trees: dict[str, ast.Module]) -> Iterator[str]:
    """What a module imports anywhere: on top, within functions, and for type checkers alone.

    ``from room import name`` needs the module ``room.name`` if there is one, and the room itself if it is the room
    that defines or re-exports the name.
    """
    is_room = any(other.startswith(f"{name}.") for other in trees)
    for node in ast.walk(trees[name]):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in trees)
        elif isinstance(node, ast.ImportFrom):
            parts = name.split(".") if is_room else name.split(".")[:-1]
            base = ".".join(parts[: len(parts) - node.level + 1]) if node.level else ""
            source = ".".join(filter(None, (base, node.module)))
            for alias in node.names:
                found = f"{source}.{alias.name}"
                yield found if found in trees else source


def graph(trees: dict[str, ast.Module]) -> dict[str, set[str]]:
    return {name: {needed for needed in imports(name, trees) if needed in trees} - {name} for name in trees}


def test_no_module_needs_itself_through_others():
    try:
        TopologicalSorter(graph(modules())).prepare()
    except CycleError as error:
        pytest.fail(" imports ".join(reversed(error.args[1])))


def test_a_circle_is_found_wherever_it_hides():
    first = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from . import room"
    second = "def late():\n    from ..first import name\n    return name"
    trees = {"p": "", "p.first": first, "p.room": "from .second import late", "p.room.second": second}
    found = graph({name: ast.parse(text) for name, text in trees.items()})
    assert found == {"p": set(), "p.first": {"p.room"}, "p.room": {"p.room.second"}, "p.room.second": {"p.first"}}
    with pytest.raises(CycleError):
        TopologicalSorter(found).prepare()


def test_the_core_imports_nothing_above_it():
    """Rooms for torch, files and figures need the core; NumPy's layers and formulas need none of them."""
    above = {
        "torch",
        "layouts",
        "figures",
        "analysis",
        "examples",
        "explorers",
        "results",
        "printing",
        "cli",
        "__main__",
    }
    core = {"_checks", "masks", "weights", "trace", "reference", "layer", "gradients", "fast", "positions", "block"}
    for name, needed in graph(modules()).items():
        if room(name) in core:
            assert not {other for other in needed if room(other) in above | {""}}, name


def room(name: str) -> str:
    """The part of a dotted name behind the package's own, which has none."""
    return name.partition(".")[2].partition(".")[0]
