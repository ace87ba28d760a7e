"""Kernels that one rank alone ran are named beside more work, and pauses before first runs of kernels as what compiles
them."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.stragglers.new_kernels import before_first_runs, kernels_of_one_rank
from overlapscope.report.text import cross_rank
from overlapscope.timeline.columns import COMPUTE, Flags
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Run
from tests.unit.analysis.pauses.pausing import Pauses, named
from tests.unit.analysis.pauses.pausing import run as run_of_pauses
from tests.unit.analysis.stragglers.test_stragglers import CULPRIT, KERNELS, STEPS, job

MORE, TUNING = 16 - KERNELS, ": perhaps compilation or tuning of kernels, as for a new shape"


def renamed(run: Run, rank: int, rows: Flags | np.ndarray, names: list[str]) -> Run:
    """Return the run with these spans of a rank renamed, to one name after the other."""
    timeline, table = run.ranks[rank], NameTable(list(run.ranks[rank].names))
    name = timeline.spans.name.copy()
    name[rows] = [table.code(names[at % len(names)]) for at in range(name[rows].size)]
    changed = replace(timeline, names=tuple(table.to_list()), spans=replace(timeline.spans, name=name))
    return replace(run, ranks={**run.ranks, rank: changed})


def with_own_kernels(run: Run, number: int) -> Run:
    """Return the run, so many last kernels of the late rank's each step named as no other rank's are."""
    spans = run.ranks[CULPRIT].spans
    rows = np.zeros(spans.kind.size, np.bool_)
    for step in range(STEPS):
        rows[np.flatnonzero((spans.kind == COMPUTE) & (spans.step == step))[-number:]] = True
    return renamed(run, CULPRIT, rows, ["triton_a", "triton_b"])


@pytest.mark.parametrize("number", [MORE, 2])
def test_kernels_that_no_other_rank_ran_are_named_where_they_are_most_of_what_it_computed_longer(number: int) -> None:
    run = with_own_kernels(job(fault="more_work"), number)
    (late,) = analyze(run).skew.stragglers
    assert late.held_by == "more_work"
    (sentence,) = cross_rank.straggler_sentences(analyze(run), 4)
    said = f"of {MORE * STEPS} kernels that no other rank ran, triton_"
    assert (said in sentence) == (number == MORE)
    assert (late.evidence.get("kernels_alone") == number * STEPS) == (number == MORE)
    assert TUNING not in sentence, "its host did not stall beside them"
    (look,) = (each for each in analyze_with_advice(run).recommendations if each.id == "late_rank")
    assert (f"(more work, {MORE * STEPS} kernels that no other rank ran)" in look.title) == (number == MORE)
    assert ("TRITON_PRINT_AUTOTUNING" in look.apply.get("environment", "")) == (number == MORE)


@pytest.mark.parametrize(("idle_times", "stalls"), [(1.0, True), (0.9, False)])
def test_a_rank_that_idled_as_long_as_it_computed_longer_is_not_late_by_more_work_alone(
    idle_times: float, *, stalls: bool
) -> None:
    analysis = analyze_with_advice(with_own_kernels(job(fault="more_work"), MORE))
    (late,) = analysis.skew.stragglers
    idle_ns = round(idle_times * late.evidence["computed_more_ns"])
    late = replace(late, evidence={**late.evidence, "idle_more_ns": idle_ns})
    (sentence,) = cross_rank.straggler_sentences(replace(analysis, skew=replace(analysis.skew, stragglers=[late])), 4)
    assert ("its device also idled" in sentence) == stalls
    assert (TUNING in sentence) == stalls


def in_step(number: int) -> Pauses:
    return lambda step, rank: {3: 10.0, 9: 10.0} if (step, rank) == (number, 1) else {}


def before_new_kernels(number: int, names: list[str], *, rank: int = 1) -> Run:
    """Return a job of which rank 1 pauses twice in one step, before kernels with these names on one rank."""
    run = run_of_pauses(in_step(number))
    spans = run.ranks[rank].spans
    return renamed(run, rank, np.flatnonzero((spans.kind == COMPUTE) & (spans.step == 7 + number))[[3, 9]], names)


@pytest.mark.parametrize("step", [1, 2])
def test_pauses_before_first_runs_of_kernels_may_compile_them(step: int) -> None:
    (found,) = named(before_new_kernels(step, ["triton_a", "triton_b"]))
    assert (
        "for it: compilation, tuning or loading of kernels, as most come just before first runs of such (triton_"
        in (found.title)
    )
    assert found.title.endswith("; else garbage collection, a logger, a file, a lock or a lost core")
    assert found.evidence["may_compile"]


@pytest.mark.parametrize("names", [["gemm"], ["triton_a"], ["triton_a", "gemm"]])
def test_pauses_before_kernels_that_ran_before_compile_nothing(names: list[str]) -> None:
    (found,) = named(before_new_kernels(1, names))
    assert "compilation" not in found.title
    assert not found.evidence["may_compile"]


def test_in_the_first_step_only_kernels_of_one_rank_are_known_to_be_new() -> None:
    names = ["triton_a", "triton_b"]
    run = before_new_kernels(0, names)
    moments = np.sort(run.ranks[1].spans.launch_ns[run.ranks[1].spans.kind == COMPUTE])
    new, known = run.ranks[1], kernels_of_one_rank(run)
    assert known == {*names}
    assert set(before_first_runs(new, known, moments)) == {None, *names}
    spans = run.ranks[0].spans
    both = renamed(run, 0, np.flatnonzero((spans.kind == COMPUTE) & (spans.step == 7))[[3, 9]], names)
    assert set(before_first_runs(new, kernels_of_one_rank(both), moments)) == {None}
    assert kernels_of_one_rank(replace(run, ranks={1: new})) == frozenset()
