"""The backward pass. Tokens are rows; dY stands for the derivative of the loss by each number of Y.

Fill in each function, with NumPy only, and let `pytest exercises/` grade it.
"""

import numpy as np


def product_backward(A, B, dC):
    """Carry the gradient of C = A @ B back to A and B.

    A: (p, q), B: (q, r), dC: (p, r). Returns the pair dA: (p, q), dB: (q, r).
    """
    return dC @ B.T, A.T @ dC


def softmax_backward(A, dA):
    """Carry the gradient of attention weights back to the scores they were made from.

    A: (n, m), each row summing to one; dA: (n, m). Returns dS: (n, m).
    """
    return A * (dA - (A * dA).sum(axis=1, keepdims=True))


def attention_backward(Q, K, V, dO):
    """Carry the gradient of O = softmax(Q K^T / sqrt(d_k)) V back to Q, K and V.

    Q: (n, d_k), K: (m, d_k), V: (m, d_v), dO: (n, d_v). Returns the triple dQ, dK, dV.
    """
    scale = 1 / np.sqrt(K.shape[1])
    scores = Q @ K.T * scale
    exponentials = np.exp(scores - scores.max(axis=1, keepdims=True))
    A = exponentials / exponentials.sum(axis=1, keepdims=True)
    dS = softmax_backward(A, dO @ V.T) * scale
    return dS @ K, dS.T @ Q, A.T @ dO
