"""What must not mix: queries, heads, sequences."""

import numpy as np

from ..problems import Problem, Sizes
from ..subject import Subject
from .common import Evidence, Options, compare, needs_heads, needs_mask, needs_no_positions, unchanged


def queries_do_not_mix(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = subject.problem(sizes)
    if subject.call.one:
        return _equal_tokens(subject, problem)
    other = problem.changed("Q", (..., -1, slice(None)), 1 - problem.Q[..., -1, :])
    return unchanged(subject, problem, other, "the last query changed", slice(None, -1), slice(None))


def _equal_tokens(subject: Subject, problem: Problem) -> Evidence | None:
    """All tokens alike, each seeing two: the first, which all see, and another."""
    needs_mask(subject)
    needs_no_positions(subject)
    visible = np.eye(problem.n, dtype=bool)
    visible[:, 0] = visible[0, 1:2] = True
    x = np.repeat(problem.Q[:, :1], problem.n, axis=1)
    same = Problem(x, x, x, visible)
    found = subject(same)
    return compare(same, found, np.repeat(found[:, :1], problem.n, axis=1), "all tokens alike, each sees two")


def heads_do_not_mix(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    needs_heads(subject)
    problem = subject.problem(sizes)
    other = problem
    for name in "QKV":
        other = other.changed(name, (slice(None), -1), 1 - getattr(problem, name)[:, -1])
    found, right = subject(other)[:, :-1], subject(problem)[:, :-1]
    return compare(other, found, right, "the last head changed")


def sequences_do_not_mix(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = subject.problem(sizes)
    one = Problem(*(x[:1] for x in problem[:3]))
    return compare(problem, subject(problem)[:1], subject(one), "the first sequence, in company and alone")
