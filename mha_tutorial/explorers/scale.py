"""What the scores of a random query are divided by, and over how many keys its weights then spread."""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from ..analysis import scaling
from ..reference import row
from .base import Explorer, rounded, table

DIVISORS = {"nothing": 0.0, "√d_k": 0.5, "d_k": 1.0}  # by name, the power of d_k


@dataclass(frozen=True, eq=False, repr=False)
class Scale(Explorer):
    """Scores of random queries and keys of several widths, to be divided before softmax.

    Parameters
    ----------
    rng
        Draws queries and keys, whose entries have mean zero and variance one.
    widths
        The widths ``d_k``.
    m
        The number of keys.
    queries
        How many queries there are of each width.

    Examples
    --------
    >>> explorer = Scale(np.random.default_rng(0))
    >>> weights, bits = explorer.at(width=5, query=0, divisor="√d_k")
    >>> weights.shape, bool(2.5 < bits < 4)
    ((16,), True)
    """

    kind: ClassVar[str] = "scale"
    rng: np.random.Generator
    widths: tuple[int, ...] = (1, 4, 16, 64, 256, 1024)
    m: int = 16
    queries: int = 5
    scores: Float[Array, "widths queries m"] = field(init=False)

    def __post_init__(self):
        drawn = [
            row.dot_product(self.rng.normal(size=(self.queries, d)), self.rng.normal(size=(self.m, d)))
            for d in self.widths
        ]
        object.__setattr__(self, "scores", np.round(drawn, 3))

    @property
    def title(self) -> str:
        return "What scores are divided by"

    def at(self, width: int, query: int, divisor: str) -> tuple[Float[Array, " m"], float]:
        """The weights of one of the queries of one of the widths, and their entropy in bits."""
        scores = self.scores[width, query] / self.widths[width] ** DIVISORS[divisor]
        weights = row.softmax(scores[None])
        return weights[0], float(scaling.entropy(weights)[0])

    def states(self) -> dict[str, Any]:
        return {"widths": list(self.widths), "scores": rounded(self.scores), "divisors": DIVISORS}

    def still(self) -> str:
        rows = [
            (
                f"d_k = {d}",
                [f"{np.mean([self.at(w, q, name)[1] for q in range(self.queries)]):.2f}" for name in DIVISORS],
            )
            for w, d in enumerate(self.widths)
        ]
        columns = [f"divided by {name}" for name in DIVISORS]
        return table("", columns, rows, f"Bits of the weights over {self.m} keys, mean of {self.queries} queries")
