"""Weights into a layer and out of it: the table of layouts says where each matrix is, here and in PyTorch."""

from collections.abc import Mapping
from dataclasses import replace
from operator import attrgetter
from typing import Any, Protocol

import numpy as np
import torch
from numpy import ndarray as Array
from torch import Tensor, nn

from .. import layouts
from ..layouts import LAYOUTS, Layout
from ..weights import ColumnWeights, RowWeights
from .extra_keys import ExtraKeys, extra_of
from .kernels.guard import unwrap

OURS = LAYOUTS["mha-tutorial"]


class Layer(Protocol):
    """What is read here of a `MultiHeadAttention`."""

    W_q: nn.Linear
    W_k: nn.Linear
    W_v: nn.Linear
    W_o: nn.Linear
    d_model: int
    d_k: int
    d_v: int
    dropout: float
    training: bool
    scale: float | None
    extra_keys: nn.ModuleList
    kernel: Any
    prepare: Any

    @property
    def h(self) -> int: ...

    @property
    def h_kv(self) -> int: ...

    def extra_repr(self) -> str: ...


def load(layer: Layer, weights: ColumnWeights | RowWeights) -> None:
    """Copy the weights into a layer of their sizes; a bias that is missing there is missing then."""
    _write(layer, OURS, layouts.dump(weights, OURS))


def dump(layer: Layer) -> RowWeights:
    """Copy the weights out of a layer."""
    return layouts.load(_read(layer, OURS), OURS, layer.h, layer.h_kv).T


def load_torch(layer: Layer, module: nn.MultiheadAttention) -> None:
    """Copy the weights of ``nn.MultiheadAttention`` into a layer of its sizes."""
    source = _layout_of(module)
    _write(layer, OURS, layouts.convert(_read(module, source), source, OURS, module.num_heads))


def dump_torch(layer: Layer) -> nn.MultiheadAttention:
    """Copy the weights of a layer into an ``nn.MultiheadAttention``; a bias that is missing becomes zero."""
    extra = extra_of(layer.extra_keys)
    with_zeros = bool(extra) and not extra[-1].keys.any() and not extra[-1].values.any()
    learned = extra[:-1] if with_zeros else extra
    _check_has_counterpart(layer, extra, learned)
    weights = dump(layer).T
    module = nn.MultiheadAttention(
        layer.d_model,
        layer.h,
        layer.dropout,
        bias=any(name.startswith("b") for name in weights.arrays()),
        add_bias_kv=bool(learned),
        add_zero_attn=with_zeros,
        kdim=layer.W_k.in_features,
        vdim=layer.W_v.in_features,
        batch_first=True,
        device=layer.W_o.weight.device,
        dtype=layer.W_o.weight.dtype,
    )
    target = _layout_of(module)
    _write(module, target, layouts.dump(_scaled(weights, layer), target, zero_biases=True))
    if learned and module.bias_k is not None and module.bias_v is not None:
        with torch.no_grad():
            module.bias_k.copy_(learned[0].keys.view_as(module.bias_k))
            module.bias_v.copy_(learned[0].values.view_as(module.bias_v))
    return module.train(layer.training)


def extra_keys_of(module: nn.MultiheadAttention) -> list[ExtraKeys]:
    """The keys and values that the module appends: a learned one, then one of zeros."""
    shape = (module.num_heads, 1, module.head_dim)
    extra = []
    if module.bias_k is not None and module.bias_v is not None:  # both or neither
        extra.append(
            ExtraKeys(*(nn.Parameter(b.detach().clone().view(shape)) for b in (module.bias_k, module.bias_v)))
        )
    if module.add_zero_attn:
        zeros = module.out_proj.weight.new_zeros(shape)
        extra.append(ExtraKeys(zeros, zeros.clone()))
    return extra


def _check_has_counterpart(layer: Layer, extra: list[ExtraKeys], learned: list[ExtraKeys]) -> None:
    """Refuse a layer that no ``nn.MultiheadAttention`` computes."""
    width = layer.d_model / layer.h
    if (
        layer.h_kv != layer.h
        or (layer.d_k, layer.d_v) != (width, width)
        or layer.W_q.in_features != layer.d_model
        or layer.prepare is not None
        or len(learned) > 1
        or any(one.keys.shape[1] != 1 for one in extra)
    ):
        raise ValueError(
            "nn.MultiheadAttention has h_kv = h, d_k = d_v = d_model / h, queries of width d_model, nothing "
            "between projection and scores, and no extra keys but a learned one and one of zeros behind it, got "
            f"{layer.extra_repr()}, queries of width {layer.W_q.in_features} and {len(extra)} sets of extra keys"
        )


def _scaled(weights: ColumnWeights, layer: Layer) -> ColumnWeights:
    """Put the scale of a layer or of its kernel, where it is not ``1/sqrt(d_k)``, into the query projection."""
    scale = layer.scale if layer.scale is not None else unwrap(layer.kernel)[1].get("scale")
    if scale is None:
        return weights
    factor = float(scale) * layer.d_k**0.5  # a plain number changes no type
    return replace(weights, W_q=weights.W_q * factor, b_q=None if weights.b_q is None else weights.b_q * factor)


def _layout_of(module: nn.MultiheadAttention) -> Layout:
    return LAYOUTS["torch-separate" if module.in_proj_weight is None else "torch"]


def _read(module: Any, layout: Layout) -> dict[str, Array]:
    """The tensors of a module under the keys of its layout; bfloat16, which NumPy lacks, as float32."""
    tensors = {tensor.key: attrgetter(tensor.key)(module) for tensor in layout.tensors}
    return {key: _array(tensor) for key, tensor in tensors.items() if tensor is not None}


@torch.no_grad()
def _write(module: Any, layout: Layout, arrays: Mapping[str, Array]) -> None:
    """Copy arrays into the tensors of a module; a bias that is not among them is removed."""
    for tensor in layout.tensors:
        owner, _, name = tensor.key.rpartition(".")
        if tensor.key in arrays:
            attrgetter(tensor.key)(module).copy_(torch.from_numpy(arrays[tensor.key]))
        elif name == "bias":
            attrgetter(owner)(module).register_parameter(name, None)


def _array(tensor: Tensor) -> Array:
    exact = tensor.float() if tensor.dtype == torch.bfloat16 else tensor
    return np.asarray(exact.detach().cpu())
