"""What the public functions refuse, and the sentence they say about it."""

import re

import numpy as np
import pytest

from mha_tutorial import Causal, ColumnWeights, Mask, MultiHeadAttention, RowWeights
from mha_tutorial.reference import column, loops, row
from tests.helpers import D_K, D_MODEL, D_V, M, N

pytestmark = pytest.mark.usefixtures("own_messages")

X, MEMORY = np.ones((D_MODEL, N)), np.ones((D_MODEL, M))
WEIGHTS = ColumnWeights.random(np.random.default_rng(0), D_MODEL, h=3, d_k=D_K, d_v=D_V)


def refused(error, sentence):
    """The block must raise this error, with a message that starts with this sentence."""
    return pytest.raises(error, match="^" + re.escape(sentence))


def test_a_transposed_input_is_recognised():
    wrong = X.T
    as_columns = (
        f"column convention: X must be (d_model, n) with d_model={D_MODEL}, got {wrong.shape}. Did you mean X.T?"
    )
    with refused(ValueError, as_columns):
        column.multi_head(wrong, wrong, wrong, WEIGHTS)
    with refused(ValueError, as_columns):
        column.multi_head(X.T, X.T, X.T, WEIGHTS)  # three views of one array
    with refused(ValueError, as_columns):
        loops.multi_head(wrong, wrong, wrong, WEIGHTS)
    as_rows = f"row convention: X must be (n, d_model) with d_model={D_MODEL}, got {X.shape}. Did you mean X.T?"
    with refused(ValueError, as_rows):
        row.multi_head(X, X, X, WEIGHTS.T)
    with refused(ValueError, as_rows):
        MultiHeadAttention(WEIGHTS)(X)


def test_different_inputs_are_named_one_by_one():
    width = f"with d_model={D_MODEL}, got"
    with refused(ValueError, f"column convention: Q must be (d_model, n) {width} {X.T.shape}. Did you mean Q.T?"):
        column.multi_head(X.T, MEMORY, MEMORY, WEIGHTS)
    with refused(
        ValueError, f"column convention: K must be (d_model, m) {width} {MEMORY.T.shape}. Did you mean K.T?"
    ):
        column.multi_head(X, MEMORY.T, MEMORY, WEIGHTS)
    with refused(ValueError, f"row convention: V must be (m, d_model) {width} {MEMORY.shape}. Did you mean V.T?"):
        row.multi_head(X.T, MEMORY.T, MEMORY, WEIGHTS.T)


def test_equal_contents_are_not_one_input():
    with refused(ValueError, "column convention: Q must be"):
        column.multi_head(X.T, X.T.copy(), X.T.copy(), WEIGHTS)
    with refused(ValueError, "column convention: Q must be"):
        column.multi_head(X.T, X.T, X.T.copy(), WEIGHTS)


def test_a_width_of_its_own_is_not_called_d_model():
    mixed = ColumnWeights(**WEIGHTS.arrays() | {"W_k": np.ones((3, D_K, 19)), "W_v": np.ones((3, D_V, 23))})
    with refused(
        ValueError, f"column convention: K must be (d_in, m) with d_in=19 as W_k reads it, got {MEMORY.shape}."
    ):
        column.multi_head(X, MEMORY, MEMORY, mixed)
    with refused(
        ValueError, f"column convention: X must be (d_in, n) with d_in=19 as W_k reads it, got {X.shape}."
    ):
        column.multi_head(X, X, X, mixed)


def test_no_transpose_is_suggested_where_one_projection_would_refuse_it():
    mixed = ColumnWeights(**WEIGHTS.arrays() | {"W_k": np.ones((3, D_K, N))})
    with pytest.raises(ValueError, match=re.escape(f"with d_in={N} as W_k reads it, got {X.shape}.") + "$"):
        column.multi_head(X, X, X, mixed)


def test_no_transpose_is_suggested_where_none_helps():
    with pytest.raises(ValueError, match=re.escape(f"with d_model={D_MODEL}, got (3, 2).") + "$"):
        column.multi_head(*[np.ones((3, 2))] * 3, WEIGHTS)


