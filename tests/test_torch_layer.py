"""The PyTorch layer against the reference, against `nn.MultiheadAttention`, and in every way a module is used."""

import copy
import pickle
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from mha_tutorial import Causal, ColumnWeights, Padding, RowWeights, Trace, Window
from mha_tutorial.gradients import backward
from mha_tutorial.reference import row
from mha_tutorial.torch import ExtraKeys, MultiHeadAttention, fused, guarded, naive, online
from mha_tutorial.torch.masks import from_torch
from tests.helpers import D_K, D_MODEL, D_V, GROUPS, M, N, assert_close
from tests.torch_helpers import BLOCKED, WithMask, array, assert_all_close, on_a_gpu, one_thread, tensors  # noqa: F401

# PyTorch's own, while it compiles or transforms
compiling = pytest.mark.filterwarnings(
    "ignore:.*script_method.*:DeprecationWarning", "ignore:.*should not be instantiated:DeprecationWarning"
)
transforming = pytest.mark.filterwarnings("ignore:There is a performance drop:UserWarning")
MASKS = {"all visible": None, "causal": Causal("bottom-right"), "padding": Padding([M, 3]), "array": "array"}


def draw(rng, h=6, h_kv=2, bias=True, widths=(19, 23, 29)):
    """Weights whose inputs have widths of their own."""
    arrays = ColumnWeights.random(rng, D_MODEL, h, h_kv, d_k=D_K, d_v=D_V, bias=bias).arrays()
    for name, width in zip(("W_q", "W_k", "W_v"), widths, strict=True):
        arrays[name] = rng.normal(scale=width**-0.5, size=(*arrays[name].shape[:2], width))
    return ColumnWeights(**arrays).T


def tokens(rng, batch=(2,), widths=(19, 23, 29)):
    lengths = (N, M, M)
    return tuple(rng.normal(size=(*batch, n, width)) for n, width in zip(lengths, widths, strict=True))


def mask_of(name, rng, h, batch=(2,)):
    if MASKS[name] != "array":
        return MASKS[name], MASKS[name]
    visible = rng.random((*batch, h, N, M)) < 0.6
    visible[..., 2, :] = False
    return visible, torch.tensor(visible)


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("kernel", BLOCKED)
def test_every_step_is_the_references(kernel, h, h_kv, mask, rng):
    weights, inputs = draw(rng, h, h_kv), tokens(rng)
    visible, given = mask_of(mask, rng, h)
    layer = MultiHeadAttention.from_weights(weights, kernel=BLOCKED[kernel])
    expected = row.multi_head(*inputs, weights, visible=visible)
    trace = layer.trace(*tensors(*inputs), visible=given)
    for step in Trace._fields:
        assert_close(array(getattr(trace, step)), getattr(expected, step))
    assert torch.equal(layer(*tensors(*inputs), visible=given), trace.output)


@pytest.mark.parametrize("mask", ["all visible", "causal", "array"])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kernel", BLOCKED)
def test_gradients_are_those_derived_by_hand(kernel, bias, mask, rng):
    weights, inputs = draw(rng, bias=bias), tokens(rng)
    visible, given = mask_of(mask, rng, weights.h)
    output_gradient = rng.normal(size=(2, N, D_MODEL))
    expected = backward(output_gradient, row.multi_head(*inputs, weights, visible=visible), *inputs, weights)
    layer = MultiHeadAttention.from_weights(weights, kernel=BLOCKED[kernel])
    leaves = [x.requires_grad_() for x in tensors(*inputs)]
    layer(*leaves, visible=given).backward(tensors(output_gradient))
    assert_all_close([array(x.grad) for x in leaves], expected[:3])
    for parameter in layer.parameters():
        parameter.data = parameter.grad
    found = layer.to_weights().arrays()
    assert list(found) == list(expected.weights.arrays())
    assert_all_close(list(found.values()), list(expected.weights.arrays().values()))


