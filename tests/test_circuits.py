"""Composition absorbed, the two products through which a head enters, and the coordinates that do not matter."""

import numpy as np
import pytest

from mha_tutorial import Causal, ColumnWeights
from mha_tutorial.analysis import circuits
from mha_tutorial.reference import column, row
from tests.helpers import D_K, D_MODEL, D_V, GROUPS, N, assert_close, in_both_conventions


def draw(rng, h=3, h_kv=3, bias=True):
    return ColumnWeights.random(rng, 19, h, h_kv, d_k=5, d_v=7, bias=bias)


def invertible(rng, heads, size):
    """Random matrices that stretch by between 1/2 and 2, so that their inverses lose no digits."""
    U, _, V = np.linalg.svd(rng.normal(size=(heads, size, size)))
    return U * rng.uniform(0.5, 2, size=(heads, 1, size)) @ V


@pytest.mark.equation("eq-absorb", "eq-absorb-row")
def test_maps_before_the_projections_are_absorbed(rng):
    weights = ColumnWeights.random(rng, D_MODEL, h=3, d_k=D_K, d_v=D_V)
    X, maps = rng.normal(size=(17, N)), [rng.normal(size=(D_MODEL, 17)) for _ in range(3)]
    outside = column.multi_head(*(first @ X for first in maps), weights)
    absorbed = circuits.absorb(weights, *maps)
    assert_close(column.multi_head(X, X, X, absorbed).output, outside.output)
    by_rows = row.multi_head(*(X.T @ first.T for first in maps), weights.T)
    absorbed_by_rows = circuits.absorb(weights.T, *(first.T for first in maps))
    assert_close(row.multi_head(X.T, X.T, X.T, absorbed_by_rows).output, by_rows.output)


@pytest.mark.equation("eq-residual-attention", "eq-residual-attention-row", "eq-papers-attention")
@in_both_conventions
def test_residual_attention_is_the_formula_of_the_papers(convention, rng):
    """X + sum of (W_v X) softmax((W_k X)^T (W_q X)), where W_v has absorbed W_o."""
    weights, X = draw(rng, bias=False), rng.normal(size=(19, N)) / 5
    expected = X.copy()
    for W_q, W_k, W_ov in zip(weights.W_q, weights.W_k, circuits.ov(weights), strict=True):
        scores = (W_k @ X).T @ (W_q @ X)
        exponentials = np.exp(scores)
        expected += W_ov @ X @ (exponentials / exponentials.sum(axis=0))
    trace = convention.ref.residual_attention(convention.lay(X), convention.lay_weights(weights))
    assert_close(convention.lay(trace.output), expected)


@pytest.mark.equation("eq-ov", "eq-ov-row")
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
def test_what_a_head_writes_goes_through_one_matrix(h, h_kv, rng):
    weights, X = draw(rng, h, h_kv, bias=False), rng.normal(size=(19, N))
    trace = column.multi_head(X, X, X, weights)
    assert_close(circuits.ov(weights) @ X @ trace.attention, weights.W_o @ trace.heads)
    assert_close(circuits.ov(weights.T).mT, circuits.ov(weights))
    by_rows = row.multi_head(X.T, X.T, X.T, weights.T)
    assert_close(by_rows.attention @ X.T @ circuits.ov(weights.T), by_rows.heads @ weights.T.W_o)


@pytest.mark.equation("eq-qk", "eq-qk-row")
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
def test_where_a_head_looks_goes_through_one_matrix(h, h_kv, rng):
    weights, X = draw(rng, h, h_kv, bias=False), rng.normal(size=(19, N))
    scores = column.multi_head(X, X, X, weights, score=column.dot_product).scores
    assert_close(X.T @ circuits.qk(weights) @ X, scores)
    assert_close(X.T @ circuits.qk(weights.T) @ X, scores.mT)


@pytest.mark.equation("eq-ov", "eq-qk")
@pytest.mark.parametrize("seed", range(10))
def test_ranks_are_at_most_those_of_the_head(seed):
    weights = draw(np.random.default_rng(seed))
    assert (np.linalg.matrix_rank(circuits.ov(weights)) == 7).all()  # d_v, of 19
    assert (np.linalg.matrix_rank(circuits.qk(weights)) == 5).all()  # d_k


