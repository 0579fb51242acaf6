"""Numbers at the edges: every kind of fault, in every NumPy implementation, in every type, forward and backward.

The expected numbers come from an oracle in long doubles that looks at nothing hidden: it visits one query of one
head at a time and takes the keys that this query sees, and no others.
"""

import re
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pytest

from mha_tutorial import Causal, MultiHeadAttention, Padding, RowWeights, gradients
from mha_tutorial.masks import Mask
from mha_tutorial.reference import column, loops, row
from tests.helpers import assert_close, in_both_conventions

B, N, M, D_MODEL, H, H_KV, D_K, D_V = 2, 5, 7, 11, 4, 2, 3, 13
DTYPES = [np.float64, np.float32, np.float16]


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


# --- the oracle ------------------------------------------------------------------------------------------------


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


# --- the implementations ---------------------------------------------------------------------------------------


def by_reference(ref):
    """The output and the gradients of a reference, read back as rows."""

    def run(case: Case):
        lay = (lambda x: x.mT) if ref is column else (lambda x: x)
        weights = case.weights.T if ref is column else case.weights
        visible = lay(case.visible) if isinstance(case.visible, np.ndarray) else case.visible
        score = ref.scaled_dot_product if case.scale is None else ref.scaled_by(case.scale)
        score = score if case.bias is None else ref.biased(score, lay(case.bias))
        X = lay(case.Q)
        inputs = (X,) * 3 if case.K is None else tuple(lay(x) for x in case.inputs)
        trace = ref.multi_head(*inputs, weights, score, visible)
        found = gradients.backward(lay(case.dY), trace, *inputs, weights, case.scale)
        check_types(trace, case.Q.dtype)
        as_rows = found.weights.T if ref is column else found.weights
        return lay(trace.output), dict(zip("QKV", map(lay, found[:3]), strict=True)) | as_rows.arrays()

    return run


def by_layer(case: Case):
    layer, inputs = MultiHeadAttention(case.weights, scale=case.scale), [x for x in case[1:4] if x is not None]
    trace = layer.trace(*inputs, visible=case.visible, bias=case.bias)
    assert np.array_equal(layer(*inputs, visible=case.visible, bias=case.bias), trace.output, equal_nan=True)
    check_types(trace, case.Q.dtype)
    found = gradients.backward(case.dY, trace, *case.inputs, case.weights, case.scale)
    return trace.output, dict(zip("QKV", found[:3], strict=True)) | found.weights.arrays()


def by_loops(case: Case):
    """Loops have no gradients; a bias is not theirs to add, but what it hides they can hide."""
    visible = case.visible.mT if isinstance(case.visible, np.ndarray) else case.visible

    def score(query, key):
        """In long doubles; what is not finite is NaN."""
        product = query.astype(np.longdouble) @ key.astype(np.longdouble) * case.scale
        return float(product) if np.isfinite(product) else np.nan

    score = loops.scaled_dot_product if case.scale is None else score
    trace = loops.multi_head(*(x.mT for x in case.inputs), case.weights.T, score, visible)
    check_types(trace, case.Q.dtype)
    return trace.output.mT, {}


def check_types(trace, dtype):
    for name, step in trace._asdict().items():
        if name in ("scores", "attention"):
            assert np.promote_types(dtype, np.float32) <= step.dtype
        else:
            assert step.dtype == dtype


class Implementation(NamedTuple):
    run: Callable
    takes_bias: bool = True


IMPLEMENTATIONS = {
    "column": Implementation(by_reference(column)),
    "row": Implementation(by_reference(row)),
    "loops": Implementation(by_loops, takes_bias=False),
    "layer": Implementation(by_layer),
}


# --- the kinds -------------------------------------------------------------------------------------------------


def drawn(dtype, cross=True, bias=True, **options) -> Case:
    """A layer and tokens without anything special about them."""
    rng = np.random.default_rng(2017)
    weights = RowWeights.random(rng, D_MODEL, H, h_kv=H_KV, d_k=D_K, d_v=D_V, bias=bias)
    weights = RowWeights(**{name: array.astype(dtype) for name, array in weights.arrays().items()})
    Q, K, V = (rng.normal(size=(B, length, D_MODEL)).astype(dtype) for length in (N, M, M))
    return Case(weights, Q, *((K, V) if cross else (None, None)), **options)


