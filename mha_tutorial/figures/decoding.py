"""What is kept while a text is written."""

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy import ndarray as Array

from .style import KEY, NEUTRAL


def draw_slots(held: Array, new: Array, ax: Axes) -> Axes:
    """Draw which token lies in which slot after each step, a row for each step, the first on top.

    Parameters
    ----------
    held
        ``(steps, slots)``, the number of the token in each slot; negative where nothing was written yet.
    new
        ``(steps, slots)``, true where the step wrote; these cells are filled.

    Examples
    --------
    >>> import matplotlib.pyplot as plt
    >>> held = np.array([[0, -1], [0, 1]])
    >>> ax = draw_slots(held, held == [[0], [1]], plt.figure().add_subplot())
    >>> [text.get_text() for text in ax.texts]
    ['0', '0', '1']
    """
    steps, slots = held.shape
    for (step, slot), token in np.ndenumerate(held):
        fresh = bool(new[step, slot])
        ax.add_patch(Rectangle((slot, step), 1, 1, facecolor=KEY if fresh else "white", edgecolor=NEUTRAL))
        if token >= 0:
            color = "white" if fresh else NEUTRAL
            ax.text(slot + 0.5, step + 0.5, str(token), color=color, ha="center", va="center")
    ax.set(xlim=(0, slots), ylim=(steps, 0), aspect="equal", xlabel="slot", ylabel="step")
    ax.set_xticks(np.arange(slots) + 0.5, [str(slot) for slot in range(slots)])
    ax.set_yticks(np.arange(steps) + 0.5, [str(step + 1) for step in range(steps)])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    return ax
