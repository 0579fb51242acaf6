"""The project's files agree with each other: dependencies, pinned versions, commands, table of contents."""

import re
import subprocess
import tomllib

import equations
import pytest
import yaml

ROOT = equations.ROOT
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
CONDA_NAMES = {"matplotlib": "matplotlib-base", "torch": "pytorch-cpu"}


LARGE = "frameworks"  # the extra that `all` and conda users do without


def declared(extras=tuple(PROJECT["optional-dependencies"])) -> dict[str, str]:
    """Every direct dependency, of the package and of its extras, with what is asked of its version."""
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    requirements = {
        requirement for names in lists for requirement in names if not requirement.startswith("mha-tutorial")
    }
    return dict(re.fullmatch(r"([\w-]+)(.*)", requirement).groups() for requirement in requirements)


def pinned() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_conda_users_get_the_same():
    environment = yaml.safe_load((ROOT / "environment.yml").read_text(encoding="utf-8"))
    packages = [entry for entry in environment["dependencies"] if isinstance(entry, str)]
    (from_pip,) = [entry["pip"] for entry in environment["dependencies"] if isinstance(entry, dict)]
    listed = dict(re.fullmatch(r"([\w-]+)(.*)", package).groups() for package in [*packages, *from_pip[:-1]])
    assert from_pip[-1] == "-e ."
    assert listed.pop("python") == PROJECT["requires-python"]
    assert listed.pop("pip") == ""
    wanted = declared(set(PROJECT["optional-dependencies"]) - {LARGE})
    assert listed == {CONDA_NAMES.get(name, name): version for name, version in wanted.items()}


def test_all_is_everything():
    extras = PROJECT["optional-dependencies"]
    named = re.fullmatch(r"mha-tutorial\[(.*)\]", extras["all"][0]).group(1).split(",")
    assert sorted(named) == sorted(set(extras) - {"all", LARGE})


def test_every_dependency_is_pinned_exactly():
    versions = {canonical(name): version for name, version in pinned().items()}
    assert {canonical(name) for name in declared()} <= set(versions)
    assert all(re.fullmatch(r"[\w.]+", version) for version in versions.values())  # no local suffix


def test_every_dependency_is_explained_where_it_is_declared():
    text = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for name, version in declared().items():
        assert re.search(rf'"{re.escape(name + version)}", *# \w', text), name


def test_commands_of_the_readme_exist():
    readme, makefile = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "Makefile"))
    commands = set(re.findall(r"\bmake ([a-z]+)\b", "\n".join(re.findall(r"`[^`]+`|```.*?```", readme, re.DOTALL))))
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert {"book", "test", "serve", "notebooks", "lint", "edits", "mutants", "clean"} <= commands <= targets


def test_ci_calls_the_commands_of_the_readme():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert {"make test", "make test-frameworks", "make book"} <= set(script.splitlines())


def test_every_chapter_is_in_the_table_of_contents():
    listed = set(equations.chapters())
    there = {path for path in (ROOT / "book").rglob("*") if path.suffix in (".ipynb", ".md")}
    assert there == listed


def tracked_files():
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listing.returncode:
        pytest.skip("not a git checkout")
    return [ROOT / name for name in listing.stdout.splitlines()]


def test_no_file_names_a_package_index():
    hosts = re.compile("pypi" + r"\.org|files\.pythonhosted" + r"\.org|download\.pytorch" + r"\.org")
    for path in tracked_files():
        if path.suffix != ".png":
            assert not hosts.search(path.read_text(encoding="utf-8")), path


def test_no_test_file_imports_another():
    """What several need stands in a module without tests: any file then runs, or is left out, by itself."""
    for path in sorted((ROOT / "tests").rglob("*.py")):
        imported = re.findall(r"^ *(?:from|import) .*\btest_\w+", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert not imported, path


@pytest.mark.parametrize("name", ["test.yml", "publish.yml"])
def test_workflows_run_what_ci_runs(name):
    workflow = yaml.safe_load((ROOT / ".github/workflows" / name).read_text(encoding="utf-8"))
    steps = [step.get("run", "") for job in workflow["jobs"].values() for step in job["steps"]]
    assert ".ci/run" in steps
