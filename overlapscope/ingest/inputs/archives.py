"""Unpack the members of archives that a reader recognises, for as long as they are read.

Archives are tar, plain or gzip, and zip, recognised by content. Only plain files are unpacked, into a private folder,
within one budget for all archives: members, bytes, and bytes for each byte of the archive. Messages show the name
`archive.tar.gz/member`. Archives inside archives are skipped.
"""

import os
import shutil
import stat
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Self

import msgspec
from msgspec.structs import replace

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.files.temporary_folder import locked_folder
from overlapscope.ingest.inputs.discovery import Inputs, Unpacked, discover
from overlapscope.ingest.parsing.gzip_stream import BLOCK_BYTES, MAX_RATIO, RATIO_GRACE_BYTES, ByteStream
from overlapscope.ingest.reader import HEAD_BYTES, ZIP_MAGIC, rank_from_path
from overlapscope.ingest.registry import find_reader, head_within
from overlapscope.timeline.run import Source
from overlapscope.timeline.store.run_directory import MANIFEST, RANK_ENTRY

FORMAT: Final = "archive"
MAX_MEMBERS: Final = 100_000
MAX_HEADER_BYTES: Final = 1 << 20
"""Longest accepted name, or list of properties, of a member."""
_DAMAGE: Final = (
    tarfile.TarError, zipfile.BadZipFile, zlib.error, EOFError, ValueError, OverflowError, IndexError, RuntimeError,
)  # fmt: skip
"""Exceptions of the standard library for archives that are cut, damaged, encrypted or packed in unknown ways."""
_UNPACK_IT: Final = "unpack the archive and name the folder"


