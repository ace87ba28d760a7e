"""Recommendations: each rule has a run that fires it, one that must not, and a page."""

import ast
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import SHORTENS, advise, by_rules
from overlapscope.advice.late_rank import LOOK, late_rank
from overlapscope.advice.losses.exposed_remedies import BY_TURNS, FILLS, INSTEAD, MORE_BATCHES, UNEVEN_STAGES
from overlapscope.advice.losses.largest_loss import largest_loss
from overlapscope.advice.replayed_settings import bucket_advice, fsdp_reasons
from overlapscope.advice.rule_input import RuleInput
from overlapscope.advice.setting_code import snippets
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.common.cause_table import WAITS_FOR_LATE_RANK, cause_label
from overlapscope.analysis.common.findings import Finding
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.result import Recommendation
from overlapscope.analysis.stragglers.straggler_cause import STRAGGLER_CAUSES
from overlapscope.analysis.stragglers.stragglers import Straggler
from overlapscope.cli.main import main
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.text.analysis import render
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp.ddp_predict import predict_ddp
from overlapscope.whatif.ddp.ddp_recording import ddp_case_of_run
from overlapscope.whatif.result import Best, WhatIf
from overlapscope.whatif.step_graph.fsdp_changes import NO_GATHERS, NO_SIZES
from overlapscope.whatif.step_graph.graph_predict import NONE_REPLAYED
from tests.conftest import ROOT
from tests.support.commands import stdout_of
from tests.support.ddp_cases import Made, recorded

MB = 2**18
READY = (600, 800, 1000, 1200, 1400, 1600, 1800, 2000)
MS = 1_000_000
ONE = Made(ready=READY, elements=(MB,) * 8, buckets=(tuple(range(8)),), ticks_per_mb=120)
EACH = replace(ONE, buckets=tuple((each,) for each in range(8)), ticks_per_mb=20)


def advised(run: Run) -> dict[str, Recommendation]:
    found, _ = advise(run, analyze(run))
    return {each.id: each for each in found}


def replayed(made: Made) -> WhatIf:
    return predict_ddp(ddp_case_of_run(recorded(made)), search=False)


@pytest.mark.slow
def test_one_bucket_that_nothing_overlaps_is_advised_against_and_small_ones_are_left_alone() -> None:
    one = advised(recorded(ONE))
    assert one["bucket_cap"].verdict == "change"
    assert (one["bucket_cap"].gain_low_ns or 0) > 0
    assert "keep_buckets" not in one
    each = advised(recorded(EACH))
    assert each["keep_buckets"].predicted_gain_ns is None
    assert "bucket_cap" not in each


def retold(present: dict[str, Any], best: dict[str, Any]) -> WhatIf:
    """Return an answer that changes present knobs to the best."""
    base = replayed(ONE)
    gained = next(each for each in base.scenarios if each.gain_low > 0)
    change = msgspec.structs.replace
    return change(
        base, verdict="change", best=Best(knobs=best), baseline=change(base.baseline, knobs=present),
        scenarios=[change(base.scenarios[0], knobs=present), change(gained, knobs=best)],
    )  # fmt: skip


VIEW = {"gradient_as_bucket_view": True}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("present", "best", "title"),
    [
        ({"bucket_cap_mb": 25.0}, {"bucket_cap_mb": 4.0}, "Set bucket_cap_mb=4"),
        ({"bucket_cap_mb": 25.0, **VIEW}, {"bucket_cap_mb": 4.0, **VIEW}, "Set bucket_cap_mb=4"),
        (
            {"bucket_cap_mb": 25.0, "accumulation": 2, "no_sync": False},
            {"bucket_cap_mb": 25.0, "accumulation": 2, "no_sync": True},
            "Set no_sync=True",
        ),
        (
            {"bucket_cap_mb": 25.0, "accumulation": 2, "no_sync": True, "hook": "16-bit"},
            {"bucket_cap_mb": 4.0, "accumulation": 2, "no_sync": True, "hook": "16-bit"},
            "Set bucket_cap_mb=4",
        ),
        (
            {"bucket_cap_mb": 25.0, **VIEW},
            {"bucket_cap_mb_list": [1.0, 2.0, 3.0, 4.0]},
            "Set bucket_cap_mb_list=[1, 2, 3, ...], gradient_as_bucket_view=False",
        ),
    ],
)
def test_the_code_is_what_torch_takes_and_the_title_what_changes(
    present: dict[str, Any], best: dict[str, Any], title: str
) -> None:
    found = bucket_advice(retold(present, best), 4)[0]
    assert (found.id, found.title) == ("bucket_cap", title)
    call = ast.parse(found.apply["ddp"].split("\n")[0]).body[0]
    assert isinstance(call, ast.Expr)
    assert isinstance(call.value, ast.Call)
    written = {str(each.arg): ast.literal_eval(each.value) for each in call.value.keywords}
    # None of these is a keyword of DistributedDataParallel.
    assert written == {name: each for name, each in best.items() if name not in {"accumulation", "no_sync", "hook"}}
    assert ("no_sync()" in found.apply["ddp"]) == ("no_sync" in title)
    assert ("deepspeed" in found.apply) == (title == "Set bucket_cap_mb=4")


