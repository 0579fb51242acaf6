"""Explorers in a browser: by mouse, touch and keyboard, without a script, small, large, and number by number."""

import re
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from mha_tutorial.explorers import MaskBuilder, OutputProjection, Shapes, base
from mha_tutorial.explorers.heads import view as view_heads
from tests.explorer_helpers import (
    EXPLORERS,
    SIZES,
    mask_states,
    some_flash,
    some_heads,
    some_mask,
    some_projection,
    some_query,
)

from .conftest import AXE, CHAPTERS, OUTLINE, SIDEWAYS, SITE, VIOLATIONS, said

of_every_kind = pytest.mark.parametrize("kind", EXPLORERS)


def numbers(locator) -> np.ndarray:
    """The numbers in the cells of a table, row by row; a cell that is hidden is empty, and counts as zero."""
    rows = locator.evaluate(
        "(table) => [...table.tBodies[0].rows].map((row) => [...row.cells].filter((cell) => cell.matches('td'))"
        ".map((cell) => cell.textContent))"
    )
    return np.array([[float(cell or 0) for cell in row] for row in rows])


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


@pytest.mark.parametrize("view", ["narrow", "phone", "desktop"])
def test_a_text_of_many_tokens_scrolls_within_its_explorer(shown, view):
    words = [f"token {i:02}" for i in range(30)]
    with shown(view_heads([np.full((2, 30, 30), 1 / 30)], words), view) as page:
        assert page.evaluate(SIDEWAYS) <= 0
        assert page.locator(".ex-scroll").first.evaluate("(box) => box.scrollWidth > box.clientWidth")


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
                unit = 10.0 ** min(0, np.floor(np.log10(heads.contributions[layer].max())) - 2)
                np.testing.assert_allclose(found, heads.contributions[layer, head], rtol=0.0051, atol=0.51 * unit)


def test_what_comes_next_is_told_with_all_heads_and_without_the_one_that_is_shown(shown):
    heads = some_heads()
    with shown(heads) as page:
        table = page.locator(".explorer table").nth(1)
        for layer, head in ((0, 0), (2, 3), (1, 4)):
            square(page, layer, head).click()
            assert table.locator("th").nth(1).inner_text() == f"without layer {layer}, head {head}"
            following = heads.following
            lists = [
                (following.words, following.shares),
                (following.words_without[layer][head], following.shares_without[layer][head]),
            ]
            for i, (words, shares) in enumerate(lists):
                cells = [row.locator("td").nth(i).inner_text() for row in table.locator("tbody tr").all()]
                assert [cell.rpartition(" ")[0].rpartition(" ")[0] for cell in cells] == [
                    f"“{word.strip() or '␣'}”" for word in words
                ]
                found = [float(cell.split()[-2]) for cell in cells]
                np.testing.assert_allclose(found, 100 * np.array(shares), atol=0.56)


def test_heads_are_chosen_by_mouse(shown):
    heads = some_heads()
    with shown(heads) as page:
        square(page, 2, 3).click()
        assert square(page, 2, 3).get_attribute("aria-selected") == "true"
        assert page.get_by_role("combobox", name="Layer").input_value() == "2"
        assert page.locator("caption").first.inner_text() == "Layer 2, head 3: weights in percent"
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
        assert page.locator("caption").first.inner_text().startswith("Layer 1, head 0")
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


def test_the_table_follows_the_word_that_was_chosen(shown):
    with shown(some_heads()) as page:
        page.locator(".ex-tokens label").nth(1).click()
        page.keyboard.press("Tab")  # into the row of that word
        assert page.evaluate("() => document.activeElement.parentElement.rowIndex") == 2
        page.keyboard.press("Control+End")
        assert page.evaluate("() => document.activeElement.parentElement.rowIndex") == 4
        page.keyboard.press("Control+Home")
        assert page.evaluate("() => document.activeElement.parentElement.rowIndex") == 1
        assert page.evaluate("() => scrollY") == 0 or page.locator(".ex-at").is_visible()


