"""Questions on the part Attention."""

import math

import numpy as np

from ...analysis import scaling
from ...examples import worked
from ...reference import row
from .record import Choice, Number, Slip, right, wrong


def answer(scores: list, values: list) -> float:
    """The average of some values, whose keys have these scores."""
    return float((row.softmax(np.array([scores], dtype=float)) @ np.array(values))[0])


def river(score) -> float:
    """How many times as much *river* gives to *bank* as to *grassy*."""
    X = worked.bank()[1].vectors
    weights = row.softmax(score(X, X))
    return float(weights[6, 7] / weights[6, 5])


WEIGHTED_AVERAGE = {
    "average": Number(
        "A query has the scores 0, 0 and ln 2 with three keys, whose values are the numbers 4, 8 and 20. What is "
        "its answer?",
        lambda: answer([0, 0, math.log(2)], [4, 8, 20]),
        "The exponentials are 1, 1 and 2, the weights ¼, ¼ and ½, and 1 + 2 + 10 = 13.",
        [
            Slip(
                lambda: np.mean([4, 8, 20]),
                "That is the plain mean. It would be the answer if all three scores were equal.",
            ),
            Slip(
                lambda: np.average([4, 8, 20], weights=[0, 0, math.log(2)]),
                "The scores themselves were taken for weights. A score of 0 does not mean a weight of 0: its "
                "exponential is 1.",
            ),
            Slip(
                lambda: np.exp([0, 0, math.log(2)]) @ [4, 8, 20],
                "The exponentials were not divided by their sum, 4, so this is no average: it lies outside the "
                "values.",
            ),
        ],
        digits=2,
    ),
    "doubled": Choice(
        "With dot-product scores, a query gives its first two keys weights in the ratio 4 : 1. Now the query is "
        "doubled, and nothing else. What is the ratio?",
        [
            wrong(
                "4 : 1 as before, since softmax looks at differences of scores alone",
                "It does look at differences, and so adding a number to all scores changes nothing. But doubling "
                "the query doubles the scores, and with them their differences.",
            ),
            wrong(
                "8 : 1, since the first score is now twice as large",
                "Scores are doubled, not weights. A weight depends on its score through an exponential.",
            ),
            right(
                "16 : 1, since the difference of the scores is twice as large",
                "A difference of s is a ratio of e^s. Doubled, it is e^{2s}, the square of the ratio.",
            ),
            wrong(
                "2 : 1, since a longer query spreads its attention",
                "The other way round: a longer query has scores further apart, and comes closer to a lookup.",
            ),
        ],
    ),
    "axis": Choice(
        "For four queries and four keys, tokens in rows, somebody takes the softmax along axis 0. Which check "
        "fails?",
        [
            wrong(
                "`A.shape == (4, 4)`",
                "Softmax keeps the shape along either axis. With as many keys as queries no shape can tell.",
            ),
            wrong(
                "`(A >= 0).all()` and `(A <= 1).all()`",
                "Each number is still a share of something, only of the wrong sum.",
            ),
            wrong(
                "`np.allclose(A.sum(axis=0), 1)`",
                "That is what this mistake makes true: each *key* shares itself out among the queries.",
            ),
            right(
                "`np.allclose(A.sum(axis=1), 1)`",
                "A row belongs to a query, and its weights over the keys must sum to one. Now they do not.",
            ),
        ],
    ),
    "reversed": Choice(
        "`row.attention(Q, K[::-1], V)`: the keys are in reverse order, and the values are not. What comes back, "
        "compared with `row.attention(Q, K, V)`?",
        [
            wrong(
                "The same, since attention does not see the order of its entries",
                "It does not if keys *and* values are moved together. A key labels the value in its own row.",
            ),
            right(
                "In general other numbers, of the same shape",
                "Every weight now falls on the value of another key. Nothing raises an error, since the shapes "
                "fit.",
            ),
            wrong(
                "The same rows in reverse order",
                "That is what reversing the *queries* does: a row of the answer belongs to a query.",
            ),
            wrong(
                "An error, since the keys no longer belong to the values",
                "Which key belongs to which value is told by their places alone; there is nothing to check.",
            ),
        ],
    ),
    "hull": Choice(
        "The values are (0, 0), (4, 0) and (0, 4). Which answer can no query get, whatever the score?",
        [
            wrong(
                "(1.3, 1.3)",
                "That is nearly the mean of the three, which equal scores give.",
            ),
            right(
                "(3, 3)",
                "Each answer is a convex combination of the values, so its two numbers sum to 4 at most.",
            ),
            wrong(
                "(0.1, 3.8)",
                "A query whose third score is much the largest gets close to the third value.",
            ),
            wrong(
                "(2, 1.9)",
                "It is inside the triangle, close to its long side: the first key has a small weight.",
            ),
        ],
    ),
}

