"""A forward simulation of ranks whose streams never overlap: what if starts or pauses had been different?

Each host keeps its recorded calls and what lies between them; each device runs its spans one after the other; a
collective ends when its last member has come and the shortest recorded duration is over.
"""

from collections import defaultdict
from collections.abc import Generator
from itertools import pairwise

from tests.truth.raw_events import Rank, Span, ms

LONG_CALL_NS = 20_000
"""No launching call that is left alone takes longer."""
OWN_NS = 20_000
"""A span's own delay, kept in every replay, is no longer."""
PAUSE_NS = 3_000_000
Moves = Generator[int, int, int]


def replayable(ranks: list[Rank]) -> bool:
    """Return whether devices run one span at a time, all with known launches, and the same number of collectives."""
    spans = [sorted(rank.spans, key=lambda each: each.start) for rank in ranks]
    serial = all(two.start >= one.end for own in spans for one, two in pairwise(own))
    linked = all(each.launch is not None for own in spans for each in own)
    counts = {sum(each.kind == "comm" for each in own) for own in spans}
    return serial and linked and len(counts) == 1 and counts != {0}


def replays(ranks: list[Rank]) -> dict[str, object]:
    """Return the length of a recording as it was, with hosts that start together, and with pauses capped.

    `alone` is when each rank would end if its collectives waited for nobody. All are measured from the first moment of
    a device.
    """
    transfers = [min(each.end - each.start for each in row) for row in zip(*map(_collectives, ranks), strict=True)]
    first = min(each.start for rank in ranks for each in rank.spans)
    last = max(each.end for rank in ranks for each in rank.spans)
    hosts = [min(each[0] for each in rank.calls) for rank in ranks]
    return {
        "recorded": ms(last - first),
        "as_recorded": _length(ranks, transfers, hosts, None),
        "starts_aligned": _length(ranks, transfers, [min(hosts)] * len(ranks), None),
        "pauses_capped": _length(ranks, transfers, hosts, PAUSE_NS),
        "alone": [
            ms(_ends([rank], transfers, [host], None)[1] - first) for rank, host in zip(ranks, hosts, strict=True)
        ],
    }


def _length(ranks: list[Rank], transfers: list[int], hosts: list[int], cap: "int | None") -> float:
    first, last = _ends(ranks, transfers, hosts, cap)
    return ms(last - first)


def _ends(ranks: list[Rank], transfers: list[int], hosts: list[int], cap: "int | None") -> tuple[int, int]:
    """Return the first and the last moment of the devices when hosts begin at these times."""
    moves = [_run(rank, host, cap) for rank, host in zip(ranks, hosts, strict=True)]
    first = min(next(each) for each in moves)
    arrived = [next(each) for each in moves]
    for transfer in transfers:
        over = max(arrived) + transfer
        arrived = [each.send(over) for each in moves]
    return first, max(arrived)


def _collectives(rank: Rank) -> list[Span]:
    return sorted((each for each in rank.spans if each.kind == "comm"), key=lambda each: each.start)


def _run(rank: Rank, host: int, cap: "int | None") -> Moves:
    """Yield when the device begins, then each arrival at a collective, whose end is sent back, then when it ends."""
    capped = (lambda length: min(length, cap)) if cap is not None else (lambda length: length)
    launched: dict[int, list[Span]] = defaultdict(list)
    for each in sorted(rank.spans, key=lambda each: each.start):
        launched[each.launch].append(each)
    calls = sorted({(start, end, name) for start, end, name, _ in rank.calls})
    latency = min(
        span.start - (end if _submits_late(start, end, span) else start)
        for start, end, _ in calls for span in launched.get(start, ())
    )  # fmt: skip
    before = calls[0][0]
    busy = recorded_busy = None
    for start, end, name in calls:
        host += capped(max(start - before, 0))
        begun = host
        host += capped(max(end - max(start, before), 0))  # nothing for a driver call within a runtime call
        before = max(before, end)
        if name.endswith("Synchronize") and recorded_busy is not None and start < recorded_busy <= end:
            host = max(begun, busy) + capped(end - recorded_busy)
        for span in launched.pop(start, ()):
            late = _submits_late(start, end, span)
            ready, recorded = (host if late else begun) + latency, (end if late else start) + latency
            if busy is None:
                busy, recorded_busy = ready, recorded
                yield max(ready, ready + span.start - recorded)
            own = min(max(span.start - max(recorded, recorded_busy), 0), OWN_NS)
            arrives = max(ready, busy) + own
            busy = (yield arrives) if span.kind == "comm" else arrives + span.end - span.start
            recorded_busy = span.end
    yield busy


def _submits_late(start: int, end: int, span: Span) -> bool:
    """Return whether a call gave its work to the device when it returned: its host lost its core within the call."""
    return end - start > LONG_CALL_NS and span.start >= end
