"""What shows that calls transfer of which some members may not have been recorded."""

import pytest
from msgspec.structs import replace

from overlapscope.advice.calls.known_transfer import all_are_matched, follow_directly, known_transfer
from overlapscope.advice.losses.exposed_remedies import AMONG_RECORDED, IN_ROWS, remedies
from overlapscope.advice.losses.largest_loss import largest_loss
from overlapscope.advice.rule_input import RuleInput
from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Kernel, Sent, made
from tests.unit.advice.test_exposed_calls import MIB, looked_at


def in_row(*, gap_us: float = 2, longer: float = 1.0, calls: int = 4, op: str = "all_reduce", ranks: int = 1) -> Run:
    """Return ranks of which calls of 100 us follow each other, every other step by a factor longer, after compute."""

    def step(number: int) -> list[Kernel | Sent]:
        took = 100 * (longer if number % 2 else 1)
        sent = [
            Sent(start=300 + (took + gap_us) * at, end=300 + (took + gap_us) * at + took, launch=200 + at, op=op,
                 size_bytes=36 * MIB)
            for at in range(calls)
        ]  # fmt: skip
        return [Kernel(start=0, end=300), *sent, Kernel(start=980, end=990, launch=250)]

    return made(step, ranks=max(ranks, 2))


@pytest.mark.parametrize(
    ("run", "said"),
    [
        pytest.param(in_row(), False, id="the first of four is a fourth of the time, and follows none"),
        pytest.param(in_row(calls=6), True, id="of six less than a fifth"),
        pytest.param(in_row(calls=6, gap_us=10.5), False, id="apart"),
        pytest.param(in_row(calls=6, longer=1.015), True, id="nearly as long"),
        pytest.param(in_row(calls=6, longer=1.03), False, id="not alike"),
    ],
)
def test_calls_that_follow_directly_and_last_alike_transfer(run: Run, *, said: bool) -> None:
    assert follow_directly(looked_at(run)) is said


@pytest.mark.parametrize(
    ("smaller_us", "said"), [(82, True), (88, False)], ids=["time follows the bytes", "each waits as long"]
)
def test_calls_of_several_sizes_that_follow_directly_and_last_as_their_bytes_transfer(
    smaller_us: float, *, said: bool
) -> None:
    """Times of a size differ by 4 %: of one size that would be too much."""

    def step(number: int) -> list[Kernel | Sent]:
        at, sent = 300.0, []
        for call in range(6):
            size, took = (36, 100 + 2 * (number % 3)) if call < 5 else (30, smaller_us + 2 * (number % 3))
            sent.append(Sent(start=at, end=at + took, launch=200 + call, size_bytes=size * MIB))
            at += took
        return [Kernel(start=0, end=300), *sent, Kernel(start=980, end=990, launch=250)]

    assert follow_directly(looked_at(made(step))) is said


def unsplit(run: Run) -> RuleInput:
    """Return a job of which it is not recorded how many ranks it has, nor so how long calls transfer."""
    given = looked_at(run)
    skew = replace(given.analysis.skew, matched=6, unmatched=0, uneven=0, not_split=0)
    figures = replace(given.figures, exposed_wait_ns=None, causes={"peer_compute": 20 * US, "tail": 380 * US})
    ranks = [replace(each, steps=[replace(step, causes={}) for step in each.steps]) for each in given.analysis.ranks]
    analysis = replace(given.analysis, skew=skew, headline=figures, ranks=ranks)
    return replace(given, run=replace(given.run, world_size=None), figures=figures, analysis=analysis)


def test_calls_that_were_all_matched_transfer_if_these_are_all_ranks() -> None:
    given = unsplit(in_row(gap_us=15))
    assert all_are_matched(given)
    assert known_transfer(given, at_one_rate=False) == "recorded"
    assert known_transfer(given, at_one_rate=True) == "one_rate"
    loss = largest_loss(given, [])
    assert loss is not None
    assert "only the optimizer follows, or recording ends (transfer, if these are all ranks)" in loss.title
    assert "waiting for other ranks included" not in loss.title
    said = loss.apply["look"]
    assert said == AMONG_RECORDED.format(ranks=2, waiting="waiting is 0.02 ms of it")
    assert "begin to reduce earlier" in loss.apply["torch"], "what helps against transfer"


@pytest.mark.parametrize(
    "changed", [{"unmatched": 1}, {"uneven": 1}, {"matched": 0}], ids=["some not matched", "uneven ones", "none"]
)
def test_calls_that_were_not_matched_may_wait(changed: dict[str, int]) -> None:
    given = unsplit(in_row(gap_us=15))
    analysis = replace(given.analysis, skew=replace(given.analysis.skew, **changed))
    assert not all_are_matched(replace(given, analysis=analysis))
    assert not all_are_matched(replace(given, run=replace(given.run, world_size=4))), "known to lack ranks"


@pytest.mark.parametrize(("op", "said"), [("all_reduce", True), ("broadcast", False)])
def test_calls_with_a_root_that_are_not_split_may_wait_where_they_are_much_of_it(op: str, *, said: bool) -> None:
    given = unsplit(in_row(gap_us=15, op=op))
    analysis = replace(given.analysis, skew=replace(given.analysis.skew, not_split=1))
    assert all_are_matched(replace(given, analysis=analysis)) is said


def test_what_shows_transfer_is_said_beside_what_helps() -> None:
    given = unsplit(in_row(calls=6))
    assert remedies(given, "tail", None, 0, "in_rows")["look"] == IN_ROWS
    assert "look" not in remedies(given, "tail", None, 0)
    none = remedies(given, "tail", None, 0, "recorded", 0)["look"]
    assert none == AMONG_RECORDED.format(ranks=2, waiting="none of it is waiting")


def test_of_calls_that_may_wait_it_says_what_helps_against_most_of_them() -> None:
    """Nothing is lacking that a recording could hold."""
    given = unsplit(in_row(calls=6))
    ranks = [replace(each, no_causes_reason=None) for each in given.analysis.ranks]
    given = replace(given, run=replace(given.run, world_size=2), analysis=replace(given.analysis, ranks=ranks))
    causes = {"dependency": 10 * US, "tail": 380 * US}
    other = {"dependency": 380 * US, "tail": 10 * US}
    tail, next_compute = (
        remedies(replace(given, figures=replace(given.figures, causes=each)), "unknown", None, 0)["torch"]
        for each in (causes, other)
    )
    assert "begin to reduce earlier" in tail
    assert "the next compute needs the result" in next_compute
