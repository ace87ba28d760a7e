"""Recordings that begin apart: what that explains of the waits is charged to nobody."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.cross_rank.start_delays import with_start_delays
from overlapscope.analysis.cross_rank.wait_transfer import beyond_start, leads
from overlapscope.analysis.job_step.headline import headline
from overlapscope.analysis.job_step.step_table import RankWindows
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.rank_summary import steps_and_compute
from overlapscope.timeline.columns import COMPUTE, Annotations, Steps, make
from overlapscope.timeline.run import Group, Run
from overlapscope.timeline.store import lazy_rank as stored
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
EPOCH = 1_700_000_000 * 10**9


def recorded(
    starts: list[int],
    arrivals: list[list[int]],
    groups: list[list[int]] | None = None,
    kernels: dict[int, list[tuple[int, int]]] | None = None,
    *,
    marked: bool = False,
) -> Run:
    """Return ranks that begin to record at `starts` and arrive at call k at `arrivals[k]`, in ms, on one clock.

    A call ends 1 ms after its last member came. Without `groups` all ranks make each call, else those of `groups[k]`.
    `kernels` is when kernels begin and end, by rank; with `marked` they are one step.
    """
    every = list(range(len(starts)))
    members = groups or [every] * len(arrivals)
    named = {tuple(each): "g" + "".join(map(str, each)) for each in members}
    calls: dict[int, list[dict[str, object]]] = {rank: [] for rank in every}
    for at, (came, own) in enumerate(zip(arrivals, members, strict=True)):
        end = max(came) + 1
        for rank, start in zip(own, came, strict=True):
            calls[rank].append({
                "op": "all_reduce", "group": named[tuple(own)], "seq": at, "dtype": "float32", "bytes": 1000,
                "group_size": len(own), "start_ns": EPOCH + start * MS, "end_ns": EPOCH + end * MS,
                "launch_ns": EPOCH + start * MS - 1000,
            })  # fmt: skip
    last = EPOCH + (max(map(max, arrivals)) + 1) * MS
    ranks = {
        rank: rank_timeline(
            rank,
            calls=own,
            work=[
                {"name": "mm", "kind": COMPUTE, "step": 0, "start_ns": EPOCH + begin * MS, "end_ns": EPOCH + end * MS}
                for begin, end in (kernels[rank] if kernels else ())
            ],
            steps=[{"step": 0, "start_ns": EPOCH + starts[rank] * MS, "end_ns": last}] * marked,
            recordings=[{"start_ns": EPOCH + starts[rank] * MS, "end_ns": last}],
            recorded={"settings": {"host": "one"}},
        )
        for rank, own in calls.items()
    }  # fmt: skip
    known = tuple(Group(name=name, size=len(own), ranks=own) for own, name in named.items())
    return Run(world_size=len(starts), ranks=ranks, groups=known)


def waits(run: Run) -> dict[int, tuple[float, float, float]]:
    """Return (waited, of it by the start, blame) of each rank in ms."""
    found = match_and_align(run).waits
    return {
        rank: (each.wait_ns / MS, each.start_wait_ns / MS, each.blame_ns / MS) for rank, each in sorted(found.items())
    }


def test_the_first_call_of_a_rank_that_began_later_is_nobodys_lateness() -> None:
    run = recorded([0, 30], [[10, 40], [50, 51], [60, 62]])
    assert waits(run) == {0: (33, 30, 0), 1: (0, 0, 3)}
    analysis = analyze(run)
    assert "1 of 3 matched calls came before the ranks" in analysis.skew.reasons[0]
    assert analysis.ranks[0].whole.causes["start_of_recording"] == 30 * MS
    assert analysis.skew.ranks[0].start_of_recording_ns == 30 * MS


def test_without_steps_what_devices_did_since_their_first_spans_is_lateness() -> None:
    """Rank 1 is recorded 30 ms later, and its device's first span, begins 2 ms later."""
    run = recorded([0, 30], [[50, 70], [80, 80]], kernels={0: [(38, 39)], 1: [(40, 41)]})
    assert waits(run) == {0: (20, 2, 0), 1: (0, 0, 18)}


