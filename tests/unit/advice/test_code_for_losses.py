"""What is advised about the cause of most exposed communication fits the job: its device, DDP, and its ranks."""

from functools import cache

import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.exposed_remedies import BY_TURNS, INSTEAD, SLOW_ON_CORES
from overlapscope.advice.losses.largest_loss import largest_loss
from overlapscope.advice.losses.own_calls import (
    BESIDE_BACKWARD,
    FEWER_BYTES,
    IN_BUCKETS,
    LAST_BUCKET,
    ON_CORES,
    REPLAY_CAPS,
    of_gradients,
)
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import CrossRank, match_and_align
from overlapscope.analysis.result import Analysis
from overlapscope.timeline.run import Run
from tests.support import ddp_cases
from tests.support.cpu_runs.cpu_steps import Call, Mark, Op, cpu_run

MS = 1_000_000


@cache
def recorded(*, ddp: bool = False) -> tuple[Run, CrossRank, Analysis]:
    marks = [Mark("DistributedDataParallel.forward", 0, 90)] * ddp
    run = cpu_run(lambda *_: [Op("aten::mm", 0, 500), *marks, Call(start=500, end=990), Op("aten::mm", 990, 1000)])
    together = match_and_align(run)
    return run, together, analyze(run, together)


def advised(
    cause: str, *, has_device: bool = False, ddp: bool = False, overlapped_ms: int | None = 0, missing: int = 0
) -> str:
    """Return the code for a loss of which most has one cause, in steps of 100 ms, 80 of them exposed."""
    run, together, analysis = recorded(ddp=ddp)
    head = replace(
        analysis.headline, step_ns=100 * MS, exposed_comm_ns=80 * MS, idle_ns=0, causes={cause: 80 * MS},
        exposed_wait_ns=0, overlapped_ns=None if overlapped_ms is None else overlapped_ms * MS,
    )  # fmt: skip
    ranks = [replace(each, steps=[]) for each in analysis.ranks]
    known = replace(analysis, headline=head, ranks=ranks, run=replace(analysis.run, has_device=has_device))
    run = replace(run, world_size=run.world_size + missing)
    found = largest_loss(RuleInput.of(run, known, together), [])
    assert found is not None
    return found.apply["torch"]


@pytest.mark.parametrize(("has_device", "said"), [(False, SLOW_ON_CORES), (True, INSTEAD["slow_transfer"])])
def test_for_slow_transfers_cores_come_before_the_link_where_there_is_no_device(*, has_device: bool, said: str) -> None:
    assert advised("slow_transfer", has_device=has_device) == said


@pytest.mark.parametrize(
    ("ddp", "overlapped_ms", "has_device", "said"),
    [
        pytest.param(True, 5, True, f"{IN_BUCKETS}{LAST_BUCKET}", id="with a device"),
        pytest.param(
            True, 5, False, f"{IN_BUCKETS}{LAST_BUCKET}{ON_CORES}", id="on cores, which threads that transfer need, too"
        ),
        pytest.param(False, 5, True, INSTEAD["dependency"], id="nothing says that it is DDP"),
        pytest.param(True, 0, True, INSTEAD["dependency"], id="nothing overlaps"),
        pytest.param(True, None, True, INSTEAD["dependency"], id="whether anything overlaps is not known"),
    ],
)
def test_who_overlaps_gradients_in_buckets_is_not_told_to(
    *, ddp: bool, overlapped_ms: int | None, has_device: bool, said: str
) -> None:
    assert advised("dependency", ddp=ddp, overlapped_ms=overlapped_ms, has_device=has_device) == said


@pytest.mark.parametrize("has_device", [False, True])
def test_what_only_the_optimizer_follows_is_not_to_go_in_buckets_where_it_does(*, has_device: bool) -> None:
    said = advised("tail", ddp=True, overlapped_ms=5, has_device=has_device)
    assert said == BESIDE_BACKWARD["tail"].format(rest=LAST_BUCKET)
    assert advised("tail", ddp=True, overlapped_ms=0, has_device=has_device) == INSTEAD["tail"]
    assert "gather" not in said, "nothing is gathered"


@pytest.mark.parametrize("cause", ["queued", "peer_host"])
@pytest.mark.parametrize("has_device", [False, True])
def test_other_causes_get_the_same_whatever_the_job(cause: str, *, has_device: bool) -> None:
    assert advised(cause, ddp=True, overlapped_ms=5, has_device=has_device) == INSTEAD[cause]


@pytest.mark.parametrize(("missing", "said"), [(0, BY_TURNS), (1, INSTEAD["peer_compute"])])
def test_that_no_rank_is_late_throughout_is_not_said_where_one_was_not_recorded(missing: int, said: str) -> None:
    assert advised("peer_compute", missing=missing) == said


@pytest.mark.parametrize(("waits", "said"), [(0, REPLAY_CAPS), (None, FEWER_BYTES)])
def test_a_replay_of_caps_is_named_where_buckets_were_recorded_and_waiting_is_known(
    waits: int | None, said: str
) -> None:
    run = ddp_cases.recorded(ddp_cases.IN_PAIRS)
    together = match_and_align(run)
    analysis = analyze(run, together)
    head = replace(analysis.headline, overlapped_ns=1, exposed_wait_ns=waits)
    given = RuleInput.of(run, replace(analysis, headline=head), together)
    assert of_gradients(given, "dependency").removesuffix(ON_CORES) == f"{IN_BUCKETS}{said}"
