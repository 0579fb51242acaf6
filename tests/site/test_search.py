"""The search finds what readers look for, shows text rather than sources, and can be left and used by keyboard."""

import re
import tomllib
from pathlib import Path

import pytest

QUERIES = tomllib.loads((Path(__file__).parent / "queries.toml").read_text(encoding="utf-8"))
RANK = """(query) => {
  const found = Search._performSearch(...Search._parseQuery(query)).reverse();
  return [...new Set(found.map(([page]) => page))];
}"""


@pytest.fixture
def results(reader):
    with reader() as visit:
        visit.open("search.html")
        visit.page.wait_for_function("() => Search.hasIndex()")
        yield lambda query: visit.run(RANK, query)


@pytest.mark.parametrize(("places", "query"), [(rank, query) for rank in QUERIES for query in QUERIES[rank]])
def test_a_query_finds_its_page(results, places, query):
    found = results(query)[: {"first": 1, "among_three": 3}[places]]
    assert f"book/{QUERIES[places][query]}" in found


def test_results_of_equal_score_come_in_the_order_of_the_book(reader):
    with reader() as visit:
        visit.open("search.html?q=tokens")
        visit.page.wait_for_selector("ul.search li:nth-of-type(8)")
        found = visit.run(
            "() => [...document.querySelectorAll('ul.search > li > a')]"
            ".map((link) => [Math.round(+link.dataset.score), parseInt(link.textContent)])"
        )
    for score in {score for score, _ in found}:
        numbers = [number for other, number in found if other == score and number]
        assert numbers == sorted(numbers)


@pytest.mark.parametrize("query", ["softmax", "values", "projection"])
def test_previews_are_text_of_the_article(reader, query):
    with reader() as visit:
        visit.open(f"search.html?q={query}")
        visit.page.wait_for_selector("ul.search p.context")
        visit.page.wait_for_load_state("networkidle")
        previews = visit.page.locator("ul.search p.context").all_inner_texts()
        assert previews
        for preview in previews:
            assert not re.search(r"\\[a-zA-Z(\[]|\\begin|\$\$", preview), preview
            assert "Contents" not in preview[:40]
        status = visit.page.locator("[role=status]").inner_text()
        assert re.search(r"found \d+ page", status)
        assert visit.faults == []


def test_the_first_result_is_near_by_keyboard(reader):
    with reader() as visit:
        visit.open("search.html?q=softmax")
        visit.page.wait_for_selector("ul.search li a")
        for _ in range(3):
            visit.page.keyboard.press("Tab")
            if visit.run("() => !!document.activeElement.closest('ul.search li:first-of-type')"):
                return
        pytest.fail("three stops on, the first result is not reached")


@pytest.mark.parametrize("opened_by", ["button", "keys"])
def test_the_search_over_a_page_holds_focus_and_can_be_left(reader, opened_by):
    with reader() as visit:
        visit.open("book/notation.html")
        button = visit.page.locator(".bd-sidebar-primary .search-button__button")
        button.focus()
        visit.page.keyboard.press("Enter" if opened_by == "button" else "Control+K")
        dialog = visit.page.locator("[role=dialog][aria-modal=true]")
        dialog.locator("input").wait_for(state="visible")
        for key in ("Tab", "Tab", "Shift+Tab"):
            visit.page.keyboard.press(key)
            assert visit.run("() => document.activeElement.id") == "search-input"
        visit.page.keyboard.press("Escape")
        assert not dialog.locator("input").is_visible()
        assert button.evaluate("(it) => it === document.activeElement")


def test_a_query_typed_over_a_page_leads_to_its_results(reader):
    with reader() as visit:
        visit.open("book/notation.html")
        visit.page.keyboard.press("Control+K")
        visit.page.keyboard.type("causal mask")
        visit.page.keyboard.press("Enter")
        visit.page.wait_for_url("**/search.html?q=causal+mask")
        visit.page.wait_for_selector("ul.search li a")
