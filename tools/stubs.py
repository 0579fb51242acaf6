"""Make the exercises' stubs from their solutions: every function keeps its name, its docstring and nothing else.

python tools/stubs.py            write exercises/*.py; a file that somebody has worked on is left alone
python tools/stubs.py --check    only say whether they are as they would be written
python tools/stubs.py --force    write them all anew, and lose the work in them
"""

import argparse
import ast
import os
import sys
from pathlib import Path

EXERCISES = Path(__file__).parents[1] / "exercises"
BODY = "    raise NotImplementedError  # your lines here"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--check", action="store_true", help="write nothing")
    choice.add_argument("--force", action="store_true", help="overwrite what was worked on")
    options = parser.parse_args()
    worked_on = [path for path in targets(EXERCISES) if path.exists() and path.read_text() != stub_of(path)]
    if options.check:
        missing = [path for path in targets(EXERCISES) if not path.exists()]
        sys.exit("not as the solutions give them: " + names(worked_on + missing) if worked_on + missing else 0)
    if worked_on and not options.force:
        print(f"left alone: {names(worked_on)}; --force writes them anew")
    write(EXERCISES, keep=() if options.force else worked_on)


def targets(folder: Path) -> list[Path]:
    """The files of stubs that belong into a folder, one for every file of solutions."""
    return [folder / path.name for path in sorted((EXERCISES / "solutions").glob("*.py"))]


def write(folder: Path, keep=()) -> None:
    """Write the stubs into a folder, each file whole or not at all."""
    for path in targets(folder):
        if path not in keep:
            scratch = path.with_name(path.name + ".new")
            scratch.write_text(stub_of(path), encoding="utf-8")
            os.replace(scratch, path)


def stub_of(path: Path) -> str:
    """The solutions of that name with the bodies of all functions taken out."""
    text = (EXERCISES / "solutions" / path.name).read_text(encoding="utf-8")
    lines = text.splitlines()
    for function in reversed([node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)]):
        docstring = function.body[0]
        lines[docstring.end_lineno : function.end_lineno] = [BODY]
    return "\n".join(lines) + "\n"


def names(paths: list[Path]) -> str:
    return ", ".join(str(path.relative_to(EXERCISES.parent)) for path in paths)


if __name__ == "__main__":
    main()
