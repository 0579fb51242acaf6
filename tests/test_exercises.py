"""The graded exercises: solutions pass, stubs fail, mistakes are named, and nobody's work is overwritten."""

import os
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import stubs

EXERCISES = stubs.EXERCISES
DISTINCT = """
import numpy as np
from grading import same

def pytest_collection_modifyitems(items):
    for item in items:
        item.module.compare = all_different

def all_different(answer, right, hint, mistakes=None):
    values = [np.asarray(right), *map(np.asarray, (mistakes or {}).values())]
    for k, value in enumerate(values):
        assert not any(same(value, other) for other in values[:k]), list(mistakes)[k - 1]
"""


PLUGINS = [part for name in ("nbval", "pytest_cov", "xdist", "hypothesispytest") for part in ("-p", f"no:{name}")]


def grade(answers: Path, *options: str, **environment: str) -> tuple[dict[str, int], str]:
    """Run the grader on a folder of answers: how many tests came out how, and what it printed."""
    run = subprocess.run(
        [sys.executable, "-m", "pytest", str(EXERCISES), "--color=no", *PLUGINS, *options],
        env=os.environ | {"ANSWERS": str(answers)} | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    last = run.stdout.strip().rpartition("\n")[2]
    return {outcome: int(count) for count, outcome in re.findall(r"(\d+) (passed|failed|error)", last)}, run.stdout


def number_of_tests() -> int:
    return sum(path.read_text().count("\ndef test_") for path in EXERCISES.glob("test_*.py"))


def test_the_solutions_pass():
    assert grade(EXERCISES / "solutions")[0] == {"passed": number_of_tests()}


def test_every_stub_fails(tmp_path):
    stubs.write(tmp_path)
    outcome, printed = grade(tmp_path)
    assert outcome == {"failed": number_of_tests()}
    assert printed.count("is not filled in yet") == number_of_tests()


def test_every_mistake_differs_from_the_right_answer_and_from_the_others(tmp_path):
    (tmp_path / "distinct.py").write_text(DISTINCT)
    outcome, printed = grade(EXERCISES / "solutions", "-p", "distinct", PYTHONPATH=f"{tmp_path}:{EXERCISES}")
    assert outcome == {"passed": number_of_tests()}, printed


WRONG = {
    "attention": """
        def softmax(scores):
            return np.exp(scores - 5) / np.exp(scores - 5).sum(axis=1, keepdims=True)

        def scaled_dot_product(Q, K):
            return (Q.T @ K).round(1)

        def attention(Q, K, V):
            Q /= 2

        def causal_attention(Q, K, V):
            return [[1.0]]
    """,
    "tensors": """
        def masked_softmax(scores, visible):
            exponentials = np.exp(scores) * visible
            return np.nan_to_num(exponentials / exponentials.sum(axis=-1, keepdims=True))
    """,
    "heads": """
        def to_rows(W_q, W_o):
            return W_q.mT

        def parameters(*sizes):
            return 1.0

        def concatenated_output(W_o, heads):
            return (W_o @ heads).sum(axis=0).astype(np.float32)
    """,
    "gradients": """
        def product_backward(A, B, dC):
            return dC @ B.T, A.T @ dC, 0

        def attention_backward(Q, K, V, dO):
            return softmax_backward(Q @ K.T, dO @ V.T)
    """,
}
TOLD = [
    "Not yet: each row sums to one.",
    "Not yet: expected the shape ",
    "Hint: the score of key i for query j",
    "attention changes what it is given; it should make a new array",
    "Not yet: expected an array, got list.",
    "Right, but it warns: invalid value encountered in divide.",
    "Not yet: expected 2 arrays, got ndarray.",
    "Not yet: expected 2 arrays, got 3 of them.",
    "Not yet: expected int64, got float64.",
    "Not yet: expected float64, got float32.",
    "softmax_backward is not filled in yet",
]


def test_wrong_answers_are_told_why(tmp_path):
    stubs.write(tmp_path)
    for name, functions in WRONG.items():
        with (tmp_path / f"{name}.py").open("a") as file:
            file.write(textwrap.dedent(functions))
    outcome, printed = grade(tmp_path)
    assert "passed" not in outcome
    for sentence in TOLD:
        assert sentence in printed, sentence
    assert "attention_backward is not filled in yet" not in printed


def test_answers_need_not_be_the_same_to_the_last_bit(tmp_path):
    shutil.copytree(EXERCISES / "solutions", tmp_path, dirs_exist_ok=True)
    with (tmp_path / "attention.py").open("a") as file:
        file.write(
            "\n_exact = softmax\ndef softmax(scores):\n    return np.asfortranarray(_exact(scores)) * (1 + 1e-12)\n"
        )
    assert grade(tmp_path, "-k", "attention.py")[0] == {"passed": 5}


def test_stubs_keep_the_words_and_drop_the_work():
    for path in stubs.targets(EXERCISES):
        solution, stub = (EXERCISES / "solutions" / path.name).read_text(), stubs.stub_of(path)
        assert stub.count("raise NotImplementedError") == solution.count("\ndef ") == stub.count("\ndef ")
        assert "return " not in stub
        assert set(stub.splitlines()) <= {*solution.splitlines(), stubs.BODY}


@pytest.fixture
def copied(tmp_path, monkeypatch) -> Path:
    """A copy of the exercises, freshly written, which `stubs` takes for the real ones."""
    monkeypatch.setattr(stubs, "EXERCISES", tmp_path / "exercises")
    shutil.copytree(EXERCISES / "solutions", stubs.EXERCISES / "solutions")
    stubs.write(stubs.EXERCISES)
    return stubs.EXERCISES


def call(monkeypatch, *options: str) -> None:
    monkeypatch.setattr(sys, "argv", ["stubs.py", *options])
    stubs.main()


def test_check_is_content_with_fresh_stubs(copied, monkeypatch):
    with pytest.raises(SystemExit) as end:
        call(monkeypatch, "--check")
    assert end.value.code == 0


@pytest.mark.parametrize("change", ["drift", "missing"])
def test_check_names_what_is_not_as_the_solutions_give_it(change, copied, monkeypatch):
    if change == "drift":
        (copied / "heads.py").write_text("# mine")
    else:
        (copied / "heads.py").unlink()
    with pytest.raises(SystemExit, match=r"not as the solutions give them: exercises/heads\.py"):
        call(monkeypatch, "--check")


def test_work_is_left_alone_unless_forced(copied, monkeypatch, capsys):
    (copied / "heads.py").write_text("# mine")
    (copied / "tensors.py").unlink()
    call(monkeypatch)
    assert (copied / "heads.py").read_text() == "# mine"
    assert (copied / "tensors.py").read_text() == stubs.stub_of(copied / "tensors.py")
    assert "left alone: exercises/heads.py" in capsys.readouterr().out
    call(monkeypatch, "--force")
    assert (copied / "heads.py").read_text() == stubs.stub_of(copied / "heads.py")
