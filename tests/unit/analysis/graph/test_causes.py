"""Causes of idle and of exposed time: small programs with known answers, and a plain count over random ones."""

import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.answers import Link
from overlapscope.analysis.graph.building import build
from overlapscope.analysis.graph.building.build import graph_too_large, rank_graph, run_graph
from overlapscope.analysis.graph.explained import chain_before
from overlapscope.analysis.graph.exposed import exposed_pieces
from overlapscope.analysis.graph.idle import (
    BY_CALL,
    BY_POLL,
    DRAINED,
    IDLE_CAUSES,
    LAUNCH_BOUND,
    NO_STRETCH,
    idle_pieces,
)
from overlapscope.analysis.graph.model import EDGE_KINDS, LAUNCH, Graph
from overlapscope.analysis.graph.walk import binding_edges
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.report.text.chain import link_words
from overlapscope.timeline.columns import COMM, COPY, HOST, NONE, OPERATION
from overlapscope.timeline.intervals import difference, length, union
from overlapscope.timeline.run import Run
from tests.support.graph_programs import (
    START_NS,
    CopyBack,
    Launch,
    Operation,
    Program,
    Record,
    Simulated,
    Sync,
    Wait,
    Work,
    simulate,
)
from tests.support.rank_rows import rank_timeline
from tests.unit.analysis.graph.graph_figures import RankFigures, graph_figures
from tests.unit.analysis.graph.test_oracle import programs
from tests.unit.analysis.graph.test_rules import polling, trace

US = 1_000


def figures(simulated: Simulated) -> RankFigures:
    found = graph_figures(simulated.run, match_and_align(simulated.run))
    assert found
    assert found.self_test.windows[0].error == 0
    return found.ranks[0]


def idle(*program: Operation) -> dict[str, int]:
    """Return the causes of idle time, in us; the program's first kernel takes 10 us."""
    return {
        cause: taken // US
        for cause, taken in figures(simulate({0: [Launch(0, 10 * US), *program]})).idle_causes.items()
    }


