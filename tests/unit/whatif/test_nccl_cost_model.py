"""NCCL's choice of algorithm: against choices that were observed, and the model's own figures computed by hand."""

import json

import pytest
from msgspec.structs import replace

from overlapscope.errors import UsageError
from overlapscope.whatif.nccl_cost_model import Fabric, choose, constants_of
from tests.conftest import shared_file

MIB = 1 << 20
H100 = Fabric(ranks=8, nodes=1, gpu="hopper", channels=16, channel_gbs=22.5, nvls=True)
A100 = Fabric(ranks=8, nodes=1, gpu="ampere", channels=24, channel_gbs=20)


def test_eight_h100_switch_from_ring_to_nvls_between_one_and_two_mib() -> None:
    """As logs of H100 and of H200 show: Ring with LL up to 1 MiB, NVLS from 2 MiB on."""
    for version in ((2, 24, 3), (2, 28, 3), (2, 30, 7)):
        for power in range(10, 21):
            choice = choose("all_reduce", 1 << power, H100, version)
            assert choice
            assert (choice.algorithm, choice.protocol) == ("RING", "LL"), power
        for power in range(21, 34):
            choice = choose("all_reduce", 1 << power, H100, version)
            assert choice
            assert (choice.algorithm, choice.protocol) == ("NVLS", "SIMPLE"), power


def test_a_ring_was_observed_where_the_switch_does_not_reduce() -> None:
    """Four GPUs, 24 channels, 128 MiB: the profiler's record names what NCCL took; the GPU it does not name."""
    seen = set()
    for line in shared_file("nccl_profiler/phaz_trace_2762285_allreduce.jsonl").read_text().splitlines():
        details = json.loads(line).get("details", {})
        if "algo" in details:
            seen.add((details["algo"], details["proto"], details["channels"], details["count"]))
    assert seen == {("RING", "SIMPLE", 24, 33554432)}
    for gpu in ("ampere", "hopper"):
        fabric = replace(A100, ranks=4, gpu=gpu)
        choice = choose("all_reduce", 4 * 33554432, fabric, (2, 28, 9))
        assert choice
        assert (choice.algorithm, choice.protocol) == ("RING", "SIMPLE")


def test_the_models_times_are_those_computed_by_hand() -> None:
    choice = choose("all_reduce", MIB, H100, (2, 30, 7))
    assert choice
    # Ring, LL: 6.6 us + 14 steps of 0.6 us; min(141, 360 / 2) GB/s of bus bandwidth, of which 8 / 14 is algorithmic.
    assert choice.model_ns == pytest.approx((6.6 + 14 * 0.6) * 1000 + MIB / (141 * 8 / 14))
    choice = choose("all_reduce", 64 * MIB, A100, (2, 30, 7))
    assert choice
    # Ring, Simple: 480 GB/s of bus bandwidth beat LL128's 441.6 from here on.
    assert (choice.algorithm, choice.protocol) == ("RING", "SIMPLE")
    assert choice.model_ns == pytest.approx((8.4 + 14 * 3.4) * 1000 + 64 * MIB / (480 * 8 / 14))


def test_trees_win_small_messages_on_many_nodes() -> None:
    many = replace(A100, ranks=256, nodes=32, channels=16, channel_gbs=12, inter_channel_gbs=12)
    small, large = choose("all_reduce", 64 << 10, many, (2, 30)), choose("all_reduce", 4 << 30, many, (2, 30))
    assert small
    assert large
    assert small.algorithm == "TREE"
    assert large.algorithm == "RING"


def test_without_nvlink_ll128_is_never_chosen() -> None:
    pci = replace(A100, inside="pci", channels=2, channel_gbs=12)
    chosen = {choice.protocol for power in range(33) if (choice := choose("all_reduce", 1 << power, pci, (2, 27)))}
    assert chosen == {"LL", "SIMPLE"}
    nvlink = {choice.protocol for power in range(33) if (choice := choose("all_reduce", 1 << power, A100, (2, 27)))}
    assert nvlink == {"LL", "LL128", "SIMPLE"}


def test_operations_that_only_the_ring_serves() -> None:
    for op in ("broadcast", "reduce"):
        choice = choose(op, MIB, H100, (2, 28, 9))
        assert choice
        assert choice.algorithm == "RING"
    one_each = replace(A100, ranks=8, nodes=8)
    choice = choose("all_gather", 1 << 12, one_each, (2, 28, 9))
    assert choice
    assert choice.algorithm in ("RING", "PAT")


def test_constants_follow_the_version() -> None:
    assert constants_of((2, 28, 3)).latency["net"]["NVLS_TREE"][2] == 14
    assert constants_of((2, 28, 9)).latency["net"]["NVLS_TREE"][2] == 20.9
    assert constants_of((2, 29, 2)).ring_ll128_channel[3] == 40
    two_nodes = replace(H100, ranks=16, nodes=2)
    assert choose("all_reduce", MIB, two_nodes, (2, 26, 2)) is None  # its limits of NVLS trees are not known
    assert choose("all_reduce", MIB, two_nodes, (2, 28, 9)) is not None


@pytest.mark.parametrize("version", [(2, 9, 9), (2, 21, 5), (2, 31), (3, 0)])
def test_a_version_without_a_table_is_refused(version: tuple[int, ...]) -> None:
    with pytest.raises(UsageError, match=r"not known here"):
        choose("all_reduce", MIB, H100, version)


def test_an_operation_without_a_model_is_refused() -> None:
    with pytest.raises(UsageError, match="no cost model"):
        choose("all_to_all", MIB, H100, (2, 28))
