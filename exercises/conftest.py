"""What every exercise is given: random numbers, sizes without coincidences, and the reader's answers."""

import numpy as np
import pytest
from grading import Answers

PRIMES = [2, 3, 5, 7, 11, 13, 17]


@pytest.fixture
def rng(request) -> np.random.Generator:
    return np.random.default_rng(list(request.node.name.encode()))


@pytest.fixture
def sizes(rng):
    """Draws so many primes, all different: then no swapped axis fits by luck."""
    return lambda count: [int(size) for size in rng.choice(PRIMES, size=count, replace=False)]


@pytest.fixture
def answers(request) -> Answers:
    """The file of answers that the test file grades."""
    return Answers(request.path.stem.removeprefix("test_"))
