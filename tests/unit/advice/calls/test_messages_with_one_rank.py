"""Messages that a stream of their own would not let end earlier, and a rank that only serves the others."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import analyze_with_advice
from overlapscope.advice.rule_input import RuleInput
from overlapscope.advice.shared_stream import busy_lane
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline

US = 1_000
STEP, STEPS = 1_000, 3
Message = tuple[str, int, int, int, int]
"""Operation, peer, and when it was launched, began and ended, in us of its step."""


def talking(messages: dict[int, Sequence[Message]], computes: dict[int, tuple[int, int]], world_size: int) -> Run:
    """Return ranks that compute once a step and exchange messages on one stream, the same in each step of 1 ms."""
    return Run(
        world_size=world_size,
        ranks={rank: _rank(rank, messages[rank], computes[rank]) for rank in messages},
        groups=(Group(name="g", size=world_size, ranks=tuple(range(world_size))),),
    )


def _rank(rank: int, messages: Sequence[Message], computes: tuple[int, int]) -> RankTimeline:
    calls: list[dict[str, Any]] = []
    work = []
    for step in range(STEPS):
        base = EPOCH_NS + step * STEP * US
        for op, peer, launch, start, end in messages:
            calls.append({"step": step, "op": op, "peer": peer, "group": "g", "group_size": 4, "bytes": 1 << 20,
                          "launch_ns": base + launch * US, "start_ns": base + start * US,
                          "end_ns": base + end * US})  # fmt: skip
        start, end = computes
        work.append({"step": step, "name": "gemm", "launch_ns": base, "start_ns": base + start * US,
                     "end_ns": base + end * US})  # fmt: skip
    marks = [{"step": n, "start_ns": EPOCH_NS + n * STEP * US, "end_ns": EPOCH_NS + (n + 1) * STEP * US}
             for n in range(STEPS)]  # fmt: skip
    return rank_timeline(rank, calls=calls, work=work, steps=marks, recorded={"host": "one", "clock": "one"})


def served(computed: int = 20, other: int = 0) -> Run:
    """Return a server, which computes for 20 us, and two of its three workers, which do for 500; `other` is whom rank
    2 sends to."""
    asks = [("recv", 2, 1, 20, 600), ("recv", 3, 2, 600, 700), ("send", 2, 3, 720, 800), ("send", 3, 4, 800, 900)]
    return talking(
        {
            0: asks,
            2: [("send", other, 1, 500, 600), ("recv", 0, 2, 600, 800)],
            3: [("send", 0, 1, 500, 700), ("recv", 0, 2, 700, 900)],
        },
        {0: (0, computed), 2: (0, 500), 3: (0, 500)},
        4,
    )


def advised(run: Run) -> dict[str, Recommendation]:
    return {each.id: each for each in analyze_with_advice(run).recommendations}


def test_a_rank_that_computes_next_to_nothing_and_has_all_messages_serves_the_others() -> None:
    """It stands in messages from 20 to 900 us without 20 us between them; the others from 500 to 800, and to 900."""
    found = advised(served())["serving_rank"]
    assert found.evidence["rank"] == 0
    assert found.evidence["ranks"] == [2, 3]
    assert (found.evidence["computed_ns"], found.evidence["computed_by_others_ns"]) == (20 * US, 500 * US)
    assert "of these 0.86 ms are exposed on it, 0.35 ms on the others" in found.title
    assert "exposed_communication" not in advised(served())


@pytest.mark.parametrize("run", [served(computed=51), served(other=3)], ids=["computes", "talk among themselves"])
def test_neither_a_rank_that_computes_nor_one_that_others_pass_by_serves(run: Run) -> None:
    assert "serving_rank" not in advised(run)


def queueing(message: Message, *, first: int = 1, peer_begins: int) -> Recommendation | None:
    """Return what is advised of a rank that sends to rank `first` for 400 us, and then makes this message, which was
    launched before; rank 1 begins its other end when `peer_begins` says."""
    op, peer, _, _, end = message
    answer = ("send" if op == "recv" else "recv", 0, 1, peer_begins, end)
    sent = ("recv", 0, 1, 200, 600)
    others: dict[int, list[Message]] = {1: [], 2: []}
    others[first].append(sent)
    others[peer].append(answer)
    run = talking({0: [("send", first, 101, 200, 600), message], **others}, {0: (0, 200), 1: (0, 200), 2: (0, 200)}, 3)
    given = RuleInput.of(run, analyze(run), match_and_align(run))
    return busy_lane(replace(given, figures=replace(given.figures, causes={"queued": 90 * US})))


def test_a_message_whose_peer_was_there_could_have_run_beside_one_with_another_rank() -> None:
    found = queueing(("recv", 2, 105, 600, 700), peer_begins=300)
    assert found is not None
    assert found.gain_high_ns == 90 * US


def test_a_message_may_be_the_answer_to_one_with_the_same_peer() -> None:
    assert queueing(("recv", 1, 105, 600, 700), peer_begins=600) is None


def test_a_message_whose_peer_comes_after_its_stream_is_free_would_have_waited() -> None:
    assert queueing(("recv", 2, 105, 600, 900), peer_begins=700) is None
