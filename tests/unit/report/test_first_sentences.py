"""The first sentences of an analysis: what the main figures are, and what they are of."""

from functools import cache
from typing import Literal

import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope.analysis.job_step.headline import LongestBecause
from overlapscope.analysis.result import Analysis
from overlapscope.report.text.analysis import sentence
from tests.conftest import ROOT


@cache
def recorded() -> Analysis:
    return overlapscope.load(ROOT / "traces" / "baseline").analysis()


@pytest.mark.parametrize(
    ("because", "window", "words"),
    [
        ("clocks", "step", "The ranks' clocks cannot be aligned: the step is"),
        ("apart", "step", "The ranks do not keep step (some had ended a step before others began it): the step is"),
        ("apart", "recording", "The ranks were recorded at different times: the recording is"),
        (None, "step", "No times between ranks are known: the step is"),  # of version 0.1
    ],
)
def test_why_a_step_is_the_longest_window_is_the_reason_that_was_found(
    because: LongestBecause | None, window: Literal["step", "recording"], words: str
) -> None:
    found = replace(recorded().headline, steps_by="longest_window", longest_because=because, window=window)
    last = sentence(replace(recorded(), headline=found)).splitlines()[-1]
    assert last == f"{words} the longest window of any rank."
