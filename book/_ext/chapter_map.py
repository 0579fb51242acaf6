"""Draws the map of the book: on the first page what chapters answer, need and take, in the side bar where one is.

What a chapter needs and how long it takes is read off its own first lines. The rest stands in the table of the
first page, which is the map wherever no site is built.
"""

import json
import re
from pathlib import Path, PurePosixPath
from posixpath import normpath
from typing import NamedTuple

import yaml
from docutils import nodes

SECTION = "map-of-the-chapters"
NEEDS = re.compile(r"\*\*Needs:\*\*(?P<needs>.*?)\*\*Takes:\*\* about (?P<minutes>\d+) minutes", re.DOTALL)
LINK = re.compile(r"\]\((?P<target>[^)#]+)")
ROUTES = {"new": "new to attention", "shapes": "shapes, masks, transposes", "code": "weights and fast code"}
CHOICE = '<label><input type="radio" name="map-route" value="{value}"{checked}> {text}</label>'


class Chapter(NamedTuple):
    """What a chapter says of itself."""

    needs: tuple[str, ...]
    minutes: int


def setup(app):
    app.connect("builder-inited", read_chapters)
    app.connect("doctree-resolved", draw_map)
    app.connect("html-page-context", place_reader)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "version": "1"}


def read_chapters(app):
    """Read the first lines of every chapter that has a number."""
    root = Path(app.srcdir)
    toc = yaml.safe_load((root / "_toc.yml").read_text(encoding="utf-8"))
    app.env.map_parts = {
        part["caption"]: {entry["file"]: read(root, entry["file"]) for entry in part["chapters"]}
        for part in toc["parts"]
        if part.get("numbered")
    }


def read(root: Path, name: str) -> Chapter:
    """What a chapter needs and takes.

    Raises
    ------
    ValueError
        If it does not say so in its first cell.
    """
    notebook = json.loads((root / f"{name}.ipynb").read_text(encoding="utf-8"))
    found = NEEDS.search("".join(notebook["cells"][0]["source"]))
    if not found:
        raise ValueError(
            f"{name} must say in its first cell what it needs and takes: **Needs:** … **Takes:** about 30 minutes"
        )
    folder = PurePosixPath(name).parent
    targets = (
        normpath(str(folder / link["target"].removesuffix(".ipynb"))) for link in LINK.finditer(found["needs"])
    )
    return Chapter(tuple(dict.fromkeys(targets)), int(found["minutes"]))


def draw_map(app, doctree, docname):
    """Put the map in the place of the table on the first page."""
    if docname != app.config.root_doc:
        return
    (section,) = doctree.findall(lambda node: isinstance(node, nodes.section) and SECTION in node["ids"])
    (table,) = section.findall(nodes.table)
    rows = [row.children for body in table.findall(nodes.tbody) for row in body.findall(nodes.row)]
    part, lists = "", {}
    for cells in rows:
        part = cells[0].astext().strip() or part
        lists.setdefault(part, []).append(_chapter(app, *cells[1:]))
    drawn = nodes.container(classes=["chapter-map"])
    drawn += nodes.raw("", _choice(), format="html")
    for name, chapters in lists.items():
        drawn += nodes.paragraph("", name, classes=["map-part"])
        drawn += nodes.bullet_list("", *chapters)
    outermost = table.parent if isinstance(table.parent, nodes.container) else table
    outermost.replace_self(drawn)


def _choice() -> str:
    """The buttons that mark the chapters of a route; the style sheet does the rest."""
    options = {"all": "none", **ROUTES}
    labels = [CHOICE.format(value=v, text=text, checked=" checked" * (v == "all")) for v, text in options.items()]
    return f'<fieldset class="map-routes"><legend>Mark a route</legend>{"".join(labels)}</fieldset>'


def _chapter(app, links, question, routes) -> nodes.list_item:
    """An entry of the map: number and title, question, what it needs and how long it takes."""
    first = next(iter(links.findall(nodes.reference)))
    name = next((doc for doc in _numbers(app) if f"{doc}.html".endswith(first["refuri"].split("#")[0])), None)
    item = nodes.list_item(classes=[f"route-{route}" for route in routes.astext().replace(",", " ").split()])
    head = nodes.paragraph()
    if name:
        head += nodes.inline("", f"{_numbers(app)[name]}. ", classes=["map-number"])
    head += [child.deepcopy() for paragraph in links.children for child in paragraph.children]
    item += head
    if question.astext().strip():
        item += nodes.paragraph("", "", *(child.deepcopy() for child in question[0].children))
    if name:
        item += nodes.paragraph("", _facts(app, name), classes=["map-facts"])
    return item


def _facts(app, name: str) -> str:
    """How long a chapter takes and which it needs, by their numbers."""
    chapter = next(chapters[name] for chapters in app.env.map_parts.values() if name in chapters)
    numbers = sorted(_numbers(app)[need] for need in chapter.needs if need in _numbers(app))
    return f"{chapter.minutes} minutes" + (f", needs {', '.join(map(str, numbers))}" if numbers else "")


def _numbers(app) -> dict[str, int]:
    """The number of each chapter of the map."""
    known = app.env.toc_secnumbers
    return {name: known[name][""][0] for chapters in app.env.map_parts.values() for name in chapters}


def place_reader(app, pagename, templatename, context, doctree):
    """What the side bar says: all chapters, which of them this one is, and which it needs."""
    numbers, needs, address = _numbers(app), (), context["pathto"]
    here = next((chapters[pagename] for chapters in app.env.map_parts.values() if pagename in chapters), None)
    if here:
        needs = here.needs
        facts = _facts(app, pagename).replace("needs", "needs (framed)")
        context["map_facts"] = f"Chapter {numbers[pagename]}: {facts}"
    context["map_parts"] = [
        [
            {
                "number": numbers[name],
                "title": app.env.titles[name].astext(),
                "address": "#" if name == pagename else address(name),
                "here": name == pagename,
                "needed": name in needs,
            }
            for name in chapters
        ]
        for chapters in app.env.map_parts.values()
    ]
