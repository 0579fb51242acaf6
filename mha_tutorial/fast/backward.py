"""The backward pass of the fast layer: attention is computed a second time, some rows at a time."""

import math

import numpy as np
from einops import rearrange
from numpy import ndarray as Array

from ..gradients import Gradients
from ..weights import RowWeights
from .forward import Residuals
from .plan import Plan
from .softmax import unshifted_softmax
from .threads import parallel_map, parallel_matmul
from .tiles import Tile
from .workspace import Buffer, Workspace

STEPS = 16  # rows that are added up in their own type before 64 bits are used


@np.errstate(all="ignore")  # the layer checks that the gradients are finite
def layer_vjp(
    d_output: Array,
    inputs: tuple[Array, Array, Array],
    weights: RowWeights,
    concat_heads: Array,
    residuals: list[Residuals],
    plan: Plan,
    threads: int,
) -> Gradients:
    """Carry a gradient from the output back to the inputs, queries, keys and values, and to the weights.

    The steps are those of `gradients.backward`.

    Parameters
    ----------
    d_output
        ``(*batch, n, d_model)``.
    inputs, weights
        As the layer was given them.
    concat_heads
        The heads of all tokens, side by side: ``(b n, h d_v)``.
    residuals, plan
        Of the forward pass.
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
    d_projected = [_empty_like_projections(x, W, weights.h_kv) for x, W in zip(inputs, matrices, strict=True)]

    def make_worker():
        workspace = Workspace(weights.dtype)

        def work(part: Residuals) -> None:
            d_q, d_k, d_v = (gradient[part.job] for gradient in d_projected)
            attention_vjp(part, plan, d_heads[part.job], d_q, d_k[:, :, 0], d_v[:, :, 0], workspace)

        return work

    parallel_map(make_worker, residuals, threads)
    d_tokens: list[Array] = []
    d_weights: dict[str, Array] = {}
    for name, gradient, W, x in zip("qkv", d_projected, matrices, inputs, strict=True):
        dx, d_weights[f"W_{name}"], d_weights[f"b_{name}"] = projection_vjp(gradient, W, x, threads)
        d_tokens.append(dx)
    d_weights["b_k"][...] = 0  # it adds one number to all scores of a query, which softmax does not see
    d_weights["W_o"] = parallel_matmul(concat_heads.T, d_output, threads).reshape(weights.W_o.shape)
    d_weights["b_o"] = _sum_rows(d_output)
    dQ, dK, dV = d_tokens
    return Gradients(dQ, dK, dV, RowWeights(**{name: d_weights[name] for name in weights.arrays()}))


def attention_vjp(
    part: Residuals,
    plan: Plan,
    d_heads: Array,
    d_queries: Array,
    d_keys: Array,
    d_values: Array,
    workspace: Workspace,
) -> None:
    """Carry the gradient of some heads back to their queries, keys and values, and write it there.

    Whole rows of attention are computed, since the softmax subtracts from the gradient of a row its average
    under that row. FlashAttention has this average from the heads, without the rows, but with other rounding.
    Where one key has all the weight the two numbers have to be the same, so that their difference is zero.

    Parameters
    ----------
    d_heads
        ``(g, b, r, n, d_v)``: of the heads of `part`.
    d_queries, d_keys, d_values
        Where the gradients of its ``q``, ``k`` and ``v`` are written to, in their shapes.

    References
    ----------
    Dao and others, *FlashAttention*, section 3.1 (recomputation) and appendix B.4 (the backward pass).
    """
    summed_k, summed_v = workspace(Buffer.D_KEYS, *part.k.shape), workspace(Buffer.D_VALUES, *part.v.shape)
    summed_k[...], summed_v[...] = 0, 0
    for tile, unshifted in zip((tile.of(*part.job) for tile in plan.tiles), part.unshifted, strict=True):
        for queries in plan.rows(tile, part.q.shape[:3]):
            dq, dk, dv = _rows_vjp(part, plan, tile.rows(queries), unshifted, d_heads, workspace)
            np.multiply(dq, plan.scoring.scale, out=d_queries[..., queries, :])
            summed_k[..., tile.keys, :] += dk
            summed_v[..., tile.keys, :] += dv
    np.multiply(summed_k, plan.scoring.scale, out=d_keys)
    d_values[...] = summed_v


def _rows_vjp(
    part: Residuals, plan: Plan, tile: Tile, unshifted: bool, d_heads: Array, workspace: Workspace
) -> tuple[Array, Array, Array]:
    """What some rows of attention add to the gradients of their queries, keys and values, but for the scale."""
    q = workspace.copy(Buffer.TILE_QUERIES, part.q[..., tile.queries, :])
    k, v = part.k[..., tile.keys, :], part.v[..., tile.keys, :]
    # Heads that share keys, one below the other: one product adds up what all of them ask of a key.
    g, b, r, p, _ = q.shape
    stacked_q = q.reshape(g, b, r * p, -1)
    d_out = workspace.copy(Buffer.TILE_D_HEADS, d_heads[..., tile.queries, :]).reshape(g, b, r * p, -1)
    masked = None
    if unshifted:
        scaled = workspace.copy(Buffer.SCALED_QUERIES, q, plan.scoring.query_factor)
        A = unshifted_softmax(scaled, part.k, tile, plan.scoring.exponential, workspace)
    else:
        scores, A, _ = plan.safe_attention(part.job, q, part.k, part.v, tile.queries, tile.keys)
        masked, A = np.isneginf(scores).reshape(*d_out.shape[:-1], -1), A.reshape(*d_out.shape[:-1], -1)
    dv = np.matmul(A.mT, d_out, out=workspace(Buffer.TILE_D_VALUES, *v.shape))
    dS = np.matmul(d_out, v.mT, out=workspace(Buffer.TILE_D_SCORES, *A.shape))
    if masked is not None:
        dS[masked] = 0  # the value there may have overflowed in the product
    dS -= np.vecdot(A, dS)[..., None]
    dS *= A
    dq = np.matmul(dS, k, out=workspace(Buffer.TILE_D_QUERIES, *stacked_q.shape)).reshape(q.shape)
    dk = np.matmul(dS.mT, stacked_q, out=workspace(Buffer.TILE_D_KEYS, *k.shape))
    return dq, dk, dv


def projection_vjp(gradient: Array, W: Array, tokens: Array, threads: int) -> tuple[Array, Array, Array]:
    """Carry the gradient (g, b, r, n, d) of a projection back to its tokens, matrices and biases."""
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
        _sum_rows(gradient).reshape(len(W), -1),
    )


def _sum_rows(vectors: Array) -> Array:
    """Add up all rows: a few at a time in their own type, and these sums in 64 bits, for little rounding."""
    few = np.add.reduceat(vectors, range(0, len(vectors), STEPS), axis=0)
    return few.sum(axis=0, dtype=np.float64).astype(vectors.dtype)


def _empty_like_projections(tokens: Array, W: Array, h_kv: int) -> Array:
    """Memory for the gradient (g, b, r, n, d) of a projection, with all heads of a token side by side."""
    *batch, n, _ = tokens.shape
    return rearrange(
        np.empty((math.prod(batch), n, h_kv, len(W) // h_kv, W.shape[-1]), W.dtype), "b n g r d -> g b r n d"
    )