@pytest.mark.parametrize("batch", [(), (1,), (2, 5)])
def test_any_batch_axes(batch, rng):
    weights = RowWeights.random(rng, D_MODEL, h=3, d_k=D_K, d_v=D_V)
    x, memory = rng.normal(size=(*batch, N, D_MODEL)), rng.normal(size=(*batch, M, D_MODEL))
    layer = MultiHeadAttention.from_weights(weights)
    bias = rng.normal(size=(3, N, M))
    masks = [
        None,
        Causal("bottom-right"),
        Padding(1 + np.arange(np.prod(batch, dtype=int)).reshape(batch) % M),
        rng.random((N, M)) < 0.6,
        rng.random((3, N, M)) < 0.6,
        rng.random((*batch[1:], 1, N, M)) < 0.6,
        rng.random((*batch, 3, 1, M)) < 0.6,
    ]
    for visible in masks:
        given = torch.tensor(visible) if isinstance(visible, np.ndarray) else visible
        expected = row.multi_head(x, memory, memory, weights, row.biased(row.scaled_dot_product, bias), visible)
        trace = layer.trace(*tensors(x, memory), visible=given, bias=torch.tensor(bias))
        for step in Trace._fields:
            assert_close(array(getattr(trace, step)), getattr(expected, step))
        expected = row.multi_head(x, x, x, weights)
        assert_close(array(layer(tensors(x))), expected.output)


def test_nothing_to_attend_to(rng):
    layer = MultiHeadAttention.from_weights(RowWeights.random(rng, D_MODEL, h=3, d_k=D_K, d_v=D_V))
    nothing, x = torch.empty(2, 0, D_MODEL, dtype=torch.float64), torch.ones(2, N, D_MODEL, dtype=torch.float64)
    assert torch.equal(layer(x, nothing), layer.W_o.bias.expand(2, N, D_MODEL))
    assert layer(nothing, x).shape == (2, 0, D_MODEL)
    assert layer(x[:0]).shape == (0, N, D_MODEL)


# --- weights in and out -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.float16])
def test_weights_survive_the_journey(dtype, rng):
    for weights in (draw(rng), draw(rng, bias=False), draw(rng, 3, 3), RowWeights.random(rng, 12, 4)):
        arrays = {name: array.astype(dtype) for name, array in weights.arrays().items()}
        arrays.pop("b_k", None)
        given = RowWeights(**arrays)
        for convention in (given, given.T):
            layer = MultiHeadAttention.from_weights(convention)
            assert (layer.W_q.weight.dtype, layer.W_k.bias) == (torch.from_numpy(given.W_q).dtype, None)
            back = layer.to_weights()
            assert type(back) is RowWeights
            assert list(back.arrays()) == list(arrays)
            for name, there in back.arrays().items():
                np.testing.assert_array_equal(there, arrays[name], strict=True)


def test_weights_are_copies(rng):
    weights = RowWeights.random(rng, 12, 4)
    before = weights.W_q.copy()
    layer = MultiHeadAttention.from_weights(weights)
    out = layer.to_weights()
    nn.init.zeros_(layer.W_q.weight)
    assert np.array_equal(weights.W_q, before)
    assert np.array_equal(out.W_q, before)


def test_bfloat16_comes_out_as_float32(rng):
    layer = MultiHeadAttention.from_weights(RowWeights.random(rng, 12, 4), dtype=torch.bfloat16)
    assert layer.W_q.weight.dtype == torch.bfloat16
    out = layer.to_weights()
    assert out.dtype == np.float32
    assert torch.equal(MultiHeadAttention.from_weights(out, dtype=torch.bfloat16).W_o.weight, layer.W_o.weight)


def test_options_are_handed_on(rng):
    layer = MultiHeadAttention.from_weights(
        RowWeights.random(rng, 12, 4), dropout=0.25, kernel=naive, device="meta"
    )
    assert (layer.dropout, layer.kernel, layer.W_o.weight.device.type) == (0.25, naive, "meta")
    assert "h=4, h_kv=4, d_k=3, d_v=3, dropout=0.25, kernel=naive" in repr(layer)
    assert "kernel=partial" in repr(MultiHeadAttention(12, 4, kernel=guarded(fused)))


# --- nn.MultiheadAttention ----------------------------------------------------------------------------------------