def exact(dtype, Q, K, V, **options) -> Case:
    """One head that projects by unit matrices: scores are the inner products of the tokens."""
    Q, K, V = (np.array(x, dtype)[None] for x in (Q, K, V))
    d, d_v = Q.shape[-1], V.shape[-1]
    return Case(RowWeights(*(np.eye(x, dtype=dtype)[None] for x in (d, d, d_v, d_v))), Q, K, V, **options)


def spoiled(name, place, value, **options):
    """Put a value somewhere into one of the inputs; `huge` is nine tenths of the type's largest number."""

    def make(dtype):
        case = drawn(dtype, **options)
        number = 0.9 * np.finfo(dtype).max if value == "huge" else value
        for one in name:
            getattr(case, one)[place] = number
        return case

    return make


def texts():
    """Two texts in one sequence: queries 0, 1 see keys 0 to 2, the others keys 3 to 6."""
    visible = np.zeros((N, M), dtype=bool)
    visible[:2, :3] = visible[2:, 3:] = True
    return visible


def real(lengths):
    """Padding sees nothing and is not seen."""
    tokens = np.arange(N) < np.array(lengths)[:, None, None, None]
    return tokens & tokens.mT


def blind():
    """Query 1 sees nothing, and nobody sees key 4."""
    visible = np.ones((N, M), dtype=bool)
    visible[1], visible[:, 4] = False, False
    return visible


NOT_FINITE = {
    "a query": spoiled("Q", (0, 1, 3), np.nan),
    "a query of inf": spoiled("Q", (0, 1), np.inf),
    "a query of one -inf, in one text": spoiled("Q", (1, 0, 2), -np.inf, visible=texts()),
    "a key": spoiled("K", (0, 1, 3), np.nan),
    "a key of inf, in one text": spoiled("K", (0, 4), np.inf, visible=texts()),
    "a key of one -inf, behind others": spoiled("K", (1, 3, 0), -np.inf, visible=Causal("top-left")),
    "a value": spoiled("V", (0, 5, 3), np.nan),
    "a value of one inf, in one text": spoiled("V", (1, 5, 3), np.inf, visible=texts()),
    "a token among its own": spoiled("Q", (0, 3, 1), np.inf, cross=False, visible=Causal()),
    "a token of padding": spoiled("Q", (0, 4), np.nan, cross=False, visible=Padding([4, 5])),
    "a blind query": spoiled("Q", (slice(None), 1), np.nan, visible=blind()),
    "a key and a value nobody sees": spoiled("KV", (slice(None), 4), -np.inf, visible=blind()),
}


def hidden_by_bias(dtype):
    case = spoiled("KV", (slice(None), 4), np.nan)(dtype)
    return case._replace(bias=np.where(blind(), 0.5, -np.inf).astype(dtype))


def orthogonal_key(dtype):
    """The inner product with a key of -inf is -inf: that is no mask."""
    return exact(dtype, [[1, 2], [1, 1]], [[-np.inf, -np.inf], [1, 0], [0, 1]], np.eye(3))


NOT_FINITE |= {"hidden by a bias": hidden_by_bias, "scores of -inf": orthogonal_key}

GARBAGE = {
    "a key": spoiled("K", (0, 6), "huge", visible=Padding([6, 7])),
    "a key of one huge number": spoiled("K", (slice(None), 4, 2), "huge", visible=blind()),
    "a value": spoiled("V", (slice(None), 4), "huge", visible=blind()),
    "both": spoiled("KV", (slice(None), 4), "huge", visible=blind()),
    "a blind query": spoiled("Q", (slice(None), 1), "huge", visible=blind()),
    "tokens of padding": spoiled("Q", (1, slice(3, None)), "huge", cross=False, visible=real([5, 3])),
    "all at once, no bias": spoiled("QKV", (0,), "huge", visible=Padding([0, 7]), bias=False),
}


def blamed(place, value, visible):
    """A loss whose derivative by some outputs is not finite."""

    def make(dtype):
        case = drawn(dtype, visible=visible)
        dY = case.dY
        dY[place] = value
        return case._replace(output_gradient=dY)

    return make


BLAMED = {
    "a query of one text": blamed((0, 1), np.nan, texts()),
    "one number of inf": blamed((1, 3, 2), np.inf, texts()),
    "the first of a causal sequence": blamed((0, 0), -np.inf, Causal("top-left")),
    "a blind query": blamed((slice(None), 1), np.nan, blind()),
}


