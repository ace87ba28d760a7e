"""The mean step stands first where the median one misleads, and what losses of a day are divided by is one time."""

from collections.abc import Sequence
from statistics import median
from typing import Any, Literal

import pytest
from msgspec.structs import replace

from overlapscope.analysis.job_step.headline import PARTS
from overlapscope.analysis.mean_step import with_mean_step
from overlapscope.analysis.result import (
    Analysis,
    Recommendation,
    causes_of_all_steps,
    overlapping_ns,
    usual_causes,
    with_costs,
    without_outliers,
)
from overlapscope.report.formats import json, junit, openmetrics
from overlapscope.report.sheet.analysis import sheet_of
from overlapscope.report.sheet.charts import charts_of
from overlapscope.report.sheet.document import decoded
from overlapscope.report.text.analysis import render
from overlapscope.report.text.exposed_causes import exposed_causes_text
from overlapscope.report.text.idle_time import idle_text
from overlapscope.report.text.main_sentences import sentence
from overlapscope.report.text.throughput import lines
from overlapscope.report.trackers import totals
from tests.unit.report.test_first_sentences import MS, recorded, with_lengths


def with_step(analysis: Analysis, rank: int, at: int, **figures: Any) -> Analysis:
    """Return the analysis with other figures of one step of a rank."""
    ranks = list(analysis.ranks)
    steps = list(ranks[rank].steps)
    steps[at] = replace(steps[at], **figures)
    ranks[rank] = replace(ranks[rank], steps=steps)
    return replace(analysis, ranks=ranks)


def paused_once() -> Analysis:
    """Return three steps of 94 ms: rank 0 pauses for 26 ms in the first, and rank 1 waits for that in the next one."""
    analysis = with_lengths((120, 92, 94), (94, 118, 94), (120, 118, 94))
    for rank, waited_ms in ((0, (1, 1, 1)), (1, (1, 25, 1))):
        for at, ms in enumerate(waited_ms):
            causes = {"peer_host": ms * MS, "dependency": 3 * MS}
            idle_ns = (26 if (rank, at) == (0, 0) else 1) * MS
            analysis = with_step(
                analysis, rank, at, causes=causes, idle_ns=idle_ns, idle_causes={},
                compute_ns=round(85 * MS), comm_ns=4 * MS,
            )  # fmt: skip
    steps = [
        replace(each, exposed_comm_ns=ms * MS) for each, ms in zip(analysis.headline.job_steps, (4, 16, 4), strict=True)
    ]
    head = replace(
        analysis.headline, job_steps=steps, exposed_comm_ns=4 * MS, causes={"dependency": 3 * MS, "peer_host": MS}
    )
    return replace(analysis, headline=head)


def test_half_of_the_steps_set_the_median_where_it_is_longer_by_a_tenth() -> None:
    found = without_outliers(paused_once())
    assert found is not None
    assert (found.outliers, found.step_ns) == ([3, 4], 94 * MS)
    head = paused_once().headline
    assert without_outliers(replace(paused_once(), headline=replace(head, step_ns=103 * MS))) is None


def test_causes_are_of_all_steps_where_a_single_one_is_no_outlier() -> None:
    """Of 18 + 30 ms in all steps 30 are waiting, and of the median step 1 of 4."""
    analysis = paused_once()
    assert usual_causes(analysis) == causes_of_all_steps(analysis) == {"peer_host": 30 * MS, "dependency": 18 * MS}
    rows = exposed_causes_text(analysis).splitlines()
    assert "of all steps" in rows[0]
    assert rows[1].startswith("wait")


def on_device(analysis: Analysis, *advice: Recommendation, **figures: Any) -> Analysis:
    assert analysis.throughput is not None
    cost = replace(analysis.throughput, on_device=True, devices=2, **figures)
    run = replace(analysis.run, has_device=True)
    return with_mean_step(with_costs(replace(analysis, run=run, throughput=cost, recommendations=list(advice))))


