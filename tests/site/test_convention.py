"""Rows or columns: chosen once, kept across pages, references and visits."""

import pytest

from .conftest import CHAPTERS, SITE

SHOWN = """() => [...document.querySelectorAll("[data-sync-group=convention]")]
  .filter((label) => document.getElementById(label.htmlFor).checked).map((label) => label.dataset.syncId)"""
WITH_TABS = [
    name for name in CHAPTERS if 'data-sync-group="convention"' in (SITE / name).read_text(encoding="utf-8")
]


def choose(visit, convention):
    visit.page.locator(f"label[data-sync-group=convention][data-sync-id={convention}]").first.click()


def test_some_pages_have_tabs(address):
    assert len(WITH_TABS) >= 5


@pytest.mark.parametrize("name", WITH_TABS)
def test_every_tab_of_a_page_shows_one_side(reader, name):
    with reader(new=True) as visit:
        for query, side in (("", "row"), ("?convention=column", "column")):
            visit.open(name + query)
            assert set(visit.run(SHOWN)) == {side}
        choose(visit, "row")
        assert set(visit.run(SHOWN)) == {"row"}
        assert visit.faults == []


@pytest.mark.parametrize("convention", ["row", "column"])
def test_a_choice_is_kept_on_the_other_pages(reader, convention):
    with reader(new=True) as visit:
        visit.open(WITH_TABS[0])
        choose(visit, "column")
        choose(visit, convention)
        for name in WITH_TABS[1:3]:
            visit.open(name)
            assert set(visit.run(SHOWN)) == {convention}


@pytest.mark.parametrize(("convention", "first"), [("row", 0), ("column", 1)])
def test_references_lead_to_what_is_shown(reader, convention, first):
    with reader(new=True) as visit:
        visit.open(WITH_TABS[0] + f"?convention={convention}")
        for name in WITH_TABS[first::2]:
            visit.open(name)
            links = visit.run(
                "() => [...document.querySelectorAll('article p > a.reference[href*=\"#equation-\"]')]"
                ".filter((link) => link.offsetParent).map((link) => link.href)"
            )
            for link in links[:1]:
                visit.open(link.removeprefix(visit.address))
                assert set(visit.run(SHOWN)) <= {convention}, link
                above = visit.run("() => document.querySelector(location.hash).getBoundingClientRect().top")
                assert -50 < above < 800, link
        assert visit.faults == []
