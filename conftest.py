"""Set-up for the whole suite: signatures are checked while the tests run."""

import os

import jaxtyping
import numpy as np
import pytest

CHECKED = (  # every room but `torch`, which has checks of its own: checked code under `torch.compile` breaks
    "analysis",
    "block",
    "examples",
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
    # beartype picks at random which item of a sequence it looks at; what Hypothesis draws does not depend on it
    config.addinivalue_line("filterwarnings", "ignore:Do not use the .random. module inside strategies")
    options = config.option
    if config.pluginmanager.hasplugin("nbval") and not (options.nbval or options.nbval_lax):
        options.nbval = options.nbval_current_env = True
        options.nbval_cell_timeout = 120


def pytest_report_header(config):
    return None if config.pluginmanager.hasplugin("nbval") else "notebooks: not run, since nbval is not installed"


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
