"""Numbers at the edges: every kind of input, in every PyTorch kernel and type, forward and every gradient.

What is expected comes from `torch_oracle`: in long doubles, one query at a time, over nothing but the keys it sees.
NaN must stand where it has NaN and nowhere else, and the other numbers must be as near to it as rounding allows.
"""

import importlib
import itertools
from functools import partial
from typing import NamedTuple

import numpy as np
import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention
from torch.utils._python_dispatch import TorchDispatchMode

from mha_tutorial import Causal, Documents, Mask, Padding, Prefix, Window
from mha_tutorial.torch import MultiHeadAttention, flex, fused, guarded, naive, online
from mha_tutorial.torch.masks import to_tensor
from tests import torch_oracle
from tests.torch_helpers import array, on_a_gpu, one_thread, tensors  # noqa: F401

B, H, H_KV, N, M, D_K, D_V = 2, 6, 2, 5, 7, 3, 2
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def foreign(q, k, v, *, visible=None, bias=None, scale=None, dropout=0.0):
    """A kernel that is not of the package, and knows of nothing that is not finite."""
    if isinstance(visible, Mask):
        visible = to_tensor(visible, q.shape[0], q.shape[2], k.shape[2], q.device)
    mask = visible
    if bias is not None:
        mask = bias.to(q) if visible is None else bias.to(q).masked_fill(~visible, -torch.inf)
    return scaled_dot_product_attention(q, k, v, mask, scale=scale, enable_gqa=True)


KERNELS = {
    "naive": naive,
    "fused": fused,
    "online": partial(online, block=3),
    "guarded": guarded(fused),  # here `online` in one tile, since there are gradients
}
MASKS = {
    "all visible": None,
    "causal": Causal("bottom-right"),
    "documents": Documents([[3, 4], [2, 3]], "bottom-right"),
    "combined": (Window(3, "bottom-right") | Prefix([2, 3])) & Padding([6, 4], side="left"),
    "array": "array",
}


class Case(NamedTuple):
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    visible: np.ndarray | Mask | None = None
    bias: np.ndarray | None = None
    bias_dtype: torch.dtype | None = None
    scale: float | None = None
    d_heads: np.ndarray | None = None

    @property
    def seen(self):
        b, n, m = len(self.q), self.q.shape[2], self.k.shape[2]
        if isinstance(self.visible, Mask):
            dense = self.visible.rows(n, m, (b,))
            return np.broadcast_to(dense[:, None] if dense.ndim == 3 else dense, (b, self.q.shape[1], n, m))
        return np.broadcast_to(True if self.visible is None else self.visible, (b, self.q.shape[1], n, m))


def ordinary(mask="all visible", seed=0):
    """Numbers of ordinary size, and for an array a query and a head's query that see nothing."""
    rng = np.random.default_rng(seed)
    q, k, v = (rng.normal(size=size) for size in ((B, H, N, D_K), (B, H_KV, M, D_K), (B, H_KV, M, D_V)))
    visible = MASKS[mask]
    if mask == "array":
        visible = rng.random((B, H, N, M)) < 0.6
        visible[:, :, 3], visible[1, 2, 0], visible[0, :, :, 4] = False, False, False
    return Case(q, k, v, visible)


def spoiled(where, number):
    def make(mask):
        case = ordinary(mask)
        if "q" in where:
            case.q[0, 1, 2, 1] = number
        if "k" in where:
            case.k[0, 1, 5, 0] = number
        if "v" in where:
            case.v[1, 0, 1, 1] = number
        return case

    return make