def test_batches_are_transposed_with_mT():
    batch = np.ones((2, D_MODEL, N))
    with refused(
        ValueError, f"row convention: X must be (..., n, d_model) with d_model={D_MODEL}, got {batch.shape}"
    ):
        row.multi_head(batch, batch, batch, WEIGHTS.T)
    with pytest.raises(ValueError, match=r"Did you mean X\.mT\?$"):
        row.multi_head(batch, batch, batch, WEIGHTS.T)


def test_weights_of_the_other_convention():
    hint = "Did you mean weights.T?"
    with refused(TypeError, f"column convention: weights must be ColumnWeights, got RowWeights. {hint}"):
        column.multi_head(X, X, X, WEIGHTS.T)
    with refused(TypeError, f"row convention: weights must be RowWeights, got ColumnWeights. {hint}"):
        row.summed_output(WEIGHTS, np.ones((3, N, D_V)))
    with pytest.raises(TypeError, match=r"weights must be RowWeights, got list\.$"):
        MultiHeadAttention([])


@pytest.mark.parametrize("ref", [column, row])
def test_arrays_must_be_floating_arrays_of_two_axes(ref):
    speaker, good = f"{ref.__name__.rpartition('.')[2]} convention:", np.ones((2, 2))
    with refused(TypeError, f"{speaker} K must be a plain NumPy array, got list"):
        ref.attention(good, [[1.0]], good)
    with refused(
        TypeError, f"{speaker} Q must hold floating-point numbers, got int64; convert it with Q.astype(float)"
    ):
        ref.attention(good.astype(int), good, good)
    with refused(TypeError, f"{speaker} V must hold floating-point numbers, got bool"):
        ref.attention(good, good, good > 0)
    with refused(TypeError, f"{speaker} scores must hold floating-point numbers, got int64"):
        ref.softmax(good.astype(int))
    with refused(ValueError, f"{speaker} Q must have at least two axes, got shape (2,)"):
        ref.attention(good[0], good, good)
    with refused(ValueError, f"{speaker} Q and V must have the same leading axes, got shapes (2, 2) and (1, 2, 2)"):
        ref.attention(good, good, good[None])


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("kind", [np.matrix, np.ma.masked_array])
def test_arrays_with_rules_of_their_own_are_refused(kind):
    other, good = kind(np.ones((2, 2))), np.ones((2, 2))
    with pytest.raises(TypeError, match="Q must be a plain NumPy array, got"):
        row.attention(other, good, good)
    with pytest.raises(
        TypeError, match=r"visible must be a boolean array \(True = may be attended\), got MaskedArray"
    ):
        row.attention(good, good, good, visible=np.ma.masked_array(good > 0))
    with pytest.raises(TypeError, match="W_k must be a plain NumPy array"):
        ColumnWeights(**WEIGHTS.arrays() | {"W_k": np.ma.masked_array(WEIGHTS.W_k)})


def test_complex_numbers_are_not_told_to_drop_their_imaginary_part():
    with pytest.raises(TypeError, match=r"got complex128$"):
        row.attention(np.ones((2, 2), dtype=complex), np.ones((2, 2)), np.ones((2, 2)))


def test_vectors_without_numbers_cannot_be_compared():
    with refused(ValueError, "column convention: Q (d_k, n) and K (d_k, m) must share d_k, at least 1"):
        column.attention(np.ones((0, 2)), np.ones((0, 3)), np.ones((1, 3)))


@pytest.mark.parametrize("ref", [column, row])
@pytest.mark.parametrize("named", ["dot_product", "scaled_dot_product", "additive", "gaussian", "weigh"])
def test_both_arguments_are_checked(ref, named):
    good = np.ones((2, 2))
    make = {"additive": lambda: ref.additive(good, good, good[0]), "gaussian": lambda: ref.gaussian(1.0)}
    call = make[named]() if named in make else getattr(ref, named)
    first, second = "VA" if named == "weigh" else "QK"
    with pytest.raises(TypeError, match=f"{first} must hold floating-point numbers, got int64"):
        call(good.astype(int), good)
    with pytest.raises(TypeError, match=f"{second} must hold floating-point numbers, got int64"):
        call(good, good.astype(int))


@pytest.mark.parametrize("ref", [column, row])
def test_types_are_not_mixed(ref):
    speaker, good = f"{ref.__name__.rpartition('.')[2]} convention:", np.ones((2, 2))
    advice = "convert one of them, since no type is changed silently"
    with refused(TypeError, f"{speaker} Q is float64 but K is float32; {advice}"):
        ref.attention(good, good.astype(np.float32), good)
    with refused(TypeError, f"{speaker} Q is float64 but the score is float32; {advice}"):
        ref.attention(good, good, good, lambda Q, K: (Q + K).astype(np.float32))


