"""Models in training: curves with what other seeds gave, and where heads look in a text."""

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from .style import CURVES, KEY, NEUTRAL, QUERY, WEIGHTS


def draw_bands(x: Sequence[float], bands: Mapping[str, Mapping[str, Sequence[float]]], ax: Axes) -> Axes:
    """Draw a line for each name, and around it the range of what was found.

    Parameters
    ----------
    bands
        For each name, which a legend shows, the ``low``, ``median`` and ``high`` at each `x`.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> band = {"low": [0.0, 0.5], "median": [0.1, 0.8], "high": [0.2, 1.0]}
    >>> ax = draw_bands([0, 10], {"two layers": band}, plt.figure().add_subplot())
    >>> ax.lines[0].get_ydata().tolist()
    [0.1, 0.8]
    """
    for number, (name, band) in enumerate(bands.items()):
        color, dashes, _ = CURVES[number % len(CURVES)]
        ax.fill_between(x, band["low"], band["high"], color=color, alpha=0.2, linewidth=0)
        ax.plot(x, band["median"], color=color, linestyle=dashes, label=name)
    ax.legend()
    return ax


def draw_patterns(attention: Mapping[str, Array], tokens: Sequence[str], axes: Array) -> Array:
    """Draw the weights of heads over one text as shaded tables, from 0 to 1: a row for each query.

    Parameters
    ----------
    attention
        For each title ``(n, n)``.
    tokens
        What to write beside rows and below columns.
    axes
        As many Axes as titles.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> (ax,) = draw_patterns({"previous token": np.eye(2, k=-1)}, ["a", "b"], [plt.figure().add_subplot()])
    >>> ax.get_title(), [label.get_text() for label in ax.get_yticklabels()]
    ('previous token', ['a', 'b'])
    """
    for ax, (title, weights) in zip(np.ravel(axes), attention.items(), strict=True):
        ax.imshow(weights, vmin=0, vmax=1, cmap=WEIGHTS, interpolation="nearest")
        ax.set_xticks(range(len(tokens)), tokens)
        ax.set_yticks(range(len(tokens)), tokens)
        ax.tick_params(length=0)
        ax.spines[:].set(visible=True, color=NEUTRAL)
        ax.set_title(title)
        ax.set_xlabel("key", color=KEY)
    np.ravel(axes)[0].set_ylabel("query", color=QUERY)
    return axes
