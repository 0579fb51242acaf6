"""What a layer costs: parameters, multiply-adds and bytes, read off the shapes of its weights."""

from typing import NamedTuple, SupportsIndex

import numpy as np
from numpy import ndarray as Array
from numpy.typing import DTypeLike

from .._checks import convention_of
from .._sizes import complete, count, slices
from ..masks import Mask
from ..weights import ColumnWeights, RowWeights
from ._runs import runs

SIDE = 512  # of the tiles that are made to count a mask of one's own


class Costs(NamedTuple):
    """One number for each part of the layer, in the order of the computation."""

    queries: int
    keys: int
    values: int
    scores: int
    averages: int
    output: int

    @property
    def total(self) -> int:
        """All parts together."""
        return sum(self)


class Traffic(NamedTuple):
    """How many bytes go from and to main memory."""

    read: int
    written: int

    @property
    def total(self) -> int:
        """Both together."""
        return self.read + self.written


def shape_only_weights(
    d_model: SupportsIndex,
    h: SupportsIndex,
    h_kv: SupportsIndex | None = None,
    d_k: SupportsIndex | None = None,
    d_v: SupportsIndex | None = None,
    bias: bool = True,
    dtype: DTypeLike = np.float32,
) -> ColumnWeights:
    """Weights of a given size that take no memory, to count with: every entry is the same zero.

    Raises
    ------
    TypeError, ValueError
        What `ColumnWeights.random` raises.

    Examples
    --------
    >>> shape_only_weights(d_model=12288, h=96).parameter_count
    604028928
    """
    d_model, h, h_kv, d_k, d_v = complete(d_model, h, h_kv, d_k, d_v)
    shapes: dict[str, tuple[int, ...]] = {
        "W_q": (h, d_k, d_model),
        "W_k": (h_kv, d_k, d_model),
        "W_v": (h_kv, d_v, d_model),
        "W_o": (h, d_model, d_v),
    }
    if bias:
        shapes |= {"b_q": (h, d_k), "b_k": (h_kv, d_k), "b_v": (h_kv, d_v), "b_o": (d_model,)}
    return ColumnWeights(**{name: np.broadcast_to(np.zeros((), dtype), shape) for name, shape in shapes.items()})


def parameters(weights: ColumnWeights | RowWeights) -> int:
    """How many numbers the layer learns, from its sizes.

    Computes :eq:`eq-parameters`: for the usual widths ``d_k = d_v = d_model / h`` without biases
    ``4 d_model**2``, whatever the number of heads.

    Examples
    --------
    >>> [parameters(shape_only_weights(512, h, bias=False)) for h in (1, 8, 64)]
    [1048576, 1048576, 1048576]
    """
    convention_of(weights)
    h, h_kv, d_k, d_v, d_model = weights.h, weights.h_kv, weights.d_k, weights.d_v, weights.d_model
    d_query, d_key, d_value = weights.widths
    matrices = h * d_k * d_query + h_kv * d_k * d_key + h_kv * d_v * d_value + h * d_v * d_model
    sizes = {"b_q": h * d_k, "b_k": h_kv * d_k, "b_v": h_kv * d_v, "b_o": d_model}
    return matrices + sum(size for name, size in sizes.items() if getattr(weights, name) is not None)


def decoder_parameters(
    weights: ColumnWeights | RowWeights,
    d_hidden: SupportsIndex,
    layers: SupportsIndex,
    vocabulary: SupportsIndex,
    tied: bool = True,
) -> dict[str, int]:
    """How many numbers a language model such as Llama learns, part by part.

    A block holds the attention layer, the three matrices of `mha_tutorial.block.swiglu` and two gains; behind the
    last one stands a third. The embedding has a row for each entry of the vocabulary, and so has the matrix that
    turns tokens into scores for the next one, unless it is the same.

    Parameters
    ----------
    weights
        Of one layer of attention.
    d_hidden
        The width of the feed-forward part.
    layers
        The number of blocks.
    vocabulary
        How many different tokens there are.
    tied
        Whether embedding and output are one matrix.

    Raises
    ------
    TypeError, ValueError
        If a size is not a whole number, or below 1.

    Examples
    --------
    >>> smollm2 = shape_only_weights(576, h=9, h_kv=3, d_k=64, d_v=64, bias=False)
    >>> parts = decoder_parameters(smollm2, d_hidden=1536, layers=30, vocabulary=49152)
    >>> sum(parts.values())
    134515008
    """
    d_model, layers = weights.d_model, count("layers", layers)
    embedding = count("vocabulary", vocabulary) * d_model
    return {
        "embedding": embedding,
        "attention": layers * parameters(weights),
        "feed-forward": layers * 3 * d_model * count("d_hidden", d_hidden),
        "norms": (2 * layers + 1) * d_model,
        "output": 0 if tied else embedding,
    }


