"""What the types say to those who use the package: pyright, strict, on README's example and on every docstring's.

The package is read from its wheel, as an installed one is: nothing is known of it but what it declares.
"""

import ast
import doctest
import importlib
import inspect
import json
import re
import runpy
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterator
from types import ModuleType

import equations
import numpy as np

ROOT = equations.ROOT
# which have an `__all__`
HOMES = [
    "mha_tutorial",
    "mha_tutorial.layouts",
    "mha_tutorial.torch",
    "mha_tutorial.models",
    "mha_tutorial.analysis.heads",
]
MODULES = ["masks", "gradients", "torch.masks", "analysis.circuits", "analysis.counting", "analysis.scaling"]
MODULES += ["reference.column", "reference.row", "reference.loops"]
MODULES += ["positions", "positions.column", "positions.row", "torch.positions", "block"]


def public_names() -> dict[object, tuple[str, str]]:
    """Where to import each public function and class from, and its name there."""
    found = {}
    for home in HOMES + [f"mha_tutorial.{name}" for name in MODULES]:
        module = importlib.import_module(home)
        own = [name for name, thing in vars(module).items() if getattr(thing, "__module__", None) == home]
        for name in getattr(module, "__all__", own):
            thing = getattr(module, name)
            if inspect.isfunction(thing) or inspect.isclass(thing):
                found.setdefault(thing, (home, name))
    return {thing: place for thing, place in found.items() if not place[1].startswith("_")}


def examples() -> Iterator[tuple[str, str]]:
    """The example of each public function, class and method, as a program of its own."""
    public = public_names()
    for thing in public:
        module = sys.modules[thing.__module__]
        for test in doctest.DocTestFinder().find(thing, globs=vars(module)):
            if test.examples:
                yield f"{module.__name__}.{test.name}", program(test, module, public)


def program(test: doctest.DocTest, module: ModuleType, public: dict[object, tuple[str, str]]) -> str:
    """A docstring's example, with the imports that it does without there, and its expressions printed."""
    lines = [printed(example.source.rstrip()) for example in test.examples]
    nodes = list(ast.walk(ast.parse("\n".join(lines))))
    made = {
        alias.asname or alias.name
        for node in nodes
        if isinstance(node, ast.Import | ast.ImportFrom)
        for alias in node.names
    }
    made |= {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    wanted = {node.id for node in nodes if isinstance(node, ast.Name)} - made
    known, imports = {"np": np} | vars(module), []
    for name in sorted(wanted & known.keys()):
        thing = known[name]
        is_module = inspect.ismodule(thing)
        imports.append(
            f"import {thing.__name__} as {name}" if is_module else f"from {public[thing][0]} import {name}"
        )
    return "\n".join([*imports, *lines]) + "\n"


def printed(source: str) -> str:
    """An expression, which would be shown, within a print; torch does not say of what its `tolist` makes a list."""
    is_expression = isinstance(ast.parse(source).body[0], ast.Expr)
    return f"print(\n{source.replace('.tolist()', '')}\n)" if is_expression else source


def test_calls_from_outside_pass_pyright_at_its_strictest(tmp_path):
    readme = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)
    programs = dict(examples()) | {f"readme_{i}": text for i, text in enumerate(readme)}
    programs["usage"] = (ROOT / "tests/usage.py").read_text(encoding="utf-8")
    for name, text in programs.items():
        (tmp_path / f"{name.replace('.', '_')}.py").write_text(text, encoding="utf-8")
    python = installed(tmp_path / "environment")
    config = {"typeCheckingMode": "strict", "include": ["*.py"], "pythonVersion": "3.11"}
    (tmp_path / "pyrightconfig.json").write_text(json.dumps(config))
    command = [
        sys.executable,
        "-m",
        "basedpyright",
        "--outputjson",
        "--pythonpath",
        str(python),
        "-p",
        str(tmp_path),
    ]
    report = json.loads(subprocess.run(command, capture_output=True, text=True, check=False).stdout)
    found = [
        f"{one['file'].rpartition('/')[2]}:{one['range']['start']['line'] + 1}: {one['message']}"
        for one in report["generalDiagnostics"]
    ]
    assert not found, "\n".join(found)
    assert report["summary"]["filesAnalyzed"] == len(programs)


def installed(folder):
    """The interpreter of an environment with the wheel, and with everything that this one has."""
    venv.create(folder, with_pip=False)
    packages = next(folder.glob("lib/python*/site-packages"), folder / "Lib/site-packages")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(packages)
    (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
    return next(path for path in (folder / "bin/python", folder / "Scripts/python.exe") if path.exists())


def test_what_pyright_read_runs(capsys):
    runpy.run_path(str(ROOT / "tests/usage.py"))
    assert "(2, 3, 12)" in capsys.readouterr().out
