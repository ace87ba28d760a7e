"""All readers, built in or from other packages by entry point, and the choice of the reader for a file.

- Built-in readers and those that other packages register under the entry point `overlapscope.readers`.
  `importlib.metadata` takes as long to load as all reading modules together (30 + 55 ms), nearly always to find
  nothing. What it would find is listed under the group's name in a package's file `entry_points.txt`: where no such
  file contains that name, it is not loaded.
- Recognition from the head of a file, and for logs also from later text: a training log's relevant lines may begin
  after megabytes of others.
- Forms that logs and traces often have and that are not read: what they are, and what to do instead.
"""

import hashlib
import os
import re
import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from overlapscope.display import display_path
from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.files.source_digest import module_digest, source_digest
from overlapscope.ingest.formats import (
    ascend,
    execution_trace,
    flight_recorder,
    horovod,
    kineto,
    measured_table,
    nccl_log,
    nccl_profiler,
    nccl_tests,
    nsight,
    perfetto_export,
    rocprof,
    topology,
    training_log,
    watchdog,
)
from overlapscope.ingest.parsing.gzip_stream import GZIP_MAGIC, ByteStream
from overlapscope.ingest.reader import HEAD_BYTES, Head, ReadContext, Reader, Reading

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

ENTRY_POINTS = "overlapscope.readers"
HEAD_STEP_BYTES = 512
BUILT_IN_READERS: tuple[Reader, ...] = (
    nsight.READER,
    rocprof.READER,
    flight_recorder.READER,
    ascend.TRACE,
    ascend.STEP_TIMES,
    ascend.KERNELS,
    ascend.COMMUNICATION,
    ascend.INFO,
    ascend.DATABASE,
    execution_trace.READER,
    horovod.READER,
    nccl_log.READER,
    training_log.READER,
    watchdog.READER,
    nccl_tests.READER,
    nccl_profiler.READER,
    topology.MATRIX,
    topology.XML,
    measured_table.READER,
    perfetto_export.READER,
    kineto.READER,  # last: takes any JSON
)
MAX_SEARCHED_BYTES = 4 << 20
"""How far a text is searched: about ten milliseconds a file, so that a folder of logs opens quickly."""
_METADATA_FOLDERS: Final = (".dist-info", ".egg-info")
_OVERLAP_BYTES = 4 << 10
"""Overlap of two parts of a text: a pattern may cross the border of a part; none is longer than this."""
_CONTROL = bytes(byte for byte in range(0x20) if byte not in b"\t\n\r\b\f\x1b")
_COMPRESSED: Final = (
    (b"\xfd7zXZ\x00", "xz", "xz -d"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"BZh", "bzip2", "bzip2 -d"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
)
_CHAKRA: Final = (
    "is a Chakra trace, which has no times and is not read: use the profiler trace that it was made from, "
    "or PyTorch's own execution trace"
)
_REPORT: Final = (
    "is a report of nccl-tests (-J) or rccl-tests (-x), which is not read: use the table that the test prints"
)
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_UNREAD_FORMS: Final = (
    (re.compile(rb"(?:[\t\n\r -~]\0){8}"), "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16LE -t UTF-8`"),
    (re.compile(rb"(?:\0[\t\n\r -~]){8}"), "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16BE -t UTF-8`"),
    (
        re.compile(rb"version https://git-lfs\."),
        "is a Git LFS pointer, not the file itself: fetch the file with `git lfs pull`",
    ),
    (
        re.compile(rb"\s*<(?:!doctype\s+html|html)\b", re.IGNORECASE),
        "is a web page (perhaps a log-in page), not the file: download the file itself",
    ),
    (
        re.compile(rb"SQLite format 3\0"),
        "is an SQLite database without the tables that Nsight Systems or the Ascend profiler write",
    ),
    (
        # Docker's log driver `json-file` writes each line of a container's output inside a JSON object.
        re.compile(rb'\{"log":"[^\n]{0,65536}?","stream":"std(?:out|err)"'),
        "is a container's output as JSON lines: extract the lines with `jq -j .log`",
    ),
    (re.compile(rb'\s*\{[^\0]{0,4096}?"workload_graph"\s*:\s*\['), _CHAKRA),
    # Length-delimited protocol buffers: metadata with a version or an attribute `schema`; or none, then a node's number
    # and name.
    (re.compile(rb"(?s).{1,3}(?:\n\x05\d\.\d\.\d|.{0,40}\n\x06schema)"), _CHAKRA),
    (re.compile(rb"(?s)\0.{1,3}\x08[\x80-\xff]{0,9}[\0-\x7f]\x12.{1,2}[ -~]{2}"), _CHAKRA),
    (re.compile(rb'\s*\{\s*"version"\s*:\s*\d+\s*,\s*"start_time"\s*:\s*"[^"]{0,64}"\s*,\s*"args"\s*:'), _REPORT),
    (re.compile(rb'\s*+(?:\[\s*+)?\{\s*"numCycle"\s*:\s*\d+\s*,\s*"name"\s*:\s*"'), _REPORT),
    (re.compile(rb"\s*numCycle,collective,", re.IGNORECASE), _REPORT),
    (
        re.compile(
            rb'\s*\[\s*\{\s*"name"\s*:\s*"[^"]{0,100}"\s*,\s*"cat"\s*:\s*"(?:GROUP|GROUP_API|COLL|COLL_API|P2P|P2P_API'
            rb'|PROXY|NET|NET_IB|NET_SOCK|GPU|KERNEL_LAUNCH|CE_COLL|CE_SYNC|CE_BATCH)"\s*,\s*"ph"\s*:\s*"[be]"'
        ),
        "holds events of NCCL's example profiler plugin, which are not read: use the records of NCCL Inspector",
    ),
    (
        re.compile(rb"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--(?:[^-]|-(?!->))*-->\s*)*<graphs\s+version\s*="),
        "is a dump of NCCL's graphs (NCCL_GRAPH_DUMP_FILE), which is not read: use the topology "
        "(NCCL_TOPO_DUMP_FILE), or a log with NCCL_DEBUG_SUBSYS=INIT,GRAPH for rings and trees",
    ),
)


@cache
def all_readers() -> tuple[Reader, ...]:
    """Return all readers in the order in which they are tried: those of other packages first.

    Raises InputError, naming the entry point, when one cannot be loaded or is not a `Reader`.
    """
    if not may_have_readers(ENTRY_POINTS):
        return BUILT_IN_READERS
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to load

    points = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: (point.name, point.value))
    return (*(_guarded(_reader_label(point), _load_reader(point)) for point in points), *BUILT_IN_READERS)


