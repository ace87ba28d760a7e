"""What lack of cores may explain of exposed communication counts as a loss of cores in the order of the list."""

from collections.abc import Mapping
from functools import cache

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import by_rules
from overlapscope.advice.order import FOR_CORES, moved_ns, ranked
from overlapscope.advice.shared_cores import shared_cores
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.graph.answers import CriticalPath, StepPath
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.timeline.run import Run
from tests.support.cpu_runs.cpu_steps import Call, Op, cpu_run

MS = 1_000_000
STEP_MS, EXPOSED_MS = 100, 40


@cache
def recorded() -> tuple[Run, CrossRank, Analysis]:
    run = cpu_run(lambda step, rank: [Op("aten::mm", 0, 500), Call(start=500, end=990), Op("aten::mm", 990, 1000)])
    together = match_and_align(run)
    return run, together, analyze(run, together)


def short_of_cores(causes_ms: Mapping[str, int], share: float | None = 0.15, *, has_device: bool = False) -> Analysis:
    """Return the analysis of steps of 100 ms, 40 of them exposed, in which threads waited for cores for so much."""
    _, _, analysis = recorded()
    head = replace(
        analysis.headline, step_ns=STEP_MS * MS, exposed_comm_ns=EXPOSED_MS * MS, idle_ns=0,
        causes={cause: ms * MS for cause, ms in causes_ms.items()},
    )  # fmt: skip
    shares = {"median_share": share, "most_share": share}
    found = Finding(id="shared_cores", severity="warning", title="", evidence=shares, known_from="telemetry")
    return replace(
        analysis, headline=head, findings=[] if share is None else [found],
        run=replace(analysis.run, has_device=has_device),
    )  # fmt: skip


def in_order(analysis: Analysis) -> list[str]:
    """Return which of cores and of exposed communication are recommended, the first one first; losses stay theirs."""
    run, together, _ = recorded()
    every = [each for each in by_rules(run, analysis, together) if each.id in ("shared_cores", "exposed_communication")]
    losses = {each.id: (each.loss_ns or 0) / MS for each in every}
    assert losses == {name: {"shared_cores": 15, "exposed_communication": EXPOSED_MS}[name] for name in losses}
    return [each.id for each in every]


def test_cores_come_first_where_their_lack_may_be_most_of_exposed_communication() -> None:
    """The waiting is 15 ms of a step, and 20 of 40 ms may be for lack of cores: 35 come before the 20 that are left."""
    found = in_order(short_of_cores({"peer_core": 10, "late_end": 5, "slow_transfer": 5, "dependency": 20}))
    assert found == ["shared_cores", "exposed_communication"]


def test_exposed_communication_comes_first_where_other_causes_are_larger() -> None:
    for causes in ({"peer_core": 5, "peer_compute": 15, "dependency": 20}, {"peer_compute": 20, "dependency": 20}):
        assert in_order(short_of_cores(causes)) == ["exposed_communication", "shared_cores"]


@pytest.mark.parametrize("cause", FOR_CORES)
def test_threads_that_transfer_wait_for_cores_too(cause: str) -> None:
    assert in_order(short_of_cores({cause: 30, "dependency": 10})) == ["shared_cores", "exposed_communication"]


@pytest.mark.parametrize("cause", ["peer_compute", "peer_host", "dependency", "queued", "unknown"])
def test_what_is_no_lack_of_cores_stays_exposed_communication(cause: str) -> None:
    assert in_order(short_of_cores({cause: 40})) == ["exposed_communication", "shared_cores"]


@pytest.mark.parametrize(
    ("waited_ms", "named"),
    [
        pytest.param({2: 10}, True, id="a tenth of the typical step's path"),
        pytest.param({2: 9.9}, False, id="less of it"),
        pytest.param({2: 0, 3: 50}, False, id="of another step's path"),
        pytest.param({3: 50}, False, id="the typical step's path is not known"),
        pytest.param({}, False, id="no path is known"),
    ],
)
def test_cores_that_are_seldom_short_are_named_where_the_critical_path_waits_for_them(
    waited_ms: Mapping[int, float], *, named: bool
) -> None:
    """Threads waited for a core for 5 % of the time, on no rank for more."""
    known = short_of_cores({"dependency": 40}, share=0.05)
    steps = [
        StepPath(step=step, rank=0, length_ns=STEP_MS * MS, parts={}, ranks={}, operations=[],
                 waited_for_core_ns=round(ms * MS))
        for step, ms in waited_ms.items()
    ]  # fmt: skip
    found = shared_cores(replace(known, critical_path=CriticalPath(scope="ranks", median_step=2, steps=steps)))
    assert (found is not None) == named
    if found is not None:
        assert found.title.endswith(
            "for up to 5.0 % of the time, and for 10.0 % of the critical path of a typical step"
        )
        assert found.loss_ns == STEP_MS * MS // 10


@pytest.mark.parametrize(("most_share", "named"), [(0.1, True), (0.099, False), (None, False)])
def test_or_where_one_rank_waits_for_them_for_a_tenth_of_the_time(most_share: float | None, *, named: bool) -> None:
    known = short_of_cores({"dependency": 40}, share=0.05)
    shares = {"median_share": 0.05} | ({} if most_share is None else {"most_share": most_share})
    findings = [replace(each, evidence=shares) for each in known.findings]
    assert (shared_cores(replace(known, findings=findings, critical_path=CriticalPath())) is not None) == named


def test_where_cores_are_not_short_transfers_are_no_loss_of_cores() -> None:
    assert in_order(short_of_cores({"slow_transfer": 40}, share=None)) == ["exposed_communication"]


# --- of recommendations as they are ----------------------------------------------------------------------------------


def cores() -> Recommendation:
    """Return the recommendation for cores, of 15 ms a step."""
    run, together, _ = recorded()
    known = by_rules(run, short_of_cores({"dependency": 40}), together)
    return next(each for each in known if each.id == "shared_cores")


LACKING: Mapping[str, int] = {"peer_core": 20, "dependency": 20}


def test_nothing_is_moved_with_a_device_without_that_recommendation_of_whole_recordings_or_of_no_known_loss() -> None:
    lacking = short_of_cores(LACKING)
    assert moved_ns([cores()], lacking) == {"shared_cores": 20 * MS, "exposed_communication": -20 * MS}
    assert moved_ns([cores()], short_of_cores(LACKING, has_device=True)) == {}
    assert moved_ns([replace(cores(), id="late_rank")], lacking) == {}
    assert moved_ns([replace(cores(), per="recording")], lacking) == {}
    assert moved_ns([replace(cores(), loss_ns=None)], lacking) == {}


@pytest.mark.parametrize(
    ("held_by", "moved"), [(None, {"standing_still": 20 * MS, "late_rank": -20 * MS}), ("host", {})]
)
def test_waiting_for_hosts_in_turn_that_stand_still_is_a_loss_of_theirs(
    held_by: str | None, moved: dict[str, int]
) -> None:
    still = replace(cores(), id="standing_still", loss_ns=20 * MS)
    late = replace(cores(), id="late_rank", loss_ns=30 * MS, evidence={"held_by": held_by})
    analysis = short_of_cores(LACKING, None)
    assert moved_ns([still, late], analysis) == moved
    assert moved_ns([late], analysis) == moved_ns([still], analysis) == {}
    found = ranked([late, still], 1, moved_ns([still, late], analysis))
    assert [each.id for each in found] == (
        ["standing_still", "late_rank"] if moved else ["late_rank", "standing_still"]
    )
