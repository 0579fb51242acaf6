"""The specification: scores, softmax, average, each in a line and each in full."""

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import dropout as drop

from ...masks import Mask
from .common import is_eager, no_autocast, run_kernel, sums
from .selection import clean, hidden_pairs, scores_of, settle, weigh


def naive(
    q: Float[Tensor, "b h n d_k"],
    k: Float[Tensor, "b h_kv m d_k"],
    v: Float[Tensor, "b h_kv m d_v"],
    *,
    visible: Bool[Tensor, "#b #h #n #m"] | Mask | None = None,
    bias: Float[Tensor, "#b #h #n #m"] | None = None,
    scale: float | None = None,
    dropout: float = 0.0,
    log_sums: bool = False,
) -> Float[Tensor, "b h n d_v"]:
    """Give each query the average of the values, weighted by the softmax of its scores.

    Holds all scores of all heads at once, in float32 or wider. The other kernels are tested against it. It
    selects: masked positions may hold anything, and reach neither the result nor a gradient, also in compiled
    code. What is not finite and visible makes NaN of the result and of the gradients of the queries that see it,
    and of no others.

    Parameters
    ----------
    visible
        What a query may see: a structured mask, or a boolean tensor that broadcasts to the scores, True where a
        query may look. A query that sees nothing gets zeros, and gradients of zero.
    bias
        Is added to the scores, in its own precision; minus infinity hides.
    scale
        The factor between inner product and score, any finite number; ``1/sqrt(d_k)`` if left out.
    dropout
        How likely each weight is to be dropped, after the softmax; the others grow by ``1/(1 - dropout)``.
    log_sums
        Whether to return a pair: the heads, and the logarithm of each query's sum of exponentials ``(b, h, n)``, in
        float32 or wider, minus infinity for a query that sees nothing. Partial results are merged by them.

    Raises
    ------
    TypeError, ValueError
        If types differ, shapes do not fit, `visible` is not boolean, or `scale` is not a finite number.

    References
    ----------
    Vaswani and others, *Attention Is All You Need*, section 3.2.1; grouped heads: Ainslie and others, *GQA:
    Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints*.

    Examples
    --------
    >>> q, k, v = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 2, 2), torch.tensor([[[[1.0], [5.0]]]])
    >>> naive(q, k, v).item()
    3.0
    >>> naive(q, k, v, log_sums=True)[1].exp().item()
    2.0
    """
    options = {"dropout": dropout, "log_sums": log_sums}
    return run_kernel("naive", _naive, q, k, v, visible, bias, scale, **options)


def _naive(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    visible,
    bias,
    scale: float,
    dropout: float,
    log_sums: bool,
):
    with no_autocast(q):
        scores, hidden = masked_scores(q, k, visible, bias, scale)
        attention = softmax(scores, hidden)
        values = settle(v.to(scores.dtype))
        heads = weigh(drop(attention, dropout), values, hidden).to(q.dtype)
    return (heads, log_sums_of(scores, hidden)) if log_sums else heads


def masked_scores(q: Tensor, k: Tensor, visible, bias: Tensor | None, scale: float):
    """Score every key for every query, in float32 or wider; say what is hidden."""
    hidden = hidden_pairs(visible, bias, q.shape[0], q.shape[2], k.shape[2], q.device)
    wide = sums(q)
    (q, bad_queries), (k, bad_keys) = clean(q.to(wide)), clean(k.to(wide))
    return scores_of(q * scale, k, hidden, bias, (bad_queries, bad_keys)), hidden


def softmax(
    scores: Float[Tensor, "b h n m"],
    hidden: Tensor | None = None,
) -> Float[Tensor, "b h n m"]:
    """Turn each query's scores into attention: exactly zero where a key is hidden."""
    if hidden is None:
        return scores.softmax(dim=-1)
    scores, _ = _with_something_to_see(scores, hidden)
    return scores.softmax(dim=-1).masked_fill(hidden, 0)


def log_sums_of(scores: Float[Tensor, "b h n m"], hidden: Tensor | None) -> Float[Tensor, "b h n"]:
    """The logarithm of each query's sum of exponentials: minus infinity where all is hidden."""
    if hidden is None:
        return scores.logsumexp(dim=-1)
    scores, nothing = _with_something_to_see(scores, hidden)
    return scores.logsumexp(dim=-1).masked_fill(nothing.squeeze(-1), -torch.inf)


def _with_something_to_see(scores: Tensor, hidden: Tensor) -> tuple[Tensor, Bool[Tensor, "#b #h #n 1"]]:
    """Give a fully masked query scores of zero, whose softmax has a derivative; say which queries these are."""
    fully_masked = hidden.all(dim=-1, keepdim=True)
    if is_eager(hidden) and not fully_masked.any():
        return scores, fully_masked
    return scores.masked_fill(fully_masked, 0), fully_masked
