"""The checks where there is no GPU: each says so, and with the host in its place each measures its figures."""

from pathlib import Path

import pytest

from overlapscope.gpu_check.checks import CHECKS, INVENTORY
from overlapscope.gpu_check.document import Check
from overlapscope.gpu_check.measurements import FIGURES_FILE, Ended, Measurements, NotRunError, read_measured
from tests.support.fork_server import start

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]

ALL = {check.name: check for check in (INVENTORY, *CHECKS)}
IN_ONE_PROCESS = ("C0", "C2a", "C2b", "C3", "C4", "C7a", "C7b", "C9", "C10", "C11a", "C11b")
"""Checks that are measured by a single process."""
BY_PROCESSES = ("C5", "C8", "C14")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device")
@pytest.mark.parametrize("name", ALL)
def test_a_check_says_in_one_line_that_there_is_no_device(name: str, tmp_path: Path) -> None:
    module, _, function = ALL[name].measure.partition(":")
    found = __import__(module, fromlist=[function])
    with pytest.raises(NotRunError, match=r"^torch finds no CUDA device$"):
        getattr(found, function)(Measurements(tmp_path))
    assert not (tmp_path / FIGURES_FILE).exists()


def measured_on_the_host(checks: list[Check], folder: Path, *, whole_end: bool = False) -> None:
    """Every figure that has a limit is measured under its name, and no check fails."""
    words = [word for check in checks for word in (check.measure, str(folder / check.name))]
    (done,) = start([["-m", "tests.unit.gpu_check.host_as_device", *words]], whole_end=whole_end).wait(240)
    assert done.code == 0, done.output[-3000:]
    for check in checks:
        found = read_measured(folder / check.name / FIGURES_FILE, Ended(code=0, seconds=1, output=""))
        assert found.failed is None
        assert not found.missing
        assert {rule.figure for rule in check.rules} <= found.figures.keys()


@pytest.mark.slow
def test_checks_of_one_process_measure_every_figure_that_has_a_limit(tmp_path: Path) -> None:
    measured_on_the_host([ALL[name] for name in IN_ONE_PROCESS], tmp_path)


@pytest.mark.slow
def test_two_real_ranks_over_gloo_are_judged_by_their_own_figures(tmp_path: Path) -> None:
    measured_on_the_host([ALL["C6c"]], tmp_path)
    found = read_measured(tmp_path / "C6c" / FIGURES_FILE, Ended(code=0, seconds=1, output="")).figures
    assert found["events_parameters_identical"] is True
    assert found["trace_parameters_identical"] is True
    assert found["events_calls_as_buckets_percent"] == 100
    kept = {path.name for path in (tmp_path / "C6c" / "keep").iterdir()}
    assert {"rank0.ddp.marks.json.gz", "rank1.ddp.marks.json.gz", "rank0.recording0.rank0.pt.trace.json.gz"} <= kept


@pytest.mark.long
def test_checks_of_several_processes_measure_every_figure_that_has_a_limit(tmp_path: Path) -> None:
    measured_on_the_host([ALL[name] for name in BY_PROCESSES], tmp_path, whole_end=True)
    found = read_measured(tmp_path / "C14" / FIGURES_FILE, Ended(code=0, seconds=1, output="")).figures
    assert found["steps_kept"] == found["steps_kept_of_stuck"] == 8
    kept = {path.name for path in (tmp_path / "C8" / "keep").iterdir()}
    assert kept == {f"rank{rank}.{name}" for rank in (0, 1) for name in ("both.marks.json.gz", "pt.trace.json")}
