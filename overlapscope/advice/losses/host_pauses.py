"""Rule: hosts of devices pause now and then, as garbage collection makes them, and devices idle for it."""

from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import numpy as np

from overlapscope.advice.losses.blocked_host import VERSIONED
from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.checks.hosts.host_pauses import DIFFER, again_outside, of_step_alone, times_a_step
from overlapscope.analysis.common.host_work import OBJECTS, take_off, work_of_id
from overlapscope.analysis.common.user_ranges import range_of_step
from overlapscope.analysis.common.wording import rank_list, ranks_of_run, short
from overlapscope.analysis.result import Recommendation, ShownBy, recording_ns
from overlapscope.display import list_some
from overlapscope.timeline.intervals import BusyTime

MOSTLY: Final = 0.5
"""Share of the idle time in pauses for which one wait had emptied the device, to be named. A choice."""
WAITS_STAY: Final = (
    "that these waits stay: without them the device would have work in the pauses, so what is lost to these waits is "
    "the same time"
)
OF_RANGE: Final = 0.9
"""A range that one step alone has is what the host does in a pause if it covers this share of the pause. A choice:
whatever else stops a host does so for longer than the range that it begins in, or for a part of it."""
DUMP: Final = "py-spy dump --pid PID  # while it pauses: {what}"
LESS_OFTEN: Final = (
    "# {range} takes {covered} of the {paused} of the pause: in fewer steps, or in another process or thread, on a copy"
)
IN_PAUSES: Final = {
    "python": "gc.collect(); gc.freeze(); gc.disable()  # and gc.collect() on all ranks at one agreed step: "
    "are the pauses gone?\n" + DUMP.format(what="a logger, a file, a lock, a service that answers late"),
    "torch": "torch.profiler.profile(with_stack=True)  # which function it is in",
    "linux": "pidstat -t -w -p PID 1  # does it lose its core?",
}
OF_COPY: Final = (
    "what becomes of what it copied just before: images, logs or a checkpoint belong in another thread or process, or "
    "in fewer steps"
)
OF_OBJECTS: Final = f"# if torch.distributed.all_gather_object() comes just before:\n{OBJECTS.apply['torch']}\n"
COMPILES: Final = "TORCH_LOGS=recompiles python train.py  # does torch.compile compile again? then mark_dynamic()\n"
IN_OWN_CODE: Final = {
    "torch": IN_PAUSES["torch"],
    "python": DUMP.format(what="which line it is in")
    + "\n# then: operations on whole tensors instead of loops over elements, or another thread for what no launch "
    "needs; no gc.collect() in each step",
}
"""For pauses that recur at one place, and are of one length."""
COPIED_BACK: Final = {
    "torch": "compute with tensors of the device, without .cpu(), .numpy() and .to(device) around it\n"
    "# which function it is in: torch.profiler.profile(with_stack=True)",
    "python": DUMP.format(what="which line it is in"),
}
"""For what the host computes from one copy, and copies back."""
OFF_HOST: Final = {
    "torch": "optimizer = torch.optim.AdamW(params, fused=True)  # on the device: its states take 8 bytes a parameter "
    "there, 12 with a copy of the weights in 32 bits, divided among the ranks that shard them",
    "fsdp2": "fully_shard(module)  # without offload_policy=CPUOffloadPolicy(); FSDP1: without cpu_offload=",
    "deepspeed": 'remove "offload_optimizer" from "zero_optimization"  # costs device memory as above\n'
    '"offload_optimizer": {"device": "cpu", "ratio": 0.5}  # ZeRO stage 3: the device updates the other half of the '
    "parameters, and holds their states",
}
"""For an optimizer that the host computes: https://www.deepspeed.ai/docs/config-json/."""


