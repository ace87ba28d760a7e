"""Parse lines of NCCL's subsystems INIT, GRAPH, P2P, SHM and NET.

They report when communicators begin and end, their channels, the duration of initialisation, rings, trees, and the
connections between members.

State of a communicator through the versions (2.4 to 2.31, RCCL): `comm P rank R nranks N cudaDev D [nvmlDev n] [busId
hex] [commId 0x..] [parent P [splitCount|childCount n] color c key k] ... - Init COMPLETE`; `Init START` since 2.18, the
function's name before it since 2.21, `[Rank n]` since 2.29, `localSize .. used .. bytes on core ..` with RCCL.

    Channel 00/24 :    0   1   2   3                  the ring of a channel, written by member 0
    Ring 00 : 3 -> 0 -> 1                             its neighbours, written by each member (2.10 and later)
    Trees [0] 1/8/-1->0->-1 [1] ...                   children, the member, its parent; before 2.5 in reverse order,
                                                      2.5 and 2.6 with the downward tree behind a bar
    Channel 00/0 : 0[101c0] -> 1[101d0] via P2P/IPC   a connection; before 2.7 `Ring 00 : ...`
    Channel 01/0 : 3[7] -> 8[0] [send] via NET/IB/2(1)/GDRDMA/Shared
"""

import re
from array import array
from typing import Final, NamedTuple

from overlapscope.ingest.formats.nccl_log.communicators import (
    NO_NUMBER,
    InitDetails,
    LoggedCommunicator,
    LoggedCommunicators,
    LoggedThread,
)
from overlapscope.timeline.facts import BOTH_SIDES, NO, RECEIVING, SENDING, UNSTATED, YES
from overlapscope.timeline.run import MAX_RANKS

BEGIN, READY, GONE, ABORTED = (b"Init START", b"Init COMPLETE", b"Destroy COMPLETE", b"Abort COMPLETE")
STATES: Final = (BEGIN, READY, GONE, ABORTED)
_KEYS: Final = frozenset(
    b"comm rank nranks nRanks cudaDev busId commId parent splitCount childCount color nNodes".split()
)
_CHANNELS: Final = re.compile(
    rb"([0-9]{1,6}) coll channels, (?:[0-9]{1,6} collnet channels, )?(?:([0-9]{1,6}) nvls channels, )?"
    rb"([0-9]{1,6}) p2p channels, "
)
_TIMINGS: Final = re.compile(
    rb"Init timings(?: - \w{1,60})?: rank ([0-9]{1,7}) nranks ([0-9]{1,7}) total ([0-9]{1,9}\.[0-9]{1,9}) \("
)
_POINTER: Final = re.compile(rb"0x[0-9a-f]{1,16}")
_NUMBER: Final = re.compile(rb"-?[0-9]{1,10}")
RING, TREE = range(2)
PATTERNS: Final = ("ring", "tree")
_CONNECTION: Final = re.compile(
    rb"(?P<word>Ring|Channel) (?P<channel>[0-9]{1,4})(?:/[0-9]{1,4})? : (?P<sender>[0-9]{1,7})(?:\[[0-9a-f]{1,12}\])?"
    rb" -> (?P<receiver>[0-9]{1,7})(?:\[[0-9a-f]{1,12}\])? (?:\[(?P<end>send|receive)\] )?via "
    rb"(?P<transport>\S.{0,199}?)(?: comm 0x[0-9a-f]{1,16} nRanks [0-9]{1,7})?\s*"
)
_NET: Final = re.compile(
    rb"NET/(?P<net>.{1,100}?)/(?P<card>[0-9]{1,4})(?:\([0-9]{1,7}\))?(?P<direct>/GDRDMA(?:\(\w{1,20}\))?)?(?:/Shared)?"
)
_RING: Final = re.compile(rb"Channel ([0-9]{1,4})(?:/[0-9]{1,4})? :((?: {1,20}[0-9]{1,7})+)")
_OWNER: Final = rb" comm 0x[0-9a-f]{1,16} nRanks [0-9]{1,7} busId [0-9a-f]{1,12}"
"""Written by RCCL behind rings and trees."""
_NEIGHBOURS: Final = re.compile(
    rb"Ring ([0-9]{1,4}) : ([0-9]{1,7}) -> ([0-9]{1,7}) -> ([0-9]{1,7})(?:" + _OWNER + rb")?\s*"
)
_BEHIND_TREES: Final = re.compile(_OWNER + rb"$")
_TREE: Final = re.compile(rb" \[([0-9]{1,4})\] ([-0-9/>|]{5,120})(?= |$)")
_UP: Final = re.compile(rb"(-?[0-9]{1,7})/(-?[0-9]{1,7})/(-?[0-9]{1,7})->([0-9]{1,7})->-?[0-9]{1,7}")
_DOWN: Final = re.compile(rb"-?[0-9]{1,7}->([0-9]{1,7})->(-?[0-9]{1,7})/(-?[0-9]{1,7})/(-?[0-9]{1,7})")
_LONGEST: Final = 900
"""NCCL cuts a line after 1,023 bytes: the last tree of a long one may be half a number."""
_RCCL_CUTS: Final = (1022, 2046)
"""RCCL cuts only the trees, at these lengths."""
_REMEMBERED: Final = 1 << 16


