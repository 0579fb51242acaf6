"""PyTorch's own kernel, `scaled_dot_product_attention`, given what it needs to take its fast path."""

import warnings
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import pad, scaled_dot_product_attention

from ...masks import Causal, Mask, Padding, offset
from .._checks import check_kernel
from ..masks import reach, rows
from .guard import Kernel, attend


def fused(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b h_kv m d_k"],
    v: Float[Tensor, "b h_kv m d_v"],
    *,
    visible: Bool[Tensor, "#b #h #n #m"] | Mask | None = None,
    bias: Float[Tensor, "#b #h #n #m"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n d_v"]:
    """Compute what `naive` computes with ``scaled_dot_product_attention``, which never holds all scores.

    Keys that no query may see are cut off first; `Causal` becomes the backend's own causal path wherever its
    triangle starts at the first query; the narrower of keys and values is padded with zeros, since the fast
    paths want one width. Dropout, and a bias that is learned, take the slow path on a CPU.

    Parameters and errors are those of `naive`.

    Examples
    --------
    >>> from mha_tutorial import Causal
    >>> x = torch.arange(3.0).view(1, 1, 3, 1)
    >>> fused(0 * x, x, x, visible=Causal()).flatten().tolist()
    [0.0, 0.5, 1.0]
    """
    return attend("fused", _fused, q, k, v, visible, bias, scale, dropout)


def fused_on(backend: SDPBackend) -> Kernel:
    """Make the kernel that uses one backend of ``scaled_dot_product_attention`` and no other.

    Raises
    ------
    NotImplementedError
        When called with what this backend cannot do, with the backend's own reason.

    Examples
    --------
    >>> x = torch.ones(1, 1, 2, 3)
    >>> torch.equal(fused_on(SDPBackend.MATH)(x, x, x), x)
    True
    """
    return partial(_fused_on, backend.name)  # a name can be copied and pickled


def backend_of(
    q: Tensor, k: Tensor, v: Tensor, *, visible=None, bias=None, scale: float | None = None, dropout: float = 0.0
) -> SDPBackend:
    """Tell which backend `fused` uses for these arguments, without computing anything.

    Examples
    --------
    >>> x = torch.ones(1, 1, 2, 3)
    >>> backend_of(x, x, x).name, backend_of(x, x, x, dropout=0.1).name
    ('FLASH_ATTENTION', 'MATH')
    """
    check_kernel("fused", q, k, v, visible, bias)
    call = _prepare(q, k, v, visible, bias)
    q, k, v = _one_width(call.q, call.k, call.v)
    shared = k.shape[1] != q.shape[1]
    choice = torch._fused_sdp_choice(q, k, v, call.mask, dropout, call.causal, scale=scale, enable_gqa=shared)
    return SDPBackend(choice)


class _Call(NamedTuple):
    """What is left to compute after the structure of the mask was used."""

    q: Tensor
    k: Tensor
    v: Tensor
    mask: Tensor | None  # boolean, or floating and added
    causal: bool
    blind: int  # so many queries at the front see nothing and are left out


def _fused(q: Tensor, k: Tensor, v: Tensor, visible, bias, scale: float, dropout: float = 0.0) -> Tensor:
    call = _prepare(q, k, v, visible, bias)
    heads = scaled_dot_product_attention(
        *_one_width(call.q, call.k, call.v),
        attn_mask=call.mask,
        dropout_p=dropout,
        is_causal=call.causal,
        scale=scale,
        enable_gqa=k.shape[1] != q.shape[1],
    )[..., : v.shape[-1]]
    return pad(heads, (0, 0, call.blind, 0)) if call.blind else heads


def _prepare(q: Tensor, k: Tensor, v: Tensor, visible, bias: Tensor | None) -> _Call:
    b, n, m = q.shape[0], q.shape[2], k.shape[2]
    causal, blind, keys = False, 0, slice(None)
    if isinstance(visible, Mask):
        keys = slice(*reach(visible, 0, n, n, m))
        if isinstance(visible, Causal) and bias is None:
            shift = offset(visible, n, m)
            causal, blind = bool(shift <= 0 and n > 1), min(max(-shift, 0), n)
        if causal or _all_visible(visible, b, n, m, keys):
            visible = None
        else:
            visible = rows(visible, b, n, m, q.device, keys=keys)
    mask = visible
    if bias is not None:
        bias = bias.to(q.dtype)[..., keys] if bias.shape[-1] > 1 else bias.to(q.dtype)
        mask = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
    return _Call(q[:, :, blind:], k[:, :, keys], v[:, :, keys], mask, causal, blind)


def _all_visible(mask: Mask, b: int, n: int, m: int, keys: slice) -> bool:
    """Whether every query sees all keys of its reach: one query under a triangle, or sequences of one length."""
    if isinstance(mask, Causal):
        return n == 1
    if isinstance(mask, Padding) and not torch.compiler.is_compiling():
        mask.check(m, (b,))
        return bool((mask.lengths == keys.stop).all())
    return False


def _one_width(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    d_k, d_v = k.shape[-1], v.shape[-1]
    if d_k < d_v:
        return pad(q, (0, d_v - d_k)), pad(k, (0, d_v - d_k)), v
    return q, k, pad(v, (0, d_k - d_v)) if d_v < d_k else v


def _fused_on(name: str, q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    backend = SDPBackend.__members__[name]
    with sdpa_kernel(backend):
        with warnings.catch_warnings(record=True) as reasons:
            warnings.simplefilter("always")
            try:
                chosen = backend_of(q, k, v, **options)
            except RuntimeError:  # no backend at all is how PyTorch says that it has none of this name
                chosen = SDPBackend.ERROR
        if chosen != backend:
            why = " ".join(str(reason.message).partition(" (Triggered")[0] for reason in reasons)
            raise NotImplementedError(
                f"fused on {name} cannot do this on {q.device.type}, with q {tuple(q.shape)}, "
                f"k {tuple(k.shape)} and {q.dtype}; choose fused, which chooses a backend. {why}"
            )
        return fused(q, k, v, **options)
