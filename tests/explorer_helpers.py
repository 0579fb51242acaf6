"""One of each explorer, small enough to be compared number by number."""

import numpy as np

from mha_tutorial.explorers import heads

WORDS = ["She", " sat", " down", "<b>.</b>"]


def some_heads(layers=3, h=5, contributions=True):
    """Random weights under a causal mask, and contributions of another order."""
    rng = np.random.default_rng(2017)
    n = len(WORDS)
    exponentials = np.exp(3 * rng.normal(size=(layers, h, n, n))) * np.tri(n)
    attention = exponentials / exponentials.sum(axis=-1, keepdims=True)
    added = attention * rng.uniform(0.1, 9.0, size=(layers, h, 1, n))
    return heads.view(list(attention), WORDS, list(added) if contributions else None)


EXPLORERS = {
    "heads": some_heads,
}
