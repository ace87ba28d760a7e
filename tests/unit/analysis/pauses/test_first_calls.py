"""Hosts that make no call as the first recorded step begins."""

import pytest

from overlapscope.timeline.run import Run
from tests.unit.analysis.pauses.pausing import (
    MS,
    US,
    advice,
    named,
    run,
)


def beginning(silent_ms: float, *, mark_ms: float | None = None, device: bool = False) -> Run:
    """Return two ranks whose first step's mark begins so long before their first call, and lasts `mark_ms` instead of
    51; `device`: a span of the device comes before that call."""
    job = run(lambda *_: {})
    for timeline in job.ranks.values():
        first = int(timeline.host.start_ns.min())
        begin = first - round(silent_ms * MS)
        timeline.steps.start_ns[0] = begin
        timeline.steps.end_ns[0] = begin + round(MS * (51 + silent_ms if mark_ms is None else mark_ms))
        timeline.recordings.start_ns[0] = begin
        if device:
            at = int(timeline.spans.start_ns.argmin())
            timeline.spans.start_ns[at], timeline.spans.end_ns[at] = begin, begin + 10 * US
    return job


def test_a_host_that_makes_no_call_as_the_first_step_begins_is_named_with_what_its_mark_is_longer() -> None:
    (found,) = named(beginning(40.0))
    assert found.title.startswith(
        "the hosts of ranks 0, 1 make no call for 40.000 ms as step 7 begins: its mark lasts 91.000 ms, those of other "
        "steps 51.000 ms. What was launched before is not recorded, so the device may have been busy meanwhile"
    )
    assert (found.evidence["idle_ns"], found.evidence["cost_ns"]) == (0, 40 * MS)
    first = advice(beginning(40.0))["host_pauses"]
    assert (first.id, first.per, first.loss_ns) == ("host_pauses", "recording", 40 * MS)
    assert "the step's mark lasts 91 ms, 40 ms more than others" in first.title
    assert first.gpu_hours_a_day is None


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(beginning(2.9), id="short"),
        pytest.param(beginning(40.0, mark_ms=55.0), id="the step is hardly longer for it"),
        pytest.param(beginning(40.0, device=True), id="a device worked meanwhile"),
    ],
)
def test_a_begin_that_is_short_or_costs_nothing_is_not_named(job: Run) -> None:
    assert not any(each.evidence["before_any_call"] for each in named(job))
