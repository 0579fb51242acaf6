"""What heads do: two averages of one sentence, block products, a whole layer, and what heads share."""

from collections.abc import Sequence

import matplotlib.colors
import matplotlib.patches
import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from ..trace import Trace
from ..weights import RowWeights
from .curves import draw_curves
from .style import KEY, NEUTRAL, OUTPUT, QUERY, VALUE, draw_grid, frame, head_color, name_grid

GAP = 1.4  # between the factors of a product, in cells


def draw_two_heads(words: Sequence[str], query: int, weights: Array, ax: Axes) -> Axes:
    """Draw where two heads look from one word: arcs above the sentence for head 1, below it for head 2.

    Parameters
    ----------
    query
        The number of the word that looks.
    weights
        ``(2, m)``: how much each head attends to each word, written beside it.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> ax = draw_two_heads(["a", "b"], 1, np.array([[1.0, 0.0], [0.5, 0.5]]), plt.figure().add_subplot())
    >>> [text.get_text() for text in ax.texts]
    ['a', 'b', 'head 1', '1', '0', 'head 2', '0.5', '0.5']
    """
    for place, word in enumerate(words):
        ax.text(place, 0, word, ha="center", va="center", weight="bold" if place == query else None)
    angles = np.linspace(0, np.pi, 50)
    for head, side in ((0, 1), (1, -1)):
        color = head_color(head)
        ax.text(-0.4, side * 1.9, f"head {head + 1}", color=color, va="center")
        for key, weight in enumerate(weights[head]):
            ax.text(key, side * 0.4, f"{weight:g}", ha="center", va="center", color=color)
            centre, radius = (query + key) / 2, abs(query - key) / 2
            height = 0.35 * abs(query - key)
            y = side * (0.7 + height * np.sin(angles))
            ax.plot(centre + radius * np.cos(angles), y, color=color, linewidth=12 * weight, alpha=0.8)
    ax.set(xlim=(-0.55, len(words) - 0.5), ylim=(-3, 3))
    ax.axis("off")
    return ax


def draw_cross_attention(queries: Sequence[str], memory: Sequence[str], attention: Array, ax: Axes) -> Axes:
    """Draw which tokens give queries, and which keys and values, around the weights of one head.

    Parameters
    ----------
    attention
        ``(n, m)``: a row for each query, shaded from 0 to 1.
    """
    n, m = attention.shape
    draw_grid(attention, 0, 0, NEUTRAL, ax, weights=True)
    for i, word in enumerate(queries):
        ax.text(-1.2, -i - 0.5, word, ha="right", va="center")
    for j, word in enumerate(memory):
        ax.text(j + 0.5, 1.4, word, ha="center", va="bottom")
    ax.text(m / 2, 2.15, "memory: the tokens that answer", ha="center", va="bottom")
    ax.text(-1.2, 0.1, "the tokens\nthat ask", ha="right", va="bottom")
    for tail, tip, color, text, place, anchor in (
        ((-1.1, -n / 2), (-0.1, -n / 2), QUERY, "$W^Q$", (-0.6, -n / 2 + 0.15), "center"),
        ((m / 2, 1.3), (m / 2, 0.1), KEY, "$W^K$", (m / 2 + 0.15, 0.45), "left"),
        ((m, 1.3), (m + 1.5, -0.6), VALUE, "$W^V$", (m + 0.9, 0.4), "left"),
        ((m + 0.1, -n / 2), (m + 0.8, -n / 2), OUTPUT, "", (0, 0), "left"),
    ):
        ax.annotate("", tip, tail, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 2.5})
        ax.text(*place, text, color=color, ha=anchor, va="bottom")
    ax.text(m + 0.9, -n / 2, "averages\nof values", ha="left", va="center", color=OUTPUT)
    ax.text(m / 2, -n - 0.15, f"weights, {n} × {m}:\neach row sums to 1", ha="center", va="top")
    ax.set(xlim=(-2.8, m + 2.5), ylim=(-n - 1.2, 3.0), aspect="equal")
    ax.axis("off")
    return ax


