"""A multi-head attention layer in NumPy: batched, and vectorised over heads by packing their matrices."""

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from ._checks import ROWS as convention
from .masks import Mask
from .reference import row
from .trace import Trace
from .weights import ColumnWeights, RowWeights


class MultiHeadAttention:
    """A layer that rewrites each token as a mixture of what its heads find; tokens are rows.

    It computes what `reference.row.multi_head` computes, the way frameworks do it: the matrices of
    all heads side by side in one, so that a projection is one product, and the heads split off and
    merged again by moving an axis.

    Parameters
    ----------
    weights
        In either convention.
    score
        A score function of the row convention.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> layer = MultiHeadAttention(RowWeights.random(rng, d_model=512, h=8))
    >>> x = rng.normal(size=(2, 10, 512))
    >>> layer(x).shape, layer.trace(x).attention.shape
    ((2, 10, 512), (2, 8, 10, 10))
    """

    def __init__(self, weights: RowWeights | ColumnWeights, score: row.Score = row.scaled_dot_product):
        self.weights: RowWeights = weights.T if isinstance(weights, ColumnWeights) else weights
        self.score = score
        convention.check_weights(self.weights)

    def __call__(
        self,
        queries: Float[Array, "*b n d_model"],
        keys: Float[Array, "*b m d_key"] | None = None,
        values: Float[Array, "*b m d_value"] | None = None,
        *,
        visible: Bool[Array, "*#b_h #n #m"] | Mask | None = None,
    ) -> Float[Array, "*b n d_model"]:
        """Attend: ``layer(x)`` to itself, ``layer(x, memory)`` to a memory, ``layer(q, k, v)`` to any.

        Parameters
        ----------
        keys
            What is attended to, the queries themselves if left out.
        values
            What is averaged, the keys if left out.
        visible
            What a query may see: a structured mask, or a boolean array that broadcasts to the scores.

        Raises
        ------
        TypeError, ValueError
            What `reference.row.multi_head` raises.
        """
        return self.trace(queries, keys, values, visible=visible).output

    def trace(self, queries, keys=None, values=None, *, visible=None) -> Trace:
        """Attend as a call does, and return every step."""
        keys = queries if keys is None else keys
        values = keys if values is None else values
        convention.check_inputs(queries, keys, values, self.weights)
        q, k, v = self._project("q", queries), self._project("k", keys), self._project("v", values)
        shared_k, shared_v = (np.repeat(x, self.weights.group, axis=-3) for x in (k, v))
        scores, attention, heads = row.attend(q, shared_k, shared_v, self.score, visible, has_heads=True)
        return Trace(q, k, v, scores, attention, heads, row.concatenated_output(self.weights, heads))

    def _project(self, name: str, tokens: Array) -> Array:
        """Multiply by the matrices of all heads in one, (d_model, h d), and split the heads off."""
        arrays = self.weights.arrays()
        W, b = arrays[f"W_{name}"], arrays.get(f"b_{name}")
        with np.errstate(invalid="ignore", over="ignore"):  # anything may stand where no query looks
            projected = tokens @ rearrange(W, "h d_model d -> d_model (h d)")
            if b is not None:
                projected = projected + rearrange(b, "h d -> (h d)")
        return rearrange(projected, "... n (h d) -> ... h n d", h=len(W))
