"""The figures of the fleet page, from a fleet: which runs, jobs and hosts it shows."""

from typing import Final

import msgspec

from overlapscope.analysis.compare.fleet import Fleet, JobTrend
from overlapscope.report.model import Chart, Series
from overlapscope.report.sheet.fleet import host_row, host_sentence, job_row, run_row

MAX_RUNS: Final = 200
"""Rows of the table of runs."""
MAX_JOBS: Final = 100
MAX_DRAWN: Final = 6
"""Jobs that are drawn: those that grow first, then those with the most runs."""


class FleetView(msgspec.Struct, frozen=True, kw_only=True):
    """What the page shows, as text."""

    runs: tuple[tuple[str, tuple[str, ...]], ...]
    """Name of each run, and its cells."""
    more_runs: int
    jobs: tuple[tuple[str, ...], ...]
    hosts: tuple[tuple[str, ...], ...]
    host_sentences: tuple[str, ...]
    charts: tuple[Chart, ...]


def view(found: Fleet) -> FleetView:
    """Return what the page shows of a fleet."""
    return FleetView(
        runs=tuple((run.name, run_row(run)) for run in found.runs[:MAX_RUNS]),
        more_runs=max(0, len(found.runs) - MAX_RUNS),
        jobs=tuple(map(job_row, found.jobs[:MAX_JOBS])),
        hosts=tuple(map(host_row, found.hosts.straggling)),
        host_sentences=tuple(map(host_sentence, found.hosts.straggling)),
        charts=tuple(charts(found)),
    )


def charts(found: Fleet) -> list[Chart]:
    """Return a chart of step time and exposed communication, run by run, of the most important jobs."""
    values = {run.name: run for run in found.runs}
    chosen = sorted((job for job in found.jobs if job.exposed or job.step), key=_importance)[:MAX_DRAWN]
    drawn = []
    for job in chosen:
        runs = [values[name] for name in job.runs]
        series = tuple(
            Series(name=name, values=tuple(None if ns is None else ns / 1e6 for ns in known))
            for name, known in (
                ("exposed", [run.exposed_ns for run in runs]),
                ("step time", [run.step_ns for run in runs]),
            )
        )
        size = "" if job.world_size is None else f", {job.world_size} ranks"
        drawn.append(
            Chart(
                title=f"{job.job}{size}",
                words=f"Exposed communication and step time of {len(runs)} runs in order of {job.ordered_by}.",
                kind="lines",
                axis="ms a step",
                categories=tuple(job.runs),
                series=series,
            )
        )
    return drawn


def _importance(job: JobTrend) -> tuple[bool, int, str]:
    grows = any(its is not None and its.verdict == "growing" for its in (job.exposed, job.step))
    return (not grows, -len(job.runs), job.job)
