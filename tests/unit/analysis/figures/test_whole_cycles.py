"""Sums over all steps are of whole cycles: what a step loses as it begins lies in the window before its own."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cost.throughput import Throughput
from overlapscope.analysis.cost.whole_cycles import causes_cut, cut_short
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.per_rank.steps import StepWindow
from overlapscope.analysis.result import Analysis, Recommendation, causes_of_all_steps, with_costs
from overlapscope.report.text.analysis import render
from overlapscope.report.text.exposed_causes import exposed_causes_text
from overlapscope.report.text.throughput import lines
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline
from tests.support.step_cases import US, Kernel, Sent, made
from tests.unit.analysis.figures.test_throughput import rank_of

MS = 1_000_000
FETCHED = [(0, 10), (20, 30), (40, 50)]
"""In ms: each step does nothing for 10 ms before the next one begins, and no step follows the last."""


def analyzed(*ranks: RankTimeline) -> Analysis:
    return analyze(Run(world_size=len(ranks), ranks={each.rank: each for each in ranks}))


def found(*ranks: RankTimeline) -> Throughput:
    its = analyzed(*ranks).throughput
    assert its is not None
    return its


def test_a_step_that_no_step_follows_and_that_lacks_what_the_others_end_with_is_left_out() -> None:
    """By hand: two windows of 20 ms with 3 ms exposed and 11 ms idle each; the last is 9 ms long, without idle time."""
    its = found(rank_of(0, FETCHED, {"tokens": [8, 8, 8]}, device=True))
    assert (its.cut_short, its.steps, its.time_ns) == ([2], 2, 40 * MS)
    assert its.exposed_fraction == pytest.approx(6 / 40)
    assert its.idle_fraction == pytest.approx(22 / 40)
    assert its.tokens is not None
    assert its.tokens.per_second == pytest.approx(16 / 0.040)


@pytest.mark.parametrize(
    ("steps", "device"),
    [
        pytest.param([(0, 10), (20, 30), (40, 80)], True, id="a last step that is longer stays"),
        pytest.param([(0, 10), (20, 30)], True, id="one step alone is followed"),
        pytest.param([(0, 10), (10, 20), (20, 25)], False, id="without a device marks are windows"),
    ],
)
def test_other_steps_stay(steps: Sequence[tuple[float, float]], device: bool) -> None:
    its = found(rank_of(0, steps, device=device))
    assert (its.cut_short, its.steps) == ([], len(steps))


@pytest.mark.parametrize(
    ("lasts_us", "computes_us", "cut"),
    [
        pytest.param(9_800, 6_000, [3], id="2 % of a step are lacking"),
        pytest.param(9_801, 6_000, [], id="less is lacking"),
        pytest.param(9_000, 5_001, [], id="it computes for less, and lacks little else"),
        pytest.param(9_000, 5_200, [3], id="it computes for less as well"),
    ],
)
def test_a_step_is_cut_short_if_it_and_its_time_without_compute_are_shorter(
    lasts_us: int, computes_us: int, cut: list[int]
) -> None:
    """The others last 10 ms or more, of which 4 ms are without compute; one is incomplete and follows all the same."""
    lengths, computes = [10_000, 12_000, 10_500, lasts_us], [6_000, 8_000, 6_500, computes_us]
    begins = np.cumsum([0, *lengths[:3]]).tolist()
    begins[3] += 5_000  # after a step that was not recorded
    windows = [
        StepWindow(step=number, recording=0, window=(begin, begin + length), complete=True)
        for number, (begin, length) in enumerate(zip(begins, lengths, strict=True))
    ]
    steps = [
        {0: (at, Breakdown(window_ns=length, compute_ns=compute))}
        for at, length, compute in zip(windows, lengths, computes, strict=True)
    ]
    cut_off = StepWindow(step=9, recording=0, window=(begins[2] + lengths[2], begins[3]), complete=False)
    assert cut_short(steps, {0: [*windows[:3], cut_off, windows[3]]}, {}) == cut


@pytest.mark.parametrize(
    ("lengths_ms", "cut"),
    [
        pytest.param([(20, 20, 9), (20, 20, 9), (20, 20, 9)], [2], id="shorter on all ranks"),
        pytest.param([(20, 9, 9), (20, 20, 9), (20, 20, 9)], [2], id="on most"),
        pytest.param([(98, 9, 9), (9, 98, 9), (9, 98, 9)], [], id="one rank paused, others wait in the next step"),
    ],
)
def test_a_step_is_cut_short_if_it_is_shorter_on_half_of_the_ranks(
    lengths_ms: list[Sequence[int]], cut: list[int]
) -> None:
    steps: list[dict[int, tuple[StepWindow, Breakdown]]] = [{}, {}, {}]
    for rank, own in enumerate(lengths_ms):
        begins = np.cumsum([0, *own[:2]]).tolist()
        for number, (begin, length) in enumerate(zip(begins, own, strict=True)):
            window = (begin * MS, (begin + length) * MS)
            at = StepWindow(step=number, recording=0, window=window, complete=True)
            steps[number][rank] = at, Breakdown(window_ns=length * MS, compute_ns=6 * MS)
    every = {rank: [step[rank][0] for step in steps] for rank in range(3)}
    assert cut_short(steps, every, {}) == cut


@pytest.mark.parametrize(
    ("second_us", "lasts_us", "behind_us", "cut"),
    [
        pytest.param(12_000, 10_900, (200, 200), [2], id="both end with 2 % of the shorter one"),
        pytest.param(12_000, 11_000, (200, 300), [2], id="it is as long as the mean of both"),
        pytest.param(12_000, 11_001, (200, 300), [], id="it is longer: what it lost itself counts"),
        pytest.param(12_000, 10_900, (199, 900), [], id="one ends with less"),
        pytest.param(12_000, 10_900, (900, 0), [], id="one paused"),
        pytest.param(12_500, 10_900, (200, 200), [2], id="they differ by a quarter"),
        pytest.param(12_501, 10_900, (200, 200), [], id="by more"),
    ],
)
def test_the_last_of_three_steps_is_cut_short_if_both_others_end_behind_their_work(
    second_us: int, lasts_us: int, behind_us: tuple[int, int], cut: list[int]
) -> None:
    """The first lasts 10 ms; the last one, no shorter, has as much time without compute."""
    begins = [0, 10_000, 10_000 + second_us, 10_000 + second_us + lasts_us]
    steps = [
        {
            0: (
                StepWindow(step=number, recording=0, window=(begin, end), complete=True, ended_ns=end - behind),
                Breakdown(window_ns=end - begin, compute_ns=6_000),
            )
        }
        for number, (begin, end, behind) in enumerate(zip(begins, begins[1:], (*behind_us, 0), strict=False))
    ]
    assert cut_short(steps, {0: [step[0][0] for step in steps]}, {}) == cut


def unmarked_last(ended_ms: int) -> RankTimeline:
    """Return three steps of which the last one is not marked, each with eight kernels of 1 ms from its begin on; those
    of the last one end with the recording."""
    names = [f"forward {at}" for at in range(8)]
    begins = (0, 20, 40)
    work = [
        {"name": name, "step": None if begin == begins[-1] else begin // 20, "launch_ns": EPOCH_NS + begin * MS,
         "start_ns": EPOCH_NS + (begin + at) * MS, "end_ns": EPOCH_NS + (begin + at + 1) * MS}
        for begin in begins for at, name in enumerate(names[: ended_ms - begin])
    ]  # fmt: skip
    marks = [
        {"step": at, "start_ns": EPOCH_NS + 20 * at * MS, "end_ns": EPOCH_NS + 20 * (at + 1) * MS} for at in (0, 1)
    ]
    return rank_timeline(work=work, steps=marks, basis="trace", lanes=[{}, {}])


def test_a_step_that_an_unmarked_one_follows_is_whole() -> None:
    """Both marked windows last 20 ms, of which 12 idle: without the unmarked one, the second would last 8."""
    its = found(unmarked_last(48))
    assert (its.cut_short, its.steps, its.time_ns, its.idle_fraction) == ([], 2, 40 * MS, pytest.approx(0.6))
    assert found(unmarked_last(47)).cut_short == [1]


@pytest.mark.parametrize(
    ("begin_ms", "end_ms", "busy_ms", "cut"),
    [
        pytest.param(20, 34.5, 9, [1], id="its mark ends half of what it lacks after its window"),
        pytest.param(20, 34.4, 9, [], id="less"),
        pytest.param(14.5, 29, 9, [1], id="its mark begins so long before its window"),
        pytest.param(14.6, 29, 9, [], id="less before"),
        pytest.param(5, 29, 20, [], id="the host runs ahead, of a device that works for the step before"),
        pytest.param(5, 23, 9, [1], id="it ends before its window, and began while nothing was to do"),
        pytest.param(21, 28, 9, [], id="it is shorter than its window"),
    ],
)
def test_beside_a_single_followed_step_marks_prove_that_the_last_one_is_cut_short(
    begin_ms: float, end_ms: float, busy_ms: int, cut: list[int]
) -> None:
    """By hand: a window of 20 ms, of which 6 are compute, then one of 9 ms that lacks 11 ms."""
    timeline = rank_of(0, FETCHED[:2], device=True)
    ends, spans = [EPOCH_NS + 10 * MS, EPOCH_NS + round(end_ms * MS)], timeline.spans.end_ns.copy()
    spans[timeline.spans.kind.argmax()] = EPOCH_NS + busy_ms * MS  # the first collective
    its = found(
        replace(
            timeline,
            steps=replace(
                timeline.steps, start_ns=np.array([EPOCH_NS, EPOCH_NS + round(begin_ms * MS)]), end_ns=np.array(ends)
            ),
            spans=replace(timeline.spans, end_ns=spans),
        )
    )
    assert its.cut_short == cut


def idles(number: int) -> list[Kernel | Sent]:
    """Return a step with 200 us before its first compute, as its mark says, and 300 us after all that it launched."""
    return [Kernel(start=200, end=600), Sent(start=600, end=700 if number else 750)]


def test_all_but_medians_goes_by_the_step_that_another_one_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows of 1,000 and of 500 us: the mark of the second lasts 500 us longer than it."""
    monkeypatch.setattr("tests.support.step_cases.STEPS", 2)
    analysis = analyze(made(idles))
    assert analysis.throughput is not None
    assert analysis.throughput.cut_short == analysis.headline.causes_cut == [1]
    assert analysis.throughput.exposed_fraction == pytest.approx(0.15)
    said = "and causes are of step 0, which takes 1.000 ms, 0.150 ms of it exposed.\n"
    assert f"No marked step follows step 1: it lacks what the next one begins with, {said}" in render(analysis)
    saves = Recommendation(
        id="x", title="", verdict="", predicted_gain_ns=100 * US, gain_low_ns=None, gain_high_ns=None,
        confidence="measured", memory_bytes=None, changes_numerics=False, apply={}, verify="",
    )  # fmt: skip
    costed = with_costs(replace(analysis, recommendations=[saves])).recommendations[0]
    assert costed.gpu_hours_a_day == pytest.approx(0.1 * 2 * 24), "of a step of 1,000 us, not of the median of both"


