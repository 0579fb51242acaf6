"""The worked examples: exact where they claim to be, and what the package computes from the same numbers."""

from fractions import Fraction

import numpy as np
import pytest

from mha_tutorial import MultiHeadAttention
from mha_tutorial.examples import worked
from mha_tutorial.reference import column, loops, row
from tests.helpers import assert_close


@pytest.mark.equation("eq-output-components", "eq-output-components-row")
def test_toy_gives_three_and_a_half_and_six_in_both_conventions():
    x, weights = worked.toy()
    trace = row.multi_head(x, x, x, weights)
    assert trace.heads.tolist() == [[[1.0, 2.0]], [[3.0, 4.0]]]
    # 1(0.5) + 2(0) + 3(1) + 4(0) and 1(1) + 2(0.5) + 3(0) + 4(1)
    assert trace.output.tolist() == [[3.5, 6.0]]
    assert row.concatenated_output(weights, trace.heads).tolist() == [[3.5, 6.0]]
    assert column.multi_head(x.T, x.T, x.T, weights.T).output.tolist() == [[3.5], [6.0]]
    assert column.concatenated_output(weights.T, trace.T.heads).tolist() == [[3.5], [6.0]]


def test_toy_heads_write_their_own_parts():
    x, weights = worked.toy()
    heads = row.multi_head(x, x, x, weights).heads
    assert (heads @ weights.W_o).tolist() == [[[0.5, 2.0]], [[3.0, 4.0]]]
    assert weights.heads([0]).h == 1
    assert MultiHeadAttention(weights.heads([0]))(x).tolist() == [[0.5, 2.0]]


def test_hello_world_has_the_made_up_scores():
    tokens, Q, K, V = worked.hello_world()
    assert tokens == ["Hello", "world", "!"]
    assert row.dot_product(Q, K).tolist() == [[11, 16, 19], [14, 17, 20], [15, 18, 21]]
    weights = row.softmax(row.scaled_dot_product(Q, K))
    assert weights[1].round(3).tolist() == [0.039, 0.175, 0.786]
    assert Q.shape == K.shape == V.shape == (3, 4)


def test_one_word_has_one_vector_before_attention_and_two_after():
    (first, X), (second, Y) = worked.bank()
    assert " ".join(first) == "She deposited the money at the bank"
    assert " ".join(second) == "They sat down on the grassy river bank"
    before, after = [], []
    for vectors in (X, Y):
        before.append(vectors[-1])
        after.append(row.attention(vectors, vectors, vectors)[-1])
    assert np.array_equal(*before)
    # e^2, e^3 and e^4 for deposited, money and bank, and four times e^0; then e, e^3, e^4 and five times e^0
    total = 4 + np.exp([2, 3, 4]).sum()
    assert_close(after[0][:2], np.array([2 * np.exp(2) + 3 * np.exp(3) + 2 * np.exp(4), 2 * np.exp(4)]) / total)
    total = 5 + np.exp([1, 3, 4]).sum()
    assert_close(after[1][:2], np.array([2 * np.exp(4), np.exp(1) + 3 * np.exp(3) + 2 * np.exp(4)]) / total)


@pytest.mark.parametrize("words", worked.bank(), ids=["money", "river"])
def test_bank_layer_looks_for_the_topic_and_for_the_word_before(words):
    X, weights = worked.bank_layer(words)
    assert np.array_equal(X[:, :4], words.vectors)
    attention = row.multi_head(X, X, X, weights).attention
    topic = words.vectors[:, :2]
    assert_close(attention[0], row.softmax(topic @ topic.T / 2))
    assert attention[1].argmax(axis=1).tolist() == [0, *range(len(X) - 1)]
    assert (attention[1, 1:].max(axis=1) > 0.7).all()


@pytest.fixture
def exact():
    return worked.exact()


def test_exact_layer_is_made_of_fractions_of_pairwise_different_sizes(exact):
    (n, d_model), (m, _) = exact.X.shape, exact.memory.shape
    (h, _, d_k), d_v = exact.W_q.shape, exact.W_v.shape[2]
    assert sorted([n, m, d_model, h, d_k, d_v]) == [2, 3, 4, 5, 6, 7]
    assert not {h * d_k, h * d_v} & {n, m, d_model, h, d_k, d_v}
    for array in (*exact, *exact.trace()):
        assert all(type(entry) is Fraction for entry in array.flat)


def test_exact_scores_are_whole_multiples_of_log_2(exact):
    assert all(score.denominator == 1 for score in exact.trace().scores.flat)


@pytest.mark.equation("eq-powers-of-two")
def test_exact_weights_are_powers_of_two_over_their_sum(exact):
    trace = exact.trace()
    for head in range(2):
        for i in range(3):
            powers = [Fraction(2) ** score for score in trace.scores[head, i]]
            assert trace.attention[head, i].tolist() == [power / sum(powers) for power in powers]


def test_float_layer_equals_the_exact_one(exact):
    X, memory, weights = exact.floats()
    assert_exact(row.multi_head(X, memory, memory, weights), exact)
    assert_exact(MultiHeadAttention(weights).trace(X, memory), exact)
    for multi_head in (column.multi_head, loops.multi_head):
        assert_exact(multi_head(X.T, memory.T, memory.T, weights.T).T, exact)


def assert_exact(trace, exact):
    """Equal to a relative 1e-14: of each entry of the output, and in the steps before it of the largest entry."""
    fractions = exact.trace()
    units = {"queries": np.log(2), "scores": np.log(2)}
    for step in trace._fields:
        assert_close(getattr(trace, step), getattr(fractions, step).astype(float) * units.get(step, 1), rtol=1e-14)
    np.testing.assert_allclose(trace.output, fractions.output.astype(float), rtol=1e-14, atol=0)


def test_exact_layer_holds_log_2_in_the_query_projection_alone(exact):
    weights = exact.floats()[2]
    assert_close(weights.W_q / np.log(2), exact.W_q.astype(float))
    assert_close(weights.b_q / np.log(2), exact.b_q.astype(float))
    assert np.array_equal(weights.W_k, exact.W_k.astype(float))
