"""Raw events of traces as their profilers wrote them, read by plain Python that shares no code with the project."""

import bisect
import gzip
import json
import re
import sqlite3
from collections import Counter, defaultdict
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

NS_PER_MS = 1e6
TRACE_FILE = re.compile(r"(trace|kineto|sampled_rank|fsdp).*\.json(\.gz)?$")
COMM = re.compile(
    r"nccl|rccl|hccl|hcom_|all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|cross_device_reduce|deep_?ep|^gloo:",
    re.I,
)


@dataclass(slots=True)
class Span:
    """Something that ran on a device stream, or a collective on a host thread."""

    start: int
    end: int
    kind: str
    stream: str
    name: str
    launch: "int | None" = None
    size: "int | None" = None
    grid: str = ""
    step: int = -1


@dataclass
class Rank:
    """The raw events of one rank: device spans, host calls into the device API, all other host events."""

    label: str
    spans: list[Span] = field(default_factory=list)
    calls: list[tuple[int, int, str, int]] = field(default_factory=list)
    host: list[tuple[int, int, str, str, int]] = field(default_factory=list)
    """Start, end, name, category, thread."""
    facts: dict[str, object] = field(default_factory=dict)


def ms(length: float) -> float:
    """Return nanoseconds as milliseconds."""
    return round(length / NS_PER_MS, 3)


def ns(text: object) -> int:
    """Return microseconds, as a number or as text, in nanoseconds without loss."""
    whole, _, part = str(text).partition(".")
    if "e" in part or "E" in part:
        return round(float(str(text)) * 1000)
    return int(whole) * 1000 + int((part + "000")[:3]) * (-1 if whole.startswith("-") else 1)


def read(path: Path) -> list[Rank]:
    """Return the ranks of a file, or of all trace files in a folder."""
    if path.is_dir():
        found = sorted(each for each in path.rglob("*.json*") if TRACE_FILE.search(each.name))
        return [rank for each in found for rank in read(each)]
    if path.suffix == ".sqlite":
        return nsight(path)
    data = path.read_bytes()
    document = json.loads(gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data, parse_float=str)
    if isinstance(document, dict) and "rocprofiler-sdk-tool" in document:
        return rocprof(document["rocprofiler-sdk-tool"][0])
    events = document if isinstance(document, list) else document["traceEvents"]
    label = f"{path.parent.parent.name}/{path.name}" if path.name == "trace_view.json.gz" else path.name
    if any(each.get("args", {}).get("name") == "Ascend Hardware" for each in events if each.get("ph") == "M"):
        return [ascend(label, events)]
    rank = kineto(label, events)
    if isinstance(document, dict):
        job = document.get("distributedInfo") or {}
        rank.facts["distributed"] = {key: job[key] for key in ("backend", "rank", "world_size") if key in job}
    return [rank]


def kineto(label: str, events: list[dict]) -> Rank:
    """Return a rank from the events of torch.profiler; categories as any version spells them."""
    rank = Rank(label)
    launches: dict[object, tuple[int, int]] = {}
    device, sizes = [], Counter()
    for each in events:
        if each.get("ph") != "X" or "dur" not in each:
            continue
        category = str(each.get("cat", "")).lower()
        start = ns(each["ts"])
        end = start + ns(each["dur"])
        args = each.get("args") or {}
        name = each["name"]
        if category in ("kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"):
            device.append((start, end, category, name, args, each.get("tid")))
        elif category in ("cuda_runtime", "cuda_driver", "runtime"):
            rank.calls.append((start, end, name, each["tid"]))
            rank.host.append((start, end, name, "call", each["tid"]))
            correlation = args.get("correlation", args.get("External id"))
            if correlation is not None:
                launches.setdefault(correlation, (start, end))
        elif category in ("cpu_op", "operator", "user_annotation", "python_function"):
            rank.host.append((start, end, name, category, each["tid"]))
            if category == "cpu_op" and name.startswith("nccl:") and args.get("Input Dims"):
                sizes[str(args["Input Dims"])[:40]] += 1
    for start, end, category, name, args, track in device:
        kind = "copy" if "mem" in category else "comm" if COMM.search(name) else "compute"
        launched = launches.get(args.get("correlation", args.get("External id")))
        size = args.get("In msg nelems")
        rank.spans.append(
            Span(start, end, kind, f"{args.get('device', '')}:{args.get('stream', track)}", name,
                 launched[0] if launched else None, None if size is None else int(size), str(args.get("grid", "")))
        )  # fmt: skip
    rank.facts["sizes"] = sizes.most_common(6)
    return rank


