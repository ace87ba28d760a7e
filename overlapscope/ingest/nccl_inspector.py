"""Records of NCCL Inspector (ext-profiler/inspector, plugins/profiler/inspector; format versions 4.0 to 4.3)."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from overlapscope.ingest.call_rows import CallRows, called_elements, rank_number, whole_number
from overlapscope.ingest.classify import operation
from overlapscope.timeline.run import MAX_RANKS

EPOCH_US: Final = (10**15, 10**16)
"""Microseconds since 1970 that lie between 2001 and 2286."""
TOLERANCE: Final = 0.01
"""Inspector computes bandwidths from the same whole microseconds it writes: they agree but for rounding."""


class Inspected(msgspec.Struct):
    """What the records hold."""

    calls: CallRows = msgspec.field(default_factory=CallRows)
    records: int = 0
    unusable: int = 0
    sources: Counter[str] = msgspec.field(default_factory=Counter)
    """How each operation was timed, in Inspector's words."""
    lost: dict[str, int] = {}
    """Operations that fell out of Inspector's ring, by communicator and rank."""
    contradicted: int = 0

    def warnings(self) -> list[str]:
        """Give what a reader of the figures must know."""
        found = []
        lost = sum(self.lost.values())
        if lost:
            found.append(
                f"Inspector lost {lost} operations, which its ring had no room for; a larger "
                "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE or a shorter dump interval keeps them"
            )
        untimed = self.sources.total() - sum(self.sources[each] for each in self.sources if _is_device(each))
        if untimed:
            listed = ", ".join(
                f"{source}: {count}" for source, count in self.sources.most_common(5) if not _is_device(source)
            )
            found.append(f"{untimed} operations were not timed on the device ({listed}); their times are left out")
        if self.contradicted:
            found.append(f"the bandwidth of {self.contradicted} operations is not their size over their time")
        return found


def _is_device(timing_source: str) -> bool:
    return "gpu" in timing_source


def read_inspector(objects: Iterable[Mapping[str, Any]]) -> Inspected:
    """Read the records of one process."""
    found = Inspected()
    for record in objects:
        found.records += 1
        found.unusable += not _take(found, record)
    return found


def _take(found: Inspected, record: Mapping[str, Any]) -> bool:
    header, metadata = record.get("header"), record.get("metadata")
    member = rank_number(header.get("rank")) if isinstance(header, dict) else None
    if member is None or not isinstance(header, dict):
        return False
    identity = header.get("id")
    name = identity if isinstance(identity, str) and identity else "unnamed"
    comm = found.calls.communicator(name)
    size, nodes = whole_number(header.get("n_ranks"), MAX_RANKS), whole_number(header.get("nnodes"), MAX_RANKS)
    comm.size, comm.nodes = size or comm.size, nodes or comm.nodes
    told = comm.members.setdefault(member, {})
    if isinstance(metadata, dict):
        host, process = metadata.get("hostname"), whole_number(metadata.get("pid"))
        told |= {"host": host if isinstance(host, str) else None, "process": process}
    stats = record.get("dump_stats")
    if isinstance(stats, dict):
        lost = [whole_number(stats.get(f"{kind}_dropped_total")) or 0 for kind in ("coll", "p2p")]
        found.lost[f"{name} {member}"] = max(sum(lost), found.lost.get(f"{name} {member}", 0))
        return True
    for kind in ("coll", "p2p"):
        performance = record.get(f"{kind}_perf")
        if isinstance(performance, dict):
            return _add(found, name, member, kind, performance, comm.size)
    return "proxy_trace" in record


def _add(found: Inspected, comm: str, member: int, kind: str, told: Mapping[str, Any], ranks: int | None) -> bool:
    spelled = told.get(kind)
    if not isinstance(spelled, str):
        return False
    op = operation("AlltoAll" if spelled == "All2All" else spelled) or spelled
    message, time_us = whole_number(told.get(f"{kind}_msg_size_bytes")), _real(told.get(f"{kind}_exec_time_us"))
    algbw, busbw = _real(told.get(f"{kind}_algobw_gbs")), _real(told.get(f"{kind}_busbw_gbs"))
    source = told.get(f"{kind}_timing_source")
    source = source if isinstance(source, str) else "not told"
    found.sources[source] += 1
    size = None if spelled.endswith("V") else called_elements(op, message, ranks)  # ranks' shares differ in AllGatherV
    timed = _is_device(source) and bool(time_us)
    if timed and size and time_us and algbw and abs(size / time_us / 1000 - algbw) > TOLERANCE * algbw:
        found.contradicted += 1
    start_us = (
        told.get("event_trace_ts", {}).get(f"{kind}_start_ts") if isinstance(told.get("event_trace_ts"), dict) else None
    )
    launch_us = whole_number(start_us)
    trace = told.get("event_trace_sn")
    kernels = trace.get("kernel_events") if isinstance(trace, dict) else None
    found.calls.add(
        comm,
        member,
        seq=whole_number(told.get(f"{kind}_sn")),
        op=op,
        bytes=size,
        algorithm=_name(told.get(f"{kind}_algo")),
        protocol=_name(told.get(f"{kind}_proto")),
        channels=len(kernels)
        if isinstance(kernels, list) and kernels
        else whole_number(told.get(f"{kind}_n_channels")),
        launch_ns=launch_us * 1000 if launch_us is not None and EPOCH_US[0] < launch_us < EPOCH_US[1] else None,
        time_ns=time_us * 1000 if timed and time_us else None,
        algbw_gbs=algbw if timed and algbw else None,
        busbw_gbs=busbw if timed and algbw and busbw is not None else None,
    )
    return True


def _real(value: object) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e15
    return float(value) if usable else None  # type: ignore[arg-type]


def _name(value: object) -> str | None:
    return value if isinstance(value, str) and value and value != "unknown" else None
