"""The table of causes of exposed communication, one row each. Reports, dashboard, JSON and docs read it.

The rules that assign a cause are in `exposed_causes.py`. A new cause is a row here and a rule there.
"""

from typing import Final, Literal

import msgspec


class Cause(msgspec.Struct, kw_only=True, frozen=True):
    """The texts and colours of one cause."""

    label: str
    description: str
    """One sentence for the docs, in Markdown."""
    waits_for_late_rank: bool = False
    """Wait time that disappears when no rank is late: the metric `exposed_wait_ns`."""
    waits_for_another_rank: bool = False
    """Any wait time, also for a pipeline stage, which is caused by the schedule and not by a straggler."""
    colour: Literal["waiting", "exposed", "launch"]
    """Name of a colour in the dashboard's palette."""
    pattern: Literal["", "/", "|", "."] = ""
    """Pattern drawn over the colour, as plotly names it; causes of one colour have different patterns."""


CAUSES: Final[dict[str, Cause]] = {
    "peer_compute": Cause(
        label="wait: the late rank was computing",
        description="waiting for the recorded rank that arrived last, while that rank was computing",
        waits_for_late_rank=True,
        waits_for_another_rank=True,
        colour="waiting",
    ),
    "peer_comm": Cause(
        label="wait: the late rank was communicating elsewhere",
        description="waiting for the rank that arrived last, while that rank was communicating",
        waits_for_late_rank=True,
        waits_for_another_rank=True,
        colour="waiting",
        pattern="/",
    ),
    "peer_host": Cause(
        label="wait: the late rank was idle (host)",
        description="waiting for the rank that arrived last, while that rank did neither",
        waits_for_late_rank=True,
        waits_for_another_rank=True,
        colour="waiting",
        pattern="|",
    ),
    "pipeline": Cause(
        label="wait: another pipeline stage",
        description="a send or receive between pipeline stages, with its wait, except `late_launch` and `queued`",
        waits_for_another_rank=True,
        colour="waiting",
        pattern=".",
    ),
    "slow_transfer": Cause(
        label="transfer slower than its baseline",
        description="then the part of the transfer beyond its baseline",
        colour="exposed",
    ),
    "late_launch": Cause(
        label="late launch by the host",
        description="then the time from when its data was ready until the host launched it, but on the compute stream",
        colour="launch",
    ),
    "queued": Cause(
        label="queued behind another collective",
        description="then the time from when it was launched and its data ready until it began",
        colour="launch",
        pattern="/",
    ),
    "dependency": Cause(
        label="later compute of the step depends on it",
        description="the rest, where other compute than the optimizer's follows in the same step",
        colour="exposed",
        pattern="/",
    ),
    "tail": Cause(
        label="only the optimizer follows",
        description="the rest, where only the optimizer follows, or nothing",
        colour="exposed",
        pattern="|",
    ),
    "unknown": Cause(
        label="unknown",
        description="the rest of calls that could not be matched, or that belong to no step with a recorded optimizer",
        colour="exposed",
        pattern=".",
    ),
}
"""By name as in JSON, in the order in which they are listed."""
WAITS_FOR_LATE_RANK: Final = tuple(name for name, cause in CAUSES.items() if cause.waits_for_late_rank)
WAITS_FOR_ANOTHER_RANK: Final = tuple(name for name, cause in CAUSES.items() if cause.waits_for_another_rank)


def cause_label(name: str) -> str:
    """Return the label of a cause; other names, such as the remainder of an attribution, are returned unchanged."""
    return CAUSES[name].label if name in CAUSES else name
