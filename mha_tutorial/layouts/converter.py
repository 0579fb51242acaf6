"""Move one layer between a library's layout and the package's, by patterns read forwards or backwards."""

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from einops import rearrange
from numpy import ndarray as Array

from .._sizes import count
from ..weights import ColumnWeights, RowWeights
from .checkpoint import EXACT, read_arrays, read_shapes
from .patterns import Sizes, axes, expected, inverse, letters, one, solve
from .recognise import identify
from .table import LAYOUTS, Layout, Stored

LETTERS = {"heads": "h", "kv_heads": "h_kv"}  # what the numbers of heads are called in the patterns


def load(
    checkpoint: Any,
    layout: Layout | str,
    heads: int | None = None,
    kv_heads: int | None = None,
    prefix: str = "",
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
    heads
        The number of heads. May be left out where the stored arrays have an axis for them; where
        heads are stored side by side, no shape tells their number, and a wrong one that divides
        goes unnoticed.
    kv_heads
        The number of key-value heads, which shapes tell once `heads` is known.
    prefix
        What stands before the layer's keys, with the dot or slash at its end, as in ``"h.0.attn."``.

    Raises
    ------
    ValueError
        If a key is missing, or one stands beside the layer's that the layout does not know; if a shape
        does not fit the layout and the others; or if only some of the biases are there.
    TypeError
        If a tensor is not floating, or is not of the type of the others, or is no plain array. bfloat16
        is refused: this package computes in NumPy's own types. Also if a number of heads is not whole.

    Examples
    --------
    >>> stored = {"c_attn.weight": np.ones((4, 12)), "c_attn.bias": np.ones(12)}
    >>> stored |= {"c_proj.weight": np.ones((4, 4)), "c_proj.bias": np.ones(4)}
    >>> load(stored, "gpt2", heads=2).W_q.shape
    (2, 2, 4)
    >>> sorted(dump(load(stored, "gpt2", heads=2), "torch"))
    ['in_proj_bias', 'in_proj_weight', 'out_proj.bias', 'out_proj.weight']
    """
    arrays = _unpack(checkpoint, _layout(layout), heads, kv_heads, prefix)
    if arrays["W_q"].dtype.kind != "f":
        raise TypeError(f"layout '{_layout(layout).name}': the tensors are {arrays['W_q'].dtype}; {EXACT}")
    return ColumnWeights(**arrays)


def dump(weights: ColumnWeights | RowWeights, layout: Layout | str, prefix: str = "") -> dict[str, Array]:
    """Lay out a layer as a library stores it: the inverse of `load`.

    The arrays are copies, densely packed, under the library's own keys in the order of the table.

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
    return _pack(columns.arrays(), _layout(layout), prefix)


def convert(
    checkpoint: Any,
    source: Layout | str,
    target: Layout | str,
    heads: int | None = None,
    kv_heads: int | None = None,
    prefix: str = "",
    to_prefix: str = "",
) -> dict[str, Array]:
    """Read a layer in one layout and lay it out in another, as `load` and `dump` do.

    Nothing is computed, numbers only change their places, so that files in bfloat16 are welcome here.

    Raises
    ------
    TypeError, ValueError
        As `load` and `dump` do.
    """
    return _pack(_unpack(checkpoint, _layout(source), heads, kv_heads, prefix), _layout(target), to_prefix)


def _layout(layout: Layout | str) -> Layout:
    if isinstance(layout, Layout):
        return layout
    if layout not in LAYOUTS:
        raise ValueError(f"there is no layout '{layout}'; there are {', '.join(LAYOUTS)}")
    return LAYOUTS[layout]


def _unpack(
    checkpoint: Any, layout: Layout, heads: int | None, kv_heads: int | None, prefix: str
) -> dict[str, Array]:
    """Stored tensors to arrays of `ColumnWeights`."""
    where = f"layout '{layout.name}':"
    given = _given(where, heads=heads, kv_heads=kv_heads)
    found = {name.removeprefix(prefix): shape for name, shape in read_shapes(checkpoint, prefix).items()}
    there = [tensor for tensor in layout.tensors if tensor.key in found]
    shapes = {prefix + tensor.key: (tensor.stored, found[tensor.key]) for tensor in there}
    sizes = solve(where, shapes, given, layout.bound)
    _check_keys(where, layout, found, there, sizes, checkpoint, prefix)
    _check_told(where, [tensor.stored for tensor in there], sizes)
    _check_heads(where, layout, sizes)
    stored = read_arrays(checkpoint, prefix, [tensor.key for tensor in there])
    _check_types(where, stored)
    arrays: dict[str, Array] = {}
    for tensor in there:
        unpacked = _rearranged(stored[prefix + tensor.key], tensor.pattern, sizes)
        several = unpacked if len(tensor.arrays) > 1 else [unpacked]
        arrays |= dict(zip(tensor.arrays, several, strict=True))
    return arrays


def _pack(arrays: Mapping[str, Array], layout: Layout, prefix: str) -> dict[str, Array]:
    """Arrays of `ColumnWeights` to stored tensors."""
    where = f"layout '{layout.name}':"
    _check_groups(where, layout, arrays)
    stored = _stored(where, layout, arrays)
    shapes = {name: (tensor.held, arrays[name].shape) for tensor in stored for name in tensor.arrays}
    sizes = solve(where, shapes, bound=layout.bound)
    _check_told(where, [tensor.held for tensor in stored], sizes)
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


def _given(where: str, **numbers: int | None) -> dict[str, int]:
    return {LETTERS[name]: count(f"{where} {name}", n) for name, n in numbers.items() if n is not None}


def _check_keys(
    where: str,
    layout: Layout,
    found: Mapping[str, tuple[int, ...]],
    there: list[Stored],
    sizes: Sizes,
    checkpoint: Any,
    prefix: str,
) -> None:
    """Refuse a layer with too few keys, with half of its biases, or with keys that are not known."""
    for tensor in layout.tensors:
        beside = [other for other in there if other.together == tensor.together]
        if tensor in there or not (tensor.together is None or beside):
            continue
        missing = f"{where} {prefix + tensor.key} is missing; expected a tensor {expected(tensor.stored, sizes)}"
        if tensor.together:
            key = beside[0].key
            raise ValueError(
                f"{missing}, since {prefix + key} {found[key]} is there; they are stored together or not at all"
            )
        raise ValueError(f"{missing}, {_instead(layout, checkpoint)}")
    known = {tensor.key for tensor in layout.tensors} | set(layout.ignored)
    for key, shape in found.items():
        if key not in known:
            raise ValueError(
                f"{where} does not know {prefix + key}, of shape {shape}; if it is no part of the layer, "
                f"leave it out or pass a prefix, and if it is, the layout is another: this one has "
                f"{', '.join(tensor.key for tensor in layout.tensors)}"
            )


def _instead(layout: Layout, checkpoint: Any) -> str:
    """What the checkpoint holds in place of a key that was looked for."""
    matches = identify(checkpoint)
    same = [match.prefix for match in matches if match.layout == layout.name]
    if same:
        return f"which stands there with prefix {_few(map(repr, same))}"
    others = dict.fromkeys(match.layout for match in matches)
    if others:
        return f"but the names are those of layout {_few(map(repr, others))}"
    return f"got {_few(f'{name} {shape}' for name, shape in read_shapes(checkpoint).items())}"


def _few(texts: Iterable[str]) -> str:
    first, *rest = list(texts) or ["nothing"]
    return ", ".join([first, *rest[:3]]) + (f" and {len(rest) - 3} more" if len(rest) > 3 else "")


def _check_types(where: str, tensors: Mapping[str, Array]) -> None:
    """Refuse what is not floating, and two floating types in one layer."""
    (first, reference), *_ = tensors.items()
    for name, array in tensors.items():
        if not np.issubdtype(array.dtype, np.floating) and array.dtype.name != "bfloat16":
            raise TypeError(f"{where} {name} must hold floating-point numbers, got {array.dtype}")
        if array.dtype != reference.dtype:
            raise TypeError(
                f"{where} {name} is {array.dtype} but {first} is {reference.dtype}; convert one of them, "
                "since no type is changed silently"
            )


def _check_told(where: str, sides: list[str], sizes: Sizes) -> None:
    """Refuse to guess lengths that shapes tell only as a product, the numbers of heads above all."""
    untold = [[letter for letter in axis if one(letter) not in sizes] for side in sides for axis in axes(side)]
    lengths = {"·".join(several): sizes[frozenset(several)].length for several in untold if several}
    for name, letter in LETTERS.items():
        for product, length in lengths.items():
            if letter in product.split("·"):
                raise ValueError(
                    f"{where} heads are stored side by side, and shapes do not tell how many there are; "
                    f"pass {name}, a divisor of {product}={length}"
                )
    if lengths:
        raise ValueError(f"{where} shapes tell {', '.join(lengths)} and none of the factors")


def _check_heads(where: str, layout: Layout, sizes: Sizes) -> None:
    """Refuse key-value heads that cannot be shared evenly, or are fewer than the heads where none are shared."""
    h, h_kv = sizes[one("h")], sizes.get(one("h_kv"), sizes[one("h")])
    if not _has_groups(layout) and h.length != h_kv.length:
        raise ValueError(
            f"{where} keys and values have as many heads as queries here, "
            f"got heads={h.length} and kv_heads={h_kv.length}"
        )
    if h.length % h_kv.length:
        raise ValueError(
            f"{where} key-value heads must divide the heads, got h_kv={h_kv.length} ({h_kv.source}) "
            f"and h={h.length} ({h.source})"
        )


def _check_groups(where: str, layout: Layout, arrays: Mapping[str, Array]) -> None:
    """Refuse heads that share keys and values where the library gives every head its own."""
    h, h_kv = len(arrays["W_q"]), len(arrays["W_k"])
    if h != h_kv and not _has_groups(layout):
        raise ValueError(
            f"{where} every head has keys and values of its own there, but {h} heads share {h_kv}; to give each "
            f"its copy, repeat W_k, W_v, b_k and b_v: np.repeat(W_k, {h // h_kv}, axis=0)"
        )


def _has_groups(layout: Layout) -> bool:
    return any("h_kv" in letters(tensor.stored) for tensor in layout.tensors)


def _stored(where: str, layout: Layout, arrays: Mapping[str, Array]) -> list[Stored]:
    """The tensors that a layer with these arrays has in this layout."""
    stored = [tensor for tensor in layout.tensors if set(tensor.arrays) & set(arrays)]
    groups = {tensor.together for tensor in stored}
    for tensor in layout.tensors:
        lacking = [name for name in tensor.arrays if name not in arrays]
        if lacking and tensor.together in groups | {None}:
            always = "is always" if tensor.together is None else "is, beside the other biases,"
            raise ValueError(
                f"{where} {tensor.key} {always} stored there and holds {' '.join(tensor.arrays)}, but the layer "
                f"has no {' '.join(lacking)}; zeros in its place change nothing: dataclasses.replace(weights, "
                f"{lacking[0]}=np.zeros(...))"
            )
    placed = {name for tensor in stored for name in tensor.arrays}
    homeless = [name for name in arrays if name not in placed]
    if homeless:
        raise ValueError(f"{where} has no place for {', '.join(homeless)}, which the layer has")
    return stored
