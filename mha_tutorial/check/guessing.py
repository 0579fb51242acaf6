"""The matrices of a module whose names fit no layout: read in every way that their shapes allow, and tried."""

import itertools
from collections.abc import Iterator
from typing import Any, NamedTuple

from ..weights import RowWeights
from .subject import HEADS, as_rows, number, same_weights

PROJECTIONS = ["W_q", "W_k", "W_v", "W_o"]


class Reading(NamedTuple):
    """A way to read a module's parameters.

    Parameters
    ----------
    how
        In words: which layout, and in which order.
    weights
        The matrices that come of it.
    usual
        Whether queries come before keys, and keys before values.
    """

    how: str
    weights: RowWeights
    usual: bool


def readings(module: Any) -> Iterator[Reading]:
    """Every way in which a module's parameters could be the matrices of a layer.

    All of them have to be matrices, each with or without a bias beside it, and the module has to say how many
    heads it has. Names are not looked at: the last matrix counts as the output's.
    """
    from .. import layouts

    h, parameters = number(module, HEADS), dict(module.named_parameters())
    matrices = [name for name, x in parameters.items() if x.ndim == 2]
    beside = {name: name.removesuffix("weight") + "bias" for name in matrices}
    biases = {name: parameters[other] for name, other in beside.items() if other in parameters}
    if h is None or len(matrices) + len(biases) != len(parameters):
        return
    seen: list[RowWeights] = []
    for layout in layouts.LAYOUTS.values():
        homes = {array: tensor.key for tensor in layout.tensors for array in tensor.arrays}
        order = list(dict.fromkeys(homes[name] for name in PROJECTIONS))
        if len(order) != len(matrices):
            continue
        stored = {key: parameters[name] for key, name in zip(order, matrices, strict=True)}
        for array in PROJECTIONS:
            name = matrices[order.index(homes[array])]
            if name in biases:
                stored[homes.get(array.replace("W", "b"), "no place")] = biases[name]
        try:
            weights = as_rows(layouts.load(stored, layout, h))
        except (ValueError, TypeError):  # of other shapes, or with a bias that this layout has no place for
            continue
        for reading in _orders(layout.name, weights):
            if not any(same_weights(reading.weights, other) for other in seen):
                seen.append(reading.weights)
                yield reading


def _orders(layout: str, weights: RowWeights) -> Iterator[Reading]:
    """The matrices in each order of queries, keys and values that their shapes allow."""
    arrays, names = weights.arrays(), {"q": "queries", "k": "keys", "v": "values"}
    for order in itertools.permutations("qkv"):
        moved: dict[str, Any] = {
            f"{kind}_{to}": arrays.get(f"{kind}_{of}") for kind in "Wb" for of, to in zip("qkv", order, strict=True)
        }
        try:
            read = RowWeights(**(arrays | moved))
        except ValueError:  # these shapes do not allow it
            continue
        yield Reading(f"layout {layout!r}, {', '.join(names[one] for one in order)}", read, order == tuple("qkv"))
