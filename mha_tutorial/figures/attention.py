"""Attention weights as tables, and averages as points among the values."""

import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from .style import HEAD_COLORS, NEUTRAL, head_color


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
