"""Write synthetic Kineto traces: the same events, in the forms of several torch versions.

Events carry integer nanoseconds since the start of the recording; `write` turns them into the bytes of a trace file in
a dialect. Dialects of whole microseconds take only times that are multiples of 1,000.
"""

import gzip
import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

US = 1_000
MS = 1_000_000
PROCESS, MAIN, BACKWARD = 4711, 4711, 4712
COMPUTE_STREAM, COMM_STREAM = 7, 20
GEMM = "ampere_sgemm_128x64_nn"
NCCL_KERNEL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"


class Event(msgspec.Struct, frozen=True, kw_only=True):
    """One event; `sort` is a category as of 2022, which the dialect translates."""

    sort: str | None
    name: str
    start_ns: int
    duration_ns: int | None = None
    process: int | str = PROCESS
    thread: int | str = MAIN
    args: Mapping[str, object] = {}
    phase: str = "X"


class Dialect(msgspec.Struct, frozen=True, kw_only=True):
    """How a torch version writes events: categories, origin of time, decimals, streams."""

    name: str
    decimals: int
    start_us: int
    """What the trace writes as the time at which the recording starts."""
    base_ns: int | None = None
    categories: Mapping[str, str] = {}
    stream: str = "{}"
    external_id: str = "External id"


TORCH_1_8 = Dialect(
    name="torch 1.8",
    decimals=0,
    start_us=1_610_366_662_254_362,
    categories={
        "kernel": "Kernel",
        "gpu_memcpy": "Memcpy",
        "gpu_memset": "Memset",
        "cuda_runtime": "Runtime",
        "cpu_op": "Operator",
        "user_annotation": "Operator",
        "ac2g": "async",
    },
    stream="stream {}",
    external_id="external id",
)
TORCH_2022 = Dialect(name="2022", decimals=0, start_us=1_661_203_462_584_767)
TORCH_2024 = Dialect(name="2024", decimals=3, start_us=4_458_676_416_788, base_ns=1_711_964_646_000_000_000)
ABSOLUTE_FLOATS = Dialect(name="absolute floats", decimals=3, start_us=1_712_345_678_901_234)
DIALECTS = (TORCH_1_8, TORCH_2022, TORCH_2024, ABSOLUTE_FLOATS)


def kernel(
    name: str,
    start_ns: int,
    duration_ns: int,
    *,
    stream: int = COMPUTE_STREAM,
    correlation: int | None = None,
    sort: str = "kernel",
    args: Mapping[str, object] | None = None,
) -> Event:
    """Return device work; `sort` may be gpu_memcpy, gpu_memset or gpu_user_annotation, too."""
    linked = {} if correlation is None else {"correlation": correlation}
    return Event(
        sort=sort,
        name=name,
        start_ns=start_ns,
        duration_ns=duration_ns,
        process=0,
        thread=stream,
        args={"External id": 0, "device": 0, "context": 1, "stream": stream, **linked, **(args or {})},
    )


def memcpy(
    start_ns: int,
    duration_ns: int,
    *,
    name: str = "Memcpy HtoD (Pageable -> Device)",
    stream: int = COMPUTE_STREAM,
    correlation: int | None = None,
) -> Event:
    """Return a copy on the device."""
    args = {"bytes": 4096, "memory bandwidth (GB/s)": 0.785}
    return kernel(name, start_ns, duration_ns, stream=stream, correlation=correlation, sort="gpu_memcpy", args=args)


def memset(start_ns: int, duration_ns: int, *, stream: int = COMPUTE_STREAM, correlation: int | None = None) -> Event:
    """Return a fill on the device."""
    args = {"bytes": 512}
    return kernel(
        "Memset (Device)", start_ns, duration_ns, stream=stream, correlation=correlation, sort="gpu_memset", args=args
    )


