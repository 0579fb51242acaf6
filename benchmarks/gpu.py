"""Attention and a whole layer on a GPU: time, TFLOP/s, memory, and how near to the machine's best matrix product.

python benchmarks/gpu.py                        the full grid, most telling cases first, to results/gpu.json
python benchmarks/gpu.py --minutes 8            the same, but no new case after so many minutes
python benchmarks/gpu.py --device cpu --quick   small sizes, to see that everything runs; writes nothing

The number of tokens and d_model stay the same while n grows, so that the projections are the same work in every
row. A variant is refused where its error against float64, on the first entry of the batch, is more than twice that
of the naive kernel in the same type.
"""

import argparse
import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch
from cpu import OfPyTorch, Ours, Packed
from harness import Step, race, relative, save
from torch import Tensor, nn
from torch.nn.attention import SDPBackend
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

from mha_tutorial import Causal
from mha_tutorial.torch import MultiHeadAttention, flex, fused, fused_on, guarded, naive, online

UNITS = {"attention": "scaled_dot_product_attention", "layer": "packed, by hand"}
BACKENDS = (
    SDPBackend.CUDNN_ATTENTION,
    SDPBackend.FLASH_ATTENTION,
    SDPBackend.EFFICIENT_ATTENTION,
    SDPBackend.MATH,
)
LARGEST_SCORES = 8e9  # bytes; what would hold more than these for one pass is left out


class Grid(NamedTuple):
    """Which cases are measured."""

    tokens: int
    d_model: int
    lengths: tuple[int, ...]
    widths: tuple[int, ...]  # of a head
    dtypes: tuple[torch.dtype, ...]
    compiled: tuple[int, ...]  # the lengths at which compiled variants run, since each takes a compilation
    rounds: int


FULL = Grid(
    16384,
    2048,
    (4096, 1024, 16384, 2048, 8192, 512),
    (128, 64),
    (torch.bfloat16, torch.float16, torch.float32),
    (4096,),
    9,
)
QUICK = Grid(134, 64, (67,), (16,), (torch.float32, torch.bfloat16), (), 3)


class Case(NamedTuple):
    """One table of the result."""

    level: str  # "attention" or "layer"
    gradients: bool
    n: int
    width: int
    causal: bool
    dtype: torch.dtype
    batch: int
    d_model: int
    compiled: bool

    @property
    def heads(self) -> int:
        return self.d_model // self.width

    @property
    def visible(self) -> Causal | None:
        return Causal() if self.causal else None

    @property
    def flops(self) -> float:
        """Of the matrix products: attention has two forward and five backward, a projection one and two."""
        attention = 4 * self.batch * self.n**2 * self.d_model * (0.5 if self.causal else 1)
        projections = 8 * self.batch * self.n * self.d_model**2 if self.level == "layer" else 0
        return 3.5 * attention + 3 * projections if self.gradients else attention + projections

    @property
    def all_scores(self) -> float:
        """The bytes of all scores, as the naive kernel holds them several times in a forward pass."""
        return 10 * self.batch * self.heads * self.n**2


