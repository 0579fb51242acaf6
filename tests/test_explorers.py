"""What explorers say without a script, and the numbers they give to it."""

import json
import re

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

from mha_tutorial import Causal, Documents, Padding, RowWeights, Window, explorers
from mha_tutorial.analysis import counting, scaling
from mha_tutorial.examples import steps
from mha_tutorial.explorers import Flash, MaskBuilder, OutputProjection, Query, Shapes, base
from mha_tutorial.reference import row
from tests.explorer_helpers import EXPLORERS, SIZES, mask_states, some_flash, some_mask, some_projection, some_query

pytestmark = pytest.mark.usefixtures("own_messages")
of_every_kind = pytest.mark.parametrize("make", EXPLORERS.values(), ids=EXPLORERS)


def cells(text: str, caption: str) -> list[list[str]]:
    """The rows of a table with such a caption, without their headers."""
    (table,) = re.findall(rf"<table>\n<caption>{caption}</caption>(.*?)</table>", text, re.DOTALL)
    return [re.findall(r"<td>(.*?)</td>", line) for line in table.splitlines() if '<th scope="row">' in line]


# --- every explorer -----------------------------------------------------------------------------------------------


@of_every_kind
def test_an_explorer_is_one_element_with_its_content_and_its_numbers(make):
    text = make().html()
    assert text.startswith(f'<div class="explorer" data-kind="{make().kind}" role="group" aria-label="')
    assert text.count("<div") == text.count("</div>")
    assert not re.search(r"\bid=", text)  # two on a page would have the same
    (numbers,) = re.findall(r'<script type="application/json">(.*?)</script>', text, re.DOTALL)
    assert json.loads(numbers) == json.loads(json.dumps(make().states()))
    assert not re.search(r"\d\.\d{7}", text)


@of_every_kind
def test_the_same_explorer_is_the_same_text(make):
    assert make().html() == make().html()
    assert repr(make()) == f"<explorer: {make().title}>"


def test_every_kind_is_known_to_the_script_and_tried():
    kinds = {kind.kind for kind in vars(explorers).values() if isinstance(kind, type) and kind is not base.Explorer}
    assert (
        kinds
        == {*EXPLORERS, "cards", "progress", "quiz"}
        == set(re.findall(r"^  kinds\.(\w+) = ", base.script(), re.MULTILINE))
    )


def test_numbers_are_rounded_and_whole_where_they_are_whole():
    assert base.rounded(np.array([[1.0, -1e-9], [1 / 3, -2.5]])) == [[1, 0], [0.333333, -2.5]]


# --- output projection --------------------------------------------------------------------------------------------


def test_the_projection_is_that_of_the_package():
    explorer = some_projection()
    h, d_v, d_model = 3, 2, 4
    weights = RowWeights(
        np.zeros((h, d_model, 1)),
        np.zeros((h, d_model, 1)),
        np.zeros((h, d_model, d_v)),
        explorer.W_o.reshape(h, d_v, d_model),
    )
    heads = explorer.heads[:, None]
    assert_allclose(explorer.output, row.concatenated_output(weights, heads)[0])
    assert_allclose(explorer.written.sum(axis=0), row.summed_output(weights, heads)[0])
    alone = [row.summed_output(weights, heads * np.eye(h)[i][:, None, None])[0] for i in range(h)]
    assert_allclose(explorer.written, alone)


def test_both_ways_of_the_projection_can_be_read_without_a_script():
    explorer = some_projection()
    product = cells(explorer.still(), "Concatenated, and multiplied once")
    found = np.array(product[:-1], dtype=float)
    assert_allclose(found[:, 0], explorer.heads.reshape(-1))
    assert_allclose(found[:, 1:], explorer.W_o)
    assert_allclose(np.array(product[-1][1:], dtype=float), explorer.output)
    terms = np.array(cells(explorer.still(), "One term for each head, added up"), dtype=float)
    assert_allclose(terms, [*explorer.written, explorer.output])