def alibi(dtype):
    """M03: steps of a half beyond 2000, where 16 bits count in ones and twos. The last query of 300 tokens."""
    i = np.arange(300)
    return exact(
        dtype,
        [[0.0]],
        np.zeros((300, 1)),
        np.stack([i % 2, i % 3], 1),
        bias=(2000 + 0.5 * i)[None].astype(np.float32),
    )


SIXTEEN_BITS = {
    "near scores": lambda dtype: exact(
        dtype, np.full((1, 64), 8), np.stack([np.full(64, 8), np.r_[8.25, np.full(63, 8)]]), [[0, 1], [1, 5]]
    ),
    "scores of a hundred and more, a quarter apart": lambda dtype: exact(
        dtype, [[16, 0.5]], [[16, 0], [16, 0.5], [16, 1]], [[1, 2], [4, 8], [16, 32]], scale=1.0
    ),
    "scores beyond 65,504": lambda dtype: exact(
        dtype, [[512, 1], [512, 2]], [[512, 0], [512, 1], [512, -1]], [[1, 2], [4, 8], [16, 32]], scale=1.0
    ),
    "many small weights": lambda dtype: exact(
        dtype, np.zeros((1, 2)), np.zeros((4096, 2)), np.ones((4096, 2)) * [1, 3]
    ),
    "many tokens": lambda dtype: exact(dtype, 4 * np.ones((1039, 1)), [[1], [2]], [[1, 2], [3, 5]]),
    "a bias of 32 bits": alibi,
    "a bias of a row beyond 65,504": lambda dtype: exact(
        dtype, [[0.0]], [[1], [2]], [[1, 2], [4, 8]], bias=np.array([[1e5, 1e5 + 1]], np.float32)
    ),
    "a bias of -1e9": lambda dtype: exact(
        dtype, [[0.0]], [[1], [2], [3]], [[1, 2], [4, 8], [3, 1]], bias=np.array([[0, -1e9, 0.5]], np.float32)
    ),
}

SCALES = {
    f"{scale} {mask}": (lambda dtype, scale=scale, mask=mask: drawn(dtype, scale=scale, visible=mask))
    for scale in (0.0, -0.5, 1.0, 2.25, 1e-30)
    for mask in (None, Causal("top-left"))
} | {
    "zero, beside what is not finite": lambda dtype: spoiled("K", (0, 2), np.inf, visible=texts())(dtype)._replace(
        scale=0.0
    ),
    "negative, with padding of huge numbers": lambda dtype: spoiled("KV", (0, 6), "huge", visible=Padding([6, 7]))(
        dtype
    )._replace(scale=-0.75),
    "of huge scores, made small": lambda dtype: exact(
        dtype, [[4096, 1], [1, 4096]], [[4096, 0], [0, 4096]], [[1, 2], [4, 8]], scale=2.0**-23
    ),
}

TIED = [[10000, 0], [0, 10000], [0, 0]], [[1, 2], [4, 8], [16, 31]]


def beside(number):
    """Keys whose scores are all the same after a bias that drowns them."""

    def make(dtype):
        value = np.finfo(dtype).min if number == "min" else number
        bias = np.full((2, 3), value, np.promote_types(dtype, np.float32))
        return exact(dtype, [[1, 2], [3, 1]], np.zeros((3, 2)), TIED[1], bias=bias)

    return make


def one_hot(dtype):
    """Inputs times 20,000, or what 16 bits hold of that: one score of each row leads by far."""
    rng = np.random.default_rng(3)
    tokens = [
        rng.integers(-8, 9, size=(length, 8)) * (2048 if dtype == np.float16 else 20000) for length in (N, M, M)
    ]
    return exact(dtype, *tokens, scale=1.0)


LARGE = {
    "ties at 1e8": lambda dtype: exact(dtype, [[10000, 10000], [0, 10000]], *TIED, scale=1.0),
    "ties at -1e8": lambda dtype: exact(dtype, [[10000, 10000]], TIED[0][:2], TIED[1][:2], scale=-1.0),
    "ties at 4e6, and one less by one": lambda dtype: exact(
        dtype, [[2048, 2048, 1]], [[2048, 0, 0], [0, 2048, 0], [0, 2048, -1]], TIED[1], scale=1.0
    ),
    "ties of every size": lambda dtype: exact(
        dtype, [[2.0**e, 2.0**e] for e in range(14)], [[4096, 0], [0, 4096]], TIED[1][:2], scale=0.5
    ),
    "a row of -1e9": beside(-1e9),
    "a row of the smallest number": beside("min"),
    "a row of 1e7": beside(1e7),
    "one leads by far": one_hot,
}

