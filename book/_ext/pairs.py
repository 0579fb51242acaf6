"""Gives an equation one number in both conventions, and one place to which references to either of them lead.

The two stand in tabs, one of which is open. A reference to an anchor inside the other would open that one, against
the reader's choice. So the anchors of both stand in front of the tabs: there the side in view is seen.
"""

from docutils import nodes
from equations import pair

ANCHORED = "anchored"  # set on equations whose anchor stands elsewhere


def setup(app):
    app.connect("env-get-updated", number_pairs, priority=900)  # after Sphinx has numbered everything
    app.connect("builder-inited", leave_anchors_out)
    app.connect("doctree-resolved", set_anchors)
    return {"parallel_read_safe": True, "version": "1"}


def number_pairs(app, env):
    """Let both equations of a pair have one number, wherever it is printed."""
    for figures in env.toc_fignumbers.values():
        if "displaymath" in figures:
            figures["displaymath"] = renumber(figures["displaymath"])
    return []


def renumber(numbers: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    """Count again without the second of each pair, which gets the number of the first.

    Examples
    --------
    >>> renumber({"equation-eq-a": (1, 1), "equation-eq-a-row": (1, 2), "equation-eq-b": (1, 3)})
    {'equation-eq-a': (1, 1), 'equation-eq-a-row': (1, 1), 'equation-eq-b': (1, 2)}
    """
    counted: dict[tuple[int, ...], list[str]] = {}
    found = {}
    for anchor, (*section, _) in numbers.items():
        names = counted.setdefault(tuple(section), [])
        name = pair(anchor)
        if name not in names:
            names.append(name)
        found[anchor] = (*section, names.index(name) + 1)
    return found


def set_anchors(app, doctree, docname):
    """Put the anchors of all equations that stand in tabs in front of these."""
    for tabs in [box for box in doctree.findall(nodes.container) if "sd-tab-set" in box["classes"]]:
        anchors = []
        for block in tabs.findall(nodes.math_block):
            if block["ids"]:
                block[ANCHORED] = True
                anchors += [nodes.inline("", "", ids=[name], classes=["equation-anchor"]) for name in block["ids"]]
        if anchors:
            tabs.parent.insert(tabs.parent.index(tabs), nodes.container("", *anchors, is_div=True))


def leave_anchors_out(app):
    """Write no anchor beside an equation that has one in front of its tabs."""
    renderers = app.registry.html_block_math_renderers
    for name, (visit, depart) in list(renderers.items()):
        renderers[name] = (_without_anchor(visit), depart)


def _without_anchor(visit):
    def visit_without_anchor(translator, node):
        start = len(translator.body)
        try:
            visit(translator, node)
        finally:  # the visitor ends by raising SkipNode
            if node.get(ANCHORED):
                for name in node["ids"]:
                    translator.body[start] = translator.body[start].replace(f' id="{name}"', "")

    return visit_without_anchor
