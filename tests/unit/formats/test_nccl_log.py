"""NCCL logs of all versions and launchers: what they tell is read, what is torn is counted, nothing is guessed."""

import calendar
import gc
import math
import random
import re
import time
from collections import Counter, defaultdict
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.errors import InputError, OverlapScopeError
from overlapscope.ingest.formats.nccl_log import READER, recognises
from overlapscope.ingest.formats.nccl_log import scan as nccl_scan
from overlapscope.ingest.formats.nccl_log.calls import DTYPES
from overlapscope.ingest.formats.nccl_log.communicators import LoggedCommunicator as Member
from overlapscope.ingest.formats.nccl_log.communicators import LoggedCommunicators, find_world, name_communicators
from overlapscope.ingest.formats.nccl_log.text_columns import TextBlock
from overlapscope.ingest.formats.nccl_log.tuning import CallsAndChoices, TuningChoice, TuningChoices, match
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import HEAD_BYTES, Head, ReadContext, Reading
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.columns import NONE, size
from overlapscope.timeline.facts import ANSWERS
from overlapscope.timeline.run import UNKNOWN_RANK
from tests.conftest import shared_file
from tests.property.examples import examples
from tests.support.builders import spelled
from tests.support.writers.nccl_log import VERSIONS, Communicator, Process, Version, call, choice, initialised

OLD, NEW = VERSIONS[3], VERSIONS[7]
"""2.14 writes no id of a communicator; 2.24 writes it, and choices by name."""
PAIR = [Process(rank=0), Process(rank=1, device=1)]
COMM = Communicator()


def read(tmp_path: Path, *lines: str, name: str = "nccl.log", end: str = "\n") -> Reading:
    path = tmp_path / name
    path.write_bytes((end.join(lines) + end).encode("utf-8", "surrogateescape"))
    return READER.read(path, ReadContext())


def rows(reading: Reading, table: str) -> list[dict[str, Any]]:
    columns = spelled(getattr(reading.facts, table), reading.facts.names)
    found = zip(*columns.values(), strict=True)
    return [
        {
            name: None if isinstance(value, float) and math.isnan(value) else value
            for name, value in zip(columns, row, strict=True)
        }
        for row in found
    ]


def calls(reading: Reading, rank: int = 0) -> list[dict[str, Any]]:
    timeline = next(each for each in reading.timelines if each.rank == rank)
    columns = spelled(timeline.collectives, timeline.names)
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def pair(version: Version = NEW, processes: list[Process] = PAIR, comm: Communicator = COMM) -> list[str]:
    """Return a job of two processes that is initialised, its lines interleaved."""
    each = [initialised(version, process, process.rank, 2, comm) for process in processes]
    return [
        line
        for together in zip(*(each if len(each[0]) < len(each[1]) else each[::-1]), strict=False)
        for line in together
    ] + [line for lines in each for line in lines[min(map(len, each)) :]]


def after_pair(tmp_path: Path, *bodies: str, version: Version = NEW) -> Reading:
    """Read a job of two whose rank 0 writes these lines."""
    return read(tmp_path, *pair(version), *(PAIR[0].line(body) for body in bodies))


def by_zero(op: str, seq: int, count: int, **more: Any) -> str:
    """Return the text of a call of rank 0 of the pair."""
    return call(op, seq, count, **{"comm": COMM.pointer(0), "nranks": 2, **more})


def by(process: Process, op: str, seq: int, count: int, **more: Any) -> str:
    """Return the line of a call of a process of the pair."""
    return process.line(by_zero(op, seq, count, **{"comm": COMM.pointer(process.rank), **more}))


def numbered(digit: int, **more: Any) -> Communicator:
    """Return a communicator whose address names it and its member."""
    return Communicator(pointers={n: f"0x{digit}{n}" for n in range(4)}, **{"id": f"0x{digit}", **more})


# --- versions -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", VERSIONS, ids=lambda version: version.name)
def test_a_job_of_every_version_tells_its_members_paths_and_calls(version: Version, tmp_path: Path) -> None:
    lines = [version.name, *pair(version)]
    for seq in (9, 10, 11):
        for process in PAIR:
            end = version.call_end.format(task=0, rank=process.rank)
            lines.append(by(process, "ReduceScatter", seq, 1 << 20, dtype=9, end=end))
        if version.choice:
            moved = (1 << 20) * 2 * (2 if version.whole else 1)
            lines.append(PAIR[0].line(version.choice.format(op="ReduceScatter", bytes=moved)))
    reading = read(tmp_path, *lines)
    assert (reading.source.dropped, reading.source.repaired, reading.source.warnings) == (0, 0, ())
    assert (reading.world_size, reading.source.ranks) == (2, (0, 1))
    members = rows(reading, "members")
    shown = [(each["member"], each["members"], each["rank"], each["device"]) for each in members]
    assert shown == [(0, 2, 0, 0), (1, 2, 1, 1)]
    name = COMM.id if "{id}" in version.state else "2 ranks"
    assert {each["communicator"] for each in members} == {name}
    assert reading.groups[0].ranks == (0, 1)
    assert {each["collective_channels"] for each in members} == {2}
    assert {each["nodes"] for each in members} == {1}
    bus = ["0000:10:1c.0", "0000:11:1c.0"] if "{bus}" in version.state else [None, None]
    assert [each["bus"] for each in members] == bus
    assert reading.fingerprint["nccl_version"] == re.search(r"\d+\.\d+\.\d+", version.name)[0]  # type: ignore[index]
    connected = {
        (each["channel"], each["sender"], each["receiver"], each["transport"]) for each in rows(reading, "connections")
    }
    assert connected == {(channel, here, 1 - here, "P2P/IPC") for channel in range(2) for here in range(2)}
    paths = {(each["pattern"], each["channel"], each["member"], each["next"]) for each in rows(reading, "paths")}
    assert paths == {
        *(("ring", channel, here, 1 - here) for channel in range(2) for here in range(2)),
        *(("tree", channel, here, following) for channel in range(2) for here, following in ((0, 1), (1, None))),
    }
    for rank in range(2):
        made = calls(reading, rank)
        assert [each["seq"] for each in made] == [9, 10, 11]
        for each in made:
            assert (each["op"], each["dtype"]) == ("reduce_scatter", "bfloat16")
            assert (each["group"], each["group_size"]) == (name, 2)
            assert (each["elements"], each["bytes"]) == (2 << 20, 4 << 20)
            assert (each["start_ns"], each["end_ns"], each["launch_ns"]) == (None, None, None)
            chosen = ("RING", "SIMPLE") if version.choice else (None, None)
            assert (each["algorithm"], each["protocol"]) == chosen
            assert each["channels"] == (24 if "Lo..Hi" in version.choice else None)
    assert all(timeline.basis == "log" and size(timeline.spans) == 0 for timeline in reading.timelines)


@pytest.mark.parametrize(
    ("op", "known", "elements"),
    [
        ("AllReduce", "all_reduce", 10), ("AllGather", "all_gather", 20), ("ReduceScatter", "reduce_scatter", 20),
        ("Broadcast", "broadcast", 10), ("Reduce", "reduce", 10), ("Send", "send", 10), ("Recv", "recv", 10),
        ("AlltoAll", "all_to_all", 20), ("AllToAllPivot", "all_to_all", 20), ("Gather", "gather", 20),
        ("Scatter", "scatter", 20), ("AllToAllv", "all_to_allv", None), ("PutSignal", "put_signal", 10),
    ],
)  # fmt: skip
def test_volume_counts_what_all_ranks_gather_and_reduce(
    op: str, known: str, elements: int | None, tmp_path: Path
) -> None:
    (made,) = calls(after_pair(tmp_path, by_zero(op, 0, 10, dtype=8)))
    assert (made["op"], made["elements"]) == (known, elements)
    assert made["bytes"] == (None if elements is None else 8 * elements)


TYPES = [
    "int8", "uint8", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16", "float8_e4m3fn",
    "float8_e5m2",
]  # fmt: skip


@pytest.mark.parametrize(("code", "dtype"), [*enumerate(TYPES), (12, None), (255, None)])
def test_types_are_spelled_as_torch_spells_them(code: int, dtype: str | None, tmp_path: Path) -> None:
    (made,) = calls(after_pair(tmp_path, by_zero("AllReduce", 0, 3, dtype=code)))
    assert made["dtype"] == dtype
    assert (made["bytes"] is None) == (dtype is None)


