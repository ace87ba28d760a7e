"""Steps in which there is nothing to do but to take the time: the same steps are recorded, and the same times taken."""

from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import overlapscope
from overlapscope.capture.lifecycle.guard import CaptureWarning, Guard
from overlapscope.capture.sampling import Sampling
from overlapscope.capture.settings import Settings
from overlapscope.capture.steps import MEASURED_STEPS, Steps

STEPS = 400


class Hooks(SimpleNamespace):
    """What `Steps` asks of the hooks, on a host; notes what was called."""

    def __init__(self, *, quiet: bool = True) -> None:
        clock = SimpleNamespace(on_device=False)
        sampler = SimpleNamespace(readings=[])
        super().__init__(clock=clock, traces=None, ranges=None, record=None, sampler=sampler, quiet=quiet)
        self.recorded: list[int] = []
        self.passed: list[int] = []
        self.looked_at: list[int] = []
        self.removed = False

    @property
    def aside(self) -> bool:
        return self.removed and self.quiet

    def look_for_device(self) -> None: ...

    def excuse(self, _: int) -> None: ...

    def anchor(self) -> None: ...

    def come_back(self) -> bool:
        was, self.removed = self.removed, False
        return was

    def step_aside(self) -> bool:
        was, self.removed = self.removed, True
        return not was

    def step_begins(self, record: Any) -> None:
        self.record = record

    def step_ends(self, record: Any) -> None:
        self.recorded.append(record.number)
        self.record = None
        record.end_ns = record.begin_ns + 1

    def after_step(self, _: Any) -> None:
        self.looked_at.append(1)

    def after_quiet_step(self, ended_ns: int) -> None:
        self.passed.append(ended_ns)


def run(settings: Settings, *, quiet: bool, agreed: Sampling | None = None, at: int = 0) -> tuple[Steps, Hooks]:
    hooks = Hooks(quiet=quiet)
    steps = Steps(settings, hooks, Guard())  # type: ignore[arg-type]
    for number in range(STEPS):
        if agreed is not None and number == at:
            steps.choose(agreed)
        steps.end(steps.begin())
    return steps, hooks


MEASURED = Settings(mode="events", warmup=2)
CASES = {
    "measured": (MEASURED, None, 0),
    "agreed": (MEASURED, Sampling(since_step=130, every=50), 110),
    "agreed soon": (MEASURED, Sampling(since_step=111, every=7), 110),
    "one in five": (Settings(mode="events", warmup=3, events_every=5), None, 0),
    "each": (Settings(mode="events", warmup=3, events_every=1), None, 0),
}


@pytest.mark.parametrize("case", CASES)
def test_the_same_steps_are_recorded_and_timed(case: str) -> None:
    settings, agreed, at = CASES[case]
    steps, hooks = run(settings, quiet=True, agreed=agreed, at=at)
    others, busy = run(settings, quiet=False, agreed=agreed, at=at)
    assert hooks.recorded == busy.recorded
    assert not busy.passed
    assert [captured for _, captured in steps.lasted] == [captured for _, captured in others.lasted]
    assert [number for number, *_ in steps.take(ending=True).step_times] == list(range(settings.warmup, STEPS))
    assert len(hooks.passed) + len(hooks.looked_at) == STEPS


def test_most_steps_are_quiet_once_the_cost_is_measured_and_none_before() -> None:
    _, hooks = run(MEASURED, quiet=True, agreed=Sampling(since_step=130, every=50), at=110)
    assert len(hooks.passed) > 0.8 * (STEPS - MEASURED_STEPS)
    assert len(hooks.looked_at) >= MEASURED_STEPS


def test_a_listener_hears_of_each_step() -> None:
    hooks = Hooks()
    steps = Steps(MEASURED, hooks, Guard())  # type: ignore[arg-type]
    heard: list[int] = []
    steps.listeners.append(lambda number, *_: heard.append(number))
    for _ in range(STEPS):
        steps.end(steps.begin())
    assert heard == list(range(STEPS))


@pytest.mark.parametrize("where", ["entering", "leaving"])
def test_what_interrupts_a_step_at_its_borders_ends_it(
    tmp_path: Path, where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

    @contextmanager
    def interrupted() -> Any:
        if where == "entering":
            raise KeyboardInterrupt
        yield
        raise KeyboardInterrupt

    with overlapscope.profile(tmp_path / "run", mode="events", warmup=0, events_every=1) as scope:
        monkeypatch.setattr(scope.steps, "mark", interrupted)
        with pytest.raises(KeyboardInterrupt), scope.step():
            pass
        assert [each.cut is not None for each in scope.steps.records] == [True]
        monkeypatch.undo()
        with scope.step():
            pass

        @scope.step()
        def train() -> int:
            return scope.steps.count

        assert (train(), train()) == (2, 3)
    assert overlapscope.load(tmp_path / "run").table("steps", 0).cut.tolist() == [True, False, False, False]


def test_a_failure_of_ours_after_a_step_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

    def broken() -> bool:
        raise RuntimeError("no clock")

    with overlapscope.profile(tmp_path / "run", mode="events", warmup=0, events_every=1) as scope:
        monkeypatch.setattr(scope.parts, "due", broken)
        with pytest.warns(CaptureWarning, match="no clock"), scope.step():
            pass
        monkeypatch.undo()
        with scope.step():
            pass
        assert scope.steps.count == 2
