"""Where every collective passes: a kernel of ours in front of the backends', which passes each call on as it came.

All collectives - DDP's own from C++, FSDP2's, plain `torch.distributed` calls, functional ones, DTensor's - pass
torch's dispatcher as `c10d::` operations. Functional ones and those under `inference_mode` begin below autograd; the
key `BackendSelect`, in front of all backends, is in every call.

The dispatcher's tables are read without a lock. Taking a kernel away while another thread is on its way into it (most
of that time is spent waiting for the interpreter) crashes that thread, so it stays where a thread besides the closing
one may call collectives; then it only passes on.
"""

import threading
from collections.abc import Callable
from typing import Any, Final

import msgspec

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


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A collective as the dispatcher knows it: its name, and where its arguments hold what."""

    op: str
    sent: int | None
    received: int | None
    group: int


See = Callable[[Operation, Callable[..., Any], Any, tuple[Any, ...]], Any]
"""Takes the operation, what passes it on, and that one's arguments (keys, then the call's own); gives its result."""
SeeWait = Callable[[Callable[..., Any], Any, Any], Any]
"""The same for the wait of a functional collective, with its tensor."""


class Doorway:
    """The kernels of this process, and who looks at what passes them."""

    def __init__(self) -> None:
        self._libraries: list[Any] = []
        self._see: See | None = None
        self._see_wait: SeeWait | None = None
        self._callers: set[int] = set()
        self._inside: set[int] = set()

    def open(self, see: See, see_wait: SeeWait) -> None:
        """Hand what passes to `see` and `see_wait`."""
        self._see, self._see_wait = see, see_wait
        if not self._libraries:
            self._register()

    def close(self) -> None:
        """Look no more; take the kernels away where nobody can be on the way into one."""
        self._see = self._see_wait = None
        if not self._in_use():
            for library in self._libraries:
                library._destroy()
            self._libraries.clear()

    def _in_use(self) -> bool:
        # Threads of the autograd engine and of backends call only while a step runs, and those are none of Python's.
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
            operation = Operation(op=op, sent=sent, received=received, group=group)
            library.impl(name, self._kernel(operation, packet.default, below), KEY, with_keyset=True)
        functional = torch.library.Library("_c10d_functional", "IMPL")
        self._libraries.append(functional)
        wait = torch.ops._c10d_functional.wait_tensor.default
        functional.impl("wait_tensor", self._wait_kernel(wait, below), KEY, with_keyset=True)

    def _kernel(self, operation: Operation, overload: Any, below: Any) -> Callable[..., Any]:
        # Redispatched rather than called again: that would match the schema anew, for 0.1 ms, and begin at the top.
        redispatch, callers, inside = overload.redispatch, self._callers, self._inside

        def passing(keys: Any, *args: Any) -> Any:
            thread = threading.get_ident()
            callers.add(thread)
            inside.add(thread)
            try:
                see = self._see
                if see is None:
                    return redispatch(keys & below, *args)
                return see(operation, redispatch, keys & below, args)
            finally:
                inside.discard(thread)

        return passing

    def _wait_kernel(self, overload: Any, below: Any) -> Callable[..., Any]:
        redispatch, callers, inside = overload.redispatch, self._callers, self._inside

        def passing(keys: Any, tensor: Any) -> Any:
            thread = threading.get_ident()
            callers.add(thread)
            inside.add(thread)
            try:
                see = self._see_wait
                if see is None:
                    return redispatch(keys & below, tensor)
                return see(redispatch, keys & below, tensor)
            finally:
                inside.discard(thread)

        return passing


DOORWAY: Final = Doorway()
"""The one of this process, as the dispatcher is."""
