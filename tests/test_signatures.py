"""What `prepare`, `positions`, `scale`, `bias` and `extra_keys` do in the NumPy layer and in both references."""

import re

import numpy as np
import pytest

from mha_tutorial import Causal, ColumnWeights, MultiHeadAttention, Padding, RowWeights
from mha_tutorial.reference import column, row
from tests.helpers import BATCH, D_K, D_MODEL, D_V, M, N, assert_close, assert_traces_close, in_both_conventions

pytestmark = pytest.mark.usefixtures("own_messages")

S, H, H_KV = 3, 6, 2


@pytest.fixture
def weights(rng):
    return RowWeights.random(rng, D_MODEL, H, h_kv=H_KV, d_k=D_K, d_v=D_V)


@pytest.fixture
def tokens(rng):
    return rng.normal(size=(BATCH, N, D_MODEL)), rng.normal(size=(BATCH, M, D_MODEL))


def turned(x, places):
    """Something that depends on the place of each token and on each of its numbers."""
    return x * np.cos(places[..., None, :, None] + np.arange(x.shape[-1]))


def turn(queries, keys, positions):
    pair = positions if isinstance(positions, tuple) else (positions, positions)
    return turned(queries, pair[0]), turned(keys, pair[1])


def turn_columns(queries, keys, positions):
    return tuple(x.mT for x in turn(queries.mT, keys.mT, positions))


def by_hand(weights, x, memory, places, visible=True, bias=0.0, scale=D_K**-0.5, extra=None):
    """The output, head by head, in plain formulas."""
    output = np.zeros((*x.shape[:-1], weights.d_model)) + weights.b_o
    for head in range(weights.h):
        shared = head // weights.group_size
        q = (x @ weights.W_q[head] + weights.b_q[head])[:, None]
        k = (memory @ weights.W_k[shared] + weights.b_k[shared])[:, None]
        v = memory @ weights.W_v[shared] + weights.b_v[shared]
        q, k = turned(q, places[0])[:, 0], turned(k, places[1])[:, 0]
        scores = np.where(visible, q @ k.mT * scale + bias, -np.inf)
        if extra is not None:
            scores = np.concatenate([scores, q @ extra[0][shared].T * scale], axis=-1)
            v = np.concatenate([v, np.broadcast_to(extra[1][shared], (len(v), S, weights.d_v))], axis=-2)
        exponentials = np.exp(scores)
        output += exponentials / exponentials.sum(axis=-1, keepdims=True) @ v @ weights.W_o[head]
    return output


PLACES = {
    "left out": (None, np.arange(N), np.arange(N)),
    "of all": (np.arange(N)[::-1] * 2, np.arange(N)[::-1] * 2, np.arange(N)[::-1] * 2),
    "of each sequence": (np.arange(BATCH * N).reshape(BATCH, N),) * 3,
    "a pair": ((np.arange(N) + 4, np.arange(N)), np.arange(N) + 4, np.arange(N)),
}


@pytest.mark.parametrize("places", PLACES.values(), ids=PLACES)
def test_prepare_reads_positions_in_self_attention(places, weights, tokens):
    given, *meant = places
    expected = by_hand(weights, tokens[0], tokens[0], meant)
    layer = MultiHeadAttention(weights, prepare=turn)
    assert_close(layer(tokens[0], positions=given), expected)
    assert_close(row.multi_head(*[tokens[0]] * 3, weights, prepare=turn, positions=given).output, expected)
    X = tokens[0].mT
    trace = column.multi_head(X, X, X, weights.T, prepare=turn_columns, positions=given)
    assert_close(trace.output.mT, expected)


@pytest.mark.parametrize("given", [None, (np.arange(N) * 3, np.arange(BATCH * M).reshape(BATCH, M))])
def test_prepare_reads_a_pair_in_cross_attention(given, weights, tokens):
    expected = by_hand(weights, *tokens, given or (np.arange(N), np.arange(M)))
    layer = MultiHeadAttention(weights, prepare=turn)
    assert_close(layer(*tokens, positions=given), expected)
    x, memory = tokens
    assert_close(row.multi_head(x, memory, memory, weights, prepare=turn, positions=given).output, expected)
    trace = column.multi_head(x.mT, memory.mT, memory.mT, weights.T, prepare=turn_columns, positions=given)
    assert_close(trace.output.mT, expected)


