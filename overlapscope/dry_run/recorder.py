"""See every operation that torch dispatches, answer collectives, and keep the rows of the recorded step."""

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, Final

import msgspec

from overlapscope.dry_run.collectives import Call, Works, answer, call_of, is_collective, is_wait
from overlapscope.dry_run.fusion import Traffic
from overlapscope.dry_run.memory import ACTIVATION, HOST, OTHER, Memory
from overlapscope.dry_run.modules import Place, Places
from overlapscope.dry_run.source_lines import line_of_caller
from overlapscope.dry_run.streams import CALLBACK_STREAM, NEVER, Known, Stream, StreamContext, Streams
from overlapscope.dry_run.work import TensorUse, Work, size_of, tensors_in, work_of
from overlapscope.errors import InputError
from overlapscope.timeline.columns import COLLECTIVE, HOST_SYNC, MEMORY, OPTIMIZER_UPDATE, WAIT
from overlapscope.timeline.dimensions import BACKWARD, FORWARD, OPTIMIZER

READS_OF_DEVICE: Final = "_local_scalar_dense"
"""What `.item()`, `float()`, `if tensor:` and `tolist()` of one element dispatch."""
NO_DEVICE: Final = "create tensors and modules on the device that build is given"
NOT_OPERATIONS: Final = frozenset({"c10d", "_c10d_functional", "prim", "profiler", "streams"})
"""Namespaces of what does no work on a device."""


class Row(msgspec.Struct, kw_only=True, gc=False):
    """One row of `Operations`."""

    work: int
    name: str
    stream: str
    phase: str
    module: str | None
    source: str | None
    dtype: str | None = None
    flops: int = 0
    read_bytes: int = 0
    written_bytes: int = 0
    live_bytes: int = 0
    collective: int | None = None
    awaited: int | None = None


class CallRow(msgspec.Struct, kw_only=True, gc=False):
    """One collective with its place in the program."""

    call: Call
    phase: str
    module: str | None
    source: str | None
    launch_order: int
    ready_order: int
    needed_order: int | None = None
    parameters: int | None = None
    pending: bool = True