VARIANTS = {
    "packed": {},
    "no bias": {"bias": False},
    "widths of its own": {"kdim": 23, "vdim": 29},
    "learned key": {"add_bias_kv": True},
    "zero key": {"add_zero_attn": True},
    "both": {"add_bias_kv": True, "add_zero_attn": True, "kdim": 23},
    "dropout": {"dropout": 0.4},
}
IGNORED = {
    "nothing": lambda rng: (None, None),
    "causal": lambda rng: (torch.ones(N, M).tril(2) == 0, None),
    "padding": lambda rng: (None, torch.arange(M).expand(2, -1) >= torch.tensor([[M], [3]])),
    "for every head": lambda rng: (torch.tensor(rng.random((6, N, M)) < 0.3), None),
    "added": lambda rng: (
        torch.tensor(rng.normal(size=(N, M))),
        torch.tensor([[0.0, -torch.inf] * 3 + [0.0]] * 2).double(),
    ),
    "added to some": lambda rng: (torch.tensor(rng.normal(size=(6, N, M))), None),
}


@pytest.mark.parametrize("ignored", IGNORED)
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_equal_to_the_module_of_pytorch(variant, training, ignored, rng):
    module = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64, **VARIANTS[variant]).train(
        training
    )
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    layer = MultiHeadAttention.from_torch(module)
    q, k, v = tensors(*tokens(rng, widths=(12, module.kdim, module.vdim)))
    attn_mask, key_padding_mask = IGNORED[ignored](rng)
    visible, bias = from_torch(3, attn_mask, key_padding_mask)

    torch.manual_seed(5)
    expected = module(q, k, v, attn_mask=attn_mask, key_padding_mask=key_padding_mask, need_weights=False)[0]
    torch.manual_seed(5)
    assert_close(array(layer(q, k, v, visible=visible, bias=bias)), array(expected))
    if module.dropout == 0:
        weights = module(
            q, k, v, attn_mask=attn_mask, key_padding_mask=key_padding_mask, average_attn_weights=False
        )[1]
        assert_close(array(layer.trace(q, k, v, visible=visible, bias=bias).attention), array(weights))


@pytest.mark.parametrize("training", [True, False])
def test_equal_in_self_attention(training, rng):
    """In eval and without gradients this is the module's fast path."""
    module = nn.MultiheadAttention(12, 3, batch_first=True).train(training)
    layer, x = MultiHeadAttention.from_torch(module), torch.tensor(rng.normal(size=(2, N, 12)), dtype=torch.float32)
    with torch.no_grad():
        expected = module(x, x, x, need_weights=False)[0]
        torch.testing.assert_close(layer(x), expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())
    assert layer.training == training


@pytest.mark.parametrize("variant", ["packed", "no bias", "widths of its own", "dropout"])
def test_back_to_the_module_of_pytorch(variant):
    module = nn.MultiheadAttention(12, 3, **VARIANTS[variant]).eval()
    for parameter in module.parameters():
        nn.init.normal_(parameter)
    back = MultiHeadAttention.from_torch(module).to_torch()
    assert (back.batch_first, back.dropout, back.training) == (True, module.dropout, False)
    assert list(back.state_dict()) == list(module.state_dict())
    for name, there in back.state_dict().items():
        assert torch.equal(there, module.state_dict()[name]), name


def test_a_missing_bias_becomes_zero(rng):
    arrays = RowWeights.random(rng, 12, 3).arrays()
    arrays.pop("b_k")
    layer = MultiHeadAttention.from_weights(RowWeights(**arrays))
    module, x = layer.to_torch(), tensors(rng.normal(size=(2, N, 12)))
    assert not module.in_proj_bias[12:24].any()
    assert_close(array(module(x, x, x)[0]), array(layer(x)))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"h_kv": 1}, "h=3, h_kv=1"),
        ({"d_k": 5}, "d_k=5, d_v=4"),
        ({"d_v": 5}, "d_k=4, d_v=5"),
        ({"widths": (11, 12, 12)}, "queries of width 11"),
        ({"extra_keys": ExtraKeys(torch.ones(3, 2, 4), torch.ones(3, 2, 4))}, "1 sets of extra keys"),
        ({"extra_keys": [(torch.ones(3, 1, 4), torch.ones(3, 1, 4))] * 2}, "2 sets of extra keys"),
        ({"prepare": lambda q, k, positions: (q, k)}, "prepare=<lambda>"),
    ],
)
def test_no_module_of_pytorch_for_every_layer(options, message):
    with pytest.raises(ValueError, match="nn.MultiheadAttention has h_kv = h.* got .*" + message):
        MultiHeadAttention(12, 3, **options).to_torch()


