"""Archives among the inputs are read like folders, safely, and leave no files."""

import contextlib
import gzip
import io
import os
import re
import stat
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st

import overlapscope
from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.ingest.inputs import archives, unpacked
from overlapscope.ingest.parsing import gzip_stream
from tests.conftest import needs_archives, shared_file
from tests.property.examples import examples
from tests.support.writers.kineto import distributed, training, write, write_job

pytestmark = [pytest.mark.usefixtures("temporary_folder"), needs_archives]
Packer = Callable[[Path, dict[str, bytes]], Path]


def trace(rank: int) -> bytes:
    return write(training(), metadata=distributed(rank))


def tarred(path: Path, members: dict[str, bytes], mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def plain(path: Path, members: dict[str, bytes]) -> Path:
    return tarred(path, members, "w:")


def zipped(path: Path, members: dict[str, bytes]) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


PACKERS = {"tar.gz": tarred, "tar": plain, "zip": zipped}


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACKERS)
def test_an_archive_is_read_like_a_folder(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    members = {
        "a/rank0.json": trace(0),
        "a/rank1.json.gz": gzip.compress(trace(1)),
        "notes.txt": b"hello",
        "a/.hidden": b"{}",
    }
    for name, content in members.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    archive = PACKERS[kind](tmp_path / f"traces.{kind}", members)
    packed, loose = overlapscope.load(archive), overlapscope.load(folder)
    assert packed.analysis().ranks == loose.analysis().ranks
    assert packed.analysis().collectives == loose.analysis().collectives
    assert [source.path for source in packed.sources] == [f"{archive}/a/rank0.json", f"{archive}/a/rank1.json.gz"]
    assert packed.table("recordings", 0)["source"].tolist() == [f"{archive}/a/rank0.json"]
    assert packed.sources[0].warnings == loose.sources[0].warnings


def test_an_archive_in_a_folder_is_opened_whatever_its_name(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "folder", 2)
    (folder / "rank1.json").unlink()
    tarred(folder / "download", {"x/rank1.json": trace(1)})
    run = overlapscope.load(folder)
    assert run.ranks == [0, 1]
    assert sorted(source.path for source in run.sources) == [f"{folder}/download/x/rank1.json", f"{folder}/rank0.json"]


def test_rank_option_names_a_member(tmp_path: Path) -> None:
    bare = write(training(), metadata={})
    archive = tarred(tmp_path / "t.tar.gz", {"a/one.json": bare, "a/two.json": trace(1)})
    assert overlapscope.load(archive, ranks={"one.json": 5}).ranks == [1, 5]


def test_a_folder_of_the_profiler_keeps_its_neighbours(tmp_path: Path) -> None:
    source = shared_file("ascend/msinsight_text_level0/rank1_ascend_pt")
    members = {f"job/{path.relative_to(source)}": path.read_bytes() for path in source.rglob("*") if path.is_file()}
    run = overlapscope.load(tarred(tmp_path / "profile.tgz", members))
    assert run.ranks == [1]
    assert {len(each.warnings) for each in run.sources} == {0}


ESCAPES = ["../evil.json", "/evil.json", "a/../../evil.json", "a/..", "C:evil.json", "a\\..\\evil.json"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", PACKERS)
@pytest.mark.parametrize("name", [*ESCAPES, "x" * 300 + ".json"])
def test_no_member_leads_out(kind: str, name: str, tmp_path: Path) -> None:
    archive = PACKERS[kind](tmp_path / f"t.{kind}", {name: trace(1), "rank0.json": trace(0)})
    before = sorted(tmp_path.glob("*"))
    with unpacked([archive]) as found:
        inside = [path for folder in found.folders for path in folder.parent.parent.rglob("*") if path.is_file()]
        assert [path.name for path in inside] == ["rank0.json"]
        assert sorted(tmp_path.glob("*")) == before
    run = overlapscope.load(archive)
    assert run.ranks == [0]
    assert any("left out" in w or "not read whole" in w for source in run.sources for w in source.warnings)


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE])
def test_links_and_devices_are_not_made(kind: bytes, tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w") as archive:
        odd = tarfile.TarInfo("rank1.json")
        odd.type, odd.linkname = kind, "/etc/passwd"
        archive.addfile(odd)
    tarred(path, {"rank1.json/inner.json": trace(1), "rank0.json": trace(0)}, "a:")
    with unpacked([path]) as found:
        made = [each for folder in found.folders for each in folder.rglob("*")]
        assert all(stat.S_ISREG(os.lstat(each).st_mode) or stat.S_ISDIR(os.lstat(each).st_mode) for each in made)
        assert found.notes[0].warnings[0].startswith("1 members not read whole: 'rank1.json'")


def test_a_symbolic_link_in_a_zip_is_not_made(tmp_path: Path) -> None:
    path = tmp_path / "t.zip"
    with zipfile.ZipFile(path, "w") as archive:
        link = zipfile.ZipInfo("rank1.json")
        link.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(link, "/etc/passwd")
        archive.writestr("rank0.json", trace(0))
    with unpacked([path]) as found:
        assert [file.name for file in found.inputs.files] == ["rank0.json"]
        assert "not a plain file" in found.notes[0].warnings[0]


def test_only_members_that_a_reader_knows_are_unpacked(tmp_path: Path) -> None:
    members = {"model/data.pkl": b"\x80\x02" + b"x" * 1000, "model/data/0": bytes(100_000), "log.txt": b"text"}
    archive = zipped(tmp_path / "model.pt", members)
    with unpacked([archive]) as found:
        assert found.inputs.files == ()
        assert not [path for folder in found.folders for path in folder.rglob("*") if path.is_file()]
    with pytest.raises(InputError, match="none of the 3 files is a trace"):
        overlapscope.load(archive)


def test_a_checkpoint_beside_traces_is_passed_over(tmp_path: Path) -> None:
    folder = write_job(tmp_path / "job", 1)
    zipped(folder / "model.pt", {"model/data.pkl": b"\x80\x02"})
    run = overlapscope.load(folder)
    assert [source.path for source in run.sources] == [str(folder / "rank0.json")]
    assert any("no known log: 1 (model.pt)" in warning for warning in run.sources[0].warnings)


def test_members_and_bytes_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = tarred(tmp_path / "t.tar.gz", {f"rank{rank}.json": trace(rank) for rank in range(5)})
    monkeypatch.setattr(archives, "MAX_MEMBERS", 3)
    with unpacked([archive]) as found:
        assert len(found.inputs.files) == 3
        assert "more than 3 members" in found.notes[0].warnings[0]
    monkeypatch.setattr(archives, "MAX_MEMBERS", 100)
    with unpacked([archive], max_bytes=2 * len(trace(0)) + 10) as found:
        assert len(found.inputs.files) == 2
        assert "more than may be unpacked" in found.notes[0].warnings[0]


@pytest.mark.parametrize("kind", ["tar.gz", "zip"])
@pytest.mark.parametrize(("members", "size"), [(1, 20 << 20), (50, 1 << 19)], ids=["one", "many small"])
def test_bombs_are_refused_as_one(
    kind: str, members: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of many, each stays below the limit for one member; 110 in a zip once expanded to 2.5 GB without an error."""
    for module in (archives, gzip_stream):
        monkeypatch.setattr(module, "RATIO_GRACE_BYTES", 1 << 20)
    bomb = b'{"traceEvents": [' + b" " * size
    archive = PACKERS[kind](tmp_path / f"t.{kind}", {f"rank{number}.json": bomb for number in range(members)})
    with unpacked([archive]) as found:
        (note,) = found.notes
        assert "expands more than 300 times, like a decompression bomb" in note.warnings[0]
        left = sum(file.stat().st_size for folder in found.folders for file in folder.rglob("*") if file.is_file())
        assert left <= (0 if kind == "zip" else 300 * archive.stat().st_size)


def test_a_sparse_member_is_no_way_around_the_budget(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(archives, "RATIO_GRACE_BYTES", 1 << 20)
    with open(tmp_path / "rank0.json", "wb") as file:
        file.write(b'{"traceEvents": [')
        file.truncate(64 << 20)
    if subprocess.run(["tar", "--sparse", "-cf", "t.tar", "rank0.json"], cwd=tmp_path, check=False).returncode:
        pytest.skip("tar packs no sparse files")
    assert (tmp_path / "t.tar").stat().st_size < 1 << 16
    with unpacked([tmp_path / "t.tar"]) as found:
        assert found.inputs.files == ()
        assert "like a decompression bomb; nothing of it is read" in found.notes[0].warnings[0]


def test_a_python_without_the_librarys_own_checks_refuses_archives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    archive = plain(tmp_path / "t.tar", {"rank0.json": trace(0)})
    monkeypatch.delattr(tarfile, "data_filter")
    assert main(["analyze", str(archive)]) == 3
    message = "archives are read by Python 3.11.4 or later: unpack the archive and name the folder"
    assert capsys.readouterr().err == f"overlapscope analyze: {archive}: {message}\n"


def test_an_archive_that_goes_before_it_is_unpacked_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_job(tmp_path / "job", 1)
    archive = plain(folder / "t.tar", {"rank1.json": trace(1)})
    unpack = archives.unpack_among

    def gone_before(*args: Any) -> Any:
        archive.unlink()
        return unpack(*args)

    monkeypatch.setattr(archives, "unpack_among", gone_before)
    run = overlapscope.load(folder)
    assert run.ranks == [0]
    assert ("cannot be unpacked: No such file or directory",) in [source.warnings for source in run.sources]


def test_an_endless_member_name_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "t.tar"
    with tarfile.open(path, "w", format=tarfile.PAX_FORMAT) as archive:
        info = tarfile.TarInfo("rank0.json")
        info.pax_headers = {"comment": "x" * (2 << 20)}
        archive.addfile(info)
    with unpacked([path]) as found:
        assert "impossibly long" in found.notes[0].warnings[0]


@pytest.mark.parametrize("kind", PACKERS)
def test_a_cut_archive_gives_what_is_whole(kind: str, tmp_path: Path) -> None:
    members = {f"rank{rank}.json.gz": gzip.compress(trace(rank)) for rank in range(4)}
    content = PACKERS[kind](tmp_path / f"t.{kind}", members).read_bytes()
    (tmp_path / "cut").write_bytes(content[: len(content) * 2 // 3])
    if kind == "zip":  # its directory stands at the end
        with pytest.raises(
            InputError, match=r"cut: the archive is damaged: its list of members is missing .*`zip -FF`"
        ):
            overlapscope.load(tmp_path / "cut")
        return
    run = overlapscope.load(tmp_path / "cut")
    assert run.ranks[:2] == [0, 1]
    assert len(run.ranks) < 4
    assert any("damaged" in warning for source in run.sources for warning in source.warnings)


@pytest.mark.parametrize(
    ("damage", "ranks", "why"),
    [
        (lambda tar: tar[: tar.rindex(b"rank2.json")], [0, 1], "it ends early"),
        (lambda tar: tar[: tar.rindex(b"rank2.json") + 100], [0, 1], "it ends early"),
        (lambda tar: tar.replace(b"rank1.json", b"rank0.json"), [0], "a member's header is damaged"),
    ],
    ids=["cut between members", "cut in a header", "a header's checksum is wrong"],
)
def test_a_tar_that_is_cut_or_damaged_is_read_up_to_there(
    damage: Callable[[bytes], bytes], ranks: list[int], why: str, tmp_path: Path
) -> None:
    content = plain(tmp_path / "t.tar", {f"rank{rank}.json": trace(rank) for rank in range(3)}).read_bytes()
    (tmp_path / "damaged.tar").write_bytes(damage(content))
    run = overlapscope.load(tmp_path / "damaged.tar")
    assert run.ranks == ranks
    assert f"the archive is damaged: {why}; read up to there" in run.sources[-1].warnings


def test_a_tar_that_is_cut_behind_a_long_name_is_read_up_to_there(tmp_path: Path) -> None:
    content = plain(tmp_path / "t.tar", {"rank0.json": trace(0), f"{'x' * 120}/rank1.json": trace(1)}).read_bytes()
    name_end = (content.index(b"rank1.json") // tarfile.BLOCKSIZE + 1) * tarfile.BLOCKSIZE
    (tmp_path / "damaged.tar").write_bytes(content[:name_end])
    run = overlapscope.load(tmp_path / "damaged.tar")
    assert run.ranks == [0]
    assert "the archive is damaged: it ends early; read up to there" in run.sources[-1].warnings


def test_a_checksum_behind_the_last_member_is_looked_at(tmp_path: Path) -> None:
    packed = bytearray(tarred(tmp_path / "t.tar.gz", {"rank0.json": trace(0)}).read_bytes())
    packed[-5] ^= 1
    (tmp_path / "wrong.tar.gz").write_bytes(packed)
    run = overlapscope.load(tmp_path / "wrong.tar.gz")
    assert any("does not match its own checksum" in warning for warning in run.sources[-1].warnings)


def test_a_damaged_member_of_a_zip_costs_itself_and_is_reported_in_our_words(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "t.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        for rank in range(2):
            archive.writestr(f"rank{rank}.json", trace(rank))
        begin, end = (each.header_offset for each in archive.infolist())
    content = bytearray((tmp_path / "t.zip").read_bytes())
    for at in range((begin + end) // 2, (begin + end) // 2 + 40):
        content[at] ^= 0x5A
    (tmp_path / "t.zip").write_bytes(content)
    run = overlapscope.load(tmp_path / "t.zip")
    assert 1 in run.ranks
    warnings = " ".join(warning for source in run.sources for warning in source.warnings)
    assert re.search(r"'rank0.json' \(damaged: (its compressed data is|it ends early|its content does not)", warnings)
    assert "Error -" not in warnings


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_that_would_be_unpacked_without_a_limit_on_memory_is_refused_in_one_line(
    method: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.zip"
    with zipfile.ZipFile(path, "w", method) as archive:
        archive.writestr("rank0.json", trace(0))
    assert main(["analyze", str(path)]) == 3
    message = (
        "1 members not read whole: 'rank0.json' (it is packed by a method that is not supported: unpack the archive"
    )
    assert capsys.readouterr().err == f"overlapscope analyze: {path}: {message} and name the folder)\n"


def test_an_encrypted_member_costs_itself(tmp_path: Path) -> None:
    path = zipped(tmp_path / "t.zip", {"rank0.json": trace(0), "rank1.json": trace(1)})
    content = bytearray(path.read_bytes())
    at = content.index(b"PK\x01\x02")
    content[at + 8] |= 1  # the flag of the first member, in the directory
    path.write_bytes(bytes(content))
    run = overlapscope.load(path)
    assert run.ranks == [1]
    message = "1 members not read whole: 'rank0.json' (it is encrypted: unpack the archive and name the folder)"
    assert (message,) in [source.warnings for source in run.sources]


def test_a_folders_name_that_is_also_a_files_costs_that_member(tmp_path: Path) -> None:
    archive = tarred(tmp_path / "t.tar.gz", {"rank0.json": trace(0), "rank0.json/rank1.json": trace(1)})
    run = overlapscope.load(archive)
    assert run.ranks == [0]


def test_archives_inside_archives_are_passed_over(tmp_path: Path) -> None:
    inner = tarred(tmp_path / "inner.tar.gz", {"rank1.json": trace(1)}).read_bytes()
    archive = tarred(tmp_path / "t.tar.gz", {"rank0.json": trace(0), "inner.tar.gz": inner})
    run = overlapscope.load(archive)
    assert run.ranks == [0]
    message = "archives inside archives are not read: unpack inner.tar.gz and name the folder"
    assert (message,) in [source.warnings for source in run.sources]
    with pytest.raises(InputError, match=message):
        overlapscope.load(tarred(tmp_path / "only.tar", {"inner.tar.gz": inner}))


def test_a_run_directory_in_an_archive_is_named(tmp_path: Path) -> None:
    (tmp_path / "rank0.json").write_bytes(trace(0))
    overlapscope.load(tmp_path / "rank0.json").save(tmp_path / "run")
    members = {
        f"run/{p.relative_to(tmp_path / 'run')}": p.read_bytes() for p in (tmp_path / "run").rglob("*") if p.is_file()
    }
    with pytest.raises(InputError, match="run directory"):
        overlapscope.load(tarred(tmp_path / "t.tar.gz", members))


def test_an_error_names_the_member_on_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    archive = tarred(tmp_path / "t.tar.gz", {"a/broken.json": b'{"traceEvents": []}'})
    assert main(["analyze", str(archive)]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert f"{archive}/a/broken.json" in lines[0]


@pytest.mark.slow
@examples(120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
@pytest.mark.parametrize("kind", PACKERS)
def test_damage_ends_in_a_run_or_an_input_error(kind: str, data: st.DataObject, tmp_path: Path) -> None:
    path = tmp_path / f"good.{kind}"
    if not path.exists():
        PACKERS[kind](path, {"rank0.json": b'{"traceEvents": [{"ph": "X"}]}', "a/rank1.json": trace(1)[:3000]})
    content = bytearray(path.read_bytes())
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    damaged = tmp_path / f"damaged.{kind}"
    damaged.write_bytes(bytes(content))
    with contextlib.suppress(InputError):
        overlapscope.load(damaged)