def saving(per: Literal["step", "recording"], ns: int) -> Recommendation:
    return Recommendation(
        id="x", title="", verdict="", predicted_gain_ns=ns, gain_low_ns=None, gain_high_ns=None, per=per,
        confidence="measured", memory_bytes=None, changes_numerics=False, apply={}, verify="",
    )  # fmt: skip


def test_overlapping_steps_take_the_mean_of_what_each_rank_takes() -> None:
    """100 ms by the longest rank and 96 by the other; those of the job 105 ms each."""
    analysis = with_lengths((100, 100, 100), (90, 96, 102), (105, 105, 105))
    analysis = replace(analysis, headline=replace(analysis.headline, pace_ns=None))
    given = on_device(analysis, steps=3, time_ns=300 * MS, exposed_fraction=0.5, cut_short=[])
    assert overlapping_ns(given) == 98 * MS
    assert overlapping_ns(replace(given, run=replace(given.run, has_device=False))) == 98 * MS, "of CPU runs, too"
    first, second, *others = sentence(given).splitlines()
    assert first == (
        "In the mean 49.000 ms of a 98.000 ms step is exposed communication (50.0 %): steps of the ranks overlap."
    )
    assert second.startswith("In the median 30.000 ms of a 105.000 ms step is exposed communication")
    assert not any("own window" in line for line in others)


def test_of_overlapping_steps_it_is_said_what_the_mean_lacks_and_what_the_path_holds_too_much() -> None:
    """Windows of ranks take 98 ms in the mean, those of the job 105 ms each."""
    analysis = with_lengths((100, 100, 100), (90, 96, 102), (105, 105, 105))
    causes = {"start_of_recording": MS, "dependency": MS}
    ranks = [replace(info, steps=[replace(each, causes=causes) for each in info.steps]) for info in analysis.ranks]
    analysis = replace(analysis, ranks=ranks, headline=replace(analysis.headline, pace_ns=None, causes=causes))
    given = with_mean_step(on_device(analysis, steps=3, time_ns=300 * MS, exposed_fraction=0.5, cut_short=[]))
    said = " ".join(render(given).split())
    assert "(50.0 %), without the start of the recording: steps of the ranks overlap." in said
    assert "start of the recording" not in "".join(exposed_causes_text(given).split("Milliseconds")[:1])
    own = {3: 95, 4: 98, 5: 101}[given.critical_path.median_step or 0]
    assert f"its begin on one rank to its end on another; its ranks' own windows take {own}.000 ms in the mean." in said


@pytest.mark.parametrize(("share", "words"), [(0.5, ", and 50.0 % of the time is exposed."), (0.29, ".")])
def test_beside_the_pace_of_overlapping_steps_stands_the_share_that_hours_are_of(share: float, words: str) -> None:
    """Of steps of 105 ms, which begin every 96 ms, 30 are exposed: 28.6 %."""
    analysis = with_lengths((100, 100, 100), (90, 96, 102), (105, 105, 105))
    analysis = replace(analysis, headline=replace(analysis.headline, pace_ns=96 * MS))
    given = on_device(
        analysis, steps=3, time_ns=300 * MS, exposed_fraction=share, exposed_gpu_hours_a_day=share * 48, cut_short=[]
    )
    assert f"the job begins one every 96.000 ms{words}" in sentence(given).replace("\n", " ")


@pytest.mark.parametrize("lengths", [(100, 100, 100, 100), (100, 100, 400, 400)])
def test_hours_of_what_a_step_saves_are_of_the_mean_step(lengths: Sequence[int]) -> None:
    given = on_device(with_lengths(lengths, lengths, lengths), saving("step", 10 * MS))
    mean_ms = sum(lengths) / len(lengths)
    assert given.recommendations[0].gpu_hours_a_day == pytest.approx(10 / mean_ms * 2 * 24)


