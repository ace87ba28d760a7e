"""For how long spans of communication waited for unlike ones on their stream, against a brute-force oracle."""

import numpy as np
import pytest

from overlapscope.analysis.graph import call_queue
from overlapscope.analysis.graph.call_queue import Queue
from overlapscope.timeline.columns import NONE, Ints
from overlapscope.timeline.intervals import Intervals, union


def held_ns(queue: Queue, span: int, since: int) -> int:
    """Count the nanoseconds, one by one."""
    start, like = queue.start_ns[span], queue.kind == queue.kind[span]
    others = (queue.lane == queue.lane[span]) & ~like
    since = max(since, queue.end_ns[like & (queue.end_ns <= start)].max(initial=NONE))
    ran = {ns for row in np.flatnonzero(others) for ns in range(queue.start_ns[row], queue.end_ns[row])}
    return len(ran & set(range(since, start)))


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("longest", [3, 30])
def test_only_unlike_spans_of_the_stream_since_the_last_like_one_hold_a_span(seed: int, longest: int) -> None:
    random = np.random.default_rng(seed)
    starts = np.sort(random.integers(0, 100, 40))
    kind = random.integers(0, 5, 40)
    queue = Queue(start_ns=starts, end_ns=starts + random.integers(0, longest, 40), lane=kind % 2, kind=kind,
                  is_message=np.zeros(40, np.bool_))  # fmt: skip
    asked = random.permutation(40)[:30]
    since = queue.start_ns[asked] - random.integers(-5, 60, 30)
    expected = [held_ns(queue, *each) for each in zip(asked.tolist(), since.tolist(), strict=True)]
    assert queue.held_ns(asked, since).tolist() == expected
    assert any(expected)


def test_each_span_is_united_twice_however_many_kinds_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    united: list[int] = []

    def counted(*parts: tuple[Ints, Ints]) -> Intervals:
        united.extend(starts.size for starts, _ in parts)
        return union(*parts)

    monkeypatch.setattr(call_queue, "union", counted)
    starts = np.arange(0, 2000, 10)
    queue = Queue(start_ns=starts, end_ns=starts + 5, lane=np.zeros(200, np.int64), kind=np.arange(200) % 100,
                  is_message=np.zeros(200, np.bool_))  # fmt: skip
    assert queue.held_ns(np.arange(200), starts - 50).sum() == 5 * (5 * 195 + 4 + 3 + 2 + 1)
    assert sum(united) == 2 * 200
