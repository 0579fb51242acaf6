"""The backward pass of multi-head attention, derived by hand from the sum over heads."""

import math
from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from ._checks import Number, check_scale, convention_of
from ._finite import unwarned
from .reference.column import weigh
from .trace import Trace
from .weights import ColumnWeights, RowWeights


class Gradients(NamedTuple):
    """How the loss changes with each input and each weight; every array is shaped like what it belongs to."""

    Q: Array
    K: Array
    V: Array
    weights: ColumnWeights | RowWeights


def matmul_vjp(
    gradient: Float[Array, "*#b p r"], A: Float[Array, "*#b p q"], B: Float[Array, "*#b q r"]
) -> tuple[Float[Array, "*#b p q"], Float[Array, "*#b q r"]]:
    """Hand the gradient of a matrix product ``A @ B`` on to its two factors.

    Computes :eq:`eq-grad-product`. Factors that are shared among the leading axes get one gradient for
    each place where they are used; their sum is the whole.

    Raises
    ------
    ValueError
        If the shapes are not those of a product and its factors.

    Examples
    --------
    >>> for_A, for_B = matmul_vjp(np.ones((1, 2)), np.array([[3.0]]), np.array([[5.0, 7.0]]))
    >>> for_A.tolist(), for_B.tolist()
    ([[12.0]], [[3.0, 3.0]])
    """
    if A.shape[-1:] != B.shape[-2:-1] or gradient.shape[-2:] != (*A.shape[-2:-1], *B.shape[-1:]):
        raise ValueError(
            "the gradient of a product (p, q) @ (q, r) must be (..., p, r), "
            f"got {gradient.shape} for {A.shape} @ {B.shape}"
        )
    return gradient @ B.mT, A.mT @ gradient


