"""How the parts of a block are wired."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch, Rectangle

from .style import NEUTRAL, QUERY, VALUE

BRANCH, JOIN = "branch", "+"
STEP, HALF, SIDE = 2.0, 2.3, 3.1  # from part to part, half a box, and where the stream passes boxes


def draw_wiring(blocks: dict[str, Sequence[str]], ax: Axes, colors: dict[str, str] | None = None) -> Axes:
    """Draw blocks side by side, each from top to bottom: what is in a box is computed, the line beside it passes.

    Parameters
    ----------
    blocks
        For each title its parts: ``"branch"`` where the stream splits, ``"+"`` where what was computed is added to
        it, anything else is the text of a box.
    colors
        For words at the beginning of a box its colour; attention and the feed-forward part have theirs.
    """
    colors = {"attention": QUERY, "SwiGLU": VALUE} if colors is None else colors
    for place, (title, parts) in enumerate(blocks.items()):
        x, y, branched = place * 8.0, 0.0, 0.0
        ax.text(x, 0.9, title, ha="center", va="bottom")
        for part in parts:
            if part == BRANCH:
                branched = y
                continue
            _arrow((x, y), (x, y - STEP + 0.9), ax)
            y -= STEP
            if part == JOIN:
                ax.text(x, y + 0.45, "+", ha="center", va="center", fontsize=14)
                ax.plot([x, x - SIDE, x - SIDE, x - 0.4], [branched - 0.3] * 2 + [y + 0.45] * 2, color=NEUTRAL)
                continue
            color = next((shade for word, shade in colors.items() if part.startswith(word)), NEUTRAL)
            ax.add_patch(
                Rectangle((x - HALF, y - 0.35), 2 * HALF, 1.25, facecolor="none", edgecolor=color, linewidth=1.6)
            )
            ax.text(x, y + 0.275, part, ha="center", va="center", color=color)
            y -= 0.35
        _arrow((x, y), (x, y - 1.1), ax)
    ax.set(xlim=(-3.6, 8.0 * (len(blocks) - 1) + 2.8))
    ax.autoscale(axis="y")
    ax.axis("off")
    return ax


def _arrow(start, end, ax: Axes) -> None:
    ax.add_patch(
        FancyArrowPatch(start, end, arrowstyle="-|>", color=NEUTRAL, mutation_scale=10, shrinkA=0, shrinkB=0)
    )
