"""The tutorial notebook runs from its first cell to its last, in a real kernel."""

from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

from tests.conftest import ROOT

NOTEBOOK = ROOT / "docs/tutorial.ipynb"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_the_tutorial_runs(tmp_path: Path) -> None:
    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    ).execute()
    said = "".join(
        output.get("text", "")
        for cell in notebook.cells
        if cell.cell_type == "code"
        for output in cell.outputs
    )
    assert said.count("the same bits: True") == 5
    assert (tmp_path / "plan.json").exists()
    shown = [o for cell in notebook.cells for o in cell.get("outputs", ()) if "data" in o]
    assert any("application/vnd.plotly.v1+json" in o["data"] for o in shown)
