"""Which range explains an outlier step: one that the other steps of its rank lack."""

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.checks.steps.odd_step_findings import outlier_steps
from overlapscope.analysis.checks.steps.odd_step_ranges import WAITED_RANK, WAITED_STEP, with_ranges
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.timeline.run import Run
from tests.property.synthetic import Fault, Job, Layout
from tests.support.rank_rows import Row, rank_timeline
from tests.unit.analysis.graph.test_removal import read

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
    (found,) = with_ranges(outlier_steps({0: figures}, {0: "trace"}), run, {}, {})
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


def idle_in(name: str, *, until: int = 70) -> tuple[str, dict[str, object]]:
    """Return title and evidence of step 3, of 60 ms instead of 10: it computes for 8 ms, and step 4, whose range `name`
    begins with it on the host after 10 ms and ends at `until`, computes nothing before its own window."""
    begins, length = [0, 10, 20, 30, 90, 100], [10, 10, 10, 60, 10, 10]
    windows = [
        StepWindow(step=step, recording=0, window=(at * MS, (at + lasts) * MS), complete=True)
        for step, (at, lasts) in enumerate(zip(begins, length, strict=True))
    ]
    steps = [{"step": step, "start_ns": at * MS, "end_ns": (at + 10) * MS} for step, at in enumerate(begins)]
    steps[4] |= {"start_ns": 40 * MS, "end_ns": 100 * MS}
    notes = [{"name": f"ProfilerStep#{each['step']}", "lane": 0, "start_ns": each["start_ns"], "end_ns": each["end_ns"]}
             for each in steps]  # fmt: skip
    usual = [{"name": name, "lane": 0, "start_ns": at * MS, "end_ns": at * MS + MS} for at in begins]
    usual[4] |= {"start_ns": 40 * MS, "end_ns": until * MS}
    work = [{"step": step, "start_ns": at * MS, "end_ns": (at + 8) * MS} for step, at in enumerate(begins)]
    timeline = rank_timeline(
        work=work, lanes=[{}], steps=steps, annotations=sorted([*notes, *usual], key=lambda each: each["start_ns"])
    )
    figures = [(each, lasts * MS, 0, 8 * MS, (lasts - 8) * MS) for each, lasts in enumerate(length)]
    found = outlier_steps({0: figures}, {0: "trace"})
    run = Run(world_size=1, ranks={0: timeline})
    (one,) = with_ranges(found, run, {0: Coverage.of(timeline.spans)}, {0: windows})
    return one.title, one.evidence


def test_what_the_host_does_while_its_device_idles_is_named_though_other_steps_have_it_and_the_next_has_begun() -> None:
    title, evidence = idle_in("load", until=88)
    assert title.endswith(
        "it idles for 50.000 ms more than usual, 52.000 ms at once while the host was in load, between the last "
        "work of step 3 and the first of step 4"
    )
    assert evidence["idle_range"] == "load"


def test_a_range_of_less_than_half_of_the_idle_time_is_not_named() -> None:
    assert "load" not in idle_in("load", until=60)[0]


def idle_in_load(longest_of_others: int) -> Finding:
    """Return what is said of step 3 of 110 ms, which idles for 50 ms at once in `load` and ten times for 4 ms after it;
    the other steps, of 60 ms, idle for 40 ms: in `load` for so long at once, and in as long pieces after it."""
    windows, steps, notes, work = [], [], [], []
    at = 0
    for step in range(6):
        gaps = [50, *[4] * 10] if step == ODD else [longest_of_others] * (40 // longest_of_others)
        begin, ready = at, at + 2
        work.append({"step": step, "start_ns": at * MS, "end_ns": ready * MS})
        notes.append({"name": "load", "lane": 0, "start_ns": ready * MS, "end_ns": (ready + gaps[0]) * MS})
        for gap in gaps:
            ready += gap + 1
            work.append({"step": step, "start_ns": (ready - 1) * MS, "end_ns": ready * MS})
        at += 110 if step == ODD else 60
        work.append({"step": step, "start_ns": ready * MS, "end_ns": at * MS})
        window = (begin * MS, at * MS)
        windows.append(StepWindow(step=step, recording=0, window=window, complete=True))
        times = {"start_ns": window[0], "end_ns": window[1]}
        steps.append({"step": step, **times})
        notes.append({"name": f"ProfilerStep#{step}", "lane": 0, **times})
    timeline = rank_timeline(
        work=work, lanes=[{}], steps=steps, annotations=sorted(notes, key=lambda each: each["start_ns"])
    )
    figures = [
        (each, (110 if each == ODD else 60) * MS, 0, 20 * MS, (90 if each == ODD else 40) * MS) for each in range(6)
    ]
    run = Run(world_size=1, ranks={0: timeline})
    (one,) = with_ranges(outlier_steps({0: figures}, {0: "trace"}), run, {0: Coverage.of(timeline.spans)}, {0: windows})
    return one


def test_what_every_step_idles_at_once_is_not_what_a_step_idles_more() -> None:
    """It idles for 50 ms more: of its longest idle time of 50 ms, 10 ms if others have one of 40 ms."""
    assert "idle_range" not in idle_in_load(40).evidence
    assert idle_in_load(4).evidence["idle_range"] == "load"


STALLED = Job(
    layout=Layout(dp=2), steps=6, first_step=0, layer_ns=1e6, interference=1.0,
    fault=Fault(kind="stall", culprits=(1,), stall_ns=60e6, stall_at=0.95, stall_every=6),
)  # fmt: skip
"""The host of rank 1 pauses once, after the last call of step 0: rank 0 waits for it in its step 1."""


def test_a_step_that_waits_for_the_long_step_of_another_rank_is_the_same_event() -> None:
    odd = {(each.evidence["rank"], each.evidence["step"]): each for each in analyze(read(STALLED)).findings
           if each.id.startswith("odd_step:window_ns")}  # fmt: skip
    assert set(odd) == {(0, 1), (1, 0)}
    waits, paused = odd[0, 1], odd[1, 0]
    assert waits.title.endswith("more than usual: the same event as step 0 of rank 1, for which it waits")
    assert (waits.evidence[WAITED_STEP], waits.evidence[WAITED_RANK]) == (0, 1)
    assert WAITED_STEP not in paused.evidence
