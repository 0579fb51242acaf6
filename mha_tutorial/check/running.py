"""`check`: every property of the table, on one function."""

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy import ndarray as Array

from .adapters import adapter_of
from .guessing import readings
from .imitations import explain
from .problems import Problem, Sizes, triangle
from .properties import PROPERTIES, Evidence, Options, Property, close
from .properties.agreement import grouped
from .properties.common import masked
from .properties.masks import own_masks
from .report import Finding, Report, found_of
from .steps import Setting
from .subject import Subject, UntestableError, as_rows, is_module, one_thread, redrawn, weights_of, width_of

POLARITIES = ("true-means-attend", "true-means-ignore", "additive")
INVERSE = {"fused-head-by-head": "fused-in-blocks", "fused-in-blocks": "fused-head-by-head"}


def check(
    fn: Callable[..., Any],
    convention: str = "row",
    visible: str = "true-means-attend",
    *,
    causal: bool | str = False,
    scale: float | None = None,
    prepare: Callable[..., Any] | None = None,
    weights: Any = None,
    d_model: int | None = None,
    step: Callable[..., Any] | None = None,
    with_weights: Callable[..., Any] | None = None,
    compiled: Callable[..., Any] | None = None,
    against: Any = None,
    library: str | None = None,
    redraw: bool = True,
    **sizes: int,
) -> Report:
    """Test an attention function or a layer for what has to hold, and name the likely faults of what does not.

    Nothing has to be known of the function but how to call it: ``fn(q, k, v, visible=None)`` of heads
    ``(b, h, n, d)``, or ``fn(x, visible=None)`` and ``fn(q, k, v, visible=None)`` of tokens ``(b, n, d_model)`` if
    it is a layer. Whether it takes arrays or tensors is found out by trying; for another signature pass a lambda,
    or one of `mha_tutorial.check.adapters`.

    Parameters
    ----------
    fn
        The function, or the module. Of a module a copy is tested, whose parameters are drawn anew: fresh biases
        are zero and hide faults.
    convention
        ``"row"`` or ``"column"``: what a token is.
    visible
        What its mask means: ``"true-means-attend"``, ``"true-means-ignore"``, or ``"additive"``, numbers of which
        minus infinity hides.
    causal
        Whether it hides the future by itself: True, or with fewer queries than keys ``"top-left"``.
    scale
        Its factor between inner product and score, ``1/sqrt(d_k)`` if left out.
    prepare
        What it does to queries and keys before they meet, as `mha_tutorial.positions.row.Rotary`.
    weights
        The matrices of a layer, `RowWeights` or `ColumnWeights`, or a function that takes them from a module.
        Those of a module in a layout of `mha_tutorial.layouts` are found by their names, and those of one with
        other names by trying, where one way to read them gives its outputs, or a single fault does. Without them a
        layer is tested for what holds of any matrices.
    d_model
        The width of a layer's tokens, if it does not tell.
    step
        ``step(x, cache) -> (output, cache)``, or of ``q, k, v, cache``: one token at a time, the first with None.
    with_weights
        The function where it returns the output and the weights.
    compiled
        The function compiled: it has to agree.
    against
        Another layer with the same tokens, such as the one that a checkpoint came from. Nothing is drawn anew.
    library
        ``"numpy"`` or ``"torch"``, where both work.
    redraw
        Whether parameters of a module are drawn anew.
    **sizes
        Other sizes than 2 sequences of 5 queries and 7 keys, in 3 heads of 11 and 13 features: ``b``, ``n``, ``m``,
        ``h``, ``d_k``, ``d_v``.

    Returns
    -------
    Report
        ``report.failures``, a list that is empty where all holds; ``report.remarks``, what well-known libraries do
        too; ``report.faults``, names of what is likely; ``str(report)``, all of it as text.

    Raises
    ------
    ValueError
        If an argument is none of those it may be, or the width of a layer is not known.
    TypeError
        If no way was found to call the function.

    Examples
    --------
    >>> def attention(q, k, v, visible=None):
    ...     scores = q @ k.mT  # the division by the root is forgotten
    ...     if visible is not None:
    ...         scores = np.where(visible, scores, -np.inf)
    ...     weights = np.exp(scores - scores.max(-1, keepdims=True))
    ...     return weights / weights.sum(-1, keepdims=True) @ v
    >>> report = check(attention)
    >>> report.faults[0], report.failures[0].name
    ('scale-missing', 'the factor of the scores is 1/sqrt(d_k)')
    """
    _check_words(convention, visible, causal)
    align = causal if isinstance(causal, str) else "bottom-right" if causal else None
    common: dict[str, Any] = {"column": convention == "column", "visible": visible, "library": library}
    kept = against is not None or not redraw
    function, setting, layer, width = _understood(fn, Setting(None, prepare, align, scale), weights, d_model, kept)
    chosen = Sizes(**sizes)
    chosen = chosen._replace(d_k=width, d_v=width) if width else chosen
    subject = Subject(function, setting, chosen, layer=layer, **common)
    other = None
    if against is not None:
        function, setting, *_ = _understood(against, setting._replace(weights=None), None, width, True)
        other = Subject(function, setting, subject.sizes, layer=layer, column=common["column"], visible=visible)
    with one_thread():
        subject, how = (subject, "") if subject.known or other is not None else _recognised(subject)
        return _tested(subject, Options(step, compiled, with_weights, other))._replace(reading=how)


