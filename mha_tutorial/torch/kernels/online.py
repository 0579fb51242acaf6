"""Attention one tile at a time: softmax in one pass over the keys, and memory linear in the number of tokens."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...masks import Mask
from ..masks import visible_key_range
from .common import is_eager, is_tame, is_transformed, no_autocast, run_kernel, sums
from .selection import (
    all_finite,
    clean,
    grouped_matmul,
    hidden_pairs,
    scores_of,
    settle,
    spread_back,
    tokens_of,
    weigh,
)


def online(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b h_kv m d_k"],
    v: Float[Tensor, "b h_kv m d_v"],
    *,
    visible: Bool[Tensor, "#b #h #n #m"] | Mask | None = None,
    bias: Float[Tensor, "#b #h #n #m"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    log_sums: bool = False,
    block: int = 256,
) -> Float[Tensor, "b h n d_v"]:
    """Compute what `naive` computes, `block` queries against `block` keys at a time.

    Each query keeps the largest score so far, the sum of exponentials and the sum of values weighted by them;
    when a larger score comes, both sums are scaled down. The backward pass computes each tile again, from the
    largest score and the sum as they are: their logarithm would lose the sum beside a large score. Tiles that a
    structured mask hides are not computed. Scores and sums are kept in float32 or wider.

    What is hidden reaches nothing, as with `naive`, and gradients are right for scores of any size. It can be
    differentiated twice, and transformed by ``torch.func``.

    Parameters and errors are those of `naive`.

    Raises
    ------
    NotImplementedError
        For dropout: the second computation of a tile would have to drop the same entries. In ``torch.jit.trace``,
        and in ``torch.export`` with a dynamic length: the number of tiles would be that of the example.
    ValueError
        If `block` is below 1.

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
    if torch.jit.is_tracing() or not all(type(x.shape[2]) is int for x in (q, k)):
        raise NotImplementedError(
            "online: a traced graph, or one exported for any length, would keep the blocks of its example; choose "
            "naive or fused"
        )
    if block < 1:
        raise ValueError(f"online: block must be at least 1, got {block}")
    return run_kernel("online", _online, q, k, v, visible, bias, scale, log_sums=log_sums, block=block)


def _online(q: Tensor, k: Tensor, v: Tensor, *, visible, bias, scale: float, log_sums: bool, block: int):
    wide, dtype = sums(q, bias), q.dtype
    (q, bad_queries), (k, bad_keys) = (clean(x.to(wide)) for x in (q, k))
    v = settle(v.to(wide))
    rule, mask = (visible, None) if isinstance(visible, Mask) else (None, visible)
    # under a transform of torch.func autograd goes through the steps themselves, any number of times
    compute = _forward if is_transformed() else _Online.apply
    with no_autocast(q):
        heads, largest, total = compute(q * scale, k, v, bias, mask, bad_queries, bad_keys, rule, block)
    heads = heads.to(dtype)
    if not log_sums:
        return heads
    total = total.masked_fill(largest.isneginf(), 1)  # whose logarithm has a derivative
    return heads, (largest + total.log()).squeeze(-1)


