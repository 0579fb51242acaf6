"""Set-up for the whole suite: signatures are checked while the tests run."""

import functools
import os
from pathlib import Path

import jaxtyping
import numpy as np
import pytest

CHECKED = (  # every room but `torch`, which has checks of its own: checked code under `torch.compile` breaks
    "analysis",
    "block",
    "examples",
    "explorers",
    "fast",
    "gradients",
    "layer",
    "layouts",
    "masks",
    "positions",
    "printing",
    "reference",
    "results",
    "trace",
    "weights",
)

if "MUTANT_UNDER_TEST" not in os.environ:  # the import hook and mutmut rewrite the same functions
    jaxtyping.install_import_hook([f"mha_tutorial.{room}" for room in CHECKED], "beartype.beartype")


def pytest_configure(config):
    """Notebooks are tests: where nbval is installed, it runs those that are asked for and compares every output."""
    os.environ["MHA_EXPLORERS"] = "linked"  # the committed outputs hold no copy of the explorers' script
    # beartype picks at random which item of a sequence it looks at; what Hypothesis draws does not depend on it
    config.addinivalue_line("filterwarnings", "ignore:Do not use the .random. module inside strategies")
    options = config.option
    if config.pluginmanager.hasplugin("nbval") and not (options.nbval or options.nbval_lax):
        options.nbval = options.nbval_current_env = True
        options.nbval_cell_timeout = 120


def pytest_report_header(config):
    return None if config.pluginmanager.hasplugin("nbval") else "notebooks: not run, since nbval is not installed"


@functools.cache
def trained_model() -> Path:
    """Fetch the trained model, once for all processes of a run; ``MHA_OFFLINE=1`` alone skips its tests."""
    from mha_tutorial.models import fetch

    try:
        return fetch()
    except FileNotFoundError as error:  # raised where it is forbidden, and never otherwise
        pytest.skip(str(error))


def pytest_runtest_setup(item):
    """Examples and notebooks that load the trained model need it; tests ask for it by the fixture."""
    if _loads_model(item.path) and not isinstance(item, pytest.Function):
        trained_model()


@functools.cache
def _loads_model(path: Path) -> bool:
    return "models.load(" in path.read_text(encoding="utf-8") or path.name == "loading.py"


@pytest.fixture(scope="session")
def model_file() -> Path:
    return trained_model()


@pytest.fixture
def own_messages():
    """Let the package's own checks answer, not the type checker that reads its signatures."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(2017)


@pytest.fixture(autouse=True)
def numpy_in_doctests(doctest_namespace):
    """Examples in docstrings may say ``np`` without importing it, as the modules they stand in do."""
    doctest_namespace["np"] = np
