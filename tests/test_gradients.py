"""The backward pass against central differences and against PyTorch's autograd, in both conventions."""

import numpy as np
import pytest
import torch

import mha_tutorial.torch  # noqa: F401  # the first calls of exp and its like are made by one thread there
from mha_tutorial import Causal, ColumnWeights, MultiHeadAttention, Padding, Trace
from mha_tutorial.gradients import Gradients, backward, matmul_vjp
from mha_tutorial.reference import column, row
from tests.helpers import GROUPS, assert_close, in_both_conventions
from tests.layer_helpers import as_dictionary

B, D_MODEL, N, M, D_K, D_V, D_KEY, D_VALUE = 2, 11, 5, 7, 3, 13, 17, 19  # all different, as everywhere
MASKS = {
    "no mask": None,
    "array": np.random.default_rng(3).random((B, 1, M, N)) < 0.6,
    "causal": Causal("bottom-right"),
    "a query that sees nothing": Padding([M, 0]),
}


def draw(rng, h=4, h_kv=4, bias=True):
    weights = ColumnWeights.random(rng, D_MODEL, h, h_kv, d_k=D_K, d_v=D_V, bias=bias).arrays()
    for name, width in (("W_k", D_KEY), ("W_v", D_VALUE)):
        weights[name] = rng.normal(size=(*weights[name].shape[:2], width))
    return ColumnWeights(**weights)


@pytest.fixture
def inputs(rng):
    return rng.normal(size=(B, D_MODEL, N)), rng.normal(size=(B, D_KEY, M)), rng.normal(size=(B, D_VALUE, M))


def transposed(visible):
    return visible.mT if isinstance(visible, np.ndarray) else visible


def in_convention(convention, inputs, weights, output_gradient, visible=None, **options):
    """Forward and backward in one convention; the gradients as columns."""
    laid, laid_weights = convention.lay(*inputs), convention.lay_weights(weights)
    visible = visible if convention.ref is column else transposed(visible)
    score = {"score": convention.ref.dot_product} if options else {}
    trace = convention.ref.multi_head(*laid, laid_weights, visible=visible, **score)
    gradients = backward(convention.lay(output_gradient), trace, *laid, laid_weights, **options)
    if convention.ref is column:
        return gradients
    return Gradients(*(gradient.mT for gradient in gradients[:3]), weights=gradients.weights.T)


def central_difference(loss, array, place, step=1e-5):
    moved = [array.copy(), array.copy()]
    moved[0][place] += step
    moved[1][place] -= step
    return (loss(moved[0]) - loss(moved[1])) / (2 * step)


@pytest.mark.equation("eq-grad-product")
def test_product_rule_entry_by_entry(rng):
    A, B, gradient = rng.normal(size=(2, 3)), rng.normal(size=(3, 5)), rng.normal(size=(2, 5))
    for_A, for_B = matmul_vjp(gradient, A, B)
    for place in np.ndindex(A.shape):  # a step of one is exact: the loss is linear in each factor
        slope = central_difference(lambda A: (gradient * (A @ B)).sum(), A, place, step=1.0)
        assert_close(for_A[place], slope)
    for place in np.ndindex(B.shape):
        slope = central_difference(lambda B: (gradient * (A @ B)).sum(), B, place, step=1.0)
        assert_close(for_B[place], slope)


@pytest.mark.usefixtures("own_messages")
@in_both_conventions
@pytest.mark.parametrize("visible", MASKS.values(), ids=MASKS)
def test_gradients_are_central_differences(convention, visible, inputs, rng):
    weights, output_gradient = draw(rng, h=2, h_kv=1), rng.normal(size=(B, D_MODEL, N))
    found = as_dictionary(in_convention(convention, inputs, weights, output_gradient, visible))
    moved = dict(zip("QKV", inputs, strict=True)) | weights.arrays()
    for name, array in moved.items():

        def loss(changed, name=name):
            now = moved | {name: changed}
            layer = ColumnWeights(**{key: now[key] for key in weights.arrays()})
            trace = column.multi_head(now["Q"], now["K"], now["V"], layer, visible=visible)
            return (output_gradient * trace.output).sum()

        places = [tuple(rng.integers(array.shape)) for _ in range(30)]
        largest = np.abs(found[name] if name != "b_k" else output_gradient).max()  # the key bias has gradient zero
        np.testing.assert_allclose(
            [found[name][place] for place in places],
            [central_difference(loss, array, place) for place in places],
            rtol=1e-6,
            atol=1e-6 * largest,
            err_msg=name,
        )


