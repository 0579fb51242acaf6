"""Multi-head attention as people write it in PyTorch, right: `examples.faults` breaks it, one line at a time."""

import torch
from torch import nn
from torch.nn import functional


class Layer(nn.Module):
    """A layer with four projections; key-value heads may be fewer than heads.

    Examples
    --------
    >>> Layer(d_model=6, h=2)(*[torch.zeros(1, 5, 6)] * 3).shape
    torch.Size([1, 5, 6])
    """

    def __init__(self, d_model, h, h_kv=None, dropout=0.0):
        super().__init__()
        self.h, self.h_kv = h, h if h_kv is None else h_kv
        self.d, self.dropout = d_model // h, dropout
        self.W_q = nn.Linear(d_model, self.h * self.d)
        self.W_k = nn.Linear(d_model, self.h_kv * self.d)
        self.W_v = nn.Linear(d_model, self.h_kv * self.d)
        self.W_o = nn.Linear(self.h * self.d, d_model)

    def forward(self, queries, keys, values, visible=None):
        q = self.split(self.W_q(queries), self.h)
        k = self.split(self.W_k(keys), self.h_kv)
        v = self.split(self.W_v(values), self.h_kv)
        k = k.repeat_interleave(self.h // self.h_kv, dim=1)
        v = v.repeat_interleave(self.h // self.h_kv, dim=1)
        scores = q @ k.mT / self.d**0.5
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        weights = torch.softmax(scores, dim=-1)
        weights = functional.dropout(weights, self.dropout, self.training)
        heads = weights @ v
        merged = heads.transpose(1, 2).flatten(2)
        return self.W_o(merged)

    def split(self, tokens, h):
        b, n, _ = tokens.shape
        return tokens.view(b, n, h, self.d).transpose(1, 2)


class PackedLayer(nn.Module):
    """Self-attention with one matrix for queries, keys and values, as many vision models have it.

    Examples
    --------
    >>> PackedLayer(d_model=6, h=2)(torch.zeros(1, 5, 6)).shape
    torch.Size([1, 5, 6])
    """

    def __init__(self, d_model, h):
        super().__init__()
        self.d_model, self.h, self.d = d_model, h, d_model // h
        self.packed = nn.Linear(d_model, 3 * d_model)
        self.last = nn.Linear(d_model, d_model)

    def forward(self, x, visible=None):
        b, n, _ = x.shape
        q, k, v = self.packed(x).view(b, n, 3, self.h, self.d).permute(2, 0, 3, 1, 4)
        scores = q @ k.mT * self.d**-0.5
        if visible is not None:
            scores = scores.masked_fill(~visible, -torch.inf)
        weights = scores.softmax(dim=-1)
        heads = weights @ v
        return self.last(heads.transpose(1, 2).reshape(b, n, self.d_model))


def attention(q, k, v, visible=None):
    """Attention of heads ``(b, h, n, d)``.

    Examples
    --------
    >>> attention(torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 2, 2), torch.tensor([[[[1.0], [3.0]]]])).tolist()
    [[[[2.0]]]]
    """
    wide = torch.promote_types(q.dtype, torch.float32)
    scores = q.to(wide) @ k.to(wide).mT / q.shape[-1] ** 0.5
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    weights = scores.softmax(dim=-1).to(v.dtype)
    return weights @ v


def both(q, k, v, visible=None):
    """Attention, and the weights with it.

    Examples
    --------
    >>> visible = torch.tensor([[True, False]])
    >>> q, k, v = torch.zeros(1, 1, 1, 2), torch.ones(1, 1, 2, 2), torch.zeros(1, 1, 2, 2)
    >>> both(q, k, v)[1].tolist(), both(q, k, v, visible)[1].tolist()
    ([[[[0.5, 0.5]]]], [[[[1.0, 0.0]]]])
    """
    scores = q @ k.mT / q.shape[-1] ** 0.5
    if visible is not None:
        scores = scores.masked_fill(~visible, -torch.inf)
    weights = scores.softmax(dim=-1)
    return weights @ v, weights


@torch.no_grad()
def load(source, layer):
    """Move the matrices of an ``nn.MultiheadAttention`` into a `Layer`, and return it.

    Examples
    --------
    >>> source = nn.MultiheadAttention(6, 2)
    >>> load(source, Layer(6, 2)).W_k.weight.equal(source.in_proj_weight[6:12])
    True
    """
    W_q, W_k, W_v = source.in_proj_weight.chunk(3)
    b_q, b_k, b_v = source.in_proj_bias.chunk(3)
    layer.W_q.weight.copy_(W_q)
    layer.W_k.weight.copy_(W_k)
    layer.W_v.weight.copy_(W_v)
    layer.W_q.bias.copy_(b_q)
    layer.W_k.bias.copy_(b_k)
    layer.W_v.bias.copy_(b_v)
    layer.W_o.weight.copy_(source.out_proj.weight)
    layer.W_o.bias.copy_(source.out_proj.bias)
    return layer
