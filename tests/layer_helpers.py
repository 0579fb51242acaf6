"""Weights, tokens and gradients of one layer, as several test files draw and compare them."""

import numpy as np

from mha_tutorial import ColumnWeights, RowWeights, gradients
from tests.helpers import D_K, D_MODEL, D_V, H, M, N


def draw(rng, h=H, h_kv=H, widths=(D_MODEL, 19, 23), bias=True):
    """Weights whose inputs have widths of their own."""
    weights = ColumnWeights.random(rng, D_MODEL, h, h_kv, d_k=D_K, d_v=D_V, bias=bias).arrays()
    for name, width in zip(("W_q", "W_k", "W_v"), widths, strict=True):
        weights[name] = rng.normal(size=(*weights[name].shape[:2], width)) / width**0.5
    return ColumnWeights(**weights)


def passing_on(q, k, v):
    """Inputs and weights whose projections give back these (h, n, d_k), (h_kv, m, d_k), (h_kv, m, d_v)."""

    def side_by_side(heads):
        h, tokens, d = heads.shape
        return heads.transpose(1, 0, 2).reshape(tokens, h * d), np.eye(h * d).reshape(h, d, h * d).mT

    pairs = [side_by_side(heads) for heads in (q, k, v)]
    h, d_v = len(q), v.shape[-1]
    return [x for x, _ in pairs], RowWeights(*(W for _, W in pairs), W_o=np.ones((h, d_v, 1)))


def tokens(rng, n=N, m=M, batch=(2,), dtype=np.float64):
    return tuple(rng.normal(size=(*batch, *size)).astype(dtype) for size in ((n, D_MODEL), (m, 19), (m, 23)))


def converted(weights, dtype):
    return RowWeights(**{name: array.astype(dtype) for name, array in weights.arrays().items()})


def both_ways(layer, inputs, visible=None):
    """The gradients of the fast and of the plain layer for one random gradient of the output."""
    output, backward = layer.vjp(*inputs, visible=visible)
    output_gradient = np.random.default_rng(11).normal(size=output.shape).astype(output.dtype)
    return backward(output_gradient), plain_gradients(layer.plain, inputs, output_gradient, visible)


def plain_gradients(plain, inputs, output_gradient, visible=None):
    Q, *others = inputs
    Q, K, V = [Q, Q, Q] if not others else [Q, *others] if len(others) == 2 else [Q, *others * 2]
    trace = plain.trace(Q, K, V, visible=visible)
    return gradients.backward(output_gradient, trace, Q, K, V, plain.weights)


def as_dictionary(found):
    return dict(zip("QKV", found[:3], strict=True)) | found.weights.arrays()