def test_counts_that_no_memory_holds_are_missing(tmp_path: Path) -> None:
    huge = [by_zero("AllReduce", 0, 10**18 - 1), by_zero("AllReduce", 1, 10**18), by_zero("AllReduce", 2, 10**30)]
    reading = after_pair(tmp_path, *huge, by_zero("AllGather", 3, 10**18 - 1, dtype=8))
    assert [(each["seq"], each["elements"], each["bytes"]) for each in calls(reading)] == [
        (0, 10**18 - 1, 4 * (10**18 - 1)),
        (3, 2 * (10**18 - 1), None),
    ]
    assert reading.source.dropped == 2


# --- communicators --------------------------------------------------------------------------------------------------


def test_a_pointer_that_is_used_again_is_another_communicator(tmp_path: Path) -> None:
    other = Communicator(id="0xfeed", pointers={0: COMM.pointer(0)})
    gone = f"comm {COMM.pointer(0)} rank 0 nranks 2 cudaDev 0 busId 101c0 - Destroy COMPLETE"
    alone = initialised(NEW, PAIR[0], 0, 1, other)
    reading = read(
        tmp_path,
        *pair(),
        by(PAIR[0], "AllReduce", 5, 7),
        PAIR[0].line(gone),
        *alone,
        by(PAIR[0], "AllReduce", 0, 8, nranks=1),
    )
    found = [(each["group"], each["group_size"], each["elements"]) for each in calls(reading)]
    assert found == [(COMM.id, 2, 7), ("0xfeed", 1, 8)]


def test_calls_of_communicators_that_no_line_introduced_are_kept(tmp_path: Path) -> None:
    """A log of the subsystem COLL alone."""
    addresses = (("0xaaa", 8), ("0xbbb", 2), ("0xccc", 8))
    reading = read(tmp_path, *(by(PAIR[0], "AllReduce", 1, 4, comm=comm, nranks=size) for comm, size in addresses))
    (timeline,) = reading.timelines
    assert timeline.rank == UNKNOWN_RANK
    groups = spelled(timeline.collectives, timeline.names)["group"]
    assert groups == ["8 ranks", "2 ranks", "8 ranks #2"]
    assert any("cannot be determined" in warning for warning in reading.source.warnings)


@pytest.mark.parametrize("bias", ["(nil)", "0x7f5b6dec9900"])
def test_rccl_of_rocm_7_has_a_pointer_more_in_every_call(bias: str, tmp_path: Path) -> None:
    bodies = [
        by_zero(op, seq, 256 << seq, end=f" task {seq} globalrank 0").replace(" count ", f" acc {bias} count ")
        for seq, op in enumerate(("AllReduce", "AllReduceWithBias", "AlltoAllGda", "AlltoAllvGda"))
    ]
    mixed = [bodies[0], by_zero("AllReduce", 1, 9), *bodies[1:]]
    for logged, expected in ((bodies, 4), (mixed, 5)):
        reading = after_pair(tmp_path, *logged)
        assert (len(calls(reading)), reading.source.dropped) == (expected, 0)
    found = [(each["op"], each["elements"], each["bytes"]) for each in calls(after_pair(tmp_path, *bodies))]
    assert found == [
        ("all_reduce", 256, 1024), ("all_reduce", 512, 2048), ("all_to_all", 2048, 8192), ("all_to_allv", None, None),
    ]  # fmt: skip
    torn = PAIR[1].line(PAIR[1].line("")) + bodies[0].replace(COMM.pointer(0), COMM.pointer(1))
    assert [each["elements"] for each in calls(read(tmp_path, *pair(), torn), 1)] == [256]


def test_rccl_tells_the_rank_in_the_communicator_with_every_call(tmp_path: Path) -> None:
    ends = (f" task {rank} globalrank {rank}" for rank in range(2))
    reading = read(tmp_path, *(by(one, "AllReduce", 1, 4, end=end) for one, end in zip(PAIR, ends, strict=True)))
    assert (reading.world_size, [timeline.rank for timeline in reading.timelines]) == (2, [0, 1])


FOUR = [Process(rank=rank, host=f"node-{rank // 2}", device=rank % 2) for rank in range(4)]


def four(*comms: tuple[Communicator, list[int]], version: Version = NEW) -> list[str]:
    """Initialise communicators of four processes one after the other."""
    return [
        line
        for comm, ranks in comms
        for member, rank in enumerate(ranks)
        for line in initialised(version, FOUR[rank], member, len(ranks), comm)
    ]


def test_the_world_is_the_largest_communicator_of_all_processes(tmp_path: Path) -> None:
    """Even where the members of smaller ones are numbered otherwise."""
    lines = four((numbered(1), [3, 1]), (numbered(2), [0, 1, 2, 3]), (numbered(3), [2, 0]))
    reading = read(tmp_path, *lines)
    assert reading.world_size == 4
    assert {group.name: group.ranks for group in reading.groups} == {"0x1": (3, 1), "0x2": (0, 1, 2, 3), "0x3": (2, 0)}
    hosts = {(each["host"], each["rank"]) for each in rows(reading, "members")}
    assert hosts == {("node-0", 0), ("node-0", 1), ("node-1", 2), ("node-1", 3)}
    assert {each["communicator"]: each["nodes"] for each in rows(reading, "members")} == {"0x1": 2, "0x2": 2, "0x3": 2}


def test_without_a_communicator_of_all_processes_ranks_are_unknown(tmp_path: Path) -> None:
    lines = four((Communicator(id="0x1"), [0, 1]), (Communicator(id="0x2"), [2, 3]))
    reading = read(tmp_path, *lines, by(FOUR[0], "AllReduce", 0, 4))
    assert reading.world_size is None
    assert [timeline.rank for timeline in reading.timelines] == [UNKNOWN_RANK]
    assert all(group.ranks is None for group in reading.groups)
    assert {each["rank"] for each in rows(reading, "members")} == {None}
    (warning,) = reading.source.warnings
    assert "the ranks of its processes cannot be determined: no communicator contains them all" in warning


def test_a_communicator_of_a_part_is_not_the_world_where_calls_tell_of_a_larger_one(tmp_path: Path) -> None:
    """A rotated log begins behind the world's initialisation; what it initialises itself are groups of the job."""
    larger = call("AllReduce", 7, 64, comm="0x99", nranks=16)
    reading = read(tmp_path, *pair(), *(process.line(larger) for process in PAIR))
    assert reading.world_size is None
    assert {timeline.rank for timeline in reading.timelines} == {UNKNOWN_RANK}


def test_labels_of_a_launcher_tell_ranks_that_no_communicator_tells(tmp_path: Path) -> None:
    plain = four((Communicator(id="0x1"), [0, 1]), (Communicator(id="0x2"), [2, 3]))
    lines = ["[1," + line.split(":")[1][-1] + "]<stdout>:" + line for line in plain]
    reading = read(tmp_path, *lines)
    assert {group.name: group.ranks for group in reading.groups} == {"0x1": (0, 1), "0x2": (2, 3)}
    local = [line.replace("[1,2]", "[1,0]").replace("[1,3]", "[1,1]") for line in lines]
    assert {group.ranks for group in read(tmp_path, *local).groups} == {None}


def test_communicators_without_an_id_are_distinguished_by_order_where_that_is_consistent(tmp_path: Path) -> None:
    comms = [(numbered(1), [0, 1, 2, 3]), (numbered(2), [0, 1, 2, 3])]
    reading = read(tmp_path, *four(*comms, version=OLD))
    assert sorted(group.name for group in reading.groups) == ["4 ranks", "4 ranks #2"]
    reading = read(tmp_path, *four(*comms, (numbered(3), [0, 1]), (numbered(4), [2, 3]), version=OLD))
    small = [group for group in reading.groups if group.size == 2]
    assert len(small) == 4
    assert all(group.ranks is None for group in small)
    assert any("look alike" in warning for warning in reading.source.warnings)


def test_a_split_is_named_by_its_parent_number_and_color(tmp_path: Path) -> None:
    def split(rank: int, member: int, number: int, color: int, version: str) -> str:
        count = f"splitCount {number} " if version == "2.24" else f"childCount {number} "
        text = (
            f"ncclCommSplit comm 0x9{number}{rank} rank {member} nranks 2 cudaDev {rank} nvmlDev {rank} busId 101c0 "
            f"parent {COMM.pointer(rank)} {count}color {color} key {member}- Init "
        )
        return "\n".join(PAIR[rank].line(text + state) for state in ("START", "COMPLETE"))

    for version in ("2.24", "2.29"):
        lines = [*pair(), *(split(rank, 1 - rank, number, 7, version) for number in (1, 2) for rank in (1, 0))]
        reading = read(tmp_path, *lines)
        names = [f"{COMM.id} split {number} color 7 (2 ranks)" for number in (1, 2)]
        assert [group.name for group in reading.groups] == [COMM.id, *names]
        assert [group.ranks for group in reading.groups] == [(0, 1), (1, 0), (1, 0)]


