"""Explorers in a browser: by mouse, touch and keyboard, without a script, small, large, and number by number."""

import re

import numpy as np
import pytest

from mha_tutorial.explorers import base
from tests.explorer_helpers import EXPLORERS, some_heads

from .conftest import AXE, CHAPTERS, OUTLINE, SIDEWAYS, SITE, VIOLATIONS, said

of_every_kind = pytest.mark.parametrize("kind", EXPLORERS)


def numbers(locator) -> np.ndarray:
    """The numbers in the cells of a table, row by row."""
    rows = locator.evaluate(
        "(table) => [...table.tBodies[0].rows].map((row) => [...row.cells].filter((cell) => cell.matches('td'))"
        ".map((cell) => cell.textContent))"
    )
    return np.array([[float(cell) for cell in row] for row in rows])


# --- every explorer -----------------------------------------------------------------------------------------------


@of_every_kind
@pytest.mark.parametrize("view", ["desktop", "desktop-dark", "phone", "phone-dark"])
def test_axe_finds_nothing_in_an_explorer(shown, kind, view):
    with shown(EXPLORERS[kind](), view) as page:
        page.evaluate(AXE)
        assert page.evaluate(VIOLATIONS) == []


@of_every_kind
def test_an_explorer_fits_a_narrow_page_and_large_text(shown, kind):
    for view, size in (("narrow", "100%"), ("desktop", "200%"), ("phone", "200%")):
        with shown(EXPLORERS[kind](), view) as page:
            page.add_style_tag(content=f"html {{ font-size: {size}; }}")
            assert page.evaluate(SIDEWAYS) <= 0, (view, size)


@of_every_kind
def test_without_a_script_the_content_is_there_and_no_dead_control(shown, kind):
    with shown(EXPLORERS[kind](), script=False) as page:
        still = page.locator(".explorer-still")
        assert still.is_visible()
        assert still.locator("table, svg").count() > 0
        assert still.locator("input, select, button, [tabindex]").count() == 0
        assert page.locator(".explorer").get_attribute("aria-label") == EXPLORERS[kind]().title


@of_every_kind
def test_an_explorer_is_woken_once(shown, kind):
    """As in a notebook, where every cell brings the script."""
    with shown(EXPLORERS[kind]()) as page:
        before = page.locator(".explorer").inner_html()
        page.evaluate(base.script())
        page.evaluate("() => window.mhaExplorers.start()")
        assert page.locator(".explorer").inner_html() == before
        assert page.locator(".explorer-awake").count() == 1


@of_every_kind
def test_every_control_has_a_name_and_is_reached_by_the_keyboard(shown, kind):
    with shown(EXPLORERS[kind]()) as page:
        expected = page.evaluate(
            "() => [...document.querySelectorAll('.explorer :is(select, button:enabled, input:not([type=radio]),"
            ' input[type=radio]:checked, [tabindex="0"])\')].length'
        )
        page.evaluate("() => { window.reached = new Set(); }")
        for _ in range(expected + 1):
            page.keyboard.press("Tab")
            if page.evaluate("() => document.activeElement.closest('.explorer') !== null"):
                assert page.evaluate(OUTLINE) >= 2
                page.evaluate("() => window.reached.add(document.activeElement)")
        assert page.evaluate("() => window.reached.size") == expected
        names = page.evaluate(
            "() => [...document.querySelectorAll('.explorer :is(select, input)')]"
            ".map((c) => c.getAttribute('aria-label') || c.labels[0]?.textContent.trim() || '')"
        )
        assert all(names)


def test_pages_of_the_site_get_the_script_once_and_do_not_wait_for_it():
    """And no copy of it comes with an output; pages without an explorer get none."""
    for name in CHAPTERS:
        text = (SITE / name).read_text(encoding="utf-8")
        wanted = int(base_mark in text)
        scripts = re.findall(r"<script[^>]*explorers\.js[^>]*>", text)
        assert len(scripts) == len(re.findall(r"<link[^>]*explorers\.css[^>]*>", text)) == wanted, name
        assert all("defer" in script for script in scripts)
        assert "mhaExplorers" not in text


base_mark = '<div class="explorer"'
WITH_EXPLORERS = [name for name in CHAPTERS if base_mark in (SITE / name).read_text(encoding="utf-8")]


