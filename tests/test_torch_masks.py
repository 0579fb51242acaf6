"""Structured masks as tensors are the masks that NumPy makes, and key ranges are where something is visible."""

import itertools

import numpy as np
import pytest
import torch

from mha_tutorial import Causal, Padding, Window
from mha_tutorial.torch.masks import to_tensor, visible_key_range

SIMPLE = [
    Causal("top-left"),
    Causal("bottom-right"),
    Window(1, "top-left"),
    Window(2, "bottom-right"),
    Window(5, "top-left"),
    Padding([3, 2]),
    Padding([0, 0]),
    Padding(2),
]
COMBINED = [
    Causal("bottom-right") & Padding([3, 1]),
    Window(2, "top-left") & Causal("top-left"),
    Window(1, "top-left") | Padding([1, 2]),
    Padding([1, 1]) & ~Causal("top-left"),
    ~(Window(2, "bottom-right") | Padding([2, 1])),
    Window(1, "top-left") & Window(1, "bottom-right"),
]
LENGTHS = [(5, 7), (7, 5), (5, 5), (1, 7), (7, 3)]


@pytest.mark.parametrize("mask", SIMPLE + COMBINED, ids=str)
def test_tensors_are_the_arrays(mask):
    for n, m in LENGTHS:
        whole = np.broadcast_to(mask.rows(n, m, (2,)), (2, n, m))
        made = to_tensor(mask, 2, n, m, torch.device("cpu")).expand(2, 1, n, m)[:, 0]
        assert np.array_equal(made.numpy(), whole)
        part = to_tensor(mask, 2, n, m, torch.device("cpu"), slice(1, 4), slice(2, 6)).expand(
            2, 1, *whole[0, 1:4, 2:6].shape
        )
        assert np.array_equal(part[:, 0].numpy(), whole[:, 1:4, 2:6])


@pytest.mark.parametrize("mask", SIMPLE + COMBINED, ids=str)
def test_nothing_is_visible_out_of_reach(mask):
    for n, m in LENGTHS:
        whole = np.broadcast_to(mask.rows(n, m, (2,)), (2, n, m))
        for start, stop in itertools.combinations(range(n + 1), 2):
            low, high = visible_key_range(mask, start, stop, n, m)
            seen = whole[:, start:stop].any(axis=(0, 1))
            assert 0 <= low <= high <= m
            assert not seen[:low].any()
            assert not seen[high:].any()
            if mask in SIMPLE and seen.any():
                assert (low, high) == (
                    0 if isinstance(mask, Causal | Padding) else seen.argmax(),
                    m - seen[::-1].argmax(),
                )
