"""Every kernel against the float64 reference and autograd of the formula, in every type and under every mask."""

import functools
import importlib
import itertools
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend
from torch.nn.attention.flex_attention import flex_attention
from torch.nn.functional import scaled_dot_product_attention

from mha_tutorial import Causal, Mask, Padding, Window
from mha_tutorial.reference import row
from mha_tutorial.torch import KERNELS, ExtraKeys, backend_of, flex, fused, fused_on, naive, online
from tests.helpers import assert_close
from tests.torch_helpers import BLOCKED, Largest, array, assert_all_close, on_a_gpu, one_thread, tensors  # noqa: F401

B = 2
HEADS = [(3, 3, 13, 17), (6, 2, 17, 13), (5, 1, 11, 11)]  # h, h_kv, d_k, d_v
LENGTHS = [(5, 7), (7, 5)]  # n, m
DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]
MASKS = {
    "all visible": None,
    "causal from the first": Causal("top-left"),
    "causal to the last": Causal("bottom-right"),
    "padding": Padding([5, 3]),
    "a sequence of nothing": Padding([4, 0]),
    "padding for all": Padding([2, 2]),
    "causal and padding": Causal("bottom-right") & Padding([3, 4]),
    "window or padding": Window(2, "bottom-right") | Padding([1, 2]),
    "window": Window(2, "bottom-right"),
    "the future alone": ~Causal("top-left"),
    "for every head": lambda h, n, m: sees_some(B, h, n, m),
    "for all heads": lambda h, n, m: sees_some(B, 1, n, m),
    "keys": lambda h, n, m: sees_some(1, m),
    "queries": lambda h, n, m: sees_some(B, h, n, 1),
}


def sees_some(*shape):
    """A mask with a query that sees nothing."""
    visible = np.random.default_rng(7).random(shape) < 0.6
    visible[..., -1, :] &= shape[-2] == 1
    return visible


def inputs(heads, lengths, seed=0):
    rng, (h, h_kv, d_k, d_v), (n, m) = np.random.default_rng(seed), heads, lengths
    return rng.normal(size=(B, h, n, d_k)), rng.normal(size=(B, h_kv, m, d_k)), rng.normal(size=(B, h_kv, m, d_v))


def dense(visible, b, n, m):
    """A mask as an array that broadcasts to (b, h, n, m)."""
    if not isinstance(visible, Mask):
        return visible
    rows = visible.rows(n, m, (b,))
    return rows[:, None] if rows.ndim == 3 else rows


def reference(q, k, v, visible=None, bias=None):
    """The reference in NumPy, each query head with its own copy of keys and values."""
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    score = row.scaled_dot_product if bias is None else row.biased(row.scaled_dot_product, bias)
    return row.attention(q, k, v, score, dense(visible, len(q), q.shape[2], k.shape[2]))


def formula(q, k, v, visible=None, bias=None):
    """The formula in PyTorch, to be differentiated by it."""
    k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], dim=1) for x in (k, v))
    scores = torch.einsum("bhnd,bhmd->bhnm", q, k) * q.shape[-1] ** -0.5
    hidden = torch.zeros(scores.shape, dtype=torch.bool)
    if bias is not None:
        scores, hidden = scores + bias, hidden | bias.isneginf()
    if visible is not None:
        hidden = hidden | ~torch.tensor(visible)
    largest = scores.masked_fill(hidden, -torch.inf).amax(-1, keepdim=True).nan_to_num(neginf=0.0).detach()
    exponentials = torch.where(hidden, 0, scores - largest).exp() * ~hidden
    total = exponentials.sum(-1, keepdim=True)
    return torch.einsum("bhnm,bhmd->bhnd", exponentials / torch.where(total == 0, 1, total), v)


def differentiated(kernel, arrays, dtype, device, **options):
    """The output and the gradients of its inner product with fixed numbers."""
    leaves = [x.requires_grad_() for x in tensors(*arrays, dtype=dtype, device=device)]
    output = kernel(*leaves, **options)
    weights = torch.arange(output.numel(), dtype=torch.float64).cos().view(output.shape)
    gradients = torch.autograd.grad(output, leaves, weights.to(output))
    assert all(x.dtype == dtype for x in (output, *gradients))
    return [array(x) for x in (output, *gradients)]


