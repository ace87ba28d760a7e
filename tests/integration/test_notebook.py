"""A real notebook in a real kernel shows a run and its figures. `make test-extras` installs what runs it."""

from importlib.util import find_spec
from typing import Any

import pytest

import overlapscope
from tests.conftest import ROOT

pytestmark = pytest.mark.extras
CELLS = (
    "import overlapscope\nrun = overlapscope.load('traces/regressed')\nrun",
    "run.timeline(step=5)",
    "run.waterfall()",
    "run.steps()",
)


@pytest.fixture(scope="module")
def outputs() -> list[dict[str, Any]]:
    """Run the cells in a kernel; return what each shows, by MIME type."""
    for package in ("nbclient", "ipykernel"):
        if find_spec(package) is None:
            pytest.skip(f"{package} is not installed: run `make test-extras`")
    import nbclient  # noqa: PLC0415 - only where it is installed
    import nbformat  # noqa: PLC0415

    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in CELLS])
    nbclient.NotebookClient(
        notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": str(ROOT)}}
    ).execute()
    return [cell.outputs[0].data for cell in notebook.cells]


def test_the_cells_show_overview_figures_and_frame(outputs: list[dict[str, Any]]) -> None:
    run = overlapscope.load(ROOT / "traces" / "regressed")
    overview, timeline, waterfall, steps = outputs
    assert overview["text/html"] == run._repr_html_()
    assert "28.093 ms of a 140.533 ms step is exposed communication" in overview["text/plain"]
    for shown, traces in ((timeline, len(run.timeline(step=5).data)), (waterfall, 1)):
        assert len(shown["application/vnd.plotly.v1+json"]["data"]) == traces
    assert "exposed_comm_ns" in steps["text/html"]
