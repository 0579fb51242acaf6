"""An oracle in long doubles that looks at nothing hidden.

It visits one query of one head at a time and takes the keys that this query sees, and no others.
"""

from typing import NamedTuple

import numpy as np

from mha_tutorial import RowWeights
from mha_tutorial.masks import Mask


class Case(NamedTuple):
    """Inputs as rows; without keys it is self-attention."""

    weights: RowWeights
    Q: np.ndarray
    K: np.ndarray | None
    V: np.ndarray | None
    visible: np.ndarray | Mask | None = None
    bias: np.ndarray | None = None
    scale: float | None = None
    output_gradient: np.ndarray | None = None

    @property
    def inputs(self):
        return (self.Q,) * 3 if self.K is None else (self.Q, self.K, self.V)

    @property
    def dY(self):
        if self.output_gradient is not None:
            return self.output_gradient
        shape = (*self.Q.shape[:-1], self.weights.d_model)
        return np.random.default_rng(7).normal(size=shape).astype(self.Q.dtype)


class Sum:
    """A sum, and how large its terms are: rounding errors are in proportion to that."""

    def __init__(self, like):
        self.total, self.size = np.zeros(like.shape, np.longdouble), np.zeros(like.shape, np.longdouble)

    def add(self, place, term, size):
        self.total[place] += term
        self.size[place] += size


def oracle(case: Case):
    """The output and every gradient, with the size of their terms: {name: Sum}."""
    w = {name: array.astype(np.longdouble) for name, array in case.weights.arrays().items()}
    Q, K, V, dY = (x.astype(np.longdouble) for x in (*case.inputs, case.dY))
    b, n, m, h, group = len(Q), Q.shape[-2], K.shape[-2], case.weights.h, case.weights.group_size
    seen = np.broadcast_to(seen_by(case), (b, h, n, m))
    bias = np.broadcast_to(np.longdouble(0) if case.bias is None else case.bias, (b, h, n, m)).astype(np.longdouble)
    scale = case.weights.d_k**-0.5 if case.scale is None else case.scale
    sums = {name: Sum(x) for name, x in ({"Q": Q, "K": K, "V": V} | w).items()} | {"output": Sum(dY)}
    d_keys, d_values = (Sum(np.zeros((b, case.weights.h_kv, m, w[W].shape[-1]))) for W in ("W_k", "W_v"))
    for e, head, i in np.ndindex(b, h, n):
        some, shared = np.flatnonzero(seen[e, head, i] & ~np.isneginf(bias[e, head, i])), head // group
        if not some.size:  # its head is zero, and the loss may still depend on it
            sums["W_o"].add(head, np.outer(np.zeros(len(w["W_o"][head])), dY[e, i]), 0)
            continue
        q = settled(Q[e, i]) @ w["W_q"][head] + w.get("b_q", np.zeros((h, 1)))[head]
        k = settled(K[e, some]) @ w["W_k"][shared] + w.get("b_k", np.zeros((h, 1)))[shared]
        v = V[e, some] @ w["W_v"][shared] + w.get("b_v", np.zeros((h, 1)))[shared]
        v = np.where(np.isfinite(v), v, np.nan)
        scores = k @ q * scale + bias[e, head, i, some]
        a = np.exp(scores - scores.max())
        a /= a.sum()
        average, d_head = a @ v, w["W_o"][head] @ dY[e, i]
        sums["output"].add((e, i), average @ w["W_o"][head], np.abs(a) @ np.abs(v) @ np.abs(w["W_o"][head]))
        sums["W_o"].add(head, np.outer(average, dY[e, i]), np.outer(a @ np.abs(v), np.abs(dY[e, i])))
        d_a, size = v @ d_head, np.abs(v) @ (np.abs(w["W_o"][head]) @ np.abs(dY[e, i]))
        d_s, size = a * (d_a - a @ d_a) * scale, a * (size + a @ size) * abs(scale)
        d_q, size_q = d_s @ k, size @ np.abs(k)
        through(sums, "q", e, head, i, d_q, size_q, Q[e, i], w)
        for j, d, s, weight in zip(some, d_s, size, a, strict=True):
            d_keys.add((e, shared, j), d * q, s * np.abs(q))
            d_values.add((e, shared, j), weight * d_head, weight * np.abs(d_head))
    anyone = (seen & ~np.isneginf(bias)).reshape(b, -1, group, n, m).any(axis=(2, 3))
    for e, shared, j in zip(*np.nonzero(anyone), strict=True):
        for name, found, x in (("k", d_keys, K), ("v", d_values, V)):
            place = e, shared, j
            through(sums, name, e, shared, j, found.total[place], found.size[place], x[e, j], w)
    if "b_o" in w:
        sums["output"].add(..., w["b_o"], np.abs(w["b_o"]))
        sums["b_o"].add(..., dY.sum(axis=(0, 1)), np.abs(dY).sum(axis=(0, 1)))
    return sums


def through(sums, name, e, head, i, d, size, token, w):
    """Hand the gradient of one projected token on to the token, the matrix and the bias."""
    W = w[f"W_{name}"][head]
    sums[name.upper()].add((e, i), W @ d, np.abs(W) @ size)
    sums[f"W_{name}"].add(head, np.outer(token, d), np.outer(np.abs(token), size))
    if f"b_{name}" in w:
        sums[f"b_{name}"].add(head, d, size)


def settled(tokens):
    """Tokens of which every number is NaN if one is not finite."""
    return np.where(np.isfinite(tokens).all(axis=-1, keepdims=True), tokens, np.nan)


def seen_by(case: Case):
    if isinstance(case.visible, Mask):
        return case.visible.rows(case.Q.shape[-2], case.inputs[1].shape[-2], (len(case.Q),))[..., None, :, :]
    return True if case.visible is None else case.visible


def assert_near(name, found, expected, dtype):
    """Not finite in the same places, and elsewhere off by few roundings of the largest term.

    A sum over all tokens, one after the other, may be off by half a rounding for each of them.
    """
    assert found.dtype == dtype
    with np.errstate(over="ignore", invalid="ignore"):
        right = expected[name].total.astype(dtype)
    finite = np.isfinite(right)
    if name == "output":
        np.testing.assert_array_equal(np.isnan(found), np.isnan(right), err_msg=name)
    np.testing.assert_array_equal(np.isfinite(found), finite, err_msg=name)
    sizes = expected[name].size[finite & np.isfinite(expected[name].size)]
    tokens = max(expected[inputs].total.shape[-2] for inputs in "QK")
    summed_in = np.result_type(dtype, np.float32)
    roundings = 64 * float(np.finfo(dtype).eps) + tokens / 2 * float(np.finfo(summed_in).eps)
    tolerance = roundings * float(sizes.max(initial=0))
    np.testing.assert_allclose(
        found[finite].astype(float), right[finite].astype(float), rtol=0, atol=tolerance, err_msg=name
    )