class _Problem(NamedTuple):
    """What a pass has to do with, cut into tiles."""

    q: Tensor  # scaled
    k: Tensor
    v: Tensor
    bias: Tensor | None
    mask: Tensor | None
    bad_queries: Tensor | None  # which were not finite, and are zeros now
    bad_keys: Tensor | None
    rule: Mask | None  # instead of the mask
    block: int

    def tiles(self) -> Iterator[tuple[slice, list["_Tile"]]]:
        """Each block of queries, with the tiles that it has to look at. Blocks of keys are the same for all."""
        n, m, block = self.q.shape[2], self.k.shape[2], self.block
        for start in range(0, n, block):
            queries = slice(start, min(start + block, n))
            low, high = (
                (0, m) if self.rule is None else visible_key_range(self.rule, queries.start, queries.stop, n, m)
            )
            blocks = [slice(j, min(j + block, m)) for j in range(low // block * block, high, block)]
            yield queries, [_Tile(self, queries, keys) for keys in blocks]


class _Tile(NamedTuple):
    """A block of queries and a block of keys."""

    problem: _Problem
    queries: slice
    keys: slice

    def hidden(self) -> Bool[Tensor, "#b #h #i #j"] | None:
        """Which pairs of the tile are hidden."""
        q, k, mask = self.problem.q, self.problem.k, self.problem.mask
        visible = self.problem.rule if mask is None else self.cut(mask)
        size = q.shape[0], q.shape[2], k.shape[2], q.device
        return hidden_pairs(visible, self.bias(), *size, self.queries, self.keys)

    def bias(self) -> Float[Tensor, "#b #h #i #j"] | None:
        """What is added to the scores of the tile."""
        return None if self.problem.bias is None else self.cut(self.problem.bias)

    def scores(self, hidden: Tensor | None) -> Float[Tensor, "b h i j"]:
        """Compute the scores of the tile, minus infinity where hidden."""
        problem, queries, keys = self
        bad_queries = None if problem.bad_queries is None else tokens_of(problem.bad_queries, queries)
        bad_keys = None if problem.bad_keys is None else tokens_of(problem.bad_keys, keys)
        q, k = tokens_of(problem.q, queries), tokens_of(problem.k, keys)
        return scores_of(q, k, hidden, self.bias(), (bad_queries, bad_keys))

    def cut(self, scores: Tensor) -> Tensor:
        """Cut the tile out of what broadcasts to the scores."""
        along_queries, along_keys = (
            part if size > 1 else slice(None)
            for part, size in zip((self.queries, self.keys), scores.shape[-2:], strict=True)
        )
        return scores[..., along_queries, along_keys]


class _Online(torch.autograd.Function):
    @staticmethod
    def forward(*problem):
        return _forward(*problem)

    @staticmethod
    def setup_context(ctx, inputs, output):
        *tensors, ctx.rule, ctx.block = inputs
        _, largest, _ = output
        ctx.save_for_backward(*tensors, *output)
        ctx.mark_non_differentiable(largest)
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx, d_heads, _, d_total):
        *tensors, heads, largest, total = ctx.saved_tensors
        problem = _Problem(*(*tensors, ctx.rule, ctx.block))
        with no_autocast(heads):
            gradients = _backward(problem, heads, largest, total, d_heads, d_total, ctx.needs_input_grad[3])
        return *gradients, None, None, None, None, None


def _forward(*arguments):
    """The heads; each query's largest score; its sum of exponentials beside that."""
    problem = _Problem(*arguments)
    q, v = problem.q, problem.v
    selects = not (is_eager(v) and all_finite(v))
    blocks = []
    for queries, tiles in problem.tiles():
        size = (*q.shape[:2], queries.stop - queries.start, 1)
        largest = q.new_full(size, -torch.inf)
        total = torch.zeros_like(largest)
        weighted = torch.zeros_like(largest).expand(*largest.shape[:3], v.shape[-1])
        for tile in tiles:
            hidden = tile.hidden()
            scores = tile.scores(hidden)
            larger = largest.maximum(scores.detach().amax(dim=-1, keepdim=True))
            exponentials = (scores - finite(larger)).exp()
            shrink = (largest - finite(larger)).exp()
            total = total * shrink + exponentials.sum(dim=-1, keepdim=True)
            values = tokens_of(v, tile.keys)
            part = weigh(exponentials, values, hidden if selects else None)
            weighted = weighted * shrink + part
            largest = larger
        blocks.append((weighted / _without_zero(total, tiles), largest, total))
    if not blocks:
        heads = q.new_zeros(*q.shape[:3], v.shape[-1])
        return heads, heads[..., :1], heads[..., :1]
    return tuple(torch.cat(parts, dim=2) for parts in zip(*blocks, strict=True))


def _without_zero(total: Tensor, tiles: list[_Tile]) -> Tensor:
    """Divide by one for a query that sees nothing; a sum of zero for another is an overflow, and makes NaN."""
    if is_eager(total) and total.all():
        return total
    fully_masked = torch.ones_like(total, dtype=torch.bool)
    for tile in tiles:
        hidden = tile.hidden()
        fully_masked = fully_masked & (False if hidden is None else hidden.all(dim=-1, keepdim=True))
    return total.masked_fill(fully_masked, 1)


def _backward(problem: _Problem, heads, largest, total, d_heads, d_total, for_bias: bool):
    """The gradients of the scaled queries, the keys, the values and the bias."""
    q, k, v, bias = problem[:4]
    h_kv = k.shape[1]
    d_heads = torch.zeros_like(heads) if d_heads is None else d_heads
    tame = is_eager(d_heads) and problem.bad_queries is None and problem.bad_keys is None
    tame = tame and is_tame(d_heads, heads, v)
    dq: list[Tensor] = []
    dk: dict[int, Tensor] = {}
    dv: dict[int, Tensor] = {}
    d_bias: dict[tuple[int, int], Tensor] = {}
    for queries, tiles in problem.tiles():
        q_block, d_block, *saved = (tokens_of(x, queries) for x in (q, d_heads, heads, largest, total))
        added = None if d_total is None else tokens_of(d_total, queries)
        dq_block = torch.zeros_like(q_block)
        for tile, attention, d_scores in _through_softmax(tiles, v, saved, d_block, added, tame):
            start = tile.keys.start
            _add(dv, start, spread_back(attention, d_block, None if tame else tile.hidden(), h_kv))
            _add(dk, start, spread_back(d_scores, q_block, None, h_kv))
            dq_block = dq_block + grouped_matmul(d_scores, tokens_of(k, tile.keys))
            if for_bias and bias is not None:
                place = queries.start if bias.shape[-2] > 1 else 0, start if bias.shape[-1] > 1 else 0
                _add(d_bias, place, d_scores.sum_to_size(_with_four_axes(tile.cut(bias)).shape))
        dq.append(dq_block)
    return (
        torch.cat(dq, dim=2) if dq else torch.zeros_like(q),
        _whole(dk, k, problem.block),
        _whole(dv, v, problem.block),
        _whole_bias(d_bias, bias, problem.block) if for_bias and bias is not None else None,
    )


def _through_softmax(
    tiles: list[_Tile], v: Tensor, saved: list[Tensor], d_heads: Tensor, d_total: Tensor | None, tame: bool
) -> Iterator[tuple[_Tile, Tensor, Tensor]]:
    """For each tile of a block of queries: its attention, and the gradient of its scores.

    It is the weight times the difference between the weight's own gradient and the weighted mean of those of the
    row. Where one tile is the whole row, the mean is computed from it. Where there are several, it is the inner
    product of the result and its gradient; and a row with one weight of one, beside which all others are lost, gets
    a gradient of zero rather than what the two ways of rounding leave.
    """
    heads, largest, total = saved
    whole = len(tiles) == 1
    if not whole:
        peak, total = finite(largest), _without_zero(total, tiles)
        d_heads = d_heads.masked_fill(total == 1, 0)
        mean = (d_heads * heads).sum(dim=-1, keepdim=True)
    for tile in tiles:
        hidden = tile.hidden()
        scores = tile.scores(hidden)
        peak = finite(scores.detach().amax(dim=-1, keepdim=True)) if whole else peak
        exponentials = (scores - peak).exp()
        total = _without_zero(exponentials.sum(dim=-1, keepdim=True), tiles) if whole else total
        attention = exponentials / total
        d_attention = grouped_matmul(d_heads, tokens_of(v, tile.keys).mT)
        if not tame and hidden is not None:
            attention, d_attention = attention.masked_fill(hidden, 0), d_attention.masked_fill(hidden, 0)
        weighted = attention * d_attention
        mean = weighted.sum(dim=-1, keepdim=True) if whole else mean
        d_scores = weighted - attention * (mean if d_total is None else mean - d_total * total)
        if not tame and hidden is not None:
            d_scores = d_scores.masked_fill(hidden, 0)
        yield tile, attention, d_scores


def _add(parts: dict, place, part: Tensor) -> None:
    parts[place] = part if place not in parts else parts[place] + part


def _whole(parts: dict[int, Tensor], like: Tensor, block: int) -> Tensor:
    """Put blocks of keys one after the other, zeros where no tile was."""
    starts = range(0, like.shape[2], block)
    blocks = [parts[j] if j in parts else torch.zeros_like(like[:, :, j : j + block]) for j in starts]
    return torch.cat(blocks, dim=2) if blocks else torch.zeros_like(like)


def _whole_bias(parts: dict[tuple[int, int], Tensor], bias: Tensor, block: int) -> Tensor:
    """Put the tiles of the gradient of a bias together."""
    four = _with_four_axes(bias)
    n, m = four.shape[2:]
    lines = []
    for i in range(0, n, block):
        line = [
            parts[i, j] if (i, j) in parts else torch.zeros_like(four[:, :, i : i + block, j : j + block])
            for j in range(0, m, block)
        ]
        lines.append(torch.cat([x.to(bias.dtype) for x in line], dim=3) if line else torch.zeros_like(four))
    whole = torch.cat(lines, dim=2) if lines else torch.zeros_like(four)
    return whole.view(bias.shape)


def _with_four_axes(scores: Tensor) -> Tensor:
    return scores[(None,) * (4 - scores.ndim)]


def finite(largest: Tensor) -> Tensor:
    """What can be subtracted from scores: zero instead of minus infinity, the largest of none."""
    return largest.masked_fill(largest.isneginf(), 0)
