"""CUDA devices, NCCL and gloo in virtual time: what capture uses of torch, with the truth known.

Time is one number, in nanoseconds of the host's monotonic clock; only the job moves it. Work is scheduled when it is
issued, since it can only wait for what was issued before it: in order in its stream, in order at the head of the
hardware queue that its stream shares with others, and after the events that its stream waits for. A device's own clock
drifts against the host's. All that a recording could disturb is logged: kernels with their times, waits of streams,
streams taken from the pool, tensors recorded on streams, and devices that were touched.
"""

import itertools
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np

POOL = 32
"""Streams of torch's pool, handed out in turn."""
START_NS = 1_000_000_000_000
SIZE_BYTES = 4


class Device:
    """One device: its hardware queues and its pool of streams."""

    def __init__(self, cuda: "VirtualCuda", index: int, queues: int) -> None:
        self.cuda, self.index = cuda, index
        self.dispatched_ns = [0] * queues
        """When the last operation at the head of each hardware queue left it."""
        self.default = Stream(cuda, self, 0)
        self.pool = [Stream(cuda, self, 1 + at) for at in range(POOL)]
        self.taken = 0

    def from_pool(self) -> "Stream":
        """Return the pool's next stream."""
        self.taken += 1
        return self.pool[(self.taken - 1) % POOL]


class Stream:
    """A stream; its operations run in order, at the head of the hardware queue `number` modulo the queues."""

    def __init__(self, cuda: "VirtualCuda", device: Device, number: int) -> None:
        self.cuda, self.on, self.number = cuda, device, number
        self.device = SimpleNamespace(index=device.index, type="cuda")
        self.end_ns = 0

    def run(self, duration_ns: int = 0, after_ns: int = 0) -> tuple[int, int]:
        """Issue an operation; return when it begins and ends."""
        cuda, queue = self.cuda, self.number % len(self.on.dispatched_ns)
        start = max(cuda.now_ns, self.end_ns, self.on.dispatched_ns[queue], after_ns)
        self.on.dispatched_ns[queue] = start
        self.end_ns = start + duration_ns
        return start, self.end_ns

    def pass_by(self) -> int:
        """Issue an event; return when the stream reaches it. What follows at the queue's head need not wait for it."""
        queue = self.number % len(self.on.dispatched_ns)
        self.on.dispatched_ns[queue] = max(self.cuda.now_ns, self.on.dispatched_ns[queue])
        self.end_ns = max(self.end_ns, self.on.dispatched_ns[queue])
        return self.end_ns

    def wait_event(self, event: "Event") -> None:
        event.wait(self)

    def wait_stream(self, other: "Stream") -> None:
        event = self.cuda.Event()
        event.record(other)
        self.wait_event(event)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream) and (self.on, self.number) == (other.on, other.number)

    def __hash__(self) -> int:
        return hash((self.on.index, self.number))


class Event:
    """An event; `at_ns` is when its stream reached it, in true time."""

    def __init__(self, cuda: "VirtualCuda", *, enable_timing: bool = False) -> None:
        self.cuda, self.timed = cuda, enable_timing
        self.at_ns: int | None = None
        self.device: Any = None
        self.captured = False
        cuda.events += 1

    def record(self, stream: Stream | None = None) -> None:
        cuda = self.cuda
        cuda.fail_if_broken()
        stream = stream if stream is not None else cuda.current_stream()
        if self.device is not None and self.device.index != stream.device.index:
            raise RuntimeError("Event device does not match recording stream's device")
        self.device = stream.device
        cuda.touched.add(stream.device.index)
        self.captured = stream in cuda.captured_streams
        self.at_ns = stream.pass_by()

    def query(self) -> bool:
        self.cuda.fail_if_broken()
        if self.cuda.captured_streams:
            self.cuda.captures_broken += 1
            raise RuntimeError("CUDA error: operation not permitted when stream is capturing")
        return self.at_ns is None or self.at_ns <= self.cuda.now_ns

    def elapsed_time(self, other: "Event") -> float:
        if not (self.timed and other.timed and self.query() and other.query()):
            raise RuntimeError("CUDA error: device not ready")
        if self.captured or other.captured:
            raise RuntimeError("CUDA error: invalid resource handle")
        assert self.device.index == other.device.index, "events of two devices"
        difference = self.cuda.device_ns(other.at_ns) - self.cuda.device_ns(self.at_ns)
        return float(np.float32(difference / 1e6))

    def wait(self, stream: Stream | None = None) -> None:
        self.hold_back(stream if stream is not None else self.cuda.current_stream())

    def hold_back(self, stream: Stream) -> None:
        """Let a stream wait, as code does that is not Python's."""
        self.cuda.waits.append((stream.on.index, stream.number))
        stream.run(after_ns=self.at_ns or 0)

    def synchronize(self) -> None:
        self.cuda.reach(self.at_ns or 0)


