"""Every collective that torch dispatches, seen as it is called and as it ends, without changing what it does.

All of them - DDP's own from C++, FSDP2's, plain `torch.distributed` calls, functional ones - pass the dispatcher as
`c10d::` operations. A kernel of ours stands before the backend's and passes each call on as it came: no communication
hook is installed, so the user's own keeps working and gradients are summed and divided exactly as without us. The cost
is one Python call a collective and a callback at its end, together about 0.1 ms on the host.
"""

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from overlapscope.capture.guard import Guard
from overlapscope.capture.nvtx import Ranges
from overlapscope.capture.points import Points
from overlapscope.capture.records import Call, StepRecord, Stretch
from overlapscope.timeline.volume import full_elements

OPERATIONS: Final[dict[str, tuple[str, int | None, int | None]]] = {
    # dispatcher name: (operation, argument sent, argument received)
    "allreduce_": ("all_reduce", 0, 0),
    "allreduce_coalesced_": ("all_reduce", 0, 0),
    "broadcast_": ("broadcast", 0, 0),
    "reduce_": ("reduce", 0, 0),
    "_allgather_base_": ("all_gather", 1, 0),
    "allgather_": ("all_gather", 1, 0),
    "allgather_coalesced_": ("all_gather", 1, 0),
    "allgather_into_tensor_coalesced_": ("all_gather", 1, 0),
    "_reduce_scatter_base_": ("reduce_scatter", 1, 0),
    "reduce_scatter_": ("reduce_scatter", 1, 0),
    "reduce_scatter_tensor_coalesced_": ("reduce_scatter", 1, 0),
    "alltoall_base_": ("all_to_all", 1, 0),
    "alltoall_": ("all_to_all", 1, 0),
    "gather_": ("gather", 1, 0),
    "scatter_": ("scatter", 1, 0),
    "send": ("send", 0, None),
    "recv_": ("recv", None, 0),
    "recv_any_source_": ("recv", None, 0),
    "barrier": ("barrier", None, None),
}
_KEYS: Final = ("AutogradCPU", "AutogradCUDA")
"""Dispatch keys in front of the backends' own; c10d leaves them empty."""


MAX_AWAITED: Final = 1000
"""Works without a future that are kept until somebody waits for them."""


