"""Of pauses that differ in length or place it is said what most of the idle time is in, and that others differ."""

import pytest
from msgspec.structs import replace

from overlapscope.analysis.pauses.costly_pauses import costliest_place, usual_length_ns
from tests.unit.analysis.pauses.pausing import MS, Pauses, advice, named, pause, run

SHORT = {3: 4.04, 5: 4.04}
"""Two of 5 ms with the launch before, each after `aten::linear`."""
LONG = {4: 12.04}
"""One of 13 ms, after `aten::relu`."""


def told(pauses: Pauses) -> str:
    return advice(run(lambda step, rank: {} if rank else pauses(step, rank)))["host_pauses"].title


@pytest.mark.parametrize(
    ("pauses", "words"),
    [
        pytest.param(
            lambda step, _: LONG if step == 1 else SHORT,
            "it pauses up to 2 times a step, mostly for about 5 ms each (the longest: 13 ms), mostly after "
            "aten::linear, and its device idles",
            id="16 of 28 ms in short ones",
        ),
        pytest.param(
            lambda step, _: LONG if step else SHORT,
            "it pauses up to 2 times a step, for up to 13 ms each, mostly after aten::relu, and its device idles",
            id="24 of 32 ms in long ones",
        ),
        pytest.param(
            lambda *_: {3: 4.04, 6: 4.04},
            "it pauses 2 times a step, for 5 ms each, at several places, and its device idles",
            id="half of it at either place",
        ),
        pytest.param(
            lambda *_: {3: 4.04},
            "it pauses for 5 ms, after aten::linear, and its device idles",
            id="alike",
        ),
    ],
)
def test_the_title_is_of_what_most_of_the_idle_time_is_in(pauses: Pauses, words: str) -> None:
    assert words in told(pauses)


def test_the_finding_names_the_place_and_the_range_of_most_idle_time_too() -> None:
    (found,) = named(run(lambda step, rank: {} if rank else LONG if step else SHORT, during="## save ##"))
    assert "mostly between aten::relu and aten::linear, in ## save ##" in found.title
    assert (found.evidence["after"], found.evidence["elsewhere"]) == ("aten::relu", 2)


def test_a_place_of_exactly_half_of_the_idle_time_has_no_more_than_others() -> None:
    assert costliest_place([pause("a"), pause("b")]) == (("a", "aten::mm"), False)
    assert costliest_place([pause("a"), pause("b"), pause("b")]) == (("b", "aten::mm"), True)


def test_the_usual_length_is_that_of_the_middle_of_the_idle_time_and_not_of_the_middle_pause() -> None:
    """Four of 1 ms, one of 5: the middle of 9 ms is in the fifth; with two more of 1 ms, that of 11 is in the sixth."""
    short, long = (replace(pause("a"), paused_ns=ms * MS, idle_ns=ms * MS) for ms in (1, 5))
    assert usual_length_ns([short, long, short, short, short]) == 5 * MS
    assert usual_length_ns([short, long, short, short, short, short, short]) == 1 * MS
