"""Fair timing: every variant is first compared with the right answer, then all are timed in interleaved rounds."""

import datetime
import json
import os
import platform
import random
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parents[1] / "book/results"


def ratios(
    variants: dict[str, Callable[[], np.ndarray]], unit: str, expected: np.ndarray, rounds: int, rtol: float
) -> dict[str, dict[str, float]]:
    """Time each variant against the one called `unit`: median and quartiles of the ratios within rounds.

    A variant whose result differs from `expected` is refused before anything is timed.
    """
    compare(variants, expected, rtol)
    return relative(seconds(variants, rounds), unit)


def compare(variants: dict[str, Callable[[], np.ndarray]], expected: np.ndarray, rtol: float) -> None:
    """Refuse a variant whose result differs from `expected`."""
    for name, variant in variants.items():
        np.testing.assert_allclose(variant(), expected, rtol=rtol, atol=rtol * np.abs(expected).max(), err_msg=name)


def seconds(variants: dict[str, Callable], rounds: int, settle: float = 0.0) -> dict[str, list[float]]:
    """Time every variant once a round, in random order, so that a slow moment of the machine hits all alike.

    With `settle` there is a pause of so many seconds before each, in which the threads of the one before stop
    looking for work and leave the cores, and then a run that is not timed, which wakes its own.
    """
    order, shuffle = list(variants), random.Random(0)
    taken: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            if settle:
                time.sleep(settle)
                variants[name]()
            start = time.perf_counter()
            variants[name]()
            taken[name].append(time.perf_counter() - start)
    return taken


def relative(taken: dict[str, list[float]], unit: str) -> dict[str, dict[str, float]]:
    """Median and quartiles of the ratios to one variant, each taken within a round."""
    quartiles = {}
    for name, mine in taken.items():
        low, median, high = statistics.quantiles([a / b for a, b in zip(mine, taken[unit], strict=True)], n=4)
        quartiles[name] = {"low": round(low, 3), "median": round(median, 3), "high": round(high, 3)}
    return quartiles


def save(name: str, measured: dict, **versions: str) -> Path:
    """Write what was measured, and on what, to book/results, whole or not at all."""
    record = {
        "measured": measured,
        "date": datetime.date.today().isoformat(),
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {"python": platform.python_version(), "numpy": np.__version__} | versions,
    }
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.json"
    scratch = path.with_suffix(".json.new")
    scratch.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    os.replace(scratch, path)
    return path


def _processor() -> str:
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        for line in cpuinfo.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()
