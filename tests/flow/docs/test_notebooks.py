"""Notebooks of the documentation: valid, without outputs, and every cell works."""

import shutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from unlearnbench.api import registry

NOTEBOOKS = sorted((Path(__file__).parents[3] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.usefixtures("small_models")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_every_cell_works(
    path: Path, quickstart: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In IPython's shell in this process: a kernel would load torch again for each notebook."""
    nbformat: Any = import_module("nbformat")  # typed in part
    renderers: Any = import_module("plotly.io").renderers
    notebook: Any = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    shutil.copytree(quickstart, tmp_path / "runs" / "quickstart")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(registry, "_files", {})
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)  # IPython warns of another than its own
    monkeypatch.setattr(renderers, "default", "json")  # no browser
    monkeypatch.setattr(sys, "displayhook", sys.displayhook)
    shell: Any = import_module("IPython.core.interactiveshell").InteractiveShell()
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        assert (cell.outputs, cell.execution_count) == ([], None), "stored without outputs"
        shell.run_cell(cell.source, store_history=False).raise_error()
    assert {one.name for one in tmp_path.iterdir()} & {"figure1.html", "focal.py"}