@pytest.mark.parametrize(
    ("masks", "error", "message"),
    [
        ((torch.zeros(7, 5, 5).bool(), None), ValueError, r"an entry for each of 3 heads .* got shape \(7, 5, 5\)"),
        ((torch.zeros(5, 5).int(), None), TypeError, r"attn_mask must be boolean \(True = ignore\) .* torch.int32"),
        ((None, torch.zeros(2, 5).int()), TypeError, "key_padding_mask must be boolean"),
    ],
)
def test_masks_that_are_none_are_refused(masks, error, message):
    with pytest.raises(error, match=message):
        from_torch(3, *masks)


def test_where_pytorch_is_still_wrong():
    """A head that sees nothing, and a hidden NaN, in PyTorch itself: when these are mended there, say so here."""
    module = nn.MultiheadAttention(4, 2, batch_first=True)
    x, ignored = torch.ones(1, 2, 4), torch.zeros(2, 2, 2, dtype=torch.bool)
    ignored[1] = True
    assert module(x, x, x, attn_mask=ignored, need_weights=False)[0].isfinite().all()
    assert module(x, x, x, attn_mask=ignored)[0].isnan().all()
    v = torch.tensor([[[[1.0], [torch.nan]]]])
    attend = nn.functional.scaled_dot_product_attention
    assert attend(v * 0 + 1, torch.ones_like(v), v, attn_mask=torch.tensor([[True, False]])).isnan().all()


# --- construction -------------------------------------------------------------------------------------------------


def test_each_projection_is_initialised_as_its_own_matrix():
    """Glorot: uniform within ±sqrt(6 / (rows + columns)), whose variance is a third of the square of that."""
    torch.manual_seed(0)
    layer = MultiHeadAttention(101, 7, h_kv=7, d_k=31, d_v=53, widths=(101, 211, 307))
    for projection in (layer.W_q, layer.W_k, layer.W_v, layer.W_o):
        rows, columns = projection.weight.shape
        bound = (6 / (rows + columns)) ** 0.5
        largest, variance = projection.weight.abs().max().item(), projection.weight.var().item()
        assert 0.999 * bound < largest <= bound
        assert abs(variance / (bound**2 / 3) - 1) < 5 / (rows * columns) ** 0.5  # five standard deviations or more
        assert not projection.bias.any()


def test_initialisation_can_be_repeated():
    layer, drawn = MultiHeadAttention(12, 4), []
    for _ in range(2):
        nn.init.ones_(layer.W_q.bias)
        torch.manual_seed(3)
        layer.reset_parameters()
        drawn.append(copy.deepcopy(layer.state_dict()))
    for name, there in drawn[0].items():
        assert torch.equal(there, drawn[1][name]), name


def test_without_biases():
    layer = MultiHeadAttention(12, 4, bias=False)
    assert list(layer.state_dict()) == ["W_q.weight", "W_k.weight", "W_v.weight", "W_o.weight"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"d_model": 10, "h": 4}, r"d_model \(10\) must be divisible by h \(4\); pass d_k and d_v"),
        ({"d_model": 10, "h": 4, "d_k": 3}, "must be divisible"),
        ({"d_model": 12, "h": 4, "h_kv": 3}, "3 key-value heads must divide 4 heads"),
        ({"d_model": 12, "h": 0}, "h must be at least 1, got 0"),
        ({"d_model": 12, "h": 4, "h_kv": 0}, "h_kv must be at least 1, got 0"),
        ({"d_model": 12, "h": 4, "d_v": 0}, "d_v must be at least 1, got 0"),
        ({"d_model": 12, "h": 4, "dropout": 1.0}, "dropout must be at least 0 and below 1, got 1.0"),
        ({"d_model": 12, "h": 4, "dropout": -0.1}, "dropout must be at least 0 and below 1, got -0.1"),
    ],
)
def test_sizes_of_which_no_layer_can_be_made(arguments, message):
    with pytest.raises(ValueError, match=message):
        MultiHeadAttention(**arguments)


