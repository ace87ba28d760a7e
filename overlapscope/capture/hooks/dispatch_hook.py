"""Dispatcher kernels through which every collective passes: they call a handler, or pass the call on unchanged.

All collectives (DDP's own from C++, FSDP2's, plain `torch.distributed` calls, functional ones, DTensor's) pass torch's
dispatcher as `c10d::` operations. Functional ones and those under `inference_mode` start below autograd; the dispatch
key `BackendSelect`, in front of all backends, is in every call.

The dispatcher reads its tables without a lock. Removing a kernel while another thread is entering it (most of that time
is spent waiting for the interpreter) crashes that thread. So the kernels stay while any thread other than the closing
one may call collectives; then they only pass calls on.
"""

import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

from overlapscope.timeline.operations import SEND_OPS

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
KEY: Final = "BackendSelect"
PEERS: Final = ("dst", "src")
"""Names of that argument."""


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A collective of the dispatcher: its name, and the positions of its arguments (None where it has no such one)."""

    op: str
    sent: int | None
    received: int | None
    group: int
    peer: int | None = None
    """Position of the rank in the group that a message goes to or comes from."""


CallHandler = Callable[[Operation, Callable[..., Any], Any, tuple[Any, ...]], Any]
"""Takes the operation, the function that passes it on, dispatch keys and the call's arguments; returns its result."""
WaitHandler = Callable[[Callable[..., Any], Any, Any], Any]
"""The same for the wait of a functional collective: the function that passes it on, dispatch keys, the tensor."""


class DispatchHook:
    """The kernels of this process, and the handlers that they call."""

    def __init__(self) -> None:
        self._libraries: list[Any] = []
        self._see: CallHandler | None = None
        self._see_wait: WaitHandler | None = None
        self._callers: set[int] = set()
        self._inside: set[int] = set()

    def open(self, see: CallHandler, see_wait: WaitHandler) -> None:
        """Call `see` for each collective and `see_wait` for each wait; register the kernels if there are none yet."""
        self._see, self._see_wait = see, see_wait
        if not self._libraries:
            self._register()

    def close(self) -> None:
        """Stop calling the handlers; remove the kernels where no thread can be entering one."""
        self._see = self._see_wait = None
        if not self._in_use():
            for library in self._libraries:
                library._destroy()
            self._libraries.clear()

    def _in_use(self) -> bool:
        # Threads of the autograd engine and of backends are not Python's own, and call only while a step runs.
        others = {
            thread.ident for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)
        } - {threading.get_ident()}
        return bool(self._inside) or bool(self._callers & others)

    def _register(self) -> None:
        import torch  # noqa: PLC0415 - capture is the one room that uses torch

        below = torch._C._dispatch_keyset_full_after(getattr(torch._C.DispatchKey, KEY))
        library = torch.library.Library("c10d", "IMPL")
        self._libraries.append(library)
        for name, (op, sent, received) in OPERATIONS.items():
            packet = getattr(torch.ops.c10d, name, None)
            if packet is None:  # not in this version of torch
                continue
            arguments = packet.default._schema.arguments
            group = next(at for at, each in enumerate(arguments) if "ProcessGroup" in str(each.type))
            peer = next((at for at, each in enumerate(arguments) if op in SEND_OPS and each.name in PEERS), None)
            operation = Operation(op=op, sent=sent, received=received, group=group, peer=peer)
            library.impl(name, self._kernel(operation, packet.default, below), KEY, with_keyset=True)
        functional = torch.library.Library("_c10d_functional", "IMPL")
        self._libraries.append(functional)
        wait = torch.ops._c10d_functional.wait_tensor.default
        functional.impl("wait_tensor", self._kernel(None, wait, below), KEY, with_keyset=True)

    def _kernel(self, operation: Operation | None, overload: Any, below: Any) -> Callable[..., Any]:
        """Return the kernel of an operation; without one, that of the wait of functional collectives."""
        # Redispatch: calling the operation again would match the schema anew (0.1 ms) and start at the first key.
        redispatch, callers, inside = overload.redispatch, self._callers, self._inside

        def passing(keys: Any, *args: Any) -> Any:
            thread = threading.get_ident()
            callers.add(thread)
            inside.add(thread)
            try:
                see, see_wait = self._see, self._see_wait
                if see is None or see_wait is None:
                    return redispatch(keys & below, *args)
                if operation is None:
                    return see_wait(redispatch, keys & below, *args)
                return see(operation, redispatch, keys & below, args)
            finally:
                inside.discard(thread)

        return passing


DISPATCH_HOOK: Final = DispatchHook()
"""The only instance: a process has one dispatcher."""
