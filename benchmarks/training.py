"""Train the small models of the chapter on training, from several seeds. Writes mha_tutorial/results/training.json.

python benchmarks/training.py                in about ten minutes, on one thread
python benchmarks/training.py rates scales   these parts; the others stay as they were recorded
python benchmarks/training.py --quick        one seed and a few steps, to see that everything runs; writes nothing

What counts are accuracies, scores and steps. Seconds are noted for the first models, to say how long it takes.
"""

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from harness import save

from mha_tutorial import results
from mha_tutorial.examples import copying
from mha_tutorial.examples.copying import Look
from mha_tutorial.models import Decoder

STEPS, RATE = 300, 0.005
ONE = (11, 11)  # a single distance, to train at
OTHERS = [(distance, distance) for distance in range(5, 16) if distance != ONE[0]]
UNSEEN = {"16 to 20": ((16, 20), 48), "21 to 31": ((21, 31), 64)}  # distances, and the tokens of a text
HEADS = (1, 2, 4, 8)
RATES = (0.003, 0.01, 0.03, 0.1, 0.3)
SCALES = (1, 2, 4)
KINDS = {"plain": False, "normalised": True}  # queries and keys


class Effort(NamedTuple):
    """From which seeds to train, and how long."""

    many: Sequence[int] = range(10)
    some: Sequence[int] = range(5)
    few: Sequence[int] = range(3)
    share: float = 1.0

    def steps(self, number: int) -> int:
        return max(2, int(self.share * number))


def layers(effort: Effort) -> dict:
    """Two layers and one over the steps; and what is left of the two without some heads, and at new distances."""
    found, steps = {}, effort.steps(STEPS)
    for name, number in {"two": 2, "one": 1}.items():
        models = [copying.small_model(layers=number, seed=seed) for seed in effort.many]
        start = time.perf_counter()
        runs = [
            copying.train(model, steps, RATE, seed=seed) for seed, model in zip(effort.many, models, strict=True)
        ]
        found[name] = {
            "seconds of one": round((time.perf_counter() - start) / len(models), 1),
            "parameters": parameters(models[0]),
            "steps": [look.step for look in runs[0]],
            "loss": band([[look.loss for look in run] for run in runs]),
            "accuracy": band([[look.accuracy for look in run] for run in runs]),
            "previous token": band([[look.previous_token[0].max() for look in run] for run in runs]),
            "induction": band([[look.induction[-1].max() for look in run] for run in runs]),
            "final accuracy": [round(run[-1].accuracy, 4) for run in runs],
            "learned at": [copying.learned_at(run) for run in runs],
        }
        if number == 2:
            found[name] |= {
                "half of the last score at": {
                    "previous token": [half_way(run, [x.previous_token[0].max() for x in run]) for run in runs],
                    "induction": [half_way(run, [x.induction[1].max() for x in run]) for run in runs],
                },
                "last scores": [
                    {"previous token": rounded(run[-1].previous_token), "induction": rounded(run[-1].induction)}
                    for run in runs
                ],
                "without": without([(model, run[-1]) for model, run in zip(models, runs, strict=True)]),
                "unseen distances": {
                    unseen: accuracies(models, distances, n) for unseen, (distances, n) in UNSEEN.items()
                },
            }
    return found


def without(trained: Sequence[tuple[Decoder, Look]]) -> dict[str, list[float]]:
    """How often models are right when heads add nothing."""
    found: dict[str, list[float]] = {}
    for model, last in trained:
        previous, induction = int(last.previous_token[0].argmax()), int(last.induction[1].argmax())
        for name, removed in {
            "no head": [],
            "the previous-token head": [(0, previous)],
            "the induction head": [(1, induction)],
            "first layer": [(0, 0), (0, 1)],
            "second layer": [(1, 0), (1, 1)],
        }.items():
            found.setdefault(name, []).append(round(copying.look(model.without(removed)).accuracy, 4))
    return found


def one_distance(effort: Effort) -> dict[str, dict]:
    """Train where the distance is always the same, and ask at that distance and at others."""
    found = {}
    for name, (number, steps) in {"two": (2, 300), "one": (1, 1000)}.items():
        models = [copying.small_model(layers=number, seed=seed) for seed in effort.some]
        for seed, model in zip(effort.some, models, strict=True):
            last(model, effort.steps(steps), seed, distances=ONE)
        elsewhere = np.mean([accuracies(models, other) for other in OTHERS], axis=0)
        found[name] = {
            "steps": effort.steps(steps),
            "there": accuracies(models, ONE),
            "elsewhere": [round(float(x), 4) for x in elsewhere],
        }
    return found


def heads(effort: Effort) -> dict[str, dict]:
    """One head or several in each layer, with equally many parameters: when each has learned."""
    return {str(h): several(effort, lambda seed, h=h: copying.small_model(h=h, seed=seed))[0] for h in HEADS}


def equal_heads(effort: Effort) -> dict[str, object]:
    """Four heads that start alike: by how much they differ in the end, and when they have learned."""

    def make(seed: int) -> Decoder:
        model = copying.small_model(h=4, seed=seed)
        copying.equalise_heads(model)
        return model

    found, models = several(effort, make)
    return found | {"difference": [copying.head_difference(model) for model in models]}


