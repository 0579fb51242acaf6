"""Frequencies, slopes, buckets and orders of pairs: what is the same for tokens in rows and in columns."""

from enum import Enum

import numpy as np
from einops import rearrange
from jaxtyping import Float, Int
from numpy import ndarray as Array

from .._checks import Number, check_positive
from .._sizes import count


class Pairs(Enum):
    """Which two of a vector's features belong together: an einops pattern of the axis they lie on.

    `HALVES` pairs ``i`` with ``d / 2 + i``, as transformers does; `INTERLEAVED` pairs ``2i`` with ``2i + 1``, as
    Meta's Llama and GGUF files do.
    """

    HALVES = "(two pair)"
    INTERLEAVED = "(pair two)"


def check_order(order) -> None:
    """Refuse what is no order of pairs."""
    if not isinstance(order, Pairs):
        raise TypeError(f"order must be Pairs.HALVES or Pairs.INTERLEAVED, got {order!r}")


def check_even(d) -> None:
    """Refuse a width that does not make pairs."""
    if count("d", d) % 2:
        raise ValueError(f"features are paired, so their number must be even, got {d}")


def frequencies(d: int, base: Number = 10000.0) -> Float[Array, " pairs"]:
    """By how many radians each pair of features turns from one position to the next.

    The first pair turns by one radian, the others ever more slowly: ``base**(-2 p / d)``.

    Raises
    ------
    ValueError
        If the width is not even and positive, or the base is not a positive number.

    References
    ----------
    Vaswani and others, *Attention Is All You Need*, section 3.5.

    Examples
    --------
    >>> frequencies(4, base=100.0)
    array([1. , 0.1])
    """
    check_even(d)
    return check_positive("base", base) ** (-np.arange(0, d, 2) / d)


def pair_order(d: int, of: Pairs, to: Pairs) -> Int[Array, " d"]:
    """Where to take each feature from, to put features paired in one order into the other.

    ``W[..., pair_order(d_k, of, to)]`` reorders the queries or keys that a row-convention matrix makes.

    Raises
    ------
    TypeError, ValueError
        If an order is no member of `Pairs`, or the width is not even and positive.

    Examples
    --------
    >>> pair_order(6, of=Pairs.HALVES, to=Pairs.INTERLEAVED).tolist()
    [0, 3, 1, 4, 2, 5]
    """
    for order in (of, to):
        check_order(order)
    check_even(d)
    return rearrange(np.arange(d), f"{of.value} -> {to.value}", two=2)


def alibi_slopes(h: int) -> Float[Array, " h"]:
    """How much each head's scores lose for every step of distance.

    With `h` a power of two ``2**(-8 k / h)``, for k from 1 to `h`. Otherwise those of the power of two below, and
    behind them every other one of the power above.

    Raises
    ------
    TypeError, ValueError
        If the number of heads is not a whole number, or below 1.

    References
    ----------
    Press, Smith and Lewis, *Train Short, Test Long*, section 3, and the code that goes with it.

    Examples
    --------
    >>> alibi_slopes(4).tolist(), alibi_slopes(3).tolist()
    ([0.25, 0.0625, 0.015625, 0.00390625], [0.0625, 0.00390625, 0.25])
    """
    h = count("h", h)
    below = 2 ** (h.bit_length() - 1)
    slopes = 2.0 ** (-8 * np.arange(1, below + 1) / below)
    above = 2.0 ** (-8 * np.arange(1, 2 * below + 1, 2) / (2 * below))
    return np.concatenate([slopes, above[: h - below]])


def relative_buckets(
    distance: Int[Array, "*axes"], buckets: int = 32, farthest: int = 128, both_sides: bool = True
) -> Int[Array, "*axes"]:
    """Sort distances, key minus query, into buckets: each small distance has one, larger ones share.

    Half of the buckets, of a side, hold one distance each; the others grow by the same factor up to `farthest`, and
    the last takes everything beyond. A head learns one number for each bucket.

    Parameters
    ----------
    buckets
        How many there are.
    farthest
        The distance from which on all share the last bucket.
    both_sides
        Whether keys behind the query have buckets of their own, half of them; otherwise such keys are treated as
        those at the query's own place, as is right under a causal mask.

    Raises
    ------
    TypeError, ValueError
        If a size is not a whole number; if there are fewer than four buckets, or the farthest distance is not
        beyond those with a bucket of their own.

    References
    ----------
    Raffel and others, *Exploring the Limits of Transfer Learning with a Unified Text-to-Text Transformer*,
    section 2.1, and the code that goes with it.

    Examples
    --------
    >>> relative_buckets(np.array([0, -1, -7, -8, -127, -500, 1, 500])).tolist()
    [0, 1, 7, 8, 15, 15, 17, 31]
    """
    side, exact = bucket_sizes(buckets, farthest, both_sides)
    steps = abs(distance) if both_sides else np.maximum(-distance, 0)
    growth = np.log(np.maximum(steps, exact) / exact) / np.log(farthest / exact)
    shared = np.minimum(exact + (growth * (side - exact)).astype(np.int64), side - 1)
    return np.where(steps < exact, steps, shared) + np.where(both_sides & (distance > 0), side, 0)


def bucket_sizes(buckets: int, farthest: int, both_sides: bool) -> tuple[int, int]:
    """How many buckets one side has, and how many of these hold a single distance."""
    side = count("buckets", buckets, least=4) // (2 if both_sides else 1)
    exact = side // 2
    if count("farthest", farthest) <= exact:
        raise ValueError(f"farthest must be more than {exact}, the distances with a bucket each, got {farthest}")
    return side, exact
