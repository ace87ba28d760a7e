"""Copies that were launched before the recording began are told by their names, where these say enough."""

import numpy as np
import pytest

from overlapscope.advice.compute.copy_kernels import AS_IT_IS, copies_as_they_are
from overlapscope.timeline.run import RankTimeline
from tests.support.rank_rows import rank_timeline

COPY = "void at::native::elementwise_kernel<128, 4, at::native::direct_copy_kernel_cuda>"


def copies(*operations: str | None) -> RankTimeline:
    """Return a rank with one copy for each; without an operation its launch was not recorded."""
    return rank_timeline(
        work=[
            {"name": COPY, "start_ns": 100 * at, "end_ns": 100 * at + 50, "host_op": operation,
             "launch_ns": None if operation is None else 100 * at - 10}
            for at, operation in enumerate(operations)
        ]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("operations", "counted"),
    [((None, "aten::clone", "aten::clone"), [0, 1, 2]), ((None, "aten::clone", "aten::_to_copy"), [1]), ((None,), [])],
)
def test_they_count_where_all_others_of_their_name_do(operations: tuple[str | None, ...], counted: list[int]) -> None:
    rows, of = copies_as_they_are(copies(*operations))
    assert rows.tolist() == counted
    assert np.all(of == AS_IT_IS.index("aten::clone"))
