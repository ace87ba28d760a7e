"""What replays say of losses: of how many steps a gain is, which waits stay, and what does as well."""

from collections.abc import Mapping

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import by_rules
from overlapscope.advice.losses import replayed_losses
from overlapscope.advice.losses.blocked_host import LOST_NS
from overlapscope.advice.losses.replayed_losses import ONE_AHEAD, TOO_EARLY, with_replayed_gains
from overlapscope.advice.replayed_pauses import OF_PAUSES_TOO
from overlapscope.advice.rule_input import counted_loss_ns
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.rank_summary import RankSummary
from overlapscope.analysis.result import GAIN_AT_MOST, Recommendation
from overlapscope.timeline.columns import COMM, COPY, OPERATION, Annotations, HostSpans, Ints, Steps, concat, make, take
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.graph_programs import START_NS, Launch, Operation, Record, Sync, Wait, Work, simulate

US, MS = 1_000, 1_000_000
STEPS = 4
MANY = 20
"""More steps than `host_pauses` lists pauses."""
PAUSE = 5 * MS
LATER = np.zeros(0, np.int64)
"""Lags that mark a change."""
OF_RANK = "of_rank_with_most_ns"
SERVER = "vllm::rotary_embedding"
FETCH = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
COPIED = Launch(0, 10 * US, COPY, "Memcpy DtoH (Device -> Pinned)")


def draining(then: Operation = COPIED, steps: int = STEPS) -> list[Operation]:
    """Return steps that each compute, copy to the host, wait for that, and pause before they compute again."""
    step = [Launch(0, 20 * MS), then, Sync(0), Work(PAUSE)]
    return [each for _ in range(steps) for each in step] + [Launch(0, 20 * MS)]


def with_ranges(run: Run, name: str, starts: Ints, lasted_ns: int = PAUSE - 2 * US, rank: int = 0) -> Run:
    """Return a run with ranges of the thread of one of its ranks from these moments on."""
    timeline = run.ranks[rank]
    lane = int(timeline.host.lane[0])
    ranges = make(
        Annotations, starts.size, recording=0, lane=lane, name=len(timeline.names), start_ns=starts + US,
        end_ns=starts + US + lasted_ns,
    )  # fmt: skip
    named = replace(timeline, annotations=concat([timeline.annotations, ranges]), names=(*timeline.names, name))
    return replace(run, ranks={**run.ranks, rank: named})


def returned(timeline: RankTimeline) -> Ints:
    """Return when calls that wait returned."""
    return timeline.host.end_ns[rows_named(timeline.host.name, timeline.names, lambda name: "Synchronize" in name)]


def named(run: Run, name: str) -> Run:
    """Return a run of one rank whose names have one more."""
    return replace(run, ranks={0: replace(run.ranks[0], names=(*run.ranks[0].names, name))})


def read_a_number(run: Run) -> Run:
    """Return a run whose waits are made by `.item()`."""
    timeline = run.ranks[0]
    waits = take(timeline.host, rows_named(timeline.host.name, timeline.names, lambda name: "Synchronize" in name))
    item = make(
        HostSpans, waits.name.size, recording=0, lane=waits.lane, kind=OPERATION, name=len(timeline.names),
        start_ns=waits.start_ns - 1, end_ns=waits.end_ns + 1,
    )  # fmt: skip
    rows = concat([timeline.host, item])
    rows = take(rows, np.lexsort((-rows.end_ns, rows.start_ns, rows.lane)))
    names = (*timeline.names, "aten::_local_scalar_dense")
    return replace(run, ranks={0: replace(timeline, host=rows, names=names)})


def replayed(
    run: Run, found: list[Recommendation] | None = None, alone: Mapping[int, RankSummary] | None = None
) -> dict[str, Recommendation]:
    together, alone = match_and_align(run), alone or summarize_ranks(run)
    found = by_rules(run, analyze(run, together), together) if found is None else found
    return {each.id: each for each in with_replayed_gains(found, run, together, BuiltGraphs(run), alone)}


