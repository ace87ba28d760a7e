"""Hosts that stand still while they compute: by the steps of a trace, and by the system's account."""

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.advice.losses.standing_still import standing_still as advised
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.all_findings import _still_ns
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.stragglers.standing_still import standing_still
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.report.text.critical_path import critical_path_text
from overlapscope.timeline.columns import Collectives, Spans, Telemetry, make
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.cpu_runs.in_operations import MS, STEP_NS, in_operations

USUAL = (4, 4, 4)
STILL = (4, 24, 4)


def job(*steps_ms: Sequence[Sequence[int]]) -> Run:
    """Return a run of ranks whose steps take so long, in operations before a call."""
    latest = [max(sum(own[at]) for own in steps_ms) for at in range(len(steps_ms[0]))]
    ranks = {rank: in_operations(rank, own, latest) for rank, own in enumerate(steps_ms)}
    return Run(world_size=len(ranks), ranks=ranks, groups=(Group(name="0", size=len(ranks), ranks=tuple(ranks)),))


def found(run: Run) -> tuple[Finding | None, str]:
    """Return the finding, and the title of the advice, or an empty one."""
    analysis = analyze_with_advice(run)
    finding = next((each for each in analysis.findings if each.id == "standing_still"), None)
    return finding, next((each.title for each in analysis.recommendations if each.id == "standing_still"), "")


def test_a_host_that_stands_still_in_most_steps_is_named_with_its_time_a_step() -> None:
    first, second, third = STILL, (24, 4, 4), (4, 4, 24)  # what is long in each step is not what usually takes so long
    finding, advice = found(job([USUAL] * 6, [first, second, third] * 2))
    assert finding
    assert finding.evidence["ranks"] == [1]
    assert finding.evidence["still_ns"] == {"0": 0, "1": pytest.approx(20 * MS, abs=10)}
    assert finding.title.startswith(
        "hosts stood still while they computed, inside operations that take less in other steps: "
        "rank 1 for at least 20.000 ms a step (20.0 % of it), the others for less, as far as is seen (0.000 ms"
    )
    assert advice.startswith("Find what stops the host of rank 1: at least 20 ms of a 100 ms step")


def test_a_host_that_stands_still_in_some_of_the_steps_is_named_with_their_number_and_the_mean() -> None:
    first, second, third = STILL, (24, 4, 4), (4, 4, 24)
    finding, advice = found(job([USUAL] * 8, [first, second, third, USUAL] * 2))
    assert finding
    assert "rank 1 for at least 20.000 ms in 6 of 8 steps (20.0 % of one)" in finding.title
    assert advice.startswith("Find what stops the host of rank 1: at least 15 ms of a 100 ms step pass, in the mean")


def test_how_long_a_host_stood_still_is_known_of_the_whole_recording() -> None:
    run = job([USUAL] * 6, [STILL, (24, 4, 4), (4, 4, 24)] * 2)
    assert _still_ns(summarize_ranks(run)) == {0: 0, 1: pytest.approx(120 * MS, abs=100)}


@pytest.mark.parametrize(
    "steps",
    [
        pytest.param([USUAL] * 5 + [(4, 74, 4)], id="a single event"),
        pytest.param([USUAL] * 3 + [(10, 10, 10)] * 3, id="a larger batch"),
        pytest.param([(4, 24, 4)] * 6, id="an operation that always takes so long"),
        pytest.param([USUAL, STILL], id="too few steps"),
    ],
)
def test_what_is_no_standing_still_is_not_named(steps: list[tuple[int, ...]]) -> None:
    assert found(job([USUAL] * len(steps), steps)) == (None, "")


def with_account(timeline: RankTimeline, ran_ms: int, waited_ms: int) -> RankTimeline:
    """Return the rank with readings at the steps' starts: in each its thread ran, and waited for a core, so long."""
    names = NameTable(timeline.names)
    rows = [
        {"name": name, "time_ns": int(at), "step": 0, "value": float(number * each * MS)}
        for number, at in enumerate([*timeline.steps.start_ns, int(timeline.steps.start_ns[-1]) + STEP_NS])
        for name, each in (("thread_cpu_ns", ran_ms), ("thread_queue_ns", waited_ms))
    ]
    return replace(
        timeline, telemetry=fact_table(Telemetry, rows, names), names=tuple(names.to_list()),
        recorded={"settings": {"environment": {"OMP_NUM_THREADS": "1"}}},
    )  # fmt: skip


def test_garbage_that_a_host_was_seen_to_collect_is_no_standing_still() -> None:
    run = job([USUAL] * 6, [STILL, (24, 4, 4), (4, 4, 24)] * 2)
    names = NameTable(run.ranks[1].names)
    ends = [at * STEP_NS + end * MS for at, end in enumerate([28, 24, 32] * 2)]
    notes = [{"name": "gc_pause_ns", "time_ns": end, "step": 0, "value": 20.0 * MS} for end in ends]
    late = replace(run.ranks[1], telemetry=fact_table(Telemetry, notes, names), names=tuple(names.to_list()))
    run = replace(run, ranks={**run.ranks, 1: late})
    assert found(run) == (None, "")
    path = analyze_with_advice(run).critical_path
    assert [each.garbage_collected_ns for each in path.steps] == [20 * MS] * 6
    assert "in 20.000 ms of the compute its host collected garbage" in critical_path_text(path)


def test_of_several_threads_it_is_not_known_whether_a_host_stood_still() -> None:
    run = job([USUAL] * 4, [STILL] * 4)
    ranks = {rank: replace(with_account(own, 13, 0), recorded={}) for rank, own in run.ranks.items()}
    assert found(replace(run, ranks=ranks)) == (None, "")
    assert [own.stood_still for own in summarize_ranks(replace(run, ranks=ranks)).values()] == [None, None]


