"""Questions on the part PyTorch and speed."""

import math

import numpy as np

from ... import Causal, RowWeights
from ...examples import shards
from ...fast import folding
from ...reference import row
from .record import Choice, Number, Slip, right, wrong


def to_zero_key(score: float) -> float:
    """What a key of zeros gets beside two keys of that score."""
    return float(row.softmax(np.array([[score, score, 0.0]]))[0, 2])


def folded() -> float:
    """By what `fold_scale` multiplies the queries of a head of width 16."""
    ones = np.ones((1, 3, 16))
    return float(folding.fold_scale(RowWeights(ones, ones, ones, ones.mT)).W_q[0, 0, 0])


def merged() -> float:
    """Heads 3 and 9, whose keys have exponentials that sum to 1 and to 2."""
    one, other = ((np.array([[head]]), np.log([total])) for head, total in ((3.0, 1.0), (9.0, 2.0)))
    return float(row.merge(one, other)[0][0, 0])


def running_sum(shrink: float) -> float:
    """The sum after a block with scores 0 and 2 ln 2 and one with score 4 ln 2."""
    first = np.exp(np.log([1.0, 4.0]) - np.log(4)).sum()
    return float(first * shrink + 1)


def tiles_left(n: int, block: int) -> int:
    """How many tiles of n tokens have something to be seen under a causal mask."""
    starts = range(0, n, block)
    corners = ((slice(i, i + block), slice(j, j + block)) for i in starts for j in starts)
    return sum(bool(Causal().tile(queries, keys, n, n).any()) for queries, keys in corners)


A, B = np.array([1.0, 1.0, 4.0]), np.array([2.0, 2.0, 2.0])  # times of two programs in three rounds

LAYER = {
    "stored": Choice(
        "A layer has d_model = 12, six heads of width 3 and two key-value heads. Which shape does "
        "`layer.W_k.weight` have?",
        [
            wrong("(18, 12)", "That is `W_q.weight`, with six heads. Keys have two."),
            right("(6, 12)", "`nn.Linear` stores (out, in): a row for each feature of the two key-value heads."),
            wrong("(12, 6)", "That is (in, out). `nn.Linear` keeps the transpose."),
            wrong("(2, 12, 3)", "That is the package's own record, with an axis for the heads."),
        ],
    ),
    "dropout": Number(
        "A query has four equal weights, and dropout acts on them with p = 0.2. What is a weight that stays?",
        lambda: 0.25 / (1 - 0.2),
        "What stays is divided by 1 − p, so that the mean of each weight is what it was.",
        [
            Slip(lambda: 0.25, "In training, what stays is made larger, to make up for what is dropped."),
            Slip(
                lambda: 0.25 * (1 - 0.2), "Multiplied by 1 − p, and not divided: that would shrink the mean twice."
            ),
            Slip(lambda: 1 / 3, "The rest is not normalised again. The weights of a query no longer sum to one."),
        ],
        digits=4,
    ),
    "nothing": Number(
        "`add_zero_attn=True`, and a query has the score −ln 4 with each of its two keys. Which weight goes to "
        "the zero key?",
        lambda: to_zero_key(-math.log(4)),
        "Its score is 0 and its exponential 1, next to ¼ and ¼: 1 of 1.5.",
        [
            Slip(lambda: 1 / 3, "Three equal shares would need three equal scores. −ln 4 is lower than 0."),
            Slip(
                lambda: 0.0, "Its *value* is zero, and so is its score. But a score of zero has the exponential 1."
            ),
            Slip(
                lambda: to_zero_key(math.log(4)),
                "That is for scores of +ln 4. Where scores are large, the zero key hardly matters.",
            ),
        ],
        digits=3,
    ),
    "batch": Choice(
        "`nn.MultiheadAttention(12, 4)` is made without `batch_first` and called on tokens of shape (2, 7, 12), "
        "meant as two texts of seven tokens. Which shape do the returned weights have?",
        [
            wrong("(2, 7, 7)", "That is with `batch_first=True`: a table of seven by seven for each text."),
            wrong("(2, 4, 7, 7)", "That is with `batch_first=True` and weights that are not averaged over heads."),
            wrong("None: it raises an error", "Every axis has a possible meaning, and nothing can be noticed."),
            right(
                "(7, 2, 2)", "It takes seven texts of two tokens: token i of one text attends to that of the other."
            ),
        ],
    ),
    "tolerance": Choice(
        "Four programs compute one attention and are compared with float64, by the norm of the error relative to "
        "that of the result. Which of them should make you look for a mistake?",
        [
            wrong("bfloat16, off by 0.5 %", "One machine epsilon of bfloat16 is 2^{−7}, about 0.8 %."),
            wrong("float16, off by 0.05 %", "One machine epsilon of float16 is 2^{−10}, about 0.1 %."),
            right("float32, off by 0.01 %", "Eight epsilon of float32 are about 0.0001 %, a hundredth of that."),
            wrong("float64 in another order, off by 10^{−15}", "Sums in another order are rounded differently."),
        ],
    ),
}

