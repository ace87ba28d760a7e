"""Pauses of hosts that leave devices idle are named with ranks, steps and place; those of hosts without a core are
none."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.host_pauses import host_pauses as recommend
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.checks.hosts.host_pauses import _device_step, host_pauses, of_step_alone, without_pauses
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.found_causes import HostLoss
from overlapscope.analysis.per_rank.steps import step_windows
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text.idle_time import idle_text
from overlapscope.timeline.columns import COPY, concat, take
from overlapscope.timeline.intervals import union
from overlapscope.timeline.run import RankTimeline, Run
from tests.conftest import shared_file
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline
from tests.unit.analysis.pauses import pausing
from tests.unit.analysis.pauses.pausing import MS, STEP, STEPS, Pauses, advice, in_turn, named, pause, run


def test_of_pauses_of_each_step_all_begins_are_told_or_none() -> None:
    """A step begins 1 ms before its first launch, and each takes 1 ms: the host pauses for 6 ms from 3 ms on, then
    6 + 4 ms later. Where one step has a pause less, the first alone would be the place of all."""
    (alike,) = named(run(lambda *_: {3: 6.0, 7: 6.0}))
    assert "3.0 and 13.0 ms into the step" in alike.title
    (once_more,) = named(run(lambda step, _: {3: 6.0, 7: 6.0} if step else {3: 6.0}))
    assert "into the step" not in once_more.title
    (elsewhere,) = named(run(lambda *_: {3: 6.0, 6: 4.0}))
    assert "mostly between aten::linear and aten::relu, 3.0 ms into the step" in elsewhere.title


def test_pauses_of_ranks_in_turn_are_named_with_their_steps_and_place_and_cost() -> None:
    (found,) = named(run(in_turn))
    assert found.title == (
        "hosts paused for 11.0 to 13.0 ms (rank 1 in steps 7, 9; rank 0 in step 8), between aten::linear and "
        "aten::relu, 3.0 ms into the step; the device that lost most was idle for 11.0 ms a step, and others waited up "
        "to 12.0 ms for it: garbage collection, a logger, a file, a lock or a lost core"
    )
    assert [(each["rank"], each["step"]) for each in found.evidence["pauses"]] == [(1, 9), (0, 8), (1, 7)]


def test_the_advice_counts_the_rank_that_loses_most_in_each_step_and_comes_before_launches() -> None:
    found = advice(run(in_turn))
    assert next(iter(found)) == "host_pauses"
    assert found["host_pauses"].title.startswith("Find what stops the hosts of ranks 0, 1, now one, now another: they ")
    assert found["host_pauses"].loss_ns == pytest.approx(11 * MS, rel=0.01)
    assert "gc.freeze(); gc.disable()" in found["host_pauses"].apply["python"]
    assert "compile" not in str(found["host_pauses"].apply)


def test_what_pauses_of_a_single_step_cost_is_of_that_step_and_not_a_mean() -> None:
    """In the mean it is 6 ms in each of 3 steps, which none lost."""
    found = advice(run(lambda step, _: {3: 18.0} if step == 1 else {}))["host_pauses"]
    assert found.title.endswith("and a device idles for 18 ms of a 135 ms recording, in step 8 alone")
    assert (found.per, found.loss_ns) == ("recording", pytest.approx(18 * MS, rel=0.01))
    (named_pauses,) = named(run(lambda step, _: {3: 18.0} if step == 1 else {}))
    assert "the device that lost most was idle for 18.0 ms in step 8:" in named_pauses.title
    (mostly,) = named(run(lambda step, _: {3: 18.0 if step == 1 else 4.0 * (step == 2)} if step else {}))
    assert "was idle for 18.0 ms in step 8 alone:" in mostly.title


@pytest.mark.parametrize(("cut", "steps"), [((), 3), ((9,), 2), ((8,), 3)])
def test_a_step_that_is_cut_short_counts_where_a_host_pauses_in_it_alone(cut: tuple[int, ...], steps: int) -> None:
    """Of steps 7 to 9 the last has no pause."""
    job = run(lambda step, _: {3: 6.0} if step < 2 else {})
    known = {rank: own.long_pauses for rank, own in summarize_ranks(job).items() if own.long_pauses is not None}
    (found,) = host_pauses(job, known, (), STEP, [], cut_short=cut)
    assert found.evidence["begun_steps"] == steps
    assert found.evidence["cost_ns"] == pytest.approx(found.evidence["idle_ns"] / len(job.ranks) / steps, rel=0.05)


def cut_off(monkeypatch: pytest.MonkeyPatch, pauses: Pauses, first: int, last: int) -> Run:
    """Return a run of five steps, from step 7 on, of which only these and those between are marked."""
    monkeypatch.setattr(pausing, "STEPS", 5)
    job = run(pauses)
    ranks = {
        rank: replace(each, steps=take(each.steps, (each.steps.step >= first) & (each.steps.step <= last)))
        for rank, each in job.ranks.items()
    }
    return replace(job, ranks=ranks)


def test_a_pause_like_that_of_one_step_in_no_whole_step_is_told_and_counts_in_the_mean(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The recording ends in step 11, of which no mark was closed, or begins in step 7: five steps have begun."""
    job = cut_off(monkeypatch, lambda step, rank: {3: 20.0} if rank == 0 and step in (1, 4) else {}, 7, 10)
    (found,) = named(job)
    assert "(rank 0 in step 8, and again after step 10, in no whole step)" in found.title
    assert found.evidence["alone_in_step"] is None
    assert found.evidence["cost_ns"] == pytest.approx(2 * 20 * MS / 5, rel=0.01)
    assert [(each["step"], each["waited_ns"]) for each in found.evidence["again"]] == [(10, 0)]
    advised = advice(job)["host_pauses"]
    assert " in the mean, in step 8, and again after step 10, in no whole step" in advised.title
    assert (advised.per, advised.loss_ns) == ("step", found.evidence["cost_ns"])
    begun = cut_off(monkeypatch, lambda step, rank: {3: 20.0} if rank == 0 and step in (0, 2) else {}, 8, 11)
    assert "(rank 0 in step 9, and again before the first whole step)" in named(begun)[0].title


