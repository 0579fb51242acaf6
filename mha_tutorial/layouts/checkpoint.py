"""Checkpoints: a mapping of names to arrays, an object with a ``state_dict``, or a ``.safetensors`` file."""

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from .._extras import require

PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")


def read_shapes(checkpoint: Any, prefix: str = "") -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors whose names begin with a prefix; of a file, only the header is read.

    Raises
    ------
    TypeError, ValueError, ImportError
        As `read_arrays` does, except that any type has a shape.

    Examples
    --------
    >>> read_shapes({"query": {"kernel": np.ones((2, 3))}})
    {'query.kernel': (2, 3)}
    """
    if not isinstance(checkpoint, str | os.PathLike):
        entries = _entries(checkpoint)
        return {name: _shape(name, value) for name, value in entries.items() if name.startswith(prefix)}
    with _open(checkpoint) as file:
        return {
            name: tuple(file.get_slice(name).get_shape())
            for name in file.keys()  # noqa: SIM118, it is no dictionary
            if name.startswith(prefix)
        }


def read_arrays(checkpoint: Any, prefix: str = "", keys: Collection[str] | None = None) -> dict[str, Array]:
    """The tensors whose names begin with a prefix, as NumPy arrays, which may share the checkpoint's memory.

    Nested mappings, as JAX libraries keep their parameters, become names joined with dots; what is
    None, as the bias of a layer that has none, counts as missing. PyTorch's tensors are taken to the CPU.

    Parameters
    ----------
    checkpoint
        A mapping, an object with a ``state_dict()``, or the path of a ``.safetensors`` file. bfloat16
        numbers, of a file or of PyTorch's tensors, are read as ``ml_dtypes.bfloat16``, which NumPy can
        move but this package does not compute with.
    prefix
        What the names begin with.
    keys
        What stands after the prefix in the names that are wanted, all if left out. No other tensor is read.

    Raises
    ------
    TypeError
        If it is nothing of these, or a tensor cannot be a plain NumPy array: its type is none of NumPy's,
        or it is ragged, sparse, masked or holds no numbers.
    ValueError
        If two tensors have one name, or the file is a pickle or not a ``.safetensors`` file.
    OSError
        If there is no such file, or it cannot be read.
    ImportError
        If safetensors is not installed, or ml_dtypes, which gives NumPy bfloat16.
    """

    def wanted(name):
        return name.startswith(prefix) and (keys is None or name.removeprefix(prefix) in keys)

    if not isinstance(checkpoint, str | os.PathLike):
        return {name: _as_array(name, value) for name, value in _entries(checkpoint).items() if wanted(name)}
    with _open(checkpoint) as file:
        return {name: _from_file(file, name) for name in file.keys() if wanted(name)}  # noqa: SIM118


def _entries(checkpoint: Any) -> dict[str, Any]:
    if hasattr(checkpoint, "state_dict"):
        checkpoint = checkpoint.state_dict()
    if not isinstance(checkpoint, Mapping):
        raise TypeError(
            "a checkpoint must be a mapping of names to arrays, an object with a state_dict() or the path of a "
            f".safetensors file, got {type(checkpoint).__name__}"
        )
    entries: dict[str, Any] = {}
    for name, value in checkpoint.items():
        if isinstance(value, Mapping):
            below = {f"{name}.{rest}": inner for rest, inner in _entries(value).items()}
        else:
            below = {str(name): value}
        twice = entries.keys() & below.keys()
        if twice:
            raise ValueError(f"the checkpoint has two tensors of the name {min(twice)}")
        entries |= below
    return {name: value for name, value in entries.items() if value is not None}


def _shape(name: str, value: Any) -> tuple[int, ...]:
    with _naming(name):
        return tuple(np.shape(value))


def _as_array(name: str, value: Any) -> Array:
    if isinstance(value, np.ma.MaskedArray):
        raise TypeError(f"{name} is a masked array, whose mask would be lost; fill it first (array.filled)")
    with _naming(name):  # a PyTorch tensor is known by what it can do: torch need not be there
        if str(getattr(value, "dtype", "")) == "torch.bfloat16":
            return _from_bfloat16(name, value)
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


def _from_bfloat16(name: str, tensor: Any) -> Array:
    """The bytes of a tensor, under the type that NumPy has from ml_dtypes."""
    import torch  # which is there, since the tensor is

    try:
        from ml_dtypes import bfloat16
    except ImportError as error:
        raise ImportError(
            f"{name} is bfloat16, which NumPy does not have: {EXACT} (tensor.float()), or move it as it is with "
            'pip install "mha-tutorial[convert]"'
        ) from error
    return tensor.detach().cpu().view(torch.int16).numpy().view(bfloat16)


@contextmanager
def _naming(name: str) -> Iterator[None]:
    """Say of which tensor NumPy, or the library that made it, complains."""
    try:
        yield
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"{name} cannot be made a NumPy array: {error}") from error


EXACT = "convert it to float32, which holds every such number exactly"


def _from_file(file: Any, name: str) -> Array:
    try:
        return file.get_tensor(name)
    except (AttributeError, TypeError, _safetensors().SafetensorError) as error:
        raise TypeError(
            f"{name} is of type {file.get_slice(name).get_dtype()}, which NumPy does not have"
        ) from error


def _open(path: str | os.PathLike):
    path = _checked(path)
    safetensors = _safetensors()
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
    path.open("rb").close()  # says why, where it cannot be read: safetensors calls any such file missing
    try:
        return safetensors.safe_open(path, framework="np")
    except safetensors.SafetensorError as error:
        raise ValueError(f"{path} is not a safetensors file: {error}") from error


def _checked(path: str | os.PathLike) -> Path:
    path = Path(path)
    if path.suffix in PICKLES:
        raise ValueError(
            f"{path} is a pickle, and reading a pickle can run any code it holds. If you trust it, load it "
            "with torch.load(..., weights_only=True) and save it with safetensors.torch.save_file"
        )
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} is not named as a safetensors file: its name must end in .safetensors")
    return path


def _safetensors():
    require("reading and writing files", "ml_dtypes", "safetensors")
    import ml_dtypes  # noqa: F401 (it teaches NumPy bfloat16)
    import safetensors.numpy

    return safetensors
