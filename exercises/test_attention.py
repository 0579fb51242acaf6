"""Grades attention.py."""

import numpy as np
from grading import compare

from mha_tutorial import Causal
from mha_tutorial.reference import column


def softmax_over(scores, axis):
    exponentials = np.exp(scores - scores.max(axis=axis, keepdims=True))
    return exponentials / exponentials.sum(axis=axis, keepdims=True)


def test_softmax(answers, rng, sizes):
    m, n = sizes(2)
    scores = rng.normal(size=(m, n))
    largest_of_rows = np.exp(scores - scores.max(axis=1, keepdims=True))
    compare(
        answers.softmax(scores),
        column.softmax(scores),
        hint="exponentials of all scores, divided by the sum over the keys, that is over axis 0",
        mistakes={
            "each row sums to one. A query is a column; its weights over the keys must": softmax_over(scores, 1),
            "the whole array sums to one. Each column must": softmax_over(scores, None),
            "the largest score is taken from each row. It must be one number for all scores of a query, a column": (
                largest_of_rows / largest_of_rows.sum(axis=0)
            ),
        },
    )


def test_softmax_of_large_scores(answers, rng, sizes):
    m, n = sizes(2)
    scores = 1000 * rng.normal(size=(m, n))
    compare(
        answers.softmax(scores),
        column.softmax(scores),
        hint="exp(1000) is infinite; subtract each column's largest score first, which changes nothing",
        mistakes={
            "each row sums to one. A query is a column; its weights over the keys must": softmax_over(scores, 1),
        },
    )


def test_scaled_dot_product(answers, rng, sizes):
    d_k, n, m = sizes(3)
    Q, K = rng.normal(size=(d_k, n)), rng.normal(size=(d_k, m))
    plain = K.T @ Q
    compare(
        answers.scaled_dot_product(Q, K),
        column.scaled_dot_product(Q, K),
        hint="the score of key i for query j is the inner product of their columns, over sqrt(d_k)",
        mistakes={
            "the scores are not divided by sqrt(d_k)": plain,
            "the scores are divided by d_k, not by its root": plain / d_k,
            "the root is taken of the number of queries, not of d_k": plain / np.sqrt(n),
            "the root is taken of the number of keys, not of d_k": plain / np.sqrt(m),
            "the scores are transposed. Keys go down and queries across": plain.T / np.sqrt(d_k),
        },
    )


def test_attention(answers, rng, sizes):
    d_k, d_v, n, m = sizes(4)
    Q, K, V = rng.normal(size=(d_k, n)), rng.normal(size=(d_k, m)), rng.normal(size=(d_v, m))
    scores = column.scaled_dot_product(Q, K)
    compare(
        answers.attention(Q, K, V),
        column.attention(Q, K, V),
        hint="scores, softmax, and the product of V with the weights. Mend softmax and scaled_dot_product first, "
        "where they are not right yet",
        mistakes={
            "the root is taken of d_v, not of d_k": V @ column.softmax(K.T @ Q / np.sqrt(d_v)),
            "the weights sum to one over the queries, not over the keys": V @ softmax_over(scores, 1),
            "the scores are not divided by sqrt(d_k), here or in scaled_dot_product": V @ column.softmax(K.T @ Q),
            "the scores average the values without a softmax": V @ scores,
        },
    )


def test_causal_attention(answers, rng, sizes):
    d_k, d_v, n = sizes(3)
    Q, K, V = (rng.normal(size=(d, n)) for d in (d_k, d_k, d_v))
    scores = column.scaled_dot_product(Q, K)
    zeroed = np.where(np.triu(np.ones((n, n))), scores, 0)
    compare(
        answers.causal_attention(Q, K, V),
        column.attention(Q, K, V, visible=Causal()),
        hint="set the scores of keys after the query to minus infinity before the softmax; keys go down. "
        "Mend softmax and scaled_dot_product first, where they are not right yet",
        mistakes={
            "the scores are not divided by sqrt(d_k), here or in scaled_dot_product": column.attention(
                Q, K, V, column.dot_product, visible=Causal()
            ),
            "nothing is hidden": column.attention(Q, K, V),
            "the triangle is the wrong one: queries see the future and not the past": column.attention(
                Q, K, V, visible=Causal().rows(n, n)
            ),
            "hidden scores are 0, and the exponential of 0 is 1. They must be minus infinity": V
            @ column.softmax(zeroed),
            "weights are hidden after the softmax and no longer sum to one": V @ np.triu(column.softmax(scores)),
        },
    )
