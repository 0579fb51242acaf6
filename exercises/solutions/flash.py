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
    largest, total = np.full(len(scores), -np.inf), np.zeros(len(scores))
    for start in range(0, scores.shape[1], block):
        some = scores[:, start : start + block]
        larger = np.maximum(largest, some.max(axis=1))
        finite = np.where(larger == -np.inf, 0, larger)
        exponentials = np.exp(some - finite[:, None])
        total = total * np.exp(largest - finite) + exponentials.sum(axis=1)
        largest = larger
    return largest, total


def online_attention(Q, K, V, block):
    """Average the values by softmax(Q K^T / sqrt(d_k)), with no more than `block` keys' scores at a time.

    Q: (n, d_k), K: (m, d_k), V: (m, d_v). Returns the pair heads: (n, d_v), log_sums: (n,), the logarithm
    of the sum of the exponentials of each query's scores.
    """
    largest, total = np.full((len(Q), 1), -np.inf), np.zeros((len(Q), 1))
    weighted = np.zeros((len(Q), V.shape[1]))
    for start in range(0, len(K), block):
        scores = Q @ K[start : start + block].T / np.sqrt(K.shape[1])
        larger = np.maximum(largest, scores.max(axis=1, keepdims=True))
        shrink, exponentials = np.exp(largest - larger), np.exp(scores - larger)
        total = total * shrink + exponentials.sum(axis=1, keepdims=True)
        weighted = weighted * shrink + exponentials @ V[start : start + block]
        largest = larger
    return weighted / total, (largest + np.log(total))[:, 0]


def merge(heads, log_sums, other_heads, other_log_sums):
    """Make each query's average over all keys from its averages over some of them and over the others.

    heads, other_heads: (n, d_v); log_sums, other_log_sums: (n,), as `online_attention` returns them, and as
    large as 1000. Where one is -inf the query saw nothing in that part; then its head there is zero. It
    may have seen nothing in both. Returns the pair heads: (n, d_v), log_sums: (n,).
    """
    together = np.logaddexp(log_sums, other_log_sums)
    finite = np.where(together == -np.inf, 0, together)
    weight, other_weight = np.exp(log_sums - finite), np.exp(other_log_sums - finite)
    return weight[:, None] * heads + other_weight[:, None] * other_heads, together
