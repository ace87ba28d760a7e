"""Collectives that run on the hosts of devices, as those of gloo do: when, what they take of a step, and when a host is
in one.

Nothing of them is a span of the device: no figure of communication holds them.
"""

from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.common.findings import Finding, format_ms
from overlapscope.analysis.common.wording import ranks_of_run
from overlapscope.analysis.graph.building.host_calls import SILENCE_NS
from overlapscope.analysis.graph.building.host_waits import TO_DEVICE, TO_HOST
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.display import list_some
from overlapscope.ingest.build.kernel_names import HOST_COLLECTIVE
from overlapscope.timeline.columns import (
    ANNOTATION,
    COMM,
    COPY,
    NONE,
    OPERATION,
    Flags,
    HostSpans,
    Ints,
    concat,
    make,
    take,
)
from overlapscope.timeline.intervals import BusyTime, difference, intersection, length, union
from overlapscope.timeline.lazy_host_spans import select_host_spans
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import sort_order, unique
from overlapscope.timeline.run import RankTimeline, Run

WORTH: Final = 0.02
"""Least share of a step that they take beside no compute to be a warning: two recordings of unchanged code differ by as
much. A job that talks over NCCL may pass small messages or a barrier over gloo."""


class _Taken(msgspec.Struct, frozen=True, kw_only=True):
    """What collectives of its host take of one rank's windows; times in ns a window."""

    calls: float
    took_ns: float
    alone_ns: float
    """Beside no compute."""
    names: tuple[str, ...]
    copies: bool
    """Whether copies between host and device were launched in most of them."""


def runs_on_hosts(timeline: RankTimeline) -> bool:
    """Return whether a rank with a device has ranges of collectives that run on hosts."""
    return timeline.has_device and any(map(HOST_COLLECTIVE.match, timeline.names))


def host_collectives(timeline: RankTimeline) -> HostSpans:
    """Return the ranges in which collectives run on the host of a rank's device: those by names of such, in which
    nothing that communicates was launched on the device, as MPI and UCC may do; none for a rank without a device."""
    if not runs_on_hosts(timeline):
        return make(HostSpans, 0)
    notes, spans = timeline.annotations, timeline.spans
    fits = np.array([HOST_COLLECTIVE.match(name) is not None for name in timeline.names], np.bool_)
    marks = np.append(fits, np.False_)[notes.name]  # read also where the table of the host is damaged
    rows = make(
        HostSpans, int(marks.sum()), recording=notes.recording[marks], lane=notes.lane[marks], kind=ANNOTATION,
        name=notes.name[marks], start_ns=notes.start_ns[marks], end_ns=notes.end_ns[marks], correlation=NONE,
    )  # fmt: skip
    if timeline.has_host_events and not timeline.host_is_lost:
        rows = _once(concat([rows, select_host_spans(timeline.host, (OPERATION, ANNOTATION), fits)]))
    launched = np.sort(spans.launch_ns[(spans.kind == COMM) & (spans.launch_ns != NONE)])
    inside = np.searchsorted(launched, rows.end_ns) > np.searchsorted(launched, rows.start_ns)
    return take(rows, ~inside)


def _once(rows: HostSpans) -> HostSpans:
    """Return rows, by thread and start, without those that another table holds as well."""
    rows = take(rows, sort_order(rows.lane, rows.start_ns, rows.end_ns))
    times = np.stack([rows.lane, rows.start_ns, rows.end_ns])
    again = np.append(np.False_, (times[:, 1:] == times[:, :-1]).all(axis=0))[: rows.lane.size]
    return take(rows, ~again)


def times_in_host_collectives(timeline: RankTimeline, mine: HostSpans) -> HostSpans:
    """Return the times, of 0.2 ms or more, in which the host is in such a collective; `mine` are the host spans of the
    threads that make the step (`acting`), by thread.

    It is in each that runs on one of these threads. Of one on another thread it waits for the end where these threads
    begin or end nothing until then, and go on within 0.2 ms: since they last did something.
    """
    rows = host_collectives(timeline)
    if not rows.start_ns.size or not mine.start_ns.size:
        return take(rows, rows.end_ns - rows.start_ns >= SILENCE_NS)
    own = np.isin(rows.lane, unique(mine.lane))
    moments = np.append(np.sort(np.concatenate([mine.start_ns, mine.end_ns])), np.iinfo(np.int64).max)
    next_at = np.searchsorted(moments, rows.end_ns)
    since = np.where(own | (next_at == 0), rows.start_ns, np.maximum(moments[next_at - 1], rows.start_ns))
    long = rows.end_ns - since >= SILENCE_NS
    kept = long & (own | (moments[next_at] - rows.end_ns < SILENCE_NS))
    found = take(rows, kept)
    return take(replace(found, start_ns=since[kept]), sort_order(found.lane, since[kept]))


