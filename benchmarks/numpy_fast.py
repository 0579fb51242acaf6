"""From the plain NumPy layer to the fast one, a step at a time. Writes mha_tutorial/results/numpy-fast.json.

    python benchmarks/numpy_fast.py            a few minutes on a machine that does nothing else
    python benchmarks/numpy_fast.py --quick    three rounds, nothing written

Every step is a layer of its own below, in float32, and is first compared with the plain layer in float64. Times
are ratios to the bare matrix products in NumPy. How NumPy compares with PyTorch is shown by cpu.py.
"""

import argparse
import math
import tracemalloc
from collections.abc import Callable

import numpy as np
from einops import rearrange
from harness import race, refuse_if_wrong, relative, save
from numpy_variants import Problem, numpy_products

from mha_tutorial import Causal, FastMultiHeadAttention, MultiHeadAttention, RowWeights
from mha_tutorial.fast import folding, softmax
from mha_tutorial.fast.tiles import KeyTile
from mha_tutorial.fast.workspace import Workspace

SIZES = {  # b, n, d_model, h, rounds
    "small": (8, 128, 512, 8, 15),
    "medium": (4, 512, 512, 8, 11),
    "large": (1, 2048, 768, 12, 9),
}
PRODUCTS = "matrix products alone"
SETTLE = 0.05  # seconds; idle OpenBLAS threads look for work for about half of it


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="three rounds, nothing written")
    parser.add_argument("--sizes", default=",".join(SIZES), help="some of them, separated by commas")
    options = parser.parse_args()
    measured: dict[str, dict] = {"sizes": {}}
    for label in options.sizes.split(","):
        *size, rounds = SIZES[label]
        for causal in (False, True):
            key = f"{label}, causal" if causal else label
            result = measure(*size, causal, 3 if options.quick else rounds)
            measured["sizes"][key] = {"b, n, d_model, h": size, **result}
            print(f"\n{key} {size}: multiples of {PRODUCTS}")
            for name, ratio in result["to the products"].items():
                print(f"  {name:44} {ratio['median']:6.2f}  ({ratio['low']:.2f} to {ratio['high']:.2f})")
    measured["memory"] = memory(4096, 8192, 16384)
    print("\nmebibytes of one pass (b=1, d_model=512, h=8):", measured["memory"])
    if not options.quick and options.sizes == ",".join(SIZES):
        print(save("numpy-fast", measured))


def measure(b: int, n: int, d_model: int, h: int, causal: bool, rounds: int) -> dict[str, dict]:
    """All steps at one size."""
    rng = np.random.default_rng(0)
    exact, x = RowWeights.random(rng, d_model, h), rng.normal(size=(b, n, d_model))
    visible = Causal() if causal else None
    expected = MultiHeadAttention(exact)(x, visible=visible)
    weights, x = single(exact), x.astype(np.float32)
    steps = {name: make(weights, x, causal) for name, make in STEPS.items()}
    for name, step in steps.items():
        refuse_if_wrong(name, [step()], [expected], rtol=2e-5)
    products = numpy_products(Problem(x, x, weights, causal), gradients=False)
    taken = race({PRODUCTS: products} | steps, rounds, shortest=0.05, settle=SETTLE)
    return {"to the products": relative(taken, PRODUCTS)}


def single(weights: RowWeights) -> RowWeights:
    return RowWeights(**{name: array.astype(np.float32) for name, array in weights.arrays().items()})


# The steps: what makes each from the one before is its first lines.


def plain(weights: RowWeights, x: np.ndarray, causal: bool) -> Callable[[], np.ndarray]:
    """The layer as it is read: all scores of all heads in one array, and a new array for every operation."""
    layer = MultiHeadAttention(weights)
    return lambda: layer(x, visible=Causal() if causal else None)


def a_head_at_a_time(weights: RowWeights, x: np.ndarray, causal: bool) -> Callable[[], np.ndarray]:
    """The scores of one head at a time, and softmax inside their memory."""
    hidden = ~Causal().rows(x.shape[1], x.shape[1]) if causal else None

    def head(q, k, v, out):
        scores = q @ k.T
        scores *= np.float32(1 / math.sqrt(q.shape[-1]))
        if hidden is not None:
            scores[hidden] = -np.inf
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        np.matmul(scores, v, out=out)

    return over_heads(weights, x, head)


