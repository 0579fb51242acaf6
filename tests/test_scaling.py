"""Why the scores are divided by the root of d_k: variance, Jacobian and entropy against their definitions."""

import math

import numpy as np
import pytest

from mha_tutorial.analysis import scaling
from mha_tutorial.reference import row
from tests.helpers import M, assert_close


@pytest.mark.equation("eq-dot-variance")
@pytest.mark.parametrize(("mean", "variance"), [(0.0, 1.0), (1.0, 1.0), (0.5, 3.0)])
def test_variance_of_the_inner_product_over_every_pair_of_vectors(mean, variance):
    """Exact: entries that take two values alike, so that all pairs of vectors can be listed."""
    d_k, spread = 3, math.sqrt(variance)
    entries = [mean - spread, mean + spread]
    vectors = np.array(np.meshgrid(*[entries] * d_k)).reshape(d_k, -1).T
    products = row.dot_product(vectors, vectors)
    assert products.var() == pytest.approx(scaling.dot_product_variance(d_k, mean, variance), rel=1e-12)


@pytest.mark.equation("eq-dot-variance")
def test_variance_is_d_k_and_three_times_d_k_for_mean_one():
    assert scaling.dot_product_variance(64) == 64
    assert scaling.dot_product_variance(64, mean=1.0) == 3 * 64


@pytest.mark.equation("eq-softmax-jacobian")
def test_jacobian_is_the_derivative_of_softmax(rng):
    scores, step = rng.normal(size=M), 1e-6
    differences = [
        (row.softmax(scores[None] + nudge) - row.softmax(scores[None] - nudge))[0] / (2 * step)
        for nudge in step * np.eye(M)
    ]
    jacobian = scaling.softmax_jacobian(row.softmax(scores[None])[0])
    assert_close(jacobian, np.array(differences).T, rtol=1e-8)
    np.testing.assert_allclose(jacobian.sum(axis=0), 0, atol=1e-15)


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize("attention", [np.ones((1, M)), np.ones((M, 1)), np.float64(1.0)])
def test_jacobian_is_of_one_query(attention):
    with pytest.raises(ValueError, match="the attention of one query has one axis, got shape"):
        scaling.softmax_jacobian(attention)


@pytest.mark.equation("eq-entropy")
def test_entropy_counts_yes_no_questions():
    attention = np.array([[0.5, 0.25, 0.125, 0.125], [1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]])
    assert scaling.entropy(attention).tolist() == [0.5 * 1 + 0.25 * 2 + 0.25 * 3, 0.0, 2.0]
    assert not np.signbit(scaling.entropy(attention)).any()
