"""SIGTERM while a run is written: no signal ends the write, and the handler that was there before comes back."""

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.lifecycle.process_exit import Termination


@pytest.fixture
def delivered() -> Iterator[list[int]]:
    """Return the signals that the job's own handler received."""
    received: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: received.append(number))
    yield received
    signal.signal(signal.SIGTERM, before)


def terminate() -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def opened(write: Callable[[], None]) -> Termination:
    termination = Termination(Guard(), write)
    termination.open()
    return termination


def test_a_second_signal_waits_until_the_first_has_written(delivered: list[int]) -> None:
    seen: list[tuple[int, bool]] = []

    def write() -> None:
        termination.hold()
        terminate()
        seen.append((len(delivered), termination.pending))
        termination.close()
        terminate()
        seen.append((len(delivered), termination.pending))

    jobs = signal.getsignal(signal.SIGTERM)
    termination = opened(write)
    terminate()
    assert seen == [(0, True), (0, True)]
    assert delivered == [signal.SIGTERM] * 2
    assert signal.getsignal(signal.SIGTERM) is jobs


def test_an_interrupted_write_gives_the_handler_back(delivered: list[int]) -> None:
    def write() -> None:
        raise KeyboardInterrupt

    jobs = signal.getsignal(signal.SIGTERM)
    opened(write)
    with pytest.raises(KeyboardInterrupt):
        terminate()
    assert signal.getsignal(signal.SIGTERM) is jobs


def test_closed_on_another_thread_it_passes_signals_on(delivered: list[int]) -> None:
    termination = opened(lambda: pytest.fail("written twice"))
    failed: list[Any] = []

    def close() -> None:
        try:
            termination.hold()
            termination.close()
        except ValueError as error:
            failed.append(error)

    thread = threading.Thread(target=close)
    thread.start()
    thread.join()
    terminate()
    assert (failed, delivered) == ([], [signal.SIGTERM])


@pytest.mark.usefixtures("delivered")
def test_closed_on_another_thread_it_leaves_no_descriptor_open() -> None:
    signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def descriptors() -> int:
        return len(os.listdir("/proc/self/fd"))

    before = descriptors()
    for _ in range(3):
        termination = opened(lambda: None)
        assert descriptors() == before + 2
        thread = threading.Thread(target=lambda opened=termination: (opened.hold(), opened.close()))
        thread.start()
        thread.join()
        for _ in range(100):  # what waits for the main thread runs between two of its instructions
            time.sleep(0)
        assert descriptors() == before
        assert signal.set_wakeup_fd(-1) == -1
        signal.signal(signal.SIGTERM, signal.SIG_DFL)


def test_a_main_thread_that_came_free_waits_for_the_stuck_writer(delivered: list[int]) -> None:
    begun, ended = threading.Event(), threading.Event()

    def write() -> None:
        if threading.current_thread() is threading.main_thread():
            return
        termination.hold()
        begun.set()
        time.sleep(0.3)
        ended.set()

    termination = opened(write)
    thread = threading.Thread(target=termination._write_while_stuck)
    thread.start()
    begun.wait()
    terminate()
    assert ended.is_set()
    assert delivered == [signal.SIGTERM]
    thread.join()
