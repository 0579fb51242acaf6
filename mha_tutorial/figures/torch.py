"""The PyTorch layer's modules and kernels, how it is stored, and how long things took."""

import itertools
from collections.abc import Sequence

import matplotlib.colors
import matplotlib.patches
import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from .style import CURVES, KEY, NEUTRAL, OUTPUT, QUERY, VALUE, head_color

PROJECTIONS = {"query": QUERY, "key": KEY, "value": VALUE}
Box = tuple[float, float, float, float]  # the centre, the width, the height


def draw_modules(shapes: dict[str, tuple[int, ...]], kernels: Sequence[str], ax: Axes) -> Axes:
    """Draw the modules of a layer, from the tokens at the bottom to the output, and the kernel between them.

    Parameters
    ----------
    shapes
        The shape of each stored matrix, ``W_q``, ``W_k``, ``W_v`` and ``W_o``.
    kernels
        The names of the functions that can be put in the kernel's place.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> shapes = {"W_q": (8, 12), "W_k": (4, 12), "W_v": (4, 12), "W_o": (12, 8)}
    >>> ax = draw_modules(shapes, ["naive", "fused"], plt.figure().add_subplot())
    >>> [text.get_text() for text in ax.texts][2]
    'W_q\\nLinear\\n8 × 12'
    """
    tokens, kernel, merge = (5.0, 0.5, 10.0, 0.8), (5.0, 6.5, 10.0, 2.0), (5.0, 8.9, 10.0, 0.8)
    output, prepare = (5.0, 10.7, 4.0, 1.7), (3.2, 4.7, 6.4, 0.8)
    _box(tokens, "tokens  (b, n, d_model)", NEUTRAL, ax)
    _box(kernel, "a kernel:\n" + ", ".join(kernels) + "\nor a function of your own", NEUTRAL, ax, filled=True)
    for x, name, color, letter in ((1.4, "W_q", QUERY, "q"), (5.0, "W_k", KEY, "k"), (8.6, "W_v", VALUE, "v")):
        _module((x, 2.6, 2.8, 1.7), name, shapes[name], color, ax)
        _arrow((x, 0.9), (x, 1.75), color, ax)
        _arrow((x, 3.45), (x, 4.3 if name != "W_v" else 5.5), color, ax)
        if name != "W_v":
            _arrow((x, 5.1), (x, 5.5), color, ax)
        ax.text(x + 0.15, 3.87, letter, color=color, va="center")
    _box(prepare, "prepare, if there is one", NEUTRAL, ax, dashed=True)
    _arrow((5.0, 7.5), (5.0, 8.5), NEUTRAL, ax)
    ax.text(5.3, 8.0, "heads  (b, h, n, d_v)", va="center")
    _box(merge, "side by side  (b, n, h d_v)", NEUTRAL, ax)
    _arrow((5.0, 9.3), (5.0, 9.85), OUTPUT, ax)
    _module(output, "W_o", shapes["W_o"], OUTPUT, ax)
    _arrow((5.0, 11.55), (5.0, 12.2), OUTPUT, ax)
    ax.text(5.0, 12.3, "output  (b, n, d_model)", ha="center", va="bottom", color=OUTPUT)
    ax.set(xlim=(-0.1, 10.1), ylim=(0, 13.0))
    ax.axis("off")
    return ax


def _module(box: Box, name: str, shape: tuple[int, ...], color: str, ax: Axes) -> None:
    rows, columns = shape
    _box(box, f"{name}\nLinear\n{rows} × {columns}", color, ax)


def _box(box: Box, text: str, color: str, ax: Axes, filled: bool = False, dashed: bool = False) -> None:
    x, y, width, height = box
    ax.add_patch(
        matplotlib.patches.FancyBboxPatch(
            (x - width / 2, y - height / 2),
            width,
            height,
            boxstyle="round,pad=0,rounding_size=0.15",
            facecolor=matplotlib.colors.to_rgba(color, 0.15) if filled else "white",
            edgecolor=color,
            linewidth=1.4,
            linestyle="--" if dashed else "-",
        )
    )
    ax.text(x, y, text, ha="center", va="center", color=color if color != NEUTRAL else "black", linespacing=1.15)


def _arrow(tail: tuple[float, float], tip: tuple[float, float], color: str, ax: Axes) -> None:
    ax.annotate("", tip, tail, arrowprops={"arrowstyle": "-|>", "color": color, "linewidth": 1.6})


