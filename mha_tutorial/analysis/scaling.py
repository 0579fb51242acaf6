"""Why scores are divided by the root of d_k: how they spread, and what a wide spread does to softmax."""

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array


def dot_product_variance(d_k: int, mean: float = 0.0, variance: float = 1.0) -> float:
    """The variance of the inner product of two vectors of independent entries, all drawn alike.

    Computes :eq:`eq-dot-variance`: `d_k` for mean zero and variance one, which is what dividing by
    the root of `d_k` undoes; three times as much for mean one.

    Examples
    --------
    >>> dot_product_variance(64), dot_product_variance(64, mean=1.0)
    (64.0, 192.0)
    """
    return d_k * (variance**2 + 2 * variance * mean**2)


def softmax_jacobian(attention: Float[Array, " m"]) -> Float[Array, "m m"]:
    """How the attention of one query changes when its scores do, from the attention alone.

    Computes :eq:`eq-softmax-jacobian`: entry ``(i, j)`` is the derivative of what key ``i`` gets
    by score ``j``. All entries vanish when one key gets everything.

    Raises
    ------
    ValueError
        If the attention is not that of one query, an array of one axis.

    Examples
    --------
    >>> softmax_jacobian(np.array([0.25, 0.75]))
    array([[ 0.1875, -0.1875],
           [-0.1875,  0.1875]])
    >>> np.abs(softmax_jacobian(np.array([0.0, 1.0]))).max()
    np.float64(0.0)
    """
    if np.ndim(attention) != 1:
        raise ValueError(f"the attention of one query has one axis, got shape {np.shape(attention)}")
    return np.diag(attention) - np.outer(attention, attention)


def entropy(attention: Float[Array, "*q m"]) -> Float[Array, "*q"]:
    """How widely each query looks, in bits: zero for one key, ``log2(m)`` for all keys alike.

    Computes :eq:`eq-entropy` along the last axis.

    Examples
    --------
    >>> entropy(np.array([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))
    array([0., 2.])
    """
    logarithms = np.log2(attention, out=np.zeros_like(attention), where=attention > 0)
    return -(attention * logarithms).sum(axis=-1) + 0.0
