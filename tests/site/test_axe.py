"""axe-core finds nothing: every page in one view, and of the other views a quarter that changes with the commit.

``ALL=1`` takes every page in every view. The drawn signs of formulas are left out: there are tens of thousands, and
assistive programs read the MathML that stands beside them.
"""

import os
import subprocess
import zlib
from pathlib import Path

import pytest

from .conftest import PAGES, ROOT

AXE = (Path(__file__).parent / "axe/axe.min.js").read_text(encoding="utf-8")
RUN = """() => axe.run({exclude: [["mjx-math"]]}, {
  resultTypes: ["violations"],
  rules: {"label-content-name-mismatch": {enabled: true}, "target-size": {enabled: true}},
}).then(({violations}) => violations.map(({id, nodes}) => `${id}: ${nodes.map(({html}) => html).join(" ")}`))"""


def turn() -> int:
    """Which quarter: the same for everyone who tests a commit."""
    command = ["git", "rev-parse", "HEAD"]
    return zlib.crc32(subprocess.run(command, cwd=ROOT, capture_output=True, check=False).stdout)


def chosen():
    everything = os.environ.get("ALL") == "1"
    for page in PAGES:
        yield page, "desktop"
        for view in ("desktop-dark", "phone", "phone-dark"):
            if everything or (zlib.crc32(f"{page} {view}".encode()) + turn()) % 4 == 0:
                yield page, view


@pytest.mark.parametrize(("name", "view"), list(chosen()))
def test_axe_finds_nothing(reader, name, view):
    with reader(view) as visit:
        visit.open(name + ("?q=softmax" if name == "search.html" else ""))
        visit.run(AXE)
        assert visit.run(RUN) == []