def backend(q, k, v, *, visible=None):
    """PyTorch's own function with a mask in full, by which results in 16 bits are measured."""
    if isinstance(visible, Mask):
        visible = torch.tensor(dense(visible, len(q), q.shape[2], k.shape[2])).to(q.device)
    return scaled_dot_product_attention(q, k, v, visible, enable_gqa=q.shape[1] != k.shape[1])


def assert_as_good_as(found, plain, expected):
    """The root mean square error is at most twice that of the plain way in the same type.

    The largest of a few errors would be a matter of luck.
    """
    for mine, naives, right in zip(found, plain, expected, strict=True):
        mine, naives, right = (np.concatenate([x.ravel() for x in parts]) for parts in (mine, naives, right))
        assert np.linalg.norm(mine - right) <= 2 * np.linalg.norm(naives - right)


@functools.cache
def cases(dtype, mask):
    """Inputs of every size in this type, with what the float64 formula and the plain way make of them.

    The plain way is the naive kernel, and in 16 bits, where that rounds only once, PyTorch's own function.
    """
    made, plain = [], naive if dtype.itemsize > 2 else backend
    for heads, lengths in itertools.product(HEADS, LENGTHS):
        visible = MASKS[mask](heads[0], *lengths) if callable(MASKS[mask]) else MASKS[mask]
        rounded = [array(x).astype(np.float64) for x in tensors(*inputs(heads, lengths), dtype=dtype)]
        given = torch.tensor(visible) if isinstance(visible, np.ndarray) else visible
        expected = differentiated(formula, rounded, torch.float64, "cpu", visible=dense(visible, B, *lengths))
        assert_close(reference(*rounded, visible), expected[0])
        made.append((rounded, given, expected, differentiated(plain, rounded, dtype, "cpu", visible=given)))
    return made


def check(kernel, dtype, mask, device):
    """Float64 to 1e-12; in lower precision at most twice the error of the plain way in the same type."""
    outcomes = []
    for rounded, visible, expected, plain in cases(dtype, mask):
        visible = visible.to(device) if isinstance(visible, torch.Tensor) else visible
        found = differentiated(BLOCKED[kernel], rounded, dtype, device, visible=visible)
        if dtype == torch.float64:
            assert_all_close(found, expected)
        else:
            outcomes.append((found, plain, expected))
    if outcomes:
        assert_as_good_as(*(list(zip(*parts, strict=True)) for parts in zip(*outcomes, strict=True)))


IN_EVERY_TYPE = ("all visible", "causal and padding", "a sequence of nothing", "for every head", "queries")


@pytest.mark.parametrize(
    ("dtype", "mask"),
    [(dtype, mask) for dtype in DTYPES for mask in (MASKS if dtype == torch.float64 else IN_EVERY_TYPE)],
    ids=str,
)
@pytest.mark.parametrize("kernel", BLOCKED)
def test_output_and_gradients(kernel, dtype, mask):
    check(kernel, dtype, mask, "cpu")


@on_a_gpu
@pytest.mark.parametrize("kernel", BLOCKED)
def test_output_and_gradients_on_a_gpu(kernel, device):
    for dtype, mask in itertools.product(DTYPES, MASKS):
        if (device, dtype) != ("mps", torch.float64):  # which it does not have
            check(kernel, dtype, mask, device)


