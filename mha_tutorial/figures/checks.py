"""What the checker sees of faults."""

from collections.abc import Collection

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle

from .style import KEY, NEUTRAL


def draw_fingerprints(broken: dict[str, Collection[str]], ax: Axes) -> Axes:
    """Draw which properties each fault breaks: a row for each fault, a column for each property, filled if broken.

    Parameters
    ----------
    broken
        For each fault the names of the properties; columns stand in the order in which these first appear.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> ax = draw_fingerprints({"no scale": ["the scale"]}, plt.figure().add_subplot())
    >>> [text.get_text() for text in ax.get_xticklabels()]
    ['the scale']
    """
    columns = list(dict.fromkeys(name for names in broken.values() for name in names))
    for row, names in enumerate(broken.values()):
        for column, name in enumerate(columns):
            color = KEY if name in names else "white"
            ax.add_patch(Rectangle((column, row), 1, 1, facecolor=color, edgecolor=NEUTRAL, linewidth=0.5))
    ax.set(xlim=(0, len(columns)), ylim=(len(broken), 0), aspect="equal")
    ax.set_xticks([i + 0.5 for i in range(len(columns))], columns, rotation=90)
    ax.set_yticks([i + 0.5 for i in range(len(broken))], list(broken))
    ax.xaxis.tick_top()
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax
