"""What the benchmarks measured: the records that the book's figures and tables are made from."""

import json
from pathlib import Path

PACKAGE = Path(__file__).parent
FOLDERS = (PACKAGE / "measured", PACKAGE.parent / "book/results")  # of an installed package; of a clone


def read(name: str) -> dict:
    """Read what a script in ``benchmarks/`` measured, and on which machine, with which versions and when.

    Raises
    ------
    FileNotFoundError
        If nothing of that name was measured.

    Examples
    --------
    >>> sorted(read("numpy-layer"))
    ['date', 'machine', 'measured', 'versions']
    """
    paths = [path for folder in FOLDERS for path in folder.glob("*.json")]
    for path in paths:
        if path.stem == name:
            return json.loads(path.read_text(encoding="utf-8"))
    raise FileNotFoundError(f"nothing was measured under the name {name!r}; there are {[p.stem for p in paths]}")
