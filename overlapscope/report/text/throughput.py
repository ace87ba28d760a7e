"""Render what a run processes and what its losses cost, in sentences; what is not known is left out."""

from statistics import median
from typing import Final

from overlapscope.analysis.common.cause_table import START_OF_RECORDING
from overlapscope.analysis.cost.throughput import Amount, Throughput, gpu_hours_a_day
from overlapscope.analysis.job_step.headline import Headline
from overlapscope.analysis.result import MeanStep
from overlapscope.display import list_some
from overlapscope.report.formatting import count, ms, percent

_KNOWN_FROM = {"recorded": "", "log": "by the log", "option": "as stated"}


APART: Final = 0.1
"""Least relative difference between the mean of all steps and their median that is named. A choice: what is less
changes no decision."""
APART_HOURS: Final = 1.0
"""The same in GPU-hours a day. A choice."""
WORTH_COPIES: Final = 0.02
"""Least share of a step that copies alone take where they are named beside the other losses. A choice."""
OF_NO_STEP: Final = 0.25
"""Least relative difference between the hours of two medians and the median of hours from which on the former are of no
step. A choice."""


def lines(found: Throughput | None, head: Headline, mean: MeanStep | None = None) -> list[str]:
    """Return sentences on throughput, GPU-hours a day and goodput; those without a known figure are left out.

    Goodput stands beside the rates that it is to be read with. `mean` is the mean step, where that is the main figure.
    """
    if found is None:
        return []
    rates = _rates(found)
    return [each for each in (rates, _goodput(found) if rates else "", _hours(found, head, mean)) if each]


def number(value: float) -> str:
    """Return an amount or a rate as text, with three digits or more."""
    return f"{value:,.0f}" if value >= 100 else f"{value:,.3g}"


def mfu_words(found: Throughput) -> str:
    """Return the utilization with its peak; n/a with the reason where it is not known."""
    if found.mfu is None:
        return f"MFU n/a: {found.reasons.get('mfu', 'not known')}"
    of = f"{found.dtype}, published" if found.peak_from == "published" else "as stated"
    return f"MFU {_at_most(found)}{percent(found.mfu)} of {number(found.peak_tflops or 0)} TFLOP/s ({of})"


def _rates(found: Throughput) -> str:
    amounts = (("tokens", found.tokens), ("samples", found.samples))
    parts = [_rate(each, name, found) for name, each in amounts if each is not None]
    flops = found.flops_per_device
    if flops is not None:
        rate = (
            "" if flops.per_second is None else f"{_at_most(found)}{number(flops.per_second / 1e12)} TFLOP/s a device"
        )
        parts.append(f"{rate}{_known(flops, found)}, {mfu_words(found)}" if rate else mfu_words(found))
    of_log = " Step time is the log's." if found.time_from == "log" else ""
    return f"{'; '.join(parts)}.{of_log}" if parts else ""


def _at_most(found: Throughput) -> str:
    """Return what is before FLOPs of a device that are those stated of the job over the fewest devices it may have."""
    of_job = found.flops_per_device is not None and found.flops_per_device.known_from == "option"
    return "at most " * (of_job and found.devices_at_least)


def _rate(amount: Amount, name: str, found: Throughput) -> str:
    if amount.per_second is None:
        return f"{name}/s n/a: {found.reasons.get(f'{name}.per_second', 'not known')}"
    least = "at least " * (amount.extrapolated and found.devices_at_least)
    return f"{least}{number(amount.per_second)} {name}/s: {number(amount.per_step)} a step{_known(amount, found)}"


def _known(amount: Amount, found: Throughput) -> str:
    of = f"{'at least ' * found.devices_at_least}{found.devices} ranks"
    words = f"taken from {found.ranks} of {of}" if amount.extrapolated else _KNOWN_FROM[amount.known_from]
    return f" ({words})" if words else ""


def _hours(found: Throughput, head: Headline, mean: MeanStep | None) -> str:
    parts = [
        f"{hours:,.1f} GPU-hours {name}" + ("" if price is None else f" ({price:,.2f})")
        for name, hours, price in (
            ("exposed", found.exposed_gpu_hours_a_day, found.exposed_price_a_day),
            ("idle", found.idle_gpu_hours_a_day, found.idle_price_a_day),
            *_late(found),
            *_copies(found, head),
        )
        if hours is not None
    ]
    return f"A day on {_devices(found)}: {', '.join(parts)}{_of_median(found, head, mean)}." if parts else ""


def _devices(found: Throughput) -> str:
    """Return how many GPUs GPU-hours are of, and what is taken of those that were not recorded."""
    least = "at least " * found.devices_at_least
    repeated = ", of the repeated steps alone" * bool(found.repeated)
    if found.roles_differ:
        gpus = f"the {count(found.ranks, 'recorded GPU')} alone{repeated}"
        return f"{gpus}, which differ too much to stand for the others of {least}{found.devices}"
    alike = f", if all are as the {count(found.ranks, 'recorded rank')}"
    return f"{least}{count(found.devices or 0, 'GPU')}{repeated}{alike * (found.ranks < (found.devices or 0))}"


