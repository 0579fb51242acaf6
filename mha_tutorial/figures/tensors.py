"""Arrays and their axes: masks, memory, shapes."""

import matplotlib.colors
import matplotlib.patches
import numpy as np
from matplotlib.axes import Axes
from numpy import ndarray as Array

from .style import CURVES, KEY, NEUTRAL, OUTPUT, QUERY, VALUE, draw_grid, frame, head_color, name_grid


def draw_visible(masks: dict[str, Array], axes: Array) -> Array:
    """Draw boolean masks side by side, a row for each query: filled where it may see a key.

    Parameters
    ----------
    axes
        As many Axes as masks.
    """
    for ax, (name, visible) in zip(np.ravel(axes), masks.items(), strict=True):
        shades = matplotlib.colors.ListedColormap(["white", CURVES[2][0]])
        ax.pcolormesh(visible, cmap=shades, vmin=0, vmax=1, edgecolors="#BBBBBB", linewidth=1)
        ax.invert_yaxis()
        ax.set_aspect("equal")
        ax.set_title(name)
        ax.set(xlabel="key", ylabel="query", xticks=[], yticks=[])
        ax.spines[:].set(visible=True, color=NEUTRAL)
    return axes


def draw_mask_axes(visible: Array, ax: Axes) -> Axes:
    """Draw a mask with all its axes: texts down, heads across, and in each block queries down, keys across.

    Parameters
    ----------
    visible
        ``(b, h, n, m)``
    """
    b, h, n, m = visible.shape
    gap = 1.2
    for text in range(b):
        for head in range(h):
            x, y = head * (m + gap), -text * (n + gap)
            color = head_color(head)
            edges = x + np.arange(m + 1), y - np.arange(n + 1)
            shades = matplotlib.colors.ListedColormap(["white", color])
            ax.pcolormesh(
                *edges, visible[text, head], cmap=shades, vmin=0, vmax=1, edgecolors="#BBBBBB", linewidth=1
            )
            ax.plot([x, x + m, x + m, x, x], [y, y, y - n, y - n, y], color=color, linewidth=1.4)
            if not text:
                ax.text(x + m / 2, 0.3, f"head {head + 1}", color=color, ha="center", va="bottom")
        ax.text(-1.3, y - n / 2, f"text {text + 1}", rotation=90, ha="right", va="center")
        ax.text(-0.3, y - n / 2, "queries", color=QUERY, rotation=90, ha="right", va="center")
    for head in range(h):
        ax.text(head * (m + gap) + m / 2, y - n - 0.3, "keys", color=KEY, ha="center", va="top")
    ax.set(xlim=(-2.2, h * (m + gap) - gap + 0.2), ylim=(y - n - 1.2, 1.2), aspect="equal")
    ax.axis("off")
    return ax


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
            shade = matplotlib.colors.to_rgba(CURVES[(0, 3, 2, 1)[int(owner[i, j]) % 4]][0], 0.25)
            ax.add_patch(matplotlib.patches.Rectangle((j, i), 1, 1, facecolor=shade, edgecolor="white"))
            ax.text(j + 0.5, i + 0.5, str(text), ha="center", va="center")
        ax.set(xlim=(0, columns), ylim=(rows, 0), aspect="equal")
        ax.set_title(name, loc="left")
        ax.axis("off")
    return axes


AXES = {  # of each of the eleven steps, without the batch: what `draw_shapes` writes
    "tokens": ("token", "number"),
    "project": ("token", "number"),
    "split": ("token", "head", "number"),
    "transpose": ("head", "token", "number"),
    "scores": ("head", "query", "key"),
    "scale": ("head", "query", "key"),
    "softmax": ("head", "query", "key"),
    "average": ("head", "token", "number"),
    "transpose back": ("token", "head", "number"),
    "merge": ("token", "number"),
    "output": ("token", "number"),
}


def draw_shapes(steps: dict[str, Array], ax: Axes, token: int = 0) -> Axes:
    """Draw the eleven steps of one text from top to bottom, each as blocks with their axes written above.

    A coloured block is a head, a grey one has no axis for heads. Blocks that touch lie beside each other in
    one row of numbers; between others there is a gap.

    Parameters
    ----------
    steps
        What `steps.eleven_steps` returns. The first text of the batch is drawn.
    token
        The number of a token whose row is drawn darker in every block.
    """
    gap, between, row, label = 0.8, 6.0, 8.6, 1.0
    h, n, d = steps["average"].shape[1:]
    widest = 3 * h * d + 3 * (h - 1) * gap + 2 * between
    for number, (name, axes) in enumerate(AXES.items()):
        y = -row * number
        three = name in ("project", "split", "transpose")
        array = steps[name][0, 0] if three else steps[name][0]
        lengths = ", ".join(f"{axis} {length}" for axis, length in zip(axes, array.shape, strict=True))
        ax.text(0, y + label, f"{number + 1}  {name}", ha="left", va="bottom")
        ax.text(widest, y + label, f"{'3 of ' if three else ''}({lengths})", ha="right", va="bottom")
        heads = h if "head" in axes else 1
        apart = gap if axes[0] == "head" else 0.0
        width = array.shape[-1]
        part_width = heads * width + (heads - 1) * apart
        parts = 3 if three else 1
        x = (widest - parts * part_width - (parts - 1) * between) / 2
        for _ in range(parts):
            for head in range(heads):
                color = NEUTRAL if heads == 1 else head_color(head)
                for start, stop, alpha in ((0, n, 0.3), (token, token + 1, 1.0)):
                    shade = matplotlib.colors.to_rgba(color, alpha)
                    corner = (x, y - stop * 0.8)
                    ax.add_patch(
                        matplotlib.patches.Rectangle(
                            corner, width, (stop - start) * 0.8, facecolor=shade, edgecolor="white", linewidth=0.4
                        )
                    )
                x += width + apart
            x += between - apart
    ax.set(xlim=(-0.5, widest + 0.5), ylim=(-row * len(AXES) + 3.2, 3.4))
    ax.axis("off")
    return ax


