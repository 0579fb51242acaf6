"""Grades decoding.py."""

import numpy as np
from grading import compare, several

from mha_tutorial import Causal
from mha_tutorial.reference import row


def test_cached_step(answers, rng, sizes):
    d_model, d_k, d_v, before, n = sizes(5)
    X = rng.normal(size=(before + n, d_model))
    W_q, W_k, W_v = (rng.normal(size=(d_model, d)) for d in (d_k, d_k, d_v))
    Q, K, V = X @ W_q, X @ W_k, X @ W_v
    hint = "put the new keys and values behind the old; the last new token stands beside the last key"
    x = X[before:]
    answer, keys, values = several(answers.cached_step(x, K[:before], V[:before], W_q, W_k, W_v), 3, hint)

    def attended(visible, K=K, V=V):
        return row.attention(Q[before:], K, V, visible=visible)

    top_left, alone = np.tri(n, before + n, dtype=bool), np.tri(n, dtype=bool)
    compare(
        answer,
        attended(Causal("bottom-right")),
        hint,
        {
            "new tokens see those after them: a chunk needs a mask": attended(None),
            "the first new token stands beside the first key; the last stands beside the last": attended(top_left),
            "the tokens stored are not attended to": attended(alone, K[before:], V[before:]),
            "a new token does not see itself": attended(np.tri(n, before + n, before - 1, dtype=bool)),
        },
    )
    compare(keys, K, hint, {"the new keys stand in front of the old": np.concatenate([K[before:], K[:before]])})
    compare(values, V, hint, {"the new values stand in front of the old": np.concatenate([V[before:], V[:before]])})


def test_ring(answers, sizes):
    window, more = sizes(2)
    tokens = window + more
    places = np.arange(tokens)
    hint = "slot i holds the last token whose place leaves the remainder i"
    slots, held = several(answers.ring(tokens, window), 2, hint)
    compare(slots, places % window, hint, {"tokens are counted from 1": (places + 1) % window})
    last = places[-window:]
    compare(
        held,
        last[np.argsort(last % window)],
        hint,
        {
            "the ring still holds the first tokens": places[:window],
            "tokens stand in the order in which they came, not in their slots": last,
        }
        if more % window
        else {"the ring still holds the first tokens": places[:window]},
    )


def test_cache_bytes(answers, sizes):
    m, layers, h_kv, d_k, d_v = sizes(5)
    compare(
        answers.cache_bytes(m, layers, h_kv, d_k, d_v, 4),
        m * layers * h_kv * (d_k + d_v) * 4,
        hint="each layer keeps a key and a value of every token for each key-value head",
        mistakes={
            "the layers are not counted": m * h_kv * (d_k + d_v) * 4,
            "numbers are counted, not bytes": m * layers * h_kv * (d_k + d_v),
            "only keys are counted": m * layers * h_kv * d_k * 4,
            "values are counted as wide as keys": m * layers * h_kv * 2 * d_k * 4,
        },
    )
