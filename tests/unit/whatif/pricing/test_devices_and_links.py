"""Devices and links by name, and the times that links give: by hand, from tables, and refused."""

import pytest

from overlapscope.errors import UsageError
from overlapscope.timeline.operations import bus_factor
from overlapscope.whatif.cost.curves import ASSUMED, INTERPOLATED, MEASURED
from overlapscope.whatif.pricing.devices import device, devices
from overlapscope.whatif.pricing.links import link_presets, links

MIB = 1 << 20
NODE = range(8)


def test_a_device_is_what_its_data_sheet_says() -> None:
    h100 = device("h100-sxm")
    assert h100.memory_gbs == 3350
    assert h100.peak_flops_per_ns("bfloat16") == 989e3


def test_every_device_has_a_source_and_peaks_that_fall_with_the_width_of_the_dtype() -> None:
    for each in devices().values():
        assert each.source
        order = [
            each.peak_tflops[name] for name in ("float8", "float16", "tfloat32", "float32") if name in each.peak_tflops
        ]
        assert order == sorted(order, reverse=True), each.key


def test_an_unknown_device_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="nearest is h100-sxm"):
        device("h100-sxn")


def test_a_dtype_without_a_rate_is_refused() -> None:
    with pytest.raises(UsageError, match="v100-sxm has no rate for bfloat16"):
        device("v100-sxm").peak_flops_per_ns("bfloat16")


def test_a_measured_size_takes_the_measured_time() -> None:
    node = links("8xh100-nvswitch")
    assert node.time_ns("all_gather", NODE, 8 * MIB) == pytest.approx(43.4e3)
    assert node.known_from("all_gather", NODE, 8 * MIB) == MEASURED
    assert node.known_from("all_gather", NODE, 10 * MIB) == INTERPOLATED


def test_beyond_the_table_the_bandwidth_of_the_preset_is_assumed() -> None:
    node = links("8xh100-nvswitch")
    more = node.time_ns("all_gather", NODE, 1024 * MIB) - node.time_ns("all_gather", NODE, 512 * MIB)
    assert more == pytest.approx(512 * MIB * 7 / 8 / 350, rel=1e-6)
    assert node.known_from("all_gather", NODE, 600 * MIB) == ASSUMED


def test_part_of_a_node_is_a_ring_by_bandwidth_and_latency() -> None:
    size = 64 * MIB
    expected = 3 * 2e3 + 3 / 4 * size / 350
    assert links("8xh100-nvswitch").time_ns("reduce_scatter", range(4), size) == pytest.approx(expected)


def test_across_nodes_a_group_has_the_cards_of_its_ranks_in_a_node() -> None:
    both = links("8xh100-nvswitch,roce-400")
    whole, one_each, two_each = range(16), range(0, 64, 8), sorted([*range(0, 64, 8), *range(1, 64, 8)])
    assert both.across_gbs(whole) == 350  # eight cards reach more than NVLink's own rate
    assert both.across_gbs(one_each) == 44
    assert both.across_gbs(two_each) == 88
    assert both.time_ns("all_gather", one_each, 100 * MIB) == pytest.approx(7 * 6e3 + 7 / 8 * 100 * MIB / 44)
    assert both.time_ns("all_reduce", one_each, 100 * MIB) == pytest.approx(2 * (7 * 6e3 + 7 / 8 * 100 * MIB / 44))


def test_a_message_crosses_one_link() -> None:
    assert links("8xh100-nvswitch,roce-400").time_ns("send", (0, 8), 44_000) == pytest.approx(6e3 + 1e3)


def test_a_group_across_nodes_without_links_between_them_is_refused() -> None:
    with pytest.raises(UsageError, match="several nodes of 8 ranks"):
        links("8xh100-nvswitch").time_ns("all_gather", range(16), MIB)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("roce-400", "connects nodes"),
        ("8xh100-nvswitch,8xmi300x", "must be one of"),
        ("nvlinks", "no such preset"),
        ("", "name the links"),
        ("a,b,c", "name the links"),
    ],
)
def test_links_that_make_no_sense_are_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        links(text)


@pytest.mark.parametrize("name", [name for name, each in link_presets().items() if each.level == "inside"])
@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"])
def test_more_bytes_never_take_less_time(name: str, op: str) -> None:
    node = links(name)
    times = [node.time_ns(op, NODE, 1 << power) for power in range(10, 34)]
    assert times == sorted(times)


def test_a_group_of_one_takes_no_time() -> None:
    assert links("8xh100-nvswitch").time_ns("all_gather", (3,), MIB) == 0


def test_a_table_of_ones_own_takes_the_place_of_a_preset(tmp_path: object) -> None:
    file = tmp_path / "all_reduce.csv"  # type: ignore[operator]
    file.write_text("op,ranks,bytes,time_us\nall_reduce,8,1048576,50\nall_reduce,8,67108864,900\n")
    own = links(str(file))
    assert own.time_ns("all_reduce", NODE, 67108864) == pytest.approx(900e3)
    assert own.inside.gbs == pytest.approx(67108864 / 900e3 * bus_factor("all_reduce", 8))