def draw_strips(strips: dict[str, Array], ax: Axes) -> Axes:
    """Draw lists of stored features as strips of equal length, in the order of memory, and say what each part is.

    A cell has the colour of its projection and holds the number of its feature; lines below it have the colours of
    the heads.

    Parameters
    ----------
    strips
        ``(s, 3)`` for each name: projection (0 query, 1 key, 2 value), head and feature of each place, heads and
        features counted from one.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> places = np.array([[0, 1, 1], [0, 2, 1], [1, 1, 1], [1, 2, 1]])
    >>> ax = draw_strips({"in blocks": places}, plt.figure().add_subplot())
    >>> [text.get_text() for text in ax.texts]
    ['in blocks', '1', '1', '1', '1', 'query', 'key', 'head 1', 'head 2', 'head 1', 'head 2']
    """
    names = list(PROJECTIONS)
    for number, (name, places) in enumerate(strips.items()):
        y = -3.6 * number
        ax.text(0, y + 1.95, name, va="bottom", weight="bold")
        for x, (projection, _, feature) in enumerate(places):
            shade = matplotlib.colors.to_rgba(PROJECTIONS[names[projection]], 0.3)
            ax.add_patch(matplotlib.patches.Rectangle((x, y), 1, 1, facecolor=shade, edgecolor="white"))
            ax.text(x + 0.5, y + 0.5, str(feature), ha="center", va="center")
        for start, stop, projection in _runs(places[:, 0]):
            middle = (start + stop) / 2
            text = names[projection]
            ax.text(middle, y + 1.1, text, ha="center", va="bottom", color=PROJECTIONS[text])
        for start, stop, head in _runs(places[:, 1]):
            color = head_color(head - 1)
            ax.plot([start + 0.1, stop - 0.1], [y - 0.15, y - 0.15], color=color, linewidth=3)
            ax.text((start + stop) / 2, y - 0.3, f"head {head}", ha="center", va="top", color=color)
    longest = max(len(places) for places in strips.values())
    ax.set(xlim=(-0.05, longest + 0.05), ylim=(-3.6 * len(strips) + 2.3, 2.8))
    ax.axis("off")
    return ax


def _runs(kinds: Array) -> list[tuple[int, int, int]]:
    """Where each run of equal entries starts and stops, and what it is made of."""
    edges = [0, *(np.flatnonzero(np.diff(kinds)) + 1).tolist(), len(kinds)]
    return [(start, stop, int(kinds[start])) for start, stop in itertools.pairwise(edges)]


def draw_pairs(pairs: dict[str, Sequence[tuple[int, int]]], ax: Axes) -> Axes:
    """Draw the features of one head in the order of memory, and an arc between the two of each pair.

    Parameters
    ----------
    pairs
        For each name the pairs of places, counted from zero.
    """
    angles = np.linspace(0, np.pi, 50)
    for number, (name, of_name) in enumerate(pairs.items()):
        y = -3.4 * number
        d_k = 2 * len(of_name)
        ax.text(-0.3, y + 0.5, name, ha="right", va="center", linespacing=1.15)
        for place, (first, second) in enumerate(of_name):
            color, dashes, _ = CURVES[place % len(CURVES)]
            middle, radius = (first + second + 1) / 2, (second - first) / 2
            height = 0.5 + 0.3 * radius
            ax.plot(middle + radius * np.cos(angles), y + 1.05 + height * np.sin(angles), dashes, color=color)
            for feature in (first, second):
                ax.add_patch(matplotlib.patches.Rectangle((feature, y), 1, 1, facecolor="white", edgecolor=color))
                ax.text(feature + 0.5, y + 0.5, str(feature), ha="center", va="center", color=color)
    ax.set(xlim=(-4.6, d_k + 0.1), ylim=(-3.4 * (len(pairs) - 1) - 0.1, 2.9))
    ax.axis("off")
    return ax


def draw_ranges(ranges: dict[str, dict[str, tuple[float, float, float]]], ax: Axes, unit: float | None = 1) -> Axes:
    """Draw measured numbers on a logarithmic axis: a marker at the median, a line from quartile to quartile.

    Parameters
    ----------
    ranges
        For each series, and in it for each name, the lower quartile, the median and the upper quartile. The names
        stand on the left, those of all series together, one below the other; the series lie beside each other.
    unit
        Where to draw a vertical line, if anywhere.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> ax = draw_ranges({"short": {"A": (1, 2, 4)}, "long": {"A": (1, 1, 2), "B": (4, 5, 6)}}, plt.figure().gca())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['A', 'B']
    """
    names = list(dict.fromkeys(name for series in ranges.values() for name in series))
    step = 0.7 / len(ranges)
    for number, (label, series) in enumerate(ranges.items()):
        color, _, marker = CURVES[number % len(CURVES)]
        y = [names.index(name) + step * (number - (len(ranges) - 1) / 2) for name in series]
        low, median, high = np.array(list(series.values()), dtype=float).T
        ax.hlines(y, low, high, color=color, linewidth=1.5)
        ax.plot(median, y, marker, color=color, markersize=5, label=label)
    for place in np.arange(len(names) - 1) + 0.5:
        ax.axhline(place, color=NEUTRAL, linewidth=0.3)
    if unit is not None:
        ax.axvline(unit, color=NEUTRAL, linewidth=1)
    ax.set_xscale("log", base=2)
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_yticks(range(len(names)), names)
    ax.set_ylim(len(names) - 0.5, -0.5)
    ax.tick_params(axis="y", length=0)
    return ax
