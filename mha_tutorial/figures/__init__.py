"""The figures of the book: each function draws into one Axes, from a `Trace` or from plain arrays."""

from .._extras import require

require("mha_tutorial.figures", "matplotlib")

from .attention import draw_attention, draw_hull, draw_moves  # noqa: E402
from .curves import draw_bars, draw_curves, draw_lines  # noqa: E402
from .heads import draw_contributions, draw_multi_head, draw_product, draw_spectra  # noqa: E402
from .style import head_color  # noqa: E402
from .tensors import draw_memory, draw_shapes, draw_visible  # noqa: E402

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
