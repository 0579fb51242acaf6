"""The figures, by what stands in their Axes: the same numbers as in the arrays they are given."""

import matplotlib.colors
import matplotlib.patches
import matplotlib.pyplot as plt
import numpy as np
import pytest

from mha_tutorial import RowWeights, figures
from mha_tutorial.examples import shards, steps
from mha_tutorial.figures import style
from mha_tutorial.reference import row


@pytest.fixture
def ax():
    plt.style.use("mha_tutorial.book")
    yield plt.figure().add_subplot()
    plt.close("all")


def texts(ax):
    return [text.get_text() for text in ax.texts]


def grids(ax):
    """The shapes of the drawn matrices, in the order of drawing."""
    return [collection.get_coordinates().shape[0] - 1 for collection in ax.collections], [
        collection.get_coordinates().shape[1] - 1 for collection in ax.collections
    ]


def test_attention_is_a_table_of_its_weights(ax):
    weights = np.array([[0.25, 0.75, 0.0], [0.9, 0.05, 0.05]])
    figures.draw_attention(weights, ["a", "b"], ["x", "y", "z"], ax)
    assert texts(ax) == ["0.25", "0.75", "0.00", "0.90", "0.05", "0.05"]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["x", "y", "z"]
    assert np.array_equal(ax.images[0].get_array(), weights)
    assert [text.get_color() for text in ax.texts] == ["black", "white", "black", "white", "black", "black"]


def test_names_of_many_keys_are_slanted(ax):
    figures.draw_attention(np.eye(5), list("abcde"), list("vwxyz"), ax)
    assert {label.get_rotation() for label in ax.get_xticklabels()} == {45.0}


@pytest.mark.parametrize("labels", [["one", "two", "three"], ["She", "sat", "down", "quietly", "alone"]])
def test_lookup_writes_every_number_and_the_answer(ax, labels, rng):
    m = len(labels)
    keys, values = rng.integers(-9, 9, size=(m, 2)), rng.integers(-9, 9, size=(m, 3))
    scores, weights = np.arange(m), np.full(m, 1 / m)
    figures.draw_lookup(np.array([7, 8]), keys, values, scores, weights, labels, ax)
    written = texts(ax)
    assert written[:3] == ["query", "7", "8"]
    first = [labels[0], *map(str, keys[0]), "0", *map(str, values[0])]
    assert written[3:10] == first
    answer = written[3 + 7 * m : 6 + 7 * m]
    assert answer == [f"{number:.2f}" for number in values.mean(axis=0)]
    assert written[-m:] == [f"{1 / m:.2f}"] * m
    frames = {patch.get_edgecolor() for patch in ax.patches}
    assert frames >= {matplotlib.colors.to_rgba(c) for c in (style.QUERY, style.KEY, style.VALUE, style.OUTPUT)}
    slanted = [text.get_rotation() for text in ax.texts if text.get_text() in labels]
    assert slanted == [40.0 if m > 4 else 0.0] * m


def test_hull_shows_values_and_answers(ax):
    values = np.array([[10.0, 0.0], [0.0, 10.0], [0.0, 0.0]])
    answers = np.array([[1.0, 2.0], [3.0, 4.0]])
    figures.draw_hull(values, answers, ["start", ""], ax)
    assert texts(ax) == ["value 1", "value 2", "value 3", "start"]
    assert np.array_equal(ax.collections[0].get_offsets(), values)
    assert np.array_equal(ax.lines[0].get_xydata(), answers)


def test_curves_are_named(ax):
    figures.draw_curves(np.array([1, 4, 16]), {"a": [3, 2, 1], "b": [1, 1, 1]}, ax)
    assert [entry.get_text() for entry in ax.get_legend().get_texts()] == ["a", "b"]
    assert ax.lines[0].get_xydata().tolist() == [[1, 3], [4, 2], [16, 1]]
    assert ax.get_xscale() == "log"
    assert ax.get_ylim()[0] == 0


def test_weights_are_bars_from_zero_to_one_in_every_panel(ax):
    axes = ax.figure.subplots(1, 2)
    figures.draw_weights({"T = 1": np.array([0.25, 0.75]), "T = 0": np.array([0.0, 1.0])}, ["a", "b"], axes)
    assert [drawn.get_title() for drawn in axes] == ["T = 1", "T = 0"]
    assert [[bar.get_height() for bar in drawn.patches] for drawn in axes] == [[0.25, 0.75], [0.0, 1.0]]
    assert [texts(drawn) for drawn in axes] == [["0.25", "0.75"], ["0.00", "1.00"]]
    assert axes[0].get_ylim() == axes[1].get_ylim()


def test_distributions_have_the_area_one(ax, rng):
    figures.draw_distributions({"a": rng.normal(size=500), "b": rng.uniform(-1, 1, size=400)}, ax, reach=6)
    for outline in ax.patches:
        heights, edges, _ = outline.get_data()
        assert np.sum(heights * np.diff(edges)) == pytest.approx(1)
        assert edges[[0, -1]].tolist() == [-6, 6]
    assert [entry.get_text() for entry in ax.get_legend().get_texts()] == ["a", "b"]
    assert len({outline.get_linestyle() for outline in ax.patches}) == 2


