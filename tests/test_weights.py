"""The weights record: transposing it, drawing it, keeping some heads, counting, refusing what does not fit."""

import re

import numpy as np
import pytest

from mha_tutorial import ColumnWeights, RowWeights
from mha_tutorial.reference import column
from tests.helpers import D_K, D_MODEL, D_V, N, assert_close

SIZES = {"d_model": D_MODEL, "h": 6, "h_kv": 2, "d_k": D_K, "d_v": D_V}


@pytest.fixture
def weights(rng):
    return ColumnWeights.random(rng, **SIZES)


@pytest.mark.parametrize("cls", [ColumnWeights, RowWeights])
def test_sizes_are_read_off_the_arrays(cls, rng):
    weights = cls.random(rng, **SIZES)
    assert {name: getattr(weights, name) for name in SIZES} == SIZES
    assert weights.group_size == 3
    assert weights.widths == (D_MODEL,) * 3
    assert weights.dtype == np.float64


def test_widths_read_by_each_projection_may_differ(weights):
    arrays = weights.arrays() | {"W_k": np.ones((2, D_K, 19)), "W_v": np.ones((2, D_V, 23))}
    for mixed in (ColumnWeights(**arrays), ColumnWeights(**arrays).T):
        assert mixed.widths == (D_MODEL, 19, 23)
        assert mixed.d_model == D_MODEL


def test_transposing_twice_gives_the_weights_back(weights):
    for name, array in weights.T.T.arrays().items():
        assert np.array_equal(array, weights.arrays()[name])
    assert isinstance(weights.T, RowWeights)
    assert isinstance(weights.T.T, ColumnWeights)


@pytest.mark.parametrize("bias", [True, False])
def test_parameters_are_counted(bias, rng):
    weights = ColumnWeights.random(rng, **SIZES, bias=bias)
    matrices = D_MODEL * (6 * D_K + 2 * D_K + 2 * D_V + 6 * D_V)
    biases = 6 * D_K + 2 * D_K + 2 * D_V + D_MODEL
    assert weights.parameter_count == weights.T.parameter_count == matrices + bias * biases


@pytest.mark.parametrize("h", [1, 2, 4, 8])
def test_full_size_heads_have_four_d_squared_parameters_whatever_their_number(h, rng):
    assert ColumnWeights.random(rng, d_model=32, h=h, bias=False).parameter_count == 4 * 32**2


def test_missing_biases_stay_missing(rng):
    weights = ColumnWeights.random(rng, **SIZES, bias=False)
    assert list(weights.arrays()) == list(weights.T.arrays()) == ["W_q", "W_k", "W_v", "W_o"]


def test_random_widths_default_to_d_model_over_h(rng):
    weights = ColumnWeights.random(rng, d_model=12, h=4)
    assert (weights.d_k, weights.d_v, weights.h_kv) == (3, 3, 4)


def test_random_rows_are_transposed_random_columns():
    drawn = RowWeights.random(np.random.default_rng(1), **SIZES)
    for name, array in ColumnWeights.random(np.random.default_rng(1), **SIZES).T.arrays().items():
        assert np.array_equal(drawn.arrays()[name], array)


def test_random_weights_keep_the_variance_of_tokens():
    weights = ColumnWeights.random(np.random.default_rng(3), d_model=400, h=2, d_k=300, d_v=500)
    for name, terms in {"W_q": 400, "W_k": 400, "W_v": 400, "W_o": 1000, "b_q": 400, "b_o": 1000}.items():
        array = weights.arrays()[name]
        error = 5 * np.sqrt(2 / array.size)  # five standard deviations of a sample variance
        assert array.var() * terms == pytest.approx(1, rel=error)
        assert abs(array.mean()) * terms**0.5 < 5 / np.sqrt(array.size)


@pytest.mark.parametrize(
    ("selection", "h_kv"),
    [
        (slice(0, 3), 1),  # one whole group
        (slice(3, None), 1),
        (slice(0, 6, 3), 2),  # one head of each group
        ([1, 2, 4, 5], 2),  # two of each
        ([0, 1, 3], 3),  # two of one and one of the other: a copy for each
        ([3, 0], 2),  # in another order
        (np.array([True, False, False, False, False, True]), 2),
        (4, 1),
        ([-1], 1),
    ],
)
@pytest.mark.parametrize("cls", [ColumnWeights, RowWeights])
def test_kept_heads_write_their_part_of_the_sum(selection, h_kv, cls, weights, rng):
    kept = (weights if cls is ColumnWeights else weights.T).heads(selection)
    assert type(kept) is cls
    assert kept.h_kv == h_kv
    X = rng.normal(size=(D_MODEL, N))
    heads = column.multi_head(X, X, X, weights).heads
    chosen = np.arange(6)[selection].reshape(-1)
    expected = (weights.W_o[chosen] @ heads[chosen]).sum(axis=0) + weights.b_o[:, None]
    assert_close(column.multi_head(X, X, X, kept if cls is ColumnWeights else kept.T).output, expected)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize("selection", [[], slice(4, 4), np.zeros(6, dtype=bool), [[0, 1]]])