def test_a_wait_for_data_that_the_host_works_on_stays() -> None:
    run = simulate({0: draining()}).run
    waits = returned(run.ranks[0])
    assert "blocking_calls" in replayed(run), "what follows is not known to need the copy"
    assert "blocking_calls" not in replayed(with_ranges(run, "cpu_adam", waits))


MUCH = Launch(0, 60 * US, COPY, "Memcpy DtoH (Device -> Pageable)")


def test_waits_for_much_that_a_host_copies_to_itself_before_it_pauses_stay() -> None:
    """Two copies of 60 us, each waited for; of both the host has need."""
    both = [Launch(0, 20 * MS), MUCH, Sync(0), MUCH, Sync(0), Work(PAUSE)] * STEPS
    assert "blocking_calls" not in replayed(simulate({0: [*both, Launch(0, 20 * MS)]}).run)
    assert "blocking_calls" in replayed(simulate({0: draining(MUCH)}).run), "one of them may be a few figures"
    apart = [Launch(0, 20 * MS), MUCH, Sync(0), Launch(0, US), MUCH, Sync(0), Work(PAUSE)] * STEPS
    assert "blocking_calls" in replayed(simulate({0: [*apart, Launch(0, 20 * MS)]}).run)


@pytest.mark.parametrize("needs", ["gc.collect", FETCH])
def test_much_that_is_copied_before_what_needs_no_copy_keeps_no_wait(needs: str) -> None:
    run = simulate({0: draining(replace(MUCH, ns=200 * US))}).run
    found = replayed(with_ranges(run, needs, returned(run.ranks[0])))
    assert "blocking_calls" in found or "do not wait" in found["data_loading"].title


@pytest.mark.parametrize("needs", ["gc.collect", FETCH])
def test_what_needs_no_copy_keeps_no_wait(needs: str) -> None:
    run = simulate({0: draining()}).run
    found = replayed(with_ranges(run, needs, returned(run.ranks[0])))
    assert "blocking_calls" in found or "do not wait" in found["data_loading"].title


def test_a_range_that_began_before_or_goes_on_for_long_is_no_work_on_the_copy() -> None:
    run = simulate({0: draining()}).run
    waits = returned(run.ranks[0])
    assert "blocking_calls" in replayed(with_ranges(run, "train", waits - 10 * US))
    assert "blocking_calls" in replayed(with_ranges(run, "train", waits, 3 * PAUSE))


def test_a_number_that_is_read_is_no_input_of_long_work() -> None:
    run = simulate({0: draining()}).run
    waits = returned(run.ranks[0])
    assert "blocking_calls" in replayed(with_ranges(read_a_number(run), "log", waits))


def test_waiting_before_a_fetch_is_the_other_way_to_get_it_beside_the_device() -> None:
    run = simulate({0: draining()}).run
    run = with_ranges(read_a_number(run), FETCH, returned(run.ranks[0]))
    found = replayed(run)["data_loading"]
    assert "; or do not wait for the device before it (cudaStreamSynchronize, for .item() or the like)" in found.title
    assert "loss.detach()" in found.apply["instead"]
    assert "DataLoader(" in found.apply["torch"]
    without = simulate({0: [each for each in draining() if not isinstance(each, Sync)]}).length_ns
    gain_ns = simulate({0: draining()}).length_ns - without
    assert found.evidence["replayed_gain_without_waits_ns"] == pytest.approx(gain_ns, rel=0.02)
    assert found.gain_high_ns == pytest.approx(STEPS * (PAUSE - 2 * US), rel=0.02), "no sum of the two"


@pytest.mark.parametrize(("by", "is_offered"), [("_SingleProcess", True), ("_MultiProcessing", False)])
def test_workers_load_no_faster_for_a_host_that_asks_for_a_batch_earlier(by: str, *, is_offered: bool) -> None:
    run = simulate({0: draining()}).run
    name = FETCH.replace("_SingleProcess", by)
    found = replayed(with_ranges(read_a_number(run), name, returned(run.ranks[0])))
    assert ("or do not wait for the device" in found["data_loading"].title) == is_offered
    assert "blocking_calls" not in found


