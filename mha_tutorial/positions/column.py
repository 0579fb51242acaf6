"""Positions of column vectors: a token is a column of X, and its place is added, or turns its queries and keys."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from einops import rearrange
from jaxtyping import Float, Int
from numpy import ndarray as Array

from .._checks import COLUMNS as convention
from .._checks import Number, check_positive
from .common import Pairs, check_order, frequencies, relative_buckets


def sinusoidal(
    positions: Int[Array, "*b n"], d_model: int, base: Number = 10000.0, order: Pairs = Pairs.INTERLEAVED
) -> Float[Array, "*b d_model n"]:
    """Give each position a vector, to be added to the token there: a sine and a cosine at every frequency.

    Computes :eq:`eq-sinusoidal`.

    Parameters
    ----------
    base
        How slow the frequencies become.
    order
        Where the sine and the cosine of a frequency lie: side by side, as in the paper, or in two halves.

    Raises
    ------
    TypeError, ValueError
        If the positions are not integers, the width is odd, the base is not positive, or the order is no `Pairs`.

    References
    ----------
    Vaswani and others, *Attention Is All You Need*, section 3.5.

    Examples
    --------
    >>> sinusoidal(np.array([0, 3]), d_model=4).round(2).tolist()
    [[0.0, 0.14], [1.0, -0.99], [0.0, 0.03], [1.0, 1.0]]
    """
    check_order(order)
    convention.check_integers("positions", positions)
    angles = frequencies(d_model, base)[:, None] * positions[..., None, :]
    return rearrange(np.stack([np.sin(angles), np.cos(angles)]), f"two ... pair n -> ... {order.value} n")


def rotate(
    x: Float[Array, "*h d_k n"],
    positions: Int[Array, "*#h n"],
    base: Number = 10000.0,
    order: Pairs = Pairs.HALVES,
) -> Float[Array, "*h d_k n"]:
    """Turn each pair of a query's or key's features by an angle that grows with its token's position.

    Computes :eq:`eq-rope`, so that :eq:`eq-rope-relative` holds. Angles have 64 bits.

    Parameters
    ----------
    base
        How slow the frequencies become.
    order
        Which features form a pair. It has to be the one the matrices were trained, or stored, for.

    Raises
    ------
    TypeError, ValueError
        If an array is of another kind, positions do not fit, the width is odd, or the base is not positive.

    References
    ----------
    Su and others, *RoFormer: Enhanced Transformer with Rotary Position Embedding*, section 3.2.

    Examples
    --------
    >>> rotate(np.array([[1.0], [0.0]]), np.array([2])).round(2).tolist()  # cos 2 and sin 2
    [[-0.42], [0.91]]
    """
    check_order(order)
    convention.check_array("x", x)
    convention.check_positions("positions", positions, "n", x.shape[:-2], x.shape[convention.tokens])
    angles = frequencies(x.shape[convention.features], base)[:, None] * positions[..., None, :]
    cos, sin = np.cos(angles), np.sin(angles)
    first, second = rearrange(x, f"... {order.value} n -> two ... pair n", two=2)
    turned = np.stack([first * cos - second * sin, first * sin + second * cos])
    return rearrange(turned, f"two ... pair n -> ... {order.value} n").astype(x.dtype, copy=False)


@dataclass(frozen=True)
class Rotary:
    """What `prepare=` takes: rotary positions, which turn the queries and keys of every head.

    Parameters
    ----------
    base
        How slow the frequencies become.
    order
        Which features form a pair. It has to be the one the matrices were trained, or stored, for.

    Raises
    ------
    TypeError, ValueError
        If the base is not a positive number, or the order is no `Pairs`; called, what `rotate` raises.

    Examples
    --------
    >>> queries, keys = np.ones((2, 4, 5)), np.ones((1, 4, 5))
    >>> [x.shape for x in Rotary(base=100.0)(queries, keys, np.arange(5))]
    [(2, 4, 5), (1, 4, 5)]
    """

    base: Number = 10000.0
    order: Pairs = Pairs.HALVES

    def __post_init__(self):
        check_positive("base", self.base)
        check_order(self.order)

    def __call__(
        self,
        queries: Float[Array, "*b h d_k n"],
        keys: Float[Array, "*b h_kv d_k m"],
        positions: Int[Array, "*#b n"] | tuple[Int[Array, "*#b n"], Int[Array, "*#b m"]],
    ) -> tuple[Float[Array, "*b h d_k n"], Float[Array, "*b h_kv d_k m"]]:
        """Turn queries and keys, each by the positions of their tokens."""
        of_queries, of_keys = positions if isinstance(positions, tuple) else (positions, positions)
        return (
            rotate(queries, of_queries[..., None, :], self.base, self.order),
            rotate(keys, of_keys[..., None, :], self.base, self.order),
        )


def alibi(
    slopes: Float[Array, " h"], positions: Int[Array, "*b n"], of_keys: Int[Array, "*b m"] | None = None
) -> Float[Array, "*b h m n"]:
    """Take from each score a head's slope for every step between query and key: a bias.

    Computes :eq:`eq-alibi`, with `common.alibi_slopes` for the slopes.

    Parameters
    ----------
    positions
        The places of the queries.
    of_keys
        The places of the keys, those of the queries if left out.

    Raises
    ------
    TypeError, ValueError
        If positions are not integers.

    References
    ----------
    Press, Smith and Lewis, *Train Short, Test Long: Attention with Linear Biases Enables Input Length
    Extrapolation*, section 3.

    Examples
    --------
    >>> alibi(np.array([0.5]), np.arange(2), np.arange(3)).tolist()
    [[[0.0, -0.5], [-0.5, 0.0], [-1.0, -0.5]]]
    """
    return slopes[:, None, None] * -abs(distances(positions, of_keys))[..., None, :, :]


def relative_bias(
    table: Float[Array, "h buckets"],
    positions: Int[Array, "*b n"],
    of_keys: Int[Array, "*b m"] | None = None,
    bucket: Callable[..., Int[Array, "..."]] = relative_buckets,
) -> Float[Array, "*b h m n"]:
    """Look up what each head has learned to add to a score at the distance of its query and key: a bias.

    Parameters
    ----------
    table
        One number for each head and bucket.
    positions
        The places of the queries.
    of_keys
        The places of the keys, those of the queries if left out.
    bucket
        Which bucket a distance, key minus query, falls into. The default is that of T5's encoder.

    Raises
    ------
    TypeError, IndexError
        If positions are not integers, or a bucket is not in the table.

    References
    ----------
    Raffel and others, *Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer*,
    section 2.1.

    Examples
    --------
    >>> relative_bias(np.arange(32.0)[None], np.arange(2), np.arange(3)).tolist()
    [[[0.0, 1.0], [17.0, 0.0], [18.0, 17.0]]]
    """
    found = bucket(distances(positions, of_keys))
    return np.moveaxis(table[:, found], 0, -3)


def distances(positions: Int[Array, "*b n"], of_keys: Int[Array, "*b m"] | None = None) -> Int[Array, "*b m n"]:
    """How far each key lies after each query, negative before it.

    Raises
    ------
    TypeError
        If positions are not integers.

    Examples
    --------
    >>> distances(np.array([0, 1]), np.array([0, 1, 2])).tolist()
    [[0, -1], [1, 0], [2, 1]]
    """
    of_keys = positions if of_keys is None else of_keys
    convention.check_integers("positions", positions)
    convention.check_integers("of_keys", of_keys)
    return of_keys[..., :, None] - positions[..., None, :]
