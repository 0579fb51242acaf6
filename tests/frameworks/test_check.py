"""The checker has nothing against other libraries' attention: no failure, and the remarks are those listed here."""

import importlib
import os

import numpy as np
import pytest
import torch

from mha_tutorial.check import adapters, check
from mha_tutorial.layouts import load
from mha_tutorial.positions import Pairs
from mha_tutorial.positions.row import Rotary
from tests.torch_helpers import one_thread  # noqa: F401

# what they warn of is the libraries' affair
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.filterwarnings("ignore::DeprecationWarning")]

os.environ.setdefault("KERAS_BACKEND", "torch")
REASON = "not installed; `make test-frameworks` installs it"
H, D = 6, 10

HIDDEN = {f"hidden {what} nothing" for what in ("NaN reaches", "inf reaches", "huge numbers reach")}
BLIND = "a query that sees nothing gives zero"


def turns(order=Pairs.HALVES):
    """The cosines and sines that transformers hands to its layers, for tokens ``(b, n, d_model)``."""

    def made(x):
        angles = torch.arange(x.shape[1])[:, None] * 10000.0 ** -(torch.arange(D // 2).double() / (D // 2))
        angles = angles.repeat_interleave(2, dim=-1) if order is Pairs.INTERLEAVED else angles.repeat(1, 2)
        return angles.cos()[None].to(x.dtype), angles.sin()[None].to(x.dtype)

    return made


def family(model, attention, config, order=None, mask="attention_mask", **options):
    """What the checker says of a family of transformers, computed by PyTorch's kernel."""
    library = pytest.importorskip("transformers", reason=REASON)
    module = importlib.import_module(f"transformers.models.{model}.modeling_{model}")
    sizes = {"hidden_size": H * D, "num_attention_heads": H, **options}
    config = getattr(library, config)(**sizes, attn_implementation="sdpa")
    make = getattr(module, attention)
    try:
        layer = make(config, layer_idx=0)
    except TypeError:
        layer = make(config)
    rotary = {} if order is None else {"position_embeddings": turns(order)}
    prepare = None if order is None else Rotary(10000.0, order)
    return check(adapters.transformers(layer, mask, **rotary), prepare=prepare, d_model=H * D)


GROUPED = {"num_key_value_heads": 2, "head_dim": D}
HALVES, NEIGHBOURS = {"order": Pairs.HALVES}, {"order": Pairs.INTERLEAVED}
FAMILIES = {  # the module, the layer, its configuration, options; and whether its matrices are found
    "bert": ("bert", "BertSelfAttention", "BertConfig", {}, False),
    "roberta": ("roberta", "RobertaSelfAttention", "RobertaConfig", {}, False),
    "opt": ("opt", "OPTAttention", "OPTConfig", {}, True),
    "gpt2": ("gpt2", "GPT2Attention", "GPT2Config", {}, True),
    "gpt-neox": ("gpt_neox", "GPTNeoXAttention", "GPTNeoXConfig", HALVES | {"rotary_pct": 1.0}, True),
    "llama": ("llama", "LlamaAttention", "LlamaConfig", HALVES | GROUPED, True),
    "mistral": ("mistral", "MistralAttention", "MistralConfig", HALVES | GROUPED, True),
    "qwen2": ("qwen2", "Qwen2Attention", "Qwen2Config", HALVES | GROUPED, True),
    "qwen3": ("qwen3", "Qwen3Attention", "Qwen3Config", HALVES | GROUPED, False),
    "gemma": ("gemma", "GemmaAttention", "GemmaConfig", HALVES | GROUPED, True),
    "cohere": ("cohere", "CohereAttention", "CohereConfig", NEIGHBOURS | GROUPED, True),
    "phi": ("phi", "PhiAttention", "PhiConfig", HALVES | {"partial_rotary_factor": 1.0}, True),
}


@pytest.mark.parametrize(("model", "attention", "config", "options", "known"), FAMILIES.values(), ids=FAMILIES)
def test_transformers(model, attention, config, options, known):
    report = family(model, attention, config, **options)
    assert not report.failures, report
    # its fill is the lowest finite number, so that a query that sees nothing gets a mean of all values
    assert {finding.name for finding in report.remarks} == HIDDEN | ({BLIND} if known else set())
    assert ("the output is the formula's" in report.held) == known


def keras_layer(rng):
    library = pytest.importorskip("keras", reason=REASON)
    layer = library.layers.MultiHeadAttention(H, key_dim=D, dtype="float64")
    layer(*np.zeros((3, 1, 2, H * D)))  # builds it
    for variable in layer.weights:
        variable.assign(0.3 * rng.normal(size=variable.shape))
    stored = {variable.path.split("/", 1)[1]: library.ops.convert_to_numpy(variable) for variable in layer.weights}
    return adapters.keras(layer), load(stored, "keras")


def in_jax():
    jax = pytest.importorskip("jax", reason=REASON)
    jax.config.update("jax_enable_x64", True)
    return jax


def drawn(jax, tree, rng):
    return jax.tree.map(lambda leaf: jax.numpy.asarray(0.3 * rng.normal(size=leaf.shape)), tree)


def flax_linen(rng):
    jax, linen = in_jax(), pytest.importorskip("flax.linen", reason=REASON)
    layer = linen.MultiHeadDotProductAttention(num_heads=H, param_dtype=np.float64)
    tokens = np.zeros((3, 1, 2, H * D))
    parameters = drawn(jax, layer.init(jax.random.key(0), *tokens), rng)
    return adapters.flax(lambda *x, **y: layer.apply(parameters, *x, **y)), load(parameters["params"], "flax")


def flax_nnx(rng):
    jax, nnx = in_jax(), pytest.importorskip("flax.nnx", reason=REASON)
    layer = nnx.MultiHeadAttention(H, H * D, param_dtype=np.float64, decode=False, rngs=nnx.Rngs(0))
    definition, parameters, rest = nnx.split(layer, nnx.Param, ...)
    layer = nnx.merge(definition, drawn(jax, parameters, rng), rest)
    return adapters.flax(layer), load(nnx.to_pure_dict(nnx.state(layer, nnx.Param)), "flax")


def equinox_layer(rng):
    jax, library = in_jax(), pytest.importorskip("equinox", reason=REASON)
    layer = library.nn.MultiheadAttention(H, H * D, use_query_bias=True, dtype=np.float64, key=jax.random.key(0))
    arrays, rest = library.partition(layer, library.is_array)
    layer = library.combine(drawn(jax, arrays, rng), rest)
    names = ("query_proj", "key_proj", "value_proj", "output_proj")
    stored = {name: {part: getattr(getattr(layer, name), part) for part in ("weight", "bias")} for name in names}
    return adapters.equinox(layer), load(stored, "equinox", h=H)


@pytest.mark.parametrize("make", [keras_layer, flax_linen, flax_nnx, equinox_layer])
def test_keras_flax_and_equinox(make, rng):
    layer, weights = make(rng)
    report = check(layer, weights=weights)
    assert not report.failures, report
    assert {finding.name for finding in report.remarks} <= HIDDEN | {BLIND, "a mask of integers is refused"}, report
