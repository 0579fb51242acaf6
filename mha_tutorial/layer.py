"""A multi-head attention layer in NumPy: batched, and vectorised over heads by packing their matrices."""

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from ._checks import ROWS as convention
from ._checks import check_prepare, check_scale
from .masks import Mask
from .reference import row
from .reference.finite import wide
from .trace import Trace
from .weights import ColumnWeights, RowWeights


class MultiHeadAttention:
    """A layer that rewrites each token as a mixture of what its heads find; tokens are rows.

    It computes what `reference.row.multi_head` computes, the way frameworks do it: the matrices of
    all heads side by side in one, so that a projection is one product, and the heads split off and
    merged again by moving an axis. Masked positions may hold anything, NaN and infinity included; what is
    not finite and seen gives NaN, as in `reference.row.attention`. With 16-bit weights scores, softmax and
    sums have 32 bits.

    Parameters
    ----------
    weights
        In either convention.
    score
        A score function of the row convention.
    scale
        The factor between inner product and score, any finite number: ``1/sqrt(d_k)`` if left out. A
        score of your own has its scale inside, and takes none.
    prepare
        What happens to projected queries ``(*b, h, n, d_k)`` and keys ``(*b, h_kv, m, d_k)`` before
        they are scored, as rotary positions or a normalisation: ``prepare(queries, keys, positions)``
        returns both, in the same shapes. The trace holds what it returned.
    extra_keys
        Keys ``(h_kv, s, d_k)`` and values ``(h_kv, s, d_v)`` of the layer itself, which every query
        sees behind those of the tokens, as attention sinks are. Masks and biases do not count them.

    Raises
    ------
    TypeError, ValueError
        If the weights are none, the scale is not a finite number or comes with a score of your own,
        `prepare` cannot be called, or the extra keys and values do not fit the weights.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> layer = MultiHeadAttention(RowWeights.random(rng, d_model=512, h=8))
    >>> x = rng.normal(size=(2, 10, 512))
    >>> layer(x).shape, layer.trace(x).attention.shape
    ((2, 10, 512), (2, 8, 10, 10))
    """

    def __init__(
        self,
        weights: RowWeights | ColumnWeights,
        score: row.Score = row.scaled_dot_product,
        *,
        scale: float | None = None,
        prepare: row.Prepare | None = None,
        extra_keys: tuple[Float[Array, "h_kv s d_k"], Float[Array, "h_kv s d_v"]] | None = None,
    ):
        self.weights: RowWeights = weights.T if isinstance(weights, ColumnWeights) else weights
        convention.check_weights(self.weights)
        check_prepare(prepare)
        if extra_keys is not None:
            convention.check_extra_keys(extra_keys, self.weights)
        if scale is not None and score is not row.scaled_dot_product:
            raise ValueError("scale is the factor of the inner product; a score of your own has its scale inside")
        self.score = score if scale is None else row.scaled_by(check_scale(scale))
        self.prepare, self.extra_keys = prepare, extra_keys

    def __call__(
        self,
        queries: Float[Array, "*b n d_model"],
        keys: Float[Array, "*b m d_key"] | None = None,
        values: Float[Array, "*b m d_value"] | None = None,
        *,
        visible: Bool[Array, "*#b_h #n #m"] | Mask | None = None,
        bias: Float[Array, "*#b_h #n #m"] | None = None,
        positions: Int[Array, "*#b n"] | tuple[Int[Array, "*#b n"], Int[Array, "*#b m"]] | None = None,
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
        bias
            What is added to the scores, to which it broadcasts; minus infinity hides, as with `row.biased`.
        positions
            The place of every token in its sequence, for `prepare`: integers ``(n,)`` or ``(*b, n)``,
            0, 1, 2 and so on if left out. With other keys than the queries a pair: of the queries, of
            the keys.

        Raises
        ------
        TypeError, ValueError
            What `reference.row.multi_head` raises.
        """
        return self.trace(queries, keys, values, visible=visible, bias=bias, positions=positions).output

    def trace(self, queries, keys=None, values=None, *, visible=None, bias=None, positions=None) -> Trace:
        """Attend as a call does, and return every step."""
        keys = queries if keys is None else keys
        values = keys if values is None else values
        convention.check_inputs(queries, keys, values, self.weights)
        q, k, v = self._project("q", queries), self._project("k", keys), self._project("v", values)
        q, k = convention.prepared(self.prepare, positions, (queries, keys), (q, k))
        score, shape = self.score, (*q.shape[:-1], k.shape[-2])
        visible = convention.visible(visible, shape, heads=True)
        if bias is not None:
            convention.check_bias(bias)
            convention.check_addend(bias, shape)
        if self.extra_keys is not None:
            k, v = (_behind(x, extra) for x, extra in zip((k, v), self.extra_keys, strict=True))
            visible, bias = (_for_all_keys(x, shape[-1], k.shape[-2]) for x in (visible, bias))
        if bias is not None:
            score = row.biased(score, bias)
        group = self.weights.group_size
        shared_k, shared_v = (x if group == 1 else np.repeat(x, group, axis=-3) for x in (k, v))
        scores, attention, heads = row.attend(q, shared_k, shared_v, score, visible, has_heads=True)
        return Trace(q, k, v, scores, attention, heads, row.concatenated_output(self.weights, heads))

    def _project(self, name: str, tokens: Array) -> Array:
        """Multiply by the matrices of all heads in one, (d_model, h d), and split the heads off."""
        arrays = self.weights.arrays()
        W, b = arrays[f"W_{name}"], arrays.get(f"b_{name}")
        x, W = wide(tokens, W)
        with np.errstate(invalid="ignore", over="ignore"):  # a hidden token may hold anything
            projected = x @ rearrange(W, "h d_model d -> d_model (h d)")
            if b is not None:
                projected = projected + rearrange(b, "h d -> (h d)")
            projected = projected.astype(tokens.dtype, copy=False)
        return rearrange(projected, "... n (h d) -> ... h n d", h=len(W))


def _behind(tokens: Array, extra: Array) -> Array:
    """Keys or values of every sequence, and behind them those of the layer."""
    return np.concatenate([tokens, np.broadcast_to(extra, (*tokens.shape[:-3], *extra.shape))], axis=-2)


def _for_all_keys(array: Array | None, m: int, all_keys: int) -> Array | None:
    """A mask or a bias for the tokens' keys, which leaves the extra ones behind them visible and as they are."""
    if array is None:
        return None
    neutral = np.full((*array.shape[:-1], all_keys - m), array.dtype == np.bool_, array.dtype)
    return np.concatenate([np.broadcast_to(array, (*array.shape[:-1], m)), neutral], axis=-1)
