"""Pauses of hosts that leave devices idle are named with ranks, steps and place; waits, work and overlapped pauses are
none, and neither are those of hosts without a core."""

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.advice.losses.host_pauses import _remedies
from overlapscope.advice.losses.host_pauses import host_pauses as recommend
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.checks.host_pauses import (
    IN_PHASE,
    CostlyPause,
    _copied_back,
    _device_step,
    _Traits,
    _traits,
    _why,
    host_pauses,
    of_step_alone,
)
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.found_causes import HostLoss
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.result import Recommendation
from overlapscope.analysis.stragglers.long_pauses import BEGIN, END
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text.analysis import idle_text
from overlapscope.timeline.columns import ANNOTATION, COPY, HOST, NONE, OPERATION, RUNTIME, concat, take
from overlapscope.timeline.intervals import union
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.conftest import shared_file
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline

US, MS = 1_000, 1_000_000
STEP, STEPS, LAUNCHES = 51 * MS, 3, 30
Pauses = Callable[[int, int], dict[int, float]]
"""By (step, rank): how many ms the host pauses before which launches, by number."""


def run(pauses: Pauses, *, during: str | None = None, lead: int = 0, ranks: int = 2) -> Run:
    """Return ranks that launch a kernel every ms and then an all-reduce, which all wait for.

    `during` is what the host is in while it pauses: an operation, a call (`cuda...`), or a range ("## ... ##"). `lead`
    kernels take no time on the host: the device is so many ms behind.
    """
    calls_ns = [
        max(_launches(step, pauses(step, rank), lead)[-1] for rank in range(ranks)) + (lead + 1) * MS
        for step in range(STEPS)
    ]
    return Run(
        world_size=ranks,
        ranks={rank: _timeline(rank, pauses, during, lead, calls_ns, ranks) for rank in range(ranks)},
        groups=(Group(name="g", size=ranks, ranks=tuple(range(ranks))),),
        fingerprint={"backend": "nccl"},
    )


def _launches(step: int, pauses: dict[int, float], lead: int) -> list[int]:
    at, found = EPOCH_NS + step * STEP + MS, []
    for number in range(LAUNCHES):
        at += round(pauses.get(number, 0) * MS)
        found.append(at)
        at += 50 * US if number < lead else MS
    return found


def _timeline(
    rank: int, pauses: Pauses, during: str | None, lead: int, calls_ns: Sequence[int], ranks: int
) -> RankTimeline:
    host: list[dict[str, Any]] = []
    begun = EPOCH_NS + 100 * US  # before any operation
    first = {"step": 7, "name": "fill", "start_ns": begun + 50 * US, "end_ns": begun + 100 * US}
    work: list[dict[str, Any]] = [{**_launched(host, begun), **first}]
    sent: list[dict[str, Any]] = []
    notes: list[dict[str, Any]] = []
    for step in range(STEPS):
        own, free_ns = pauses(step, rank), 0
        launches = _launches(step, own, lead)
        for number, at in enumerate(launches):
            if number in own and during is not None:
                times = {"name": during, "start_ns": at - round(own[number] * MS) - 10 * US, "end_ns": at - 10 * US}
                kind = ANNOTATION if during[0] == "#" else RUNTIME if during.startswith("cuda") else OPERATION
                (notes if kind == ANNOTATION else host).append({"lane": 2, "kind": kind, **times})
            name = "aten::relu" if number % 2 else "aten::linear"
            host.append({"lane": 2, "kind": OPERATION, "name": name, "start_ns": at, "end_ns": at + 40 * US})
            free_ns = max(free_ns, at + 20 * US) + 980 * US
            work.append(
                {
                    **_launched(host, at),
                    "step": 7 + step,
                    "name": "gemm",
                    "start_ns": free_ns - 980 * US,
                    "end_ns": free_ns,
                }
            )
        host.append({"lane": 2, "kind": OPERATION, "name": "c10d::allreduce_", "start_ns": launches[-1] + 50 * US,
                     "end_ns": launches[-1] + 90 * US})  # fmt: skip
        sent.append({**_launched(host, launches[-1] + 50 * US), "op": "all_reduce", "group": "g", "seq": step,
                     "group_size": ranks, "bytes": 1 << 20, "step": 7 + step, "start_ns": free_ns,
                     "end_ns": calls_ns[step] + 2 * MS})  # fmt: skip
    begin, end = EPOCH_NS, EPOCH_NS + STEPS * STEP
    return rank_timeline(
        rank, calls=sent, work=work, host=sorted(host, key=lambda each: (each["start_ns"], -each["end_ns"])),
        recordings=[{"start_ns": begin, "end_ns": end, "host_events": True, "last_launch_ns": host[-1]["start_ns"]}],
        steps=[
            {"step": 7 + n, "start_ns": begin + n * STEP, "end_ns": begin + (n + 1) * STEP} for n in range(STEPS)
        ],
        lanes=[{"label": "7"}, {"label": "20"}, {"kind": HOST, "label": "training"}],
        annotations=[{name: each[name] for name in ("lane", "name", "start_ns", "end_ns")} for each in notes],
    )  # fmt: skip


