"""The NumPy layer in tiles and on threads."""

from .layer import FastMultiHeadAttention

__all__ = ["FastMultiHeadAttention"]
