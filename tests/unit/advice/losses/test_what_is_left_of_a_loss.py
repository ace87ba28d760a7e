"""What is left of exposed communication beside what others name; gaps, slow steps, and where compute decides."""

from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.advice.losses.blocked_host import AWAITED_NS
from overlapscope.advice.losses.exposed_communication import LATE_WAITS
from overlapscope.advice.losses.exposed_remedies import FAR_BELOW_OTHERS
from overlapscope.advice.losses.largest_loss import gaps_ns, largest_loss, slow_transfers_ns
from overlapscope.advice.order import OF_BOUND, moved_ns, ranked
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.common.findings import Finding
from tests.support.step_cases import US, Kernel, Sent, made
from tests.unit.advice.losses.test_order_of_losses import one, straggler
from tests.unit.advice.test_exposed_calls import looked_at


def lost(exposed_us: int, idle_us: int, causes: Mapping[str, int]) -> RuleInput:
    """Return steps of 1,000 us with so much exposed and idle time, for these causes in us."""
    given = looked_at(made(lambda _: [Kernel(start=0, end=590), Sent(start=590, end=990)]))
    figures = replace(
        given.figures, exposed_comm_ns=exposed_us * US, idle_ns=idle_us * US,
        idle_causes={"launch_bound": idle_us * US}, causes={cause: us * US for cause, us in causes.items()},
    )  # fmt: skip
    ranks = [replace(each, steps=[replace(step, causes={}) for step in each.steps]) for each in given.analysis.ranks]
    return replace(given, figures=figures, analysis=replace(given.analysis, headline=figures, ranks=ranks))


def title(given: RuleInput, *found: Any, compute: str = "") -> str:
    loss = largest_loss(given, found, compute)
    return "" if loss is None else loss.title


@pytest.mark.parametrize(
    ("gaps_us", "idle_us", "named"),
    [
        pytest.param(
            45, 20, "gaps between kernels take 0.045 ms beside communication, and the device is idle", id="more"
        ),
        pytest.param(30, 40, "Largest loss: 0.1 ms of a 1 ms step are exposed communication", id="as much"),
        pytest.param(4, 150, "Largest loss: the device is idle for 0.15 ms", id="few gaps are not worth words"),
    ],
)
def test_gaps_count_as_idle_time_however_much_of_exposed_time_they_are(gaps_us: int, idle_us: int, named: str) -> None:
    assert named in title(lost(100, idle_us, {"behind_compute": gaps_us, "dependency": 100 - gaps_us}))


@pytest.mark.parametrize(
    ("before_us", "named"),
    [
        pytest.param(185, "Largest loss: 0.1 ms of a 1 ms step are exposed communication", id="nearly all of it"),
        pytest.param(80, "Largest loss: the device is idle for 0.12 ms of a 1 ms step, 0.12 ms of it: l", id="some"),
        pytest.param(10, "Largest loss: the device is idle for 0.2 ms", id="too little for a figure of its own"),
    ],
)
def test_idle_time_before_the_recording_is_no_loss(before_us: int, named: str) -> None:
    given = lost(100, 200, {"dependency": 100})
    causes = {"start_of_recording": before_us * US, "launch_bound": (200 - before_us) * US}
    assert title(replace(given, figures=replace(given.figures, idle_causes=causes))).startswith(named)


def test_gaps_in_which_the_next_kernel_was_not_launched_yet_are_said_as_the_table_of_causes_does() -> None:
    given = lost(100, 0, {"behind_compute": 50, "host_not_ready": 10, "dependency": 40})
    assert "take 0.06 ms of a 1 ms step (0.01 ms of it as the next one was not launched yet)" in title(given)
    assert gaps_ns(given.analysis) == 60 * US


def test_where_idle_time_is_named_what_is_exposed_is_left_to_name() -> None:
    given = lost(100, 60, {"behind_compute": 30, "dependency": 70})
    assert "the device is idle" in title(given)
    assert "exposed communication" in title(given, one("launch_bound", loss_ns=50 * US))


