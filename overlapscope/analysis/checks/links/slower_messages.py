"""Find pairs of ranks between which messages take several times as long as equal ones between other pairs.

The recording says nothing of hosts then: the slow pairs may be those whose messages cross a network, so no link is
called slow (compare `slow_link`). Times are of messages matched at both ends, each the shorter of both durations. Of
the slow pairs both ends last as long, so none waits for the other.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from overlapscope.analysis.checks.links.slow_link import AT_LEAST_NS, FEWEST_CALLS, MAX_LISTED, QUICK, spans_hosts
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.matching.point_to_point import MessagePairs
from overlapscope.timeline.columns import NONE, Floats
from overlapscope.timeline.rows import split_by
from overlapscope.timeline.run import Run

LONGER: Final = 3.0
"""A choice: links within a host and between hosts differ by more, the messages of one link by less."""
AS_LONG: Final = 0.9
"""Where the shorter end of the median message takes this share of the longer one, the ends began together."""
FEWEST_OTHERS: Final = 2

Pair = tuple[int, int]
Times = Mapping[Pair, tuple[Floats, Floats]]
"""By pair of ranks, the shorter and the longer duration of each of its messages, in ns."""


def slower_messages(run: Run, pairs: Sequence[MessagePairs]) -> list[Finding]:
    """Return at most one finding: of the messages of the size that differ the most."""
    found = [
        (least, _finding(volume, each, slow, both_ways=both_ways))
        for (volume, both_ways), each in _by_size(run, pairs).items()
        for least, slow in (_slow(each),)
        if slow
    ]
    return [max(found, key=lambda each: each[0])[1]] if found else []


def _by_size(run: Run, pairs: Sequence[MessagePairs]) -> dict[tuple[int, bool], dict[Pair, tuple[Floats, Floats]]]:
    """Return the times of messages by size, those that go both ways at once apart."""
    parts: dict[tuple[int, bool], dict[Pair, list[Floats]]] = defaultdict(lambda: defaultdict(list))
    for pair in pairs:
        if spans_hosts(run, (pair.sender, pair.receiver)) is not None:
            continue
        sent, got = run.ranks[pair.sender].collectives, run.ranks[pair.receiver].collectives
        volumes = sent.bytes[pair.send_rows]
        took = np.array(
            [
                sent.end_ns[pair.send_rows] - sent.start_ns[pair.send_rows],
                got.end_ns[pair.recv_rows] - got.start_ns[pair.recv_rows],
            ],
            np.float64,
        )
        ends = min(pair.sender, pair.receiver), max(pair.sender, pair.receiver)
        for rows in split_by(volumes):
            volume = int(volumes[rows[0]])
            if volume != NONE and volume > 0:
                parts[volume, pair.both_ways][ends].append(took[:, rows])
    return {
        kind: {
            ends: (both.min(axis=0), both.max(axis=0))
            for ends, each in of_kind.items()
            if (both := np.concatenate(each, axis=1)).shape[1] >= FEWEST_CALLS
        }
        for kind, of_kind in parts.items()
    }


def _slow(times: Times) -> tuple[float, list[Pair]]:
    """Return how many times as long the quickest slow pair takes at least, and the slow pairs, the slowest first."""
    if len(times) <= FEWEST_OTHERS:
        return 0.0, []
    high = np.sort([float(np.quantile(shorter, 0.9)) for shorter, _ in times.values()])
    quick = max(float(high[high.size // QUICK]), 1.0)
    least = {ends: float(np.quantile(shorter, 0.1)) for ends, (shorter, _) in times.items()}
    slow = [
        ends
        for ends, (shorter, longer) in times.items()
        if least[ends] >= LONGER * quick
        and least[ends] - quick >= AT_LEAST_NS
        and float(np.median(shorter / np.maximum(longer, 1.0))) >= AS_LONG
    ]
    if len(times) - len(slow) < FEWEST_OTHERS or not slow:
        return 0.0, []
    return min(least[ends] for ends in slow) / quick, sorted(slow, key=lambda ends: -least[ends])


def _finding(volume: int, times: Times, slow: Sequence[Pair], *, both_ways: bool) -> Finding:
    medians = {ends: float(np.median(shorter)) for ends, (shorter, _) in times.items()}
    others = [medians[ends] for ends in times if ends not in slow]
    taken, quick = (float(np.median(each)) for each in ([medians[ends] for ends in slow], others))
    each_way = " each way" if both_ways else ""
    more = "" if len(slow) == 1 else f" and of {len(slow) - 1} more pair{'s' if len(slow) > 2 else ''}"
    return Finding(
        id="slower_messages",
        severity="info",
        title=f"messages of {volume / 1e6:.1f} MB between ranks {min(slow[0])} and {max(slow[0])}{more} take "
        f"{taken / 1e6:.3g} ms ({volume / taken:.2g} GB/s{each_way}), between the other {len(others)} pairs "
        f"{quick / 1e6:.3g} ms ({volume / quick:.2g} GB/s): another network, or a slow link?",
        evidence={
            "bytes": volume,
            "both_ways": both_ways,
            "pairs": [
                {"ranks": list(ends), "median_ns": round(medians[ends]), "gbs": volume / medians[ends]}
                for ends in slow[:MAX_LISTED]
            ],
            "other_pairs": len(others),
            "others_median_ns": round(quick),
            "others_gbs": volume / quick,
        },
        known_from="messages matched at both ends",
    )
