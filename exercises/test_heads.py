"""Grades heads.py."""

import numpy as np
from grading import compare, several

from mha_tutorial import ColumnWeights
from mha_tutorial.analysis.counting import parameters, shape_only_weights
from mha_tutorial.reference import column, row


def test_multi_head(answers, rng, sizes):
    d_model, n, h, d_k, d_v = sizes(5)
    X, weights = rng.normal(size=(d_model, n)), ColumnWeights.random(rng, d_model, h, d_k=d_k, d_v=d_v, bias=False)
    trace = column.multi_head(X, X, X, weights)

    def scored(score):
        return column.multi_head(X, X, X, weights, score).output

    compare(
        answers.multi_head(X, weights.W_q, weights.W_k, weights.W_v, weights.W_o),
        trace.output,
        hint="for each head: project X three times, attend, multiply by its W_o; add the heads' results",
        mistakes={
            "the weights sum to one over the queries, not over the keys": (
                weights.W_o @ trace.values @ row.softmax(trace.scores)
            ).sum(axis=0),
            "the root is taken of the number of heads, not of d_k": scored(lambda Q, K: K.mT @ Q / np.sqrt(h)),
            "the scores are not divided by sqrt(d_k)": scored(column.dot_product),
            "the root is taken of d_model, not of d_k": scored(lambda Q, K: K.mT @ Q / np.sqrt(d_model)),
            "the heads are averaged, not added": trace.output / h,
            "only the last head is returned": weights.W_o[-1] @ trace.heads[-1],
            "only the first head is returned": weights.W_o[0] @ trace.heads[0],
        },
    )


def test_concatenated_output(answers, rng, sizes):
    d_model, n, h, d_v = sizes(4)
    W_o, heads = rng.normal(size=(h, d_model, d_v)), rng.normal(size=(h, d_v, n))
    wide = W_o.transpose(1, 0, 2).reshape(d_model, h * d_v)
    interleaved = heads.transpose(1, 0, 2).reshape(h * d_v, n)
    compare(
        answers.concatenated_output(W_o, heads),
        (W_o @ heads).sum(axis=0),
        hint="the blocks of the wide matrix stand side by side, in the order in which the heads are stacked",
        mistakes={
            "W_o is reshaped without moving the axis of the heads first": W_o.reshape(d_model, -1)
            @ heads.reshape(h * d_v, n),
            "the heads are interleaved: number 1 of every head, then number 2": wide @ interleaved,
            "the heads are stacked in reverse": wide @ heads[::-1].reshape(h * d_v, n),
        },
    )


def test_to_rows(answers, rng, sizes):
    d_model, h, d_k, d_v = sizes(4)
    weights = ColumnWeights.random(rng, d_model, h, d_k=d_k, d_v=d_v, bias=False)
    hint = "(W X)^T = X^T W^T: every matrix is transposed, and the heads stay where they are"
    W_q, W_o = several(answers.to_rows(weights.W_q, weights.W_o), 2, hint)
    exchanged = "W_q and W_o are exchanged"
    reshaped = {"W_q is reshaped, not transposed": weights.W_q.reshape(h, d_model, d_k)}
    compare(W_q, weights.T.W_q, hint, reshaped | {exchanged: weights.T.W_o})
    reshaped = {"W_o is reshaped, not transposed": weights.W_o.reshape(h, d_v, d_model)}
    compare(W_o, weights.T.W_o, hint, reshaped | {exchanged: weights.T.W_q})


def test_parameters(answers, sizes):
    d_model, group, h_kv, d_k, d_v = sizes(5)
    h = group * h_kv
    layer = shape_only_weights(d_model, h, h_kv, d_k, d_v)
    compare(
        answers.parameters(d_model, h, h_kv, d_k, d_v),
        parameters(layer),
        hint="a whole number: four matrices, W_q and W_o for h heads, W_k and W_v for h_kv; a bias for what each "
        "head makes, and one for the output, of d_model numbers",
        mistakes={
            "the biases are missing": parameters(shape_only_weights(d_model, h, h_kv, d_k, d_v, bias=False)),
            "keys and values are counted for all h heads": parameters(shape_only_weights(d_model, h, h, d_k, d_v)),
            "the bias of the output is missing": parameters(layer) - d_model,
            "the values are counted with d_k": parameters(shape_only_weights(d_model, h, h_kv, d_k, d_k))
            + h * d_model * (d_v - d_k),
            "the output's bias is counted once for every head": parameters(layer) + (h - 1) * d_model,
        },
    )
