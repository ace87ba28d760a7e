"""Parse the lines of c10d's watchdog: what `ProcessGroupNCCL.cpp` (XCCL, ...) logs when a collective hangs.

Until torch 2.1 a line begins with `[E ProcessGroupNCCL.cpp:737] [Rank 1] Watchdog caught ...`. Later versions put
`[rank1]:` in front, add a time without a year to the file name, and name the group: `[PG 0 Rank 1]`, `[PG 0
(default_pg) Rank 1]`, then `[PG ID 0 PG GUID 0(default_pg) Rank 1]`. Anything may precede that on the line: a progress
bar, a launcher's prefix, another rank's message.
"""

import re
from collections.abc import Iterator
from typing import Final

import msgspec

from overlapscope.ingest.build.collective_args import parse_count
from overlapscope.ingest.build.kernel_names import canonical_operation
from overlapscope.timeline.operations import full_elements

HINT: Final = b"ProcessGroup"
"""A line without it holds no watchdog message."""
CAUGHT, TIMED_OUT, FAILED, NOTIFIED, STALLED = range(5)
"""Kinds of message.

CAUGHT: a collective ran into its timeout. TIMED_OUT: the same, with the group's state. FAILED: the same, or another
error. NOTIFIED: the state of a rank that was notified of another rank's timeout. STALLED: the watchdog itself is stuck.
"""

_HEADER: Final = re.compile(
    r"(?:\[rank(?P<rank>\d{1,7})\]: ?)?\[[EWIF][^\[\]]{0,48}?ProcessGroup(?P<backend>[A-Z]\w{1,15})\.cpp:\d{1,6}\] ?"
)
_MEMBER: Final = re.compile(r"\s{0,4}\[Rank (?P<member>\d{1,7})\]")
_GROUP: Final = re.compile(
    r"\s{0,4}\[PG (?:ID \d{1,9} PG GUID (?P<guid>[^\s()\[\]]{1,120})|(?P<name>[^\s()\[\]]{1,120}))"
    r" ?(?:\((?P<description>[^\[\]]{0,200}?)\))? Rank (?P<member>\d{1,7})\]"
)
_STARTS: Final = (
    (CAUGHT, re.compile(r"\s{0,4}(?:(?:NCCL|Process group) watchdog thread terminated with exception: "
                        r"(?:\[Rank \d{1,7}\] )?)?Watchdog caught collective operation timeout: Work[A-Z]{0,8}CCL\(")),
    (TIMED_OUT, re.compile(r"\s{0,4}Timeout at [A-Z]{2,8} work: (?P<seq>\d{1,19})(?=[, ])")),
    (FAILED, re.compile(r"\s{0,4}(?:Exception \(either an error or timeout\) detected by watchdog at work|"
                        r"failure detected by watchdog at work sequence id): (?P<seq>\d{1,19})(?=[, ])")),
    (NOTIFIED, re.compile(r"\s{0,4}Received a dump signal due to a collective timeout from")),
    (STALLED, re.compile(r"\s{0,4}(?:ProcessGroup\w{1,16}'s watchdog got stuck for \d|Heartbeat monitor timed out|"
                         r"[A-Z]{2,8} monitor thread timeout)")),
)  # fmt: skip
# A number at the end of a line may continue on the next one, where a terminal broke the line. In torch's messages only
# the last number ends a line.
_STATUS: Final = {
    what: re.compile(rf"[Ll]ast {what} (?:[A-Z]{{2,8}} )?work: (-1|\d{{1,19}}){end}")
    for what, end in (("enqueued", r"(?=[,. ])"), ("started", r"(?=[,. ])"), ("completed", r"\b"))
}
_FIELDS: Final = {
    name: re.compile(pattern)
    for name, pattern in (
        ("seq", r"\bSeqNum=(\d{1,19})(?=[,)])"),
        ("in", r"\bNumelIn=(\d{1,19})(?=[,)])"),
        ("out", r"\bNumelOut=(\d{1,19})(?=[,)])"),
        ("timeout_ms", r"\bTimeout\(ms\)=(\d{1,19})(?=[,)])"),
    )
}
_OP: Final = re.compile(r"\bOpType=(\w{1,40})(?=[,)])")
_UNCOUNTED: Final = frozenset({"SEND", "RECV", "RECVANYSOURCE", "COALESCED", "UNKNOWN"})
"""Their sequence numbers do not, or may not, belong to the count of collectives."""
MAX_MESSAGE: Final = 2_000
DEFAULT: Final = "default_pg"
"""Description of the group of all ranks; before torch 2.4 had descriptions it was number 0."""


