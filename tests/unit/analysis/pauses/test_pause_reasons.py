"""What may be behind pauses: what was recorded around them says so."""

from collections.abc import Mapping

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.host_pauses import _remedies
from overlapscope.analysis.pauses.costly_pauses import CostlyPause
from overlapscope.analysis.pauses.long_pauses import BEGIN, END, LongPauses
from overlapscope.analysis.pauses.pause_reasons import (
    IN_PHASE,
    OWN_CODE,
    _copied_back,
    _Traits,
    _traits,
    _why,
    pause_reason,
)
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.timeline.columns import COPY, NONE, OPERATION, concat, take
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline
from tests.unit.analysis.pauses.pausing import (
    LAUNCHES,
    MS,
    STEP,
    US,
    Pauses,
    advice,
    in_range,
    in_turn,
    named,
    pause,
    run,
)


def test_a_pause_before_the_first_operation_may_be_the_profilers_at_its_start() -> None:
    (found,) = named(run(lambda step, _: {0: 18.0} if step == 0 else {}))
    assert ", between the begin and aten::linear, " in found.title
    assert found.title.endswith(
        "the start of the profiler, garbage collection, a logger, a file, a lock or a lost core"
    )
    assert found.evidence["at_begin"]


def test_of_a_pause_before_the_first_operation_it_is_said_that_it_may_be_the_profilers() -> None:
    first, later = pause(BEGIN), pause("aten::mm")
    assert _why([first], range(2), _Traits()).startswith("the start of the profiler, garbage collection")
    assert _why([first, later], range(2), _Traits()).endswith("a lost core, or the profiler at its start")
    assert "profiler" not in _why([later], range(2), _Traits())


@pytest.mark.parametrize(("after", "fetched"), [("cudaMemcpyAsync", True), ("aten::to", True), ("aten::topk", False)])
def test_a_pause_before_a_batch_is_copied_may_be_its_fetch(after: str, fetched: bool) -> None:
    before_copies = pause("cudaStreamSynchronize", after)
    assert ("a batch that is fetched" in _why([before_copies], range(1), _Traits())) == fetched
    assert "a batch" not in _why([before_copies, pause("aten::mm")], range(1), _Traits())


def beside_short_ones(job: Run) -> Run:
    """Return the run with three ranges more of 10 us, of the same name, on each rank."""
    for rank, timeline in job.ranks.items():
        notes, at = timeline.annotations, EPOCH_NS + np.arange(3) * STEP
        short = replace(take(notes, np.zeros(3, np.int64)), start_ns=at + 45 * MS, end_ns=at + 45 * MS + 10 * US)
        job.ranks[rank] = replace(timeline, annotations=concat([notes, short]))  # type: ignore[index]
    return job


def test_a_range_that_always_lasts_as_long_as_the_pauses_is_what_the_host_does_in_whatever_steps_it_is() -> None:
    (found,) = named(run(in_turn, during="## save ##"))
    assert found.evidence["does"] == "## save ##"
    assert found.title.endswith("what it does or waits for there is the pause")
    assert "gc." not in str(advice(run(in_turn, during="## save ##"))["host_pauses"].apply)


def test_a_range_of_which_one_step_alone_is_known_is_said_first_beside_what_else_it_may_be() -> None:
    (found,) = named(in_range("## pack ##", only=1))
    assert ": what it does or waits for in ## pack ##, garbage collection" in found.title


