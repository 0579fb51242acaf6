"""What a public function checks at its door, in the words of the convention it speaks."""

import warnings
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from .masks import Mask
from .weights import ColumnWeights, RowWeights


class Convention(NamedTuple):
    """A way to lay out tokens, and the checks whose messages name it."""

    name: str
    features: int  # the axis along which one token's numbers lie, and one query's scores
    tokens: int  # the axis along which the tokens lie, and in the scores the queries
    weights: type[ColumnWeights] | type[RowWeights]

    def shape(self, features, tokens, lead: str = "") -> str:
        """Write a shape: ``(d_model, n)`` for columns, ``(n, d_model)`` for rows."""
        axes = {self.features: features, self.tokens: tokens}
        return f"({lead}{axes[-2]}, {axes[-1]})"

    def check_arrays(self, **arrays: Array) -> None:
        """Refuse what is not a floating array with two axes, and arrays that differ in type or leading axes."""
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray):
                raise TypeError(f"{self} {name} must be a NumPy array, got {type(array).__name__}")
            if not np.issubdtype(array.dtype, np.floating):
                raise TypeError(
                    f"{self} {name} must hold floating-point numbers, got {array.dtype}; convert it with "
                    f"{name}.astype(float)"
                )
            if array.ndim < 2:
                raise ValueError(f"{self} {name} must have at least two axes, got shape {array.shape}")
        (first, reference), *others = arrays.items()
        for name, array in others:
            self.check_type(name, array, first, reference)
            if array.shape[:-2] != reference.shape[:-2]:
                raise ValueError(
                    f"{self} {first} and {name} must have the same leading axes, "
                    f"got shapes {reference.shape} and {array.shape}"
                )

    def check_type(self, name: str, array, other: str, reference) -> None:
        """Refuse two floating types in one computation."""
        if array.dtype != reference.dtype:
            raise TypeError(
                f"{self} {other} is {reference.dtype} but {name} is {array.dtype}; convert one of them, "
                "since no type is changed silently"
            )

    def check_one_width(self, Q: Array, K: Array) -> None:
        """Refuse queries and keys of different widths, between which there is no inner product."""
        if Q.shape[self.features] != K.shape[self.features]:
            raise ValueError(
                f"{self} Q {self.shape('d_k', 'n')} and K {self.shape('d_k', 'm')} must share d_k, "
                f"got shapes {Q.shape} and {K.shape}"
            )

    def check_one_length(self, K: Array, V: Array) -> None:
        """Refuse keys without a value and values without a key."""
        if K.shape[self.tokens] != V.shape[self.tokens]:
            raise ValueError(
                f"{self} K and V must hold the same number m of tokens, "
                f"got m={K.shape[self.tokens]} in K {K.shape} and m={V.shape[self.tokens]} in V {V.shape}"
            )

    def check_weights(self, weights) -> None:
        """Refuse the other convention's weights."""
        if not isinstance(weights, self.weights):
            hint = " Did you mean weights.T?" if isinstance(weights, ColumnWeights | RowWeights) else ""
            raise TypeError(f"{self} weights must be {self.weights.__name__}, got {type(weights).__name__}.{hint}")

    def check_inputs(self, Q: Array, K: Array, V: Array, weights) -> None:
        """Refuse inputs that the weights cannot read; one input given three times is called X."""
        self.check_weights(weights)
        names = ("X", "X", "X") if _same(Q, K) and _same(K, V) else ("Q", "K", "V")
        self.check_arrays(**dict(zip(names, (Q, K, V), strict=True)))
        self.check_type(names[0], Q, "weights", weights)
        for name, array, width in zip(names, (Q, K, V), weights.widths, strict=True):
            self.check_width(name, array, width, weights.d_model)
        self.check_one_length(K, V)

    def check_width(self, name: str, array: Array, width: int, d_model: int) -> None:
        """Refuse tokens of another width than a matrix reads, and notice a transposed input."""
        if array.shape[self.features] == width:
            return
        label = "d_model" if width == d_model else "d_in"
        expected = self.shape(label, "m" if name in "KV" else "n", lead="" if array.ndim == 2 else "..., ")
        transposed = f" Did you mean {name}.{'T' if array.ndim == 2 else 'mT'}?"
        raise ValueError(
            f"{self} {name} must be {expected} with {label}={width}, got {array.shape}."
            + (transposed if array.shape[self.tokens] == width else "")
        )

    def check_heads(self, weights, heads: Array) -> None:
        """Refuse heads that the output projection cannot read."""
        self.check_weights(weights)
        self.check_arrays(heads=heads)
        self.check_type("heads", heads, "weights", weights)
        if heads.ndim < 3 or heads.shape[-3] != weights.h or heads.shape[self.features] != weights.d_v:
            raise ValueError(
                f"{self} heads must be {self.shape('d_v', 'n', lead='..., h, ')} with h={weights.h} "
                f"and d_v={weights.d_v}, got {heads.shape}"
            )

    def check_scores(self, scores: Array, Q: Array, K: Array) -> None:
        """Refuse what a score function returned if it is not one number per key and query."""
        expected = self._scores_shape(Q, K)
        if getattr(scores, "shape", None) != expected:
            raise ValueError(
                f"{self} the score must return one number per key and query, "
                f"{self.shape('m', 'n', lead='..., ')} = {expected}, got {getattr(scores, 'shape', type(scores))}. "
                "Does it come from the other convention?"
            )
        self.check_type("the score", scores, "Q", Q)

    def check_bias(self, bias) -> None:
        """Refuse a bias that is not floating, and doubt one that looks like a mask."""
        kind = getattr(bias, "dtype", type(bias).__name__)
        if not isinstance(bias, np.ndarray) or not np.issubdtype(kind, np.floating):
            raise TypeError(
                f"{self} bias must be a floating array that is added to the scores, got {kind}. "
                "A boolean mask is passed as visible."
            )
        if np.isin(bias, (0, 1)).all() and bias.any():
            warnings.warn(
                "a bias of 0 and 1 is added to the scores and hides nothing; if it was meant as a mask, "
                "pass visible=bias.astype(bool)",
                stacklevel=3,
            )

    def visible(self, visible, shape: tuple[int, ...], heads: bool = False) -> Array | None:
        """Make the boolean array that says which scores count, or None where all do.

        ``shape`` is that of the scores; with ``heads`` its third axis from the end counts heads, which
        no structured mask depends on.
        """
        if visible is None:
            return None
        if isinstance(visible, Mask):
            n, m = shape[self.tokens], shape[self.features]
            make = visible.columns if self.weights is ColumnWeights else visible.rows
            made = make(n, m, batch=shape[: -3 if heads else -2])
            return made[..., None, :, :] if heads and made.ndim > 2 else made
        self._check_visible(visible, shape)
        return visible

    def _check_visible(self, visible, shape: tuple[int, ...]) -> None:
        kind = getattr(visible, "dtype", type(visible).__name__)
        if kind != np.bool_:
            raise TypeError(f"{self} visible must be boolean (True = may be attended), got {kind}. {_ADVICE}")
        if visible.ndim < 2:
            raise ValueError(
                f"{self} visible must have at least two axes {self.shape('m', 'n')}, got shape {visible.shape}; "
                "with one axis it could mean keys or queries"
            )
        if not _broadcasts(visible.shape, shape):
            transposed = " Did you mean visible.T?" if _broadcasts(visible.mT.shape, shape) else ""
            raise ValueError(
                f"{self} visible of shape {visible.shape} does not broadcast to the scores, "
                f"{self.shape('m', 'n', lead='..., ')} = {shape}.{transposed}"
            )

    def _scores_shape(self, Q: Array, K: Array) -> tuple[int, ...]:
        axes = {self.features: K.shape[self.tokens], self.tokens: Q.shape[self.tokens]}
        return (*Q.shape[:-2], axes[-2], axes[-1])

    def __str__(self) -> str:
        return f"{self.name} convention:"


COLUMNS = Convention("column", features=-2, tokens=-1, weights=ColumnWeights)
ROWS = Convention("row", features=-1, tokens=-2, weights=RowWeights)

_ADVICE = (
    "If 1 means attend, pass visible.astype(bool); if 1 means ignore, pass visible == 0. A float mask of 0 and "
    "-inf is read by masks.visible_from_bias; any other float array changes the scores and belongs into them: "
    "biased(score, bias)."
)


def _same(a, b) -> bool:
    """Whether two arrays are one and the same, or two views of the same memory laid out alike."""
    both = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    return a is b or (both and a.__array_interface__ == b.__array_interface__)


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False
