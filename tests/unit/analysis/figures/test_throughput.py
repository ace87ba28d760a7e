"""Tokens/s, MFU, goodput and GPU-hours a day against calculations by hand; n/a with a reason where one is missing."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cost.peak_flops import published_peak_tflops
from overlapscope.analysis.cost.throughput import Amount, Stated, Throughput, gpu_hours_a_day, with_stated
from overlapscope.analysis.result import Recommendation, with_costs
from overlapscope.fleet.measure import measure
from overlapscope.report.text.advice import gain_with_cost
from overlapscope.report.text.exposed_causes import exposed_causes_text
from overlapscope.report.text.idle_time import idle_text
from overlapscope.report.text.throughput import lines
from overlapscope.timeline.columns import COMM, DEVICE, HOST
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.builders import EPOCH_NS
from tests.support.rank_rows import rank_timeline

MS = 1_000_000
H100 = "NVIDIA H100 80GB HBM3"


def rank_of(
    rank: int,
    steps: Sequence[tuple[float, float]],
    amounts: Mapping[str, Sequence[float | None]] | None = None,
    *,
    device: bool = False,
    cut: Sequence[int] = (),
    marked: bool = True,
    clock_ms: float = 0,
) -> RankTimeline:
    """Return a rank with steps at (begin, end) in ms: 6 parts compute, 3 parts exposed communication, 1 part idle.

    `amounts` are what each step processes, `cut` the numbers of incomplete steps; its clock is ahead by `clock_ms`.
    """
    base = EPOCH_NS + round(clock_ms * MS)
    spans, rows, readings = [], [], []
    for number, (begin, end) in enumerate(steps):
        start, length = base + round(begin * MS), round((end - begin) * MS)
        own = {"step": number, "launch_ns": start}
        spans.append({**own, "start_ns": start, "end_ns": start + length * 6 // 10, "lane": 0, "name": "gemm"})
        spans.append({**own, "start_ns": start + length * 6 // 10, "end_ns": start + length * 9 // 10, "lane": 1,
                      "kind": COMM, "name": "all_reduce"})  # fmt: skip
        rows.append({"step": number, "start_ns": start, "end_ns": start + length, "cut": number in cut})
        for name, values in (amounts or {}).items():
            if values[number] is not None:
                readings.append({"time_ns": start, "step": number, "name": name, "value": float(values[number] or 0)})
    last = base + round(steps[-1][1] * MS)
    return rank_timeline(
        rank,
        work=spans,
        steps=rows,
        telemetry=readings,
        recordings=[{"start_ns": base + round(steps[0][0] * MS), "end_ns": last}],
        lanes=({"kind": DEVICE if device else HOST},) * 2,
        has_device=device,
        basis="events",
        recorded={"mode": "events"} if marked else {},
    )


def found(*ranks: RankTimeline, world_size: int | None = None, device: str | None = None) -> Throughput:
    run = Run(
        world_size=world_size or len(ranks),
        ranks={each.rank: each for each in ranks},
        fingerprint={"device": device},
    )
    result = analyze(run).throughput
    assert result is not None
    return result


STEPS = [(0, 10), (12, 22), (23, 43)]
"""10, 10 and 20 ms, with gaps of 2 and 1 ms."""


def test_steps_that_other_ranks_completed_are_left_out() -> None:
    """100 tokens a step and rank; ranks 0 and 1 completed steps 0 and 1 of 10 ms, ranks 1 and 2 step 2."""
    cuts: list[list[int]] = [[2], [], [0, 1]]
    ranks = [rank_of(rank, STEPS, {"tokens": [100, 100, 100]}, cut=cut) for rank, cut in enumerate(cuts)]
    for order in (ranks, ranks[::-1]):
        assert found(*order).tokens == Amount(per_step=300, per_second=30_000, known_from="recorded", extrapolated=True)


def test_the_headline_names_the_ranks_that_it_is_over() -> None:
    """Rank 2 completed step 2 alone, in which no other rank did."""
    cuts: list[list[int]] = [[2], [2], [0, 1]]
    ranks = {rank: rank_of(rank, STEPS, cut=cut) for rank, cut in enumerate(cuts)}
    headline = analyze(Run(world_size=3, ranks=ranks)).headline
    assert (headline.ranks, headline.steps) == ([0, 1], 2)


def test_tokens_a_second_are_those_of_all_ranks_over_the_longest_time_of_any() -> None:
    """By hand: 6,000 + 3,000 tokens in 40 ms (the other rank takes 30 ms) are 225,000 a second."""
    slow = rank_of(0, STEPS, {"tokens": [1000, 2000, 3000], "samples": [1, 1, 1]})
    fast = rank_of(1, [(0, 10), (12, 22), (23, 33)], {"tokens": [1000, 1000, 1000], "samples": [1, 2, 0]}, clock_ms=7e6)
    its = found(slow, fast)
    assert (its.steps, its.ranks, its.devices, its.time_ns, its.time_from) == (3, 2, 2, 40 * MS, "recorded")
    assert its.tokens is not None
    assert its.tokens.per_step == 3000
    assert its.tokens.per_second == pytest.approx(225_000)
    assert (its.tokens.known_from, its.tokens.extrapolated) == ("recorded", False)
    assert its.samples is not None
    assert its.samples.per_second == pytest.approx(6 / 0.040)


def test_incomplete_steps_count_neither_tokens_nor_time() -> None:
    """By hand: 1,000 + 3,000 tokens in 10 + 20 ms."""
    its = found(rank_of(0, STEPS, {"tokens": [1000, 50_000, 3000]}, cut=[1]))
    assert its.steps == 2
    assert its.tokens is not None
    assert its.tokens.per_second == pytest.approx(4000 / 0.030)
    none = found(rank_of(0, STEPS, {"tokens": [1, 1, 1]}, cut=[0, 1, 2]))
    assert none.tokens is None
    assert none.reasons["tokens"] == "no complete step was recorded"


def test_a_step_without_tokens_on_one_rank_leaves_them_unknown() -> None:
    its = found(rank_of(0, STEPS, {"tokens": [1, 1, 1]}), rank_of(1, STEPS, {"tokens": [1, None, 1]}))
    assert its.tokens is None
    assert "5 of 6 complete steps" in its.reasons["tokens"]
    only_first = found(rank_of(0, STEPS, {"tokens": [1, 1, 1]}), rank_of(1, STEPS))
    assert only_first.tokens is None
    damaged = found(rank_of(0, STEPS, {"tokens": [1, -5, 1]}))
    assert damaged.tokens is None
    zero = found(rank_of(0, STEPS, {"tokens": [4, 4, 4]}), rank_of(1, STEPS, {"tokens": [0, 0, 0]}))
    assert zero.tokens is not None
    assert zero.tokens.per_step == 4


def test_some_ranks_of_a_job_stand_for_the_others_where_they_are_alike_and_it_is_said() -> None:
    alike = found(rank_of(0, STEPS, {"tokens": [100] * 3}), rank_of(1, STEPS, {"tokens": [104] * 3}), world_size=8)
    assert alike.tokens is not None
    assert alike.tokens.per_step == 816
    assert alike.tokens.extrapolated
    for other in (0, 120):
        ranks = rank_of(0, STEPS, {"tokens": [100] * 3}), rank_of(1, STEPS, {"tokens": [other] * 3})
        differ = found(*ranks, world_size=8)
        assert differ.tokens is None
        assert "2 of 8 ranks" in differ.reasons["tokens"]
        assert found(*ranks).tokens is not None


def test_of_equal_step_numbers_in_two_recordings_the_nearest_in_time_is_meant() -> None:
    one = rank_of(0, [(0, 10)], {"tokens": [5]})
    names = list(one.names)
    readings = [{"time_ns": EPOCH_NS + at * MS, "step": 0, "name": "tokens", "value": value}
                for at, value in ((-500, 1.0), (1, 7.0), (900, 2.0))]  # fmt: skip
    several = rank_timeline(0, names=names, telemetry=readings)
    its = found(replace(one, telemetry=several.telemetry, names=several.names))
    assert its.tokens is not None
    assert its.tokens.per_step == 7


def test_mfu_is_model_flops_over_time_devices_and_peak() -> None:
    """By hand: (6 + 2) TFLOP in 3 steps of 40 ms together on 2 devices: 100 TFLOP/s each; of 400 that is a quarter."""
    ranks = [rank_of(rank, STEPS, {"flops": [tflop / 3 * 1e12] * 3}, device=True)
             for rank, tflop in ((0, 6), (1, 2))]  # fmt: skip
    its = found(*ranks, device=H100)
    # On a device a step ends where the next one begins: 12, 11 and (to its last span) 18 ms.
    assert its.time_ns == 41 * MS
    assert its.flops_per_device is not None
    assert its.flops_per_device.per_second == pytest.approx(4e12 / 0.041)
    assert its.mfu is None
    assert "--dtype" in its.reasons["mfu"]
    of_option = with_stated(its, Stated(peak_tflops=400))
    assert of_option.mfu == pytest.approx(4 / 0.041 / 400)
    assert (of_option.peak_from, "mfu" in of_option.reasons) == ("option", False)
    of_table = with_stated(its, Stated(dtype="bf16"))
    assert of_table.mfu == pytest.approx(4 / 0.041 / 989.4)
    assert (of_table.peak_tflops, of_table.peak_from) == (989.4, "published")


@pytest.mark.parametrize(
    ("device", "dtype", "why"),
    [
        ("NVIDIA GeForce RTX 4090", "bf16", "no published peak is listed for NVIDIA GeForce RTX 4090 and bf16"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "bf16", "no published peak is listed"),
        ("NVIDIA A100-SXM4-80GB", "fp8", "no published peak is listed"),
        (H100, None, "--dtype"),
        (None, "bf16", "the device is not known"),
    ],
)
def test_an_unknown_device_or_dtype_gives_no_mfu_but_the_reason(device: str, dtype: str | None, why: str) -> None:
    its = with_stated(found(rank_of(0, STEPS, device=True), device=device), Stated(dtype=dtype, flops_per_step=1e12))
    assert its.mfu is None
    assert why in its.reasons["mfu"]
    assert its.flops_per_device is not None
    assert its.flops_per_device.per_second is not None


def test_more_than_the_peak_is_no_utilization() -> None:
    its = with_stated(found(rank_of(0, STEPS, device=True)), Stated(flops_per_step=1e15, peak_tflops=1))
    assert its.mfu is None
    assert "cannot be" in its.reasons["mfu"]


def test_options_fill_in_what_the_run_does_not_know_and_nothing_else() -> None:
    known = found(rank_of(0, STEPS, {"tokens": [10, 10, 10]}))
    assert with_stated(known, Stated(tokens_per_step=99)).tokens == known.tokens
    unknown = found(rank_of(0, STEPS), rank_of(1, STEPS))
    assert "neither" in unknown.reasons["tokens"]
    its = with_stated(unknown, Stated(tokens_per_step=80, flops_per_step=4e12))
    assert its.tokens == Amount(per_step=80, per_second=pytest.approx(80 * 3 / 0.040), known_from="option")
    assert its.flops_per_device is not None
    assert its.flops_per_device.per_step == 2e12
    assert "tokens" not in its.reasons


def test_published_peaks_are_those_of_one_device_without_sparsity() -> None:
    assert published_peak_tflops("Tesla V100-SXM2-32GB", "fp16") == 125
    assert published_peak_tflops("Tesla V100-SXM2-32GB", "bf16") is None
    for name in ("NVIDIA A100-SXM4-40GB", "A100-SXM4-80GB", "NVIDIA A100 80GB PCIe", "NVIDIA A100-PCIE-40GB"):
        assert published_peak_tflops(name, "bf16") == 312
    assert published_peak_tflops("NVIDIA H100 PCIe", "bf16") == 756
    assert published_peak_tflops("NVIDIA H200", "bf16") == published_peak_tflops(H100, "bf16") == 989.4
    assert published_peak_tflops("NVIDIA B200", "fp8") == 4500
    assert published_peak_tflops("AMD Instinct MI250X", "bf16") == 191.5
    assert published_peak_tflops("AMD Instinct MI300X", "bf16") == 1307.4
    for name in ("NVIDIA A100-SXM-64GB", "NVIDIA GH200 480GB", "AMD Instinct MI300X VF", "cpu", "H1000 PCIe"):
        assert published_peak_tflops(name, "bf16") is None


def test_exposed_and_idle_gpu_hours_are_shares_of_a_day_of_all_gpus_and_what_they_cost() -> None:
    """By hand: 3 of 10 parts are exposed and 1 is idle; the gaps of 2 and 1 ms lie in the steps: 12, 11, 18 ms."""
    its = found(rank_of(0, STEPS, device=True), world_size=64)
    assert its.exposed_fraction == pytest.approx(12 / 41)
    assert its.idle_fraction == pytest.approx(5 / 41)
    assert its.exposed_gpu_hours_a_day == pytest.approx(12 / 41 * 64 * 24)
    assert its.idle_gpu_hours_a_day == pytest.approx(5 / 41 * 64 * 24)
    assert its.exposed_price_a_day is None
    paid = with_stated(its, Stated(price_per_gpu_hour=2.5))
    assert paid.exposed_price_a_day == pytest.approx(12 / 41 * 64 * 24 * 2.5)
    assert paid.idle_price_a_day == pytest.approx(5 / 41 * 64 * 24 * 2.5)
    assert gpu_hours_a_day(0.25, 8) == 48
    assert gpu_hours_a_day(None, 8) is None


def recommending(gain_ns: int | None, bound_ns: int | None) -> Recommendation:
    return Recommendation(
        id="one", title="one", verdict="trial", predicted_gain_ns=gain_ns, gain_low_ns=None, gain_high_ns=bound_ns,
        confidence="mixed", memory_bytes=None, changes_numerics=False, apply={}, verify="",
    )  # fmt: skip


def test_a_loss_has_the_same_hours_with_and_without_a_replay() -> None:
    analysis = analyze(Run(world_size=64, ranks={0: rank_of(0, STEPS, device=True)}))
    by_rule = replace(recommending(None, 6 * MS), loss_ns=6 * MS, bound_from="loss")
    replayed = replace(by_rule, gain_high_ns=20 * MS, bound_from="replay")
    costed = with_costs(replace(analysis, recommendations=[by_rule, replayed])).recommendations
    assert costed[0].gpu_hours_a_day == costed[1].gpu_hours_a_day == pytest.approx(18 / 41 * 64 * 24)


def test_every_loss_and_gain_is_a_share_of_a_day_by_the_same_formula() -> None:
    """By hand: steps of 12, 11 and 18 ms, so 41 / 3 ms in the mean, as one is long; on 64 GPUs."""
    analysis = analyze(Run(world_size=64, ranks={0: rank_of(0, STEPS, device=True)}))
    head = analysis.headline
    gains = [recommending(3 * MS, 5 * MS), recommending(None, 6 * MS), recommending(None, None)]
    analysis = replace(analysis, recommendations=gains)
    costed = with_costs(analysis)
    assert head.step_ns == 12 * MS
    assert costed.throughput is not None
    hours = [each.gpu_hours_a_day for each in costed.recommendations]
    assert hours == [pytest.approx(9 / 41 * 64 * 24), pytest.approx(18 / 41 * 64 * 24), None]
    assert [each.price_a_day for each in costed.recommendations] == [None, None, None]
    exposed, idle = costed.throughput.exposed_causes_gpu_hours_a_day, costed.throughput.idle_causes_gpu_hours_a_day
    assert exposed.keys() == head.causes.keys() != set()
    assert sum(exposed.values()) == pytest.approx(costed.throughput.exposed_gpu_hours_a_day)
    assert sum(idle.values()) == pytest.approx(costed.throughput.idle_gpu_hours_a_day)
    stated = with_stated(costed.throughput, Stated(price_per_gpu_hour=2.5))
    priced = with_costs(replace(costed, throughput=stated)).recommendations
    assert [each.price_a_day for each in priced] == [
        pytest.approx(9 / 41 * 64 * 60),
        pytest.approx(18 / 41 * 64 * 60),
        None,
    ]
    shown = gain_with_cost(priced[0])
    assert shown == "saves 3.000 ms a step, 337.2 GPU-hours a day worth 842.93"
    assert gain_with_cost(costed.recommendations[1]) == "saves at most 6.000 ms a step, 674.3 GPU-hours a day"
    assert gain_with_cost(priced[2]) == ""


def test_the_start_of_a_recording_costs_no_gpu_hours() -> None:
    """Of 3 ms, one is waited as recordings began apart, and of 2 ms that the device idles one lies before its own."""
    analysis = analyze(Run(world_size=64, ranks={0: rank_of(0, [(0, 10), (12, 22)], device=True)}))
    begin = {"start_of_recording": MS}
    causes: dict[str, Any] = {
        "causes": {"dependency": 2 * MS, **begin}, "idle_causes": {"launch_bound": MS, **begin}, "idle_ns": 2 * MS,
    }  # fmt: skip
    head = replace(analysis.headline, **causes)
    ranks = [replace(info, steps=[replace(step, **causes) for step in info.steps]) for info in analysis.ranks]
    costed = with_costs(replace(analysis, headline=head, ranks=ranks))
    its = costed.throughput
    assert its is not None
    assert its.exposed_causes_gpu_hours_a_day == {"dependency": its.exposed_gpu_hours_a_day}
    assert its.idle_causes_gpu_hours_a_day == {"launch_bound": its.idle_gpu_hours_a_day}
    said = " ".join(idle_text(costed).split())
    assert f"late launch by the host 1.000 ms (50.0 %, {its.idle_gpu_hours_a_day:,.1f} GPU-hours a day)" in said
    assert "start of the recording 1.000 ms (50.0 %)" in said
    assert ["start of the recording", "1.000", "33.3 %", "n/a"] in [
        [cell.strip() for cell in line.split("  ") if cell.strip()] for line in exposed_causes_text(costed).splitlines()
    ]


@pytest.mark.parametrize(
    ("steps", "cause"),
    [
        pytest.param([(0, 10), (12, 22)], "dependency", id="others of all steps together"),
        pytest.param([(0, 20)], "unknown", id="one step: none"),
    ],
)
def test_hours_are_of_a_cause_where_a_median_step_has_nothing_but_the_start_of_the_recording(
    steps: list[tuple[int, int]], cause: str
) -> None:
    analysis = analyze(Run(world_size=64, ranks={0: rank_of(0, steps, device=True)}))
    begin = {"start_of_recording": MS}
    ranks = [
        replace(
            each, steps=[replace(one, causes={"dependency": MS}, idle_causes={"dependency": MS}) for one in each.steps]
        )
        for each in analysis.ranks
    ]
    for causes in (begin, {}):
        head = replace(analysis.headline, causes=causes, idle_causes=causes)
        its = with_costs(replace(analysis, ranks=ranks, headline=head)).throughput
        assert its is not None
        assert its.exposed_gpu_hours_a_day
        assert its.exposed_causes_gpu_hours_a_day == {cause: its.exposed_gpu_hours_a_day}
        assert sum(its.idle_causes_gpu_hours_a_day.values()) == its.idle_gpu_hours_a_day


def test_a_gain_of_each_step_is_a_share_of_the_mean_step_where_few_are_long() -> None:
    """By hand: steps of 10, 10, 10 and 81 ms, the last to the end of its work, of which a day has fewer."""
    steps = [(0, 10), (10, 20), (20, 30), (30, 120)]
    analysis = analyze(Run(world_size=64, ranks={0: rank_of(0, steps, device=True)}))
    assert analysis.headline.step_ns == 10 * MS
    (costed,) = with_costs(replace(analysis, recommendations=[recommending(3 * MS, None)])).recommendations
    assert costed.gpu_hours_a_day == pytest.approx(3 / (111 / 4) * 64 * 24)


def test_a_gain_of_a_whole_recording_is_a_share_of_the_recording() -> None:
    analysis = analyze(Run(world_size=64, ranks={0: rank_of(0, STEPS, device=True)}))
    whole_ns = analysis.ranks[0].whole.window_ns
    assert whole_ns == 41 * MS
    gain = replace(recommending(None, 6 * MS), per="recording")
    (costed,) = with_costs(replace(analysis, recommendations=[gain])).recommendations
    assert costed.gpu_hours_a_day == pytest.approx(6 / 41 * 64 * 24)


def test_a_cpu_run_has_no_gpu_hours_of_any_cause_or_gain() -> None:
    analysis = analyze(Run(world_size=1, ranks={0: rank_of(0, STEPS)}))
    costed = with_costs(replace(analysis, recommendations=[recommending(3 * MS, None)]))
    assert costed.throughput is not None
    assert costed.throughput.exposed_causes_gpu_hours_a_day == {}
    assert costed.recommendations[0].gpu_hours_a_day is None
    assert gain_with_cost(costed.recommendations[0]) == "saves 3.000 ms a step"


def test_a_run_without_gpus_has_no_gpu_hours_but_its_shares() -> None:
    its = with_stated(found(rank_of(0, STEPS)), Stated(price_per_gpu_hour=2))
    assert its.exposed_fraction == pytest.approx(0.3)
    assert (its.exposed_gpu_hours_a_day, its.idle_gpu_hours_a_day, its.exposed_price_a_day) == (None, None, None)
    assert "without GPUs" in its.reasons["exposed_gpu_hours_a_day"]


def test_a_fleet_shows_the_same_figures_as_an_analysis() -> None:
    run = Run(world_size=4, ranks={0: rank_of(0, STEPS, {"tokens": [7, 7, 7]}, device=True)})
    its, one = measure(run, "run", "job"), analyze(run).throughput
    assert one is not None
    assert one.tokens is not None
    assert its.exposed_gpu_hours_a_day == one.exposed_gpu_hours_a_day
    assert its.idle_gpu_hours_a_day == one.idle_gpu_hours_a_day
    assert its.tokens_per_s == one.tokens.per_second


def test_goodput_is_the_share_of_the_time_from_the_first_step_to_the_last_in_complete_ones() -> None:
    """By hand: 40 of 43 ms; of the other rank 30, as its second step is incomplete."""
    its = found(rank_of(0, STEPS), rank_of(1, STEPS, cut=[1], clock_ms=1e5))
    assert its.goodput == pytest.approx(70 / 86)
    assert its.goodput_time_ns == 43 * MS


def test_goodput_is_not_known_from_a_profilers_steps_nor_from_single_ones() -> None:
    assert found(rank_of(0, STEPS), rank_of(1, STEPS, marked=False)).goodput is None
    profiler = found(rank_of(0, STEPS, marked=False))
    assert (profiler.goodput, profiler.goodput_time_ns) == (None, None)
    assert "scope.step()" in profiler.reasons["goodput"]
    single = found(rank_of(0, STEPS[:1]))
    assert single.goodput is None
    assert "one after the other" in single.reasons["goodput"]


def test_without_any_times_nothing_is_known() -> None:
    result = analyze(Run(world_size=None, ranks={})).throughput
    assert result is not None
    its = with_stated(result, Stated(tokens_per_step=5, flops_per_step=5, peak_tflops=1, price_per_gpu_hour=1))
    assert its.tokens is not None
    assert (its.tokens.per_second, its.flops_per_device, its.mfu, its.time_ns) == (None, None, None, None)
    assert its.reasons["tokens.per_second"] == "no complete step was recorded"


def fields_of_reasons(its: Throughput) -> Any:
    return {name.split(".")[0] for name in its.reasons}


def test_every_reason_names_a_figure_that_is_null() -> None:
    of_rank_7 = analyze(Run(ranks={7: rank_of(7, STEPS, {"tokens": [1, 1, 1]}, device=True)}, world_size=None))
    assert of_rank_7.throughput is not None
    for its in (
        found(rank_of(0, STEPS)),
        found(rank_of(0, STEPS, {"tokens": [1, 1, 1]}, device=True)),
        of_rank_7.throughput,
    ):
        assert fields_of_reasons(its) <= set(Throughput.__struct_fields__)
        assert all(getattr(its, name) is None for name in its.reasons)


def test_a_job_has_at_least_the_ranks_that_its_groups_name() -> None:
    ranks = {rank: rank_of(rank, [(0, 10), (10, 20)], {"tokens": [100, 100]}, device=True) for rank in (0, 1)}
    groups = (Group(name="pipeline", ranks=(0, 14)), Group(name="tensor", size=2))

    def devices(**more: Any) -> tuple[int | None, float]:
        result = analyze(Run(ranks=ranks, **more)).throughput
        assert result is not None
        assert result.tokens is not None
        (said,) = lines(result, analyze(Run(ranks=ranks, **more)).headline)[-1:]
        assert ("A day on at least" in said) is (more["world_size"] is None and (result.devices or 0) > len(ranks))
        return result.devices, result.tokens.per_step

    assert devices(groups=groups, world_size=None) == (15, 1500.0)
    assert devices(groups=groups, world_size=16)[0] == 16
    assert devices(groups=groups[1:], world_size=None)[0] == 2
    assert devices(groups=(Group(name="g", size=8),), world_size=None)[0] == 8


@pytest.mark.parametrize("rank", [1, 0])
def test_what_is_taken_for_the_fewest_ranks_that_a_job_may_have_is_said_to_be_a_bound(rank: int) -> None:
    """Rank 1 alone is of two ranks or more; rank 0 may be all: 100 tokens of a rank, and 2 TFLOP of the job, a step.

    The second step lacks its last millisecond, as its mark says: a whole one takes 10 ms."""
    ranks = {rank: rank_of(rank, [(0, 10), (10, 20)], {"tokens": [100, 100]}, device=True)}
    analysis = analyze(Run(ranks=ranks, world_size=None))
    assert analysis.throughput is not None
    assert analysis.throughput.devices_at_least is (rank == 1)
    its = with_stated(analysis.throughput, Stated(flops_per_step=2e12, peak_tflops=1000))
    rates, *_, hours = lines(its, analysis.headline)
    if rank == 1:
        assert rates.startswith("at least 20,000 tokens/s: 200 a step (taken from 1 of at least 2 ranks); at most ")
        assert " TFLOP/s a device (as stated), MFU at most " in rates
        assert hours.startswith("A day on at least 2 GPUs, if all are as the 1 recorded rank: ")
    else:
        assert "at " not in rates.replace("stated", "")
        assert hours.startswith("A day on 1 GPU: ")


@pytest.mark.parametrize(("part", "differ"), [(3, False), (12, True)])
def test_recorded_ranks_of_which_one_computes_next_to_nothing_stand_for_no_others(part: int, *, differ: bool) -> None:
    """Of four ranks two were recorded; rank 0 computes a third, or a twelfth, of what rank 1 does. Each exposes 3 of 10
    ms: 0.3 x 24 hours of each GPU that is counted."""
    ranks = {rank: rank_of(rank, [(0, 10), (10, 20)], device=True) for rank in (0, 1)}
    spans = ranks[0].spans
    spans.end_ns[:] = np.where(
        spans.kind == COMM, spans.end_ns, spans.start_ns + (spans.end_ns - spans.start_ns) // part
    )
    analysis = analyze(Run(ranks=ranks, world_size=4))
    result = analysis.throughput
    assert result is not None
    assert (result.roles_differ, result.devices, result.paid_devices) == (differ, 4, 2 if differ else 4)
    exposed = result.exposed_fraction
    assert exposed is not None
    assert result.exposed_gpu_hours_a_day == pytest.approx(exposed * 24 * (2 if differ else 4))
    (said,) = lines(result, analysis.headline)[-1:]
    alone = "A day on the 2 recorded GPUs alone, which differ too much to stand for the others of 4: "
    assert said.startswith(alone if differ else "A day on 4 GPUs, if all are as the 2 recorded ranks: ")
