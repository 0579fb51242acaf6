"""Keys and values that belong to the layer and not to a token."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ..masks import Mask
from . import _checks
from .masks import to_tensor


class ExtraKeys(nn.Module):
    """Keys and values of a layer's own behind those of the tokens, which every query sees.

    With one learned key and value it is ``add_bias_kv`` of ``nn.MultiheadAttention``, with zeros it is
    ``add_zero_attn``; attention sinks are such keys too. A query that sees no other key averages these. They have
    no position: they are appended after `prepare`, and masks and biases do not count them.

    Parameters
    ----------
    keys
        One row for each extra key, for each key-value head. A Parameter is learned, a tensor stays as it is.
    values
        As many rows of values.

    Raises
    ------
    TypeError, ValueError
        If they are not floating tensors of one type with three axes, and as many of each.

    Examples
    --------
    >>> from mha_tutorial.torch import MultiHeadAttention
    >>> sinks = ExtraKeys(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3))
    >>> layer = MultiHeadAttention(d_model=6, h=2, extra_keys=sinks)
    >>> layer.trace(torch.zeros(1, 4, 6)).attention.shape
    torch.Size([1, 2, 4, 5])
    """

    keys: Tensor
    values: Tensor

    def __init__(self, keys: Float[Tensor, "h_kv s d_k"], values: Float[Tensor, "h_kv s d_v"]):
        super().__init__()
        _checks.check_extra_keys(keys, values)
        for name, of_heads in (("keys", keys), ("values", values)):
            if isinstance(of_heads, nn.Parameter):
                self.register_parameter(name, of_heads)
            else:
                self.register_buffer(name, of_heads)

    def check_fits(self, h_kv: int, d_k: int, d_v: int) -> None:
        """Refuse to belong to a layer of other sizes."""
        shapes = tuple(self.keys.shape), tuple(self.values.shape)
        s = self.keys.shape[1]
        if shapes != ((h_kv, s, d_k), (h_kv, s, d_v)):
            raise ValueError(
                f"extra keys must be (h_kv, s, d_k) and values (h_kv, s, d_v) with h_kv={h_kv}, d_k={d_k} and "
                f"d_v={d_v}, got {shapes[0]} and {shapes[1]}"
            )

    def extend(self, q: Tensor, k: Tensor, v: Tensor, visible, bias) -> tuple:
        """Put the extra keys and values behind the real ones, and widen mask and bias at the same end."""
        b, m = k.shape[0], k.shape[2]
        if isinstance(visible, Mask):  # of the real keys: those its alignment and its lengths speak of
            visible = to_tensor(visible, b, q.shape[2], m, q.device)
        k, v = (
            torch.cat([x, extra.to(x.dtype).expand(b, -1, -1, -1)], dim=2)
            for x, extra in ((k, self.keys), (v, self.values))
        )
        extra = k.shape[2] - m
        return k, v, _widen(visible, m, extra, True), _widen(bias, m, extra, 0.0)


def as_modules(extra_keys) -> nn.ModuleList:
    """Read what a layer was given: None, one pair of keys and values or `ExtraKeys`, or a list of these."""
    given = [] if extra_keys is None else extra_keys if isinstance(extra_keys, list) else [extra_keys]
    modules = nn.ModuleList()
    for one in given:
        if isinstance(one, tuple) and len(one) == 2:
            one = ExtraKeys(*one)
        if not isinstance(one, ExtraKeys):
            raise TypeError(
                f"extra_keys must be ExtraKeys, a pair (keys, values) or a list of these, got {type(one).__name__}"
            )
        modules.append(one)
    return modules


def extra_of(modules: nn.ModuleList) -> list[ExtraKeys]:
    """The modules as what they are."""
    return [module for module in modules if isinstance(module, ExtraKeys)] if len(modules) else []


def _widen(scores: Tensor | None, m: int, extra: int, filled: float) -> Tensor | None:
    """Put columns for the extra keys behind those of the real ones."""
    if scores is None:
        return None
    real = scores.expand(*scores.shape[:-1], m)
    return torch.cat([real, real.new_full((*real.shape[:-1], extra), filled)], dim=-1)
