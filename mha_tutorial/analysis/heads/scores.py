"""Where heads look, as one number for each head: scores of attention alone, from any model.

Queries are rows, and no query sees a later key. Compare a score with the same score of even weights, which is what
a head gets that looks nowhere in particular.
"""

from collections.abc import Callable

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array


def previous_token(attention: Float[Array, "*h n n"]) -> Float[Array, "*h"]:
    """Average what each token but the first gives to the one before it.

    Raises
    ------
    ValueError
        If the attention is not a square table of two tokens or more for each head.

    Examples
    --------
    >>> previous_token(np.eye(4, k=-1)), previous_token(np.eye(4))
    (array(1.), array(0.))
    """
    n = _length(attention)
    return _given(attention, np.eye(n, k=-1, dtype=bool))


def first_token(attention: Float[Array, "*h n n"]) -> Float[Array, "*h"]:
    """Average what each token but the first gives to the first: how much a head rests there, as on a sink.

    Raises
    ------
    ValueError
        If the attention is not a square table of two tokens or more for each head.

    Examples
    --------
    >>> first_token(np.array([[1.0, 0.0, 0.0], [0.7, 0.3, 0.0], [0.9, 0.0, 0.1]]))
    array(0.8)
    """
    _length(attention)
    return np.asarray(attention[..., 1:, 0].mean(axis=-1))


def duplicate_token(attention: Float[Array, "*h n n"], ids: Int[Array, " n"]) -> Float[Array, "*h"]:
    """Average what a token that has occurred before gives to its earlier occurrences.

    Raises
    ------
    ValueError
        If attention and tokens do not fit, or no token occurs twice.

    Examples
    --------
    >>> duplicate_token(np.eye(4, k=-2), np.array([7, 8, 7, 8]))
    array(1.)
    """
    return _given(attention, _earlier(attention, ids))


def induction(attention: Float[Array, "*h n n"], ids: Int[Array, " n"]) -> Float[Array, "*h"]:
    """Average what a token that has occurred before gives to the tokens behind its earlier occurrences.

    Computes :eq:`eq-induction-score`. A token that has just occurred, as in *a a*, is itself behind its occurrence,
    and what it gives to itself does not count. On a text that repeats at one distance, a head that always looks
    that far back has the score of an induction head: take texts that repeat at several distances, and the smallest
    of their scores.

    Raises
    ------
    ValueError
        If attention and tokens do not fit, or no token occurs twice with one between.

    References
    ----------
    Olsson and others, *In-context Learning and Induction Heads*.

    Examples
    --------
    >>> induction(np.eye(6, k=-2), np.array([7, 8, 9, 7, 8, 9]))
    array(1.)
    """
    earlier = _earlier(attention, ids)
    behind = np.zeros_like(earlier)
    behind[:, 1:] = earlier[:, :-1]
    np.fill_diagonal(behind, False)
    return _given(attention, behind)


def entropy(attention: Float[Array, "*h n n"]) -> Float[Array, "*h"]:
    """Average the entropy of what each token gives, in nats: 0 to one key, the logarithm of m to m keys evenly.

    Examples
    --------
    >>> entropy(np.array([[1.0, 0.0], [0.5, 0.5]])).round(3)
    np.float64(0.347)
    """
    _length(attention)
    some = np.where(attention > 0, attention, 1.0)  # where nothing is given, 0 log 0 is 0
    return np.asarray(-(some * np.log(some)).sum(axis=-1).mean(axis=-1))


def distance(attention: Float[Array, "*h n n"]) -> Float[Array, "*h"]:
    """Average how many tokens back the tokens look, weighted by what they give.

    Examples
    --------
    >>> distance(np.array([[1.0, 0.0], [0.5, 0.5]]))
    array(0.25)
    """
    places = np.arange(_length(attention))
    back = abs(places[:, None] - places)
    return np.asarray((attention * back).sum(axis=-1).mean(axis=-1))


def table(attention: Float[Array, "*h n n"], ids: Int[Array, " n"]) -> dict[str, Float[Array, "*h"]]:
    """Compute all scores of all heads of a text that repeats tokens, by their names.

    Raises
    ------
    ValueError
        If attention and tokens do not fit, or no token occurs twice with one between.

    Examples
    --------
    >>> found = table(np.tile(np.eye(6, k=-2), (2, 3, 1, 1)), np.array([7, 8, 9, 7, 8, 9]))
    >>> list(found), found["induction"].shape
    (['previous token', 'first token', 'duplicate token', 'induction', 'entropy', 'distance'], (2, 3))
    """
    alone: dict[str, Callable] = {"previous token": previous_token, "first token": first_token}
    of_texts: dict[str, Callable] = {"duplicate token": duplicate_token, "induction": induction}
    return {
        **{name: score(attention) for name, score in alone.items()},
        **{name: score(attention, ids) for name, score in of_texts.items()},
        "entropy": entropy(attention),
        "distance": distance(attention),
    }


def _length(attention: Array) -> int:
    """How many tokens a text has, of which the attention is a square table for each head."""
    if attention.ndim < 2 or attention.shape[-1] != attention.shape[-2] or attention.shape[-1] < 2:
        raise ValueError(
            "attention must be (*h, n, n), a square table of two tokens or more for each head, got "
            f"{attention.shape}"
        )
    return attention.shape[-1]


def _earlier(attention: Array, ids: Array) -> Bool[Array, "n n"]:
    """At which keys a query finds its own token, earlier."""
    n = _length(attention)
    if ids.shape != (n,):
        raise ValueError(f"ids must be ({n},), one number for each token of the attention, got {ids.shape}")
    return np.tril(ids[:, None] == ids, k=-1)


def _given(attention: Array, targets: Bool[Array, "n n"]) -> Array:
    """What queries that have targets give to them, on average."""
    asked = targets.any(axis=-1)
    if not asked.any():
        raise ValueError("no token of this text has a target: none occurs before, in the way that is asked for")
    return np.asarray((attention * targets).sum(axis=-1)[..., asked].mean(axis=-1))
