"""Records of the benchmarks, in a clone and in an installed package."""

import json

import pytest

from mha_tutorial import results


def test_a_record_says_what_was_measured_and_where():
    record = results.read("numpy-layer")
    assert set(record) == {"measured", "date", "machine", "versions"}
    assert record["versions"]["numpy"]


def test_an_installed_package_brings_its_own(tmp_path, monkeypatch):
    (tmp_path / "numpy-layer.json").write_text(json.dumps({"measured": "elsewhere"}))
    monkeypatch.setattr(results, "FOLDERS", (tmp_path, *results.FOLDERS))
    assert results.read("numpy-layer") == {"measured": "elsewhere"}


def test_an_unknown_name_is_told_which_there_are():
    with pytest.raises(FileNotFoundError, match=r"under the name 'speed'; there are \[.*'numpy-layer'"):
        results.read("speed")
