"""The first sentences of an analysis: what the main figures are, and what they are of."""

from collections.abc import Sequence
from functools import cache
from statistics import median
from typing import Literal

import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope.advice.losses.largest_loss import largest_loss
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.job_step.headline import FewSteps, LongestBecause, few_communicate, quiet_steps
from overlapscope.analysis.mean_step import with_mean_step
from overlapscope.analysis.result import Analysis, CaptureCost, Recommendation, _without_outliers, with_costs
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text import analysis as analysis_text
from overlapscope.report.text import idle_time
from overlapscope.report.text.critical_path import critical_path_text
from overlapscope.report.text.main_sentences import sentence
from overlapscope.report.text.summary import CaptureSummary, render
from overlapscope_dashboards.views.overview import lead
from tests.conftest import ROOT

MS = 1_000_000


@cache
def recorded() -> Analysis:
    return overlapscope.load(ROOT / "traces" / "baseline").analysis()


def with_lengths(rank_0: Sequence[float], rank_1: Sequence[float], job: Sequence[int]) -> Analysis:
    """Return an analysis whose steps take so many milliseconds, on two ranks and of the job."""
    analysis = recorded()
    ranks = [
        replace(
            info, steps=[replace(step, window_ns=round(ms * MS)) for step, ms in zip(info.steps, own, strict=False)]
        )
        for info, own in zip(analysis.ranks, (rank_0, rank_1), strict=True)
    ]
    steps = [
        replace(step, step_ns=ms * MS, exposed_comm_ns=at * MS)
        for at, (step, ms) in enumerate(zip(analysis.headline.job_steps, job, strict=False))
    ]
    length = round(median(each.step_ns for each in steps))
    head = replace(analysis.headline, job_steps=steps, steps=len(steps), step_ns=length, exposed_comm_ns=30 * MS)
    return replace(analysis, ranks=ranks, headline=head)


TWICE = with_lengths((272, 806, 297), (236, 290, 765), (272, 808, 808))
"""One pause, which lies in one step of each rank and so in two steps of the job, which overlap."""


@pytest.mark.parametrize(
    ("analysis", "words"),
    [
        (TWICE, "Steps 4, 5 are outliers and set the median: of the others it is 272.000 ms, 0.000 ms of it exposed"),
        (
            with_lengths((10, 10, 50, 10), (10, 10, 10, 10), (10, 10, 50, 50)),
            "Step 5 is an outlier and sets the median: of the others it is 10.000 ms, 1.000 ms of it exposed",
        ),
        (with_lengths((10, 10, 50, 10), (10, 10, 10, 10), (10, 10, 50, 10)), None),
        (with_lengths((10, 20, 40), (10, 20, 40), (10, 20, 40)), None),  # none is an outlier
    ],
)
def test_outliers_that_set_the_median_are_said_with_what_the_other_steps_take(
    analysis: Analysis, words: str | None
) -> None:
    found = [line for line in sentence(analysis).splitlines() if "outlier" in line]
    assert found == ([] if words is None else [f"{words} communication."])


def test_the_summary_of_a_recording_says_what_a_step_takes_without_outliers() -> None:
    known = CaptureSummary(
        rank=0, host="", steps=3, step_ns=1.0, exposed_ns=1.0, hidden_ns=0.0, idle_ns=0.0, exposed_fraction=0.5
    )
    _, step, usual, *_ = render([known], 1, "r", "trace", [], TWICE).splitlines()
    assert "808.000 ms" in step
    assert usual == "                272.000 ms   without outliers (steps 4, 5), which set the median"
    assert "outliers" not in render([known], 1, "r", "trace", [], recorded())


