"""What the benchmarks measured: the records that the book's figures and tables are made from."""

import json
from pathlib import Path

FOLDER = Path(__file__).parent  # the records lie beside this file, in a clone and in an installed package


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
    records = {path.stem: path for path in sorted(FOLDER.glob("*.json"))}
    if name not in records:
        raise FileNotFoundError(f"nothing was measured under the name {name!r}; there are {list(records)}")
    return json.loads(records[name].read_text(encoding="utf-8"))
