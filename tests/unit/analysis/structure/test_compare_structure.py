"""What differs between two dry runs made by hand: every kind, and what is no difference."""

import pytest

from overlapscope.analysis.structure.compare_structure import StructureComparison, compare_structures
from overlapscope.analysis.structure.kinds import StructureChange
from overlapscope.analysis.structure.rank_structure import structure_of
from tests.unit.analysis.structure.dry_programs import Program, dry_run, sharded_step


def compared(base: Program, candidate: Program, **memory: int) -> StructureComparison:
    found = compare_structures(structure_of(dry_run(base, **memory)), structure_of(dry_run(candidate, **memory)))
    assert found is not None
    return found


def changes(base: Program, candidate: Program, **memory: int) -> dict[str, StructureChange]:
    found = compared(base, candidate, **memory).changes
    assert len({each.kind for each in found}) == len(found)
    return {each.kind: each for each in found}


def reductions(*sizes: int, group: str = "data", late: bool = False, dtype: str = "float32") -> Program:
    """Return a step whose gradients are reduced beside backward, or after it."""
    step = Program()
    step.compute()
    calls = []
    for at, elements in enumerate(sizes):
        step.compute(phase="backward", module=f"layers.{at}")
        if not late:
            calls.append(step.call(elements=elements, group=group, dtype=dtype, source=f"train.py:{at}"))
    step.compute(phase="backward")
    if late:
        calls = [step.call(elements=each, group=group, phase="other", source="train.py:9") for each in sizes]
    for call in calls:
        step.wait(call)
    return step


def test_the_same_step_does_not_differ() -> None:
    found = compared(sharded_step(), sharded_step())
    assert (found.changes, found.workload, found.ranks) == ([], 1.0, [0])


def test_renamed_modules_are_no_difference() -> None:
    assert changes(sharded_step(prefix="layers"), sharded_step(prefix="model.blocks")) == {}


def test_a_call_more_is_named_with_its_module_and_line() -> None:
    more = reductions(10, 20, 30)
    more.call(elements=20, module="probe", source="train.py:77")
    found = changes(reductions(10, 20, 30), more)
    assert found.keys() == {"collective_added"}
    added = found["collective_added"]
    assert (added.count, added.base, added.candidate, added.group_size) == (1, None, 80, 8)
    assert (added.modules, added.sources) == (("probe",), ("train.py:77",))


def test_gradients_that_are_no_longer_reduced_are_more_than_a_call_less() -> None:
    assert changes(reductions(10, 20, 30), reductions(10, 30)).keys() >= {"reduction_removed"}
    merged = changes(reductions(10, 20), reductions(30))  # one bucket for two: the same elements
    assert "reduction_removed" not in merged


def test_more_bytes_another_dtype_and_another_group() -> None:
    assert changes(reductions(10, 20), reductions(10, 25))["bytes_grew"].candidate == 100
    assert changes(reductions(10, 25), reductions(10, 20)).keys() == {"bytes_shrank"}
    wider = changes(reductions(10, dtype="bfloat16"), reductions(10))["dtype_widened"]
    assert (wider.base_is, wider.candidate_is) == ("bfloat16", "float32")
    assert changes(reductions(10), reductions(10, dtype="bfloat16")).keys() == {"dtype_narrowed"}
    group = changes(reductions(10, 20), reductions(10, 20, group="world"))["group_changed"]
    assert (group.base_is, group.candidate_is, group.count) == ("8 ranks", "16 ranks", 2)


def test_reductions_behind_backward() -> None:
    found = changes(reductions(10, 20, 30), reductions(10, 20, 30, late=True))
    assert found.keys() == {"moved_behind_backward"}
    assert found["moved_behind_backward"].sources == ("train.py:9",)
    assert changes(reductions(10, 20, late=True), reductions(10, 20)).keys() == {"overlap_gained", "phase_changed"}


