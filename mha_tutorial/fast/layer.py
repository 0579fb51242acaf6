"""Multi-head attention in NumPy for long inputs: scores live a tile at a time, and heads share the cores."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
from einops import rearrange
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

from .. import gradients
from .._checks import ROWS as convention
from .._checks import Number
from ..gradients import Gradients
from ..layer import MultiHeadAttention
from ..masks import Mask
from ..reference import row
from ..weights import ColumnWeights, RowWeights
from .backward import layer_vjp
from .forward import Residuals, attend
from .plan import BLOCK, Block, Job, Plan, Sizes, make_plan
from .projections import Projected, Projections
from .softmax import Scoring, fast_exponential, max_norms
from .threads import blas_threads, parallel_map, with_one_blas_thread
from .workspace import Workspace

Inputs = tuple[Array, Array, Array]  # queries, keys and values
Positions = Int[Array, "*#b n"] | tuple[Int[Array, "*#b n"], Int[Array, "*#b m"]]


class FastMultiHeadAttention:
    """The layer that `MultiHeadAttention` is, without its n×m arrays, and on several cores.

    It returns the output alone; ``layer.plain.trace`` shows the steps. The score is the scaled dot product. The
    matrices are copied once, when the layer is made: after a change of the weights make another. Floats of other
    than 32 or 64 bits, a bias of more bits than the queries, and inputs without a token go to `plain`.

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
        The largest sizes of the pieces that a pass is cut into.
    exponential
        ``np.exp2`` or ``np.exp``; the faster of the two on this processor if left out.

    References
    ----------
    Rabe and Staats, *Self-attention Does Not Need O(n²) Memory*; Dao and others, *FlashAttention*.

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
        scale: Number | None = None,
        prepare: row.Prepare | None = None,
        extra_keys: tuple[Float[Array, "h_kv s d_k"], Float[Array, "h_kv s d_v"]] | None = None,
        threads: int | None = None,
        block: Block = BLOCK,
        exponential: Callable | None = None,
    ):
        self.plain = MultiHeadAttention(weights, scale=scale, prepare=prepare, extra_keys=extra_keys)
        scale = 1 / math.sqrt(self.plain.weights.d_k) if scale is None else float(scale)
        self._scoring = Scoring(self.plain.score, scale, exponential or fast_exponential())
        self._projections = Projections(self.plain)
        self._threads, self._block = threads, block

    def __call__(
        self,
        queries: Float[Array, "*b n d_query"],
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
        if not self._supports(inputs, bias):
            return self.plain(*inputs, visible=visible, bias=bias, positions=positions)
        plan, threads = self._plan(inputs, visible, bias)
        prepared = self._projections.prepare(inputs, positions)

        def forward(threads: int) -> Array:
            output, _ = self._forward(inputs, plan, threads, prepared)
            return output

        return with_one_blas_thread(forward, threads)

    def vjp(
        self,
        queries: Float[Array, "*b n d_query"],
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
        projections and the heads. Attention is computed a second time, some rows at a time. Where something
        visible or a gradient is not finite, and for inputs that go to `plain`, it is `gradients.backward`, with
        n×m arrays.

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
        plain_backward = partial(self._plain_backward, inputs, visible, bias)
        if not self._supports(inputs, bias):
            return self.plain(*inputs, visible=visible, bias=bias, positions=positions), plain_backward
        convention.positions(positions, *inputs[:2])
        plan, threads = self._plan(inputs, visible, bias)
        residuals: list[Residuals] = []
        output, concat_heads = with_one_blas_thread(
            lambda threads: self._forward(inputs, plan, threads, residuals=residuals), threads
        )

        def backward(output_gradient: Array) -> Gradients:
            convention.check_like("output_gradient", output_gradient, "the output", output)
            if not all(part.finite for part in residuals):
                return plain_backward(output_gradient)
            weights = self.plain.weights
            found = with_one_blas_thread(
                lambda threads: layer_vjp(output_gradient, inputs, weights, concat_heads, residuals, plan, threads),
                threads,
            )
            finite = all(np.isfinite(x).all() for x in (*found[:3], *found.weights.arrays().values()))
            return found if finite else plain_backward(output_gradient)

        return output, backward

    def _forward(
        self,
        inputs: Inputs,
        plan: Plan,
        threads: int,
        prepared: Inputs | None = None,
        residuals: list[Residuals] | None = None,
    ) -> tuple[Array, Array]:
        """The output, and the heads of all tokens side by side (b n, h d_v).

        With a list for the residuals these are appended; without one, memory is used again: projections do not
        outlast their job, and the output may take the place of the heads.
        """
        *batch, n, _ = inputs[0].shape
        weights, dtype, keep = self.plain.weights, inputs[0].dtype, residuals is not None
        concat_heads = np.empty((math.prod(batch) * n, weights.h * weights.d_v), dtype)
        heads = rearrange(concat_heads, "(b n) (g r d) -> g b r n d", n=n, g=weights.h_kv, r=weights.group_size)

        def make_worker():
            workspace = Workspace(dtype)

            def work(job: Job) -> None:
                if prepared is None:
                    projected = self._projections.project(job, inputs, None if keep else workspace)
                else:
                    q, k, v = (x[job] for x in prepared)
                    projected = Projected(q, k, v, [max_norms(x) for x in (q, k, v)])
                kept = attend(job, projected, plan, heads, workspace)
                if residuals is not None:
                    residuals.extend(kept)

            return work

        parallel_map(make_worker, plan.jobs, threads)
        output = self._projections.write(concat_heads, threads, self._block.tokens, in_place=not keep)
        return output.reshape(*batch, n, -1), concat_heads

    def _plain_backward(
        self, inputs: Inputs, visible: Array | Mask | None, bias: Array | None, output_gradient: Array
    ) -> Gradients:
        """Carry a gradient back as `gradients.backward` does, with n×m arrays."""
        trace = self.plain.trace(*inputs, visible=visible, bias=bias)
        return gradients.backward(output_gradient, trace, *inputs, self.plain.weights, self._scoring.scale)

    def _supports(self, inputs: Inputs, bias: Array | None) -> bool:
        """Check the inputs, and say whether tiles are made for them."""
        convention.check_inputs(*inputs, self.plain.weights)
        queries, keys, _ = inputs
        if bias is not None:
            convention.check_bias(bias)
            *batch, n, _ = queries.shape
            convention.check_addend(bias, (*batch, self.plain.weights.h, n, keys.shape[-2]))
            if np.promote_types(bias.dtype, queries.dtype) != queries.dtype:
                return False
        return queries.dtype in (np.float32, np.float64) and queries.size > 0 and keys.size > 0

    def _plan(self, inputs: Inputs, visible: Array | Mask | None, bias: Array | None) -> tuple[Plan, int | None]:
        """How a pass over the inputs is cut, and on how many threads; None if that is still to be decided."""
        (*batch, n, _), weights, extra = inputs[0].shape, self.plain.weights, self.plain.extra_keys
        s = 0 if extra is None else extra[0].shape[-2]
        sizes = Sizes(tuple(batch), weights.h, weights.h_kv, n, inputs[1].shape[-2], s)
        threads = 1 if sizes.is_small(self._block) else self._threads
        share = threads or blas_threads()
        plan = make_plan(sizes, visible, bias, self._scoring, self._block, share)
        return plan, 1 if share == 1 else threads


def _defaults(queries: Array, keys: Array | None, values: Array | None) -> Inputs:
    """Keys are the queries, and values are the keys, unless others are given."""
    keys = queries if keys is None else keys
    return queries, keys, keys if values is None else values