def test_layer_draws_every_step_with_the_words_along_its_axes(ax, rng):
    tokens = ["to", "be", "or", "not"]
    weights, X = RowWeights.random(rng, d_model=6, h=2, d_k=3, d_v=2, bias=False), rng.normal(size=(4, 6))
    trace = row.multi_head(X, X, X, weights)
    figures.draw_layer(tokens, X, weights, trace, ax)
    assert grids(ax) == ([4] * 12, [6, *[3, 3, 2, 4, 6] * 2, 6])
    arrays = [np.asarray(collection.get_array()) for collection in ax.collections]
    assert np.array_equal(arrays[0], X)
    assert np.array_equal(arrays[4], trace.attention[0])
    assert ax.collections[4].get_clim() == (0, 1)
    np.testing.assert_allclose(arrays[5] + arrays[10], arrays[11], rtol=1e-12, atol=1e-12)
    assert {ax.collections[place].get_clim() for place in (5, 10, 11)} == {ax.collections[5].get_clim()}
    assert [text for text in texts(ax) if text in tokens] == tokens * 6
    assert [texts(ax).count(text) for text in ("query ↓", "key →", "head 1", "head 2 writes")] == [2, 2, 1, 1]


def test_layer_draws_shared_keys_in_every_head_that_reads_them(ax, rng):
    weights, X = RowWeights.random(rng, d_model=6, h=2, h_kv=1, bias=False), rng.normal(size=(2, 6))
    figures.draw_layer(["a", "b"], X, weights, row.multi_head(X, X, X, weights), ax)
    assert np.array_equal(ax.collections[2].get_array(), ax.collections[7].get_array())


def test_block_has_boxes_as_high_as_their_share(ax):
    figures.draw_block({"attention": 1, "MLP": 3}, ax)
    heights = [patch.get_height() for patch in ax.patches if isinstance(patch, matplotlib.patches.Rectangle)]
    assert heights[1] == 3 * heights[0]
    assert "attention\n25% of the parameters" in texts(ax)


def test_sizes_are_drawn_to_one_scale_between_signs(ax):
    shapes = {
        "A": (("n", 4), ("d", 6), style.KEY),
        " =": (("", 0), ("", 0), ""),
        "B": (("n", 2), ("m", 3), style.KEY),
    }
    figures.draw_sizes(shapes, ax)
    assert [(patch.get_height(), patch.get_width()) for patch in ax.patches] == [(4, 6), (2, 3)]
    assert texts(ax) == ["A", "d", "n", "=", "B", "m", "n"]


def test_moves_point_from_before_to_after(ax):
    figures.draw_moves(np.array([2.0, 2.0]), {"first": np.array([2.2, 1.4]), "second": np.array([1.3, 2.2])}, ax)
    assert texts(ax) == ["before", "", "first", "", "second"]
    arrows = [text for text in ax.texts if not text.get_text()]
    assert [(*arrow.xyann, *arrow.xy) for arrow in arrows] == [(2, 2, 2.2, 1.4), (2, 2, 1.3, 2.2)]
    assert ax.get_aspect() == 1


def test_contributions_are_laid_head_to_tail(ax):
    figures.draw_contributions(np.array([[0.5, 2.0], [3.0, 4.0]]), ax)
    arrows = [text for text in ax.texts if not text.get_text()]
    assert [(*arrow.xyann, *arrow.xy) for arrow in arrows] == [(0, 0, 0.5, 2), (0.5, 2, 3.5, 6), (0, 0, 3.5, 6)]
    named = [text for text in texts(ax) if text]
    assert named == ["head 1 writes\n(0.5, 2)", "head 2 writes\n(3, 4)", "their sum, the output\n(3.5, 6)"]


def test_two_heads_are_arcs_as_thick_as_their_weights(ax):
    weights = np.array([[0.125, 0.5, 0.375], [0.25, 0.25, 0.5]])
    figures.draw_two_heads(["She", "paid", "Ann"], 2, weights, ax)
    assert texts(ax) == ["She", "paid", "Ann", "head 1", "0.125", "0.5", "0.375", "head 2", "0.25", "0.25", "0.5"]
    assert [line.get_linewidth() for line in ax.lines] == (12 * weights.ravel()).tolist()
    starts = [sorted(line.get_xdata()[[0, -1]].round(9)) for line in ax.lines]
    assert starts == 2 * [[0, 2], [1, 2], [2, 2]]
    assert [np.sign(line.get_ydata()[0]) for line in ax.lines] == [1, 1, 1, -1, -1, -1]
    assert [text.get_weight() for text in ax.texts[:3]] == ["normal", "normal", "bold"]


def test_cross_attention_has_a_row_per_query_and_a_column_per_token_of_the_memory(ax):
    attention = np.array([[0.25, 0.5, 0.25], [1, 0, 0]])
    figures.draw_cross_attention(["a", "b"], ["x", "y", "z"], attention, ax)
    assert np.array_equal(ax.collections[0].get_array(), attention)
    assert ax.collections[0].get_clim() == (0, 1)
    words = [text for text in ax.texts if text.get_text() in ("a", "b", "x", "y", "z")]
    assert [text.get_position()[1] for text in words[:2]] == [-0.5, -1.5]
    assert [text.get_position()[0] for text in words[2:]] == [0.5, 1.5, 2.5]
    colors = {text.get_text(): text.get_color() for text in ax.texts}
    assert [colors[name] for name in ("$W^Q$", "$W^K$", "$W^V$")] == [style.QUERY, style.KEY, style.VALUE]


