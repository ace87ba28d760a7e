"""Which ranks share the clock of one host, by its name and by how their calls end."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.timeline.run import Run
from tests.support.overlapping_calls import Met, job

CALLS, STALL_MS = 40, 5.0


def stalled(
    *, name: str | None = "node", ahead_ms: float = 0.0, has_device: bool = False, lasts_ms: float = 2.0
) -> Run:
    """Return a run of two ranks, of which rank 1 sees the ends of most calls late, in the second half above all, as
    if its interpreter's lock was held; its clock is ahead, too."""
    random = np.random.default_rng(11)
    ends = [[at * 20 + lasts_ms + random.uniform(0, 0.05) for at in range(CALLS)] for _ in range(2)]
    late = [STALL_MS * (random.uniform() < (0.3 if at < CALLS / 2 else 0.8)) for at in range(CALLS)]
    ends[1] = [end + each for end, each in zip(ends[1], late, strict=True)]
    run = job(
        {rank: [Met(start=at * 20 + rank * 0.1, end=end) for at, end in enumerate(ends[rank])] for rank in range(2)},
        {"all": (0, 1)}, lasts=CALLS * 20, has_device=has_device, clock={1: ahead_ms},
    )  # fmt: skip
    recorded = {} if name is None else {"host": name}
    return replace(run, ranks={rank: replace(each, recorded=recorded) for rank, each in run.ranks.items()})


def test_ends_seen_late_are_no_clock_of_ranks_whose_traces_name_one_host() -> None:
    found = match_and_align(stalled())
    assert found.clocks.offset_ns == {0: 0.0, 1: 0.0}
    assert not found.clock_set
    assert found.matching.unmatched == 0
    assert match_and_align(stalled(name=None)).clocks.offset_ns != found.clocks.offset_ns


@pytest.mark.parametrize("name", ["", "localhost"])
def test_names_that_say_nothing_are_no_host(name: str) -> None:
    assert match_and_align(stalled(name=name)).clocks.offset_ns != {0: 0.0, 1: 0.0}


@pytest.mark.parametrize("ahead_ms", [-30.0, -3.0, 1.0, 3.0, 30.0])
def test_hosts_of_one_name_whose_calls_end_apart_do_not_share_a_clock(ahead_ms: float) -> None:
    """Containers on two nodes: by one clock some calls would have ended before they began, or nearly none together."""
    for lasts_ms in (2.0, 15.0):
        named, nameless = (
            match_and_align(stalled(name=name, ahead_ms=ahead_ms, lasts_ms=lasts_ms)).clocks for name in ("node", None)
        )
        assert named.offset_ns == nameless.offset_ns


def test_clocks_of_runs_with_a_device_are_known_from_ends_alone() -> None:
    assert match_and_align(stalled(has_device=True)).clocks.offset_ns != {0: 0.0, 1: 0.0}
