"""Which cause of exposed communication is named, with the next one, and what else may be behind it."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Final

import msgspec

from overlapscope.advice.calls.known_transfer import WORDS, Transfer
from overlapscope.advice.losses.exposed_remedies import OF_LATE_RANKS
from overlapscope.advice.rule_input import RuleInput, ms, per_step
from overlapscope.advice.uneven_stages import uneven_stages
from overlapscope.analysis.common.cause_table import (
    LATE_RANKS,
    MAY_BE_WAITING,
    NOTABLE,
    TRANSFER,
    TRANSFERS,
    WAITS_FOR_LATE_RANK,
    cause_label,
)
from overlapscope.analysis.common.wording import rank_list
from overlapscope.analysis.job_step.headline import few_communicate, left_out
from overlapscope.analysis.result import Analysis, causes_of_all_steps, may_wait_shares, usual_causes
from overlapscope.analysis.stragglers.shared_cores import lack_cores
from overlapscope.analysis.unseen_waits import lacks_members
from overlapscope.display import percent_text

BEGUN_APART: Final = "start_of_recording"
GAPS: Final = "behind_compute"
"""Not named where there is another: no change of communication shortens gaps between kernels."""
LITTLE: Final = 0.1
"""Where at most this share of a step is exposed communication, compute decides how long it takes."""
SECOND: Final = 0.5
"""From this share of the largest cause on the next one is named, too. A choice: less is another question."""
EITHER: Final = "transfer, or more waiting, for {}; which of these is not known"
"""The label of what may be waiting, beside waiting that is known."""
OFTEN: Final = 0.5
"""Share of steps with pauses from which on the median of all may hold some."""


class NamedCause(msgspec.Struct, frozen=True, kw_only=True):
    """The cause of most of the exposed time."""

    cause: str
    second: str | None
    """The next cause, where it is not far less."""
    words: str
    """Both with their times, to follow a title; with what else may be behind the first."""
    waits_ns: int
    """Waiting for late ranks in a step."""


def named_cause(
    given: RuleInput,
    exposed: int,
    *,
    has_stragglers: bool,
    transfer: Transfer | None = None,
    without: Collection[str] = (),
    compute_said: bool = False,
) -> NamedCause:
    """Return the cause to name of `exposed` ns a step; of two only the first, where stragglers are named beside it.

    `transfer` is what shows that calls transfer although they could not be split from waiting. Causes in `without` are
    named elsewhere and not held by `exposed`; with `compute_said` it is said already how much of a step is compute.
    """
    without = {BEGUN_APART, *without}
    causes = {cause: ns for cause, ns in given.figures.causes.items() if cause not in without}
    every = Counter({each: ns for each, ns in usual_causes(given.analysis).items() if each not in without})
    if few_communicate(given.analysis.headline) is not None:
        every = causes_of_all_steps(given.analysis)
        causes = {each: round(ns * exposed / every.total()) for each, ns in every.items()}
    total_ns = every.total()
    named = not without.isdisjoint(WAITS_FOR_LATE_RANK)
    cause, ns, label = _largest(given, _without_gaps(causes), transfer=transfer, waits_named=named)
    over_all, sums_ns, its_label = _largest(given, _without_gaps(every), transfer=transfer, waits_named=named)
    of_it = f"{ms(min(ns, exposed))} of it"  # a cause may hold some of what is named elsewhere
    if every and its_label != label:
        cause, label = over_all, its_label
        outliers = usual_causes(given.analysis) != causes_of_all_steps(given.analysis)
        steps = "all steps but outliers" if outliers else "all steps"
        of_it = f"over {steps} {percent_text(sums_ns / total_ns)} of it"
        second = None
    else:
        first = cause, ns, label
        second = _second(given, _without_gaps(causes), first, transfer=transfer) if ns < exposed else None
    if has_stragglers and second is not None and second[0] in (*WAITS_FOR_LATE_RANK, OF_LATE_RANKS):
        second = None  # the stragglers, and how long others wait for them, are named
    next_to_it = f"; {ms(second[1])}: {second[2]}" if second else ""
    uneven = _as_stages_differ(given) if cause == "pipeline" else ""
    mostly_compute = "" if compute_said else _mostly_compute(given, exposed)
    return NamedCause(
        cause=cause,
        second=second[0] if second else None,
        words=f", {of_it}: {label}{uneven}{next_to_it}{_beside(given.analysis, cause)}{mostly_compute}",
        waits_ns=sum(causes.get(each, 0) for each in WAITS_FOR_LATE_RANK),
    )


def _as_stages_differ(given: RuleInput) -> str:
    """Return how much of the waits between stages is for a stage that computes longer, where a recommendation names it:
    what it has more than the mean of all stages."""
    found = uneven_stages(given)
    if found is None or not found.gain_high_ns:
        return ""
    of_step = per_step(found, found.gain_high_ns, given.steps if given.per == "step" else 1)
    return f" (about {ms(of_step)} as stage {found.evidence['stage']} computes longer)"


def _without_gaps(causes: Mapping[str, int]) -> Mapping[str, int]:
    """Return the causes of which one may be named."""
    return {cause: ns for cause, ns in causes.items() if cause != GAPS} or causes


def _largest(
    given: RuleInput, causes: Mapping[str, int], *, transfer: Transfer | None, waits_named: bool = False
) -> tuple[str, int, str]:
    """Return the cause of most of the exposed time, how much that is, and its label; `waits_named` tells whether
    waiting for late ranks is named elsewhere, as far as it is known.

    What late ranks did longer divides one wait, and for what a transfer was waited divides it: either may be more in
    sum.
    """
    cause, ns = max(causes.items(), key=lambda each: each[1], default=("unknown", given.figures.exposed_comm_ns or 0))
    late_ns = sum(causes.get(each, 0) for each in WAITS_FOR_LATE_RANK)
    split = given.figures.exposed_wait_ns is not None and late_ns > 0
    sent_ns = sum(causes.get(each, 0) for each in TRANSFERS) if split else 0
    # One cause that is more than waiting says more than the sum.
    if sent_ns > late_ns and sent_ns > ns and not (cause in TRANSFERS and ns > late_ns):
        return max(TRANSFERS, key=lambda each: causes.get(each, 0)), sent_ns, TRANSFER
    if late_ns >= sent_ns and late_ns > (2 * ns if cause in WAITS_FOR_LATE_RANK else ns):
        return OF_LATE_RANKS, late_ns, LATE_RANKS
    label = cause_label(cause, on_cpu=not given.run_has_device)
    unsplit = may_wait_shares(given.analysis, [cause]).get(cause, 0) >= NOTABLE
    if cause not in MAY_BE_WAITING or not unsplit:
        return cause, ns, label
    if transfer is None:
        if waits_named and cause != "ahead":
            whom = "ranks that were not recorded" if lacks_members(given.analysis) else "others"
            return "unknown", ns, EITHER.format(whom)
        # Another order helps whichever of both it is.
        return "ahead" if cause == "ahead" else "unknown", ns, f"{label}, waiting for other ranks included"
    return cause, ns, f"{label}{WORDS[transfer]}"


def _second(
    given: RuleInput, causes: Mapping[str, int], first: tuple[str, int, str], *, transfer: Transfer | None
) -> tuple[str, int, str] | None:
    """Return the next cause after the largest, as `_largest` does; None where it is far less. Where both are of one
    group, what is named is the rest of that."""
    cause, ns, label = first
    parts = {OF_LATE_RANKS: WAITS_FOR_LATE_RANK}.get(cause, TRANSFERS if label == TRANSFER else ())
    largest = {max(causes, key=lambda each: causes[each], default=cause), cause, *parts}
    rest = {each: of_it for each, of_it in causes.items() if each not in largest}
    if not rest:
        return None
    its_cause, its_ns, its_label = _largest(given, rest, transfer=transfer)
    if its_ns < SECOND * ns or not given.is_worth(its_ns):
        return None
    group = {**dict.fromkeys(TRANSFERS, TRANSFER), **dict.fromkeys(WAITS_FOR_LATE_RANK, LATE_RANKS)}.get(cause)
    return its_cause, its_ns, f"other {its_label}" if its_label == group else its_label


def _beside(analysis: Analysis, cause: str) -> str:
    """Return who may delay transfers, or that cores may be short, to be said beside a cause."""
    still = next((each.evidence["ranks"] for each in analysis.findings if each.id == "standing_still"), ())
    if cause == "slow_transfer" and 0 < len(still) < len(analysis.ranks):
        return f" (perhaps as {rank_list(still)} stood still in calls, too)"
    pausing = _pausing(analysis)
    if pausing and cause in ("unknown", "peer_host", "pipeline", OF_LATE_RANKS):
        one = len(pausing) == 1
        return f" (some of it perhaps as the host{'' if one else 's'} of {rank_list(pausing)} pause{'s' * one})"
    if cause == "slow_transfer" and lack_cores(analysis.findings):
        return " (perhaps as threads that transfer lack cores, too)"
    return _for_cores(analysis)


def _pausing(analysis: Analysis) -> Sequence[int]:
    """Return the ranks whose hosts pause in half of the steps that the loss is of, or more: no median holds fewer."""
    evidence = next((each.evidence for each in analysis.findings if each.id == "host_pauses"), None)
    if evidence is None:
        return ()
    long = left_out(analysis.headline)
    usual = [step for step in evidence["steps"] if step not in long]
    paused = usual and len(usual) >= OFTEN * (evidence["of_steps"] - len(long))
    return evidence["ranks"] if paused else ()


def _mostly_compute(given: RuleInput, exposed: int) -> str:
    """Return that nearly all of the step is compute, where communication takes little of it."""
    compute = (given.figures.compute_only_ns or 0) + (given.figures.overlapped_ns or 0)
    if exposed > LITTLE * given.step_ns or compute < (1 - 2 * LITTLE) * given.step_ns:
        return ""
    return f"; {percent_text(compute / given.step_ns, 0)} of the {given.per} is compute"


def _for_cores(analysis: Analysis) -> str:
    return " (some of it perhaps for lack of cores)" if lack_cores(analysis.findings) else ""