SCALED_DOT_PRODUCT = {
    "lead": Number(
        "Two keys of width 16 have the inner products 8 and 0 with a query. Which weight does the scaled dot "
        "product give the first key?",
        lambda: answer([8 / math.sqrt(16), 0], [1, 0]),
        "8 / √16 = 2, so the weights are in the ratio e² : 1.",
        [
            Slip(lambda: answer([8, 0], [1, 0]), "The inner products were not divided at all."),
            Slip(lambda: answer([8 / 16, 0], [1, 0]), "Divided by d_k = 16 in place of its root."),
            Slip(lambda: 2 / 3, "The score 2 was taken for the ratio of the weights. Their ratio is e²."),
        ],
        digits=3,
    ),
    "width": Choice(
        "A model of width d_model = 512 has 8 heads, each with queries and keys of width 64. By which number are "
        "the inner products of a head divided?",
        [
            wrong("√512, about 22.6", "That is the root of d_model. What is multiplied are vectors of width 64."),
            wrong("64", "Dividing by the width and not by its root makes the scores of wide heads too much alike."),
            wrong("√8, about 2.8", "The number of heads plays no part: a head does not know of the others."),
            right("8", "The root of the width of the vectors that are multiplied, √64."),
        ],
    ),
    "variance": Number(
        "The entries of queries and keys are all independent of each other, with mean 0 and variance 4, and "
        "d_k = 9. What is the variance of their inner product?",
        lambda: scaling.dot_product_variance(9, mean=0.0, variance=4.0),
        "Each of the 9 products has variance σ² · σ² = 16, and variances of independent terms add: 9 · 16.",
        [
            Slip(lambda: scaling.dot_product_variance(9), "That is d_k, which is right for entries of variance 1."),
            Slip(
                lambda: 9 * 4,
                "The variance of one product is that of the query's entry *times* that of the key's entry: 16, "
                "not 4.",
            ),
            Slip(
                lambda: math.sqrt(scaling.dot_product_variance(9, mean=0.0, variance=4.0)),
                "That is the standard deviation, the root of the variance.",
            ),
        ],
    ),
    "constant": Choice(
        "The package's softmax gives [0.731, 0.269] for the scores [1, 0]. What does it give for [1000, 999], in "
        "float32?",
        [
            right(
                "[0.731, 0.269]",
                "The largest score is subtracted first, so the exponents are 0 and −1 in both cases.",
            ),
            wrong(
                "[nan, nan], since e^{1000} is too large",
                "The textbook formula overflows. Softmax as it is programmed never takes an exponential above 1.",
            ),
            wrong(
                "[1.000, 0.000], since larger scores make attention sharper",
                "What makes it sharper are larger *differences*. Here the difference is 1 as before.",
            ),
            wrong(
                "[0.500, 0.500], since 1000 and 999 are nearly equal",
                "Softmax does not look at how they compare relative to their size, but at 1000 − 999.",
            ),
        ],
    ),
    "twice": Choice(
        "With d_k = 64, queries are scaled beforehand, `q = q / 8`, and handed to a function that scales by "
        "default. What happens to the attention?",
        [
            wrong(
                "Nothing, since softmax does not see a common factor",
                "It does not see a common *summand*. A common factor is a temperature.",
            ),
            right(
                "Each query's weights are nearer to equal than they should be",
                "The scores are divided by 64 in all, so their differences are eight times too small.",
            ),
            wrong(
                "Each query attends more sharply than it should",
                "Smaller scores are closer together, and the closer they are, the flatter the weights.",
            ),
            wrong(
                "An error, since the function checks the size of its queries",
                "The shapes are right, and vectors may be of any length: nothing can be noticed.",
            ),
        ],
    ),
}

