"""Fills the equation ledger when the site is built, and links every labelled equation to its code and its test."""

from docutils import nodes
from equations import equations, functions, tests, title
from sphinx import addnodes

LEDGER = "book/reference/equations"
MARK = "<!-- the ledger is inserted here when the book is built -->"


def setup(app):
    app.connect("source-read", insert_ledger)
    app.connect("doctree-read", link_equations)
    return {"parallel_read_safe": True, "version": "1"}


def insert_ledger(app, docname, source):
    """Write one entry for each equation where the reference page has its mark."""
    if docname == LEDGER:
        source[0] = source[0].replace(MARK, "\n".join(_entries()))


def _entries():
    by_label, bound, chapter = functions(), tests(), None
    for equation in equations():
        if equation.chapter != chapter:
            chapter = equation.chapter
            yield f"## {title(chapter)}\n"
        yield f"(ledger-{equation.label})="
        yield f"### `{equation.label}`\n"
        yield f"$$\n{equation.latex}\n$$\n"
        computed = ", ".join(f"{{py:obj}}`{_short(name)} <{name}>`" for name in by_label.get(equation.label, []))
        yield f"Equation {{eq}}`{equation.label}` in {{doc}}`/{chapter}`. Computed by {computed}.\n"
        for test in bound.get(equation.label, []):
            yield f"::::{{dropdown}} Tested by `{test.name}` in `{test.file}`"
            yield f":::{{code-block}} python\n{test.source}\n:::\n::::\n"


def link_equations(app, doctree):
    """Set a small line below each labelled equation: the functions that compute it, and its tests."""
    if app.env.docname == LEDGER:
        return
    by_label = functions()
    for block in list(doctree.findall(nodes.math_block)):
        label = block.get("label")
        if label not in by_label:
            continue
        line = nodes.paragraph(classes=["equation-links"])
        for name in by_label[label]:
            line += _reference(app, "py", "obj", name, nodes.literal("", _short(name)))
            line += nodes.Text(" · ")
        line += _reference(app, "std", "ref", f"ledger-{label}", nodes.inline("", "test"))
        block.parent.insert(block.parent.index(block) + 1, line)


def _short(name):
    return ".".join(name.split(".")[-2:])


def _reference(app, domain, kind, target, text):
    return addnodes.pending_xref(
        "",
        text,
        refdomain=domain,
        reftype=kind,
        reftarget=target,
        refexplicit=True,
        refwarn=True,
        refdoc=app.env.docname,
    )
