"""Ranks wait for a pause of another one as far as they pause less."""

from collections.abc import Sequence

import pytest

from overlapscope.analysis.common.findings import Finding
from overlapscope.timeline.columns import NONE
from tests.unit.analysis.pauses.pausing import (
    MS,
    named,
    run,
)


def test_no_rank_waits_for_pauses_that_it_has_as_well() -> None:
    """Rank 1 launches 1.9 ms later for what is no pause; a pause of 4 ms more is waited for, but not those 1.9 ms."""

    def late(more_ms: float) -> Finding:
        (found,) = named(run(lambda _, rank: {3: 10.0 + more_ms * rank, 20: 1.9 * rank}))
        return found

    for alike in (late(0.0), late(0.3)):
        assert {each["waited_ns"] for each in alike.evidence["pauses"]} == {0}
        assert "others waited" not in alike.title
    assert ", and others waited up to 4.0 ms for it: " in late(4.0).title


@pytest.mark.parametrize(
    ("unknown", "waited_ms"),
    [
        pytest.param((), [0, 0, 4], id="none"),
        pytest.param([(0, 2)], [0, 0, 0], id="the peer's of that call"),
        pytest.param([(0, 1)], [0, 0, 0], id="the peer's of the call before"),
        pytest.param([(1, 2)], [0, 0, 0], id="its own: no call is known to follow the pause"),
        pytest.param([(0, 0)], [0, 0, 4], id="another one"),
    ],
)
def test_what_is_waited_for_pauses_is_not_known_without_launches(
    unknown: Sequence[tuple[int, int]], waited_ms: list[int]
) -> None:
    """Both ranks pause for 10 ms in each step, rank 1 in the last one for 4 ms more; in each it launches 1.9 ms later
    for what is no pause. Launches of some calls, by (rank, step), are not known."""
    job = run(lambda step, rank: {3: 10.0 + 4 * rank * (step == 2), 20: 1.9 * rank})
    for rank, step in unknown:
        job.ranks[rank].collectives.launch_ns[step] = NONE
    (found,) = named(job)
    pauses = sorted((each["step"], each["waited_ns"]) for each in found.evidence["pauses"] if each["rank"] == 1)
    assert [round(ns / MS) for _, ns in pauses] == waited_ms
