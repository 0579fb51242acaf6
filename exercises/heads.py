"""Many heads. Tokens are columns; the first axis of every weight counts the heads.

Fill in each function, with NumPy only, and let `pytest exercises/` grade it.
"""

import numpy as np


def multi_head(X, W_q, W_k, W_v, W_o):
    """Let every head attend in its own projection, and add up what the heads write (no biases).

    X: (d_model, n), W_q and W_k: (h, d_k, d_model), W_v: (h, d_v, d_model), W_o: (h, d_model, d_v).
    Returns (d_model, n).
    """
    raise NotImplementedError  # your lines here


def concatenated_output(W_o, heads):
    """Stack each token's heads, head 1 on top, and multiply once by one wide matrix.

    W_o: (h, d_model, d_v), heads: (h, d_v, n). Returns (d_model, n), the sum of the products head by head.
    """
    raise NotImplementedError  # your lines here


def to_rows(W_q, W_o):
    """Turn matrices of the column convention (W X) into those of the row convention (X W).

    W_q: (h, d_k, d_model), W_o: (h, d_model, d_v).
    Returns the pair (h, d_model, d_k), (h, d_v, d_model).
    """
    raise NotImplementedError  # your lines here


def parameters(d_model, h, h_kv, d_k, d_v):
    """Count the numbers that a layer learns, biases included.

    h heads for queries and h_kv for keys and values, of widths d_k and d_v. Returns an integer.
    """
    raise NotImplementedError  # your lines here
