"""All heads of a trained model at once: where they look, how they score, and what is missing without them."""

import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from .style import CURVES, HEAD_COLORS, NEUTRAL, WEIGHTS


def draw_all_heads(attention: Array, ax: Axes) -> Axes:
    """Draw the attention of every head as a small picture, a column for each layer and a row for each head.

    Parameters
    ----------
    attention
        ``(layers, h, n, n)``, queries in rows.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> ax = draw_all_heads(np.zeros((3, 2, 5, 5)), plt.figure().add_subplot())
    >>> ax.images[0].get_array().shape  # two rows and three columns of five cells and a gap
    (12, 18)
    """
    layers, h, n, _ = attention.shape
    hidden = np.broadcast_to(np.triu(np.ones((n, n), dtype=bool), k=1), attention.shape)
    cells = np.full((layers, h, n + 1, n + 1), np.nan)
    cells[..., :n, :n] = np.where(hidden, np.nan, attention)
    ax.imshow(cells.transpose(1, 2, 0, 3).reshape(h * (n + 1), -1), vmin=0, vmax=1, cmap=WEIGHTS)
    ax.set_facecolor("#EDEFF2")
    _count(ax.set_xticks, layers, n + 1, (n - 1) / 2)
    _count(ax.set_yticks, h, n + 1, (n - 1) / 2, step=1)
    ax.set(xlabel="layer", ylabel="head")
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax


def draw_head_scores(scores: dict[str, Array], axes: Array) -> Array:
    """Draw a score of every head as a map from 0 to 1, a column for each layer and a row for each head.

    Parameters
    ----------
    scores
        ``(layers, h)`` for each name.
    axes
        As many Axes as names.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> axes = draw_head_scores({"previous token": np.eye(4, 3)}, [plt.figure().add_subplot()])
    >>> axes[0].images[0].get_array().shape
    (3, 4)
    """
    for ax, (name, of_heads) in zip(np.ravel(axes), scores.items(), strict=True):
        image = ax.imshow(of_heads.T, vmin=0, vmax=1, cmap=WEIGHTS, aspect="auto")
        layers, h = of_heads.shape
        _count(ax.set_xticks, layers, 1, 0)
        _count(ax.set_yticks, h, 1, 0, step=4)
        ax.set(title=name, xlabel="layer", ylabel="head")
        ax.label_outer()
        ax.spines[:].set(visible=True, color=NEUTRAL)
    first = np.ravel(axes)[0]
    first.figure.colorbar(image, ax=list(np.ravel(axes)), fraction=0.04)
    return axes


def _count(set_ticks, count: int, width: int, middle: float, step: int = 5) -> None:
    """Name every so manieth of a row of cells by its number."""
    numbers = np.arange(0, count, step)
    set_ticks(numbers * width + middle, [str(number) for number in numbers])


def draw_sets(sets: dict[str, Array], level: float, ax: Axes, name: str = "all heads") -> Axes:
    """Draw what sets of heads cost, each a point in the row of its kind, and a line where no head is missing.

    Parameters
    ----------
    sets
        For each kind, a number for each set.
    level
        The number of the whole model.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> ax = draw_sets({"one": np.array([5.9]), "random": np.array([3.7, 4.0])}, 3.65, plt.figure().add_subplot())
    >>> [label.get_text() for label in ax.get_yticklabels()]
    ['one', 'random']
    """
    for row, numbers in enumerate(sets.values()):
        spread = np.linspace(-0.18, 0.18, len(numbers)) if len(numbers) > 1 else np.zeros(1)
        color, marker = (HEAD_COLORS[0], "D") if len(numbers) == 1 else (CURVES[0][0], "o")
        ax.scatter(numbers, row + spread, s=26, color=color, marker=marker, alpha=0.75, linewidths=0)
    ax.axvline(level, color=NEUTRAL, linewidth=1, linestyle="--")
    ax.annotate(name, (level, -0.5), xytext=(3, 3), textcoords="offset points", color=NEUTRAL, va="bottom")
    ax.set_yticks(range(len(sets)), list(sets))
    ax.set_ylim(len(sets) - 0.5, -0.9)
    return ax
