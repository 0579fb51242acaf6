"""Questions and cards: well formed, computed right, and complete without a script."""

import html
import json
import math
import re
from collections import Counter
from fractions import Fraction

import equations
import pytest

from mha_tutorial.explorers import Cards, Progress, Quiz, questions
from mha_tutorial.explorers.asked import ASKED, SUBJECTS, Choice, Number
from mha_tutorial.explorers.decks import DECKS
from mha_tutorial.explorers.markup import marked

EVERY = {f"{chapter}: {name}": asked for chapter, some in ASKED.items() for name, asked in some.items()}
CHOICES = {name: asked for name, asked in EVERY.items() if isinstance(asked, Choice)}
NUMBERS = {name: asked for name, asked in EVERY.items() if isinstance(asked, Number)}
every_question = pytest.mark.parametrize("asked", EVERY.values(), ids=EVERY)
every_choice = pytest.mark.parametrize("asked", CHOICES.values(), ids=CHOICES)
every_number = pytest.mark.parametrize("asked", NUMBERS.values(), ids=NUMBERS)
every_chapter = pytest.mark.parametrize("chapter", ASKED)
PARTS = ("attention", "heads", "tensors", "torch", "model", "practice")

ln, e = math.log, math.exp
BY_HAND = {  # each worked out without the package
    "weighted-average: average": Fraction(4 + 8 + 2 * 20, 4),
    "scaled-dot-product: lead": e(2) / (e(2) + 1),
    "scaled-dot-product: variance": 9 * 4**2,
    "words-in-context: river": e((3 * 2 - 3 * 1) / 2),
    "multi-head: pruned": Fraction(3 + 3 * 9, 4) * 2,
    "why-heads: bound": Fraction(4, 16),
    "why-heads: anywhere": 1,
    "output-projection: output": 4 * 1 + 2 * Fraction(1, 2) + 1 * 0 + 3 * 1,
    "output-projection: powers": Fraction(8, 8 + 2 + 2 + 1),
    "output-projection: terms": 1 + 24 * 16 + 24,
    "papers-form: numbers": 2 * 512 * 64,
    "counting: parameters": 2 * 64 * 64 + 2 * 64 * 2 * 8,
    "counting: longer": Fraction(4 * 2 + 2 * 4, 4 + 2),
    "counting: causal": Fraction(4 * 2048 * 1024 + 2049 * 2048, 4 * 2048 * 1024 + 2 * 2048**2),
    "counting: cache": 24 * 4 * (64 + 64) * 2,
    "numpy-layer: sink": Fraction(3, 4),
    "numpy-layer: bias": 4 * 2,
    "masks: hidden": Fraction(8 + 3 * 4, 4),
    "masks: triangle": 2,
    "gradients: score": Fraction(1, 4) * (12 - 7),
    "gradients: zero": Fraction(2, 10),
    "layer: dropout": Fraction(1, 4) / Fraction(8, 10),
    "layer: nothing": 1 / Fraction(3, 2),
    "speed: factor": 1 / ln(2) / 4,
    "speed: median": 2,
    "flash: sum": Fraction(5, 4) / 4 + 1,
    "flash: merge": Fraction(3 + 2 * 9, 3),
    "flash: tiles": 8 * 9 // 2,
    "devices: bias": 3 * 2,
    "devices: ring": 2 * 7 * 8,
    "devices: payload": 2,
    "positions: turned": 2 * -3 + -1 * 0,
    "positions: slope": e(-2),
    "block: norm": 5 / math.sqrt(35 / 3),
    "block: stream": 25,
    "block: gated": 3 * 96 * 256,
    "decoding: third": Fraction(6 + 3 * 2 + 4, 5),
    "decoding: chunk": 6,
    "decoding: bytes": 40 * 4096 * 8 * 256 * 2 // 2**20,
    "decoding: batch": 23,
    "real-heads: induction": Fraction(6 + 5, 20),
    "real-heads: cuts": 10,
    "generation: temperature": Fraction(9, 10),
    "generation: top-p": Fraction(5, 8),
    "generation: work": 50 * 100 + 99 * 100 // 2,
    "training: places": 32 - 12,
    "training: scores": 9,
    "field-guide: ones": Fraction(3, 8),
    "field-guide: groups": 1,
    "layouts: row": 32 + 2 * 8 + 3,
}


