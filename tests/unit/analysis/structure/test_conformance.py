"""A recorded job held against its dry run: what is missing, more, or otherwise, and overlap that did not happen."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.structure.compare_structure import StructureComparison
from overlapscope.analysis.structure.conformance import conformance
from overlapscope.timeline.columns import COMM, COMPUTE, DEVICE, NONE, Lanes, Spans, Steps, make, take
from overlapscope.timeline.run import RankTimeline, Run
from tests.unit.analysis.structure.dry_programs import Program, dry_run, sharded_step

STEPS = 3
STEP_NS = 1_000_000


def recorded(
    dry: Run, *, ranks: int = 2, beside: bool = True, drop: tuple[int, ...] = (), step: int | None = None
) -> Run:
    """Return a recorded job that does what rank 0 of a dry run does, in three steps; `beside`: calls run beside
    compute, else before it; calls in `drop` are missing, in all steps or in `step`."""
    return Run(
        world_size=dry.world_size,
        ranks={rank: _timeline(dry.ranks[0], rank, beside, drop, step) for rank in range(ranks)},
        groups=dry.groups,
    )


def _timeline(dry: RankTimeline, rank: int, beside: bool, drop: tuple[int, ...], only: int | None) -> RankTimeline:
    calls = dry.collectives.op.size
    rows = [(at, row) for at in range(STEPS) for row in range(calls) if row not in drop or only not in (None, at)]
    steps, which = (np.array(each) for each in zip(*rows, strict=True))
    starts = steps * STEP_NS + 1000 * which
    compute = starts + (0 if beside else 500)
    collectives = replace(
        take(dry.collectives, which), step=steps, launch_ns=starts, start_ns=starts, end_ns=starts + 400,
    )  # fmt: skip
    spans = make(
        Spans, 2 * steps.size, recording=0, lane=np.repeat([0, 1], steps.size),
        kind=np.repeat([COMPUTE, COMM], steps.size), start_ns=np.concatenate([compute, starts]),
        end_ns=np.concatenate([compute + 300, starts + 400]), launch_ns=np.concatenate([starts, starts]),
        step=np.concatenate([steps, steps]),
        collective=np.concatenate([np.full(steps.size, NONE), np.arange(steps.size)]),
    )  # fmt: skip
    begins = np.arange(STEPS) * STEP_NS
    return RankTimeline(
        rank=rank, basis="trace", has_device=True, names=dry.names, collectives=collectives, spans=spans,
        recordings=replace(dry.recordings, start_ns=np.array([-10]), end_ns=np.array([STEPS * STEP_NS]),
                           last_launch_ns=np.array([int(starts.max())])),
        steps=make(Steps, STEPS, recording=0, step=np.arange(STEPS), start_ns=begins, end_ns=begins + STEP_NS - 1,
                   cut=False),
        lanes=make(Lanes, 2, kind=DEVICE), annotations=dry.annotations,
    )  # fmt: skip


def held(dry: Run, run: Run) -> StructureComparison:
    found = conformance(dry, run)
    assert found is not None
    return found


DRY = dry_run(sharded_step())


def test_a_job_that_does_what_was_intended_conforms() -> None:
    found = held(DRY, recorded(DRY))
    assert (found.changes, found.notes, found.ranks) == ([], [], [0, 1])


def test_what_is_missing_has_its_ranks_modules_and_lines() -> None:
    (change,) = held(DRY, recorded(DRY, drop=(3,))).changes
    assert (change.kind, change.count, change.ranks) == ("collective_removed", 1, (0, 1))
    assert change.modules == ("layers.2",)
    assert change.sources == ("model.py:12",)


def test_what_one_step_lacks_is_a_note_and_no_difference() -> None:
    found = held(DRY, recorded(DRY, drop=(3,), step=1))
    assert found.changes == []
    assert found.notes == ["some steps make other calls, of rank 0: 1"]


def test_larger_calls_and_other_groups() -> None:
    run = recorded(DRY, ranks=1)
    calls = run.ranks[0].collectives
    larger = replace(calls, elements=np.where(calls.elements == 4000, 4008, calls.elements))
    changed = replace(run, ranks={0: replace(run.ranks[0], collectives=larger)})
    assert {each.kind for each in held(DRY, changed).changes} == {"bytes_grew"}
    names = (*run.ranks[0].names, "world")
    moved = replace(
        calls, group=np.full(calls.op.size, len(names) - 1, np.int32), group_size=np.full(calls.op.size, 16)
    )
    other = replace(run, ranks={0: replace(run.ranks[0], names=names, collectives=moved)})
    assert {each.kind for each in held(DRY, other).changes} == {"group_changed"}


def test_intended_overlap_that_did_not_happen() -> None:
    found = held(DRY, recorded(DRY, beside=False))
    kinds = {each.kind for each in found.changes}
    assert kinds == {"prefetch_lost", "overlap_lost"}
    intended = held(
        dry_run(sharded_step(prefetch=False)), recorded(dry_run(sharded_step(prefetch=False)), beside=False)
    )
    missed = {(each.kind, each.op, each.phase) for each in intended.changes}
    assert ("prefetch_lost", "all_gather", "backward") not in missed  # these could not overlap in the dry run either
    assert ("overlap_lost", "reduce_scatter", "backward") in missed


def test_without_times_nothing_is_said_of_overlap() -> None:
    run = recorded(DRY, ranks=1, beside=False)
    own = run.ranks[0]
    untimed = replace(
        own.collectives, start_ns=np.full(own.collectives.op.size, NONE), end_ns=np.full(own.collectives.op.size, NONE)
    )
    found = held(DRY, replace(run, ranks={0: replace(own, collectives=untimed)}))
    assert found.changes == []
    assert any("whether overlap happened is not known" in each for each in found.notes)


@pytest.mark.parametrize("column", ["elements", "dtype", "phase", "module"])
def test_what_a_recording_lacks_is_stated_and_not_compared(column: str) -> None:
    run = recorded(DRY, ranks=1)
    calls = run.ranks[0].collectives
    kept = getattr(calls, column)
    without = replace(calls, **{column: np.full(kept.size, NONE if column == "elements" else -1, kept.dtype)})
    found = held(DRY, replace(run, ranks={0: replace(run.ranks[0], collectives=without)}))
    assert found.changes == []
    assert f"not recorded, so not compared: {column}" in found.notes


def test_ranks_of_a_pipeline_are_only_held_against_their_own() -> None:
    step = Program()
    step.compute()
    step.wait(step.call("send", phase="forward", group="tensor"))
    dry = dry_run(step)
    found = held(dry, recorded(dry))
    assert found.ranks == [0]
    assert found.notes[0].startswith("rank 1: not held against the dry run")


def test_a_recording_of_no_complete_step_says_nothing() -> None:
    run = recorded(DRY, ranks=1)
    none = replace(run.ranks[0], steps=make(Steps, 0))
    assert conformance(DRY, replace(run, ranks={0: none})) is None
    assert conformance(recorded(DRY), run) is None  # no dry run
