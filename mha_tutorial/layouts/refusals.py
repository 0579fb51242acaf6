"""What a layer that does not fit its layout is told, on its way in and on its way out."""

from collections.abc import Collection, Iterable, Mapping
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
from numpy import ndarray as Array

from .checkpoint import read_shapes
from .patterns import Sizes, axes, expected, letters, one, solve
from .recognise import identify
from .table import Layout, Stored

MOST = 8  # names that advice lists one by one


class NeededError(ValueError):
    """A refusal that one more argument answers. Its parts are kept, for a command that has another word for it."""

    def __init__(self, reason: str, argument: str, value: Any = None, rest: str = ""):
        super().__init__(f"{reason} pass {argument}{'' if value is None else f'={value}'}{rest}")
        self.reason, self.argument, self.value, self.rest = reason, argument, value, rest


def check_keys(
    where: str,
    layout: Layout,
    found: Mapping[str, tuple[int, ...]],
    there: list[Stored],
    sizes: Sizes,
    checkpoint: Any,
    prefix: str,
) -> None:
    """Refuse a layer with too few keys, or with half of its biases."""
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


def check_surplus(
    where: str, layout: Layout, found: Mapping[str, tuple[int, ...]], prefix: str, ignore: Collection[str]
) -> None:
    """Refuse keys that are neither the layer's nor known neighbours, unless they are to be ignored."""
    patterns = [ignore] if isinstance(ignore, str) else list(ignore)
    own = [tensor.key for tensor in layout.tensors]
    for key in own:
        if key in patterns or prefix + key in patterns:
            raise ValueError(f"{where} {prefix + key} is part of the layer and cannot be ignored")
    surplus = {
        key: shape
        for key, shape in found.items()
        if key not in (*own, *layout.ignored)
        and not any(fnmatchcase(name, pattern) for name in (key, prefix + key) for pattern in patterns)
    }
    if surplus:
        they_are, them = ("it is", "it") if len(surplus) == 1 else ("they are", "them")
        raise NeededError(
            f"{where} does not know {_few(f'{prefix + key}, of shape {shape}' for key, shape in surplus.items())}; "
            f"if {they_are} no part of the layer, leave {them} out or",
            "ignore",
            [*patterns, *(surplus if len(surplus) <= MOST else ["*"])],
            f", and if {they_are}, this layout cannot hold the layer: it has {', '.join(own)}",
        )


