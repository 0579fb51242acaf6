"""Recognise layouts: which of them the names and shapes in a checkpoint fit, and what shapes cannot tell."""

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from .checkpoint import read_shapes
from .patterns import axes, letters, solve, told
from .table import LAYOUTS, Layout, Stored

Shapes = dict[str, tuple[int, ...]]


class Match(NamedTuple):
    """A layer that was found in a checkpoint.

    Parameters
    ----------
    layout
        The layout whose keys are there, with shapes that fit it and each other.
    prefix
        What stands before the keys.
    sizes
        The lengths that shapes tell, of axes or of products of axes such as ``"h·d"``.
    h
        The number of heads, or None where the shapes do not tell it.
    parameters
        How many numbers the layer holds.
    alike
        Layouts that store the same things in tensors of the same shapes, and in another order. That
        it is not one of these, only the names say; and of ``llama`` and ``llama-pairs`` not even they,
        since models with either order of rows use the names of both. Nor do they tell where the layer
        was found twice, in two layouts with the same prefix, as a ``qkv_proj`` with biases is.
    surplus
        Keys that begin with the prefix and are not the layer's; `load` refuses them.
    """

    layout: str
    prefix: str
    sizes: dict[str, int]
    h: int | None
    parameters: int
    alike: tuple[str, ...]
    surplus: tuple[str, ...]


def identify(checkpoint: Any) -> list[Match]:
    """Find the layers in a checkpoint whose names and shapes fit a layout.

    Examples
    --------
    >>> stored = {"in_proj_weight": np.ones((12, 4)), "out_proj.weight": np.ones((4, 4))}
    >>> (match,) = identify(stored)
    >>> match.layout, match.sizes, match.h, match.alike
    ('torch', {'h·d': 4, 'd_model': 4}, None, ('neox',))
    """
    shapes = read_shapes(checkpoint)
    found = [_match(layout, prefix, shapes) for layout in LAYOUTS.values() for prefix in _prefixes(layout, shapes)]
    return [match for match in found if match is not None]


def _prefixes(layout: Layout, shapes: Shapes) -> list[str]:
    """What stands before the first key of the layout, if that is a path."""
    key = layout.tensors[0].key
    before = [name.removesuffix(key) for name in shapes if name.endswith(key)]
    return [prefix for prefix in before if not prefix or prefix[-1] in "./"]


def _match(layout: Layout, prefix: str, shapes: Shapes) -> Match | None:
    there = {tensor: shapes[prefix + tensor.key] for tensor in layout.tensors if prefix + tensor.key in shapes}
    lengths = _lengths(layout, there)
    if lengths is None:
        return None
    alike = [other.name for other in LAYOUTS.values() if _reads_otherwise(other, there)]
    known = {tensor.key for tensor in layout.tensors} | set(layout.ignored)
    below = [name.removeprefix(prefix) for name in shapes if name.startswith(prefix)]
    return Match(
        layout.name,
        prefix,
        lengths,
        lengths.get("h"),
        sum(math.prod(shape) for shape in there.values()),
        tuple(alike),
        tuple(key for key in below if key not in known),
    )


def _lengths(layout: Layout, there: Mapping[Stored, tuple[int, ...]]) -> dict[str, int] | None:
    """The sizes, if the tensors are those that the layout asks for and their shapes fit."""
    groups = {tensor.together for tensor in there} | {None}
    if any(tensor.together in groups and tensor not in there for tensor in layout.tensors):
        return None
    try:
        shapes = {tensor.key: (tensor.stored, shape) for tensor, shape in there.items()}
        sizes = solve(layout.name, shapes, bound=layout.bound)
    except ValueError:
        return None
    several = dict.fromkeys(letter for tensor in there for letter in letters(tensor.stored))
    return {name: size.length for name, size in told(list(several), sizes).items()}


def _reads_otherwise(other: Layout, there: Mapping[Stored, tuple[int, ...]]) -> bool:
    """Whether another layout fits the same shapes, but would read at least one of the tensors differently."""
    places = {tensor.holds: tensor for tensor in other.tensors}
    if not all(tensor.holds in places for tensor in there):
        return False
    moved = {places[tensor.holds]: shape for tensor, shape in there.items()}
    same = all(_reading(tensor) == _reading(places[tensor.holds]) for tensor in there)
    return not same and _lengths(other, moved) is not None


def _reading(tensor: Stored) -> list[list[tuple[int, int]]]:
    """The stored axes by their places in the package's array, whatever their letters.

    Letters that stay side by side, as ``two half`` in Llama, count as one.
    """
    stored, held = tensor.pattern.split(" -> ")
    place = {letter: (i, j) for i, axis in enumerate(axes(held)) for j, letter in enumerate(axis)}
    for axis in axes(held):
        stored = stored.replace(" ".join(axis), axis[0])
    return [[place[letter] for letter in axis] for axis in axes(stored)]
