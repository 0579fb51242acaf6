"""What kernels and the layer check at their doors; shapes and types only, so that nothing waits for a device."""

import math
from collections.abc import Collection
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from .._sizes import count
from ..masks import Mask

_ADVICE = (
    "If 1 means attend, pass visible.bool(); if 1 means ignore, pass visible == 0. A float mask is added to the "
    "scores: pass it as bias."
)


def check_kernel(kernel: str, q: Tensor, k: Tensor, v: Tensor, visible, bias) -> None:
    """Refuse queries, keys, values, masks and biases that do not fit each other."""
    if not _fit(q, k, v):
        _refuse(kernel, q, k, v)
    if bias is None and (
        visible is None or isinstance(visible, Mask)
    ):  # whose lengths are checked where it is used
        return
    scores = (*q.shape[:3], k.shape[2])
    if visible is not None and not isinstance(visible, Mask):
        check_visible(kernel, visible, scores)
    if bias is not None:
        check_bias(kernel, bias, scores)


def _fit(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Whether queries, keys and values are floating tensors of one type, and of shapes that belong together."""
    if not (isinstance(q, Tensor) and isinstance(k, Tensor) and isinstance(v, Tensor)):
        return False
    if not (q.dtype == k.dtype == v.dtype and q.is_floating_point() and q.ndim == k.ndim == v.ndim == 4):
        return False
    (b, h, _, d_k), (b_k, h_kv, m, width), (b_v, h_v, m_v, _) = q.shape, k.shape, v.shape
    together = b == b_k and b == b_v and h_kv == h_v and m == m_v and d_k == width
    return bool(together and h_kv != 0 and h % h_kv == 0)


def _refuse(kernel: str, q: Tensor, k: Tensor, v: Tensor) -> NoReturn:
    """Say what is wrong with queries, keys and values that do not fit."""
    for name, x in {"q": q, "k": k, "v": v}.items():
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"{kernel}: {name} must be a floating tensor, got {_kind(x)}")
        if x.ndim != 4:
            raise ValueError(f"{kernel}: {name} must have four axes (b, heads, tokens, width), got {_shape(x)}")
        check_type(kernel, "q", q, name, x)
    raise ValueError(
        f"{kernel}: expected q (b, h, n, d_k), k (b, h_kv, m, d_k) and v (b, h_kv, m, d_v) with h_kv dividing "
        f"h, got {_shape(q)}, {_shape(k)} and {_shape(v)}"
    )


def check_scale(where: str, scale) -> float:
    """Refuse a scale that is not a finite number."""
    if torch.compiler.is_compiling():  # a number of the graph
        return scale
    if isinstance(scale, bool) or not isinstance(scale, int | float | np.integer | np.floating):
        raise TypeError(f"{where}: scale must be a number, got {_kind(scale)}")
    if not math.isfinite(scale):
        raise ValueError(f"{where}: scale must be a finite number, got {scale!r}")
    return float(scale)


def check_visible(where: str, visible, scores: tuple[int, ...]) -> None:
    """Refuse a mask that is not boolean, or does not broadcast to scores of this shape."""
    if not isinstance(visible, Tensor) or visible.dtype != torch.bool:
        raise TypeError(
            f"{where}: visible must be a boolean tensor (True = may be attended), got {_kind(visible)}. {_ADVICE}"
        )
    check_broadcast(where, "visible", visible, scores)


def check_bias(where: str, bias, scores: tuple[int, ...]) -> None:
    """Refuse a bias that cannot be added, or does not broadcast to scores of this shape."""
    if not isinstance(bias, Tensor) or not bias.is_floating_point():
        raise TypeError(
            f"{where}: bias must be a floating tensor, which is added to the scores, got {_kind(bias)}; "
            "what a query may see is passed as visible"
        )
    check_broadcast(where, "bias", bias, scores)


def check_broadcast(where: str, name: str, x: Tensor, scores: tuple[int, ...]) -> None:
    """Refuse what has fewer than two axes, does not broadcast to the scores, or could be read in two ways."""
    if x.ndim < 2:
        raise ValueError(
            f"{where}: {name} must have at least two axes (n, m), got {_shape(x)}; with one axis it could mean "
            "keys or queries"
        )
    with_heads = (*x.shape[:-2], 1, *x.shape[-2:])  # read as one for each sequence
    fits, fits_sequences = _broadcasts(x.shape, scores), _broadcasts(with_heads, scores)
    if fits and fits_sequences and any(size > 1 for size in x.shape[:-2]):
        raise ValueError(
            f"{where}: {name} of shape {_shape(x)} could have one entry for each sequence or one for each head of "
            f"the scores, (..., h, n, m) = {tuple(scores)}; write {name}[..., None, :, :] or {name}[None]"
        )
    if not fits:
        hint = f" Did you mean {name}[..., None, :, :], with an axis for the heads?" if fits_sequences else ""
        raise ValueError(
            f"{where}: {name} of shape {_shape(x)} does not broadcast to the scores, "
            f"(..., h, n, m) = {tuple(scores)}.{hint}"
        )


def _broadcasts(shape: tuple[int, ...], scores: tuple[int, ...]) -> bool:
    padded = (1,) * (len(scores) - len(shape)) + tuple(shape)
    return len(padded) == len(scores) and all(have in (1, want) for have, want in zip(padded, scores, strict=True))


def check_type(where: str, name: str, x: Tensor, other: str, y: Tensor) -> None:
    """Refuse two floating types in one computation."""
    if x.dtype != y.dtype:
        raise TypeError(
            f"{where}: {name} is {x.dtype} but {other} is {y.dtype}; convert one of them, since no type is "
            "changed silently"
        )


def check_sizes(d_model: int, h: int, h_kv: int, d_k: int | None, d_v: int | None, dropout: float) -> None:
    """Refuse sizes of which no layer can be made."""
    sizes = {"d_model": d_model, "h": h, "h_kv": h_kv, "d_k": d_k, "d_v": d_v}
    for name, size in sizes.items():
        if size is not None and size < 1:
            raise ValueError(f"{name} must be at least 1, got {size}")
    if (d_k is None or d_v is None) and d_model % h:
        raise ValueError(
            f"d_model ({d_model}) must be divisible by h ({h}); pass d_k and d_v to choose a head's widths freely"
        )
    if h % h_kv:
        raise ValueError(f"{h_kv} key-value heads must divide {h} heads")
    if not 0 <= dropout < 1:
        raise ValueError(f"dropout must be at least 0 and below 1, got {dropout}")


def check_function(name: str, function, signature: str, known: Collection[str] = ()) -> None:
    """Refuse what cannot be called; of a name, say where the function is."""
    if not callable(function):
        hint = f"; the kernel of this name is KERNELS[{function!r}]" if function in tuple(known) else ""
        raise TypeError(f"{name} must be a function {signature}, got {function!r}{hint}")


def check_extra_keys(keys, values) -> None:
    """Refuse extra keys and values that cannot belong to one layer."""
    for name, x in (("keys", keys), ("values", values)):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            raise TypeError(f"ExtraKeys: {name} must be a floating tensor, got {_kind(x)}")
        if x.ndim != 3:
            raise ValueError(f"ExtraKeys: {name} must be (h_kv, s, width), got {_shape(x)}")
    check_type("ExtraKeys", "keys", keys, "values", values)
    if keys.shape[:2] != values.shape[:2]:
        raise ValueError(
            f"ExtraKeys: keys (h_kv, s, d_k) and values (h_kv, s, d_v) must be as many, "
            f"got {_shape(keys)} and {_shape(values)}"
        )


def check_prepared(made, q: Tensor, k: Tensor) -> None:
    """Refuse what a `prepare` function returned if it does not stand for the queries and keys it was given."""
    where = "MultiHeadAttention"
    if not isinstance(made, tuple) or len(made) != 2:
        raise TypeError(f"{where}: prepare must return a pair (queries, keys), got {type(made).__name__}")
    for name, x, given in zip(("queries", "keys"), made, (q, k), strict=True):
        if not isinstance(x, Tensor) or x.dtype != given.dtype:
            raise TypeError(f"{where}: prepare must return {name} in {given.dtype}, as given, got {_kind(x)}")
        if x.shape != given.shape:
            raise ValueError(f"{where}: prepare must return {name} of shape {_shape(given)}, got {_shape(x)}")


def check_positions(name: str, positions, batch: tuple[int, ...], length: int) -> None:
    """Refuse positions that are not one integer for each token."""
    where = "MultiHeadAttention"
    if (
        not isinstance(positions, Tensor)
        or positions.is_floating_point()
        or positions.is_complex()
        or positions.dtype == torch.bool
    ):
        raise TypeError(f"{where}: {name} must be a tensor of integers, got {_kind(positions)}")
    if positions.shape[-1:] != (length,) or not _broadcasts(tuple(positions.shape), (*batch, length)):
        raise ValueError(
            f"{where}: {name} must be (tokens,) or (..., tokens), one for each of the tokens {(*batch, length)}, "
            f"got {_shape(positions)}"
        )


def check_tokens(projections: tuple, queries: Tensor, keys: Tensor, values: Tensor) -> None:
    """Refuse tokens that a layer's projections cannot read, or that do not fit each other."""
    W_q, W_k, W_v = projections
    _check_tokens("queries", queries, W_q, queries)
    if keys is not queries or W_k.in_features != W_q.in_features:  # self-attention checks its tokens once
        _check_tokens("keys", keys, W_k, queries)
    if values is not keys or W_v.in_features != W_k.in_features:
        _check_tokens("values", values, W_v, queries)
        if keys.shape[-2] != values.shape[-2]:
            raise ValueError(
                "MultiHeadAttention: keys and values must hold the same number m of tokens, "
                f"got shapes {_shape(keys)} and {_shape(values)}"
            )


def _check_tokens(name: str, x: Tensor, projection, queries: Tensor) -> None:
    where, weight = "MultiHeadAttention", projection.weight
    if not isinstance(x, Tensor) or not x.is_floating_point():
        raise TypeError(f"{where}: {name} must be a floating tensor, got {_kind(x)}")
    if x.ndim < 2 or x.shape[-1] != projection.in_features:
        raise ValueError(f"{where}: {name} must be (..., tokens, {projection.in_features}), got {_shape(x)}")
    if x is not queries and x.shape[:-2] != queries.shape[:-2]:
        raise ValueError(
            f"{where}: queries and {name} must have the same leading axes, "
            f"got shapes {_shape(queries)} and {_shape(x)}"
        )
    if x.dtype != weight.dtype and (weight.is_meta or not torch.is_autocast_enabled(weight.device.type)):
        check_type(where, name, x, "the layer", weight)


def slots_of_cache(b, h_kv, d_k, d_v, capacity, window, chunk) -> int:
    """Refuse sizes of which no cache can be made; say how many slots it has for each text."""
    if (capacity is None) == (window is None):
        raise ValueError(
            "KVCache: give capacity, the tokens each text may have, or window, how many of them a token sees; "
            f"got capacity={capacity} and window={window}"
        )
    sizes = {"b": b, "h_kv": h_kv, "d_k": d_k, "d_v": d_v, "chunk": chunk}
    sizes |= {"capacity": capacity} if window is None else {"window": window}
    sizes = {f"KVCache: {name}": size for name, size in sizes.items()}
    *_, last_chunk, kept = (count(name, size) for name, size in sizes.items())
    return kept if window is None else kept + last_chunk - 1


def check_cached(cache, kind: type, queries, keys, values) -> None:
    """Refuse what is no cache, and keys of one's own beside one."""
    where = "MultiHeadAttention"
    if not isinstance(cache, kind):
        raise TypeError(f"{where}: cache must be a KVCache, got {type(cache).__name__}")
    if any(x is not None and x is not queries for x in (keys, values)):
        raise ValueError(
            f"{where}: a cache holds what the queries themselves said before, so keys and values are left out with "
            "it; those of a memory do not grow, and need no cache"
        )


def check_fits_cache(cache, queries: Tensor, k: Tensor, v: Tensor) -> None:
    """Refuse new keys and values (b, h_kv, n, width) that are not like those stored."""
    where = "KVCache"
    for name, x, kept in (("keys", k, cache.keys), ("values", v, cache.values)):
        if x.shape[0] != kept.shape[0]:
            raise ValueError(
                f"{where}: holds {kept.shape[0]} texts, got {x.shape[0]}, with tokens of shape {_shape(queries)}"
            )
        if (x.shape[1], x.shape[3]) != (kept.shape[1], kept.shape[3]):
            raise ValueError(
                f"{where}: holds {name} of {kept.shape[1]} heads of width {kept.shape[3]}, got {x.shape[1]} of "
                f"width {x.shape[3]}; each layer needs a cache of its own, KVCache.for_layer(layer, ...)"
            )
        if x.dtype != kept.dtype:
            raise TypeError(f"{where}: holds {name} in {kept.dtype}, got {x.dtype}; no type is changed silently")
        if x.device != kept.device:
            raise ValueError(f"{where}: holds {name} on {kept.device}, got some on {x.device}")


def check_room(n: int, stored: int, slots: int, window: int | None, chunk: int) -> None:
    """Refuse more tokens than a cache takes."""
    if window is None and stored + n > slots:
        raise ValueError(
            f"KVCache: {n} new tokens do not fit behind {stored} stored: the capacity is {slots} tokens"
        )
    if window is not None and n > chunk:
        raise ValueError(
            f"KVCache: {n} new tokens are more than the {chunk} that this ring takes at a time; read them in "
            "chunks, or make it with a larger chunk="
        )


def check_one_for_each_text(method: str, given, lengths: Tensor, least_axes: int = 0) -> Tensor:
    """Read whole numbers, one for each text or, where no axis is needed, one for all."""
    numbers = torch.as_tensor(given, device=lengths.device)
    if numbers.is_floating_point() or numbers.is_complex() or numbers.dtype == torch.bool:
        raise TypeError(f"KVCache.{method}: expected whole numbers, got {_kind(numbers)}")
    if not least_axes <= numbers.ndim <= 1 or (numbers.ndim and numbers.shape != lengths.shape):
        raise ValueError(
            f"KVCache.{method}: expected one number for each of {len(lengths)} texts, got shape {_shape(numbers)}"
        )
    return numbers.long().expand(lengths.shape)


def check_indices(indices: Tensor) -> None:
    """Refuse the number of a text that is not there."""
    if ((indices < 0) | (indices >= len(indices))).any():
        raise ValueError(f"KVCache.reorder: texts are numbered 0 to {len(indices) - 1}, got {indices.tolist()}")


def _shape(x: Tensor) -> tuple[int, ...]:
    return tuple(x.shape)


def _kind(x) -> str:
    return str(x.dtype) if isinstance(x, Tensor) else type(x).__name__
