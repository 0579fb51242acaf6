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
CURVES = [  # colour, dashes and marker of lines that stand for none of these: told apart without colour, too
    ("#1F2F4F", "-", "o"),
    ("#555555", "--", "s"),
    ("#5B7FB5", ":", "^"),
    ("#8C3B00", "-.", "D"),
]
WEIGHTS = matplotlib.colors.LinearSegmentedColormap.from_list("weights", ["#FFFFFF", "#8FA3BF", "#1F2F4F"])
SIGNED = matplotlib.colors.LinearSegmentedColormap.from_list(
    "signed",
    ["#8C3B00", "#FFFFFF", "#1F2F4F"],
    N=257,  # an odd number, so that zero is white
)


def head_color(head: int) -> str:
    """The colour of a head throughout the book; after four they start again."""
    return HEAD_COLORS[head % len(HEAD_COLORS)]


def draw_grid(
    array: Array,
    x: float,
    y: float,
    color: str,
    ax: Axes,
    lines: bool = True,
    weights: bool = False,
    limit: float | None = None,
) -> None:
    """Draw a matrix of unit cells with its upper left corner at (x, y), in a frame of the given colour.

    Parameters
    ----------
    weights
        Whether the numbers are attention weights, shaded from 0 to 1. Others are signed: white at zero, and as dark
        below it as above.
    limit
        The size of a signed number that is shaded most; the largest of the array if left out. Grids to be compared
        have one limit.
    """
    rows, columns = array.shape
    reach = np.abs(array).max() if limit is None else limit
    ax.pcolormesh(
        x + np.arange(columns + 1),
        y - np.arange(rows + 1),
        array,
        cmap=WEIGHTS if weights else SIGNED,
        vmin=0 if weights else -(reach or 1),
        vmax=1 if weights else reach or 1,
        edgecolors="white",
        linewidth=0.8 if lines else 0,
    )
    ax.plot([x, x + columns, x + columns, x, x], [y, y, y - rows, y - rows, y], color=color, linewidth=1.4)


def name_grid(name: str, rows: int, columns: int, x_left: float, x_right: float, y: float, ax: Axes) -> None:
    ax.text((x_left + x_right) / 2, y + 0.5, f"{name}\n{rows} × {columns}", ha="center", va="bottom")


def frame(ax: Axes) -> Axes:
    ax.set_aspect("equal")
    ax.axis("off")
    ax.use_sticky_edges = False  # or the outermost lines would be cut in half
    ax.margins(0.01)
    return ax
