"""Two sides compared: parts that add up to the nanosecond, figures against a slow answer, what is not comparable."""

import re
from collections.abc import Sequence
from fractions import Fraction
from statistics import median
from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import overlapscope
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.cause_table import CAUSES, EXPOSED_WAIT
from overlapscope.analysis.compare.collective_changes import MANY_SIZES, OUTSIDE, classify_change
from overlapscope.analysis.compare.compare import Comparison, compare
from overlapscope.analysis.compare.measured_run import MeasuredRun, measure_run
from overlapscope.analysis.job_step.attribution import (
    COMPUTE,
    COPY,
    EXPOSED,
    IDLE,
    IDLE_OR_COPIES,
    REMAINDER,
    attribution,
    divided_by_cause,
)
from overlapscope.analysis.job_step.metrics import Metric
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text import compare as compare_text
from overlapscope.timeline.run import Run
from tests.conftest import ROOT, shared_file
from tests.support.compared_runs import (
    ALL_REDUCE,
    Cell,
    Job,
    Kind,
    Rank,
    compared_cells,
    complete,
    jobs,
    mean,
    reducing,
    run_of,
)

REAL = (
    "kineto/megatron_tp8", "kineto/sampled_pair", "kineto/a100_ddp_rank0of2_collective_args.json.gz",
    "kineto/a100_rank3of8_six_steps.json.gz", "kineto/tracelens_mi210_gpu_only.json.gz", "gloo_torch2.13",
)  # fmt: skip


def compared(base: Run | Sequence[Run], candidate: Run | Sequence[Run]) -> Comparison:
    sides = [[side] if isinstance(side, Run) else side for side in (base, candidate)]
    return compare(*([measure_run(run, f"run {at}") for at, run in enumerate(side)] for side in sides))


def metric(comparison: Comparison, name: str) -> Metric:
    return next(each for each in comparison.metrics if each.name == name)


def ids(comparison: Comparison) -> set[str]:
    return {each.id for each in comparison.findings}


def check_sums(comparison: Comparison) -> None:
    """Every table of parts adds up, without a remainder, and those of the exposed time to its part of the step."""
    found = comparison.attribution
    assert found is not None
    tables = (found.step_time, found.exposed_by_cause, found.exposed_by_collective)
    for each in tables:
        for name in ("base_ns", "candidate_ns", "difference_ns"):
            assert sum(getattr(part, name) for part in each.parts) == getattr(each, name)
        assert all(part.difference_ns == part.candidate_ns - part.base_ns for part in each.parts)
        assert all(part.name != REMAINDER for part in each.parts)
    exposed = next((part for part in found.step_time.parts if part.name == EXPOSED), None)
    whole = (exposed.base_ns, exposed.candidate_ns) if exposed else (0, 0)
    assert all((each.base_ns, each.candidate_ns) == whole for each in tables[1:])
    of_rows = sum(row.exposed_difference_ns for row in comparison.collectives)
    outside = sum(part.difference_ns for part in found.exposed_by_collective.parts if part.name == OUTSIDE)
    assert of_rows + outside == found.exposed_by_collective.difference_ns


# --- generated jobs --------------------------------------------------------------------------------------------------


def side_of(cells: Sequence[dict[int, dict[int, Cell]]], figure: str) -> Fraction:
    """Mean over ranks and steps of each run, then over runs."""
    return sum(
        (mean([getattr(c, figure) for s in run.values() for c in s.values()]) for run in cells), Fraction(0)
    ) / len(cells)


def medians(cells: Sequence[dict[int, dict[int, Cell]]], figure: str, *, worst: bool) -> list[int]:
    """For each run the median over steps of the mean over ranks, or of the largest of them."""
    found = []
    for run in cells:
        steps = [[getattr(c, figure) for c in step.values()] for step in run.values()]
        found.append(round(median([float(max(step)) if worst else sum(step) / len(step) for step in steps])))
    return found


