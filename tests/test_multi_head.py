"""The whole layer: columns, rows, loops, the NumPy layer and PyTorch's give the same, at every step."""

import numpy as np
import pytest
import torch

from mha_tutorial import Causal, ColumnWeights, MultiHeadAttention, Padding, RowWeights, Trace
from mha_tutorial.reference import column, loops, row
from tests.helpers import (
    BATCH,
    D_K,
    D_MODEL,
    D_V,
    GROUPS,
    H,
    M,
    N,
    assert_close,
    assert_traces_close,
    in_both_conventions,
)
from tests.layer_helpers import draw

MASKS = {
    "no mask": None,
    "array": np.random.default_rng(5).random((BATCH, H, M, N)) < 0.7,
    "causal": Causal("bottom-right"),
    "causal, other corner, and padding": Causal("top-left") & Padding([M, 2]),
    "nothing to see": Padding([0, 1]),
}


@pytest.fixture
def inputs(rng):
    """Queries, keys and values as columns, in batches, each of its own length and width."""
    return rng.normal(size=(BATCH, D_MODEL, N)), rng.normal(size=(BATCH, 19, M)), rng.normal(size=(BATCH, 23, M))


def transposed(visible):
    return visible.mT if isinstance(visible, np.ndarray) else visible


@pytest.mark.equation("eq-transposition")
@pytest.mark.parametrize("step", Trace._fields)
@pytest.mark.parametrize("visible", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("bias", [True, False])
def test_rows_are_transposed_columns_at_every_step(step, visible, bias, inputs, rng):
    weights = draw(rng, bias=bias)
    by_columns = column.multi_head(*inputs, weights, visible=visible)
    by_rows = row.multi_head(*(x.mT for x in inputs), weights.T, visible=transposed(visible))
    assert_close(getattr(by_rows.T, step), getattr(by_columns, step))


@pytest.mark.equation("eq-transposition")
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
def test_rows_are_transposed_columns_with_shared_key_value_heads(h, h_kv, inputs, rng):
    weights = draw(rng, h, h_kv)
    by_rows = row.multi_head(*(x.mT for x in inputs), weights.T)
    assert_traces_close(by_rows.T, column.multi_head(*inputs, weights))


@pytest.mark.equation("eq-multi-head", "eq-multi-head-row", "eq-projections", "eq-head")
@pytest.mark.equation("eq-projections-row", "eq-head-row")
@in_both_conventions
@pytest.mark.parametrize("visible", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("bias", [True, False])
def test_every_step_is_what_the_loops_give(convention, visible, bias, inputs, rng):
    weights = draw(rng, bias=bias)
    laid = visible if convention.ref is column else transposed(visible)
    trace = convention.ref.multi_head(*convention.lay(*inputs), convention.lay_weights(weights), visible=laid)
    specified = loops.multi_head(*inputs, weights, visible=visible)
    assert_traces_close(trace if convention.ref is column else trace.T, specified)


@in_both_conventions
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
def test_shared_key_value_heads_are_what_the_loops_give(convention, h, h_kv, inputs, rng):
    weights = draw(rng, h, h_kv)
    trace = convention.ref.multi_head(*convention.lay(*inputs), convention.lay_weights(weights))
    assert_traces_close(trace if convention.ref is column else trace.T, loops.multi_head(*inputs, weights))


@pytest.mark.parametrize("visible", MASKS.values(), ids=MASKS)
@pytest.mark.parametrize("bias", [True, False])
def test_layer_is_the_row_reference_at_every_step(visible, bias, inputs, rng):
    weights, rows = draw(rng, bias=bias).T, tuple(x.mT for x in inputs)
    trace = MultiHeadAttention(weights).trace(*rows, visible=transposed(visible))
    assert_traces_close(trace, row.multi_head(*rows, weights, visible=transposed(visible)))


@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
def test_layer_shares_key_value_heads_as_the_reference(h, h_kv, inputs, rng):
    weights, rows = draw(rng, h, h_kv).T, tuple(x.mT for x in inputs)
    assert_traces_close(MultiHeadAttention(weights).trace(*rows), row.multi_head(*rows, weights))


@pytest.mark.equation("eq-concat-is-sum", "eq-concat-is-sum-row", "eq-stack", "eq-stack-row")
@pytest.mark.equation("eq-output-blocks", "eq-output-blocks-row")
@in_both_conventions
@pytest.mark.parametrize("bias", [True, False])
def test_concatenated_output_is_the_sum_over_heads(convention, bias, rng):
    weights, heads = draw(rng, bias=bias), rng.normal(size=(BATCH, H, D_V, N))
    whole = np.concatenate(list(weights.W_o), axis=1)  # [W_1 ... W_H]
    stacked = np.concatenate([heads[:, head] for head in range(H)], axis=1)
    expected = whole @ stacked + (weights.b_o[:, None] if bias else 0)
    laid = convention.lay_weights(weights), convention.lay(heads)
    assert_close(convention.lay(convention.ref.concatenated_output(*laid)), expected)
    assert_close(convention.lay(convention.ref.summed_output(*laid)), expected)


@pytest.mark.equation("eq-whole-layer", "eq-whole-layer-row")
def test_the_whole_layer_is_one_formula(rng):
    layer, X = draw(rng, widths=(D_MODEL,) * 3, bias=False), rng.normal(size=(D_MODEL, N))
    total = np.zeros((D_MODEL, N))
    for W_q, W_k, W_v, W_o in zip(layer.W_q, layer.W_k, layer.W_v, layer.W_o, strict=True):
        exponentials = np.exp((W_k @ X).T @ (W_q @ X) / D_K**0.5)
        total += W_o @ (W_v @ X) @ (exponentials / exponentials.sum(axis=0))
    assert_close(column.multi_head(X, X, X, layer).output, total)
    assert_close(row.multi_head(X.T, X.T, X.T, layer.T).output, total.T)


@pytest.mark.equation("eq-multi-head", "eq-multi-head-row")
@in_both_conventions
def test_one_head_is_attention_between_projections(convention, rng):
    weights, X = draw(rng, h=1, h_kv=1, widths=(D_MODEL,) * 3, bias=False), rng.normal(size=(D_MODEL, N))
    Q, K, V = (W[0] @ X for W in (weights.W_q, weights.W_k, weights.W_v))
    alone = convention.lay(convention.ref.attention(*convention.lay(Q, K, V)))
    laid = convention.lay(X)
    trace = convention.ref.multi_head(laid, laid, laid, convention.lay_weights(weights))
    assert_close(convention.lay(trace.output), weights.W_o[0] @ alone)


@in_both_conventions
def test_heads_may_share_keys_by_copying_them(convention, inputs, rng):
    shared = draw(rng, h=6, h_kv=2)
    copied = shared.arrays() | {
        name: np.repeat(array, 3, axis=0) for name, array in shared.arrays().items() if name[-1] in "kv"
    }
    laid = convention.lay(*inputs)
    outputs = [
        convention.ref.multi_head(*laid, convention.lay_weights(weights)).output
        for weights in (shared, ColumnWeights(**copied))
    ]
    assert_close(*outputs)


@in_both_conventions
def test_any_score_and_batched_masks(convention, rng):
    ref, lay = convention.ref, convention.lay
    weights, X = draw(rng, widths=(D_MODEL,) * 3), rng.normal(size=(BATCH, D_MODEL, N))
    U = rng.normal(size=(2, D_K)), rng.normal(size=(2, D_K))
    score = ref.additive(*lay(*U), rng.normal(size=2))
    together = ref.multi_head(*[lay(X)] * 3, convention.lay_weights(weights), score, Padding([N, 3]))
    for entry, length in enumerate([N, 3]):
        single = lay(X[entry, :, :length])
        alone = ref.multi_head(lay(X[entry]), single, single, convention.lay_weights(weights), score)
        assert_close(together.output[entry], alone.output)


@in_both_conventions
def test_changing_the_future_or_a_hidden_head_changes_nothing(convention, rng):
    weights, X = draw(rng, widths=(D_MODEL,) * 3), rng.normal(size=(D_MODEL, N))
    lay, ref, laid = convention.lay, convention.ref, convention.lay_weights(weights)
    before = lay(ref.multi_head(*[lay(X)] * 3, laid, visible=Causal()).output)
    X[:, 3:] = np.nan
    after = lay(ref.multi_head(*[lay(X)] * 3, laid, visible=Causal()).output)
    assert np.array_equal(after[:, :3], before[:, :3])
    assert np.isnan(after[:, 3:]).all()


@in_both_conventions
def test_infinity_at_a_hidden_position_changes_nothing(convention, rng):
    weights, X = draw(rng, widths=(D_MODEL,) * 3), rng.normal(size=(BATCH, D_MODEL, N))
    lay, ref, laid, visible = convention.lay, convention.ref, convention.lay_weights(weights), Padding([3, N])
    before = ref.multi_head(*[lay(X)] * 3, laid, visible=visible)
    memory = X.copy()
    memory[0, :, 3:] = np.inf
    after = ref.multi_head(lay(X), lay(memory), lay(memory), laid, visible=visible)
    assert np.array_equal(after.output, before.output)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", ["K", "V"])
def test_what_is_not_finite_is_what_the_loops_say(value, place, rng):
    """Seen by some queries and hidden from others: the array code and the loops give NaN to the same."""
    weights, X = draw(rng, widths=(D_MODEL,) * 3), rng.normal(size=(D_MODEL, N))
    K, V = rng.normal(size=(2, D_MODEL, M))
    {"K": K, "V": V}[place][4, 3] = value
    visible = rng.random((H, M, N)) < 0.6
    visible[:, :3, 0] = False
    specified = loops.multi_head(X, K, V, weights, visible=visible)
    for trace in (
        column.multi_head(X, K, V, weights, visible=visible),
        MultiHeadAttention(weights).trace(X.T, K.T, V.T, visible=visible.mT).T,
    ):
        for step in ("scores", "attention", "heads", "output"):
            assert_close(getattr(trace, step), getattr(specified, step))


def test_loops_take_empty_batches_and_keep_the_type(rng):
    single = ColumnWeights(
        **{name: a.astype(np.float32) for name, a in draw(rng, widths=(D_MODEL,) * 3).arrays().items()}
    )
    X = np.ones((2, 0, D_MODEL, N), dtype=np.float32)
    trace = loops.multi_head(X, X, X, single)
    assert trace.output.shape == (2, 0, D_MODEL, N)
    assert {step.dtype for step in trace} == {np.dtype(np.float32)}


def test_hidden_values_too_large_to_multiply_give_no_warning(rng):
    weights, X = draw(rng, widths=(D_MODEL,) * 3), rng.normal(size=(D_MODEL, N))
    memory = X.copy()
    memory[:, -1] = 1.7e308
    visible = Padding(N - 1)
    for trace in (
        column.multi_head(X, memory, memory, weights, visible=visible),
        loops.multi_head(X, memory, memory, weights, visible=visible),
        MultiHeadAttention(weights).trace(X.T, memory.T, visible=visible).T,
    ):
        assert_close(trace.output, column.multi_head(X, X, X, weights, visible=visible).output)


def test_overflow_where_no_query_looks_gives_no_warning():
    """All terms of the sums have one sign, so that they overflow and do not cancel."""
    ones = RowWeights(*[np.ones((1, 4, 4))] * 4)
    q, memory = np.ones((1, 4)), np.stack([np.ones(4), np.full(4, 1.7e308)])
    for trace in (
        row.multi_head(q, memory, memory, ones, visible=Padding(1)),
        MultiHeadAttention(ones).trace(q, memory, visible=Padding(1)),
        column.multi_head(q.T, memory.T, memory.T, ones.T, visible=Padding(1)).T,
    ):
        assert trace.output.tolist() == [[16.0] * 4]


@in_both_conventions
def test_overflow_of_hidden_scores_gives_no_warning(convention):
    Q, K, V = np.array([[1e200]]), np.array([[1e200, 1.0]]), np.array([[7.0, 8.0]])
    visible = np.array([[False], [True]])
    average = convention.ref.attention(*convention.lay(Q, K, V), visible=convention.lay(visible))
    assert average.tolist() == [[8.0]]


def test_loops_give_no_warning_for_single_precision_overflow():
    ones = ColumnWeights(*[np.ones((1, 2, 2), dtype=np.float32)] * 4)
    memory = np.array([[1, 3e38], [1, 3e38]], dtype=np.float32)
    trace = loops.multi_head(memory[:, :1], memory, memory, ones, visible=Padding(1))
    assert trace.output.tolist() == [[4.0], [4.0]]


def test_loops_take_large_scores_and_no_keys_at_all(rng):
    weights, X = draw(rng, widths=(D_MODEL,) * 3), 100 * rng.normal(size=(D_MODEL, N))
    assert_traces_close(loops.multi_head(X, X, X, weights), column.multi_head(X, X, X, weights))
    empty = np.ones((D_MODEL, 0))
    assert_traces_close(loops.multi_head(X, empty, empty, weights), column.multi_head(X, empty, empty, weights))


def test_layer_follows_its_weights(rng):
    first, second = (RowWeights.random(rng, d_model=12, h=3) for _ in range(2))
    layer, x = MultiHeadAttention(first), rng.normal(size=(N, 12))
    layer(x)
    layer.weights = second
    assert np.array_equal(layer(x), MultiHeadAttention(second)(x))
    second.W_v[:] *= 2
    layer.weights = second.T  # packed anew
    assert isinstance(layer.weights, RowWeights)
    assert_close(layer(x), row.multi_head(x, x, x, second).output)


def test_layer_hides_infinity_too(rng):
    weights, x = RowWeights.random(rng, d_model=12, h=3), rng.normal(size=(N, 12))
    layer, memory = MultiHeadAttention(weights), x.copy()
    memory[3:] = np.inf
    assert np.array_equal(layer(x, memory, visible=Padding(3)), layer(x, x, visible=Padding(3)))


def test_a_batched_mask_for_one_pair_of_heads_axes(inputs, rng):
    """A structured mask with batch axes gets an axis for the heads; a boolean array is taken as it is."""
    weights = draw(rng)
    structured = column.multi_head(*inputs, weights, visible=Padding([3, 5]))
    array = Padding([3, 5]).columns(N, M, batch=(BATCH,))[:, None]
    assert_traces_close(structured, column.multi_head(*inputs, weights, visible=array))


@pytest.mark.equation("eq-residual-update", "eq-residual-update-row")
@in_both_conventions
@pytest.mark.parametrize("named", ["dot_product", "scaled_dot_product"])
def test_residual_attention_adds_what_the_heads_write(convention, named, rng):
    weights, X = draw(rng, widths=(D_MODEL,) * 3, bias=False), rng.normal(size=(D_MODEL, N))
    lay, ref = convention.lay, convention.ref
    trace = ref.residual_attention(lay(X), convention.lay_weights(weights), score=getattr(ref, named))
    expected = X.copy()
    for W_q, W_k, W_v, W_o in zip(weights.W_q, weights.W_k, weights.W_v, weights.W_o, strict=True):
        scores = (W_k @ X).T @ (W_q @ X) / (D_K**0.5 if named == "scaled_dot_product" else 1)
        expected += W_o @ W_v @ X @ column.softmax(scores)
    assert_close(lay(trace.output), expected)


@in_both_conventions
def test_residual_attention_scores_by_the_plain_inner_product(convention, rng):
    weights, X = draw(rng, widths=(D_MODEL,) * 3), rng.normal(size=(D_MODEL, N))
    lay, ref, laid = convention.lay, convention.ref, convention.lay_weights(weights)
    plain = ref.residual_attention(lay(X), laid)
    assert_traces_close(plain, ref.residual_attention(lay(X), laid, score=ref.dot_product))


def test_layer_takes_either_convention_and_defaults_keys_and_values(rng):
    weights = ColumnWeights.random(rng, d_model=12, h=3)
    layer, x, memory = MultiHeadAttention(weights), rng.normal(size=(N, 12)), rng.normal(size=(M, 12))
    assert np.array_equal(layer(x), MultiHeadAttention(weights.T)(x, x, x))
    assert np.array_equal(layer(x, memory), layer(x, memory, memory))
    assert not np.allclose(layer(x, memory, memory), layer(x, memory, 2 * memory))
    assert np.array_equal(layer.trace(x, memory).output, layer(x, memory))


def test_layer_takes_another_score(rng):
    weights, x = RowWeights.random(rng, d_model=12, h=3), rng.normal(size=(N, 12))
    layer = MultiHeadAttention(weights, score=row.gaussian(2.0))
    assert_traces_close(layer.trace(x), row.multi_head(x, x, x, weights, score=row.gaussian(2.0)))


def test_shapes_of_the_batched_example(rng):
    layer = MultiHeadAttention(RowWeights.random(rng, d_model=512, h=8))
    trace = layer.trace(rng.normal(size=(2, 10, 512)))
    assert trace.output.shape == (2, 10, 512)
    assert trace.attention.shape == (2, 8, 10, 10)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_types_are_kept(dtype, rng):
    arrays = {name: array.astype(dtype) for name, array in draw(rng, widths=(D_MODEL,) * 3).arrays().items()}
    weights, X = ColumnWeights(**arrays), rng.normal(size=(D_MODEL, N)).astype(dtype)
    for trace in (
        column.multi_head(X, X, X, weights, visible=Causal()),
        row.multi_head(X.T, X.T, X.T, weights.T, visible=Causal()),
        MultiHeadAttention(weights).trace(X.T, visible=Causal()),
    ):
        assert {step.dtype for step in trace} == {np.dtype(dtype)}


def test_nothing_changes_its_inputs(inputs, rng):
    weights = draw(rng)
    visible = np.ones((M, N), dtype=bool)
    for array in (*inputs, visible, *weights.arrays().values()):
        array.flags.writeable = False
    column.multi_head(*inputs, weights, visible=visible)
    row.multi_head(*(x.mT for x in inputs), weights.T, visible=visible.T)
    loops.multi_head(*inputs, weights, visible=visible)
    MultiHeadAttention(weights)(*(x.mT for x in inputs), visible=visible.T)


def torch_layer(weights: RowWeights) -> torch.nn.MultiheadAttention:
    """PyTorch's layer with the same weights; it stores every matrix transposed, (out, in)."""
    d_model, h = weights.d_model, weights.h
    same_width = weights.widths == (d_model,) * 3
    layer = torch.nn.MultiheadAttention(
        d_model, h, batch_first=True, dtype=torch.float64, kdim=weights.widths[1], vdim=weights.widths[2]
    )
    stored = [np.concatenate(list(W), axis=1).T for W in (weights.W_q, weights.W_k, weights.W_v)]
    names = ["q_proj_weight", "k_proj_weight", "v_proj_weight"]
    state = {"in_proj_weight": np.concatenate(stored)} if same_width else dict(zip(names, stored, strict=True))
    state["in_proj_bias"] = np.concatenate([b.reshape(-1) for b in (weights.b_q, weights.b_k, weights.b_v)])
    state["out_proj.weight"] = np.concatenate(list(weights.W_o), axis=0).T
    state["out_proj.bias"] = weights.b_o
    layer.load_state_dict({name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in state.items()})
    return layer.eval()


@pytest.mark.equation("eq-stored-transpose")
def test_torch_stores_the_matrices_of_the_column_convention(rng):
    weights, x = RowWeights.random(rng, d_model=D_MODEL, h=1, d_k=D_K, d_v=D_V), rng.normal(size=(N, D_MODEL))
    linear = torch.nn.Linear(D_MODEL, D_K, dtype=torch.float64)
    linear.weight.data, linear.bias.data = torch.from_numpy(weights.T.W_q[0]), torch.from_numpy(weights.b_q[0])
    stored = linear.weight.detach().numpy()
    queries = linear(torch.from_numpy(x)).detach().numpy()
    assert_close(queries, x @ stored.T + weights.b_q[0])
    assert_close(queries, row.multi_head(x, x, x, weights).queries[0])


@pytest.mark.parametrize("widths", [(21, 21, 21), (21, 19, 23)], ids=["one width", "three widths"])
@pytest.mark.parametrize("visible", [None, Causal("top-left"), Padding([M, 2])], ids=["all", "causal", "padding"])
def test_layer_equals_torch(widths, visible, rng):
    """Where `nn.MultiheadAttention` can express it: d_k = d_v = d_model / h, one key-value head each."""
    d_model, h = 21, 3
    weights = ColumnWeights.random(rng, d_model, h).arrays()
    weights |= {
        name: rng.normal(size=(h, 7, width)) for name, width in zip(("W_q", "W_k", "W_v"), widths, strict=True)
    }
    layer = MultiHeadAttention(ColumnWeights(**weights))
    q, k, v = (rng.normal(size=(BATCH, length, width)) for length, width in zip((N, M, M), widths, strict=True))
    trace = layer.trace(q, k, v, visible=visible)
    ignored = None
    if visible is not None:  # (b h, n, m), with the heads of one sequence together, and True = ignore
        rows = np.broadcast_to(visible.rows(N, M, batch=(BATCH,)), (BATCH, N, M))
        ignored = torch.from_numpy(~np.repeat(rows, h, axis=0))
    with torch.no_grad():
        output, attention = torch_layer(layer.weights)(
            *(torch.from_numpy(x) for x in (q, k, v)), attn_mask=ignored, average_attn_weights=False
        )
    assert_close(trace.output, output.numpy())
    assert_close(trace.attention, attention.numpy())
