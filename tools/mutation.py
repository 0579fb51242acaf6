"""Break the package everywhere, one small change at a time (mutmut), and count what the tests let pass.

    python tools/mutation.py reference             every mutant of this part, going on where it was stopped
    python tools/mutation.py fast --sample 300     as many, always the same ones, drawn over the part

Each part has its own tests and its own folder, `mutants/PART`; a mutant is run once, until its function changes.
Survivors that `tests/mutants.toml` proves equivalent are set aside. Of the others 95 % must be killed (one that
hangs is), and no more than 3 % of all may be called equivalent.
"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tomllib
from collections import Counter
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
COPIED = ("book/_ext", "mha_tutorial", "tests", "tools", "conftest.py", "pyproject.toml")
SEED = 2017  # of the sample
KILLED, EQUIVALENT = 0.95, 0.03  # at least, at most


class Part(NamedTuple):
    """What is changed, and the tests that must notice."""

    files: list[str]
    tests: list[str]


PARTS = {
    "reference": Part(
        ["reference/*.py", "_finite.py"],
        ["attention", "multi_head", "online", "numpy_edges", "signatures", "errors", "cases", "worked"],
    ),
    "masks": Part(["masks.py"], ["masks", "counting", "cases", "errors"]),
    "layer": Part(["layer.py"], ["multi_head", "numpy_edges", "signatures", "errors", "cases"]),
    "gradients": Part(["gradients.py"], ["gradients", "numpy_edges", "cases"]),
    "fast": Part(["fast/*.py"], ["fast*", "process"]),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", choices=PARTS, nargs="*", default=list(PARTS), help="all, if left out")
    parser.add_argument("--sample", type=int, metavar="N", help="how many of the part, if not all")
    arguments = parser.parse_args()
    failed = [name for name in arguments.part if not run(name, arguments.sample)]
    sys.exit(f"not enough: {', '.join(failed)}" if failed else 0)


def run(name: str, sample: int | None) -> bool:
    """Run what is left of a part, print how it went, and say whether that is enough."""
    folder = ROOT / "mutants" / name
    prepare(folder, PARTS[name])
    made = mutmut(folder, "run", "no-such-name")  # makes the mutants, times the tests, and finds nothing to run
    if "nothing matches" not in made:
        sys.exit(made[-3000:])
    found = outcomes(folder)
    chosen = drawn(sorted(found), sample)
    left = [mutant for mutant in chosen if found[mutant] in ("not checked", "check was interrupted by user")]
    print(f"{name}: {len(chosen)} of {len(found)} mutants, {len(left)} of them to run", flush=True)
    if left:
        told = mutmut(folder, "run", *left)
        rates = re.findall(r"([\d.]+) mutations/second", told) or sys.exit(told[-3000:])
        print(f"{name}: {rates[-1]} mutants a second, on {os.cpu_count()} cores")
    return report(folder, name, chosen)


def prepare(folder: Path, part: Part) -> None:
    """Copy the project as it is now, and tell mutmut what to change and which tests to run."""
    for item in COPIED:
        source, target = ROOT / item, folder / item
        if source.is_dir():
            shutil.rmtree(target, ignore_errors=True)
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target)
    tests = sorted({path for name in part.tests for path in (ROOT / "tests").glob(f"test_{name}.py")})
    settings = {
        "source_paths": ["mha_tutorial"],
        "only_mutate": [f"mha_tutorial/{pattern}" for pattern in part.files],
        "also_copy": ["conftest.py", "book", "tools"],
        "pytest_add_cli_args": ["-p", "no:cacheprovider", "-p", "no:nbval"],  # importing nbval takes seconds
        "pytest_add_cli_args_test_selection": [path.relative_to(ROOT).as_posix() for path in tests],
        "process_isolation": "forkserver",  # threads, of torch or of the fast layer, do not survive a fork
        "use_git_change_detection": False,
        "timeout_constant": 20.0,
    }
    text = (folder / "pyproject.toml").read_text(encoding="utf-8")
    lines = [f"{key} = {json.dumps(value)}" for key, value in settings.items()]
    (folder / "pyproject.toml").write_text("\n".join([text, "[tool.mutmut]", *lines, ""]), encoding="utf-8")


def mutmut(folder: Path, *arguments: str) -> str:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": ""}
    command = [sys.executable, "-m", "mutmut", *arguments]
    return subprocess.run(
        command,
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    ).stdout


def outcomes(folder: Path) -> dict[str, str]:
    """What became of every mutant so far, by its name."""
    from mutmut.stats import status_by_exit_code  # what is tested of this file needs no mutmut

    codes = {}
    for path in sorted((folder / "mutants").rglob("*.meta")):
        codes |= json.loads(path.read_text(encoding="utf-8"))["exit_code_by_key"]
    return {name: status_by_exit_code[code] for name, code in codes.items()}


def drawn(names: list[str], sample: int | None) -> list[str]:
    """The same sample every time, as long as there are the same mutants."""
    few = sample is not None and sample < len(names)
    return sorted(random.Random(SEED).sample(names, sample)) if few else names


def report(folder: Path, name: str, chosen: list[str]) -> bool:
    """Print the counts and the survivors; return whether enough of them are killed."""
    found = outcomes(folder)
    changes = {mutant: change(folder, mutant) for mutant in chosen if found[mutant] == "survived"}
    proved = [mutant for mutant, lines in changes.items() if is_equivalent(mutant, *lines)]
    counts = Counter("equivalent" if mutant in proved else found[mutant] for mutant in chosen)
    for mutant, (removed, added) in changes.items():
        if mutant not in proved:
            print(f"  survived: {function_of(mutant)}\n    - {removed}\n    + {added}")
    caught, equivalent = counts["killed"] + counts["timeout"], counts["equivalent"]
    share = caught / max(len(chosen) - equivalent, 1)
    told = ", ".join(f"{number} {kind}" for kind, number in counts.most_common())
    print(f"{name}: {told}; {share:.1%} of those not equivalent are caught")
    return share >= KILLED and equivalent <= EQUIVALENT * len(chosen)


def change(folder: Path, mutant: str) -> tuple[str, str]:
    """The lines that a mutant changes, before and after, without their indentation."""
    shown = mutmut(folder, "show", mutant).splitlines()
    kinds = {"-": [], "+": []}
    for line in shown:
        if line[:1] in kinds and not line.startswith(("---", "+++")):
            kinds[line[0]].append(line[1:].strip())
    return " ".join(kinds["-"]), " ".join(kinds["+"])


def function_of(mutant: str) -> str:
    """The function's name in full, without what mutmut adds to it."""
    module, _, name = mutant.rpartition(".")
    name = name.rpartition("__mutmut")[0].removeprefix("x").removeprefix("_")
    return f"{module}.{name.replace('ǁ', '.').strip('.')}"


def is_equivalent(mutant: str, removed: str, added: str) -> bool:
    """Whether the list holds this change of this function."""
    return any(
        function_of(mutant) in entry["functions"]
        and added == removed.replace(entry["old"], entry["new"]) != removed
        for entry in equivalents()
    )


def equivalents() -> list[dict]:
    return tomllib.loads((ROOT / "tests/mutants.toml").read_text(encoding="utf-8"))["equivalent"]


if __name__ == "__main__":
    main()