def test_how_long_was_waited_for_each_rank_adds_up_to_what_was_waited_beside_the_start() -> None:
    found = match_and_align(recorded([0, 30, 0], [[10, 40, 12], [50, 51, 60], [70, 74, 71]])).waits.values()
    waited_ns = sum(each.wait_ns - each.start_wait_ns - each.late_end_ns for each in found)
    assert sum(each.waited_for_ns for each in found) == waited_ns == (2 + 10 + 9 + 4 + 3) * MS
    assert [each.mean_waited_for_ns for each in found] == [each.waited_for_ns / 2 for each in found]


def test_ranks_that_begin_together_are_blamed_for_their_first_call() -> None:
    run = recorded([0, 0], [[10, 40], [50, 51]])
    assert waits(run) == {0: (31, 0, 0), 1: (0, 0, 31)}
    assert analyze(run).skew.reasons == []


@pytest.mark.parametrize(
    ("ranges", "by_start", "blame"),
    [
        pytest.param({}, 30, 1, id="what it did before its first step is not known"),
        pytest.param({1: (0, 30)}, 0, 31, id="it loaded data all the while"),
        pytest.param({1: (25, 30)}, 25, 1, id="it did so from 25 ms on: nobody is blamed for that call"),
        pytest.param({0: (-20, 0)}, 30, 1, id="a range of another rank, before its step, says nothing"),
        pytest.param({0: (-20, 0), 1: (-5, 30)}, 0, 31, id="what lay before the first step of all says nothing"),
    ],
)
def test_what_a_rank_was_seen_to_do_before_its_first_step_is_its_own_lateness(
    ranges: dict[int, tuple[int, int]], by_start: int, blame: int
) -> None:
    run, begins = recorded([0, 30], [[10, 40], [50, 51]]), {0: 0, 1: 30}
    ranks = {
        rank: replace(
            timeline,
            steps=make(Steps, 1, recording=0, step=0, start_ns=EPOCH + begins[rank] * MS, end_ns=EPOCH + 60 * MS),
            annotations=make(Annotations, int(rank in ranges), recording=0, **dict(zip(
                ("start_ns", "end_ns"), (EPOCH + at * MS for at in ranges.get(rank, (0, 0))), strict=True
            ))),
        )
        for rank, timeline in run.ranks.items()
    }  # fmt: skip
    assert waits(replace(run, ranks=ranks)) == {0: (31, by_start, 0), 1: (0, 0, blame)}


def test_a_rank_that_began_later_and_arrives_with_the_others_leaves_no_wait() -> None:
    run = recorded([0, 8], [[10, 10], [20, 25]])
    assert waits(run) == {0: (5, 0, 0), 1: (0, 0, 5)}


def test_a_delay_goes_on_from_group_to_group_until_all_have_met() -> None:
    """Ranks 2 and 3 began 20 ms later; pairs meet first, then all four."""
    run = recorded(
        [0, 0, 20, 20],
        [[5, 5], [25, 25], [10, 10, 30, 30], [40, 40, 40, 44]],
        [[0, 1], [2, 3], [0, 1, 2, 3], [0, 1, 2, 3]],
    )
    found = waits(run)
    assert [found[rank][1] for rank in range(4)] == [20, 20, 0, 0]
    assert [found[rank][2] for rank in range(4)] == [0, 0, 0, 4]


def test_what_exceeds_the_spread_of_the_starts_is_a_wait_for_a_late_rank() -> None:
    """Rank 1 began 10 ms later and was 15 ms later still: 10 are nobody's, and the call is left out of blame."""
    run = recorded([0, 10], [[5, 30], [40, 40]])
    assert waits(run) == {0: (25, 10, 0), 1: (0, 0, 0)}
    causes = analyze(run).ranks[0].whole.causes
    assert causes["start_of_recording"] == 10 * MS
    assert causes["peer_host"] == 15 * MS


