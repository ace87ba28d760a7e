"""Rule: waiting for a straggler dominates; tuning will not help until the straggler is fixed."""

from collections.abc import Mapping
from typing import Final, Literal

from overlapscope.analysis.result import Analysis, Recommendation, waited_for
from overlapscope.analysis.stragglers.stragglers import WEIGHS, Straggler
from overlapscope.display import percent_text

DOMINATES: Final = 0.5
"""Least share of wait time in the time in collectives, over all ranks."""
OF_IDLE: Final = 1 / 3
"""Waiting for nobody in particular comes first unless ranks idle for three times as long: then that is the loss."""

LOOK: Final[Mapping[str, Mapping[str, str]]] = {
    "host": {"python": "py-spy record --pid PID --duration 30 --output host.svg  # what its host does meanwhile"},
    "data_loading": {"torch": "DataLoader(..., num_workers=8, prefetch_factor=4, persistent_workers=True)"},
    "garbage_collector": {"python": "gc.collect(); gc.freeze(); gc.disable()  # and gc.collect() on all ranks at once"},
    "allocator": {"environment": "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
    "throttled": {"nvidia": "nvidia-smi -q -d PERFORMANCE,CLOCK,TEMPERATURE,POWER"},
    "slower_compute": {"nvidia": "nvidia-smi -q -d PERFORMANCE,CLOCK,ECC; nvidia-smi dmon -s pucm -c 10"},
    "more_work": {"torch": 'print(rank, batch["input_ids"].shape)  # are batches, layers, tokens of experts equal?'},
    "longer_compute": {
        "linux": "pidstat -u -w -p PID 1  # does it lose its core?",
        "torch": 'print(rank, batch["input_ids"].shape)  # are batches, layers, tokens of experts equal?',
    },
}
"""What shows or mends the cause of a late rank, by `held_by`."""


def late_rank(analysis: Analysis) -> Recommendation | None:
    """Return the rank to look at, where waiting for late ranks is the largest loss; else None.

    That is so where wait time is at least half of the time in collectives and matters to the recording, or where the
    recording would be shorter by much without the excess of the straggler.
    """
    ranks, held = analysis.skew.ranks, analysis.skew.stragglers
    total = sum(each.collective_ns for each in ranks)
    waited = sum(each.wait_ns - each.start_of_recording_ns for each in ranks)
    straggler = max(held, key=lambda each: each.blame_ns, default=None)
    worth = straggler is not None and straggler.removal_ns is not None
    window = sum(each.whole.window_ns or 0 for each in analysis.ranks)
    idle = sum(each.idle_ns or 0 for each in ranks)
    # A straggler weighs by its delays, which count uneven exchanges, too.
    matters = waited >= DOMINATES * total and (straggler or waited >= max(WEIGHS * window, OF_IDLE * idle))
    if not total or not (worth or matters):
        return None
    head = analysis.headline
    window_of: Literal["step", "recording"] = "recording" if head.window == "recording" else "step"
    steps = max(head.steps, 1) if window_of == "step" else 1
    rank = straggler.rank if straggler else max(ranks, key=lambda each: each.blame_ns).rank
    return Recommendation(
        id="late_rank",
        title=_title(straggler, rank, waited / total, waited_for(ranks)),
        verdict="look",
        predicted_gain_ns=None,
        gain_low_ns=straggler.removal_low_ns if straggler else None,
        gain_high_ns=straggler.removal_high_ns if straggler else None,
        confidence="mixed" if worth else "measured",
        memory_bytes=None,
        changes_numerics=False,
        apply=_look(straggler, rank),
        verify="overlapscope analyze RUN --all",
        per="recording" if worth else window_of,
        loss_ns=None if head.exposed_wait_ns is None else head.exposed_wait_ns * (steps if worth else 1),
        evidence={
            "rank": rank,
            "waited_ns": waited,
            "collective_ns": total,
            "held_by": straggler.held_by if straggler else None,
            "late_with": straggler.late_with if straggler else [],
            "removal_ns": straggler.removal_ns if straggler else None,
        },
        measured=["wait time, separated from transfer time by the shortest call of each collective"],
        assumed=["that a straggler's own work may take what its peers' takes: a replay, with each of several peers"]
        if worth
        else [],
    )


def _look(straggler: Straggler | None, rank: int) -> dict[str, str]:
    """Return what to type to see why the rank is late."""
    if straggler is None:
        return {"look": "overlapscope explain RUN  # the longest waits; more steps show whether it is always one rank"}
    return {
        "look": "overlapscope explain RUN  # the longest waits, as commands",
        **LOOK.get(straggler.held_by, {}),
        "host": f"hostname; lscpu; nvidia-smi -L  # where rank {rank} runs: is another rank late there, too?",
    }


def _title(straggler: Straggler | None, rank: int, share: float, others: str) -> str:
    waiting = f"aiting is {percent_text(share)} of the time in matched collectives"
    if straggler is None:
        return f"W{waiting}, {others}: tuning will not help"
    cause = f" ({straggler.held_by.replace('_', ' ')})" if straggler.held_by != "unknown" else ""
    ranks = sorted([rank, *straggler.late_with])
    who = f"rank {rank}" if len(ranks) == 1 else f"ranks {', '.join(map(str, ranks))}"
    return f"Look at {who}{cause}: w{waiting}, and tuning will not help until the straggler is fixed"
