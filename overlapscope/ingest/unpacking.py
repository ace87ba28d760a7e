"""The members of archives that readers know, unpacked for as long as they are read.

Nothing but plain files is made; their names cannot lead out of their folder; their number and sizes are limited.
"""

import shutil
import stat
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import field, replace
from pathlib import Path
from typing import IO, Any, Final, Self

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.archive_damage import AGAIN, DAMAGE, UNREADABLE, damage, of_zip, unreadable
from overlapscope.ingest.archives import MAX_UNPACKED_BYTES, ZIP_MAGIC, Unpacked, is_archive
from overlapscope.ingest.bytestream import BLOCK_BYTES, MAX_RATIO, RATIO_GRACE_BYTES, ByteStream
from overlapscope.ingest.discover import Inputs, discover
from overlapscope.ingest.rank_in_name import rank_from_path
from overlapscope.ingest.readers import head_within, reader_of
from overlapscope.ingest.reading import HEAD_BYTES
from overlapscope.timeline.held_folder import held_folder
from overlapscope.timeline.run import Source
from overlapscope.timeline.run_directory import MANIFEST, RANK_ENTRY
from overlapscope.values import dataclass

FORMAT: Final = "archive"
MAX_MEMBERS: Final = 100_000
MAX_HEADER_BYTES: Final = 1 << 20
"""A longer name, or a longer list of a member's properties, is none."""


@contextmanager
def unpacked_among(inputs: Inputs, archives: list[Path], max_bytes: int, within: Path | None) -> Iterator[Unpacked]:
    """Give the inputs with the members of those that are `archives`, unpacked in a folder `within` another one."""
    with held_folder(within or Path(tempfile.gettempdir()), "overlapscope-unpacked-") as temporary:
        folders: dict[Path, Path] = {}
        notes: list[Source] = []
        found = [
            replace(inputs, files=_without(inputs.files, archives), passed_over=_without(inputs.passed_over, archives))
        ]
        room = shutil.disk_usage(temporary).free // 2
        budget = _Budget(members=MAX_MEMBERS, bytes=min(max_bytes, MAX_UNPACKED_BYTES, room))
        for number, path in enumerate(archives):
            # The archive's own name may tell a rank, as a folder's does.
            folder = temporary.resolve() / str(number) / (path.name or "archive")
            folder.mkdir(parents=True)
            folders[folder] = path
            inside, note, unread = _inside(path, folder, budget)
            if not (inside.files or note) and path in inputs.passed_over:
                inside = replace(inside, passed_over=(path,))  # not a trace's archive: a checkpoint, a wheel, ...
            elif not inside.files:
                note = note or "holds no file that is read"
            found.append(inside)
            if note:
                notes.append(Source(path=shown(path), format=FORMAT, warnings=(note,), unread_ranks=unread))
        yield Unpacked(
            inputs=Inputs(
                runs=inputs.runs,
                files=tuple(file for each in found for file in each.files),
                passed_over=tuple(file for each in found for file in each.passed_over),
                remote=inputs.remote,
                unreadable=inputs.unreadable,
            ),
            folders=folders,
            notes=tuple(notes),
        )


def _inside(path: Path, folder: Path, budget: "_Budget") -> tuple[Inputs, str, tuple[int, ...]]:
    """Unpack one archive; give its files, what has to be said of it, and whose members could not be read."""
    unpacking = _Unpacking(folder=folder, budget=budget)
    note = ""
    try:
        with open(path, "rb") as file:
            is_zip = file.read(4).startswith(ZIP_MAGIC)
        (_unzip if is_zip else _untar)(path, unpacking)
    except zipfile.BadZipFile as error:
        note = f"the archive is damaged: {of_zip(error)}"
    except DAMAGE as error:
        note = f"the archive is damaged: {damage(error)}; {_so_far(unpacking)}"
    except OSError as error:
        note = f"cannot be unpacked: {error.strerror or error}"
    except _TooMuch as error:
        note = str(error)
    except InputError as error:
        note = str(error).removeprefix(f"{shown(path)}: ")
    if unpacking.refused:
        listed = ", ".join(unpacking.refused[:3])
        note = "; ".join(filter(None, [note, f"{len(unpacking.refused)} members not read whole: {listed}"]))
    if unpacking.nested:
        listed = ", ".join(unpacking.nested[:3])
        inner = f"archives inside archives are not read: unpack {listed} and name the folder"
        note = "; ".join(filter(None, [note, inner]))
    passed = tuple(Path(f"{folder}/{name}") for name in unpacking.passed_over)
    ranks = [rank_from_path(Path(path.name, each)) for each in unpacking.unread]
    unread = tuple(sorted({each for each in ranks if each is not None}))
    if not unpacking.written:
        return Inputs(runs=(), files=(), passed_over=passed), note, unread
    found = discover([folder])
    if found.runs:
        note = (
            "holds a run directory, which is read only unpacked; the rest was read"
            if found.files
            else ("holds a run directory: unpack it and name that folder")
        )
        found = replace(found, runs=())
    return replace(found, passed_over=(*found.passed_over, *passed)), note, unread


