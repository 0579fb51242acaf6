"""Cards to learn from: a symbol, a shape or an equation on one side, what it is on the other."""

from dataclasses import dataclass
from typing import Any, ClassVar

from .base import Explorer
from .decks import DECKS
from .markup import marked


@dataclass(frozen=True, repr=False)
class Cards(Explorer):
    """A deck of cards, asked one after the other, and again until they are known.

    Where no script runs they are a list, in which the second side of each is folded. What is known is kept in the
    reader's browser and nowhere else.

    Parameters
    ----------
    deck
        ``"symbols"``, ``"shapes"`` or ``"equations"``.

    Raises
    ------
    ValueError
        If there is no such deck.

    Examples
    --------
    >>> Cards("shapes")
    <explorer: Cards: shapes>
    """

    kind: ClassVar[str] = "cards"
    deck: str

    def __post_init__(self):
        if self.deck not in DECKS:
            raise ValueError(f"there is no deck {self.deck!r}; there are {', '.join(DECKS)}")

    @property
    def title(self) -> str:
        return f"Cards: {self.deck}"

    def states(self) -> dict[str, Any]:
        return {"deck": self.deck, "cards": list(DECKS[self.deck])}

    def still(self) -> str:
        cards = "\n".join(
            f"<li><details><summary>{marked(front)}</summary>\n<p>{marked(back)}</p></details></li>"
            for front, back in DECKS[self.deck].values()
        )
        return f'<ol class="ex-cards">\n{cards}\n</ol>'