def test_hours_of_what_a_recording_saves_are_of_what_each_rank_recorded() -> None:
    """Ranks recorded 100 and 60 ms; 10 ms of the second are due to its start."""
    analysis = recorded()
    wholes = [(100, {}), (60, {"start_of_recording": 10 * MS})]
    ranks = [
        replace(info, whole=replace(info.whole, window_ns=ms * MS, causes=causes, idle_causes={}))
        for info, (ms, causes) in zip(analysis.ranks, wholes, strict=True)
    ]
    given = on_device(replace(analysis, ranks=ranks), saving("recording", 15 * MS))
    assert given.recommendations[0].gpu_hours_a_day == pytest.approx(15 / 75 * 2 * 24)


def test_of_a_recording_the_share_of_what_a_rank_recorded_is_said() -> None:
    head = replace(
        recorded().headline, window="recording", step_ns=100 * MS, exposed_comm_ns=60 * MS, exposed_fraction=0.6,
        start_of_recording_ns=15 * MS, outside_ns=5 * MS,
    )  # fmt: skip
    assert "; of its own 80.000 ms 75.0 % are exposed." in sentence(replace(recorded(), headline=head))


def losing(*lost_ms: int) -> Analysis:
    """Return steps with so much exposed time, each beside 100 ms of compute."""
    lengths = [100 + ms for ms in lost_ms]
    analysis = with_lengths(lengths, lengths, lengths)
    steps = [
        replace(each, exposed_comm_ns=ms * MS, idle_ns=0)
        for each, ms in zip(analysis.headline.job_steps, lost_ms, strict=True)
    ]
    head = replace(analysis.headline, job_steps=steps, exposed_comm_ns=2 * MS, idle_ns=0, step_ns=102 * MS)
    return with_mean_step(replace(analysis, headline=replace(head, pace_ns=None), throughput=None))


@pytest.mark.parametrize(
    ("lost_ms", "words"),
    [
        (
            (2, 200, 100, 2, 2),
            "In the mean 61.200 ms of a 161.200 ms step is exposed communication (38.0 %) and 0.000 ms idle, most of "
            "it in 2 of 5 steps.",
        ),
        ((200, 2, 100, 2, 2), None),  # besides the first only one loses much
        ((200, 2, 2, 2, 2), None),
        ((2, 2, 200, 2, 2), None),  # one pause
        ((2, 12, 12, 2, 2), None),  # the mean step loses little
    ],
)
def test_the_mean_step_stands_first_where_several_steps_lose_what_the_median_one_does_not(
    lost_ms: Sequence[int], words: str | None
) -> None:
    said = sentence(losing(*lost_ms)).splitlines()
    assert said[0].startswith("2.000 ms of a 102.000 ms step" if words is None else words)
    assert said[1].startswith("In the median 2.000 ms of a 102.000 ms step") is (words is not None)


@pytest.mark.parametrize(("copied_ms", "said"), [(10, True), (4, False), (1, False)])
def test_copies_are_named_where_they_are_the_largest_loss(copied_ms: int, said: bool) -> None:
    """Of steps of 100 ms, of which 5 are exposed and 1 is idle."""
    analysis = with_lengths((100,) * 3, (100,) * 3, (100,) * 3)
    steps = [
        replace(each, copy_only_ns=copied_ms * MS, exposed_comm_ns=5 * MS, idle_ns=MS, outside_ns=0,
                start_of_recording_ns=0)
        for each in analysis.headline.job_steps
    ]  # fmt: skip
    head = replace(analysis.headline, job_steps=steps, exposed_comm_ns=5 * MS, idle_ns=MS, copy_only_ns=copied_ms * MS)
    given = on_device(
        replace(analysis, headline=head), exposed_gpu_hours_a_day=0.05 * 48, idle_gpu_hours_a_day=0.01 * 48,
        price_per_gpu_hour=2.0,
    )  # fmt: skip
    assert ("; memcpy alone takes 10.000 ms." in sentence(given)) is said
    assert (", 4.8 GPU-hours memcpy alone (9.60)" in " ".join(lines(given.throughput, head))) is said
    assert ("memcpy alone" in sentence(given)) is said


