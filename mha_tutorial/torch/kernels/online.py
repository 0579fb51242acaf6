"""Attention one tile at a time: softmax in one pass over the keys, and memory linear in the number of tokens."""

from collections.abc import Iterator
from contextlib import nullcontext
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from ...masks import Mask
from ..masks import reach, rows
from .guard import attend
from .naive import by_group, fold, scores_of


def online(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b h_kv m d_k"],
    v: Float[Tensor, "b h_kv m d_v"],
    *,
    visible: Bool[Tensor, "#b #h #n #m"] | Mask | None = None,
    bias: Float[Tensor, "#b #h #n #m"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    block: int = 256,
) -> Float[Tensor, "b h n d_v"]:
    """Compute what `naive` computes, `block` queries against `block` keys at a time.

    Each query keeps the largest score so far, the sum of exponentials and the sum of values weighted by them;
    when a larger score comes, both sums are scaled down. The backward pass computes each tile again. Tiles that
    a structured mask hides are not computed. Sums are kept in 32 bits or more.

    Parameters and errors are those of `naive`.

    Raises
    ------
    NotImplementedError
        For dropout: the second computation of a tile would have to drop the same weights.

    References
    ----------
    Milakov and Gimelshein, *Online Normalizer Calculation for Softmax*; Rabe and Staats, *Self-attention Does Not
    Need O(n²) Memory*; Dao and others, *FlashAttention*.

    Examples
    --------
    >>> x = torch.arange(3.0).view(1, 1, 3, 1)
    >>> online(0 * x, x, x, block=2).flatten().tolist()
    [1.0, 1.0, 1.0]
    """
    if dropout:
        raise NotImplementedError(f"online: dropout is not offered, got dropout={dropout}; choose naive or fused")

    def compute(q, k, v, *, visible, bias, scale, dropout=0.0):
        return _Online.apply(q, k, v, bias, visible, scale, block)[0]

    return attend("online", compute, q, k, v, visible, bias, scale, dropout)


class _Tile(NamedTuple):
    """A block of queries and a block of keys."""

    queries: slice
    keys: slice

    def of(self, q: Tensor, k: Tensor, visible, bias: Tensor | None, scale: float) -> Float[Tensor, "b h i j"]:
        """Compute the scores of the tile, minus infinity where hidden."""
        if isinstance(visible, Mask):
            visible = rows(visible, q.shape[0], q.shape[2], k.shape[2], q.device, *self)
        elif visible is not None:
            visible = self.cut(visible)
        q, k = (x.to(sums(x)) for x in (q[:, :, self.queries], k[:, :, self.keys]))
        return scores_of(q, k, visible, bias if bias is None else self.cut(bias), scale)

    def cut(self, scores: Tensor) -> Tensor:
        """Cut the tile out of what broadcasts to the scores."""
        along_queries, along_keys = (
            part if size > 1 else slice(None) for part, size in zip(self, scores.shape[-2:], strict=True)
        )
        return scores[..., along_queries, along_keys]


def _tiles(n: int, m: int, visible, block: int) -> Iterator[tuple[slice, list[_Tile]]]:
    """Each block of queries, with the tiles that it has to look at."""
    for start in range(0, n, block):
        queries = slice(start, min(start + block, n))
        low, high = reach(visible, queries.start, queries.stop, n, m) if isinstance(visible, Mask) else (0, m)
        yield queries, [_Tile(queries, slice(j, min(j + block, high))) for j in range(low, high, block)]


class _Online(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, v, bias, visible, scale, block):
        with _no_autocast(q):
            return _forward(q, k, v, bias, visible, scale, block)

    @staticmethod
    def setup_context(ctx, inputs, output):
        q, k, v, bias, visible, scale, block = inputs
        heads, log_sums = output
        mask = visible if isinstance(visible, Tensor) else None
        ctx.save_for_backward(q, k, v, bias, mask, heads, log_sums)
        ctx.mark_non_differentiable(log_sums)
        ctx.mask, ctx.scale, ctx.block = None if mask is not None else visible, scale, block

    @staticmethod
    @once_differentiable
    def backward(ctx, d_heads, _):
        q, k, v, bias, visible, heads, log_sums = ctx.saved_tensors
        visible = ctx.mask if visible is None else visible
        with _no_autocast(q):
            gradients = _backward(
                d_heads, q, k, v, bias, visible, ctx.scale, ctx.block, heads, log_sums, ctx.needs_input_grad[3]
            )
        return *gradients, None, None, None


def _forward(q, k, v, bias, visible, scale, block):
    """The heads, and for each query the logarithm of its sum of exponentials."""
    b, h, n, _ = q.shape
    heads = q.new_empty(b, h, n, v.shape[-1])
    log_sums = q.new_empty(b, h, n, 1, dtype=sums(q))
    for queries, tiles in _tiles(n, k.shape[2], visible, block):
        size = queries.stop - queries.start
        largest = log_sums.new_full((b, h, size, 1), -torch.inf)
        total = torch.zeros_like(largest)
        weighted = largest.new_zeros(b, h, size, v.shape[-1])
        for tile in tiles:
            scores = tile.of(q, k, visible, bias, scale)
            larger = largest.maximum(scores.amax(dim=-1, keepdim=True))
            exponentials = (scores - finite(larger)).exp()
            shrink = (largest - finite(larger)).exp()
            total = total * shrink + exponentials.sum(dim=-1, keepdim=True)
            weighted = weighted * shrink + by_group(exponentials, v[:, :, tile.keys].to(sums(v)))
            largest = larger
        heads[:, :, queries] = (weighted / total.where(total > 0, 1)).to(heads.dtype)
        log_sums[:, :, queries] = largest + total.log()
    return heads, log_sums


def _backward(d_heads, q, k, v, bias, visible, scale, block, heads, log_sums, for_bias):
    """The gradients of q, k, v and bias."""
    h_kv, (dq, dk, dv) = k.shape[1], (torch.zeros_like(x, dtype=sums(x)) for x in (q, k, v))
    d_bias = torch.zeros_like(bias) if for_bias else None
    d_heads = d_heads.to(sums(q))
    shared = (d_heads * heads).sum(dim=-1, keepdim=True)  # what softmax takes from all weights of a query
    for queries, tiles in _tiles(q.shape[2], k.shape[2], visible, block):
        for tile in tiles:
            scores = tile.of(q, k, visible, bias, scale)
            attention = (scores - finite(log_sums[:, :, queries])).exp()
            here, asking = d_heads[:, :, queries], q[:, :, queries].to(sums(q))
            d_attention = by_group(here, v[:, :, tile.keys].to(sums(v)).mT)
            d_scores = attention * (d_attention - shared[:, :, queries])
            dv[:, :, tile.keys] += fold(attention, h_kv).mT @ fold(here, h_kv)
            dk[:, :, tile.keys] += fold(d_scores, h_kv).mT @ fold(asking, h_kv) * scale
            dq[:, :, queries] += by_group(d_scores, k[:, :, tile.keys].to(sums(k))) * scale
            if d_bias is not None:
                part = tile.cut(d_bias)
                part += d_scores.sum_to_size(part.shape)
    return *(d.to(x.dtype) for d, x in zip((dq, dk, dv), (q, k, v), strict=True)), d_bias


def _no_autocast(x: Tensor):
    """Keep autocast from making 16 bits of the 32 in which sums are kept."""
    available = torch.amp.is_autocast_available(x.device.type)
    return torch.autocast(x.device.type, enabled=False) if available else nullcontext()


def sums(x: Tensor) -> torch.dtype:
    """The type in which sums are kept."""
    return torch.promote_types(x.dtype, torch.float32)


def finite(largest: Tensor) -> Tensor:
    """What can be subtracted from scores: zero instead of minus infinity, the largest of none."""
    return largest.masked_fill(largest.isneginf(), 0)