def launch(
    start_ns: int,
    correlation: int,
    *,
    name: str = "cudaLaunchKernel",
    thread: int = MAIN,
    duration_ns: int = 5 * US,
    process: int = PROCESS,
) -> Event:
    """Return the API call that enqueues device work."""
    return Event(
        sort="cuda_runtime",
        name=name,
        start_ns=start_ns,
        duration_ns=duration_ns,
        process=process,
        thread=thread,
        args={"External id": 0, "cbid": 211, "correlation": correlation},
    )


def op(
    name: str,
    start_ns: int,
    duration_ns: int,
    *,
    thread: int = MAIN,
    sort: str = "cpu_op",
    args: Mapping[str, object] | None = None,
) -> Event:
    """Return a host operation; with `sort="user_annotation"`, an annotation."""
    return Event(
        sort=sort,
        name=name,
        start_ns=start_ns,
        duration_ns=duration_ns,
        thread=thread,
        args={"External id": 1, "Ev Idx": 0, **(args or {})},
    )


def annotation(
    name: str, start_ns: int, duration_ns: int, *, thread: int = MAIN, args: Mapping[str, object] | None = None
) -> Event:
    """Return a user annotation."""
    return op(name, start_ns, duration_ns, thread=thread, sort="user_annotation", args=args)


def step(number: int, start_ns: int, duration_ns: int) -> Event:
    """Return the profiler's own annotation of a training step."""
    return annotation(f"ProfilerStep#{number}", start_ns, duration_ns)


def record_param_comms(
    start_ns: int, duration_ns: int, *, thread: int = BACKWARD, args: Mapping[str, object] | None = None
) -> Event:
    """Return the operation in which torch records a collective's parameters."""
    return op("record_param_comms", start_ns, duration_ns, thread=thread, args=args)


def collective_args(
    name: str = "allreduce",
    *,
    elements: int = 1024,
    out_elements: int | None = None,
    dtype: str = "Float",
    group: str = "0",
    ranks: Sequence[int] = (0, 1),
    seq: int | None = None,
) -> dict[str, object]:
    """Return the arguments that torch 2.4 and later write on kernels and `record_param_comms`."""
    numbered = {} if seq is None else {"Seq": seq}
    return {
        "Collective name": name,
        "In msg nelems": elements,
        "Out msg nelems": elements if out_elements is None else out_elements,
        "Group size": len(ranks),
        "dtype": dtype,
        "In split size": "[]",
        "Out split size": "[]",
        "Process Group Name": group,
        "Process Group Description": "default_pg",
        "Process Group Ranks": str(list(ranks)),
        **numbered,
    }


def sync(kind: str, start_ns: int, duration_ns: int, correlation: int, stream: int, **awaited: int) -> Event:
    """Return a synchronisation as Kineto writes it (CuptiActivity.cpp), on a track of its own since 2026."""
    args = {"cuda_sync_kind": kind, **awaited, "stream": stream, "correlation": correlation, "device": 0, "context": 1}
    return Event(
        sort="cuda_sync", name=kind, start_ns=start_ns, duration_ns=duration_ns, process=0, thread=f"sync {stream}",
        args=args,
    )  # fmt: skip


def mark(name: str, at_ns: int) -> Event:
    """Return one of the profiler's instants, `Iteration Start: PyTorch Profiler` or `Record Window End`."""
    return Event(sort=None, name=name, start_ns=at_ns, process="Traces", thread="Trace PyTorch Profiler", phase="i")


def flow(phase: str, at_ns: int, number: int, *, process: int = PROCESS, thread: int = MAIN) -> Event:
    """Return one end of an arrow from launch (`s`) to kernel (`f`)."""
    return Event(
        sort="ac2g", name="ac2g", start_ns=at_ns, process=process, thread=thread, phase=phase, args={"number": number}
    )


def process_name(name: str) -> Event:
    """Return the event that names the process."""
    return Event(sort=None, name="process_name", start_ns=0, thread=0, phase="M", args={"name": name})


