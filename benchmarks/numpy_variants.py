"""The NumPy layers as variants for benchmarks/cpu.py: forward, or forward and backward, of one problem.

There they are a family and a yardstick: FAMILIES["numpy"] = numpy_variants, YARDSTICKS["NumPy"] = numpy_products.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from mha_tutorial import Causal, FastMultiHeadAttention, MultiHeadAttention, RowWeights
from mha_tutorial.gradients import backward

Step = Callable[[], list[np.ndarray]]  # the output, and the gradient of the tokens if it is asked for


class Problem(NamedTuple):
    """What every variant computes: tokens (b, n, d_model) attend to themselves."""

    x: np.ndarray
    output_gradient: np.ndarray
    weights: RowWeights
    causal: bool

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """b, n, d_model, h."""
        return (*self.x.shape, self.weights.h)


def numpy_variants(given: Problem, gradients: bool) -> dict[str, Step]:
    """The plain layer and the fast one."""
    make = (plain_both_ways, fast_both_ways) if gradients else (plain, fast)
    return {name: step(given) for name, step in zip(("NumPy, plain", "NumPy, fast"), make, strict=True)}


def plain(given: Problem) -> Step:
    layer, visible = MultiHeadAttention(given.weights), Causal() if given.causal else None
    return lambda: [layer(given.x, visible=visible)]


def fast(given: Problem) -> Step:
    layer, visible = FastMultiHeadAttention(given.weights), Causal() if given.causal else None
    return lambda: [layer(given.x, visible=visible)]


def plain_both_ways(given: Problem) -> Step:
    layer, visible = MultiHeadAttention(given.weights), Causal() if given.causal else None

    def step() -> list[np.ndarray]:
        trace = layer.trace(given.x, visible=visible)
        found = backward(given.output_gradient, trace, given.x, given.x, given.x, layer.weights)
        return [trace.output, found.Q + found.K + found.V]

    return step


def fast_both_ways(given: Problem) -> Step:
    layer, visible = FastMultiHeadAttention(given.weights), Causal() if given.causal else None

    def step() -> list[np.ndarray]:
        output, back = layer.vjp(given.x, visible=visible)
        found = back(given.output_gradient)
        return [output, found.Q + found.K + found.V]

    return step


def numpy_products(given: Problem, gradients: bool) -> Callable[[], None]:
    """The matrix products of one pass and nothing else, each into a place made before; causal ones are halved."""
    (b, n, d_model), d = given.x.shape, given.weights.d_k
    seen, block = (n + 1) // 2 if given.causal else n, min(n, 256)

    def zeros(*shape: int) -> np.ndarray:
        return np.zeros(shape, given.x.dtype)

    blocks = b * given.weights.h * -(-n // block)
    tokens, q, k, v, A = zeros(b * n, d_model), zeros(block, d), zeros(seen, d), zeros(seen, d), zeros(block, seen)
    products = [
        (tokens, zeros(d_model, 3 * d_model), 1),
        (q, k.T, blocks),
        (A, v, blocks),
        (tokens, zeros(d_model, d_model), 1),
    ]
    if gradients:  # the scores a second time, and for each product the gradients of its two factors
        forward = [(left, right, zeros(len(left), right.shape[1]), times) for left, right, times in products]
        products.append((q, k.T, blocks))
        products += [(out, right.T, times) for _, right, out, times in forward]
        products += [(left.T, out, times) for left, _, out, times in forward]
    prepared = [(left, right, zeros(len(left), right.shape[1]), times) for left, right, times in products]

    def products() -> None:
        for left, right, out, times in prepared:
            for _ in range(times):
                np.matmul(left, right, out=out)

    return products
