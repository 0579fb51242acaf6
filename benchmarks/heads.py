"""Switch off heads of the trained model, one by one and in sets, and write down what it then says.

    make model
    python benchmarks/heads.py

Texts are of two kinds: 32 random tokens and the same again, where only the first copy can tell what comes in the
second, and plain paragraphs. Heads are chosen on some texts and switched off on others. Nothing is timed, but it
takes some minutes. Writes mha_tutorial/results/heads.json.
"""

import argparse
from collections.abc import Iterable

import harness
import numpy as np
import torch
from torch.nn.functional import cross_entropy

from mha_tutorial import models
from mha_tutorial.analysis import heads

LENGTH, COPIES, SETS = 32, 2, 10
COUNTS = (6, 20, 40, 80, 135, 200, 270)
CHOOSING = (
    "My grandmother kept bees behind the house. Every morning in May she put on her grey coat, lit a little "
    "straw in a tin, and walked slowly down to the hives. The smoke made them calm, she said, but I always "
    "stayed on the steps and counted how many came back with yellow legs. In the evening there was bread with "
    "honey, and she told us which field it had come from. We never believed her until one year the farmer sowed "
    "flax, and it turned blue.",
    "To repair a bicycle tyre you need a patch, some glue, and a bucket of water. Take the wheel off the frame "
    "and lift one side of the tyre over the rim with two spoons. Pump a little air into the tube and hold it "
    "under water: where bubbles rise, there is the hole. Dry the place, roughen it with sandpaper, and spread "
    "the glue thinly. Wait until it no longer sticks to your finger, then press the patch on as hard as you can "
    "and count to sixty slowly.",
)
MEASURING = (
    "The ferry to the island leaves twice a day, at eight in the morning and at half past four. In winter it is "
    "often late, because the harbour is narrow and the captain waits for the tide. Bring something warm to wear, "
    "since the cabin is small and the wind on deck is cold even in June. On the other side there is one shop, "
    "one church, and a road that goes around the whole island. You can walk it in three hours and be back before "
    "the last boat leaves.",
)

Head = tuple[int, int]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    torch.set_num_threads(1)
    model = models.load()
    repeated = torch.cat([copies(seed) for seed in range(COPIES)])
    measured = {"induction heads": induction_heads(model)}
    top = [tuple(head) for head in measured["induction heads"]["heads"]]
    with torch.no_grad():
        measured["repeats"] = repeats(model, repeated, top)
        print(measured)
        measured["growing"] = growing(model, rows(model, CHOOSING), rows(model, MEASURING))
    versions = {"torch": torch.__version__}
    print(harness.save("heads", measured, versions, threads=1, model=models.path().name, length=LENGTH))


def copies(seed: int, length: int = LENGTH) -> torch.Tensor:
    """Random tokens and the same again, (1, 2 length); neither bytes nor special tokens are among them."""
    once = torch.randint(1000, 40_000, (1, length), generator=torch.Generator().manual_seed(seed))
    return torch.cat([once, once], dim=1)


def rows(model: models.Decoder, texts: Iterable[str]) -> torch.Tensor:
    """Texts as tokens, cut to one length."""
    ids = [model.tokenizer.encode(text) for text in texts]
    return torch.tensor([text[: min(map(len, ids))] for text in ids])


def induction_heads(model: models.Decoder) -> dict:
    """The heads with the highest scores, each the least of three distances; on other tokens than the ablations."""
    least = np.ones((model.config.layers, model.config.h))
    for length in (17, 32, 45):
        found = []
        for seed in range(100, 103):
            ids = copies(seed, length)
            with torch.no_grad():
                attention = model.trace(ids).attention[:, 0].numpy()
            found.append(heads.induction(attention, ids[0].numpy()))
        least = np.minimum(least, np.mean(found, axis=0))
    order = ranked(least)[:20]
    return {"heads": order, "scores": [round(float(least[head]), 3) for head in order]}


