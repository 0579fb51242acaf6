"""What a query may see: structured masks, and converters from other libraries' conventions.

A mask in this package is called ``visible`` and ``True`` means *may be attended*. It is either a
boolean array that broadcasts to the scores, or one of the structured masks below, which knows its
rule and makes the array on demand in either orientation.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, no_type_check

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray as Array

Align = Literal["top-left", "bottom-right"]
Side = Literal["right", "left"]
Lengths = int | np.integer | Sequence[int] | Sequence[Sequence[int]] | Array


class Mask:
    """A rule that says which keys each query may see; combine rules with ``&``, ``|`` and ``~``.

    Examples
    --------
    >>> visible = Causal() & Padding([3, 2])
    >>> visible.rows(3, 3, batch=(2,)).astype(int)
    array([[[1, 0, 0],
            [1, 1, 0],
            [1, 1, 1]],
    <BLANKLINE>
           [[1, 0, 0],
            [1, 1, 0],
            [1, 1, 0]]])
    """

    __array_ufunc__ = None  # so that `array & mask` reaches __rand__, which explains

    def rows(self, n: int, m: int, batch: tuple[int, ...] = ()) -> Bool[Array, "*b n m"]:
        """Make the boolean array for row-convention scores: queries down, keys across.

        Parameters
        ----------
        n
            The number of queries.
        m
            The number of keys.
        batch
            The batch axes of the scores, without the heads. Axes on which the rule does not depend
            may come back with length one or be missing, ready to broadcast.
        """
        raise NotImplementedError

    def columns(self, n: int, m: int, batch: tuple[int, ...] = ()) -> Bool[Array, "*b m n"]:
        """Make the boolean array for column-convention scores: keys down, queries across."""
        return self.rows(n, m, batch).mT

    def tile(
        self, queries: slice, keys: slice, n: int, m: int, batch: tuple[int, ...] = ()
    ) -> Bool[Array, "*b #p #q"]:
        """Make the part of `rows` where some queries meet some keys, for code that works tile by tile.

        Where the rule says one thing about the whole tile, an axis may come back with length one. The
        masks of this module make a tile without the rest; of any other, `rows` is made and cut.

        Examples
        --------
        >>> Causal().tile(slice(1, 3), slice(1, 4), n=4, m=4).astype(int)
        array([[1, 0, 0],
               [1, 1, 0]])
        >>> Causal().tile(slice(2, 4), slice(0, 2), n=4, m=4)  # all of it lies in the past
        array([[ True]])
        """
        rows = self.rows(n, m, batch)
        (p, q), everything = rows.shape[-2:], slice(None)
        return rows[..., queries if p > 1 else everything, keys if q > 1 else everything]

    def __and__(self, other: "Mask") -> "Mask":
        return And(self, other)

    def __or__(self, other: "Mask") -> "Mask":
        return Or(self, other)

    __rand__ = __and__
    __ror__ = __or__

    def __invert__(self) -> "Mask":
        return Not(self)

    def __bool__(self) -> bool:
        raise TypeError("a structured mask has no truth value; combine masks with & | ~, not with and, or, not")


@dataclass(frozen=True)
class Causal(Mask):
    """A query sees the keys up to its own position, and none after it.

    Parameters
    ----------
    align
        Where position zero lies when there are not as many queries as keys. ``"top-left"``: the
        first query stands beside the first key, as with ``is_causal`` in PyTorch's
        ``scaled_dot_product_attention``.
        ``"bottom-right"``: the last query stands beside the last key (decoding with a cache). May
        be left out when the numbers are equal, where both mean the same.

    Raises
    ------
    ValueError
        When the array is made, if there are not as many queries as keys and ``align`` was not given.

    Examples
    --------
    >>> Causal("top-left").rows(2, 4).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0]])
    >>> Causal("bottom-right").rows(2, 4).astype(int)
    array([[1, 1, 1, 0],
           [1, 1, 1, 1]])
    """

    align: Align | None = None

    def __post_init__(self):
        _check_align(self)

    def rows(self, n: int, m: int, batch: tuple[int, ...] = ()) -> Bool[Array, "n m"]:
        return _distance(self, n, m) >= 0

    def tile(
        self, queries: slice, keys: slice, n: int, m: int, batch: tuple[int, ...] = ()
    ) -> Bool[Array, "#p #q"]:
        return _band(0, n + m, self, queries, keys, n, m)


@dataclass(frozen=True)
class Window(Mask):
    """A query sees the keys fewer than ``size`` positions away from its own.

    ``Window(size) & Causal()`` is the sliding window of language models: the query's own position
    and the ``size - 1`` before it, ``size`` keys in all.

    Parameters
    ----------
    size
        How many keys a query sees on each side, its own counted: ``Window(1)`` is the diagonal.
    align
        As for `Causal`.

    Examples
    --------
    >>> (Window(2) & Causal()).rows(4, 4).astype(int)
    array([[1, 0, 0, 0],
           [1, 1, 0, 0],
           [0, 1, 1, 0],
           [0, 0, 1, 1]])
    """

    size: int
    align: Align | None = None

    def __post_init__(self):
        if not isinstance(self.size, int | np.integer) or isinstance(self.size, bool) or self.size < 1:
            raise ValueError(f"Window: size must be a positive integer, got {self.size!r}")
        _check_align(self)

    def rows(self, n: int, m: int, batch: tuple[int, ...] = ()) -> Bool[Array, "n m"]:
        return np.abs(_distance(self, n, m)) < self.size

    def tile(
        self, queries: slice, keys: slice, n: int, m: int, batch: tuple[int, ...] = ()
    ) -> Bool[Array, "#p #q"]:
        return _band(1 - self.size, self.size - 1, self, queries, keys, n, m)


class _Lengths(Mask):
    """What rules share that keep a number for a single sequence or for every entry of the batch."""

    lengths: Int[Array, "*b"]

    def __init__(self, lengths: Lengths):
        object.__setattr__(self, "lengths", _whole(self, lengths))

    def check(self, m: int, batch: tuple[int, ...]) -> None:
        """Refuse lengths that do not fit the batch, or exceed the number of keys."""
        _check_batch(self, self.lengths.shape, batch)
        if (self.lengths > m).any():
            raise ValueError(
                f"{type(self).__name__}: lengths must not exceed the {m} keys, got {self.lengths.tolist()}"
            )

    def rows(self, n: int, m: int, batch: tuple[int, ...] = ()) -> Bool[Array, "*b 1 m"]:
        return self._sees(np.arange(m), m, batch)

    def tile(
        self, queries: slice, keys: slice, n: int, m: int, batch: tuple[int, ...] = ()
    ) -> Bool[Array, "*b 1 q"]:
        return self._sees(np.arange(*keys.indices(m)), m, batch)

    def _sees(self, keys: Int[Array, " q"], m: int, batch: tuple[int, ...]) -> Bool[Array, "*b 1 q"]:
        self.check(m, batch)
        return keys < self.lengths[..., None, None]


@dataclass(frozen=True, eq=False, init=False)
class Padding(_Lengths):
    """A query sees the real keys of its own sequence, and none of the padding behind or before them.

    Only keys are hidden: a query in the padding still gets a result, which nobody should read. With
    padding on the left and a causal mask it sees no key at all.

    Parameters
    ----------
    lengths
        How many keys of each sequence are real: one integer for a single sequence, or an integer
        for every entry of the batch.
    side
        Where the padding stands. ``"right"``: the real keys are the first ones. ``"left"``: they are
        the last ones, as where a batch of prompts is continued.

    Raises
    ------
    TypeError, ValueError
        If the lengths are not integers, are negative, exceed the number of keys, or do not fit the
        batch; if the side is neither.

    Examples
    --------
    >>> Padding([3, 1]).rows(2, 3, batch=(2,)).astype(int)
    array([[[1, 1, 1]],
    <BLANKLINE>
           [[1, 0, 0]]])
    >>> Padding(2, side="left").rows(3, 3).astype(int)
    array([[0, 1, 1]])
    >>> (Padding(2, side="left") & Causal()).rows(3, 3).astype(int)
    array([[0, 0, 0],
           [0, 1, 0],
           [0, 1, 1]])
    """

    lengths: Int[Array, "*b"]
    side: Side = "right"

    def __init__(self, lengths: Lengths, side: Side = "right"):
        super().__init__(lengths)
        object.__setattr__(self, "side", side)
        if self.side not in ("right", "left"):
            raise ValueError(f"Padding: side must be 'right' or 'left', got {self.side!r}")

    def _sees(self, keys: Int[Array, " q"], m: int, batch: tuple[int, ...]) -> Bool[Array, "*b 1 q"]:
        from_the_side = keys if self.side == "right" else m - 1 - keys
        return super()._sees(from_the_side, m, batch)


@dataclass(frozen=True, eq=False, init=False)
class Prefix(_Lengths):
    """Every query sees the first keys: a prompt, or an input that is read as a whole.

    ``Causal() | Prefix(k)`` is the mask of a prefix language model: the first `k` tokens see each
    other in both directions, those after them what came before.

    Parameters
    ----------
    lengths
        How many keys the prefix has: one integer for all sequences, or an integer for every entry of
        the batch.

    Raises
    ------
    TypeError, ValueError
        As for `Padding`.

    Examples
    --------
    >>> (Causal() | Prefix(2)).rows(4, 4).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [1, 1, 1, 0],
           [1, 1, 1, 1]])
    """

    lengths: Int[Array, "*b"]


@dataclass(frozen=True, eq=False, init=False)
class Documents(Mask):
    """A query sees the keys of its own document, where several texts are packed into one row of tokens.

    What is left over behind the last document belongs to none: it sees nothing, and nothing sees it.
    ``Documents(lengths) & Causal()`` is the mask of a language model that is trained on packed texts.

    Parameters
    ----------
    lengths
        How many tokens each document has, in order. One list, which is for all sequences, or a list for
        every entry of the batch: a ragged list of lists, or an integer array whose last axis counts
        documents and is filled up with zeros. A document of length zero is no document.
    align
        As for `Causal`: where the queries stand when there are not as many of them as keys. The
        documents are those of the keys; a query that stands beside no key belongs to no document.

    Raises
    ------
    TypeError, ValueError
        If the lengths are not integers, are negative, exceed the number of keys together, or do not
        fit the batch. When the array is made, if there are not as many queries as keys and `align` was
        not given.

    Examples
    --------
    >>> Documents([2, 1]).rows(4, 4).astype(int)
    array([[1, 1, 0, 0],
           [1, 1, 0, 0],
           [0, 0, 1, 0],
           [0, 0, 0, 0]])
    >>> Documents([2, 3], align="bottom-right").rows(1, 5).astype(int)
    array([[0, 0, 1, 1, 1]])
    >>> Documents([[1, 1], [2]]).rows(2, 2, batch=(2,)).astype(int)
    array([[[1, 0],
            [0, 1]],
    <BLANKLINE>
           [[1, 1],
            [1, 1]]])
    """

    lengths: Int[Array, "*b documents"]
    align: Align | None = None

    def __init__(
        self, lengths: Sequence[int] | Sequence[Sequence[int] | Array] | Array, align: Align | None = None
    ):
        whole = _whole(self, _filled(lengths))
        if not whole.ndim:
            raise ValueError(f"Documents: lengths must be a list of lengths, got {whole}; of one, [{whole}]")
        object.__setattr__(self, "lengths", whole)
        object.__setattr__(self, "align", align)
        _check_align(self)

    def check(self, m: int, batch: tuple[int, ...]) -> None:
        """Refuse lengths that do not fit the batch, or together exceed the number of keys."""
        _check_batch(self, self.lengths.shape[:-1], batch, ", the documents in the last axis,")
        if (np.minimum(self.lengths, m + 1).sum(axis=-1) > m).any():
            raise ValueError(
                f"Documents: lengths must not exceed the {m} keys together, got {self.lengths.tolist()}"
            )

    def numbers(self, positions: Int[Array, " p"]) -> Int[Array, "*b p"]:
        """Say which document the keys at these positions belong to, counted from zero; -1 where to none."""
        *batch, count = self.lengths.shape
        numbers = np.empty((*batch, len(positions)), dtype=int)
        for entry in np.ndindex(*batch):
            numbers[entry] = np.searchsorted(np.cumsum(self.lengths[entry]), positions, side="right")
        return np.where((positions < 0) | (numbers == count), -1, numbers)

    def rows(self, n: int, m: int, batch: tuple[int, ...] = ()) -> Bool[Array, "*b n m"]:
        return self.tile(slice(None), slice(None), n, m, batch)

    def tile(
        self, queries: slice, keys: slice, n: int, m: int, batch: tuple[int, ...] = ()
    ) -> Bool[Array, "*b p q"]:
        self.check(m, batch)
        of_queries = self.numbers(offset(self, n, m) + np.arange(*queries.indices(n)))[..., :, None]
        of_keys = self.numbers(np.arange(*keys.indices(m)))[..., None, :]
        return (of_queries == of_keys) & (of_queries >= 0)


@dataclass(frozen=True)
class And(Mask):
    """A query sees what both rules let it see; written ``left & right``."""

    left: Mask
    right: Mask

    def __post_init__(self):
        _require_mask(self.left)
        _require_mask(self.right)

    def rows(self, n: int, m: int, batch: tuple[int, ...] = ()) -> Bool[Array, "*b n m"]:
        return self.left.rows(n, m, batch) & self.right.rows(n, m, batch)

    def tile(
        self, queries: slice, keys: slice, n: int, m: int, batch: tuple[int, ...] = ()
    ) -> Bool[Array, "*b #p #q"]:
        return self.left.tile(queries, keys, n, m, batch) & self.right.tile(queries, keys, n, m, batch)


@dataclass(frozen=True)
class Or(Mask):
    """A query sees what either rule lets it see; written ``left | right``."""

    left: Mask
    right: Mask

    def __post_init__(self):
        _require_mask(self.left)
        _require_mask(self.right)

    def rows(self, n: int, m: int, batch: tuple[int, ...] = ()) -> Bool[Array, "*b n m"]:
        return self.left.rows(n, m, batch) | self.right.rows(n, m, batch)

    def tile(
        self, queries: slice, keys: slice, n: int, m: int, batch: tuple[int, ...] = ()
    ) -> Bool[Array, "*b #p #q"]:
        return self.left.tile(queries, keys, n, m, batch) | self.right.tile(queries, keys, n, m, batch)


@dataclass(frozen=True)
class Not(Mask):
    """A query sees what the rule hides; written ``~rule``."""

    rule: Mask

    def __post_init__(self):
        _require_mask(self.rule)

    def rows(self, n: int, m: int, batch: tuple[int, ...] = ()) -> Bool[Array, "*b n m"]:
        return ~self.rule.rows(n, m, batch)

    def tile(
        self, queries: slice, keys: slice, n: int, m: int, batch: tuple[int, ...] = ()
    ) -> Bool[Array, "*b #p #q"]:
        return ~self.rule.tile(queries, keys, n, m, batch)


def visible_from_ignored(ignored: Bool[Array, "..."]) -> Bool[Array, "..."]:
    """Read a mask in which ``True`` means *ignore* (``torch.nn.MultiheadAttention``).

    Raises
    ------
    TypeError
        If the mask is not boolean.

    Examples
    --------
    >>> visible_from_ignored(np.array([[False, True]]))
    array([[ True, False]])
    """
    return ~_require_boolean("ignored", ignored)


def ignored_from_visible(visible: Bool[Array, "..."]) -> Bool[Array, "..."]:
    """Write a mask in which ``True`` means *ignore* (``torch.nn.MultiheadAttention``).

    Raises
    ------
    TypeError
        If the mask is not boolean.

    Examples
    --------
    >>> ignored_from_visible(Causal().rows(2, 2))
    array([[False,  True],
           [False, False]])
    """
    return ~_require_boolean("visible", visible)


def visible_from_bias(bias: Float[Array, "..."]) -> Bool[Array, "..."]:
    """Read an additive mask: a float array that is zero where a query may look, else minus infinity.

    Raises
    ------
    TypeError
        If it is not a floating array.
    ValueError
        If any entry is neither zero nor minus infinity: then it changes the scores that stay
        visible, and belongs into the score (``biased`` in either convention), not into a mask.

    Examples
    --------
    >>> visible_from_bias(np.array([[0.0, -np.inf]]))
    array([[ True, False]])
    """
    if not isinstance(bias, np.ndarray) or not np.issubdtype(bias.dtype, np.floating):
        kind = getattr(bias, "dtype", type(bias).__name__)
        raise TypeError(f"an additive mask must be a floating array of 0 and -inf, got {kind}")
    hidden = np.isneginf(bias)
    if np.any(~hidden & (bias != 0)):
        raise ValueError(
            "an additive mask holds only 0 and -inf; this one has other values, which change the "
            "scores: make it part of the score with biased(score, bias)"
        )
    return ~hidden


def bias_from_visible(visible: Bool[Array, "..."], dtype=np.float64) -> Float[Array, "..."]:
    """Write an additive mask: zero where a query may look, minus infinity where it may not.

    Raises
    ------
    TypeError
        If the mask is not boolean, or `dtype` has no minus infinity.

    Examples
    --------
    >>> bias_from_visible(Causal().rows(2, 2))
    array([[  0., -inf],
           [  0.,   0.]])
    """
    if not np.issubdtype(dtype, np.floating):
        raise TypeError(f"an additive mask needs a floating type, got {np.dtype(dtype)}")
    return np.where(_require_boolean("visible", visible), 0.0, -np.inf).astype(dtype)


def _distance(mask: Causal | Window, n: int, m: int):
    """How many positions each key lies before each query: (n, m), negative for later keys."""
    return offset(mask, n, m) + np.arange(n)[:, None] - np.arange(m)


def _band(low: int, high: int, mask: Causal | Window, queries: slice, keys: slice, n: int, m: int):
    """Where a key lies `low` to `high` positions before a query; one answer for all of a tile where it can be."""
    first, end, _ = queries.indices(n)
    first_key, end_key, _ = keys.indices(m)
    shift = offset(mask, n, m)
    nearest, farthest = shift + first - (end_key - 1), shift + end - 1 - first_key
    if low <= nearest and farthest <= high:
        return np.ones((1, 1), dtype=bool)
    if farthest < low or high < nearest:
        return np.zeros((1, 1), dtype=bool)
    distance = shift + np.arange(first, end)[:, None] - np.arange(first_key, end_key)
    return (low <= distance) & (distance <= high)


@no_type_check  # `mha_tutorial.torch` calls it where code is traced or compiled, and lengths are no integers
def offset(mask: Causal | Window | Documents, n: int, m: int) -> int:
    """How many positions the first query stands behind the first key.

    Raises
    ------
    ValueError
        If there are not as many queries as keys and the mask does not say how they stand.
    """
    if mask.align is None and n != m:
        raise ValueError(
            f"{type(mask).__name__}: with {n} queries and {m} keys the alignment must be stated, "
            "align='top-left' (first query beside first key) or align='bottom-right' (last beside last)"
        )
    return m - n if mask.align == "bottom-right" else 0


def _check_align(mask: Causal | Window | Documents) -> None:
    if mask.align not in (None, "top-left", "bottom-right"):
        raise ValueError(f"{type(mask).__name__}: align must be 'top-left' or 'bottom-right', got {mask.align!r}")


def _whole(mask: Mask, lengths) -> Array:
    """A copy of the lengths that nobody can change; refuse what is not whole, and what is negative."""
    kind = type(mask).__name__
    try:
        lengths = np.array(lengths)
    except ValueError as error:
        raise ValueError(f"{kind}: lengths must be an array of integers, got {lengths!r}: {error}") from None
    if lengths.size and not np.issubdtype(lengths.dtype, np.integer):
        raise TypeError(f"{kind}: lengths must be integers, got {lengths.dtype}")
    if (lengths < 0).any():
        raise ValueError(f"{kind}: lengths must not be negative, got {lengths.tolist()}")
    signed = lengths.astype(np.int64)  # differences of unsigned numbers would wrap around
    lengths = np.where(signed < 0, np.iinfo(np.int64).max, signed)
    lengths.flags.writeable = False
    return lengths


def _filled(lengths):
    """A list for each sequence filled up with zeros to the longest; anything else as it is."""
    if not isinstance(lengths, list | tuple) or not all(map(np.iterable, lengths)):
        return lengths
    longest = max(map(len, lengths), default=0)
    return [[*inner, *[0] * (longest - len(inner))] for inner in lengths]


def _check_batch(
    mask: _Lengths | Documents, axes: tuple[int, ...], batch: tuple[int, ...], where: str = ""
) -> None:
    """Refuse one number for every entry of another batch; none for a single one is for all."""
    if axes and axes != tuple(batch):
        raise ValueError(
            f"{type(mask).__name__}: lengths of shape {mask.lengths.shape}{where} do not fit the batch axes "
            f"{tuple(batch)}"
        )


def _require_mask(other) -> None:
    if not isinstance(other, Mask):
        raise TypeError(
            f"a structured mask combines with structured masks, got {type(other).__name__}; to combine "
            "with a boolean array make an array of it first, mask.rows(n, m) or mask.columns(n, m)"
        )


def _require_boolean(name: str, mask: Array) -> Array:
    if not isinstance(mask, np.ndarray) or mask.dtype != np.bool_:
        kind = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"{name} must be a boolean array, got {kind}; convert 0 and 1 with mask.astype(bool)")
    return mask
