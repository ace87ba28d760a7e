"""Find the collective launched in each of NCCL's or RCCL's own ranges: a single call, or a group, launched at its end.

PyTorch and most others call inside `ncclGroupStart` ... `ncclGroupEnd`; kernels are then launched in the range
`ncclGroupEnd`, after the ranges of the calls themselves.
"""

from collections.abc import Mapping, Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from overlapscope.ingest.build.kernel_names import API_RANGE, canonical_operation
from overlapscope.ingest.build.trace_columns import ApiCall
from overlapscope.timeline.columns import Ints
from overlapscope.timeline.operations import possible_count

GROUP_START, GROUP_END = "ncclGroupStart", "ncclGroupEnd"
_PER_MEMBER = frozenset({"all_gather", "reduce_scatter", "gather", "scatter", "all_to_all"})
"""Operations whose call states the count of one member's part."""
_UNEVEN = "ncclAllToAllv"


class NcclPayload(msgspec.Struct, frozen=True, kw_only=True):
    """Values that a library attached to one of its ranges; None where absent."""

    group: str | None = None
    members: int | None = None
    member: int | None = None
    """Rank in the communicator."""
    device: int | None = None
    """Device as the process numbers it."""
    message_bytes: int | None = None
    peer: int | None = None
    """Rank in the communicator that a send goes to or a receive comes from."""


_NOTHING = NcclPayload()


def api_calls(
    lane: Ints,
    name: npt.NDArray[np.int32],
    start_ns: Ints,
    names: Sequence[str],
    payloads: Mapping[int, NcclPayload],
    sizes: Mapping[str, int],
) -> dict[int, ApiCall]:
    """Return the call of each launching range, by row of the ranges (`lane`, `name` code and `start_ns` of each).

    `payloads` is by row; `sizes` is the number of members of each known communicator. A group whose calls are all of
    one operation is a call of it; sends and receives together are a `send_recv` of the bytes sent; for any other mix
    the operation is None.
    """
    wanted = {
        code: text for code, text in enumerate(names) if text in (GROUP_START, GROUP_END) or API_RANGE.match(text)
    }
    rows = np.flatnonzero(np.isin(name, list(wanted))) if wanted else np.empty(0, np.int64)
    rows = rows[np.lexsort((start_ns[rows], lane[rows]))]
    calls: dict[int, ApiCall] = {}
    at_lane, depth = -1, 0
    pending: list[ApiCall] = []
    for row, thread, code in zip(rows.tolist(), lane[rows].tolist(), name[rows].tolist(), strict=True):
        if thread != at_lane:
            at_lane, depth, pending = thread, 0, []
        text = wanted[code]
        if text == GROUP_START:
            pending = pending if depth else []
            depth += 1
        elif text == GROUP_END:
            depth -= 1
            if depth == 0 and pending:
                calls[row] = _grouped(pending)
            depth = max(depth, 0)  # the recording may begin inside a group
        else:
            call = _call(text, payloads.get(row, _NOTHING), sizes)
            if depth:
                pending.append(call)
            else:
                calls[row] = call
    return calls


def _call(text: str, payload: NcclPayload, sizes: Mapping[str, int]) -> ApiCall:
    op = canonical_operation(text.removeprefix("nccl"))
    moved = payload.message_bytes
    if moved is not None and op in _PER_MEMBER:
        members = sizes.get(payload.group) if payload.group is not None else None
        moved = possible_count(moved * members) if members and text != _UNEVEN else None
    return ApiCall(op=op, group=payload.group, bytes=moved, peer=payload.peer)


def _grouped(calls: list[ApiCall]) -> ApiCall:
    ops = {call.op for call in calls}
    groups = {call.group for call in calls}
    group = groups.pop() if len(groups) == 1 else None
    peers = {call.peer for call in calls}
    peer = peers.pop() if len(peers) == 1 and group is not None else None
    if ops == {"send", "recv"}:
        sent = _total([call for call in calls if call.op == "send"])
        return ApiCall(op="send_recv", group=group, bytes=sent, peer=peer)
    return ApiCall(op=ops.pop(), group=group, bytes=_total(calls), peer=peer) if len(ops) == 1 else ApiCall(group=group)


def _total(calls: list[ApiCall]) -> int | None:
    sizes = [call.bytes for call in calls]
    known = [size for size in sizes if size is not None]
    return possible_count(sum(known)) if len(known) == len(sizes) else None
