"""The figures of the book: each function draws into one Axes, from a `Trace` or from plain arrays."""

from .attention import draw_attention, draw_hull, draw_moves
from .curves import draw_bars, draw_curves, draw_lines
from .heads import draw_contributions, draw_multi_head, draw_product, draw_spectra
from .style import head_color
from .tensors import draw_memory, draw_shapes, draw_visible

__all__ = [
    "draw_attention",
    "draw_bars",
    "draw_contributions",
    "draw_curves",
    "draw_hull",
    "draw_lines",
    "draw_memory",
    "draw_moves",
    "draw_multi_head",
    "draw_product",
    "draw_shapes",
    "draw_spectra",
    "draw_visible",
    "head_color",
]
