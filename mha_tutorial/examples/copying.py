"""A task for two layers: to go on with a text that repeats itself, at a distance that differs from text to text.

A text is a passage of tokens, all different, said again and again. What comes next is what followed the last
occurrence of the token at hand. Finding that takes two steps: a head tells each token which one it follows, and in
the layer above a head looks for the token that follows one like the token at hand.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import torch
from einops import rearrange
from jaxtyping import Float, Int
from numpy import ndarray as Array
from torch import Tensor
from torch.nn.functional import cross_entropy

from ..analysis import heads
from ..models import Config, Decoder

VOCABULARY, LENGTH, DISTANCES = 31, 32, (5, 15)
UNKNOWN = -100  # the target where nobody could know what comes next; `cross_entropy` leaves such places out
PROBED = 16  # texts on which attention is scored


class Texts(NamedTuple):
    """Tokens to be read, and for each the one that comes next, or `UNKNOWN`."""

    ids: Int[Tensor, "b n"]
    targets: Int[Tensor, "b n"]


class Look(NamedTuple):
    """How a model does at one step of its training, on texts that it is not trained on."""

    step: int
    loss: float
    accuracy: float
    previous_token: Float[Array, "layers h"]
    induction: Float[Array, "layers h"]
    entropy: Float[Array, "layers h"]


def draw(
    generator: torch.Generator,
    b: int,
    n: int = LENGTH,
    vocabulary: int = VOCABULARY,
    distances: tuple[int, int] = DISTANCES,
) -> Texts:
    """Draw `b` texts of `n` tokens, each with a passage of its own and a distance of its own.

    Parameters
    ----------
    distances
        The least and the most tokens that a passage may have. A text's distance is drawn evenly from all between.

    Raises
    ------
    ValueError
        If there are not as many different tokens as a passage may have, or the least is more than the most.

    Examples
    --------
    >>> texts = draw(torch.Generator().manual_seed(0), b=1, n=7, distances=(3, 3))
    >>> bool((texts.ids[0, 3:] == texts.ids[0, :4]).all()), texts.targets[0, :3].tolist()
    (True, [-100, -100, -100])
    """
    least, most = distances
    if not 1 <= least <= most <= vocabulary:
        raise ValueError(
            f"distances must lie between 1 and the {vocabulary} tokens that there are, got {distances}"
        )
    distance = torch.randint(least, most + 1, (b, 1), generator=generator)
    passage = torch.rand(b, vocabulary, generator=generator).argsort(dim=1)  # every token once, in any order
    places = torch.arange(n + 1)
    text = passage.gather(1, places % distance)
    foreseeable = places[:-1] >= distance  # the token at hand has occurred before
    return Texts(text[:, :-1], text[:, 1:].where(foreseeable, UNKNOWN))


def small_model(
    layers: int = 2, h: int = 2, d_model: int = 32, *, norm_heads: bool = False, seed: int = 0
) -> Decoder:
    """Make a decoder with random weights, the same for the same seed.

    Examples
    --------
    >>> sum(x.numel() for x in small_model().parameters())
    22624
    """
    config = Config(
        "llama",
        vocabulary=VOCABULARY,
        layers=layers,
        context=4 * LENGTH,
        d_model=d_model,
        h=h,
        h_kv=h,
        d_k=d_model // h,
        d_hidden=2 * d_model,
        base=10000.0,
        eps=1e-5,
        norm_heads=norm_heads,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Decoder(config)


def train(
    model: Decoder,
    steps: int = 300,
    rate: float = 0.005,
    *,
    seed: int = 0,
    distances: tuple[int, int] = DISTANCES,
    every: int = 10,
    watch: Callable[[range], Iterable[int]] = iter,
) -> list[Look]:
    """Change a model's weights so that it copies, and look at it every so many steps and at the end.

    Each step reads 32 new texts. `watch` is handed the steps and hands them on, such as
    `mha_tutorial.printing.progress`.

    Examples
    --------
    >>> looks = train(small_model(), steps=4, every=2)
    >>> [look.step for look in looks], looks[0].induction.shape
    ([0, 2, 4], (2, 2))
    """
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=rate)
    looks = []
    for step in watch(range(steps)):
        if step % every == 0:
            looks.append(look(model, step, distances))
        loss, _ = judge(model, draw(generator, 32, distances=distances))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return [*looks, look(model, steps, distances)]


def judge(model: Decoder, texts: Texts) -> tuple[Tensor, float]:
    """Compute the loss of a model, and how often its likeliest token is the right one, where one can be known."""
    logits = model(texts.ids)
    right = logits.argmax(dim=-1) == texts.targets
    loss = cross_entropy(logits.flatten(0, 1), texts.targets.flatten(), ignore_index=UNKNOWN)
    return loss, float(right.sum() / (texts.targets != UNKNOWN).sum())


def look(model: Decoder, step: int = 0, distances: tuple[int, int] = DISTANCES, n: int = LENGTH) -> Look:
    """See how a model does on 256 texts, always the same, and where its heads look in some of them."""
    texts = draw(torch.Generator().manual_seed(2**31), 256, n, distances=distances)
    with torch.no_grad():
        loss, accuracy = judge(model, texts)
        attention = model.trace(texts.ids[:PROBED]).attention.numpy()
    induction = [heads.induction(attention[:, i], texts.ids[i].numpy()) for i in range(PROBED)]
    return Look(
        step,
        float(loss),
        accuracy,
        heads.previous_token(attention).mean(axis=1),
        np.mean(induction, axis=0),
        heads.entropy(attention).mean(axis=1),
    )


def learned_at(looks: list[Look], accuracy: float = 0.9) -> int | None:
    """Find the first step at which a model was right so often, None if it never was."""
    return next((look.step for look in looks if look.accuracy >= accuracy), None)


def equalise_heads(model: Decoder) -> None:
    """Give all heads of a layer the weights of its first."""
    with torch.no_grad():
        for W in _by_heads(model):
            W.copy_(W[:1].clone().expand_as(W))


def head_difference(model: Decoder) -> float:
    """Find by how much a weight of any head differs from that of the first head of its layer, at most."""
    return max(float((W - W[:1]).detach().abs().max()) for W in _by_heads(model))


def enlarge_scores(model: Decoder, scale: float) -> None:
    """Multiply the matrices of queries and keys of all heads, so that scores are ``scale**2`` times as large."""
    with torch.no_grad():
        for layer in model.layers:
            layer.attention.W_q.weight.mul_(scale)
            layer.attention.W_k.weight.mul_(scale)


def _by_heads(model: Decoder) -> Iterator[Float[Tensor, "h rows columns"]]:
    """The four projections of every layer, each as the matrices of its heads; they share memory with the model."""
    for attention in (layer.attention for layer in model.layers):
        for W in (attention.W_q, attention.W_k, attention.W_v):
            yield rearrange(W.weight, "(h d) m -> h d m", h=attention.h)
        yield rearrange(attention.W_o.weight, "m (h d) -> h m d", h=attention.h)
