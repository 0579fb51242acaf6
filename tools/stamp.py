"""Copy the notebooks with a first cell that installs the package, for the place where a button opens them.

    python tools/stamp.py FOLDER git+https://github.com/OWNER/REPOSITORY@COMMIT

The copies lie in FOLDER under the same names. The notebooks themselves are not changed.
"""

import argparse
from pathlib import Path

import nbformat

ROOT = Path(__file__).parents[1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the copies go")
    parser.add_argument("requirement", help="what pip installs: a requirement, an address or a path")
    arguments = parser.parse_args()
    for path in sorted((ROOT / "book").rglob("*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        stamp(notebook, arguments.requirement)
        target = arguments.folder / path.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)
        print(target)


def stamp(notebook, requirement: str) -> None:
    """Put the cell that installs in front; the figures need Matplotlib, which the package alone does not."""
    source = f'%pip install --quiet "mha-tutorial[figures] @ {requirement}"'
    notebook.cells.insert(0, nbformat.v4.new_code_cell(source, id="install"))


if __name__ == "__main__":
    main()
