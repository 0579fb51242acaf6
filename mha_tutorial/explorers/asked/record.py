"""What a question is made of. Texts are light markup: `code`, *stress*, d_model and W^Q, and 2^{-8}."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import SupportsFloat


@dataclass(frozen=True)
class Answer:
    """One of several answers, and why it is right or which mistake leads to it."""

    text: str
    why: str
    right: bool


def right(text: str, why: str) -> Answer:
    return Answer(text, why, True)


def wrong(text: str, why: str) -> Answer:
    return Answer(text, why, False)


@dataclass(frozen=True)
class Choice:
    """A question with several answers, one of them right."""

    ask: str
    answers: Sequence[Answer]
    code: str = ""


@dataclass(frozen=True)
class Slip:
    """A number that a named mistake gives, computed with that mistake."""

    number: Callable[[], SupportsFloat]
    why: str


@dataclass(frozen=True)
class Number:
    """A question whose answer is a number that the package computes.

    Attributes
    ----------
    digits
        How many decimals are asked for. Without any, the number must be met exactly, and otherwise up to one in the
        last of them.
    """

    ask: str
    number: Callable[[], SupportsFloat]
    why: str
    slips: Sequence[Slip]
    digits: int = 0
    code: str = ""

    @property
    def tolerance(self) -> float:
        return 10.0**-self.digits if self.digits else 0.0


Question = Choice | Number