@pytest.fixture
def blocks(rng):
    left = [rng.normal(size=(6, 3)), rng.normal(size=(6, 2))]
    return left, [rng.normal(size=(3, 4)), rng.normal(size=(2, 4))]


def test_product_draws_blocks_and_their_sum(ax, blocks):
    left, right = blocks
    figures.draw_product(left, right, ("L", "R", "P"), ax)
    assert grids(ax) == ([6, 6, 3, 2, 6], [3, 2, 4, 4, 4])
    assert texts(ax) == ["L\n6 × 5", "·", "R\n5 × 4", "=", "P\n6 × 4"]
    assert np.array_equal(ax.collections[-1].get_array(), left[0] @ right[0] + left[1] @ right[1])
    assert len({grid.get_clim() for grid in ax.collections}) == 1


def test_signed_numbers_are_shaded_alike_below_and_above_zero(ax):
    style.draw_grid(np.array([[-1.0, 3.0]]), 0, 0, style.QUERY, ax)
    style.draw_grid(np.array([[-1.0, 3.0]]), 0, 0, style.QUERY, ax, limit=5)
    style.draw_grid(np.zeros((2, 2)), 0, 0, style.QUERY, ax)
    assert [grid.get_clim() for grid in ax.collections] == [(-3, 3), (-5, 5), (-1, 1)]
    assert {grid.get_cmap().name for grid in ax.collections} == {"signed"}
    assert style.SIGNED(0.5)[:3] == (1, 1, 1)


def test_weights_are_shaded_from_zero_to_one_whatever_is_among_them(ax):
    style.draw_grid(np.array([[0.2, 0.3]]), 0, 0, style.NEUTRAL, ax, weights=True)
    assert ax.collections[0].get_clim() == (0, 1)
    assert ax.collections[0].get_cmap().name == "weights"


def test_product_has_a_second_row_with_what_each_head_writes(ax, blocks):
    left, right = blocks
    figures.draw_product(left, right, ("L", "R", "P"), ax, terms=("first", "second"))
    first, second, total = (grid.get_array() for grid in ax.collections[5:])
    assert np.array_equal(first, left[0] @ right[0])
    assert np.array_equal(second, left[1] @ right[1])
    assert np.array_equal(total, ax.collections[4].get_array())
    assert texts(ax)[5:] == ["first\n6 × 4", "+", "second\n6 × 4", "=", "P\n6 × 4"]


def test_product_of_one_block_has_its_numbers_written_in_it(ax):
    figures.draw_product([np.array([[1.0, -2.0]])], [np.array([[3.0], [0.5]])], ("L", "R", "P"), ax, numbers=True)
    assert [text for text in texts(ax) if len(text) < 3 and text not in "·="] == ["1", "-2", "3", "2"]
    colors = {text.get_text(): text.get_color() for text in ax.texts}
    assert (colors["0.5"], colors["1"], colors["3"], colors["-2"]) == ("black", "black", "white", "white")


def test_steps_draws_every_step_of_every_head(ax, rng):
    weights, X = RowWeights.random(rng, d_model=6, h=2, d_k=3, d_v=2, bias=False), rng.normal(size=(4, 6))
    trace = row.multi_head(X, X, X, weights)
    figures.draw_steps(X, weights, trace, ax, ["a", "b", "c", "d"])
    head_columns = [3, 3, 2, 4, 2, 6]  # queries, keys, values, attention, head, what it writes
    assert grids(ax) == ([4] * 14, [6, *head_columns, *head_columns, 6])
    assert texts(ax)[:5] == ["a", "b", "c", "d", "$X$: 4 tokens, 6 numbers each"]
    assert [text for text in texts(ax) if text.startswith("head ")] == ["head 1", "head 2"]
    assert np.array_equal(ax.collections[4].get_array(), trace.attention[0])
    assert ax.collections[4].get_clim() == (0, 1)
    assert np.array_equal(ax.collections[12].get_array(), trace.heads[1] @ weights.W_o[1])
    signed = {grid.get_clim() for place, grid in enumerate(ax.collections) if place not in (4, 10)}
    assert len(signed) == 1


def test_steps_draws_shared_keys_in_every_head_that_reads_them(ax, rng):
    weights, X = RowWeights.random(rng, d_model=6, h=2, h_kv=1, bias=False), rng.normal(size=(4, 6))
    figures.draw_steps(X, weights, row.multi_head(X, X, X, weights), ax)
    first, second = ax.collections[2], ax.collections[8]  # the keys of both heads
    assert np.array_equal(first.get_array(), second.get_array())
    assert texts(ax)[0].startswith("$X$")


def arrows(ax):
    """Where each arrow starts and ends."""
    drawn = [text for text in ax.texts if getattr(text, "arrow_patch", None)]
    return [(*arrow.xyann, *arrow.xy) for arrow in drawn]


