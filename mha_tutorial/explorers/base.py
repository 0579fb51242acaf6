"""What every explorer has: a still picture of its content, its numbers, and the one script that wakes it.

An explorer is HTML. Its first part is the content as a table or an inline SVG: that is what there is where no
script runs, and in a page that strips scripts. Its second part are the numbers, as JSON. ``explorers.js``, beside
this file, looks for explorers in the page and puts controls in the place of the first part.

How script and style reach a page, once and without holding up its first paint:

- In the book's site, `book/_ext/explorers.py` copies both files beside the other static ones, and pages that have
  an explorer ask for them: a style sheet in the head, and the script with ``defer``, which runs after the page is
  read.
- In Jupyter, and in what is exported from it, they stand within the output of each cell. A script that finds
  another there already has that one look for new explorers, and ends.
- The notebooks of the book are committed without both, or each would hold a copy and change with them: where the
  environment says ``MHA_EXPLORERS=linked``, as when they are executed and compared, an explorer leaves them out.
- A page that is a file of its own (`page`) holds both, and forbids itself any request.

Nothing here has an id and no number is left unrounded, so the same explorer is the same text on every machine.
"""

import html
import json
import os
import tempfile
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from ..layouts.saving import _adopt, _move

FOLDER = Path(__file__).parent
POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
PAGE = """<!DOCTYPE html>
<html lang="en" class="explorer-page">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<title>{title}</title>
<style>
{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
<script>
{script}</script>
</body>
</html>
"""


class Explorer:
    """Something to touch in a page; a notebook shows it by itself.

    Each kind says in `states` what numbers it has, and in `still` how it looks where no script runs.
    """

    kind: ClassVar[str]  # by which the script knows it

    @property
    def title(self) -> str:
        """What a screen reader calls it."""
        raise NotImplementedError

    def states(self) -> dict[str, Any]:
        """The numbers for the script: whatever JSON can hold."""
        raise NotImplementedError

    def still(self) -> str:
        """The same content as HTML that needs no script."""
        raise NotImplementedError

    def html(self) -> str:
        """The explorer without script and style."""
        numbers = json.dumps(self.states(), separators=(",", ":"), ensure_ascii=False, allow_nan=False)
        numbers = numbers.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")
        return (
            f'<div class="explorer" data-kind="{self.kind}" role="group" aria-label="{escape(self.title)}">\n'
            f'<div class="explorer-still">\n{self.still()}\n</div>\n'
            f'<script type="application/json">{numbers}</script>\n</div>'
        )

    def page(self) -> str:
        """A whole page with the explorer in it, which asks for no other file."""
        parts = {"policy": POLICY, "title": escape(self.title), "style": style(), "script": script()}
        return PAGE.format(body=self.html(), **parts)

    def save(self, path: str | os.PathLike[str], overwrite: bool = False) -> None:
        """Write that page to a file: all of it or, if anything goes wrong, nothing.

        Raises
        ------
        FileExistsError
            If something is there and is not to be overwritten, or is no file.
        FileNotFoundError
            If there is no folder to write it to.
        OSError
            If the disk is full, or the file cannot be written for another reason.
        """
        save(Path(path), self.page(), overwrite)

    def _repr_html_(self) -> str:
        linked = os.environ.get("MHA_EXPLORERS") == "linked"
        return self.html() + ("" if linked else f"\n<style>\n{style()}</style>\n<script>\n{script()}</script>")

    def __repr__(self) -> str:
        return f"<explorer: {self.title}>"


def escape(text: str) -> str:
    """A text as it can stand in HTML, also within quotes, with what steers a line shown by its name."""
    shown = "".join(letter if letter.isprintable() else SIGNS.get(letter, "\ufffd") for letter in text)
    return html.escape(shown)


SIGNS = {"\n": "↵", "\t": "⇥", "\r": "␍"}


def style() -> str:
    return (FOLDER / "explorers.css").read_text(encoding="utf-8")


def script() -> str:
    return (FOLDER / "explorers.js").read_text(encoding="utf-8")


def save(path: Path, text: str, overwrite: bool) -> None:
    """Write a text to a file beside it, and then give that file its name."""
    there = FileExistsError(f"{path} is there already and was not overwritten")
    if os.path.lexists(path) and not (overwrite and (path.is_file() or path.is_symlink())):
        raise there
    if not path.parent.is_dir():
        raise FileNotFoundError(f"{path.parent} is not a folder, so nothing can be written there")
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=".mha-tutorial-") as folder:
        complete = Path(folder) / path.name
        complete.write_text(text, encoding="utf-8")
        _adopt(path, complete)
        try:
            (os.replace if overwrite else _move)(complete, path)
        except FileExistsError:
            raise there from None


def table(corner: str, columns: list[str], rows: list[tuple[str, list[str]]], caption: str) -> str:
    """A table with a header for each row and column; what is given is escaped."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in columns)
    body = "\n".join(
        f'<tr><th scope="row">{escape(name)}</th>' + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>"
        for name, cells in rows
    )
    corner = f'<th scope="col">{escape(corner)}</th>' if corner else "<td></td>"
    return (
        f"<table>\n<caption>{escape(caption)}</caption>\n<thead><tr>{corner}{head}</tr></thead>\n"
        f"<tbody>\n{body}\n</tbody>\n</table>"
    )


def rounded(array: Any) -> Any:
    """The numbers of an array in nested lists, to six decimals, and whole where they are whole."""
    if np.ndim(array):
        return [rounded(part) for part in array]
    number = round(float(array), 6) + 0.0  # -0.0 + 0.0 is 0.0
    return int(number) if number.is_integer() else number
