"""The arrows of an Ascend trace from host to device: from the call, or the operation, to the task it enqueued."""

import msgspec
import numpy as np

from overlapscope.ingest.innermost import NOWHERE
from overlapscope.ingest.ranges import Ranges
from overlapscope.timeline.columns import NONE, Ints


class Flows(msgspec.Struct, frozen=True, kw_only=True):
    """Arrows from host to device: both ends of each, joined by their id."""

    from_lane: Ints
    from_ns: Ints
    to_lane: Ints
    """NONE where the arrow has no end in the file."""
    to_ns: Ints


def joined(ends: dict[str, list[tuple[str, int, int]]]) -> Flows:
    """Join the ends of the arrows; one call may enqueue several tasks, an id that begins twice begins first."""
    begin: dict[str, tuple[int, int]] = {}
    for key, lane, time in ends["s"]:
        if key not in begin or time < begin[key][1]:
            begin[key] = (lane, time)
    rows = [(*begin[key], lane, time) for key, lane, time in ends["f"] if key in begin]
    ended = {key for key, _, _ in ends["f"]}
    rows += [(*start, NONE, NONE) for key, start in begin.items() if key not in ended]
    columns = np.array(rows, np.int64).reshape(-1, 4)
    return Flows(from_lane=columns[:, 0], from_ns=columns[:, 1], to_lane=columns[:, 2], to_ns=columns[:, 3])


def arrow_starts(flows: Flows, ranges: Ranges, rows: Ints) -> tuple[Ints, Ints]:
    """Give time and lane of the start of the arrow that ends where each event begins; NONE without one."""
    ended = np.flatnonzero(flows.to_lane != NONE)
    none = np.full(rows.size, NONE, np.int64)
    if ended.size == 0 or rows.size == 0:
        return none, none
    ends = np.stack([flows.to_lane[ended], flows.to_ns[ended]], axis=1)
    asked = np.stack([ranges.lane[rows], ranges.start_ns[rows]], axis=1)
    _, key = np.unique(np.concatenate([ends, asked]), axis=0, return_inverse=True)
    key = key.reshape(-1)
    arrow = np.full(int(key.max()) + 1, NOWHERE, np.int64)
    arrow[key[: ended.size][::-1]] = ended[::-1]  # the first of several
    found = arrow[key[ended.size :]]
    return np.append(flows.from_ns, NONE)[found], np.append(flows.from_lane, NONE)[found]


def launch_bounds(launches: Flows, launch_ns: Ints) -> tuple[int, int]:
    """Give the last launch with a span, and the first after it whose task is not in the file."""
    linked = launch_ns[launch_ns != NONE]
    if linked.size == 0:
        return NONE, NONE
    last = int(linked.max())
    lost = launches.from_ns[(launches.to_lane == NONE) & (launches.from_ns > last)]
    return last, int(lost.min()) if lost.size else NONE
