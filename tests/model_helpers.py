"""Small random models of each family, as files, and the same in plain NumPy from the tensors of the files."""

import json
from pathlib import Path

import gguf
import numpy as np
import safetensors.numpy
from numpy import ndarray as Array

VOCABULARY, D_MODEL, H, H_KV, D_K, D_HIDDEN, LAYERS, CONTEXT = 67, 22, 6, 2, 10, 31, 3, 53
FAMILIES = {
    "llama": {"tie_word_embeddings": True},
    "llama with biases": {"attention_bias": True, "rope_theta": 300.0},
    "mistral": {"sliding_window": 5},
    "mistral without a window": {"sliding_window": None},
    "qwen2": {"use_sliding_window": False, "sliding_window": 3, "layer_types": ["full_attention"] * LAYERS},
    "qwen3": {"rope_parameters": {"rope_theta": 100.0, "rope_type": "default"}},
}


def config(name: str, **changes) -> dict:
    """The fields of a small model's ``config.json``."""
    return {
        "model_type": name.split()[0],
        "vocab_size": VOCABULARY,
        "hidden_size": D_MODEL,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": H,
        "num_key_value_heads": H_KV,
        "head_dim": D_K,
        "intermediate_size": D_HIDDEN,
        "max_position_embeddings": CONTEXT,
        "rms_norm_eps": 1e-5,
        **FAMILIES[name],
        **changes,
    }


def draw_tensors(rng: np.random.Generator, fields: dict) -> dict[str, Array]:
    """Random weights under the names that such files have."""
    family = fields["model_type"]
    shapes = {"model.embed_tokens.weight": (VOCABULARY, D_MODEL), "model.norm.weight": (D_MODEL,)}
    if not fields.get("tie_word_embeddings"):
        shapes["lm_head.weight"] = (VOCABULARY, D_MODEL)
    for i in range(LAYERS):
        shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer_shapes(fields, family).items()}
    return {
        name: (rng.normal(size=shape) * (0.4 if len(shape) == 2 else 1.0)).astype(np.float32)
        for name, shape in shapes.items()
    }


def layer_shapes(fields: dict, family: str) -> dict[str, tuple[int, ...]]:
    rows = {"q": H * D_K, "k": H_KV * D_K, "v": H_KV * D_K}
    shapes: dict[str, tuple[int, ...]] = {f"self_attn.{x}_proj.weight": (n, D_MODEL) for x, n in rows.items()}
    shapes |= {"self_attn.o_proj.weight": (D_MODEL, H * D_K)}
    shapes |= {"input_layernorm.weight": (D_MODEL,), "post_attention_layernorm.weight": (D_MODEL,)}
    shapes |= {f"mlp.{x}_proj.weight": (D_HIDDEN, D_MODEL) for x in ("gate", "up")}
    shapes |= {"mlp.down_proj.weight": (D_MODEL, D_HIDDEN)}
    if family == "qwen2" or fields.get("attention_bias"):
        shapes |= {f"self_attn.{x}_proj.bias": (n,) for x, n in rows.items()}
    if fields.get("attention_bias"):
        shapes |= {"self_attn.o_proj.bias": (D_MODEL,)}
    if family == "qwen3":
        shapes |= {f"self_attn.{x}_norm.weight": (D_K,) for x in "qk"}
    return shapes


def write_folder(folder: Path, fields: dict, tensors: dict[str, Array], shards: int = 1) -> Path:
    """Write a Hugging Face folder, its tensors in so many files."""
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(fields))
    names = list(tensors)
    for i in range(shards):
        part = {name: tensors[name] for name in names[i::shards]}
        safetensors.numpy.save_file(part, folder / f"model-{i + 1}-of-{shards}.safetensors")
    return folder


# --- the same in plain NumPy ------------------------------------------------------------------------------------