def of_steps(lengths: Sequence[int], exposed_ms: Sequence[int], idle_ms: Sequence[int]) -> Analysis:
    """Return an analysis of such steps, as long on both ranks: as much is overlapped as exposed, the rest computes."""
    analysis = with_lengths(lengths, lengths, lengths)
    for rank in range(2):
        for at, (exposed, idle) in enumerate(zip(exposed_ms, idle_ms, strict=True)):
            analysis = with_step(
                analysis, rank, at, exposed_comm_ns=exposed * MS, comm_ns=2 * exposed * MS, overlapped_ns=exposed * MS,
                idle_ns=idle * MS, causes={"dependency": exposed * MS}, idle_causes={"launch_latency": idle * MS},
                exposed_fraction=exposed / lengths[at], copy_only_ns=None,
            )  # fmt: skip
    steps = [
        replace(each, exposed_comm_ns=exposed * MS, overlapped_ns=exposed * MS, idle_ns=idle * MS, copy_only_ns=0,
                start_of_recording_ns=0, outside_ns=0, compute_only_ns=(length - 2 * exposed - idle) * MS)
        for each, length, exposed, idle in zip(
            analysis.headline.job_steps, lengths, exposed_ms, idle_ms, strict=True
        )
    ]  # fmt: skip
    exposed_ns, idle_ns, step_ns = (round(median(each) * MS) for each in (exposed_ms, idle_ms, lengths))
    head = replace(
        analysis.headline, job_steps=steps, exposed_comm_ns=exposed_ns, overlapped_ns=exposed_ns, idle_ns=idle_ns,
        step_ns=step_ns, pace_ns=None, causes={"dependency": exposed_ns}, idle_causes={"launch_latency": idle_ns},
    )  # fmt: skip
    return with_mean_step(replace(analysis, headline=head, throughput=None))


def of_two_kinds() -> Analysis:
    """Return four steps of 100 and 150 ms in turn, of which 10 and 40 ms are exposed, 4 and 0 idle."""
    return of_steps((100, 150, 100, 150), (10, 40, 10, 40), (4, 0, 4, 0))


def of_three_and_two() -> Analysis:
    """Return three steps of 100 ms and two of 150 ms, with as much: of 600 ms 110 are exposed and 12 idle."""
    return of_steps((100, 150, 100, 150, 100), (10, 40, 10, 40, 10), (4, 0, 4, 0, 4))


def test_where_steps_are_of_two_kinds_figures_are_means() -> None:
    """The median step, of 125 ms, is of neither kind."""
    analysis = of_two_kinds()
    assert sentence(analysis).splitlines()[0] == (
        "In the mean 25.000 ms of a 125.000 ms step is exposed communication (20.0 %) and 2.000 ms idle; 2 steps take "
        "100.000 ms, 2 others 150.000 ms."
    )
    assert "mean ms a step" in exposed_causes_text(analysis).splitlines()[0]
    assert "a step in the mean of 4, 2.000 ms in the median one" in idle_text(analysis)
    (row, *_) = [line for line in render(analysis).splitlines() if line.startswith("rank 0 mean of 4 steps")]
    assert row.split()[6:] == [
        "25.000", "25.000", row.split()[8], "n/a", "2.000", "125.000", "20.0", "%", "50.0", "%",
    ]  # fmt: skip


def test_where_steps_are_of_two_kinds_the_table_of_the_report_has_means() -> None:
    (table, *_) = sheet_of(of_two_kinds()).tables
    name, exposed, overlapped, *others = table.rows[0]
    assert (name, exposed, overlapped, others[-1]) == ("rank 0", "25.000", "25.000", "50.0 %")
    assert table.note == "Means of 4 steps."
    lengths = (100, 102, 101, 99)
    (table, *_) = sheet_of(with_lengths(lengths, lengths, lengths)).tables
    assert table.note == "Medians over complete steps; columns need not add up."


