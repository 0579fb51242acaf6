"""Fills the equation ledger when the site is built, and links every labelled equation to its code and its test."""

from collections import defaultdict

from docutils import nodes
from equations import equations, functions, pair, tests, title, words
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
    of_pair = defaultdict(list)
    for equation in equations():
        of_pair[pair(equation.label)].append(equation)
    chapter = None
    for both in of_pair.values():
        if both[0].chapter != chapter:
            chapter = both[0].chapter
            yield f"## {title(chapter)}\n"
        yield from _entry(sorted(both, key=lambda equation: equation.label == pair(equation.label)))


def _entry(both):
    """One equation, in the rows' form first where it has two: its functions, and its tests."""
    for equation in both:
        yield f"(ledger-{equation.label})="
    yield f"### {words(both[0].label)}\n"
    if len(both) > 1:
        yield "::::{tab-set}\n:sync-group: convention\n"
        for side, equation in zip(("row", "column"), both, strict=True):
            yield f":::{{tab-item}} {side.capitalize()}s\n:sync: {side}\n\n$$\n{equation.latex}\n$$\n:::\n"
        yield "::::\n"
    else:
        yield f"$$\n{both[0].latex}\n$$\n"
    names = ", ".join(f"`{equation.label}`" for equation in both)
    labels = f"{{eq}}`{both[0].label}` ({names})"
    by_label = functions()
    named = dict.fromkeys(name for equation in both for name in by_label.get(equation.label, []))
    computed = ", ".join(f"{{py:obj}}`{_short(name)} <{name}>`" for name in named)
    yield f"Equation {labels} in {{doc}}`/{both[0].chapter}`. Computed by {computed}.\n"
    bound = tests()
    checks = {(test.file, test.name): test for equation in both for test in bound.get(equation.label, [])}
    for test in checks.values():
        yield f"::::{{dropdown}} Tested by `{test.name}` in `{test.file}`"
        yield f":::{{code-block}} text\n{test.source}\n:::\n::::\n"


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