def test_hosts_that_take_turns_on_cores_hide_no_other_that_stands_still() -> None:
    run = job([USUAL] * 6, [STILL, (24, 4, 4), (4, 4, 24)] * 2)
    alone = summarize_ranks(run)
    still = {rank: own.stood_still for rank, own in alone.items() if own.stood_still}
    windows = {rank: own.windows for rank, own in alone.items()}

    def turns(*ranks: int) -> list[Finding]:
        return [Finding(id="shared_cores", severity="info", title="", evidence={"ranks": ranks}, known_from="trace")]

    assert [each.evidence["ranks"] for each in standing_still(run, still, windows, turns(0, 2))] == [[1]]
    assert standing_still(run, still, windows, turns(0, 1)) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("ran_ms", "waited_ms", "still_ms"),
    [
        pytest.param(13, 0, 20, id="neither on a core nor waiting for one"),
        pytest.param(13, 20, 0, id="it waited for a core"),
        pytest.param(33, 0, 0, id="it computed"),
    ],
)
def test_the_system_s_account_says_for_how_long_a_host_stood_still(ran_ms: int, waited_ms: int, still_ms: int) -> None:
    run = job([USUAL] * 4, [STILL] * 4)  # with the operation before each step 33 ms
    ranks = {0: with_account(run.ranks[0], 13, 0), 1: with_account(run.ranks[1], ran_ms, waited_ms)}
    finding, _ = found(replace(run, ranks=ranks))
    assert (finding is not None) == (still_ms > 0)
    if finding:
        assert finding.known_from == "telemetry"
        assert finding.evidence["ranks"] == [1]
        assert finding.evidence["still_ns"]["1"] == pytest.approx(still_ms * MS, abs=10)
    path = analyze_with_advice(replace(run, ranks=ranks)).critical_path
    assert all(each.stood_still_ns == pytest.approx(still_ms * MS, abs=10) for each in path.steps)


def test_a_rank_without_spans_has_not_stood_still() -> None:
    run = job([USUAL] * 4, [STILL] * 4)
    empty = replace(run.ranks[1], spans=make(Spans, 0), collectives=make(Collectives, 0))
    ranks = {0: with_account(run.ranks[0], 13, 0), 1: with_account(empty, 13, 0)}
    assert _still_ns(summarize_ranks(replace(run, ranks=ranks)))[1] == 0


# --- who waits for whom -----------------------------------------------------------------------------------------------


def advice(blame_ms: float, wait_ms: float, *, known: bool = True) -> str:
    """Return the title of the advice for rank 1, which stands still for 20 ms in each of 6 steps, where others waited
    for it, and it for others, for so long in all."""
    run = job([USUAL] * 6, [STILL, (24, 4, 4), (4, 4, 24)] * 2)
    together = match_and_align(run)
    analysis = analyze(run, together)
    waits = [
        replace(each, blame_ns=round(blame_ms * MS), wait_ns=round(wait_ms * MS)) if each.rank == 1 else each
        for each in analysis.skew.ranks
        if known or each.rank != 1
    ]
    given = RuleInput.of(run, replace(analysis, skew=replace(analysis.skew, ranks=waits)), together)
    assert "standing_still" in [each.id for each in given.analysis.findings]
    found = advised(given)
    return found.title if found else ""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("blame_ms", "wait_ms", "said"),
    [
        pytest.param(0, 130, False, id="nobody waits for it, and it waits for longer"),
        pytest.param(29, 130, False, id="others wait for it for less than a quarter of its pauses"),
        pytest.param(31, 130, True, id="others wait for it for more than a quarter of them"),
        pytest.param(120, 0, True, id="others wait for all of them"),
        pytest.param(0, 110, True, id="nobody waits for it, but it waits for less: it would end earlier"),
    ],
)
def test_pauses_are_advice_only_where_the_step_may_be_shorter_without_them(
    blame_ms: float, wait_ms: float, *, said: bool
) -> None:
    title = advice(blame_ms, wait_ms)
    assert bool(title) is said
    assert "rank 1" in title or not said


def test_of_a_rank_whose_waits_are_not_known_pauses_are_advice() -> None:
    assert advice(0, 10**6, known=False)


@pytest.mark.parametrize(("other_ms", "said"), [(60, False), (50, True)])
def test_a_rank_that_stands_still_and_then_waits_for_a_later_one_for_longer_is_found_and_no_advice(
    other_ms: int, *, said: bool
) -> None:
    """Rank 1 takes 32 ms with its pauses of 20; rank 0 takes 60 ms, or 50, and never stands still."""
    slow = (other_ms - 20, 10, 10)
    finding, title = found(job([slow] * 6, [STILL, (24, 4, 4), (4, 4, 24)] * 2))
    assert finding
    assert finding.evidence["ranks"] == [1]
    assert bool(title) is said


def test_of_several_ranks_those_that_none_waits_for_are_not_in_the_advice() -> None:
    """Rank 2 stands still for longer, and rank 1 as in the steps before."""
    still = [STILL, (24, 4, 4), (4, 4, 24)] * 2
    run = job([USUAL] * 6, still, [(4, 54, 4), (54, 4, 4), (4, 4, 54)] * 2)
    finding, title = found(run)
    assert finding
    assert sorted(finding.evidence["ranks"]) == [1, 2]
    assert title.startswith("Find what stops the host of rank 2: at least 50 ms of a 100 ms step")