@pytest.mark.slow
@settings(max_examples=25)
@given(base=st.lists(jobs(), min_size=1, max_size=2), candidate=st.lists(jobs(), min_size=1, max_size=2))
def test_figures_and_parts_are_those_of_every_single_nanosecond(base: list[Job], candidate: list[Job]) -> None:
    everything = [*base, *candidate]
    # A rank without any span has no times, and counts as not recorded.
    assume(all(rank.calls or rank.computes or rank.copies for job in everything for rank in job.ranks.values()))
    assume(
        all(any(e[2] > e[1] for e in (*r.calls, *r.computes, *r.copies)) for j in everything for r in j.ranks.values())
    )
    # A rank without a whole step in one run is compared in none, where any is left.
    whole = [{rank for rank in job.ranks if complete(job, rank)} for job in everything]
    assume(all(whole))
    common = set.intersection(*whole) or set.intersection(*(set(job.ranks) for job in everything))
    cells = [[compared_cells(job, sorted(common or job.ranks)) for job in side] for side in (base, candidate)]
    assume(all(run for side in cells for run in side))
    comparison = compared([run_of(job) for job in base], [run_of(job) for job in candidate])
    assert comparison.window == "step"
    assert comparison.ranks == sorted(common)
    check_sums(comparison)
    assert comparison.attribution
    step = {part.name: part for part in comparison.attribution.step_time.parts}
    for name, figure in ((COMPUTE, "compute"), (EXPOSED, "exposed"), (COPY, "copy_only"), (IDLE, "idle")):
        sides = [side_of(side, figure) for side in cells]
        ours = (step[name].base_ns, step[name].candidate_ns) if name in step else (0, 0)
        assert all(abs(a - b) < 1 for a, b in zip(ours, sides, strict=True))
    for row in comparison.collectives:
        for side, row_side in zip(cells, (row.base, row.candidate), strict=True):
            assert abs(row_side.exposed_ns - exposed_by(side, (row.op, row.bytes or 0))) <= 1
    for name, figure, worst in (
        ("step_time_ns", "window", True), ("compute_ns", "compute", False), ("idle_ns", "idle", False)
    ):  # fmt: skip
        found = metric(comparison, name)
        assert found.base.by_run == medians(cells[0], figure, worst=worst)
        assert found.candidate.by_run == medians(cells[1], figure, worst=worst)
        assert found.base.value == round(median(medians(cells[0], figure, worst=worst)))


def exposed_by(side: Sequence[dict[int, dict[int, Cell]]], kind: Kind) -> Fraction:
    means = [mean([c.by_kind.get(kind, 0) for step in run.values() for c in step.values()]) for run in side]
    return sum(means, Fraction(0)) / len(means)


@pytest.mark.slow
@settings(max_examples=15)
@given(job=jobs())
def test_a_run_compared_with_itself_differs_in_nothing(job: Job) -> None:
    comparison = compared(run_of(job), run_of(job))
    assert all(not each.difference for each in comparison.metrics)
    assert comparison.same_job
    assert not comparison.differences
    assert all(row.change == "same" and row.exposed_difference_ns == 0 for row in comparison.collectives)
    assert {each.change for each in comparison.families} <= {"same"}
    if comparison.kernels and comparison.attribution:
        assert not comparison.kernels.grown
        assert not comparison.kernels.shrunk
        assert comparison.attribution.step_time.difference_ns == 0


