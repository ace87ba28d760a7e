"""The reader contract: how a file format is recognised, and what reading one file returns.

The author of a plugin reads this file only.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import msgspec
from msgspec.structs import replace

from overlapscope.ingest.build.kernel_names import Classifier
from overlapscope.ingest.parsing.gzip_stream import MAX_BYTES
from overlapscope.timeline.facts import Facts
from overlapscope.timeline.run import MAX_RANKS, Group, RankTimeline, Source

HEAD_BYTES = 64 << 10
SQLITE_MAGIC: Final = b"SQLite format 3\x00"
ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
_TAR_MAGIC: Final = (b"ustar", 257)
_RANK: Final = re.compile(
    r"(?<![dtpec]p)(?<![dtpec]p[-_])(?<!local)(?<!local[-_])(?<!node[-_])rank[-_.=]?(\d{1,7})(?!\d)", re.IGNORECASE
)
"""A global rank in a name; not `local_rank1`, `dp_rank_1` and similar, which count within a node or a group."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a file, from which readers recognise their format."""

    path: Path
    content: bytes
    """Up to HEAD_BYTES, decompressed where the file is gzip."""
    tail: bytes = b""
    """The last HEAD_BYTES of a longer file that is not gzip: a job's log reports there how the job ended."""

    @property
    def text(self) -> str:
        """Return the content as text; bytes that are not UTF-8 are replaced."""
        return self.content.decode("utf-8", "replace").removeprefix("\ufeff")

    @property
    def is_archive(self) -> bool:
        """Return whether the content is a tar or a zip archive."""
        return self.content.startswith(*_TAR_MAGIC) or self.content.startswith(ZIP_MAGIC)


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Other processes on this machine that can read parts of a large file."""

    executor: Executor
    shares: int
    """Number of processes, including this one."""
    folder: Path
    """Folder in which the processes write their results."""


class ReadContext(msgspec.Struct, frozen=True, kw_only=True):
    """The arguments that every reader receives besides the path."""

    classifier: Classifier = msgspec.field(default_factory=Classifier)
    """Separates communication kernels from compute kernels, using the user's own patterns first."""
    stacks: bool = False
    """Whether all functions of Python stacks are kept; else only calls of modules, and functions of 3 ms and more."""
    max_bytes: int = MAX_BYTES
    """Files with more decompressed bytes than this are refused."""
    progress: Callable[[int], None] | None = None
    """Callback for the number of bytes read since the last call."""
    sharing: Sharing | None = None
    """Processes that share the reading of a large file; None to read it in this process."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """The result of reading one file. Only `source` is required: a topology has no timeline, a trace no links."""

    source: Source
    timelines: tuple[RankTimeline, ...] = ()
    """One for each rank in the file; `rank` is UNKNOWN_RANK where the file does not state it. A timeline of basis
    `log` has calls in order and no spans; its recording window may be NONE to NONE."""
    world_size: int | None = None
    groups: tuple[Group, ...] = ()
    fingerprint: Mapping[str, str | int | None] = {}
    facts: Facts = msgspec.field(default_factory=Facts)
    stands_in: bool = False
    """Whether another file of the same recording holds more: these timelines are used only if that file is absent."""
    ranks_assumed: bool = False
    """Whether the file does not state its ranks: they are then numbered from 0 in file order, or by their devices."""
    peers_in_groups: bool = False
    """Whether the peers of its calls are ranks in the calls' groups, whose ranks in the job it does not state."""
    assumption: str = ""
    """Warning that the ranks are assumed; added to the source's once nothing better says them."""

    def relabel_paths(self, renamings: Sequence[tuple[str, str]]) -> "Reading":
        """Return the reading with each (old, new) path prefix replaced wherever it names its file."""
        if not renamings:
            return self
        source, facts = self.source, self.facts
        warnings = tuple(relabel_text(each, renamings) for each in source.warnings)
        return replace(
            self,
            source=replace(source, path=relabel_text(source.path, renamings), warnings=warnings),
            timelines=tuple(_relabel_recordings(each, renamings) for each in self.timelines),
            facts=replace(facts, names=tuple(relabel_text(each, renamings) for each in facts.names)),
        )


class Reader(msgspec.Struct, frozen=True, kw_only=True):
    """A source format: how to recognise and how to read it.

    `recognises` looks at the head alone (including its tail), never at the file name, and returns False when unsure,
    because another reader may fit better.
    `read` raises InputError, naming the file and the place in it, when nothing in the file can be used; repaired and
    dropped parts are counted in the reading's source.
    """

    format: str
    recognises: Callable[[Head], bool]
    read: Callable[[Path, ReadContext], Reading]
    holds_some: Callable[[Head], bool] | None = None
    """Return whether a text contains data of the format among other text. Called only for a file that the user named
    and that no reader recognises: in a folder such a file is a report or a README, not the job's own output."""
    anywhere: bool = False
    """Whether the format is lines that may start anywhere in a log, mixed with other lines: `recognises` is then also
    called for later parts of a text, and all readers of this kind that recognise a file read it."""


def lazy_read(name: str) -> Callable[[Path, ReadContext], Reading]:
    """Return a `read` function that imports `package.module:function` when it is first called.

    A detector refers to its reader in this way: the reader module is loaded only for a file of its format, and
    imports go in one direction.
    """
    module, function = name.split(":")

    def read(path: Path, context: ReadContext) -> Reading:
        read_format: Any = getattr(import_module(module), function)
        reading: Reading = read_format(path, context)
        return reading

    return read


def relabel_text(text: str, renamings: Sequence[tuple[str, str]]) -> str:
    """Return a text with each (old, new) path prefix replaced."""
    for old, new in renamings:
        text = text.replace(old, new)
    return text


def _relabel_recordings(timeline: RankTimeline, renamings: Sequence[tuple[str, str]]) -> RankTimeline:
    names = list(timeline.names)
    for code in {each for each in timeline.recordings.source.tolist() if each >= 0}:
        names[code] = relabel_text(names[code], renamings)
    return replace(timeline, names=tuple(names))


def rank_from_path(path: Path) -> int | None:
    """Return the rank in a file's name, else in its folder's name (`rank3`, `rank_03`, `rank-3of8`); None if absent.

    A name with two different ranks states none.
    """
    for part in (path.name, path.parent.name):
        found = [int(number) for number in _RANK.findall(part) if int(number) <= MAX_RANKS]
        if found:
            return found[0] if len(set(found)) == 1 else None
    return None
