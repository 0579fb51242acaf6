"""Questions on the part Tensors."""

import numpy as np

from ... import Causal, MultiHeadAttention, RowWeights
from ...gradients import backward
from ...reference import row
from .record import Choice, Number, Slip, right, wrong

ONE = np.ones((1, 1, 1))
PLAIN = RowWeights(ONE, ONE, ONE, ONE)  # one head of width one that projects nothing


def masked(hide_first: bool) -> float:
    """Scores 0, ln 3, ln 6, of which the third is hidden, before softmax or after it; values 8, 4, 100."""
    scores, visible = np.log([[1.0, 3, 6]]), np.array([[True, True, False]])
    weights = row.softmax(row.hide(scores, visible)) if hide_first else row.softmax(scores) * visible
    return float((weights @ [8, 4, 100])[0])


def on_tokens(extra: bool) -> float:
    """What two tokens with scores 0 and ln 2 get together, with or without an extra key of zeros."""
    query, keys = np.ones((1, 1, 1)), np.log([[[1.0], [2.0]]])
    zero = (np.zeros((1, 1, 1)), np.zeros((1, 1, 1))) if extra else None
    attention = MultiHeadAttention(PLAIN, extra_keys=zero).trace(query, keys).attention
    return float(attention[..., :2].sum())


def of_third_score() -> float:
    """The derivative of the answer by the third score: weights ½, ¼, ¼ and values 4, 8, 12."""
    query, keys, values = np.ones((1, 1)), np.log([[2.0], [1.0], [1.0]]), np.array([[4.0], [8.0], [12.0]])
    trace = row.multi_head(query, keys, values, PLAIN)
    return float(backward(np.ones((1, 1)), trace, query, keys, values, PLAIN).K[2, 0])


SHAPES = {
    "scores": Choice(
        "Four texts of nine tokens, d_model = 24, six heads. Which shape do the scores have?",
        [
            wrong(
                "(4, 9, 6, 6)",
                "That compares heads with heads within a token: the axes of heads and tokens were not exchanged.",
            ),
            wrong(
                "(24, 9, 9)", "Six heads of four texts are 24 tables, but text and head are axes of their own here."
            ),
            right("(4, 6, 9, 9)", "A table of nine queries by nine keys for each text and head."),
            wrong(
                "(4, 6, 9, 4)", "That is the shape of queries and keys, whose heads are 24 / 6 = 4 numbers wide."
            ),
        ],
    ),
    "split": Choice(
        "Two tokens, in rows, are split into two heads. What is the first head?",
        [
            right("[[0, 1], [4, 5]]", "The first two numbers of each token."),
            wrong(
                "[[0, 1], [2, 3]]",
                "Two halves of the *same* token: that is `reshape(2, 2, 2)` without a transpose.",
            ),
            wrong("[[0, 2], [4, 6]]", "Every other number. A head gets numbers that are next to each other."),
            wrong("[[0, 4], [1, 5]]", "The right numbers, transposed: tokens are rows, in a head as well."),
        ],
        code="tokens = np.array([[0, 1, 2, 3], [4, 5, 6, 7]])\nsteps.split_heads(tokens, h=2)[0]",
    ),
    "einsum": Choice(
        '`np.einsum("bhnd,hdi->bni", heads, W_o)`: what does it compute?',
        [
            wrong(
                "What each head writes, one array per head",
                "The letter h is missing from the result, so it is summed over.",
            ),
            wrong(
                "The heads side by side, not yet projected",
                "The letter d is summed over too, and i, the width of the output, comes from `W_o`.",
            ),
            wrong(
                "The mean over heads of what they write",
                "A missing letter means a sum, and never a mean.",
            ),
            right(
                "The sum over heads of what they write",
                "Σ head W^O, over h and d. It is the concatenated heads times W^O.",
            ),
        ],
    ),
    "merge": Choice(
        "`averages` has the shape (b, h, n, d). Which line puts the heads of each token side by side?",
        [
            wrong(
                "`averages.reshape(b, n, h * d)`",
                "The shape is right. But `reshape` keeps the order of memory, in which heads come before tokens.",
            ),
            right(
                "`averages.swapaxes(1, 2).reshape(b, n, h * d)`",
                "First tokens before heads, (b, n, h, d), then the last two axes become one.",
            ),
            wrong(
                "`averages.swapaxes(2, 3).reshape(b, n, h * d)`",
                "That exchanges tokens and features. Heads must move next to the features.",
            ),
            wrong(
                "`averages.reshape(b, h * d, n).swapaxes(1, 2)`",
                "It has the shape, and an order in which features and tokens of each head are mixed up.",
            ),
        ],
    ),
    "notices": Choice(
        "A layer splits heads with `reshape` alone. Which test notices?",
        [
            wrong(
                "The output has the shape of the input, for texts of any length",
                "It has: that is what makes this mistake so common.",
            ),
            wrong(
                "Each row of the attention sums to one",
                "Softmax is right. What is wrong is whose pieces attend to whose.",
            ),
            right(
                "Changing the last token changes the output of the first",
                "With the pieces of a token attending to each other, no other token can make a difference.",
            ),
            wrong(
                "The loss goes down when it is trained",
                "It does: the layer computes *something* from each token by itself.",
            ),
        ],
    ),
}

