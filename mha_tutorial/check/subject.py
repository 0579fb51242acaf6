"""The function under test: how it is called, found out by trying, and what is known of it."""

import copy
import inspect
import itertools
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from numpy import ndarray as Array

from ..weights import ColumnWeights, RowWeights
from .adapters import as_array
from .problems import Problem, Sizes, draw
from .steps import Setting, run

MASKS = ("visible", "mask", "attn_mask", "attention_mask", "keep")
HEADS = ("h", "num_heads", "n_head", "n_heads", "num_attention_heads", "heads")
UNKNOWN = "the layer's matrices are not known: pass weights="
WIDTHS = ("d_model", "embed_dim", "hidden_size", "dim", "n_embd")


class Call(NamedTuple):
    """How the function takes its inputs.

    Parameters
    ----------
    library
        ``"numpy"`` or ``"torch"``.
    dtype
        The type of the numbers, as both libraries call it.
    one
        Whether it takes one array of tokens, not three.
    mask
        The keyword of its mask; an empty string if the mask has none; None if it takes no mask.
    """

    library: str
    dtype: str
    one: bool
    mask: str | None


class Subject:
    """An attention function, or a layer, called in one way whatever its own way is.

    Parameters
    ----------
    function
        What was given to `check`, or its copy with numbers of ordinary size.
    layer
        Whether it takes tokens, not the queries, keys and values of heads.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        setting: Setting,
        sizes: Sizes,
        *,
        layer: bool,
        column: bool = False,
        visible: str = "true-means-attend",
        library: str | None = None,
    ):
        self.function, self.setting, self.layer = function, setting, layer
        self.column, self.polarity = column, visible
        self.refused: list[str] = []
        self.call, self.sizes = self._found(sizes, library)

    # --- calling ---

    def __call__(self, problem: Problem, dtype: str | None = None) -> Array:
        """The output for a problem, with tokens in rows and in float64."""
        return self.rows(self.raw(problem, self.call if dtype is None else self.call._replace(dtype=dtype)))

    def raw(self, problem: Problem, call: Call | None = None) -> Any:
        """What the function itself returns, without the weights if it returns these too."""
        return self.attend(self.tokens(problem, call), problem.visible, call)

    def both(self, problem: Problem) -> tuple[Array, Array]:
        """The output and the weights of a function that returns both."""
        output, weights, *_ = self.run(self.tokens(problem), problem.visible)
        return self.rows(output), as_array(weights)

    def attend(self, tokens: list[Any], visible: Array | None, call: Call | None = None) -> Any:
        """Call the function with tokens that are laid out for it."""
        output = self.run(tokens, visible, call)
        return output[0] if isinstance(output, tuple | list) else output

    def run(self, tokens: list[Any], visible: Array | None, call: Call | None = None) -> Any:
        """Call the function; return all that it returns."""
        call = self.call if call is None else call
        masks, keywords = [], {}
        if visible is not None:
            masks = [self.mask(visible, call)]
            if call.mask:
                masks, keywords = [], {call.mask: masks[0]}
        with np.errstate(all="ignore"), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with no_gradients(call.library, any(getattr(x, "requires_grad", False) for x in tokens)):
                return self.function(*tokens, *masks, **keywords)

    def like(self, function: Callable[..., Any]) -> "Subject":
        """Another function that is called the same way, but for how it names its mask."""
        other = copy.copy(self)
        other.function = function
        other.call = self.call._replace(mask=signature(function)[1])
        return other

    def knowing(self, weights: RowWeights) -> "Subject":
        """The same function, of which the matrices are known."""
        other = copy.copy(self)
        other.setting = self.setting._replace(weights=weights)
        return other

    def tokens(self, problem: Problem, call: Call | None = None) -> list[Any]:
        """Queries, keys and values as the function takes them, or one array for all three."""
        call = self.call if call is None else call
        return [self.given(x, call) for x in ((problem.Q,) if call.one else problem[:3])]

    def given(self, tokens: Array, call: Call) -> Any:
        """Tokens in the function's own convention, library and type."""
        tokens = tokens.mT.copy() if self.column else tokens.copy()
        if call.library == "numpy":
            return tokens.astype(call.dtype)
        torch = sys.modules["torch"]
        return torch.from_numpy(tokens).to(getattr(torch, call.dtype))

    def mask(self, visible: Array, call: Call) -> Any:
        """The mask as the function reads it."""
        laid: Array = visible.mT.copy() if self.column else visible.copy()
        if self.polarity == "true-means-ignore":
            laid = ~laid
        elif self.polarity == "additive":
            laid = np.where(laid, 0.0, -np.inf)
        if call.library == "numpy":
            return laid if laid.dtype == bool else laid.astype(call.dtype)
        torch = sys.modules["torch"]
        mask = torch.from_numpy(laid)
        return mask if mask.dtype == torch.bool else mask.to(getattr(torch, call.dtype))

    def rows(self, output: Any) -> Array:
        """An output, or tokens, in rows."""
        array = as_array(output).astype(np.float64)
        return array.mT if self.column else array

    # --- what is known ---

    @property
    def known(self) -> bool:
        """Whether the right result can be computed: of heads always, of a layer if its matrices are known."""
        return not self.layer or self.setting.weights is not None

    def right(self, problem: Problem) -> Array:
        """The right result."""
        if not self.known:
            raise UntestableError(UNKNOWN)
        with np.errstate(all="ignore"):
            return run(problem, self.setting)

    def problem(self, sizes: Sizes | None = None, seed: int = 0, **changed: int) -> Problem:
        """Inputs of these sizes, or of the usual ones but for some."""
        sizes = (self.sizes if sizes is None else sizes)._replace(**changed)
        heads = () if self.layer else (sizes.h,)
        Q = draw((sizes.b, *heads, sizes.n, sizes.d_k), seed)
        if self.call.one:
            return Problem(Q, Q, Q)
        K = draw((sizes.b, *heads, sizes.m, self.width("K", sizes.d_k)), seed + 1)
        V = draw((sizes.b, *heads, sizes.m, self.width("V", sizes.d_v)), seed + 2)
        return Problem(Q, K, V)

    def width(self, name: str, usual: int) -> int:
        """How wide tokens are that the function reads as keys or values."""
        W = self.setting.weights
        return usual if W is None else W.widths["QKV".index(name)]

    # --- finding out ---

    def _found(self, sizes: Sizes, library: str | None) -> tuple[Call, Sizes]:
        """The first way to call the function that gives an output, the richest sizes first."""
        errors = []
        for call in self._calls(library):
            for relaxed, refused in self._relaxations(sizes, call):
                self.call = call
                try:
                    self(self.problem(relaxed))
                except Exception as error:
                    errors.append(f"{call.library} {call.dtype}: {type(error).__name__}: {error}")
                else:
                    self.refused = refused
                    return call, relaxed
        raise TypeError(
            "no way was found to call the function as fn(q, k, v, visible=None) or fn(x, visible=None), with "
            "arrays or with tensors; wrap it in a lambda that takes these, and if it takes tokens, not heads, pass "
            "d_model= or weights=. What it said:\n  "
            + "\n  ".join(dict.fromkeys(" ".join(error.split())[:200] for error in errors))
        )

    def _calls(self, library: str | None) -> Iterator[Call]:
        one, mask = signature(self.function)
        libraries = [library] if library else (["torch"] if is_module(self.function) else ["numpy", "torch"])
        for name in libraries:
            if name == "torch" and "torch" not in sys.modules:
                continue
            for dtype in ("float64", "float32"):
                yield Call(name, dtype, one, mask)

    def _relaxations(self, sizes: Sizes, call: Call) -> Iterator[tuple[Sizes, list[str]]]:
        """The usual sizes, then such as a narrower function takes; and the faults that shows."""
        if call.one:
            yield sizes._replace(m=sizes.n), []
            return
        widths = [(sizes.d_v, [])] if self.layer else [(sizes.d_v, []), (sizes.d_k, ["values-as-wide-as-keys"])]
        lengths: list[tuple[int, list[str]]] = [(sizes.m, []), (sizes.n, ["square-only"])]
        for (m, short), (d_v, narrow) in itertools.product(lengths, widths):
            yield sizes._replace(m=m, d_v=d_v), short + narrow


