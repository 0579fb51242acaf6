"""What several test files need: the tolerance rule, sizes that catch a swapped axis, and the two conventions."""

from types import ModuleType
from typing import NamedTuple

import numpy as np
import pytest

from mha_tutorial import ColumnWeights
from mha_tutorial.reference import column, row

# different primes, so that no transposed matrix and no swapped axis fits by luck
D_MODEL, N, M, H, D_K, D_V, BATCH = 11, 5, 7, 3, 13, 17, 2
GROUPS = {"h=3": (3, 3), "h=1": (1, 1), "h=6 sharing 2": (6, 2), "h=5 sharing 1": (5, 1)}


def assert_close(actual, expected, rtol=1e-12):
    """Equal to `rtol` of each entry, or of the largest where entries are near zero."""
    finite = np.abs(expected)[np.isfinite(expected)]
    np.testing.assert_allclose(actual, expected, rtol=rtol, atol=rtol * finite.max(initial=0.0), strict=True)


def assert_traces_close(actual, expected, rtol=1e-12):
    for step in expected._fields:
        assert_close(getattr(actual, step), getattr(expected, step), rtol)


class Convention(NamedTuple):
    """A reference module, and how to lay out for it what a test writes as columns."""

    ref: ModuleType

    def lay(self, *arrays):
        """Columns laid out for this convention, or its results read back as columns."""
        laid = tuple(array.mT if self.ref is row else array for array in arrays)
        return laid if len(laid) > 1 else laid[0]

    def lay_weights(self, weights: ColumnWeights):
        return weights.T if self.ref is row else weights


CONVENTIONS = [pytest.param(Convention(column), id="column"), pytest.param(Convention(row), id="row")]
in_both_conventions = pytest.mark.parametrize("convention", CONVENTIONS)


def sines(*shape, a=1.3, b=0.4):
    """Numbers without symmetry, the same everywhere: sines rounded to two decimals, in C order."""
    return np.round(np.sin(a * np.arange(np.prod(shape)) + b), 2).reshape(shape)


# causal attention of sines(1, 1, 3, 2) over sines(1, 1, 3, 2, a=0.9), with values sines(1, 1, 3, 2, a=2.1)
CAUSAL_RESULT = np.array([[0.39, 0.6], [-0.51358257, 0.469046], [0.11364831, 0.03196105]])


def rotated(x, pairs):
    """Turn the pairs of features of each token by angles that grow with its place, as rotary embeddings do."""
    first, second = (x[..., 0::2], x[..., 1::2]) if pairs else np.split(x, 2, axis=-1)
    count = first.shape[-1]
    angles = np.arange(x.shape[-2])[:, None] * 10000.0 ** -(np.arange(count) / count)
    turned = (first + 1j * second) * np.exp(1j * angles)
    parts = [turned.real, turned.imag]
    return np.stack(parts, -1).reshape(x.shape) if pairs else np.concatenate(parts, -1)
