"""Ranks are on one host by its name, else by the devices that they use."""

from collections.abc import Mapping, Sequence

import pytest

from overlapscope.analysis.common.one_host import are_on_one_host
from overlapscope.timeline.run import Run
from tests.support.rank_rows import rank_timeline


def using(devices: Mapping[int, Sequence[str]], world_size: int = 64) -> Run:
    """Return a run of these recorded ranks, each with a stream on each of its devices."""
    ranks = {
        rank: rank_timeline(rank, lanes=[{"label": "7", "process": device} for device in own])
        for rank, own in devices.items()
    }
    return Run(world_size=world_size, ranks=ranks)


def in_line(first: int, devices: str) -> Mapping[int, str]:
    """Return ranks in a row from the first one on, with one device each."""
    return dict(enumerate(devices, first))


@pytest.mark.parametrize(
    ("hosts", "together"),
    [
        pytest.param({"a": (0, 1, 2)}, True, id="one host, whatever numbers"),
        pytest.param({"a": (0, 1), "b": (2,)}, False, id="two hosts"),
        pytest.param({"a": (0,), "b": (1,)}, False, id="two hosts, one rank without"),
        pytest.param({"a": (0, 1)}, False, id="one rank without: numbers decide"),
        pytest.param({"b": (3, 4)}, False, id="other ranks"),
    ],
)
def test_hosts_that_are_named_decide(hosts: Mapping[str, Sequence[int]], *, together: bool) -> None:
    assert are_on_one_host(using(in_line(0, "000")), hosts, (0, 1, 2)) is together


@pytest.mark.parametrize(
    ("devices", "members", "together"),
    [
        pytest.param(in_line(8, "01234567"), range(8, 16), True, id="all of the second host"),
        pytest.param(in_line(4, "0123"), range(4, 8), True, id="all of a host of four"),
        pytest.param({1: "1", 5: "5"}, (1, 5), True, id="every fourth"),
        pytest.param({0: "0", 1: "1"}, (0, 1, 2), True, id="one was not recorded"),
        pytest.param({0: "0", 1: "1"}, (0, 1, 8), False, id="one was not recorded, and may be on the next host"),
        pytest.param({0: "0"}, (0, 1), False, id="all but one were not recorded"),
        pytest.param(
            in_line(0, "0123"), range(8), False, id="half were not recorded, and may be on another host of four"
        ),
        pytest.param(in_line(0, "01234"), range(8), True, id="hosts have more than four"),
        pytest.param(in_line(2, "2301"), range(2, 6), False, id="neighbours on hosts of four"),
        pytest.param(in_line(4, "45670123"), range(4, 12), False, id="neighbours on hosts of eight"),
        pytest.param(in_line(0, "0123012"), range(7), False, id="numbers repeat"),
        pytest.param({8: ["8"], 9: ["9"]}, (8, 9), False, id="numbered over the whole job"),
        pytest.param({0: ["0", "1"], 1: ["1"]}, (0, 1), False, id="one rank with two devices"),
        pytest.param({0: "a", 1: "b"}, (0, 1), False, id="no numbers"),
        pytest.param({0: "0", 1: ""}, (0, 1), False, id="one without a device"),
        pytest.param({0: "0", 1: "1"}, (), False, id="no ranks"),
    ],
)
def test_else_each_uses_the_device_of_its_place_on_the_host(
    devices: Mapping[int, Sequence[str]], members: Sequence[int], *, together: bool
) -> None:
    assert are_on_one_host(using(devices), {}, members) is together


def test_of_a_whole_job_each_may_use_any_other_device() -> None:
    assert are_on_one_host(using({0: "5", 1: "4"}, world_size=2), {}, (0, 1))
    assert not are_on_one_host(using({0: "5", 1: "4"}), {}, (0, 1))
    assert not are_on_one_host(using({0: "5", 1: "5"}, world_size=2), {}, (0, 1))