def torch_gradients(inputs, weights, output_gradient, visible, scale):
    """The same layer written in PyTorch, for columns, and differentiated by it."""
    leaves = {
        name: torch.from_numpy(array).requires_grad_()
        for name, array in (dict(zip("QKV", inputs, strict=True)) | weights.arrays()).items()
    }

    def project(which, tokens):
        projected = leaves[f"W_{which}"] @ leaves[tokens].unsqueeze(1)
        return projected + leaves[f"b_{which}"].unsqueeze(-1) if f"b_{which}" in leaves else projected

    q = project("q", "Q")
    k, v = (
        project(which, tokens).repeat_interleave(weights.group_size, dim=1)
        for which, tokens in (("k", "K"), ("v", "V"))
    )
    scores = k.mT @ q * scale
    if visible is not None:
        mask = visible if isinstance(visible, np.ndarray) else visible.columns(N, M, (B,))
        mask = torch.from_numpy(
            np.broadcast_to(mask if mask.ndim == 4 or mask.ndim == 2 else mask[:, None], scores.shape).copy()
        )
        scores = scores.masked_fill(~mask, -torch.inf)
        fully_masked = ~mask.any(dim=-2, keepdim=True)
        attention = torch.softmax(scores.masked_fill(fully_masked, 0), dim=-2).masked_fill(fully_masked, 0)
    else:
        attention = torch.softmax(scores, dim=-2)
    output = (leaves["W_o"] @ (v @ attention)).sum(dim=1)
    if "b_o" in leaves:
        output = output + leaves["b_o"].unsqueeze(-1)
    (output * torch.from_numpy(output_gradient)).sum().backward()
    return {name: leaf.grad.numpy() for name, leaf in leaves.items()}


