"""Without marks of steps, a recording that is mostly start-up is told by the steps that repeat after it."""

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.advice.losses.largest_loss import largest_loss
from overlapscope.report.text.analysis import render
from overlapscope.timeline.run import Run
from tests.unit.advice.test_exposed_calls import looked_at
from tests.unit.analysis.cross_rank.test_optimizer_cycles import CYCLE_NS, PIECES, US, recorded

CYCLE_US = CYCLE_NS / US


def begun(start_up_us: float, cycles: int = 10) -> Run:
    """Return ranks that begin with a kernel, and with their first cycle so long after it; all then is idle but for 60
    of 100 us, of which 10 are exposed."""
    shifted = [(name, start + start_up_us) for name, start in PIECES]
    return recorded([[("elementwise_kernel", 0.0), *shifted], *[shifted] * (cycles - 1)])


def test_figures_of_a_day_are_of_what_repeats() -> None:
    analysis = analyze_with_advice(begun(5_000))
    assert analysis.throughput is not None
    part = analysis.throughput.repeated
    assert part is not None
    assert part.cycles == 9, "the first one holds the start-up"
    assert (part.window_ns, part.before_ns) == (9 * CYCLE_NS, 5_090 * US)
    assert (part.exposed_comm_ns, part.idle_ns) == (9 * 10 * US, 9 * 40 * US)
    assert analysis.throughput.idle_fraction == pytest.approx(0.4)
    assert analysis.throughput.exposed_fraction == pytest.approx(0.1)
    assert analysis.throughput.idle_causes_gpu_hours_a_day == {"unknown": pytest.approx(0.4 * 2 * 24)}
    shown = " ".join(render(analysis).split())
    assert "the first 5.090 ms are start-up: the 0.900 ms after it repeat the same step 9 times" in shown
    assert "A day on 2 GPUs, of the repeated steps alone: 4.8 GPU-hours exposed, 19.2 GPU-hours idle." in shown
    assert [each.id for each in analysis.recommendations] == ["launch_bound"], "it names all idle time"
    loss = largest_loss(looked_at(begun(5_000)), [])
    assert loss is not None
    assert loss.id == "idle_device"
    assert loss.loss_ns == part.idle_ns
    assert "after start-up: 0.36 ms of 0.9 ms, in which the same step of 0.1 ms repeats 9 times" in loss.title


@pytest.mark.parametrize(
    ("name", "share", "is_named"),
    [("host_pauses", 0.6, False), ("host_pauses", 0.4, True), ("tensor_parallel", 0.6, True)],
)
def test_a_loss_after_start_up_that_others_name_is_not_named_again(name: str, share: float, *, is_named: bool) -> None:
    """Of what others name, as much as is idle before the repeated steps may be of start-up."""
    given = looked_at(begun(5_000))
    loss = largest_loss(given, [])
    assert loss is not None
    before_ns = (given.figures.idle_ns or 0) - (loss.loss_ns or 0)
    other = replace(loss, id=name, loss_ns=round(before_ns + share * (loss.loss_ns or 0)))
    assert (largest_loss(given, [other]) is not None) == is_named


@pytest.mark.parametrize("run", [begun(500), begun(5_000, cycles=3)], ids=["short start-up", "few cycles"])
def test_others_are_told_as_a_whole(run: Run) -> None:
    analysis = analyze_with_advice(run)
    assert analysis.throughput is not None
    assert analysis.throughput.repeated is None
    assert "start-up" not in render(analysis)
