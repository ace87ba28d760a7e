"""Record the start and the end of every collective that torch dispatches, without changing what it does.

Calls are seen in a dispatcher kernel (`dispatch_hook`). No DDP communication hook is installed, so the user's own hook
keeps working, and gradients are summed and divided exactly as without this recording. On a device nothing of ours waits
for a collective, on no stream: `held_works` says where its end comes from. A transfer of tensors of the host, or over
gloo, is timed by the host's clock, and a callback runs at its end on the backend's thread.
"""

import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any, Final

from overlapscope.capture.hooks.dispatch_hook import DISPATCH_HOOK, Operation
from overlapscope.capture.hooks.held_works import HeldWorks
from overlapscope.capture.hooks.nvtx import NvtxRanges
from overlapscope.capture.hooks.patch import Patch
from overlapscope.capture.host.thread_states import keep_state
from overlapscope.capture.host.thread_times import ThreadTimes
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.records import CollectiveCall, MarkedRange, StepRecord, Transfer
from overlapscope.capture.timestamps import Clock
from overlapscope.timeline.operations import POINT_TO_POINT, full_elements, volume_bytes

HOST_BACKENDS: Final = frozenset({"gloo", "mpi"})
"""Backends that move a device's tensors through the host: their ends are no times of a device."""
BUFFERS: Final = "_broadcast_coalesced"
"""torch's function that broadcasts tensors and waits for it; within it no Python code is called to wait."""
MARKS_READ: Final = 4
"""Marks of the device's clock that are read at each call: as many as a call and its wait take."""
MAX_OUTPUTS: Final = 10_000