def _launched(host: list[dict[str, Any]], at: int) -> dict[str, Any]:
    """Add a launch inside of an operation, and return what its span knows of it."""
    times = {"start_ns": at + 10 * US, "end_ns": at + 15 * US, "correlation": len(host)}
    host.append({"lane": 2, "kind": RUNTIME, "name": "cudaLaunchKernel", **times})
    return {"launch_ns": times["start_ns"], "correlation": times["correlation"]}


def named(job: Run) -> list[Finding]:
    return [each for each in analyze(job).findings if each.id == "host_pauses"]


def in_turn(step: int, rank: int) -> dict[int, float]:
    """Return a pause of 10 ms and more of one rank in each step: of rank 0 in step 8, of rank 1 in the others."""
    return {3: 10.0 + step} if rank == (step != 1) else {}


def test_pauses_of_ranks_in_turn_are_named_with_their_steps_and_place_and_cost() -> None:
    (found,) = named(run(in_turn))
    assert found.title == (
        "hosts paused for 11.0 to 13.0 ms (rank 1 in steps 7, 9; rank 0 in step 8), between aten::linear and "
        "aten::relu, 3.0 ms into the step; the device that lost most was idle for 11.0 ms a step, and others waited up "
        "to 12.0 ms for it: garbage collection, a logger, a file, a lock or a lost core"
    )
    assert [(each["rank"], each["step"]) for each in found.evidence["pauses"]] == [(1, 9), (0, 8), (1, 7)]


def advice(job: Run) -> dict[str, Recommendation]:
    return {each.id: each for each in analyze_with_advice(job).recommendations}


def test_the_advice_counts_the_rank_that_loses_most_in_each_step_and_comes_before_launches() -> None:
    found = advice(run(in_turn))
    assert next(iter(found)) == "host_pauses"
    assert found["host_pauses"].title.startswith("Find what stops the hosts of ranks 0, 1, now one, now another: they ")
    assert found["host_pauses"].loss_ns == pytest.approx(11 * MS, rel=0.01)
    assert "gc.freeze(); gc.disable()" in found["host_pauses"].apply["python"]
    assert "compile" not in str(found["host_pauses"].apply)


def test_what_pauses_of_a_single_step_cost_is_of_that_step_and_not_a_mean() -> None:
    """In the mean it is 6 ms in each of 3 steps, which none lost."""
    found = advice(run(lambda step, _: {3: 18.0} if step == 1 else {}))["host_pauses"]
    assert found.title.endswith("and a device idles for 18 ms of a 135 ms recording, in step 8 alone")
    assert (found.per, found.loss_ns) == ("recording", pytest.approx(18 * MS, rel=0.01))
    (named_pauses,) = named(run(lambda step, _: {3: 18.0} if step == 1 else {}))
    assert "the device that lost most was idle for 18.0 ms in step 8:" in named_pauses.title
    (mostly,) = named(run(lambda step, _: {3: 18.0 if step == 1 else 4.0 * (step == 2)} if step else {}))
    assert "was idle for 18.0 ms in step 8 alone:" in mostly.title


