"""Arrays as programs hold them. Tokens are rows, and there is a batch axis in front.

Fill in each function, with NumPy only, and let `pytest exercises/` grade it.
"""

import numpy as np


def split_heads(x, h):
    """Give every head its own part of each token.

    x: (b, n, h * d), the parts of the heads side by side. Returns (b, h, n, d).
    """
    raise NotImplementedError  # your lines here


def merge_heads(heads):
    """Undo `split_heads`.

    heads: (b, h, n, d). Returns (b, n, h * d).
    """
    raise NotImplementedError  # your lines here


def causal(n, m):
    """Say which keys each query sees when the last query stands beside the last key (n <= m).

    Returns a boolean array (n, m), True where the query may look.
    """
    raise NotImplementedError  # your lines here


def padding(lengths, m):
    """Say which of m keys are real, ready to broadcast to scores of shape (b, h, n, m).

    lengths: (b,) integers, how many keys of each text are real. Returns a boolean array (b, 1, 1, m).
    """
    raise NotImplementedError  # your lines here


def masked_softmax(scores, visible):
    """Turn scores into weights over the visible keys; a query that sees none gets zeros, and no warning.

    scores: (b, h, n, m), visible: boolean, broadcasts to the scores. Returns (b, h, n, m).
    Scores may be as large as 1000, hidden ones too. Do not let them overflow, or make the others vanish.
    """
    raise NotImplementedError  # your lines here


def share_keys(keys, h):
    """Repeat grouped keys so that each of h query heads finds its own; neighbours share.

    keys: (b, h_kv, m, d_k), h a multiple of h_kv. Returns (b, h, m, d_k).
    """
    raise NotImplementedError  # your lines here
