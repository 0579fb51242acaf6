"""A task that one head cannot do and two heads can: to bring back two different averages at once.

A query looks at `m` tokens. Each token holds two numbers, and the answer is wanted in two numbers: an
average of the tokens' *first* numbers with the weights `first`, and an average of their *second* numbers
with the weights `second`. Where a token stands is what its key says; what it holds is its value.
"""

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from ..reference import row
from ..weights import ColumnWeights, RowWeights


def inputs(m: int) -> tuple[Float[Array, "1 1"], Float[Array, "m m"]]:
    """What asks and what is compared, as rows: one query that is always the same, and a key per place."""
    return np.ones((1, 1)), np.eye(m)


def two_heads(first: Float[Array, " m"], second: Float[Array, " m"]) -> RowWeights:
    """A layer that does the task: each head attends with one set of weights and passes on one number.

    A score is the logarithm of the weight it is to give; -100 stands for the logarithm of zero.

    Raises
    ------
    TypeError, ValueError
        If the weights of an average are not of one length, negative, or do not sum to one.

    Examples
    --------
    >>> first, second = np.array([0.5, 0.5, 0.0]), np.array([0.0, 0.0, 1.0])
    >>> float(error(two_heads(first, second), first, second)) < 1e-12
    True
    """
    _check_averages(first, second)
    wanted = np.stack([first, second])
    sums = wanted.sum(axis=1)
    if not np.allclose(sums, 1):
        raise ValueError(f"weights of an average must sum to one, got {sums.tolist()}")
    scores = np.log(wanted, out=np.full(wanted.shape, -100.0), where=wanted > 0)
    return RowWeights(
        W_q=np.ones((2, 1, 1)),  # the query is always 1
        W_k=scores[:, :, None],  # so that the keys are the scores
        W_v=np.eye(2)[:, :, None],  # head 1 reads first numbers, head 2 second
        W_o=np.eye(2)[:, None, :],  # and each writes its own output
    )


def error(weights: RowWeights | ColumnWeights, first: Float[Array, " m"], second: Float[Array, " m"]) -> float:
    """The mean squared error of a layer on the task, when all numbers are independent with variance one.

    Exact: the layer's answer is linear in what the tokens hold, so its error is the sum of its squared
    errors when one number is one and all others are zero.

    Raises
    ------
    TypeError, ValueError
        If the weights of the averages are not of one length, or negative, or the layer does not fit the task.

    Examples
    --------
    >>> rng, half = np.random.default_rng(0), np.array([0.5, 0.5])
    >>> nothing = RowWeights(np.zeros((1, 1, 1)), np.zeros((1, 2, 1)), np.zeros((1, 2, 1)), np.zeros((1, 1, 2)))
    >>> float(error(nothing, half, half))
    1.0
    """
    _check_averages(first, second)
    by_rows = weights.T if isinstance(weights, ColumnWeights) else weights
    m = len(first)
    query, keys = (np.broadcast_to(x, (2 * m, *x.shape)) for x in inputs(m))
    contents = np.eye(2 * m).reshape(2 * m, m, 2)  # in each, one of the 2 m numbers is one
    answers = row.multi_head(query, keys, contents, by_rows).output[..., 0, :]
    wanted = np.stack([contents[..., 0] @ first, contents[..., 1] @ second], axis=1)
    return float(np.square(answers - wanted).sum())


def residual_error(wanted: Float[Array, " m"], attended: Float[Array, "*s m"]) -> Float[Array, "*s"]:
    """What a head misses of one average, given where it attends, when the matrices behind it are the best.

    Computes :eq:`eq-best-multiple`: the squared distance of the wanted weights from the line through the
    attended ones.

    Examples
    --------
    >>> residual_error(np.array([1.0, 0.0]), np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])).round(3).tolist()
    [0.0, 0.5, 1.0]
    """
    return np.square(wanted).sum() - np.square(attended @ wanted) / np.square(attended).sum(axis=-1)


def best_single_head_error(first: Float[Array, " m"], second: Float[Array, " m"]) -> float:
    """What a single head misses at the least, however wide it is.

    Computes :eq:`eq-one-head-error` when no token counts in both averages: the smaller of the two sums
    of squared weights.

    Raises
    ------
    TypeError, ValueError
        If the weights are not of one length, or negative, or a token counts in both averages.

    Examples
    --------
    >>> best_single_head_error(np.array([1.0, 0.0]), np.array([0.0, 1.0]))
    1.0
    """
    _check_averages(first, second)
    if np.any(first * second):
        raise ValueError("each token may count in one of the two averages only; here one counts in both")
    return float(min(np.square(first).sum(), np.square(second).sum()))


def _check_averages(first: Array, second: Array) -> None:
    for name, weights in (("first", first), ("second", second)):
        if not isinstance(weights, np.ndarray) or weights.dtype.kind != "f":
            raise TypeError(f"{name} must be a NumPy array of floating-point numbers, got {weights!r}")
        if weights.ndim != 1 or not weights.size or not np.all((weights >= 0) & np.isfinite(weights)):
            raise ValueError(f"{name} must hold a weight for every token, none negative, got {weights}")
    if len(first) != len(second):
        raise ValueError(f"first and second must be of one length, got {len(first)} and {len(second)} weights")
