"""Step windows: by hand, against docs/definitions.md in plain Python, and once through a trace file."""

import json
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.analysis.per_rank.steps import BEGINS_ALIKE, StepWindow, step_windows, whole_windows
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import COMM, COMPUTE, COPY
from tests.property.examples import examples
from tests.support.builders import EPOCH_NS, Recording, Span, Step, timeline
from tests.support.rank_rows import rank_timeline

WITHOUT, WITH = "execute_context_0(0)_generation_2(2)", "execute_context_1(9)_generation_2(2)"
"""vLLM's names of batches, without and with a prompt."""
TWO_STEPS = (Step(step=1, start=100, end=200), Step(step=2, start=200, end=300))
LAUNCHED_BY_BOTH = (
    Span(start=150, end=190, step=1),
    Span(start=195, end=230, step=1, kind=COMM, lane=1),
    Span(start=260, end=300, step=2),
    Span(start=310, end=360, step=2, kind=COMM, lane=1),
)


def windows_of(**made: Any) -> dict[int, tuple[int, int] | None]:
    """Return the windows of two steps that differ as stated from those at the top, by number."""
    found = step_windows(timeline(**{"spans": LAUNCHED_BY_BOTH, "steps": TWO_STEPS, **made}))
    return {each.step: each.window for each in found}


@pytest.mark.parametrize(
    ("made", "windows"),
    [
        pytest.param({}, {1: (150, 260), 2: (260, 360)}, id="from the first compute span to that of the next step"),
        pytest.param(
            {"spans": [replace(span, step=3 if span.step == 2 else span.step) for span in LAUNCHED_BY_BOTH]}
            | {"steps": (TWO_STEPS[0], replace(TWO_STEPS[1], step=3))},
            {1: (150, 230), 3: (260, 360)},
            id="before a gap a step ends with its last span",
        ),
        pytest.param(
            {"spans": [span for span in LAUNCHED_BY_BOTH if not (span.step == 2 and span.kind == COMPUTE)]},
            {1: (150, 230), 2: None},
            id="a step without compute has no window and ends no other",
        ),
        pytest.param(
            {
                "spans": [Span(start=100 * n, end=100 * n + 90, step=n, launch=10 * n + 1) for n in range(1, 5)],
                "steps": [Step(step=n, start=10 * n, end=10 * n + 10) for n in range(1, 5)],
            },
            {1: (100, 200), 2: (200, 300), 3: (300, 400), 4: (400, 490)},
            id="device work may lag the host by more than a step",
        ),
        pytest.param({"has_device": False}, {1: (100, 200), 2: (200, 300)}, id="without device spans the annotation"),
    ],
)
def test_a_step_has_the_window_of_its_definition(made, windows):
    assert windows_of(**made) == windows


FORWARD = [f"forward {at}" for at in range(BEGINS_ALIKE)]


@pytest.mark.parametrize(
    ("names", "launch", "ends"),
    [
        pytest.param(FORWARD, 300, 390, id="as the marked ones begin"),
        pytest.param(FORWARD[1:], 300, 358, id="with fewer kernels"),
        pytest.param(["adam", *FORWARD], 300, 358, id="after other work"),
        pytest.param(FORWARD, 299, 358, id="launched in the step itself"),
    ],
)
def test_the_last_marked_step_ends_where_an_unmarked_one_begins(names, launch, ends):
    """Steps 1 and 2 run eight kernels of 1 ns from 150 and 350 on; what no mark holds begins at 390."""
    work = [
        {"name": name, "start_ns": begin + at, "end_ns": begin + at + 1, "launch_ns": at_launch, "step": step}
        for begin, at_launch, step, own in ((150, 110, 1, FORWARD), (350, 210, 2, FORWARD), (390, launch, None, names))
        for at, name in enumerate(own)
    ]
    steps = [{"step": 1, "start_ns": 100, "end_ns": 200}, {"step": 2, "start_ns": 200, "end_ns": 300}]
    made = rank_timeline(work=work, steps=steps, recordings=[{"start_ns": 0, "end_ns": 500}])
    first, last = step_windows(made)
    assert (first.window, first.unmarked_follows) == ((150, 350), False)
    assert (last.window, last.ended_ns, last.unmarked_follows) == ((350, ends), 358, ends == 390)


