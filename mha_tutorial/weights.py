"""The matrices of a multi-head layer, one per head, in the column and in the row convention."""

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import ClassVar, TypeVar

import numpy as np
from jaxtyping import Float, Shaped
from numpy import ndarray as Array

from ._sizes import complete

Weights = TypeVar("Weights", bound="_Weights")


@dataclass(frozen=True, eq=False)
class _Weights:
    """What both conventions share. `out` and `in_` are the axes of a matrix's results and arguments."""

    out: ClassVar[int]
    in_: ClassVar[int]

    W_q: Array
    W_k: Array
    W_v: Array
    W_o: Array
    b_q: Array | None = None
    b_k: Array | None = None
    b_v: Array | None = None
    b_o: Array | None = None

    def __post_init__(self):
        _check(self)

    @property
    def h(self) -> int:
        """The number of heads, that is of query heads."""
        return self.W_q.shape[0]

    @property
    def h_kv(self) -> int:
        """The number of key-value heads, fewer than `h` when several query heads share one."""
        return self.W_k.shape[0]

    @property
    def group_size(self) -> int:
        """How many query heads share a key-value head; head ``i`` reads key-value head ``i // group_size``."""
        return self.h // self.h_kv

    @property
    def d_model(self) -> int:
        """The width of the output."""
        return self.W_o.shape[self.out]

    @property
    def d_k(self) -> int:
        """The width of one head's queries and keys."""
        return self.W_q.shape[self.out]

    @property
    def d_v(self) -> int:
        """The width of one head's values."""
        return self.W_v.shape[self.out]

    @property
    def widths(self) -> tuple[int, int, int]:
        """The widths of the tokens that ``W_q``, ``W_k`` and ``W_v`` read."""
        return self.W_q.shape[self.in_], self.W_k.shape[self.in_], self.W_v.shape[self.in_]

    @property
    def dtype(self) -> np.dtype:
        """The floating type of every matrix and bias."""
        return self.W_q.dtype

    @property
    def parameter_count(self) -> int:
        """How many numbers the layer learns, biases included."""
        return sum(array.size for array in self.arrays().values())

    def repeat_kv(self, shared: Shaped[Array, "*b h_kv i j"]) -> Shaped[Array, "*b h i j"]:
        """Give every head the keys or values that it reads, which some heads may share.

        Where none are shared, nothing is copied.

        Examples
        --------
        >>> weights = ColumnWeights.random(np.random.default_rng(0), d_model=6, h=6, h_kv=2)
        >>> weights.repeat_kv(np.array([3.0, 5.0])[:, None, None]).ravel()
        array([3., 3., 3., 5., 5., 5.])
        """
        return shared if self.group_size == 1 else np.repeat(shared, self.group_size, axis=-3)

    def arrays(self) -> dict[str, Array]:
        """The matrices and biases by name; a bias that is missing is left out."""
        named = {field.name: getattr(self, field.name) for field in fields(self)}
        return {name: array for name, array in named.items() if array is not None}

    def heads(self: Weights, selection: int | slice | Sequence[int] | Shaped[Array, " some"]) -> Weights:
        """Keep some heads: the layer whose output is the sum over those heads alone.

        The output bias belongs to no head and is kept. Where the kept heads no longer share their
        key-value heads evenly, each gets a copy of its own.

        Parameters
        ----------
        selection
            A slice of the heads, or a sequence of their numbers.

        Raises
        ------
        IndexError
            If a number is not that of a head, or no head is left.
        """
        chosen = selection if isinstance(selection, slice) else np.array(selection, ndmin=1)
        queries = np.arange(self.h)[chosen] if isinstance(chosen, slice) or chosen.size else np.arange(0)
        if not queries.size or queries.ndim > 1:
            raise IndexError(
                f"heads: keep at least one of the {self.h} heads with a slice or a list, got {selection!r}"
            )
        shared = queries // self.group_size
        distinct, counts = np.unique(shared, return_counts=True)
        evenly = np.array_equal(shared, np.repeat(distinct, counts[0]))
        keys = distinct if evenly else shared
        kept = {"q": queries, "k": keys, "v": keys, "o": queries}
        arrays = {name: array if name == "b_o" else array[kept[name[-1]]] for name, array in self.arrays().items()}
        return type(self)(**arrays)

    def _transposed_to(self, convention: type[Weights]) -> Weights:
        return convention(**{name: a.mT if name.startswith("W") else a for name, a in self.arrays().items()})


