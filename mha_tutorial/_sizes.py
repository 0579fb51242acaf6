"""Sizes of a layer, checked and completed."""

import operator


def count(name: str, number, least: int = 1) -> int:
    """A whole number as a Python integer, which no product overflows."""
    try:
        whole = operator.index(number)
    except TypeError:
        raise TypeError(f"{name} must be a whole number, got {number!r}") from None
    if isinstance(number, bool):
        raise TypeError(f"{name} must be a whole number, got {number!r}")
    if whole < least:
        raise ValueError(f"{name} must be at least {least}, got {number}")
    return whole


def complete(d_model, h, h_kv=None, d_k=None, d_v=None) -> tuple[int, int, int, int, int]:
    """All five sizes, where those left out take their usual values."""
    given = {"d_model": d_model, "h": h, "h_kv": h_kv, "d_k": d_k, "d_v": d_v}
    sizes = {name: count(name, size) for name, size in given.items() if size is not None}
    d_model, h = sizes["d_model"], sizes["h"]
    if (d_k is None or d_v is None) and d_model % h:
        raise ValueError(
            f"d_model ({d_model}) must be divisible by h ({h}); pass d_k and d_v to choose a head's widths freely"
        )
    return d_model, h, sizes.get("h_kv", h), sizes.get("d_k", d_model // h), sizes.get("d_v", d_model // h)


def slices(length: int, step: int) -> list[slice]:
    """Cut a length into pieces.

    Examples
    --------
    >>> slices(5, 2)
    [slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)]
    """
    return [slice(start, min(start + step, length)) for start in range(0, length, step)]
