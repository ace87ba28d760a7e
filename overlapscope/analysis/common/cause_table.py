"""The tables of causes of exposed communication and of idle time. Reports, dashboard, JSON and docs read them.

The rules that assign a cause are in `exposure/exposed_causes.py` and, where the dependency graph names it, in
`graph/exposed.py` and `graph/idle.py`. A new cause is a row here and a rule there.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec


class Cause(msgspec.Struct, kw_only=True, frozen=True):
    """The texts and colours of one cause."""

    label: str
    on_cpu: str = ""
    """The label where no device computes; empty where it is the same."""
    description: str
    """One sentence for the docs, in Markdown."""
    waits_for_late_rank: bool = False
    """Wait time that disappears when no rank is late; part of the metric `exposed_wait_ns`."""
    ends_late: bool = False
    """Wait time as well (the duration of a call less its transfer), though no rank was late then; in that metric."""
    waits_for_another_rank: bool = False
    """Any wait time, also for a pipeline stage, which the schedule causes and no straggler, and that of late ends."""
    colour: Literal["waiting", "exposed", "launch", "copy", "compute", "idle"]
    """Name of a colour in the dashboard's palette."""
    pattern: Literal["", "/", "\\", "|", ".", "-", "x"] = ""
    """Pattern drawn over the colour, as plotly names it; causes of one colour have different patterns."""


