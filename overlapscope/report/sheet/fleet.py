"""The sheet of a fleet: the worst runs, straggling hosts, and how each job changed; milliseconds before percentages."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from overlapscope.analysis.common.wording import first_and_count, short
from overlapscope.analysis.compare.fleet import (
    HOST_CHANCE,
    MIN_TREND_RUNS,
    Fleet,
    FleetRun,
    JobTrend,
    StragglingHost,
    Trend,
)
from overlapscope.report.formatting import NOT_APPLICABLE, count, ms, percent, signed_ms
from overlapscope.report.model import Sheet, Table, render_text
from overlapscope.report.text.throughput import number

MAX_RUNS: Final = 20
MAX_JOBS: Final = 20
MAX_LISTED: Final = 3
LEAST_CHANCE: Final = 1e-4
"""Smaller probabilities are shown as `p < 0.0001`."""
RUN_HEAD: Final = (
    "run",
    "job",
    "began, UTC",
    "ranks",
    "step ms",
    "exposed ms",
    "GPU-hours/day",
    "tokens/s",
    "exposed",
    "stragglers",
)
RUN_NOTE: Final = (
    "Worst first: exposed GPU-hours of a day of each run; runs without GPUs by exposed ms a step. Medians over steps."
)
JOB_NOTE: Final = "Median growth from one run to the next; p: an order this steady by chance."
HOST_HEAD: Final = ("host", "began", "cause", "ranks", "ms a step", "runs as straggler", "of", "expected", "p")
JOB_HEAD: Final = (
    "job",
    "trend of exposed",
    "trend of step",
    "ranks",
    "runs",
    "exposed ms a run",
    "p",
    "step ms a run",
    "p",
)


def sheet_of_fleet(found: Fleet, *, all_rows: bool = False) -> Sheet:
    """Return the sheet; without `all_rows` it shows the worst MAX_RUNS runs and MAX_JOBS jobs."""
    runs, jobs = (found.runs, found.jobs) if all_rows else (found.runs[:MAX_RUNS], found.jobs[:MAX_JOBS])
    more = count(len(found.runs) - len(runs), "other run") if len(runs) < len(found.runs) else ""
    fewer = f" {count(len(found.jobs) - len(jobs), 'other job')}: --all." if len(jobs) < len(found.jobs) else ""
    note = f"{RUN_NOTE} {more}: --all." if more else RUN_NOTE
    growth = JOB_NOTE + fewer
    tables = (
        Table(head=HOST_HEAD, rows=tuple(map(host_row, found.hosts.straggling)), left=4),
        Table(head=RUN_HEAD, rows=tuple(map(run_row, runs)), left=3, note=note),
        Table(head=JOB_HEAD, rows=tuple(map(job_row, jobs)), left=3, note=growth),
    )
    return Sheet(
        title=title(found),
        lead=tuple(lead(found)),
        why=tuple(map(host_sentence, found.hosts.straggling)),
        tables=tables,
        warnings=tuple(warnings(found)),
        notes=tuple(notes(found)),
    )


def render(found: Fleet, *, all_rows: bool = False) -> str:
    """Return the fleet as text, ending in a newline."""
    return render_text(sheet_of_fleet(found, all_rows=all_rows))


def title(found: Fleet) -> str:
    """Return how many runs, of how many jobs."""
    return f"Fleet of {count(len(found.runs), 'run')} of {count(len({run.job for run in found.runs}), 'job')}"


def lead(found: Fleet) -> list[str]:
    """Return the worst run, the straggling hosts and the growing jobs, one sentence each."""
    worst = found.runs[0]
    sentences = []
    if worst.exposed_fraction is not None:
        share = percent(worst.exposed_fraction)
        exposed = (
            f"{ms(worst.exposed_ns)} ms of a step of {ms(worst.step_ns)} ms is exposed communication; of the time of "
            f"all its steps and ranks it is {share}"
            if worst.step_ns
            else f"{share} of its time is exposed communication"
        )
        hours = worst.exposed_gpu_hours_a_day
        cost = "" if hours is None else f": {hours:,.1f} GPU-hours a day"
        sentences.append(f"The worst run is {short(worst.name)}: {exposed}{cost}.")
    hosts = [short(each.host) for each in found.hosts.straggling]
    if len(hosts) == 1:
        sentences.append(f"Host {hosts[0]} straggles beyond chance.")
    elif hosts:
        named_hosts = first_and_count(hosts, MAX_LISTED, ", ")
        sentences.append(f"{count(len(hosts), 'host')} straggle beyond chance: {named_hosts}.")
    elif found.hosts.tested:
        sentences.append("No host straggles beyond chance.")
    elif found.hosts.known_runs:
        sentences.append(f"Hosts that straggle beyond chance: {NOT_APPLICABLE}, no run sets some of its hosts apart.")
    for name, words in (("exposed", "Exposed communication"), ("step", "Step time")):
        growing = [job for job in found.jobs if (its := getattr(job, name)) is not None and its.verdict == "growing"]
        if growing:
            named = [f"{_job(job)} ({signed_ms(getattr(job, name).run_ns)} ms a run)" for job in growing]
            sentences.append(f"{words} grows in {first_and_count(named, MAX_LISTED, ', ')}.")
    return sentences


def host_sentence(each: StragglingHost) -> str:
    """Return what is known about a straggling host."""
    words = (
        f"Host {short(each.host)}: its ranks are stragglers in {each.accused} of {count(each.runs, 'run')} "
        f"({each.expected:.1f} expected by chance, {p_words(each.p)})"
    )
    if each.new:
        words += f", since {moment(each.since_ns)} UTC"
    if each.apart_from_ranks:
        return f"{words}."
    which = "rank" if len(each.ranks) == 1 else "ranks"
    listed = first_and_count([str(rank) for rank in each.ranks], MAX_LISTED, ", ")
    return f"{words}. It may be the role of {which} {listed}: too few runs had the same ranks on another host."


def warnings(found: Fleet) -> list[str]:
    """Return what is missing."""
    lines = [f"left out: {reason}" for reason in found.left_out[:MAX_LISTED]]
    if len(found.left_out) > MAX_LISTED:
        lines.append(f"left out: {count(len(found.left_out) - MAX_LISTED, 'more run')}")
    lacking = [short(run.name) for run in found.runs if run.world_size and run.ranks < run.world_size]
    if lacking:
        lines.append(
            f"ranks are missing in {first_and_count(lacking, MAX_LISTED, ', ')}: stragglers among them are not known"
        )
    damaged = [short(run.name) for run in found.runs if run.damaged_hosts]
    if damaged:
        lines.append(
            f"host events cannot be read in {first_and_count(damaged, MAX_LISTED, ', ')}: "
            "stragglers because of their hosts are not known"
        )
    return lines


def notes(found: Fleet) -> list[str]:
    """Return how much could be judged about hosts and trends."""
    hosts = found.hosts
    without = len(found.runs) - hosts.known_runs
    lines = []
    if found.copies:
        named = first_and_count([short(name) for name in found.copies], MAX_LISTED, ", ")
        lines.append(f"copies of other runs, which hosts and trends count once: {named}")
    if hosts.known_runs:
        lines.append(
            f"hosts: {hosts.tested} compared, in {count(hosts.telling_runs, 'run')} with stragglers on some of several "
            f"hosts; were all ranks as likely to straggle, any host would be reported with a probability of at most "
            f"{percent(HOST_CHANCE)}"
        )
    if without:
        lines.append(f"hosts: n/a in {count(without, 'run')}: fewer than two known hosts")
    if not any(job.exposed or job.step for job in found.jobs):
        lines.append(f"trends: n/a, no job has {MIN_TREND_RUNS} runs with known figures at one world size")
    if any(job.ordered_by == "name" for job in found.jobs):
        lines.append("trends: runs whose clock does not say when they began are in the order of their names")
    return lines


def run_row(run: FleetRun) -> tuple[str, ...]:
    """Return the cells below RUN_HEAD."""
    ranks = f"{run.ranks} of {run.world_size}" if run.world_size and run.ranks < run.world_size else str(run.ranks)
    hours = run.exposed_gpu_hours_a_day
    accused = sorted({f"rank {each.rank}" + (f" ({short(each.host)})" if each.host else "") for each in run.stragglers})
    return (
        short(run.name), short(run.job), moment(run.started_ns), ranks, ms(run.step_ns), ms(run.exposed_ns),
        NOT_APPLICABLE if hours is None else f"{hours:,.1f}",
        NOT_APPLICABLE if run.tokens_per_s is None else number(run.tokens_per_s), percent(run.exposed_fraction),
        first_and_count(accused, 1, ", ") if accused else "",
    )  # fmt: skip


def host_row(each: StragglingHost) -> tuple[str, ...]:
    """Return the cells below HOST_HEAD."""
    began = moment(each.since_ns) if each.new else NOT_APPLICABLE if each.new is None else "earlier"
    return (
        short(each.host), began, first_and_count(list(each.held_by), MAX_LISTED, ", "),
        first_and_count([str(rank) for rank in each.ranks], MAX_LISTED, ", "), ms(each.step_ns), str(each.accused),
        str(each.runs), f"{each.expected:.1f}", p_words(each.p),
    )  # fmt: skip


def job_row(job: JobTrend) -> tuple[str, ...]:
    """Return the cells below JOB_HEAD."""
    size = "?" if job.world_size is None else str(job.world_size)
    return (short(job.job), _verdict(job.exposed), _verdict(job.step), size, str(len(job.runs)),
            *_growth(job.exposed), *_growth(job.step))  # fmt: skip


def moment(ns: int | None) -> str:
    """Return a time in UTC; n/a for None, or a time that no calendar has."""
    try:
        return NOT_APPLICABLE if ns is None else datetime.fromtimestamp(ns / 1e9, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return NOT_APPLICABLE


def p_words(p: float) -> str:
    """Return a probability as text."""
    return "p < 0.0001" if p < LEAST_CHANCE else f"p = {p:.4f}"


def _job(job: JobTrend) -> str:
    return short(job.job) if job.world_size is None else f"{short(job.job)} at {count(job.world_size, 'rank')}"


def _verdict(its: Trend | None) -> str:
    return NOT_APPLICABLE if its is None else its.verdict


def _growth(its: Trend | None) -> Sequence[str]:
    return (NOT_APPLICABLE, NOT_APPLICABLE) if its is None else (signed_ms(its.run_ns), p_words(its.p))
