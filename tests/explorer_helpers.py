"""One of each explorer, small enough to be compared number by number."""

from dataclasses import replace

import numpy as np

from mha_tutorial.explorers import Flash, MaskBuilder, OutputProjection, Query, Scale, Shapes, heads

WORDS = ["She", " sat", " down", "<b>.</b>"]


def some_heads(layers=3, h=5, contributions=True):
    """Random weights under a causal mask, and contributions of another order."""
    rng = np.random.default_rng(2017)
    n = len(WORDS)
    exponentials = np.exp(3 * rng.normal(size=(layers, h, n, n))) * np.tri(n)
    attention = exponentials / exponentials.sum(axis=-1, keepdims=True)
    added = attention * rng.uniform(0.1, 9.0, size=(layers, h, 1, n))
    shown = heads.view(list(attention), WORDS, list(added) if contributions else None)
    return replace(shown, following=some_following(rng, layers, h) if contributions else None)


def some_following(rng, layers, h):
    """Three likely words with all heads, and three of others, in another order, without each."""
    words = np.array([" bank", " river", "<i>", " money", "  "])
    shares = -np.sort(-rng.uniform(0.0, 0.3, size=(layers, h, 3)))
    without = [[rng.permutation(words)[:3].tolist() for _ in range(h)] for _ in range(layers)]
    return heads.Following(words[:3].tolist(), [0.4, 0.2, 0.1], without, shares.tolist())


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


def some_flash():
    """Eleven keys, so that the last block is smaller, whose largest score comes neither first nor last."""
    rng = np.random.default_rng(6)
    return Flash(rng.normal(scale=2.0, size=11).round(2), rng.integers(-5, 6, size=11) / 2, blocks=(4, 1, 3, 11))


EXPLORERS = {
    "heads": some_heads,
    "projection": some_projection,
    "query": some_query,
    "masks": some_mask,
    "shapes": lambda: Shapes(b=3, n=7, d_model=20, h=4, h_kv=2),
    "scale": lambda: Scale(np.random.default_rng(5), widths=(1, 3, 9, 40, 500), m=7, queries=3),
    "flash": some_flash,
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


SIZES = [
    {"b": b, "n": n, "d_model": d_model, "h": h, "h_kv": h_kv}
    for b, n in ((1, 1), (2, 5), (3, 11))
    for d_model, h, h_kv in ((30, 10, 10), (30, 10, 5), (12, 1, 1), (14, 7, 1), (36, 6, 2))
]
