"""Waits are summed by the step whose window holds the call, as idle time is, not by the step that launched it."""

from itertools import pairwise

from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.cross_rank.wait_transfer import waits_by_step
from tests.support.step_cases import STEPS, Kernel, Sent, made


def test_a_gather_before_the_first_kernel_of_its_step_is_of_the_window_that_it_lies_in() -> None:
    """Each step launches a gather that runs before its first kernel: in the window of the step before it."""
    run = made(lambda _: [Sent(start=20, end=200, op="all_gather"), Kernel(start=210, end=990)])
    splits = match_and_align(run).splits
    kernels = run.ranks[0].spans.start_ns[run.ranks[0].spans.collective < 0].tolist()
    windows = {rank: list(pairwise(kernels)) for rank in run.ranks}
    numbers = {rank: range(STEPS - 1) for rank in run.ranks}
    took = {step: each.collective_ns for step, each in waits_by_step(run, splits, windows, numbers).items()}
    each_ns = 2 * 180_000
    # The first gather lies in no window, and is of the step that launched it.
    assert took == {0: 2 * each_ns, **dict.fromkeys(range(1, STEPS - 1), each_ns)}
    launched = {step: each.collective_ns for step, each in waits_by_step(run, splits, {}, {}).items()}
    assert launched == dict.fromkeys(range(STEPS), each_ns)
