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
    return frame(_Pass(tokens, X, weights, trace, ax).draw())


class _Pass:
    """One pass of self-attention on paper: where its parts lie, in cells, and how they are drawn."""

    def __init__(self, tokens: list[str], X: Array, weights: RowWeights, trace: Trace, ax: Axes):
        self.tokens, self.X, self.weights, self.trace, self.ax = tokens, X, weights, trace, ax
        self.written = trace.heads @ weights.W_o
        n = len(X)
        self.words = 0.62 * max(map(len, tokens)) + 0.4  # the room that the longest word takes
        self.strips = 2 * weights.d_k + weights.d_v + 2.2
        self.one_head = max(self.words + n, self.strips) + 2.0  # with the gap after it
        self.middle = (weights.h * self.one_head - 2.0) / 2
        self.below_projections = -n - 5.2
        self.below_weights = self.below_projections - n - self.words - 2.6
        self.below_parts = self.below_weights - n - 3.2
        self.below_output = self.below_parts - n - 3.6
        self.limits = {
            "inputs": np.abs(X).max(),
            "projected": max(np.abs(step).max() for step in trace[:3]),
            "written": max(np.abs(self.written).max(), np.abs(trace.output).max()),
        }

    def draw(self) -> Axes:
        n, d_model = self.X.shape
        left, right = self.middle - d_model / 2, self.middle + d_model / 2 + 0.5
        draw_grid(self.X, left, 0, NEUTRAL, self.ax, limit=self.limits["inputs"])
        self.list_words(left, 0)
        self.name(right, -n / 2, f"$X$: a row of\n{d_model} numbers\nfor each word", ha="left")
        for head in range(self.weights.h):
            self.draw_head(head)
        self.name(self.middle, self.below_output + 0.8, "+", fontsize=15)
        draw_grid(self.trace.output, left, self.below_output, OUTPUT, self.ax, limit=self.limits["written"])
        self.list_words(left, self.below_output)
        what = "output: the sum of\nwhat the heads write"
        self.name(right, self.below_output - n / 2, what, OUTPUT, ha="left")
        return self.ax

    def draw_head(self, head: int) -> None:
        """Draw the projections, the weights and the part of the output of one head, below one another."""
        n, d_model = self.X.shape
        color = head_color(head)
        centre = head * self.one_head + (self.one_head - 2.0) / 2
        self.join((self.middle, -n - 0.3), (centre, -n - 1.9), color)
        self.name(centre, -n - 2.6, f"head {head + 1}", color)
        x = centre - self.strips / 2
        for letter, step, shade in zip(("$Q$", "$K$", "$V$"), self.trace[:3], (QUERY, KEY, VALUE), strict=True):
            block = step[head * len(step) // self.weights.h]
            draw_grid(block, x, self.below_projections, shade, self.ax, limit=self.limits["projected"])
            self.name(x + block.shape[1] / 2, self.below_projections + 0.7, letter, shade)
            x += block.shape[1] + 1.1
        above_words = self.below_weights + self.words + 1.0
        self.join((centre, self.below_projections - n - 0.2), (centre, above_words), color)
        self.draw_weights(head, centre - (self.words + n) / 2 + self.words)
        self.join((centre, self.below_weights - n - 0.2), (centre, self.below_parts + 1.7), color)
        part = self.written[head]
        draw_grid(part, centre - d_model / 2, self.below_parts, color, self.ax, limit=self.limits["written"])
        self.name(centre, self.below_parts + 0.9, f"head {head + 1} writes", color)
        self.join((centre, self.below_parts - n - 0.3), (self.middle, self.below_output + 1.6), color)

    def draw_weights(self, head: int, x: float) -> None:
        """Draw the weights of one head with the words along both axes."""
        draw_grid(self.trace.attention[head], x, self.below_weights, head_color(head), self.ax, weights=True)
        self.list_words(x, self.below_weights)
        for j, token in enumerate(self.tokens):
            self.name(x + j + 0.5, self.below_weights + 0.25, token, rotation=90, va="bottom")
        self.name(x - self.words / 2, self.below_weights + 0.9, "query ↓", QUERY)
        self.name(x - self.words / 2, self.below_weights + 2.4, "key →", KEY)

    def join(self, start, end, color) -> None:
        self.ax.plot(*zip(start, end, strict=True), color=color, linewidth=1.2)

    def name(self, x: float, y: float, text: str, color="black", **options) -> None:
        self.ax.text(x, y, text, **{"ha": "center", "va": "center", "color": color, **options})

    def list_words(self, x: float, y: float) -> None:
        for i, token in enumerate(self.tokens):
            self.name(x - 0.3, y - i - 0.5, token, ha="right")


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