SPEED = {
    "mask": Choice(
        "A program computes all n × n scores, fills those above the diagonal with minus infinity, and goes on. "
        "Compared with the same program without a mask, how much arithmetic does it save in scores and averages?",
        [
            wrong("Half", "Half of the scores *need not* be computed. This program has computed them all."),
            right(
                "None", "It pays for the whole square, and for the hiding as well. Only what is skipped is saved."
            ),
            wrong(
                "A quarter: half of the scores, and no average",
                "Both products run over the whole square, over zeros too.",
            ),
            wrong(
                "Nearly all, for long texts", "What is hidden is about half at any length, and is computed here."
            ),
        ],
    ),
    "factor": Number(
        "A head has d_k = 16. By which factor must queries be multiplied so that 2^{q·k} is what e^{q·k/√d_k} was?",
        folded,
        "log₂ e / √d_k = 1.4427 / 4.",
        [
            Slip(lambda: 1 / 4, "That is the scale alone. A power of two needs log₂ e besides."),
            Slip(
                lambda: math.log(2) / 4, "ln 2 is the factor for going from 2 to e. Here it is the other way round."
            ),
            Slip(lambda: math.log2(math.e) / 16, "Divided by d_k, and not by its root."),
        ],
        digits=3,
    ),
    "median": Number(
        "In three rounds, program A took 1, 1 and 4 seconds and program B took 2, 2 and 2. By the rules of this "
        "chapter, how many times as long as A does B take?",
        lambda: np.median(B / A),
        "The ratios within the rounds are 2, 2 and ½, and their median is 2.",
        [
            Slip(lambda: B.mean() / A.mean(), "The ratio of the means: one slow moment of A decides it."),
            Slip(lambda: (B / A).mean(), "The mean of the ratios. One odd round moves a mean, and not the median."),
            Slip(lambda: 1 / np.median(B / A), "That is how many times as long as B program A takes."),
        ],
        digits=1,
    ),
    "type": Choice(
        "`scores` is a float32 array of NumPy 2, and `d_k` is a Python int. Which line makes everything after it "
        "float64, and twice as slow?",
        [
            wrong(
                "`scores / math.sqrt(d_k)`",
                "`math.sqrt` gives a Python float, which leaves the array's type alone.",
            ),
            wrong("`scores * d_k**-0.5`", "A Python int to a Python power is a Python float: harmless."),
            wrong("`scores /= 8.0`", "A Python float, and written into the same array besides."),
            right("`scores / np.sqrt(d_k)`", "What NumPy makes of a Python int is float64, and it wins."),
        ],
    ),
    "folded": Choice(
        "The value bias of a layer has been folded into its output bias. Under which mask does the output change?",
        [
            right(
                "One under which some query sees no key",
                "Such a query has no weights that sum to one. Its head is zero, and now it gets the bias anyway.",
            ),
            wrong(
                "A causal one, as soon as the text has two tokens",
                "Every query sees itself, so its weights sum to one and the fold is right.",
            ),
            wrong(
                "One that hides the same keys from every query",
                "As long as some key is left, weights sum to one over those that are.",
            ),
            wrong(
                "None: a bias has nothing to do with masks",
                "The fold needs weights that sum to one, and there is one case in which they do not.",
            ),
        ],
    ),
}

