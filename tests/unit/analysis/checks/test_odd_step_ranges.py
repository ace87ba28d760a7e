"""Which range explains an outlier step: one that the other steps of its rank lack."""

import pytest

from overlapscope.analysis.checks.odd_step_ranges import with_ranges
from overlapscope.analysis.checks.outlier_steps import outlier_steps
from overlapscope.timeline.run import Run
from tests.support.rank_rows import Row, rank_timeline

MS = 1_000_000
ODD, LONG = 3, 60
Ranges = list[tuple[str, int, int]]


def said(ranges: Ranges, *, verb: str = "takes", lane: int = 0) -> tuple[str, dict[str, object]]:
    """Return title and evidence of one odd step, of 60 ms instead of 10, in which `ranges` begin and end (ms)."""
    steps: list[Row] = []
    notes: list[Row] = []
    at = 0
    for number in range(6):
        lasts = (LONG if number == ODD else 10) * MS
        steps.append({"step": number, "start_ns": at, "end_ns": at + lasts})
        notes.append({"name": f"ProfilerStep#{number}", "lane": 0, "start_ns": at, "end_ns": at + lasts})
        notes.append({"name": f"batch {number}", "lane": 0, "start_ns": at + MS, "end_ns": at + lasts - MS})
        if number == ODD:
            notes += [
                {"name": name, "lane": lane, "start_ns": at + begin * MS, "end_ns": at + end * MS}
                for name, begin, end in ranges
            ]
        at += lasts
    run = Run(world_size=1, ranks={0: rank_timeline(lanes=[{}, {}], steps=steps, annotations=notes)})
    lengths = [(each["step"], each["end_ns"] - each["start_ns"]) for each in steps]
    figures = [(step, ns, 0, MS, 0) if verb == "takes" else (step, 100 * MS + ns, 0, MS, ns) for step, ns in lengths]
    (found,) = with_ranges(outlier_steps({0: figures}, {0: "trace"}), run)
    assert f"step {ODD} of rank 0 {verb}" in found.title
    return found.title, found.evidence


@pytest.mark.parametrize("verb", ["takes", "idles"])
def test_the_longest_range_that_no_other_step_has_is_named(verb: str) -> None:
    title, evidence = said([("checkpoint", 5, 50), ("write", 6, 30)], verb=verb)
    assert title.endswith("; it alone of the rank's steps has the range checkpoint (45.000 ms)")
    assert (evidence["range"], evidence["range_ns"]) == ("checkpoint", 45 * MS)


@pytest.mark.parametrize(
    "ranges",
    [
        [],
        [("checkpoint", 5, 20)],
        [("batch 77", 5, 50)],
        [("gloo:all_reduce", 5, 50)],
        [("overlapscope.comm:x", 5, 50)],
    ],
    ids=["none", "shorter than half of what is more", "as in other steps", "a call", "a mark"],
)
def test_no_range_is_named_that_does_not_explain_the_step(ranges: Ranges) -> None:
    title, evidence = said(ranges)
    assert "range" not in title
    assert "range" not in evidence


def test_a_range_of_another_thread_does_not_explain_a_step() -> None:
    assert "range" not in said([("checkpoint", 5, 50)], lane=1)[1]