@pytest.mark.slow
def test_sixteen_bits_are_a_trial_where_they_surely_gain_and_never_stand_first() -> None:
    found, _ = advise(run := recorded(ONE), analyze(run))
    assert [each.id for each in found][-1] == "sixteen_bit_gradients"
    assert found[-1].changes_numerics
    assert found[-1].verdict == "trial"
    assert "sixteen_bit_gradients" not in advised(recorded(EACH))


@pytest.mark.slow
def test_sixteen_bits_are_not_tried_where_hosts_lack_cores() -> None:
    """Threads that transfer wait for cores, whatever they send; a device's do not."""
    run = recorded(ONE)
    analysis = analyze(run)
    lacking = replace(analysis, findings=[*analysis.findings, found_as("few_cores")])
    for has_device, tried in ((False, False), (True, True)):
        known = replace(lacking, run=replace(lacking.run, has_device=has_device))
        assert ("sixteen_bit_gradients" in [each.id for each in advise(run, known)[0]]) is tried


@pytest.mark.slow
@pytest.mark.parametrize(
    ("causes", "still", "has_device", "tried"),
    [
        pytest.param({"slow_transfer": 10, "dependency": 20}, False, False, True, id="a little longer"),
        pytest.param({"slow_transfer": 30, "dependency": 20, "tail": 10}, False, False, False, id="they stall"),
        pytest.param({"slow_transfer": 10}, False, False, False, id="all of it is longer than the fastest"),
        pytest.param({"dependency": 20}, True, False, False, id="hosts stand still"),
        pytest.param({"slow_transfer": 30, "dependency": 20}, True, True, True, id="a device"),
    ],
)
def test_sixteen_bits_are_not_tried_where_transfers_take_long_whatever_their_bytes(
    causes: dict[str, int], still: bool, has_device: bool, tried: bool
) -> None:
    run = recorded(ONE)
    analysis = analyze(run)
    known = replace(
        analysis, findings=[*analysis.findings, *([found_as("standing_still", ranks=[], lost_ns={})] if still else [])],
        headline=replace(analysis.headline, causes={cause: ms * MS for cause, ms in causes.items()}),
        run=replace(analysis.run, has_device=has_device),
    )  # fmt: skip
    found, _ = advise(run, known)
    assert ("sixteen_bit_gradients" in [each.id for each in found]) is tried


@pytest.mark.slow
@pytest.mark.parametrize(
    ("speed", "has_device", "tried"), [(0.49, False, True), (0.5, False, False), (0.5, True, True)]
)
def test_sixteen_bits_are_not_tried_where_cores_cast_no_faster_than_the_link(
    speed: float, has_device: bool, tried: bool
) -> None:
    run = recorded(ONE)
    analysis = analyze(run)
    rows = [replace(each, algbw_gbs=speed) for each in analysis.collectives]
    known = replace(analysis, collectives=rows, run=replace(analysis.run, has_device=has_device))
    assert ("sixteen_bit_gradients" in [each.id for each in advise(run, known)[0]]) is tried


