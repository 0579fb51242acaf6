"""Positions in both conventions: what they compute, what they leave alone, and what they refuse."""

import re
from itertools import product

import numpy as np
import pytest

from mha_tutorial import Causal, MultiHeadAttention, Prefix, RowWeights
from mha_tutorial.positions import Pairs, alibi_slopes, column, frequencies, pair_order, relative_buckets, row
from mha_tutorial.reference import column as column_reference
from mha_tutorial.reference import row as row_reference
from tests.helpers import BATCH, D_MODEL, D_V, M, N, assert_close, rotated

pytestmark = pytest.mark.usefixtures("own_messages")

H, H_KV, D_K = 6, 2, 10  # a width of pairs is even
ROOMS = {"column": column, "row": row}
in_both_conventions = pytest.mark.parametrize("room", ROOMS.values(), ids=ROOMS)
in_both_orders = pytest.mark.parametrize("order", Pairs)


def lay(room, array):
    """Tokens in rows, laid out for a convention; or its result read back."""
    return array.mT if room is column else array


def pair(i, order, d=D_K):
    """The features of pair `i`."""
    return (i, d // 2 + i) if order is Pairs.HALVES else (2 * i, 2 * i + 1)


def turning(position, base, order, d=D_K):
    """The matrix that turns a column vector, entry by entry."""
    R = np.zeros((d, d))
    for i in range(d // 2):
        a, b = pair(i, order, d)
        angle = position * base ** (-2 * i / d)
        R[a, a] = R[b, b] = np.cos(angle)
        R[b, a] = np.sin(angle)
        R[a, b] = -np.sin(angle)
    return R


# --- sinusoidal ---------------------------------------------------------------------------------------------------


@pytest.mark.equation("eq-sinusoidal", "eq-sinusoidal-row")
@in_both_orders
@in_both_conventions
def test_sines_and_cosines_by_their_formula(room, order):
    positions = np.array([[0, 1, 2, 700, 5], [3, 3, -1, 2, 9]])
    expected = np.empty((*positions.shape, D_K))
    for (b, i), p in product(np.ndindex(positions.shape), range(D_K // 2)):
        angle = positions[b, i] / 50.0 ** (2 * p / D_K)
        expected[b, i, pair(p, order)] = np.sin(angle), np.cos(angle)
    assert_close(lay(room, room.sinusoidal(positions, D_K, base=50.0, order=order)), expected)


def test_sinusoidal_vectors_are_those_of_the_paper():
    table = row.sinusoidal(np.arange(N), 512)
    assert table.shape == (N, 512)
    assert_close(table[3, 100:102], np.array([np.sin(3 / 10000 ** (100 / 512)), np.cos(3 / 10000 ** (100 / 512))]))


def test_a_shift_turns_sinusoidal_vectors():
    """The vector of the position s further on is the same turn of every vector: that is what suggested RoPE."""
    R = turning(-3, 10000.0, Pairs.INTERLEAVED)  # sine before cosine: the other way round
    here, there = (row.sinusoidal(np.arange(N) + shift, D_K) for shift in (0, 3))
    assert_close(here @ R.T, there)


# --- rotary -------------------------------------------------------------------------------------------------------


@pytest.mark.equation("eq-rope", "eq-rope-row")
@in_both_orders
@in_both_conventions
@pytest.mark.parametrize("base", [10000.0, 7])
def test_rotating_is_a_product_with_a_rotation(room, order, base, rng):
    positions = np.array([0, 4, 4, -2, 31])
    x = rng.normal(size=(BATCH, H, N, D_K))
    expected = np.stack([x[..., i, :] @ turning(positions[i], base, order).T for i in range(N)], axis=-2)
    assert_close(lay(room, room.rotate(lay(room, x), positions, base, order)), expected)
    assert_close(lay(room, room.rotate(lay(room, x), positions[None, None], base, order)), expected)


@pytest.mark.equation("eq-rope-relative", "eq-rope-relative-row")
@in_both_orders
@in_both_conventions
@pytest.mark.parametrize("shift", [1, -3, 5000])
def test_rotary_scores_depend_on_the_distance_only(room, order, shift, rng):
    q, k = rng.normal(size=(N, D_K)), rng.normal(size=(M, D_K))
    of_queries, of_keys = np.array([0, 9, 3, 3, 8]), np.array([4, 0, 1, 2, 9, 9, 6])

    def scores(shift):
        turned = room.rotate(lay(room, q), of_queries + shift, order=order)
        against = room.rotate(lay(room, k), of_keys + shift, order=order)
        return lay(room, turned) @ lay(room, against).T

    by_distance = np.empty((N, M))
    for i, j in np.ndindex(N, M):
        by_distance[i, j] = k[j] @ turning(of_queries[i] - of_keys[j], 10000.0, order) @ q[i]
    assert_close(scores(0), by_distance)
    assert_close(scores(shift), by_distance, rtol=1e-10)  # an angle of 5000 is known to 12 digits only


@in_both_orders
def test_rotating_changes_no_length_and_begins_with_nothing(order, rng):
    x = rng.normal(size=(N, D_K))
    turned = row.rotate(x, np.arange(N), order=order)
    assert_close(np.linalg.norm(turned, axis=-1), np.linalg.norm(x, axis=-1))
    assert np.array_equal(turned[0], x[0])
    assert_close(row.rotate(turned, -np.arange(N), order=order), x)
    assert_close(turned, rotated(x, pairs=order is Pairs.INTERLEAVED))


def test_reordered_features_turn_in_the_other_order(rng):
    """What reordering a matrix's columns does to what it makes, as a GGUF file wants it."""
    x = rng.normal(size=(N, D_K))
    there = pair_order(D_K, of=Pairs.HALVES, to=Pairs.INTERLEAVED)
    back = pair_order(D_K, of=Pairs.INTERLEAVED, to=Pairs.HALVES)
    assert np.array_equal(there[back], np.arange(D_K))
    assert np.array_equal(there, [0, 5, 1, 6, 2, 7, 3, 8, 4, 9])
    turned = row.rotate(x[:, there], np.arange(N), order=Pairs.INTERLEAVED)
    assert_close(turned[:, back], row.rotate(x, np.arange(N)))
    assert np.array_equal(pair_order(D_K, Pairs.HALVES, Pairs.HALVES), np.arange(D_K))


@pytest.fixture
def weights(rng):
    return RowWeights.random(rng, D_MODEL, H, h_kv=H_KV, d_k=D_K, d_v=D_V)


def test_one_permutation_of_query_and_key_columns_changes_the_order_of_pairs(weights, rng):
    x = rng.normal(size=(BATCH, N, D_MODEL))
    there = pair_order(D_K, of=Pairs.HALVES, to=Pairs.INTERLEAVED)
    moved = {name: getattr(weights, name)[..., there] for name in ("W_q", "W_k", "b_q", "b_k")}
    stored = RowWeights(**{**weights.arrays(), **moved})
    expected = MultiHeadAttention(weights, prepare=row.Rotary()).trace(x)
    trace = MultiHeadAttention(stored, prepare=row.Rotary(order=Pairs.INTERLEAVED)).trace(x)
    assert_close(trace.scores, expected.scores)
    assert_close(trace.output, expected.output)
    wrong = MultiHeadAttention(stored, prepare=row.Rotary()).trace(x)
    assert abs(wrong.scores - expected.scores).max() > 0.1 * abs(expected.scores).max()


@in_both_orders
@pytest.mark.parametrize(
    "positions",
    [None, np.array([3, 1, 4, 1, 5]), np.arange(BATCH * N).reshape(BATCH, N), (np.arange(N) + 4, np.arange(N))],
    ids=["left out", "of all", "of each sequence", "a pair"],
)
def test_layers_and_references_turn_queries_and_keys(positions, order, weights, rng):
    x = rng.normal(size=(BATCH, N, D_MODEL))
    plain = MultiHeadAttention(weights).trace(x)
    of_queries, of_keys = positions if isinstance(positions, tuple) else (positions, positions)

    def turned(projected, places):
        places = np.broadcast_to(np.arange(N) if places is None else places, (BATCH, N))
        turns = [[turning(place, 50.0, order) for place in of_text] for of_text in places]
        return np.einsum("bhnd,bned->bhne", projected, np.array(turns))

    options = {"prepare": row.Rotary(50.0, order)}
    layer = MultiHeadAttention(weights, **options).trace(x, positions=positions)
    by_rows = row_reference.multi_head(x, x, x, weights, positions=positions, **options)
    X, prepare = x.mT, column.Rotary(50.0, order)
    by_columns = column_reference.multi_head(X, X, X, weights.T, positions=positions, prepare=prepare).T
    for trace in (layer, by_rows, by_columns):
        assert_close(trace.queries, turned(plain.queries, of_queries))
        assert_close(trace.keys, turned(plain.keys, of_keys))
        assert_close(trace.values, plain.values)
        assert_close(trace.output, layer.output)


def test_a_layer_with_rotary_positions_knows_distances_but_no_beginning(weights, rng):
    """Left padding: the same text further to the right, with its places counted from its first token or not."""
    layer, text = MultiHeadAttention(weights, prepare=row.Rotary()), rng.normal(size=(N, D_MODEL))
    padded = np.concatenate([np.full((2, D_MODEL), 9.0), text])
    visible = Causal() & ~Prefix(2)
    expected = layer(text, visible=Causal())
    for places in (np.arange(N + 2), np.array([0, 0, *range(N)])):
        assert_close(layer(padded, visible=visible, positions=places)[2:], expected)


def test_numbers_keep_their_type(rng):
    for dtype in (np.float16, np.float32):
        x = rng.normal(size=(N, D_K)).astype(dtype)
        for room in ROOMS.values():
            turned = lay(room, room.rotate(lay(room, x), np.arange(N) + 3000))
            exact = row.rotate(x.astype(float), np.arange(N) + 3000)
            assert turned.dtype == dtype
            np.testing.assert_array_equal(turned, exact.astype(dtype))  # rounded once, at the end


# --- biases -------------------------------------------------------------------------------------------------------


@pytest.mark.equation("eq-alibi", "eq-alibi-row")
@in_both_conventions
def test_alibi_takes_a_slope_for_every_step(room):
    positions, of_keys = np.array([[4, 0, 2, 2, 9]] * BATCH), np.array([[0, 1, 2, 3, 4, 5, 60]] * BATCH)
    slopes = alibi_slopes(H)
    expected = np.empty((BATCH, H, N, M))
    for b, h, i, j in np.ndindex(expected.shape):
        expected[b, h, i, j] = -slopes[h] * abs(positions[b, i] - of_keys[b, j])
    assert_close(lay(room, room.alibi(slopes, positions, of_keys)), expected)
    assert_close(room.alibi(slopes, positions[0]), room.alibi(slopes, positions[0], positions[0]))


def test_alibi_in_a_causal_layer_may_count_from_anywhere(weights, rng):
    """Softmax forgets what is added to all scores of a query: the key's place alone does as well."""
    x, slopes = rng.normal(size=(N, D_MODEL)), alibi_slopes(H)
    layer = MultiHeadAttention(weights)
    of_key_alone = np.broadcast_to(slopes[:, None, None] * np.arange(N), (H, N, N))
    trace = layer.trace(x, visible=Causal(), bias=row.alibi(slopes, np.arange(N)))
    assert_close(trace.attention, layer.trace(x, visible=Causal(), bias=of_key_alone).attention)
    X = x.T
    score = column_reference.biased(column_reference.scaled_dot_product, column.alibi(slopes, np.arange(N)))
    assert_close(column_reference.multi_head(X, X, X, weights.T, score, Causal()).T.attention, trace.attention)


@pytest.mark.parametrize(
    ("h", "exponents"),
    {1: [8], 2: [4, 8], 3: [4, 8, 2], 8: range(1, 9), 6: [2, 4, 6, 8, 1, 3], 9: [*range(1, 9), 0.5]}.items(),
)
def test_slopes(h, exponents):
    assert_close(alibi_slopes(h), 2.0 ** -np.array(exponents, float))


@in_both_conventions
def test_a_relative_bias_is_looked_up(room, rng):
    table, positions, of_keys = rng.normal(size=(H, 32)), np.array([0, 40, 300, 7, 7]), np.arange(M) * 30
    expected = np.empty((H, N, M))
    for h, i, j in np.ndindex(expected.shape):
        expected[h, i, j] = table[h, relative_buckets(of_keys[j] - positions[i])]
    assert np.array_equal(lay(room, room.relative_bias(table, positions, of_keys)), expected)

    def clipped(distance):
        return np.clip(distance, -2, 2) + 2

    short = room.relative_bias(table[:, :5], np.arange(N), bucket=clipped)
    assert np.array_equal(lay(room, short)[:, 0], table[:, [2, 3, 4, 4, 4]])
    assert np.array_equal(lay(room, short)[:, 4], table[:, [0, 0, 0, 1, 2]])


def test_buckets():
    """Of 8 for each side four are single distances; 4 to 31 share three, and all beyond the last."""
    distance = np.arange(0, -40, -1)
    found = relative_buckets(distance, buckets=16, farthest=32)
    edges = [0, 1, 2, 3, 4, 7, 12, 20]  # 4 times the quarters of a power of 8, rounded up
    assert np.flatnonzero(np.diff(found)).tolist() == [edge - 1 for edge in edges[1:]]
    assert found[-1] == 7
    assert np.array_equal(relative_buckets(-distance[1:], 16, 32), found[1:] + 8)
    one_side = relative_buckets(distance, buckets=8, farthest=32, both_sides=False)
    assert np.array_equal(one_side, found)
    assert not relative_buckets(-distance, buckets=8, farthest=32, both_sides=False).any()


# --- what is refused ----------------------------------------------------------------------------------------------


def refused(error, sentence):
    return pytest.raises(error, match="^" + re.escape(sentence))


def test_features_come_in_pairs():
    for call in (
        lambda: frequencies(5),
        lambda: row.sinusoidal(np.arange(N), 5),
        lambda: row.rotate(np.ones((N, 5)), np.arange(N)),
        lambda: column.rotate(np.ones((5, N)), np.arange(N)),
        lambda: pair_order(5, Pairs.HALVES, Pairs.HALVES),
    ):
        with refused(ValueError, "features are paired, so their number must be even, got 5"):
            call()
    with refused(TypeError, "d must be a whole number, got 4.0"):
        frequencies(4.0)


@in_both_conventions
def test_an_order_is_a_member_of_pairs_and_a_base_positive(room):
    x = np.ones((4, 4))
    for call in (
        lambda: room.sinusoidal(np.arange(4), 4, order="halves"),
        lambda: room.rotate(x, np.arange(4), order="halves"),
        lambda: room.Rotary(order="halves"),
        lambda: pair_order(4, "halves", Pairs.HALVES),
        lambda: pair_order(4, Pairs.HALVES, "halves"),
    ):
        with refused(TypeError, "order must be Pairs.HALVES or Pairs.INTERLEAVED, got 'halves'"):
            call()
    for call in (lambda: room.Rotary(base=0), lambda: room.rotate(x, np.arange(4), base=-1.0)):
        with refused(ValueError, "base must be a positive number, got "):
            call()


@in_both_conventions
def test_positions_are_integers(room):
    name = "row" if room is row else "column"
    x, slopes, say = lay(room, np.ones((N, 4))), np.ones(2), f"{name} convention: positions must "
    for call in (
        lambda places: room.sinusoidal(places, 4),
        lambda places: room.rotate(x, places),
        lambda places: room.alibi(slopes, places),
        lambda places: room.relative_bias(np.ones((2, 32)), places),
    ):
        with refused(TypeError, say + "be a NumPy array of integers, got float64"):
            call(np.arange(N) * 1.0)
        with refused(TypeError, say + "be a NumPy array of integers, got list"):
            call([0] * N)
    with refused(ValueError, say + "have an axis for the tokens, got the number 3"):
        room.sinusoidal(np.array(3), 4)
    with refused(TypeError, f"{name} convention: of_keys must be a NumPy array of integers, got float64"):
        room.alibi(slopes, np.arange(N), np.ones(M))
    with refused(ValueError, say + f"be (n,) or (..., n) with n={N}"):
        room.rotate(x, np.arange(M))
    with refused(TypeError, f"{name} convention: x must hold floating-point numbers, got int64"):
        room.rotate(np.ones((4, 4), int), np.arange(4))


def test_sizes_of_slopes_and_buckets():
    with refused(ValueError, "h must be at least 1, got 0"):
        alibi_slopes(0)
    with refused(ValueError, "buckets must be at least 4, got 2"):
        relative_buckets(np.arange(N), buckets=2)
    with refused(ValueError, "farthest must be more than 8, the distances with a bucket each, got 8"):
        relative_buckets(np.arange(N), farthest=8)
