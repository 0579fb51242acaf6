"""Groups of heads, and other ways to the same output."""

import numpy as np

from ..problems import Problem, Sizes, draw, triangle
from ..subject import Subject, UntestableError, no_gradients
from .common import Evidence, Options, compare, needs_heads, needs_mask
from .masks import causal_problem


def groups_are_neighbours(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    needs_heads(subject)
    problem = grouped(subject, sizes)
    try:
        found = subject(problem)
    except Exception as error:
        raise UntestableError("it takes as many key-value heads as heads") from error
    return compare(problem, found, subject.right(problem), "six heads share three key-value heads")


def grouped(subject: Subject, sizes: Sizes) -> Problem:
    """Twice as many query heads as key-value heads."""
    problem = subject.problem(sizes)
    return problem._replace(Q=draw((sizes.b, 2 * sizes.h, *problem.Q.shape[2:]), 5))


def steps_are_the_full_pass(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    if options.step is None:
        raise UntestableError("pass step=, a function (token, cache) -> (output, cache)")
    problem = subject.problem(sizes._replace(m=sizes.n))
    if subject.setting.causal is None:
        needs_mask(subject)
        problem = problem.hiding(triangle(problem.n, problem.n))
    cache, outputs = None, []
    for i in range(problem.n):
        tokens = subject.tokens(
            problem._replace(**{name: getattr(problem, name)[..., i : i + 1, :] for name in "QKV"})
        )
        with no_gradients(subject.call.library, wanted=False):
            output, cache = options.step(*tokens, cache)
        outputs.append(subject.rows(output))
    found = np.concatenate(outputs, axis=-2)
    return compare(problem, found, subject(problem), "token by token with a cache, against all at once")


def weights_are_those_used(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    if options.with_weights is None:
        raise UntestableError("pass with_weights=, which returns the output and the weights")
    problem = causal_problem(subject, sizes)
    output, weights = subject.like(options.with_weights).both(problem)
    difference = compare(problem, output, subject(problem), "the output, with weights asked for")
    if difference:
        return difference
    sums = weights.sum(-2 if subject.column else -1)
    return compare(problem, sums, np.ones(sums.shape), "sums of the weights", "weights-after-dropout")


def compiled_is_eager(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    if options.compiled is None:
        raise UntestableError("pass compiled=")
    problem = subject.problem(sizes)
    found = subject.like(options.compiled)(problem)
    return compare(problem, found, subject(problem), "compiled, against eager")


def agrees_with_the_other(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    if options.against is None:
        raise UntestableError("pass against=")
    problem = subject.problem(sizes)
    return compare(problem, subject(problem), options.against(problem), "the same tokens through the other layer")
