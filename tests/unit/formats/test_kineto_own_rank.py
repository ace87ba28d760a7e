"""The rank and the host of a Kineto trace that states neither."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from overlapscope.ingest.formats import kineto
from overlapscope.ingest.reader import ReadContext
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import SHAPES, UNKNOWN_RANK, RankTimeline
from tests.support.writers.kineto import (
    COMM_STREAM,
    MS,
    NCCL_KERNEL,
    PROCESS,
    Event,
    collective_args,
    distributed,
    kernel,
    training,
    write,
)


def call(at: int, group: str, ranks: Sequence[int], **more: object) -> Event:
    args = collective_args(str(more.pop("name", "allreduce")), group=group, ranks=ranks) | more
    return kernel(NCCL_KERNEL, at * MS, MS, stream=COMM_STREAM, args=args)


def read(tmp_path: Path, calls: Sequence[Event], name: str = "trace.json", rank: int | None = None) -> RankTimeline:
    path = tmp_path / name
    path.write_bytes(write(calls, metadata=None if rank is None else distributed(rank, 64)))
    (timeline,) = kineto.READER.read(path, ReadContext()).timelines
    return timeline


CROSSED = (call(1, "9", [8, 10]), call(3, "3", [2, 6, 10, 14]))


@pytest.mark.parametrize(
    ("calls", "rank"),
    [
        (CROSSED, 10),
        ([call(1, "7", [5])], 5),
        ([call(1, "9", [8, 10])], UNKNOWN_RANK),
        ([call(1, "9", [8, 10]), call(3, "4", [8, 10])], UNKNOWN_RANK),
        ([call(1, "9", [8, 10]), call(3, "4", [1, 2])], UNKNOWN_RANK),
    ],
)
def test_the_one_member_of_all_groups_is_the_rank(tmp_path: Path, calls: Sequence[Event], rank: int) -> None:
    assert read(tmp_path, calls).rank == rank


def test_what_trace_or_name_state_comes_before_the_groups(tmp_path: Path) -> None:
    assert read(tmp_path, CROSSED, rank=7).rank == 7
    assert read(tmp_path, CROSSED, "rank7.json").rank == UNKNOWN_RANK, "left to the name"


def test_no_rank_is_its_own_peer(tmp_path: Path) -> None:
    sent = [call(5, "3", [2, 6, 10, 14], name="send", **{"Dst Rank": peer}) for peer in (14,)]
    own = [call(7, "3", [2, 6, 10, 14], name="send", **{"Dst Rank": peer}) for peer in (10,)]
    assert sorted(read(tmp_path, [*CROSSED, *sent, *own]).collectives.peer.tolist()) == [NONE, NONE, NONE, 14]


@pytest.mark.parametrize(
    ("name", "host"),
    [
        (f"node33_{PROCESS}.1700000000000.pt.trace.json", "node33"),
        (f"a.b-c_d_{PROCESS}.1700000000000000000.pt.trace.json", "a.b-c_d"),
        ("node33_1234.1700000000000.pt.trace.json", None),
        (f"worker_{PROCESS}.1700000000000.pt.trace.json", None),
        (f"my_gpu_{PROCESS}.1700000000000.pt.trace.json", None),
        (f"rank3_{PROCESS}.1700000000000.pt.trace.json", None),
        (f"local_rank_3_{PROCESS}.1700000000000.pt.trace.json", None),
        (f"gpu-2_{PROCESS}.1700000000000.pt.trace.json", None),
        (f"worker0_{PROCESS}.1700000000000.pt.trace.json", None),
        (f"job-worker-1_{PROCESS}.1700000000000.pt.trace.json", "job-worker-1"),
        (f"node33_{PROCESS}.json", None),
    ],
)
def test_a_name_with_the_recorded_process_names_the_host(tmp_path: Path, name: str, host: str | None) -> None:
    assert read(tmp_path, training(), name).recorded.get("host") == host


@pytest.mark.parametrize(("stated", "kept"), [({"record_shapes": 1}, True), ({"record_shapes": 0}, None), ({}, None)])
def test_whether_shapes_were_recorded_is_kept_as_stated(
    tmp_path: Path, stated: dict[str, int], kept: bool | None
) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(write(CROSSED, metadata=distributed(0, 64) | stated))
    (timeline,) = kineto.READER.read(path, ReadContext()).timelines
    assert timeline.recorded.get(SHAPES) is kept