class _TooMuch(Exception):  # noqa: N818 - a signal within this file
    """A limit on what is unpacked was reached."""


@dataclass(slots=True)
class _Budget:
    members: int
    bytes: int

    def spend(self, *, members: int = 0, size: int = 0) -> None:
        self.members -= members
        self.bytes -= size
        if self.members < 0:
            raise _TooMuch(f"the archives hold more than {MAX_MEMBERS} members; read up to there")
        if self.bytes < 0:
            raise _TooMuch("the archives hold more than may be unpacked; unpack them yourself and name the folder")


@dataclass(slots=True)
class _Unpacking:
    folder: Path
    budget: _Budget
    written: int = 0
    passed_over: list[str] = field(default_factory=list)
    refused: list[str] = field(default_factory=list)
    """Why members were not read whole."""
    unread: list[str] = field(default_factory=list)
    """Names of members of which something could not be read."""
    nested: list[str] = field(default_factory=list)

    def take(self, name: str, read: Callable[[int], bytes], packed_bytes: int | None = None) -> None:
        """Write one member, if a reader knows it. `read` gives its content; `packed_bytes` is what it takes packed."""
        place = _place(self.folder, name)
        if place is None:
            self.refused.append(f"{name!r} (its name leads elsewhere)")
            return
        if any(part.startswith(".") for part in place.relative_to(self.folder).parts):
            return
        begin = _read_up_to(read, HEAD_BYTES)
        if not _is_wanted(place, begin):
            inner = is_archive(head_within(place, begin))
            (self.nested if inner else self.passed_over).append(str(place.relative_to(self.folder)))
            return
        try:
            place.parent.mkdir(parents=True, exist_ok=True)
            file = open(place, "wb")  # noqa: SIM115 - closed below; only the opening may be refused
        except (FileExistsError, IsADirectoryError, NotADirectoryError):
            self.refused.append(f"{name!r} (its name is a folder's and a file's)")
            return
        # What damage cuts short stays: a reader takes what is whole of it, and says so.
        self.written += 1
        with file:
            try:
                self._copy(file, begin, read, name, packed_bytes)
            except (_TooMuch, InputError):  # a bomb, in the member or in the archive
                self.written -= 1
                place.unlink()
                raise

    def _copy(
        self, file: IO[bytes], begin: bytes, read: Callable[[int], bytes], name: str, packed_bytes: int | None
    ) -> None:
        total, block = 0, begin
        while block:
            total += len(block)
            self.budget.spend(size=len(block))
            _check_ratio(name, total, packed_bytes)
            file.write(block)
            block = read(BLOCK_BYTES)


def _check_ratio(name: str, total: int, packed_bytes: int | None) -> None:
    if packed_bytes is not None and total > RATIO_GRACE_BYTES and total > MAX_RATIO * packed_bytes:
        raise _TooMuch(f"{name!r} expands more than {MAX_RATIO} times, like a decompression bomb")


def _is_wanted(place: Path, begin: bytes) -> bool:
    if not begin.strip(b"\x00 \t\r\n"):
        return False  # readers give the benefit of the doubt to a blank beginning; a checkpoint has many
    head = head_within(place, begin)
    own = place.name in (MANIFEST, RANK_ENTRY) or place.suffix == ".parquet"
    return not is_archive(head) and (own or reader_of(head) is not None)


