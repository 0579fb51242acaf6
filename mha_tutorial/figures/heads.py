"""What heads do: block products, arrows, and a whole layer."""

import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from ..trace import Trace
from ..weights import ColumnWeights
from .style import NEUTRAL, draw_grid, frame, head_color, name_grid


def draw_spectra(spectra: Array, rank: int, ax: Axes) -> Axes:
    """Draw the singular values of a matrix per head, and where they end if its rank is `rank`.

    Parameters
    ----------
    spectra
        ``(h, values)``, from large to small.
    """
    for head, values in enumerate(spectra):
        ax.plot(
            range(1, len(values) + 1),
            values,
            color=head_color(head),
            marker="o",
            markersize=4,
            label=f"head {head + 1}",
        )
    ax.axvline(rank + 0.5, color=NEUTRAL, linestyle="--", linewidth=1.2)
    ax.annotate(f"rank {rank}", (rank + 0.7, spectra.max()), color=NEUTRAL, va="top")
    ax.set(xlabel="number of the singular value", ylabel="size")
    ax.legend()
    return ax


def draw_contributions(parts: Array, ax: Axes) -> Axes:
    """Draw what each head writes for one token as arrows, one after the other, and their sum.

    Parameters
    ----------
    parts
        ``(h, 2)``: a head's part of the output, a row each.
    """
    start = np.zeros(2)
    for head, part in enumerate(parts):
        color = head_color(head)
        ax.annotate("", start + part, start, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 2.5})
        middle = start + part / 2
        text = f"head {head + 1} writes\n({part[0]:g}, {part[1]:g})"
        ax.annotate(text, middle, xytext=(-10, 0), textcoords="offset points", ha="right", color=color)
        start = start + part
    ax.annotate("", start, (0, 0), arrowprops={"arrowstyle": "-|>", "color": NEUTRAL, "linewidth": 2.5, "ls": "--"})
    text = f"their sum, the output\n({start[0]:g}, {start[1]:g})"
    ax.annotate(text, start / 2, xytext=(12, -20), textcoords="offset points", color=NEUTRAL)
    ax.set_xticks(range(int(start[0]) + 2))
    ax.set_xlim(-2.4, start[0] + 1.5)
    ax.set_ylim(-0.3, start[1] + 0.3)
    ax.set(xlabel="first output", ylabel="second output")
    return ax


def draw_product(left: list[Array], right: list[Array], names: tuple[str, str, str], ax: Axes) -> Axes:
    """Draw a product of block matrices as grids, each block in the colour of its head.

    Blocks of the left factor stand side by side and those of the right one below each other, so that the product
    is the sum over the blocks. One block each makes an ordinary product, in a neutral colour.

    Parameters
    ----------
    names
        What to write above the left factor, the right factor and the product.
    """
    product = sum(a @ b for a, b in zip(left, right, strict=True))
    colors = [head_color(head) for head in range(len(left))] if len(left) > 1 else [NEUTRAL]
    gap, x = 1.2, 0.0
    for block, color in zip(left, colors, strict=True):
        draw_grid(block, x, 0, color, ax)
        x += block.shape[1]
    name_grid(names[0], left[0].shape[0], sum(a.shape[1] for a in left), 0, x, 0, ax)
    x += gap
    y, width = 0.0, right[0].shape[1]
    for block, color in zip(right, colors, strict=True):
        draw_grid(block, x, y, color, ax)
        y -= block.shape[0]
    name_grid(names[1], -int(y), width, x, x + width, 0, ax)
    ax.text(x - gap / 2, -product.shape[0] / 2, "·", ha="center", va="center", fontsize=15)
    ax.text(x + width + gap, -product.shape[0] / 2, "=", ha="center", va="center", fontsize=15)
    x += width + 2 * gap
    draw_grid(product, x, 0, NEUTRAL, ax)
    name_grid(names[2], *product.shape, x, x + product.shape[1], 0, ax)
    return frame(ax)


def draw_multi_head(X: Array, weights: ColumnWeights, trace: Trace, ax: Axes) -> Axes:
    """Draw one pass of self-attention from top to bottom, every cell shaded by its number.

    Parameters
    ----------
    X
        The tokens as columns.
    weights
        The layer, without biases.
    trace
        What ``column.multi_head(X, X, X, weights)`` returns.
    """
    d_model, n = X.shape
    one_head = 3 * n + 3.5  # the width that one head takes, and the gap behind it
    middle = (weights.h * one_head - 1.5) / 2
    below_X = -d_model - 5.2  # where the projections begin; the other rows follow from above to below
    below_projections = below_X - max(weights.d_k, weights.d_v) - 3.2
    below_attention = below_projections - n - 3.2
    below_heads = below_attention - weights.d_v - 3.2
    below_parts = below_heads - d_model - 3.6

    draw_grid(X, middle - n / 2, 0, NEUTRAL, ax)
    ax.text(middle - n / 2 - 0.6, -d_model / 2, f"{n} tokens,\n{d_model} numbers each", ha="right", va="center")
    ax.text(middle + n / 2 + 0.6, -d_model / 2, "$X$", ha="left", va="center", fontsize=13)
    for head in range(weights.h):
        color, number = head_color(head), head + 1
        left = head * one_head
        centre = left + (3 * n + 2) / 2
        q, k, v = (left + n / 2 + place * (n + 1) for place in range(3))

        def join(*points, color=color):
            ax.plot(*zip(*points, strict=True), color=color, linewidth=1.2)

        join((middle, -d_model - 0.3), (centre, below_X + 3.2))
        ax.text(centre, below_X + 2.6, f"head {number}", ha="center", va="center", color=color, fontsize=12)
        for x, name, step in zip((q, k, v), "QKV", trace[:3], strict=True):
            draw_grid(step[head * len(step) // weights.h], x - n / 2, below_X, color, ax)
            ax.text(x, below_X + 1.1, f"$W_{number}^{name} X$", ha="center", va="center")
            join(
                (x, below_X - step.shape[1] - 0.2),
                (x, below_projections + 1.7) if name != "V" else (x, below_attention + 1.7),
            )
        between = (q + k) / 2
        draw_grid(trace.attention[head], between - n / 2, below_projections, color, ax, weights=True)
        ax.text(between, below_projections + 0.8, "weights: softmax", ha="center", va="center", fontsize=10)
        join((between, below_projections - n - 0.2), (between, below_attention + 1.7))
        draw_grid(trace.heads[head], centre - n / 2, below_attention, color, ax)
        ax.text(
            centre,
            below_attention + 0.8,
            f"head$_{number}$: averages of values",
            ha="center",
            va="center",
            fontsize=10,
        )
        join((centre, below_attention - weights.d_v - 0.2), (centre, below_heads + 1.9))
        draw_grid(weights.W_o[head] @ trace.heads[head], centre - n / 2, below_heads, color, ax)
        ax.text(centre, below_heads + 0.9, f"it writes $W_{number}^O$ head$_{number}$", ha="center", va="center")
        join((centre, below_heads - d_model - 0.3), (middle, below_parts + 1.5))
    ax.text(middle, below_parts + 0.9, "+", ha="center", va="center", fontsize=15)
    draw_grid(trace.output, middle - n / 2, below_parts, NEUTRAL, ax)
    summary = "output: the sum\nof what the\nheads write"
    ax.text(middle + n / 2 + 0.6, below_parts - d_model / 2, summary, ha="left", va="center")
    return frame(ax)
