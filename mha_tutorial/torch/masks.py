"""What a query may see, as tensors: structured masks made on the device, and PyTorch's own masks translated."""

from collections.abc import Callable
from functools import reduce

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from ..masks import And, Causal, Documents, Mask, Not, Or, Padding, Prefix, Window, offset

MaskMod = Callable[[Tensor, Tensor, Tensor], Tensor]  # entries of the batch, queries, keys -> visible


def mask_mod(mask: Mask, b: int, n: int, m: int, device: torch.device) -> MaskMod:
    """Turn a structured mask into a function of positions, which broadcasts: the form `flex` takes.

    Raises
    ------
    ValueError
        If lengths do not fit the batch or the keys, or an alignment is missing.

    Examples
    --------
    >>> sees = mask_mod(Causal("bottom-right"), b=1, n=2, m=3, device=torch.device("cpu"))
    >>> sees(torch.tensor(0), torch.arange(2)[:, None], torch.arange(3)).int()
    tensor([[1, 1, 0],
            [1, 1, 1]], dtype=torch.int32)
    """

    def inner(rule: Mask) -> MaskMod:
        return mask_mod(rule, b, n, m, device)

    match mask:
        case And(left, right):
            first, second = inner(left), inner(right)
            return lambda entry, i, j: first(entry, i, j) & second(entry, i, j)
        case Or(left, right):
            first, second = inner(left), inner(right)
            return lambda entry, i, j: first(entry, i, j) | second(entry, i, j)
        case Not(rule):
            first = inner(rule)
            return lambda entry, i, j: ~first(entry, i, j)
        case Causal():
            shift = offset(mask, n, m)
            return lambda entry, i, j: j <= i + shift
        case Window(size):
            shift = offset(mask, n, m)
            return lambda entry, i, j: (i + shift - j).abs() < size
        case Padding(_, "left"):
            lengths = _lengths(mask, b, m, device)
            return lambda entry, i, j: j >= m - lengths[entry]
        case Padding() | Prefix():
            lengths = _lengths(mask, b, m, device)
            return lambda entry, i, j: j < lengths[entry]
        case Documents():
            ends = _lengths(mask, b, m, device).cumsum(dim=-1)  # (b, documents)
            shift = offset(mask, n, m)

            def document(entry: Tensor, place: Tensor) -> Tensor:
                return (ends[entry] <= place.unsqueeze(-1)).sum(dim=-1)

            def together(entry: Tensor, i: Tensor, j: Tensor) -> Tensor:
                place = i + shift
                own = document(entry, place)
                return (own == document(entry, j)) & (own < ends.shape[-1]) & (place >= 0)

            return together
    raise TypeError(f"no rule is known for the mask {type(mask).__name__}; pass a boolean tensor, mask.rows(n, m)")


def to_tensor(
    mask: Mask,
    b: int,
    n: int,
    m: int,
    device: torch.device,
    queries: slice = slice(None),
    keys: slice = slice(None),
) -> Bool[Tensor, "#b 1 #n #m"]:
    """Make the boolean tensor of some queries and keys, with an axis of length one for the heads.

    Raises
    ------
    ValueError
        If lengths do not fit the batch or the keys, or an alignment is missing.

    Examples
    --------
    >>> to_tensor(Padding([3, 1]), b=2, n=5, m=3, device=torch.device("cpu"))[:, 0, 0].int()
    tensor([[1, 1, 1],
            [1, 0, 0]], dtype=torch.int32)
    """
    entry = torch.arange(b, device=device)[:, None, None, None]
    i = torch.arange(n, device=device)[queries, None]
    j = torch.arange(m, device=device)[keys]
    visible = mask_mod(mask, b, n, m, device)(entry, i, j)
    return visible.view((1,) * (4 - visible.ndim) + visible.shape)


