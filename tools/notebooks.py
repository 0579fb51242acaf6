"""Execute notebooks in place, from a clean kernel, and keep only what belongs into the repository.

    python tools/notebooks.py                 every notebook of the book
    python tools/notebooks.py book/index.ipynb

Run twice, it changes nothing. A notebook whose execution fails is left as it was. The picture of the README
is the first figure of the front page, and is written anew with it.
"""

import argparse
import base64
import os
import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError

ROOT = Path(__file__).parents[1]
FRONT_PAGE, PICTURE = ROOT / "book/index.ipynb", ROOT / "book/_static/multi-head.png"
CELL_METADATA = ("tags", "mystnb")  # mystnb holds the alternative text of figures


def main():
    os.environ["MHA_EXPLORERS"] = "linked"  # the site brings the explorers' script, and no output a copy of it
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("paths", nargs="*", type=Path, help="notebooks; all of book/ if none is given")
    paths = parser.parse_args().paths or sorted((ROOT / "book").rglob("*.ipynb"))
    failed = [path for path in paths if not execute(path)]
    sys.exit(f"not changed: {', '.join(map(str, failed))}" if failed else 0)


def execute(path: Path) -> bool:
    notebook = nbformat.read(path, as_version=4)
    client = NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": path.parent}}
    )
    try:
        client.execute()
    except CellExecutionError as error:
        print(f"{path}: {error}", file=sys.stderr)
        return False
    normalise(notebook)
    changed = write_if_changed(path, (nbformat.writes(notebook) + "\n").encode())
    print(f"{path}: {'written' if changed else 'unchanged'}")
    if path.resolve() == FRONT_PAGE:
        write_if_changed(PICTURE, first_figure(notebook))
    return True


def write_if_changed(path: Path, content: bytes) -> bool:
    """Write a file whole or not at all."""
    if path.exists() and path.read_bytes() == content:
        return False
    scratch = path.with_name(path.name + ".new")
    scratch.write_bytes(content)
    os.replace(scratch, path)
    return True


def first_figure(notebook) -> bytes:
    """The first picture among a notebook's outputs, as the bytes of a PNG file."""
    outputs = (output for cell in notebook.cells for output in cell.get("outputs", []))
    return next(
        base64.b64decode(output.data["image/png"]) for output in outputs if "image/png" in output.get("data", {})
    )


def normalise(notebook) -> None:
    """Drop what differs between machines and runs: versions, timestamps, random identities, split streams."""
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    for number, cell in enumerate(notebook.cells):
        cell.id = f"cell-{number}"
        cell.metadata = {key: cell.metadata[key] for key in CELL_METADATA if key in cell.metadata}
        if cell.cell_type == "code":
            cell.outputs = _merged(cell.outputs)


def _merged(outputs):
    """Text that a cell printed in several pieces, as one output: how it is cut depends on timing."""
    merged = []
    for output in outputs:
        if output.output_type == "error":
            output.traceback = [f"{output.ename}: {output.evalue}"]  # the rest holds paths of this machine
        if merged and output.output_type == merged[-1].output_type == "stream" and output.name == merged[-1].name:
            merged[-1].text += output.text
        else:
            merged.append(output)
    return merged


if __name__ == "__main__":
    main()
