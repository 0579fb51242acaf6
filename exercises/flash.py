"""Softmax in one pass over the keys, and merging of parts. Tokens are rows.

Fill in each function, with NumPy only, and let `pytest exercises/` grade it.
"""

import numpy as np


def online_softmax(scores, block):
    """Carry each query's largest score, and the sum of its exponentials, through blocks of keys.

    scores: (n, m), a row for each query. Look at `block` keys at a time, from the first to the last.
    Returns the pair largest: (n,), total: (n,): the weights are exp(scores - largest) / total.
    Scores may be as large as 1000, and those of the first blocks may be -inf: hidden. Every query sees a key.
    """
    raise NotImplementedError  # your lines here


def online_attention(Q, K, V, block):
    """Average the values by softmax(Q K^T / sqrt(d_k)), with no more than `block` keys' scores at a time.

    Q: (n, d_k), K: (m, d_k), V: (m, d_v). Returns the pair heads: (n, d_v), log_sums: (n,), the logarithm
    of the sum of the exponentials of each query's scores.
    """
    raise NotImplementedError  # your lines here


def merge(heads, log_sums, other_heads, other_log_sums):
    """Make each query's average over all keys from its averages over some of them and over the others.

    heads, other_heads: (n, d_v); log_sums, other_log_sums: (n,), as `online_attention` returns them, and as
    large as 1000. Where one is -inf the query saw nothing in that part; then its head there is zero. It
    may have seen nothing in both. Returns the pair heads: (n, d_v), log_sums: (n,).
    """
    raise NotImplementedError  # your lines here
