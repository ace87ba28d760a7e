"""Read a collective from the operation that torch's dispatcher was asked for, and answer it without a network."""

from collections.abc import Callable
from typing import Any, Final

import msgspec

from overlapscope.capture.hooks.dispatch_hook import OPERATIONS
from overlapscope.dry_run.work import tensors_in
from overlapscope.timeline.operations import POINT_TO_POINT, full_elements

FUNCTIONAL: Final = {
    "all_reduce": "all_reduce",
    "all_reduce_": "all_reduce",
    "all_reduce_coalesced": "all_reduce",
    "all_reduce_coalesced_": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "all_gather_into_tensor_out": "all_gather",
    "all_gather_into_tensor_coalesced": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "reduce_scatter_tensor_out": "reduce_scatter",
    "reduce_scatter_tensor_coalesced": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "shard_dim_alltoall": "all_to_all",
    "broadcast": "broadcast",
    "broadcast_": "broadcast",
    "isend": "send",
    "irecv": "recv",
}
"""Functional collectives: name in `_c10d_functional` or `_dtensor`, and operation."""
FUNCTIONAL_NAMESPACES: Final = ("_c10d_functional", "_dtensor")


class Call(msgspec.Struct, kw_only=True):
    """One call of a collective."""

    op: str
    group: str
    group_size: int
    dtype: str | None
    elements: int | None
    sent: list[Any]
    received: list[Any]
    received_elements: int | None = None
    peer: int | None = None


def is_collective(func: Any) -> bool:
    """Return whether an operation of the dispatcher is a collective."""
    name: str = func.overloadpacket.__name__
    if func.namespace == "c10d":
        return name in OPERATIONS
    return func.namespace in FUNCTIONAL_NAMESPACES and name in FUNCTIONAL


def is_wait(func: Any) -> bool:
    """Return whether an operation waits for a functional collective."""
    return bool(func.namespace == "_c10d_functional" and func.overloadpacket.__name__ == "wait_tensor")


def call_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Call:
    """Return the call that an operation is; `result` is what it returned, for functional ones."""
    if func.namespace == "c10d":
        return _plain(func, args)
    return _functional(func, args, kwargs, result)


def _plain(func: Any, args: tuple[Any, ...]) -> Call:
    from torch.distributed import ProcessGroup, get_global_rank  # noqa: PLC0415 - loaded only where a step runs

    op, sent, received = OPERATIONS[func.overloadpacket.__name__]
    at = next(at for at, each in enumerate(func._schema.arguments) if "ProcessGroup" in str(each.type))
    group = ProcessGroup.unbox(args[at])
    own = tensors_in(args[sent]) if sent is not None else []
    others = tensors_in(args[received]) if received is not None else []
    peer = next((each for each in args[at + 1 :] if isinstance(each, int)), None) if op in POINT_TO_POINT else None
    return _call(op, group, own, others, None if peer is None else int(get_global_rank(group, peer)))


def _functional(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> Call:
    from torch.distributed import ProcessGroup, get_global_rank  # noqa: PLC0415
    from torch.distributed.distributed_c10d import _resolve_process_group  # noqa: PLC0415

    op = FUNCTIONAL[func.overloadpacket.__name__]
    named = [each.name for each in func._schema.arguments]
    given = {**dict(zip(named, args, strict=False)), **kwargs}
    group = given["group_name"]
    if not isinstance(group, ProcessGroup):
        group = _resolve_process_group(group) if isinstance(group, str) else ProcessGroup.unbox(group)
    peer = given.get("dst", given.get("src")) if op in POINT_TO_POINT else None
    moved = tensors_in(args[0])
    return _call(
        op,
        group,
        [] if op == "recv" else moved,
        moved if op == "recv" else tensors_in(result),
        None if peer is None else int(get_global_rank(group, int(peer))),
    )


def _call(op: str, group: Any, sent: list[Any], received: list[Any], peer: int | None) -> Call:
    size = int(group.size())
    tensors = sent or received
    moved_in = sum(int(each.numel()) for each in sent) if sent or op != "recv" else None
    moved_out = sum(int(each.numel()) for each in received) if received else None
    elements = full_elements(op, moved_in, moved_out, size) if tensors and op != "barrier" else None
    return Call(
        op=op,
        group=group.group_name,
        group_size=size,
        dtype=str(tensors[0].dtype).removeprefix("torch.") if elements is not None else None,
        elements=elements,
        sent=sent,
        received=received,
        received_elements=moved_out if op == "all_to_all" else None,
        peer=peer,
    )


def answer(func: Any, args: tuple[Any, ...], outputs: list[Any], works: "Works") -> tuple[Any, Any]:
    """Return what a `c10d` operation returns, its tensors unchanged, and the Work that it made."""
    work = works.new(outputs)
    boxed = work.boxed()
    returns = func._schema.returns
    return (boxed if len(returns) == 1 else (args[0], boxed)), work


class Works:
    """Makes the handles of collectives; `on_wait(work)` is called where the program waits for one, and
    `chained(work, run)` runs what is chained to its future."""

    def __init__(self, on_wait: Callable[[Any], None], chained: Callable[[Any, Callable[[], Any]], Any]) -> None:
        import torch  # noqa: PLC0415
        from torch import distributed  # noqa: PLC0415

        class FutureOfCall(torch.futures.Future):  # type: ignore[misc] # torch is Any at our rim
            """A finished future; who waits for it, or is chained to it, waits for the call."""

            work: Any = None

            def wait(self) -> Any:
                on_wait(self.work)
                return super().wait()

            def value(self) -> Any:
                on_wait(self.work)
                return super().value()

            def then(self, callback: Any) -> Any:
                after = FutureOfCall()
                result, after.work = chained(self.work, lambda: callback(self))
                after.set_result(result)
                return after

        class WorkOfCall(distributed.Work):  # type: ignore[misc] # as above
            """The handle of one call."""

            def __init__(self, outputs: list[Any]) -> None:
                super().__init__()
                self.outputs = outputs
                self.has_future = False
                self.known: Any = None

            def wait(self, timeout: Any = None) -> bool:
                on_wait(self)
                self.outputs = []  # a handle that outlives its tensors must not keep their memory
                return True

            def block_current_stream(self) -> None:
                on_wait(self)

            def is_completed(self) -> bool:
                return True

            def is_success(self) -> bool:
                return True

            def get_future(self) -> Any:
                future = FutureOfCall()
                future.work = self
                self.has_future = True
                future.set_result(self.outputs)
                self.outputs = []
                return future

        self._new = WorkOfCall
        self._kept: list[Any] = []

    def new(self, outputs: list[Any]) -> Any:
        """Return a new handle, which is kept: torch's own side of it calls back into Python."""
        work = self._new(outputs)
        self._kept.append(work)
        return work

    def forget(self) -> None:
        """Let go of the handles of a step that has ended."""
        self._kept.clear()
