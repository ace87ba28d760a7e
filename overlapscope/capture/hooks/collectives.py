"""Record the start and the end of every collective that torch dispatches, without changing what it does.

Calls are seen in a dispatcher kernel (`dispatch_hook`). No DDP communication hook is installed, so the user's own hook
keeps working, and gradients are summed and divided exactly as without this recording. The cost is one Python call per
collective and a callback at its end, together about 0.1 ms on the host.
"""

import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, Final

from overlapscope.capture.hooks.dispatch_hook import DISPATCH_HOOK, Operation
from overlapscope.capture.hooks.nvtx import NvtxRanges
from overlapscope.capture.host.thread_times import ThreadTimes
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.records import CollectiveCall, MarkedRange, StepRecord
from overlapscope.capture.timestamps import Clock
from overlapscope.timeline.operations import full_elements

MAX_PENDING_WORKS: Final = 1000
"""Most `Work` objects without a future that are kept until the program waits for them or the next step begins."""


class CollectiveWatch:
    """While open, records every collective in the step record that `current()` returns; None records nothing."""

    def __init__(
        self,
        clock: Clock,
        guard: Guard,
        current: Callable[[], StepRecord | None],
        ranges: NvtxRanges | None = None,
        times: ThreadTimes | None = None,
    ) -> None:
        self._clock, self._guard, self._current, self._ranges = clock, guard, current, ranges
        self._times = times
        self._threads = threading.local()
        self._undo = ExitStack()
        self._pending_works: dict[int, tuple[Any, list[CollectiveCall]]] = {}
        """By `id()` of a Work (kept alive so that the id stays unique): its calls, which end when its wait ends."""
        self._outputs: dict[int, int] = {}
        """`id()` of the same Work by the storage of its output: functional collectives wait on the output tensor."""

    def open(self) -> None:
        """Hook the dispatcher, the waits, groups of coalesced calls, and the names of FSDP's profiler ranges."""
        import torch  # noqa: PLC0415 - capture is the one room that uses torch
        from torch import distributed  # noqa: PLC0415

        if not distributed.is_available():
            return
        self._torch, self._distributed = torch, distributed
        DISPATCH_HOOK.open(self._see, self._see_wait)
        self._patch(distributed.Work, "wait", self._waiting)
        self._patch(distributed.ProcessGroup, "_start_coalescing", self._starting)
        self._patch(distributed.ProcessGroup, "_end_coalescing", self._ending)
        if self._clock.on_device:
            self._patch(torch.cuda.Stream, "wait_event", self._stream_waiting)
        self._patch_ranges(torch.autograd.profiler.record_function)

    def close(self) -> None:
        """Remove the hooks; collectives then run as without them."""
        self.step_begins()
        self._undo.close()
        DISPATCH_HOOK.close()

    def step_begins(self) -> None:
        """Forget the Work objects that the program never waited for: they keep tensors alive."""
        self._pending_works.clear()
        self._outputs.clear()

    # -- collectives -----------------------------------------------------------------------------------------------

    def _see(self, operation: Operation, redispatch: Callable[..., Any], keys: Any, args: tuple[Any, ...]) -> Any:
        record = self._current()
        call = self._guard("noting a collective", self._describe, operation, args) if record is not None else None
        if self._times is not None and record is not None:
            self._guard("noting the thread's time", self._times.note, record)
        if self._ranges is None:
            result = redispatch(keys, *args)
        else:
            result = self._ranges.wrap(operation.op, redispatch)(keys, *args)
        if call is not None and record is not None:
            if threading.get_ident() == record.thread:
                call.returned_ns = time.monotonic_ns()
            record.calls.append(call)
            self._guard("noting a collective's end", self._follow, record, call, operation, args, result)
        return result

    def _describe(self, operation: Operation, args: tuple[Any, ...]) -> CollectiveCall | None:
        sent, received = operation.sent, operation.received
        tensors = list(self._tensors(args[sent if sent is not None else received or 0]))
        if tensors and tensors[0].is_meta:
            return None  # torch's compiler runs the call on fake tensors first
        group = self._distributed.ProcessGroup.unbox(args[operation.group])
        size = group.size()
        elements = full_elements(operation.op, self._elements(args, sent), self._elements(args, received), size)
        return CollectiveCall(
            op=operation.op,
            group=group.group_name,
            group_size=size,
            dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors and elements is not None else None,
            elements=elements,
            module=getattr(self._threads, "module", None),
            entered_ns=time.monotonic_ns(),
            ready=self._clock.mark(),
            seq=_number(group),
        )

    def _follow(
        self, record: StepRecord, call: CollectiveCall, operation: Operation, args: tuple[Any, ...], result: Any
    ) -> None:
        """Mark the call's end: its future's callback runs then; on CUDA, on a stream that waits for the call."""
        if call.ready is None:
            return  # captured into a CUDA graph: the callback's stream would become part of the graph
        coalesced: list[CollectiveCall] | None = getattr(self._threads, "coalesced", None)
        if coalesced is not None:
            coalesced.append(call)  # nothing is sent before the coalescing group is closed
            return
        work = self._distributed.Work.unbox(result[-1] if isinstance(result, tuple) else result)
        if work is None:
            self._end_in_line(record, [call])
            return
        clock, guard = self._clock, self._guard

        def ended(_: Any) -> None:
            call.done = guard("marking a collective's end", clock.mark)

        try:
            future = work.get_future()
        except RuntimeError:  # gloo's reduce-scatter has no future: its end is seen when the caller has waited for it
            self._end_with_wait(work, [call])
            if operation.received is not None:
                for tensor in self._tensors(args[operation.received]):
                    self._outputs[tensor.untyped_storage()._cdata] = id(work)
            return
        future.add_done_callback(ended)

    def _end_in_line(self, record: StepRecord, calls: list[CollectiveCall]) -> None:
        """Mark the end of calls that return no Work: NCCL (torch 2.8) runs them on the calling stream."""
        end = self._clock.mark()
        for call in calls:
            call.done = end
        if calls and self._clock.blocks_compute(record.thread):
            record.waits.append(MarkedRange("wait", calls[0].ready, calls[0].entered_ns, end))

    def _end_with_wait(self, work: Any, calls: list[CollectiveCall]) -> None:
        if len(self._pending_works) < MAX_PENDING_WORKS:
            self._pending_works[id(work)] = (work, calls)

    def _tensors(self, value: Any) -> Any:
        if isinstance(value, self._torch.Tensor):
            yield value
        elif isinstance(value, (list, tuple)):
            for each in value:
                yield from self._tensors(each)

    def _elements(self, args: tuple[Any, ...], position: int | None) -> int | None:
        if position is None:
            return None
        return sum(int(tensor.numel()) for tensor in self._tensors(args[position]))

    # -- waits -----------------------------------------------------------------------------------------------------

    def _see_wait(self, redispatch: Callable[..., Any], keys: Any, tensor: Any) -> Any:
        """Record the wait of a functional collective."""
        record = self._current()
        if record is None or tensor.is_meta:
            return redispatch(keys, tensor)
        work = self._outputs.pop(tensor.untyped_storage()._cdata, None) if self._outputs else None
        return self._wait(record, work, redispatch, keys, tensor)

    def _waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        def wait(*args: Any, **kwargs: Any) -> Any:
            record = self._current()
            if record is None:
                return original(*args, **kwargs)
            return self._wait(record, id(args[0]) if args else None, original, *args, **kwargs)

        return wait

    def _stream_waiting(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """Record what FSDP2's compute stream waits for: FSDP2 synchronizes its streams by events."""

        def wait_event(stream: Any, event: Any) -> None:
            record = self._current()
            if record is None or not self._guard("noting a wait", self._clock.computes_on, stream):
                original(stream, event)
            else:
                self._wait(record, None, original, stream, event)

        return wait_event

    def _wait(
        self, record: StepRecord, work: int | None, original: Callable[..., Any], *args: Any, **kwargs: Any
    ) -> Any:
        stretch = MarkedRange("wait", self._guard("marking a wait", self._clock.mark), time.monotonic_ns())
        try:
            return original(*args, **kwargs)
        finally:
            stretch.end = self._guard("marking a wait", self._clock.mark)
            if self._guard("marking a wait", self._clock.blocks_compute, record.thread):
                record.waits.append(stretch)
            _, calls = self._pending_works.pop(work, (None, [])) if work is not None else (None, [])
            for call in calls:
                call.done = stretch.end

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
            work = original(*args, **kwargs)
            record = self._current()
            if record is not None and calls:
                if work is None:
                    self._guard("noting a collective's end", self._end_in_line, record, calls)
                else:  # this Work has no usable future: the end is seen when the caller has waited
                    self._end_with_wait(work, calls)
            return work

        return end_coalescing

    # -- patched functions -----------------------------------------------------------------------------------------

    def _patch(self, owner: Any, name: str, around: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        original = getattr(owner, name)
        setattr(owner, name, around(original))
        self._undo.callback(setattr, owner, name, original)

    def _patch_ranges(self, record_function: Any) -> None:
        """Track the FSDP profiler range that each thread is in: it names the module of a gather or a scatter."""
        threads = self._threads

        def entering(enter: Callable[..., Any]) -> Callable[..., Any]:
            def entered(range_: Any) -> Any:
                if isinstance(range_.name, str) and range_.name.startswith("FSDP::"):
                    threads.module = module_of(range_.name)
                return enter(range_)

            return entered

        def leaving(leave: Callable[..., Any]) -> Callable[..., Any]:
            def left(range_: Any, *args: Any) -> Any:
                if isinstance(range_.name, str) and range_.name.startswith("FSDP::"):
                    threads.module = None
                return leave(range_, *args)

            return left

        self._patch(record_function, "__enter__", entering)
        self._patch(record_function, "__exit__", leaving)


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
