"""Parse lines of NCCL's subsystem TUNING: what it chose for a call, which call that is, and its cost table.

    33554432 Bytes -> Algo 1 proto 2 time 367.200012                               2.20 to 2.22
    AllReduce: 33554432 Bytes -> Algo 1 proto 2 time 367.200012                    2.23
    AllReduce: 33554432 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..23}    2.24 and later
    AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL_R nchannels 1 nthreads 512 nWorks 1     2.27 and later
    AllGather [Copy Engine]: 4096 Bytes -> cudaMemcpy                              2.28 and later

Only member 0 of a communicator writes them, when a group of calls is launched, so they follow the group's calls. Until
2.23 a line is for all calls of one operation and type whose sizes are within four times the smallest, and counts their
sum (`ncclPrepareTasks`); there `Bytes` is the whole buffer, in later versions what one rank contributes or receives.
The choice holds for all members: the other members' calls get it too.

At initialisation member 0 also prints the time that each algorithm and protocol would take:

    Latency/AlgBw |    Tree/    LL |    Tree/ LL128 | ...         before 2.18; one table
      Algorithm   |                  Tree                  | ...  since 2.18; several blocks of up to three algorithms
      Protocol    |      LL |   LL128 |  Simple | ...
        AllReduce |    27.1/  10.2 |    35.3/  40.8 | ...         latency in microseconds, bandwidth in GB/s
"""

import re
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from overlapscope.ingest.formats.nccl_log.communicators import NO_NUMBER, LoggedThread
from overlapscope.ingest.formats.nccl_log.line_prefix import Writer, writer_at_end
from overlapscope.timeline.columns import Codes, Flags, Ints
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline

ALGORITHMS: Final = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
PROTOCOLS: Final = ("LL", "LL128", "SIMPLE")
_TOGETHER: Final = 4
_HEAD: Final = re.compile(rb" NCCL INFO (?:([A-Za-z][A-Za-z0-9]{0,40})(?: \[[A-Za-z ]{1,30}\])?: )?$")
_NAMED: Final = re.compile(
    rb" Bytes -> Algo ([A-Z][A-Za-z0-9_]{1,30}) proto ([A-Z][A-Za-z0-9_]{1,30})"
    rb" channel\{Lo\.\.Hi\}=\{([0-9]{1,5})\.\.([0-9]{1,5})\}(?: comm 0x[0-9a-f]{1,16})?\s*"
)
_NUMBERED: Final = re.compile(rb" Bytes -> Algo (\w{1,30}) proto (\w{1,30})(?: time -?[0-9.]{1,40})?\s*")
_SYMMETRIC: Final = re.compile(
    rb" Bytes -> Kernel (\S{1,100}) nchannels ([0-9]{1,5}) nthreads [0-9]{1,7}"
    rb"(?: nWorks [0-9]{1,7})?(?: cgaClusterSize [0-9]{1,7})?\s*"
)
_ENGINES: Final = re.compile(rb" Bytes -> (cudaMemcpy|RMA proxy \+ CE)(?:; .{1,100})?\s*")
OPERATIONS: Final = {
    "allreduce": "all_reduce",
    "allreducewithbias": "all_reduce",
    "allgather": "all_gather",
    "reducescatter": "reduce_scatter",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
    "alltoall": "all_to_all",
    "alltoallpivot": "all_to_all",
    "alltoallgda": "all_to_all",
    "alltoallv": "all_to_allv",
    "alltoallvgda": "all_to_allv",
    "gather": "gather",
    "scatter": "scatter",
}
"""Our names of operations by NCCL's names in lower case."""
_SPELLINGS: Final = {"COLLNETDIRECT": "COLLNET_DIRECT", "COLLNETCHAIN": "COLLNET_CHAIN", "NVLSTREE": "NVLS_TREE"}
_TITLES: Final = frozenset(("Latency/AlgBw", "Algorithm", "Protocol", "Max NThreads"))
_CELL: Final = re.compile(r"([0-9]{1,12}(?:\.[0-9]{1,6})?)/ {0,12}([0-9]{1,12}(?:\.[0-9]{1,6})?)")
_PAIR: Final = re.compile(r"(\w{1,20})/ {0,12}(\w{1,20})")
_PROTOCOLS: Final = 3


class TuningChoice(msgspec.Struct, frozen=True):
    """Algorithm, protocol and channels that NCCL chose for a call."""

    algorithm: str | None
    protocol: str | None
    channels: int
    whole: bool
    """Whether the line counts the whole buffer."""


class TuningHead(msgspec.Struct, frozen=True):
    """Parsed text before the bytes of a choice."""

    writer: Writer
    op: str | None


