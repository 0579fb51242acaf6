"""The map of the book, and what references show before they are followed."""

import pytest

from .conftest import CHAPTERS, VIEWS

CHAPTER = "book/torch/layer.html"
PREVIEW = "#preview:not([hidden])"


@pytest.mark.parametrize("name", [name for name in CHAPTERS if not name.startswith("book/reference/")])
def test_map_of_every_page_says_where_one_is(reader, name):
    with reader() as visit:
        visit.open(name)
        here = visit.run("() => [...document.querySelectorAll('.sidebar-map [aria-current]')].map((a) => a.title)")
        title = visit.run("() => document.querySelector('h1').firstChild.nextSibling?.data ?? ''").strip()
        numbered = visit.run("() => !!document.querySelector('h1 .section-number')")
        assert here == ([title] if numbered else [])


def test_map_marks_what_a_chapter_needs(reader):
    with reader() as visit:
        visit.open(CHAPTER)
        needed = visit.run(
            "() => [...document.querySelectorAll('.sidebar-map .needed')]"
            ".map((link) => link.pathname.split('/').pop())"
        )
        assert needed == ["numpy-layer.html", "masks.html"]
        assert visit.run("() => document.querySelector('.bd-sidebar-primary').scrollTop") == 0
        assert visit.run("() => document.querySelector('.sidebar-map p').textContent").endswith(
            "needs (framed) 11, 12"
        )


@pytest.mark.parametrize("view", VIEWS)
def test_map_on_the_first_page_marks_the_route_that_is_chosen(reader, view):
    marked = """(route) => [...document.querySelectorAll('.chapter-map li')].filter((box) =>
      getComputedStyle(box).boxShadow !== 'none').map((box) => box.classList.contains(`route-${route}`))"""
    with reader(view) as visit:
        visit.open("book/index.html")
        assert visit.page.evaluate(marked, "new") == []
        for route in ("new", "shapes", "code"):
            visit.page.locator(f".map-routes [value={route}]").check()
            found = visit.page.evaluate(marked, route)
            assert len(found) >= 5
            assert all(found)


def test_map_on_the_first_page_has_every_chapter_with_its_time(reader):
    with reader() as visit:
        visit.open("book/index.html")
        entries = visit.run("() => [...document.querySelectorAll('.chapter-map li:has(.map-facts)')].length")
        squares = visit.run("() => [...document.querySelectorAll('.sidebar-map a')].length")
        assert entries == squares >= 22


@pytest.mark.parametrize(
    ("name", "link", "shows"),
    [
        ("book/heads/multi-head.html", "#term-pruning", "head"),
        ("book/torch/layer.html", "#equation-eq-concat-is-sum", "mjx-container"),
        ("book/heads/multi-head.html", "#equation-eq-concat-is-sum", "mjx-container"),
    ],
)
def test_preview_by_mouse_and_by_keyboard(reader, name, link, shows):
    with reader(new=True) as visit:
        visit.open(name)
        target = visit.page.locator(f".bd-article a.internal[href*='{link}']").first
        for reach in ("mouse", "keyboard"):
            target.scroll_into_view_if_needed()
            if reach == "mouse":
                target.hover()
            else:
                visit.page.keyboard.press("Tab")  # from here on focus is shown
                target.focus()
            visit.page.wait_for_selector(PREVIEW)
            visit.page.wait_for_function(f"document.querySelector('#preview').innerHTML.includes('{shows}')")
            assert target.get_attribute("aria-describedby") == "preview"
            box, view = visit.page.locator("#preview").bounding_box(), visit.page.viewport_size
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= view["width"]
            visit.page.keyboard.press("Escape")
            assert visit.page.locator(PREVIEW).count() == 0
            assert target.get_attribute("aria-describedby") is None
            visit.page.mouse.move(1, 1)
        assert visit.faults == []


def test_preview_stays_while_the_mouse_is_on_it_and_goes_after(reader):
    with reader(new=True) as visit:
        visit.open("book/heads/multi-head.html")
        visit.page.locator(".bd-article a[href*='#term-pruning']").first.hover()
        visit.page.wait_for_selector(PREVIEW)
        visit.page.locator("#preview").hover()
        visit.page.wait_for_timeout(700)
        assert visit.page.locator(PREVIEW).count() == 1
        visit.page.mouse.move(1, 1)
        visit.page.wait_for_selector("#preview", state="hidden")