def test_widths_are_free_when_they_are_given():
    layer = MultiHeadAttention(10, 4, d_k=3, d_v=5)
    assert (layer.W_q.weight.shape, layer.W_o.weight.shape) == ((12, 10), (10, 20))


X = torch.zeros(2, 5, 12)


@pytest.mark.parametrize(
    ("given", "options", "error", "message"),
    [
        ((X.long(),), {}, TypeError, "queries must be a floating tensor, got torch.int64"),
        ((X.numpy(),), {}, TypeError, "queries must be a floating tensor, got ndarray"),
        (
            (X.double(),),
            {},
            TypeError,
            "queries is torch.float64 but the layer is torch.float32; convert one of them",
        ),
        ((X, X.half()), {}, TypeError, "keys is torch.float16 but the layer is torch.float32"),
        ((X.mT,), {}, ValueError, r"queries must be \(..., tokens, 12\), got \(2, 12, 5\)"),
        ((X[0, 0],), {}, ValueError, r"queries must be \(..., tokens, 12\), got \(12,\)"),
        ((X, X[..., :7]), {}, ValueError, r"keys must be \(..., tokens, 12\), got \(2, 5, 7\)"),
        ((X, X[:1]), {}, ValueError, r"queries and keys must have the same leading axes, got shapes \(2, 5, 12\)"),
        ((X, X, X[0]), {}, ValueError, "queries and values must have the same leading axes"),
        (
            (X, X, X[:, :4]),
            {},
            ValueError,
            r"the same number m of tokens, got shapes \(2, 5, 12\) and \(2, 4, 12\)",
        ),
        (
            (X[None],),
            {"visible": torch.ones(3, 1, 4, 5, 5).bool()},
            ValueError,
            r"\(3, 1, 4, 5, 5\) does not broad",
        ),
        ((X[None],), {"bias": torch.ones(1, 1, 1, 4, 5, 5)}, ValueError, "bias of shape .* does not broadcast"),
        (
            (X[None],),
            {"visible": Padding([5, 5])},
            ValueError,
            r"lengths of shape \(2,\) do not fit the batch axes",
        ),
    ],
)
def test_bad_input_is_refused(given, options, error, message):
    with pytest.raises(error, match=message):
        MultiHeadAttention(12, 4)(*given, **options)


# --- every way a module is used -----------------------------------------------------------------------------------


def small(kernel=fused, dtype=torch.float64, **options):
    torch.manual_seed(0)
    return MultiHeadAttention(12, 4, h_kv=2, d_k=5, d_v=7, kernel=kernel, dtype=dtype, **options)


def some_tokens(*shape, dtype=torch.float64):
    return torch.randn(*shape, 12, generator=torch.Generator().manual_seed(1), dtype=dtype)


STRUCTURED = [None, Causal(), Padding([2, 0]), Causal() & Padding([4, 3]), Window(2) & Causal()]


def assert_equal(found, *expected):
    """One tensor, or several, to 1e-12 of the largest among all."""
    found = [found] if len(expected) == 1 else found
    assert_all_close([array(x) for x in found], [array(x) for x in expected])


@compiling
@pytest.mark.no_cover
@pytest.mark.parametrize("kernel", BLOCKED)
def test_one_graph_for_each_mask(kernel):
    """Captured whole; run without making code of it, which takes long, and all but one without a graph back."""
    torch._dynamo.reset()
    layer, x = small(BLOCKED[kernel]), some_tokens(2, 5)
    compiled = torch.compile(layer, fullgraph=True, backend="aot_eager" if kernel == "fused" else "eager")
    structured = (None, *STRUCTURED[3:]) if kernel == "fused" else STRUCTURED[3:4]  # the others are parts of these
    for visible in (*structured, torch.ones(5, 5).tril().bool()):
        outcomes = []
        for run in (compiled, layer):
            layer.zero_grad()
            output = run(x, visible=visible)
            output.square().sum().backward()
            outcomes.append([output, *(parameter.grad for parameter in layer.parameters())])
        assert_equal(outcomes[0], *outcomes[1])


