"""The figures of the book: each function draws into one Axes, from a `Trace` or from plain arrays."""

import matplotlib.colors
import matplotlib.patches
import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from .trace import Trace
from .weights import ColumnWeights

HEAD_COLORS = ["#0072B2", "#D55E00", "#009E73", "#CC79A7"]  # told apart by colour-blind readers too
NEUTRAL = "#555555"


def head_color(head: int) -> str:
    """The colour of a head throughout the book; after four they start again."""
    return HEAD_COLORS[head % len(HEAD_COLORS)]


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


def draw_visible(masks: dict[str, Array], axes: Array) -> Array:
    """Draw boolean masks side by side, a row for each query: filled where it may see a key.

    Parameters
    ----------
    axes
        As many Axes as masks.
    """
    for ax, (name, visible) in zip(np.ravel(axes), masks.items(), strict=True):
        ax.pcolormesh(visible, cmap="Blues", vmin=0, vmax=1.4, edgecolors="white", linewidth=1)
        ax.invert_yaxis()
        ax.set_aspect("equal")
        ax.set_title(name)
        ax.set(xlabel="key", ylabel="query", xticks=[], yticks=[])
        ax.spines[:].set(visible=True, color=NEUTRAL)
    return axes


def draw_memory(arrays: dict[str, Array], owners: dict[str, Array], axes: Array) -> Array:
    """Draw two-dimensional arrays as they are read, each cell in the colour of the token it belongs to.

    Parameters
    ----------
    arrays
        What to write into the cells.
    owners
        The number of a token for each cell.
    axes
        As many Axes as arrays.
    """
    for ax, name in zip(np.ravel(axes), arrays, strict=True):
        array, owner = arrays[name], owners[name]
        rows, columns = array.shape
        for (i, j), text in np.ndenumerate(array):
            shade = matplotlib.colors.to_rgba(head_color(int(owner[i, j])), 0.3)
            ax.add_patch(matplotlib.patches.Rectangle((j, i), 1, 1, facecolor=shade, edgecolor="white"))
            ax.text(j + 0.5, i + 0.5, str(text), ha="center", va="center", fontsize=9)
        ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
        ax.set_title(name, loc="left")
        ax.axis("off")
    return axes


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


def draw_moves(before: Array, after: dict[str, Array], ax: Axes) -> Axes:
    """Draw where attention moves one vector, in two of its coordinates, in several surroundings."""
    ax.scatter(*before, s=60, color=NEUTRAL, zorder=3)
    ax.annotate("before", before, xytext=(8, 4), textcoords="offset points", color=NEUTRAL)
    for number, (name, point) in enumerate(after.items()):
        color = head_color(number)
        ax.annotate("", point, before, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 2})
        above = point[1] > before[1]
        offset = (0, 8 if above else -18)
        ax.annotate(name, point, xytext=offset, textcoords="offset points", ha="center", color=color)
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
        _draw_grid(block, x, 0, color, ax)
        x += block.shape[1]
    _name(names[0], left[0].shape[0], sum(a.shape[1] for a in left), 0, x, 0, ax)
    x += gap
    y, width = 0.0, right[0].shape[1]
    for block, color in zip(right, colors, strict=True):
        _draw_grid(block, x, y, color, ax)
        y -= block.shape[0]
    _name(names[1], -int(y), width, x, x + width, 0, ax)
    ax.text(x - gap / 2, -product.shape[0] / 2, "·", ha="center", va="center", fontsize=15)
    ax.text(x + width + gap, -product.shape[0] / 2, "=", ha="center", va="center", fontsize=15)
    x += width + 2 * gap
    _draw_grid(product, x, 0, NEUTRAL, ax)
    _name(names[2], *product.shape, x, x + product.shape[1], 0, ax)
    return _frame(ax)


