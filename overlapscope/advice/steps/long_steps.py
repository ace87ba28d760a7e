"""What few steps cost that take far longer than the others, by what is more in them."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from statistics import median
from typing import Any, Final

import msgspec

from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.advice.slower_in_turn import CLOCKS
from overlapscope.analysis.checks.hosts.host_pauses import STEPS_IDLE_NS
from overlapscope.analysis.checks.steps.odd_step_findings import LONGER_KERNELS, ODD_LENGTH, longer_words
from overlapscope.analysis.common.wording import rank_list, short
from overlapscope.analysis.job_step.longer_calls import LONGER_THAN_LIKE, ONE_LONG_CALL, USUAL_LONGER_NS
from overlapscope.analysis.per_rank.longer_step import LongerStep
from overlapscope.analysis.result import RankInfo, Recommendation, StepBreakdown, WithoutOutliers, late_waits_ns
from overlapscope.display import list_some, size_text

LONG_STEPS: Final = "long_steps"
"""Evidence: the steps that a loss is of, which cost the recording more than what every step loses."""
MOSTLY: Final = 0.5
"""Steps are longer for what has this share of what they take more; likewise one call, or pauses that are named. A
choice."""
PARTS: Final[Mapping[str, str]] = {
    "compute_ns": "long_steps", "exposed_comm_ns": "exposed_communication", "idle_ns": "idle_device",
}  # fmt: skip
"""What may be more in a step, with the id of the recommendation that names it."""
ONCE: Final = "that such steps come as often in every recording of this length"
LOOK_AT_STEPS: Final = (
    "overlapscope explain odd_step; overlapscope analyze RUN --all  # what these steps do that others don't"
)
LOOK_AT_CALL: Final = (
    "overlapscope explain one_long_call  # record again, and longer: does it come back? all ranks, with host events: "
    "who was late then, and why?"
)
BATCHES: Final = {
    "torch": 'print(step, batch["input_ids"].shape)  # sort samples by length, pack them, cap the tokens of a batch'
}


class _More(msgspec.Struct, frozen=True, kw_only=True):
    """What the rank that made a step longer by most did more in it."""

    rank: int
    step: int
    ns: Mapping[str, float]
    """By field of `PARTS`."""


def long_steps(given: RuleInput, costly: WithoutOutliers) -> Recommendation | None:
    """Return what names the loss of steps that cost more than every step loses; None where none of `PARTS` is most of
    what they take longer."""
    each = _more_of_steps(given.analysis.ranks, costly)
    sums = {name: sum(more.ns[name] for more in each) for name in PARTS}
    part = max(sums, key=sums.__getitem__)
    if not each or sums[part] < MOSTLY * costly.longer_ns:
        return None
    most = max(each, key=lambda more: more.ns[part])
    words, apply, evidence = _of_part(given, part, most, each)
    found = recommended(
        given,
        id="long_steps",  # written out: a test finds the page of each id
        title=f"Largest loss: {take_longer(costly)}: {words}",
        verdict="look",
        at_most_ns=costly.longer_ns,
        bound_from="loss",
        per="recording",
        apply=apply,
        evidence={LONG_STEPS: sorted(costly.longer_of), "rank": most.rank, "more_ns": sums} | dict(evidence),
        measured=["how much longer these steps take than the median of the others, but for waiting for late ranks"],
        assumed=[ONCE],
        verify="overlapscope analyze NEW_RUN: no step is as long",
    )
    return msgspec.structs.replace(found, id=PARTS[part])


def take_longer(costly: WithoutOutliers) -> str:
    """Return words on how much longer these steps take than the others: not those that only wait for one of them."""
    steps = sorted(costly.longer_of)
    which = f"step {steps[0]} takes" if len(steps) == 1 else f"steps {list_some(steps)} take together"
    return f"{which} {ms(costly.longer_ns)} longer than the others"


def are_of_named(found: Sequence[Recommendation], costly: WithoutOutliers) -> bool:
    """Return whether pauses of hosts, which `host_pauses` names, are most of what these steps take longer, or what one
    of `found` names that counts these steps in its mean, as batches that are fetched."""
    # A pause between two steps lies in the one that its host began; its device idles in the one before.
    near = {step for each in costly.outliers for step in (each, each + 1)}
    for each in found:
        in_steps = zip(each.evidence.get("steps", ()), each.evidence.get(STEPS_IDLE_NS, ()), strict=False)
        if each.evidence.get("before_any_call") or STEPS_IDLE_NS not in each.evidence:
            continue
        steps = near if each.id == "host_pauses" else costly.longer_of
        if sum(ns for step, ns in in_steps if step in steps) >= MOSTLY * costly.longer_ns:
            return True
    return False


def _more_of_steps(ranks: Sequence[RankInfo], costly: WithoutOutliers) -> list[_More]:
    """Return, of each step that is longer, what the rank that makes it longer by most did more in it, without what it
    waits for late ranks; without steps in which no rank has others to compare with."""
    most: dict[int, tuple[float, _More]] = {}
    without = {*costly.outliers}
    for info in ranks:
        complete = [each for each in info.steps if each.complete]
        others = [each for each in complete if each.step not in without]
        if not others:
            continue
        usual_ns = {name: median(_ns(each, name) for each in others) for name in ("window_ns", *PARTS)}
        usual_wait_ns = median(map(late_waits_ns, others))
        times = Counter(each.step for each in complete)
        for own in complete:
            if own.step not in costly.longer_of or times[own.step] > 1:
                continue
            more = {name: _ns(own, name) - ns for name, ns in usual_ns.items()}
            longer_ns = more.pop("window_ns") - max(late_waits_ns(own) - usual_wait_ns, 0)
            if own.step not in most or longer_ns > most[own.step][0]:
                most[own.step] = longer_ns, _More(rank=info.rank, step=own.step, ns=more)
    return [most[step][1] for step in costly.longer_of if step in most]


def _ns(step: StepBreakdown, name: str) -> int:
    return getattr(step, name) or 0


def _of_part(
    given: RuleInput, part: str, most: _More, every: Sequence[_More]
) -> tuple[str, Mapping[str, str], Mapping[str, Any]]:
    """Return what is more in these steps and why, as words; what to do; and evidence. `most` is the one of `every` step
    in which it is most."""
    more_ns, several = sum(more.ns[part] for more in every), len(every) > 1
    on = f" on rank {most.rank}" if len(given.analysis.ranks) > 1 else ""
    if several:
        much = "most of it" if most.ns[part] >= MOSTLY * more_ns else "the largest part"
        on = f", {much} in step {most.step}{on}"
    elif on:
        on = f"{on}, where that is most"
    odd = next((each.evidence for each in given.analysis.findings if each.id.startswith(ODD_LENGTH)
                and each.evidence.get("step") == most.step), {})  # fmt: skip
    look = {"look": LOOK_AT_STEPS}
    if part == "compute_ns":
        words = f"{'they compute' if several else 'it computes'} for {ms(more_ns)} more{on}"
        if LONGER_KERNELS not in odd:
            return words, look, {}
        longer = msgspec.convert(odd[LONGER_KERNELS], LongerStep)
        apply = CLOCKS if longer.slower_device else BATCHES
        return f"{words}, in the same {longer.kernels} kernels: {longer_words(longer)}", apply, {}
    if part == "idle_ns":
        name = odd.get("range", odd.get("idle_range"))
        idle = "devices are idle" if several else "the device is idle"
        return f"{idle} for {ms(more_ns)} more{on}{f', in {short(name)}' if name else ''}", look, {}
    words = f"{ms(more_ns)} more are exposed communication{on}"
    call, evidence = _of_calls(given, more_ns, {(more.rank, more.step) for more in every})
    return f"{words}{call}", {"look": LOOK_AT_CALL} if evidence else look, evidence


def _of_calls(
    given: RuleInput, more_ns: float, in_steps: Collection[tuple[int, int]]
) -> tuple[str, Mapping[str, Any]]:  # fmt: skip
    """Return words on the one call of these ranks and steps that is longer than its like by most of what is more, else
    on all calls where they are, and on whom they may wait for; and evidence of that one call."""
    missing = [rank for rank in range(given.run.world_size or 0) if rank not in given.run.ranks]
    who = f"one of {rank_list(missing)} (not recorded)" if missing else "another rank"
    if given.run.world_size is None:
        who = f"{who}, perhaps one that was not recorded,"
    findings = given.analysis.findings
    said = (each.evidence for each in findings if each.id.startswith(f"{ONE_LONG_CALL}:"))
    one = next((each for each in said if (each["rank"], each["step"]) in in_steps), None)
    if one is not None and one["exposed_longer_ns"] >= MOSTLY * more_ns:
        size = "" if one["bytes"] is None else f" of {size_text(one['bytes'])}"
        like = f", its like {ms(one['like_ns'])}" if one["like"] else ""
        words = f", one {short(one['op'])}{size} takes {ms(one['duration_ns'])}{like}"
        evidence = {"duration_ns": one["duration_ns"], "like_ns": one["like_ns"], "bytes": one["bytes"]}
        return f"{words}: {who} was late to it, or the network stalled", evidence
    longer = next((each.evidence for each in findings if each.id == LONGER_THAN_LIKE), None)
    if longer is None:
        return "", {}
    longer_ns = (longer["longer_ns"] - longer[USUAL_LONGER_NS]) * given.analysis.headline.steps
    if longer_ns < MOSTLY * more_ns:
        return "", {}
    return f", as calls take longer than the shortest of their like: {who} was late, or the network slow", {}