def check_turned(
    where: str,
    shapes: Mapping[str, tuple[str, tuple[int, ...]]],
    layout: Layout,
    checkpoint: Any,
    prefix: str,
) -> None:
    """Name the matrices that are stored transposed, if that alone is why shapes do not fit, whatever the heads."""

    def fits(turned: Collection[str]) -> Sizes | None:
        upright = {name: (s, shape[::-1] if name in turned else shape) for name, (s, shape) in shapes.items()}
        try:
            return solve(where, upright, bound=layout.bound)
        except ValueError:
            return None

    oblong = [name for name, (_, shape) in shapes.items() if len(shape) == 2 and shape[0] != shape[1]]
    ways = [[name] for name in oblong if fits([name])] or [oblong]
    sizes = fits(ways[0])
    if fits([]) or len(ways) > 1 or not sizes:
        return
    wanted = " and ".join(
        f"{name} must be {expected(shapes[name][0], sizes)}, got shape {shapes[name][1]}," for name in ways[0]
    )
    others = [match.layout for match in identify(checkpoint) if match.prefix == prefix]
    raise ValueError(
        f"{where} {wanted} the transpose of it; so square matrices beside it may be stored transposed too, which "
        "no shape tells" + (f". Names and shapes are those of layout {_few(map(repr, others))}" if others else "")
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


def check_types(where: str, tensors: Mapping[str, Array]) -> None:
    """Refuse what is not floating, and two floating types in one layer."""
    (first, reference), *_ = tensors.items()
    for name, array in tensors.items():
        if not np.issubdtype(array.dtype, np.floating) and array.dtype.name != "bfloat16":
            raise TypeError(f"{where} {name} must hold floating-point numbers, got {array.dtype}")
        if array.dtype != reference.dtype:
            raise TypeError(
                f"{where} {name} is {array.dtype} but {first} is {reference.dtype}; the tensors of a layer must "
                "be of one type, and none is changed silently"
            )


def check_told(where: str, sides: list[str], sizes: Sizes) -> None:
    """Refuse to guess lengths that shapes tell only as a product, the numbers of heads above all."""
    untold = [[letter for letter in axis if one(letter) not in sizes] for side in sides for axis in axes(side)]
    lengths = {"·".join(several): sizes[frozenset(several)].length for several in untold if several}
    for letter in ("h", "h_kv"):
        for product, length in lengths.items():
            if letter in product.split("·"):
                raise NeededError(
                    f"{where} heads are stored side by side, and shapes do not tell how many there are;",
                    letter,
                    rest=f", a divisor of {product}={length}",
                )
    if lengths:
        raise ValueError(f"{where} shapes tell {', '.join(lengths)} and none of the factors")


def check_heads(where: str, layout: Layout, sizes: Sizes) -> None:
    """Refuse key-value heads that cannot be shared evenly, or are fewer than the heads where none are shared."""
    h, h_kv = sizes[one("h")], sizes.get(one("h_kv"), sizes[one("h")])
    if not has_groups(layout) and h.length != h_kv.length:
        raise ValueError(
            f"{where} keys and values have as many heads as queries here, got h={h.length} and h_kv={h_kv.length}"
        )
    if h.length % h_kv.length:
        raise ValueError(
            f"{where} key-value heads must divide the heads, got h_kv={h_kv.length} ({h_kv.source}) "
            f"and h={h.length} ({h.source})"
        )


def check_groups(where: str, layout: Layout, arrays: Mapping[str, Array]) -> None:
    """Refuse heads that share keys and values where the library gives every head its own."""
    h, h_kv = len(arrays["W_q"]), len(arrays["W_k"])
    if h != h_kv and not has_groups(layout):
        raise NeededError(
            f"{where} every head has keys and values of its own there, but {h} heads share {h_kv}; to give each "
            "its copy,",
            "repeat_kv",
            True,
        )


def has_groups(layout: Layout) -> bool:
    """Whether heads can share keys and values there."""
    return any("h_kv" in letters(tensor.stored) for tensor in layout.tensors)


def to_store(where: str, layout: Layout, arrays: Mapping[str, Array]) -> list[Stored]:
    """The tensors that a layer with these arrays has in this layout."""
    for tensor, lacking in incomplete(layout, arrays):
        always = "is always" if tensor.together is None else "is, beside the other biases,"
        raise NeededError(
            f"{where} {tensor.key} {always} stored there and holds {' '.join(tensor.arrays)}, but the layer "
            f"has no {' '.join(lacking)}; zeros in its place change nothing:",
            "zero_biases",
            True,
        )
    stored = [tensor for tensor in layout.tensors if set(tensor.arrays) & set(arrays)]
    placed = {name for tensor in stored for name in tensor.arrays}
    homeless = [name for name in arrays if name not in placed]
    if homeless:
        raise ValueError(f"{where} has no place for {', '.join(homeless)}, which the layer has")
    return stored


def incomplete(layout: Layout, arrays: Mapping[str, Array]) -> list[tuple[Stored, list[str]]]:
    """The tensors that would be stored, always or beside others, and what the layer lacks to fill them."""
    groups = {tensor.together for tensor in layout.tensors if set(tensor.arrays) & set(arrays)} | {None}
    stored = [tensor for tensor in layout.tensors if tensor.together in groups]
    lacking = [(tensor, [name for name in tensor.arrays if name not in arrays]) for tensor in stored]
    return [(tensor, names) for tensor, names in lacking if names]
