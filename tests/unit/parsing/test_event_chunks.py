"""A trace cut into pieces of any size holds the same events as the trace in one piece."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.errors import NotATraceError
from overlapscope.ingest.build.kernel_names import may_describe_collective
from overlapscope.ingest.formats.kineto.events import EventCollector
from overlapscope.ingest.formats.kineto.metadata import TraceMetadata, read_metadata
from overlapscope.ingest.parsing.event_chunks import EventChunks
from tests.property.examples import examples
from tests.support.writers.kineto import (
    BACKWARD,
    DIALECTS,
    MS,
    US,
    Dialect,
    Event,
    annotation,
    assemble,
    collective_args,
    distributed,
    event_texts,
    op,
    training,
    write,
)

SIZES = (64, 65, 100, 256, 300, 512, 777, 1024, 2048, 4096)
ONE_PIECE = 1 << 24


def blocks(content: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(content), size):
        yield content[at : at + size]


def collected(content: bytes, piece_bytes: int, block_bytes: int = 61) -> tuple[dict[str, Any], TraceMetadata, int]:
    """Everything that reading keeps of a trace, with names spelled out; its metadata; and the number of pieces."""
    chunks = EventChunks(blocks(content, block_bytes), "trace", piece_bytes=piece_bytes)
    collector = EventCollector(may_describe_collective)
    pieces = 1

    def take(piece: bytes) -> bool:
        nonlocal pieces
        pieces += 1
        return collector.take(piece)

    for piece in chunks.pieces(take):
        collector.take_broken(piece)
    tail, closed = collector.add_last(chunks.tail, is_array=chunks.is_array)
    columns = collector.columns()
    names = np.array([*columns.names.to_list(), ""], object)
    lanes = columns.lanes

    def rows(lane: Any, *columns: Any) -> list[tuple[Any, ...]]:
        return list(zip([lanes[each] for each in lane.tolist()], *(each.tolist() for each in columns), strict=True))

    def ranges(each: Any) -> list[tuple[Any, ...]]:
        flags = each.is_annotation if each.is_annotation.size else np.full(each.name.size, None)
        return rows(each.lane, names[each.name], each.start_ns, each.end_ns, flags)

    kept = {
        "events": columns.events,
        "repaired": columns.repaired,
        "dropped": columns.dropped,
        "closed": closed,
        "unknown": dict(columns.unknown),
        "window": columns.window,
        "device": rows(
            columns.device_lane, columns.device_sort, names[columns.device_name], columns.device_start_ns,
            columns.device_end_ns, columns.device_correlation,
        ),
        "device_collectives": columns.device_collectives,
        "launches": rows(
            columns.launch_lane, names[columns.launch_name], columns.launch_start_ns, columns.launch_correlation
        ),
        "host": ranges(columns.host),
        "host_args": columns.host_args,
        "notes": ranges(columns.device_notes),
    }  # fmt: skip
    return kept, read_metadata(chunks.head, tail, is_array=chunks.is_array), pieces


def check_pieces(content: bytes, events: int, sizes: tuple[int, ...] = SIZES, block_bytes: int = 61) -> None:
    whole, metadata, pieces = collected(content, ONE_PIECE, len(content))
    assert pieces == 1
    assert (whole["events"], whole["repaired"], whole["dropped"], whole["closed"]) == (events, 0, 0, True)
    for size in sizes:
        kept, found, _ = collected(content, size, block_bytes)
        assert kept == whole, f"pieces of {size} bytes"
        assert found == metadata, f"pieces of {size} bytes"


DEVICES = {"deviceProperties": [{"id": each, "name": "NVIDIA A100", "numSms": 108} for each in range(8)]}
NAMED = {"libraries": [{"name": f"lib{each}", "version": each} for each in range(8)]}
PHASED = {"phases": [{"ph": "X", "name": "inner"} for _ in range(6)]}
LISTS = {"devices": DEVICES, "names": NAMED, "phases": PHASED, "all": DEVICES | NAMED | PHASED}


@pytest.mark.slow
@pytest.mark.parametrize("lists", LISTS.values(), ids=LISTS.keys())
@pytest.mark.parametrize("metadata_after", [False, True], ids=["before", "after"])
def test_lists_of_objects_in_the_metadata_are_no_events(lists: dict[str, object], metadata_after: bool) -> None:
    events = training(3)
    content = write(events, metadata={**distributed(0), **lists}, metadata_after=metadata_after)
    check_pieces(content, len(events))
    assert collected(content, 256)[1].rank == 0


NESTED: dict[str, dict[str, object]] = {
    "objects": {"inner": [{"a": 1}, {"b": 2}, {"c": 3}, {"d": {"e": {}}}]},
    "objects with names": {"inner": [{"name": "a"}, {"name": "b"}, {"name": "c"}, {"id": 4}]},
    "objects with phases": {"inner": [{"ph": "X"}, {"ph": "Y"}, {"ph": "Z"}, {"ph": "X", "name": "n"}]},
    "empty objects": {"inner": [{}, {}, {}, {}]},
    "objects in lists in objects": {"inner": {"x": [[{"ph": "X"}, {"args": {}}], [{}, {"ts": 1}]]}},
    "text like events": {"text": '},{"ph":"X","cat":"kernel","name":"fake","ts":1,"dur":1},{"ph":"X"},{'},
    "text like an end": {"text": '}]},{"ph":"X"}], "traceEvents": [{"ph":"X"},'},
    "text of brackets": {"text": "}]}]}],[{[{"},
    "text of backslashes": {"text": '\\"},{\\\\"ph\\":', "more": "\\"},
}


@pytest.mark.parametrize("args", NESTED.values(), ids=NESTED.keys())
@pytest.mark.parametrize("ph_first", [False, True], ids=["args first", "ph first"])
@pytest.mark.parametrize("indent", [False, True], ids=["compact", "indented"])
def test_objects_and_text_inside_arguments_are_no_events(args: dict[str, object], ph_first: bool, indent: bool) -> None:
    odd = [op("aten::odd", 5 * MS + each * US, US, args=args) for each in range(3)]
    events: list[Event] = [*training(1), odd[0], *training(1, first=7), odd[1], odd[2], *training(1, first=9)]
    check_pieces(write(events, metadata=distributed(0), ph_first=ph_first, indent=indent), len(events))


@pytest.mark.slow
@pytest.mark.parametrize(
    "text",
    [
        '"traceEvents": [{"ph": "X", "name": "not this"}, {"ph": "X"}, {"ph": "X"}]',
        '{"traceEvents": [1, 2]}',
        '\\"traceEvents\\": [',
        "ends in a backslash \\",
    ],
)
@pytest.mark.parametrize("metadata_after", [False, True], ids=["before", "after"])
def test_text_in_the_metadata_does_not_begin_the_events(text: str, metadata_after: bool) -> None:
    events = training(2)
    content = write(events, metadata={"note": text, **distributed(0)}, metadata_after=metadata_after)
    check_pieces(content, len(events))
    assert collected(content, 128)[1].rank == 0


@pytest.mark.parametrize("blanks", [b"", b" " * 200, b"\n\t" * 100])
def test_the_key_of_the_events_is_found_across_any_block(blanks: bytes) -> None:
    content = assemble(event_texts(training(1)), metadata=distributed(0))
    content = content.replace(b'"traceEvents": [', b'"traceEvents"' + blanks + b":" + blanks + b"[" + blanks)
    whole = collected(content, ONE_PIECE, len(content))
    for block in (1, 7, 64, 100):
        assert collected(content, 64, block)[:2] == whole[:2]


@pytest.mark.slow
@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"\0\0", b" \r\n\t", b"\xef\xbb\xbf \n"])
@pytest.mark.parametrize("array", [False, True])
def test_marks_and_blanks_before_the_trace_change_nothing(start: bytes, array: bool) -> None:
    content = write(training(2), metadata=distributed(0), array=array)
    whole = collected(content, ONE_PIECE)
    for size in (64, 1024, ONE_PIECE):
        for block in (1, 2, 5, 4096):
            assert collected(start + content, size, block)[:2] == whole[:2]


def test_an_event_far_longer_than_a_piece_stays_whole() -> None:
    long = op("aten::long", 5 * MS, US, args={"stack": "frame;" * 5000, "inner": [{"name": "a"}, {"name": "b"}] * 300})
    events = [*training(1), long, *training(1, first=8)]
    check_pieces(write(events, metadata=distributed(0)), len(events), (64, 512, 4096))


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"a": "traceEvents"}', b'{"traceEvents": 1}', b"42", b'"x"', b"\x89PNG"]
)
@pytest.mark.parametrize("size", [64, 4096])
def test_a_file_without_events_is_no_trace_in_pieces_of_any_size(content: bytes, size: int) -> None:
    with pytest.raises(NotATraceError, match="trace: not a trace"):
        list(EventChunks(blocks(content, 3), "trace", piece_bytes=size).pieces())


EVERYTHING = [
    *training(3),
    annotation("gloo:all_reduce", 2 * MS, US, thread=9, args={"Input Dims": [[64]], "Input type": ["float"]}),
    op("record_param_comms", 3 * MS, US, thread=BACKWARD, args=collective_args("_allgather_base", seq=7)),
    op("aten::odd", 4 * MS, US, args={"inner": [{"a": 1}, {"b": 2}], "text": '},{"ph":"X"},{'}),
]
FORMS = st.fixed_dictionaries(dict.fromkeys(("metadata_after", "array", "indent", "ph_first"), st.booleans()))


@pytest.mark.slow
@examples(300)
@given(st.sampled_from(DIALECTS), FORMS, st.integers(8, 20_000), st.integers(1, 5000))
def test_the_size_of_pieces_and_blocks_never_shows(
    dialect: Dialect, form: dict[str, bool], size: int, block: int
) -> None:
    content = write(EVERYTHING, dialect, metadata=distributed(0), **form)
    check_pieces(content, len(EVERYTHING), (size,), block)
    assert collected(content, 64)[2] > len(EVERYTHING) // 3
