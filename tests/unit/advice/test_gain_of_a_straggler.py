"""What a straggler costs, as it is recommended to look at it: of a step, with its range, and no upper bound."""

import pytest

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.cost.throughput import gpu_hours_a_day
from overlapscope.report.text.advice import gain, render
from tests.unit.analysis.graph.test_removal import late_pair


def test_the_gain_of_a_straggler_is_of_a_step_and_so_are_its_gpu_hours() -> None:
    run, _, _ = late_pair(0)
    analysis = analyze_with_advice(run)
    found = next(each for each in analysis.recommendations if each.id == "late_rank")
    middle, low, high = analysis.skew.stragglers[0].evidence["removal_step_ns"]
    assert (found.per, found.predicted_gain_ns, found.gain_low_ns, found.gain_high_ns) == ("step", middle, low, high)
    assert gain(found) == (f"saves about {middle / 1e6:,.3f} ms a step, between {low / 1e6:,.3f} and {high / 1e6:,.3f}")
    assert "90 %" not in render([found], [])
    assert analysis.headline.step_ns
    assert analysis.throughput
    assert found.gpu_hours_a_day == pytest.approx(
        gpu_hours_a_day(middle / analysis.headline.step_ns, analysis.throughput.devices or 0)
    )
