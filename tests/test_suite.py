"""What a call of pytest runs: without arguments all tests, doctests and notebooks; of one file, that file alone."""

import json
import subprocess
import sys
import tomllib

import equations

ROOT = equations.ROOT
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["pytest"]["ini_options"]


def collected(*arguments: str) -> str:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-p", "no:cacheprovider", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 5), done.stdout + done.stderr  # 5: nothing was collected
    return done.stdout


def test_pytest_alone_runs_tests_and_doctests_and_every_notebook():
    assert OPTIONS["testpaths"] == ["tests", "mha_tutorial", "book"]
    assert "--doctest-modules" in OPTIONS["addopts"]
    found = collected("-q", "-o", "testpaths=book").splitlines()
    notebooks = [path for path in equations.chapters() if path.suffix == ".ipynb"]
    assert notebooks
    for path in notebooks:
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        some = sum(cell["cell_type"] == "code" for cell in cells)
        name = f"{path.relative_to(ROOT).as_posix()}::"
        assert [line for line in found if line.startswith(name)] == [f"{name}Cell {i}" for i in range(some)]


def test_one_file_is_run_without_coverage_and_without_nbval_if_need_be():
    assert not [option for option in OPTIONS["addopts"] if "cov" in option or "nbval" in option]
    report = collected("-p", "no:nbval", "mha_tutorial/masks.py")
    assert "notebooks: not run, since nbval is not installed" in report
    assert "mha_tutorial.masks.Causal" in report