def test_the_mean_step_is_one_in_rates_headline_and_hours() -> None:
    """Steps of 20 and 24 ms, and one of 9 that is cut short: 22 ms in the mean, on the rank and of the job."""
    saves = Recommendation(
        id="x", title="", verdict="", predicted_gain_ns=11 * MS, gain_low_ns=None, gain_high_ns=None,
        confidence="measured", memory_bytes=None, changes_numerics=False, apply={}, verify="",
    )  # fmt: skip
    analysis = analyzed(rank_of(0, [(0, 10), (20, 30), (44, 54)], {"tokens": [8, 8, 8]}, device=True))
    costed = with_costs(replace(analysis, recommendations=[saves]))
    its = costed.throughput
    assert its is not None
    assert its.tokens is not None
    assert its.tokens.per_second == pytest.approx(8 / 0.022)
    lengths = [each.step_ns for each in costed.headline.job_steps if each.step not in its.cut_short]
    assert sum(lengths) / len(lengths) == (its.time_ns or 0) / its.steps == 22 * MS
    assert costed.recommendations[0].gpu_hours_a_day == pytest.approx(11 / 22 * 24)
    assert its.exposed_gpu_hours_a_day == pytest.approx(3 / 22 * 24)
    assert its.idle_gpu_hours_a_day == pytest.approx((11 + 15) / 44 * 24)


