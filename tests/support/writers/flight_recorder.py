"""Write flight-recorder dumps as torch writes them, in the form of each version, from a few words per call.

The keys are those of torch/csrc/distributed/c10d/FlightRecorderDetail.hpp (2.x) and of TraceUtils.h of torch 2.3 (1.4).
"""

import json
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

BEGUN_NS = 1_700_000_000_000_000_000
SECOND_NS = 1_000_000_000


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """One call; its number is the next one where it is not given."""

    op: str = "all_reduce"
    group: str = "0"
    sizes: Sequence[Sequence[int]] = ((1024,),)
    out_sizes: Sequence[Sequence[int]] | None = None
    dtype: str = "Float"
    state: str = "completed"
    retired: bool | None = None
    seq: int | None = None
    p2p_seq: int = 0
    is_p2p: bool = False
    at_ns: int | None = None
    duration_ms: float | None = None
    frames: Sequence[Mapping[str, Any]] = ()


def entry(call: Entry, record: int, seq: int, backend: str, description: str, pg_id: int) -> dict[str, Any]:
    """Return one entry of version 2.10, as the pickle has it."""
    created = BEGUN_NS + record * 1_000_000 if call.at_ns is None else call.at_ns
    written: dict[str, Any] = {
        "frames": [dict(frame) for frame in call.frames],
        "record_id": record,
        "pg_id": pg_id,
        "process_group": (call.group, description),
        "thread_name": "python",
        "thread_id": "140175401450368",
        "collective_seq_id": seq,
        "p2p_seq_id": call.p2p_seq,
        "op_id": record + 1,
        "profiling_name": f"{backend}:{call.op}",
        "time_created_ns": created,
        "input_sizes": [list(dims) for dims in call.sizes],
        "input_dtypes": [call.dtype] * len(call.sizes),
        "output_sizes": [list(dims) for dims in (call.sizes if call.out_sizes is None else call.out_sizes)],
        "output_dtypes": [call.dtype] * len(call.sizes if call.out_sizes is None else call.out_sizes),
        "state": call.state,
        "time_discovered_started_ns": None,
        "time_discovered_completed_ns": created + 90_000_000 if call.state == "completed" else None,
        "retired": call.state == "completed" if call.retired is None else call.retired,
        "timeout_ms": 600_000,
        "is_p2p": call.is_p2p,
    }
    if call.duration_ms is not None:
        written["duration_ms"] = call.duration_ms
    return written


def dump(
    calls: Sequence[Entry],
    *,
    groups: Mapping[str, tuple[str, Sequence[int] | None]],
    backend: str = "nccl",
    version: str = "2.10",
    first_record: int = 0,
    status: Mapping[str, tuple[int, int, int]] | None = None,
) -> dict[str, Any]:
    """Return a whole dump. `groups` holds description and ranks by name; `status` enqueued, started and completed.

    Without `status`, it is what torch would have counted of these calls.
    """
    numbers: dict[str, int] = {}
    entries = []
    ids = {name: place for place, name in enumerate(groups)}
    counted: dict[str, list[int]] = {}
    for record, call in enumerate(calls, first_record):
        before = numbers.get(call.group, 0)
        seq = call.seq if call.seq is not None else before if call.is_p2p else before + 1
        numbers[call.group] = seq
        entries.append(entry(call, record, seq, backend, groups[call.group][0], ids[call.group]))
        last = counted.setdefault(str(ids[call.group]), [-1, -1, -1])
        last[0] = call.p2p_seq if call.is_p2p else seq
        if call.state == "completed":
            last[2] = last[0]
    return {
        "version": version,
        "pg_config": {
            name: {"name": name, "desc": description, "ranks": "[]" if ranks is None else str(list(ranks))}
            for name, (description, ranks) in groups.items()
        },
        "comm_lib_version": "2.21.5" if backend == "nccl" else "",
        "pg_status": {
            number: dict(
                zip(
                    ("last_enqueued_collective", "last_started_collective", "last_completed_collective"),
                    three,
                    strict=True,
                )
            )
            for number, three in (counted if status is None else status).items()
        },
        "entries": entries,
    }


def as_json(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return torch's JSON form of the same dump: no stacks, text for status numbers, 0 for a missing time."""
    entries = []
    for each in content["entries"]:
        plain = {key: value for key, value in each.items() if key != "frames"}
        for key in ("time_discovered_started_ns", "time_discovered_completed_ns"):
            plain[key] = plain[key] or 0
        plain["process_group"] = list(plain["process_group"])
        entries.append(plain)
    status = {
        number: {key: str(value) for key, value in numbers.items()} for number, numbers in content["pg_status"].items()
    }
    written = {**content, "pg_status": status, "nccl_comm_state": {}, "entries": entries}
    if not entries:
        del written["entries"]
    return written


def write_pickle(path: Path, content: Any, protocol: int = 2) -> Path:
    """Write the pickle form; torch's own is protocol 2."""
    path.write_bytes(pickle.dumps(content, protocol=protocol))
    return path


def write_json(path: Path, content: Mapping[str, Any]) -> Path:
    """Write the JSON form, with keys in the order of torch's JSON library."""
    path.write_text(json.dumps(as_json(content), sort_keys=True), encoding="utf-8")
    return path


def old_dump(calls: Sequence[Entry], *, ranks: Mapping[int, Sequence[int]]) -> dict[str, Any]:
    """Return a dump of version 1.4 (torch 2.3): one number for all calls of a group, lists of ranks, no status."""
    entries = []
    numbers: dict[str, int] = {}
    for record, call in enumerate(calls):
        numbers[call.group] = numbers.get(call.group, 0) + 1
        made = entry(call, record, 0, "nccl", "", int(call.group))
        made["seq_id"] = numbers[call.group]
        for key in ("process_group", "collective_seq_id", "p2p_seq_id", "is_p2p", "timeout_ms", "input_dtypes",
                    "output_dtypes", "thread_id", "thread_name"):  # fmt: skip
            del made[key]
        entries.append(made)
    return {
        "entries": entries,
        "version": "1.4",
        "nccl_comm_state": {"0x1": {"rank": "0"}},
        "pg_config": {number: list(members) for number, members in ranks.items()},
    }
