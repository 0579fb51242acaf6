"""Questions and cards in a browser: by mouse, touch and keyboard, remembered, forgotten, and without a script."""

import pytest

from mha_tutorial.explorers import Cards, Progress, Quiz
from mha_tutorial.explorers.asked import ASKED, Choice
from mha_tutorial.explorers.decks import DECKS
from mha_tutorial.explorers.markup import marked

from .conftest import AXE, OUTLINE, SIDEWAYS, VIOLATIONS, said

EVERY = {"quiz": lambda: Quiz("output-projection"), "cards": lambda: Cards("equations"), "progress": Progress}
of_every_kind = pytest.mark.parametrize("make", EVERY.values(), ids=EVERY)
SOME = Quiz("output-projection")
ASKED_THERE = list(ASKED["output-projection"].values())  # a number, a choice, a number, a number
PAGE = "book/reference/questions.html"
STATES = "() => JSON.parse(document.querySelector('.explorer > script').textContent)"
TEXT = "(text) => { const box = document.createElement('p'); box.innerHTML = text; return box.textContent; }"


def question(page, i):
    return page.locator(".ex-question").nth(i)


def told(page, i) -> str:
    return question(page, i).locator(".ex-told").inner_text()


def check(page, i):
    page.get_by_role("button", name=f"Check question {i + 1}", exact=True).click()


def seen(page, text) -> str:
    """What a reader sees of a text with markup."""
    return page.evaluate(TEXT, marked(text))


def focused(page, selector) -> bool:
    return page.evaluate("(selector) => document.activeElement.matches(selector)", selector)


# --- all of them --------------------------------------------------------------------------------------------------


@of_every_kind
@pytest.mark.parametrize("view", ["desktop", "desktop-dark", "phone", "phone-dark"])
def test_axe_finds_nothing(shown, make, view):
    with shown(make(), view) as page:
        page.evaluate(AXE)
        assert page.evaluate(VIOLATIONS) == []
        for button in page.get_by_role("button", name="Check").all():
            page.get_by_role("radio").first.check()
            button.click()
        for summary in page.locator("summary:visible").all():
            summary.click()
        assert page.evaluate(VIOLATIONS) == []


@of_every_kind
@pytest.mark.parametrize(("view", "size"), [("narrow", "100%"), ("desktop", "200%"), ("phone", "200%")])
def test_it_fits_a_narrow_page_and_large_text(shown, make, view, size):
    with shown(make(), view) as page:
        page.add_style_tag(content=f"html {{ font-size: {size}; }}")
        for summary in page.locator("summary:visible").all():
            summary.click()
        assert page.evaluate(SIDEWAYS) <= 0


@of_every_kind
def test_without_a_script_everything_is_there_and_no_dead_control(shown, make):
    with shown(make(), script=False) as page:
        still = page.locator(".explorer-still")
        assert still.locator("input, select, button, [tabindex]").count() == 0
        for summary in still.locator("summary").all():
            summary.click()
        text = still.inner_text()
        if make is not Progress:
            assert still.locator("details[open]").count() > 3
            assert ("Right." in text) == (make is EVERY["quiz"])
        assert page.locator(".explorer").get_attribute("aria-label") == make().title


@of_every_kind
def test_without_storage_it_works_as_long_as_the_page_is_open(shown, make):
    with shown(make()) as page:
        page.add_init_script("Object.defineProperty(window, 'localStorage', {get() { throw new Error('no'); }})")
        page.reload()
        if make is EVERY["quiz"]:
            page.get_by_role("radio").first.check()
            check(page, 1)
            assert told(page, 1).startswith("✓ Right.")
        elif make is EVERY["cards"]:
            page.get_by_role("button", name="Show the other side").click()
            page.get_by_role("button", name="I knew it").click()
            assert "1 of" in page.locator(".ex-note").inner_text()
        else:
            assert said(page).startswith("0 of ")


# --- questions ----------------------------------------------------------------------------------------------------


def test_every_answer_gets_its_own_reason(shown):
    with shown(SOME) as page:
        for i, asked in enumerate(ASKED_THERE):
            if isinstance(asked, Choice):
                given = [(answer.right, answer.why) for answer in asked.answers]
            else:
                given = [(k == 0, one.why) for k, one in enumerate([asked, *asked.slips])]
                numbers = [round(float(one.number()), asked.digits) for one in (asked, *asked.slips)]
            for k, (right, why) in enumerate(given):
                if isinstance(asked, Choice):
                    question(page, i).get_by_role("radio").nth(k).check()
                else:
                    question(page, i).get_by_role("spinbutton").fill(str(numbers[k]))
                check(page, i)
                verdict = "✓ Right." if right else "✗ Not right."
                assert told(page, i) == f"{verdict} {seen(page, why)}"
                assert said(page).startswith(f"Question {i + 1}. {verdict[2:]} {seen(page, why)}")
                assert question(page, i).locator(".ex-told.ex-right").count() == right


