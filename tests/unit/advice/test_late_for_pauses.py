"""A rank that others wait for because its host pauses is named once: by the pauses, unless it is a straggler."""

import pytest

from overlapscope.advice.advise import _is_of_pauses
from tests.unit.advice.test_loss_in_the_mean import trial


@pytest.mark.parametrize(
    ("held_by", "rank", "told"),
    [
        pytest.param(None, 2, True, id="its host pauses"),
        pytest.param(None, 1, False, id="another one's does"),
        pytest.param("host", 2, False, id="a straggler"),
    ],
)
def test_waiting_for_a_host_that_pauses_is_a_loss_of_its_pauses(held_by: str | None, rank: int, *, told: bool) -> None:
    late = trial("late_rank", evidence={"held_by": held_by, "rank": rank})
    pauses = trial("host_pauses", evidence={"ranks": [0, 2]})
    assert _is_of_pauses(late, {"host_pauses": pauses}) == told
    assert not _is_of_pauses(late, {})
