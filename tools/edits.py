"""Break the package, one edit at a time, and see the tests that are bound to it fail.

    python tools/edits.py                  every edit of tests/edits.toml
    python tools/edits.py eq-attention     those that must break this equation or test

Each edit is made in a copy of the project. It counts as caught when every test it names fails there and had
passed before.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "book/_ext"))
import equations  # noqa: E402

COPIED = ("book", "mha_tutorial", "tests", "tools", "conftest.py", "pyproject.toml", "_toc.yml")


def load() -> list[dict]:
    return tomllib.loads((ROOT / "tests/edits.toml").read_text(encoding="utf-8"))["edit"]


def tests_of(name: str) -> list[str]:
    """The tests bound to an equation's label, or the test with this name, of two the one among the cases."""
    if not name.startswith("test_"):
        return [f"{test.file}::{test.name}" for test in equations.tests()[name]]
    files = [file for file in sorted(ROOT.glob("tests/test_*.py")) if f"def {name}(" in file.read_text("utf-8")]
    files = [file for file in files if "_cases" in file.name] or files
    if len(files) != 1:
        raise ValueError(f"{name} must be the name of one test, found it in {[file.name for file in files]}")
    return [f"{files[0].relative_to(ROOT).as_posix()}::{name}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help="labels of equations or names of tests")
    names = parser.parse_args().names
    edits = [edit for edit in load() if not names or set(names) & set(edit["breaks"])]
    everything = sorted({test for edit in edits for name in edit["breaks"] for test in tests_of(name)})
    with tempfile.TemporaryDirectory() as scratch:
        if not _passes(everything, _copy(Path(scratch) / "unbroken")):
            sys.exit("the tests fail before anything is broken")
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            outcomes = list(pool.map(lambda pair: _try(*pair, Path(scratch)), enumerate(edits)))
    missed = [line for lines in outcomes for line in lines]
    print(f"{len(edits)} edits, {sum(len(edit['breaks']) for edit in edits)} bound tests, {len(missed)} not caught")
    sys.exit("\n".join(missed) if missed else 0)


def _try(number: int, edit: dict, scratch: Path) -> list[str]:
    """Make one edit and run what it must break, test by test; return what passed all the same."""
    copy = _copy(scratch / str(number))
    path = copy / edit["file"]
    path.write_text(path.read_text(encoding="utf-8").replace(edit["old"], edit["new"]), encoding="utf-8")
    missed = [
        f"{edit['file']}: {edit['what']}: {name} still passes"
        for name in edit["breaks"]
        if _passes(tests_of(name), copy)
    ]
    print(f"{'MISSED' if missed else 'caught'}  {', '.join(edit['breaks'])}: {edit['what']}", flush=True)
    shutil.rmtree(copy)
    return missed


def _copy(target: Path) -> Path:
    target.mkdir()
    for name in COPIED:
        source = ROOT / name
        (shutil.copytree if source.is_dir() else shutil.copy)(source, target / name)
    return target


def _passes(tests: list[str], folder: Path) -> bool:
    """Whether any of the tests passes; an error that is no failure, as of an import, is raised."""
    command = [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", "-p", "no:nbval", *tests]
    environment = os.environ | {"PYTHONPATH": str(folder)}
    outcome = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if outcome.returncode not in (0, 1):
        raise RuntimeError(outcome.stdout + outcome.stderr)
    return outcome.returncode == 0


if __name__ == "__main__":
    main()