def test_splits_of_one_parent_that_share_their_id_are_not_mixed(tmp_path: Path) -> None:
    """Until 2.22 the id of a split is made of its parent and color alone."""
    lines = four((numbered(2), [0, 1, 2, 3]))
    for number, members in enumerate(
        ([(0, 0, 0), (1, 1, 0), (2, 0, 1), (3, 1, 1)], [(0, 0, 0), (2, 1, 0), (1, 0, 1), (3, 1, 1)])
    ):
        for rank, member, color in members:
            text = (
                f"ncclCommSplit comm 0x{number + 5}{rank} rank {member} nranks 2 cudaDev {rank % 2} "
                "nvmlDev 0 busId 101c0 "
                f"parent 0x2{rank} color {color} key {rank} commId 0xc0{color} - Init COMPLETE"
            )
            lines.append(FOUR[rank].line(text))
    reading = read(tmp_path, *lines)
    claimed: dict[tuple[str, int], set[tuple[str, int]]] = defaultdict(set)
    for each in rows(reading, "members"):
        claimed[each["communicator"], each["member"]].add((each["host"], each["process"]))
    assert all(len(who) == 1 for who in claimed.values())
    pairs = {group.ranks for group in reading.groups if group.size == 2}
    assert pairs <= {(0, 1), (2, 3), (0, 2), (1, 3), None}


def test_files_of_single_processes_join(tmp_path: Path) -> None:
    for process in PAIR:
        lines = initialised(NEW, process, process.rank, 2, COMM)
        made = (by(process, "AllReduce", seq, 64) for seq in range(3))
        read(tmp_path, *lines, *made, name=f"nccl.{process.rank}.log")
    run = read_inputs([tmp_path])
    assert (run.world_size, sorted(run.ranks)) == (2, [0, 1])
    assert [(group.name, group.ranks) for group in run.groups] == [(COMM.id, (0, 1))]
    assert size(run.facts.members) == 2
    assert {run.facts.name(code) for code in run.facts.members.communicator.tolist()} == {COMM.id}


def test_one_process_may_drive_several_devices(tmp_path: Path) -> None:
    both = [Process(rank=device, pid=77, device=device, tid=100 + device) for device in range(2)]
    reading = read(tmp_path, *pair(processes=both), *(by(both[device], "AllReduce", 0, 64) for device in (1, 0, 0)))
    assert {timeline.rank: size(timeline.collectives) for timeline in reading.timelines} == {0: 2, 1: 1}


# --- choices --------------------------------------------------------------------------------------------------------


def chosen(reading: Reading, rank: int = 0) -> list[tuple[Any, ...]]:
    return [(each["algorithm"], each["protocol"], each["channels"]) for each in calls(reading, rank)]


NOBODYS = (None, None, None)


@pytest.mark.parametrize(
    ("bodies", "expected"),
    [
        pytest.param(
            [
                by_zero("AllReduce", 1, 256), choice("AllReduce", 1024, algorithm="TREE", protocol="LL", high=3),
                by_zero("AllReduce", 2, 1 << 20), choice("AllReduce", 4 << 20, algorithm="NVLS", high=15),
                by_zero("AllGather", 3, 256), choice("AllGather", 1024, algorithm="PAT"),
                by_zero("AllGather", 4, 256), choice("AllGather", 2048, algorithm="RING"),
                by_zero("AllReduce", 5, 300),
            ],
            [("TREE", "LL", 4), ("NVLS", "SIMPLE", 16), ("PAT", "SIMPLE", 24), ("RING", "SIMPLE", 24), NOBODYS],
            id="to the call before it of the same size",
        ),
        pytest.param(
            [
                by_zero("AllReduce", 1, 256), by_zero("AllReduce", 1, 1024), by_zero("ReduceScatter", 1, 256),
                choice("ReduceScatter", 1024, algorithm="RING", high=7),
                choice("AllReduce", 4096, algorithm="NVLS", high=3),
                choice("AllReduce", 1024, algorithm="TREE", protocol="LL", high=0),
            ],
            [("TREE", "LL", 1), ("NVLS", "SIMPLE", 4), ("RING", "SIMPLE", 8)],
            id="to a call of the group before it",
        ),
        pytest.param(
            [
                by_zero("AllReduce", 1, 256), by_zero("AllReduce", 1, 256),
                choice("AllReduce", 1024, low=0, high=3), choice("AllReduce", 1024, low=4, high=5),
            ],
            [("RING", "SIMPLE", None)] * 2,
            id="to all calls of one size, as far as they agree",
        ),
        pytest.param(
            [
                by_zero("AllReduce", 1, 256), choice("AllReduce", 999), choice("AllGather", 1024),
                by_zero("Send", 2, 256), choice("Send", 1024), by_zero("AllReduce", 3, 0), choice("AllReduce", 0),
            ],
            [NOBODYS] * 3,
            id="to none without its call",
        ),
        pytest.param(
            [by_zero("AllReduce", 1, 256), by_zero("AllReduce", 2, 256), choice("AllReduce", 1024)],
            [NOBODYS, ("RING", "SIMPLE", 24)],
            id="to the last: the first took another way, which writes no such line",
        ),
    ],
)  # fmt: skip
def test_a_choice_belongs(bodies: list[str], expected: list[Any], tmp_path: Path) -> None:
    assert chosen(after_pair(tmp_path, *bodies)) == expected


def test_a_choice_that_fits_calls_of_two_communicators_is_nobodys(tmp_path: Path) -> None:
    other = Communicator(id="0xfeed", pointers={0: "0x77", 1: "0x88"})
    lines = [*pair(), *pair(comm=other)]
    lines += [by(PAIR[0], "AllReduce", 1, 256), by(PAIR[0], "AllReduce", 1, 256, comm="0x77")]
    assert chosen(read(tmp_path, *lines, PAIR[0].line(choice("AllReduce", 1024)))) == [(None, None, None)] * 2
    both = [PAIR[0].line(choice("AllReduce", 1024))] * 2
    assert chosen(read(tmp_path, *lines, *both)) == [("RING", "SIMPLE", 24)] * 2


def test_only_member_zero_writes_choices(tmp_path: Path) -> None:
    """A call on a communicator in which the process is another member cannot take one."""
    swapped = Communicator(id="0xfeed", pointers={0: "0x77", 1: "0x88"})
    both = [Process(rank=rank, device=rank, wrapper=f"[1,{rank}]<stdout>:") for rank in range(2)]
    lines = [
        *pair(processes=both),
        *initialised(NEW, both[1], 0, 2, swapped),
        *initialised(NEW, both[0], 1, 2, swapped),
    ]
    lines += [by(both[0], "AllReduce", 1, 256, comm=comm) for comm in (COMM.pointer(0), "0x88")]
    lines.append(both[0].line(choice("AllReduce", 1024)))
    assert chosen(read(tmp_path, *lines)) == [("RING", "SIMPLE", 24), (None, None, None)]


def test_calls_that_were_launched_together_share_the_choice_of_their_sum(tmp_path: Path) -> None:
    """2.22 and 2.23 choose once for calls within four times the smallest, and write the sum of their bytes."""
    version = VERSIONS[6]
    sizes = [100, 150, 399, 400, 1000, 100]
    reading = after_pair(
        tmp_path,
        *(by_zero("AllReduce", 1, count) for count in sizes),
        "AllReduce: 2996 Bytes -> Algo 0 proto 0 time 9.1",
        "AllReduce: 5600 Bytes -> Algo 1 proto 2 time 12.0",
        version=version,
    )
    small, large = ("TREE", "LL", None), ("RING", "SIMPLE", None)
    assert 4 * (100 + 100 + 150 + 399) == 2996
    assert 4 * (400 + 1000) == 5600
    assert chosen(reading) == [small, small, small, large, large, small]


def test_symmetric_kernels_and_copy_engines_are_choices_too(tmp_path: Path) -> None:
    reading = after_pair(
        tmp_path,
        by_zero("AllReduce", 1, 256),
        "AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_AGxLL_R nchannels 2 nthreads 512 nWorks 1",
        by_zero("AllReduce", 2, 256),
        "AllReduce [Symmetric]: 1024 Bytes -> Kernel AllReduce_RSxLD_AGxST nchannels 8 nthreads 512",
        by_zero("AllGather", 3, 256),
        "AllGather [Copy Engine]: 1024 Bytes -> cudaMemcpy; CE synchronization with NVLS",
        by_zero("AllGather", 4, 512),
        "AllGather [Hierarchical CE]: 2048 Bytes -> RMA proxy + CE",
    )
    engines = [("COPY_ENGINE", None, None)] * 2
    assert chosen(reading) == [("AllReduce_AGxLL_R", None, 2), ("AllReduce_RSxLD_AGxST", None, 8), *engines]
    assert reading.source.dropped == 0