def test_at_least_one_head_is_kept(selection, weights):
    with pytest.raises(
        IndexError, match=re.escape(f"keep at least one of the 6 heads with a slice or a list, got {selection!r}")
    ):
        weights.heads(selection)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize("selection", [[6], 7, [-7], [0.5], [True, False]])
def test_heads_that_are_not_there_cannot_be_kept(selection, weights):
    with pytest.raises(IndexError):
        weights.heads(selection)


def test_weights_are_frozen(weights):
    with pytest.raises(AttributeError):
        weights.W_q = weights.W_k


def test_heads_must_divide_the_width_unless_their_size_is_given(rng):
    message = re.escape(
        "d_model (10) must be divisible by h (4); pass d_k and d_v to choose a head's widths freely"
    )
    for given in ({}, {"d_k": 3}, {"d_v": 3}):
        with pytest.raises(ValueError, match=message):
            ColumnWeights.random(rng, d_model=10, h=4, **given)
    assert ColumnWeights.random(rng, d_model=10, h=4, d_k=3, d_v=5).d_v == 5


@pytest.mark.parametrize(("h", "h_kv"), [(6, 4), (2, 4)])
def test_key_value_heads_must_divide_the_heads(h, h_kv, rng):
    with pytest.raises(ValueError, match=f"ColumnWeights: {h_kv} key-value heads must divide {h} query heads"):
        ColumnWeights.random(rng, d_model=12, h=h, h_kv=h_kv, d_k=2, d_v=2)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize("size", ["d_model", "h", "h_kv", "d_k", "d_v"])
@pytest.mark.parametrize("value", [2.0, True, "2"])
def test_sizes_are_whole_numbers(size, value, rng):
    with pytest.raises(TypeError, match=f"{size} must be a whole number, got {value!r}"):
        ColumnWeights.random(rng, **{"d_model": 12, "h": 4} | {size: value})


@pytest.mark.parametrize("size", ["d_model", "h", "h_kv", "d_k", "d_v"])
@pytest.mark.parametrize("value", [0, -2])
def test_sizes_are_at_least_one(size, value, rng):
    with pytest.raises(ValueError, match=f"{size} must be at least 1, got {value}"):
        ColumnWeights.random(rng, **SIZES | {size: value})


def test_there_is_at_least_one_head(weights):
    with pytest.raises(ValueError, match=r"W_q must have three axes, .* none of length 0, got shape \(0, 13, 11\)"):
        ColumnWeights(**weights.arrays() | {"W_q": np.ones((0, D_K, D_MODEL))})


WRONG = {
    "W_q": (np.ones((6, D_K)), "three axes, one matrix per head, and none of length 0, got shape (6, 13)"),
    "W_k": (np.ones((2, D_K + 1, D_MODEL)), "(h_kv, d_k, d_key) = (2, 13, 11)"),
    "W_v": (np.ones((3, D_V, D_MODEL)), "(h_kv, d_v, d_value) = (2, 17, 11)"),
    "W_o": (np.ones((5, D_MODEL, D_V)), "(h, d_model, d_v) = (6, 11, 17)"),
    "b_q": (np.ones((6, D_V)), "(h, d_k) = (6, 13)"),
    "b_k": (np.ones((6, D_K)), "(h_kv, d_k) = (2, 13)"),
    "b_v": (np.ones(D_V), "(h_kv, d_v) = (2, 17)"),
    "b_o": (np.ones((D_MODEL, 1)), "(d_model) = (11,)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_columns_that_do_not_fit_are_named(name, weights):
    array, expected = WRONG[name]
    with pytest.raises(
        ValueError, match=re.escape(f"ColumnWeights: {name} must {'have' if name == 'W_q' else 'be'} {expected}")
    ):
        ColumnWeights(**weights.arrays() | {name: array})


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("W_k", "(h_kv, d_key, d_k) = (2, 11, 13)"),
        ("W_o", "(h, d_v, d_model) = (6, 17, 11)"),
        ("b_v", "(h_kv, d_v) = (2, 17)"),
    ],
)
def test_rows_that_do_not_fit_are_named(name, expected, weights):
    array = WRONG[name][0]
    with pytest.raises(ValueError, match=re.escape(f"RowWeights: {name} must be {expected}")):
        RowWeights(**weights.T.arrays() | {name: array.mT if array.ndim == 3 else array})


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(
    ("replacement", "message"),
    [
        ({"W_v": [[[1.0]]]}, "ColumnWeights: W_v must be a plain NumPy array, got list"),
        ({"W_q": None}, "ColumnWeights: W_q must be a plain NumPy array, got NoneType"),
        ({"b_q": np.ones((6, D_K), dtype=int)}, "ColumnWeights: b_q must hold floating-point numbers, got int64"),
        ({"W_o": np.ones((6, D_MODEL, D_V), dtype=np.float32)}, "W_o is float32 but W_q is float64; convert one"),
    ],
)
def test_types_that_do_not_fit_are_named(replacement, message, weights):
    with pytest.raises(TypeError, match=message):
        ColumnWeights(**weights.arrays() | replacement)
