"""Grades gradients.py."""

import numpy as np
from grading import compare, several

from mha_tutorial import RowWeights
from mha_tutorial.gradients import backward, matmul_vjp
from mha_tutorial.reference import row


def test_product_backward(answers, rng, sizes):
    p, q, r = sizes(3)
    A, B, dC = rng.normal(size=(p, q)), rng.normal(size=(q, r)), rng.normal(size=(p, r))
    hint = "every gradient is shaped like what it belongs to, and there is one product of each shape"
    dA, dB = matmul_vjp(dC, A, B)
    for answer, right, other in zip(
        several(answers.product_backward(A, B, dC), 2, hint), (dA, dB), (dB, dA), strict=True
    ):
        compare(answer, right, hint, {"dA and dB are exchanged": other})


def test_softmax_backward(answers, rng, sizes):
    n, m = sizes(2)
    A, dA = row.softmax(rng.normal(size=(n, m))), rng.normal(size=(n, m))
    right = np.stack([(np.diag(a) - np.outer(a, a)) @ da for a, da in zip(A, dA, strict=True)])
    compare(
        answers.softmax_backward(A, dA),
        right,
        hint="from each row of dA, subtract its average under the weights A; then multiply by A",
        mistakes={
            "each weight is treated as if it depended on its own score alone: a (1 - a)": A * (1 - A) * dA,
            "the plain mean is subtracted; it must be the one weighted by A": A
            * (dA - dA.mean(axis=1, keepdims=True)),
            "the average is missing": A * dA,
            "the sum that is subtracted is not weighted by A": A * (dA - dA.sum(axis=1, keepdims=True)),
            "the factor A in front is missing": dA - (A * dA).sum(axis=1, keepdims=True),
            "the sum runs over all queries; each query has its own": A * (dA - (A * dA).sum()),
            "the average is taken over the queries (axis 0); it belongs to the keys of one query": A
            * (dA - (A * dA).sum(axis=0)),
            "it is divided by the number of queries": right / n,
        },
    )


def test_attention_backward(answers, rng, sizes):
    d_k, d_v, n, m = sizes(4)
    Q, K, V, dO = (rng.normal(size=shape) for shape in ((n, d_k), (m, d_k), (m, d_v), (n, d_v)))
    alone = RowWeights(np.eye(d_k)[None], np.eye(d_k)[None], np.eye(d_v)[None], np.eye(d_v)[None])
    right = backward(dO, row.multi_head(Q, K, V, alone), Q, K, V, alone)[:3]
    unscaled = backward(dO, row.multi_head(Q, K, V, alone, row.dot_product), Q, K, V, alone, scale=1)
    hints = {
        "Q": "through the softmax to the scores, then each query collects the keys. Mend softmax_backward first, "
        "if it is not right yet",
        "K": "each key collects the queries that scored it",
        "V": "each value collects dO with the weights it was given",
    }
    found = several(answers.attention_backward(Q, K, V, dO), 3, "in the order dQ, dK, dV")
    for (name, hint), answer, expected in zip(hints.items(), found, right, strict=True):
        mistakes = {"the scores of the forward pass are not divided by sqrt(d_k)": getattr(unscaled, name)}
        if name != "V":
            mistakes |= {
                f"d{name} lacks the factor 1 / sqrt(d_k)": expected * np.sqrt(d_k),
                f"d{name} has the factor 1 / sqrt(d_k) twice": expected / np.sqrt(d_k),
                "dQ and dK are exchanged": right[1 if name == "Q" else 0],
            }
        compare(answer, expected, f"d{name}: {hint}", mistakes)