@pytest.mark.parametrize("shape", [(3, 5, 7), (5, 7), (3, 1, 7), (2, 1, 5, 1)], ids=str)
@pytest.mark.parametrize("kernel", BLOCKED)
def test_a_bias_is_added_and_differentiated(kernel, shape):
    arrays, bias = inputs(HEADS[0], (5, 7)), np.random.default_rng(1).normal(size=shape)
    bias[..., 0] = -np.inf if shape[-1] > 1 else 0.0  # hides the first key
    for visible in (None, Causal("bottom-right"), Padding([5, 0])):
        as_array = dense(visible, B, 5, 7)
        expected = differentiated(
            lambda *x, m=as_array: formula(*x[:3], m, x[3]), (*arrays, bias), torch.float64, "cpu"
        )
        found = differentiated(
            lambda *x, m=visible: BLOCKED[kernel](*x[:3], visible=m, bias=x[3]),
            (*arrays, bias),
            torch.float64,
            "cpu",
        )
        assert_close(expected[0], reference(*arrays, visible, bias))
        assert_all_close(found, expected)


@pytest.mark.parametrize("kernel", ["naive", "fused", "online"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_sums_are_kept_in_32_bits(kernel, dtype):
    """Of 4096 equal weights, 16 bits would stop counting at a few hundred or thousand."""
    q, k, v = (torch.zeros(1, 1, n, 2, dtype=dtype) for n in (3, 4096, 4096))
    assert torch.equal(KERNELS[kernel](q, k, v + 1), q + 1)


@pytest.mark.parametrize("kernel", BLOCKED)
def test_the_scale_can_be_chosen(kernel):
    q, k, v = inputs(HEADS[0], (5, 7))
    expected = row.attention(q, k, v, row.dot_product)
    assert_close(array(BLOCKED[kernel](*tensors(q, k, v), scale=1.0)), expected)


@pytest.mark.parametrize("kernel", BLOCKED)
@pytest.mark.parametrize(("n", "m"), [(0, 7), (5, 0), (0, 0), (1, 7), (1, 1)])
def test_few_queries_and_few_keys(kernel, n, m):
    for visible in (None, Causal("bottom-right"), Causal("top-left"), Padding([m, 0])):
        arrays = inputs(HEADS[1], (n, m))
        found = differentiated(BLOCKED[kernel], arrays, torch.float64, "cpu", visible=visible)
        if m:
            expected = differentiated(formula, arrays, torch.float64, "cpu", visible=dense(visible, B, n, m))
        else:
            expected = [np.zeros((B, 6, n, 13)), *(np.zeros_like(x) for x in arrays)]
        assert_all_close(found, expected)


@pytest.mark.parametrize("spoil", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("kernel", BLOCKED)
def test_what_is_not_finite_reaches_only_queries_that_see_it(kernel, spoil):
    for visible in (
        Causal("bottom-right"),
        Padding([4, 2]),
        Padding([0, 6]) & Causal("top-left"),
        sees_some(2, 3, 5, 7),
    ):
        q, k, v = inputs(HEADS[0], (5, 7))
        k[0, 1, 5, 2], v[1, 2, 3, 4], q[0, 0, 1, 0] = np.nan, spoil, spoil
        given = torch.tensor(visible) if isinstance(visible, np.ndarray) else visible
        expected = reference(q, k, v, visible)
        expected[np.isinf(expected)] = np.nan
        assert_close(array(BLOCKED[kernel](*tensors(q, k, v), visible=given)), expected)


@pytest.mark.parametrize("kernel", BLOCKED)
@pytest.mark.parametrize(
    "visible", [Padding([7, 3]), Causal("top-left") & Padding([7, 3])], ids=["padding", "causal"]
)
def test_gradients_do_not_see_what_no_query_sees(kernel, visible):
    clean, spoiled = inputs(HEADS[1], (7, 7)), inputs(HEADS[1], (7, 7))
    spoiled[1][1, :, 3:], spoiled[2][1, :, 5:] = np.nan, np.inf
    expected = differentiated(BLOCKED[kernel], clean, torch.float64, "cpu", visible=visible)
    assert_all_close(differentiated(BLOCKED[kernel], spoiled, torch.float64, "cpu", visible=visible), expected)


@pytest.mark.parametrize("kernel", BLOCKED)
def test_a_bias_hides_only_by_minus_infinity(kernel):
    """Not even NaN gets past it; and a number that is merely large hides nothing."""
    (q, k, v), bias = inputs(HEADS[0], (5, 7)), np.random.default_rng(1).normal(size=(3, 5, 7))
    k[:, :, 2], v[:, :, 2] = np.nan, np.inf
    for number in (-np.inf, -1e5):
        bias[..., 2] = number
        expected = reference(q, k, v, Padding([7, 4]), bias)
        assert np.isfinite(expected).all() == np.isinf(number)
        found = BLOCKED[kernel](*tensors(q, k, v), visible=Padding([7, 4]), bias=torch.tensor(bias))
        assert_close(array(found), expected)


def test_a_query_that_sees_nothing_may_hold_anything():
    """Also where the output is finite and a gradient would not be."""
    visible = torch.tensor([[True, True, True], [False, False, False]])
    q, k, v = inputs(HEADS[0], (2, 3))
    q[:, :, 1] = np.nan
    for kernel in BLOCKED.values():
        output, *gradients = differentiated(kernel, (q, k, v), torch.float64, "cpu", visible=visible)
        assert not output[:, :, 1].any()
        assert not gradients[0][:, :, 1].any()
        assert all(np.isfinite(gradient).all() for gradient in gradients)


@pytest.mark.parametrize("kernel", ["naive", "online", "fused"])
def test_keys_shared_by_a_group_are_not_copied(kernel):
    """With one query the scores are small, and copies of the keys would be the largest tensors."""
    q, k, v = (torch.zeros(1, h, n, 64) for h, n in ((8, 1), (1, 512), (1, 512)))
    with Largest() as largest, torch.no_grad():
        BLOCKED[kernel](q, k, v)
    assert largest.elements < 8 * 512 * 64 / 2


def test_online_holds_one_tile_at_a_time():
    n, d, block = 128, 8, 8
    q, k, v = (torch.randn(1, 2, n, d, requires_grad=True) for _ in range(3))
    for kernel, linear in ((partial(online, block=block), True), (naive, False)):
        with Largest() as largest:
            kernel(q, k, v, visible=Causal()).sum().backward()
        assert (largest.elements <= 2 * n * d) == linear


@pytest.mark.parametrize(
    ("visible", "tiles"),
    [
        (None, 16),
        (Causal(), 10),
        (~Causal(), 16),
        (Window(4) & Causal(), 7),
        (Padding([5]), 8),
        (Padding([5]) | Window(1), 11),
        (Padding([9]) & Causal(), 9),
    ],
    ids=str,
)
def test_online_leaves_out_hidden_tiles(visible, tiles, monkeypatch):
    module, seen = importlib.import_module("mha_tutorial.torch.kernels.online"), []
    monkeypatch.setattr(module, "scores_of", lambda *given: seen.append(1) or scores_of(*given))
    scores_of = importlib.import_module("mha_tutorial.torch.kernels.selection").scores_of
    online(*tensors(*(np.ones((1, 1, 16, 2)),) * 3), visible=visible, block=4)
    assert len(seen) == tiles


@pytest.mark.parametrize(
    ("visible", "n", "m", "causal", "mask", "queries", "keys"),
    [
        (None, 5, 7, False, None, 5, 7),
        (Causal(), 7, 7, True, None, 7, 7),
        (Causal("top-left"), 5, 7, True, None, 5, 5),
        (Causal("top-left"), 7, 5, True, None, 7, 5),
        (Causal("bottom-right"), 7, 5, True, None, 5, 5),
        (Causal("bottom-right"), 5, 7, False, (1, 1, 5, 7), 5, 7),
        (Causal("bottom-right"), 1, 7, False, None, 1, 7),
        (Padding([4, 3]), 5, 7, False, (2, 1, 1, 4), 5, 4),
        (Padding([3, 3]), 5, 7, False, None, 5, 3),
        (Causal() & Padding([4, 3]), 7, 7, False, (2, 1, 7, 4), 7, 4),
    ],
)
def test_fused_gives_the_backend_the_structure(visible, n, m, causal, mask, queries, keys, monkeypatch):
    module, calls = importlib.import_module("mha_tutorial.torch.kernels.fused"), []
    attend = module.scaled_dot_product_attention
    monkeypatch.setattr(
        module,
        "scaled_dot_product_attention",
        lambda *x, **options: calls.append((x, options)) or attend(*x, **options),
    )
    fused(*tensors(*inputs(HEADS[1], (n, m))), visible=visible)
    (((q, k, v), options),) = calls
    assert options["is_causal"] == causal
    assert (options["attn_mask"] if mask is None else options["attn_mask"].shape) == mask
    assert (q.shape[2], k.shape[2], v.shape[2], k.shape[1]) == (queries, keys, keys, 2)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_unequal_widths_and_groups_stay_on_the_fast_path(dtype):
    for heads in HEADS:
        given = tensors(*inputs(heads, (5, 7)), dtype=dtype)
        for visible in (None, Causal("bottom-right"), Padding([7, 3])):
            assert backend_of(*given, visible=visible) == SDPBackend.FLASH_ATTENTION


def test_the_backend_can_be_chosen():
    given = tensors(*inputs(HEADS[1], (5, 7)))
    for backend in (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION):
        chosen = pickle.loads(pickle.dumps(fused_on(backend)))
        assert_close(
            array(chosen(*given, visible=Causal("top-left"))), reference(*map(array, given), Causal("top-left"))
        )
    assert backend_of(*given, dropout=0.5) == SDPBackend.MATH


@pytest.mark.parametrize(
    ("backend", "options", "message"),
    [
        (SDPBackend.CUDNN_ATTENTION, {}, r"fused on CUDNN_ATTENTION cannot do this on cpu, with q \(2, 6, 5, 17\)"),
        (SDPBackend.FLASH_ATTENTION, {"dropout": 0.5}, "fused on FLASH_ATTENTION cannot .* choose fused.* dropout"),
    ],
)
def test_a_backend_that_cannot_says_so(backend, options, message):
    with pytest.raises(NotImplementedError, match=message):
        fused_on(backend)(*tensors(*inputs(HEADS[1], (5, 7))), **options)


# --- flex: few cases, since compiling takes seconds ---------------------------------------------------------------


@pytest.fixture
def uncompiled_flex(monkeypatch):
    """Let `flex` run the operations of its graph one by one, without making code of them."""
    module = importlib.import_module("mha_tutorial.torch.kernels.flex")
    monkeypatch.setattr(module, "_compiled", lambda: torch.compile(flex_attention, backend="eager"))
    yield
    torch._dynamo.reset()


@pytest.mark.no_cover
@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize("biased", [False, True])
def test_flex(mask, biased, uncompiled_flex):
    heads, lengths = HEADS[1], (5, 7)
    visible = MASKS[mask](heads[0], *lengths) if callable(MASKS[mask]) else MASKS[mask]
    bias = np.float32(np.random.default_rng(1).normal(size=(heads[0], 1, 7))) if biased else None
    single = tensors(*inputs(heads, lengths), dtype=torch.float32)
    options = {
        "visible": torch.tensor(visible) if isinstance(visible, np.ndarray) else visible,
        "bias": None if bias is None else torch.tensor(bias),
    }
    doubles = [array(x).astype(np.float64) for x in single]
    expected = reference(*doubles, visible, None if bias is None else bias.astype(np.float64))
    found, plain = (array(kernel(*single, **options)) for kernel in (flex, naive))
    assert_as_good_as([[found]], [[plain]], [[expected]])


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")  # PyTorch's own, on first compilation
def test_flex_compiled():
    importlib.import_module("mha_tutorial.torch.kernels.flex")._compiled.cache_clear()  # compiled anew, here
    single = tensors(*inputs(HEADS[1], (5, 7)), dtype=torch.float32)
    visible = Causal("bottom-right") & Padding([3, 4])
    expected = reference(*(array(x).astype(np.float64) for x in single), visible)
    found, plain = (array(kernel(*single, visible=visible)) for kernel in (flex, naive))
    assert_as_good_as([[found]], [[plain]], [[expected]])
    spoiled = [x.clone() for x in single]
    spoiled[1][:, :, 4:], spoiled[2][:, :, 4:] = torch.nan, torch.inf
    assert_as_good_as([[array(flex(*spoiled, visible=visible))]], [[plain]], [[expected]])


@pytest.mark.parametrize(
    ("kernel", "dtype", "learned", "dropout", "message"),
    [
        (
            "flex",
            torch.float64,
            False,
            0.0,
            "flex: float64 is not compiled on a CPU; choose naive, fused or online",
        ),
        ("flex", torch.float32, True, 0.0, "flex: there is no backward pass on a CPU"),
        ("flex", torch.float32, False, 0.1, "flex: dropout is not offered, got dropout=0.1"),
        ("online", torch.float64, False, 0.1, "online: dropout is not offered, got dropout=0.1"),
    ],
)
def test_what_a_kernel_cannot_do_it_refuses_by_name(kernel, dtype, learned, dropout, message):
    q, k, v = tensors(*inputs(HEADS[0], (5, 7)), dtype=dtype)
    with pytest.raises(NotImplementedError, match=message):
        KERNELS[kernel](q.requires_grad_(learned), k, v, dropout=dropout)


@pytest.mark.parametrize(("n", "m"), [(0, 7), (5, 0)])
def test_flex_wants_queries_and_keys(n, m):
    with pytest.raises(NotImplementedError, match=f"flex: there must be queries and keys, got b=2, n={n}, m={m}"):
        flex(*tensors(*inputs(HEADS[0], (n, m)), dtype=torch.float32))


# --- extra keys, views, bad input ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kernel", ["naive", "fused", "online"])
def test_extra_keys_stand_behind_the_real_ones(kernel, rng):
    q, k, v = inputs(HEADS[1], (5, 7))
    keys, values = rng.normal(size=(2, 3, 17)), rng.normal(size=(2, 3, 13))
    extra = ExtraKeys(*tensors(keys, values))
    longer = [np.concatenate([x, np.broadcast_to(e, (B, *e.shape))], axis=2) for x, e in ((k, keys), (v, values))]
    bias = rng.normal(size=(5, 7))
    for visible in (None, Causal("bottom-right"), Padding([7, 0]), sees_some(5, 7), sees_some(B, 6, 5, 1)):
        seen = dense(visible, B, 5, 7)
        if seen is not None:
            seen = np.broadcast_to(seen, (*seen.shape[:-1], 7))
            seen = np.concatenate([seen, np.ones((*seen.shape[:-1], 3), dtype=bool)], axis=-1)
        given = torch.tensor(visible) if isinstance(visible, np.ndarray) else visible
        *all_keys, given, added = extra.extend(*tensors(q, k, v), given, torch.tensor(bias))
        found = BLOCKED[kernel](tensors(q), *all_keys, visible=given, bias=added)
        assert_close(array(found), reference(q, *longer, seen, np.pad(bias, ((0, 0), (0, 3)))))


def test_extra_keys_are_learned_if_they_are_parameters():
    learned = ExtraKeys(torch.nn.Parameter(torch.zeros(1, 1, 2)), torch.nn.Parameter(torch.zeros(1, 1, 1)))
    kept = ExtraKeys(torch.zeros(1, 1, 2), torch.zeros(1, 1, 1))
    assert [name for name, _ in learned.named_parameters()] == ["keys", "values"]
    assert list(kept.parameters()) == []
    assert list(kept.state_dict()) == list(learned.state_dict())


@pytest.mark.parametrize("kernel", BLOCKED)
def test_views_give_what_their_copies_give(kernel, rng):
    q = torch.tensor(rng.normal(size=(B, 13, 5, 3))).permute(0, 3, 2, 1)
    k = torch.tensor(rng.normal(size=(B, 7, 3, 13))).transpose(1, 2)
    v = torch.tensor(rng.normal(size=(B, 3, 17, 7))).mT
    visible = torch.tensor(sees_some(7, 5)).T.expand(B, 3, 5, 7)
    copies = [x.contiguous() for x in (q, k, v)]
    expected = BLOCKED[kernel](*copies, visible=visible.contiguous())
    assert_close(array(BLOCKED[kernel](q, k, v, visible=visible)), array(expected))


X = torch.zeros(2, 6, 5, 3)
K = torch.zeros(2, 2, 7, 3)


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        ((X.int(), K, K), {}, TypeError, "q must be a floating tensor, got torch.int32"),
        ((X.numpy(), K, K), {}, TypeError, "q must be a floating tensor, got ndarray"),
        ((X[0], K, K), {}, ValueError, r"q must have four axes \(b, heads, tokens, width\), got \(6, 5, 3\)"),
        ((X, K.double(), K), {}, TypeError, "q is torch.float32 but k is torch.float64; convert one of them"),
        ((X[:, :5], K, K), {}, ValueError, r"expected q \(b, h, n, d_k\).* got \(2, 5, 5, 3\), \(2, 2, 7, 3\)"),
        ((X, K[..., :2], K), {}, ValueError, "expected q"),
        ((X, K, K[:, :, :5]), {}, ValueError, "expected q"),
        ((X, K[:1], K), {}, ValueError, "expected q"),
        ((X, K, K[:1]), {}, ValueError, "expected q"),
        ((X, K, K[:, :1]), {}, ValueError, "expected q"),
        ((X, K[:, :0], K[:, :0]), {}, ValueError, "expected q"),
        ((X, K, K), {"visible": torch.ones(5, 7)}, TypeError, r"visible must be .* got torch.float32\. If 1 means"),
        ((X, K, K), {"visible": torch.ones(5, 7).long()}, TypeError, "visible must be .* got torch.int64"),
        (
            (X, K, K),
            {"visible": np.ones((5, 7), bool)},
            TypeError,
            "visible must be a boolean tensor .* got ndarray",
        ),
        (
            (X, K, K),
            {"visible": torch.ones(7).bool()},
            ValueError,
            r"visible must have at least two axes .* \(7,\)",
        ),
        (
            (X, K, K),
            {"visible": torch.ones(7, 5).bool()},
            ValueError,
            r"visible of shape \(7, 5\) does not broadcast",
        ),
        ((X, K, K), {"visible": torch.ones(1, 1, 1, 5, 7).bool()}, ValueError, "does not broadcast"),
        (
            (X, K, K),
            {"bias": torch.ones(5, 7).bool()},
            TypeError,
            "bias must be a floating tensor.* got torch.bool",
        ),
        ((X, K, K), {"bias": torch.ones(5, 5)}, ValueError, r"bias of shape \(5, 5\) does not broadcast"),
        ((X, K, K), {"visible": Causal()}, ValueError, "Causal: with 5 queries and 7 keys the alignment must be"),
        (
            (X, K, K),
            {"visible": Padding([3])},
            ValueError,
            r"Padding: lengths of shape \(1,\) do not fit the batch",
        ),
        ((X, K, K), {"visible": Padding([3, 8])}, ValueError, "Padding: lengths must not exceed the 7 keys"),
        ((X, K, K), {"visible": Mask()}, TypeError, "no rule is known for the mask Mask"),
    ],
)
@pytest.mark.parametrize("kernel", KERNELS)
def test_bad_input_is_refused(kernel, given, options, error, message):
    with pytest.raises(error, match=message):
        KERNELS[kernel](*given, **options)


@pytest.mark.parametrize("kernel", ["naive", "fused", "online"])
def test_nothing_changes_its_inputs(kernel):
    given = tensors(*inputs(HEADS[0], (5, 7)))
    visible, bias = torch.tensor(sees_some(5, 7)), torch.zeros(5, 7)
    before = [x.clone() for x in (*given, visible, bias)]
    KERNELS[kernel](*given, visible=visible, bias=bias)
    assert all(torch.equal(now, then) for now, then in zip((*given, visible, bias), before, strict=True))