def backward(
    output_gradient: Array,
    trace: Trace,
    Q: Array,
    K: Array,
    V: Array,
    weights: ColumnWeights | RowWeights,
    scale: Number | None = None,
) -> Gradients:
    """Carry the gradient of a loss from the output of `multi_head` back to its inputs and weights.

    Goes through the steps of the trace from last to first, a product at a time: :eq:`eq-grad-heads` and
    :eq:`eq-grad-output-weights`, then :eq:`eq-grad-values`, :eq:`eq-grad-attention`,
    :eq:`eq-grad-scores`, :eq:`eq-grad-queries` and :eq:`eq-grad-keys` in every head, and
    :eq:`eq-grad-weights` and :eq:`eq-grad-inputs` at the end. With `RowWeights` it is the same,
    transposed: :eq:`eq-grad-heads-row`, :eq:`eq-grad-output-weights-row`, :eq:`eq-grad-values-row`,
    :eq:`eq-grad-attention-row`, :eq:`eq-grad-scores-row`, :eq:`eq-grad-queries-row`,
    :eq:`eq-grad-keys-row`, :eq:`eq-grad-weights-row` and :eq:`eq-grad-inputs-row`.

    A mask needs no mention: a hidden score is minus infinity in the trace and gets no gradient. A query
    that sees nothing has gradient zero, and so has a key that no query sees, whatever either holds. What
    is not finite reaches the gradients of those who see it (a query, and the keys and values that this
    query sees), and of the weights, and no others. So does a derivative by an output that is not finite.
    All is computed in 32 bits or more, and rounded to the type of the weights at the end.

    Parameters
    ----------
    output_gradient
        The derivative of the loss by each number of the output.
    trace
        What ``multi_head(Q, K, V, weights, score, visible)`` returned. That its shapes fit is checked;
        that it was computed from these inputs, weights and this scale is not. The trace of a layer with
        extra keys does not fit, and that of one with `prepare` must not be given: what that function
        does has a derivative of its own.
    scale
        The factor between inner product and score, any finite number: ``1/sqrt(d_k)`` if left out, as in
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
        If inputs and weights do not fit, as in `multi_head`, the trace does not fit them,
        `output_gradient` is not like the output, or `scale` is not a finite number.

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
    convention = convention_of(weights)
    convention.check_inputs(Q, K, V, weights)
    convention.check_trace(trace, Q, K, weights)
    convention.check_like("output_gradient", output_gradient, "the output", trace.output)
    scale = 1 / math.sqrt(weights.d_k) if scale is None else check_scale(scale)
    if isinstance(weights, ColumnWeights):
        return _backward(output_gradient, trace, Q, K, V, weights, scale)
    as_columns = _backward(output_gradient.mT, trace.T, Q.mT, K.mT, V.mT, weights.T, scale)
    return Gradients(as_columns.Q.mT, as_columns.K.mT, as_columns.V.mT, as_columns.weights.T)


def _backward(
    dY: Array, trace: Trace, Q: Array, K: Array, V: Array, weights: ColumnWeights, scale: float
) -> Gradients:
    """Compute in at least 32 bits, of which the sums need more than 16, and round at the end."""
    dtype = weights.dtype
    wide = np.result_type(np.float32, dtype, *trace)  # scores with a wider bias are wider
    dY, *steps, Q, K, V = (x.astype(wide) for x in (dY, *trace, Q, K, V))
    with unwarned():  # masked positions may hold anything
        *d_inputs, d_weights = _multi_head_vjp(dY, Trace(*steps), Q, K, V, _cast(weights, wide), scale)
        dQ, dK, dV = (x.astype(dtype) for x in d_inputs)
        return Gradients(dQ, dK, dV, _cast(d_weights, dtype))


def _multi_head_vjp(
    dY: Array, trace: Trace, Q: Array, K: Array, V: Array, weights: ColumnWeights, scale: float
) -> tuple[Array, Array, Array, ColumnWeights]:
    """Go through the steps of `multi_head` from last to first; columns are tokens."""
    hidden = trace.scores == -np.inf  # (*b, h, m, n)
    fully_masked = np.all(hidden, axis=-2, keepdims=True)  # queries that see no key
    unseen = np.all(_group_heads(np.all(hidden, axis=-1, keepdims=True).mT, weights), axis=-3)  # keys no query sees
    keys, values = weights.repeat_kv(trace.keys), weights.repeat_kv(trace.values)

    A = np.where(hidden, 0, trace.attention)
    dW_o, d_heads = matmul_vjp(dY[..., None, :, :], weights.W_o, trace.heads)
    dA = np.where(hidden, 0, values.mT @ d_heads)
    dS = np.where(hidden, 0, A * (dA - (A * dA).sum(axis=-2, keepdims=True)) * scale)
    # products with A and with dS are made by `weigh`: masked positions may hold NaN, and zero times NaN is NaN
    d_values = weigh(d_heads, A.mT, ~hidden.mT)
    d_queries = weigh(keys, dS, ~hidden)
    d_keys = weigh(trace.queries, dS.mT, ~hidden.mT)
    d_keys, d_values = (_group_heads(x, weights).sum(axis=-3) for x in (d_keys, d_values))

    dQ, dW_q, db_q = _projection_vjp(d_queries, weights.W_q, weights.b_q, Q, fully_masked)
    dK, dW_k, db_k = _projection_vjp(d_keys, weights.W_k, weights.b_k, K, unseen)
    dV, dW_v, db_v = _projection_vjp(d_values, weights.W_v, weights.b_v, V, unseen)
    db_o = None if weights.b_o is None else _sum_over_batch(dY.sum(axis=-1), 1)
    return dQ, dK, dV, ColumnWeights(dW_q, dW_k, dW_v, _sum_over_batch(dW_o, 3), db_q, db_k, db_v, db_o)


def _projection_vjp(
    gradient: Array, W: Array, b: Array | None, tokens: Array, unused: Array
) -> tuple[Array, Array, Array | None]:
    """Back through the projection of every head: the gradients of the tokens, the matrices and the biases."""
    dW, d_tokens = matmul_vjp(gradient, W, np.where(unused, 0, tokens[..., None, :, :]))
    db = None if b is None else _sum_over_batch(gradient.sum(axis=-1), 2)
    return d_tokens.sum(axis=-3), _sum_over_batch(dW, 3), db


def _group_heads(heads: Array, weights: ColumnWeights) -> Array:
    """Give the query heads that share a key-value head an axis of their own: (*b, h_kv, group_size, ...)."""
    return heads.reshape(*heads.shape[:-3], weights.h_kv, weights.group_size, *heads.shape[-2:])


def _sum_over_batch(array: Array, axes: int) -> Array:
    """Sum over all but the last axes."""
    return array.sum(axis=tuple(range(array.ndim - axes)))


def _cast(weights: ColumnWeights, dtype) -> ColumnWeights:
    return ColumnWeights(**{name: array.astype(dtype) for name, array in weights.arrays().items()})
