"""For test suites: attention that has to hold what attention has to hold."""

from collections.abc import Callable
from typing import Any

from .check import check

__all__ = ["assert_attention"]


def assert_attention(fn: Callable[..., Any], *arguments: Any, allow: tuple[str, ...] = (), **options: Any) -> None:
    """Check an attention function or a layer, and fail with the report unless everything holds.

    Remarks alone do not fail.

    Parameters
    ----------
    fn
        The function or the layer.
    *arguments, **options
        As of `mha_tutorial.check.check`.
    allow
        Properties that may fail, by their names.

    Raises
    ------
    AssertionError
        If a property fails. The message is the report.

    Examples
    --------
    >>> from mha_tutorial.reference import row
    >>> assert_attention(lambda q, k, v, visible=None: row.attention(q, k, v, visible=visible))
    """
    report = check(fn, *arguments, **options)
    if [finding for finding in report.failures if finding.name not in allow]:
        raise AssertionError(str(report))
