"""All-reduces far below what is possible, and NCCL's own choice for them is known: try what it did not choose."""

from collections.abc import Sequence
from typing import Final

from overlapscope.advice.nccl_settings import Library, channels_of, fewer_channels, more_channels, without_algorithm
from overlapscope.advice.rule_input import Given, recommended
from overlapscope.analysis.result import Recommendation
from overlapscope.errors import UsageError
from overlapscope.timeline.run import Run
from overlapscope.whatif.result import Trial

LOW: Final = "low_bandwidth:"
OTHERS: Final = frozenset({"RING", "TREE", "NVLS", "NVLS_TREE", "COLLNET_DIRECT", "COLLNET_CHAIN"})
"""Of an all-reduce, one of ring and tree is always left without the other; other operations may have one alone."""
NOT_NCCL = "channels are NCCL's, and nothing says that this recording's collectives are"
VERIFY = "record a run with it, then: overlapscope compare RUN NEW_RUN"


def algorithm_trial(given: Given) -> Recommendation | None:
    """Return the trial, without a gain, for the all-reduces that lose most; None where the choice is not known."""
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
        assumed=["that another algorithm is faster here: none was measured"],
        verify="all_reduce_perf -b 1M -e 1G -f 2 with and without it, then: overlapscope compare RUN NEW_RUN",
    )


def no_channels(run: Run) -> str:
    """Say why nothing can be said of channels; empty where something can."""
    return NOT_NCCL if Library.of(run) is None else ""


def channel_trials(run: Run, channels: Sequence[int]) -> list[Trial]:
    """Return a trial for each number. Raises UsageError where the recording's collectives are not NCCL's."""
    if not channels:
        return []
    library = Library.of(run)
    if library is None:
        raise UsageError(f"--channels: {NOT_NCCL}")
    present = channels_of(run)
    return [_trial(library, present, each) for each in dict.fromkeys(channels)]


def _trial(library: Library, present: int | None, channels: int) -> Trial:
    if present == channels:
        return Trial(knobs={"channels": channels}, why="so many are used at present", apply={}, verify="")
    more = present is not None and channels > present
    now = f"now {present}" if present is not None else "the present number is not recorded"
    effect = (
        "transfers may go faster, and take more of the device's multiprocessors from what computes beside them"
        if more
        else "what computes beside transfers has more of the device's multiprocessors, and transfers may go slower"
    )
    return Trial(
        knobs={"channels": channels},
        why=f"{now}: {effect}; not measured here, so that no gain is told",
        apply=more_channels(library, channels) if more else fewer_channels(library, channels),
        verify=VERIFY,
    )
