"""Nothing at a hidden position may reach a result: the check that every kernel makes, and the redo by selection.

Kernels hide a key by giving it weight zero, and zero times NaN is NaN. So NaN or infinity at a hidden position
shows up in a product in spite of the mask.
"""

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from .._checks import check_kernel

Kernel = Callable[..., Tensor]  # (q, k, v, *, visible, bias, scale, dropout) -> heads


def attend(
    name: str, compute: Kernel, q: Tensor, k: Tensor, v: Tensor, visible, bias, scale: float | None, dropout: float
) -> Tensor:
    """Compute with checked inputs and the default scale, and again by selection where that did not go well.

    One number is looked at, the sum of the output, and those of the inputs where gradients will flow through
    them. Under ``torch.compile``, ``torch.export`` and the transforms of ``torch.func``, and without data on the
    meta device, no number can be looked at: there `guarded` selects from the start.
    """
    check_kernel(name, q, k, v, visible, bias)
    options = {"scale": q.shape[-1] ** -0.5 if scale is None else scale, "dropout": dropout}
    output = compute(q, k, v, visible=visible, bias=bias, **options)
    if (visible is None and bias is None) or not _can_look_at(output):
        return output
    watched = (q, k, v, output) if output.requires_grad else (output,)
    if all(_sum(x).isfinite() for x in watched):
        return output
    return guarded(compute)(q, k, v, visible=visible, bias=bias, **options)


def guarded(kernel: Kernel) -> Kernel:
    """Make a kernel that selects: what is not finite becomes zero, and NaN again for queries that see it.

    In eager mode every kernel of `KERNELS` does so by itself when its output is not finite. In a compiled or
    exported graph, and under the transforms of ``torch.func``, no number can be looked at, so choose
    ``kernel=guarded(fused)`` there if NaN or infinity may stand at hidden positions. It costs one more pass of
    the kernel. Gradients are right where a key that is not finite is hidden from every query.

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
    *,
    visible=None,
    bias=None,
    **options,
) -> Float[Tensor, "b h n d_v"]:
    output = kernel(*(x.where(x.isfinite(), 0) for x in (q, k, v)), visible=visible, bias=bias, **options)
    with torch.no_grad():
        # who sees what is found by the kernel itself: an average of zeros and ones is above zero if a one is seen
        spoiled = ~v.isfinite() | ~k.isfinite().all(dim=-1, keepdim=True)
        marks = torch.cat([spoiled, torch.ones_like(spoiled[..., :1])], dim=-1).to(v.dtype)
        hiding = None if bias is None else bias.where(bias.isneginf(), 0)
        alike = torch.zeros_like(q), torch.zeros_like(k)
        seen = kernel(*alike, marks, visible=visible, bias=hiding, scale=1.0) > 0
        sees_spoiled, sees_anything = seen[..., :-1], seen[..., -1:]
        spoiled = sees_spoiled | (sees_anything & ~q.isfinite().all(dim=-1, keepdim=True))
    return output.masked_fill(spoiled, torch.nan)


def _sum(x: Tensor) -> Tensor:
    return x.detach().sum(dtype=torch.promote_types(x.dtype, torch.float32))


def _can_look_at(x: Tensor) -> bool:
    transformed = torch._C._functorch.maybe_current_level() is not None
    return not (torch.compiler.is_compiling() or x.is_meta or transformed)