NUMPY_LAYER = {
    "pack": Choice(
        "`W_k` has the shape (4, 20, 6): four heads, tokens of width 20. Which shape does the packed matrix have,"
        " and how is it made?",
        [
            wrong(
                "(80, 6), by `W_k.reshape(80, 6)`", "That puts the heads on top of each other, as is right for W^O."
            ),
            wrong(
                "(20, 24), by `W_k.reshape(20, 24)`", "The shape is right; the numbers of different rows are mixed."
            ),
            wrong("(24, 20), by `W_k.reshape(24, 20)`", "It would fit columns, and the numbers are mixed as well."),
            right("(20, 24), by `np.concatenate(W_k, axis=1)`", "The heads side by side, each 6 columns wide."),
        ],
    ),
    "column": Choice(
        "Four heads of width 3 are packed, and queries are `x @ packed`. Counted from zero, which number of which"
        " head is column 7?",
        [
            right("number 1 of head 2", "Columns 6, 7 and 8 belong to head 2, and 7 is the second of them."),
            wrong("number 1 of head 3", "7 = 1 · 4 + 3 would be right if the heads were interleaved."),
            wrong(
                "number 3 of head 1",
                "A head has 3 numbers, 0 to 2. Its width divides here, not the number of heads.",
            ),
            wrong("number 7 of head 0", "The columns of all heads are counted through, three for each."),
        ],
    ),
    "transpose": Choice(
        "`q` and `k` have the shape (b, h, n, d). Which line makes the scores?",
        [
            wrong("`q @ k.transpose(0, 2, 1)`", "Written for three axes. With four it raises an error."),
            wrong("`q.mT @ k`", "It runs, and compares features with features: (b, h, d, d)."),
            right("`q @ k.mT`", "`.mT` exchanges the last two axes, however many are in front: (b, h, n, n)."),
            wrong("`q @ k`", "The inner sizes, d and n, do not agree, or agree by luck."),
        ],
    ),
    "sink": Number(
        "A query has the scores 0 and ln 2 with two tokens. The layer has an extra key of zeros. Which share of "
        "its weight do the two tokens get together?",
        lambda: on_tokens(extra=True),
        "The extra key has the score 0 and the exponential 1. The tokens have 1 and 2, so 3 of 4.",
        [
            Slip(
                lambda: on_tokens(extra=False),
                "Weights sum to one over *all* keys, and the layer's own key is one of them.",
            ),
            Slip(lambda: 2 / 3, "That is what the second token gets without the extra key."),
            Slip(lambda: 0.5, "That is the second token alone; the first gets ¼."),
        ],
        digits=2,
    ),
    "bias": Number(
        "Somebody adds the output bias inside the loop over heads. Each of its numbers is 2, and there are 5 "
        "heads. By how much is the output too large?",
        lambda: (5 - 1) * 2,
        "It is added five times, and once is right.",
        [
            Slip(lambda: 5 * 2, "That is all that was added. One of the five times is right."),
            Slip(lambda: 2, "The bias itself. It is counted too often once for each *further* head."),
            Slip(lambda: 0, "No head divides it: each iteration adds all of it."),
        ],
    ),
}

