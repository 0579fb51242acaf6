"""Multi-head attention in NumPy, in both conventions, every equation tested."""

from .fast import FastMultiHeadAttention
from .layer import MultiHeadAttention
from .masks import Causal, Mask, Padding, Window
from .show import show
from .trace import Trace
from .weights import ColumnWeights, RowWeights

__all__ = [
    "Causal",
    "ColumnWeights",
    "FastMultiHeadAttention",
    "Mask",
    "MultiHeadAttention",
    "Padding",
    "RowWeights",
    "Trace",
    "Window",
    "show",
]
