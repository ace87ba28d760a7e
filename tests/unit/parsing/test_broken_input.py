"""Broken files: whole parts are kept, damaged parts counted and reported, and no file causes a traceback."""

import gzip
import json
import os
import random
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

import overlapscope
from overlapscope.cli.main import main
from overlapscope.errors import InputError
from tests.support.writers.kineto import (
    BACKWARD,
    GEMM,
    MS,
    NCCL_KERNEL,
    PROCESS,
    TORCH_2024,
    US,
    annotation,
    assemble,
    collective_args,
    distributed,
    event_texts,
    kernel,
    launch,
    op,
    training,
    write,
)

Document = dict[str, Any]
Analyze = Callable[..., Document]
at_every_so_many_bytes = pytest.mark.parametrize(
    "every", [47, pytest.param(5, marks=pytest.mark.slow), pytest.param(1, marks=pytest.mark.long)]
)
"""Files are cut at few bytes where each change is tested, at all in long runs."""
METADATA = distributed(0)
_DEVICE = [event for event in training() if event.process == 0 and event.phase == "X"]
_HOST = [event for event in training() if event not in _DEVICE]
EVENTS = [*_DEVICE[:4], *_HOST, *_DEVICE[4:]]
"""Device work first and last, so that a neighbour lost to a broken event changes the figures."""
TEXTS = event_texts(EVENTS)
BETWEEN = 2
POSITIONS = [
    pytest.param(0, id="first", marks=pytest.mark.slow),
    pytest.param(BETWEEN, id="between kernels", marks=pytest.mark.slow),
    pytest.param(len(TEXTS), id="last"),
]


def text_of(victim: bytes, position: int = BETWEEN) -> bytes:
    return assemble([*TEXTS[:position], victim, *TEXTS[position:]], metadata=METADATA)


def victim(**fields: str) -> bytes:
    """A kernel during the last fill, of given JSON texts."""
    start_us = TORCH_2024.start_us + 17_650
    usual = {"ph": '"X"', "cat": '"kernel"', "name": f'"{GEMM}"', "pid": "0", "tid": "7", "ts": f"{start_us}.000"}
    usual |= {"dur": "1.000", "args": '{"stream": 7}'} | fields
    return b"{" + ",".join(f'"{key}":{value}' for key, value in usual.items() if value).encode() + b"}"


def harmless(name: bytes = b'"aten::victim"', args: bytes = b"{}") -> bytes:
    """A host operation, which changes no figure."""
    head = b'{"ph":"X","cat":"cpu_op","name":' + name + b',"pid":4711,"tid":4711,"ts":'
    return head + f"{TORCH_2024.start_us}.500".encode() + b',"dur":1.000,"args":' + args + b"}"


def placed(tmp_path: Path, content: bytes, name: str = "worker.json") -> Path:
    folder = tmp_path / "traces"
    folder.mkdir(exist_ok=True)
    path = folder / name
    path.write_bytes(content)
    return path


def read(path: Path, capsys: pytest.CaptureFixture[str], *, shown_too: bool = True) -> Document:
    """Return the analysis, read through the library and, if asked, through the command line, which must agree."""
    analysis: Document = json.loads(msgspec.json.encode(overlapscope.load(path).analysis()))
    if not shown_too:
        return analysis
    assert main(["analyze", str(path), "--json"]) == 0
    shown = capsys.readouterr()
    assert "Traceback" not in shown.err
    assert json.loads(shown.out) == analysis
    return analysis


@pytest.fixture
def analyzed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Analyze:
    """Return a function from the content of a file, and its name, to the analysis."""
    return lambda content, name="worker.json", **options: read(placed(tmp_path, content, name), capsys, **options)


