"""What names exposed communication as a loss: how much, of which calls, why, for whom, and what to do."""

from collections.abc import Sequence
from typing import Final

import msgspec
from msgspec import to_builtins

from overlapscope.advice.calls.call_rates import SOCKETS, dominant_calls, gbs_words, like_sockets, transfer_rate_gbs
from overlapscope.advice.calls.known_transfer import Transfer, known_transfer
from overlapscope.advice.losses.exposed_calls import one_bandwidth_gbs
from overlapscope.advice.losses.exposed_remedies import (
    FAR_BELOW_OTHERS,
    OF_LATE_RANKS,
    remedies,
    times_as_fast_elsewhere,
)
from overlapscope.advice.losses.named_cause import NamedCause, named_cause
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.advice.steps.deciding_rank import DECIDING_NS, DECIDING_RANK, Deciding
from overlapscope.advice.steps.long_steps import LOOK_AT_STEPS
from overlapscope.analysis.common.cause_table import TRANSFERS, WAITS_FOR_LATE_RANK
from overlapscope.analysis.common.wording import rank_list, short
from overlapscope.analysis.exposure.slower_unseen import SlowerUnseen, slower_unseen
from overlapscope.analysis.result import Recommendation, waits_for_late_ranks
from overlapscope.analysis.stragglers.stragglers import Straggler
from overlapscope.display import percent_text

MOST_OPS: Final = 3
NAMED: Final = 0.05
"""Least share of the exposed time of an operation that is named. A choice."""
LATE_WAITS: Final = "late_waits_ns"
"""In the evidence: waiting that another recommendation names, which the loss does not hold."""
ONE_WAITS: Final = 0.1
"""Of two ranks one waits for the other if that waits for this share of it at most. A choice."""
LOOK: Final = "overlapscope explain straggler; overlapscope explain RUN  # what to do; the longest waits, as commands"
LOOK_AT_UNSEEN: Final = (
    "# record all ranks, then: overlapscope explain straggler  # what the slower one gets (batch, sequence lengths), "
    "and how fast its device is"
)
AT_ONE_RATE: Final = "# calls of all sizes run at {gbs} on the bus: fewer bytes{overlap}, or a faster link"
ONE_RATE: Final = "that calls of several sizes which run at one bandwidth transfer, and do not wait"


class ExposedLoss(msgspec.Struct, frozen=True, kw_only=True):
    """How much of a step is exposed communication, and how it is called."""

    ns: int
    left_out_ns: int
    """What is due to the start of the recording, which `ns` does not hold."""
    late_ns: int
    """Waiting for late ranks that another recommendation names, which `ns` does not hold."""
    before: str
    """Words before the loss, and ..."""
    step: str
    """... the step that it is of."""
    usual: bool
    """Whether it is not steps that cost more which are named first."""
    decides: Deciding | None
    """What the rank that computes longest in each step is exposed, where that is far less; else None."""
    longer_ns: int
    """What calls take longer than their like; 0 where that is not known."""
    waiting_groups: Sequence[str]
    """Groups of which much of it is: those of another like it are shorter."""
    compute_said: bool
    """Whether `before` says that compute decides."""