@contextmanager
def unpack_among(inputs: Inputs, archives: list[Path], max_bytes: int, within: Path | None) -> Iterator[Unpacked]:
    """Unpack the `archives` among the inputs into a folder `within` another one, which is deleted at the end."""
    with locked_folder(within or Path(tempfile.gettempdir()), "overlapscope-unpacked-") as temporary:
        folders: dict[Path, Path] = {}
        notes: list[Source] = []
        files = [each for each in inputs.files if each not in archives]
        passed_over = [each for each in inputs.passed_over if each not in archives]
        budget = _Budget(members=MAX_MEMBERS, bytes=min(max_bytes, shutil.disk_usage(temporary).free // 2))
        for number, path in enumerate(archives):
            # The archive's own name may state a rank, as a folder's name may.
            folder = temporary.resolve() / str(number) / (path.name or "archive")
            folder.mkdir(parents=True)
            folders[folder] = path
            unpacking = _Unpacking(folder=folder, budget=budget)
            inside, note = _unpack(path, unpacking)
            if not (inside.files or note) and path in inputs.passed_over:
                inside = replace(inside, passed_over=(path,))  # not an archive of traces: a checkpoint, a wheel, ...
            elif not inside.files:
                note = note or "holds no file that can be read"
            files += inside.files
            passed_over += inside.passed_over
            if note:
                ranks = (rank_from_path(Path(path.name, each)) for each in unpacking.unread)
                unread = tuple(sorted({each for each in ranks if each is not None}))
                notes.append(Source(path=display_path(path), format=FORMAT, warnings=(note,), unread_ranks=unread))
        found = replace(inputs, files=tuple(files), passed_over=tuple(passed_over))
        yield Unpacked(inputs=found, folders=folders, notes=tuple(notes))


def _unpack(path: Path, unpacking: "_Unpacking") -> tuple[Inputs, str]:
    """Unpack one archive; return its files, and a note on what could not be read, "" if nothing."""
    nothing = Inputs(runs=(), files=(), passed_over=())
    if not hasattr(tarfile, "data_filter"):
        return nothing, f"archives are read by Python 3.11.4 or later: {_UNPACK_IT}"
    notes = []
    try:
        with open(path, "rb") as file:
            is_zip = file.read(4).startswith(ZIP_MAGIC)
            unpacking.packed_bytes = os.fstat(file.fileno()).st_size
        (_unzip if is_zip else _untar)(path, unpacking)
    except _DAMAGE as error:
        so_far = "read up to there" if unpacking.files else "copy or pack it again"
        notes.append(f"the archive is damaged: {_describe_damage(error)}; {so_far}")
    except OSError as error:
        notes.append(f"cannot be unpacked: {error.strerror or error}")
    except _BudgetError as error:
        notes.append(str(error))
    except InputError as error:
        notes.append(str(error).removeprefix(f"{display_path(path)}: "))
    if unpacking.refused:
        notes.append(f"{len(unpacking.refused)} members not read whole: {', '.join(unpacking.refused[:3])}")
    if unpacking.nested:
        nested = ", ".join(unpacking.nested[:3])
        notes.append(f"archives inside archives are not read: unpack {nested} and name the folder")
    found = discover([unpacking.folder]) if unpacking.files else nothing
    if found.runs:
        rest = "read only unpacked; the rest was read" if found.files else "read only unpacked: unpack it and name that"
        notes = [f"holds a run directory, which is {rest}"]
    passed_over = (*found.passed_over, *(unpacking.folder / each for each in unpacking.passed_over))
    return replace(found, runs=(), passed_over=passed_over), "; ".join(notes)


class _BudgetError(Exception):
    """A limit on unpacking was reached."""


class _Budget(msgspec.Struct):
    """The members and bytes that may still be unpacked, for all archives together."""

    members: int
    bytes: int

    def spend(self, *, members: int = 0, size: int = 0) -> None:
        self.members -= members
        self.bytes -= size
        if self.members < 0:
            raise _BudgetError(f"the archives hold more than {MAX_MEMBERS} members; read up to there")
        if self.bytes < 0:
            raise _BudgetError("the archives hold more than may be unpacked; unpack them yourself and name the folder")


class _Unpacking(msgspec.Struct):
    """One archive on its way into a folder."""

    folder: Path
    budget: _Budget
    packed_bytes: int = 0
    files: int = 0
    unpacked_bytes: int = 0
    passed_over: list[str] = []
    refused: list[str] = []
    """Members that were not read whole, each with the reason."""
    unread: list[str] = []
    """Names of members of which something could not be read."""
    nested: list[str] = []

    def refuse(self, name: str, why: str) -> None:
        self.refused.append(f"{name!r} ({why})")

    def take(self, name: str, read: Callable[[int], bytes]) -> None:
        """Write one member, if a reader recognises it; `read` returns its next bytes.

        A member cut short by damage is kept, because readers use its whole parts. Raises _BudgetError.
        """
        try:
            target = _safe_target(self.folder, name)
        except OSError as error:  # later Pythons look a name up, which may be too long
            self.refuse(name, str(error.strerror))
            return
        if target is None:
            self.refuse(name, "its name leads outside the archive")
            return
        inside = target.relative_to(self.folder)
        if any(part.startswith(".") for part in inside.parts):
            return
        block = b""
        while len(block) < HEAD_BYTES and (more := read(HEAD_BYTES - len(block))):
            block += more
        if not _is_wanted(target, block):
            (self.nested if head_within(target, block).is_archive else self.passed_over).append(str(inside))
            return
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            file = open(target, "wb")  # noqa: SIM115 - closed below; only the opening may be refused
        except OSError as error:  # a name that is too long, or that is both a folder's and a file's
            self.refuse(name, str(error.strerror))
            return
        self.files += 1
        with file:
            try:
                while block:
                    self._spend(len(block))
                    file.write(block)
                    block = read(BLOCK_BYTES)
            except (_BudgetError, InputError):
                self.files -= 1
                target.unlink(missing_ok=True)
                raise

    def _spend(self, size: int) -> None:
        self.budget.spend(size=size)
        self.unpacked_bytes += size
        if self.unpacked_bytes > max(RATIO_GRACE_BYTES, MAX_RATIO * self.packed_bytes):
            shutil.rmtree(self.folder)
            self.files = 1  # the caller subtracts this file, which is deleted too
            raise _BudgetError(
                f"expands more than {MAX_RATIO} times, like a decompression bomb; nothing of it is read: "
                "unpack it yourself if it is meant, and name the folder"
            )


def _safe_target(folder: Path, name: str) -> Path | None:
    """Return the path for a member; None for a name that leads outside the folder on this or another system.

    Raises OSError for a name that the file system refuses.
    """
    try:
        safe = tarfile.data_filter(tarfile.TarInfo(name), str(folder)).name
    except (tarfile.FilterError, ValueError):
        return None
    parts = Path(name).parts
    return None if safe != name or not parts or ".." in parts or "\\" in name or name[1:2] == ":" else folder / name


def _is_wanted(target: Path, beginning: bytes) -> bool:
    if not beginning.strip(b"\x00 \t\r\n"):
        return False  # readers accept a blank beginning, but here it is usually part of a checkpoint
    head = head_within(target, beginning)
    own = target.name in (MANIFEST, RANK_ENTRY) or target.suffix == ".parquet"
    return not head.is_archive and (own or find_reader(head) is not None)


class _DamagedHeaderError(ValueError):
    """A required header is damaged. Not a tarfile.HeaderError, after which the library would continue."""


class _Member(tarfile.TarInfo):
    """A tar header that raises where the library would treat damage as the end, and limits texts read into memory."""

    @classmethod
    def fromtarfile(cls, archive: tarfile.TarFile) -> Self:
        try:
            return super().fromtarfile(archive)
        except tarfile.EOFHeaderError:  # type: ignore[attr-defined]  # exists in Python, but not in its stubs
            raise
        except tarfile.HeaderError as error:
            cut = any(word in str(error) for word in ("empty", "truncated", "end of file"))
            raise _DamagedHeaderError("unexpected end of data" if cut else "a member's header is damaged") from error

    def _proc_member(self, archive: tarfile.TarFile) -> Any:  # what the library lets subclasses override
        texts = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK, tarfile.XHDTYPE, tarfile.XGLTYPE, b"X")
        if self.type in texts and self.size > MAX_HEADER_BYTES:
            raise _DamagedHeaderError("a member's name or properties are impossibly long")
        return super()._proc_member(archive)  # type: ignore[misc]  # exists in Python, but not in its stubs


def _untar(path: Path, unpacking: _Unpacking) -> None:
    stream = ByteStream(path)  # has limits of its own on decompression
    blocks = stream.blocks()
    source: Any = SimpleNamespace(read=lambda _: next(blocks, b""))
    with tarfile.open(fileobj=source, mode="r|", tarinfo=_Member) as archive:
        for member in archive:
            unpacking.budget.spend(members=1)
            content = archive.extractfile(member) if member.isreg() else None
            if content is not None:
                unpacking.take(member.name, content.read)
            elif not member.isdir():
                unpacking.refuse(member.name, "not a plain file")
    for _ in blocks:  # read to the end, where the gzip checksum is
        pass
    if stream.truncated:
        raise tarfile.ReadError(stream.warnings[-1])


def _unzip(path: Path, unpacking: _Unpacking) -> None:
    try:
        archive = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise zipfile.BadZipFile(
            "its list of members is missing or damaged, which a zip has at its end, as after a copy that broke off; "
            "`zip -FF` may mend it"
        ) from error
    with archive:
        for member in archive.infolist():
            unpacking.budget.spend(members=1)
            if member.is_dir():
                continue
            if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG):
                unpacking.refuse(member.filename, "not a plain file")
                continue
            try:
                # The library unpacks the other methods without a limit: 1 KB of bzip2 may need gigabytes of memory.
                if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
                    raise NotImplementedError
                with archive.open(member) as content:
                    unpacking.take(member.filename, content.read)
            except _DAMAGE as error:
                unpacking.unread.append(member.filename)
                how = "" if isinstance(error, RuntimeError) else "damaged: "
                unpacking.refuse(member.filename, how + _describe_damage(error))


def _describe_damage(error: Exception) -> str:
    """Return in plain words why an archive or a member cannot be read."""
    message = str(error).strip().split("\n")[0]
    if isinstance(error, RuntimeError):
        encrypted = "encrypted" in message or "password" in message
        return f"it is {'encrypted' if encrypted else 'packed by a method that is not supported'}: {_UNPACK_IT}"
    if isinstance(error, EOFError) or "unexpected end of data" in message or "truncated header" in message:
        return "it ends early"
    if isinstance(error, zlib.error):
        return "its compressed data is damaged"
    if "CRC" in message:
        return "its content does not match its checksum"
    return (message or type(error).__name__)[:200]
