"""Read a user's own measurements from CSV: collectives by size, steps by bucket cap, or sizes of buckets.

A table is recognised by its header: operation, size and time (or bandwidth); bucket cap and step time; bucket cap and
bucket sizes. Other tables are left to other readers. A column's name is a word and a unit: `time_ms`, `time (ms)`,
`algbw_GBps`, `bucket_cap_mb`. Words have several spellings. A quantity without a unit, or with an ambiguous one, is not
read.
"""

import csv
import math
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.build.collective_args import dtype_name
from overlapscope.ingest.build.kernel_names import canonical_operation
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.parsing.gzip_stream import ByteStream, iter_lines
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.facts import NO, UNSTATED, YES, Facts, Figures, Measurements
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import MAX_COUNT, bus_factor
from overlapscope.timeline.run import MAX_RANKS, Source

MAX_COLUMNS: Final = 64
MAX_BUCKETS: Final = 100_000
TOLERANCE: Final = 0.02
"""Relative difference between a bandwidth and size over time, besides rounding, that counts as a contradiction."""
_NUMBER: Final = re.compile(r"[+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?(?:[eE][+-]?[0-9]{1,3})?", re.ASCII)
_ANSWERS: Final = {"1": YES, "true": YES, "yes": YES, "0": NO, "false": NO, "no": NO}
_Rows = Sequence[tuple[int, list[str]]]
_WORDS: Final = {
    "op": "op operation collective coll primitive",
    "ranks": "ranks nranks n_ranks num_ranks world_size world worldsize gpus ngpus n_gpus num_gpus",
    "dtype": "dtype datatype data_type",
    "algorithm": "algorithm algo",
    "protocol": "protocol proto",
    "in_place": "in_place inplace",
    "size": "size msg_size message_size data_size buffer_size msg message buffer",
    "time": "time latency duration elapsed t avg_time mean_time median_time time_avg time_mean time_median avg_latency",
    "algbw": "algbw alg_bw algorithm_bandwidth algo_bw",
    "busbw": "busbw bus_bw bus_bandwidth",
    "bucket_cap": "bucket_cap bucket_size bucket_cap_size",
    "bucket_sizes": "sizes bucket_sizes",
    "step": "step step_time iter iter_time iteration iteration_time",
}
_SPELLINGS: Final = {spelling: word for word, spellings in _WORDS.items() for spelling in spellings.split()}
_NS: Final = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "usec": 1_000,
    "ms": 1_000_000,
    "msec": 1_000_000,
    "s": 10**9,
    "sec": 10**9,
}
_BYTES: Final = {"b": 1, "byte": 1, "bytes": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}
"""`kb` and `mb` are missing: some writers mean 1000, others 1024."""
_RATES: Final = re.compile(r"(G|M)(B|iB|b|bit|bits)(?:ps|/s|_per_s|s)", re.ASCII)
"""Case matters: `GBps` are bytes, `Gbit/s` are bits; `gbps` may be either, as may a careless `Gbps`."""
_HOUSE: Final = {"gbs": 1.0, "gb/s": 1.0, "gigabytes/s": 1.0}
_MEBIBYTES: Final = frozenset({"mb", "mib"})
"""torch's `bucket_cap_mb` counts MiB, despite its name."""


def begins_a_table(text: str) -> bool:
    """Return whether the first lines are a known header and a row with numbers in the columns that need them."""
    rows = _rows(iter(text[: text.rfind("\n") + 1 or None].splitlines()[:50]))
    header, first = next(rows, None), next(rows, None)
    return header is not None and first is not None and _reads(header[1], first[1])


def _reads(header: Sequence[str], row: Sequence[str]) -> bool:
    columns = understand(header)
    kind = _kind(columns)
    if kind is None or len(row) != len(header):
        return False
    if kind == "collectives":
        return canonical_operation(_text(row, columns["op"])) is not None and _number(row, columns["size"]) is not None
    return _number(row, columns["bucket_cap"]) is not None or _number(row, columns.get("step")) is not None


class Column(msgspec.Struct, frozen=True, kw_only=True):
    """A known column: its word, and the factor to ns, bytes, GB/s or MiB."""

    place: int
    word: str
    scale: float = 1.0


def _kind(columns: Mapping[str, Column]) -> str | None:
    if {"op", "size"} <= columns.keys() and columns.keys() & {"time", "algbw"}:
        return "collectives"
    if {"bucket_cap", "step"} <= columns.keys():
        return "steps"
    return "buckets" if {"bucket_cap", "bucket_sizes"} <= columns.keys() else None