def test_causes_of_all_steps_and_gpu_hours_are_of_the_same_steps() -> None:
    costed = with_costs(analyzed(rank_of(0, FETCHED, device=True)))
    its = costed.throughput
    assert its is not None
    assert causes_of_all_steps(costed).total() == 6 * MS
    idle = its.idle_causes_gpu_hours_a_day
    assert sum(idle.values()) == pytest.approx(its.idle_gpu_hours_a_day) == pytest.approx(22 / 40 * 24)


@pytest.mark.parametrize(
    ("last", "cut"),
    [
        pytest.param({"dependency": 0, "tail": 100}, [3], id="the next step, which was not recorded, would wait"),
        pytest.param({"dependency": 74, "tail": 26}, [3], id="5 % of 106 have another cause than in any step before"),
        pytest.param({"dependency": 75, "tail": 26}, [], id="less has"),
        pytest.param({"dependency": 80, "tail": 30}, [], id="it has the other causes as well, to a hundredth"),
        pytest.param({"dependency": 0, "tail": 117}, [], id="it exposes more than the others"),
        pytest.param({"dependency": 0, "tail": 89}, [], id="it exposes less than the others"),
    ],
)
def test_the_causes_of_a_step_that_no_step_follows_are_left_out_where_its_tail_is_another_cause_elsewhere(
    last: dict[str, int], cut: list[int]
) -> None:
    """The others expose 100, 106 and 100 ns, of which 20 at most are their tail: of other causes 80 at least."""
    steps = [
        {
            0: (
                StepWindow(step=number, recording=0, window=(1_000 * number, 1_000 * (number + 1)), complete=True),
                Breakdown(exposed_comm_ns=sum(causes.values()), causes=causes),
            )
        }
        for number, causes in enumerate(
            [{"dependency": 80, "tail": 20}, {"dependency": 86, "tail": 20}, {"dependency": 85, "tail": 15}, last]
        )
    ]
    windows = {0: [step[0][0] for step in steps]}
    assert causes_cut(steps, windows) == cut
    followed = {0: [*windows[0], StepWindow(step=4, recording=0, window=(4_000, 4_100), complete=False)]}
    assert causes_cut(steps, followed) == []