def test_a_range_without_a_launch_that_holds_each_pause_is_what_the_host_does() -> None:
    (found,) = named(in_range("## pack ##"))
    assert found.title.endswith(
        "each time the host was in ## pack ## and launched nothing in it: what it does or waits for there is the pause"
    )
    assert (found.evidence["does"], found.evidence["in_optimizer"]) == ("## pack ##", False)
    recommendation = advice(in_range("## pack ##"))["host_pauses"]
    assert recommendation.title.startswith(
        "Shorten what keeps the hosts of ranks 0, 1 from launching: they launch nothing for 11 ms"
    )
    assert recommendation.apply.keys() == {"torch", "python"}
    assert "gc." not in str(recommendation.apply)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(in_range("## pack ##", only=1), id="in one step of three"),
        pytest.param(beside_short_ones(run(in_turn, during="## pack ##")), id="in turn, in ranges that are short else"),
    ],
)
def test_a_pause_that_comes_now_and_then_may_be_anything(job: Run) -> None:
    (found,) = named(job)
    assert found.evidence["does"] is None
    assert found.title.endswith("a lock or a lost core")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "cost"),
    [
        pytest.param(run(lambda *_: {3: 10.0}), "10.0 ms a step", id="in no range"),
        pytest.param(
            in_range("## pack ##", launches=True), "10.0 ms a step", id="the range launches something as well"
        ),
        pytest.param(
            run(lambda step, rank: {3: 10.0 + 4 * rank + 0.2 * step}),
            "14.2 ms a step, and others waited up to 4.0 ms for it",
            id="longer on one rank",
        ),
        pytest.param(run(lambda *_: {3: 10.0}, ranks=1), "10.0 ms a step", id="one rank"),
    ],
)
def test_pauses_of_one_length_at_one_place_of_each_step_of_all_ranks_are_the_programs_own_code(
    job: Run, cost: str
) -> None:
    (found,) = named(job)
    assert (found.evidence["does"], found.evidence["own_code"]) == (None, True)
    assert found.title.endswith(
        f"the device that lost most was idle for {cost}: the program's own code there, which takes the same time in "
        "every step, or gc.collect() in it"
    )
    advised = advice(job)["host_pauses"]
    assert advised.title.startswith("Shorten the program's own code that keeps the host")
    assert ", after aten::linear" in advised.title
    assert advised.apply.keys() == {"torch", "python"}
    assert "with_stack=True" in advised.apply["torch"]
    assert "gc.freeze" not in str(advised.apply)


@pytest.mark.parametrize(
    "pauses",
    [
        pytest.param(lambda _, rank: {3: 10.0} if rank else {}, id="one rank of two"),
        pytest.param(lambda step, rank: {3: 10.0} if step or rank else {}, id="not in each step of one rank"),
        pytest.param(lambda step, _: {3: 10.0 + 2 * step}, id="longer in one step"),
        pytest.param(lambda *_: {3: 8.0, 7: 8.0}, id="twice a step"),
        pytest.param(lambda step, _: {4 if step == 1 else 3: 10.0}, id="elsewhere in one step"),
    ],
)
def test_pauses_that_ranks_or_steps_do_not_share_may_be_anything(pauses: Pauses) -> None:
    (found,) = named(run(pauses))
    assert not found.evidence["own_code"]
    assert found.title.endswith("a lock or a lost core")


def several(lengths_ms: Mapping[tuple[int, int], float], place: str = "aten::item") -> list[CostlyPause]:
    """Return pauses by (rank, step)."""
    return [
        msgspec.structs.replace(pause(place), rank=rank, step=step, paused_ns=round(ms * MS))
        for (rank, step), ms in lengths_ms.items()
    ]


def test_pauses_of_one_length_on_all_ranks_are_own_code_though_a_step_lacks_them_and_one_rank_has_others() -> None:
    job = run(lambda *_: {3: 10.0}, ranks=4)
    of_ranks = {rank: msgspec.structs.replace(own, steps=4) for rank, own in known(job).items()}
    fixed = {(rank, step): 34.7 + 0.01 * rank for rank in range(4) for step in (8, 9, 10)}
    found = pause_reason(job, several(fixed), of_ranks, anywhere=False)
    assert found.own_code
    assert found.text.startswith(OWN_CODE)

    others = several({(0, 7): 90.6}, "aten::to")
    found = pause_reason(job, [*others, *several(fixed)], of_ranks, anywhere=False)
    assert found.own_code
    assert found.text.startswith(f"{OWN_CODE} (12 of 13 pauses); behind the others garbage collection")

    for unlike in (
        fixed | {(2, 9): 35.6},
        {at: ms for at, ms in fixed.items() if at[1] != 9},
        {at: ms for at, ms in fixed.items() if at[0] != 3},
        {at: ms for at, ms in fixed.items() if at[0] < 2 or at[1] != 9},
    ):
        assert not pause_reason(job, several(unlike), of_ranks, anywhere=False).own_code


