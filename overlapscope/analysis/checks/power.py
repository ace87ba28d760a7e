"""Find a device whose power falls while the devices of other ranks stay up: throttled, starved, or stuck.

Power is the median over windows of some seconds, on the ranks' own clocks, which differ by far less than a window. Each
device is compared with its own usual power, so that devices of different models are comparable.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.common.findings import Finding
from overlapscope.timeline.columns import NONE, Flags, Floats, Ints
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

POWER: Final = re.compile(r"^gpu\d+\.power_w$")
WINDOW_NS: Final = 5_000_000_000
"""Length of a window, at least; longer where readings are rare."""
READINGS_A_WINDOW: Final = 4
"""Minimum number of readings in a window."""
FEWEST: Final = 3
"""Windows that a fall must last, and that the device must have been up before; shorter dips are pauses."""
USUAL: Final = 0.75
"""Quantile of a device's windows that is its usual power; high, since a fall may last most of a run."""
LOW, UP = 0.8, 0.9
"""Shares of the usual power: at or below LOW a device has fallen, from UP on it is up."""
AT_LEAST_W: Final = 20.0
"""A smaller fall is noise of an idle device."""
PEERS: Final = 2
"""Devices of other ranks that must stay up; at least half of all others must too."""


class _Levels(msgspec.Struct, frozen=True, kw_only=True):
    """Power of one device: numbers of its windows (ascending), and the median of each in watts."""

    rank: int
    device: str
    window: Ints
    watts: Floats

    @property
    def usual_w(self) -> float:
        return float(np.quantile(self.watts, USUAL))

    @property
    def up(self) -> Flags:
        return self.watts >= UP * self.usual_w

    @property
    def fallen(self) -> Flags:
        """Windows in which the device is low after it had been up for FEWEST windows."""
        low = (self.watts <= LOW * self.usual_w) & (self.watts <= self.usual_w - AT_LEAST_W)
        return low & (np.cumsum(self.up) >= FEWEST)


def power_falls(ranks: Mapping[int, RankTimeline]) -> list[Finding]:
    """Return a finding for each device whose power falls while at least two devices of other ranks stay up.

    There is none with too few power readings. The first and the last window of each device do not count, since a job
    begins and ends there.
    """
    series = list(_series(ranks))
    usual_ns = int(np.median([_interval(times) for *_, times, _ in series] or [0]))
    width = max(WINDOW_NS, READINGS_A_WINDOW * usual_ns)
    devices = [each for rank, device, times, watts in series if (each := _levels(rank, device, times, watts, width))]
    if len({each.rank for each in devices}) <= PEERS:
        return []
    known = np.unique(np.concatenate([each.window for each in devices]))
    there = np.zeros(known.size, np.int64)
    up = np.zeros(known.size, np.int64)
    for each in devices:
        at = np.searchsorted(known, each.window)
        there[at] += 1
        up[at] += each.up
    findings = []
    for each in devices:
        at = np.searchsorted(known, each.window)
        # Other devices of the same rank are not peers.
        mates = [mate for mate in devices if mate.rank == each.rank]
        peers, peers_up = there[at], up[at]
        for mate in mates:
            same = np.isin(each.window, mate.window, assume_unique=True)
            peers[same] -= 1
            peers_up[same] -= mate.up[np.isin(mate.window, each.window, assume_unique=True)]
        alone = each.fallen & (peers_up >= PEERS) & (2 * peers_up >= peers)
        found = _longest_run(each.window, alone)
        if found is not None:
            findings.append(_finding(each, ranks[each.rank], width, *found, int(peers_up[alone].min())))
    return findings


def _series(ranks: Mapping[int, RankTimeline]) -> Iterator[tuple[int, str, Ints, Floats]]:
    """Yield (rank, device, times, watts) of each device, in order of time."""
    for rank, timeline in ranks.items():
        table = timeline.telemetry
        named = rows_named(table.name, timeline.names, POWER.match)
        for code in unique(table.name[named]).tolist():
            good = (table.name == code) & (table.time_ns != NONE) & np.isfinite(table.value) & (table.value > 0)
            order = np.argsort(table.time_ns[good], kind="stable")
            if order.size:
                yield rank, timeline.names[code].partition(".")[0], table.time_ns[good][order], table.value[good][order]


def _interval(times: Ints) -> int:
    return int(np.median(np.diff(times))) if times.size > 1 else 0


def _levels(rank: int, device: str, times: Ints, watts: Floats, width: int) -> _Levels | None:
    window, first, count = np.unique(times // width, return_index=True, return_counts=True)
    full = count >= READINGS_A_WINDOW
    full[[0, -1]] = False
    if full.sum() < 2 * FEWEST:
        return None
    medians = [float(np.median(watts[at : at + many])) for at, many in zip(first[full], count[full], strict=True)]
    return _Levels(rank=rank, device=device, window=window[full], watts=np.array(medians))


def _longest_run(window: Ints, chosen: Flags) -> tuple[int, int] | None:
    """Return the first and the last position of the longest run of chosen windows; None below FEWEST windows.

    A missing window ends a run, since nothing is known about it.
    """
    rows = np.flatnonzero(chosen)
    if rows.size == 0:
        return None
    breaks = np.flatnonzero((np.diff(rows) != 1) | (np.diff(window[rows]) != 1)) + 1
    longest = max(np.split(rows, breaks), key=len)
    return (int(longest[0]), int(longest[-1])) if longest.size >= FEWEST else None


def _finding(fallen: _Levels, timeline: RankTimeline, width: int, first: int, last: int, peers: int) -> Finding:
    begins_ns = int(fallen.window[first]) * width
    lasts_s = (last - first + 1) * width / 1e9
    during = float(np.median(fallen.watts[first : last + 1]))
    steps = timeline.steps
    begun = np.flatnonzero((steps.start_ns != NONE) & (steps.start_ns <= begins_ns))
    step = int(steps.step[begun[np.argmax(steps.start_ns[begun])]]) if begun.size else None
    where = "" if step is None else f" from step {step} on"
    return Finding(
        id=f"power_fall:rank{fallen.rank}:{fallen.device}",
        severity="warning",
        title=f"rank {fallen.rank} ({fallen.device}) draws {during:.0f} W instead of {fallen.usual_w:.0f} W{where}, "
        f"for {lasts_s:.0f} s, while {peers} other devices stay up: it is throttled, starved for input, or stalled by "
        "its host",
        evidence={
            "rank": fallen.rank,
            "device": fallen.device,
            "usual_w": round(fallen.usual_w, 1),
            "during_w": round(during, 1),
            "begins_ns": begins_ns,
            "lasts_s": round(lasts_s, 1),
            "step": step,
            "peers_up": peers,
        },
        known_from="telemetry",
    )