def multiply_adds(
    weights: ColumnWeights | RowWeights,
    n: SupportsIndex,
    m: SupportsIndex | None = None,
    visible: Array | Mask | None = None,
) -> Costs:
    """How many multiplications, each with an addition, the matrix products of one forward pass take.

    Computes :eq:`eq-multiply-adds`, part by part, for one sequence. With a mask, scores and averages are
    those of the pairs that it leaves: the least that has to be computed, which kernels that skip hidden
    tiles come near. Biases are left out, one addition for each number of a projection; so are scale and
    softmax: a few operations for each of the ``h n m`` scores, where the products take ``d_k + d_v``.

    Parameters
    ----------
    n
        The number of queries.
    m
        The number of keys, `n` if left out.
    visible
        Which keys each query may see: a structured mask, or a boolean array in the convention of the
        weights that broadcasts to the scores of one sequence. All pairs if left out.

    Raises
    ------
    TypeError, ValueError
        If a length is not a whole number, or negative; if the mask does not fit.

    Examples
    --------
    >>> multiply_adds(shape_only_weights(512, 8), n=1024).total == 4 * 1024 * 512**2 + 2 * 1024**2 * 512
    True
    >>> from mha_tutorial import Causal
    >>> [multiply_adds(shape_only_weights(512, 8), 1024, visible=visible).scores for visible in (None, Causal())]
    [536870912, 268697600]
    """
    convention = convention_of(weights)
    n = count("n", n, least=0)
    m = n if m is None else count("m", m, least=0)
    h, h_kv, d_k, d_v = weights.h, weights.h_kv, weights.d_k, weights.d_v
    d_query, d_key, d_value = weights.widths
    if isinstance(visible, Mask):
        pairs = h * visible_pairs(visible, n, m)
    else:
        shape = (h, *convention.axes(m, n))
        seen = convention.visible(visible, shape)
        pairs = h * n * m if seen is None else _entries(seen, shape)
    return Costs(
        queries=n * h * d_k * d_query,
        keys=m * h_kv * d_k * d_key,
        values=m * h_kv * d_v * d_value,
        scores=pairs * d_k,
        averages=pairs * d_v,
        output=n * h * d_v * weights.d_model,
    )


def visible_pairs(mask: Mask, n: SupportsIndex, m: SupportsIndex | None = None, batch: tuple[int, ...] = ()) -> int:
    """How many pairs of a query and a key a structured mask leaves visible.

    A query sees one unbroken run of keys under each of the masks of this package, so that runs are
    counted and no array of `n` by `m` is made, however the masks are combined with ``&``, ``|`` and
    ``~``. Of a mask of your own, and of combinations of very many masks, tiles are made and counted.

    Parameters
    ----------
    n
        The number of queries.
    m
        The number of keys, `n` if left out.
    batch
        The batch axes, if the mask depends on them; the pairs of all entries are counted together.

    Raises
    ------
    TypeError, ValueError
        If it is no structured mask; if a length is not a whole number, or negative; what making the
        mask's array raises.

    Examples
    --------
    >>> from mha_tutorial import Causal, Padding, Window
    >>> visible_pairs(Causal(), 10**6)
    500000500000
    >>> visible_pairs(Window(4096) & Causal(), 10**6)
    4087613440
    >>> visible_pairs(Causal() & Padding([3, 1]), n=3, batch=(2,))
    9
    """
    if not isinstance(mask, Mask):
        raise TypeError(f"mask must be a structured mask such as Causal(), got {type(mask).__name__}")
    n = count("n", n, least=0)
    m = n if m is None else count("m", m, least=0)
    known = runs(mask, n, m, batch)
    if known is not None:
        return sum(run.sign * _entries(run.length, (*batch, n)) for run in known)
    return sum(
        _entries(
            mask.tile(rows, columns, n, m, batch), (*batch, rows.stop - rows.start, columns.stop - columns.start)
        )
        for rows in slices(n, SIDE)
        for columns in slices(m, SIDE)
    )


def _entries(part: Array, shape: tuple[int, ...]) -> int:
    """The sum of the entries of an array that is broadcast to a shape."""
    return int(np.broadcast_to(part, shape).sum(dtype=np.int64))


def crossover(weights: ColumnWeights | RowWeights) -> float:
    """The sequence length at which scores and averages cost as much as all projections together.

    Computes :eq:`eq-crossover` for self-attention; twice `d_model` for the usual widths.

    Examples
    --------
    >>> crossover(shape_only_weights(512, 8))
    1024.0
    """
    one_token = multiply_adds(weights, n=1)
    quadratic = one_token.scores + one_token.averages
    return (one_token.total - quadratic) / quadratic