def test_no_cap_is_advised_to_a_model_that_is_known_to_have_no_ddp() -> None:
    run = recorded(ONE)
    ranks = {rank: replace(each, recorded={**each.recorded, "ddp": {}}) for rank, each in run.ranks.items()}
    kept: list[WhatIf] = []
    found, reasons = advise(own := replace(run, ranks=ranks), analyze(own), keep=lambda _, result: kept.append(result))
    assert not {"keep_buckets", "bucket_cap", "bucket_view"} & {each.id for each in found}
    assert any("not wrapped in DistributedDataParallel" in each for each in reasons)
    assert not kept, "none is predicted either"


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "low", "tried"), [(0.021, 0.001, True), (0.019, 0.001, False), (0.05, -0.001, False)])
def test_sixteen_bits_are_tried_where_they_gain_more_than_recordings_of_one_code_differ(
    gain: float, low: float, *, tried: bool
) -> None:
    case = replayed(replace(EACH, late=(0, 60), ticks_per_mb=80))
    rows = [replace(row, gain=gain, gain_low=low) if row.changes_numerics else row for row in case.scenarios]
    found = bucket_advice(replace(case, scenarios=rows), 4)
    assert ("sixteen_bit_gradients" in [each.id for each in found]) is tried


@pytest.mark.slow
def test_views_are_advised_where_buckets_take_memory_of_their_own() -> None:
    run = recorded(ONE)
    ranks = {
        rank: replace(
            each, recorded={**each.recorded, "ddp": {**each.recorded["ddp"], "gradient_as_bucket_view": False}}
        )
        for rank, each in run.ranks.items()
    }
    assert "bucket_view" not in advised(run)
    case = ddp_case_of_run(replace(run, ranks=ranks))
    found = {
        each.id: each for each in bucket_advice(predict_ddp(replace(case, copied_ns_per_byte=0.05), search=False), 4)
    }
    assert found["bucket_view"].memory_bytes == -8 * 2**20


def with_views(gain: float, low: float, high: float, **more: Any) -> WhatIf:
    """Return an answer in which views gain so much of a step, and nothing else is to be changed."""
    change = msgspec.structs.replace
    now = {"bucket_cap_mb": 25.0}
    base = retold(now, {**now, **VIEW})
    plain = change(base.scenarios[0], memory_bytes=8 << 20)
    views = change(base.scenarios[1], memory_bytes=0, gain=gain, gain_low=low, gain_high=high)
    other = change(views, knobs={"bucket_cap_mb": 4.0, **VIEW}, gain=0.5, gain_low=0.4, gain_high=0.6)
    result = change(base, scenarios=[plain, other, views], verdict="no_change", best=Best(knobs=now))
    return change(result, **more)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("gain", "low", "high", "fires"),
    [(0.03, 0.01, 0.05, True), (0.0, -0.015, 0.015, True), (-0.01, -0.03, 0.01, False), (0.01, -0.03, 0.05, False)],
)
def test_views_are_advised_only_where_they_probably_cost_no_time(
    gain: float, low: float, high: float, *, fires: bool
) -> None:
    found = {each.id: each for each in bucket_advice(with_views(gain, low, high), 4)}
    assert ("bucket_view" in found) == fires
    if fires:  # the gain is that of views alone, under the present cap, which the code keeps
        step = found["bucket_view"].evidence["step_ns"]
        assert found["bucket_view"].predicted_gain_ns == round(gain * step)
        assert found["bucket_view"].memory_bytes == -8 << 20
        code = "DistributedDataParallel(model, bucket_cap_mb=25, gradient_as_bucket_view=True)"
        assert found["bucket_view"].apply["ddp"] == code


@pytest.mark.slow
def test_views_that_the_best_settings_hold_are_not_advised_again(monkeypatch: pytest.MonkeyPatch) -> None:
    best = Best(knobs={"bucket_cap_mb": 4.0, **VIEW})
    found = bucket_advice(with_views(0.03, 0.01, 0.05, verdict="change", best=best), 4)
    assert [each.id for each in found] == ["bucket_cap"]
    assert found[0].memory_bytes == -8 << 20
    copies = replace(found[0], id="communication_copies", apply={"ddp": "..."})
    both = with_views(0.03, 0.01, 0.05, verdict="change", best=best)
    monkeypatch.setattr("overlapscope.advice.advise._by_rules", lambda *_: ([copies], False))
    monkeypatch.setattr("overlapscope.advice.replayed_settings.predict_ddp", lambda *_: both)
    assert list(advised(recorded(ONE))) == ["bucket_cap"]