def test_words_that_come_again_are_told_apart_and_later_ones_are_hidden(shown):
    attention = np.tril(np.ones((2, 3, 3))) / np.arange(1, 4)[:, None]
    with shown(view_heads([attention], ["the", " cat", " the"])) as page:
        assert said(page) == "Layer 0, head 0: “the” (3) attends to “the” (1) 33 %, “cat” 33 %, “the” (3) 33 %."
        assert page.get_by_role("radio", name="the (3)").is_checked()
        page.get_by_role("grid", name="One head").locator("tbody tr").nth(0).locator("td").nth(1).click()
        assert said(page) == "Layer 0, head 0: “cat” comes after “the” (1), and is hidden from it."


def test_without_contributions_there_is_nothing_to_choose(shown):
    with shown(some_heads(contributions=False)) as page:
        assert page.locator(".explorer table").count() == 1
        assert page.get_by_role("radio", name="contribution").count() == 0
        assert page.locator("canvas").count() == 15


def test_some_layers_are_called_by_their_own_numbers(shown):
    with shown(replace(some_heads(), layers=[4, 16, 18])) as page:
        square(page, 16, 2).click()
        assert page.locator("caption").first.inner_text() == "Layer 16, head 2: weights in percent"
        assert said(page).startswith("Layer 16, head 2: ")
        chosen = page.get_by_role("combobox", name="Layer")
        assert chosen.locator("option:checked").inner_text() == "16"
        chosen.select_option(label="18")
        assert square(page, 18, 2).get_attribute("aria-selected") == "true"
        assert page.get_by_role("rowheader").all_inner_texts()[:3] == ["4", "16", "18"]
        assert (
            page.locator(".explorer table").nth(1).locator("th").nth(1).inner_text() == "without layer 18, head 2"
        )


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


# --- output projection --------------------------------------------------------------------------------------------


def computed(page, name, *arguments):
    return page.evaluate(f"(given) => window.mhaExplorers.compute.{name}(...given)", list(arguments))


def set_range(page, name, value):
    page.get_by_role("slider", name=name).evaluate(
        "(it, x) => { it.value = x; it.dispatchEvent(new Event('input', {bubbles: true})); }", value
    )


def test_the_script_projects_as_the_package_does(shown):
    rng = np.random.default_rng(0)
    with shown(some_projection()) as page:
        for h, d_v, d_model in [(1, 1, 1), (2, 3, 5), (3, 2, 4), (5, 1, 2), (2, 2, 2)] * 4:
            expected = OutputProjection(rng.normal(size=(h, d_v)), rng.normal(size=(h * d_v, d_model)))
            found = computed(page, "projection", expected.heads.tolist(), expected.W_o.tolist())
            for name, value in (
                ("output", expected.output),
                ("total", expected.output),
                ("written", expected.written),
            ):
                np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12)


def read_projection(page):
    """The numbers in the fields and both results, from what is shown."""
    fields = page.locator(".explorer table").first.evaluate(
        "(table) => [...table.tBodies[0].rows].slice(0, -1)"
        ".map((row) => [...row.querySelectorAll('input')].map((input) => +input.value))"
    )
    product, total = (
        page.locator(".explorer table").nth(i).locator("tbody tr").last.locator("td").all_inner_texts()
        for i in (0, 1)
    )
    return np.array(fields), np.array(product[1:], dtype=float), np.array(total, dtype=float)


def test_every_number_of_the_projection_can_be_changed(shown):
    with shown(some_projection()) as page:
        fields = page.get_by_role("spinbutton")
        assert fields.count() == 6 * 5
        for i in range(30):
            fields.nth(i).fill(str(i / 4 - 3))
        found, product, total = read_projection(page)
        expected = OutputProjection(found[:, 0].reshape(3, 2), found[:, 1:])
        np.testing.assert_array_equal(found.reshape(-1), np.arange(30) / 4 - 3)
        np.testing.assert_allclose(product, expected.output)
        np.testing.assert_allclose(total, expected.output)
        assert said(page).startswith(f"Both ways give [{product[0]:g}, ")
        page.get_by_role("button", name="Start again").click()
        found, product, _ = read_projection(page)
        np.testing.assert_array_equal(found[:, 1:], some_projection().W_o)
        np.testing.assert_allclose(product, some_projection().output)


