"""Questions on the part Many heads."""

import math

import numpy as np

from ... import Causal, ColumnWeights, RowWeights
from ...analysis import counting
from ...examples import two_averages, worked
from ...reference import row
from .record import Choice, Number, Slip, right, wrong


def by_hand() -> RowWeights:
    """The layer that the chapter on multi-head attention works out on paper."""
    third, first, second = np.eye(3)[2], np.eye(3)[0], np.eye(3)[1]
    return RowWeights(
        W_q=np.stack([math.log(3) * first, math.log(2) * second])[..., None],
        W_k=np.stack([first, second])[..., None],
        W_v=np.stack([third, third])[..., None],
        W_o=np.array([[[1.0, 0, 2]], [[0.0, 1, -2]]]),
    )


def third_number(heads: list[int]) -> float:
    """The third number that the layer above writes for its one query, with some of its heads."""
    x, memory = np.array([[1.0, 1, 0]]), np.array([[0.0, 1, 3], [1, 0, 9]])
    return float(row.multi_head(x, memory, memory, by_hand().heads(heads)).output[0, 2])


def missed(share: float) -> float:
    """What one head misses of two averages if it gives that share to the first of two tokens."""
    return sum(missed_of(wanted, share) for wanted in np.eye(2))


def missed_of(wanted: np.ndarray, share: float) -> float:
    """What it misses of one of the two."""
    return float(two_averages.residual_error(wanted, np.array([[share, 1 - share]]))[0])


ALPHA, BETA = np.array([2, 2, 0, 0, 0, 0]) / 4, np.array([0, 0, 1, 1, 1, 1]) / 4


def second_output(concatenated: list) -> float:
    """The second output of the toy's projection."""
    return float((np.array(concatenated) @ np.concatenate(list(worked.toy()[1].W_o)))[1])


def work(n: int, causal: bool = False) -> int:
    """The multiply-adds of a layer of width 1024 on n tokens."""
    layer = counting.shape_only_weights(1024, h=16, bias=False)
    return counting.multiply_adds(layer, n, visible=Causal() if causal else None).total


def grouped(**sizes) -> ColumnWeights:
    return counting.shape_only_weights(64, h=8, bias=False, **sizes)


MULTI_HEAD = {
    "concatenated": Choice(
        "A layer has d_model = 12 and 3 heads with d_k = 4 and d_v = 5. Two queries attend to seven tokens. Which"
        " shape do the concatenated heads have, in rows?",
        [
            wrong(
                "(2, 12)", "That is the shape of the output. Concatenated heads need not be as wide as the model."
            ),
            right("(2, 15)", "For each of the two queries, three heads of d_v = 5 numbers side by side."),
            wrong(
                "(7, 15)", "A head has one average for each *query*. The seven tokens are what is averaged over."
            ),
            wrong("(2, 5)", "That is one head. Concatenating puts the three side by side, and does not add them."),
        ],
    ),
    "pruned": Number(
        "In a layer of two heads these write (7.5, 0, 15) and (0, 5, −10), and the output is (7.5, 5, 5). Head "
        "2 is removed. What is now the *third* number of the output?",
        lambda: third_number([0]),
        "Head 2 was a term of a sum. Without it, what head 1 wrote is left: 7.5 times its row (1, 0, 2).",
        [
            Slip(lambda: third_number([0, 1]), "That is the output of the whole layer, with head 2 still in it."),
            Slip(lambda: third_number([1]), "That is what head 2 wrote; it is this term that is left out."),
            Slip(
                lambda: third_number([0, 1]) + third_number([1]),
                "That is the output with what head 2 wrote added once more. It has to be taken away.",
            ),
            Slip(lambda: 7.5, "That is head 1 before its block of W^O, which multiplies it by 2 here."),
        ],
        digits=1,
    ),
    "wide": Choice(
        "How many tables of attention weights, n × m each, does a layer of width 512 make with 8 heads of width "
        "64, and how many with one head of width 512?",
        [
            right(
                "8 and 1: one for each head",
                "One softmax per query and head. However wide, one head makes one average per query.",
            ),
            wrong(
                "8 in both cases: the one head is the eight side by side",
                "Side by side their scores are *added* before a single softmax. That makes one table.",
            ),
            wrong(
                "64 and 512: one for each feature",
                "A score is an inner product over all features of a head, one number for each query and key.",
            ),
            wrong(
                "1 in both cases: the heads are concatenated before softmax",
                "They are concatenated after each has attended on its own.",
            ),
        ],
    ),
    "reshape": Choice(
        "Two heads with d_v = 2 lie in memory as (head, token, number), and the numbers count up. What is the "
        "first row of the array that this makes?",
        [
            wrong(
                "[1 2 7 8]",
                "That is what one wants, token 1 of both heads, and not what this line makes. For that it takes "
                "`heads.transpose(1, 0, 2)` before the `reshape`.",
            ),
            right(
                "[1 2 3 4]",
                "`reshape` keeps the order of memory: token 1 and token 2 of head 1, in one row.",
            ),
            wrong(
                "[1 7 2 8]",
                "That would interleave the heads. `reshape` never changes the order of the numbers.",
            ),
            wrong(
                "None: it raises an error",
                "Twelve numbers fit into (3, 4). That is why this mistake goes unnoticed.",
            ),
        ],
        code="heads = np.arange(1, 13).reshape(2, 3, 2)  # two heads, three tokens\nheads.reshape(3, 4)",
    ),
    "cross": Choice(
        "In a layer of width 6, `english` has three tokens and `german` four. Somebody calls "
        "`row.multi_head(german, english, english, layer)`. What shape does the output have?",
        [
            wrong(
                "(3, 6)",
                "That would be right for `row.multi_head(english, german, german, layer)`: the first argument "
                "asks.",
            ),
            wrong("(3, 4)", "That is the shape of a mask for English queries, not of an output."),
            right("(4, 6)", "One row for each query, and here the German tokens ask."),
            wrong("None: three tokens do not fit four", "Queries and keys need not be equally many."),
        ],
    ),
}

