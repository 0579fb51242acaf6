"""Grades tensors.py."""

import numpy as np
import pytest
from einops import rearrange, repeat
from grading import compare

from mha_tutorial import Causal, Padding
from mha_tutorial.reference import row


def test_split_heads(answers, rng, sizes):
    b, n, h, d = sizes(4)
    x = rng.normal(size=(b, n, h * d))
    compare(
        answers.split_heads(x, h),
        rearrange(x, "b n (h d) -> b h n d", h=h),
        hint="split the last axis in two, (b, n, h, d), then move the axis of the heads in front of the tokens",
        mistakes={
            "it is reshaped in one go, which mixes tokens and heads": x.reshape(b, h, n, d),
            "the heads still stand behind the tokens": x.reshape(b, n, h, d),
            "the last axis is split as (d, h): every h-th number goes to one head": rearrange(
                x, "b n (d h) -> b h n d", h=h
            ),
        },
    )


def test_merge_heads(answers, rng, sizes):
    b, n, h, d = sizes(4)
    heads = rng.normal(size=(b, h, n, d))
    compare(
        answers.merge_heads(heads),
        rearrange(heads, "b h n d -> b n (h d)"),
        hint="move the axis of the heads back behind the tokens, then join the last two axes",
        mistakes={
            "it is reshaped in one go, which mixes tokens and heads": heads.reshape(b, n, h * d),
            "the heads are interleaved": rearrange(heads, "b h n d -> b n (d h)"),
        },
    )


def test_causal(answers, sizes):
    n, m = sorted(sizes(2))
    compare(
        answers.causal(n, m),
        Causal("bottom-right").rows(n, m),
        hint="the last query sees every key; the one before it all but the last; and so on",
        mistakes={
            "the first query stands beside the first key; here the last stands beside the last": Causal(
                "top-left"
            ).rows(n, m),
            "it says what is hidden. True means that the query may look": ~Causal("bottom-right").rows(n, m),
            "a query does not see its own position": np.tri(n, m, m - n - 1, dtype=bool),
            "the triangle is moved the wrong way, by n - m": np.tri(n, m, n - m, dtype=bool),
        },
    )


def test_padding(answers, rng, sizes):
    b, m = sizes(2)
    lengths = rng.integers(1, m + 1, size=b)
    visible = Padding(lengths).rows(1, m, batch=(b,))[:, None]
    compare(
        answers.padding(lengths, m),
        visible,
        hint="key i is real when i < length; put axes of length one where heads and queries go",
        mistakes={
            "it says what is hidden. True means that the key is real": ~visible,
            "the padding stands in front; it stands behind": visible[..., ::-1],
            "the first key behind each text counts as real": (np.arange(m) <= lengths[:, None])[:, None, None],
        },
    )


def test_masked_softmax(answers, rng, sizes):
    b, h, n, m = sizes(4)
    scores, visible = rng.normal(size=(b, h, n, m)), rng.random((b, 1, n, m)) < 0.6
    visible[0, 0, 0] = False
    with np.errstate(invalid="ignore", divide="ignore"):
        undefined = np.exp(scores) * visible / (np.exp(scores) * visible).sum(axis=-1, keepdims=True)
    compare(
        answers.masked_softmax(scores, visible),
        row.softmax(row.hide(scores, visible)),
        hint="exponentials of hidden scores are 0; divide by their sum over the keys, or by 1 where that is 0",
        mistakes={
            "a query that sees nothing gets NaN (0 / 0); it must get zeros": undefined,
            "hidden scores are a large negative number, so a query that sees nothing looks everywhere alike": (
                row.softmax(np.where(visible, scores, -1e9))
            ),
            "hidden scores are lowered by 1e9, all of them alike where a query sees nothing": (
                row.softmax(scores - 1e9 * ~visible)
            ),
            "hidden scores are lowered by 1e4, all of them alike where a query sees nothing": (
                row.softmax(scores - 1e4 * ~visible)
            ),
            "nothing is hidden": row.softmax(scores),
            "what is visible and what is hidden are swapped": row.softmax(row.hide(scores, ~visible)),
        },
    )
    if answers.warnings:
        pytest.fail(f"Right, but it warns: {answers.warnings[0]}.", pytrace=False)


def test_masked_softmax_of_large_scores(answers, rng, sizes):
    b, h, n, m = sizes(4)
    visible = rng.random((b, 1, n, m)) < 0.6
    scores = 1000 * rng.normal(size=(b, h, n, m))
    scores = np.where(visible, scores, scores + 5000)
    compare(
        answers.masked_softmax(scores, visible),
        row.softmax(row.hide(scores, visible)),
        hint="subtract each query's largest score before the exponential, and let hidden scores have no say in it",
    )


def test_share_keys(answers, rng, sizes):
    b, h_kv, group, m, d_k = sizes(5)
    keys = rng.normal(size=(b, h_kv, m, d_k))
    compare(
        answers.share_keys(keys, h_kv * group),
        repeat(keys, "b h_kv m d_k -> b (h_kv group) m d_k", group=group),
        hint="query heads 1 to g share the first keys, the next g the second",
        mistakes={
            "each head's keys are repeated h times, not h / h_kv times": np.repeat(keys, h_kv * group, axis=1),
            "the keys are tiled (1 2 1 2); neighbouring heads share (1 1 2 2)": np.tile(keys, (1, group, 1, 1)),
        },
    )