def test_one_input_that_is_no_floating_array_is_called_X():
    with refused(TypeError, "column convention: X must be a plain NumPy array, got list"):
        column.multi_head(*[[[1.0]]] * 3, WEIGHTS)
    with refused(TypeError, "column convention: X must hold floating-point numbers, got int64"):
        column.multi_head(*[X.astype(int)] * 3, WEIGHTS)
    with refused(TypeError, "column convention: weights is float64 but X is float32"):
        column.multi_head(*[X.astype(np.float32)] * 3, WEIGHTS)


def test_inner_products_need_one_width():
    Q, K = np.ones((D_K, N)), np.ones((D_V, M))
    rule = "Q (d_k, n) and K (d_k, m) must share d_k, at least 1, got shapes"
    as_columns = f"column convention: {rule} {Q.shape} and {K.shape}"
    with refused(ValueError, as_columns):
        column.dot_product(Q, K)
    with refused(ValueError, as_columns):
        column.scaled_dot_product(Q, K)
    with refused(ValueError, as_columns):
        column.attention(Q, K, K)
    with refused(ValueError, "row convention: Q (n, d_k) and K (m, d_k) must share d_k, at least 1, got shapes"):
        row.dot_product(Q.T, K.T)


def test_every_key_needs_a_value():
    K, V = np.ones((D_MODEL, M)), np.ones((D_MODEL, M - 1))
    rule = "K and V must hold the same number m of tokens, got"
    as_columns = f"column convention: {rule} m={M} in K {K.shape} and m={M - 1} in V {V.shape}"
    with refused(ValueError, as_columns):
        column.attention(X, K, V)
    with refused(ValueError, as_columns):
        column.multi_head(X, K, V, WEIGHTS)
    with refused(ValueError, f"row convention: {rule} m={M} in K {K.T.shape}"):
        row.multi_head(X.T, K.T, V.T, WEIGHTS.T)


@pytest.mark.parametrize(
    ("visible", "kind"),
    [(np.ones((N, M), dtype=int), "int64"), (np.ones((N, M)), "float64"), ([[True]], "list"), (Causal, "type")],
)
def test_masks_must_be_boolean(visible, kind):
    sentence = (
        f"row convention: visible must be a boolean array (True = may be attended), got {kind}. If 1 means attend"
    )
    with refused(TypeError, sentence):
        row.multi_head(X.T, MEMORY.T, MEMORY.T, WEIGHTS.T, visible=visible)
    with refused(TypeError, sentence):
        row.attention(X.T, MEMORY.T, MEMORY.T, visible=visible)
    with refused(TypeError, sentence):
        row.hide(np.ones((N, M)), visible)


def test_masks_must_have_two_axes():
    for ref, axes in ((column, "(m, n)"), (row, "(n, m)")):
        with pytest.raises(
            ValueError, match=re.escape(f"at least two axes {axes}, got shape ({N},); with one axis it")
        ):
            ref.hide(np.ones((N, N)), np.ones(N, dtype=bool))


def test_masks_must_broadcast_to_the_scores():
    scores, rule = np.ones((M, N)), "does not broadcast to the scores,"
    with refused(
        ValueError, f"column convention: visible of shape {(N, M)} {rule} (..., m, n) = {(M, N)}. Did you mean"
    ):
        column.hide(scores, np.ones((N, M), dtype=bool))
    with refused(ValueError, f"row convention: visible of shape {(2, N, M)} {rule} (..., n, m) = {(N, M)}."):
        row.hide(scores.T, np.ones((2, N, M), dtype=bool))
    with pytest.raises(ValueError, match=r"\(3, 5, 7\)\.$"):  # no transpose is suggested
        row.multi_head(X.T, MEMORY.T, MEMORY.T, WEIGHTS.T, visible=np.ones((2, 2), dtype=bool))


