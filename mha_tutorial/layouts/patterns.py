"""Einops patterns as data: their axes, their inverse, and the sizes that shapes tell of them."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

FIXED = {"qkv": 3, "two": 2}  # axes of one length in every layout


class Size(NamedTuple):
    """The length of an axis, or of several together, and the tensor that told it."""

    length: int
    source: str


Sizes = dict[frozenset[str], Size]


def one(letter: str) -> frozenset[str]:
    """The key under which the length of a single letter is kept."""
    return frozenset([letter])


def inverse(pattern: str) -> str:
    """Turn a pattern round, so that it undoes what it did.

    Examples
    --------
    >>> inverse("(h d) d_model -> h d d_model")
    'h d d_model -> (h d) d_model'
    """
    before, after = pattern.split(" -> ")
    return f"{after} -> {before}"


def axes(side: str) -> list[list[str]]:
    """The axes of one side of a pattern, each with the letters it is made of, the slowest first.

    Examples
    --------
    >>> axes("(qkv h d) d_model")
    [['qkv', 'h', 'd'], ['d_model']]
    """
    return [(several or single).split() for several, single in re.findall(r"\(([^)]*)\)|(\S+)", side)]


def letters(side: str) -> list[str]:
    """Every letter of one side of a pattern, in order."""
    return [letter for axis in axes(side) for letter in axis]


def solve(
    where: str,
    tensors: Mapping[str, tuple[str, tuple[int, ...]]],
    given: Mapping[str, int] | None = None,
    bound: Mapping[str, str] | None = None,
) -> Sizes:
    """Find the lengths of axes from the shapes of tensors, and refuse shapes that contradict each other.

    What shapes tell only as a product, such as ``h d`` of heads that are stored side by side, is kept
    as a product.

    Parameters
    ----------
    where
        How error messages begin.
    tensors
        For each name a side of a pattern, and the shape that should fit it.
    given
        Lengths known beforehand.
    bound
        For a letter the letters whose product it must be.

    Raises
    ------
    ValueError
        If a shape does not fit, or a size is not what it is bound to. The message says which, the shape
        expected and the shape found.

    Examples
    --------
    >>> sizes = solve("example:", {"query": ("(h d) m", (12, 5)), "out": ("m (h d)", (5, 12))}, {"h": 3})
    >>> sizes[frozenset("d")]
    Size(length=4, source='query')
    """
    sizes = {one(letter): Size(length, "always") for letter, length in FIXED.items()}
    sizes |= {one(letter): Size(length, "given") for letter, length in (given or {}).items()}
    for name, (side, shape) in tensors.items():
        if len(shape) != len(axes(side)) or 0 in shape:
            count = len(axes(side))
            raise ValueError(
                f"{where} {name} must be {expected(side, sizes)}, with {count} {'axes' if count > 1 else 'axis'} "
                f"and none of length 0, got shape {shape}"
            )
    before: Sizes = {}
    while before != sizes:  # until a pass over all tensors tells nothing new
        before = dict(sizes)
        for name, (side, shape) in tensors.items():
            for axis, length in zip(axes(side), shape, strict=True):
                if not _agree(axis, length, name, sizes):
                    raise ValueError(
                        f"{where} {name} must be {expected(side, sizes, shown=True)}, got shape {shape}"
                    )
    for letter, several in (bound or {}).items():
        found, wanted = product([letter], sizes), product(several.split(), sizes)
        if found and wanted and found != wanted:
            raise ValueError(
                f"{where} {letter} is always {several.replace(' ', '·')} there, but {letter}={found} "
                f"({sizes[one(letter)].source}) and {several.replace(' ', '·')}={wanted}"
            )
    return sizes


def product(several: Sequence[str], sizes: Sizes) -> int | None:
    """The length of several axes together, or None where the sizes do not tell."""
    known = [letter for letter in several if one(letter) in sizes]
    unknown = frozenset(several) - set(known)
    if unknown and unknown not in sizes:
        return None
    factors = [one(letter) for letter in known] + ([unknown] if unknown else [])
    return math.prod(sizes[factor].length for factor in factors)


def expected(side: str, sizes: Sizes, shown: bool = False) -> str:
    """A side of a pattern as text, followed by the shape as far as it is known, and on demand by how it is.

    Examples
    --------
    >>> expected("(h d) m", {frozenset("h"): Size(3, "given")}, shown=True)
    "'(h d) m' = (3·d, m) with h=3 (given)"
    """

    def text(axis):
        length = product(axis, sizes)
        return str(length) if length else "·".join(_length(letter, sizes) for letter in axis)

    there = axes(side)
    shape = ", ".join(map(text, there)) + ("," if len(there) == 1 else "")
    facts = ", ".join(f"{name}={size.length} ({size.source})" for name, size in told(letters(side), sizes).items())
    return f"'{side}' = ({shape})" + (f" with {facts}" if shown and facts else "")


def told(several: Sequence[str], sizes: Sizes) -> dict[str, Size]:
    """What the sizes tell of these letters: each that is known, and each product of others that is.

    Axes whose length never varies are left out.

    Examples
    --------
    >>> told(["h", "d"], solve("example:", {"query": ("(h d) m", (12, 5))}))
    {'h·d': Size(length=12, source='query')}
    """
    known = {}
    for group, size in sizes.items():
        if group <= set(several) and not group & set(FIXED):
            if len(group) > 1 and any(one(letter) in sizes for letter in group):
                continue
            known["·".join(sorted(group, key=several.index))] = size
    return known


def _agree(axis: list[str], length: int, name: str, sizes: Sizes) -> bool:
    """Whether an axis may have this length; what that tells about its letters is added to the sizes."""
    known = [letter for letter in axis if one(letter) in sizes]
    unknown = frozenset(axis) - set(known)
    quotient, remainder = divmod(length, math.prod(sizes[one(letter)].length for letter in known))
    if unknown and not remainder:
        return sizes.setdefault(unknown, Size(quotient, name)).length == quotient
    return not remainder and quotient == 1


def _length(letter: str, sizes: Sizes) -> str:
    return str(sizes[one(letter)].length) if one(letter) in sizes else letter