class CollectiveWatch:
    """While open, notes every collective into the record that `current()` gives; passes all on when that is None."""

    def __init__(
        self, points: Points, guard: Guard, current: Callable[[], StepRecord | None], ranges: Ranges | None = None
    ) -> None:
        self._points, self._guard, self._current, self._ranges = points, guard, current, ranges
        self._library: Any = None
        self._wait: Any = None
        self._names = threading.local()
        self._unpatched: list[Callable[[], None]] = []
        self._awaited: dict[int, tuple[Any, Call]] = {}

    def open(self) -> None:
        """Step in front of the dispatcher, of `Work.wait` and of `record_function`."""
        import torch  # noqa: PLC0415 - capture is the one room that uses torch
        from torch import distributed  # noqa: PLC0415

        if not distributed.is_available():
            return
        self._library = torch.library.Library("c10d", "IMPL")
        for name, (op, sent, received) in OPERATIONS.items():
            packet = getattr(torch.ops.c10d, name, None)
            if packet is None:  # not in this version of torch
                continue
            kernel = self._kernel(torch, distributed, packet.default, op, sent, received)
            for key in _KEYS:
                self._library.impl(name, kernel, key, with_keyset=True)
        self._patch_wait(distributed.Work)
        self._patch_ranges(torch.autograd.profiler.record_function)

    def close(self) -> None:
        """Step aside; collectives then take their usual way."""
        self._awaited.clear()
        for undo in self._unpatched:
            undo()
        self._unpatched.clear()
        if self._library is not None:
            self._library._destroy()
            self._library = None

    def _kernel(
        self, torch: Any, distributed: Any, operation: Any, op: str, sent: int | None, received: int | None
    ) -> Callable[..., Any]:
        # Redispatched rather than called again: that would match the schema anew, for 0.1 ms, and begin at the top.
        redispatch, below = operation.redispatch, torch._C._after_autograd_keyset
        if self._ranges is not None:
            redispatch = self._ranges.around(op, redispatch)
        group_at = next(at for at, each in enumerate(operation._schema.arguments) if "ProcessGroup" in str(each.type))

        def pass_on(keys: Any, *args: Any) -> Any:
            record = self._current()
            call = None
            if record is not None:
                group = args[group_at]
                call = self._guard(
                    "noting a collective", self._describe, torch, distributed, op, sent, received, group, args
                )
            result = redispatch(keys & below, *args)
            if call is not None and record is not None:
                if threading.get_ident() == record.thread:
                    call.returned_ns = time.monotonic_ns()
                record.calls.append(call)
                self._guard("noting a collective's end", self._follow, distributed, call, result)
            return result

        return pass_on

    def _describe(
        self,
        torch: Any,
        distributed: Any,
        op: str,
        sent: int | None,
        received: int | None,
        boxed: Any,
        args: tuple[Any, ...],
    ) -> Call:
        group = distributed.ProcessGroup.unbox(boxed)
        tensors = list(_tensors(torch, args[sent if sent is not None else received or 0]))
        size = group.size()
        elements = full_elements(
            op,
            _elements(torch, args, sent),
            _elements(torch, args, received),
            size,
        )
        return Call(
            op=op,
            group=group.group_name,
            group_size=size,
            dtype=str(tensors[0].dtype).removeprefix("torch.") if tensors and elements is not None else None,
            elements=elements,
            module=getattr(self._names, "module", None),
            entered_ns=time.monotonic_ns(),
            ready=self._points.mark(),
        )

    def _follow(self, distributed: Any, call: Call, result: Any) -> None:
        """Mark the call's end: a future's callback runs at it; on CUDA, on a stream that waits for it."""
        work = distributed.Work.unbox(result[-1] if isinstance(result, tuple) else result)
        points, guard = self._points, self._guard

        def ended(_: Any) -> None:
            call.done = guard("marking a collective's end", points.mark)

        try:
            future = work.get_future()
        except RuntimeError:  # gloo's reduce-scatter has none: its end is seen when the caller has waited for it
            if len(self._awaited) < MAX_AWAITED:
                self._awaited[id(work)] = (work, call)
            return
        future.add_done_callback(ended)

    def _patch_wait(self, work: Any) -> None:
        original = work.wait
        current, points, awaited, guard = self._current, self._points, self._awaited, self._guard

        def wait(*args: Any, **kwargs: Any) -> Any:
            record = current()
            if record is None:
                return original(*args, **kwargs)
            stretch = Stretch("wait", guard("marking a wait", points.mark), time.monotonic_ns())
            try:
                return original(*args, **kwargs)
            finally:
                stretch.end = guard("marking a wait", points.mark)
                record.waits.append(stretch)
                _, call = awaited.pop(id(args[0]), (None, None)) if args else (None, None)
                if call is not None:
                    call.done = stretch.end

        work.wait = wait
        self._unpatched.append(lambda: setattr(work, "wait", original))

    def _patch_ranges(self, record_function: Any) -> None:
        """Keep the name of the FSDP range that a thread is in: it names the module of a gather or a scatter."""
        enter, leave, names = record_function.__enter__, record_function.__exit__, self._names

        def entered(range_: Any) -> Any:
            if isinstance(range_.name, str) and range_.name.startswith("FSDP::"):
                names.module = module_of(range_.name)
            return enter(range_)

        def left(range_: Any, *args: Any) -> Any:
            if isinstance(range_.name, str) and range_.name.startswith("FSDP::"):
                names.module = None
            return leave(range_, *args)

        record_function.__enter__, record_function.__exit__ = entered, left
        self._unpatched.append(lambda: setattr(record_function, "__enter__", enter))
        self._unpatched.append(lambda: setattr(record_function, "__exit__", leave))


def module_of(range_name: str) -> str | None:
    """Give the module that a range such as `FSDP::all_gather (layers.7)` names."""
    _, _, rest = range_name.partition(" (")
    return rest[:-1] if rest.endswith(")") and len(rest) > 1 else None


def _tensors(torch: Any, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _tensors(torch, each)


def _elements(torch: Any, args: tuple[Any, ...], position: int | None) -> int | None:
    if position is None:
        return None
    return sum(int(tensor.numel()) for tensor in _tensors(torch, args[position]))