class ColumnWeights(_Weights):
    """The weights of a layer whose tokens are columns: ``queries = W_q X + b_q`` in every head.

    Parameters
    ----------
    W_q
        ``(h, d_k, d_model)``: the query projection of each head.
    W_k
        ``(h_kv, d_k, d_model)``: the key projections.
    W_v
        ``(h_kv, d_v, d_model)``: the value projections. The widths of the tokens that the three read
        may differ from each other and from the output's.
    W_o
        ``(h, d_model, d_v)``: the blocks of the output projection ``[W_1 ... W_h]``.
    b_q
        ``(h, d_k)``; each bias may be missing.
    b_k
        ``(h_kv, d_k)``
    b_v
        ``(h_kv, d_v)``
    b_o
        ``(d_model,)``

    Raises
    ------
    TypeError
        If something is not an array, not floating, or not of the same floating type as the rest.
    ValueError
        If the shapes do not fit each other, or `h_kv` does not divide `h`.

    Examples
    --------
    >>> weights = ColumnWeights.random(np.random.default_rng(0), d_model=12, h=4, h_kv=2, bias=False)
    >>> weights.W_q.shape, weights.W_k.shape, weights.W_o.shape, weights.parameter_count
    ((4, 3, 12), (2, 3, 12), (4, 12, 3), 432)
    >>> weights.T.W_q.shape
    (4, 12, 3)
    >>> weights.heads(slice(0, 2)).h_kv
    1
    """

    out, in_ = 1, 2

    W_q: Float[Array, "h d_k d_model"]
    W_k: Float[Array, "h_kv d_k d_model"]
    W_v: Float[Array, "h_kv d_v d_model"]
    W_o: Float[Array, "h d_model d_v"]

    @property
    def T(self) -> "RowWeights":
        """The same layer in the row convention, with every matrix transposed and every bias as it is.

        The weights that :eq:`eq-transposition` asks for.
        """
        return self._transposed_to(RowWeights)

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        d_model: int,
        h: int,
        h_kv: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
    ) -> "ColumnWeights":
        """Draw a layer of independent normal entries whose matrices keep the variance of what they map.

        An entry of ``W_q``, ``W_k`` and ``W_v`` has standard deviation ``1/sqrt(d_model)``, one of
        ``W_o`` has ``1/sqrt(h d_v)``: one over the root of the number of terms in each sum. Biases
        are drawn like the matrix beside them, since zeros would hide a forgotten bias. (Attention
        itself averages, and so makes variances smaller.)

        Parameters
        ----------
        rng
            Where the randomness comes from.
        h_kv
            The number of key-value heads, `h` if left out.
        d_k
            The width of a head's queries and keys, ``d_model / h`` if left out, which must then be a
            whole number.
        d_v
            The width of a head's values, likewise.

        Raises
        ------
        TypeError, ValueError
            If a size is not a whole number of at least 1, `h` does not divide `d_model` and a width was
            left out, or `h_kv` does not divide `h`.
        """
        d_model, h, h_kv, d_k, d_v = complete(d_model, h, h_kv, d_k, d_v)

        def draw(*shape, terms):
            return rng.normal(scale=terms**-0.5, size=shape)

        matrices = {
            "W_q": draw(h, d_k, d_model, terms=d_model),
            "W_k": draw(h_kv, d_k, d_model, terms=d_model),
            "W_v": draw(h_kv, d_v, d_model, terms=d_model),
            "W_o": draw(h, d_model, d_v, terms=h * d_v),
        }
        if not bias:
            return cls(**matrices)
        return cls(
            **matrices,
            b_q=draw(h, d_k, terms=d_model),
            b_k=draw(h_kv, d_k, terms=d_model),
            b_v=draw(h_kv, d_v, terms=d_model),
            b_o=draw(d_model, terms=h * d_v),
        )