@settings(max_examples=50)
@given(
    parts=st.lists(st.fractions(0, 1000), max_size=8), others=st.lists(st.fractions(0, 1000), max_size=8),
    beyond=st.integers(-3, 3),
)  # fmt: skip
def test_rounding_keeps_sums_and_what_is_missing_of_them_is_shown(
    parts: list[Fraction], others: list[Fraction], beyond: int
) -> None:
    base = {str(at): each for at, each in enumerate(parts)}
    candidate = {str(at): each for at, each in enumerate(others)}
    whole = sum(base.values(), Fraction(0)) + beyond
    found = attribution(base, candidate, whole, sum(candidate.values(), Fraction(0)))
    assert sum(part.base_ns for part in found.parts) == found.base_ns == round(whole)
    assert sum(part.difference_ns for part in found.parts) == found.difference_ns
    for part in found.parts:
        if part.name != REMAINDER:
            assert abs(part.base_ns - base.get(part.name, 0)) < 1
            assert abs(part.candidate_ns - candidate.get(part.name, 0)) < 1
    remainder = sum(part.base_ns for part in found.parts if part.name == REMAINDER)
    assert abs(remainder - beyond) <= (0 if beyond == 0 else len(parts) + 1)
    assert beyond or not remainder


# --- recorded runs ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def samples() -> Comparison:
    return compared(*(read_inputs([ROOT / "traces" / name]) for name in ("baseline", "regressed")))


def test_the_regressed_sample_names_its_collectives_and_its_cause(samples: Comparison) -> None:
    check_sums(samples)
    grown, vanished = samples.collectives
    assert (grown.op, grown.bytes, grown.change) == ("all_reduce", 18_898_944, "appeared")
    assert (vanished.op, vanished.bytes, vanished.change) == ("all_reduce", 4_724_736, "vanished")
    assert (vanished.base.calls, vanished.candidate.calls, grown.candidate.calls) == (4.0, 0.0, 1.0)
    assert [each.change for each in samples.families] == ["regrouped"]
    assert samples.attribution
    assert samples.attribution.exposed_by_cause.parts[0].name == "dependency"
    assert samples.attribution.step_time.parts[0].name == EXPOSED
    assert ("ddp.bucket_cap_bytes", ["4194304"], ["1048576000"]) in [
        (each.key, each.base, each.candidate) for each in samples.differences
    ]
    assert samples.same_job


def test_the_figures_of_the_samples_are_those_of_their_analyses(samples: Comparison) -> None:
    for name, side in (("baseline", "base"), ("regressed", "candidate")):
        analysis = analyze(read_inputs([ROOT / "traces" / name]))
        numbers = [step.step for step in analysis.ranks[0].steps]
        steps = [[next(s for s in rank.steps if s.step == number) for rank in analysis.ranks] for number in numbers]
        expected = {
            "step_time_ns": median([each.step_ns for each in analysis.headline.job_steps]),
            "exposed_comm_ns": median([sum(s.exposed_comm_ns or 0 for s in step) / 2 for step in steps]),
            "exposed_comm_worst_ns": median([max(s.exposed_comm_ns or 0 for s in step) for step in steps]),
            "hidden_wait_ns": median([sum(s.hidden_wait_ns or 0 for s in step) / 2 for step in steps]),
            "exposed_wait_ns": median(
                [sum(ns for s in step for c, ns in s.causes.items() if c in EXPOSED_WAIT) / 2 for step in steps]
            ),
        }
        for key, value in expected.items():
            assert getattr(metric(samples, key), side).value == round(value)
        share = median([sum(s.overlapped_ns or 0 for s in p) / sum(s.comm_ns or 0 for s in p) for p in steps])
        assert getattr(metric(samples, "overlap_efficiency"), side).value == pytest.approx(share, rel=1e-12)
        assert samples.attribution
        cells = [s for step in steps for s in step]
        for part in samples.attribution.exposed_by_cause.parts:
            exact = Fraction(sum(s.causes.get(part.name, 0) for s in cells), len(cells))
            assert abs(getattr(part, f"{side}_ns") - exact) <= 1
        assert {p.name for p in samples.attribution.exposed_by_cause.parts} <= set(CAUSES)


@pytest.fixture(scope="module")
def real() -> dict[str, MeasuredRun]:
    return {name: measure_run(read_inputs([shared_file(name)]), name) for name in REAL}


