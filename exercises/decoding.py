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
    raise NotImplementedError  # your lines here


def ring(tokens, window):
    """Say which slot of a ring each token of a text is stored in, and which tokens it holds at the end.

    tokens: how many tokens the text has, at least `window`. A token's slot is its place, counted from 0, modulo
    the window. Returns two arrays of integers: the slot of every token (tokens,) and the token in every slot.
    """
    raise NotImplementedError  # your lines here


def cache_bytes(m, layers, h_kv, d_k, d_v, itemsize):
    """Count the bytes of the keys and values that a model keeps of m tokens of one text.

    itemsize: the bytes of one number. Returns an integer.
    """
    raise NotImplementedError  # your lines here