def exposed(*program: Operation, b: int = 400 * US) -> dict[str, int]:
    found = figures(simulate({0: [Launch(0, 10 * US), *program]}, {"a": 400 * US, "b": b})).exposed_causes
    return {cause: taken // US for cause, taken in found.items()}


def test_a_late_launch_is_launch_bound_but_for_its_latency() -> None:
    # The first kernel runs from 4 to 14; the second is launched at 103.
    assert idle(Work(100 * US), Launch(0, 10 * US)) == {"launch_bound": 103 - 14, "launch_latency": 4}


@pytest.mark.parametrize(("work_us", "stretch"), [(100, "rate"), (1_000, "pause"), (5_000, "long_pause")])
def test_launch_bound_time_is_told_apart_by_the_length_of_the_stretch(work_us: int, stretch: str) -> None:
    found = figures(simulate({0: [Launch(0, 10 * US), Work(work_us * US), Launch(0, 10 * US)]}))
    assert list(found.launch_bound_ns) == [stretch]


def test_time_after_a_synchronisation_is_what_removing_it_saves() -> None:
    before = [Launch(0, 1_000 * US)]
    after = [Work(100 * US), Launch(0, 10 * US)]
    found = idle(*before, Sync(), *after)
    assert found == {"drained": 104, "device_wait": 1}, "a host that leads hides the latency of a launch, too"
    with_it, without = (
        simulate({0: [Launch(0, 10 * US), *before, *between, *after]}).length_ns for between in ([Sync()], [])
    )
    # Without the call the kernel follows on its stream, 1 us after the one before it.
    assert (with_it - without) // US == found["drained"] - 1


SHORT_KERNELS = [Work(40 * US), Launch(0, 5 * US)] * 20


def test_gaps_after_a_synchronisation_are_charged_to_it_until_the_host_leads_again() -> None:
    # The host launches slower than the device computes: it lives on the lead that a long kernel gives it.
    program = [Launch(0, 2_000 * US), Sync(), *SHORT_KERNELS]
    found = idle(*program)
    with_it, without = (
        simulate({0: [Launch(0, 10 * US), *each]}).length_ns for each in (program, [program[0], *program[2:]])
    )
    saved = found["drained"] + found["launch_latency"]
    assert saved == pytest.approx((with_it - without) / US, abs=25), "1 us a kernel on its stream remains"
    assert "launch_bound" not in found
    # Behind a kernel as long as the wait the host leads again: the pause that uses that up is its own.
    again = idle(*program, Launch(0, 3_000 * US), Launch(0, 5 * US), Work(5_000 * US), Launch(0, 5 * US))
    assert again["drained"] == pytest.approx(found["drained"], abs=50)
    assert again["launch_bound"] == pytest.approx(2_000, abs=50)


def test_until_what_was_launched_before_the_recording_has_ended_idle_time_is_nobodys() -> None:
    """Copies run on another stream meanwhile; the host launched the first of them late."""
    calls = [("cudaMemcpyAsync", 10, 13, 1), ("cudaLaunchKernel", 20, 23, 2), ("cudaMemcpyAsync", 2_000, 2_003, 3),
             ("cudaLaunchKernel", 9_000, 9_003, 4)]  # fmt: skip
    ran = [(1, 15, 16, 1), (1, 2_005, 2_006, 3), (0, 5_000, 8_000, 2), (0, 9_005, 9_900, 4)]
    timeline = trace(calls, ran, kinds={0: COPY, 1: COPY})
    found = figures(Simulated(Run(world_size=None, ranks={0: timeline}), 0))
    causes = {cause: taken // US for cause, taken in found.idle_causes.items()}
    assert causes == {"start_of_recording": 5_000 - 15 - 2, "launch_bound": 1_000, "launch_latency": 5}


@pytest.mark.parametrize(
    ("gathered_us", "launched_us", "computes_us", "cause"),
    [
        pytest.param((100, 1_100), 20, 5_000, "start_of_recording", id="long after launch and gather"),
        pytest.param((100, 4_990), 20, 5_000, "dependency", id="as the gather ends: a cold start waits for it"),
        pytest.param((100, 1_100), -1, 5_000, "start_of_recording", id="it was itself launched before the recording"),
        pytest.param((100, 4_990), -1, 5_000, "dependency", id="launched before, it waits for the gather"),
        pytest.param((100, 1_100), 4_990, 5_000, "host_not_ready", id="as it was launched"),
    ],
)
def test_beside_what_was_launched_before_the_recording_no_communication_is_known_to_be_exposed(
    gathered_us: tuple[int, int], launched_us: int, computes_us: int, cause: str
) -> None:
    calls = [("cudaLaunchKernel", 10, 13, 1), ("cudaLaunchKernel", launched_us, launched_us + 3, 2),
             ("cudaLaunchKernel", 9_000, 9_003, 3)]  # fmt: skip
    calls = [each for each in calls if each[1] >= 0]
    ran = [(1, *gathered_us, 1), (0, computes_us, 8_000, 2), (0, 9_005, 9_900, 3)]
    timeline = trace(calls, ran, kinds={0: COMM})
    found = figures(Simulated(Run(world_size=None, ranks={0: timeline}), 0))
    assert {each for each, taken in found.exposed_causes.items() if taken} == {cause}
    assert found.exposed_causes[cause] == found.exposed_ns == (gathered_us[1] - gathered_us[0]) * US


def soon_again(*again: Operation) -> list[Operation]:
    """Return a long wait and then, five times, work of the host, a kernel and another wait."""
    after = [each for _ in range(5) for each in (Work(400 * US), Launch(0, 5 * US), *again)]
    return [Launch(0, 2_000 * US), *([Sync()] if again else []), *after]


def test_synchronisations_that_follow_soon_are_charged_with_the_lead_that_the_first_took() -> None:
    found = idle(*soon_again(Sync()))
    with_it, without = (simulate({0: [Launch(0, 10 * US), *soon_again(*again)]}).length_ns for again in ([Sync()], []))
    assert found["drained"] == pytest.approx((with_it - without) / US, abs=50)
    assert "launch_bound" not in found


@pytest.mark.parametrize("again", [Sync(0), CopyBack(0, US)], ids=["another synchronisation", "a copy"])
def test_a_wait_of_another_kind_that_follows_soon_ends_what_the_one_before_it_took(again: Operation) -> None:
    found = idle(*soon_again(again))
    assert found["drained"] < 500, "without the first alone the host would have waited in the second"
    assert found["launch_bound"] > 1_400


@pytest.mark.parametrize("between", [[], [Launch(0, 5 * US)]], ids=["in a row", "a kernel between"])
def test_copies_that_are_waited_for_in_a_row_are_one_wait(between: list[Operation]) -> None:
    # As .cpu() of two tensors: the second one waits for its own copy alone.
    found = idle(
        Launch(0, 2_000 * US), CopyBack(0, US), *between, CopyBack(0, US), Work(1_500 * US), Launch(0, 10 * US)
    )
    if between:
        assert found["launch_bound"] > 1_400, "without the first alone the host would have waited for the kernel"
    else:
        assert found["drained"] > 1_500
        assert "launch_bound" not in found


def test_a_short_synchronisation_is_not_charged_with_a_long_pause_after_it() -> None:
    found = idle(Work(20 * US), Launch(0, 50 * US), Sync(), Work(2_000 * US), Launch(0, 10 * US))
    assert found["drained"] <= 55
    assert found["launch_bound"] >= 1_950


def test_what_a_host_does_for_a_copy_that_it_waits_for_at_once_belongs_to_the_wait() -> None:
    # The kernel ends at 24; the host comes to its copy at 56, which runs from 60 to 61; the wait returns at 64.
    back = Launch(0, US, COPY, "Memcpy DtoH (Device -> Pageable)")
    read = [Launch(0, 10 * US), Work(30 * US), back, Sync(0), Work(20 * US), Launch(0, 10 * US)]
    found = simulate({0: [Launch(0, 10 * US), *read]})
    assert "launch_latency" not in figures(found).idle_causes
    assert figures(found).drained_by_ns.keys() == {"cudaStreamSynchronize"}
    kept = [each for each in read if not isinstance(each, Sync)]
    apart = [*read[:3], Launch(0, US), *read[3:]]
    for other in (kept, apart):
        by_launches = idle(*other)
        assert by_launches["launch_bound"] >= 20, "a copy that nobody waits for, or with other work, is a launch"


def test_what_one_call_took_is_counted_once() -> None:
    # Two launches soon after one wait of 50 us, each late by more than the wait had lasted.
    late = [Work(60 * US), Launch(0, 5 * US)]
    found = idle(Work(20 * US), Launch(0, 50 * US), Sync(), *late, *late)
    assert found["drained"] == pytest.approx(50 + 4, abs=6)


@pytest.mark.parametrize(
    ("waited_us", "work_us", "drained"),
    [(2_000, 2_900, True), (2_000, 3_100, False), (9_000, 8_000, True), (7_000, 8_000, False)],
)
def test_a_long_pause_that_outlasts_the_synchronisation_before_it_is_a_cause_of_its_own(
    waited_us: int, work_us: int, *, drained: bool
) -> None:
    found = idle(Launch(0, waited_us * US), Sync(), Work(work_us * US), Launch(0, 10 * US))
    assert (found.get("drained", 0) > 0) == drained
    assert found.get("launch_bound", 0) == pytest.approx(work_us - found.get("drained", 0), abs=5)


def test_a_thread_that_wakes_late_is_a_blocked_host() -> None:
    simulated = simulate({0: [Launch(0, 1_000 * US), Sync(wake_ns=500 * US), Launch(0, 10 * US)]})
    found = figures(simulated)
    assert found.idle_causes == {"blocked_host": 500 * US, "drained": 4 * US}
    assert found.blocked_by_ns == {"cudaDeviceSynchronize": 500 * US}


def test_time_after_a_poll_is_charged_to_the_poll() -> None:
    found = figures(simulate({0: polling(20, 0)}))
    assert set(found.drained_by_ns) | set(found.blocked_by_ns) == {"poll"}


def test_loading_data_blocks_the_host() -> None:
    simulated = simulate({0: [Launch(0, 10 * US), Work(1_000 * US), Launch(0, 10 * US)]})
    timeline = simulated.rank
    loads = rank_timeline(
        names=timeline.names,
        lanes=[{}, {"kind": HOST}],
        host=[
            {"start_ns": START_NS + 200 * US, "end_ns": START_NS + 600 * US, "lane": 1, "kind": OPERATION,
             "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"}
        ],
    )  # fmt: skip
    host = type(timeline.host)(
        **{
            column: np.concatenate([getattr(timeline.host, column), getattr(loads.host, column)])
            for column in timeline.host.__struct_fields__
        }
    )
    timeline = replace(timeline, names=loads.names, host=host)
    found = figures(Simulated(replace(simulated.run, ranks={0: timeline}), simulated.length_ns))
    assert found.blocked_by_ns == {"data_loading": 400 * US}
    assert found.idle_causes["launch_bound"] == (1_003 - 14 - 400) * US


def test_a_pause_is_named_by_what_the_host_did_in_it_rather_than_by_what_followed() -> None:
    simulated = simulate({0: [Launch(0, 10 * US), Work(1_000 * US), Launch(0, 10 * US)]})
    timeline, row = simulated.rank, int(np.argmax(simulated.rank.spans.start_ns))

    def host_of(loading_us: int) -> Link:
        note = {"start_ns": START_NS + 100 * US, "end_ns": START_NS + (100 + loading_us) * US, "lane": 1}
        loads = rank_timeline(
            names=timeline.names,
            lanes=[{}, {"kind": HOST}],
            host=[{**note, "kind": OPERATION, "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"}],
        )
        columns = timeline.host.__struct_fields__
        host = type(timeline.host)(
            **{each: np.concatenate([getattr(timeline.host, each), getattr(loads.host, each)]) for each in columns}
        )
        run = replace(simulated.run, ranks={0: replace(timeline, names=loads.names, host=host)})
        return next(each for each in chain_before(run, 0, row).chain if each.kind == "host")

    assert host_of(800).during == "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
    assert "in enumerate(DataLoader)#_SingleProc..., before cudaLaunchKernel" in link_words(host_of(800))
    assert host_of(200).during is None, "most of the pause was something else"


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        ({"checkpoint": (100, 900)}, "checkpoint"),
        ({"evaluation": (50, 1_000), "checkpoint": (100, 900)}, "checkpoint"),
        ({"checkpoint": (100, 300)}, None),
        ({"ProfilerStep#3": (100, 900), "overlapscope.comm:gather": (100, 900), "nccl:send": (100, 900)}, None),
        ({"gloo:barrier": (100, 900)}, "gloo:barrier"),
        ({"Torch-Compiled Region: 0/0": (100, 900)}, None),
        ({"train": (-100, 5_000)}, None),
    ],
    ids=[
        "of its time",
        "the innermost",
        "less than half of it",
        "marks and calls",
        "a host that waits",
        "compiled code",
        "around the step",
    ],
)
def test_a_pause_is_named_by_the_range_around_it(names: dict[str, tuple[int, int]], expected: str | None) -> None:
    simulated = simulate({0: [Launch(0, 10 * US), Work(1_000 * US), Launch(0, 10 * US)]})
    timeline, row = simulated.rank, int(np.argmax(simulated.rank.spans.start_ns))
    lane = int(timeline.host.lane[0])

    def host_of(thread: int) -> Link:
        noted = rank_timeline(
            names=timeline.names,
            annotations=[
                {"start_ns": START_NS + begin * US, "end_ns": START_NS + end * US, "lane": thread, "name": name}
                for name, (begin, end) in names.items()
            ],
            steps=[{"step": 0, "start_ns": START_NS - 10 * US, "end_ns": START_NS + 2_000 * US}],
        )
        known = replace(timeline, names=noted.names, annotations=noted.annotations, steps=noted.steps)
        found = chain_before(replace(simulated.run, ranks={0: known}), 0, row).chain
        return next(each for each in found if each.kind == "host")

    assert host_of(lane).during == expected
    assert host_of(lane + 1).during is None, "the range of another thread"
    if expected:
        assert link_words(host_of(lane)).startswith(f"host: in {expected}, before ")


