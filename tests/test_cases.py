"""Faults people met in other code, restated: the smallest input that shows each, and the right value.

The values are rounded to eight decimals. Each test fails when its fault is put into the package;
`tests/edits.toml` says with which edit, and `make edits` makes them.
"""

import re

import numpy as np
import pytest

from mha_tutorial import Causal, ColumnWeights, MultiHeadAttention, RowWeights, masks
from mha_tutorial.examples.shards import shard
from mha_tutorial.gradients import backward
from mha_tutorial.layouts import dump, load
from mha_tutorial.reference import column, row
from tests.helpers import CAUSAL_RESULT, rotated, sines
from tests.layer_helpers import passing_on

HALF = np.sqrt(0.5)


def assert_rounds_to(actual, expected):
    np.testing.assert_array_equal(np.round(actual, 8), expected, strict=True)


@pytest.fixture
def three_tokens():
    """Three queries, keys and values of width two, in one head of one sequence."""
    return sines(1, 1, 3, 2), sines(1, 1, 3, 2, a=0.9), sines(1, 1, 3, 2, a=2.1)


@pytest.fixture
def two_queries():
    """Two queries that meet three keys and values of width two."""
    return sines(1, 1, 2, 2), sines(1, 1, 3, 2, a=0.9), sines(1, 1, 3, 2, a=2.1)


def test_mask_polarity():
    """A01: one boolean mask, read as *attend* and as *ignore* (pytorch issue 170400)."""
    q = np.array([[1.0, 0.0], [0.0, 1.0]])
    k = np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])
    v = np.array([[1.0], [2.0], [4.0]])
    mask = np.array([[True, False, True], [False, False, True]])
    # attend: keys 1 and 3 score alike for query 1, (1 + 4) / 2; query 2 sees key 3 alone
    assert_rounds_to(row.attention(q, k, v, visible=mask), np.array([[2.5], [4.0]]))
    # ignore: query 1 sees key 2 alone; query 2 weighs keys 1 and 2 by 1 and exp(sqrt(1/2))
    expected = (1 + 2 * np.exp(HALF)) / (1 + np.exp(HALF))
    visible = masks.visible_from_ignored(mask)
    assert_rounds_to(row.attention(q, k, v, visible=visible), np.array([[2.0], [expected.round(8)]]))
    assert_rounds_to(column.attention(q.T, k.T, v.T, visible=visible.T), np.array([[2.0, 1.66976155]]))


def test_float_mask_is_additive(three_tokens, own_messages):
    """A02: a float triangle of ones and zeros hides nothing (pytorch issue 21518)."""
    triangle = np.tril(np.ones((3, 3)))
    with pytest.raises(TypeError, match=r"visible must be a boolean array .* got float64"):
        row.attention(*three_tokens, visible=triangle)
    with pytest.warns(UserWarning, match="a bias of 0 and 1 is added to the scores and hides nothing"):
        score = row.biased(row.scaled_dot_product, triangle)
    added = np.array([[0.16736686, 0.48053278], [-0.20091915, 0.04903479], [0.11364831, 0.03196105]])
    assert_rounds_to(row.attention(*three_tokens, score=score), added[None, None])
    wanted = row.attention(*three_tokens, visible=triangle.astype(bool))
    assert_rounds_to(wanted, CAUSAL_RESULT[None, None])


def test_masks_of_two_kinds_merge(three_tokens):
    """A03: boolean causal and float padding, the first key padded away (pytorch issue 92554)."""
    ignored = ~Causal().rows(3, 3)
    padding = np.array([[-np.inf, 0.0, 0.0]])
    visible = masks.visible_from_ignored(ignored) & masks.visible_from_bias(padding[:, None, None, :])
    # query 1 is left with nothing, query 2 with key 2 alone
    expected = np.array([[0.0, 0.0], [-0.99, 0.4], [-0.09539871, -0.39773364]])
    assert_rounds_to(row.attention(*three_tokens, visible=visible), expected[None, None])


