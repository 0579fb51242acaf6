"""Move one layer between a library's layout and the package's, by patterns read forwards or backwards."""

from collections.abc import Collection, Mapping
from typing import Any, SupportsIndex

import numpy as np
from einops import rearrange
from numpy import ndarray as Array

from .._sizes import count
from ..weights import ColumnWeights, RowWeights
from .checkpoint import EXACT, read_arrays, read_shapes
from .patterns import Sizes, inverse, letters, one, solve
from .refusals import (
    check_groups,
    check_heads,
    check_keys,
    check_surplus,
    check_told,
    check_turned,
    check_types,
    has_groups,
    incomplete,
    to_store,
)
from .table import LAYOUTS, Layout


def load(
    checkpoint: Any,
    layout: Layout | str,
    h: SupportsIndex | None = None,
    h_kv: SupportsIndex | None = None,
    prefix: str = "",
    *,
    ignore: Collection[str] = (),
) -> ColumnWeights:
    """Read one layer out of a checkpoint.

    Finds each number at its place: the rows of a fused matrix in blocks, :eq:`eq-layout-blocks`, or
    head by head, :eq:`eq-layout-by-head`, and the rows that a rotary embedding turns in the order of
    :eq:`eq-rotary-order`. The arrays are copies of the checkpoint's numbers, in its floating type;
    ``.T`` gives the same layer in the row convention. What is no tensor is not seen: a module with
    ``add_zero_attn=True`` loads, and computes something else than its weights say.

    Parameters
    ----------
    checkpoint
        A mapping of names to arrays or PyTorch tensors, possibly nested; an object with a
        ``state_dict()``; or the path of a ``.safetensors`` file.
    layout
        How the layer is stored: a name in ``LAYOUTS``, or a `Layout` of your own.
    h
        The number of heads. May be left out where the stored arrays have an axis for them; where
        heads are stored side by side, no shape tells their number, and a wrong one that divides
        goes unnoticed.
    h_kv
        The number of key-value heads, which shapes tell once `h` is known.
    prefix
        What stands before the layer's keys, with the dot or slash at its end, as in ``"h.0.attn."``.
    ignore
        Names below the prefix that are no part of the layer, such as those of a normalisation: exact
        names, or patterns with ``*`` and ``?``. The layer's own keys are never left out.

    Raises
    ------
    ValueError
        If a key is missing, or one stands beside the layer's that the layout does not know and `ignore`
        does not name; if a shape does not fit the layout and the others; or if only some of the biases
        are there.
    TypeError
        If a tensor is not floating, or is not of the type of the others, or is no plain array. bfloat16
        is refused: this package computes in NumPy's own types. Also if a number of heads is not whole.

    Examples
    --------
    >>> stored = {"c_attn.weight": np.ones((4, 12)), "c_attn.bias": np.ones(12)}
    >>> stored |= {"c_proj.weight": np.ones((4, 4)), "c_proj.bias": np.ones(4)}
    >>> load(stored, "gpt2", h=2).W_q.shape
    (2, 2, 4)
    >>> sorted(dump(load(stored, "gpt2", h=2), "torch"))
    ['in_proj_bias', 'in_proj_weight', 'out_proj.bias', 'out_proj.weight']
    """
    arrays = unpack(checkpoint, known(layout), h, h_kv, prefix, ignore)
    if arrays["W_q"].dtype.kind != "f":
        raise TypeError(
            f"layout '{known(layout).name}': the tensors are {arrays['W_q'].dtype}; {EXACT} (tensor.float())"
        )
    return ColumnWeights(**arrays)


def dump(
    weights: ColumnWeights | RowWeights,
    layout: Layout | str,
    prefix: str = "",
    *,
    zero_biases: bool = False,
    repeat_kv: bool = False,
) -> dict[str, Array]:
    """Lay out a layer as a library stores it: the inverse of `load`.

    The arrays are copies, densely packed, under the library's own keys in the order of the table.

    Parameters
    ----------
    prefix
        What is put before the layer's keys.
    zero_biases
        Whether biases that the library always stores, and the layer does not have, are stored as zeros.
        The layer's output is the same.
    repeat_kv
        Whether each head gets a copy of the keys and values that it shares with others, where the library
        gives every head its own. The output is the same, and the layer larger.

    Raises
    ------
    TypeError
        If `weights` are neither.
    ValueError
        If the library cannot store such a layer: it has no place for a bias or always has one, or
        it ties sizes to each other that differ here.

    Examples
    --------
    >>> weights = ColumnWeights.random(np.random.default_rng(0), d_model=12, h=4)
    >>> stored = dump(weights, "torch", prefix="attn.")
    >>> stored["attn.in_proj_weight"].shape, stored["attn.in_proj_bias"].shape
    ((36, 12), (36,))
    """
    if not isinstance(weights, ColumnWeights | RowWeights):
        raise TypeError(f"weights must be ColumnWeights or RowWeights, got {type(weights).__name__}")
    columns = weights.T if isinstance(weights, RowWeights) else weights
    return pack(columns.arrays(), known(layout), prefix, zero_biases, repeat_kv)


