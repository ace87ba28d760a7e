"""Sample the device and the network ports during training, on a separate thread.

A field that a device does not support is tried once and then dropped; the others are still read.
"""

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from overlapscope.capture.host.device_links import find_device

INTERVAL_SECONDS = 0.5
MAX_READINGS = 200_000
INFINIBAND = Path("/sys/class/infiniband")
PORT_COUNTERS = {
    "counters/port_xmit_data": ("xmit_bytes", 4.0),  # counted in words of four bytes
    "counters/port_rcv_data": ("rcv_bytes", 4.0),
    "counters/port_xmit_wait": ("xmit_wait", 1.0),
    "hw_counters/out_of_sequence": ("out_of_sequence", 1.0),
    "hw_counters/packet_seq_err": ("packet_seq_err", 1.0),
    "hw_counters/local_ack_timeout_err": ("local_ack_timeout_err", 1.0),
    "hw_counters/np_cnp_sent": ("congestion_sent", 1.0),
    "hw_counters/rp_cnp_handled": ("congestion_handled", 1.0),
}
ALL_LINKS = 0xFFFFFFFF
"""Scope of a throughput field of NVML (`NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX` in nvml.h): UINT_MAX means all links."""
Reading = tuple[str, int, float]


class Sampler:
    """Samples NVML and the network ports every half second until closed; keeps at most MAX_READINGS."""

    def __init__(self, device: int | None, uuid: str | None = None) -> None:
        """Create a sampler; `device` is the CUDA index of this rank's device, None samples no device.

        NVML numbers all devices of the host, CUDA those visible to the process: `uuid` identifies the device in both.
        """
        self._device, self._uuid = device, uuid
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._fields: list[Callable[[], Iterator[tuple[str, float]]]] = []
        self.readings: list[Reading] = []
        self.unsupported: list[str] = []

    def add(self, read: Callable[[], Iterator[tuple[str, float]]]) -> None:
        """Also call `read` at every sample and keep the readings that it yields; to be called before `open`."""
        self._fields.append(read)

    def open(self) -> None:
        """Start sampling if there is anything to sample."""
        if self._device is not None:
            self._fields += list(self._device_fields(self._device))
        self._fields += list(_port_fields())
        if self._fields:
            self._thread = threading.Thread(target=self._run, name="overlapscope-telemetry", daemon=True)
            self._thread.start()

    def close(self) -> None:
        """Stop, and wait for the thread for at most two intervals."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(timeout=2 * INTERVAL_SECONDS)

    def _run(self) -> None:
        while not self._stop.wait(INTERVAL_SECONDS) and len(self.readings) < MAX_READINGS:
            self.sample()

    def sample(self) -> None:
        """Read every field once; a field that fails is not read again."""
        for read in list(self._fields):
            try:
                now = time.monotonic_ns()
                self.readings += [(name, now, value) for name, value in read()]
            except (OSError, ValueError, RuntimeError) as error:
                self._fields.remove(read)
                self.unsupported.append(str(error))

    def _device_fields(self, device: int) -> Iterator[Callable[[], Iterator[tuple[str, float]]]]:
        import pynvml as nvml  # noqa: PLC0415 - only where a device is sampled

        try:
            nvml.nvmlInit()
            handle = find_device(nvml, device, self._uuid)
        except nvml.NVMLError as error:
            self.unsupported.append(f"NVML: {error}")
            return

        def field(names: tuple[str, ...], read: Callable[[], Any]) -> Callable[[], Iterator[tuple[str, float]]]:
            def sample() -> Iterator[tuple[str, float]]:
                try:
                    values = read()
                except nvml.NVMLError as error:
                    raise OSError(f"{', '.join(names)}: {error}") from error
                values = values if isinstance(values, tuple) else (values,)
                for name, value in zip(names, values, strict=True):
                    yield f"gpu{device}.{name}", float(value)

            return sample

        yield field(
            ("utilization_percent", "memory_utilization_percent"),
            lambda: _rates(nvml.nvmlDeviceGetUtilizationRates(handle)),
        )
        yield field(("power_w",), lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000)
        yield field(("memory_used_bytes",), lambda: nvml.nvmlDeviceGetMemoryInfo(handle).used)
        yield field(("sm_clock_mhz",), lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM))
        yield field(("memory_clock_mhz",), lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM))
        yield field(("throttle_reasons",), lambda: nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))
        yield field(("temperature_c",), lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
        yield field(
            ("pcie_tx_kib_s", "pcie_rx_kib_s"),
            lambda: (
                nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_TX_BYTES),
                nvml.nvmlDeviceGetPcieThroughput(handle, nvml.NVML_PCIE_UTIL_RX_BYTES),
            ),
        )
        yield field(("nvlink_tx_kib",), lambda: _field_value(nvml, handle, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX))
        yield field(("nvlink_rx_kib",), lambda: _field_value(nvml, handle, nvml.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX))
        yield field(
            ("ecc_uncorrected",),
            lambda: nvml.nvmlDeviceGetTotalEccErrors(
                handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
            ),
        )


def _rates(rates: Any) -> tuple[float, float]:
    return rates.gpu, rates.memory


def _field_value(nvml: Any, handle: Any, field: int) -> float:
    """Return a throughput summed over all links of the device: without the scope it would be that of link 0."""
    value = nvml.nvmlDeviceGetFieldValues(handle, [(field, ALL_LINKS)])[0]
    if value.nvmlReturn != nvml.NVML_SUCCESS:
        raise nvml.NVMLError(value.nvmlReturn)
    return float(value.value.ullVal)


def _port_fields() -> Iterator[Callable[[], Iterator[tuple[str, float]]]]:
    for path, (name, unit) in PORT_COUNTERS.items():
        for file in sorted(INFINIBAND.glob(f"*/ports/*/{path}")):
            device, port = file.parts[len(INFINIBAND.parts)], file.parts[len(INFINIBAND.parts) + 2]
            yield _counter(file, f"{device}.{port}.{name}", unit)


def _counter(file: Path, name: str, unit: float) -> Callable[[], Iterator[tuple[str, float]]]:
    def sample() -> Iterator[tuple[str, float]]:
        yield name, int(file.read_text(encoding="ascii")) * unit

    return sample
