"""Steps and passes that reduce nothing, and all-reduces that carry no gradients, are separated from those that do."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.errors import InputError
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import COMPUTE, NONE, OPERATION, Columns, HostSpans, Spans, concat, make
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.whatif.ddp.ddp_predict import predict_ddp
from overlapscope.whatif.ddp.ddp_recording import ddp_case_of_run
from overlapscope.whatif.ddp.no_sync import averages_parameters
from tests.support.ddp_cases import IN_PAIRS, MB, STEPS, TICK_NS, recorded, step_ns
from tests.support.writers import kineto
from tests.support.writers.kineto import MS

A, B = [64, 32], [64]


def changed(run: Run, change: object) -> Run:
    return replace(run, ranks={rank: change(each) for rank, each in run.ranks.items()})  # type: ignore[operator]


def of_steps(table: Columns, steps: Sequence[int]) -> Columns:
    rows = np.isin(table.step, steps)  # type: ignore[attr-defined]
    return replace(table, **{name: getattr(table, name)[rows] for name in table.__struct_fields__})


def averaging(timeline: RankTimeline, *, steps: Sequence[int]) -> RankTimeline:
    """Return the timeline with one all-reduce of all parameters after an optimizer in these steps, and no others."""
    names = NameTable(timeline.names)
    starts = timeline.steps.end_ns - 100 * TICK_NS
    optimizer = make(
        Spans, STEPS, recording=0, lane=0, kind=COMPUTE, name=names.code("optimizer"), step=timeline.steps.step,
        start_ns=starts, end_ns=starts + 50 * TICK_NS,
    )  # fmt: skip
    calls = timeline.collectives
    first = np.searchsorted(calls.step, steps)
    kept = {name: getattr(calls, name)[first].copy() for name in calls.__struct_fields__}
    kept |= {"elements": np.full(len(steps), 8 * MB), "bytes": np.full(len(steps), 32 * MB)}
    at = starts[np.isin(timeline.steps.step, steps)]
    kept |= {"launch_ns": at + 60 * TICK_NS, "start_ns": at + 60 * TICK_NS, "end_ns": at + 90 * TICK_NS}
    return replace(
        timeline,
        spans=concat([timeline.spans, optimizer]),
        collectives=replace(calls, **kept),
        names=tuple(names.to_list()),
    )


@pytest.mark.slow
def test_steps_without_a_reduction_are_counted_and_the_ones_that_reduce_are_replayed() -> None:
    reducing = [1, 3, 5]
    run = changed(recorded(IN_PAIRS), lambda each: replace(each, collectives=of_steps(each.collectives, reducing)))
    found = ddp_case_of_run(run)
    assert found.recorded.steps == tuple(reducing)
    assert found.recorded.unsynced == 2
    assert found.recorded.left_out == 0
    assert found.measured[0].step_ns == pytest.approx(step_ns(IN_PAIRS), rel=0.01)
    result = predict_ddp(found, [1.0], search=False)
    assert any("one recorded step in 2 reduces gradients" in each for each in result.reasons)
    whole = predict_ddp(ddp_case_of_run(recorded(IN_PAIRS)), [1.0], search=False)
    assert not any("reduces gradients" in each for each in whole.reasons)
    for one, other in zip(result.scenarios, whole.scenarios, strict=True):
        assert one.predicted_step_ns == pytest.approx(other.predicted_step_ns, rel=0.01)


@pytest.mark.parametrize("steps", [range(STEPS), (1, 3, 5)], ids=["every step", "every other"])
def test_what_follows_the_optimizer_averages_parameters_and_is_no_bucket(steps: Sequence[int]) -> None:
    """Its size is that of all gradients: only when it is called tells it from a single bucket."""
    with pytest.raises(InputError, match="local SGD"):
        ddp_case_of_run(changed(recorded(IN_PAIRS), lambda each: averaging(each, steps=list(steps))))


def test_what_an_optimizer_reduces_inside_of_operations_are_no_parameters() -> None:
    """As gradients of DTensor that it gets in parts. A hook of the optimizer averages between operations."""

    def around(timeline: RankTimeline, name: str) -> RankTimeline:
        made = averaging(timeline, steps=list(range(STEPS)))
        names, begins = NameTable(made.names), made.collectives.launch_ns - 5 * TICK_NS
        host = make(
            HostSpans, begins.size, lane=0, kind=OPERATION, name=names.code(name), correlation=NONE, start_ns=begins,
            end_ns=begins + 40 * TICK_NS,
        )  # fmt: skip
        known = replace(made.recordings, host_events=np.ones_like(made.recordings.host_events))
        return replace(made, host=host, names=tuple(names.to_list()), recordings=known)

    for name, averages in (("aten::lerp_", False), ("Optimizer.step#SGD.step", True), ("c10d::allreduce_", True)):
        run = changed(recorded(IN_PAIRS), lambda each, name=name: around(each, name))
        assert [averages_parameters(each) for each in run.ranks.values()] == [averages] * len(run.ranks)


def gradient_names(tmp_path: Path, shapes: Sequence[list[int]], forwards: int) -> list[str]:
    """Return the names of a step's gradients from a trace with so many passes of DDP's forward."""
    events = [kineto.step(3, 0, 90 * MS), kineto.step(4, 91 * MS, 9 * MS)]
    events += [
        kineto.annotation("DistributedDataParallel.forward", (1 + 40 * turn) * MS, MS) for turn in range(forwards)
    ]
    for at, shape in enumerate(shapes):
        args = {"Input Dims": [shape], "Input type": ["float"]}
        events.append(kineto.op("torch::autograd::AccumulateGrad", (10 + 10 * at) * MS, MS, args=args))
    path = tmp_path / "rank0.json"
    path.write_bytes(kineto.write(events, metadata=kineto.distributed(0, 2)))
    timeline = read_inputs([path]).ranks[0]
    return [timeline.names[code] for code in timeline.gradients.name.tolist()]


def test_passes_of_a_plain_trace_have_the_same_gradients(tmp_path: Path) -> None:
    first, second = "gradient 0 (64x32)", "gradient 1 (64)"
    assert gradient_names(tmp_path, [A, B, A, B], forwards=2) == [first, second, first, second]
    assert len(set(gradient_names(tmp_path, [A, B, A, B], forwards=1))) == 4  # two layers alike, one pass
    assert len(set(gradient_names(tmp_path, [A, B, B, A], forwards=2))) == 4  # two models of one step
    assert len(set(gradient_names(tmp_path, [A, B, A], forwards=2))) == 3
    assert len(set(gradient_names(tmp_path, [A, A, A, A], forwards=0))) == 4
