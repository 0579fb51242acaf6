"""The committed notebooks: executed in order, complete, and free of what differs between machines.

That their outputs are right is not tested here: nbval runs each of them and compares.
"""

import json
import re

import equations
import nbformat
import notebooks
import pytest
import stamp

PATHS = sorted((equations.ROOT / "book").rglob("*.ipynb"))
in_every_notebook = pytest.mark.parametrize("path", PATHS, ids=[path.stem for path in PATHS])


def code_cells(path):
    return [cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code"]


@in_every_notebook
def test_cells_were_run_once_from_top_to_bottom(path):
    """nbval passes over a cell without a count, so that an unexecuted one would be compared with nothing."""
    counts = [cell.execution_count for cell in code_cells(path)]
    assert counts == list(range(1, len(counts) + 1))


@in_every_notebook
def test_cells_that_print_or_draw_have_an_output(path):
    for cell in code_cells(path):
        if re.search(r"\b(show|print)\(", cell.source):
            assert cell.outputs, cell.source


@in_every_notebook
def test_outputs_hold_nothing_of_this_machine(path):
    for cell in code_cells(path):
        text = json.dumps([output for output in cell.outputs if "image/png" not in output.get("data", {})])
        assert not re.search(r"/(home|root|tmp|Users)/|site-packages|0x[0-9a-f]{6}|\.py:\d", text), cell.source
        assert all(output.get("name") != "stderr" for output in cell.outputs), cell.source


@in_every_notebook
def test_errors_are_announced_and_nothing_is_skipped(path):
    for cell in code_cells(path):
        tags = set(cell.metadata.get("tags", []))
        assert tags <= {"raises-exception", "hide-input", "hide-output", "full-width"}
        assert ("raises-exception" in tags) == any(output.output_type == "error" for output in cell.outputs)


@in_every_notebook
def test_lines_are_no_wider_than_a_page(path):
    for cell in code_cells(path):
        lines = cell.source.splitlines()
        if "cli.main(" not in cell.source:  # what a command says is one line, however long
            lines += [line for output in cell.outputs for line in output.get("text", "").splitlines()]
        assert max(map(len, lines), default=0) <= 88, max(lines, key=len)


@in_every_notebook
def test_figures_have_alternative_text(path):
    for cell in code_cells(path):
        if any("image/png" in output.get("data", {}) for output in cell.outputs):
            assert len(cell.metadata["mystnb"]["image"]["alt"]) > 60, cell.source


@in_every_notebook
def test_notebooks_are_normalised(path):
    notebook = nbformat.read(path, as_version=4)
    notebooks.normalise(notebook)
    assert nbformat.writes(notebook) + "\n" == path.read_text(encoding="utf-8")


@in_every_notebook
def test_chapters_have_their_opening_and_closing(path):
    if path.stem in ("index", "notation"):
        pytest.skip("front matter, not a chapter")
    text = equations.markdown(path)
    headings = [line for line in text.splitlines() if line.startswith(("# ", "## ", ":::{admonition} You"))]
    assert headings[0].startswith("# ")
    assert headings[1] == ":::{admonition} You will see"
    assert ":::{admonition} What you saw" in text
    assert headings[-1] == "## Sources"


def a_notebook(*sources):
    return nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source) for source in sources])


def test_executing_twice_changes_nothing(tmp_path, monkeypatch):
    path = tmp_path / "a.ipynb"
    nbformat.write(a_notebook("print(1)", "print(2); print(3)"), path)
    assert notebooks.execute(path)
    first = path.read_text()
    assert '"execution_count": 2' in first
    assert '"2\\n",\n      "3\\n"' in first
    assert notebooks.execute(path)
    assert path.read_text() == first
    assert [file.name for file in tmp_path.iterdir()] == ["a.ipynb"]


def test_a_notebook_that_fails_is_left_as_it_was(tmp_path, capsys):
    path = tmp_path / "a.ipynb"
    nbformat.write(a_notebook("print(1)", "1 / 0"), path)
    before = path.read_text()
    assert not notebooks.execute(path)
    assert path.read_text() == before
    assert "ZeroDivisionError" in capsys.readouterr().err


def test_picture_of_the_readme_is_the_figure_of_the_front_page():
    front_page = nbformat.read(notebooks.FRONT_PAGE, as_version=4)
    assert notebooks.PICTURE.read_bytes() == notebooks.first_figure(front_page)


def test_stamped_copies_install_first_and_keep_the_rest():
    notebook = a_notebook("print(1)")
    stamp.stamp(notebook, "git+https://example.org/book@abc")
    assert notebook.cells[0].source == (
        '%pip install --quiet "mha-tutorial[figures] @ git+https://example.org/book@abc"'
    )
    assert [cell.source for cell in notebook.cells[1:]] == ["print(1)"]
    nbformat.validate(notebook)
