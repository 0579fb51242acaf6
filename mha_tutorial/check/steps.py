"""Multi-head attention cut into steps, so that a fault is one step put in the place of another."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from ..weights import RowWeights
from .problems import Problem, triangle


class Setting(NamedTuple):
    """What is known of the function: its matrices if it has any, what it does to queries and keys, its mask."""

    weights: RowWeights | None = None
    prepare: Callable[..., Any] | None = None
    causal: str | None = None
    scale: float | None = None

    def visible(self, problem: Problem) -> Array | None:
        """The mask that was given, and the function's own."""
        given = problem.visible
        if self.causal is None:
            return given
        own = triangle(problem.n, problem.m, self.causal)
        return own if given is None else given & own


class Heads(NamedTuple):
    """Queries, keys and values of every head: ``(b, h, n, d_k)``, ``(b, h, m, d_k)``, ``(b, h, m, d_v)``."""

    q: Array
    k: Array
    v: Array


def project(problem: Problem, setting: Setting) -> Heads:
    """Every head's own queries, keys and values."""
    W = setting.weights
    if W is None:
        return Heads(problem.Q, problem.K, problem.V)
    return Heads(
        _through(problem.Q, W.W_q, W.b_q), _through(problem.K, W.W_k, W.b_k), _through(problem.V, W.W_v, W.b_v)
    )


def _through(tokens: Array, W: Array, b: Array | None) -> Array:
    projected = tokens[:, None] @ W
    return projected if b is None else projected + b[:, None, :]


def prepare(heads: Heads, setting: Setting) -> Heads:
    """Rotate queries and keys by where they stand, if that is what the function does."""
    if setting.prepare is None:
        return heads
    q, k = setting.prepare(heads.q, heads.k, places(heads))
    return heads._replace(q=q, k=k)


def places(heads: Heads) -> Any:
    """Where queries and keys stand: 0, 1, 2 and so on."""
    n, m = heads.q.shape[-2], heads.k.shape[-2]
    return np.arange(n) if n == m else (np.arange(n), np.arange(m))


def share(heads: Heads) -> Heads:
    """Give each query head the keys and values of its group, which are its neighbours'."""
    times = heads.q.shape[1] // heads.k.shape[1]
    return Heads(heads.q, heads.k.repeat(times, axis=1), heads.v.repeat(times, axis=1))


def scale(heads: Heads, setting: Setting) -> float:
    """One over the root of the keys' width, or what the function was said to use."""
    return heads.k.shape[-1] ** -0.5 if setting.scale is None else setting.scale


def score(heads: Heads, factor: float) -> Array:
    """How well each key matches each query."""
    return heads.q @ heads.k.mT * factor


def hide(scores: Array, visible: Array | None) -> Array:
    """Minus infinity where a query may not look."""
    return scores if visible is None else np.where(visible, scores, -np.inf)


def softmax(scores: Array, axis: Any = -1) -> Array:
    """Weights that sum to one along the axis, or are zero where everything is hidden."""
    largest = scores.max(axis=axis, keepdims=True)
    exponentials = np.exp(scores - np.where(largest == -np.inf, 0, largest))
    total = exponentials.sum(axis=axis, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)


def after_softmax(attention: Array, visible: Array | None) -> Array:
    """Nothing happens to the weights any more."""
    return attention


def write(heads: Array, setting: Setting, problem: Problem) -> Array:
    """Add up what every head writes to the output."""
    W = setting.weights
    if W is None:
        return heads
    output = (heads @ W.W_o).sum(axis=1)
    return output if W.b_o is None else output + W.b_o


class Steps(NamedTuple):
    """The steps from tokens to the output, each to be replaced by a faulty one."""

    project: Callable[[Problem, Setting], Heads] = project
    prepare: Callable[[Heads, Setting], Heads] = prepare
    share: Callable[[Heads], Heads] = share
    scale: Callable[[Heads, Setting], float] = scale
    score: Callable[[Heads, float], Array] = score
    hide: Callable[[Array, Array | None], Array] = hide
    softmax: Callable[[Array], Array] = softmax
    after: Callable[[Array, Array | None], Array] = after_softmax
    write: Callable[[Array, Setting, Problem], Array] = write


def run(problem: Problem, setting: Setting, steps: Steps = Steps()) -> Array:  # noqa: B008
    """What attention with these steps gives: with the default ones, the right result.

    Examples
    --------
    >>> one_key = Problem(np.ones((1, 1, 2, 3)), np.ones((1, 1, 1, 3)), np.full((1, 1, 1, 2), 5.0))
    >>> run(one_key, Setting()).tolist()
    [[[[5.0, 5.0], [5.0, 5.0]]]]
    """
    visible = setting.visible(problem)
    heads = steps.share(steps.prepare(steps.project(problem, setting), setting))
    scores = steps.hide(steps.score(heads, steps.scale(heads, setting)), visible)
    attention = steps.after(steps.softmax(scores), visible)
    averages = attention @ heads.v
    if visible is not None and not np.isfinite(heads.v).all():  # what is hidden may hold anything
        averages = attention @ np.where(np.isfinite(heads.v), heads.v, 0)
    return steps.write(averages, setting, problem)