@pytest.mark.parametrize("works", [(1_000,), (400, 200, 200, 200)], ids=["one pause", "the first is the longest"])
def test_the_step_in_whose_mark_most_of_a_hosts_time_lies_is_known(works: tuple[int, ...]) -> None:
    rest = [each for us in works for each in (Launch(0, 10 * US), Work(us * US))]
    simulated = simulate({0: [*rest, Launch(1, 10 * US)]})
    timeline, row = simulated.rank, int(np.argmax(simulated.rank.spans.start_ns))

    def step_of(begin_us: int, end_us: int) -> int | None:
        marks = [{"step": 7, "start_ns": START_NS + begin_us * US, "end_ns": START_NS + end_us * US}]
        known = replace(timeline, steps=rank_timeline(0, steps=marks).steps)
        found = chain_before(replace(simulated.run, ranks={0: known}), 0, row).chain
        return next(each for each in found if each.kind == "host").step

    assert step_of(0, 900) == 7
    assert step_of(0, 450) is None, "less than half of it, if all of the longest pause"


@pytest.mark.parametrize(("works_us", "inside"), [(500, (["cudaLaunchKernel"], 2, 600 * US)), (700, ([], 0, 0))])
def test_calls_in_which_a_host_mostly_was_are_known(works_us: int, inside: tuple[list[str], int, int]) -> None:
    """Two calls take 300 us each."""
    slow = Launch(0, US, takes_ns=300 * US)
    simulated = simulate({0: [slow, slow, Work(works_us * US), Launch(1, 10 * US)]})
    row = int(np.argmax(simulated.rank.spans.start_ns))
    host = next(each for each in chain_before(simulated.run, 0, row).chain if each.kind == "host")
    assert (host.inside, host.inside_calls, host.inside_ns) == inside