def by_pairs(events: list[dict[str, Any]], choices: TuningChoices) -> list[Any]:
    """Find the choices of calls one by one."""
    found: list[Any] = [None] * len(events)
    runs: list[list[int]] = []
    for row, each in enumerate(events):
        before = events[row - 1] if row else None
        if before is None or each["process"] != before["process"] or (each["call"] and not before["call"]):
            runs.append([])
        runs[-1].append(row)
    for run in runs:
        logged = [row for row in run if not events[row]["call"]]
        silent = any(events[row]["op"] < 0 for row in logged)
        left = set(run)
        whole = any(choices.all[events[row]["choice"]].whole for row in logged)
        for measure in ("whole", "part") if whole else ("part", "whole"):
            kinds: dict[Any, tuple[list[int], list[int]]] = defaultdict(lambda: ([], []))
            for row in sorted(left):
                kinds[None if silent else events[row]["op"], events[row][measure]][events[row]["call"]].append(row)
            for lines, made in kinds.values():
                if lines and made:
                    left -= set(lines)
                    answers = [choices.all[events[row]["choice"]] for row in lines]
                    parts = [{getattr(one, name) for one in answers} for name in ("algorithm", "protocol", "channels")]
                    agreed = tuple(
                        part.pop() if len(part) == 1 else missing
                        for part, missing in zip(parts, (None, None, -1), strict=True)
                    )
                    one_communicator = len({events[row]["communicator"] for row in made}) == 1
                    for row in made if len(lines) >= len(made) else made[-len(lines) :] if one_communicator else []:
                        found[row] = agreed
                        left.discard(row)
    return found


@pytest.mark.slow
@examples(300)
@given(st.data())
def test_choices_are_matched_as_one_by_one(data: st.DataObject) -> None:
    choices = TuningChoices()
    whole = data.draw(st.booleans())
    codes = [
        choices.code(TuningChoice(*answer, whole))
        for answer in (("RING", "LL", 4), ("TREE", "LL", 4), ("RING", "SIMPLE", 8), ("RING", "LL", 2))
    ]
    small, parts = st.integers(0, 1), st.sampled_from([4, 8, 12])
    made = st.builds(
        lambda communicator, op, part, times: {
            "call": True, "communicator": communicator, "op": op, "part": part, "whole": part * times, "choice": -1,
        },
        small, small, parts, st.integers(1, 2),
    )  # fmt: skip
    logged = st.builds(
        lambda op, part, code: {
            "call": False, "communicator": -1, "op": op, "part": part, "whole": part, "choice": code,
        },
        st.integers(-1 if whole else 0, 1), parts | st.just(16), st.sampled_from(codes),
    )  # fmt: skip
    events = [
        {"process": process, "batch": row, **each}
        for process in range(data.draw(st.integers(1, 3)))
        for row, each in enumerate(data.draw(st.lists(made | logged, min_size=1, max_size=10)))
    ]
    kinds = {"call": np.bool_, "whole": np.int64, "part": np.int64}
    columns = {name: np.array([each[name] for each in events], kinds.get(name, np.int32)) for name in events[0]}
    answers = [None if code < 0 else choices.all[code] for code in match(CallsAndChoices(**columns), choices).tolist()]
    assert [each and (each.algorithm, each.protocol, each.channels) for each in answers] == by_pairs(events, choices)


def test_a_choice_holds_for_all_members_of_the_log(tmp_path: Path) -> None:
    lines = pair()
    for seq, count in ((1, 256), (2, 512), (3, 256)):
        lines += [by(process, "AllReduce", seq, count) for process in PAIR]
        if seq != 2:
            lines.append(PAIR[0].line(choice("AllReduce", 1024, high=seq)))
    lines.append(by(PAIR[1], "AllReduce", 4, 999))
    reading = read(tmp_path, *lines)
    assert chosen(reading, 0) == [("RING", "SIMPLE", 2), (None, None, None), ("RING", "SIMPLE", 4)]
    assert chosen(reading, 1) == [*chosen(reading, 0), (None, None, None)]


# --- graph, network, costs, environment -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "ends", "transport", "card", "direct", "side"),
    [
        ("Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read", (0, 1), "P2P/CUMEM/read", None, "untold", "both"),
        ("Channel 01 : 0[1000] -> 1[a01d0] via direct shared memory", (0, 1), "direct shared memory", None, "untold",
         "both"),
        ("Channel 01/1 : 0[0] -> 1[1] via SHM/direct/direct", (0, 1), "SHM/direct/direct", None, "untold", "both"),
        ("Channel 01/0 : 0[0] -> 1[1] via P2P/indirect/0[10]", (0, 1), "P2P/indirect/0[10]", None, "untold", "both"),
        ("Ring 01 : 0 -> 1 [send] via NET/Socket/0", (0, 1), "NET/Socket", "eth0", "no", "sending"),
        ("Channel 01/0 : 1[1] -> 0[0] [receive] via NET/IB/1/GDRDMA", (1, 0), "NET/IB", "mlx5_1", "yes", "receiving"),
        ("Channel 01/0 : 0[0] -> 1[1] [send] via NET/IB/0(1)/GDRDMA(PCI)/Shared", (0, 1), "NET/IB", "mlx5_0", "yes",
         "sending"),
        ("Channel 01/0 : 0[0] -> 1[1] [send] via NET/AWS Libfabric/3/Shared", (0, 1), "NET/AWS Libfabric", "3", "no",
         "sending"),
        ("Channel 01 : 0[1c000] -> 1[1d000] via P2P/IPC comm 0x7f00 nRanks 02", (0, 1), "P2P/IPC", None, "untold",
         "both"),
    ],
)  # fmt: skip
def test_connections_of_every_transport(
    text: str, ends: tuple[int, int], transport: str, card: str | None, direct: str, side: str, tmp_path: Path
) -> None:
    lines = [
        PAIR[0].line("NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/RoCE [RO]; OOB eth0:10.0.0.1<0>"),
        PAIR[0].line("NET/Socket : Using [0]eth0:10.0.0.1<0>"),
        PAIR[0].line("Using network IB"),
    ]
    begin, *rest = initialised(NEW, PAIR[0], 0, 2, COMM)
    reading = read(tmp_path, *lines, begin, PAIR[0].line(text), *[each for each in rest if " via " not in each])
    (found,) = rows(reading, "connections")
    assert (found["communicator"], found["channel"], found["sender"], found["receiver"]) == (COMM.id, 1, *ends)
    assert (found["transport"], found["nic"], ANSWERS[found["gpu_direct"]]) == (transport, card, direct)
    assert ("both", "sending", "receiving")[found["side"]] == side
    assert rows(reading, "members")[0]["network"] == "IB"


def test_connections_made_later_belong_to_the_communicator_they_fit(tmp_path: Path) -> None:
    lines = four((numbered(2), [0, 1, 2, 3]), (numbered(3), [1, 3]))
    lines.append(FOUR[1].line("Channel 00/1 : 1[1] -> 3[1] [send] via NET/IB/0"))
    lines.append(FOUR[1].line("Channel 05/1 : 0[1] -> 1[1] [send] via NET/IB/0"))
    reading = read(tmp_path, *lines)
    late = {
        (each["channel"], each["sender"], each["receiver"]): each["communicator"]
        for each in rows(reading, "connections")
        if each["transport"] == "NET/IB"
    }
    assert late == {(0, 1, 3): "0x2", (5, 0, 1): "0x3"}
    lines.append(FOUR[0].line("Channel 06/1 : 0[0] -> 1[1] via SHM/direct/direct"))
    reading = read(tmp_path, *lines, *four((numbered(4), [0, 1, 2, 3])))
    (odd,) = [each for each in rows(reading, "connections") if each["transport"].startswith("SHM")]
    assert odd["communicator"] is None
    assert any("do not state their communicator" in each for each in reading.source.warnings)