def draw_backward(ax: Axes) -> Axes:
    """Draw the graph of one head: solid arrows forward, dashed ones back with the gradient that each carries."""
    nodes = {  # where each stands, what is written, and its colour
        "X": (2.5, 7.2, "$X$", NEUTRAL),
        "Q": (0.6, 5.8, "$Q = XW^Q$", QUERY),
        "K": (2.5, 5.8, "$K = XW^K$", KEY),
        "V": (4.4, 5.8, "$V = XW^V$", VALUE),
        "S": (1.55, 4.4, r"$S = QK^\top/\sqrt{d_k}$", NEUTRAL),
        "A": (1.55, 3.0, "$A$ = softmax of the rows", NEUTRAL),
        "head": (2.8, 1.6, "head $= AV$", NEUTRAL),
        "Y": (2.8, 0.2, "$Y = $ sum of head $W^O$", OUTPUT),
    }
    edges = [  # forward from the first to the second; the gradient of the first comes back
        ("X", "Q", r"$\bar X_Q$"),
        ("X", "K", r"$\bar X_K$"),
        ("X", "V", r"$\bar X_V$"),
        ("Q", "S", r"$\bar Q$"),
        ("K", "S", r"$\bar K$"),
        ("S", "A", r"$\bar S$"),
        ("A", "head", r"$\bar A$"),
        ("V", "head", r"$\bar V$"),
        ("head", "Y", r"$\overline{\rm head}$"),
    ]
    for x, y, text, color in nodes.values():
        box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": color, "linewidth": 1.6}
        ax.text(x, y, text, ha="center", va="center", color=color, bbox=box, zorder=3)
    for start, end, gradient in edges:
        tail, tip = np.array(nodes[start][:2]), np.array(nodes[end][:2])
        along = (tip - tail) / np.hypot(*(tip - tail))
        aside = 0.1 * np.array([-along[1], along[0]])
        tail, tip = tail + along * 0.38 / abs(along[1]), tip - along * 0.38 / abs(along[1])
        forward = {"arrowstyle": "-|>", "color": NEUTRAL, "linewidth": 1.6, "shrinkA": 0, "shrinkB": 0}
        ax.annotate("", tip - aside, tail - aside, arrowprops=forward)
        back = forward | {"linestyle": "--", "color": nodes[start][3]}
        ax.annotate("", tail + aside, tip + aside, arrowprops=back)
        place = (tail + tip) / 2 + aside * (5.5 if start == "head" else 3.2)
        ax.text(*place, gradient, ha="center", va="center", color=nodes[start][3])
    ax.text(3.1, -0.55, r"$\bar Y$, from the loss", ha="left", va="center", color=OUTPUT)
    back = {"arrowstyle": "-|>", "color": OUTPUT, "linewidth": 1.6, "linestyle": "--", "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", (2.9, -0.15), (2.9, -0.75), arrowprops=back)
    ax.set(xlim=(-0.35, 5.35), ylim=(-0.8, 7.6))
    ax.axis("off")
    return ax


def draw_packed(X: Array, matrices: list[Array], ax: Axes) -> Axes:
    """Draw one product with the matrices of all heads side by side, and what each head has of it.

    Parameters
    ----------
    X
        The tokens as rows.
    matrices
        ``(d_model, d)`` for each head.
    """
    gap = 1.6
    products = [X @ matrix for matrix in matrices]
    limit = max(np.abs(array).max() for array in [X, *matrices, *products])
    draw_grid(X, 0, 0, NEUTRAL, ax, limit=limit)
    name_grid("$X$", *X.shape, 0, X.shape[1], 0, ax)
    x = X.shape[1]
    for sign, name, blocks in (("·", "packed $W^Q$", matrices), ("=", "queries", products)):
        ax.text(x + gap / 2, -len(X) / 2, sign, ha="center", va="center", fontsize=15)
        x += gap
        left = x
        for head, block in enumerate(blocks):
            draw_grid(block, x, 0, head_color(head), ax, limit=limit)
            middle = x + block.shape[1] / 2
            ax.text(middle, -len(block) - 0.3, f"head {head + 1}", color=head_color(head), ha="center", va="top")
            x += block.shape[1]
        name_grid(name, len(blocks[0]), sum(block.shape[1] for block in blocks), left, x, 0, ax)
    return frame(ax)


def draw_flow(steps: dict[str, str], ax: Axes) -> Axes:
    """Draw steps below each other, the name of each on the left and its axes in a box on the right."""
    for place, (name, axes) in enumerate(steps.items()):
        box = {"boxstyle": "round,pad=0.35", "facecolor": "white", "edgecolor": NEUTRAL, "linewidth": 1.4}
        ax.text(0, -place, name, ha="left", va="center")
        ax.text(0.7, -place, axes, ha="center", va="center", bbox=box)
        if place:
            arrow = {"arrowstyle": "-|>", "color": NEUTRAL, "linewidth": 1.4}
            ax.annotate("", (0.7, -place + 0.28), (0.7, -place + 0.72), arrowprops=arrow)
    ax.set(xlim=(0, 1), ylim=(0.4 - len(steps), 0.4))
    ax.axis("off")
    return ax