def activation_bytes(
    weights: ColumnWeights | RowWeights, n: SupportsIndex, m: SupportsIndex | None = None
) -> Costs:
    """How many bytes each step of a straightforward forward pass takes, for one sequence.

    Computes :eq:`eq-activations`. `scores` counts the scores and `averages` the attention weights and
    the heads together. The matrices ``n`` by ``m`` are the ones that grow with the square of the
    length; they are what fast kernels never write down.

    Examples
    --------
    >>> steps = activation_bytes(shape_only_weights(512, 8), n=8192)
    >>> steps.scores / 2**30
    2.0
    """
    convention_of(weights)
    n = count("n", n, least=0)
    m = n if m is None else count("m", m, least=0)
    h, h_kv, d_k, d_v = weights.h, weights.h_kv, weights.d_k, weights.d_v
    numbers = Costs(
        queries=h * n * d_k,
        keys=h_kv * m * d_k,
        values=h_kv * m * d_v,
        scores=h * n * m,
        averages=h * n * m + h * n * d_v,
        output=n * weights.d_model,
    )
    return Costs(*(weights.dtype.itemsize * number for number in numbers))


def cache_bytes(weights: ColumnWeights | RowWeights, m: int, dtype: DTypeLike | None = None) -> int:
    """How many bytes the keys and values of `m` tokens take, which one layer keeps while a text is written.

    Computes :eq:`eq-cache-bytes` for one text and one layer.

    Parameters
    ----------
    m
        The number of tokens kept: all of the text, or those of a window.
    dtype
        The type in which they are kept, that of the weights if left out.

    Raises
    ------
    TypeError, ValueError
        If the length is not a whole number, or negative.

    Examples
    --------
    >>> llama_3_8b = shape_only_weights(4096, h=32, h_kv=8, bias=False)
    >>> 32 * cache_bytes(llama_3_8b, m=8192, dtype=np.float16) / 2**30
    1.0
    """
    convention_of(weights)
    itemsize = np.dtype(weights.dtype if dtype is None else dtype).itemsize
    return count("m", m, least=0) * weights.h_kv * (weights.d_k + weights.d_v) * itemsize


def naive_traffic(weights: ColumnWeights | RowWeights, n: SupportsIndex, m: SupportsIndex | None = None) -> Traffic:
    """How many bytes scores, softmax and averages move if each writes its result for the next to read.

    Computes the first line of :eq:`eq-traffic`, of all heads for one sequence: the scores are written and read,
    and so are the weights. Every array is counted once where it is read and once where it is written, which is the
    least there can be: a softmax in three passes reads the scores three times.

    Parameters
    ----------
    n
        The number of queries.
    m
        The number of keys, `n` if left out.

    Raises
    ------
    TypeError, ValueError
        If a length is not a whole number, or negative.

    References
    ----------
    Dao and others, *FlashAttention*, algorithm 0.

    Examples
    --------
    >>> naive_traffic(shape_only_weights(64, h=1, dtype=np.float16), n=16384).total / 2**30
    2.0078125
    """
    convention_of(weights)
    n = count("n", n, least=0)
    m = n if m is None else count("m", m, least=0)
    d_k, d_v = weights.d_k, weights.d_v
    of_one_number = weights.h * weights.dtype.itemsize
    return Traffic(
        read=of_one_number * ((n + m) * d_k + n * m + n * m + m * d_v),
        written=of_one_number * (n * m + n * m + n * d_v),
    )


def tiled_traffic(
    weights: ColumnWeights | RowWeights, n: SupportsIndex, m: SupportsIndex | None = None, block: int = 128
) -> Traffic:
    """How many bytes attention moves if its scores never leave the fast memory that a tile fits into.

    Computes the second line of :eq:`eq-traffic`, of all heads for one sequence and without a mask: a block of
    queries is read once and its averages are written once, and all keys and values are read once for each block
    of queries. The log-sums, one number for each query, are written too.

    Parameters
    ----------
    n, m
        As for `naive_traffic`.
    block
        How many queries meet the keys together.

    Raises
    ------
    TypeError, ValueError
        If a length is not a whole number, or negative; if `block` is below 1.

    References
    ----------
    Dao, *FlashAttention-2*, algorithm 1.

    Examples
    --------
    >>> weights = shape_only_weights(64, h=1, dtype=np.float16)
    >>> round(naive_traffic(weights, n=16384).total / tiled_traffic(weights, n=16384, block=256).total, 1)
    7.9
    """
    convention_of(weights)
    n, block = count("n", n, least=0), count("block", block)
    m = n if m is None else count("m", m, least=0)
    d_k, d_v = weights.d_k, weights.d_v
    of_one_number = weights.h * weights.dtype.itemsize
    return Traffic(
        read=of_one_number * (n * d_k + -(-n // block) * m * (d_k + d_v)),
        written=of_one_number * (n * d_v + n),
    )


def attainable(intensity: float, peak: float, bandwidth: float) -> float:
    """How much arithmetic per second a machine can do at most for a program that needs data for it.

    Computes :eq:`eq-roofline`.

    Parameters
    ----------
    intensity
        The FLOPs that the program does for each byte that it moves.
    peak
        The most FLOPs per second of the machine.
    bandwidth
        The most bytes per second that its memory moves.

    References
    ----------
    Williams, Waterman and Patterson, *Roofline*.

    Examples
    --------
    >>> attainable(2.0, peak=100.0, bandwidth=10.0), attainable(20.0, peak=100.0, bandwidth=10.0)
    (20.0, 100.0)
    """
    return min(peak, intensity * bandwidth)
