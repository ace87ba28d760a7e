"""A trace of one process that works on several devices: each is a rank, unless the process is one of several."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope.ingest.formats import kineto
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.run import UNKNOWN_RANK
from tests.support.writers.kineto import (
    COMM_STREAM,
    GEMM,
    MS,
    NCCL_KERNEL,
    US,
    Event,
    collective_args,
    distributed,
    kernel,
    launch,
    memcpy,
    op,
    record_param_comms,
    step,
    sync,
    write,
)


def on(device: int, event: Event) -> Event:
    return replace(event, process=device, args={**event.args, "device": device})


def in_turn(steps: int = 3) -> list[Event]:
    """Return steps of 10 ms: device 0 computes for 4 ms and copies for 0.5 ms, then device 1 computes for 5 ms."""
    events = []
    for number in range(steps):
        t, c = number * 10 * MS + 100 * US, 10 * (number + 1)
        events += [
            step(number, t, 10 * MS - 10 * US),
            op("aten::mm", t + 20 * US, 50 * US),
            launch(t + 30 * US, c),
            on(0, kernel(GEMM, t + 100 * US, 4 * MS, correlation=c)),
            launch(t + 100 * US, c + 1, name="cudaMemcpyAsync"),
            on(0, memcpy(t + 4_100 * US, 500 * US, name="Memcpy PtoP (Device -> Device)", correlation=c + 1)),
            op("aten::mm", t + 200 * US, 50 * US),
            launch(t + 210 * US, c + 2),
            on(1, kernel(GEMM, t + 4_600 * US, 5 * MS, correlation=c + 2)),
        ]
    return events


def read(tmp_path: Path, events: Sequence[Event], name: str = "trace.json", **metadata: object) -> Reading:
    path = tmp_path / name
    path.write_bytes(write(events, metadata=metadata or None))
    return kineto.READER.read(path, ReadContext())


@pytest.mark.parametrize("metadata", [{}, distributed(0, 1)])
def test_each_device_is_a_rank_with_its_own_work(tmp_path: Path, metadata: Mapping[str, object]) -> None:
    reading = read(tmp_path, in_turn(), **metadata)
    first, second = reading.timelines
    assert (first.rank, second.rank, reading.world_size, reading.ranks_assumed) == (0, 1, None, True)
    assert first.recorded["clock"] == second.recorded["clock"]
    assert [each.spans.start_ns.size for each in (first, second)] == [6, 3]
    assert (second.spans.launch_ns > 0).all(), "linked to the calls of one thread"
    assert {each.steps.step.size for each in reading.timelines} == {3}
    assert reading.source.warnings == ("its process works on 2 devices (0, 1): each is a rank",)


def test_figures_are_of_each_device(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(write(in_turn(), metadata=distributed(0, 1)))
    whole = {row.rank: row.whole for row in overlapscope.load(tmp_path / "trace.json").analysis().ranks}
    assert [whole[rank].compute_ns for rank in (0, 1)] == [12 * MS, 15 * MS]
    assert [whole[rank].idle_ns for rank in (0, 1)] == [2 * 5_500 * US, 2 * 5 * MS], "while the other one works"
    assert [whole[rank].copy_ns for rank in (0, 1)] == [1_500 * US, 0]


def test_idle_time_is_named_by_the_device_that_works_meanwhile(tmp_path: Path) -> None:
    (tmp_path / "trace.json").write_bytes(write(in_turn(5), metadata=distributed(0, 1)))
    found = overlapscope.load(tmp_path / "trace.json").analysis().recommendations
    (loss,) = [each for each in found if each.id == "idle_device"]
    assert loss.title.endswith("of it while another device of the same process works")


def test_calls_of_nccl_between_devices_of_one_process_are_its_ranks(tmp_path: Path) -> None:
    """As nn.DataParallel has them: without process groups."""
    events = in_turn()
    for number in range(3):
        t = number * 10 * MS + 100 * US
        for device in (0, 1):
            c = 1000 + 10 * number + device
            events.append(launch(t + 300 * US + device * 10 * US, c, name="cudaLaunchKernelExC"))
            events.append(on(device, kernel(NCCL_KERNEL, t + 9_700 * US, 200 * US, stream=COMM_STREAM, correlation=c)))
    first, second = read(tmp_path, events).timelines
    assert first.collectives.op.size == second.collectives.op.size == 3


def test_a_process_that_is_one_of_several_stays_one_rank(tmp_path: Path) -> None:
    together = (
        "its process works on 2 devices (0, 1): they are shown as one rank, which is idle when none of them works",
    )
    for name, more, metadata in (
        ("trace.json", [], distributed(0, 4)),
        ("rank3.json", [], {}),
        ("rank0.json", [], {}),
        ("trace.json", [record_param_comms(50 * US, 20 * US, args=collective_args())], {}),
    ):
        reading = read(tmp_path, [*in_turn(), *more], name, **metadata)
        assert len(reading.timelines) == 1
        assert reading.source.warnings == together


def test_a_device_with_few_kernels_is_no_rank(tmp_path: Path) -> None:
    """A context on device 0 is a common accident; what runs there counts with the process's own device."""
    alone = [each for each in in_turn() if each.process != 0]
    stray = [on(0, kernel("fill", number * 10 * MS + 200 * US, 20 * US)) for number in range(3)]
    reading = read(tmp_path, [*alone, *stray])
    (timeline,) = reading.timelines
    assert timeline.rank == UNKNOWN_RANK
    assert timeline.spans.start_ns.size == 6
    assert reading.source.warnings == ()


def test_synchronisations_of_another_device_are_left_out(tmp_path: Path) -> None:
    waits = [
        on(
            device,
            sync("Stream Wait Event", 150 * US, 0, 12, 7, wait_on_stream=7, wait_on_cuda_event_record_corr_id=11),
        )
        for device in (0, 1)
    ]
    first, second = read(tmp_path, [*in_turn(), *waits]).timelines
    for each in (first, second):
        assert each.syncs.kind.size == 1
        devices = {each.name(code) for code in each.lanes.process[each.lanes.kind == 0].tolist()}
        assert len(devices) == 1, "no stream of the other device is one of its lanes"
    assert np.array_equal(first.lanes.kind, second.lanes.kind)