def test_query_that_sees_nothing():
    """A05: a query without a key gets zero, not NaN, and its neighbour is untouched (pytorch issue 41508)."""
    q = np.array([[1.0, 0.5], [-0.5, 2.0]])
    k = np.array([[0.2, 1.0], [1.0, -1.0]])
    v = np.array([[1.0, 2.0], [3.0, 5.0]])
    visible = np.array([[True, True], [False, False]])
    weights = row.softmax(row.hide(row.scaled_dot_product(q, k), visible))
    assert_rounds_to(weights, np.array([[0.53529653, 0.46470347], [0.0, 0.0]]))
    assert_rounds_to(row.attention(q, k, v, visible=visible), np.array([[1.92940694, 3.39411041], [0.0, 0.0]]))


def test_gradients_through_a_query_that_sees_nothing():
    """A05, backward: its gradients are zero, and what its neighbour gives is untouched."""
    q, k = np.array([[1.0, 0.5], [-0.5, 2.0]]), np.array([[0.2, 1.0], [1.0, -1.0]])
    v, eye = np.array([[1.0, 2.0], [3.0, 5.0]]), np.eye(2)[None]
    weights, output_gradient = RowWeights(eye, eye, eye, eye), np.array([[1.0, -1.0], [2.0, 3.0]])
    visible = np.array([[True, True], [False, False]])
    gradients = backward(output_gradient, row.multi_head(q, k, v, weights, visible=visible), q, k, v, weights)
    assert_rounds_to(gradients.Q, np.array([[-0.1407166, 0.3517915], [0.0, 0.0]]))
    assert_rounds_to(gradients.K, np.array([[0.17589575, 0.08794787], [-0.17589575, -0.08794787]]))
    assert_rounds_to(gradients.V, np.array([[0.53529653, -0.53529653], [0.46470347, -0.46470347]]))
    trace = column.multi_head(q.T, k.T, v.T, weights.T, visible=visible.T)
    by_columns = backward(output_gradient.T, trace, q.T, k.T, v.T, weights.T)
    assert_rounds_to(by_columns.Q, np.array([[-0.1407166, 0.0], [0.3517915, 0.0]]))


def test_hidden_nan_does_not_leak(two_queries):
    """A07: a hidden key holds NaN and its value infinity (pytorch issue 101967)."""
    q, k, v = two_queries
    k[..., 1, 0], v[..., 1, 1] = np.nan, np.inf
    visible = np.array([[True, False, True]])
    expected = np.array([[[[0.41996893, 0.34763004], [0.53424458, -0.61469118]]]])
    assert_rounds_to(row.attention(q, k, v, visible=visible), expected)
    assert_rounds_to(column.attention(q.mT, k.mT, v.mT, visible=visible.T).mT, expected)


def test_causal_alignment():
    """A08: the triangle starts at the first key or ends at the last (pytorch issue 108108)."""
    k, v = sines(5, 2), np.arange(5.0)[:, None]
    two, one = np.zeros((2, 2)), np.zeros((1, 2))  # zero queries: the plain mean of what is visible
    assert_rounds_to(row.attention(two, k, v, visible=Causal("top-left")), np.array([[0.0], [0.5]]))
    assert_rounds_to(row.attention(two, k, v, visible=Causal("bottom-right")), np.array([[1.5], [2.0]]))
    assert_rounds_to(row.attention(one, k, v, visible=Causal("top-left")), np.array([[0.0]]))
    assert_rounds_to(row.attention(one, k, v, visible=Causal("bottom-right")), np.array([[2.0]]))


def test_hiding_is_not_a_large_negative_number():
    """A09: visible scores below any finite fill, and fills that overflow in half precision."""
    q, k, v = np.array([[200.0]]), np.array([[-100.0], [0.0]]), np.array([[1.0], [9.0]])
    assert row.attention(q, k, v, visible=np.array([[True, False]])).tolist() == [[1.0]]
    scores = np.array([[-16.5, 0.25], [-16.5, 0.25]], dtype=np.float16)
    visible = Causal().rows(2, 2) & np.array([[False, True]])  # the first key is padding
    weights = row.softmax(row.hide(scores, visible))
    assert (weights @ np.array([[3.0], [7.0]], dtype=np.float16)).tolist() == [[0.0], [7.0]]


