"""The fast layer at the edges: the table of every other implementation, and what only it could do wrong."""

import numpy as np
import pytest

from mha_tutorial import Causal, FastMultiHeadAttention, MultiHeadAttention, Padding, RowWeights, gradients
from mha_tutorial._sizes import slices
from mha_tutorial.fast import plan, tiles
from mha_tutorial.fast.plan import Block
from tests.helpers import D_K, D_MODEL, D_V, GROUPS, assert_close
from tests.layer_helpers import as_dictionary, both_ways, converted, draw, tokens
from tests.numpy_cases import KINDS
from tests.numpy_oracle import Case, assert_near, oracle

SMALL = Block(tokens=11, scores=9, side=3, masked_side=2, rows=8, tiny=0)
SIZES = {"pieces": SMALL, "whole": Block()}


@pytest.fixture(autouse=True)
def unchecked(own_messages):
    """Types are checked by test_fast.py; here thousands of tiles would be checked again."""


def run(case: Case, **options):
    layer = FastMultiHeadAttention(case.weights, scale=case.scale, **options)
    inputs = [x for x in case[1:4] if x is not None]
    alone = layer(*inputs, visible=case.visible, bias=case.bias)
    output, backward = layer.vjp(*inputs, visible=case.visible, bias=case.bias)
    np.testing.assert_array_equal(np.isnan(alone), np.isnan(output))
    found = backward(case.dY)
    return alone, output, dict(zip("QKV", found[:3], strict=True)) | found.weights.arrays()


TABLE = [
    pytest.param(make, block, dtype, id=f"{kind}: {name} - {size} - {np.dtype(dtype)}")
    for kind, cases in KINDS.items()
    for name, make in cases.items()
    for size, block in SIZES.items()
    for dtype in (np.float64, np.float32, np.float16)
    if dtype != np.float16 or size == "whole"  # which goes the plain way, in one piece
]


@pytest.mark.no_cover
@pytest.mark.parametrize(("make", "block", "dtype"), TABLE)
def test_numbers_at_the_edges_in_tiles(make, block, dtype):
    case = make(dtype)
    with np.errstate(all="ignore"):
        expected = oracle(case)
    alone, output, found = run(case, block=block, threads=2)
    assert_near("output", output, expected, dtype)
    assert_near("output", alone, expected, dtype)
    assert set(found) == set(expected) - {"output"}
    for name, gradient in found.items():
        assert_near(name, gradient, expected, dtype)


# --- errors beside those of the plain layer ---------------------------------------------------------------------


def errors(weights, inputs, output_gradient, exponential=None, **options):
    """How far the fast layer and the plain one are off in float32, relative to the result in float64, by name."""
    single, inputs = converted(weights, np.float32), [x.astype(np.float32) for x in inputs]
    output_gradient = output_gradient.astype(np.float32)
    layer = FastMultiHeadAttention(single, exponential=exponential)
    exact = MultiHeadAttention(converted(single, np.float64))
    doubles = [x.astype(float) for x in inputs], output_gradient.astype(float)
    right = by_plain(exact, *doubles, **{name: widened(x) for name, x in options.items()})
    output, backward = layer.vjp(*inputs, **options)
    fast = as_dictionary(backward(output_gradient)) | {"output": output}
    plain = by_plain(layer.plain, inputs, output_gradient, **options)
    return {
        name: tuple(np.linalg.norm(found[name] - x) / (np.linalg.norm(x) or 1) for found in (fast, plain))
        for name, x in right.items()
        if name != "b_k"
    }


def widened(x):
    return x.astype(float) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x


def by_plain(layer, inputs, output_gradient, **options):
    trace = layer.trace(*inputs, **options)
    return as_dictionary(gradients.backward(output_gradient, trace, *inputs, layer.weights)) | {
        "output": trace.output
    }


def assert_as_good(all_errors, most=2.0):
    """In the median of the draws the fast layer is off by at most so many times what the plain one is off by."""
    for name in all_errors[0]:
        ratios = [fast / plain if plain else float(fast > 0) for fast, plain in (each[name] for each in all_errors)]
        assert np.median(ratios) <= most, (name, ratios)