class VirtualCuda:
    """What capture uses of `torch.cuda`."""

    def __init__(self, *, devices: int = 1, queues: int = 32, ppm: float = 0.0, resolution_ns: int = 1) -> None:
        self.now_ns = START_NS
        self._ppm, self._resolution_ns = ppm, resolution_ns
        self._threads = threading.local()
        self.kernels: list[tuple[str, int, int, int]] = []
        """(name, number of the stream, start, end) in the order of their launches."""
        self.waits: list[tuple[int, int]] = []
        """(device, number of the stream) of each wait for an event."""
        self.recorded_tensors: list[int] = []
        self.touched: set[int] = set()
        self.captured_streams: set[Stream] = set()
        self.capturing: Graph | None = None
        """The graph that takes what is launched now."""
        self.captures_broken = 0
        self.broken = False
        """Whether a sticky error occurred, such as an illegal access."""
        self.events = 0
        self._due: list[tuple[int, Callable[[], None]]] = []
        self.devices = [Device(self, index, queues) for index in range(devices)]

    # -- time ------------------------------------------------------------------------------------------------------

    def host(self, duration_ns: int) -> None:
        """Let the host compute for so long."""
        self.reach(self.now_ns + duration_ns)

    def reach(self, at_ns: int) -> None:
        """Let the host's time pass until `at_ns`, and run what other threads do until then, each at its time."""
        while self._due and min(self._due, key=lambda each: each[0])[0] <= at_ns:
            due = min(self._due, key=lambda each: each[0])
            self._due.remove(due)
            self.now_ns = max(self.now_ns, due[0])
            thread = threading.Thread(target=due[1])
            thread.start()
            thread.join()
        self.now_ns = max(self.now_ns, at_ns)

    def on_a_thread(self, at_ns: int, function: Callable[[], None]) -> None:
        """Run `function` on another thread at that time."""
        self._due.append((at_ns, function))

    def device_ns(self, true_ns: int | None) -> int:
        """Return what the device's own clock shows."""
        assert true_ns is not None
        shown = (true_ns - START_NS) * (1 + self._ppm * 1e-6)
        return round(shown / self._resolution_ns) * self._resolution_ns

    def monotonic_ns(self) -> int:
        return self.now_ns

    # -- what torch.cuda offers ------------------------------------------------------------------------------------

    def Event(self, *, enable_timing: bool = False) -> Event:  # noqa: N802 - torch's name
        return Event(self, enable_timing=enable_timing)

    def current_device(self) -> int:
        return getattr(self._threads, "device", 0)

    def set_device(self, index: int) -> None:
        self._threads.device = index

    @contextmanager
    def device(self, index: int) -> Iterator[None]:
        before = self.current_device()
        self.set_device(index)
        try:
            yield
        finally:
            self.set_device(before)

    def current_stream(self, device: int | None = None) -> Stream:
        index = self.current_device() if device is None else device
        streams: dict[int, Stream] = self._threads.__dict__.setdefault("streams", {})
        return streams.get(index, self.devices[index].default)

    @contextmanager
    def stream(self, stream: Stream) -> Iterator[None]:
        streams: dict[int, Stream] = self._threads.__dict__.setdefault("streams", {})
        index, before = stream.on.index, self.current_stream(stream.on.index)
        streams[index] = stream
        try:
            with self.device(index):
                yield
        finally:
            streams[index] = before

    def new_stream(self) -> Stream:
        """Return what `torch.cuda.Stream()` gives: the next stream of the pool."""
        return self.devices[self.current_device()].from_pool()

    def synchronize(self) -> None:
        self.fail_if_broken()
        self.touched.add(self.current_device())
        device = self.devices[self.current_device()]
        self.reach(max(stream.end_ns for stream in (device.default, *device.pool)))

    def is_current_stream_capturing(self) -> bool:
        return self.current_stream() in self.captured_streams

    def fail_if_broken(self) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    # -- a job's own work ------------------------------------------------------------------------------------------

    def launch(self, name: str, duration_ns: int, *, host_ns: int = 5_000) -> tuple[int, int]:
        """Launch a kernel on the current stream; return when it runs."""
        self.host(host_ns)
        stream = self.current_stream()
        if self.capturing is not None:
            self.capturing.operations.append(lambda: self.launch(name, duration_ns, host_ns=0))
            return 0, 0
        start, end = stream.run(duration_ns)
        self.kernels.append((name, stream.number, start, end))
        return start, end

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture the current stream into a graph, in the global mode."""
        stream = self.current_stream()
        self.captured_streams.add(stream)
        try:
            yield
        finally:
            self.captured_streams.remove(stream)

    @property
    def schedule(self) -> tuple[Any, ...]:
        """Return all that a recording must not change."""
        return (self.kernels, self.waits, self.recorded_tensors, [device.taken for device in self.devices])


class Graph:
    """A CUDA graph of the current stream: what is launched while it is captured runs where it is replayed."""

    def __init__(self, cuda: VirtualCuda) -> None:
        self._cuda = cuda
        self._capture = ExitStack()
        self.operations: list[Callable[[], object]] = []

    def capture_begin(self) -> None:
        self._capture.enter_context(self._cuda.capture())
        self._cuda.capturing = self

    def capture_end(self) -> None:
        self._cuda.capturing = None
        self._capture.close()

    def replay(self) -> None:
        self._cuda.host(5_000)
        for operation in self.operations:
            operation()


_storages = itertools.count(1)


class Tensor:
    """What capture asks of a tensor."""

    is_meta = False

    def __init__(self, elements: int = 1000, device: str = "cuda", index: int = 0, dtype: str = "float32") -> None:
        self.elements, self.dtype = elements, f"torch.{dtype}"
        self.device = SimpleNamespace(type=device, index=index if device == "cuda" else None)
        self._cdata = next(_storages)

    def numel(self) -> int:
        return self.elements

    def element_size(self) -> int:
        return SIZE_BYTES

    def untyped_storage(self) -> "Tensor":
        return self


class Future:
    """A future of `ProcessGroupNCCL`: a callback takes a stream of the pool, makes it wait, and records the outputs."""

    def __init__(self, work: "Work") -> None:
        self._work = work

    def add_done_callback(self, callback: Callable[[Any], None]) -> None:
        work = self._work
        cuda = work.group.cuda
        if work.end is None:  # a future without devices, as gloo's: the callback runs on the backend's thread
            cuda.on_a_thread(work.end_ns, lambda: callback(self))
            return
        stream = cuda.devices[work.group.device].from_pool()
        work.end.hold_back(stream)
        cuda.recorded_tensors += [tensor._cdata for tensor in work.outputs]
        with cuda.stream(stream):
            callback(self)


class Work:
    """A call under way: `end` is NCCL's event, None for gloo, whose calls end at `end_ns` on a thread."""

    def __init__(self, group: Any, end_ns: int, end: Event | None = None, start: Event | None = None) -> None:
        self.group, self.end_ns, self.end, self._start = group, end_ns, end, start
        self.outputs: list[Tensor] = []
        self.has_future = True

    def wait(self) -> bool:
        if self.end is not None:
            self.end.hold_back(self.group.cuda.current_stream(self.group.device))
        else:
            self.group.cuda.reach(self.end_ns)
        return True

    def is_completed(self) -> bool:
        return self.end.query() if self.end is not None else self.end_ns <= self.group.cuda.now_ns

    def _get_duration(self) -> float:
        if self._start is None or self.end is None:
            raise RuntimeError("getDuration only works if timing was enabled")
        return self._start.elapsed_time(self.end)

    def get_future(self) -> Future:
        if not self.has_future:
            raise RuntimeError("this work has no future")
        return Future(self)


