"""The figures of the book: each function draws into one Axes, from a `Trace` or from plain arrays."""

import matplotlib.colors
import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from .trace import Trace
from .weights import ColumnWeights

HEAD_COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]  # told apart by colour-blind readers too
NEUTRAL = "#555555"


def draw_attention(attention: Array, queries: list[str], keys: list[str], ax: Axes) -> Axes:
    """Draw the weights of one head as a table: a row for each query, a column for each key.

    Parameters
    ----------
    attention
        ``(n, m)``, in the row convention whatever the reader's: rows are read from left to right.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> ax = draw_attention(np.eye(2), ["a", "b"], ["a", "b"], plt.figure().add_subplot())
    >>> [text.get_text() for text in ax.texts]
    ['1.00', '0.00', '0.00', '1.00']
    """
    ax.imshow(attention, vmin=0, vmax=1, aspect="auto")
    for (i, j), weight in np.ndenumerate(attention):
        ax.text(j, i, f"{weight:.2f}", ha="center", va="center", color="white" if weight > 0.6 else "black")
    ax.set_xticks(range(len(keys)), keys)
    ax.set_yticks(range(len(queries)), queries)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("key", labelpad=8)
    ax.set_ylabel("query")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def draw_hull(values: Array, answers: Array, labels: list[str], ax: Axes) -> Axes:
    """Draw values as the corners of a region, and the weighted averages that wander inside it.

    Parameters
    ----------
    values
        ``(m, 2)``, a value a row, in the order in which they are joined.
    answers
        ``(n, 2)``, an average a row, joined by a line in their order.
    labels
        What to write beside each answer, nothing where empty.
    """
    ax.fill(*values.T, color=NEUTRAL, alpha=0.1, linewidth=0)
    ax.scatter(*values.T, s=60, color=NEUTRAL, zorder=3)
    outwards = np.sign(values - values.mean(axis=0))
    for j, (value, direction) in enumerate(zip(values, outwards, strict=True)):
        offset = (0, 12 * direction[1] - 4)
        ax.annotate(f"value {j + 1}", value, xytext=offset, textcoords="offset points", ha="center")
    ax.plot(*answers.T, color=HEAD_COLORS[0])
    for answer, label in zip(answers, labels, strict=True):
        if label:
            ax.scatter(*answer, s=40, color=HEAD_COLORS[0], zorder=3)
            ax.annotate(
                label, answer, xytext=(-6, -14), textcoords="offset points", ha="right", color=HEAD_COLORS[0]
            )
    ax.margins(0.2)
    ax.set_aspect("equal")
    ax.set(xlabel="first number", ylabel="second number")
    return ax


def draw_curves(x: Array, curves: dict[str, Array], ax: Axes) -> Axes:
    """Draw curves over a doubling quantity, each named at its end."""
    for color, (name, y) in zip(HEAD_COLORS, curves.items(), strict=False):
        ax.plot(x, y, color=color, marker="o", markersize=4)
        ax.annotate(name, (x[-1], y[-1]), xytext=(-2, 8), textcoords="offset points", ha="right", color=color)
    ax.set_xscale("log", base=2)
    ax.set_xticks(x, [f"{tick:g}" for tick in x])
    ax.minorticks_off()
    ax.set_ylim(bottom=0)
    return ax


def draw_moves(before: Array, after: dict[str, Array], ax: Axes) -> Axes:
    """Draw where attention moves one vector, in two of its coordinates, in several surroundings."""
    ax.scatter(*before, s=60, color=NEUTRAL, zorder=3)
    ax.annotate("before", before, xytext=(8, 4), textcoords="offset points", color=NEUTRAL)
    for color, (name, point) in zip(HEAD_COLORS, after.items(), strict=False):
        ax.annotate("", point, before, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 2})
        ax.annotate(name, point, xytext=(0, -16), textcoords="offset points", ha="center", color=color)
    points = np.array([before, *after.values()])
    ax.set_xlim(points[:, 0].min() - 0.6, points[:, 0].max() + 0.6)
    ax.set_ylim(points[:, 1].min() - 0.6, points[:, 1].max() + 0.6)
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
        color = HEAD_COLORS[head]
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
    colors = HEAD_COLORS if len(left) > 1 else [NEUTRAL]
    gap, x = 1.2, 0.0
    for block, color in zip(left, colors, strict=False):
        _draw_grid(block, x, 0, color, ax)
        x += block.shape[1]
    _name(names[0], left[0].shape[0], sum(a.shape[1] for a in left), 0, x, 0, ax)
    x += gap
    y, width = 0.0, right[0].shape[1]
    for block, color in zip(right, colors, strict=False):
        _draw_grid(block, x, y, color, ax)
        y -= block.shape[0]
    _name(names[1], -int(y), width, x, x + width, 0, ax)
    ax.text(x + width + gap, -product.shape[0] / 2, "=", ha="center", va="center", fontsize=15)
    x += width + 2 * gap
    _draw_grid(product, x, 0, NEUTRAL, ax)
    _name(names[2], *product.shape, x, x + product.shape[1], 0, ax)
    return _frame(ax)