def test_every_output_has_the_same_mean_step() -> None:
    """The median step takes 100 ms, of which 10 are exposed; the mean one 120, and 22."""
    analysis = of_three_and_two()
    mean = analysis.mean_step
    assert mean is not None
    assert (mean.because, mean.steps, mean.step_ns, mean.exposed_comm_ns) == ("two_kinds", 5, 120 * MS, 22 * MS)
    assert (mean.causes, mean.idle_causes) == ({"dependency": 22 * MS}, {"launch_latency": 2_400_000})
    assert (mean.exposed_fraction, mean.overlap_efficiency) == (22 / 120, 0.5)
    assert sum(getattr(mean, part) or 0 for part in PARTS) == mean.step_ns

    shown = decoded(json.render(analysis).encode())
    assert isinstance(shown, Analysis)
    assert shown.mean_step == mean
    assert "22.000 ms of a 120.000 ms step" in sentence(analysis)
    by_rank, *_ = charts_of(analysis)
    assert by_rank.words.startswith("Means of 5 steps; most exposed on rank 0, 22.000 ms")
    why = next(each for each in charts_of(analysis) if each.title == "Why communication is exposed")
    assert (why.axis, why.series[0].values) == ("mean ms a step", (22.0,))
    metrics = openmetrics.render(analysis).splitlines()
    assert "overlapscope_job_exposed_comm_seconds 0.010000000" in metrics
    assert "overlapscope_job_mean_exposed_comm_seconds 0.022000000" in metrics
    assert 'overlapscope_mean_exposed_comm_seconds{rank="1"} 0.022000000' in metrics
    assert 'overlapscope_job_mean_exposed_by_cause_seconds{cause="dependency"} 0.022000000' in metrics
    assert ">exposed: 22.000 ms<" in junit.render(analysis)
    logged = totals(analysis)
    assert (logged["overlapscope/median_step_ms"], logged["overlapscope/mean_step_ms"]) == (100.0, 120.0)


def test_beside_means_no_milliseconds_are_said_to_be_of_the_median_step() -> None:
    """Of 48 GPU-hours 18 % are exposed; the median step gives 10 %, 4.8."""
    analysis = of_three_and_two()
    given = on_device(replace(analysis, throughput=recorded().throughput), exposed_gpu_hours_a_day=8.8, cut_short=[],
                      steps=5, time_ns=600 * MS)  # fmt: skip
    assert given.mean_step is not None
    (day,) = lines(given.throughput, given.headline, given.mean_step)
    assert day.endswith("over all 5 steps; the median step gives 4.8.")
    (day,) = lines(given.throughput, given.headline)
    assert "the median step, which milliseconds are of, gives 4.8" in day


def test_an_older_document_gets_its_mean_step_when_it_is_read() -> None:
    older = decoded(json.render(replace(of_three_and_two(), mean_step=None)).encode())
    assert isinstance(older, Analysis)
    assert older.mean_step == of_three_and_two().mean_step


def test_steps_of_one_kind_have_no_mean_step_in_any_output() -> None:
    analysis = of_steps((100, 102, 101, 99), (10, 10, 10, 10), (4, 4, 4, 4))
    assert analysis.mean_step is None
    assert "_mean_" not in openmetrics.render(analysis)
    assert not any("/mean_" in name for name in totals(analysis))
    assert "Medians of each part" in charts_of(analysis)[0].words


def test_where_few_steps_communicate_tables_are_of_the_mean_step() -> None:
    """One of four steps exposes 40 ms: the median one nothing."""
    analysis = of_steps((100, 140, 100, 100), (0, 40, 0, 0), (0, 0, 0, 0))
    analysis = with_mean_step(replace(analysis, headline=replace(analysis.headline, comm_ns=0)))
    assert analysis.mean_step is not None
    assert (analysis.mean_step.because, analysis.mean_step.step_ns) == ("few_communicate", 110 * MS)
    assert sentence(analysis).startswith("The median step (100.000 ms) communicates nothing; in the mean 10.000 of")
    assert exposed_causes_text(analysis).splitlines()[1].split()[-3:] == ["10.000", "100.0", "%"]
    assert any(line.startswith("rank 0 mean of 4 steps   10.000") for line in render(analysis).splitlines())