def draw_shapes(steps: dict[str, Array], ax: Axes) -> Axes:
    """Draw how a text changes its shape on the way through a layer, from top to bottom.

    Parameters
    ----------
    steps
        What `steps.eleven_steps` returns. The first text of the batch is drawn; steps that leave every
        shape alone are left out.
    """
    rows = {
        "tokens": [steps["tokens"][:1]],
        "project": [tokens[:1] for tokens in steps["project"]],
        "transpose": [heads[0] for heads in steps["transpose"]],
        "softmax": [steps["softmax"][0]],
        "average": [steps["average"][0]],
        "merge": [steps["merge"][:1]],
        "output": [steps["output"][:1]],
    }
    gap, between = 1.0, 5.0  # behind a head, and behind what belongs to queries, keys or values
    widths = {
        name: sum(len(part) * (part.shape[-1] + gap) for part in parts) + (len(parts) - 1) * between
        for name, parts in rows.items()
    }
    y, widest = 0.0, max(widths.values())
    for name, parts in rows.items():
        x = (widest - widths[name]) / 2
        shape = " × ".join(str(length) for length in steps[name].shape)
        ax.text(-3, y - parts[0].shape[-2] / 2, f"{name}\n{shape}", ha="right", va="center", fontsize=9)
        for part, whose in zip(parts, ("queries", "keys", "values"), strict=False):
            if name == "project":
                ax.text(x + part.shape[-1] / 2, y + 0.6, whose, ha="center", va="bottom", fontsize=9)
            for head, block in enumerate(part):
                _draw_grid(block, x, y, head_color(head) if len(part) > 1 else NEUTRAL, ax, lines=False)
                x += block.shape[1] + gap
            x += between
        y -= parts[0].shape[-2] + 4.5
    return _frame(ax)


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

    _draw_grid(X, middle - n / 2, 0, NEUTRAL, ax)
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
            _draw_grid(step[head * len(step) // weights.h], x - n / 2, below_X, color, ax)
            ax.text(x, below_X + 1.1, f"$W_{number}^{name} X$", ha="center", va="center")
            join(
                (x, below_X - step.shape[1] - 0.2),
                (x, below_projections + 1.7) if name != "V" else (x, below_attention + 1.7),
            )
        between = (q + k) / 2
        _draw_grid(trace.attention[head], between - n / 2, below_projections, color, ax)
        ax.text(between, below_projections + 0.8, "weights: softmax", ha="center", va="center", fontsize=10)
        join((between, below_projections - n - 0.2), (between, below_attention + 1.7))
        _draw_grid(trace.heads[head], centre - n / 2, below_attention, color, ax)
        ax.text(
            centre,
            below_attention + 0.8,
            f"head$_{number}$: averages of values",
            ha="center",
            va="center",
            fontsize=10,
        )
        join((centre, below_attention - weights.d_v - 0.2), (centre, below_heads + 1.9))
        _draw_grid(weights.W_o[head] @ trace.heads[head], centre - n / 2, below_heads, color, ax)
        ax.text(centre, below_heads + 0.9, f"it writes $W_{number}^O$ head$_{number}$", ha="center", va="center")
        join((centre, below_heads - d_model - 0.3), (middle, below_parts + 1.5))
    ax.text(middle, below_parts + 0.9, "+", ha="center", va="center", fontsize=15)
    _draw_grid(trace.output, middle - n / 2, below_parts, NEUTRAL, ax)
    summary = "output: the sum\nof what the\nheads write"
    ax.text(middle + n / 2 + 0.6, below_parts - d_model / 2, summary, ha="left", va="center")
    return _frame(ax)


def _draw_grid(array: Array, x: float, y: float, color: str, ax: Axes, lines: bool = True) -> None:
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


def _name(name: str, rows: int, columns: int, x_left: float, x_right: float, y: float, ax: Axes) -> None:
    ax.text((x_left + x_right) / 2, y + 0.5, f"{name}\n{rows} × {columns}", ha="center", va="bottom")


def _frame(ax: Axes) -> Axes:
    ax.set_aspect("equal")
    ax.axis("off")
    ax.use_sticky_edges = False  # or the outermost lines would be cut in half
    ax.margins(0.01)
    return ax
