"""Convert entries of a flight recorder's dump, of all versions, to calls: operation, sizes, group, number, state."""

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from overlapscope.ingest.build.collective_args import dtype_name, parse_count
from overlapscope.ingest.build.kernel_names import canonical_operation
from overlapscope.timeline.columns import COMPLETED, SCHEDULED, STARTED, UNKNOWN
from overlapscope.timeline.operations import OPS_WITHOUT_VOLUME, POINT_TO_POINT, full_elements, volume_bytes

MAX_NAME: Final = 200
MAX_DIMS: Final = 64
NS_PER_MS: Final = 1_000_000
_STATES: Final = {"scheduled": SCHEDULED, "started": STARTED, "completed": COMPLETED}
_BATCH: Final = re.compile(r"coalesced|_?[A-Z][A-Z_]*_coalesced")
"""The entry that closes a batch of calls (`ALLGATHER_coalesced` since 2.7); the calls of the batch precede it."""
_TORCH: Final = re.compile(r"(?:^|[/\\])torch[/\\](?:distributed|nn|autograd|utils|optim|fx|multiprocessing|_\w+)\b")
_USER_CODE: Final = re.compile(r"\.py$|^<ipython|\.ipynb")


class RecordedCall(msgspec.Struct, frozen=True, kw_only=True):
    """One entry; None for what it does not state."""

    record: int | None
    """Number of the entry since the recorder was started; older entries are overwritten."""
    pg_id: str
    """Number of the group's communicator in this process; it differs between ranks."""
    group: str
    description: str | None
    backend: str | None
    op: str
    point_to_point: bool
    collective_seq: int | None
    """Collectives entered so far in the group, including this one if it is a collective."""
    point_to_point_seq: int | None
    op_id: int | None
    moved_in: int | None
    moved_out: int | None
    dtype: str | None
    launch_ns: int | None
    state: int
    timed_out: bool
    timeout_ns: int | None
    duration_ms: float | None
    frames: Any
    """Python and C++ frames, innermost first, as written."""

    @property
    def seq(self) -> int | None:
        """The call's number in its own count: of collectives, or of sends and receives."""
        return self.point_to_point_seq if self.point_to_point else self.collective_seq

    @property
    def closes_batch(self) -> bool:
        """Return whether the entry stands for a batch of calls."""
        return self.op == "coalesced"

    def elements(self, group_size: int | None) -> int | None:
        """Return the elements as defined in docs/definitions.md."""
        return full_elements(self.op, self.moved_in, self.moved_out, group_size)

    def bytes(self, group_size: int | None) -> int | None:
        """Return the bytes as defined in docs/definitions.md."""
        return volume_bytes(self.elements(group_size), self.dtype)


def read_entries(entries: Any) -> tuple[list[RecordedCall], int]:
    """Return the calls in the order of the dump, and how many entries are not calls."""
    if not isinstance(entries, (list, tuple)):
        return [], int(entries is not None)
    calls = [_call(each) for each in entries if isinstance(each, dict)]
    return calls, len(entries) - len(calls)


def _call(entry: Mapping[Any, Any]) -> RecordedCall:
    backend, spelled = _spelled(entry.get("profiling_name"))
    op = "coalesced" if _BATCH.fullmatch(spelled) else canonical_operation(spelled) or spelled or "unknown"
    is_p2p = entry.get("is_p2p")
    group, description = _group(entry)
    in_sizes, out_sizes = entry.get("input_sizes"), entry.get("output_sizes")
    state, timed_out = _state(entry, backend)
    timeout_ms = parse_count(entry.get("timeout_ms")) or None
    return RecordedCall(
        record=parse_count(entry.get("record_id")),
        pg_id=text(entry.get("pg_id")) or "",
        group=group,
        description=description,
        backend=backend,
        op=op,
        point_to_point=is_p2p if isinstance(is_p2p, bool) else op in POINT_TO_POINT,
        collective_seq=_first_count(entry, "collective_seq_id", "seq_id"),
        point_to_point_seq=_first_count(entry, "p2p_seq_id", "seq_id"),
        op_id=parse_count(entry.get("op_id")),
        moved_in=_elements(in_sizes),
        moved_out=_elements(out_sizes),
        dtype=None if op in OPS_WITHOUT_VOLUME else _dtype(entry),
        launch_ns=parse_count(entry.get("time_created_ns")) or None,  # JSON dumps write 0 for a missing time
        state=state,
        timed_out=timed_out,
        timeout_ns=parse_count(timeout_ms * NS_PER_MS) if timeout_ms is not None else None,
        duration_ms=_duration(entry.get("duration_ms")),
        frames=entry.get("frames"),
    )


