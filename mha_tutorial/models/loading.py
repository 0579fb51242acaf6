"""A model from its files: a GGUF, dequantised once, or a Hugging Face folder with safetensors."""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from einops import rearrange
from torch import Tensor

from .._extras import require
from . import config as configs
from . import fetching, tokenizer
from .config import Config
from .decoder import Decoder

FOLDER = {
    "model.embed_tokens": "embedding",
    "model.norm": "norm",
    "lm_head": "output",
    "input_layernorm": "attention_norm",
    "self_attn.q_proj": "attention.W_q",
    "self_attn.k_proj": "attention.W_k",
    "self_attn.v_proj": "attention.W_v",
    "self_attn.o_proj": "attention.W_o",
    "self_attn.q_norm": "attention.prepare.norm_q",
    "self_attn.k_norm": "attention.prepare.norm_k",
    "post_attention_layernorm": "feed_forward_norm",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up",
    "mlp.down_proj": "feed_forward.down",
}
GGUF = {
    "token_embd": "embedding",
    "output_norm": "norm",
    "output": "output",
    "attn_norm": "attention_norm",
    "attn_q": "attention.W_q",
    "attn_k": "attention.W_k",
    "attn_v": "attention.W_v",
    "attn_output": "attention.W_o",
    "ffn_norm": "feed_forward_norm",
    "ffn_gate": "feed_forward.gate",
    "ffn_up": "feed_forward.up",
    "ffn_down": "feed_forward.down",
}


def load(
    path: str | os.PathLike[str] | None = None,
    *,
    device: torch.device | str | None = None,
    dtype: torch.dtype = torch.float32,
) -> Decoder:
    """Load a model with its tokenizer.

    Parameters
    ----------
    path
        A GGUF, or a folder with ``config.json`` and ``.safetensors`` files, as ``hf download`` makes one. If it is
        left out, the model that `fetch` has fetched.
    device, dtype
        Where the weights are to be, and in which type.

    Raises
    ------
    FileNotFoundError
        If there is nothing.
    ValueError
        If it is another kind of file, corrupt or cut off, or a model that this decoder would not compute as it is
        meant: the architecture, the field or the tensor is named.
    ImportError
        If gguf, safetensors or tokenizers is not installed.

    Examples
    --------
    >>> model = load()
    >>> print(model.generate("The capital of France is", n=1))
     Paris
    """
    place = fetching.path() if path is None else Path(path)
    if place.is_dir():
        settings, tensors, words = _read_folder(place)
    elif place.is_file():
        settings, tensors, words = _read_gguf(place)
    else:
        raise FileNotFoundError(f"there is no model at {place}: {fetching.WAYS}")
    with torch.device("meta"):
        model = Decoder(settings, words)
    model.load_state_dict(_checked(place, model, tensors, device, dtype), assign=True)
    model.tie()
    return model.eval().requires_grad_(False)


def _checked(
    place: Path, model: Decoder, tensors: Iterator[tuple[str, Tensor]], device, dtype: torch.dtype
) -> dict[str, Tensor]:
    """Take each tensor that the model needs; what is missing, left over or of another shape is named."""
    wanted = {name: x.shape for name, x in model.state_dict().items()}
    found: dict[str, Tensor] = {}
    for name, x in tensors:
        if name not in wanted:
            raise ValueError(f"{place}: the tensor {name!r} is not known in a {model.config.family}")
        if x.shape != wanted[name]:
            raise ValueError(f"{place}: {name} is expected to be {tuple(wanted[name])}, and is {tuple(x.shape)}")
        if not x.isfinite().all():
            raise ValueError(f"{place} is corrupt: {name} holds what is not a finite number")
        x = x.to(device=device, dtype=dtype)
        # a CPU multiplies one token in a fifth less time where the columns of a matrix follow each other in memory
        found[name] = x.mT.contiguous().mT if x.ndim == 2 else x
    if model.config.tied and "embedding.weight" in found:
        shared = found["embedding.weight"]
        if not torch.equal(found.setdefault("output.weight", shared), shared):
            raise ValueError(f"{place}: tie_word_embeddings is true, but there is another matrix for the output")
    missing = sorted(wanted.keys() - found.keys())
    if missing:
        raise ValueError(f"{place} is incomplete: {len(missing)} tensors are missing, {missing[0]} among them")
    return found