def test_a_number_that_no_mistake_gives_is_not_right_either(shown):
    with shown(SOME) as page:
        page.get_by_role("spinbutton").first.fill("123")
        check(page, 0)
        assert told(page, 0).startswith("✗ Not right. No usual mistake gives this number.")
        page.get_by_role("spinbutton").first.fill("")
        check(page, 0)
        assert said(page) == "Question 1: give an answer first."


@pytest.mark.parametrize("chapter", ASKED)
def test_the_script_judges_numbers_as_the_package_does(shown, chapter):
    """On a grid around every number of the chapter."""
    with shown(Quiz(chapter)) as page:
        for state, asked in zip(page.evaluate(STATES)["questions"], ASKED[chapter].values(), strict=True):
            if isinstance(asked, Choice):
                grid = range(len(asked.answers))
                expected = [{"at": k, "right": asked.answers[k].right} for k in grid]
            else:
                numbers, step = state["numbers"], 10.0**-asked.digits
                grid = [
                    round(x + k * step, asked.digits + 2) for x in numbers for k in (-1.6, -1, -0.3, 0, 0.3, 1, 1.6)
                ]
                ats = [
                    next((i for i, x in enumerate(numbers) if abs(x - y) <= 1.0001 * asked.tolerance), -1)
                    for y in grid
                ]
                expected = [{"at": at, "right": at == 0} for at in ats]
            script = "([question, grid]) => grid.map((x) => window.mhaExplorers.compute.verdict(question, x))"
            assert page.evaluate(script, [state, list(grid)]) == expected


def test_a_quiz_is_done_with_the_keyboard_alone(shown):
    """Tab to each question, arrows among its answers, Enter or the space bar to check."""
    with shown(SOME) as page:
        for i, asked in enumerate(ASKED_THERE):
            page.keyboard.press("Tab")
            assert page.evaluate(OUTLINE) >= 2
            if isinstance(asked, Choice):
                assert focused(page, "input[type=radio]")
                page.keyboard.press("Space")
                for _ in range([answer.right for answer in asked.answers].index(True)):
                    page.keyboard.press("ArrowDown")
                page.keyboard.press("Tab")
                assert page.evaluate(OUTLINE) >= 2
                page.keyboard.press("Space")
            else:
                assert focused(page, "input[type=number]")
                page.keyboard.type(str(round(float(asked.number()), asked.digits)))
                page.keyboard.press("Enter")
                page.keyboard.press("Tab")
            assert focused(page, "button")
            assert said(page).startswith(f"Question {i + 1}. Right.")
            page.keyboard.press("Tab")
            assert focused(page, "summary")
            page.keyboard.press("Enter")
            assert question(page, i).locator("details[open]").count() == 1
        assert said(page).endswith("4 of 4 answered right.")


def test_a_quiz_is_done_by_touch(shown):
    with shown(SOME, "phone", touch=True) as page:
        question(page, 1).locator("label").nth(2).tap()
        page.get_by_role("button", name="Check question 2").tap()
        assert told(page, 1).startswith("✗ Not right.")
        question(page, 1).locator("label").first.tap()
        page.get_by_role("button", name="Check question 2").tap()
        assert told(page, 1).startswith("✓ Right.")
        sizes = [
            box.bounding_box() for box in page.locator(".explorer :is(.ex-answers label, button, summary)").all()
        ]
        assert min(size["height"] for size in sizes) >= 24


def test_answers_are_kept_over_a_reload_and_can_be_cleared(shown):
    with shown(SOME) as page:
        page.get_by_role("spinbutton").first.fill("7.5")
        check(page, 0)
        page.get_by_role("radio").first.check()
        check(page, 1)
        before = [told(page, i) for i in range(4)]
        page.reload()
        assert [told(page, i) for i in range(4)] == before
        assert page.get_by_role("spinbutton").first.input_value() == "7.5"
        assert page.get_by_role("radio").first.is_checked()
        assert "1 of 4 answered right" in page.locator(".ex-tally").inner_text()
        assert said(page) == ""
        page.get_by_role("button", name="Clear these answers").click()
        for _ in range(2):
            assert [told(page, i) for i in range(4)] == [""] * 4
            assert page.get_by_role("radio", checked=True).count() == 0
            assert "0 of 4 answered right" in page.locator(".ex-tally").inner_text()
            page.reload()


@pytest.mark.parametrize("kept", ["{", "3", "null", '{"output-projection": {"output": {"answer": "x"}}}'])
def test_what_was_stored_by_something_else_does_no_harm(shown, kept):
    with shown(SOME) as page:
        page.evaluate("(kept) => localStorage.setItem('mha-questions', kept)", kept)
        page.reload()
        page.get_by_role("radio").first.check()
        check(page, 1)
        assert said(page).endswith("1 of 4 answered right.")