class UntestableError(Exception):
    """A property that cannot be asked of this function."""


def no_gradients(library: str, wanted: bool) -> Any:
    """Let torch record nothing unless a gradient is asked for."""
    torch = sys.modules.get("torch")
    return np.errstate() if library == "numpy" or wanted or torch is None else torch.no_grad()


@contextmanager
def one_thread() -> Iterator[None]:
    """Small tensors are computed sooner by one thread than by several that wait for each other."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def signature(function: Callable[..., Any]) -> tuple[bool, str | None]:
    """Whether a function takes one array of tokens, and what it calls its mask.

    Examples
    --------
    >>> signature(lambda q, k, v, visible=None: v)
    (False, 'visible')
    >>> signature(lambda x: x)
    (True, None)
    """
    inner: Any = function.forward if is_module(function) else function  # type: ignore[attr-defined]
    try:
        parameters = list(inspect.signature(inner).parameters.values())
    except ValueError:  # a function in C has no signature that Python can see
        return False, ""
    masks = [p.name for p in parameters if p.name in MASKS]
    places = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    count = next((i for i, p in enumerate(places) if p.name in MASKS), len(places))
    one = count < 3 and not any(p.kind == p.VAR_POSITIONAL for p in parameters)
    if masks:
        return one, masks[0]
    positional = len(places) > 3 and places[3].name not in ("scale", "dropout", "dropout_p", "cache")
    return one, "" if positional else None


def is_module(thing: Any) -> bool:
    """Whether something is a module of torch, without importing torch to find out."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(thing, torch.nn.Module)


