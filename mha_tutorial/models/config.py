"""The sizes and rules of a model, from the files that hold it; what would change the result is refused by name."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

FAMILIES = ("llama", "mistral", "qwen2", "qwen3")


@dataclass(frozen=True)
class Config:
    """What a decoder of the Llama family is built from.

    Attributes
    ----------
    family
        One of `FAMILIES`; SmolLM is a Llama.
    vocabulary, layers, context
        Tokens that are known, blocks, and tokens that a text may have.
    d_model, h, h_kv, d_k
        Widths and heads, as the attention layer calls them.
    d_hidden
        The width between the matrices of the feed-forward part.
    base, eps
        Of the rotary positions, and what the normalisation adds to a mean square.
    window
        How many tokens a token sees, itself included; None for all before it.
    bias, bias_o
        Whether queries, keys and values have a bias, and whether the output of the heads has one.
    norm_heads
        Whether queries and keys are normalised, each head's by itself.
    tied
        Whether one matrix reads tokens and says which come next.

    Examples
    --------
    >>> smollm2 = Config("llama", 49152, 30, 8192, 576, 9, 3, 64, 1536, 100000.0, 1e-5)
    >>> smollm2.h // smollm2.h_kv
    3
    """

    family: str
    vocabulary: int
    layers: int
    context: int
    d_model: int
    h: int
    h_kv: int
    d_k: int
    d_hidden: int
    base: float
    eps: float
    window: int | None = None
    bias: bool = False
    bias_o: bool = False
    norm_heads: bool = False
    tied: bool = False

    def check_head(self, layer: int, head: int) -> None:
        """Refuse a head that a model of these sizes has not.

        Raises
        ------
        ValueError
            If there is no such layer, or it has no such head.
        """
        if not (0 <= layer < self.layers and 0 <= head < self.h):
            raise ValueError(
                f"there is no head ({layer}, {head}): layers are 0 to {self.layers - 1}, heads 0 to {self.h - 1}"
            )


ONLY = {  # fields of config.json that we know in one value alone
    "add_cross_attention": False,
    "hidden_act": "silu",
    "is_encoder_decoder": False,
    "mlp_bias": False,
    "partial_rotary_factor": 1.0,
    "quantization_config": None,
    "rope_interleaved": False,
    "rope_scaling": None,
    "use_sliding_window": False,
}
READ = {
    "architectures",
    "attention_bias",
    "head_dim",
    "hidden_size",
    "intermediate_size",
    "layer_types",
    "max_position_embeddings",
    "model_type",
    "num_attention_heads",
    "num_hidden_layers",
    "num_key_value_heads",
    "rms_norm_eps",
    "rope_parameters",
    "rope_theta",
    "sliding_window",
    "tie_word_embeddings",
    "vocab_size",
}
WITHOUT_EFFECT = {  # on the logits of a trained model
    "_name_or_path",
    "attention_dropout",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "is_llama_config",
    "label2id",
    "max_window_layers",  # is about `use_sliding_window`
    "output_attentions",
    "output_hidden_states",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "return_dict",
    "torch_dtype",
    "transformers.js_config",
    "transformers_version",
    "use_cache",
}


def from_json(fields: Mapping[str, Any]) -> Config:
    """Read what a Hugging Face ``config.json`` says.

    Raises
    ------
    ValueError
        If the architecture or a field is unknown, a field has a value of which this decoder does not know what it
        does, or one is missing.

    Examples
    --------
    >>> from_json({"model_type": "gpt2"})
    Traceback (most recent call last):
    ValueError: config.json: the architecture 'gpt2' is none of llama, mistral, qwen2, qwen3
    """
    family = fields.get("model_type")
    if family not in FAMILIES:
        raise ValueError(f"config.json: the architecture {family!r} is none of {', '.join(FAMILIES)}")
    _refuse_unknown(fields, family)
    heads = _needed(fields, "num_attention_heads")
    d_model = _needed(fields, "hidden_size")
    bias = bool(fields.get("attention_bias", False))
    window = fields.get("sliding_window", 4096) if family == "mistral" else None  # the library's own default
    return Config(
        family,
        vocabulary=_needed(fields, "vocab_size"),
        layers=_needed(fields, "num_hidden_layers"),
        context=_needed(fields, "max_position_embeddings"),
        d_model=d_model,
        h=heads,
        h_kv=_needed(fields, "num_key_value_heads", heads if family == "llama" else None),
        d_k=_needed(fields, "head_dim", None if family == "qwen3" else d_model // heads),
        d_hidden=_needed(fields, "intermediate_size"),
        base=_base(fields),
        eps=_needed(fields, "rms_norm_eps"),
        window=window,
        bias=bias or family == "qwen2",
        bias_o=bias,
        norm_heads=family == "qwen3",
        tied=bool(fields.get("tie_word_embeddings", False)),
    )


def _needed(fields: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """A field, or what the library takes where it is missing, if that follows from the others."""
    value = fields.get(name)
    if value is None and default is None:
        raise ValueError(f"config.json: the field {name!r} is missing")
    return default if value is None else value


def _refuse_unknown(fields: Mapping[str, Any], family: str) -> None:
    for name, value in fields.items():
        if name in ONLY and value != ONLY[name]:
            raise ValueError(f"config.json: {name} = {value!r} is not known here, only {ONLY[name]!r}")
        if name not in ONLY.keys() | READ | WITHOUT_EFFECT:
            raise ValueError(
                f"config.json: the field {name!r} = {value!r} is not known here, and might change the result"
            )
    kinds = set(fields.get("layer_types") or [])
    if not kinds <= {"sliding_attention" if family == "mistral" else "full_attention"}:
        raise ValueError(f"config.json: layer_types of {', '.join(sorted(kinds))} are not known in a {family}")
    if fields.get("attention_bias") and family in ("mistral", "qwen2"):
        raise ValueError(f"config.json: attention_bias = {fields['attention_bias']!r} is not known in a {family}")


def _base(fields: Mapping[str, Any]) -> float:
    """The base of the rotary positions, which newer files keep in a mapping."""
    rotary = dict(fields.get("rope_parameters") or {})
    base = rotary.pop("rope_theta", fields.get("rope_theta", 10000.0))
    if rotary.pop("rope_type", "default") != "default" or rotary:
        raise ValueError(f"config.json: rope_parameters = {fields['rope_parameters']!r} are not known here")
    return float(base)


def from_gguf(fields: Mapping[str, Any], tied: bool = True) -> Config:
    """Read what the metadata of a GGUF say; whether one matrix is `tied` only its tensors tell.

    Raises
    ------
    ValueError
        If the architecture is another, a field is missing, or one is unknown that might change the result.

    Examples
    --------
    >>> from_gguf({"general.architecture": "gpt2"})
    Traceback (most recent call last):
    ValueError: GGUF: the architecture 'gpt2' is not known here, only 'llama'; a Hugging Face folder may do
    """
    family = fields.get("general.architecture")
    if family != "llama":
        raise ValueError(
            f"GGUF: the architecture {family!r} is not known here, only 'llama'; a Hugging Face folder may do"
        )
    own = {name.removeprefix("llama."): value for name, value in fields.items() if name.startswith("llama.")}
    try:
        d_model, h = own.pop("embedding_length"), own.pop("attention.head_count")
        config = Config(
            family,
            vocabulary=len(fields["tokenizer.ggml.tokens"]),
            layers=own.pop("block_count"),
            context=own.pop("context_length"),
            d_model=d_model,
            h=h,
            h_kv=own.pop("attention.head_count_kv", h),
            d_k=own.pop("attention.key_length", d_model // h),
            d_hidden=own.pop("feed_forward_length"),
            base=float(own.pop("rope.freq_base", 10000.0)),
            eps=float(own.pop("attention.layer_norm_rms_epsilon")),
            tied=tied,
        )
    except KeyError as error:
        raise ValueError(f"GGUF: the field {error} is missing") from None
    for name, only in {
        "attention.value_length": config.d_k,
        "rope.dimension_count": config.d_k,
        "vocab_size": config.vocabulary,
    }.items():
        if own.pop(name, only) != only:
            raise ValueError(f"GGUF: llama.{name} = {fields[f'llama.{name}']!r} is not known here, only {only!r}")
    if own:
        name = min(own)
        raise ValueError(
            f"GGUF: the field 'llama.{name}' = {own[name]!r} might change the result, and is not known"
        )
    return config
