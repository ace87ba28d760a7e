"""Marks of a device on the virtual one: exact, never waiting, followed against the host's clock, safe in captures."""

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from overlapscope.capture.device_clock import DeviceClock, fit_offsets
from overlapscope.capture.timestamps import epoch_offset_ns
from tests.support.virtual.device import VirtualCuda

MS = 1_000_000


@pytest.fixture
def virtual(monkeypatch: pytest.MonkeyPatch) -> Callable[..., VirtualCuda]:
    """Return a maker of devices whose host time is the process's."""

    def make(**options: Any) -> VirtualCuda:
        cuda = VirtualCuda(**options)
        monkeypatch.setattr(time, "monotonic_ns", cuda.monotonic_ns)
        return cuda

    return make


def read(clock: DeviceClock, cuda: VirtualCuda) -> None:
    cuda.synchronize()
    assert clock.read(1_000_000)


def test_times_stay_exact_over_an_hour_of_steps(virtual: Callable[..., VirtualCuda]) -> None:
    cuda = virtual()
    clock = DeviceClock(cuda)
    first, marks = clock.mark(), []
    begin_ns = cuda.now_ns
    for _ in range(3600):
        cuda.reach(begin_ns + (len(marks) + 1) * 1_000_000_000)
        clock.anchor()
        cuda.host(300_000_001)
        marks.append(clock.mark())
        clock.read(4)
    read(clock, cuda)
    begin, *times = clock.times([first, *marks])
    assert begin is not None
    for number, found in enumerate(times, 1):
        assert found is not None
        assert abs(found - begin - number * 1_000_000_000 - 300_000_001) < 5_000


def test_a_mark_that_the_device_has_not_reached_has_no_time_yet(virtual: Callable[..., VirtualCuda]) -> None:
    cuda = virtual()
    clock = DeviceClock(cuda)
    cuda.launch("long", 10 * MS)
    mark = clock.mark()
    assert not clock.read(10)
    assert clock.times([mark]) == [None]
    cuda.host(11 * MS)
    assert clock.read(10)
    assert clock.times([mark])[0] is not None


def test_g7_events_are_used_again_and_each_reading_is_bounded(virtual: Callable[..., VirtualCuda]) -> None:
    cuda = virtual()
    clock = DeviceClock(cuda)
    marks = []
    for number in range(2_000):
        clock.anchor()
        for _ in range(4):
            cuda.launch("kernel", MS)
            marks.append(clock.mark())
        ahead_ns = 40 * MS if number % 100 else MS  # by ten steps, now and then by less than one
        cuda.reach(max(cuda.now_ns, cuda.current_stream().end_ns - ahead_ns))
        before = sum(mark.at_ns is not None for mark in marks[-200:] if mark is not None)
        clock.read(8)
        assert sum(mark.at_ns is not None for mark in marks[-200:] if mark is not None) - before <= 8
    assert cuda.events < 2_000 + 200  # an anchor each, and what is under way
    read(clock, cuda)
    times = np.array(clock.times(marks))
    assert np.all(np.abs(np.diff(times) - MS) < 1_000)


def test_g19_an_event_that_ran_before_its_anchor_has_a_time(virtual: Callable[..., VirtualCuda]) -> None:
    cuda = virtual()
    clock = DeviceClock(cuda)
    cuda.launch("backed up", 50 * MS)
    clock.anchor()
    with cuda.stream(cuda.new_stream()):
        mark = clock.mark()
        issued_ns = cuda.now_ns
    read(clock, cuda)
    (found,) = clock.times([mark])
    assert found is not None
    assert abs(found - clock.epoch_ns(issued_ns)) < 10_000


def test_g11_an_error_of_the_device_keeps_what_was_read_and_asks_nothing_more(
    virtual: Callable[..., VirtualCuda],
) -> None:
    cuda = virtual()
    clock = DeviceClock(cuda)
    before = clock.mark()
    read(clock, cuda)
    after = clock.mark()
    cuda.broken = True
    clock.read(10)
    assert clock.mark() is None
    times = clock.times([before, after])
    assert times[0] is not None
    assert times[1] is None


def test_g10_a_device_that_becomes_current_later_has_a_chain_of_its_own(virtual: Callable[..., VirtualCuda]) -> None:
    cuda = virtual(devices=2)
    clock = DeviceClock(cuda)
    here = clock.mark()
    cuda.set_device(1)
    clock.anchor()
    cuda.launch("kernel", 5 * MS)
    there = clock.mark()
    issued_ns = cuda.now_ns
    read(clock, cuda)
    times = clock.times([here, there])
    assert times[0] is not None
    assert times[1] is not None
    assert abs(times[1] - clock.epoch_ns(issued_ns) - 5 * MS) < 20_000