def test_a_number_is_changed_by_the_keyboard_and_an_empty_field_changes_nothing(shown):
    with shown(some_projection()) as page:
        field = page.get_by_role("spinbutton", name="head 1, number 1", exact=True)
        before = float(field.input_value())
        field.focus()
        page.keyboard.press("ArrowUp")
        assert float(field.input_value()) == before + 0.5
        _, product, _ = read_projection(page)
        np.testing.assert_allclose(product, some_projection().output + 0.5 * some_projection().W_o[0])
        field.fill("")
        np.testing.assert_array_equal(read_projection(page)[1], product)
        page.keyboard.press("Tab")
        assert float(field.input_value()) == before + 0.5


def test_heads_and_blocks_exchanged_together_change_nothing(shown):
    with shown(some_projection(), "phone", touch=True) as page:
        page.get_by_role("button", name="Exchange the heads").tap()
        assert not np.allclose(read_projection(page)[1], some_projection().output)
        page.get_by_role("button", name="Exchange the blocks").tap()
        found, product, total = read_projection(page)
        np.testing.assert_array_equal(found[:, 0].reshape(3, 2), some_projection().heads[::-1])
        np.testing.assert_allclose(product, some_projection().output)
        np.testing.assert_allclose(total, some_projection().output)


# --- query --------------------------------------------------------------------------------------------------------


def test_the_script_answers_a_query_as_the_package_does(shown):
    explorer = some_query()
    with shown(explorer) as page:
        for x, y in [(0, 0), (1.5, -0.5), (-4, 4), (4, 4), (0.3, -2.7)]:
            for temperature in (0.1, 0.5, 1.0, 3.0, 10.0):
                given = ([x, y], explorer.keys.tolist(), explorer.values.tolist(), temperature)
                found = computed(page, "query", *given)
                expected = explorer.at(np.array([x, y], dtype=float), temperature)
                for name, value in zip(("scores", "weights", "answer"), expected, strict=True):
                    np.testing.assert_allclose(found[name], value, rtol=1e-12, atol=1e-12)


def query_of(page) -> list[float]:
    return [float(page.get_by_role("slider", name=f"Query, number {i}").input_value()) for i in (1, 2)]


def assert_answer(page, explorer, temperature=1.0):
    """What the table shows is what the package answers to the query in the controls."""
    _, weights, answer = explorer.at(np.array(query_of(page)), temperature)
    *entries, total = (row.locator("td").all_inner_texts() for row in page.locator("tbody tr").all())
    np.testing.assert_allclose([float(entry[2]) for entry in entries], weights, atol=0.00051)
    np.testing.assert_allclose([float(x) for x in total[3].strip("()").split(",")], answer, atol=0.0051)


def test_a_query_is_set_by_the_controls(shown):
    explorer = some_query()
    with shown(explorer) as page:
        assert_answer(page, explorer)
        set_range(page, "Query, number 1", -2.3)
        set_range(page, "Temperature", 0.5)
        assert query_of(page) == [-2.3, -0.5]
        assert_answer(page, explorer, 10**0.5)
        assert said(page).startswith("Query (-2.3, -0.5) at temperature 3.16: weights ")
        page.get_by_role("slider", name="Query, number 2").focus()
        page.keyboard.press("ArrowRight")
        assert query_of(page) == [-2.3, -0.4]
        page.get_by_role("button", name="Start again").click()
        assert query_of(page) == [1.5, -0.5]
        assert_answer(page, explorer)


def test_a_query_is_dragged(shown):
    explorer = some_query()
    with shown(explorer) as page:
        box = page.locator(".ex-handle").bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x, y)
        page.mouse.down()
        page.mouse.move(x - 60, y + 30, steps=3)
        page.mouse.up()
        found = query_of(page)
        assert found[0] < 0.5
        assert found[1] < -0.7
        moved = page.locator(".ex-handle").bounding_box()
        assert abs(moved["x"] - box["x"] + 60) < 4
        assert_answer(page, explorer)