@pytest.mark.equation(
    "eq-grad-heads",
    "eq-grad-heads-row",
    "eq-grad-output-weights",
    "eq-grad-output-weights-row",
    "eq-grad-values",
    "eq-grad-values-row",
    "eq-grad-attention",
    "eq-grad-attention-row",
    "eq-grad-scores",
    "eq-grad-scores-row",
    "eq-grad-queries",
    "eq-grad-queries-row",
    "eq-grad-keys",
    "eq-grad-keys-row",
    "eq-grad-weights",
    "eq-grad-weights-row",
    "eq-grad-inputs",
    "eq-grad-inputs-row",
)
@in_both_conventions
@pytest.mark.parametrize("visible", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("bias", [True, False])
def test_gradients_are_those_of_autograd(convention, visible, bias, inputs, rng):
    weights, output_gradient = draw(rng, bias=bias), rng.normal(size=(B, D_MODEL, N))
    found = as_dictionary(in_convention(convention, inputs, weights, output_gradient, visible))
    expected = torch_gradients(inputs, weights, output_gradient, visible, D_K**-0.5)
    assert list(found) == list(expected)
    for name, gradient in expected.items():
        largest = np.abs(gradient if name != "b_k" else output_gradient).max()
        np.testing.assert_allclose(found[name], gradient, rtol=1e-10, atol=1e-10 * largest, err_msg=name)


@in_both_conventions
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
def test_shared_keys_collect_from_all_heads_that_read_them(convention, h, h_kv, inputs, rng):
    weights, output_gradient = draw(rng, h, h_kv), rng.normal(size=(B, D_MODEL, N))
    found = as_dictionary(in_convention(convention, inputs, weights, output_gradient))
    expected = torch_gradients(inputs, weights, output_gradient, None, D_K**-0.5)
    for name, gradient in expected.items():
        largest = np.abs(gradient if name != "b_k" else output_gradient).max()
        np.testing.assert_allclose(found[name], gradient, rtol=1e-10, atol=1e-10 * largest, err_msg=name)


@in_both_conventions
def test_the_scale_is_that_of_the_score(convention, inputs, rng):
    weights, output_gradient = draw(rng), rng.normal(size=(B, D_MODEL, N))
    found = as_dictionary(in_convention(convention, inputs, weights, output_gradient, scale=1.0))
    for name, gradient in torch_gradients(inputs, weights, output_gradient, None, 1.0).items():
        largest = np.abs(gradient if name != "b_k" else output_gradient).max()
        np.testing.assert_allclose(found[name], gradient, rtol=1e-10, atol=1e-10 * largest, err_msg=name)


@in_both_conventions
@pytest.mark.parametrize("value", [np.inf, 1e307])
def test_what_stands_where_no_query_looks_reaches_no_gradient(convention, value, inputs, rng):
    weights, output_gradient = draw(rng, h=4, h_kv=2), rng.normal(size=(B, D_MODEL, N))
    visible = Padding([2, M])
    before = in_convention(convention, inputs, weights, output_gradient, visible)
    Q, K, V = (x.copy() for x in inputs)
    K[0, :, 2:], V[0, :, 2:] = np.nan, value
    after = in_convention(convention, (Q, K, V), weights, output_gradient, visible)
    for name, gradient in as_dictionary(before).items():
        assert np.array_equal(as_dictionary(after)[name], gradient), name


@in_both_conventions
def test_what_a_fully_masked_query_holds_reaches_no_gradient(convention, inputs, rng):
    weights, output_gradient = draw(rng), rng.normal(size=(B, D_MODEL, N))
    visible = np.ones((M, N), dtype=bool)
    visible[:, 1] = False
    before = as_dictionary(in_convention(convention, inputs, weights, output_gradient, visible))
    inputs[0][:, :, 1] = np.nan
    after = as_dictionary(in_convention(convention, inputs, weights, output_gradient, visible))
    for name, gradient in before.items():
        assert np.array_equal(after[name], gradient), name


@in_both_conventions
@pytest.mark.parametrize("spoiled", ["Q", "K", "V", "output_gradient"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_two_texts_in_one_sequence_do_not_spoil_each_other(convention, spoiled, value, inputs, rng):
    """Queries 0, 1 see keys 0, 1, 2 and queries 2, 3, 4 see keys 3 to 6; something is wrong in the first text."""
    weights, arrays = draw(rng), dict(zip("QKV", inputs, strict=True))
    arrays["output_gradient"] = rng.normal(size=(B, D_MODEL, N))
    visible = np.zeros((M, N), dtype=bool)
    visible[:3, :2] = visible[3:, 2:] = True
    before = in_convention(convention, inputs, weights, arrays["output_gradient"], visible)
    arrays[spoiled][..., 1] = value
    *spoiled_inputs, output_gradient = arrays.values()
    after = in_convention(convention, spoiled_inputs, weights, output_gradient, visible)
    for name, first_of_second_text in {"Q": 2, "K": 3, "V": 3}.items():
        found, expected = getattr(after, name), getattr(before, name)
        assert_close(found[..., first_of_second_text:], expected[..., first_of_second_text:])
    assert not np.isfinite(after.weights.W_v).all()


def test_what_a_fully_masked_query_is_blamed_for_reaches_no_value(inputs, rng):
    weights, output_gradient = draw(rng), rng.normal(size=(B, D_MODEL, N))
    visible = np.ones((M, N), dtype=bool)
    visible[:, 1] = False
    trace = column.multi_head(*inputs, weights, visible=visible)
    before = backward(output_gradient, trace, *inputs, weights)
    output_gradient[..., 1] = np.nan
    after = backward(output_gradient, trace, *inputs, weights)
    for name in "QKV":
        assert_close(getattr(after, name), getattr(before, name))


@in_both_conventions
def test_sixteen_bits_are_summed_in_more(convention, rng):
    """A batch of 4096 ones adds up to 4096, where sums of 16 bits stop at 2048."""
    weights, X = ColumnWeights.random(rng, d_model=2, h=1), np.zeros((4096, 2, 1))
    weights = ColumnWeights(**{name: array.astype(np.float16) for name, array in weights.arrays().items()})
    found = in_convention(convention, [X.astype(np.float16)] * 3, weights, np.ones_like(X, dtype=np.float16))
    assert found.weights.b_o.tolist() == [4096, 4096]
    assert {array.dtype for array in as_dictionary(found).values()} == {np.dtype(np.float16)}


def test_sixteen_bits_are_as_good_as_they_can_be(rng):
    """Computed from the same trace in 64 bits and rounded, the gradients differ by roundings only."""
    arrays = ColumnWeights.random(rng, d_model=11, h=2, d_k=3, d_v=5).arrays()
    half = ColumnWeights(**{name: array.astype(np.float16) for name, array in arrays.items()})
    X, dY = (rng.normal(size=(11, 499)).astype(np.float16) for _ in range(2))
    trace = column.multi_head(X, X, X, half)
    exact = backward(
        dY.astype(float),
        Trace(*(step.astype(float) for step in trace)),
        *[X.astype(float)] * 3,
        ColumnWeights(**{name: array.astype(float) for name, array in half.arrays().items()}),
    )
    found = as_dictionary(backward(dY, trace, X, X, X, half))
    for name, gradient in as_dictionary(exact).items():
        if name != "b_k":  # zero but for the rounding of the attention weights
            error = np.linalg.norm(found[name] - gradient)
            assert error <= np.finfo(np.float16).eps * np.linalg.norm(gradient), name


def test_the_key_bias_has_gradient_zero(inputs, rng):
    """It adds one constant to all scores of a query, which softmax does not see."""
    weights = draw(rng)
    trace = column.multi_head(*inputs, weights)
    gradients = backward(rng.normal(size=(B, D_MODEL, N)), trace, *inputs, weights)
    assert np.linalg.norm(gradients.weights.b_k) < 1e-12 * np.linalg.norm(gradients.weights.W_k)


def test_missing_biases_have_no_gradient(inputs, rng):
    weights = draw(rng, bias=False)
    trace = column.multi_head(*inputs, weights)
    gradients = backward(trace.output, trace, *inputs, weights)
    assert list(gradients.weights.arrays()) == ["W_q", "W_k", "W_v", "W_o"]


@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_gradients_are_shaped_like_what_they_belong_to(batch, rng):
    weights, X = ColumnWeights.random(rng, D_MODEL, h=2, d_k=D_K, d_v=D_V), rng.normal(size=(*batch, D_MODEL, N))
    trace = column.multi_head(X, X, X, weights)
    gradients = backward(trace.output, trace, X, X, X, weights)
    assert gradients.Q.shape == gradients.K.shape == gradients.V.shape == X.shape
    assert type(gradients.weights) is ColumnWeights
    for name, array in weights.arrays().items():
        assert gradients.weights.arrays()[name].shape == array.shape


def test_a_batch_adds_up_in_the_weights(rng):
    weights, X = ColumnWeights.random(rng, D_MODEL, h=2, d_k=D_K, d_v=D_V), rng.normal(size=(2, D_MODEL, N))
    dY = rng.normal(size=X.shape)
    together = backward(dY, column.multi_head(X, X, X, weights), X, X, X, weights)
    alone = [
        backward(dy, column.multi_head(x, x, x, weights), x, x, x, weights) for dy, x in zip(dY, X, strict=True)
    ]
    for name, gradient in together.weights.arrays().items():
        assert_close(gradient, alone[0].weights.arrays()[name] + alone[1].weights.arrays()[name])
    assert_close(together.Q, np.stack([alone[0].Q, alone[1].Q]))


def test_nothing_changes_its_inputs(inputs, rng):
    weights = draw(rng)
    trace = column.multi_head(*inputs, weights)
    for array in (*inputs, *trace, *weights.arrays().values()):
        array.flags.writeable = False
    backward(trace.output, trace, *inputs, weights)


@pytest.mark.parametrize(
    ("gradient", "error", "message"),
    [
        (
            np.ones((B, N, D_MODEL)),
            ValueError,
            r"column convention: output_gradient must be like the output, \(2, 11, 5\)",
        ),
        (np.ones((B, D_MODEL, N), dtype=int), TypeError, "output_gradient must hold floating-point numbers"),
        (
            np.ones((B, D_MODEL, N), dtype=np.float32),
            TypeError,
            "the output is float64 but output_gradient is float32",
        ),
    ],
)
def test_gradients_that_do_not_fit_are_refused(gradient, error, message, inputs, rng):
    weights = draw(rng)
    trace = column.multi_head(*inputs, weights)
    with pytest.raises(error, match=message):
        backward(gradient, trace, *inputs, weights)


def test_rows_are_named_in_messages(inputs, rng):
    weights = draw(rng).T
    rows = [x.mT for x in inputs]
    trace = row.multi_head(*rows, weights)
    with pytest.raises(ValueError, match="row convention: output_gradient must be like the output"):
        backward(trace.output.mT, trace, *rows, weights)
    with pytest.raises(ValueError, match="row convention: Q must be"):
        backward(trace.output, trace, inputs[0], *rows[1:], weights)


@pytest.mark.usefixtures("own_messages")
@in_both_conventions
def test_a_trace_of_something_else_is_refused(convention, inputs, rng):
    weights = convention.lay_weights(draw(rng))
    laid = convention.lay(*inputs)
    trace = convention.ref.multi_head(*laid, weights)

    def refused(error, message, trace=trace, laid=laid, weights=weights):
        with pytest.raises(error, match=message):
            backward(trace.output if isinstance(trace, Trace) else laid[0], trace, *laid, weights)

    name = "column" if convention.ref is column else "row"
    refused(
        TypeError, f"{name} convention: trace must be the Trace that multi_head returned, got tuple", tuple(trace)
    )
    refused(
        ValueError,
        r"trace\.queries must be .* for these inputs and weights, got .* Did you mean trace\.T\?",
        trace.T,
    )
    refused(ValueError, r"trace\.queries must be", laid=[x[0] for x in laid])
    shared = convention.lay_weights(draw(rng, h_kv=2))
    refused(ValueError, r"trace\.keys must be .*got [^?]*$", weights=shared)
    single = Trace(*(step.astype(np.float32) for step in trace))
    refused(TypeError, r"weights is float64 but trace\.queries is float32", single)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize("scale", [np.nan, np.inf, "1", [1.0], 1j])
def test_a_scale_is_a_finite_number(scale, inputs, rng):
    weights = draw(rng)
    trace = column.multi_head(*inputs, weights)
    with pytest.raises(ValueError, match="scale must be a finite number"):
        backward(trace.output, trace, *inputs, weights, scale=scale)


def test_a_scale_leaves_the_type_alone(inputs, rng):
    weights = ColumnWeights(**{name: array.astype(np.float32) for name, array in draw(rng).arrays().items()})
    inputs = [x.astype(np.float32) for x in inputs]
    trace = column.multi_head(*inputs, weights)
    scaled = backward(trace.output, trace, *inputs, weights, scale=np.sqrt(1 / D_K))
    for name, gradient in as_dictionary(backward(trace.output, trace, *inputs, weights)).items():
        assert np.array_equal(as_dictionary(scaled)[name], gradient)


@pytest.mark.usefixtures("own_messages")
def test_weights_of_a_layer_are_not_the_layer(inputs, rng):
    layer = MultiHeadAttention(draw(rng))
    trace = layer.trace(*(x.mT for x in inputs))
    with pytest.raises(TypeError, match=r"got MultiHeadAttention\. Did you mean its \.weights\?"):
        backward(trace.output, trace, *(x.mT for x in inputs), layer)
    with pytest.raises(TypeError, match=r"weights must be ColumnWeights or RowWeights, got NoneType\.$"):
        backward(trace.output, trace, *(x.mT for x in inputs), None)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize("shapes", [((2, 7), (2, 4), (5, 7)), ((2, 7), (3, 4), (4, 7)), ((2, 7), (2, 4), (4, 6))])
def test_shapes_that_are_no_product_are_refused(shapes):
    with pytest.raises(ValueError, match=r"^the gradient of a product .* must be \(\.\.\., p, r\), got"):
        matmul_vjp(*map(np.ones, shapes))
