"""Marks of a device, on a simulated one: events with single-precision distances, done when the device gets there."""

import itertools
import weakref
from typing import Any

import numpy as np
import pytest

from overlapscope.capture.hooks.collectives import CollectiveWatch
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.records import BATCH_STEPS, KEPT_STEPS, CollectiveCall, MarkedRange, MarkResolver, StepRecord
from overlapscope.capture.timestamps import DeviceClock


class Device:
    """What DeviceClock uses of torch.cuda. `now_ns` is where the stream will be, `reached_ns` where it is."""

    def __init__(self) -> None:
        self.now_ns = self.reached_ns = 0
        self.capturing = False
        self.queries = 0
        self.stream: Any = 0
        self.index = 0

    def synchronize(self) -> None:
        self.reached_ns = self.now_ns

    def is_current_stream_capturing(self) -> bool:
        return self.capturing

    def current_stream(self) -> Any:
        return self.stream

    def Event(self, *, enable_timing: bool) -> "Event":  # noqa: N802 - torch's name
        assert enable_timing
        return Event(self)


class Event:
    def __init__(self, device: Device) -> None:
        self._device, self.at_ns, self.device = device, 0, device.index

    def record(self) -> None:
        assert not self._device.capturing, "a timed event in a CUDA graph's capture"
        self.at_ns = self._device.now_ns

    def query(self) -> bool:
        assert not self._device.capturing, "a query breaks the capture"
        self._device.queries += 1
        return self._device.reached_ns >= self.at_ns

    def elapsed_time(self, other: "Event") -> float:
        assert self.query()
        assert other.query()
        return float(np.float32((other.at_ns - self.at_ns) / 1e6))


@pytest.fixture
def device() -> Device:
    return Device()


def test_times_stay_exact_over_an_hour_of_steps(device: Device) -> None:
    clock = DeviceClock(device)
    first = clock.mark()
    marks = []
    for _ in range(3600):
        device.now_ns += 1_000_000_000
        clock.anchor()
        device.now_ns += 300_000_001
        marks.append(clock.mark())
        device.now_ns -= 300_000_001
    device.now_ns += 1_000_000_000
    device.synchronize()
    begin, *times = clock.times([first, *marks])
    assert begin is not None
    for number, found in enumerate(times, 1):
        assert found is not None
        assert abs(found - begin - number * 1_000_000_000 - 300_000_001) < 5_000


def test_a_mark_that_the_device_has_not_reached_has_no_time_yet(device: Device) -> None:
    clock = DeviceClock(device)
    device.now_ns = 1_000
    mark = clock.mark()
    assert clock.times([mark]) == [None]
    assert not clock.done(mark)
    assert clock.resolve(mark) is mark
    device.reached_ns = 1_000
    assert clock.times([mark])[0] is not None


def test_resolving_changes_no_time(device: Device) -> None:
    clock = DeviceClock(device)
    marks = []
    for _ in range(10):
        device.now_ns += 1_234_567
        clock.anchor()
        device.now_ns += 7_654_321
        marks.append(clock.mark())
    device.synchronize()
    before = clock.times(marks)
    assert clock.times([clock.resolve(mark) for mark in marks]) == before


def test_nothing_is_recorded_or_asked_while_a_graph_is_captured(device: Device) -> None:
    clock = DeviceClock(device)
    mark = clock.mark()
    device.capturing = True
    clock.anchor()
    assert clock.mark() is None
    assert clock.resolve(mark) is mark
    assert clock.times([None]) == [None]


def test_a_long_run_holds_few_events(device: Device) -> None:
    clock = DeviceClock(device)
    resolver = MarkResolver(clock)
    events: list[weakref.ref[Any]] = []
    records = []
    for number in range(400):
        device.now_ns += 1_000_000
        clock.anchor()
        marks = []
        for _ in range(4):
            device.now_ns += 1_000
            marks.append(clock.mark())
            events.append(weakref.ref(marks[-1][0]))
        device.reached_ns = device.now_ns - 2_000_000  # the device lags two steps behind
        record = StepRecord(number=number, begin_ns=0, thread=0, observed=True)
        record.phases.append(MarkedRange("forward", marks[0], 0, marks[1]))
        call = CollectiveCall("all_reduce", "0", 2, "float32", 1, 0, marks[2], marks[3])
        record.calls.append(call)
        records.append(record)
        resolver.add(record)
        del marks
        assert sum(event() is not None for event in events) <= 4 * (BATCH_STEPS + KEPT_STEPS)
    device.synchronize()
    ends = clock.times([record.calls[0].done for record in records])
    gaps = {after - before for before, after in itertools.pairwise(end for end in ends if end is not None)}
    assert len(ends) == 400
    assert None not in ends
    assert all(abs(gap - 1_004_000) < 100 for gap in gaps)


def test_only_what_waits_on_the_stream_that_computes_holds_up_the_step(device: Device) -> None:
    clock = DeviceClock(device)
    device.stream = 7
    clock.anchor()
    assert clock.blocks_compute(thread=0)
    assert clock.computes_on(7)
    device.stream = 8  # as inside `with torch.cuda.stream(side):`
    assert not clock.blocks_compute(thread=0)
    assert not clock.computes_on(8)


def test_a_mark_of_another_device_has_no_time_and_spoils_no_other(device: Device) -> None:
    clock = DeviceClock(device)
    clock.anchor()
    here = clock.mark()
    device.index = 1
    there = clock.mark()
    device.synchronize()
    times = clock.times([here, there])
    assert times[0] is not None
    assert times[1] is None


def test_what_the_computing_stream_waits_for_is_a_wait_and_what_others_wait_for_is_none(
    device: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FSDP2's compute stream waits for the events of its streams for communication, and the other way round."""
    torch = pytest.importorskip("torch", reason="torch is not installed: there are no streams")

    class Stream:
        def wait_event(self, event: object) -> None:
            waited.append((self, event))

    waited: list[tuple[object, object]] = []
    original = Stream.wait_event
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    compute, side = Stream(), Stream()
    device.stream = compute
    clock = DeviceClock(device)
    clock.anchor()
    record = StepRecord(number=0, begin_ns=0, thread=0, observed=True)
    guard = Guard()
    watch = CollectiveWatch(clock, guard, lambda: record)
    watch.open()
    compute.wait_event("gathered")
    side.wait_event("computed")
    watch.close()
    assert waited == [(compute, "gathered"), (side, "computed")]
    assert len(record.waits) == 1
    assert Stream.wait_event is original
    assert guard.failures == []
