"""Attention as a table of weights, as a lookup, and as points among the values."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy import ndarray as Array

from .style import KEY, NEUTRAL, OUTPUT, QUERY, VALUE, WEIGHTS


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
    ax.imshow(attention, vmin=0, vmax=1, aspect="auto", cmap=WEIGHTS)
    for (i, j), weight in np.ndenumerate(attention):
        ax.text(j, i, f"{weight:.2f}", ha="center", va="center", color="white" if weight > 0.7 else "black")
    slant = {"rotation": 45, "ha": "left", "rotation_mode": "anchor"} if len(keys) > 4 else {}
    ax.set_xticks(range(len(keys)), keys, **slant)
    ax.set_yticks(range(len(queries)), queries)
    ax.xaxis.tick_top()
    ax.xaxis.set_label_position("top")
    ax.set_xlabel("key", labelpad=8, color=KEY)
    ax.set_ylabel("query", color=QUERY)
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def draw_lookup(
    query: Array, keys: Array, values: Array, scores: Array, weights: Array, labels: list[str], ax: Axes
) -> Axes:
    """Draw one query on its way from keys to an answer, from top to bottom: scores, weights, values.

    Parameters
    ----------
    query, keys, values
        ``(d_k,)``, ``(m, d_k)`` and ``(m, d_v)``; their numbers are written into cells.
    scores, weights
        ``(m,)``: how well each key matches, before and after softmax.
    labels
        What to write above each key.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> key, scores, weights = np.eye(2), np.array([2.0, 1.0]), np.array([0.73, 0.27])
    >>> ax = draw_lookup(np.array([2.0, 1.0]), key, key, scores, weights, ["a", "b"], plt.figure().add_subplot())
    >>> [text.get_text() for text in ax.texts][-2:]
    ['0.73', '0.27']
    """
    d_k, d_v, first = len(query), values.shape[1], 1.6  # column 0 has the query and the answer
    y_scores, y_weights = -d_k - 1.3, -d_k - 3.1
    y_values = y_weights - 1.6

    ax.text(0.5, 0.25, "query", ha="center", va="bottom", color=QUERY)
    _numbers(query, 0, 0, QUERY, ax)
    slanted = max(map(len, labels)) > 5 and len(labels) > 4
    for j, label in enumerate(labels):
        x = first + 1.1 * j
        ax.text(
            x + 0.5, 0.25, label, ha="left" if slanted else "center", va="bottom", rotation=40 if slanted else 0
        )
        _numbers(keys[j], x, 0, KEY, ax)
        ax.text(x + 0.5, y_scores, f"{scores[j]:g}", ha="center", va="center")
        ax.add_patch(Rectangle((x, y_weights - 0.5), 1, 1, facecolor=WEIGHTS(weights[j]), edgecolor=NEUTRAL))
        _numbers(values[j], x, y_values, VALUE, ax)
    _numbers(weights @ values, 0, y_values, OUTPUT, ax, decimals=2)
    ax.text(0.5, y_values - d_v - 0.25, "answer", ha="center", va="top", color=OUTPUT)
    ax.text(1.3, y_values - d_v / 2, "=", ha="center", va="center")
    end = first + 1.1 * len(labels) + 0.2
    for y, name, color in (
        (-d_k / 2, "keys", KEY),
        (y_scores, "scores", NEUTRAL),
        (y_weights, "weights", NEUTRAL),
        (y_values - d_v / 2, "values", VALUE),
    ):
        ax.text(end, y, name, ha="left", va="center", color=color)
    for j, weight in enumerate(weights):
        color = "white" if weight > 0.7 else "black"
        ax.text(first + 1.1 * j + 0.5, y_weights, f"{weight:.2f}", ha="center", va="center", color=color)
    ax.set(xlim=(-0.1, end + 1.4), ylim=(y_values - d_v - 1.1, 2.1 if slanted else 1.1))
    ax.axis("off")
    return ax


def _numbers(vector: Array, x: float, y: float, color: str, ax: Axes, decimals: int | None = None) -> None:
    """Write a vector from top to bottom into cells with a frame, of which (x, y) is the upper left corner."""
    for place, number in enumerate(vector):
        text = f"{number:g}" if decimals is None else f"{number:.{decimals}f}"
        ax.text(x + 0.5, y - place - 0.5, text, ha="center", va="center")
    ax.add_patch(Rectangle((x, y - len(vector)), 1, len(vector), facecolor="none", edgecolor=color, linewidth=1.8))


def draw_hull(values: Array, answers: Array, labels: list[str], ax: Axes) -> Axes:
    """Draw values as the corners of a region, and the weighted averages that move inside it.

    Parameters
    ----------
    values
        ``(m, 2)``, a value a row, in the order in which they are joined.
    answers
        ``(n, 2)``, an average a row, joined by a line in their order.
    labels
        What to write beside each answer, nothing where empty.
    """
    ax.fill(*values.T, color=VALUE, alpha=0.12, linewidth=0)
    ax.scatter(*values.T, s=60, color=VALUE, zorder=3)
    outwards = np.sign(values - values.mean(axis=0))
    for j, (value, direction) in enumerate(zip(values, outwards, strict=True)):
        offset = (0, 12 * direction[1] - 4)
        name = f"value {j + 1}"
        ax.annotate(name, value, xytext=offset, textcoords="offset points", ha="center", color=VALUE)
    ax.plot(*answers.T, color=OUTPUT)
    for answer, label in zip(answers, labels, strict=True):
        if label:
            ax.scatter(*answer, s=40, color=OUTPUT, zorder=3)
            ax.annotate(label, answer, xytext=(-6, -14), textcoords="offset points", ha="right", color=OUTPUT)
    ax.margins(0.2)
    ax.set_aspect("equal")
    ax.set(xlabel="first number", ylabel="second number")
    return ax


def draw_moves(before: Array, after: dict[str, Array], ax: Axes) -> Axes:
    """Draw where attention moves one vector, in two of its coordinates, in several contexts; lengths are true."""
    ax.scatter(*before, s=60, color=VALUE, zorder=3)
    ax.annotate("before", before, xytext=(8, 4), textcoords="offset points", color=VALUE)
    for name, point in after.items():
        ax.annotate("", point, before, arrowprops={"arrowstyle": "-|>", "color": OUTPUT, "linewidth": 2})
        above = point[1] > before[1]
        offset = (0, 8 if above else -18)
        ax.annotate(name, point, xytext=offset, textcoords="offset points", ha="center", color=OUTPUT)
    points = np.array([before, *after.values()])
    ax.set_xlim(points[:, 0].min() - 0.6, points[:, 0].max() + 0.6)
    ax.set_ylim(points[:, 1].min() - 0.4, points[:, 1].max() + 0.4)
    ax.set_aspect("equal")
    return ax
