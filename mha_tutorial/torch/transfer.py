"""Weights into the layer and out of it: each pair of functions reads the same description in both directions."""

from typing import TYPE_CHECKING

import torch
from einops import rearrange
from torch import Tensor, nn

from ..weights import ColumnWeights, RowWeights
from .kernels.guard import Kernel
from .kernels.slots import ExtraKeys

if TYPE_CHECKING:
    from .attention import MultiHeadAttention

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
    heads = {"q": layer.heads, "k": layer.kv_heads, "v": layer.kv_heads, "o": layer.heads}
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
    width = layer.d_model / layer.heads
    if (
        layer.kv_heads != layer.heads
        or (layer.d_k, layer.d_v) != (width, width)
        or layer.W_q.in_features != layer.d_model
        or isinstance(layer.kernel, ExtraKeys)
    ):
        raise ValueError(
            "nn.MultiheadAttention has kv_heads = heads, d_k = d_v = d_model / heads, queries of width d_model and "
            f"a kernel of its own, got {layer.extra_repr()}, queries of width {layer.W_q.in_features}"
        )
    module = nn.MultiheadAttention(
        layer.d_model,
        layer.heads,
        layer.dropout,
        bias=any(_projection(layer, name).bias is not None for name in STORED),
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
    return module.train(layer.training)


def with_extra_keys(module: nn.MultiheadAttention, kernel: Kernel) -> Kernel:
    """Put around a kernel the keys that the module appends: a learned one, then one of zeros."""
    shape = (module.num_heads, 1, module.head_dim)
    if module.add_zero_attn:
        zeros = module.out_proj.weight.new_zeros(shape)
        kernel = ExtraKeys(zeros, zeros.clone(), kernel)
    if module.bias_k is not None and module.bias_v is not None:  # both or neither
        key, value = (nn.Parameter(b.detach().clone().view(shape)) for b in (module.bias_k, module.bias_v))
        kernel = ExtraKeys(key, value, kernel)
    return kernel


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
