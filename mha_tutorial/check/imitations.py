"""What a layer with each fault gives: where a function gives the same, number by number, the fault is found."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
from numpy import ndarray as Array

from ..weights import RowWeights
from .problems import Problem, triangle
from .steps import Heads, Setting, Steps, hide, places, prepare, project, run, softmax, write

Close = Callable[[Array, Array], bool]
PROJECTED = ("W_q", "W_k", "W_v", "b_q", "b_k", "b_v")


def _scaled(factor: Callable[[Heads], float]) -> dict[str, Any]:
    return {"scale": lambda heads, setting: factor(heads)}


def _weights(**changed: Callable[[RowWeights], Array | None]) -> dict[str, Any]:
    """A layer that takes other arrays than its own for some of its weights."""

    def taken(setting: Setting) -> Setting:
        W = setting.weights
        if W is None:
            raise ValueError("there are no weights")
        arrays = W.arrays() | {name: change(W) for name, change in changed.items()}
        return setting._replace(weights=RowWeights(**arrays))  # type: ignore[arg-type]

    return {
        "project": lambda problem, setting: project(problem, taken(setting)),
        "write": lambda heads, setting, problem: write(heads, taken(setting), problem),
    }


def _projected(change: Callable[[Heads], Heads]) -> dict[str, Any]:
    return {"project": lambda problem, setting: change(project(problem, setting))}


def _view_heads(heads: Heads) -> Heads:
    """Tokens cut into heads by a reshape alone."""

    def cut(x: Array) -> Array:
        b, h, n, d = x.shape
        return x.swapaxes(1, 2).reshape(b, n, h * d).reshape(b, h, n, d)

    return Heads(*map(cut, heads))


def _dealt_out(heads: Heads) -> Heads:
    """Features dealt out to the heads in turn."""

    def deal(x: Array) -> Array:
        b, h, n, d = x.shape
        return x.swapaxes(1, 2).reshape(b, n, d, h).transpose(0, 3, 1, 2)

    return Heads(*map(deal, heads))


def _exchanged(axis: int) -> dict[str, Any]:
    """The tokens' axis and another one in each other's place."""

    def exchange(heads: Heads) -> Heads:
        return Heads(*(x.swapaxes(axis, 2) for x in heads))

    return _projected(exchange) | _joined(lambda heads: heads.swapaxes(axis, 2))


def _viewed_together(heads: Array) -> Array:
    """Heads joined by a reshape alone, and cut again as they should be."""
    b, h, n, d = heads.shape
    return heads.reshape(b, n, h, d).swapaxes(1, 2)


def _joined(change: Callable[[Array], Array]) -> dict[str, Any]:
    return {"write": lambda heads, setting, problem: write(change(heads), setting, problem)}


def _joined_only(heads: Array, setting: Setting, problem: Problem) -> Array:
    """The heads side by side, as the output."""
    if setting.weights is None:
        raise ValueError("there is no output projection")
    return heads.swapaxes(1, 2).reshape(*problem.Q.shape[:2], -1)


def _adding(what: Callable[[Array, Setting, Problem], Array]) -> dict[str, Any]:
    return {"write": lambda heads, setting, problem: write(heads, setting, problem) + what(heads, setting, problem)}


def _more_bias(times: int, heads: Array, setting: Setting, problem: Problem) -> Array:
    """What is added if every one of some ranks adds the output bias before the sum over ranks."""
    return times * _known(_own(setting).b_o)


def _known(array: Array | None) -> Array:
    if array is None:
        raise ValueError("the layer has no such bias")
    return array


def _own(setting: Setting) -> RowWeights:
    if setting.weights is None:
        raise ValueError("there are no weights")
    return setting.weights


def _hidden(change: Callable[[Array, Array], Array]) -> dict[str, Any]:
    return {"hide": lambda scores, visible: scores if visible is None else change(scores, visible)}


def _masked_by(change: Callable[[Array], Array]) -> dict[str, Any]:
    return _hidden(lambda scores, visible: hide(scores, change(visible)))


def _always(make: Callable[[int, int], Array]) -> dict[str, Any]:
    """A triangle that nobody asked for, or another one than was asked for."""

    def hiding(scores: Array, visible: Array | None) -> Array:
        own = make(*scores.shape[-2:])
        return hide(scores, own if visible is None else own & visible)

    return {"hide": hiding}


def _in_place_of_causal(make: Callable[[int, int], Array]) -> dict[str, Any]:
    """A triangle that is off, where a triangle was asked for and nothing else."""

    def hiding(scores: Array, visible: Array | None) -> Array:
        if visible is None or not (visible == triangle(*scores.shape[-2:])).all():
            return hide(scores, visible)
        return hide(scores, make(*scores.shape[-2:]))

    return {"hide": hiding}


def _head_by_head(visible: Array) -> Array:
    """A mask of sequences and heads, laid out heads first and read sequences first."""
    if visible.ndim < 4 or 1 in visible.shape[:2]:
        raise ValueError("no mask for each sequence and head")
    b, h, n, m = visible.shape
    return visible.swapaxes(0, 1).reshape(b, h, n, m)


def _prepared(change: Callable[[Heads, Setting], Heads]) -> dict[str, Any]:
    def preparing(heads: Heads, setting: Setting) -> Heads:
        if setting.prepare is None:
            raise ValueError("nothing is rotated")
        return change(heads, setting)

    return {"prepare": preparing}


def _other_pairs(heads: Heads, setting: Setting) -> Heads:
    """Pairs half a head apart taken for neighbours, or the reverse: whichever `prepare` does not do."""
    d = heads.q.shape[-1]
    if _pairs_are_neighbours(heads, setting):
        there = np.arange(d).reshape(-1, 2).T.ravel()
    else:
        there = np.arange(d).reshape(2, -1).T.ravel()
    back = np.argsort(there)
    # features in the other order, rotated as `prepare` does, and put back
    turned = prepare(heads._replace(q=heads.q[..., back], k=heads.k[..., back]), setting)
    return heads._replace(q=turned.q[..., there], k=turned.k[..., there])


def _pairs_are_neighbours(heads: Heads, setting: Setting) -> bool:
    """Whether a lone first feature spreads to the second when it is rotated."""
    lone = np.zeros_like(heads.q)
    lone[..., 0] = 1
    return bool(np.abs(prepare(heads._replace(q=lone), setting).q[..., 1]).max() > 0)


def _opposite(heads: Heads, setting: Setting) -> Heads:
    """Keys turned the other way: their mirror image turned, and mirrored again."""
    assert setting.prepare is not None
    there = places(heads)
    back = tuple(-x for x in there) if isinstance(there, tuple) else -there
    return heads._replace(
        q=setting.prepare(heads.q, heads.k, there)[0], k=setting.prepare(heads.q, heads.k, back)[1]
    )


def _square(W_o: Array) -> Array:
    """The blocks of all heads, one below the other, if they make a square."""
    together = W_o.reshape(-1, W_o.shape[-1])
    if together.shape[0] != together.shape[1]:
        raise ValueError("not square")
    return together


def _sideways(W: Array) -> Array:
    """The transpose of the square matrix that heads share, cut into heads again."""
    h, d, width = W.shape
    together = W.transpose(1, 0, 2).reshape(d, h * width)
    if d != h * width:
        raise ValueError("not square")
    return together.T.reshape(d, h, width).transpose(1, 0, 2)


def _regrouped(name: str, stored: str, W: RowWeights) -> Array:
    """One of the six arrays, after rows of the fused matrix were read in the other order."""
    arrays = [_known(W.arrays().get(f"{name[0]}_{letter}")) for letter in "qkv"]
    fused = np.stack([x.mT if x.ndim == 3 else x for x in arrays])  # (3, h, d, width) or (3, h, d)
    h = fused.shape[1]
    if stored == "in blocks":
        read = fused.reshape(h, 3, *fused.shape[2:]).swapaxes(0, 1)
    else:
        read = fused.swapaxes(0, 1).reshape(fused.shape)
    one = read["qkv".index(name[-1])]
    return one.mT if one.ndim == 3 else one


IMITATIONS: dict[str, dict[str, Any]] = {
    "scale-missing": _scaled(lambda heads: 1.0),
    "scale-d-model": _scaled(lambda heads: (heads.q.shape[1] * heads.q.shape[-1]) ** -0.5),
    "scale-twice": _scaled(lambda heads: 1 / heads.k.shape[-1]),
    "scale-heads": _scaled(lambda heads: heads.q.shape[1] ** -0.5),
    "scale-values": _scaled(lambda heads: heads.v.shape[-1] ** -0.5),
    "scale-tokens": _scaled(lambda heads: heads.k.shape[-2] ** -0.5),
    "scale-inverted": _scaled(lambda heads: heads.k.shape[-1] ** 0.5),
    "queries-and-keys-exchanged": {"score": lambda heads, factor: heads.k @ heads.q.mT * factor},
    "keys-as-values": _projected(lambda heads: heads._replace(v=heads.k)),
    "softmax-over-queries": {"softmax": lambda scores: softmax(scores, -2)},
    "softmax-over-heads": {"softmax": lambda scores: softmax(scores, -3)},
    "softmax-over-batch": {"softmax": lambda scores: softmax(scores, 0)},
    "softmax-over-all": {"softmax": lambda scores: softmax(scores, (-2, -1))},
    "softmax-missing": {"softmax": lambda scores: np.where(np.isneginf(scores), 0, scores)},
    "softmax-not-normalised": {"softmax": np.exp},
    "softmax-twice": {"softmax": lambda scores: softmax(softmax(scores))},
    "causal-built-in": _always(triangle),
    "causal-top-left": _in_place_of_causal(lambda n, m: triangle(n, m, "top-left")),
    "causal-peeks": _in_place_of_causal(lambda n, m: triangle(n, m, shift=1)),
    "causal-hides-itself": _in_place_of_causal(lambda n, m: triangle(n, m, shift=-1)),
    "causal-upside-down": _in_place_of_causal(lambda n, m: ~triangle(n, m, shift=-1)),
    "causal-missing": _in_place_of_causal(lambda n, m: np.ones((n, m), bool)),
    "mask-inverted": _masked_by(np.logical_not),
    "mask-ignored": _hidden(lambda scores, visible: scores),
    "mask-added": _hidden(lambda scores, visible: scores + visible),
    "mask-multiplied": _hidden(lambda scores, visible: scores * visible),
    "mask-after-softmax": {
        "hide": lambda scores, visible: scores,
        "after": lambda attention, visible: attention if visible is None else attention * visible,
    },
    "mask-transposed": _masked_by(lambda visible: visible.mT),
    "mask-head-order": _masked_by(_head_by_head),
    "mask-of-first-sequence": _masked_by(lambda visible: visible[:1] if visible.ndim == 4 else visible),
    "mask-of-first-head": _masked_by(lambda visible: visible[:, :1] if visible.ndim == 4 else visible),
    "batch-first": _exchanged(0),
    "heads-and-tokens-exchanged": _exchanged(1),
    "split-without-transpose": _projected(_view_heads),
    "merge-without-transpose": _joined(_viewed_together),
    "heads-innermost": _projected(_dealt_out),
    "heads-reversed": _joined(lambda heads: heads[:, ::-1]),
    "heads-averaged": {"write": lambda heads, setting, problem: write(heads / heads.shape[1], setting, problem)},
    "head-lost": _joined(lambda heads: np.concatenate([heads[:, :-1], 0 * heads[:, -1:]], axis=1)),
    "groups-strided": {
        "share": lambda heads: Heads(
            heads.q, *(np.tile(x, (1, heads.q.shape[1] // x.shape[1], 1, 1)) for x in heads[1:])
        )
    },
    "groups-first": {
        "share": lambda heads: Heads(heads.q, *(x[:, :1].repeat(heads.q.shape[1], axis=1) for x in heads[1:]))
    },
    "output-projection-missing": {"write": _joined_only},
    "output-transposed": _weights(W_o=lambda W: _square(W.W_o).T.reshape(W.W_o.shape)),
    "weights-transposed": _weights(
        W_q=lambda W: _sideways(W.W_q),
        W_k=lambda W: _sideways(W.W_k),
        W_v=lambda W: _sideways(W.W_v),
        W_o=lambda W: _square(W.W_o).T.reshape(W.W_o.shape),
    ),
    "output-bias-missing": _adding(lambda heads, setting, problem: -_known(_own(setting).b_o)),
    "value-bias-missing": _weights(b_v=lambda W: 0 * _known(W.b_v)),
    "query-bias-missing": _weights(b_q=lambda W: 0 * _known(W.b_q)),
    "keys-from-value-matrix": _weights(W_k=lambda W: W.W_v, b_k=lambda W: W.b_v),
    "values-from-key-matrix": _weights(W_v=lambda W: W.W_k, b_v=lambda W: W.b_k),
    "keys-and-values-swapped": _weights(
        W_k=lambda W: W.W_v, b_k=lambda W: W.b_v, W_v=lambda W: W.W_k, b_v=lambda W: W.b_k
    ),
    "queries-and-keys-swapped": _weights(
        W_q=lambda W: W.W_k, b_q=lambda W: W.b_k, W_k=lambda W: W.W_q, b_k=lambda W: W.b_q
    ),
    "fused-head-by-head": _weights(**{name: partial(_regrouped, name, "head by head") for name in PROJECTED}),
    "fused-in-blocks": _weights(**{name: partial(_regrouped, name, "in blocks") for name in PROJECTED}),
    "residual-inside": _adding(lambda heads, setting, problem: problem.Q),
    "rotary-pairs": _prepared(_other_pairs),
    "rotary-keys-left": _prepared(lambda heads, setting: heads._replace(q=prepare(heads, setting).q)),
    "rotary-values": _prepared(
        lambda heads, setting: prepare(heads, setting)._replace(
            v=prepare(heads._replace(q=heads.v[:, :, : heads.q.shape[-2]], k=heads.v), setting).k
        )
    ),
    "rotary-opposite": _prepared(_opposite),
    "rotary-twice": _prepared(lambda heads, setting: prepare(prepare(heads, setting), setting)),
} | {f"output-bias-repeated {times}": _adding(partial(_more_bias, times - 1)) for times in (2, 3, 4, 5, 8)}


def explain(problems: list[Problem], setting: Setting, found: list[Array | None], close: Close) -> list[str]:
    """The faults that give everything that was found, and not what is right, in the order of the table.

    Parameters
    ----------
    found
        What the function gave for each problem, None where it raised.
    close
        Whether two arrays agree.
    """
    given = [(problem, output) for problem, output in zip(problems, found, strict=True) if output is not None]
    with np.errstate(all="ignore"):
        cases = [(problem, output, run(problem, setting)) for problem, output in given]
        names = [name for name, changed in IMITATIONS.items() if _fits(changed, setting, cases, close)]
    return list(dict.fromkeys(name.split()[0] for name in names))


def _fits(
    changed: dict[str, Any], setting: Setting, cases: list[tuple[Problem, Array, Array]], close: Close
) -> bool:
    """Whether a fault gives what was found, and what is not right at least once."""
    seen = False
    for problem, output, right in cases:
        try:
            faulty = run(problem, setting, Steps(**changed))
        except Exception:  # of shapes that do not fit, or whatever `prepare` raises: the fault does not show here
            faulty = right
        if faulty.shape != output.shape or not _close_where_finite(output, faulty, close):
            return False
        seen |= not close(right, faulty)
    return seen


def _close_where_finite(output: Array, faulty: Array, close: Close) -> bool:
    """Whether numbers agree, but for NaN where a fault hides everything; of those there may not be too many."""
    finite = np.isfinite(output)
    return bool(finite.mean() > 0.3) and close(output[finite], faulty[finite])
