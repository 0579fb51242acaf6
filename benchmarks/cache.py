"""Writing tokens with a cache and without, as ratios in one run. Writes mha_tutorial/results/cache.json.

python benchmarks/cache.py            in minutes, on a machine with nothing else to do
python benchmarks/cache.py --quick    short texts, in seconds, to see that everything runs; writes nothing

One layer reads a prompt, which is not timed, and then STEPS tokens one by one, which are. Everything is float32, on
one thread.
The cache of `transformers`, which is in the `frameworks` extra, takes part if it is installed.
"""

import argparse
from collections.abc import Callable

import numpy as np
import torch
from harness import ratios, save
from torch import Tensor

from mha_tutorial import Causal, RowWeights
from mha_tutorial.reference import row
from mha_tutorial.torch import KVCache, MultiHeadAttention, fused

try:
    import transformers
except ImportError:
    transformers = None

STEPS = 16
UNIT = "KVCache"
SIZES = {  # tokens of the prompt, and how many rounds
    "short": (128, 15),
    "medium": (512, 9),
    "long": (2048, 7),
}
WIDTH, H, H_KV = 1024, 16, 4
RTOL = 1e-4  # float32 against float64, of the largest number


class Layer:
    """The four projections of our layer around any way to keep keys and values."""

    def __init__(self, layer: MultiHeadAttention, join: Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]):
        self.layer, self.join = layer, join

    def __call__(self, x: Tensor) -> Tensor:
        b, n, _ = x.shape
        q, k, v = (
            W(x).view(b, n, -1, self.layer.d_k).transpose(1, 2)
            for W in (self.layer.W_q, self.layer.W_k, self.layer.W_v)
        )
        k, v = self.join(k, v)
        heads = fused(q, k, v, visible=Causal("bottom-right"))
        return self.layer.W_o(heads.transpose(1, 2).flatten(2))


def cached(layer: MultiHeadAttention, x: Tensor, prompt: int, capacity: int) -> Callable[[], np.ndarray]:
    """One step after the other with our cache, then back to the prompt."""
    cache = KVCache.for_layer(layer, 1, capacity=capacity)
    layer(x[:, :prompt], cache=cache)

    def steps():
        outputs = [layer(x[:, place : place + 1], cache=cache) for place in range(prompt, prompt + STEPS)]
        cache.rollback(STEPS)
        return torch.cat(outputs, dim=1).numpy()

    return steps


def joined(layer: MultiHeadAttention, x: Tensor, prompt: int) -> Callable[[], np.ndarray]:
    """Keys and values joined to the old ones at each step, which copies all of them."""
    kept: list[Tensor] = []

    def join(k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        kept[:] = [torch.cat([old, new], dim=2) for old, new in zip(kept, (k, v), strict=True)] if kept else [k, v]
        return kept[0], kept[1]

    whole = Layer(layer, join)
    whole(x[:, :prompt])
    of_prompt = list(kept)

    def steps():
        kept[:] = of_prompt
        return torch.cat([whole(x[:, i : i + 1]) for i in range(prompt, prompt + STEPS)], dim=1).numpy()

    return steps


def of_transformers(layer: MultiHeadAttention, x: Tensor, prompt: int) -> Callable[[], np.ndarray]:
    """The growing cache that `transformers` takes by default, around the same projections and kernel."""
    cache = transformers.DynamicCache()
    whole = Layer(layer, lambda k, v: cache.update(k, v, 0))
    whole(x[:, :prompt])

    def steps():
        outputs = [whole(x[:, i : i + 1]) for i in range(prompt, prompt + STEPS)]
        cache.crop(-STEPS)
        return torch.cat(outputs, dim=1).numpy()

    return steps


def recomputed(layer: MultiHeadAttention, x: Tensor, prompt: int) -> Callable[[], np.ndarray]:
    """The whole text read again for each token."""

    def steps():
        ends = range(prompt + 1, prompt + STEPS + 1)
        return torch.cat([layer(x[:, :end], visible=Causal())[:, -1:] for end in ends], dim=1).numpy()

    return steps


def measure(sizes: dict[str, tuple[int, int]]) -> dict[str, dict]:
    measured = {}
    for name, (prompt, rounds) in sizes.items():
        rng = np.random.default_rng(0)
        weights = RowWeights.random(rng, WIDTH, H, h_kv=H_KV)
        x = rng.normal(size=(1, prompt + STEPS, WIDTH))
        expected = row.multi_head(x[:, prompt:], x, x, weights, visible=Causal("bottom-right")).output
        layer, tokens = MultiHeadAttention.from_weights(weights, dtype=torch.float32), torch.tensor(x).float()
        variants = {
            UNIT: cached(layer, tokens, prompt, prompt + STEPS),
            "KVCache, 8 times the capacity": cached(layer, tokens, prompt, 8 * (prompt + STEPS)),
            "joined at each step": joined(layer, tokens, prompt),
            "recomputed": recomputed(layer, tokens, prompt),
        }
        if transformers is not None:
            variants["DynamicCache of transformers"] = of_transformers(layer, tokens, prompt)
        found = ratios(variants, UNIT, expected, rounds, RTOL)
        measured[name] = {"prompt": prompt, "steps": STEPS, "ratios": found}
        print(f"{name}: {STEPS} tokens after {prompt}")
        for variant, ratio in found.items():
            print(f"  {variant:30} {ratio['median']:8.2f}  ({ratio['low']:.2f} to {ratio['high']:.2f})", flush=True)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="short texts, few rounds, nothing written")
    quick = parser.parse_args().quick
    if transformers is None:
        print("transformers is not installed, so its cache takes no part: pip install -e '.[frameworks]'")
    torch.set_num_threads(1)
    with torch.inference_mode():
        measured = measure({"short": (64, 3)} if quick else SIZES)
    if not quick:
        versions = {"torch": torch.__version__}
        if transformers is not None:
            versions["transformers"] = transformers.__version__
        sizes = {"d_model": WIDTH, "h": H, "h_kv": H_KV}
        print(save("cache", measured, versions, sizes=sizes, threads=torch.get_num_threads(), dtype="float32"))


if __name__ == "__main__":
    main()