def cases(grid: Grid) -> Iterator[Case]:
    for dtype, n, width, causal, level, gradients in itertools.product(
        grid.dtypes, grid.lengths, grid.widths, (True, False), UNITS, (False, True)
    ):
        batch = max(1, grid.tokens // n)
        yield Case(level, gradients, n, width, causal, dtype, batch, grid.d_model, n in grid.compiled)


# --- variants: functions of q, k and v, or of the tokens ----------------------------------------------------------


def kernels(case: Case, device: str) -> Iterator[tuple[str, Callable[..., Tensor]]]:
    see = partial(partial, visible=case.visible)
    yield UNITS["attention"], partial(scaled_dot_product_attention, is_causal=case.causal)
    yield "fused", see(fused)
    yield "guarded(fused)", see(guarded(fused))
    for backend in BACKENDS:
        if backend != SDPBackend.MATH or case.all_scores < LARGEST_SCORES:
            yield f"fused on {backend.name}", see(fused_on(backend))
    yield "online", see(online)
    if case.all_scores < LARGEST_SCORES:
        yield "naive", see(naive)
    if case.compiled:
        yield "flex", see(flex)
        yield "fused, compiled", torch.compile(see(fused))


def layers(case: Case, device: str) -> Iterator[tuple[str, nn.Module]]:
    torch.manual_seed(0)
    make = partial(MultiHeadAttention, case.d_model, case.heads, device=device, dtype=case.dtype)
    state = make().state_dict()

    def ours(kernel) -> nn.Module:
        layer = make(kernel=kernel)
        layer.load_state_dict(state)
        return Ours(layer, case.causal)

    def peer() -> nn.MultiheadAttention:
        return ours(fused).layer.to_torch()

    yield UNITS["layer"], Packed(peer(), case.causal)
    yield "ours, fused", ours(fused)
    yield "ours, guarded(fused)", ours(guarded(fused))
    yield "nn.MultiheadAttention, no weights", OfPyTorch(peer(), case.n, case.causal, False).to(device)
    if case.all_scores < LARGEST_SCORES:
        yield "ours, naive", ours(naive)
        yield "nn.MultiheadAttention", OfPyTorch(peer(), case.n, case.causal, True).to(device)
    if case.compiled:
        yield "packed, by hand, compiled", torch.compile(Packed(peer(), case.causal))
        yield "ours, fused, compiled", torch.compile(ours(fused))


def one_head_at_a_time(q: Tensor, k: Tensor, v: Tensor, **options) -> Tensor:
    """The naive kernel, with the scores of no more than one head at a time, in the backward pass too."""
    heads = [
        checkpoint(partial(naive, **options), *(x[:, i : i + 1] for x in (q, k, v)), use_reentrant=False)
        for i in range(q.shape[1])
    ]
    return torch.cat(heads, dim=1)


# --- right or wrong -----------------------------------------------------------------------------------------------


class Judge:
    """Knows the right result for the first entry of the batch, and how far the naive kernel is from it."""

    def __init__(self, case: Case, inputs: list[Tensor], output_gradient: Tensor):
        first = [x[:1].detach() for x in inputs]
        self.right = self.results(case, online, torch.float64, first, output_gradient[:1])
        plain = self.results(case, one_head_at_a_time, case.dtype, first, output_gradient[:1])
        self.allowed = [2 * self.distance(*pair) for pair in zip(plain, self.right, strict=True)]

    def results(self, case: Case, kernel, dtype: torch.dtype, inputs: list[Tensor], output_gradient: Tensor):
        function = partial(kernel, visible=case.visible)
        if case.level == "layer":
            layer = next(layers(case._replace(compiled=False), inputs[0].device.type))[1]
            ours = MultiHeadAttention.from_torch(as_module(layer, case), kernel=kernel).to(dtype)
            function = Ours(ours, case.causal)
        leaves = [x.to(dtype).requires_grad_(case.gradients) for x in inputs]
        return step(function, leaves, output_gradient.to(dtype), case.gradients)()

    def refuse_if_wrong(self, name: str, results: list[Tensor]) -> None:
        for found, right, allowed in zip(results, self.right, self.allowed, strict=True):
            if not self.distance(found[:1], right) <= allowed:
                raise ValueError(
                    f"{name} is wrong: {self.distance(found[:1], right):.1e} from right, allowed {allowed:.1e}"
                )

    @staticmethod
    def distance(found: Tensor, right: Tensor) -> float:
        return (found.double() - right).norm().item()


def as_module(packed: Packed, case: Case) -> nn.MultiheadAttention:
    """The module whose weights `packed` has."""
    module = nn.MultiheadAttention(case.d_model, case.heads, batch_first=True, dtype=case.dtype)
    module.in_proj_weight, module.in_proj_bias, module.out_proj = packed.W_qkv, packed.b_qkv, packed.out
    return module


# --- measuring ----------------------------------------------------------------------------------------------------


def step(function: Callable[..., Tensor], inputs: list[Tensor], output_gradient: Tensor, gradients: bool) -> Step:
    """One pass: the output, and with gradients those of the inputs; parameters get theirs too."""

    def run() -> list[Tensor]:
        if not gradients:
            with torch.inference_mode():
                return [function(*inputs)]
        for x in (*inputs, *(function.parameters() if isinstance(function, nn.Module) else ())):
            x.grad = None
        output = function(*inputs)
        output.backward(output_gradient)
        return [output.detach(), *(x.grad for x in inputs)]

    return run


class Stopwatch:
    """The device's own clock where it has one."""

    def __init__(self, device: str):
        self.device = device

    def __call__(self, run: Step, calls: int) -> float:
        if self.device != "cuda":
            start = time.perf_counter()
            for _ in range(calls):
                run()
            if self.device == "mps":
                torch.mps.synchronize()
            return (time.perf_counter() - start) / calls
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        for _ in range(calls):
            run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / calls / 1e3


def peak_mebibytes(run: Step, device: str) -> float | None:
    """What one call holds at its height beside what was there before; None where the device does not tell."""
    if device != "cuda":
        return None
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    run()
    torch.cuda.synchronize()
    return round((torch.cuda.max_memory_allocated() - before) / 2**20, 1)


def best_product(dtype: torch.dtype, device: str) -> float:
    """The TFLOP/s of a large matrix product in this type."""
    size = 512 if device == "cpu" else 8192
    left, right = (torch.randn(size, size, device=device, dtype=dtype) for _ in range(2))
    seconds = race({"product": lambda: left @ right}, 9, Stopwatch(device), shortest=0.02)["product"]
    return 2 * size**3 / statistics.median(seconds) / 1e12


def measure(case: Case, device: str, rounds: int, best: float) -> dict:
    generator = torch.Generator(device).manual_seed(1)
    normal = partial(torch.randn, device=device, dtype=case.dtype, generator=generator)
    tokens = (case.batch, case.n, case.d_model)
    by_head = (case.batch, case.n, case.heads, case.width)  # as a projection lays them out
    shapes = [tokens] if case.level == "layer" else [by_head] * 3
    inputs = [normal(*shape) for shape in shapes]
    if case.level == "attention":
        inputs = [x.transpose(1, 2) for x in inputs]
    inputs = [x.requires_grad_(case.gradients) for x in inputs]
    output_gradient = torch.randn_like(inputs[0])
    judge = Judge(case, inputs, output_gradient)
    variants, memory, refused = {}, {}, {}
    for name, function in (layers if case.level == "layer" else kernels)(case, device):
        if isinstance(function, nn.Module):
            function.train(case.gradients)
        run = step(function, inputs, output_gradient, case.gradients)
        try:
            judge.refuse_if_wrong(name, run())
            memory[name] = peak_mebibytes(run, device)
        except (NotImplementedError, ValueError, torch.OutOfMemoryError) as error:
            refused[name] = str(error).splitlines()[0]
            continue
        variants[name] = run
    unit = UNITS[case.level] if UNITS[case.level] in variants else next(iter(variants))
    seconds = race(variants, rounds, Stopwatch(device), shortest=0.004)
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        **case._asdict(),
        "dtype": str(case.dtype),
        "unit": unit,
        "milliseconds": {name: round(1e3 * one, 4) for name, one in medians.items()},
        "TFLOP/s": {name: round(case.flops / one / 1e12, 2) for name, one in medians.items()},
        "of the best product": {name: round(case.flops / one / 1e12 / best, 3) for name, one in medians.items()},
        "MiB": memory,
        "ratio": relative(seconds, unit),
        "refused": refused,
    }


