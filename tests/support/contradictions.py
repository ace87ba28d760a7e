"""Pairs of statements that exclude each other: no output may hold both.

`SENTENCES` are pairs of patterns of which one text may match only one. `FIGURES` are pairs of statements with figures:
each names the pair and yields what was said of both sides. `contradictions` checks all of them.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from statistics import median
from typing import Final

import msgspec

from overlapscope.analysis.common.cause_table import SAMPLED
from overlapscope.analysis.per_rank.breakdown import Breakdown
from overlapscope.analysis.result import Analysis, Recommendation, recording_ns
from overlapscope.report.formatting import ms, percent
from overlapscope.report.rank_columns import rank_figures
from overlapscope.report.text import advice as advice_text
from overlapscope.report.text import analysis as analysis_text
from overlapscope.timeline.columns import COMM, COMPUTE
from overlapscope.timeline.run import Run
from overlapscope.whatif.result import WhatIf

SENTENCES: Final[dict[str, tuple[str, str]]] = {
    "no communication, exposed communication": (r"^No communication (lies|was) ", r"is exposed communication \("),
    "no communication, why exposed": (r"^No communication (lies|was) ", r"^why exposed"),
    "no communication, slowed by it": (r"No communication was recorded in a", r"long(er)? beside communication"),
    "no times, a table of times": (r"^No times were recorded", r"^ms +exposed"),
    "no times, idle time": (r"^No times were recorded", r"^Idle [\d,.]+ ms"),
    "no rank, ranks": (r"^no rank recorded", r"^rank \d+ "),
    "no step marks, steps": (r"^[^\n]*no step marks", r"^rank \d+ step \d+"),
    "no critical path, its parts": (r"^No critical path", r"^Critical path of"),
    "nothing matched, wait time of ranks": (
        r"^0 collectives matched across ranks", r"^rank \d+ .* % +[\d,.]+ +[\d,.]+ +\d+$",
    ),
    "nothing to recommend, a recommendation": (r"^Nothing to recommend\.", r"^1\. "),
    "idle for no known reason, idle by cause": (
        r"Idle [\d,.]+ ms a \w+: unknown because", r"Idle .*: late launch by the host",
    ),
    "leave the buckets, set them": (r"Leave the buckets as they are", r"Set bucket_cap_mb"),
    "waiting that no setting shortens, a setting": (r"no setting of communication shortens", r"^\d+\. Set "),
    "waiting for late ranks, fewer channels": (r"no setting of communication shortens", r"\d+\. .*try \d+ channels"),
}  # fmt: skip
"""By name: one pattern, and the pattern that excludes it, of what `analyze` and `advise` print."""
LARGE_LOSS: Final = 0.1
"""A step that loses more has something to recommend."""
BUSY: Final = 0.02
MOSTLY: Final = 0.5
SAVES_COMPUTE: Final = frozenset({"communication_copies", "fewer_channels", "bucket_view", "bucket_cap", "fsdp_gathers",
                                  "sixteen_bit_gradients", "late_rank", "device_copies"})  # fmt: skip
"""Recommendations that shorten more than exposed, idle and copy time."""
CHANGES_WORK: Final = frozenset(
    {"straggler_removed", "late_ranks", "host_pauses_ms", "gradient_as_bucket_view", "no_sync"}
)
"""Knobs that shorten what hosts or compute do: with them a step may be shorter than without communication."""
ROUNDING_NS: Final = 2
PLAIN_SHARE: Final = 0.011
"""A percentage further from what the times beside it divide to says what it is the median of."""


class Output(msgspec.Struct, kw_only=True, frozen=True):
    """What the commands say of one run."""

    run: Run
    analysis: Analysis
    advice: Sequence[Recommendation] = ()
    reasons: Sequence[str] = ()
    predicted: WhatIf | None = None

    @property
    def text(self) -> str:
        """What `analyze` and `advise` print."""
        alone = msgspec.structs.replace(self.analysis, recommendations=[])
        return analysis_text.render(alone) + advice_text.render(self.advice, self.reasons)


def contradictions(output: Output) -> Iterator[tuple[str, str]]:
    """Yield the name of each pair of which both are said, and what is said."""
    text = output.text
    for name, patterns in SENTENCES.items():
        one, other = (re.search(pattern, text, re.MULTILINE) for pattern in patterns)
        if one and other:
            yield name, f"{one.group()!r} and {other.group()!r}"
    for name, said in FIGURES.items():
        yield from ((name, each) for each in said(output))


Said = Iterator[str]


def _windows(output: Output) -> Iterator[tuple[str, Breakdown]]:
    for info in output.analysis.ranks:
        for label, each in (("whole", info.whole), *((f"step {step.step}", step) for step in info.steps)):
            if each.window_ns is not None:
                yield f"rank {info.rank} {label}", each


def _parts(output: Output) -> Said:
    for label, each in _windows(output):
        known = [each.overlapped_ns, each.exposed_comm_ns, each.compute_only_ns, each.copy_only_ns, each.idle_ns]
        if None not in known and sum(part or 0 for part in known) != each.window_ns:
            yield f"{label}: parts {known}, window {each.window_ns}"
    for step in output.analysis.headline.job_steps:
        parts = [step.overlapped_ns, step.exposed_comm_ns, step.compute_only_ns, step.copy_only_ns or 0, step.idle_ns,
                 step.start_of_recording_ns, step.outside_ns]  # fmt: skip
        if sum(parts) != step.step_ns:
            yield f"job step {step.step}: parts {parts}, step {step.step_ns}"


def _causes(output: Output) -> Said:
    head = output.analysis.headline
    of_head = ("headline", head.causes, head.exposed_comm_ns, head.idle_causes, head.idle_ns)
    rows = [
        (label, each.causes, each.exposed_comm_ns, each.idle_causes, each.idle_ns) for label, each in _windows(output)
    ]
    for label, causes, exposed_ns, idle_causes, idle_ns in [of_head, *rows]:
        if sum(causes.values()) != (exposed_ns or 0):
            yield f"{label}: exposed {exposed_ns}, causes {causes}"
        if sum(idle_causes.values()) != (idle_ns or 0):
            yield f"{label}: idle {idle_ns}, causes {idle_causes}"


def _wait_parts(output: Output) -> Said:
    for label, each in _windows(output):
        hidden = (each.hidden_wait_ns, each.hidden_transfer_ns)
        if None not in hidden and sum(part or 0 for part in hidden) != each.overlapped_ns:
            yield f"{label}: overlapped {each.overlapped_ns}, of it {hidden}"
        if (each.exposed_wait_ns or 0) > (each.exposed_comm_ns or 0):
            yield f"{label}: exposed {each.exposed_comm_ns}, of it waiting {each.exposed_wait_ns}"


def _headline_and_table(output: Output) -> Said:
    """The headline of a single rank is the median of its table; of several, it lies within those of the ranks."""
    head = output.analysis.headline
    tables = {info.rank: rank_figures(info) for info in output.analysis.ranks if info.rank in head.ranks}
    for name in ("exposed_comm_ns", "overlapped_ns", "idle_ns"):
        value = getattr(head, name)
        steps = [[getattr(each, name) for each in info.steps if each.complete] or [getattr(info.whole, name)]
                 for info in output.analysis.ranks if info.rank in head.ranks]  # fmt: skip
        known = [[each for each in row if each is not None] for row in steps]
        if value is None or not all(known):
            continue
        if len(tables) == 1 and abs(value - round(median(known[0]))) > ROUNDING_NS:
            yield f"{name}: headline {value}, table {tables}"
        least, most = min(map(min, known)), max(map(max, known))
        if not least - ROUNDING_NS <= value <= most + ROUNDING_NS:
            yield f"{name}: headline {value}, ranks from {least} to {most}"


def _text_and_json(output: Output) -> Said:
    head, text = output.analysis.headline, output.text
    if head.window is not None and head.exposed_comm_ns is not None:
        said = f"{ms(head.exposed_comm_ns)} ms of a {ms(head.step_ns)} ms {head.window}"
        if said not in text:
            yield f"JSON {said}, text {text.splitlines()[:4]}"
        if percent(head.exposed_fraction) not in text:
            yield f"JSON {percent(head.exposed_fraction)} exposed, text {text.splitlines()[:4]}"
        divided = head.exposed_comm_ns / (head.step_ns or 1)
        share = f"{said} is exposed communication ({percent(head.exposed_fraction)})"
        if abs(divided - (head.exposed_fraction or 0)) > PLAIN_SHARE and share in text:
            yield f"{share}, which the two times do not divide to"


def _no_communication(output: Output) -> Said:
    for label, each in _windows(output):
        if not each.comm_ns and (each.exposed_comm_ns or each.overlap_efficiency is not None):
            yield f"{label}: communication {each.comm_ns}, exposed {each.exposed_comm_ns}, {each.overlap_efficiency}"
    if output.analysis.collectives and not output.analysis.ranks:
        yield f"{len(output.analysis.collectives)} collectives with times, no ranks"


def _no_compute(output: Output) -> Said:
    for info in output.analysis.ranks:
        if info.whole.comm_ns and not info.whole.compute_ns and info.whole.exposed_comm_ns:
            yield f"rank {info.rank}: no compute recorded, {info.whole.exposed_comm_ns} ns exposed"


def _path_and_step(output: Output) -> Said:
    path = output.analysis.critical_path
    for each in path.steps:
        if sum(each.parts.values()) != each.length_ns or sum(each.ranks.values()) != each.length_ns:
            yield f"path of step {each.step}: {each.length_ns}, parts {each.parts}, ranks {each.ranks}"
    if path.steps and path.reason:
        yield f"{len(path.steps)} paths, and {path.reason}"
    if not path.steps and path.median_step is not None:
        yield f"no path, and one of step {path.median_step}"


def _path_and_idle(output: Output) -> Said:
    """A path through the host means that devices wait for it: they are idle, or communicate exposed."""
    by_step = {(info.rank, each.step): each for info in output.analysis.ranks for each in info.steps}
    by_step |= {(info.rank, None): info.whole for info in output.analysis.ranks}
    for path in output.analysis.critical_path.steps:
        host = path.parts.get("host", 0)
        rows = [each for (rank, step), each in by_step.items() if step == path.step and str(rank) in path.ranks]
        lost = [(each.idle_ns or 0) + (each.exposed_comm_ns or 0) for each in rows if each.window_ns]
        if lost and host > MOSTLY * path.length_ns and max(lost) < BUSY * path.length_ns:
            yield f"path of step {path.step}: host {host} of {path.length_ns}; the ranks lose at most {max(lost)}"


def _matched(output: Output) -> Said:
    skew = output.analysis.skew
    reason = output.analysis.critical_path.reason or ""
    whole = {each.group for each in output.analysis.collectives if each.estimate == "matched"}
    if "could not be matched across all of its ranks" in reason and whole:
        yield f"{reason!r}, and matched rows of {sorted(map(str, whole))}"
    if not skew.matched and whole:
        yield f"no collective matched, and matched rows of {sorted(map(str, whole))}"
    if not skew.matched and any(each.wait_ns for each in skew.ranks):
        yield f"no collective matched, and wait time of {[each.rank for each in skew.ranks]}"
    if skew.matched and not output.run.missing_ranks and len(output.run.ranks) == 1:
        yield f"{skew.matched} collectives matched of a single rank"
    for each in skew.ranks:
        if each.wait_ns > each.collective_ns:
            yield f"rank {each.rank}: waited {each.wait_ns} of {each.collective_ns} in collectives"
        if not each.blame_ns and each.times_last:
            yield f"rank {each.rank}: last {each.times_last} times, blame 0"


def _stragglers(output: Output) -> Said:
    skew = output.analysis.skew
    late = {each.rank for each in skew.ranks if each.blame_ns}
    for each in skew.stragglers:
        if each.rank not in output.analysis.run.ranks:
            yield f"straggler {each.rank} of ranks {output.analysis.run.ranks}"
        if each.blame_ns <= 0:
            yield f"straggler {each.rank} delayed nobody"
    if skew.stragglers and not late and not any("all-to-all" in row.op for row in output.analysis.collectives):
        yield f"stragglers {[each.rank for each in skew.stragglers]}, and no rank was late"
    if any(each.id == "late_rank" for each in output.advice) and not any(each.wait_ns for each in skew.ranks):
        yield "a late rank is to be looked at, and no rank waited"


def _late_launch(output: Output) -> Said:
    """A call on the only stream that computes begins in its turn: launched earlier, it would begin at the same time."""
    for info in output.analysis.ranks:
        spans = output.run.ranks[info.rank].spans
        comm, compute = (set(spans.lane[spans.kind == kind].tolist()) for kind in (COMM, COMPUTE))
        late_ns = info.whole.causes.get("late_launch", 0)
        if comm and comm == compute and late_ns:
            yield f"rank {info.rank}: calls on the only stream that computes, launched late for {late_ns} ns"


def _nothing_to_recommend(output: Output) -> Said:
    head = output.analysis.headline
    lost = (head.exposed_comm_ns or 0) + (head.idle_ns or 0)
    sampled = any(each.no_causes_reason == SAMPLED for each in output.analysis.ranks)  # what is lost is not known
    if head.step_ns and lost > LARGE_LOSS * head.step_ns and not output.advice and not sampled:
        yield f"nothing to recommend, and {lost} of {head.step_ns} ns exposed or idle"


def _gains(output: Output) -> Said:
    head = output.analysis.headline
    step_ns = head.step_ns or 0
    lost = sum(each or 0 for each in (head.exposed_comm_ns, head.idle_ns, head.copy_only_ns, head.outside_ns))
    for each in output.advice:
        low, gain, high = each.gain_low_ns, each.predicted_gain_ns, each.gain_high_ns
        of = recording_ns(output.analysis) / (step_ns or 1) if each.per == "recording" else 1
        known = [value / of for value in (low, gain, high) if value is not None]
        if sorted(known) != known:
            yield f"{each.id}: gain {gain}, from {low} to {high}"
        if step_ns and max(known, default=0) > step_ns + ROUNDING_NS:
            yield f"{each.id}: gain {known} of a step of {step_ns}"
        limit = lost if gain is None else lost + 0.02 * step_ns
        if each.id not in SAVES_COMPUTE and step_ns and max(known, default=0) > limit + ROUNDING_NS:
            yield f"{each.id}: gain {known}, and {lost} of {step_ns} ns is lost"
        if each.verdict == "no_change" and (gain or 0) > 0:
            yield f"{each.id}: no change, and a gain of {gain}"
        if each.confidence == "measured" and each.assumed:
            yield f"{each.id}: measured, and assumes {each.assumed}"
    ids = [each.id for each in output.advice]
    for one, other in (("keep_buckets", "bucket_cap"), ("late_rank", "bucket_cap"), ("flatten_gradients", "bucket_cap"),
                       ("flatten_gradients", "small_collectives"), ("late_rank", "fewer_channels")):  # fmt: skip
        if one in ids and other in ids:
            yield f"{one} beside {other}"
    if len(ids) != len(set(ids)):
        yield f"recommended twice: {ids}"


def _interference(output: Output) -> Said:
    for info in output.analysis.ranks:
        if (info.interference is None) == (info.no_interference_reason is None):
            yield f"rank {info.rank}: {info.interference}, and {info.no_interference_reason}"
    for label, each in _windows(output):
        ends = (each.interference_low_ns, each.interference_ns, each.interference_high_ns)
        known = [value for value in ends if value is not None]
        if len(known) not in (0, 3) or sorted(known) != known:
            yield f"{label}: interference {ends}"
        if max(known, default=0) and sorted(known)[len(known) // 2] > (each.overlapped_ns or 0):
            yield f"{label}: compute {known[1]} longer, and {each.overlapped_ns} beside communication"


def _ranks(output: Output) -> Said:
    run = output.analysis.run
    if run.world_size is not None and len(run.ranks) + len(run.missing_ranks) != run.world_size:
        yield f"{len(run.ranks)} ranks and {len(run.missing_ranks)} missing of {run.world_size}"
    if not set(run.unread_ranks) <= set(run.missing_ranks) or set(run.ranks) & set(run.missing_ranks):
        yield f"ranks {run.ranks}, missing {run.missing_ranks}, unread {run.unread_ranks}"
    ids = [each.id for each in output.analysis.findings]
    if "few_ranks_recorded" in ids and not run.missing_ranks:
        yield "few ranks recorded, and none missing"
    whole = [each for each in output.analysis.collectives if each.group_size is not None and run.world_size]
    for each in whole:
        if (each.group_size or 0) > (run.world_size or 0):
            yield f"a group of {each.group_size} in a job of {run.world_size}"


def _costs(output: Output) -> Said:
    found = output.analysis.throughput
    if found is None:
        return
    for name in ("exposed", "idle"):
        hours, fraction = getattr(found, f"{name}_gpu_hours_a_day"), getattr(found, f"{name}_fraction")
        if hours is not None and (not found.on_device or fraction is None):
            yield f"{name}: {hours} GPU-hours of {fraction}, on a device: {found.on_device}"
        if hours is not None and hours > 24 * (found.devices or 0):
            yield f"{name}: {hours} GPU-hours a day of {found.devices}"


def _predictions(output: Output) -> Said:
    found = output.predicted
    if found is None:
        return
    bounds, base = found.bounds, found.baseline
    if not bounds.no_comm_ns <= bounds.perfect_overlap_ns <= bounds.no_overlap_ns:
        yield f"bounds {bounds}"
    measured = base.measured_step_ns or base.replayed_step_ns
    error = abs(base.replay_error or 0) * measured
    for each in found.scenarios:
        if not each.low_ns <= each.predicted_step_ns <= each.high_ns:
            yield f"{each.knobs}: {each.predicted_step_ns} from {each.low_ns} to {each.high_ns}"
        if not each.gain_low <= each.gain <= each.gain_high:
            yield f"{each.knobs}: gain {each.gain} from {each.gain_low} to {each.gain_high}"
        changed = {name for name, value in each.knobs.items() if base.knobs.get(name) != value}
        if not changed & CHANGES_WORK and each.predicted_step_ns < bounds.no_comm_ns - error - ROUNDING_NS:
            yield f"{each.knobs}: {each.predicted_step_ns}, without communication {bounds.no_comm_ns}"
    best = next((each for each in found.scenarios if each.knobs == found.best.knobs), None)
    if found.verdict == "change" and (best is None or best.gain <= 0):
        yield f"change to {found.best.knobs}, gain {best and best.gain}"
    changes = any(each.verdict == "change" and each.id in ("bucket_cap", "fsdp_gathers") for each in output.advice)
    if changes != (found.verdict == "change") and not found.waiting and found.kind in ("ddp", "fsdp") and output.advice:
        late = any(each.id == "late_rank" for each in output.advice)
        if not late:
            yield f"whatif says {found.verdict}, advise {[each.id for each in output.advice]}"


FIGURES: Final[dict[str, Callable[[Output], Said]]] = {
    "a window, the sum of its parts": _parts,
    "exposed or idle time, the sum of its causes": _causes,
    "overlapped or exposed time, its wait time": _wait_parts,
    "headline, table": _headline_and_table,
    "headline in text, headline in JSON": _text_and_json,
    "no communication, a figure of it": _no_communication,
    "no compute recorded, exposed time": _no_compute,
    "critical path, its parts": _path_and_step,
    "critical path through the host, a device that is busy": _path_and_idle,
    "nothing matched, what only matching shows": _matched,
    "a straggler, nobody late": _stragglers,
    "launched late, on the compute stream": _late_launch,
    "nothing to recommend, a large loss": _nothing_to_recommend,
    "a gain, what is lost": _gains,
    "interference, none": _interference,
    "ranks of the job, ranks recorded": _ranks,
    "GPU-hours, no GPU": _costs,
    "a scenario, its bounds": _predictions,
}
"""By name: what is said of both sides of a pair."""
