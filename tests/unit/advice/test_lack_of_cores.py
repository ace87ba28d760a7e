"""What lack of cores costs stands with the cores, and not with exposed communication, where that may be its cause."""

from collections.abc import Mapping
from functools import cache

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import FOR_CORES, _with_what_cores_cost, by_rules
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
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


def losses_ms(analysis: Analysis) -> dict[str, float]:
    """Return the losses of cores and of exposed communication, the first recommendation first."""
    run, together, _ = recorded()
    found = {each.id: (each.loss_ns or 0) / MS for each in by_rules(run, analysis, together)}
    return {name: ms for name, ms in found.items() if name in ("shared_cores", "exposed_communication")}


def test_cores_come_first_where_their_lack_may_be_most_of_exposed_communication() -> None:
    """The waiting is 15 ms of a step, and 20 of 40 ms may be for lack of cores: 35 come before the 20 that are left."""
    found = losses_ms(short_of_cores({"peer_core": 10, "late_end": 5, "slow_transfer": 5, "dependency": 20}))
    assert list(found.items()) == [("shared_cores", 35), ("exposed_communication", 20)]


def test_exposed_communication_comes_first_where_other_causes_are_larger() -> None:
    found = losses_ms(short_of_cores({"peer_core": 5, "peer_compute": 15, "dependency": 20}))
    assert list(found.items()) == [("exposed_communication", 35), ("shared_cores", 20)]
    found = losses_ms(short_of_cores({"peer_compute": 20, "dependency": 20}))
    assert list(found.items()) == [("exposed_communication", 40), ("shared_cores", 15)]


@pytest.mark.parametrize("cause", FOR_CORES)
def test_threads_that_transfer_wait_for_cores_too(cause: str) -> None:
    assert losses_ms(short_of_cores({cause: 30, "dependency": 10})) == {
        "shared_cores": 45, "exposed_communication": 10
    }  # fmt: skip


@pytest.mark.parametrize("cause", ["peer_compute", "peer_host", "dependency", "queued", "unknown"])
def test_what_is_no_lack_of_cores_stays_exposed_communication(cause: str) -> None:
    assert losses_ms(short_of_cores({cause: 40})) == {"shared_cores": 15, "exposed_communication": 40}


def test_where_cores_are_not_short_transfers_are_no_loss_of_cores() -> None:
    assert losses_ms(short_of_cores({"slow_transfer": 40}, share=None)) == {"exposed_communication": 40}


# --- of recommendations as they are ----------------------------------------------------------------------------------


@cache
def found() -> tuple[Recommendation, Recommendation, Recommendation]:
    """Return recommendations for cores, exposed communication and a late rank, of 15, 40 and 30 ms a step."""
    run, together, _ = recorded()
    known = by_rules(run, short_of_cores({"dependency": 40}), together)
    exposed = next(each for each in known if each.id == "exposed_communication")
    return (
        replace(exposed, id="shared_cores", loss_ns=15 * MS),
        exposed,
        replace(exposed, id="late_rank", loss_ns=30 * MS),
    )


LACKING: Mapping[str, int] = {"peer_core": 20, "dependency": 20}


def costs_ms(*found: Recommendation, has_device: bool = False) -> list[float | None]:
    run, together, _ = recorded()
    given = RuleInput.of(run, short_of_cores(LACKING, has_device=has_device), together)
    return [None if each.loss_ns is None else each.loss_ns / MS for each in _with_what_cores_cost(found, given)]


def test_no_other_loss_is_changed_nor_one_that_is_not_known_and_none_below_nothing() -> None:
    cores, exposed, late = found()
    assert costs_ms(late, cores, exposed) == [30, 35, 20]
    assert costs_ms(cores, replace(exposed, loss_ns=None)) == [35, None]
    assert costs_ms(cores, replace(exposed, loss_ns=12 * MS)) == [35, 0], "without what began apart"


def test_with_a_device_or_without_that_recommendation_or_of_whole_recordings_nothing_is_changed() -> None:
    cores, exposed, late = found()
    assert costs_ms(cores, exposed, has_device=True) == [15, 40]
    assert costs_ms(late, exposed) == [30, 40]
    assert costs_ms(replace(cores, per="recording"), exposed) == [15, 40]
