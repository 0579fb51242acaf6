"""What a public function checks at its door, in the words of the convention it speaks."""

import warnings
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy import ndarray as Array

from ._finite import unwarned, wide
from .masks import Mask
from .trace import Trace
from .weights import ColumnWeights, RowWeights

Number = float | int | np.floating | np.integer


class Convention(NamedTuple):
    """A way to lay out tokens, and the checks whose messages name it."""

    name: str
    features: int  # the axis along which one token's numbers lie, and one query's scores
    tokens: int  # the axis along which the tokens lie, and in the scores the queries
    weights: type[ColumnWeights] | type[RowWeights]

    def __str__(self) -> str:
        return f"{self.name} convention:"

    def axes(self, features, tokens) -> tuple:
        """Two things in the order of the axes: ``(d_model, n)`` for columns, ``(n, d_model)`` for rows."""
        return (features, tokens) if self.features == -2 else (tokens, features)

    def shape(self, features, tokens, lead: str = "") -> str:
        """The same as text."""
        return f"({lead}{', '.join(map(str, self.axes(features, tokens)))})"

    def check_arrays(self, **arrays: Array) -> None:
        """Refuse what is not a floating array with two axes, and arrays that differ in type or leading axes."""
        for name, array in arrays.items():
            self.check_array(name, array)
        (first, reference), *others = arrays.items()
        for name, array in others:
            self.check_type(name, array, first, reference)
            self.check_leading_axes(first, reference, name, array)

    def check_array(self, name: str, array: Array, axes: int = 2) -> None:
        """Refuse what is not a plain floating array with enough axes."""
        if not isinstance(array, np.ndarray) or isinstance(array, np.matrix | np.ma.MaskedArray):
            raise TypeError(f"{self} {name} must be a plain NumPy array, got {type(array).__name__}")
        if not np.issubdtype(array.dtype, np.floating):
            advice = f"; convert it with {name}.astype(float)" if array.dtype.kind in "iub" else ""
            raise TypeError(f"{self} {name} must hold floating-point numbers, got {array.dtype}{advice}")
        if array.ndim < axes:
            raise ValueError(f"{self} {name} must have at least two axes, got shape {array.shape}")

    def check_type(self, name: str, array, other: str, reference) -> None:
        """Refuse two floating types in one computation."""
        if array.dtype != reference.dtype:
            raise TypeError(
                f"{self} {other} is {reference.dtype} but {name} is {array.dtype}; convert one of them, "
                "since no type is changed silently"
            )

    def check_leading_axes(self, name: str, array: Array, other: str, reference: Array) -> None:
        """Refuse two arrays for different numbers of heads or sequences."""
        if array.shape[:-2] != reference.shape[:-2]:
            raise ValueError(
                f"{self} {name} and {other} must have the same leading axes, "
                f"got shapes {array.shape} and {reference.shape}"
            )

    def check_wide(self, name: str, array, other: str, reference) -> None:
        """Refuse a type that does not hold every number of another."""
        wider = np.issubdtype(array.dtype, np.floating) and np.can_cast(reference.dtype, array.dtype)
        if not wider:
            self.check_type(name, array, other, reference)

    def check_weighing(self, V: Array, A: Array) -> None:
        """Refuse values and weights that cannot be multiplied; the weights may have more bits."""
        self.check_array("V", V)
        self.check_array("A", A)
        self.check_wide("A", A, "V", V)
        self.check_leading_axes("V", V, "A", A)

    def check_like(self, name: str, array: Array, other: str, reference: Array) -> None:
        """Refuse an array that is not of the same type and shape as another."""
        self.check_arrays(**{name: array})
        self.check_type(name, array, other, reference)
        if array.shape != reference.shape:
            raise ValueError(f"{self} {name} must be like {other}, {reference.shape}, got {array.shape}")

    def check_part(self, heads: Array, log_sums: Array) -> None:
        """Refuse heads and log-sums that are not of the same queries."""
        self.check_array("heads", heads)
        self.check_array("log_sums", log_sums, axes=0)
        expected = (*heads.shape[:-2], heads.shape[self.tokens])
        if log_sums.shape != expected:
            raise ValueError(
                f"{self} log_sums must hold one number for each query of the heads {heads.shape}, {expected}, "
                f"got shape {log_sums.shape}"
            )

    def check_parts(self, one, other) -> None:
        """Refuse to merge what is not twice the heads and the log-sums of the same queries."""
        for part in (one, other):
            if not isinstance(part, tuple) or len(part) != 2:
                raise TypeError(f"{self} a part must be a pair, heads and log-sums, got {_kind(part)}")
            self.check_part(*part)
        self.check_like("the other heads", other[0], "the heads", one[0])

    def check_made(self, d_heads: Array, heads: Array, log_sums: Array, Q: Array, V: Array) -> None:
        """Refuse what attention from these queries to these values has not made."""
        expected = (*Q.shape[:-2], *self.axes(V.shape[self.features], Q.shape[self.tokens]))
        for name, array in (("heads", heads), ("d_heads", d_heads)):
            self.check_array(name, array)
            self.check_type(name, array, "V", V)
            if array.shape != expected:
                raise ValueError(
                    f"{self} {name} must be {self.shape('d_v', 'n', lead='..., ')} = {expected} "
                    f"for these queries and values, got shape {array.shape}"
                )
        self.check_part(heads, log_sums)

    def check_one_width(self, Q: Array, K: Array) -> None:
        """Refuse queries and keys that cannot be compared number by number."""
        if Q.shape[self.features] != K.shape[self.features] or not Q.shape[self.features]:
            raise ValueError(
                f"{self} Q {self.shape('d_k', 'n')} and K {self.shape('d_k', 'm')} must share d_k, at least 1, "
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
        matrices = ("W_q", "W_k", "W_v")
        for name, array, matrix, width in zip(names, (Q, K, V), matrices, weights.widths, strict=True):
            if array.shape[self.features] != width:
                may_be_transposed = name != "X" or len(set(weights.widths)) == 1
                raise self._wrong_width(name, array, width, weights.d_model, matrix, may_be_transposed)
        self.check_one_length(K, V)

    def _wrong_width(
        self, name: str, array: Array, width: int, d_model: int, matrix: str, may_be_transposed: bool
    ) -> ValueError:
        """What to say of tokens of another width than a matrix reads; a transposed input is noticed."""
        label, reader = ("d_model", "") if width == d_model else ("d_in", f" as {matrix} reads it")
        tokens = "m" if name in ("K", "V") else "n"
        expected = self.shape(label, tokens, lead="" if array.ndim == 2 else "..., ")
        transposed = f" Did you mean {name}.{_transpose(array)}?"
        return ValueError(
            f"{self} {name} must be {expected} with {label}={width}{reader}, got {array.shape}."
            + (transposed if may_be_transposed and array.shape[self.tokens] == width else "")
        )

    def check_residual(self, X: Array, weights) -> None:
        """Refuse to add an output to tokens of another width."""
        if X.shape[self.features] != weights.d_model:
            raise ValueError(
                f"{self} the output is added to X, so it must be as wide; W_o writes d_model={weights.d_model} "
                f"numbers and X {X.shape} holds {X.shape[self.features]}"
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

    def check_trace(self, trace, Q: Array, K: Array, weights) -> None:
        """Refuse a trace that other inputs, other weights or the other convention left behind."""
        if not isinstance(trace, Trace):
            raise TypeError(f"{self} trace must be the Trace that multi_head returned, got {type(trace).__name__}")
        n, m, d_k, d_v = Q.shape[self.tokens], K.shape[self.tokens], weights.d_k, weights.d_v
        steps = {
            "queries": (weights.h, d_k, n),
            "keys": (weights.h_kv, d_k, m),
            "values": (weights.h_kv, d_v, m),
            "scores": (weights.h, m, n),
            "attention": (weights.h, m, n),
            "heads": (weights.h, d_v, n),
            "output": (weights.d_model, n),
        }
        shapes = {
            name: (*Q.shape[:-2], *heads, *self.axes(features, tokens))
            for name, (*heads, features, tokens) in steps.items()
        }
        fits_transposed = all(getattr(trace.T, name).shape == shape for name, shape in shapes.items())
        for name, shape in shapes.items():
            step = getattr(trace, name)
            check = self.check_wide if name in ("scores", "attention") else self.check_type
            check(f"trace.{name}", step, "weights", weights)
            if step.shape != shape:
                raise ValueError(
                    f"{self} trace.{name} must be {shape} for these inputs and weights, got {step.shape}."
                    + (" Did you mean trace.T?" if fits_transposed else "")
                )

    def check_scores(self, scores: Array, Q: Array, K: Array) -> None:
        """Refuse what a score function returned if it is not one number per key and query."""
        expected = self.scores_shape(Q, K)
        if getattr(scores, "shape", None) != expected:
            raise ValueError(
                f"{self} the score must return one number per key and query, "
                f"{self.shape('m', 'n', lead='..., ')} = {expected}, got {getattr(scores, 'shape', type(scores))}. "
                "Does it come from the other convention?"
            )
        self.check_wide("the score", scores, "Q", Q)

    def checked(self, score):
        """The same score function, with what it returns checked, and in 32 bits or more."""

        def checked_score(Q: Array, K: Array) -> Array:
            with unwarned():  # masked positions may hold anything
                scores = score(Q, K)
            self.check_scores(scores, Q, K)
            return wide(scores)[0]

        return checked_score

    def check_additive(self, U_q: Array, U_k: Array, u: Array) -> None:
        """Refuse the parts of an additive score if they do not map to the same number of features."""
        for name, array, axes in (("U_q", U_q, 2), ("U_k", U_k, 2), ("u", u, 1)):
            self.check_array(name, array, axes)
        d = u.shape[0]
        if u.ndim != 1 or any(U.ndim != 2 or U.shape[self.features] != d for U in (U_q, U_k)):
            raise ValueError(
                f"{self} U_q {self.shape('d', 'd_q')}, U_k {self.shape('d', 'd_k')} and u (d,) must share d, "
                f"got shapes {U_q.shape}, {U_k.shape} and {u.shape}"
            )

    def check_matrix(self, name: str, matrix: Array) -> None:
        """Refuse what is not a floating matrix."""
        self.check_array(name, matrix, 2)
        if matrix.ndim != 2:
            raise ValueError(f"{self} {name} must have two axes, got shape {matrix.shape}")

    def check_bilinear(self, W: Array, Q: Array, K: Array) -> None:
        """Refuse queries and keys of another width, or type, than the matrix between them."""
        if W.shape != self.axes(K.shape[self.features], Q.shape[self.features]):
            raise ValueError(
                f"{self} W {self.shape('d_k', 'd_q')} must fit Q {self.shape('d_q', 'n')} and "
                f"K {self.shape('d_k', 'm')}, got shapes {W.shape}, {Q.shape} and {K.shape}"
            )
        self.check_type("W", W, "Q", Q)

    def check_mapped(self, **pairs: tuple[Array, Array]) -> None:
        """Refuse vectors of another width than their map reads."""
        for name, (vectors, U) in pairs.items():
            if vectors.shape[self.features] != U.shape[self.tokens]:
                raise ValueError(
                    f"{self} {name} must be as wide as U_{name.lower()} {U.shape} reads it, "
                    f"{U.shape[self.tokens]}, got shape {vectors.shape}"
                )
            self.check_type(f"U_{name.lower()}", U, name, vectors)

    def positions(self, positions, Q: Array, K: Array):
        """The place of every token, as `prepare` reads it: one array where keys are the queries, else a pair.

        An array may have fewer axes than the tokens, as ``(n,)`` for all sequences of a batch. Left out,
        tokens stand where they lie: 0, 1, 2 and so on.
        """
        lengths = {"queries": Q.shape[self.tokens], "keys": K.shape[self.tokens]}
        one = _same(Q, K)
        if positions is None:
            places = tuple(np.arange(length) for length in lengths.values())
            return places[0] if one else places
        if one and not isinstance(positions, tuple):
            self.check_positions("positions", positions, "n", Q.shape[:-2], lengths["queries"])
            return positions
        if not isinstance(positions, tuple) or len(positions) != 2:
            raise ValueError(
                f"{self} positions must be a pair where the keys are not the queries, "
                f"(of the queries, of the keys), got {_kind(positions)}"
            )
        for place, (name, length), letter in zip(positions, lengths.items(), "nm", strict=True):
            self.check_positions(f"positions of the {name}", place, letter, Q.shape[:-2], length)
        return positions

    def check_positions(self, name: str, positions, letter: str, batch: tuple[int, ...], length: int) -> None:
        """Refuse what is not one integer for each token."""
        self.check_integers(name, positions, axes=0)
        if positions.shape[-1:] != (length,) or not _broadcasts(positions.shape, (*batch, length)):
            raise ValueError(
                f"{self} {name} must be ({letter},) or (..., {letter}) with {letter}={length}, "
                f"one for each of the tokens {(*batch, length)}, got shape {positions.shape}"
            )

    def check_integers(self, name: str, positions, axes: int = 1) -> None:
        """Refuse what is not an array of integers with enough axes."""
        kind = getattr(positions, "dtype", type(positions).__name__)
        if not isinstance(positions, np.ndarray) or not np.issubdtype(kind, np.integer):
            raise TypeError(f"{self} {name} must be a NumPy array of integers, got {kind}")
        if positions.ndim < axes:
            raise ValueError(f"{self} {name} must have an axis for the tokens, got the number {positions}")

    def prepared(self, prepare, positions, tokens: tuple[Array, Array], projected: tuple[Array, Array]):
        """What `prepare` makes of projected queries and keys, or these as they are if there is none."""
        if prepare is None and positions is None:
            return projected
        positions = self.positions(positions, *tokens)
        if prepare is None:
            return projected
        with unwarned():  # masked positions may hold anything
            made = prepare(*projected, positions)
        self.check_prepared(made, *projected)
        return made

    def check_prepared(self, made, queries: Array, keys: Array) -> None:
        """Refuse what a `prepare` function returned if it does not stand for the queries and keys it was given."""
        if not isinstance(made, tuple) or len(made) != 2:
            raise TypeError(f"{self} prepare must return a pair, queries and keys, got {_kind(made)}")
        for name, array, given in zip(("queries", "keys"), made, (queries, keys), strict=True):
            self.check_array(f"the {name} that prepare returned", array)
            expected, got = (f"shape {x.shape} and type {x.dtype}" for x in (given, array))
            if got != expected:
                error = TypeError if array.shape == given.shape else ValueError
                raise error(f"{self} prepare must return {name} of {expected}, as it was given, got {got}")

    def check_extra_keys(self, extra_keys, weights) -> None:
        """Refuse keys and values of a layer's own that do not fit its weights."""
        if not isinstance(extra_keys, tuple) or len(extra_keys) != 2:
            raise TypeError(f"{self} extra_keys must be a pair, keys and values, got {_kind(extra_keys)}")
        for name, array, letter in zip(("keys", "values"), extra_keys, ("d_k", "d_v"), strict=True):
            self.check_array(f"extra {name}", array)
            self.check_type(f"extra {name}", array, "weights", weights)
            width = getattr(weights, letter)
            expected = (weights.h_kv, *self.axes(width, array.shape[self.tokens]))
            if array.shape != expected:
                raise ValueError(
                    f"{self} extra {name} must be {self.shape(letter, 's', lead='h_kv, ')} "
                    f"with h_kv={weights.h_kv} and {letter}={width}, got {array.shape}"
                )
        if len({array.shape[self.tokens] for array in extra_keys}) > 1:
            raise ValueError(
                f"{self} extra keys and values must be as many, "
                f"got shapes {extra_keys[0].shape} and {extra_keys[1].shape}"
            )

    def check_bias(self, bias) -> None:
        """Refuse a bias that is not a floating array of two axes, and doubt one that looks like a mask."""
        kind = getattr(bias, "dtype", type(bias).__name__)
        if not isinstance(bias, np.ndarray) or not np.issubdtype(kind, np.floating):
            raise TypeError(
                f"{self} bias must be a floating array that is added to the scores, got {kind}. "
                "A boolean mask is passed as visible."
            )
        if bias.ndim < 2:
            raise ValueError(
                f"{self} bias must have at least two axes {self.shape('m', 'n')}, got shape {bias.shape}; "
                "with one axis it could mean keys or queries"
            )
        if np.isin(bias, (0, 1)).all() and bias.any():
            warnings.warn(
                "a bias of 0 and 1 is added to the scores and hides nothing; if it was meant as a mask, "
                "pass visible=bias.astype(bool)",
                stacklevel=3,
            )

    def check_addend(self, bias: Array, shape: tuple[int, ...]) -> None:
        """Refuse a bias that does not broadcast to the scores, or could do so in two ways."""
        self.check_broadcast("bias", bias, shape)
        self.check_one_reading("bias", bias, shape)

    def check_one_reading(self, name: str, array: Array, shape: tuple[int, ...]) -> None:
        """Refuse what broadcasts both as one array for each head and as one for each sequence."""
        *lead, rows, columns = array.shape
        if not lead or lead[-1] == 1 or array.ndim == len(shape):
            return
        if _broadcasts((*lead, 1, rows, columns), shape):
            sequences = ", ".join([":"] * len(lead) + ["None"])
            heads = ", ".join(["None"] * (len(shape) - array.ndim))
            raise ValueError(
                f"{self} {name} of shape {array.shape} fits the scores, "
                f"{self.shape('m', 'n', lead='..., ')} = {shape}, in two ways. "
                f"Write {name}[{sequences}] for one of each sequence, {name}[{heads}] for one of each head"
            )

    def check_broadcast(self, name: str, array: Array, shape: tuple[int, ...]) -> None:
        """Refuse what does not broadcast to the scores, and notice a transpose or a missing axis for the heads."""
        if _broadcasts(array.shape, shape):
            return
        hint = ""
        if _broadcasts(array.mT.shape, shape):
            hint = f" Did you mean {name}.{_transpose(array)}?"
        elif array.ndim == len(shape) - 1 and _broadcasts((*array.shape[:-2], 1, *array.shape[-2:]), shape):
            hint = f" Did you mean {name}[..., None, :, :], with an axis for the heads?"
        raise ValueError(
            f"{self} {name} of shape {array.shape} does not broadcast to the scores, "
            f"{self.shape('m', 'n', lead='..., ')} = {shape}.{hint}"
        )

    def scores_shape(self, Q: Array, K: Array, *h: int) -> tuple[int, ...]:
        """The shape of the scores of queries and keys, of `h` heads if there are any."""
        return (*Q.shape[:-2], *h, *self.axes(K.shape[self.tokens], Q.shape[self.tokens]))

    def visible(self, visible, shape: tuple[int, ...], batch: tuple[int, ...] | None = None) -> Array | None:
        """Make the boolean array that says which scores count, or None where all do.

        Parameters
        ----------
        shape
            That of the scores.
        batch
            The first axes of the scores, on which a structured mask may depend: all but the last two if left
            out. Axes in between are heads, of which it says nothing.
        """
        if visible is None:
            return None
        structured = isinstance(visible, Mask)
        if isinstance(visible, Mask):
            batch = shape[:-2] if batch is None else batch
            make = visible.columns if self.weights is ColumnWeights else visible.rows
            visible = make(shape[self.tokens], shape[self.features], batch=batch)
            if np.ndim(visible) > 2:
                visible = np.expand_dims(visible, tuple(range(-3, len(batch) - len(shape) - 1, -1)))
        plain = isinstance(visible, np.ndarray) and not isinstance(visible, np.ma.MaskedArray)
        kind = visible.dtype if plain else type(visible).__name__
        if kind != np.bool_:
            raise TypeError(
                f"{self} visible must be a boolean array (True = may be attended), got {kind}. {_ADVICE}"
            )
        if visible.ndim < 2:
            raise ValueError(
                f"{self} visible must have at least two axes {self.shape('m', 'n')}, got shape {visible.shape}; "
                "with one axis it could mean keys or queries"
            )
        if visible.shape == shape:
            return visible
        self.check_broadcast("visible", visible, shape)
        if structured:
            return visible[(None,) * (len(shape) - visible.ndim)]  # all axes, so that it is read in one way
        self.check_one_reading("visible", visible, shape)
        return visible

    def tiles(self, visible, shape: tuple[int, ...]) -> Callable[[slice, slice], Array | None]:
        """Make a function that cuts out of a mask what some queries see of some keys; None where all is visible.

        A structured mask makes each tile when it is asked for, and never the whole array. Axes on which a tile does
        not depend have length one.

        Parameters
        ----------
        shape
            That of all scores.
        """
        if visible is None:
            return lambda queries, keys: None
        if not isinstance(visible, Mask):
            self.visible(visible, shape)

        def tile(queries: slice, keys: slice) -> Array | None:
            if not isinstance(visible, Mask):
                places = zip(self.axes(keys, queries), visible.shape[-2:], strict=True)
                return visible[(..., *(place if size > 1 else slice(None) for place, size in places))]
            part = visible.tile(queries, keys, shape[self.tokens], shape[self.features], shape[:-2])
            part = part.mT if self.weights is ColumnWeights else part
            sizes = self.axes(keys.stop - keys.start, queries.stop - queries.start)
            return self.visible(part[(None,) * (len(shape) - part.ndim)], (*shape[:-2], *sizes))

        return tile


COLUMNS = Convention("column", features=-2, tokens=-1, weights=ColumnWeights)
ROWS = Convention("row", features=-1, tokens=-2, weights=RowWeights)

_ADVICE = (
    "If 1 means attend, pass visible.astype(bool); if 1 means ignore, pass visible == 0. A float mask of 0 and "
    "-inf is read by masks.visible_from_bias; any other float array changes the scores and belongs into them: "
    "biased(score, bias)."
)


def convention_of(weights) -> Convention:
    """The convention that weights of either kind belong to."""
    for convention in (COLUMNS, ROWS):
        if isinstance(weights, convention.weights):
            return convention
    hint = " Did you mean its .weights?" if isinstance(getattr(weights, "weights", None), RowWeights) else ""
    raise TypeError(f"weights must be ColumnWeights or RowWeights, got {type(weights).__name__}.{hint}")


def check_positive(name: str, number) -> float:
    """A positive finite number as a Python float, which leaves the type of an array alone."""
    if not isinstance(number, int | float | np.integer | np.floating) or not 0 < number < np.inf:
        raise ValueError(f"{name} must be a positive number, got {number!r}")
    return float(number)


def check_scale(scale) -> float:
    """The factor between inner product and score as a Python float: any finite number."""
    if not isinstance(scale, int | float | np.integer | np.floating) or not np.isfinite(scale):
        raise ValueError(f"scale must be a finite number, got {scale!r}")
    return float(scale)


def check_prepare(prepare) -> None:
    """Refuse what cannot be called."""
    if prepare is not None and not callable(prepare):
        raise TypeError(
            "prepare must be a function (queries, keys, positions) -> (queries, keys), "
            f"got {type(prepare).__name__}"
        )


def _kind(thing) -> str:
    """What something is, for a message; of a tuple its length too."""
    return f"a tuple of {len(thing)}" if isinstance(thing, tuple) else type(thing).__name__


def _same(a, b) -> bool:
    """Whether two arrays are one and the same, or two views of the same memory laid out alike."""
    both = isinstance(a, np.ndarray) and isinstance(b, np.ndarray)
    return a is b or (both and a.__array_interface__ == b.__array_interface__)


def _transpose(array: Array) -> str:
    return "T" if array.ndim == 2 else "mT"


def _broadcasts(shape: tuple[int, ...], target: tuple[int, ...]) -> bool:
    try:
        return np.broadcast_shapes(shape, target) == target
    except ValueError:
        return False
