"""A backend's thread runs our callbacks with one interpreter state: one for each call costs more than all the rest."""

import threading
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
from torch import distributed  # noqa: E402 - behind the check for torch

import overlapscope  # noqa: E402
from overlapscope.capture.host import thread_states  # noqa: E402

pytestmark = pytest.mark.torch
CALLS, SEEN = 3000, 10
"""Calls at most: where gloo is done before it is asked to call back, no callback runs on its threads."""


class OfThread(threading.local):
    """Lives as long as the interpreter's state of a thread."""

    calls = 0


def test_a_thread_of_gloo_keeps_its_state_from_one_callback_to_the_next(tmp_path: Path) -> None:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    own, tensor = OfThread(), torch.zeros(1_000_000)
    before: list[int] = []

    def count(_: Any) -> None:
        if threading.get_ident() != training:
            before.append(own.calls)
        own.calls += 1

    training = threading.get_ident()
    try:
        with overlapscope.profile(tmp_path / "run", mode="events", warmup=0, measure_overhead=False) as scope:
            for _ in range(CALLS):
                if len(before) >= SEEN:
                    break
                with scope.step():
                    work = distributed.all_reduce(tensor, async_op=True)
                    work.get_future().add_done_callback(count)
                    work.wait()
    finally:
        distributed.destroy_process_group()
    assert scope.guard.failures == []
    assert len(before) >= SEEN
    assert max(before) > 0


def test_a_thread_of_python_has_a_state_of_its_own() -> None:
    thread_states.keep_state(of_python=threading.get_ident())
    assert not hasattr(thread_states._OF_THREAD, "kept")