def _check_words(convention: str, visible: str, causal: bool | str) -> None:
    for name, value, choices in (
        ("convention", convention, ("row", "column")),
        ("visible", visible, POLARITIES),
        ("causal", causal, (True, False, "bottom-right", "top-left")),
    ):
        if value not in choices:
            raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")


def _understood(
    fn: Any, setting: Setting, weights: Any, d_model: int | None, kept: bool
) -> tuple[Any, Setting, bool, int | None]:
    """The function to be called, what is known of it, whether it is a layer, and how wide its tokens are."""
    fn = adapter_of(fn)
    if is_module(fn):
        layer = any(True for _ in fn.parameters())
        given = weights is not None and not callable(weights)
        fn = redrawn(fn, fresh=not kept and not given) if layer else fn.eval()
        found = weights if given else _taken(weights or weights_of, fn)
    else:
        found = getattr(fn, "weights", None) if weights is None else weights
        layer = found is not None or d_model is not None
    if found is not None:
        found = as_rows(found)
        setting = setting._replace(weights=found)
    width = found.widths[0] if found is not None else d_model or width_of(fn) if layer else None
    if layer and width is None:
        raise ValueError("the width of the layer's tokens is not known: pass d_model=")
    return fn, setting, layer, width


def _taken(weights: Callable[..., Any], module: Any) -> Any:
    try:
        return weights(module)
    except Exception as error:  # of the caller's own function
        raise ValueError(f"weights= could not take the matrices: {type(error).__name__}: {error}") from error


def _recognised(subject: Subject) -> tuple[Subject, str]:
    """The subject with the matrices of its module, and how these were read, if one reading explains its outputs.

    One under which all is right comes first, in whatever order queries, keys and values were made; then one under
    which a single fault gives every number.
    """
    if not is_module(subject.function):
        return subject, ""
    found = [(one.how, subject.knowing(one.weights), one.usual) for one in readings(subject.function)]
    problem = subject.problem()
    output = _output(subject, problem)
    for how, known, _ in found:
        if output is not None and close(known.right(problem), output):
            return known, how
    for how, known, usual in found:
        if usual and _explained(known, Options()):
            return known, how
    return subject, ""


