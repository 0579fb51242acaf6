"""The way back through the fast layer: attention weights are computed a second time, a tile at a time."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from einops import rearrange
from numpy import ndarray as Array

from .gradients import Gradients
from .threads import spread
from .tiles import Tile, cut
from .weights import RowWeights
from .work import Work


class Attended(NamedTuple):
    """What the forward pass keeps of some key-value heads in some sequences: two numbers a query, but no scores."""

    groups: slice
    entries: slice
    q: Array  # (g, r, b, n, d_k), scaled for the base of the exponential
    k: Array  # (g, 1, b, m, d_k)
    v: Array  # (g, 1, b, m, d_v)
    shifts: Array  # (g, r, b, n, 1), taken off each query's scores
    sums: Array  # (g, r, b, n, 1), of the exponentials of the rest


@np.errstate(all="ignore")  # who calls looks at what comes of it
def through_layer(
    d_output: Array,
    inputs: tuple[Array, Array, Array],
    weights: RowWeights,
    joined: Array,
    attended: list[Attended],
    exponential: Callable,
    work: Work,
) -> Gradients:
    """Carry a gradient from the output back to the inputs, queries, keys and values, and to the weights.

    These are the steps of `gradients.backward`. The heads come side by side, (b n, h d_v), as they were written.
    """
    d_output, W_o = (x.reshape(-1, weights.d_model) for x in (d_output, weights.W_o))
    sizes = {"n": inputs[0].shape[-2], "g": weights.h_kv, "r": weights.group}
    heads, d_heads = (
        rearrange(x, "(b n) (g r d) -> g r b n d", **sizes)
        for x in (joined, product_of(d_output, W_o.T, work.threads))
    )
    matrices = weights.W_q, weights.W_k, weights.W_v
    d_projected = [_zeros(x, W, weights.h_kv) for x, W in zip(inputs, matrices, strict=True)]

    def through(part: Attended) -> None:
        at = part.groups, slice(None), part.entries
        through_heads(
            part, work.plan, exponential, heads[at], d_heads[at], *(gradient[at] for gradient in d_projected)
        )

    spread(through, attended, work.threads)
    d_tokens: list[Array] = []
    found: dict[str, Array] = {}
    for name, gradient, W, x in zip("qkv", d_projected, matrices, inputs, strict=True):
        dx, found[f"W_{name}"], found[f"b_{name}"] = through_projection(gradient, W, x, work.threads)
        d_tokens.append(dx)
    found["b_k"] = np.zeros_like(found["b_k"])  # softmax does not see it
    found["W_o"] = product_of(joined.T, d_output, work.threads).reshape(weights.W_o.shape)
    found["b_o"] = _total(d_output)
    dQ, dK, dV = d_tokens
    return Gradients(dQ, dK, dV, RowWeights(**{name: found[name] for name in weights.arrays()}))


def through_heads(
    part: Attended,
    plan: list[Tile],
    exponential: Callable,
    heads: Array,
    d_heads: Array,
    d_queries: Array,
    d_keys: Array,
    d_values: Array,
) -> None:
    """Carry the gradient of some heads back to their queries, keys and values, to which it is added.

    Two subtractions from all scores become part of the products before them, as one number more in each vector:
    the weights are the exponentials of ``[q, -log sum] @ [k, 1]``, and the gradient of the scores is the weights
    times ``[d_head, -d_head @ head] @ [v, 1]``. Heads that share keys and values stand one below the other, so
    that a product adds up what they ask of them.
    """
    k, v = part.k[:, 0], part.v[:, 0]
    k_and_one, v_and_one = (_beside(x, np.ones_like(x[..., :1])) for x in (k, v))
    log_sums = np.log(part.sums) / math.log(exponential(1.0))
    q_and_log_sum = _beside(part.q, -(part.shifts + log_sums))
    d_heads = d_heads / (part.sums * exponential(-log_sums))  # by almost one, what the logarithms' rounding left
    d_head_and_mean = _beside(d_heads, -(d_heads * heads).sum(axis=-1, keepdims=True))
    for queries, pieces in (tile.of(part.groups, part.entries) for tile in plan):
        q, d_head = (
            rearrange(x[..., queries, :], "g r b n d -> g b (r n) d") for x in (q_and_log_sum, d_head_and_mean)
        )
        for keys, seen in pieces:
            A = q @ k_and_one[..., keys, :].mT
            if seen is None:
                exponential(A, out=A)
            else:
                np.minimum(A, 0, out=A)  # as what is seen is anyway: so what is hidden does not overflow
                exponential(A, out=A)
                A *= rearrange(seen, "g r b n m -> g b (r n) m")
            d_values[:, 0, ..., keys, :] += A.mT @ d_head[..., :-1]
            dS = d_head @ v_and_one[..., keys, :].mT
            dS *= A
            d_keys[:, 0, ..., keys, :] += dS.mT @ q[..., :-1]
            from_keys = rearrange(dS @ k[..., keys, :], "g b (r n) d -> g r b n d", r=part.q.shape[1])
            d_queries[..., queries, :] += from_keys
    d_queries *= 1 / math.sqrt(k.shape[-1])
    d_keys *= math.log(exponential(1.0))  # what the queries' scale lacks of the root


def through_projection(gradient: Array, W: Array, tokens: Array, threads: int) -> tuple[Array, Array, Array]:
    """Back through the projections of all heads: the gradients of the tokens, the matrices and the biases."""
    gradient = rearrange(gradient, "g r b n d -> (b n) (g r d)")
    d_tokens = product_of(gradient, rearrange(W, "h d_in d -> (h d) d_in"), threads)
    dW = product_of(tokens.reshape(len(gradient), -1).T, gradient, threads)
    return (
        d_tokens.reshape(tokens.shape),
        rearrange(dW, "d_in (h d) -> h d_in d", h=len(W)),
        _total(gradient).reshape(len(W), -1),
    )


def product_of(A: Array, B: Array, threads: int) -> Array:
    """A matrix product, a part of the rows on every thread."""
    product = np.empty((len(A), B.shape[1]), A.dtype)
    rows = cut(len(A), -(-len(A) // threads))
    spread(lambda some: np.matmul(A[some], B, out=product[some]), rows, threads)
    return product


def _total(vectors: Array) -> Array:
    """Add up all rows, in 64 bits: one after the other they would lose what pairs keep."""
    return vectors.sum(axis=0, dtype=np.float64).astype(vectors.dtype)


def _zeros(tokens: Array, W: Array, h_kv: int) -> Array:
    """Room for what belongs to the projections of tokens, (g, r, b, n, d), with heads side by side in memory."""
    n = tokens.shape[-2]
    return rearrange(
        np.zeros((tokens[..., 0].size // n, n, h_kv, len(W) // h_kv, W.shape[-1]), W.dtype),
        "b n g r d -> g r b n d",
    )


def _beside(vectors: Array, number: Array) -> Array:
    return np.concatenate([vectors, number], axis=-1)
