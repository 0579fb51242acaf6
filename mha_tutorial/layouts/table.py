"""The layouts: for each tensor that a library stores, its key, what it holds, and one einops pattern.

A pattern leads from the stored array to the package's, which is that of `ColumnWeights`: one matrix
for each head, ``(out, in)``. Read forwards it loads, read backwards it saves. Letters:

``h``
    heads; ``h_kv`` where keys and values may have fewer
``d``
    the features of one head; ``d_k`` and ``d_v`` where values may have others than queries and keys
``d_model``
    the features of the output; ``d_query``, ``d_key``, ``d_value`` those of the tokens that are read
``qkv``
    the three projections, where one tensor holds them all
``half two``
    the features of a head, ``d_k / 2`` times two: the pairs that a rotary embedding turns
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from .patterns import axes, letters


class Stored(NamedTuple):
    """One tensor as a library stores it.

    Parameters
    ----------
    key
        Its name, below the prefix of the layer.
    holds
        The arrays of `ColumnWeights` in it: one name, or three that the axis ``qkv`` counts.
    pattern
        From the stored array to what it holds.
    together
        None for a tensor that is always there. Others come in groups, all or none, and this is the
        name of the group.
    """

    key: str
    holds: str
    pattern: str
    together: str | None = None

    @property
    def arrays(self) -> list[str]:
        """The names of what it holds."""
        return self.holds.split()

    @property
    def stored(self) -> str:
        """The axes of the stored array."""
        return self.pattern.split(" -> ")[0]

    @property
    def held(self) -> str:
        """The axes of what it holds; those of each array, where there are three."""
        return self.pattern.split(" -> ")[1].removeprefix("qkv ")


@dataclass(frozen=True)
class Layout:
    """How one library stores one multi-head layer.

    Parameters
    ----------
    name
        The word that `load`, `dump` and the command line know it by.
    title
        The library, and its class.
    tensors
        What it stores.
    bound
        Sizes that the library does not let you choose: letter, and the product that it must be.
    ignored
        Keys that may stand beside the layer's and are no parameters of it.

    Raises
    ------
    ValueError
        If a pattern is none, or does not lead to what its tensor holds; if a matrix of `ColumnWeights`
        is nowhere or one of its arrays is in two places; or if two tensors have one key.
    """

    name: str
    title: str
    tensors: tuple[Stored, ...]
    bound: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()

    def __post_init__(self):
        where = f"layout '{self.name}':"
        for tensor in self.tensors:
            _check_tensor(f"{where} {tensor.key}", tensor)
        held = [name for tensor in self.tensors for name in tensor.arrays]
        for what, names in (("key", [tensor.key for tensor in self.tensors]), ("array", held)):
            twice = [name for name in names if names.count(name) > 1]
            if twice:
                raise ValueError(f"{where} two tensors have the {what} {twice[0]}")
        always = {name for tensor in self.tensors if tensor.together is None for name in tensor.arrays}
        homeless = [name for name in HELD if name.startswith("W") and name not in always]
        if homeless:
            raise ValueError(f"{where} no tensor that is always there holds {', '.join(homeless)}")


HELD = {  # the axes of what `ColumnWeights` holds; h may stand for h_kv, and several letters for one of features
    "W_q": "h d_k d_query",
    "W_k": "h_kv d_k d_key",
    "W_v": "h_kv d_v d_value",
    "W_o": "h d_model d_v",
    "b_q": "h d_k",
    "b_k": "h_kv d_k",
    "b_v": "h_kv d_v",
    "b_o": "d_model",
}

_LETTER = r"[a-zA-Z]\w*(?<!_)"
_AXIS = rf"(?:{_LETTER}|\({_LETTER}(?: {_LETTER})*\))"
_PATTERN = re.compile(rf"{_AXIS}(?: {_AXIS})* -> {_AXIS}(?: {_AXIS})*")


def _check_tensor(where: str, tensor: Stored) -> None:
    """Refuse a pattern that is none, or that does not lead to what the tensor holds."""
    got = f"got '{tensor.pattern}'"
    if not _PATTERN.fullmatch(tensor.pattern):
        raise ValueError(f"{where} must have letters and flat brackets on both sides of ' -> ', {got}")
    before, after = tensor.pattern.split(" -> ")
    if sorted(letters(before)) != sorted(letters(after)) or len(set(letters(after))) < len(letters(after)):
        raise ValueError(f"{where} must have the same letters on both sides, each of them once, {got}")
    if len(tensor.arrays) not in (1, 3) or not HELD.keys() >= set(tensor.arrays):
        raise ValueError(f"{where} must hold one or three of {', '.join(HELD)}, got '{tensor.holds}'")
    for name in tensor.arrays:
        wanted = HELD[name] if len(tensor.arrays) == 1 else f"qkv {HELD[name]}"
        if _roles(after) not in (_roles(wanted), _roles(wanted.replace("h_kv", "h"))):
            raise ValueError(
                f"{where} holds {name}, so that its pattern must lead to '{wanted}' or the like, {got}"
            )


def _roles(side: str) -> list[str]:
    """What each axis counts: projections, heads or features."""
    return [axis[0] if axis in (["qkv"], ["h"], ["h_kv"]) else "features" for axis in axes(side)]


FULL_WIDTH = {"d_model": "h d"}  # heads that share out the width of the model
BUFFERS = ("mask", "IGNORE", "rotary_sin", "rotary_cos")  # of TransformerLens

LAYOUTS: dict[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            "torch",
            "PyTorch nn.MultiheadAttention",
            (
                Stored("in_proj_weight", "W_q W_k W_v", "(qkv h d) d_model -> qkv h d d_model"),
                Stored("out_proj.weight", "W_o", "d_model (h d) -> h d_model d"),
                Stored("in_proj_bias", "b_q b_k b_v", "(qkv h d) -> qkv h d", "bias"),
                Stored("out_proj.bias", "b_o", "d_model -> d_model", "bias"),
            ),
            FULL_WIDTH,
        ),
        Layout(
            "torch-separate",
            "PyTorch nn.MultiheadAttention with kdim, vdim",
            (
                Stored("q_proj_weight", "W_q", "(h d) d_model -> h d d_model"),
                Stored("k_proj_weight", "W_k", "(h d) d_key -> h d d_key"),
                Stored("v_proj_weight", "W_v", "(h d) d_value -> h d d_value"),
                Stored("out_proj.weight", "W_o", "d_model (h d) -> h d_model d"),
                Stored("in_proj_bias", "b_q b_k b_v", "(qkv h d) -> qkv h d", "bias"),
                Stored("out_proj.bias", "b_o", "d_model -> d_model", "bias"),
            ),
            FULL_WIDTH,
        ),
        Layout(
            "mha-tutorial",
            "mha_tutorial.torch MultiHeadAttention",
            (
                Stored("W_q.weight", "W_q", "(h d_k) d_query -> h d_k d_query"),
                Stored("W_k.weight", "W_k", "(h_kv d_k) d_key -> h_kv d_k d_key"),
                Stored("W_v.weight", "W_v", "(h_kv d_v) d_value -> h_kv d_v d_value"),
                Stored("W_o.weight", "W_o", "d_model (h d_v) -> h d_model d_v"),
                Stored("W_q.bias", "b_q", "(h d_k) -> h d_k", "query bias"),
                Stored("W_k.bias", "b_k", "(h_kv d_k) -> h_kv d_k", "key bias"),
                Stored("W_v.bias", "b_v", "(h_kv d_v) -> h_kv d_v", "value bias"),
                Stored("W_o.bias", "b_o", "d_model -> d_model", "output bias"),
            ),
        ),
        Layout(
            "linear",
            "four PyTorch nn.Linear of any widths",
            (
                Stored("queries.weight", "W_q", "(h d_k) d_query -> h d_k d_query"),
                Stored("keys.weight", "W_k", "(h_kv d_k) d_key -> h_kv d_k d_key"),
                Stored("values.weight", "W_v", "(h_kv d_v) d_value -> h_kv d_v d_value"),
                Stored("output.weight", "W_o", "d_model (h d_v) -> h d_model d_v"),
                Stored("queries.bias", "b_q", "(h d_k) -> h d_k", "query bias"),
                Stored("keys.bias", "b_k", "(h_kv d_k) -> h_kv d_k", "key bias"),
                Stored("values.bias", "b_v", "(h_kv d_v) -> h_kv d_v", "value bias"),
                Stored("output.bias", "b_o", "d_model -> d_model", "output bias"),
            ),
        ),
        Layout(
            "bert",
            "BERT in transformers",
            (
                Stored("self.query.weight", "W_q", "(h d) d_model -> h d d_model"),
                Stored("self.key.weight", "W_k", "(h d) d_model -> h d d_model"),
                Stored("self.value.weight", "W_v", "(h d) d_model -> h d d_model"),
                Stored("output.dense.weight", "W_o", "d_model (h d) -> h d_model d"),
                Stored("self.query.bias", "b_q", "(h d) -> h d"),
                Stored("self.key.bias", "b_k", "(h d) -> h d"),
                Stored("self.value.bias", "b_v", "(h d) -> h d"),
                Stored("output.dense.bias", "b_o", "d_model -> d_model"),
            ),
            FULL_WIDTH,
            ignored=(  # of the block around the layer
                "output.LayerNorm.weight",
                "output.LayerNorm.bias",
                "output.LayerNorm.gamma",
                "output.LayerNorm.beta",
            ),
        ),
        Layout(
            "d2l",
            "Dive into Deep Learning, PyTorch",
            (
                Stored("W_q.weight", "W_q", "(h d) d_query -> h d d_query"),
                Stored("W_k.weight", "W_k", "(h d) d_key -> h d d_key"),
                Stored("W_v.weight", "W_v", "(h d) d_value -> h d d_value"),
                Stored("W_o.weight", "W_o", "d_model (h d) -> h d_model d"),
                Stored("W_q.bias", "b_q", "(h d) -> h d", "bias"),
                Stored("W_k.bias", "b_k", "(h d) -> h d", "bias"),
                Stored("W_v.bias", "b_v", "(h d) -> h d", "bias"),
                Stored("W_o.bias", "b_o", "d_model -> d_model", "bias"),
            ),
            FULL_WIDTH,
        ),
        Layout(
            "gpt2",
            "GPT-2 in transformers, Conv1D",
            (
                Stored("c_attn.weight", "W_q W_k W_v", "d_model (qkv h d) -> qkv h d d_model"),
                Stored("c_proj.weight", "W_o", "(h d) d_model -> h d_model d"),
                Stored("c_attn.bias", "b_q b_k b_v", "(qkv h d) -> qkv h d"),
                Stored("c_proj.bias", "b_o", "d_model -> d_model"),
            ),
            FULL_WIDTH,
            ignored=("bias", "masked_bias"),  # the causal mask and its fill value, in older files
        ),
        Layout(
            "nanogpt",
            "nanoGPT, the names of GPT-2 on nn.Linear",
            (
                Stored("c_attn.weight", "W_q W_k W_v", "(qkv h d) d_model -> qkv h d d_model"),
                Stored("c_proj.weight", "W_o", "d_model (h d) -> h d_model d"),
                Stored("c_attn.bias", "b_q b_k b_v", "(qkv h d) -> qkv h d", "bias"),
                Stored("c_proj.bias", "b_o", "d_model -> d_model", "bias"),
            ),
            FULL_WIDTH,
            ignored=("bias",),  # the causal mask, where PyTorch has no fused attention
        ),
        Layout(
            "neox",
            "GPT-NeoX in transformers",
            (
                Stored("query_key_value.weight", "W_q W_k W_v", "(h qkv d) d_model -> qkv h d d_model"),
                Stored("dense.weight", "W_o", "d_model (h d) -> h d_model d"),
                Stored("query_key_value.bias", "b_q b_k b_v", "(h qkv d) -> qkv h d", "bias"),
                Stored("dense.bias", "b_o", "d_model -> d_model", "bias"),
            ),
            FULL_WIDTH,
            ignored=("bias", "masked_bias", "rotary_emb.inv_freq"),
        ),
        Layout(
            "uva",
            "UvA deep learning tutorial 6, PyTorch",
            (
                Stored("qkv_proj.weight", "W_q W_k W_v", "(h qkv d) d_query -> qkv h d d_query"),
                Stored("o_proj.weight", "W_o", "d_model (h d) -> h d_model d"),
                Stored("qkv_proj.bias", "b_q b_k b_v", "(h qkv d) -> qkv h d"),
                Stored("o_proj.bias", "b_o", "d_model -> d_model"),
            ),
        ),
        Layout(
            "qkv-blocks",
            "one qkv_proj in blocks, as Phi-3 and vLLM",
            (
                Stored("qkv_proj.weight", "W_q W_k W_v", "(qkv h d) d_query -> qkv h d d_query"),
                Stored("o_proj.weight", "W_o", "d_model (h d) -> h d_model d"),
                Stored("qkv_proj.bias", "b_q b_k b_v", "(qkv h d) -> qkv h d", "qkv bias"),
                Stored("o_proj.bias", "b_o", "d_model -> d_model", "output bias"),
            ),
            ignored=("rotary_emb.inv_freq",),
        ),
        Layout(
            "keras",
            "Keras MultiHeadAttention",
            (
                Stored("query/kernel", "W_q", "d_query h d_k -> h d_k d_query"),
                Stored("key/kernel", "W_k", "d_key h d_k -> h d_k d_key"),
                Stored("value/kernel", "W_v", "d_value h d_v -> h d_v d_value"),
                Stored("attention_output/kernel", "W_o", "h d_v d_model -> h d_model d_v"),
                Stored("query/bias", "b_q", "h d_k -> h d_k", "bias"),
                Stored("key/bias", "b_k", "h d_k -> h d_k", "bias"),
                Stored("value/bias", "b_v", "h d_v -> h d_v", "bias"),
                Stored("attention_output/bias", "b_o", "d_model -> d_model", "bias"),
            ),
        ),
        Layout(
            "flax",
            "Flax nnx and linen MultiHeadDotProductAttention",
            (
                Stored("query.kernel", "W_q", "d_query h d -> h d d_query"),
                Stored("key.kernel", "W_k", "d_key h d -> h d d_key"),
                Stored("value.kernel", "W_v", "d_value h d -> h d d_value"),
                Stored("out.kernel", "W_o", "h d d_model -> h d_model d"),
                Stored("query.bias", "b_q", "h d -> h d", "bias"),
                Stored("key.bias", "b_k", "h d -> h d", "bias"),
                Stored("value.bias", "b_v", "h d -> h d", "bias"),
                Stored("out.bias", "b_o", "d_model -> d_model", "bias"),
            ),
        ),
        Layout(
            "equinox",
            "Equinox MultiheadAttention",
            (
                Stored("query_proj.weight", "W_q", "(h d_k) d_query -> h d_k d_query"),
                Stored("key_proj.weight", "W_k", "(h d_k) d_key -> h d_k d_key"),
                Stored("value_proj.weight", "W_v", "(h d_v) d_value -> h d_v d_value"),
                Stored("output_proj.weight", "W_o", "d_model (h d_v) -> h d_model d_v"),
                Stored("query_proj.bias", "b_q", "(h d_k) -> h d_k", "query bias"),
                Stored("key_proj.bias", "b_k", "(h d_k) -> h d_k", "key bias"),
                Stored("value_proj.bias", "b_v", "(h d_v) -> h d_v", "value bias"),
                Stored("output_proj.bias", "b_o", "d_model -> d_model", "output bias"),
            ),
        ),
        Layout(
            "transformer-lens",
            "TransformerLens",
            (
                Stored("W_Q", "W_q", "h d_model d -> h d d_model"),
                Stored("W_K", "W_k", "h d_model d -> h d d_model"),
                Stored("W_V", "W_v", "h d_model d -> h d d_model"),
                Stored("W_O", "W_o", "h d d_model -> h d_model d"),
                Stored("b_Q", "b_q", "h d -> h d"),
                Stored("b_K", "b_k", "h d -> h d"),
                Stored("b_V", "b_v", "h d -> h d"),
                Stored("b_O", "b_o", "d_model -> d_model"),
            ),
            ignored=BUFFERS,
        ),
        Layout(
            "transformer-lens-groups",
            "TransformerLens, heads that share keys",
            (
                Stored("W_Q", "W_q", "h d_model d -> h d d_model"),
                Stored("_W_K", "W_k", "h_kv d_model d -> h_kv d d_model"),
                Stored("_W_V", "W_v", "h_kv d_model d -> h_kv d d_model"),
                Stored("W_O", "W_o", "h d d_model -> h d_model d"),
                Stored("b_Q", "b_q", "h d -> h d"),
                Stored("_b_K", "b_k", "h_kv d -> h_kv d"),
                Stored("_b_V", "b_v", "h_kv d -> h_kv d"),
                Stored("b_O", "b_o", "d_model -> d_model"),
            ),
            ignored=BUFFERS,
        ),
        Layout(
            "llama",  # rotary pairs (i, i + d_k/2), in a head's rows as in the package's
            "Llama in transformers",
            (
                Stored("q_proj.weight", "W_q", "(h two half) d_model -> h (two half) d_model"),
                Stored("k_proj.weight", "W_k", "(h_kv two half) d_model -> h_kv (two half) d_model"),
                Stored("v_proj.weight", "W_v", "(h_kv d_v) d_model -> h_kv d_v d_model"),
                Stored("o_proj.weight", "W_o", "d_model (h d_v) -> h d_model d_v"),
                Stored("q_proj.bias", "b_q", "(h two half) -> h (two half)", "qkv bias"),
                Stored("k_proj.bias", "b_k", "(h_kv two half) -> h_kv (two half)", "qkv bias"),
                Stored("v_proj.bias", "b_v", "(h_kv d_v) -> h_kv d_v", "qkv bias"),
                Stored("o_proj.bias", "b_o", "d_model -> d_model", "output bias"),
            ),
            {"d_v": "two half"},
            ignored=("rotary_emb.inv_freq",),
        ),
        Layout(
            "llama-pairs",  # rotary pairs (2i, 2i + 1): `half` counts them, `two` walks through one
            "Llama as Meta published it",
            (
                Stored("wq.weight", "W_q", "(h half two) d_model -> h (two half) d_model"),
                Stored("wk.weight", "W_k", "(h_kv half two) d_model -> h_kv (two half) d_model"),
                Stored("wv.weight", "W_v", "(h_kv d_v) d_model -> h_kv d_v d_model"),
                Stored("wo.weight", "W_o", "d_model (h d_v) -> h d_model d_v"),
                # Meta's models have no biases; those of others are reordered like their matrices
                Stored("wq.bias", "b_q", "(h half two) -> h (two half)", "qkv bias"),
                Stored("wk.bias", "b_k", "(h_kv half two) -> h_kv (two half)", "qkv bias"),
                Stored("wv.bias", "b_v", "(h_kv d_v) -> h_kv d_v", "qkv bias"),
                Stored("wo.bias", "b_o", "d_model -> d_model", "output bias"),
            ),
            {"d_v": "two half"},
            ignored=("inner_attention.rope.freqs",),
        ),
        Layout(
            "columns",
            "mha_tutorial ColumnWeights",
            (
                Stored("W_q", "W_q", "h d_k d_query -> h d_k d_query"),
                Stored("W_k", "W_k", "h_kv d_k d_key -> h_kv d_k d_key"),
                Stored("W_v", "W_v", "h_kv d_v d_value -> h_kv d_v d_value"),
                Stored("W_o", "W_o", "h d_model d_v -> h d_model d_v"),
                Stored("b_q", "b_q", "h d_k -> h d_k", "query bias"),
                Stored("b_k", "b_k", "h_kv d_k -> h_kv d_k", "key bias"),
                Stored("b_v", "b_v", "h_kv d_v -> h_kv d_v", "value bias"),
                Stored("b_o", "b_o", "d_model -> d_model", "output bias"),
            ),
        ),
    )
}


class Entry(NamedTuple):
    """One line of the atlas: a tensor, its axes in words, and the side on which its matrix multiplies."""

    layout: str
    framework: str
    tensor: str
    shape: str
    pattern: str
    product: str


_WORDS = {
    "qkv": "q, k, v",
    "h": "heads",
    "h_kv": "key-value heads",
    "d": "features",
    "d_k": "features",
    "d_v": "features",
    "half": "pairs",
    "two": "two",
}


def atlas(layouts: Mapping[str, Layout] = LAYOUTS) -> list[Entry]:
    """List every stored tensor of every layout, for people to read.

    In the words for a shape, ``×`` stands between two axes, and within one axis ``›`` leads from
    what changes slowest to what changes fastest. The product tells the convention: ``x @ W`` for a
    matrix stored ``(in, out)``, ``W x`` for one stored ``(out, in)``.

    Examples
    --------
    >>> atlas()[0].shape, atlas()[0].product
    ('q, k, v › heads › features × d_model', 'W x')
    """
    return [
        Entry(layout.name, layout.title, tensor.key, _in_words(tensor.stored), tensor.pattern, _product(tensor))
        for layout in layouts.values()
        for tensor in layout.tensors
    ]


def _in_words(side: str) -> str:
    return " × ".join(" › ".join(_WORDS.get(letter, letter) for letter in axis) for axis in axes(side))


def _product(tensor: Stored) -> str:
    if tensor.holds.startswith("b"):
        return "+ b"
    _, out, in_ = (axis[0] for axis in axes(tensor.held))
    flat = [letter for axis in axes(tensor.stored) for letter in axis]
    return "W x" if flat.index(out) < flat.index(in_) else "x @ W"
