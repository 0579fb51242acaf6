"""Keys and values that belong to the layer and not to a token."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

from ...masks import Mask
from ..masks import rows
from .fused import fused
from .guard import Kernel


class ExtraKeys(nn.Module):
    """A kernel with keys and values of its own behind the real ones, which every query sees.

    With one learned key and value it is ``add_bias_kv`` of ``nn.MultiheadAttention``, with zeros it is
    ``add_zero_attn``. A query that sees no real key averages these.

    Parameters
    ----------
    keys
        One row for each extra key, for each key-value head. A Parameter is learned, a tensor stays as it is.
    values
        As many rows of values.
    kernel
        What then computes.

    Examples
    --------
    >>> kernel = ExtraKeys(torch.zeros(1, 1, 2), torch.zeros(1, 1, 1))
    >>> q, k, v = torch.zeros(1, 1, 1, 2), torch.zeros(1, 1, 3, 2), torch.ones(1, 1, 3, 1)
    >>> kernel(q, k, v).item()
    0.75
    """

    keys: Tensor
    values: Tensor

    def __init__(
        self, keys: Float[Tensor, "h_kv s d_k"], values: Float[Tensor, "h_kv s d_v"], kernel: Kernel = fused
    ):
        super().__init__()
        for name, rows_of_heads in (("keys", keys), ("values", values)):
            if isinstance(rows_of_heads, nn.Parameter):
                self.register_parameter(name, rows_of_heads)
            else:
                self.register_buffer(name, rows_of_heads)
        self.kernel = kernel

    def forward(self, q: Tensor, k: Tensor, v: Tensor, *, visible=None, bias=None, **options) -> Tensor:
        k, v, visible, bias = self.extend(q, k, v, visible, bias)
        return self.kernel(q, k, v, visible=visible, bias=bias, **options)

    def extend(self, q: Tensor, k: Tensor, v: Tensor, visible, bias) -> tuple:
        """Put the extra keys and values behind the real ones, and widen mask and bias at the same end."""
        b, m = k.shape[0], k.shape[2]
        if isinstance(visible, Mask):  # of the real keys: those its alignment and its lengths speak of
            visible = rows(visible, b, q.shape[2], m, q.device)
        k, v = (
            torch.cat([x, extra.to(x.dtype).expand(b, -1, -1, -1)], dim=2)
            for x, extra in ((k, self.keys), (v, self.values))
        )
        extra = k.shape[2] - m
        return k, v, _widen(visible, m, extra, True), _widen(bias, m, extra, 0.0)


def _widen(scores: Tensor | None, m: int, extra: int, filled: float) -> Tensor | None:
    """Put columns for the extra keys behind those of the real ones."""
    if scores is None:
        return None
    real = scores.expand(*scores.shape[:-1], m)
    return torch.cat([real, real.new_full((*real.shape[:-1], extra), filled)], dim=-1)
