"""Calibration against truth that was made: slowdowns are found again, intervals hold what they say."""

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlapscope.whatif.ddp.buckets import DdpSettings
from overlapscope.whatif.ddp.calibrate import Measured, fit, model_error, predict_steps, step_ns
from overlapscope.whatif.ddp.ddp_step import Settings
from overlapscope.whatif.ddp.plan import Plan, plan
from overlapscope.whatif.workload.workload_file import parse_workload

CAPS = (1.0, 5.0, 25.0, 100.0, 1000.0)
OTHERS = [Settings(ddp=DdpSettings(bucket_cap_mb=cap)) for cap in CAPS]


def described(layers: int, hidden: int, step_ms: float, gbs: float) -> Plan:
    points = [[size, 0.05 + size / gbs / 1e6] for size in (1 << 14, 1 << 20, 1 << 24, 1 << 28)]
    content: dict[str, Any] = {
        "world_size": 8,
        "compute": {"step_ms": step_ms},
        "model": {"layers": layers, "hidden": hidden, "vocabulary": 8192, "sequence": 256},
        "device": {"memory_gbs": 1000},
        "collectives": {"points": points},
        "ddp": {"gradient_as_bucket_view": True},
    }
    return plan(parse_workload(content))


@pytest.mark.slow
@settings(max_examples=12)
@given(slowdown=st.floats(1.05, 1.9), cap=st.sampled_from((1.0, 5.0, 25.0)))
def test_the_slowdown_that_made_a_step_is_found_again(slowdown: float, cap: float) -> None:
    workload = described(6, 1024, 60, 8).workload()
    chosen = Settings(ddp=DdpSettings(bucket_cap_mb=cap))
    made = Measured(settings=chosen, step_ns=step_ns(workload, chosen, slowdown))
    found = fit(workload, [made], 0.01)
    assert found.identified
    assert found.slowdown == pytest.approx(slowdown, abs=0.01)
    assert found.low <= slowdown <= found.high


def test_several_measured_steps_are_met_on_the_mean() -> None:
    workload = described(6, 1024, 60, 8).workload()
    steps = [Measured(settings=each, step_ns=step_ns(workload, each, 1.3) * (1 + off)) for each, off in
             zip(OTHERS[:3], (0.005, -0.01, 0.005), strict=True)]  # fmt: skip
    assert fit(workload, steps, 0.01).slowdown == pytest.approx(1.3, abs=0.03)


def test_a_step_that_nothing_here_explains_is_not_called_interference() -> None:
    workload = described(6, 1024, 60, 8).workload()
    for factor, word in ((2.0, "more than 2"), (0.7, "less than 1")):
        one = Measured(settings=OTHERS[1], step_ns=step_ns(workload, OTHERS[1], 1.0) * factor)
        found = fit(workload, [one], 0.01)
        assert not found.identified
        assert word in found.reason


@pytest.mark.slow
def test_ninety_of_a_hundred_truths_lie_inside_the_interval() -> None:
    """Truths are made by drawing all that is assumed from its range, and noise: the interval must hold most of them."""
    drawn = random.Random(11)
    inside, widths = [], []
    for _ in range(12):
        made = described(drawn.randint(4, 10), drawn.choice((768, 1024)), drawn.uniform(30, 120), drawn.uniform(3, 30))
        truth = made.build({each.name: drawn.uniform(each.low, each.high) for each in made.assumptions})
        slowdown = drawn.uniform(1.0, 1.6)
        noise = [drawn.gauss(1, 0.005) for _ in OTHERS]
        steps = np.array([step_ns(truth, each, slowdown) * off for each, off in zip(OTHERS, noise, strict=True)])
        known = drawn.randrange(3)
        found = predict_steps(
            made.build, made.assumptions, [Measured(settings=OTHERS[known], step_ns=float(steps[known]))], OTHERS, 0.01
        )
        half = np.sqrt(found.half_width(found.steps_ns) ** 2 + (model_error(found) * found.steps_ns[0]) ** 2)
        rest = np.arange(len(OTHERS)) != known
        inside += (np.abs(found.steps_ns[0] - steps) <= half)[rest].tolist()
        widths += (2 * half / steps)[rest].tolist()
    assert np.mean(inside) >= 0.9
    assert np.median(widths) < 0.2
