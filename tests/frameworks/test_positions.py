"""Positions and blocks as transformers has them: its sines, rotations, slopes, buckets and layer are ours."""

import importlib

import numpy as np
import pytest
import torch

from mha_tutorial import Causal, ColumnWeights, MultiHeadAttention
from mha_tutorial.block import Block, rms_norm, swiglu
from mha_tutorial.layouts import load
from mha_tutorial.positions import Pairs, alibi_slopes, relative_buckets, row
from mha_tutorial.torch import positions
from tests.helpers import assert_close
from tests.layout_helpers import randomised

transformers = pytest.importorskip("transformers", reason="not installed; `make test-frameworks` installs it")

# what they warn of is the library's affair
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

H, H_KV, D_K, D_MODEL, D_HIDDEN, N = 6, 2, 10, 18, 31, 7
BASE = 5000.0
IN_32_BITS = 2e-6  # of the largest number: some roundings of 32 bits


def modeling(name):
    return importlib.import_module(f"transformers.models.{name}.modeling_{name}")


def llama(**options):
    return transformers.LlamaConfig(
        hidden_size=D_MODEL,
        intermediate_size=D_HIDDEN,
        num_attention_heads=H,
        num_key_value_heads=H_KV,
        head_dim=D_K,
        rope_parameters={"rope_type": "default", "rope_theta": BASE},
        attn_implementation="sdpa",
        **options,
    )


def test_sinusoidal_vectors_are_those_of_marian():
    """Its sines stand before its cosines, of positions from 0 on."""
    theirs = modeling("marian").MarianSinusoidalPositionalEmbedding(40, 10)
    theirs.weight.data = theirs.create_weight()
    expected = row.sinusoidal(np.arange(40), 10, order=Pairs.HALVES).astype(np.float32)
    assert_close(theirs((1, 40)).numpy(), expected, IN_32_BITS)


@pytest.mark.parametrize("first", [0, 100_000])
def test_rotary_positions_are_those_of_llama(first, rng):
    """In 32 bits number by number, far into a text too."""
    module = modeling("llama")
    places = torch.arange(first, first + N)[None]
    q, k = (torch.tensor(rng.normal(size=(2, h, N, D_K)), dtype=torch.float32) for h in (H, H_KV))
    expected = module.apply_rotary_pos_emb(q, k, *module.LlamaRotaryEmbedding(llama())(q, places))
    for found, theirs in zip(positions.Rotary(BASE)(q, k, places), expected, strict=True):
        assert_close(found.numpy(), theirs.numpy(), 2e-7)  # two roundings


def test_interleaved_pairs_are_those_of_cohere(rng):
    module = modeling("cohere")
    x = torch.tensor(rng.normal(size=(2, H, N, D_K)), dtype=torch.float32)
    angles = (np.arange(N)[:, None] * BASE ** (-np.arange(0, D_K, 2) / D_K)).repeat(2, axis=-1)
    cos, sin = (torch.tensor(turn(angles), dtype=torch.float32)[None] for turn in (np.cos, np.sin))
    expected, _ = module.apply_rotary_pos_emb(x, x, cos, sin)
    found = row.rotate(x.double().numpy(), np.arange(N), BASE, Pairs.INTERLEAVED)
    assert_close(found.astype(np.float32), expected.numpy(), IN_32_BITS)


@pytest.mark.parametrize("h", [1, 2, 3, 6, 8, 9, 12, 16])
def test_slopes_are_those_of_bloom_and_mpt(h):
    """Their biases count keys from either end of the text, which softmax does not see."""
    bloom = modeling("bloom").build_alibi_tensor(torch.ones(1, N), h, torch.float32).reshape(h, N)
    mpt = modeling("mpt").build_mpt_alibi_tensor(h, N).reshape(h, N)
    of_last_query = row.alibi(alibi_slopes(h), np.array([N - 1]), np.arange(N))[:, 0].astype(np.float32)
    assert_close(mpt.numpy(), of_last_query, IN_32_BITS)
    assert_close((bloom - bloom[:, -1:]).numpy(), of_last_query, IN_32_BITS)


@pytest.mark.parametrize(("buckets", "farthest"), [(32, 128), (16, 40), (8, 20)])
@pytest.mark.parametrize("both_sides", [True, False])
def test_buckets_are_those_of_t5(buckets, farthest, both_sides):
    distance = np.arange(-300, 301)
    theirs = modeling("t5").T5Attention._relative_position_bucket(
        torch.tensor(distance), bidirectional=both_sides, num_buckets=buckets, max_distance=farthest
    )
    assert np.array_equal(relative_buckets(distance, buckets, farthest, both_sides), theirs.numpy())
    found = positions.relative_buckets(torch.tensor(distance), buckets, farthest, both_sides)
    assert torch.equal(found, theirs)


def test_a_relative_bias_is_that_of_t5(rng):
    config = transformers.T5Config(num_heads=H, d_model=D_MODEL, d_kv=D_K)
    layer = randomised(modeling("t5").T5Attention(config, has_relative_attention_bias=True).double())
    theirs = layer.compute_bias(N, N + 2)[0].detach().numpy()
    table = layer.relative_attention_bias.weight.detach().numpy().T
    assert_close(row.relative_bias(table, np.arange(N), np.arange(N + 2)), theirs)


def test_the_block_is_llamas(rng):
    """Norms, attention with rotary positions and grouped heads, SwiGLU: one decoder layer, in float64."""
    module, config = modeling("llama"), llama(rms_norm_eps=0.01)
    layer = randomised(module.LlamaDecoderLayer(config, layer_idx=0).double()).eval()
    x = rng.normal(size=(2, N, D_MODEL))
    angles = np.tile(np.arange(N)[:, None] * BASE ** (-np.arange(0, D_K, 2) / D_K), 2)
    turns = tuple(torch.tensor(turn(angles))[None] for turn in (np.cos, np.sin))
    with torch.no_grad():
        theirs = layer(torch.tensor(x), position_embeddings=turns)
        theirs = (theirs[0] if isinstance(theirs, tuple) else theirs).numpy()
        norm = layer.post_attention_layernorm(torch.tensor(x)).numpy()
        forward = layer.mlp(torch.tensor(x)).numpy()

    def array(tensor):
        return tensor.detach().numpy()

    weights = load(layer.self_attn, "llama", h=H)
    assert isinstance(weights, ColumnWeights)
    matrices = [
        np.ascontiguousarray(array(part.weight).T)
        for part in (layer.mlp.gate_proj, layer.mlp.up_proj, layer.mlp.down_proj)
    ]
    gains = array(layer.input_layernorm.weight), array(layer.post_attention_layernorm.weight)
    block = Block(MultiHeadAttention(weights, prepare=row.Rotary(BASE)), *matrices, *gains, eps=0.01)
    in_32_bits = 1e-6  # it takes its norms in float32
    assert_close(swiglu(x, *matrices), forward, 1e-10)
    assert_close(rms_norm(x, gains[1], 0.01), norm, in_32_bits)
    assert_close(block(x, visible=Causal()), theirs, in_32_bits)
