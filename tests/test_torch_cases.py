"""Faults people met in other code, restated: the smallest input that shows each, through the PyTorch layer.

The values are rounded to eight decimals; `flex`, which has no float64 on a CPU, gives them to the precision of
float32. Each test fails when its fault is put into the package, see `tests/edits.toml`.
"""

import importlib
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention

from mha_tutorial import Causal, ColumnWeights, Padding, RowWeights, masks
from mha_tutorial.torch import ExtraKeys, MultiHeadAttention, flex, fused, guarded, naive, online
from mha_tutorial.torch.masks import from_torch
from tests.helpers import CAUSAL_RESULT, sines
from tests.layer_helpers import passing_on
from tests.torch_helpers import one_thread, tensors  # noqa: F401

KERNELS = {"naive": naive, "fused": fused, "online": partial(online, block=2), "flex": flex}
with_every_kernel = pytest.mark.parametrize("kernel", KERNELS)
with_kernels_that_drop = pytest.mark.parametrize("kernel", ["naive", "fused"])


@pytest.fixture(autouse=True)
def uncompiled_flex(monkeypatch):
    """Let `flex` run the operations of its graph one by one, without making code of them."""
    module = importlib.import_module("mha_tutorial.torch.kernels.flex")
    monkeypatch.setattr(module, "_compiled", lambda: torch.compile(flex_attention, backend="eager"))
    yield
    torch._dynamo.reset()


def dtype_of(kernel):
    return torch.float32 if kernel == "flex" else torch.float64


def assert_rounds_to(actual, expected):
    expected = np.asarray(expected)
    if actual.dtype == torch.float64:
        np.testing.assert_array_equal(actual.detach().numpy().round(8), expected, strict=True)
    else:
        np.testing.assert_allclose(actual.detach().numpy(), expected, rtol=2e-6, atol=2e-6 * np.abs(expected).max())


def layer_of(weights, kernel, **options):
    with torch.no_grad():  # flex has no backward pass on a CPU
        layer = MultiHeadAttention.from_weights(
            weights, kernel=KERNELS.get(kernel, kernel), dtype=dtype_of(kernel), **options
        )
        return layer.requires_grad_(False)


def heads_of(kernel, q, k, v, visible=None, bias=None):
    """What a layer's heads give for these queries, keys and values, each (h, n, d)."""
    inputs, weights = passing_on(q, k, v)
    given, dtype = torch.tensor(visible) if isinstance(visible, np.ndarray) else visible, dtype_of(kernel)
    added = None if bias is None else torch.tensor(bias)
    trace = layer_of(weights, kernel).trace(*tensors(*inputs, dtype=dtype), visible=given, bias=added)
    return trace.heads


@pytest.fixture
def three_tokens():
    return sines(1, 3, 2), sines(1, 3, 2, a=0.9), sines(1, 3, 2, a=2.1)


@pytest.fixture
def two_queries():
    return sines(1, 2, 2), sines(1, 3, 2, a=0.9), sines(1, 3, 2, a=2.1)


