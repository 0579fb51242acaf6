"""Attention by hand. Tokens are columns, as on the book's pages when the switch says Columns.

Fill in each function, with NumPy only, and let `pytest exercises/` grade it.
"""

import numpy as np


def softmax(scores):
    """Turn each query's scores into weights: none negative, each column summing to one.

    scores: (m, n), a row for each key and a column for each query. Returns (m, n).
    Scores may be as large as 1000. Do not let them overflow.
    """
    raise NotImplementedError  # your lines here


def scaled_dot_product(Q, K):
    """Score each key for each query: their inner product, divided by the root of their width.

    Q: (d_k, n), K: (d_k, m). Returns (m, n), a column for each query.
    """
    raise NotImplementedError  # your lines here


def attention(Q, K, V):
    """Give each query the average of the values, weighted by how well their keys match it.

    Q: (d_k, n), K: (d_k, m), V: (d_v, m). Returns (d_v, n).
    """
    raise NotImplementedError  # your lines here


def causal_attention(Q, K, V):
    """As `attention`, but query i sees only the keys 1 to i. There are as many keys as queries.

    Q, K: (d_k, n), V: (d_v, n). Returns (d_v, n).
    """
    raise NotImplementedError  # your lines here
