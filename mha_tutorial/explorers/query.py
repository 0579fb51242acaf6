"""A query to be moved among its keys: scores, weights, and an answer that never leaves the values."""

from dataclasses import dataclass
from typing import Any, ClassVar

from jaxtyping import Float
from numpy import ndarray as Array

from ..reference import row
from .base import Explorer, rounded, table


@dataclass(frozen=True, eq=False, repr=False)
class Query(Explorer):
    """One query of two numbers, a few keys and values, and the weighted average of the values.

    Parameters
    ----------
    query
        Where it stands at first.
    keys, values
        Two numbers each, so that they can be drawn.

    Raises
    ------
    ValueError
        If there is not a value for each key.

    Examples
    --------
    >>> explorer = Query(np.zeros(2), np.eye(2), np.array([[4.0, 0.0], [0.0, 4.0]]))
    >>> scores, weights, answer = explorer.at(np.zeros(2))
    >>> weights.tolist(), answer.tolist()
    ([0.5, 0.5], [2.0, 2.0])
    """

    kind: ClassVar[str] = "query"
    query: Float[Array, "2"]
    keys: Float[Array, "m 2"]
    values: Float[Array, "m_v 2"]

    def __post_init__(self):
        if len(self.keys) != len(self.values):
            raise ValueError(f"each key needs a value, got {len(self.keys)} keys and {len(self.values)} values")

    @property
    def title(self) -> str:
        return "A query among its keys"

    def at(self, query: Float[Array, "2"], temperature: float = 1.0) -> tuple[Array, Array, Array]:
        """The scores of a query, its weights at a temperature, and the answer."""
        scores = row.dot_product(query[None], self.keys)
        weights = row.softmax(scores / temperature)
        return scores[0], weights[0], (weights @ self.values)[0]

    def states(self) -> dict[str, Any]:
        return {name: rounded(getattr(self, name)) for name in ("query", "keys", "values")}

    def still(self) -> str:
        scores, weights, answer = self.at(self.query)
        rows = [
            (f"entry {i}", [_pair(key), f"{score:.2f}", f"{weight:.3f}", _pair(value)])
            for i, (key, score, weight, value) in enumerate(
                zip(self.keys, scores, weights, self.values, strict=True), 1
            )
        ]
        total = ("answer", ["", "", f"{weights.sum():.3f}", f"({answer[0]:.2f}, {answer[1]:.2f})"])
        caption = f"The query {_pair(self.query)} and its keys"
        return table("", ["key", "score", "weight", "value"], [*rows, total], caption)


def _pair(point: Array) -> str:
    return "({}, {})".format(*rounded(point))
