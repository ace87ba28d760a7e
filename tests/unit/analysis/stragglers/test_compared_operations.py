"""A late host with larger inputs has more work, one with equal ones is slower: where the trace has shapes."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.stragglers.compared_operations import by_sizes, longer_operation
from overlapscope.report.text.cross_rank import straggler_sentences
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.run import RankTimeline, Run
from tests.unit.analysis.stragglers.test_host_cause import with_operations
from tests.unit.analysis.stragglers.test_stragglers import CULPRIT, RANKS, STEPS, accused, job

USUAL = 25_275_350
OTHERS = [rank for rank in range(RANKS) if rank != CULPRIT]


def column(values: int | Ints, timeline: RankTimeline) -> Ints:
    return np.broadcast_to(np.asarray(values, np.int64), timeline.steps.step.shape).copy()


def with_sizes(run: Run, culprit: int | Ints, others: int | Ints = USUAL, shapes: int | Ints | None = None) -> Run:
    """The run with the input elements of each step of the late rank and of the others; with a hash of shapes that is
    the number of elements, if not told otherwise for the late rank."""
    own = culprit if shapes is None else shapes
    ranks = {
        rank: replace(
            timeline,
            steps=replace(
                timeline.steps,
                input_elements=column(culprit if rank == CULPRIT else others, timeline),
                input_shapes=column(own if rank == CULPRIT else others, timeline),
            ),
        )
        for rank, timeline in run.ranks.items()
    }
    return replace(run, ranks=ranks)


@pytest.fixture(scope="module")
def late() -> Run:
    return with_operations(job(fault="slower_compute"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("culprit", "held_by"),
    [
        pytest.param(USUAL, "slower_compute", id="as large"),
        pytest.param(USUAL + USUAL // 2000, "longer_compute", id="one operation more"),
        pytest.param(2 * USUAL, "more_work", id="twice as large"),
        pytest.param(round(1.03 * USUAL), "longer_compute", id="a little larger"),
        pytest.param(round(0.9 * USUAL), "longer_compute", id="smaller"),
        pytest.param(NONE, "longer_compute", id="no shapes"),
    ],
)
def test_sizes_of_inputs_tell_more_work_from_a_slower_core(late: Run, culprit: int, held_by: str) -> None:
    assert [(each.rank, each.held_by) for each in accused(with_sizes(late, culprit))] == [(CULPRIT, held_by)]


def test_how_many_times_as_large_they_are_is_said(late: Run) -> None:
    (said,) = straggler_sentences(analyze(with_sizes(late, 2 * USUAL)), 1)
    assert "more work (its operations were given 2.00 times as many elements as its peers')" in said


def test_inputs_of_one_size_and_other_shapes_show_no_slower_core(late: Run) -> None:
    """As batches that are packed to a number of tokens, of which attention is quadratic."""
    packed = with_sizes(late, USUAL, shapes=7)
    assert by_sizes(CULPRIT, OTHERS, packed, 1.5) == ("longer_compute", {})


def test_only_steps_that_both_recorded_with_shapes_are_compared(late: Run) -> None:
    sizes = np.full(STEPS, USUAL, np.int64)
    sizes[0] = 10 * USUAL
    without_first = np.full(STEPS, USUAL, np.int64)
    without_first[0] = NONE
    assert by_sizes(CULPRIT, OTHERS, with_sizes(late, sizes, without_first), 1.5) == ("slower_compute", {})
    assert by_sizes(CULPRIT, OTHERS, with_sizes(late, sizes), 1.5)[0] == "more_work"


@pytest.mark.parametrize(
    ("late_by", "held_by"),
    [
        pytest.param((30, 30), "slower_compute", id="as late in both"),
        pytest.param((30, 45), "slower_compute", id="a little later in those with more"),
        pytest.param((5, 55), "longer_compute", id="later in those with more"),
        pytest.param((0, 0), "longer_compute", id="when it was late is not known"),
    ],
)
def test_a_rank_that_is_late_in_steps_of_the_same_shapes_too_is_slower(
    late: Run, late_by: tuple[int, int], held_by: str
) -> None:
    """Every second step the rank does more besides, such as writing a checkpoint."""
    sizes = np.array([USUAL + at % 2 for at in range(STEPS)], np.int64)
    run = with_sizes(late, sizes)
    lead = {step: late_by[at % 2] for at, step in enumerate(run.ranks[CULPRIT].steps.step.tolist())}
    assert by_sizes(CULPRIT, OTHERS, run, 1.5, lead) == (held_by, {})


def test_inputs_that_are_larger_by_far_less_than_compute_is_longer_do_not_explain_it(late: Run) -> None:
    larger = with_sizes(late, round(1.1 * USUAL))
    known = {"input_elements_times": pytest.approx(1.1)}
    assert by_sizes(CULPRIT, OTHERS, larger, 1.19) == ("more_work", known)
    assert by_sizes(CULPRIT, OTHERS, larger, 1.21) == ("longer_compute", known)


def test_the_operation_in_which_most_of_it_lies_is_named() -> None:
    run = with_operations(job(fault="slower_compute"))
    (named,) = accused(run)
    longer_ns = named.evidence["compute_ns"] - named.evidence["peers_compute_ns"]
    own = {rank: summary.operation_ns for rank, summary in summarize_ranks(run).items()}
    found = longer_operation(CULPRIT, OTHERS, own, longer_ns)
    most = max(own[CULPRIT], key=lambda name: own[CULPRIT][name] - own[OTHERS[0]].get(name, 0))
    assert found["longer_op"] == most
    assert found["longer_op_ns"] == round(own[CULPRIT][most] - np.median([own[rank][most] for rank in OTHERS]))
    assert longer_operation(CULPRIT, OTHERS, own, 3 * longer_ns) == {}
    assert longer_operation(CULPRIT, OTHERS, {CULPRIT: own[CULPRIT]}, longer_ns) == {}, "no operations of its peers"
