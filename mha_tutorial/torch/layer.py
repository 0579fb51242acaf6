"""A multi-head attention layer in PyTorch: four projections and a kernel; tokens are rows."""

import math
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, Self

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from ..masks import Mask
from ..trace import Trace
from ..weights import ColumnWeights, RowWeights
from . import _checks
from . import weights as stored
from .cache import Chunk, KVCache
from .extra_keys import ExtraKeys, as_modules, extra_of
from .kernels import KERNELS
from .kernels.common import Kernel, sums
from .kernels.fused import fused
from .kernels.guard import unwrap
from .kernels.naive import masked_scores, softmax

Positions = Int[Tensor, "*#b n"] | tuple[Int[Tensor, "*#b n"], Int[Tensor, "*#b m"]]
Prepare = Callable[[Tensor, Tensor, Positions], tuple[Tensor, Tensor]]  # q (b, h, n, d_k), k (b, h_kv, m, d_k)


class MultiHeadAttention(nn.Module):
    """A layer that rewrites each token as a mixture of what its heads find.

    Computes what `mha_tutorial.MultiHeadAttention` computes. ``W_q``, ``W_k``, ``W_v`` and ``W_o`` are
    ``nn.Linear`` modules which hold the matrices of all heads, one below the other: ``W_q.weight`` is
    ``(h d_k, d_model)``. Each is initialised as a matrix of its own, uniformly within
    ``±sqrt(6 / (rows + columns))`` (Glorot), and biases are zero. (``nn.MultiheadAttention`` takes the three
    projections for one matrix, and so starts with smaller entries.) The number of heads is read off the
    projections, so a layer whose projections are cut to some of its heads is a layer.

    **Masked positions** may hold anything in eager mode on a CPU: neither the output nor a gradient depends on
    them. In self-attention a token that is not finite shows in every query that may see it. What other devices and
    compiled code promise depends on the kernel: see `fused`, which is the default, and `guarded`.

    Parameters
    ----------
    h
        The number of heads.
    h_kv
        The number of key-value heads, `h` if left out, which it must divide.
    d_k
        The width of a head's queries and keys, ``d_model / h`` if left out.
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
    scale
        The factor between inner product and score, any finite number. If left out the kernel takes its own,
        ``1/sqrt(d_k)``.
    prepare
        What happens to queries and keys between projection and scores: ``prepare(q, k, positions) -> (q, k)``, such
        as rotary positions or a normalisation. `positions` is one tensor in self-attention, and a pair otherwise.
    extra_keys
        Keys and values of the layer's own, which every query sees: `ExtraKeys`, a pair, or a list of these.

    Raises
    ------
    TypeError
        If `kernel` or `prepare` cannot be called, or `extra_keys` is of another kind.
    ValueError
        If a size is below 1, `h` does not divide `d_model` and a width was left out, `h_kv` does not divide `h`,
        `dropout` is not a probability, `scale` is not finite, or extra keys do not fit.

    Examples
    --------
    >>> layer = MultiHeadAttention(d_model=12, h=4, h_kv=2)
    >>> layer(torch.zeros(2, 5, 12)).shape, layer.trace(torch.zeros(2, 5, 12)).attention.shape
    (torch.Size([2, 5, 12]), torch.Size([2, 4, 5, 5]))
    """

    def __init__(
        self,
        d_model: int,
        h: int,
        h_kv: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        kernel: Kernel = fused,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        *,
        widths: tuple[int, int, int] | None = None,
        scale: float | None = None,
        prepare: Prepare | None = None,
        extra_keys: ExtraKeys | tuple[Tensor, Tensor] | list[ExtraKeys] | list[tuple[Tensor, Tensor]] | None = None,
    ):
        super().__init__()
        h_kv = h if h_kv is None else h_kv
        _checks.check_sizes(d_model, h, h_kv, d_k, d_v, dropout)
        if prepare is not None:
            _checks.check_function("prepare", prepare, "(q, k, positions) -> (q, k)")
        self.d_model = d_model
        self.d_k = d_model // h if d_k is None else d_k
        self.d_v = d_model // h if d_v is None else d_v
        self.dropout, self.kernel, self.prepare = dropout, kernel, prepare
        self.scale = None if scale is None else _checks.check_scale("MultiHeadAttention", scale)
        width_q, width_k, width_v = (d_model,) * 3 if widths is None else widths
        factory: dict[str, Any] = {"bias": bias, "device": device, "dtype": dtype}
        self.W_q = nn.Linear(width_q, h * self.d_k, **factory)
        self.W_k = nn.Linear(width_k, h_kv * self.d_k, **factory)
        self.W_v = nn.Linear(width_v, h_kv * self.d_v, **factory)
        self.W_o = nn.Linear(h * self.d_v, d_model, **factory)
        self.extra_keys = as_modules(extra_keys)
        for extra in extra_of(self.extra_keys):
            extra.check_fits(h_kv, self.d_k, self.d_v)
        self.reset_parameters()

    def __setattr__(self, name: str, value) -> None:
        if name == "kernel":
            if isinstance(value, ExtraKeys):
                raise TypeError("ExtraKeys are no kernel but part of the layer: pass them as extra_keys=")
            _checks.check_function("kernel", value, "such as fused, of the signature of KERNELS", KERNELS)
        super().__setattr__(name, value)

    @property
    def h(self) -> int:
        """The number of heads, as many as the query projection makes."""
        return self.W_q.weight.shape[0] // self.d_k

    @property
    def h_kv(self) -> int:
        """The number of key-value heads, as many as the key projection makes."""
        return self.W_k.weight.shape[0] // self.d_k

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
        positions: Positions | None = None,
        cache: KVCache | None = None,
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
            Is added to the scores, in its own precision, whatever its entries: a mask of zeros and ones hides
            nothing here. Minus infinity hides.
        positions
            What `prepare` is told of the tokens: one integer for each, ``(n,)`` or ``(*b, n)``, the place in the
            sequence if left out. In cross-attention a pair, of the queries and of the keys.
        cache
            What the layer has read of the same texts, which these tokens continue. They are stored, see themselves
            and what came before, and no gradient is recorded: see `KVCache`.

        Raises
        ------
        TypeError, ValueError
            If a tensor is not of the layer's type or widths, tensors do not fit each other, `visible` is not
            boolean, `prepare` returns something else than it was given, or the cache is of other sizes or full.
        """
        tokens = queries, keys, values
        with nullcontext() if cache is None else torch.no_grad():
            *attended, chunk = self._project(*tokens, visible, bias, positions, cache)
            output = self._merge(self._attend(*attended), queries.shape[:-2])
        if cache is not None:
            cache.advance(chunk)
        return output

    def trace(
        self,
        queries: Float[Tensor, "*b n d_query"],
        keys: Float[Tensor, "*b m d_key"] | None = None,
        values: Float[Tensor, "*b m d_value"] | None = None,
        *,
        visible: Bool[Tensor, "*#b_h #n #m"] | Mask | None = None,
        bias: Float[Tensor, "*#b_h #n #m"] | None = None,
        positions: Positions | None = None,
        cache: KVCache | None = None,
    ) -> Trace:
        """Attend as a call does, and return every step, in tensors; extra keys stand behind the others.

        Heads and output are the kernel's, queries and keys what `prepare` made of them. Scores and attention are
        computed beside the kernel, in float32 or wider and before dropout, with the scale that is the kernel's or
        bound to it by ``functools.partial``. Of a kernel that is not of this package nobody knows what it does to a
        score: its attention is found by giving it an identity for values, and its scores, each up to a constant for
        the query, as the logarithms of that. With a cache, keys and values are all that may be seen of it, in the
        order of its slots.
        """
        with nullcontext() if cache is None else torch.no_grad():
            q, k, v, visible, bias, chunk = self._project(queries, keys, values, visible, bias, positions, cache)
            heads = self._attend(q, k, v, visible, bias)
            scores, attention = self._scores_and_attention(q, k, v, visible, bias)
            output = self._merge(heads, queries.shape[:-2])
        if cache is not None:
            cache.advance(chunk)
            k, v = k.clone(), v.clone()  # the slots will be written again
        batch = queries.shape[:-2]
        steps = (x.reshape(*batch, *x.shape[1:]) for x in (q, k, v, scores, attention, heads))
        return Trace._make((*steps, output))

    def _scores_and_attention(self, q: Tensor, k: Tensor, v: Tensor, visible, bias) -> tuple[Tensor, Tensor]:
        """What the kernel keeps to itself: computed beside one of this package, found out from another."""
        known, bound = unwrap(self.kernel)
        if known is None:
            identity = torch.eye(k.shape[2], dtype=v.dtype, device=v.device).expand(*k.shape[:2], -1, -1)
            attention = self._attend(q, k, identity, visible, bias, dropout=0.0).to(sums(q, bias))
            scores = attention.log()
        else:
            scale = bound.get("scale") if self.scale is None else self.scale
            scores, hidden = masked_scores(q, k, visible, bias, self.d_k**-0.5 if scale is None else scale)
            attention = softmax(scores, hidden)
        return scores, attention

    def _project(
        self,
        queries: Tensor,
        keys: Tensor | None,
        values: Tensor | None,
        visible,
        bias,
        positions,
        cache: KVCache | None,
    ):
        """What the kernel takes, with axes for batch and heads; and what is new."""
        if cache is not None:
            _checks.check_cached(cache, KVCache, queries, keys, values)
        keys = queries if keys is None else keys
        values = keys if values is None else values
        W_q, W_k, W_v = self.W_q, self.W_k, self.W_v  # a lookup each
        _checks.check_tokens((W_q, W_k, W_v), queries, keys, values)
        q, k = _split(W_q(queries), self.d_k), _split(W_k(keys), self.d_k)
        v = _split(W_v(values), self.d_v)
        chunk = None
        if cache is not None:
            chunk, bias = _begin(cache, queries, q, k, v, visible, bias)
            if positions is None and self.prepare is not None:
                positions = _continued(chunk, queries)
        if self.prepare is not None or positions is not None:
            q, k = self._prepared(q, k, queries, keys, positions)
        if cache is not None and chunk is not None:
            k, v = cache.write(chunk, k, v)
            visible = cache.visible(chunk)
            bias = None if bias is None else cache.of_slots(bias)
        elif queries.ndim > 3:
            scores = (*queries.shape[:-2], q.shape[1], q.shape[2], k.shape[2])
            visible = _one_batch_axis("visible", visible, scores)
            bias = _one_batch_axis("bias", bias, scores)
        for extra in extra_of(self.extra_keys):
            if visible is not None and not isinstance(visible, Mask):
                scores = (*q.shape[:3], k.shape[2])
                _checks.check_visible("MultiHeadAttention", visible, scores)
            k, v, visible, bias = extra.extend(q, k, v, visible, bias)
        return q, k, v, visible, bias, chunk

    def _prepared(self, q: Tensor, k: Tensor, queries: Tensor, keys: Tensor, positions) -> tuple[Tensor, Tensor]:
        positions = _read_positions(positions, queries, keys, q.device)
        if self.prepare is None:  # given positions are checked all the same
            return q, k
        made = self.prepare(q, k, positions)
        _checks.check_prepared(made, q, k)
        return made

    def _attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        visible,
        bias,
        dropout: float | None = None,
    ) -> Tensor:
        options = {}
        if self.scale is not None:
            options["scale"] = self.scale
        if dropout is None and self.training and self.dropout:
            options["dropout"] = self.dropout
        return self.kernel(q, k, v, visible=visible, bias=bias, **options)

    def _merge(self, heads: Tensor, batch: torch.Size) -> Tensor:
        """Put the heads of each token side by side; multiply by the whole ``W_o``."""
        output = self.W_o(heads.transpose(1, 2).flatten(2))
        return output if len(batch) == 1 else output.reshape(*batch, *output.shape[1:])

    @classmethod
    def from_weights(
        cls,
        weights: ColumnWeights | RowWeights,
        *,
        dropout: float = 0.0,
        kernel: Kernel = fused,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        scale: float | None = None,
        prepare: Prepare | None = None,
        extra_keys: ExtraKeys | tuple[Tensor, Tensor] | list[ExtraKeys] | list[tuple[Tensor, Tensor]] | None = None,
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
            scale=scale,
            prepare=prepare,
            extra_keys=extra_keys,
        )
        stored.load(layer, weights)
        return layer

    def to_weights(self) -> RowWeights:
        """Copy the weights out as NumPy arrays; those in bfloat16, which NumPy lacks, as float32.

        Examples
        --------
        >>> MultiHeadAttention(d_model=6, h=2, d_v=5).to_weights().W_o.shape
        (2, 5, 6)
        """
        return stored.dump(self)

    @classmethod
    def from_torch(cls, module: nn.MultiheadAttention, kernel: Kernel = fused) -> Self:
        """Make the layer that computes what an ``nn.MultiheadAttention`` computes, with copies of its weights.

        This layer takes ``(batch, tokens, width)``, whatever ``module.batch_first`` is. What ``add_bias_kv``
        and ``add_zero_attn`` append become `ExtraKeys` of the layer.

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
            kernel=kernel,
            device=module.out_proj.weight.device,
            dtype=module.out_proj.weight.dtype,
            widths=(module.embed_dim, module.kdim, module.vdim),
            extra_keys=stored.extra_keys_of(module),
        )
        stored.load_torch(layer, module)
        return layer.train(module.training)

    def to_torch(self) -> nn.MultiheadAttention:
        """Make the ``nn.MultiheadAttention`` that computes what this layer computes, batch first.

        A scale of the layer, or one bound to its kernel by ``functools.partial``, goes into the query projection.
        What another function around the kernel does cannot be known, and is not carried over.

        Raises
        ------
        ValueError
            If there is none: it has as many key-value heads as heads, all of width ``d_model / h``, queries as wide
            as the output, nothing between projection and scores, and no extra keys but a learned one and a zero.
        """
        return stored.dump_torch(self)

    def extra_repr(self) -> str:
        sizes = {name: getattr(self, name) for name in ("d_model", "h", "h_kv", "d_k", "d_v", "dropout")}
        if self.scale is not None:
            sizes["scale"] = self.scale
        for name in ("kernel", "prepare"):
            function = getattr(self, name)
            if function is not None:
                sizes[name] = getattr(function, "__name__", type(function).__name__)
        return ", ".join(f"{name}={size}" for name, size in sizes.items())