def test_rings_and_trees_of_rccl_name_their_communicator_behind_them(tmp_path: Path) -> None:
    owner = f" comm {COMM.pointer(0)} nRanks 02 busId 101c0"
    trees = "".join(f" [{channel}] 1/-1/-1->0->-1" for channel in range(64))
    assert len(trees) > 1023
    lines = pair()
    logged = [PAIR[0].line(text) for text in ("Ring 7 : 1 -> 0 -> 1", f"Trees{trees}", "Ring 8 : 1 -> 0 -> 1")]
    reading = read(tmp_path, lines[0], *(line + owner for line in logged), *lines[1:])
    assert reading.source.dropped == 0
    found = [(each["pattern"], each["channel"], each["member"], each["next"]) for each in rows(reading, "paths")]
    assert {("ring", 7, 0, 1), ("ring", 7, 1, 0), ("ring", 8, 0, 1), ("tree", 63, 0, 1)} <= set(found)


def test_a_ring_that_the_library_cut_short_is_left_out(tmp_path: Path) -> None:
    begin, *rest = initialised(NEW, PAIR[0], 0, 2, COMM)
    rest = [each for each in rest if "Channel 0" not in each and "Trees" not in each]
    long = "Trees " + " ".join(f"[{channel}] 1/-1/-1->0->-1" for channel in range(60))
    reading = read(tmp_path, begin, PAIR[0].line("Channel 00/02 :    0"), PAIR[0].line(long[:1011]), *rest)
    logged = rows(reading, "paths")
    assert {each["pattern"] for each in logged} == {"tree"}
    assert {each["next"] for each in logged} == {1}
    assert reading.source.dropped == 1


OLD_COSTS = """Latency/AlgBw |    Tree/    LL |    Tree/ LL128 |    Tree/Simple |    Ring/    LL |
 Max NThreads |            512 |            640 |            512 |            512 |
    Broadcast |    0.0/   0.0 |     0.0/   0.0 |     0.0/   0.0 |     4.4/   3.0 |
    AllReduce |   27.1/  10.2 |    35.3/  40.8 |   120.5/  45.1 |    18.0/   6.5 |"""
NEW_COSTS = """  Algorithm   |                  Tree                  |                  Ring                  |
  Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |
 Max NThreads |            512 |            640 |            512 |            512 |            640 |            512 |
    AllReduce |   27.1/  10.2 |   35.3/  40.8 |  120.5/  45.1 |   18.0/   6.5 |   30.0/  30.1 |   60.2/  50.0 |
  Algorithm   |                  CollNetDirect                  |                  NVLSTree                  |
  Protocol    |             LL |          LL128 |         Simple |             LL |          LL128 |         Simple |
 Max NThreads |              0 |              0 |            640 |              0 |              0 |            640 |
    AllReduce |    0.0/   0.0 |    0.0/   0.0 |   23.5/  80.0 |    0.0/   0.0 |    0.0/   0.0 |   25.0/  90.5 |"""


def test_tables_of_costs_of_both_forms(tmp_path: Path) -> None:
    for text, number, expected in (
        (OLD_COSTS, 8, ("all_reduce", "TREE", "LL128", 35.3, 40.8)),
        (NEW_COSTS, 12, ("all_reduce", "NVLS_TREE", "SIMPLE", 25.0, 90.5)),
    ):
        begin, *rest = initialised(NEW, PAIR[0], 0, 2, COMM)
        table = [PAIR[0].line(line) for line in text.split("\n")]
        reading = read(tmp_path, begin, *table, *rest)
        costs = rows(reading, "cost_models")
        assert len(costs) == number
        assert {each["communicator"] for each in costs} == {COMM.id}
        assert expected in {tuple(each.values())[1:] for each in costs}
        assert len({(each["op"], each["algorithm"], each["protocol"]) for each in costs}) == number


def test_settings_become_the_fingerprint_and_nothing_else_does(tmp_path: Path) -> None:
    reading = after_pair(
        tmp_path,
        "NCCL_IB_DISABLE set by environment to 1.",
        "NCCL_SOCKET_IFNAME set by environment to eth0.100",
        "RCCL_MSCCL_ENABLE set by environment to 0.",
        "NCCL_ALGO set by environment to Tree",
        "AWS_SECRET set by environment to hush",
        "OFI_NCCL_GDR_FLUSH_DISABLE set by environment to 1",
    )
    kept = {"NCCL_IB_DISABLE": "1", "NCCL_SOCKET_IFNAME": "eth0.100", "RCCL_MSCCL_ENABLE": "0", "NCCL_ALGO": "Tree"}
    assert reading.fingerprint == kept
    lines = [process.line(f"NCCL_BUFFSIZE set by environment to {process.rank}.") for process in PAIR]
    assert read(tmp_path, *pair(), *lines).fingerprint == {"NCCL_BUFFSIZE": "mixed"}


def test_a_version_behind_a_prefix_is_that_of_its_process(tmp_path: Path) -> None:
    reading = after_pair(tmp_path, "NCCL version 2.24.3+cuda12.6")
    assert [each["library"] for each in rows(reading, "members")] == ["NCCL 2.24.3+cuda12.6", None]
    assert reading.fingerprint == {"nccl_version": "2.24.3"}


def test_time_of_initialisation_and_nodes(tmp_path: Path) -> None:
    lines = initialised(NEW, PAIR[0], 0, 2, COMM)
    lines.insert(1, PAIR[0].line(f"comm {COMM.pointer(0)} rank 0 nRanks 2 nNodes 5 localRanks 1 localRank 0 MNNVL 0"))
    for text in (
        "Init timings - ncclCommInitRank: rank 0 nranks 2 total 1.58 (kernels 0.26, alloc 0.97)",
        "Init timings: rank 0 nranks 2 total 1.58 (kernels 0.26)",
    ):
        (member,) = rows(read(tmp_path, *lines, PAIR[0].line(text)), "members")
        assert (member["init_seconds"], member["nodes"]) == (1.58, 5)
    (member,) = rows(
        read(tmp_path, *lines, PAIR[0].line("Init timings: rank 1 nranks 2 total 1.58 (kernels 0.26)")), "members"
    )
    assert member["init_seconds"] is None


# --- messages and time ----------------------------------------------------------------------------------------------


def test_warnings_keep_their_place_rank_and_time(tmp_path: Path) -> None:
    refused, timeout = "Call to connect failed : Connection refused", "Timeout waiting for peer"
    late = PAIR[1].warn(timeout, stamp="[2026-04-28 14:14:42] ", function="ncclIbTest")
    logged = rows(read(tmp_path, *pair(), PAIR[1].warn(refused), late), "messages")
    assert [(each["kind"], each["text"]) for each in logged] == [(1, refused), (2, timeout)]
    assert {(each["rank"], each["host"]) for each in logged} == {(1, "node-0.cluster.local")}
    text = (tmp_path / "nccl.log").read_text().split("\n")
    assert all("NCCL WARN" in text[each["line"] - 1] for each in logged)
    assert [each["time_ns"] for each in logged] == [None, 1_777_385_682 * 10**9]


@pytest.mark.parametrize("level", ["ATTN", "ERROR"])
def test_notices_and_errors_of_newer_versions_are_messages_like_warnings(level: str, tmp_path: Path) -> None:
    logged = PAIR[1].warn("NVLink fabric health reports DEGRADED_BANDWIDTH", function="fillInfo")
    reading = read(tmp_path, *pair(), logged.replace("NCCL WARN", f"NCCL {level}"))
    assert [(each["kind"], each["text"], each["rank"]) for each in rows(reading, "messages")] == [
        (1, "NVLink fabric health reports DEGRADED_BANDWIDTH", 1)
    ]
    assert READER.recognises(Head(path=tmp_path, content=logged.replace("NCCL WARN", f"NCCL {level}").encode()))


def test_times_of_the_library_are_launches_and_times_of_collectors_are_not(tmp_path: Path) -> None:
    own = [Process(rank=0, stamp=stamp) for stamp in ("[2026-04-28 14:14:42] ", "[2026-04-28 14:14:43.123456] ", "")]
    lines = [*pair(), *(by(process, "AllReduce", seq, 4) for seq, process in enumerate(own))]
    reading = read(tmp_path, *lines)
    second = 1_777_385_682 * 10**9
    launches = [each["launch_ns"] for each in calls(reading)]
    assert launches[0] == second
    assert launches[1] in (second + 1_123_456_000, None)
    assert launches[2] is None
    assert any("read as UTC" in each for each in reading.source.warnings)
    collected = "2026-04-28T14:14:42.123456789Z stdout F "
    reading = read(tmp_path, *(collected + line for line in [*pair(), by(PAIR[0], "AllReduce", 0, 4)]))
    assert [each["launch_ns"] for each in calls(reading)] == [None]
    assert [each["launch_ns"] for each in calls(after_pair(tmp_path, by_zero("AllReduce", 0, 4)))] == [None]