def test_residual_stream_is_read_by_all_heads_at_once_and_by_the_mlp_after_them(ax):
    figures.draw_residual_stream(2, ax)
    _, *branches = arrows(ax)
    reads, writes = branches[::2], branches[1::2]
    assert [start for start, *_ in reads[:2]] == [0, 0]
    assert len({end for _, _, end, _ in writes[:2]}) == 1
    assert reads[2][0] > writes[0][2]
    assert texts(ax).count("+") == 2
    assert [text for text in texts(ax) if text in ("head 1", "head 2", "head 3", "MLP")] == [
        "head 1",
        "head 2",
        "MLP",
    ]


def test_two_averages_colour_the_numbers_that_count(ax):
    figures.draw_two_averages(np.array([0.5, 0.5, 0, 0, 0]), np.array([0, 0, 0.25, 0.25, 0.5]), ax)
    filled = [patch.get_facecolor() != (1, 1, 1, 1) for patch in ax.patches]
    assert filled == [True, True, False, False, False, False, False, True, True, True]
    assert [line.get_linewidth() for line in ax.lines] == [3, 3, 1.5, 1.5, 3]
    assert "average of $x_1$ and $x_2$" in texts(ax)
    assert "average of $y_3$ to $y_5$" in texts(ax)


def test_missed_shows_both_averages_and_their_sum(ax):
    share = np.array([0.0, 0.5, 1.0])
    figures.draw_missed(share, 1 - share, share / 2, ax)
    assert [line.get_ydata().tolist() for line in ax.lines] == [
        [1, 0.5, 0],
        [0, 0.25, 0.5],
        [1, 0.75, 0.5],
        [0, 0, 0],
    ]
    assert len(ax.get_legend().get_texts()) == 4


def test_conventions_follow_one_token_and_one_row_of_weights(ax):
    axes = ax.figure.subplots(3)
    figures.draw_conventions(n=4, d_in=5, d_out=3, token=1, axes=axes)
    hatched, filled = [], []
    for drawn in axes:
        cells = [(patch.get_xy(), patch) for patch in drawn.patches]
        hatched.append([place for place, patch in cells if patch.get_hatch()])
        filled.append([place for place, patch in cells if patch.get_facecolor()[:3] != (1, 1, 1)])
    assert [len(places) for places in hatched] == [5, 5, 5 + 5]
    assert [len(places) for places in filled] == [5 + 3] * 3
    assert len({y for _, y in hatched[0]}) == len({x for x, _ in hatched[1]}) == 1  # a row, and a column
    assert len({x for x, _ in filled[0][:5]}) == len({y for _, y in filled[1]}) == 1
    assert texts(axes[0])[0] == "$W$\n3 × 5"
    assert texts(axes[2])[-1] == "kept: $W$\n3 × 5"


def test_coordinates_show_queries_and_keys_in_every_basis(ax):
    axes = ax.figure.subplots(1, 2)
    queries, keys = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[5.0], [6.0]])
    figures.draw_coordinates({"before": (queries, keys), "after": (2 * queries, keys / 2)}, axes)
    assert [drawn.get_title() for drawn in axes] == ["before", "after"]
    assert np.array_equal(axes[1].collections[0].get_offsets(), 2 * queries.T)
    assert np.array_equal(axes[1].collections[1].get_offsets(), keys.T / 2)
    assert texts(axes[0]) == ["1", "2", "1"]


def test_sharing_joins_each_query_head_to_its_keys(ax):
    figures.draw_sharing(4, {"all": 4, "groups": 2, "one": 1}, ax)
    colors = [matplotlib.colors.to_hex(patch.get_facecolor()).upper() for patch in ax.patches]
    assert [colors.count(color) for color in (style.QUERY, style.KEY, style.VALUE)] == [12, 7, 7]
    ends = [line.get_xdata() for line in ax.lines]
    assert all(start == end for start, end in ends[:4])
    assert [round(end, 9) for _, end in ends[4:8]] == [5.7, 5.7, 7.7, 7.7]
    assert {round(end, 9) for _, end in ends[8:]} == {11.9}
    assert texts(ax)[:3] == ["all\n4 key-value heads", "groups\n2 key-value heads", "one\n1 key-value head"]


def test_growth_is_drawn_on_logarithmic_axes(ax):
    figures.draw_growth(np.array([1024, 2048]), {"a": np.array([1, 2]), "b": np.array([1, 4])}, ax)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    assert [label.get_text() for label in ax.get_xticklabels()] == ["1,024", "2,048"]
    assert [line.get_ydata().tolist() for line in ax.lines] == [[1, 2], [1, 4]]
    assert 0 < ax.get_ylim()[0] < 1


def test_colours_of_heads_start_again():
    assert figures.head_color(5) == figures.head_color(1) != figures.head_color(0)


def test_lines_are_named_in_a_legend(ax):
    figures.draw_lines(np.array([1.0, 2.0]), {"a": [3, 4], "b": [5, 6]}, ax)
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[1, 3], [2, 4]], [[1, 5], [2, 6]]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]


