"""The files that nccl-tests (`-J`) and rccl-tests (`-x`, as JSON or CSV) write beside their tables."""

import csv
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from overlapscope.ingest.bandwidth_identity import identify
from overlapscope.ingest.bandwidth_lines import BandwidthTable, program_operation
from overlapscope.ingest.bandwidth_rows import DTYPES, Row, Timing, exact, figure, whole
from overlapscope.ingest.classify import operation
from overlapscope.ingest.formats.nccl_tests import CSV_HEADER
from overlapscope.ingest.json_scan import scan
from overlapscope.values import dataclass

STEERING: Final = ("NCCL_", "RCCL_")
"""nccl-tests writes its whole environment, secrets included; only variables that begin so are kept."""
_HALF: Final = 5e-7
"""Both write six decimals."""
_BARE: Final = re.compile(rb'("(?:[^"\\]|\\.)*+")|(?<=[:,\[\s])-?(?:N/A|nan|inf)(?=\s*[,}\]])', re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class BandwidthFile:
    """What one such file holds."""

    tables: tuple[BandwidthTable, ...]
    warnings: tuple[str, ...] = ()
    dropped: int = 0
    truncated: bool = False
    fingerprint: Mapping[str, str | int | None] | None = None


def read_report(content: bytes) -> BandwidthFile | None:
    """Read the JSON report of nccl-tests, also one that a killed job left open; None when it is none."""
    whole_report = _decoded(content)
    truncated = whole_report is None
    report = _salvaged(content) if truncated else whole_report
    if not isinstance(report, dict) or not isinstance(report.get("results"), list):
        return None
    rows, dropped, cpu_time = [], 0, False
    for each in report["results"]:
        row, by_cpu = _report_row(each)
        dropped += row is None
        cpu_time |= by_cpu
        rows += [row] if row is not None else []
    config = report.get("config") if isinstance(report.get("config"), dict) else {}
    assert isinstance(config, dict)
    args = report.get("args")
    program = args[0] if isinstance(args, list) and args and isinstance(args[0], str) else ""
    devices = config.get("devices", report.get("devices"))
    identity = identify(rows, program_operation(program), _report_ranks(config, devices), cpu_time=cpu_time)
    table = BandwidthTable(rows=tuple(rows), identity=identity, cpu_time=cpu_time)
    return BandwidthFile(
        tables=(table,) if rows else (),
        warnings=identity.warnings,
        dropped=dropped,
        truncated=truncated,
        fingerprint=_fingerprint(report, devices),
    )


def _decoded(content: bytes) -> Any:
    """Decode JSON in which bare `nan`, `inf` and `N/A` may stand for numbers; None when it is none."""
    for text in (content, _BARE.sub(lambda found: found[1] or b"null", content)):
        try:
            return msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            continue
    return None


def _salvaged(content: bytes) -> dict[str, Any] | None:
    """Give what precedes the results, and the whole ones among these."""
    found = re.search(rb'"results"\s*:\s*\[', content)
    if not found:
        return None
    head = _decoded(content[: found.start()].rstrip().rstrip(b",") + b"}")
    body = content[found.end() :]
    results = [_decoded(body[start:end]) for start, end in scan(body).objects]
    return {**head, "results": results} if isinstance(head, dict) else None


def _report_row(result: object) -> tuple[Row | None, bool]:
    if not isinstance(result, dict) or exact(result.get("size")) is None or not isinstance(result.get("size"), int):
        return None, False
    count, root, redop, dtype = (result.get(key) for key in ("count", "root", "redop", "type"))
    row = Row(
        size_bytes=result["size"],
        count=count if isinstance(count, int) and exact(count) else None,
        dtype=DTYPES.get(dtype) if isinstance(dtype, str) else None,
        redop=redop if isinstance(redop, str) and redop else None,
        root=whole(root.strip()) if isinstance(root, str) else None,
        out_of_place=_report_timing(result.get("out_of_place")),
        in_place=_report_timing(result.get("in_place")),
    )
    halves = [result.get(key) for key in ("out_of_place", "in_place")]
    by_cpu = any(isinstance(each, dict) and "cpu_time" in each for each in halves)
    return (row if row.timings else None), by_cpu


def _report_timing(half: object) -> Timing | None:
    if not isinstance(half, dict):
        return None
    wrong = exact(half.get("nwrong"))
    return Timing(
        time_us=exact(half.get("time", half.get("cpu_time")), _HALF),
        algbw_gbs=exact(half.get("alg_bw"), _HALF),
        busbw_gbs=exact(half.get("bus_bw"), _HALF),
        wrong=int(wrong.value) if wrong else None,
        checked=half["nwrong"] is not None if "nwrong" in half else None,
    )


def _report_ranks(config: Mapping[str, Any], devices: object) -> int | None:
    """Give the ranks of a group: the report lists only the first device of each process."""
    threads, gpus = (config.get(key) for key in ("nthreads", "ngpus"))
    if not isinstance(threads, int) or not isinstance(gpus, int) or not 0 < threads * gpus < 10_000:
        return None
    if not isinstance(devices, list):
        return None
    groups: dict[object, int] = {}
    for each in devices:
        if not isinstance(each, dict) or not isinstance(each.get("group", 0), int):
            return None
        groups[each.get("group", 0)] = groups.get(each.get("group", 0), 0) + 1
    sizes = set(groups.values())
    return sizes.pop() * threads * gpus if len(sizes) == 1 else None


def _fingerprint(report: Mapping[str, Any], devices: object) -> dict[str, str | int | None]:
    known: dict[str, str | int | None] = {}
    version = report.get("nccl_version")
    if isinstance(version, int) and not isinstance(version, bool) and 2000 < version < 10**8:
        scale = 10_000 if version >= 10_000 else 1000  # 2.9 and later: 20900 (nccl.h, NCCL_VERSION)
        known["nccl_version"] = f"{version // scale}.{version % scale // 100}.{version % 100}"
    names = (
        {each.get("device_info") for each in devices if isinstance(each, dict)} if isinstance(devices, list) else set()
    )
    if len(names) == 1 and isinstance(name := names.pop(), str):
        known["device"] = name.strip()
    environment = report.get("env")
    for entry in environment if isinstance(environment, list) else []:
        name, equals, value = entry.partition("=") if isinstance(entry, str) else ("", "", "")
        if equals and name.startswith(STEERING):
            known[name] = value
    return known


# --- rccl-tests -----------------------------------------------------------------------------------------------------

_CSV_KEYS: Final = {
    "numcycle": "numCycle",
    "collective": "name",
    "rankspernode": "ranksPerNode",
    "gpusperrank": "gpusPerRank",
    "inplace": "inPlace",
    "algbw": "algBw",
    "busbw": "busBw",
    "#wrong": "wrong",
}


def read_rccl(content: bytes) -> BandwidthFile | None:
    """Read what rccl-tests' Reporter writes: an array of flat objects, such objects line by line, or CSV."""
    text = content.decode("utf-8", "replace").lstrip("\ufeff \t\r\n")
    records: list[Any]
    truncated = False
    if re.match(CSV_HEADER, text):
        records = list(_csv_records(text))
    elif isinstance(decoded := _decoded(content), list):
        records = decoded
    else:
        truncated = text.startswith("[")
        body = content[content.find(b"[") + 1 :] if truncated else content
        records = [_decoded(body[start:end]) for start, end in scan(body).objects]
    rows: dict[tuple[str, tuple[int, ...]], list[Row]] = {}
    dropped = 0
    for record in records:
        row = _rccl_row(record)
        if row is None:
            dropped += 1
            continue
        rows.setdefault((record["name"], _possible_ranks(record)), []).append(row)
    if not rows:
        return None
    tables: list[BandwidthTable] = []
    warnings: list[str] = []
    for (name, possible), same in rows.items():
        fitting = [n for n in possible if not identify(same, operation(name), n).warnings]
        ranks = possible[0] if len(possible) == 1 else fitting[0] if len(fitting) == 1 else None
        identity = identify(same, operation(name), ranks)
        warnings += identity.warnings
        tables.append(BandwidthTable(rows=tuple(same), identity=identity))
    return BandwidthFile(tables=tuple(tables), warnings=tuple(warnings), dropped=dropped, truncated=truncated)


def _csv_records(text: str) -> Iterator[dict[str, Any] | None]:
    lines = csv.reader(text.splitlines(), skipinitialspace=True)
    header = [_CSV_KEYS.get(key.strip().lower(), key.strip().lower()) for key in next(lines)]
    for values in lines:
        keys = header
        if len(values) == len(header) + 1 and "nodes" not in header:
            keys = [*header[:2], "nodes", *header[2:]]  # older versions' header lacks it
        if any(values):
            yield dict(zip(keys, map(_number_or_text, values), strict=True)) if len(keys) == len(values) else None


def _number_or_text(value: str) -> object:
    number = whole(value.strip())
    if number is not None:
        return number
    found = figure(value.strip())
    return found.value if found else value.strip()


def _rccl_row(record: object) -> Row | None:
    if not isinstance(record, dict) or not isinstance(record.get("name"), str):
        return None
    size, dtype, redop = record.get("size"), record.get("type"), record.get("redop")
    time, algbw, busbw = (exact(record.get(key), _HALF) for key in ("time", "algBw", "busBw"))
    if not isinstance(size, int) or exact(size) is None or time is None or record.get("inPlace") not in (0, 1):
        return None
    wrong = record.get("wrong")
    count = whole(wrong) if isinstance(wrong, str) else wrong if isinstance(wrong, int) and exact(wrong) else None
    timing = Timing(time_us=time, algbw_gbs=algbw, busbw_gbs=busbw, wrong=count, checked=count is not None)
    return Row(
        size_bytes=size,
        count=None,
        dtype=DTYPES.get(dtype) if isinstance(dtype, str) else None,
        redop=redop if isinstance(redop, str) and redop else None,
        out_of_place=None if record["inPlace"] else timing,
        in_place=timing if record["inPlace"] else None,
    )


def _possible_ranks(record: Mapping[str, Any]) -> tuple[int, ...]:
    """Give how many ranks the collective may have had: processes times devices of each.

    `ranksPerNode` holds the processes of the group, `ranks` those of the job: where these differ, busbw must decide.
    """
    gpus = record.get("gpusPerRank", record.get("gpus"))
    if not isinstance(gpus, int) or not 0 < gpus < 100_000:
        return ()
    if "gpusPerRank" not in record:
        return (gpus,)
    processes = {record[key] for key in ("ranks", "ranksPerNode") if isinstance(record.get(key), int)}
    return tuple(sorted(each * gpus for each in processes if 0 < each < 1 << 20))