@pytest.mark.parametrize(
    "other",
    [
        pytest.param({4: 20.0}, id="between other operations"),
        pytest.param({3: 8.0}, id="shorter by far"),
    ],
)
def test_another_pause_in_no_whole_step_is_not_like_it(
    monkeypatch: pytest.MonkeyPatch, other: dict[int, float]
) -> None:
    def pauses(step: int, rank: int) -> dict[int, float]:
        return {} if rank else {3: 20.0} if step == 1 else other if step == 4 else {}

    (found,) = named(cut_off(monkeypatch, pauses, 7, 10))
    assert (found.evidence["alone_in_step"], found.evidence["again"]) == (8, [])


def test_silence_after_the_last_launch_of_a_recording_is_no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the profiler stops."""
    job = cut_off(monkeypatch, lambda step, rank: {3: 20.0} if rank == 0 and step in (1, 4) else {}, 7, 10)
    own = job.ranks[0]
    own.recordings.last_launch_ns[:] = own.steps.end_ns.max() + 2 * MS
    (found,) = named(job)
    assert (found.evidence["alone_in_step"], found.evidence["again"]) == (8, [])


def test_idle_time_of_a_step_is_not_said_again_where_pauses_of_its_host_are_most_of_it() -> None:
    def odd(job: Run) -> list[str]:
        return [each.id for each in analyze(job).findings if each.id.startswith("odd_step:")]

    pausing_once = run(lambda step, rank: {3: 18.0} if step == 1 else {})
    (found,) = named(pausing_once)
    idles = Finding(
        id="odd_step:idle_ns:rank0:step8", severity="warning", title="", known_from="trace",
        evidence={"rank": 0, "step": 8, "idle_ns": 20 * MS, "median_of_others_ns": MS},
    )  # fmt: skip
    windows = {rank: step_windows(each) for rank, each in pausing_once.ranks.items()}
    assert not odd(pausing_once)
    assert without_pauses([idles], [found], windows) == []
    assert without_pauses([idles], [], windows) == [idles]
    longer = replace(idles, evidence=idles.evidence | {"idle_ns": 50 * MS})
    elsewhere = replace(idles, evidence=idles.evidence | {"step": 9})
    ranged = replace(idles, evidence=idles.evidence | {"range": "## save ##"})
    long = replace(idles, id="odd_step:window_ns:rank0:step8", evidence=idles.evidence | {"window_ns": 90 * MS})
    for other in (longer, elsewhere, ranged, long):
        assert without_pauses([other], [found], windows) == [other]
    vary = replace(found, evidence=found.evidence | {"alone_in_step": None, "lengths_differ": True})
    assert without_pauses([idles], [vary], windows) == [idles], "which step has the longest is not said"


def test_of_one_rank_that_pauses_in_each_step_the_range_is_named() -> None:
    (found,) = named(run(lambda _, rank: {3: 10.0} if rank else {}, during="## logging ##"))
    assert "the host paused for 11.0 ms (rank 1 in each of 3 steps), between" in found.title
    assert "in ## logging ##" in found.title
    assert not found.evidence["in_turn"]


def test_the_share_of_idle_time_in_pauses_follows_its_causes() -> None:
    assert "% of all idle time in pauses of hosts of 3 ms or longer" in idle_text(analyze(run(in_turn)))
    assert "pauses of hosts" not in idle_text(analyze(run(lambda *_: {})))


def test_a_host_that_stops_often_and_anywhere_may_lack_a_core() -> None:
    often = run(lambda step, _: {3 + 3 * number + (number + step) % 2: 3.2 for number in range(5)})
    assert named(often) == []
    at_one_place = run(lambda *_: {3 + 2 * number: 3.2 for number in range(5)})
    assert len(named(at_one_place)) == 1


def test_one_host_alone_that_stops_often_and_anywhere_is_named() -> None:
    """Rank 1 stops for 3.2 ms five times in each step, now here, now there; rank 0 never does."""

    def anywhere(step: int, rank: int) -> dict[int, float]:
        return {3 + 3 * number + (number + step) % 2: 3.2 for number in range(5)} if rank else {}

    (found,) = named(run(anywhere))
    assert found.title.startswith("the host paused 15 times, for 4.2 ms (rank 1 in each of 3 steps), at several places")
    assert found.title.endswith(
        "the host of the other rank hardly pauses, so perhaps it loses its core, or another thread of it holds "
        "Python's lock"
    )
    assert (found.evidence["ranks"], found.evidence["anywhere"]) == ([1], True)
    assert ", at many places, and its device idles for " in advice(run(anywhere))["host_pauses"].title


def test_pauses_of_one_host_stand_for_all_only_where_nearly_all_idle_time_is_in_them() -> None:
    """Rank 1 stops fifteen times for 3.2 ms, and rank 0 once: a tenth of its peer's idle time, or as much as it."""

    def most(once_ms: float) -> Pauses:
        def pauses(step: int, rank: int) -> dict[int, float]:
            often = {3 + 3 * number + (number + step) % 2: 3.2 for number in range(5)}
            return often if rank else {20: once_ms} if step == 1 else {}

        return pauses

    (found,) = named(run(most(3.2)))
    assert (found.evidence["ranks"], found.evidence["anywhere"]) == ([1], True)
    assert not any(each.evidence["anywhere"] for each in named(run(most(15.0))))