@pytest.mark.parametrize("name", WITH_EXPLORERS)
def test_explorers_of_the_site_are_awake_and_move_nothing(reader, name):
    with reader("phone", new=True) as visit:
        visit.open(name)
        assert visit.faults == []
        assert visit.run("() => document.querySelectorAll('.explorer:not(.explorer-awake)').length") == 0
        assert visit.run("() => window.shift") < 0.1
        box = visit.page.locator(".explorer").first
        box.scroll_into_view_if_needed()
        background = box.evaluate("(b) => getComputedStyle(b.closest('.text_html') ?? b).backgroundColor")
        assert background == "rgba(0, 0, 0, 0)"


# --- heads --------------------------------------------------------------------------------------------------------


def square(page, layer, head):
    return page.get_by_role("gridcell", name=f"layer {layer}, head {head}", exact=True)


@pytest.mark.parametrize("what", ["weights", "contribution"])
def test_heads_show_the_numbers_of_the_package(shown, what):
    heads = some_heads()
    with shown(heads) as page:
        page.get_by_role("radio", name=what).check()
        for layer, head in np.ndindex(3, 5):
            page.get_by_role("combobox", name="Layer").select_option(str(layer))
            page.get_by_role("combobox", name="Head").select_option(str(head))
            found = numbers(page.get_by_role("grid", name="One head"))
            if what == "weights":
                np.testing.assert_allclose(found, 100 * heads.attention[layer, head], atol=0.55)
            else:
                np.testing.assert_allclose(found, heads.contributions[layer, head], rtol=0.0051)


def test_heads_are_chosen_by_mouse(shown):
    heads = some_heads()
    with shown(heads) as page:
        square(page, 2, 3).click()
        assert square(page, 2, 3).get_attribute("aria-selected") == "true"
        assert page.get_by_role("combobox", name="Layer").input_value() == "2"
        assert page.locator("caption").inner_text() == "Layer 2, head 3: weights in percent"
        key = int(heads.attention[2, 3, 3].argmax())
        weight = 100 * heads.attention[2, 3, 3, key]
        assert said(page).startswith(
            f"Layer 2, head 3: “<b>.</b>” attends to “{heads.keys[key].strip()}” {weight:.0f} %"
        )
        page.get_by_role("grid", name="One head").locator("tbody tr").nth(1).locator("td").nth(0).click()
        assert said(page) == f"Layer 2, head 3: “sat” attends to “She” {100 * heads.attention[2, 3, 1, 0]:.0f} %."


def test_heads_are_chosen_by_keyboard(shown):
    heads = some_heads()
    with shown(heads) as page:
        square(page, 0, 0).focus()
        for key in (
            "ArrowDown",
            "ArrowRight",
            "ArrowRight",
            "ArrowUp",
            "ArrowUp",
            "End",
            "ArrowRight",
            "Home",
            "ArrowDown",
        ):
            page.keyboard.press(key)
        assert page.evaluate("() => document.activeElement.getAttribute('aria-label')") == "layer 1, head 0"
        assert page.locator("caption").inner_text().startswith("Layer 1, head 0")
        for _ in range(2):  # over the tokens, to the cells
            page.keyboard.press("Tab")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowUp")
        page.keyboard.press("ArrowRight")
        weight = 100 * heads.attention[1, 0, 1, 1]
        assert said(page) == f"Layer 1, head 0: “sat” attends to “sat” {weight:.0f} %."
        assert page.locator(".ex-at").count() == 1
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("ArrowRight")
        assert said(page).startswith("Layer 1, head 0: “down” attends to")


def test_heads_are_chosen_by_touch(shown):
    with shown(some_heads(), "phone", touch=True) as page:
        square(page, 1, 2).tap()
        page.locator(".ex-tokens label").first.tap()
        assert said(page) == "Layer 1, head 2: “She” attends to “She” 100 %."


def test_without_contributions_there_is_nothing_to_choose(shown):
    with shown(some_heads(contributions=False)) as page:
        assert page.get_by_role("radio", name="contribution").count() == 0
        assert page.locator("canvas").count() == 15


@pytest.mark.parametrize("view", ["desktop", "desktop-dark"])
def test_a_square_is_dark_where_the_weight_is_large(shown, view):
    heads = some_heads()
    with shown(heads, view) as page:
        for layer, head in ((0, 0), (2, 4)):
            rgba = square(page, layer, head).evaluate(
                "(it) => [...it.firstChild.getContext('2d').getImageData(0, 0, 4, 4).data]"
            )
            opacity = rgba[3::4]
            expected = 255 * np.sqrt(heads.attention[layer, head]).reshape(-1)
            np.testing.assert_allclose(opacity, expected, atol=0.5 + 255 * np.sqrt(0.0005))