def head_of(text: bytes) -> TuningHead | None:
    """Parse the piece before the bytes; None where it is anything else."""
    found = _HEAD.search(text) if text.count(b" NCCL ") == 1 else None
    writer = writer_at_end(text[: found.start()]) if found else None
    if found is None or writer is None:
        return None
    return TuningHead(writer, operation(found[1].decode("ascii")) if found[1] else None)


def choice_of(text: bytes) -> TuningChoice | None:
    """Parse the piece behind the bytes; None where it is anything else."""
    if found := _NAMED.fullmatch(text):
        channels = int(found[4]) - int(found[3]) + 1
        algorithm, protocol = spelled(found[1].decode("ascii")), spelled(found[2].decode("ascii"))
        return TuningChoice(algorithm, protocol, channels if channels > 0 else NO_NUMBER, whole=False)
    if found := _NUMBERED.fullmatch(text):
        return TuningChoice(_numbered(found[1], ALGORITHMS), _numbered(found[2], PROTOCOLS), NO_NUMBER, whole=True)
    if found := _SYMMETRIC.fullmatch(text):
        return TuningChoice(found[1].decode("utf-8", "replace"), None, int(found[2]), whole=False)
    if found := _ENGINES.fullmatch(text):
        return TuningChoice("COPY_ENGINE", None, NO_NUMBER, whole=False)
    return None


def _numbered(text: bytes, names: Sequence[str]) -> str | None:
    if not text.isdigit():
        return spelled(text.decode("ascii", "replace"))
    return names[int(text)] if int(text) < len(names) else None


class TuningChoices:
    """Every distinct choice of a log, by number."""

    __slots__ = ("_codes", "all")

    def __init__(self) -> None:
        self.all: list[TuningChoice] = []
        self._codes: dict[TuningChoice, int] = {}

    def code(self, choice: TuningChoice) -> int:
        """Return the number of a choice."""
        code = self._codes.setdefault(choice, len(self.all))
        if code == len(self.all):
            self.all.append(choice)
        return code

    def agreed(self, codes: Sequence[int]) -> int:
        """Return the number of a choice with what several choices have in common."""
        first, *others = [self.all[code] for code in codes]
        return self.code(
            TuningChoice(
                first.algorithm if all(each.algorithm == first.algorithm for each in others) else None,
                first.protocol if all(each.protocol == first.protocol for each in others) else None,
                first.channels if all(each.channels == first.channels for each in others) else NO_NUMBER,
                first.whole,
            )
        )


class CallsAndChoices(msgspec.Struct, frozen=True, kw_only=True):
    """Calls of members 0, and choices, as columns of equal length, grouped by process, in the log's order."""

    process: Codes
    call: Flags
    """False for a choice."""
    communicator: Codes
    op: Codes
    """NO_NUMBER for a choice that does not state it."""
    batch: Codes
    """What calls must share to be launched together: operation, type, reduction. Unused for choices."""
    whole: Ints
    """Bytes of the whole buffer; for choices as stated in the line."""
    part: Ints
    """Bytes that one rank contributes or receives; for choices as stated in the line."""
    choice: Codes
    """Number of the choice; NO_NUMBER for calls."""


def match(events: CallsAndChoices, choices: TuningChoices) -> Codes:
    """Return the number of the choice that belongs to each event; NO_NUMBER for choices, and where it is ambiguous.

    Choices belong to calls among those since the last choices before them. Several calls of one size get what their
    lines agree on. Where some of them have no line, the last ones are assumed to have one, unless they are of several
    communicators.
    """
    result = np.full(events.call.size, NO_NUMBER, np.int32)
    if events.call.all() or not events.call.any():
        return result
    run = _runs(events)
    silent = np.zeros(run[-1] + 1, np.bool_)
    silent[run[~events.call & (events.op == NO_NUMBER)]] = True
    op = np.where(silent[run], NO_NUMBER, events.op)
    whole = np.zeros(run[-1] + 1, np.bool_)
    whole[run] |= np.array([each.whole for each in choices.all])[events.choice] & ~events.call
    left = np.ones(run.size, np.bool_)
    for usual in (True, False):
        size = np.where(whole[run] == usual, events.whole, events.part)
        left[_assign_pairs(events, run, op, size, left, result)] = False
        if not left[~events.call].any():
            return result
        rows = np.flatnonzero(left & (size > 0))
        left[_assign(events, choices, rows, (run[rows], op[rows], size[rows]), result)] = False
    by_run: dict[int, list[int]] = defaultdict(list)
    for row in np.flatnonzero(left & whole[run] & np.isin(run, run[left & ~events.call])).tolist():
        by_run[int(run[row])].append(row)
    for rows_of_run in by_run.values():
        _assign_sums(events, op, rows_of_run, result)
    return result