def test_every_way_to_the_output_is_masked():
    """A11: the causal mask was dropped where scores were asked for (keras issue 23038)."""
    W_q, W_k, W_v, W_o = (sines(4, 4, a=0.7 + 0.2 * i, b=0.1 * i) for i in range(4))
    b_q, b_k, b_v, b_o = (sines(4, a=1.1 + 0.3 * i, b=0.2) for i in range(4))
    by_head = [W.reshape(2, 2, 4) for W in (W_q, W_k, W_v)]  # rows are outputs: two for each head
    biases = [b.reshape(2, 2) for b in (b_q, b_k, b_v)]
    layer = MultiHeadAttention(ColumnWeights(*by_head, W_o.reshape(4, 2, 2).swapaxes(0, 1), *biases, b_o))
    x = sines(1, 3, 4)
    expected = np.array(
        [
            [
                [-1.346477, -1.520452, -1.498627, 1.657623],
                [0.19489724, -0.65077633, -2.2250616, 0.1013091],
                [0.30834227, -0.36914836, -2.07525461, -0.04090587],
            ]
        ]
    )
    assert_rounds_to(layer(x, visible=Causal()), expected)
    trace = layer.trace(x, visible=Causal())
    assert_rounds_to(trace.output, expected)
    assert_rounds_to(trace.attention[0, 0, 1], np.array([0.36954892, 0.63045108, 0.0]))
    assert_rounds_to(row.multi_head(x, x, x, layer.weights, visible=Causal()).output, expected)
    changed = x.copy()
    changed[:, 2] += 1.0
    assert np.array_equal(layer(changed, visible=Causal())[:, :2], layer(x, visible=Causal())[:, :2])


def test_masking_comes_before_softmax():
    """A10: weights put to zero after the softmax no longer sum to one (huggingface timm PR 2236)."""
    q, k, v = np.ones((3, 1)), np.array([[0.0], [1.0], [4.0]]), np.array([[10.0], [20.0], [40.0]])
    # query 2 weighs keys 1 and 2 by 1 and e: (10 + 20 e) / (1 + e)
    expected = np.array([[10.0], [17.31058579], [38.55331278]])
    assert_rounds_to(row.attention(q, k, v, visible=Causal()), expected)
    weights = row.softmax(row.hide(row.scaled_dot_product(q, k), Causal()))
    assert_rounds_to(weights.sum(axis=1), np.ones(3))


def test_head_axis_of_a_mask_is_the_first():
    """A12: as many heads as queries and keys, and a mask that differs between heads (equinox PR 190)."""
    q, k, v = sines(2, 2, 2), sines(2, 2, 2, a=0.9), sines(2, 2, 2, a=2.1)
    visible = np.array([[[True, False], [True, True]], [[False, True], [True, True]]])
    expected = np.array([[[0.39, 0.6], [-0.51358257, 0.469046]], [[0.42, 0.57], [0.49515237, -0.16743259]]])
    assert_rounds_to(row.attention(q, k, v, visible=visible), expected)
    x, weights = passing_on(q, k, v)
    assert_rounds_to(row.multi_head(*x, weights, visible=visible).heads, expected)
    assert_rounds_to(MultiHeadAttention(weights).trace(*x, visible=visible).heads, expected)


def test_softmax_runs_over_the_keys(two_queries):
    """A13: two queries and three keys, where the other axis gives other numbers (labml issue 146)."""
    q, k, v = two_queries
    weights = np.array([[0.56276846, 0.33184219, 0.10538935], [0.16531296, 0.31353576, 0.52115128]])
    output = np.array([[-0.04791824, 0.3650086], [0.05633939, -0.2965492]])
    assert_rounds_to(row.softmax(row.scaled_dot_product(q, k)), weights[None, None])
    assert_rounds_to(row.attention(q, k, v), output[None, None])
    assert_rounds_to(column.attention(q.mT, k.mT, v.mT), output.T[None, None])


SCALED_RESULT = np.array(
    [[-0.72527922, 0.47061224, 0.25466698, -0.72331613], [0.27097777, 0.53104543, -0.8020232, 0.27939356]]
)