FLASH = {
    "sum": Number(
        "After a first block with scores 0 and 2 ln 2 the sum is 5/4. A second block brings one score, 4 ln 2. "
        "What is the sum now?",
        lambda: running_sum(np.exp(np.log(4) - np.log(16))),
        "It shrinks by e^{2 ln 2 − 4 ln 2} = ¼ to 5/16, and the new score, now the largest, adds 1.",
        [
            Slip(lambda: running_sum(1.0), "The old sum was not shrunk to the new maximum."),
            Slip(
                lambda: running_sum(4.0),
                "The factor is upside down: relative to a *larger* maximum, old exponentials are smaller.",
            ),
            Slip(
                lambda: running_sum(0.25) - 1,
                "The new key is missing. Relative to itself, its exponential is 1.",
            ),
        ],
        digits=4,
    ),
    "merge": Number(
        "One device has averaged over 10 keys and got 3, with a log-sum of ln 1. Another has averaged over 30 "
        "keys and got 9, with a log-sum of ln 2. What is the average over all 40?",
        merged,
        "The shares are as the sums of exponentials, 1 to 2: (1 · 3 + 2 · 9) / 3.",
        [
            Slip(lambda: (3 + 9) / 2, "The plain mean. What counts is how well the keys of each device matched."),
            Slip(
                lambda: (10 * 3 + 30 * 9) / 40,
                "Weighted by the number of keys. Ten good matches can outweigh thirty poor ones.",
            ),
            Slip(
                lambda: 9.0,
                "The log-sums themselves, 0 and ln 2, were taken for the shares. Their exponentials are.",
            ),
        ],
        digits=2,
    ),
    "tiles": Number(
        "A text of 1024 tokens is computed in tiles of 128 by 128 under a causal mask. How many of the 64 tiles "
        "have to be computed?",
        lambda: tiles_left(1024, 128),
        "Row t of tiles has t of them: 1 + 2 + … + 8.",
        [
            Slip(lambda: 64 // 2, "Half of the *scores* is visible, but a tile on the diagonal is computed whole."),
            Slip(lambda: 28, "The tiles on the diagonal are missing: half of each of them is visible."),
            Slip(lambda: 64, "That is without skipping. A tile in which nothing is visible need not be computed."),
        ],
    ),
    "blocks": Choice(
        "A block of queries that stays in fast memory is made twice as large. What changes, in the count of this "
        "chapter?",
        [
            wrong(
                "Half as many multiplications",
                "Every query still meets every key once. The arithmetic is the same.",
            ),
            right(
                "Keys and values are read half as often",
                "They pass by once for each block of queries, and there are half as many blocks.",
            ),
            wrong(
                "The result is a coarser approximation",
                "Nothing is approximated at any block size: the sums are rescaled exactly.",
            ),
            wrong(
                "Queries are read half as often",
                "Each block of queries is read once, whatever its size.",
            ),
        ],
    ),
    "hidden": Choice(
        "All keys of a query's first block are hidden. What does this print, in a program that does not take care?",
        [
            wrong("[0. 0.]", "It should: that is what subtracting 0 in place of minus infinity gives."),
            wrong("[1. 1.]", "Minus infinity less minus infinity is not 0."),
            wrong("[-inf -inf]", "An exponential is never negative."),
            right("[nan nan]", "−∞ − (−∞) is not a number, and it stays in both sums ever after."),
        ],
        code="scores = np.array([-np.inf, -np.inf])\nprint(np.exp(scores - scores.max()))",
    ),
}

DEVICES = {
    "bias": Number(
        "Four ranks divide a layer, and each adds the whole output bias to its partial output before the "
        "all-reduce. Each number of the bias is 2. By how much is the output too large?",
        lambda: (4 - 1) * 2,
        "The bias is in the sum four times, and once is right.",
        [
            Slip(lambda: 4 * 2, "That is all that the four have added. One of them was right to do so."),
            Slip(lambda: 2, "Three ranks too many have added it, not one."),
            Slip(lambda: 0, "All-reduce adds up; it does not average."),
        ],
    ),
    "ring": Number(
        "Eight ranks add up arrays of 64 MiB round a ring. How many MiB does each rank send?",
        lambda: shards.ring_bytes(64, ranks=8),
        "2 · 7 steps, and in each a chunk of 64 / 8 = 8 MiB.",
        [
            Slip(
                lambda: shards.ring_bytes(64, ranks=8) / 2,
                "One time round, in which sums travel. The complete chunks have to be passed on as well.",
            ),
            Slip(lambda: 64, "That is the payload. Each rank sends nearly twice as much."),
            Slip(
                lambda: 14 * 64, "In each step a rank sends one chunk, an eighth of the array, and not all of it."
            ),
        ],
    ),
    "payload": Number(
        "Two texts of 1024 tokens, d_model = 512, eight heads on four ranks, bfloat16. How many MiB does each "
        "rank hand to the all-reduce of the forward pass?",
        lambda: shards.all_reduce_bytes(2, 1024, 512, itemsize=2)[0] / 2**20,
        "A partial output has the full width: 2 · 1024 · 512 numbers of two bytes.",
        [
            Slip(
                lambda: shards.all_reduce_bytes(2, 1024, 512, itemsize=2)[0] / 2**20 / 4,
                "A partial output is not a quarter of the output. It is as wide, and lacks the other heads.",
            ),
            Slip(lambda: 8 * 2, "Heads are added on the rank before anything is exchanged."),
            Slip(lambda: 1, "Counted for one text, or for one byte a number."),
        ],
        digits=1,
    ),
    "ranks": Choice(
        "A layer has 32 heads, and they share 8 key-value heads. Over how many ranks can it *not* be divided "
        "evenly, unless key-value heads are copied?",
        [
            wrong("2", "Each has 16 heads and 4 key-value heads."),
            wrong("4", "Each has 8 heads and 2 key-value heads."),
            wrong("8", "Each has 4 heads and the one key-value head that they share."),
            right("16", "Each would have 2 heads, and two ranks would need the same key-value head."),
        ],
    ),
}

ASKED = {"layer": LAYER, "speed": SPEED, "flash": FLASH, "devices": DEVICES}