def test_a_missing_axis_for_the_heads_is_noticed():
    x, per_sequence = np.ones((2, N, D_MODEL)), np.ones((2, N, N), dtype=bool)
    with pytest.raises(
        ValueError, match=re.escape("Did you mean visible[..., None, :, :], with an axis for the heads?")
    ):
        row.multi_head(x, x, x, WEIGHTS.T, visible=per_sequence)


def test_a_batch_of_masks_is_transposed_with_mT():
    with pytest.raises(ValueError, match=r"Did you mean visible\.mT\?$"):
        row.hide(np.ones((2, N, M)), np.ones((2, M, N), dtype=bool))


def test_masks_of_ones_own_are_checked():
    class Wrong(Mask):
        def rows(self, n, m, batch=()):
            return np.ones((7, n, m), dtype=bool)

    with refused(ValueError, f"row convention: visible of shape {(7, N, M)} does not broadcast to the scores"):
        row.hide(np.ones((N, M)), Wrong())


def test_structured_masks_keep_their_own_messages():
    with refused(ValueError, f"Causal: with {N} queries and {M} keys the alignment must be stated"):
        column.multi_head(X, MEMORY, MEMORY, WEIGHTS, visible=Causal())


def test_scores_must_be_one_number_per_key_and_query():
    Q, K, rule = np.ones((D_K, N)), np.ones((D_K, M)), "the score must return one number per key and query"
    with refused(ValueError, f"column convention: {rule}, (..., m, n) = {(M, N)}, got {(N, M)}."):
        column.attention(Q, K, K, lambda Q, K: Q.T @ K)
    with refused(ValueError, f"row convention: {rule}, (..., n, m) = {(N, M)}, got <class 'float'>."):
        row.attention(Q.T, K.T, K.T, lambda Q, K: 1.0)


@pytest.mark.parametrize("bias", [np.ones((M, N), dtype=int), np.ones((M, N), dtype=bool), 1.0])
def test_biases_must_be_floating_arrays(bias):
    kind = getattr(bias, "dtype", "float")
    with refused(
        TypeError, f"column convention: bias must be a floating array that is added to the scores, got {kind}."
    ):
        column.biased(column.dot_product, bias)


def test_biases_must_have_two_axes_and_broadcast():
    Q, K = np.ones((D_K, N)), np.ones((D_K, M))
    with refused(ValueError, f"column convention: bias must have at least two axes (m, n), got shape ({N},)"):
        column.biased(column.dot_product, np.ones(N) / 2)
    for ref, q, k in ((column, Q, K), (row, Q.T, K.T)):
        turned = ref.biased(ref.dot_product, ref.dot_product(q, k).T / 2)
        with pytest.raises(ValueError, match=r": bias of shape \(\d, \d\) does not broadcast .*mean bias\.T\?$"):
            ref.attention(q, k, k, turned)


def test_a_bias_is_kept_as_it_was():
    bias = np.full((M, N), 0.5)
    score = column.biased(column.dot_product, bias)
    bias[:] = np.nan
    assert np.isfinite(score(np.ones((D_K, N)), np.ones((D_K, M)))).all()


@pytest.mark.parametrize("bandwidth", [0, -1.0, np.inf, np.nan, "1", np.ones(2)])
def test_bandwidths_must_be_positive_numbers(bandwidth):
    for ref in (column, row):
        with refused(ValueError, "bandwidth must be a positive number, got"):
            ref.gaussian(bandwidth)


def test_a_bandwidth_of_numpys_leaves_the_type_alone():
    x = np.ones((2, 3), dtype=np.float32)
    assert row.gaussian(np.sqrt(2))(x, x).dtype == np.float32


def test_gaussian_compares_vectors_of_one_width():
    with refused(ValueError, "row convention: Q (n, d_k) and K (m, d_k) must share d_k"):
        row.gaussian(1.0)(np.ones((2, 1)), np.ones((2, 3)))


def test_bilinear_matrix_must_fit():
    Q, K, W = np.ones((2, N)), np.ones((3, M)), np.ones((3, 2))
    rule = "column convention: W (d_k, d_q) must fit Q (d_q, n) and K (d_k, m), got shapes"
    with refused(ValueError, f"{rule} (2, 3), {Q.shape} and {K.shape}"):
        column.bilinear(W.T)(Q, K)
    rule = "row convention: W (d_q, d_k) must fit Q (n, d_q) and K (m, d_k), got shapes"
    with refused(ValueError, f"{rule} (3, 2), {Q.T.shape} and {K.T.shape}"):
        row.bilinear(W)(Q.T, K.T)
    with refused(TypeError, "row convention: Q is float64 but W is float32"):
        row.bilinear(W.T.astype(np.float32))(Q.T, K.T)
    with refused(ValueError, "row convention: W must have two axes, got shape (1, 3, 2)"):
        row.bilinear(W[None])
    with refused(TypeError, "column convention: W must hold floating-point numbers, got int64"):
        column.bilinear(np.ones((3, 2), dtype=int))


