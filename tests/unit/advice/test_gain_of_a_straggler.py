"""What a straggler costs, as it is recommended to look at it: of a step, with its range, and no upper bound."""

from statistics import fmean

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice, by_rules
from overlapscope.advice.calls.longer_on_others import longer_on_others_ns
from overlapscope.advice.late_rank import late_rank
from overlapscope.advice.losses.largest_loss import largest_loss
from overlapscope.advice.rule_input import RuleInput, ms
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cost.throughput import gpu_hours_a_day
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.cross_rank.matching.unmatched_ranks import unmatched_shares
from overlapscope.analysis.cross_rank.wait_transfer import split_waits
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.report.text.advice import gain, render
from overlapscope.report.text.cross_rank import straggler_sentences
from overlapscope.timeline.columns import COMM, NONE, take
from overlapscope.timeline.run import Run
from tests.property.synthetic import Fault, Job, Layout, simulate
from tests.support.graph_programs import Launch, Operation, Sync, Work
from tests.support.graph_programs import simulate as simulate_programs
from tests.unit.analysis.graph.test_removal import late_pair, read

MS, SUM = 1_000_000, "ncclDevKernel_AllReduce"
SLOWER = Job(
    layout=Layout(dp=4), steps=8, first_step=0, layer_ns=4e6, interference=1.0,
    fault=Fault(kind="slower_compute", culprits=(2,), compute_factor=1.5, since=5),
)  # fmt: skip
"""A device becomes slower in the middle of the recording."""


@pytest.mark.slow
def test_the_gain_of_a_straggler_is_of_a_step_and_so_are_its_gpu_hours() -> None:
    run, _, _ = late_pair(0)
    analysis = analyze_with_advice(run)
    found = next(each for each in analysis.recommendations if each.id == "late_rank")
    middle, low, high = analysis.skew.stragglers[0].evidence["removal_step_ns"]
    assert (found.per, found.predicted_gain_ns, found.gain_low_ns, found.gain_high_ns) == ("step", middle, low, high)
    assert gain(found) == (f"saves about {middle / 1e6:,.3f} ms a step, between {low / 1e6:,.3f} and {high / 1e6:,.3f}")
    assert "90 %" not in render([found], [])
    head, whole = analysis.headline, analysis.throughput
    assert whole
    assert whole.time_ns
    begun_every_ns = fmean(step.window_ns or 0 for info in analysis.ranks for step in info.steps if step.complete)
    assert head.step_ns
    assert begun_every_ns < head.step_ns, "steps of ranks overlap: a day has more of them than their lengths say"
    assert found.gpu_hours_a_day == pytest.approx(gpu_hours_a_day(middle / begun_every_ns, whole.devices or 0))


@pytest.mark.slow
def test_the_gain_of_a_device_that_became_slower_is_that_of_the_steps_since() -> None:
    always, never = (simulate(replace(SLOWER, fault=replace(SLOWER.fault, since=at)), keep=False) for at in (0, 8))
    since_ns = always.step_ns - never.step_ns
    found = next(each for each in analyze_with_advice(read(SLOWER)).recommendations if each.id == "late_rank")
    assert "rank 2 (slower compute), since step 5" in found.title
    assert (found.per, found.predicted_gain_ns) == ("step", pytest.approx(since_ns, rel=0.1))
    assert found.gain_low_ns is not None
    assert found.gain_high_ns is not None
    assert 0.8 * since_ns <= found.gain_low_ns <= found.predicted_gain_ns <= found.gain_high_ns, "of these steps, too"
    assert any("since step 5" in each for each in found.assumed)


def test_a_device_that_was_always_slower_gains_the_mean_of_all_steps() -> None:
    run = read(replace(SLOWER, fault=replace(SLOWER.fault, since=0)))
    analysis = analyze_with_advice(run)
    found = next(each for each in analysis.recommendations if each.id == "late_rank")
    (held,) = analysis.skew.stragglers
    assert "removal_since_ns" not in held.evidence
    assert found.predicted_gain_ns == held.evidence["removal_step_ns"][0]
    assert len(found.assumed) == 1


@pytest.mark.slow
def test_a_gain_whose_middle_is_its_least_is_given_as_at_least() -> None:
    run, _, _ = late_pair(0)
    found = next(each for each in analyze_with_advice(run).recommendations if each.id == "late_rank")
    one_sided = replace(found, predicted_gain_ns=12_666_000, gain_low_ns=12_666_000, gain_high_ns=23_543_000)
    assert gain(one_sided) == "saves at least 12.666 ms a step, up to 23.543"
    assert gain(replace(one_sided, gain_low_ns=1_000_000)) == "saves about 12.666 ms a step, between 1.000 and 23.543"