def test_a_projection_of_other_heads_is_refused():
    with pytest.raises(ValueError, match=r"3 heads of 2 numbers need a W_o of 6 rows, got shape \(5, 4\)"):
        OutputProjection(np.ones((3, 2)), np.ones((5, 4)))


# --- query --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.1, 1.0, 10.0])
def test_the_answer_to_a_query_is_that_of_the_package(temperature):
    explorer = some_query()
    scores, weights, answer = explorer.at(explorer.query, temperature)
    expected = row.attention(
        explorer.query[None], explorer.keys, explorer.values, score=row.scaled_by(1 / temperature)
    )
    assert_allclose(answer, expected[0])
    assert_allclose(scores, explorer.keys @ explorer.query)
    assert_allclose(weights @ explorer.values, answer)


def test_a_query_can_be_read_without_a_script():
    explorer = some_query()
    scores, weights, answer = explorer.at(explorer.query)
    *entries, total = cells(explorer.still(), r"The query \(1.5, -0.5\) and its keys")
    assert [float(score) for _, score, _, _ in entries] == [round(x, 2) for x in scores]
    assert_allclose([float(weight) for _, _, weight, _ in entries], weights, atol=0.0005)
    assert total[2:] == ["1.000", f"({answer[0]:.2f}, {answer[1]:.2f})"]


def test_a_key_without_a_value_is_refused():
    with pytest.raises(ValueError, match="each key needs a value, got 2 keys and 3 values"):
        Query(np.ones(2), np.ones((2, 2)), np.ones((3, 2)))


# --- masks --------------------------------------------------------------------------------------------------------

STATES = list(mask_states())
RULES = {"Causal": Causal, "Documents": Documents, "Padding": Padding, "Window": Window}


def run(lines: str, **names) -> dict:
    """What lines of code make of such names."""
    exec(lines, names)
    return names


def seen_by(visible, n: int, m: int) -> np.ndarray:
    return np.broadcast_to(True if visible is None else visible.rows(n, m), (n, m))


def test_the_line_for_this_package_makes_the_mask():
    for state in STATES:
        builder = MaskBuilder(**state)
        made = run(builder.lines["this package"], **RULES)["visible"]
        np.testing.assert_array_equal(seen_by(made, builder.n, builder.m), builder.visible)


def causal_from_the_top_left(n, m):
    return np.tri(n, m, dtype=bool)


def test_the_lines_for_the_fused_function_make_the_mask():
    """Of which it is known what `is_causal` means, and that True may attend."""
    for state in STATES:
        given = []

        def function(q, k, v, attn_mask=None, is_causal=False, given=given):
            given.append((attn_mask, is_causal))

        builder = MaskBuilder(**state)
        names = {"torch": torch, "q": 0, "k": 0, "v": 0, "scaled_dot_product_attention": function}
        run(builder.lines["scaled_dot_product_attention"], **names)
        ((mask, causal),) = given
        seen = causal_from_the_top_left(builder.n, builder.m) if causal else np.ones_like(builder.visible)
        seen = seen if mask is None else mask.numpy()
        assert seen.shape == (builder.n, builder.m)
        np.testing.assert_array_equal(seen, builder.visible)


def test_the_lines_for_the_module_make_the_mask():
    for state in STATES:
        given = []

        def module(q, k, v, attn_mask=None, key_padding_mask=None, given=given):
            given.append((attn_mask, key_padding_mask))

        builder = MaskBuilder(**state)
        run(builder.lines["nn.MultiheadAttention"], torch=torch, q=0, k=0, v=0, attention=module)
        ((ignored, padded),) = given
        seen = np.ones((builder.n, builder.m), dtype=bool)
        for mask, shape in ((ignored, (builder.n, builder.m)), (padded, (1, builder.m))):
            if mask is not None:
                assert mask.shape == shape
                seen &= ~mask.numpy()
        np.testing.assert_array_equal(seen, builder.visible)