def folded(weights: RowWeights, x: np.ndarray, causal: bool) -> Callable[[], np.ndarray]:
    """Scale, base, key bias and value bias folded into the weights; the results divided, not the weights."""
    exponential = softmax.fast_exponential()
    weights = folding.fold_value_bias(folding.drop_key_bias(folding.fold_scale(weights, exponential)))
    visible = Causal().rows(x.shape[1], x.shape[1]) if causal else None

    def head(q, k, v, out):
        scores = q @ k.T
        scores -= scores.max(axis=-1, keepdims=True)
        exponential(scores, out=scores)
        if visible is not None:
            scores *= visible
        np.matmul(scores, v, out=out)
        out /= scores @ np.ones((len(k), 1), np.float32)

    return over_heads(weights, x, head)


def unshifted(weights: RowWeights, x: np.ndarray, causal: bool) -> Callable[[], np.ndarray]:
    """The row maximum not subtracted, where the norms of queries and keys say that it need not be."""
    exponential = softmax.fast_exponential()
    weights = folding.fold_value_bias(folding.drop_key_bias(folding.fold_scale(weights, exponential)))
    n = x.shape[1]
    visible = Causal().rows(n, n)[None, None, None] if causal else None
    whole, workspace = [KeyTile(slice(0, n), slice(0, n), visible)], Workspace(x.dtype)

    def head(q, k, v, out):
        q, k, v, out = q[None, None, None], k[None, None], v[None, None], out[None, None, None]
        if not softmax.are_bounded([softmax.max_norms(x) for x in (q, k, v)], math.log(exponential(1.0))).all():
            raise FloatingPointError("the row maximum of these scores has to be subtracted")
        softmax.unshifted_attention(q, k, v, whole, exponential, workspace, out)

    return over_heads(weights, x, head)


def tiles(weights: RowWeights, x: np.ndarray, causal: bool) -> Callable[[], np.ndarray]:
    """The fast layer without its threads: scores in tiles, hidden tiles skipped, some heads projected together."""
    layer = FastMultiHeadAttention(weights, threads=1)
    return lambda: layer(x, visible=Causal() if causal else None)


def threads(weights: RowWeights, x: np.ndarray, causal: bool) -> Callable[[], np.ndarray]:
    """The fast layer: the heads on several threads."""
    layer = FastMultiHeadAttention(weights)
    return lambda: layer(x, visible=Causal() if causal else None)


STEPS = {
    "the plain layer": plain,
    "a head at a time, softmax in place": a_head_at_a_time,
    "scale and biases folded": folded,
    "largest score not taken off": unshifted,
    "tiles": tiles,
    "threads over heads: the fast layer": threads,
}


def over_heads(weights: RowWeights, x: np.ndarray, head: Callable) -> Callable[[], np.ndarray]:
    """A layer that projects all heads at once and then takes one head of one sequence after the other."""
    names = [("W_q", "b_q"), ("W_k", "b_k"), ("W_v", "b_v")]
    matrices = [np.ascontiguousarray(rearrange(getattr(weights, W), "h d_in d -> d_in (h d)")) for W, _ in names]
    biases = [getattr(weights, b) for _, b in names]
    W_o = np.ascontiguousarray(rearrange(weights.W_o, "h d_v d_model -> (h d_v) d_model"))

    def forward():
        projected = [x @ W for W in matrices]
        for tokens, b in zip(projected, biases, strict=True):
            if b is not None:
                tokens += b.reshape(-1)
        heads = [rearrange(tokens, "b n (h d) -> b h n d", h=weights.h) for tokens in projected]
        concat_heads = np.empty_like(projected[2])
        by_head = rearrange(concat_heads, "b n (h d) -> b h n d", h=weights.h)
        for place in np.ndindex(by_head.shape[:2]):
            head(*(tokens[place] for tokens in heads), by_head[place])
        output = concat_heads @ W_o
        output += weights.b_o
        return output

    return forward


def memory(*lengths: int) -> dict[str, dict[int, float]]:
    """The most memory that one pass takes beside its input and weights, in mebibytes."""
    rng = np.random.default_rng(0)
    weights = single(RowWeights.random(rng, 512, h=8))
    layers = {"the plain layer": MultiHeadAttention(weights), "the fast layer": FastMultiHeadAttention(weights)}
    taken: dict[str, dict[int, float]] = {name: {} for name in layers}
    for name, layer in layers.items():
        for n in lengths if name == "the fast layer" else lengths[:1]:
            x = rng.normal(size=(1, n, 512)).astype(np.float32)
            tracemalloc.start()
            layer(x)
            taken[name][n] = round(tracemalloc.get_traced_memory()[1] / 2**20, 1)
            tracemalloc.stop()
    return taken


if __name__ == "__main__":
    main()