def text(value: Any) -> str | None:
    """Return a name that is written as text or as a number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        return None
    return str(value)[:MAX_NAME] if isinstance(value, str) or abs(value) < 2**63 else None


def _spelled(name: Any) -> tuple[str | None, str]:
    """Split `nccl:send 0->1` into the backend and the operation as written."""
    if not isinstance(name, str):
        return None, ""
    backend, colon, rest = name[:MAX_NAME].partition(":")
    spelled = (rest if colon else backend).split()
    return (backend or None) if colon else None, spelled[0] if spelled else ""


def _group(entry: Mapping[Any, Any]) -> tuple[str, str | None]:
    """Return name and description of the group; before version 2 only the number of its communicator is recorded."""
    named = entry.get("process_group")
    if isinstance(named, (list, tuple)) and named:
        name = text(named[0])
        description = text(named[1]) if len(named) > 1 else None
        if name is not None:
            return name, described(description)
    alone = text(named) if named is not None else text(entry.get("pg_name"))
    return (alone if alone is not None else text(entry.get("pg_id")) or ""), described(entry.get("pg_desc"))


def described(description: Any) -> str | None:
    """Return a group's description; None for `undefined`, which torch writes where the user gave none."""
    known = text(description)
    return known if known not in (None, "", "undefined") else None


def _first_count(entry: Mapping[Any, Any], *keys: str) -> int | None:
    return next((parse_count(entry[key]) for key in keys if key in entry), None)


def _state(entry: Mapping[Any, Any], backend: str | None) -> tuple[int, bool]:
    """Return the state, and whether the call timed out: retired by the watchdog without having completed.

    gloo's calls have no events: torch always writes `scheduled`, and retires them when they end, successfully or not.
    So their state is unknown.
    """
    said = entry.get("state")
    state = _STATES.get(said, UNKNOWN) if isinstance(said, str) else UNKNOWN
    retired = entry.get("retired") is True
    if backend == "gloo" and state == SCHEDULED:
        return (UNKNOWN if retired else SCHEDULED), False
    return state, retired and state in (SCHEDULED, STARTED)


def _elements(sizes: Any) -> int | None:
    """Return the total elements of a list of tensors' sizes; a tensor without dimensions has one element."""
    if not isinstance(sizes, (list, tuple)) or not sizes:
        return None
    total = 0
    for dims in sizes:
        if not isinstance(dims, (list, tuple)) or len(dims) > MAX_DIMS:
            return None
        known = [parse_count(dim) for dim in dims]
        if any(dim is None for dim in known):
            return None
        total += math.prod(dim for dim in known if dim is not None)
    return parse_count(total)


def _dtype(entry: Mapping[Any, Any]) -> str | None:
    """Return the type of all inputs (of the outputs where there are none); None if they differ or are not recorded."""
    for key in ("input_dtypes", "output_dtypes"):
        types: Any = entry.get(key)
        listed: Sequence[Any] = types if isinstance(types, (list, tuple)) else [types] if isinstance(types, str) else []
        if listed:
            names = {each if isinstance(each, str) else None for each in listed}
            return dtype_name(names.pop()) if len(names) == 1 else None
    return None


def _duration(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return float(value) if 0 <= value < 1e12 else None  # false for NaN as well


def called_at(frames: Any) -> str | None:
    """Return the innermost frame outside torch, as `file:line (function)`; None without one."""
    for frame in frames[:MAX_NAME] if isinstance(frames, (list, tuple)) else ():
        if not isinstance(frame, dict):
            continue
        file, line, name = frame.get("filename"), parse_count(frame.get("line")), text(frame.get("name"))
        if isinstance(file, str) and _USER_CODE.search(file[-MAX_NAME:]) and not _TORCH.search(file[-MAX_NAME:]):
            return f"{file[-MAX_NAME:]}:{'?' if line is None else line} ({name or '?'})"
    return None