def test_the_mean_of_overlapping_steps_is_without_the_start_of_the_recording() -> None:
    """A step takes 98 ms, 10 of them for the start of the recording. Half of the others is exposed, as GPU-hours have
    it; the causes divide that."""
    analysis = with_lengths((100, 100, 100), (90, 96, 102), (105, 105, 105))
    for rank, at in ((rank, at) for rank in range(2) for at in range(3)):
        analysis = with_step(analysis, rank, at, causes={"dependency": 30 * MS, "start_of_recording": 10 * MS})
    analysis = replace(analysis, headline=replace(analysis.headline, pace_ns=None))
    mean = on_device(analysis, steps=3, time_ns=300 * MS, exposed_fraction=0.5, cut_short=[]).mean_step
    assert mean is not None
    assert (mean.because, mean.exposed_comm_ns, mean.causes) == ("steps_overlap", 44 * MS, {"dependency": 44 * MS})
    assert (mean.step_ns, mean.outside_ns) == (88 * MS, 0)
    unknown = on_device(analysis, steps=3, time_ns=300 * MS, exposed_fraction=None, cut_short=[])
    assert unknown.mean_step is not None
    assert (unknown.mean_step.exposed_comm_ns, unknown.mean_step.causes) == (None, {}), "as of ranks that were sampled"
    assert render(unknown)
    assert on_device(analysis, steps=3, time_ns=300 * MS, cut_short=[3, 4, 5]).mean_step is None


def test_steps_of_one_kind_have_medians() -> None:
    analysis = with_lengths((100, 102, 101, 99), (100, 102, 101, 99), (100, 102, 101, 99))
    assert not sentence(analysis).startswith("In the mean")
    assert any(line.startswith("rank 0 median of 4 steps") for line in render(analysis).splitlines())


def test_one_pause_that_makes_two_steps_of_the_job_long_makes_no_kinds() -> None:
    """Rank 0 pauses in its third step, rank 1 waits for it in its fourth: each has one long step."""
    analysis = with_lengths((100, 100, 150, 100, 100), (100, 100, 100, 150, 100), (100, 100, 150, 150, 100))
    assert with_mean_step(replace(analysis, throughput=None)).mean_step is None
    both = with_lengths((100, 100, 150, 150, 100), (100, 100, 150, 150, 100), (100, 100, 150, 150, 100))
    assert "3 steps take 100.000 ms, 2 others 150.000 ms" in sentence(with_mean_step(replace(both, throughput=None)))


@pytest.mark.parametrize(("last_ms", "said"), [(160, True), (130, False)])
def test_a_step_that_takes_much_of_the_time_is_said_beside_medians(last_ms: int, *, said: bool) -> None:
    """60 of 460 ms, or 30 of 430."""
    lengths = (100, 100, 100, last_ms)
    analysis = replace(with_lengths(lengths, lengths, lengths), throughput=None)
    takes = f"Step {analysis.headline.job_steps[-1].step} takes "
    line = f"{takes}160.000 ms: 60.000 ms more than the median one, 13.0 % of the time of all steps."
    shown = sentence(analysis).splitlines()
    assert (line in shown) is said
    assert any(each.startswith(takes) for each in shown) is said


def test_where_ranks_take_longest_in_turn_and_no_clock_is_known_the_mean_step_is_of_their_own_windows() -> None:
    """Each step takes as long as the longest of two windows: 105 ms, where a rank takes 98 in the mean."""
    analysis = with_lengths((100, 100, 100), (90, 96, 102), (105, 105, 105))
    head = replace(analysis.headline, pace_ns=None, steps_by="longest_window", longest_because="clocks")
    given = on_device(replace(analysis, headline=head), steps=3, time_ns=300 * MS, exposed_fraction=0.5, cut_short=[])
    assert sentence(given).splitlines()[0] == (
        "In the mean 49.000 ms of a 98.000 ms step is exposed communication (50.0 %): "
        "steps of the ranks take longest in turn."
    )
