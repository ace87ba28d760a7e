"""Read from NVML how the devices of this host are linked: by NVLink where there is any, else by PCIe.

Names and kinds are those of `nvidia-smi topo -m` (GPU0, PIX, PXB, PHB, NODE, SYS; NVLink with its number of links).
A field that the driver does not report is None; the others are still read.
"""

from typing import Any, Final

import msgspec
from msgspec.structs import asdict

PCIE_KINDS: Final = {0: "PIX", 10: "PIX", 20: "PXB", 30: "PHB", 40: "NODE", 50: "SYS"}
"""Names of `nvmlGpuTopologyLevel_t`; two devices on one board (0) are at most one bridge apart."""


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """The link from one device to another."""

    a: str
    b: str
    kind: str | None
    """`NVLink`, or the level at which their PCIe paths meet."""
    lanes: int | None
    """NVLinks between them: direct ones, or, through switches, as many as both devices have; None over PCIe."""
    down: int | None
    """NVLinks of `a`, to any peer, that exist but are not up; None where NVML does not report it."""


class Ports(msgspec.Struct, frozen=True, kw_only=True):
    """The NVLinks of one device: how many lead to a switch, how many to each bus address, and how many are down."""

    to_switch: int
    to_bus: dict[str, int]
    up: int
    down: int
    """Links that are not up: inactive, or broken."""


def of_device(device: int | None, uuid: str | None = None) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the links of one device to the other devices of its host, as plain values, and why they are missing.

    `device` is the CUDA index; `uuid` identifies the device for NVML, which numbers devices differently. Without a
    device both are empty. A host without NVML (ROCm, Jetson, WSL, a thin container) is no failure of a recording.
    """
    if device is None:
        return [], []
    import pynvml  # noqa: PLC0415 - only where there is a device

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        return [], [f"device links: {error}"]
    try:
        handle = find_device(pynvml, device, uuid)
        return [asdict(each) for each in links(pynvml, only=pynvml.nvmlDeviceGetIndex(handle))], []
    except pynvml.NVMLError as error:
        return [], [f"device links: {error}"]
    finally:
        pynvml.nvmlShutdown()


def find_device(nvml: Any, device: int, uuid: str | None) -> Any:
    """Return NVML's handle of a device by its UUID, or without one by its CUDA index.

    CUDA names an instance of a partitioned device (MIG) as it names a device; NVML wants `MIG-` before it, and answers
    some questions for the whole device only: then its handle is the parent's. Raises NVML's own error.
    """
    if uuid is None:
        return nvml.nvmlDeviceGetHandleByIndex(device)
    try:
        return nvml.nvmlDeviceGetHandleByUUID(uuid)
    except nvml.NVMLError:
        instance = nvml.nvmlDeviceGetHandleByUUID(f"MIG-{uuid.removeprefix('GPU-')}")
        return nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(instance)


def links(nvml: Any, only: int | None = None) -> list[Link]:
    """Return the links of each device of the host, or of device `only`, to every other one, by NVML's device numbers.

    `nvml` is the initialised pynvml module.
    """
    handles = [nvml.nvmlDeviceGetHandleByIndex(index) for index in range(nvml.nvmlDeviceGetCount())]
    ports = [_ports(nvml, handle) for handle in handles]
    known = [each for each in ports if each is not None]
    found = []
    for a, handle in enumerate(handles):
        for b, other in enumerate(handles):
            if a == b or only not in (None, a):
                continue
            lanes = _lanes(nvml, ports[a], ports[b], other)
            found.append(
                Link(
                    a=f"GPU{a}",
                    b=f"GPU{b}",
                    kind="NVLink" if lanes else _pcie(nvml, handle, other),
                    lanes=lanes or None,
                    down=_down(ports[a], known),
                )
            )
    return found


def _down(ports: Ports | None, of_host: list[Ports]) -> int | None:
    """Return how many NVLinks of a device are down: those that a peer of the same kind has up and this one has not.

    A link that is inactive on every device leads nowhere: cards without a bridge, and devices that are sold or rented
    with some of their links.
    """
    if ports is None:
        return None
    most = max((each.up for each in of_host if each.up + each.down == ports.up + ports.down), default=0)
    return max(0, most - ports.up)


def _lanes(nvml: Any, ours: Ports | None, theirs: Ports | None, other: Any) -> int:
    if ours is None:
        return 0
    try:
        direct = ours.to_bus.get(_text(nvml.nvmlDeviceGetPciInfo(other).busId), 0)
    except nvml.NVMLError:
        direct = 0
    return direct or (min(ours.to_switch, theirs.to_switch) if theirs is not None else 0)


def _pcie(nvml: Any, handle: Any, other: Any) -> str | None:
    try:
        return PCIE_KINDS.get(int(nvml.nvmlDeviceGetTopologyCommonAncestor(handle, other)))
    except nvml.NVMLError:
        return None


def _ports(nvml: Any, handle: Any) -> Ports | None:
    """Return the device's NVLinks; None where NVML cannot report them."""
    to_bus: dict[str, int] = {}
    to_switch = up = down = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            if not nvml.nvmlDeviceGetNvLinkState(handle, link):
                down += 1
                continue
            up += 1
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            break  # a device without NVLink, or past its last one
        except nvml.NVMLError:
            return None
        if _is_switch(nvml, handle, link):
            to_switch += 1
            continue
        try:
            bus = _text(nvml.nvmlDeviceGetNvLinkRemotePciInfo(handle, link).busId)
        except nvml.NVMLError:
            continue  # up, but NVML does not report where it leads
        to_bus[bus] = to_bus.get(bus, 0) + 1
    return Ports(to_switch=to_switch, to_bus=to_bus, up=up, down=down)


def _is_switch(nvml: Any, handle: Any, link: int) -> bool:
    try:
        kind = nvml.nvmlDeviceGetNvLinkRemoteDeviceType(handle, link)
    except nvml.NVMLError:
        return False
    return bool(kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH)


def _text(bus: bytes | str) -> str:
    return (bus.decode("ascii", "replace") if isinstance(bus, bytes) else bus).lower()
