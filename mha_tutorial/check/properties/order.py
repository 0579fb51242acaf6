"""Shapes, and the order of tokens: what has to follow it and what must not depend on it."""

import numpy as np

from ..problems import Problem, Sizes
from ..subject import Subject
from .common import Evidence, Options, compare, needs_no_positions, needs_three, unchanged


def has_the_shape_of_its_queries(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = subject.problem(sizes)
    found = subject(problem).shape
    width = found[-1:] if subject.layer else problem.V.shape[-1:]
    right = (*problem.Q.shape[:-1], *width)
    return None if found == right else Evidence(problem, np.array(found), np.array(right), "shapes")


def every_key_counts(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    needs_no_positions(subject)
    problem = subject.problem(sizes)
    if problem.m < 2:
        return None
    other = problem.changed("V", (..., -1, slice(None)), -problem.V[..., -1, :])
    if subject.call.one:
        other = Problem(*[other.V] * 3)
    before, after = subject(problem)[..., 0, :], subject(other)[..., 0, :]
    still = np.isclose(before, after, rtol=0, atol=1e-9)
    if not still.all():
        return None
    return Evidence(problem, after, after + 1, "the last value changed its sign, and the first output nothing")


def order_of_queries(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    needs_no_positions(subject)
    problem = subject.problem(sizes)
    order = np.roll(np.arange(problem.n), 1)
    other = problem._replace(Q=problem.Q[..., order, :])
    if subject.call.one:
        other = Problem(*[other.Q] * 3)
    return compare(
        other, subject(other), subject(problem)[..., order, :], "queries in another order, outputs in that order"
    )


def order_of_keys(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    needs_three(subject)
    needs_no_positions(subject)
    problem = subject.problem(sizes)
    order = np.roll(np.arange(problem.m), 1)
    other = problem._replace(K=problem.K[..., order, :], V=problem.V[..., order, :])
    return unchanged(subject, problem, other, "keys and values in another order")