def test_communication_that_only_the_host_waits_for_is_exposed_and_no_idle_time() -> None:
    waits = one("blocking_calls", loss_ns=80 * US, evidence={AWAITED_NS: 70 * US})
    assert "the device is idle" in title(lost(100, 120, {"host_waited": 70, "dependency": 30}), waits)
    assert not title(lost(120, 20, {"host_waited": 70, "dependency": 50}), waits), "more than half of it is named"
    remedy = largest_loss(lost(100, 0, {"host_waited": 70, "dependency": 30}), [])
    assert remedy is not None
    assert "no synchronisation of the host" in remedy.apply["torch"]


def test_waiting_that_is_named_as_lateness_is_not_named_again() -> None:
    given = lost(400, 0, {"peer_compute": 250, "tail": 150})
    found = largest_loss(given, [straggler(300)])
    assert found is not None
    assert found.title.startswith(
        "A further 0.15 ms of a 1 ms step are exposed communication besides waiting for late ranks, "
        "0.15 ms of it: only the optimizer follows"
    )
    assert (found.loss_ns, found.evidence[LATE_WAITS]) == (150 * US, 250 * US)
    assert moved_ns([found, straggler(300)], given.analysis)["exposed_communication"] == -50 * US, "not twice"
    assert "besides" not in title(given)
    assert not title(lost(400, 0, {"peer_compute": 390, "tail": 10}), straggler(300)), "too little is left"


@pytest.mark.parametrize(("exposed_us", "little"), [(30, True), (31, False)])
def test_where_nearly_nothing_is_lost_compute_is_named_first(exposed_us: int, *, little: bool) -> None:
    given = lost(exposed_us, 19, {"dependency": exposed_us})
    said, unknown = title(given, compute="its kernels decide"), title(given)
    assert said.startswith("its kernels decide; 0.03 ms" if little else "Largest loss: ")
    assert "is compute" not in said or not little, "it is said once"
    assert unknown.startswith("0.03 ms" if little else "Largest loss: ")


# --- the order -----------------------------------------------------------------------------------------------------


def ids(*found: Any, moved: Mapping[str, int] | None = None) -> list[str]:
    return [each.id for each in ranked(found, 1, moved)]


def test_a_bound_that_complete_overlap_alone_would_reach_counts_half() -> None:
    churn = one("allocator_churn", loss_ns=100 * US)
    assert ids(one("tensor_parallel", round(99 / OF_BOUND)), churn) == ["allocator_churn", "tensor_parallel"]
    assert ids(churn, one("tensor_parallel", round(101 / OF_BOUND))) == ["tensor_parallel", "allocator_churn"]
    assert ids(churn, one("tensor_parallel", 150, predicted_gain_ns=110 * US))[0] == "tensor_parallel", "it is replayed"
    assert ids(churn, one("unfused_optimizer", 101))[0] == "unfused_optimizer", "its time can go in full"


@pytest.mark.parametrize(("uneven_us", "first"), [(100, "uneven_stages"), (90, "exposed_communication")])
def test_uneven_stages_come_before_the_waits_that_they_make_a_third_of(uneven_us: int, first: str) -> None:
    given = lost(350, 0, {"pipeline": 300, "tail": 50})
    found = [one("exposed_communication", loss_ns=350 * US), one("uneven_stages", uneven_us)]
    assert ids(*found, moved=moved_ns(found, given.analysis))[0] == first


def test_a_stage_that_computes_longer_is_named_with_the_waits_between_stages() -> None:
    given = lost(350, 0, {"pipeline": 300, "tail": 50})
    evidence = {
        "stage": 1, "ranks": [1], "work_ns": {"0": 6 * 500 * US, "1": 6 * 700 * US}, "more_ns": 6 * 200 * US,
        "step_work_ns": {"0": 500 * US, "1": 700 * US}, "more_step_ns": 200 * US,
    }  # fmt: skip
    finding = Finding(id="uneven_stages:stage1", severity="warning", title="", evidence=evidence, known_from="trace")
    uneven = replace(given, analysis=replace(given.analysis, findings=[finding]))
    assert "with their waits (about 0.1 ms as stage 1 computes longer)" in title(uneven)
    assert "computes longer" not in title(given)


