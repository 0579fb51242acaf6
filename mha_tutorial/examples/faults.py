"""Right attention, broken one line at a time: what the checker is tried on, and what the field guide shows."""

import functools
import importlib
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from ..check import Report, check
from ..positions.row import Rotary

Checked = Callable[[dict[str, Any]], Report]


class Faulty(NamedTuple):
    """One line of right code, and what stands there instead.

    Parameters
    ----------
    of
        What is broken: a key of `RIGHT`.
    old, new
        The line, or a part of it, and what replaces it everywhere.
    fault
        The fault that this is, a key of `mha_tutorial.check.FAULTS`; None if nobody can see it from outside.
    """

    of: str
    old: str
    new: str
    fault: str | None


def _layer(names: dict[str, Any], **options: int) -> Report:
    return check(names["Layer"](d_model=15, h=3, **options))


def _dropping(names: dict[str, Any]) -> Report:
    return check(names["Layer"](d_model=15, h=3, dropout=0.5))


def _grouped(names: dict[str, Any]) -> Report:
    return check(names["Layer"](d_model=30, h=6, h_kv=3))


def _loaded(names: dict[str, Any]) -> Report:
    import torch

    torch.manual_seed(0)
    source = torch.nn.MultiheadAttention(15, 5, batch_first=True)
    for parameter in source.parameters():
        torch.nn.init.normal_(parameter)
    return check(names["load"](source, names["Layer"](15, 5)), against=source)


RIGHT: dict[str, tuple[str, Checked]] = {  # what is broken: the module it stands in, and how it is checked
    "attention": ("plain_numpy", lambda names: check(names["attention"])),
    "causal": ("plain_numpy", lambda names: check(names["causal_attention"], causal=True)),
    "rotary": ("plain_numpy", lambda names: check(names["rotary_attention"], prepare=Rotary(10000.0), d_k=10)),
    "step": (
        "plain_numpy",
        lambda names: check(names["rotary_attention"], prepare=Rotary(10000.0), d_k=10, step=names["step"]),
    ),
    "blockwise": ("plain_numpy", lambda names: check(names["blockwise"])),
    "tensors": ("plain_torch", lambda names: check(names["attention"], library="torch")),
    "layer": ("plain_torch", _layer),
    "layer with dropout": ("plain_torch", _dropping),
    "grouped layer": ("plain_torch", _grouped),
    "packed layer": ("plain_torch", lambda names: check(names["PackedLayer"](15, 3))),
    "with weights": ("plain_torch", lambda names: check(names["attention"], with_weights=names["both"])),
    "loaded layer": ("plain_torch", _loaded),
}

ROOT = "/ q.shape[-1] ** 0.5"
HIDDEN = "np.where(visible, scores, -np.inf)"
TRIANGLE = "np.tri(n, m, m - n, dtype=bool)"
TRANSPOSED = "heads.transpose(1, 2).flatten(2)"
SPLIT = "tokens.view(b, n, h, self.d).transpose(1, 2)"
FILLED = "scores.masked_fill(~visible, -torch.inf)"
OPENING = "def attention(q, k, v, visible=None):\n"
INNER = (
    "def attention(q, k, v, visible=None):\n"
    "    return inner(*(x.{swap} for x in (q, k, v)), visible).{swap}\n\n\n"
    "def inner(q, k, v, visible=None):\n"
)
LAST = "return self.W_o(merged)"
TURNED = "q, k = rotate(q), rotate(k)"