class _Calls(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of the calls that are exposed."""

    which: str
    """Words on the kind that has most of the time; empty where none has."""
    speed: str
    """Words on a rate of transfers, or that even the fastest of them are as slow as TCP sockets."""
    sockets: bool
    rate_gbs: tuple[float, float] | None
    """Of transfers of the slowest and of the fastest operation, where their sizes show that they are such."""
    slower: SlowerUnseen | None
    """A rank that was not recorded, which they wait for."""
    transfer: Transfer | None
    """What shows that they transfer, where they could not be split into waiting and transfer; None where nothing."""

    @classmethod
    def of(cls, given: RuleInput) -> "_Calls":
        most = dominant_calls(given)
        members = [given.run.ranks[rank] for rank in given.windows]
        unseen = slower_unseen(members, given.windows) if given.run_has_device and not given.is_whole else None
        rate_gbs = transfer_rate_gbs(given) if unseen is None else None
        slow, speed = like_sockets(given, most), ""
        if slow is not None:
            of_all = "" if given.is_whole else ", unless each waits for a rank that was not recorded"
            between = "" if slow[2] else ", if these ranks are on several hosts"
            speed = f"; even the fastest of {slow[1]} is at {slow[0]:.2g} GB/s, "
            speed += f"as slow as over TCP sockets{between}{of_all}"
        elif rate_gbs is not None:
            about, more = ("about ", "") if rate_gbs[0] == rate_gbs[1] else ("", " or more")
            speed = f"; calls of all sizes transfer at {about}{gbs_words(rate_gbs)} on the bus{more}"
        return cls(
            which=most.words(given.per, rate=rate_gbs is None) if most else "",
            speed=speed,
            sockets=slow is not None,
            rate_gbs=rate_gbs,
            slower=unseen,
            transfer=known_transfer(given, at_one_rate=rate_gbs is not None),
        )


def exposed_communication(given: RuleInput, loss: ExposedLoss, late: Sequence[Straggler]) -> Recommendation:
    """Return what names exposed communication; `late` are stragglers that no other recommendation names."""
    by_op, calls = _by_op(given), _Calls.of(given)
    why = named_cause(
        given,
        loss.ns,
        has_stragglers=bool(late),
        transfer=calls.transfer,
        without=WAITS_FOR_LATE_RANK if loss.late_ns else (),
        compute_said=loss.compute_said,
    )
    below = _far_below_others(given, loss, why)
    return recommended(
        given,
        id="exposed_communication",
        title=_title(given, loss, why, list(by_op), calls, late, below),
        verdict="look",
        loss_ns=loss.ns,
        apply=({"look": LOOK} if late else {}) | _apply(given, loss, why, calls, below),
        evidence={
            "exposed_comm_ns": loss.ns + loss.left_out_ns + loss.late_ns,
            "causes": dict(given.figures.causes),
            "by_op": {op: {"exposed_ns": ns} for op, ns in by_op.items()},
        }
        | ({"before_all_recorded_ns": loss.left_out_ns} if loss.left_out_ns else {})
        | ({LATE_WAITS: loss.late_ns} if loss.late_ns else {})
        | ({DECIDING_NS: round(loss.decides.exposed_ns)} if loss.decides is not None else {})
        | ({DECIDING_RANK: loss.decides.rank} if loss.decides is not None and loss.decides.rank is not None else {})
        | ({"longer_than_like_ns": loss.longer_ns} if loss.longer_ns else {})
        | ({"transfer_gbs": calls.rate_gbs[1]} if calls.rate_gbs else {})
        | ({"slower_unseen": to_builtins(calls.slower)} if calls.slower else {})
        | ({"late_ranks": [each.rank for each in late]} if late else {}),
        measured=["communication beside which nothing is computed, and what the next compute waited for"],
        assumed=_assumed(given, loss, why, calls),
        verify="overlapscope analyze NEW_RUN: the loss is smaller",
    )


def _apply(given: RuleInput, loss: ExposedLoss, why: NamedCause, calls: _Calls, below: str) -> dict[str, str]:
    """Return what to do about a loss, by framework or `look`; `below` says how far below others transfers are."""
    if not loss.usual:  # where outliers cost more, why the other steps wait is the smaller question
        return {"look": LOOK_AT_STEPS}
    if calls.slower is not None:
        return {"look": LOOK_AT_UNSEEN}
    found = remedies(
        given,
        why.cause,
        why.second,
        loss.longer_ns,
        calls.transfer,
        why.waits_ns,
        groups_wait=bool(loss.waiting_groups),
    )
    if below:
        found["look"] = "\n".join([FAR_BELOW_OTHERS, *found.get("look", "").splitlines()])
    if calls.rate_gbs is not None:
        longer = (given.figures.comm_ns or 0) > (given.figures.compute_ns or 0)  # than all that could be beside it
        at_one_rate = AT_ONE_RATE.format(gbs=gbs_words(calls.rate_gbs), overlap=", overlap" * (not longer))
        lines = [*found.get("torch", "").splitlines(), at_one_rate]
        found["torch"] = "\n".join(lines)
    return found | ({"nccl_variables": SOCKETS} if calls.sockets else {})


def _far_below_others(given: RuleInput, loss: ExposedLoss, why: NamedCause) -> str:
    """Return words on transfers, where these are known and most exposed time, that are far slower than on another
    machine, and what of the loss a link can be worth at most; else nothing."""
    known = loss.usual and why.cause in TRANSFERS and given.figures.exposed_wait_ns is not None
    times = times_as_fast_elsewhere(given) if known else None
    if times is None:
        return ""
    at_most_ns = min(sum(map(given.cause_ns, TRANSFERS)), loss.ns)
    return (
        f"; another machine with as many such devices transfers {times:.2g} times as fast: look at the links and "
        f"NCCL's settings first, for at most {ms(at_most_ns)} of it"
    )


def _assumed(given: RuleInput, loss: ExposedLoss, why: NamedCause, calls: _Calls) -> list[str]:
    """Return what is assumed of waiting; of what is unknown, or known to wait, it is said that it may be waiting, and a
    pipeline's sends hold it by their cause."""
    if given.is_whole or calls.slower is not None or why.cause in ("unknown", "pipeline"):
        return []
    if calls.rate_gbs is not None:
        return [ONE_RATE]
    if calls.transfer == "recorded":
        return ["that the ranks that were recorded are all of their groups: then none of it is waiting for others"]
    return [f"that {'no more' if loss.longer_ns else 'none'} of it is waiting for ranks that were not recorded"]


def _by_op(given: RuleInput) -> dict[str, int]:
    """Return the exposed time of the operations that have most of it, the largest first, in ns of a step."""
    rows = given.analysis.collectives
    by_op = {op: round(given.exposed_ns(row for row in rows if row.op == op)) for op in {row.op for row in rows}}
    least = max(NAMED * sum(by_op.values()), 1)
    ops = [op for op in sorted(by_op, key=lambda op: (-by_op[op], op)) if by_op[op] >= least][:MOST_OPS]
    return {op: by_op[op] for op in ops}


def _title(
    given: RuleInput,
    loss: ExposedLoss,
    why: NamedCause,
    ops: Sequence[str],
    calls: _Calls,
    late: Sequence[Straggler],
    below: str,
) -> str:
    # Which calls the time is of is known with their waiting alone.
    which = [calls.which or ", ".join(ops)] if ops and not loss.late_ns else []
    which += [f"without {ms(loss.left_out_ns)} at the start of the recording"] if loss.left_out_ns else []
    of_ops = f" ({'; '.join(which)})" if which else ""
    known = "known " * (given.figures.exposed_wait_ns is None)
    besides = f" besides {known}waiting for late ranks" if loss.late_ns else ""
    who = _stragglers(late, why.waits_ns, why.cause) or _of_two(given, why.cause) or _unseen(calls.slower)
    groups = f" of group{'s' * (len(loss.waiting_groups) > 1)} {' and '.join(map(short, loss.waiting_groups))}"
    take = f"{groups * bool(loss.waiting_groups)} take at least {ms(loss.longer_ns)} longer"
    longer = f"; calls{take} than the shortest of their like" * (loss.longer_ns > 0)
    words = f"{why.words}{_of_transfer(given)}" if loss.usual else ""
    speed = f"{loss.decides.words if loss.decides else ''}{calls.speed}{below}" if loss.usual else ""
    much = f"{'A further ' if besides and not loss.before else ''}{ms(loss.ns)} of {loss.step}"
    return f"{loss.before}{much} are exposed communication{besides}{of_ops}{words}{speed}{longer}{who}"


def _of_transfer(given: RuleInput) -> str:
    """Return that transfer takes longer than compute, where nearly all runs at one rate: no earlier begin hides it."""
    if one_bandwidth_gbs(given) is None:
        return ""
    return f"; transfer takes longer than compute ({ms(given.figures.compute_ns or 0)})"


def _unseen(slower: SlowerUnseen | None) -> str:
    """Return the end of a title that says that a rank which was not recorded is slower; empty without one."""
    if slower is None:
        return ""
    share, ns = percent_text(slower.share), ms(slower.at_end_ns)
    return (
        f"; a rank that was not recorded is at least {share} slower: calls of one size get longer in each step, from "
        f"{ms(slower.first_ns)} to {ms(slower.last_ns)}, and the last one waits for about {ns}"
    )


def _stragglers(late: Sequence[Straggler], late_ns: int, cause: str) -> str:
    """Return the end of a title that names stragglers, after the waiting for late ranks where `cause` is another."""
    if not late:
        return ""
    who = sorted(each.rank for each in late)
    first = max(late, key=lambda each: each.blame_ns)
    why = f" ({first.held_by.replace('_', ' ')})" if len(late) == 1 and first.held_by != "unknown" else ""
    are = f"{rank_list(who)} {'is a straggler' if len(who) == 1 else 'are stragglers'}{why}"
    waits = cause == OF_LATE_RANKS or cause in WAITS_FOR_LATE_RANK
    said = f", {ms(late_ns)} waiting for late ranks" if late_ns and not waits else ""
    return f"{said}; {are}"


def _of_two(given: RuleInput, cause: str) -> str:
    """Return which of the two ranks of a job waits for the other, to follow a cause of waiting; empty where both do."""
    waits = waits_for_late_ranks(given.analysis.ranks)
    known = given.is_whole and all(each.whole.causes for each in given.analysis.ranks)
    if cause not in (*WAITS_FOR_LATE_RANK, OF_LATE_RANKS) or len(waits) != 2 or not known:
        return ""
    (late, least), (waiting, most) = sorted(waits.items(), key=lambda each: each[1])
    return f" (rank {waiting} waits for rank {late})" if least < ONE_WAITS * most else ""
