"""Where something optional is missing, the message says which extra of the package installs it."""

import subprocess
import sys
import tomllib

import equations
import pytest

from mha_tutorial._extras import EXTRAS, require

PROJECT = tomllib.loads((equations.ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def last_line_without(missing: str, code: str) -> str:
    """Run code in a process where a module cannot be imported, as if it were not installed."""
    blocked = f"import sys; sys.modules[{missing!r}] = None\n{code}"
    process = subprocess.run([sys.executable, "-c", blocked], capture_output=True, text=True)
    return (process.stderr or process.stdout).splitlines()[-1]


@pytest.mark.parametrize(
    ("missing", "code", "message"),
    [
        (
            "torch",
            "import mha_tutorial.torch",
            'mha_tutorial.torch needs PyTorch: pip install "mha-tutorial[torch]"',
        ),
        (
            "matplotlib",
            "from mha_tutorial.figures import draw_attention",
            'mha_tutorial.figures needs Matplotlib: pip install "mha-tutorial[figures]"',
        ),
        (
            "safetensors",
            "from mha_tutorial import layouts; layouts.read_shapes('x.safetensors')",
            'reading and writing files needs safetensors: pip install "mha-tutorial[convert]"',
        ),
        (
            "ml_dtypes",
            "from mha_tutorial import layouts; layouts.write('x.safetensors', {})",
            'reading and writing files needs ml_dtypes: pip install "mha-tutorial[convert]"',
        ),
    ],
)
def test_the_extra_is_named(missing, code, message):
    assert last_line_without(missing, code) == f"ModuleNotFoundError: {message}"


def test_without_what_is_optional_the_core_works():
    code = "import mha_tutorial, mha_tutorial.layouts, mha_tutorial.cli; print('done')"
    for missing in (*EXTRAS, "threadpoolctl"):
        assert last_line_without(missing, code) == "done"


@pytest.mark.parametrize("module", EXTRAS)
def test_the_error_has_the_name_of_the_module(module, monkeypatch):
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ModuleNotFoundError, match=r"this needs .*: pip install \"mha-tutorial\[\w+\]\"") as missing:
        require("this", module)
    assert missing.value.name == module


def test_another_module_that_is_missing_is_named_as_ever():
    with pytest.raises(ModuleNotFoundError, match="No module named 'mha_tutorial_of_nobody'"):
        require("this", "mha_tutorial_of_nobody")


@pytest.mark.parametrize(("module", "library"), EXTRAS.items())
def test_the_extra_installs_it(module, library):
    assert any(
        requirement.startswith(f"{module}>=") for requirement in PROJECT["optional-dependencies"][library[1]]
    )