WHY_HEADS = {
    "bound": Number(
        "Two averages are wanted, with weights ½, ½ on tokens 1 and 2, and ¼ each on tokens 3 to 6, as in the "
        "task of this chapter. What is the least error that one head can come close to?",
        lambda: two_averages.best_single_head_error(ALPHA, BETA),
        "The smaller of ‖α‖² = 2 · ¼ and ‖β‖² = 4 · 1/16. The head serves the first average and gives up the "
        "second.",
        [
            Slip(lambda: ALPHA @ ALPHA, "That is the larger one: the head would serve the wrong average."),
            Slip(lambda: ALPHA @ ALPHA + BETA @ BETA, "That is all there is to miss, with an answer of zeros."),
            Slip(lambda: 0.0, "A wider head does not help: one softmax per query is one average, at any width."),
        ],
        digits=2,
    ),
    "anywhere": Number(
        "In the task with two tokens, a head gives the first one 0.8 of its attention and the second 0.2. The "
        "matrix after it is the best one. What is the error?",
        lambda: missed(0.8),
        "b² / (a² + b²) + a² / (a² + b²) = 1, wherever the head looks.",
        [
            Slip(
                lambda: (0.8 - 1) ** 2 + 0.2**2 + (0.2 - 1) ** 2 + 0.8**2,
                "The averages were passed on as they are. The matrix after the head may multiply each by a factor.",
            ),
            Slip(
                lambda: missed_of(np.array([1.0, 0]), 0.8),
                "That is the error of the first wanted number alone. The second is nearly all missed.",
            ),
            Slip(lambda: 2.0, "That is the error of answering (0, 0). Each number is found in part."),
        ],
        digits=2,
    ),
    "twins": Choice(
        "Two heads start with equal matrices, W^O included, and are trained for 1000 steps of gradient descent. "
        "By how much do their key matrices differ then?",
        [
            wrong(
                "A little, since rounding drives them apart",
                "Equal numbers are rounded alike. The two heads compute the same from the same at every step.",
            ),
            wrong(
                "Much, since the task needs two different averages",
                "The task would reward it, but the gradient does not point there: both heads get the same "
                "gradient.",
            ),
            right(
                "Not at all",
                "Equal heads do equal things and get equal gradients, so every step moves both alike.",
            ),
            wrong(
                "It depends on the learning rate",
                "A larger step is the same larger step for both.",
            ),
        ],
    ),
    "enough": Choice(
        "Each token holds two numbers, x and y. For which of these tasks is one head enough?",
        [
            wrong(
                "x of token 1, and y of token 2",
                "Two places at once, with one set of weights: it misses half, as worked out by hand.",
            ),
            wrong(
                "the mean of x over tokens 1 and 2, and the mean of y over tokens 3 and 4",
                "These are averages over different tokens, so one softmax cannot serve both.",
            ),
            wrong(
                "x of token 1, and x of token 2",
                "One average of x comes back, in which the two can no longer be told apart.",
            ),
            right(
                "the mean of x and the mean of y, both over tokens 1 and 2",
                "The same weights for both: one average of whole tokens brings back both numbers.",
            ),
        ],
    ),
}

