"""The layer in process groups, and the guard around such tests."""

import subprocess
import sys

import pytest

from tests.isolated import ROOT, run_isolated


def test_distributed_data_parallel(tmp_path):
    run_isolated("distributed_cases", "data_parallel", str(tmp_path))


@pytest.mark.equation("eq-all-reduce-bytes")
def test_tensor_and_context_parallel_on_1_2_and_4_ranks_are_the_layer_on_one_device(tmp_path):
    run_isolated("distributed_cases", "divided", str(tmp_path))


def torchrun(*what: str, seconds: int = 120) -> tuple[int, str]:
    """Run a program on two ranks, and end it when it takes too long: its exit code, and what it printed."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *what]
    process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        printed, _ = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        process.terminate()  # which it hands on to its ranks
        raise AssertionError(process.communicate(timeout=60)[0]) from None
    return process.returncode, printed


def test_example_of_tensor_parallel_runs_under_torchrun():
    code, printed = torchrun("-m", "mha_tutorial.examples.tensor_parallel")
    assert code == 0, printed
    expected = [
        "2 rank(s), each with 4 of 8 heads and 2 of 4 key-value heads",
        "forward:  all_reduce of 1,920 bytes",
        "backward: all_reduce of 1,920 bytes",
        "output and all gradients are those of the whole layer",
    ]
    assert [line for line in printed.splitlines() if line in expected] == expected, printed


DIES = """
import os
from mha_tutorial.examples import tensor_parallel

if os.environ["RANK"] == "1":
    tensor_parallel.compare = lambda mesh: os._exit(7)
tensor_parallel.main()
"""


def test_rank_of_tensor_parallel_that_dies_ends_the_run_with_an_error(tmp_path):
    (tmp_path / "dies.py").write_text(DIES)
    code, printed = torchrun(str(tmp_path / "dies.py"))
    assert code != 0
    assert "exitcode: 7" in printed.replace(" ", "").replace(":", ": "), printed


def test_what_fails_in_a_process_of_its_own_fails_here():
    with pytest.raises(AssertionError, match="TypeError"):
        run_isolated("isolated", "wait_for_ever", "too much")


def test_what_never_ends_is_ended_and_says_where_it_stood():
    with pytest.raises(AssertionError, match=r"Timeout(.|\n)*in wait_for_ever"):
        run_isolated("isolated", "wait_for_ever", seconds=1)
