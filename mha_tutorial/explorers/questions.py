"""Questions on a chapter, each wrong answer with the mistake behind it, and how far a reader has come with them."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, SupportsFloat

from .asked import ASKED, SUBJECTS, Choice, Number, Question
from .base import Explorer, escape
from .markup import marked

SUMMARY = "Answer and reasons"


@dataclass(frozen=True, repr=False)
class Quiz(Explorer):
    """The questions of a chapter.

    Where no script runs, answers and reasons are folded below each question. Where one does, an answer can be
    given, and its reason is told; what was answered is kept in the reader's browser and nowhere else.

    Parameters
    ----------
    chapter
        The name of its file, such as ``"weighted-average"``.

    Raises
    ------
    ValueError
        If there are no questions on such a chapter.

    Examples
    --------
    >>> Quiz("weighted-average")
    <explorer: Questions: weighted averages>
    """

    kind: ClassVar[str] = "quiz"
    chapter: str

    def __post_init__(self):
        if self.chapter not in ASKED:
            raise ValueError(f"there are no questions on {self.chapter!r}; there are on {', '.join(ASKED)}")

    @property
    def title(self) -> str:
        return f"Questions: {SUBJECTS[self.chapter]}"

    def states(self) -> dict[str, Any]:
        questions = ASKED[self.chapter].items()
        return {"chapter": self.chapter, "questions": [{"name": name, **_key(asked)} for name, asked in questions]}

    def still(self) -> str:
        items = "\n".join(_question(asked) for asked in ASKED[self.chapter].values())
        return f'<ol class="ex-questions">\n{items}\n</ol>'


@dataclass(frozen=True, repr=False)
class Progress(Explorer):
    """How many questions there are on each chapter and, where a script runs, how many were answered.

    Examples
    --------
    >>> Progress()
    <explorer: Questions answered>
    """

    kind: ClassVar[str] = "progress"

    @property
    def title(self) -> str:
        return "Questions answered"

    def states(self) -> dict[str, Any]:
        return {"chapters": {chapter: list(questions) for chapter, questions in ASKED.items()}}

    def still(self) -> str:
        rows = "\n".join(
            f'<tr><th scope="row">{SUBJECTS[chapter]}</th><td>{len(questions)}</td></tr>'
            for chapter, questions in ASKED.items()
        )
        return (
            "<table>\n<caption>Questions on each chapter</caption>\n"
            '<thead><tr><th scope="col">subject</th><th scope="col">questions</th></tr></thead>\n'
            f"<tbody>\n{rows}\n</tbody>\n</table>"
        )


def _key(asked: Question) -> dict[str, Any]:
    """How the script knows which answer it was given."""
    if isinstance(asked, Choice):
        return {"right": [answer.right for answer in asked.answers].index(True)}
    numbers = [asked.number(), *(slip.number() for slip in asked.slips)]
    return {"numbers": [_rounded(x, asked.digits) for x in numbers], "tolerance": asked.tolerance}


def _question(asked: Question) -> str:
    """One question as an entry of a list: what is asked, the answers to choose from, and all reasons, folded."""
    lines = "\n".join(map(escape, asked.code.splitlines()))
    code = f"<pre>{lines}</pre>\n" if lines else ""
    body = _choices(asked) if isinstance(asked, Choice) else _number(asked)
    return f'<li class="ex-question">\n<p class="ex-ask">{marked(asked.ask)}</p>\n{code}{body}\n</li>'


def _choices(asked: Choice) -> str:
    answers = "\n".join(f"<li>{marked(answer.text)}</li>" for answer in asked.answers)
    reasons = (_reason(answer.why, answer.right) for answer in asked.answers)
    folded = _folded(reasons, 'ol type="A"')
    return f'<ol class="ex-answers" type="A">\n{answers}\n</ol>\n{folded}'


def _number(asked: Number) -> str:
    places = f"{asked.digits} decimal{'s' * (asked.digits > 1)}, with a point"
    decimals = f"number, rounded to {places}" if asked.digits else "whole number"
    whys = [(asked.number(), asked.why, True), *((slip.number(), slip.why, False) for slip in asked.slips)]
    reasons = (_reason(why, right, _shown(x, asked.digits)) for x, why, right in whys)
    return f'<p class="ex-form">The answer is a {decimals}.</p>\n{_folded(reasons, "ul")}'


def _reason(why: str, right: bool, number: str = "") -> str:
    verdict = "Right." if right else "Not right."
    number = f"<b>{number}</b> " if number else ""
    return f"<li>{number}<strong>{verdict}</strong> <span>{marked(why)}</span></li>"


def _folded(reasons: Iterable[str], kind: str) -> str:
    items, end = "\n".join(reasons), kind.split()[0]
    return f'<details class="ex-reasons"><summary>{SUMMARY}</summary>\n<{kind}>\n{items}\n</{end}>\n</details>'


def _rounded(x: SupportsFloat, digits: int) -> float | int:
    rounded = round(float(x), digits) + 0.0
    return int(rounded) if digits == 0 else rounded


def _shown(x: SupportsFloat, digits: int) -> str:
    return f"{_rounded(x, digits):,.{digits}f}".replace("-", "−")