def test_scale_is_the_root_of_one_heads_width():
    """A14: two heads of width 4 in a model of width 8, where the roots of 8, of 2 and no root differ."""
    q, k, v = 2 * sines(2, 2, 4), 2 * sines(2, 3, 4, a=0.9), sines(2, 3, 4, a=2.1)
    second = np.array(
        [[0.15698786, 0.52974027, -0.69672611, 0.17294216], [0.36089268, 0.52438484, -0.89511492, 0.37932945]]
    )
    expected = np.stack([SCALED_RESULT, second])
    assert_rounds_to(row.attention(q, k, v), expected)
    x, weights = passing_on(q, k, v)
    assert weights.widths[0] == 8
    assert_rounds_to(row.multi_head(*x, weights).heads, expected)
    assert_rounds_to(MultiHeadAttention(weights).trace(*x).heads, expected)


def test_queries_scaled_already_take_the_unscaled_score():
    """A15: scaled before and scaled again is scaled twice (transformers issue 38277)."""
    q, k, v = 2 * sines(2, 4), 2 * sines(3, 4, a=0.9), sines(3, 4, a=2.1)
    assert_rounds_to(row.attention(q / np.sqrt(4), k, v, score=row.dot_product), SCALED_RESULT)
    assert_rounds_to(row.attention(q, k, v), SCALED_RESULT)


def test_heads_are_merged_token_by_token():
    """A16: [1 2] [3 4] from head 1 and [5 6] [7 8] from head 2 (transformer-from-scratch PR 6)."""
    heads = np.arange(1.0, 9.0).reshape(2, 2, 2)
    keep = RowWeights(*[np.ones((2, 1, 2))] * 3, W_o=np.eye(4).reshape(2, 2, 4))  # W_o is the identity
    expected = np.array([[1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]])
    for output in (row.concatenated_output, row.summed_output):
        assert_rounds_to(output(keep, heads), expected)
    for output in (column.concatenated_output, column.summed_output):
        assert_rounds_to(output(keep.T, heads.mT), expected.T)


def test_values_may_be_wider_than_keys():
    """A25: keys of width 3 and values of width 5; the scale is that of the keys (flash-attention-jax PR 15)."""
    q, k, v = sines(2, 2, 3), sines(2, 4, 3, a=0.9), sines(2, 4, 5, a=2.1)
    expected = np.array(
        [
            [
                [0.28171959, 0.16885541, -0.44932753, 0.28313292, 0.15861675],
                [0.12256261, -0.11321782, -0.00773343, 0.11770743, -0.11496345],
            ],
            [
                [0.00365361, -0.14514223, 0.14455502, -0.00267122, -0.14519926],
                [-0.47735806, 0.19424364, 0.28269141, -0.48040548, 0.20078557],
            ],
        ]
    )
    assert_rounds_to(row.attention(q, k, v), expected)
    x, weights = passing_on(q, k, v)
    assert_rounds_to(row.multi_head(*x, weights).heads, expected)
    assert_rounds_to(column.multi_head(*(t.T for t in x), weights.T).heads.mT, expected)


def test_heads_that_do_not_divide_the_width():
    """A26: refused with both numbers, unless the head's width is chosen (pytorch issue 28719)."""
    with pytest.raises(ValueError, match=re.escape("d_model (10) must be divisible by h (4)")):
        ColumnWeights.random(np.random.default_rng(0), d_model=10, h=4)
    assert ColumnWeights.random(np.random.default_rng(0), d_model=10, h=4, d_k=3, d_v=3).h == 4


def test_neighbouring_query_heads_share_a_key_value_head():
    """A28: four query heads on two key-value heads read 0, 0, 1, 1 (onnx PR 7274)."""
    q, k, v = sines(4, 2, 2), sines(2, 3, 2, a=0.9), sines(2, 3, 2, a=2.1)
    expected = np.array(
        [
            [[-0.04791824, 0.3650086], [0.05633939, -0.2965492]],
            [[0.11364831, 0.03196105], [-0.23601406, 0.21887692]],
            [[0.28546934, -0.1379813], [-0.44203009, 0.25815405]],
            [[0.28024503, -0.34538997], [-0.1322808, 0.2293711]],
        ]
    )
    x, weights = passing_on(q, k, v)
    assert weights.h_kv == 2
    assert_rounds_to(row.multi_head(*x, weights).heads, expected)
    assert_rounds_to(column.multi_head(*(t.T for t in x), weights.T).heads.mT, expected)
    assert_rounds_to(MultiHeadAttention(weights).trace(*x).heads, expected)