@pytest.mark.slow
def test_recorded_jobs_of_all_sorts_add_up_against_each_other(real: dict[str, MeasuredRun]) -> None:
    for base in real.values():
        for candidate in real.values():
            comparison = compare([base], [candidate])
            check_sums(comparison)
            assert compare_text.render(comparison, all_rows=True)
            if base is candidate:
                assert all(not each.difference for each in comparison.metrics)


@pytest.mark.slow
def test_jobs_of_other_sizes_and_devices_are_compared_and_called_so(real: dict[str, MeasuredRun]) -> None:
    comparison = compare([real["kineto/megatron_tp8"]], [real["gloo_torch2.13"]])
    assert not comparison.same_job
    assert {"differs_job:world_size", "ranks_differ"} <= ids(comparison)
    assert metric(comparison, "exposed_comm_ns").difference is not None
    assert "! not the same job: world_size 8 became 2" in compare_text.render(comparison)


def test_without_steps_on_a_side_recordings_are_compared(real: dict[str, MeasuredRun]) -> None:
    with_steps = real["kineto/a100_rank3of8_six_steps.json.gz"]
    comparison = compare([with_steps], [real["kineto/tracelens_mi210_gpu_only.json.gz"]])
    assert comparison.window == "recording"
    assert metric(comparison, "step_time_ns").base.value is None
    assert "no_steps:candidate" in ids(comparison)
    assert "no_steps:base" not in ids(comparison)
    assert metric(comparison, "compute_ns").base.value is not None


# --- constructed differences -----------------------------------------------------------------------------------------


def steady(*, steps: int = 3, ranks: int = 2, late: int = 0, **changes: Any) -> Job:
    """Ranks that compute 40 ns and all-reduce to 70; rank 1 comes `late`, and waits for nobody."""
    return replace(reducing(ranks, [90] * steps, 40, 70, late=late), **changes)


def changed(job: Job, **changes: Any) -> Job:
    """Return the job with other things done by every rank."""
    return replace(job, ranks={number: replace(rank, **changes) for number, rank in job.ranks.items()})


def test_a_rank_that_begins_to_hold_the_others_up_is_waiting_and_blame() -> None:
    comparison = compared(run_of(steady()), run_of(steady(late=20)))
    assert (metric(comparison, "blame_ns").base.value, metric(comparison, "blame_ns").candidate.value) == (0, 20)
    assert metric(comparison, "exposed_wait_ns").difference == 10  # 20 on one of two ranks
    assert metric(comparison, "compute_ns").difference == 10
    assert metric(comparison, "step_time_ns").difference == 0
    assert comparison.attribution
    parts = {part.name: part.difference_ns for part in comparison.attribution.exposed_by_cause.parts}
    assert parts["peer_compute"] == 10


def test_where_only_some_steps_communicate_waiting_is_the_share_that_it_has_of_all_of_them() -> None:
    # As with local SGD: steps 0, 2 and 4 communicate, and rank 1 is late in 2 and 4. By medians nobody would wait.
    late = steady(steps=5, late=20)
    ranks = {number: replace(rank, calls=rank.calls[::2]) for number, rank in late.ranks.items()}
    in_time = {
        "computes": [(0, 0, 40, "gemm"), *ranks[1].computes[1:]],
        "calls": [ranks[0].calls[0], *ranks[1].calls[1:]],
    }
    ranks[1] = replace(ranks[1], **in_time)
    found = analyze(run_of(replace(late, ranks=ranks))).headline
    assert (found.exposed_comm_ns, found.exposed_wait_ns) == (20, 6)  # 40 of 140 in all
    assert found.causes["peer_compute"] == 6


def test_several_runs_give_their_median_and_how_far_they_lie_apart() -> None:
    runs = [run_of(steady(lengths=[length] * 3)) for length in (90, 80, 99)]
    found = metric(compared(runs, runs[0]), "step_time_ns")
    assert (found.base.value, found.base.low, found.base.high, found.base.by_run) == (90, 80, 99, [90, 80, 99])
    assert (found.base.steps, found.candidate.steps) == (9, 3)
    assert (found.candidate.low, found.candidate.high) == (None, None)


