"""The equation ledger: which equations the book labels, which functions compute them, which tests check them.

Everything is read off the files: labels from the chapters, functions from the ``:eq:`` roles in the
package's docstrings, tests from their ``equation`` markers. The site's reference page and the test that
no equation is left without a test both stand on this.
"""

import ast
import functools
import json
import re
from collections import defaultdict
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LABELLED = re.compile(r"\$\$(?P<latex>(?:(?!\$\$).)*?)\$\$\s*\((?P<label>[\w-]+)\)", re.DOTALL)
DISPLAYED = re.compile(r"\$\$.*?\$\$(?:\s*\([\w-]+\))?", re.DOTALL)
NAMES = {  # titles that a label does not spell
    "alibi": "ALiBi",
    "exp2": "Powers of two for exponentials",
    "ov": "OV circuit",
    "qk": "QK circuit",
    "rms norm": "RMS norm",
    "rope": "RoPE",
    "rope relative": "RoPE scores by distance",
    "swiglu": "SwiGLU",
}
ROLE = re.compile(r":eq:`([\w-]+)`")


class Equation(NamedTuple):
    """A labelled equation of a chapter."""

    label: str
    latex: str
    chapter: str  # path below the root, without the ending


class Test(NamedTuple):
    """A test that is bound to an equation by its marker."""

    file: str
    name: str
    source: str


def markdown(path: Path) -> str:
    """The text of a chapter: its markdown cells, or the whole file."""
    if path.suffix != ".ipynb":
        return path.read_text(encoding="utf-8")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def chapters(root: Path = ROOT) -> list[Path]:
    """The chapters in the order of the table of contents."""
    names = re.findall(r"(?:root|file): (book/\S+)", (root / "_toc.yml").read_text(encoding="utf-8"))
    return [next(root.glob(f"{name}.*")) for name in names]


def title(chapter: str, root: Path = ROOT) -> str:
    """The heading of a chapter."""
    return re.search(r"^# (.+)$", markdown(next(root.glob(f"{chapter}.*"))), re.MULTILINE)[1]


def equations(root: Path = ROOT) -> list[Equation]:
    """Every labelled equation, in the order of the book."""
    return [
        Equation(match["label"], match["latex"].strip(), path.relative_to(root).with_suffix("").as_posix())
        for path in chapters(root)
        for match in LABELLED.finditer(markdown(path))
    ]


def pair(name: str) -> str:
    """What the labels, or anchors, of one equation in both conventions have in common."""
    return name.removesuffix("-row").replace("eq-softmax-rows", "eq-softmax-columns")


def words(label: str) -> str:
    """A label as a title."""
    name = pair(label).removeprefix("eq-").replace("-columns", "").replace("-", " ")
    return NAMES.get(name, name[0].upper() + name[1:])


@functools.cache
def functions(root: Path = ROOT) -> dict[str, list[str]]:
    """For each label, the functions whose docstrings name it."""
    named, public = defaultdict(list), _public_names(root)
    for path in sorted((root / "mha_tutorial").rglob("*.py")):
        module = ".".join(path.relative_to(root).with_suffix("").parts)
        for scope, node in _definitions(ast.parse(path.read_text(encoding="utf-8"))):
            home = "mha_tutorial" if (module, [*scope, node.name][0]) in public else module
            for label in dict.fromkeys(ROLE.findall(ast.get_docstring(node) or "")):
                named[label].append(".".join([home, *scope, node.name]))
    return dict(named)


def _public_names(root: Path) -> set[tuple[str, str]]:
    """Module and name of what the package exports: readers know these by the shorter name."""
    tree = ast.parse((root / "mha_tutorial" / "__init__.py").read_text(encoding="utf-8"))
    imports = [node for node in tree.body if isinstance(node, ast.ImportFrom)]
    return {(f"mha_tutorial.{node.module}", alias.name) for node in imports for alias in node.names}


@functools.cache
def tests(root: Path = ROOT) -> dict[str, list[Test]]:
    """For each label, the tests whose ``equation`` markers name it."""
    bound = defaultdict(list)
    for path in sorted((root / "tests").glob("test_*.py")):
        text = path.read_text(encoding="utf-8")
        for _, node in _definitions(ast.parse(text)):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            source = "\n".join(text.splitlines()[first - 1 : node.end_lineno])
            for label in _marked(node):
                bound[label].append(Test(path.relative_to(root).as_posix(), node.name, source))
    return dict(bound)


def _definitions(tree, scope=()):
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            yield scope, node
            yield from _definitions(node, (*scope, node.name))


def _marked(node) -> list[str]:
    return [
        argument.value
        for decorator in node.decorator_list
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.equation"
        for argument in decorator.args
    ]
