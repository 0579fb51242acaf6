"""A decoder of the Llama family in plain PyTorch, on the layer, the kernels and the caches of this package."""

import copy
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple, Self, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn.functional import rms_norm, silu

from ..masks import Causal, Mask, Padding, Window
from ..torch import KVCache, MultiHeadAttention, Rotary
from ..torch.kernels.common import Kernel
from ..torch.kernels.fused import fused
from ..trace import Trace
from . import generation
from .config import Config
from .tokenizer import Tokenizer


class RMSNorm(nn.Module):
    """Divides a token by the root of its mean square, in 32 bits or more, and weighs its features."""

    def __init__(self, width: int, eps: float):
        super().__init__()
        self.weight, self.eps = nn.Parameter(torch.ones(width)), eps

    def forward(self, x: Float[Tensor, "*b d_model"]) -> Float[Tensor, "*b d_model"]:
        dtype = torch.promote_types(x.dtype, torch.float32)
        return rms_norm(x.to(dtype), self.weight.shape, self.weight.to(dtype), self.eps).to(x.dtype)


class FeedForward(nn.Module):
    """Rewrites each token by itself (SwiGLU): what one matrix makes of it gates what another does."""

    def __init__(self, d_model: int, d_hidden: int):
        super().__init__()
        self.gate = nn.Linear(d_model, d_hidden, bias=False)
        self.up = nn.Linear(d_model, d_hidden, bias=False)
        self.down = nn.Linear(d_hidden, d_model, bias=False)

    def forward(self, x: Float[Tensor, "*b d_model"]) -> Float[Tensor, "*b d_model"]:
        return self.down(silu(self.gate(x)) * self.up(x))


class NormedRotary(nn.Module):
    """Normalises the queries and keys of each head (Qwen3) before it turns them."""

    def __init__(self, config: Config, rotary: Rotary):
        super().__init__()
        self.rotary = rotary
        self.norm_q = RMSNorm(config.d_k, config.eps)
        self.norm_k = RMSNorm(config.d_k, config.eps)

    def forward(self, q: Tensor, k: Tensor, positions) -> tuple[Tensor, Tensor]:
        return self.rotary(self.norm_q(q), self.norm_k(k), positions)


class Block(nn.Module):
    """Adds to each token what it finds in others, and then what it makes of itself."""

    def __init__(self, config: Config, kernel: Kernel, rotary: Rotary):
        super().__init__()
        self.attention_norm = RMSNorm(config.d_model, config.eps)
        self.attention = MultiHeadAttention(
            config.d_model,
            config.h,
            config.h_kv,
            config.d_k,
            config.d_k,
            bias=config.bias,
            kernel=kernel,
            prepare=NormedRotary(config, rotary) if config.norm_heads else rotary,
        )
        if config.bias and not config.bias_o:
            self.attention.W_o.register_parameter("bias", None)
        self.feed_forward_norm = RMSNorm(config.d_model, config.eps)
        self.feed_forward = FeedForward(config.d_model, config.d_hidden)

    def forward(self, x: Float[Tensor, "b n d_model"], **options) -> Float[Tensor, "b n d_model"]:
        x = x + self.attention(self.attention_norm(x), **options)
        return x + self.feed_forward(self.feed_forward_norm(x))

    def trace(self, x: Float[Tensor, "b n d_model"], **options) -> tuple[Trace, Float[Tensor, "b n d_model"]]:
        """What a call computes, with every step of the attention."""
        steps = self.attention.trace(self.attention_norm(x), **options)
        x = x + cast(Tensor, steps.output)
        return steps, x + self.feed_forward(self.feed_forward_norm(x))


class ModelTrace(NamedTuple):
    """Every step of one pass through a model.

    Attributes
    ----------
    layers
        The `Trace` of each attention layer.
    residual
        The tokens before the first block and after each, ``(layers + 1, b, n, d_model)``.
    logits
        What the model says of the next token, ``(b, n, vocabulary)``.
    """

    layers: list[Trace]
    residual: Float[Tensor, "layers b n d_model"]
    logits: Float[Tensor, "b n vocabulary"]

    @property
    def attention(self) -> Float[Tensor, "layers b h n n"]:
        """The attention of all heads."""
        return torch.stack([cast(Tensor, layer.attention) for layer in self.layers])