def logits_by_hand(fields: dict, tensors: dict[str, Array], ids: list[int]) -> Array:
    """What a model says of each token, (n, vocabulary), head by head in float64."""
    t = {name: x.astype(np.float64) for name, x in tensors.items()}
    x = t["model.embed_tokens.weight"][ids]
    for i in range(LAYERS):
        own = {name.removeprefix(f"model.layers.{i}."): y for name, y in t.items() if f".layers.{i}." in name}
        x = x + attention_by_hand(fields, own, normed(x, own["input_layernorm.weight"]))
        y = normed(x, own["post_attention_layernorm.weight"])
        gate = y @ own["mlp.gate_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (y @ own["mlp.up_proj.weight"].T)) @ own["mlp.down_proj.weight"].T
    output = t.get("lm_head.weight", t["model.embed_tokens.weight"])
    return normed(x, t["model.norm.weight"]) @ output.T


def attention_by_hand(fields: dict, own: dict[str, Array], x: Array) -> Array:
    n = len(x)
    q, k, v = (
        (x @ own[f"self_attn.{name}_proj.weight"].T + own.get(f"self_attn.{name}_proj.bias", 0.0)).reshape(
            n, -1, D_K
        )
        for name in "qkv"
    )
    if fields["model_type"] == "qwen3":
        q, k = normed(q, own["self_attn.q_norm.weight"]), normed(k, own["self_attn.k_norm.weight"])
    base = fields.get("rope_parameters", {}).get("rope_theta", fields.get("rope_theta", 10000.0))
    q, k = turned(q, base), turned(k, base)
    distances = np.arange(n)[:, None] - np.arange(n)
    window = fields["sliding_window"] if fields["model_type"] == "mistral" else None
    visible = (distances >= 0) & (distances < (window or n))
    heads = []
    for head in range(H):
        shared = head // (H // H_KV)
        weights = np.where(visible, np.exp(q[:, head] @ k[:, shared].T / D_K**0.5), 0.0)
        heads.append(weights / weights.sum(axis=1, keepdims=True) @ v[:, shared])
    return np.hstack(heads) @ own["self_attn.o_proj.weight"].T + own.get("self_attn.o_proj.bias", 0.0)


def normed(x: Array, weight: Array) -> Array:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5) * weight


def turned(x: Array, base: float) -> Array:
    """Rotary positions as a product of complex numbers, of the two halves of each head."""
    half = D_K // 2
    angles = np.arange(len(x))[:, None, None] * base ** (-np.arange(half) / half)
    z = (x[..., :half] + 1j * x[..., half:]) * np.exp(1j * angles)
    return np.concatenate([z.real, z.imag], axis=-1)


# --- a GGUF -------------------------------------------------------------------------------------------------------

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def write_gguf(path: Path, tensors: dict[str, Array], pre: str = "smollm", **changes) -> Path:
    """Write a small Llama as a GGUF, in which the rows of a rotary pair lie side by side."""
    writer = gguf.GGUFWriter(path, changes.pop("architecture", "llama"))
    fields = {
        "block_count": LAYERS,
        "context_length": CONTEXT,
        "embedding_length": D_MODEL,
        "feed_forward_length": D_HIDDEN,
        "attention.head_count": H,
        "attention.head_count_kv": H_KV,
        "attention.key_length": D_K,
        "attention.value_length": D_K,
        "rope.dimension_count": D_K,
    }
    for name, value in (fields | {k: v for k, v in changes.items() if isinstance(v, int)}).items():
        writer.add_uint32(f"llama.{name}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    writer.add_string("tokenizer.ggml.model", "gpt2")
    writer.add_string("tokenizer.ggml.pre", pre)
    texts = ["<|end|>", *"abcdefghijklmnopqrstuvwxyzĠ0123456789", "th", "the", "Ġthe"]
    texts += [f"<unused{i}>" for i in range(VOCABULARY - len(texts))]
    writer.add_token_list(texts)
    writer.add_token_types([3] + [1] * (VOCABULARY - 1))
    writer.add_token_merges(["t h", "th e", "Ġ the"])
    writer.add_uint32("tokenizer.ggml.eos_token_id", 0)
    for name, x in tensors.items():
        writer.add_tensor(gguf_name(name), in_pairs(name, x))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def gguf_name(name: str) -> str:
    stem, _, kind = name.rpartition(".")
    if not stem.startswith("model.layers."):
        return f"{NAMES.get(stem, stem)}.{kind}"
    _, _, number, inner = stem.split(".", 3)
    return f"blk.{number}.{NAMES[inner]}.{kind}"


def in_pairs(name: str, x: Array) -> Array:
    """Rows of queries and keys in the order of the file: first and second half of a head in turn."""
    if not name.endswith(("q_proj.weight", "k_proj.weight")):
        return x
    halves = x.reshape(-1, 2, D_K // 2, x.shape[1])
    return np.ascontiguousarray(halves.transpose(0, 2, 1, 3)).reshape(x.shape)
