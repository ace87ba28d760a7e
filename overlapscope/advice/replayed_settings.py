"""Recommendations from a replay of the recording under other settings.

For DistributedDataParallel: bucket caps, views of buckets, 16-bit gradients, or to leave the buckets alone. For FSDP2:
when parameters are gathered, how long they stay gathered, and how many modules at once.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Literal

import msgspec

from overlapscope.advice.calls.backward_prefetch import IN_FORWARD
from overlapscope.advice.job_kind import uses_fsdp1
from overlapscope.advice.rule_input import VERIFY, WORTH
from overlapscope.advice.setting_code import HOOK, setting_code, spelled
from overlapscope.analysis.cross_rank.across_ranks import CrossRank
from overlapscope.analysis.graph.built_graphs import BuiltGraphs
from overlapscope.analysis.graph.job_replay import job_replay
from overlapscope.analysis.result import Recommendation
from overlapscope.errors import HostEventsError, InputError
from overlapscope.timeline.columns import size
from overlapscope.timeline.operations import ITEM_BYTES
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp.ddp_predict import predict_ddp
from overlapscope.whatif.ddp.ddp_recording import RecordedCase, ddp_case_of_run
from overlapscope.whatif.parallelism import noted_no_ddp, other_framework, parallelism_of
from overlapscope.whatif.result import CAP, Scenario, WhatIf, cap_of, knob_words
from overlapscope.whatif.step_graph.fsdp_changes import IN_BOTH, NO_GATHERS, NO_SIZES
from overlapscope.whatif.step_graph.graph_predict import NONE_REPLAYED, predict_graph_run

PREFETCH: Final = "backward_prefetch"
"""The rule that finds no prefetch in backward."""
VIEW: Final = "gradient_as_bucket_view"
MOST_SHOWN: Final = 3
"""Number of caps of a list that a title shows; the code has all."""
APPLY: Final = {
    "reshard_after_forward": "fully_shard(module, reshard_after_forward=False)",
    "forward_prefetch": "module.set_modules_to_forward_prefetch([...])  # the next {value}, on each one",
    "backward_prefetch": "module.set_modules_to_backward_prefetch([...])  # the {value} before it, on each one",
    "modules_per_group": "fully_shard([module, next_module])  # {value} neighbours in one call",
    "reduce_dtype": "fully_shard(module, mp_policy=MixedPrecisionPolicy(reduce_dtype=torch.bfloat16))",
}
"""Code for FSDP2 (torch 2.6 and later) by knob."""

OF_FSDP1: Final = {
    ("reshard_after_forward", False): ("sharding_strategy", "SHARD_GRAD_OP", "ShardingStrategy.SHARD_GRAD_OP"),
    ("backward_prefetch", 1): ("backward_prefetch", "BACKWARD_PRE", "BackwardPrefetch.BACKWARD_PRE"),
    ("forward_prefetch", 1): ("forward_prefetch", "True", "True"),
    ("reduce_dtype", "16-bit"): ("mixed_precision", "16-bit", "MixedPrecision(reduce_dtype=torch.bfloat16)"),
}
"""By knob and value what FullyShardedDataParallel has for it: its argument, the value in words, and in code."""
NONE_OF_FSDP1: Final = "no setting of FullyShardedDataParallel surely gains more than recordings of one code differ"
ASSUMED: Final = {
    "per_bucket_us": "what a bucket costs its host",
    "latency_us": "the part of a transfer that does not depend on its bytes",
    "comm_share": "how much compute slows transfers that run beside it",
    "transfer_beside_compute": "how much compute slows transfers that run beside it",
    "transfer_time": "how much transfers vary, or wait for ranks unseen",
    "compute_time": "how much compute varies between steps",
    "late_ends_of_links": "how much of transfers that end late is their link's",
    "host_share": "the part of a transfer that is host work",
}
"""What the values are, in words, that the replay varies, by their names in `overlapscope.whatif/1`."""


OWN_BUCKETS: Final = (
    "the recorded model is not wrapped in DistributedDataParallel, so no bucket cap is advised; `overlapscope whatif` "
    "replays its gradients in buckets of other sizes"
)


def by_replay(
    run: Run,
    cross_rank: CrossRank,
    found: list[Recommendation],
    caps_mb: Sequence[float],
    keep: Callable[[RecordedCase, WhatIf], None] | None,
    graphs: BuiltGraphs,
) -> tuple[list[Recommendation], list[str]]:
    """Return the recommendations of a replay and of the rules (`found`), and the reasons for them or for no replay.

    `caps_mb` are the bucket caps to try, in MiB; `keep` is called with the replayed case and its result, if there is
    one.
    """
    try:
        case = ddp_case_of_run(run, cross_rank, graphs)
    except InputError as error:
        return _by_fsdp_replay(run, cross_rank, graphs, found, error)
    if all(map(noted_no_ddp, run.ranks.values())):
        return found, [OWN_BUCKETS]
    result = predict_ddp(case, caps_mb)
    if keep is not None:
        keep(case, result)
    of_buckets = bucket_advice(result, ITEM_BYTES[case.recorded.dtypes[0]])
    # The predicted gain of views replaces the upper bound from the time of the copies.
    if adds_views(result) or any(each.id == "bucket_view" for each in of_buckets):
        found = [each for each in found if each.id != "communication_copies" or set(each.apply) != {"ddp"}]
    return [*of_buckets, *(_without_bits(found) if of_buckets else found)], list(result.reasons)


def _by_fsdp_replay(
    run: Run, cross_rank: CrossRank, graphs: BuiltGraphs, found: list[Recommendation], not_ddp: InputError
) -> tuple[list[Recommendation], list[str]]:
    """Add the recommendations of a replay of FSDP2; `not_ddp` says why the recording is not DDP."""
    if parallelism_of(run) != "fsdp":
        links = _whatif_replays(run, cross_rank, graphs)
        which = "no DDP setting" if links and other_framework(run) is None else "no setting"
        return found, [f"{which} was replayed: {not_ddp}{links}"]
    try:
        result = predict_graph_run(run, cross_rank, not_ddp=str(not_ddp), graphs=graphs)
    except InputError as error:
        return found, [f"no setting was replayed: {error}"]
    if uses_fsdp1(run):
        result = with_best_of_fsdp1(result)
        advised = [for_fsdp1(each) for each in fsdp_advice(result)]
    else:
        advised = fsdp_advice(result)
    if any("backward_prefetch" in each.knobs for each in advised):
        found = [each for each in found if each.id != PREFETCH]
    found = [_with_replayed_gain(each, result) if each.id == PREFETCH else each for each in found]
    return [*advised, *(_without_bits(found) if advised else found)], fsdp_reasons(result.reasons)


def _whatif_replays(run: Run, cross_rank: CrossRank, graphs: BuiltGraphs) -> str:
    """Return the end of a sentence that says what `overlapscope whatif` replays of a run whose buckets it does not."""
    if not any(size(each.collectives) for each in run.ranks.values()):
        return ""
    try:
        found = job_replay(run, cross_rank, graphs)
    except HostEventsError:
        return ""
    if isinstance(found, str):
        return ""
    return "; `overlapscope whatif RUN` replays faster links, and steps without long pauses of hosts"


def _without_bits(found: Sequence[Recommendation]) -> list[Recommendation]:
    """Return what rules recommend without 16-bit gradients, of which a replay says more."""
    return [each for each in found if each.id != "sixteen_bit_gradients"]


def for_fsdp1(each: Recommendation) -> Recommendation:
    """Return a recommendation with code for FullyShardedDataParallel, where that has the same setting."""
    settings = _of_fsdp1(each.knobs)
    if not settings:
        return msgspec.structs.replace(each, apply={})
    shown = ", ".join(f"{name}={value}" for name, value, _ in settings)
    title = each.title if each.changes_numerics else f"Set {shown}"
    code = ", ".join(f"{name}={code}" for name, _, code in settings)
    return msgspec.structs.replace(each, title=title, apply={"torch": f"FullyShardedDataParallel(module, {code})"})


def with_best_of_fsdp1(result: WhatIf) -> WhatIf:
    """Return a prediction whose best change is one that FullyShardedDataParallel has, and no change without such a one
    that surely gains."""
    if result.verdict != "change" or _of_fsdp1(result.best.knobs):
        return result
    rows = [
        each
        for each in result.scenarios[1:]
        if _of_fsdp1(each.knobs) and _surely_gains(each) and not each.changes_numerics and not each.hypothetical
    ]
    if not rows:
        return msgspec.structs.replace(result, verdict="no_change", reasons=[NONE_OF_FSDP1, *result.reasons])
    best = min(rows, key=lambda each: each.predicted_step_ns)
    return msgspec.structs.replace(result, best=msgspec.structs.replace(result.best, knobs=best.knobs))


def _of_fsdp1(knobs: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Return what FullyShardedDataParallel has for these settings; nothing where it lacks one of them."""
    found = [OF_FSDP1[each] for each in knobs.items() if each in OF_FSDP1]
    return found if len(found) == len(knobs) else []


