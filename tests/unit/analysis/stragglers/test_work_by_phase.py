"""More work or a slower core: CPU runs of three ranks whose phases take a chosen multiple of their peers'."""

from collections.abc import Mapping

import numpy as np
import pytest

from overlapscope.analysis.stragglers.work_by_phase import cause_by_phase
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
LENGTH_NS = {"forward": 10 * MS, "backward": 20 * MS, "optimizer": MS}
STEP_NS, STEPS, LATE = 100 * MS, 8, 1


def rank_of(
    rank: int, factors: Mapping[str, float], *, op: str = "all_reduce", steps: int = STEPS, phases: bool = True,
    optimizer_in_steps: float = 1.0, optimizer_every: int = 1, more_in: int = STEPS, beside_ns: int = 0,
) -> RankTimeline:  # fmt: skip
    """Return a rank that takes longer in the first `more_in` steps, and works for `beside_ns` outside of all phases.

    Of the steps from a share on the optimizer takes as long as its peers'.
    """
    rng = np.random.default_rng(rank)
    work, notes = [], []
    for step in range(steps):
        now = step * STEP_NS
        for name, usual_ns in LENGTH_NS.items():
            factor = factors.get(name, 1.0) if step < more_in else 1.0
            if name == "optimizer" and step % optimizer_every:
                continue
            if name == "optimizer" and step >= optimizer_in_steps * steps:
                factor = 1.0
            end = now + round(usual_ns * factor * rng.uniform(0.98, 1.02))
            work.append({"start_ns": now, "end_ns": end, "launch_ns": now, "step": step,
                         "name": name if phases else "aten::mm"})  # fmt: skip
            if name == "optimizer" and not phases:
                notes.append({"name": "Optimizer.step#SGD.step", "start_ns": now, "end_ns": end})
            now = end
        if beside_ns and factors:
            work.append({"start_ns": now, "end_ns": now + beside_ns, "launch_ns": now, "step": step, "name": "other"})
    return rank_timeline(
        rank,
        calls=[{"op": op, "group": "0", "group_size": 3, "start_ns": 90 * MS, "end_ns": 95 * MS, "step": 0, "seq": 0}],
        work=work, annotations=notes,
        steps=[{"step": at, "start_ns": at * STEP_NS, "end_ns": (at + 1) * STEP_NS} for at in range(steps)],
        recordings=[{"start_ns": 0, "end_ns": steps * STEP_NS}],
    )  # fmt: skip


BLAME_NS = 10 * MS


def cause(given: str, factors: Mapping[str, float], **changes: object) -> str:
    ranks = {rank: rank_of(rank, factors if rank == LATE else {}, **changes) for rank in range(3)}  # type: ignore[arg-type]
    return cause_by_phase(given, LATE, [0, 2], Run(world_size=3, ranks=ranks), BLAME_NS)[0]


ALL = dict.fromkeys(LENGTH_NS, 1.3)
BATCH = {"forward": 1.3, "backward": 1.3}


@pytest.mark.parametrize("given", ["more_work", "longer_compute"])
@pytest.mark.parametrize(
    ("factors", "changes", "more_known", "not_known"),
    [
        pytest.param({"forward": 2.0}, {}, "more_work", "longer_compute", id="one phase"),
        pytest.param({"backward": 1.5}, {}, "more_work", "longer_compute", id="the other one"),
        pytest.param(ALL, {}, "slower_compute", "slower_compute", id="everything"),
        pytest.param(BATCH, {}, "longer_compute", "longer_compute", id="a larger batch, or not"),
        pytest.param(ALL, {"op": "send"}, "longer_compute", "longer_compute", id="a stage of a model"),
        pytest.param(ALL, {"op": "all_to_all"}, "longer_compute", "longer_compute", id="an expert"),
        pytest.param({"forward": 4.0}, {"more_in": 3}, "more_work", "longer_compute", id="one phase of some steps"),
        pytest.param({"forward": 1.01}, {"beside_ns": 30 * MS}, "more_work", "longer_compute", id="beside all phases"),
        pytest.param(ALL, {"optimizer_every": 2}, "slower_compute", "slower_compute", id="every other step updates"),
        pytest.param(ALL, {"optimizer_every": 4}, "longer_compute", "longer_compute", id="few steps update"),
        pytest.param(dict.fromkeys(LENGTH_NS, 1.02), {}, "more_work", "longer_compute", id="less than its blame"),
        pytest.param(ALL, {"optimizer_in_steps": 0.6}, "longer_compute", "longer_compute", id="in few steps"),
        pytest.param(ALL, {"steps": 2}, "more_work", "longer_compute", id="few steps"),
        pytest.param(ALL, {"phases": False}, "more_work", "slower_compute", id="a trace"),
        pytest.param(BATCH, {"phases": False}, "more_work", "longer_compute", id="a trace of a larger batch"),
    ],
)
def test_a_slower_core_takes_longer_for_the_optimizer_too(given, factors, changes, more_known, not_known) -> None:
    assert cause(given, factors, **changes) == (more_known if given == "more_work" else not_known)


def test_how_much_longer_each_phase_took_is_stated() -> None:
    ranks = {rank: rank_of(rank, ALL if rank == LATE else {}) for rank in range(3)}
    _, evidence = cause_by_phase("longer_compute", LATE, [0, 2], Run(world_size=3, ranks=ranks), BLAME_NS)
    assert evidence["phases_longer"] == pytest.approx(ALL, rel=0.05)