class CollectiveWatch:
    """While open, records every collective in the step record that `current()` returns; None records nothing.

    `bucket_group()` returns the name of the group over which DistributedDataParallel reduces its buckets, which live as
    long as the model. With `shared_queues` streams may stand behind one another at the head of a hardware queue.
    """

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        current: Callable[[], StepRecord | None],
        ranges: NvtxRanges | None = None,
        times: ThreadTimes | None = None,
        captured: Callable[[], None] | None = None,
        bucket_group: Callable[[], str | None] = lambda: None,
        *,
        shared_queues: bool = False,
    ) -> None:
        self._clock, self._guard, self._current, self._ranges = clock, guard, current, ranges
        self._times, self._captured, self._bucket_group = times, captured, bucket_group
        self._shared_queues = shared_queues
        self._threads = threading.local()
        self._patches: list[Patch] = []
        self.works = HeldWorks()
        self._outputs: dict[int, tuple[int, Transfer]] = {}
        """`id()` of a Work and its transfer by the storage of its output: functional collectives wait on the output."""
        self._backends: dict[str, str | None] = {}
        """By group: the name of its backend for device tensors."""
        self._members: dict[tuple[str, int], dict[int, int]] = {}
        """By group: the rank of the world of each of its ranks."""
        self.listening = False

    def open(self) -> None:
        """Hook the dispatcher, the waits, groups of coalesced calls, and the names of FSDP's profiler ranges."""
        import torch  # noqa: PLC0415 - capture is the one room that uses torch
        from torch import distributed  # noqa: PLC0415

        if not distributed.is_available():
            return
        self._torch, self._distributed = torch, distributed
        self.listening = True
        DISPATCH_HOOK.open(self._see, self._see_wait)
        if not self._patches:
            self._patches += [
                Patch(distributed.Work, "wait", self._waiting),
                Patch(distributed.ProcessGroup, "_start_coalescing", self._starting),
                Patch(distributed.ProcessGroup, "_end_coalescing", self._ending),
                Patch(torch.autograd.profiler.record_function, "__enter__", self._entering_range),
                Patch(torch.autograd.profiler.record_function, "__exit__", self._leaving_range),
            ]
            if not self._clock.on_device and hasattr(distributed, BUFFERS):
                self._patches.append(Patch(distributed, BUFFERS, self._blocking))
            if self._clock.on_device:
                self._patches += [
                    Patch(torch.cuda.Stream, "wait_event", self._stream_waiting),
                    Patch(torch.cuda.Event, "wait", self._event_waiting),
                ]
        for patch in self._patches:
            patch.open()

    def close(self) -> None:
        """Remove the hooks; collectives then run as without them."""
        self.listening = False
        for patch in self._patches:
            patch.close()
        DISPATCH_HOOK.close()

    def step_begins(self) -> None:
        """Forget the works on the host that the program never waited for: they keep tensors alive."""
        self.works.forget_host()
        if len(self._outputs) > MAX_OUTPUTS:
            self._outputs.clear()
        self.read()

    def read(self, most: int = MARKS_READ) -> bool:
        """Read what the device has reached by now, without waiting; return whether nothing is left to read."""
        if not self._clock.on_device:
            return True
        if self._clock.capturing():
            return False
        return self._clock.read(most) & self.works.read()

    # -- collectives -----------------------------------------------------------------------------------------------

    def _see(self, operation: Operation, redispatch: Callable[..., Any], keys: Any, args: tuple[Any, ...]) -> Any:
        record = self._current()
        if self._captured is not None:
            self._captured()
        run = redispatch if self._ranges is None else self._ranges.wrap(operation.op, redispatch)
        if record is None:
            return run(keys, *args)
        # Each step through the guard costs: one before the call, and one after it.
        begun = self._guard("noting a collective", self._before, record, operation, args)
        result = run(keys, *args)
        if begun is not None:
            self._guard("noting a collective's end", self._after, record, begun, operation, args, result)
        return result

    def _before(
        self, record: StepRecord, operation: Operation, args: tuple[Any, ...]
    ) -> tuple[CollectiveCall, MarkedRange | None] | None:
        call = self._describe(operation, args)
        if self._times is not None:
            # In a phase it is known that the thread computes but where it waits; outside, only its own times say so.
            (self._times.note_at_times if _in_phase(record) else self._times.note)(record)
        if call is None:
            return None
        return call, self._queue_before(call.transfer) if self._shared_queues else None

    def _after(
        self,
        record: StepRecord,
        begun: tuple[CollectiveCall, MarkedRange | None],
        operation: Operation,
        args: tuple[Any, ...],
        result: Any,
    ) -> None:
        call, queue = begun
        if queue is not None:
            self._queue_after(record, queue)
            call.left = queue.end
        if threading.get_ident() == record.thread:
            call.returned_ns = time.monotonic_ns()
            if self._clock.on_device:
                self._guard("reading marks", self.read)
        record.calls.append(call)
        self._follow(record, call, operation, args, result)

    def _describe(self, operation: Operation, args: tuple[Any, ...]) -> CollectiveCall | None:
        entered_ns = time.monotonic_ns()
        sent, received = operation.sent, operation.received
        tensors = self._tensors(args[sent if sent is not None else received or 0])
        if tensors and tensors[0].is_meta:
            return None  # torch's compiler runs the call on fake tensors first
        group = self._distributed.ProcessGroup.unbox(args[operation.group])
        size, name = group.size(), group.group_name
        own = _elements(tensors) if sent is not None or received is not None else None
        typed = tensors or (self._tensors(args[received]) if received is not None else [])
        others = own if received == sent else self._elements(args, received)
        elements = full_elements(operation.op, own if sent is not None else None, others, size)
        on_host = not self._clock.on_device or self._on_host(group, name, tensors)
        # NCCL has a communicator and a stream for each pair.
        index = None if operation.peer is None else args[operation.peer]
        return CollectiveCall(
            op=operation.op,
            group=name,
            group_size=size,
            dtype=_dtype(typed[0].dtype) if typed and elements is not None else None,
            elements=elements,
            module=getattr(self._threads, "module", None),
            entered_ns=entered_ns,
            transfer=Transfer(
                lane=name if operation.op not in POINT_TO_POINT else f"{name} with {index}",
                ready=time.monotonic_ns() if on_host else self._clock.mark(),
                on_host=on_host,
                on_compute=not on_host and self._clock.blocks_compute(0),
            ),
            seq=_number(group),
            peer=None if index is None else self._member(group, name, index),
        )

    def _member(self, group: Any, name: str, index: int) -> int | None:
        """Return the rank of the world of a member of a group; None where torch does not know the group."""
        key = name, id(group)  # after its groups were destroyed a job's new ones have the same names
        if key not in self._members:
            with suppress(AttributeError, KeyError):
                ranks = self._distributed.distributed_c10d._world.pg_group_ranks[group]
                self._members[key] = {own: rank for rank, own in ranks.items()}
        return self._members.get(key, {}).get(index)

    def _on_host(self, group: Any, name: str, tensors: list[Any]) -> bool:
        """Return whether the host moves these tensors, in a job that has a device."""
        if tensors and tensors[0].device.type == "cpu":
            return True
        if name not in self._backends:
            self._backends[name] = _device_backend(group, self._torch.device("cuda"))
        backend = self._backends[name]
        return backend is None or backend in HOST_BACKENDS

    def _follow(
        self, record: StepRecord, call: CollectiveCall, operation: Operation, args: tuple[Any, ...], result: Any
    ) -> None:
        """Find out how the call's end will be known."""
        transfer = call.transfer
        if transfer.ready is None:
            return  # captured into a CUDA graph
        coalesced: list[CollectiveCall] | None = getattr(self._threads, "coalesced", None)
        if coalesced is not None:
            coalesced.append(call)  # nothing is sent before the coalescing group is closed
            return
        work = self._distributed.Work.unbox(result[-1] if isinstance(result, tuple) else result)
        if work is None:
            self._end_in_line(record, [call])
            return
        received = self._tensors(args[operation.received]) if operation.received is not None else []
        if transfer.on_host and not (self._clock.on_device and any(each.device.type != "cpu" for each in received)):
            try:
                future = work.get_future()
            except RuntimeError:
                pass  # gloo's reduce-scatter has no future: its end is seen when the caller has waited for it
            else:
                future.add_done_callback(self._ending_of(transfer))
                return
        kept = call.op == "all_reduce" and call.group == self._bucket_group()
        size = sum(int(tensor.numel() * tensor.element_size()) for tensor in received)
        self.works.hold(work, transfer, 0 if kept or transfer.on_host else size)
        for tensor in received:
            self._outputs[tensor.untyped_storage()._cdata] = id(work), transfer

    def _ending_of(self, transfer: Transfer) -> Callable[[Any], None]:
        caller = threading.get_ident()

        def ended(_: Any) -> None:
            transfer.done = time.monotonic_ns()
            keep_state(of_python=caller)

        return ended

    def _end_in_line(self, record: StepRecord, calls: list[CollectiveCall]) -> None:
        """Mark the end of calls that return no Work: NCCL (torch 2.8) runs them on the calling stream."""
        first = calls[0].transfer
        end = time.monotonic_ns() if first.on_host else self._clock.mark()
        for call in calls:
            call.transfer.done = end
        if self._clock.blocks_compute(record.thread) and not (first.on_host and self._clock.on_device):
            record.waits.append(MarkedRange("wait", first.ready, calls[0].entered_ns, end))

    def _tensors(self, value: Any) -> list[Any]:
        """Return the tensors in an argument: one, a list of them, or lists of lists."""
        tensor = self._torch.Tensor
        if isinstance(value, tensor):
            return [value]
        if not isinstance(value, (list, tuple)):
            return []
        if len(value) == 1 and isinstance(value[0], tensor):
            return value if isinstance(value, list) else [value[0]]
        return [tensor for each in value for tensor in self._tensors(each)]

    def _elements(self, args: tuple[Any, ...], position: int | None) -> int | None:
        return None if position is None else _elements(self._tensors(args[position]))

    # -- hardware queues -------------------------------------------------------------------------------------------

    def _queue_before(self, transfer: Transfer | None = None) -> MarkedRange | None:
        """Mark the compute stream before something is issued to another one.

        A transfer that waits for the one before it, or a stream for an event, waits at the head of its queue, and the
        computation that is issued after it to the same queue stands still, though its own stream waits for nothing.
        """
        if not self._shared_queues or (transfer is not None and transfer.on_host):
            return None
        mark = transfer.ready if transfer is not None and transfer.on_compute else self._clock.mark_compute()
        return MarkedRange("queue", mark, time.monotonic_ns())

    def _queue_after(self, record: StepRecord, queue: MarkedRange) -> None:
        queue.end = self._clock.mark_compute()
        if queue.begin is not None and queue.end is not None:
            record.waits.append(queue)

    # -- waits -----------------------------------------------------------------------------------------------------

    def _see_wait(self, redispatch: Callable[..., Any], keys: Any, tensor: Any) -> Any:
        """Record the wait of a functional collective; its output is the job's to free from then on."""
        record = self._current()
        if record is None or tensor.is_meta:
            return redispatch(keys, tensor)
        work, transfer = self._outputs.pop(tensor.untyped_storage()._cdata, (None, None)) if self._outputs else (
            None, None
        )  # fmt: skip
        try:
            return self._wait(record, transfer, None, redispatch, keys, tensor)
        finally:
            if work is not None:
                self.works.drop(work)

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **kwargs: Any) -> Any:
            record = self._current()
            if record is None:
                return original(*args, **kwargs)
            transfer = self.works.transfer(id(args[0])) if args else None
            return self._wait(record, transfer, None, original, *args, **kwargs)

        return wait

    def _blocking(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Record the wait inside a call that makes collectives and waits for them in C++: DDP sends its buffers so."""

        def call(*args: Any, **kwargs: Any) -> Any:
            record = self._current()
            if record is None:
                return original(*args, **kwargs)
            return self._wait(record, None, None, original, *args, **kwargs)

        return call

    def _stream_waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Record what FSDP2's compute stream waits for: FSDP2 synchronizes its streams by events."""

        def wait_event(stream: Any, event: Any) -> None:
            self._wait_of(stream, original, stream, event)

        return wait_event

    def _event_waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(event: Any, stream: Any = None) -> None:
            waiting = stream if stream is not None else self._guard("noting a wait", self._torch.cuda.current_stream)
            self._wait_of(waiting, original, event, *(() if stream is None else (stream,)))

        return wait

    def _wait_of(self, stream: Any, original: Callable[..., Any], *args: Any) -> None:
        """Record a wait of the compute stream, whichever stream is current; `wait_event` calls `Event.wait`."""
        record = self._current()
        inside = getattr(self._threads, "waiting", False)
        if record is None or inside:
            original(*args)
            return
        self._threads.waiting = True
        try:
            if self._guard("noting a wait", self._clock.computes_on, stream):
                self._wait(record, None, stream, original, *args)
                return
            queue = self._guard("noting a queue", self._queue_before)
            original(*args)
            if queue is not None:
                self._guard("noting a queue", self._queue_after, record, queue)
        finally:
            self._threads.waiting = False

    def _wait(
        self,
        record: StepRecord,
        transfer: Transfer | None,
        stream: Any,
        original: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        begun = self._guard("marking a wait", self._wait_begins, record, transfer, stream)
        try:
            return original(*args, **kwargs)
        finally:
            if begun is not None:
                self._guard("marking a wait", self._wait_ends, record, transfer, stream, begun)

    def _wait_begins(
        self, record: StepRecord, transfer: Transfer | None, stream: Any
    ) -> tuple[MarkedRange, ThreadTimes | None]:
        # Outside all phases only the thread's own times say what else it did (`other_work`).
        times = None if _in_phase(record) else self._times
        if times is not None:
            times.note(record)
        now_ns = time.monotonic_ns()
        return MarkedRange("wait", now_ns if self._waits_on_host(transfer) else self._clock.mark(stream), now_ns), times

    def _wait_ends(
        self,
        record: StepRecord,
        transfer: Transfer | None,
        stream: Any,
        begun: tuple[MarkedRange, ThreadTimes | None],
    ) -> None:
        stretch, times = begun
        on_host = self._waits_on_host(transfer)
        stretch.end = time.monotonic_ns() if on_host else self._clock.mark(stream)
        if on_host:
            record.host_waits.append(stretch)
        elif stream is not None or self._clock.blocks_compute(record.thread):
            record.waits.append(stretch)
        if transfer is not None and transfer.on_host:
            transfer.done = transfer.done or stretch.end
        elif transfer is not None and transfer.waited is None:
            transfer.waited = stretch
        if times is not None:
            times.note(record)

    def _waits_on_host(self, transfer: Transfer | None) -> bool:
        """Return whether the host waits where a device computes."""
        return self._clock.on_device and transfer is not None and transfer.on_host

    # -- coalesced calls -------------------------------------------------------------------------------------------

    def _starting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Collect the calls of a coalescing group, such as batch_isend_irecv over NCCL: they are sent as one."""

        def start_coalescing(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            self._threads.coalesced = []
            return result

        return start_coalescing

    def _ending(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def end_coalescing(*args: Any, **kwargs: Any) -> Any:
            calls = getattr(self._threads, "coalesced", None) or []
            self._threads.coalesced = None
            record = self._current()
            if record is None or not calls:
                return original(*args, **kwargs)
            self._guard("noting a collective", self._join, calls)
            work = original(*args, **kwargs)
            if work is None:
                self._guard("noting a collective's end", self._end_in_line, record, calls)
            else:
                size = sum(volume_bytes(call.elements, call.dtype) or 0 for call in calls)
                self.works.hold(work, calls[0].transfer, size)
            return work

        return end_coalescing

    def _join(self, calls: list[CollectiveCall]) -> None:
        """Make one transfer of the calls of a batch, over the group's own stream."""
        first = calls[0]
        on_host = first.transfer.on_host
        ready = time.monotonic_ns() if on_host else self._clock.mark()
        joint = Transfer(lane=first.group, ready=ready, on_host=on_host, on_compute=first.transfer.on_compute)
        for call in calls:
            call.transfer = joint

    # -- modules ---------------------------------------------------------------------------------------------------

    def _entering_range(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        """Track the FSDP profiler range that each thread is in: it names the module of a gather or a scatter."""
        threads = self._threads

        def entered(range_: Any) -> Any:
            if isinstance(range_.name, str) and range_.name.startswith("FSDP::"):
                threads.module = module_of(range_.name)
            return enter(range_)

        return entered

    def _leaving_range(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        threads = self._threads

        def left(range_: Any, *args: Any) -> Any:
            if isinstance(range_.name, str) and range_.name.startswith("FSDP::"):
                threads.module = None
            return leave(range_, *args)

        return left


def _in_phase(record: StepRecord) -> bool:
    return bool(record.phases) and record.phases[-1].end is None


def _elements(tensors: list[Any]) -> int:
    return tensors[0].numel() if len(tensors) == 1 else sum([tensor.numel() for tensor in tensors])


@cache
def _dtype(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")


def _device_backend(group: Any, device: Any) -> str | None:
    """Return the backend of a group for tensors on a device, and let it time its collectives; None without one."""
    try:
        name = str(group._get_backend(device).name()).lower()
    except RuntimeError:
        return None
    if name not in HOST_BACKENDS:
        with suppress(RuntimeError):  # a backend that measures nothing: ends are known from waits only
            group._enable_collectives_timing()
    return name


def _number(group: Any) -> int | None:
    """Return the sequence number of the call that a group is about to make, from 1; None where the backend has none."""
    try:
        return int(group._get_sequence_number_for_group()) + 1
    except RuntimeError:
        return None


def module_of(range_name: str) -> str | None:
    """Return the module that a range such as `FSDP::all_gather (layers.7)` names."""
    _, _, rest = range_name.partition(" (")
    return rest[:-1] if rest.endswith(")") and len(rest) > 1 else None