def read_measured_table(path: Path, context: ReadContext) -> Reading:
    """Read one table. Raises InputError when it has no known header, or no usable row."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    rows = _rows(line.decode("utf-8", "replace").removeprefix("\ufeff") for line in iter_lines(stream))
    _, header = next(rows, (0, []))
    columns = understand(header)
    kind = _kind(columns)
    if kind is None:
        raise InputError(
            f"{display_path(path)}: its header ({', '.join(header)[:200]}) is not recognised; "
            "docs/sources.md lists columns"
        )
    whole = []
    broken: list[int] = []
    for number, row in rows:
        if len(row) == len(header):
            whole.append((number, row))
        else:
            broken.append(number)
    names = NameTable()
    warnings: list[str] = []
    if kind == "collectives":
        found, bad = _measurements(whole, columns, display_path(path), warnings)
        facts = Facts(measurements=fact_table(Measurements, found, names), names=tuple(names.to_list()))
    else:
        read = _steps if kind == "steps" else _buckets
        found, bad = read(whole, columns, header, display_path(path), warnings)
        facts = Facts(figures=fact_table(Figures, found, names), names=tuple(names.to_list()))
    broken = sorted(broken + bad)
    if not found:
        raise InputError(f"{display_path(path)}: no row below its header can be used (lines {_listed(broken)})")
    if broken:
        warnings.append(f"rows that cannot be used were left out: lines {_listed(broken)}")
    return Reading(
        source=Source(
            path=display_path(path),
            events=len(whole) - len(bad),
            dropped=len(broken),
            truncated=stream.truncated,
            warnings=(*stream.warnings, *warnings),
        ),
        facts=facts,
    )


def _rows(text: Iterator[str]) -> Iterator[tuple[int, list[str]]]:
    """Yield line numbers and cells; the header decides whether cells are separated by commas, semicolons or tabs."""
    mark = None
    for number, line in enumerate(text, 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if mark is None:
            mark = max(",;\t", key=line.count)
        try:
            cells = next(csv.reader([line], delimiter=mark), [])
        except csv.Error:
            cells = []
        yield number, [cell.strip() for cell in cells[: MAX_COLUMNS + 1]]


def _text(row: Sequence[str], column: Column | None) -> str | None:
    return row[column.place] or None if column else None


def _number(row: Sequence[str], column: Column | None) -> float | None:
    text = _text(row, column)
    if text is None or column is None or not _NUMBER.fullmatch(text):
        return None
    value = float(text) * column.scale
    return value if 0 <= value < MAX_COUNT else None


def _whole(row: Sequence[str], column: Column | None) -> int | None:
    value = _number(row, column)
    return int(value) if value is not None and value == int(value) else None


def _measurements(
    rows: _Rows, columns: Mapping[str, Column], source: str, warnings: list[str]
) -> tuple[list[dict[str, Any]], list[int]]:
    found, bad, unequal, contradicted = [], [], [], []
    for line, row in rows:
        op, size = canonical_operation(_text(row, columns["op"])), _whole(row, columns["size"])
        time_ns, algbw, busbw = (_number(row, columns.get(word)) for word in ("time", "algbw", "busbw"))
        if op is None or size is None or (not time_ns and algbw is None):
            bad.append(line)
            continue
        ranks = _whole(row, columns.get("ranks"))
        ranks = ranks if ranks and ranks <= MAX_RANKS else None
        computed = size / time_ns if time_ns else None
        if algbw is not None and computed is not None and not _close(algbw, computed, _step(row, columns["algbw"])):
            unequal.append(line)
        algbw = algbw if algbw is not None else computed
        factored = algbw * bus_factor(op, ranks) if algbw is not None and ranks else None
        if busbw is not None and factored is not None:
            rounding = _step(row, columns["busbw"]) + (2 * _step(row, columns["algbw"]) if "algbw" in columns else 0)
            if not _close(busbw, factored, rounding):
                contradicted.append(line)
        found.append(
            {
                "source": source,
                "op": op,
                "dtype": dtype_name(_text(row, columns.get("dtype"))) or _text(row, columns.get("dtype")),
                "bytes": size,
                "ranks": ranks,
                "in_place": _ANSWERS.get((_text(row, columns.get("in_place")) or "").lower(), UNSTATED),
                "algorithm": _text(row, columns.get("algorithm")),
                "protocol": _text(row, columns.get("protocol")),
                "time_ns": time_ns or None,
                "algbw_gbs": algbw,
                "busbw_gbs": busbw if busbw is not None else factored,
            }
        )
    if unequal:
        warnings.append(f"algbw is not size / time in lines {_listed(unequal)}")
    if contradicted:
        warnings.append(f"busbw is not algbw x the operation's factor in lines {_listed(contradicted)}")
    return found, bad


def _step(row: Sequence[str], column: Column) -> float:
    """Return half a unit of the last digit of a printed number."""
    text = _text(row, column) or ""
    decimals = len(text.partition(".")[2]) if "e" not in text.lower() else 0
    return 0.5 * 10.0**-decimals * column.scale


def _close(value: float, expected: float, rounding: float) -> bool:
    return abs(value - expected) <= rounding + TOLERANCE * max(abs(expected), abs(value))


def _steps(
    rows: _Rows, columns: Mapping[str, Column], header: Sequence[str], source: str, warnings: list[str]
) -> tuple[list[dict[str, Any]], list[int]]:
    """Return the figures of each row, under its bucket cap and the cells in which it differs from most rows."""
    cap = columns["bucket_cap"]
    measured = [at for at, name in enumerate(header) if at != cap.place and _has_unit(plain(name))]
    settings = [at for at in range(len(header)) if at != cap.place and at not in measured]
    usual = {at: Counter(row[at] for _, row in rows if row[cap.place]).most_common(1) for at in settings}
    common = {at: counted[0][0] for at, counted in usual.items() if counted}
    found, bad = [], []
    for line, row in rows:
        values = [(plain(header[at]), _plain_number(row[at])) for at in measured]
        if _number(row, columns["step"]) is None or (row[cap.place] and _number(row, cap) is None):
            bad.append(line)
            continue
        parts = [_cap(row, cap)] if row[cap.place] else []
        parts += [f"{plain(header[at])}={row[at]}" for at in settings if row[at] and row[at] != common.get(at)]
        subject = " ".join(parts) or "no bucket cap"
        found += [
            {"source": source, "subject": subject, "name": name, "value": value}
            for name, value in values
            if value is not None
        ]
    shared = ", ".join(f"{plain(header[at])}={value}" for at, value in common.items() if value)
    if shared:
        warnings.append(f"for rows that do not state otherwise: {shared}")
    return found, bad


def _buckets(
    rows: _Rows, columns: Mapping[str, Column], header: Sequence[str], source: str, warnings: list[str]
) -> tuple[list[dict[str, Any]], list[int]]:
    del header, warnings
    found, bad = [], []
    for line, row in rows:
        sizes = [_plain_number(part) for part in re.split(r"[;|\s]+", row[columns["bucket_sizes"].place].strip(" ;|"))]
        known = [size for size in sizes if size is not None and size >= 0]
        if _number(row, columns["bucket_cap"]) is None or len(known) < len(sizes) or len(known) > MAX_BUCKETS:
            bad.append(line)
            continue
        scale = columns["bucket_sizes"].scale
        subject = _cap(row, columns["bucket_cap"])
        found += [
            {"source": source, "subject": subject, "name": f"bucket{order}_bytes", "value": size * scale}
            for order, size in enumerate(known)
        ]
    return found, bad


def _cap(row: Sequence[str], column: Column) -> str:
    return f"bucket_cap_mb={float(row[column.place]):g}"


def _has_unit(name: str) -> bool:
    return re.search(r"_(?:ns|us|ms|s|sec|per_s|per_sec|gbs|gib|mib|bytes|percent|pct)$", name) is not None


def _plain_number(text: str) -> float | None:
    value = float(text) if _NUMBER.fullmatch(text) else math.nan
    return value if math.isfinite(value) else None


def _listed(numbers: Sequence[int]) -> str:
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    return f"{', '.join(map(str, numbers[:5]))}{more}"


def understand(header: Sequence[str]) -> dict[str, Column]:
    """Return the known columns by word; a word that occurs twice is left out as ambiguous."""
    found: dict[str, list[Column]] = {}
    for place, name in enumerate(header):
        column = _column(place, name)
        if column is not None:
            found.setdefault(column.word, []).append(column)
    return {word: columns[0] for word, columns in found.items() if len(columns) == 1}


def plain(name: str) -> str:
    """Return a column's name in one spelling: lower case, words and unit joined by underscores."""
    return re.sub(r"_{2,}", "_", re.sub(r"[\s()\[\]-]", "_", name.strip()).strip("_").lower())


