"""Step windows: by hand, against docs/definitions.md in plain Python, and once through a trace file."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.steps import StepWindow, step_windows, whole_windows
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import COMM, COMPUTE, COPY
from tests.support.builders import EPOCH_NS, Recording, Span, Step, timeline

TWO_STEPS = (Step(step=1, start=100, end=200), Step(step=2, start=200, end=300))
LAUNCHED_BY_BOTH = (
    Span(start=150, end=190, step=1),
    Span(start=195, end=230, step=1, kind=COMM, lane=1),
    Span(start=260, end=300, step=2),
    Span(start=310, end=360, step=2, kind=COMM, lane=1),
)


def windows_of(steps: list[StepWindow]) -> dict[int, tuple[int, int] | None]:
    return {each.step: each.window for each in steps}


def complete_of(steps: list[StepWindow]) -> dict[int, bool]:
    return {each.step: each.complete for each in steps}


def test_a_step_runs_from_its_first_compute_span_to_that_of_the_next():
    found = step_windows(timeline(spans=LAUNCHED_BY_BOTH, steps=TWO_STEPS))
    assert windows_of(found) == {1: (150, 260), 2: (260, 360)}
    assert complete_of(found) == {1: True, 2: True}


def test_communication_copies_and_other_lanes_open_no_step():
    early = (
        Span(start=110, end=120, step=1, kind=COMM),
        Span(start=112, end=118, step=1, kind=COPY),
        Span(start=105, end=125, step=1, kind=COMPUTE, lane=2),
    )
    found = step_windows(timeline(spans=early + LAUNCHED_BY_BOTH, steps=TWO_STEPS))
    assert windows_of(found)[1] == (150, 260)


def test_the_main_lane_is_the_one_with_the_most_compute_time_not_the_most_spans():
    many_short = tuple(Span(start=at, end=at + 1, step=1, lane=2) for at in range(100, 140, 4))
    found = step_windows(timeline(spans=many_short + LAUNCHED_BY_BOTH, steps=TWO_STEPS))
    assert windows_of(found)[1] == (150, 260)


def test_communication_time_makes_no_lane_the_main_lane():
    long_comm = (Span(start=0, end=5000, step=1, kind=COMM, lane=3), Span(start=120, end=121, step=1, lane=3))
    found = step_windows(timeline(spans=long_comm + LAUNCHED_BY_BOTH, steps=TWO_STEPS))
    assert windows_of(found)[1] == (150, 260)


def test_before_a_gap_in_the_numbers_a_step_ends_with_its_last_launched_span():
    later = [replace(span, step=3) if span.step == 2 else span for span in LAUNCHED_BY_BOTH]
    found = step_windows(timeline(spans=later, steps=(TWO_STEPS[0], replace(TWO_STEPS[1], step=3))))
    assert windows_of(found) == {1: (150, 230), 3: (260, 360)}


def test_a_step_number_that_falls_back_is_no_next_step():
    later = [replace(span, step=0) if span.step == 2 else span for span in LAUNCHED_BY_BOTH]
    found = step_windows(timeline(spans=later, steps=(TWO_STEPS[0], replace(TWO_STEPS[1], step=0))))
    assert windows_of(found) == {1: (150, 230), 0: (260, 360)}


def test_a_next_step_in_another_recording_window_ends_nothing():
    found = step_windows(
        timeline(
            spans=[replace(span, recording=span.step - 1) for span in LAUNCHED_BY_BOTH],
            steps=[replace(step, recording=step.step - 1) for step in TWO_STEPS],
            recordings=(Recording(start=0, end=240), Recording(start=245, end=400)),
        )
    )
    assert found == [
        StepWindow(step=1, recording=0, window=(150, 230), complete=True),
        # Its annotation began before the second recording did.
        StepWindow(step=2, recording=1, window=(260, 360), complete=False),
    ]


def test_equal_step_numbers_in_two_recording_windows_keep_apart():
    found = step_windows(
        timeline(
            spans=(Span(start=50, end=60, step=7), Span(start=550, end=575, step=7, recording=1)),
            steps=(Step(step=7, start=40, end=70), Step(step=7, start=540, end=570, recording=1)),
            recordings=(Recording(start=0, end=100), Recording(start=500, end=600)),
        )
    )
    assert [(each.recording, each.window, each.complete) for each in found] == [
        (0, (50, 60), True),
        (1, (550, 575), True),
    ]


def test_each_recording_window_has_its_own_main_lane():
    found = step_windows(
        timeline(
            spans=(
                Span(start=10, end=15, step=1, lane=0),
                Span(start=20, end=90, step=1, lane=1),
                Span(start=510, end=590, step=2, lane=0, recording=1),
            ),
            steps=(Step(step=1, start=0, end=95), Step(step=2, start=500, end=595, recording=1)),
            recordings=(Recording(start=0, end=100), Recording(start=500, end=600)),
        )
    )
    assert windows_of(found) == {1: (20, 90), 2: (510, 590)}


def test_a_step_without_compute_has_no_window_and_the_one_before_ends_with_its_last_span():
    spans = [span for span in LAUNCHED_BY_BOTH if not (span.step == 2 and span.kind == COMPUTE)]
    found = step_windows(timeline(spans=spans, steps=TWO_STEPS))
    assert windows_of(found) == {1: (150, 230), 2: None}
    assert complete_of(found) == {1: True, 2: True}


def test_a_step_that_launched_nothing_has_no_window():
    assert windows_of(step_windows(timeline(spans=(), steps=TWO_STEPS))) == {1: None, 2: None}


def test_device_work_may_lag_the_host_by_more_than_a_step():
    steps = tuple(Step(step=number, start=10 * number, end=10 * number + 10) for number in range(1, 5))
    spans = [
        Span(start=100 * number, end=100 * number + 90, step=number, launch=10 * number + 1) for number in range(1, 5)
    ]
    found = step_windows(timeline(spans=spans, steps=steps, recordings=[Recording(start=0, end=1000)]))
    assert windows_of(found) == {1: (100, 200), 2: (200, 300), 3: (300, 400), 4: (400, 490)}


def test_spans_outside_all_steps_open_and_close_none():
    outside = (Span(start=90, end=99), Span(start=400, end=450))
    found = step_windows(timeline(spans=outside + LAUNCHED_BY_BOTH, steps=TWO_STEPS))
    assert windows_of(found) == {1: (150, 260), 2: (260, 360)}


@pytest.mark.parametrize(
    ("recording", "complete"),
    [
        (Recording(start=100, end=360), {1: True, 2: True}),
        (Recording(start=101, end=360), {1: False, 2: True}),
        (Recording(start=0, end=359), {1: True, 2: False}),
        (Recording(start=0, end=229), {1: False, 2: False}),
        (Recording(start=0, end=400, lost_launch=299), {1: True, 2: False}),
        (Recording(start=0, end=400, lost_launch=150), {1: False, 2: False}),
        (Recording(start=0, end=400, lost_launch=300), {1: True, 2: True}),
        (Recording(start=0, end=400, truncated=True), {1: False, 2: False}),
    ],
    ids=[
        "a recording just long enough holds both",
        "begun a nanosecond after the first annotation",
        "ended a nanosecond before the last span",
        "ended before the last span of the first step",
        "a launch of the second step lost its span",
        "a launch of the first step lost its span",
        "a launch after both steps lost its span",
        "the file ends in mid-recording",
    ],
)
def test_a_step_is_complete_when_the_recording_holds_all_that_it_launched(recording, complete):
    found = step_windows(timeline(spans=LAUNCHED_BY_BOTH, steps=TWO_STEPS, recordings=[recording]))
    assert complete_of(found) == complete


def test_without_device_spans_the_annotation_is_the_window():
    found = step_windows(timeline(spans=LAUNCHED_BY_BOTH, steps=TWO_STEPS, has_device=False))
    assert windows_of(found) == {1: (100, 200), 2: (200, 300)}
    assert complete_of(found) == {1: True, 2: True}


def test_without_device_spans_a_step_needs_no_span():
    assert windows_of(step_windows(timeline(spans=(), steps=TWO_STEPS, has_device=False))) == {
        1: (100, 200),
        2: (200, 300),
    }


@pytest.mark.parametrize(
    ("recording", "complete"),
    [
        (Recording(start=101, end=400), {1: False, 2: True}),
        (Recording(start=0, end=299), {1: True, 2: False}),
        (Recording(start=0, end=359), {1: True, 2: False}),
        (Recording(start=0, end=400, truncated=True), {1: False, 2: False}),
    ],
    ids=["begun too late", "ended before the annotation", "ended before the last span", "cut file"],
)
def test_a_step_without_device_spans_is_complete_when_the_recording_holds_it(recording, complete):
    found = step_windows(timeline(spans=LAUNCHED_BY_BOTH, steps=TWO_STEPS, has_device=False, recordings=[recording]))
    assert complete_of(found) == complete


def test_without_device_spans_a_later_recordings_spans_do_not_cut_an_equal_step_short():
    found = step_windows(
        timeline(
            spans=(Span(start=50, end=60, step=7), Span(start=550, end=575, step=7, recording=1)),
            steps=(Step(step=7, start=40, end=70), Step(step=7, start=540, end=570, recording=1)),
            recordings=(Recording(start=0, end=100), Recording(start=500, end=600)),
            has_device=False,
        )
    )
    assert [(each.window, each.complete) for each in found] == [((40, 70), True), ((540, 570), True)]


def test_a_whole_window_runs_from_the_first_start_to_the_last_end_of_a_recording():
    assert whole_windows(timeline(spans=LAUNCHED_BY_BOTH)) == [(150, 360)]


def test_the_whole_window_of_an_early_long_span_reaches_to_its_end():
    assert whole_windows(timeline(spans=(Span(start=5, end=90, kind=COPY), Span(start=20, end=30)))) == [(5, 90)]


def test_each_recording_has_its_whole_window_and_an_empty_one_has_none():
    found = whole_windows(
        timeline(
            spans=(Span(start=10, end=20), Span(start=510, end=530, recording=2)),
            recordings=(Recording(start=0, end=100), Recording(start=200, end=300), Recording(start=500, end=600)),
        )
    )
    assert found == [(10, 20), (510, 530)]


def test_a_launch_from_another_thread_counts_by_its_time(tmp_path):
    """The backward pass launches from a thread of its own, inside the time of the main thread's annotation."""
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "dur": 10}
    launch = {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 42, "dur": 1}
    step = {"ph": "X", "cat": "user_annotation", "pid": 42, "tid": 1}
    events = [
        {**step, "name": "ProfilerStep#3", "ts": 0, "dur": 100},
        {**step, "name": "ProfilerStep#4", "ts": 100, "dur": 100},
        {**launch, "tid": 2, "ts": 60, "args": {"correlation": 1}},
        {**launch, "tid": 2, "ts": 100, "args": {"correlation": 2}},
        {**launch, "tid": 1, "ts": 120, "args": {"correlation": 3}},
        {**kernel, "name": "backward_gemm", "ts": 150.5, "args": {"correlation": 1}},
        {**kernel, "name": "backward_gemm", "ts": 170, "args": {"correlation": 2}},
        {**kernel, "name": "forward_gemm", "ts": 190, "args": {"correlation": 3}},
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = step_windows(read_inputs([path]).ranks[0])
    assert windows_of(found) == {3: (150_500, 170_000), 4: (170_000, 200_000)}


# --- against the definition, in plain Python ------------------------------------------------------------------------


def defined(spans: list[Span], steps: list[Step], recordings: list[Recording]) -> list[StepWindow]:
    """Return the windows of docs/definitions.md, one sentence after the other."""
    found = []
    for place, recording in enumerate(recordings):
        of_recording = [span for span in spans if span.recording == place]
        busy: dict[int, int] = {}
        for span in of_recording:
            if span.kind == COMPUTE:
                busy[span.lane] = busy.get(span.lane, 0) + span.end - span.start
        main = min((lane for lane in busy if busy[lane] == max(busy.values())), default=None)

        def launched(step: Step, of_recording: list[Span] = of_recording) -> list[Span]:
            return [span for span in of_recording if span.launch is not None and step.start <= span.launch < step.end]

        def begin(step: Step, main: int | None = main, launched=launched) -> int | None:
            return min((s.start for s in launched(step) if s.kind == COMPUTE and s.lane == main), default=None)

        recorded = [step for step in steps if step.recording == place]
        for at, step in enumerate(recorded):
            start, window = begin(step), None
            last = max((span.end for span in launched(step)), default=None)
            if start is not None:
                following = recorded[at + 1] if at + 1 < len(recorded) else None
                is_next = following is not None and following.step == step.step + 1
                end = begin(following) if is_next else None
                window = (start, last if end is None else end)
            cut = recording.truncated or recording.start > step.start or (last is not None and last > recording.end)
            lost = recording.lost_launch is not None and recording.lost_launch < step.end
            found.append(StepWindow(step=step.step, recording=place, window=window, complete=not cut and not lost))
    return found


@st.composite
def recorded(draw, place: int, begin: int):
    """Draw one recording: annotations with gaps, and spans that their lanes run in the order of launch."""
    steps = []
    clock, number = begin + draw(st.integers(0, 5)), draw(st.integers(0, 3))
    for _ in range(draw(st.integers(0, 4))):
        end = clock + draw(st.integers(1, 12))
        steps.append(Step(step=number, start=clock, end=end, recording=place))
        clock = end + draw(st.sampled_from([0, 0, 3]))
        number += draw(st.sampled_from([1, 1, 1, 2]))
    launches = draw(st.lists(st.one_of(st.none(), st.integers(begin, clock + 3)), max_size=12))
    spans, free = [], [begin] * 3
    for launch in sorted(launches, key=lambda moment: begin if moment is None else moment):
        lane, kind = draw(st.integers(0, 2)), draw(st.sampled_from([COMPUTE, COMPUTE, COMM, COPY]))
        start = max(free[lane], begin if launch is None else launch) + draw(st.integers(0, 15))
        free[lane] = start + draw(st.integers(1, 15))
        by = [step.step for step in steps if launch is not None and step.start <= launch < step.end]
        span = Span(start=start, end=free[lane], kind=kind, lane=lane, recording=place, launch=launch)
        spans.append(replace(span, step=by[0] if by else None))
    end = max([clock, *free])
    recording = Recording(
        start=begin + draw(st.sampled_from([0, 0, 0, 4])),
        end=end - draw(st.sampled_from([0, 0, 0, 7])),
        lost_launch=draw(st.one_of(st.none(), st.none(), st.integers(begin, clock))),
        truncated=draw(st.sampled_from([False, False, False, True])),
    )
    return spans, steps, recording, end


@st.composite
def rank_recordings(draw):
    spans, steps, recordings = [], [], []
    clock = draw(st.sampled_from([0, EPOCH_NS]))
    for place in range(draw(st.integers(1, 2))):
        some_spans, some_steps, recording, end = draw(recorded(place, clock))
        spans += some_spans
        steps += some_steps
        recordings.append(recording)
        clock = end + 10
    return draw(st.permutations(spans)), steps, recordings


@settings(max_examples=400)
@given(rank_recordings())
def test_step_windows_are_the_defined_ones(drawn):
    spans, steps, recordings = drawn
    assert step_windows(timeline(spans=spans, steps=steps, recordings=recordings)) == defined(spans, steps, recordings)


@settings(max_examples=150)
@given(rank_recordings())
def test_whole_windows_are_the_defined_ones(drawn):
    spans, steps, recordings = drawn
    by_recording = [[span for span in spans if span.recording == place] for place in range(len(recordings))]
    expected = [(min(s.start for s in some), max(s.end for s in some)) for some in by_recording if some]
    assert whole_windows(timeline(spans=spans, steps=steps, recordings=recordings)) == expected
