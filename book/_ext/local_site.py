"""Keeps the site to itself: without Thebe, whose script is fetched from elsewhere and fails on every page."""

import sphinx_thebe


def setup(app):
    for listeners in app.events.listeners.values():
        listeners[:] = [listener for listener in listeners if listener.handler.__module__ != sphinx_thebe.__name__]
    styles = app.registry.css_files
    styles[:] = [style for style in styles if style[0] != "sphinx-thebe.css"]
    return {"parallel_read_safe": True, "version": "1"}
