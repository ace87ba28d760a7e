"""Arrows between ranks in the export, as an importer binds them: it shares nothing with the package.

Rules of Perfetto's importer: events are taken by time, those of one time in the order of the file; both ends of an
arrow bind to the innermost open slice of their thread; a slice is closed when a later one begins after its end; an end
that comes before its start is lost; arrows are told apart by number, category and name.
"""

from collections import defaultdict
from typing import Any, NamedTuple

import pytest

from overlapscope.timeline.columns import COMM
from overlapscope.timeline.run import Group, Run
from tests.integration.jobs.dag_job import Job, Kernel, run_of
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline
from tests.support.writers.kineto import MS, US
from tests.unit.analysis.cross_rank.test_across_ranks import moved
from tests.unit.report.test_export import REAL, document, exported, ns


class Slice(NamedTuple):
    process: str
    track: str
    start: int
    end: int
    name: str
    args: dict[str, Any]


class Flow(NamedTuple):
    category: str
    name: str
    origin: Slice
    target: Slice


def imported(trace: dict[str, Any]) -> list[Flow]:
    names: dict[Any, str] = {}
    timed = []
    for event in trace["traceEvents"]:
        if event["ph"] == "M" and event["name"] in ("process_name", "thread_name"):
            names[event["pid"], event.get("tid")] = event["args"]["name"]
        elif event["ph"] in "Xsf":
            timed.append(event)
    opened: dict[Any, list[Slice]] = defaultdict(list)
    leaving: dict[Any, Slice] = {}
    flows = []
    for event in sorted(timed, key=lambda each: ns(each["ts"])):
        place, now = (event["pid"], event["tid"]), ns(event["ts"])
        if event["ph"] == "X":
            while opened[place] and opened[place][-1].end <= now:
                opened[place].pop()
            process, track = names[event["pid"], None], names[place]
            opened[place].append(
                Slice(process, track, now, now + ns(event["dur"]), event["name"], event.get("args", {}))
            )
            continue
        key = event["id"], event["cat"], event["name"]
        if event["ph"] == "s":
            assert key not in leaving
            leaving[key] = opened[place][-1]
        else:
            assert event["bp"] == "e"
            flows.append(Flow(event["cat"], event["name"], leaving.pop(key), opened[place][-1]))
    assert not leaving, "an arrow without an end"
    return flows


def between_ranks(run: Run, **choice: Any) -> list[Flow]:
    found = [each for each in imported(document(run, **choice)) if each.category != "launch"]
    for each in found:
        assert each.origin.process != each.target.process
        assert each.origin.start <= each.target.start
    return found


def late(by_ns: int, ranks: int = 4, offsets: tuple[int, ...] = ()) -> Run:
    """Return a run of one call, to which each rank comes `by_ns` after the one before it."""
    call = Kernel(host_ns=0, lane=2, kind=COMM, ns=5 * MS, call=0, waits=(0,))
    programs = tuple((Kernel(host_ns=0, lane=0, kind=0, ns=MS + rank * by_ns), call) for rank in range(ranks))
    return run_of(Job(ranks=programs, members={0: tuple(range(ranks))}, offsets=offsets))


def named(flows: list[Flow]) -> set[tuple[str, str, str, str]]:
    return {(each.category, each.name, each.origin.process, each.target.process) for each in flows}


@pytest.mark.parametrize("offsets", [(), (7 * MS, -30 * MS, 0, 2 * MS)])
def test_every_rank_that_waited_points_at_the_late_one(offsets: tuple[int, ...]) -> None:
    flows = between_ranks(late(MS, offsets=offsets))
    assert named(flows) == {("collective", "waits for", f"rank {rank}", "rank 3") for rank in range(3)}
    assert {each.target.name for each in flows} == {"kernel 1 of rank 3"}
    assert {each.origin.name for each in flows} == {f"kernel 1 of rank {rank}" for rank in range(3)}


@pytest.mark.parametrize("by_ns", [0, US])
def test_nobody_is_called_late_by_less_than_the_clocks_are_exact(by_ns: int) -> None:
    flows = between_ranks(late(by_ns))
    assert named(flows) == {("collective", "same call", f"rank {rank}", "rank 3") for rank in range(3)}


def test_nobody_is_called_late_where_a_member_was_not_recorded() -> None:
    run = late(MS)
    part = Run(
        world_size=5, ranks=run.ranks, groups=(Group(name="all", size=5, ranks=tuple(range(5))),),
    )  # fmt: skip
    assert {name for _, name, *_ in named(between_ranks(part))} == {"same call"}