def several(effort: Effort, make: Callable[[int], Decoder]) -> tuple[dict[str, object], list[Decoder]]:
    models = [make(seed) for seed in effort.some]
    steps = effort.steps(450)
    runs = [copying.train(model, steps, RATE, seed=seed) for seed, model in zip(effort.some, models, strict=True)]
    return {
        "parameters": parameters(models[0]),
        "learned at": [copying.learned_at(run) for run in runs],
        "final accuracy": [round(run[-1].accuracy, 4) for run in runs],
    }, models


def rates(effort: Effort) -> dict[str, dict[str, dict]]:
    """Several learning rates, with plain queries and keys and with normalised ones."""
    return {
        kind: {
            str(rate): ends([last(small(kind, seed), effort.steps(STEPS), seed, rate) for seed in effort.few])
            for rate in RATES
        }
        for kind in KINDS
    }


def after_a_collapse(effort: Effort) -> dict[str, dict]:
    """Some steps at a rate that is too large, and then as many at the right one as would do."""
    collapsed, later = [], []
    for seed in effort.few:
        model = copying.small_model(seed=seed)
        collapsed.append(last(model, effort.steps(100), seed, rate=0.1))
        later.append(last(model, effort.steps(STEPS), seed))
    return {"collapsed": ends(collapsed), "later": ends(later)}


def controls(effort: Effort) -> dict[str, list[float]]:
    """One layer, given more of what it might lack."""
    found = {}
    for name, (h, d_model, steps) in {"1500 steps": (2, 32, 1500), "width 64, 600 steps": (4, 64, 600)}.items():
        models = {seed: copying.small_model(1, h, d_model, seed=seed) for seed in effort.few}
        ended = [last(model, effort.steps(steps), seed) for seed, model in models.items()]
        found[name] = [round(look.accuracy, 4) for look in ended]
    return found


def scales(effort: Effort) -> dict[str, dict[str, dict]]:
    """The matrices of queries and keys larger from the start, by a factor each."""
    found: dict[str, dict[str, dict]] = {}
    for kind in KINDS:
        found[kind] = {}
        for scale in SCALES:
            models = [small(kind, seed) for seed in effort.few]
            for model in models:
                copying.enlarge_scores(model, scale)
            start = [round(float(copying.look(model).entropy.mean()), 3) for model in models]
            seeds = zip(effort.few, models, strict=True)
            trained = ends([last(model, effort.steps(STEPS), seed) for seed, model in seeds])
            found[kind][str(scale)] = {"entropy at the start": start, **trained}
    return found


def small(kind: str, seed: int) -> Decoder:
    return copying.small_model(norm_heads=KINDS[kind], seed=seed)


def last(model: Decoder, steps: int, seed: int, rate: float = RATE, **options) -> Look:
    return copying.train(model, steps, rate, seed=seed, every=steps, **options)[-1]


def ends(looks: Sequence[Look]) -> dict[str, list[float]]:
    return {
        "loss": [round(look.loss, 3) for look in looks],
        "accuracy": [round(look.accuracy, 4) for look in looks],
        "entropy": [round(float(look.entropy.mean()), 3) for look in looks],
    }


def accuracies(models: Sequence[Decoder], distances: tuple[int, int], n: int = copying.LENGTH) -> list[float]:
    return [round(copying.look(model, distances=distances, n=n).accuracy, 4) for model in models]


def half_way(run: Sequence[Look], scores: Sequence[float]) -> int:
    """The first step at which a score has reached half of its last value."""
    return next(look.step for look, score in zip(run, scores, strict=True) if score >= scores[-1] / 2)


def band(curves: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """The least, the median and the most of all seeds at each step."""
    columns = list(zip(*curves, strict=True))
    kinds: dict[str, Callable] = {"low": min, "median": statistics.median, "high": max}
    return {name: [round(float(kind(column)), 4) for column in columns] for name, kind in kinds.items()}


def rounded(scores: np.ndarray) -> list[list[float]]:
    return [[round(float(score), 3) for score in layer] for layer in scores]


def parameters(model: Decoder) -> int:
    return sum(x.numel() for x in model.parameters())


PARTS: dict[str, Callable[[Effort], dict]] = {
    "layers": layers,
    "one-distance": one_distance,
    "heads": heads,
    "equal-heads": equal_heads,
    "rates": rates,
    "after-a-collapse": after_a_collapse,
    "controls": controls,
    "scales": scales,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--quick", action="store_true", help="one seed, few steps, nothing written")
    options = parser.parse_args()
    torch.set_num_threads(1)
    measured = results.read("training")["measured"] if options.parts else {}
    for name in options.parts or PARTS:
        effort = Effort([0], [0], [0], 0.02) if options.quick else Effort()
        measured[name] = PARTS[name](effort)
        print(name, time.strftime("%H:%M"), measured[name], flush=True)
        if not options.quick:
            save("training", measured, {"torch": torch.__version__}, steps=STEPS, rate=RATE, threads=1)


if __name__ == "__main__":
    main()
