"""Rule: one device computes next to nothing, and every message of the other ranks is with it, as with a server of
parameters."""

from statistics import fmean
from typing import Final

import msgspec

from overlapscope.advice.rule_input import RuleInput, ms, recommended, time_of
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.result import Recommendation
from overlapscope.display import percent_text
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.intervals import difference, intersection, length
from overlapscope.timeline.names import rows_named
from overlapscope.timeline.operations import SEND_OPS
from overlapscope.timeline.rows import unique
from overlapscope.timeline.run import RankTimeline

NEXT_TO_NOTHING: Final = 0.1
"""A device that computes at most this share of what the others do only serves them. A choice: the first and the last
stage of a pipeline, and any stage between, compute far more."""
FEWEST_SERVED: Final = 2
"""Ranks that it serves: of two ranks, each is the peer of the other."""


class _Talks(msgspec.Struct, frozen=True, kw_only=True):
    """What one rank computes, and with whom it exchanges messages."""

    computed_ns: float
    """Mean over windows."""
    exposed_ns: float
    """For how long it communicates and computes nothing, mean over windows."""
    to: frozenset[int]
    """Ranks that it sends to."""
    by: frozenset[int]
    """Ranks that it receives from."""


def serving_rank(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where all that a job communicates are messages with one rank, which computes next to
    nothing, and what is exposed of them is worth it; else None."""
    exposed_ns = given.figures.exposed_comm_ns or 0
    if not given.run_has_device or not given.is_worth(exposed_ns):
        return None
    talks = {timeline.rank: _talks(given, timeline) for timeline, _ in given.some_at_hand()}
    known = {rank: each for rank, each in talks.items() if each is not None}
    if len(known) < len(given.run.ranks):
        return None
    servers = [rank for rank in known if _serves(rank, known)]
    if len(servers) != 1:
        return None
    (server,) = servers
    others = [rank for rank in known if rank != server]
    own = known[server]
    of_others_ns = fmean(known[rank].computed_ns for rank in others)
    others_exposed_ns = fmean(known[rank].exposed_ns for rank in others)
    return recommended(
        given,
        id="serving_rank",
        title=f"Let all ranks reduce gradients instead of one that serves them: rank {server} computes "
        f"{ms(own.computed_ns)} of a {ms(given.step_ns)} {given.per} ({percent_text(own.computed_ns / of_others_ns)} "
        f"of what others do), and all messages of {rank_list(others)} are with it, which it answers in turn: of these "
        f"{ms(own.exposed_ns)} are exposed on it, {ms(others_exposed_ns)} on the others",
        verdict="look",
        loss_ns=exposed_ns,
        apply={
            "torch": "DistributedDataParallel(model)  # all-reduces in buckets, beside backward; all update alike\n"
            "# or serve from a process without a device, and let this one train"
        },
        evidence={
            "rank": server, "ranks": others, "computed_ns": round(own.computed_ns),
            "computed_by_others_ns": round(of_others_ns), "exposed_comm_ns": exposed_ns,
        },
        measured=["what each rank computes, with whom it sends and receives, and what of that is exposed"],
        assumed=["that ranks are meant to go on from the same parameters: a server may also let each go on by itself"],
    )  # fmt: skip


def _serves(rank: int, known: dict[int, _Talks]) -> bool:
    """Return whether a rank exchanges messages both ways with several, all others with it alone, and it computes next
    to nothing beside them."""
    own, others = known[rank], [each for other, each in known.items() if other != rank]
    alone = all(each.to == each.by == {rank} for each in others)
    most_ns = NEXT_TO_NOTHING * min((each.computed_ns for each in others), default=0.0)
    return alone and own.to == own.by and len(own.by) >= FEWEST_SERVED and 0 < own.computed_ns <= most_ns


def _talks(given: RuleInput, timeline: RankTimeline) -> _Talks | None:
    """Return what a rank computes and with whom it talks; None where it makes other calls than messages between two
    ranks, or a peer is not known."""
    calls, windows = timeline.collectives, given.windows[timeline.rank]
    send, recv = (rows_named(calls.op, timeline.names, each.__eq__) for each in SEND_OPS)
    if not calls.op.size or not (send | recv).all() or (calls.peer == NONE).any():
        return None
    cover, inside = given.coverage[timeline.rank], time_of(windows)
    exposed = difference(intersection(cover.comm, inside), cover.compute)
    return _Talks(
        computed_ns=length(intersection(cover.compute, inside)) / len(windows),
        exposed_ns=length(exposed) / len(windows),
        to=frozenset(unique(calls.peer[send]).tolist()),
        by=frozenset(unique(calls.peer[recv]).tolist()),
    )