def hidden_from_all(number):
    """Keys and values that no query of any head that shares them sees, and queries that see nothing."""

    def make(mask):
        case = ordinary(mask)
        anyone = case.seen.reshape(B, H_KV, H // H_KV * N, M).any(axis=2)
        case.k[~anyone], case.v[~anyone] = number, number
        case.q[~case.seen.any(axis=-1)] = number
        return case

    return make


def with_bias(entry, number, **options):
    def make(mask):
        bias = np.random.default_rng(1).normal(size=(H, N, M)).astype(np.float32).astype(np.float64)
        bias[:, :, 0], bias[2] = -np.inf, -np.inf
        case = ordinary(mask)._replace(bias=bias, **options)
        case.k[:, :, 0], case.v[:, :, 0] = np.nan, np.inf
        bias[entry] = number
        return case

    return make


def gradient_is_nan(mask):
    d_heads = np.random.default_rng(2).normal(size=(B, H, N, D_V))
    d_heads[0, 1, 2, 1] = np.nan
    return ordinary(mask)._replace(d_heads=d_heads)


KINDS = {
    "a query of NaN": spoiled("q", np.nan),
    "an infinite query": spoiled("q", np.inf),
    "a key of NaN": spoiled("k", np.nan),
    "a key of minus infinity": spoiled("k", -np.inf),
    "a value of NaN": spoiled("v", np.nan),
    "an infinite value": spoiled("v", np.inf),
    "all three": spoiled("qkv", -np.inf),
    "NaN hidden from all": hidden_from_all(np.nan),
    "infinity hidden from all": hidden_from_all(np.inf),
    "large numbers hidden from all": hidden_from_all(6e4),
    "a bias that hides NaN": with_bias((1, 2, 3), 0.5),
    "a bias of NaN": with_bias((1, 2, 3), np.nan),
    "an infinite bias": with_bias((1, 2, 3), np.inf),
    "a wide bias": with_bias((1, 2, 3), 0.5, bias_dtype=torch.float64),
    "a bias of 32 bits": with_bias((1, 2, 3), -1e9, bias_dtype=torch.float32),
    "a gradient of NaN": gradient_is_nan,
    "scale zero": lambda mask: ordinary(mask)._replace(scale=0.0),
    "a negative scale": lambda mask: ordinary(mask)._replace(scale=-0.7),
    "a large scale": lambda mask: ordinary(mask)._replace(scale=5.0),
}


def computed(kernel, case, dtype):
    """The heads, and the gradients of all inputs, the bias included."""
    leaves = [x.requires_grad_() for x in tensors(case.q, case.k, case.v, dtype=dtype)]
    options = {} if case.scale is None else {"scale": case.scale}
    if case.bias is not None:
        bias_dtype = dtype if case.bias_dtype is None else torch.promote_types(dtype, case.bias_dtype)
        options["bias"] = torch.tensor(case.bias, dtype=bias_dtype).requires_grad_()
        leaves.append(options["bias"])
    visible = torch.tensor(case.visible) if isinstance(case.visible, np.ndarray) else case.visible
    heads = kernel(*leaves[:3], visible=visible, **options)
    assert heads.dtype == dtype
    gradients = torch.autograd.grad(heads, leaves, torch.tensor(d_heads_of(case), dtype=dtype))
    with torch.no_grad():
        plain = kernel(*leaves[:3], visible=visible, **options)
    return [array(x).astype(np.float64) for x in (plain, heads, *gradients)]


def d_heads_of(case):
    shape = (*case.q.shape[:-1], case.v.shape[-1])
    return np.cos(np.arange(np.prod(shape))).reshape(shape) if case.d_heads is None else case.d_heads


def expected_of(case, dtype):
    """The oracle, of the numbers as they are in this type; and of the same numbers, how much rounding is to be
    expected: the size of the type's last place beside the largest."""
    rounded = [array(torch.tensor(x, dtype=dtype)).astype(np.float64) for x in (*case[:3], d_heads_of(case))]
    bias = case.bias
    if bias is not None:
        wide = dtype if case.bias_dtype is None else torch.promote_types(dtype, case.bias_dtype)
        bias = array(torch.tensor(bias, dtype=wide)).astype(np.float64)
    right = torch_oracle.attend(*rounded, case.seen, bias, case.scale)
    return [right.heads, *(x for x in right if x is not None)]


def assert_right(found, expected, last_place, terms=()):
    """NaN where it is expected, and elsewhere no further off than eight roundings of the largest number.

    Where sums cancel, `terms` says how large what is added can be.
    """
    for mine, right, term in itertools.zip_longest(found, expected, terms[: len(found)], fillvalue=0.0):
        np.testing.assert_array_equal(np.isnan(mine), np.isnan(right))
        largest = max(np.abs(right[~np.isnan(right)]).max(initial=0.0), term)
        tolerance = float(8 * last_place * largest)
        np.testing.assert_allclose(mine, right.astype(np.float64), rtol=0, atol=tolerance, strict=True)


def last_place(case, dtype):
    """Of 16 bits the result is rounded, of 32 and 64 the scores: by more where these are large."""
    eps = torch.finfo(dtype).eps
    scores = 1 if case.scale is None else max(1.0, abs(case.scale))
    return max(eps, scores * torch.finfo(torch.promote_types(dtype, torch.float32)).eps)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mask", MASKS)
def test_every_kernel_in_every_type(kind, mask):
    case = KINDS[kind](mask)
    for dtype in DTYPES if mask in ("all visible", "array") else DTYPES[::2]:
        expected = expected_of(case, dtype)
        for name, kernel in KERNELS.items():
            if name == "fused" and kind == "a gradient of NaN":
                continue  # which reaches every key, as its docstring says
            found = computed(kernel, case, dtype)
            if name == "fused" and mask == "all visible":  # where an infinite value is infinite
                found[0][np.isinf(found[0])] = np.nan
            assert_right(found, expected, last_place(case, dtype))


@pytest.mark.parametrize("mask", ["all visible", "causal", "array"])
@pytest.mark.parametrize("kind", ["a query of NaN", "a key of minus infinity", "an infinite value", "all three"])
def test_a_foreign_kernel_that_is_guarded(kind, mask):
    """Its heads are right, and its gradients NaN where they must be; it may spread NaN among them further."""
    case = KINDS[kind](mask)
    expected = expected_of(case, torch.float64)
    plain, heads, *gradients = computed(guarded(foreign), case, torch.float64)
    assert_right([plain, heads], expected[:2], torch.finfo(torch.float64).eps)
    for mine, right in zip(gradients, expected[2:], strict=True):
        assert np.isnan(mine[np.isnan(right)]).all()


@pytest.mark.parametrize(("n", "m"), [(0, 3), (3, 0), (0, 0), (1, 1), (1, 7), (5, 1)])
@pytest.mark.parametrize("visible", [None, Causal("bottom-right"), Causal("top-left"), "nothing"], ids=str)
def test_few_and_none(n, m, visible):
    q, k, v = ordinary()[:3]
    nothing = np.zeros((n, m), dtype=bool) if visible == "nothing" else visible
    case = Case(q[:, :, :n], k[:, :, :m], v[:, :, :m], nothing, bias=np.ones((1, n, m)))
    for dtype in (torch.float64, torch.bfloat16):
        for kernel in KERNELS.values():
            found = computed(kernel, case, dtype)  # the gradient of the bias is zeros, not None
            assert_right(found, expected_of(case, dtype), last_place(case, dtype))


# --- large scores -------------------------------------------------------------------------------------------------


def exact(size, mask, ties=False, kind="product"):
    """Scores that are integers times a power of two up to `size`, or a bias of that size."""
    rng = np.random.default_rng(3)
    unit = 2.0 ** np.floor(np.log2(size / 27) / 2)  # the largest product of three pairs is 27 units squared
    q = rng.integers(-3, 4, size=(B, H, N, D_K)) * unit * (not ties) + 3 * unit * ties
    k = rng.integers(-3, 4, size=(B, H_KV, M, D_K)) * unit * (not ties) + 3 * unit * ties
    v = rng.integers(-3, 4, size=(B, H_KV, M, D_V)) * 1.0
    return ordinary(mask)._replace(q=q, k=k, v=v, scale=1.0)


@pytest.mark.parametrize("mask", ["all visible", "causal", "array"])
@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("size", [1e3, 1e6, 1e8])
def test_exact_scores(size, ties, mask):
    """To a few roundings of float32: where scores are exact, nothing else of them is lost."""
    case = exact(size, mask, ties)
    expected = expected_of(case, torch.float32)
    q, k, v = (np.abs(x).max() for x in case[:3])  # and the incoming gradients are at most one
    terms = v, v, v * k, v * q, 1.0
    for name, kernel in KERNELS.items():
        # up to 2¹³ the backend's backward pass has its way, which rounds scores together with their sums
        rounding = torch.finfo(torch.float32).eps * (size if name == "fused" and size < 2**13 else 1)
        assert_right(computed(kernel, case, torch.float32), expected, rounding, terms)


@pytest.mark.parametrize("number", [-1e9, torch.finfo(torch.float32).min, -6e4, 2.0**30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_rows_of_one_large_bias(number, dtype):
    """Rows of one number only are averages; a row with another number beside it sees that alone."""
    bias = np.zeros((N, M))
    bias[1], bias[2, 3:], bias[3, :-1] = number, number, number
    case = ordinary()._replace(q=np.zeros((B, H, N, D_K)), bias=bias, bias_dtype=torch.float32)
    expected = expected_of(case, dtype)
    for kernel in KERNELS.values():
        assert_right(computed(kernel, case, dtype), expected, torch.finfo(dtype).eps)


@pytest.mark.parametrize("mask", ["all visible", "causal", "array"])
def test_one_score_that_leads_by_far(mask):
    """The weights are zeros and ones, and every gradient is right to 1e-5 of the largest (M13)."""
    case = ordinary(mask)
    case = case._replace(q=case.q * 20_000, k=case.k * 20_000)
    expected = expected_of(case, torch.float32)
    for kernel in KERNELS.values():
        for mine, right in zip(computed(kernel, case, torch.float32), expected, strict=True):
            largest = max(float(np.abs(expected[-1]).max()), float(np.abs(right).max()))
            np.testing.assert_allclose(mine, right.astype(np.float64), rtol=0, atol=1e-5 * largest)


@pytest.mark.parametrize("number", [3e38, -3e38])
def test_finite_numbers_that_overflow(number):
    """A hidden key and value reach nothing; a visible one makes NaN of those who see it, or is right."""
    case = ordinary("array")
    case.visible[:, :, :, 5] = False
    case.visible[0, 0, 1, 5] = True
    case.k[0, 0, 5], case.v[0, 0, 5] = number, number
    expected = expected_of(case, torch.float32)
    for kernel in KERNELS.values():
        found = computed(kernel, case, torch.float32)
        for heads, right in zip(found[:2], expected[:2], strict=True):
            others = np.ones(right.shape, dtype=bool)
            others[0, 0, 1] = False
            largest = float(np.abs(right[others]).max())
            np.testing.assert_allclose(heads[others], right[others].astype(float), rtol=0, atol=1e-6 * largest)
        unaffected = [(2, (slice(None), slice(1, None))), (3, (slice(None), 1)), (4, (slice(None), 1))]
        for place, part in unaffected:
            assert np.isfinite(found[place][part]).all()


# --- 16 bits ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["random", "hot", "long"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_error_in_16_bits(dtype, kind):
    """At most twice that of `scaled_dot_product_attention`, median of ten seeds, and never above three times."""
    ratios = {name: [] for name in KERNELS}
    kernels = KERNELS | {"online": partial(online, block=1024)}
    for seed in range(10):
        rng = np.random.default_rng(seed)
        n, m = (3, 2000) if kind == "long" else (13, 31)
        sizes = (1, 2, n, 17), (1, 2, m, 17), (1, 2, m, 17)
        given = [
            x * (8 if kind == "hot" else 1) for x in tensors(*(rng.normal(size=s) for s in sizes), dtype=dtype)
        ]
        d_heads = torch.tensor(rng.normal(size=sizes[0]), dtype=dtype)
        right = differentiated(naive, [x.double() for x in given], d_heads)
        plain = differentiated(scaled_dot_product_attention, given, d_heads)
        for name, kernel in kernels.items():
            found = differentiated(kernel, given, d_heads)
            ratios[name].append(
                [((a - c).norm() / (b - c).norm()).item() for a, b, c in zip(found, plain, right, strict=True)]
            )
    for name, of_seeds in ratios.items():
        assert (np.median(of_seeds, axis=0) <= 2).all(), name
        assert np.max(of_seeds) <= 3, name


def differentiated(kernel, given, d_heads):
    leaves = [x.clone().requires_grad_() for x in given]
    heads = kernel(*leaves)
    return [x.double() for x in (heads.detach(), *torch.autograd.grad(heads, leaves, d_heads.to(heads)))]


# --- the layer ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [np.nan, np.inf])
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_token_that_is_not_finite(kernel, number):
    """In self-attention it shows in every query that may see it, in cross-attention in its own result alone."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(6, 3, h_kv=1, kernel=KERNELS[kernel], dtype=torch.float64)
    x, rng = torch.randn(1, N, 6, dtype=torch.float64), torch.Generator().manual_seed(1)
    memory = torch.randn(1, M, 6, dtype=torch.float64, generator=rng)
    spoilt = x.clone()
    spoilt[0, 2, 1] = number
    for visible, given, lost in (
        (Causal(), (), {2, 3, 4}),
        (None, (memory,), {2}),
        (Padding([2]), (), {2}),  # a key that is hidden from all, and still a query
        (Window(1), (), {2}),
    ):
        right = layer(x, *given, visible=visible)
        found = layer(spoilt, *given, visible=visible)
        trace = layer.trace(spoilt, *given, visible=visible)
        torch.testing.assert_close(trace.output, found, equal_nan=True, rtol=1e-12, atol=1e-12)
        others = [i for i in range(N) if i not in lost]
        assert found[0, list(lost)].isnan().all()
        torch.testing.assert_close(found[0, others], right[0, others], rtol=1e-12, atol=1e-12)


# --- autograd -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("log_sums", [False, True])
@pytest.mark.parametrize("mask", ["all visible", "causal", "array"])
@pytest.mark.parametrize("kernel", ["naive", "online"])
def test_derivatives_of_both_orders(kernel, mask, log_sums):
    """By finite differences, the bias and the sums included, of queries that see nothing too."""
    case = ordinary(mask)
    visible = torch.tensor(case.visible)[:1, :2, :4, :5] if mask == "array" else case.visible
    q, k, v = (x[:1] for x in tensors(*case[:3]))
    leaves = q[:, :2, :4], k[:, :1, :5], v[:, :1, :5], torch.tensor(np.sin(np.arange(20.0))).view(4, 5)

    def attend(q, k, v, bias):
        made = KERNELS[kernel](q, k, v, visible=visible, bias=bias, scale=-0.7, log_sums=log_sums)
        return (made[0], made[1].masked_fill(made[1].isneginf(), 0)) if log_sums else made

    leaves = [x.contiguous().requires_grad_() for x in leaves]
    assert torch.autograd.gradcheck(attend, leaves, fast_mode=True)
    assert torch.autograd.gradgradcheck(attend, leaves, fast_mode=True)


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
def test_transforms_of_what_is_not_finite():
    """`torch.func` has no data to look at, and makes what autograd makes."""
    case = spoiled("qkv", np.inf)("array")
    q, k, v = tensors(*case[:3])
    visible, d_heads = torch.tensor(case.visible), torch.tensor(d_heads_of(case))
    expected = [torch.tensor(x.astype(np.float64)) for x in expected_of(case, torch.float64)]
    for kernel in KERNELS.values():
        attend = partial(kernel, visible=visible)
        heads, back = torch.func.vjp(attend, q, k, v)
        torch.testing.assert_close(heads, expected[0], rtol=1e-12, atol=1e-12, equal_nan=True)
        for mine, right in zip(back(d_heads), expected[2:5], strict=True):
            torch.testing.assert_close(mine, right, rtol=1e-12, atol=1e-12, equal_nan=True)
        _, tangent = torch.func.jvp(lambda q, attend=attend: attend(q, k, v), (q,), (torch.ones_like(q),))
        assert torch.equal(tangent.isnan(), heads.isnan())


# --- a look at data -----------------------------------------------------------------------------------------------


class NoLook(TorchDispatchMode):
    """Refuses to make a number, or a truth value, of a tensor: on a GPU the program would wait for it."""

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function.overloadpacket.__name__
        if name in ("_local_scalar_dense", "is_nonzero", "equal", "nonzero", "masked_select", "unique_dim"):
            raise AssertionError(f"a look at data: {function}")
        return function(*args, **(kwargs or {}))


MODULES = ("guard", "selection", "naive", "online", "fused", "flex")


@pytest.fixture
def like_a_gpu(monkeypatch):
    """Let kernels treat the data of this CPU like that of a GPU, and look at nothing."""
    for name in MODULES:
        module = importlib.import_module(f"mha_tutorial.torch.kernels.{name}")
        if hasattr(module, "is_eager"):
            monkeypatch.setattr(module, "is_eager", lambda x, any_device=False: any_device)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", ["naive", "fused", "online"])
def test_nothing_looks_at_data_of_a_gpu(kernel, mask, like_a_gpu):
    case = ordinary(mask)
    q, k, v = (x.requires_grad_() for x in tensors(*case[:3], dtype=torch.float32))
    visible = torch.tensor(case.visible) if mask == "array" else case.visible
    bias = torch.zeros(1, N, M)
    layer = MultiHeadAttention(6, 3, kernel=KERNELS[kernel], extra_keys=(torch.ones(3, 1, 2), torch.ones(3, 1, 2)))
    x, memory = torch.ones(B, N, 6), torch.ones(B, M, 6)
    with NoLook():
        for options in ({}, {"bias": bias}, {"scale": -1.0}):
            KERNELS[kernel](q, k, v, visible=visible, **options).sum().backward()
        if mask != "array":
            layer(x, memory, visible=visible).sum().backward()
            layer.trace(x, memory, visible=visible)
    with NoLook(), pytest.raises(AssertionError, match="a look at data"):
        guarded(KERNELS[kernel])(q.detach(), k.detach(), v.detach())


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("kernel", ["naive", "fused", "online"])
def test_without_a_look_the_hidden_stays_hidden(kernel, mask, like_a_gpu):
    """What is hidden from all reaches nothing, and what all see shows; so it is on a GPU and in compiled code."""
    for number in (np.nan, np.inf, 6e4):
        case = hidden_from_all(number)(mask)
        expected = expected_of(case, torch.float64)
        assert_right(computed(KERNELS[kernel], case, torch.float64), expected, torch.finfo(torch.float64).eps)
    cases = [KINDS[kind](mask) for kind in ("scale zero", "a negative scale")]
    cases += [case._replace(visible=Causal("top-left")) for case in cases]  # a triangle that the backend knows
    if kernel != "fused":
        cases += [KINDS[kind](mask) for kind in ("all three", "a bias that hides NaN", "a gradient of NaN")]
    for case in cases:
        expected = expected_of(case, torch.float64)
        assert_right(computed(KERNELS[kernel], case, torch.float64), expected, torch.finfo(torch.float64).eps)


@on_a_gpu
@pytest.mark.parametrize("kernel", ["naive", "fused", "online", "flex"])
def test_nothing_waits_for_a_gpu(kernel, device):
    if device != "cuda":
        pytest.skip("only CUDA tells when a program waits")
    layer = MultiHeadAttention(64, 4, kernel=(KERNELS | {"flex": flex})[kernel], device=device)
    x, bias = torch.ones(2, 128, 64, device=device), torch.zeros(128, 128, device=device)
    visible = torch.ones(128, 128, dtype=torch.bool, device=device).tril()
    masks = [None, Causal(), visible, Padding([128, 5])]
    for mode in ("default", "error"):  # the first time code is compiled and loaded
        for mask in masks:
            torch.cuda.set_sync_debug_mode(mode)
            try:
                layer(x, visible=mask).sum().backward()
                layer(x, visible=mask, bias=bias)
            finally:
                torch.cuda.set_sync_debug_mode("default")
