"""The backward pass. Tokens are rows; dY stands for the derivative of the loss by each number of Y.

Fill in each function, with NumPy only, and let `pytest exercises/` grade it.
"""

import numpy as np


def product_backward(A, B, dC):
    """Carry the gradient of C = A @ B back to A and B.

    A: (p, q), B: (q, r), dC: (p, r). Returns the pair dA: (p, q), dB: (q, r).
    """
    raise NotImplementedError  # your lines here


def softmax_backward(A, dA):
    """Carry the gradient of attention weights back to the scores they were made from.

    A: (n, m), each row summing to one; dA: (n, m). Returns dS: (n, m).
    """
    raise NotImplementedError  # your lines here


def attention_backward(Q, K, V, dO):
    """Carry the gradient of O = softmax(Q K^T / sqrt(d_k)) V back to Q, K and V.

    Q: (n, d_k), K: (m, d_k), V: (m, d_v), dO: (n, d_v). Returns the triple dQ, dK, dV.
    """
    raise NotImplementedError  # your lines here
