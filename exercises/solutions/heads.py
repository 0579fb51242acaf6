"""Many heads. Tokens are columns; the first axis of every weight counts the heads.

Fill in each function, with NumPy only, and let `pytest exercises/` grade it.
"""

import numpy as np


def multi_head(X, W_q, W_k, W_v, W_o):
    """Let every head attend in its own projection, and add up what the heads write (no biases).

    X: (d_model, n), W_q and W_k: (h, d_k, d_model), W_v: (h, d_v, d_model), W_o: (h, d_model, d_v).
    Returns (d_model, n).
    """
    output = np.zeros_like(X)
    for query, key, value, write in zip(W_q, W_k, W_v, W_o, strict=True):
        scores = (key @ X).T @ (query @ X) / np.sqrt(len(key))
        exponentials = np.exp(scores - scores.max(axis=0))
        output += write @ (value @ X) @ (exponentials / exponentials.sum(axis=0))
    return output


def concatenated_output(W_o, heads):
    """Stack each token's heads, head 1 on top, and multiply once by one wide matrix.

    W_o: (h, d_model, d_v), heads: (h, d_v, n). Returns (d_model, n), the sum of the products head by head.
    """
    wide = np.concatenate(W_o, axis=1)
    return wide @ np.concatenate(heads, axis=0)


def to_rows(W_q, W_o):
    """Turn matrices of the column convention (W X) into those of the row convention (X W).

    W_q: (h, d_k, d_model), W_o: (h, d_model, d_v).
    Returns the pair (h, d_model, d_k), (h, d_v, d_model).
    """
    return W_q.transpose(0, 2, 1), W_o.transpose(0, 2, 1)


def parameters(d_model, h, h_kv, d_k, d_v):
    """Count the numbers that a layer learns, biases included.

    h heads for queries and h_kv for keys and values, of widths d_k and d_v. Returns an integer.
    """
    matrices = d_model * (h * d_k + h_kv * d_k + h_kv * d_v + h * d_v)
    return matrices + h * d_k + h_kv * d_k + h_kv * d_v + d_model
