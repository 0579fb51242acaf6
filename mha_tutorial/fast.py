"""Multi-head attention in NumPy for long inputs: scores live a tile at a time, and heads share the cores."""

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from itertools import product

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from ._checks import ROWS as convention
from .folds import drop_key_bias, fold_scale, fold_value_bias
from .layer import MultiHeadAttention
from .masks import Mask
from .reference import row
from .threads import ONE_BLAS_THREAD, spread
from .tiles import Sight, Tile, cut
from .weights import ColumnWeights, RowWeights

TOKENS = 512  # projected at a time, or one sequence: what a head makes of them stays in a core's cache
SCORES = 2**18  # in a tile: a mebibyte of float32
SIDE = 512  # of a tile, at most
MASKED_SIDE = 256  # the smaller the tiles, the more of what a mask hides can be skipped
TINY = 64  # so few tokens are not worth a thread

SUMS = 2.0**-60, 2.0**60  # A query's exponentials stand as they are if their sum lies between these,
RESULTS = 2.0**-100, 2.0**100  # and the largest number of a tile, before it is divided by it, between these.

Exponential = Callable[..., Array]


class FastMultiHeadAttention:
    """The layer that `MultiHeadAttention` is, without its n×m arrays, and on several cores.

    It has one answer, the output; ``layer.plain.trace`` shows the steps. The score is the scaled dot
    product. The weights are folded once, when the layer is made: after a change of theirs make another.
    What the fast way is not made for goes to `plain`: floats of other than 32 or 64 bits, and inputs
    without a token.

    With threadpoolctl installed the heads are spread over threads, as many as the matrix products would
    have used by themselves. Without it those use them, and the output is the same.

    Parameters
    ----------
    weights
        In either convention.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> layer = FastMultiHeadAttention(RowWeights.random(rng, d_model=512, h=8))
    >>> x = rng.normal(size=(2, 100, 512))
    >>> np.allclose(layer(x), layer.plain(x))
    True
    """

    def __init__(self, weights: RowWeights | ColumnWeights):
        self.plain = MultiHeadAttention(weights)
        given, self._exponential = self.plain.weights, fast_exponential()
        folded = fold_value_bias(drop_key_bias(fold_scale(given, self._exponential)))
        # Columns of one key-value head side by side: the queries of all heads that read it, its keys, its values.
        W_q = rearrange(folded.W_q, "(g r) d_in d -> d_in g (r d)", g=given.h_kv)
        W_k, W_v = (rearrange(W, "g d_in d -> d_in g d") for W in (folded.W_k, folded.W_v))
        self._matrices = [np.ascontiguousarray(W) for W in (W_q, W_k, W_v)]
        self._cuts = W_q.shape[-1], W_q.shape[-1] + given.d_k
        if len(set(given.widths)) == 1:  # self-attention is possible, and takes all three in one product
            self._packed = np.concatenate(self._matrices, axis=-1)
        self._W_o = np.ascontiguousarray(rearrange(folded.W_o, "h d_v d_model -> (h d_v) d_model"))
        self._b_q = None if folded.b_q is None else rearrange(folded.b_q, "(g r) d -> g r 1 1 d", g=given.h_kv)
        self._b_v = None if given.b_v is None else rearrange(given.b_v, "g d -> g 1 1 1 d")
        self._b_o, self._folded_b_o = given.b_o, folded.b_o

    def __call__(
        self,
        queries: Float[Array, "*b n d_model"],
        keys: Float[Array, "*b m d_key"] | None = None,
        values: Float[Array, "*b m d_value"] | None = None,
        *,
        visible: Bool[Array, "*#b_h #n #m"] | Mask | None = None,
    ) -> Float[Array, "*b n d_model"]:
        """Attend as `MultiHeadAttention` does, with the same arguments.

        Raises
        ------
        TypeError, ValueError
            What `reference.row.multi_head` raises.
        """
        keys = queries if keys is None else keys
        values = keys if values is None else values
        weights = self.plain.weights
        convention.check_inputs(queries, keys, values, weights)
        if weights.dtype not in (np.float32, np.float64) or not (queries.size and keys.size):
            return self.plain(queries, keys, values, visible=visible)

        batch, n, m = queries.shape[:-2], queries.shape[-2], keys.shape[-2]
        b = math.prod(batch)
        distinct = [queries] if keys is queries and values is queries else [queries, keys, values]
        tokens = [x.reshape(b, *x.shape[-2:]) for x in distinct]
        sight = Sight(visible, (*batch, weights.h, n, m), weights.h_kv)
        few = b * max(n, m) <= TINY or b * weights.h_kv == 1
        with nullcontext(1) if few else ONE_BLAS_THREAD as threads:
            groups, entries = (weights.h_kv, b) if few else (1, _entries(b, max(n, m), weights.h_kv, threads))
            side = SIDE if visible is None else MASKED_SIDE
            rows = SCORES // (groups * weights.group * entries * min(m, side))
            plan, all_see = sight.plan(cut(n, max(1, min(rows, side))), cut(m, side))
            jobs = product(cut(weights.h_kv, groups), cut(b, entries))
            output = self._forward(tokens, sight, plan, all_see, jobs, threads)
        return output.reshape(*batch, n, -1)

    def _forward(
        self, tokens: list[Array], sight: Sight, plan: list[Tile], all_see: bool, jobs: Iterable, threads: int
    ) -> Array:
        """Let every head fill in what it finds, job by job, and map all of it to the output."""
        weights, (b, n, _), m = self.plain.weights, tokens[0].shape, tokens[-1].shape[1]
        # The average of values that all moved is the average, moved: but only where there is one.
        b_v, b_o = (None, self._folded_b_o) if all_see else (self._b_v, self._b_o)
        joined = np.empty((b * n, len(self._W_o)), weights.dtype)
        heads = rearrange(joined, "(b n) (g r d) -> g r b n d", n=n, g=weights.h_kv, r=weights.group)
        output = np.empty((b * n, weights.d_model), weights.dtype)

        def attend(job: tuple[slice, slice]) -> None:
            groups, entries = job
            q, k, v = self._project([x[entries] for x in tokens], groups, b_v)
            for queries, pieces in (tile.of(groups, entries) for tile in plan):
                some, out = q[..., queries, :], heads[groups, :, entries, queries]
                if not average(some, k, v, pieces, self._exponential, out):
                    seen = sight(queries, slice(0, m))[groups, :, entries]
                    out[...] = exactly(some, k, v, seen, self._exponential)

        def write(rows: slice) -> None:
            np.matmul(joined[rows], self._W_o, out=output[rows])
            if b_o is not None:
                output[rows] += b_o

        spread(attend, jobs, threads)
        spread(write, cut(b * n, -(-b * n // threads)), threads)
        return output

    @np.errstate(over="ignore", invalid="ignore")  # anything may stand where no query looks
    def _project(self, tokens: list[Array], groups: slice, b_v: Array | None) -> tuple[Array, Array, Array]:
        """Make the queries (g, r, b, n, d_k), keys (g, 1, b, m, d_k) and values (g, 1, b, m, d_v) of some heads."""
        b, matrices = len(tokens[0]), [self._packed] if len(tokens) == 1 else self._matrices
        parts = []
        for x, W in zip(tokens, matrices, strict=True):
            columns = W[:, groups].reshape(len(W), -1)
            projected = x.reshape(-1, len(W)) @ columns
            parts.append(rearrange(projected, "(b n) (g d) -> g b n d", b=b, d=W.shape[-1]))
        if len(parts) == 1:
            parts = np.split(parts[0], self._cuts, axis=-1)
        q = rearrange(parts[0], "g b n (r d) -> g r b n d", r=self.plain.weights.group)
        k, v = (part[:, None] for part in parts[1:])
        if self._b_q is not None:
            q += self._b_q[groups]
        if b_v is not None:
            v += b_v[groups]
        return q, k, v


def _entries(b: int, tokens: int, h_kv: int, threads: int) -> int:
    """How many sequences a head takes at a time: as many as fit and leave work for every thread."""
    return max(1, min(TOKENS // tokens, b * h_kv // threads, b))


def fast_exponential() -> Exponential:
    """Choose the faster of exp2 and exp: NumPy has a vector loop for exp2 only where there is AVX-512.

    Examples
    --------
    >>> fast_exponential() in (np.exp, np.exp2)
    True
    """
    extensions = np.show_config(mode="dicts")["SIMD Extensions"]
    there = {*extensions.get("baseline", ()), *extensions.get("found", ())}
    return np.exp2 if there & {"AVX512_SKX", "X86_V4"} else np.exp


@np.errstate(all="ignore")  # the guards look at what comes of it
def average(
    q: Array, k: Array, v: Array, pieces: list[tuple[slice, Array | None]], exponential: Exponential, out: Array
) -> bool:
    """Average the values by the exponentials of scores as they are; say whether the result can be trusted.

    Softmax takes the largest score off first, which costs two passes over the scores and protects from
    overflow. Where the sums of the exponentials and the results are of a moderate size, there was none.
    """
    sums = np.zeros((*q.shape[:-1], 1), q.dtype)
    for keys, seen in pieces:
        weights = q @ k[..., keys, :].mT
        exponential(weights, out=weights)
        if seen is not None:
            weights *= seen
        sums += weights @ np.ones((weights.shape[-1], 1), q.dtype)  # faster than weights.sum(axis=-1)
        if keys is pieces[0][0]:
            np.matmul(weights, v[..., keys, :], out=out)
        else:
            out += weights @ v[..., keys, :]
    if not (SUMS[0] < sums.min() and sums.max() < SUMS[1]):
        return False
    if not RESULTS[0] < max(out.max(), -out.min()) < RESULTS[1]:
        return False
    out /= sums  # the few results, not the many weights
    return True


def exactly(q: Array, k: Array, v: Array, seen: Array, exponential: Exponential) -> Array:
    """Average the values as the reference does, with the largest score taken off and nothing hidden let through."""
    k, v = (np.broadcast_to(x, (*q.shape[:-2], *x.shape[-2:])) for x in (k, v))
    q = q * math.log(exponential(1.0))  # the queries are scaled for the base of the exponential
    return row.attend(q, k, v, row.dot_product, seen, has_heads=False)[-1]