COMPUTE_WAITS = (Record("done", 1), Wait("done", 0))


def test_compute_that_waits_for_a_call_depends_on_it() -> None:
    program = [Launch(1, 0, COMM, "nccl", "a"), *COMPUTE_WAITS, Launch(0, 100 * US)]
    assert list(exposed(*program)) == ["dependency"]


def test_a_host_that_waited_for_a_call_makes_compute_depend_on_it() -> None:
    program = [Launch(1, 0, COMM, "nccl", "a"), Sync(1), Launch(0, 100 * US)]
    assert list(exposed(*program)) == ["dependency"]


@pytest.mark.parametrize("lane", [0, 2], ids=["a copy on the stream of compute", "a copy on a third stream"])
def test_compute_waits_for_short_calls_that_the_host_reads_one_after_the_other(lane: int) -> None:
    """As numbers that are reduced and read: their copies wait 11 us longer for them than for their launches."""
    read = [*sent("reduce", ns=15 * US), Record("reduced", 1), Wait("reduced", lane), CopyBack(lane, 2 * US)]
    program = [Launch(0, 10 * US), *read, *read, *read, Launch(0, 100 * US)]
    found = figures(simulate({0: program}, record_syncs=False)).exposed_causes
    assert found == {"dependency": 3 * 15 * US}


