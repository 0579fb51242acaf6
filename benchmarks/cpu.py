"""Multi-head self-attention on a CPU: our layer with each kernel, and its peers. Writes results/cpu.json.

python benchmarks/cpu.py            all sizes, in minutes, on a machine with nothing else to do
python benchmarks/cpu.py --quick    small sizes, in seconds, to see that everything runs; writes nothing

The unit is the best that one writes by hand in PyTorch: one packed projection, `scaled_dot_product_attention`, one
output projection. The yardstick is the matrix products alone. Everything is float32, with biases everywhere.

To add variants, add a family to FAMILIES: a function that takes a Problem and whether gradients are asked for, and
returns a mapping from names to functions without arguments, each of which returns [output], or [output, gradient of
the tokens], as arrays. A yardstick, in YARDSTICKS, returns one such function, whose result nobody looks at.
"""

import argparse
import statistics
from collections.abc import Callable, Iterator

import numpy as np
import torch
from harness import Step, peak_memory, race, refuse_if_wrong, relative, save
from numpy_variants import Problem, numpy_products, numpy_variants
from torch import Tensor, nn
from torch.nn.functional import linear, scaled_dot_product_attention

from mha_tutorial import Causal, RowWeights
from mha_tutorial.gradients import backward
from mha_tutorial.reference import row
from mha_tutorial.torch import KERNELS, MultiHeadAttention, backend_of

SIZES = {  # b, n, d_model, h, and how many rounds
    "tiny": (2, 10, 512, 8, 21),
    "small": (8, 128, 512, 8, 15),
    "medium": (4, 512, 512, 8, 9),
    "large": (1, 2048, 768, 12, 7),
}
QUICK = {"tiny": (2, 10, 512, 8, 3), "small": (2, 67, 96, 4, 3)}
LENGTHS = {4096: True, 16384: False}  # for the memory; whether the scores of all pairs fit
UNIT, PRODUCTS = "packed, by hand", "matrix products alone"
SETTLE = 0.03  # seconds: idle threads of NumPy's and PyTorch's products look for work for about as long
RTOL = 2e-5  # float32 against float64, of the largest number


def problem(b: int, n: int, d_model: int, h: int, causal: bool) -> Problem:
    rng = np.random.default_rng(0)
    weights = RowWeights.random(rng, d_model, h)
    single = {name: array.astype(np.float32) for name, array in weights.arrays().items()}
    x, gradient = (rng.normal(size=(b, n, d_model)).astype(np.float32) for _ in range(2))
    return Problem(x, gradient, RowWeights(**single), causal)


def reference(given: Problem, gradients: bool) -> list[np.ndarray]:
    """The output in float64, and the gradient of the tokens: the sum over heads, one head of one text at a time."""
    double = RowWeights(**{name: array.astype(np.float64) for name, array in given.weights.arrays().items()})
    output, dx = np.zeros(given.x.shape), np.zeros(given.x.shape)
    for b, head in np.ndindex(len(given.x), double.h):
        x, alone = given.x[b].astype(np.float64), double.heads([head])
        trace = row.multi_head(x, x, x, alone, visible=Causal() if given.causal else None)
        output[b] += trace.output - double.b_o
        if gradients:
            found = backward(given.output_gradient[b].astype(np.float64), trace, x, x, x, alone)
            dx[b] += found.Q + found.K + found.V
    return [output + double.b_o, dx] if gradients else [output + double.b_o]


# --- PyTorch: functions of the tokens, as modules -----------------------------------------------------------------


class Packed(nn.Module):
    """One projection for queries, keys and values, PyTorch's attention, one output projection."""

    def __init__(self, module: nn.MultiheadAttention, causal: bool):
        super().__init__()
        self.h, self.causal = module.num_heads, causal
        self.W_qkv, self.b_qkv = module.in_proj_weight, module.in_proj_bias
        self.out = module.out_proj

    def forward(self, x: Tensor) -> Tensor:
        b, n, d_model = x.shape
        q, k, v = linear(x, self.W_qkv, self.b_qkv).view(b, n, 3, self.h, -1).permute(2, 0, 3, 1, 4).unbind(0)
        heads = scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(heads.transpose(1, 2).reshape(b, n, d_model))


class OfPyTorch(nn.Module):
    """`nn.MultiheadAttention`, asked for its weights or not."""

    def __init__(self, module: nn.MultiheadAttention, n: int, causal: bool, weights: bool):
        super().__init__()
        self.module, self.weights = module, weights
        self.register_buffer("ignored", torch.ones(n, n).triu(1).bool() if causal else None)

    def forward(self, x: Tensor) -> Tensor:
        causal = self.ignored is not None and not self.weights
        return self.module(x, x, x, attn_mask=self.ignored, is_causal=causal, need_weights=self.weights)[0]


class Ours(nn.Module):
    """Our layer with one of its kernels."""

    def __init__(self, layer: MultiHeadAttention, causal: bool):
        super().__init__()
        self.layer, self.visible = layer, Causal() if causal else None

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x, visible=self.visible)


def torch_modules(given: Problem) -> Iterator[tuple[str, nn.Module]]:
    ours = MultiHeadAttention.from_weights(given.weights)
    yield UNIT, Packed(ours.to_torch(), given.causal)
    for name in ("naive", "fused", "online"):
        yield (
            f"ours, {name}",
            Ours(MultiHeadAttention.from_weights(given.weights, kernel=KERNELS[name]), given.causal),
        )
    yield "nn.MultiheadAttention, no weights", OfPyTorch(ours.to_torch(), given.x.shape[1], given.causal, False)
    yield "nn.MultiheadAttention", OfPyTorch(ours.to_torch(), given.x.shape[1], given.causal, True)


