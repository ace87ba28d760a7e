"""The gate on dry runs that are priced: times are judged draw by draw, and only where both are priced alike."""

import json

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.compare.measured_run import MeasuredRun, measure_run
from overlapscope.errors import InputError
from overlapscope.gate.policy import Policy, policy_of
from overlapscope.gate.verdict import Gate, judge
from overlapscope.report.formats import json as documents
from overlapscope.report.formats import junit, openmetrics
from overlapscope.report.redact import redacted
from overlapscope.report.sheet import gate_text
from overlapscope.timeline.columns import MATMUL, MEMORY
from overlapscope.timeline.run import Run
from overlapscope.whatif.pricing.calibration import Measured
from overlapscope.whatif.pricing.devices import device
from overlapscope.whatif.pricing.links import links
from overlapscope.whatif.pricing.prices import Terms, price_run, with_prices
from overlapscope.whatif.pricing.program import program_of
from overlapscope.whatif.pricing.recipe import Recipe, parse_recipe
from tests.unit.whatif.pricing.dry_runs import Row, call, dry_run, wait

LINKS = links("8xh100-nvswitch,roce-400")
ONLY_TIMES = {"structure": {"fail": []}}
"""A policy by which no difference of structure fails, so that the times decide."""


def step(*, moved: int = 10**9, gathered: int = 1 << 28, behind: bool = False, op: str = "all_gather") -> Run:
    """A product, memory-bound work, a collective, and a product that needs it, with or without work to hide it."""
    product = Row(work=MATMUL, flops=10**13, read=10**8)
    rows = [product, Row(work=MEMORY, read=moved), call(op, gathered, ready=1, needed=4 if behind else 5)]
    return dry_run([*rows, wait(2), product, product] if behind else [*rows, product, wait(2), product])


def priced(
    run: Run, step_ns: float | None = 1e8, of: Run | None = None, key: str = "h100-sxm", recipe: str = ""
) -> MeasuredRun:
    """A priced dry run; `of` is the dry run of the step that was measured."""
    measured = ()
    if step_ns is not None:
        program = program_of(of or step(), 0)
        measured = (Measured(program=program, recipe=Recipe(), step_ns=step_ns, source="a row"),)
    terms = Terms(device=device(key), links=LINKS, recipe=parse_recipe(recipe), measured=measured)
    return measure_run(with_prices(run, price_run(run, terms)), "dry")


def judged(base: MeasuredRun, candidate: MeasuredRun, **policy: object) -> Gate:
    return judge([base], [candidate], policy_of({**ONLY_TIMES, **policy}))


def test_equal_steps_differ_by_nothing_in_any_draw() -> None:
    gate = judged(priced(step()), priced(step()))
    assert (gate.verdict, gate.exit_code) == ("passed", 0)
    assert [(each.name, each.verdict) for each in gate.metrics] == [
        ("step_time_ns", "unchanged"),
        ("exposed_comm_ns", "unchanged"),
    ]
    assert all((each.difference, each.low, each.high) == (0, 0, 0) for each in gate.metrics)
    assert "Times are priced, not measured" in gate_text.render(gate)


def test_a_slower_step_fails_and_a_faster_one_passes() -> None:
    base, slower = priced(step()), priced(step(moved=3 * 10**10))
    gate = judged(base, slower)
    (found, exposed) = gate.metrics
    assert (gate.verdict, gate.exit_code, found.verdict, found.test) == ("regressed", 1, "regressed", "priced")
    assert exposed.verdict == "unchanged"
    assert found.difference is not None
    assert 0 < (found.low or 0) < found.difference < (found.high or 0)
    assert "REGRESSED: step time, priced: +" in gate_text.render(gate)
    assert judged(slower, base).metrics[0].verdict == "improved"
    assert judged(slower, base).exit_code == 0


