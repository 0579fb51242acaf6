"""Averages of values by exponentials of scores: taken as they are where that is safe, and exactly where not."""

import math
from collections.abc import Callable

import numpy as np
from numpy import ndarray as Array

from .reference import row

Exponential = Callable[..., Array]

SUMS = 2.0**-60, 2.0**60  # A query's exponentials stand as they are if their sum lies between these,
RESULTS = 2.0**-100, 2.0**100  # and the largest number of a tile, before it is divided by it, between these,
LOST = 2.0**-80  # and no value is so much larger than a query's result that a vanished weight of it would count.


def fast_exponential() -> Exponential:
    """Choose the faster of exp2 and exp: NumPy has a vector loop for exp2 only where there is AVX-512.

    Examples
    --------
    >>> fast_exponential() in (np.exp, np.exp2)
    True
    """
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    there = {*extensions.get("baseline", ()), *extensions.get("found", ())}
    return np.exp2 if there & {"AVX512_SKX", "X86_V4"} else np.exp


@np.errstate(all="ignore")  # the guards look at what comes of it
def average(
    q: Array, k: Array, v: Array, pieces: list[tuple[slice, Array | None]], exponential: Exponential, out: Array
) -> Array | None:
    """Average the values by the exponentials of scores as they are; return their sums, or None.

    Softmax takes the largest score off first, which costs two passes over the scores and protects from
    overflow. Where the sums of the exponentials and the results are of a moderate size, there was none.
    What vanished instead, an exponential below the smallest number, is too small to count, unless it
    belongs to a value larger than the results by many orders. Where any of this is not so, the averages
    cannot be trusted, and the answer is None.
    """
    sums = np.zeros((*q.shape[:-1], 1), q.dtype)
    for keys, seen in pieces:
        weights = q @ k[..., keys, :].mT
        exponential(weights, out=weights)
        if seen is not None:
            weights *= seen
        sums += weights @ np.ones((weights.shape[-1], 1), q.dtype)  # faster than weights.sum(axis=-1)
        if keys is pieces[0][0]:
            np.matmul(weights, v[..., keys, :], out=out)
        else:
            out += weights @ v[..., keys, :]
    if not (SUMS[0] < sums.min() and sums.max() < SUMS[1]):
        return None
    if not RESULTS[0] < max(out.max(), -out.min()) < RESULTS[1]:
        return None
    largest = np.maximum(out.max(axis=-1), -out.min(axis=-1)).min()  # of the query that has the smallest
    if not LOST * max(v.max(), -v.min()) <= largest:
        return None
    out /= sums  # the few results, not the many weights
    return sums


def exactly(q: Array, k: Array, v: Array, seen: Array, exponential: Exponential) -> tuple[Array, Array, Array]:
    """Average the values as the reference does, with the largest score taken off and nothing hidden let through.

    With the averages come the largest scores, for the base of the exponential, and the sums of the
    exponentials of the rest: zero and one for a query that sees nothing.
    """
    k, v = (np.broadcast_to(x, (*q.shape[:-2], *x.shape[-2:])) for x in (k, v))
    base = math.log(exponential(1.0))  # the queries are scaled for it
    scores, A, heads = row.attend(q * base, k, v, row.dot_product, seen, has_heads=False)
    blind = ~seen.any(axis=-1, keepdims=True)
    largest = np.where(blind, 0, scores.max(axis=-1, keepdims=True) / base)
    return heads, largest, 1 / np.where(blind, 1, A.max(axis=-1, keepdims=True))
