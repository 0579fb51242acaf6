"""Records of the benchmarks, in the package."""

import pytest

from mha_tutorial import results


def test_a_record_says_what_was_measured_and_where():
    record = results.read("numpy-layer")
    assert set(record) == {"measured", "date", "machine", "versions"}
    assert record["versions"]["numpy"]


def test_every_record_lies_in_the_package():
    assert {path.stem for path in results.FOLDER.glob("*.json")} >= {"cpu", "numpy-fast", "numpy-layer"}


def test_an_unknown_name_is_told_which_there_are():
    with pytest.raises(FileNotFoundError, match=r"under the name 'speed'; there are \[.*'numpy-layer'"):
        results.read("speed")