def state_line(log: LoggedCommunicators, thread: LoggedThread, body: bytes) -> bool:
    """Parse a line on a communicator's state, which ends in one of STATES; return whether it could be parsed."""
    fields = _fields(body)
    pointer, member, size = _pointer(fields), _number(fields, b"rank"), _number(fields, b"nranks")
    device = _number(fields, b"cudaDev")
    if pointer is None or not 0 <= member < size <= MAX_RANKS:
        return False
    process = thread.process
    known = process.by_pointer.get(pointer)
    if body.endswith((GONE, ABORTED)):
        process.by_pointer.pop(pointer, None)
        return True
    made = LoggedCommunicator(
        process=process, pointer=pointer, size=size, member=member,
        device=device if device >= 0 else thread.device, order=len(log.all),
    )  # fmt: skip
    _describe(made, fields)
    begun = known if known is not None and _continues(known, made) else log.add(made)
    if body.endswith(BEGIN):
        _set_late_apart(thread)
        thread.open = begun
        return True
    begun.complete = True
    begun.details.add(thread.details)
    begun.details.network = begun.details.network or process.network
    thread.details, thread.open, thread.last = InitDetails(), None, begun
    return True


def _continues(known: LoggedCommunicator, made: LoggedCommunicator) -> bool:
    """Return whether a line refers to the communicator known at its address: one begun, or the same line again."""
    same = known.introduced and (known.size, known.member) == (made.size, made.member)
    return same and (not known.complete or (made.comm_id is not None and known.comm_id == made.comm_id))


def size_line(thread: LoggedThread, body: bytes) -> bool:
    """Parse `comm P rank R nRanks N nNodes n localRanks l localRank r MNNVL m` (2.20 and later)."""
    fields = _fields(body)
    pointer, nodes = _pointer(fields), _number(fields, b"nNodes")
    known = thread.process.by_pointer.get(pointer) if pointer is not None else None
    if nodes <= 0:
        return False
    if known is not None and known.size == _number(fields, b"nRanks"):
        known.nodes = nodes
    return True


def channels_line(thread: LoggedThread, body: bytes) -> bool:
    """Parse `24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer`."""
    found = _CHANNELS.match(body)
    if found is None:
        return False
    thread.details.channels = (int(found[1]), int(found[3]), int(found[2]) if found[2] else NO_NUMBER)
    return True


def timings_line(thread: LoggedThread, body: bytes) -> bool:
    """Parse the duration of the initialisation that this thread completed last."""
    found = _TIMINGS.match(body)
    if found is None:
        return False
    last = thread.last
    if last is not None and (last.member, last.size) == (int(found[1]), int(found[2])):
        last.init_seconds = float(found[3])
    return True


def begins_graph(thread: LoggedThread) -> None:
    """Note that a new communicator's graph follows: connections before it belong to older communicators."""
    if thread.open is None:
        _set_late_apart(thread)


def _set_late_apart(thread: LoggedThread) -> None:
    if thread.details.connections:
        thread.process.late.append((thread.device, thread.details.connections[:]))
        del thread.details.connections[:]


def _describe(made: LoggedCommunicator, fields: dict[bytes, bytes]) -> None:
    bus = fields.get(b"busId", b"")
    if re.fullmatch(rb"[0-9a-f]{1,12}", bus):
        made.bus = bus_address(int(bus, 16))
    identity = fields.get(b"commId", b"")
    if _POINTER.fullmatch(identity) and int(identity, 16):
        made.comm_id = identity.decode("ascii")
    parent = fields.get(b"parent", b"")
    if _POINTER.fullmatch(parent) and int(parent, 16):
        made.parent = made.process.by_pointer.get(int(parent, 16))
        split = fields.get(b"splitCount", fields.get(b"childCount"))
        parts = [f"split {split.decode('ascii', 'replace')}"] if split else []
        if b"color" in fields:
            parts.append(f"color {fields[b'color'].decode('ascii', 'replace')}")
        made.split = " ".join(parts) or None


def bus_address(number: int) -> str:
    """Return a bus id as NCCL prints it (`201c0`) as a PCI address (`0000:20:1c.0`)."""
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


def _fields(body: bytes) -> dict[bytes, bytes]:
    """Return the words that follow the known keys; some versions write no blank before the final dash."""
    words = body.replace(b"- ", b" - ").split()
    fields: dict[bytes, bytes] = {}
    for place, word in enumerate(words[:-1]):
        if word in _KEYS:
            fields.setdefault(word, words[place + 1])
    return fields


def _pointer(fields: dict[bytes, bytes]) -> int | None:
    text = fields.get(b"comm", b"")
    return int(text, 16) if _POINTER.fullmatch(text) else None