KINDS = {
    "not finite": NOT_FINITE,
    "finite garbage": GARBAGE,
    "not finite gradient": BLAMED,
    "16 bits": SIXTEEN_BITS,
    "scale": SCALES,
    "large scores": LARGE,
}
TABLE = [
    pytest.param(make, implementation, dtype, id=f"{kind}: {name} - {by} - {np.dtype(dtype)}")
    for kind, cases in KINDS.items()
    for name, make in cases.items()
    for by, implementation in IMPLEMENTATIONS.items()
    for dtype in DTYPES
    if implementation.takes_bias or make(dtype).bias is None
    if (by, dtype) != ("loops", np.float32)  # they are slow, and count in 64 bits whatever they are given
]


@pytest.mark.parametrize(("make", "implementation", "dtype"), TABLE)
def test_numbers_at_the_edges(make, implementation, dtype):
    case = make(dtype)
    with np.errstate(all="ignore"):
        expected = oracle(case)
    output, found = implementation.run(case)
    assert_near("output", output, expected, dtype)
    assert not found or set(found) == set(expected) - {"output"}
    for name, gradient in found.items():
        assert_near(name, gradient, expected, dtype)


def assert_near(name, found, expected, dtype):
    """Not finite in the same places, and elsewhere off by few roundings of the largest term."""
    assert found.dtype == dtype
    with np.errstate(over="ignore", invalid="ignore"):
        right = expected[name].total.astype(dtype)
    finite = np.isfinite(right)
    if name == "output":
        np.testing.assert_array_equal(np.isnan(found), np.isnan(right), err_msg=name)
    np.testing.assert_array_equal(np.isfinite(found), finite, err_msg=name)
    sizes = expected[name].size[finite & np.isfinite(expected[name].size)]
    tolerance = 64 * float(np.finfo(dtype).eps) * float(sizes.max(initial=0))
    np.testing.assert_allclose(
        found[finite].astype(float), right[finite].astype(float), rtol=0, atol=tolerance, err_msg=name
    )


# --- the table's neighbours: single functions, sentences, and what reaches only some ----------------------------


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("by", ["column", "row", "layer"])
def test_huge_numbers_in_one_text_do_not_reach_the_other(by, dtype):
    """Queries 0, 1 see keys 0 to 2, of which one is so large that its scores overflow."""
    before = drawn(dtype, visible=texts())
    after = spoiled("KV", (slice(None), 1), "huge", visible=texts())(dtype)
    (output, found), (spoiled_output, spoiled_found) = map(IMPLEMENTATIONS[by].run, (before, after))
    assert np.array_equal(output[:, 2:], spoiled_output[:, 2:])
    for name, first in {"Q": 2, "K": 3, "V": 3}.items():
        assert np.array_equal(found[name][:, first:], spoiled_found[name][:, first:])


@in_both_conventions
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_every_score_of_what_is_not_finite_is_nan(convention, dtype, value):
    ref, lay = convention.ref, convention.lay
    Q, K = np.ones((2, N), dtype), np.ones((2, M), dtype)
    Q[0, 1] = K[1, 2] = value
    U = lay(np.array([[1, 2], [3, 5]], dtype))  # without zeros, which would make NaN of infinity
    for score in (
        ref.dot_product,
        ref.scaled_dot_product,
        ref.scaled_by(0.0),
        ref.gaussian(2.0),
        ref.additive(U, U, U[0]),
    ):
        scores = lay(score(*lay(Q, K)))
        assert scores.dtype == np.promote_types(dtype, np.float32)
        expected = np.zeros((M, N), dtype=bool)
        expected[:, 1], expected[2] = True, True
        assert np.array_equal(np.isnan(scores), expected)
        assert np.isfinite(scores[~expected]).all()


