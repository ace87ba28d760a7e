"""The contract of a source format: how it is recognised, and what reading one file of it gives."""

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
"""A rank in the world; not `local_rank1`, `dp_rank_1` and their like, which are ranks in something else."""


class Head(msgspec.Struct, frozen=True, kw_only=True):
    """The beginning of a file, by which readers tell whether it is theirs."""

    path: Path
    content: bytes
    """Up to HEAD_BYTES, decompressed where the file is gzip."""
    tail: bytes = b""
    """The last HEAD_BYTES of a longer file that is not gzip: a job's log tells of its end there."""

    @property
    def text(self) -> str:
        """The content as text; what is no UTF-8 is replaced."""
        return self.content.decode("utf-8", "replace").removeprefix("\ufeff")

    @property
    def is_archive(self) -> bool:
        """Return whether the content is a tar or a zip archive."""
        return self.content.startswith(*_TAR_MAGIC) or self.content.startswith(ZIP_MAGIC)


class Sharing(msgspec.Struct, frozen=True, kw_only=True):
    """Other processes of this machine that may read parts of a file."""

    executor: Executor
    shares: int
    """How many processes there are, this one included."""
    folder: Path
    """Where they leave what they found."""


class ReadContext(msgspec.Struct, frozen=True, kw_only=True):
    """What every reader is given besides the path."""

    classifier: Classifier = msgspec.field(default_factory=Classifier)
    """Tells kernels that communicate from those that compute, with the user's own patterns."""
    max_bytes: int = MAX_BYTES
    """More decompressed bytes than this are refused."""
    progress: Callable[[int], None] | None = None
    """To be called with the number of bytes read since the last call."""
    sharing: Sharing | None = None
    """With whom to read a large file, where that is worth it."""


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    """What one file gave. Everything is optional but its source: a topology has no timeline, a trace no links."""

    source: Source
    timelines: tuple[RankTimeline, ...] = ()
    """One for each rank the file tells of; `rank` is UNKNOWN_RANK where it does not say which. A timeline of basis
    `log` has calls in order, and no spans: its recording window may be NONE to NONE."""
    world_size: int | None = None
    groups: tuple[Group, ...] = ()
    fingerprint: Mapping[str, str | int | None] = {}
    facts: Facts = msgspec.field(default_factory=Facts)
    stands_in: bool = False
    """Its timelines tell less than another file of the same recording: they count only where that is absent."""
    ranks_assumed: bool = False
    """The file holds several ranks and does not say which: they are numbered from 0 in its own order."""

    def relabel_paths(self, renamings: Sequence[tuple[str, str]]) -> "Reading":
        """Return the reading with the new for each old beginning of paths, wherever it names its file."""
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
    """One source format.

    `recognises` looks at the head alone (its tail included), never at the name, and says no when unsure: another reader
    may know better.
    `read` raises InputError, naming the file and the place in it, when nothing in it can be used; what it had to
    repair or leave out stands counted in the reading's source.
    """

    format: str
    recognises: Callable[[Head], bool]
    read: Callable[[Path, ReadContext], Reading]
    holds_some: Callable[[Head], bool] | None = None
    """Whether a part of a text holds something of the format among other text. Asked only of a file that the user has
    named and that no reader recognises: in a folder such a file is a report or a README, not the job's own output."""
    anywhere: bool = False
    """What it reads are lines that may begin anywhere in a log and stand among others: `recognises` is asked of later
    parts of a text too, and all readers of this kind that know a file read it."""


def lazy(name: str) -> Callable[[Path, ReadContext], Reading]:
    """Return a `read` that imports `package.module:function` when it is first called.

    A detector names its reader so: what reads a format is loaded for a file of that format alone, and never imports the
    other way round.
    """
    module, function = name.split(":")

    def read(path: Path, context: ReadContext) -> Reading:
        found: Any = getattr(import_module(module), function)
        reading: Reading = found(path, context)
        return reading

    return read


def relabel_text(text: str, renamings: Sequence[tuple[str, str]]) -> str:
    """Return a text with the new for each old beginning of paths."""
    for old, new in renamings:
        text = text.replace(old, new)
    return text


def _relabel_recordings(timeline: RankTimeline, renamings: Sequence[tuple[str, str]]) -> RankTimeline:
    names = list(timeline.names)
    for code in {each for each in timeline.recordings.source.tolist() if each >= 0}:
        names[code] = relabel_text(names[code], renamings)
    return replace(timeline, names=tuple(names))


def rank_from_path(path: Path) -> int | None:
    """Return the rank in a file's name, else in its folder's name (`rank3`, `rank_03`, `rank-3of8`); None without."""
    for part in (path.name, path.parent.name):
        found = [int(number) for number in _RANK.findall(part) if int(number) <= MAX_RANKS]
        if found:
            return found[0] if len(set(found)) == 1 else None
    return None