def _runs(events: CallsAndChoices) -> Ints:
    """Number the runs: calls of a process and the choices behind them."""
    begins = np.ones(events.call.size, np.bool_)
    begins[1:] = events.call[1:] & ~events.call[:-1]
    begins[1:] |= events.process[1:] != events.process[:-1]
    return np.cumsum(begins) - 1


def _assign_pairs(events: CallsAndChoices, run: Ints, op: Codes, size: Ints, left: Flags, result: Codes) -> Ints:
    """Assign the choice of a run to its call where the run has one of each; return the rows that are completed.

    Most runs are such, and need no sorting.
    """
    two = np.bincount(run)[run[:-1]] == 2
    call = np.flatnonzero(two & events.call[:-1] & ~events.call[1:] & (run[:-1] == run[1:]) & left[:-1])
    call = call[(op[call] == op[call + 1]) & (size[call] == size[call + 1])]
    result[call] = events.choice[call + 1]
    return np.concatenate((call, call + 1))


def _assign(
    events: CallsAndChoices, choices: TuningChoices, rows: Ints, keys: tuple[Ints, Codes, Ints], result: Codes
) -> Ints:
    """Assign choices to calls of equal run, operation and size; return the rows that are completed."""
    if not rows.size:
        return rows
    order = np.lexsort(keys[::-1])
    begins = np.ones(rows.size, np.bool_)
    begins[1:] = np.logical_or.reduce([key[order][1:] != key[order][:-1] for key in keys])
    rows = rows[order]
    first, group = np.flatnonzero(begins), np.cumsum(begins) - 1
    call, choice, communicator = events.call[rows], events.choice[rows], events.communicator[rows]
    calls, num_choices = np.bincount(group, call), np.bincount(group, ~call)
    most = np.iinfo(np.int32).max
    least_choice = np.minimum.reduceat(np.where(call, most, choice), first)
    code = np.where(num_choices > 0, least_choice, NO_NUMBER)
    both = (calls > 0) & (num_choices > 0)
    for odd in np.flatnonzero(both & (least_choice != np.maximum.reduceat(choice, first))).tolist():
        code[odd] = choices.agreed(sorted(set(choice[(group == odd) & ~call].tolist())))
    of_one = np.minimum.reduceat(np.where(call, communicator, most), first)
    several = of_one != np.maximum.reduceat(np.where(call, communicator, NO_NUMBER), first)
    before: Ints = np.cumsum(call) - call
    behind = calls[group] - (before - before[first][group]) - 1
    assigned = call & both[group] & ((behind < num_choices[group]) & ~several[group] | (calls <= num_choices)[group])
    result[rows[assigned]] = code[group[assigned]]
    done: Ints = rows[assigned | ~call & both[group]]
    return done


def _assign_sums(events: CallsAndChoices, op: Codes, rows: Sequence[int], result: Codes) -> None:
    """Assign choices to calls of one run that were launched together and whose bytes add up to those of the choice."""
    together: dict[tuple[int, int], list[int]] = defaultdict(list)
    choice_rows: list[int] = []
    for row in rows:
        if not events.call[row]:
            choice_rows.append(row)
        elif events.whole[row] > 0:
            together[int(events.communicator[row]), int(events.batch[row])].append(row)
    sums: list[tuple[int, int, list[int]]] = []
    for calls in together.values():
        left = sorted(calls, key=lambda row: int(events.whole[row]))
        while left:
            limit = _TOGETHER * int(events.whole[left[0]])
            joined = [left[0], *(row for row in left[1:] if events.whole[row] < limit)]
            sums.append((int(op[joined[0]]), sum(int(events.whole[row]) for row in joined), joined))
            left = left[len(joined) :]
    for row in choice_rows:
        place = next((n for n, each in enumerate(sums) if each[:2] == (op[row], events.whole[row])), None)
        if place is not None:
            result[sums.pop(place)[2]] = events.choice[row]


class _LeaderCalls(msgspec.Struct, frozen=True, kw_only=True):
    """The calls of one group on the rank that logs the choices (the leader)."""

    timeline: RankTimeline
    rows: Ints
    seq: Ints


