"""Waiting for the other threads of the process before a recording is written."""

import hashlib
import threading
import time
from pathlib import Path

import pytest

import overlapscope
from overlapscope.capture.host.thread_times import let_other_threads_rest


@pytest.mark.slow
def test_it_waits_until_the_other_threads_rest() -> None:
    done = threading.Event()

    def work() -> None:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 400_000)  # runs without the interpreter's lock
        done.set()
        time.sleep(60)

    threading.Thread(target=work, daemon=True).start()
    let_other_threads_rest(30.0)
    assert done.is_set()


def test_it_waits_no_longer_than_it_may() -> None:
    end = threading.Event()

    def work() -> None:
        while not end.is_set():
            hashlib.pbkdf2_hmac("sha256", b"", b"", 20_000)

    busy = threading.Thread(target=work, daemon=True)
    busy.start()
    begun = time.monotonic()
    let_other_threads_rest(0.1)
    assert 0.05 < time.monotonic() - begun < 10
    end.set()
    busy.join()


@pytest.mark.torch
@pytest.mark.parametrize(("steps", "actions"), [(5, ["RECORD_AND_SAVE"]), (2, ["RECORD"])])
def test_a_recording_waits_once_before_its_profiler_stops(
    steps: int, actions: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the last of its steps, or where the profile is closed in the middle of the recording."""
    torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
    waited = []
    monkeypatch.setattr(
        "overlapscope.capture.hooks.profiler.let_other_threads_rest",
        lambda _: waited.append(scope.hooks.traces._profiler.current_action.name),
    )
    with overlapscope.profile(tmp_path / "run", mode="trace", warmup=1, steps=3) as scope:
        for _ in range(steps):
            with scope.step():
                torch.ones(8).sum()
    assert waited == actions
