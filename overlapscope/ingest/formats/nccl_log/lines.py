"""Parse every line of an NCCL log that is neither a call nor a tuning choice, in the log's order.

Writers interleave: a line may hold two prefixes, a piece of another line, or text without its prefix. Complete text is
read; a piece is counted as dropped. Where two prefixes follow each other, the text decides whose it is; if it does not,
it is dropped.
"""

import re
from collections.abc import Callable
from typing import Final

import msgspec

from overlapscope.ingest.formats.nccl_log import init_lines as nccl_graph
from overlapscope.ingest.formats.nccl_log import init_lines as nccl_init
from overlapscope.ingest.formats.nccl_log.call_table import CallTable
from overlapscope.ingest.formats.nccl_log.calls import CALL, tail_of
from overlapscope.ingest.formats.nccl_log.communicators import LoggedCommunicators, LoggedProcess, LoggedThread
from overlapscope.ingest.formats.nccl_log.init_lines import ConnectionTable
from overlapscope.ingest.formats.nccl_log.line_prefix import INFO, LOUD, Writer, rank_of_wrapper, time_of, writer_at_end
from overlapscope.ingest.formats.nccl_log.tuning import OPERATIONS, cost_line, operation
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.facts import INFO as INFORMATION
from overlapscope.timeline.facts import TIMEOUT, WARNING

MAX_MESSAGES: Final = 10_000
"""Largest number of warnings that are kept; the others are counted."""
MAX_TEXT: Final = 1_000
_MAX_SETTINGS: Final = 500
_REMEMBERED: Final = 1 << 16
_VERSION: Final = re.compile(rb"\b([NR]CCL) version ?:? ?([0-9]{1,3}\.[0-9]{1,3}[^\s,]{0,80})")
_SETTING: Final = re.compile(rb"((?:NCCL|RCCL)_[A-Z0-9_]{1,80}) set by environment to (.{0,300}?)\s*")
_NETWORK: Final = re.compile(rb"Using (?:internal )?[Nn]etwork (\S.{0,80}?)\s*")
_CARDS: Final = re.compile(rb"NET/(IB|Socket) : Using (\[.{1,4000})")
_CARD: Final = re.compile(rb"\[([0-9]{1,4})\]([A-Za-z0-9_.-]{1,64}):")
_TIMED_OUT: Final = re.compile(rb"tim(?:ed|e)[ -]?out", re.I)
_REMARKS: Final = frozenset((b"Using", b"NET/IB", b"NET/Socket", b"NCCL", b"RCCL"))
_ONCE: Final = (
    b"NET/IB : Using",
    b"NET/Socket : Using",
    b"NCCL",
    b"RCCL",
    b"Using",
    b"Init",
    b"comm ",
    b"ncclComm",
    b"[",
    b" ",
)
_ONCE_WITHIN: Final = (b"opCount ", b" Bytes -> ", b"|", b" coll channels, ")
"""Beginnings or contents of lines whose position among the others matters."""
_ANY_PREFIX: Final = re.compile(rb"\[-?[0-9]{1,5}\]$")
_WHOLE_NUMBER: Final = re.compile(rb"-?[0-9]+\.")


class LoggedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A line to be shown to the user, as written."""

    process: LoggedProcess
    device: int
    kind: int
    text: str
    line: int
    time_ns: int


class LineReader(msgspec.Struct, kw_only=True):
    """Reads the lines of a log one by one and keeps what they report."""

    log: LoggedCommunicators
    call_table: CallTable
    before_change: Callable[[], None]
    """Called before a line changes the meaning of a pointer."""
    connections: ConnectionTable = msgspec.field(default_factory=ConnectionTable)
    settings: dict[str, str] = {}
    versions: dict[int | None, str] = {}
    """Versions on lines without a prefix, by the rank in the launcher's label."""
    messages: list[LoggedMessage] = []
    warnings: int = 0
    read: int = 0
    """Number of lines with a prefix that were read."""
    repaired: int = 0
    dropped: int = 0
    _repeats: dict[bytes, bool] = {}
    _threads: dict[bytes, tuple[LoggedThread, int]] = {}
    _listed: set[tuple[str, str]] = set()

    def repeats(self, text: bytes) -> bool:
        """Return whether a repetition of this line adds nothing until a communicator begins or ends."""
        known = self._repeats.get(text)
        if known is None:
            if len(self._repeats) >= _REMEMBERED:
                self._repeats.clear()
            _, mark, body = text.partition(INFO)
            plain = bool(mark) and INFO not in body and not LOUD.search(body)
            once = body.startswith(_ONCE) or body.rstrip().endswith(nccl_init.STATES)
            known = plain and not once and not any(mark in body for mark in _ONCE_WITHIN)
            self._repeats[text] = known
        return known

    def take(self, text: bytes, number: int, times: int = 1) -> None:
        """Read line number `number` (from 1) of the log, which occurs `times` times."""
        place = text.find(INFO)
        if place < 0:
            self._without_mark(text, number)
        elif text.find(INFO, place + 1) >= 0 or LOUD.search(text):
            self._interleaved(text, number)
        elif (thread := self._thread(text, place)) is not None:
            self._read(thread, text[place + len(INFO) :].rstrip(), number, times)
        elif _ANY_PREFIX.search(text[:place]):
            self.dropped += times

    def _without_mark(self, text: bytes, number: int) -> None:
        loud = LOUD.search(text)
        if loud is not None:
            self._warning(text, loud, number)
        else:
            self._without_prefix(text)

    def _without_prefix(self, text: bytes) -> None:
        """Read a line that mentions NCCL but has no prefix; lines of other programs get here too."""
        found = _VERSION.search(text)
        if found:
            self.versions.setdefault(rank_of_wrapper(text), _library(found))
        elif b"opCount " in text and b" NCCL " not in text:
            self.dropped += 1

    def _thread(self, text: bytes, place: int) -> LoggedThread | None:
        """Return the thread whose prefix ends at `place`."""
        key = text[text.rfind(b" ", 0, text.rfind(b" [", 0, place)) + 1 : place]
        known = self._threads.get(key)
        if known is None:
            writer = writer_at_end(text[:place])
            if writer is None:
                return None
            if len(self._threads) >= _REMEMBERED:
                self._threads.clear()
            known = self._threads[key] = (self.log.thread(writer), writer.device)
            label = rank_of_wrapper(text)
            if label is not None:
                known[0].process.labels[label] += 1
        thread = known[0]
        thread.device = known[1]
        return thread

    def _read(self, thread: LoggedThread, body: bytes, number: int, times: int = 1) -> None:
        """Read the text of a line; a text with a known beginning that cannot be parsed is counted as damaged."""
        self.read += times
        if not self._understood(thread, body, number):
            self.read -= times
            self.dropped += times

    def _understood(self, thread: LoggedThread, body: bytes, number: int) -> bool:  # noqa: PLR0911 - one by form
        word = body[: body.find(b" ")]
        if word in (b"Channel", b"Ring"):
            if b" via " in body:
                return nccl_graph.connection_line(self.connections, thread, body)
            return (nccl_graph.ring_line if word == b"Channel" else nccl_graph.neighbours_line)(thread, body)
        if word == b"Trees":
            return nccl_graph.trees_line(thread, body)
        if body.endswith(nccl_init.STATES) and b"comm 0x" in body:
            self.before_change()
            if body.endswith(nccl_init.ABORTED):
                self._message(thread, INFORMATION, body, number, NONE)
            return nccl_init.state_line(self.log, thread, body)
        if word[-1:] == b":" or word[:1].isdigit() or word.lower().decode("latin-1") in OPERATIONS:
            return self._counted(thread, body, number)
        if word == b"comm":
            return b" nNodes " not in body or nccl_init.size_line(thread, body)
        if word == b"Init":
            return not body.startswith(b"Init timings") or nccl_init.timings_line(thread, body)
        if word in (b"", b"Latency/AlgBw"):
            return cost_line(thread, body) or True
        if word in _REMARKS or word[:5] in (b"NCCL_", b"RCCL_"):
            self._remark(thread, body, number)
        return True

    def _counted(self, thread: LoggedThread, body: bytes, number: int) -> bool:
        """Read a line that begins with an operation or a number."""
        if b"opCount" in body:
            return self._call(thread, body, number)
        if b" Bytes -> " in body:
            return False  # a complete one would have been read with its block
        if b" coll channels, " in body:
            return nccl_init.channels_line(thread, body)
        return b"|" not in body or cost_line(thread, body) or True

    def _remark(self, thread: LoggedThread, body: bytes, number: int) -> None:
        """Read a line about the process rather than about a communicator."""
        if found := _SETTING.fullmatch(body):
            value = found[2].removesuffix(b".") if _WHOLE_NUMBER.fullmatch(found[2]) else found[2]
            name = found[1].decode("ascii")
            setting = value.decode("utf-8", "replace")
            if name in self.settings or len(self.settings) < _MAX_SETTINGS:
                self.settings[name] = setting if self.settings.get(name, setting) == setting else "mixed"
        elif found := _NETWORK.fullmatch(body):
            thread.details.network = thread.process.network = found[1].decode("utf-8", "replace")
        elif found := _CARDS.fullmatch(body):
            family = found[1].decode("ascii")
            for card in _CARD.finditer(found[2]):
                thread.process.cards[family, int(card[1])] = card[2].decode("ascii")
            host = thread.process.host
            if family == "IB" and (host, text := body.decode("utf-8", "replace")) not in self._listed:
                self._listed.add((host, text))
                self._message(thread, INFORMATION, body, number, NONE)
        elif found := _VERSION.match(body):
            thread.process.library = _library(found)

    def _call(self, thread: LoggedThread, body: bytes, number: int) -> bool:
        found = CALL.fullmatch(body)
        tail = tail_of(found["tail"]) if found else None
        if found is None or tail is None:
            return False
        process = thread.process
        writer = Writer(process.host, process.number, 0, thread.device)
        op = operation(found["op"].decode("ascii"))
        self.call_table.add_call(number, writer, op, tail, int(found["seq"], 16), int(found["count"]))
        self.read -= 1  # the call table counts calls
        return True

    def _warning(self, text: bytes, loud: re.Match[bytes], number: int) -> None:
        place = loud.start()
        thread = self._thread(text, place)
        if thread is None:
            return
        self.read += 1
        self.warnings += 1
        body = text[loud.end() :]
        if self.warnings <= MAX_MESSAGES:
            time_ns = time_of(text[:place])
            kind = TIMEOUT if _TIMED_OUT.search(body) else WARNING
            self._message(thread, kind, body, number, NONE if time_ns is None else time_ns)

    def _message(self, thread: LoggedThread, kind: int, body: bytes, number: int, time_ns: int) -> None:
        text = body.decode("utf-8", "replace").strip()[:MAX_TEXT]
        self.messages.append(
            LoggedMessage(
                process=thread.process, device=thread.device, kind=kind, text=text, line=number, time_ns=time_ns
            )
        )

    def _interleaved(self, text: bytes, number: int) -> None:
        """Read a line with several prefixes: the text behind the last one, and the text between them."""
        last = text.rfind(INFO)
        writer = writer_at_end(text[:last])
        before = text.rfind(INFO, 0, last)
        if writer is None or before < 0:
            self.dropped += 1
            return
        prefix = f"{writer.host}:{writer.process}:{writer.thread} [{writer.device}]".encode("ascii")
        between = text[before + len(INFO) : last - len(prefix)]
        body = text[last + len(INFO) :]
        if between.strip():
            self.dropped += 1
            known = (writer.host, writer.process) in self.log.processes
            owner = writer if known else self._known_at_end(writer)
        else:
            owner = self._owner([writer_at_end(text[:before]), writer], body)
        if owner is None:
            self.dropped += 1
            return
        self.repaired += 1
        self._read(self.log.thread(owner), body, number)

    def _known_at_end(self, writer: Writer) -> Writer | None:
        """Return the writer without the text that another line put before its host, where the process is known."""
        known = [
            host for host, process in self.log.processes if process == writer.process and writer.host.endswith(host)
        ]
        return Writer(max(known, key=len), writer.process, writer.thread, writer.device) if known else None

    def _owner(self, writers: list[Writer | None], body: bytes) -> Writer | None:
        """Return the writer of a text behind several prefixes; None where it is ambiguous."""
        known = [writer for writer in writers if writer is not None]
        if len({(writer.host, writer.process) for writer in known}) == 1 and len(known) == len(writers):
            return known[-1]
        found = CALL.fullmatch(body)
        tail = tail_of(found["tail"]) if found else None
        if tail is not None:
            processes = [self.log.processes.get((writer.host, writer.process)) for writer in known]
            fitting = [
                writer
                for writer, process in zip(known, processes, strict=True)
                if process is not None and tail.pointer in process.by_pointer
            ]
        else:
            device = re.search(rb" cudaDev ([0-9]{1,5}) ", body)
            fitting = [writer for writer in known if device and writer.device == int(device[1])]
        return fitting[0] if len(fitting) == 1 else None


def _library(found: re.Match[bytes]) -> str:
    return f"{found[1].decode('ascii')} {found[2].decode('utf-8', 'replace')}"
