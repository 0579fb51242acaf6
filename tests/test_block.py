"""The block around the layer: norms, feed-forward part, sums, and how many numbers a model of it learns."""

import re

import numpy as np
import pytest
from torch import nn

from mha_tutorial import Causal, MultiHeadAttention, RowWeights
from mha_tutorial.analysis.counting import decoder_parameters, shape_only_weights
from mha_tutorial.block import Block, layer_norm, rms_norm, silu, swiglu
from mha_tutorial.positions.row import Rotary
from tests.helpers import BATCH, D_MODEL, N, assert_close
from tests.torch_helpers import array, tensors

pytestmark = pytest.mark.usefixtures("own_messages")

D_HIDDEN = 19


@pytest.fixture
def x(rng):
    return rng.normal(size=(BATCH, N, D_MODEL)) + 3


@pytest.fixture
def matrices(rng):
    return [rng.normal(size=shape) for shape in ((D_MODEL, D_HIDDEN), (D_MODEL, D_HIDDEN), (D_HIDDEN, D_MODEL))]


@pytest.mark.equation("eq-layer-norm")
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_layer_norm_token_by_token(eps, x, rng):
    gain, shift = rng.normal(size=(2, D_MODEL))
    expected = np.empty(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        mean = sum(x[place]) / D_MODEL
        variance = sum((number - mean) ** 2 for number in x[place]) / D_MODEL
        expected[place] = [
            (number - mean) / (variance + eps) ** 0.5 * g + s
            for number, g, s in zip(x[place], gain, shift, strict=True)
        ]
    assert_close(layer_norm(x, gain, shift, eps), expected)
    theirs = nn.functional.layer_norm(tensors(x), (D_MODEL,), *tensors(gain, shift), eps)
    assert_close(array(theirs), expected)


@pytest.mark.equation("eq-rms-norm")
@pytest.mark.parametrize("eps", [1e-5, 0.5])
def test_rms_norm_token_by_token(eps, x, rng):
    gain = rng.normal(size=D_MODEL)
    expected = np.empty(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        square = sum(number**2 for number in x[place]) / D_MODEL
        expected[place] = [number / (square + eps) ** 0.5 * g for number, g in zip(x[place], gain, strict=True)]
    assert_close(rms_norm(x, gain, eps), expected)
    theirs = nn.functional.rms_norm(tensors(x), (D_MODEL,), tensors(gain), eps)
    assert_close(array(theirs), expected)


def test_a_token_of_equal_numbers_is_zero_after_layer_norm_and_one_after_rms_norm():
    token, ones = np.full(D_MODEL, 7.0), np.ones(D_MODEL)
    assert_close(layer_norm(token, ones, 0 * ones), 0 * ones)
    assert_close(rms_norm(token, ones, eps=0.0), ones)
    assert not rms_norm(0 * token, ones).any()  # and nothing is divided by zero


def test_norms_do_not_see_the_size_of_a_token(x):
    gain, shift = np.ones(D_MODEL), np.zeros(D_MODEL)
    assert_close(rms_norm(5 * x, gain, eps=0.0), rms_norm(x, gain, eps=0.0))
    assert_close(layer_norm(5 * x + 2, gain, shift, eps=0.0), layer_norm(x, gain, shift, eps=0.0), rtol=1e-11)


def test_silu_is_a_number_times_its_logistic_function():
    numbers = np.linspace(-20, 20, 41)
    assert_close(silu(numbers), numbers / (1 + np.exp(-numbers)), rtol=1e-11)
    assert silu(np.array([-1e308, 1e308])).tolist() == [0.0, 1e308]


@pytest.mark.equation("eq-swiglu", "eq-swiglu-row")
def test_swiglu_number_by_number(x, matrices):
    W_gate, W_up, W_down = matrices
    expected = np.zeros(x.shape)
    for place in np.ndindex(x.shape[:-1]):
        for hidden in range(D_HIDDEN):
            gate = sum(x[place][i] * W_gate[i, hidden] for i in range(D_MODEL))
            up = sum(x[place][i] * W_up[i, hidden] for i in range(D_MODEL))
            expected[place] += gate / (1 + np.exp(-gate)) * up * W_down[hidden]
    assert_close(swiglu(x, *matrices), expected, rtol=1e-11)
    X = x[0].T
    by_columns = W_down.T @ (silu(W_gate.T @ X) * (W_up.T @ X))
    assert_close(by_columns.T, expected[0], rtol=1e-11)


@pytest.fixture
def block(rng, matrices):
    weights = RowWeights.random(rng, D_MODEL, 6, h_kv=2, d_k=10, d_v=7, bias=False)
    gains = rng.normal(size=(2, D_MODEL))
    return Block(MultiHeadAttention(weights, prepare=Rotary()), *matrices, *gains, eps=0.01)


@pytest.mark.equation("eq-pre-norm-block")
@pytest.mark.parametrize("positions", [None, np.arange(N) * 3])
def test_a_block_adds_what_its_two_parts_write(block, positions, x):
    seen = rms_norm(x, block.attention_gain, 0.01)
    between = x + block.attention(seen, visible=Causal(), positions=positions)
    matrices = block.W_gate, block.W_up, block.W_down
    expected = between + swiglu(rms_norm(between, block.feed_forward_gain, 0.01), *matrices)
    assert_close(block(x, visible=Causal(), positions=positions), expected)


def test_a_causal_block_does_not_look_ahead(block, x):
    before = block(x, visible=Causal())
    x[:, -1] += 1
    assert np.array_equal(block(x, visible=Causal())[:, :-1], before[:, :-1])


def test_a_block_that_writes_nothing_changes_nothing(block, x):
    """The residual stream: what no part writes passes as it is."""
    silent = MultiHeadAttention(
        RowWeights(**{name: 0 * array for name, array in block.attention.weights.arrays().items()})
    )
    gains = block.attention_gain, block.feed_forward_gain
    assert np.array_equal(Block(silent, block.W_gate, block.W_up, 0 * block.W_down, *gains)(x), x)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("layers", [1, 30])
def test_parameters_of_a_model_are_those_of_its_arrays(tied, layers):
    weights = shape_only_weights(576, h=9, h_kv=3, d_k=64, d_v=64, bias=False)
    parts = decoder_parameters(weights, d_hidden=1536, layers=layers, vocabulary=49152, tied=tied)
    tables = [(49152, 576)] * (1 if tied else 2)
    matrices = [
        (576, 576),
        (576, 192),
        (576, 192),
        (576, 576),
        (576, 1536),
        (576, 1536),
        (1536, 576),
        (576,),
        (576,),
    ]
    assert sum(parts.values()) == sum(int(np.prod(shape)) for shape in [*tables, *(matrices * layers), (576,)])
    if tied and layers == 30:
        assert sum(parts.values()) == 134_515_008  # what the file of SmolLM2-135M holds


# --- what is refused ----------------------------------------------------------------------------------------------


def refused(error, sentence):
    return pytest.raises(error, match="^" + re.escape(sentence))


def test_gains_are_as_wide_as_tokens(x):
    ones, say = np.ones(D_MODEL), "row convention: "
    for norm in (lambda gain: rms_norm(x, gain), lambda gain: layer_norm(x, gain, ones)):
        with refused(ValueError, f"{say}gain must be ({D_MODEL},), as wide as x, got (3,)"):
            norm(np.ones(3))
        with refused(TypeError, f"{say}x is float64 but gain is float32; convert one of them"):
            norm(np.ones(D_MODEL, np.float32))
        with refused(TypeError, f"{say}gain must be a plain NumPy array, got float"):
            norm(1.0)
    with refused(ValueError, f"{say}shift must be ({D_MODEL},), as wide as x, got (1,)"):
        layer_norm(x, ones, np.ones(1))
    with refused(TypeError, f"{say}x must hold floating-point numbers, got int64"):
        rms_norm(np.ones(D_MODEL, int), ones)


def test_matrices_lead_to_a_hidden_width_and_back(x, matrices):
    W_gate, W_up, W_down = matrices
    say = (
        "row convention: W_gate and W_up must be (d_model, d_hidden) and W_down (d_hidden, d_model) with d_model=11"
    )
    for wrong in ((W_gate.T, W_up, W_down), (W_gate, W_up[:, 1:], W_down), (W_gate, W_up, W_gate)):
        with refused(ValueError, say + ", got "):
            swiglu(x, *wrong)
    with refused(TypeError, "row convention: x is float64 but W_up is float32"):
        swiglu(x, W_gate, W_up.astype(np.float32), W_down)


def test_sizes_of_a_model_are_whole_numbers():
    weights = shape_only_weights(6, 2)
    for name in ("d_hidden", "layers", "vocabulary"):
        sizes = {"d_hidden": 8, "layers": 1, "vocabulary": 5}
        with refused(ValueError, f"{name} must be at least 1, got 0"):
            decoder_parameters(weights, **(sizes | {name: 0}))