def distributed(rank: int, world_size: int = 2, *, backend: str = "nccl") -> dict[str, object]:
    """Return the metadata with the rank and its groups."""
    return {
        "distributedInfo": {
            "backend": backend,
            "rank": rank,
            "world_size": world_size,
            "pg_count": 1,
            "pg_config": [
                {
                    "pg_name": "0",
                    "pg_desc": "default_pg",
                    "backend_config": f"cuda:{backend}",
                    "pg_size": world_size,
                    "ranks": list(range(world_size)),
                }
            ],
            "nccl_version": "2.21.5",
        }
    }


def training(steps: int = 2, *, first: int = 3) -> list[Event]:
    """Return a data-parallel training loop of 10 ms a step, each with known figures (`TRAINING_STEP_NS`).

    Within a step, in ms: compute 1-4 and 5-6, communication 2-6, a copy 7-7.5, a fill 7.5-7.6.
    """
    events = [process_name("python"), mark("Iteration Start: PyTorch Profiler", 0)]
    for number in range(first, first + steps):
        t = (number - first) * 10 * MS + 100 * US
        c = 100 * (number + 1)
        comm = collective_args(elements=1 << 20, seq=number)
        events += [
            step(number, t, 10 * MS - 10 * US),
            op("aten::mm", t + 20 * US, 50 * US, args={"Input Dims": [[64, 64], [64, 64]], "Input type": ["float"]}),
            launch(t + 30 * US, c),
            flow("s", t + 30 * US, c),
            kernel(GEMM, t + 1 * MS, 3 * MS, correlation=c),
            flow("f", t + 1 * MS, c, process=0, thread=COMPUTE_STREAM),
            record_param_comms(t + 200 * US, 100 * US, args=comm),
            annotation("nccl:all_reduce", t + 210 * US, 80 * US, thread=BACKWARD),
            launch(t + 220 * US, c + 1, thread=BACKWARD, name="cudaLaunchKernelExC"),
            kernel(NCCL_KERNEL, t + 2 * MS, 4 * MS, stream=COMM_STREAM, correlation=c + 1, args=comm),
            op("aten::addmm", t + 400 * US, 50 * US, thread=BACKWARD),
            launch(t + 410 * US, c + 2, thread=BACKWARD),
            kernel(GEMM, t + 5 * MS, 1 * MS, correlation=c + 2),
            launch(t + 500 * US, c + 3, name="cudaMemcpyAsync"),
            memcpy(t + 7 * MS, 500 * US, correlation=c + 3),
            launch(t + 520 * US, c + 4, name="cudaMemsetAsync"),
            memset(t + 7 * MS + 500 * US, 100 * US, correlation=c + 4),
        ]
    events.append(mark("Record Window End", steps * 10 * MS + 200 * US))
    return events


def write_job(folder: Path, ranks: int, *, steps: int = 2) -> Path:
    """Write the traces of a job's ranks, `rank0.json` and so on, into a folder, which is made where it is missing."""
    folder.mkdir(exist_ok=True)
    for rank in range(ranks):
        (folder / f"rank{rank}.json").write_bytes(write(training(steps), metadata=distributed(rank, ranks)))
    return folder


TRAINING_STEP_NS = {
    "window_ns": 10 * MS,
    "comm_ns": 4 * MS,
    "compute_ns": 4 * MS,
    "copy_ns": 600 * US,
    "overlapped_ns": 3 * MS,
    "exposed_comm_ns": 1 * MS,
    "compute_only_ns": 1 * MS,
    "copy_only_ns": 600 * US,
    "idle_ns": 4_400 * US,
}
"""The figures of each step of `training` that another one follows."""


def event_texts(events: Iterable[Event], dialect: Dialect = TORCH_2024, *, ph_first: bool = True) -> list[bytes]:
    """Return the text of each event on its own line, so that a test can damage one."""
    return [_event(each, dialect, ph_first=ph_first, indent=False) for each in events]