@pytest.mark.no_cover
@pytest.mark.parametrize("exponential", [np.exp, np.exp2], ids=["exp", "exp2"])
@pytest.mark.parametrize("power", [*range(-8, -3), *range(-3, 24, 6)])
def test_exact_scores_are_as_good_as_plain(power, exponential):
    """Integers, the queries times a power of two: scores up to 1e8, with ties and leads of every size."""
    drawn = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        shapes = {"W_q": (2, 8, 4), "W_k": (2, 8, 4), "W_v": (2, 8, 4), "W_o": (2, 4, 8)}
        arrays = {name: rng.integers(-2, 3, size=shape).astype(float) for name, shape in shapes.items()}
        arrays["W_q"] *= 2.0**power
        x = [rng.integers(-3, 4, size=(2, 37, 8)).astype(float)] * 3
        visible = Causal() if seed % 2 else None
        weights, output_gradient = RowWeights(**arrays), rng.normal(size=(2, 37, 8))
        drawn.append(errors(weights, x, output_gradient, exponential, visible=visible))
    assert_as_good(drawn)


@pytest.mark.parametrize("exponential", [np.exp, np.exp2], ids=["exp", "exp2"])
def test_exact_scores_that_all_lie_around_a_large_one(exponential):
    """Around 40, below the limit: a power of two takes 40 times log2(e), which is not exact."""
    unit, drawn = np.eye(4)[None], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        Q, K, V = rng.integers(-1, 2, size=(3, 1, 37, 4)).astype(float)
        Q[..., 0], K[..., 0] = 16, 5
        output_gradient = rng.normal(size=Q.shape)
        drawn.append(errors(RowWeights(unit, unit, unit, unit), [Q, K, V], output_gradient, exponential))
    assert_as_good(drawn)


@pytest.mark.no_cover
@pytest.mark.parametrize("size", [1, 10, 40, 100, 1e3, 1e4])
def test_random_scores_are_as_good_as_plain(size):
    drawn = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        arrays, x = RowWeights.random(rng, 24, h=3).arrays(), rng.normal(size=(1, 61, 24))
        largest = np.abs(MultiHeadAttention(RowWeights(**arrays)).trace(x).scores).max()
        arrays |= {name: arrays[name] * (size / largest) for name in ("W_q", "b_q")}
        drawn.append(errors(RowWeights(**arrays), [x] * 3, rng.normal(size=x.shape)))
    assert_as_good(drawn)


@pytest.mark.parametrize("number", [-1e9, np.finfo(np.float32).min, 1e7])
def test_rows_that_a_bias_makes_equal(number):
    """M07: all keys have the same weight, and the same gradient of the values."""
    drawn = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        bias = np.zeros((1, 3, 17, 17), np.float32)
        bias[..., ::2, :] = number
        x = rng.normal(size=(1, 17, 24))
        drawn.append(errors(RowWeights.random(rng, 24, h=3), [x] * 3, rng.normal(size=x.shape), bias=bias))
    assert_as_good(drawn)


@pytest.mark.parametrize("size", [3e3, 6e3, 2e4, 1e12])
def test_where_one_key_leads_every_gradient_is_that_of_the_plain_layer(size):
    """M13: weights are zeros and ones, and the gradient of the scores is zero; the least noise would be larger."""
    unit = np.eye(8, dtype=np.float32)[None]
    for seed in range(10):
        rng = np.random.default_rng(seed)
        x, dY = (
            (size * rng.normal(size=(1, 8, 8))).astype(np.float32),
            rng.normal(size=(1, 8, 8)).astype(np.float32),
        )
        layer = FastMultiHeadAttention(RowWeights(unit, unit, unit, unit))
        trace = layer.plain.trace(x)
        assert set(np.unique(trace.attention)) == {0, 1}
        expected = as_dictionary(gradients.backward(dY, trace, x, x, x, layer.plain.weights))
        found = as_dictionary(layer.vjp(x)[1](dY))
        assert not found["W_q"].any()
        for name, gradient in expected.items():
            assert_close(found[name], gradient, rtol=1e-5)


