"""What the sum over heads lets one see: products of matrices through which alone a head enters."""

import dataclasses

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from .._checks import convention_of
from ..weights import ColumnWeights, RowWeights


def absorb(
    weights: ColumnWeights | RowWeights,
    first_q: Float[Array, "d_model d_q"],
    first_k: Float[Array, "d_model d_k"],
    first_v: Float[Array, "d_model d_v"],
) -> ColumnWeights | RowWeights:
    """Take linear maps that come before the projections into them.

    Computes :eq:`eq-absorb`: ``W_q (first_q X)`` is ``(W_q first_q) X``. With `RowWeights`, where maps
    have the shape ``(d_q, d_model)``, it is :eq:`eq-absorb-row`: ``(X first_q) W_q`` is ``X (first_q W_q)``.

    Raises
    ------
    TypeError, ValueError
        If a map is not of the weights' type, or does not make tokens that they can read.

    Examples
    --------
    >>> weights = ColumnWeights.random(np.random.default_rng(0), d_model=6, h=2)
    >>> absorb(weights, np.ones((6, 7)), np.ones((6, 7)), np.ones((6, 7))).widths
    (7, 7, 7)
    """
    convention = convention_of(weights)
    for name, matrix, width in zip(
        ("first_q", "first_k", "first_v"), (first_q, first_k, first_v), weights.widths, strict=True
    ):
        convention.check_array(name, matrix)
        convention.check_type(name, matrix, "weights", weights)
        if matrix.ndim != 2 or matrix.shape[convention.features] != width:
            raise ValueError(
                f"{convention} {name} must be {convention.shape(width, 'd_in')}, so that the weights can read "
                f"what it makes, got {matrix.shape}"
            )
    if isinstance(weights, RowWeights):
        return absorb(weights.T, first_q.mT, first_k.mT, first_v.mT).T
    return dataclasses.replace(
        weights, W_q=weights.W_q @ first_q, W_k=weights.W_k @ first_k, W_v=weights.W_v @ first_v
    )


def ov(weights: ColumnWeights | RowWeights) -> Float[Array, "h d_model d_value"]:
    """What a head writes when it looks at a token, as one matrix per head: of rank `d_v` at the most.

    Computes :eq:`eq-ov`; with `RowWeights`, whose products run the other way, :eq:`eq-ov-row`.

    Examples
    --------
    >>> weights = ColumnWeights.random(np.random.default_rng(0), d_model=12, h=4)
    >>> np.linalg.matrix_rank(ov(weights)).tolist()
    [3, 3, 3, 3]
    """
    convention_of(weights)
    W_v = weights.repeat_kv(weights.W_v)
    return weights.W_o @ W_v if isinstance(weights, ColumnWeights) else W_v @ weights.W_o


def qk(weights: ColumnWeights | RowWeights) -> Float[Array, "h d_key d_query"]:
    """What decides where a head looks, as one matrix per head: of rank `d_k` at the most.

    Computes :eq:`eq-qk`, so that without biases a score is ``k.T @ qk @ q``; with `RowWeights` it is
    ``q @ qk @ k.T``, :eq:`eq-qk-row`.

    Examples
    --------
    >>> weights = ColumnWeights.random(np.random.default_rng(0), d_model=12, h=4)
    >>> np.linalg.matrix_rank(qk(weights)).tolist()
    [3, 3, 3, 3]
    """
    convention_of(weights)
    W_k = weights.repeat_kv(weights.W_k)
    return W_k.mT @ weights.W_q if isinstance(weights, ColumnWeights) else weights.W_q @ W_k.mT


def change_basis(
    weights: ColumnWeights | RowWeights,
    inner: Float[Array, "h_kv d_k d_k"],
    values: Float[Array, "h_kv d_v d_v"],
) -> ColumnWeights | RowWeights:
    """Rewrite a layer in other coordinates inside its heads; what it computes stays the same.

    Computes :eq:`eq-gauge`, with `RowWeights` :eq:`eq-gauge-row`, biases included. Query heads that share a
    key-value head share its change of basis.

    Parameters
    ----------
    inner
        An invertible matrix for each key-value head: queries are multiplied by it, keys by the
        transpose of its inverse.
    values
        Another for the values, whose inverse goes into the output projection.

    Raises
    ------
    TypeError, ValueError
        If the matrices are not of the weights' type, or not one of the right size for each key-value head.
    numpy.linalg.LinAlgError
        If a matrix has no inverse.

    Examples
    --------
    >>> weights = ColumnWeights.random(np.random.default_rng(0), d_model=12, h=4)
    >>> doubled = change_basis(weights, np.stack([2 * np.eye(3)] * 4), np.stack([np.eye(3)] * 4))
    >>> np.allclose(qk(doubled), qk(weights))
    True
    """
    convention = convention_of(weights)
    for name, matrices, width in (("inner", inner, weights.d_k), ("values", values, weights.d_v)):
        convention.check_array(name, matrices)
        convention.check_type(name, matrices, "weights", weights)
        if matrices.shape != (weights.h_kv, width, width):
            raise ValueError(
                f"{convention} {name} must be {(weights.h_kv, width, width)}, a square matrix for each "
                f"key-value head, got {matrices.shape}"
            )
    if isinstance(weights, RowWeights):
        return change_basis(weights.T, inner, values).T
    for_queries, for_output = (weights.repeat_kv(matrices) for matrices in (inner, values))
    for_keys = _inverse(inner).mT
    changed = {
        "W_q": for_queries @ weights.W_q,
        "W_k": for_keys @ weights.W_k,
        "W_v": values @ weights.W_v,
        "W_o": weights.W_o @ _inverse(for_output),
    }
    for name, matrices in {"b_q": for_queries, "b_k": for_keys, "b_v": values}.items():
        bias = getattr(weights, name)
        changed[name] = None if bias is None else (matrices @ bias[..., None])[..., 0]
    return dataclasses.replace(weights, **changed)


def _inverse(matrices: Array) -> Array:
    wide = matrices.astype(np.promote_types(matrices.dtype, np.float32), copy=False)  # 16 bits cannot be inverted
    return np.linalg.inv(wide).astype(matrices.dtype, copy=False)