@compiling
@pytest.mark.no_cover
def test_compiled_to_code():
    torch._dynamo.reset()
    layer, x = small(), some_tokens(2, 5)
    compiled = torch.compile(layer, fullgraph=True)
    with torch.no_grad():
        assert_equal(compiled(x, visible=Causal()), layer(x, visible=Causal()))


@compiling
@pytest.mark.no_cover
def test_a_compiled_kernel_is_guarded_by_choice():
    """Nothing can be looked at in a graph. What nobody sees is zero there; what only some see is for `guarded`."""
    for visible, plain in (
        (torch.arange(7) < torch.tensor([7, 3])[:, None, None, None], True),
        (Padding([7, 3]), True),
        (torch.ones(5, 7).tril(diagonal=2).bool(), False),
    ):
        torch._dynamo.reset()
        x, memory = some_tokens(2, 5), some_tokens(2, 7)
        first = small()(x, memory, visible=visible)[:, :2]
        memory[1, 4:] = torch.nan
        assert_equal(small()(x, memory, visible=visible)[:, :2], first)
        for kernel, right in ((fused, plain), (guarded(fused), True), (naive, True)):
            compiled = torch.compile(small(kernel), fullgraph=True, backend="eager")
            output = compiled(x, memory, visible=visible)[:, :2]
            assert output.isfinite().all() == right
        assert_equal(output, first)


@pytest.mark.parametrize("visible", [None, Causal(), Window(3) & Causal()], ids=str)
@pytest.mark.parametrize("kernel", ["fused", "guarded"])
def test_exported_for_any_batch_and_length(kernel, visible):
    module = WithMask(small(BLOCKED[kernel]), visible)
    sizes = {"x": {0: torch.export.Dim("b"), 1: torch.export.Dim("n", min=2)}}
    exported = torch.export.export(module, (some_tokens(2, 5),), dynamic_shapes=sizes).module()
    for x in (some_tokens(2, 5), some_tokens(3, 11)):
        assert_equal(exported(x), module(x))


@pytest.mark.parametrize("visible", [Causal(), Padding([5, 3])], ids=["causal", "padding"])
@pytest.mark.parametrize("kernel", BLOCKED)
def test_exported_for_one_length(kernel, visible):
    module, x = WithMask(small(BLOCKED[kernel]), visible), some_tokens(2, 5)
    assert_equal(torch.export.export(module, (x,)).module()(x), module(x))


