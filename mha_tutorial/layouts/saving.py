"""Write ``.safetensors`` files: whole, as readable as they were meant, or not at all."""

import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy import ndarray as Array

from .checkpoint import PICKLES, _as_array, _from_file, _open, _safetensors


def write(path: str | os.PathLike, tensors: Mapping[str, Array], overwrite: bool = False) -> None:
    """Write tensors to a ``.safetensors`` file: all of it or, if anything goes wrong, nothing.

    What was written is read back and compared, byte by byte, before it takes its place. A new file has the
    mode that the umask leaves; one that replaces another has the mode of the other and, as far as that is
    allowed, its owner and group. Where the path is a link and `overwrite` is true, the link is replaced by
    a new file, and the file it leads to stays as it is.

    Raises
    ------
    FileExistsError
        If something is there, be it a link that leads nowhere, and is not to be overwritten; also if it
        has come there in the meantime, and if it is a folder or another thing that is no file.
    FileNotFoundError
        If there is no folder to write it to.
    OSError
        If the disk is full, or the file cannot be written for another reason, or does not read back.
    TypeError
        If a tensor is of a type that such files do not have or that cannot be read from them, or a name
        is no string.
    ValueError
        If the name of the file does not end in ``.safetensors``, or one of a tensor is none that such a
        file can have: the empty one, ``__metadata__``, or one that is not Unicode.
    ImportError
        If safetensors is not installed.
    """
    path = _named(path)
    safetensors = _safetensors()
    there = FileExistsError(f"{path} is there already and was not overwritten")
    if os.path.lexists(path) and not (overwrite and (path.is_file() or path.is_symlink())):
        raise there
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder, so nothing can be written there")
    dense = {_checked_name(name): _dense(name, array) for name, array in tensors.items()}
    for name, array in dense.items():
        try:
            safetensors.numpy.save({name: np.empty(0, array.dtype)})
        except safetensors.SafetensorError as error:
            raise TypeError(f"{name} is of type {array.dtype}, which safetensors files do not have") from error
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mha-tutorial-") as folder:
        complete = Path(folder) / path.name
        try:
            safetensors.numpy.save_file(dense, complete, metadata={"format": "pt"})  # transformers asks for it
            _read_back(path, complete, dense)
            _adopt(path, complete)
            (os.replace if overwrite else _move)(complete, path)
        except safetensors.SafetensorError as error:
            raise OSError(f"{path} could not be written: {error}") from error
        except FileExistsError:
            raise there from None


def _named(path: str | os.PathLike) -> Path:
    path = Path(path)
    if path.suffix in PICKLES:
        raise ValueError(
            f"{path} is named as a pickle, and pickles are not written here: let the name end in .safetensors; "
            "PyTorch reads such a file with safetensors.torch.load_file"
        )
    if path.suffix != ".safetensors":
        raise ValueError(f"{path} is not named as a safetensors file: its name must end in .safetensors")
    return path


def _checked_name(name: Any) -> str:
    """Refuse names that a header has no place for: such a file could not be read back."""
    if not isinstance(name, str):
        raise TypeError(f"the name of a tensor must be a string, got {name!r}")
    if name in ("", "__metadata__") or any("\ud800" <= letter <= "\udfff" for letter in name):
        raise ValueError(f"a safetensors file has no tensor of the name {name!r}")
    return name


def _dense(name: str, value: Any) -> Array:
    array = np.asarray(_as_array(name, value), order="C")
    return array.astype(array.dtype.newbyteorder("="), copy=False)


def _read_back(path: Path, complete: Path, dense: Mapping[str, Array]) -> None:
    """Refuse a file that does not hold what it was meant to hold, and have it on the disk."""
    try:
        with _open(complete) as file:
            same = set(file.keys()) == set(dense) and all(
                _same(_from_file(file, name), array) for name, array in dense.items()
            )
    except ValueError as error:
        raise OSError(f"{path} was not written, since it could not be read back: {error}") from error
    if not same:
        raise OSError(f"{path} was not written, since it would read back as something else")
    with complete.open("rb+") as written:
        os.fsync(written.fileno())


def _same(back: Array, array: Array) -> bool:
    return (back.dtype, back.shape) == (array.dtype, array.shape) and back.tobytes() == array.tobytes()


def _adopt(path: Path, complete: Path) -> None:
    """Give a file the mode, the owner and the group of the one it replaces, or else the mode of a new file."""
    if path.is_symlink() or not path.exists():
        new = complete.with_name("new")
        new.touch(mode=0o666)  # of which the umask takes its part
        complete.chmod(stat.S_IMODE(new.stat().st_mode))
        return
    before = path.stat()
    mode = stat.S_IMODE(before.st_mode) & 0o777
    for owner in (before.st_uid, -1):
        try:
            os.chown(complete, owner, before.st_gid)
            break
        except (OSError, AttributeError):  # forbidden, or a system without owners
            continue
    else:
        mode &= ~0o070  # what the one group was allowed, another is not
    complete.chmod(mode)


def _move(complete: Path, path: Path) -> None:
    """Give the file its name, unless something else has got it by now."""
    try:
        os.link(complete, path)
    except FileExistsError:
        raise
    except OSError:  # a file system without hard links
        path.open("xb").close()
        try:
            os.replace(complete, path)
        except BaseException:
            path.unlink()
            raise