def test_a_verdict_goes_when_the_answer_is_changed(shown):
    with shown(SOME) as page:
        for answer in (page.get_by_role("spinbutton").first, None):
            item = page.locator(
                ".ex-question", has=page.locator("input[type=number]" if answer else "input[type=radio]")
            ).first
            (answer.fill("3") if answer else item.get_by_role("radio").nth(0).check())
            item.get_by_role("button").click()
            assert item.locator(".ex-told").inner_text()
            (answer.fill("4") if answer else item.get_by_role("radio").nth(1).check())
            assert item.locator(".ex-told").inner_text() == ""


def test_on_paper_there_are_questions_and_no_buttons(shown):
    with shown(SOME) as page:
        page.emulate_media(media="print")
        assert page.locator("button:visible").count() == 0
        assert page.locator(".ex-ask:visible").count() == 4


def test_the_page_of_questions_counts_answers_and_clears_them(reader):
    with reader("desktop", new=True) as visit:
        visit.open(PAGE)
        assert visit.run("() => window.shift") < 0.1
        assert visit.page.locator(".explorer").count() == 1 + len(ASKED)
        progress = visit.page.locator('[data-kind="progress"]')
        quiz = visit.page.locator('[data-kind="quiz"]').nth(list(ASKED).index("masks"))
        quiz.locator(".ex-question").nth(1).get_by_role("radio").nth(3).check()
        quiz.get_by_role("button", name="Check question 2").click()
        every = sum(map(len, ASKED.values()))
        assert progress.locator(".ex-say").inner_text() == f"1 of {every} questions answered right."
        visit.open("book/tensors/shapes.html")
        visit.open(PAGE)
        assert quiz.locator(".ex-told.ex-right").count() == 1
        assert progress.locator("tbody tr").nth(list(ASKED).index("masks")).locator("td").last.inner_text() == "1"
        progress.get_by_role("button", name="Clear all answers").click()
        assert quiz.locator(".ex-told.ex-right").count() == 0
        assert (
            progress.locator(".ex-say").inner_text() == f"Answers cleared. 0 of {every} questions answered right."
        )
        assert visit.faults == []


@pytest.mark.parametrize("view", ["desktop-dark", "phone"])
def test_the_questions_of_a_chapter_have_the_colours_of_its_page(reader, view):
    with reader(view) as visit:
        visit.open("book/torch/speed.html")
        box = visit.page.locator(".text_html:has(> .explorer)").last
        assert box.evaluate("(box) => getComputedStyle(box).backgroundColor") == "rgba(0, 0, 0, 0)"
        visit.page.evaluate(AXE)
        script = "() => axe.run('.explorer').then(({violations}) => violations.map(({id}) => id))"
        assert visit.run(script) == []


# --- cards --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("deck", DECKS)
def test_cards_come_back_until_they_are_known(shown, deck):
    with shown(Cards(deck)) as page:
        cards = list(DECKS[deck].values())
        for front, back in [*cards, cards[0]]:
            assert page.locator(".ex-front").inner_text() == seen(page, front)
            assert page.locator(".ex-back").inner_text() == ""
            page.get_by_role("button", name="Show the other side").click()
            assert page.locator(".ex-back").inner_text() == seen(page, back)
            assert said(page) == seen(page, back)
            first = front == cards[0][0] and page.locator(".ex-note").inner_text().startswith("0 of")
            page.get_by_role("button", name="Not yet" if first else "I knew it").click()
        assert page.locator(".ex-front").inner_text() == "You knew all of them."
        assert said(page) == f"You knew all of them. {len(cards)} of {len(cards)} known."
        page.keyboard.press("Enter")  # once too often, which does not begin again
        assert page.locator(".ex-note").inner_text() == f"{len(cards)} of {len(cards)} known"
        page.reload()
        assert page.locator(".ex-front").inner_text() == "You knew all of them."
        page.get_by_role("button", name="Begin again").click()
        assert page.locator(".ex-note").inner_text() == f"0 of {len(cards)} known"


def test_cards_are_gone_through_with_the_keyboard_alone(shown):
    with shown(Cards("shapes")) as page:
        page.keyboard.press("Tab")
        for known in range(1, 4):
            page.keyboard.press("Enter")  # show the other side; then the focus is on "I knew it"
            assert page.evaluate(OUTLINE) >= 2
            page.keyboard.press("Enter")
            assert page.locator(".ex-note").inner_text() == f"{known} of {len(DECKS['shapes'])} known"
        page.keyboard.press("Enter")
        page.keyboard.press("Tab")
        page.keyboard.press("Space")  # not yet
        assert page.locator(".ex-note").inner_text() == f"3 of {len(DECKS['shapes'])} known"
        assert page.evaluate("() => document.activeElement.textContent") == "Show the other side"
