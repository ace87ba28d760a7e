"""Kineto's names of categories and events since torch 1.8: only data and patterns."""

import re
from typing import Final

from overlapscope.ingest.build.trace_columns import KERNEL, MEMCPY, MEMSET
from overlapscope.timeline.columns import ANNOTATION, OPERATION
from overlapscope.timeline.message_groups import PLACES

NUM_SORTS: Final = 8
DEVICE, LAUNCH, HOST, DEVICE_NOTE, WINDOW, COST, SYNC, FRAME = range(NUM_SORTS)
"""Kinds of events: device work, an API call that enqueues it, a host range, a range projected on the device, the
profiler's own range, the profiler's own work on a thread, a synchronisation, a function of the host's stack."""

EVENT_SORTS: Final = {
    "kernel": (DEVICE, KERNEL),
    "Kernel": (DEVICE, KERNEL),
    "gpu_memcpy": (DEVICE, MEMCPY),
    "Memcpy": (DEVICE, MEMCPY),
    "gpu_memset": (DEVICE, MEMSET),
    "Memset": (DEVICE, MEMSET),
    "cuda_runtime": (LAUNCH, 0),
    "cuda_driver": (LAUNCH, 0),
    "Runtime": (LAUNCH, 0),
    "xpu_runtime": (LAUNCH, 0),
    "xpu_driver": (LAUNCH, 0),
    "mtia_runtime": (LAUNCH, 0),
    "privateuse1_runtime": (LAUNCH, 0),
    "privateuse1_driver": (LAUNCH, 0),
    "cpu_op": (HOST, OPERATION),
    "Operator": (HOST, OPERATION),
    "user_annotation": (HOST, ANNOTATION),
    "gpu_user_annotation": (DEVICE_NOTE, 0),
    "Trace": (WINDOW, 0),
    "overhead": (COST, 0),
    "cuda_sync": (SYNC, 0),
    "python_function": (FRAME, ANNOTATION),
}
"""Category to (sort, detail), for complete events (phase X)."""
MODULE_CALL: Final = "nn.Module: "
"""A host stack holds a range for each call of a module: these are read as HOST, as they say what work belongs to."""
ADDRESS: Final = re.compile(r" at 0x[0-9A-Fa-f]+")
"""Of an object, in the name of a built-in function: another one in each process."""
UNREAD_CATEGORIES: Final = frozenset({"cuda_event", "xpu_sync", "cpu_instant_event"})
"""Known categories without information that is used: recorded events, synchronisation of other devices."""

SYNCHRONISATION: Final = re.compile(r"^(?:Stream|Event|Context|Device)\s*(?:Wait|Sync)", re.IGNORECASE)
"""Synchronisation records that some writers file under kernels although nothing computes there."""
LAUNCHES_KERNEL: Final = re.compile(r"Launch(?:Kernel|CooperativeKernel|Graph)|GraphLaunch|AppendLaunch", re.IGNORECASE)
"""API calls that enqueue a kernel; cudaLaunchHostFunc does not."""
BETWEEN_DEVICES: Final = re.compile(r"\b(?:DtoD|PtoP)\b|Device -> Device|Peer")
"""Memcpys that can be part of a collective done by copy engines."""
STEP_MARK: Final = re.compile(r"^(?P<by>ProfilerStep|overlapscope\.step)#(?P<number>[0-9]{1,18})$")
COMM_MARK: Final = re.compile(r"^overlapscope\.comm:(?P<name>.*)$", re.DOTALL)
"""Our mark around communication that torch does not record."""
OLD_ANNOTATION: Final = re.compile(
    r"^(?:ProfilerStep#|overlapscope\.(?:step#|comm:)|Optimizer\.|enumerate\(DataLoader|DistributedDataParallel\.)"
    r"|^(?:nn\.Module:|\[pl\]|## )"
    rf"|{PLACES.pattern}"
)
"""Ranges that torch 1.8 files under `Operator` although they are annotations."""
WINDOW_MARKS: Final = ("Iteration Start", "Record Window End")
