"""The projections of all heads, packed once so that the tokens of a job need one product."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np
from einops import rearrange
from numpy import ndarray as Array

from .._checks import ROWS as convention
from .._sizes import slices
from ..layer import MultiHeadAttention
from .plan import Job
from .softmax import max_norms
from .threads import parallel_map
from .workspace import Buffer, Workspace


class Projected(NamedTuple):
    """Queries, keys and values of some key-value heads in some sequences."""

    q: Array  # (g, b, r, n, d_k)
    k: Array  # (g, b, m, d_k)
    v: Array  # (g, b, m, d_v)
    norms: list[Array]  # of the longest query, key and value, (g,) each


class Projections:
    """What a layer does to tokens before and after attention.

    Parameters
    ----------
    layer
        Its weights are copied, so that those of all heads lie side by side.

    Examples
    --------
    >>> from ..weights import RowWeights
    >>> layer = MultiHeadAttention(RowWeights.random(np.random.default_rng(0), d_model=12, h=6, h_kv=3))
    >>> x = np.random.default_rng(1).normal(size=(5, 7, 12))
    >>> projected = Projections(layer).project((slice(0, 2), slice(1, 5)), (x, x, x))
    >>> projected.q.shape, projected.k.shape
    ((2, 4, 2, 7, 2), (2, 4, 7, 2))
    """

    def __init__(self, layer: MultiHeadAttention):
        self._layer, weights = layer, layer.weights
        # For each key-value head: the queries of all heads that read it, its keys, its values.
        biases = [weights.b_q, weights.b_k, weights.b_v]
        self._separate = [
            (_columns(W, weights.h_kv), None if b is None else _columns(b[:, None], weights.h_kv)[0])
            for W, b in zip((weights.W_q, weights.W_k, weights.W_v), biases, strict=True)
        ]
        self._packed = None
        if len(set(weights.widths)) == 1:  # self-attention is possible, and takes all three in one product
            self._packed = _side_by_side(self._separate)
        self._W_o = np.ascontiguousarray(rearrange(weights.W_o, "h d_v d_model -> (h d_v) d_model"))

    def project(
        self, job: Job, inputs: tuple[Array, Array, Array], workspace: Workspace | None = None
    ) -> Projected:
        """Map the tokens of a job to queries, keys and values, in new memory or in that of a workspace."""
        r, d_k = self._layer.weights.group_size, self._layer.weights.d_k
        norms: list[Array] = []
        if self._packed is not None and inputs[0] is inputs[1] is inputs[2]:
            qkv = _apply(job, workspace, self._packed, inputs[0], Buffer.PACKED)
            q, k, v = qkv[..., : r * d_k], qkv[..., r * d_k : (r + 1) * d_k], qkv[..., (r + 1) * d_k :]
            if d_k == self._layer.weights.d_v:  # read all vectors in the order in which they lie in memory
                of_each = max_norms(qkv.reshape(*qkv.shape[:-1], r + 2, d_k), keep=-2)
                norms = [of_each[:, :r].max(axis=1), of_each[:, r], of_each[:, r + 1]]
        else:
            buffers = Buffer.QUERIES, Buffer.KEYS, Buffer.VALUES
            q, k, v = map(partial(_apply, job, workspace), self._separate, inputs, buffers)
        q = q.reshape(*q.shape[:-1], r, d_k).swapaxes(2, 3)
        return Projected(q, k, v, norms or [max_norms(x) for x in (q, k, v)])

    def prepare(self, inputs: tuple[Array, Array, Array], positions) -> tuple[Array, Array, Array] | None:
        """Queries, keys and values of all heads, where a layer acts on them before they attend; else None.

        Raises
        ------
        TypeError, ValueError
            If the positions do not fit.
        """
        layer, weights = self._layer, self._layer.weights
        if layer.prepare is None and layer.extra_keys is None:
            convention.positions(positions, *inputs[:2])
            return None
        batch = inputs[0].shape[:-2]
        q, k, v, _ = self.project((slice(0, None), slice(0, None)), inputs)
        Q = rearrange(q, "g b r n d -> b (g r) n d").reshape(*batch, weights.h, *q.shape[-2:])
        K = rearrange(k, "g b m d -> b g m d").reshape(*batch, weights.h_kv, *k.shape[-2:])
        Q, K = convention.prepared(layer.prepare, positions, inputs[:2], (Q, K))
        q = rearrange(Q.reshape(-1, *Q.shape[-3:]), "b (g r) n d -> g b r n d", g=weights.h_kv)
        k = rearrange(K.reshape(-1, *K.shape[-3:]), "b g m d -> g b m d")
        if layer.extra_keys is not None:
            k, v = (
                np.concatenate([x, np.broadcast_to(own[:, None], (*x.shape[:2], *own.shape[1:]))], axis=-2)
                for x, own in zip((k, v), layer.extra_keys, strict=True)
            )
        return q, k, v

    def write(self, concat_heads: Array, threads: int, most: int, in_place: bool) -> Array:
        """Map the heads of all tokens, side by side (b n, h d_v), to the output, at most so many tokens at a time.

        Parameters
        ----------
        in_place
            Whether the output may take the place of the heads, where it is as wide as they are.
        """
        shape = len(concat_heads), self._W_o.shape[1]
        output = concat_heads if in_place and shape == concat_heads.shape else np.empty(shape, concat_heads.dtype)
        b_o = self._layer.weights.b_o
        b_o = np.zeros((), output.dtype) if b_o is None else b_o

        def make_worker():
            workspace = Workspace(output.dtype)

            def work(some: slice) -> None:
                written = np.matmul(
                    concat_heads[some], self._W_o, out=workspace(Buffer.OUTPUT, *output[some].shape)
                )
                np.add(written, b_o, out=output[some])

            return work

        parallel_map(make_worker, slices(len(output), min(most, math.ceil(len(output) / threads))), threads)
        return output


@np.errstate(over="ignore", invalid="ignore")  # masked positions may hold NaN
def _apply(
    job: Job, workspace: Workspace | None, part: tuple[Array, Array | None], tokens: Array, buffer: Buffer
) -> Array:
    """Multiply the tokens of a job by the matrices of its heads: (g, b, n, columns of one)."""
    (W, b), (groups, entries) = part, job
    x = tokens.reshape(-1, *tokens.shape[-2:])[entries]
    rows, columns = x.reshape(-1, x.shape[-1]), W[:, groups].reshape(len(W), -1)
    shape = len(rows), columns.shape[1]
    projected = np.empty(shape, x.dtype) if workspace is None else workspace(buffer, *shape)
    np.matmul(rows, columns, out=projected)
    if b is not None:
        projected += b[groups].reshape(-1)
    return np.moveaxis(projected.reshape(*x.shape[:-1], -1, W.shape[-1]), 2, 0)


def _columns(matrices: Array, h_kv: int) -> Array:
    """The columns that belong to each key-value head, side by side: (d_in, h_kv, r d)."""
    return np.ascontiguousarray(rearrange(matrices, "(g r) d_in d -> d_in g (r d)", g=h_kv))


def _side_by_side(parts: list[tuple[Array, Array | None]]) -> tuple[Array, Array | None]:
    """The matrices and biases of queries, keys and values as one."""
    W = np.concatenate([W for W, _ in parts], axis=-1)
    if all(b is None for _, b in parts):
        return W, None
    biases = [np.zeros(W.shape[1:], W.dtype) if b is None else b for W, b in parts]
    return W, np.concatenate(biases, axis=-1)
