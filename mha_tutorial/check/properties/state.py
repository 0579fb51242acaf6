"""Memory, state, modes and types."""

import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from ..problems import Problem, Sizes, some_visible
from ..subject import Subject, UntestableError, is_module
from .averages import with_heads
from .common import Evidence, Options, close, compare, needs_heads


def views_are_read_as_their_copies(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = subject.problem(sizes)
    call = subject.call
    tokens = subject.tokens(problem)
    if call.library == "numpy":
        views = [x.swapaxes(0, -2).copy().swapaxes(0, -2) for x in tokens]
    else:
        views = [x.transpose(0, -2).contiguous().transpose(0, -2) for x in tokens]
    found = subject.rows(subject.attend(views, None))
    return compare(problem, found, subject(problem), "the same numbers, in another order in memory")


def second_call(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = subject.problem(sizes)
    first, second = subject(problem), subject(problem)
    return compare(problem, second, first, "the same call once more", *_random(subject, problem))


def _random(subject: Subject, problem: Problem) -> tuple[str, ...]:
    """The likely fault, if two calls from one state of torch's generator agree."""
    if subject.call.library == "numpy":
        return ()
    torch = sys.modules["torch"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        first = subject(problem)
        torch.manual_seed(0)
        second = subject(problem)
    return ("dropout-in-eval",) if close(first, second) else ()


def inputs_are_left_alone(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = subject.problem(sizes)
    given = subject.tokens(problem)
    before = [subject.rows(x).copy() for x in given]
    subject.attend(given, None)
    for array, right in zip(given, before, strict=True):
        evidence = compare(problem, subject.rows(array), right, "an input, after the call and before it")
        if evidence:
            return evidence
    return None


def modes_agree(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    """Evaluation and training, with nothing dropped."""
    module: Any = subject.function
    if not is_module(module):
        raise UntestableError("it is no module")
    problem = subject.problem(sizes)
    if subject.call.mask is not None:
        problem = problem.hiding(some_visible(problem.n, problem.m))
    right = subject(problem)
    with nothing_dropped(module):
        found = subject(problem)
    return compare(problem, found, right, "train() against eval(), with nothing dropped")


@contextmanager
def nothing_dropped(module: Any) -> Iterator[None]:
    """Let a module train with all dropout off, and evaluate afterwards."""
    kept = []
    for part, name in itertools.product(module.modules(), ("p", "dropout", "attention_dropout", "dropout_p")):
        if isinstance(getattr(part, name, None), float):
            kept.append((part, name, getattr(part, name)))
            setattr(part, name, 0.0)
    module.train()
    try:
        yield
    finally:
        module.eval()
        for part, name, value in kept:
            setattr(part, name, value)


def type_is_kept(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    if subject.layer:
        raise UntestableError("a layer has the type of its matrices")
    problem = subject.problem(sizes)
    dtype = str(subject.raw(problem, subject.call._replace(dtype="float32")).dtype).removeprefix("torch.")
    if dtype == "float32":
        return None
    return Evidence(problem, np.array([int(dtype[-2:])]), np.array([32]), "bits of the output, for inputs of 32")


def sixteen_bits(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    """Two keys whose scores, 184 and 184.5 before rounding, are one number in 16 bits."""
    needs_heads(subject)
    if subject.setting.prepare or subject.setting.causal or subject.setting.scale:
        raise UntestableError("a score of its own")
    Q, K, V = np.full((1, 64), 8.0), np.full((2, 64), 8.0), np.eye(2, 64)
    K[1, 0] = 8.25
    problem = with_heads(Problem(Q, K, V), Sizes(b=1, h=1))
    right = np.array([1 / (1 + np.exp(-0.25))])
    for dtype in ("float16", "bfloat16"):
        try:
            found = subject(problem, dtype)[0, 0, 0, 1:2]
        except Exception:
            continue
        if abs(found - right) > 0.02:
            return Evidence(problem, found, right, f"in {dtype}: the weight of the second of two near keys")
    return None