def test_a_query_goes_where_its_plane_is_touched(shown):
    explorer = some_query()
    with shown(explorer, "phone", touch=True) as page:
        page.locator(".ex-plane").first.tap(position={"x": 20, "y": 20})
        found = query_of(page)
        assert found[0] < -2
        assert found[1] > 2
        assert_answer(page, explorer)


def test_the_answer_is_drawn_among_the_values(shown):
    explorer = some_query()
    with shown(explorer) as page:
        for x in (-4, 0, 4):
            set_range(page, "Query, number 1", x)
            point = page.locator(".ex-plane").nth(1).locator("circle").last
            found = [float(point.get_attribute("cx")), -float(point.get_attribute("cy"))]
            np.testing.assert_allclose(found, explorer.at(np.array([x, -0.5]))[2], rtol=1e-6)


# --- masks --------------------------------------------------------------------------------------------------------


def test_the_script_masks_as_the_package_does(shown):
    """On every state, and with the same lines of code, which other tests run."""
    states = list(mask_states())
    with shown(some_mask()) as page:
        given = "(states) => states.map((s) => [mhaExplorers.compute.visible(s), mhaExplorers.compute.lines(s)])"
        for state, (visible, lines) in zip(states, page.evaluate(given, states), strict=True):
            builder = MaskBuilder(**state)
            np.testing.assert_array_equal(visible, builder.visible)
            assert lines == builder.lines, state


def assert_mask(page, builder):
    """The table and the lines on the page are those of the package."""
    np.testing.assert_array_equal(numbers(page.locator(".explorer table")), builder.visible)
    assert page.locator(".explorer pre").all_inner_texts() == list(builder.lines.values())
    assert page.locator(".ex-note").all_inner_texts() == list(builder.lines)


def test_a_mask_is_built_by_its_controls(shown):
    with shown(MaskBuilder()) as page:
        assert_mask(page, MaskBuilder())
        page.get_by_label("Queries").fill("3")
        page.get_by_label("Keys", exact=True).fill("7")
        page.get_by_label("Window").fill("4")
        page.get_by_label("Padded keys").fill("2")
        page.get_by_label("First of two").fill("3")
        page.get_by_role("combobox", name="on the").select_option("left")
        built = {"n": 3, "m": 7, "window": 4, "padding": 2, "first": 3, "side": "left"}
        assert_mask(page, MaskBuilder(**built))
        page.get_by_role("combobox", name="Aligned").select_option("top-left")
        assert_mask(page, MaskBuilder(**built, align="top-left"))
        page.get_by_label("Causal").uncheck()
        builder = MaskBuilder(**built, align="top-left", causal=False)
        assert_mask(page, builder)
        assert said(page) == f"{builder.visible.sum()} of 21 pairs are visible."


def test_a_mask_stays_within_its_keys(shown):
    with shown(MaskBuilder(padding=4, first=5)) as page:
        page.get_by_label("Keys", exact=True).fill("3")
        assert_mask(page, MaskBuilder(m=3, padding=3, first=3))
        assert page.get_by_label("Padded keys").input_value() == "3"
        assert said(page) == "0 of 15 pairs are visible. Queries 1, 2, 3, 4, 5 see no key."
        page.get_by_label("Queries").fill("77")
        page.keyboard.press("Tab")
        assert page.get_by_label("Queries").input_value() == "10"
        assert_mask(page, MaskBuilder(n=10, m=3, padding=3, first=3))


def test_cells_of_a_mask_say_why_a_key_is_hidden(shown):
    with shown(MaskBuilder(window=2, padding=1)) as page:
        grid = page.locator(".explorer tbody td")
        grid.nth(0).focus()
        page.keyboard.press("ArrowRight")
        assert said(page) == "Query 1 does not see key 2: it comes later. Query 1 sees key 1."
        page.keyboard.press("End")
        reasons = "it comes later, and it is too far away, and it is padding"
        assert said(page) == f"Query 1 does not see key 5: {reasons}. Query 1 sees key 1."
        grid.nth(15).click()
        assert said(page) == "Query 4 does not see key 1: it is too far away. Query 4 sees keys 3, 4."
        page.keyboard.press("ArrowDown")
        assert said(page).endswith("Query 5 sees key 4.")