@pytest.mark.slow
def test_a_predicted_gain_of_views_takes_the_place_of_the_copies_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    run = recorded(ONE)
    case = ddp_case_of_run(run)
    unset = replace(case, baseline=replace(case.baseline, gradient_as_bucket_view=False), copied_ns_per_byte=0.05)
    copies = replace(
        advised(run)["bucket_cap"], id="communication_copies", apply={"ddp": "DistributedDataParallel(...)"}
    )
    monkeypatch.setattr("overlapscope.advice.advise._by_rules", lambda *_: ([copies], False))
    monkeypatch.setattr("overlapscope.advice.replayed_settings.ddp_case_of_run", lambda *_: unset)
    assert {"bucket_view"} == {"bucket_view", "communication_copies"} & advised(run).keys()
    monkeypatch.setattr("overlapscope.advice.replayed_settings.ddp_case_of_run", lambda *_: case)
    assert {"communication_copies"} == {"bucket_view", "communication_copies"} & advised(run).keys()


def test_a_run_that_waits_gets_its_late_rank_and_no_setting() -> None:
    late = advised(recorded(replace(ONE, late=(0, 4000), ticks_per_mb=20)))
    assert set(late) == {"late_rank"}, "nothing is recorded at the end of steps of rank 0, which waits for nobody there"
    assert "rank 1" in late["late_rank"].title
    assert late["late_rank"].apply["look"].startswith("overlapscope explain RUN")
    assert late_rank(analyze(recorded(ONE))) is None


@pytest.mark.parametrize(("after", "named"), [(0.0, True), (0.9, False)])
def test_what_ranks_wait_after_the_last_one_has_begun_is_for_no_late_rank(after: float, *, named: bool) -> None:
    analysis = analyze(recorded(replace(ONE, late=(0, 4000), ticks_per_mb=20)))
    ranks = [replace(each, late_end_ns=round(after * each.wait_ns)) for each in analysis.skew.ranks]
    found = late_rank(replace(analysis, skew=replace(analysis.skew, ranks=ranks, stragglers=[])))
    assert (found is not None) is named


@pytest.mark.parametrize(("sent", "named"), [(0.4, True), (0.6, False)])
def test_where_messages_are_most_of_what_is_exposed_collectives_alone_name_no_late_rank(
    sent: float, *, named: bool
) -> None:
    """As in a pipeline that is not known to be one: its first stage comes to the calls at the end last."""
    analysis = analyze(recorded(replace(ONE, late=(0, 4000), ticks_per_mb=20)))
    rows = [replace(row, exposed_ns=0) for row in analysis.collectives]
    rows[0] = replace(rows[0], exposed_ns=round((1 - sent) * MS))
    rows += [replace(rows[0], op="recv", exposed_ns=round(sent * MS))]
    none = replace(analysis, collectives=rows, skew=replace(analysis.skew, stragglers=[]))
    assert (late_rank(none) is not None) is named
    assert late_rank(replace(analysis, collectives=rows)) is not None, "a straggler is found by all that ranks do"


@pytest.mark.parametrize("cause", [each for each in STRAGGLER_CAUSES if each != "unknown"])
def test_each_cause_of_a_late_rank_has_something_to_type(cause: str) -> None:
    assert LOOK[cause]


@pytest.mark.slow
def test_no_setting_is_advised_while_waiting_for_a_late_rank_dominates_what_is_exposed() -> None:
    """Waiting is less than half of the time in collectives, and more than half of what is exposed."""
    run = recorded(late := replace(EACH, late=(0, 150), ticks_per_mb=80))
    assert late_rank(analyze(run)) is None
    case = replayed(late)
    assert (case.verdict, case.waiting) == ("no_change", True)
    found, reasons = advise(run, analyze(run))
    assert not {"keep_buckets", "bucket_cap", "bucket_view", "sixteen_bit_gradients"} & {each.id for each in found}
    assert "no setting of communication is recommended before ranks wait less for others" in reasons[0]
    assert "rank 1 is late" not in reasons[0], "no test against chance was made of it"
    soon = replayed(replace(late, late=(0, 60)))
    assert not soon.waiting
    assert [each.id for each in bucket_advice(soon, 4)] == ["keep_buckets", "sixteen_bit_gradients"]
    assert not bucket_advice(replace(soon, waiting=True), 4)


def test_what_analyze_lists_and_a_setting_would_shorten_is_said_beside_the_setting() -> None:
    run = read_inputs([ROOT / "traces" / "regressed"])
    analysis = analyze(run)
    listed = [each.id for each in by_rules(run, analysis, match_and_align(run))]
    found, reasons = advise(run, analysis)
    assert "exposed_communication" in listed
    assert "exposed_communication" not in [each.id for each in found]
    assert any("exposed_communication, which `analyze` lists, is what bucket_cap" in each for each in reasons)
    (cap,) = (each for each in found if each.id == "bucket_cap")
    assert (cap.predicted_gain_ns or 0) >= SHORTENS * (analysis.headline.exposed_comm_ns or 0)
    assert "what a bucket costs its host" in cap.assumed
    assert not any("_" in each or " us" in each for each in cap.assumed), "names of values are no words"


