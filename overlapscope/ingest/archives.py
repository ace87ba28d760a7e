"""Inputs that are archives: tar, plain or gzip, and zip, told by content; their files are read like a folder's.

Only files that a reader knows are unpacked, into a private folder that is removed afterwards. What is read shows the
name `archive.tar.gz/member`. Archives inside archives are passed over.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import Final

from overlapscope.display_path import shown
from overlapscope.ingest.discover import Inputs, discover
from overlapscope.ingest.readers import head_of
from overlapscope.ingest.reading import Head, Reading
from overlapscope.timeline.run import RankTimeline, Source
from overlapscope.values import dataclass

MAX_UNPACKED_BYTES: Final = 64 << 30
"""Of all members together that are unpacked."""
ZIP_MAGIC: Final = (b"PK\x03\x04", b"PK\x05\x06")
_TAR_MAGIC: Final = (257, b"ustar")


@dataclass(frozen=True, slots=True, kw_only=True)
class Unpacked:
    """The inputs with the files of archives among them."""

    inputs: Inputs
    folders: dict[Path, Path] = field(default_factory=dict)
    """Where each archive was unpacked."""
    notes: tuple[Source, ...] = ()
    """Archives, or parts of them, that could not be used, and why."""

    def shown_path(self, path: Path) -> Path:
        """Give the path to show for a file: `archive.tar.gz/member` for a member."""
        archive, member = self.origin(path)
        return Path(shown(archive)) / member if member is not None else path

    def origin(self, path: Path) -> tuple[Path, Path | None]:
        """Give the file that a file comes from: itself, or an archive and the place in it."""
        for folder, archive in self.folders.items():
            if path.is_relative_to(folder):
                return archive, path.relative_to(folder)
        return path, None

    @property
    def renamings(self) -> tuple[tuple[str, str], ...]:
        """Where members were unpacked, and what to say in its place."""
        return tuple((str(folder), shown(archive)) for folder, archive in self.folders.items())


def is_archive(head: Head) -> bool:
    """Whether the content is a tar or a zip archive."""
    at, magic = _TAR_MAGIC
    return head.content[at : at + len(magic)] == magic or head.content.startswith(ZIP_MAGIC)


@contextmanager
def unpacked(
    paths: list[Path], max_bytes: int = MAX_UNPACKED_BYTES, *, within: Path | None = None
) -> Iterator[Unpacked]:
    """Find the inputs as `discover` does, with the members of archives for as long as the context lasts.

    Members lie in a folder `within` another one, else where temporary files go. Raises InputError as `discover` does.
    """
    inputs = discover(paths)
    archives = [path for path in (*inputs.files, *inputs.passed_over) if _is_archive_file(path)]
    if not archives:
        yield Unpacked(inputs=inputs)
        return
    from overlapscope.ingest.unpacking import unpacked_among  # noqa: PLC0415 - most inputs are no archives

    with unpacked_among(inputs, archives, max_bytes, within) as found:
        yield found


def _is_archive_file(path: Path) -> bool:
    try:
        return is_archive(head_of(path))
    except OSError:
        return False


def reworded(text: str, renamings: Sequence[tuple[str, str]]) -> str:
    """Give a text with the new for each old beginning of paths."""
    for old, new in renamings:
        text = text.replace(old, new)
    return text


def renamed(reading: Reading, renamings: Sequence[tuple[str, str]]) -> Reading:
    """Give a reading with the new for each old beginning of paths."""
    if not renamings:
        return reading

    def name(text: str) -> str:
        return reworded(text, renamings)

    source = reading.source
    facts = reading.facts
    return replace(
        reading,
        source=replace(source, path=name(source.path), warnings=tuple(map(name, source.warnings))),
        timelines=tuple(_with_source(each, name) for each in reading.timelines),
        facts=replace(facts, names=tuple(map(name, facts.names))),
    )


def _with_source(timeline: RankTimeline, name: Callable[[str], str]) -> RankTimeline:
    named = {
        timeline.names[code]: name(timeline.names[code]) for code in timeline.recordings.source.tolist() if code >= 0
    }
    return replace(timeline, names=tuple(named.get(each, each) for each in timeline.names))