def show(row: dict) -> None:
    what = "forward and backward" if row["gradients"] else "forward"
    causal = "causal " if row["causal"] else ""
    print(f"\n{row['level']}, {causal}{what}, {row['dtype']}, n = {row['n']}, heads of {row['width']}")
    for name, milliseconds in sorted(row["milliseconds"].items(), key=lambda item: item[1]):
        print(
            f"  {name:34} {milliseconds:9.3f} ms {row['TFLOP/s'][name]:8.2f} TFLOP/s "
            f"{row['of the best product'][name]:6.1%} of a product {row['ratio'][name]['median']:6.2f} "
            f"{row['MiB'][name]} MiB"
        )
    for name, why in row["refused"].items():
        print(f"  {name:34} {why}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "mps", "cpu"))
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds, nothing written")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no case after so many minutes")
    arguments = parser.parse_args()
    device, start = arguments.device, time.monotonic()
    if device == "cuda" and not torch.cuda.is_available():
        parser.error("there is no CUDA device; try --device cpu --quick")
    grid = QUICK if arguments.quick else FULL
    best = {dtype: best_product(dtype, device) for dtype in grid.dtypes}
    rows, left_out = [], 0
    for case in cases(grid):
        if time.monotonic() - start > 60 * arguments.minutes:
            left_out += 1
            continue
        rows.append(measure(case, device, grid.rounds, best[case.dtype]))
        show(rows[-1])
        if not arguments.quick:  # after every case, so that a run that is cut short leaves what it has
            write(rows, left_out, best, device)
    if left_out:
        print(f"\n{left_out} cases were left out when the time was up")
        if not arguments.quick:
            write(rows, left_out, best, device)


def write(rows: list[dict], left_out: int, best: dict, device: str) -> None:
    save(
        "gpu",
        rows,
        {"torch": torch.__version__, "cuda": str(torch.version.cuda), "cudnn": str(torch.backends.cudnn.version())},
        device=torch.cuda.get_device_name() if device == "cuda" else device,
        cases_left_out=left_out,
        best_product={str(dtype): round(one, 2) for dtype, one in best.items()},
    )


if __name__ == "__main__":
    main()
