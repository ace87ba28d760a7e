"""Collectives of an Ascend trace: the rows that HCCL shows for each group, not the tasks they are made of.

A row is called `hcom_allReduce__868_3_1`: operation, the last three digits of the group's hash, the how-manieth of the
group in this recording. (That number begins at 0 with each recording, so it is no sequence number.)
"""

import re
from typing import Final

from overlapscope.ingest.ascend_events import AscendColumns
from overlapscope.ingest.classify import operation
from overlapscope.timeline.columns import NONE, Collectives, Ints, integers, make
from overlapscope.timeline.volume import VOLUMELESS, full_elements, volume_bytes

DTYPES: Final = {
    "FP64": "float64",
    "FP32": "float32",
    "FP16": "float16",
    "BFP16": "bfloat16",
    "BF16": "bfloat16",
    "INT64": "int64",
    "INT32": "int32",
    "INT16": "int16",
    "INT8": "int8",
    "UINT64": "uint64",
    "UINT32": "uint32",
    "UINT16": "uint16",
    "UINT8": "uint8",
    "FP8E4M3": "float8_e4m3fn",
    "FP8E5M2": "float8_e5m2",
    "FP8E8M0": "float8_e8m0fnu",
}
_ROW: Final = re.compile(r"^(?:hcom_|hccl_?)?(?P<op>[A-Za-z]+?)_*(?:__?(?P<group>\d+)_\d+(?:_\d+)?(?:@.*)?)?$", re.I)
_THREAD: Final = re.compile(r"^(?:Group\s*+(?P<group>.*?))?Communication(?:\s++Aicpu)?\s*+$")
_PLANE: Final = re.compile(r"^Plane\s*\d+$")
_INSIDE: Final = re.compile(
    r"all_?reduce|all_?gather|reduce_?scatter|all_?to_?all|batch_?send_?recv|broadcast|receive|scatter|gather|reduce|send|barrier",
    re.I,
)
"""An operation inside a longer name, such as `MatmulAllReduceAicpu`; the longer ones first."""
_SHARDED: Final = frozenset({"all_gather", "gather", "reduce_scatter", "scatter"})
"""HCCL counts one member's part of these, as its interface does."""


def is_row(thread: str, name: str) -> bool:
    """Whether an event of HCCL's process is a collective: it stands on a group's own row, not on a plane's."""
    if on_plane(thread):
        return False
    return _THREAD.match(thread) is not None or name.lower().startswith(("hcom_", "hccl"))


def on_plane(thread: str) -> bool:
    """Whether a thread of HCCL's process holds the tasks that collectives are made of."""
    return _PLANE.match(thread) is not None


def operation_of(name: str) -> str | None:
    """Give the canonical operation of a row; None when its name tells none."""
    found = _ROW.match(name)
    spelled = operation(found["op"]) if found else None
    if spelled is not None:
        return spelled
    inside = _INSIDE.search(name)
    return operation(inside[0].lower()) if inside else None


def collectives(columns: AscendColumns, rows: Ints, launch_ns: Ints, step: Ints) -> tuple[Collectives, list[str]]:
    """Give the chosen events of the trace as collectives, in their order, and what could not be known of them."""
    names = columns.names.to_list()
    code = columns.names.code
    groups, notes = _groups(columns, names, rows)
    spelled = [names[each] for each in columns.ranges.name[rows].tolist()]
    ops = [operation_of(name) or "unknown" for name in spelled]
    dtypes = [DTYPES.get(names[each].upper()) if each >= 0 else None for each in columns.data_type[rows].tolist()]
    counted = columns.elements[rows].tolist()
    elements = [_elements(op, count) for op, count in zip(ops, counted, strict=True)]
    volumes = [volume_bytes(count, dtype) for count, dtype in zip(elements, dtypes, strict=True)]
    calls = make(
        Collectives,
        rows.size,
        recording=0,
        step=step,
        group=columns.names.codes(groups),
        op=[code(op) for op in ops],
        dtype=[-1 if d is None or op in VOLUMELESS else code(d) for op, d in zip(ops, dtypes, strict=True)],
        elements=integers(elements),
        bytes=integers(volumes),
        algorithm=columns.algorithm[rows],
        launch_ns=launch_ns,
        start_ns=columns.ranges.start_ns[rows],
        end_ns=columns.ranges.end_ns[rows],
    )
    return calls, notes


def _elements(op: str, counted: int) -> int | None:
    """Give the elements of the whole operation; a member's part alone does not tell them without the group's size."""
    if counted in (NONE, 0) or op in _SHARDED or op in ("unknown", "all_to_all", "send_recv"):
        return None
    return full_elements(op, counted, counted, None)


def _groups(columns: AscendColumns, names: list[str], rows: Ints) -> tuple[list[str | None], list[str]]:
    """Give each collective's group, under a name that is the same on all ranks.

    The thread names the group itself in newer versions; in older ones it says only which of this file's groups it
    is, so that the hash in the row's own name has to serve.
    """
    found: list[tuple[str | None, str | None]] = []
    for lane, name in zip(columns.ranges.lane[rows].tolist(), columns.ranges.name[rows].tolist(), strict=True):
        thread = _THREAD.match(columns.threads.get(columns.lanes[lane], ""))
        row = _ROW.match(names[name])
        found.append(((thread["group"] or "").rstrip() if thread else None, row["group"] if row else None))
    numbered: dict[str, set[str]] = {}
    for thread_group, tag in found:
        if tag is not None and thread_group is not None and _is_index(thread_group):
            numbered.setdefault(tag, set()).add(thread_group)
    shared = {tag for tag, groups in numbered.items() if len(groups) > 1}
    named: list[str | None] = []
    for thread_group, tag in found:
        if thread_group and not _is_index(thread_group):
            named.append(thread_group)
        elif tag is not None:
            named.append(f"{tag} (group {thread_group} of the file)" if tag in shared else tag)
        else:
            named.append(f"group {thread_group} of the file" if thread_group else None)
    notes = [f"several groups have the tag {tag}; they are told apart for this rank alone" for tag in sorted(shared)]
    return named, notes


def _is_index(group: str) -> bool:
    return group.isdecimal() and len(group) < 5
