"""How tests of hostile input spoil a text, and look at a reader: a result, or one error that can be read."""

import re
import tempfile
from collections.abc import Sequence
from pathlib import Path

from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.result import Analysis
from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext, Reader, Reading
from overlapscope.ingest.registry import find_reader, read_head

ALPHABET = '0123456789.eE+-# \t\n"{}[],:NaA/<>xX'
ODD_NUMBERS = ["", "0", "-1", "0.00", "9" * 25, "1e999", "1e-300", "nan", "inf", "1.2.3", "999999999999999.99", "0B"]


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


def analyze_or_refuse(content: bytes) -> Analysis | None:
    """Return the analysis of a log of this content; None where it is refused, on one line that names the file."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as folder:
        path = Path(folder) / "train.log"
        path.write_bytes(content)
        try:
            return analyze(read_inputs([path]))
        except OverlapScopeError as error:
            _check(error, path)
            return None


def _check(error: OverlapScopeError, path: Path) -> None:
    assert str(path) in str(error)
    assert "\n" not in str(error)


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
