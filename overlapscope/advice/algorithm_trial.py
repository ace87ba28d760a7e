"""All-reduces far below what is possible, and NCCL's own choice for them is known: try what it did not choose."""

from typing import Final

from overlapscope.advice.given import Given, recommended
from overlapscope.advice.nccl_settings import Library, channels_of, without_algorithm
from overlapscope.analysis.analyze import Recommendation

LOW: Final = "low_bandwidth:"
OTHERS: Final = frozenset({"RING", "TREE", "NVLS", "NVLS_TREE", "COLLNET_DIRECT", "COLLNET_CHAIN"})
"""Of an all-reduce, one of ring and tree is always left without the other; other operations may have one alone."""


def algorithm_trial(given: Given) -> Recommendation | None:
    """Give the trial, without a gain, for the all-reduces that lose most; None where the choice is not known."""
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
