"""Parse the prefix of an NCCL line: who wrote it, and what launchers and log collectors put before that.

[1,3]<stdout>:node-1.cluster:4711:4802 [3] NCCL INFO ...
[2026-04-28 14:14:42] node-1:4711:4802 [3] transport/net_ib.cc:123 (ncclIbConnect) NCCL WARN ...
"""

import re
from datetime import UTC, datetime
from typing import Final

import msgspec

from overlapscope.timeline.run import MAX_RANKS

INFO: Final = b" NCCL INFO "
LOUD: Final = re.compile(rb" NCCL (?:WARN|ATTN|ERROR) ")
"""Levels that a user should read: WARN, and since 2.32 ATTN and, in builds that distinguish causes, ERROR."""
_WRITER: Final = re.compile(
    rb"(?P<host>[A-Za-z0-9_.-]{1,255}):(?P<process>[0-9]{1,10}):(?P<thread>[0-9]{1,10}) \[(?P<device>-?[0-9]{1,5})\]"
    rb"(?: \S{1,300}:[0-9]{1,7}(?: \([^()\s]{1,200}\))?)?$"
)
"""A warning names its place in the library's source, since 2.30 with the function."""
_WINDOW: Final = 900
"""Largest length of a writer with its place in the source."""
_RANKS: Final = (
    re.compile(rb"^\[[0-9]{1,6},([0-9]{1,7})\]<std(?:out|err|diag)>:"),  # mpirun --tag-output: [job,rank]
    re.compile(rb"^\[([0-9]{1,7})\](?:<std(?:out|err)>:| )"),  # MPICH and Intel MPI -l
    re.compile(rb"^ {0,6}([0-9]{1,7}): "),  # srun --label
    re.compile(rb"^\[rank[: ]?([0-9]{1,7})\]:? ?"),
    re.compile(rb"^\[[A-Za-z][A-Za-z0-9_.-]{0,254}:([0-9]{1,7})\]:? ?"),  # [host:rank]
)


_COLLECTED: Final = re.compile(rb"^[0-9]{4}-[0-9]{2}-[0-9]{2}T\S{8,30} (?:std(?:out|err) [FP] )?")
"""Time at which Kubernetes or fluentd collected the line, put before it."""
_TIME: Final = re.compile(
    rb"([0-9]{4}-[0-9]{2}-[0-9]{2})[T ]([0-9]{2}:[0-9]{2}:[0-9]{2})(\.[0-9]{1,9})?"
    rb" ?(Z|[+-][0-9]{2}:?[0-9]{2})?(?![0-9])"
)


class Writer(msgspec.Struct, frozen=True):
    """Who wrote a line."""

    host: str
    process: int
    thread: int
    device: int
    """Device that was current, as the process numbers it."""


def writer_at_end(text: bytes) -> Writer | None:
    """Return the writer at the end of a text; None where it ends with anything else."""
    found = _WRITER.search(text[-_WINDOW:])
    if found is None:
        return None
    return Writer(
        host=found["host"].decode("ascii"),
        process=int(found["process"]),
        thread=int(found["thread"]),
        device=int(found["device"]),
    )


def rank_of_wrapper(line: bytes) -> int | None:
    """Return the rank in a launcher's label at the beginning of the line; None without one.

    A label that counts within a host looks the same. So only a caller that sees all processes may use it as a rank.
    """
    line = _COLLECTED.sub(b"", line[:_WINDOW])
    for label in _RANKS:
        found = label.match(line)
        if found and int(found[1]) < MAX_RANKS:
            return int(found[1])
    return None


def time_of(text: bytes) -> int | None:
    """Return the last time in the text in ns, or None; a time without a zone is read as UTC."""
    found = list(_TIME.finditer(text[-_WINDOW:]))
    if not found:
        return None
    date, time, part, zone = (each.decode("ascii") if each else "" for each in found[-1].groups())
    try:
        moment = datetime.fromisoformat(f"{date}T{time}{zone or '+00:00'}")
    except ValueError:
        return None
    whole = moment - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 1_000_000_000 + int(part[1:].ljust(9, "0") if part else 0)


def is_nccl_line(line: bytes) -> bool:
    """Return whether a line has a writer and the mark of NCCL."""
    loud = LOUD.search(line)
    places = (line.find(INFO), loud.start() if loud else -1)
    return any(place >= 0 and writer_at_end(line[max(0, place - _WINDOW) : place]) is not None for place in places)