def test_compute_launched_later_by_a_host_that_did_not_wait_gains_nothing_without_the_call() -> None:
    program = [Launch(1, 0, COMM, "nccl", "a"), Work(1_000 * US), Launch(0, 100 * US)]
    assert list(exposed(*program)) == ["host_not_ready"]
    lengths = {taken: simulate({0: [Launch(0, 10 * US), *program]}, {"a": taken}).length_ns for taken in (0, 400 * US)}
    assert len(set(lengths.values())) == 1


def test_compute_on_the_stream_of_a_call_depends_on_it_however_late_it_is_launched() -> None:
    program = [Launch(0, 0, COMM, "nccl", "a"), Work(1_000 * US), Launch(0, 100 * US)]
    assert list(exposed(*program)) == ["dependency"]


def test_compute_behind_a_copy_gains_nothing_without_the_call() -> None:
    program = [Launch(1, 0, COMM, "nccl", "a"), Launch(0, 900 * US, COPY), Launch(0, 100 * US)]
    assert list(exposed(*program)) == ["behind_copy"]


def test_until_a_host_had_its_message_compute_waited_for_that_whatever_call_ends_last() -> None:
    # The host waits for `b` for 200 us, then works, and `a` ends in the 100 us that follow.
    program = [Launch(1, 0, COMM, "nccl", "a"), Launch(2, 0, COMM, "recv", "b"), Sync(2), Work(300 * US),
               Launch(0, 100 * US)]  # fmt: skip
    found = exposed(*program, b=200 * US)
    assert found["dependency"] == pytest.approx(200, abs=10)
    assert found["host_not_ready"] == pytest.approx(200, abs=20)
    alone = [each for each in program if each != Sync(2)]
    assert set(exposed(*alone, b=200 * US)) == {"host_not_ready"}


def test_until_a_short_call_begins_compute_waited_for_what_that_had_waited_for() -> None:
    # `b`, of 30 us, waits for a copy of 200 us beside `a`; the compute waits for `b` alone.
    program = [
        Launch(1, 0, COMM, "nccl", "a"), Launch(2, 200 * US, COPY, "copy"), Record("copied", 2), Wait("copied", 3),
        Launch(3, 0, COMM, "nccl", "b"), Record("done", 3), Wait("done", 0), Launch(0, 300 * US),
    ]  # fmt: skip
    found = exposed(*program, b=30 * US)
    assert found["behind_copy"] == pytest.approx(200, abs=10)
    assert found["dependency"] == pytest.approx(30, abs=15)


def test_compute_right_after_compute_is_behind_it() -> None:
    program = [Launch(1, 0, COMM, "nccl", "a"), *[Launch(0, 100 * US) for _ in range(6)]]
    assert set(exposed(*program)) <= {"behind_compute", "host_not_ready"}


def test_without_compute_after_it_a_call_is_a_tail() -> None:
    assert list(exposed(Launch(1, 0, COMM, "nccl", "a"))) == ["tail"]


@pytest.mark.parametrize(
    ("names", "ahead"),
    [
        pytest.param(["reduce", "gather"], 400, id="of another operation"),
        pytest.param(["gather", "gather"], 0, id="of its own, both of which compute waits for"),
        pytest.param(["reduce", "gather", "gather"], 400, id="the second of two has not that delay once more"),
        pytest.param(["gather", "reduce", "gather"], 400, id="only what is unlike holds the link for nothing"),
        pytest.param(["reduce", "scatter", "gather"], 800, id="behind two"),
    ],
)
def test_unlike_calls_run_ahead_of_the_one_on_their_stream_that_compute_waits_for(names: list[str], ahead: int) -> None:
    program = [*(Launch(1, 400 * US, COMM, name) for name in names), *COMPUTE_WAITS, Launch(0, 100 * US)]
    found = exposed(*program)
    assert found.get("ahead", 0) == pytest.approx(ahead, abs=10)
    assert found.get("dependency", 0) == pytest.approx(400 * len(names) - ahead, abs=20)
    assert "queued" not in found, "that delay is named already"


def test_what_ran_ahead_beside_compute_held_the_call_behind_it_all_the_same() -> None:
    # Of 400 us of `reduce` all but 100 are hidden, and without it all of the 200 of `gather` would be, too.
    beside = Launch(0, 300 * US)
    program = [Launch(1, 400 * US, COMM, "reduce"), Launch(1, 200 * US, COMM, "gather"), Record("done", 1), beside,
               Wait("done", 0), Launch(0, 100 * US)]  # fmt: skip
    found = exposed(*program)
    assert found["ahead"] == pytest.approx(100, abs=20)
    assert found["queued"] == pytest.approx(200, abs=10)


def test_a_call_is_ahead_of_another_only_from_the_launch_of_that_on() -> None:
    program = [Launch(1, 400 * US, COMM, "reduce"), Work(250 * US), Launch(1, 200 * US, COMM, "gather"), *COMPUTE_WAITS,
               Launch(0, 100 * US)]  # fmt: skip
    found = exposed(*program)
    assert found["ahead"] == pytest.approx(150, abs=10)
    assert found["dependency"] == pytest.approx(450, abs=20)


