"""Attention of other libraries as ``fn(q, k, v, visible=None)`` or ``fn(x, visible=None)``.

`check` takes a function of torch or NumPy and ``nn.MultiheadAttention`` as they are; for the layers of other
libraries there is one function each, and a lambda does for the rest::

    check(lambda q, k, v, visible=None: mine(q, k, v, attn_mask=~visible if visible is not None else None))
"""

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray as Array


def as_array(output: Any) -> Array:
    """An array of what any library returned.

    Examples
    --------
    >>> as_array([[1.0, 2.0]]).shape
    (1, 2)
    """
    if hasattr(output, "detach"):
        output = output.detach().cpu()
        output = output.double() if output.is_floating_point() else output
        return np.array(output.numpy())
    return np.asarray(output)


def adapter_of(function: Any) -> Any:
    """An ``nn.MultiheadAttention`` as a function of queries, keys, values and what is visible; others unchanged."""
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(function, torch.nn.MultiheadAttention):
        return function
    return torch_multi_head(function)


def torch_multi_head(layer: Any) -> Any:
    """PyTorch's own layer: True means ignore there, and sequences may be its second axis.

    A mask with axes for sequences and heads becomes one of three axes.
    """
    torch: Any = sys.modules["torch"]
    Module: type = torch.nn.Module

    class MultiHead(Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer
            self.h, self.d_model = layer.num_heads, layer.embed_dim

        def forward(self, q: Any, k: Any, v: Any, visible: Any = None) -> Any:
            if visible is not None and visible.ndim == 4:
                visible = visible.expand(-1, self.h, -1, -1).flatten(0, 1)
            ignored = None if visible is None else ~visible
            tokens = (q, k, v) if layer.batch_first else [x.transpose(0, 1) for x in (q, k, v)]
            output, _ = self.layer(*tokens, attn_mask=ignored, need_weights=False)
            return output if layer.batch_first else output.transpose(0, 1)

    return MultiHead()


def transformers(layer: Any, mask: str = "attention_mask", **options: Any) -> Any:
    """An attention module of transformers: additive masks of four axes, and no mask is a mask of zeros.

    Its causal mask is made by the model around it. Further options are handed on, such as
    ``position_embeddings=lambda x: (cos, sin)``; what is callable is called with the tokens.
    """
    torch: Any = sys.modules["torch"]
    Module: type = torch.nn.Module

    class SelfAttention(Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.config = layer, getattr(layer, "config", None)

        def forward(self, x: Any, visible: Any = None) -> Any:
            n, least = x.shape[1], torch.finfo(x.dtype).min
            if visible is None:
                visible = torch.ones(n, n, dtype=torch.bool)
            visible = visible.expand(*(len(x), 1) if visible.ndim == 2 else visible.shape[:2], n, n)
            added = torch.zeros(visible.shape, dtype=x.dtype).masked_fill(~visible, least)
            given = {name: option(x) if callable(option) else option for name, option in options.items()}
            output = self.layer(x, **{mask: added}, **given)
            return output[0] if isinstance(output, tuple) else output

    return SelfAttention()


def keras(layer: Any) -> Callable[..., Any]:
    """A ``keras.layers.MultiHeadAttention``, which takes the values before the keys."""

    def attend(q: Any, k: Any, v: Any, visible: Any = None) -> Any:
        given = None if visible is None else np.broadcast_to(visible, (len(q), *visible.shape[-2:]))
        return as_array(layer(q, v, k, attention_mask=given))

    return attend


def flax(layer: Callable[..., Any]) -> Callable[..., Any]:
    """A ``MultiHeadAttention`` of nnx, or of linen as ``lambda *x, **y: layer.apply(parameters, *x, **y)``."""

    def attend(q: Any, k: Any, v: Any, visible: Any = None) -> Any:
        given = None if visible is None else visible.reshape((-1, 1, *visible.shape[-2:]))
        return as_array(layer(q, k, v, mask=given))

    return attend


def equinox(layer: Callable[..., Any]) -> Callable[..., Any]:
    """An ``equinox.nn.MultiheadAttention``, which takes one sequence at a time."""

    def attend(q: Any, k: Any, v: Any, visible: Any = None) -> Any:
        masks = [None] * len(q) if visible is None else np.broadcast_to(visible, (len(q), *visible.shape[-2:]))
        sequences = zip(q, k, v, masks, strict=True)
        return np.stack([as_array(layer(*tokens, mask=mask)) for *tokens, mask in sequences])

    return attend