def nsight(path: Path) -> list[Rank]:
    """Return the devices of an Nsight Systems export, one a process and device."""
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as base:
        return _of_nsight(base)


def _of_nsight(base: sqlite3.Connection) -> list[Rank]:
    text = dict(base.execute("select id, value from StringIds"))
    tables = {name for (name,) in base.execute("select name from sqlite_master where type = 'table'")}
    ranks: dict[tuple[int, int], Rank] = {}
    launches, own = {}, defaultdict(list)
    for start, end, thread, correlation, name in base.execute(
        "select start, end, globalTid, correlationId, nameId from CUPTI_ACTIVITY_KIND_RUNTIME"
    ):
        process = thread >> 24 << 24
        launches[process, correlation] = start
        own[process].append((start, end, re.sub(r"_v\d+$", "", text[name]), thread))
    selects = [("kernel", "select start, end, deviceId, globalPid, streamId, correlationId, demangledName, gridX from "
                "CUPTI_ACTIVITY_KIND_KERNEL")]  # fmt: skip
    for table in ("CUPTI_ACTIVITY_KIND_MEMCPY", "CUPTI_ACTIVITY_KIND_MEMSET"):
        if table in tables:
            columns = "start, end, deviceId, globalPid, streamId, correlationId, bytes, 0"
            selects.append(("copy", f"select {columns} from {table}"))
    for sort, select in selects:
        for start, end, device, process, stream, correlation, what, grid in base.execute(select):
            rank = ranks.setdefault((process, device), Rank(f"device {device}"))
            name = text[what] if sort == "kernel" else sort
            kind = "copy" if sort == "copy" else "comm" if COMM.search(name) else "compute"
            rank.spans.append(
                Span(start, end, kind, str(stream), name, launches.get((process, correlation)), None, str(grid))
            )
    marks = [
        (start, end, label or text.get(code, ""), "mark", thread)
        for start, end, label, code, thread in base.execute(
            "select start, end, text, textId, globalTid from NVTX_EVENTS where end is not null"
        )
    ]
    for (process, _), rank in ranks.items():
        rank.calls = own[process]
        rank.host = [(*each[:3], "call", each[3]) for each in own[process]]
        rank.host += [each for each in marks if each[4] is not None and each[4] >> 24 << 24 == process]
    return [rank for _, rank in sorted(ranks.items(), key=lambda each: each[1].label)]