def _split(projected: Tensor, width: int) -> Tensor:
    """Give the heads an axis, ``(*b, n, h d)`` to ``(b, h, n, d)``; the batch axes become one."""
    *batch, n, together = projected.shape
    b = batch[0] if len(batch) == 1 else math.prod(batch)
    return projected.reshape(b, n, together // width, width).transpose(1, 2)


def _begin(
    cache: KVCache, queries: Tensor, q: Tensor, k: Tensor, v: Tensor, visible, bias
) -> tuple[Chunk, Tensor | None]:
    """Check what a pass with a cache was given, before anything is written, and place its tokens."""
    _checks.check_fits_cache(cache, queries, k, v)
    scores = (*queries.shape[:-2], q.shape[1], q.shape[2], cache.stored + q.shape[2])
    if visible is not None and not isinstance(visible, Mask):
        visible = _one_batch_axis("visible", visible, scores) if queries.ndim > 3 else visible
        _checks.check_visible("MultiHeadAttention", visible, (q.shape[0], *scores[-3:]))
    if bias is not None:
        bias = _one_batch_axis("bias", bias, scores) if queries.ndim > 3 else bias
        _checks.check_bias("MultiHeadAttention", bias, (q.shape[0], *scores[-3:]))
    return cache.begin(queries.shape[:-1], visible), bias


def _continued(chunk: Chunk, queries: Tensor) -> Tensor:
    """The positions of new tokens, with the batch axes of the queries."""
    return chunk.positions if chunk.positions.ndim == 1 else chunk.positions.reshape(queries.shape[:-1])


def _read_positions(positions, queries: Tensor, keys: Tensor, device: torch.device) -> Positions:
    """What `prepare` is told: the positions given, with one batch axis, or the places in the sequence."""
    batch = tuple(queries.shape[:-2])
    lengths = {"queries": queries.shape[-2], "keys": keys.shape[-2]}
    alone = keys is queries
    if positions is None:
        of_queries, of_keys = (torch.arange(length, device=device) for length in lengths.values())
        return of_queries if alone else (of_queries, of_keys)
    if alone and not isinstance(positions, tuple):
        _checks.check_positions("positions", positions, batch, lengths["queries"])
        return _of_one_batch_axis(positions, batch)
    if not isinstance(positions, tuple) or len(positions) != 2:
        raise ValueError(
            "MultiHeadAttention: positions must be a pair where the keys are not the queries, "
            f"(of the queries, of the keys), got {type(positions).__name__}"
        )
    for given, (name, length) in zip(positions, lengths.items(), strict=True):
        _checks.check_positions(f"positions of the {name}", given, batch, length)
    of_queries, of_keys = (_of_one_batch_axis(given, batch) for given in positions)
    return of_queries, of_keys


def _of_one_batch_axis(positions: Tensor, batch: tuple[int, ...]) -> Tensor:
    """Make one batch axis of several, in the positions of tokens; ``(n,)`` stays what it is."""
    if positions.ndim == 1 or len(batch) < 2:
        return positions
    return positions.expand(*batch, -1).reshape(-1, positions.shape[-1])


def _one_batch_axis(name: str, x: Tensor | Mask | None, scores: tuple[int, ...]) -> Tensor | None:
    """Make one batch axis of several, in what broadcasts to the scores."""
    *batch, _, n, m = scores
    if isinstance(x, Mask):
        x = torch.from_numpy(x.rows(n, m, tuple(batch)))
        x = x if x.ndim == 2 else x.unsqueeze(-3)
    if not isinstance(x, Tensor):  # the kernel refuses what is neither
        return x
    _checks.check_broadcast("MultiHeadAttention", name, x, scores)
    if x.ndim < 3:
        return x
    x = x[(None,) * (len(scores) - x.ndim)]
    return x.expand(*batch, *x.shape[-3:]).flatten(0, len(batch) - 1)
