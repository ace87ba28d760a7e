"""What `benchmarks.gate_recordings` says of the smallest loss that is caught."""

from benchmarks.gate_recordings import TRIALS, smallest_caught

MS = 1_000_000


def test_the_smallest_loss_is_named_with_the_one_below_it() -> None:
    words = smallest_caught({12 * MS: TRIALS // 2, 24 * MS: TRIALS, 48 * MS: TRIALS})
    assert words == (
        f"smallest loss caught in 90%, with all larger ones: 24.0 ms; "
        f"of 12.0 ms, the next one recorded, {TRIALS // 2} of {TRIALS} are"
    )


def test_a_small_loss_that_is_caught_by_luck_does_not_count() -> None:
    assert "larger ones: 48.0 ms" in smallest_caught({12 * MS: TRIALS, 24 * MS: 0, 48 * MS: TRIALS})


def test_where_nothing_brackets_it_this_is_said() -> None:
    assert smallest_caught({12 * MS: TRIALS}).endswith("or less: none smaller was recorded")
    assert smallest_caught({12 * MS: 0}) == "no recorded loss is caught in 90%"