@pytest.mark.parametrize("what", ["values", "keys"])
def test_biases_that_cancel_what_the_tokens_hold_are_not_folded(what):
    """M15: numbers around a million, and a bias that brings them back to around one."""
    drawn = []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        arrays, inputs = (
            RowWeights.random(rng, 12, h=2, d_k=6, d_v=6).arrays(),
            list(rng.normal(size=(3, 2, 37, 12))),
        )
        W, b, place = ("W_v", "b_v", 2) if what == "values" else ("W_k", "b_k", 1)
        inputs[place] += 1e6
        arrays[b] = -1e6 * arrays[W].sum(axis=1)
        drawn.append(errors(RowWeights(**arrays), inputs, rng.normal(size=(2, 37, 12))))
    assert_as_good(drawn)


@pytest.mark.parametrize("value", [1e9, 1e30, 1e-30])
def test_values_of_any_size_in_tiles(value, rng):
    weights, (Q, K, V) = converted(draw(rng, bias=False).T, np.float32), tokens(rng, 23, 29, dtype=np.float32)
    layer = FastMultiHeadAttention(weights, block=SMALL)
    V = V * np.float32(value)
    assert_close(layer(Q, K, V), layer.plain(Q, K, V), rtol=1e-5)


@pytest.mark.parametrize("value", [1e30, 1e-30])
def test_large_and_small_values_under_large_and_small_weights(value):
    """Exponentials of 40 times 1e30 overflow, and those of -40 times 1e-30 vanish, before they are divided."""
    rng, unit = np.random.default_rng(0), np.eye(3, dtype=np.float32)[None]
    layer = FastMultiHeadAttention(RowWeights(unit, unit, unit, unit), scale=1.0 if value > 1 else -1.0)
    Q, K = (6.3 + 1e-3 * rng.random((2, 9, 3))).astype(np.float32) * np.float32([1, 1e-2, 1e-2])
    V = np.float32(value) * (1 + rng.random((9, 3))).astype(np.float32)
    assert_close(layer(Q, K, V), layer.plain(Q, K, V), rtol=1e-5)


# --- the rest of the signature ----------------------------------------------------------------------------------


@pytest.mark.no_cover
@pytest.mark.parametrize("scale", [0, -0.5, 1.0, np.float32(2.25), 40.0])
@pytest.mark.parametrize("visible", [None, Causal("top-left"), Padding([0, 29])])
def test_any_scale(scale, visible, rng):
    weights, inputs = draw(rng), tokens(rng, 23, 29)
    layer = FastMultiHeadAttention(weights, scale=scale, block=SMALL)
    assert_close(layer(*inputs, visible=visible), layer.plain(*inputs, visible=visible))
    output, backward = layer.vjp(*inputs, visible=visible)
    found = as_dictionary(backward(output))
    trace = layer.plain.trace(*inputs, visible=visible)
    expected = as_dictionary(gradients.backward(output, trace, *inputs, layer.plain.weights, float(scale)))
    largest = max(np.abs(gradient).max() for gradient in expected.values())
    for name, gradient in expected.items():
        np.testing.assert_allclose(found[name], gradient, rtol=1e-11, atol=1e-11 * largest, err_msg=name)


def biases(rng, h):
    hiding = rng.normal(size=(2, h, 23, 29))
    hiding[rng.random(hiding.shape) < 0.4] = -np.inf
    hiding[1, 0, 4] = -np.inf
    return {
        "one for all": rng.normal(size=(23, 29)),
        "for each head": rng.normal(size=(h, 23, 29)),
        "for each key": rng.normal(size=(2, 1, 1, 29)),
        "for each query": rng.normal(size=(2, h, 23, 1)),
        "hiding": hiding,
        "hiding a sequence": np.where(np.arange(2) == 0, 0.5, -np.inf)[:, None, None, None] * np.ones((2, 1, 1, 1)),
    }


SOME = {name: GROUPS[name] for name in ("h=3", "h=6 sharing 2")}


