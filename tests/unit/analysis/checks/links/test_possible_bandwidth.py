"""Measured bandwidth against what is possible: benchmarks' tables, presets, the speed of links."""

import re

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.checks.links.possible_bandwidth import curves_of
from overlapscope.analysis.common.findings import Finding
from overlapscope.cli.main import main
from overlapscope.cli.verbs import analyze as verb
from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.reference_bandwidth import preset_names, reference_bandwidths
from overlapscope.timeline.columns import DEVICE
from overlapscope.timeline.facts import Facts, Links, Measurements
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, Run
from tests.conftest import shared_file
from tests.unit.analysis.cross_rank.matching.test_matching import Call, job

MIB = 1 << 20
EIGHT = Group(name="g", size=8, ranks=tuple(range(8)))


def running_at(
    busbw_gbs: float, *, volume: int = 64 * MIB, calls: int = 6, op: str = "all_reduce", group: Group = EIGHT
) -> Run:
    """Return eight ranks whose calls last as long as this bus bandwidth has it."""
    factor = 14 / 8 if op == "all_reduce" else 7 / 8
    length = round(volume * factor / busbw_gbs)
    own = [Call(op=op, start=k * 100_000_000, length=length, size=8, volume=volume, seq=k) for k in range(calls)]
    return job({rank: list(own) for rank in range(8)}, (group,), world_size=8)


def said(run: Run, reference: Facts | None = None) -> list[Finding]:
    return [each for each in analyze(run, bandwidth=reference).findings if each.id.startswith("low_bandwidth")]


def measured(rows: list[tuple[str, int | None, int, float]], **more: object) -> Facts:
    names = NameTable()
    table = [
        {"source": "mine.log", "op": op, "ranks": ranks, "bytes": volume, "busbw_gbs": busbw, **more}
        for op, ranks, volume, busbw in rows
    ]
    return Facts(measurements=fact_table(Measurements, table, names), names=tuple(names.to_list()))


def test_less_than_half_of_a_preset_is_a_finding_with_both_numbers():
    finding = said(running_at(100), reference_bandwidths("8xh100-nvswitch"))[0]
    assert finding.id == f"low_bandwidth:all_reduce:g:{64 * MIB}"
    assert finding.evidence["busbw_gbs"] == pytest.approx(100, rel=1e-3)
    assert finding.evidence["possible_busbw_gbs"] == 359.71
    spent = 64 * MIB * 14 / 8 / 100
    assert finding.evidence["lost_ns_a_call"] == pytest.approx(spent - 64 * MIB * 14 / 8 / 359.71, rel=1e-3)
    assert "100 GB/s" in finding.title
    assert "360 GB/s" in finding.title