def test_prepare_gets_one_array_in_self_attention_and_a_pair_in_cross_attention(weights, tokens):
    seen = []

    def look(queries, keys, positions):
        seen.append((queries.shape, keys.shape, positions))
        return queries, keys

    layer = MultiHeadAttention(weights, prepare=look)
    layer(tokens[0]), layer(*tokens)
    assert [shapes[:2] for shapes in seen] == [
        ((BATCH, H, N, D_K), (BATCH, H_KV, N, D_K)),
        ((BATCH, H, N, D_K), (BATCH, H_KV, M, D_K)),
    ]
    assert np.array_equal(seen[0][2], np.arange(N))
    assert [places.tolist() for places in seen[1][2]] == [list(range(N)), list(range(M))]


@in_both_conventions
def test_the_trace_holds_what_prepare_returned(convention, weights, tokens):
    laid = weights.T if convention.ref is column else weights
    X = tokens[0].mT if convention.ref is column else tokens[0]
    before = convention.ref.multi_head(X, X, X, laid)
    after = convention.ref.multi_head(X, X, X, laid, prepare=lambda q, k, _: (2 * q, 3 * k))
    assert np.array_equal(after.queries, 2 * before.queries)
    assert np.array_equal(after.keys, 3 * before.keys)
    assert np.array_equal(after.values, before.values)
    assert_close(after.scores, 6 * before.scores)


def test_prepare_may_meet_anything_at_a_hidden_token(weights, tokens):
    x, memory = tokens

    def of_one_size(queries, keys, positions):
        return tuple(x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True)) for x in (queries, keys))

    layer, visible = MultiHeadAttention(weights, prepare=of_one_size), Padding([M - 1, M - 1])
    before = layer(x, memory, visible=visible)
    memory[:, -1] = 1e200
    assert np.array_equal(layer(x, memory, visible=visible), before)


@pytest.mark.parametrize("positions", [None, np.arange(N), np.zeros((BATCH, N), np.int8), np.zeros((1, N), int)])
def test_positions_change_nothing_without_prepare(positions, weights, tokens):
    layer = MultiHeadAttention(weights)
    assert np.array_equal(layer(tokens[0], positions=positions), layer(tokens[0]))


@pytest.mark.parametrize("scale", [0, -0.5, 2.0, np.float32(0.25)])
def test_any_finite_scale(scale, weights, tokens):
    places = np.zeros(N, int), np.zeros(M, int)
    layer = MultiHeadAttention(weights, scale=scale, prepare=turn)
    expected = by_hand(weights, *tokens, places, scale=float(scale))
    assert_close(layer(*tokens, positions=places), expected)


@pytest.mark.parametrize("scale", [np.nan, np.inf, -np.inf, "1", [1.0], 1j, np.ones(2)])
def test_a_scale_of_a_layer_is_a_finite_number(scale, weights):
    for make in (lambda: MultiHeadAttention(weights, scale=scale), lambda: row.scaled_by(scale)):
        with pytest.raises(ValueError, match=r"^scale must be a finite number, got "):
            make()


def test_a_scale_belongs_to_the_inner_product(weights):
    with pytest.raises(ValueError, match=r"^scale is the factor of the inner product; a score of your own has its"):
        MultiHeadAttention(weights, row.dot_product, scale=1.0)


@pytest.mark.parametrize("shape", [(N, M), (1, M), (BATCH, 1, N, M), (BATCH, 1, N, 1), (H, N, M)])
def test_a_bias_is_added_to_the_scores(shape, weights, tokens, rng):
    bias = rng.normal(size=shape)
    layer = MultiHeadAttention(weights, prepare=turn)
    places = np.arange(N), np.arange(M)
    if shape == (H, N, M):
        score = row.biased(row.scaled_dot_product, bias)
        assert_traces_close(
            MultiHeadAttention(weights).trace(*tokens, bias=bias), MultiHeadAttention(weights, score).trace(*tokens)
        )
    else:
        bias_of_a_head = bias[:, 0] if bias.ndim == 4 else bias
        assert_close(layer(*tokens, bias=bias), by_hand(weights, *tokens, places, bias=bias_of_a_head))


def test_minus_infinity_in_a_bias_hides(weights, tokens):
    visible, layer = np.tri(N, M, 2, dtype=bool), MultiHeadAttention(weights)
    hiding = np.where(visible, 0.0, -np.inf)
    assert_traces_close(layer.trace(*tokens, bias=hiding), layer.trace(*tokens, visible=visible))


