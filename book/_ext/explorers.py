"""Brings the script and the style of the explorers to the pages that have one: once, and after the first paint."""

import shutil
from pathlib import Path

from mha_tutorial.explorers import base

MARK = '<div class="explorer"'


def setup(app):
    app.connect("builder-inited", copy_files)
    app.connect("html-page-context", link_files)
    return {"parallel_read_safe": True, "parallel_write_safe": True, "version": "1"}


def copy_files(app):
    """From the package, where they are kept; before the pages are written, whose links hold their checksums."""
    folder = Path(app.outdir) / "_static"
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("explorers.js", "explorers.css"):
        shutil.copyfile(base.FOLDER / name, folder / name)


def link_files(app, pagename, templatename, context, doctree):
    if MARK in context.get("body", ""):
        app.add_css_file("explorers.css")
        app.add_js_file("explorers.js", loading_method="defer")
