"""The task of two averages: what one head misses at the least, and that two heads miss nothing."""

from functools import partial

import numpy as np
import pytest
import torch

from mha_tutorial import RowWeights
from mha_tutorial.examples import two_averages
from mha_tutorial.reference import row

TASKS = {
    "two tokens": (np.array([1.0, 0.0]), np.array([0.0, 1.0])),
    "two and three of five": (np.array([0.5, 0.5, 0, 0, 0]), np.array([0, 0, 1 / 3, 1 / 3, 1 / 3])),
    "uneven": (np.array([0.8, 0.2, 0, 0]), np.array([0, 0, 0.9, 0.1])),
}
tasks = pytest.mark.parametrize(("first", "second"), TASKS.values(), ids=TASKS)


@tasks
def test_two_heads_do_the_task(first, second):
    assert two_averages.error(two_averages.two_heads(first, second), first, second) < 1e-12


@tasks
def test_the_answer_is_the_two_averages(first, second, rng):
    contents = rng.normal(size=(len(first), 2))
    query, keys = two_averages.inputs(len(first))
    answer = row.multi_head(query, keys, contents, two_averages.two_heads(first, second)).output
    np.testing.assert_allclose(answer[0], [contents[:, 0] @ first, contents[:, 1] @ second], rtol=1e-12)


@tasks
def test_error_is_the_mean_over_random_contents(first, second):
    """The exact error lies within five standard errors of an average over 40,000 random tokens."""
    rng = np.random.default_rng(11)
    m = len(first)
    weights = RowWeights(
        rng.normal(size=(1, 1, 3)),
        rng.normal(size=(1, m, 3)),
        rng.normal(size=(1, 2, 2)),
        rng.normal(size=(1, 2, 2)),
    )
    contents = rng.normal(size=(40_000, m, 2))
    query, keys = (np.broadcast_to(x, (40_000, *x.shape)) for x in two_averages.inputs(m))
    answers = row.multi_head(query, keys, contents, weights).output[:, 0]
    wanted = np.stack([contents[..., 0] @ first, contents[..., 1] @ second], axis=1)
    squared = np.square(answers - wanted).sum(axis=1)
    assert abs(squared.mean() - two_averages.error(weights, first, second)) < 5 * squared.std() / 200


def optimised_error(first, second, width, seed):
    """Train one head of a given width on the exact error, from a random start, to convergence."""
    m, generator = len(first), torch.Generator().manual_seed(seed)
    target = torch.zeros(m, 2, 2, dtype=torch.float64)  # what token j's number c should add to answer a: [j, a, c]
    target[:, 0, 0], target[:, 1, 1] = torch.from_numpy(first), torch.from_numpy(second)
    scores, W_v, W_o = leaves = [
        torch.randn(shape, dtype=torch.float64, generator=generator).requires_grad_()
        for shape in ((m,), (width, 2), (2, width))
    ]
    optimiser = torch.optim.LBFGS(leaves, max_iter=500, line_search_fn="strong_wolfe", tolerance_grad=1e-10)

    def loss():
        optimiser.zero_grad()
        error = (torch.softmax(scores, 0)[:, None, None] * (W_o @ W_v) - target).square().sum()
        error.backward()
        return error

    optimiser.step(loss)
    return float(loss().detach())


@pytest.mark.no_cover
@pytest.mark.usefixtures("own_messages")
@pytest.mark.equation("eq-one-head-error")
@tasks
@pytest.mark.parametrize("width", [1, 2, 5])
def test_the_best_single_head_that_optimisation_finds_misses_by_the_stated_error(first, second, width):
    """Never less than stated, from ten random starts, and as little as stated from the best of them."""
    stated = two_averages.best_single_head_error(first, second)
    found = [optimised_error(first, second, width, seed) for seed in range(10)]
    assert stated - 1e-9 < min(found) < stated + 1e-3


@pytest.mark.equation("eq-one-head-error")
@tasks
def test_no_single_head_drawn_at_random_is_better_than_stated(first, second):
    stated, m = two_averages.best_single_head_error(first, second), len(first)
    rng = np.random.default_rng(5)
    for _ in range(200):
        weights = RowWeights(
            np.ones((1, 1, 1)),
            3 * rng.normal(size=(1, m, 1)),
            rng.normal(size=(1, 2, 2)),
            rng.normal(size=(1, 2, 2)),
        )
        assert two_averages.error(weights, first, second) >= stated


@tasks
def test_the_error_is_the_same_in_both_conventions(first, second, rng):
    weights = RowWeights(*(rng.normal(size=(1, rows, 2)) for rows in (1, len(first), 2, 2)))
    assert two_averages.error(weights, first, second) == two_averages.error(weights.T, first, second)


@pytest.mark.equation("eq-one-head-error")
def test_two_tokens_are_missed_by_one_however_the_head_looks():
    """Half of all there is, for every split of attention, once the projections are the best for it."""
    first, second = TASKS["two tokens"]
    for a in (0.1, 0.5, 0.8):
        b = 1 - a
        both = a**2 + b**2
        weights = RowWeights(
            np.ones((1, 1, 1)), np.log([[[a], [b]]]), np.eye(2)[None], np.diag([a / both, b / both])[None]
        )
        stated = two_averages.best_single_head_error(first, second)
        assert two_averages.error(weights, first, second) == pytest.approx(stated, rel=1e-12)


@pytest.mark.equation("eq-best-multiple")
@tasks
def test_what_is_missed_is_the_distance_from_a_line(first, second, rng):
    attended = rng.random(size=(20, len(first)))
    for wanted in (first, second):
        distances = [np.linalg.lstsq(w[:, None], wanted)[1][0] for w in attended]
        np.testing.assert_allclose(two_averages.residual_error(wanted, attended), distances, rtol=1e-12, atol=1e-15)


def test_a_token_that_counts_twice_is_refused():
    with pytest.raises(ValueError, match="each token may count in one of the two averages only"):
        two_averages.best_single_head_error(np.array([0.5, 0.5]), np.array([0.0, 1.0]))


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(
    ("first", "second", "error", "message"),
    [
        ([1.0, 0.0], np.array([0.0, 1.0]), TypeError, "first must be a NumPy array of floating-point numbers"),
        (np.array([1.0, 0.0]), np.array([0, 1]), TypeError, "second must be a NumPy array of floating-point"),
        (np.array([1.5, -0.5, 0.0]), np.array([0.0, 0.0, 1.0]), ValueError, "first must hold .* none negative"),
        (np.array([np.nan, 1.0]), np.array([0.0, 1.0]), ValueError, "first must hold a weight for every token"),
        (np.ones((1, 1)), np.ones((1, 1)), ValueError, "first must hold a weight for every token"),
        (np.array([0.5, 0.5, 0.0]), np.array([1.0]), ValueError, "of one length, got 3 and 1 weights"),
    ],
)
def test_what_is_no_average_is_refused(first, second, error, message):
    layer = two_averages.two_heads(*TASKS["two tokens"])
    for function in (
        two_averages.two_heads,
        two_averages.best_single_head_error,
        partial(two_averages.error, layer),
    ):
        with pytest.raises(error, match=message):
            function(first, second)


def test_weights_of_an_average_sum_to_one():
    with pytest.raises(ValueError, match=r"must sum to one, got \[2.0, 1.0\]"):
        two_averages.two_heads(np.array([2.0, 0.0]), np.array([0.0, 1.0]))