def test_outliers_that_cost_more_than_exposed_communication_are_the_largest_loss() -> None:
    run = read_inputs([ROOT / "traces" / "baseline"])
    together = match_and_align(run)

    def title(analysis: Analysis) -> str:
        found = largest_loss(RuleInput.of(run, analysis, together), [])
        assert found
        return found.title

    assert title(TWICE).startswith(
        "Largest loss: outliers (steps 4, 5) make the median step 808 ms instead of 272 ms; 30 ms of it are exposed"
    )
    costly = replace(TWICE, headline=replace(TWICE.headline, exposed_comm_ns=537 * MS))  # 808 - 272 is 536
    assert title(costly).startswith("Largest loss outside compute: 537 ms of a 808 ms step are exposed communication")
    once = with_lengths((240, 240, 590, 240), (240, 240, 590, 240), (240, 240, 590, 240))  # 350 ms, and 4 times 30
    assert title(once).startswith(
        "Largest loss: step 5 takes 350 ms longer than the others; in the others, 30 ms of a 240 ms step are exposed"
    )
    always = replace(once, headline=replace(once.headline, exposed_comm_ns=90 * MS))
    assert title(always).startswith("Largest loss outside compute: 90 ms of a 240 ms step are exposed communication")
    twice = with_lengths((240, 590, 240, 240, 240), (240, 240, 240, 590, 240), (240, 590, 240, 590, 240))
    assert title(twice).startswith(
        "Largest loss: steps 4, 6 take together 700 ms longer than the others; in the others, 30"
    )
    one = with_lengths((240, 590, 240, 240, 240), (240, 240, 590, 240, 240), (240, 590, 590, 240, 240))
    waited_ms = (0, 0, 300, 0, 0)
    steps = [
        replace(step, causes={"peer_host": ms * MS}) for step, ms in zip(one.ranks[1].steps, waited_ms, strict=False)
    ]
    event = replace(one, ranks=[one.ranks[0], replace(one.ranks[1], steps=steps)])
    assert title(event).startswith("Largest loss: steps 4, 5 take together 400 ms longer"), (
        "350, and 50 but for waiting"
    )


def test_what_shortens_communication_does_not_name_a_step_that_costs_more() -> None:
    run = read_inputs([ROOT / "traces" / "baseline"])
    once = with_lengths((240, 240, 590, 240), (240, 240, 590, 240), (240, 240, 590, 240))
    alike = with_lengths((240, 240, 240, 240), (240, 240, 240, 240), (240, 240, 240, 240))
    for analysis, named in ((once, True), (alike, False)):
        given = RuleInput.of(run, analysis, match_and_align(run))
        (other,) = [each for each in [largest_loss(given, [])] if each]
        addressed = replace(other, id="embedding_tail", loss_ns=30 * MS)
        assert (largest_loss(given, [addressed]) is not None) == named
        larger = replace(other, id="data_loading", loss_ns=100 * MS)  # 400 ms in all steps, and the long one 350
        assert largest_loss(given, [larger]) is None


