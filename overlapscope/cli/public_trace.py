"""A public recording of a multi-GPU job, fetched from where it was published: others' files do not travel with ours."""

import gzip
import hashlib
import http.client
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import msgspec

from overlapscope.display import list_some
from overlapscope.errors import InputError, UsageError
from overlapscope.files.atomic import atomic_file

TIMEOUT_SECONDS: Final = 30
_PIECE_BYTES: Final = 1 << 18


class PublishedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file as it was published, uncompressed."""

    name: str
    size_bytes: int
    sha256: str


class PublicTrace(msgspec.Struct, frozen=True, kw_only=True):
    """A recording in a public repository, at one commit."""

    title: str
    source: str
    licence: str
    address: str
    """Of the folder that has the files."""
    files: tuple[PublishedFile, ...]


MEGATRON_TP8: Final = PublicTrace(
    title="Megatron-LM, one forward pass, tensor parallel on eight A100",
    source="github.com/astra-sim/astra-sim",
    licence="MIT",
    address="https://raw.githubusercontent.com/astra-sim/astra-sim/ab5d3e629c9d28257cf9d2b367474f0cbfdf450e"
    "/my_test/inputs/workload/megatron-tp8/",
    files=(
    PublishedFile(name="megatron_kineto_0.json", size_bytes=3_714_432,
                  sha256="ee2fcdc4088695786bc1c539b4be22f1bf129546a2d35eba3513ab3ebfc75b4d"),
    PublishedFile(name="megatron_kineto_1.json", size_bytes=3_938_754,
                  sha256="383ac20ce208e2287d0291b6344c032b87d37c1dc4602ea78ae9748babe42586"),
    PublishedFile(name="megatron_kineto_2.json", size_bytes=3_904_928,
                  sha256="07cacb717712dda1d6e77edec35cfb59e31b435e1f7e06d538473e46473e6ce8"),
    PublishedFile(name="megatron_kineto_3.json", size_bytes=3_951_960,
                  sha256="5ed001be7efb773bf8ed22d6d2d2a6b2b4af64d9ee05dc59a5dd1e1c39959e17"),
    PublishedFile(name="megatron_kineto_4.json", size_bytes=3_963_116,
                  sha256="0ec3dbab79d3a5203b4eca635854608dcd9a54b8b5f155bae5455f86013f4229"),
    PublishedFile(name="megatron_kineto_5.json", size_bytes=3_866_106,
                  sha256="29eb4ec4096b96b91e3ad705bc24a3b41e9275414320db70cd5e8d2def35ca81"),
    PublishedFile(name="megatron_kineto_6.json", size_bytes=3_852_663,
                  sha256="8931fbdc1c4e332f1c9afc52810638ea41d1632763b5a5236098e73fb0933eb2"),
    PublishedFile(name="megatron_kineto_7.json", size_bytes=3_967_534,
                  sha256="6705da56f6f4cd5ac958cba17652dd4a2aee907f2aa4adf05992a4bc455d3dd4"),
    ),
)  # fmt: skip


def fetch(trace: PublicTrace, to: Path, say: Callable[[str], None], *, force: bool = False) -> list[Path]:
    """Return the files in a folder, compressed; fetch those that are not there. `say` is called with the progress.

    Raises UsageError where the folder is none, or holds anything else, which would be read with them (`force` replaces
    a file of the same name); InputError, in one line, where one cannot be had, is not the file that was published, or
    cannot be written.
    """
    places = {each: to / f"{each.name}.gz" for each in trace.files}
    if to.exists() and not to.is_dir():
        raise UsageError(f"{to} is not a folder; choose another one with -o")
    missing = [each for each, place in places.items() if not _is_there(place, each)]
    others = [places[each] for each in missing if places[each].exists()]
    if others and not force:
        raise UsageError(f"{others[0]} is another file; choose another folder with -o, or replace it with -f")
    if to.is_dir():
        known = {place.name for place in places.values()}
        foreign = sorted(each.name for each in to.iterdir() if each.name not in known and not each.name.startswith("."))
        if foreign:
            raise UsageError(f"{to} holds other files ({list_some(foreign, 3)}); choose another folder with -o")
    for number, each in enumerate(missing, 1):
        say(f"file {number} of {len(missing)}: {each.name}")
        content = _fetched(trace.address + each.name, each)
        try:
            to.mkdir(parents=True, exist_ok=True)
            with atomic_file(places[each], durable=False) as file:
                file.write(gzip.compress(content, 6, mtime=0))
        except OSError as error:
            raise InputError(f"{to}: cannot be written: {error.strerror or error}") from error
    return list(places.values())


def _is_there(place: Path, wanted: PublishedFile) -> bool:
    try:
        with gzip.open(place) as packed:
            return hashlib.sha256(packed.read(wanted.size_bytes + 1)).hexdigest() == wanted.sha256
    except (OSError, EOFError, zlib.error):
        return False


def _fetched(url: str, wanted: PublishedFile) -> bytes:
    """Return the content of a file, of which no more than its size is read."""
    host = urlsplit(url).hostname
    try:
        with urlopen(Request(url, headers={"Accept-Encoding": "gzip"}), timeout=TIMEOUT_SECONDS) as answer:
            content = _unpacked(answer, wanted.size_bytes + 1)
    except (OSError, http.client.HTTPException, zlib.error) as error:
        raise InputError(
            f"{wanted.name} cannot be fetched from {host} ({_reason(error)}); "
            "`overlapscope demo` without --public needs no network"
        ) from None
    if hashlib.sha256(content).hexdigest() != wanted.sha256:
        raise InputError(
            f"{wanted.name} from {host} is not the file that was published (SHA-256 differs): it was not kept; "
            "`overlapscope demo` without --public needs no network"
        )
    return content


def _reason(error: Exception) -> str:
    if isinstance(error, HTTPError):
        error.close()  # it holds the connection, and its answer
        return f"status {error.code}"
    inner = getattr(error, "reason", error)
    return getattr(inner, "strerror", None) or str(inner) or type(inner).__name__


def _unpacked(answer: http.client.HTTPResponse, most_bytes: int) -> bytes:
    """Return at most so many bytes of an answer, which may be compressed on its way."""
    unpack = zlib.decompressobj(wbits=31) if answer.headers.get("Content-Encoding") == "gzip" else None
    found = bytearray()
    while len(found) < most_bytes and (piece := answer.read(_PIECE_BYTES)):
        found += piece if unpack is None else unpack.decompress(piece, most_bytes - len(found))
    return bytes(found[:most_bytes])