@pytest.mark.parametrize(
    ("known", "slow_share", "said"), [(True, 1.0, True), (True, 0.4, False), (False, 1.0, False)],
    ids=["most of it", "little of it", "it may be waiting"],
)  # fmt: skip
def test_transfers_far_slower_than_on_another_machine_are_a_reason_to_look_at_the_links_first(
    slow_share: float, *, known: bool, said: bool
) -> None:
    given = lost(300, 0, {"dependency": 250, "peer_host": 50})
    row = replace(given.analysis.collectives[0], exposed_ns=round(slow_share * 300 * US * given.steps), bytes=64)
    kinds = [{"op": row.op, "group": row.group, "bytes": 64, "busbw_gbs": 100.0, "elsewhere_busbw_gbs": 370.0}]
    finding = Finding(
        id="below_other_machines", severity="info", title="", evidence={"kinds": kinds}, known_from="trace"
    )
    analysis = replace(given.analysis, findings=[finding], collectives=[row])
    figures = replace(given.figures, exposed_wait_ns=50 * US if known else None)
    found = largest_loss(replace(given, analysis=analysis, figures=figures), [])
    assert found is not None
    words = "transfers 3.7 times as fast: look at the links and NCCL's settings first, for at most 0.25 ms of it"
    assert (words in found.title) is said
    assert found.apply.get("look", "").startswith(FAR_BELOW_OTHERS) is said
    assert (found.verdict, found.gain_high_ns) == ("look", None), "it is another machine's figure"


# --- slow transfers of some steps -----------------------------------------------------------------------------------


def slow_in_two_steps(slow_us: int) -> RuleInput:
    """Return six steps, of two of which so many us are transfers slower than their baseline."""
    given = lost(40, 0, {"dependency": 40})
    ranks = [
        replace(info, steps=[
            replace(step, causes={"dependency": 40 * US, "slow_transfer": slow_us * US * (step.step in (2, 4))})
            for step in info.steps
        ])
        for info in given.analysis.ranks
    ]  # fmt: skip
    return replace(given, analysis=replace(given.analysis, ranks=ranks))


def test_transfers_that_are_slow_in_few_steps_are_the_largest_loss_where_their_mean_is() -> None:
    given, overlap = slow_in_two_steps(300), one("tensor_parallel", 90, loss_ns=90 * US)
    assert slow_transfers_ns(given.analysis) == 100 * US
    found = largest_loss(given, [overlap])
    assert found is not None
    assert found.title == (
        "Largest loss: transfers slower than their baseline take 0.1 ms of a 0.998 ms step, in the mean of 6 steps, "
        "nearly all in steps 2, 4"
    )
    assert found.loss_ns == 100 * US
    assert "look at the link" in found.apply["torch"]
    assert not title(given, one("tensor_parallel", 101, loss_ns=101 * US)), "what another one may gain is more"
    assert not title(given, overlap, one("repair_link")), "the link is named"


def test_a_slow_link_is_placed_by_the_mean_of_its_slow_transfers() -> None:
    found = [one("unfused_optimizer", 90), one("repair_link")]
    assert ids(*found, moved=moved_ns(found, slow_in_two_steps(300).analysis)) == ["repair_link", "unfused_optimizer"]
    assert ids(*found, moved=moved_ns(found, slow_in_two_steps(240).analysis))[0] == "unfused_optimizer"


@pytest.mark.parametrize(("unsplit_us", "said"), [(40, False), (50, True)])
def test_waiting_is_included_where_calls_that_are_not_split_have_a_twentieth_of_a_cause(
    unsplit_us: int, *, said: bool
) -> None:
    """As in the table of causes: a few calls that were not matched do not make all of it uncertain."""
    given = lost(100, 0, {"dependency": 100})
    figures = replace(given.figures, exposed_wait_ns=None)
    ranks = [
        replace(
            each,
            whole=replace(each.whole, causes={"dependency": 1000 * US}),
            unsplit_causes={"dependency": unsplit_us * US},
        )
        for each in given.analysis.ranks
    ]
    analysis = replace(given.analysis, headline=figures, ranks=ranks)
    loss = title(replace(given, figures=figures, analysis=analysis))
    assert ("waiting for other ranks included" in loss) == said