FAULTY = (
    # scores
    Faulty("attention", ROOT, "", "scale-missing"),
    Faulty("attention", ROOT, "/ (q.shape[-3] * q.shape[-1]) ** 0.5", "scale-d-model"),
    Faulty("attention", ROOT, "/ q.shape[-1]", "scale-twice"),
    Faulty("attention", ROOT, "/ q.shape[-3] ** 0.5", "scale-heads"),
    Faulty("attention", ROOT, "/ v.shape[-1] ** 0.5", "scale-values"),
    Faulty("attention", ROOT, "/ k.shape[-2] ** 0.5", "scale-tokens"),
    Faulty("attention", ROOT, "* q.shape[-1] ** 0.5", "scale-inverted"),
    Faulty("attention", ROOT, "/ 8", "scale-other"),
    Faulty("attention", ROOT, "/ np.sqrt(q.shape[-1])", "dtype-changed"),
    Faulty("tensors", "q.to(wide) @ k.to(wide).mT", "q @ k.mT", "sixteen-bit-scores"),
    Faulty("attention", "q @ k.mT", "k @ q.mT", "queries-and-keys-exchanged"),
    Faulty("attention", "return weights @ v", "return weights @ k", "keys-as-values"),
    # softmax
    Faulty("attention", "weights.sum(axis=-1", "weights.sum(axis=-2", "softmax-over-queries"),
    Faulty("attention", "weights.sum(axis=-1", "weights.sum(axis=1", "softmax-over-heads"),
    Faulty("attention", "weights.sum(axis=-1", "weights.sum(axis=0", "softmax-over-batch"),
    Faulty("attention", "axis=-1, keepdims", "axis=(-2, -1), keepdims", "softmax-over-all"),
    Faulty("tensors", "scores.softmax(dim=-1)", "scores.masked_fill(scores == -torch.inf, 0)", "softmax-missing"),
    Faulty("attention", "scores.max(axis=-1, keepdims=True)", "0", "softmax-overflow"),
    Faulty("attention", "scores.max(axis=-1, keepdims=True)", "scores.max()", "softmax-overflow"),
    Faulty("tensors", "scores.softmax(dim=-1)", "scores.exp()", "softmax-not-normalised"),
    Faulty("tensors", "scores.softmax(dim=-1)", "scores.softmax(dim=-1).softmax(dim=-1)", "softmax-twice"),
    # masks
    Faulty("attention", HIDDEN, "np.where(visible, -np.inf, scores)", "mask-inverted"),
    Faulty("attention", "visible is not None", "visible is False", "mask-ignored"),
    Faulty("attention", HIDDEN, "scores - 1e-9 * ~visible", "mask-ignored"),
    Faulty("tensors", f"scores = {FILLED}", FILLED, "mask-ignored"),
    Faulty("attention", HIDDEN, "scores + visible", "mask-added"),
    Faulty("attention", HIDDEN, "scores * visible", "mask-multiplied"),
    Faulty(
        "tensors",
        f"scores = {FILLED}\n    weights = scores.softmax(dim=-1)",
        "pass\n    weights = (scores.softmax(dim=-1) * (1 if visible is None else visible))",
        "mask-after-softmax",
    ),
    Faulty("attention", HIDDEN, "np.where(visible, scores, -1e4)", "mask-finite-fill"),
    Faulty("attention", HIDDEN, "np.where(visible, scores, -1e9)", "mask-finite-fill"),
    Faulty(
        "attention",
        HIDDEN,
        "np.where(visible.swapaxes(0, -3).reshape(visible.shape), scores, -np.inf)",
        "mask-head-order",
    ),
    Faulty(
        "attention",
        HIDDEN,
        "np.where(visible[:1] if visible.ndim > 3 else visible, scores, -np.inf)",
        "mask-of-first-sequence",
    ),
    Faulty(
        "attention",
        HIDDEN,
        "np.where(visible[..., :1, :, :] if visible.ndim > 2 else visible, scores, -np.inf)",
        "mask-of-first-head",
    ),
    Faulty(
        "attention",
        "    if visible is not None:",
        "    if visible is None:\n        visible = np.tri(*scores.shape[-2:], dtype=bool)\n"
        "    if visible is not None:",
        "causal-built-in",
    ),
    Faulty(
        "tensors", "scores.softmax(dim=-1)", "scores.softmax(dim=-1).nan_to_num(1 / k.shape[-2])", "blind-average"
    ),
    Faulty("causal", TRIANGLE, "np.tri(n, m, dtype=bool)", "causal-top-left"),
    Faulty("causal", TRIANGLE, "np.tri(n, m, m - n + 1, dtype=bool)", "causal-peeks"),
    Faulty("causal", TRIANGLE, "np.tri(n, m, m - n - 1, dtype=bool)", "causal-hides-itself"),
    Faulty("causal", TRIANGLE, "~np.tri(n, m, m - n - 1, dtype=bool)", "causal-upside-down"),
    Faulty("causal", TRIANGLE, "None", "causal-missing"),
    Faulty("packed layer", "~visible", "visible", "mask-inverted"),
    Faulty(
        "packed layer",
        f"scores = {FILLED}\n        weights = scores.softmax(dim=-1)",
        "pass\n        weights = scores.softmax(dim=-1) * (1 if visible is None else visible)",
        "mask-after-softmax",
    ),
    Faulty("attention", HIDDEN, "np.where(visible.mT, scores, -np.inf)", "mask-transposed"),
    # heads
    Faulty("layer", SPLIT, "tokens.reshape(b, h, n, self.d)", "split-without-transpose"),
    Faulty("layer", SPLIT, "tokens.view(b, n, self.d, h).permute(0, 3, 1, 2)", "heads-innermost"),
    Faulty("layer", TRANSPOSED, "heads.reshape(*queries.shape[:2], -1)", "merge-without-transpose"),
    Faulty("layer", TRANSPOSED, "heads.flip(1).transpose(1, 2).flatten(2)", "heads-reversed"),
    Faulty(
        "layer",
        TRANSPOSED,
        "functional.pad(heads[:, :-1], (0, 0, 0, 0, 0, 1)).transpose(1, 2).flatten(2)",
        "head-lost",
    ),
    Faulty("layer", "heads = weights @ v", "heads = weights @ v / self.h", "heads-averaged"),
    Faulty("layer", "torch.softmax(scores, dim=-1)", "torch.softmax(scores, dim=-2)", "softmax-over-queries"),
    Faulty("layer", "/ self.d**0.5", "/ queries.shape[-1]**0.5", "scale-d-model"),
    Faulty(
        "grouped layer",
        "repeat_interleave(self.h // self.h_kv, dim=1)",
        "repeat(1, self.h // self.h_kv, 1, 1)",
        "groups-strided",
    ),
    Faulty("grouped layer", ".repeat_interleave(self.h // self.h_kv, dim=1)", "[:, :1]", "groups-first"),
    Faulty("packed layer", "heads.transpose(1, 2).reshape", "heads.reshape", "merge-without-transpose"),
    Faulty(
        "packed layer",
        "view(b, n, 3, self.h, self.d).permute(2, 0, 3, 1, 4)",
        "view(b, 3, self.h, n, self.d).transpose(0, 1)",
        "split-without-transpose",
    ),
    Faulty("packed layer", "softmax(dim=-1)", "softmax(dim=-2)", "softmax-over-queries"),
    Faulty("packed layer", "softmax(dim=-1)", "softmax(dim=0)", "softmax-over-batch"),
    Faulty("packed layer", "softmax(dim=-1)", "exp()", "softmax-not-normalised"),
    Faulty("packed layer", "* self.d**-0.5", "", "scale-missing"),
    Faulty("tensors", OPENING, INNER.format(swap="transpose(0, 2)"), "batch-first"),
    Faulty("tensors", OPENING, INNER.format(swap="transpose(1, 2)"), "heads-and-tokens-exchanged"),
    # projections
    Faulty("layer", LAST, "return merged", "output-projection-missing"),
    Faulty("layer", LAST, "return merged @ self.W_o.weight + self.W_o.bias", "output-transposed"),
    Faulty("layer", LAST, "return merged @ self.W_o.weight.T", "output-bias-missing"),
    Faulty(
        "layer",
        LAST,
        "return sum(functional.linear(x, W, self.W_o.bias) for x, W in "
        "zip(merged.split(self.d, 2), self.W_o.weight.split(self.d, 1)))",
        "output-bias-repeated",
    ),
    Faulty("layer", LAST, "return queries + self.W_o(merged)", "residual-inside"),
    Faulty("layer", "self.W_q(queries)", "queries @ self.W_q.weight.T", "query-bias-missing"),
    Faulty("layer", "self.W_k(keys)", "keys @ self.W_k.weight.T", None),  # it never changes a result
    Faulty("layer", "self.W_v(values)", "values @ self.W_v.weight.T", "value-bias-missing"),
    Faulty("layer", "self.W_k(keys)", "self.W_v(keys)", "keys-from-value-matrix"),
    Faulty("layer", "self.W_v(values)", "self.W_k(values)", "values-from-key-matrix"),
    Faulty(
        "loaded layer",
        "W_q, W_k, W_v = source.in_proj_weight.chunk(3)\n    b_q, b_k, b_v",
        "W_q, W_v, W_k = source.in_proj_weight.chunk(3)\n    b_q, b_v, b_k",
        "keys-and-values-swapped",
    ),
    Faulty(
        "loaded layer",
        "W_q, W_k, W_v = source.in_proj_weight.chunk(3)\n    b_q, b_k, b_v",
        "W_k, W_q, W_v = source.in_proj_weight.chunk(3)\n    b_k, b_q, b_v",
        "queries-and-keys-swapped",
    ),
    Faulty("loaded layer", "(source.out_proj.weight)", "(source.out_proj.weight.T)", "output-transposed"),
    Faulty(
        "loaded layer", ".chunk(3)", ".unflatten(0, (5, 3, 3)).transpose(0, 1).flatten(1, 2)", "fused-in-blocks"
    ),
    Faulty(
        "loaded layer",
        "    layer.W_o.bias.copy_(source.out_proj.bias)",
        "    layer.W_o.bias.zero_()",
        "output-bias-missing",
    ),
    Faulty("loaded layer", "copy_(b_v)", "zero_()", "value-bias-missing"),
    Faulty(
        "loaded layer",
        "    return layer\n",
        "    for one in (layer.W_q, layer.W_k, layer.W_v, layer.W_o):\n"
        "        one.weight.copy_(one.weight.T.clone())\n    return layer\n",
        "weights-transposed",
    ),
    # positions and caches
    Faulty("rotary", "x[..., :half], x[..., half:]", "x[..., 0::2], x[..., 1::2]", "rotary-pairs"),
    Faulty("rotary", TURNED, "q = rotate(q)", "rotary-keys-left"),
    Faulty("rotary", TURNED, "q, k, v = rotate(q), rotate(k), rotate(v)", "rotary-values"),
    Faulty(
        "rotary",
        TURNED,
        "half = q.shape[-1] // 2\n    q, k = rotate(q), np.roll(rotate(np.roll(k, half, -1)), half, -1)",
        "rotary-opposite",
    ),
    Faulty("rotary", TURNED, "q, k = rotate(rotate(q)), rotate(rotate(k))", "rotary-twice"),
    Faulty("rotary", "places[:, None]", "(places[:, None] + 1)", None),  # distances are the same
    Faulty("step", "rotate(q, past), rotate(k, past)", "rotate(q), rotate(k)", "cache-differs"),
    Faulty("step", "cache[0].shape[-2]", "cache[0].shape[-2] - 1", "cache-differs"),
    Faulty("step", "attention(q, k, v), (k, v)", "attention(q, k, v), (rotate(k), v)", "cache-differs"),
    Faulty("step", "zip(cache, (k, v)", "zip((k, v), cache", None),  # keys may lie in any order
    # blocks
    Faulty("blockwise", "weighted * shrink", "weighted", "block-not-rescaled"),
    Faulty("blockwise", "range(0, m, size)", "range(0, max(m // size, 1) * size, size)", "block-lost"),
    Faulty("blockwise", "np.full((*q.shape[:-1], 1), -np.inf)", "np.zeros((*q.shape[:-1], 1))", "block-hidden"),
    Faulty("blockwise", "np.where(higher == -np.inf, 0, higher)", "higher", "block-hidden"),
    # state, types, gradients
    Faulty("layer with dropout", "self.dropout, self.training", "self.dropout, True", "dropout-in-eval"),
    Faulty("layer", "if visible is not None:", "if visible is not None and not self.training:", "train-differs"),
    Faulty("layer", "/ self.d**0.5", "/ (self.d**0.5 if self.training else 1)", "scale-missing"),
    Faulty("attention", "scores = q @ k.mT", "q *= 1.01\n    scores = q @ k.mT", "input-changed"),
    Faulty(
        "attention",
        "scores = q @ k.mT",
        "attention.calls = getattr(attention, 'calls', 0) + 1\n    scores = attention.calls * q @ k.mT",
        "state-kept",
    ),
    Faulty("tensors", "q.to(wide) @", "q.detach().to(wide) @", "gradient-detached"),
    Faulty("tensors", "return weights @ v", "return (weights + weights.detach()) / 2 @ v", "gradient-wrong"),
    Faulty("tensors", "return weights @ v", "return weights @ v + (v - v.detach()).sum()", "gradient-wrong"),
    Faulty(
        "tensors",
        "return weights @ v",
        "return weights @ v + (0 if visible is None else (v - v.detach()).sum())",
        "gradient-leaks",
    ),
    Faulty("tensors", "k.to(wide).mT", "k.as_strided(k.shape, k.contiguous().stride()).to(wide).mT", "dense-read"),
    Faulty(
        "with weights", "return weights @ v, weights", "return weights @ v, weights * 1.25", "weights-after-dropout"
    ),
    Faulty(
        "with weights",
        f"scores = {FILLED}\n    weights = scores.softmax(dim=-1)\n",
        "pass\n    weights = scores.softmax(dim=-1)\n",
        "weights-path-differs",
    ),
    Faulty("attention", "return weights @ v", "return (weights @ v).swapaxes(1, 2)", "wrong-shape"),
    Faulty("attention", "return weights @ v", "return weights @ v + 0 * q", "values-as-wide-as-keys"),
    Faulty("attention", "scores = q @ k", "scores = q @ k.reshape(q.shape)", "square-only"),
)