def test_the_difference_is_taken_draw_by_draw() -> None:
    base, slower = priced(step(), None), priced(step(moved=4 * 10**9), None)
    ours, theirs = (np.array(each.prices[0]["ranks"][0]["step"]["draws_ns"]) for each in (base, slower))
    found = judged(base, slower, min_relative=0.0, min_absolute_ns=0).metrics[0]
    low, high = np.quantile(theirs - ours, (0.1, 0.9))
    assert (found.low, found.high) == (pytest.approx(low), pytest.approx(high))
    # Both are wide ranges that overlap, and yet the sign is known.
    assert np.quantile(ours, 0.9) > np.quantile(theirs, 0.1)
    assert (found.verdict, found.base, found.candidate, found.difference) == ("regressed", None, None, None)


def test_exposed_communication_gates_where_the_step_does_not_reach_its_minimum() -> None:
    base, candidate = priced(step(gathered=1 << 26)), priced(step(gathered=1 << 26, behind=True))
    gate = judged(base, candidate, min_relative=0.03, min_absolute_ns=100_000)
    assert [each.verdict for each in gate.metrics] == ["unchanged", "regressed"]
    assert gate.verdict == "regressed"
    only_step = judged(base, candidate, min_absolute_ns=100_000, metrics=["step_time_ns"])
    assert (only_step.verdict, only_step.metrics[1].verdict, only_step.metrics[1].gates) == (
        "passed",
        "regressed",
        False,
    )


def test_what_the_constants_do_not_decide_is_too_close_to_call() -> None:
    base = priced(step(moved=2 * 10**10, gathered=1 << 20))
    other = priced(step(moved=10**9, gathered=19 << 27, behind=True))
    gate = judged(base, other, min_relative=0.0, min_absolute_ns=0, metrics=["step_time_ns"])
    found = gate.metrics[0]
    assert (found.low or 0) < 0 < (found.high or 0)
    assert (gate.verdict, gate.exit_code, found.reason) == ("inconclusive", 0, "within_interval")
    assert "too close to call" in gate_text.render(gate)
    strict = judged(
        base, other, min_relative=0.0, min_absolute_ns=0, metrics=["step_time_ns"], fail_on=["inconclusive"]
    )
    assert strict.exit_code == 4


def test_structure_fails_first_whatever_the_price() -> None:
    slower = step(moved=3 * 10**10)
    more = dry_run([*(Row(work=MATMUL, flops=10**13, read=10**8),) * 5])
    gate = judge([priced(step())], [priced(more, 9e7, more)], Policy())
    assert (gate.verdict, gate.exit_code) == ("regressed", 1)
    assert gate.failed_changes
    assert judge([priced(step())], [priced(slower)], Policy()).verdict == "regressed"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("candidate", "differs"),
    [
        (lambda: measure_run(step(), "dry"), "no price"),
        (lambda: priced(step(), key="h200"), "h200"),
        (lambda: priced(step(), 1.2e8), "pace"),
        (lambda: priced(step(moved=3 * 10**10), of=step(moved=3 * 10**10)), "pace"),
        (lambda: priced(step(), None), "pace"),
        (lambda: priced(step(), recipe="compile"), "compile"),
    ],
)
def test_times_of_other_prices_are_not_compared(candidate, differs: str) -> None:  # type: ignore[no-untyped-def]
    gate = judged(priced(step()), candidate())
    assert (gate.verdict, gate.exit_code, gate.metrics) == ("not_comparable", 3, [])
    assert [each.key for each in gate.mismatches] == ["price"]
    assert differs in gate.mismatches[0].candidate[0]
    text = gate_text.render(gate)
    assert "priced alike" in text
    assert "--allow-mismatch price" in text


def test_a_policy_may_allow_another_price() -> None:
    allowed = {"allow_mismatch": ["price"]}
    unpriced = judged(priced(step()), measure_run(step(), "dry"), **allowed)
    assert (unpriced.verdict, unpriced.exit_code, unpriced.metrics) == ("passed", 0, [])
    compiled = judged(priced(step()), priced(step(), recipe="compile"), **allowed)
    assert [each.test for each in compiled.metrics] == ["priced", "priced"]


