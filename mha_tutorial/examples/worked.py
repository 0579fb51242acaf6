"""The worked examples of the book: small numbers, each chosen so that one can follow on paper."""

import math
from fractions import Fraction
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from ..trace import Trace
from ..weights import RowWeights


def toy() -> tuple[Array, RowWeights]:
    """One token whose two heads come back as [1, 2] and [3, 4], and whose output is [3.5, 6].

    The token is its own only key, so every weight is one and a head is the token's value: the first
    two of its four numbers in head 1, the last two in head 2. What `W_q` and `W_k` hold is without
    influence.

    References
    ----------
    The heads and the output projection are those of a study page on *Attention Is All You Need*.

    Examples
    --------
    >>> from mha_tutorial.reference import row
    >>> x, weights = toy()
    >>> trace = row.multi_head(x, x, x, weights)
    >>> trace.heads.tolist(), trace.output.tolist()
    ([[[1.0, 2.0]], [[3.0, 4.0]]], [[3.5, 6.0]])
    """
    x = np.array([[1.0, 2.0, 3.0, 4.0]])
    select = np.eye(4).reshape(2, 2, 4).mT
    W_o = np.array([[[0.5, 1.0], [0.0, 0.5]], [[1.0, 0.0], [0.0, 1.0]]])
    return x, RowWeights(W_q=select, W_k=select, W_v=select, W_o=W_o)


class Words(NamedTuple):
    """Tokens and their vectors, one a row."""

    tokens: list[str]
    vectors: Array


def hello_world() -> tuple[list[str], Array, Array, Array]:
    """The tokens Hello, world, ! with queries, keys and values, as rows of width four.

    The inner products are 11 16 19, 14 17 20 and 15 18 21, made-up numbers that a well-known blog post uses
    without saying what queries and keys give them. These do.

    Examples
    --------
    >>> tokens, Q, K, V = hello_world()
    >>> (Q @ K.T).astype(int).tolist()
    [[11, 16, 19], [14, 17, 20], [15, 18, 21]]
    """
    Q = np.array([[12.0, 1.0, 1.0, 0.0], [14.0, 1.0, 0.0, 0.0], [15.0, 1.0, 0.0, 0.0]])
    K = np.array([[1.0, 0.0, -1.0, 3.0], [1.0, 3.0, 1.0, -2.0], [1.0, 6.0, 1.0, 1.0]])
    V = np.array([[4.0, 0.0, 1.0, 0.0], [0.0, 4.0, 0.0, 1.0], [2.0, 2.0, 0.0, 0.0]])
    return ["Hello", "world", "!"], Q, K, V


def bank() -> tuple[Words, Words]:
    """Two sentences with the same word and invented vectors; *bank* has one vector in both.

    The four numbers of a token say how much it has to do with money, with landscape and with people, and how much
    it is a mere function word.

    Examples
    --------
    >>> first, second = bank()
    >>> first.tokens[-1], second.tokens[-1]
    ('bank', 'bank')
    >>> np.array_equal(first.vectors[-1], second.vectors[-1])
    True
    """
    meaning = {
        "She": (0, 0, 2, 0),
        "They": (0, 0, 2, 0),
        "deposited": (2, 0, 1, 0),
        "money": (3, 0, 0, 0),
        "sat": (0, 0, 1, 0),
        "grassy": (0, 1, 0, 0),
        "river": (0, 3, 0, 0),
        "bank": (2, 2, 0, 0),
    }

    def words(sentence):
        tokens = sentence.split()
        vectors = [meaning.get(token, (0, 0, 0, 1)) for token in tokens]  # the, at, down, on
        return Words(tokens, np.array(vectors, dtype=float))

    return words("She deposited the money at the bank"), words("They sat down on the grassy river bank")


def bank_layer(words: Words) -> tuple[Array, RowWeights]:
    """Tokens that also hold their position, and a layer whose two heads look for different things.

    To the four numbers of each token are added the cosine and the sine of an angle, larger by 22.5 degrees from
    token to token. Head 1 compares money and landscape, and so finds words of the same topic. Head 2 turns the
    angle of the query back by one token, and so finds the token before. Both write money, landscape and people of
    what they found.

    Examples
    --------
    >>> from mha_tutorial.reference import row
    >>> X, weights = bank_layer(bank()[0])
    >>> X.shape, weights.h
    ((7, 6), 2)
    >>> row.multi_head(X, X, X, weights).attention[1, 1:].argmax(axis=1).tolist()
    [0, 1, 2, 3, 4, 5]
    """
    step = math.pi / 8
    angles = step * np.arange(len(words.tokens))
    X = np.column_stack([words.vectors, np.cos(angles), np.sin(angles)])
    topic, place = np.eye(6, 2), np.eye(6, 2, k=-4)
    back = np.array([[math.cos(step), -math.sin(step)], [math.sin(step), math.cos(step)]])
    read = np.stack([np.eye(6, 3)] * 2)
    W_q = np.stack([topic / math.sqrt(2), 6 * place @ back])
    W_k = np.stack([topic, 6 * place])
    return X, RowWeights(W_q=W_q, W_k=W_k, W_v=read, W_o=read.mT / 2)


