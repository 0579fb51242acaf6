"""Keyboard, theme and paper: focus is seen, code can be reached, light or dark is known early, print is whole."""

import re

import pytest

from .conftest import CHAPTERS, SITE

CHAPTER = "book/heads/multi-head.html"
OUTLINE = """() => {
  const style = getComputedStyle(document.activeElement);
  return style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2
    || document.activeElement === document.body;
}"""


def test_every_stop_of_the_tab_key_is_seen(reader):
    with reader() as visit:
        visit.open(CHAPTER)
        for _ in range(60):
            visit.page.keyboard.press("Tab")
            assert visit.run(OUTLINE), visit.run("() => document.activeElement.outerHTML.slice(0, 200)")
            assert not visit.run("() => document.activeElement.matches('mjx-container:not([tabindex])')")


@pytest.mark.parametrize("name", [".primary-toggle", ".btn-fullscreen-button", ".theme-switch-button"])
def test_buttons_of_the_header_show_focus(reader, name):
    with reader() as visit:
        visit.open(CHAPTER)
        visit.page.keyboard.press("Tab")  # focus is shown to those who use the keyboard
        visit.page.locator(name).first.focus()
        assert visit.run(OUTLINE)


def folded(name):
    return 'class="solution dropdown admonition"' in (SITE / name).read_text(encoding="utf-8")


def test_wide_code_in_an_opened_solution_can_be_reached(reader):
    with reader("phone") as visit:
        reached = 0
        for name in list(filter(folded, CHAPTERS))[:5]:
            visit.open(name)
            for title in visit.page.locator(".solution > .admonition-title").all():
                title.click(position={"x": 3, "y": 3})
            visit.page.wait_for_timeout(600)
            faults = visit.run(
                "() => [...document.querySelectorAll('.solution pre')].filter((code) => code.clientWidth"
                " && (code.scrollWidth - code.clientWidth > 1) !== (code.tabIndex === 0))"
                ".map((code) => code.textContent)"
            )
            assert faults == [], name
            reached += visit.run("() => document.querySelectorAll('.solution pre[tabindex=\"0\"]').length")
        assert reached


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_light_or_dark_is_known_before_the_body(reader, colours):
    with reader("desktop-dark" if colours == "dark" else "desktop", new=True) as visit:
        visit.page.add_init_script(
            "new MutationObserver((_, seen) => { if (document.body) {"
            "  window.first = document.documentElement.dataset.theme; seen.disconnect(); } })"
            ".observe(document, {childList: true, subtree: true})"
        )
        visit.open(CHAPTER)
        assert visit.run("() => window.first") == colours


@pytest.mark.parametrize("view", ["desktop", "desktop-dark"])
def test_on_paper_all_is_light_and_whole(reader, view):
    with reader(view) as visit:
        visit.open(CHAPTER)
        visit.run("() => dispatchEvent(new Event('beforeprint'))")
        visit.page.emulate_media(media="print")
        assert visit.run("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        ink = visit.run("() => getComputedStyle(document.querySelector('article p')).color")
        assert max(map(int, re.findall(r"\d+", ink))) < 90
        assert visit.run("() => getComputedStyle(document.querySelector('.cell_output img')).filter") == "none"
        heading = visit.page.locator("article h1")
        assert heading.is_visible()
        assert re.match(r"\d+\. ", heading.inner_text())
        cut = (
            "(code) => code.scrollWidth > code.clientWidth + 1 && getComputedStyle(code).whiteSpace !== 'pre-wrap'"
        )
        assert visit.run(f"() => [...document.querySelectorAll('article pre')].filter({cut}).length") == 0
        shown = "(it) => it.offsetParent && getComputedStyle(it).visibility !== 'hidden'"
        for clutter in (".toggle-button", ".copybtn", ".search-button__button", ".bd-sidebar-primary"):
            assert visit.run(f"(s) => [...document.querySelectorAll(s)].filter({shown}).length", clutter) == 0, (
                clutter
            )
        visit.run("() => dispatchEvent(new Event('afterprint'))")
        assert visit.run("() => document.documentElement.dataset.theme") == (view.partition("-")[2] or "light")
        assert visit.page.pdf().startswith(b"%PDF")


def test_solutions_are_open_on_paper(reader):
    with reader() as visit:
        visit.open(CHAPTER)
        visit.run("() => dispatchEvent(new Event('beforeprint'))")
        visit.page.emulate_media(media="print")
        hidden = "(part) => getComputedStyle(part).visibility === 'hidden' || !part.offsetHeight"
        assert (
            visit.run(f"() => [...document.querySelectorAll('.solution > section')].filter({hidden}).length") == 0
        )


def test_cheatsheet_is_printed_on_one_sheet(reader):
    with reader() as visit:
        visit.open("book/reference/cheatsheet.html")
        paper = visit.page.pdf(prefer_css_page_size=True)
        assert len(re.findall(rb"/Type\s*/Page\b", paper)) == 1