MASKS = {
    "hidden": Number(
        "A query has the scores 0, ln 3 and ln 6 with three keys whose values are 8, 4 and 100. The third key is "
        "hidden. What is the answer?",
        lambda: masked(hide_first=True),
        "The exponentials 1 and 3 are left, the weights are ¼ and ¾, and 2 + 3 = 5.",
        [
            Slip(
                lambda: masked(hide_first=False),
                "Hidden after softmax: the third key had already taken 0.6 of the weight.",
            ),
            Slip(
                lambda: float((row.softmax(np.log([[1.0, 3, 6]])) @ [8, 4, 100])[0]),
                "The third key was not hidden at all.",
            ),
            Slip(
                lambda: float((row.softmax(np.log([[1.0, 3, 6]]) * [1, 1, 0]) @ [8, 4, 100])[0]),
                "The scores were multiplied by the mask. A score of 0 is no hidden score: its exponential is 1.",
            ),
        ],
        digits=1,
    ),
    "polarity": Choice(
        "`torch.tril(torch.ones(3, 3, dtype=torch.bool))` is passed to `nn.MultiheadAttention` as `attn_mask`. "
        "What does the third query see?",
        [
            wrong(
                "All three keys",
                "That is what was meant, and what `scaled_dot_product_attention` makes of it: there True means "
                "see.",
            ),
            wrong(
                "The first two keys",
                "The diagonal is True as well, so the query's own key is treated like the ones before it.",
            ),
            wrong(
                "Its own key alone",
                "In the third row of the triangle all three entries are True.",
            ),
            right(
                "No key",
                "In this module True means *ignore*, and the third row is True throughout. It may give NaN.",
            ),
        ],
    ),
    "triangle": Number(
        "Six tokens are in a cache and two new ones arrive, so there are 2 queries and 8 keys. With "
        "`is_causal=True` of PyTorch's `scaled_dot_product_attention`, how many keys does the *second* new token "
        "see?",
        lambda: int(Causal("top-left").rows(2, 8)[1].sum()),
        "That triangle begins at the top left: the second query sees two keys, the oldest ones. It should see all"
        " eight.",
        [
            Slip(
                lambda: int(Causal("bottom-right").rows(2, 8)[1].sum()),
                "That is what it *should* see, with the triangle at the bottom right. The triangle of "
                "`is_causal=True` starts at the top left: query 1 sees key 1, query 2 sees keys 1 and 2.",
            ),
            Slip(
                lambda: int(Causal("bottom-right").rows(2, 8)[0].sum()),
                "That is what the *first* new token should see.",
            ),
            Slip(lambda: 1, "That is what the first new token sees with this triangle."),
        ],
    ),
    "documents": Choice(
        "Under `Documents([2, 3]) & Causal()`, which tokens does the fourth one see, counted from one?",
        [
            wrong("1, 2, 3 and 4", "The causal mask alone would allow that. Tokens 1 and 2 are another document."),
            right("3 and 4", "Its document has the tokens 3, 4 and 5, and it sees those up to itself."),
            wrong("3, 4 and 5", "The documents alone would allow that. Token 5 comes later."),
            wrong("4 alone", "It is the second of its document, not the first."),
        ],
    ),
    "axes": Choice(
        "Four texts, four heads. `mask` has the shape (4, n, m): one matrix for each *text*. The scores are (4, "
        "4, n, m). Which array is to be passed?",
        [
            right(
                "`mask[:, None]`", "(4, 1, n, m): the axis of heads has length one, and every head gets the same."
            ),
            wrong("`mask[None]`", "(1, 4, n, m) is one matrix for each *head*."),
            wrong("`mask`", "Axes are aligned from the last on, so the four matrices would go to the heads."),
            wrong("`mask[..., None]`", "(4, n, m, 1): every axis is now in the place of another."),
        ],
    ),
}

