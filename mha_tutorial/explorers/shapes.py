"""The eleven steps of a layer of any size: their shapes, how many numbers each holds, and what a cache keeps."""

from dataclasses import asdict, dataclass
from math import prod
from typing import Any, ClassVar

from .._sizes import count
from .base import Explorer, table

HALF = 2  # bytes of a number in 16 bits


@dataclass(frozen=True, eq=False, repr=False)
class Shapes(Explorer):
    """A layer's sizes, to be changed, and what follows from them.

    Parameters
    ----------
    b, n
        Texts, and tokens of each.
    d_model
        The width of a token, which `h` must divide.
    h, h_kv
        Heads, and heads of keys and values, which `h` must be a multiple of; `h` if left out.

    Raises
    ------
    TypeError, ValueError
        If a size is not a whole number of at least 1, or they do not divide.

    Examples
    --------
    >>> sizes = Shapes(b=2, n=5, d_model=30, h=10)
    >>> sizes.steps["scores"], sizes.cache_bytes
    ([(2, 10, 5, 5)], 1200)
    """

    kind: ClassVar[str] = "shapes"
    b: int = 2
    n: int = 5
    d_model: int = 30
    h: int = 10
    h_kv: int | None = None

    def __post_init__(self):
        for name in ("b", "n", "d_model", "h"):
            count(name, getattr(self, name))
        if self.d_model % self.h:
            raise ValueError(f"{self.d_model} numbers per token cannot be cut into {self.h} equal heads")
        if self.h % self.groups:
            raise ValueError(f"{self.h} heads cannot share {self.groups} heads of keys and values equally")

    @property
    def title(self) -> str:
        return "Eleven steps, of any size"

    @property
    def groups(self) -> int:
        """The heads of keys and values."""
        return self.h if self.h_kv is None else count("h_kv", self.h_kv)

    @property
    def steps(self) -> dict[str, list[tuple[int, ...]]]:
        """The shapes of each step; where queries, keys and values are three arrays, of all three."""
        b, n, h, h_kv, d = self.b, self.n, self.h, self.groups, self.d_model // self.h
        three = (h, h_kv, h_kv)
        return {
            "tokens": [(b, n, self.d_model)],
            "project": [(b, n, heads * d) for heads in three],
            "split": [(b, n, heads, d) for heads in three],
            "transpose": [(b, heads, n, d) for heads in three],
            "scores": [(b, h, n, n)],
            "scale": [(b, h, n, n)],
            "softmax": [(b, h, n, n)],
            "average": [(b, h, n, d)],
            "transpose back": [(b, n, h, d)],
            "merge": [(b, n, h * d)],
            "output": [(b, n, self.d_model)],
        }

    @property
    def cache_bytes(self) -> int:
        """What the keys and values of all tokens take in 16 bits, in one layer."""
        return 2 * prod(self.steps["transpose"][1]) * HALF

    def states(self) -> dict[str, Any]:
        return asdict(self) | {"h_kv": self.groups}

    def still(self) -> str:
        rows = []
        for number, (name, shapes) in enumerate(self.steps.items(), 1):
            said = ", ".join(" × ".join(map(str, shape)) for shape in dict.fromkeys(shapes))
            rows.append((f"{number} {name}", [said, f"{sum(map(prod, shapes)):,}"]))
        rows.append(("cache of one layer", ["keys and values, 16 bits", f"{self.cache_bytes:,} bytes"]))
        sizes = f"b={self.b}, n={self.n}, d_model={self.d_model}, h={self.h}, h_kv={self.groups}"
        return table("step", ["shape", "numbers"], rows, f"The eleven steps for {sizes}")
