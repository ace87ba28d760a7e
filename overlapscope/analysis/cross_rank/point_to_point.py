"""Match point-to-point calls: a send on one rank with the receive of the same message on another.

Between two ranks of a group, messages arrive in the order in which they are sent, so the k-th send is the k-th receive.
The peer is recorded, or there is only one other member. Wait and transfer are not separated: a send may end before its
message is received.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.clock_offsets import Clocks
from overlapscope.analysis.cross_rank.group_calls import named
from overlapscope.timeline.columns import NONE, Collectives, Ints
from overlapscope.timeline.run import RankTimeline, Run

SEND, RECV, BOTH = "send", "recv", "send_recv"
EARLY_NS: Final = 50_000
"""A receive that ends this long before its send begins belongs to another message ..."""
MAX_EARLY: Final = 0.05
"""... and above this share of such receives, the recordings do not hold the same messages."""

MAX_REASONS: Final = 20


class MessagePairs(msgspec.Struct, frozen=True, kw_only=True):
    """The matched messages of one group from one rank to another, in order of time."""

    group: str | None
    sender: int
    receiver: int
    both_ways: bool
    """Whether each call sends and receives at once, so both ranks are sender and receiver."""
    send_rows: Ints
    """Row in the sender's `Collectives`."""
    recv_rows: Ints


class PairMatching(msgspec.Struct, frozen=True, kw_only=True):
    """The paired messages; `unmatched` counts the recorded calls that could not be paired, on each rank."""

    pairs: tuple[MessagePairs, ...] = ()
    unmatched: int = 0
    reasons: tuple[str, ...] = ()

    @property
    def matched(self) -> int:
        """Number of matched messages, each counted once."""
        return sum(each.send_rows.size for each in self.pairs)


class _Way(msgspec.Struct, frozen=True):
    group: str | None
    sender: int
    receiver: int
    both_ways: bool


def match_pairs(run: Run, clocks: Clocks) -> PairMatching:
    """Pair the sends and receives of all recorded ranks whose peer is known; reasons say what was not paired."""
    sends: dict[_Way, Ints] = {}
    recvs: dict[_Way, Ints] = {}
    reasons: list[str] = []
    unmatched = 0
    members = {group.name: group.ranks for group in run.groups if group.ranks is not None}
    for rank, timeline in run.ranks.items():
        for op, group, peer, rows in _spoken(rank, timeline, members):
            if peer == NONE:
                unmatched += rows.size
                reasons.append(f"{named(group)}: the peer of its {op} calls was not recorded; they are not paired")
            elif peer not in run.ranks or peer == rank:
                unmatched += rows.size
                reasons.append(f"{named(group)}: sends and receives with ranks that were not recorded are not paired")
            else:
                both = op == BOTH
                sending = op == SEND or (both and rank < peer)
                ends = (rank, peer) if sending else (peer, rank)
                (sends if sending else recvs)[_Way(group, *ends, both)] = rows
    pairs = []
    for way in dict.fromkeys([*sends, *recvs]):
        sent, got = (side.get(way, np.empty(0, np.int64)) for side in (sends, recvs))
        why = _differ(run, way, sent, got, clocks)
        if why is None:
            pairs.append(
                MessagePairs(
                    group=way.group, sender=way.sender, receiver=way.receiver, both_ways=way.both_ways,
                    send_rows=sent, recv_rows=got,
                )
            )  # fmt: skip
        else:
            unmatched += sent.size + got.size
            reasons.append(f"{named(way.group)}, rank {way.sender} to rank {way.receiver}: {why}")
    said = list(dict.fromkeys(reasons))
    more = [f"{len(said) - MAX_REASONS} more such reasons for sends and receives"] if len(said) > MAX_REASONS else []
    return PairMatching(pairs=tuple(pairs), unmatched=unmatched, reasons=(*said[:MAX_REASONS], *more))


def _spoken(
    rank: int, timeline: RankTimeline, members: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, str | None, int, Ints]]:
    """Yield (operation, group, peer, rows in order of time) of a rank's timed point-to-point calls."""
    calls, names = timeline.collectives, timeline.names
    wanted = [code for code, name in enumerate(names) if name in (SEND, RECV, BOTH)]
    rows = np.flatnonzero(np.isin(calls.op, wanted) & (calls.start_ns != NONE) & (calls.end_ns != NONE))
    if rows.size == 0:
        return
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    op, group, peer = calls.op[rows].astype(np.int64), calls.group[rows], calls.peer[rows].copy()
    for code in np.unique(group[peer == NONE]).tolist():
        others = [each for each in members.get(names[code] if code >= 0 else "", ()) if each != rank]
        if len(others) == 1:
            peer[(group == code) & (peer == NONE)] = others[0]
    peers, of_peer = np.unique(peer, return_inverse=True)
    _, first, at = np.unique(
        (op * (len(names) + 1) + group + 1) * peers.size + of_peer, return_index=True, return_inverse=True
    )
    for row in np.sort(first).tolist():  # not by code: a run directory has other codes
        code, kind = int(group[row]), at[row]
        yield names[int(op[row])], (names[code] if code >= 0 else None), int(peer[row]), rows[at == kind]


def _differ(run: Run, way: _Way, sent: Ints, got: Ints, clocks: Clocks) -> str | None:
    """Return why the calls of two ranks cannot be the same messages; None where they can."""
    if sent.size != got.size:
        return f"{sent.size} sends and {got.size} receives were recorded: cut or sampled, and not paired"
    ours, theirs = run.ranks[way.sender].collectives, run.ranks[way.receiver].collectives
    a, b = ours.bytes[sent], theirs.bytes[got]
    if ((a != b) & (a != NONE) & (b != NONE)).any():
        return "sends and receives in order differ in size: they are not the same messages, and not paired"
    begun = clocks.aligned(way.sender, called_ns(ours, sent))
    ended = clocks.aligned(way.receiver, theirs.end_ns[got])
    slack = max(float(EARLY_NS), 3.0 * (clocks.residual_ns or 0.0))
    if clocks.comparable((way.sender, way.receiver)) and float((ended + slack < begun).mean()) > MAX_EARLY:
        return "receives end before their sends begin: they are not the same messages, and not paired"
    return None


def called_ns(calls: Collectives, rows: Ints) -> Ints:
    """Return when a host handed over its messages: when it called, which may be before the span of the send begins."""
    called: Ints = np.where(calls.launch_ns[rows] == NONE, calls.start_ns[rows], calls.launch_ns[rows])
    return called