def test_own_code_of_any_length_is_no_compilation_and_may_fetch_a_batch() -> None:
    long = msgspec.structs.replace(pause("aten::mm", "aten::to"), paused_ns=300 * MS)
    why = _why([long], range(1), _Traits(own_code=True))
    assert why.startswith("a batch that is fetched, as copies follow, the program's own code there")
    assert "compilation" not in why


def test_an_optimizer_that_the_host_computes_is_named_by_any_range_around() -> None:
    """The innermost range has a name of its own: torch's mark of the optimizer is around it."""
    job = in_range("## adam ##", "Optimizer.step#CPUAdam.step")
    (found,) = named(job)
    assert found.evidence["in_optimizer"]
    assert found.title.endswith(
        "each time the host was in ## adam ## and launched nothing in it: the optimizer computes on the host"
    )
    recommendation = advice(job)["host_pauses"]
    assert recommendation.title.startswith(
        "Take the optimizer off the hosts of ranks 0, 1, or overlap it: they launch "
    )
    assert '"ratio"' in recommendation.apply["deepspeed"]


def test_what_the_host_does_is_named_also_where_no_operation_follows_the_last_pause() -> None:
    """As an optimizer on tensors of the host, behind which only calls of the runtime were recorded."""
    job = in_range("## adam ##", "Optimizer.step#AdamW.step", before=LAUNCHES - 1)

    def ends_there(timeline: RankTimeline) -> RankTimeline:
        behind = timeline.host.start_ns > timeline.annotations.start_ns.max()
        return replace(timeline, host=take(timeline.host, ~(behind & (timeline.host.kind == OPERATION))))

    cut = replace(job, ranks={rank: ends_there(each) for rank, each in job.ranks.items()})
    (found,) = named(cut)
    assert {each["after"] for each in found.evidence["pauses"]} == {"aten::relu", END}
    assert (found.evidence["does"], found.evidence["in_optimizer"]) == ("## adam ##", True)
    assert advice(cut)["host_pauses"].title.startswith(
        "Take the optimizer off the hosts of ranks 0, 1, or overlap it: "
    )


def test_long_pauses_may_be_compilation_and_most_likely_are_where_all_ranks_pause_at_once() -> None:
    long = [msgspec.structs.replace(pause("aten::mm"), rank=rank, paused_ns=300 * MS) for rank in (0, 1)]
    assert _why(long, range(2), _Traits()).startswith("compilation for a new shape, garbage collection")
    assert _why(long[:1], range(2), _Traits()).endswith("a lost core, or compilation for a new shape")
    assert _why(long, range(3), _Traits()).endswith("a lost core, or compilation for a new shape")
    assert "compilation" not in _why([pause("aten::mm")], range(1), _Traits())
    assert "TORCH_LOGS=recompiles" in _remedies({"may_compile": True}, None, 0)["torch"]
    assert "recompiles" not in advice(run(in_turn))["host_pauses"].apply["torch"]


def test_a_batch_is_not_fetched_in_forward_backward_or_the_optimizer() -> None:
    before_copies = pause("cudaStreamSynchronize", "cudaMemcpyAsync")
    assert "a batch" not in _why([before_copies], range(1), _Traits(no_batch=True))
    for name in ("DistributedDataParallel.forward", "## backward ##", "Optimizer.step#Adam.step", "optimizer"):
        assert IN_PHASE.search(name)
    assert not IN_PHASE.search("straightforward")