def test_a_size_that_is_too_large_or_none_is_answered(shown):
    with shown(some_mask()) as page:
        queries, keys = (page.get_by_role("spinbutton", name=name, exact=True) for name in ("Queries", "Keys"))
        before = keys.input_value(), said(page)
        keys.fill("")
        page.keyboard.press("Tab")
        assert (keys.input_value(), said(page)) == before
        queries.fill("77")
        page.keyboard.press("Tab")
        assert queries.input_value() == "10"
        assert said(page).startswith("Queries: at most 10. ")
        queries.fill("0")
        page.keyboard.press("Tab")
        assert queries.input_value() == "1"
        assert said(page).startswith("Queries: at least 1. ")
        queries.fill("2.6")
        page.keyboard.press("Tab")
        assert queries.input_value() == "3"
        assert "Queries:" not in said(page)


def test_the_first_click_after_a_number_is_not_lost(shown):
    """Leaving the field must not make the table anew, or the cell is gone before the click is over."""
    with shown(some_mask()) as page:
        field = page.get_by_role("spinbutton", name="Queries")
        field.focus()
        field.fill("4")
        page.locator(".explorer table tbody td").nth(1).click()
        assert said(page).startswith("Query 1 ")


def test_a_mask_is_asked_by_touch(shown):
    with shown(some_mask(), "phone", touch=True) as page:
        page.get_by_label("Causal").tap()
        assert not page.get_by_label("Causal").is_checked()
        page.locator(".explorer tbody td").first.tap()
        assert said(page).startswith("Query 1 does not see key 1: it is of another text. Query 1 sees key")


# --- shapes -------------------------------------------------------------------------------------------------------


def test_the_script_shapes_as_the_package_does(shown):
    with shown(EXPLORERS["shapes"]()) as page:
        for sizes in SIZES:
            found, expected = computed(page, "shapes", sizes), Shapes(**sizes)
            assert list(found["steps"]) == list(expected.steps)
            for name, shapes in expected.steps.items():
                assert list(map(tuple, found["steps"][name])) == shapes
            assert found["cache"] == expected.cache_bytes


def test_sizes_are_changed_and_what_does_not_divide_is_said(shown):
    with shown(EXPLORERS["shapes"]()) as page:
        page.get_by_label("Texts b").fill("1")
        page.get_by_label("Heads h", exact=True).fill("2")
        rows = [row.locator("td").all_inner_texts() for row in page.locator("tbody tr").all()]
        expected = Shapes(b=1, n=7, d_model=20, h=2, h_kv=2)
        assert rows[4][:2] == ["1 × 2 × 7 × 7", "98"]
        assert rows[3][:2] == ["1 × 2 × 7 × 10", "420"]
        assert rows[11][1] == f"{expected.cache_bytes} bytes"
        assert said(page) == (
            "Heads are 10 wide. Scores are 0.7 times as many numbers as tokens hold. "
            f"A cache of one layer keeps {expected.cache_bytes} bytes."
        )
        page.get_by_label("Heads h", exact=True).fill("3")
        assert (
            said(page) == "20 numbers per token cannot be cut into 3 equal heads. The table shows the sizes before."
        )
        page.get_by_label("Heads h", exact=True).fill("4")
        page.get_by_label("Key-value").fill("3")
        assert said(page).startswith("4 heads cannot share 3 heads of keys and values equally.")
        with pytest.raises(ValueError, match="4 heads cannot share 3 heads of keys and values equally"):
            Shapes(d_model=20, h=4, h_kv=3)
        page.keyboard.press("ArrowDown")
        assert said(page).startswith("Heads are 5 wide.")


def test_bars_are_to_scale(shown):
    explorer = EXPLORERS["shapes"]()
    with shown(explorer, "phone") as page:
        widths = page.evaluate("() => [...document.querySelectorAll('.ex-bar')].map((it) => it.offsetWidth)")
        counts = [sum(np.prod(shape) for shape in shapes) for shapes in explorer.steps.values()]
        np.testing.assert_allclose(np.array(widths) / max(widths), np.array(counts) / max(counts), atol=0.02)


