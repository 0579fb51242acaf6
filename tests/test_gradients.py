"""The backward pass against central differences and against PyTorch's autograd, in both conventions."""

import numpy as np
import pytest
import torch

import mha_tutorial.torch  # noqa: F401  # the first calls of exp and its like are made by one thread there
from mha_tutorial import Causal, ColumnWeights, Padding
from mha_tutorial.gradients import Gradients, backward, through_product
from mha_tutorial.reference import column, row
from tests.helpers import GROUPS, assert_close, in_both_conventions

B, D_MODEL, N, M, D_K, D_V = 2, 5, 3, 4, 2, 3  # small: every entry is moved twice
MASKS = {
    "no mask": None,
    "array": np.random.default_rng(3).random((B, 1, M, N)) < 0.6,
    "causal": Causal("bottom-right"),
    "a query that sees nothing": Padding([M, 0]),
}


def draw(rng, h=3, h_kv=3, bias=True):
    weights = ColumnWeights.random(rng, D_MODEL, h, h_kv, d_k=D_K, d_v=D_V, bias=bias).arrays()
    for name, width in (("W_k", 6), ("W_v", 7)):
        weights[name] = rng.normal(size=(*weights[name].shape[:2], width))
    return ColumnWeights(**weights)


@pytest.fixture
def inputs(rng):
    return rng.normal(size=(B, D_MODEL, N)), rng.normal(size=(B, 6, M)), rng.normal(size=(B, 7, M))


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


def as_dictionary(gradients):
    return dict(zip("QKV", gradients[:3], strict=True)) | gradients.weights.arrays()


def central_differences(loss, array, step=1e-5):
    differences = np.zeros_like(array)
    for place in np.ndindex(array.shape):
        moved = [array.copy(), array.copy()]
        moved[0][place] += step
        moved[1][place] -= step
        differences[place] = (loss(moved[0]) - loss(moved[1])) / (2 * step)
    return differences


@pytest.mark.equation("eq-grad-product")
def test_product_rule_entry_by_entry(rng):
    A, B, gradient = rng.normal(size=(2, 3)), rng.normal(size=(3, 5)), rng.normal(size=(2, 5))
    for_A, for_B = through_product(gradient, A, B)
    assert_close(
        for_A, central_differences(lambda A: (gradient * (A @ B)).sum(), A, step=1.0)
    )  # exact: it is linear
    assert_close(for_B, central_differences(lambda B: (gradient * (A @ B)).sum(), B, step=1.0))


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
            return (
                output_gradient * column.multi_head(now["Q"], now["K"], now["V"], layer, visible=visible).output
            ).sum()

        expected = central_differences(loss, array)
        largest = np.abs(expected if name != "b_k" else output_gradient).max()  # the key bias has gradient zero
        np.testing.assert_allclose(found[name], expected, rtol=1e-6, atol=1e-6 * largest, err_msg=name)


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
        project(which, tokens).repeat_interleave(weights.group, dim=1) for which, tokens in (("k", "K"), ("v", "V"))
    )
    scores = k.mT @ q * scale
    if visible is not None:
        mask = visible if isinstance(visible, np.ndarray) else visible.columns(N, M, (B,))
        mask = torch.from_numpy(
            np.broadcast_to(mask if mask.ndim == 4 or mask.ndim == 2 else mask[:, None], scores.shape).copy()
        )
        scores = scores.masked_fill(~mask, -torch.inf)
        blind = ~mask.any(dim=-2, keepdim=True)
        attention = torch.softmax(scores.masked_fill(blind, 0), dim=-2).masked_fill(blind, 0)
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
def test_what_stands_where_no_query_looks_reaches_no_gradient(convention, inputs, rng):
    weights, output_gradient = draw(rng, h=4, h_kv=2), rng.normal(size=(B, D_MODEL, N))
    visible = Padding([2, M])
    before = in_convention(convention, inputs, weights, output_gradient, visible)
    Q, K, V = (x.copy() for x in inputs)
    K[0, :, 2:], V[0, :, 2:] = np.nan, np.inf
    after = in_convention(convention, (Q, K, V), weights, output_gradient, visible)
    for name, gradient in as_dictionary(before).items():
        assert np.array_equal(as_dictionary(after)[name], gradient), name


@in_both_conventions
def test_what_a_blind_query_holds_reaches_no_gradient(convention, inputs, rng):
    weights, output_gradient = draw(rng), rng.normal(size=(B, D_MODEL, N))
    visible = np.ones((M, N), dtype=bool)
    visible[:, 1] = False
    before = as_dictionary(in_convention(convention, inputs, weights, output_gradient, visible))
    inputs[0][:, :, 1] = np.nan
    after = as_dictionary(in_convention(convention, inputs, weights, output_gradient, visible))
    for name, gradient in before.items():
        assert np.array_equal(after[name], gradient), name


def test_the_key_bias_has_gradient_zero(inputs, rng):
    """It adds one constant to all scores of a query, which softmax does not see."""
    weights = draw(rng)
    trace = column.multi_head(*inputs, weights)
    gradients = backward(rng.normal(size=(B, D_MODEL, N)), trace, *inputs, weights)
    assert np.abs(gradients.weights.b_k).max() < 1e-12 * np.abs(gradients.weights.W_k).max()


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
            r"column convention: output_gradient must be like the output, \(2, 5, 3\)",
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