def convert(
    checkpoint: Any,
    source: Layout | str,
    target: Layout | str,
    h: SupportsIndex | None = None,
    h_kv: SupportsIndex | None = None,
    prefix: str = "",
    to_prefix: str = "",
    *,
    ignore: Collection[str] = (),
    zero_biases: bool = False,
    repeat_kv: bool = False,
) -> dict[str, Array]:
    """Read a layer in one layout and lay it out in another, as `load` and `dump` do.

    Nothing is computed, numbers only change their places, so that bfloat16 is welcome here: in files, and in
    PyTorch's modules and tensors, whose bytes come as arrays of ``ml_dtypes.bfloat16``.

    Raises
    ------
    TypeError, ValueError
        As `load` and `dump` do.

    Examples
    --------
    >>> weights = ColumnWeights.random(np.random.default_rng(0), d_model=16, h=4, h_kv=2, bias=False)
    >>> stored = dump(weights, "llama")
    >>> moved = convert(stored, "llama", "gpt2", h=4, zero_biases=True, repeat_kv=True)
    >>> moved["c_attn.weight"].shape, moved["c_attn.bias"].any()
    ((16, 48), np.False_)
    """
    arrays = unpack(checkpoint, known(source), h, h_kv, prefix, ignore)
    return pack(arrays, known(target), to_prefix, zero_biases, repeat_kv)


def known(layout: Layout | str) -> Layout:
    """A layout by its name, or as it is."""
    if isinstance(layout, Layout):
        return layout
    if layout not in LAYOUTS:
        raise ValueError(f"there is no layout '{layout}'; there are {', '.join(LAYOUTS)}")
    return LAYOUTS[layout]


def unpack(
    checkpoint: Any,
    layout: Layout,
    h: SupportsIndex | None = None,
    h_kv: SupportsIndex | None = None,
    prefix: str = "",
    ignore: Collection[str] = (),
) -> dict[str, Array]:
    """Stored tensors to arrays of `ColumnWeights`."""
    where = f"layout '{layout.name}':"
    given = {name: count(f"{where} {name}", n) for name, n in (("h", h), ("h_kv", h_kv)) if n is not None}
    found = {name.removeprefix(prefix): shape for name, shape in read_shapes(checkpoint, prefix).items()}
    there = [tensor for tensor in layout.tensors if tensor.key in found]
    shapes = {prefix + tensor.key: (tensor.stored, found[tensor.key]) for tensor in there}
    try:
        sizes = solve(where, shapes, given, layout.bound)
    except ValueError as error:
        check_turned(where, shapes, layout, checkpoint, prefix)
        raise error from None
    check_keys(where, layout, found, there, sizes, checkpoint, prefix)
    check_surplus(where, layout, found, prefix, ignore)
    check_told(where, [tensor.stored for tensor in there], sizes)
    check_heads(where, layout, sizes)
    stored = read_arrays(checkpoint, prefix, [tensor.key for tensor in there])
    check_types(where, stored)
    arrays: dict[str, Array] = {}
    for tensor in there:
        unpacked = _rearranged(stored[prefix + tensor.key], tensor.pattern, sizes)
        several = unpacked if len(tensor.arrays) > 1 else [unpacked]
        arrays |= dict(zip(tensor.arrays, several, strict=True))
    return arrays


def pack(
    arrays: Mapping[str, Array],
    layout: Layout,
    prefix: str = "",
    zero_biases: bool = False,
    repeat_kv: bool = False,
) -> dict[str, Array]:
    """Arrays of `ColumnWeights` to stored tensors."""
    where = f"layout '{layout.name}':"
    if repeat_kv and not has_groups(layout):
        group = len(arrays["W_q"]) // len(arrays["W_k"])
        shared = ("W_k", "W_v", "b_k", "b_v")
        arrays = {name: a.repeat(group, axis=0) if name in shared else a for name, a in arrays.items()}
    if zero_biases:
        arrays = {**arrays, **zeros(arrays, layout)}
    check_groups(where, layout, arrays)
    stored = to_store(where, layout, arrays)
    shapes = {name: (tensor.held, arrays[name].shape) for tensor in stored for name in tensor.arrays}
    sizes = solve(where, shapes, bound=layout.bound)
    check_told(where, [tensor.held for tensor in stored], sizes)
    packed = {}
    for tensor in stored:
        several = [arrays[name] for name in tensor.arrays]
        held = np.stack(several) if len(several) > 1 else several[0]
        packed[prefix + tensor.key] = _rearranged(held, inverse(tensor.pattern), sizes)
    return packed


def _rearranged(array: Array, pattern: str, sizes: Sizes) -> Array:
    before = pattern.split(" -> ")[0]
    lengths = {letter: sizes[one(letter)].length for letter in letters(before)}
    return np.array(rearrange(array, pattern, **lengths), order="C")  # a copy, whatever einops returned


def zeros(arrays: Mapping[str, Array], layout: Layout) -> dict[str, Array]:
    """The biases that a layout stores and a layer does not have, as zeros."""
    shapes = {name: arrays["W" + name[1:]].shape[:2] for name in ("b_q", "b_k", "b_v")}
    shapes["b_o"] = arrays["W_o"].shape[1:2]
    missing = [name for _, lacking in incomplete(layout, arrays) for name in lacking]
    return {name: np.zeros(shapes[name], arrays["W_q"].dtype) for name in missing}
