"""Rule: hosts of devices pause now and then, as garbage collection makes them, and devices idle for it."""

from collections.abc import Mapping
from typing import Any, Final

from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.common.wording import rank_list, short
from overlapscope.analysis.result import Recommendation, ShownBy, recording_ns

DUMP: Final = "py-spy dump --pid PID  # while it pauses: {what}"
IN_PAUSES: Final = {
    "python": "gc.collect(); gc.freeze(); gc.disable()  # and gc.collect() on all ranks at one agreed step: "
    "are the pauses gone?\n" + DUMP.format(what="a logger, a file, a lock, a service that answers late"),
    "torch": "torch.profiler.profile(with_stack=True)  # which function it is in",
    "linux": "pidstat -t -w -p PID 1  # does it lose its core?",
}
OFF_HOST: Final = {
    "torch": "optimizer = torch.optim.AdamW(params, fused=True)  # on the device: its states take 8 bytes a parameter "
    "there, 12 with a copy of the weights in 32 bits, divided among the ranks that shard them",
    "deepspeed": 'remove "offload_optimizer" from "zero_optimization"  # costs device memory as above\n'
    '"offload_optimizer": {"device": "cpu", "ratio": 0.5}  # ZeRO stage 3: the device updates the other half of the '
    "parameters, and holds their states",
}
"""For an optimizer that the host computes: https://www.deepspeed.ai/docs/config-json/."""


def host_pauses(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the finding of this id says that pauses cost time; else None."""
    found = next((each for each in given.analysis.findings if each.id == "host_pauses"), None)
    if found is None or given.per != "step":
        return None
    evidence = found.evidence
    if evidence.get("before_any_call"):
        return _before_any_call(given, evidence)
    alone, steps = evidence["alone_in_step"], evidence["of_steps"]
    cost_ns, ranks, costliest = evidence["cost_ns"], evidence["ranks"], evidence["pauses"][0]
    one = len(ranks) == 1
    whom = f"the host{'' if one else 's'} of {rank_list(ranks)}{', now one, now another' * evidence['in_turn']}"
    place = (
        f", after {short(costliest['before'])}" if evidence["one_place"] else ", at many places" * evidence["anywhere"]
    )
    inside = "" if evidence["inside"] is None else f", in {short(evidence['inside'])}"
    does = ("launches nothing" if one else "launch nothing") if evidence.get("does") else "pauses" if one else "pause"
    usual = f"{'it' if one else 'they'} {does} for {ms(evidence['paused_ns'])}"
    whose = "its" if one else "a"
    idles = f"{ms(cost_ns)} of a {ms(given.step_ns)} step for it"
    if alone is not None:
        whole = f" of a {ms(recording_ns(given.analysis))} recording,"
        idles = f"{ms(evidence['alone_cost_ns'])}{whole} in step {alone} alone"
    return recommended(
        given,
        id="host_pauses",
        title=f"{_asks(evidence, whom)}: {usual}{place}{inside}, and {whose} device idles for {idles}"
        f"{', perhaps as the profiler starts' * evidence['at_begin']}",
        verdict="look",
        loss_ns=cost_ns if alone is None else cost_ns * steps,
        per="step" if alone is None else "recording",
        apply=_remedies(evidence),
        evidence=evidence,
        shown_by=ShownBy(
            rank=costliest["rank"],
            start_ns=costliest["start_ns"],
            end_ns=costliest["start_ns"] + costliest["paused_ns"],
        ),
        measured=[
            "times of 3 ms or more in which no thread that launches began or ended anything, nor waited for the "
            "device, and how long the device was idle in them; of each step the rank that lost most"
        ],
        assumed=[] if given.is_whole else ["that no rank that was not recorded paused for longer"],
        verify="overlapscope analyze NEW_RUN: the finding host_pauses is gone",
    )


def _asks(evidence: Mapping[str, Any], whom: str) -> str:
    """Return what is to be done about pauses of these hosts."""
    if evidence.get("in_optimizer"):
        return f"Take the optimizer off {whom}, or overlap it"
    return f"Find what stops {whom}" if evidence.get("does") is None else f"Shorten what keeps {whom} from launching"


def _remedies(evidence: Mapping[str, Any]) -> dict[str, str]:
    """Return what to do, by framework: a range that recurs is what the host does, and no accident."""
    if evidence.get("in_optimizer"):
        return OFF_HOST
    if evidence.get("does") is not None:
        return {"torch": IN_PAUSES["torch"], "python": DUMP.format(what="which line it is in")}
    return IN_PAUSES


def _before_any_call(given: RuleInput, evidence: Mapping[str, Any]) -> Recommendation:
    """Return the recommendation for hosts that make no call as the first recorded step begins."""
    (step,), ranks, most = evidence["steps"], evidence["ranks"], evidence["pauses"][0]
    one = len(ranks) == 1
    return recommended(
        given,
        id="host_pauses",
        title=f"Find what the host{'' if one else 's'} of {rank_list(ranks)} do{'es' * one} as step "
        f"{step} begins: no call for {ms(evidence['paused_ns'])}, and the step's mark lasts {ms(most['mark_ns'])}, "
        f"{ms(most['mark_ns'] - most['usual_mark_ns'])} more than others; perhaps the profiler starts",
        verdict="look",
        loss_ns=evidence["cost_ns"],
        per="recording",
        apply=IN_PAUSES,
        evidence=evidence,
        shown_by=ShownBy(rank=most["rank"], start_ns=most["start_ns"], end_ns=most["start_ns"] + most["paused_ns"]),
        measured=[
            "the time from the begin of the step's mark to the first call, range or work of the device; by how much "
            "longer that mark lasts than those of the other steps"
        ],
        assumed=["that the device had no work from before the recording, which is not recorded"],
        verify="overlapscope analyze NEW_RUN: the finding host_pauses is gone",
    )
