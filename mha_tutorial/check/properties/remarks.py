"""What well-known libraries do too: NaN behind a mask, and queries that see nothing."""

import numpy as np

from ..problems import Problem, Sizes
from ..subject import Subject, UntestableError
from .common import Evidence, Options, compare, masked, needs_mask, unchanged
from .masks import _others, _with_hidden


def _blind(subject: Subject, sizes: Sizes) -> tuple[Problem, Problem]:
    """A problem whose first query sees nothing, and the same where it sees everything."""
    needs_mask(subject)
    problem = subject.problem(sizes)
    visible = np.ones((problem.n, problem.m), bool)
    seen = problem.hiding(visible)
    visible = visible.copy()
    visible[0] = False
    return problem.hiding(visible), seen


def blind_query_leaves_others_alone(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    blind, seen = _blind(subject, sizes)
    if seen.n < 2:
        return None
    return unchanged(subject, seen, blind, "the first query sees nothing: the others", slice(1, None), slice(None))


def blind_query_gives_zero(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    blind, _ = _blind(subject, sizes)
    found = subject(blind)[..., 0, :]
    if subject.known:
        right = subject.right(blind)[..., 0, :]
    else:
        if np.isfinite(found).all():
            return None
        right = np.zeros_like(found)
    likely = "blind-nan" if np.isnan(found).any() else "blind-average"
    return compare(blind, found, right, "a query that sees nothing", likely)


def hidden_nan(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    return _garbage(subject, sizes, np.nan)


def hidden_inf(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    return _garbage(subject, sizes, np.inf)


def hidden_huge(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    return _garbage(subject, sizes, 0.9 * float(np.finfo(subject.call.dtype).max))


def _garbage(subject: Subject, sizes: Sizes, value: float) -> Evidence | None:
    problem, other = _with_hidden(subject, sizes, lambda x: np.full_like(x, value))
    note = f"a hidden key and value of {value:.3g}"
    return unchanged(subject, problem, other, note, *_others(subject))


def integers_are_no_mask(subject: Subject, sizes: Sizes, options: Options) -> Evidence | None:
    problem = masked(subject, sizes)
    if subject.polarity == "additive":
        raise UntestableError("its masks are numbers")
    tokens = subject.tokens(problem)
    try:
        found = subject.rows(subject.attend(tokens, np.asarray(problem.visible).astype(np.int64)))
    except Exception:
        return None  # refused, as it should be
    return compare(problem, found, subject(problem), "a mask of integers, against the same of booleans")
