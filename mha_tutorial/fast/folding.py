"""Changes of a layer's weights that leave its output as it is and its work smaller."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from ..weights import RowWeights


def fold_scale(weights: RowWeights, exponential: Callable = np.exp2) -> RowWeights:
    """Scale the query projection, so that the exponential of a plain inner product is what softmax needs.

    Computes :eq:`eq-exp2`: with the new weights ``exponential(q @ k.T)`` is what
    ``exp(q @ k.T / sqrt(d_k))`` was with the old ones. Queries are few beside the scores, and their
    matrix is scaled once for all tokens.

    Parameters
    ----------
    exponential
        ``np.exp2`` or ``np.exp``: any power of a base, which is read off its value at one.

    Examples
    --------
    >>> ones = np.ones((1, 3, 4))
    >>> fold_scale(RowWeights(ones, ones, ones, ones.mT)).W_q[0, 0].round(3)  # log2(e) / sqrt(4)
    array([0.721, 0.721, 0.721, 0.721])
    """
    factor = 1 / (math.log(exponential(1.0)) * math.sqrt(weights.d_k))
    return replace(weights, W_q=weights.W_q * factor, b_q=None if weights.b_q is None else weights.b_q * factor)


def drop_key_bias(weights: RowWeights) -> RowWeights:
    """Leave out the key bias: it adds one number to all scores of a query, and softmax does not see it.

    Computes :eq:`eq-key-bias-drops`. This holds for scores that are inner products, scaled or not, and for
    no others.

    Examples
    --------
    >>> from mha_tutorial.reference import row
    >>> weights, x = RowWeights.random(np.random.default_rng(0), d_model=6, h=2), np.eye(5, 6)
    >>> before, after = (row.multi_head(x, x, x, w) for w in (weights, drop_key_bias(weights)))
    >>> np.allclose(before.scores, after.scores), np.allclose(before.output, after.output)
    (False, True)
    """
    return replace(weights, b_k=None)


def fold_value_bias(weights: RowWeights) -> RowWeights:
    """Move the value bias behind the average: an average of values that all moved by it moves by it too.

    Computes :eq:`eq-value-bias-folds`. The weights of a query must sum to one, so this is wrong for a
    query that sees no key, and wherever dropout acts on the weights.

    Examples
    --------
    >>> from mha_tutorial.reference import row
    >>> weights, x = RowWeights.random(np.random.default_rng(0), d_model=6, h=2), np.eye(5, 6)
    >>> before, after = (row.multi_head(x, x, x, w) for w in (weights, fold_value_bias(weights)))
    >>> np.allclose(before.heads, after.heads), np.allclose(before.output, after.output)
    (False, True)
    """
    if weights.b_v is None:
        return weights
    of_each_head = np.repeat(weights.b_v, weights.group_size, axis=0)
    written = (of_each_head[:, None, :] @ weights.W_o).sum(axis=(0, 1))
    return replace(weights, b_v=None, b_o=written if weights.b_o is None else weights.b_o + written)