@pytest.mark.parametrize(
    ("last", "cut"),
    [
        pytest.param([(100, {"dependency": 20, "tail": 80}), (102, {"dependency": 12, "tail": 90})], [1], id="moved"),
        pytest.param([(103, {"dependency": 20, "tail": 83}), (102, {"dependency": 12, "tail": 90})], [], id="exposes"),
        pytest.param([(100, {"dependency": 20, "tail": 80}), (102, {"dependency": 78, "tail": 24})], [], id="one rank"),
        pytest.param([(100, {"dependency": 76, "tail": 24}), (102, {"dependency": 12, "tail": 90})], [], id="little"),
        pytest.param([(100, {"dependency": 20, "tail": 80})], [], id="other ranks"),
    ],
)
@pytest.mark.parametrize("communicates", [1.0, 1.03])
def test_beside_one_followed_step_causes_are_cut_where_as_much_is_exposed_on_each_rank(
    last: Sequence[tuple[int, dict[str, int]]], cut: list[int], communicates: float
) -> None:
    """The followed step exposes 100 ns of 200 ns of calls on each of two ranks, of which 20 are its tail."""
    of_steps = [[(100, {"dependency": 80, "tail": 20})] * 2, last]
    steps = [
        {
            rank: (
                StepWindow(step=number, recording=0, window=(1_000 * number, 1_000 * (number + 1)), complete=True),
                Breakdown(exposed_comm_ns=ns, comm_ns=round(200 * (communicates if number else 1)), causes=causes),
            )
            for rank, (ns, causes) in enumerate(of_ranks)
        }
        for number, of_ranks in enumerate(of_steps)
    ]
    windows = {rank: [step[rank][0] for step in steps if rank in step] for rank in (0, 1)}
    windows[1] = windows[1] if len(last) > 1 else windows[0]
    assert causes_cut(steps, windows) == (cut if communicates == 1 else [])


GATHERED: Final = 3
"""The last of so many steps is followed by none."""


def gathers(number: int) -> list[Kernel | Sent]:
    """Return a step that ends with a gather of what the optimizer has updated: the next step's compute waits for it."""
    return [
        Kernel(start=0, end=600),
        Kernel(start=600, end=700, name="optimizer"),
        Sent(start=700, end=1_000, op="all_gather"),
    ]


def test_causes_of_the_median_step_and_of_all_are_those_of_followed_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.step_cases.STEPS", GATHERED + 1)
    analysis = analyze(made(gathers))
    head = analysis.headline
    assert head.exposed_comm_ns == 300 * US
    assert [info.steps[-1].causes for info in analysis.ranks] == [{"tail": 300 * US}] * 2
    assert head.causes_cut == [GATHERED]
    assert head.causes == {"dependency": 300 * US}
    assert causes_of_all_steps(analysis) == {"dependency": 2 * GATHERED * 300 * US}
    assert analysis.throughput is not None
    assert analysis.throughput.cut_short == []
    assert "of whole steps" in exposed_causes_text(analysis)