def test_masks_are_drawn_with_the_first_query_on_top(ax):
    axes = ax.figure.subplots(1, 2)
    masks = {"first": np.array([[True, False, False], [True, True, False]]), "second": np.eye(2, dtype=bool)}
    figures.draw_visible(masks, axes)
    for drawn, (name, mask) in zip(axes, masks.items(), strict=True):
        assert drawn.get_title() == name
        assert np.array_equal(drawn.collections[0].get_array(), mask)
        assert drawn.get_ylim()[0] > drawn.get_ylim()[1]


def test_slots_show_their_tokens_and_what_is_new(ax):
    held = np.array([[0, -1, -1], [3, 1, 2]])
    figures.draw_slots(held, np.array([[True, False, False], [True, False, False]]), ax)
    cells = {patch.get_xy(): patch.get_facecolor()[:3] for patch in ax.patches}
    assert len(cells) == 6
    assert {place for place, color in cells.items() if color != (1, 1, 1)} == {(0, 0), (0, 1)}
    written = {tuple(text.get_position()): text.get_text() for text in ax.texts}
    assert written == {(0.5, 0.5): "0", (0.5, 1.5): "3", (1.5, 1.5): "1", (2.5, 1.5): "2"}
    assert ax.get_ylim() == (2, 0)


def test_mask_axes_have_a_block_for_each_head_of_each_text(ax, rng):
    visible = rng.random((2, 3, 4, 5)) < 0.5
    figures.draw_mask_axes(visible, ax)
    blocks = visible.reshape(6, 4, 5)
    assert all(np.array_equal(grid.get_array(), block) for grid, block in zip(ax.collections, blocks, strict=True))
    left, top = zip(*(grid.get_coordinates()[0, 0] for grid in ax.collections), strict=True)
    assert left[:3] == left[3:]
    assert left[0] < left[1] < left[2]
    assert set(top[:3]) == {0}
    assert max(top[3:]) < -4
    assert [text for text in texts(ax) if text not in ("queries", "keys")] == [
        "head 1",
        "head 2",
        "head 3",
        "text 1",
        "text 2",
    ]


def test_backward_graph_has_a_way_back_beside_every_way_forward(ax):
    figures.draw_backward(ax)
    drawn = [text for text in ax.texts if getattr(text, "arrow_patch", None)]
    dashed = [arrow for arrow in drawn if arrow.arrow_patch.get_linestyle() == "--"]
    assert len(drawn) == 9 + 9 + 1
    assert len(dashed) == 9 + 1
    assert all(arrow.xy[1] > arrow.xyann[1] for arrow in dashed)
    assert all(arrow.xy[1] < arrow.xyann[1] for arrow in drawn if arrow not in dashed)
    gradients = [text for text in texts(ax) if "bar" in text or "overline" in text]
    assert len(gradients) == 9 + 1


def test_packed_matrices_give_each_head_its_columns(ax, rng):
    X, matrices = rng.normal(size=(4, 5)), list(rng.normal(size=(2, 5, 3)))
    figures.draw_packed(X, matrices, ax)
    assert grids(ax) == ([4, 5, 5, 4, 4], [5, 3, 3, 3, 3])
    assert np.array_equal(ax.collections[4].get_array(), X @ matrices[1])
    assert len({grid.get_clim() for grid in ax.collections}) == 1
    assert [text for text in texts(ax) if "×" in text] == ["$X$\n4 × 5", "packed $W^Q$\n5 × 6", "queries\n4 × 6"]
    colors = [text.get_color() for text in ax.texts if text.get_text() == "head 2"]
    assert colors == [style.head_color(1)] * 2


def test_flow_has_an_arrow_from_each_step_to_the_next(ax):
    figures.draw_flow({"a": "(1)", "b": "(2)", "c": "(3)"}, ax)
    assert [text for text in texts(ax) if text] == ["a", "(1)", "b", "(2)", "c", "(3)"]
    assert [start > end for _, start, _, end in arrows(ax)] == [True, True]


def test_memory_shows_each_number_in_the_colour_of_its_token(ax):
    axes = ax.figure.subplots(1, 1, squeeze=False)
    figures.draw_memory({"name": np.array([[7, 8], [9, 10]])}, {"name": np.array([[0, 0], [1, 1]])}, axes)
    (drawn,) = axes.ravel()
    assert texts(drawn) == ["7", "8", "9", "10"]
    colors = [patch.get_facecolor()[:3] for patch in drawn.patches]
    assert colors[0] == colors[1] != colors[2] == colors[3]
    assert drawn.get_title(loc="left") == "name"