def share_choices(timelines: Sequence[RankTimeline]) -> tuple[RankTimeline, ...]:
    """Assign to each call without a choice that of the same call on another rank: same group, number and size.

    Calls of one number were launched together; their order, which all ranks share, identifies them.
    """
    leaders: dict[str, _LeaderCalls] = {}
    for timeline in timelines if len(timelines) > 1 else ():
        calls = timeline.collectives
        for code in np.unique(calls.group[calls.algorithm >= 0]).tolist():
            rows = np.flatnonzero(calls.group == code)
            if code >= 0 and _ascends(calls.seq[rows]):
                leaders.setdefault(
                    timeline.names[code], _LeaderCalls(timeline=timeline, rows=rows, seq=calls.seq[rows])
                )
    return tuple(_with_choices(timeline, leaders) for timeline in timelines)


def _ascends(seq: Ints) -> bool:
    return bool((seq[1:] >= seq[:-1]).all())


def _with_choices(timeline: RankTimeline, leaders: dict[str, _LeaderCalls]) -> RankTimeline:
    calls = timeline.collectives
    names = NameTable(timeline.names)
    algorithm, protocol, channels = calls.algorithm, calls.protocol, calls.channels
    for code in np.unique(calls.group).tolist():
        leader = leaders.get(timeline.names[code]) if code >= 0 else None
        if leader is None or leader.timeline is timeline:
            continue
        rows = np.flatnonzero(calls.group == code)
        seq = calls.seq[rows]
        if not _ascends(seq):
            continue
        if np.array_equal(seq, leader.seq):
            place = leader.rows
        else:
            nth = np.arange(seq.size) - np.searchsorted(seq, seq)
            place = np.searchsorted(leader.seq, seq) + nth
            there = place < np.searchsorted(leader.seq, seq, side="right")
            rows, place = rows[there], leader.rows[place[there]]
        same = _same(timeline, rows, leader.timeline, place) & (algorithm[rows] < 0)
        rows, place = rows[same], place[same]
        if not rows.size:
            continue
        of = leader.timeline.collectives
        codes = np.append(names.encode(leader.timeline.names), np.int32(-1))
        algorithm, protocol, channels = algorithm.copy(), protocol.copy(), channels.copy()
        algorithm[rows], protocol[rows] = codes[of.algorithm[place]], codes[of.protocol[place]]
        channels[rows] = of.channels[place]
    if algorithm is calls.algorithm:
        return timeline
    calls = replace(calls, algorithm=algorithm, protocol=protocol, channels=channels)
    return replace(timeline, names=tuple(names.to_list()), collectives=calls)


def _same(one: RankTimeline, rows: Ints, other: RankTimeline, places: Ints) -> Flags:
    """Return whether these calls of two ranks have the same operation and size."""
    table = NameTable(one.names)
    codes = np.append(table.encode(other.names), np.int32(-1))
    same: Flags = one.collectives.elements[rows] == other.collectives.elements[places]
    for name in ("op", "dtype"):
        same &= getattr(one.collectives, name)[rows] == codes[getattr(other.collectives, name)[places]]
    return same


def operation(name: str) -> str:
    """Return our name of an operation by NCCL's name; an unknown name in lower case with underscores."""
    known = OPERATIONS.get(name.lower())
    return known or re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def spelled(name: str) -> str:
    """Return an algorithm or protocol in the spelling of calls, in capitals: `Tree`, `CollNetDirect`."""
    return _SPELLINGS.get(name.upper(), name.upper())


def cost_line(thread: LoggedThread, body: bytes) -> bool:
    """Parse a line of the cost table; return whether it is one and could be parsed."""
    title, *cells = body.split(b"|")
    name = title.decode("ascii", "replace").strip()
    texts = [cell.decode("ascii", "replace").strip() for cell in cells if cell.strip()]
    if name == "Latency/AlgBw":
        pairs = [_PAIR.fullmatch(text) for text in texts]
        thread.columns = [(spelled(pair[1]), spelled(pair[2])) for pair in pairs if pair]
    elif name == "Algorithm":
        thread.algorithms = [spelled(text) for text in texts]
    elif name == "Protocol":
        thread.columns = _columns(thread.algorithms, [spelled(text) for text in texts])
    elif name.lower() in OPERATIONS:
        values = [_CELL.fullmatch(text) for text in texts]
        if None in values:
            return False
        for (algorithm, protocol), value in zip(thread.columns, values, strict=False):
            assert value is not None
            thread.details.costs.append((operation(name), algorithm, protocol, float(value[1]), float(value[2])))
    return name in _TITLES or name.lower() in OPERATIONS


def _columns(algorithms: list[str], protocols: list[str]) -> list[tuple[str, str]]:
    """Return algorithm and protocol of each column; each algorithm has as many protocols."""
    return [
        (algorithm, protocol)
        for place, algorithm in enumerate(algorithms)
        for protocol in protocols[_PROTOCOLS * place : _PROTOCOLS * (place + 1)]
    ]
