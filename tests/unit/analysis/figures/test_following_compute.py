"""What a step computes after a collective: other work, or only what prepares gradients for the optimizer."""

import numpy as np
import pytest

from overlapscope.analysis.per_rank.following_compute import following
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
