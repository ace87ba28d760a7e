"""`compare --scale`: what is lost from one world size to another, counted again nanosecond by nanosecond."""

import json
import shutil
from fractions import Fraction
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.compare.measured_run import MeasuredRun, measure_run
from overlapscope.analysis.compare.scaling import Mode, scaling
from overlapscope.cli.main import main
from overlapscope.errors import InputError, UsageError
from overlapscope.report.formats.json import schema
from overlapscope.report.sheet import scaling as scaling_text
from tests.conftest import ROOT
from tests.support.commands import failed
from tests.support.compared_runs import Job, cell, jobs, mean, reducing, run_of


def job_of(size: int, lengths: list[int], compute: int, comm: int) -> Job:
    """A job whose ranks compute, then communicate, then stand still until their step ends."""
    return reducing(size, lengths, compute, compute + comm)


def measured(job: Job, name: str = "run") -> MeasuredRun:
    return measure_run(run_of(job), name)


def test_weak_scaling_by_hand() -> None:
    """50 of 50 ns at two ranks, 80 at four: compute keeps, 20 more are exposed, 10 more idle."""
    found = scaling([measured(job_of(4, [80, 80], 30, 35), "four"), measured(job_of(2, [50, 50], 30, 15), "two")])
    assert [point.world_size for point in found.points] == [2, 4]
    two, four = found.points
    assert (two.efficiency, two.loss_ns, two.speedup) == (1.0, 0, 1.0)
    assert (four.step_ns, four.ideal_ns, four.loss_ns) == (80, 50, 30)
    assert four.efficiency == 50 / 80
    assert four.speedup == 2 * 50 / 80
    assert four.throughput == 4 * 1e9 / 80
    assert sum(part.loss_ns for part in four.parts if part.exposed) == 20
    assert {part.name: part.loss_ns for part in four.parts if not part.exposed} == {"compute": 0, "idle": 10}
    assert sum(part.share for part in four.parts) == pytest.approx(1 - four.efficiency)


def test_strong_scaling_by_hand() -> None:
    """Half of 60 ns would be ideal at four ranks; 20 of compute are, 25 of communication are not half of 20."""
    found = scaling([measured(job_of(2, [60], 40, 20)), measured(job_of(4, [45], 20, 25))], "strong")
    four = found.points[1]
    assert (four.step_ns, four.ideal_ns, four.loss_ns) == (45, 30, 15)
    assert four.speedup == 60 / 45
    assert four.efficiency == 30 / 45
    assert {part.name: part.loss_ns for part in four.parts if not part.exposed} == {"compute": 0}
    assert found.warnings == []


def test_less_work_a_rank_is_not_weak_scaling() -> None:
    found = scaling([measured(job_of(2, [60], 40, 20)), measured(job_of(4, [45], 20, 25))])
    assert "--scaling strong" in found.warnings[0]


@pytest.mark.slow
@given(jobs(), jobs(), st.sampled_from(["weak", "strong"]))
def test_the_parts_add_up_and_are_what_a_slow_count_finds(small: Job, large: Job, mode: Mode) -> None:
    sizes = (3, 8)
    both = [
        Job(ranks=job.ranks, lengths=job.lengths, world_size=n) for job, n in zip((small, large), sizes, strict=True)
    ]
    runs = [measured(job) for job in both]
    if not all(run.steps.recorded.any() for run in runs):
        with pytest.raises(InputError):
            scaling(runs, mode)
        return
    point = scaling(runs, mode).points[1]
    assert sum(part.loss_ns for part in point.parts) == point.loss_ns == point.step_ns - point.ideal_ns
    assert sum(part.here_ns for part in point.parts) == point.step_ns
    cells = [[cell(job, *at) for at in counted(run)] for job, run in zip(both, runs, strict=True)]
    shrink = Fraction(3, 8) if mode == "strong" else Fraction(1)
    for name, figures in (
        ("compute", [mean([c.compute for c in side]) for side in cells]),
        ("exposed", [mean([c.exposed for c in side]) for side in cells]),
    ):
        lost = sum(part.loss_ns for part in point.parts if (part.exposed if name == "exposed" else part.name == name))
        assert abs(lost - (figures[1] - figures[0] * shrink)) <= 12  # each part is rounded by itself
    assert abs(point.step_ns - mean([c.window for c in cells[1]])) <= 1