@in_both_conventions
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
@pytest.mark.parametrize("which", ["inner product", "scaled", "scaled by a number", "Gaussian", "biased"])
def test_a_score_too_large_for_its_type_hides_nothing(convention, which, dtype):
    """Minus infinity would: the query would pass for one that sees no key, and get zeros."""
    ref, lay, most = convention.ref, convention.lay, float(np.finfo(dtype).max)
    score, query, key = {
        "inner product": (ref.dot_product, most / 4, -most / 4),
        "scaled": (ref.scaled_dot_product, most / 4, -most / 4),
        "scaled by a number": (ref.scaled_by(most), 1.0, -8.0),
        "Gaussian": (ref.gaussian(1.0), most / 4, -most / 4),
        "biased": (ref.biased(ref.dot_product, np.full((1, 1), -most, dtype)), 1.0, -most / 4),
    }[which]
    Q, K, V = (np.array([[x]], dtype) for x in (query, key, 5.0))
    assert np.isnan(ref.attention(Q, K, V, score)).all()
    Q, K, V = (np.array([x], dtype) for x in ([query, 0], [key, 0], [5, 7]))
    score = ref.dot_product if which == "biased" else score
    averages = lay(ref.attention(*lay(Q, K, V), score, lay(np.array([[True, False], [True, True]]))))
    assert averages[0, 1] == 7.0


def test_loops_score_what_is_not_finite_or_too_large_as_nan():
    """In the type of the query, or 32 bits."""
    for dtype, large in ((np.float64, 1e200), (np.float32, 1e30), (np.float16, np.inf)):
        query, key = np.array([large, 1.0], dtype), np.array([-large, 1.0], dtype)
        assert np.isnan(loops.scaled_dot_product(query, key))
        assert np.isnan(loops.scaled_dot_product(query, query))
        assert np.isfinite(loops.scaled_dot_product(query[1:], key[1:]))
    sixteen = np.full(2, 6e4, np.float16)
    assert loops.scaled_dot_product(sixteen, sixteen) == pytest.approx(2 * float(sixteen[0]) ** 2 / 2**0.5)


@in_both_conventions
def test_a_bias_of_inf_or_nan_is_seen_by_its_query_alone(convention):
    ref, lay = convention.ref, convention.lay
    Q, K, V = lay(np.zeros((2, 3)), np.zeros((2, 2)), np.array([[1.0, 3.0]]))
    bias = lay(np.array([[np.inf, np.nan, 0.0], [0.0, 0.0, 0.0]]))
    averages = lay(ref.attention(Q, K, V, ref.biased(ref.dot_product, bias)))
    assert np.array_equal(averages, [[np.nan, np.nan, 2.0]], equal_nan=True)


@in_both_conventions
def test_a_bias_that_only_hides_leaves_the_scores_as_they_are(convention):
    ref, lay = convention.ref, convention.lay
    Q, K = (np.ones((2, length), np.float32) for length in (N, M))
    bias = lay(np.where(np.tri(M, N), 0.0, -np.inf))
    scores = ref.biased(ref.dot_product, bias)(*lay(Q, K))
    assert scores.dtype == np.float32
    assert np.array_equal(np.isneginf(scores), np.isneginf(bias))


@in_both_conventions
def test_scores_may_have_more_bits_than_the_tokens_and_not_fewer(convention):
    ref, lay = convention.ref, convention.lay
    Q, K, V = lay(*(np.ones((2, length), np.float16) for length in (N, M, M)))
    for dtype in DTYPES:
        averages = ref.attention(Q, K, V, lambda Q, K, dtype=dtype: ref.dot_product(Q, K).astype(dtype))
        assert averages.dtype == np.float16
    for dtype in (complex, int):
        with pytest.raises(TypeError, match=f"Q is float16 but the score is {np.dtype(dtype)}"):
            ref.attention(Q, K, V, lambda Q, K, dtype=dtype: ref.dot_product(Q, K).astype(dtype))


@in_both_conventions
def test_weights_may_have_more_bits_than_the_values_and_not_fewer(convention):
    ref, lay = convention.ref, convention.lay
    V, A = lay(np.ones((1, 4096), np.float16), np.full((4096, 1), 2.0**-12, np.float32))
    averages = ref.weigh(V, A)
    assert averages.dtype == np.float16
    assert averages.tolist() == [[1.0]]
    with pytest.raises(TypeError, match="V is float32 but A is float16"):
        ref.weigh(V.astype(np.float32), A.astype(np.float16))