def test_calls_that_were_not_matched_may_have_joined_ranks_before() -> None:
    run = recorded([0, 30], [[40, 60], [70, 71]])
    timeline = run.ranks[1]
    earlier = rank_timeline(
        1,
        calls=[
            {"op": "send", "peer": 5, "start_ns": EPOCH + 31 * MS, "end_ns": EPOCH + 35 * MS, "group": "p"},
            *(
                {
                    "op": "all_reduce", "group": "g01", "seq": at, "dtype": "float32", "bytes": 1000, "group_size": 2,
                    "start_ns": int(timeline.collectives.start_ns[at]), "end_ns": int(timeline.collectives.end_ns[at]),
                }
                for at in range(2)
            ),
        ],
        recordings=[{"start_ns": EPOCH + 30 * MS, "end_ns": EPOCH + 72 * MS}],
        recorded=timeline.recorded,
    )  # fmt: skip
    found = waits(replace(run, ranks={0: run.ranks[0], 1: earlier}))
    assert found[0][1] == 0


@pytest.mark.parametrize(
    ("rank_0", "blame"),
    [
        pytest.param([(0, 60), (96, 130)], (0, 10), id="it runs beside the first call, and waits for the third alone"),
        pytest.param([(0, 41), (41, 60), (96, 130)], (0, 10), id="between two kernels it waits for nothing"),
        pytest.param([(0, 40), (42, 60), (96, 130)], (0, 63), id="it waits for the first one"),
        pytest.param([(0, 60), (80, 130)], (0, 32), id="it waits for the second one"),
    ],
)
def test_a_delay_lasts_until_a_call_that_compute_waits_for(
    rank_0: list[tuple[int, int]], blame: tuple[int, int]
) -> None:
    """Rank 1 began 30 ms later. Its kernels go on beside the first calls, so that it comes 29 and 24 ms later to the
    next ones; then it is late by 10 ms."""
    arrivals, kernels = [[10, 40], [41, 70], [71, 95], [110, 120]], {0: rank_0, 1: [(30, 90), (96, 130)]}
    found = waits(recorded([0, 30], arrivals, kernels=kernels, marked=True))
    assert tuple(found[rank][2] for rank in (0, 1)) == blame
    assert waits(recorded([0, 30], arrivals))[1][2] == 29 + 24 + 10, "unknown compute counts as waiting for each call"


@pytest.mark.parametrize(
    ("starts", "groups", "marked", "read"),
    [
        pytest.param([0, 30], [[0, 1]] * 2, True, 2, id="each rank once"),
        pytest.param([0, 30], [[0, 1]] * 2, False, 2, id="without steps for their begins alone"),
        pytest.param([0, 0, 30, 30], [[0, 1], [2, 3]], True, 0, id="not of ranks that began with those they meet"),
        pytest.param([0, 30, 30], [[0, 1], [0, 1]], True, 2, id="not of a rank without calls"),
    ],
)
def test_kernels_are_read_where_it_is_asked_which_calls_a_delayed_rank_waits_for(
    starts: list[int], groups: list[list[int]], marked: bool, read: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrivals = [[starts[rank] + 10 for rank in own] for own in groups]
    kernels = {rank: [(start, start + 5), (start + 60, start + 90)] for rank, start in enumerate(starts)}
    save_run(recorded(starts, arrivals, groups, kernels, marked=marked), tmp_path / "run", version="1")
    monkeypatch.setattr(stored, "KEPT_TABLES", 1)
    monkeypatch.setattr(stored.TableCache.__init__, "__defaults__", (0,))
    run, reading = load_run(tmp_path / "run"), stored.read_table
    reads: list[str] = []
    found, known = match_and_align(run), steps_and_compute(summarize_ranks(run))
    assert found.matched == 2
    monkeypatch.setattr(
        stored, "read_table", lambda folder, name, *rest: (reads.append(name), reading(folder, name, *rest))[1]
    )
    by_spans = with_start_delays(run, found.splits, found.clocks, {})
    assert reads.count("spans") == read
    reads.clear()
    by_known = with_start_delays(run, found.splits, found.clocks, known)
    assert reads.count("spans") == (0 if marked else read), "what the caller knows is not read again"
    delays = [[each.start_wait_ns for each in one] for one in (by_known, by_spans)]
    assert all(map(np.array_equal, *delays))


# --- lateness beside the spread of the starts -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("lead_ns", "start_ns", "late_ns"),
    [
        pytest.param(40, 10, 30, id="a quarter of it is the start's: the rest is lateness"),
        pytest.param(40, 11, 0, id="more than a quarter"),
        pytest.param(40, 40, 0, id="all of it"),
        pytest.param(40, 90, 0, id="more than all of it"),
        pytest.param(40, 0, 40, id="none of it"),
        pytest.param(0, 0, 0, id="no lead"),
    ],
)
def test_a_lead_is_lateness_but_for_the_start_s_part_where_that_is_small(
    lead_ns: float, start_ns: int, late_ns: float
) -> None:
    assert beyond_start(np.array([lead_ns]), np.array([start_ns])).tolist() == [late_ns]
    starts = np.array([[0.0], [lead_ns]])
    assert leads(starts, np.array([[start_ns], [0]]))["lead_ns"].tolist() == [late_ns]
    assert leads(starts)["lead_ns"].tolist() == [lead_ns]


