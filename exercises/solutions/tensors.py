"""Arrays as programs hold them. Tokens are rows, and there is a batch axis in front.

Fill in each function, with NumPy only, and let `pytest exercises/` grade it.
"""

import numpy as np


def split_heads(x, h):
    """Give every head its own part of each token.

    x: (b, n, h * d), the parts of the heads side by side. Returns (b, h, n, d).
    """
    b, n, width = x.shape
    return x.reshape(b, n, h, width // h).transpose(0, 2, 1, 3)


def merge_heads(heads):
    """Undo `split_heads`.

    heads: (b, h, n, d). Returns (b, n, h * d).
    """
    b, h, n, d = heads.shape
    return heads.transpose(0, 2, 1, 3).reshape(b, n, h * d)


def causal(n, m):
    """Say which keys each query sees when the last query stands beside the last key (n <= m).

    Returns a boolean array (n, m), True where the query may look.
    """
    return np.arange(m) <= np.arange(n)[:, None] + m - n


def padding(lengths, m):
    """Say which of m keys are real, ready to broadcast to scores of shape (b, h, n, m).

    lengths: (b,) integers, how many keys of each text are real. Returns a boolean array (b, 1, 1, m).
    """
    return (np.arange(m) < lengths[:, None])[:, None, None, :]


def masked_softmax(scores, visible):
    """Turn scores into weights over the visible keys; a query that sees none gets zeros, and no warning.

    scores: (b, h, n, m), visible: boolean, broadcasts to the scores. Returns (b, h, n, m).
    Scores may be as large as 1000, hidden ones too. Do not let them overflow, or make the others vanish.
    """
    scores = np.where(visible, scores, -np.inf)
    largest = scores.max(axis=-1, keepdims=True)
    exponentials = np.exp(scores - np.where(np.isneginf(largest), 0, largest))
    total = exponentials.sum(axis=-1, keepdims=True)
    return exponentials / np.where(total == 0, 1, total)


def share_keys(keys, h):
    """Repeat grouped keys so that each of h query heads finds its own; neighbours share.

    keys: (b, h_kv, m, d_k), h a multiple of h_kv. Returns (b, h, m, d_k).
    """
    return np.repeat(keys, h // keys.shape[1], axis=1)