def host_pauses(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the finding of this id says that pauses cost time; else None."""
    found = next((each for each in given.analysis.findings if each.id == "host_pauses"), None)
    if found is None:
        return None
    evidence = found.evidence
    if evidence.get("before_any_call"):
        return _before_any_call(given, evidence)
    alone, begun, cost_ns = evidence["alone_in_step"], evidence["begun_steps"], evidence["cost_ns"]
    costliest, wait = evidence["pauses"][0], _wait_before(given, evidence)
    work = work_of_id(evidence.get("work"))
    loss_ns, alone_range = cost_ns if alone is None else cost_ns * begun, _range_alone(given, evidence)
    return recommended(
        given,
        id="host_pauses",
        title=_title(given, evidence, wait, alone_range),
        verdict="look",
        loss_ns=loss_ns,
        at_most_ns=loss_ns if evidence["delays_all"] else None,
        bound_from="loss" if evidence["delays_all"] else None,
        per=given.per if alone is None else "recording",
        apply=_remedies(evidence, alone_range, costliest["paused_ns"]),
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
        assumed=[
            *["that no rank that was not recorded paused for longer"] * (not given.is_whole),
            *[WAITS_STAY] * (wait is not None),
            *(() if work is None else work.assumed),
        ],
        verify="overlapscope analyze NEW_RUN: the finding host_pauses is gone",
    )


def _range_alone(given: RuleInput, evidence: Mapping[str, Any]) -> tuple[str, int] | None:
    """Return the range that covers the pause of a single step, and no other step of the rank has, and how much of the
    pause it covers, in ns; None where there is none."""
    first = evidence["pauses"][0]
    if evidence["alone_in_step"] is None or first["step"] != evidence["alone_in_step"]:
        return None
    found = range_of_step(given.run.ranks[first["rank"]].at_hand(), first["step"])
    if found is None or found[0] != evidence["inside"]:
        return None
    covered_ns = min(found[1], first["paused_ns"])
    return (found[0], covered_ns) if covered_ns >= OF_RANGE * first["paused_ns"] else None


def _title(given: RuleInput, evidence: Mapping[str, Any], wait: str | None, alone_range: tuple[str, int] | None) -> str:
    """Return what to find, where hosts pause and what it costs; `wait` had emptied the device before, `alone_range` is
    the range that the pause is in."""
    ranks = evidence["ranks"]
    one = len(ranks) == 1
    in_turn = ", now one, now another" * evidence["in_turn"]
    whom = f"the host{'' if one else 's'} of {ranks_of_run(ranks, len(given.run.ranks))}{in_turn}"
    own = evidence.get("work") or evidence.get("does") or evidence.get("own_code") or evidence["copied_back"]
    does = ("launches nothing" if one else "launch nothing") if own else "pauses" if one else "pause"
    usual = f"{'it' if one else 'they'} {does} {_how_long(given, evidence)}{_place(evidence)}"
    idles = _idles(given, evidence)
    spent = "" if wait is None else f", after a wait ({short(wait)}) that had used up its lead"
    begins = ", perhaps as the profiler starts" * evidence["at_begin"]
    work = work_of_id(evidence.get("work"))
    asks = _asks(evidence, whom, alone_range) if work is None else take_off(work, whom)
    return f"{asks}: {usual}, and {'its' if one else 'a'} device idles for {idles}{spent}{begins}"


def _how_long(given: RuleInput, evidence: Mapping[str, Any]) -> str:
    """Return how often a host pauses in a step, and for how long each time: where most of the idle time is in
    pauses that are shorter by far than the longest one, both."""
    often = "" if evidence["anywhere"] else times_a_step(evidence["times_a_step"], given.per)
    each, most_ns = " each" * bool(often), evidence["paused_ns"]
    if not evidence["lengths_differ"]:
        return f"{often}for {ms(most_ns)}{each}"
    if most_ns < DIFFER * evidence["usual_ns"]:
        return f"{often}for up to {ms(most_ns)}{each}"
    return f"{often}mostly for about {ms(evidence['usual_ns'])}{each} (the longest: {ms(most_ns)})"


def _place(evidence: Mapping[str, Any]) -> str:
    """Return where most of the idle time in pauses is, and whether some are elsewhere; with a comma."""
    if not evidence["one_place"]:
        return ", at many places" if evidence["anywhere"] else ", at several places"
    mostly = "mostly " * (evidence["elsewhere"] > 0)
    inside = "" if evidence["inside"] is None else f", in {short(evidence['inside'])}"
    return f", {mostly}after {short(evidence['after'])}{inside}"


def _idles(given: RuleInput, evidence: Mapping[str, Any]) -> str:
    """Return for how long a device idles for the pauses, of what, and when."""
    alone, device_step = evidence["alone_in_step"], evidence["device_step"]
    if alone is not None:
        whole = f" of a {ms(recording_ns(given.analysis))} recording,"
        return f"{ms(evidence['alone_cost_ns'])}{whole} {of_step_alone(alone, device_step)} alone"
    if evidence["steps"] and device_step is None:
        before = f"before the first kernel of a {given.per}, which its {ms(given.step_ns)} do not hold"
        return f"{ms(evidence['cost_ns'])} for it, {before}"
    again = again_outside([each["step"] for each in evidence["again"]])
    when = f" in the mean, in step{'s' * (len(evidence['steps']) > 1)} {list_some(evidence['steps'])}{again}"
    return f"{ms(evidence['cost_ns'])} of a {ms(given.step_ns)} {given.per} for it{when if again else ''}"


def _wait_before(given: RuleInput, evidence: Mapping[str, Any]) -> str | None:
    """Return the call that had emptied the device before most of the idle time in the listed pauses; None without."""
    charged = Counter[str]()
    for each in evidence["pauses"]:
        begin = np.array([each["start_ns"]])
        for loss in given.host_losses.get(each["rank"], ()):
            if loss.kind == "blocking_call" and loss.call is not None:
                charged[VERSIONED.sub("", loss.call)] += int(
                    BusyTime(loss.when).within(begin, begin + each["paused_ns"])[0]
                )
    call, ns = max(charged.items(), key=lambda item: item[1], default=("", 0))
    return call if ns >= MOSTLY * sum(each["idle_ns"] for each in evidence["pauses"]) > 0 else None


def _asks(evidence: Mapping[str, Any], whom: str, alone_range: tuple[str, int] | None) -> str:
    """Return what is to be done about pauses of these hosts, in no known kind of host work."""
    if evidence.get("in_optimizer"):
        return f"Take the optimizer off {whom}, or overlap it"
    if evidence.get("copied_back"):
        return f"Compute on the device what {whom} compute{'s' * (len(evidence['ranks']) == 1)} between two copies"
    if evidence.get("own_code"):
        return f"Shorten the program's own code that keeps {whom} from launching, or move it to another thread"
    if evidence.get("does") is not None:
        return f"Shorten what keeps {whom} from launching"
    if alone_range is not None:
        return f"Do {short(alone_range[0])} less often, or off {whom}"
    return f"Find what stops {whom}"


def _remedies(evidence: Mapping[str, Any], alone_range: tuple[str, int] | None, paused_ns: int) -> dict[str, str]:
    """Return what to do, by framework: what recurs, a range or pauses of one length, is what the host does, and no
    accident; and so, first, a range that the one step alone has."""
    if (work := work_of_id(evidence.get("work"))) is not None:
        return dict(work.apply)
    if evidence.get("in_optimizer"):
        return OFF_HOST
    if evidence.get("does") is not None:
        return {"torch": IN_PAUSES["torch"], "python": DUMP.format(what="which line it is in")}
    if evidence.get("copied_back"):
        return COPIED_BACK
    objects = OF_OBJECTS if evidence.get("objects") else ""
    if evidence.get("own_code"):
        return IN_OWN_CODE | {"torch": objects + IN_OWN_CODE["torch"]}
    of_copy = DUMP.format(what=OF_COPY) + "\n# else: " if evidence.get("copied") else ""
    compiles = COMPILES if evidence.get("may_compile") else ""
    if alone_range is not None:
        name, covered_ns = alone_range
        words = LESS_OFTEN.format(range=short(name), covered=ms(covered_ns), paused=ms(paused_ns))
        of_copy = f"{words}\n# else: {of_copy}"
    return IN_PAUSES | {"python": of_copy + IN_PAUSES["python"], "torch": objects + compiles + IN_PAUSES["torch"]}


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