@given(st.datetimes(min_value=datetime(1999, 1, 1), max_value=datetime(2150, 1, 1)), st.integers(0, 9))
def test_times_are_decoded_as_the_calendar_has_them(moment: datetime, digits: int) -> None:
    part = f"{moment.microsecond * 1000:09d}"[:digits]
    text = moment.strftime("%Y-%m-%d %H:%M:%S") + (f".{part}" if digits else "")
    held = TextBlock(1 << 10)
    later = [
        moment,
        moment.replace(second=59),
        moment.replace(minute=(moment.minute + 7) % 60),
        moment.replace(year=2000, day=3),
    ]
    texts = [each.strftime("%Y-%m-%d %H:%M:%S") + text[19:] for each in later] + [
        "2026-99-03 10:10:10" + text[19:],
        "x" * len(text),
    ]
    held.put("".join(texts).encode() + b"\n", 0)
    places = np.arange(len(texts)) * len(text)
    for order in (np.arange(len(texts)), np.arange(len(texts))[::-1]):
        found = held.times(places[order], np.ones(len(texts), np.bool_), text.encode())[np.argsort(order)].tolist()
        part_ns = int(part.ljust(9, "0")) if digits else 0
        assert found == [calendar.timegm(each.timetuple()) * 10**9 + part_ns for each in later] + [NONE, NONE]


# --- launchers, collectors, torn lines ------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrapper",
    [
        "[1,{rank}]<stdout>:", "[1,{rank}]<stderr>:", "[{rank}]<stdout>:", "[{rank}] ", "{rank}: ", "  {rank}: ",
        "[rank{rank}]:", "[rank{rank}] ", "[node-7:{rank}]: ", "(RayTrainWorker pid=615, ip=10.72.7.6) ",
        "(A pid=1) (B pid=615) ", "[default0]:", "2026-04-28T14:14:42.123456789Z stdout F ",
        "2026-04-28T14:14:42.123456789Z ", "\x1b[36m(Worker pid=3)\x1b[0m ", "\x1b[31m",
        "\x1b[36m[rank{rank}]\x1b[0m ", "45%|####      | 9/20 [00:01<00:02]\r",
        "2026-04-28T14:14:42Z stdout F [1,{rank}]<stdout>:",
    ],
)  # fmt: skip
def test_what_launchers_and_collectors_put_before_lines_changes_nothing(wrapper: str, tmp_path: Path) -> None:
    plain = pair()
    for seq in range(40):
        plain += [by(process, "AllReduce", seq, 10 + seq) for process in PAIR]
        plain.append(PAIR[0].line(choice("AllReduce", 40 + 4 * seq)))
    wrapped = [wrapper.format(rank=0 if ":4000:" in line else 1) + line for line in plain]
    expected = read(tmp_path, *plain)
    for end in ("\n", "\r\n"):
        reading = read(tmp_path, *wrapped, end=end)
        assert_same(reading, expected)
        assert reading.source.dropped == 0
    assert [each["seq"] for each in calls(expected, 1)] == list(range(40))


def assert_same(one: Reading, other: Reading) -> None:
    assert (one.world_size, one.groups, one.fingerprint) == (other.world_size, other.groups, other.fingerprint)
    assert one.source.events == other.source.events
    for table in ("members", "connections", "paths", "cost_models"):
        assert rows(one, table) == rows(other, table)
    assert [each.rank for each in one.timelines] == [each.rank for each in other.timelines]
    for mine, theirs in zip(one.timelines, other.timelines, strict=True):
        assert spelled(mine.collectives, mine.names) == spelled(theirs.collectives, theirs.names)


@pytest.mark.slow
def test_torn_lines_are_counted_and_never_rows(tmp_path: Path) -> None:
    whole = by(PAIR[0], "AllReduce", 7, 64)
    body = whole.index("AllReduce")
    ends = whole.index(" stream ")
    for cut in range(body + len("AllReduce: opCount "), len(whole) - 7):
        reading = read(tmp_path, *pair(), whole[:cut])
        assert (calls(reading), reading.source.dropped) == ([], 1), whole[:cut]
    assert ends < len(whole)
    reading = read(tmp_path, *pair(), whole[:ends], whole, whole[:body])
    assert [each["seq"] for each in calls(reading)] == [7]
    assert reading.source.dropped == 1


@pytest.mark.slow
def test_a_line_that_was_cut_into_another_costs_only_itself(tmp_path: Path) -> None:
    mine, theirs = by(PAIR[0], "AllReduce", 7, 64), by(PAIR[1], "AllReduce", 8, 65)
    for cut in range(mine.index("AllReduce: ") + 12, len(mine) - 1):
        reading = read(tmp_path, *pair(), mine[:cut] + theirs, mine[cut:])
        assert [each["seq"] for each in calls(reading, 1)] == [8], mine[:cut]
        assert calls(reading, 0) == []
        assert {each["host"] for each in rows(reading, "members")} == {"node-0.cluster.local"}
        assert reading.source.dropped >= 1


def test_of_two_prefixes_the_text_decides(tmp_path: Path) -> None:
    """Early versions wrote prefix and text apart."""
    first, second = (process.line("") for process in PAIR)
    body = call("AllReduce", 8, 65, comm=COMM.pointer(1), nranks=2)
    for prefixes in (first + second, second + first):
        reading = read(tmp_path, *pair(), prefixes + body, by_zero("AllReduce", 7, 64))
        assert ([each["seq"] for each in calls(reading, 1)], calls(reading, 0)) == ([8], [])
        assert (reading.source.repaired, reading.source.dropped) == (1, 1)
    unknown = call("AllReduce", 8, 65, comm="0x123", nranks=2)
    reading = read(tmp_path, *pair(), first + second + unknown)
    assert (sum(size(each.collectives) for each in reading.timelines), reading.source.dropped) == (0, 1)
    begun = [line for line in pair() if "Init COMPLETE" not in line]
    ready = [line for line in pair() if "Init COMPLETE" in line]
    together = first + second + next(line for line in ready if "rank 1 " in line).split("NCCL INFO ")[1]
    reading = read(tmp_path, *begun, next(line for line in ready if "rank 0 " in line), together)
    assert [(each["member"], each["device"]) for each in rows(reading, "members")] == [(0, 0), (1, 1)]


def test_lines_of_others_are_passed_over_quietly(tmp_path: Path) -> None:
    lines = [*pair(), by(PAIR[0], "AllReduce", 1, 64)]
    others = [
        "# nThread 1 nGpus 1 minBytes 8",
        "  8  2  float  sum  179.1  0.00",
        "Epoch 3: loss 0.1, NCCL was fine",
        "",
        "[rank1]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught a timeout",
        "NCCL_DEBUG=INFO",
        "opCounting sheep",
        "see [1] NCCL",
        "node:1:2 [0] 12.5 ncclFoo:33 NCCL TRACE opCount 3 foo",
        "node:1:2 NCCL CALL ncclAllReduce(7f00,7f01,4,7,0,0x55,0x66)",
        "x" * 5000,
        "\x00\x01\xff",
    ]
    mixed = [line for together in zip(lines, (others * 20)[: len(lines)], strict=True) for line in together]
    reading = read(tmp_path, *mixed)
    assert_same(reading, read(tmp_path, *lines))
    assert (reading.source.dropped, reading.source.repaired) == (0, 0)


# --- against a plain reader of single lines -------------------------------------------------------------------------


def plainly(text: str) -> Counter[tuple[Any, ...]]:
    """Read calls the slow way: one expression a line, for lines that have one prefix."""
    form = re.compile(
        r"(?:^|.*[^A-Za-z0-9_.-])([A-Za-z0-9_.-]+):(\d+):\d+ \[\d+\] NCCL INFO ([A-Za-z0-9]+): opCount ([0-9a-f]+) "
        r"sendbuff .{3,18}? recvbuff .{3,18}? count (\d+) datatype (\d+) op (\d+) root (\d+) comm (0x[0-9a-f]+) "
        r"\[nranks=(\d+)\] stream (?:0x[0-9a-f]+|\(nil\))( task \d+ globalrank \d+)?\s*"
    )
    found: Counter[tuple[Any, ...]] = Counter()
    for line in re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).replace("\r\n", "\n").split("\n"):
        matched = form.fullmatch(line)
        if matched and line.count("NCCL INFO") == line.rpartition("NCCL INFO")[2].count("opCount") == 1:
            host, process, op, seq, count, dtype, _, _, _, nranks, _ = matched.groups()
            found[host, int(process), op.lower(), int(seq, 16), int(count), int(dtype), int(nranks)] += 1
    return found


