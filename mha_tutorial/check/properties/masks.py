"""What a query may not see does not count, and what it may see does."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray as Array

from ..problems import Problem, Sizes, some_visible, triangle
from ..subject import Subject, UntestableError
from .common import Evidence, Options, compare, masked, needs_mask, needs_three, unchanged


def is_the_formula_behind_a_mask(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = masked(subject, sizes)
    return compare(problem, subject(problem), subject.right(problem), "behind a mask")


def hidden_keys_do_not_count(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem, other = _with_hidden(subject, sizes, lambda x: 1 - 2 * x)
    return unchanged(subject, problem, other, "a hidden key and value changed", *_others(subject))


def visible_keys_count(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem, _ = _with_hidden(subject, sizes, lambda x: x)
    other = problem.changed("V", (..., 0, slice(None)), -3 * problem.V[..., 0, :])
    if subject.call.one:
        other = Problem(other.V, other.V, other.V, problem.visible)
    if not np.allclose(subject(other)[..., -1, :], subject(problem)[..., -1, :], rtol=0, atol=1e-9):
        return None
    return Evidence(other, subject(other), subject(other) + 1, "a visible value changed, and the output did not")


def _with_hidden(subject: Subject, sizes: Sizes, change: Callable[[Array], Array]) -> tuple[Problem, Problem]:
    """A problem whose last key is hidden, and the same with other numbers there."""
    needs_mask(subject)
    problem = subject.problem(sizes)
    visible = np.ones((problem.n, problem.m), bool)
    visible[:, -1] = problem.m == 1
    if problem.m == 1:
        raise UntestableError("one key alone cannot be hidden")
    problem = problem.hiding(visible)
    place = (..., -1, slice(None))
    if subject.call.one:
        x = problem.changed("Q", place, change(problem.Q[place])).Q
        return problem, Problem(x, x, x, visible)
    other = problem.changed("K", place, change(problem.K[place]))
    return problem, other.changed("V", place, change(problem.V[place]))


def _others(subject: Subject) -> tuple[Any, ...]:
    """All outputs, or in self-attention all but the changed token's own."""
    return (slice(None, -1) if subject.call.one else slice(None), slice(None))


def masks_of_sequences_and_heads(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    needs_mask(subject)
    problem = own_masks(subject, sizes)
    try:
        found = subject(problem)
    except Exception as error:
        raise UntestableError("it takes no mask of four axes") from error
    right = subject.right(problem) if subject.known else _one_by_one(subject, problem)
    return compare(problem, found, right, "a mask for every sequence and head")


def _one_by_one(subject: Subject, problem: Problem) -> Array:
    """Every sequence behind its own mask, alone."""
    masks = np.asarray(problem.visible)
    alone = [
        Problem(q[None], k[None], v[None], one[None]) for q, k, v, one in zip(*problem[:3], masks, strict=True)
    ]
    return np.concatenate([subject(one) for one in alone])


def own_masks(subject: Subject, sizes: Sizes) -> Problem:
    """The usual input, with another mask for each sequence and, of heads, for each of them."""
    problem = subject.problem(sizes)
    W = subject.setting.weights
    heads = W.h if subject.layer and W is not None else problem.scores[1]
    b, n, m = problem.scores[0], problem.n, problem.m
    visible = np.stack([np.roll(some_visible(n, m), i, axis=-1) for i in range(b * heads)])
    visible[:, np.arange(n), np.arange(n) % m] = True  # each query sees something
    return problem.hiding(visible.reshape(b, heads, n, m))


def future_is_hidden(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = causal_problem(subject, sizes)
    place = (..., -1, slice(None))
    if subject.call.one:
        x = problem.changed("Q", place, 1 - 2 * problem.Q[place]).Q
        other = Problem(x, x, x, problem.visible)
    else:
        other = problem.changed("K", place, 1 - 2 * problem.K[place])
        other = other.changed("V", place, 1 - 2 * problem.V[place])
    return unchanged(subject, problem, other, "the last token changed", slice(None, -1), slice(None))


def causal_problem(subject: Subject, sizes: Sizes) -> Problem:
    """As many queries as keys, in a function that is causal, or behind a triangle."""
    problem = subject.problem(sizes._replace(m=sizes.n))
    if subject.setting.causal:
        return problem
    needs_mask(subject)
    return problem.hiding(triangle(problem.n, problem.m))


def past_is_seen(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = causal_problem(subject, sizes)
    return compare(problem, subject(problem), subject.right(problem), "causal, as many queries as keys")


def triangle_ends_at_the_last_key(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    if not subject.setting.causal:
        raise UntestableError("it has no triangle of its own")
    needs_three(subject)
    problem = subject.problem(sizes)
    return compare(problem, subject(problem), subject.right(problem), "causal, fewer queries than keys")