def ranked(scores: np.ndarray) -> list[Head]:
    """Heads from the highest score down."""
    return [(int(i) // scores.shape[1], int(i) % scores.shape[1]) for i in np.argsort(-scores, axis=None)]


def losses(model: models.Decoder, ids: torch.Tensor) -> torch.Tensor:
    """How surprising each token but the first is after those before it, in nats, (b, n - 1)."""
    return cross_entropy(model(ids)[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), reduction="none").view(
        len(ids), -1
    )


def of_copies(model: models.Decoder, ids: torch.Tensor) -> dict[str, list[float]]:
    """The loss on the first copy, and on the second behind its first token, of each text."""
    of_tokens, half = losses(model, ids), ids.shape[1] // 2
    return {
        "first": rounded(of_tokens[:, : half - 1].mean(dim=1).tolist()),
        "second": rounded(of_tokens[:, half:].mean(dim=1).tolist()),
    }


def without(model: models.Decoder, ids: torch.Tensor, some: Iterable[Head], to=None) -> dict[str, list[float]]:
    with heads.ablated(model, some, to):
        return of_copies(model, ids)


def repeats(model: models.Decoder, ids: torch.Tensor, top: list[Head]) -> dict:
    """What the second copy costs without each head alone, without the best, and without random ones."""
    every = [(layer, head) for layer in range(model.config.layers) for head in range(model.config.h)]
    means = heads.mean_heads(model, torch.cat([copies(seed) for seed in range(200, 204)]))
    rest = [head for head in every if head not in top]
    rng = np.random.default_rng(0)
    anywhere = [[every[i] for i in rng.choice(len(every), 6, replace=False)] for _ in range(SETS)]
    beside = [[beside_of(head, rest, rng) for head in top[:6]] for _ in range(SETS)]
    return {
        "all heads": of_copies(model, ids),
        "best": {str(count): without(model, ids, top[:count]) for count in (1, 3, 6, 12)},
        "best at their means": {str(count): without(model, ids, top[:count], means) for count in (1, 3, 6, 12)},
        "six anywhere": [{"heads": some, **without(model, ids, some)} for some in anywhere],
        "six anywhere at their means": [{"heads": some, **without(model, ids, some, means)} for some in anywhere],
        "six of the same layers": [{"heads": some, **without(model, ids, some)} for some in beside],
        "without one": {f"{i}, {j}": without(model, ids[:1], [(i, j)])["second"][0] for i, j in every},
    }


def beside_of(head: Head, rest: list[Head], rng: np.random.Generator) -> Head:
    """Another head of the same layer, which is none of the best."""
    others = [other for other in rest if other[0] == head[0]]
    return others[rng.integers(len(others))]


def growing(model: models.Decoder, choosing: torch.Tensor, measuring: torch.Tensor) -> dict:
    """The loss on a plain text without more and more heads: in random orders, and the least sensitive first."""

    def plain(some: Iterable[Head], to=None) -> float:
        with heads.ablated(model, some, to):
            return round(losses(model, measuring).mean().item(), 3)

    def loss(logits: torch.Tensor) -> torch.Tensor:
        return cross_entropy(logits[:, :-1].flatten(0, 1), choosing[:, 1:].flatten())

    means = heads.mean_heads(model, choosing)
    least = ranked(-heads.sensitivity(model, choosing, loss).abs().numpy())
    least_at_means = ranked(-heads.sensitivity(model, choosing, loss, means).abs().numpy())
    rng = np.random.default_rng(1)
    orders = [[least[i] for i in rng.permutation(len(least))] for _ in range(SETS)]
    return {
        "counts": COUNTS,
        "all heads": plain([]),
        "least needed first": [plain(least[:count]) for count in COUNTS],
        "least needed first, at their means": [plain(least_at_means[:count], means) for count in COUNTS],
        "random": [[plain(order[:count]) for count in COUNTS] for order in orders],
        "random, at their means": [[plain(order[:count], means) for count in COUNTS] for order in orders],
        "order": least,
    }


def rounded(numbers: Iterable[float]) -> list[float]:
    return [round(number, 3) for number in numbers]


if __name__ == "__main__":
    main()
