"""What is in the wheel: the package with its types and its records, and a README that needs no file beside it."""

import email
import re
import subprocess
import sys
import zipfile

import equations
import pytest

import mha_tutorial

ROOT = equations.ROOT
PACKAGE = ROOT / "mha_tutorial"


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (path,) = folder.glob("*.whl")
    with zipfile.ZipFile(path) as archive:
        yield archive


@pytest.fixture
def metadata(wheel):
    (name,) = (name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.message_from_bytes(wheel.read(name))


def test_the_wheel_holds_the_package_and_nothing_else(wheel):
    files = {path for path in PACKAGE.rglob("*") if path.is_file() and path.suffix not in (".pyc", ".new")}
    names = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert names == {path.relative_to(ROOT).as_posix() for path in files}
    assert "mha_tutorial/py.typed" in names
    assert {f"mha_tutorial/results/{path.name}" for path in (PACKAGE / "results").glob("*.json")} <= names
    assert {path.suffix for path in files} <= {".py", ".json", ".mplstyle", ".typed", ".js", ".css"}


def test_the_version_stands_in_one_place(metadata):
    assert metadata["Version"] == mha_tutorial.__version__
    assert f"\nversion: {mha_tutorial.__version__}\n" in (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    changes = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert changes[0] in (mha_tutorial.__version__, "Unreleased")


def test_the_readme_on_a_package_index_needs_no_file_beside_it(metadata):
    text = metadata.get_payload(decode=True).decode()
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert text.startswith("# Multi-Head Attention, Tested\n")
    assert not re.search(r"<[a-z]+[ >]", re.sub(r"`[^`]*`|```.*?```", "", text, flags=re.DOTALL))
    assert all(address.startswith("https://") for address in re.findall(r"\]\(([^)]*)\)", text))
    assert "CONTRIBUTING.md says how" in text
