"""Weights that sum to one, and the formula itself."""

import numpy as np
from numpy import ndarray as Array

from ..problems import Problem, Sizes, draw
from ..subject import Subject, UntestableError
from .common import Evidence, Options, compare, masked, needs_heads


def equal_values(subject: Subject, problem: Problem) -> tuple[Problem, Array]:
    """All values alike; and what must come out, whatever the weights are."""
    if subject.call.one:
        x = np.repeat(problem.Q[..., :1, :], problem.n, axis=-2)
        same, alone = Problem(x, x, x, problem.visible), Problem(*[x[..., :1, :]] * 3)
    else:
        V = np.repeat(problem.V[..., :1, :], problem.m, axis=-2)
        same = problem._replace(V=V)
        alone = Problem(problem.Q[..., :1, :], problem.K[..., :1, :], V[..., :1, :])
    right = subject(alone) if subject.layer else same.V[..., :1, :]
    return same, np.repeat(right, problem.n, axis=-2)


def weights_sum_to_one(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    same, right = equal_values(subject, subject.problem(sizes))
    return compare(same, subject(same), right, "all values alike: every average is that value")


def weights_sum_to_one_behind_a_mask(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    same, right = equal_values(subject, masked(subject, sizes))
    if same.m < 3 or same.n < 2:
        return None
    return compare(same, subject(same), right, "all values alike, some keys hidden: still that value")


def one_key_gives_its_value(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = subject.problem(sizes._replace(n=1, m=1))
    return compare(problem, subject(problem), subject.right(problem), "one query, one key")


def is_the_formula(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = subject.problem(sizes)
    return compare(problem, subject(problem), subject.right(problem), "no mask")


def scale_is_one_over_the_root(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    """Measured: with one-hot values the outputs are weights, and their logarithms differ as the scores do."""
    needs_heads(subject)
    if subject.setting.prepare:
        raise UntestableError("queries and keys are rotated")
    width = max(sizes.d_v, 2)
    problem = Problem(
        draw((1, 1, 1, sizes.d_k), 0), draw((1, 1, 2, sizes.d_k), 1) * 0.5, np.eye(2, width)[None, None]
    )
    if sizes.d_v == sizes.d_k:
        problem = problem._replace(V=np.eye(2, sizes.d_k)[None, None])
    if subject.setting.causal == "top-left":
        raise UntestableError("a single query sees one key")
    problem = with_heads(problem, sizes)
    first, second = subject(problem)[0, 0, 0, :2]
    products = problem.Q[0, 0, 0] @ problem.K[0, 0].T
    with np.errstate(all="ignore"):
        measured = np.log(first / second) / (products[0] - products[1])
    right = problem.Q.shape[-1] ** -0.5 if subject.setting.scale is None else subject.setting.scale
    return compare(problem, np.array([measured]), np.array([right]), "the factor between inner product and score")


def with_heads(problem: Problem, sizes: Sizes) -> Problem:
    """The same for every sequence and head."""
    return problem._replace(**{name: np.tile(getattr(problem, name), (sizes.b, sizes.h, 1, 1)) for name in "QKV"})