class WatchdogLine(msgspec.Struct, frozen=True, kw_only=True):
    """One message; None for what it does not state."""

    kind: int
    backend: str
    """`nccl`, `xccl`, ..."""
    rank: int | None
    """Rank in the world."""
    member: int | None
    """Rank in the group; before `Watchdog caught` torch writes that of the process's first group."""
    group: str | None
    """Name of the group; `PG 3` where only a process's own number is printed, which differs between ranks."""
    description: str | None
    seq: int | None
    counted: bool
    """Whether `seq` counts collectives; sends, receives and batches have a separate count."""
    op: str | None
    elements: int | None
    timeout_ms: int | None
    enqueued: int | None
    """Sequence number of the last enqueued collective, 0 before the first; the next two fields likewise."""
    started: int | None
    completed: int | None
    text: str


def watchdog_lines(line: bytes) -> Iterator[WatchdogLine]:
    """Yield the messages on one line of a log; usually none, several where line ends got lost."""
    if HINT not in line:
        return
    text = line.decode("utf-8", "replace")
    headers = list(_HEADER.finditer(text))
    for place, header in enumerate(headers, 1):
        end = headers[place].start() if place < len(headers) else len(text)
        body = text[header.end() : min(end, header.end() + MAX_MESSAGE)]
        message = _message(body, header["rank"], header["backend"].lower())
        if message is not None:
            yield message


def _message(body: str, global_rank: str | None, backend: str) -> WatchdogLine | None:
    group, member = _GROUP.match(body), _MEMBER.match(body)
    prefix = group or member
    begun = prefix.end() if prefix else 0
    found = next(((kind, start) for kind, pattern in _STARTS if (start := pattern.match(body, begun))), None)
    if found is None:
        return None
    kind, start = found
    rest = body[start.end() :]
    op = _OP.search(rest) if kind == CAUGHT else None
    fields = {name: _number(pattern, rest) if kind == CAUGHT else None for name, pattern in _FIELDS.items()}
    status = {what: _number(pattern, rest) if kind != CAUGHT else None for what, pattern in _STATUS.items()}
    enqueued, completed = status["enqueued"], status["completed"]
    if enqueued is not None and completed is not None and completed > enqueued:
        completed = None  # not initialised in torch 2.3 and 2.4
    description = _description(group)
    canonical = None if op is None else canonical_operation(op[1]) or op[1].lower()
    at = parse_count(start["seq"]) if "seq" in start.groupdict() else fields["seq"]
    world = None if global_rank is None else int(global_rank)
    stated = int(prefix["member"]) if prefix else None
    return WatchdogLine(
        kind=kind,
        backend=backend,
        rank=stated if world is None and (group is None or description == DEFAULT) else world,
        member=stated,
        group=_group_name(group),
        description=description,
        seq=at,
        counted=op is None or op[1] not in _UNCOUNTED,
        op=canonical,
        elements=None if canonical is None else full_elements(canonical, fields["in"], fields["out"], None),
        timeout_ms=fields["timeout_ms"],
        enqueued=enqueued,
        started=status["started"] or None,  # starts are recorded only with TORCH_NCCL_ENABLE_TIMING
        completed=completed,
        text=" ".join(body.split())[:300],
    )


def _group_name(group: re.Match[str] | None) -> str | None:
    """Return the name that all members use: the GUID, or with a description the name torch 2.4 wrote; otherwise a
    number.
    """
    if group is None:
        return None
    known = group["guid"] or (group["name"] if group["description"] is not None or group["name"] == "0" else None)
    return known or f"PG {group['name']}"


def _description(group: re.Match[str] | None) -> str | None:
    if group is None:
        return None
    if group["name"] == "0" and group["description"] is None:
        return DEFAULT
    return group["description"] if group["description"] not in ("", "undefined") else None


def _number(pattern: re.Pattern[str], text: str) -> int | None:
    found = pattern.search(text)
    if found is None:
        return None
    return 0 if found[1] == "-1" else parse_count(found[1])