class Decoder(nn.Module):
    """A language model: it says of each token of a text which tokens may come next.

    Tokens are rows. `load` makes one with trained weights; this makes one with random weights.

    Parameters
    ----------
    config
        Its sizes and rules.
    tokenizer
        What makes tokens of a text; without it `stream` and `generate` have nothing to read.
    kernel
        What computes the heads, one of `mha_tutorial.torch.KERNELS`.

    Examples
    --------
    >>> model = Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5))
    >>> model(torch.tensor([[3, 1, 4]])).shape, model.trace(torch.tensor([[3, 1, 4]])).attention.shape
    (torch.Size([1, 3, 17]), torch.Size([2, 1, 6, 3, 3]))
    """

    def __init__(self, config: Config, tokenizer: Tokenizer | None = None, *, kernel: Kernel = fused):
        super().__init__()
        self.config, self.tokenizer = config, tokenizer
        self.embedding = nn.Embedding(config.vocabulary, config.d_model)
        self.rotary = Rotary(config.base)  # shared, so that the angles of a pass are computed once
        self.blocks = nn.ModuleList(Block(config, kernel, self.rotary) for _ in range(config.layers))
        self.norm = RMSNorm(config.d_model, config.eps)
        self.output = nn.Linear(config.d_model, config.vocabulary, bias=False)
        self.tie()

    def tie(self) -> None:
        """Have one matrix read tokens and say which come next, where the model is such."""
        if self.config.tied:
            self.output.weight = self.embedding.weight

    def forward(
        self,
        ids: Int[Tensor, "b n"],
        *,
        visible: Padding | None = None,
        positions: Int[Tensor, "*#b n"] | None = None,
        caches: Sequence[KVCache] | None = None,
        last: bool = False,
    ) -> Float[Tensor, "b n vocabulary"]:
        """Return the logits: a softmax makes of them how likely each token of the vocabulary comes next.

        Parameters
        ----------
        visible
            Which tokens are real, ``Padding(lengths, side="left")``, where texts differ in length. What is said at
            the others means nothing.
        positions
            The place of each token in its text, counted from the first column if left out. Only distances matter.
        caches
            One for each layer, from `caches`: `ids` then go on where the last call ended.
        last
            Whether to say only what follows the last token, ``(b, 1, vocabulary)``.

        Raises
        ------
        TypeError, ValueError
            If the tokens are no integers, none, not in the vocabulary, or more than the model has read in training.
        """
        x, options = self._begin(ids, visible, positions, caches)
        for block, cache in zip(self.blocks, caches or repeat(None, len(self.blocks)), strict=True):
            x = block(x, cache=cache, **options)
        return self.output(self.norm(x[:, -1:] if last else x))

    def trace(
        self,
        ids: Int[Tensor, "b n"],
        *,
        visible: Padding | None = None,
        positions: Int[Tensor, "*#b n"] | None = None,
    ) -> ModelTrace:
        """Return every step of a pass.

        Raises
        ------
        TypeError, ValueError
            As a call does.
        """
        x, options = self._begin(ids, visible, positions, None)
        layers, residual = [], [x]
        for block in self.layers:
            steps, x = block.trace(x, **options)
            layers.append(steps)
            residual.append(x)
        return ModelTrace(layers, torch.stack(residual), self.output(self.norm(x)))

    def _begin(self, ids: Tensor, visible, positions, caches) -> tuple[Tensor, dict]:
        """Check the tokens and look them up, and say what every layer is told."""
        stored = caches[0].stored if caches else 0
        self._check(ids, stored)
        rule: Mask | None = None if caches else Causal()
        if self.config.window is not None and stored + ids.shape[1] > self.config.window:
            window = Window(self.config.window)
            rule = window if rule is None else rule & window
        if visible is not None:
            rule = visible if rule is None else rule & visible
        return self.embedding(ids), {"visible": rule, "positions": positions}

    def _check(self, ids: Tensor, stored: int) -> None:
        if not isinstance(ids, Tensor) or ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"ids must be a tensor of integers, the numbers of tokens, got {_kind(ids)}")
        if ids.ndim != 2 or not ids.numel():
            raise ValueError(f"ids must be (b, n) with one token or more, got {tuple(ids.shape)}")
        together = stored + ids.shape[1]
        if together > self.config.context:
            raise ValueError(f"{together} tokens are more than the {self.config.context} that this model can read")
        least, most = ids.aminmax()
        if least < 0 or most >= self.config.vocabulary:
            raise ValueError(
                f"tokens have numbers from 0 to {self.config.vocabulary - 1}, got {int(least)} to {int(most)}"
            )

    def caches(self, b: int, capacity: int) -> list[KVCache]:
        """Make a cache for every layer, with room for so many tokens of each of `b` texts.

        Raises
        ------
        ValueError
            If a number is below 1.
        """
        return [KVCache.for_layer(block.attention, b, capacity=capacity) for block in self.layers]

    def without(self, heads: Iterable[tuple[int, int]]) -> Self:
        """Return a model in which some heads, each ``(layer, head)``, add nothing; it shares all other weights.

        A head is left its attention, which the trace shows, but its part of ``W_o`` is zero.

        Raises
        ------
        ValueError
            If there is no such head.

        Examples
        --------
        >>> model = Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5))
        >>> changed = model.without([(1, 0), (1, 4)])
        >>> changed.embedding.weight is model.embedding.weight
        True
        """
        shared = {id(x): x for x in (*self.parameters(), self.tokenizer, self.rotary)}
        other = copy.deepcopy(self, shared)
        for layer, head in heads:
            self.config.check_head(layer, head)
            attention = other.layers[layer].attention
            weight = attention.W_o.weight.detach().clone()
            weight[:, head * attention.d_v : (head + 1) * attention.d_v] = 0
            attention.W_o.weight = nn.Parameter(weight, requires_grad=attention.W_o.weight.requires_grad)
        return other

    @property
    def layers(self) -> list[Block]:
        """The blocks, in the order in which tokens pass through them."""
        return [block for block in self.blocks if isinstance(block, Block)]

    def stream(
        self,
        prompt: str,
        n: int = 64,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        chat: bool = False,
    ) -> Iterator[str]:
        """Continue a text, and hand out each piece as soon as it is there.

        Parameters
        ----------
        n
            The most tokens to add. The model may end earlier.
        temperature
            What scores are divided by before the softmax; at 0 the likeliest token is taken.
        top_p
            Tokens are drawn from the likeliest ones that have this probability together.
        seed
            The same seed gives the same text.
        chat
            Whether the prompt is a question, to be put as the model's own template puts it.

        Raises
        ------
        ValueError
            If the prompt is empty, no valid Unicode or too long, a number is out of its range, or the model has no
            tokenizer or no template.
        """
        if self.tokenizer is None:
            raise ValueError("this model was loaded without a tokenizer, and cannot read a text")
        text = self.tokenizer.chat(prompt) if chat else prompt
        ids = torch.tensor([self.tokenizer.encode(text)], device=self.embedding.weight.device)
        found = generation.continued(self, ids, n, temperature, top_p, seed, self.tokenizer.ends)
        return self.tokenizer.pieces(found)

    def generate(
        self,
        prompt: str,
        n: int = 64,
        *,
        temperature: float = 0.0,
        top_p: float = 1.0,
        seed: int = 0,
        chat: bool = False,
    ) -> str:
        """Continue a text and return what was added; parameters and errors are those of `stream`."""
        return "".join(self.stream(prompt, n, temperature=temperature, top_p=top_p, seed=seed, chat=chat))


def _kind(x) -> str:
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