class RowWeights(_Weights):
    """The weights of a layer whose tokens are rows: ``queries = X W_q + b_q`` in every head.

    Parameters
    ----------
    W_q
        ``(h, d_model, d_k)``: the query projection of each head.
    W_k
        ``(h_kv, d_model, d_k)``: the key projections.
    W_v
        ``(h_kv, d_model, d_v)``: the value projections. The widths of the tokens that the three read
        may differ from each other and from the output's.
    W_o
        ``(h, d_v, d_model)``: the blocks of the output projection, one below the other.
    b_q
        ``(h, d_k)``; each bias may be missing.
    b_k
        ``(h_kv, d_k)``
    b_v
        ``(h_kv, d_v)``
    b_o
        ``(d_model,)``

    Raises
    ------
    TypeError, ValueError
        As for `ColumnWeights`.

    Examples
    --------
    >>> weights = RowWeights.random(np.random.default_rng(0), d_model=12, h=4)
    >>> weights.W_q.shape, weights.W_o.shape
    ((4, 12, 3), (4, 3, 12))
    """

    out, in_ = 2, 1

    W_q: Float[Array, "h d_model d_k"]
    W_k: Float[Array, "h_kv d_model d_k"]
    W_v: Float[Array, "h_kv d_model d_v"]
    W_o: Float[Array, "h d_v d_model"]

    @property
    def T(self) -> ColumnWeights:
        """The same layer in the column convention, with every matrix transposed and every bias as it is.

        These are the matrices that PyTorch stores, as (out, in), and applies to rows by
        :eq:`eq-stored-transpose`.
        """
        return self._transposed_to(ColumnWeights)

    @classmethod
    def random(
        cls,
        rng: np.random.Generator,
        d_model: int,
        h: int,
        h_kv: int | None = None,
        d_k: int | None = None,
        d_v: int | None = None,
        bias: bool = True,
    ) -> "RowWeights":
        """Draw the layer that `ColumnWeights.random` draws from the same generator, transposed."""
        return ColumnWeights.random(rng, d_model, h, h_kv, d_k, d_v, bias).T


def _check(weights: _Weights) -> None:
    """Refuse weights that do not fit each other, and say which array, what was expected and what came."""
    kind = type(weights).__name__
    matrices = {name: getattr(weights, name) for name in ("W_q", "W_k", "W_v", "W_o")}
    for name, array in (matrices | weights.arrays()).items():
        if not isinstance(array, np.ndarray) or isinstance(array, np.matrix | np.ma.MaskedArray):
            raise TypeError(f"{kind}: {name} must be a plain NumPy array, got {type(array).__name__}")
        if not np.issubdtype(array.dtype, np.floating):
            raise TypeError(f"{kind}: {name} must hold floating-point numbers, got {array.dtype}")
        if array.dtype != weights.W_q.dtype:
            raise TypeError(f"{kind}: {name} is {array.dtype} but W_q is {weights.W_q.dtype}; convert one of them")
        if name.startswith("W") and (array.ndim != 3 or not array.size):
            raise ValueError(
                f"{kind}: {name} must have three axes, one matrix per head, and none of length 0, "
                f"got shape {array.shape}"
            )
    h, h_kv, d_k, d_v, d_model = weights.h, weights.h_kv, weights.d_k, weights.d_v, weights.d_model
    if h % h_kv:
        raise ValueError(f"{kind}: {h_kv} key-value heads must divide {h} query heads")
    sizes = {"h": h, "h_kv": h_kv, "d_k": d_k, "d_v": d_v, "d_model": d_model}
    sizes["d_key"], sizes["d_value"] = weights.widths[1:]
    for name, axes in _AXES.items():
        array = getattr(weights, name)
        if array is None:
            continue
        if name.startswith("W") and isinstance(weights, RowWeights):
            axes = [axes[0], axes[2], axes[1]]
        shape = tuple(sizes[axis] for axis in axes)
        if array.shape != shape:
            raise ValueError(
                f"{kind}: {name} must be ({', '.join(axes)}) = {shape} beside W_q {weights.W_q.shape} "
                f"and W_v {weights.W_v.shape}, got {array.shape}"
            )


_AXES = {  # of the column convention
    "W_k": ["h_kv", "d_k", "d_key"],
    "W_v": ["h_kv", "d_v", "d_value"],
    "W_o": ["h", "d_model", "d_v"],
    "b_q": ["h", "d_k"],
    "b_k": ["h_kv", "d_k"],
    "b_v": ["h_kv", "d_v"],
    "b_o": ["d_model"],
}