WORDS_IN_CONTEXT = {
    "river": Number(
        "*River* (0, 3, 0, 0) asks, in the sentence with *grassy* (0, 1, 0, 0) and *bank* (2, 2, 0, 0). With "
        "scaled dot products, how many times the weight of *grassy* does *bank* get?",
        lambda: river(row.scaled_dot_product),
        "The inner products are 3 and 6, halved 1.5 and 3. The difference of 1.5 is a ratio of e^{1.5}.",
        [
            Slip(lambda: 6 / 3, "That is the ratio of the *scores*. Softmax turns differences into ratios."),
            Slip(lambda: river(row.dot_product), "e³: the scores were not divided by √4."),
            Slip(lambda: 3 - 1.5, "That is the difference of the scores; its exponential is the ratio."),
        ],
        digits=2,
    ),
    "rows": Choice(
        "A row of scores is 11, 16, 19. Which other row has the same weights?",
        [
            wrong(
                "22, 32, 38",
                "Doubled scores have doubled differences, and so sharper weights.",
            ),
            wrong(
                "19, 16, 11",
                "The same three weights, but in reverse order: each belongs to its key.",
            ),
            right(
                "1, 6, 9",
                "All three are smaller by 10, and softmax does not see a constant.",
            ),
            wrong(
                "5.5, 8, 9.5",
                "Halved scores, as dividing by √4 makes them. Their weights are flatter.",
            ),
        ],
    ),
    "possible": Choice(
        "A query has the scores 3, 7 and 5. Which weights can a softmax give it *exactly*, at some "
        "temperature above zero?",
        [
            right(
                "1/7, 4/7, 2/7",
                "7 is as far above 5 as 5 is above 3, so both ratios must be equal: here 2, at the temperature 2 "
                "/ ln 2.",
            ),
            wrong(
                "0.6, 0.1, 0.3",
                "The largest score must have the largest weight, at any temperature.",
            ),
            wrong(
                "0.2, 0.4, 0.4",
                "The scores 7 and 5 differ, so their weights differ too, unless the temperature is infinite.",
            ),
            wrong(
                "0, 1, 0",
                "An exponential is never zero. At a low temperature this is what rounded weights show, and only "
                "the limit has it exactly.",
            ),
        ],
    ),
    "silent": Choice(
        "All weights and biases of a multi-head layer are zero. What does `X + MultiHead(X, X, X)` give?",
        [
            wrong(
                "Zeros",
                "The layer writes zeros, but it does not replace the tokens: its output is added to them.",
            ),
            right(
                "The tokens, unchanged",
                "A layer that has nothing to say writes zero, and the residual connection keeps the tokens.",
            ),
            wrong(
                "For each token the mean of all tokens",
                "The attention weights are indeed all equal. But what is averaged are values, and they are all "
                "zero.",
            ),
            wrong(
                "The tokens, once more for each head",
                "The tokens are added once, to the output of the whole layer, and not in each head.",
            ),
        ],
    ),
    "called": Choice(
        "`nn.MultiheadAttention` with 8 heads is called as it is by default: one text, 5 queries, 7 keys. Which "
        "shape do the attention weights have that it returns?",
        [
            right(
                "(1, 5, 7)",
                "By default they are averaged over the heads: one table for each text.",
            ),
            wrong(
                "(1, 8, 5, 7)",
                "That is what it returns with `average_attn_weights=False`.",
            ),
            wrong(
                "(1, 7, 5)",
                "PyTorch has tokens in rows: a row for each query, a column for each key.",
            ),
            wrong(
                "(1, 5, d_v)",
                "That is the shape of a head's *result*, which some tutorials call attention weights.",
            ),
        ],
    ),
}

ASKED = {
    "weighted-average": WEIGHTED_AVERAGE,
    "scaled-dot-product": SCALED_DOT_PRODUCT,
    "words-in-context": WORDS_IN_CONTEXT,
}
