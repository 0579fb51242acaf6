"""Checkpoints: a mapping of names to arrays, an object with a ``state_dict``, or a ``.safetensors`` file."""

import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

PICKLES = (".bin", ".ckpt", ".pickle", ".pkl", ".pt", ".pth")


def read_shapes(checkpoint: Any) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor by its name; of a file, only the header is read.

    Examples
    --------
    >>> read_shapes({"query": {"kernel": np.ones((2, 3))}})
    {'query.kernel': (2, 3)}
    """
    if not isinstance(checkpoint, str | os.PathLike):
        return {name: tuple(np.shape(value)) for name, value in _entries(checkpoint)}
    with _open(checkpoint) as file:
        return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118


def read_arrays(checkpoint: Any, prefix: str = "") -> dict[str, Array]:
    """The tensors whose names begin with a prefix, as NumPy arrays, which may share the checkpoint's memory.

    Nested mappings, as JAX libraries keep their parameters, become names joined with dots. PyTorch's
    tensors are taken to the CPU.

    Parameters
    ----------
    checkpoint
        A mapping, an object with a ``state_dict()``, or the path of a ``.safetensors`` file. A file of
        bfloat16 numbers is read as ``ml_dtypes.bfloat16``, which NumPy can move but this package
        does not compute with.

    Raises
    ------
    TypeError
        If it is nothing of these, or a tensor is of a type that NumPy does not have.
    ValueError
        If the file is a pickle or not a ``.safetensors`` file.
    ImportError
        If safetensors is not installed.
    """
    if not isinstance(checkpoint, str | os.PathLike):
        return {name: _as_array(name, value) for name, value in _entries(checkpoint) if name.startswith(prefix)}
    with _open(checkpoint) as file:
        return {
            name: _from_file(file, name)
            for name in file.keys()  # noqa: SIM118, it is no dictionary
            if name.startswith(prefix)
        }


def write(path: str | os.PathLike, tensors: Mapping[str, Array], overwrite: bool = False) -> None:
    """Write tensors to a ``.safetensors`` file: all of it or, if anything goes wrong, nothing.

    Raises
    ------
    FileExistsError
        If the file is there and not to be overwritten.
    FileNotFoundError
        If there is no folder to write it to.
    ValueError
        If the name of the file does not end in ``.safetensors``.
    ImportError
        If safetensors is not installed.
    """
    path = _checked(path)
    numpy_files = _safetensors().numpy
    if path.exists() and not overwrite:
        raise FileExistsError(f"{path} is there already and was not overwritten")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder, so nothing can be written there")
    dense = {name: np.ascontiguousarray(array) for name, array in tensors.items()}
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mha-tutorial-") as folder:
        complete = Path(folder) / path.name
        numpy_files.save_file(dense, complete, metadata={"format": "pt"})  # without it transformers refuses
        os.replace(complete, path)


def _entries(checkpoint: Any) -> Iterator[tuple[str, Any]]:
    if hasattr(checkpoint, "state_dict"):
        checkpoint = checkpoint.state_dict()
    if not isinstance(checkpoint, Mapping):
        raise TypeError(
            "a checkpoint must be a mapping of names to arrays, an object with a state_dict() or the path of a "
            f".safetensors file, got {type(checkpoint).__name__}"
        )
    for name, value in checkpoint.items():
        if isinstance(value, Mapping):
            yield from ((f"{name}.{rest}", inner) for rest, inner in _entries(value))
        else:
            yield str(name), value


def _as_array(name: str, value: Any) -> Array:
    if hasattr(value, "detach"):  # a PyTorch tensor, known by what it can do: torch need not be there
        value = value.detach().cpu()
        if str(value.dtype) == "torch.bfloat16":
            raise TypeError(f"{name} is bfloat16, which NumPy does not have: {EXACT} (tensor.float())")
    return np.asarray(value)


EXACT = "convert it to float32, which holds every such number exactly"


def _from_file(file: Any, name: str) -> Array:
    try:
        return file.get_tensor(name)
    except (AttributeError, TypeError) as error:
        raise TypeError(
            f"{name} is of type {file.get_slice(name).get_dtype()}, which NumPy does not have"
        ) from error


def _open(path: str | os.PathLike):
    path = _checked(path)
    safetensors = _safetensors()
    if not path.is_file():
        raise FileNotFoundError(f"{path} is not a file")
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
    try:
        import ml_dtypes  # noqa: F401 (it teaches NumPy bfloat16)
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            f"{error.name} is missing; reading and writing files needs it: pip install 'mha-tutorial[convert]'"
        ) from error
    return safetensors
