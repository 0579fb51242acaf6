"""Softmax in one pass, block by block: the largest score so far, and two sums that shrink when it rises."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from .base import Explorer, rounded, table

COLUMNS = ["keys", "largest", "shrink", "total", "weighted", "average so far"]


@dataclass(frozen=True, eq=False, repr=False)
class Flash(Explorer):
    """One query's way over its keys, in blocks of a size that can be chosen.

    Parameters
    ----------
    scores, values
        A score and a value, one number, of each key.
    blocks
        The sizes of a block to choose from, the first of them at first.

    Raises
    ------
    ValueError
        If there is not a value for each key.

    Examples
    --------
    >>> explorer = Flash(np.log([1.0, 4.0, 2.0, 8.0]), np.array([7.0, 2.0, 6.0, -1.0]), blocks=(2,))
    >>> [step["total"] for step in explorer.steps(2)]
    [1.25, 1.875]
    """

    kind: ClassVar[str] = "flash"
    scores: Float[Array, " m"]
    values: Float[Array, " m_v"]
    blocks: tuple[int, ...] = (2, 1, 4, 8)

    def __post_init__(self):
        if len(self.scores) != len(self.values):
            raise ValueError(f"each key needs a value, got {len(self.scores)} scores and {len(self.values)} values")

    @property
    def title(self) -> str:
        return "Softmax in one pass, block by block"

    def steps(self, block: int) -> list[dict[str, float]]:
        """What the query carries after each block, by the names it has in the code."""
        largest, total, weighted, found = -np.inf, 0.0, 0.0, []
        for start in range(0, len(self.scores), block):
            scores, values = self.scores[start : start + block], self.values[start : start + block]
            before, largest = largest, max(largest, scores.max())
            shrink, exponentials = np.exp(before - largest), np.exp(scores - largest)
            total, weighted = shrink * total + exponentials.sum(), shrink * weighted + exponentials @ values
            step = {"largest": largest, "shrink": shrink, "total": total, "weighted": weighted}
            found.append({name: rounded(number) for name, number in (step | {"average": weighted / total}).items()})
        return found

    def states(self) -> dict[str, Any]:
        return {
            "scores": rounded(self.scores),
            "values": rounded(self.values),
            "blocks": [[block, self.steps(block)] for block in self.blocks],
        }

    def still(self) -> str:
        keys = [f"key {j}" for j in range(1, len(self.scores) + 1)]
        given = [("score", [f"{x:.3f}" for x in self.scores]), ("value", [str(x) for x in rounded(self.values)])]
        block = self.blocks[0]
        rows = []
        for number, step in enumerate(self.steps(block), 1):
            first, last = (number - 1) * block + 1, min(number * block, len(self.scores))
            said = f"{first} to {last}" if last > first else f"{first}"
            rows.append((f"block {number}", [said, *(f"{x:.3f}" for x in step.values())]))
        caption = "After each block, what the query carries"
        return f"{table('', keys, given, 'One query and its keys')}\n{table('', COLUMNS, rows, caption)}"
