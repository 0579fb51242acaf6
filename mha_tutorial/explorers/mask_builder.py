"""A mask to be put together from its rules: what each query sees, and the lines that make it in four places."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar

import numpy as np
from jaxtyping import Bool
from numpy import ndarray as Array

from .._sizes import count
from ..masks import Align, Causal, Documents, Mask, Padding, Side, Window
from .base import Explorer, escape, table

MOST = 10  # queries and keys


@dataclass(frozen=True, eq=False, repr=False)
class MaskBuilder(Explorer):
    """A mask of a few queries and keys, and how it is asked for here and elsewhere.

    Parameters
    ----------
    n, m
        Queries and keys, 1 to 10.
    align
        Where the queries stand when there are not as many of them as keys.
    causal
        Whether a query sees nothing that comes after it.
    window
        How near a key must be, as `Window` counts; 0 for no window.
    padding
        How many keys are padding.
    side
        Where it stands.
    first
        How many tokens the first of two packed texts has; 0 if there is one text.

    Raises
    ------
    TypeError, ValueError
        If a number is not whole, or out of its range.

    Examples
    --------
    >>> MaskBuilder(3, 3, padding=1).visible.astype(int)
    array([[1, 0, 0],
           [1, 1, 0],
           [1, 1, 0]])
    >>> print(MaskBuilder(2, 4, window=2).lines["this package"])
    visible = Causal("bottom-right") & Window(2, "bottom-right")
    """

    kind: ClassVar[str] = "masks"
    n: int = 5
    m: int = 5
    align: Align = "bottom-right"
    causal: bool = True
    window: int = 0
    padding: int = 0
    side: Side = "right"
    first: int = 0

    def __post_init__(self):
        ranges = {"n": (1, MOST), "m": (1, MOST), "window": (0, MOST), "padding": (0, self.m), "first": (0, self.m)}
        for name, (least, most) in ranges.items():
            if count(name, getattr(self, name), least) > most:
                raise ValueError(f"{name} must be at most {most}, got {getattr(self, name)}")

    @property
    def title(self) -> str:
        return "A mask, rule by rule"

    @property
    def rules(self) -> list[Mask]:
        """The rules that are in force; a query sees what all of them let it see."""
        rules: list[Mask] = [Causal(self.align)] if self.causal else []
        rules += [Window(self.window, self.align)] if self.window else []
        rules += [Padding(self.m - self.padding, side=self.side)] if self.padding else []
        return rules + ([Documents([self.first, self.m - self.first], self.align)] if self.first else [])

    @property
    def visible(self) -> Bool[Array, "n m"]:
        """Which query sees which key."""
        visible = np.ones((self.n, self.m), dtype=bool)
        for rule in self.rules:
            visible = visible & rule.rows(self.n, self.m)
        return visible

    @property
    def lines(self) -> dict[str, str]:
        """The code that makes the mask, for each of four places."""
        return {
            "this package": f"visible = {' & '.join(self._here()) or 'None  # every query sees every key'}",
            "scaled_dot_product_attention": self._fused(),
            "nn.MultiheadAttention": self._module(),
            "Hugging Face transformers": "\n".join(self._hugging_face()),
        }

    def _here(self) -> list[str]:
        align = "" if self.n == self.m else f'"{self.align}"'
        then = align and f", {align}"
        side = ', side="left"' if self.side == "left" else ""
        return [
            *([f"Causal({align})"] if self.causal else []),
            *([f"Window({self.window}{then})"] if self.window else []),
            *([f"Padding({self.m - self.padding}{side})"] if self.padding else []),
            *([f"Documents([{self.first}, {self.m - self.first}]{then})"] if self.first else []),
        ]

    def _positions(self) -> str:
        """The places of queries and keys, on which all rules but padding depend."""
        shift = self.m - self.n if self.align == "bottom-right" else 0
        moved = f" {'+' if shift > 0 else '-'} {abs(shift)}" if shift else ""
        return f"i, j = torch.arange({self.n})[:, None]{moved}, torch.arange({self.m})"

    def _terms(self) -> list[str]:
        beside = ["(i >= 0)", f"(i < {self.m})"] if self.n > self.m else []  # a query beside no key is in no text
        return [
            *(["(j <= i)"] if self.causal else []),
            *([f"((i - j).abs() < {self.window})"] if self.window else []),
            *([f"((i < {self.first}) == (j < {self.first}))", *beside] if self.first else []),
        ]

    def _real(self) -> str:
        return f"(j < {self.m - self.padding})" if self.side == "right" else f"(j >= {self.padding})"

    def _fused(self) -> str:
        terms, call = self._terms(), "scaled_dot_product_attention(q, k, v"
        if not terms and not self.padding:
            return f"{call})"
        if terms == ["(j <= i)"] and not self.padding and (self.n == self.m or self.align == "top-left"):
            return f"{call}, is_causal=True)"
        together = " & ".join([*terms, *([self._real()] if self.padding else [])])
        whole = together if terms else f"{together}.expand({self.n}, {self.m})"
        return f"{self._positions()}\nattn_mask = {whole}  # True: may attend\n{call}, attn_mask=attn_mask)"

    def _module(self) -> str:
        terms, given, lines = self._terms(), "", []
        if terms or self.padding:
            lines = [self._positions()]
        if terms:
            lines += [f"attn_mask = ~({' & '.join(terms)})  # True: ignore"]
            given += ", attn_mask=attn_mask"
        if self.padding:
            lines += [f"key_padding_mask = ~{self._real()}[None]  # True: ignore"]
            given += ", key_padding_mask=key_padding_mask"
        return "\n".join([*lines, f"attention(q, k, v{given})"])

    def _hugging_face(self) -> list[str]:
        pads, reals = ["0"] * self.padding, ["1"] * (self.m - self.padding)
        row = ", ".join([*pads, *reals] if self.side == "left" else [*reals, *pads])
        lines = [f"attention_mask = torch.tensor([[{row}]])  # 1: a real token"]
        if not self.causal:
            lines += ["# every token sees every other: an encoder, such as BERT"]
        elif self.n == self.m or self.align == "bottom-right":
            lines += ["# causal: a decoder is so by itself, and its queries are the last tokens"]
        else:
            lines += ["# causal from the top left, with other numbers of queries and keys: no model does that"]
        if self.window:
            both = "  # backwards; in some encoders there is one on both sides"
            lines += [f"config.sliding_window = {self.window}{'' if self.causal else both}"]
        if self.first and self.n == self.m:
            places = ", ".join(map(str, [*range(self.first), *range(self.m - self.first)]))
            lines += [f"position_ids = torch.tensor([[{places}]])  # begin again with each text"]
        elif self.first:
            lines += ["# packed texts are read as a whole, with as many queries as keys"]
        return lines

    def states(self) -> dict[str, Any]:
        return asdict(self)

    def still(self) -> str:
        keys = [f"key {j}" for j in range(1, self.m + 1)]
        rows = [(f"query {i}", list(map(str, seen))) for i, seen in enumerate(self.visible.astype(int).tolist(), 1)]
        lines = "\n".join(f"<p>{escape(place)}</p>\n<pre>{_code(line)}</pre>" for place, line in self.lines.items())
        return f"{table('', keys, rows, 'What each query sees: 1 where it may attend')}\n{lines}"


def _code(lines: str) -> str:
    return "\n".join(map(escape, lines.split("\n")))
