"""A random layer of every library, loaded by its layout: our output is theirs.

To add a library, write a function that makes a layer and runs it, and add it to `LAYERS`. `make test-frameworks`
installs the libraries and runs this file; where one is missing its test is skipped.
"""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from numpy import ndarray as Array

from mha_tutorial import Causal
from mha_tutorial.layouts import dump, identify, load
from mha_tutorial.reference import row
from tests.helpers import assert_close, rotated
from tests.layout_helpers import assert_same, randomised

# what they warn of is the libraries' affair
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

os.environ.setdefault("KERAS_BACKEND", "torch")
H, D, N, M = 3, 10, 5, 7
REASON = "not installed; `make test-frameworks` installs it"


class Layer(NamedTuple):
    """What a library's layer holds, and what it gave for some input."""

    layout: str
    heads: int
    checkpoint: Any
    inputs: tuple[Array, Array, Array]
    output: Array
    prefix: str = ""
    rtol: float = 1e-10
    options: Mapping[str, Any] = MappingProxyType({})  # of row.multi_head


def drawn(rng, *widths):
    """Queries, keys and values of these widths, two sequences of each."""
    return tuple(rng.normal(size=(2, n, width)) for n, width in zip((N, M, M), widths, strict=True))


# --- transformers -------------------------------------------------------------------------------------------------


def transformers_layer(rng, layout, model, attention, config, run, **options):
    """A layer of transformers in float64, computed by PyTorch's own kernel, which keeps that type."""
    library = pytest.importorskip("transformers", reason=REASON)
    module_of = pytest.importorskip(f"transformers.models.{model}.modeling_{model}", reason=REASON)
    config = getattr(library, config.pop("class"))(**config, attn_implementation="sdpa")
    layer = getattr(module_of, attention)
    layer = layer(config) if model == "bert" else layer(config, layer_idx=0)
    layer = randomised(layer.double()).eval()
    x = rng.normal(size=(2, N, config.hidden_size))
    with torch.no_grad():
        output = run(layer, torch.from_numpy(x)).numpy()
    heads = config.num_attention_heads
    return Layer(layout, heads, layer, (x, x, x), output, options=options)


def bert(rng):
    config = {"class": "BertConfig", "hidden_size": H * D, "num_attention_heads": H}
    return transformers_layer(
        rng, "bert", "bert", "BertAttention", config, lambda layer, x: layer.output.dense(layer.self(x)[0])
    )


def gpt2(rng):
    config = {"class": "GPT2Config", "hidden_size": H * D, "num_attention_heads": H}
    return transformers_layer(
        rng, "gpt2", "gpt2", "GPT2Attention", config, lambda layer, x: layer(x)[0], visible=Causal()
    )


