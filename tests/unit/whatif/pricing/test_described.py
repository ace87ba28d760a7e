"""A described workload, priced from its operations and links."""

from typing import Any

import pytest

from overlapscope.errors import UsageError
from overlapscope.whatif.ddp.ddp_predict import predict_ddp
from overlapscope.whatif.ddp.plan import plan
from overlapscope.whatif.pricing.described import link_curve, phase_times
from overlapscope.whatif.pricing.devices import device
from overlapscope.whatif.pricing.links import links
from overlapscope.whatif.workload.model import Piece
from overlapscope.whatif.workload.workload_file import parse_workload

DOCUMENT: dict[str, Any] = {
    "world_size": 16,
    "compute": {"tokens": 16384},
    "model": {"layers": 12, "hidden": 768, "vocabulary": 50304, "sequence": 1024},
    "device": {"name": "h100-sxm"},
    "collectives": {"links": "8xh100-nvswitch,roce-400"},
    "ddp": {"bucket_cap_mb": 25},
}


def test_products_and_attention_take_their_operations_over_what_the_device_reaches() -> None:
    pieces = [Piece(name="w", operations=4e6), Piece(name="layers.0.attention", operations=5e6)]
    forward, backward = phase_times(pieces, 1000, device("h100-sxm"), "bfloat16")
    reached = 989e3 / 1.2
    assert forward == pytest.approx(2e9 / (reached * 0.7) + 2e9 / (reached * 0.35))
    assert backward == pytest.approx(4e9 / (reached * 0.7) + 5e9 / (reached * 0.30))


def test_a_plan_without_times_is_priced_and_says_that_it_is() -> None:
    made = plan(parse_workload(DOCUMENT))
    forward, backward = phase_times(made.pieces, 16384, device("h100-sxm"), "bfloat16")
    assert (made.workload().forward_ns, made.workload().backward_ns) == pytest.approx((forward, backward))
    assert "NVIDIA H100" in next(each.known_from for each in made.assumptions if each.name == "compute_time")
    found = predict_ddp(made, [10.0], search=False)
    assert found.verdict != "change"  # half again as long or short: no cap is better beyond that
    assert any("priced by bandwidth and latency" in each for each in found.reasons)


def test_a_plan_inside_a_node_takes_the_measured_table() -> None:
    made = plan(parse_workload({**DOCUMENT, "world_size": 8}))
    node = links("8xh100-nvswitch")
    assert made.curve is not None
    assert made.curve.at(1 << 20).item() == pytest.approx(node.time_ns("all_reduce", range(8), 1 << 20))
    assert {each.op for each in made.others} == {"all_gather", "reduce_scatter"}


def test_a_curve_across_nodes_is_an_assumption_throughout() -> None:
    found = link_curve(links("8xh100-nvswitch,roce-400"), "all_reduce", 16)
    assert not found.measured.any()


@pytest.mark.slow
def test_three_measured_settings_decide_a_priced_plan_by_their_spread() -> None:
    """The price, off by half, no longer matters: with two measured settings it does."""
    priced_ms = (plan(parse_workload(DOCUMENT)).workload().forward_ns * 3) / 1e6
    apart = {cap: priced_ms * scale for cap, scale in ((25, 2.0), (50, 1.9), (100, 1.6))}
    alike = {cap: priced_ms * scale for cap, scale in ((25, 2.0), (50, 2.003), (100, 1.998))}
    for steps, verdict in ((apart, "change"), (alike, "no_change")):
        measured = [{"bucket_cap_mb": cap, "step_ms": step} for cap, step in steps.items()]
        found = predict_ddp(plan(parse_workload({**DOCUMENT, "measured": measured})), [10.0], search=False)
        assert found.verdict == verdict
        assert found.reasons[0].startswith("3 settings were measured; their steps differ by")
        two = predict_ddp(plan(parse_workload({**DOCUMENT, "measured": measured[:2]})), [10.0], search=False)
        assert not any("settings were measured" in each for each in two.reasons)
    assert found.best.knobs["bucket_cap_mb"] in steps


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"compute": {"tokens": 1, "step_ms": 5.0}}, "needs step_ms, or forward_ms"),
        ({"compute": {"tokens": 0}}, "compute.tokens must be more than 0"),
        ({"device": {"memory_gbs": 2000.0}}, "device.name is needed"),
        ({"device": {"name": "h100-sxm", "memory_gbs": 2000.0}}, "device needs name or memory_gbs"),
        ({"device": {"name": "h100"}}, "not in the table"),
        ({"collectives": {"links": "nvlink"}}, "no such preset"),
        ({"collectives": {"links": "8xh100-nvswitch"}}, "several nodes"),
        ({"collectives": {"links": "8xh100-nvswitch", "algorithm": "ring"}}, "needs one of file"),
        ({"compute": {"tokens": 1, "dtype": "int3"}}, "no rate for int3"),
    ],
)
def test_what_cannot_be_priced_is_refused(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        plan(parse_workload({**DOCUMENT, **changes})).workload()
