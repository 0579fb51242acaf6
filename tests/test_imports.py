"""Importing the package is cheap: it loads neither PyTorch nor Matplotlib."""

import subprocess
import sys

import mha_tutorial.torch


def run(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout


def test_import_loads_numpy_only():
    loaded = run(
        "import sys, mha_tutorial; print(*sorted({name.partition('.')[0] for name in sys.modules}))"
    ).split()
    assert {"numpy", "einops", "jaxtyping"} <= set(loaded)
    assert not {"torch", "matplotlib", "jax", "beartype", "pytest"} & set(loaded)


def test_first_calls_of_vectorised_functions_are_made_by_one_thread():
    """A race between two first calls can give errors of 1e-9 (pytorch issue 188792)."""
    made = run(
        "import torch\n"
        "def watch(name, function):\n"
        "    return lambda x: print(name, x.dtype) or function(x)\n"
        "for name in ('exp', 'exp2', 'log', 'sqrt', 'tanh'):\n"
        "    setattr(torch, name, watch(name, getattr(torch, name)))\n"
        "import mha_tutorial.torch"
    )
    functions, dtypes = ("exp", "exp2", "log", "sqrt", "tanh"), ("torch.float32", "torch.float64")
    assert set(made.splitlines()) == {f"{name} {dtype}" for name in functions for dtype in dtypes}


def test_public_names_are_there():
    for package in (mha_tutorial, mha_tutorial.torch):
        for name in package.__all__:
            assert hasattr(package, name)