def redrawn(module: Any, fresh: bool = True) -> Any:
    """A copy in evaluation and float64, if `fresh` with numbers of ordinary size for every parameter.

    Fresh biases are zero and fresh matrices small, which hides most faults.
    """
    torch = sys.modules["torch"]
    module = copy.deepcopy(module).double().eval()
    if not fresh:
        return module
    generator = torch.Generator().manual_seed(2017)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(generator=generator)
            if parameter.ndim > 1:
                parameter /= parameter.shape[-1] ** 0.5
    return module


def weights_of(module: Any) -> RowWeights | None:
    """The matrices of a module that is laid out as one of `mha_tutorial.layouts`, or None."""
    from .. import layouts

    everything = sum(parameter.numel() for parameter in module.parameters())
    named = number(module, HEADS) or number(getattr(module, "layer", None), HEADS)
    found = []
    for match in layouts.identify(module):
        h = match.h or named
        if match.parameters != everything or h is None:
            return None  # a layer that does something else as well, or whose heads nobody counts
        try:
            found.append(as_rows(layouts.load(module, match.layout, h, prefix=match.prefix)))
        except (ValueError, TypeError):  # what it calls heads are not these
            return None
    return found[0] if found and all(same_weights(found[0], other) for other in found) else None


def same_weights(one: RowWeights, other: RowWeights) -> bool:
    """Whether two records hold the same numbers: names that fit two layouts may be read in one way."""
    arrays, others = one.arrays(), other.arrays()
    return arrays.keys() == others.keys() and all(np.array_equal(arrays[name], others[name]) for name in arrays)


def as_rows(weights: Any) -> RowWeights:
    """Weights of either convention as rows, in float64."""
    rows = weights.T if isinstance(weights, ColumnWeights) else weights
    return RowWeights(**{name: array.astype(np.float64) for name, array in rows.arrays().items()})


def width_of(module: Any) -> int | None:
    """The width of a module's tokens: what it says, or what its first matrix reads."""
    matrices = [p.shape[-1] for p in module.parameters() if p.ndim == 2] if is_module(module) else []
    return number(module, WIDTHS) or (matrices[0] if matrices else None)


def number(thing: Any, names: tuple[str, ...]) -> int | None:
    """The first whole number among some attributes, of a thing or of its configuration."""
    for owner, name in itertools.product((thing, getattr(thing, "config", None)), names):
        value = getattr(owner, name, None)
        if isinstance(value, int):
            return value
    return None