def test_the_lines_for_hugging_face_say_what_is_real_and_where_texts_begin():
    for state in STATES:
        builder = MaskBuilder(**state)
        config = type("Config", (), {})()
        made = run(builder.lines["Hugging Face transformers"], torch=torch, config=config)
        real = Padding(builder.m - builder.padding, side=builder.side).rows(1, builder.m)
        np.testing.assert_array_equal(made["attention_mask"].bool().numpy(), real)
        assert getattr(config, "sliding_window", 0) == builder.window
        if builder.first and builder.n == builder.m:
            places = made["position_ids"][0].numpy()
            texts = np.cumsum(places == 0)
            same = Documents([builder.first, builder.m - builder.first]).rows(builder.n, builder.m)
            np.testing.assert_array_equal(texts[:, None] == texts, same)
        else:
            assert "position_ids" not in made
            assert ("packed" in builder.lines["Hugging Face transformers"]) == bool(builder.first)


def test_the_window_and_the_fused_function_are_those_of_the_libraries():
    """With numbers in place of names: the line runs, and attends to what is visible."""
    builder = some_mask()
    q, k, v = torch.randn(1, 1, 4, 3), torch.randn(1, 1, 6, 3), torch.eye(6)[None, None]
    lines = builder.lines["scaled_dot_product_attention"].replace("scaled_dot", "result = scaled_dot")
    function = torch.nn.functional.scaled_dot_product_attention
    made = run(lines, torch=torch, q=q, k=k, v=v, scaled_dot_product_attention=function)
    np.testing.assert_array_equal(made["result"][0, 0].numpy() > 0, builder.visible)
    assert not builder.visible.any(axis=1).all()


def test_a_mask_can_be_read_without_a_script():
    builder = some_mask()
    found = cells(builder.still(), "What each query sees: 1 where it may attend")
    np.testing.assert_array_equal(np.array(found, dtype=int), builder.visible)
    for lines in builder.lines.values():
        assert (
            lines.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
            in builder.still()
        )


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"n": 0}, ValueError, "n must be at least 1, got 0"),
        ({"m": 11}, ValueError, "m must be at most 10, got 11"),
        ({"padding": 6}, ValueError, "padding must be at most 5, got 6"),
        ({"first": -1}, ValueError, "first must be at least 0, got -1"),
        ({"window": 1.5}, TypeError, "window must be a whole number, got 1.5"),
    ],
)
def test_a_mask_that_cannot_be_shown_is_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        MaskBuilder(**options)


# --- shapes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sizes", SIZES)
def test_shapes_are_those_of_the_steps_that_are_computed(sizes, rng):
    """With the keys and values of a layer that has as many heads for them, and those of the layer that shares."""
    whole = Shapes(**sizes | {"h_kv": None})
    weights = RowWeights.random(rng, d_model=whole.d_model, h=whole.h)
    ledger = steps.eleven_steps(rng.normal(size=(whole.b, whole.n, whole.d_model)), weights)
    assert list(ledger) == list(whole.steps)
    for name, array in ledger.items():
        shapes = whole.steps[name]
        assert array.shape == (shapes[0] if len(shapes) == 1 else (3, *shapes[0])), name
        assert len(set(shapes)) == 1
    shared = Shapes(**sizes)
    weights = RowWeights.random(rng, d_model=shared.d_model, h=shared.h, h_kv=shared.groups)
    x = rng.normal(size=(shared.b, shared.n, shared.d_model))
    trace = row.multi_head(x, x, x, weights)
    assert shared.steps["transpose"] == [trace.queries.shape, trace.keys.shape, trace.values.shape]
    assert shared.cache_bytes == shared.b * counting.cache_bytes(weights, shared.n, np.float16)


