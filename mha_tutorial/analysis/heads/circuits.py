"""A decoder's head as two matrices, what it matches and what it writes, with the gain of the norm before it."""

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor

from ...models.decoder import Decoder
from ...torch import Rotary
from .attribution import output_blocks


def ov(model: Decoder, layer: int, head: int) -> Float[Tensor, "d_model d_model"]:
    """Say what a head writes when it looks at a token, as one matrix: ``x @ ov``, of a normalised token ``x``.

    It is :eq:`eq-ov-row`, with the gain of the norm taken in; normalised means divided by its root mean square.
    Biases are left out.

    Raises
    ------
    ValueError
        If there is no such head.

    Examples
    --------
    >>> from mha_tutorial.models import Config
    >>> model = Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5))
    >>> ov(model, 1, 5).shape
    torch.Size([24, 24])
    """
    model.config.check_head(layer, head)
    shared = head // (model.config.h // model.config.h_kv)
    return _values(model, layer)[shared] @ output_blocks(model)[layer][head]


def qk(model: Decoder, layer: int, head: int, distance: int = 0) -> Float[Tensor, "d_model d_model"]:
    """Say what a head matches, as one matrix: the score of a query and the key so many tokens before it.

    The score is ``x_query @ qk @ x_key``, of normalised tokens, already divided by the root of the width. It is
    :eq:`eq-qk-row` with the gain of the norm taken in, and with the rotary positions between the two matrices: a
    head has one such matrix for each distance, and none that holds for all. Biases are left out.

    Raises
    ------
    ValueError
        If there is no such head, or the model normalises its queries and keys, so that no matrix gives its scores.

    Examples
    --------
    >>> from mha_tutorial.models import Config
    >>> model = Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5))
    >>> torch.allclose(qk(model, 1, 5, distance=0), qk(model, 1, 5, distance=1))
    False
    """
    sizes = model.config
    sizes.check_head(layer, head)
    attention = model.layers[layer].attention
    if not isinstance(attention.prepare, Rotary):
        raise ValueError("this model normalises queries and keys: its scores are not those of a matrix")
    gain = model.layers[layer].attention_norm.weight
    shared = head // (sizes.h // sizes.h_kv)
    W_q = rearrange(attention.W_q.weight, "(h d) m -> h m d", h=sizes.h)[head] * gain[:, None]
    W_k = rearrange(attention.W_k.weight, "(h d) m -> h m d", h=sizes.h_kv)[shared] * gain[:, None]
    places = torch.full((sizes.d_model,), distance, device=gain.device), torch.zeros_like(gain).long()
    queries, keys = attention.prepare(W_q[None, None], W_k[None, None], places)
    return queries[0, 0] @ keys[0, 0].T * sizes.d_k**-0.5


def copying(model: Decoder) -> Float[Tensor, "layers h"]:
    """Say of each head whether what it writes raises the logit of the token it looks at: from -1 to 1.

    Computes :eq:`eq-copying` of the matrix that leads from every token of the vocabulary to the logits of all,
    straight through the head: around 0 of a head that does neither, 1 where all tokens raise themselves in sum and
    in every combination. Tokens are read as they are embedded, without what earlier blocks have made of them, and
    without the scales of both norms.

    References
    ----------
    Elhage and others, *A Mathematical Framework for Transformer Circuits*.

    Examples
    --------
    >>> from mha_tutorial.models import Config
    >>> model = Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5))
    >>> copying(model).shape
    torch.Size([2, 6])
    """
    around = model.norm.weight[:, None] * (model.output.weight.T @ model.embedding.weight)
    group = model.config.h // model.config.h_kv
    scores = []
    for layer, W_o in enumerate(output_blocks(model)):
        W_v = _values(model, layer).repeat_interleave(group, dim=0)
        values = torch.linalg.eigvals((W_o @ around @ W_v).double())  # but for zeros, those of the large matrix
        scores.append(values.real.sum(dim=-1) / values.abs().sum(dim=-1))
    return torch.stack(scores).to(around)


def _values(model: Decoder, layer: int) -> Float[Tensor, "h_kv d_model d_v"]:
    """The projection of the values, tokens in rows, with the gain of the norm before it."""
    weight = model.layers[layer].attention.W_v.weight
    return (
        rearrange(weight, "(h d) m -> h m d", h=model.config.h_kv)
        * model.layers[layer].attention_norm.weight[:, None]
    )
