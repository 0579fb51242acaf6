"""Writing one token at a time. Tokens are rows, and there is one text.

Fill in each function, with NumPy only, and let `pytest exercises/` grade it.
"""

import numpy as np


def cached_step(x, keys, values, W_q, W_k, W_v):
    """Read the next tokens of a text: store their keys and values, and attend to all that is stored, in one head.

    x: (n, d_model), the new tokens. keys: (m, d_k) and values: (m, d_v), of the m tokens before them, m may be 0.
    W_q, W_k: (d_model, d_k), W_v: (d_model, d_v). Each token sees itself and every token before it.
    Returns three arrays: the head's output for the new tokens (n, d_v), all keys (m + n, d_k) and all values.
    """
    keys, values = np.concatenate([keys, x @ W_k]), np.concatenate([values, x @ W_v])
    n, m = len(x), len(keys)
    scores = (x @ W_q) @ keys.T / np.sqrt(keys.shape[1])
    scores = np.where(np.arange(m) <= np.arange(n)[:, None] + m - n, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=1, keepdims=True))
    return weights @ values / weights.sum(axis=1, keepdims=True), keys, values


def ring(tokens, window):
    """Say which slot of a ring each token of a text is stored in, and which tokens it holds at the end.

    tokens: how many tokens the text has, at least `window`. A token's slot is its place, counted from 0, modulo
    the window. Returns two arrays of integers: the slot of every token (tokens,) and the token in every slot.
    """
    slots = np.arange(tokens) % window
    held = np.zeros(window, dtype=int)
    held[slots] = np.arange(tokens)
    return slots, held


def cache_bytes(m, layers, h_kv, d_k, d_v, itemsize):
    """Count the bytes of the keys and values that a model keeps of m tokens of one text.

    itemsize: the bytes of one number. Returns an integer.
    """
    return m * layers * h_kv * (d_k + d_v) * itemsize