@pytest.mark.parametrize(("has_device", "windows"), [(True, [(50, 60), (550, 575)]), (False, [(40, 70), (540, 570)])])
def test_equal_step_numbers_in_two_recordings_keep_apart(has_device, windows):
    made = timeline(
        spans=(Span(start=50, end=60, step=7), Span(start=550, end=575, step=7, recording=1)),
        steps=(Step(step=7, start=40, end=70), Step(step=7, start=540, end=570, recording=1)),
        recordings=(Recording(start=0, end=100), Recording(start=500, end=600)),
        has_device=has_device,
    )
    marks, ends = ((40, 540), (60, 575)) if has_device else ((None, None), (None, None))
    assert step_windows(made) == [
        StepWindow(step=7, recording=at, window=window, complete=True, begun_ns=marks[at], ended_ns=ends[at])
        for at, window in enumerate(windows)
    ]


@pytest.mark.parametrize(
    ("recording", "complete"),
    [
        pytest.param({"start": 100, "end": 360}, [True, True], id="just long enough"),
        pytest.param({"start": 101}, [False, True], id="begun a nanosecond after the first annotation"),
        pytest.param({"end": 359}, [True, False], id="ended a nanosecond before the last span"),
        pytest.param({"lost_launch": 299}, [True, False], id="a launch of the second step lost its span"),
        pytest.param({"lost_launch": 300}, [True, True], id="a launch after both steps lost its span"),
        pytest.param({"truncated": True}, [False, False], id="the file ends in mid-recording"),
    ],
)
def test_a_step_is_complete_when_the_recording_holds_all_that_it_launched(recording, complete):
    recordings = [Recording(**{"start": 0, "end": 400, **recording})]
    for has_device in (True, False):
        made = timeline(spans=LAUNCHED_BY_BOTH, steps=TWO_STEPS, has_device=has_device, recordings=recordings)
        assert [each.complete for each in step_windows(made)] == complete


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
    assert [(each.step, each.window) for each in found] == [(3, (150_500, 170_000)), (4, (170_000, 200_000))]


