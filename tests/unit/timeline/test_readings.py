"""What capture read beside the steps, from damaged telemetry too."""

import math

import pytest

from overlapscope.timeline.intervals import length
from overlapscope.timeline.readings import COLLECTOR, recorded_pauses
from tests.unit.analysis.stragglers.test_host_cause import with_readings
from tests.unit.analysis.stragglers.test_stragglers import STEP_NS, job


@pytest.mark.parametrize(
    ("value", "lasted_ns"),
    [(2e6, 2_000_000), (0.0, 0), (-2e6, 0), (-1e300, 0), (1e300, 0), (math.nan, 0), (-math.inf, 0)],
)
@pytest.mark.filterwarnings("error")
def test_a_pause_lasts_as_long_as_was_read(value: float, lasted_ns: int) -> None:
    run = with_readings(job(fault=None), {0: [(COLLECTOR, STEP_NS, 0, value)]})
    assert length(recorded_pauses(run.ranks[0], COLLECTOR)) == lasted_ns