def late_host_run(pause_ms: int) -> Run:
    """Return four ranks whose host calls were not recorded: before each of eight sums a host works for
    5 ms, that of rank 0 for longer."""

    def program(rank: int) -> list[Operation]:
        each = [Work(pause_ms * MS if rank == 0 else 5 * MS), Launch(0, 8 * MS), Launch(0, kind=COMM, name=SUM)]
        return [replace(op, call=f"{step}") if isinstance(op, Launch) and op.kind == COMM else op
                for step in range(8) for op in (*each, Sync())]  # fmt: skip

    run = simulate_programs({rank: program(rank) for rank in range(4)}, {f"{step}": MS // 10 for step in range(8)}).run
    seen = {}
    for rank, each in run.ranks.items():
        recordings = replace(each.recordings, host_events=each.recordings.host_events & False)
        spans = replace(each.spans, launch_ns=np.full_like(each.spans.launch_ns, NONE))
        seen[rank] = replace(each, recordings=recordings, spans=spans, host=take(each.host, np.array([], np.int64)))
    return replace(run, ranks=seen)


def late_host(pause_ms: int) -> dict[str, Recommendation]:
    """Return what is said of `late_host_run`."""
    run = late_host_run(pause_ms)
    together = match_and_align(run)
    return {each.id: each for each in by_rules(run, analyze(run, together), together)}


def test_where_no_replay_answers_a_late_host_is_worth_at_most_what_others_waited_for_it_and_idles_for_that() -> None:
    """By hand: rank 0 idles for 5 ms more a sum than its peers, which wait in these: that is its loss, and leads."""
    found = late_host(10)
    late, idle = found["late_rank"], found["idle_device"]
    assert late.evidence["held_by"] == "host"
    assert (late.predicted_gain_ns, late.gain_low_ns) == (None, 0)
    assert late.gain_high_ns == pytest.approx(8 * 5 * MS, rel=0.02)
    assert late.evidence["own_idle_ns"] == pytest.approx(7 * 5 * MS / 4, rel=0.1)
    assert late.loss_ns == pytest.approx(8 * 5 * MS * 3 / 4 + 7 * 5 * MS / 4, rel=0.1)
    assert idle.loss_ns == pytest.approx(7 * 5 * MS, rel=0.1)
    assert next(iter(found)) == "late_rank"
    assert "as a late rank idles longer" in idle.title
    assert "Largest loss" not in idle.title
    idle_ns = idle.evidence["idle_ns"]
    unknown_ns = idle_ns - late.evidence["own_idle_ns"]
    assert f"({ms(unknown_ns)} of it unknown, as" in idle.title, "why the late rank idles longer is known"
    assert late.assumed == []


def of_unmatched(first: int) -> Recommendation:
    """Return what is said of the late host where so many of its 8 sums are matched with none."""
    run = late_host_run(10)
    together = match_and_align(run)
    (block,) = together.matching.blocks
    kept = replace(block, rows=block.rows[:, first:], start_ns=block.start_ns[:, first:],
                   end_ns=block.end_ns[:, first:])  # fmt: skip
    fewer = replace(together, matching=replace(together.matching, blocks=(kept,)))
    assert unmatched_shares(run.ranks, fewer.matching, fewer.pairs)[0] == first / 8
    found = late_rank(with_unmatched(analyze(run, together), first / 8))
    assert found
    return found


def with_unmatched(analysis: Analysis, share: float) -> Analysis:
    """Return the analysis with so many calls of each rank that are matched with none."""
    ranks = [replace(each, unmatched_share=share) for each in analysis.skew.ranks]
    return replace(analysis, skew=replace(analysis.skew, ranks=ranks))


def test_what_is_waited_in_calls_without_a_match_is_in_no_bound() -> None:
    assert of_unmatched(0).gain_high_ns
    assert of_unmatched(0).assumed == []
    assert of_unmatched(1).gain_high_ns is None, "an eighth of its calls is not matched"
    assert of_unmatched(1).gain_low_ns is None
    few = late_rank(with_unmatched(analyze(late_host_run(10)), 0.04))
    assert few
    assert few.gain_high_ns
    assert few.assumed == ["that nobody waits for it in calls that were not matched: these are not counted"]


@pytest.mark.parametrize(("device_step", "named"), [(None, True), (1, False)])
def test_idle_time_is_not_named_by_pauses_before_the_first_kernel(device_step: int | None, *, named: bool) -> None:
    run = late_host_run(5)
    together = match_and_align(run)
    given = RuleInput.of(run, analyze(run, together), together)
    idle = largest_loss(given, [])
    assert idle
    assert idle.loss_ns
    evidence = {"steps": [1], "device_step": device_step}
    pauses = replace(idle, id="host_pauses", evidence=evidence, loss_ns=round(0.7 * idle.loss_ns))
    assert (largest_loss(given, [pauses]) is not None) == named


def test_where_no_host_is_late_all_idle_time_is_its_own_loss() -> None:
    found = late_host(5)
    assert "late_rank" not in found
    assert "idles longer" not in found["idle_device"].title


@pytest.mark.slow
@pytest.mark.parametrize(
    ("missing", "unmatched", "known"),
    [
        (False, 0, "between"),
        (True, 0, "most"),  # a member that was not recorded may be late, too
        (False, 1, "least"),  # others wait for it in calls without a match, too
        (True, 1, "nothing"),
    ],
)
def test_what_is_not_seen_of_waiting_bounds_the_gain(missing: bool, unmatched: int, known: str) -> None:
    run, _, _ = late_pair(0)
    analysis = with_unmatched(analyze(run), 0.5 * unmatched)
    ranks = analysis.skew.ranks
    if missing:  # it waits in calls for longer than it leads: another member may come after it
        ranks = [replace(each, blame_estimate="upper_bound", collective_ns=10 * each.blame_ns) for each in ranks]
    skew = replace(analysis.skew, ranks=ranks)
    job = replace(analysis.run, world_size=None) if missing else analysis.run
    found = late_rank(replace(analysis, skew=skew, run=job))
    assert found is not None
    middle, low, high = analysis.skew.stragglers[0].evidence["removal_step_ns"]
    assert (found.predicted_gain_ns, found.gain_low_ns, found.gain_high_ns) == {
        "between": (middle, low, high), "most": (None, 0, high), "least": (None, None, None),
        "nothing": (None, None, None),
    }[known]  # fmt: skip
    straggler = analysis.skew.stragglers[0]
    (sentence,) = straggler_sentences(replace(analysis, skew=skew, run=job), 1)
    assert straggler.removal_low_ns is not None
    assert straggler.removal_high_ns is not None
    least, most = (f"{ns / MS:,.3f} ms shorter" for ns in (straggler.removal_low_ns, straggler.removal_high_ns))
    assert (f"at least {least}" in sentence) is (known == "least")
    assert (f"at most {most}" in sentence) is (known == "most")
    assert ("excess" in sentence) is (known != "nothing")
    less = replace(skew, stragglers=[replace(each, removal_ns=0) for each in skew.stragglers])
    (delays,) = straggler_sentences(replace(analysis, skew=less, run=job), 1)
    assert (" delayed the others by " in delays) is (known != "nothing")
    assert (" by at least " in delays) is (known == "least")
    alone = replace(less, ranks=[replace(each, collective_ns=each.blame_ns // 2) for each in less.ranks])
    (certain,) = straggler_sentences(replace(analysis, skew=alone, run=job), 1)
    assert (" by at least " in certain) is bool(unmatched), "in its calls it waits for nobody: it comes last"


def test_calls_without_a_match_that_last_longer_on_others_wait_for_the_straggler_too() -> None:
    """By hand: of eight sums the first two are matched with none; in each the three others wait for 5 ms."""
    run = late_host_run(10)
    together = match_and_align(run)
    (block,) = together.matching.blocks
    kept = replace(block, rows=block.rows[:, 2:], start_ns=block.start_ns[:, 2:], end_ns=block.end_ns[:, 2:])
    splits = tuple(split_waits([kept], together.clocks))
    fewer = replace(together, matching=replace(together.matching, blocks=(kept,)), splits=splits)
    analysis = analyze(run, fewer)
    given = RuleInput.of(run, analysis, fewer)
    waited_ns = longer_on_others_ns(given, 0)
    assert waited_ns == pytest.approx(2 * 5 * MS * 3 / 4, rel=0.02)
    assert longer_on_others_ns(given, 1) == 0, "the straggler's calls are no longer than those of rank 1"
    found = late_rank(analysis, longer_on_others=lambda rank: longer_on_others_ns(given, rank))
    assert found is not None
    assert found.evidence["in_others_ns"] == pytest.approx(waited_ns, abs=1)
    assert "and 7.5 ms of a" in found.title
    assert found.loss_ns == pytest.approx(8 * 5 * MS * 3 / 4 + found.evidence.get("own_idle_ns", 0), rel=0.02)


@pytest.mark.parametrize(("held_by", "of_steps"), [("host", 4 / 3), ("more_work", 1.0)])
def test_a_step_that_is_cut_short_lacks_what_a_late_host_does_at_its_end(held_by: str, of_steps: float) -> None:
    """Of four steps the last is cut: the excess of the host of a straggler was recorded three times."""
    analysis = analyze(late_host_run(10))
    head, whole, (held,) = analysis.headline, analysis.throughput, analysis.skew.stragglers
    assert whole is not None
    steps = [replace(head.job_steps[0], step=at) for at in range(4)]
    known = replace(
        held, held_by=held_by, removal_ns=12 * MS, removal_low_ns=8 * MS, removal_high_ns=16 * MS,
        evidence=held.evidence | {"removal_step_ns": [3 * MS, 2 * MS, 4 * MS]},
    )  # fmt: skip
    given = replace(
        analysis,
        skew=replace(analysis.skew, stragglers=[known]),
        headline=replace(head, window="step", steps=4, job_steps=steps),
        throughput=replace(whole, cut_short=[3]),
    )
    found = late_rank(given)
    assert found is not None
    gains = (found.gain_low_ns, found.predicted_gain_ns, found.gain_high_ns)
    assert gains == (2 * MS, round(of_steps * 3 * MS), round(of_steps * 4 * MS)), "some of it may lie within the step"
