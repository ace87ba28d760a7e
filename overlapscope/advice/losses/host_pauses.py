"""Rule: hosts of devices pause now and then, as garbage collection makes them, and devices idle for it."""

from overlapscope.advice.rule_input import RuleInput, ms, recommended
from overlapscope.analysis.common.wording import rank_list, short
from overlapscope.analysis.result import Recommendation, ShownBy


def host_pauses(given: RuleInput) -> Recommendation | None:
    """Return the recommendation where the finding of this id says that pauses cost time; else None."""
    found = next((each for each in given.analysis.findings if each.id == "host_pauses"), None)
    if found is None or given.per != "step":
        return None
    evidence = found.evidence
    alone, steps = evidence["alone_in_step"], evidence["of_steps"]
    cost_ns, ranks, costliest = evidence["cost_ns"], evidence["ranks"], evidence["pauses"][0]
    one = len(ranks) == 1
    whom = f"the host{'' if one else 's'} of {rank_list(ranks)}{', now one, now another' * evidence['in_turn']}"
    place = (
        f", after {short(costliest['before'])}" if evidence["one_place"] else ", at many places" * evidence["anywhere"]
    )
    inside = "" if evidence["inside"] is None else f", in {short(evidence['inside'])}"
    usual = f"{'it pauses' if one else 'they pause'} for {ms(evidence['paused_ns'])}"
    whose = "its" if one else "a"
    idles = f"{ms(cost_ns)} of a {ms(given.step_ns)} step for it"
    if alone is not None:
        idles = f"{ms(evidence['alone_cost_ns'])} in step {alone} alone"
    return recommended(
        given,
        id="host_pauses",
        title=f"Find what stops {whom}: {usual}{place}{inside}, and {whose} device idles for {idles}"
        f"{', perhaps as the profiler starts' * evidence['at_begin']}",
        verdict="look",
        loss_ns=cost_ns if alone is None else cost_ns * steps,
        per="step" if alone is None else "recording",
        apply={
            "python": "gc.collect(); gc.freeze(); gc.disable()  # and gc.collect() on all ranks at one agreed step: "
            "are the pauses gone?\n"
            "py-spy dump --pid PID  # while it pauses: a logger, a file, a lock, a service that answers late",
            "torch": "torch.profiler.profile(with_stack=True)  # which function it is in",
            "linux": "pidstat -t -w -p PID 1  # does it lose its core?",
        },
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