OUTPUT_PROJECTION = {
    "output": Number(
        "With the W^O of this chapter, head 1 has come back with [4, 2] and head 2 with [1, 3]. What is the "
        "*second* output?",
        lambda: second_output([4, 2, 1, 3]),
        "The second column of W^O gives 4 · 1 + 2 · 0.5 + 1 · 0 + 3 · 1.",
        [
            Slip(
                lambda: second_output([4, 1, 2, 3]),
                "The heads were interleaved, [4, 1, 2, 3]. Concatenated, each head keeps its numbers together.",
            ),
            Slip(lambda: second_output([1, 3, 4, 2]), "Head 2 was put in front, and met the rows of head 1."),
            Slip(
                lambda: float(
                    np.array([4, 2]) @ worked.toy()[1].W_o[0].T[:, 1]
                    + np.array([1, 3]) @ worked.toy()[1].W_o[1][:, 1]
                ),
                "The block of head 1 was transposed. It is square here, so that no shape complains.",
            ),
        ],
        digits=1,
        code="W_o = [[0.5, 1.0],\n       [0.0, 0.5],\n       [1.0, 0.0],\n       [0.0, 1.0]]",
    ),
    "identity": Choice(
        "Two heads with d_v = 2 write into an output of width 4, and W^O is the identity. For one token, head 2 "
        "comes back with other numbers than before. Which numbers of the output change?",
        [
            right(
                "The third and the fourth",
                "The output is the heads side by side, and each is confined to its own coordinates.",
            ),
            wrong(
                "All four, since every head writes everywhere",
                "With a general W^O it does. The identity has zeros where head 2 would reach the first two.",
            ),
            wrong(
                "The second and the fourth",
                "That would be so if the heads were interleaved. They are put side by side.",
            ),
            wrong(
                "None, since the identity changes nothing",
                "It does not change the concatenated heads, and two of those four numbers are those of head 2.",
            ),
        ],
    ),
    "powers": Number(
        "A query has the scores 3 ln 2, ln 2, ln 2 and 0. Which weight does its first key get?",
        lambda: float(row.softmax(math.log(2) * np.array([[3.0, 1, 1, 0]]))[0, 0]),
        "The exponentials are 8, 2, 2 and 1, and 8/13 is the share of the first.",
        [
            Slip(
                lambda: 3 / 5, "The multiples 3, 1, 1, 0 were shared out. Their powers of two are the exponentials."
            ),
            Slip(
                lambda: float(row.softmax(np.array([[3.0, 1, 1, 0]]))[0, 0]),
                "The factor ln 2 was left out: that is the softmax of 3, 1, 1, 0.",
            ),
            Slip(lambda: 8 / 12, "The key with score 0 was left out. Its exponential is 1."),
        ],
        digits=3,
    ),
    "terms": Number(
        "A pre-norm model has 24 blocks, each with attention of 16 heads and an MLP, without biases. A token's "
        "vector at the end is a sum. Of how many terms, if each head counts by itself?",
        lambda: 1 + 24 * (16 + 1),
        "The embedding, and from each block 16 heads and one MLP.",
        [
            Slip(lambda: 24 * (16 + 1), "The embedding is missing, with which the stream begins."),
            Slip(lambda: 1 + 24 * 16, "The MLPs are missing: they add to the stream as well."),
            Slip(
                lambda: 1 + 24 * 2, "Each layer of attention was counted once. Its output is a sum over its heads."
            ),
        ],
    ),
}