def test_a_call_that_compute_waits_for_too_is_not_ahead_of_the_next() -> None:
    first, second = Launch(1, 400 * US, COMM, "reduce"), Launch(1, 400 * US, COMM, "gather")
    waits_for_first = (Record("first", 1), Wait("first", 0))
    found = exposed(first, *waits_for_first, second, *COMPUTE_WAITS, Launch(0, 100 * US))
    assert "ahead" not in found
    assert found["queued"] == pytest.approx(400, abs=10)
    # A host that launches compute only after it has waited for the first says the same.
    found = exposed(first, Record("first", 1), second, Sync(event="first"), *COMPUTE_WAITS, Launch(0, 100 * US))
    assert "ahead" not in found


def test_a_call_on_another_stream_is_not_ahead() -> None:
    program = [
        Launch(1, 400 * US, COMM, "reduce"), Record("first", 1), Launch(2, 400 * US, COMM, "gather"),
        Record("done", 2), Wait("done", 0), Launch(0, 100 * US),
    ]  # fmt: skip
    assert set(exposed(*program)) == {"dependency"}


def test_a_call_launched_after_its_data_were_ready_beside_compute_was_late() -> None:
    program = [
        Work(300 * US), Launch(1, 0, COMM, "nccl", "a"), Launch(0, 100 * US), *COMPUTE_WAITS, Launch(0, 100 * US)
    ]  # fmt: skip
    # Ready at 14, launched at 303: the first 289 of the call, less the 103 that compute runs beside it from there on.
    assert exposed(*program)["late_launch"] == 289 - 103
    without_compute = [each for at, each in enumerate(program) if at != 2]
    assert "late_launch" not in exposed(*without_compute)


def sent(name: str, lane: int = 1, call: str | None = None, ns: int = 400 * US) -> list[Operation]:
    """A call whose stream waits for the stream of compute, as torch makes it wait."""
    return [Record(f"before {name}", 0), Wait(f"before {name}", lane), Launch(lane, ns, COMM, name, call)]


@pytest.mark.parametrize(
    ("between", "cause"),
    [
        pytest.param([], "host_waited", id="the host alone"),
        pytest.param(COMPUTE_WAITS, "dependency", id="the stream of compute as well"),
        pytest.param([Record("done", 1), *sent("other", 2, ns=10 * US)], "host_waited", id="that of another call"),
        pytest.param(
            [Record("done", 1), Wait("done", 0), *sent("other", 2, ns=10 * US)], "dependency",
            id="that of compute before another call",
        ),
    ],
)  # fmt: skip
def test_compute_that_only_the_host_held_back_did_not_wait_for_the_call(between: list[Operation], cause: str) -> None:
    found = exposed(*sent("gather"), *between, Sync(1), Launch(0, 100 * US))
    assert found[cause] == pytest.approx(400, abs=10)


@pytest.mark.parametrize(
    ("record", "event", "cause"),
    [
        pytest.param(False, "first", "host_waited", id="for which event is not recorded"),
        pytest.param(True, "first", "host_waited", id="that of the call before"),
        pytest.param(True, "second", "dependency", id="that of the call itself, which it needs"),
    ],
)
def test_what_a_stream_is_asked_to_wait_for_once_the_host_has_waited_holds_nothing_back(
    event: str, cause: str, *, record: bool
) -> None:
    """As where the next layer's parameters are gathered ahead, and the host waits for each gather."""
    gathers = [*sent("gather", ns=10 * US), Record("first", 1), *sent("gather ahead"), Record("second", 1)]
    program = [Launch(0, 10 * US), *gathers, Sync(1), Wait(event, 0), Launch(0, 100 * US)]
    found = figures(simulate({0: program}, record_syncs=record)).exposed_causes
    assert found[cause] == pytest.approx(410 * US, abs=15 * US)


def test_where_no_wait_of_a_stream_was_recorded_compute_depends_on_what_its_host_waited_for() -> None:
    assert list(exposed(Launch(1, 400 * US, COMM, "gather"), Sync(1), Launch(0, 100 * US))) == ["dependency"]


def test_a_call_that_a_stream_was_made_to_wait_for_before_the_next_call_is_not_ahead_of_it() -> None:
    # The wait of the next call's own stream follows it, before one launch.
    for asks in ([], [Record("first", 1), Wait("first", 0)]):
        program = [Launch(0, 10 * US), *sent("reduce"), *asks, *sent("gather"), *COMPUTE_WAITS, Launch(0, 100 * US)]
        found = figures(simulate({0: program}, record_syncs=False)).exposed_causes
        assert ("ahead" in found) == (not asks)