def draw_multi_head(X: Array, weights: ColumnWeights, trace: Trace, ax: Axes) -> Axes:
    """Draw one pass of self-attention from top to bottom, every grid filled with the numbers of the trace.

    Parameters
    ----------
    X
        The tokens as columns.
    weights
        At most four heads.
    trace
        What ``column.multi_head(X, X, X, weights)`` returns.
    """
    d_model, n = X.shape
    d_k, d_v = weights.d_k, weights.d_v
    column = 3 * n + 3.5  # the width that one head takes
    width = weights.h * column - 1.5
    middle, row = width / 2, 0.0

    _draw_grid(X, middle - n / 2, row, NEUTRAL, ax)
    ax.text(middle - n / 2 - 0.6, row - d_model / 2, f"{n} tokens\n{d_model} numbers each", ha="right", va="center")
    ax.text(middle + n / 2 + 0.6, row - d_model / 2, "$X$", ha="left", va="center", fontsize=13)
    top = row - d_model
    rows = {"project": top - 4.4}
    rows["attention"] = rows["project"] - max(d_k, d_v) - 3.2
    rows["head"] = rows["attention"] - n - 3.2
    rows["part"] = rows["head"] - d_v - 3.4
    rows["output"] = rows["part"] - d_model - 3.6

    for head in range(weights.h):
        color, left = HEAD_COLORS[head], head * column
        centre, number = left + (3 * n + 2) / 2, head + 1
        ax.plot([middle, centre], [top - 0.3, rows["project"] + 2.6], color=color, linewidth=1.2)
        ax.text(centre, rows["project"] + 2.0, f"head {number}", ha="center", va="center", color=color, fontsize=12)
        for place, (name, step) in enumerate({"Q": "queries", "K": "keys", "V": "values"}.items()):
            x = left + place * (n + 1)
            _draw_grid(getattr(trace, step)[head], x, rows["project"], color, ax)
            ax.text(x + n / 2, rows["project"] + 0.7, f"$W_{number}^{name}X$", ha="center", va="center")
        _draw_grid(trace.attention[head], centre - n / 2, rows["attention"], color, ax)
        ax.text(centre, rows["attention"] + 0.7, "softmax: who looks at whom", ha="center", va="center", fontsize=9)
        _draw_grid(trace.heads[head], centre - n / 2, rows["head"], color, ax)
        ax.text(centre, rows["head"] + 0.7, "average of the values", ha="center", va="center", fontsize=9)
        _draw_grid(weights.W_o[head] @ trace.heads[head], centre - n / 2, rows["part"], color, ax)
        ax.text(
            centre, rows["part"] + 0.8, f"what it writes, $W_{number}^O$head$_{number}$", ha="center", va="center"
        )
        ax.plot([centre, middle], [rows["part"] - d_model - 0.3, rows["output"] + 1.5], color=color, linewidth=1.2)
        for upper, lower in (("project", "attention"), ("attention", "head"), ("head", "part")):
            height = {"project": max(d_k, d_v), "attention": n, "head": d_v}[upper]
            ax.annotate(
                "",
                (centre, rows[lower] + 1.5),
                (centre, rows[upper] - height - 0.2),
                arrowprops={"arrowstyle": "->", "color": color},
            )
    ax.text(middle, rows["output"] + 1.0, "+", ha="center", va="center", fontsize=15)
    _draw_grid(trace.output, middle - n / 2, rows["output"], NEUTRAL, ax)
    ax.text(
        middle + n / 2 + 0.6,
        rows["output"] - d_model / 2,
        "output:\nthe sum of what\nthe heads write",
        ha="left",
        va="center",
    )
    return _frame(ax)


def _draw_grid(array: Array, x: float, y: float, color: str, ax: Axes) -> None:
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
        linewidth=0.8,
    )
    ax.plot([x, x + columns, x + columns, x, x], [y, y, y - rows, y - rows, y], color=color, linewidth=1)


def _name(name: str, rows: int, columns: int, x_left: float, x_right: float, y: float, ax: Axes) -> None:
    ax.text((x_left + x_right) / 2, y + 0.5, f"{name}\n{rows} × {columns}", ha="center", va="bottom")


def _frame(ax: Axes) -> Axes:
    ax.set_aspect("equal")
    ax.axis("off")
    ax.margins(0.02)
    return ax
