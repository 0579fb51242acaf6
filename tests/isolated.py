"""Tests with processes or process groups: each in a process of its own, which is ended when it takes too long.

A process group has threads of its own. What they hold can keep the interpreter from going on, or from ending, and a
time limit inside the same process may then never act. From outside it always does.
"""

import subprocess
import sys
import threading
from pathlib import Path

SECONDS = 180  # of which a busy machine may take many to import torch
ROOT = Path(__file__).parents[1]

_PROLOGUE = """
import faulthandler
faulthandler.dump_traceback_later({seconds}, exit=True)
from tests import {module}
{module}.{name}({arguments})
"""


def run_isolated(module: str, name: str, *arguments: str, seconds: int = SECONDS) -> None:
    """Call ``tests.module.name(*arguments)`` in a new process, and fail with its output if it fails or hangs.

    Shortly before the limit it prints what every one of its threads is doing.
    """
    code = _PROLOGUE.format(seconds=seconds, module=module, name=name, arguments=", ".join(map(repr, arguments)))
    try:
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", code],
            cwd=ROOT,
            capture_output=True,
            text=True,
            timeout=seconds + 15,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise AssertionError(f"{name} did not end within {seconds} s:\n{error.stdout}\n{error.stderr}") from None
    assert done.returncode == 0, done.stdout + done.stderr


def wait_for_ever() -> None:
    """Stand still, for the test of the guard."""
    threading.Event().wait()