@pytest.mark.no_cover
@pytest.mark.parametrize("kind", biases(np.random.default_rng(0), 1))
@pytest.mark.parametrize(("h", "h_kv"), SOME.values(), ids=SOME)
def test_any_bias(kind, h, h_kv, rng):
    layer, inputs = FastMultiHeadAttention(draw(rng, h, h_kv), block=SMALL, threads=2), tokens(rng, 23, 29)
    bias = biases(rng, h)[kind]
    for visible in (None, Causal("bottom-right") & Padding([20, 29])):
        expected = layer.plain.trace(*inputs, visible=visible, bias=bias)
        assert_close(layer(*inputs, visible=visible, bias=bias), expected.output)
        output, backward = layer.vjp(*inputs, visible=visible, bias=bias)
        assert_close(output, expected.output)
        right = as_dictionary(gradients.backward(output, expected, *inputs, layer.plain.weights))
        for name, gradient in as_dictionary(backward(output)).items():
            assert_close(gradient, right[name] if name != "b_k" else np.zeros_like(gradient))


def test_a_bias_of_more_bits_goes_the_plain_way(rng):
    layer = FastMultiHeadAttention(converted(draw(rng).T, np.float32))
    inputs, bias = tokens(rng, dtype=np.float32), rng.normal(size=(5, 7))
    assert np.array_equal(layer(*inputs, bias=bias), layer.plain(*inputs, bias=bias))
    output, backward = layer.vjp(*inputs, bias=bias)
    expected = gradients.backward(output, layer.plain.trace(*inputs, bias=bias), *inputs, layer.plain.weights)
    assert np.array_equal(backward(output).Q, expected.Q)
    halves = bias.astype(np.float16)  # and of fewer bits the fast one
    assert_close(layer(*inputs, bias=halves), layer.plain(*inputs, bias=halves), rtol=1e-5)


def turned_by_head(q, k, positions):
    """Every head in its own way, and every token by its place."""
    queries, keys = positions if isinstance(positions, tuple) else (positions, positions)
    return tuple(
        x * (1 + np.arange(x.shape[-3]))[:, None, None] + np.sin(place)[..., None, :, None]
        for x, place in ((q, queries), (k, keys))
    )


@pytest.mark.parametrize(("h", "h_kv"), SOME.values(), ids=SOME)
@pytest.mark.parametrize("with_extra", [False, True])
@pytest.mark.parametrize("block", SIZES.values(), ids=SIZES)
def test_prepare_and_extra_keys(h, h_kv, with_extra, block, rng):
    own = (rng.normal(size=(h_kv, 3, D_K)), rng.normal(size=(h_kv, 3, D_V))) if with_extra else None
    options = {"prepare": turned_by_head, "extra_keys": own, "block": block, "threads": 2}
    layer = FastMultiHeadAttention(draw(rng, h, h_kv, widths=(D_MODEL,) * 3), **options)
    x, memory = rng.normal(size=(2, 2, 23, D_MODEL))
    bias = rng.normal(size=(2, h, 23, 23))
    bias[:, :, 4] = -np.inf
    hidden = np.ones((23, 23), dtype=bool)
    hidden[7] = False
    for visible in (None, Causal(), Padding([0, 23]), hidden):
        for added in (None, bias):
            call = {"visible": visible, "bias": added}
            assert_close(layer(x, **call), layer.plain(x, **call))
            assert_close(layer(x, memory, **call), layer.plain(x, memory, **call))
    places = rng.integers(0, 99, size=(2, 23))
    assert_close(layer(x, positions=places), layer.plain(x, positions=places))
    both = places, places[::-1]
    assert_close(layer(x, memory, positions=both), layer.plain(x, memory, positions=both))


def test_extra_keys_alone_and_none(rng):
    weights = draw(rng, 6, 2, widths=(D_MODEL,) * 3)
    x = rng.normal(size=(23, D_MODEL))
    for s in (0, 1, 5):
        own = rng.normal(size=(2, s, D_K)), rng.normal(size=(2, s, D_V))
        layer = FastMultiHeadAttention(weights, extra_keys=own, block=SMALL)
        for visible in (None, Causal(), ~Causal()):
            assert_close(layer(x, visible=visible), layer.plain(x, visible=visible))


