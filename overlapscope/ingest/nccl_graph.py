"""Lines of NCCL's subsystems GRAPH, P2P, SHM and NET: rings, trees, and what connects two members.

Channel 00/24 :    0   1   2   3                  the ring of a channel, told by member 0
Ring 00 : 3 -> 0 -> 1                             its neighbours, told by each member (2.10 and later)
Trees [0] 1/8/-1->0->-1 [1] ...                   children, the member, its parent; before 2.5 the other way round,
                                                  2.5 and 2.6 with the tree down behind a bar
Channel 00/0 : 0[101c0] -> 1[101d0] via P2P/IPC   a connection; before 2.7 `Ring 00 : ...`
Channel 01/0 : 3[7] -> 8[0] [send] via NET/IB/2(1)/GDRDMA/Shared
"""

import re
from array import array
from typing import Final, NamedTuple

from overlapscope.ingest.nccl_communicators import NO_NUMBER, Thread
from overlapscope.ingest.nccl_init import begins_graph
from overlapscope.timeline.facts import BOTH_SIDES, NO, RECEIVING, SENDING, UNTOLD, YES

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
"""What RCCL puts behind rings and trees."""
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
"""RCCL cuts the trees alone, at these lengths."""


class Connection(NamedTuple):
    """A connection as a line tells it."""

    channel: int
    sender: int
    receiver: int
    transport: str
    card: int
    """Number of the network card; NO_NUMBER without a network."""
    direct: int
    """Whether the card reads the device's memory, as a code of ANSWERS."""
    side: int
    """Whose card it is, as a code of SIDES: each end of a network connection tells its own."""


class Connections:
    """Every distinct connection of a log, once."""

    __slots__ = ("_codes", "_known")

    def __init__(self) -> None:
        self._known: dict[bytes, int] = {}
        self._codes: dict[Connection, int] = {}

    def code(self, body: bytes) -> int:
        """Give the number of the connection that a line tells, NO_NUMBER for one that cannot be read."""
        code = self._known.get(body)
        if code is None:
            if len(self._known) >= _REMEMBERED:
                self._known.clear()
            made = _connection(body)
            code = NO_NUMBER if made is None else self._codes.setdefault(made, len(self._codes))
            self._known[body] = code
        return code

    def all(self) -> list[Connection]:
        """Give all connections in the order of their numbers."""
        return list(self._codes)


_REMEMBERED: Final = 1 << 16


def _connection(body: bytes) -> Connection | None:
    found = _CONNECTION.fullmatch(body)
    if found is None:
        return None
    transport, card, direct = found["transport"].decode("utf-8", "replace"), NO_NUMBER, UNTOLD
    net = _NET.fullmatch(found["transport"])
    if net is not None:
        transport = f"NET/{net['net'].decode('utf-8', 'replace')}"
        card, direct = int(net["card"]), YES if net["direct"] else NO
    side = {b"send": SENDING, b"receive": RECEIVING}.get(found["end"], BOTH_SIDES)
    sender, receiver = int(found["sender"]), int(found["receiver"])
    return Connection(int(found["channel"]), sender, receiver, transport, card, direct, side)


def connection_line(known: Connections, thread: Thread, body: bytes) -> bool:
    """Take a line that tells a connection; whether it could be read."""
    code = known.code(body)
    if code == NO_NUMBER:
        return False
    _append(thread.told.connections, code)
    return True


def _append(codes: "array[int]", code: int) -> None:
    codes.append(code)
    if len(codes) > _REMEMBERED and len(codes) & (len(codes) - 1) == 0:  # a log that repeats itself
        distinct = sorted(set(codes))
        if 2 * len(distinct) < len(codes):
            del codes[:]
            codes.extend(distinct)


def ring_line(thread: Thread, body: bytes) -> bool:
    """Take the ring of one channel, all members in order."""
    found = _RING.fullmatch(body.rstrip())
    if found is None:
        return False
    begins_graph(thread)
    if not _repeated(thread, body):
        thread.told.rings.append((int(found[1]), array("i", [int(each) for each in found[2].split()])))
    return True


def neighbours_line(thread: Thread, body: bytes) -> bool:
    """Take a member's place in the ring of a channel."""
    found = _NEIGHBOURS.fullmatch(body)
    if found is None:
        return False
    begins_graph(thread)
    channel, before, member, behind = (int(each) for each in found.groups())
    if not _repeated(thread, body):
        thread.told.paths.extend((RING, channel, before, member, RING, channel, member, behind))
    return True


def trees_line(thread: Thread, body: bytes) -> bool:
    """Take a member's place in the trees of all channels: a row for each child, one for a leaf."""
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
                before_connections = True  # before 2.5 trees were told last
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
        thread.told.paths.extend(rows)
    return True


def _repeated(thread: Thread, body: bytes) -> bool:
    seen = thread.told.seen
    if body in seen:
        return True
    if len(seen) < _REMEMBERED:
        seen.add(body)
    return False