def refused(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """The one line with which both ways of reading refuse the path."""
    with pytest.raises(InputError) as caught:
        overlapscope.load(path)
    assert main(["analyze", str(path), "--json"]) == 3
    shown = capsys.readouterr()
    assert shown.out == ""
    lines = shown.err.splitlines()
    assert len(lines) == 1
    assert str(path) in lines[0]
    assert " ".join(str(caught.value).split()) in lines[0]
    return lines[0]


def check_sane(document: Document) -> None:
    for rank in document["ranks"]:
        for each in (rank["whole"], *rank["steps"]):
            if each["window_ns"] is not None:
                names = ("overlapped_ns", "exposed_comm_ns", "compute_only_ns", "copy_only_ns", "idle_ns")
                assert all(each[name] >= 0 for name in names)
                assert sum(each[name] for name in names) == each["window_ns"]


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """The analysis of the undamaged trace."""
    path = tmp_path_factory.mktemp("sound") / "worker.json"
    path.write_bytes(assemble(TEXTS, metadata=METADATA))
    analysis: Document = msgspec.to_builtins(overlapscope.load(path).analysis())
    source = analysis["sources"][0]
    assert (source["events"], source["repaired"], source["dropped"], source["truncated"]) == (len(TEXTS), 0, 0, False)
    assert source["warnings"] == []
    return analysis


def check_figures(document: Document, sound: Document) -> None:
    assert document["ranks"] == sound["ranks"]
    assert document["collectives"] == sound["collectives"]


BAREWORDS = ("Infinity", "-Infinity", "NaN", "N/A", "inf", "-inf", "nan", "-nan", "undefined", "None")
MENDABLE = {
    **{f"{word} as a value": harmless(args=f'{{"bandwidth": {word}, "b": 1}}'.encode()) for word in BAREWORDS},
    **{f"{word} as the last value": harmless(args=f'{{"bandwidth": {word}}}'.encode()) for word in BAREWORDS},
    **{f"{word} in a list": harmless(args=f'{{"dims": [[1, {word}], [{word}]]}}'.encode()) for word in BAREWORDS},
    "bareword beside a string that holds one": harmless(args=b'{"a": "x: NaN, y", "b": NaN}'),
    "raw control characters in the name": harmless(b'"aten::\x01vic\ntim\t\x1f"'),
    "raw control characters in args": harmless(args=b'{"file": "a\x00b\r\n"}'),
    "control characters between tokens": harmless(args=b'{\x01"a"\x02:\x0c1}'),
    "invalid UTF-8 in the name": harmless(b'"aten::\xff\xfevictim"'),
    "invalid UTF-8 in args": harmless(args=b'{"module": "caf\xe9"}'),
    "overlong UTF-8 in the name": harmless(b'"aten::\xc0\xafvictim"'),
    "UTF-8 cut off at the closing quote": harmless(b'"aten::victim\xe2\x82"'),
    "lone surrogate in the name": harmless(b'"aten::\\ud800victim"'),
    "quotes in the name": harmless(b'"void f<"a">(int)"'),
    "quotes with commas in the name": harmless(b'"void f("a", "b")"'),
    "quotes with a colon in the name": harmless(b'"void f("a": "b")"'),
    "quotes in args": harmless(args=b'{"stack": "lambda "x": 1", "b": [1]}'),
    "a quote and a bracket in the name": harmless(b'"f<"]>"', args=b'{"dims": [[64, 64], [1]], "b": "]"}'),
    "quotes and a bareword": harmless(b'"void f<"a">(int)"', args=b'{"bandwidth": Infinity}'),
    "quotes and invalid UTF-8": harmless(b'"void f<"\xff">(int)"'),
}
LOST = {
    "null": b"null",
    "a number": b"5",
    "a string": b'"event"',
    "true": b"true",
    "a list": b"[1, 2]",
    "a list of lists": b"[[1], []]",
    "a list of objects": b'[{"a": 1}, {"b": 2}]',
    "a list of events": b'[{"ph": "X"}, {"ph": "X"}]',
    "an unknown bareword": harmless(args=b'{"a": foo}'),
    "a MSVC infinity": harmless(args=b'{"a": 1.#INF}'),
    "a missing opening quote": harmless(b'aten::victim"'),
    "a missing closing quote": harmless(b'"aten::victim'),
    "a missing colon": harmless(args=b'{"a" 1}'),
    "a missing value": harmless(args=b'{"a": }'),
    "a missing closing brace of args": harmless()[:-1],
    "a bracket too many": harmless(args=b'{"a": [1]]}'),
    "a bracket too few": harmless(args=b'{"a": [1}'),
    "quotes with braces in the name": harmless(b'"f<{"a"},{"b"}>"'),
    "quotes with braces in the name, lists in args": harmless(b'"f<{"a"},{"b"}>"', args=b'{"dims": [[64, 64], [1]]}'),
    "a quote and a closed array in the name": harmless(b'"f<"}],"a":[{"', args=b'{"dims": [[64, 64], [1]]}'),
    "zeros where a block was never written": harmless()[:40] + b"\0" * 200 + harmless()[-20:],
}


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("broken", MENDABLE.values(), ids=MENDABLE.keys())
def test_a_mendable_event_is_mended_and_counted(
    broken: bytes, position: int, sound: Document, analyzed: Analyze
) -> None:
    document = analyzed(text_of(broken, position), shown_too=position == BETWEEN)
    source = document["sources"][0]
    assert (source["events"], source["repaired"], source["dropped"]) == (len(TEXTS) + 1, 1, 0)
    assert source["truncated"] is False
    check_figures(document, sound)
    assert any(finding["id"].startswith("damaged_source") for finding in document["findings"])


@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("broken", LOST.values(), ids=LOST.keys())
def test_an_event_beyond_repair_costs_only_itself(
    broken: bytes, position: int, sound: Document, analyzed: Analyze
) -> None:
    document = analyzed(text_of(broken, position), shown_too=position == BETWEEN)
    source = document["sources"][0]
    check_figures(document, sound)
    assert source["truncated"] is False
    # What was lost may be counted as one event or as the pieces it fell into; whole events are all there.
    assert source["dropped"] >= 1
    assert source["events"] >= len(TEXTS)
    assert document["run"]["world_size"] == 2


@pytest.mark.slow
@pytest.mark.parametrize("position", POSITIONS)
@pytest.mark.parametrize("between", [b"", b" ", b"\n", b"\0\0\0"], ids=["nothing", "blank", "newline", "zeros"])
def test_an_empty_place_between_events_costs_none(
    between: bytes, position: int, sound: Document, analyzed: Analyze
) -> None:
    document = analyzed(text_of(between, position))
    assert document["sources"][0]["events"] == len(TEXTS)
    assert document["sources"][0]["truncated"] is False
    check_figures(document, sound)


def test_a_missing_comma_between_events_costs_none(sound: Document, analyzed: Analyze) -> None:
    glued = [*TEXTS[:1], TEXTS[1] + b"\n" + TEXTS[2], *TEXTS[3:]]
    document = analyzed(assemble(glued, metadata=METADATA))
    check_figures(document, sound)


@pytest.mark.slow
@pytest.mark.parametrize("array", [False, True])
@pytest.mark.parametrize("tail", [b",", b",\n", b" , \n  "])
def test_a_trailing_comma_costs_no_event(tail: bytes, array: bool, sound: Document, analyzed: Analyze) -> None:
    text = assemble([*TEXTS[:-1], TEXTS[-1] + tail], metadata=METADATA, array=array)
    document = analyzed(text, "rank0.json")
    source = document["sources"][0]
    assert (source["events"], source["dropped"], source["truncated"]) == (len(TEXTS), 0, False)
    assert [rank["steps"] for rank in document["ranks"]] == [rank["steps"] for rank in sound["ranks"]]


@pytest.mark.slow
@pytest.mark.parametrize("ending", [b"", b",", b",\n", b"\n", b"\0" * 512, b",\0\0"])
def test_an_array_that_was_never_closed_keeps_every_event(ending: bytes, analyzed: Analyze) -> None:
    whole = assemble(TEXTS, array=True)
    document = analyzed(whole[:-1] + ending, "rank0.json")
    source = document["sources"][0]
    assert (source["events"], source["dropped"]) == (len(TEXTS), 0)
    reference = analyzed(whole, "rank0.json")
    assert [rank["whole"] for rank in document["ranks"]] == [rank["whole"] for rank in reference["ranks"]]


@pytest.mark.parametrize("ending", [b"\0" * 4096, b"\n\n  ", b"\x1a"])
def test_padding_behind_a_whole_trace_costs_nothing(ending: bytes, sound: Document, analyzed: Analyze) -> None:
    document = analyzed(assemble(TEXTS, metadata=METADATA) + ending)
    check_figures(document, sound)
    assert document["sources"][0]["events"] == len(TEXTS)


def small_trace(*, metadata_after: bool = False) -> tuple[bytes, list[int]]:
    """Return a trace of a few events and the position after each."""
    events = [
        launch(1 * MS, 5),
        kernel(GEMM, 2 * MS, MS, correlation=5),
        op("aten::mm", 3 * MS, 10 * US, args={"Input Dims": [[64, 64], [64, 64]], "Concrete Inputs": ["", "a},{b"]}),
        kernel(NCCL_KERNEL, 2_500 * US, MS, stream=20, args=collective_args()),
        annotation("last", 4 * MS, 10 * US),
    ]
    text = write(events, metadata=METADATA, metadata_after=metadata_after)
    ends, at = [], 0
    for each in event_texts(events):
        at = text.index(each, at) + len(each)
        ends.append(at)
    return text, ends


def events_begin(text: bytes) -> int:
    return text.index(b'"traceEvents": [') + len(b'"traceEvents": [')


@at_every_so_many_bytes
def test_a_file_cut_at_any_byte_keeps_every_whole_event(every: int, tmp_path: Path) -> None:
    text, ends = small_trace()
    for cut in range(events_begin(text), ends[-1] + 1, every):
        path = placed(tmp_path, text[:cut])
        whole = sum(end <= cut for end in ends)
        rest = text[max([end for end in ends if end <= cut], default=events_begin(text)) : cut]
        if whole < 2:  # no device span yet
            with pytest.raises(InputError):
                overlapscope.load(path)
            continue
        run = overlapscope.load(path)
        source = run.sources[0]
        assert source.events == whole, cut
        assert source.truncated, cut
        assert source.repaired == 0, cut
        assert source.dropped == bool(rest.strip(b", ")), cut
        assert len(run.table("spans", 0)) == 1 + (whole > 3), cut
        assert any("ends in the middle" in warning for warning in source.warnings), cut


@pytest.mark.slow
def test_a_file_cut_anywhere_before_its_events_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text, _ = small_trace()
    for cut in range(0, events_begin(text), 5):
        refused(placed(tmp_path, text[:cut]), capsys)


@at_every_so_many_bytes
def test_a_file_cut_behind_its_events_keeps_them_all(every: int, tmp_path: Path, analyzed: Analyze) -> None:
    text, ends = small_trace(metadata_after=True)
    whole = analyzed(text, "rank0.json")
    for cut in range(ends[-1] + 1, len(text), every):
        run = overlapscope.load(placed(tmp_path, text[:cut], "rank0.json"))
        source = run.sources[0]
        assert (source.events, source.repaired, source.dropped) == (len(ends), 0, 0), cut
        assert msgspec.to_builtins(run.analysis())["ranks"] == whole["ranks"], cut
        if text[ends[-1] + 1 : cut].strip(b"]} ,"):
            assert source.warnings, cut


@pytest.mark.slow
@pytest.mark.parametrize("cut", [3, 700, 1500])
def test_a_cut_file_is_reported_on_the_command_line(
    cut: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = placed(tmp_path, assemble(TEXTS, metadata=METADATA)[:-cut])
    source = read(path, capsys)["sources"][0]
    assert source["truncated"] is True
    assert source["events"] < len(TEXTS) + (cut == 3)
    assert main(["analyze", str(path)]) == 0
    assert "ends in the middle" in capsys.readouterr().err


@pytest.mark.slow
def test_gzip_cut_at_any_byte_keeps_every_event_before_the_cut(tmp_path: Path) -> None:
    text, ends = small_trace()
    packed = gzip.compress(text, mtime=0)
    loaded = 0
    for cut in range(len(packed)):
        path = placed(tmp_path, packed[:cut], "worker.json.gz")
        unpacked = zlib.decompressobj(wbits=31).decompress(packed[:cut])
        assert text.startswith(unpacked)
        whole = sum(end <= len(unpacked) for end in ends)
        if whole < 2:
            with pytest.raises(InputError):
                overlapscope.load(path)
            continue
        loaded += 1
        source = overlapscope.load(path).sources[0]
        assert source.events == whole, cut
        assert source.truncated, cut
    assert loaded > 50


@pytest.mark.slow
def test_gzip_with_a_flipped_byte_gives_the_same_figures_or_says_so(sound: Document, tmp_path: Path) -> None:
    packed = gzip.compress(assemble(TEXTS, metadata=METADATA), mtime=0)
    loaded = 0
    for at in range(0, len(packed), 11):
        flipped = bytearray(packed)
        flipped[at] ^= 0x10
        try:
            run = overlapscope.load(placed(tmp_path, bytes(flipped), "worker.json.gz"))
        except InputError:
            continue
        loaded += 1
        source = run.sources[0]
        same = msgspec.to_builtins(run.analysis())["ranks"] == sound["ranks"]
        assert same or source.truncated or source.warnings or source.dropped or source.repaired, at
    assert loaded > 10


@pytest.mark.slow
@pytest.mark.parametrize("back", range(1, 9))
def test_a_wrong_checksum_costs_no_event(back: int, sound: Document, analyzed: Analyze) -> None:
    packed = bytearray(gzip.compress(assemble(TEXTS, metadata=METADATA), mtime=0))
    packed[-back] ^= 0x55
    document = analyzed(bytes(packed), "worker.json.gz")
    assert document["sources"][0]["events"] == len(TEXTS)
    assert any("gzip" in warning for warning in document["sources"][0]["warnings"])
    assert [rank["whole"] for rank in document["ranks"]] == [rank["whole"] for rank in sound["ranks"]]


@pytest.mark.slow
def test_gzip_in_several_members_reads_as_one(
    sound: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = assemble(TEXTS, metadata=METADATA)
    for first in range(1, len(text), 401):
        second = min(first + 150, len(text))
        parts = (text[:first], b"", text[first:second], text[second:])
        path = placed(tmp_path, b"".join(map(gzip.compress, parts)), "worker.json.gz")
        document = read(path, capsys, shown_too=first == 1)
        assert document["sources"][0]["truncated"] is False
        assert document["sources"][0]["warnings"] == []
        check_figures(document, sound)


@pytest.mark.slow
@pytest.mark.parametrize("garbage", [b"garbage", b"\0" * 512, b"\x1f\x8b\x08\x09broken header", b"{}"])
def test_garbage_behind_gzip_data_is_left_out_and_named(garbage: bytes, sound: Document, analyzed: Analyze) -> None:
    packed = gzip.compress(assemble(TEXTS, metadata=METADATA)) + garbage
    document = analyzed(packed, "worker.json.gz")
    check_figures(document, sound)
    assert any("after the gzip data" in warning for warning in document["sources"][0]["warnings"])


def test_a_damaged_second_member_keeps_the_first(analyzed: Analyze) -> None:
    text = assemble(TEXTS, metadata=METADATA)
    middle = text.index(TEXTS[20])
    damaged = bytearray(gzip.compress(text[middle:], mtime=0))
    damaged[12:40] = b"\xff" * 28
    document = analyzed(gzip.compress(text[:middle]) + bytes(damaged), "worker.json.gz")
    source = document["sources"][0]
    assert source["events"] >= 20
    assert source["truncated"] is True


UNUSABLE = {
    "empty": b"",
    "blank": b" \n\n",
    "zeros": b"\0" * 4096,
    "an opened brace": b"{",
    "an opened bracket": b"[",
    "an empty object": b"{}",
    "an empty array": b"[]",
    "null": b"null",
    "a number": b"42",
    "a string": b'"traceEvents"',
    "an array of numbers": b"[1, 2, 3]",
    "an array of objects": b'[{"a": 1}, {"b": 2}, {"c": 3}]',
    "another object": b'{"version": 2, "entries": [{"ph": 1}]}',
    "traceEvents that is an object": b'{"traceEvents": {"ph": "X"}}',
    "traceEvents that is null": b'{"traceEvents": null}',
    "no event": b'{"traceEvents": []}',
    "only null": b'{"traceEvents": [null]}',
    "only metadata events": b'{"traceEvents": [{"ph": "M", "name": "process_name", "pid": 1}]}',
    "only untimed events": b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "k"}]}',
    "UTF-16": write(training()).decode().encode("utf-16"),
    "a picture": b"\x89PNG\r\n\x1a\n" + bytes(range(256)),
    "binary": random.Random(1).randbytes(20_000),
    "binary behind a brace": b"{" + random.Random(2).randbytes(20_000),
    "binary behind a bracket": b"[" + random.Random(3).randbytes(20_000),
    "binary as events": b'{"traceEvents":[{' + random.Random(4).randbytes(20_000),
    "open brackets": b"[" * 200_000,
    "open braces": b"{" * 200_000,
    "open objects": b'{"a":' * 100_000,
    "events of open brackets": b'{"traceEvents":' + b"[" * 200_000,
    "events of open braces": b'{"traceEvents":[' + b"{" * 200_000,
    "args of open objects": b'{"traceEvents":[{"ph":"X","args":' + b'{"a":' * 100_000,
    "quotes": b'{"traceEvents":[{"name":"' + b'"a' * 20_000 + b'"}]}',
    "backslashes": b'{"traceEvents":[{"name":"' + b"\\" * 20_001,
    "only a gzip magic": b"\x1f\x8b",
    "a gzip header alone": gzip.compress(b"x")[:10],
    "gzip of nothing": gzip.compress(b""),
    "gzip that is none": b"\x1f\x8b\x08\x00" + b"\xff" * 300,
}


