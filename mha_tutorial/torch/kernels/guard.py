"""What every kernel needs around its computation: checks, a look at the data where that is free, and `guarded`.

Kernels hide a key by giving it weight zero, and zero times NaN is NaN; nor does every backend show a NaN that is
there to be seen. In eager mode on a CPU a kernel looks at its data and computes such input by selection. Under
``torch.compile``, ``torch.export``, ``torch.jit.trace`` and the transforms of ``torch.func`` there is no data to
look at, and on a GPU a look makes the program wait for it.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd import forward_ad

from .._checks import check_kernel, check_scale

Kernel = Callable[..., Tensor]  # (q, k, v, *, visible, bias, scale, dropout) -> heads


def run_kernel(
    name: str,
    compute: Callable,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    visible,
    bias: Tensor | None,
    scale: float | None,
    **options,
):
    """Check the arguments of a kernel and compute with the scale that is meant.

    The scale is ``1/sqrt(d_k)`` if it is left out.
    """
    check_kernel(name, q, k, v, visible, bias)
    scale = float(q.shape[-1]) ** -0.5 if scale is None else check_scale(name, scale)
    return compute(q, k, v, visible=visible, bias=bias, scale=scale, **options)


def guarded(kernel: Kernel) -> Kernel:
    """Make a kernel that is right for any input, at a price.

    In eager mode, on a GPU too, it looks at the data and waits for the answer. Where all numbers are finite and so
    small that no score can overflow, and no gradients will be asked for, the kernel computes. Everything else goes
    to `online`, which selects what is visible and has right gradients for scores of any size. With dropout, and in
    compiled, exported and traced code, where nobody can look and lengths may change, `naive` computes.

    A kernel that is not one of this package gets inputs in which what is not finite is zero, and the queries that
    see it get NaN afterwards; so do gradients, of which such a kernel may make more of them NaN than it must.

    Examples
    --------
    >>> from mha_tutorial.torch import fused
    >>> q, k, v = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 2, 2), torch.tensor([[[[1.0], [torch.nan]]]])
    >>> guarded(fused)(q, k, v, visible=torch.tensor([[True, False]])).item()
    1.0
    """
    return partial(_guarded, kernel)


def _guarded(
    kernel: Kernel,
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b h_kv m d_k"],
    v: Float[Tensor, "b h_kv m d_v"],
    **options,
) -> Float[Tensor, "b h n d_v"]:
    check_kernel("guarded", q, k, v, options.get("visible"), options.get("bias"))
    bias = options.get("bias")
    if is_eager(q, any_device=True) and not is_differentiated(q, k, v, bias) and is_tame(q, k, v):
        return kernel(q, k, v, **options)
    known, bound = unwrap(kernel)
    if known is None:
        return _selected(kernel, q, k, v, **options)
    from .naive import naive  # they are kernels, which stand on this module
    from .online import online

    options = {name: bound[name] for name in ("scale",) if name in bound} | options
    lasting = options.get("dropout") or torch.compiler.is_compiling() or torch.jit.is_tracing()
    return (naive if lasting else online)(q, k, v, **options)


def unwrap(kernel: Kernel) -> tuple[Kernel | None, dict]:
    """Find the kernel of this package inside `partial` and `guarded`, and the arguments that were bound to it.

    Returns
    -------
    kernel, bound
        None for a kernel that is not of this package, of which nothing can be said.

    Examples
    --------
    >>> from mha_tutorial.torch import naive
    >>> found, bound = unwrap(guarded(partial(naive, scale=0.5)))
    >>> found is naive, bound
    (True, {'scale': 0.5})
    """
    bound: dict = {}
    while isinstance(kernel, partial):
        bound = kernel.keywords | bound
        kernel = kernel.args[0] if kernel.func is _guarded else kernel.func
    ours = getattr(kernel, "__module__", "").startswith(__package__)
    return (kernel if ours else None), bound


def _selected(kernel: Kernel, q: Tensor, k: Tensor, v: Tensor, *, visible=None, bias=None, **options) -> Tensor:
    """Compute without what is not finite, and give NaN to the queries that see it."""
    from .selection import replace  # it stands on this module

    clean = (replace(x, ~x.isfinite(), 0.0) for x in (q, k, v))
    output = kernel(*clean, visible=visible, bias=bias, **options)
    with torch.no_grad():
        # who sees what is found by the kernel itself: an average of zeros and ones is above zero if a one is seen
        spoiled = ~v.isfinite() | ~k.isfinite().all(dim=-1, keepdim=True)
        marks = torch.cat([spoiled, torch.ones_like(spoiled[..., :1])], dim=-1).to(v.dtype)
        hiding = None if bias is None else bias.where(bias.isneginf(), 0)
        alike = torch.zeros_like(q), torch.zeros_like(k)
        seen = kernel(*alike, marks, visible=visible, bias=hiding) > 0
        sees_spoiled, sees_anything = seen[..., :-1], seen[..., -1:]
        spoiled = sees_spoiled | (sees_anything & ~q.isfinite().all(dim=-1, keepdim=True))
    return output * torch.ones_like(output).masked_fill(spoiled, torch.nan)  # so that gradients are NaN too


def is_eager(x: Tensor, any_device: bool = False) -> bool:
    """Whether numbers can be looked at: nothing is compiled, traced or transformed, and no GPU has to be asked.

    Examples
    --------
    >>> is_eager(torch.ones(1)), is_eager(torch.ones(1, device="meta"))
    (True, False)
    """
    if torch.compiler.is_compiling() or type(x) not in (Tensor, nn.Parameter) or x.is_meta:
        return False
    if torch.jit.is_tracing() or is_transformed() or _batched(x):
        return False
    return any_device or x.device.type == "cpu"


def _batched(x: Tensor) -> bool:
    """Whether a tensor stands for several at once, as a gradient does under ``is_grads_batched``."""
    return torch._C._functorch.is_legacy_batchedtensor(x)


def is_tame(*tensors: Tensor) -> bool:
    """Whether all numbers are finite, and so small that their squares are: then no product of two overflows.

    Examples
    --------
    >>> [is_tame(torch.tensor([number])) for number in (1.0, torch.nan, 3e38)]
    [True, False, False]
    """
    for x in tensors:
        wide = None if x.dtype.itemsize > 2 else torch.float32
        if not torch.linalg.vector_norm(x, dtype=wide).item() < (_LIMIT if x.dtype.itemsize < 8 else _LIMIT_64):
            return False
    return True


_LIMIT, _LIMIT_64 = (math.sqrt(torch.finfo(dtype).max) for dtype in (torch.float32, torch.float64))


def is_differentiated(*tensors: Tensor | None) -> bool:
    """Whether a gradient may be asked for, by autograd or by a transform."""
    return is_transformed() or (torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in tensors))


def is_transformed() -> bool:
    """Whether a transform of ``torch.func`` or forward-mode differentiation is at work."""
    if torch.compiler.is_compiling():
        return False
    return torch._C._functorch.maybe_current_level() is not None or forward_ad._current_level >= 0


def sums(*tensors: Tensor | None) -> torch.dtype:
    """The type in which scores and sums of these are kept: the widest of them, 32 bits or more."""
    wide = torch.float32
    for x in tensors:
        wide = wide if x is None else torch.promote_types(wide, x.dtype)
    return wide


def no_autocast(x: Tensor):
    """Keep autocast from making 16 bits of the 32 in which scores and sums are kept."""
    kind = x.device.type
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return nullcontext()