class NcclGroup:
    """A communicator with a stream of its own; one more for each pair that sends and receives unbatched."""

    backend = "nccl"

    def __init__(
        self, cuda: VirtualCuda, name: str = "0", size: int = 2, device: int = 0, *, can_time: bool = True
    ) -> None:
        self.cuda, self.group_name, self._size, self.device = cuda, name, size, device
        self._streams: dict[Any, Stream] = {}
        self._can_time, self.timing = can_time, False
        self._seq = 0
        self._batch: list[tuple[int, int]] | None = None
        self.transfers: list[tuple[str, int, int]] = []
        """(operation, start, end): the truth."""

    def size(self) -> int:
        return self._size

    def _get_sequence_number_for_group(self) -> int:
        return self._seq

    def _enable_collectives_timing(self) -> None:
        if not self._can_time:
            raise RuntimeError("Backend is missing implementation of enableCollectivesTiming")
        self.timing = True

    def _get_backend(self, device: Any) -> Any:
        del device
        return SimpleNamespace(name=lambda: self.backend)

    def stream_of(self, key: Any = None) -> Stream:
        if key not in self._streams:
            self._streams[key] = self.cuda.devices[self.device].from_pool()
        return self._streams[key]

    def run(
        self, op: str, duration_ns: int, *, inline: bool = False, pair: Any = None, outputs: list[Tensor] | None = None,
        arrived_ns: int = 0, host_ns: int = 20_000,
    ) -> Work | None:  # fmt: skip
        """Transfer for so long once all members arrived; `inline` runs on the current stream and returns no work."""
        self.cuda.host(host_ns)
        self._seq += 1
        if self._batch is not None:
            self._batch.append((duration_ns, arrived_ns))
            return None
        if self.cuda.capturing is not None:  # and the stream of the graph waits for it

            def transfer() -> None:
                end = self._transfer(op, duration_ns, arrived_ns, pair, []).end
                assert end is not None
                end.hold_back(self.cuda.current_stream(self.device))

            self.cuda.capturing.operations.append(transfer)
            return None
        if inline:
            stream = self.cuda.current_stream(self.device)
            start, end = stream.run(duration_ns, after_ns=0)
            stream.end_ns = end = max(end, arrived_ns + duration_ns)
            self.transfers.append((op, start, end))
            return None
        return self._transfer(op, duration_ns, arrived_ns, pair, outputs or [])

    def _transfer(self, op: str, duration_ns: int, arrived_ns: int, pair: Any, outputs: list[Tensor]) -> Work:
        cuda, stream = self.cuda, self.stream_of(pair)
        ready = Event(cuda)
        ready.record(cuda.current_stream(self.device))
        stream.run(after_ns=ready.at_ns or 0)
        begin = Event(cuda, enable_timing=True) if self.timing else None
        if begin is not None:
            begin.record(stream)
        start, end_ns = stream.run(duration_ns)
        stream.end_ns = end_ns = max(end_ns, arrived_ns + duration_ns)
        end = Event(cuda, enable_timing=self.timing)
        end.record(stream)
        self.transfers.append((op, start, end_ns))
        work = Work(self, end_ns, end, begin)
        work.outputs = outputs
        return work

    def start_coalescing(self) -> None:
        self._batch = []

    def end_coalescing(self) -> Work:
        batch, self._batch = self._batch or [], None
        work = self._transfer("batch", max(each[0] for each in batch), max(each[1] for each in batch), None, [])
        work.has_future = False
        return work


class GlooGroup(NcclGroup):
    """A group whose calls are made on the host by a thread of the backend."""

    backend = "gloo"

    def run(
        self, op: str, duration_ns: int, *, inline: bool = False, pair: Any = None, outputs: list[Tensor] | None = None,
        arrived_ns: int = 0, host_ns: int = 20_000,
    ) -> Work:  # fmt: skip
        del inline, pair
        self.cuda.host(host_ns)
        self._seq += 1
        start = max(self.cuda.now_ns, arrived_ns)
        self.transfers.append((op, start, start + duration_ns))
        work = Work(self, start + duration_ns)
        work.outputs = outputs or []
        return work
