"""A text written one token at a time: keys and values are kept, so that each token is projected once.

The readable version, in NumPy: what is kept grows by an array joined to its end. `mha_tutorial.torch.KVCache` does
the same in memory that is taken once, with padding, windows and beams.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from ..masks import Causal
from ..reference import row
from ..weights import RowWeights


class Kept(NamedTuple):
    """The keys and values of the tokens that were read; there are as many of them as key-value heads say."""

    keys: Float[Array, "*b h_kv m d_k"]
    values: Float[Array, "*b h_kv m d_v"]


def nothing(weights: RowWeights, *batch: int) -> Kept:
    """What is kept before the first token.

    Examples
    --------
    >>> nothing(RowWeights.random(np.random.default_rng(0), d_model=6, h=2)).keys.shape
    (2, 0, 3)
    """
    widths = weights.d_k, weights.d_v
    return Kept(*(np.zeros((*batch, weights.h_kv, 0, width), weights.dtype) for width in widths))


def cached_step(
    X: Float[Array, "*b n d_model"], kept: Kept, weights: RowWeights
) -> tuple[Float[Array, "*b n d_model"], Kept]:
    """Rewrite the next tokens of a text, one or several, with what was kept of those before them.

    Computes :eq:`eq-cache-row`, which is :eq:`eq-cache` in columns. The result is that of a causal pass over the
    whole text, at the places of the new tokens. One token needs no mask: all that is kept came before it.
    Several do, and then the last of them stands beside the last key: ``Causal("bottom-right")``.

    Returns
    -------
    output, kept
        The new tokens rewritten, and what is kept now; what was given is not changed.

    Raises
    ------
    TypeError, ValueError
        If the tokens are not of the type or width of the weights, or not as many texts as were kept.

    References
    ----------
    Shazeer, *Fast Transformer Decoding: One Write-Head is All You Need*.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> X, weights = rng.normal(size=(5, 6)), RowWeights.random(rng, d_model=6, h=2)
    >>> _, kept = cached_step(X[:4], nothing(weights), weights)
    >>> token, kept = cached_step(X[4:], kept, weights)
    >>> whole = row.multi_head(X, X, X, weights, visible=Causal()).output
    >>> np.allclose(token, whole[4:]), kept.keys.shape
    (True, (2, 5, 3))
    """
    row.convention.check_inputs(X, X, X, weights)
    queries = row.project(weights.W_q, X, weights.b_q)
    keys = row.project(weights.W_k, X, weights.b_k)
    values = row.project(weights.W_v, X, weights.b_v)
    kept = Kept(
        np.concatenate([kept.keys, keys], axis=-2),
        np.concatenate([kept.values, values], axis=-2),
    )
    keys, values = map(weights.repeat_kv, kept)
    heads = row.attention(queries, keys, values, visible=Causal("bottom-right"))
    return row.summed_output(weights, heads), kept
