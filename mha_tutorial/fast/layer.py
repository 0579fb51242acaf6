"""Multi-head attention in NumPy for long inputs: scores live a tile at a time, and heads share the cores."""

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from .. import gradients
from .._checks import ROWS as convention
from .._sizes import slices
from ..gradients import Gradients
from ..layer import MultiHeadAttention
from ..masks import Mask
from ..reference import row
from ..weights import ColumnWeights, RowWeights
from .backward import Residuals, layer_vjp
from .plan import BLOCK, Block, Job, Plan, Sizes, make_plan
from .softmax import Room, are_bounded, are_exact, fast_base, longest, unshifted_attention
from .threads import blas_threads, parallel_map, with_one_blas_thread

Positions = Int[Array, "*#b n"] | tuple[Int[Array, "*#b n"], Int[Array, "*#b m"]]


class Projected(NamedTuple):
    """What some key-value heads read of some sequences, and how long the longest vectors are."""

    q: Array  # (g, b, r, n, d_k)
    k: Array  # (g, b, m, d_k)
    v: Array  # (g, b, m, d_v)
    longest: list[Array]  # of each of the three, (g,)


class FastMultiHeadAttention:
    """The layer that `MultiHeadAttention` is, without its n×m arrays, and on several cores.

    It has one answer, the output; ``layer.plain.trace`` shows the steps. The score is the scaled dot
    product. The matrices are copied once, when the layer is made: after a change of the weights make another.
    What the fast way is not made for goes to `plain`: floats of other than 32 or 64 bits, a bias of more bits
    than the queries, and inputs without a token.

    With threadpoolctl installed the heads are spread over threads, as many as the matrix products would
    have used by themselves. Without it those use them, and the output is the same.

    Parameters
    ----------
    weights
        In either convention.
    scale, prepare, extra_keys
        As for `MultiHeadAttention`.
    threads
        How many threads share the heads. BLAS then runs on one thread each, and since that is a setting of
        the whole process, a layer that is not told does it only where no other thread of the program runs.
        With a number it is done always, and with 1 never.
    block
        How large the pieces are that the work is cut into.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> layer = FastMultiHeadAttention(RowWeights.random(rng, d_model=512, h=8))
    >>> x = rng.normal(size=(2, 100, 512))
    >>> np.allclose(layer(x), layer.plain(x))
    True
    """

    def __init__(
        self,
        weights: RowWeights | ColumnWeights,
        *,
        scale: float | None = None,
        prepare: row.Prepare | None = None,
        extra_keys: tuple[Float[Array, "h_kv s d_k"], Float[Array, "h_kv s d_v"]] | None = None,
        threads: int | None = None,
        block: Block = BLOCK,
    ):
        self.plain = MultiHeadAttention(weights, scale=scale, prepare=prepare, extra_keys=extra_keys)
        given = self.plain.weights
        self._scale = 1 / math.sqrt(given.d_k) if scale is None else float(scale)
        self._base, self._threads, self._block = fast_base(), threads, block
        # For each key-value head: the queries of all heads that read it, its keys, its values.
        biases = [given.b_q, given.b_k, given.b_v]
        self._parts = [
            (_columns(W, given.h_kv), None if b is None else _columns(b[:, None], given.h_kv)[0])
            for W, b in zip((given.W_q, given.W_k, given.W_v), biases, strict=True)
        ]
        self._packed = None
        if len(set(given.widths)) == 1:  # self-attention is possible, and takes all three in one product
            self._packed = _side_by_side(self._parts)
        self._W_o = np.ascontiguousarray(rearrange(given.W_o, "h d_v d_model -> (h d_v) d_model"))

    def __call__(
        self,
        queries: Float[Array, "*b n d_model"],
        keys: Float[Array, "*b m d_key"] | None = None,
        values: Float[Array, "*b m d_value"] | None = None,
        *,
        visible: Bool[Array, "*#b_h #n #m"] | Mask | None = None,
        bias: Float[Array, "*#b_h #n #m"] | None = None,
        positions: Positions | None = None,
    ) -> Float[Array, "*b n d_model"]:
        """Attend as `MultiHeadAttention` does, with the same arguments.

        Raises
        ------
        TypeError, ValueError
            What `MultiHeadAttention` raises.
        """
        inputs = _defaults(queries, keys, values)
        if not self._suits(inputs, bias):
            return self.plain(*inputs, visible=visible, bias=bias, positions=positions)
        plan, threads = self._plan(inputs, visible, bias)
        prepared = self._prepared(inputs, positions)

        def work(threads: int) -> Array:
            joined, heads = self._room_for_heads(queries)

            def make_worker():
                room = Room(queries.dtype)
                return lambda job: self._attend(job, self._project(job, inputs, room, prepared), plan, heads, room)

            parallel_map(make_worker, plan.jobs, threads)
            return self._write(joined, joined if joined.shape[1] == self._W_o.shape[1] else None, threads)

        return with_one_blas_thread(work, threads).reshape(*queries.shape[:-1], -1)

    def vjp(
        self,
        queries: Float[Array, "*b n d_model"],
        keys: Float[Array, "*b m d_key"] | None = None,
        values: Float[Array, "*b m d_value"] | None = None,
        *,
        visible: Bool[Array, "*#b_h #n #m"] | Mask | None = None,
        bias: Float[Array, "*#b_h #n #m"] | None = None,
        positions: Positions | None = None,
    ) -> tuple[Float[Array, "*b n d_model"], Callable[[Array], Gradients]]:
        """Attend as a call does; return the output and a function that carries a gradient back from it.

        The function takes the derivative of a loss by each number of the output, and returns what
        `gradients.backward` does: the gradients of queries, keys and values (for self-attention, add the
        three), and of the weights as they were given, in the row convention; none of the bias. It may be
        called again.

        It refers to the inputs and the mask, which should not be changed in between, and keeps the
        projections and the heads. The weights of all pairs are computed a second time, in tiles. Only where
        something visible is not finite, or the fast way is not made for the inputs, is all done again as
        `gradients.backward` does it, with n×m arrays.

        Raises
        ------
        TypeError, ValueError
            What `MultiHeadAttention` raises, and the function what `gradients.backward` raises.
        NotImplementedError
            If the layer was made with `prepare` or `extra_keys`, whose gradients are not known here.

        Examples
        --------
        >>> rng = np.random.default_rng(0)
        >>> layer = FastMultiHeadAttention(RowWeights.random(rng, d_model=512, h=8))
        >>> x, target = rng.normal(size=(2, 2, 100, 512))
        >>> output, backward = layer.vjp(x)
        >>> gradients = backward(output - target)  # of half the squared distance
        >>> gradients.Q.shape, gradients.weights.W_o.shape
        ((2, 100, 512), (8, 64, 512))
        """
        for name, given in (("prepare", self.plain.prepare), ("extra_keys", self.plain.extra_keys)):
            if given is not None:
                raise NotImplementedError(
                    f"vjp knows no gradient through {name}=; train such a layer in PyTorch, "
                    f"mha_tutorial.torch.MultiHeadAttention with the same {name}="
                )
        inputs = _defaults(queries, keys, values)

        def plain_backward(output_gradient: Array) -> Gradients:
            trace, (Q, K, V) = self.plain.trace(*inputs, visible=visible, bias=bias), inputs
            return gradients.backward(output_gradient, trace, Q, K, V, self.plain.weights, self._scale)

        if not self._suits(inputs, bias):
            output = self.plain(*inputs, visible=visible, bias=bias, positions=positions)
            return output, plain_backward
        self._prepared(inputs, positions)  # to check the positions
        plan, threads = self._plan(inputs, visible, bias)
        joined, heads = self._room_for_heads(queries)
        residuals: list[Residuals] = []

        def forward(threads: int) -> Array:
            def make_worker():
                room = Room(queries.dtype)
                return lambda job: residuals.extend(
                    self._attend(job, self._project(job, inputs, None, None), plan, heads, room)
                )

            parallel_map(make_worker, plan.jobs, threads)
            return self._write(joined, None, threads)

        output = with_one_blas_thread(forward, threads).reshape(*queries.shape[:-1], -1)

        def backward(output_gradient: Array) -> Gradients:
            convention.check_like("output_gradient", output_gradient, "the output", output)
            if not all(part.finite for part in residuals):  # something visible is not
                return plain_backward(output_gradient)
            found = with_one_blas_thread(
                lambda threads: layer_vjp(
                    output_gradient, inputs, self.plain.weights, joined, residuals, plan, threads
                ),
                threads,
            )
            finite = all(np.isfinite(x).all() for x in (*found[:3], *found.weights.arrays().values()))
            return found if finite else plain_backward(output_gradient)

        return output, backward

    def _suits(self, inputs: tuple[Array, Array, Array], bias: Array | None) -> bool:
        """Check the inputs, and say whether the fast way is made for them."""
        convention.check_inputs(*inputs, self.plain.weights)
        queries, keys, _ = inputs
        if bias is not None:
            convention.check_bias(bias)
            *batch, n, _ = queries.shape
            convention.check_addend(bias, (*batch, self.plain.weights.h, n, keys.shape[-2]))
            if np.promote_types(bias.dtype, queries.dtype) != queries.dtype:
                return False
        return queries.dtype in (np.float32, np.float64) and queries.size > 0 and keys.size > 0

    def _plan(
        self, inputs: tuple[Array, Array, Array], visible: Array | Mask | None, bias: Array | None
    ) -> tuple[Plan, int | None]:
        """How a pass over the inputs is cut, and on how many threads, if that is known already."""
        (*batch, n, _), weights, extra = inputs[0].shape, self.plain.weights, self.plain.extra_keys
        s = 0 if extra is None else extra[0].shape[-2]
        sizes = Sizes(tuple(batch), weights.h, weights.h_kv, n, inputs[1].shape[-2], s)
        threads = 1 if sizes.is_small(self._block) else self._threads
        share = threads or blas_threads()
        how = self.plain.score, self._scale, self._base, self._block, share
        return make_plan(sizes, visible, bias, *how), 1 if share == 1 else threads

    def _prepared(self, inputs: tuple[Array, Array, Array], positions) -> tuple[Array, Array, Array] | None:
        """Queries, keys and values of all heads at once, where that is needed before any can attend."""
        weights, extra_keys = self.plain.weights, self.plain.extra_keys
        if self.plain.prepare is None and extra_keys is None:
            convention.positions(positions, *inputs[:2])
            return None
        everything, batch = slice(0, None), inputs[0].shape[:-2]
        q, k, v, _ = self._project((everything, everything), inputs, None, None)
        Q = rearrange(q, "g b r n d -> b (g r) n d").reshape(*batch, weights.h, *q.shape[-2:])
        K = rearrange(k, "g b m d -> b g m d").reshape(*batch, weights.h_kv, *k.shape[-2:])
        prepared = convention.prepared(self.plain.prepare, positions, inputs[:2], (Q, K))
        q, k = (
            rearrange(x.reshape(-1, *x.shape[-3:]), "b (g r) n d -> g b r n d", g=weights.h_kv) for x in prepared
        )
        k = k[:, :, 0]
        if extra_keys is not None:
            k, v = (
                np.concatenate([x, np.broadcast_to(own[:, None], (*x.shape[:2], *own.shape[1:]))], axis=-2)
                for x, own in zip((k, v), extra_keys, strict=True)
            )
        return q, k, v

    def _room_for_heads(self, queries: Array) -> tuple[Array, Array]:
        """Memory for the heads of all tokens, side by side (b n, h d_v), and how a job sees it."""
        *batch, n, _ = queries.shape
        joined = np.empty((math.prod(batch) * n, len(self._W_o)), queries.dtype)
        sizes = {"n": n, "g": self.plain.weights.h_kv, "r": self.plain.weights.group_size}
        return joined, rearrange(joined, "(b n) (g r d) -> g b r n d", **sizes)

    @np.errstate(over="ignore", invalid="ignore")  # masked positions may hold anything
    def _project(self, job: Job, inputs: tuple[Array, Array, Array], room: Room | None, prepared) -> Projected:
        """Map the tokens of a job to queries, keys and values."""
        groups, entries = job
        if prepared is not None:
            q, k, v = (x[groups, entries] for x in prepared)
            return Projected(q, k, v, longest(q, k, v))
        weights, made = self.plain.weights, []
        one = self._packed is not None and inputs[0] is inputs[1] is inputs[2]
        parts = [self._packed] if self._packed is not None and one else self._parts
        for name, tokens, (W, b) in zip("qkv", inputs, parts, strict=False):
            x = tokens.reshape(-1, *tokens.shape[-2:])[entries]
            rows, columns = x.reshape(-1, x.shape[-1]), W[:, groups].reshape(len(W), -1)
            shape = len(rows), columns.shape[1]
            out = np.empty(shape, x.dtype) if room is None else room(name, *shape)
            np.matmul(rows, columns, out=out)
            if b is not None:
                out += b[groups].reshape(-1)
            made.append(np.moveaxis(out.reshape(*x.shape[:-1], -1, W.shape[-1]), 2, 0))
        r, d_k = weights.group_size, weights.d_k
        lengths = []
        if one:
            if d_k == weights.d_v:  # all vectors as they lie in memory, one after the other
                squares = np.vecdot(*[out.reshape(len(out), -1, r + 2, d_k)] * 2).max(axis=0)
                lengths = [np.sqrt(x) for x in (squares[:, :r].max(axis=1), squares[:, r], squares[:, r + 1])]
            made = [made[0][..., : r * d_k], made[0][..., r * d_k : (r + 1) * d_k], made[0][..., (r + 1) * d_k :]]
        q, k, v = made
        q = q.reshape(*q.shape[:-1], r, d_k).swapaxes(2, 3)
        return Projected(q, k, v, lengths or longest(q, k, v))

    def _attend(self, job: Job, projected: Projected, plan: Plan, heads: Array, room: Room) -> list[Residuals]:
        """Write the heads of a job to where they belong among all (g, b, r, n, d_v)."""
        groups, entries = job
        plainly = np.full(len(projected.q), plan.bias is None) & ~are_exact(projected.q, projected.k)
        everywhere = plainly & are_bounded(projected.longest, plan.scale)
        kept = []
        for some in slices(len(projected.q), plan.together):
            part = slice(groups.start + some.start, groups.start + some.stop), entries
            q, k, v = (x[some] for x in projected[:3])
            finite = everywhere[some].all() or all(np.isfinite(x).all() for x in (q, k, v))
            if not finite:  # masked positions may hold NaN
                q, k, v = plan.without_hidden(part, q, k, v)
                finite = all(np.isfinite(x).all() for x in (q, k, v))
            bounded = []
            for tile in (tile.of(*part) for tile in plan.tiles):
                some_q, some_k, some_v = q[..., tile.queries, :], k[..., tile.keys, :], v[..., tile.keys, :]
                here = everywhere[some].all() or not tile.kv_tiles
                here = here or (plainly[some] & are_bounded(longest(some_q, some_k, some_v), plan.scale)).all()
                bounded.append(bool(here))
                if here:
                    scaled = room.copy("queries", some_q, plan.scale * plan.base.factor)
                    out = heads[part][..., tile.queries, :]
                    unshifted_attention(scaled, k, v, tile.kv_tiles, plan.base.power, room, out)
                    continue
                for queries in plan.rows(tile, q.shape[:3]):
                    made = plan.safe_attention(part, q[..., queries, :], k, v, queries, tile.keys)
                    heads[part][..., queries, :] = made[-1]
            kept.append(Residuals(part, q, k, v, bounded, finite))
        return kept

    def _write(self, joined: Array, output: Array | None, threads: int) -> Array:
        """Map the heads of all tokens, side by side, to the output, which may take their place."""
        output = np.empty((len(joined), self._W_o.shape[1]), joined.dtype) if output is None else output
        b_o = self.plain.weights.b_o
        added = np.zeros((), joined.dtype) if b_o is None else b_o

        def make_worker():
            room = Room(joined.dtype)

            def work(some: slice) -> None:
                written = np.matmul(joined[some], self._W_o, out=room("output", *output[some].shape))
                np.add(written, added, out=output[some])

            return work

        parallel_map(make_worker, slices(len(joined), min(self._block.tokens, -(-len(joined) // threads))), threads)
        return output


def _columns(matrices: Array, h_kv: int) -> Array:
    """What belongs to each key-value head, side by side: (d_in, h_kv, group d)."""
    return np.ascontiguousarray(rearrange(matrices, "(g r) d_in d -> d_in g (r d)", g=h_kv))


def _side_by_side(parts: list[tuple[Array, Array | None]]) -> tuple[Array, Array | None]:
    """The matrices and biases of queries, keys and values as one."""
    W = np.concatenate([W for W, _ in parts], axis=-1)
    if all(b is None for _, b in parts):
        return W, None
    biases = [np.zeros(W.shape[1:], W.dtype) if b is None else b for W, b in parts]
    return W, np.concatenate(biases, axis=-1)


def _defaults(queries, keys, values):
    """What is attended to is the queries, and what is averaged is the keys, unless something else is."""
    keys = queries if keys is None else keys
    return queries, keys, keys if values is None else values