def draw_product(
    left: list[Array],
    right: list[Array],
    names: tuple[str, str, str],
    ax: Axes,
    terms: Sequence[str] = (),
    numbers: bool = False,
) -> Axes:
    """Draw a product of block matrices as grids, each block outlined in the colour of its head.

    Blocks of the left factor stand side by side and those of the right one below each other, so that the product
    is the sum over the blocks. One block each makes an ordinary product, outlined in a neutral colour. All numbers
    are shaded on one scale, white at zero.

    Parameters
    ----------
    names
        What to write above the left factor, the right factor and the product.
    terms
        Where given, a second row shows the product of each pair of blocks, under these names, and their sum.
    numbers
        Whether to write the numbers into the cells.
    """
    parts = [a @ b for a, b in zip(left, right, strict=True)]
    product = sum(parts)
    colors = [head_color(head) for head in range(len(left))] if len(left) > 1 else [NEUTRAL]
    limit = max(np.abs(array).max() for array in [*left, *right, *parts, product])

    def draw(array, x, y, color):
        draw_grid(array, x, y, color, ax, limit=limit)
        if numbers:
            _write_numbers(array, x, y, limit, ax)

    x = 0.0
    for block, color in zip(left, colors, strict=True):
        draw(block, x, 0, color)
        x += block.shape[1]
    rows, inner = left[0].shape[0], sum(block.shape[0] for block in right)
    name_grid(names[0], rows, inner, 0, x, 0, ax)
    ax.text(x + GAP / 2, -rows / 2, "·", ha="center", va="center", fontsize=15)
    x += GAP
    y, width = 0.0, right[0].shape[1]
    for block, color in zip(right, colors, strict=True):
        draw(block, x, y, color)
        y -= block.shape[0]
    name_grid(names[1], inner, width, x, x + width, 0, ax)
    x += width
    ax.text(x + GAP / 2, -rows / 2, "=", ha="center", va="center", fontsize=15)
    x += GAP
    draw(product, x, 0, OUTPUT)
    name_grid(names[2], rows, width, x, x + width, 0, ax)
    if terms:
        _draw_terms(parts, terms, names[2], colors, -max(rows, inner) - 3.4, draw, ax)
    return frame(ax)


def _draw_terms(parts, terms, total, colors, y, draw, ax: Axes) -> None:
    """What each head writes, and the sum of it."""
    x, (rows, width) = 0.0, parts[0].shape
    for number, (part, term, color) in enumerate(zip(parts, terms, colors, strict=True)):
        draw(part, x, y, color)
        name_grid(term, rows, width, x, x + width, y, ax)
        sign = "+" if number + 1 < len(parts) else "="
        ax.text(x + width + GAP / 2, y - rows / 2, sign, ha="center", va="center", fontsize=15)
        x += width + GAP
    draw(sum(parts), x, y, OUTPUT)
    name_grid(total, rows, width, x, x + width, y, ax)


