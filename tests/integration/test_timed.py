"""What both modes say is exposed, against a timer in the job itself."""

from pathlib import Path
from statistics import median

import pytest

import overlapscope

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

from tests.integration.test_capture import passed, train
from tests.support.old_torch import needs_fsdp2_without_cuda

pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]
MS = 1_000_000


# On busy cores timers of hooks wait for the interpreter: these want a quiet machine.
quiet = pytest.mark.long


@pytest.mark.parametrize("mode", ["events", pytest.param("trace", marks=quiet)])
@pytest.mark.parametrize(
    "job",
    ["asynchronous", *(pytest.param(job, marks=quiet) for job in ("clipping", "power_sgd", "fsdp2"))],
)
def test_r3_r4_r5_exposed_time_is_what_the_jobs_own_timer_says(job: str, mode: str, tmp_path: Path) -> None:
    """In events also: or it lies in the interval that is stated, where a thread partly computed."""
    if job == "fsdp2":
        needs_fsdp2_without_cuda()
    results = passed(train(job, tmp_path, mode=mode, module="tests.integration.training_timed")).results
    run = overlapscope.load(tmp_path / "run")
    for rank in run.analysis().ranks:
        result = results[rank.rank]
        assert result
        stated = run.run.ranks[rank.rank].recorded.get("exposed_between_ns", {})
        steps = [step for step in rank.steps if step.complete]
        assert len(steps) >= 4
        # Medians: on busy cores a timer's callback may wait for the interpreter.
        true = median(result["exposed_ns"][step.step] for step in steps)
        points = [step.exposed_comm_ns or 0 for step in steps]
        bounds = [stated.get(str(step.step), (point, point)) for step, point in zip(steps, points, strict=True)]
        low, high = (median(each[side] for each in bounds) for side in (0, 1))
        room = max(0.15 * true, 2 * MS)
        assert low - room <= true <= high + room, rank.rank
