"""Set-up for the whole suite: signatures are checked while the tests run."""

import os

import jaxtyping
import numpy as np
import pytest

if "MUTANT_UNDER_TEST" not in os.environ:  # the import hook and mutmut rewrite the same functions
    jaxtyping.install_import_hook("mha_tutorial.reference", "beartype.beartype")


def pytest_configure(config):
    """Notebooks are tests: where nbval is installed, it runs those that are asked for and compares every output."""
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