PIECES = st.sampled_from([
    "\n", "\r\n", " ", "\r", "[1,0]<stdout>:", "\x1b[31m", "\x1b[0m", "loss 0.1", "NCCL", "BCB", "opCount ",
    "Bytes -> ", "0: ", "2026-04-28T14:14:42Z stdout F ", "[2026-04-28 14:14:42] ", "\x00",
])  # fmt: skip


@st.composite
def logs(draw: st.DrawFn) -> str:
    seed = random.Random(draw(st.integers(0, 2**32)))
    parts = []
    for _ in range(draw(st.integers(1, 30))):
        kind = draw(st.integers(0, 9))
        process = Process(rank=seed.randrange(3), host=seed.choice(["a", "node-1.x", "b_c"]), device=seed.randrange(2))
        if kind < 7:
            op, end = (
                seed.choice(["AllReduce", "AllGather", "Send", "Broadcast"]),
                seed.choice(["", " task 3 globalrank 1"]),
            )
            seq, count = (seed.randrange(1 << seed.randrange(1, bits)) for bits in (50, 55))
            comm, dtype = f"0x{seed.randrange(1, 4):x}", seed.randrange(13)
            pointer = seed.choice(["(nil)", "0x7f5b6dec9900", "0x1", "0xffffffffffffffff", "0x12345678"])
            body = call(op, seq, count, comm=comm, nranks=4, dtype=dtype, end=end)
            parts.append(process.line(body.replace("(nil)", pointer)))
        elif kind == 7:
            parts.append(process.line(choice("AllReduce", seed.randrange(10**9))))
        else:
            parts.append(draw(PIECES))
        parts.append(draw(st.sampled_from(["\n", "\n", "\n", "\n", "\r\n", " \n", "\n\n"])))
    text = "".join(parts)
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(PIECES) + text[place + draw(st.integers(0, 3)) :]
    return text


@pytest.mark.slow
@examples(150)
@given(logs(), st.sampled_from([1, 64, 500, 4 << 20]))
def test_calls_are_those_that_a_plain_reader_finds(
    tmp_path_factory: pytest.TempPathFactory, text: str, batch: int
) -> None:
    """Whatever stands between them, and however the log falls into blocks."""
    path = tmp_path_factory.mktemp("log") / "nccl.log"
    path.write_text(text, encoding="utf-8", newline="")
    expected = plainly(text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nccl_scan, "_BATCH", batch)
        patch.setattr("overlapscope.ingest.parsing.gzip_stream.BLOCK_BYTES", max(batch // 2, 7))
        try:
            reading = READER.read(path, ReadContext())
        except InputError:
            assert not expected
            return
    owners = {(each["host"], each["process"], each["device"]) for each in rows(reading, "members")}
    read_ = Counter()
    for timeline in reading.timelines:
        columns = spelled(timeline.collectives, timeline.names)
        ops = [str(op).replace("_", "") for op in columns["op"]]
        read_.update(zip(columns["seq"], ops, columns["dtype"], strict=True))
    plain = Counter()
    for (host, process, op, seq, _, dtype, _), number in expected.items():
        plain[seq, op, DTYPES[dtype] if dtype < len(DTYPES) else None] += number
        assert {(host, process)} <= {owner[:2] for owner in owners}
    if any(line.count("NCCL INFO") > 1 for line in text.split("\n")):
        assert plain <= read_
    else:
        assert plain == read_


# --- recognising and refusing ---------------------------------------------------------------------------------------


def head(text: str) -> Head:
    return Head(path=Path("x"), content=text.encode()[:HEAD_BYTES])


def test_a_log_is_known_by_a_line_with_the_librarys_prefix() -> None:
    assert recognises(head("starting\n" + PAIR[0].line("Bootstrap : Using eth0")))
    assert recognises(head("[1,0]<stdout>:" + PAIR[0].line("x")))
    assert recognises(head(PAIR[0].warn("Failed to open libibverbs.so[.1]", place="misc/ibvwrap.cc:63")))
    assert recognises(head("\x1b[36m(Worker pid=3)\x1b[0m " + PAIR[0].line("x")))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[rank1]:[E1206 18:44:12.715298746 ProcessGroupNCCL.cpp:607] [Rank 1] Watchdog caught collective operation "
        "timeout: "
        "WorkNCCL(SeqNum=7753, OpType=_REDUCE_SCATTER_BASE, Timeout(ms)=600000)\n",
        "[E ProcessGroupNCCL.cpp:737] [Rank 1] Some NCCL operations have failed or timed out.\n",
        "torch.distributed.DistBackendError: NCCL error in: ../torch, unhandled system error, NCCL version 2.19.3\n",
        "export NCCL_DEBUG=INFO\nlook for NCCL INFO lines\n",
        "NCCL version 2.21.5+cuda12.4\n# nThread 1\n#  size\n",
        '{"traceEvents": [], "note": "' + PAIR[0].line("x") + '"}',
        '[{"text": "' + PAIR[0].line("x") + '"}]',
        "NCCL INFO without a prefix\n",
        "2026:09:02-09:09:07: 6133:[0] |CCL_INFO| version\n",
    ],
)
def test_words_on_nccl_do_not_make_a_log(text: str) -> None:
    assert not recognises(head(text))


def test_a_file_without_a_line_of_the_library_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no line of NCCL or RCCL"):
        read(tmp_path, "nothing here", "NCCL")


def test_the_other_formats_of_the_public_inputs_are_not_claimed() -> None:
    root = shared_file("nccl_log").parent
    claimed = [path for path in sorted(root.rglob("*")) if path.is_file() and recognises(read_head(path))]
    assert [path.parent.name for path in claimed] == ["nccl_log"]
    assert all(find_reader(read_head(path)) is READER for path in claimed)


# --- damage ---------------------------------------------------------------------------------------------------------

SAMPLE = "\n".join(
    [
        VERSIONS[7].name,
        *pair(),
        *(PAIR[0].line(line) for line in NEW_COSTS.split("\n")),
        PAIR[0].line("NET/IB : Using [0]mlx5_0:1/IB [RO]; OOB eth0:10.0.0.1<0>"),
        PAIR[0].line("NCCL_IB_DISABLE set by environment to 1."),
        by(PAIR[0], "AllReduce", 1, 256),
        PAIR[0].line(choice("AllReduce", 1024)),
        PAIR[1].warn("Timeout", stamp="[2026-04-28 14:14:42] "),
        Process(rank=0, stamp="[2026-04-28 14:14:42] ").line(by_zero("AllGather", 2, 256)),
        PAIR[0].line("AllReduce: 2996 Bytes -> Algo 0 proto 0 time 9.1"),
        "",
    ]
).encode()
TOKENS = [
    b"", b"\n", b"\r", b"\x00", b"\xff", b"0x", b"9" * 25, b"-1", b"ffffffffffffffffffff", b" NCCL INFO ", b"opCount ",
    b"Bytes ->", b"[", b"|", b"/", b"->", b" via ", b" - Init COMPLETE", b"comm 0x0 rank 5 nranks 2 cudaDev 9999999999",
    b"\x1b[", b"2026-99-99 99:99:99", b"[9999-12-31 23:59:60] ", b"Trees [", b"Channel 99999/9 : ", b"nranks=0]",
    b"\x1f\x8b\x08",
]  # fmt: skip
CHANGES = st.tuples(st.integers(0, len(SAMPLE)), st.integers(0, 40), st.sampled_from(TOKENS))


@pytest.mark.slow
@examples(300)
@given(st.lists(CHANGES, min_size=1, max_size=8))
def test_a_mutated_log_gives_a_reading_or_an_error(
    tmp_path_factory: pytest.TempPathFactory, changes: list[tuple[int, int, bytes]]
) -> None:
    content = SAMPLE
    for place, width, token in changes:
        content = content[:place] + token + content[place + width :]
    path = tmp_path_factory.mktemp("log") / "nccl.log"
    path.write_bytes(content)
    try:
        reading = READER.read(path, ReadContext())
    except OverlapScopeError as error:
        message = str(error)
        reading = None
    if reading is None:
        assert message.startswith(f"{path}: ")
        assert "\n" not in message
        return
    for timeline in reading.timelines:
        table = timeline.collectives
        assert (table.seq >= 0).all()
        assert ((table.bytes == NONE) | (table.bytes >= 0)).all()
        assert ((table.group_size >= 1) & (table.group_size <= 1 << 20)).all()
    for each in rows(reading, "members"):
        assert each["member"] is None or 0 <= each["member"] < each["members"]


def test_more_than_the_allowed_bytes_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_bytes(SAMPLE * 4000)
    with pytest.raises(InputError, match="--max-gib"):
        READER.read(path, ReadContext(max_bytes=1 << 20))


