"""Rule: all-reduces are far below the possible bandwidth; try another algorithm than NCCL chose. Also other numbers of
channels as trials: how transfers change with them was not measured.
"""

from collections.abc import Sequence
from typing import Final

from overlapscope.advice.nccl_settings import Library, channels_of, fewer_channels, more_channels, without_algorithm
from overlapscope.advice.rule_input import RuleInput, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.errors import UsageError
from overlapscope.timeline.run import Run
from overlapscope.whatif.result import Trial

LOW: Final = "low_bandwidth:"
OTHERS: Final = frozenset({"RING", "TREE", "NVLS", "NVLS_TREE", "COLLNET_DIRECT", "COLLNET_CHAIN"})
"""Algorithms that can be excluded: an all-reduce always has ring or tree left; other operations may have only one."""
NOT_NCCL = "channels are a setting of NCCL, and nothing recorded shows that this job used NCCL"
VERIFY = "record a run with it, then: overlapscope compare RUN NEW_RUN"


def algorithm_trial(given: RuleInput) -> Recommendation | None:
    """Return the trial for the all-reduces that lose most, without a gain; None where NCCL's choice is not known."""
    library = Library.of(given.run)
    low = [
        each.evidence
        for each in given.analysis.findings
        if each.id.startswith(LOW) and each.evidence["op"] == "all_reduce"
    ]
    if library is None or not low:
        return None
    worst = max(low, key=lambda each: each["lost_ns_a_call"] * each["calls"])
    chosen = {
        row.algorithm
        for row in given.analysis.collectives
        if (row.op, row.group, row.bytes) == (worst["op"], worst["group"], worst["bytes"])
    }
    if len(chosen) != 1:
        return None
    algorithm = chosen.pop()
    if algorithm not in OTHERS:
        return None
    return recommended(
        given,
        id="algorithm_trial",
        title=f"Try all-reduces of {worst['bytes'] / 1e6:.1f} MB without {algorithm}, which NCCL chose: they reach "
        f"{worst['busbw_gbs']:.3g} of {worst['possible_busbw_gbs']:.3g} GB/s",
        apply=without_algorithm(library, "all_reduce", algorithm, channels_of(given.run)),
        evidence={**worst, "algorithm": algorithm, "nccl_version": ".".join(map(str, library.version)) or None},
        measured=["bus bandwidth of matched transfers, and NCCL's choice"],
        assumed=["that another algorithm is faster here: no other was measured"],
        verify="all_reduce_perf -b 1M -e 1G -f 2 with and without it, then: overlapscope compare RUN NEW_RUN",
    )


def why_no_channel_trials(run: Run) -> str:
    """Return why channels cannot be tried; empty where they can."""
    return NOT_NCCL if Library.of(run) is None else ""


def channel_trials(run: Run, channels: Sequence[int]) -> list[Trial]:
    """Return a trial for each number of channels. Raises UsageError where the recorded collectives are not NCCL's."""
    if not channels:
        return []
    library = Library.of(run)
    if library is None:
        raise UsageError(f"--channels: {NOT_NCCL}")
    present = channels_of(run)
    return [_trial(library, present, each) for each in dict.fromkeys(channels)]


def _trial(library: Library, present: int | None, channels: int) -> Trial:
    if present == channels:
        return Trial(knobs={"channels": channels}, why="this is the present number", apply={}, verify="")
    more = present is not None and channels > present
    now = f"now {present}" if present is not None else "the present number is not recorded"
    effect = (
        "transfers may be faster, but take more multiprocessors from compute beside them"
        if more
        else "compute beside transfers has more multiprocessors, but transfers may be slower"
    )
    return Trial(
        knobs={"channels": channels},
        why=f"{now}: {effect}; not measured here, so no gain is predicted",
        apply=more_channels(library, channels) if more else fewer_channels(library, channels),
        verify=VERIFY,
    )