def with_replayed_prefetch(
    run: Run, cross_rank: CrossRank, found: list[Recommendation], graphs: BuiltGraphs
) -> list[Recommendation]:
    """Return what rules recommend, with the gain that a replay predicts of prefetch, as ranks now wait for each other:
    beside a straggler no other setting is replayed."""
    if not any(each.id == PREFETCH for each in found) or parallelism_of(run) != "fsdp":
        return found
    try:
        result = predict_graph_run(run, cross_rank, graphs=graphs)
    except InputError:
        return found
    return [_with_replayed_gain(each, result) if each.id == PREFETCH else each for each in found]


def _with_replayed_gain(each: Recommendation, result: WhatIf) -> Recommendation:
    """Return the rule's recommendation of prefetch, in backward or in both passes, with the gain that the replay of the
    same predicts, if it surely is one."""
    knobs = dict(IN_BOTH) if each.evidence.get(IN_FORWARD) else {PREFETCH: IN_BOTH[PREFETCH]}
    # The rule says that none is gathered ahead; without a setting, FSDP2 gathers one ahead in backward.
    before = dict.fromkeys(knobs, 0) if len(knobs) == 1 else {}
    none, row = (next((one for one in result.scenarios if one.knobs == asked), None) for asked in (before, knobs))
    if none is None or row is None or not _surely_gains(row) or result.verdict == "insufficient_data" or result.waiting:
        return each
    of_replay = scenario_recommendation(
        result, row, PREFETCH, each.title, "change", memory_bytes=row.memory_bytes - none.memory_bytes
    )
    assumed = ["that parameters do not stay gathered: then backward gathers none"]
    return msgspec.structs.replace(
        of_replay, apply=each.apply, per=each.per, loss_ns=each.loss_ns, measured=each.measured,
        evidence={**each.evidence, **of_replay.evidence}, assumed=[*of_replay.assumed, *assumed],
    )  # fmt: skip


