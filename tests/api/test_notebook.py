"""The notebook of the documents runs as it is, cell by cell, and ends with its plots."""

import ast
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "docs" / "get-started" / "notebook.ipynb"
SHOW = """
def show(value):
    if value is not None:
        print(getattr(value, "_repr_html_", value.__repr__)())


"""


def _cells(kind: str) -> list[str]:
    cells = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == kind]


def _shown(cell: str) -> str:
    """The cell as a program that prints what a notebook shows: the value of its last expression."""
    tree = ast.parse(cell)
    if isinstance(tree.body[-1], ast.Expr):
        tree.body[-1].value = ast.Call(ast.Name("show"), [tree.body[-1].value], [])
    return ast.unparse(ast.fix_missing_locations(tree))


def test_it_is_a_notebook_without_outputs():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert not any(cell.get("outputs") for cell in notebook["cells"])
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
    for link in re.findall(r"\]\(([^)#]+)", "".join(_cells("markdown"))):
        assert (NOTEBOOK.parent / link).is_file(), link


@pytest.mark.slow
def test_every_cell_runs_and_the_plots_are_there(tmp_path):
    program = tmp_path / "notebook.py"
    program.write_text(SHOW + "\n\n".join(map(_shown, _cells("code"))), encoding="utf-8")
    done = subprocess.run([sys.executable, program], cwd=ROOT, capture_output=True, text=True, check=False,
                          env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr[-3000:]
    *_, speed_up, replayed = re.findall(r"<style type.*?</table>", done.stdout, re.DOTALL)
    assert speed_up.count("linear-gradient") == replayed.count("linear-gradient") + 1 == 4
    rows = re.findall(r'class="row_heading.*?>(.*?)</th>(.*?)</tr>', speed_up, re.DOTALL)
    per_step = [float(re.findall(r">([\d.]+)</td>", cells)[1]) for _, cells in rows]
    assert len(rows) == 4 and per_step[0] == 1 and per_step[3] > per_step[1] >= 1
