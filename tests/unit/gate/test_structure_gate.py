"""The gate on dry runs: what fails, by which policy, with which exit code, and how reports show it."""

from xml.etree import ElementTree

import pytest

from overlapscope.analysis.compare.measured_run import MeasuredRun, measure_run
from overlapscope.analysis.structure.kinds import KINDS
from overlapscope.errors import UsageError
from overlapscope.gate.policy import Policy, policy_of
from overlapscope.gate.verdict import Gate, judge
from overlapscope.report.formats import json, junit, markdown, openmetrics
from overlapscope.report.formats.github import annotations
from overlapscope.report.redact import redacted
from overlapscope.report.sheet import gate_text
from overlapscope.report.sheet.analysis import sheet_of
from overlapscope.report.sheet.document import decoded
from overlapscope.timeline.run import Run
from tests.unit.analysis.structure.dry_programs import Program, dry_run, sharded_step
from tests.unit.gate.test_gate import run as recorded_run


def measured(run: Run) -> MeasuredRun:
    return measure_run(run, "dry")


def with_call() -> Program:
    step = sharded_step()
    step.call(elements=77, module="secret.probe", source="secret/train.py:77")
    return step


def judged(base: Program, candidate: Program, policy: Policy | None = None, **memory: int) -> Gate:
    return judge([measured(dry_run(base))], [measured(dry_run(candidate, **memory))], policy or Policy())


REGRESSED = judged(sharded_step(), with_call())


def test_equal_steps_pass_without_repetitions() -> None:
    gate = judged(sharded_step(), sharded_step())
    assert (gate.verdict, gate.exit_code, gate.metrics, gate.failed_changes) == ("passed", 0, [], [])
    assert "PASSED: The steps do the same" in gate_text.render(gate)


def test_a_call_more_fails_and_a_call_less_does_not() -> None:
    assert (REGRESSED.verdict, REGRESSED.exit_code, REGRESSED.failed_changes) == ("regressed", 1, [0])
    less = judged(with_call(), sharded_step(), policy_of({"structure": {"fail": ["collective_added"]}}))
    assert (less.verdict, less.exit_code, less.failed_changes) == ("passed", 0, [])
    assert less.comparison.structure is not None
    assert len(less.comparison.structure.changes) == 1


def test_the_policy_says_which_kinds_fail() -> None:
    assert judged(sharded_step(), with_call(), policy_of({"structure": {"fail": []}})).verdict == "passed"
    every = policy_of({"structure": {"fail": list(KINDS)}})
    assert judged(sharded_step(prefetch=False), sharded_step(), every).verdict == "regressed"
    assert judged(sharded_step(prefetch=False), sharded_step()).verdict == "passed"


@pytest.mark.parametrize(
    ("peak", "allowed", "verdict"), [(1050, None, "passed"), (1051, None, "regressed"), (1051, 0.1, "passed")]
)
def test_memory_may_grow_by_a_share(peak: int, allowed: float | None, verdict: str) -> None:
    policy = Policy() if allowed is None else policy_of({"structure": {"max_memory_growth": allowed}})
    assert judged(sharded_step(), sharded_step(), policy, peak_bytes=peak).verdict == verdict


def test_flops_and_bytes_may_grow_by_a_share() -> None:
    more = sharded_step()
    more.compute(60, phase="forward", source="model.py:5")  # 1 % of 6,000
    assert judged(sharded_step(), more).verdict == "passed"
    assert judged(sharded_step(), more, policy_of({"structure": {"max_flops_growth": 0}})).verdict == "regressed"


def test_wrong_keys_of_the_policy_name_the_nearest() -> None:
    with pytest.raises(UsageError, match=r"structure\.max_memory_growth"):
        policy_of({"structure": {"max_memory_grow": 0.1}})
    with pytest.raises(UsageError, match="host_sync_added"):
        policy_of({"structure": {"fail": ["host_sync"]}})
    with pytest.raises(UsageError, match="must be a table"):
        policy_of({"structure": ["fail"]})


def test_dry_runs_of_other_worlds_or_ranks_are_not_comparable() -> None:
    one = measured(dry_run(sharded_step()))
    other = judge([one], [measured(dry_run(sharded_step(), world_size=32))], Policy())
    assert (other.verdict, other.exit_code) == ("not_comparable", 3)
    two = dry_run(sharded_step(), sharded_step())
    alone = Run(world_size=two.world_size, ranks={1: two.ranks[1]}, groups=two.groups)
    apart = judge([one], [measured(alone)], Policy())
    assert (apart.verdict, apart.exit_code, apart.mismatches[0].key) == ("not_comparable", 3, "ranks")


def test_a_dry_run_and_a_recorded_run_are_not_comparable() -> None:
    gate = judge([recorded_run(100, **{"recording.basis": "trace"})], [measured(dry_run(sharded_step()))], Policy())
    assert (gate.verdict, gate.exit_code) == ("not_comparable", 3)


def test_another_batch_that_bytes_follow_in_a_way_of_their_own_is_exit_code_3() -> None:
    def step(elements: int, flops: int) -> Program:
        made = Program()
        for at in range(3):
            made.compute(flops, module=f"layers.{at}")
            made.wait(made.call(group="tensor", elements=elements, phase="forward", module=f"layers.{at}"))
        return made

    assert judged(step(100, 1000), step(200, 2000)).exit_code == 0
    gate = judged(step(100, 1000), step(130, 2000))
    assert (gate.verdict, gate.exit_code) == ("not_comparable", 3)
    assert "batch or sequence" in gate_text.render(gate)


def test_budgets_of_times_are_missing_without_prices() -> None:
    gate = judged(sharded_step(), sharded_step(), policy_of({"budgets": {"step_time_ns": 1e9}}))
    assert (gate.verdict, gate.exit_code) == ("missing", 3)


def test_reports_name_the_line() -> None:
    text = gate_text.render(REGRESSED)
    assert "REGRESSED: all_reduce float32 in backward (8 ranks): 1 call more" in text
    assert "secret/train.py:77" in text
    assert annotations(REGRESSED) == [
        "::error file=secret/train.py,line=77,title=OverlapScope::all_reduce float32 in backward (8 ranks): 1 call "
        "more, +308 B; in secret.probe; secret/train.py:77"
    ]
    cases = {each.attrib["name"]: each for each in ElementTree.fromstring(junit.render(REGRESSED)).iter("testcase")}
    failed = [name for name, case in cases.items() if case.find("failure") is not None]
    assert failed == ["structure collective_added"]
    assert set(cases) == {f"structure {kind}" for kind, its in KINDS.items() if its.worse}
    assert "secret/train" in markdown.render(sheet_of(REGRESSED))
    assert "gate_exit_code 1" in openmetrics.render(REGRESSED)


def test_an_annotation_escapes_what_has_a_meaning_in_a_property() -> None:
    step = sharded_step()
    step.call(elements=77, source="a,b:c%.py:3")
    (line,) = annotations(judged(sharded_step(), step))
    assert line.startswith("::error file=a%2Cb%3Ac%25.py,line=3,title=OverlapScope::")


def test_a_redacted_result_has_no_names() -> None:
    hidden = redacted(REGRESSED)
    shown = gate_text.render(hidden) + json.render(hidden) + junit.render(hidden) + "".join(annotations(hidden))
    assert "secret" not in shown
    assert "1 call more" in shown


def test_the_saved_document_makes_the_same_reports() -> None:
    again = decoded(json.render(REGRESSED).encode())
    assert isinstance(again, Gate)
    assert gate_text.render(again) == gate_text.render(REGRESSED)