def test_what_is_fast_enough_or_too_few_or_too_small_is_none():
    preset = reference_bandwidths("8xh100-nvswitch")
    assert said(running_at(185), preset) == []
    assert said(running_at(100, calls=4), preset) == []
    assert said(running_at(0.1, volume=MIB // 2), preset) == []
    assert said(running_at(100)) == []


def test_other_ranks_other_placement_and_waiting_not_split_off_are_not_compared():
    assert said(running_at(10), reference_bandwidths("16xa100-80-efa")) == []
    preset = reference_bandwidths("8xh100-nvswitch")
    apart = Group(name="g", size=8, ranks=(0, 1, 2, 3, 4, 5, 6, 8))
    assert said(running_at(10, group=apart), preset) == []
    some = running_at(10)
    assert said(replace(some, ranks={rank: some.ranks[rank] for rank in range(4)}), preset) == []


def test_gathers_and_scatters_are_held_against_one_another_and_else_against_all_reduces():
    both = measured([("all_gather", 8, 64 * MIB, 50.0), ("all_reduce", 8, 64 * MIB, 300.0)])
    assert said(running_at(40, op="reduce_scatter"), both) == []
    assert said(running_at(20, op="reduce_scatter"), both)[0].evidence["source"] == "mine.log; there of all_gather"
    only = measured([("all_reduce", 8, 64 * MIB, 300.0)])
    assert said(running_at(40, op="all_gather"), only)[0].evidence["source"] == "mine.log; there of all_reduce"
    assert said(running_at(40), measured([("all_gather", 8, 64 * MIB, 300.0)])) == []


def test_a_table_that_the_run_itself_holds_is_used_and_the_users_goes_before_it():
    own = replace(running_at(100), facts=measured([("all_reduce", 8, 64 * MIB, 300.0)]))
    assert said(own)[0].evidence["possible_busbw_gbs"] == 300.0
    assert said(own, measured([("all_reduce", 8, 64 * MIB, 150.0)])) == []


def test_a_profilers_single_calls_are_no_benchmark():
    assert said(running_at(100), measured([("all_reduce", 8, 64 * MIB, 300.0)], rank=0)) == []
    assert said(running_at(100), measured([("all_reduce", 8, 64 * MIB, 300.0)], seq=3)) == []


def test_between_sizes_the_curve_is_straight_in_logarithms_and_flat_past_its_end():
    rows = [("all_reduce", 8, MIB, 10.0), ("all_reduce", 8, 16 * MIB, 90.0), ("all_reduce", 8, 16 * MIB, 110.0)]
    curve = next(curves_of(measured(list(rows))))
    sizes = [MIB, 2 * MIB, 5_000_000, 12 * MIB, 16 * MIB]
    expected = np.exp(np.interp(np.log(sizes), np.log([MIB, 16 * MIB]), np.log([10.0, 100.0])))
    assert [curve.at(each) for each in sizes] == pytest.approx(expected.tolist())
    assert curve.at(64 * MIB) == 100.0
    assert curve.at(MIB - 1) is None


@pytest.mark.parametrize(
    ("device", "found"), [("NVIDIA A100-SXM4-80GB", True), ("NVIDIA RTX A6000", False), (None, False)]
)
def test_the_speed_of_all_links_of_a_host_is_a_bound_where_it_is_known(device, found):
    names = NameTable()
    links = [
        {"host": None, "a": f"GPU{a}", "b": f"GPU{b}", "kind": "NVLink", "lanes": 12}
        for a in range(8) for b in range(8) if a != b
    ]  # fmt: skip
    facts = Facts(links=fact_table(Links, links, names), names=tuple(names.to_list()))
    run = replace(running_at(100), facts=facts, fingerprint={"device": device})
    assert bool(said(run)) == found
    if found:
        assert said(run)[0].evidence["possible_busbw_gbs"] == 300.0
    assert said(replace(run, world_size=16)) == []
    assert said(replace(running_at(100, volume=8 * MIB), facts=facts, fingerprint=run.fingerprint)) == []


@pytest.mark.parametrize(
    ("preset", "file"),
    [
        ("16xa100-80-efa", "01_2xp4de_16xA100-80_EFA_allreduce.txt"),
        ("8xh100-nvswitch", "03_1xp5_8xH100_NVSwitch_allreduce.txt"),
        ("16xa100-40-roce", "04_2xBM.GPU4.8_16xA100-40_RoCE_allreduce.txt"),
        ("8xmi300x", "07_8xMI300X_RCCL_allreduce.txt"),
    ],
)
def test_presets_are_the_published_figures(preset, file):
    text = shared_file(f"nccl_tests/{file}").read_text(errors="replace")
    lines = re.findall(r"^(?:\S*>:|0:)?\s*(\d+) +\d+ +float +sum +-1((?: +[\d.]+){8})\s*$", text, re.MULTILINE)
    published = {int(size): max(float(cells.split()[2]), float(cells.split()[6])) for size, cells in reversed(lines)}
    table = reference_bandwidths(preset).measurements
    assert len(table.bytes) >= 12
    assert set(table.ranks.tolist()) == {int(preset.split("x")[0])}
    for volume, busbw in zip(table.bytes.tolist(), table.busbw_gbs.tolist(), strict=True):
        assert published[volume] == busbw


def test_a_file_or_a_preset_can_be_named_and_anything_else_is_refused(tmp_path):
    table = tmp_path / "mine.csv"
    table.write_text("op,size_bytes,ranks,busbw_gbs,time_us\nall_reduce,67108864,8,300,391.5\n")
    assert said(running_at(100), reference_bandwidths(str(table)))[0].evidence["possible_busbw_gbs"] == 300.0
    with pytest.raises(UsageError, match="8xh100-nvswitch"):
        reference_bandwidths("no-such-machine")
    other = tmp_path / "topo.txt"
    other.write_text(shared_file("topo/litgpt_all_nvlink_connected_output.txt").read_text())
    with pytest.raises(InputError, match="no measured bandwidths"):
        reference_bandwidths(str(other))


@pytest.mark.slow
def test_the_verb_takes_it_and_its_help_names_every_preset(capsys):
    source = str(shared_file("kineto/megatron_tp8"))
    assert main(["analyze", source, "--bandwidth", "8xh100-nvswitch"]) == 0
    assert "are possible" not in capsys.readouterr().out  # 195 of 360 GB/s is more than half
    with pytest.raises(SystemExit):
        main(["analyze", "--help"])
    shown = "".join(capsys.readouterr().out.split())
    assert verb.__doc__ is not None
    assert all(name in shown for name in preset_names())


def test_a_given_table_is_answered_whatever_comes_of_it():
    def answer(name):
        (found,) = [
            each
            for each in analyze(running_at(100), bandwidth=reference_bandwidths(name)).findings
            if each.id == "bandwidth_compared"
        ]
        return found

    fits = answer("8xh100-nvswitch")
    assert fits.title.startswith(
        "1 kind of collective compared with the reference table: the slowest relative to it is all_reduce of 67.1 MB"
    )
    assert fits.evidence["kinds"][0]["busbw_gbs"] == pytest.approx(100, rel=0.01)
    other = answer("16xa100-80-efa")
    assert "it is for 16 ranks, the groups recorded here have 8" in other.title
    assert other.evidence["kinds"] == []
    assert not [each for each in analyze(running_at(100)).findings if each.id == "bandwidth_compared"]


def below_others(run: Run, reference: Facts | None = None) -> list[Finding]:
    return [each for each in analyze(run, bandwidth=reference).findings if each.id == "below_other_machines"]


def on_h100(run: Run, device: str = "NVIDIA H100 80GB HBM3", *, numbers: int = 8) -> Run:
    """Return the run with the device, where rank r uses the one of number r modulo `numbers`."""
    ranks = {}
    for rank, each in run.ranks.items():
        names = (*each.names, str(rank % numbers))
        process = np.where(each.lanes.kind == DEVICE, len(names) - 1, each.lanes.process).astype(np.int32)
        ranks[rank] = replace(each, names=names, lanes=replace(each.lanes, process=process))
    return replace(run, ranks=ranks, fingerprint={"device": device})


def test_large_calls_far_below_those_of_another_machine_with_such_devices_are_worth_a_look():
    (found,) = below_others(on_h100(running_at(100)))
    assert found.severity == "info"
    assert "67.1 MB on 8 ranks of a host reach 100 GB/s bus bandwidth at their fastest; another machine" in found.title
    assert "reaches 360 GB/s" in found.title
    assert found.evidence["kinds"][0]["calls"] == 6


@pytest.mark.parametrize(
    "run",
    [
        on_h100(running_at(300)),
        on_h100(running_at(50, volume=4 * MIB)),
        on_h100(running_at(100, calls=4)),
        on_h100(running_at(100), "NVIDIA H100 PCIe"),
        on_h100(running_at(100), numbers=4),
        running_at(100),
    ],
    ids=["fast", "small", "few", "other devices", "several hosts", "unknown device"],
)
def test_they_are_compared_with_nothing_where_the_machine_may_be_another(run: Run):
    assert below_others(run) == []


def of_two_hosts(first: int = 8, *, numbers: int = 8, second_host: int | None = None) -> Run:
    """Return 16 ranks of which eight in a row, from `first` on, call at 100 GB/s; ranks from `second_host` on are on
    another host, by name."""
    members = tuple(range(first, first + 8))
    length = round(64 * MIB * 7 / 8 / 100)
    own = [
        Call(op="all_gather", start=k * 100_000_000, length=length, size=8, volume=64 * MIB, seq=k) for k in range(6)
    ]
    group = Group(name="g", size=8, ranks=members)
    run = on_h100(
        job({rank: list(own) if rank in members else [] for rank in range(16)}, (group,), world_size=16),
        numbers=numbers,
    )
    if second_host is None:
        return run
    named = {
        rank: replace(each, recorded={"settings": {"host": "a" if rank < second_host else "b"}})
        for rank, each in run.ranks.items()
    }
    return replace(run, ranks=named)


@pytest.mark.parametrize("second_host", [None, 8])
def test_so_are_those_of_a_group_that_has_all_devices_of_one_host_of_several(second_host: int | None):
    (found,) = below_others(of_two_hosts(second_host=second_host))
    assert "on 8 ranks of a host reach 100 GB/s" in found.title
    assert found.evidence["kinds"][0]["group"] == "g"


@pytest.mark.parametrize(
    "run",
    [
        of_two_hosts(numbers=4),
        of_two_hosts(4),
        of_two_hosts(second_host=12),
        of_two_hosts(numbers=16),
        of_two_hosts(second_host=16),
        of_two_hosts(numbers=16, second_host=8),
    ],
    ids=["numbers repeat", "neighbours on two hosts", "names of two hosts", "other numbers",
         "another part of the host by name", "numbers of more devices by name"],
)  # fmt: skip
def test_a_group_that_may_lie_on_several_hosts_or_on_a_part_of_one_is_not_compared(run: Run):
    assert below_others(run) == []


def test_where_the_fastest_of_like_calls_are_fast_the_links_are():
    """Most calls reach 100 GB/s, as beside others; one in four reaches 300."""
    factor = 64 * MIB * 14 / 8
    own = [
        Call(op="all_reduce", start=k * 100_000_000, length=round(factor / (100 if k % 4 else 300)), size=8,
             volume=64 * MIB, seq=k)
        for k in range(12)
    ]  # fmt: skip
    assert below_others(on_h100(job({rank: list(own) for rank in range(8)}, (EIGHT,), world_size=8))) == []


def test_a_table_that_is_given_takes_the_place_of_other_machines():
    assert below_others(on_h100(running_at(100)), reference_bandwidths("8xmi300x")) == []


@pytest.mark.parametrize(
    ("first", "second_host", "counts"),
    [(8, 8, True), (4, 8, False), (8, 12, False), (8, None, True)],
    ids=["all of a host", "half of either host", "two hosts where one has room", "unknown hosts"],
)
def test_a_group_on_parts_of_more_hosts_than_it_needs_is_not_compared_with_a_table(
    first: int, second_host: int | None, *, counts: bool
) -> None:
    table = measured([("all_gather", 8, 64 * MIB, 300.0)])
    assert bool(said(of_two_hosts(first, second_host=second_host), table)) == counts


def test_a_table_that_does_not_say_of_how_many_ranks_it_is_is_for_the_whole_job() -> None:
    table = measured([("all_gather", None, 64 * MIB, 300.0)])
    assert said(running_at(100, op="all_gather"), table)
    assert said(of_two_hosts(), table) == []
