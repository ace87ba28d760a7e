"""Settings of a dry run that have no effect are found, in steps made by hand; steps that are as they should be are
left alone."""

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.checks.intent import intent_findings
from overlapscope.analysis.common.findings import Finding
from tests.unit.analysis.structure.dry_programs import Program, dry_run, sharded_step


def found(step: Program) -> dict[str, Finding]:
    return {each.id: each for each in intent_findings(dry_run(step))}


def buckets(gradients: int, calls: int, elements: int = 1000) -> Program:
    """Return a step of DDP: gradients are copied into buckets, which are reduced when they are full."""
    step = Program()
    step.compute()
    reduced = []
    for at in range(gradients):
        step.compute(phase="backward", module=f"layers.{at}")
        step.compute(0, phase="backward", name="aten.mul.out")
        if (at + 1) % (gradients // calls) == 0:
            reduced.append(step.call(elements=elements, source="train.py:8"))
    for call in reduced:
        step.wait(call)
    return step


def test_a_step_as_it_should_be_has_no_finding() -> None:
    clean = sharded_step()
    again = {call["module"] for call in clean.calls if call["op"] == "all_gather"}
    assert again  # the last layer is gathered twice in a row
    assert set(found(clean)) == {"gathered_twice"}
    assert found(buckets(12, 4)) == {}


def test_recorded_runs_have_none() -> None:
    assert "dryrun" not in {each.known_from for each in analyze(dry_run(buckets(12, 4))).findings}


def test_one_bucket_for_all_gradients_overlaps_with_nothing() -> None:
    finding = found(buckets(12, 1))["overlap_without_effect"]
    assert finding.severity == "warning"
    assert finding.evidence["sources"] == ["train.py:8"]
    assert "overlap_without_effect" not in found(buckets(12, 2))


def test_small_buckets_of_one_gradient() -> None:
    assert found(buckets(12, 12)).keys() == {"buckets_of_one"}
    assert found(buckets(12, 12, elements=10_000_000)) == {}


def test_gathers_with_nothing_to_overlap_with() -> None:
    step = Program()
    step.compute(module="embedding")
    first = step.call("all_gather", phase="forward", parameters=10, module="norms.0")
    second = step.call("all_gather", phase="forward", parameters=20, module="norms.1")
    step.wait(first, phase="forward")
    step.compute(0, module="norms.0")
    step.wait(second, phase="forward")
    step.compute(module="norms.1")
    finding = found(step)["prefetch_without_effect"]
    assert finding.evidence["modules"] == ["norms.1"]
    assert "prefetch_without_effect" not in found(sharded_step())


def test_an_all_reduce_that_is_split_and_gathered_again() -> None:
    step = Program()
    for op in ("all_reduce", "all_gather"):
        step.compute(module="block")
        step.wait(step.call(op, group="tensor", phase="forward", module="block"), phase="forward")
    assert found(step).keys() == {"all_reduce_then_split"}
    other = Program()
    for op in ("reduce_scatter", "all_gather", "all_reduce", "all_reduce"):
        other.compute(module="block")
        other.wait(other.call(op, group="tensor", phase="forward", module="block"), phase="forward")
    assert found(other) == {}


def test_gradients_that_are_reduced_whole_for_sharded_optimizer_state() -> None:
    step = buckets(12, 4)
    step.compute(0, phase="optimizer", name="aten._foreach_add_")
    step.wait(step.call("all_gather", elements=4000, phase="optimizer"), phase="optimizer")
    assert "all_reduce_then_split" in found(step)


def test_matrix_products_between_two_collectives_of_the_optimizer() -> None:
    step = buckets(12, 4)
    for at in range(3):
        step.wait(step.call("all_gather", elements=7 + at, phase="optimizer"), phase="optimizer")
        step.compute(500, phase="optimizer")
    finding = found(step)["compute_between_collectives"]
    assert (finding.evidence["calls"], finding.evidence["flops"]) == (2, 1000)


def test_gradients_wider_than_parameters() -> None:
    assert found(sharded_step(gradients="float32"))["wide_gradients"].evidence["calls"] == 3


def activations(exposed: str, other: str) -> Program:
    """Return a step with activations exchanged in one group, and gradients reduced in another one."""
    step = Program()
    for at in range(3):
        step.compute(module=f"layers.{at}")
        step.wait(step.call(group=exposed, phase="forward", module=f"layers.{at}"), phase="forward")
    calls = []
    for at in range(3):
        calls.append(step.call(group=other))
        step.compute(phase="backward", module=f"layers.{at}")
    for call in calls:
        step.wait(call)
    return step


def test_activations_across_nodes_beside_gradients_inside_one() -> None:
    assert found(activations("data", "tensor")).keys() == {"group_across_nodes"}
    assert found(activations("tensor", "data")) == {}
    small = dry_run(activations("data", "tensor"), world_size=8)
    assert intent_findings(small) == []
