"""Inputs at the edges of the numbers: every kind of fault, as functions of the type."""

import numpy as np

from mha_tutorial import Causal, Padding, RowWeights
from tests.numpy_oracle import Case

B, N, M, D_MODEL, H, H_KV, D_K, D_V = 2, 5, 7, 11, 4, 2, 3, 13


def drawn(dtype, cross=True, bias=True, **options) -> Case:
    """A layer and tokens without anything special about them."""
    rng = np.random.default_rng(2017)
    weights = RowWeights.random(rng, D_MODEL, H, h_kv=H_KV, d_k=D_K, d_v=D_V, bias=bias)
    weights = RowWeights(**{name: array.astype(dtype) for name, array in weights.arrays().items()})
    Q, K, V = (rng.normal(size=(B, length, D_MODEL)).astype(dtype) for length in (N, M, M))
    return Case(weights, Q, *((K, V) if cross else (None, None)), **options)


def exact(dtype, Q, K, V, **options) -> Case:
    """One head that projects by unit matrices: scores are the inner products of the tokens."""
    Q, K, V = (np.array(x, dtype)[None] for x in (Q, K, V))
    d, d_v = Q.shape[-1], V.shape[-1]
    return Case(RowWeights(*(np.eye(x, dtype=dtype)[None] for x in (d, d, d_v, d_v))), Q, K, V, **options)


def spoiled(name, place, value, **options):
    """Put a value somewhere into one of the inputs; `huge` is nine tenths of the type's largest number."""

    def make(dtype):
        case = drawn(dtype, **options)
        number = 0.9 * np.finfo(dtype).max if value == "huge" else value
        for one in name:
            getattr(case, one)[place] = number
        return case

    return make


def texts():
    """Two texts in one sequence: queries 0, 1 see keys 0 to 2, the others keys 3 to 6."""
    visible = np.zeros((N, M), dtype=bool)
    visible[:2, :3] = visible[2:, 3:] = True
    return visible


def real(lengths):
    """Padding sees nothing and is not seen."""
    tokens = np.arange(N) < np.array(lengths)[:, None, None, None]
    return tokens & tokens.mT


def blind():
    """Query 1 sees nothing, and nobody sees key 4."""
    visible = np.ones((N, M), dtype=bool)
    visible[1], visible[:, 4] = False, False
    return visible


NOT_FINITE = {
    "a query": spoiled("Q", (0, 1, 3), np.nan),
    "a query of inf": spoiled("Q", (0, 1), np.inf),
    "a query of one -inf, in one text": spoiled("Q", (1, 0, 2), -np.inf, visible=texts()),
    "a key": spoiled("K", (0, 1, 3), np.nan),
    "a key of inf, in one text": spoiled("K", (0, 4), np.inf, visible=texts()),
    "a key of one -inf, behind others": spoiled("K", (1, 3, 0), -np.inf, visible=Causal("top-left")),
    "a value": spoiled("V", (0, 5, 3), np.nan),
    "a value of one inf, in one text": spoiled("V", (1, 5, 3), np.inf, visible=texts()),
    "a token among its own": spoiled("Q", (0, 3, 1), np.inf, cross=False, visible=Causal()),
    "a token of padding": spoiled("Q", (0, 4), np.nan, cross=False, visible=Padding([4, 5])),
    "a blind query": spoiled("Q", (slice(None), 1), np.nan, visible=blind()),
    "a key and a value nobody sees": spoiled("KV", (slice(None), 4), -np.inf, visible=blind()),
}


def hidden_by_bias(dtype):
    case = spoiled("KV", (slice(None), 4), np.nan)(dtype)
    return case._replace(bias=np.where(blind(), 0.5, -np.inf).astype(dtype))


def orthogonal_key(dtype):
    """The inner product with a key of -inf is -inf: that is no mask."""
    return exact(dtype, [[1, 2], [1, 1]], [[-np.inf, -np.inf], [1, 0], [0, 1]], np.eye(3))


NOT_FINITE |= {"hidden by a bias": hidden_by_bias, "scores of -inf": orthogonal_key}

GARBAGE = {
    "a key": spoiled("K", (0, 6), "huge", visible=Padding([6, 7])),
    "a key of one huge number": spoiled("K", (slice(None), 4, 2), "huge", visible=blind()),
    "a value": spoiled("V", (slice(None), 4), "huge", visible=blind()),
    "both": spoiled("KV", (slice(None), 4), "huge", visible=blind()),
    "a blind query": spoiled("Q", (slice(None), 1), "huge", visible=blind()),
    "tokens of padding": spoiled("Q", (1, slice(3, None)), "huge", cross=False, visible=real([5, 3])),
    "all at once, no bias": spoiled("QKV", (0,), "huge", visible=Padding([0, 7]), bias=False),
}


def blamed(place, value, visible):
    """A loss whose derivative by some outputs is not finite."""

    def make(dtype):
        case = drawn(dtype, visible=visible)
        dY = case.dY
        dY[place] = value
        return case._replace(output_gradient=dY)

    return make