def rocprof(document: dict) -> list[Rank]:
    """Return the agents of a rocprofv3 JSON with work, one a rank."""
    names = {
        each["kernel_id"]: each.get("truncated_kernel_name") or each["kernel_name"]
        for each in document["kernel_symbols"]
    }
    ranks: dict[int, Rank] = {}
    records = document["buffer_records"]
    operations = {each["kind"]: each["operations"] for each in document["strings"]["buffer_records"]}
    calls = []
    for kind in ("hip_api", "hsa_api", "rccl_api"):
        for each in records.get(kind, []):
            table = operations.get(each["kind"]) or next(iter(operations.values()))
            operation = each["operation"]
            name = table[operation] if isinstance(table, list) and operation < len(table) else str(operation)
            calls.append(
                (
                    each["start_timestamp"],
                    each["end_timestamp"],
                    name,
                    each["thread_id"],
                    each["correlation_id"]["internal"],
                )
            )
    launches = {correlation: start for start, _, _, _, correlation in calls}
    for each in records.get("kernel_dispatch", []):
        info = each["dispatch_info"]
        rank = ranks.setdefault(info["agent_id"]["handle"], Rank(f"agent {info['agent_id']['handle']}"))
        name = names.get(info["kernel_id"], "?")
        kind = "comm" if COMM.search(name) else "compute"
        launch = launches.get(each["correlation_id"]["internal"])
        rank.spans.append(
            Span(each["start_timestamp"], each["end_timestamp"], kind, str(info["queue_id"]["handle"]), name, launch)
        )
    for each in records.get("memory_copy", []):
        agent = each["dst_agent_id"]["handle"]
        agent = agent if agent in ranks else each["src_agent_id"]["handle"]
        if agent in ranks:
            launch = launches.get(each["correlation_id"]["internal"])
            ranks[agent].spans.append(
                Span(each["start_timestamp"], each["end_timestamp"], "copy", "copy", "copy", launch)
            )
    for rank in ranks.values():
        rank.calls = [each[:4] for each in calls]
        rank.host = [(*each[:3], "call", each[3]) for each in calls]
    return [rank for _, rank in sorted(ranks.items())]


def ascend(label: str, events: list[dict]) -> Rank:
    """Return a rank from the vendor's own unions (its "Overlap Analysis" track) and the host's operations."""
    rank = Rank(label)
    process = {each["args"]["name"]: each["pid"] for each in events if each.get("name") == "process_name"}
    overlap, calls = process.get("Overlap Analysis"), process.get("HCCL")
    launch = {}
    for each in events:
        if each.get("ph") == "s" and each.get("cat") == "async_npu":
            launch[each["id"]] = ns(each["ts"])
    lands = {(each["pid"], each["tid"], ns(each["ts"])): launch.get(each["id"])
             for each in events if each.get("ph") == "f" and each.get("cat") == "async_npu"}  # fmt: skip
    hardware = process["Ascend Hardware"]
    tasks: Counter = Counter()
    waits: dict[int, int] = {}
    for each in events:
        if each.get("ph") != "X":
            continue
        start = ns(each["ts"])
        end = start + ns(each["dur"])
        if each["pid"] == overlap and each["name"] in ("Computing", "Communication"):
            kind = "compute" if each["name"] == "Computing" else "comm"
            rank.spans.append(Span(start, end, kind, kind, each["name"]))
        elif each["pid"] == hardware:
            task = each["args"].get("Task Type", "?")
            tasks[task] += end - start
            if each["name"].startswith("MEMCPY"):
                rank.spans.append(Span(start, end, "copy", str(each["tid"]), each["name"]))
            if task == "Notify Wait" and end - start > waits.get(each["args"]["connection_id"], 0):
                waits[each["args"]["connection_id"]] = end - start
        elif each["pid"] == calls and each["name"].startswith("hcom"):
            size = int(each["args"]["count"])
            rank.facts.setdefault("collectives", []).append(
                {"name": each["name"], "ms": ms(end - start), "elements": size,
                 "connection": each["args"]["connection_id"]}
            )  # fmt: skip
        elif each.get("cat") in ("cpu_op", "python_function"):
            rank.host.append((start, end, each["name"], each["cat"], each["tid"]))
    starts = sorted((pid, at) for (pid, _, at), begun in lands.items() if begun is not None and pid == hardware)
    begun = {(pid, at): value for (pid, _, at), value in lands.items()}
    for span in rank.spans:
        near = bisect.bisect_left(starts, (hardware, span.start - 2000))
        if span.kind == "compute" and near < len(starts) and abs(starts[near][1] - span.start) < 2000:
            span.launch = begun[starts[near]]
    for each in rank.facts.get("collectives", ()):
        each["longest_notify_wait"] = ms(waits.get(each["connection"], 0))
    rank.facts["task_ms"] = {name: ms(spent) for name, spent in tasks.most_common(8)}
    return rank
