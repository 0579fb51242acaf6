"""Numbers over numbers: lines, curves and bars."""

from matplotlib.axes import Axes
from numpy import ndarray as Array

from .style import HEAD_COLORS, head_color


def draw_curves(x: Array, curves: dict[str, Array], ax: Axes) -> Axes:
    """Draw curves over powers of two, each in the colour in which a legend names it."""
    draw_lines(x, curves, ax)
    for line in ax.lines:
        line.set(marker="o", markersize=4)
    ax.set_xscale("log", base=2)
    ax.set_xticks(x, [f"{tick:g}" for tick in x])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    return ax


def draw_lines(x: Array, lines: dict[str, Array], ax: Axes) -> Axes:
    """Draw lines over one quantity, each in the colour in which a legend names it."""
    for number, (name, y) in enumerate(lines.items()):
        ax.plot(x, y, color=head_color(number), label=name)
    ax.legend()
    return ax


def draw_bars(values: dict[str, float], ax: Axes) -> Axes:
    """Draw one horizontal bar for each name, with its value beside it."""
    names = list(values)
    ax.barh(names, [values[name] for name in names], color=HEAD_COLORS[0], height=0.6)
    for place, name in enumerate(names):
        ax.annotate(
            f"{values[name]:.1f}", (values[name], place), xytext=(4, 0), textcoords="offset points", va="center"
        )
    ax.invert_yaxis()
    ax.margins(x=0.12)
    return ax