BLAMED = {
    "a query of one text": blamed((0, 1), np.nan, texts()),
    "one number of inf": blamed((1, 3, 2), np.inf, texts()),
    "the first of a causal sequence": blamed((0, 0), -np.inf, Causal("top-left")),
    "a blind query": blamed((slice(None), 1), np.nan, blind()),
}


def alibi(dtype):
    """M03: steps of a half beyond 2000, where 16 bits count in ones and twos. The last query of 300 tokens."""
    i = np.arange(300)
    return exact(
        dtype,
        [[0.0]],
        np.zeros((300, 1)),
        np.stack([i % 2, i % 3], 1),
        bias=(2000 + 0.5 * i)[None].astype(np.float32),
    )


SIXTEEN_BITS = {
    "near scores": lambda dtype: exact(
        dtype, np.full((1, 64), 8), np.stack([np.full(64, 8), np.r_[8.25, np.full(63, 8)]]), [[0, 1], [1, 5]]
    ),
    "scores of a hundred and more, a quarter apart": lambda dtype: exact(
        dtype, [[16, 0.5]], [[16, 0], [16, 0.5], [16, 1]], [[1, 2], [4, 8], [16, 32]], scale=1.0
    ),
    "scores beyond 65,504": lambda dtype: exact(
        dtype, [[512, 1], [512, 2]], [[512, 0], [512, 1], [512, -1]], [[1, 2], [4, 8], [16, 32]], scale=1.0
    ),
    "many small weights": lambda dtype: exact(
        dtype, np.zeros((1, 2)), np.zeros((4096, 2)), np.ones((4096, 2)) * [1, 3]
    ),
    "many tokens": lambda dtype: exact(dtype, 4 * np.ones((1039, 1)), [[1], [2]], [[1, 2], [3, 5]]),
    "a bias of 32 bits": alibi,
    "a bias of a row beyond 65,504": lambda dtype: exact(
        dtype, [[0.0]], [[1], [2]], [[1, 2], [4, 8]], bias=np.array([[1e5, 1e5 + 1]], np.float32)
    ),
    "a bias of -1e9": lambda dtype: exact(
        dtype, [[0.0]], [[1], [2], [3]], [[1, 2], [4, 8], [3, 1]], bias=np.array([[0, -1e9, 0.5]], np.float32)
    ),
}


SCALES = {
    f"{scale} {mask}": (lambda dtype, scale=scale, mask=mask: drawn(dtype, scale=scale, visible=mask))
    for scale in (0.0, -0.5, 1.0, 2.25, 1e-30)
    for mask in (None, Causal("top-left"))
} | {
    "zero, beside what is not finite": lambda dtype: spoiled("K", (0, 2), np.inf, visible=texts())(dtype)._replace(
        scale=0.0
    ),
    "negative, with padding of huge numbers": lambda dtype: spoiled("KV", (0, 6), "huge", visible=Padding([6, 7]))(
        dtype
    )._replace(scale=-0.75),
    "of huge scores, made small": lambda dtype: exact(
        dtype, [[4096, 1], [1, 4096]], [[4096, 0], [0, 4096]], [[1, 2], [4, 8]], scale=2.0**-23
    ),
}


TIED = [[10000, 0], [0, 10000], [0, 0]], [[1, 2], [4, 8], [16, 31]]


def beside(number):
    """Keys whose scores are all the same after a bias that drowns them."""

    def make(dtype):
        value = np.finfo(dtype).min if number == "min" else number
        bias = np.full((2, 3), value, np.promote_types(dtype, np.float32))
        return exact(dtype, [[1, 2], [3, 1]], np.zeros((3, 2)), TIED[1], bias=bias)

    return make


def one_hot(dtype):
    """Inputs times 20,000, or what 16 bits hold of that: one score of each row leads by far."""
    rng = np.random.default_rng(3)
    tokens = [
        rng.integers(-8, 9, size=(length, 8)) * (2048 if dtype == np.float16 else 20000) for length in (N, M, M)
    ]
    return exact(dtype, *tokens, scale=1.0)


LARGE = {
    "ties at 1e8": lambda dtype: exact(dtype, [[10000, 10000], [0, 10000]], *TIED, scale=1.0),
    "ties at -1e8": lambda dtype: exact(dtype, [[10000, 10000]], TIED[0][:2], TIED[1][:2], scale=-1.0),
    "ties at 4e6, and one less by one": lambda dtype: exact(
        dtype, [[2048, 2048, 1]], [[2048, 0, 0], [0, 2048, 0], [0, 2048, -1]], TIED[1], scale=1.0
    ),
    "ties of every size": lambda dtype: exact(
        dtype, [[2.0**e, 2.0**e] for e in range(14)], [[4096, 0], [0, 4096]], TIED[1][:2], scale=0.5
    ),
    "a row of -1e9": beside(-1e9),
    "a row of the smallest number": beside("min"),
    "a row of 1e7": beside(1e7),
    "one leads by far": one_hot,
}


KINDS = {
    "not finite": NOT_FINITE,
    "finite garbage": GARBAGE,
    "not finite gradient": BLAMED,
    "16 bits": SIXTEEN_BITS,
    "scale": SCALES,
    "large scores": LARGE,
}