def _reader_label(point: "EntryPoint") -> str:
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return f"the reader {point.name!r}{package} ({point.value})"


def _load_reader(point: "EntryPoint") -> Reader:
    with _as_input_error(f"{_reader_label(point)} cannot be loaded", "; update or uninstall it"):
        reader = point.load()
    if not isinstance(reader, Reader):
        raise InputError(f"{_reader_label(point)} is no overlapscope.ingest.reader.Reader; update or uninstall it")
    return reader


def _guarded(label: str, reader: Reader) -> Reader:
    """Return a reader whose failures become InputErrors that name the file and the reader."""

    def guarded(predicate: Callable[[Head], bool], head: Head) -> bool:
        failure = f"{display_path(head.path)}: {label} failed to look at it"
        with _as_input_error(failure, passed_on=(OverlapScopeError, OSError, MemoryError)):
            return bool(predicate(head))

    def read(path: Path, context: ReadContext) -> Reading:
        with _as_input_error(f"{display_path(path)}: {label} failed", passed_on=(OverlapScopeError, MemoryError)):
            reading = reader.read(path, context)
        if not isinstance(reading, Reading):
            raise InputError(f"{display_path(path)}: {label} returned a {type(reading).__name__}, not a Reading")
        return reading

    holds_some = None if reader.holds_some is None else partial(guarded, reader.holds_some)
    return replace(reader, recognises=partial(guarded, reader.recognises), holds_some=holds_some, read=read)


@contextmanager
def _as_input_error(failure: str, advice: str = "", *, passed_on: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise an exception of another package's code as an InputError; `passed_on` types are raised unchanged."""
    try:
        yield
    except passed_on:
        raise
    except Exception as error:  # foreign code: whatever it raises, the message must name the package
        cause = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{failure}: {cause}{advice}") from error


def may_have_readers(group: str) -> bool:
    """Return False only if `importlib.metadata.entry_points(group=group)` is certainly empty."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True  # packages may be anywhere
    return any(_may_have_entry_points(folder or ".", group.encode()) for folder in sys.path)


def _may_have_entry_points(folder: str, group: bytes) -> bool:
    """Return whether a package in an import folder may register something; True where the folder cannot be listed."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(
        _may_contain(os.path.join(folder, name, "entry_points.txt"), group)
        for name in names
        if name.lower().endswith(_METADATA_FOLDERS) or name.lower() == "egg-info"
    )