def beside(after: str, *, copies_ms: float = 0.0, loads_at_ms: float | None = None) -> tuple[Run, list[CostlyPause]]:
    """Return a run whose rank 0 pauses for 20 ms in steps 7 and 8, and its pauses, as if this came after each; a copy
    to the host ends as it begins, and batches are fetched in a range of 25 ms that begins so long after that."""
    job = run(lambda step, rank: {12: 20.0} if rank == 0 and step < 2 else {}, during=None)
    own = job.ranks[0]
    (pauses,) = (each.evidence["pauses"] for each in named(job))
    begins = [each["start_ns"] for each in pauses]
    copied = [
        {"kind": COPY, "name": "Memcpy DtoH (Device -> Pageable)", "lane": 0, "step": NONE, "launch_ns": NONE,
         "start_ns": at - round(copies_ms * MS), "end_ns": at}
        for at in begins if copies_ms
    ]  # fmt: skip
    loads = [
        {"lane": 2, "name": "DataLoader.__next__", "start_ns": at + round(loads_at_ms * MS),
         "end_ns": at + round((loads_at_ms + 25) * MS)}
        for at in begins if loads_at_ms is not None
    ]  # fmt: skip
    more = rank_timeline(0, work=copied, annotations=loads, names=own.names)
    added = replace(
        own, names=more.names, spans=concat([own.spans, more.spans]),
        annotations=concat([own.annotations, more.annotations]),
    )  # fmt: skip
    found = [CostlyPause(**each | {"after": after}) for each in pauses]
    return replace(job, ranks={**job.ranks, 0: added}), found


def known(job: Run) -> dict[int, LongPauses]:
    """Return the long pauses of each rank."""
    return {rank: own.long_pauses for rank, own in summarize_ranks(job).items() if own.long_pauses is not None}


@pytest.mark.parametrize(("loads_at_ms", "fetched"), [(None, True), (-1.0, True), (-26.0, False)])
def test_no_batch_is_fetched_where_ranges_that_fetch_were_recorded_beside_no_pause(
    loads_at_ms: float | None, *, fetched: bool
) -> None:
    job, found = beside("aten::to", loads_at_ms=loads_at_ms)
    why = _why(found, [0, 1], _traits(job, found, known(job), anywhere=False, perhaps_in=None))
    assert ("a batch that is fetched" in why) == fetched


@pytest.mark.parametrize(("copies_ms", "said"), [(3.0, True), (0.6, True), (0.01, False), (0.0, False)])
def test_what_a_host_does_with_what_was_copied_to_it_may_be_why_it_pauses(copies_ms: float, *, said: bool) -> None:
    job, found = beside("aten::mm", copies_ms=copies_ms)
    why = _why(found, [0, 1], _traits(job, found, known(job), anywhere=False, perhaps_in=None))
    assert why.startswith("what it does with what was copied to it just before, as images, logs or a ") == said


def test_what_becomes_of_a_copy_to_the_host_is_looked_for_before_a_collector() -> None:
    job, _ = beside("aten::mm", copies_ms=0.6)
    (found,) = named(job)
    assert found.evidence["copied"]
    python = _remedies(found.evidence, None, 0)["python"]
    assert python.index("images, logs or a checkpoint") < python.index("gc.collect()")
    assert "images" not in advice(run(in_turn))["host_pauses"].apply["python"]


@pytest.mark.parametrize(("back_us", "said"), [(60, True), (600, False), (0, False)])
def test_a_host_between_a_copy_to_it_and_one_back_that_takes_as_long_computes_with_it(
    back_us: int, *, said: bool
) -> None:
    job, found = beside("cudaMemcpyAsync", copies_ms=0.05)
    own = job.ranks[0]
    more = rank_timeline(0, names=own.names, work=[
        {"kind": COPY, "name": "Memcpy HtoD (Pageable -> Device)", "step": NONE, "launch_ns": end,
         "start_ns": end + 5 * US, "end_ns": end + (5 + back_us) * US}
        for end in (each.start_ns + each.paused_ns for each in found)
    ])  # fmt: skip
    both = replace(own, names=more.names, spans=concat([own.spans, more.spans]))
    assert _copied_back(replace(job, ranks={**job.ranks, 0: both}), found) == said
    assert not _copied_back(replace(job, ranks={**job.ranks, 0: both}), found[:1]), "one alone may be chance"


def test_what_is_computed_between_two_copies_belongs_on_the_device() -> None:
    assert _why([pause("aten::mm")], range(1), _Traits(copied_back=True)) == (
        "each time the host computed with, or sent, what was copied to it just before, and copied as much back"
    )
    before_copies = _why([pause("aten::mm", "aten::to")], range(1), _Traits(copied_back=True))
    assert before_copies.endswith("copied as much back, or a batch that is fetched, as copies follow")
    assert ".cpu()" in _remedies({"copied_back": True}, None, 0)["torch"]
