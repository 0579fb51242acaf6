"""Heads on several devices. Tokens are columns; the first axis of every weight counts the heads.

Fill in each function, with NumPy only, and let `pytest exercises/` grade it.
"""

import numpy as np


def shard(W_q, W_k, W_v, W_o, rank, ranks):
    """Cut out what one of several ranks holds of a layer: its share of the heads, in order.

    W_q: (h, d_k, d_model), W_k: (h_kv, d_k, d_model), W_v: (h_kv, d_v, d_model), W_o: (h, d_model, d_v). Groups of
    h / h_kv neighbouring heads share a key-value head, and `ranks`, which divides h_kv, leaves them together. The
    first rank is 0. Returns the four matrices of the rank, in this order.
    """
    raise NotImplementedError  # your lines here


def output_of_ranks(partial_outputs, b_o):
    """Make the layer's output of what the ranks have computed without a bias, and the output bias.

    partial_outputs: (ranks, d_model, n), b_o: (d_model,). Returns (d_model, n).
    """
    raise NotImplementedError  # your lines here


def merge(heads, log_sums):
    """Merge what the ranks found in their own blocks of keys: for each query one average over all keys.

    heads: (ranks, d_v, n), each the average over a rank's keys. log_sums: (ranks, n), the logarithm of each query's
    sum of exponentials over these keys; it may be large, or minus infinity where the query sees none of them. Every
    query sees a key of some rank. Returns (d_v, n).
    """
    raise NotImplementedError  # your lines here