def test_a_gather_that_is_no_longer_prefetched() -> None:
    lost = compared(sharded_step(), sharded_step(prefetch=False)).changes
    assert [(each.kind, each.phase, each.count) for each in lost] == [
        ("prefetch_lost", "forward", 2),
        ("prefetch_lost", "backward", 2),
    ]
    assert lost[0].modules == ("layers.1", "layers.2")
    gained = compared(sharded_step(prefetch=False), sharded_step()).changes
    assert {each.kind for each in gained} == {"prefetch_gained"}


def test_another_order_on_a_group() -> None:
    assert changes(reductions(10, 20, 30), reductions(20, 30, 10)).keys() == {"order_changed"}


def test_a_host_synchronisation_more_is_told_from_those_before() -> None:
    base, candidate = reductions(10), reductions(10)
    base.sync(phase="other", source="train.py:50")
    candidate.sync(phase="other", module="metrics", source="train.py:49")
    candidate.compute(0, phase="other", name="aten.add.Tensor")
    candidate.sync(phase="other", source="train.py:51")
    found = changes(base, candidate)
    assert found.keys() == {"host_sync_added"}
    assert found["host_sync_added"].sources == ("train.py:49",)
    assert changes(candidate, base).keys() == {"host_sync_removed"}


def test_more_flops_name_the_lines_that_compute_them() -> None:
    more = sharded_step()
    more.compute(500, phase="forward", source="model.py:99", module="head")
    found = changes(sharded_step(), more)
    assert found.keys() == {"flops_grew"}
    assert (found["flops_grew"].base, found["flops_grew"].candidate) == (6000, 6500)
    assert found["flops_grew"].sources == ("model.py:99",)


def test_memory_at_the_peak_says_what_grew() -> None:
    base = structure_of(dry_run(sharded_step(), peak_bytes=100, parameters=60, activations=40))
    candidate = structure_of(dry_run(sharded_step(), peak_bytes=130, parameters=60, activations=70))
    found = compare_structures(base, candidate)
    assert found is not None
    assert [(each.kind, each.base, each.candidate, each.candidate_is) for each in found.changes] == [
        ("memory_grew", 100, 130, "activations")
    ]


@pytest.mark.parametrize("scale", [2, 3])
def test_another_batch_of_sharded_data_is_no_difference(scale: int) -> None:
    found = compared(sharded_step(), sharded_step(scale=scale), parameters=60)
    assert (found.changes, found.workload) == ([], scale)


def activations(elements: int, flops: int) -> Program:
    step = Program()
    for at in range(3):
        step.compute(flops, module=f"layers.{at}")
        step.wait(step.call(group="tensor", elements=elements, phase="forward", module=f"layers.{at}"))
    return step


def test_activations_that_follow_the_batch_are_normalised() -> None:
    found = compared(activations(100, 1000), activations(300, 3000), parameters=60)
    assert (found.changes, found.not_comparable, found.workload) == ([], [], 3.0)


def test_activations_that_follow_the_batch_in_a_way_of_their_own_are_not_comparable() -> None:
    found = compared(activations(100, 1000), activations(250, 3000), parameters=60)
    assert found.changes == []
    assert len(found.not_comparable) == 1


def test_twice_the_flops_of_other_parameters_are_no_batch() -> None:
    found = compare_structures(
        structure_of(dry_run(sharded_step(), parameters=60)),
        structure_of(dry_run(sharded_step(scale=2), parameters=61)),
    )
    assert found is not None
    assert found.workload == 1.0
    assert "flops_grew" in {each.kind for each in found.changes}


def test_equal_differences_of_several_ranks_are_one() -> None:
    more = reductions(10, 20)
    more.call(elements=7, source="train.py:7")
    base = structure_of(dry_run(reductions(10, 20), reductions(10, 20), sharded_step()))
    found = compare_structures(base, structure_of(dry_run(more, more, sharded_step())))
    assert found is not None
    assert [(each.kind, each.ranks) for each in found.changes] == [("collective_added", (0, 1))]
    assert found.ranks == [0, 1, 2]


def test_without_a_common_rank_there_is_nothing_to_compare() -> None:
    both = structure_of(dry_run(sharded_step(), sharded_step()))
    assert compare_structures({0: both[0]}, {1: both[1]}) is None
