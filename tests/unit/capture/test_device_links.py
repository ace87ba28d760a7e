"""Links between devices from a fake of pynvml: through switches, direct, over PCIe, down, and of silent drivers."""

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope.capture.host import doctor as machine
from overlapscope.capture.host.device_links import Link, find_device, links, of_device
from overlapscope.timeline.run import RankTimeline, Run
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.support.builders import timeline


class NVMLError(Exception):
    pass


class NotSupportedError(NVMLError):
    pass


class InvalidArgumentError(NVMLError):
    pass


SWITCH, GPU = 2, 0
UP, DOWN = 1, 0


class FakeNvml(msgspec.Struct):
    """As much of nvidia-ml-py 13 as is asked; a port is (state, kind of the other end, its bus address)."""

    ports: list[list[tuple[int, int, str | None]]]
    ancestors: dict[tuple[int, int], int] = {}
    silent: set[str] = set()
    NVML_NVLINK_MAX_LINKS: int = 36
    NVML_NVLINK_DEVICE_TYPE_SWITCH: int = SWITCH
    instances: dict[str, int] = {}
    """Devices by the names of their MIG instances."""
    missing: str | None = None
    NVMLError: Any = NVMLError
    NVMLError_NotSupported: Any = NotSupportedError
    NVMLError_InvalidArgument: Any = InvalidArgumentError

    def _asked(self, what: str) -> None:
        if what in self.silent:
            raise NVMLError(f"{what}: unknown error")

    def nvmlInit(self) -> None:  # noqa: N802 - NVML's own names
        if self.missing:
            raise NVMLError(self.missing)

    def nvmlShutdown(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.ports)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:  # noqa: N802
        if uuid in self.instances:
            return 100 + self.instances[uuid]
        number = uuid.rpartition("-")[2]
        if not number.isdigit():
            raise NVMLError("Not Found")
        return int(number)

    def nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self, handle: int) -> int:  # noqa: N802
        return handle - 100

    def nvmlDeviceGetIndex(self, handle: int) -> int:  # noqa: N802
        return handle

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        self._asked("pci")
        return SimpleNamespace(busId=bus(handle))

    def nvmlDeviceGetTopologyCommonAncestor(self, a: int, b: int) -> int:  # noqa: N802
        self._asked("ancestor")
        return self.ancestors[min(a, b), max(a, b)]

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        self._asked("state")
        if not self.ports[handle]:
            raise NotSupportedError
        if link >= len(self.ports[handle]):
            raise InvalidArgumentError
        return self.ports[handle][link][0]

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:  # noqa: N802
        self._asked("remote type")
        return self.ports[handle][link][1]

    def nvmlDeviceGetNvLinkRemotePciInfo(self, handle: int, link: int) -> Any:  # noqa: N802
        self._asked("remote pci")
        return SimpleNamespace(busId=(self.ports[handle][link][2] or "").upper().encode())


def bus(device: int) -> str:
    return f"00000000:{device + 16:02x}:00.0"


def pairs(found: list[Link]) -> list[tuple[str, str, str | None, int | None, int | None]]:
    """Each pair once; from the other side it must look the same, but for what is down there."""
    ways = {(each.a, each.b): (each.kind, each.lanes) for each in found}
    assert all(ways[b, a] == way for (a, b), way in ways.items())
    return rows([each for each in found if each.a < each.b])


def rows(found: list[Link]) -> list[tuple[str, str, str | None, int | None, int | None]]:
    return [(each.a, each.b, each.kind, each.lanes, each.down) for each in found]


SWITCHED = [[(UP, SWITCH, None)] * 18] * 2


def test_devices_on_switches_have_as_many_lanes_as_both_ends() -> None:
    nvml = FakeNvml([[(UP, SWITCH, None)] * 18, [(UP, SWITCH, None)] * 18, [(UP, SWITCH, None)] * 12], {})
    assert pairs(links(nvml)) == [
        ("GPU0", "GPU1", "NVLink", 18, 0),
        ("GPU0", "GPU2", "NVLink", 12, 0),
        ("GPU1", "GPU2", "NVLink", 12, 0),
    ]


def test_direct_links_are_counted_by_where_they_lead() -> None:
    ports = [
        [(UP, GPU, bus(1)), (UP, GPU, bus(1)), (UP, GPU, bus(2))],
        [(UP, GPU, bus(0)), (UP, GPU, bus(0))],
        [(UP, GPU, bus(0))],
    ]
    found = links(FakeNvml(ports, {(1, 2): 50}))
    assert pairs(found) == [
        ("GPU0", "GPU1", "NVLink", 2, 0),
        ("GPU0", "GPU2", "NVLink", 1, 0),
        ("GPU1", "GPU2", "SYS", None, 0),
    ]


@pytest.mark.parametrize(
    ("level", "kind"), [(0, "PIX"), (10, "PIX"), (20, "PXB"), (30, "PHB"), (40, "NODE"), (50, "SYS"), (60, None)]
)
def test_without_nvlink_the_way_through_pcie_is_named_as_nvidia_smi_does(level: int, kind: str | None) -> None:
    assert pairs(links(FakeNvml([[], []], {(0, 1): level}))) == [("GPU0", "GPU1", kind, None, 0)]


