"""The faults of the field guide: what people saw, the smallest input, both numbers, the rule, the test."""

from itertools import chain

from . import heads, masks, numbers, process, scores, stored
from .case import KINDS, Case, Numbers, imitated, sines, written

__all__ = ["CASES", "KINDS", "Case", "Numbers", "imitated", "link", "listing", "sines", "written"]

ROOMS = (masks, scores, heads, stored, numbers, process)
CASES: tuple[Case, ...] = tuple(chain.from_iterable(room.CASES for room in ROOMS))


def link(thread: str) -> str:
    """A thread as a link.

    Examples
    --------
    >>> link("pytorch/pytorch#41508")
    '[pytorch issue 41508](https://github.com/pytorch/pytorch/issues/41508)'
    >>> link("onnx/onnx!7274")
    '[onnx PR 7274](https://github.com/onnx/onnx/pull/7274)'
    """
    if thread.startswith("https:"):
        return f"[{thread.split('/')[2]}]({thread})"
    name, mark, number = thread.partition("#") if "#" in thread else thread.partition("!")
    kind, word = ("issues", "issue") if mark == "#" else ("pull", "PR")
    return f"[{name.split('/')[1]} {word} {number}](https://github.com/{name}/{kind}/{number})"


def listing(kind: str) -> str:
    """All faults of a kind, as Markdown.

    Examples
    --------
    >>> print(listing("scores").split("\\n\\n")[0])
    **It trains, but worse than it should; nothing looks wrong.** (A13)
    """
    return "\n\n".join(described(case) for case in CASES if case.kind == kind)


def described(case: Case) -> str:
    """One fault, as Markdown."""
    given, wrong, right = case.numbers()
    named = f"`check` calls it `{case.check}`" if case.check else "not seen by `check`"
    lines = [
        f"**{case.symptom}** ({case.id})",
        f"- *Input:* {given}.",
        f"- *Wrong:* {written(wrong)}. *Right:* {written(right)}.",
        f"- *Why:* {case.why}",
        f"- *Rule:* {case.rule}",
        f"- *Found by:* {named}; test `{case.test}`.",
    ]
    if case.threads:
        lines.append(f"- *Met in:* {', '.join(map(link, case.threads))}.")
    return "\n".join([lines[0], "", *lines[1:]])
