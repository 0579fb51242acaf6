"""Questions on the part Practice."""

import numpy as np

from ... import ColumnWeights, layouts
from .record import Choice, Number, Slip, right, wrong


def row_of(layout: str, key: str, p: int, h: int, i: int) -> int:
    """In which row of a fused matrix a layout keeps feature i of head h of projection p, with 4 heads of 8."""
    marked, zeros = np.zeros((3, 4, 8, 32)), np.zeros((4, 8))
    marked[p, h, i] = 1
    W_q, W_k, W_v = marked
    weights = ColumnWeights(W_q, W_k, W_v, np.zeros((4, 32, 8)), zeros, zeros, zeros, np.zeros(32))
    return int(np.flatnonzero(layouts.dump(weights, layout)[key][:, 0])[0])


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

ASKED = {"layouts": LAYOUTS}