def _renamed(name: str, names: Mapping[str, str], layer: str) -> str:
    """The name that a tensor has here; one that is unknown keeps its own."""
    stem, _, kind = name.rpartition(".")
    match = re.fullmatch(layer, stem)
    number, inner = match.groups() if match else ("", stem)
    if inner not in names:
        return name
    return f"blocks.{number}.{names[inner]}.{kind}" if match else f"{names[inner]}.{kind}"


def _read_folder(folder: Path):
    """The sizes, the tensors and the tokenizer of a Hugging Face folder."""
    file = folder / "config.json"
    if not file.is_file():
        raise FileNotFoundError(f"{folder} has no config.json: a model's folder is one as `hf download` makes")
    try:
        fields = json.loads(file.read_text("utf-8"))
    except ValueError as error:  # no JSON, or not UTF-8
        raise ValueError(f"{file} cannot be read: {error}") from error
    return configs.from_json(fields), _tensors_of_folder(folder), tokenizer.from_folder(folder)


def _tensors_of_folder(folder: Path) -> Iterator[tuple[str, Tensor]]:
    require("reading a Hugging Face folder", "safetensors")
    from safetensors import SafetensorError, safe_open

    files = sorted(folder.glob("*.safetensors"))
    if not files:
        raise FileNotFoundError(f"{folder} holds no .safetensors file; pickles (.bin) are never read")
    for path in files:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118, it is no dictionary
                    if not name.endswith("rotary_emb.inv_freq"):  # which older files keep, and is computed
                        yield _renamed(name, FOLDER, r"model\.layers\.(\d+)\.(.*)"), file.get_tensor(name)
        except SafetensorError as error:
            raise ValueError(f"{path} is corrupt or cut off: {error}") from error


def _read_gguf(path: Path):
    """The sizes, the tensors and the tokenizer of a GGUF."""
    with path.open("rb") as file:
        magic = file.read(4)
    if magic != b"GGUF":
        raise ValueError(f"{path} is neither a GGUF, which begins with b'GGUF' and not {magic!r}, nor a folder")
    require("reading a GGUF", "gguf")
    import gguf

    try:
        reader = _quick_reader(gguf.GGUFReader)(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
    except Exception as error:  # whatever it stumbles over
        raise ValueError(f"{path} is corrupt or cut off: {error}") from error
    names = {entry.name for entry in reader.tensors}
    settings = configs.from_gguf(fields, tied="output.weight" not in names)
    return settings, _tensors_of_gguf(path, reader, settings, gguf.dequantize), tokenizer.from_gguf(fields)


def _quick_reader(kind: type) -> type:
    """The library's reader, on a plain array: each of 250,000 slices of a ``memmap`` takes three times as long."""

    class Reader(kind):
        @property
        def data(self) -> np.ndarray:
            return self._bytes

        @data.setter
        def data(self, mapped: np.memmap) -> None:
            self._bytes = np.asarray(mapped)

    return Reader


def _tensors_of_gguf(
    path: Path, reader: Any, settings: Config, dequantize: Callable
) -> Iterator[tuple[str, Tensor]]:
    heads = {"attn_q.weight": settings.h, "attn_k.weight": settings.h_kv}
    for entry in reader.tensors:
        try:
            numbers = dequantize(entry.data, entry.tensor_type)
        except NotImplementedError as error:
            raise ValueError(f"{path}: {entry.name} is of the type {entry.tensor_type.name}, {error}") from error
        x = torch.from_numpy(np.require(numbers, requirements="W"))
        h = heads.get(entry.name.split(".", 2)[-1])
        if h is not None:  # the file has the rows of a rotary pair side by side, and this package in two halves
            x = rearrange(x, "(h pair two) m -> (h two pair) m", h=h, two=2)
        yield _renamed(entry.name, GGUF, r"blk\.(\d+)\.(.*)"), x
