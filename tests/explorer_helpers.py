"""One of each explorer, small enough to be compared number by number."""

import numpy as np

from mha_tutorial.explorers import MaskBuilder, OutputProjection, Query, heads

WORDS = ["She", " sat", " down", "<b>.</b>"]


def some_heads(layers=3, h=5, contributions=True):
    """Random weights under a causal mask, and contributions of another order."""
    rng = np.random.default_rng(2017)
    n = len(WORDS)
    exponentials = np.exp(3 * rng.normal(size=(layers, h, n, n))) * np.tri(n)
    attention = exponentials / exponentials.sum(axis=-1, keepdims=True)
    added = attention * rng.uniform(0.1, 9.0, size=(layers, h, 1, n))
    return heads.view(list(attention), WORDS, list(added) if contributions else None)


def some_projection():
    """Three heads of two numbers, and four outputs."""
    rng = np.random.default_rng(3)
    return OutputProjection(rng.integers(-4, 5, size=(3, 2)) / 2, rng.integers(-4, 5, size=(6, 4)) / 2)


def some_query():
    """Four keys and values in general position."""
    rng = np.random.default_rng(4)
    return Query(np.array([1.5, -0.5]), rng.normal(size=(4, 2)).round(1), rng.normal(size=(4, 2)).round(1))


def some_mask():
    """All rules at once, with a query that sees nothing."""
    return MaskBuilder(n=4, m=6, align="bottom-right", causal=True, window=3, padding=3, side="right", first=2)


EXPLORERS = {
    "heads": some_heads,
    "projection": some_projection,
    "query": some_query,
    "masks": some_mask,
}


def mask_states():
    """States of the mask builder in which every rule meets every other, and both triangles and sides occur."""
    for n, m in ((3, 3), (2, 5), (5, 2), (1, 4), (4, 1)):
        for align in ("top-left", "bottom-right"):
            for causal in (False, True):
                for window in (0, 1, 2):
                    for padding, side in ((0, "right"), (1, "right"), (1, "left"), (m, "left")):
                        for first in {0, 1, m - 1, m}:
                            yield {
                                "n": n,
                                "m": m,
                                "align": align,
                                "causal": causal,
                                "window": window,
                                "padding": padding,
                                "side": side,
                                "first": first,
                            }
