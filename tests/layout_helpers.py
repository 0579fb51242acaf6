"""Layers in other libraries' layouts, and what is the same when they are moved."""

import math

import numpy as np
import torch

from mha_tutorial import ColumnWeights
from mha_tutorial.layouts.patterns import axes

SIZES = {"h": 6, "h_kv": 2, "two": 2, "half": 5, "d": 7, "d_k": 11, "d_v": 13}

SIZES |= {"d_query": 17, "d_key": 19, "d_value": 23, "d_model": 29}


def draw(rng, layout, bias=True, dtype=np.float64, **sizes):
    """A random layer with sizes as different as the library allows."""
    sizes = SIZES | sizes
    for letter, several in layout.bound.items():
        sizes[letter] = math.prod(sizes[factor] for factor in several.split())
    shapes = {
        name: [math.prod(sizes[letter] for letter in axis) for axis in axes(tensor.held)]
        for tensor in layout.tensors
        for name in tensor.arrays
        if bias or name.startswith("W")
    }
    return ColumnWeights(**{name: rng.normal(size=shape).astype(dtype) for name, shape in shapes.items()})


def assert_same(actual, expected):
    """The same names in any order, and the same bytes in the same shapes and types."""
    assert set(actual) == set(expected)
    for name, array in expected.items():
        np.testing.assert_array_equal(actual[name], array, strict=True)
        assert actual[name].tobytes() == array.tobytes()


def randomised(module, seed=0):
    """Random numbers for every parameter, since fresh biases are zero."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
    return module
