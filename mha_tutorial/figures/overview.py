"""The whole at a glance: a layer on a sentence, the block it sits in, the sizes of its matrices."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle
from numpy import ndarray as Array

from ..trace import Trace
from ..weights import RowWeights
from .style import KEY, NEUTRAL, OUTPUT, QUERY, VALUE, draw_grid, frame, head_color


def draw_layer(tokens: list[str], X: Array, weights: RowWeights, trace: Trace, ax: Axes) -> Axes:
    """Draw one pass of self-attention over a sentence from top to bottom, with the words along its axes.

    Parameters
    ----------
    X
        The tokens as rows, each as wide as the output.
    weights
        The layer, without biases.
    trace
        What ``row.multi_head(X, X, X, weights)`` returns.
    """
    n, d_model = X.shape
    words = 0.62 * max(map(len, tokens)) + 0.4  # the room that the longest word takes, in cells
    strips = 2 * weights.d_k + weights.d_v + 2.2
    one_head = max(words + n, strips) + 2.0  # the width that one head takes, and the gap after it
    middle = (weights.h * one_head - 2.0) / 2
    written = trace.heads @ weights.W_o
    limits = {
        "inputs": np.abs(X).max(),
        "projected": max(np.abs(step).max() for step in trace[:3]),
        "written": max(np.abs(written).max(), np.abs(trace.output).max()),
    }

    def join(*points, color=NEUTRAL):
        ax.plot(*zip(*points, strict=True), color=color, linewidth=1.2)

    def name(x, y, text, color="black", **options):
        ax.text(x, y, text, **{"ha": "center", "va": "center", "color": color, **options})

    def list_words(x, y):
        for i, token in enumerate(tokens):
            name(x - 0.3, y - i - 0.5, token, ha="right")

    below_projections = -n - 5.2
    below_weights = below_projections - n - words - 2.6
    below_parts = below_weights - n - 3.2
    below_output = below_parts - n - 3.6

    draw_grid(X, middle - d_model / 2, 0, NEUTRAL, ax, limit=limits["inputs"])
    list_words(middle - d_model / 2, 0)
    name(middle + d_model / 2 + 0.5, -n / 2, f"$X$: a row of\n{d_model} numbers\nfor each word", ha="left")
    for head in range(weights.h):
        color, left = head_color(head), head * one_head
        centre = left + (one_head - 2.0) / 2
        join((middle, -n - 0.3), (centre, -n - 1.9), color=color)
        name(centre, -n - 2.6, f"head {head + 1}", color)
        x = centre - strips / 2
        for letter, step, shade in zip(("$Q$", "$K$", "$V$"), trace[:3], (QUERY, KEY, VALUE), strict=True):
            block = step[head * len(step) // weights.h]
            draw_grid(block, x, below_projections, shade, ax, limit=limits["projected"])
            name(x + block.shape[1] / 2, below_projections + 0.7, letter, shade)
            x += block.shape[1] + 1.1
        grid = centre - (words + n) / 2 + words
        join((centre, below_projections - n - 0.2), (centre, below_weights + words + 1.0), color=color)
        draw_grid(trace.attention[head], grid, below_weights, color, ax, weights=True)
        list_words(grid, below_weights)
        for j, token in enumerate(tokens):
            name(grid + j + 0.5, below_weights + 0.25, token, rotation=90, va="bottom")
        name(grid - words / 2, below_weights + 0.9, "query ↓", QUERY)
        name(grid - words / 2, below_weights + 2.4, "key →", KEY)
        join((centre, below_weights - n - 0.2), (centre, below_parts + 1.7), color=color)
        draw_grid(written[head], centre - d_model / 2, below_parts, color, ax, limit=limits["written"])
        name(centre, below_parts + 0.9, f"head {head + 1} writes", color)
        join((centre, below_parts - n - 0.3), (middle, below_output + 1.6), color=color)
    name(middle, below_output + 0.8, "+", fontsize=15)
    draw_grid(trace.output, middle - d_model / 2, below_output, OUTPUT, ax, limit=limits["written"])
    list_words(middle - d_model / 2, below_output)
    name(
        middle + d_model / 2 + 0.5,
        below_output - n / 2,
        "output: the sum of\nwhat the heads write",
        OUTPUT,
        ha="left",
    )
    return frame(ax)


def draw_block(parts: dict[str, int], ax: Axes) -> Axes:
    """Draw a transformer block as boxes in the order of the computation, as high as their share of the parameters.

    Parameters
    ----------
    parts
        How many parameters attention and the feed-forward network have, by what to write into their boxes.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> ax = draw_block({"attention": 4, "MLP": 8}, plt.figure().add_subplot())
    >>> [round(box.get_height(), 2) for box in ax.patches if isinstance(box, Rectangle)]
    [2.0, 4.0]
    """
    total, y = sum(parts.values()), 0.0
    ax.text(0, 0.35, "vectors of the tokens", ha="center", va="bottom")
    for (name, size), color in zip(parts.items(), (QUERY, NEUTRAL), strict=True):
        height = 6 * size / total
        top, bottom = y - 1.1, y - 1.1 - height
        _arrow((0, y + 0.2), (0, top), ax)
        ax.text(0.25, top + 0.45, "norm", ha="left", va="center", color=NEUTRAL)
        ax.add_patch(Rectangle((-2.4, bottom), 4.8, height, facecolor="none", edgecolor=color, linewidth=1.8))
        share = f"{name}\n{size / total:.0%} of the parameters"
        ax.text(0, (top + bottom) / 2, share, ha="center", va="center", color=color)
        y = bottom - 1.2
        _arrow((0, bottom), (0, y + 0.35), ax)
        ax.text(0, y, "+", ha="center", va="center", fontsize=15)
        ax.plot([0, -3.2, -3.2, -0.35], [top + 0.85, top + 0.85, y, y], color=NEUTRAL, linewidth=1.2)
        ax.text(-3.4, (top + bottom) / 2, "residual", rotation=90, ha="right", va="center", color=NEUTRAL)
        y -= 0.3
    _arrow((0, y + 0.05), (0, y - 0.6), ax)
    ax.text(0, y - 0.75, "new vectors of the tokens,\ninto the next block", ha="center", va="top")
    ax.set(xlim=(-4.4, 4.4), ylim=(y - 2.4, 1.1))
    ax.axis("off")
    return ax


def _arrow(start, end, ax):
    ax.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", color=NEUTRAL, mutation_scale=11, shrinkA=0, shrinkB=0)
    )


def draw_sizes(shapes: dict[str, tuple[tuple[str, int], tuple[str, int], str]], ax: Axes) -> Axes:
    """Draw matrices as rectangles side by side, to one scale, with the letters of their sizes along the edges.

    Parameters
    ----------
    shapes
        For each name what its rows and its columns count, a letter and a number each, and a colour. A name that
        begins with a space has a sign in front of it instead: `` =`` is drawn as an equals sign.
    """
    x, highest = 0.0, max(rows for (_, rows), _, _ in shapes.values())
    for name, ((letter, rows), (other, columns), color) in shapes.items():
        if name.startswith(" "):
            ax.text(x, 0, name.strip(), ha="center", va="center", fontsize=13)
            x += 1.7
            continue
        ax.add_patch(Rectangle((x, -rows / 2), columns, rows, facecolor="none", edgecolor=color, linewidth=1.8))
        ax.text(x + columns / 2, 0, name, ha="center", va="center", color=color)
        ax.text(x + columns / 2, rows / 2 + 0.2, other, ha="center", va="bottom", color=NEUTRAL)
        ax.text(x - 0.2, 0, letter, ha="right", va="center", color=NEUTRAL, rotation=90)
        x += columns + 1.6
    ax.set(xlim=(-1.2, x - 1.2), ylim=(-highest / 2 - 0.3, highest / 2 + 1.4), aspect="equal")
    ax.axis("off")
    return ax
