"""The checks, with their acceptance figures."""

from typing import Final

from overlapscope.gpu_check.document import Check, Rule

_ROOM: Final = "overlapscope.gpu_check"
_KERNELS: Final = ("kernels",)
_NCCL: Final = ("kernels", "nccl")


def _most(figure: str, means: str, at_most: float, unit: str = "") -> Rule:
    return Rule(figure=figure, means=means, at_most=at_most, unit=unit)


def _least(figure: str, means: str, at_least: float, unit: str = "") -> Rule:
    return Rule(figure=figure, means=means, at_least=at_least, unit=unit)


def _is(figure: str, means: str, value: float) -> Rule:
    return Rule(figure=figure, means=means, at_least=value, at_most=value)


_NO_FAILURE: Final = _is("failures", "failures of the recording", 0)
_TRAINED: Final = tuple(
    rule
    for mode in ("events", "trace")
    for rule in (
        _is(f"{mode}_calls_as_buckets_percent", f"steps whose calls are DDP's buckets, `{mode}`, in percent", 100),
        _is(f"{mode}_parameters_identical", f"parameters are bit-identical to those without a recording, `{mode}`", 1),
        _is(f"{mode}_failures", f"failures of the recording, `{mode}`", 0),
    )
)

INVENTORY: Final = Check(
    name="C0",
    title="inventory",
    shows="Versions, what the machine offers to the other checks, and that a kernel of ours runs for 5 ms.",
    guards="Checks that would measure nothing.",
    measure=f"{_ROOM}.inventory:inventory",
    limit_seconds=90,
    rules=(
        _least("devices", "devices", 1),
        Rule(figure="kernel_ms", means="a kernel of 5 ms", at_least=4.95, at_most=5.25, unit="ms"),
        _least("doctor_checks", "`overlapscope doctor` ran", 1),
    ),
)

KEPT: Final = Check(
    name="C15",
    title="kept recordings",
    shows="Raw marks, a trace and NCCL's log are kept as small files, with -o.",
    guards="A report from which nothing can be simulated again.",
    measure="",
    limit_seconds=0,
    rules=(
        _least("files", "files", 1),
        _most("megabytes", "all together", 3, "MB"),
        _is("left_out", "files left out because they are too large", 0),
    ),
)