def counted(run: MeasuredRun) -> list[tuple[int, int]]:
    """Return rank and step of what is compared: of the steps, those that most of the ranks recorded whole."""
    members = run.steps.recorded.sum(axis=0)
    return [
        (rank, run.steps.steps[column][0])
        for row, rank in enumerate(run.steps.ranks)
        for column in range(len(run.steps.steps))
        if members[column] == members.max() and run.steps.recorded[row, column]
    ]


def test_runs_of_one_size_or_of_none_are_refused() -> None:
    one = measured(job_of(2, [50], 30, 15), "one")
    with pytest.raises(UsageError, match="two or more world sizes"):
        scaling([one, one])
    with pytest.raises(InputError, match="world size is not known"):
        scaling([one, replace(one, world_size=None)])


BASE = ROOT / "traces" / "baseline"


@pytest.fixture
def larger(tmp_path: Path) -> Path:
    """The other recording, as one of four ranks."""
    shutil.copytree(ROOT / "traces" / "regressed", tmp_path / "larger")
    file = tmp_path / "larger" / "run.json"
    file.write_text(json.dumps({**json.loads(file.read_text(encoding="utf-8")), "world_size": 4}), encoding="utf-8")
    return file.parent


@pytest.mark.slow
def test_the_command_tells_it_as_text_and_json(larger: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", "--scale", str(BASE), str(larger), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schema("scaling")).validate(document)
    assert [each["world_size"] for each in document["points"]] == [2, 4]
    assert main(["compare", "--scale", str(BASE), str(larger)]) == 0
    shown = capsys.readouterr().out
    assert "weak scaling efficiency from 2 to 4 ranks" in shown.splitlines()[0]
    assert "2 of 4 ranks are missing" in shown
    assert "two or more world sizes" in failed(capsys, 2, "compare", "--scale", BASE, BASE)
    assert "add --scale" in failed(capsys, 2, "compare", BASE, BASE, BASE)


@pytest.mark.slow
def test_report_tells_it_in_every_format_from_runs_and_from_json(
    larger: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved = larger.parent / "scaling.json"
    runs = ["--scale", "--scaling", "strong", str(BASE), str(larger)]
    assert main(["report", *runs, "--json", "-o", str(saved)]) == 0
    for name, words in (
        ("html", "strong scaling efficiency from 2 to 4 ranks"), ("md", "loss at 4 ranks, ms a step"),
        ("junit", 'testcase classname="overlapscope.scaling" name="4 ranks"'),
        ("openmetrics", 'overlapscope_scaling_efficiency_ratio{world_size="2"} 1.0'),
    ):  # fmt: skip
        assert main(["report", *runs, "--format", name]) == 0
        from_runs = capsys.readouterr().out
        assert words in from_runs
        assert main(["report", str(saved), "--format", name]) == 0
        assert capsys.readouterr().out == from_runs
    assert "two or more world sizes" in failed(capsys, 2, "report", "--scale", BASE, BASE)
    assert "use one" in failed(capsys, 2, "report", "--scale", "--history", BASE, larger)


def test_a_step_that_is_longer_names_its_largest_loss() -> None:
    found = scaling([measured(job_of(2, [50, 50], 30, 15)), measured(job_of(4, [80, 80], 30, 35))])
    assert scaling_text.render(found).startswith("62.5 % weak scaling efficiency from 2 to 4 ranks\n")
    assert "Largest loss: exposed, " in scaling_text.render(found)