def test_g2_the_models_device_is_marked_and_no_other_is_touched(virtual: Callable[..., VirtualCuda]) -> None:
    cuda = virtual(devices=2)
    clock = DeviceClock(cuda, 1)  # the main thread's current device stays 0, as in `model.to("cuda:1")` alone
    with cuda.device(1):
        cuda.launch("kernel", 5 * MS)
    mark = clock.mark()
    with cuda.device(1):
        read(clock, cuda)
    assert clock.times([mark])[0] is not None
    assert cuda.touched == {1}


@pytest.mark.slow
@pytest.mark.parametrize("synchronized", [True, False])
@pytest.mark.parametrize("ppm", [40.0, -40.0])
def test_g9_drift_over_an_hour_is_followed_and_nothing_begins_before_its_launch(
    synchronized: bool, ppm: float, virtual: Callable[..., VirtualCuda]
) -> None:
    cuda = virtual(ppm=ppm)
    clock = DeviceClock(cuda)
    rng = np.random.default_rng(3)
    marks, launched, truth = [], [], []
    for _ in range(3_600):
        clock.anchor()
        for _ in range(8):
            cuda.launch("kernel", int(rng.uniform(80, 160) * MS), host_ns=int(rng.uniform(5_000, 50_000)))
            launched.append(cuda.now_ns)
            marks.append(clock.mark())
            truth.append(cuda.current_stream().end_ns)
            if not synchronized:  # the host is at most a step ahead: it makes its calls while the device works
                cuda.reach(max(cuda.now_ns, cuda.current_stream().end_ns - 900 * MS))
            clock.read(4)
        if synchronized:
            cuda.synchronize()
            cuda.host(20_000)
        clock.read(64)
    read(clock, cuda)
    found = np.array(clock.times(marks))
    assert np.abs(found - np.array(truth) - clock._offset).max() < 50_000
    assert np.all(found >= np.array(launched) + clock._offset)


def test_bounds_on_one_side_alone_give_the_offset_and_its_slope() -> None:
    rng = np.random.default_rng(5)
    when = np.sort(rng.uniform(0, 60e9, 3_000))
    true = 1e9 + 3e-5 * when
    loose = (when, true - 1e8 * rng.uniform(0.5, 1, when.size))
    tight = (when, true + rng.exponential(2e6, when.size))
    assert np.abs(fit_offsets(loose, tight, when) - true).max() < 50_000
    mirrored = (when, -loose[1]), (when, -tight[1])
    assert np.abs(fit_offsets(mirrored[1], mirrored[0], when) + true).max() < 50_000


def test_g23_nothing_is_recorded_or_asked_while_any_thread_captures_a_graph(
    virtual: Callable[..., VirtualCuda],
) -> None:
    cuda = virtual()
    clock = DeviceClock(cuda)
    mark = clock.mark()
    side = cuda.new_stream()
    with cuda.stream(side), cuda.capture():
        clock.captures = 1
        with cuda.stream(cuda.devices[0].default):  # as on another thread: its own stream captures nothing
            assert clock.anchor() is None
            assert clock.mark() is None
            assert not clock.read(10)
        clock.captures = 0  # a capture that was begun before the recording: the current stream still says so
        assert clock.mark() is None
        assert not clock.read(10)
    assert cuda.captures_broken == 0
    read(clock, cuda)
    assert clock.times([mark, None])[0] is not None


def test_events_are_asked_on_the_training_thread_only(virtual: Callable[..., VirtualCuda]) -> None:
    cuda = virtual()
    clock = DeviceClock(cuda)
    mark = clock.mark()
    cuda.synchronize()
    other = threading.Thread(target=lambda: clock.read(10))
    other.start()
    other.join()
    assert clock.times([mark]) == [None]
    assert clock.read(10)


def test_g20_the_stream_that_computes_is_that_of_forward(virtual: Callable[..., VirtualCuda]) -> None:
    cuda = virtual()
    clock = DeviceClock(cuda)
    clock.anchor()
    assert clock.blocks_compute(thread=0)
    with cuda.stream(cuda.new_stream()):
        assert not clock.blocks_compute(thread=0)
        clock.computes_here()  # the model is called here
        assert clock.blocks_compute(thread=0)
    assert not clock.computes_on(cuda.current_stream())


def test_the_epoch_is_read_between_two_readings_of_the_other_clock() -> None:
    assert abs(time.monotonic_ns() + epoch_offset_ns() - time.time_ns()) < 1e9