class Recorder:
    """The rows of one pass; nothing is kept unless `recording`."""

    def __init__(self) -> None:
        self.recording = False
        self.rows: list[Row] = []
        self.traffic: list[Traffic] = []
        self.calls: list[CallRow] = []
        self.memory = Memory()
        self.places = Places(self._phase_ends)
        self.streams = Streams(self._stream_waits)
        self.works = Works(self._wait_for, self._run_chained)
        self.assumptions: dict[str, None] = {}
        self.on_backward_end: Callable[[], None] = lambda: None
        self.parameters_moved: int | None = None
        """Elements of the parameters of the FSDP group whose communication is being launched."""
        self.real_integers = 0
        """Above 0 inside `integers`."""
        self._on_host = False
        self._outputs: dict[int, Any] = {}
        """By storage of a functional collective's output: its work."""
        self._futures: list[Any] = []
        """Works whose futures torch waits for at the end of backward: DDP's buckets."""
        self._numbers: dict[str, int] = {}

    def begin(self) -> None:
        """Start to keep rows."""
        self.rows, self.traffic, self.calls = [], [], []
        self._outputs.clear()
        self._futures.clear()
        self.works.forget()
        self.places.restart()
        self.streams.compute.known = Known()
        self.memory.restart_peak()
        self.recording = True

    # -- dispatch --------------------------------------------------------------------------------------------------

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Run one operation on fake tensors, and keep its row."""
        if is_collective(func):
            return self._collective(func, args, kwargs)
        if is_wait(func):
            self._wait_for(self._outputs.pop(_storage_key(args[0]), None))
            return args[0]
        if func.overloadpacket.__name__ == READS_OF_DEVICE:
            return self._read_of_device(func, args, kwargs)
        if self._on_host:
            result = func(*args, **kwargs)
            for each in tensors_in((args, kwargs, result)):
                self.memory.classify(each, HOST)
            return result
        if self._futures and self.places.after_backward:
            self._phase_ends(BACKWARD)  # DDP copies its buckets out only then
        result = func(*args, **kwargs)
        if func.namespace not in NOT_OPERATIONS:
            self._operation(func, args, kwargs, result)
        return result

    def _operation(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        work = work_of(func, args, kwargs, result)
        phase = self.places.phase
        kind = ACTIVATION if phase == FORWARD else OTHER
        for each in tensors_in(result):
            if each.device.type not in ("cpu", "meta"):
                raise InputError(f"{line_of_caller() or 'torch'}: the code needs a device ({each.device}): {NO_DEVICE}")
            self.memory.number(each, kind)
        if not self.recording:
            return
        if work is None:
            self.memory.note_peak(len(self.rows))
            self.places.here(line_of_caller) if phase == FORWARD else None
            return
        sort = OPTIMIZER_UPDATE if work.kind == MEMORY and phase == OPTIMIZER else work.kind
        made = work.written[0].tensor if work.written else work.read[0].tensor if work.read else None
        row = self._row(sort, str(func))
        row.dtype = None if made is None else str(made.dtype).removeprefix("torch.")
        row.flops = work.flops
        row.read_bytes = sum(each.size_bytes for each in work.read)
        row.written_bytes = sum(each.size_bytes for each in work.written)
        self._add(row, work)

    def _row(self, work: int, name: str) -> Row:
        """Return a row of the current stream, phase, module and line."""
        place: Place = self.places.here(line_of_caller)
        return Row(
            work=work,
            name=name,
            stream=self.streams.current.label,
            phase=self.places.phase,
            module=place.module,
            source=place.source,
        )

    def _add(self, row: Row, work: Work | None = None) -> int:
        order = len(self.rows)
        uses = ([], []) if work is None else tuple(
            [(self.memory.number(each.tensor), each.size_bytes) for each in side] for side in (work.read, work.written)
        )  # fmt: skip
        row.live_bytes = self.memory.live_bytes
        self.rows.append(row)
        stream = self._numbers.setdefault(row.stream, len(self._numbers))
        self.traffic.append(Traffic(row.work, stream, uses[0], uses[1]))
        self.memory.note_peak(order)
        if row.work != COLLECTIVE:
            self.streams.advance(order)
        return order

    def _read_of_device(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        from torch._subclasses.fake_tensor import DataDependentOutputException  # noqa: PLC0415

        try:
            return func(*args, **kwargs)  # a constant of the program
        except DataDependentOutputException:
            return self.read_of_device(args[0], str(func))

    def read_of_device(self, tensor: Any, name: str) -> Any:
        """Note that the host waits for a tensor's value, and return one for it."""
        self._host_waits(tensor, name)
        return self._assumed(tensor)

    def copied_to_host(self, tensor: Any, name: str, *, waits: bool) -> Any:
        """Return a tensor of the host with the shape of a fake one; `waits` says whether the host waits for it."""
        import torch  # noqa: PLC0415

        if waits:
            self._host_waits(tensor, name)
        if tensor.requires_grad and torch.is_grad_enabled():
            return tensor  # its copy would have a gradient
        with self.on_host():
            return torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)

    def _host_waits(self, tensor: Any, name: str) -> None:
        waits = self.recording and not self._on_host and self.places.phase != OPTIMIZER
        if waits and not self.memory.is_host(tensor):
            self._add(self._row(HOST_SYNC, name))

    def _assumed(self, tensor: Any) -> Any:
        """Return a value for a number that the host reads from the device."""
        line = line_of_caller() or "torch"
        if tensor.dtype.is_floating_point:
            value: float | bool = 0.0 if _called_by("grad_scaler.py") else 1.0
        elif str(tensor.dtype) == "torch.bool":
            value = False
        else:
            raise InputError(
                f"{line}: the step reads an integer from a tensor, which has no value in a dry run: what depends on it "
                "cannot be recorded; compute with the tensor, or take the number from the configuration"
            )
        if self.recording and self.places.phase != OPTIMIZER:
            self.assumptions[f"{line}: a number that the host reads from the device is taken to be {value}"] = None
        return value

    # -- collectives -----------------------------------------------------------------------------------------------

    def _collective(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        plain = func.namespace == "c10d"
        result = None if plain else func(*args, **kwargs)
        call = call_of(func, args, kwargs, result)
        for each in tensors_in(result):
            self.memory.number(each, ACTIVATION if self.places.phase == FORWARD else OTHER)
        if plain:
            result, work = answer(func, args, call.received, self.works)
        else:
            work = self.works.new([])
        self._launch(str(func), call, work)
        if not plain:
            for each in tensors_in(result):
                self._outputs[_storage_key(each)] = work
        if self.places.phase == BACKWARD and plain:
            self._futures.append(work)
        return result

    def _launch(self, name: str, call: Call, work: Any) -> None:
        if not self.recording:
            return
        number, known, row = len(self.calls), self.streams.current.known, self._row(COLLECTIVE, name)
        row.dtype, row.collective = call.dtype, number
        uses = [[TensorUse(each, size_of(each)) for each in side] for side in (call.sent, call.received)]
        order = self._add(row, Work(COLLECTIVE, 0, *uses))
        self.calls.append(
            CallRow(
                call=_without_tensors(call),
                phase=row.phase,
                module=row.module,
                source=row.source,
                launch_order=order,
                ready_order=known.compute_order,
                parameters=self.parameters_moved,
            )
        )
        work.known = Known(known.calls | 1 << number, known.orders, order)

    def _wait_for(self, work: Any) -> None:
        """Let the current stream wait for a call."""
        if work is None or work.known is None:
            return
        self.streams.wait(self.streams.current, work.known)

    def _stream_waits(self, stream: Stream, awaited: Known, before: Known) -> None:
        if not self.recording:
            return
        new = awaited.calls & ~before.calls
        if awaited.last_order != NEVER:
            with StreamContext(self.streams, stream):
                row = self._row(WAIT, "wait")
                row.awaited = awaited.last_order
                self._add(row)
        if stream is self.streams.compute:
            while new:
                number = (new & -new).bit_length() - 1
                self.calls[number].needed_order = len(self.rows)
                new &= new - 1

    def _run_chained(self, work: Any, run: Callable[[], Any]) -> tuple[Any, Any]:
        """Run what is chained to a call's future: torch gives it a stream of its own."""
        side = Stream(self.streams, CALLBACK_STREAM)
        after = self.works.new([])
        after.has_future = True
        with StreamContext(self.streams, side):
            self._wait_for(work)
            result = run()
        after.known = side.known
        self._futures.append(after)
        return result, after

    def _phase_ends(self, phase: str) -> None:
        """Wait for what DDP waits for at the end of backward: the futures of its buckets."""
        if phase == BACKWARD:
            self.on_backward_end()
            for work in self._futures:
                if work.has_future:
                    self._wait_for(work)
            self._futures.clear()

    @contextmanager
    def on_host(self) -> Iterator[None]:
        """While open, operations are those of the host, on its own tensors: a loader's."""
        before, self._on_host = self._on_host, True
        try:
            yield
        finally:
            self._on_host = before

    @contextmanager
    def integers(self) -> Iterator[None]:
        """While open, new tensors of integers are real ones: DDP reads them again."""
        self.real_integers += 1
        try:
            yield
        finally:
            self.real_integers -= 1

    @contextmanager
    def moving(self, parameters: int) -> Iterator[None]:
        """While open, collectives are those of an FSDP group with so many elements of parameters."""
        self.parameters_moved = parameters
        try:
            yield
        finally:
            self.parameters_moved = None


def _without_tensors(call: Call) -> Call:
    return msgspec.structs.replace(call, sent=[], received=[])


def _storage_key(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _called_by(file: str) -> bool:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not frame.f_code.co_filename.endswith(file):
        frame = frame.f_back
    return frame is not None