def write(
    events: Iterable[Event],
    dialect: Dialect = TORCH_2024,
    *,
    metadata: Mapping[str, object] | None = None,
    metadata_after: bool = False,
    array: bool = False,
    indent: bool = False,
    ph_first: bool = True,
    compress: bool = False,
) -> bytes:
    """Return a whole trace file."""
    texts = [_event(each, dialect, ph_first=ph_first, indent=indent) for each in events]
    text = assemble(texts, dialect, metadata=metadata, metadata_after=metadata_after, array=array, indent=indent)
    return gzip.compress(text, mtime=0) if compress else text


def assemble(
    texts: Sequence[bytes],
    dialect: Dialect = TORCH_2024,
    *,
    metadata: Mapping[str, object] | None = None,
    metadata_after: bool = False,
    array: bool = False,
    indent: bool = False,
) -> bytes:
    """Return a trace file of events that are already text, valid or not."""
    listed = (b",\n  " if indent else b",").join(texts)
    if array:
        return b"[\n" + listed + b"\n]\n" if indent else b"[" + listed + b"]"
    base = {} if dialect.base_ns is None else {"displayTimeUnit": "ms", "baseTimeNanoseconds": dialect.base_ns}
    fields = [
        f"{json.dumps(key)}: {json.dumps(value, indent=4 if indent else None)}".encode()
        for key, value in {**(metadata or {}), **base}.items()
    ]
    own = b'"traceEvents": [\n  ' + listed + b"\n  ]" if indent else b'"traceEvents": [' + listed + b"]"
    schema = b'"schemaVersion": 1'
    parts = [schema, own, *fields] if metadata_after else [schema, *fields, own]
    return b"{\n  " + b",\n  ".join(parts) + b"\n}\n" if indent else b"{" + b",".join(parts) + b"}"


def _event(event: Event, dialect: Dialect, *, ph_first: bool, indent: bool) -> bytes:
    args = {dialect.external_id if key == "External id" else key: value for key, value in event.args.items()}
    on_device = event.process == 0 and isinstance(event.thread, int)
    thread = dialect.stream.format(event.thread) if on_device else event.thread
    if isinstance(thread, str) and thread.isdigit():
        thread = int(thread)
    pairs = [("ph", json.dumps(event.phase))]
    if event.sort is not None:
        pairs.append(("cat", json.dumps(dialect.categories.get(event.sort, event.sort))))
    if event.phase in "sf":
        pairs.append(("id", json.dumps(args.pop("number"))))
    pairs += [
        ("name", json.dumps(event.name)),
        ("pid", json.dumps(event.process)),
        ("tid", json.dumps(thread)),
        ("ts", _time(event.start_ns, dialect, dialect.start_us)),
    ]
    if event.duration_ns is not None:
        pairs.append(("dur", _time(event.duration_ns, dialect, 0)))
    if event.phase == "i":
        pairs.append(("s", '"g"'))
    if event.phase == "f":
        pairs.append(("bp", '"e"'))
    if args:
        pairs.append(("args", json.dumps(args, indent=6 if indent else None)))
    if not ph_first:
        # As other writers sort: args first, which puts an object before the phase.
        pairs.sort()
    between = ",\n    " if indent else ","
    body = between.join(f'"{key}": {value}' if indent else f'"{key}":{value}' for key, value in pairs)
    return f"{{\n    {body}\n  }}".encode() if indent else f"{{{body}}}".encode()


def _time(ns: int, dialect: Dialect, start_us: int) -> str:
    if not dialect.decimals:
        if ns % 1000:
            raise ValueError(f"{dialect.name} writes whole microseconds, not {ns} ns")
        return str(start_us + ns // 1000)
    whole, fraction = divmod(ns + start_us * 1000, 1000)
    return f"{whole}.{fraction:03d}"
