"""What a replay of one rank gains is no bound of what all would: it is said to be a replay's."""

import pytest
from msgspec.structs import replace

from overlapscope.analysis.result import GAIN_AT_MOST
from overlapscope.report.text.advice import REPLAY_SAYS, gain, gain_with_cost, render_brief
from overlapscope_dashboards.parts.quantities import exact_text
from overlapscope_dashboards.views.recommendations import gain_words
from tests.unit.advice.test_loss_in_the_mean import trial


@pytest.mark.parametrize(
    ("bound_from", "loss_ns", "words"),
    [
        (None, 5_000_000, "saves at most 5.000 ms a step"),
        ("loss", 5_000_000, "costs 5.000 ms a step"),
        ("replay", 5_000_000, "a replay without it is 5.000 ms a step shorter"),
        (
            "replay",
            2_000_000,
            "costs 2.000 ms a step; a replay without it is 5.000 ms shorter, as other losses get shorter, too",
        ),
        ("replay", 6_000_000, "costs 6.000 ms a step; a replay without it is 5.000 ms shorter"),
    ],
)
def test_a_gain_is_told_by_what_bounds_it(bound_from: str | None, loss_ns: int, words: str) -> None:
    each = trial("blocking_calls", loss_ns=loss_ns, per="step", bound_from=bound_from, predicted_gain_ns=None)
    assert gain(replace(each, gain_high_ns=5_000_000)) == words


def test_a_replay_that_gains_more_than_a_server_can_is_said_to_bound_it() -> None:
    each = trial("blocking_calls", loss_ns=2_000_000, per="step", bound_from="replay", predicted_gain_ns=None)
    bound = replace(each, gain_high_ns=5_000_000, evidence={GAIN_AT_MOST: True})
    words = "costs 2.000 ms a step; a replay without it is at most 5.000 ms shorter, as other losses get shorter, too"
    assert gain(bound) == exact_text(gain_words(bound)) == words


def test_hours_stand_beside_the_loss_that_they_are_of_and_a_replay_says_what_it_leaves_out() -> None:
    each = trial("launch_bound", loss_ns=2_000_000, per="step", bound_from="replay", predicted_gain_ns=None)
    each = replace(each, gain_high_ns=5_000_000, gpu_hours_a_day=1.8)
    assert gain_with_cost(each) == (
        "costs 2.000 ms a step, 1.8 GPU-hours a day; a replay in which hosts take no time, but for waits and batches, "
        "is 5.000 ms shorter, as other losses get shorter, too"
    )
    assert exact_text(gain_words(each)) == gain(each)


def test_beside_late_launches_that_no_replay_was_asked_of_advise_is_said_to_know_more() -> None:
    late = trial("launch_bound", loss_ns=2_000_000, per="step", bound_from="loss", predicted_gain_ns=None)
    waits = trial("blocking_calls", loss_ns=2_000_000, per="step", bound_from="loss", predicted_gain_ns=None)
    assert REPLAY_SAYS in render_brief([late])
    assert REPLAY_SAYS not in render_brief([late, waits])
    assert REPLAY_SAYS not in render_brief([replace(late, bound_from="replay")])


def test_what_a_replay_with_shorter_pauses_gains_is_no_bound_as_pauses_are_left() -> None:
    each = trial("shared_cores", per="recording", predicted_gain_ns=None, bound_from=None)
    each = replace(each, gain_high_ns=5_000_000, evidence={"recorded_ns": 9_000_000, "pauses_capped_ns": 4_000_000})
    words = "a replay with pauses of at most 3 ms is 5.000 ms a recording shorter"
    assert gain(each) == words
    assert exact_text(gain_words(each)) == words
