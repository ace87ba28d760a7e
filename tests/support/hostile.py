"""Hostile input: strategies that damage a file or its values, and a look at what is made of it: a result, or one error
that can be read."""

import copy
import json
import re
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.result import Analysis
from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext, Reader, Reading
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.run import Run

TOKENS = [
    b"null", b"NaN", b"Infinity", b"1e400", b"1e308", b"-1", b"0", b"9" * 25, b"9223372036854775807", b'"', b"\\",
    b"{", b"}", b"[", b"]", b",", b":", b"},{", b"}]", b"[[[[[[[[", b"\x00", b"\xff", b"\xef\xbb\xbf", b'"\\ud800"',
    b"-0.0", b"1.5", b'"x"', b"\n", b"[" * 500,
    b"[]", b"{}", b"true", '"\u00b2"'.encode(), b'"traceEvents":[', b'{"ph":"X"},', b"\x1f\x8b\x08\x00",
]  # fmt: skip
ALPHABET = '0123456789.eE+-# \t\n"{}[],:NaA/<>xX'
ODD_NUMBERS = ["", "0", "-1", "0.00", "9" * 25, "1e999", "1e-300", "nan", "inf", "1.2.3", "999999999999999.99", "0B"]


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


@st.composite
def overwritten(draw: st.DrawFn, content: bytes) -> bytes:
    """Single bytes set to other values, and perhaps a cut: damage to a form that depends on places."""
    changed = bytearray(content)
    place = st.integers(0, len(content) - 1)
    for at, value in draw(st.lists(st.tuples(place, st.integers(0, 255)), min_size=1, max_size=30)):
        changed[at] = value
    return bytes(changed[: draw(st.none() | place)])


odd_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8)
    | st.sampled_from(
        ["[0, 1, ..., 3]", "[0, 1]", "[" * 50, "1e999999", "\u00b2", "0", "-1", "scheduled", "gloo:send 0->1",
         "ProfilerStep#7", "nccl:all_reduce", "kernel", {"handle": -1}]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "ph", "a"]), inner, max_size=2)
    ),
    max_leaves=5,
)  # fmt: skip
"""Any JSON: other types, impossible numbers, and texts that mean something somewhere."""


@st.composite
def odd_documents(draw: st.DrawFn, document: Any) -> Any:
    """A copy of a document in which a few values, at any depth, are replaced or left out."""
    changed = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, 5))):
        if not changed:
            break
        inner = changed
        while isinstance(inner, (dict, list)) and inner:
            holder, key = inner, draw(st.sampled_from([*inner] if isinstance(inner, dict) else range(len(inner))))
            inner = holder[key]
            if draw(st.integers(0, 3)) == 0:
                break
        if draw(st.integers(0, 3)) == 0:
            del holder[key]
        else:
            holder[key] = draw(odd_values)
    return changed


def spoiled(content: bytes) -> st.SearchStrategy[bytes]:
    """The text, or the values of a file that is JSON, with damage."""
    if content[:1] not in (b"[", b"{"):
        return mutations(content)
    documents = odd_documents(json.loads(content)).map(lambda document: json.dumps(document).encode())
    return mutations(content) | documents


@st.composite
def edited(draw: st.DrawFn, texts: Sequence[str], odd: Sequence[str]) -> bytes:
    """One of the texts, of which some pieces are replaced by odd ones."""
    text = draw(st.sampled_from(texts))
    for _ in range(draw(st.integers(0, 10))):
        at = draw(st.integers(0, len(text)))
        new = draw(st.sampled_from(odd) | st.text(ALPHABET, max_size=12) | st.text(max_size=8))
        text = text[:at] + new + text[at + draw(st.integers(0, 40)) :]
    return text.encode("utf-8", "surrogatepass") + draw(st.binary(max_size=4))


@st.composite
def with_odd_numbers(draw: st.DrawFn, text: str) -> bytes:
    """The text, of which some numbers are replaced by odd ones."""
    for _ in range(draw(st.integers(1, 6))):
        place = draw(st.sampled_from(list(re.finditer(r"[0-9]+(?:\.[0-9]+)?", text))))
        text = text[: place.start()] + draw(st.sampled_from(ODD_NUMBERS)) + text[place.end() :]
    return text.encode()


def recognises(reader: Reader, folder: Path, text: str) -> bool:
    """Return whether a reader recognises a file that holds this text."""
    path = folder / "x"
    path.write_text(text, encoding="utf-8")
    return reader.recognises(read_head(path))


def read_text(reader: Reader, folder: Path, text: str, name: str = "out.txt") -> Reading:
    """Read a file that holds this text, which this reader must be the one to recognise."""
    path = folder / name
    path.write_text(text, encoding="utf-8")
    assert find_reader(read_head(path)) is reader
    return reader.read(path, ReadContext())


def read_or_refuse(reader: Reader, path: Path) -> Reading | None:
    """Return what the reader makes of a file; None where it refuses, on one line that names the file."""
    reader.recognises(read_head(path))
    try:
        return reader.read(path, ReadContext())
    except InputError as error:
        _check(error, path)
        return None


def reading_or_refusal(reader: Reader, content: bytes, name: str = "rank0.json") -> Reading | None:
    """Return what the reader makes of a file of this content, as `read_or_refuse`."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        return read_or_refuse(reader, path)


def run_or_refusal(content: bytes, name: str = "rank0.json") -> Run | None:
    """Return the run of one file of this content; None where it is refused on one line that names the file."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as folder:
        path = Path(folder) / name
        path.write_bytes(content)
        try:
            return read_inputs([path])
        except OverlapScopeError as error:
            _check(error, path)
            return None


def analyze_or_refuse(content: bytes) -> Analysis | None:
    """Return the analysis of a log of this content; None where it is refused as by `run_or_refusal`."""
    run = run_or_refusal(content, "train.log")
    return None if run is None else analyze(run)


def _check(error: OverlapScopeError, path: Path) -> None:
    assert str(path) in str(error)
    assert "\n" not in str(error)
