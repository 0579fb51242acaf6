"""Importing the package is cheap: it loads neither PyTorch nor Matplotlib."""

import subprocess
import sys

import mha_tutorial


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_loads_numpy_only():
    loaded = run(
        "import sys, mha_tutorial; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ).split()
    assert {"numpy", "einops", "jaxtyping"} <= set(loaded)
    assert not {"torch", "matplotlib", "jax", "beartype", "pytest"} & set(loaded)


def test_public_names_are_there():
    for name in mha_tutorial.__all__:
        assert hasattr(mha_tutorial, name)
