"""What the figures of the book have in common: one meaning for each colour, and grids of numbers.

Queries, keys, values and outputs have a colour each, whatever is drawn; heads have others. Weights are shaded from
0 to 1, signed numbers by a scale that is white at zero and as strong below as above it.
"""

import matplotlib.colors
import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

QUERY, KEY, VALUE, OUTPUT = "#0072B2", "#B84A00", "#00785A", "#7A3E8E"  # told apart by colour-blind readers too
HEAD_COLORS = ["#A8326E", "#5E6B00", "#3F51A3", "#8A5A1B"]
NEUTRAL = "#555555"
WEIGHTS = matplotlib.colors.LinearSegmentedColormap.from_list("weights", ["#FFFFFF", "#8FA3BF", "#1F2F4F"])
SIGNED = matplotlib.colors.LinearSegmentedColormap.from_list("signed", ["#8C3B00", "#FFFFFF", "#1F2F4F"])


def head_color(head: int) -> str:
    """The colour of a head throughout the book; after four they start again."""
    return HEAD_COLORS[head % len(HEAD_COLORS)]


def draw_grid(array: Array, x: float, y: float, color: str, ax: Axes, lines: bool = True) -> None:
    """Draw a matrix of unit cells with its upper left corner at (x, y), darker where it is larger."""
    low, high = array.min(), array.max()
    share = (array - low) / (high - low) if high > low else np.full(array.shape, 0.5)
    shades = matplotlib.colors.LinearSegmentedColormap.from_list("head", ["white", color])
    rows, columns = array.shape
    ax.pcolormesh(
        x + np.arange(columns + 1),
        y - np.arange(rows + 1),
        0.08 + 0.8 * share,
        cmap=shades,
        vmin=0,
        vmax=1,
        edgecolors="white",
        linewidth=0.8 if lines else 0,
    )
    ax.plot([x, x + columns, x + columns, x, x], [y, y, y - rows, y - rows, y], color=color, linewidth=1)


def name_grid(name: str, rows: int, columns: int, x_left: float, x_right: float, y: float, ax: Axes) -> None:
    ax.text((x_left + x_right) / 2, y + 0.5, f"{name}\n{rows} × {columns}", ha="center", va="bottom")


def frame(ax: Axes) -> Axes:
    ax.set_aspect("equal")
    ax.axis("off")
    ax.use_sticky_edges = False  # or the outermost lines would be cut in half
    ax.margins(0.01)
    return ax