def _tested(subject: Subject, options: Options) -> Report:
    held: list[str] = []
    untested: dict[str, str] = {}
    broken: list[tuple[Property, Evidence]] = []
    for one in PROPERTIES:
        evidence = _asked(one, subject, subject.sizes, options)
        if isinstance(evidence, str):
            untested[one.name] = evidence
        elif evidence is None:
            held.append(one.name)
        else:
            broken.append((one, evidence))
    explained = _explained(subject, options) if any(not one.remark for one, _ in broken) else []
    failures: list[Finding] = []
    remarks = _refusals(subject)
    for one, evidence in broken:
        faults = dict.fromkeys([*([] if one.remark else explained), *evidence.faults, *one.faults])
        finding = found_of(one.name, _shrunk(one, subject, options, evidence), tuple(faults))
        (remarks if one.remark else failures).append(finding)
    return Report(failures, remarks, held, untested, explained)


def _asked(one: Property, subject: Subject, sizes: Sizes, options: Options) -> Evidence | str | None:
    """What contradicts a property, why it could not be asked, or None if it holds."""
    try:
        return one.test(subject, sizes, options)
    except UntestableError as reason:
        return str(reason)
    except Exception as error:  # whatever the function under test raises
        return f"{type(error).__name__}: {' '.join(str(error).split())[:120]}"


def _shrunk(one: Property, subject: Subject, options: Options, evidence: Evidence) -> Evidence:
    """The evidence of smaller sizes, as long as there is any: one axis after the other."""
    sizes = subject.sizes
    smaller: tuple[str, ...] = ("b", "n", "m") if subject.layer else ("b", "h", "d_v", "d_k", "n", "m")
    tied = {"m": "n"} if subject.sizes.n == subject.sizes.m else {}
    tied |= {"d_v": "d_k"} if subject.sizes.d_v == subject.sizes.d_k else {}
    for axis in smaller:
        for length in (1, 2, 3):
            if axis in tied or length >= getattr(sizes, axis):
                break
            trial = sizes._replace(**{axis: length})
            trial = trial._replace(**{name: getattr(trial, to) for name, to in tied.items()})
            found = _asked(one, subject, trial, options)
            if isinstance(found, Evidence) and found.found.size:
                sizes, evidence = trial, found
                break
    return evidence


def _refusals(subject: Subject) -> list[Finding]:
    """What the function refuses and need not: sizes that differ."""
    problem = subject.problem()
    sentences = {"values-as-wide-as-keys": "values may be wider than keys", "square-only": "keys may be more"}
    return [Finding(sentences[name], problem, (), np.nan, 0.0, "it raises", (name,)) for name in subject.refused]


def _explained(subject: Subject, options: Options) -> list[str]:
    """The faults that give all that the function gives for some problems."""
    problems = _problems(subject)
    other = options.against
    if other is not None:
        found = [_output(subject, problem) for problem in problems]
        if other.known:
            return explain(problems, other.setting, found, close)
        found = [_output(other, problem) for problem in problems]
        names = explain(problems, subject.setting, found, close) if subject.known else []
        return [INVERSE.get(name, name) for name in names]
    if not subject.known:
        return []
    names = explain(problems, subject.setting, [_output(subject, problem) for problem in problems], close)
    unlikely = "mask" if subject.call.mask is None else "causal"  # where two faults give the same
    return sorted(names, key=lambda name: name.startswith(unlikely))


def _problems(subject: Subject) -> list[Problem]:
    """Inputs on which faults differ: plain, masked, in groups, causal."""
    makers: list[Callable[[], Problem]] = [
        subject.problem,
        lambda: masked(subject, subject.sizes),
        lambda: own_masks(subject, subject.sizes) if subject.call.mask is not None else subject.problem(seed=9),
        lambda: _triangular(subject, subject.sizes.n),
        lambda: _triangular(subject, subject.sizes.m),
    ]
    if not subject.layer:
        makers.append(lambda: grouped(subject, subject.sizes))
    problems = []
    for make in makers:
        try:
            problems.append(make())
        except UntestableError:
            continue
    return problems


def _triangular(subject: Subject, m: int) -> Problem:
    problem = subject.problem(m=m)
    if subject.setting.causal or subject.call.mask is None:
        return problem
    return problem.hiding(triangle(problem.n, problem.m))


def _output(subject: Subject, problem: Problem) -> Array | None:
    """What the function gives, or None if it raises."""
    try:
        return subject(problem)
    except Exception:
        return None
