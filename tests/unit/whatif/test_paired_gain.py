"""The interval of a gain: what two replays have in common cancels, and nothing is advised where nothing is gained."""

import random

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.whatif.ddp.buckets import DdpSettings
from overlapscope.whatif.ddp.calibrate import SELF_TEST, Measured, step_ns
from overlapscope.whatif.ddp.ddp_predict import predict_ddp
from overlapscope.whatif.ddp.ddp_step import Settings
from overlapscope.whatif.ddp.paired_gain import ratio_error
from tests.unit.whatif.test_calibrate import described

SPREAD = 1.645
SPENT = np.array([[300.0, 200.0, 500.0], [250.0, 300.0, 400.0], [400.0, 100.0, 600.0], [150.0, 100.0, 250.0]])
CAPS = (1.0, 5.0, 25.0, 100.0, 500.0)


def test_a_setting_that_spends_its_time_alike_is_wrong_alike() -> None:
    off = ratio_error(np.array([[300.0, 200.0, 500.0], [300.0, 200.0, 500.0], [150.0, 100.0, 250.0]]), 0.03)
    assert off == pytest.approx([0.0, 0.0, 0.0], abs=1e-15)


def test_by_hand_what_two_settings_do_differently_is_in_doubt() -> None:
    """From (0.6, 0, 0.8) to (0.6, 0, 0) of a step of 1.4: shares 3/7, 0, 4/7; the ratio is 3/7."""
    off = ratio_error(np.array([[0.6, 0.0, 0.8], [0.6, 0.0, 0.0]]), 0.03)
    apart = np.hypot(3 / 7 - 9 / 49, 12 / 49)
    assert off[1] == pytest.approx(0.03 * apart / (5 / 7))


def test_nine_of_ten_ratios_of_drawn_paces_lie_within_it() -> None:
    drawn = np.random.default_rng(5)
    shares = SPENT[0] / SPENT[0].sum()
    paces = 1 + drawn.normal(0, 0.03 / SPREAD / np.linalg.norm(shares), (20_000, 3))
    ratios = (paces @ SPENT.T) / (paces @ SPENT[0])[:, None]
    half = ratio_error(SPENT, 0.03)
    for place in (1, 2):
        inside = np.abs(ratios[:, place] - SPENT[place].sum() / SPENT[0].sum()) <= half[place]
        assert inside.mean() == pytest.approx(0.9, abs=0.02)
    assert ratios[:, 3] == pytest.approx(0.5)


def test_a_replay_that_is_slow_by_one_share_throughout_gains_the_same() -> None:
    made = described(6, 1024, 60, 8)
    present = Settings(ddp=DdpSettings(bucket_cap_mb=500.0), gradient_as_bucket_view=True)
    step = step_ns(made.workload(), present, 1.3)
    fast, slow = (
        predict_ddp(
            replace(made, baseline=present, measured=(Measured(settings=present, step_ns=step * off),)),
            CAPS,
            search=False,
        )
        for off in (0.99, 1.01)
    )
    gains = [{str(each.knobs): each.gain for each in result.scenarios} for result in (fast, slow)]
    assert gains[0] == pytest.approx(gains[1], abs=0.004)


@pytest.mark.slow
def test_where_the_present_setting_is_the_best_a_change_is_hardly_ever_advised() -> None:
    """Truths are drawn: what is assumed, what the model misses, noise; the best cap of each is the present one."""
    drawn = random.Random(3)
    false, covered = 0, []
    for _ in range(16):
        made = described(drawn.randint(4, 8), drawn.choice((768, 1024)), drawn.uniform(20, 120), drawn.uniform(2, 30))
        truth = made.build({each.name: drawn.uniform(each.low, each.high) for each in made.assumptions})
        slowdown = drawn.uniform(1.0, 1.6)
        caps = {cap: Settings(ddp=DdpSettings(bucket_cap_mb=cap), gradient_as_bucket_view=True) for cap in CAPS}
        steps = {cap: step_ns(truth, each, slowdown) for cap, each in caps.items()}
        best = min(steps, key=lambda cap, found=steps: found[cap])
        off = 1 + drawn.gauss(0, SELF_TEST / 2 / SPREAD) + drawn.gauss(0, 0.01 / SPREAD)
        measured = Measured(settings=caps[best], step_ns=steps[best] * off)
        result = predict_ddp(replace(made, baseline=caps[best], measured=(measured,)), CAPS, search=False)
        false += result.verdict == "change"
        for each in result.scenarios[1:]:
            cap = each.knobs["bucket_cap_mb"]
            if not each.hypothetical and not each.changes_numerics:
                covered.append(each.gain_low <= 1 - steps[cap] / steps[best] <= each.gain_high)
    assert false <= 1
    assert np.mean(covered) >= 0.9