def test_a_chunk_sees_what_is_cached():
    """A29: three new tokens behind two cached ones, a mask of three by five (llama issue 899)."""
    q, k, v = sines(5, 2), sines(5, 2, a=0.9), sines(5, 2, a=2.1)
    expected = np.array([[0.11364831, 0.03196105], [-0.12602064, 0.27774948], [0.22118266, -0.17555323]])
    assert_rounds_to(row.attention(q[2:], k, v, visible=Causal("bottom-right")), expected)
    assert_rounds_to(column.attention(q[2:].T, k.T, v.T, visible=Causal("bottom-right")).T, expected)
    full = row.attention(q, k, v, visible=Causal())
    for start in range(5):
        for end in range(start + 1, 6):
            chunk = row.attention(q[start:end], k[:end], v[:end], visible=Causal("bottom-right"))
            np.testing.assert_allclose(chunk, full[start:end], rtol=1e-12)


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_output_bias_is_added_once_by_any_number_of_ranks(ranks):
    """A32: every rank added the whole bias before the sum (text-generation-inference issue 1036)."""
    heads = sines(2, 2, 2).swapaxes(0, 1)  # of two tokens, each four features in two heads
    W_o, b_o = sines(3, 4, a=0.7).T.reshape(2, 2, 3), np.array([1.0, 2.0, 3.0])
    projections = np.ones((2, 1, 2))
    weights = RowWeights(projections, projections, projections, W_o, *np.zeros((3, 2, 2)), b_o)
    parts = np.split(heads, ranks)
    total = sum(row.summed_output(shard(weights, rank, ranks), parts[rank]) for rank in range(ranks))
    assert_rounds_to(total, np.array([[1.617, 1.9185, 2.5204], [2.1343, 0.7734, 4.1768]]))


def test_views_give_what_their_copies_give():
    """A33: transposed, reversed and expanded views, none of them densely packed (pytorch issue 112577)."""
    q, k, v = (sines(2, 3, 2, 4, a=a).transpose(0, 2, 1, 3) for a in (1.3, 0.9, 2.1))
    q, v = np.asfortranarray(q), v[..., ::-1]
    visible = np.triu(np.ones((3, 3), dtype=bool)).T
    expected = row.attention(*(x.copy(order="C") for x in (q, k, v)), visible=visible.copy(order="C"))
    result = row.attention(q, k, v, visible=np.broadcast_to(visible, (2, 2, 3, 3)))
    np.testing.assert_allclose(result, expected, rtol=1e-12)
    # the first token sees itself alone, so its result is its value
    assert_rounds_to(result[0, 0, 0], np.array([0.4, -0.99, 0.6, 0.39]))
    assert_rounds_to(result[1, 1, 2, 2:], np.array([0.2051799, -0.03173668]))
    assert_rounds_to(result.sum(), np.float64(2.44024597))


def test_types_that_do_not_belong_together_are_refused(three_tokens, own_messages):
    """A34: a tokenizer's integer mask, and two floating types in one product (pytorch issue 99012)."""
    q, k, v = three_tokens
    with pytest.raises(
        TypeError, match=r"visible must be a boolean array .* got int64\. If 1 means attend, .* if 1 means ignore"
    ):
        row.attention(q, k, v, visible=np.array([[1, 1, 0]] * 3))
    with pytest.raises(TypeError, match="Q is float64 but K is float32"):
        row.attention(q, k.astype(np.float32), v)
    single = [x.astype(np.float32) for x in three_tokens]
    bias = masks.bias_from_visible(Causal().rows(3, 3))  # float64, and cast to the scores' float32
    output = row.attention(*single, score=row.biased(row.scaled_dot_product, bias))
    assert output.dtype == np.float32
    assert np.array_equal(output, row.attention(*single, visible=Causal()))


