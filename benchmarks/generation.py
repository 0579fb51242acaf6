"""Race the decoder of `mha_tutorial.models` against that of transformers, token by token, with the same weights.

    make test-frameworks          installs transformers
    python benchmarks/generation.py

Both read the file that `make model` fetches, in 32 bits. In every step each variant reads one token, in random
order, so that a slow moment hits all alike; what counts are ratios within a step. The library's variants are its
eager and its SDPA attention, each with a dynamic and a static cache. Writes mha_tutorial/results/generation.json.
"""

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

import harness
import torch
import transformers

from mha_tutorial import models

PROMPT, NEW, THREADS = 128, 128, 2
TEXTS = (
    "Attention is how a token of a text finds what it needs in the others. ",
    "The old lighthouse keeper climbed the stairs every evening, lamp in hand, and looked out over the sea. ",
    "A list of numbers: 3, 5, 8, 13, 21. Each of them is the sum of the two before it, as everyone can see. ",
)
LENGTHS = (16, 64, 256, 1024, 2048)

Step = Callable[[torch.Tensor], torch.Tensor]  # reads tokens, and returns the logits of the next one


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    torch.set_num_threads(THREADS)
    file = models.fetch()
    start = time.perf_counter()
    model = models.load(file)
    loading = time.perf_counter() - start
    library = transformers.AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32
    ).eval()
    with torch.inference_mode():
        measured = race(model, library)
        measured["by length"] = by_length(model)
        measured["share"] = shares(model)
        measured["memory"] = memory(model)
    measured["loading"] = {"seconds": round(loading, 1)}
    versions = {"torch": torch.__version__, "transformers": transformers.__version__}
    path = harness.save("generation", measured, versions, threads=THREADS, prompt=PROMPT, new=NEW)
    print(path)


def ours(model: models.Decoder, capacity: int) -> Step:
    return partial(model, caches=model.caches(1, capacity), last=True)


def theirs(library, attention: str, cache: str, capacity: int) -> Step:
    kept = (
        transformers.DynamicCache(config=library.config)
        if cache == "dynamic"
        else transformers.StaticCache(config=library.config, max_cache_len=capacity)
    )

    def step(ids: torch.Tensor) -> torch.Tensor:
        library.config._attn_implementation = attention
        return library(ids, cache=kept, use_cache=True, logits_to_keep=1).logits

    return step


def variants(model: models.Decoder, library, capacity: int) -> dict[str, Step]:
    found = {"ours": ours(model, capacity)}
    for attention in ("eager", "sdpa"):
        for cache in ("dynamic", "static"):
            found[f"{attention}, {cache}"] = theirs(library, attention, cache, capacity)
    return found


def race(model: models.Decoder, library) -> dict:
    """Seconds of every variant for each prompt and each token, as quartiles of ratios to the library's best."""
    shuffle = random.Random(0)
    prefill: dict[str, list[float]] = {}
    token: dict[str, list[float]] = {}
    for text in TEXTS:
        ids = torch.tensor([model.tokenizer.encode(text * 9)[:PROMPT]])
        steps = variants(model, library, PROMPT + NEW)
        said = timed(steps, dict.fromkeys(steps, ids), prefill, shuffle)
        if text == TEXTS[0]:  # which warms up
            said = timed(steps, said, {}, shuffle)
        for _ in range(NEW - 1 - (text == TEXTS[0])):
            said = timed(steps, said, token, shuffle)
    prefill = {}
    for _ in range(5):  # prompts alone
        for text in TEXTS:
            ids = torch.tensor([model.tokenizer.encode(text * 9)[:PROMPT]])
            steps = variants(model, library, PROMPT)
            timed(steps, dict.fromkeys(steps, ids), prefill, shuffle)
    return {"token": against_best(token), "prefill": against_best(prefill)}


def timed(
    steps: dict[str, Step], ids: dict[str, torch.Tensor], seconds: dict[str, list[float]], shuffle: random.Random
) -> dict[str, torch.Tensor]:
    """One step of each, in random order; refuses variants that do not agree on the next token."""
    said = {}
    for name in shuffle.sample(list(steps), len(steps)):
        start = time.perf_counter()
        said[name] = steps[name](ids[name])[:, -1].argmax(-1, keepdim=True)
        seconds.setdefault(name, []).append(time.perf_counter() - start)
    assert len({int(x) for x in said.values()}) == 1, said
    return said


def against_best(seconds: dict[str, list[float]]) -> dict:
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    best = min((name for name in medians if name != "ours"), key=medians.__getitem__)
    return {
        "best": best,
        "milliseconds": {name: round(1000 * median, 2) for name, median in medians.items()},
        "ratio": harness.relative(seconds, best),
    }


def by_length(model: models.Decoder) -> dict[str, dict[str, float]]:
    """Tokens per second after texts of several lengths, with a cache, and where all is read again for each."""
    found = {}
    for n in LENGTHS:
        ids = torch.randint(1000, 40000, (1, n), generator=torch.Generator().manual_seed(0))
        step = ours(model, n + 12)
        step(ids)
        cached = [clocked(partial(step, ids[:, :1])) for _ in range(12)][2:]
        rates = {"cached": 1 / statistics.median(cached)}
        if n <= 1024:
            rates["read again"] = 1 / statistics.median(clocked(partial(model, ids, last=True)) for _ in range(3))
        found[str(n)] = {name: round(rate, 2) for name, rate in rates.items()}
    return found


def clocked(step: Callable[[], object]) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def shares(model: models.Decoder) -> dict[str, float]:
    """Which part of a token's time goes where, after a prompt."""
    spent = {"attention": 0.0, "feed-forward": 0.0, "output": 0.0}
    started: list[float] = []
    parts = {"output": [model.output]}
    parts["attention"] = [block.attention for block in model.blocks]
    parts["feed-forward"] = [block.feed_forward for block in model.blocks]

    def stop(name, *_):
        spent[name] += time.perf_counter() - started.pop()

    handles = []
    for name, modules in parts.items():
        for module in modules:
            handles.append(module.register_forward_pre_hook(lambda *_: started.append(time.perf_counter())))
            handles.append(module.register_forward_hook(partial(stop, name)))
    step = ours(model, PROMPT + 40)
    step(torch.zeros(1, PROMPT, dtype=torch.long))
    for name in spent:
        spent[name] = 0.0
    whole = sum(clocked(partial(step, torch.zeros(1, 1, dtype=torch.long))) for _ in range(40))
    for handle in handles:
        handle.remove()
    spent["rest"] = whole - sum(spent.values())
    return {name: round(seconds / whole, 3) for name, seconds in spent.items()}


def memory(model: models.Decoder) -> dict[str, float | None]:
    """MiB of the weights, of the caches for a text, and what writing it takes at its height."""
    caches = model.caches(1, PROMPT + NEW)
    weights = sum(x.numel() * x.element_size() for x in model.parameters())
    kept = sum(x.numel() * x.element_size() for cache in caches for x in (cache.keys, cache.values))
    prompt = model.tokenizer.decode(model.tokenizer.encode(TEXTS[0] * 9)[:PROMPT])
    peak = harness.peak_memory(lambda: model.generate(prompt, 8))
    return {"weights": round(weights / 2**20, 1), "caches": round(kept / 2**20, 1), "peak beside weights": peak}


if __name__ == "__main__":
    main()
