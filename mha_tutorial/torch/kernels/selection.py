"""Products in which a pair of a query and a key that is hidden has no part, whatever the two hold.

Zero times NaN is NaN, so a weight of zero does not keep a hidden value out of a matrix product, nor a gradient of
zero a hidden key. Where numbers can be looked at, the product is made as it is, and made again by selection if it
did not go well; elsewhere it is made by selection.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from ...masks import Mask
from ..masks import to_tensor
from .common import is_differentiated, is_eager, is_transformed


class Clean(NamedTuple):
    """Tokens in which what is not finite was replaced by zeros, and where that was."""

    tokens: Float[Tensor, "b h n d"]
    spoiled: Bool[Tensor, "b h n 1"] | None  # None where nothing was


def clean(x: Float[Tensor, "b h n d"]) -> Clean:
    """Replace every token that is not finite by zeros, and remember which.

    Its gradient is that of the zeros: NaN if the token takes part in a score, and zero if it does not.
    """
    if is_eager(x) and all_finite(x):
        return Clean(x, None)
    spoiled = ~x.isfinite().all(dim=-1, keepdim=True)
    return Clean(replace(x, spoiled, 0.0), spoiled)


def settle(v: Float[Tensor, "b h m d"]) -> Float[Tensor, "b h m d"]:
    """Make NaN of an infinite value, since an average of infinities is infinite or NaN by their signs."""
    return v if is_eager(v) and all_finite(v) else replace(v, v.isinf(), torch.nan)


def replace(x: Tensor, places: Bool[Tensor, "#b #h #n #d"], number: float) -> Tensor:
    """Put a number in some places, which hands on the gradient that it gets."""
    return (_TransformedReplace if is_transformed() else _Replace).apply(x, places, number)


class _Replace(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x, places, number):
        return x.masked_fill(places, number)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None, None


class _TransformedReplace(_Replace):  # which ``torch.compile`` would not take
    @staticmethod
    def jvp(ctx, tangent, *_):
        return tangent.view_as(tangent)


def hidden_pairs(
    visible, bias: Tensor | None, b: int, n: int, m: int, device: torch.device, *tile: slice
) -> Bool[Tensor, "#b #h #n #m"] | None:
    """Say which keys are hidden from which queries, by the mask or by a bias of minus infinity; None if none is.

    With a tile, the mask is cut to it if it is a structured one; tensors are of the tile already.
    """
    if isinstance(visible, Mask):
        visible = to_tensor(visible, b, n, m, device, *tile)
    hidden = None if visible is None else ~visible
    if bias is not None:
        hidden = bias.isneginf() if hidden is None else hidden | bias.isneginf()
    return None if hidden is None else hidden[(None,) * (4 - hidden.ndim)]


def without_unseen(
    x: Float[Tensor, "b h_kv m d"], hidden: Bool[Tensor, "#b #h #n #m"], h: int
) -> Float[Tensor, "b h_kv m d"]:
    """Replace keys or values that no query of any head sees by zeros."""
    unseen = hidden.all(dim=2, keepdim=True).mT  # (b, h, m, 1)
    if unseen.shape[1] > 1:
        unseen = unseen.unflatten(1, (x.shape[1], h // x.shape[1])).all(dim=2)
    return x.masked_fill(unseen, 0)


def scores_of(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b h_kv m d_k"],
    hidden: Bool[Tensor, "#b #h #n #m"] | None,
    bias: Float[Tensor, "#b #h #n #m"] | None,
    spoiled: tuple[Tensor | None, Tensor | None] = (None, None),
) -> Float[Tensor, "b h n m"]:
    """Score every key for every query, the queries scaled already; minus infinity where hidden.

    A query or a key that was spoiled before it was cleaned makes NaN of the scores it takes part in.
    """
    scores = grouped_matmul(q, k.mT)
    of_queries, of_keys = spoiled
    if of_queries is not None:
        scores = scores + torch.zeros_like(of_queries, dtype=scores.dtype).masked_fill(of_queries, torch.nan)
    if of_keys is not None:
        marks = torch.zeros_like(of_keys, dtype=scores.dtype).masked_fill(of_keys, torch.nan).mT
        scores = scores + marks.repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    if bias is not None:
        scores = scores + bias
    return scores if hidden is None else scores.masked_fill(hidden, -torch.inf)


def weigh(
    attention: Float[Tensor, "b h n m"],
    v: Float[Tensor, "b h_kv m d_v"],
    hidden: Bool[Tensor, "#b #h #n #m"] | None,
) -> Float[Tensor, "b h n d_v"]:
    """Average the values by attention that is zero where hidden; nothing hidden passes, in either direction."""
    if hidden is None:
        return grouped_matmul(attention, v)
    if is_differentiated(attention, v) and not torch.jit.is_tracing():
        return (_TransformedWeigh if is_transformed() else _Weigh).apply(attention, v, hidden)
    return weighed(attention, v, hidden)


class _Weigh(torch.autograd.Function):
    """The product of attention and values. Its derivatives are products of the same kind."""

    @staticmethod
    def forward(attention, v, hidden):
        return weighed(attention, v, hidden)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, d_heads):
        attention, v, hidden = ctx.saved_tensors
        d_attention = grouped_matmul(d_heads, v.transpose(-2, -1))  # masked where the attention comes from
        return d_attention, spread_back(attention, d_heads, hidden, v.shape[1]), None


class _TransformedWeigh(_Weigh):  # which ``torch.compile`` would not take
    generate_vmap_rule = True

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def jvp(ctx, d_attention, d_v, _):
        attention, v, hidden = ctx.saved_tensors
        return weigh(d_attention, v, hidden) + weigh(attention, d_v, hidden)


def spread_back(
    attention: Float[Tensor, "b h n m"],
    d_heads: Float[Tensor, "b h n d"],
    hidden: Bool[Tensor, "#b #h #n #m"] | None,
    h_kv: int,
) -> Float[Tensor, "b h_kv m d"]:
    """Give each key what all queries that see it ask of it, those of all heads that share it together."""
    h = attention.shape[1]
    if h == h_kv:
        return weigh(attention.transpose(-2, -1), d_heads, None if hidden is None else hidden.mT)
    if hidden is not None:
        hidden = fold(hidden.expand(*attention.shape), h_kv)
    return weigh(
        fold(attention, h_kv).transpose(-2, -1), fold(d_heads, h_kv), None if hidden is None else hidden.mT
    )


def weighed(attention: Tensor, v: Tensor, hidden: Tensor) -> Tensor:
    """Compute what `weigh` does, to be differentiated by nobody."""
    if is_eager(v):
        heads = grouped_matmul(attention, v)
        if all_finite(heads):
            return heads
    spoiled = ~v.isfinite()
    heads = grouped_matmul(attention.masked_fill(hidden, 0), v.masked_fill(spoiled, 0))
    seen = (~hidden).expand(*attention.shape).to(v.dtype)
    return heads.masked_fill(grouped_matmul(seen, spoiled.to(v.dtype)) > 0, torch.nan)


def all_finite(*tensors: Tensor) -> bool:
    """Whether all numbers are finite, and their sum too."""
    for x in tensors:
        total = x.sum(dtype=None if x.dtype.itemsize > 2 else torch.float32).item()
        if total - total != 0:  # infinity less infinity, or NaN
            return False
    return True


def grouped_matmul(x: Float[Tensor, "b h n p"], y: Float[Tensor, "b h_kv p r"]) -> Float[Tensor, "b h n r"]:
    """Multiply, where neighbouring heads of `x` share one of `y`, which is not copied."""
    h_kv = y.shape[1]
    if x.shape[1] == h_kv:
        return x @ y
    if torch.compiler.is_exporting():  # heads below each other have a stride that is no simple product of lengths
        return x @ y.repeat_interleave(x.shape[1] // h_kv, dim=1)
    b, h, n, _ = x.shape
    return (fold(x, h_kv) @ y).reshape(b, h, n, y.shape[-1])


def fold(x: Float[Tensor, "b h n p"], h_kv: int) -> Float[Tensor, "b h_kv gn p"]:
    """Put the rows of the heads that share a key-value head below each other."""
    b, h, n, p = x.shape
    return x.reshape(b, h_kv, h // h_kv * n, p)  # the view for which also batched gradients have a rule


def tokens_of(x: Float[Tensor, "b h n d"], part: slice) -> Float[Tensor, "b h i d"]:
    """Cut some tokens out, also of batched gradients, which have no rule for `x[:, :, part]`."""
    return x.narrow(2, part.start, part.stop - part.start)
