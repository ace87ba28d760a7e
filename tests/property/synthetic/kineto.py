"""A simulated job as the files that torch.profiler writes, one a recorded rank."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from tests.property.synthetic.job import Job
from tests.property.synthetic.joined import EPOCH_NS, Clock, Joined, NamedGroup, named_groups
from tests.property.synthetic.machine import Simulated
from tests.property.synthetic.record import COMM, COMPUTE, MAIN, Call, Record

PROCESS = 4711
LIBRARY = {"all_to_all": "nccl:all_to_all", "send": "nccl:send", "recv": "nccl:recv"}
SPELLED = {
    "all_reduce": "allreduce", "all_gather": "_allgather_base", "reduce_scatter": "_reduce_scatter_base",
    "all_to_all": "all_to_allv", "send": "send", "recv": "recv",
}  # fmt: skip
ITEM = {"BFloat16": 2, "Float": 4}
EXPERTS_OP = '"deep_ep_cpp::exchange"'
BEFORE_NS, AFTER_NS = 400, 100
"""The operation around a launch begins and ends so much earlier and later."""
CALLS_FROM = 10_000_000
"""Correlations of calls without a span."""


def write_kineto(simulated: Simulated, folder: Path) -> list[Path]:
    """Write one file for each recorded rank into `folder`, which is made; return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    groups = named_groups(simulated.job)
    written = []
    for record in simulated.records:
        if not record.ranks.size:
            continue
        joined = Joined(record)
        for row, rank in enumerate(joined.ranks.tolist()):
            own = {each.dimension: each for each in groups if rank in each.ranks}
            text = _document(simulated.job, rank, own, _events(simulated.job, record, joined, row, own))
            path = folder / f"rank{rank}.pt.trace.json"
            path.write_bytes(text)
            written.append(path)
    return written


def _document(job: Job, rank: int, groups: Mapping[str, NamedGroup], events: Iterator[str]) -> bytes:
    info = {
        "backend": "nccl", "rank": rank, "world_size": job.layout.world, "pg_count": len(groups),
        "pg_config": [
            {"pg_name": each.name, "pg_desc": each.description, "backend_config": "cuda:nccl",
             "pg_size": len(each.ranks), "ranks": list(each.ranks)}
            for each in groups.values()
        ],
        "nccl_version": "2.21.5",
    }  # fmt: skip
    head = f'{{"schemaVersion":1,"distributedInfo":{json.dumps(info)},"displayTimeUnit":"ms",'
    listed = ",\n".join(events)
    return f'{head}"baseTimeNanoseconds":{EPOCH_NS},"traceEvents":[{listed}]}}'.encode()