def test_waits_never_gain_less_than_nothing_beside_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """A replay without both may be longer than one without fetches alone."""
    run = simulate({0: draining()}).run
    fetch = FETCH.replace("_SingleProcess", "_MultiProcessing")
    run = with_ranges(read_a_number(run), fetch, returned(run.ranks[0]))
    fetching = replayed(run)["data_loading"]
    alone = replayed(simulate({0: draining()}).run)["blocking_calls"]
    monkeypatch.setattr(replayed_losses, "_both", lambda changes: replace(changes["blocking_calls"], lag_ns=LATER))
    monkeypatch.setattr(
        replayed_losses, "shortened_ns", lambda _, __, change: 5 * MS if change.lag_ns is LATER else 10 * MS
    )
    found = replayed(run, [fetching, alone])
    assert found["data_loading"].evidence["replayed_gain_ns"] == 10 * MS
    assert found.get("blocking_calls", alone).evidence["replayed_gain_ns"] == 0


def test_where_nothing_is_waited_for_there_is_no_other_way() -> None:
    step = [Work(PAUSE), Launch(0, 2 * MS)]
    run = simulate({0: [Launch(0, US), *step * STEPS]}).run
    launches = run.ranks[0].host.end_ns[:-1]
    found = replayed(with_ranges(run, FETCH, launches))["data_loading"]
    assert "or do not wait" not in found.title
    assert list(found.apply) == ["torch"]