def visible_key_range(mask: Mask, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
    """Find the first key that queries from `start` up to `stop` may see, and the key after the last.

    No query among them sees a key outside, in any entry of the batch; what is inside may be hidden still. In a
    compiled or exported graph that serves more than one length, it may be all keys.

    Examples
    --------
    >>> visible_key_range(Window(3) & Causal(), 10, 20, 100, 100)
    (8, 20)
    """
    match mask:
        case And(left, right):
            first, second = visible_key_range(left, start, stop, n, m), visible_key_range(right, start, stop, n, m)
            low = max(first[0], second[0])
            return low, max(low, min(first[1], second[1]))
        case Or(left, right):
            first, second = visible_key_range(left, start, stop, n, m), visible_key_range(right, start, stop, n, m)
            return min(first[0], second[0]), max(first[1], second[1])
        case Causal():
            return 0, _within(stop + offset(mask, n, m), m)
        case Window(size) if not torch.compiler.is_exporting():  # for any length, an end cannot be compared with it
            shift = offset(mask, n, m)
            return _within(start + shift - size + 1, m), _within(stop + shift + size - 1, m)
        case Padding(_, "left") if not torch.compiler.is_compiling():
            return _within(m - int(mask.lengths.max(initial=0)), m), m
        case Padding() | Prefix() if not torch.compiler.is_compiling():  # lengths are an input of a compiled graph
            return 0, _within(int(mask.lengths.max(initial=0)), m)
        case Documents() if not torch.compiler.is_compiling() and not torch.jit.is_tracing():
            return _key_range_of_documents(mask, start, stop, n, m)
    return 0, m


def _key_range_of_documents(mask: Documents, start: int, stop: int, n: int, m: int) -> tuple[int, int]:
    """The first key and the end of the documents that queries from `start` up to `stop` belong to."""
    ends = np.cumsum(mask.lengths, axis=-1).reshape(-1, mask.lengths.shape[-1])
    starts = ends - mask.lengths.reshape(ends.shape)
    first, last = start + offset(mask, n, m), stop + offset(mask, n, m)
    meets = (starts < last) & (ends > first) & (starts < ends)
    if not meets.any():
        return 0, 0
    return _within(int(starts[meets].min()), m), _within(int(ends[meets].max()), m)


def from_torch(
    h: int,
    attn_mask: Shaped[Tensor, "*b_h n m"] | None = None,
    key_padding_mask: Shaped[Tensor, "*b m"] | None = None,
) -> tuple[Bool[Tensor, "*#b_h #n m"] | None, Float[Tensor, "*#b_h n m"] | None]:
    """Translate the two masks of ``nn.MultiheadAttention`` into what may be seen and what is added.

    There a boolean ``True`` means *ignore* and a float is added to the scores; a mask of three axes has an
    entry for every head of every sequence, the heads of one sequence next to each other.

    Returns
    -------
    visible, bias
        To be passed to `MultiHeadAttention`; each may be None.

    Raises
    ------
    TypeError
        If a mask is neither boolean nor floating.
    ValueError
        If the first axis of a three-axis mask is not a multiple of the number of heads.

    Examples
    --------
    >>> ignored = torch.tensor([[False, True], [False, False]])
    >>> padding = torch.tensor([[0.0, -torch.inf]])
    >>> visible, bias = from_torch(1, ignored, padding)
    >>> visible
    tensor([[ True, False],
            [ True,  True]])
    >>> bias
    tensor([[[[0., -inf]]]])
    """
    masks = []
    if attn_mask is not None:
        if attn_mask.ndim == 3:
            if attn_mask.shape[0] % h:
                raise ValueError(
                    f"attn_mask must have an entry for each of {h} heads of each sequence, "
                    f"got shape {tuple(attn_mask.shape)}"
                )
            attn_mask = attn_mask.unflatten(0, (-1, h))
        masks.append(("attn_mask", attn_mask))
    if key_padding_mask is not None:
        masks.append(("key_padding_mask", key_padding_mask[..., None, None, :]))
    for name, mask in masks:
        if mask.dtype != torch.bool and not mask.is_floating_point():
            raise TypeError(f"{name} must be boolean (True = ignore) or floating (added), got {mask.dtype}")
    visible = [~mask for _, mask in masks if mask.dtype == torch.bool]
    added = [mask for _, mask in masks if mask.dtype != torch.bool]
    return (
        reduce(torch.logical_and, visible) if visible else None,
        reduce(torch.add, added) if added else None,
    )


def _within(position: int, m: int) -> int:
    return min(max(position, 0), m)


def _lengths(mask: Padding | Prefix | Documents, b: int, m: int, device: torch.device) -> Tensor:
    """The lengths for every entry of the batch, (b,), or those of its documents, (b, documents).

    They are checked: in a compiled graph, to which they are an input, by an assertion of the graph.
    """
    own_axes = 1 if isinstance(mask, Documents) else 0
    if torch.compiler.is_compiling():
        shape = mask.lengths.shape
        if len(shape) > own_axes and tuple(shape[: len(shape) - own_axes]) != (b,):
            raise ValueError(f"{type(mask).__name__}: lengths of shape {tuple(shape)} do not fit the batch ({b},)")
        lengths = torch.from_numpy(mask.lengths.copy())  # torch warns of an array that cannot be written
        longest = lengths.sum(dim=-1) if own_axes else lengths
        torch._assert_async((longest <= m).all(), f"{type(mask).__name__}: lengths must not exceed the keys")
    else:
        mask.check(int(m), (int(b),))  # they are tensors in torch.jit.trace
        lengths = torch.from_numpy(mask.lengths.copy())
    lengths = lengths.to(device, non_blocking=True)  # copied from where it lies: nobody waits for the device
    return lengths.expand(b, *lengths.shape[lengths.ndim - own_axes :])