def turns(pairs):
    """The cosines and sines that transformers hands to its layers, here in float64."""
    angles = np.arange(N)[:, None] * 10000.0 ** -(np.arange(D // 2) / (D // 2))
    angles = angles.repeat(2, axis=-1) if pairs else np.tile(angles, 2)
    return torch.from_numpy(np.cos(angles)[None]), torch.from_numpy(np.sin(angles)[None])


def rotary(Q, K):
    """The score of queries and keys that are turned by their places, in the package's order of rows."""
    return row.scaled_dot_product(rotated(Q, pairs=False), rotated(K, pairs=False))


def neox(rng):
    config = {"class": "GPTNeoXConfig", "hidden_size": H * D, "num_attention_heads": H}
    return transformers_layer(
        rng,
        "neox",
        "gpt_neox",
        "GPTNeoXAttention",
        config,
        lambda layer, x: layer(x, attention_mask=None, position_embeddings=turns(pairs=False))[0],
        score=rotary,
        visible=Causal(),
    )


GROUPED = {"num_attention_heads": 6, "num_key_value_heads": 2, "attention_bias": True}


def llama(rng):
    return transformers_layer(
        rng,
        "llama",
        "llama",
        "LlamaAttention",
        {"class": "LlamaConfig", "hidden_size": 18, "head_dim": D, **GROUPED},
        lambda layer, x: layer(x, attention_mask=None, position_embeddings=turns(pairs=False))[0],
        score=rotary,
        visible=Causal(),
    )


def cohere(rng):
    """Its rotary pairs are neighbours, as in Meta's Llama, and it turns them in float32."""
    layer = transformers_layer(
        rng,
        "llama-pairs",
        "cohere",
        "CohereAttention",
        {"class": "CohereConfig", "hidden_size": 6 * D, **GROUPED},
        lambda layer, x: layer(x, attention_mask=None, position_embeddings=turns(pairs=True))[0],
        score=rotary,
        visible=Causal(),
    )
    renamed = {f"w{key[0]}.{key.split('.')[1]}": tensor for key, tensor in layer.checkpoint.state_dict().items()}
    return layer._replace(checkpoint=renamed, rtol=1e-5)


# --- Keras --------------------------------------------------------------------------------------------------------


def keras(rng):
    library = pytest.importorskip("keras", reason=REASON)
    q, k, v = drawn(rng, 17, 19, 23)
    layer = library.layers.MultiHeadAttention(
        H, key_dim=11, value_dim=13, output_shape=29, dtype="float64", name="attention"
    )
    layer(q, v, k)  # builds it
    for variable in layer.weights:
        variable.assign(rng.normal(size=variable.shape))
    output, _ = layer(q, v, k, return_attention_scores=True)  # asked for scores, it stays in float64
    stored = {variable.path: library.ops.convert_to_numpy(variable) for variable in layer.weights}
    return Layer("keras", H, stored, (q, k, v), library.ops.convert_to_numpy(output), "attention/")


# --- JAX ----------------------------------------------------------------------------------------------------------


def jax_in_float64():
    jax = pytest.importorskip("jax", reason=REASON)
    jax.config.update("jax_enable_x64", True)
    return jax


def random_like(jax, tree, rng):
    return jax.tree.map(lambda leaf: jax.numpy.asarray(rng.normal(size=leaf.shape)), tree)


def flax_linen(rng):
    jax, linen = jax_in_float64(), pytest.importorskip("flax.linen", reason=REASON)
    q, k, v = drawn(rng, 17, 19, 23)
    layer = linen.MultiHeadDotProductAttention(
        num_heads=H, qkv_features=H * D, out_features=29, param_dtype=np.float64
    )
    parameters = random_like(jax, layer.init(jax.random.key(0), q, k, v), rng)
    return Layer("flax", H, parameters, (q, k, v), np.asarray(layer.apply(parameters, q, k, v)), "params.")


def flax_nnx(rng):
    jax, nnx = jax_in_float64(), pytest.importorskip("flax.nnx", reason=REASON)
    q, k, v = drawn(rng, 17, 19, 19)
    layer = nnx.MultiHeadAttention(
        num_heads=H,
        in_features=17,
        in_kv_features=19,
        qkv_features=H * D,
        out_features=29,
        param_dtype=np.float64,
        decode=False,
        rngs=nnx.Rngs(0),
    )
    definition, parameters, rest = nnx.split(layer, nnx.Param, ...)
    layer = nnx.merge(definition, random_like(jax, parameters, rng), rest)
    stored = nnx.to_pure_dict(nnx.state(layer, nnx.Param))
    output = layer(q, k, v, sow_weights=True)  # asked for weights, it stays in float64
    return Layer("flax", H, stored, (q, k, v), np.asarray(output))


def equinox(rng):
    jax, library = jax_in_float64(), pytest.importorskip("equinox", reason=REASON)
    q, k, v = drawn(rng, 17, 19, 23)
    layer = library.nn.MultiheadAttention(
        H,
        query_size=17,
        key_size=19,
        value_size=23,
        output_size=29,
        qk_size=11,
        vo_size=13,
        use_query_bias=True,
        use_key_bias=True,
        use_value_bias=True,
        use_output_bias=True,
        dtype=np.float64,
        key=jax.random.key(0),
    )
    arrays, rest = library.partition(layer, library.is_array)
    layer = library.combine(random_like(jax, arrays, rng), rest)
    projections = ["query_proj", "key_proj", "value_proj", "output_proj"]
    stored = {
        name: {part: getattr(getattr(layer, name), part) for part in ("weight", "bias")} for name in projections
    }
    return Layer("equinox", H, stored, (q, k, v), np.asarray(jax.vmap(layer)(q, k, v)))


# ------------------------------------------------------------------------------------------------------------------

LAYERS = {
    "transformers-bert": bert,
    "transformers-gpt2": gpt2,
    "transformers-gpt-neox": neox,
    "transformers-llama": llama,
    "transformers-cohere": cohere,
    "keras": keras,
    "flax-linen": flax_linen,
    "flax-nnx": flax_nnx,
    "equinox": equinox,
}


@pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS)
def test_output_is_the_librarys(make, rng):
    layer = make(rng)
    weights = load(layer.checkpoint, layer.layout, layer.heads, prefix=layer.prefix)
    assert weights.dtype == np.float64
    assert all(array.any() for array in weights.arrays().values())
    assert set(weights.arrays()) == {"W_q", "W_k", "W_v", "W_o", "b_q", "b_k", "b_v", "b_o"}
    assert_close(row.multi_head(*layer.inputs, weights.T, **layer.options).output, layer.output, layer.rtol)
    assert [(match.layout, match.prefix) for match in identify(layer.checkpoint)] == [(layer.layout, layer.prefix)]
    assert_same(load(dump(weights, layer.layout), layer.layout, layer.heads).arrays(), weights.arrays())
