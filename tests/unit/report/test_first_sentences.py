"""The first sentences of an analysis: what the main figures are, and what they are of."""

from functools import cache
from typing import Literal

import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope.analysis.job_step.headline import LongestBecause
from overlapscope.analysis.result import Analysis
from overlapscope.report.text.analysis import sentence
from overlapscope_dashboards.views.overview import lead
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


def test_where_the_median_step_communicates_nothing_the_first_sentence_says_so_and_gives_the_mean() -> None:
    """As with local SGD, or gradient accumulation: two of eight steps communicate."""
    head, of = recorded().headline, recorded().headline.job_steps[0]
    silent = replace(of, step_ns=100_000_000, exposed_comm_ns=0, overlapped_ns=0)
    others = replace(of, step_ns=500_000_000, exposed_comm_ns=400_000_000, overlapped_ns=4_000_000)
    steps = [*[silent] * 6, others, others]
    few = replace(head, step_ns=100_000_000, exposed_comm_ns=0, overlapped_ns=0, comm_ns=0, job_steps=steps)
    analysis = replace(recorded(), headline=few)
    said = (
        "The median step (100.000 ms) communicates nothing; in the mean 100.000 of 200.000 ms is exposed communication "
        "(50.0 %)."
    )
    assert sentence(analysis).splitlines()[:3] == [
        said,
        "Medians of 6 steps, means over 2 ranks.",
        "2 of 8 steps communicate; in the mean 1.000 ms more is overlapped with compute.",
    ]
    assert lead(analysis).words == (said,)
    always = replace(few, comm_ns=1, exposed_comm_ns=1_000_000)
    assert sentence(replace(analysis, headline=always)).startswith("1.000 ms of a 100.000 ms step is exposed")
