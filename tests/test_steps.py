"""The eleven steps: heads split and merged by moving axes, and the same result as the reference."""

import numpy as np
import pytest

from mha_tutorial import RowWeights
from mha_tutorial.examples.steps import eleven_steps, merge_heads, split_heads
from mha_tutorial.reference import row
from tests.helpers import D_K, H, N, assert_close


@pytest.mark.equation("eq-split")
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_split_gives_each_head_its_piece_of_every_token(batch, rng):
    tokens = rng.normal(size=(*batch, N, H * D_K))
    heads = split_heads(tokens, H)
    assert heads.shape == (*batch, H, N, D_K)
    for head in range(H):
        for i in range(N):
            for c in range(D_K):
                assert np.array_equal(heads[..., head, i, c], tokens[..., i, head * D_K + c])


@pytest.mark.equation("eq-merge-heads")
@pytest.mark.parametrize("batch", [(), (2,), (2, 3)])
def test_merge_gives_each_token_its_pieces_of_every_head(batch, rng):
    heads = rng.normal(size=(*batch, H, N, D_K))
    tokens = merge_heads(heads)
    for head in range(H):
        for i in range(N):
            for c in range(D_K):
                assert np.array_equal(tokens[..., i, head * D_K + c], heads[..., head, i, c])
    assert np.array_equal(split_heads(tokens, H), heads)


def test_splitting_moves_nothing_in_memory(rng):
    tokens = rng.normal(size=(2, N, H * D_K))
    assert np.shares_memory(split_heads(tokens, H), tokens)


def test_tokens_that_cannot_be_cut_evenly_are_refused():
    with pytest.raises(ValueError, match="10 numbers per token cannot be cut into 4 equal heads"):
        split_heads(np.ones((2, 10)), 4)


@pytest.mark.parametrize("bias", [True, False])
def test_eleven_steps_end_in_the_reference(bias, rng):
    weights, x = RowWeights.random(rng, d_model=21, h=3, bias=bias), rng.normal(size=(2, N, 21))
    steps, trace = eleven_steps(x, weights), row.multi_head(x, x, x, weights)
    assert len(steps) == 11
    assert_close(steps["transpose"], np.stack([trace.queries, trace.keys, trace.values]))
    assert_close(steps["scale"], trace.scores)
    assert_close(steps["softmax"], trace.attention)
    assert_close(steps["average"], trace.heads)
    assert_close(steps["output"], trace.output)


@pytest.mark.parametrize("options", [{"h_kv": 1}, {"d_k": 5, "d_v": 7}])
def test_layers_that_one_picture_cannot_show_are_refused(options, rng):
    with pytest.raises(ValueError, match="the eleven steps are those of a batch"):
        eleven_steps(np.ones((2, N, 21)), RowWeights.random(rng, d_model=21, h=3, **options))


@pytest.mark.usefixtures("own_messages")
def test_a_batch_is_needed(rng):
    with pytest.raises(ValueError, match="the eleven steps are those of a batch"):
        eleven_steps(np.ones((N, 21)), RowWeights.random(rng, d_model=21, h=3))


@pytest.mark.usefixtures("own_messages")
@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: split_heads(np.ones((2, 10)), 0), ValueError, "h must be at least 1, got 0"),
        (lambda: split_heads(np.ones((2, 10)), 2.0), TypeError, "h must be a whole number, got 2.0"),
        (lambda: split_heads(np.ones((2, 10)), True), TypeError, "h must be a whole number, got True"),
        (lambda: split_heads(np.ones(10), 2), ValueError, r"tokens must be \(..., n, h d\), got shape \(10,\)"),
        (lambda: split_heads([[1.0, 2.0]], 2), TypeError, r"tokens must be a NumPy array .*, got list"),
        (lambda: merge_heads(np.ones((2, 3))), ValueError, r"heads must be \(..., h, n, d\), got shape \(2, 3\)"),
    ],
)
def test_what_cannot_be_split_or_merged_is_refused(call, error, message):
    with pytest.raises(error, match=message):
        call()
