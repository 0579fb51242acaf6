"""PyTorch's own kernel, `scaled_dot_product_attention`, given what it needs to take its fast path."""

import math
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
from ..masks import to_tensor, visible_key_range
from .common import Kernel, is_differentiated, is_eager, is_tame, is_transformed, norm, run_kernel, sums
from .naive import naive
from .online import online
from .selection import all_finite, hidden_pairs, without_unseen

LARGE = 2.0**13  # scores from which on gradients are left to `online`


def fused(
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
    """Compute what `naive` computes with ``scaled_dot_product_attention``, which never holds all scores.

    Keys that no query may see are cut off first; `Causal` becomes the backend's own causal path wherever its
    triangle starts at the first query; the narrower of keys and values is padded with zeros, since the fast
    paths want one width. Dropout, and a bias that is learned, take the slow path on a CPU; a bias of higher
    precision than the queries makes all of them wider where the backend would round it.

    **Masked positions.** In eager mode on a CPU the kernel looks at its data, and leaves what is not finite, or
    could overflow, to `online`; so nothing hidden reaches a result or a gradient. On a GPU a look makes the
    program wait, and in compiled code there is nothing to look at. There, keys and values that are hidden from
    every query, and queries that see nothing, are replaced by zeros; but NaN, infinity, or a number whose score
    overflows, at a key that only some queries may see, reaches the others too. Choose ``guarded(fused)`` or
    `naive` if that may happen.

    **Large scores.** The backend's backward pass recovers the attention weights from the logarithm of their sum,
    which is lost beside a large score: among m equal scores of 1e8, or in a row whose every bias is -1e9, the
    gradients of the values are up to m times too large. In eager mode on a CPU, where gradients are asked for,
    inputs whose scores could exceed 2¹³, bias included, go to `online`; below that the attention weights are off
    by up to ``|score| · 6e-8``. Elsewhere choose `online` or ``guarded(fused)``.

    Under the transforms of ``torch.func`` `online` computes, which they can transform any number of times.

    Parameters and errors are those of `naive`.

    Raises
    ------
    NotImplementedError
        For `log_sums`, which ``scaled_dot_product_attention`` keeps to itself, and for second derivatives, when
        they are asked for.

    Examples
    --------
    >>> from mha_tutorial import Causal
    >>> x = torch.arange(3.0).view(1, 1, 3, 1)
    >>> fused(0 * x, x, x, visible=Causal()).flatten().tolist()
    [0.0, 0.5, 1.0]
    """
    if log_sums:
        raise NotImplementedError("fused: log_sums is not offered; choose naive or online")
    return run_kernel("fused", _fused, q, k, v, visible, bias, scale, dropout=dropout)


def fused_on(backend: SDPBackend) -> Kernel:
    """Make the kernel that uses one backend of ``scaled_dot_product_attention`` and no other.

    Raises
    ------
    NotImplementedError
        When called with what this backend cannot do, with the backend's own reason.

    Examples
    --------
    >>> from torch.nn.attention import SDPBackend
    >>> x = torch.ones(1, 1, 2, 3)
    >>> torch.equal(fused_on(SDPBackend.MATH)(x, x, x), x)
    True
    """
    return partial(_fused_on, backend.name)  # a name can be copied and pickled


def backend_of(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b h_kv m d_k"],
    v: Float[Tensor, "b h_kv m d_v"],
    *,
    visible: Bool[Tensor, "#b #h #n #m"] | Mask | None = None,
    bias: Float[Tensor, "#b #h #n #m"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
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
    fully_masked: int  # so many queries at the front see nothing and are left out


def _fused(q: Tensor, k: Tensor, v: Tensor, *, visible, bias, scale: float, dropout: float) -> Tensor:
    options = {"visible": visible, "bias": bias, "scale": scale}
    hides = visible is not None or bias is not None
    if is_eager(q):
        if not is_differentiated(q, k, v, bias):
            heads = _call(q, k, v, dropout, **options)
            # a backend may make zeros of a query or a key that is not finite; and where something is hidden, NaN of
            # a query that does not see it
            if is_tame(q, k, heads) if hides else all_finite(q, k):
                return heads
        elif _gradients_are_right(q, k, v, bias, scale):
            return _call(*_differentiated_once(q, k, v, bias, dropout), dropout, **options)
    elif not is_transformed():
        if not (torch.compiler.is_compiling() or torch.jit.is_tracing()):
            q, k, v = _differentiated_once(q, k, v, bias, dropout)
        return _unseen(q, k, v, dropout, **options)
    return naive(q, k, v, dropout=dropout, **options) if dropout else online(q, k, v, **options)


def _differentiated_once(q: Tensor, k: Tensor, v: Tensor, bias, dropout: float) -> tuple[Tensor, Tensor, Tensor]:
    """Have second derivatives refused where the backend computes with a backward pass of its own."""
    own = not dropout and not is_differentiated(bias)  # otherwise operations that can be differentiated compute
    return _Once.apply(q, k, v) if own and is_differentiated(q, k, v) else (q, k, v)


class _Once(torch.autograd.Function):
    """Hand queries, keys and values on to what can be differentiated once; the second time say so.

    The backend's own message names a function that nobody called.
    """

    @staticmethod
    def forward(ctx, *tensors):
        return tuple(x.view_as(x) for x in tensors)

    @staticmethod
    def backward(ctx, *gradients):
        return _Refuse.apply(*gradients) if torch.is_grad_enabled() else gradients


class _Refuse(torch.autograd.Function):
    @staticmethod
    def forward(ctx, *gradients):
        return tuple(None if x is None else x.view_as(x) for x in gradients)

    @staticmethod
    def backward(ctx, *_):
        raise NotImplementedError("fused: there is no second derivative; choose naive or online")


def _gradients_are_right(q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float) -> bool:
    """Whether all is finite, and no score, hidden or not, so large that the logarithm loses the sum beside it."""
    q, k = q.detach(), k.detach()
    of_queries, of_keys, of_values = norm(q), norm(k), norm(v.detach())
    if math.inf in (of_queries, of_keys, of_values):
        return False
    added = 0.0
    if bias is not None and bias.numel():
        bias = bias.detach()
        added = max(bias.max().item(), -bias.masked_fill(bias.isneginf(), 0).min().item())
    if abs(scale) * of_queries * of_keys + added < LARGE or not (q.numel() and k.numel()):
        return True  # by a bound that is cheap, and far too large for many tokens
    longest_q, longest_k = (torch.linalg.vector_norm(x, dim=-1, dtype=sums(x)).max().item() for x in (q, k))
    return abs(scale) * longest_q * longest_k + added < LARGE


def _unseen(q: Tensor, k: Tensor, v: Tensor, dropout: float, *, visible, bias, scale: float) -> Tensor:
    """Compute without a look at the data: what is hidden from all becomes zero, and NaN that all see shows."""
    hidden = hidden_pairs(visible, bias, q.shape[0], q.shape[2], k.shape[2], q.device)
    if hidden is not None:
        q = q.masked_fill(hidden.all(dim=-1, keepdim=True), 0)
        k, v = (without_unseen(x, hidden, q.shape[1]) for x in (k, v))
    heads = _call(q, k, v, dropout, visible=visible, bias=bias, scale=scale)
    if q.device.type != "cpu":  # whose backends show them by themselves
        return heads
    heads = heads + (q * 0).sum(dim=-1, keepdim=True)
    if hidden is None:
        heads = heads + (k * 0).sum(dim=(2, 3), keepdim=True).repeat_interleave(q.shape[1] // k.shape[1], dim=1)
    return heads


def _call(q: Tensor, k: Tensor, v: Tensor, dropout: float, *, visible, bias, scale: float) -> Tensor:
    square = isinstance(visible, Causal) and q.shape[2] == k.shape[2]
    if bias is None and (visible is None or square) and scale > 0 and k.shape == v.shape:  # nothing to prepare
        causal = visible is not None  # and not `square`, a symbol in a compiled graph
        shared = bool(k.shape[1] != q.shape[1])
        return scaled_dot_product_attention(q, k, v, None, dropout, causal, scale=scale, enable_gqa=shared)
    dtype = q.dtype
    if bias is not None and not _is_taken(bias, q):
        q, k, v = (x.to(sums(q, bias)) for x in (q, k, v))
    if scale <= 0:  # the backends multiply what is hidden by it, and minus infinity must stay what it is
        q, scale = (-q, -scale) if scale else (q * 0, 1.0)
    call = _prepare(q, k, v, visible, bias)
    heads = scaled_dot_product_attention(
        *_one_width(call.q, call.k, call.v),
        attn_mask=call.mask,
        dropout_p=dropout,
        is_causal=call.causal,
        scale=scale,
        enable_gqa=bool(k.shape[1] != q.shape[1]),
    )[..., : v.shape[-1]].to(dtype)
    if bias is not None and not (call.q.shape[2] and call.k.shape[2]):
        heads = heads + bias.flatten()[:0].sum().to(dtype)  # zero; the backend leaves out the bias and its gradient
    return pad(heads, (0, 0, call.fully_masked, 0)) if call.fully_masked else heads


def _is_taken(bias: Tensor, q: Tensor) -> bool:
    """Whether the backend adds the bias as precise as it is."""
    if torch.promote_types(bias.dtype, q.dtype) == q.dtype:
        return True
    return q.device.type == "cpu" and bias.dtype == torch.float32 and not is_differentiated(bias)


def _prepare(q: Tensor, k: Tensor, v: Tensor, visible, bias: Tensor | None) -> _Call:
    b, n, m = q.shape[0], q.shape[2], k.shape[2]
    causal, fully_masked, keys = False, 0, slice(None)
    if isinstance(visible, Mask):
        keys = slice(*visible_key_range(visible, 0, n, n, m))
        if isinstance(visible, Causal) and bias is None:
            shift = offset(visible, n, m)
            fully_masked = min(max(-shift, 0), n)
            if shift <= 0 and n > 1:  # an `if` makes a bool of what is a symbol in a compiled graph
                causal = True
        if causal or _all_visible(visible, b, n, m, keys):
            visible = None
        else:
            visible = to_tensor(visible, b, n, m, q.device, keys=keys)
    mask = visible
    if bias is not None:
        bias = bias[..., keys] if bias.shape[-1] > 1 else bias
        bias = bias.to(torch.promote_types(bias.dtype, q.dtype))
        mask = bias if visible is None else bias.masked_fill(~visible, -torch.inf)
    if mask is not None:
        mask = mask[(None,) * (4 - mask.ndim)]
    return _Call(q[:, :, fully_masked:], k[:, :, keys], v[:, :, keys], mask, causal, fully_masked)


def _all_visible(mask: Mask, b: int, n: int, m: int, keys: slice) -> bool:
    """Whether every query sees all keys of the range: one query under a triangle, or sequences of one length."""
    if isinstance(mask, Causal):
        return n == 1
    if isinstance(mask, Padding) and not torch.compiler.is_compiling():
        mask.check(int(m), (int(b),))
        return bool((mask.lengths == keys.stop - keys.start).all())
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