def test_it_is_said_how_often_hosts_pause_in_a_step() -> None:
    (twice,) = named(run(lambda step, _: {3: 8.0, 7: 8.0} if step == 1 else {}))
    assert twice.title.startswith("hosts paused 2 times a step, for 9.0 ms (ranks 0, 1 in step 8)")
    (mostly,) = named(run(lambda step, rank: {3: 8.0} | ({7: 8.0} if rank else {}) if step == 1 else {}))
    assert mostly.title.startswith("hosts paused up to 2 times a step, for 9.0 ms")
    found = advice(run(lambda step, _: {3: 8.0, 7: 8.0} if step == 1 else {}))["host_pauses"]
    assert ": they pause 2 times a step, for 8.96 ms each," in found.title


def test_of_pauses_of_different_lengths_the_longest_is_told() -> None:
    job = run(lambda step, rank: {3: 4.0 + 30 * (step == 1)} if rank else {})
    assert round(named(job)[0].evidence["paused_ns"] / MS) == 35
    assert ": it pauses for up to 35 ms" in advice(job)["host_pauses"].title
    assert "up to" not in advice(run(in_turn))["host_pauses"].title


@pytest.mark.slow
def test_ranks_beyond_those_that_are_listed_are_all_recorded_ones() -> None:
    (found,) = named(run(lambda *_: {3: 10.0}, ranks=9))
    assert "(all 9 recorded ranks in each of 3 steps)" in found.title
    assert "the hosts of all 9 recorded ranks" in advice(run(lambda *_: {3: 10.0}, ranks=9))["host_pauses"].title
    (most,) = named(run(lambda _, rank: {3: 10.0} if rank else {}, ranks=10))
    assert "(ranks 1, 2, 3, 4, 5, 6, 7, 8 and 1 more in each of 3 steps)" in most.title