def _events(job: Job, record: Record, joined: Joined, row: int, groups: Mapping[str, NamedGroup]) -> Iterator[str]:
    clock = Clock(job, int(joined.ranks[row]))
    for number, begun, ended in record.steps:
        yield _span("user_annotation", f"ProfilerStep#{number}", 0, *_of(clock, begun[row], ended[row]))
    for name, thread, begun, ended in record.marks:
        yield _span("user_annotation", name, thread, *_of(clock, begun[row], ended[row]))
    for name, begun, ended in record.waits:
        yield _span("cuda_runtime", name, MAIN, *_of(clock, begun[row], ended[row]))
    for number, (name, begun, ended) in enumerate(record.calls, CALLS_FROM):
        yield _call(name, MAIN, *_of(clock, begun[row], ended[row]), number)
    there = np.flatnonzero(joined.present[row])
    start, end, launch, returned = (
        (clock.shows(each[row, there]) - EPOCH_NS).tolist()
        for each in (joined.start, joined.end, joined.launch, joined.returned)
    )
    columns = (joined.kind, joined.stream, joined.thread, joined.name, joined.op, joined.correlation, joined.graph,
               joined.call)  # fmt: skip
    blocks = joined.blocks[row, there].astype(np.int64).tolist()
    shared = [each[there].tolist() for each in columns]
    names = [json.dumps(name) for name in joined.names]
    before = None
    for begun, ended, launched, over, grid, kind, stream, thread, name, op, correlation, graph, call in zip(
        start, end, launch, returned, blocks, *shared, strict=True
    ):
        by_nccl = kind == COMM and not joined.calls[call].kernel
        args_text = _args_text(job, joined.calls[call], row, groups) if by_nccl else ""
        if correlation != before:
            api = "cudaGraphLaunch" if graph else "cudaLaunchKernel" if kind in (COMPUTE, COMM) else "cudaMemcpyAsync"
            yield _operation(names[op] if by_nccl or kind != COMM else EXPERTS_OP, thread, launched, over, args_text)
            yield _call(api, thread, launched, over, correlation)
            if by_nccl:
                library = LIBRARY.get(joined.calls[call].op, f"nccl:{joined.calls[call].op}")
                yield _span("user_annotation", library, thread, launched - BEFORE_NS // 2, over + AFTER_NS // 2)
        before = correlation
        category = "kernel" if kind in (COMPUTE, COMM) else "gpu_memcpy"
        shape = f'"grid":[{grid},1,1],"block":[256,1,1],' if grid else '"bytes":1048576,'
        yield (
            f'{{"ph":"X","cat":"{category}","name":{names[name]},"pid":0,"tid":{stream},"ts":{_us(begun)},'
            f'"dur":{_us(ended - begun)},"args":{{"device":0,"stream":{stream},{shape}"correlation":{correlation}'
            f"{args_text if job.collective_args else ''}}}}}"
        )


def _operation(op: str, thread: int, launched: int, over: int, text: str) -> str:
    args = f',"args":{{{text[1:]}}}' if text else ""
    start, end = launched - BEFORE_NS, over + AFTER_NS
    return (
        f'{{"ph":"X","cat":"cpu_op","name":{op},"pid":{PROCESS},"tid":{PROCESS + thread},"ts":{_us(start)},'
        f'"dur":{_us(end - start)}{args}}}'
    )


def _call(api: str, thread: int, begun: int, ended: int, correlation: int) -> str:
    return (
        f'{{"ph":"X","cat":"cuda_runtime","name":"{api}","pid":{PROCESS},"tid":{PROCESS + thread},"ts":{_us(begun)},'
        f'"dur":{_us(ended - begun)},"args":{{"cbid":211,"correlation":{correlation}}}}}'
    )


def _args_text(job: Job, call: Call, row: int, groups: Mapping[str, NamedGroup]) -> str:
    """Return the arguments that torch 2.4 and later write of a call."""
    group, item = groups[call.dimension], ITEM[call.dtype]
    args: dict[str, object] = {
        "Collective name": SPELLED[call.op], "dtype": call.dtype,
        "In msg nelems": int(call.sent[row]) // item, "Out msg nelems": int(call.got[row]) // item,
        "Group size": call.group_size, "Process Group Name": group.name,
        "Process Group Description": group.description, "Process Group Ranks": str(list(group.ranks)),
    }  # fmt: skip
    if job.numbered:
        args["Seq"] = call.number
    if call.peer is not None:
        args["Src Rank" if call.op == "recv" else "Dst Rank"] = int(call.peer[row])
    return "," + json.dumps(args)[1:-1]


def _of(clock: Clock, begun: float, ended: float) -> tuple[int, int]:
    shown = clock.shows(np.array([begun, ended])) - EPOCH_NS
    return int(shown[0]), int(shown[1])


def _span(category: str, name: str, thread: int, start: int, end: int) -> str:
    return (
        f'{{"ph":"X","cat":"{category}","name":"{name}","pid":{PROCESS},"tid":{PROCESS + thread},"ts":{_us(start)},'
        f'"dur":{_us(end - start)}}}'
    )


def _us(ns: int) -> str:
    return f"{ns // 1000}.{ns % 1000:03d}"