def test_of_one_rank_that_pauses_in_each_step_the_range_is_named() -> None:
    (found,) = named(run(lambda _, rank: {3: 10.0} if rank else {}, during="## logging ##"))
    assert "the host paused for 11.0 ms (rank 1 in each of 3 steps), between" in found.title
    assert "in ## logging ##" in found.title
    assert not found.evidence["in_turn"]


def test_the_share_of_idle_time_in_pauses_follows_its_causes() -> None:
    assert "% of all idle time in pauses of hosts of 3 ms or longer" in idle_text(analyze(run(in_turn)))
    assert "pauses of hosts" not in idle_text(analyze(run(lambda *_: {})))


@pytest.mark.parametrize(
    ("pauses", "during", "lead"),
    [
        pytest.param(lambda *_: {3: 1.9}, None, 0, id="short"),
        pytest.param(lambda step, rank: {3: 2.5} if (step, rank) == (0, 0) else {}, None, 0, id="costs little"),
        pytest.param(in_turn, "aten::randperm", 0, id="in an operation"),
        pytest.param(in_turn, "cudaStreamSynchronize", 0, id="in a synchronisation"),
        pytest.param(in_turn, "cudaModuleLoadData", 0, id="in a call of the driver"),
        pytest.param(in_turn, "## gc ##", 0, id="recorded as garbage collection"),
        pytest.param(in_turn, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", 0, id="loads data"),
        pytest.param(lambda *_: {20: 10.0}, None, 18, id="overlapped by work of the device"),
    ],
)
def test_what_is_short_or_known_or_costs_nothing_is_not_named(pauses: Pauses, during: str | None, lead: int) -> None:
    assert named(run(pauses, during=during, lead=lead)) == []


def test_a_host_that_stops_often_and_anywhere_may_lack_a_core() -> None:
    often = run(lambda step, _: {3 + 3 * number + (number + step) % 2: 3.2 for number in range(5)})
    assert named(often) == []
    at_one_place = run(lambda *_: {3 + 2 * number: 3.2 for number in range(5)})
    assert len(named(at_one_place)) == 1


def test_one_host_alone_that_stops_often_and_anywhere_is_named() -> None:
    """Rank 1 stops for 3.2 ms five times in each step, now here, now there; rank 0 never does."""

    def anywhere(step: int, rank: int) -> dict[int, float]:
        return {3 + 3 * number + (number + step) % 2: 3.2 for number in range(5)} if rank else {}

    (found,) = named(run(anywhere))
    assert found.title.startswith("the host paused 15 times, for 4.2 ms (rank 1 in each of 3 steps), at several places")
    assert found.title.endswith(
        "the host of the other rank hardly pauses, so perhaps it loses its core, or another thread of it holds "
        "Python's lock"
    )
    assert (found.evidence["ranks"], found.evidence["anywhere"]) == ([1], True)
    assert ", at many places, and its device idles for " in advice(run(anywhere))["host_pauses"].title


def test_pauses_of_one_host_stand_for_all_only_where_nearly_all_idle_time_is_in_them() -> None:
    """Rank 1 stops fifteen times for 3.2 ms, and rank 0 once: a tenth of its peer's idle time, or as much as it."""

    def most(once_ms: float) -> Pauses:
        def pauses(step: int, rank: int) -> dict[int, float]:
            often = {3 + 3 * number + (number + step) % 2: 3.2 for number in range(5)}
            return often if rank else {20: once_ms} if step == 1 else {}

        return pauses

    (found,) = named(run(most(3.2)))
    assert (found.evidence["ranks"], found.evidence["anywhere"]) == ([1], True)
    assert not any(each.evidence["anywhere"] for each in named(run(most(15.0))))


def test_a_pause_before_the_first_operation_may_be_the_profilers_at_its_start() -> None:
    (found,) = named(run(lambda step, _: {0: 18.0} if step == 0 else {}))
    assert ", between the begin and aten::linear, " in found.title
    assert found.title.endswith(
        "the start of the profiler, garbage collection, a logger, a file, a lock or a lost core"
    )
    assert found.evidence["at_begin"]


def pause(before: str, after: str = "aten::mm") -> CostlyPause:
    return CostlyPause(
        rank=0, step=7, start_ns=0, paused_ns=10 * MS, idle_ns=10 * MS, waited_ns=0, into_step_ns=0, before=before,
        after=after, inside=None,
    )  # fmt: skip


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


def in_range(
    during: str, around: str | None = None, *, launches: bool = False, only: int | None = None, before: int = 3
) -> Run:
    """Return two ranks that pause for 10 ms in a range in each step, or only in one, before this launch; `launches`:
    the range goes on over the next launch, which is then no part of a pause. `around` is the name of a range around
    it."""
    job = run(lambda step, _: {before: 10.0} if only in (None, step) else {}, during=during)
    for timeline in job.ranks.values():
        notes = timeline.annotations
        if launches:
            notes.end_ns[:] += 500 * US
        if around is not None:
            names = (*timeline.names, around)
            outer = replace(
                notes, name=np.full(notes.name.size, len(names) - 1, np.int64), start_ns=notes.start_ns - US
            )
            tables = {
                each: np.concatenate([getattr(outer, each), getattr(notes, each)]) for each in notes.__struct_fields__
            }
            job.ranks[timeline.rank] = replace(timeline, names=names, annotations=replace(notes, **tables))  # type: ignore[index]
    return job


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


def test_own_code_of_any_length_is_no_compilation_and_may_fetch_a_batch() -> None:
    long = msgspec.structs.replace(pause("aten::mm", "aten::to"), paused_ns=300 * MS)
    why = _why([long], range(1), _Traits(own_code=True))
    assert why.startswith("a batch that is fetched, as copies follow, the program's own code there")
    assert "compilation" not in why


def test_no_rank_waits_for_pauses_that_it_has_as_well() -> None:
    """Rank 1 launches 1.9 ms later for what is no pause; a pause of 4 ms more is waited for, but not those 1.9 ms."""

    def late(more_ms: float) -> Finding:
        (found,) = named(run(lambda _, rank: {3: 10.0 + more_ms * rank, 20: 1.9 * rank}))
        return found

    for alike in (late(0.0), late(0.3)):
        assert {each["waited_ns"] for each in alike.evidence["pauses"]} == {0}
        assert "others waited" not in alike.title
    assert ", and others waited up to 4.0 ms for it: " in late(4.0).title


@pytest.mark.parametrize(
    ("unknown", "waited_ms"),
    [
        pytest.param((), [0, 0, 4], id="none"),
        pytest.param([(0, 2)], [0, 0, 0], id="the peer's of that call"),
        pytest.param([(0, 1)], [0, 0, 0], id="the peer's of the call before"),
        pytest.param([(1, 2)], [0, 0, 0], id="its own: no call is known to follow the pause"),
        pytest.param([(0, 0)], [0, 0, 4], id="another one"),
    ],
)
def test_what_is_waited_for_pauses_is_not_known_without_launches(
    unknown: Sequence[tuple[int, int]], waited_ms: list[int]
) -> None:
    """Both ranks pause for 10 ms in each step, rank 1 in the last one for 4 ms more; in each it launches 1.9 ms later
    for what is no pause. Launches of some calls, by (rank, step), are not known."""
    job = run(lambda step, rank: {3: 10.0 + 4 * rank * (step == 2), 20: 1.9 * rank})
    for rank, step in unknown:
        job.ranks[rank].collectives.launch_ns[step] = NONE
    (found,) = named(job)
    pauses = sorted((each["step"], each["waited_ns"]) for each in found.evidence["pauses"] if each["rank"] == 1)
    assert [round(ns / MS) for _, ns in pauses] == waited_ms


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
    assert "TORCH_LOGS=recompiles" in _remedies({"may_compile": True})["torch"]
    assert "recompiles" not in advice(run(in_turn))["host_pauses"].apply["torch"]


def test_it_is_said_how_often_hosts_pause_in_a_step() -> None:
    (twice,) = named(run(lambda step, _: {3: 8.0, 7: 8.0} if step == 1 else {}))
    assert twice.title.startswith("hosts paused 2 times a step, for 9.0 ms (ranks 0, 1 in step 8)")
    (mostly,) = named(run(lambda step, rank: {3: 8.0} | ({7: 8.0} if rank else {}) if step == 1 else {}))
    assert mostly.title.startswith("hosts paused up to 2 times a step, for 9.0 ms")
    found = advice(run(lambda step, _: {3: 8.0, 7: 8.0} if step == 1 else {}))["host_pauses"]
    assert ": they pause 2 times a step, for 8.96 ms each," in found.title


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


@pytest.mark.parametrize(("loads_at_ms", "fetched"), [(None, True), (-1.0, True), (-26.0, False)])
def test_no_batch_is_fetched_where_ranges_that_fetch_were_recorded_beside_no_pause(
    loads_at_ms: float | None, *, fetched: bool
) -> None:
    job, found = beside("aten::to", loads_at_ms=loads_at_ms)
    why = _why(found, [0, 1], _traits(job, found))
    assert ("a batch that is fetched" in why) == fetched


@pytest.mark.parametrize(("copies_ms", "said"), [(3.0, True), (0.01, False), (0.0, False)])
def test_what_a_host_does_with_what_was_copied_to_it_may_be_why_it_pauses(copies_ms: float, *, said: bool) -> None:
    job, found = beside("aten::mm", copies_ms=copies_ms)
    why = _why(found, [0, 1], _traits(job, found))
    assert why.startswith("what it does with what was copied to it just before, garbage") == said


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
    assert ".cpu()" in _remedies({"copied_back": True})["torch"]


def test_of_pauses_of_different_lengths_the_longest_is_told() -> None:
    job = run(lambda step, rank: {3: 4.0 + 30 * (step == 1)} if rank else {})
    assert round(named(job)[0].evidence["paused_ns"] / MS) == 35
    assert ": it pauses for up to 35 ms" in advice(job)["host_pauses"].title
    assert "up to" not in advice(run(in_turn))["host_pauses"].title


def test_ranks_beyond_those_that_are_listed_are_all_recorded_ones() -> None:
    (found,) = named(run(lambda *_: {3: 10.0}, ranks=9))
    assert "(all 9 recorded ranks in each of 3 steps)" in found.title
    assert "the hosts of all 9 recorded ranks" in advice(run(lambda *_: {3: 10.0}, ranks=9))["host_pauses"].title
    (most,) = named(run(lambda _, rank: {3: 10.0} if rank else {}, ranks=10))
    assert "(ranks 1, 2, 3, 4, 5, 6, 7, 8 and 1 more in each of 3 steps)" in most.title


def test_what_idles_a_device_is_no_pause_once_its_next_work_is_launched() -> None:
    """The kernel after the pause of rank 1 was launched before it, as one that waits for another device."""
    job = run(lambda step, rank: {12: 20.0} if rank and step == 1 else {})
    (found,) = named(job)
    (each,) = found.evidence["pauses"]
    spans = job.ranks[1].spans
    after = np.flatnonzero(spans.start_ns >= each["start_ns"] + each["paused_ns"])
    first = after[spans.start_ns[after].argmin()]
    spans.launch_ns[first] = each["start_ns"] + 8 * MS
    (less,) = named(job)
    assert less.evidence["pauses"][0]["idle_ns"] == pytest.approx(each["idle_ns"] - 13 * MS, abs=MS)
    spans.launch_ns[first] = each["start_ns"] - US
    assert not named(job)


@pytest.mark.parametrize(
    ("at_ms", "step", "device_step", "said"),
    [
        pytest.param(20, 7, 7, "in step 7", id="both in one step"),
        pytest.param(51.2, 8, 7, "between steps 7 and 8", id="the device is in the step before"),
        pytest.param(-20, 7, None, "before the first kernel of step 7", id="in no step of the device"),
    ],
)
def test_the_step_of_a_pause_is_that_of_the_device_and_that_of_the_host(
    at_ms: float, step: int, device_step: int | None, said: str
) -> None:
    here = replace(pause("aten::mm"), start_ns=EPOCH_NS + round(at_ms * MS), paused_ns=MS // 2)
    found = _device_step(run(lambda *_: {}), [here], None)
    assert found == device_step
    assert of_step_alone(step, found) == said


def test_of_a_step_alone_no_pause_of_another_step_tells_the_step_of_the_device() -> None:
    before = replace(pause("aten::mm"), start_ns=EPOCH_NS - 20 * MS, paused_ns=MS // 2, step=7)
    inside = replace(pause("aten::mm"), start_ns=EPOCH_NS + 20 * MS, paused_ns=MS // 2, step=9)
    assert _device_step(run(lambda *_: {}), [before, inside], 7) is None
    assert _device_step(run(lambda *_: {}), [before, inside], None) == 7


def test_pauses_before_the_first_kernel_are_in_no_steps_time() -> None:
    """The marks of steps begin, and hosts pause, before a device computes anything."""
    job = run(lambda step, _: {0: 18.0} if step == 0 else {})
    for timeline in job.ranks.values():
        spans = timeline.spans
        spans.kind[np.argmin(spans.start_ns)] = COPY
    (found,) = named(job)
    assert found.evidence["device_step"] is None
    assert "for 18.8 ms before the first kernel of its step, which the time of a step does not hold: " in found.title
    assert "pauses of hosts" not in idle_text(analyze(job)), "of the idle time of steps they are no share"


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


def beginning(silent_ms: float, *, mark_ms: float | None = None, device: bool = False) -> Run:
    """Return two ranks whose first step's mark begins so long before their first call, and lasts `mark_ms` instead of
    51; `device`: a span of the device comes before that call."""
    job = run(lambda *_: {})
    for timeline in job.ranks.values():
        first = int(timeline.host.start_ns.min())
        begin = first - round(silent_ms * MS)
        timeline.steps.start_ns[0] = begin
        timeline.steps.end_ns[0] = begin + round(MS * (51 + silent_ms if mark_ms is None else mark_ms))
        timeline.recordings.start_ns[0] = begin
        if device:
            at = int(timeline.spans.start_ns.argmin())
            timeline.spans.start_ns[at], timeline.spans.end_ns[at] = begin, begin + 10 * US
    return job


def test_a_host_that_makes_no_call_as_the_first_step_begins_is_named_with_what_its_mark_is_longer() -> None:
    (found,) = named(beginning(40.0))
    assert found.title.startswith(
        "the hosts of ranks 0, 1 make no call for 40.000 ms as step 7 begins: its mark lasts 91.000 ms, those of other "
        "steps 51.000 ms. What was launched before is not recorded, so the device may have been busy meanwhile"
    )
    assert (found.evidence["idle_ns"], found.evidence["cost_ns"]) == (0, 40 * MS)
    first = advice(beginning(40.0))["host_pauses"]
    assert (first.id, first.per, first.loss_ns) == ("host_pauses", "recording", 40 * MS)
    assert "the step's mark lasts 91 ms, 40 ms more than others" in first.title
    assert first.gpu_hours_a_day is None


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(beginning(2.9), id="short"),
        pytest.param(beginning(40.0, mark_ms=55.0), id="the step is hardly longer for it"),
        pytest.param(beginning(40.0, device=True), id="a device worked meanwhile"),
    ],
)
def test_a_begin_that_is_short_or_costs_nothing_is_not_named(job: Run) -> None:
    assert not any(each.evidence["before_any_call"] for each in named(job))


def test_where_hosts_share_cores_that_is_why_they_pause() -> None:
    cores = Finding(id="shared_cores", severity="warning", title="", evidence={}, known_from="trace")
    assert host_pauses(run(in_turn), {}, (), STEP, [cores]) == []
    real = analyze(read_inputs([shared_file("kineto/megatron_tp8")]))
    assert {"shared_cores", "host_pauses"} & {each.id for each in real.findings} == {"shared_cores"}


def unmarked(job: Run) -> Run:
    """Return a run without marks of steps."""
    none = rank_timeline(0).steps
    return replace(job, ranks={rank: replace(each, steps=none) for rank, each in job.ranks.items()})


def test_without_marks_of_steps_pauses_that_recur_at_one_place_are_named_of_the_recording() -> None:
    job = unmarked(run(lambda step, rank: {3: 19.0} if rank == 0 and step else {}))
    (found,) = named(job)
    assert found.title.startswith(
        "the host paused 2 times, for 20.0 ms (rank 0), between aten::linear and aten::relu; the device that lost most "
        "was idle for "
    )
    assert " ms in the recording: garbage collection" in found.title, "of rank 1 it is not known whether it paused"
    assert (found.evidence["steps"], found.evidence["in_turn"]) == ([], False)
    advised = advice(job)["host_pauses"]
    assert advised.per == "recording"
    assert ": it pauses 2 times a recording, for 20 ms each, after aten::linear, and its device idles" in advised.title
    once = unmarked(run(lambda step, rank: {3: 50.0} if rank == 0 and step == 1 else {}))
    assert not named(once), "it may be what comes before a loop"


def test_without_marks_of_steps_a_single_longer_pause_elsewhere_takes_nothing_from_one_that_recurs() -> None:
    """One that all hosts have once, before the loop, idles devices for longer in sum."""
    job = unmarked(run(lambda step, rank: {0: 20.0} if step == 0 else {3: 19.0} if rank == 0 else {}))
    (found,) = named(job)
    assert "paused 2 times, for 20.0 ms (rank 0), between aten::linear and aten::relu; " in found.title


def test_without_marks_of_steps_the_cost_is_of_all_recordings_of_a_rank() -> None:
    job = unmarked(run(lambda step, rank: {3: 19.0} if rank == 0 and step else {}))
    cut = EPOCH_NS + 2 * STEP

    def in_two(timeline: RankTimeline) -> RankTimeline:
        own, spans, calls = timeline.recordings, timeline.spans, timeline.collectives
        return replace(
            timeline,
            recordings=replace(
                concat([own, own]), start_ns=np.array([EPOCH_NS, cut]), end_ns=np.array([cut, EPOCH_NS + STEPS * STEP])
            ),
            spans=replace(spans, recording=(spans.start_ns >= cut).astype(spans.recording.dtype)),
            collectives=replace(calls, recording=(calls.start_ns >= cut).astype(calls.recording.dtype)),
            host=replace(
                timeline.host, recording=(timeline.host.start_ns >= cut).astype(timeline.host.recording.dtype)
            ),
        )

    parted = replace(job, ranks={rank: in_two(each) for rank, each in job.ranks.items()})
    (one,), (two,) = named(job), named(parted)
    assert (two.evidence["of_steps"], two.evidence["cost_ns"]) == (2, one.evidence["cost_ns"])


def test_a_pause_after_a_wait_that_had_used_up_the_hosts_lead_says_so() -> None:
    job = run(in_turn)
    whole = union((np.array([EPOCH_NS]), np.array([EPOCH_NS + STEPS * STEP])))
    lost = HostLoss(kind="blocking_call", call="cudaStreamSynchronize_v3020", when=whole, longest=(0, 0))
    analysis, alone = analyze(job), summarize_ranks(job)
    charged = {rank: replace(own, host_losses=(lost,)) for rank, own in alone.items()}
    plain, after = (recommend(RuleInput.of(job, analysis, match_and_align(job), each)) for each in (alone, charged))
    assert plain
    assert after
    assert "had used up its lead" not in plain.title
    assert after.title == f"{plain.title}, after a wait (cudaStreamSynchronize) that had used up its lead"
    assert any(each.startswith("that these waits stay") for each in after.assumed)