@pytest.mark.parametrize(("first_ns", "of_steps"), [(PAUSE, STEPS), (PAUSE // 10, STEPS + 1)])
def test_a_gain_is_of_the_steps_whose_fetch_the_graph_has(first_ns: int, of_steps: int) -> None:
    """The first of five steps fetches before the first call, to which no edge leads."""
    run = simulate({0: [Work(first_ns), *draining()]}).run
    run = with_ranges(run, FETCH, returned(run.ranks[0]))
    timeline = run.ranks[0]
    before = replace(
        take(timeline.annotations, np.array([0])),
        start_ns=np.array([START_NS]), end_ns=np.array([START_NS + first_ns - US]),
    )  # fmt: skip
    steps = make(Steps, STEPS + 1, recording=0, step=np.arange(STEPS + 1))
    unmarked, alone = replayed(run)["data_loading"], summarize_ranks(run)
    run = replace(run, ranks={0: replace(timeline, annotations=concat([before, timeline.annotations]), steps=steps)})
    found = replayed(run, [replace(unmarked, per="step", bound_from="loss")], alone)["data_loading"]
    assert found.gain_high_ns == pytest.approx((unmarked.gain_high_ns or 0) / of_steps, rel=0.001)
    assert ("the mean is of 4 of 5 steps" in " ".join(found.assumed)) == (of_steps == STEPS)


def test_a_short_fetch_before_the_first_call_is_none_as_long_as_that_of_another_rank() -> None:
    """Rank 0 takes its batches at once, also before its first call; rank 1 waits for one of them."""
    short, step = 100 * US, [Launch(0, 2 * MS), Sync(0)]
    prompt = [Work(short), *[*step, Work(short)] * STEPS, Launch(0, US)]
    late = [Work(short), *step, Work(PAUSE), *[*step, Work(short)] * (STEPS - 1), Launch(0, US)]
    run = simulate({0: prompt, 1: late}).run
    for rank, lasted in ((0, short), (1, PAUSE)):
        waits = returned(run.ranks[rank])
        run = with_ranges(run, FETCH, waits if rank == 0 else waits[:1], lasted - 2 * US, rank)
        run = with_ranges(run, FETCH, np.array([START_NS]), short - 2 * US, rank)
    unmarked, alone = replayed(run)["data_loading"], summarize_ranks(run)
    steps = make(Steps, STEPS + 1, recording=0, step=np.arange(STEPS + 1))
    run = replace(run, ranks={rank: replace(each, steps=steps) for rank, each in run.ranks.items()})
    found = replayed(run, [replace(unmarked, per="step", bound_from="loss")], alone)["data_loading"]
    assert found.gain_high_ns == pytest.approx((unmarked.gain_high_ns or 0) / (STEPS + 1), rel=0.001)
    assert "first step" not in " ".join(found.assumed)


@pytest.mark.parametrize(("times", "is_said"), [(1.4, False), (1.6, True)])
def test_a_gain_far_above_the_loss_is_said_to_be_of_other_host_time_as_well(times: float, *, is_said: bool) -> None:
    step = [Launch(0, 1 * MS), Sync(), Work(300 * US)]
    run = simulate({0: [Launch(0, 100 * US), *step * 12, Launch(0, 1 * MS)]}).run
    found = replayed(run)["blocking_calls"]
    lost_ns = round((found.gain_high_ns or 0) / times)
    less = replace(
        found, loss_ns=lost_ns, gain_high_ns=lost_ns, bound_from="loss",
        assumed=["that all of it can be avoided: the gain is an upper bound"],
        evidence={**found.evidence, "of_rank_with_most_ns": lost_ns},
    )  # fmt: skip
    exposed = replace(
        less, id="exposed_communication", loss_ns=round(1.1 * lost_ns), title="Largest loss: 1 ms is exposed"
    )
    both = replayed(run, [less, exposed])
    again = both["blocking_calls"]
    assert again.loss_ns == lost_ns, "what it costs stays; the gain counts in the order"
    assert (counted_loss_ns(again) == again.gain_high_ns) == is_said
    assert both["exposed_communication"].title.startswith("Largest loss: ") != is_said
    assert again.bound_from == "replay"
    assert again.gain_high_ns == found.gain_high_ns
    assert ("a replay in which it does not is at most" in again.title) == is_said
    assert ("other host time passes beside the device" in " ".join(again.assumed)) == is_said


@pytest.mark.parametrize(
    ("name", "times", "bounds"), [(SERVER, 1.2, True), (SERVER, 0.9, False), ("train", 1.2, False)]
)
def test_of_a_server_whose_host_is_one_step_ahead_at_most_a_gain_above_the_loss_is_a_bound(
    name: str, times: float, *, bounds: bool
) -> None:
    run = named(simulate({0: draining(Launch(0, 10 * US))}).run, name)
    found = replayed(run)["blocking_calls"]
    again = replayed(run, [replace(found, loss_ns=round((found.gain_high_ns or 0) / times), evidence={OF_RANK: 10**9})])
    assert again["blocking_calls"].evidence.get(GAIN_AT_MOST, False) == bounds
    assert (ONE_AHEAD in again["blocking_calls"].assumed) == (name == SERVER)


@pytest.mark.parametrize(("name", "lasts_us"), [(SERVER, 10), (SERVER, 40), ("train", 10)])
def test_of_a_servers_waits_the_gaps_between_launches_that_follow_them_are_told_apart(name: str, lasts_us: int) -> None:
    """A host that waits for 1 ms in a step, then launches every 30 us what takes the device 10 us, or 40 us."""
    kernels = [Launch(0, 1 * MS), Sync(0), Work(100 * US), *[Launch(0, lasts_us * US), Work(30 * US)] * 10]
    run = named(simulate({0: [Launch(0, 100 * US), *kernels * STEPS, Launch(0, US)]}).run, name)
    found = {each.id: each for each in by_rules(run, analyze(run), match_and_align(run))}["blocking_calls"]
    slowly = name == SERVER and lasts_us == 10
    assert ("between launches that follow each other" in found.title) == slowly
    assert ("--enforce-eager" in found.apply.get("serving", "")) == slowly
    if slowly:
        idle_us = 9 * (30 - 10)
        assert found.evidence["launching_ns"] == pytest.approx(STEPS * idle_us * US, rel=0.3)


def test_a_number_that_is_read_takes_its_copy_and_the_way_to_it_along() -> None:
    """Rounds of a short kernel, a copy that the host waits for, and its wait; a host that leads by nothing."""
    kernel, back = Launch(0, 4 * US), Launch(0, US, COPY, "Memcpy DtoH (Device -> Pageable)")
    rounds = [kernel, Work(12 * US), back, Sync(0), Work(9 * US)] * 200
    run = simulate({0: [Launch(0, 100 * US), *rounds]})
    without = simulate({0: [Launch(0, 100 * US), *[kernel, Work(9 * US)] * 200]})
    found = replayed(run.run)["blocking_calls"]
    assert found.gain_high_ns == pytest.approx(run.length_ns - without.length_ns, rel=0.05)


@pytest.mark.parametrize(("times", "slowly"), [(1.0, False), (1.2, True)])
def test_where_less_than_the_loss_is_gained_launches_are_said_to_stay_as_slow(times: float, *, slowly: bool) -> None:
    run = simulate({0: draining(Launch(0, 10 * US))}).run
    found = replayed(run)["blocking_calls"]
    again = replayed(run, [replace(found, loss_ns=round(times * (found.gain_high_ns or 0)))])["blocking_calls"]
    assert ("launches all else as slowly as before" in " ".join(again.assumed)) == slowly


def test_a_copy_of_more_than_a_number_stays_without_the_wait_for_it() -> None:
    kernel, back = Launch(0, 4 * US), Launch(0, 8 * US, COPY, "Memcpy DtoH (Device -> Pinned)")
    run = simulate({0: [Launch(0, 100 * US), *[kernel, Work(12 * US), back, Sync(0), Work(9 * US)] * 200]})
    without = simulate({0: [Launch(0, 100 * US), *[kernel, Work(12 * US), back, Work(9 * US)] * 200]})
    gain_ns = replayed(run.run)["blocking_calls"].gain_high_ns
    # The replay leaves the call that waits what a call takes.
    assert gain_ns == pytest.approx(run.length_ns - without.length_ns - 200 * 5 * US, rel=0.1)


@pytest.mark.parametrize(
    ("begins_us", "lasts_us", "words"),
    [(0, 4_990, ", then works in schedule"), (-15_000, 19_990, ", in schedule"), (0, 2_000, "")],
)
def test_the_range_of_most_of_the_idle_time_is_named_with_the_wait(begins_us: int, lasts_us: int, words: str) -> None:
    run = simulate({0: draining(Launch(0, 10 * US))}).run
    run = with_ranges(run, "schedule", returned(run.ranks[0]) + begins_us * US, lasts_us * US)
    assert replayed(run)["blocking_calls"].title.removesuffix(OF_PAUSES_TOO).endswith(f"(cudaStreamSynchronize){words}")


@pytest.mark.parametrize("waits_too", [False, True])
def test_communication_that_only_the_host_waits_for_counts_as_what_compute_could_run_beside(*, waits_too: bool) -> None:
    gather = [Record("computed", 0), Wait("computed", 1), Launch(1, 500 * US, COMM, "ncclAllGather")]
    asks = [Record("gathered", 1), Wait("gathered", 0)] if waits_too else []
    step = [*gather, *asks, Sync(), Launch(0, 1 * MS)]
    run = simulate({0: [Launch(0, 1 * MS), *step * 12]}).run
    found = replayed(run)
    if waits_too:
        assert "blocking_calls" not in found, "the stream of compute waits for it as well"
        return
    awaited_ns = found["blocking_calls"].evidence["awaited_communication_ns"]
    assert awaited_ns == pytest.approx(12 * 500 * US, rel=0.02)
    assert found["blocking_calls"].loss_ns == awaited_ns + found["blocking_calls"].evidence["blocking_ns"]
    title = found["blocking_calls"].title
    assert "compute that may overlap up to 6 ms of communication is launched after it, because the host waits" in title
    assert "waits 0" not in title, "next to nothing is idle"


REDUCED = [Record("computed", 0), Wait("computed", 3), Launch(3, 5 * MS, COMM, "ncclAllReduce"), Record("reduced", 3),
           Wait("reduced", 0), Launch(0, US)]  # fmt: skip


@pytest.mark.parametrize("others", [[], REDUCED], ids=["alone", "beside calls that compute waits for"])
def test_compute_overlaps_no_more_communication_than_it_lasts_and_may_need_it(others: list[Operation]) -> None:
    gather = [Record("computed", 0), Wait("computed", 1), Launch(1, 3 * MS, COMM, "ncclAllGather")]
    step = [*gather, Sync(1), Record("other", 2), Wait("other", 0), Launch(0, 1 * MS), *others]
    found = replayed(simulate({0: [Launch(0, 1 * MS), Launch(2, US), *step * 12]}).run)
    waits = found["blocking_calls"]
    assert waits.evidence["awaited_communication_ns"] == pytest.approx(13 * MS, rel=0.05), "of 36 ms"
    assert any("does not need that communication" in each for each in waits.assumed)
    assert "work.wait()" in waits.apply["torch"]
    assert "exposed_communication" in found, "most of it stays"


@pytest.mark.parametrize("more_ns", [0, -1])
def test_a_replay_that_gains_more_than_is_lost_before_the_optimizer_says_nothing(more_ns: int) -> None:
    """Without the host's waits it lets the optimizer begin before the calls that it needs."""
    run = simulate({0: draining(Launch(0, 10 * US))}).run
    found = replayed(run)["blocking_calls"]
    lost_ns = (found.gain_high_ns or 0) + more_ns
    found = replace(found, gain_high_ns=lost_ns, bound_from="loss", evidence={**found.evidence, LOST_NS: lost_ns})
    again = replayed(run, [found])["blocking_calls"]
    assert (again.gain_high_ns, again.bound_from) == (lost_ns, "replay" if more_ns == 0 else "loss")
    assert (TOO_EARLY in again.assumed) == (more_ns < 0)


@pytest.mark.parametrize("steps", [STEPS, 40], ids=["all listed", "more than are listed"])
def test_pauses_after_waits_and_these_waits_are_said_to_be_the_same_time(steps: int) -> None:
    run = simulate({0: draining(steps=steps)}).run
    found = replayed(with_ranges(read_a_number(run), "prepare", returned(run.ranks[0])))
    assert "; most of it is time that blocking_calls names, too" in found["host_pauses"].title
    assert OF_PAUSES_TOO in found["blocking_calls"].title


def test_pauses_far_longer_than_what_the_device_works_stay_without_the_waits_before_them() -> None:
    step = [Launch(0, 2 * MS), Sync(0), Work(PAUSE)]
    found = replayed(simulate({0: [*step * STEPS, Launch(0, 2 * MS)]}).run)
    assert "blocking_calls names, too" not in found["host_pauses"].title, "without the waits most of a pause stays"
    assert OF_PAUSES_TOO in found["blocking_calls"].title


@pytest.mark.parametrize(("steps", "late"), [(MANY, MANY), (MANY + 1, MANY), (MANY + 2, MANY + 2)])
def test_a_gain_without_waits_is_of_the_steps_in_which_a_host_pauses_after_one(steps: int, late: int) -> None:
    run = simulate({0: draining(steps=MANY)}).run
    run = with_ranges(read_a_number(run), "prepare", returned(run.ranks[0]))
    timeline, alone, found = run.ranks[0], summarize_ranks(run)[0], replayed(run)["host_pauses"]
    assert alone.long_pauses is not None
    found = replace(found, per="step", evidence={**found.evidence, "steps": list(range(MANY))})
    own = replace(alone, long_pauses=replace(alone.long_pauses, step=np.arange(MANY)))
    marked = replace(timeline, steps=make(Steps, steps, recording=0, step=np.arange(steps)))
    waits = replayed(replace(run, ranks={0: marked}), [found], {0: own})["blocking_calls"]
    assert waits.gain_high_ns == pytest.approx(MANY * PAUSE / late, rel=0.01)
