"""Gzip data gives the same content and messages with either decompression library."""

import gzip
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from overlapscope.errors import InputError
from overlapscope.ingest.parsing import gzip_stream as bytestream
from overlapscope.ingest.parsing.gzip_stream import ByteStream

TEXT = b"".join(b'{"name": "aten::mm_%d", "ts": %d}, ' % (number % 97, number * number) for number in range(30_000))
FILES = 60
KEPT_BACK = 2


def odd_files() -> Iterator[tuple[str, bytes]]:
    whole = gzip.compress(TEXT, mtime=0)
    yield "whole", whole
    yield "nothing", gzip.compress(b"")
    yield "its magic alone", whole[:2]
    yield "three members", b"".join(map(gzip.compress, (TEXT[:9], b"", TEXT)))
    yield "a member behind padding", whole + bytes(300) + whole
    yield "a damaged member behind a whole one", whole + whole[:5000] + bytes(50) + whole[5050:]
    yield "a cut member behind a whole one", whole + whole[:-100]
    yield "a header behind a whole one", whole + whole[:10]
    yield "a wrong checksum", whole[:-8] + b"\x01" + whole[-7:]
    yield "a wrong length", whole[:-1] + b"\x01"
    chosen = random.Random(7)
    for number in range(FILES):
        at = chosen.randrange(len(whole))
        yield f"cut at {at}", whole[:at]
        damaged = bytearray(whole)
        damaged[at] ^= 1 << chosen.randrange(8)
        yield f"damaged at {at}", bytes(damaged) + (whole[:500] if number % 3 == 0 else b"")


def read(path: Path, sizes: list[int]) -> tuple[bytes, bool, list[str]]:
    """Return the content and how it ended; `sizes` gets the sizes of its blocks."""
    stream = ByteStream(path, progress=sizes.append)
    return b"".join(stream.blocks()), stream.truncated, stream.warnings


@pytest.mark.slow
def test_the_fast_library_gives_what_the_standard_one_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("isal", reason="isal is not installed")
    for what, packed in odd_files():
        path = tmp_path / "worker.json.gz"
        path.write_bytes(packed)
        sizes: list[int] = []
        found = read(path, sizes)
        with monkeypatch.context() as without:
            without.setattr(bytestream, "_fast_gzip", lambda: None)
            content, *how = read(path, [])
        assert list(found[1:]) == how, what
        # Before a cut the library keeps back up to two bytes that it has not decoded yet.
        short = KEPT_BACK if any("in the middle" in each for each in found[2]) else 0
        assert found[0] == content[: len(found[0])], what
        assert len(content) - len(found[0]) <= short, what
        assert sum(sizes) == len(found[0])
        if what == "whole":
            assert found == (TEXT, False, [])


def test_a_cut_file_is_decompressed_once_and_a_damaged_one_up_to_the_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("isal", reason="isal is not installed")
    packed = gzip.compress(TEXT, mtime=0)
    again: list[str] = []
    slowly = ByteStream._inflate
    monkeypatch.setattr(ByteStream, "_inflate", lambda self, raw: (again.append(self.path.name), slowly(self, raw))[1])
    for name, content in (
        ("cut", packed[: len(packed) // 2]),
        ("second cut", packed + packed[: len(packed) // 2]),
        ("damaged", packed[:9000] + bytes(50) + packed[9050:]),
    ):
        (tmp_path / name).write_bytes(content)
        found, truncated, _ = read(tmp_path / name, [])
        assert truncated, name
        assert len(found) > len(TEXT) // 10, name
    assert again == ["damaged"]


@pytest.mark.slow
@pytest.mark.parametrize("fast", [True, False])
def test_a_decompression_bomb_is_refused(fast: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not fast:
        monkeypatch.setattr(bytestream, "_fast_gzip", lambda: None)
    path = tmp_path / "worker.json.gz"
    path.write_bytes(gzip.compress(bytes(80 << 20), mtime=0))
    given: list[int] = []
    with pytest.raises(InputError, match="like a decompression bomb"):
        read(path, given)
    assert sum(given) < 70 << 20