@pytest.mark.parametrize(
    ("causes", "said"),
    [
        ({"peer_host": 30, "peer_comm": 15, "peer_compute": 10, "host_not_ready": 35}, "wait: for late ranks"),
        ({"peer_host": 40, "peer_compute": 10, "dependency": 35}, "wait: the late rank idled longer"),
        (
            {"peer_host": 18, "peer_comm": 15, "peer_compute": 10, "slow_transfer": 27, "dependency": 20},
            "wait: for late ranks",
        ),
        ({"peer_host": 10, "peer_compute": 10, "dependency": 35}, "the next compute waited for it"),
    ],
)
def test_waits_for_late_ranks_are_one_cause_of_the_largest_loss(causes: dict[str, int], said: str) -> None:
    run = recorded(ONE)
    analysis = analyze(run)
    head = replace(
        analysis.headline, causes={name: ms * 10**6 for name, ms in causes.items()}, exposed_comm_ns=90 * 10**6
    )
    named = largest_loss(RuleInput.of(run, replace(analysis, headline=head), match_and_align(run)), [])
    assert named
    assert said in named.title


@pytest.mark.parametrize(
    ("split", "dependency", "said"),
    [
        pytest.param(True, 25, ", 45 ms of it: transfer, once all ranks had come", id="more in sum than any one"),
        pytest.param(True, 12, ", 33 ms of it: wait: for late ranks", id="less than waiting"),
        pytest.param(True, 40, ", 40 ms of it: the next compute waited for it", id="one of them is more than waiting"),
        pytest.param(False, 25, ", 33 ms of it: wait: for late ranks", id="some may be waiting"),
    ],
)
def test_what_is_exposed_once_all_had_come_is_one_cause_of_the_largest_loss(
    *, split: bool, dependency: int, said: str
) -> None:
    causes = {"peer_host": 18, "peer_comm": 15, "slow_transfer": 20, "dependency": dependency}
    assert said in title_of(causes, split=split)


def test_the_next_cause_of_one_group_with_the_largest_is_the_rest_of_that() -> None:
    causes = {"slow_transfer": 40, "late_end": 17, "dependency": 16, "peer_host": 17}
    said = ", 40 ms of it: transfer slower than its baseline; 33 ms: other transfer, once all ranks had come"
    assert said in title_of(causes, split=True)


def title_of(causes: dict[str, int], *, split: bool) -> str:
    """Return what is said of the largest loss with these causes of exposed time, in ms."""
    run = recorded(ONE)
    analysis = analyze(run)
    waits_ms = sum(causes.get(each, 0) for each in ("peer_host", "peer_comm"))
    head = replace(
        analysis.headline, causes={name: ms * MS for name, ms in causes.items()},
        exposed_comm_ns=sum(causes.values()) * MS, exposed_wait_ns=waits_ms * MS if split else None,
    )  # fmt: skip
    ranks = [replace(each, steps=[replace(step, causes={}) for step in each.steps]) for each in analysis.ranks]
    known = replace(analysis, headline=head, ranks=ranks)
    named = largest_loss(RuleInput.of(run, known, match_and_align(run)), [])
    assert named
    return named.title


def found_as(id_: str, **evidence: object) -> Finding:
    return Finding(id=id_, severity="warning", title="", evidence=evidence, known_from="trace")


