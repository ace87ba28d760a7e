"""Lines of NCCL's subsystem INIT: when communicators begin and end, their channels, what initialising them took.

Forms through the versions (2.4 to 2.31, RCCL): `comm P rank R nranks N cudaDev D [nvmlDev n] [busId hex]
[commId 0x..] [parent P [splitCount|childCount n] color c key k] ... - Init COMPLETE`; `Init START` since 2.18, the
function's name before it since 2.21, `[Rank n]` since 2.29, `localSize .. used .. bytes on core ..` with RCCL.
"""

import re
from typing import Final

from overlapscope.ingest.nccl_communicators import NO_NUMBER, Communicator, Communicators, Thread, Told
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


def state_line(log: Communicators, thread: Thread, body: bytes) -> bool:
    """Take a line on a communicator's state, one that ends in one of STATES; whether it could be read."""
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
    made = Communicator(
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
    begun.told.add(thread.told)
    begun.told.network = begun.told.network or process.network
    thread.told, thread.open, thread.last = Told(), None, begun
    return True


def _continues(known: Communicator, made: Communicator) -> bool:
    """Whether a line tells of the communicator that is known at its address: one begun, or the same line again."""
    same = known.introduced and (known.size, known.member) == (made.size, made.member)
    return same and (not known.complete or (made.comm_id is not None and known.comm_id == made.comm_id))


def size_line(thread: Thread, body: bytes) -> bool:
    """Take `comm P rank R nRanks N nNodes n localRanks l localRank r MNNVL m` (2.20 and later)."""
    fields = _fields(body)
    pointer, nodes = _pointer(fields), _number(fields, b"nNodes")
    known = thread.process.by_pointer.get(pointer) if pointer is not None else None
    if nodes <= 0:
        return False
    if known is not None and known.size == _number(fields, b"nRanks"):
        known.nodes = nodes
    return True


def channels_line(thread: Thread, body: bytes) -> bool:
    """Take `24 coll channels, 24 collnet channels, 16 nvls channels, 32 p2p channels, 2 p2p channels per peer`."""
    found = _CHANNELS.match(body)
    if found is None:
        return False
    thread.told.channels = (int(found[1]), int(found[3]), int(found[2]) if found[2] else NO_NUMBER)
    return True


def timings_line(thread: Thread, body: bytes) -> bool:
    """Take what initialising the communicator took that this thread completed last."""
    found = _TIMINGS.match(body)
    if found is None:
        return False
    last = thread.last
    if last is not None and (last.member, last.size) == (int(found[1]), int(found[2])):
        last.init_seconds = float(found[3])
    return True


def begins_graph(thread: Thread) -> None:
    """Note that the graph of a new communicator is told from here: connections before it are of older ones."""
    if thread.open is None:
        _set_late_apart(thread)


def _set_late_apart(thread: Thread) -> None:
    if thread.told.connections:
        thread.process.late.append((thread.device, thread.told.connections[:]))
        del thread.told.connections[:]


def _describe(made: Communicator, fields: dict[bytes, bytes]) -> None:
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
    """Write a bus id as NCCL prints it (`201c0`) as a PCI address (`0000:20:1c.0`)."""
    return f"{number >> 20:04x}:{number >> 12 & 0xFF:02x}:{number >> 4 & 0xFF:02x}.{number & 0xF:x}"


def _fields(body: bytes) -> dict[bytes, bytes]:
    """Give the words that follow the known keys; some versions write no blank before the final dash."""
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