def _place(folder: Path, name: str) -> Path | None:
    """Give where a member goes below `folder`; None for a name that leads elsewhere or is none."""
    parts = [part for part in name.split("/") if part not in ("", ".")]
    strange = name.startswith("/") or "\\" in name or "\0" in name or (len(name) > 1 and name[1] == ":")
    if (
        strange
        or not parts
        or ".." in parts
        or any(len(part.encode("utf-8", "surrogateescape")) > 255 for part in parts)
    ):
        return None
    return folder.joinpath(*parts)


def _read_up_to(read: Callable[[int], bytes], size: int) -> bytes:
    content = b""
    while len(content) < size:
        block = read(size - len(content))
        if not block:
            break
        content += block
    return content


class _DamagedHeaderError(ValueError):
    """No header where one has to be: nothing that the library goes on behind."""


class _Member(tarfile.TarInfo):
    """A tar header whose own texts are of a possible length: the library reads them whole."""

    @classmethod
    def frombuf(cls, buf: Any, encoding: str, errors: str) -> Self:
        try:
            member: Self = super().frombuf(buf, encoding, errors)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # of Python's own, and not in its stubs
            raise
        except tarfile.HeaderError as error:
            # The library takes any other one for the end, and says nothing of what comes behind it.
            cut = len(buf) < tarfile.BLOCKSIZE
            raise _DamagedHeaderError("unexpected end of data" if cut else "a member's header is damaged") from error
        texts = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, b"X")
        if member.type in texts and member.size > MAX_HEADER_BYTES:
            raise tarfile.HeaderError("a member's name or properties are impossibly long")
        return member


@dataclass(slots=True)
class _Readable:
    """Blocks as a file that can be read, for the library."""

    blocks: Iterator[bytes]
    rest: bytes = b""

    def read(self, size: int) -> bytes:
        while len(self.rest) < size:
            block = next(self.blocks, None)
            if block is None:
                break
            self.rest += block
        out, self.rest = self.rest[:size], self.rest[size:]
        return out


def _untar(path: Path, unpacking: _Unpacking) -> None:
    # The stream brings the limits on decompression.
    stream = ByteStream(path)
    source: Any = _Readable(stream.blocks())
    with tarfile.open(fileobj=source, mode="r|", tarinfo=_Member) as archive:
        for member in archive:
            unpacking.budget.spend(members=1)
            if member.isdir():
                continue
            content = archive.extractfile(member) if member.isreg() else None
            if content is None:
                unpacking.refused.append(f"{member.name!r} (no plain file)")
                continue
            unpacking.take(member.name, content.read)
    for _ in source.blocks:  # what tells whether all before it is what was packed stands at the end
        pass
    if stream.truncated:
        raise tarfile.ReadError(stream.warnings[-1])


def _unzip(path: Path, unpacking: _Unpacking) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            unpacking.budget.spend(members=1)
            if member.is_dir():
                continue
            mode = member.external_attr >> 16
            if stat.S_IFMT(mode) not in (0, stat.S_IFREG):
                unpacking.refused.append(f"{member.filename!r} (no plain file)")
                continue
            try:
                content: IO[bytes] = archive.open(member)
            except UNREADABLE as error:
                unpacking.unread.append(member.filename)
                unpacking.refused.append(f"{member.filename!r} ({unreadable(error)})")
                continue
            try:
                with content:
                    unpacking.take(member.filename, content.read, member.compress_size)
            except DAMAGE as error:
                unpacking.unread.append(member.filename)
                unpacking.refused.append(f"{member.filename!r} (damaged: {damage(error)})")
            except OSError as error:
                if error.errno is not None:  # of the disk; bzip2 has none
                    raise
                unpacking.unread.append(member.filename)
                unpacking.refused.append(f"{member.filename!r} (damaged: its compressed data is damaged)")


def _without(files: tuple[Path, ...], archives: list[Path]) -> tuple[Path, ...]:
    return tuple(file for file in files if file not in archives)


def _so_far(unpacking: _Unpacking) -> str:
    return "read up to there" if unpacking.written else AGAIN
