"""What a straggler costs, as it is recommended to look at it: of a step, with its range, and no upper bound."""

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.analysis.cost.throughput import gpu_hours_a_day
from overlapscope.report.text.advice import gain, render
from tests.property.synthetic import Fault, Job, Layout, simulate
from tests.unit.analysis.graph.test_removal import late_pair, read

SLOWER = Job(
    layout=Layout(dp=4), steps=8, first_step=0, layer_ns=4e6, interference=1.0,
    fault=Fault(kind="slower_compute", culprits=(2,), compute_factor=1.5, since=5),
)  # fmt: skip
"""A device becomes slower in the middle of the recording."""


def test_the_gain_of_a_straggler_is_of_a_step_and_so_are_its_gpu_hours() -> None:
    run, _, _ = late_pair(0)
    analysis = analyze_with_advice(run)
    found = next(each for each in analysis.recommendations if each.id == "late_rank")
    middle, low, high = analysis.skew.stragglers[0].evidence["removal_step_ns"]
    assert (found.per, found.predicted_gain_ns, found.gain_low_ns, found.gain_high_ns) == ("step", middle, low, high)
    assert gain(found) == (f"saves about {middle / 1e6:,.3f} ms a step, between {low / 1e6:,.3f} and {high / 1e6:,.3f}")
    assert "90 %" not in render([found], [])
    head, whole = analysis.headline, analysis.throughput
    assert whole
    assert whole.time_ns
    begun_every_ns = whole.time_ns / whole.steps
    assert head.step_ns
    assert begun_every_ns < head.step_ns, "steps of ranks overlap: a day has more of them than their lengths say"
    assert found.gpu_hours_a_day == pytest.approx(gpu_hours_a_day(middle / begun_every_ns, whole.devices or 0))


def test_the_gain_of_a_device_that_became_slower_is_that_of_the_steps_since() -> None:
    always, never = (simulate(replace(SLOWER, fault=replace(SLOWER.fault, since=at)), keep=False) for at in (0, 8))
    since_ns, mean_ns = always.step_ns - never.step_ns, (always.step_ns - never.step_ns) * 3 / 8
    found = next(each for each in analyze_with_advice(read(SLOWER)).recommendations if each.id == "late_rank")
    assert "rank 2 (slower compute), since step 5" in found.title
    assert (found.per, found.predicted_gain_ns) == ("step", pytest.approx(since_ns, rel=0.1))
    assert found.gain_low_ns is not None
    assert found.gain_high_ns is not None
    assert found.gain_low_ns <= 1.05 * mean_ns, "the range holds the mean of all recorded steps, too"
    assert found.gain_high_ns >= 0.95 * since_ns
    assert any("since step 5" in each for each in found.assumed)


def test_a_device_that_was_always_slower_gains_the_mean_of_all_steps() -> None:
    run = read(replace(SLOWER, fault=replace(SLOWER.fault, since=0)))
    analysis = analyze_with_advice(run)
    found = next(each for each in analysis.recommendations if each.id == "late_rank")
    (held,) = analysis.skew.stragglers
    assert "removal_since_ns" not in held.evidence
    assert found.predicted_gain_ns == held.evidence["removal_step_ns"][0]
    assert len(found.assumed) == 1


def test_a_gain_whose_middle_is_its_least_is_given_as_at_least() -> None:
    run, _, _ = late_pair(0)
    found = next(each for each in analyze_with_advice(run).recommendations if each.id == "late_rank")
    one_sided = replace(found, predicted_gain_ns=12_666_000, gain_low_ns=12_666_000, gain_high_ns=23_543_000)
    assert gain(one_sided) == "saves at least 12.666 ms a step, up to 23.543"
    assert gain(replace(one_sided, gain_low_ns=1_000_000)) == "saves about 12.666 ms a step, between 1.000 and 23.543"