@pytest.mark.equation("eq-gauge", "eq-gauge-row")
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(("h", "h_kv"), GROUPS.values(), ids=GROUPS)
@pytest.mark.parametrize("bias", [True, False])
def test_coordinates_inside_a_head_do_not_matter(seed, h, h_kv, bias):
    rng = np.random.default_rng(seed)
    weights, X = draw(rng, h, h_kv, bias), rng.normal(size=(19, N))
    inner, values = invertible(rng, h_kv, 5), invertible(rng, h_kv, 7)
    changed = circuits.change_basis(weights, inner, values)
    before, after = (column.multi_head(X, X, X, w, visible=Causal()) for w in (weights, changed))
    assert not np.allclose(after.queries, before.queries)
    for step in ("attention", "output"):
        assert_close(getattr(after, step), getattr(before, step))
    by_rows = circuits.change_basis(weights.T, inner, values)
    by_rows = row.multi_head(X.T, X.T, X.T, by_rows, visible=Causal())
    assert_close(by_rows.output, before.output.T)
    assert_close(circuits.ov(changed), circuits.ov(weights))
    assert_close(circuits.qk(changed), circuits.qk(weights))
    assert changed.parameter_count == weights.parameter_count


def test_a_change_of_basis_needs_an_inverse(rng):
    weights = draw(rng)
    with pytest.raises(np.linalg.LinAlgError):
        circuits.change_basis(weights, np.zeros((3, 5, 5)), np.stack([np.eye(7)] * 3))


@pytest.mark.usefixtures("own_messages")
@in_both_conventions
@pytest.mark.parametrize("which", [0, 1, 2])
def test_maps_that_the_weights_cannot_read_are_refused(convention, which, rng):
    weights = convention.lay_weights(draw(rng))
    name = ("first_q", "first_k", "first_v")[which]
    maps = [convention.lay(np.ones((19, 23))) for _ in range(3)]
    for wrong, error, message in (
        (maps[which].T, ValueError, rf"{name} must be \(.*19.*\), so that the weights can read what it makes, got"),
        (maps[which][None], ValueError, f"{name} must be"),
        (maps[which].astype(np.float32), TypeError, f"weights is float64 but {name} is float32"),
        (maps[which].tolist(), TypeError, f"{name} must be a plain NumPy array, got list"),
    ):
        with pytest.raises(error, match=message):
            circuits.absorb(weights, *[wrong if k == which else first for k, first in enumerate(maps)])


@pytest.mark.usefixtures("own_messages")
@in_both_conventions
def test_a_change_of_basis_that_does_not_fit_is_refused(convention, rng):
    weights = convention.lay_weights(draw(rng, h=6, h_kv=2))
    inner, values = invertible(rng, 2, 5), invertible(rng, 2, 7)
    with pytest.raises(ValueError, match=r"inner must be \(2, 5, 5\), a square matrix for each key-value head"):
        circuits.change_basis(weights, invertible(rng, 6, 5), values)
    with pytest.raises(ValueError, match=r"values must be \(2, 7, 7\), .* got \(7, 7\)"):
        circuits.change_basis(weights, inner, values[0])
    with pytest.raises(TypeError, match="weights is float64 but values is float32"):
        circuits.change_basis(weights, inner, values.astype(np.float32))


def test_sixteen_bits_can_be_rewritten(rng):
    arrays = draw(rng).arrays()
    half = ColumnWeights(**{name: array.astype(np.float16) for name, array in arrays.items()})
    inner, values = (np.stack([factor * np.eye(size, dtype=np.float16)] * 3) for factor, size in ((2, 5), (0.5, 7)))
    changed = circuits.change_basis(half, inner, values)
    assert changed.dtype == np.float16
    assert np.array_equal(changed.W_k, half.W_k / 2)
    assert np.array_equal(changed.W_o, half.W_o * 2)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize("function", [circuits.ov, circuits.qk])
def test_only_weights_have_circuits(function):
    with pytest.raises(TypeError, match="weights must be ColumnWeights or RowWeights, got list"):
        function([1.0])
