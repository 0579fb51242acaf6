"""PyTorch's compiled kernel for scores that are a function of the inner product and the positions."""

from functools import lru_cache

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from ...masks import Mask
from ..masks import mask_mod
from .common import is_eager, is_tame, run_kernel
from .online import online
from .selection import hidden_pairs, without_unseen


def flex(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b h_kv m d_k"],
    v: Float[Tensor, "b h_kv m d_v"],
    *,
    visible: Bool[Tensor, "#b #h #n #m"] | Mask | None = None,
    bias: Float[Tensor, "#b #h #n #m"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    log_sums: bool = False,
) -> Float[Tensor, "b h n d_v"]:
    """Compute what `naive` computes with ``flex_attention``, compiled on first use for each kind of arguments.

    On masked positions it does what `fused` does. A structured mask becomes a function of positions and a map of
    its hidden blocks, which are skipped. The map is kept, so give the same mask again. Two masks are of one kind
    if they differ in nothing but numbers; after eight kinds (``torch._dynamo.config.recompile_limit``) PyTorch
    warns, and computes further ones uncompiled and slowly.

    Parameters and errors are those of `naive`.

    Raises
    ------
    NotImplementedError
        For dropout and `log_sums`, and where there are no queries or no keys; on a CPU for float64, and where
        gradients are asked for.

    References
    ----------
    Dong and others, *Flex Attention: A Programming Model for Generating Optimized Attention Kernels*.
    """
    if log_sums:
        raise NotImplementedError("flex: log_sums is not offered; choose naive or online")
    return run_kernel("flex", _flex, q, k, v, visible, bias, scale, dropout=dropout)


def _flex(q: Tensor, k: Tensor, v: Tensor, *, visible, bias, scale: float, dropout: float) -> Tensor:
    if dropout:
        raise NotImplementedError(f"flex: dropout is not offered, got dropout={dropout}; choose naive or fused")
    if q.device.type == "cpu" and q.dtype == torch.float64:
        raise NotImplementedError("flex: float64 is not compiled on a CPU; choose naive, fused or online")
    differentiated = torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v))
    if q.device.type == "cpu" and differentiated:
        raise NotImplementedError("flex: there is no backward pass on a CPU; choose naive, fused or online")
    b, h, n, m = *q.shape[:3], k.shape[2]
    if not b * n * m:
        raise NotImplementedError(f"flex: there must be queries and keys, got b={b}, n={n}, m={m}; choose another")
    if is_eager(q):
        heads = _call(q, k, v, visible, bias, scale)
        hides = visible is not None or bias is not None
        tame = is_tame(q, k, heads) if hides else is_tame(q, k)
        return heads if tame else online(q, k, v, visible=visible, bias=bias, scale=scale)
    hidden = hidden_pairs(visible, bias, b, n, m, q.device)
    if hidden is not None:
        q = q.masked_fill(hidden.all(dim=-1, keepdim=True), 0)
        k, v = (without_unseen(x, hidden, h) for x in (k, v))
    return _call(q, k, v, visible, bias, scale)


def _call(q: Tensor, k: Tensor, v: Tensor, visible, bias, scale: float) -> Tensor:
    b, h, n, m = *q.shape[:3], k.shape[2]
    blocks: BlockMask | None = None
    if isinstance(visible, Mask):
        blocks = _structured(visible, b, n, m, q.device)
    elif visible is not None:
        blocks = _from_tensor(visible.expand(b, h, n, m))
    added = None if bias is None else _adding(bias.expand(b, h, n, m))
    return _compiled()(q, k, v, score_mod=added, block_mask=blocks, scale=scale, enable_gqa=bool(h != k.shape[1]))


@lru_cache(maxsize=1)
def _compiled():
    return torch.compile(flex_attention)


@lru_cache(maxsize=16)
def _structured(mask: Mask, b: int, n: int, m: int, device: torch.device) -> BlockMask:
    sees = mask_mod(mask, b, n, m, device)
    return create_block_mask(lambda entry, head, i, j: sees(entry, i, j), b, None, n, m, device=device)


def _from_tensor(visible: Tensor) -> BlockMask:
    b, h, n, m = visible.shape
    return create_block_mask(
        lambda entry, head, i, j: visible[entry, head, i, j], b, h, n, m, device=visible.device
    )


def _adding(bias: Tensor):
    return lambda score, entry, head, i, j: (score + bias[entry, head, i, j]).to(score.dtype)