@in_both_conventions
@pytest.mark.parametrize("output", ["summed_output", "concatenated_output"])
def test_sums_over_heads_have_more_than_sixteen_bits(convention, output):
    """2048 + 1 - 2048 is 0 where every partial sum has 16 bits; and too large a sum gives no warning."""
    ones = np.ones((3, 1, 1), np.float16)
    weights = RowWeights(ones, ones, ones, ones, b_o=np.ones(1, np.float16))
    weights = weights.T if convention.ref is column else weights
    heads = convention.lay(np.array([[2048, 6e4], [1, 6e4], [-2048, 6e4]], np.float16)[:, None])
    written = convention.lay(getattr(convention.ref, output)(weights, heads))
    assert written.tolist() == [[2.0, np.inf]]


AMBIGUOUS = [
    ((H, N, M), (H, H, N, M), "[:, None]", "[None]"),
    ((H, 1, M), (H, H, N, M), "[:, None]", "[None]"),
    ((H, N, 1), (1, H, H, N, M), "[:, None]", "[None, None]"),
    ((1, H, N, M), (1, H, H, N, M), "[:, :, None]", "[None]"),
]
UNAMBIGUOUS = [
    ((H, N, M), (3, H, N, M)),
    ((1, N, M), (H, H, N, M)),
    ((H, 1, N, M), (H, H, N, M)),
    ((1, H, N, M), (H, H, N, M)),
    ((H, 1, N, M), (3, H, H, N, M)),
    ((N, M), (H, H, N, M)),
    ((H, N, M), (H, N, M)),
]


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(("shape", "scores", "sequences", "heads"), AMBIGUOUS)
def test_a_mask_or_bias_that_could_mean_two_things_is_refused(shape, scores, sequences, heads):
    *batch, h, n, m = scores
    weights = RowWeights.random(np.random.default_rng(0), 8, h)
    x, memory = np.ones((*batch, n, 8)), np.ones((*batch, m, 8))
    mask, bias = np.ones(shape, dtype=bool), np.full(shape, 0.5)
    turned = (*scores[:-2], m, n)
    rows = MultiHeadAttention(weights)
    by_columns = (x.mT, memory.mT, memory.mT, weights.T)
    for name, convention, fits, call in (
        ("visible", "row", f"(..., n, m) = {scores}", lambda: rows(x, memory, visible=mask)),
        ("bias", "row", f"(..., n, m) = {scores}", lambda: rows(x, memory, bias=bias)),
        ("visible", "column", f"(..., m, n) = {turned}", lambda: column.multi_head(*by_columns, visible=mask.mT)),
        (
            "bias",
            "column",
            f"(..., m, n) = {turned}",
            lambda: column.multi_head(*by_columns, column.biased(column.dot_product, bias.mT)),
        ),
        ("visible", "column", f"(..., m, n) = {turned}", lambda: loops.multi_head(*by_columns, visible=mask.mT)),
    ):
        laid = shape if convention == "row" else mask.mT.shape
        sentence = (
            f"{convention} convention: {name} of shape {laid} fits the scores, {fits}, in two ways. "
            f"Write {name}{sequences} for one of each sequence, {name}{heads} for one of each head"
        )
        with pytest.raises(ValueError, match="^" + re.escape(sentence) + "$"):
            call()
    for spelled in (sequences, heads):
        rows(x, memory, visible=eval("mask" + spelled), bias=eval("bias" + spelled))


@pytest.mark.parametrize(("shape", "scores"), UNAMBIGUOUS)
def test_a_mask_that_can_mean_one_thing_only_is_read(shape, scores):
    visible = np.random.default_rng(1).random(shape) < 0.6
    values = np.random.default_rng(2).normal(size=scores)
    expected = row.softmax(values, np.broadcast_to(visible, scores))
    assert np.array_equal(row.softmax(values, visible), expected)
    assert_close(column.softmax(values.mT, visible.mT).mT, expected)


def test_structured_masks_are_not_ambiguous():
    x = np.random.default_rng(3).normal(size=(3, 3, N, 9))
    layer = MultiHeadAttention(RowWeights.random(np.random.default_rng(0), 9, 3))
    lengths = np.arange(9).reshape(3, 3) % N + 1

    class OfTheSecondAxis(Mask):
        def rows(self, n, m, batch=()):
            return (np.arange(m) < lengths[0, :, None, None]) & np.ones((n, 1), dtype=bool)

    assert np.array_equal(
        layer(x, visible=OfTheSecondAxis()), layer(x, visible=Padding(np.tile(lengths[0], (3, 1))))
    )
    scores = np.zeros((3, 3, N, N))
    assert np.array_equal(row.softmax(scores, OfTheSecondAxis())[0], row.softmax(scores, Padding(lengths))[0])