def broken(faulty: Faulty) -> dict[str, Any]:
    """What the module of a faulty version defines, with the line replaced.

    Raises
    ------
    ValueError
        If the line does not stand there.

    Examples
    --------
    >>> broken(FAULTY[0])["attention"].__name__
    'attention'
    """
    module = importlib.import_module(f"{__package__}.{RIGHT[faulty.of][0]}")
    source = inspect.getsource(module)
    if faulty.old not in source:
        raise ValueError(f"{module.__name__} has no {faulty.old!r}")
    names: dict[str, Any] = {"__name__": f"{module.__name__}, broken"}
    exec(compile(source.replace(faulty.old, faulty.new), f"<{names['__name__']}>", "exec"), names)
    return names


def find(fault: str, of: str | None = None) -> Faulty:
    """The first faulty version with a fault, of a certain code if need be.

    Raises
    ------
    ValueError
        If there is none.

    Examples
    --------
    >>> find("scale-missing").new
    ''
    """
    for faulty in FAULTY:
        if faulty.fault == fault and of in (None, faulty.of):
            return faulty
    raise ValueError(f"no faulty version has the fault {fault!r}")


def report_of(faulty: Faulty) -> Report:
    """What the checker says of a faulty version.

    Examples
    --------
    >>> report_of(FAULTY[0]).faults[0]
    'scale-missing'
    """
    return RIGHT[faulty.of][1](broken(faulty))


def verdict(faulty: Faulty) -> str | None:
    """The fault that the checker names first, beside those of the right code: plain code deserves remarks.

    Examples
    --------
    >>> verdict(FAULTY[0])
    'scale-missing'
    """
    right = right_report(faulty.of)
    named = report_of(faulty).faults
    return next((name for name in named if name not in right.faults), None)


@functools.cache
def right_report(of: str) -> Report:
    """What the checker says of the right code."""
    return RIGHT[of][1](broken(Faulty(of, "\n", "\n", None)))
