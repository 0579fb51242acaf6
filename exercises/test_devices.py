"""Grades devices.py."""

import numpy as np
from grading import compare, several

from mha_tutorial import ColumnWeights
from mha_tutorial.examples import shards


def test_shard(answers, rng, sizes):
    d_model, group, share, d_k, d_v = sizes(5)
    ranks, rank = 3, 1
    weights = ColumnWeights.random(rng, d_model, ranks * share * group, ranks * share, d_k, d_v, bias=False)
    right = shards.shard(weights, rank, ranks)
    hint = "h / ranks neighbouring heads of W_q and W_o, h_kv / ranks neighbouring ones of W_k and W_v"
    given = weights.arrays()
    found = several(answers.shard(*given.values(), rank, ranks), 4, hint)
    for (name, whole), answer in zip(given.items(), found, strict=True):
        mistakes = {
            f"of {name} every {ranks}rd head is taken; neighbours belong together": whole[rank::ranks],
            f"of {name} the first rank's heads are taken; the first rank is 0": whole[: len(whole) // ranks],
        }
        if name in ("W_k", "W_v"):
            heads = slice(rank * group * share, (rank + 1) * group * share)
            mistakes[f"{name} has h_kv heads, and is cut as if it had h"] = whole[heads]
        compare(answer, getattr(right, name), hint, mistakes)


def test_output_of_ranks(answers, rng, sizes):
    d_model, ranks, n = sizes(3)
    partial_outputs, b_o = rng.normal(size=(ranks, d_model, n)), rng.normal(size=d_model)
    total, bias = partial_outputs.sum(axis=0), b_o[:, None]
    compare(
        answers.output_of_ranks(partial_outputs, b_o),
        total + bias,
        hint="the sum over the ranks, and then the bias, the same for every token",
        mistakes={
            "the bias is added once for every rank": total + ranks * bias,
            "the bias is missing": total,
            "the ranks are averaged, not added": total / ranks + bias,
        },
    )


def test_merge(answers, rng, sizes):
    ranks, d_v, n = sizes(3)
    heads, log_sums = rng.normal(size=(ranks, d_v, n)), rng.normal(size=(ranks, n))
    sums = np.exp(log_sums)
    hint = "each rank counts in proportion to its sum of exponentials, exp(log_sum)"
    compare(
        answers.merge(heads, log_sums),
        (sums[:, None] * heads).sum(axis=0) / sums.sum(axis=0),
        hint,
        mistakes={
            "every rank counts alike": heads.mean(axis=0),
            "the ranks count in proportion to the logarithms": (log_sums[:, None] * heads).sum(axis=0)
            / log_sums.sum(axis=0),
            "the sums do not divide the result": (sums[:, None] * heads).sum(axis=0),
        },
    )
    log_sums[0, 0] = -np.inf  # nothing of the first rank is seen by the first query
    shares = np.exp(log_sums - log_sums.max(axis=0))
    right = (shares[:, None] * heads).sum(axis=0) / shares.sum(axis=0)
    large = "sums of large scores overflow: subtract the largest logarithm of each query before exp"
    compare(answers.merge(heads, log_sums + 1000.0), right, large)
