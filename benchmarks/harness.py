"""Fair timing: every variant is first compared with the right answer, then all are timed in interleaved rounds."""

import ctypes
import datetime
import json
import math
import os
import platform
import random
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

RESULTS = Path(__file__).parents[1] / "mha_tutorial/results"

Step = Callable[[], object]  # one computation; what it returns is looked at once, before anything is timed
Timer = Callable[[Step, int], float]  # the seconds of one of so many calls


def ratios(
    variants: Mapping[str, Step], unit: str, expected: np.ndarray, rounds: int, rtol: float
) -> dict[str, dict[str, float]]:
    """Check every variant, time each against the one called `unit`, and give the quartiles of the ratios."""
    for name, variant in variants.items():
        refuse_if_wrong(name, [variant()], [expected], rtol)
    return relative(race(variants, rounds), unit)


def refuse_if_wrong(name: str, found: Sequence, expected: Sequence[np.ndarray], rtol: float) -> None:
    """Stop where a result is further from the right one than `rtol` times the largest number in it."""
    for mine, right in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, right, rtol=rtol, atol=rtol * np.abs(right).max(), err_msg=name)


def race(
    variants: Mapping[str, Step],
    rounds: int,
    timer: Timer | None = None,
    shortest: float = 0.0,
    settle: float = 0.0,
) -> dict[str, list[float]]:
    """Time every variant once in each round, in random order, so that a slow moment hits all alike.

    A variant that takes less than `shortest` seconds is called as often as fills them. With `settle` there is a
    pause of so many seconds before each, in which the threads of the one before stop looking for work and leave
    the cores, and then a call that is not timed, which wakes its own. Returns the seconds of a call by rounds.
    """
    timer = timer or wall_clock
    calls = {name: max(1, math.ceil(shortest / timer(step, 1))) for name, step in variants.items()}
    order, shuffle = list(variants), random.Random(0)
    seconds: dict[str, list[float]] = {name: [] for name in variants}
    for _ in range(rounds):
        shuffle.shuffle(order)
        for name in order:
            if settle:
                time.sleep(settle)
                variants[name]()
            seconds[name].append(timer(variants[name], calls[name]))
    return seconds


def wall_clock(step: Step, calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        step()
    return (time.perf_counter() - start) / calls


def relative(seconds: Mapping[str, Sequence[float]], unit: str) -> dict[str, dict[str, float]]:
    """Median and quartiles of each variant's time over the time of `unit` in the same round."""
    quartiles = {}
    for name, mine in seconds.items():
        low, median, high = statistics.quantiles(
            [one / other for one, other in zip(mine, seconds[unit], strict=True)], n=4
        )
        quartiles[name] = {"low": round(low, 3), "median": round(median, 3), "high": round(high, 3)}
    return quartiles


def peak_memory(step: Step) -> float | None:
    """How many MiB more than before the process holds at the height of one call; None but on Linux."""
    status, peak = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not peak.exists():
        return None

    def kibibytes(field: str) -> int:
        (line,) = (line for line in status.read_text().splitlines() if line.startswith(field))
        return int(line.split()[1])

    step()  # what is made once, on first use, does not count
    ctypes.CDLL(None).malloc_trim(0)  # nor does what was freed and not given back
    peak.write_text("5")  # the peak starts anew
    before = kibibytes("VmRSS")
    step()
    return round((kibibytes("VmHWM") - before) / 1024, 1)


def save(name: str, measured: object, versions: Mapping[str, str] | None = None, **conditions: object) -> Path:
    """Write what was measured, under which conditions and on what, to mha_tutorial/results, whole or not at all."""
    record = {
        "measured": measured,
        **conditions,
        "date": datetime.date.today().isoformat(),
        "machine": {"processor": _processor(), "cores": os.cpu_count(), "system": platform.system()},
        "versions": {"python": platform.python_version(), "numpy": np.__version__, **(versions or {})},
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