@pytest.mark.parametrize("version", [OLD, VERSIONS[0]], ids=lambda version: version.name)
def test_a_log_that_is_cut_before_initialisation_ended_says_what_it_lacks(version: Version, tmp_path: Path) -> None:
    whole = pair(version)
    cut = [line for line in whole if "Init COMPLETE" not in line]
    (warning,) = read(tmp_path, *cut).source.warnings
    assert warning.startswith("2 initialisations of a communicator without its end")
    assert not any("without its end" in each for each in read(tmp_path, *whole).source.warnings)


def test_one_endless_line_takes_no_endless_memory(tmp_path: Path) -> None:
    path = tmp_path / "nccl.log"
    path.write_bytes(SAMPLE + b"A" * (12 << 20) + b"\n" + by(PAIR[0], "AllReduce", 3, 9).encode() + b"\n")
    assert 3 in [each["seq"] for each in calls(READER.read(path, ReadContext()))]


def test_repeated_lines_do_not_grow_what_is_reported(tmp_path: Path) -> None:
    lines = pair()
    reading = read(tmp_path, *lines[:-2], *(lines[2:-2] * 300), *lines[-2:])
    once = read(tmp_path, *lines)
    for table in ("connections", "paths"):
        assert rows(reading, table) == rows(once, table)


def test_communicators_of_all_ranks_share_the_list_of_their_ranks(tmp_path: Path) -> None:
    """A long job's rank makes many of them, each of as many members as the job has ranks."""
    state = "comm 0x55a7a3{0:04x}00 rank 7 nranks 16384 cudaDev 7 nvmlDev 7 busId 101c0 commId 0x{0:x} - Init COMPLETE"
    reading = read(tmp_path, *(PAIR[0].line(state.format(number)) for number in range(1, 4)))
    first, *others = (group.ranks for group in reading.groups)
    assert first == tuple(range(16384))
    assert all(each is first for each in others)


@pytest.mark.slow
def test_many_communicators_take_no_time_by_their_number_squared() -> None:
    """Sixteen times as many took 256 times as long."""

    def seconds(number: int) -> float:
        log = LoggedCommunicators()
        process = log.process("node-0", 1)
        for order in range(number):
            log.add(Member(process=process, pointer=order, size=8, member=3, device=3, order=order))
        gc.collect()
        gc.disable()  # whatever else the suite holds would be gone through again and again
        begun = time.process_time()
        name_communicators(log.all)
        assert find_world(log.all).size == 8
        took = time.process_time() - begun
        gc.enable()
        return took

    small, large = (min(seconds(number) for _ in range(3)) for number in (1_000, 16_000))
    assert large < 100 * small


def test_names_of_splits_of_splits_stay_short_and_differ(tmp_path: Path) -> None:
    state = (
        "comm 0x{0:x} rank 0 nranks 2 cudaDev 0 nvmlDev 0 busId 101c0 parent 0x{1:x} color {2} key 0 commId 0x0 "
        "- Init COMPLETE"
    )
    texts = [state.format(16 + depth + 1, 16 + depth, 1000 + depth) for depth in range(300)]
    reading = read(tmp_path, *pair(), *(PAIR[0].line(text) for text in texts))
    names = [group.name for group in reading.groups]
    assert len(set(names)) == len(names) == 301
    assert max(map(len, names)) < 300


# --- the real log ---------------------------------------------------------------------------------------------------

REAL = "nccl_log/aws_efa_eks_nccl2.9.9_p4d_16ranks_mpirun.log"


@pytest.fixture(scope="module")
def real() -> tuple[Reading, str]:
    path = shared_file(REAL)
    assert find_reader(read_head(path)) is READER
    return READER.read(path, ReadContext()), path.read_text(encoding="utf-8")


def test_real_log_members(real: tuple[Reading, str]) -> None:
    reading, text = real
    logged = re.findall(
        r"\[1,(\d+)\]<stdout>:(\S+):(\d+):\d+ \[\d\] NCCL INFO comm \S+ rank (\d+) nranks 16 cudaDev (\d+) "
        r"busId (\w+) - Init COMPLETE",
        text,
    )
    assert len(logged) == 16
    assert all(label == rank for label, _, _, rank, _, _ in logged)
    expected = {(host, int(pid), int(rank), int(device)) for _, host, pid, rank, device, _ in logged}
    members = rows(reading, "members")
    assert {(each["host"], each["process"], each["member"], each["device"]) for each in members} == expected
    assert all(each["rank"] == each["member"] for each in members)
    assert [each["member"] for each in members] == list(range(16))
    by_nccl_tests = re.findall(r"#   Rank +(\d+) Pid +(\d+) on (\S+) device +(\d+) \[0x(\w+)\]", text)
    assert expected == {(host, int(pid), int(rank), int(device)) for rank, pid, host, device, _ in by_nccl_tests}
    buses = {int(rank): bus for rank, _, _, _, bus in by_nccl_tests}
    assert all(each["bus"].split(":")[1] == buses[each["member"]] for each in members)
    assert Counter(each["host"] for each in members) == {
        "nccl-tests-efa-16-worker-0": 8,
        "nccl-tests-efa-16-worker-1": 8,
    }
    assert {
        (each["nodes"], each["network"], each["collective_channels"], each["point_to_point_channels"])
        for each in members
    } == {(2, "AWS Libfabric", 8, 8)}
    assert [each["library"] for each in members] == ["NCCL 2.9.9+cuda11.2"] + [None] * 15
    assert (reading.world_size, reading.groups[0].ranks, len(reading.groups)) == (16, tuple(range(16)), 1)
    assert reading.fingerprint == {"nccl_version": "2.9.9"}
    assert (reading.source.dropped, reading.source.repaired, reading.source.warnings) == (0, 0, ())
    assert reading.source.events == text.count(" NCCL INFO ")
    assert [timeline.rank for timeline in reading.timelines] == list(range(16))


def test_real_log_rings_and_trees(real: tuple[Reading, str]) -> None:
    reading, text = real
    following: dict[int, dict[int, int]] = defaultdict(dict)
    children: dict[tuple[int, int], list[int]] = defaultdict(list)
    for each in rows(reading, "paths"):
        if each["pattern"] == "ring":
            following[each["channel"]][each["member"]] = each["next"]
        elif each["next"] is not None:
            children[each["channel"], each["member"]].append(each["next"])
    orders = re.findall(r"NCCL INFO Channel (\d\d)/08 : +([\d ]+)$", text, re.MULTILINE)
    assert len(orders) == 8
    for channel, order in orders:
        members = [int(member) for member in order.split()]
        walked = [members[0]]
        while len(walked) < 16:
            walked.append(following[int(channel)][walked[-1]])
        assert walked == members
        assert following[int(channel)][walked[-1]] == members[0]
    trees = re.findall(r"NCCL INFO Trees (.*)$", text, re.MULTILINE)
    assert len(trees) == 16
    seen = 0
    for tree in trees:
        for channel, a, b, c, member, parent in re.findall(r"\[(\d)\] (-?\d+)/(-?\d+)/(-?\d+)->(\d+)->(-?\d+)", tree):
            seen += 1
            assert sorted(children[int(channel), int(member)]) == sorted(int(x) for x in (a, b, c) if x != "-1")
            if parent != "-1":
                assert int(member) in children[int(channel), int(parent)]
    assert seen == 16 * 8


def test_real_log_connections(real: tuple[Reading, str]) -> None:
    reading, text = real
    logged = set(
        re.findall(
            r"Channel (\d\d) : (\d+)\[\w+\] -> (\d+)\[\w+\] (\[send\] |\[receive\] )?via (.*)$", text, re.MULTILINE
        )
    )
    side = {"": 0, "[send] ": 1, "[receive] ": 2}
    expected = set()
    for channel, sender, receiver, end, via in logged:
        net = re.fullmatch(r"(NET/AWS Libfabric)/(\d)(/GDRDMA)?", via)
        where = (net[1], net[2], 2 if net[3] else 1) if net else (via, None, 0)
        expected.add((int(channel), int(sender), int(receiver), *where, side[end]))
    connections = rows(reading, "connections")
    assert {tuple(each.values())[1:] for each in connections} == expected
    assert len(connections) == len(expected)
    for each in connections:
        across = each["sender"] // 8 != each["receiver"] // 8
        assert across == each["transport"].startswith("NET/")
    assert {ANSWERS[each["gpu_direct"]] for each in connections if each["side"]} == {"yes"}
    assert {each["transport"] for each in connections} == {"P2P/IPC/read", "NET/AWS Libfabric"}
