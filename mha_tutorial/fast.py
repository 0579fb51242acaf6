"""Multi-head attention in NumPy for long inputs: scores live a tile at a time, and heads share the cores."""

from collections.abc import Callable

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float
from numpy import ndarray as Array

from . import gradients
from ._checks import ROWS as convention
from .averages import average, exactly, fast_exponential
from .fast_backward import Attended, product_of, through_layer
from .folds import drop_key_bias, fold_scale, fold_value_bias
from .gradients import Gradients
from .layer import MultiHeadAttention
from .masks import Mask
from .threads import spread
from .weights import ColumnWeights, RowWeights
from .work import Job, Work, divided


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
        keys, values = _defaults(queries, keys, values)
        if not self._suits(queries, keys, values):
            return self.plain(queries, keys, values, visible=visible)
        with divided(self.plain.weights, (queries, keys, values), visible) as work:
            # The average of values that all moved is the average, moved: but only where there is one.
            b_v, b_o = (None, self._folded_b_o) if work.all_see else (self._b_v, self._b_o)
            joined = np.empty((queries[..., 0].size, len(self._W_o)), queries.dtype)

            def attend(job: Job) -> None:
                self._attend(job, work, b_v, joined)  # and keep nothing

            spread(attend, work.jobs, work.threads)
            return self._write(joined, b_o, work.threads).reshape(*queries.shape[:-1], -1)

    def with_backward(
        self,
        queries: Float[Array, "*b n d_model"],
        keys: Float[Array, "*b m d_key"] | None = None,
        values: Float[Array, "*b m d_value"] | None = None,
        *,
        visible: Bool[Array, "*#b_h #n #m"] | Mask | None = None,
    ) -> tuple[Float[Array, "*b n d_model"], Callable[[Array], Gradients]]:
        """Attend as a call does; return the output and a function that carries a gradient back from it.

        The function takes the derivative of a loss by each number of the output, and returns what
        `gradients.backward` does: the gradients of queries, keys and values (for self-attention, add the
        three), and of the weights as they were given, in the row convention. It may be called again.

        It refers to the inputs and the mask, which should not be changed in between, and keeps the
        projections, the heads and two numbers for each query and head. The weights of all pairs are
        computed a second time, in tiles. Only where something is not finite, or the fast way is not made
        for the inputs, is all done again as `gradients.backward` does it, with n×m arrays.

        Raises
        ------
        TypeError, ValueError
            What `reference.row.multi_head` raises, and the function what `gradients.backward` raises.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> layer = FastMultiHeadAttention(RowWeights.random(rng, d_model=512, h=8))
        >>> x, target = rng.normal(size=(2, 2, 100, 512))
        >>> output, backward = layer.with_backward(x)
        >>> gradients = backward(output - target)  # of half the squared distance
        >>> gradients.Q.shape, gradients.weights.W_o.shape
        ((2, 100, 512), (8, 64, 512))
        """
        keys, values = _defaults(queries, keys, values)
        inputs = queries, keys, values

        def plain_backward(output_gradient: Array) -> Gradients:
            trace = self.plain.trace(*inputs, visible=visible)
            return gradients.backward(output_gradient, trace, queries, keys, values, self.plain.weights)

        if not self._suits(*inputs):
            return self.plain(*inputs, visible=visible), plain_backward
        with divided(self.plain.weights, inputs, visible) as work:
            joined = np.empty((queries[..., 0].size, len(self._W_o)), queries.dtype)
            attended = spread(lambda job: self._attend(job, work, self._b_v, joined), work.jobs, work.threads)
            output = self._write(joined, self._b_o, work.threads).reshape(*queries.shape[:-1], -1)

        def backward(output_gradient: Array) -> Gradients:
            convention.check_like("output_gradient", output_gradient, "the output", output)
            with work.blas:
                found = through_layer(
                    output_gradient, inputs, self.plain.weights, joined, attended, self._exponential, work
                )
            finite = all(np.isfinite(x).all() for x in (*found[:3], *found.weights.arrays().values()))
            return found if finite else plain_backward(output_gradient)

        return output, backward

    def _suits(self, queries: Array, keys: Array, values: Array) -> bool:
        """Check the inputs, and say whether the fast way is made for them."""
        convention.check_inputs(queries, keys, values, self.plain.weights)
        return self.plain.weights.dtype in (np.float32, np.float64) and queries.size > 0 and keys.size > 0

    def _attend(self, job: Job, work: Work, b_v: Array | None, joined: Array) -> Attended:
        """Write some heads of some sequences to where they belong among all."""
        groups, entries = job
        q, k, v = self._project([x[entries] for x in work.tokens], groups, b_v)
        weights, m = self.plain.weights, k.shape[-2]
        heads = rearrange(
            joined, "(b n) (g r d) -> g r b n d", b=len(work.tokens[0]), g=weights.h_kv, r=weights.group
        )
        shifts, sums = np.zeros((2, *q.shape[:-1], 1), q.dtype)
        for queries, pieces in (tile.of(groups, entries) for tile in work.plan):
            some, out = q[..., queries, :], heads[groups, :, entries, queries]
            plainly = average(some, k, v, pieces, self._exponential, out)
            if plainly is None:
                seen = work.sight(queries, slice(0, m))[groups, :, entries]
                out[...], shifts[..., queries, :], sums[..., queries, :] = exactly(
                    some, k, v, seen, self._exponential
                )
            else:
                sums[..., queries, :] = plainly
        return Attended(groups, entries, q, k, v, shifts, sums)

    def _write(self, joined: Array, b_o: Array | None, threads: int) -> Array:
        """Map the heads of all tokens, side by side, to the output."""
        output = product_of(joined, self._W_o, threads)
        return output if b_o is None else np.add(output, b_o, out=output)

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
            first, second = self._cuts
            parts = [parts[0][..., :first], parts[0][..., first:second], parts[0][..., second:]]
        q = rearrange(parts[0], "g b n (r d) -> g r b n d", r=self.plain.weights.group)
        k, v = (part[:, None] for part in parts[1:])
        if self._b_q is not None:
            q += self._b_q[groups]
        if b_v is not None:
            v += b_v[groups]
        return q, k, v


def _defaults(queries, keys, values):
    """What is attended to is the queries, and what is averaged is the keys, unless something else is."""
    keys = queries if keys is None else keys
    return keys, keys if values is None else values