def test_a_device_that_lost_its_links_says_how_many_are_down() -> None:
    ports = [[(UP, SWITCH, None)] * 18, [(DOWN, SWITCH, None)] * 18]
    nvml = FakeNvml(ports, {(0, 1): 50})
    assert rows(links(nvml, only=1)) == [("GPU1", "GPU0", "SYS", None, 18)]
    assert rows(links(nvml, only=0)) == [("GPU0", "GPU1", "SYS", None, 0)]


@pytest.mark.parametrize(
    ("silent", "row"),
    [
        ("ancestor", ("GPU0", "GPU1", "NVLink", 18, 0)),
        ("state", ("GPU0", "GPU1", "PXB", None, None)),
        ("remote type", ("GPU0", "GPU1", "PXB", None, 0)),
        ("pci", ("GPU0", "GPU1", "NVLink", 18, 0)),
        ("remote pci", ("GPU0", "GPU1", "NVLink", 18, 0)),
    ],
)
def test_each_field_degrades_alone(silent: str, row: tuple[Any, ...]) -> None:
    assert pairs(links(FakeNvml(SWITCHED, {(0, 1): 20}, {silent}))) == [row]


def test_a_driver_that_tells_nothing_of_links_leaves_their_kind_open() -> None:
    assert pairs(links(FakeNvml(SWITCHED, {}, {"ancestor", "state"}))) == [("GPU0", "GPU1", None, None, None)]


def test_capture_records_the_links_of_its_own_device_by_uuid(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(SWITCHED, {}))
    assert of_device(0, "GPU-1") == ([{"a": "GPU1", "b": "GPU0", "kind": "NVLink", "lanes": 18, "down": 0}], [])
    assert of_device(None) == ([], [])


def test_g15_a_host_without_nvml_is_no_failure_of_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(SWITCHED, missing="NVML Shared Library Not Found"))
    assert of_device(0, "GPU-1") == ([], ["device links: NVML Shared Library Not Found"])
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml(SWITCHED))
    assert of_device(0, "GPU-unknown") == ([], ["device links: Not Found"])


def test_g15_an_instance_of_a_partitioned_device_is_found_by_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    nvml = FakeNvml(SWITCHED, instances={"MIG-part": 1})
    assert find_device(nvml, 0, "GPU-part") == 1
    assert find_device(nvml, 0, "GPU-1") == 1
    assert find_device(nvml, 0, None) == 0
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    found, why = of_device(0, "GPU-part")
    assert ([link["a"] for link in found], why) == (["GPU1"], [])


def test_g16_links_that_are_inactive_on_every_device_are_not_down() -> None:
    bare = [[(DOWN, SWITCH, None)] * 12] * 2  # PCIe cards without a bridge
    assert [each.down for each in links(FakeNvml(bare, {(0, 1): 40}))] == [0, 0]
    rented = [[(UP, SWITCH, None)] * 8 + [(DOWN, SWITCH, None)] * 10] * 2
    assert [each.down for each in links(FakeNvml(rented))] == [0, 0]
    broken = [rented[0], [(UP, SWITCH, None)] * 6 + [(DOWN, SWITCH, None)] * 12]
    assert [(each.a, each.down) for each in links(FakeNvml(broken))] == [("GPU0", 0), ("GPU1", 2)]


def test_doctor_names_the_links_and_what_is_down(monkeypatch: pytest.MonkeyPatch) -> None:
    lost = [(DOWN, SWITCH, None)] * 18
    nvml = FakeNvml([*SWITCHED, lost], {(0, 2): 50, (1, 2): 50})
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    check = machine.device_links()
    assert check.available
    assert check.detail == "NVLink x18: 1 pair, SYS: 2 pairs; GPU2 has 18 NVLinks down"
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml([[]]))
    assert machine.device_links().detail == "1 device: no links between devices"


def test_doctor_without_a_driver_says_so() -> None:
    check = machine.device_links()
    if check.available:
        pytest.skip("there are several devices here")
    assert check.detail


def test_recorded_links_of_all_ranks_are_one_table_of_the_run(tmp_path: Path) -> None:
    def rank(number: int, host: str, recorded: list[Any]) -> RankTimeline:
        return replace(timeline(), rank=number, recorded={"settings": {"host": host}, "links": recorded})

    there = {"a": "GPU0", "b": "GPU1", "kind": "NVLink", "lanes": 18, "down": 0}
    back = {"a": "GPU1", "b": "GPU0", "kind": None, "lanes": None, "down": None}
    odd: list[Any] = [3, {"a": 1}, {"a": "GPU2", "b": "GPU0", "kind": 7, "lanes": True}]
    ranks = [rank(0, "one", [there]), rank(1, "one", [there, back]), rank(2, "two", odd), rank(3, "three", ["?"])]
    save_run(Run(world_size=4, ranks={each.rank: each for each in ranks}), tmp_path / "run", version="0")
    table = overlapscope.load(tmp_path / "run").analysis().told["links"].rows
    assert [(row["host"], row["a"], row["b"], row["kind"], row["lanes"]) for row in table] == [
        ("one", "GPU0", "GPU1", "NVLink", 18),
        ("one", "GPU1", "GPU0", None, None),
        ("two", "GPU2", "GPU0", None, None),
    ]
    # Written anew, the table stands beside the ranks and does not stand there twice.
    save_run(load_run(tmp_path / "run"), tmp_path / "again", version="0")
    assert overlapscope.load(tmp_path / "again").analysis().told["links"].rows == table
