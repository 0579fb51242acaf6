"""The figures of the book: each function draws into one Axes, from a `Trace` or from plain arrays."""

from .._extras import require

require("mha_tutorial.figures", "matplotlib")

from .attention import draw_attention, draw_hull, draw_lookup, draw_moves  # noqa: E402
from .block import draw_wiring  # noqa: E402
from .checks import draw_fingerprints  # noqa: E402
from .curves import draw_bars, draw_curves, draw_distributions, draw_lines, draw_ratios, draw_weights  # noqa: E402
from .decoding import draw_slots  # noqa: E402
from .devices import draw_ring, draw_shards  # noqa: E402
from .flash import draw_roofline, draw_running_maximum, draw_tiles  # noqa: E402
from .heads import (  # noqa: E402
    draw_contributions,
    draw_conventions,
    draw_coordinates,
    draw_cross_attention,
    draw_growth,
    draw_missed,
    draw_product,
    draw_residual_stream,
    draw_sharing,
    draw_steps,
    draw_two_averages,
    draw_two_heads,
)
from .overview import draw_block, draw_layer, draw_sizes  # noqa: E402
from .positions import draw_heat, draw_turns  # noqa: E402
from .style import head_color  # noqa: E402
from .tensors import draw_backward, draw_flow, draw_mask_axes, draw_memory, draw_packed, draw_shapes, draw_visible  # noqa: E402
from .torch import draw_modules, draw_pairs, draw_ranges, draw_strips  # noqa: E402
from .trained import draw_all_heads, draw_head_scores, draw_sets  # noqa: E402
from .training import draw_bands, draw_patterns  # noqa: E402

__all__ = [
    "draw_all_heads",
    "draw_attention",
    "draw_backward",
    "draw_bands",
    "draw_bars",
    "draw_block",
    "draw_contributions",
    "draw_conventions",
    "draw_coordinates",
    "draw_cross_attention",
    "draw_curves",
    "draw_distributions",
    "draw_fingerprints",
    "draw_flow",
    "draw_growth",
    "draw_head_scores",
    "draw_heat",
    "draw_hull",
    "draw_layer",
    "draw_lines",
    "draw_lookup",
    "draw_mask_axes",
    "draw_memory",
    "draw_missed",
    "draw_modules",
    "draw_moves",
    "draw_packed",
    "draw_pairs",
    "draw_patterns",
    "draw_product",
    "draw_ranges",
    "draw_ratios",
    "draw_residual_stream",
    "draw_ring",
    "draw_roofline",
    "draw_running_maximum",
    "draw_sets",
    "draw_shapes",
    "draw_shards",
    "draw_sharing",
    "draw_sizes",
    "draw_slots",
    "draw_steps",
    "draw_strips",
    "draw_tiles",
    "draw_turns",
    "draw_two_averages",
    "draw_two_heads",
    "draw_visible",
    "draw_weights",
    "draw_wiring",
    "head_color",
]