@transforming
@pytest.mark.parametrize("kernel", BLOCKED)
def test_mapped_and_differentiated_by_torch_func(kernel):
    layer, x = small(BLOCKED[kernel]), some_tokens(3, 5)
    attend = partial(layer, visible=Causal())
    assert_equal(torch.func.vmap(attend)(x), attend(x))

    def loss(parameters, x):
        return torch.func.functional_call(layer, parameters, (x,), {"visible": Causal()}).square().sum()

    parameters = dict(layer.named_parameters())
    whole = torch.func.grad(loss)(parameters, x)
    one_by_one = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    loss(parameters, x).backward()
    expected = [parameter.grad for parameter in parameters.values()]
    assert_equal(whole.values(), *expected)
    assert_equal([gradient.sum(dim=0) for gradient in one_by_one.values()], *expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kernel", BLOCKED)
def test_autocast(kernel, dtype):
    """The same as 16-bit weights and tokens give, and gradients in the weights' 32 bits."""
    layer, x = small(BLOCKED[kernel], torch.float32), some_tokens(2, 5, dtype=torch.float32)
    with torch.autocast("cpu", dtype=dtype):
        output = layer(x, visible=Causal())
        output.float().sum().backward()
    assert output.dtype == dtype
    assert torch.equal(output, copy.deepcopy(layer).to(dtype)(x.to(dtype), visible=Causal()))
    assert all(parameter.grad.dtype == torch.float32 for parameter in layer.parameters())


def test_autocast_leaves_the_sums_of_online_alone():
    """Its own products would be cast like any other."""
    q, k, v = (torch.randn(1, 1, 64, 8, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = online(*leaves)
        gradients = torch.autograd.grad(output.sum(), leaves)
    assert torch.equal(output, online(q, k, v))
    for gradient, right in zip(gradients, torch.autograd.grad(online(*leaves).sum(), leaves), strict=True):
        assert torch.equal(gradient, right)


def test_state_is_saved_and_loaded(tmp_path):
    layer, x = small(), some_tokens(2, 5)
    torch.save(layer.state_dict(), tmp_path / "layer.pt")
    other = small()
    other.reset_parameters()
    assert not torch.equal(other(x), layer(x))
    other.load_state_dict(torch.load(tmp_path / "layer.pt"))
    assert torch.equal(other(x), layer(x))


@pytest.mark.parametrize("kernel", BLOCKED)
@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda layer: pickle.loads(pickle.dumps(layer))], ids=["deep", "pickled"]
)
def test_copies(copied, kernel):
    layer, x = small(BLOCKED[kernel]), some_tokens(2, 5)
    other = copied(layer)
    assert torch.equal(other(x), layer(x))
    nn.init.zeros_(other.W_o.weight)
    assert layer.W_o.weight.all()


@pytest.mark.parametrize("kernel", BLOCKED)
def test_without_data_on_the_meta_device(kernel):
    layer = small(BLOCKED[kernel], device="meta")
    x = torch.empty(2, 5, 12, device="meta", dtype=torch.float64)
    for visible in STRUCTURED:
        output = layer(x, visible=visible)
        assert (output.shape, output.device.type) == ((2, 5, 12), "meta")
    layer.to_empty(device="cpu").reset_parameters()
    assert layer(some_tokens(2, 5)).isfinite().all()


def test_training_lowers_the_loss():
    layer, x = small(dropout=0.1), some_tokens(2, 5)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.01)
    losses = []
    for _ in range(30):
        loss = (layer(x, visible=Causal()) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2


def test_dropout_is_for_training_alone():
    layer, x = small(dropout=0.5), some_tokens(2, 5)
    assert not torch.equal(layer(x), layer(x))
    layer.eval()
    assert torch.equal(layer(x), small()(x))


def test_any_function_of_the_signature_is_a_kernel():
    def first_value(q, k, v, *, visible=None, bias=None, scale=None):
        return v[:, :, :1].expand(*q.shape[:3], v.shape[-1])

    layer, x = MultiHeadAttention(12, 4, kernel=first_value, dtype=torch.float64), some_tokens(2, 5)
    assert_equal(layer(x), layer.W_o(layer.W_v(x[:, :1])).expand(2, 5, 12))


def test_extra_keys_are_no_kernel():
    with pytest.raises(TypeError, match="ExtraKeys are no kernel but part of the layer: pass them as extra_keys="):
        small(ExtraKeys(torch.zeros(2, 1, 5), torch.zeros(2, 1, 7)))


def test_extra_keys_are_the_layers():
    learned = nn.Parameter(torch.ones(2, 1, 5).double()), nn.Parameter(torch.ones(2, 1, 7).double())
    layer = small(extra_keys=[learned, (torch.zeros(2, 3, 5).double(), torch.zeros(2, 3, 7).double())])
    assert {name for name, _ in layer.named_parameters() if "extra" in name} == {
        "extra_keys.0.keys",
        "extra_keys.0.values",
    }
    assert {"extra_keys.1.keys", "extra_keys.1.values"} < set(layer.state_dict())
    trace = layer.trace(some_tokens(2, 5), visible=Causal())
    assert trace.attention.shape == (2, 4, 5, 9)
    assert_equal(trace.attention.sum(dim=-1), torch.ones(2, 4, 5).double())
    assert_equal(naive(trace.queries, trace.keys, trace.values, visible=trace.scores.isfinite()), trace.heads)


@on_a_gpu
def test_on_a_gpu(device, rng):
    """In float32, since mps has no float64: at most twice as far from the reference as on the CPU."""
    weights, inputs = draw(rng), tokens(rng)
    for name in MASKS:
        visible, given = mask_of(name, rng, weights.h)
        expected = row.multi_head(*inputs, weights, visible=visible).output
        errors = []
        for place in ("cpu", device):
            layer = MultiHeadAttention.from_weights(weights, dtype=torch.float32, device=place)
            mask = given.to(place) if isinstance(given, torch.Tensor) else given
            output = layer(*tensors(*inputs, dtype=torch.float32, device=place), visible=mask)
            errors.append(np.linalg.norm(array(output) - expected))
        assert errors[1] <= 2 * errors[0]