def test_a_bias_that_looks_like_a_mask_is_doubted(weights, tokens):
    with pytest.warns(UserWarning, match="a bias of 0 and 1 is added to the scores and hides nothing"):
        MultiHeadAttention(weights)(*tokens, bias=np.tri(N, M))


@pytest.mark.parametrize("mask", [None, np.tri(N, M, 2, dtype=bool), np.ones((N, 1), bool), Causal("top-left")])
@pytest.mark.parametrize("biased", [False, True])
def test_every_query_sees_the_extra_keys(mask, biased, weights, tokens, rng):
    extra = rng.normal(size=(H_KV, S, D_K)), rng.normal(size=(H_KV, S, D_V))
    bias = rng.normal(size=(N, 1)) if biased else None
    layer = MultiHeadAttention(weights, prepare=turn, extra_keys=extra)
    visible = mask.rows(N, M) if isinstance(mask, Causal) else np.ones((N, M), bool) if mask is None else mask
    expected = by_hand(
        weights, *tokens, (np.arange(N), np.arange(M)), visible, 0.0 if bias is None else bias, extra=extra
    )
    trace = layer.trace(*tokens, visible=mask, bias=bias)
    assert_close(trace.output, expected)
    assert np.array_equal(trace.keys[..., M:, :], np.broadcast_to(extra[0], (BATCH, H_KV, S, D_K)))
    assert np.array_equal(trace.values[..., M:, :], np.broadcast_to(extra[1], (BATCH, H_KV, S, D_V)))
    assert trace.scores.shape == trace.attention.shape == (BATCH, H, N, M + S)


def test_one_sequence_sees_the_extra_keys_as_a_batch_does(weights, tokens, rng):
    layer = MultiHeadAttention(
        weights, extra_keys=(rng.normal(size=(H_KV, S, D_K)), rng.normal(size=(H_KV, S, D_V)))
    )
    options = {"visible": np.tri(N, M, 2, dtype=bool), "bias": rng.normal(size=(N, M))}
    of_first = [step[0] for step in layer.trace(*tokens, **options)]
    for alone, together in zip(layer.trace(*(x[0] for x in tokens), **options), of_first, strict=True):
        assert_close(alone, together)


