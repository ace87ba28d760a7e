"""Match point-to-point calls: a send on one rank with the receive of the same message on another.

Between two ranks of a group, messages arrive in the order in which they are sent, so the k-th send is the k-th receive.
Not where devices run them on several streams, as of a communicator each: a receive that was launched early waits there
while later ones come and go. Then both ends of a message are those that end together, on a clock that both share.
The peer is recorded, or there is only one other member. Batches of both, which name no peer, are paired where all of a
group's end together with one of a neighbour in it. Wait and transfer are not separated: a send may end before its
message is received.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

import msgspec
import numpy as np

from overlapscope.analysis.cross_rank.aligned_clocks import Clocks
from overlapscope.analysis.cross_rank.matched_calls import MatchedCalls
from overlapscope.analysis.cross_rank.matching.early_calls import are_early, not_placed
from overlapscope.analysis.cross_rank.matching.group_calls import named
from overlapscope.timeline.columns import NONE, Collectives, Floats, Ints
from overlapscope.timeline.message_groups import messages_in_ranges
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.rows import factorize_rows, sort_order, values_in
from overlapscope.timeline.run import RankTimeline, Run

SEND, RECV, BOTH = "send", "recv", "send_recv"
EARLY_NS: Final = 50_000
"""A receive that ends this long before its send begins belongs to another message ..."""
MAX_EARLY: Final = 0.05
"""... and above this share of such receives, the recordings do not hold the same messages."""
TOGETHER_NS: Final = 100_000
"""A choice: two ranks see an exchange of theirs end within so much of each other, and what devices send to each other:
NCCL's kernels leave a message within microseconds, unless it is small enough for the sender's buffer."""
MOSTLY: Final = 0.9
"""A choice: where such a share of messages end together with one each, the others' other ends were not recorded; with
fewer, ends do not show which ones are the same."""
FEWEST_NAMED: Final = 3
"""So many messages with a known peer show how far apart the clocks of two ranks are."""

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
    batches: dict[str | None, dict[int, Ints]] = {}
    unmatched = 0
    members = {group.name: group.ranks for group in run.groups if group.ranks is not None}
    for rank, timeline in run.ranks.items():
        for op, group, peer, rows in _spoken(rank, timeline, members):
            if peer == NONE and op == BOTH:
                batches.setdefault(group, {})[rank] = rows
            elif peer == NONE:
                unmatched += rows.size
                reasons.append(_says_no_peer(group, op, places=_states_places(timeline, rows)))
            elif peer not in run.ranks or peer == rank:
                unmatched += rows.size
                reasons.append(f"{named(group)}: sends and receives with ranks that were not recorded are not paired")
            else:
                both = op == BOTH
                sending = op == SEND or (both and rank < peer)
                ends = (rank, peer) if sending else (peer, rank)
                (sends if sending else recvs)[_Way(group, *ends, both)] = rows
    pairs = []
    strange = {way.group for way in (*sends, *recvs) if _with_strangers(way, members)}
    for way in dict.fromkeys([*sends, *recvs]):
        sent, got = (side.get(way, np.empty(0, np.int64)) for side in (sends, recvs))
        sent, got, why = _same_messages(run, way, sent, got, clocks)
        if sent.size:
            pairs.append(
                MessagePairs(
                    group=way.group, sender=way.sender, receiver=way.receiver, both_ways=way.both_ways,
                    send_rows=sent, recv_rows=got,
                )
            )  # fmt: skip
        if why is not None:
            unmatched += sum(side[way].size for side in (sends, recvs) if way in side) - sent.size - got.size
            on = f", rank {way.sender} to rank {way.receiver}: {why}"
            of_strangers = ": the peers of some of its calls are not its members: not paired"
            reasons.append(f"{named(way.group)}{of_strangers if way.group in strange else on}")
    for group, each_rank in batches.items():
        exchanges = _exchanges(run, group, members.get(group or "", ()), each_rank, pairs, clocks)
        if exchanges is None:
            unmatched += (many := sum(rows.size for rows in each_rank.values()))
            early = are_early(run, each_rank)
            reasons.append(not_placed(group, many) if early else _says_no_peer(group, BOTH))
        pairs += exchanges or []
    said = list(dict.fromkeys(reasons))
    more = [f"{len(said) - MAX_REASONS} more such reasons for sends and receives"] if len(said) > MAX_REASONS else []
    return PairMatching(pairs=tuple(pairs), unmatched=unmatched, reasons=(*said[:MAX_REASONS], *more))


def _with_strangers(way: _Way, members: Mapping[str, Sequence[int]]) -> bool:
    """Return whether the members of a group are known and one of the two ranks is none of them."""
    own = members.get(way.group or "")
    return own is not None and not {way.sender, way.receiver} <= set(own)


def exchanges(run: Run, pairs: Sequence[MessagePairs]) -> list[MatchedCalls]:
    """Return the messages of devices that end together on both ranks, as calls of both: those that two ranks send and
    receive at once, and those of two ranks that send to each other, where the ends of both ways say so."""
    on_devices = [each for each in pairs if all(run.ranks[rank].has_device for rank in (each.sender, each.receiver))]
    one_way = {(each.group, each.sender, each.receiver): each for each in on_devices if not each.both_ways}
    together = {
        (group, low, high)
        for (group, low, high), each in one_way.items()
        if low < high and _end_together(run, each, one_way.get((group, high, low)))
    }
    return [
        _as_call_of_both(run, each)
        for each in on_devices
        if each.both_ways or (each.group, *sorted((each.sender, each.receiver))) in together
    ]


def _same_messages(run: Run, way: _Way, sent: Ints, got: Ints, clocks: Clocks) -> tuple[Ints, Ints, str | None]:
    """Return the sends and receives that are the same messages, and why others of them are not paired.

    Both are in order of their begins, which is that of the messages: not so where they overlap, as on several streams
    of a device. Those are paired by when they end, as are those of devices of which one recorded more.
    """
    none = np.empty(0, np.int64)
    on_devices = run.ranks[way.sender].has_device and run.ranks[way.receiver].has_device
    overlap = on_devices and (_overlap(run, way.sender, sent) or _overlap(run, way.receiver, got))
    cut = on_devices and sent.size != got.size and clocks.comparable((way.sender, way.receiver))
    if not (sent.size and got.size and (overlap or cut)):
        why = _differ(run, way, sent, got, clocks)
        return (none, none, why) if why else (sent, got, None)
    ours, theirs = _that_end_together(run, way, sent, got, clocks)
    if ours.size < MOSTLY * min(sent.size, got.size) or _differ(run, way, ours, theirs, clocks):
        apart = "they overlap, as on several streams, and do not end together: not paired"
        return none, none, apart if sent.size == got.size else _differ(run, way, sent, got, clocks)
    recorded = sent.size + got.size
    alone = recorded - 2 * ours.size
    of_all = f"{alone} of its {recorded} sends and receives"
    why = f"{of_all} end together with no single one of the other rank's: not paired"
    return ours, theirs, why if alone else None


def _overlap(run: Run, rank: int, rows: Ints) -> bool:
    """Return whether messages, in order of their begins, overlap as on no single stream: one that began later than
    another ended before it."""
    return bool((np.diff(run.ranks[rank].collectives.end_ns[rows]) < 0).any())


def _that_end_together(run: Run, way: _Way, sent: Ints, got: Ints, clocks: Clocks) -> tuple[Ints, Ints]:
    """Return the sends and receives of two devices that end together, each nearest to the other, in order of their
    ends; none where no clock can tell. Where another end is about as near, it is not known which one it is.

    Clocks that nothing connects are as far apart as the messages, of which there are as many, mostly end.
    """
    sent, got = (
        rows[np.argsort(run.ranks[rank].collectives.end_ns[rows], kind="stable")]
        for rank, rows in ((way.sender, sent), (way.receiver, got))
    )
    ours, theirs = (
        clocks.aligned(rank, run.ranks[rank].collectives.end_ns[rows])
        for rank, rows in ((way.sender, sent), (way.receiver, got))
    )
    if not clocks.comparable((way.sender, way.receiver)):
        if sent.size != got.size:
            return sent[:0], got[:0]
        theirs = theirs - np.median(theirs - ours)
    mine, its = _nearest(ours, theirs), _nearest(theirs, ours)
    within = max(float(TOGETHER_NS), 3.0 * (clocks.residual_ns or 0.0))
    same = (its[mine] == np.arange(sent.size)) & (np.abs(theirs[mine] - ours) <= within)
    same &= _next_nearest_ns(ours, theirs, mine) > 2 * within
    return sent[same], got[mine[same]]


def _nearest(times: Floats, others: Floats) -> Ints:
    """Return for each time the place of the nearest of the others; both in order."""
    between = (others[1:] + others[:-1]) / 2
    nearest: Ints = np.searchsorted(between, times)
    return nearest


def _next_nearest_ns(times: Floats, others: Floats, nearest: Ints) -> Floats:
    """Return how far each time is from the second nearest of the others; both in order. `nearest` has the place of the
    nearest one."""
    around = np.concatenate(([-np.inf], others, [np.inf]))
    found: Floats = np.minimum(times - around[nearest], around[nearest + 2] - times)
    return found


def _later_ns(run: Run, pair: MessagePairs) -> Ints:
    """Return how much later messages ended on the receiver than on the sender, each by its own clock."""
    sent, got = run.ranks[pair.sender].collectives, run.ranks[pair.receiver].collectives
    return got.end_ns[pair.recv_rows] - sent.end_ns[pair.send_rows]


def _end_together(run: Run, there: MessagePairs, back: MessagePairs | None) -> bool:
    """Return whether the messages of a group that two ranks send each other end together: no receiver ends before its
    data are sent, so clocks that are apart make the ends of one way later by as much as those of the other earlier."""
    if back is None or min(there.send_rows.size, back.send_rows.size) < FEWEST_NAMED:
        return False
    ways = [_later_ns(run, each) for each in (there, back)]
    if abs(sum(np.median(each) for each in ways)) > TOGETHER_NS:
        return False
    return all(bool(np.subtract(*np.percentile(each, [75, 25])) <= TOGETHER_NS) for each in ways)


def _as_call_of_both(run: Run, pair: MessagePairs) -> MatchedCalls:
    ranks, rows = (pair.sender, pair.receiver), np.array([pair.send_rows, pair.recv_rows])
    calls = [run.ranks[rank].collectives for rank in ranks]
    return MatchedCalls(
        group=pair.group, op=BOTH, dtype=None, bytes=None, ranks=ranks, rows=rows, by_order=True, whole=True,
        start_ns=np.array([each.start_ns[own] for each, own in zip(calls, rows, strict=True)]),
        end_ns=np.array([each.end_ns[own] for each, own in zip(calls, rows, strict=True)]),
    )  # fmt: skip


def _states_places(timeline: RankTimeline, rows: Ints) -> bool:
    """Return whether ranges state the places in a group from which and to which all of these messages go."""
    stated = messages_in_ranges(timeline)
    return stated is not None and bool((stated[1][rows] != NONE).all())


def _says_no_peer(group: str | None, op: str, *, places: bool = False) -> str:
    if places:
        return (
            f"{named(group)}: ranges say at which place of their group the peers of {op} calls are, but nothing says "
            "which ranks this group has; they are not paired"
        )
    return f"{named(group)}: the recording does not say with which rank its {op} calls are; they are not paired"


def _exchanges(
    run: Run, group: str | None, members: Sequence[int], batches: Mapping[int, Ints], known: Sequence[MessagePairs],
    clocks: Clocks,
) -> list[MessagePairs] | None:  # fmt: skip
    """Pair all the batches of a group, each with one of the member before or after; None where any is left or unsure.

    Those of the first member can only be with the second one, the rest of which is with the third one, and so on.
    `batches` holds the rows of each rank in order of time, `known` the messages whose peer is known.
    """
    if not set(members) <= run.ranks.keys():
        return None
    none = np.empty(0, np.int64)
    found: list[MessagePairs] = []
    left = batches.get(members[0], none) if members else none
    for one, other in pairwise(members):
        theirs = batches.get(other, none)
        if left.size:
            ends = _ends(run, (one, other), (left, theirs), known, clocks)
            at = None if ends is None else _one_of_each(*ends)
            if at is None:
                return None
            found.append(
                MessagePairs(
                    group=group, sender=min(one, other), receiver=max(one, other), both_ways=True,
                    send_rows=left if one < other else theirs[at], recv_rows=theirs[at] if one < other else left,
                )
            )  # fmt: skip
            theirs = np.delete(theirs, at)
        left = theirs
    placed = sum(each.send_rows.size + each.recv_rows.size for each in found)
    agree = placed == sum(rows.size for rows in batches.values()) and not any(
        _differ(run, _Way(group, each.sender, each.receiver, each.both_ways), each.send_rows, each.recv_rows, clocks)
        for each in found
    )
    return found if agree else None


def _ends(
    run: Run, ranks: tuple[int, int], rows: tuple[Ints, Ints], known: Sequence[MessagePairs], clocks: Clocks
) -> tuple[Floats, Floats] | None:
    """Return when calls of two ranks ended, on one clock: the common one, or as far apart as their known messages end;
    None without either."""
    ours, theirs = (run.ranks[rank].collectives.end_ns for rank in ranks)
    if clocks.comparable(ranks):
        return clocks.aligned(ranks[0], ours[rows[0]]), clocks.aligned(ranks[1], theirs[rows[1]])
    apart = [
        theirs[each.recv_rows] - ours[each.send_rows]
        if each.sender == ranks[0]
        else theirs[each.send_rows] - ours[each.recv_rows]
        for each in known
        if {each.sender, each.receiver} == set(ranks)
    ]
    distances = np.concatenate(apart) if apart else np.empty(0, np.int64)
    if distances.size < FEWEST_NAMED:
        return None
    base, ahead = int(ours[rows[0][0]]), int(np.median(distances))
    return (ours[rows[0]] - base).astype(np.float64), (theirs[rows[1]] - (base + ahead)).astype(np.float64)


def _one_of_each(ours: Floats, theirs: Floats) -> Ints | None:
    """Return for each of our times the only one of theirs, each once, that is near it; None where any has none, or two.

    Both are in order of the calls.
    """
    order = np.argsort(theirs, kind="stable")
    ends = theirs[order]
    first, after = (np.searchsorted(ends, ours + far) for far in (-TOGETHER_NS, TOGETHER_NS))
    if not (after - first == 1).all():
        return None
    at: Ints = order[first]
    return at if (np.diff(at) > 0).all() else None


def _spoken(
    rank: int, timeline: RankTimeline, members: Mapping[str, Sequence[int]]
) -> Iterator[tuple[str, str | None, int, Ints]]:
    """Yield (operation, group, peer, rows in order of time) of a rank's timed point-to-point calls."""
    calls, names = timeline.collectives, timeline.names
    wanted = rows_named(calls.op, names, (SEND, RECV, BOTH).__contains__)
    rows = np.flatnonzero(wanted & (calls.start_ns != NONE) & (calls.end_ns != NONE))
    if rows.size == 0:
        return
    rows = rows[sort_order(calls.start_ns[rows])]
    op, group, peer = calls.op[rows], calls.group[rows], calls.peer[rows].copy()
    for code in values_in(group[peer == NONE]).tolist():
        others = [each for each in members.get(names[code] if code >= 0 else "", ()) if each != rank]
        if len(others) == 1:
            peer[(group == code) & (peer == NONE)] = others[0]
    kind, first = factorize_rows([op, group, peer])  # not by code: a run directory has other codes
    for number, row in enumerate(first.tolist()):
        yield names[int(op[row])], timeline.name(int(group[row])), int(peer[row]), rows[kind == number]


def _differ(run: Run, way: _Way, sent: Ints, got: Ints, clocks: Clocks) -> str | None:
    """Return why the calls of two ranks cannot be the same messages; None where they can."""
    if sent.size != got.size:
        why = ": cut or sampled, and" if sent.size and got.size else ","
        return f"{sent.size} sends and {got.size} receives were recorded{why} not paired"
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