CONVENTIONS = {
    "linear": Choice(
        "The weight of an `nn.Linear` without bias is `[[1, 2], [3, 4]]`. What does it make of the row (0, 1)?",
        [
            wrong("(3, 4)", "That is x W, the second row of the matrix. `nn.Linear` computes x Wᵀ."),
            wrong("(1, 3)", "That is the first column: it belongs to the row (1, 0)."),
            right("(2, 4)", "x Wᵀ is the second column of W, written as a row."),
            wrong("(1, 2)", "That is the first row of the matrix, x W for the row (1, 0)."),
        ],
    ),
    "stored": Choice(
        "`linear = nn.Linear(8, 3)` maps 8 numbers to 3. Which shape does `linear.weight` have, and the matrix of"
        " which convention is it?",
        [
            wrong("(8, 3), that of rows", "It is applied to rows, but what is kept is the transpose."),
            right("(3, 8), that of columns", "(out, in): as it stands it multiplies a column from the left."),
            wrong("(3, 8), that of rows", "A matrix for rows, x W, has as many *rows* as x has numbers: 8."),
            wrong(
                "(8, 3), that of columns", "A matrix for columns, W x, has as many *columns* as x has numbers: 8."
            ),
        ],
    ),
    "translated": Choice(
        "In columns a head is `V Softmax(Kᵀ Q)`, with softmax down each column. What is it in rows?",
        [
            wrong(
                "`V Softmax(Q Kᵀ)`, softmax along each row",
                "Half a translation. The order of *every* product is reversed, that with V included.",
            ),
            wrong(
                "`Softmax(Q Kᵀ) V`, softmax down each column",
                "Softmax changes its axis as well. A query's scores are a row now.",
            ),
            wrong(
                "`Softmax(K Qᵀ) V`, softmax along each row",
                "That has keys for its rows. With n ≠ m it does not even fit V.",
            ),
            right(
                "`Softmax(Q Kᵀ) V`, softmax along each row",
                "Products are reversed, and the scores of a query, a column before, are a row.",
            ),
        ],
    ),
    "sizes": Choice(
        "Somebody has forgotten to transpose W^Q, all heads side by side. With which sizes does a test raise an "
        "error?",
        [
            right("d_model = 11, h = 3, d_k = 5", "The matrix is 11 × 15, and its transpose does not fit."),
            wrong("d_model = 12, h = 3, d_k = 4", "h · d_k = 12: the matrix is square, and its transpose fits."),
            wrong("d_model = 512, h = 8, d_k = 64", "The usual sizes make it 512 × 512: square again."),
            wrong("d_model = 16, h = 1, d_k = 16", "With one head as wide as the model it is square, too."),
        ],
    ),
}

PAPERS_FORM = {
    "ranks": Choice(
        "A layer with random weights has d_model = 20, four heads, d_k = 3 and d_v = 5. What does "
        "`np.linalg.matrix_rank(circuits.ov(layer))` print?",
        [
            wrong("[20 20 20 20]", "The matrices are 20 × 20, but each is a product through a narrow middle."),
            wrong("[3 3 3 3]", "That is d_k, the rank of the QK matrices, which say where a head looks."),
            right("[5 5 5 5]", "OV is a product through d_v = 5 numbers, and has at most that rank."),
            wrong("[12 12 12 12]", "The widths of all heads do not add up: each head has a product of its own."),
        ],
    ),
    "gauge": Choice(
        "Which change to every head leaves the output of a layer without biases as it is?",
        [
            wrong(
                "W^Q and W^K both doubled",
                "All scores become four times as large, and the attention sharper.",
            ),
            right(
                "W^Q doubled, W^K halved",
                "The scores depend on the product of the two, in which 2 and ½ cancel.",
            ),
            wrong(
                "W^Q doubled, W^V halved",
                "These two never meet in one product: one changes the weights, the other what is averaged.",
            ),
            wrong(
                "W^V and W^O both halved",
                "Everything that the head writes becomes a quarter.",
            ),
        ],
    ),
    "numbers": Number(
        "A layer of width 512 has 8 heads of width 64. How many numbers do the W^V and the W^O of *one* head hold "
        "together?",
        lambda: (
            counting.shape_only_weights(512, h=8).W_v[0].size + counting.shape_only_weights(512, h=8).W_o[0].size
        ),
        "512 · 64 in each of the two. Their product, which a paper calls its value matrix, has 512².",
        [
            Slip(lambda: 512**2, "That is the product of the two, four times as large."),
            Slip(lambda: 512 * 64, "That is one of the two matrices."),
            Slip(lambda: 8 * 2 * 512 * 64, "That is all eight heads together."),
        ],
    ),
    "scale": Choice(
        "A layer was trained with the scaled dot product and d_k = 16. You want to use it in the papers' formula,"
        " which does not scale. What do you change?",
        [
            wrong(
                "W^Q and W^K are both divided by 4",
                "Then the scores are divided by 16, the square of what is wanted.",
            ),
            wrong(
                "Nothing, since softmax does not see it",
                "Softmax does not see a summand that all scores share. It does see a factor.",
            ),
            wrong(
                "W^V is divided by 4",
                "That would scale what is averaged, after softmax. The scale acts before it.",
            ),
            right(
                "W^Q is divided by 4, its bias too",
                "A score is an inner product with the query, so the query can absorb the factor.",
            ),
        ],
    ),
}