@pytest.mark.parametrize(
    ("causes", "findings", "said"),
    [
        pytest.param({"slow_transfer": 5}, [], "its baseline", id="nothing"),
        pytest.param(
            {"slow_transfer": 5, "peer_host": 4, "peer_core": 4}, [],
            ", over all steps 61.5 % of it: wait: for late ranks", id="another cause over all steps",
        ),
        pytest.param(
            {}, [found_as("standing_still", ranks=[1])], "(perhaps as rank 1 stood still in calls, too)", id="a rank"
        ),
        pytest.param({}, [found_as("standing_still", ranks=[0, 1])], "its baseline", id="all ranks"),
        pytest.param({}, [found_as("shared_cores")], "(perhaps as threads that transfer lack cores, too)", id="cores"),
    ],
)  # fmt: skip
def test_beside_slow_transfers_stands_what_else_may_be(
    causes: dict[str, int], findings: list[Finding], said: str
) -> None:
    run = recorded(ONE)
    analysis = analyze(run)
    head = replace(analysis.headline, causes={"slow_transfer": 80 * MS, "dependency": 10 * MS}, exposed_comm_ns=90 * MS)
    ranks = [replace(each, steps=[replace(step, causes=causes) for step in each.steps]) for each in analysis.ranks]
    known = replace(analysis, headline=head, ranks=ranks, findings=findings)
    named = largest_loss(RuleInput.of(run, known, match_and_align(run)), [])
    assert named
    assert named.title.endswith(said)


@pytest.mark.parametrize("cause", WAITS_FOR_LATE_RANK)
def test_each_way_to_be_late_has_something_to_do(cause: str) -> None:
    run = recorded(ONE)
    analysis = analyze(run)
    head = replace(analysis.headline, causes={cause: 80 * MS, "dependency": 10 * MS}, exposed_comm_ns=90 * MS)
    named = largest_loss(RuleInput.of(run, replace(analysis, headline=head), match_and_align(run)), [])
    assert named
    assert named.title.endswith(cause_label(cause, on_cpu=True))
    assert named.apply["torch"] == (BY_TURNS if cause == "peer_compute" else INSTEAD[cause])


def test_ranks_that_are_late_by_turns_get_no_comparison_of_their_batches() -> None:
    run = recorded(ONE)
    analysis = analyze(run)
    head = replace(analysis.headline, causes={"peer_compute": 80 * MS}, exposed_comm_ns=90 * MS)
    late = [Straggler(rank=0, held_by="more_work", blame_ns=1, evidence={})]
    for stragglers, text in (([], BY_TURNS), (late, INSTEAD["peer_compute"])):
        known = replace(analysis, headline=head, skew=replace(analysis.skew, stragglers=stragglers))
        named = largest_loss(RuleInput.of(run, known, match_and_align(run)), [])
        assert named
        assert named.apply["torch"] == text


def test_stages_are_to_be_evened_where_they_are_uneven_and_batches_more_where_the_schedule_takes_much() -> None:
    run = recorded(ONE)
    analysis = analyze(run)
    head = replace(analysis.headline, causes={"pipeline": 80 * MS}, exposed_comm_ns=90 * MS)
    work = {"stage": 1, "ranks": [1], "work_ns": {"0": MS, "1": MS}, "more_ns": 0}
    uneven = Finding(id="uneven_stages:stage1", severity="warning", title="", evidence=work, known_from="")
    fills, little = (
        Finding(id="pipeline_fill", severity="info", title="", evidence={"fill_share": share}, known_from="")
        for share in (0.2, 0.19)
    )
    for findings, text in (
        ([], INSTEAD["pipeline"]),
        ([uneven], UNEVEN_STAGES),
        ([fills], MORE_BATCHES.format(share="20.0 %")),
        ([little], FILLS.format(share="19.0 %")),
        ([uneven, little], "\n".join([UNEVEN_STAGES, FILLS.format(share="19.0 %")])),
    ):
        known = replace(analysis, headline=head, findings=findings)
        named = largest_loss(RuleInput.of(run, known, match_and_align(run)), [])
        assert named
        assert named.apply["torch"] == text