def texts(asked) -> list[str]:
    """Every text of a question but its code."""
    others = asked.answers if isinstance(asked, Choice) else asked.slips
    own = [asked.ask] + ([asked.why] if isinstance(asked, Number) else [answer.text for answer in asked.answers])
    return own + [other.why for other in others]


def numbers_of(asked: Number) -> list[float]:
    """The right number, and then those of the slips."""
    return [float(one.number()) for one in (asked, *asked.slips)]


def plain(text: str) -> str:
    """What a reader sees of some HTML."""
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", "", text))).strip()


def states(explorer) -> dict:
    (found,) = re.findall(r'<script type="application/json">(.*?)</script>', explorer.html(), re.DOTALL)
    return json.loads(found)


# --- the questions ------------------------------------------------------------------------------------------------


def test_every_chapter_has_three_to_five_questions():
    chapters = [path.stem for path in equations.chapters() if path.parent.name in PARTS]
    assert list(ASKED) == list(SUBJECTS) == chapters
    assert {len(some) for some in ASKED.values()} <= {3, 4, 5}


@every_choice
def test_a_choice_has_one_right_answer_among_several_different_ones(asked):
    assert sum(answer.right for answer in asked.answers) == 1
    assert len({answer.text for answer in asked.answers}) == len(asked.answers) >= 3


@every_question
def test_everything_has_a_reason_and_is_a_sentence(asked):
    reasons = [other.why for other in (asked.answers if isinstance(asked, Choice) else asked.slips)]
    reasons += [asked.why] if isinstance(asked, Number) else []
    assert len(set(reasons)) == len(reasons) >= 3
    assert all(len(reason) > 10 and reason.endswith((".", "?")) for reason in reasons)
    assert asked.ask.rstrip().endswith("?")


@every_question
def test_markup_is_closed_and_the_same_in_every_browser(asked):
    for text in texts(asked):
        assert text.count("`") % 2 == 0
        assert text == text.strip()
        assert not re.search(r"\$|\\|  |\n", text)
        outside = re.sub(r"<code>.*?</code>", "", marked(text))
        assert not re.search(r"[{}^]|\w_\w|\*", outside), outside
    assert all(len(line) <= 76 for line in asked.code.splitlines())


def test_neither_place_nor_length_gives_the_right_answer_away():
    choices = list(CHOICES.values())
    places = Counter([answer.right for answer in asked.answers].index(True) for asked in choices)
    assert set(places) == {0, 1, 2, 3}
    assert min(places.values()) > len(choices) / 6
    longest = [max(asked.answers, key=lambda answer: len(answer.text)).right for asked in choices]
    shortest = [min(asked.answers, key=lambda answer: len(answer.text)).right for asked in choices]
    assert max(sum(longest), sum(shortest)) < len(choices) / 3


@every_number
def test_numbers_are_finite_and_wrong_ones_far_from_each_other(asked):
    numbers = numbers_of(asked)
    assert all(map(math.isfinite, numbers))
    assert len(numbers) >= 3
    for i, one in enumerate(numbers):
        for other in numbers[:i]:
            assert abs(one - other) > max(2.1 * asked.tolerance, 1e-9)


@every_number
def test_a_number_is_rounded_alike_everywhere(asked):
    """None lies where rounding in another order could move its last decimal."""
    for number in numbers_of(asked):
        place = number * 10**asked.digits % 1
        assert abs(place - 0.5) > 1e-6
        if asked.digits == 0:
            assert min(place, 1 - place) < 1e-9


def test_each_number_is_also_worked_out_by_hand():
    assert set(BY_HAND) == set(NUMBERS)


@pytest.mark.parametrize("name", BY_HAND)
def test_a_number_is_what_was_worked_out_by_hand(name):
    assert float(NUMBERS[name].number()) == pytest.approx(float(BY_HAND[name]), rel=1e-12)


# --- what stands in a page ----------------------------------------------------------------------------------------


@every_chapter
def test_without_a_script_a_quiz_has_every_text(chapter):
    still = Quiz(chapter).still()
    items = still.split('<li class="ex-question">')[1:]
    assert len(items) == len(ASKED[chapter])
    for item, asked in zip(items, ASKED[chapter].values(), strict=True):
        shown = plain(item)
        assert all(plain(marked(text)) in shown for text in texts(asked))
        assert plain(html.escape(asked.code)) in shown
        assert item.count("<strong>Right.</strong>") == item.count("<details") == 1
        assert not re.search(r"<(input|button|select)", item)


