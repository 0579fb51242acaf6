"""Positions: tables of them, biases, and vectors that are turned."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Arc
from numpy import ndarray as Array

from .style import KEY, NEUTRAL, QUERY, SIGNED

FULL = {"shrinkA": 0, "shrinkB": 0}  # arrows from point to point


def draw_heat(maps: dict[str, Array], axes: Array, x: str = "key", y: str = "query") -> Array:
    """Draw signed numbers as shaded cells, rows downwards: white at zero, all maps to one scale.

    Parameters
    ----------
    axes
        As many Axes as maps.
    x, y
        What columns and rows count.
    """
    reach = max(np.abs(array).max() for array in maps.values())
    for ax, (name, array) in zip(np.ravel(axes), maps.items(), strict=True):
        image = ax.imshow(array, cmap=SIGNED, vmin=-reach, vmax=reach, aspect="auto", interpolation="nearest")
        ax.set(title=name, xlabel=x)
        ax.spines[:].set(visible=True, color=NEUTRAL)
    first = np.ravel(axes)[0]
    first.set(ylabel=y)
    first.figure.colorbar(image, ax=list(np.ravel(axes)), fraction=0.05)
    return axes


def draw_turns(
    query: Array, key: Array, frequency: float, places: dict[str, tuple[int, int]], axes: Array
) -> Array:
    """Draw one pair of features of a query and a key, turned by their positions, and the angle between them.

    Parameters
    ----------
    query, key
        ``(2,)``, before they are turned: drawn pale.
    frequency
        By how many radians a position turns them.
    places
        For each title the positions of query and key.
    axes
        As many Axes as titles.
    """
    reach = 1.15 * max(np.linalg.norm(query), np.linalg.norm(key))
    for ax, (title, positions) in zip(np.ravel(axes), places.items(), strict=True):
        angles = []
        for (x, y), position, color in zip((query, key), positions, (QUERY, KEY), strict=True):
            length, before = np.hypot(x, y), np.arctan2(y, x)
            angles.append(before + frequency * position)
            _arrow(length, before, color, ax, alpha=0.3)
            _arrow(length, angles[-1], color, ax)
            tip = 1.12 * length * np.array([np.cos(angles[-1]), np.sin(angles[-1])])
            ax.text(*tip, str(position), color=color, ha="center", va="center")
        between = np.rad2deg(angles)
        start, end = sorted(between)
        if end - start > 180:
            start, end = end, start + 360
        ax.add_patch(Arc((0, 0), 0.5 * reach, 0.5 * reach, theta1=start, theta2=end, color=NEUTRAL, linewidth=1.4))
        ax.add_patch(Arc((0, 0), 2 * length, 2 * length, color=NEUTRAL, linewidth=0.5, linestyle=":"))
        ax.set(title=title, xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
        ax.axis("off")
    return axes


def _arrow(length: float, angle: float, color: str, ax: Axes, alpha: float = 1.0) -> None:
    tip = length * np.array([np.cos(angle), np.sin(angle)])
    ax.annotate(
        "", tip, (0, 0), arrowprops={"arrowstyle": "-|>", "color": color, "alpha": alpha, "linewidth": 1.8} | FULL
    )
