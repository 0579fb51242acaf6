"""A kernel made safe for any input: others compute what it cannot."""

from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from .._checks import check_kernel
from .common import Kernel, is_differentiated, is_eager, is_tame
from .naive import naive
from .online import online
from .selection import replace


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