def launched_in_host_collectives(timeline: RankTimeline, rows: Ints) -> Flags:
    """Return which of some rows in `Spans` were launched in such a collective."""
    talks = host_collectives(timeline)
    launch: Ints = timeline.spans.launch_ns[rows]
    inside = BusyTime(union((talks.start_ns, talks.end_ns))).within(launch, launch + 1) > 0
    found: Flags = inside & (launch != NONE)
    return found


def collectives_on_hosts(
    run: Run, coverage: Mapping[int, Coverage], windows: Mapping[int, Sequence[StepWindow]], step_ns: float | None
) -> list[Finding]:
    """Return at most one finding: which collectives ran on the hosts of devices, and what they take of a step, in the
    mean over the ranks that have such; a warning where they take WORTH of it beside no compute."""
    found = {
        rank: taken
        for rank, timeline in run.ranks.items()
        if runs_on_hosts(timeline) and (taken := _taken(timeline, coverage[rank], windows[rank])) is not None
    }
    if not found or not step_ns:
        return []
    took_ns, alone_ns = (fmean(getattr(each, name) for each in found.values()) for name in ("took_ns", "alone_ns"))
    on_devices = any(coverage[rank].comm.starts.size for rank in run.ranks)
    whole = any(each.complete and each.window is not None for rank in found for each in windows[rank])
    per = "step" if whole else "recording"
    calls = round(fmean(each.calls for each in found.values()))
    names = sorted({name for each in found.values() for name in each.names})
    copies = all(each.copies for each in found.values())
    carried = "; what they carry is copied from the device before them, and back" if copies else ""
    return [
        Finding(
            id="host_collectives",
            severity="warning" if alone_ns >= WORTH * step_ns else "info",
            title=f"collectives run on hosts ({list_some(names)}, {ranks_of_run(found, len(run.ranks))}), about "
            f"{calls} a {per}: they take {format_ms(took_ns)} of a {format_ms(step_ns)} {per}, {format_ms(alone_ns)} "
            f"of it beside no compute{carried}; no figure of communication holds them",
            evidence={
                "operations": names, "ranks": sorted(found), "calls": calls, "took_ns": round(took_ns),
                "alone_ns": round(alone_ns), "on_devices": on_devices, "copies": copies,
            },
            known_from="trace",
        )
    ]  # fmt: skip


def _taken(timeline: RankTimeline, cover: Coverage, windows: Sequence[StepWindow]) -> _Taken | None:
    """Return what they take of the complete steps of a rank, or of all that was recorded where it has none; None for
    none."""
    rows = host_collectives(timeline)
    if not rows.start_ns.size:
        return None
    whole = [each.window for each in windows if each.complete and each.window is not None]
    begins, ends = np.array(whole, np.int64).reshape(-1, 2).T
    times = union((rows.start_ns, rows.end_ns))
    inside = intersection(times, union((begins, ends))) if whole else times
    middle = (rows.start_ns + rows.end_ns) // 2
    counted = BusyTime(union((begins, ends))).within(middle, middle + 1) > 0 if whole else np.full(middle.size, True)
    parts = max(len(whole), 1)
    return _Taken(
        calls=int(counted.sum()) / parts,
        took_ns=length(inside) / parts,
        alone_ns=length(difference(inside, cover.compute)) / parts,
        names=tuple(timeline.names[code] for code in unique(rows.name).tolist()),
        copies=bool(2 * _with_copies(timeline, rows) > rows.start_ns.size),
    )


def _with_copies(timeline: RankTimeline, rows: HostSpans) -> int:
    """Return how many of the ranges have copies to the host and to the device launched in them."""
    spans = timeline.spans
    found = np.full(rows.start_ns.size, True)
    for fits in (TO_HOST, TO_DEVICE):
        copies = (spans.kind == COPY) & (spans.launch_ns != NONE) & rows_named(spans.name, timeline.names, fits.search)
        launched: Ints = np.sort(spans.launch_ns[copies])
        found &= np.searchsorted(launched, rows.end_ns) > np.searchsorted(launched, rows.start_ns)
    return int(found.sum())