@pytest.mark.parametrize(
    ("names", "numbers", "note"),
    [
        pytest.param(["train_step"] * 3, [0, 1, 2], "'train_step', counted from 0", id="without numbers"),
        pytest.param([f"iteration {at}" for at in (7, 8, 9)], [7, 8, 9], "", id="numbered"),
        pytest.param(["forward_step"] * 3, [], "", id="ranges of a part of the step"),
        pytest.param(["fwd_step"] * 3, [], "", id="the same, short"),
        pytest.param([f"get_batch {at}" for at in range(3)], [], "", id="what is done before a step"),
        pytest.param(["forward_and_backward_step"] * 3, [0, 1, 2], "'forward_and_backward_step'", id="with a word"),
        pytest.param(["forward_backward_step"] * 3, [0, 1, 2], "'forward_backward_step'", id="of nearly all of it"),
        pytest.param(["train_step", "ProfilerStep#4", "train_step"], [4], "", id="the profiler's marks come first"),
    ],
)
@pytest.mark.parametrize("category", ["user_annotation", "python_function"])
def test_ranges_of_the_job_mark_steps_where_the_profiler_marks_none(tmp_path, names, numbers, note, category):
    event = {"ph": "X", "pid": 42, "tid": 1, "dur": 90}
    events = [
        *({**event, "cat": category, "name": name, "ts": 100 * at} for at, name in enumerate(names)),
        *({**event, "cat": "cpu_op", "name": "aten::mm", "ts": 100 * at + 5, "dur": 60} for at in range(len(names))),
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    run = read_inputs([path])
    named = category == "user_annotation"
    assert [each.step for each in step_windows(run.ranks[0])] == (numbers if named else [])
    assert bool(note and named) == any(note in each for source in run.sources for each in source.warnings if note)


@pytest.mark.parametrize(
    ("names", "took", "numbers"),
    [
        pytest.param([f"execute_context_0(0)_generation_{at}({at})" for at in (3, 4, 3)], 96, [0, 1, 2], id="vLLM's"),
        pytest.param([f"execute_context_1({at})_generation_3" for at in (8, 9, 7)], 96, [0, 1, 2], id="with prompts"),
        pytest.param([f"execute_new_{at}_cached_2" for at in (2, 1, 1)], 96, [0, 1, 2], id="of older versions"),
        pytest.param(["execute_context_0(0)_generation_3(3)"] * 3, 90, [], id="other things are done between them"),
        pytest.param([*[WITHOUT, WITH] * 2], 96, [], id="with prompts and without, of one length"),
        pytest.param([WITHOUT, WITH] * 2, [96, 296], [0, 1, 2, 3], id="of two lengths"),
        pytest.param([WITHOUT, WITH] * 2, [96, 296, 96, 196], [], id="with prompts of more than two lengths"),
        pytest.param([WITH, *[WITHOUT] * 3], [296, 96, 96, 96], [0, 1, 2], id="a single one with prompts comes first"),
    ],
)
def test_batches_of_a_server_are_steps_where_they_are_of_one_kind_or_two_and_cover_the_time(
    tmp_path, names, took, numbers
):
    took = [took] * len(names) if isinstance(took, int) else [*took] * (len(names) // len(took))
    begins = [0, *accumulate(each + (4 if each > 90 else 10) for each in took)]
    event = {"ph": "X", "pid": 42, "tid": 1}
    events = [
        *({**event, "cat": "user_annotation", "name": name, "ts": at, "dur": dur}
          for at, dur, name in zip(begins, took, names, strict=False)),
        *({**event, "cat": "cpu_op", "name": "aten::mm", "ts": at, "dur": 50} for at in begins[:-1]),
    ]  # fmt: skip
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert [each.step for each in step_windows(read_inputs([path]).ranks[0])] == numbers


def test_numbered_ranges_of_a_job_that_cover_little_of_the_time_mark_no_steps(tmp_path):
    event = {"ph": "X", "pid": 42, "tid": 1}
    events = [
        *({**event, "cat": "user_annotation", "name": f"step {at}", "ts": 100 * at, "dur": 20} for at in range(4)),
        *({**event, "cat": "cpu_op", "name": "aten::mm", "ts": 100 * at + 5, "dur": 90} for at in range(4)),
    ]
    path = tmp_path / "rank0.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    assert step_windows(read_inputs([path]).ranks[0]) == []


# --- against the definition, in plain Python ------------------------------------------------------------------------


def defined(spans: list[Span], steps: list[Step], recordings: list[Recording], *, has_device: bool) -> list[StepWindow]:
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
            if not has_device:
                window, last = (step.start, step.end), max(step.end, last or step.end)
            cut = recording.truncated or recording.start > step.start or (last is not None and last > recording.end)
            lost = recording.lost_launch is not None and recording.lost_launch < step.end
            found.append(
                StepWindow(
                    step=step.step, recording=place, window=window, complete=not cut and not lost,
                    begun_ns=step.start if has_device else None,
                    ended_ns=last if has_device and window else None,
                )
            )  # fmt: skip
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


@examples(400)
@given(rank_recordings(), st.booleans())
def test_step_windows_are_the_defined_ones(drawn, has_device):
    spans, steps, recordings = drawn
    made = timeline(spans=spans, steps=steps, recordings=recordings, has_device=has_device)
    assert step_windows(made) == defined(spans, steps, recordings, has_device=has_device)


@examples(150)
@given(rank_recordings())
def test_whole_windows_are_the_defined_ones(drawn):
    spans, steps, recordings = drawn
    by_recording = [[span for span in spans if span.recording == place] for place in range(len(recordings))]
    expected = [(min(s.start for s in some), max(s.end for s in some)) for some in by_recording if some]
    assert whole_windows(timeline(spans=spans, steps=steps, recordings=recordings)) == expected