@every_chapter
def test_the_script_knows_the_right_answers(chapter):
    quiz = Quiz(chapter)
    assert quiz.html() == Quiz(chapter).html()
    found = states(quiz)
    assert found["chapter"] == chapter
    assert [question["name"] for question in found["questions"]] == list(ASKED[chapter])
    for question, asked in zip(found["questions"], ASKED[chapter].values(), strict=True):
        if isinstance(asked, Choice):
            assert asked.answers[question["right"]].right
        else:
            assert question["tolerance"] == asked.tolerance
            assert question["numbers"] == pytest.approx(numbers_of(asked), abs=max(asked.tolerance, 1e-9) / 2)


@every_chapter
def test_a_chapter_asks_its_questions_before_it_sums_up(chapter):
    (path,) = equations.ROOT.glob(f"book/*/{chapter}.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = ["".join(cell["source"]) for cell in cells]
    (at,) = [i for i, source in enumerate(sources) if f'Quiz("{chapter}")' in source]
    assert sources[at - 1].startswith(f"## Questions: {SUBJECTS[chapter]}\n")
    assert sources[at + 1].startswith(":::{admonition} What you saw")
    (output,) = cells[at]["outputs"]
    assert "".join(output["data"]["text/html"]) == Quiz(chapter).html()


def test_numbers_are_shown_with_the_decimals_that_are_asked_for():
    still = plain(Quiz("block").still())
    assert "73,728 Right." in still
    assert "The answer is a whole number." in still
    assert "1.464 Right." in still
    assert "The answer is a number, rounded to 3 decimals, with a point." in still
    assert "−6 Right." in plain(Quiz("positions").still())
    assert "The answer is a number, rounded to 1 decimal, with a point." in plain(Quiz("masks").still())


def test_the_code_of_a_question_keeps_its_lines_and_is_no_html():
    asked = Choice("a?", [], code="x < 1\ny")
    assert "<pre>x &lt; 1\ny</pre>" in questions._question(asked)


def test_progress_lists_every_chapter():
    assert states(Progress())["chapters"] == {chapter: list(some) for chapter, some in ASKED.items()}
    still = Progress().still()
    for chapter, some in ASKED.items():
        assert f'<th scope="row">{SUBJECTS[chapter]}</th><td>{len(some)}</td>' in still
    assert repr(Progress()) == "<explorer: Questions answered>"


@pytest.mark.parametrize("chapter", ["weighted average", "", "glossary"])
def test_a_chapter_without_questions_is_refused(chapter):
    with pytest.raises(ValueError, match=r"there are no questions on .*; there are on weighted-average, "):
        Quiz(chapter)


# --- cards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deck", DECKS)
def test_a_deck_has_two_sides_of_every_card(deck):
    cards = Cards(deck)
    assert states(cards) == {"deck": deck, "cards": list(DECKS[deck])}
    still = cards.still()
    assert still.count("<li>") == still.count("<summary>") == len(DECKS[deck])
    fronts = [front for front, _ in DECKS[deck].values()]
    assert len(set(fronts)) == len(fronts) >= 12
    for front, back in DECKS[deck].values():
        assert f"<summary>{marked(front)}</summary>\n<p>{marked(back)}</p>" in still
        assert back.endswith(".")
        assert not re.search(r"[{}]|\$", marked(front + back))


def test_a_deck_that_is_not_there_is_refused():
    with pytest.raises(ValueError, match="there is no deck 'verbs'; there are symbols, shapes, equations"):
        Cards("verbs")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d_model < 2", "d<sub>model</sub> &lt; 2"),
        ("`d_model` *and* W_h^Q", "<code>d_model</code> <em>and</em> W<sub>h</sub><sup>Q</sup>"),
        ("e^{-1/2}", "e<sup>−1/2</sup>"),
        ("e^{q·k/√d_k}", "e<sup>q·k/√d<sub>k</sub></sup>"),
        ("(a)^T", "(a)<sup>T</sup>"),
        ("`<b>`", "<code>&lt;b&gt;</code>"),
    ],
)
def test_markup(text, expected):
    assert marked(text) == expected
