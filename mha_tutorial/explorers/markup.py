"""The light markup of questions and cards as HTML."""

import re

from .base import escape

RAISED = re.compile(r"(?<=[\w)])([_^])(\{[^}]*\}|[A-Za-z0-9]+)")
STRESSED = re.compile(r"\*([^*]+)\*")


def marked(text: str) -> str:
    """Make HTML of a text with `code`, *stress*, indices and exponents.

    Examples
    --------
    >>> marked("`x @ W` is *not* W_1^Q x, nor 2^{-8}")
    '<code>x @ W</code> is <em>not</em> W<sub>1</sub><sup>Q</sup> x, nor 2<sup>−8</sup>'
    """
    parts = text.split("`")
    return "".join(
        f"<code>{escape(part)}</code>" if i % 2 else STRESSED.sub(r"<em>\1</em>", _raised(escape(part)))
        for i, part in enumerate(parts)
    )


def _raised(text: str) -> str:
    return RAISED.sub(_raise, text)


def _raise(found: re.Match) -> str:
    name = "sub" if found[1] == "_" else "sup"
    return f"<{name}>{_raised(found[2].strip('{}').replace('-', '−'))}</{name}>"
