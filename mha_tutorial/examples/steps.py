"""Multi-head self-attention as tensors see it: eleven steps, each a product or a change of axes."""

import math

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from .._checks import ROWS as convention
from .._sizes import count
from ..reference import row
from ..weights import RowWeights


def split_heads(tokens: Float[Array, "*b n hd"], h: int) -> Float[Array, "*b h n d"]:
    """Cut each token's numbers into `h` equal pieces, and put the pieces of one head together.

    Computes :eq:`eq-split`. Two steps: ``reshape`` cuts the last axis in two, which moves nothing in
    memory, and then the axis of the heads changes places with that of the tokens.

    Raises
    ------
    TypeError, ValueError
        If the tokens are not an array with two axes or more, `h` is not a whole number of at least 1, or
        they cannot be cut into `h` equal pieces.

    Examples
    --------
    >>> split_heads(np.arange(8.0).reshape(2, 4), h=2).tolist()
    [[[0.0, 1.0], [4.0, 5.0]], [[2.0, 3.0], [6.0, 7.0]]]
    """
    _check_axes("tokens", tokens, "(..., n, h d)", 2)
    *batch, n, width = tokens.shape
    h = count("h", h)
    if width % h:
        raise ValueError(f"{width} numbers per token cannot be cut into {h} equal heads")
    return tokens.reshape(*batch, n, h, width // h).swapaxes(-2, -3)


def merge_heads(heads: Float[Array, "*b h n d"]) -> Float[Array, "*b n hd"]:
    """Put the pieces of each token side by side again: the inverse of `split_heads`.

    Computes :eq:`eq-merge-heads`.

    Raises
    ------
    TypeError, ValueError
        If the heads are not an array with three axes or more.

    Examples
    --------
    >>> tokens = np.arange(8.0).reshape(2, 4)
    >>> np.array_equal(merge_heads(split_heads(tokens, h=2)), tokens)
    True
    """
    _check_axes("heads", heads, "(..., h, n, d)", 3)
    *batch, h, n, d = heads.shape
    return heads.swapaxes(-2, -3).reshape(*batch, n, h * d)


def eleven_steps(x: Float[Array, "b n d_model"], weights: RowWeights) -> dict[str, Array]:
    """Follow a batch of tokens through the layer, and keep what each of the eleven steps gives.

    Parameters
    ----------
    x
        Tokens as rows, with a batch axis.
    weights
        As many key-value heads as heads, and ``d_v`` equal to ``d_k``, so that one picture shows all three
        projections.

    Raises
    ------
    TypeError, ValueError
        If tokens and weights do not fit, or key-value heads are shared, or ``d_v`` differs from ``d_k``.

    Examples
    --------
    >>> weights = RowWeights.random(np.random.default_rng(0), d_model=30, h=10)
    >>> for name, array in eleven_steps(np.ones((2, 5, 30)), weights).items():
    ...     print(f"{name:13}", array.shape)
    tokens        (2, 5, 30)
    project       (3, 2, 5, 30)
    split         (3, 2, 5, 10, 3)
    transpose     (3, 2, 10, 5, 3)
    scores        (2, 10, 5, 5)
    scale         (2, 10, 5, 5)
    softmax       (2, 10, 5, 5)
    average       (2, 10, 5, 3)
    transpose back (2, 5, 10, 3)
    merge         (2, 5, 30)
    output        (2, 5, 30)
    """
    convention.check_inputs(x, x, x, weights)
    if weights.h_kv != weights.h or weights.d_k != weights.d_v or x.ndim != 3:
        raise ValueError(
            "the eleven steps are those of a batch (b, n, d_model) with h_kv = h and d_v = d_k, got "
            f"x {x.shape}, h={weights.h}, h_kv={weights.h_kv}, d_k={weights.d_k}, d_v={weights.d_v}"
        )
    b, n, _ = x.shape
    h, d = weights.h, weights.d_k
    steps = {"tokens": x}
    projections = []
    for name in "qkv":
        arrays = weights.arrays()
        packed = np.concatenate(list(arrays[f"W_{name}"]), axis=1)  # (d_model, h d): the heads side by side
        bias = arrays.get(f"b_{name}")
        projections.append(x @ packed + (0 if bias is None else bias.reshape(h * d)))
    steps["project"] = np.stack(projections)
    steps["split"] = steps["project"].reshape(3, b, n, h, d)
    steps["transpose"] = steps["split"].swapaxes(-2, -3)
    queries, keys, values = steps["transpose"]
    steps["scores"] = queries @ keys.mT
    steps["scale"] = steps["scores"] / math.sqrt(d)
    steps["softmax"] = row.softmax(steps["scale"])
    steps["average"] = steps["softmax"] @ values
    steps["transpose back"] = steps["average"].swapaxes(-2, -3)
    steps["merge"] = steps["transpose back"].reshape(b, n, h * d)
    W_o = weights.W_o.reshape(h * d, weights.d_model)
    steps["output"] = steps["merge"] @ W_o + (0 if weights.b_o is None else weights.b_o)
    return steps


def _check_axes(name: str, array: Array, axes: str, least: int) -> None:
    if not isinstance(array, np.ndarray):
        raise TypeError(f"{name} must be a NumPy array {axes}, got {type(array).__name__}")
    if array.ndim < least:
        raise ValueError(f"{name} must be {axes}, got shape {array.shape}")