def fsdp_reasons(reasons: Sequence[str]) -> list[str]:
    """Return the reasons of a replay of FSDP2; that no setting was replayed is not said beside why none could be."""
    why_none = {NO_GATHERS, NO_SIZES} & set(reasons)
    return [each for each in reasons if each != NONE_REPLAYED or not why_none]


def scenario_recommendation(
    result: WhatIf,
    row: Scenario,
    name: str,
    title: str,
    verdict: str,
    *,
    apply: dict[str, str] | None = None,
    memory_bytes: int | None = None,
) -> Recommendation:
    """Return the recommendation of a scenario, with its gain in ns of the present step."""
    measured = result.baseline.measured_step_ns or result.baseline.replayed_step_ns
    confidence: Literal["mixed", "assumed"] = "mixed" if result.interference.identified else "assumed"
    gains = (row.gain, row.gain_low, row.gain_high) if verdict != "no_change" else (None, None, None)
    gain, low, high = (None if each is None else round(each * measured) for each in gains)
    return Recommendation(
        id=name,
        title=title,
        verdict=verdict,
        predicted_gain_ns=gain,
        gain_low_ns=low,
        gain_high_ns=high,
        confidence=confidence,
        memory_bytes=memory_bytes,
        changes_numerics=row.changes_numerics,
        apply=apply or {},
        verify=VERIFY,
        loss_ns=result.scenarios[0].exposed_comm_ns if gain is not None else None,
        evidence={
            "step_ns": measured,
            "predicted_step_ns": row.predicted_step_ns,
            "exposed_comm_ns": row.exposed_comm_ns,
            **({"buckets": row.buckets} if row.buckets else {}),
            **({"equally_good_mb": near} if (near := result.equally_good.get(CAP)) and name == "bucket_cap" else {}),
            "replay_error": result.baseline.replay_error,
        },
        measured=["the present step, its gradients and transfers"] if result.baseline.measured_step_ns else [],
        assumed=list(dict.fromkeys(ASSUMED[each.name] for each in result.assumptions)),
        knobs=dict(row.knobs),
    )


def recommended_scenario(result: WhatIf) -> Scenario | None:
    """Return the scenario of a prediction that is recommended; None where no change is.

    Of bucket caps as good as the best it is the largest, which makes the fewest buckets.
    """
    return _largest(result) if result.verdict == "change" else None


def bucket_advice(result: WhatIf, item_bytes: int) -> list[Recommendation]:
    """Return recommendations for buckets, best first; empty where the replay does not match the run, or waiting for a
    straggler dominates (the reasons of the result say so).
    """
    if result.verdict == "insufficient_data" or result.waiting:
        return []
    found = [_cap(result, item_bytes), _views(result, item_bytes), _fewer_bits(result)]
    return [each for each in found if each is not None]


def adds_views(result: WhatIf) -> bool:
    """Return whether the recommended change includes views of buckets: its gain then includes theirs."""
    return result.verdict == "change" and bool(_changed(result, result.best.knobs).get(VIEW))