@pytest.mark.parametrize(
    ("because", "window", "words"),
    [
        ("clocks", "step", "The ranks' clocks cannot all be aligned: the step is"),
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
    analysis = with_mean_step(replace(recorded(), headline=few))
    said = (
        "The median step (100.000 ms) communicates nothing; in the mean 100.000 of 200.000 ms is exposed communication "
        "(50.0 %)."
    )
    assert sentence(analysis).splitlines()[:3] == [
        said,
        "Medians of 6 steps, means over 2 ranks.",
        "2 of 8 steps communicate and take 500.000 ms, the others 100.000 ms; in the mean 1.000 ms more is overlapped "
        "with compute.",
    ]
    assert lead(analysis).words == (said,)
    always = replace(few, comm_ns=1, exposed_comm_ns=1_000_000, job_steps=[others] * 8)
    assert sentence(with_mean_step(replace(analysis, headline=always))).startswith(
        "1.000 ms of a 100.000 ms step is exposed"
    )


@pytest.mark.parametrize(
    ("quiet", "loud", "few"),
    [
        pytest.param([0], [160], True, id="one of two, as with local SGD"),
        pytest.param([0.1, 0.1], [160, 162], True, id="of two kinds, all with a loss summed over ranks"),
        pytest.param([1, 1], [160], False, id="an outlier that waits"),
        pytest.param([0], [160, 160], False, id="most communicate"),
        pytest.param([20, 20], [160, 160], False, id="steps that all communicate"),
    ],
)
def test_where_half_of_the_steps_communicate_the_lengths_of_both_kinds_are_stated(
    quiet: list[float], loud: list[float], *, few: bool
) -> None:
    head, of = recorded().headline, recorded().headline.job_steps[0]
    steps = [
        replace(of, step=at, step_ns=round(200e6 + 1e6 * ms), exposed_comm_ns=round(1e6 * ms), overlapped_ns=0)
        for at, ms in enumerate([*quiet, *loud])
    ]
    medians = replace(head, exposed_comm_ns=80_000_000, overlapped_ns=0, comm_ns=80_000_000, job_steps=steps)
    found = few_communicate(medians)
    assert (found is not None) == few
    assert quiet_steps(medians) == (set(range(len(quiet))) if few else set())
    if found is not None:
        said = sentence(with_mean_step(replace(recorded(), headline=medians))).splitlines()
        assert said[0].startswith(f"{len(quiet)} of {len(steps)} steps communicate next to nothing; in the mean ")
        assert f"{len(loud)} of {len(steps)} steps communicate and take 36" in said[2]
        assert f"the others {found.quiet_ns / 1e6:.3f} ms" in said[2]


def test_a_path_that_communicates_where_most_steps_do_not_is_no_typical_one() -> None:
    found = recorded().critical_path
    few = FewSteps(communicate=1, steps=5, step_ns=1e6, exposed_comm_ns=1e5, overlapped_ns=0.0)
    assert found.median_step is not None
    assert f"step {found.median_step} (a typical step)" in critical_path_text(found)
    said = f"step {found.median_step} (it communicates, unlike most: 1 of 5 steps do)"
    assert said in critical_path_text(found, few)
    silent = replace(found, steps=[replace(each, parts={"compute": each.length_ns}) for each in found.steps])
    assert "(a typical step)" in critical_path_text(silent, few)


def test_where_steps_of_ranks_lie_apart_a_path_says_how_long_that_of_a_rank_is() -> None:
    found = recorded().critical_path
    text = " ".join(critical_path_text(found, None, 70 * MS).split())
    assert "its begin on one rank to its end on another; its ranks' own windows take 70.000 ms in the mean." in text
    assert "on another" not in critical_path_text(found)


@pytest.mark.parametrize(
    ("outside_ms", "words"),
    [
        (10, "A rank's own window is shorter than the step of the job, by 10.000 ms as ranks begin and end apart."),
        (
            40,
            "A rank's own window is shorter than the step of the job, by 40.000 ms as ranks begin and end apart; of "
            "its own 60.000 ms 25.0 % are exposed.",
        ),
    ],
)
def test_what_of_a_ranks_own_step_is_exposed_is_said_where_it_is_far_from_the_jobs(outside_ms: int, words: str) -> None:
    """Of 100 ms, of which 15 are exposed."""
    head = replace(
        recorded().headline, step_ns=100 * MS, exposed_comm_ns=15 * MS, outside_ns=outside_ms * MS,
        start_of_recording_ns=0,
    )  # fmt: skip
    assert words in sentence(replace(recorded(), headline=head))


@pytest.mark.parametrize("pace_ns", [90 * MS, None])
def test_the_pace_of_a_job_is_said_where_steps_of_ranks_overlap(pace_ns: int | None) -> None:
    said = sentence(replace(recorded(), headline=replace(recorded().headline, pace_ns=pace_ns)))
    assert ("Steps of the ranks overlap: the job begins one every 90.000 ms." in said) == (pace_ns is not None)
    assert ("Steps of the ranks overlap" in said) == (pace_ns is not None)


def test_the_ranks_that_are_most_and_least_exposed_are_not_named_where_the_median_of_all_is_beyond_them() -> None:
    """As where steps differ: each rank has its own median."""
    analysis = recorded()
    head = analysis.headline
    assert "most exposed on rank" in sentence(analysis)
    beyond = sentence(replace(analysis, headline=replace(head, exposed_comm_ns=(head.exposed_comm_ns or 0) + 50 * MS)))
    assert "most exposed on rank" not in beyond
    assert "means over" in beyond


def test_a_rank_without_a_part_in_the_main_figures_is_said() -> None:
    analysis = recorded()
    only = replace(analysis, headline=replace(analysis.headline, ranks=analysis.headline.ranks[:1]))
    left = analysis.headline.ranks[1]
    assert f"Without rank {left}, of which none of these steps was recorded whole." in sentence(only)
    assert "Without" not in sentence(analysis)


@pytest.mark.parametrize(("low_ms", "said"), [(3, True), (0.5, False)])
def test_what_recording_surely_took_of_a_step_is_said(low_ms: float, said: bool) -> None:
    cost = CaptureCost(rank=1, median_ns=7 * MS, low_ns=low_ms * MS, high_ns=10 * MS, step_ns=70 * MS)
    words = "Recording itself took 7.000 ms of a recorded step in the median (95 %: 3.000 to 10.000), most on rank 1"
    analysis = recorded()
    given = replace(analysis, run=replace(analysis.run, capture_cost=cost))
    text = " ".join(analysis_text.render(given).split())
    assert (words in text) is said


def test_where_the_step_is_the_longest_window_it_is_said_which_share_is_of_ranks_own_windows() -> None:
    head = replace(recorded().headline, step_ns=100 * MS, exposed_comm_ns=15 * MS, exposed_fraction=0.17)
    assert "(median share 17.0 %)" in sentence(replace(recorded(), headline=head))
    longest = replace(head, steps_by="longest_window", longest_because="clocks")
    said = sentence(replace(recorded(), headline=longest))
    assert "is exposed communication (15.0 %)" in said
    of_windows = "the step is the longest window of any rank; of ranks' own windows 17.0 % is exposed, in the median."
    assert of_windows in " ".join(said.split())


@pytest.mark.parametrize(
    ("cut", "words"),
    [
        ([9], "No marked step follows step 9: it lacks what the next one begins with, and causes are of the others."),
        ([8, 9], "No marked step follows steps 8, 9: they lack what the next one begins with, and causes are of the"),
        ([], ""),
    ],
)
def test_steps_that_no_marked_one_follows_are_said_to_be_left_out_of_causes(cut: list[int], words: str) -> None:
    said = sentence(replace(recorded(), headline=replace(recorded().headline, causes_cut=cut)))
    assert words in said
    assert ("No marked step follows" in said) == bool(cut)
    assert "with the recording" not in said  # which may go on without marks


@pytest.mark.parametrize(
    ("kept", "said"),
    [(1, "causes are of step 3, which takes 10.000 ms, 0.000 ms of it exposed."),
     (2, "causes are of the others, which take 15.000 ms, 0.500 ms of it exposed.")],
)  # fmt: skip
def test_beside_as_many_whole_steps_or_fewer_it_is_said_what_these_take(kept: int, said: str) -> None:
    head = with_lengths((), (), (10, 20, 30, 40)[: 2 * kept]).headline
    steps = head.job_steps[: 2 * kept]
    cut = [each.step for each in steps[kept:] if each.step is not None]
    given = replace(head, job_steps=steps, causes_cut=cut)
    assert said in sentence(replace(recorded(), headline=given))
    assert "which take" not in sentence(replace(recorded(), headline=replace(given, causes_cut=cut[1:])))


def partly(complete: int, *, communicates: bool = True) -> Analysis:
    """Return an analysis of which so many steps are complete, each of 100 ms, 10 of which are exposed; four and as much
    again as two of them were recorded."""
    analysis = recorded()
    own = replace(
        analysis.ranks[0].steps[0], window_ns=100 * MS, idle_ns=40 * MS, comm_ns=10 * MS, exposed_comm_ns=10 * MS,
        causes={},
    )  # fmt: skip
    whole = replace(
        analysis.ranks[0].whole, window_ns=900 * MS, idle_ns=540 * MS, comm_ns=110 * MS * communicates,
        exposed_comm_ns=110 * MS, causes={"start_of_recording": 5 * MS},
    )  # fmt: skip
    steps = [replace(own, step=number, complete=number < complete) for number in range(4)]
    job_steps = [replace(analysis.headline.job_steps[0], step=number) for number in range(complete)]
    return replace(
        analysis,
        ranks=[replace(info, steps=steps, whole=whole) for info in analysis.ranks],
        headline=replace(analysis.headline, job_steps=job_steps),
        run=replace(analysis.run, has_device=True),
    )


def test_what_devices_do_outside_complete_steps_is_said_where_it_is_much() -> None:
    """By hand: 360 ms of work, 60 in each step; of 105 ms that are exposed 10 in each."""
    words = "Outside complete steps lie 240.000 of the 360.000 ms that a device works, 85.000 ms of it exposed"
    assert words in sentence(partly(2))
    assert "works.\n" in sentence(partly(2, communicates=False)) + "\n"
    assert "Outside complete steps" in sentence(partly(4)), "120 of 360 ms"
    long = partly(4)
    ranks = [
        replace(info, whole=replace(info.whole, idle_ns=900 * MS - lasts * MS))
        for info, lasts in zip(long.ranks, (300, 301), strict=True)
    ]
    assert "Outside" in sentence(replace(long, ranks=ranks)), "20 % and more"
    ranks[1] = replace(ranks[1], whole=replace(ranks[1].whole, idle_ns=600 * MS + 1))
    assert "Outside" not in sentence(replace(long, ranks=ranks))
    on_cpu = replace(partly(2), run=replace(partly(2).run, has_device=False))
    assert "Outside" not in sentence(on_cpu)


def test_steps_without_communication_are_no_recording_without_it() -> None:
    analysis = partly(2)
    head = replace(analysis.headline, step_ns=100 * MS, exposed_comm_ns=None, comm_ns=None)
    for given, words in (
        (analysis, "No communication lies in a complete 100.000 ms step."),
        (partly(2, communicates=False), "No communication was recorded in a 100.000 ms step."),
    ):
        quiet = replace(given, headline=head)
        assert sentence(quiet).startswith(words)
        assert lead(quiet).text == words


@pytest.mark.parametrize(("own_ms", "overlap"), [(70, True), (97.9, True), (99, False)])
def test_what_a_step_takes_in_the_mean_is_said_where_steps_of_the_job_sum_to_more(own_ms: float, overlap: bool) -> None:
    """Of four steps of 100 ms each the ranks recorded less."""
    analysis = with_lengths((own_ms,) * 4, (own_ms,) * 4, (100,) * 4)
    assert analysis.throughput is not None
    taken = replace(analysis.throughput, steps=4, time_ns=round(4 * own_ms * MS), exposed_fraction=0.2, cut_short=[])
    given = with_mean_step(replace(analysis, throughput=taken, headline=replace(analysis.headline, pace_ns=None)))
    words = (
        f"In the mean {own_ms / 5:.3f} ms of a {own_ms:.3f} ms step is exposed communication (20.0 %): steps of the "
        "ranks overlap.\nIn the median "
    )
    assert sentence(given).startswith(words) is overlap
    assert ("steps of the ranks overlap" in sentence(given)) is overlap
    saves = Recommendation(
        id="x", title="", verdict="", predicted_gain_ns=10 * MS, gain_low_ns=None, gain_high_ns=None,
        confidence="measured", memory_bytes=None, changes_numerics=False, apply={}, verify="",
    )  # fmt: skip
    on_device = replace(taken, on_device=True, devices=2)
    costed = with_costs(replace(given, throughput=on_device, recommendations=[saves]))
    assert costed.recommendations[0].gpu_hours_a_day == pytest.approx(10 / own_ms * 2 * 24)


@pytest.mark.parametrize(
    ("by_rank_ms", "words"),
    [
        ((9, 1), "(50.0 %, 90.0 % of it on rank 0)"),
        ((1, 3), "(50.0 %, 75.0 % of it on rank 1)"),
        ((3, 2), "(50.0 %)"),
    ],
)
def test_a_rank_that_has_most_of_a_cause_of_idle_time_is_named(by_rank_ms: tuple[int, int], words: str) -> None:
    analysis = recorded()
    head = replace(analysis.headline, idle_ns=10 * MS, idle_causes={"drained": 5 * MS, "launch_bound": 5 * MS})
    ranks = [
        replace(
            info,
            no_causes_reason=None,
            steps=[replace(each, idle_causes={"drained": ms * MS, "launch_bound": 5 * MS}) for each in info.steps],
        )
        for info, ms in zip(analysis.ranks, by_rank_ms, strict=True)
    ]
    said = idle_time.idle_text(replace(analysis, headline=head, ranks=ranks, throughput=None))
    assert f"5.000 ms {words}" in said
    assert said.count("of it on rank") == ("of it" in words)


@pytest.mark.parametrize(("lacking", "said"), [((1,), "unknown on rank 1 because"), ((0, 1), "unknown because")])
def test_the_ranks_that_have_no_causes_are_named_where_others_have(lacking: tuple[int, ...], said: str) -> None:
    analysis = with_lengths((100, 100, 100), (100, 100, 100), (100, 100, 100))
    assert analysis.headline.ranks == [0, 1]
    head = replace(analysis.headline, idle_ns=3 * MS, idle_causes={"drained": 2 * MS, "unknown": MS})
    ranks = [
        replace(info, no_causes_reason="unexplained_waits" if info.rank in lacking else None) for info in analysis.ranks
    ]
    assert said in idle_time.idle_text(replace(analysis, headline=head, ranks=ranks, throughput=None))


def test_idle_time_is_that_of_the_mean_step_where_few_steps_have_most_of_it() -> None:
    """Of steps that idle 1, 1 and 31 ms the median one has 1, and the mean one 11: shares of causes are of all."""
    analysis = with_lengths((100, 100, 130), (100, 100, 130), (100, 100, 130))
    of_steps = [
        replace(each, idle_ns=ns * MS) for each, ns in zip(analysis.headline.job_steps, (1, 1, 31), strict=True)
    ]
    head = replace(analysis.headline, idle_ns=MS, idle_causes={"drained": MS}, job_steps=of_steps, steps=3)
    ranks = [replace(info, no_causes_reason=None) for info in analysis.ranks]
    said = idle_time.idle_text(replace(analysis, headline=head, ranks=ranks, throughput=None))
    assert said.startswith("Idle 11.000 ms a step in the mean of 3, 1.000 ms in the median one: ")
    assert "by a wait of the host 11.000 ms (100.0 %)" in said
    usual = replace(head, job_steps=[replace(each, idle_ns=MS) for each in of_steps])
    assert idle_time.idle_text(replace(analysis, headline=usual, ranks=ranks, throughput=None)).startswith(
        "Idle 1.000 ms a step: "
    )


@pytest.mark.parametrize(("waited_ms", "outliers"), [(240, [4]), (280, [4, 5])])
def test_a_step_in_which_a_rank_waits_for_the_outlier_before_is_one(waited_ms: int, outliers: list[int]) -> None:
    """Rank 0 takes some 520 ms longer in step 4; rank 1 waits for it in step 5, beyond its usual."""
    analysis = with_lengths((272, 806, 297), (236, 290, 300), (272, 808, 320))
    steps = [
        replace(each, causes={"peer_host": (1 + waited_ms * (each.step == 5)) * MS}) for each in analysis.ranks[1].steps
    ]
    found = _without_outliers(replace(analysis, ranks=[analysis.ranks[0], replace(analysis.ranks[1], steps=steps)]))
    assert found is not None
    assert found.outliers == outliers


@pytest.mark.parametrize(
    ("before_ms", "steps", "said"),
    [
        (
            (19, 18),
            1,
            "The host began the step up to 19.000 ms before its first kernel: that time is in no figure of it.",
        ),
        ((19, 19), 1, "The host began the step 19.000 ms before its first kernel: that time is in no figure of it."),
        ((1, 0), 1, ""),
        ((19, 18), 2, ""),  # what comes before a later step lies in the one before it
    ],
)
def test_what_lies_before_the_first_kernel_of_the_only_step_is_said(
    before_ms: tuple[int, int], steps: int, said: str
) -> None:
    analysis = with_lengths((100,) * steps, (100,) * steps, (100,) * steps)
    infos = [replace(info, before_first_step_ns=ms * MS) for info, ms in zip(analysis.ranks, before_ms, strict=True)]
    shown = analysis_text.render(replace(analysis, ranks=infos), all_rows=False)
    assert "before its first kernel" in shown if said else "before its first kernel" not in shown
    assert said in shown