def _may_contain(path: str, text: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return text in file.read()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


@cache
def reader_code_digest() -> str:
    """Return a digest that changes whenever our code or a reader of another package changes.

    Columns that other code wrote are not reused. Raises InputError where such a reader cannot be loaded.
    """
    all_readers()
    parts = [source_digest("overlapscope.ingest", "overlapscope.timeline")]
    if may_have_readers(ENTRY_POINTS):
        from importlib.metadata import entry_points  # noqa: PLC0415 - takes longer to load than all else here

        parts += sorted(map(_reader_version, entry_points(group=ENTRY_POINTS)))
    return hashlib.blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()


def _reader_version(point: "EntryPoint") -> str:
    version = point.dist.version if point.dist is not None else ""
    return f"{point.name} {point.value} {version} {module_digest(point.module)}"


def read_head(path: Path) -> Head:
    """Read the beginning and the end of a file; of damaged gzip data, the part before the damage. Raises OSError."""
    tail = b""
    with open(path, "rb") as file:
        content = file.read(HEAD_BYTES)
        if content[:2] != GZIP_MAGIC and (size := os.fstat(file.fileno()).st_size) > HEAD_BYTES:
            file.seek(max(HEAD_BYTES, size - HEAD_BYTES))
            tail = file.read(HEAD_BYTES)
    return replace(head_within(path, content), tail=tail)


def head_within(path: Path, content: bytes) -> Head:
    """Return the head of a file that begins with `content`, decompressed where that is gzip."""
    if content[:2] == GZIP_MAGIC:
        content = _inflated(content)
    return Head(path=path, content=content)


def _inflated(data: bytes) -> bytes:
    """Decompress up to HEAD_BYTES; of damaged data the part before the damage, less the output of the failing call."""
    content, member = b"", zlib.decompressobj(wbits=31)
    with suppress(zlib.error):
        while data and not member.eof and len(content) < HEAD_BYTES:
            content += member.decompress(data, min(HEAD_STEP_BYTES, HEAD_BYTES - len(content)))
            data = member.unconsumed_tail
    return content


def find_reader(head: Head) -> Reader | None:
    """Return the first reader that recognises the file; None if there is none."""
    return next(iter(readers_of(head)), None)


def readers_of(head: Head) -> list[Reader]:
    """Return the readers that recognise the file: one, or for a log all whose lines occur in it."""
    known = next((reader for reader in all_readers() if reader.recognises(head)), None)
    if known is not None and not known.anywhere:
        return [known]
    line_readers = [reader for reader in all_readers() if reader.anywhere]
    found = [reader for reader in line_readers if reader.recognises(head)]
    found += _recognising_later_text(head, [reader for reader in line_readers if reader not in found])
    return found + (_partial_readers(head) if found else [])


def named_readers_of(head: Head) -> list[Reader]:
    """Return the readers of a file that the user has named: if none recognises it, the first whose data it contains."""
    return readers_of(head) or _partial_readers(head)[:1]


def _partial_readers(head: Head) -> list[Reader]:
    """Return the readers whose data occurs in a text among other text, such as a benchmark's table in a log."""
    candidates = [(reader, reader.holds_some) for reader in all_readers() if reader.holds_some is not None]
    return [reader for reader, holds_some in candidates if _text_matches(head, holds_some)]


def _recognising_later_text(head: Head, candidates: Sequence[Reader]) -> list[Reader]:
    """Return those of the readers that recognise a later part of a text; none where the file is not text."""
    found: list[Reader] = []
    with suppress(InputError):  # reading the file will report what is wrong
        for part in _text_parts(head) if candidates else ():
            found += [reader for reader in candidates if reader not in found and reader.recognises(part)]
            if len(found) == len(candidates):
                break
    return found


def _text_matches(head: Head, matches: Callable[[Head], bool]) -> bool:
    """Return whether `matches` accepts the beginning or a later part of a text; False where the file is not text."""
    if len(head.content) < HEAD_BYTES:
        return is_text(head.content) and matches(head)
    with suppress(InputError):  # reading the file will report what is wrong
        return any(map(matches, _text_parts(head)))
    return False


def _text_parts(head: Head) -> Iterator[Head]:
    """Yield the first MAX_SEARCHED_BYTES of a long text in parts that overlap; nothing of a file that is not text."""
    if len(head.content) < HEAD_BYTES or not is_text(head.content):
        return
    size = 0
    before = b""
    for block in ByteStream(head.path).blocks():
        yield Head(path=head.path, content=before + block)
        size += len(block)
        if size >= MAX_SEARCHED_BYTES:
            return
        before = block[-_OVERLAP_BYTES:]


def is_text(content: bytes) -> bool:
    """Return whether the beginning of a file is text: at most one byte in a thousand is a control character."""
    return len(content) - len(content.translate(None, _CONTROL)) <= len(content) // 1000


def describe_unread_form(content: bytes) -> str | None:
    """Return what kind of unsupported file begins with `content`, and what to do about it; None for any other."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    for magic, name, command in _COMPRESSED:
        if content.startswith(magic):
            return f"is compressed by {name}, which is not read (gzip is): unpack it with `{command}`"
    if content.startswith(_UTF_16):
        return "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16 -t UTF-8`"
    return next((text for pattern, text in _UNREAD_FORMS if pattern.match(content)), None)
