"""The output projection, with every number to be changed: one product, or one term for each head."""

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Float
from numpy import ndarray as Array

from .base import Explorer, rounded, table


@dataclass(frozen=True, eq=False, repr=False)
class OutputProjection(Explorer):
    """What the output projection makes of the heads of one token, both ways side by side.

    Parameters
    ----------
    heads
        What each head found for the token.
    W_o
        The matrix, whose rows are numbers of the concatenated heads.

    Raises
    ------
    ValueError
        If the matrix has not a row for each number of the heads.

    Examples
    --------
    >>> explorer = OutputProjection(np.array([[1.0, 2.0], [3.0, 4.0]]), np.eye(4, 2))
    >>> explorer.output.tolist(), explorer.written.tolist()
    ([1.0, 2.0], [[1.0, 2.0], [0.0, 0.0]])
    """

    kind: ClassVar[str] = "projection"
    heads: Float[Array, "h d_v"]
    W_o: Float[Array, "hd d_model"]

    def __post_init__(self):
        if self.heads.size != len(self.W_o):
            h, d_v = self.heads.shape
            raise ValueError(f"{h} heads of {d_v} numbers need a W_o of {h * d_v} rows, got shape {self.W_o.shape}")

    @property
    def title(self) -> str:
        return "The output projection, both ways"

    @property
    def output(self) -> Float[Array, " d_model"]:
        """The concatenated heads times the matrix."""
        return self.heads.reshape(-1) @ self.W_o

    @property
    def written(self) -> Float[Array, "h d_model"]:
        """What each head writes, which adds up to the output."""
        blocks = self.W_o.reshape(*self.heads.shape, -1)
        return np.einsum("hv,hvm->hm", self.heads, blocks)

    def states(self) -> dict[str, Any]:
        return {"heads": rounded(self.heads), "W_o": rounded(self.W_o)}

    def still(self) -> str:
        outputs = [f"output {j}" for j in range(1, self.W_o.shape[1] + 1)]
        h, d_v = self.heads.shape
        names = [f"head {i + 1}, number {j + 1}" for i in range(h) for j in range(d_v)]
        entries = zip(names, rounded(self.heads.reshape(-1)), rounded(self.W_o), strict=True)
        factors = [(name, [str(value), *map(str, row)]) for name, value, row in entries]
        product = ("output", ["", *map(str, rounded(self.output))])
        terms = [(f"head {i} writes", list(map(str, row))) for i, row in enumerate(rounded(self.written), 1)]
        total = ("sum", list(map(str, rounded(self.output))))
        columns = ["heads", *(f"W_O to {name}" for name in outputs)]
        return (
            table("", columns, [*factors, product], "Concatenated, and multiplied once")
            + "\n"
            + table("", outputs, [*terms, total], "One term for each head, added up")
        )
