"""The figures, by what stands in their Axes: the same numbers as in the arrays they are given."""

import matplotlib.pyplot as plt
import numpy as np
import pytest

from mha_tutorial import ColumnWeights, RowWeights, figures
from mha_tutorial.examples import steps
from mha_tutorial.figures import style
from mha_tutorial.reference import column


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


def test_moves_point_from_before_to_after(ax):
    figures.draw_moves(np.array([2.0, 2.0]), {"first": np.array([2.2, 1.4]), "second": np.array([1.3, 2.2])}, ax)
    assert texts(ax) == ["before", "", "first", "", "second"]
    arrows = [text for text in ax.texts if not text.get_text()]
    assert [(*arrow.xyann, *arrow.xy) for arrow in arrows] == [(2, 2, 2.2, 1.4), (2, 2, 1.3, 2.2)]


def test_contributions_are_laid_head_to_tail(ax):
    figures.draw_contributions(np.array([[0.5, 2.0], [3.0, 4.0]]), ax)
    arrows = [text for text in ax.texts if not text.get_text()]
    assert [(*arrow.xyann, *arrow.xy) for arrow in arrows] == [(0, 0, 0.5, 2), (0.5, 2, 3.5, 6), (0, 0, 3.5, 6)]
    named = [text for text in texts(ax) if text]
    assert named == ["head 1 writes\n(0.5, 2)", "head 2 writes\n(3, 4)", "their sum, the output\n(3.5, 6)"]


def test_product_draws_blocks_and_their_sum(ax, rng):
    left, right = (
        [rng.normal(size=(6, 3)), rng.normal(size=(6, 2))],
        [rng.normal(size=(3, 4)), rng.normal(size=(2, 4))],
    )
    figures.draw_product(left, right, ("L", "R", "P"), ax)
    assert grids(ax) == ([6, 6, 3, 2, 6], [3, 2, 4, 4, 4])
    assert texts(ax) == ["L\n6 × 5", "R\n5 × 4", "·", "=", "P\n6 × 4"]
    product = left[0] @ right[0] + left[1] @ right[1]
    drawn = np.asarray(ax.collections[-1].get_array())
    assert np.array_equal(np.argsort(drawn, axis=None), np.argsort(product, axis=None))


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


def test_multi_head_draws_every_step_of_every_head(ax, rng):
    weights, X = ColumnWeights.random(rng, d_model=6, h=2, d_k=3, d_v=2), rng.normal(size=(6, 4))
    figures.draw_multi_head(X, weights, column.multi_head(X, X, X, weights), ax)
    head_rows, head_columns = [3, 3, 2, 4, 2, 6], [4] * 6  # queries, keys, values, attention, head, what it writes
    assert grids(ax) == ([6, *head_rows, *head_rows, 6], [4, *head_columns, *head_columns, 4])
    assert "4 tokens,\n6 numbers each" in texts(ax)
    assert [text for text in texts(ax) if text.startswith("head ")] == ["head 1", "head 2"]


def test_multi_head_draws_shared_keys_in_every_head_that_reads_them(ax, rng):
    weights, X = ColumnWeights.random(rng, d_model=6, h=2, h_kv=1, bias=False), rng.normal(size=(6, 4))
    trace = column.multi_head(X, X, X, weights)
    figures.draw_multi_head(X, weights, trace, ax)
    first, second = ax.collections[2], ax.collections[8]  # the keys of both heads
    assert np.array_equal(first.get_array(), second.get_array())


def test_colours_of_heads_start_again():
    assert figures.head_color(5) == figures.head_color(1) != figures.head_color(0)


def test_lines_are_named_in_a_legend(ax):
    figures.draw_lines(np.array([1.0, 2.0]), {"a": [3, 4], "b": [5, 6]}, ax)
    assert [line.get_xydata().tolist() for line in ax.lines] == [[[1, 3], [2, 4]], [[1, 5], [2, 6]]]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["a", "b"]


def test_spectra_show_each_head_and_where_the_rank_ends(ax):
    figures.draw_spectra(np.array([[3.0, 1.0, 0.0], [2.0, 0.5, 0.0]]), 2, ax)
    assert [line.get_ydata().tolist() for line in ax.lines[:2]] == [[3, 1, 0], [2, 0.5, 0]]
    assert ax.lines[2].get_xdata() == [2.5, 2.5]
    assert texts(ax) == ["rank 2"]


def test_masks_are_drawn_with_the_first_query_on_top(ax):
    axes = ax.figure.subplots(1, 2)
    masks = {"first": np.array([[True, False, False], [True, True, False]]), "second": np.eye(2, dtype=bool)}
    figures.draw_visible(masks, axes)
    for drawn, (name, mask) in zip(axes, masks.items(), strict=True):
        assert drawn.get_title() == name
        assert np.array_equal(drawn.collections[0].get_array(), mask)
        assert drawn.get_ylim()[0] > drawn.get_ylim()[1]


def test_memory_shows_each_number_in_the_colour_of_its_token(ax):
    axes = ax.figure.subplots(1, 1, squeeze=False)
    figures.draw_memory({"name": np.array([[7, 8], [9, 10]])}, {"name": np.array([[0, 0], [1, 1]])}, axes)
    (drawn,) = axes.ravel()
    assert texts(drawn) == ["7", "8", "9", "10"]
    colors = [patch.get_facecolor()[:3] for patch in drawn.patches]
    assert colors[0] == colors[1] != colors[2] == colors[3]
    assert drawn.get_title(loc="left") == "name"


def test_bars_are_as_long_as_their_values(ax):
    figures.draw_bars({"a": 1.25, "b": 40.0}, ax)
    assert [bar.get_width() for bar in ax.patches] == [1.25, 40]
    assert texts(ax) == ["1.2", "40.0"]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


def test_shapes_draws_each_head_of_the_first_text(ax, rng):
    weights, x = RowWeights.random(rng, d_model=6, h=2), rng.normal(size=(3, 5, 6))
    ledger = steps.eleven_steps(x, weights)
    figures.draw_shapes(ledger, ax)
    heads = [5] * 6, [3] * 6
    assert grids(ax) == (
        [5, *[5] * 3, *heads[0], *[5] * 2, *[5] * 2, 5, 5],
        [6, *[6] * 3, *heads[1], *[5] * 2, *[3] * 2, 6, 6],
    )
    assert [text for text in texts(ax) if "×" not in text] == ["queries", "keys", "values"]
    assert texts(ax)[0] == "tokens\n3 × 5 × 6"
    second_head_of_keys = np.asarray(ax.collections[7].get_array())
    expected = ledger["transpose"][1, 0, 1]
    assert np.array_equal(np.argsort(second_head_of_keys, axis=None), np.argsort(expected, axis=None))
