"""Arrays and their axes: masks, memory, shapes."""

import matplotlib.colors
import matplotlib.patches
import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from .style import NEUTRAL, draw_grid, frame, head_color


def draw_visible(masks: dict[str, Array], axes: Array) -> Array:
    """Draw boolean masks side by side, a row for each query: filled where it may see a key.

    Parameters
    ----------
    axes
        As many Axes as masks.
    """
    for ax, (name, visible) in zip(np.ravel(axes), masks.items(), strict=True):
        ax.pcolormesh(visible, cmap="Blues", vmin=0, vmax=1.4, edgecolors="white", linewidth=1)
        ax.invert_yaxis()
        ax.set_aspect("equal")
        ax.set_title(name)
        ax.set(xlabel="key", ylabel="query", xticks=[], yticks=[])
        ax.spines[:].set(visible=True, color=NEUTRAL)
    return axes


def draw_memory(arrays: dict[str, Array], owners: dict[str, Array], axes: Array) -> Array:
    """Draw two-dimensional arrays as they are read, each cell in the colour of the token it belongs to.

    Parameters
    ----------
    arrays
        What to write into the cells.
    owners
        The number of a token for each cell.
    axes
        As many Axes as arrays.
    """
    for ax, name in zip(np.ravel(axes), arrays, strict=True):
        array, owner = arrays[name], owners[name]
        rows, columns = array.shape
        for (i, j), text in np.ndenumerate(array):
            shade = matplotlib.colors.to_rgba(head_color(int(owner[i, j])), 0.3)
            ax.add_patch(matplotlib.patches.Rectangle((j, i), 1, 1, facecolor=shade, edgecolor="white"))
            ax.text(j + 0.5, i + 0.5, str(text), ha="center", va="center", fontsize=9)
        ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
        ax.set_title(name, loc="left")
        ax.axis("off")
    return axes


def draw_shapes(steps: dict[str, Array], ax: Axes) -> Axes:
    """Draw how a text changes its shape on the way through a layer, from top to bottom.

    Parameters
    ----------
    steps
        What `steps.eleven_steps` returns. The first text of the batch is drawn; steps that leave every
        shape alone are left out.
    """
    rows = {
        "tokens": [steps["tokens"][:1]],
        "project": [tokens[:1] for tokens in steps["project"]],
        "transpose": [heads[0] for heads in steps["transpose"]],
        "softmax": [steps["softmax"][0]],
        "average": [steps["average"][0]],
        "merge": [steps["merge"][:1]],
        "output": [steps["output"][:1]],
    }
    gap, between = 1.0, 5.0  # behind a head, and behind what belongs to queries, keys or values
    widths = {
        name: sum(len(part) * (part.shape[-1] + gap) for part in parts) + (len(parts) - 1) * between
        for name, parts in rows.items()
    }
    y, widest = 0.0, max(widths.values())
    for name, parts in rows.items():
        x = (widest - widths[name]) / 2
        shape = " × ".join(str(length) for length in steps[name].shape)
        ax.text(-3, y - parts[0].shape[-2] / 2, f"{name}\n{shape}", ha="right", va="center", fontsize=9)
        for part, whose in zip(parts, ("queries", "keys", "values"), strict=False):
            if name == "project":
                ax.text(x + part.shape[-1] / 2, y + 0.6, whose, ha="center", va="bottom", fontsize=9)
            for head, block in enumerate(part):
                color = head_color(head) if len(part) > 1 else NEUTRAL
                draw_grid(block, x, y, color, ax, lines=False, weights=name == "softmax")
                x += block.shape[1] + gap
            x += between
        y -= parts[0].shape[-2] + 4.5
    return frame(ax)