def test_additive_parts_must_fit():
    U_q, U_k, u = np.ones((2, D_K)), np.ones((2, D_K)), np.ones(2)
    rule = "U_q (d, d_q), U_k (d, d_k) and u (d,) must share d, got shapes"
    for parts in (
        (U_q, U_k, np.ones(1)),
        (np.ones((3, D_K)), U_k, u),
        (U_q.T, U_k.T, u),
        (U_q, U_k, np.ones((2, 1))),
    ):
        with refused(
            ValueError, f"column convention: {rule} {parts[0].shape}, {parts[1].shape} and {parts[2].shape}"
        ):
            column.additive(*parts)
    with refused(TypeError, "column convention: u must be a plain NumPy array, got list"):
        column.additive(U_q, U_k, [1.0, 1.0])
    with refused(
        ValueError, f"row convention: K must be as wide as U_k {U_k.T.shape} reads it, {D_K}, got shape (4, 3)"
    ):
        row.additive(U_q.T, U_k.T, u)(np.ones((4, D_K)), np.ones((4, 3)))
    for name, widths in (("Q", (3, D_K)), ("K", (D_K, 3))):
        with refused(
            ValueError, f"column convention: {name} must be as wide as U_{name.lower()} {U_q.shape} reads"
        ):
            column.additive(U_q, U_k, u)(*(np.ones((width, 4)) for width in widths))
    with refused(TypeError, "row convention: Q is float32 but U_q is float64"):
        row.additive(U_q.T, U_k.T, u)(*[np.ones((4, D_K), dtype=np.float32)] * 2)


@pytest.mark.parametrize("bias", [np.zeros((2, 2)), np.array([[0.0, 2.0]]), np.array([[0.0, -np.inf]])])
def test_biases_that_cannot_be_a_mask_of_ones_give_no_warning(bias):
    row.biased(row.dot_product, bias)


@pytest.mark.parametrize("heads", [np.ones((3, D_V)), np.ones((2, D_V, N)), np.ones((3, N, D_V))])
@pytest.mark.parametrize("output", [column.concatenated_output, column.summed_output])
def test_heads_must_fit_the_output_projection(heads, output):
    expected = f"column convention: heads must be (..., h, d_v, n) with h=3 and d_v={D_V}, got {heads.shape}"
    with refused(ValueError, expected):
        output(WEIGHTS, heads)


def test_heads_must_be_of_the_weights_type():
    with refused(TypeError, "column convention: weights is float64 but heads is float32"):
        column.summed_output(WEIGHTS, np.ones((3, D_V, N), dtype=np.float32))


def test_a_residual_needs_an_output_as_wide_as_the_input():
    narrow = ColumnWeights(**WEIGHTS.arrays() | {"W_o": np.ones((3, 2, D_V)), "b_o": np.ones(2)})
    sentence = (
        "column convention: the output is added to X, so it must be as wide; "
        f"W_o writes d_model=2 numbers and X {X.shape} holds {D_MODEL}"
    )
    with refused(ValueError, sentence):
        column.residual_attention(X, narrow)


def test_layer_refuses_what_the_reference_refuses():
    layer, x = MultiHeadAttention(RowWeights.random(np.random.default_rng(0), d_model=12, h=3)), np.ones((N, 12))
    with refused(TypeError, "row convention: X must hold floating-point numbers, got int64"):
        layer(x.astype(int))
    with refused(ValueError, "row convention: K and V must hold the same number m of tokens"):
        layer(x, x, x[1:])
    with refused(ValueError, "row convention: Q and K must have the same leading axes"):
        layer(x, x[None])
    with refused(ValueError, f"row convention: visible of shape (1, {N + 1}) does not broadcast"):
        layer(x, visible=np.ones((1, N + 1), dtype=bool))