def prepared(at: int, pause_us: int) -> list[Operation]:
    """A gather on stream 1 of what a kernel on stream 2 copies, launched by a host that had waited for its device
    `pause_us` after compute of 300 us that it does not need, and compute that waits for it."""
    return [
        Sync(), Launch(0, 300 * US), Work(pause_us * US),
        Launch(2, 5 * US), Record(f"copied {at}", 2), Wait(f"copied {at}", 1),
        Launch(1, 200 * US, COMM, "gather"), Record(f"gathered {at}", 1), Wait(f"gathered {at}", 0),
    ]  # fmt: skip


@pytest.mark.parametrize(("pause_us", "late"), [(240, True), (0, False)])
def test_a_call_launched_beside_compute_that_it_did_not_need_was_late(pause_us: int, *, late: bool) -> None:
    program = [each for at in range(3) for each in prepared(at, pause_us)]
    for record_syncs in (True, False):
        found = figures(simulate({0: [Launch(0, 10 * US), *program, Launch(0, 100 * US)]}, record_syncs=record_syncs))
        assert (found.exposed_causes.get("late_launch", 0) > 250 * US) == late
    waits_for_compute = [Launch(0, 300 * US), Work(240 * US), *sent("gather", ns=200 * US), *COMPUTE_WAITS]
    assert "late_launch" not in exposed(*waits_for_compute, Launch(0, 100 * US)), "it needed what ran until then"


def test_a_kernel_that_prepares_the_next_call_is_not_the_compute_that_waits() -> None:
    """The gather runs for 400 us; the copy for the next one is launched 150 us after it."""
    program = [
        *sent("gather"), Record("gathered", 1), Work(150 * US), Launch(2, 5 * US), *sent("gather 2", ns=10 * US),
        Wait("gathered", 0), Launch(0, 100 * US),
    ]  # fmt: skip
    found = exposed(*program)
    assert "host_not_ready" not in found
    assert found["dependency"] == pytest.approx(400, abs=20)


def sharded_layer(at: int, *waits: Operation, backward_us: int = 600) -> list[Operation]:
    """Backward of a layer whose gradients are copied, reduced and cast on streams 2 and 1, with the gather that the
    next layer's backward waits for behind the reduction; and what else is asked for before that."""
    return [
        Launch(0, backward_us * US), Record(f"done {at}", 0), Wait(f"done {at}", 2), Launch(2, 20 * US),
        Record(f"copied {at}", 2), Wait(f"copied {at}", 1), Launch(1, 200 * US, COMM, "reduce"),
        Record(f"reduced {at}", 1), Wait(f"reduced {at}", 2), Launch(2, 10 * US), Record(f"cast {at}", 2),
        Launch(3, 5 * US), Record(f"parts {at}", 3), Wait(f"parts {at}", 1), Launch(1, 100 * US, COMM, "gather"),
        Record(f"gathered {at}", 1), *waits, Wait(f"gathered {at}", 0),
    ]  # fmt: skip


def test_a_kernel_that_casts_what_was_reduced_is_not_the_compute_that_waits() -> None:
    """As FSDP casts reduced gradients beside the next gather, which the reduction held on its stream."""
    program = [*(each for at in range(3) for each in sharded_layer(at)), Launch(0, 600 * US)]
    found = figures(simulate({0: program}, record_syncs=False)).exposed_causes
    assert found["ahead"] == pytest.approx(3 * 200 * US, abs=20 * US)
    assert found["dependency"] == pytest.approx(3 * 90 * US, abs=20 * US)


def test_compute_that_waits_for_the_cast_waits_for_what_was_reduced() -> None:
    layers = [sharded_layer(at, Wait(f"cast {at}", 0)) for at in range(3)]
    program = [*(each for layer in layers for each in layer), Launch(0, 600 * US)]
    assert "ahead" not in figures(simulate({0: program})).exposed_causes


def test_a_stream_that_computes_much_does_not_only_finish_calls() -> None:
    program = [*(each for at in range(3) for each in sharded_layer(at, backward_us=150)), Launch(0, 150 * US)]
    assert "ahead" not in figures(simulate({0: program}, record_syncs=False)).exposed_causes


@pytest.mark.slow
@settings(deadline=None, max_examples=40)
@given(programs)
def test_pieces_of_random_programs_cover_idle_time_as_a_plain_walk_does(program: Program) -> None:
    for record_syncs in (True, False):
        timeline = simulate({0: program}, record_syncs=record_syncs).rank
        graph = rank_graph(timeline)
        binding = binding_edges(graph)
        pieces = idle_pieces(graph, graph.ranks[0], timeline, binding)
        assert (pieces.end_ns > pieces.start_ns).all()
        assert (pieces.start_ns[1:] >= pieces.end_ns[:-1]).all()
        assert ((pieces.call != NONE) == np.isin(pieces.blocker, (BY_CALL, BY_POLL))).all()
        spans = timeline.spans
        window_ns = int(spans.end_ns.max() - spans.start_ns.min())
        busy_ns = length(union((spans.start_ns, spans.end_ns)))
        assert int((pieces.end_ns - pieces.start_ns).sum()) == window_ns - busy_ns
        plain = _plain(graph, binding)
        found: dict[tuple[int, str], int] = {}
        each_piece = zip(pieces.start_ns, pieces.end_ns, pieces.cause, pieces.stretch, strict=True)
        for begin, end, cause, stretch in each_piece:
            name = "host" if cause in (LAUNCH_BOUND, DRAINED) else IDLE_CAUSES[cause]
            if cause == DRAINED and stretch == NO_STRETCH:
                name = "launch_latency"  # of the launch after the wait
            gap = next(at for at, (start, until) in enumerate(plain.gaps) if start <= begin and end <= until)
            found[gap, name] = found.get((gap, name), 0) + int(end - begin)
        assert found == plain.causes