def test_heads_side_by_side_are_heads_one_by_one_and_rows_are_transposed_columns():
    """A35: one (d, d) projection is h projections (d2l-en issue 2056), and W X is the transpose of X W."""
    X = sines(3, 4)
    W_q, W_k, W_v = (sines(2, 2, 4, a=a) for a in (0.7, 0.9, 1.1))
    W_o = sines(4, 4, a=1.3, b=0.1).reshape(4, 2, 2).transpose(1, 0, 2)  # blocks (4, 2) of (out, in)
    weights = ColumnWeights(W_q, W_k, W_v, W_o)
    expected = np.array(
        [
            [1.27187824, -1.7760945, -2.94511711, -0.96639192],
            [-2.49712449, -1.80254076, 0.8018877, 2.54462622],
            [-2.37202853, -1.62340111, 0.84700543, 2.40602999],
        ]
    )
    assert_rounds_to(column.multi_head(X.T, X.T, X.T, weights).output, expected.T)
    assert_rounds_to(row.multi_head(X, X, X, weights.T).output, expected)
    assert_rounds_to(MultiHeadAttention(weights)(X), expected)


def test_stored_matrices_are_turned_once():
    """A18: weights stored (out, in) and read as (in, out), which a square matrix allows (LLMs-from-scratch 857)."""
    stored = {
        "W_q.weight": np.array([[1.0, 2.0], [3.0, 4.0]]),
        "W_k.weight": np.array([[0.5, -1.0], [2.0, 0.0]]),
        "W_v.weight": np.array([[1.0, 0.0], [5.0, 1.0]]),
        "W_o.weight": np.array([[0.0, 1.0], [2.0, 3.0]]),
    }
    x = np.array([[[1.0, 0.0], [0.0, 1.0], [0.5, -1.0]]])
    expected = np.array([[[4.39361757, 15.0040725], [4.4883813, 15.31866062], [1.03092828, 3.11977282]]])
    weights = load(stored, "d2l", h=1)
    assert_rounds_to(row.multi_head(x, x, x, weights.T).output, expected)
    assert_rounds_to(column.multi_head(x.mT, x.mT, x.mT, weights).output, expected.mT)
    wide = {"values.weight": sines(4, 2), "output.weight": np.eye(4)}  # not square: one token passes through
    wide |= {"queries.weight": sines(1, 2), "keys.weight": sines(1, 2)}
    x = sines(1, 3, 2)
    tokens = np.array([[1.1322, -0.8562, 0.3285, 0.2874], [-0.8562, 0.866, -0.6218, 0.2052]])
    values = row.multi_head(x, x, x, load(wide, "linear", h=1).T).values
    assert_rounds_to(values[0, 0, :2], tokens)


FUSED_BIAS = sines(12, a=0.9)
OUT, OUT_BIAS, THREE = sines(4, 4, a=2.1), sines(4, a=0.3), sines(1, 3, 4, a=0.77)


def test_conv1d_stores_in_out():
    """A19: GPT-2's square c_proj copied unturned, and attn.bias, a mask, beside it (AutoGPTQ PR 139)."""
    stored = {
        "attn.c_attn.weight": sines(4, 12),
        "attn.c_attn.bias": FUSED_BIAS,
        "attn.c_proj.weight": OUT,
        "attn.c_proj.bias": OUT_BIAS,
        "attn.bias": np.tril(np.ones((1, 1, 3, 3))),
        "attn.masked_bias": np.array(-1e4),
    }
    weights = load(stored, "gpt2", h=2, prefix="attn.")
    as_torch = dump(weights, "torch")
    assert_rounds_to(as_torch["in_proj_weight"][[0, 4, 11]], sines(4, 12).T[[0, 4, 11]])
    assert_rounds_to(as_torch["in_proj_weight"][4], np.array([-0.63, 0.71, -0.78, 0.85]))
    assert_rounds_to(as_torch["in_proj_bias"], FUSED_BIAS)
    assert_rounds_to(as_torch["out_proj.weight"][1], np.array([0.6, -1.0, 0.44, 0.54]))
    assert_rounds_to(as_torch["out_proj.bias"], OUT_BIAS)
    expected = np.array(
        [
            [
                [0.857547, -0.027078, 1.047528, 1.412933],
                [0.84002762, 0.03841676, 0.99896862, 1.39678916],
                [0.88809361, -0.01657266, 1.00646591, 1.44380266],
            ]
        ]
    )
    assert_rounds_to(row.multi_head(THREE, THREE, THREE, weights.T, visible=Causal()).output, expected)