# --- scale --------------------------------------------------------------------------------------------------------


def test_the_script_scales_as_the_package_does(shown):
    explorer = EXPLORERS["scale"]()
    with shown(explorer) as page:
        for width, query in np.ndindex(5, 3):
            for name, power in (("nothing", 0.0), ("√d_k", 0.5), ("d_k", 1.0)):
                weights, bits = explorer.at(int(width), int(query), name)
                scores = explorer.scores[width, query].tolist()
                found = computed(page, "scale", scores, explorer.widths[width] ** power)
                np.testing.assert_allclose(found["weights"], weights, rtol=1e-9, atol=1e-15)
                np.testing.assert_allclose(found["bits"], bits, rtol=1e-9, atol=1e-12)


def test_the_scale_is_changed_by_its_controls(shown):
    explorer = EXPLORERS["scale"]()
    with shown(explorer, "phone", touch=True) as page:
        set_range(page, "Width", 4)
        page.get_by_role("combobox", name="Query").select_option(index=2)
        for name in ("d_k", "√d_k", "nothing"):
            page.get_by_role("radio", name=name, exact=True).tap()
            weights, bits = explorer.at(4, 2, name)
            rows = [row.locator("td").all_inner_texts() for row in page.locator("tbody tr").all()]
            np.testing.assert_allclose([float(row[1]) for row in rows], weights, atol=0.00051)
            assert said(page).startswith(
                f"Width 500, divided by {name}: the largest weight is {weights.max():.2f}; as spread as over "
                f"{2**bits:.1f} equal keys of 7 ({bits:.2f} bits)."
            )
        page.get_by_role("radio", name="nothing").focus()
        page.keyboard.press("ArrowRight")
        assert said(page).startswith("Width 500, divided by √d_k")


# --- flash --------------------------------------------------------------------------------------------------------


def test_blocks_are_read_one_by_one(shown):
    explorer = some_flash()
    with shown(explorer) as page:
        assert said(page) == "Nothing has been read. Blocks in all: 3."
        table = page.locator(".explorer table").nth(1)
        for t, step in enumerate(explorer.steps(4), 1):
            page.get_by_role("button", name="Next block").click()
            rows = [row.locator("td").all_inner_texts() for row in table.locator("tbody tr").all()]
            np.testing.assert_allclose([float(x) for x in rows[t - 1][1:]], list(step.values()), atol=0.00051)
            assert all(x == "" for row in rows[t:] for x in row[1:])
            assert said(page).startswith(f"Block {t}, keys {4 * t - 3} to {min(11, 4 * t)}: the largest score")
            assert said(page).endswith(f" {step['average']:.3f}.")
        assert page.get_by_role("button", name="Next block").get_attribute("aria-disabled") == "true"
        assert page.evaluate("() => document.activeElement.textContent") == "Next block"
        page.keyboard.press("Enter")  # which is of no more effect, and does not go back
        assert said(page).startswith("Block 3, ")
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Enter")
        assert said(page).startswith("Block 2, keys 5 to 8: ")
        shaded = page.evaluate(
            "() => [...document.querySelector('table').tBodies[0].rows[0].querySelectorAll('td')]"
            ".map((it) => +it.style.getPropertyValue('--w'))"
        )
        assert shaded == [0] * 4 + [1] * 4 + [0] * 3


def test_blocks_of_another_size_are_read_to_the_same_end(shown):
    explorer = some_flash()
    with shown(explorer, "phone", touch=True) as page:
        ends = set()
        for i, block in enumerate(explorer.blocks):
            page.get_by_role("combobox", name="Keys in a block").select_option(index=i)
            steps = explorer.steps(block)
            assert said(page) == f"Nothing has been read. Blocks in all: {len(steps)}."
            set_range(page, "Blocks read", len(steps))
            ends.add(said(page).rpartition(" ")[2])
            rises = [b["largest"] > a["largest"] for a, b in pairwise(steps)]
            for t, rise in enumerate(rises, 2):
                set_range(page, "Blocks read", t)
                assert ("rises" in said(page)) == rise
                assert ("nothing shrinks" in said(page)) == (not rise)
        assert len(ends) == 1
