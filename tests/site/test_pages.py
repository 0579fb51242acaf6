"""Every page loads without a fault, says what it is, and fits the screens it is read on."""

import re

import pytest

from .conftest import CHAPTERS, PAGES, SITE

# Boxes with formulas that do not fit must scroll, fade out where they go on, and be reached by keyboard.
FORMULAS = """() => [...document.querySelectorAll("mjx-container")].flatMap((formula) => {
  const box = formula.getBoundingClientRect();
  if (!box.width || !formula.closest("article")) return [];
  const faults = [], name = formula.textContent.slice(0, 40);
  const hidden = formula.scrollWidth - formula.clientWidth > 1;
  const outer = formula.closest(".pst-scrollable-table-container, pre, .cell_output");
  const display = formula.matches("[display], .wide");
  if (display && hidden && getComputedStyle(formula).overflowX !== "auto") faults.push("does not scroll");
  if (display && hidden && getComputedStyle(formula).maskImage === "none") faults.push("is cut without a sign");
  if (display && hidden !== formula.matches("[tabindex='0']")) faults.push("has the wrong tab order");
  if (!display && formula.matches("[tabindex]")) faults.push("is a stop of the Tab key");
  if (!outer && box.right > document.documentElement.clientWidth + 1) faults.push("leaves the screen");
  const number = formula.parentElement.querySelector(":scope > .eqno");
  if (number && innerWidth < 600 && number.getBoundingClientRect().top < box.bottom - 2)
    faults.push("has its number beside it");
  return faults.map((fault) => `${name} ${fault}`);
})"""
BLOCKING = """() => performance.getEntriesByType("resource").filter(
  (it) => it.initiatorType === "script" && it.renderBlockingStatus === "blocking").map(({name}) => name)"""
MOST_BYTES = 1_500_000  # that a first visit may take, compressed
SIDEWAYS = """() => Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)
  - document.documentElement.clientWidth"""


@pytest.mark.parametrize("name", PAGES)
def test_a_page_loads_clean_and_says_what_it_is(reader, name):
    with reader("desktop", new=True) as visit:
        visit.open(name)
        assert visit.faults == []
        assert visit.run("() => window.shift") < 0.1
        assert visit.run(BLOCKING) == []
        assert visit.bytes() < MOST_BYTES
        assert visit.run("() => document.title").strip()
        assert visit.run("() => document.querySelectorAll('meta[name=viewport]').length") == 1
        assert visit.run("() => ['light', 'dark'].includes(document.documentElement.dataset.theme)")
        ids = visit.run("() => [...document.querySelectorAll('[id]')].map(({id}) => id)")
        assert sorted(set(ids)) == sorted(ids)
        assert visit.run("() => [...document.images].filter((i) => i.closest('article') && !i.height).length") == 0
        assert visit.run(FORMULAS) == []
        brand = visit.page.locator(".navbar-brand")
        assert brand.inner_text().strip() == "Multi-Head Attention, Tested"
        assert brand.evaluate("(link) => link.pathname") == "/book/index.html"
        footer = visit.page.locator(".bd-footer-content").inner_text()
        for fact in ("Home", "version", "MIT licence", "CC BY 4.0", "To cite it"):
            assert fact in footer
        if name in CHAPTERS:  # offered as a file, in the header and in the footer
            files = visit.run("() => [...document.querySelectorAll('a[download]')].map((link) => link.pathname)")
            (source,) = {file.removeprefix("/") for file in files if "/_sources/" in file}
            assert re.fullmatch(rf"_sources/{name.removesuffix('.html')}\.(ipynb|md)", source)
            assert (SITE / source).stat().st_size > 0


@pytest.mark.parametrize("name", PAGES)
def test_a_page_fits_a_phone(reader, name):
    with reader("phone") as visit:
        visit.open(name)
        assert visit.faults == []
        assert visit.run("() => window.shift") < 0.1
        assert visit.run(SIDEWAYS) <= 0
        assert visit.run(FORMULAS) == []
        visit.page.set_viewport_size({"width": 320, "height": 640})
        visit.page.wait_for_timeout(500)
        assert visit.run(SIDEWAYS) <= 0
        assert visit.run(FORMULAS) == []


def test_the_entrance_leads_to_the_first_page(reader):
    with reader("desktop") as visit:
        entrance = (SITE / "index.html").read_text(encoding="utf-8")
        assert "<title>" in entrance
        assert 'rel="icon"' in entrance
        visit.page.goto(visit.address)
        visit.page.wait_for_url("**/book/index.html")
        assert visit.faults == []


def test_entries_of_the_bibliography_are_linked_and_readable(reader):
    with reader("desktop") as visit:
        visit.open("book/reference/bibliography.html")
        entries = visit.page.locator(".citation")
        assert entries.count() > 5
        for entry in entries.all():
            text = entry.inner_text()
            assert entry.locator("a[href^=http]").count() > 0, text
            assert not re.search(r"[$\\{}]", text), text


def test_identifiers_of_the_notation_stay_whole(reader):
    with reader("phone") as visit:
        visit.open("book/notation.html")
        broken = visit.run(
            "() => [...document.querySelectorAll('article td code')]"
            ".filter((code) => code.getClientRects().length > 1).map((code) => code.textContent)"
        )
        assert [code for code in broken if not re.search(r"[\s,]", code)] == []


def test_formulas_take_about_the_room_kept_for_them(reader):
    with reader("desktop") as visit:
        visit.open("book/notation.html")
        rooms = visit.run(
            """() => [...document.querySelectorAll('article span.math')].map((formula) => [
              parseFloat(formula.style.getPropertyValue('--room')),
              formula.getBoundingClientRect().width / parseFloat(getComputedStyle(formula).fontSize),
            ]).filter(([, width]) => width)"""
        )
        assert len(rooms) > 50
        assert sum(abs(kept - taken) for kept, taken in rooms) / len(rooms) < 0.5
