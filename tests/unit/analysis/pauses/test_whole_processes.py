"""A host that works for another rank of its process meanwhile does not pause."""

from collections.abc import Sequence

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.pauses.long_pauses import LongPauses
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.timeline.columns import OPERATION, RUNTIME, concat, take
from overlapscope.timeline.run import Run
from tests.unit.analysis.pauses.pausing import MS, STEPS, named, run


def of_one_process(job: Run, labels: Sequence[str]) -> Run:
    """Return the run as a single process recorded it in one file, with a thread of this name for each rank."""
    ranks = {}
    for (rank, timeline), label in zip(job.ranks.items(), labels, strict=True):
        names = (*timeline.names, "report.sqlite", "3507", label)
        process, thread = timeline.lanes.process.copy(), timeline.lanes.label.copy()
        process[2], thread[2] = len(names) - 2, len(names) - 1
        source = np.full_like(timeline.recordings.source, len(names) - 3)
        ranks[rank] = replace(
            timeline, names=names, lanes=replace(timeline.lanes, process=process, label=thread),
            recordings=replace(timeline.recordings, source=source),
        )  # fmt: skip
    return replace(job, ranks=ranks)


def test_a_host_that_launches_for_another_device_meanwhile_does_not_pause() -> None:
    """One thread drives two devices, or each has its own."""
    pausing = run(lambda _, rank: {3: 10.0} if rank else {})
    assert named(of_one_process(pausing, ["training", "training"])) == []
    (apart,) = named(of_one_process(pausing, ["training", "other"]))
    assert apart.evidence["ranks"] == [1]
    (whole,) = named(of_one_process(run(lambda *_: {3: 10.0}), ["training", "training"]))
    assert whole.evidence["ranks"] == [0, 1]


def test_what_is_around_a_pause_is_of_the_whole_process_and_the_pause_is_cut_to_its_silence() -> None:
    """Rank 0 goes on 3 ms later than rank 1 begins to pause, and launches before rank 1 goes on."""
    job = of_one_process(run(lambda _, rank: {3: 12.0} if rank else {3: 3.0, 4: 7.0}), ["training", "training"])
    (found,) = named(job)
    own = [each for each in found.evidence["pauses"] if each["rank"] == 1]
    assert {round(each["paused_ns"] / MS) for each in own} == {8}
    assert {(each["before"], each["after"]) for each in own} == {("aten::relu", "aten::linear")}


def lengths_ms(pauses: LongPauses | None) -> list[int]:
    assert pauses is not None
    return [round(ns / MS) for ns in (pauses.end_ns - pauses.start_ns).tolist()]


def test_advice_and_replays_see_the_pauses_that_the_finding_is_of() -> None:
    """Of the 13 ms that rank 1 launches nothing for itself, the host launches for rank 0 at 3 ms and at 11 ms."""
    job = of_one_process(run(lambda _, rank: {3: 12.0} if rank else {3: 3.0, 4: 7.0}), ["training", "training"])
    analysis, alone = analyze(job), summarize_ranks(job)
    given = RuleInput.of(job, analysis, match_and_align(job), alone)
    assert given.long_pauses[1] == alone[1].long_pauses
    assert lengths_ms(given.long_pauses[1]) == [8] * STEPS
    (found,) = (each.evidence for each in analysis.findings if each.id == "host_pauses")
    pauses = [each for each in found["pauses"] if each["rank"] == 1]
    assert sorted(each["start_ns"] for each in pauses) == given.long_pauses[1].start_ns.tolist()


@pytest.mark.parametrize("launches", [True, False])
def test_what_a_thread_does_for_another_rank_counts_where_it_launches_for_this_one(*, launches: bool) -> None:
    """Rank 1 has a second thread, with operations alone or with launches, in which rank 0 goes on meanwhile."""
    job = of_one_process(run(lambda _, rank: {3: 10.0} if rank else {}), ["other", "training"])
    own = job.ranks[1]
    names, host, lanes = (*own.names, "other"), own.host, concat([own.lanes, take(own.lanes, np.array([2]))])
    lanes.label[3] = len(names) - 1
    moved_kinds = (OPERATION, RUNTIME) if launches else (OPERATION,)
    rows = [int(np.flatnonzero(host.kind == kind)[0]) for kind in moved_kinds]
    lane = host.lane.copy()
    lane[rows] = 3
    order = np.lexsort((host.start_ns, lane))
    moved = replace(own, names=names, lanes=lanes, host=take(replace(host, lane=lane), order))
    found = lengths_ms(summarize_ranks(replace(job, ranks={**job.ranks, 1: moved}))[1].long_pauses)
    assert found == ([] if launches else [11] * STEPS)
