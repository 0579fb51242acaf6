"""Gradients: the slopes of the output, and nothing for what is hidden."""

import sys

import numpy as np
from numpy import ndarray as Array

from ..problems import Problem, Sizes, draw
from ..subject import Subject, UntestableError
from .common import Evidence, Options, compare, needs_three
from .masks import _with_hidden
from .remarks import _blind


def gradients(subject: Subject, problem: Problem) -> tuple[list[Array], Array]:
    """The gradients of a random sum of outputs by the tokens, with tokens in rows; and the factors of that sum."""
    call = subject.call
    if call.library == "numpy":
        raise UntestableError("NumPy has no gradients")
    torch = sys.modules["torch"]
    leaves = [x.requires_grad_() for x in subject.tokens(problem)]
    output = subject.attend(leaves, problem.visible)
    factors = draw(tuple(output.shape), 3)
    if not output.requires_grad:
        return [np.zeros_like(x) for x in problem[: len(leaves)]], factors
    found = torch.autograd.grad(output, leaves, torch.from_numpy(factors).to(output.dtype), allow_unused=True)
    arrays = [np.zeros(x.shape) if g is None else g.double().numpy() for g, x in zip(found, leaves, strict=True)]
    return [g.mT if subject.column else g for g in arrays], factors.mT if subject.column else factors


def gradients_are_differences(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = subject.problem(sizes)
    found, factors = gradients(subject, problem)
    for number, name in enumerate("QKV"[: len(found)]):
        direction, step = draw(found[number].shape, 4), 3e-3
        sums = []
        for sign in (1, -1):
            moved = getattr(problem, name) + sign * step * direction
            near = Problem(*[moved] * 3) if subject.call.one else problem._replace(**{name: moved})
            sums.append((subject(near) * factors).sum())
        right, got = (sums[0] - sums[1]) / (2 * step), (found[number] * direction).sum()
        if abs(got - right) > 0.02 * abs(right) + 1e-3:
            likely = "gradient-detached" if not found[number].any() else "gradient-wrong"
            note = f"the slope in a direction of {'the tokens' if subject.call.one else name}"
            return Evidence(problem, np.array([got]), np.array([right]), note, (likely,))
    return None


def hidden_keys_get_no_gradient(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    needs_three(subject)
    problem, _ = _with_hidden(subject, sizes, lambda x: x)
    (_, dK, dV), _ = gradients(subject, problem)
    found = np.concatenate([dK[..., -1, :], dV[..., -1, :]], axis=-1)
    return compare(problem, found, np.zeros_like(found), "the gradient of a hidden key and value")


def blind_query_has_a_gradient(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem, _ = _blind(subject, sizes)
    for found in gradients(subject, problem)[0]:
        if not np.isfinite(found).all():
            return compare(problem, found, np.nan_to_num(found), "a query that sees nothing: gradients are finite")
    return None