def _number(fields: dict[bytes, bytes], key: bytes) -> int:
    text = fields.get(key, b"")
    return int(text) if _NUMBER.fullmatch(text) else NO_NUMBER


class LoggedConnection(NamedTuple):
    """A connection as a line reports it."""

    channel: int
    sender: int
    receiver: int
    transport: str
    card: int
    """Number of the network card; NO_NUMBER without a network."""
    direct: int
    """Whether the card reads the device's memory, as a code of ANSWERS."""
    side: int
    """Whose card it is, as a code of SIDES: each end of a network connection reports its own."""


class ConnectionTable:
    """Every distinct connection of a log, once."""

    __slots__ = ("_codes", "_known")

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._codes: dict[LoggedConnection, int] = {}

    def code(self, body: bytes) -> int:
        """Return the number of the connection in a line; NO_NUMBER when the line cannot be parsed."""
        code = self._known.get(body)
        if code is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            made = _connection(body)
            code = NO_NUMBER if made is None else self._codes.setdefault(made, len(self._codes))
            self._known[body] = code
        return code

    def all(self) -> list[LoggedConnection]:
        """Return all connections in the order of their numbers."""
        return list(self._codes)


def _connection(body: bytes) -> LoggedConnection | None:
    found = _CONNECTION.fullmatch(body)
    if found is None:
        return None
    transport, card, direct = found["transport"].decode("utf-8", "replace"), NO_NUMBER, UNSTATED
    net = _NET.fullmatch(found["transport"])
    if net is not None:
        transport = f"NET/{net['net'].decode('utf-8', 'replace')}"
        card, direct = int(net["card"]), YES if net["direct"] else NO
    side = {b"send": SENDING, b"receive": RECEIVING}.get(found["end"], BOTH_SIDES)
    sender, receiver = int(found["sender"]), int(found["receiver"])
    return LoggedConnection(int(found["channel"]), sender, receiver, transport, card, direct, side)


def connection_line(known: ConnectionTable, thread: LoggedThread, body: bytes) -> bool:
    """Parse a line about a connection; return whether it could be parsed."""
    code = known.code(body)
    if code == NO_NUMBER:
        return False
    _append(thread.details.connections, code)
    return True


def _append(codes: "array[int]", code: int) -> None:
    codes.append(code)
    if len(codes) > _REMEMBERED and len(codes) & (len(codes) - 1) == 0:  # the log repeats itself
        distinct = sorted(set(codes))
        if 2 * len(distinct) < len(codes):
            del codes[:]
            codes.extend(distinct)


def ring_line(thread: LoggedThread, body: bytes) -> bool:
    """Parse the ring of one channel, all members in order."""
    found = _RING.fullmatch(body.rstrip())
    if found is None:
        return False
    begins_graph(thread)
    if not _repeated(thread, body):
        thread.details.rings.append((int(found[1]), array("i", [int(each) for each in found[2].split()])))
    return True


def neighbours_line(thread: LoggedThread, body: bytes) -> bool:
    """Parse a member's place in the ring of a channel."""
    found = _NEIGHBOURS.fullmatch(body)
    if found is None:
        return False
    begins_graph(thread)
    channel, before, member, behind = (int(each) for each in found.groups())
    if not _repeated(thread, body):
        thread.details.paths.extend((RING, channel, before, member, RING, channel, member, behind))
    return True


def trees_line(thread: LoggedThread, body: bytes) -> bool:
    """Parse a member's place in the trees of all channels: one path for each child, one for a leaf."""
    text = body[len(b"Trees") :].rstrip()
    behind = _BEHIND_TREES.search(text)
    cut = len(body) > _LONGEST
    if behind is not None:
        text = text[: behind.start()]
        cut = len(text) in _RCCL_CUTS
    items = [(int(found[1]), found[2]) for found in _TREE.finditer(text)]
    if cut:
        items = items[:-1]
    if not items:
        return not text or cut
    rows: list[int] = []
    before_connections = False
    for channel, item in items:
        children: set[int] = set()
        member = NO_NUMBER
        for half in item.split(b"|"):
            up, down = _UP.fullmatch(half), _DOWN.fullmatch(half)
            if up is None and down is None:
                return False
            if up is not None:
                before_connections = True  # before 2.5 trees were written last
                member = int(up[4])
                children.update(int(each) for each in up.groups()[:3])
            elif down is not None:
                member = int(down[1])
                children.update(int(each) for each in down.groups()[1:])
        children.discard(NO_NUMBER)
        for child in sorted(children) or [NO_NUMBER]:
            rows += (TREE, channel, member, child)
    if before_connections:
        begins_graph(thread)
    if not _repeated(thread, body):
        thread.details.paths.extend(rows)
    return True


def _repeated(thread: LoggedThread, body: bytes) -> bool:
    seen = thread.details.seen
    if body in seen:
        return True
    if len(seen) < _REMEMBERED:
        seen.add(body)
    return False