CHECKS: Final = (
    Check(
        name="C1", title="tests that need a device", shows="The tests marked `gpu`.",
        guards="Anything of recording that a test sees only on a device.",
        measure=f"{_ROOM}.inventory:tests", limit_seconds=160, needs=("tests",),
        rules=(_is("tests_failed", "tests that failed", 0), _least("tests_passed", "tests that passed", 1)),
    ),
    Check(
        name="C2a", title="events",
        shows="The resolution of events, and the time from an anchor back to an event that ran before it.",
        guards="Times of a side stream that ran ahead of the compute stream.",
        measure=f"{_ROOM}.clocks:events", limit_seconds=40, needs=_KERNELS,
        rules=(
            _most("resolution_us", "resolution of an event", 1, "µs"),
            _most("side_from_anchor_ms", "time back to an event that ran 20 ms earlier", -15, "ms"),
            _most("side_error_us", "three times between three events do not add up by", 2, "µs"),
        ),
    ),
    Check(
        name="C2b", title="clocks",
        shows="Marks, converted to the host's clock without waiting, against times at which the host saw results.",
        guards="A device's clock that drifts against the host's; spans before their launch.",
        measure=f"{_ROOM}.clocks:drift", limit_seconds=80, needs=_KERNELS,
        rules=(
            _most("idle_error_us", "error of 95 % of the marks, idle device", 20, "µs"),
            _most("queued_error_us", "error of 95 % of the marks, full queue", 50, "µs"),
            _is("before_launch", "marks before they were recorded", 0),
        ),
    ),
    Check(
        name="C3", title="cost of marks",
        shows="Host time of taking and reading a mark; memory of 20,000 events; kernels of 50 µs with two marks each.",
        guards="Resolving many marks at once in some steps; events that fill memory or hold kernels apart.",
        measure=f"{_ROOM}.clocks:cost", limit_seconds=60, needs=_KERNELS,
        rules=(
            _most("mark_median_us", "taking a mark, median", 6, "µs"),
            _most("mark_p99_us", "taking a mark, 99 %", 20, "µs"),
            _most("read_us", "reading a mark", 6, "µs"),
            _most("live_host_mb", "memory of the host for 20,000 events", 50, "MB"),
            _most("live_device_mb", "memory of the device for 20,000 events", 50, "MB"),
            _most("short_kernels_added_percent", "device time of short kernels grows by", 2, "%"),
        ),
    ),
    Check(
        name="C4", title="every kind of call",
        shows="Blocking, asynchronous, coalesced, functional calls have ends; streams, waits, memory as without us.",
        guards="A callback on a collective's future, which takes a stream of the pool, makes it wait and keeps memory.",
        measure=f"{_ROOM}.schedules:calls", limit_seconds=60, needs=_NCCL,
        rules=(
            _least("calls_recorded", "calls recorded", 100),
            _is("calls_without_end", "calls without an end", 0),
            _is("ended_before_ready", "calls that end before their data are ready", 0),
            _is("streams_taken_more", "streams taken from torch's pool, more than without us", 0),
            _least("waits_without", "waits of streams that the profiler saw without us", 1),
            _is("waits_more", "waits of streams, more than without us", 0),
            _most("peak_memory_more_mib", "peak of memory, more than without us", 256, "MiB"),
            _NO_FAILURE,
        ),
    ),
    Check(
        name="C5", title="hardware queues",
        shows="How much later computation ends beside transfers of 60 ms, with us and without, by connections.",
        guards="Waits of ours at the head of a hardware queue, which hold back the job's kernels.",
        measure=f"{_ROOM}.schedules:queues", limit_seconds=150, needs=_NCCL,
        rules=tuple(
            Rule(figure=f"added_delay_ms_{name}", means=f"computation is later than without us, connections {name}",
                 at_least=-0.5, at_most=0.5, unit="ms")
            for name in ("1", "8", "unset", "32")
        ),
    ),
    Check(
        name="C6a", title="two ranks by NCCL's permission",
        shows="DDP with two ranks on one device by NCCL_MULTI_RANK_GPU_ENABLE=1: calls, sizes, parameters.",
        guards="Calls that are lost or counted twice; gradients that differ with a recording.",
        measure=f"{_ROOM}.two_ranks:by_permission", limit_seconds=120, needs=("nccl 2.30",), rules=_TRAINED,
    ),
    Check(
        name="C6b", title="two ranks over sockets",
        shows="DDP with two ranks on one device by NCCL_HOSTID: calls, sizes, parameters.",
        guards="The same, with each NCCL that torch may have.",
        measure=f"{_ROOM}.two_ranks:over_sockets", limit_seconds=120, needs=("nccl",), rules=_TRAINED,
    ),
    Check(
        name="C6c", title="gloo with tensors of the device",
        shows="DDP over gloo with tensors of the device, and communication against the host's own clock.",
        guards="Ends of gloo's calls that are marked behind the device's queue.",
        measure=f"{_ROOM}.two_ranks:over_gloo", limit_seconds=150, needs=("gloo",),
        rules=(*_TRAINED, _most("comm_difference_percent", "communication differs from the host's time", 5, "%")),
    ),
    Check(
        name="C7a", title="constructed overlap, events",
        shows="Transfers of 5 ms beside no, half and more computation, in `events` mode: exposed and overlapped time.",
        guards="Wrong figures, whatever their cause.",
        measure=f"{_ROOM}.schedules:events_truth", limit_seconds=50, needs=_NCCL,
        rules=(
            _least("transfer_ms", "a transfer alone", 1, "ms"),
            _least("steps_compared", "whole steps", 20),
            _most("exposed_error_us", "error of exposed time", 50, "µs"),
            _most("overlapped_error_us", "error of overlapped time", 50, "µs"),
            _NO_FAILURE,
        ),
    ),
    Check(
        name="C7b", title="constructed overlap, trace",
        shows="Kernels named as NCCL's that store when they ran, in `trace` mode: exposed and overlapped time.",
        guards="Wrong figures, whatever their cause.",
        measure=f"{_ROOM}.schedules:trace_truth", limit_seconds=50, needs=_KERNELS,
        rules=(
            _least("steps_compared", "whole steps", 20),
            _most("exposed_error_us", "error of exposed time", 50, "µs"),
            _most("overlapped_error_us", "error of overlapped time", 50, "µs"),
            _NO_FAILURE,
        ),
    ),
    Check(
        name="C8", title="events against the profiler",
        shows="The same steps of DDP with two ranks, by events and by the profiler.",
        guards="Ends of collectives that are not those of their kernels.",
        measure=f"{_ROOM}.two_ranks:against_profiler", limit_seconds=120, needs=("nccl",),
        rules=(
            _least("steps_compared", "steps of both ranks", 20),
            _most("window_difference_median_percent", "steps differ, median", 1, "%"),
            _most("window_difference_max_percent", "steps differ, most", 3, "%"),
            _most("exposed_difference_median_percent", "exposed time differs, median, of the step", 1, "%"),
            _most("exposed_difference_max_percent", "exposed time differs, most, of the step", 3, "%"),
            _least("calls_compared", "calls with their kernels", 20),
            _most("beyond_kernel_median_us", "a call exceeds its kernel, median", 20, "µs"),
            _least("beyond_kernel_least_us", "a call exceeds its kernel, least", -2, "µs"),
        ),
    ),
    Check(
        name="C9", title="cost of recording",
        shows="Steps of 50 ms with 60 calls, bare and recorded by turns, on the device's clock; our own figure of it.",
        guards="A cost that is too high, that comes in some steps only, or that the run states wrongly.",
        measure=f"{_ROOM}.whole_jobs:overhead", limit_seconds=120, needs=_NCCL,
        rules=(
            _most("added_upper_percent", "mean step grows by, upper end of the 95 % interval", 1, "%"),
            _most("longest_to_median", "longest recorded step, in medians", 3),
            _most("host_us_a_call", "host time a call", 60, "µs"),
            _most("own_figure_off_percent", "the run's own figure differs, of the step", 0.3, "%"),
        ),
    ),
    Check(
        name="C10", title="a device behind the host",
        shows="A recording that ends with four seconds of work in the queue, with time to wait and without.",
        guards="Steps whose marks were never read, shown as whole and without communication.",
        measure=f"{_ROOM}.whole_jobs:lagging_host", limit_seconds=60, needs=_NCCL,
        rules=(
            _is("patient_steps", "recorded steps of 40, waiting", 40),
            _is("patient_whole", "whole steps, waiting", 40),
            _is("patient_whole_without_communication", "of them without communication", 0),
            _is("hurried_steps", "recorded steps of 40, not waiting", 40),
            _most("hurried_whole", "whole steps, not waiting", 39),
            _is("hurried_whole_without_communication", "of them without communication", 0),
            _is("patient_failures", "failures of the recording, waiting", 0),
            _is("hurried_failures", "failures of the recording, not waiting", 0),
        ),
    ),
    Check(
        name="C11a", title="replayed CUDA graphs",
        shows="Recorded steps that replay a graph with collectives, and one without.",
        guards="Steps cut for graphs that only compute; whole steps that lack what a graph sends.",
        measure=f"{_ROOM}.graphs:replays", limit_seconds=45, needs=_NCCL,
        rules=(
            _is("whole_steps_without_collectives", "whole steps of 6 that replay a graph that computes", 6),
            _is("whole_steps_with_collectives", "whole steps of 6 that replay a graph with collectives", 0),
            _is("silent_failures", "failures of the recording, computing graph", 0),
            _is("communicating_failures", "failures of the recording, communicating graph", 0),
        ),
    ),
    Check(
        name="C11b", title="captures of CUDA graphs",
        shows="Captures in recorded steps while another thread communicates.",
        guards="Captures that a query or a mark of ours breaks.",
        measure=f"{_ROOM}.graphs:captures", limit_seconds=45, needs=_NCCL,
        rules=(
            _least("captures_survived_bare", "captures of 20 that survive without us", 1),
            _most("captures_lost_by_recording", "fewer captures survive with us", 0),
            _NO_FAILURE,
        ),
    ),
    Check(
        name="C12a", title="the right device",
        shows="NVML's device is torch's; power and memory are nvidia-smi's; a host tensor's call has host times.",
        guards="Telemetry of another device; marks of the device around what the host transfers.",
        measure=f"{_ROOM}.inventory:identity", limit_seconds=60, needs=("kernels", "nvml", "gloo"),
        rules=(
            _is("same_device", "NVML's device is torch's", 1),
            _is("same_device_by_uuid", "also where CUDA_VISIBLE_DEVICES is a UUID", 1),
            _most("power_difference_percent", "power differs from nvidia-smi", 5, "%"),
            _most("memory_difference_percent", "memory differs from nvidia-smi", 5, "%"),
            _least("host_calls_recorded", "steps with a call of a host tensor", 4),
            Rule(
                figure="host_call_longer_ms", means="a call of a host tensor is recorded longer",
                at_least=-1, at_most=1, unit="ms",
            ),
        ),
    ),
    Check(
        name="C12b", title="a device that is not current",
        shows="A model on the second device while the first is current.",
        guards="Recordings of the wrong device, and a context on the first one from every rank.",
        measure=f"{_ROOM}.inventory:other_device", limit_seconds=75, needs=("two devices", "nccl", "nvml"),
        rules=(
            _is("whole_steps", "whole steps of 6", 6),
            _is("steps_without_communication", "of them without communication", 0),
            _most("first_device_used_mib", "memory taken on the first device", 64, "MiB"),
        ),
    ),
    Check(
        name="C13", title="the user's own NVTX ranges",
        shows="Ranges of the user's own that cross ours, by Nsight Systems against the host's clock.",
        guards="Ranges of ours that end the user's, or are ended by them.",
        measure=f"{_ROOM}.endings:user_ranges", limit_seconds=100, needs=("kernels", "nsys"),
        rules=(
            _is("user_ranges_missing", "ranges of the user's that are missing", 0),
            _most("user_ranges_error_ms", "error of their durations", 1, "ms"),
            _least("own_ranges", "ranges of ours", 20),
            _is("ranges_left_open", "ranges without an end", 0),
        ),
    ),
    Check(
        name="C14", title="faults",
        shows="An illegal access in the ninth step, and SIGTERM while a kernel does not end.",
        guards="Runs that are lost with the device's context.",
        measure=f"{_ROOM}.endings:faults", limit_seconds=170, needs=_KERNELS,
        rules=(
            _is("job_failed_by_itself", "the job fails as it would without us", 1),
            _is("steps_kept", "whole steps of 8 before the illegal access", 8),
            _most("seconds_until_written", "the run is written after SIGTERM in", 5, "s"),
            _is("steps_kept_of_stuck", "whole steps of 8 before the stuck kernel", 8),
        ),
    ),
)  # fmt: skip
"""In the order in which they run, between C0 and C15."""