def test_shapes_can_be_read_without_a_script():
    found = cells(EXPLORERS["shapes"]().still(), "The eleven steps for b=3, n=7, d_model=20, h=4, h_kv=2")
    assert found[0] == ["3 × 7 × 20", "420"]
    assert found[3] == ["3 × 4 × 7 × 5, 3 × 2 × 7 × 5", "840"]
    assert found[4] == ["3 × 4 × 7 × 7", "588"]
    assert found[-1] == ["keys and values, 16 bits", "840 bytes"]
    assert len(found) == 12


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"h": 4}, ValueError, "30 numbers per token cannot be cut into 4 equal heads"),
        ({"h_kv": 3}, ValueError, "10 heads cannot share 3 heads of keys and values equally"),
        ({"h_kv": 0}, ValueError, "h_kv must be at least 1, got 0"),
        ({"b": 0}, ValueError, "b must be at least 1, got 0"),
        ({"n": 2.0}, TypeError, "n must be a whole number, got 2.0"),
    ],
)
def test_sizes_that_do_not_divide_are_refused(options, kind, message):
    with pytest.raises(kind, match=message):
        Shapes(**options)


# --- scale --------------------------------------------------------------------------------------------------------


def test_weights_and_bits_are_those_of_the_package():
    explorer = EXPLORERS["scale"]()
    for w, d in enumerate(explorer.widths):
        for query in range(3):
            for name, divisor in (("nothing", 1.0), ("√d_k", np.sqrt(d)), ("d_k", d)):
                weights, bits = explorer.at(w, query, name)
                assert_allclose(weights, row.softmax(explorer.scores[w, query][None] / divisor)[0])
                assert_allclose(bits, -(weights * np.log2(weights)).sum(), rtol=1e-9)


def test_scores_spread_as_their_variance_says():
    """Of 100 queries and 100 keys the mean square of all scores has a standard deviation of about a fifth."""
    explorer = explorers.Scale(np.random.default_rng(0), m=100, queries=100)
    for d, scores in zip(explorer.widths, explorer.scores, strict=True):
        assert 0.5 < (scores**2).mean() / scaling.dot_product_variance(d) < 2.0
    assert_allclose(explorer.scores, explorer.scores.round(3))


def test_bits_can_be_read_without_a_script():
    explorer = EXPLORERS["scale"]()
    found = np.array(cells(explorer.still(), "Bits of the weights over 7 keys, mean of 3 queries"), dtype=float)
    for (w, name), bits in zip(np.ndindex(5, 3), found.reshape(-1), strict=True):
        divisor = ("nothing", "√d_k", "d_k")[name]
        assert_allclose(bits, np.mean([explorer.at(w, query, divisor)[1] for query in range(3)]), atol=0.0051)


# --- flash --------------------------------------------------------------------------------------------------------


@pytest.mark.equation("eq-online-softmax")
@pytest.mark.parametrize("block", some_flash().blocks)
def test_each_step_is_what_the_recurrence_gives_over_the_keys_so_far(block):
    explorer = some_flash()
    scores, values = explorer.scores[:, None], explorer.values[:, None]
    found = explorer.steps(block)
    assert len(found) == -(-len(scores) // block)
    before = -np.inf
    for t, step in enumerate(found, 1):
        k, v = scores[: t * block], values[: t * block]
        heads, log_sums = row.online_attention(np.ones((1, 1)), k, v, block=block)
        assert step["largest"] == k.max()
        assert_allclose(step["average"], heads[0, 0], atol=1e-6)
        assert_allclose(step["largest"] + np.log(step["total"]), log_sums[0], atol=1e-5)
        assert_allclose(step["weighted"], step["total"] * step["average"], atol=1e-4)
        assert_allclose(step["shrink"], np.exp(before - step["largest"]), atol=1e-6)
        before = step["largest"]


def test_the_steps_can_be_read_without_a_script():
    explorer = some_flash()
    found = cells(explorer.still(), "After each block, what the query carries")
    assert [row[0] for row in found] == ["1 to 4", "5 to 8", "9 to 11"]
    expected = [list(step.values()) for step in explorer.steps(4)]
    assert_allclose(np.array([row[1:] for row in found], dtype=float), expected, atol=0.00051)
    single = Flash(np.zeros(3), np.ones(3), blocks=(2,))
    assert [row[0] for row in cells(single.still(), "After each block, what the query carries")] == ["1 to 2", "3"]


def test_a_score_without_a_value_is_refused():
    with pytest.raises(ValueError, match="each key needs a value, got 2 scores and 3 values"):
        Flash(np.zeros(2), np.zeros(3))