def test_a_rank_that_was_late_for_far_longer_than_it_began_later_is_blamed_for_the_rest() -> None:
    """Rank 1 began 10 ms later, and arrives 50 ms later: 10 are nobody's, 40 its own; no call is left out."""
    run = recorded([0, 10], [[10, 60], [70, 70]])
    assert waits(run) == {0: (50, 10, 0), 1: (0, 0, 40)}
    analysis = analyze(run)
    assert analysis.skew.reasons == []
    causes = analysis.ranks[0].whole.causes
    assert (causes["start_of_recording"], causes["peer_host"]) == (10 * MS, 40 * MS)


@pytest.mark.parametrize(("arrives", "blame", "left_out"), [(50, 30, 0), (49, 0, 1)])
def test_from_a_quarter_of_the_lead_on_the_call_is_left_out(arrives: int, blame: int, left_out: int) -> None:
    run = recorded([0, 10], [[10, arrives], [70, 70]])
    assert waits(run)[1][2] == blame
    reasons = analyze(run).skew.reasons
    assert len(reasons) == left_out
    assert all(each.startswith("1 of 2 matched calls came before the ranks") for each in reasons)


def test_the_reason_counts_the_calls_that_are_left_out_and_how_far_ranks_came_apart_to_them_alone() -> None:
    """Rank 1 began 20 ms after rank 0, and rank 3 10 ms after rank 2; rank 1 is late for 80 ms besides."""
    run = recorded(
        [0, 20, 0, 10],
        [[5, 105], [5, 17], [120, 120, 120, 123]],
        [[0, 1], [2, 3], [0, 1, 2, 3]],
    )
    found = waits(run)
    assert [found[rank][1] for rank in (0, 2)] == [20, 10]
    assert [found[rank][2] for rank in (1, 3)] == [80, 3]
    (reason,) = analyze(run).skew.reasons
    assert reason.startswith("1 of 3 matched calls came before the ranks, which began to record apart, had met")
    assert "to them, by up to 12.0 ms, is not recorded for 10.0 ms of it, and no rank is blamed for these" in reason


def test_the_reason_says_how_far_apart_ranks_came_to_the_call_to_which_they_came_furthest_apart() -> None:
    """To the first pair's call 5 ms apart, all by the start; to the second pair's 10 ms, of which it explains 4 ms."""
    run = recorded([0, 5, 0, 4], [[10, 15], [10, 20], [70] * 4], [[0, 1], [2, 3], [0, 1, 2, 3]])
    (reason,) = analyze(run).skew.reasons
    assert reason.startswith("2 of 3 matched calls")
    assert "to them, by up to 10.0 ms, is not recorded for 4.0 ms of it, and no rank" in reason


@pytest.mark.parametrize(("second", "blame"), [(10, 72), (70, 0)])
def test_the_start_s_part_is_held_against_the_lead_over_the_second_latest_rank(second: int, blame: int) -> None:
    """Rank 2 began 8 ms later and arrives 80 ms after the first one; of a lead of 20 ms that is more than a quarter."""
    run = recorded([0, 0, 8], [[10, second, 90], [100, 100, 100]])
    assert waits(run)[2][2] == blame