def square_weights(d, h):
    """Four square matrices (out, in) and their biases, cut into heads."""
    W_q, W_k, W_v, W_o = (sines(d, d, a=0.7 + 0.2 * i, b=0.1 * i) for i in range(4))
    b_q, b_k, b_v, b_o = (sines(d, a=1.1 + 0.3 * i, b=0.2) for i in range(4))
    by_head = [W.reshape(h, d // h, d) for W in (W_q, W_k, W_v)]
    biases = [b.reshape(h, d // h) for b in (b_q, b_k, b_v)]
    return ColumnWeights(*by_head, W_o.reshape(d, h, d // h).swapaxes(0, 1), *biases, b_o)


@with_every_kernel
def test_torch_mask_polarity(kernel):
    """A01: one boolean mask, read as *attend* and as *ignore* (pytorch issue 170400)."""
    q, k = np.array([[[1.0, 0.0], [0.0, 1.0]]]), np.array([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    v = np.array([[[1.0], [2.0], [4.0]]])
    mask = np.array([[True, False, True], [False, False, True]])
    assert_rounds_to(heads_of(kernel, q, k, v, mask), [[[2.5], [4.0]]])
    visible, _ = from_torch(1, torch.tensor(mask))
    assert_rounds_to(heads_of(kernel, q, k, v, visible), [[[2.0], [1.66976155]]])


@with_every_kernel
def test_torch_float_mask_is_additive(kernel, three_tokens):
    """A02: a float triangle of ones and zeros hides nothing (pytorch issue 21518)."""
    triangle = np.tril(np.ones((3, 3)))
    with pytest.raises(TypeError, match=r"visible must be a boolean tensor .* got torch.float64.* pass it as bias"):
        heads_of(kernel, *three_tokens, visible=triangle)
    added = [[[0.16736686, 0.48053278], [-0.20091915, 0.04903479], [0.11364831, 0.03196105]]]
    assert_rounds_to(heads_of(kernel, *three_tokens, bias=triangle), added)
    assert_rounds_to(heads_of(kernel, *three_tokens, visible=triangle.astype(bool)), CAUSAL_RESULT[None])


@with_every_kernel
def test_torch_masks_of_two_kinds_merge(kernel, three_tokens):
    """A03: boolean causal and float padding, the first key padded away (pytorch issue 92554)."""
    expected = [[[0.0, 0.0], [-0.99, 0.4], [-0.09539871, -0.39773364]]]
    ignored, padding = torch.ones(3, 3).triu(1).bool(), torch.tensor([[-torch.inf, 0.0, 0.0]], dtype=torch.float64)
    visible, bias = from_torch(1, ignored, padding)
    assert_rounds_to(heads_of(kernel, *three_tokens, visible=visible, bias=bias.numpy()[0]), expected)
    both = masks.visible_from_ignored(ignored.numpy()) & masks.visible_from_bias(padding.numpy())
    assert_rounds_to(heads_of(kernel, *three_tokens, visible=both), expected)


@with_every_kernel
def test_torch_masks_of_heads_lie_within_their_sequence(kernel):
    """A04: a mask of three axes counts the heads of one sequence, then those of the next (lighthouse PR 77)."""
    q, k, v = (sines(2, 2, 2, 2, a=a) for a in (1.3, 0.9, 2.1))
    ignored = torch.tensor(
        [
            [[True, False], [True, False]],
            [[False, True], [False, True]],
            [[False, False], [False, False]],
            [[True, False], [False, False]],
        ]
    )
    visible, _ = from_torch(2, ignored)
    expected = [
        [[[-0.99, 0.4], [-0.99, 0.4]], [[0.58, -1.0], [0.58, -1.0]]],
        [[[0.18707985, -0.65576602], [-0.70136558, 0.16433746]], [[-1.0, 0.47], [-0.4948176, 0.49438812]]],
    ]
    sequences = [passing_on(*(x[i] for x in (q, k, v))) for i in range(2)]
    together = [np.stack(x) for x in zip(*(inputs for inputs, _ in sequences), strict=True)]
    layer = layer_of(sequences[0][1], kernel)
    assert_rounds_to(layer.trace(*tensors(*together, dtype=dtype_of(kernel)), visible=visible).heads, expected)


@with_every_kernel
def test_torch_query_that_sees_nothing(kernel):
    """A05: a query without a key gets zero, and gradients that are zero all the way (pytorch issue 41508)."""
    q, k = np.array([[1.0, 0.5], [-0.5, 2.0]]), np.array([[0.2, 1.0], [1.0, -1.0]])
    v, visible = np.array([[1.0, 2.0], [3.0, 5.0]]), torch.tensor([[True, True], [False, False]])
    eye = np.eye(2)[None]
    layer = layer_of(RowWeights(eye, eye, eye, eye), kernel)
    leaves = tensors(q, k, v, dtype=dtype_of(kernel))
    assert_rounds_to(layer(*leaves, visible=visible), [[1.92940694, 3.39411041], [0.0, 0.0]])
    if kernel == "flex":
        return
    leaves = [x.requires_grad_() for x in leaves]
    with (
        pytest.warns(UserWarning, match="Anomaly Detection"),
        torch.autograd.detect_anomaly(),
    ):  # not even on the way
        layer(*leaves, visible=visible).backward(tensors([[1.0, -1.0], [2.0, 3.0]]))
    expected = [
        [[-0.1407166, 0.3517915], [0.0, 0.0]],
        [[0.17589575, 0.08794787], [-0.17589575, -0.08794787]],
        [[0.53529653, -0.53529653], [0.46470347, -0.46470347]],
    ]
    for x, right in zip(leaves, expected, strict=True):
        assert_rounds_to(x.grad, right)


@with_every_kernel
def test_torch_head_that_sees_nothing(kernel):
    """A06: asking for the weights made every output NaN (pytorch issue 160064)."""
    x, visible = sines(1, 2, 3), torch.ones(1, 3, 2, 2, dtype=torch.bool)
    visible[:, 2] = False
    output = [[[1.13839136, -0.46617047, 0.04367765], [1.08171967, -0.28499865, -0.16424615]]]
    attention = [
        [
            [[0.73961113, 0.26038887], [0.59829833, 0.40170167]],
            [[0.50365739, 0.49634261], [0.49943712, 0.50056288]],
            [[0.0, 0.0], [0.0, 0.0]],
        ]
    ]
    layer, x = layer_of(square_weights(3, 3), kernel), tensors(x, dtype=dtype_of(kernel))
    assert_rounds_to(layer(x, visible=visible), output)
    trace = layer.trace(x, visible=visible)
    assert_rounds_to(trace.output, output)
    assert_rounds_to(trace.attention, attention)


@with_every_kernel
def test_torch_hidden_nan_does_not_leak(kernel, two_queries):
    """A07: a hidden key holds NaN and its value infinity (pytorch issue 101967)."""
    q, k, v = two_queries
    k[:, 1, 0], v[:, 1, 1] = np.nan, np.inf
    visible = np.array([[True, False, True]])
    expected = [[[0.41996893, 0.34763004], [0.53424458, -0.61469118]]]
    # what is not finite spreads within its own token as it is projected, and no further
    with np.errstate(invalid="ignore"):
        assert_rounds_to(heads_of(kernel, q, k, v, visible), expected)


@with_every_kernel
def test_torch_causal_alignment(kernel):
    """A08: the triangle starts at the first key or ends at the last (pytorch issue 108108)."""
    k, v = sines(1, 5, 2), np.arange(5.0)[None, :, None]
    two, one = np.zeros((1, 2, 2)), np.zeros((1, 1, 2))
    assert_rounds_to(heads_of(kernel, two, k, v, Causal("top-left")), [[[0.0], [0.5]]])
    assert_rounds_to(heads_of(kernel, two, k, v, Causal("bottom-right")), [[[1.5], [2.0]]])
    assert_rounds_to(heads_of(kernel, one, k, v, Causal("top-left")), [[[0.0]]])
    assert_rounds_to(heads_of(kernel, one, k, v, Causal("bottom-right")), [[[2.0]]])


@with_every_kernel
def test_torch_hiding_is_not_a_large_negative_number(kernel):
    """A09: visible scores below any finite fill, and a first key that half precision could not push lower."""
    q, k, v = np.array([[[200.0]]]), np.array([[[-100.0], [0.0]]]), np.array([[[1.0], [9.0]]])
    assert_rounds_to(heads_of(kernel, q, k, v, np.array([[True, False]])), [[[1.0]]])
    q, k, v = (torch.tensor(x).view(1, 1, 2, 1).half() for x in ([1.0, 1.0], [-16.5, 0.25], [3.0, 7.0]))
    visible = torch.tensor([[False, False], [False, True]])  # causal, and the first key is padding
    output = KERNELS[kernel](q, k, v, visible=visible, bias=torch.tensor([[-6e4, 0.0]]))
    assert output.flatten().tolist() == [0.0, 7.0]


@with_every_kernel
def test_torch_every_way_to_the_output_is_masked(kernel):
    """A11: the causal mask was dropped where scores were asked for, and under dropout (keras issue 23038)."""
    x = sines(1, 3, 4)
    expected = [
        [
            [-1.346477, -1.520452, -1.498627, 1.657623],
            [0.19489724, -0.65077633, -2.2250616, 0.1013091],
            [0.30834227, -0.36914836, -2.07525461, -0.04090587],
        ]
    ]
    layer, x = layer_of(square_weights(4, 2), kernel), tensors(x, dtype=dtype_of(kernel))
    assert_rounds_to(layer(x, visible=Causal()), expected)
    trace = layer.trace(x, visible=Causal())
    assert_rounds_to(trace.output, expected)
    assert_rounds_to(trace.attention[0, 0, 1], [0.36954892, 0.63045108, 0.0])
    changed = x.clone()
    changed[:, 2] += 1.0
    assert torch.equal(layer(changed, visible=Causal())[:, :2], layer(x, visible=Causal())[:, :2])
    if kernel in ("naive", "fused"):
        layer.dropout, outputs = 0.5, []
        for tokens in (x, changed):
            torch.manual_seed(0)
            outputs.append(layer(tokens, visible=Causal())[:, :2])
        assert torch.equal(*outputs)


@with_every_kernel
def test_torch_head_axis_of_a_mask_is_the_first(kernel):
    """A12: as many heads as queries and keys, and a mask that differs between heads (equinox PR 190)."""
    q, k, v = sines(2, 2, 2), sines(2, 2, 2, a=0.9), sines(2, 2, 2, a=2.1)
    visible = np.array([[[True, False], [True, True]], [[False, True], [True, True]]])
    expected = [[[0.39, 0.6], [-0.51358257, 0.469046]], [[0.42, 0.57], [0.49515237, -0.16743259]]]
    assert_rounds_to(heads_of(kernel, q, k, v, visible), expected)


@with_every_kernel
def test_torch_sequences_do_not_mix(kernel):
    """A17: batch first; with as many sequences as tokens no shape tells them apart (pytorch issue 122959)."""
    layer, x = layer_of(square_weights(4, 2), kernel), tensors(sines(2, 2, 4), dtype=dtype_of(kernel))
    expected = [
        [[1.2679121, -1.60280556, -4.1930479, -0.78718169], [0.19489724, -0.65077633, -2.2250616, 0.1013091]],
        [[5.51619481, 2.02301979, -5.05285569, -5.21609038], [5.01846927, 2.15802685, -4.43134041, -4.7671097]],
    ]
    assert_rounds_to(layer(x), expected)
    assert_rounds_to(layer(x.flip(0)), expected[::-1])
    changed = x.clone()
    changed[1] += 1.0
    assert torch.equal(layer(changed)[0], layer(x)[0])


@with_every_kernel
def test_torch_extra_keys_leave_the_triangle_alone(kernel):
    """A23: a key of zeros, and a learned one, behind the real keys; the mask grows at that end (pytorch #27461)."""
    q, k, v = sines(1, 2, 3, 2), sines(1, 2, 3, 2, a=0.9), sines(1, 2, 3, 2, a=2.1)
    visible, zeros = np.tril(np.ones((3, 3), dtype=bool), -1), torch.zeros(2, 1, 2, dtype=dtype_of(kernel))
    learned = tensors(sines(2, 1, 2, a=0.6), sines(2, 1, 2, a=0.35), dtype=dtype_of(kernel))
    zero = ExtraKeys(zeros, zeros)
    inputs, weights = passing_on(q[0], k[0], v[0])

    def heads(*extra):
        options = {"kernel": KERNELS[kernel], "dtype": dtype_of(kernel), "extra_keys": list(extra)}
        layer = MultiHeadAttention.from_weights(weights, **options).requires_grad_(False)
        return layer.trace(*tensors(*inputs, dtype=dtype_of(kernel)), visible=torch.tensor(visible)).heads

    expected = [
        [[0.0, 0.0], [0.13945392, 0.21454449], [-0.07296098, 0.34896584]],
        [[0.0, 0.0], [0.23004466, 0.31220347], [-0.48372347, 0.37384658]],
    ]
    assert_rounds_to(heads(zero), expected)
    expected = [
        [[0.26021084, 0.45370095], [0.20930988, 0.3443204], [0.05966042, 0.44379503]],
        [[0.57846368, 0.6434596], [0.32823542, 0.41304871], [0.02378738, 0.6014794]],
    ]
    assert_rounds_to(heads(ExtraKeys(*learned), zero), expected)


@with_kernels_that_drop
def test_torch_dropout_comes_after_the_weights_that_are_shown(kernel):
    """A24: the shown weights sum to one, those used are dropped or grow by 1/(1 - p) (pytorch issue 42929)."""
    q, k, v = sines(2, 2, 2), sines(2, 4, 2, a=0.9), sines(2, 4, 2, a=2.1)
    shown = np.array(
        [
            [[0.4326329, 0.25510642, 0.08101893, 0.23124174], [0.13563978, 0.25725704, 0.4276062, 0.17949698]],
            [[0.21741453, 0.17435924, 0.3103914, 0.29783482], [0.39031868, 0.22685925, 0.11461142, 0.26821065]],
        ]
    )
    inputs, weights = passing_on(q, k, v)
    layer = layer_of(weights, kernel, dropout=0.2).eval()
    output = [
        [[0.06028399, 0.41241117], [0.12161537, -0.14100624]],
        [[-0.27793205, 0.22889687], [-0.47991301, 0.13283014]],
    ]
    assert_rounds_to(layer.trace(*tensors(*inputs)).heads, output)
    one_by_one, weights = passing_on(q, k, np.stack([np.eye(4)] * 2))  # heads that show the weights they used
    watched, used = layer_of(weights, kernel, dropout=0.2), []
    for seed in range(20):
        torch.manual_seed(seed)
        trace = watched.trace(*tensors(*one_by_one))
        assert_rounds_to(trace.attention, shown)
        used.append(trace.heads.numpy() / trace.attention.numpy())
        torch.manual_seed(seed)
        np.testing.assert_allclose(
            layer.train().trace(*tensors(*inputs)).heads, trace.heads.numpy() @ v, rtol=1e-12
        )
    np.testing.assert_allclose(np.where(np.array(used) > 0.5, 1.25, 0.0), used, rtol=1e-12, atol=1e-12)
    assert 0.7 < (np.array(used) > 0.5).mean() < 0.9


@with_every_kernel
def test_torch_neighbouring_query_heads_share_a_key_value_head(kernel):
    """A28: four query heads on two key-value heads read 0, 0, 1, 1 (onnx PR 7274)."""
    q, k, v = sines(4, 2, 2), sines(2, 3, 2, a=0.9), sines(2, 3, 2, a=2.1)
    expected = [
        [[-0.04791824, 0.3650086], [0.05633939, -0.2965492]],
        [[0.11364831, 0.03196105], [-0.23601406, 0.21887692]],
        [[0.28546934, -0.1379813], [-0.44203009, 0.25815405]],
        [[0.28024503, -0.34538997], [-0.1322808, 0.2293711]],
    ]
    assert_rounds_to(heads_of(kernel, q, k, v), expected)


@with_every_kernel
def test_torch_a_block_that_is_hidden_counts_for_nothing(kernel):
    """A31: the first two keys are hidden, and the others score about -2000 (flash-attention issue 2082)."""
    q, k = np.array([[[1.0]]]), np.array([[[5.0], [5.0], [-2000.0], [-2001.0]]])
    v, visible = np.array([[[100.0], [100.0], [1.0], [3.0]]]), np.array([[False, False, True, True]])
    assert_rounds_to(heads_of(kernel, q, k, v, visible), [[[1.53788284]]])  # (1 + 3/e) / (1 + 1/e)
    assert_rounds_to(
        heads_of(kernel, q, k[:, ::-1].copy(), v[:, ::-1].copy(), visible[:, ::-1].copy()), [[[1.53788284]]]
    )


@with_every_kernel
def test_torch_views_give_what_their_copies_give(kernel):
    """A33: transposed, reversed and expanded views, none of them densely packed (pytorch issue 112577)."""
    q, k, v = (tensors(sines(2, 3, 2, 4, a=a), dtype=dtype_of(kernel)).transpose(1, 2) for a in (1.3, 0.9, 2.1))
    q, v = q.mT.contiguous().mT, v.flip(-1)
    visible = torch.ones(3, 3).triu().bool().T.expand(2, 2, 3, 3)
    result = KERNELS[kernel](q, k, v, visible=visible)
    assert_rounds_to(result[0, 0, 0], [0.4, -0.99, 0.6, 0.39])
    assert_rounds_to(result[1, 1, 2, 2:], [0.2051799, -0.03173668])
    assert_rounds_to(result.sum(), 2.44024597)
    wide = torch.zeros(2, 3, 2, 11, dtype=dtype_of(kernel))  # tokens with a gap between them
    x = wide[..., ::2].transpose(0, 1)
    layer = layer_of(RowWeights.random(np.random.default_rng(0), 6, h=2), kernel)
    torch.testing.assert_close(layer(x), layer(x.contiguous()), rtol=1e-6, atol=1e-6)


@with_every_kernel
def test_torch_types_that_do_not_belong_together_are_refused(kernel, three_tokens):
    """A34: a tokenizer's integer mask, two floating types in one product, a bias in a third (pytorch #99012)."""
    with pytest.raises(TypeError, match=r"visible must be a boolean tensor .* got torch.int64\. If 1 means attend"):
        heads_of(kernel, *three_tokens, visible=np.array([[1, 1, 0]] * 3))
    layer, x = layer_of(square_weights(4, 2), kernel), tensors(sines(1, 3, 4), dtype=dtype_of(kernel))
    other = torch.float64 if kernel == "flex" else torch.float32
    with pytest.raises(TypeError, match=f"keys is {other} but the layer is {dtype_of(kernel)}"):
        layer(x, x.to(other))
    bias = torch.zeros(3, 3, dtype=torch.float16).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf)
    output = layer(x, bias=bias)
    assert output.dtype == x.dtype
    torch.testing.assert_close(output, layer(x, visible=Causal()))


# --- attacks on this package, and what others reported of theirs: see the note of each ----------------------------

SELECTING = {"naive": naive, "fused": fused, "online": partial(online, block=2), "guarded": guarded(fused)}
with_kernels_that_differentiate = pytest.mark.parametrize("kernel", SELECTING.values(), ids=SELECTING)


def row_of(*numbers, dtype=torch.float32, **options):
    """Tokens of one feature, one after the other, as one head has them."""
    return torch.tensor(numbers, dtype=dtype, **options).view(1, 1, -1, 1)


@with_kernels_that_differentiate
def test_torch_query_that_is_not_finite(kernel):
    """M01: a NaN query got zeros, since the backend's softmax lost it (pytorch issue 141128)."""
    q, k, v = torch.tensor([[[[torch.nan, 1.0], [1.0, 1.0]]]]), torch.ones(1, 1, 3, 2), torch.ones(1, 1, 3, 2)
    assert kernel(q[:, :, :1], k, v).isnan().all()
    both = kernel(q, k, v)
    assert both[0, 0, 0].isnan().all()
    torch.testing.assert_close(both[0, 0, 1], torch.ones(2))
    layer = MultiHeadAttention(4, 2, kernel=kernel)
    assert layer(torch.full((1, 1, 4), torch.nan), torch.ones(1, 3, 4)).isnan().all()


@pytest.mark.parametrize("scale", [-0.5, 0.0, -7.0])
@with_kernels_that_differentiate
def test_torch_scale_that_is_not_positive(kernel, scale):
    """M02: minus infinity times a negative number is plus infinity, and times zero NaN (cudnn-frontend PR 804)."""
    q, k, v = tensors(*(sines(1, 1, 3, 2, a=a) for a in (1.3, 0.9, 2.1)))
    attention = torch.softmax((q @ k.mT * scale).masked_fill(torch.ones(3, 3).triu(1).bool(), -torch.inf), dim=-1)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    output = kernel(*leaves, visible=Causal(), scale=scale)
    torch.testing.assert_close(output, attention @ v, rtol=1e-12, atol=1e-12)
    assert all(x.isfinite().all() for x in torch.autograd.grad(output.sum(), leaves))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@with_kernels_that_differentiate
def test_torch_bias_keeps_its_precision(kernel, dtype):
    """M03: rounded to the queries' 16 bits, a bias that grows by a half a step is no such bias (ALiBi).

    flash-attention PR 846. The even and the odd steps of a geometric row: 1 / (1 + exp(-1/2)) = 0.6225.
    """
    n, i = 40, torch.arange(40)
    q, k, v = torch.zeros(1, 1, n, 1, dtype=dtype), torch.zeros(1, 1, n, 1, dtype=dtype), (i % 2).view(1, 1, n, 1)
    output = kernel(q, k, v.to(dtype), visible=Causal(), bias=(0.5 * i + 128).expand(n, n))
    torch.testing.assert_close(output[0, 0, -1, 0], torch.tensor(0.62245933, dtype=dtype), rtol=2e-3, atol=0)
    lowest = torch.tensor([[-1e9, -1e9]])  # in float16 that is minus infinity, which hides
    assert kernel(q[:, :, :1], k[:, :, :2], v[:, :, :2].to(dtype), bias=lowest).item() == 0.5


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@with_kernels_that_differentiate
def test_torch_scores_are_kept_in_32_bits(kernel, dtype):
    """M04: scores of 64 and 64.25 are one number in bfloat16; those above 65,504 none in float16.

    transformers PR 33317 and issue 35151. 1 / (1 + exp(-1/4)) = 0.5622.
    """
    q, k = torch.full((1, 1, 1, 64), 8.0, dtype=dtype), torch.full((1, 1, 2, 64), 8.0, dtype=dtype)
    k[..., 1, 0] = 8.25
    output = kernel(q, k, row_of(0, 1, dtype=dtype))
    torch.testing.assert_close(output.item(), 0.56217650, rtol=4e-3, atol=0)
    layer = MultiHeadAttention(64, 1, kernel=kernel, dtype=dtype)
    eye = torch.eye(64, dtype=dtype)
    layer.load_state_dict(
        {name: eye * 100 if "W_q.w" in name else eye if "w" in name else eye[0] * 0 for name in layer.state_dict()}
    )
    trace = layer.trace(q[0], k[0], k[0])
    torch.testing.assert_close(trace.scores[0, 0, 0], torch.tensor([51200.0, 51225.0]))
    trace = layer.trace(q[0], 2 * k[0], k[0])
    torch.testing.assert_close(trace.scores[0, 0, 0], torch.tensor([102400.0, 102450.0]))
    torch.testing.assert_close(trace.attention.flatten(), torch.tensor([1.9287498e-22, 1.0]))  # exp(-50)
    assert trace.output.isfinite().all()


@pytest.mark.parametrize("wrap", [lambda kernel: kernel, guarded], ids=["plain", "guarded"])
@with_kernels_that_differentiate
def test_torch_scale_of_a_kernel_is_that_of_its_trace(kernel, wrap):
    """M05: the trace showed the weights of 1/sqrt(d_k), attention @ values was not heads (gemma_pytorch #71)."""
    for scale in (0.75, 0.0, -0.5):
        for options in ({"kernel": wrap(partial(kernel, scale=scale))}, {"kernel": wrap(kernel), "scale": scale}):
            torch.manual_seed(0)
            layer = MultiHeadAttention(12, 4, dtype=torch.float64, **options)
            trace = layer.trace(tensors(sines(1, 3, 12)), visible=Causal())
            torch.testing.assert_close(trace.attention @ trace.values, trace.heads, rtol=1e-12, atol=1e-12)
            expected = (trace.queries @ trace.keys.mT * scale).masked_fill(
                torch.ones(3, 3).triu(1).bool(), -torch.inf
            )
            torch.testing.assert_close(trace.scores, expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("kernel", ["naive", "online", "guarded", "fused"])
def test_torch_second_derivatives(kernel):
    """M06: a term of the second derivative was dropped without a word (learn2learn issue 429)."""
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 1, 3, 2, dtype=torch.double, requires_grad=True) for _ in range(3))
    loss = SELECTING[kernel](q, k, v).sum()
    (gradient,) = torch.autograd.grad(loss, v, create_graph=True)
    if kernel == "fused":
        with pytest.raises(
            NotImplementedError, match="fused: there is no second derivative; choose naive or online"
        ):
            (loss + gradient.square().sum()).backward()
        return
    (loss + gradient.square().sum()).backward()
    np.testing.assert_array_equal(q.grad.flatten()[:3].numpy().round(4), [-0.1107, -0.1117, -0.0542])


@pytest.mark.parametrize("number", [-1e9, torch.finfo(torch.float32).min, -1e7, 1e8])
@with_kernels_that_differentiate
def test_torch_row_of_one_large_number(kernel, number):
    """M07: the logarithm of the sum of m equal weights is lost beside the score, and dv is m times too large.

    flash-attention issue 1012 and pytorch issue 110213. Four equal weights are a quarter each.
    """
    q, k, v = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 4, 1), row_of(1, 2, 4, 8, requires_grad=True)
    for options in ({"bias": torch.full((1, 4), number)}, {"scale": 1.0}):
        if "scale" in options:
            q, k = q * abs(number) ** 0.5, (k + 1) * abs(number) ** 0.5
            if not torch.isfinite(q @ k.mT).all():
                continue
        output = kernel(q, k, v, **options)
        (dv,) = torch.autograd.grad(output.sum(), v)
        assert output.item() == 3.75
        assert dv.flatten().tolist() == [0.25] * 4


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")
@pytest.mark.parametrize("kernel", SELECTING)
def test_torch_online_is_transformed(kernel):
    """M08: `vmap(grad)`, `jacrev` and batched gradients raised an error (pytorch PR 188764)."""
    kernel = SELECTING[kernel]
    q, (k, v) = tensors(sines(5, 2, 3, 4)), tensors(sines(1, 2, 3, 4, a=0.9), sines(1, 2, 3, 4, a=2.1))
    found = torch.vmap(torch.func.grad(lambda one: kernel(one[None], k, v).sum()))(q)
    leaf = q.clone().requires_grad_()
    (expected,) = torch.autograd.grad(naive(leaf, k.expand(5, -1, -1, -1), v.expand(5, -1, -1, -1)).sum(), leaf)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    by_rows = torch.func.jacrev(lambda one: kernel(one, k, v))(q[:1])
    torch.testing.assert_close(by_rows, torch.func.jacfwd(lambda one: kernel(one, k, v))(q[:1]))
    leaf = q[:1].clone().requires_grad_()
    output = kernel(leaf, k, v)
    each = torch.eye(output.numel(), dtype=torch.float64).view(-1, *output.shape)
    (batched,) = torch.autograd.grad(output, leaf, each, is_grads_batched=True)
    torch.testing.assert_close(batched.view(by_rows.shape), by_rows, rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings(
    "ignore:.*script_method.*:DeprecationWarning", "ignore:.*instantiated:DeprecationWarning"
)
@pytest.mark.parametrize("kernel", [fused, online])
def test_torch_compiled_for_a_second_length(kernel):
    """M09: with a length that is a symbol, `is_causal` was none of Python's booleans (transformers PR 36374)."""
    layer = MultiHeadAttention(12, 4, kernel=kernel, dtype=torch.float64)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    for n in (5, 7, 11):
        for visible in (Causal(), Padding([n, 3])) if kernel is fused else (Causal(),):
            x = tensors(sines(2, n, 12))
            torch.testing.assert_close(compiled(x, visible=visible), layer(x, visible=visible))


@with_kernels_that_differentiate
def test_torch_hidden_key_whose_score_overflows(kernel):
    """M10: the hidden key is finite, but its score is not, and infinity minus infinity is NaN."""
    q, visible = torch.full((1, 1, 1, 2), 2.0), torch.tensor([[True, False]])
    k, v = torch.tensor([[[[0.1, 0.2], [3e38, 3e38]]]]), torch.tensor([[[[1.0, 2.0], [3e38, 0.0]]]])
    for given in (visible, Padding([1]), ~Padding([1], side="left")):
        leaves = [x.clone().requires_grad_() for x in (q, k, v)]
        output = kernel(*leaves, visible=given)
        assert output.flatten().tolist() == [1.0, 2.0]
        dq, dk, dv = torch.autograd.grad(output.sum(), leaves)
        assert dv.flatten().tolist() == [1.0, 1.0, 0.0, 0.0]
        assert not dq.any()
        assert not dk.any()


@with_kernels_that_differentiate
def test_torch_extra_keys_are_part_of_the_layer(kernel):
    """M11: as a module around a kernel they were not registered, and the trace did not have their weights."""
    for wrapped in (kernel, guarded(kernel), partial(kernel, scale=0.1)):
        learned = ExtraKeys(nn.Parameter(torch.ones(2, 1, 2)), nn.Parameter(torch.ones(2, 1, 2)))
        layer = MultiHeadAttention(4, 2, kernel=wrapped, extra_keys=learned)
        assert "extra_keys.0.keys" in dict(layer.named_parameters())
        assert layer.double().extra_keys[0].keys.dtype == torch.float64
        trace = layer.trace(tensors(sines(1, 3, 4)), visible=Causal())
        assert trace.attention.shape == (1, 2, 3, 4)
        torch.testing.assert_close(trace.attention @ trace.values, trace.heads)
        trace.output.sum().backward()
        assert learned.values.grad.all()


@pytest.mark.filterwarnings("ignore:.*torch.jit.trace.*:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:Converting a tensor to a Python:torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:.*torch.as_tensor|.*torch.from_numpy|.*torch.tensor:torch.jit.TracerWarning")
@pytest.mark.parametrize("visible", [None, Causal()], ids=str)
@pytest.mark.parametrize("kernel", SELECTING)
def test_torch_traced_by_jit(kernel, visible):
    """M12: "enable_gqa must be bool, not Tensor"."""

    def attend(q, k, v):
        return SELECTING[kernel](q, k, v, visible=visible)

    q, k, v = (tensors(sines(1, h, 5, 4, a=a)) for h, a in ((4, 1.3), (2, 0.9), (2, 2.1)))
    if kernel == "online":
        with pytest.raises(NotImplementedError, match=r"online: a traced graph.*choose naive or fused"):
            torch.jit.trace(attend, (q, k, v), check_trace=False)
        return
    traced = torch.jit.trace(attend, (q, k, v), check_trace=False)
    for n in (5, 7):
        other = [x[:, :, :1].expand(-1, -1, n, -1) * torch.arange(1, n + 1).view(-1, 1) for x in (q, k, v)]
        torch.testing.assert_close(traced(*other), naive(*other, visible=visible))


@pytest.mark.filterwarnings("ignore:.*script_method.*:DeprecationWarning")
def test_torch_compiled_padding_is_checked():
    """M12: lengths beyond the keys, or not as many as sequences, went through a compiled layer unseen."""
    layer, x = MultiHeadAttention(12, 4), torch.ones(2, 7, 12)
    compiled = torch.compile(layer, fullgraph=True, backend="eager")
    with pytest.raises(Exception, match="lengths must not exceed the"):
        compiled(x, visible=Padding([9, 3]))
    with pytest.raises(Exception, match=r"lengths of shape \(1,\) do not fit the batch"):
        compiled(x, visible=Padding([5]))


def test_torch_kernel_is_not_a_name():
    """M12: a string for a kernel was taken, and failed when the layer was called."""
    layer = MultiHeadAttention(12, 4)
    with pytest.raises(
        TypeError, match=r"kernel must be a function.*got 'fused'; the kernel of this name is KERNELS"
    ):
        layer.kernel = "fused"