def test_ratios_are_points_with_their_quartiles(ax):
    first, second = {"low": 1.0, "median": 1.25, "high": 2.0}, {"low": 3.0, "median": 4.0, "high": 4.5}
    figures.draw_ratios({"whole": {"a": first, "b": second}, "causal": {"a": second, "b": first}}, ax)
    for bars, medians in zip(ax.containers, ([1.25, 4], [4, 1.25]), strict=True):
        points, _, (quartiles,) = bars
        assert list(points.get_xdata()) == medians
        ends = {tuple(segment[:, 0]) for segment in quartiles.get_segments()}
        assert ends == {(1, 2), (3, 4.5)}
    assert [label.get_text() for label in ax.get_yticklabels()] == ["a", "b"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_bars_are_as_long_as_their_values(ax):
    figures.draw_bars({"a": 1.25, "b": 40.0}, ax)
    assert [bar.get_width() for bar in ax.patches] == [1.25, 40]
    assert texts(ax) == ["1.2", "40.0"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_shapes_draws_all_eleven_steps_with_their_axes(ax, rng):
    weights, x = RowWeights.random(rng, d_model=6, h=2), rng.normal(size=(4, 5, 6))
    figures.draw_shapes(steps.eleven_steps(x, weights), ax, token=1)
    assert texts(ax)[::2] == [f"{number}  {name}" for number, name in enumerate(steps.eleven_steps(x, weights), 1)]
    assert texts(ax)[1::2] == [
        "(token 5, number 6)",
        "3 of (token 5, number 6)",
        "3 of (token 5, head 2, number 3)",
        "3 of (head 2, token 5, number 3)",
        *["(head 2, query 5, key 5)"] * 3,
        "(head 2, token 5, number 3)",
        "(token 5, head 2, number 3)",
        "(token 5, number 6)",
        "(token 5, number 6)",
    ]
    blocks, stripes = ax.patches[::2], ax.patches[1::2]
    assert [block.get_width() for block in blocks] == [6, *[6] * 3, *[3] * 12, *[5] * 6, *[3] * 4, 6, 6]
    assert {
        round(block.get_height() / stripe.get_height(), 9) for block, stripe in zip(blocks, stripes, strict=True)
    } == {5}
    places = [block.get_x() for block in blocks]
    assert places[5] - places[4] == 3  # split: beside each other
    assert places[11] - places[10] > 3  # transposed: apart
    assert {stripe.get_facecolor()[3] for stripe in stripes} == {1}


def test_modules_show_what_is_stored_and_which_kernels_there_are(ax):
    shapes = {"W_q": (18, 12), "W_k": (6, 12), "W_v": (10, 12), "W_o": (12, 30)}
    figures.draw_modules(shapes, ["naive", "fused"], ax)
    written = texts(ax)
    for name, (rows, columns) in shapes.items():
        assert f"{name}\nLinear\n{rows} × {columns}" in written
    assert "a kernel:\nnaive, fused\nor a function of your own" in written
    assert sum(patch.get_linestyle() == "--" for patch in ax.patches) == 1  # prepare can be left out


def test_strips_decode_each_stored_feature(ax):
    places = np.array([[0, 1, 1], [0, 1, 2], [2, 1, 1], [0, 2, 1], [1, 2, 3]])
    figures.draw_strips({"one": places, "two": places[:2]}, ax)
    first = ["one", "1", "2", "1", "1", "3", "query", "value", "query", "key", "head 1", "head 2"]
    assert texts(ax) == [*first, "two", "1", "2", "query", "head 1"]
    colors = [matplotlib.colors.to_hex(patch.get_facecolor()) for patch in ax.patches[:5]]
    assert colors == [color.lower() for color in (style.QUERY, style.QUERY, style.VALUE, style.QUERY, style.KEY)]
    assert [line.get_color() for line in ax.lines] == [style.head_color(head) for head in (0, 1, 0)]


def test_pairs_are_joined_by_arcs_between_their_cells(ax):
    figures.draw_pairs({"near": [(0, 1), (2, 3)], "far": [(0, 2), (1, 3)]}, ax)
    ends = [tuple(np.round(line.get_xdata()[[-1, 0]] - 0.5, 9)) for line in ax.lines]
    assert ends == [(0, 1), (2, 3), (0, 2), (1, 3)]
    assert texts(ax) == ["near", "0", "1", "2", "3", "far", "0", "2", "1", "3"]


@pytest.mark.parametrize(("unit", "lines"), [(1, 1), (None, 0)])
def test_ranges_lead_from_quartile_to_quartile(ax, unit, lines):
    ranges = {"short": {"A": (1, 2, 4), "B": (3, 5, 7)}, "long": {"B": (2, 3, 8)}}
    figures.draw_ranges(ranges, ax, unit)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["A", "B"]
    segments = [segment[:, 0].tolist() for collection in ax.collections for segment in collection.get_segments()]
    assert segments == [[1, 4], [3, 7], [2, 8]]
    named = {line.get_label(): list(line.get_xdata()) for line in ax.lines if line.get_label() in ranges}
    assert named == {"short": [2, 5], "long": [3]}
    assert sum(list(line.get_xdata()) == [1, 1] for line in ax.lines) == lines


def test_tiles_are_numbered_without_those_that_are_hidden(ax):
    visible = np.tri(7, 5, dtype=bool)  # in tiles of three: two of three wide, three rows of them, the first half
    figures.draw_tiles(visible, 3, ax)
    assert texts(ax) == ["1", "2", "3", "4", "5"]
    frames = [(patch.get_xy(), patch.get_width(), patch.get_height()) for patch in ax.patches]
    assert frames[0] == ((0, 0), 3, 3)
    assert frames[-1] == ((3, 6), 2, 1)
    assert np.array_equal(np.asarray(ax.collections[0].get_array()).reshape(7, 5), visible)


def test_running_maximum_is_the_largest_of_all_blocks_so_far(ax):
    scores = np.array([0.0, 1.0, -2.0, 0.5, 3.0, 2.0, 1.0])
    figures.draw_running_maximum(scores, 2, ax)
    (lines,) = ax.collections
    assert [(x, x_end, y) for (x, y), (x_end, _) in lines.get_segments()] == [
        (0, 2, 1),
        (2, 4, 1),
        (4, 6, 3),
        (6, 7, 3),
    ]
    assert texts(ax) == ["× 0", "× 1", "× 0.14", "× 1"]  # exp(1 - 3) is 0.135
    assert np.array_equal(ax.lines[0].get_ydata(), scores)
    assert [label.get_text() for label in ax.get_xticklabels()] == [f"block {i}" for i in (1, 2, 3, 4)]


def test_running_maximum_of_equal_scores_leaves_room_above(ax):
    figures.draw_running_maximum(np.zeros(3), 3, ax)
    assert ax.get_ylim()[1] > 0


def test_roofline_rises_with_the_bandwidth_and_ends_at_the_peak(ax):
    figures.draw_roofline({"naive": 32.0, "tiled": 500.0}, 312e12, 1.5e12, ax)
    roof, naive, tiled = ax.lines
    assert roof.get_xdata().tolist() == [8, 208, 2000]
    assert roof.get_ydata().tolist() == [12, 312, 312]
    assert (naive.get_xdata().tolist(), naive.get_ydata().tolist()) == ([32], [48])
    assert tiled.get_ydata().tolist() == [312]
    assert [line.get_label() for line in ax.lines[1:]] == ["naive", "tiled"]
    assert ax.get_xscale() == ax.get_yscale() == "log"


def test_heat_maps_share_one_scale():
    maps = {"a": np.array([[0.0, -4.0]]), "b": np.array([[1.0], [2.0]])}
    axes = plt.figure().subplots(1, 2)
    figures.draw_heat(maps, axes, x="feature", y="position")
    for ax, (name, array) in zip(axes, maps.items(), strict=True):
        assert np.array_equal(ax.images[0].get_array(), array)
        assert ax.images[0].get_clim() == (-4, 4)
        assert (ax.get_title(), ax.get_xlabel()) == (name, "feature")
    assert [ax.get_ylabel() for ax in axes] == ["position", ""]
    plt.close("all")


def test_turned_vectors_have_the_angle_of_their_positions():
    """A quarter turn for each position; arcs lead from the smaller angle to the larger, the short way round."""
    axes = plt.figure().subplots(1, 2)
    places = {"near": (0, 1), "far": (2, 3)}
    figures.draw_turns(np.array([2.0, 0.0]), np.array([0.0, -1.0]), np.pi / 2, places, axes)
    tips = [[annotation.xy for annotation in ax.texts if not annotation.get_text()] for ax in axes]
    np.testing.assert_allclose(tips[0], [(2, 0), (2, 0), (0, -1), (1, 0)], atol=1e-9)
    np.testing.assert_allclose(tips[1], [(2, 0), (-2, 0), (0, -1), (-1, 0)], atol=1e-9)
    assert [text for text in texts(axes[1]) if text] == ["2", "3"]
    plt.close("all")


@pytest.mark.parametrize(
    ("query", "key", "expected"),
    [((1, 0), (0, 1), (0, 90)), ((0, 1), (1, 0), (0, 90)), ((-1, 0.1), (-1, -0.1), (174.3, 185.7))],
)
def test_the_arc_between_two_vectors_goes_the_short_way(ax, query, key, expected):
    figures.draw_turns(np.array(query), np.array(key), 0.1, {"": (0, 0)}, [ax])
    arc = ax.patches[0]
    assert (round(arc.theta1, 1), round(arc.theta2, 1)) == expected


def test_wiring_draws_a_box_for_each_part_and_a_line_past_what_is_added(ax):
    blocks = {
        "pre": ["branch", "RMS norm", "attention\nn × 6", "+"],
        "post": ["branch", "attention", "+", "layer norm"],
    }
    figures.draw_wiring(blocks, ax)
    assert texts(ax) == ["pre", "RMS norm", "attention\nn × 6", "+", "post", "attention", "+", "layer norm"]
    boxes = [patch for patch in ax.patches if isinstance(patch, matplotlib.patches.Rectangle)]
    colors = [matplotlib.colors.to_hex(box.get_edgecolor()).upper() for box in boxes]
    assert colors == [style.NEUTRAL, style.QUERY, style.QUERY, style.NEUTRAL]
    tops = [line.get_ydata()[0] for line in ax.lines]
    ends = [line.get_ydata()[-1] for line in ax.lines]
    assert len(tops) == 2
    for box, inside in zip(boxes, (True, True, True, False), strict=True):
        place = 0 if box.get_x() < 4 else 1
        assert (ends[place] < box.get_y() < tops[place]) == inside


@pytest.mark.parametrize("ranks", [2, 3])
def test_shards_are_drawn_with_their_matrices_and_the_sum(ax, ranks, rng):
    X, weights = rng.normal(size=(5, 7)), RowWeights.random(rng, 7, 6, h_kv=6, d_k=2, d_v=3)
    parts = [shards.shard(weights, rank, ranks) for rank in range(ranks)]
    figures.draw_shards(X, parts, [row.multi_head(X, X, X, part) for part in parts], ax)
    assert texts(ax)[0] == "$X$, on every rank\n5 × 7"
    share = 6 // ranks
    own = [
        f"$W^Q$\n7 × {2 * share}",
        f"$W^K$\n7 × {2 * share}",
        f"$W^V$\n7 × {3 * share}",
        f"heads\n5 × {3 * share}",
    ]
    own += [f"$W^O$, its rows\n{3 * share} × 7", "what it writes\n5 × 7"]
    expected = [text for rank in range(ranks) for text in (*own, f"rank {rank}")]
    assert texts(ax)[1:-1] == expected
    total = ax.collections[-1].get_array()
    np.testing.assert_allclose(total.reshape(5, 7), row.multi_head(X, X, X, weights).output)


def test_ring_counts_the_ranks_in_every_chunk():
    held = shards.ring_all_reduce(np.ones((3, 3))).held
    axes = plt.figure().subplots(1, 5)
    figures.draw_ring(held, axes)
    assert [ax.get_title() for ax in axes] == ["start", "step 1", "step 2", "step 3", "step 4"]
    for ax, counts in zip(axes, held, strict=True):
        assert texts(ax) == [f"{number:.0f}" for number in counts.ravel()]
        assert np.array_equal(ax.images[0].get_array(), counts)
    assert {text.get_color() for text in axes[0].texts} == {"black"}
    assert {text.get_color() for text in axes[-1].texts} == {"white"}
    plt.close("all")


def test_bands_are_medians_with_what_lies_around(ax):
    band = {"low": [0.0, 0.2], "median": [0.1, 0.5], "high": [0.3, 0.9]}
    figures.draw_bands([0, 10], {"one": band, "two": band}, ax)
    assert [entry.get_text() for entry in ax.get_legend().get_texts()] == ["one", "two"]
    assert ax.lines[0].get_xydata().tolist() == [[0, 0.1], [10, 0.5]]
    corners = {tuple(vertex) for vertex in ax.collections[1].get_paths()[0].vertices.tolist()}
    assert corners == {(0, 0.0), (0, 0.3), (10, 0.2), (10, 0.9)}
    assert len({line.get_linestyle() for line in ax.lines}) == 2


def test_patterns_are_shaded_from_zero_to_one(ax):
    tables = {"a": np.eye(3) / 2, "b": np.eye(3, k=-1)}
    axes = plt.figure().subplots(1, 2)
    figures.draw_patterns(tables, ["x", "y", "z"], axes)
    for drawn, (title, table) in zip(axes, tables.items(), strict=True):
        assert drawn.get_title() == title
        assert np.array_equal(drawn.images[0].get_array(), table)
        assert drawn.images[0].get_clim() == (0, 1)
        assert [label.get_text() for label in drawn.get_xticklabels()] == ["x", "y", "z"]
    assert [drawn.get_ylabel() for drawn in axes] == ["query", ""]


def test_fingerprints_are_filled_where_a_property_is_broken(ax):
    figures.draw_fingerprints({"one": ["a", "b"], "two": ["b", "c"], "three": []}, ax)
    filled = [patch.get_xy() for patch in ax.patches if patch.get_facecolor()[:3] != (1, 1, 1)]
    assert filled == [(0, 0), (1, 0), (1, 1), (2, 1)]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["one", "two", "three"]


def test_all_heads_are_small_pictures_in_their_places(ax, rng):
    attention = rng.random((3, 2, 5, 5))
    figures.draw_all_heads(attention, ax)
    drawn = np.ma.filled(ax.images[0].get_array(), np.nan).reshape(2, 6, 3, 6)
    for layer, head in np.ndindex(3, 2):
        cells = drawn[head, :, layer]
        assert np.array_equal(np.nan_to_num(cells[:5, :5]), np.tril(attention[layer, head]))
        assert np.isnan(cells[5]).all()
        assert np.isnan(cells[:, 5]).all()
    assert ax.images[0].get_clim() == (0, 1)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "1"]


def test_scores_of_heads_are_maps_of_layers_and_heads(rng):
    axes = plt.figure().subplots(2)
    scores = {"induction": rng.random((7, 5)), "first token": rng.random((7, 5))}
    figures.draw_head_scores(scores, axes)
    for ax, (name, of_heads) in zip(axes, scores.items(), strict=True):
        assert np.array_equal(ax.images[0].get_array(), of_heads.T)
        assert (ax.get_title(), ax.images[0].get_clim()) == (name, (0, 1))
    assert [tick.get_text() for tick in axes[1].get_xticklabels()] == ["0", "5"]
    plt.close("all")


def test_sets_are_points_in_rows_beside_the_whole_model(ax):
    figures.draw_sets({"one": np.array([5.0]), "random": np.array([3.0, 4.0, 3.5])}, 2.5, ax)
    points = [collection.get_offsets() for collection in ax.collections]
    assert [row[:, 0].tolist() for row in points] == [[5.0], [3.0, 4.0, 3.5]]
    assert [set(np.round(row[:, 1])) for row in points] == [{0.0}, {1.0}]
    assert ax.lines[0].get_xdata() == [2.5, 2.5]
    assert texts(ax) == ["all heads"]