def _cap(result: WhatIf, item_bytes: int) -> Recommendation:
    if result.verdict == "change":
        best, present = _largest(result), result.baseline.knobs
        knobs = best.knobs
        apply = setting_code(knobs, item_bytes, present)
        near = result.equally_good.get(CAP)
        also = f" ({near[0]:g} to {near[1]:g} MiB are equally good)" if near else ""
        title = f"Set {_shown(_changed(result, knobs))}{also}"
        memory_bytes = best.memory_bytes - result.scenarios[0].memory_bytes or None
        return scenario_recommendation(
            result, best, "bucket_cap", title, "change", apply=apply, memory_bytes=memory_bytes
        )
    title = "Leave the buckets as they are: no cap has a gain above the noise and surely above zero"
    return scenario_recommendation(result, result.scenarios[0], "keep_buckets", title, "no_change")


def _views(result: WhatIf, item_bytes: int) -> Recommendation | None:
    """Return the recommendation of views, which save the memory of all buckets, where the step does not get longer."""
    base = result.scenarios[0]
    with_views = {**base.knobs, VIEW: True}
    row = next((each for each in result.scenarios[1:] if each.knobs == with_views), None)
    if row is None or row.gain < 0 or row.gain_low < -WORTH or not base.memory_bytes or adds_views(result):
        return None
    saved = base.memory_bytes - row.memory_bytes
    title = f"gradient_as_bucket_view=True saves {saved / 1e6:.1f} MB, and the copies out of buckets"
    apply = setting_code(with_views, item_bytes, base.knobs)
    return scenario_recommendation(result, row, "bucket_view", title, "change", apply=apply, memory_bytes=-saved)


def _fewer_bits(result: WhatIf) -> Recommendation | None:
    """Return the trial of 16-bit gradients where it gains for sure; how well the model trains is not predicted."""
    row = next((each for each in result.scenarios if each.changes_numerics), None)
    if row is None or not _surely_gains(row):
        return None
    title = "Try to send 16-bit gradients: this changes numerics, so compare the loss with the present one"
    return scenario_recommendation(result, row, "sixteen_bit_gradients", title, "trial", apply={"ddp": HOOK})


def _surely_gains(row: Scenario) -> bool:
    """Return whether a setting surely gains, and more than recordings of one code differ."""
    return row.gain_low > 0 and row.gain >= WORTH


def _largest(result: WhatIf) -> Scenario:
    """Return the scenario to recommend: of caps as good as the best, the largest, which makes the fewest buckets."""
    best = _row(result.scenarios, result.best.knobs)
    low, high = result.equally_good.get(CAP, (0.0, 0.0))
    rest = {name: value for name, value in best.knobs.items() if name != CAP}
    near = [
        each
        for each in result.scenarios
        if each.gain_low > 0 and low <= cap_of(each.knobs) <= high
        and CAP in each.knobs and {name: value for name, value in each.knobs.items() if name != CAP} == rest
    ]  # fmt: skip
    return max(near, key=lambda each: cap_of(each.knobs), default=best)


def _changed(result: WhatIf, knobs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the knobs that differ from the present ones; flags that are no longer set are False."""
    present = result.baseline.knobs
    left = {name: False for name, value in present.items() if value is True and name not in knobs}
    return {name: value for name, value in knobs.items() if present.get(name) != value} | left


def _shown(knobs: Mapping[str, Any]) -> str:
    return ", ".join(
        f"{name}=[{', '.join(spelled(each) for each in value[:MOST_SHOWN])}, ...]"
        if isinstance(value, list) and len(value) > MOST_SHOWN
        else f"{name}={spelled(value)}"
        for name, value in knobs.items()
    )


def _row(scenarios: Sequence[Scenario], knobs: dict[str, object]) -> Scenario:
    return next(each for each in scenarios if each.knobs == knobs)


def fsdp_advice(result: WhatIf) -> list[Recommendation]:
    """Return recommendations for a recording of FSDP2; empty for others, or where no setting is recommended."""
    if result.kind != "fsdp" or result.verdict != "change":
        return []
    best = _row(result.scenarios, result.best.knobs)
    title = f"Set {', '.join(knob_words(name, value) for name, value in best.knobs.items())}"
    found = [scenario_recommendation(result, best, "fsdp_gathers", title, "change", apply=fsdp_code(best.knobs),
                         memory_bytes=best.memory_bytes)]  # fmt: skip
    for each in result.scenarios:
        if each.changes_numerics and _surely_gains(each) and set(each.knobs) <= set(APPLY):
            title = (
                "Try to reduce gradients in 16 bits: this changes numerics, so compare the loss with the present one"
            )
            found.append(
                scenario_recommendation(
                    result, each, "sixteen_bit_gradients", title, "trial", apply=fsdp_code(each.knobs)
                )
            )
    return found


def fsdp_code(knobs: Mapping[str, Any]) -> dict[str, str]:
    """Return the code for settings of FSDP2, by framework; empty where there is none for one of them."""
    if not knobs or not set(knobs) <= set(APPLY):
        return {}
    return {"fsdp2": "\n".join(APPLY[name].format(value=value) for name, value in knobs.items())}
