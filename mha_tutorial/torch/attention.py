"""A multi-head attention layer in PyTorch: four projections and a kernel; tokens are rows."""

import math
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from ..masks import Mask
from ..trace import Trace
from ..weights import ColumnWeights, RowWeights
from . import _checks, transfer
from .kernels.fused import fused
from .kernels.guard import Kernel
from .kernels.naive import masked_scores, softmax
from .kernels.slots import ExtraKeys


class MultiHeadAttention(nn.Module):
    """A layer that rewrites each token as a mixture of what its heads find.

    Computes what `mha_tutorial.MultiHeadAttention` computes. ``W_q``, ``W_k``, ``W_v`` and ``W_o`` are
    ``nn.Linear`` modules which hold the matrices of all heads, one below the other: ``W_q.weight`` is
    ``(heads d_k, d_model)``. Each is initialised as a matrix of its own, uniformly within
    ``±sqrt(6 / (rows + columns))`` (Glorot), and biases are zero. (``nn.MultiheadAttention`` takes the three
    projections for one matrix, and so starts with smaller entries.)

    Parameters
    ----------
    kv_heads
        The number of key-value heads, `heads` if left out, which it must divide.
    d_k
        The width of a head's queries and keys, ``d_model / heads`` if left out.
    d_v
        The width of a head's values, likewise.
    bias
        Whether all four projections add a bias.
    dropout
        How likely an attention weight is to be dropped in training.
    kernel
        What computes the heads: one of `KERNELS`, or any function of their signature.
    widths
        The widths of the tokens that ``W_q``, ``W_k`` and ``W_v`` read, each `d_model` if left out.

    Raises
    ------
    ValueError
        If a size is below 1, `heads` does not divide `d_model` and a width was left out, `kv_heads` does not
        divide `heads`, or `dropout` is not a probability.

    Examples
    --------
    >>> layer = MultiHeadAttention(d_model=12, heads=4, kv_heads=2)
    >>> layer(torch.zeros(2, 5, 12)).shape, layer.trace(torch.zeros(2, 5, 12)).attention.shape
    (torch.Size([2, 5, 12]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        d_model: int,
        heads: int,
        kv_heads: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        kernel: Kernel = fused,
        device=None,
        dtype: torch.dtype | None = None,
        *,
        widths: tuple[int, int, int] | None = None,
    ):
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        _checks.check_sizes(d_model, heads, kv_heads, d_k, d_v, dropout)
        self.d_model, self.heads, self.kv_heads = d_model, heads, kv_heads
        self.d_k = d_model // heads if d_k is None else d_k
        self.d_v = d_model // heads if d_v is None else d_v
        self.dropout, self.kernel = dropout, kernel
        width_q, width_k, width_v = (d_model,) * 3 if widths is None else widths
        factory = {"bias": bias, "device": device, "dtype": dtype}
        self.W_q = nn.Linear(width_q, heads * self.d_k, **factory)
        self.W_k = nn.Linear(width_k, kv_heads * self.d_k, **factory)
        self.W_v = nn.Linear(width_v, kv_heads * self.d_v, **factory)
        self.W_o = nn.Linear(heads * self.d_v, d_model, **factory)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw every matrix anew and set every bias to zero."""
        for projection in (self.W_q, self.W_k, self.W_v, self.W_o):
            nn.init.xavier_uniform_(projection.weight)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def forward(
        self,
        queries: Float[Tensor, "*b n d_query"],
        keys: Float[Tensor, "*b m d_key"] | None = None,
        values: Float[Tensor, "*b m d_value"] | None = None,
        *,
        visible: Bool[Tensor, "*#b_h #n #m"] | Mask | None = None,
        bias: Float[Tensor, "*#b_h #n #m"] | None = None,
    ) -> Float[Tensor, "*b n d_model"]:
        """Attend: ``layer(x)`` to itself, ``layer(x, memory)`` to a memory, ``layer(q, k, v)`` to any.

        Parameters
        ----------
        keys
            What is attended to, the queries themselves if left out.
        values
            What is averaged, the keys if left out.
        visible
            What a query may see: a structured mask, or a boolean tensor that broadcasts to the scores.
        bias
            Is added to the scores, whatever its entries: a mask of zeros and ones hides nothing here.

        Raises
        ------
        TypeError, ValueError
            If a tensor is not of the layer's type or widths, tensors do not fit each other, or `visible` is
            not boolean.
        """
        q, k, v, visible, bias = self._project(queries, keys, values, visible, bias)
        return self._merge(self._attend(q, k, v, visible, bias), queries.shape[:-2])

    def trace(self, queries, keys=None, values=None, *, visible=None, bias=None) -> Trace:
        """Attend as a call does, and return every step, in tensors.

        Scores and attention are computed beside the kernel and before dropout; heads and output are the
        kernel's. `ExtraKeys` stand behind the others.
        """
        q, k, v, visible, bias = self._project(queries, keys, values, visible, bias)
        heads = self._attend(q, k, v, visible, bias)
        kernel = self.kernel
        while isinstance(kernel, ExtraKeys):
            k, v, visible, bias = kernel.extend(q, k, v, visible, bias)
            kernel = kernel.kernel
        scores, hidden = masked_scores(q, k, visible, bias, self.d_k**-0.5)
        batch = queries.shape[:-2]
        steps = (x.reshape(*batch, *x.shape[1:]) for x in (q, k, v, scores, softmax(scores, hidden), heads))
        return Trace._make((*steps, self._merge(heads, batch)))

    def _project(self, queries: Tensor, keys: Tensor | None, values: Tensor | None, visible, bias):
        """What the kernel takes: tensors with one batch axis and one for the heads."""
        keys = queries if keys is None else keys
        values = keys if values is None else values
        _checks.check_tokens(self, queries, keys, values)
        q = _split(self.W_q(queries), self.heads)
        k = _split(self.W_k(keys), self.kv_heads)
        v = _split(self.W_v(values), self.kv_heads)
        if queries.ndim > 3:
            scores = (*queries.shape[:-2], self.heads, queries.shape[-2], keys.shape[-2])
            visible, bias = _one_batch_axis("visible", visible, scores), _one_batch_axis("bias", bias, scores)
        return q, k, v, visible, bias

    def _attend(self, q: Tensor, k: Tensor, v: Tensor, visible, bias) -> Tensor:
        dropout = {"dropout": self.dropout} if self.training and self.dropout else {}
        return self.kernel(q, k, v, visible=visible, bias=bias, **dropout)

    def _merge(self, heads: Tensor, batch: torch.Size) -> Tensor:
        """Put the heads of each token side by side and multiply by the whole ``W_o``."""
        output = self.W_o(heads.transpose(1, 2).flatten(2))
        return output.reshape(*batch, *output.shape[1:])

    @classmethod
    def from_weights(
        cls,
        weights: ColumnWeights | RowWeights,
        *,
        dropout: float = 0.0,
        kernel: Kernel = fused,
        device=None,
        dtype: torch.dtype | None = None,
    ) -> Self:
        """Make the layer that has copies of these weights, in their type unless another is given.

        Examples
        --------
        >>> import numpy as np
        >>> weights = RowWeights.random(np.random.default_rng(0), d_model=6, h=2)
        >>> layer = MultiHeadAttention.from_weights(weights)
        >>> layer.W_q.weight.shape, layer.W_q.weight.dtype
        (torch.Size([6, 6]), torch.float64)
        """
        layer = cls(
            weights.d_model,
            weights.h,
            weights.h_kv,
            weights.d_k,
            weights.d_v,
            dropout=dropout,
            kernel=kernel,
            device=device,
            dtype=torch.from_numpy(weights.W_q).dtype if dtype is None else dtype,
            widths=weights.widths,
        )
        transfer.load(layer, weights)
        return layer

    def to_weights(self) -> RowWeights:
        """Copy the weights out as NumPy arrays; those in bfloat16, which NumPy lacks, as float32.

        Examples
        --------
        >>> MultiHeadAttention(d_model=6, heads=2, d_v=5).to_weights().W_o.shape
        (2, 5, 6)
        """
        return transfer.dump(self)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, kernel: Kernel = fused) -> Self:
        """Make the layer that computes what an ``nn.MultiheadAttention`` computes, with copies of its weights.

        This layer takes ``(batch, tokens, width)``, whatever ``module.batch_first`` is. What ``add_bias_kv``
        and ``add_zero_attn`` append become `ExtraKeys` around the kernel.

        Examples
        --------
        >>> module = nn.MultiheadAttention(6, 2, batch_first=True).eval()
        >>> x = torch.ones(1, 3, 6)
        >>> torch.allclose(MultiHeadAttention.from_torch(module)(x), module(x, x, x)[0], atol=1e-6)
        True
        """
        layer = cls(
            module.embed_dim,
            module.num_heads,
            bias=module.in_proj_bias is not None,
            dropout=module.dropout,
            kernel=transfer.with_extra_keys(module, kernel),
            device=module.out_proj.weight.device,
            dtype=module.out_proj.weight.dtype,
            widths=(module.embed_dim, module.kdim, module.vdim),
        )
        transfer.load_torch(layer, module)
        return layer.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """Make the ``nn.MultiheadAttention`` that computes what this layer computes, batch first.

        Raises
        ------
        ValueError
            If there is none: it has as many key-value heads as heads, all of width ``d_model / heads``, and
            queries as wide as the output. Extra keys are not carried over.
        """
        return transfer.dump_torch(self)

    def extra_repr(self) -> str:
        kernel = getattr(self.kernel, "__name__", type(self.kernel).__name__)
        sizes = ("d_model", "heads", "kv_heads", "d_k", "d_v", "dropout")
        return ", ".join(f"{name}={getattr(self, name)}" for name in sizes) + f", kernel={kernel}"


def _split(projected: Tensor, heads: int) -> Tensor:
    """Give the heads an axis, ``(*b, n, h d)`` to ``(b, h, n, d)``; the batch axes become one."""
    *batch, n, width = projected.shape
    return projected.reshape(math.prod(batch), n, heads, width // heads).transpose(1, 2)


def _one_batch_axis(name: str, x: Tensor | Mask | None, scores: tuple[int, ...]) -> Tensor | None:
    """Make one batch axis of several, in what broadcasts to the scores."""
    *batch, _, n, m = scores
    if isinstance(x, Mask):
        x = torch.from_numpy(x.rows(n, m, tuple(batch)))
        x = x if x.ndim == 2 else x.unsqueeze(-3)
    if x is None or x.ndim <= 3:
        return x
    _checks.check_broadcast("MultiHeadAttention", name, x, scores)
    x = x[(None,) * (len(scores) - x.ndim)]
    return x.expand(*batch, *x.shape[-3:]).flatten(0, len(batch) - 1)
