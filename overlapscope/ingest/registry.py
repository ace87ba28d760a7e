"""Every reader there is: our own, and those that other packages bring by an entry point."""

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

from overlapscope.display import shown
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
BUILT_IN: tuple[Reader, ...] = (
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
_METADATA: Final = (".dist-info", ".egg-info")
FURTHER_BYTES = 4 << 20
"""How far a text is searched: some ten milliseconds a file, so that a folder of logs stays quick to open."""
_OVERLAP = 4 << 10
"""What is looked for may lie across the end of a part; none of it is longer."""
_CONTROL = bytes(byte for byte in range(0x20) if byte not in b"\t\n\r\b\f\x1b")
_COMPRESSED: Final = (
    (b"\xfd7zXZ\x00", "xz", "xz -d"),
    (b"\x28\xb5\x2f\xfd", "zstd", "zstd -d"),
    (b"BZh", "bzip2", "bzip2 -d"),
    (b"\x04\x22\x4d\x18", "lz4", "lz4 -d"),
)
_CHAKRA: Final = (
    "is a Chakra trace, which holds no times and is not read: give the profiler's trace that it was made from, "
    "or PyTorch's own execution trace"
)
_REPORT: Final = (
    "is a report of nccl-tests (-J) or rccl-tests (-x), which is not read: give the table that the test prints"
)
_UTF_16: Final = (b"\xff\xfe", b"\xfe\xff")
_FORMS: Final = (
    (re.compile(rb"(?:[\t\n\r -~]\0){8}"), "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16LE -t UTF-8`"),
    (re.compile(rb"(?:\0[\t\n\r -~]){8}"), "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16BE -t UTF-8`"),
    (
        re.compile(rb"version https://git-lfs\."),
        "stands in for a file that Git LFS keeps: fetch it with `git lfs pull`",
    ),
    (
        re.compile(rb"\s*<(?:!doctype\s+html|html)\b", re.IGNORECASE),
        "is a web page, as of a log-in, and not what stands behind it: download the file itself",
    ),
    (
        re.compile(rb"SQLite format 3\0"),
        "is an SQLite database without the tables that Nsight Systems or Ascend's profiler write",
    ),
    (
        # What Docker's driver `json-file` writes: each line of a container's output inside a JSON object.
        re.compile(rb'\{"log":"[^\n]{0,65536}?","stream":"std(?:out|err)"'),
        "holds a container's output as JSON lines: take the lines out with `jq -j .log`",
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
        "holds events of NCCL's example profiler plugin, which are not read: give the records of NCCL Inspector",
    ),
    (
        re.compile(rb"\s*(?:<\?xml[^>]{0,200}\?>\s*)?(?:<!--(?:[^-]|-(?!->))*+-->\s*+)*+<graphs\s+version\s*="),
        "is a dump of NCCL's graphs (NCCL_GRAPH_DUMP_FILE), which is not read: give the topology "
        "(NCCL_TOPO_DUMP_FILE), or a log with NCCL_DEBUG_SUBSYS=INIT,GRAPH for rings and trees",
    ),
)


@cache
def readers() -> tuple[Reader, ...]:
    """Return all readers in the order in which they are asked: those of other packages first.

    Raises InputError, naming the entry point, when one of them cannot be loaded or is no reader.
    """
    if not may_be_brought(ENTRY_POINTS):
        return BUILT_IN
    from importlib.metadata import entry_points  # noqa: PLC0415 - slow to load

    points = sorted(entry_points(group=ENTRY_POINTS), key=lambda point: (point.name, point.value))
    return (*(_guarded(_whose(point), _loaded(point)) for point in points), *BUILT_IN)


def _whose(point: "EntryPoint") -> str:
    package = f" of {point.dist.name}" if point.dist is not None else ""
    return f"the reader {point.name!r}{package} ({point.value})"


def _loaded(point: "EntryPoint") -> Reader:
    with _blamed(f"{_whose(point)} cannot be loaded", "; update or uninstall it"):
        reader = point.load()
    if not isinstance(reader, Reader):
        raise InputError(f"{_whose(point)} is no overlapscope.ingest.reader.Reader; update or uninstall it")
    return reader


def _guarded(whose: str, reader: Reader) -> Reader:
    """Return a reader whose failures are errors of ours that name the file and the reader."""

    def guarded(looks: Callable[[Head], bool], head: Head) -> bool:
        what = f"{shown(head.path)}: {whose} failed to look at it"
        with _blamed(what, but=(OverlapScopeError, OSError, MemoryError)):
            return bool(looks(head))

    def read(path: Path, context: ReadContext) -> Reading:
        with _blamed(f"{shown(path)}: {whose} failed", but=(OverlapScopeError, MemoryError)):
            reading = reader.read(path, context)
        if not isinstance(reading, Reading):
            raise InputError(f"{shown(path)}: {whose} gave no Reading but {type(reading).__name__}")
        return reading

    holds_some = None if reader.holds_some is None else partial(guarded, reader.holds_some)
    return replace(reader, recognises=partial(guarded, reader.recognises), holds_some=holds_some, read=read)


@contextmanager
def _blamed(what: str, todo: str = "", *, but: tuple[type[Exception], ...] = ()) -> Iterator[None]:
    """Raise what another package's code raises as an InputError that says whose it is, `but` errors that say enough."""
    try:
        yield
    except but:
        raise
    except Exception as error:  # foreign code: whatever it raises, the user must learn whose it is
        said = " ".join(f"{type(error).__name__}: {error}".split())
        raise InputError(f"{what}: {said}{todo}") from error


def head_of(path: Path) -> Head:
    """Read the beginning and end of a file. Raises OSError; damaged gzip data gives what precedes the damage."""
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
    """Decompress what a head needs; of damaged data what precedes the damage, but for the last call's output."""
    content, member = b"", zlib.decompressobj(wbits=31)
    with suppress(zlib.error):
        while data and not member.eof and len(content) < HEAD_BYTES:
            content += member.decompress(data, min(HEAD_STEP_BYTES, HEAD_BYTES - len(content)))
            data = member.unconsumed_tail
    return content


def reader_of(head: Head) -> Reader | None:
    """Return the first reader that knows the file; None when none does."""
    return next(iter(readers_of(head)), None)


def readers_of(head: Head) -> list[Reader]:
    """Return the readers that know the file: one, or all whose lines stand in a log, which may be of several."""
    known = next((reader for reader in readers() if reader.recognises(head)), None)
    if known is not None and not known.anywhere:
        return [known]
    of_lines = [reader for reader in readers() if reader.anywhere]
    found = [reader for reader in of_lines if reader.recognises(head)]
    found += in_later_text(head, [reader for reader in of_lines if reader not in found])
    return found + (_in_part(head) if found else [])


def named_readers_of(head: Head) -> list[Reader]:
    """Give the readers that know a file that the user has named: where none does, the first whose lines stand in it."""
    return readers_of(head) or _in_part(head)[:1]


def _in_part(head: Head) -> list[Reader]:
    """Give the readers whose tables stand in a text among other things, such as what a benchmark printed into a log."""
    of_some = [(reader, reader.holds_some) for reader in readers() if reader.holds_some is not None]
    return [reader for reader, holds_some in of_some if in_text(head, holds_some)]


def may_be_brought(group: str) -> bool:
    """Return whether `importlib.metadata.entry_points(group=group)` may give any; no is certain."""
    if any(hasattr(finder, "find_distributions") and finder is not PathFinder for finder in sys.meta_path):
        return True  # packages may be anywhere
    return any(_may_bring(folder or ".", group.encode()) for folder in sys.path)


def _may_bring(folder: str, group: bytes) -> bool:
    """Whether a package in a place of modules may bring something; where that is no folder, nobody has looked."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return False
    except OSError:
        return True
    return any(
        _stands_in(os.path.join(folder, name, "entry_points.txt"), group)
        for name in names
        if name.lower().endswith(_METADATA) or name.lower() == "egg-info"
    )


def _stands_in(path: str, text: bytes) -> bool:
    try:
        with open(path, "rb") as file:
            return text in file.read()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True


@cache
def read_by() -> str:
    """Return what is another one as soon as our code, or a reader of another package, is another one.

    Raises InputError where such a reader cannot be loaded.
    """
    readers()
    words = [source_digest("overlapscope.ingest", "overlapscope.timeline")]
    if may_be_brought(ENTRY_POINTS):
        from importlib.metadata import entry_points  # noqa: PLC0415 - takes longer to load than all else here

        words += sorted(map(_reader, entry_points(group=ENTRY_POINTS)))
    return hashlib.blake2b("\0".join(words).encode(), digest_size=16).hexdigest()


def _reader(point: "EntryPoint") -> str:
    version = point.dist.version if point.dist is not None else ""
    return f"{point.name} {point.value} {version} {module_digest(point.module)}"


def in_later_text(head: Head, readers: Sequence[Reader]) -> list[Reader]:
    """Return the readers that recognise a later part of a text; none where the file is no text."""
    found: list[Reader] = []
    if not readers or len(head.content) < HEAD_BYTES or not is_text(head.content):
        return found
    try:
        for part in _parts(head.path):
            later = Head(path=head.path, content=part)
            found += [reader for reader in readers if reader not in found and reader.recognises(later)]
            if len(found) == len(readers):
                break
    except InputError:
        pass  # reading it will tell what is wrong
    return found


def in_text(head: Head, holds: Callable[[Head], bool]) -> bool:
    """Whether a text's beginning, or a later part of it, is what `holds` looks for; no where the file is no text."""
    if not is_text(head.content):
        return False
    if len(head.content) < HEAD_BYTES:
        return holds(head)
    try:
        return any(holds(Head(path=head.path, content=part)) for part in _parts(head.path))
    except InputError:
        return False  # reading it will tell what is wrong


def _parts(path: Path) -> Iterator[bytes]:
    """Yield the text from its beginning, in parts that overlap."""
    seen = 0
    before = b""
    for block in ByteStream(path).blocks():
        yield before + block
        seen += len(block)
        if seen >= FURTHER_BYTES:
            return
        before = block[-_OVERLAP:]


def is_text(content: bytes) -> bool:
    """Return whether the beginning of a file has hardly a byte that no text has."""
    return len(content) - len(content.translate(None, _CONTROL)) <= len(content) // 1000


def what_unread(content: bytes) -> str | None:
    """Return what a file is that begins so, and what to do; None where it is no such form."""
    content = content.removeprefix(b"\xef\xbb\xbf")
    for magic, name, command in _COMPRESSED:
        if content.startswith(magic):
            return f"is compressed by {name}, which is not read (gzip is): unpack it with `{command}`"
    if content.startswith(_UTF_16):
        return "is text in UTF-16: make it UTF-8 with `iconv -f UTF-16 -t UTF-8`"
    return next((said for form, said in _FORMS if form.match(content)), None)
