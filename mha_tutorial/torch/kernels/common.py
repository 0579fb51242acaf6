"""What every kernel stands on: checks, a look at the data where that is free, the type of sums.

Kernels hide a key by giving it weight zero, and zero times NaN is NaN; nor does every backend show a NaN that is
there to be seen. In eager mode on a CPU a kernel looks at its data and computes such input by selection. Under
``torch.compile``, ``torch.export``, ``torch.jit.trace`` and the transforms of ``torch.func`` there is no data to
look at, and on a GPU a look makes the program wait for it.
"""

import math
from collections.abc import Callable
from contextlib import nullcontext

import torch
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


def is_eager(x: Tensor, any_device: bool = False) -> bool:
    """Whether numbers can be looked at: nothing is compiled, traced or transformed, and no GPU has to be asked.

    Examples
    --------
    >>> is_eager(torch.ones(1)), is_eager(torch.ones(1, device="meta"))
    (True, False)
    """
    if torch.compiler.is_compiling() or type(x) not in (Tensor, nn.Parameter):
        return False
    if not x.is_cpu and (x.is_meta or not any_device):
        return False
    return not (torch.jit.is_tracing() or is_transformed() or _batched(x))


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
    return math.inf not in map(norm, tensors)


def norm(x: Tensor) -> float:
    """The root of the sum of all squares; infinity if a number is not finite, or its square overflows."""
    size = x.dtype.itemsize
    length = torch.linalg.vector_norm(x, dtype=torch.float32 if size < 4 else None).item()
    return length if length < (_LIMIT_64 if size == 8 else _LIMIT) else math.inf


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