class ExactLayer(NamedTuple):
    """A whole layer and its input in fractions, in the row convention; sizes are all different.

    Queries meet keys in a base-two softmax: a score `a` has the weight ``2**a`` over the sum of those
    of all keys. This is the ordinary softmax of ``a log(2)``, so the layer is an ordinary one whose
    ``W_q`` and ``b_q`` hold ``log(2)`` times the numbers given here.
    """

    X: Array
    memory: Array
    W_q: Array
    W_k: Array
    W_v: Array
    W_o: Array
    b_q: Array
    b_k: Array
    b_v: Array
    b_o: Array

    def trace(self) -> Trace:
        """Every step in exact arithmetic. Queries and scores are in units of ``log(2)``.

        The weights are powers of two over their sum, :eq:`eq-powers-of-two`.
        """
        queries = self.X @ self.W_q + self.b_q[:, None, :]
        keys = self.memory @ self.W_k + self.b_k[:, None, :]
        values = self.memory @ self.W_v + self.b_v[:, None, :]
        scores = queries @ keys.mT / math.isqrt(self.W_q.shape[-1])
        powers = np.vectorize(lambda a: Fraction(2) ** a, otypes=[object])(scores)
        attention = powers / powers.sum(axis=-1, keepdims=True)
        heads = attention @ values
        output = (heads @ self.W_o).sum(axis=0) + self.b_o
        return Trace(queries, keys, values, scores, attention, heads, output)

    def floats(self) -> tuple[Array, Array, RowWeights]:
        """The same input, memory and layer in floating point, ``log(2)`` put where it belongs."""
        arrays = {name: array.astype(float) for name, array in self._asdict().items()}
        X, memory = arrays.pop("X"), arrays.pop("memory")
        arrays |= {name: math.log(2) * arrays[name] for name in ("W_q", "b_q")}
        return X, memory, RowWeights(**arrays)


def exact() -> ExactLayer:
    """The exact example: n = 3 queries, m = 6 keys, width 7, 2 heads, d_k = 4 (whose root is 2), d_v = 5.

    The sizes differ from each other and from the widths of all heads together, 8 and 10, so that no
    forgotten transpose fits. Keys are even numbers, so that half their product with a query is whole.

    Examples
    --------
    >>> trace = exact().trace()
    >>> [str(weight) for weight in trace.attention[0, 0]]
    ['1/4', '1/4', '1/16', '1/8', '1/16', '1/4']
    >>> str(trace.output[0, 0])
    '-295/112'
    """
    return ExactLayer(
        X=_fractions("0 1 0 1 0 1 1 / 1 0 0 0 1 1 1 / 1 1 1 0 0 1 0"),
        memory=_fractions(
            "0 0 1 1 1 0 1 / 0 0 1 1 1 1 1 / 0 1 0 1 0 1 0 / 0 1 1 1 0 0 1 / 0 1 0 1 1 0 0 / 1 0 1 1 1 1 1"
        ),
        W_q=_fractions(
            "0 0 0 -1 / 0 0 1 0 / 0 0 1 1 / 0 0 0 0 / 0 1 1 1 / -1 0 0 -1 / 0 0 0 0",
            "0 1 0 0 / 0 0 1 0 / 1 0 0 0 / 1 -1 0 0 / 0 0 0 -1 / 0 0 0 1 / 0 -1 0 -1",
        ),
        W_k=_fractions(
            "0 0 0 0 / -2 0 -2 0 / 0 0 0 -2 / 0 0 2 -2 / -2 2 0 2 / 0 0 0 0 / 0 -2 0 0",
            "0 0 0 -2 / 0 2 2 -2 / 2 0 -2 0 / 0 0 0 -2 / 2 0 0 2 / 0 0 0 0 / -2 0 -2 0",
        ),
        W_v=_fractions(
            "1 0 1 0 1 / 0 1 1 2 0 / -1 0 0 0 -1 / 0 1 0 0 -1 / 0 -1 0 0 2 / 1 2 0 0 1 / 0 0 0 2 0",
            "0 0 1 2 2 / 0 0 -1 0 0 / 0 0 -1 0 0 / 0 -1 0 0 0 / 0 0 1 1 0 / -1 -1 -1 -1 -1 / 0 0 -1 -1 2",
        ),
        W_o=_fractions(
            "-1 1 0 0 -1 1 0 / -1 0 -1 1 0 -1 1 / 0 1 0 0 0 -1 0 / 0 0 1 0 0 0 0 / -1 0 1 -1 1 0 0",
            "-1 0 1 1 0 0 1 / 1 1 -1 0 0 0 1 / 1 0 0 -1 1 1 0 / 0 0 0 0 1 0 0 / 1 -1 0 -1 1 1 0",
        ),
        b_q=_fractions("0 0 1 0 / 0 0 -1 0"),
        b_k=_fractions("0 0 -2 0 / -2 0 2 0"),
        b_v=_fractions("0 -1 -1 -1 -1 / 1 -1 0 1 -1"),
        b_o=_fractions("1 0 1 1 1 -1 1")[0],
    )


def _fractions(*matrices: str) -> Array:
    """Read matrices of fractions, rows set apart by slashes; several make a stack."""
    stack = [[[Fraction(entry) for entry in row.split()] for row in matrix.split("/")] for matrix in matrices]
    return np.array(stack if len(stack) > 1 else stack[0], dtype=object)