@pytest.mark.parametrize("content", UNUSABLE.values(), ids=UNUSABLE.keys())
def test_a_file_without_anything_usable_is_refused_in_one_line(
    content: bytes, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(placed(tmp_path, content), capsys)


def good_pair(place: Path) -> Path:
    """Write two good files in a folder of `place`, and return the folder."""
    placed(place, write(training(), metadata=distributed(0)), "a.json")
    return placed(place, write(training(3), metadata=distributed(1), compress=True), "c.json.gz").parent


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Document:
    """The analysis of the two good files."""
    folder = good_pair(tmp_path_factory.mktemp("alone"))
    analysis: Document = msgspec.to_builtins(overlapscope.load(folder).analysis())
    return analysis


@pytest.mark.parametrize(
    "content",
    [
        pytest.param(each, id=name, marks=[pytest.mark.slow] * (at % 6 > 0))
        for at, (name, each) in enumerate(UNUSABLE.items())
    ],
)
def test_a_bad_file_among_good_ones_costs_only_itself(
    content: bytes, alone: Document, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = good_pair(tmp_path)
    bad = placed(tmp_path, content, "b.json")
    together = msgspec.to_builtins(overlapscope.load(folder).analysis())
    assert main(["analyze", str(folder / "a.json"), str(bad), str(folder / "c.json.gz"), "--json"]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    for each in (together, document):
        assert each["ranks"] == alone["ranks"]
        assert each["collectives"] == alone["collectives"]
    named = [source for source in document["sources"] if source["path"] == str(bad)]
    assert len(named) == 1
    assert named[0]["ranks"] == []
    assert named[0]["warnings"]
    assert str(bad) in shown.err


def test_a_folder_without_traces_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "traces"
    folder.mkdir()
    refused(folder, capsys)
    (folder / "nothing").mkdir()
    refused(folder, capsys)
    (folder / "notes.txt").write_text("no trace")
    refused(folder, capsys)
    (folder / ".hidden.json").write_bytes(write(training()))
    refused(folder, capsys)
    (folder / "other.json").write_text('{"a": 1}')
    assert "other.json" in refused(folder, capsys)


@pytest.mark.slow
@pytest.mark.parametrize("args", ["null", "[]", "[1, [2]]", "5", '"x"', "true", ""])
def test_arguments_of_any_kind_cost_no_event(args: str, sound: Document, analyzed: Analyze) -> None:
    document = analyzed(text_of(victim(args=args)))
    source = document["sources"][0]
    assert (source["events"], source["repaired"], source["dropped"]) == (len(TEXTS) + 1, 0, 0)
    compute = document["ranks"][0]["whole"]["compute_ns"]
    assert compute == sound["ranks"][0]["whole"]["compute_ns"] + 1000


IMPOSSIBLE_TIMES = (
    "null", '"soon"', '""', "true", "false", "[]", "[[]]", "[5]", "[5, 6]", "{}", "NaN", "Infinity", "1e400", "-1e400",
    "1e300", '"1e9999999"', '"NaN"', '"Infinity"', '"0x10"', "9" * 30, "9" * 5000, "9223372036854775807",
    "9223372036854775", "-9223372036854775", "9000000000000000",
)  # fmt: skip


@pytest.mark.parametrize(
    ("key", "value"),
    [("ts", ""), *(("ts", time) for time in IMPOSSIBLE_TIMES),
     *(("dur", time) for time in IMPOSSIBLE_TIMES if not time.startswith("-9"))],
    ids=lambda text: text[:24],
)  # fmt: skip
def test_an_event_without_a_possible_start_or_duration_is_dropped_and_counted(
    key: str, value: str, sound: Document, analyzed: Analyze
) -> None:
    document = analyzed(text_of(victim(**{key: value})))
    assert document["sources"][0]["dropped"] == 1
    check_figures(document, sound)


@pytest.mark.slow
@pytest.mark.parametrize("dur", ["", "0", "-5", "-5.125", "-9000000000"])
def test_a_missing_or_negative_duration_is_none(dur: str, sound: Document, analyzed: Analyze) -> None:
    document = analyzed(text_of(victim(dur=dur)))
    assert document["sources"][0]["dropped"] == 0
    check_figures(document, sound)


def test_a_time_written_as_text_counts(sound: Document, analyzed: Analyze) -> None:
    written = victim(ts=f'"{TORCH_2024.start_us + 17_650}.001"', dur='"2.500"')
    document = analyzed(text_of(written))
    assert document["sources"][0]["dropped"] == 0
    whole = document["ranks"][0]["whole"]
    assert whole["compute_ns"] == sound["ranks"][0]["whole"]["compute_ns"] + 2500


@pytest.mark.parametrize("ts", ["-5", "-4458676416788.5", "0"])
def test_a_kernel_before_time_began_is_left_out_with_a_warning(ts: str, sound: Document, analyzed: Analyze) -> None:
    document = analyzed(text_of(victim(ts=ts)))
    assert document["sources"][0]["dropped"] == 1
    assert any("time 0" in warning for warning in document["sources"][0]["warnings"])
    check_figures(document, sound)


@pytest.mark.parametrize("value", ["null", "[]", "[7]", "[[7]]", '{"a": 7}', "1.5", "true", '"7"', "9" * 40])
@pytest.mark.parametrize("key", ["pid", "tid", "cat", "name"])
def test_an_odd_field_leaves_the_other_events_alone(key: str, value: str, sound: Document, analyzed: Analyze) -> None:
    document = analyzed(text_of(victim(**{key: value})))
    assert document["sources"][0]["events"] == len(TEXTS) + 1
    assert document["collectives"] == sound["collectives"]
    assert document["ranks"][0]["whole"]["comm_ns"] == sound["ranks"][0]["whole"]["comm_ns"]
    check_sane(document)


BIG = {
    "63 bits": "4611686018427387903",
    "64 bits": "18446744073709551615",
    "30 digits": "9" * 30,
    "5000 digits": "9" * 5000,
    "5000 digits as text": '"' + "9" * 5000 + '"',
    "a superscript": '"\u00b2"',
    "a float beyond doubles": "1e400",
    "negative": "-5",
    "a list": "[4611686018427387903, 4611686018427387903]",
    "a list in a list": "[[4611686018427387903, 4611686018427387903]]",
    "a list of text": '"[' + "9" * 5000 + ']"',
    "open brackets as text": '"' + "[" * 100_000 + '"',
    "brackets 600 deep": "[" * 600 + "]" * 600,
}
ODD_METADATA = ("null", "true", "1.5", "{}", '"x"', "[null]", '[{"name": {}}]', "NaN", "[" * 100_000 + "]" * 100_000)
STEP_NUMBERS = ("9" * 25, "9" * 5000, "\u00b2", "\u0663", "-1", "9223372036854775807", "18446744073709551616")
ARGUMENTS = (
    "correlation", "Collective name", "In msg nelems", "Out msg nelems", "Group size", "dtype", "Process Group Name",
    "Process Group Description", "Process Group Ranks", "Global rank start", "Seq", "Input Dims", "Input type",
    "Concrete Inputs",
)  # fmt: skip


DIALECTS = ("usual", "old")
EVERY_HOSTILE = [
    pytest.param(key, value, dialect, id=f"{key}-{name}-{dialect}", marks=[pytest.mark.slow] * ((a + b + c) % 4 > 0))
    for a, key in enumerate(ARGUMENTS)
    for b, (name, value) in enumerate(BIG.items())
    for c, dialect in enumerate(DIALECTS)
]
"""Where each change is tested, each argument and each value is there, in one dialect or the other."""


@pytest.mark.parametrize(("key", "value", "dialect"), EVERY_HOSTILE)
def test_hostile_arguments_of_a_collective_change_no_time(key: str, value: str, dialect: str, tmp_path: Path) -> None:
    usual = {name: json.dumps(each) for name, each in collective_args("_allgather_base", out_elements=0).items()}
    old = {
        "Input Dims": "[[64]]",
        "Input type": '["float"]',
        "Concrete Inputs": '["", "1", "0", "0", "a", "", "", "2"]',
    }
    known = usual | {"Process Group Name": '"7"'} if dialect == "usual" else old
    args = "{" + ", ".join(f'"{name}": {each}' for name, each in {**known, key: value}.items()) + "}"
    events = [
        launch(1 * MS, 5, thread=BACKWARD),
        kernel(NCCL_KERNEL, 2 * MS, MS, stream=20, correlation=5),
        kernel(GEMM, 2 * MS, MS),
    ]
    around = [
        op("c10d::allgather_", 1 * MS - 3 * US, 20 * US, thread=BACKWARD, args={"HERE": 0}),
        op("record_param_comms", 1 * MS - 2 * US, 10 * US, thread=BACKWARD, args={"HERE": 0}),
        annotation("nccl:all_gather", 1 * MS - 1 * US, 9 * US, thread=BACKWARD, args={"HERE": 0}),
        kernel(NCCL_KERNEL, 4 * MS, MS, stream=20, args={"HERE": 0}),
        op("gloo:all_gather", 9 * MS, MS, thread=PROCESS + 9, args={"HERE": 0}),
    ]
    hostile = [each[: each.index(b'"args":')] + b'"args":' + args.encode() + b"}" for each in event_texts(around)]
    path = placed(tmp_path, assemble([*event_texts(events), *hostile]))
    whole = overlapscope.load(path).analysis().ranks[0].whole
    assert (whole.comm_ns, whole.overlapped_ns, whole.compute_ns) == (2 * MS, MS, MS)
    host_only = placed(tmp_path, assemble([*event_texts([op("aten::mm", 9 * MS, MS)]), hostile[0], hostile[-1]]))
    whole = overlapscope.load(host_only).analysis().ranks[0].whole
    assert (whole.comm_ns, whole.overlapped_ns, whole.compute_ns) == (MS, MS, MS)


METADATA_KEYS = (
    "deviceProperties", "baseTimeNanoseconds", "distributedInfo", "cuda_runtime_version", "torch_version",
)  # fmt: skip
HOSTILE_METADATA = [
    pytest.param(key, after, value, id=f"{key}-{'after' if after else 'before'}-{value[:24]}",
                 marks=[pytest.mark.slow] * ((a + b + after) % 4 > 0))
    for a, key in enumerate(METADATA_KEYS)
    for b, value in enumerate((*BIG.values(), *ODD_METADATA))
    for after in (False, True)
]  # fmt: skip
"""Where each change is tested, each key and each value is there, before the events or after them."""


@pytest.mark.parametrize(("key", "after", "value"), HOSTILE_METADATA)
def test_hostile_metadata_leaves_the_steps_alone(
    key: str, after: bool, value: str, sound: Document, tmp_path: Path
) -> None:
    text = assemble(TEXTS, metadata={"HERE": 0}, metadata_after=after)
    text = text.replace(b'"baseTimeNanoseconds"', b'"baseTimeNanosecondsOnce"')
    text = text.replace(b'"HERE": 0', f'"{key}": {value}'.encode())
    document = msgspec.to_builtins(overlapscope.load(placed(tmp_path, text)).analysis())
    assert document["sources"][0]["events"] == len(TEXTS)
    assert [rank["steps"] for rank in document["ranks"]] == [rank["steps"] for rank in sound["ranks"]]


@pytest.mark.parametrize("value", ["-5", "1.5", "null", "true", "[]", '"x"', "9" * 30, '"9' + "9" * 5000 + '"', "NaN"],
    ids=lambda value: value[:24])  # fmt: skip
@pytest.mark.parametrize(
    "key", ["rank", "world_size", "pg_config", "backend", "pg_size", "ranks", "pg_name", "pg_desc"]
)
def test_hostile_group_information_leaves_the_steps_alone(
    key: str, value: str, sound: Document, tmp_path: Path
) -> None:
    info = {"backend": '"nccl"', "rank": "0", "world_size": "2", "pg_config": "[]"}
    group = {"pg_name": '"0"', "pg_desc": '"default_pg"', "pg_size": "2", "ranks": "[0, 1]"}
    if key in info:
        info[key] = value
    else:
        group[key] = value
        info["pg_config"] = "[{" + ", ".join(f'"{name}": {each}' for name, each in group.items()) + "}]"
    own = "{" + ", ".join(f'"{name}": {each}' for name, each in info.items()) + "}"
    text = assemble(TEXTS, metadata={"HERE": 0}).replace(b'"HERE": 0', f'"distributedInfo": {own}'.encode())
    document = msgspec.to_builtins(overlapscope.load(placed(tmp_path, text)).analysis())
    assert [rank["steps"] for rank in document["ranks"]] == [rank["steps"] for rank in sound["ranks"]]


@pytest.mark.parametrize("number", STEP_NUMBERS, ids=lambda number: number[:24])
def test_a_hostile_step_number_leaves_the_other_steps_alone(number: str, sound: Document, tmp_path: Path) -> None:
    mark = event_texts([annotation(f"ProfilerStep#{number}", 30 * MS, MS)])[0]
    run = overlapscope.load(placed(tmp_path, text_of(mark)))
    steps = {step["step"]: step for step in msgspec.to_builtins(run.analysis())["ranks"][0]["steps"]}
    for step in sound["ranks"][0]["steps"]:
        assert steps[step["step"]]["window_ns"] == step["window_ns"]


@pytest.mark.slow
def test_times_at_the_edge_of_int64_stay_exact_or_are_left_out(tmp_path: Path) -> None:
    for base in (0, 1_711_964_646_000_000_000, 2**62 - 1):
        for ts in ("9223372036854774", "9223372036854000", "7000000000000000", "-9223372036854774", "1"):
            for dur in ("9223372036854774", "1", "5000000000000000"):
                texts = [victim(ts=ts, dur=dur), victim(ts="3600000001", dur="1", tid="8")]
                text = assemble(texts, metadata={"HERE": 0}).replace(b'"baseTimeNanoseconds"', b'"old"')
                text = text.replace(b'"HERE": 0', b'"baseTimeNanoseconds": %d' % base)
                path = placed(tmp_path, text)
                check_sane(msgspec.to_builtins(overlapscope.load(path).analysis()))


@pytest.mark.slow
def test_events_nested_a_thousand_deep_cost_only_themselves(sound: Document, tmp_path: Path) -> None:
    for depth in (400, 1000, 5000, 100_000):
        for opened, closed in ((b"[", b"]"), (b'{"a":', b"}")):
            nested = opened * depth + b"1" + closed * depth
            run = overlapscope.load(placed(tmp_path, text_of(harmless(args=nested))))
            assert msgspec.to_builtins(run.analysis())["ranks"] == sound["ranks"]


def child(code: str, *arguments: str, seconds: float = 120) -> "subprocess.CompletedProcess[str]":
    """Run code that is given a file to read, in a process whose memory can be measured and limited."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=seconds, check=False
    )


_MEASURED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
import overlapscope
from overlapscope.cli.main import main
code = main(["analyze", sys.argv[1]])
# Not ru_maxrss: that starts at the memory of the parent, a test runner, at its fork.
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print("peak MiB", int(status["VmHWM"].split()[0]) >> 10)
sys.exit(code)
"""


def big_files() -> Iterator[tuple[bytes, str, int]]:
    """Files that take much memory where they are read naively, the expected message, and the MiB that they may take."""
    fill = {char: gzip.compress(char * (64 << 20), mtime=0) for char in (b"a", b" ")}
    like_one = "like a decompression bomb"  # files of about 4 MB that expand to 4 GiB, where they are read so far
    yield fill[b" "] * 64, like_one, 1024
    # An event that does not end is given up long before, and nothing was read.
    yield gzip.compress(b'{"traceEvents":[{"name":"') + fill[b"a"] * 10, "(0 events)", 500
    yield gzip.compress(write(training())[:-1] + b',"x":"') + fill[b"a"] * 64, like_one, 1024
    yield b'{"traceEvents":[{"name":"' + b"a" * (8 << 20), "", 400
    yield b'{"traceEvents":[{"ph":"X"}],"x":"' + b"a" * (8 << 20), "", 400


@pytest.mark.slow
def test_bombs_and_text_that_never_ends_are_refused_with_little_memory(tmp_path: Path) -> None:
    for content, message, most_mib in big_files():
        path = placed(tmp_path, content, "worker.json.gz" if message else "worker.json")
        done = child(_MEASURED, str(path))
        assert done.returncode == 3, done.stderr
        assert len(done.stderr.splitlines()) == 1
        assert message in done.stderr.replace(str(path), "")
        assert int(done.stdout.split()[-1]) < most_mib, content[:40]


def test_a_small_file_that_compresses_well_is_no_bomb(sound: Document, analyzed: Analyze) -> None:
    text = assemble(TEXTS, metadata=METADATA).replace(b'"traceEvents": [', b'"traceEvents": [' + b" " * (8 << 20))
    check_figures(analyzed(gzip.compress(text), "worker.json.gz"), sound)


_LIMITED = """
import resource, sys
resource.setrlimit(resource.RLIMIT_AS, (2 << 30, 2 << 30))
resource.setrlimit(resource.RLIMIT_CPU, (40, 40))
from overlapscope.cli.main import main
sys.exit(main(["analyze", sys.argv[1], "--json"]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("field", ["rank", "world_size"])
def test_a_world_of_impossible_size_is_answered_or_refused_in_bounded_memory(field: str, tmp_path: Path) -> None:
    text = assemble(TEXTS, metadata=METADATA)
    text = text.replace(b'"rank": 0', b'"rank": 1000000000000') if field == "rank" else text
    text = text.replace(b'"world_size": 2', b'"world_size": 1000000000000000')
    done = child(_LIMITED, str(placed(tmp_path, text)))
    assert done.returncode in (0, 3), done.stderr[-500:]
    assert "Traceback" not in done.stderr


def test_many_events_beyond_repair_cost_little_more_time_than_mendable_ones(tmp_path: Path) -> None:
    def seconds(args: bytes) -> float:
        begun = time.process_time()
        overlapscope.load(placed(tmp_path, assemble([*TEXTS, *[harmless(args=args)] * 40], metadata=METADATA)))
        return time.process_time() - begun

    mendable = min(seconds(b'{"dims": [[1, 2], [3, 4]], "name": "a"b"}') for _ in range(5))
    foreign = min(seconds(b'{"dims": [[1, 2], [3, 4]], "name": foo}') for _ in range(3))
    assert foreign < 40 * mendable


def test_a_file_that_cannot_be_opened_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = placed(tmp_path, b"")
    path.unlink()
    refused(path, capsys)
    path.symlink_to(path)
    refused(path, capsys)
    too_long = path.parent / ("x" * 300)
    refused(too_long, capsys)
    assert os.listdir(path.parent) == [path.name]
