"""What counts as being late, how late, and from when on a rank is named for it: small jobs with figures by hand."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.analysis.cross_rank.wait_transfer import split_waits, waits_by_rank
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.result import Straggler
from overlapscope.analysis.stragglers.lateness import late_arrivals
from overlapscope.analysis.stragglers.stragglers import beside_slow_links
from overlapscope.timeline.run import Run
from tests.support.overlapping_calls import Met, job

US, MS = 1_000, 1_000_000
RANKS = 4
EVERYBODY = {"all": tuple(range(RANKS))}

# --- what counts as being last --------------------------------------------------------------------------------------


def pairs_late_by(*leads: int) -> MatchedCalls:
    """Return calls of ranks 0 and 1, a second apart, to which rank 1 comes late by so much; both end together."""
    starts = np.array([[k * 1000 * MS, k * 1000 * MS + lead] for k, lead in enumerate(leads)], np.int64).T
    return MatchedCalls(
        group="g", op="all_reduce", dtype=None, bytes=8, ranks=(0, 1), rows=np.array([range(len(leads))] * 2),
        start_ns=starts, end_ns=np.broadcast_to(starts.max(axis=0) + MS, starts.shape), by_order=False, whole=True,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("residual_ns", "times_last"),
    [
        (None, 5),  # more than 50 us
        (16 * US, 5),  # three residuals are less than that
        (20 * US, 2),  # more than 60 us
        (30 * US, 1),
        (100 * US, 0),
    ],
)
def test_times_last_counts_leads_beyond_50_us_and_three_residuals_of_the_clocks(
    residual_ns: float | None, times_last: int
) -> None:
    clocks = Clocks(offset_ns={0: 0.0, 1: 0.0}, residual_ns=residual_ns)
    block = pairs_late_by(0, 20 * US, 50 * US, 51 * US, 55 * US, 60 * US, 70 * US, 200 * US)
    found = waits_by_rank(split_waits([block], clocks), clocks)
    assert (found[0].times_last, found[1].times_last) == (0, times_last)
    assert found[1].blame_ns == 506 * US  # all leads, small ones too


def test_a_call_ends_early_only_where_the_clocks_do_not_explain_it() -> None:
    block = pairs_late_by(MS, MS, MS)
    ends = block.end_ns.copy()
    ends[0] = block.start_ns[1] - np.array([40 * US, 60 * US, 100 * US])  # rank 0 ends before rank 1 has started
    early = replace(block, end_ns=ends)
    for residual_ns, count in ((None, 2), (25 * US, 1), (40 * US, 0)):
        (found,) = split_waits([early], Clocks(offset_ns={0: 0.0, 1: 0.0}, residual_ns=residual_ns))
        assert found.early_ends == count


# --- how late -------------------------------------------------------------------------------------------------------


def leads_of(calls: dict[int, Sequence[Met]], **more: Any) -> dict[int, list[int]]:
    """Return the leads of each rank, in ms and in order of time."""
    run = job(calls, {"all": tuple(calls)}, lasts=200, **more)
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in run.ranks.items()}
    found = late_arrivals(run, match_and_align(run).splits, coverage)
    return {each.rank: (each.lead_ns // MS).tolist() for each in found}


def test_of_calls_under_way_together_a_lead_counts_once() -> None:
    # Rank 1 comes 30 ms late to the first, where they meet until 35; it is 39 ms late to the second, but 34 of these
    # were before they met: 5 are new.
    first = {0: Met(start=0, end=35), 1: Met(start=30, end=35)}
    second = {0: Met(start=1, end=45, volume=512), 1: Met(start=40, end=45, volume=512)}
    assert leads_of({rank: (first[rank], second[rank]) for rank in (0, 1)}) == {1: [30, 5]}


def test_members_last_met_at_the_latest_end_of_the_calls_before_in_whatever_order_these_end() -> None:
    # The first call lasts until 50, the second, begun after it, until 20. Rank 1 comes to the third at 60: ten
    # milliseconds after they met, though rank 0 had come at 25.
    both = (Met(start=0, end=50), Met(start=1, end=20, volume=512))
    calls = {rank: (*both, Met(start=came, end=65, volume=256)) for rank, came in ((0, 25), (1, 60))}
    assert leads_of(calls) == {1: [10]}


@pytest.mark.parametrize(
    ("computed", "leads"),
    [
        ([(0, 200)], [3]),  # all calls wait beside compute: the later rank stays as late as it was
        ([], [3, 3, 3, 3]),  # the other rank stops for each call: it is late to each anew
        ([(0, 21), (23, 200)], [3, 2]),  # it stops for 2 ms of the second wait: of the third lead as much is new
    ],
)
def test_a_lead_lasts_over_calls_beside_compute_and_counts_once(
    computed: list[tuple[float, float]], leads: list[int]
) -> None:
    came = {0: 10, 1: 13}
    calls = {rank: [Met(start=at + 10 * k, end=15 + 10 * k) for k in range(4)] for rank, at in came.items()}
    assert leads_of(calls, computes={0: computed, 1: [(0, 200)]}) == {1: leads}
    hosts = leads_of(calls, computes={0: computed, 1: [(0, 200)]}, has_device=False)
    assert hosts == {1: [3, 3, 3, 3]}, "hosts that compute do so on other threads"


def test_ranks_whose_recordings_began_apart_have_met_only_where_one_stopped_for_the_other() -> None:
    # Rank 1 begins 3 ms later and stays so far behind, beside compute, until rank 0 stops for it in the third call.
    came = {0: 10, 1: 13}
    calls = {rank: [Met(start=at + 10 * k, end=15 + 10 * k) for k in range(4)] for rank, at in came.items()}
    run = job(calls, {"all": (0, 1)}, lasts=200, computes={0: [(0, 30), (35, 200)], 1: [(3, 200)]}, step=200)
    late_begin = run.ranks[1]
    begun = {name: replace(getattr(late_begin, name), start_ns=getattr(late_begin, name).start_ns + 3 * MS)
             for name in ("recordings", "steps")}  # fmt: skip
    apart = Run(world_size=2, ranks={0: run.ranks[0], 1: replace(late_begin, **begun)}, groups=run.groups)
    coverage = {rank: Coverage.of(timeline.spans) for rank, timeline in apart.ranks.items()}
    (late,) = late_arrivals(apart, match_and_align(apart).splits, coverage)
    assert (late.rank, (late.lead_ns / MS).tolist()) == (1, [3.0])
    row = late.met.ranks.index(1)
    assert (late.met.end_ns[row] - run.ranks[1].collectives.start_ns[3]).tolist() == [0], "the call after that stop"


# --- who is named ---------------------------------------------------------------------------------------------------


def late(late_ms: Sequence[float], ranks: Sequence[int], **more: Any) -> Run:
    """Return a job of 100 ms steps: all compute for 40 ms, then one rank idles for so long, then they meet."""
    calls: dict[int, list[Met]] = {rank: [] for rank in range(RANKS)}
    for k, (lead, culprit) in enumerate(zip(late_ms, ranks, strict=True)):
        for rank in range(RANKS):
            came = 100 * k + 40 + (lead if rank == culprit else 0)
            calls[rank].append(Met(start=came, end=100 * k + 45 + lead))
    computes = {rank: [(100.0 * k, 100.0 * k + 40) for k in range(len(late_ms))] for rank in range(RANKS)}
    return job(calls, EVERYBODY, lasts=100 * len(late_ms), step=100, computes=computes, **more)


def named(run: Run) -> list[tuple[int, str, int]]:
    return [(each.rank, each.held_by, each.blame_ns // MS) for each in analyze(run).skew.stragglers]


@pytest.mark.parametrize(
    ("has_device", "lead", "weighs"), [(True, 4, False), (True, 6, True), (False, 8, False), (False, 12, True)]
)
def test_blame_weighs_from_5_percent_of_the_recording_and_10_without_a_device(
    has_device: bool, lead: int, weighs: bool
) -> None:
    # `lead` milliseconds in each step of 100, always of rank 2: no chance, but not much.
    run = late([lead] * 20, [2] * 20, has_device=has_device)
    assert named(run) == ([(2, "host", 20 * lead)] if weighs else [])


def test_a_rank_that_shares_the_blame_is_named_where_chance_is_below_1_percent() -> None:
    # Rank 1 holds the others up in 70 % of the steps. Chernoff for 7 of 10 with p = 1/4: exp(-10 KL(0.7, 0.25)) =
    # 0.0116, times four ranks 0.046; for 14 of 20 it is 0.00013, times four 0.0005.
    assert named(late([10] * 10, [1, 1, 0, 1, 1, 2, 1, 1, 3, 1])) == []
    assert [each[:2] for each in named(late([10] * 20, [1, 1, 0, 1, 1, 2, 1, 1, 3, 1] * 2))] == [(1, "host")]


def test_a_rank_that_has_most_of_the_blame_is_named_where_chance_is_below_10_percent() -> None:
    # Three occasions of one among four equals: 4 / 4^3 = 0.0625; two of two: 4 / 4^2 = 0.25.
    none = [0.0] * 3
    assert named(late([30, 30, 30, *none], [1] * 6)) == [(1, "host", 90)]
    assert named(late([30, 30, 0, *none], [1] * 6)) == []


def test_short_delays_of_others_do_not_hide_the_rank_of_all_long_ones() -> None:
    # Three of three long ones among four equals, 4 / 4^3 = 0.0625; seven short ones are less than one of them.
    assert named(late([30.0] * 3 + [4.0] * 7, [1, 1, 1, 0, 2, 3, 0, 2, 3, 0])) == [(1, "host", 90)]


@pytest.mark.parametrize(("steps", "found"), [(3, [(1, "host", 50)]), (4, [])])
def test_from_four_steps_on_all_leads_of_one_step_are_one_occasion(
    steps: int, found: list[tuple[int, str, int]]
) -> None:
    # Ten leads of rank 1, all in the first step: ten of ten by chance, 4 / 4^10, or one of one, 4 / 4.
    calls = {
        rank: [Met(start=8 * k + 1 + 5 * (rank == 1), end=8 * k + 7) for k in range(10)]
        for rank in range(RANKS)
    }  # fmt: skip
    assert named(job(calls, EVERYBODY, lasts=100 * steps, step=100)) == found


# --- beside a slow link ---------------------------------------------------------------------------------------------


def test_what_is_not_understood_is_the_links_where_one_is_slow() -> None:
    held = [Straggler(rank=rank, held_by=by, blame_ns=1, evidence={}) for rank, by in enumerate(("host", "unknown"))]
    slow = Finding(id="slow_link", severity="warning", title="", evidence={}, known_from="transfers")
    assert [each.rank for each in beside_slow_links(held, [])] == [0, 1]
    assert [each.rank for each in beside_slow_links(held, [slow])] == [0]


def test_beside_a_slow_link_nobody_is_accused_of_what_is_not_understood() -> None:
    # Of its lead of 10 ms rank 2 computes 4 more, communicates 3 in no known call, and idles for 3: no half of it.
    steps = range(20)
    calls = {
        rank: [Met(start=100 * k + (50 if rank == 2 else 40), end=100 * k + 55) for k in steps] for rank in range(RANKS)
    }
    computes = {rank: [(100.0 * k, 100.0 * k + (44 if rank == 2 else 40)) for k in steps] for rank in range(RANKS)}
    lone = {2: [(100 * k + 44, 100 * k + 47) for k in steps]}
    run = job(calls, EVERYBODY, lasts=2000, step=100, computes=computes, lone=lone)
    assert [each[:2] for each in named(run)] == [(2, "unknown")]
    sockets = [
        {"local": f"10.0.0.1:{port}", "peer": f"10.0.0.2:{port}", "sent_bytes": 100 * MS, "received_bytes": 0,
         "busy_ns": 10**9, "rate_bytes_s": 10 * MS, "interface": "eth0", "interface_bytes_s": 1250 * MS}
        for port in (1, 2)
    ]  # fmt: skip
    peer = [{**each, "local": each["peer"], "peer": each["local"], "sent_bytes": 0} for each in sockets]
    ranks = {
        **run.ranks,
        0: replace(run.ranks[0], recorded={"sockets": sockets}),
        1: replace(run.ranks[1], recorded={"sockets": peer}),
    }
    linked = analyze(replace(run, ranks=ranks))
    assert [each.id for each in linked.findings if each.id.startswith("slow_link")] == ["slow_link"]
    assert linked.skew.stragglers == []