COUNTING = {
    "parameters": Number(
        "How many parameters does a layer without biases have with d_model = 64, 8 heads of width 8, and 2 "
        "key-value heads?",
        lambda: counting.parameters(grouped(h_kv=2)),
        "W^Q and W^O have 64 · 64 each; W^K and W^V, for two heads of 8, have 64 · 16 each.",
        [
            Slip(lambda: counting.parameters(grouped()), "That is without sharing: 4 · 64²."),
            Slip(lambda: counting.parameters(grouped(h_kv=1)), "That is for a single key-value head."),
            Slip(
                lambda: counting.parameters(grouped(h_kv=2)) - grouped().W_o.size,
                "The output projection is missing.",
            ),
        ],
    ),
    "longer": Number(
        "A layer of width 1024 in the usual widths reads 1024 tokens. Now the text is twice as long. How many "
        "times as many multiply-adds does that take?",
        lambda: work(2048) / work(1024),
        "4 n d² + 2 n² d: with n = d it is 6 d³, and with n = 2d it is 16 d³.",
        [
            Slip(lambda: 2.0, "That is right for the projections alone, which grow with the length."),
            Slip(lambda: 4.0, "That is right for scores and averages alone, which grow with its square."),
            Slip(
                lambda: 3.0,
                "The mean of 2 and 4 would be right if both parts were equal, which they are at n = 2d.",
            ),
        ],
        digits=2,
    ),
    "causal": Number(
        "At n = 2 d_model, which share of a layer's multiply-adds is left under a causal mask, if nothing hidden "
        "is computed?",
        lambda: work(2048, causal=True) / work(2048),
        "There, half of the work is scores and averages, and the mask saves half of that half.",
        [
            Slip(lambda: 0.5, "The mask halves scores and averages. The projections are needed as before."),
            Slip(lambda: 1.0, "That is a program that computes all scores and hides half of them."),
            Slip(lambda: 2 / 3, "That would be so if scores and averages were two thirds of the work."),
        ],
        digits=2,
    ),
    "cache": Number(
        "A model has 24 layers with 16 query heads and 4 key-value heads of width 64. How many bytes does its "
        "cache take for each token, in 16-bit numbers?",
        lambda: 24 * counting.cache_bytes(counting.shape_only_weights(1024, h=16, h_kv=4), 1, np.float16),
        "24 layers · 4 heads · (64 + 64) numbers · 2 bytes.",
        [
            Slip(
                lambda: 24 * counting.cache_bytes(counting.shape_only_weights(1024, h=16), 1, np.float16),
                "Counted for all 16 query heads. Only keys and values are kept, and they have 4 heads.",
            ),
            Slip(lambda: 24 * 4 * 64 * 2, "The keys alone. Values are kept as well."),
            Slip(lambda: 4 * (64 + 64) * 2, "One layer. Every layer has keys and values of its own."),
        ],
    ),
}

ASKED = {
    "multi-head": MULTI_HEAD,
    "why-heads": WHY_HEADS,
    "output-projection": OUTPUT_PROJECTION,
    "conventions": CONVENTIONS,
    "papers-form": PAPERS_FORM,
    "counting": COUNTING,
}
