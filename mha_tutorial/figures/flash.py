"""Attention one tile at a time: which tiles there are, what a query carries along, and what limits the speed."""

import math

import matplotlib.colors
import matplotlib.patches
import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from .style import CURVES, KEY, NEUTRAL, QUERY


def draw_tiles(visible: Array, block: int, ax: Axes) -> Axes:
    """Draw the scores cut into tiles, numbered in the order in which they are computed, without hidden ones.

    Parameters
    ----------
    visible
        ``(n, m)``, which keys each query sees: the scores that it does not see are white.
    block
        How many queries, and how many keys, a tile has at most.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> ax = draw_tiles(np.tri(4, dtype=bool), 2, plt.figure().add_subplot())
    >>> [text.get_text() for text in ax.texts]
    ['1', '2', '3']
    """
    n, m = visible.shape
    shade, _, _ = CURVES[2]
    ax.pcolormesh(
        np.arange(m + 1),
        np.arange(n + 1),
        visible,
        cmap=matplotlib.colors.ListedColormap(["white", matplotlib.colors.to_rgba(shade, 0.35)]),
        vmin=0,
        vmax=1,
        edgecolors="#DDDDDD",
        linewidth=0.4,
    )
    number = 0
    for i in range(0, n, block):
        for j in range(0, m, block):
            height, width = min(block, n - i), min(block, m - j)
            if not visible[i : i + height, j : j + width].any():
                continue
            number += 1
            ax.add_patch(matplotlib.patches.Rectangle((j, i), width, height, fill=False, edgecolor=NEUTRAL))
            ax.text(j + width / 2, i + height / 2, str(number), ha="center", va="center", weight="bold")
    ax.set_xticks([])
    ax.set_yticks([])
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("keys, read again for each row of tiles", color=KEY)
    ax.set_ylabel("queries, read once", color=QUERY)
    ax.spines[:].set_visible(False)
    ax.set(xlim=(-0.05, m + 0.05), ylim=(n + 0.05, -0.05), aspect="equal")
    return ax


def draw_running_maximum(scores: Array, block: int, ax: Axes) -> Axes:
    """Draw one query's scores in the order of the keys, and the largest so far after each block of them.

    Above each block stands the factor by which what was summed before it shrinks.

    Parameters
    ----------
    scores
        ``(m,)``, of one query.
    block
        How many keys are looked at together.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> ax = draw_running_maximum(np.array([0.0, 1.0, 3.0, 2.0]), 2, plt.figure().add_subplot())
    >>> [text.get_text() for text in ax.texts]
    ['× 0', '× 0.14']
    """
    starts = np.arange(0, len(scores), block)
    ends = np.minimum(starts + block, len(scores))
    largest = np.maximum.accumulate(np.maximum.reduceat(scores, starts))
    before = np.concatenate([[-np.inf], largest[:-1]])
    color, _, marker = CURVES[1]
    ax.plot(np.arange(len(scores)) + 0.5, scores, marker, color=color, markersize=4, label="score of a key")
    color, dashes, _ = CURVES[0]
    ax.hlines(largest, starts, ends, color=color, linestyle=dashes, linewidth=2, label="largest so far")
    top = scores.max() + 0.15 * (np.ptp(scores) or 1)
    for start, end, now, earlier in zip(starts, ends, largest, before, strict=True):
        ax.axvline(start, color=NEUTRAL, linewidth=0.4)
        factor = f"{math.exp(earlier - now):.2f}".rstrip("0").rstrip(".")
        ax.text((start + end) / 2, top, f"× {factor}", ha="center", va="center")
    ax.set(xlim=(0, len(scores)), ylim=(None, top + 0.1 * (np.ptp(scores) or 1)))
    ax.set_xticks((starts + ends) / 2, [f"block {number + 1}" for number in range(len(starts))])
    ax.tick_params(axis="x", length=0)
    return ax


def draw_roofline(points: dict[str, float], peak: float, bandwidth: float, ax: Axes) -> Axes:
    """Draw the most arithmetic a machine can do in a second, against the arithmetic for each byte moved.

    Parameters
    ----------
    points
        For each name the arithmetic intensity of a program, in FLOPs per byte; marked where it meets the roof.
    peak
        FLOPs per second.
    bandwidth
        Bytes per second.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> ax = draw_roofline({"naive": 32.0, "tiled": 256.0}, 312e12, 1.5e12, plt.figure().add_subplot())
    >>> [line.get_ydata().tolist() for line in ax.lines][1:]
    [[48.0], [312.0]]
    """
    ridge = peak / bandwidth
    span = np.array([min([ridge, *points.values()]) / 4, ridge, max([ridge, *points.values()]) * 4])
    ax.plot(span, np.minimum(peak, span * bandwidth) / 1e12, color=NEUTRAL, linewidth=2)
    for number, (name, intensity) in enumerate(points.items()):
        color, _, marker = CURVES[number % len(CURVES)]
        height = min(peak, intensity * bandwidth) / 1e12
        ax.plot([intensity], [height], marker, color=color, markersize=8, linestyle="none", label=name)
    for of_axis, set_scale in ((ax.xaxis, ax.set_xscale), (ax.yaxis, ax.set_yscale)):
        set_scale("log", base=2)
        of_axis.set_major_formatter("{x:g}")
    ax.set(xlabel="FLOPs for each byte moved", ylabel="trillions of FLOPs a second")
    return ax
