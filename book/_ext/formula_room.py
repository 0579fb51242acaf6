"""Keeps room for the formulas in lines of text until MathJax has drawn them: lines then break where they will.

The width is estimated from the source, in em, within a third of one on average; ``book.css`` uses it.
"""

import html
import re

INLINE = re.compile(r'<span class="math notranslate nohighlight">(\\\(.*?\\\))</span>', re.DOTALL)
WORDS = re.compile(r"\\(?:text|texttt|mathrm|mathbf|mathit|operatorname)\*?\{([^{}]*)\}")
FRACTION = re.compile(r"\\[td]?frac\s*(?:\{([^{}]*)\}\s*\{([^{}]*)\}|(\d)\s*(\d))")
SCRIPT = re.compile(r"[_^]\s*(?:\{((?:[^{}]|\{[^{}]*\})*)\}|(\\[a-zA-Z]+(?:\{[^{}]*\})?|[^{]))")
NO_INK = re.compile(
    r"\\(?:left|right|[bB]igg?[lr]?|mathbb|mathcal|hat|bar|tilde|overline|displaystyle|tfrac|frac|sqrt|[,;:! ])"
)
SIGN = re.compile(r"\\[a-zA-Z]+|\\.|[^{}\s&~]")
SIGNS_BETWEEN = r"=|<|>|\+|-|\\(?:le|ge|ne|leq|geq|neq|approx|in|to|mapsto|times|circ|odot|pm)"
NARROW = {*",.;:|()[]ijltf'!", r"\|"}
FUNCTION = r"\\(?:exp|log|ln|sin|cos|max|min|det|arg)"


def setup(app):
    app.connect("html-page-context", keep_room)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "version": "1"}


def keep_room(app, pagename, templatename, context, doctree):
    if context.get("body"):
        context["body"] = INLINE.sub(with_width, context["body"])


def with_width(formula) -> str:
    width = width_of(html.unescape(formula[1])[2:-2])
    return f'<span class="math notranslate nohighlight" style="--room: {width:.2f}em">{formula[1]}</span>'


def width_of(tex: str) -> float:
    """Roughly how wide MathJax draws this, in em."""
    tex = WORDS.sub(lambda words: "{" + "n" * len(words[1]) + "}", tex)
    tex = FRACTION.sub(lambda parts: "_{" + max((part or "" for part in parts.groups()), key=len) + "}", tex)
    width = 0.0
    while script := SCRIPT.search(tex):
        width += 0.72 * width_of(script[1] or script[2] or "")
        tex = tex[: script.start()] + tex[script.end() :]
    return width + sum(map(width_of_sign, SIGN.findall(NO_INK.sub("", tex))))


def width_of_sign(sign: str) -> float:
    if re.fullmatch(SIGNS_BETWEEN, sign):
        return 1.3
    if re.fullmatch(FUNCTION, sign):
        return 0.5 * (len(sign) - 1)
    if sign in NARROW:
        return 0.4
    if sign in {"m", "w", "M", "W", r"\sum", r"\ldots", r"\dots", r"\cdots", r"\infty"}:
        return 1.0
    return 0.75 if sign.isupper() or sign == r"\cdot" else 0.53