@pytest.mark.slow
@pytest.mark.parametrize(
    ("causes", "late", "end"),
    [
        ({"dependency": 50, "peer_compute": 30, "peer_host": 10}, {0: "more_work"},
         "waited for it, 40 ms waiting for late ranks; rank 0 is a straggler (more work)"),
        ({"peer_compute": 70, "dependency": 20}, {0: "more_work"}, "longer; rank 0 is a straggler (more work)"),
        ({"dependency": 90}, {1: "unknown"}, "waited for it; rank 1 is a straggler"),
        ({"dependency": 90}, {1: "host", 0: "host"}, "waited for it; ranks 0, 1 are stragglers"),
        ({"dependency": 60, "peer_compute": 29}, {}, "the next compute waited for it"),
        ({"dependency": 60, "peer_compute": 30}, {},
         "60 ms of it: the next compute waited for it; 30 ms: wait: the late rank computed longer"),
    ],
)  # fmt: skip
def test_a_straggler_that_does_not_dominate_is_named_with_the_largest_loss(
    causes: dict[str, int], late: dict[int, str], end: str
) -> None:
    run = recorded(ONE)
    analysis = analyze(run)
    head = replace(
        analysis.headline, causes={name: ms * MS for name, ms in causes.items()}, exposed_comm_ns=90 * MS,
        exposed_wait_ns=0,
    )  # fmt: skip
    held = [Straggler(rank=rank, held_by=why, blame_ns=1, evidence={}) for rank, why in late.items()]
    given = RuleInput.of(
        run, replace(analysis, headline=head, skew=replace(analysis.skew, stragglers=held)), match_and_align(run)
    )
    named = largest_loss(given, [])
    assert named
    assert named.title.endswith(end)
    assert ("look" in named.apply, named.evidence.get("late_ranks", [])) == (bool(late), list(late))
    beside = largest_loss(given, [replace(named, id="late_rank", loss_ns=1)])
    assert beside
    assert "straggler" not in beside.title, "the other recommendation names it"


def test_what_depends_on_calls_that_were_not_matched_may_be_waiting() -> None:
    run = recorded(ONE)
    analysis = analyze(run)
    for wait_ns, included in ((0, False), (None, True)):
        causes = {"dependency": 90 * 10**6}
        head = replace(analysis.headline, causes=causes, exposed_comm_ns=90 * 10**6, exposed_wait_ns=wait_ns)
        named = largest_loss(RuleInput.of(run, replace(analysis, headline=head), match_and_align(run)), [])
        assert named
        assert ("waiting for other ranks included" in named.title) == included
        assert ("give it other work" in named.apply["torch"]) != included


@pytest.mark.parametrize(("world_size", "may_wait"), [(1, False), (16, True)])
def test_what_depends_on_calls_of_one_recorded_rank_of_several_may_be_waiting(
    world_size: int, *, may_wait: bool
) -> None:
    analysis = analyze(recorded(ONE))
    rank = analysis.ranks[0]
    run = Run(world_size=world_size, ranks={rank.rank: recorded(ONE).ranks[rank.rank]})
    info = replace(analysis.run, world_size=world_size, missing_ranks=list(range(1, world_size)))
    rows = [replace(each, group_size=world_size) for each in analysis.collectives]
    for cause, assumed in (("dependency", 0), ("pipeline", 0), ("late_launch", world_size > 1)):
        head = replace(
            analysis.headline, causes={cause: 90 * MS}, exposed_comm_ns=90 * MS, exposed_wait_ns=None, ranks=[rank.rank]
        )
        alone = replace(analysis, ranks=[rank], run=info, headline=head, collectives=rows)
        named = largest_loss(RuleInput.of(run, alone, match_and_align(run)), [])
        assert named
        waits = may_wait and cause == "dependency"
        assert ("waiting for other ranks included" in named.title) == waits
        assert ("record all ranks" in named.apply.get("look", "")) == waits
        assert ("give it other work" in named.apply.get("torch", "")) == (cause == "dependency"), "helps anyway"
        assert len(named.assumed) == assumed
        label = "the next compute waited for it, or for other ranks"
        assert (label in render(alone)) == waits