class _Plain:
    gaps: list[tuple[int, int]]
    causes: dict[tuple[int, str], int]


def _plain(graph: Graph, binding: np.ndarray) -> _Plain:  # type: ignore[type-arg]
    """Walk back from each gap's end, one edge after the other, in plain Python."""
    part, nodes, edges = graph.ranks[0], graph.nodes, graph.edges
    start, end = nodes.time_ns[part.starts()].tolist(), nodes.time_ns[part.ends()].tolist()
    plain = _Plain()
    plain.gaps, plain.causes = [], {}
    until = end[0]
    for at, begin in enumerate(start):
        if begin > until:
            plain.gaps.append((until, begin))
            _walk(plain, len(plain.gaps) - 1, graph, binding, part.starts().start + at)
        until = max(until, end[at])
    assert edges.node.size
    return plain


def _walk(plain: _Plain, gap: int, graph: Graph, binding: np.ndarray, node: int) -> None:  # type: ignore[type-arg]
    nodes, edges, part = graph.nodes, graph.edges, graph.ranks[0]
    low, cursor = plain.gaps[gap]

    def take(since: int, name: str) -> None:
        nonlocal cursor
        begin = min(max(since, low), cursor)
        if begin < cursor:
            plain.causes[gap, name] = plain.causes.get((gap, name), 0) + cursor - begin
            cursor = begin

    first = True
    while cursor > low:
        edge = int(binding[node])
        if edge < 0:
            take(low, "start_of_recording")
            return
        kind, before = EDGE_KINDS[edges.kind[edge]], int(edges.before[edge])
        since = int(nodes.time_ns[before])
        if first and edges.kind[edge] != LAUNCH:
            take(since if kind == "owncall" else low, "blocked_host" if kind == "owncall" else "device_wait")
        elif first:
            take(since, "launch_latency")
        else:
            call = (node - part.first) % part.calls
            blocked = kind in ("sync", "poll", "alloc") or (kind == "call" and bool(part.blocks[call]))
            take(since, "blocked_host" if blocked else "host")
        first, node = False, before


@settings(deadline=None, max_examples=40)
@given(programs)
def test_pieces_of_random_programs_cover_exposed_time(program: Program) -> None:
    turned = [
        replace(each, kind=COMM, name="nccl") if isinstance(each, Launch) and each.lane == 1 else each
        for each in program
    ]
    timeline = simulate({0: turned}).rank
    graph = rank_graph(timeline)
    pieces = exposed_pieces(graph, graph.ranks[0], timeline, binding_edges(graph))
    cover = Coverage.of(timeline.spans)
    assert int((pieces.end_ns - pieces.start_ns).sum()) == length(difference(cover.comm, cover.compute))
    assert (pieces.start_ns[1:] >= pieces.end_ns[:-1]).all()


def test_a_span_without_length_may_lie_in_idle_time() -> None:
    calls = [
        ("cudaLaunchKernel", 0, 3, 1), ("cudaMemsetAsync", 200, 203, 2), ("cudaDeviceSynchronize", 210, 400, 9),
        ("cudaLaunchKernel", 500, 503, 3),
    ]  # fmt: skip
    timeline = trace(calls, [(0, 5, 50, 1), (0, 390, 390, 2), (0, 505, 600, 3)])
    graph = rank_graph(timeline)
    pieces = idle_pieces(graph, graph.ranks[0], timeline, binding_edges(graph))
    assert int((pieces.end_ns - pieces.start_ns).sum()) == 455 * US


def test_a_graph_that_would_not_fit_into_memory_is_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    two = [Launch(0, 10 * US), Work(100 * US), Launch(0, 10 * US)]
    run = simulate({0: two, 1: two}).run
    nodes = run_graph(run, match_and_align(run)).num_nodes
    assert graph_too_large(run) is None
    assert graph_figures(run, match_and_align(run))
    monkeypatch.setattr(build, "MOST_NODES", nodes - 1)
    assert "4 spans on 2 ranks would not fit into memory" in (graph_too_large(run) or "")
    assert graph_figures(run, match_and_align(run)) is None
    alone = simulate({0: two}).run
    monkeypatch.setattr(build, "MOST_NODES", 1)
    assert graph_too_large(alone) is None