CAUSES: Final[dict[str, Cause]] = {
    "start_of_recording": Cause(
        label="start of the recording",
        description="waiting for a rank that began to record later, by as much as it began later, or whose device "
        "was still busy with earlier work: what it did before is not recorded; and all exposed time until a device has "
        "worked off what was launched before its recording: what it computed beside the calls is not recorded",
        waits_for_another_rank=True,
        colour="idle",
        pattern="|",
    ),
    "peer_compute": Cause(
        label="wait: the late rank computed longer",
        description="waiting for the recorded rank that arrived last, as far as it had computed longer since the two "
        "last met",
        waits_for_late_rank=True,
        waits_for_another_rank=True,
        colour="waiting",
    ),
    "peer_core": Cause(
        label="wait: the late rank waited for a core",
        description="likewise, as far as it had waited for a core for longer, which is then neither computing nor "
        "idling: where the system's account of both ranks was recorded, or their traces show that they take turns",
        waits_for_late_rank=True,
        waits_for_another_rank=True,
        colour="waiting",
        pattern="-",
    ),
    "peer_comm": Cause(
        label="wait: the late rank communicated longer",
        description="likewise, as far as it had communicated longer, without computing or copying, except messages "
        "between pipeline stages",
        waits_for_late_rank=True,
        waits_for_another_rank=True,
        colour="waiting",
        pattern="/",
    ),
    "peer_copy": Cause(
        label="wait: the late rank copied longer",
        description="likewise, as far as its device had copied longer, without computing",
        waits_for_late_rank=True,
        waits_for_another_rank=True,
        colour="waiting",
        pattern="\\",
    ),
    "peer_host": Cause(
        label="wait: the late rank idled longer (host)",
        description="likewise, as far as it had done none of these for longer, less what the other one communicated or "
        "copied longer; without a device also as far as it slept inside operations, by the system's account",
        waits_for_late_rank=True,
        waits_for_another_rank=True,
        colour="waiting",
        pattern="|",
    ),
    "peer_unrecorded": Cause(
        label="wait: for a rank that was not recorded",
        description="where not all members of a group were recorded: before the call moved data, for as long as tasks "
        "of its own waited for other members (Notify Wait of HCCL), on the recorded rank that came last, too; in the "
        "first call of a group, as a recording begins (before its first step has ended, or the rank has met others), "
        "that is `start_of_recording`",
        waits_for_another_rank=True,
        colour="waiting",
        pattern="x",
    ),
    "late_end": Cause(
        label="wait: the call ended later than elsewhere",
        description="where no device computes and ranks share a clock: what of the wait lies after the last member "
        "began, as the call ended later than on the rank where it was shortest; nobody was late then",
        ends_late=True,
        waits_for_another_rank=True,
        colour="exposed",
        pattern="-",
    ),
    "pipeline": Cause(
        label="messages between pipeline stages, with their waits",
        description="a send or receive between pipeline stages, with its wait, except `late_launch` and `queued`; and "
        "the wait for the last member of another call as far as the late rank had spent longer in such messages, as "
        "while a pipeline drains",
        waits_for_another_rank=True,
        colour="waiting",
        pattern=".",
    ),
    "slow_transfer": Cause(
        label="transfer slower than its baseline",
        description="then the part of the transfer beyond its baseline; where no device queues calls, without what "
        "lies beside those of its group that began earlier",
        colour="exposed",
    ),
    "late_launch": Cause(
        label="late launch by the host",
        on_cpu="called late by the host",
        description="then the time from when its data was ready, on all recorded members, until the host launched it, "
        "but on the compute stream",
        colour="launch",
    ),
    "queued": Cause(
        label="queued behind another collective",
        description="then for how long, from when it was launched and its data ready, on all recorded members, "
        "communication of another operation or group ran on its stream, since the last of its own",
        colour="launch",
        pattern="/",
    ),
    "ahead": Cause(
        label="ahead of the call that compute waited for",
        description="then, where the next compute waited for a later call, of another operation or group, which was "
        "launched and had its data, on all recorded members, while this one ran before it on its stream: that delay is "
        "not `queued` as well",
        colour="exposed",
        pattern="\\",
    ),
    "dependency": Cause(
        label="the next compute waited for it",
        description="then, where the next compute waited for it, or follows it on its stream; without the graph, the "
        "rest where other compute than the optimizer's follows in the same step, or where its step has nothing left "
        "and a later one's compute begins at its end",
        colour="exposed",
        pattern="/",
    ),
    "host_waited": Cause(
        label="the host waited for it, then launched compute",
        description="where the next compute waited for its launch alone, before which its host had waited for the call "
        "in a synchronisation: from the call's launch until that returned nothing made a stream wait for an event, but "
        "communication for its own",
        colour="launch",
        pattern=".",
    ),
    "host_not_ready": Cause(
        label="the next compute was not launched yet",
        on_cpu="the host had not come to the next compute",
        description="where the next compute waited for the host: without the call it would not have begun earlier",
        colour="launch",
        pattern="|",
    ),
    "behind_copy": Cause(
        label="the next compute waited for a copy",
        description="where the next compute waited for a copy: without the call it would not have begun earlier",
        colour="copy",
        pattern="/",
    ),
    "behind_compute": Cause(
        label="gaps between kernels, communication beside them",
        on_cpu="the next compute waited for other compute",
        description="where the next compute followed another kernel, also before the last member came: without the "
        "call it would not have begun earlier",
        colour="compute",
        pattern="/",
    ),
    "tail": Cause(
        label="only the optimizer follows, or recording ends",
        description="where the optimizer alone follows in its step (what comes behind the optimizer, such as an "
        "evaluation, waits for that), or no compute that is seen to wait for it, as where the recording ends",
        colour="exposed",
        pattern="|",
    ),
    "unknown": Cause(
        label="unknown",
        description="where no rule names it; without the graph, the rest of calls that could not be matched, or that "
        "belong to no step with a recorded optimizer",
        colour="exposed",
        pattern=".",
    ),
}
"""Of exposed communication; by name as in JSON, in the order in which they are listed."""
WAITED_FOR_CORE: Final = "waited_for_core"
"""The cause of idle time that the system's account names, and no graph."""
IDLE_CAUSES: Final[dict[str, Cause]] = {
    "launch_bound": Cause(
        label="late launch by the host",
        on_cpu="the host had not come to it",
        description="the host launched what comes next late, without waiting for anything itself",
        colour="launch",
    ),
    "blocked_host": Cause(
        label="host blocked",
        description="the host sat in a synchronisation, a blocking copy, an allocation or a poll, or loaded data, or "
        "collected garbage",
        colour="waiting",
    ),
    WAITED_FOR_CORE: Cause(
        label="the host waited for a core",
        description="where no device computes: for how long, outside of such calls, its thread waited for a core, by "
        "the system's account, spread evenly between two readings",
        colour="waiting",
        pattern="-",
    ),
    "drained": Cause(
        label="device drained by a wait of the host",
        description="the host launched again after such a call had emptied the device, until it led by as much again "
        "or waited again, for at most as long as the call had waited, but for pauses of 3 ms or more that take longer: "
        "what removing it saves. With it counts the latency of the first launch after the wait, up to 20 µs, unless a "
        "pause that outlasts the wait comes before it; and, up to 50 µs, the host's way to a copy to the host that it "
        "waits for at once, with that copy's launch latency: the copy is made for the wait",
        colour="waiting",
        pattern="/",
    ),
    "launch_latency": Cause(
        label="launch latency",
        on_cpu="until a thread of the host began",
        description="from the launch until the device began, but for what is `drained`",
        colour="launch",
        pattern="/",
    ),
    "device_wait": Cause(
        label="device waits for its own work",
        on_cpu="work waits for other work",
        description="an event, or the stream itself: dependencies between spans of the device",
        colour="idle",
        pattern="/",
    ),
    "graph_gap": Cause(
        label="gap in a replayed graph",
        description="between the kernels of one CUDA graph",
        colour="idle",
        pattern="|",
    ),
    "start_of_recording": Cause(
        label="start of the recording",
        description="what came before is not recorded",
        colour="idle",
    ),
    "unknown": Cause(
        label="unknown",
        description="no rule names it, or the graph may not say",
        colour="idle",
        pattern=".",
    ),
}
"""Of idle time, likewise."""
NoCauses = Literal[
    "no_host_events", "unreadable_host_events", "sampled", "cut_file", "unexplained_waits", "hidden_waits"
]
NO_CAUSES: Final[dict[NoCauses, str]] = {
    "no_host_events": "what the host did was not recorded",
    "unreadable_host_events": "the record of what the host did is damaged",
    "sampled": "most events are missing, as the recording is sampled",
    "cut_file": "events of any time may be missing, as the file ends early",
    "unexplained_waits": "what too many spans waited for was not recorded",
    "hidden_waits": "the host waited in ways that were not recorded",
}
"""Why the dependency graph of a rank names no causes."""
SAMPLED: Final[NoCauses] = "sampled"
CUT_FILE: Final[NoCauses] = "cut_file"
EVENTS_MISSING: Final[tuple[NoCauses, ...]] = (SAMPLED, CUT_FILE)
"""The reasons for which what is left of a window is no idle time: what ran then is not known."""
WITHOUT_HOST: Final[tuple[NoCauses, ...]] = ("no_host_events", "unreadable_host_events")
"""Of these reasons those for which nothing is known of the host."""
NoRemoval = Literal[
    "no_device", "no_host_events", "cut_file", "unexplained_waits", "hidden_waits", "replay_differs", "too_large",
    "no_like_peer",
]  # fmt: skip
"""Why it is not known what the removal of a late rank is worth; `no_device`: its host computes, and what it would do
sooner is not replayed."""
WAITS_FOR_LATE_RANK: Final = tuple(name for name, cause in CAUSES.items() if cause.waits_for_late_rank)
LATE_RANKS: Final = "wait: for late ranks"
"""The label of their sum."""
TRANSFERS: Final = ("slow_transfer", "ahead", "dependency", "host_waited", "tail", "late_end")
"""Causes of time after the last member of a call had come, where all calls are split into wait and transfer ..."""
TRANSFER: Final = "transfer, once all ranks had come"
"""... and the label of their sum."""
MAY_BE_WAITING: Final = frozenset({"ahead", "dependency", "host_waited", "tail"})
"""Causes that hold waiting for other ranks where calls are not split, ..."""
NOTABLE: Final = 0.05
"""... which is said where these have at least this share of the cause's time. A choice."""
START_OF_RECORDING: Final = "start_of_recording"
"""The cause of exposed and of idle time that is no loss of the job, but of its recording: GPU-hours are without it."""
EXPOSED_WAIT: Final = tuple(name for name, cause in CAUSES.items() if cause.waits_for_late_rank or cause.ends_late)
"""The causes that are the metric `exposed_wait_ns`."""
WAITS_FOR_ANOTHER_RANK: Final = tuple(name for name, cause in CAUSES.items() if cause.waits_for_another_rank)


def idle_label(name: str, *, on_cpu: bool = False) -> str:
    """Return the label of a cause of idle time; a name of a later version is returned unchanged.

    `on_cpu`: of a run in which no device computes.
    """
    return _label(IDLE_CAUSES, name, on_cpu=on_cpu)


def cause_label(name: str, *, on_cpu: bool = False) -> str:
    """Return the label of a cause of exposed time; other names, as the remainder of an attribution, are returned
    unchanged. `on_cpu`: of a run in which no device computes.
    """
    return _label(CAUSES, name, on_cpu=on_cpu)


def _label(table: Mapping[str, Cause], name: str, *, on_cpu: bool) -> str:
    if name not in table:
        return name
    return table[name].on_cpu if on_cpu and table[name].on_cpu else table[name].label
