"""Scores that are large, low or many."""

import numpy as np

from ..problems import Problem, Sizes
from ..subject import Subject, UntestableError
from .common import Evidence, Options, close, compare, needs_heads, needs_mask, needs_three


def large_scores(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem, times = subject.problem(sizes), 1000 if subject.call.dtype == "float64" else 100
    problem = problem._replace(Q=problem.Q * times) if not subject.call.one else Problem(*[problem.Q * 100] * 3)
    found = subject(problem)
    right = subject.right(problem) if subject.known else np.where(np.isfinite(found), found, 0)
    return (
        None if close(found, right, 1e-2) else Evidence(problem, found, right, "scores of hundreds and thousands")
    )


def low_scores(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    """All visible scores lie far below those of the hidden keys."""
    return _lost(subject, _low(subject, sizes, 2e5), "visible scores below -20,000")


def lower_scores(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    return _lost(subject, _low(subject, sizes, 1e11), "visible scores below -10,000,000,000")


def _lost(subject: Subject, problem: Problem, note: str) -> Evidence | None:
    """A fill above the scores gives the hidden value; a running maximum that starts above them gives nothing."""
    found = subject(problem)
    filled = close(found[..., -1, :], problem.V[..., -1, :])
    return compare(problem, found, subject.right(problem), note, "mask-finite-fill" if filled else "block-hidden")


def _low(subject: Subject, sizes: Sizes, size: float) -> Problem:
    needs_mask(subject)
    needs_heads(subject)
    if subject.setting.prepare:
        raise UntestableError("queries and keys are rotated")
    problem = subject.problem(sizes)
    Q, K = np.zeros_like(problem.Q), np.zeros_like(problem.K)
    Q[..., 0], K[..., :-1, 0] = size, -1
    visible = np.ones((problem.n, problem.m), bool)
    visible[:, -1] = problem.m == 1
    return Problem(Q, K, problem.V, visible)


def many_keys(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    """More keys than a block of a blockwise kernel holds, and no whole number of blocks; scores that grow."""
    needs_three(subject)
    problem = _long(subject, sizes)
    found, last = subject(problem), (..., -1, slice(None))
    other = problem.changed("V", last, 1 - problem.V[last])
    likely = "block-lost" if close(found, subject(other), 1e-9) else "block-not-rescaled"
    return compare(problem, found, subject.right(problem), "131 keys, scores that grow", likely)


def many_hidden_keys(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    needs_three(subject)
    needs_mask(subject)
    needs_heads(subject)
    problem = _long(subject, sizes)
    Q, K = np.zeros_like(problem.Q), problem.K
    Q[..., 0] = -3000 * np.abs(problem.K[..., :1, 0]).max()
    K = np.concatenate([np.ones_like(K[..., :1]), K[..., 1:]], axis=-1)
    visible = np.ones((problem.n, problem.m), bool)
    visible[:, : problem.m // 2 + 5] = False
    problem = Problem(Q, K, problem.V, visible)
    return compare(problem, subject(problem), subject.right(problem), "131 keys, the first half hidden, low scores")


def _long(subject: Subject, sizes: Sizes) -> Problem:
    if subject.sizes.n == subject.sizes.m:
        raise UntestableError("it takes as many queries as keys")
    problem = subject.problem(sizes._replace(m=131))
    return problem._replace(K=problem.K * np.linspace(0.1, 3, problem.m)[:, None])
