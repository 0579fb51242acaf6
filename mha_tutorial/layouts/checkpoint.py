"""Checkpoints: a mapping of names to arrays, an object with a ``state_dict``, or a ``.safetensors`` file."""

import os
import tempfile
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

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
        A mapping, an object with a ``state_dict()``, or the path of a ``.safetensors`` file. A file of
        bfloat16 numbers is read as ``ml_dtypes.bfloat16``, which NumPy can move but this package
        does not compute with.
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
        If safetensors is not installed.
    """

    def wanted(name):
        return name.startswith(prefix) and (keys is None or name.removeprefix(prefix) in keys)

    if not isinstance(checkpoint, str | os.PathLike):
        return {name: _as_array(name, value) for name, value in _entries(checkpoint).items() if wanted(name)}
    with _open(checkpoint) as file:
        return {name: _from_file(file, name) for name in file.keys() if wanted(name)}  # noqa: SIM118


def write(path: str | os.PathLike, tensors: Mapping[str, Array], overwrite: bool = False) -> None:
    """Write tensors to a ``.safetensors`` file: all of it or, if anything goes wrong, nothing.

    Where the path is a link and `overwrite` is true, the link is replaced, not the file it leads to.

    Raises
    ------
    FileExistsError
        If something is there, be it a link that leads nowhere, and is not to be overwritten; also if it
        has come there in the meantime.
    FileNotFoundError
        If there is no folder to write it to.
    OSError
        If the disk is full, or the file cannot be written for another reason.
    TypeError
        If a tensor is of a type that such files do not have.
    ValueError
        If the name of the file does not end in ``.safetensors``.
    ImportError
        If safetensors is not installed.
    """
    path = _checked(path)
    safetensors = _safetensors()
    there = FileExistsError(f"{path} is there already and was not overwritten")
    if os.path.lexists(path) and not overwrite:
        raise there
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder, so nothing can be written there")
    dense = {name: np.asarray(_as_array(name, array), order="C") for name, array in tensors.items()}
    for name, array in dense.items():
        try:
            safetensors.numpy.save({name: np.empty(0, array.dtype)})
        except safetensors.SafetensorError as error:
            raise TypeError(f"{name} is of type {array.dtype}, which safetensors files do not have") from error
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mha-tutorial-") as folder:
        complete = Path(folder) / path.name
        try:
            safetensors.numpy.save_file(dense, complete, metadata={"format": "pt"})  # transformers asks for it
            (os.replace if overwrite else _move)(complete, path)
        except safetensors.SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error
        except FileExistsError:
            raise there from None


def _move(complete: Path, path: Path) -> None:
    """Give the file its name, unless something else has got it by now."""
    try:
        os.link(complete, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        path.open("xb").close()
        os.replace(complete, path)


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
    if str(getattr(value, "dtype", "")) == "torch.bfloat16":
        raise TypeError(f"{name} is bfloat16, which NumPy does not have: {EXACT} (tensor.float())")
    with _naming(name):  # a PyTorch tensor is known by what it can do: torch need not be there
        return np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)


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
    try:
        import ml_dtypes  # noqa: F401 (it teaches NumPy bfloat16)
        import safetensors.numpy
    except ImportError as error:
        raise ImportError(
            f"{error.name} is missing; reading and writing files needs it: pip install 'mha-tutorial[convert]'"
        ) from error
    return safetensors