def _late(found: Throughput) -> list[tuple[str, float | None, float | None]]:
    """Return what devices idle before their first kernels a day, where ranks begin later than others."""
    late, hours, rate = found.late_starts, found.late_starts_gpu_hours_a_day, found.price_per_gpu_hour
    if late is None or hours is None:
        return []
    words = f"before the first kernels of ranks that begin late (rank {late.rank} by {ms(late.most_ns)} ms)"
    return [(words, hours, None if rate is None else hours * rate)]


def _copies(found: Throughput, head: Headline) -> list[tuple[str, float, float | None]]:
    """Return what copies alone cost a day, where that is more than either other loss, and worth naming."""
    steps = [each for each in head.job_steps if each.step not in found.cut_short]
    copied_ns = sum(each.copy_only_ns or 0 for each in steps)
    late_ns = 0 if found.late_starts is None else found.late_starts.mean_ns
    own_ns = sum(each.step_ns - each.start_of_recording_ns - each.outside_ns for each in steps) + late_ns
    idle, exposed = found.idle_gpu_hours_a_day, found.exposed_gpu_hours_a_day or 0.0
    if idle is None or found.repeated is not None or copied_ns < WORTH_COPIES * own_ns or not own_ns:
        return []
    hours, rate = _a_day(copied_ns / own_ns, found), found.price_per_gpu_hour
    return [("memcpy alone", hours, None if rate is None else hours * rate)] if hours > max(idle, exposed) else []


def _of_median(found: Throughput, head: Headline, mean: MeanStep | None) -> str:
    """Return which steps the hours are of, and what the headline's median step gives, where that differs by much from
    what these steps together give; which steps also where something before the first of them is in none.

    Where outliers set the median length, it may be of another step than the median time that is lost, and both together
    are none's: then it is the median of what each step gives.
    """
    pairs = []
    for all_give, lost_ns, each_lost_ns in (
        (found.exposed_gpu_hours_a_day, head.exposed_comm_ns, [step.exposed_comm_ns for step in head.job_steps]),
        (found.idle_gpu_hours_a_day, head.idle_ns, [step.idle_ns for step in head.job_steps]),
    ):
        # A single step is its own median: it differs by what was not recorded at its begin.
        is_median = head.window == "step" and (len(head.job_steps) > 1 or not head.start_of_recording_ns)
        if all_give is not None and lost_ns is not None and head.step_ns and is_median:
            shares = [ns / max(step.step_ns, 1) for ns, step in zip(each_lost_ns, head.job_steps, strict=True)]
            of_medians = lost_ns / head.step_ns
            pairs.append((all_give, *(_a_day(share, found) for share in (of_medians, median(shares or [of_medians])))))
    of_no_step = any(_are_apart(of_medians, usual, OF_NO_STEP) for _, of_medians, usual in pairs)
    given = [usual if of_no_step else of_medians for _, of_medians, usual in pairs]
    if not any(_are_apart(all_give, hours, APART) for (all_give, *_), hours in zip(pairs, given, strict=True)):
        return f", over {_which_steps(found, head)}" if found.lead is not None else ""
    said = " and ".join(f"{hours:,.1f}" for hours in given)
    of_times = ", which milliseconds are of," * (mean is None)
    gives = "the median of what steps give is" if of_no_step else f"the median step{of_times} gives"
    return f", over {_which_steps(found, head)}; {gives} {said}"


def _a_day(share: float, found: Throughput) -> float:
    return gpu_hours_a_day(share, found.paid_devices or 0) or 0.0


def _are_apart(one: float, other: float, share: float) -> bool:
    """Return whether hours differ by this share, and by enough to be named."""
    return abs(one - other) >= max(share * max(one, other), APART_HOURS)


def _which_steps(found: Throughput, head: Headline) -> str:
    """Return which steps GPU-hours are of, and what of them, or before them, is in none."""
    cut, lead = found.cut_short, found.lead
    which = f"{found.steps} of {found.steps + len(cut)} steps" if cut else f"all {count(found.steps, 'step')}"
    left_out = []
    if cut:
        left_out.append(f"step{'s' * (len(cut) > 1)} {list_some(cut)}, which no marked step follows")
    if head.causes.get(START_OF_RECORDING) or head.idle_causes.get(START_OF_RECORDING):
        left_out.append("the start of the recording")
    if lead is not None:
        left_out.append(
            f"{ms(lead.quiet_ns)} ms between the begin of step {lead.step} and its first launch: what devices did then "
            "was not recorded"
        )
    return f"{which}, without {', and without '.join(left_out)}" if left_out else which


def cost_text(hours: float | None, price: float | None) -> str:
    """Return the GPU-hours of a day, and their price where it is known, as text; empty where they are not known."""
    if hours is None:
        return ""
    return f"{hours:,.1f} GPU-hours a day" + ("" if price is None else f" worth {price:,.2f}")


def _goodput(found: Throughput) -> str:
    if found.goodput is None or found.goodput_time_ns is None:
        return ""
    inside = ms(found.goodput * found.goodput_time_ns)
    return (
        f"{inside} of {ms(found.goodput_time_ns)} ms recorded lie in complete steps: goodput "
        f"{percent(found.goodput)}, start-up and restarts not seen."
    )
