"""Questions on the part Practice."""

import numpy as np

from ... import ColumnWeights, layouts
from ...reference import row
from .record import Choice, Number, Slip, right, wrong


def row_of(layout: str, key: str, p: int, h: int, i: int) -> int:
    """In which row of a fused matrix a layout keeps feature i of head h of projection p, with 4 heads of 8."""
    marked, zeros = np.zeros((3, 4, 8, 32)), np.zeros((4, 8))
    marked[p, h, i] = 1
    W_q, W_k, W_v = marked
    weights = ColumnWeights(W_q, W_k, W_v, np.zeros((4, 32, 8)), zeros, zeros, zeros, np.zeros(32))
    return int(np.flatnonzero(layouts.dump(weights, layout)[key][:, 0])[0])


def weights_left() -> float:
    """What the weights of a query with scores 0, ln 2 and ln 5 sum to, if the third is hidden after softmax."""
    return float(row.softmax(np.log([[1.0, 2, 5]]))[0, :2].sum())


FIELD_GUIDE = {
    "ones": Number(
        "A query has the scores 0, ln 2 and ln 5, and the third key is hidden, but only after softmax. All values"
        " are one. What is its answer?",
        weights_left,
        "The hidden key had taken 5 of 8. What is left sums to 3/8, and with values of one that is the answer.",
        [
            Slip(
                lambda: 1.0, "It should be: with values of one, every average is one. That is how the fault shows."
            ),
            Slip(lambda: 1 - weights_left(), "That is what the hidden key had taken."),
            Slip(lambda: 0.0, "The two keys that are seen keep their weights."),
        ],
        digits=3,
    ),
    "width": Choice(
        "A function divides its scores by the root of d_model and not of d_k. With which input is its output right "
        "nevertheless?",
        [
            wrong(
                "With two heads and random queries and keys", "The scores are too small, and the weights too even."
            ),
            right(
                "With one head as wide as the model", "There d_k is d_model. That is why this survives small tests."
            ),
            wrong("With as many queries as keys", "The scale has nothing to do with how many there are."),
            wrong("With a causal mask", "What is seen is still weighted too evenly."),
        ],
    ),
    "groups": Number(
        "Eight query heads share two key-value heads, and a program has `k.repeat(1, 4, 1, 1)`. Counted from "
        "zero, which key-value head does query head 3 read?",
        lambda: int(np.tile(np.arange(2), 4)[3]),
        "The copies lie end to end, 0 1 0 1 0 1 0 1. Neighbours should share: 0 0 0 0 1 1 1 1.",
        [
            Slip(lambda: int(np.arange(2).repeat(4)[3]), "That is what it should read, by `repeat_interleave`."),
            Slip(lambda: 3, "There are two key-value heads, 0 and 1."),
            Slip(lambda: 2, "There are two key-value heads, and 2 would be the third."),
        ],
    ),
    "corner": Choice(
        "A causal attention makes its mask by `np.tri(n, m)`. In training n = m. What does a new token see when "
        "it comes with a cache, so that n = 1?",
        [
            wrong(
                "All keys, as it should", "That takes `np.tri(n, m, m - n)`, whose triangle ends at the last key."
            ),
            wrong(
                "Its own key alone", "Its own is the last of the m keys, and the row has its one at the other end."
            ),
            wrong("No key", "The one row begins with a one."),
            right("The first key alone", "The row is 1 0 0 … 0, so every new token gets the same answer."),
        ],
    ),
    "unit": Choice(
        "`f(q, k, v)` is somebody's attention, and gives no weights. How do you get to see those of n queries "
        "over m keys?",
        [
            right("`f(q, k, np.eye(m))`", "An average of unit vectors, weighted by A, is the row of A."),
            wrong("`f(q, k, np.ones((m, 1)))`", "That gives what the weights of each query sum to."),
            wrong("`f(q, k, k)`", "That gives averages of keys, in which weights can no longer be told apart."),
            wrong("`f(np.eye(n), k, v)`", "Those are other queries, and what comes back are averages of v."),
        ],
    ),
}

LAYOUTS = {
    "row": Number(
        "A fused matrix is stored in blocks, queries, keys, values, with 4 heads of 8 features. Counted from "
        "zero, in which row is feature 3 of head 2 of the *keys*?",
        lambda: row_of("torch", "in_proj_weight", 1, 2, 3),
        "(p H + h) d + i = (1 · 4 + 2) · 8 + 3.",
        [
            Slip(
                lambda: row_of("neox", "query_key_value.weight", 1, 2, 3),
                "That is its row where heads come first, (3 h + p) d + i.",
            ),
            Slip(
                lambda: row_of("torch", "in_proj_weight", 0, 2, 3),
                "That is the same feature of the queries. Before the keys there are 4 heads of queries.",
            ),
            Slip(
                lambda: (1 + 2) * 8 + 3, "Projection and head were added. A block of queries has 4 heads, not one."
            ),
        ],
    ),
    "misread": Choice(
        "A matrix with two heads of four features is stored head by head, and read as if it were in blocks. Row "
        "12 is the beginning of what, and for what is it taken?",
        [
            wrong("It is the keys of head 1, taken for the queries of head 1", "The other way round."),
            right(
                "It is the queries of head 1, taken for the keys of head 1",
                "12 / 4 = 3, which is 3 h + p for h = 1, p = 0, and p H + h for p = 1, h = 1.",
            ),
            wrong(
                "It is the values of head 0, taken for the keys of head 0",
                "The values of head 0 begin at row 8, after its queries and its keys.",
            ),
            wrong(
                "It is the queries of head 1, and taken for that",
                "The two orders agree in the first and in the last four rows alone.",
            ),
        ],
    ),
    "square": Choice(
        "A layer of GPT-2, width 768, is moved to PyTorch by hand, and one transpose is forgotten. For which "
        "tensor does that raise no error?",
        [
            wrong("`c_attn.weight`", "768 × 2304 for 2304 × 768: the shape tells."),
            wrong("`c_attn.bias`", "A bias has one axis, and there is nothing to transpose."),
            right("`c_proj.weight`", "It is 768 × 768, and fits either way."),
            wrong(
                "None: shapes are always checked", "They are, and the transpose of a square matrix has its shape."
            ),
        ],
    ),
    "one-head": Choice(
        "You have ported a layer. With one head it agrees with the original, with two it does not. What do you "
        "look at first?",
        [
            right("In which order heads and projections are stored", "With one head, both orders are the same."),
            wrong("Whether a matrix is transposed", "With one head that would show as well."),
            wrong("Whether a bias is missing", "A bias would be missing with one head, too."),
            wrong("Whether queries and keys are exchanged", "That makes a difference with one head already."),
        ],
    ),
}

ASKED = {"field-guide": FIELD_GUIDE, "layouts": LAYOUTS}