def torch_step(module: nn.Module, given: Problem, gradients: bool) -> Step:
    x, output_gradient = torch.tensor(given.x, requires_grad=gradients), torch.tensor(given.output_gradient)
    module.train(gradients)  # in eval and without gradients nn.MultiheadAttention takes its fast path

    def forward():
        with torch.inference_mode():
            return [module(x).numpy()]

    def forward_and_backward():
        module.zero_grad()
        x.grad = None
        output = module(x)
        output.backward(output_gradient)
        return [output.detach().numpy(), x.grad.numpy()]

    return forward_and_backward if gradients else forward


def torch_variants(given: Problem, gradients: bool) -> dict[str, Step]:
    return {name: torch_step(module, given, gradients) for name, module in torch_modules(given)}


def torch_products(given: Problem, gradients: bool) -> Step:
    """The matrix products of one pass and nothing else, each into a place made before; causal ones are halved."""
    b, n, d_model, h = given.sizes
    d, seen = d_model // h, (n + 1) // 2 if given.causal else n
    tokens, packed, square = (
        torch.zeros(b * n, d_model),
        torch.zeros(d_model, 3 * d_model),
        torch.zeros(d_model, d_model),
    )
    block = min(n, 256)  # of queries, as in any kernel that does not hold all scores
    q, k, v, scores = torch.zeros(block, d), torch.zeros(d, seen), torch.zeros(seen, d), torch.zeros(block, seen)
    blocks = b * h * -(-n // block)
    products = [(tokens, packed, 1), (tokens, square, 1), (q, k, blocks), (scores, v, blocks)]
    if gradients:  # the scores a second time, and for each product the gradients of its two factors
        outputs = [
            (left, right, torch.zeros(left.shape[0], right.shape[1]), times) for left, right, times in products
        ]
        products.append((q, k, blocks))
        products += [(out, right.T, times) for _, right, out, times in outputs]
        products += [(left.T, out, times) for left, _, out, times in outputs]
    prepared = [(left, right, torch.zeros(left.shape[0], right.shape[1]), times) for left, right, times in products]

    def products():
        with torch.inference_mode():
            for left, right, out, times in prepared:
                for _ in range(times):
                    torch.mm(left, right, out=out)

    return products


FAMILIES: dict[str, Callable[[Problem, bool], dict[str, Step]]] = {
    "torch": torch_variants,
    "numpy": numpy_variants,
}
YARDSTICKS: dict[str, Callable[[Problem, bool], Step]] = {
    PRODUCTS: torch_products,
    "NumPy's products alone": numpy_products,
}


# --- measuring ---------------------------------------------------------------------------------------------------


def time_all(sizes: dict, shortest: float, settle: float) -> list[dict]:
    rows = []
    for gradients in (False, True):
        for size, (*shape, rounds) in sizes.items():
            for causal in (False, True):
                given = problem(*shape, causal)
                expected = reference(given, gradients)
                variants: dict[str, Step] = {}
                for family in FAMILIES.values():
                    variants |= family(given, gradients)
                for name, step in variants.items():
                    refuse_if_wrong(name, step(), expected, RTOL)
                variants |= {name: step(given, gradients) for name, step in YARDSTICKS.items()}
                seconds = race(variants, rounds, shortest=shortest, settle=settle)
                rows.append(
                    {
                        "size": size,
                        "b, n, d_model, h": shape,
                        "causal": causal,
                        "pass": "forward and backward" if gradients else "forward",
                        "milliseconds": {name: round(1e3 * statistics.median(s), 3) for name, s in seconds.items()},
                        "ratio to packed": relative(seconds, UNIT),
                        "ratio to products": relative(seconds, PRODUCTS),
                    }
                )
                show(rows[-1])
    return rows


def show(row: dict) -> None:
    print(f"\n{row['size']} {row['b, n, d_model, h']} {'causal ' if row['causal'] else ''}{row['pass']}")
    for name, ratio in sorted(row["ratio to packed"].items(), key=lambda item: item[1]["median"]):
        print(
            f"  {name:34} {row['milliseconds'][name]:9.2f} ms {ratio['median']:6.2f} ({ratio['low']:.2f} to "
            f"{ratio['high']:.2f}) {row['ratio to products'][name]['median']:6.2f} of the products",
            flush=True,
        )


def measure_memory(lengths: dict[int, bool]) -> list[dict]:
    """The MiB that one forward pass needs beside inputs and weights (b = 1, d_model 512, 8 heads)."""
    rows = []
    for n, all_scores_fit in lengths.items():
        given = problem(1, n, 512, 8, False)
        for name, step in (torch_variants(given, False) | numpy_variants(given, False)).items():
            if all_scores_fit or (not {"ours, naive", "NumPy, plain"} & {name} and "nn." not in name):
                rows.append({"n": n, "variant": name, "MiB": peak_memory(step)})
                print(f"  n = {n:6} {name:34} {rows[-1]['MiB']} MiB", flush=True)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds, nothing written")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    patience = {"shortest": 0.0, "settle": 0.0} if arguments.quick else {"shortest": 0.05, "settle": SETTLE}
    rows = time_all(QUICK if arguments.quick else SIZES, **patience)
    print("\nmemory")
    memory = measure_memory({512: True} if arguments.quick else LENGTHS)
    if not arguments.quick:
        q = torch.zeros(1, 8, 16, 64)
        conditions = {
            "threads": arguments.threads,
            "dtype": "float32",
            "backend of fused": backend_of(q, q, q).name,
        }
        print(save("cpu", {"time": rows, "memory": memory}, {"torch": torch.__version__}, **conditions))


if __name__ == "__main__":
    main()
