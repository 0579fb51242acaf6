"""A multi-head attention layer in NumPy: batched, and vectorised over heads by packing their matrices."""

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from ._checks import ROWS as convention
from ._checks import Number, check_prepare, check_scale
from ._finite import unwarned, wide
from .masks import Mask
from .reference import row
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
        In either convention. The matrices are packed once, when the layer is made: after a change inside them
        set ``layer.weights`` anew.
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
        scale: Number | None = None,
        prepare: row.Prepare | None = None,
        extra_keys: tuple[Float[Array, "h_kv s d_k"], Float[Array, "h_kv s d_v"]] | None = None,
    ):
        self.weights = weights
        check_prepare(prepare)
        if extra_keys is not None:
            convention.check_extra_keys(extra_keys, self.weights)
        if scale is not None and score is not row.scaled_dot_product:
            raise ValueError("scale is the factor of the inner product; a score of your own has its scale inside")
        self.score = score if scale is None else row.scaled_by(check_scale(scale))
        self.prepare, self.extra_keys = prepare, extra_keys

    @property
    def weights(self) -> RowWeights:
        """What the layer was given, in the row convention; set it to give the layer others."""
        return self._weights

    @weights.setter
    def weights(self, weights: RowWeights | ColumnWeights) -> None:
        self._weights = new = weights.T if isinstance(weights, ColumnWeights) else weights
        convention.check_weights(new)
        self._packed = [_pack(W, b) for W, b in ((new.W_q, new.b_q), (new.W_k, new.b_k), (new.W_v, new.b_v))]
        self._W_o = rearrange(wide(new.W_o)[0], "h d_v d_model -> (h d_v) d_model")

    def __call__(
        self,
        queries: Float[Array, "*b n d_query"],
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

    def trace(
        self,
        queries: Float[Array, "*b n d_query"],
        keys: Float[Array, "*b m d_key"] | None = None,
        values: Float[Array, "*b m d_value"] | None = None,
        *,
        visible: Bool[Array, "*#b_h #n #m"] | Mask | None = None,
        bias: Float[Array, "*#b_h #n #m"] | None = None,
        positions: Int[Array, "*#b n"] | tuple[Int[Array, "*#b n"], Int[Array, "*#b m"]] | None = None,
    ) -> Trace:
        """Attend as a call does, and return every step."""
        keys = queries if keys is None else keys
        values = keys if values is None else values
        weights = self.weights
        convention.check_inputs(queries, keys, values, weights)
        q, k, v = map(_project, (queries, keys, values), self._packed)
        q, k = convention.prepared(self.prepare, positions, (queries, keys), (q, k))
        shape = convention.scores_shape(queries, keys, weights.h)
        visible = convention.visible(visible, shape, batch=queries.shape[:-2])
        if bias is not None:
            convention.check_bias(bias)
            convention.check_addend(bias, shape)
        if self.extra_keys is not None:
            k, v = _behind(k, self.extra_keys[0]), _behind(v, self.extra_keys[1])
            visible, bias = (_for_all_keys(x, shape[-1], k.shape[-2]) for x in (visible, bias))
        score = convention.checked(self.score if bias is None else row.biased(self.score, bias))

        scores = row.hide(score(q, weights.repeat_kv(k)), visible)
        attention = row.softmax(scores)
        heads = row.weigh(weights.repeat_kv(v), attention, scores != -np.inf)
        output = _affine(rearrange(heads, "... h n d_v -> ... n (h d_v)"), self._W_o, weights.b_o)
        return Trace(q, k, v, scores, attention, heads, output)


def _pack(W: Float[Array, "h d_in d"], b: Float[Array, "h d"] | None) -> tuple[Array, Array | None, int]:
    """The matrices of all heads side by side, (d_in, h d), their biases one behind the other, and how many."""
    (W,) = wide(W)
    return rearrange(W, "h d_in d -> d_in (h d)"), None if b is None else rearrange(b, "h d -> (h d)"), len(W)


def _project(tokens: Array, packed: tuple[Array, Array | None, int]) -> Array:
    """Multiply by the matrices of all heads in one, and split the heads off."""
    W, b, h = packed
    return rearrange(_affine(tokens, W, b), "... n (h d) -> ... h n d", h=h)


def _affine(tokens: Array, W: Array, b: Array | None) -> Array:
    """Map tokens in 32 bits or more, and round to their type."""
    x, W = wide(tokens, W)
    with unwarned():  # masked positions may hold anything
        mapped = x @ W
        if b is not None:
            mapped += b
        return mapped.astype(tokens.dtype, copy=False)


def _behind(tokens: Array, extra: Array) -> Array:
    """Keys or values of every sequence, and behind them those of the layer."""
    return np.concatenate([tokens, np.broadcast_to(extra, (*tokens.shape[:-3], *extra.shape))], axis=-2)


def _for_all_keys(array: Array | None, m: int, all_keys: int) -> Array | None:
    """A mask or a bias for the tokens' keys, which leaves the extra ones behind them visible and as they are."""
    if array is None:
        return None
    neutral = np.full((*array.shape[:-1], all_keys - m), array.dtype == np.bool_)  # seen, or nothing added
    return np.concatenate([np.broadcast_to(array, (*array.shape[:-1], m)), neutral], axis=-1)
