"""A layer on several devices: which rank holds what, and how sums travel round a ring."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from numpy import ndarray as Array

from ..trace import Trace
from ..weights import RowWeights
from .style import KEY, NEUTRAL, OUTPUT, QUERY, VALUE, WEIGHTS, draw_grid, frame, name_grid

GAP = 1.0  # between matrices side by side
ROOM = 3.4  # above a matrix, for its name and size


def draw_shards(X: Array, parts: Sequence[RowWeights], traces: Sequence[Trace], ax: Axes) -> Axes:
    """Draw a layer divided among ranks, side by side: from the tokens down to what each rank writes, and the sum.

    Parameters
    ----------
    X
        The tokens as rows, as wide as the output.
    parts
        The shard of each rank, all of one size.
    traces
        What ``row.multi_head(X, X, X, part)`` returns for each.
    """
    n, d_model = X.shape
    one = 3 * parts[0].h * max(parts[0].d_k, parts[0].d_v) + 2 * GAP + 2
    middle = (one * len(parts) + GAP * (len(parts) - 1)) / 2
    draw_grid(X, middle - d_model / 2, 0, NEUTRAL, ax)
    name_grid("$X$, on every rank", n, d_model, middle, middle, 0, ax)
    bottom = 0.0
    for rank, (part, trace) in enumerate(zip(parts, traces, strict=True)):
        left, top = rank * (one + GAP), -n - 1.2
        bottom = _draw_rank(part, trace, left, left + one, top, ax)
        frame_of_rank = (left, bottom - 0.6), one, top - bottom + 0.6
        ax.add_patch(Rectangle(*frame_of_rank, fill=False, edgecolor=NEUTRAL, linestyle="--"))
        ax.text(left + 0.4, top - 0.5, f"rank {rank}", weight="bold", va="top")
    total = np.sum([trace.output for trace in traces], axis=0)
    draw_grid(total, middle - d_model / 2, bottom - ROOM - 1.0, OUTPUT, ax)
    name_grid("all-reduce: the sum, on every rank", n, d_model, middle, middle, bottom - ROOM - 1.0, ax)
    return frame(ax)


def _draw_rank(part: RowWeights, trace: Trace, left: float, right: float, top: float, ax: Axes) -> float:
    """Draw what one rank holds and computes, between two edges; say where it ends."""
    centre, y = (left + right) / 2, top - ROOM - 2.2
    inputs = {"$W^Q$": (part.W_q, QUERY), "$W^K$": (part.W_k, KEY), "$W^V$": (part.W_v, VALUE)}
    for place, (name, (matrices, color)) in enumerate(inputs.items()):
        packed = np.concatenate(list(matrices), axis=1)  # the heads side by side
        middle = centre + (place - 1) * ((right - left - 2 * GAP) / 3 + GAP / 2)
        _draw_named(name, packed, middle, y, color, ax)
    y -= part.d_model + ROOM
    for name, matrix, color in (
        ("heads", np.concatenate(list(trace.heads), axis=1), NEUTRAL),
        ("$W^O$, its rows", part.W_o.reshape(-1, part.d_model), OUTPUT),
        ("what it writes", trace.output, OUTPUT),
    ):
        _draw_named(name, matrix, centre, y, color, ax)
        y -= len(matrix) + ROOM
    return y + ROOM


def _draw_named(name: str, matrix: Array, middle: float, y: float, color: str, ax: Axes) -> None:
    rows, columns = matrix.shape
    draw_grid(matrix, middle - columns / 2, y, color, ax)
    name_grid(name, rows, columns, middle, middle, y, ax)


def draw_ring(held: Array, axes: Array) -> Array:
    """Draw after every step how many ranks' numbers are in each chunk of each rank.

    Parameters
    ----------
    held
        ``(steps, p, p)``, a row for each rank and a column for each chunk, where every rank began with ones.
    axes
        As many Axes as steps.
    """
    p = held.shape[1]
    for step, (ax, counts) in enumerate(zip(np.ravel(axes), held, strict=True)):
        ax.imshow(counts, cmap=WEIGHTS, vmin=0, vmax=p)
        for (rank, chunk), number in np.ndenumerate(counts):
            ax.text(
                chunk,
                rank,
                f"{number:.0f}",
                ha="center",
                va="center",
                color="white" if number > 0.6 * p else "black",
            )
        ax.set_title("start" if not step else f"step {step}")
        ax.set_xticks(range(p), range(1, p + 1))
        ax.set_yticks(range(p), range(p))
        ax.tick_params(length=0)
    return axes