def test_thirds_of_a_packed_matrix():
    """A20: rows 0:4 are the queries', 4:8 the keys', 8:12 the values' (transformers PR 40257)."""
    stored = {"in_proj_weight": sines(12, 4), "in_proj_bias": FUSED_BIAS}
    stored |= {"out_proj.weight": OUT, "out_proj.bias": OUT_BIAS}
    weights = load(stored, "torch", h=2)
    assert_rounds_to(weights.W_q[1], np.array([[-0.98, -0.45, 0.74, 0.85], [-0.29, -1.0, -0.25, 0.87]]))
    assert_rounds_to(weights.W_k[0], np.array([[0.71, -0.49, -0.97, -0.03], [0.95, 0.54, -0.66, -0.9]]))
    assert_rounds_to(weights.W_v[1], np.array([[0.85, -0.29, -1.0, -0.25], [0.87, 0.71, -0.49, -0.97]]))
    assert_rounds_to(weights.b_k, np.array([[-0.76, -0.98], [-0.46, 0.4]]))
    expected = np.array(
        [
            [
                [1.67630065, -0.9669456, 1.22223179, 2.15624198],
                [1.5075861, 0.1891013, 0.18382534, 2.08014407],
                [1.88127279, -0.99756223, 1.04738109, 2.36820137],
            ]
        ]
    )
    assert_rounds_to(row.multi_head(THREE, THREE, THREE, weights.T).output, expected)


def test_queries_keys_and_values_head_by_head():
    """A21: q, k, v of one head, then those of the next; the shapes are those of A20 (vllm PR 53114)."""
    stored = {"query_key_value.weight": sines(12, 4), "query_key_value.bias": FUSED_BIAS}
    stored |= {"dense.weight": OUT, "dense.bias": OUT_BIAS}
    weights = load(stored, "neox", h=2)
    as_torch = dump(weights, "torch")
    order = [0, 1, 6, 7, 2, 3, 8, 9, 4, 5, 10, 11]
    assert_rounds_to(as_torch["in_proj_weight"], sines(12, 4)[order])
    in_blocks = [0.39, 0.96, -0.46, 0.4, 0.81, 0.04, 0.97, 0.8, -0.76, -0.98, 0.02, -0.77]
    assert_rounds_to(as_torch["in_proj_bias"], np.array(in_blocks))
    expected = np.array(
        [
            [
                [-1.09398771, 1.18030839, 1.77303402, -0.54501059],
                [-0.40635053, 0.34338873, 1.95407809, 0.11078422],
                [-1.12272477, 1.23910252, 1.74056459, -0.57072026],
            ]
        ]
    )
    assert_rounds_to(row.multi_head(THREE, THREE, THREE, weights.T).output, expected)


def test_kdim_and_vdim_are_widths_of_inputs():
    """A22: three matrices in place of one, and heads as wide as before (pytorch issue 95712)."""
    stored = {"q_proj_weight": sines(4, 4, a=0.7), "k_proj_weight": sines(4, 3, a=0.8)}
    stored |= {"v_proj_weight": sines(4, 5, a=1.7), "out_proj.weight": sines(4, 4, a=1.9)}
    stored |= {"in_proj_bias": np.concatenate([sines(4, a=a) for a in (0.2, 0.3, 0.5)])}
    stored |= {"out_proj.bias": sines(4, a=0.6)}
    weights = load(stored, "torch-separate", h=2)
    q, k, v = sines(1, 2, 4), sines(1, 3, 3, a=0.9), sines(1, 3, 5, a=2.1)
    expected = np.array(
        [[[1.44940717, 2.9839838, 1.02759168, -1.32632332], [0.79653865, 0.04113308, 0.19181553, 1.21270113]]]
    )
    assert_rounds_to(row.multi_head(q, k, v, weights.T).output, expected)


