"""What is missing without heads: outputs of heads replaced for a while, all at once or by a little."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from ...models.decoder import Decoder


@contextmanager
def ablated(
    model: Decoder, heads: Iterable[tuple[int, int]], to: Float[Tensor, "layers h d_v"] | None = None
) -> Iterator[None]:
    """Have some heads, each ``(layer, head)``, add nothing, or always the same, within a ``with`` block.

    No weight is touched, and the heads are back behind the block, also after an error. Within it a trace still
    shows what the heads computed, of which nothing reaches the stream. `Decoder.without` makes a model that stays
    so.

    Parameters
    ----------
    to
        What every head is replaced by where it is ablated, such as its `mean_heads`; zero if left out.

    Raises
    ------
    ValueError
        If there is no such head, or `to` is of another shape.

    Examples
    --------
    >>> from mha_tutorial.models import Config
    >>> model = Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5))
    >>> ids = torch.tensor([[3, 1, 4]])
    >>> with ablated(model, [(1, 0), (1, 4)]):
    ...     found = model(ids)
    >>> torch.allclose(found, model.without([(1, 0), (1, 4)])(ids), atol=1e-5)
    True
    """
    gates = torch.ones(model.config.layers, model.config.h)
    for layer, head in heads:
        model.config.check_head(layer, head)
        gates[layer, head] = 0
    with gated(model, gates, to):
        yield


@contextmanager
def gated(
    model: Decoder, gates: Float[Tensor, "layers h"], to: Float[Tensor, "layers h d_v"] | None = None
) -> Iterator[None]:
    """Multiply what each head computes by a gate within a ``with`` block: 1 leaves it, 0 takes it away.

    In between it is mixed with `to`. Gradients reach the gates.

    Raises
    ------
    ValueError
        If gates or replacements are of another shape.

    Examples
    --------
    >>> from mha_tutorial.models import Config
    >>> model = Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5))
    >>> with gated(model, torch.zeros(2, 6)):  # no token learns of another
    ...     found = model(torch.tensor([[3, 1, 4], [4, 4, 4]]))[:, -1]
    >>> torch.allclose(found[0], found[1], atol=1e-5)
    True
    """
    sizes = model.config
    _check("gates", gates, (sizes.layers, sizes.h))
    if to is not None:
        _check("to", to, (sizes.layers, sizes.h, sizes.d_k))
    with ExitStack() as hooks:
        for number, block in enumerate(model.layers):
            hook = _replacement(gates[number], None if to is None else to[number])
            hooks.callback(block.attention.W_o.register_forward_pre_hook(hook).remove)
        yield


def _replacement(gates: Tensor, to: Tensor | None) -> Callable[..., Tensor]:
    """What the output projection is given in place of the heads, which lie side by side."""

    def replace(module, given: tuple[Tensor]) -> Tensor:
        heads = rearrange(given[0], "... (h d) -> ... h d", h=len(gates))
        gate = gates.to(heads)[:, None]
        changed = gate * heads if to is None else gate * heads + (1 - gate) * to.to(heads)
        return rearrange(changed, "... h d -> ... (h d)")

    return replace


def mean_heads(model: Decoder, ids: Int[Tensor, "b n"]) -> Float[Tensor, "layers h d_v"]:
    """Average what each head computes over all tokens of some texts, to replace it by.

    A head that always adds about the same, such as one that rests on a sink, is hardly missed if its mean stays;
    zero would be something that later layers have never met.

    Examples
    --------
    >>> from mha_tutorial.models import Config
    >>> model = Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5))
    >>> mean_heads(model, torch.tensor([[3, 1, 4], [1, 5, 9]])).shape
    torch.Size([2, 6, 4])
    """
    with torch.no_grad():
        trace = model.trace(ids)
    return torch.stack([torch.as_tensor(layer.heads).mean(dim=(0, 2)) for layer in trace.layers])


def sensitivity(
    model: Decoder,
    ids: Int[Tensor, "b n"],
    measure: Callable[[Tensor], Tensor],
    to: Float[Tensor, "layers h d_v"] | None = None,
) -> Float[Tensor, "layers h"]:
    """Estimate from one pass back how a measure of the logits changes without each head.

    Computes :eq:`eq-sensitivity`, the first term of a series: the change per unit of the head that is taken away.
    An ablation takes all of it. So it is exact for small parts, and a ranking to begin with for whole heads.

    Parameters
    ----------
    measure
        Makes one number of the logits ``(b, n, vocabulary)``, such as a loss.

    References
    ----------
    Michel, Levy and Neubig, *Are Sixteen Heads Really Better than One?*, who rank heads by its absolute value.

    Examples
    --------
    >>> from mha_tutorial.models import Config
    >>> model = Decoder(Config("llama", 17, 2, 32, 24, 6, 2, 4, 40, 10000.0, 1e-5))
    >>> sensitivity(model, torch.tensor([[3, 1, 4]]), lambda logits: logits[0, -1, 5]).shape
    torch.Size([2, 6])
    """
    weight = model.output.weight
    gates = torch.ones(model.config.layers, model.config.h, device=weight.device, dtype=weight.dtype)
    gates.requires_grad_()
    with torch.enable_grad(), gated(model, gates, to):
        (gradient,) = torch.autograd.grad(measure(model(ids)), gates)
    return -gradient


def _check(name: str, given: Tensor, expected: tuple[int, ...]) -> None:
    if tuple(given.shape) != expected:
        raise ValueError(f"{name} must be {expected} for this model, got {tuple(given.shape)}")
