"""Multi-head attention in NumPy, in both conventions, every equation tested."""

from .fast import FastMultiHeadAttention
from .layer import MultiHeadAttention
from .masks import Causal, Documents, Mask, Padding, Prefix, Window
from .printing import show
from .trace import Trace
from .weights import ColumnWeights, RowWeights

__all__ = [
    "Causal",
    "ColumnWeights",
    "Documents",
    "FastMultiHeadAttention",
    "Mask",
    "MultiHeadAttention",
    "Padding",
    "Prefix",
    "RowWeights",
    "Trace",
    "Window",
    "__version__",
    "show",
]

__version__ = "0.2.0.dev0"
