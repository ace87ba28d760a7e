"""Calibration, what a price may be called, its interval, and where it is written."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.errors import InputError
from overlapscope.timeline.columns import ATTENTION, MATMUL, MEMORY, NONE
from overlapscope.timeline.run import Run
from overlapscope.whatif.pricing.calibration import Measured, calibrated, fitted_constants, priced_ns
from overlapscope.whatif.pricing.constants import PRIORS, draws, usual
from overlapscope.whatif.pricing.devices import device
from overlapscope.whatif.pricing.links import links
from overlapscope.whatif.pricing.prices import Terms, drawn_steps, price_run, with_prices
from overlapscope.whatif.pricing.program import program_of
from overlapscope.whatif.pricing.recipe import parse_recipe
from overlapscope.whatif.pricing.times import row_times
from tests.unit.whatif.pricing.dry_runs import Row, call, dry_run, wait

H100 = device("h100-sxm")
BOTH = links("8xh100-nvswitch,roce-400")
PRODUCT = Row(work=MATMUL, flops=10**14, read=10**9, written=10**8)


def job(scale: int = 1, **gather: object) -> Run:
    return dry_run([
        PRODUCT,
        Row(work=MEMORY, read=10**10 * scale, fused=10**9),
        Row(work=ATTENTION, flops=10**13 * scale, name="aten.attention.default"),
        call("all_gather", 1 << 28, ready=2, needed=5, dimension="tensor", **gather),  # type: ignore[arg-type]
        wait(3),
        PRODUCT,
    ])  # fmt: skip


def measured(step_ns: float, recipe: str = "", scale: int = 1, **others: object) -> Measured:
    return Measured(program=program_of(job(scale), 0), recipe=parse_recipe(recipe), step_ns=step_ns, source="a row",
                    **others)  # type: ignore[arg-type] # fmt: skip


def priced(run: Run, recipe: str = "", *steps: Measured, key: str = "h100-sxm"):  # type: ignore[no-untyped-def]
    return price_run(run, Terms(device=device(key), links=BOTH, recipe=parse_recipe(recipe), measured=steps))


@pytest.mark.parametrize("recipe", ["", "compile", "float8=tensorwise", "async-tp", "compile,float8=rowwise,async-tp"])
def test_a_measured_step_is_met_exactly(recipe: str) -> None:
    program, words = program_of(job(), 0), parse_recipe(recipe)
    before = [measured(4e8, recipe.replace(",async-tp", "").replace("async-tp", ""))] if "async" in recipe else []
    if "rowwise" in recipe:
        before.insert(0, measured(5e8, "compile"))
    fit = calibrated(before, H100, BOTH, usual())
    aim = priced_ns(program, H100, BOTH, words, fit.applied(usual(), words)) * 0.999
    fit = calibrated([*before, measured(aim, recipe)], H100, BOTH, usual())
    assert priced_ns(program, H100, BOTH, words, fit.applied(usual(), words)) == pytest.approx(aim, rel=1e-4)


def test_one_step_fixes_one_constant() -> None:
    fit = calibrated([measured(4e8), measured(3e8, "float8=tensorwise")], H100, BOTH, usual())
    assert [compiled for compiled, _ in fit.pace] == [False]
    assert [name for name, _ in fit.others] == ["tensorwise_bytes"]
    applied = fit.applied(usual(), parse_recipe("compile"))
    untouched = set(PRIORS) - {"pace", "tensorwise_bytes"}
    assert all(applied[name] == PRIORS[name].usual for name in untouched)


def test_each_compile_setting_keeps_its_own_pace_and_lends_it_where_there_is_one() -> None:
    fit = calibrated([measured(4e8), measured(3.9e8, "compile")], H100, BOTH, usual())
    eager, compiled = (fit.applied(usual(), parse_recipe(each))["pace"] for each in ("", "compile"))
    assert eager != compiled
    alone = calibrated([measured(4e8)], H100, BOTH, usual())
    assert alone.applied(usual(), parse_recipe("compile"))["pace"] == alone.applied(usual(), parse_recipe(""))["pace"]


def test_a_calibrated_price_is_an_estimate_inside_its_interval() -> None:
    found = priced(job(2), "", measured(4e8)).prices.ranks[0]
    assert found.kind == "estimate"
    assert found.step is not None
    assert found.step.low_ns <= found.step.value_ns <= found.step.high_ns
    assert sum(found.path.values()) == pytest.approx(1)


def test_without_a_measured_step_there_is_a_range_and_no_value() -> None:
    found = priced(job()).prices.ranks[0]
    assert found.kind == "range"
    assert found.step is not None
    assert found.step.value_ns is None
    assert found.step.low_ns < found.step.high_ns
    assert "no measured step" in found.reasons[0]


def test_a_step_of_another_device_gives_a_wider_range_than_one_of_this() -> None:
    own = priced(job(2), "", measured(4e8)).prices.ranks[0].step
    other = priced(job(2), "", measured(4e8, device=device("h200"))).prices.ranks[0]
    assert other.kind == "range"
    assert other.step.high_ns - other.step.low_ns > own.high_ns - own.low_ns


def test_a_range_is_never_narrower_than_devices_differ_nor_too_wide_to_use() -> None:
    def half(step) -> float:  # type: ignore[no-untyped-def]
        return (step.high_ns - step.low_ns) / (step.high_ns + step.low_ns)

    moved = dry_run([Row(work=MEMORY, read=10**11)])  # only the memory bandwidth is uncertain: 0.7 to 0.92
    narrow = priced(moved).prices.ranks[0]
    assert half(narrow.step) == pytest.approx(0.15, abs=1e-6)
    other = half(priced(job(2), "", measured(4e8, device=device("h200"))).prices.ranks[0].step)
    nothing = half(priced(job(2)).prices.ranks[0].step)
    assert 0.15 < other <= nothing < 0.35  # to know less gives no narrower range
    gathered = [call("all_gather", 1 << 32, ready=at - 1, needed=at + 2, dimension="tensor") for at in (0,)]
    split = dry_run([*gathered, wait(0), Row(work=MEMORY, read=10**6)])
    wide = priced(split, "async-tp").prices.ranks[0]
    assert (wide.kind, wide.step) == ("none", None)
    assert "to each side: calibrate" in wide.reasons[-1]
    assert half(priced(split).prices.ranks[0].step) >= 0.15 - 1e-6


def test_scales_a_row_are_refused_without_a_step_of_their_own() -> None:
    recipe = "compile,float8=rowwise"
    run = job()
    steps = measured(4e8, "compile"), measured(4e8, "compile,float8=tensorwise")
    run = with_prices(run, priced(run, recipe, *steps))
    found = run.ranks[0].recorded["price"]["ranks"][0]
    assert found["kind"] == "none"
    assert found["step"] is None
    assert any("scale a row" in each for each in found["reasons"])
    assert (run.ranks[0].operations.priced_start_ns == NONE).all()
    steps = measured(3.8e8, "compile"), measured(2.5e8, recipe)
    assert priced(job(), recipe, *steps).prices.ranks[0].kind == "estimate"


def test_pipelines_and_long_rings_have_no_price() -> None:
    pipeline = dry_run([PRODUCT, call("send", 1 << 20, ready=0)])
    assert priced(pipeline, "", measured(4e8)).prices.ranks[0].kind == "none"
    for degree, kind in ((2, "estimate"), (4, "none")):
        ring = dry_run(
            [PRODUCT, call("all_gather", 1 << 20, dimension="context", group="1", ready=0)], {"1": range(degree)}
        )
        assert priced(ring, "", measured(4e8)).prices.ranks[0].kind == kind


def test_a_context_over_all_ranks_is_known_by_its_long_keys() -> None:
    """Its group is the default one, which has no dimension."""
    for keys, kind in ((8, "none"), (1, "estimate")):
        attention = Row(work=ATTENTION, flops=10**13, read=(1 + 2 * keys) << 20, written=1 << 20)
        run = dry_run([call("all_gather", 1 << 20, ready=-1, needed=2), wait(0), attention, PRODUCT])
        assert priced(run, "", measured(4e8)).prices.ranks[0].kind == kind
    crossed = Row(work=ATTENTION, flops=10**13, read=17 << 20, written=1 << 20)  # of an encoder's longer output
    of_parameters = dry_run([call("all_gather", 1 << 20, parameters=5), wait(0), crossed, PRODUCT])
    assert priced(of_parameters, "", measured(4e8)).prices.ranks[0].kind == "estimate"


def test_an_expert_exchange_has_a_range_because_routing_is_assumed() -> None:
    experts = dry_run([PRODUCT, call("all_to_all", 1 << 20, ready=0)])
    assert priced(experts, "", measured(4e8)).prices.ranks[0].kind == "range"


def test_priced_times_stand_beside_exact_columns_and_say_what_they_are() -> None:
    run = job()
    found = priced(run, "", measured(4e8))
    before, after = run.ranks[0], with_prices(run, found).ranks[0]
    assert (before.operations.priced_start_ns == NONE).all()
    assert "price" not in before.recorded
    assert after.operations.priced_end_ns.max() == found.prices.ranks[0].step.value_ns
    assert (after.schedule.priced_end_ns > after.schedule.priced_start_ns).all()
    assert after.recorded["price"]["schema"] == "overlapscope.price/1"
    for name in ("flops", "read_bytes", "fused_bytes"):
        assert (getattr(after.operations, name) == getattr(before.operations, name)).all()
    assert (after.collectives.start_ns == before.collectives.start_ns).all()


def test_only_a_dry_run_is_priced() -> None:
    run = job()
    recorded = replace(run, ranks={0: replace(run.ranks[0], basis="trace")})
    with pytest.raises(InputError, match="only a dry run"):
        priced(recorded)


def test_what_was_fitted_has_no_range_and_names_its_step() -> None:
    constants = {each.name: each for each in priced(job(), "", measured(4e8)).prices.constants}
    assert (constants["pace"].low, constants["pace"].source) == (None, "fitted to a row")
    assert constants["memory"].low == PRIORS["memory"].low
    assert not {"rowwise_bytes", "float8", "hidden", "another_device"} & set(constants)


def test_many_operations_on_a_short_step_are_noted_as_launch_bound() -> None:
    small = dry_run([Row(work=MEMORY, read=1000) for _ in range(2000)])
    assert "launch-bound" in priced(small).prices.ranks[0].notes[0]
    assert not priced(job()).prices.ranks[0].notes


def test_more_memory_than_the_device_has_is_noted() -> None:
    run = job()
    for peak_bytes, noted in ((80 * 10**9, False), (81 * 10**9, True)):
        recorded = {"memory": {"peak_bytes": peak_bytes}}
        found = priced(replace(run, ranks={0: replace(run.ranks[0], recorded=recorded)})).prices.ranks[0]
        assert any("the device has 80" in each for each in found.notes) == noted


def test_draws_stay_in_their_ranges_and_are_the_same_each_time() -> None:
    found = draws(50)
    assert found == draws(50)
    for name, prior in PRIORS.items():
        values = np.array([each[name] for each in found])
        assert values.min() >= prior.low
        assert values.max() <= prior.high


def test_a_draw_holds_for_all_targets_so_that_differences_are_narrower_than_steps() -> None:
    terms = Terms(device=H100, links=BOTH, measured=())
    both = [(program_of(job(), 0), parse_recipe("")), (program_of(job(2), 0), parse_recipe(""))]
    drawn = drawn_steps(both, terms, 40)
    assert drawn.shape == (40, 2)
    assert np.std(np.log(drawn[:, 1] / drawn[:, 0])) < np.std(np.log(drawn[:, 1]))


def test_a_step_shorter_than_its_communication_gives_no_price() -> None:
    found = priced(job(), "", measured(1e5)).prices.ranks[0]
    assert found.kind == "none"
    assert "no pace meets the measured step" in found.reasons[0]


def test_a_constant_far_from_what_is_known_is_noted() -> None:
    found = priced(job(), "", measured(4e9)).prices.ranks[0]
    assert found.kind == "estimate"
    assert "outside 0.95 to 1.45" in found.notes[0]


def test_the_kernels_of_a_recorded_step_fix_attention_and_memory_and_the_step_the_pace() -> None:
    program, truth = program_of(job(), 0), {**usual(), "attention": 0.8, "memory": 0.9, "pace": 1.4}
    rows = row_times(program.rows, H100, parse_recipe(""), truth)
    work_ns = {kind: float(rows[program.rows.work == kind].sum()) for kind in (MATMUL, ATTENTION, MEMORY)}
    step_ns = priced_ns(program, H100, BOTH, parse_recipe(""), truth)
    step = measured(step_ns, work_ns=work_ns)
    found = calibrated([step], H100, BOTH, usual()).applied(usual(), parse_recipe(""))
    assert {name: found[name] for name in ("attention", "memory", "pace")} == pytest.approx(
        {"attention": 0.8, "memory": 0.9, "pace": 1.4}, rel=1e-3
    )
    # Another job then has each class right, which the step alone would not give.
    other = program_of(job(3), 0)
    aim = priced_ns(other, H100, BOTH, parse_recipe(""), truth)
    alone = calibrated([measured(step_ns)], H100, BOTH, usual()).applied(usual(), parse_recipe(""))
    assert priced_ns(other, H100, BOTH, parse_recipe(""), found) == pytest.approx(aim, rel=1e-3)
    assert abs(priced_ns(other, H100, BOTH, parse_recipe(""), alone) / aim - 1) > 0.02
    assert "fixes attention, memory, pace" in priced(job(), "", step).prices.measured[0]


def test_kernels_of_another_device_or_with_casts_fix_no_class() -> None:
    work_ns = {MATMUL: 2e8, ATTENTION: 3e7, MEMORY: 4e6}
    assert fitted_constants(measured(4e8, work_ns=work_ns, device=device("h200"))) == ("pace",)
    assert fitted_constants(measured(4e8, "float8=tensorwise", work_ns=work_ns)) == ("tensorwise_bytes",)