def test_no_communication_is_not_known_rather_than_none_exposed() -> None:
    comparison = compared(run_of(steady()), run_of(changed(steady(), calls=())))
    for name in ("exposed_comm_ns", "overlapped_ns", "overlap_efficiency", "exposed_fraction", "blame_ns"):
        assert metric(comparison, name).candidate.value is None
        assert metric(comparison, name).difference is None
    assert metric(comparison, "step_time_ns").difference == 0
    assert "no_communication:candidate" in ids(comparison)
    assert "cannot be compared" in compare_text.render(comparison)
    assert "n/a" in compare_text.render(comparison)
    check_sums(comparison)


def test_only_ranks_recorded_on_both_sides_are_compared() -> None:
    three = steady(ranks=3)
    slow = Rank(computes=[(0, 0, 40, "gemm")], calls=[(0, 40, 89, ALL_REDUCE)], steps=3)
    three = replace(three, ranks={**three.ranks, 2: slow})
    two = replace(three, ranks={n: three.ranks[n] for n in (0, 1)})
    comparison = compared(run_of(three), run_of(two))
    assert comparison.ranks == [0, 1]
    assert "ranks_differ" in ids(comparison)
    assert all(
        not each.difference for each in comparison.metrics if "wait" not in each.name and each.name != "blame_ns"
    )


def test_a_run_without_times_leaves_nothing_to_compare() -> None:
    comparison = compared(run_of(steady()), Run(world_size=2, ranks={}))
    assert comparison.window is None
    assert comparison.attribution is None
    assert all(each.difference is None for each in comparison.metrics)
    assert "no_times:candidate" in ids(comparison)
    assert "nothing to compare" in compare_text.render(comparison)


def test_a_run_whose_steps_are_all_cut_is_left_out_and_named() -> None:
    cut = run_of(changed(steady(), cut=frozenset(range(3))))
    comparison = compared([run_of(steady()), cut], run_of(steady()))
    assert comparison.window == "step"
    assert "run_left_out:base" in ids(comparison)
    assert metric(comparison, "step_time_ns").base.by_run == [90, None]
    check_sums(comparison)


def test_where_one_side_knows_no_copies_they_count_with_idle_time_on_both() -> None:
    copying = changed(steady(), copies=[(0, 75, 80, "aten::copy_")])
    comparison = compared(run_of(copying), run_of(steady(), basis="events"))
    assert comparison.attribution
    names = {part.name: part.difference_ns for part in comparison.attribution.step_time.parts}
    assert names[IDLE_OR_COPIES] == 0
    assert COPY not in names
    assert metric(comparison, "copy_ns").difference is None
    assert "differs_recording:recording.basis" in ids(comparison)


def test_values_read_back_by_the_host_are_a_finding_and_other_copies_are_none() -> None:
    def with_copies(op: str) -> Run:
        return run_of(changed(steady(), copies=[(s, s * 100 + 75, s * 100 + 80, op) for s in range(3)]))

    comparison = compared(run_of(steady()), with_copies("aten::item"))
    assert "synchronisation" in ids(comparison)
    assert comparison.kernels
    assert (comparison.kernels.base_synchronisations, comparison.kernels.candidate_synchronisations) == (0, 1.0)
    grown = comparison.kernels.grown[0]
    assert (grown.kind, grown.host_op, grown.difference_ns, grown.candidate.count) == ("copy", "aten::item", 5, 1.0)
    assert "synchronisation" not in ids(compared(run_of(steady()), with_copies("aten::copy_")))
    assert "synchronisation" not in ids(compared(with_copies("aten::item"), run_of(steady())))