GRADIENTS = {
    "score": Number(
        "A query has the weights ½, ¼, ¼ over the values 4, 8, 12, so its answer is 7. The loss is the answer. "
        "What is the gradient with respect to the *third score*?",
        of_third_score,
        "Its weight times how much its value exceeds the answer: ¼ · (12 − 7).",
        [
            Slip(lambda: 1 / 4, "The weight is the gradient with respect to the third *value*."),
            Slip(lambda: 12, "The value is the gradient with respect to the third *weight*."),
            Slip(
                lambda: 12 / 4,
                "Raising one score lowers the other weights. Subtract the answer from the value first.",
            ),
        ],
        digits=2,
    ),
    "zero": Number(
        "The gradients with respect to the three scores of a query begin with 0.3 and −0.5. What is the third?",
        lambda: -(0.3 - 0.5),
        "They sum to zero, because raising all scores alike changes nothing.",
        [
            Slip(lambda: 1 - (0.3 - 0.5), "The *weights* sum to one. Their derivatives sum to zero."),
            Slip(lambda: 0.3 - 0.5, "The sign is wrong: together with the others this makes −0.4."),
            Slip(lambda: 0.0, "A gradient of zero belongs to a hidden score, or to a value equal to the answer."),
        ],
        digits=2,
    ),
    "product": Choice(
        "C = A B with A of 3 × 5 and B of 5 × 2, and `C_bar` is the gradient with respect to C. Which is the "
        "gradient with respect to B?",
        [
            wrong("`C_bar @ B.T`", "It is 3 × 5, the shape of A: that is the gradient with respect to A."),
            wrong(
                "`C_bar @ A.T`", "3 × 2 and 5 × 3 do not fit. The gradient comes from the right, A from the left."
            ),
            right("`A.T @ C_bar`", "5 × 3 times 3 × 2 is 5 × 2, the shape of B."),
            wrong("`B.T @ C_bar`", "2 × 5 and 3 × 2 do not fit, and B itself plays no part in its own gradient."),
        ],
    ),
    "key-bias": Choice(
        "The key bias of a layer gets no gradient. Which change makes it matter?",
        [
            wrong(
                "A causal mask, so that each query sees another number of keys",
                "Each query sees fewer keys, but to all of those the bias still adds the same number.",
            ),
            right(
                "A rotation of the keys by their position, after the bias was added",
                "Then the bias arrives at each key turned by another angle, and scores differ by it.",
            ),
            wrong(
                "More heads, each with a key bias of its own",
                "In each head the bias adds one number to all scores of a query.",
            ),
            wrong(
                "A larger step of the optimiser",
                "However large, a step times a gradient of zero is zero.",
            ),
        ],
    ),
    "hidden": Choice(
        "Of four queries, only the last sees key 6. What does the gradient with respect to *value* 6 depend on?",
        [
            wrong(
                "On nothing: a hidden key gets no gradient",
                "It is hidden from three queries and seen by one. Only what no query sees gets none.",
            ),
            wrong(
                "On all four queries, since gradients are summed over them",
                "They are, and three of the terms have the factor zero: the weight at a hidden place.",
            ),
            wrong(
                "On key 6, but not on the query",
                "It is a weight times the gradient that comes back, and the weight depends on the query.",
            ),
            right(
                "On the last query alone, with the weight it gives to key 6",
                "The gradient of a value is Aᵀ times the gradient of the head, and its column of A has one entry.",
            ),
        ],
    ),
}

ASKED = {"shapes": SHAPES, "numpy-layer": NUMPY_LAYER, "masks": MASKS, "gradients": GRADIENTS}