def test_shares_of_a_day_are_without_what_recordings_that_began_apart_waited() -> None:
    """Of windows of 53 and 23 ms, rank 0 exposes 31 + 2 + 3 and rank 1 1 + 1 + 1 ms, with the gaps; 30 by the start."""
    analysis = analyze(recorded([0, 30], [[10, 40], [50, 51], [60, 62]]))
    whole = [info.whole for info in analysis.ranks]
    exposed_ns, window_ns = (sum(getattr(each, of) or 0 for each in whole) for of in ("exposed_comm_ns", "window_ns"))
    assert [each.causes.get("start_of_recording", 0) for each in whole] == [30 * MS, 0]
    assert analysis.throughput is not None
    assert analysis.throughput.exposed_fraction == (exposed_ns - 30 * MS) / (window_ns - 30 * MS)


def of_steps(
    *begun_ms: int, waited_ms: Sequence[int] = (), not_split: Sequence[int] = (), idle: bool = False
) -> dict[str, int]:
    """Return the causes of the headline, in ms, of steps of 100 ms that lose 20, and these beside them by the start or
    as they wait for a late rank; in the steps `not_split` other calls may hold waiting, too."""
    steps = []
    for at, ms in enumerate(begun_ms):
        wait_ns = waited_ms[at] * MS if waited_ms else 0
        causes = {"start_of_recording": ms * MS, "device_wait" if idle else "dependency": 20 * MS}
        causes |= {"peer_host": wait_ns} if wait_ns else {}
        lost_ns = sum(causes.values())
        lost = {"idle_ns": lost_ns, "idle_causes": causes} if idle else {"exposed_comm_ns": lost_ns, "causes": causes}
        parts = dict.fromkeys(("overlapped_ns", "exposed_comm_ns", "copy_only_ns", "idle_ns"), 0)
        parts |= {"comm_ns": 0 if idle else lost_ns, "exposed_wait_ns": None if at in not_split else wait_ns}
        its = Breakdown(**{"window_ns": 100 * MS, "compute_only_ns": 100 * MS - lost_ns, **parts, **lost})
        window = (EPOCH + at * 100 * MS, EPOCH + (at + 1) * 100 * MS)
        steps.append((StepWindow(step=at, recording=0, window=window, complete=True), its))
    recordings = [(EPOCH, EPOCH + len(begun_ms) * 100 * MS)]
    found = headline({0: RankWindows(steps=steps, whole=Breakdown(), recordings=recordings)}, CrossRank())
    return {cause: ns // MS for cause, ns in (found.idle_causes if idle else found.causes).items()}


def test_a_median_step_that_waits_for_the_start_has_the_causes_of_the_others() -> None:
    """The medians of what is lost, 31, and waited, 7, are of two steps: 24 of transfers would be of none."""
    assert of_steps(10, 0, 0, waited_ms=[1, 7, 15]) == {"peer_host": 7, "dependency": 20, "start_of_recording": 4}


def test_waiting_that_is_known_in_few_steps_is_not_that_of_a_median_one() -> None:
    """Of 30, 30 and 21 ms exposed the steps waited 10, 10 and 1: divided as all of them together, 21 of 81."""
    assert of_steps(0, 0, 0, waited_ms=[10, 10, 1], not_split=[0, 1]) == {"peer_host": 7, "dependency": 22}
    assert of_steps(0, 0, 0, waited_ms=[10, 10, 1], not_split=[0]) == {"peer_host": 5, "dependency": 24}


@pytest.mark.parametrize("idle", [False, True])
def test_a_first_step_that_waits_for_the_start_says_nothing_of_a_median_one(*, idle: bool) -> None:
    other = "device_wait" if idle else "dependency"
    assert of_steps(30, 0, 0, idle=idle) == {other: 20}
    assert of_steps(30, 0, idle=idle) == {"start_of_recording": 15, other: 20}
    assert of_steps(30, 30, 0, idle=idle) == {"start_of_recording": 25, other: 25}, "divided as in all these steps"
    assert of_steps(30, idle=idle) == {"start_of_recording": 30, other: 20}