def draw_steps(X: Array, weights: RowWeights, trace: Trace, ax: Axes, words: Sequence[str] = ()) -> Axes:
    """Draw one pass of self-attention from top to bottom: numbers on one signed scale, weights from 0 to 1.

    Parameters
    ----------
    X
        The tokens as rows.
    weights
        The layer, without biases.
    trace
        What ``row.multi_head(X, X, X, weights)`` returns.
    words
        What each token is called, if it is to be written beside it.
    """
    n, d_model = X.shape
    widths = weights.d_k, weights.d_k, weights.d_v
    one_head = max(sum(widths) + 2 * GAP, d_model, n) + 2 * GAP
    middle = (weights.h * one_head - 2 * GAP) / 2
    step, title = n + 3.4, 0.5  # from one row of grids to the next; from a grid to what is written above it
    limit = max(np.abs(array).max() for array in [X, *trace[:3], trace.heads, trace.output])

    def numbers(array, x, y, color):
        draw_grid(array, x, y, color, ax, limit=limit)

    def join(start, end, color):
        ax.plot(*zip(start, end, strict=True), color=color, linewidth=1.2)

    numbers(X, middle - d_model / 2, 0, NEUTRAL)
    for i, word in enumerate(words):
        ax.text(middle - d_model / 2 - 0.4, -i - 0.5, word, ha="right", va="center")
    ax.text(middle, title, f"$X$: {n} tokens, {d_model} numbers each", ha="center", va="bottom")
    for head in range(weights.h):
        color, number = head_color(head), head + 1
        left = head * one_head
        centre = left + (one_head - 2 * GAP) / 2
        y = -step - 1.4
        join((middle, -n - 0.2), (centre, y + 2.6), color)
        ax.text(centre, y + 2.1, f"head {number}", ha="center", va="center", color=color)
        x, bottoms = centre - (sum(widths) + 2 * GAP) / 2, []
        for name, role, width, projected in zip("QKV", (QUERY, KEY, VALUE), widths, trace[:3], strict=True):
            numbers(projected[head * len(projected) // weights.h], x, y, color)
            ax.text(x + width / 2, y + title, f"$XW_{number}^{name}$", ha="center", va="bottom", color=role)
            bottoms.append(x + width / 2)
            x += width + GAP
        between = (bottoms[0] + bottoms[1]) / 2
        for bottom in bottoms[:2]:
            join((bottom, y - n - 0.2), (between, y - step + 1.8), color)
        join((bottoms[2], y - n - 0.2), (centre + 0.8, y - 2 * step + 1.8), color)
        y -= step
        draw_grid(trace.attention[head], between - n / 2, y, color, ax, weights=True)
        ax.text(between, y + title, "weights", ha="center", va="bottom")
        join((between, y - n - 0.2), (centre - 0.8, y - step + 1.8), color)
        y -= step
        numbers(trace.heads[head], centre - weights.d_v / 2, y, color)
        ax.text(centre, y + title, f"averages, head$_{number}$", ha="center", va="bottom")
        join((centre, y - n - 0.2), (centre, y - step + 2.0), color)
        y -= step
        numbers(trace.heads[head] @ weights.W_o[head], centre - d_model / 2, y, color)
        ax.text(centre, y + title, f"head$_{number}W_{number}^O$", ha="center", va="bottom")
        join((centre, y - n - 0.2), (middle, y - step + 1.8), color)
    y -= step
    numbers(trace.output, middle - d_model / 2, y, OUTPUT)
    ax.text(middle, y + title, "+", ha="center", va="bottom", fontsize=15)
    ax.text(middle + d_model / 2 + 0.4, y - n / 2, "output:\ntheir sum", ha="left", va="center", color=OUTPUT)
    return frame(ax)


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
    ax.annotate("", start, (0, 0), arrowprops={"arrowstyle": "-|>", "color": OUTPUT, "linewidth": 2.5, "ls": "--"})
    text = f"their sum, the output\n({start[0]:g}, {start[1]:g})"
    ax.annotate(text, start / 2, xytext=(12, -20), textcoords="offset points", color=OUTPUT)
    ax.set_xticks(range(int(start[0]) + 2))
    ax.set_xlim(-2.4, start[0] + 1.5)
    ax.set_ylim(-0.3, start[1] + 0.3)
    ax.set(xlabel="first output", ylabel="second output")
    return ax


def draw_residual_stream(h: int, ax: Axes) -> Axes:
    """Draw a token's vector as a line on which heads and the MLP read, and to which they add."""
    last = 2.0 * h + 4.2
    ax.annotate("", (last, 0), (-1.2, 0), arrowprops={"arrowstyle": "-|>", "color": NEUTRAL, "linewidth": 4})
    ax.text(-1.2, 0.35, "the token's vector: the residual stream", ha="left", va="bottom")
    for number in range(h + 1):
        is_head = number < h
        color = head_color(number) if is_head else NEUTRAL
        x = 2.0 * number + (0 if is_head else 1.0)
        reads, writes = (0.0 if is_head else x - 0.5), (2.0 * h if is_head else x + 1.5)
        box = matplotlib.patches.Rectangle(
            (x - 0.2, -2.6), 1.3, 0.9, facecolor="white", edgecolor=color, linewidth=2
        )
        ax.add_patch(box)
        ax.text(x + 0.45, -2.15, f"head {number + 1}" if is_head else "MLP", ha="center", va="center", color=color)
        style = {"arrowstyle": "-|>", "color": color, "linewidth": 2}
        ax.annotate("", (x, -1.7), (reads, -0.1), arrowprops=style)
        ax.annotate("", (writes, -0.25), (x + 0.9, -1.7), arrowprops=style)
        if is_head:
            ax.text(x + 0.45, -2.9, f"$W_{number + 1}^O$ writes", ha="center", va="top", color=color)
    for x in (2.0 * h, 2.0 * h + 2.5):
        ax.text(x, 0, "+", ha="center", va="center", bbox={"boxstyle": "circle", "facecolor": "white"})
    ax.set(xlim=(-1.4, last + 0.2), ylim=(-3.6, 1.1))
    ax.axis("off")
    return ax


def draw_two_averages(first: Array, second: Array, ax: Axes) -> Axes:
    """Draw the task of two averages: which numbers of which tokens count, with the weights beside the lines.

    Parameters
    ----------
    first
        ``(m,)``: the weights of the average of the tokens' first numbers.
    second
        ``(m,)``: those of the second numbers.
    """
    m = len(first)
    for average, weights, letter in ((0, first, "x"), (1, second, "y")):
        color, side = head_color(average), 1 - 2 * average
        counted = np.flatnonzero(weights)
        middle = counted.mean()
        for j, weight in enumerate(weights):
            face = matplotlib.colors.to_rgba(color, 0.35) if weight else "white"
            corner = (j - 0.35, 0 if side > 0 else -1)
            ax.add_patch(matplotlib.patches.Rectangle(corner, 0.7, 1, facecolor=face, edgecolor=NEUTRAL))
            ax.text(j, side * 0.5, f"${letter}_{j + 1}$", ha="center", va="center")
            if weight:
                ax.plot([j, middle], [side * 1.05, side * 2.6], color=color, linewidth=6 * weight)
        share = f"average of {' and '.join(f'${letter}_{j + 1}$' for j in counted)}"
        if len(counted) > 2:
            share = f"average of ${letter}_{counted[0] + 1}$ to ${letter}_{counted[-1] + 1}$"
        ax.text(middle, side * 2.75, share, ha="center", va="bottom" if side > 0 else "top", color=color)
    ax.text(-0.6, 0.5, "first number", ha="right", va="center")
    ax.text(-0.6, -0.5, "second number", ha="right", va="center")
    ax.set(xlim=(-2.2, m - 0.3), ylim=(-3.5, 3.5))
    ax.axis("off")
    return ax


def draw_missed(share: Array, first: Array, second: Array, ax: Axes) -> Axes:
    """Draw what one head misses of two averages against how it divides its attention, and what two heads miss."""
    ax.plot(share, first, color=head_color(0), label="one head, first average")
    ax.plot(share, second, color=head_color(1), label="one head, second average")
    ax.plot(share, first + second, color=NEUTRAL, linewidth=3, label="one head, together")
    ax.plot(share, 0 * share, color=OUTPUT, linestyle="--", label="two heads, together")
    ax.set(xlabel="share of attention for the first group", ylabel="least error")
    ax.legend()
    return ax


def draw_conventions(n: int, d_in: int, d_out: int, token: int, axes: Sequence[Axes]) -> Sequence[Axes]:
    """Draw one projection in the three conventions, with one token and its query in colour.

    The weights of the query's first number are hatched: a row of the matrix that is kept, or a column.

    Parameters
    ----------
    token
        The number of the token to follow.
    axes
        Three Axes: for columns, for rows, and for rows with stored transposes.
    """
    by_columns = [("$W$", d_out, d_in, "top"), ("$X$", d_in, n, "column"), ("queries", d_out, n, "column")]
    by_rows = [("$X$", n, d_in, "row"), ("$W$", d_in, d_out, "left"), ("queries", n, d_out, "row")]
    stored = [by_rows[0], ("$W^{\\top}$", d_in, d_out, "left"), by_rows[2]]
    titles = "columns: $W X$", "rows: $X W$", "rows, stored transpose: $X W^{\\top}$"
    for ax, title, factors in zip(axes, titles, (by_columns, by_rows, stored), strict=True):
        x, tallest = 0.0, max(rows for _, rows, _, _ in factors)
        for (name, rows, columns, part), sign in zip(factors, ("·", "=", ""), strict=True):
            marked = {
                "row": (slice(token, token + 1), slice(None)),
                "column": (slice(None), slice(token, token + 1)),
                "top": (slice(0, 1), slice(None)),
                "left": (slice(None), slice(0, 1)),
            }[part]
            color = QUERY if name == "queries" else NEUTRAL
            _mark(rows, columns, marked, x, color, part in ("top", "left"), ax)
            name_grid(name, rows, columns, x, x + columns, 0, ax)
            x += columns
            ax.text(x + GAP / 2, -tallest / 2, sign, ha="center", va="center", fontsize=15)
            x += GAP
        ax.text(0, 3.0, title, ha="left", va="bottom", weight="bold")
        if title == titles[2]:
            kept = x + 1.0
            _mark(d_out, d_in, (slice(0, 1), slice(None)), kept, NEUTRAL, True, ax)
            name_grid("kept: $W$", d_out, d_in, kept, kept + d_in, 0, ax)
        frame(ax)
        ax.set(xlim=(-0.3, d_in + n + d_out + 3 * GAP + d_in + 3), ylim=(-max(n, d_in) - 0.3, 4.3))
    return axes


def _mark(rows: int, columns: int, marked, x: float, color: str, hatched: bool, ax: Axes) -> None:
    """An empty grid with a slice of its cells filled or hatched."""
    inside = np.zeros((rows, columns), dtype=bool)
    inside[marked] = True
    for (i, j), filled in np.ndenumerate(inside):
        face = matplotlib.colors.to_rgba(color, 0.8) if filled and not hatched else "white"
        hatch = "/////" if filled and hatched else None
        corner = (x + j, -i - 1)
        ax.add_patch(matplotlib.patches.Rectangle(corner, 1, 1, facecolor=face, edgecolor=NEUTRAL, hatch=hatch))


def draw_coordinates(bases: dict[str, tuple[Array, Array]], axes: Sequence[Axes]) -> Sequence[Axes]:
    """Draw queries and keys of width two as numbered points, once for each choice of coordinates in the head.

    Parameters
    ----------
    bases
        A title, and with it the queries and the keys as columns, ``(2, n)`` and ``(2, m)``.
    """
    for ax, (title, (queries, keys)) in zip(axes, bases.items(), strict=True):
        for name, points, color, marker in (("query", queries, QUERY, "o"), ("key", keys, KEY, "s")):
            ax.scatter(*points, color=color, marker=marker, label=name, zorder=3)
            for number, point in enumerate(points.T, start=1):
                ax.annotate(f"{number}", point, xytext=(5, 4), textcoords="offset points", color=color)
        ax.axhline(0, color=NEUTRAL, linewidth=0.6)
        ax.axvline(0, color=NEUTRAL, linewidth=0.6)
        ax.margins(0.2)
        ax.set(title=title, xlabel="first coordinate")
    axes[0].set(ylabel="second coordinate")
    axes[0].figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    return axes


def draw_sharing(h: int, kinds: dict[str, int], ax: Axes) -> Axes:
    """Draw which query heads read which keys and values, side by side for several numbers of key-value heads.

    Parameters
    ----------
    kinds
        A name and a number of key-value heads, which divides `h`.
    """
    left = 0.0
    for name, h_kv in kinds.items():
        for head in range(h):
            _square(left + head, 0, QUERY, ax)
        for shared in range(h_kv):
            group = h // h_kv
            centre = left + (shared + 0.5) * group - 0.5
            for head in range(shared * group, (shared + 1) * group):
                ax.plot([left + head, centre], [-0.4, -2.1], color=NEUTRAL, linewidth=1.2)
            _square(centre, -2.5, KEY, ax)
            _square(centre, -3.4, VALUE, ax)
        text = f"{name}\n{h_kv} key-value head{'s' if h_kv > 1 else ''}"
        ax.text(left + (h - 1) / 2, -4.3, text, ha="center", va="top")
        left += h + 1.2
    for y, name, color in ((0, "queries", QUERY), (-2.5, "keys", KEY), (-3.4, "values", VALUE)):
        ax.text(-0.9, y, name, ha="right", va="center", color=color)
    ax.set(xlim=(-4, left - 1.2), ylim=(-6.6, 0.6), aspect="equal")
    ax.axis("off")
    return ax


def _square(x: float, y: float, color: str, ax: Axes) -> None:
    ax.add_patch(matplotlib.patches.Rectangle((x - 0.35, y - 0.35), 0.7, 0.7, facecolor=color))


def draw_growth(x: Array, curves: dict[str, Array], ax: Axes) -> Axes:
    """Draw curves over powers of two, both axes logarithmic: equal steps are equal factors."""
    draw_curves(x, curves, ax)
    ax.autoscale(axis="y")
    ax.set_yscale("log")
    ax.set_xticks(x, [f"{tick:,}" for tick in x])
    ax.minorticks_off()
    return ax


def _write_numbers(array: Array, x: float, y: float, limit: float, ax: Axes) -> None:
    """Write the numbers of a grid into its cells, in white where these are dark."""
    for (i, j), number in np.ndenumerate(array):
        color = "white" if abs(number) > 0.6 * limit else "black"
        ax.text(x + j + 0.5, y - i - 0.5, f"{number:g}", ha="center", va="center", color=color)
