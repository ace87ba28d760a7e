"""Rule: the job is launch-bound; the GPU is idle, waiting for kernel launches, or collectives are launched late."""

from collections.abc import Sequence
from statistics import fmean
from typing import Final

import numpy as np

from overlapscope.advice.job_kind import FUSABLE, JobKind
from overlapscope.advice.rule_input import RuleInput, Windows, ms, recommended, time_of
from overlapscope.analysis.result import Recommendation
from overlapscope.analysis.stragglers.host_cause import LOADING
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.intervals import difference, intersection, length, union
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import WAITS_FOR_DEVICE
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

GAPS: Final = 0.1
"""Least idle share of a step between kernels to call a device launch-bound. A choice: five times `WORTH`, because some
of it is caused by the profiler, and how much is not known."""
LOADS: Final = 0.5
"""Least share of the idle time in which batches are fetched, to recommend faster data loading. A choice: most of it."""
MOST_CALLS: Final = 5
HOST: Final = ("host", "launch")
"""Parts of a critical path that belong to the host."""


def late_launches(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the job is launch-bound; None for runs without devices or communication."""
    if not given.figures.comm_ns or not any(each.has_device for each in given.run.ranks.values()):
        return None
    late = given.cause_ns("late_launch")
    gaps = min(_on_path(given), given.figures.idle_ns or 0)
    gaps = gaps if gaps >= GAPS * given.step_ns else 0
    if not given.is_worth(late) and not gaps:
        return None
    seen = [_gaps(timeline, given, own) for timeline, own in given.some_ranks() if timeline.has_device]
    loading = fmean([each[0] for each in seen] or [0])
    calls = max((each[1] for each in seen), key=lambda each: sum(ns for _, ns in each.values()), default={})
    parts = [f"collectives launched late cost {ms(late)}"] if given.is_worth(late) else []
    parts += [f"the device waits {ms(gaps)} for launches"] if gaps else []
    loads = bool(gaps) and loading >= LOADS * (given.figures.idle_ns or 0)
    during_loading = f", {ms(loading)} of it while a batch is fetched" if loads else ""
    return recommended(
        given,
        id="late_launches",
        title=f"Launch-bound: in a {ms(given.step_ns)} {given.per} {' and '.join(parts)}{during_loading}",
        at_most_ns=late + gaps,
        apply=_loading()
        if loads
        else _launching(given.job, [name for name, each in calls.items() if given.is_worth(each[1])]),
        evidence={
            "late_launch_ns": late,
            "idle_ns": given.figures.idle_ns,
            "host_on_critical_path_ns": _on_path(given),
            "loading_while_idle_ns": round(loading),
            "synchronising_calls": {name: {"calls": each[0], "ns": each[1]} for name, each in calls.items()},
        },
        measured=["launches after the data was ready, and idle time that the critical path attributes to the host"],
        assumed=[
            "that all of it can be avoided: the gain is an upper bound",
            *(["that no unrecorded rank was later still: not all were recorded"] if not given.is_whole else []),
            *(["how much of it is caused by the profiler, which slows the host"] if _profiled(given) else []),
        ],
    )


def _profiled(given: RuleInput) -> bool:
    return any(each.basis == "trace" for each in given.run.ranks.values())


def _on_path(given: RuleInput) -> int:
    """Return the host's time on the critical path in ns, mean over its steps; all idle time where launches alone are
    recorded, and so no path is known."""
    steps, ranks = given.analysis.critical_path.steps, given.run.ranks.values()
    if not any(each.has_host_events for each in ranks) and all((each.spans.launch_ns != NONE).all() for each in ranks):
        return given.figures.idle_ns or 0
    return round(fmean(sum(each.parts.get(part, 0) for part in HOST) for each in steps)) if steps else 0


def _gaps(timeline: RankTimeline, given: RuleInput, windows: Windows) -> tuple[float, dict[str, tuple[float, int]]]:
    """Return two means over windows: the ns in which the device was idle while a batch was fetched, and the number and
    ns of the calls that wait for the device, by name.
    """
    notes, names, cover = timeline.annotations, timeline.names, given.coverage[timeline.rank]
    inside = time_of(windows)
    idle = difference(inside, union(cover.comm, cover.compute, cover.copy))
    loads = rows_named(notes.name, names, LOADING.fullmatch)
    loading = union((notes.start_ns[loads], notes.end_ns[loads]))
    rows = np.flatnonzero(rows_named(notes.name, names, WAITS_FOR_DEVICE.fullmatch))
    where = np.searchsorted(inside.starts, notes.start_ns[rows], side="right") - 1
    rows = rows[(where >= 0) & (notes.start_ns[rows] < np.append(inside.ends, 0)[where])]
    found: dict[str, tuple[float, int]] = {}
    for code in unique(notes.name[rows]).tolist():
        own = rows[notes.name[rows] == code]
        waited = int((notes.end_ns[own] - notes.start_ns[own]).sum())
        found[names[code]] = (round(own.size / len(windows), 1), round(waited / len(windows)))
    most = sorted(found, key=lambda name: -found[name][1])[:MOST_CALLS]
    return length(intersection(idle, loading)) / len(windows), {name: found[name] for name in most}


def _launching(job: JobKind, stop: Sequence[str]) -> dict[str, str]:
    """Return code that makes fewer launches; `stop` are the calls in which the host waits long."""
    lines = ['model = torch.compile(model, mode="reduce-overhead")  # CUDA graphs: one launch for many kernels']
    if job.optimizer in FUSABLE and not job.is_fused:
        lines.append(f"optimizer = torch.optim.{job.optimizer}(..., fused=True)")
    if stop:
        avoid = "no .item(), .cpu(), print(tensor) or torch.cuda.synchronize() in a step"
        lines.append(f"# {', '.join(stop)} stops the host: {avoid}")
    return {
        "torch": "\n".join(lines),
        "fsdp2": "block.set_modules_to_forward_prefetch([next_block])  # enqueues the gather before the compute",
        "megatron": "--cuda-graph-impl local",
    }


def _loading() -> dict[str, str]:
    return {"torch": "DataLoader(..., num_workers=8, prefetch_factor=4, pin_memory=True, persistent_workers=True)"}
