"""Makes the built pages whole: sizes on images, roles that fit, an entrance with a title, facts for the footer.

What the theme and the extensions get wrong in the HTML is put right here, page by page, before it is written.
"""

import datetime
import os
import re
import shutil
import subprocess
from pathlib import Path

from sphinx.util.images import get_image_size

import mha_tutorial

ROOT = Path(__file__).parents[2]
EMPTY_HEADER = re.compile(r"<th\b([^>]*)>\s*(?:<p>\s*</p>)?\s*</th>")
PREPRINT = re.compile(r"arXiv preprint arXiv:(\d{4}\.\d{5})")
VIEWPORT = re.compile(r'<meta\b[^>]*name="viewport"[^>]*>\s*')
IMAGE = re.compile(r'<img\b[^>]*?\bsrc="(?P<address>[^"]+)"[^>]*>')
ENTRANCE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<meta http-equiv="refresh" content="0; url={target}">
<link rel="icon" href="_static/favicon.svg">
</head>
<body><main><h1>{title}</h1><p><a href="{target}">To the first page</a></p></main></body>
</html>
"""


def setup(app):
    app.connect("builder-inited", forget_listings)
    app.connect("html-page-context", add_facts)
    app.connect("html-page-context", repair_body)
    app.connect("html-page-context", defer_scripts, priority=900)  # when all have been added
    app.connect("html-collect-pages", copy_project_files)
    app.connect("build-finished", write_entrance)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "version": "1"}


def forget_listings(app):
    """Have the pages with the package's source made anew: they are kept else, whatever became of the template."""
    shutil.rmtree(Path(app.outdir) / "_modules", ignore_errors=True)


def add_facts(app, pagename, templatename, context, doctree):
    """What the footer says of the book and of this page."""
    day = last_changed()
    repository = os.environ.get("BOOK_REPOSITORY", "")
    branch = os.environ.get("BOOK_BRANCH", "main")
    source = context.get("sourcename")
    context |= {
        "book_version": mha_tutorial.__version__,
        "book_date": day and day.isoformat(),
        "book_date_in_words": day and f"{day.day} {day:%B %Y}",
        "notebook": bool(source) and source.endswith(".ipynb"),
        "repository": repository,
        "source_address": repository and source and f"{repository}/blob/{branch}/{source}",
        "issue_address": f"{repository}/issues/new?title=On%20{pagename}",
    }


def last_changed() -> datetime.date | None:
    """The day of ``SOURCE_DATE_EPOCH`` or of the last commit: the same sources give the same pages."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    if not epoch:
        command = ["git", "log", "-1", "--format=%ct"]
        try:
            epoch = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
        except (OSError, subprocess.CalledProcessError):
            return None  # no git, or not a checkout
    return datetime.datetime.fromtimestamp(int(epoch), datetime.UTC).date()


def repair_body(app, pagename, templatename, context, doctree):
    """Put right what the writers and extensions leave behind in the article."""
    context["metatags"] = VIEWPORT.sub("", context.get("metatags", ""))  # the template has one
    body = context.get("body")
    if not body:
        return
    body = EMPTY_HEADER.sub(r"<td\1></td>", body)
    body = re.sub(r'<section id="(exercise|solution)-content">', r'<section class="\1-content">', body)
    body = body.replace('role="doc-biblioentry"', 'role="listitem"')
    if pagename.endswith("/bibliography"):  # elsewhere entries stand in titles of links
        body = PREPRINT.sub(r'<a href="https://arxiv.org/abs/\1">arXiv:\1</a>', body)
    if pagename == "_modules/index":  # modules of a package stand in a list that is no entry of the one around it
        body = body.replace("<ul><li>", "<li>").replace("</ul>", "").replace("<li>", "<ul><li>", 1) + "</ul>"
    body = body.replace('<summary aria-label="Toggle hidden content">', "<summary>")  # its text says more
    sources = {name: source for source, name in app.builder.images.items()}
    context["body"] = IMAGE.sub(lambda match: sized(match, app, sources), body)


def defer_scripts(app, pagename, templatename, context, doctree):
    """Let no script hold up the first paint: each runs, in its turn, when the page is read."""
    for script in context["script_files"]:
        if script.filename:
            script.attributes.setdefault("defer", "defer")
        elif "DOCUMENTATION_OPTIONS" in script.attributes.get("body", ""):  # which one of those makes
            script.attributes["type"] = "module"


def sized(match, app, sources) -> str:
    """An image with its width and height, so that the text below it does not move when it arrives."""
    tag, name = match[0], match["address"].rsplit("/", 1)[-1]
    if re.search(r"\b(?:width|height)=", tag) or name not in sources:
        return tag
    size = get_image_size(str(Path(app.srcdir) / sources[name]))
    if size is None:
        return tag
    width, height = size
    return f'{tag.removesuffix(">").removesuffix("/").rstrip()} width="{width}" height="{height}"/>'


def copy_project_files(app):
    """The licence and the citation go with the pages that name them."""
    for source, name in (("LICENSE", "LICENSE.txt"), ("CITATION.cff", "CITATION.cff")):
        (Path(app.outdir) / name).write_text((ROOT / source).read_text(encoding="utf-8"), encoding="utf-8")
    return []


def write_entrance(app, exception):
    """The page at the root, which leads to the first one, has a title and a sign of its own."""
    if exception is None and app.builder.format == "html":
        target = app.builder.get_target_uri(app.config.root_doc)
        page = ENTRANCE.format(title=app.config.html_title or app.config.project, target=target)
        (Path(app.outdir) / "index.html").write_text(page, encoding="utf-8")