@pytest.mark.parametrize("m", [1, 2, 23])
@pytest.mark.parametrize("s", [0, 3])
def test_a_bias_or_mask_for_all_keys_or_all_queries_alike(m, s, rng):
    own = rng.normal(size=(2, s, D_K)), rng.normal(size=(2, s, D_V))
    layer = FastMultiHeadAttention(
        draw(rng, 6, 2, widths=(D_MODEL,) * 3), extra_keys=own if s else None, block=SMALL
    )
    x, memory = rng.normal(size=(5, D_MODEL)), rng.normal(size=(m, D_MODEL))
    for shape in ((5, 1), (1, m), (5, m)):
        bias, visible = rng.normal(size=shape), rng.random(shape) < 0.5
        assert_close(layer(x, memory, bias=bias), layer.plain(x, memory, bias=bias))
        assert_close(layer(x, memory, visible=visible), layer.plain(x, memory, visible=visible))


@pytest.mark.parametrize("name", ["prepare", "extra_keys"])
def test_no_way_back_through_what_is_not_known(name, rng):
    given = turned_by_head if name == "prepare" else (np.zeros((3, 1, D_K)), np.zeros((3, 1, D_V)))
    layer = FastMultiHeadAttention(draw(rng), **{name: given})
    with pytest.raises(NotImplementedError, match=rf"no gradient through {name}=.*torch\.MultiHeadAttention"):
        layer.vjp(*tokens(rng))


@pytest.mark.parametrize("call", ["__call__", "vjp"])
@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"positions": np.arange(5)}, ValueError),  # no pair
        ({"positions": (np.arange(5.0), np.arange(7))}, TypeError),
        ({"bias": np.full((4, 7), 0.5)}, ValueError),
        ({"bias": np.ones((5, 7), dtype=int)}, TypeError),
        ({"bias": np.ones(7)}, ValueError),
    ],
)
def test_what_does_not_fit_is_refused_in_the_words_of_the_plain_layer(options, error, call, own_messages, rng):
    layer, inputs = FastMultiHeadAttention(draw(rng)), tokens(rng)
    with pytest.raises(error) as plain:
        layer.plain(*inputs, **options)
    with pytest.raises(error) as ours:
        getattr(layer, call)(*inputs, **options)
    assert str(ours.value) == str(plain.value)


def test_biases_of_some_projections_only(rng):
    """A layer may have one for queries and none for keys."""
    arrays = draw(rng, widths=(D_MODEL,) * 3).T.arrays()
    for missing in (["b_q"], ["b_k", "b_o"], ["b_q", "b_v"]):
        weights = RowWeights(**{name: array for name, array in arrays.items() if name not in missing})
        layer, x = FastMultiHeadAttention(weights), rng.normal(size=(2, 23, D_MODEL))
        assert_close(layer(x), layer.plain(x))
        assert_close(layer(x, x.copy()), layer.plain(x, x.copy()))
        found, expected = both_ways(layer, (x,))
        assert as_dictionary(found).keys() == as_dictionary(expected).keys()


def test_padding_of_nan_does_not_slow_down_or_touch_the_rest(rng, monkeypatch):
    """Keys that no query sees are zero for the products: no tile needs its row maximum subtracted."""
    safely = []
    monkeypatch.setattr(plan, "safe_attention", lambda *args: safely.append(args))
    layer, (Q, K, V) = FastMultiHeadAttention(draw(rng), block=SMALL), tokens(rng, 23, 29)
    expected = layer(Q, K, V, visible=Padding([17, 26]))
    K[0, 17:], V[0, 17:], K[1, 26:] = np.nan, np.inf, -np.inf
    assert_close(layer(Q, K, V, visible=Padding([17, 26])), expected)
    assert not safely


BOTH = {bool, np.float32}


@pytest.mark.parametrize(("factors", "kinds"), [(0, {bool}), (3, BOTH), (60, BOTH), (2000, {np.float32})])
def test_many_different_tiles_of_a_mask_stay_truth_values(factors, kinds, rng):
    visible = rng.random((23, 29)) < 0.6
    made = tiles.TileMask(visible, (2, 3, 23, 29), h_kv=3).tiles(slices(23, 3), slices(29, 3), factors)
    found = {tile.visible.dtype for some in made for tile in some.kv_tiles if tile.visible is not None}
    assert found == {np.dtype(kind) for kind in kinds}
    block = SMALL._replace(factors=factors)
    layer, inputs = FastMultiHeadAttention(draw(rng), block=block), tokens(rng, 23, 29)
    assert_close(layer(*inputs, visible=visible), layer.plain(*inputs, visible=visible))
