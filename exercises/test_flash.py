"""Grades flash.py."""

import numpy as np
from grading import compare, several

from mha_tutorial.reference import row

PAIR = "a pair, in the order of the docstring"


def one_block_after_the_other(scores, block, shrink):
    """The recurrence with another factor for what was summed before."""
    largest, total = np.full(len(scores), -np.inf), np.zeros(len(scores))
    for start in range(0, scores.shape[1], block):
        some = scores[:, start : start + block]
        larger = np.maximum(largest, some.max(axis=1))
        factor = np.where(total == 0, 0, shrink(np.where(total == 0, larger, largest), larger))
        total = total * factor + np.exp(some - larger[:, None]).sum(axis=1)
        largest = larger
    return total


def test_online_softmax(answers, rng, sizes):
    n, m = sizes(2)
    m, block = m + 4, 3
    scores = rng.normal(size=(n, m))
    scores[:, -1] = scores.max(axis=1) + 0.5  # the largest comes last
    largest = scores.max(axis=1)
    found, total = several(answers.online_softmax(scores, block), 2, PAIR)
    compare(
        found,
        largest,
        hint="the larger of the largest so far and the largest of the block",
        mistakes={
            "largest is that of the first block alone": scores[:, :block].max(axis=1),
            "largest has an axis too many: (n,), not (n, 1)": largest[:, None],
        },
    )
    last = (m - 1) // block * block
    compare(
        total,
        np.exp(scores - largest[:, None]).sum(axis=1),
        hint="when a larger score comes, every exponential that was summed must shrink by the same factor",
        mistakes={
            "what was summed before is not scaled when a larger score comes": one_block_after_the_other(
                scores, block, lambda before, now: np.ones_like(now)
            ),
            "it is scaled by exp(new - old): it must shrink, exp(old - new)": one_block_after_the_other(
                scores, block, lambda before, now: np.exp(now - before)
            ),
            "only the last block is summed": np.exp(scores[:, last:] - largest[:, None]).sum(axis=1),
            "the exponentials are not taken beside the largest score": np.exp(scores).sum(axis=1),
        },
    )


def test_online_softmax_of_large_and_of_hidden_scores(answers, rng, sizes):
    n, m = sizes(2)
    scores = 1000 * rng.normal(size=(n, m + 6))
    scores[0, :4] = -np.inf
    largest, total = several(answers.online_softmax(scores, 2), 2, PAIR)
    hint = "a block in which all is hidden has the largest score -inf, and -inf - -inf is NaN: subtract 0 there"
    compare(largest, scores.max(axis=1), hint)
    compare(total, np.exp(scores - scores.max(axis=1, keepdims=True)).sum(axis=1), hint)


def test_online_attention(answers, rng, sizes):
    d_k, d_v, n, m = sizes(4)
    Q, K, V = rng.normal(size=(n, d_k)), rng.normal(size=(m + 4, d_k)), rng.normal(size=(m + 4, d_v))
    heads, log_sums = row.online_attention(Q, K, V)
    unscaled, _ = row.online_attention(Q, K, V, row.dot_product)
    largest = row.scaled_dot_product(Q, K).max(axis=1)
    found, sums = several(answers.online_attention(Q, K, V, 3), 2, PAIR)
    compare(
        found,
        heads,
        hint="carry the sum of the values along with the sum of the exponentials, and shrink both alike",
        mistakes={
            "the scores are not divided by sqrt(d_k)": unscaled,
            "the weighted values are not divided by the sum of the exponentials": heads
            * np.exp(log_sums - largest)[:, None],
        },
    )
    compare(
        sums,
        log_sums,
        hint="the logarithm of the sum, plus the largest score that was subtracted from all",
        mistakes={
            "the largest score that was subtracted is not added again": log_sums - largest,
            "it is the sum itself, not its logarithm": np.exp(log_sums),
        },
    )


def test_merge(answers, rng, sizes):
    d_k, d_v, n, m = sizes(4)
    Q, K, V = rng.normal(size=(n, d_k)), rng.normal(size=(m + 4, d_k)), rng.normal(size=(m + 4, d_v))
    one, other = (row.online_attention(Q, K[some], V[some]) for some in (slice(0, 3), slice(3, None)))
    right, together = row.merge(one, other)
    share = (one[1] / (one[1] + other[1]))[:, None]
    found, sums = several(answers.merge(*one, *other), 2, PAIR)
    compare(
        found,
        right,
        hint="each part counts as much as the exponentials of its scores add up to",
        mistakes={
            "this is the plain mean of the two": (one[0] + other[0]) / 2,
            "the two are added, without weights": one[0] + other[0],
            "the weights are the log-sums; they must be the sums, exp(log_sums)": share * one[0]
            + (1 - share) * other[0],
            "the two weights are exchanged": row.merge((one[0], other[1]), (other[0], one[1]))[0],
        },
    )
    compare(
        sums,
        together,
        hint="the sums add up, their logarithms do not",
        mistakes={
            "the log-sums are added; the sums must be": one[1] + other[1],
            "it is the sum itself, not its logarithm": np.exp(together),
        },
    )


def test_merge_of_large_log_sums_and_of_parts_that_saw_nothing(answers, rng, sizes):
    d_v, n = sizes(2)
    one, other = ((rng.normal(size=(n + 3, d_v)), 1000 + rng.normal(size=n + 3)) for _ in range(2))
    for (heads, log_sums), blind in ((one, [0, 1]), (other, [1, 2])):
        heads[blind], log_sums[blind] = 0, -np.inf
    found, sums = several(answers.merge(*one, *other), 2, PAIR)
    right, together = row.merge(one, other)
    compare(found, right, "exp(1000) overflows: subtract something first, but not -inf from -inf")
    compare(sums, together, "the log-sum of nothing is -inf, and no NaN")