@pytest.mark.parametrize(
    ("at_ms", "step", "device_step", "said"),
    [
        pytest.param(20, 7, 7, "in step 7", id="both in one step"),
        pytest.param(51.2, 8, 7, "between steps 7 and 8", id="the device is in the step before"),
        pytest.param(-20, 7, None, "before the first kernel of step 7", id="in no step of the device"),
    ],
)
def test_the_step_of_a_pause_is_that_of_the_device_and_that_of_the_host(
    at_ms: float, step: int, device_step: int | None, said: str
) -> None:
    here = replace(pause("aten::mm"), start_ns=EPOCH_NS + round(at_ms * MS), paused_ns=MS // 2)
    found = _device_step(run(lambda *_: {}), [here], None)
    assert found == device_step
    assert of_step_alone(step, found) == said


def test_of_a_step_alone_no_pause_of_another_step_tells_the_step_of_the_device() -> None:
    before = replace(pause("aten::mm"), start_ns=EPOCH_NS - 20 * MS, paused_ns=MS // 2, step=7)
    inside = replace(pause("aten::mm"), start_ns=EPOCH_NS + 20 * MS, paused_ns=MS // 2, step=9)
    assert _device_step(run(lambda *_: {}), [before, inside], 7) is None
    assert _device_step(run(lambda *_: {}), [before, inside], None) == 7


def test_pauses_before_the_first_kernel_are_in_no_steps_time() -> None:
    """The marks of steps begin, and hosts pause, before a device computes anything."""
    job = run(lambda step, _: {0: 18.0} if step == 0 else {})
    for timeline in job.ranks.values():
        spans = timeline.spans
        spans.kind[np.argmin(spans.start_ns)] = COPY
    (found,) = named(job)
    assert found.evidence["device_step"] is None
    assert "for 18.8 ms before the first kernel of its step, which the time of a step does not hold: " in found.title
    assert "pauses of hosts" not in idle_text(analyze(job)), "of the idle time of steps they are no share"


@pytest.mark.slow
def test_where_hosts_share_cores_that_is_why_they_pause() -> None:
    cores = Finding(id="shared_cores", severity="warning", title="", evidence={}, known_from="trace")
    assert host_pauses(run(in_turn), {}, (), STEP, [cores]) == []
    real = analyze(read_inputs([shared_file("kineto/megatron_tp8")]))
    assert {"shared_cores", "host_pauses"} & {each.id for each in real.findings} == {"shared_cores"}


def unmarked(job: Run) -> Run:
    """Return a run without marks of steps."""
    none = rank_timeline(0).steps
    return replace(job, ranks={rank: replace(each, steps=none) for rank, each in job.ranks.items()})


def test_without_marks_of_steps_pauses_that_recur_at_one_place_are_named_of_the_recording() -> None:
    job = unmarked(run(lambda step, rank: {3: 19.0} if rank == 0 and step else {}))
    (found,) = named(job)
    assert found.title.startswith(
        "the host paused 2 times, for 20.0 ms (rank 0), between aten::linear and aten::relu; the device that lost most "
        "was idle for "
    )
    assert " ms in the recording: garbage collection" in found.title, "of rank 1 it is not known whether it paused"
    assert (found.evidence["steps"], found.evidence["in_turn"]) == ([], False)
    advised = advice(job)["host_pauses"]
    assert advised.per == "recording"
    assert ": it pauses 2 times a recording, for 20 ms each, after aten::linear, and its device idles" in advised.title
    once = unmarked(run(lambda step, rank: {3: 50.0} if rank == 0 and step == 1 else {}))
    assert not named(once), "it may be what comes before a loop"


def test_without_marks_of_steps_a_single_longer_pause_elsewhere_takes_nothing_from_one_that_recurs() -> None:
    """One that all hosts have once, before the loop, idles devices for longer in sum."""
    job = unmarked(run(lambda step, rank: {0: 20.0} if step == 0 else {3: 19.0} if rank == 0 else {}))
    (found,) = named(job)
    assert "paused 2 times, for 20.0 ms (rank 0), between aten::linear and aten::relu; " in found.title


def test_without_marks_of_steps_the_cost_is_of_all_recordings_of_a_rank() -> None:
    job = unmarked(run(lambda step, rank: {3: 19.0} if rank == 0 and step else {}))
    cut = EPOCH_NS + 2 * STEP

    def in_two(timeline: RankTimeline) -> RankTimeline:
        own, spans, calls = timeline.recordings, timeline.spans, timeline.collectives
        return replace(
            timeline,
            recordings=replace(
                concat([own, own]), start_ns=np.array([EPOCH_NS, cut]), end_ns=np.array([cut, EPOCH_NS + STEPS * STEP])
            ),
            spans=replace(spans, recording=(spans.start_ns >= cut).astype(spans.recording.dtype)),
            collectives=replace(calls, recording=(calls.start_ns >= cut).astype(calls.recording.dtype)),
            host=replace(
                timeline.host, recording=(timeline.host.start_ns >= cut).astype(timeline.host.recording.dtype)
            ),
        )

    parted = replace(job, ranks={rank: in_two(each) for rank, each in job.ranks.items()})
    (one,), (two,) = named(job), named(parted)
    assert (two.evidence["of_steps"], two.evidence["cost_ns"]) == (2, one.evidence["cost_ns"])


def test_a_pause_after_a_wait_that_had_used_up_the_hosts_lead_says_so() -> None:
    job = run(in_turn)
    whole = union((np.array([EPOCH_NS]), np.array([EPOCH_NS + STEPS * STEP])))
    lost = HostLoss(kind="blocking_call", call="cudaStreamSynchronize_v3020", when=whole, longest=(0, 0))
    analysis, alone = analyze(job), summarize_ranks(job)
    charged = {rank: replace(own, host_losses=(lost,)) for rank, own in alone.items()}
    plain, after = (recommend(RuleInput.of(job, analysis, match_and_align(job), each)) for each in (alone, charged))
    assert plain
    assert after
    assert "had used up its lead" not in plain.title
    assert after.title == f"{plain.title}, after a wait (cudaStreamSynchronize) that had used up its lead"
    assert any(each.startswith("that these waits stay") for each in after.assumed)
