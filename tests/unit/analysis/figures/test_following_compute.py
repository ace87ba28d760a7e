"""What a step computes after a collective: other work, or only what prepares gradients for the optimizer."""

import numpy as np
import pytest

from overlapscope.analysis.per_rank.following_compute import following
from overlapscope.timeline.columns import NONE
from tests.support.rank_rows import rank_timeline

CALL_ENDS = 50


@pytest.mark.parametrize(
    ("after", "depends"),
    [
        ([], False),
        ([("reduce_kernel", "aten::mul")], True),
        ([("multi_tensor_apply_kernel", "aten::_foreach_norm"), ("elementwise", "aten::_foreach_mul_")], False),
        ([("multi_tensor_apply_kernel", "aten::_foreach_norm"), ("gemm", "aten::mm")], True),
        ([("gemm", "aten::mm"), ("multi_tensor_apply_kernel", "aten::_foreach_norm")], True),
        ([("multi_tensor_apply_kernel<LpNormFunctor<float, 2>>", None), ("elementwise", "aten::mul")], False),
        ([("multi_tensor_apply_kernel<L2NormFunctor<float>>", None), ("gemm", "aten::mm")], True),
        ([("void horovod::common::batched_scaled_memcpy_k<float, 1024>(...)", None)], False),
        ([("void horovod::common::batched_memcpy_k<1024>(...)", None), ("gemm", "aten::mm")], True),
    ],
)
def test_copies_out_of_a_call_and_norms_of_gradients_belong_to_the_call_and_the_optimizer(
    after: list[tuple[str, str | None]], *, depends: bool
) -> None:
    spans = [("gemm", "aten::mm", 0), *((name, op, CALL_ENDS + 10 * at) for at, (name, op) in enumerate(after))]
    spans.append(("optimizer", None, 200))
    work = [
        {"name": name, "host_op": op, "step": 0, "start_ns": at, "end_ns": at + 5, "launch_ns": 0}
        for name, op, at in spans
    ]
    known = following(rank_timeline(0, work=work, steps=[{"step": 0, "start_ns": 0, "end_ns": 300}]))
    step, ends = np.array([0]), np.array([CALL_ENDS])
    assert known.known(step).all()
    assert known.depends(step, ends).tolist() == [depends]


def test_what_follows_is_that_of_the_call_s_own_step_and_nothing_is_known_of_steps_without_compute() -> None:
    """Steps 3 and 7 compute; the optimizer of step 7 was recorded."""
    work = [
        {"name": name, "step": step, "start_ns": at, "end_ns": at + 5, "launch_ns": 0}
        for name, step, at in (("gemm", 3, 10), ("gemm", 7, 110), ("optimizer", 7, 150))
    ]
    steps = [{"step": step, "start_ns": at, "end_ns": at + 100} for step, at in ((3, 0), (7, 100), (9, 200))]
    known = following(rank_timeline(0, work=work, steps=steps))
    asked = np.array([9, 7, 3, 7, NONE, 5])
    ends = np.array([0, 110, 11, 120, 0, 0])
    assert known.known(asked).tolist() == [False, True, False, True, False, False]
    assert known.depends(asked, ends).tolist() == [False, True, False, False, False, False]
    assert known.before_optimizer(asked, ends - 5, ends).tolist() == [False, False, False, True, False, False]


@pytest.mark.parametrize(
    ("after", "depends"),
    [
        pytest.param([("optimizer", 60), ("gemm", 70)], False, id="an evaluation follows the optimizer"),
        pytest.param([("optimizer", 60), ("gemm", 70), ("optimizer", 80)], True, id="optimizers between other compute"),
        pytest.param([("gemm", 60), ("optimizer", 70), ("gemm", 80)], True, id="other compute comes first"),
        pytest.param([("gemm", 70)], True, id="the optimizer came before"),
    ],
)
def test_what_comes_behind_the_optimizer_waits_for_that(after: list[tuple[str, int]], *, depends: bool) -> None:
    work = [
        {"name": name, "step": 0, "start_ns": at, "end_ns": at + 5, "launch_ns": 0}
        for name, at in [("optimizer", 0), ("gemm", 10), *after]
    ]
    known = following(rank_timeline(0, work=work, steps=[{"step": 0, "start_ns": 0, "end_ns": 300}]))
    step, start, end = np.array([0]), np.array([20]), np.array([CALL_ENDS])
    assert known.depends(step, end).tolist() == [depends]
    assert known.before_optimizer(step, start, end).tolist() == [not depends]


@pytest.mark.parametrize(("lane", "depends"), [(1, False), (0, True)])
def test_a_copy_into_the_next_reduction_s_buffer_needs_nothing_of_the_one_before(lane: int, *, depends: bool) -> None:
    """FSDP's last two reductions, one stream: a copy into the second one's buffer waits for the first, then the
    optimizer follows. On the compute stream the same kernel may be anything."""
    work = [
        {"name": name, "lane": at_lane, "step": 0, "start_ns": at, "end_ns": end, "launch_ns": 0}
        for name, at_lane, at, end in (
            ("gemm", 0, 0, 45), ("copy", lane, 20, 22), ("copy", lane, CALL_ENDS, CALL_ENDS + 2),
            ("optimizer", 0, 100, 105),
        )
    ]  # fmt: skip
    calls = [
        {"op": "reduce_scatter", "step": 0, "start_ns": at, "end_ns": end, "launch_ns": 0}
        for at, end in ((25, CALL_ENDS), (CALL_ENDS + 2, 95))
    ]
    known = following(rank_timeline(0, work=work, calls=calls, steps=[{"step": 0, "start_ns": 0, "end_ns": 300}]))
    assert known.depends(np.array([0]), np.array([CALL_ENDS])).tolist() == [depends]