def delayed(timeline: RankTimeline, by_ms: float) -> RankTimeline:
    """Return the rank with a first mark, and a recording, that begin so much earlier than its first work."""
    by = np.zeros(timeline.steps.start_ns.size, np.int64)
    by[0] = by_ms * MS
    return replace(
        timeline,
        steps=replace(timeline.steps, start_ns=timeline.steps.start_ns - by),
        recordings=replace(timeline.recordings, start_ns=timeline.recordings.start_ns - by[:1]),
    )


def test_what_lies_before_the_first_compute_is_named_with_the_steps_that_hours_are_of() -> None:
    steps = [(0, 100), (102, 202), (204, 304), (306, 406)]
    analysis = analyzed(delayed(rank_of(0, steps, device=True), 80), delayed(rank_of(1, steps, device=True), 60))
    its = analysis.throughput
    assert its is not None
    assert its.lead is not None
    assert (its.lead.step, its.lead.quiet_ns) == (0, 70 * MS)
    said = " ".join(lines(its, analysis.headline))
    assert said.endswith(
        "over 3 of 4 steps, without step 3, which no marked step follows, and without 70.000 ms between the begin "
        "of step 0 and its first launch: what devices did then was not recorded."
    )
    begun_apart = replace(analysis.headline, causes={"start_of_recording": MS})
    said = " ".join(lines(its, begun_apart))
    assert "which no marked step follows, and without the start of the recording, and without 70.000 ms" in said


def test_a_lead_that_is_no_longer_than_the_idle_time_of_other_steps_is_in_their_windows() -> None:
    assert found(delayed(rank_of(0, FETCHED, device=True), 10)).lead is None
    assert found(delayed(rank_of(0, FETCHED, device=True), 13.9)).lead is None
    assert found(delayed(rank_of(0, FETCHED, device=True), 14)).lead is not None


def test_a_lead_ends_with_the_first_launch_however_late_its_work_begins() -> None:
    """The work of what is launched at once begins 40 ms later: the device was busy with what came before."""
    timeline = delayed(rank_of(0, FETCHED, device=True), 40)
    launched = timeline.spans.launch_ns.copy()
    launched[timeline.spans.start_ns.argmin()] = timeline.steps.start_ns[0] + 5 * MS
    assert found(replace(timeline, spans=replace(timeline.spans, launch_ns=launched))).lead is None


def test_work_of_the_device_in_a_lead_is_no_part_of_it() -> None:
    """Of 40 ms before the first launch the device works for 20 on what was launched before the step."""
    timeline = delayed(rank_of(0, FETCHED, device=True), 40)
    begin = int(timeline.steps.start_ns[0])
    spans = {name: getattr(timeline.spans, name) for name in timeline.spans.__struct_fields__}
    before = {name: column[:1].copy() for name, column in spans.items()}
    before |= {"start_ns": np.array([begin]), "end_ns": np.array([begin + 20 * MS]), "step": np.array([NONE])}
    before["launch_ns"] = np.array([begin - MS])
    joined = {name: np.concatenate([before[name], column]) for name, column in spans.items()}
    lead = found(replace(timeline, spans=replace(timeline.spans, **joined))).lead
    assert lead is not None
    assert lead.quiet_ns == 20 * MS


def shortened(number: int) -> list[Kernel | Sent]:
    """Return such a step; of what the last one gathers a third is recorded, for which nothing that is waits."""
    *compute, gather = gathers(number)
    return [*compute, replace(gather, end=800)] if number == GATHERED else [*compute, gather]


def test_a_step_that_is_cut_short_has_no_part_in_causes_and_means(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.support.step_cases.STEPS", GATHERED + 1)
    run = made(shortened)
    together = match_and_align(run)
    analysis = analyze(run, together)
    head = analysis.headline
    assert [info.steps[-1].causes for info in analysis.ranks] == [{"tail": 100 * US}] * 2
    assert analysis.throughput is not None
    assert analysis.throughput.cut_short == head.causes_cut == [GATHERED]
    assert head.causes == {"dependency": 300 * US}
    given = RuleInput.of(run, analysis, together)
    assert given.united_ns(analysis.collectives)[0] == 300 * US, "of the whole steps, not 250"
    assert given.numbers == {0: (0, 1, 2), 1: (0, 1, 2)}
    assert given.steps == GATHERED + 1, "sums of calls are of all complete steps"
