"""The way back through the fast layer: attention weights are computed a second time, some rows at a time."""

import math
from typing import NamedTuple

import numpy as np
from einops import rearrange
from numpy import ndarray as Array

from .._sizes import slices
from ..gradients import Gradients
from ..weights import RowWeights
from .plan import Job, Plan
from .softmax import Room, unshifted_weights
from .threads import parallel_map

STEPS = 16  # so many rows are added up in the type they have before 64 bits are used


class Residuals(NamedTuple):
    """What the forward pass keeps of some key-value heads in some sequences: their projections, and no scores."""

    job: Job
    q: Array  # (g, b, r, n, d_k)
    k: Array  # (g, b, m, d_k)
    v: Array  # (g, b, m, d_v)
    bounded: list[bool]  # for each tile of queries, whether its scores may stay as they are
    finite: bool  # whether all of them are


@np.errstate(all="ignore")  # who calls looks at what comes of it
def layer_vjp(
    d_output: Array,
    inputs: tuple[Array, Array, Array],
    weights: RowWeights,
    joined: Array,
    residuals: list[Residuals],
    plan: Plan,
    threads: int,
) -> Gradients:
    """Carry a gradient from the output back to the inputs, queries, keys and values, and to the weights.

    These are the steps of `gradients.backward`. The heads come side by side, (b n, h d_v), as they were written.
    """
    d_output, W_o = (x.reshape(-1, weights.d_model) for x in (d_output, weights.W_o))
    d_heads = rearrange(
        parallel_matmul(d_output, W_o.T, threads),
        "(b n) (g r d) -> g b r n d",
        n=inputs[0].shape[-2],
        g=weights.h_kv,
        r=weights.group_size,
    )
    matrices = weights.W_q, weights.W_k, weights.W_v
    d_projected = [_room_for(x, W, weights.h_kv) for x, W in zip(inputs, matrices, strict=True)]

    def make_worker():
        room = Room(weights.dtype)

        def work(part: Residuals) -> None:
            d_q, d_k, d_v = (gradient[part.job] for gradient in d_projected)
            attention_vjp(part, plan, d_heads[part.job], d_q, d_k[:, :, 0], d_v[:, :, 0], room)

        return work

    parallel_map(make_worker, residuals, threads)
    d_tokens: list[Array] = []
    found: dict[str, Array] = {}
    for name, gradient, W, x in zip("qkv", d_projected, matrices, inputs, strict=True):
        dx, found[f"W_{name}"], found[f"b_{name}"] = projection_vjp(gradient, W, x, threads)
        d_tokens.append(dx)
    found["b_k"] = np.zeros_like(
        found["b_k"]
    )  # it adds one number to all scores of a query: softmax is blind to it
    found["W_o"] = parallel_matmul(joined.T, d_output, threads).reshape(weights.W_o.shape)
    found["b_o"] = _total(d_output)
    dQ, dK, dV = d_tokens
    return Gradients(dQ, dK, dV, RowWeights(**{name: found[name] for name in weights.arrays()}))


def attention_vjp(
    part: Residuals, plan: Plan, d_heads: Array, d_queries: Array, d_keys: Array, d_values: Array, room: Room
) -> None:
    """Carry the gradient of some heads back to their queries, keys and values, where it is written to.

    Whole rows of weights are computed, since what is subtracted from the gradient of a row is their average of
    it. It could be had from the heads without the rows, but with other rounding; where one key has all the weight
    the two have to be the same number, so that nothing remains but zero. Heads that share keys and values stand
    one below the other, so that a product adds up what they ask of them.

    References
    ----------
    Dao and others, *FlashAttention*, section 3.1, which takes the other way.
    """
    _, q, k, v, bounded, _ = part
    for_keys, for_values = (room(name, *x.shape) for name, x in (("for keys", k), ("for values", v)))
    for_keys[...], for_values[...] = 0, 0
    for tile, is_bounded in zip((tile.of(*part.job) for tile in plan.tiles), bounded, strict=True):
        keys, (g, b, r) = tile.keys, q.shape[:3]
        for queries in plan.rows(tile, (g, b, r)):
            below = (g, b, r * (queries.stop - queries.start))
            some_q = room.copy("queries", q[..., queries, :])
            d_out = room.copy("gradient", d_heads[..., queries, :]).reshape(*below, v.shape[-1])
            hidden = None
            if is_bounded:
                scaled = room.copy("scaled queries", some_q, plan.scale * plan.base.factor)
                A = unshifted_weights(scaled, k, tile.rows(queries), plan.base.power, room)
            else:
                scores, A, _ = plan.safe_attention(part.job, some_q, k, v, queries, keys)
                hidden, A = np.isneginf(scores).reshape(*below, -1), A.reshape(*below, -1)
            some_k, some_v = k[..., keys, :], v[..., keys, :]
            for_values[..., keys, :] += np.matmul(A.mT, d_out, out=room("part", *some_v.shape))
            dS = np.matmul(d_out, some_v.mT, out=room("scores' gradient", *A.shape))
            if hidden is not None:
                dS[hidden] = 0  # whatever a hidden value holds
            dS -= np.vecdot(A, dS)[..., None]
            dS *= A
            for_queries = np.matmul(dS, some_k, out=room("for queries", *below, k.shape[-1]))
            np.multiply(for_queries.reshape(some_q.shape), plan.scale, out=d_queries[..., queries, :])
            below_q = some_q.reshape(*below, -1)
            for_keys[..., keys, :] += np.matmul(dS.mT, below_q, out=room("part", *some_k.shape))
    np.multiply(for_keys, plan.scale, out=d_keys)
    d_values[...] = for_values


def projection_vjp(gradient: Array, W: Array, tokens: Array, threads: int) -> tuple[Array, Array, Array]:
    """Back through the projections of all heads: the gradients of the tokens, the matrices and the biases."""
    gradient = rearrange(gradient, "g b r n d -> (b n) (g r d)")
    rows = tokens.reshape(len(gradient), -1)
    d_tokens = parallel_matmul(gradient, rearrange(W, "h d_in d -> (h d) d_in"), threads)
    dW = parallel_matmul(rows.T, gradient, threads)
    if not np.isfinite(dW).all():  # masked positions may hold NaN, and zero times NaN is NaN
        used = gradient.any(axis=-1, keepdims=True)
        dW = parallel_matmul(np.where(used, rows, 0).T, gradient, threads)
    return (
        d_tokens.reshape(tokens.shape),
        rearrange(dW, "d_in (h d) -> h d_in d", h=len(W)),
        _total(gradient).reshape(len(W), -1),
    )


def parallel_matmul(A: Array, B: Array, threads: int) -> Array:
    """A matrix product, some of the rows on every thread."""
    product = np.empty((len(A), B.shape[1]), A.dtype)
    parallel_map(
        lambda: lambda some: np.matmul(A[some], B, out=product[some]),
        slices(len(A), -(-len(A) // threads)),
        threads,
    )
    return product


def _total(vectors: Array) -> Array:
    """Add up all rows, a few at a time and those in 64 bits: one by one they would lose what pairs keep."""
    few = np.add.reduceat(vectors, range(0, len(vectors), STEPS), axis=0)
    return few.sum(axis=0, dtype=np.float64).astype(vectors.dtype)


def _room_for(tokens: Array, W: Array, h_kv: int) -> Array:
    """Room for what belongs to the projections of tokens, (g, b, r, n, d), with heads side by side in memory."""
    *batch, n, _ = tokens.shape
    return rearrange(
        np.empty((math.prod(batch), n, h_kv, len(W) // h_kv, W.shape[-1]), W.dtype), "b n g r d -> g b r n d"
    )
