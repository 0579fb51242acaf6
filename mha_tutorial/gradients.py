"""The backward pass of multi-head attention, derived by hand from the sum over heads."""

import math
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from ._checks import COLUMNS, ROWS
from .trace import Trace
from .weights import ColumnWeights, RowWeights


class Gradients(NamedTuple):
    """How the loss changes with each input and each weight; every array is shaped like what it belongs to."""

    Q: Array
    K: Array
    V: Array
    weights: ColumnWeights | RowWeights


def backward(
    output_gradient: Array,
    trace: Trace,
    Q: Array,
    K: Array,
    V: Array,
    weights: ColumnWeights | RowWeights,
    scale: float | None = None,
) -> Gradients:
    """Carry the gradient of a loss from the output of `multi_head` back to its inputs and weights.

    Goes through the steps of the trace from last to first: :eq:`eq-grad-heads` and
    :eq:`eq-grad-output-weights`, then :eq:`eq-grad-values`, :eq:`eq-grad-attention`,
    :eq:`eq-grad-scores`, :eq:`eq-grad-queries` and :eq:`eq-grad-keys` in every head, and
    :eq:`eq-grad-weights` and :eq:`eq-grad-inputs` at the end. With `RowWeights` it is the same,
    transposed: :eq:`eq-grad-heads-row`, :eq:`eq-grad-output-weights-row`, :eq:`eq-grad-values-row`,
    :eq:`eq-grad-attention-row`, :eq:`eq-grad-scores-row`, :eq:`eq-grad-queries-row`,
    :eq:`eq-grad-keys-row`, :eq:`eq-grad-weights-row` and :eq:`eq-grad-inputs-row`.

    A mask needs no mention: a hidden score is minus infinity in the trace and gets no gradient. A query
    that sees nothing has gradient zero, and so has a key that no query sees, whatever either holds.

    Parameters
    ----------
    output_gradient
        The derivative of the loss by each number of the output.
    trace
        What ``multi_head(Q, K, V, weights, score, visible)`` returned.
    scale
        The factor between inner product and score: ``1/sqrt(d_k)`` if left out, as in
        `scaled_dot_product`; 1 for `dot_product`. Other scores have other derivatives.

    Returns
    -------
    Gradients
        Of Q, K and V, also where they are one and the same (for self-attention, add the three), and of
        every matrix and bias, in a record like `weights`. Where there are batch axes, a weight's
        gradient is the sum over the batch.

    Raises
    ------
    TypeError, ValueError
        If inputs and weights do not fit, as in `multi_head`, or `output_gradient` is not like the output.

    Examples
    --------
    >>> from mha_tutorial.reference import column
    >>> rng = np.random.default_rng(0)
    >>> X, weights = rng.normal(size=(6, 5)), ColumnWeights.random(rng, d_model=6, h=2)
    >>> trace = column.multi_head(X, X, X, weights)
    >>> gradients = backward(np.ones((6, 5)), trace, X, X, X, weights)
    >>> gradients.Q.shape, gradients.weights.W_o.shape
    ((6, 5), (2, 6, 3))
    """
    convention = ROWS if isinstance(weights, RowWeights) else COLUMNS
    convention.check_inputs(Q, K, V, weights)
    convention.check_like("output_gradient", output_gradient, "the output", trace.output)
    if scale is None:
        scale = 1 / math.sqrt(weights.d_k)
    if isinstance(weights, ColumnWeights):
        return _backward(output_gradient, trace, Q, K, V, weights, scale)
    as_columns = _backward(output_gradient.mT, trace.T, Q.mT, K.mT, V.mT, weights.T, scale)
    return Gradients(as_columns.Q.mT, as_columns.K.mT, as_columns.V.mT, as_columns.weights.T)


def _backward(
    dY: Array, trace: Trace, Q: Array, K: Array, V: Array, weights: ColumnWeights, scale: float
) -> Gradients:
    hidden: Array = np.isneginf(trace.scores)  # (*b, h, m, n)
    blind = np.all(hidden, axis=-2, keepdims=True)  # queries that see no key
    unseen = np.all(_by_group(np.all(hidden, axis=-1, keepdims=True).mT, weights), axis=-3)  # keys no query sees
    keys, values = (np.where(unseen, 0, step) for step in (trace.keys, trace.values))
    A, group = trace.attention, weights.group

    d_heads = weights.W_o.mT @ dY[..., None, :, :]
    dA = np.where(hidden, 0, np.repeat(values, group, axis=-3).mT @ d_heads)
    dS = A * (dA - (A * dA).sum(axis=-2, keepdims=True)) * scale
    d_queries = np.repeat(keys, group, axis=-3) @ dS
    d_keys = _by_group(np.where(blind, 0, trace.queries) @ dS.mT, weights).sum(axis=-3)
    d_values = _by_group(d_heads @ A.mT, weights).sum(axis=-3)

    dQ, dW_q, db_q = _through(weights.W_q, weights.b_q, np.where(blind, 0, Q[..., None, :, :]), d_queries)
    dK, dW_k, db_k = _through(weights.W_k, weights.b_k, np.where(unseen, 0, K[..., None, :, :]), d_keys)
    dV, dW_v, db_v = _through(weights.W_v, weights.b_v, np.where(unseen, 0, V[..., None, :, :]), d_values)
    dW_o = _over_batch(dY[..., None, :, :] @ trace.heads.mT, 3)
    db_o = None if weights.b_o is None else _over_batch(dY.sum(axis=-1), 1)
    return Gradients(dQ, dK, dV, ColumnWeights(dW_q, dW_k, dW_v, dW_o, db_q, db_k, db_v, db_o))


def _through(W: Array, b: Array | None, tokens: Array, gradient: Array) -> tuple[Array, Array, Array | None]:
    """Back through the projection of every head: the gradients of the tokens, the matrices and the biases."""
    d_tokens = (W.mT @ gradient).sum(axis=-3)
    dW = _over_batch(gradient @ tokens.mT, 3)
    return d_tokens, dW, None if b is None else _over_batch(gradient.sum(axis=-1), 2)


def _by_group(heads: Array, weights: ColumnWeights) -> Array:
    """Give the query heads that share a key-value head an axis of their own: (*b, h_kv, group, ...)."""
    return heads.reshape(*heads.shape[:-3], weights.h_kv, weights.group, *heads.shape[-2:])


def _over_batch(array: Array, axes: int) -> Array:
    """Sum over all but the last axes."""
    return array.sum(axis=tuple(range(array.ndim - axes)))
