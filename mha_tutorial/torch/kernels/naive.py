"""The specification: scores, softmax, average, each in a line and each in full."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import dropout as drop

from ...masks import Mask
from ..masks import rows
from .guard import attend


def naive(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b h_kv m d_k"],
    v: Float[Tensor, "b h_kv m d_v"],
    *,
    visible: Bool[Tensor, "#b #h #n #m"] | Mask | None = None,
    bias: Float[Tensor, "#b #h #n #m"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
) -> Float[Tensor, "b h n d_v"]:
    """Give each query the average of the values, weighted by the softmax of its scores.

    Holds all scores of all heads at once. The other kernels are tested against it.

    Parameters
    ----------
    visible
        What a query may see: a structured mask, or a boolean tensor that broadcasts to the scores, True where a
        query may look. A query that sees nothing gets zeros, and gradients of zero.
    bias
        Is added to the scores, in their type; minus infinity hides.
    scale
        The factor between inner product and score, ``1/sqrt(d_k)`` if left out.
    dropout
        How likely each weight is to be dropped, after the softmax; the others grow by ``1/(1 - dropout)``.

    Raises
    ------
    TypeError, ValueError
        If types differ, shapes do not fit, or `visible` is not boolean.

    References
    ----------
    Vaswani and others, *Attention Is All You Need*, section 3.2.1; grouped heads: Ainslie and others, *GQA:
    Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*.

    Examples
    --------
    >>> q, k, v = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 2, 2), torch.tensor([[[[1.0], [5.0]]]])
    >>> naive(q, k, v).item()
    3.0
    """
    return attend("naive", _naive, q, k, v, visible, bias, scale, dropout)


def scores_of(q: Tensor, k: Tensor, visible, bias: Tensor | None, scale: float) -> Float[Tensor, "b h n m"]:
    """Score every key for every query, and hide with minus infinity what is not visible."""
    scores = by_group(q, k.mT) * scale
    if bias is not None:
        scores = (scores + bias.to(scores.dtype)).masked_fill(bias.isneginf(), -torch.inf)
    if isinstance(visible, Mask):
        visible = rows(visible, q.shape[0], q.shape[2], k.shape[2], q.device)
    return scores if visible is None else scores.masked_fill(~visible, -torch.inf)


def softmax(scores: Float[Tensor, "b h n m"]) -> Float[Tensor, "b h n m"]:
    """Turn each query's scores into weights; of none that count, into zeros. Sums are kept in 32 bits or more."""
    hidden = scores.isneginf().all(dim=-1, keepdim=True)
    weights = scores.masked_fill(hidden, 0).softmax(-1, dtype=torch.promote_types(scores.dtype, torch.float32))
    return weights.masked_fill(hidden, 0).to(scores.dtype)


def by_group(x: Float[Tensor, "b h n p"], y: Float[Tensor, "b h_kv p r"]) -> Float[Tensor, "b h n r"]:
    """Multiply, where neighbouring heads of `x` share one of `y`, which is not copied."""
    h_kv = y.shape[1]
    return (fold(x, h_kv) @ y).unflatten(2, (x.shape[1] // h_kv, x.shape[2])).flatten(1, 2)


def fold(x: Float[Tensor, "b h n p"], h_kv: int) -> Float[Tensor, "b h_kv gn p"]:
    """Put the rows of the heads that share a key-value head below each other."""
    return x.unflatten(1, (h_kv, x.shape[1] // h_kv)).flatten(2, 3)


def _naive(q: Tensor, k: Tensor, v: Tensor, visible, bias, scale: float, dropout: float = 0.0) -> Tensor:
    scores = scores_of(q, k, visible, bias, scale)
    attention = softmax(scores)
    return by_group(drop(attention, dropout), v)