def _column(place: int, name: str) -> Column | None:
    spelled = plain(name)
    word = _SPELLINGS.get(spelled)
    if word in ("op", "ranks", "dtype", "algorithm", "protocol", "in_place"):
        return Column(place=place, word=word)
    if spelled in ("bytes", "nbytes", "num_bytes"):
        return Column(place=place, word="size")
    stem, _, unit = spelled.rpartition("_")
    word = _SPELLINGS.get(stem)
    scale: float | None = None
    if word in ("time", "step"):
        scale = _NS.get(unit)
    elif word in ("size", "bucket_sizes"):
        scale = _BYTES.get(unit)
    elif word == "bucket_cap":
        scale = 1.0 if unit in _MEBIBYTES else None
    else:
        return _bandwidth(place, name, spelled)
    return Column(place=place, word=word, scale=scale) if word and scale else None


def _bandwidth(place: int, name: str, spelled: str) -> Column | None:
    for word in ("algbw", "busbw"):
        stems = sorted((stem for stem, each in _SPELLINGS.items() if each == word), key=len, reverse=True)
        stem = next((stem for stem in stems if spelled.startswith(stem)), None)
        if stem is None:
            continue
        unit = name.strip()[len(stem) :].strip(" _()[]")
        found = _RATES.fullmatch(unit)
        if unit in _HOUSE:
            return Column(place=place, word=word, scale=_HOUSE[unit])
        if found and found[2] in ("B", "bit", "bits"):
            scale = (1.0 if found[1] == "G" else 1e-3) / (1 if found[2] == "B" else 8)
            return Column(place=place, word=word, scale=scale)
    return None