def test_a_price_with_more_draws_is_compared_in_those_that_both_have() -> None:
    base, slower = priced(step()), priced(step(moved=3 * 10**10))
    fewer = json.loads(json.dumps(slower.prices[0]))
    for name in ("step", "exposed_comm"):
        fewer["ranks"][0][name]["draws_ns"] = fewer["ranks"][0][name]["draws_ns"][:60]
    found = judged(base, replace(slower, prices={0: fewer})).metrics[0]
    ours, theirs = (np.array(each.prices[0]["ranks"][0]["step"]["draws_ns"][:60]) for each in (base, slower))
    assert found.low == pytest.approx(np.quantile(theirs - ours, 0.1))


def test_unpriced_runs_have_no_times() -> None:
    gate = judged(measure_run(step(), "dry"), measure_run(step(moved=3 * 10**10), "dry"))
    assert (gate.verdict, gate.metrics, gate.mismatches) == ("passed", [], [])


def test_a_price_that_only_one_side_has_is_missing_and_one_that_neither_has_is_not() -> None:
    pipeline = priced(step(op="send"), of=step())
    gate = judged(priced(step()), pipeline)
    assert (gate.verdict, gate.exit_code) == ("missing", 3)
    assert "the candidate has no price" in gate_text.render(gate)
    both = judged(pipeline, pipeline)
    assert (both.verdict, both.exit_code, both.metrics[0].reason) == ("passed", 0, "missing")
    assert judged(pipeline, pipeline, fail_on=["inconclusive"]).exit_code == 4


def test_steps_of_another_batch_are_not_compared_in_time() -> None:
    def batch(times: int) -> Run:
        return dry_run([Row(work=MATMUL, flops=10**13 * times, read=10**8, module=f"layers.{at}") for at in range(4)])

    gate = judged(priced(batch(1), of=batch(1)), priced(batch(2), of=batch(1)))
    assert gate.comparison.structure is not None
    assert gate.comparison.structure.workload == 2
    assert {each.reason for each in gate.metrics} == {"other_workload"}
    assert gate.exit_code == 0


@pytest.mark.slow
def test_the_job_takes_as_long_as_its_slowest_rank() -> None:
    def two(slow: int) -> MeasuredRun:
        ranks = [priced(step()), priced(step(moved=slow))]
        structure = {rank: each.structure[0] for rank, each in enumerate(ranks)}
        return replace(ranks[0], structure=structure, prices={rank: each.prices[0] for rank, each in enumerate(ranks)})

    found = judged(two(10**9), two(3 * 10**10)).metrics[0]
    alone = judged(priced(step()), priced(step(moved=3 * 10**10))).metrics[0]
    assert found.difference == alone.difference
    assert judged(two(3 * 10**10), two(3 * 10**10)).metrics[0].base == alone.candidate


def test_a_price_that_cannot_be_read_is_refused_in_a_line() -> None:
    good = priced(step())
    for wrong in ({"ranks": 3}, {**good.prices[0], "ranks": []}, {**good.prices[0], "constants": [{"name": 3}]}):
        with pytest.raises(InputError, match="price") as caught:
            judged(replace(good, prices={0: wrong}), good)
        assert "\n" not in str(caught.value)


def test_reports_say_that_times_are_priced() -> None:
    gate = judged(priced(step()), priced(step(moved=3 * 10**10)))
    failed = junit.render(gate)
    assert 'failure message="regressed: step time, priced' in failed
    assert 'gate_verdict{metric="step_time_ns",verdict="regressed"' in openmetrics.render(gate)
    document = json.loads(documents.render(gate))
    assert document["metrics"][0]["test"] == "priced"
    assert document["comparison"]["metrics"][0]["candidate"]["value"] is None  # a comparison holds what was measured


@pytest.mark.slow
def test_without_names_the_key_stays_and_what_was_priced_goes() -> None:
    other = redacted(judged(priced(step()), priced(step(), key="h200")))
    assert isinstance(other, Gate)
    assert other.mismatches[0].key == "price"
    assert "h200" not in documents.render(other)
    slower = judged(priced(step()), priced(step(moved=3 * 10**10)))
    found = redacted(slower)
    assert isinstance(found, Gate)
    assert found.metrics == slower.metrics