def test_heads_need_not_share_out_the_width():
    """A27: two heads of key width 2 and value width 4 in a model of width 3 (keras issue 21219)."""
    stored = {
        "query/kernel": sines(3, 2, 2, a=0.7),
        "query/bias": sines(2, 2, a=0.2),
        "key/kernel": sines(3, 2, 2, a=0.8),
        "key/bias": sines(2, 2, a=0.3),
        "value/kernel": sines(3, 2, 4, a=1.7),
        "value/bias": sines(2, 4, a=0.5),
        "attention_output/kernel": sines(2, 4, 3, a=1.9),
        "attention_output/bias": sines(3, a=0.6),
    }
    weights = load(stored, "keras")
    flat = dump(weights, "linear")
    W_q = [[0.39, -0.06, -0.28], [0.89, -0.69, 0.4], [0.97, -0.99, 0.9], [0.6, -0.83, 0.97]]
    assert_rounds_to(flat["queries.weight"], np.array(W_q))
    assert_rounds_to(flat["keys.weight"][3], np.array([0.33, -0.28, 0.22]))
    assert_rounds_to(flat["values.weight"][[0, 7]], np.array([[0.39, 0.99, 0.62], [-0.26, 0.69, 0.97]]))
    W_o = [0.39, -0.18, -0.69, -0.98, -0.94, -0.59, -0.04, 0.51]
    assert_rounds_to(flat["output.weight"][0], np.array(W_o))
    x = sines(1, 2, 3)
    expected = np.array([[[-2.10488643, 3.4982906, 1.78385813], [-1.82685359, 3.33640745, 1.61016764]]])
    assert_rounds_to(row.multi_head(x, x, x, weights.T).output, expected)
    narrow = ColumnWeights(*[weights.W_q] * 3, weights.W_q.mT)
    with pytest.raises(ValueError, match=re.escape("d_model is always h·d there, but d_model=3 (W_q) and h·d=4")):
        dump(narrow, "torch")


def test_stored_key_value_heads_belong_to_neighbours():
    """A28, stored: two key-value heads side by side, for query heads 0, 1 and for 2, 3 (axlearn PR 842)."""
    q, k, v = sines(4, 2, 2), sines(2, 3, 2, a=0.9), sines(2, 3, 2, a=2.1)
    x, weights = passing_on(q, k, v)
    stored = dump(weights, "linear")
    assert stored["keys.weight"].tolist() == np.eye(4).tolist()
    loaded = load(stored, "linear", h=4)
    assert (loaded.h, loaded.h_kv) == (4, 2)
    heads = row.multi_head(*x, loaded.T).heads
    assert_rounds_to(heads[1:3, 0], np.array([[0.11364831, 0.03196105], [0.28546934, -0.1379813]]))


def test_rotary_pairs_side_by_side_or_half_a_head_apart():
    """A30: rows of W_q and W_k in Meta's order and in that of transformers (transformers issue 25199)."""
    stored = {"wq.weight": sines(8, 3, a=0.7), "wk.weight": sines(8, 3, a=1.6)}
    stored |= {"wv.weight": sines(8, 3), "wo.weight": sines(3, 8)}
    weights = load(stored, "llama-pairs", h=2)
    as_halves = dump(weights, "llama")
    order = [0, 2, 1, 3, 4, 6, 5, 7]
    assert_rounds_to(as_halves["q_proj.weight"], sines(8, 3, a=0.7)[order])
    assert_rounds_to(as_halves["k_proj.weight"][5], np.array([-0.8, -0.58, 0.83]))
    assert_rounds_to(as_halves["v_proj.weight"], stored["wv.weight"])
    assert_rounds_to(as_halves["o_proj.weight"], stored["wo.weight"])

    def score(Q, K):
        return row.scaled_dot_product(rotated(Q, pairs=False), rotated(K, pairs=False))

    expected = [
        [
            [0.921016, -2.17231852, 2.32706398],
            [-0.33948705, 0.76040106, -1.12513518],
            [-0.1586104, 0.74450058, -1.48879056],
        ],
        [
            [-0.81075265, 1.52804097, -1.95078451],
            [-0.22905243, 0.76665319, -0.69509213],
            [0.23576466, -1.35662916, 2.31918402],
        ],
    ]
    x = sines(1, 3, 3)
    assert_rounds_to(row.multi_head(x, x, x, weights.T, score=score).scores, np.array([expected]))
