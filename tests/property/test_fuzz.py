"""Whatever bytes a file holds, reading gives a run or a deliberate error, and a run's figures add up."""

import gzip
import json
import re
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.errors import OverlapScopeError
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.run import Run
from tests.support.kineto_writer import (
    ABSOLUTE_FLOATS,
    BACKWARD,
    MS,
    TORCH_1_8,
    TORCH_2022,
    TORCH_2024,
    US,
    annotation,
    collective_args,
    distributed,
    launch,
    memcpy,
    op,
    record_param_comms,
    training,
    write,
)

GLOO = [
    op("aten::mm", 1 * MS, 2 * MS),
    op("c10d::allreduce_", 4 * MS, 20 * US, args={"Input Dims": [[[64]]], "Input type": ["TensorList"]}),
    annotation("gloo:all_reduce", 5 * MS, 1 * MS, thread=9, args={"Input Dims": [[64]], "Input type": ["float"]}),
]
COPY_ENGINE = [
    *training(1),
    record_param_comms(9_000 * US, 80 * US, args=collective_args("_allgather_base", out_elements=2048)),
    annotation("nccl:_all_gather_base", 9_010 * US, 60 * US, thread=BACKWARD),
    launch(9_020 * US, 9001, thread=BACKWARD, name="cudaMemcpyAsync"),
    memcpy(9_100 * US, 50 * US, name="Memcpy PtoP (Device -> Device)", stream=20, correlation=9001),
]
TEXTS = (
    write(training(1), TORCH_1_8, indent=True),
    write(training(1), TORCH_2022, metadata=distributed(0), ph_first=False),
    write(training(2), TORCH_2024, metadata=distributed(0), metadata_after=True),
    write(COPY_ENGINE, TORCH_2024, metadata=distributed(1)),
    write(training(1), ABSOLUTE_FLOATS, array=True),
    write(GLOO, TORCH_2024, metadata=distributed(0, backend="gloo")),
)
TOKENS = [
    b"null", b"NaN", b"Infinity", b"1e400", b"1e308", b"-1", b"0", b"9" * 25, b"9223372036854775807", b'"', b"\\",
    b"{", b"}", b"[", b"]", b",", b":", b"},{", b"}]", b"[[[[[[[[", b"\x00", b"\xff", b"\xef\xbb\xbf", b'"\\ud800"',
    b"[]", b"{}", b"true", '"\u00b2"'.encode(), b'"traceEvents":[', b'{"ph":"X"},', b"\x1f\x8b\x08\x00",
]  # fmt: skip


@st.composite
def mutations(draw: st.DrawFn, text: bytes) -> bytes:
    """A few flips, deletions, insertions, repetitions and cuts."""
    for _ in range(draw(st.integers(1, 4))):
        size = len(text)
        if size == 0:
            return text
        at = draw(st.integers(0, size - 1))
        length = draw(st.sampled_from([1, 2, 5, 30, 200, 2000]))
        match draw(st.sampled_from(["flip", "delete", "insert", "repeat", "cut", "replace", "noise"])):
            case "flip":
                text = text[:at] + bytes([text[at] ^ (1 << draw(st.integers(0, 7)))]) + text[at + 1 :]
            case "delete":
                text = text[:at] + text[at + length :]
            case "insert":
                text = text[:at] + draw(st.sampled_from(TOKENS)) + text[at:]
            case "repeat":
                text = text[: at + length] + text[at:]
            case "cut":
                text = text[:at]
            case "replace":
                values = list(re.finditer(rb'(?<=[:\[, ])(?:[0-9.]+|"[^"]*")(?=[,\]}])', text))
                if values:
                    value = values[draw(st.integers(0, len(values) - 1))]
                    text = text[: value.start()] + draw(st.sampled_from(TOKENS)) + text[value.end() :]
            case "noise":
                text = text[:at] + draw(st.binary(max_size=40)) + text[at:]
    return text


def read(content: bytes) -> Run | None:
    """Read a file of this content; None when it is refused on purpose."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "worker.json"
        path.write_bytes(content)
        try:
            return read_inputs([path])
        except OverlapScopeError as error:
            assert str(path) in str(error)  # noqa: PT017 - the refusal must name the file
            return None


def check(run: Run | None) -> None:
    if run is None:
        return
    for info in analyze(run).ranks:
        for each in (info.whole, *info.steps):
            if each.window_ns is not None:
                parts = (
                    each.overlapped_ns,
                    each.exposed_comm_ns,
                    each.compute_only_ns,
                    each.copy_only_ns,
                    each.idle_ns,
                )
                assert min(part or 0 for part in parts) >= 0
                assert sum(part or 0 for part in parts) == each.window_ns


@settings(max_examples=300)
@given(data=st.data(), text=st.sampled_from(TEXTS))
def test_any_change_of_the_text_gives_a_run_or_a_deliberate_error(data: st.DataObject, text: bytes) -> None:
    changed = data.draw(mutations(text))
    check(read(gzip.compress(changed, mtime=0) if data.draw(st.booleans()) else changed))


@settings(max_examples=300)
@given(data=st.data(), text=st.sampled_from(TEXTS))
def test_any_change_of_the_compressed_bytes_gives_a_run_or_a_deliberate_error(data: st.DataObject, text: bytes) -> None:
    check(read(data.draw(mutations(gzip.compress(text, mtime=0)))))


@settings(max_examples=200)
@given(
    content=st.binary(max_size=400), start=st.sampled_from([b"", b"{", b"[", b'{"traceEvents":[', b"\x1f\x8b\x08\x00"])
)
def test_any_bytes_give_a_run_or_a_deliberate_error(content: bytes, start: bytes) -> None:
    check(read(start + content))


VALUES = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(-(2**70), 2**70),
        st.floats(allow_nan=True, allow_infinity=True),
        st.text(max_size=8),
        st.sampled_from(
            ["[0, 1, ..., 3]", "[" * 50, "1e999999", "\u00b2", "ProfilerStep#7", "nccl:all_reduce", "kernel"]
        ),
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "ph", "a"]), inner, max_size=2)
    ),
    max_leaves=5,
)


@st.composite
def odd_traces(draw: st.DrawFn) -> bytes:
    """A valid trace in which some values were replaced by any JSON."""
    trace: Any = json.loads(draw(st.sampled_from(TEXTS)))
    events = trace if isinstance(trace, list) else trace["traceEvents"]
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.sampled_from(events))
        if isinstance(trace, dict) and draw(st.integers(0, 4)) == 0:
            place = draw(st.sampled_from([trace, trace.get("distributedInfo", trace)]))
        elif isinstance(place.get("args"), dict) and place["args"] and draw(st.booleans()):
            place = place["args"]
        if not isinstance(place, dict) or not place:
            continue
        key = draw(st.sampled_from(sorted(place)))
        if place.get(key) is not events:
            place[key] = draw(VALUES)
    return json.dumps(trace).encode()


@settings(max_examples=300)
@given(text=odd_traces())
def test_any_value_in_any_place_gives_a_run_or_a_deliberate_error(text: bytes) -> None:
    assume(not re.search(rb'"(rank|world_size)": \d{7}', text))  # such worlds are read in a process of their own
    check(read(text))