def test_another_order_of_calls_is_advised_also_where_they_may_be_waiting() -> None:
    analysis = analyze(recorded(ONE))
    rank = analysis.ranks[0]
    run = Run(world_size=16, ranks={rank.rank: recorded(ONE).ranks[rank.rank]})
    info = replace(analysis.run, world_size=16, missing_ranks=list(range(1, 16)))
    rows = [replace(each, group_size=16) for each in analysis.collectives]
    head = replace(
        analysis.headline, causes={"ahead": 90 * MS}, exposed_comm_ns=90 * MS, exposed_wait_ns=None, ranks=[rank.rank]
    )
    alone = replace(analysis, ranks=[rank], run=info, headline=head, collectives=rows)
    named = largest_loss(RuleInput.of(run, alone, match_and_align(run)), [])
    assert named
    assert "ahead of the call that compute waited for, waiting for other ranks included" in named.title
    assert "launch it before them" in named.apply["torch"]
    assert "ahead of the call that compute waited for (or waiting)" in render(alone)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"world_size": 4}, "record all ranks"),
        ({"reason": "no_host_events"}, "record the host's events"),
        ({"unmatched": 5}, None),
        ({"unmatched": 5, "unsized": 1}, None),
        ({"unmatched": 5, "unsized": None}, "record sizes and peers of calls"),
    ],
)
def test_what_may_be_waiting_is_recorded_anew_with_what_it_lacks_only(
    changes: dict[str, Any], said: str | None
) -> None:
    run = recorded(ONE)
    analysis = analyze(run)
    if "unsized" in changes:
        ranks = {}
        for rank, each in run.ranks.items():
            sizes = each.collectives.bytes.copy()
            sizes[: changes["unsized"]] = NONE
            ranks[rank] = replace(each, collectives=replace(each.collectives, bytes=sizes))
        run = replace(run, ranks=ranks)
    run = replace(run, world_size=changes.get("world_size", run.world_size))
    head = replace(analysis.headline, causes={"dependency": 90 * MS}, exposed_comm_ns=90 * MS, exposed_wait_ns=None)
    analysis = replace(
        analysis,
        headline=head,
        skew=replace(analysis.skew, unmatched=changes.get("unmatched", 0)),
        ranks=[replace(each, no_causes_reason=changes.get("reason")) for each in analysis.ranks],
    )
    named = largest_loss(RuleInput.of(run, analysis, match_and_align(run)), [])
    assert named
    assert (said or "give it other work") in named.apply["torch"]
    assert ("record" in named.apply["torch"]) == (said is not None)


def test_exposed_communication_is_not_the_largest_loss_of_hosts_that_did_nothing_for_longer() -> None:
    run = recorded(ONE)
    analysis = analyze(run)
    for idle_ns, said in ((10**6, "Largest loss outside compute: "), (10**12, "")):
        head = replace(analysis.headline, idle_ns=idle_ns, exposed_comm_ns=10**8)
        given = RuleInput.of(run, replace(analysis, headline=head), match_and_align(run))
        named = largest_loss(given, [])
        assert named
        assert re.match(rf"{said}\d", named.title)


@pytest.mark.parametrize(
    ("reasons", "said"),
    [
        ([NONE_REPLAYED, "a note", NO_SIZES], ["a note", NO_SIZES]),
        ([NONE_REPLAYED, NO_GATHERS], [NO_GATHERS]),
        ([NONE_REPLAYED, "a note"], [NONE_REPLAYED, "a note"]),
    ],
)
def test_that_no_setting_of_fsdp_was_replayed_is_said_with_its_reason(reasons: list[str], said: list[str]) -> None:
    assert fsdp_reasons(reasons) == said


def test_what_is_not_understood_gives_no_advice() -> None:
    base = replayed(ONE)
    assert not bucket_advice(replace(base, verdict="insufficient_data"), 4)
    found, reasons = advise(run := recorded(ONE, drop="gradients"), analyze(run))
    assert {each.id for each in found} == {"pausing_host"}, "nothing is recorded at the end of these steps"
    assert "no gradients" in reasons[0]


def test_each_framework_counts_in_its_own_unit() -> None:
    found = snippets({"bucket_cap_mb": 10.0}, 2)
    assert found["ddp"] == "DistributedDataParallel(model, bucket_cap_mb=10)"
    assert json.loads(found["deepspeed"]) == {"zero_optimization": {"reduce_bucket_size": 5_242_880}}
    assert found["megatron"].endswith("--ddp-bucket-size 5242880")
    assert found["horovod"] == "HOROVOD_FUSION_THRESHOLD=10485760"
    assert "5242880 parameters" in found["fsdp2"]
    assert list(snippets({"bucket_cap_mb_list": [1.0, 2.5]}, 4)) == ["ddp"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["baseline", "regressed"])
def test_the_command_prints_how_to_apply_and_verify(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = stdout_of(capsys, "advise", ROOT / "traces" / name)
    assert ("Set bucket_cap_mb=" in said) == (name == "regressed")
    assert "verify:" in said


@pytest.mark.slow
def test_json_is_the_analysis_with_its_recommendations(tmp_path: Path) -> None:
    assert main(["advise", str(ROOT / "traces/regressed"), "--json", "-o", str(tmp_path / "a.json")]) == 0
    document = json.loads((tmp_path / "a.json").read_text(encoding="utf-8"))
    assert document["schema"] == "overlapscope.analysis/1"
    assert document["recommendations"][0]["id"] == "bucket_cap"
    assert document["recommendations"][0]["gain_low_ns"] > 0
