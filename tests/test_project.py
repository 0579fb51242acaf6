"""The project's files agree with each other: dependencies, pinned versions, commands, table of contents."""

import ast
import json
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions

import equations
import mutation
import pytest
import yaml
from packaging.requirements import Requirement

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


def dependencies(*extras: str) -> set[str]:
    """What is installed by the package with these extras, not counting what that needs in its turn."""
    names = set()
    for text in [*PROJECT["dependencies"], *(text for extra in extras for text in extras_of(extra))]:
        requirement = Requirement(text)
        names |= dependencies(*requirement.extras) if requirement.name == "mha-tutorial" else {requirement.name}
    return {canonical(name) for name in names}


def extras_of(extra: str) -> list[str]:
    return PROJECT["optional-dependencies"][extra]


def imported(path) -> set[str]:
    """The packages that a file or notebook imports, on top or within functions, without Python's own."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".ipynb":
        cells = ["".join(cell["source"]) for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
        text = re.sub(r"^[%!].*", "", "\n".join(cells), flags=re.MULTILINE)
    nodes = list(ast.walk(ast.parse(text)))
    modules = [alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names]
    modules += [node.module for node in nodes if isinstance(node, ast.ImportFrom) and not node.level]
    return {module.partition(".")[0] for module in modules} - sys.stdlib_module_names


@pytest.mark.parametrize(
    ("folder", "extras"),
    {
        "mha_tutorial": ["figures", "torch", "fast", "convert", "models"],
        "tests": ["test", LARGE],
        "exercises": ["test"],
        "benchmarks": ["test", LARGE],
        "tools": ["test", "book", "dev"],
        "book/_ext": ["book"],
        "book": ["test", "book"],
    }.items(),
)
def test_every_import_is_declared(folder, extras):
    declared_there, distributions = dependencies(*extras), packages_distributions()
    folders = ("tests", "tools", "benchmarks", "exercises", "book/_ext")
    ours = {path.stem for name in folders for path in (ROOT / name).iterdir()} | {"mha_tutorial", "tests"}
    for path in [path for suffix in ("py", "ipynb") for path in (ROOT / folder).rglob(f"*.{suffix}")]:
        for name in imported(path) - ours:
            candidates = {canonical(one) for one in distributions.get(name, [name])}
            assert candidates & declared_there, f"{path.relative_to(ROOT)} imports {name}"


def test_commands_of_the_readme_exist():
    readme, makefile = ((ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "Makefile"))
    commands = set(re.findall(r"\bmake ([a-z]+)\b", "\n".join(re.findall(r"`[^`]+`|```.*?```", readme, re.DOTALL))))
    targets = set(re.findall(r"^([a-z]+):", makefile, re.MULTILINE))
    assert {"book", "test", "serve", "notebooks", "lint", "edits", "mutants", "clean"} <= commands <= targets


def test_new_names_in_the_changelog_are_there():
    rows = re.findall(r"^\| (.*) \| (.*) \|$", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    names = [name for _, new in rows for name in re.findall(r"`([\w.]+)`", new)]
    assert len(names) > 15
    for name in names:
        pkgutil.resolve_name(name if name.startswith("mha_tutorial.") else f"mha_tutorial.{name}")


def test_ci_calls_the_commands_of_the_readme():
    script = (ROOT / ".ci/run").read_text(encoding="utf-8")
    assert {"make test", "make test-frameworks", "make test-site"} <= set(script.splitlines())


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


WORKFLOWS = {
    path.stem: yaml.safe_load(path.read_text(encoding="utf-8"))
    for path in sorted((ROOT / ".github/workflows").glob("*.yml"))
}


def commands(job: dict) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def test_every_python_that_is_named_is_tested():
    job = WORKFLOWS["test"]["jobs"]["test"]
    tested = job["strategy"]["matrix"]["python"]
    named = [re.fullmatch(r".* :: Python :: (3\.\d+)", classifier) for classifier in PROJECT["classifiers"]]
    assert tested == [match[1] for match in named if match]
    assert PROJECT["requires-python"] == f">={tested[0]}"
    assert commands(job) == [".ci/run"]
    assert job["timeout-minutes"] > 60  # what the tests may take


def test_nothing_is_published_before_the_tests_pass():
    jobs = WORKFLOWS["publish"]["jobs"]
    assert jobs["test"] == {"uses": "./.github/workflows/test.yml"}
    assert "workflow_call" in WORKFLOWS["test"][True]  # YAML reads `on` as a truth value
    for name in jobs.keys() - {"test"}:
        before = name
        while before != "test":
            before = jobs[before]["needs"]


def test_code_is_broken_weekly():
    jobs = WORKFLOWS["weekly"]["jobs"]
    assert "schedule" in WORKFLOWS["weekly"][True]
    assert "make edits" in commands(jobs["edits"])
    assert "make mutants PART=${{ matrix.part }} SAMPLE=300" in commands(jobs["mutants"])
    assert jobs["mutants"]["strategy"]["matrix"]["part"] == list(mutation.PARTS)


def test_jobs_keep_what_pip_downloaded_and_take_the_small_torch():
    for name, workflow in WORKFLOWS.items():
        for job in workflow["jobs"].values():
            steps = job.get("steps", [])
            installs = [
                command for command in commands({"steps": steps}) if re.search(r"\.ci/run|make |-e ", command)
            ]
            if installs:
                (python,) = [step["with"] for step in steps if "setup-python" in step.get("uses", "")]
                assert python["cache"] == "pip", name
                small = "./.github/actions/cpu-torch" in [step.get("uses") for step in steps]
                assert small or "--torch-backend cpu" in "".join(installs) or "system" in job["strategy"]["matrix"]


def test_what_never_ran_says_so():
    text = (ROOT / ".github/workflows/elsewhere.yml").read_text(encoding="utf-8")
    assert "never run by its authors" in text.partition("name:")[0]
    jobs = WORKFLOWS["elsewhere"]["jobs"]
    assert jobs["systems"]["strategy"]["matrix"]["system"] == ["macos-latest", "windows-latest"]
    assert "--resolution lowest-direct" in "".join(commands(jobs["lowest"]))
    assert "python -m pytest -p no:nbval tests mha_tutorial" in commands(jobs["lowest"])
