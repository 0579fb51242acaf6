"""Text out of a model: the next token is drawn, read, and the one after it drawn."""

from collections.abc import Collection, Iterator
from typing import Protocol

import torch
from jaxtyping import Float, Int
from torch import Tensor

from ..torch import KVCache
from .config import Config


class Model(Protocol):
    """What is needed of a model here."""

    config: Config

    def caches(self, b: int, capacity: int) -> list[KVCache]: ...

    def __call__(self, ids: Tensor, *, caches: list[KVCache], last: bool) -> Tensor: ...


def probabilities(
    logits: Float[Tensor, "*b vocabulary"], temperature: float = 1.0, top_p: float = 1.0
) -> Float[Tensor, "*b vocabulary"]:
    """Make of logits how likely each token is drawn.

    Computes :eq:`eq-temperature`: a softmax of the logits, divided by the temperature. Below 1 it prefers the
    likely, above 1 it evens out. Of the tokens only the likeliest are left that have the probability `top_p`
    together, and share what the others had.

    Raises
    ------
    ValueError
        If the temperature is not positive, or `top_p` not above 0 and at most 1.

    References
    ----------
    Holtzman and others, *The Curious Case of Neural Text Degeneration*, for the second.

    Examples
    --------
    >>> logits = torch.tensor([1.0, 3.0, 2.0]).log()
    >>> probabilities(logits, top_p=0.7)
    tensor([0.0000, 0.6000, 0.4000])
    >>> probabilities(logits, temperature=0.5)
    tensor([0.0714, 0.6429, 0.2857])
    """
    if not temperature > 0:
        raise ValueError(f"temperature must be positive here, got {temperature}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be above 0 and at most 1, got {top_p}")
    likely = torch.softmax(logits / temperature, dim=-1)
    if top_p == 1:
        return likely
    ordered, order = likely.sort(dim=-1, descending=True)
    before = ordered.cumsum(dim=-1) - ordered
    kept = torch.zeros_like(likely).scatter(-1, order, ordered.masked_fill(before >= top_p, 0.0))
    return kept / kept.sum(dim=-1, keepdim=True)


def draw(
    logits: Float[Tensor, "b vocabulary"], temperature: float, top_p: float, generator: torch.Generator
) -> Int[Tensor, "b 1"]:
    """Draw a token of each text, or take the likeliest at temperature 0.

    Examples
    --------
    >>> draw(torch.tensor([[1.0, 3.0, 2.0]]), 0.0, 1.0, torch.Generator())
    tensor([[1]])
    """
    if temperature == 0:
        return logits.argmax(dim=-1, keepdim=True)
    return torch.multinomial(probabilities(logits, temperature, top_p), 1, generator=generator)


def continued(
    model: Model,
    ids: Int[Tensor, "1 n"],
    n: int,
    temperature: float = 0.0,
    top_p: float = 1.0,
    seed: int = 0,
    ends: Collection[int] = (),
) -> Iterator[int]:
    """Add up to `n` tokens to a text, each as soon as it is drawn; one of `ends` ends it, and is not handed out.

    The prompt is read in one pass, and every token after it alone: keys and values of all before it are in caches.

    Raises
    ------
    ValueError
        If there is no prompt, it leaves no room, or a number is out of its range.
    """
    if n < 1 or temperature < 0 or not 0 < top_p <= 1:
        raise ValueError(
            "n must be at least 1, temperature at least 0, and top_p above 0 and at most 1, got "
            f"n={n}, temperature={temperature}, top_p={top_p}"
        )
    length, context = ids.shape[1], model.config.context
    if not length:
        raise ValueError("the prompt is empty; a model continues one token or more")
    if length >= context:
        raise ValueError(
            f"the prompt has {length} tokens, and leaves no room for another: this model can read {context}"
        )
    return _continued(model, ids, min(n, context - length), temperature, top_p, seed, ends)


def _continued(model: Model, ids: Tensor, n: int, temperature, top_p, seed, ends) -> Iterator[int]:
    generator = torch.Generator(ids.device).manual_seed(seed)
    with torch.inference_mode():
        caches = model.caches(1, ids.shape[1] + n)
    for _ in range(n):
        with torch.inference_mode():  # whoever gets a token goes on outside of it
            ids = draw(model(ids, caches=caches, last=True)[:, -1], temperature, top_p, generator)
        token = int(ids)
        if token in ends:
            return
        yield token
