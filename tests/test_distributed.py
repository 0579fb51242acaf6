"""The layer in process groups, and the guard around such tests."""

import pytest

from tests.isolated import run_isolated


def test_distributed_data_parallel(tmp_path):
    run_isolated("distributed_cases", "data_parallel", str(tmp_path))


def test_what_fails_in_a_process_of_its_own_fails_here():
    with pytest.raises(AssertionError, match="TypeError"):
        run_isolated("isolated", "wait_for_ever", "too much")


def test_what_never_ends_is_ended_and_says_where_it_stood():
    with pytest.raises(AssertionError, match=r"Timeout(.|\n)*in wait_for_ever"):
        run_isolated("isolated", "wait_for_ever", seconds=1)