def test_a_query_that_sees_no_token_averages_the_extra_values(weights, tokens, rng):
    extra = np.zeros((H_KV, S, D_K)), rng.normal(size=(H_KV, S, D_V))
    trace = MultiHeadAttention(weights, extra_keys=extra).trace(*tokens, visible=Padding([0, 0]))
    mean = np.repeat(extra[1].mean(axis=1), H // H_KV, axis=0)
    assert_close(trace.heads, np.broadcast_to(mean[:, None], (BATCH, H, N, D_V)))


def refused(error, sentence):
    return pytest.raises(error, match="^" + re.escape(sentence))


def test_positions_must_fit(weights, tokens):
    x, memory = tokens
    layer, say = MultiHeadAttention(weights), "row convention: positions "
    with refused(TypeError, say + "must be a NumPy array of integers, got float64"):
        layer(x, positions=np.arange(N) * 1.0)
    with refused(TypeError, say + "must be a NumPy array of integers, got bool"):
        layer(x, positions=np.ones(N, bool))
    with refused(TypeError, say + "must be a NumPy array of integers, got list"):
        layer(x, positions=[0] * N)
    one = f"must be (n,) or (..., n) with n={N}, one for each of the tokens {(BATCH, N)}, got shape "
    for wrong in ((M,), (1,), (), (3, N), (BATCH, 1, N)):
        with refused(ValueError, f"{say}{one}{wrong}"):
            layer(x, positions=np.zeros(wrong, int))
    with refused(
        ValueError, say + "must be a pair where the keys are not the queries, (of the queries, of the keys)"
    ):
        layer(x, memory, positions=np.arange(N))
    with pytest.raises(ValueError, match=r"got a tuple of 3$"):
        layer(x, memory, positions=(np.arange(N),) * 3)
    with refused(ValueError, f"{say}of the keys must be (m,) or (..., m) with m={M}"):
        layer(x, memory, positions=(np.arange(N), np.arange(N)))
    with refused(TypeError, say + "of the queries must be a NumPy array of integers, got float64"):
        layer(x, memory, positions=(np.ones(N), np.arange(M)))
    with refused(TypeError, "column convention: positions must be a NumPy array of integers"):
        column.multi_head(*[x.mT] * 3, weights.T, positions=np.ones(N))


def test_what_prepare_returns_must_fit(weights, tokens):
    def layer(prepare):
        return MultiHeadAttention(weights, prepare=prepare)(*tokens)

    say = "row convention: prepare must return "
    with refused(TypeError, say + "a pair, queries and keys, got ndarray"):
        layer(lambda q, k, p: q)
    with refused(TypeError, say + "a pair, queries and keys, got a tuple of 3"):
        layer(lambda q, k, p: (q, k, p))
    with refused(
        TypeError, "row convention: the keys that prepare returned must be a plain NumPy array, got NoneType"
    ):
        layer(lambda q, k, p: (q, None))
    with refused(TypeError, "row convention: the queries that prepare returned must hold floating-point numbers"):
        layer(lambda q, k, p: (q.astype(int), k))
    shape = f"shape {(BATCH, H_KV, M, D_K)} and type "
    with refused(TypeError, f"{say}keys of {shape}float64, as it was given, got {shape}float32"):
        layer(lambda q, k, p: (q, k.astype(np.float32)))
    with refused(ValueError, f"{say}keys of {shape}float64, as it was given, got shape {(BATCH, H_KV, D_K, M)}"):
        layer(lambda q, k, p: (q, k.mT))
    with refused(TypeError, "prepare must be a function (queries, keys, positions) -> (queries, keys), got str"):
        MultiHeadAttention(weights, prepare="rotary")
    with refused(TypeError, "prepare must be a function"):
        row.multi_head(tokens[0], tokens[1], tokens[1], weights, prepare=1)
    with refused(ValueError, "column convention: prepare must return queries of shape"):
        column.multi_head(*[tokens[0].mT] * 3, weights.T, prepare=lambda q, k, p: (k, q))


def test_extra_keys_must_fit(weights):
    k, v = np.ones((H_KV, S, D_K)), np.ones((H_KV, S, D_V))
    say = "row convention: extra"
    for extra, error, sentence in (
        ([k, v], TypeError, "_keys must be a pair, keys and values, got list"),
        ((k,), TypeError, "_keys must be a pair, keys and values, got a tuple of 1"),
        ((k, v.tolist()), TypeError, " values must be a plain NumPy array, got list"),
        ((k.astype(np.float32), v), TypeError, " keys: weights is float64 but extra keys is float32"),
        ((k[0], v), ValueError, f" keys must be (h_kv, s, d_k) with h_kv={H_KV} and d_k={D_K}, got {(S, D_K)}"),
        (
            (k, v[:1]),
            ValueError,
            f" values must be (h_kv, s, d_v) with h_kv={H_KV} and d_v={D_V}, got {(1, S, D_V)}",
        ),
        ((k, v.mT), ValueError, " values must be (h_kv, s, d_v)"),
        ((k, v[:, 1:]), ValueError, f" keys and values must be as many, got shapes {k.shape} and {v[:, 1:].shape}"),
    ):
        sentence = (
            say + sentence if "weights is" not in sentence else "row convention: weights is float64 but extra"
        )
        with refused(error, sentence):
            MultiHeadAttention(weights, extra_keys=extra)


def test_a_bias_of_the_layer_is_checked(weights, tokens):
    layer = MultiHeadAttention(weights)
    with refused(TypeError, "row convention: bias must be a floating array that is added to the scores, got bool"):
        layer(*tokens, bias=np.ones((N, M), bool))
    with refused(ValueError, "row convention: bias must have at least two axes (n, m), got shape (7,)"):
        layer(*tokens, bias=np.zeros(M))
    for extra in (None, (np.ones((H_KV, S, D_K)), np.ones((H_KV, S, D_V)))):
        layer = MultiHeadAttention(weights, extra_keys=extra)
        sentence = f"bias of shape {(N, M + S)} does not broadcast to the scores, (..., n, m) = {(BATCH, H, N, M)}."
        with refused(ValueError, "row convention: " + sentence):
            layer(*tokens, bias=np.zeros((N, M + S)))


def test_weights_in_columns_take_the_same_arguments(weights, tokens, rng):
    extra = rng.normal(size=(H_KV, S, D_K)), rng.normal(size=(H_KV, S, D_V))
    options = {"scale": 0.3, "prepare": turn, "extra_keys": extra}
    by_rows, by_columns = (MultiHeadAttention(w, **options) for w in (weights, weights.T))
    assert isinstance(weights.T, ColumnWeights)
    assert np.array_equal(by_rows(tokens[0]), by_columns(tokens[0]))
