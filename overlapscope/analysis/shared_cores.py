"""Training threads that waited for a core: more of them than there are cores, so that who is late is chance."""

from collections.abc import Mapping
from typing import Final

import numpy as np

from overlapscope.analysis.findings import Finding
from overlapscope.analysis.held_by_host import QUEUED, taken
from overlapscope.timeline.run import RankTimeline

MUCH: Final = 0.05
"""Waiting for a core is worth a word from this share of the time between the first and the last reading."""


def shared_cores(ranks: Mapping[int, RankTimeline]) -> list[Finding]:
    """Give a finding when training threads waited much for a core, with each rank's share; none without readings."""
    shares: dict[int, float] = {}
    waited: dict[int, int] = {}
    for rank, timeline in ranks.items():
        time_ns, value = taken(timeline, QUEUED)
        if time_ns.size > 1 and time_ns[-1] > time_ns[0]:
            waited[rank] = round(float(value[-1] - value[0]))
            shares[rank] = waited[rank] / int(time_ns[-1] - time_ns[0])
    if not shares or max(shares.values()) < MUCH:
        return []
    most = max(shares, key=shares.__getitem__)
    return [
        Finding(
            id="shared_cores",
            severity="warning",
            title=f"training threads waited for a core, up to {waited[most] / 1e6:.1f} ms of a rank "
            f"({shares[most]:.0%} of its time): there are more threads than cores, and which rank is late is chance; "
            "set OMP_NUM_THREADS and bind ranks to cores of their own",
            evidence={
                "waited_ns": {str(rank): value for rank, value in waited.items()},
                "median_share": float(np.median(list(shares.values()))),
            },
            known_from="telemetry",
        )
    ]
