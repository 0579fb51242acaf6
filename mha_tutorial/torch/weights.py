"""Weights into the layer and out of it: each pair of functions reads the same description in both directions."""

from typing import TYPE_CHECKING

import torch
from einops import rearrange
from torch import Tensor, nn

from ..weights import ColumnWeights, RowWeights
from .extra_keys import ExtraKeys, extra_of
from .kernels.guard import unwrap

if TYPE_CHECKING:
    from .layer import MultiHeadAttention

STORED = {  # one matrix for each head, columns: how nn.Linear stores them all in one, (out, in)
    "q": ("h d_k d_in", "(h d_k) d_in"),
    "k": ("h d_k d_in", "(h d_k) d_in"),
    "v": ("h d_v d_in", "(h d_v) d_in"),
    "o": ("h d_model d_v", "d_model (h d_v)"),
}


@torch.no_grad()
def load(layer: "MultiHeadAttention", weights: ColumnWeights | RowWeights) -> None:
    """Copy the weights into a layer of their sizes; a bias that is missing there is missing then."""
    columns = weights.T if isinstance(weights, RowWeights) else weights
    arrays = columns.arrays()
    for name, (by_head, stored) in STORED.items():
        projection = _projection(layer, name)
        W, b = arrays[f"W_{name}"], arrays.get(f"b_{name}")
        projection.weight.copy_(torch.tensor(rearrange(W, f"{by_head} -> {stored}")))
        if b is None:
            projection.register_parameter("bias", None)
        else:
            projection.bias.copy_(torch.tensor(b.reshape(-1)))


def dump(layer: "MultiHeadAttention") -> RowWeights:
    """Copy the weights out of a layer."""
    heads = {"q": layer.h, "k": layer.h_kv, "v": layer.h_kv, "o": layer.h}
    arrays = {}
    for name, (by_head, stored) in STORED.items():
        projection = _projection(layer, name)
        arrays[f"W_{name}"] = rearrange(_array(projection.weight), f"{stored} -> {by_head}", h=heads[name])
        if projection.bias is not None:
            shape = (-1,) if name == "o" else (heads[name], -1)
            arrays[f"b_{name}"] = _array(projection.bias).reshape(shape)
    return ColumnWeights(**arrays).T


@torch.no_grad()
def load_torch(layer: "MultiHeadAttention", module: nn.MultiheadAttention) -> None:
    """Copy the weights of ``nn.MultiheadAttention`` into a layer of its sizes."""
    for name, (W, b) in _views(module).items():
        projection = _projection(layer, name)
        projection.weight.copy_(W)
        if b is not None:
            projection.bias.copy_(b)


@torch.no_grad()
def dump_torch(layer: "MultiHeadAttention") -> nn.MultiheadAttention:
    """Copy the weights of a layer into an ``nn.MultiheadAttention``; a bias that is missing becomes zero."""
    width = layer.d_model / layer.h
    extra = extra_of(layer.extra_keys)
    with_zeros = bool(extra) and not extra[-1].keys.any() and not extra[-1].values.any()
    learned = extra[:-1] if with_zeros else extra
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
    module = nn.MultiheadAttention(
        layer.d_model,
        layer.h,
        layer.dropout,
        bias=any(_projection(layer, name).bias is not None for name in STORED),
        add_bias_kv=bool(learned),
        add_zero_attn=with_zeros,
        kdim=layer.W_k.in_features,
        vdim=layer.W_v.in_features,
        batch_first=True,
        device=layer.W_o.weight.device,
        dtype=layer.W_o.weight.dtype,
    )
    for name, (W, b) in _views(module).items():
        projection = _projection(layer, name)
        W.copy_(projection.weight)
        if b is not None and projection.bias is not None:
            b.copy_(projection.bias)
    scale = layer.scale if layer.scale is not None else unwrap(layer.kernel)[1].get("scale")
    if scale is not None:
        for of_queries in _views(module)["q"]:
            if of_queries is not None:
                of_queries.mul_(scale * layer.d_k**0.5)
    if learned and module.bias_k is not None and module.bias_v is not None:
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


def _views(module: nn.MultiheadAttention) -> dict[str, tuple[Tensor, Tensor | None]]:
    """Each matrix and bias of the module as a view of where it is stored, to read or to write."""
    packed = module.in_proj_weight
    matrices = (
        (module.q_proj_weight, module.k_proj_weight, module.v_proj_weight) if packed is None else packed.chunk(3)
    )
    biases = (None,) * 3 if module.in_proj_bias is None else module.in_proj_bias.chunk(3)
    pairs = zip((*matrices, module.out_proj.weight), (*biases, module.out_proj.bias), strict=True)
    return dict(zip(STORED, pairs, strict=True))


def _projection(layer: "MultiHeadAttention", name: str) -> nn.Linear:
    return getattr(layer, f"W_{name}")


def _array(parameter: Tensor):
    exact = parameter.float() if parameter.dtype == torch.bfloat16 else parameter
    return exact.detach().cpu().numpy().copy()