def test_kernels_that_grew_and_shrank_come_by_time_a_step() -> None:
    other = run_of(changed(steady(), computes=[(s, s * 100, s * 100 + 30, "relu") for s in range(3)]))
    kernels = compared(run_of(steady()), other).kernels
    assert kernels
    assert [(each.name, each.difference_ns) for each in kernels.grown] == [("relu", 30)]
    assert [(each.name, each.difference_ns) for each in kernels.shrunk] == [("gemm", -40)]
    assert (kernels.base.duration_ns, kernels.candidate.duration_ns) == (40, 30)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [
        ((1, 100), (1, 100), "same"),
        ((4, 400), (1, 400), "regrouped"),
        ((4, 400), (4, 800), "grew"),
        ((4, 400), (8, 200), "shrank"),
        ((0, 0), (1, 5), "appeared"),
        ((1, 5), (0, 0), "vanished"),
        ((2, None), (3, None), "grew"),
        ((2, 200), (2, 201), "same"),
    ],
)
def test_what_became_of_a_collective(before: Any, after: Any, change: str) -> None:
    assert classify_change(before, after) == change


@pytest.mark.slow
def test_calls_whose_size_is_never_the_same_are_one_kind() -> None:
    def uneven(first: int) -> Run:
        steps = MANY_SIZES + 2
        calls = [(s, s * 100 + 40, s * 100 + 70, ("all_to_all", first + s)) for s in range(steps)]
        return run_of(changed(steady(steps=steps), calls=calls))

    comparison = compared(uneven(1000), uneven(5000))
    assert [(row.op, row.bytes, row.change) for row in comparison.collectives] == [("all_to_all", None, "same")]
    check_sums(comparison)


def test_groups_that_have_other_names_on_the_two_sides_are_still_the_same() -> None:
    comparison = compared(run_of(steady()), run_of(steady(group="mesh_dp")))
    assert [(row.group, row.change) for row in comparison.collectives] == [(None, "same")]


def test_other_software_is_a_difference_and_does_not_make_it_another_job() -> None:
    old, new = steady(fingerprint={"torch_version": "2.12"}), steady(fingerprint={"torch_version": "2.13"})
    comparison = compared(run_of(old), run_of(new))
    assert comparison.same_job
    assert "differs_software:torch_version" in ids(comparison)
    assert "differs_job:device" in ids(
        compared(run_of(steady(fingerprint={"device": "A"})), run_of(steady(fingerprint={"device": "B"})))
    )


def test_hostile_names_stay_on_one_line_and_short() -> None:
    evil = "x\n::error::evil\r" + "y" * 500
    job = steady(fingerprint={"torch_version": evil, "device": evil}, group=evil)
    job = changed(job, calls=[(s, s * 100 + 40, s * 100 + 70, (evil, 7)) for s in range(3)])
    text = compare_text.render(compared(run_of(steady()), run_of(job)), all_rows=True)
    assert "evil" in text
    assert not re.search(r"^::", text, re.MULTILINE)
    assert "y" * 100 not in text


@pytest.mark.slow
def test_a_loaded_run_compares_itself_with_another() -> None:
    base, candidate = (overlapscope.load(ROOT / "traces" / name) for name in ("baseline", "regressed"))
    comparison = base.compare(candidate)
    assert comparison.same_job
    assert (metric(comparison, "exposed_comm_ns").difference or 0) > 15_000_000


def test_the_text_fits_a_screen(samples: Comparison) -> None:
    lines = compare_text.render(samples).splitlines()
    assert len(lines) <= 48
    assert max(map(len, lines)) <= 120
    assert lines[3].startswith("Exposed communication grew by 21.134 ms (+303.7 %)")


@pytest.mark.parametrize(
    ("exposed", "wait", "divided"),
    [
        pytest.param(100, 30, {"late": 30, "sent": 70}, id="a part"),
        pytest.param(100, 120, {"late": 20, "sent": 80}, id="the median of another step, larger than the whole"),
        pytest.param(100, None, {"late": 20, "sent": 80}, id="not known"),
    ],
)
def test_no_cause_takes_less_than_nothing(exposed: int, wait: int | None, divided: dict[str, int]) -> None:
    assert divided_by_cause(exposed, wait, {"late": 2, "sent": 8}, {"late"}) == divided