def test_arrows_lead_to_exported_ranks_alone() -> None:
    flows = between_ranks(late(MS), ranks=frozenset({0, 2}))
    assert named(flows) == {("collective", "same call", "rank 0", "rank 2")}
    assert named(between_ranks(late(MS), ranks=frozenset({1, 3}))) == {("collective", "waits for", "rank 1", "rank 3")}
    assert between_ranks(late(MS), ranks=frozenset({1})) == []


def test_what_ended_before_the_last_began_did_not_wait_for_it() -> None:
    odd = [(0, MS), (MS // 2, 9 * MS), (8 * MS, 9 * MS)]

    def rank(number: int) -> Any:
        times = [
            (k * 100 * MS + a, k * 100 * MS + b) for k in range(8) for a, b in [odd[number] if k == 4 else (0, MS)]
        ]
        shape = {"op": "all_reduce", "group": "g", "bytes": 8, "dtype": "float32"}
        return rank_timeline(
            number,
            calls=[
                {**shape, "seq": k, "start_ns": EPOCH_NS + start, "end_ns": EPOCH_NS + end}
                for k, (start, end) in enumerate(times)
            ],
        )

    groups = (Group(name="g", size=3, ranks=(0, 1, 2)),)
    flows = between_ranks(Run(world_size=3, ranks={number: rank(number) for number in range(3)}, groups=groups))
    at = [each for each in flows if 400 * MS < each.target.start < 450 * MS]
    assert named(at) == {
        ("collective", "same call", "rank 0", "rank 2"), ("collective", "waits for", "rank 1", "rank 2"),
    }  # fmt: skip


@pytest.mark.parametrize("offset", [0, 40 * MS])
def test_a_message_joins_its_send_and_its_receive(offset: int) -> None:
    """Receives that are early, and ones that are late, on a clock of their own."""

    def call(op: str, start: int, end: int, **more: Any) -> dict[str, Any]:
        times = {"start_ns": EPOCH_NS + start, "end_ns": EPOCH_NS + end}
        return {"op": op, "group": "g", "dtype": "float32", **times, **more}

    shared = [call("all_reduce", k * 100 * MS, k * 100 * MS + MS, seq=k, bytes=8) for k in range(6)]
    sends = [call("send", k * 100 * MS + 20 * MS, k * 100 * MS + 30 * MS, peer=1, bytes=k) for k in range(6)]
    begins = [k * 100 * MS + (15 if k % 2 else 25) * MS for k in range(6)]
    recvs = [call("recv", begin, k * 100 * MS + 30 * MS, peer=0, bytes=k) for k, begin in enumerate(begins)]
    ranks = {0: rank_timeline(0, calls=[*shared, *sends]), 1: rank_timeline(1, calls=[*shared, *recvs])}
    run = Run(world_size=2, ranks=ranks, groups=(Group(name="g", size=2, ranks=(0, 1)),))
    flows = [each for each in between_ranks(moved(run, 1, offset, 0.0)) if each.category == "message"]
    assert len(flows) == 6
    for each in flows:
        ends = sorted((each.origin, each.target), key=lambda one: one.process)
        assert [one.name for one in ends] == ["send", "recv"]
        assert ends[0].args.get("bytes") == ends[1].args.get("bytes")
        number = ends[0].args.get("bytes", 0)
        assert each.origin.name == ("recv" if number % 2 else "send")
    assert {each.origin.args.get("bytes", 0) for each in flows} == set(range(6))


@pytest.mark.slow
@pytest.mark.parametrize("source", REAL)
def test_real_calls_are_joined_with_the_rank_that_their_slice_names(source: str) -> None:
    loaded, _ = exported(source)
    flows = between_ranks(loaded.run)
    joined: dict[Any, set[str]] = defaultdict(set)
    for each in flows:
        known = [(one.args["op"], one.args.get("bytes"), one.args.get("group")) for one in (each.origin, each.target)]
        assert known[0] == known[1]
        if each.name == "waits for":
            assert each.target.process == f"rank {each.origin.args['last_rank']}"
            assert each.origin.args["wait_ns"] > 0
        joined[each.target[:4]].add(each.origin.process)
    slices = [each.get("args", {}) for each in document(loaded.run)["traceEvents"] if each["ph"] == "X"]
    assert sum(len(origins) + 1 for origins in joined.values()) == sum("last_rank" in each for each in slices)
    assert all(len(origins) + 1 == len(loaded.run.ranks) for origins in joined.values())
    assert bool(joined) == (len(loaded.run.ranks) > 1)
