"""What heads add: their contributions to the stream, and their shares of the logit of a token."""

from typing import NamedTuple, cast

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from ...models.decoder import Decoder, ModelTrace


class Attribution(NamedTuple):
    """Shares of a logit: together they are the logit, less that of `against` or of the average token.

    Attributes
    ----------
    embedding
        Of the tokens that were read, ``(b, n)``.
    heads
        Of every head, ``(layers, b, h, n)``.
    bias
        Of the output bias of each layer's heads, ``(layers, b, n)``; zero in a model without.
    feed_forward
        Of the feed-forward part of each block, ``(layers, b, n)``.
    """

    embedding: Float[Tensor, "b n"]
    heads: Float[Tensor, "layers b h n"]
    bias: Float[Tensor, "layers b n"]
    feed_forward: Float[Tensor, "layers b n"]

    def sum(self) -> Float[Tensor, "b n"]:
        """All shares together."""
        return self.embedding + self.heads.sum(dim=(0, 2)) + self.bias.sum(dim=0) + self.feed_forward.sum(dim=0)


def contributions(model: Decoder, trace: ModelTrace) -> Float[Tensor, "layers b h n d_model"]:
    """Compute what each head adds to each token: its output times its own block of ``W_o``.

    Their sum over heads is what the layer adds, less its output bias. The array is ``h`` times as large as all the
    streams of the trace: take short texts.

    Examples
    --------
    >>> from mha_tutorial.models import Config
    >>> model = Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5))
    >>> contributions(model, model.trace(torch.tensor([[3, 1, 4]]))).shape
    torch.Size([2, 1, 6, 3, 24])
    """
    return torch.stack([_heads(layer) @ W for layer, W in zip(trace.layers, output_blocks(model), strict=True)])


def logit_attribution(
    model: Decoder,
    trace: ModelTrace,
    tokens: Int[Tensor, "..."],
    against: Int[Tensor, "..."] | None = None,
) -> Attribution:
    """Divide the logit of a token among all that was added to the stream.

    Computes :eq:`eq-logit-attribution-row`; with everything transposed it is :eq:`eq-logit-attribution`. The
    logits are a linear function of the stream but for the scale of the last norm, which is kept as it was in the
    pass: what a part did to the scale, and what later parts made of it, is not counted as its own.

    Parameters
    ----------
    tokens
        Of which token at each place, anything that broadcasts to ``(b, n)``.
    against
        Another token whose logit is subtracted; the average of all if left out, since a softmax does not see what
        is added to every logit.

    References
    ----------
    nostalgebraist, *interpreting GPT: the logit lens*, for the stream read as logits; Wang and others,
    *Interpretability in the Wild*, for the difference of two.

    Examples
    --------
    >>> from mha_tutorial.models import Config
    >>> model = Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5))
    >>> trace = model.trace(torch.tensor([[3, 1, 4]]))
    >>> shares = logit_attribution(model, trace, torch.tensor(5), against=torch.tensor(6))
    >>> torch.allclose(shares.sum(), trace.logits[..., 5] - trace.logits[..., 6], atol=1e-4)
    True
    """
    reader = _reader(model, trace, tokens, against)
    of_heads, of_bias, of_rest = [], [], []
    parts = zip(trace.layers, output_blocks(model), trace.residual, trace.residual[1:], strict=False)
    for layer, W, before, after in parts:
        output = cast(Tensor, layer.output)
        read = rearrange(reader @ rearrange(W, "h d m -> m (h d)"), "b n (h d) -> b h n d", h=len(W))
        shares = (_heads(layer) * read).sum(dim=-1)
        of_heads.append(shares)
        of_bias.append((output * reader).sum(dim=-1) - shares.sum(dim=1))
        of_rest.append(((after - before - output) * reader).sum(dim=-1))
    embedding = (trace.residual[0] * reader).sum(dim=-1)
    return Attribution(embedding, torch.stack(of_heads), torch.stack(of_bias), torch.stack(of_rest))


def output_blocks(model: Decoder) -> list[Float[Tensor, "h d_v d_model"]]:
    """Cut the output projection of each layer into the blocks of its heads; tokens are rows."""
    return [
        rearrange(block.attention.W_o.weight, "m (h d) -> h d m", h=block.attention.h) for block in model.layers
    ]


def _reader(model: Decoder, trace: ModelTrace, tokens, against) -> Float[Tensor, "b n d_model"]:
    """The vector whose inner product with the last stream is the logit: unembedding, gain and scale in one."""
    stream = trace.residual[-1]
    scale = torch.rsqrt(stream.square().mean(dim=-1, keepdim=True) + model.norm.eps)
    unembedding = model.output.weight
    other = unembedding.mean(dim=0) if against is None else unembedding[against]
    return (unembedding[tokens] - other) * model.norm.weight * scale


def _heads(layer) -> Float[Tensor, "b h n d_v"]:
    return cast(Tensor, layer.heads)
