"""The causes of exposed communication, a row each. Reports, dashboard, JSON and docs read them here.

The rules that find a cause are in `causes.py`. A new cause is a row here and its rule there.
"""

from typing import Final, Literal

import msgspec


class Cause(msgspec.Struct, kw_only=True, frozen=True):
    """What people are told of one cause."""

    label: str
    description: str
    """One sentence for the docs, in Markdown."""
    waits_for_late_rank: bool = False
    """Waiting that ends as soon as a straggler is on time: the metric `exposed_wait_ns`."""
    waits_for_another_rank: bool = False
    """Any waiting; that for a pipeline stage too, which a schedule makes and no straggler."""
    colour: Literal["waiting", "exposed", "launch"]
    """Its name in the dashboard's palette."""
    pattern: Literal["", "/", "|", "."] = ""
    """Drawn over the colour, as plotly names it: causes of one colour have different ones."""


CAUSES: Final[dict[str, Cause]] = {
    "peer_compute": Cause(
        label="waiting: the last rank computed",
        description="waiting for the rank that came last (of those recorded), which at that instant computed",
        waits_for_late_rank=True,
        waits_for_another_rank=True,
        colour="waiting",
    ),
    "peer_comm": Cause(
        label="waiting: the last rank communicated elsewhere",
        description="waiting likewise, while that rank communicated",
        waits_for_late_rank=True,
        waits_for_another_rank=True,
        colour="waiting",
        pattern="/",
    ),
    "peer_host": Cause(
        label="waiting: the last rank was idle",
        description="waiting likewise, while that rank did neither",
        waits_for_late_rank=True,
        waits_for_another_rank=True,
        colour="waiting",
        pattern="|",
    ),
    "pipeline": Cause(
        label="waiting for another pipeline stage",
        description="a send or receive between pipeline stages, its waiting too, but for `late_launch` and `queued`",
        waits_for_another_rank=True,
        colour="waiting",
        pattern=".",
    ),
    "slow_transfer": Cause(
        label="transfer slower than its baseline",
        description="then what the transfer took beyond its baseline",
        colour="exposed",
    ),
    "late_launch": Cause(
        label="launched late by the host",
        description="then as long as its data were ready before the host launched it",
        colour="launch",
    ),
    "queued": Cause(
        label="queued behind another collective",
        description="then as long as it was launched and ready before it began",
        colour="launch",
        pattern="/",
    ),
    "dependency": Cause(
        label="what follows in the step depends on it",
        description="the rest, where compute of the same step follows that is not the optimizer's",
        colour="exposed",
        pattern="/",
    ),
    "tail": Cause(
        label="nothing but the optimizer follows",
        description="the rest, where only the optimizer follows, or nothing",
        colour="exposed",
        pattern="|",
    ),
    "unknown": Cause(
        label="not known",
        description="the rest of what could not be matched, or belongs to no step whose optimizer was seen",
        colour="exposed",
        pattern=".",
    ),
}
"""By the name that stands in JSON, in the order in which they are listed."""
WAITS_FOR_LATE_RANK: Final = tuple(name for name, cause in CAUSES.items() if cause.waits_for_late_rank)
WAITS_FOR_ANOTHER_RANK: Final = tuple(name for name, cause in CAUSES.items() if cause.waits_for_another_rank)


def cause_label(name: str) -> str:
    """Return the label of a cause; the name itself for what is none, such as the rest of an attribution."""
    return CAUSES[name].label if name in CAUSES else name
