"""How attention is told where its tokens are: what both conventions share, and one file for each of them."""

from . import column, row
from .common import Pairs, alibi_slopes, frequencies, pair_order, relative_buckets

__all__ = ["Pairs", "alibi_slopes", "column", "frequencies", "pair_order", "relative_buckets", "row"]
