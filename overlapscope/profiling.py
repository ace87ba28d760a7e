"""Implement `overlapscope.profile`: connects capture, columns, analysis and the summary."""

import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
from msgspec.structs import replace

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.job_step.headline import Headline, few_communicate
from overlapscope.analysis.result import Analysis, StepBreakdown
from overlapscope.analysis.structure.conformance import conformance
from overlapscope.capture.lifecycle import exchange
from overlapscope.capture.lifecycle.output import apart_key
from overlapscope.capture.session import Session
from overlapscope.capture.timeline import telemetry_of
from overlapscope.display import shell_words
from overlapscope.errors import OverlapScopeError
from overlapscope.ingest.formats.kineto.reader import read_kineto
from overlapscope.ingest.reader import ReadContext
from overlapscope.report.formatting import inert, one_row
from overlapscope.report.rank_columns import complete_steps, rank_figures
from overlapscope.report.text.structure import conformance_lines
from overlapscope.report.text.summary import CaptureSummary, render
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import RankTimeline, Run, join_recordings
from overlapscope.timeline.store.load_save import load_run
from overlapscope.timeline.store.manifest import rank_folder, read_manifest, recorded_ranks
from overlapscope.timeline.store.rank_writer import save_rank

LET_END_SECONDS = 1.0
"""How long rank 0, which often holds the job's store, ends after the ranks that wait for it."""
GRACE_MARGIN_SECONDS = 2.0
"""How much longer than twice the grace other ranks wait: rank 0 may begin its own later, and writes after it."""
MAX_SUMMARY_SPANS = 1_000_000
"""Most spans of all ranks for which the summary analyzes all ranks together: about one second."""


def finish(session: Session) -> None:
    """Write this rank and send its summary to rank 0; rank 0 waits for the other ranks and prints."""
    timeline = session.guard("making columns", _timeline, session)
    if timeline is not None:
        session.guard("writing the rank", _write, session, timeline)
    summary = session.guard("summing up", _summarise, session, timeline)
    if summary is None:
        return
    store = session.guard("finding the job's store", exchange.store) if session.world_size > 1 else None
    key = f"session{session.number}/rank"
    if session.rank != 0:
        if store is not None:
            session.guard("sending to rank 0", _send, session, store, key, summary)
        return
    others: dict[str, dict[str, Any]] = {}
    keys = [f"{key}{rank}" for rank in range(1, session.world_size)]
    if store is not None:
        others = session.guard("receiving the other ranks", _receive, session, store, keys) or {}
        for rank in range(1, session.world_size):
            parts = others.get(f"{key}{rank}", {}).pop("parts", 0)
            folder = session.path / rank_folder(rank)
            if parts and not folder.exists():
                session.guard("fetching a rank", exchange.receive_folder, store, f"{key}{rank}", parts, folder)
    if timeline is not None:
        session.guard("writing run.json", session.save_job, tell_ranks=True)
    if store is not None and session.terminated:
        session.guard("telling the other ranks", _release, session, store)
    received = [summary, *(msgspec.convert(each, CaptureSummary) for each in others.values())]
    run = session.guard("reading the whole run", _whole_run, session) if timeline is not None else None
    together = session.guard("analyzing all ranks together", analyze, run) if run is not None else None
    if run is not None and together is not None:
        received = [_of_whole_run(each, run, together) for each in received]
    missing = [rank for rank in range(1, session.world_size) if f"{key}{rank}" not in others]
    session.guard("cleaning up", session.output.remove_unfinished, missing)
    text = render(
        sorted(received, key=lambda each: each.rank),
        session.world_size,
        shell_words([str(session.path)]),
        session.settings.mode,
        missing,
        together,
    )
    if session.settings.expect is not None and timeline is not None:
        lines = session.guard("holding the run against its dry run", _held_against, session)
        text += "".join(f"{inert(one_row(each))}\n" for each in lines or ())
    sys.stdout.write(text)
    sys.stdout.flush()
    if store is not None and session.terminated:
        session.guard("letting the other ranks end", _let_end, session, store)


def _held_against(session: Session) -> list[str]:
    """Return how the recorded run differs from the dry run that `expect` names, in a few lines."""
    place = str(session.settings.expect)
    try:
        dry = load_run(Path(place))
    except OverlapScopeError as error:
        return [f"  dry run       {error}"]
    return conformance_lines(conformance(dry, load_run(session.path)), shell_words([place]))


def _send(session: Session, store: Any, key: str, summary: CaptureSummary) -> None:
    """Send a rank's summary and columns to rank 0.

    After SIGTERM its end is delayed until rank 0 has written the run: where one process has ended, launchers kill the
    others, and rank 0 with what it had collected.
    """
    parts = _send_columns(session, store, key)
    exchange.send(store, f"{key}{session.rank}", {**msgspec.to_builtins(summary), "parts": parts})
    if session.terminated and exchange.count(store, apart_key(session.number)):
        with suppress(exchange.StoreEndedError):  # rank 0 has ended
            seconds = 2 * session.settings.grace_seconds + GRACE_MARGIN_SECONDS
            exchange.receive(store, [_written_key(session)], seconds, session.hurried)
            exchange.count(store, _ended_key(session), 1)


def _receive(session: Session, store: Any, keys: list[str]) -> dict[str, dict[str, Any]]:
    """Receive what the other ranks sent; after SIGTERM it is waited for only where disks are not shared."""
    seconds = session.wait_seconds
    if session.terminated and exchange.count(store, apart_key(session.number)):
        seconds = session.settings.grace_seconds
    return exchange.receive(store, keys, seconds, session.hurried)


def _release(session: Session, store: Any) -> None:
    """Send the ranks that wait for it the message that the run is written."""
    if exchange.count(store, apart_key(session.number)):
        exchange.send(store, _written_key(session), {})


def _let_end(session: Session, store: Any) -> None:
    """Wait until the ranks that waited for the run no longer need the store."""
    if not exchange.count(store, apart_key(session.number)):
        return
    end = time.monotonic() + LET_END_SECONDS
    while exchange.count(store, _ended_key(session)) < session.world_size - 1 and time.monotonic() < end:
        time.sleep(exchange.POLL_SECONDS)


def _written_key(session: Session) -> str:
    return f"session{session.number}/written"


def _ended_key(session: Session) -> str:
    return f"session{session.number}/ended"


def _whole_run(session: Session) -> Run | None:
    """Return the run with all ranks and all parts; None where this rank's timeline is all of it, or where analyzing it
    would take long."""
    entries = recorded_ranks(session.path, read_manifest(session.path))
    if (len(entries) < 2 and not session.parts.several) or sum(entry.spans for entry in entries) >= MAX_SUMMARY_SPANS:
        return None
    run = load_run(session.path)
    return run if len(run.ranks) > 1 or session.parts.several else None


def _of_whole_run(summary: CaptureSummary, run: Run, analysis: Analysis) -> CaptureSummary:
    """Return a rank's summary with its figures of the whole run, as `analyze` gives them; its own may be of a part."""
    info = next((each for each in analysis.ranks if each.rank == summary.rank), None)
    steps = complete_steps(info) if info is not None else []
    if info is None or not steps:
        return summary
    figures = rank_figures(info, analysis.mean_step)
    return replace(
        summary,
        steps=len(steps),
        step_ns=figures["window_ns"],
        exposed_ns=figures["exposed_comm_ns"],
        hidden_ns=figures["overlapped_ns"],
        idle_ns=figures["idle_ns"],
        exposed_fraction=figures["exposed_fraction"],
        exposed_between_ns=_between(run.ranks[summary.rank], steps),
        cut_steps=run.ranks[summary.rank].recorded.get("cut_steps", {}),
        of_last_part=False,
    )


def _send_columns(session: Session, store: Any, key: str) -> int:
    """Send this rank's columns if rank 0 cannot read them from its file system; return the number of parts."""
    folder = session.path / rank_folder(session.rank)
    if not folder.exists() or session.output.seen_by_rank_0:
        return 0
    return session.guard("sending columns", exchange.send_folder, store, f"{key}{session.rank}", folder) or 0


def _timeline(session: Session) -> RankTimeline | None:
    if session.settings.mode == "events":
        return session.timeline()
    hooks, observed = session.hooks, session.steps.observed
    if hooks.traces is None or not hooks.traces.files:
        return None
    context = ReadContext()
    parts = []
    for at, file in enumerate(hooks.traces.files):
        read = session.guard(f"reading {file.name}", read_kineto, file, context)
        if read is not None:
            parts.append(
                _named_by_its_file(replace(read.timelines[0], rank=session.rank), _kept_name(at, session.rank))
            )
    if not parts:
        return None
    joined = join_recordings(parts)
    names = NameTable(joined.names)
    return session.with_gradients(
        replace(
            joined,
            telemetry=telemetry_of(observed, hooks.sampler.readings, hooks.clock, names),
            names=tuple(names.to_list()),
            recorded=session.recorded(),
        ),
        observed,
    )


def _kept_name(recording: int, rank: int) -> str:
    """Return the name of the trace file that is kept beside the columns."""
    return f"recording{recording}.rank{rank}.pt.trace.json.gz"


def _named_by_its_file(part: RankTimeline, name: str) -> RankTimeline:
    """Set the recording's source to the name under which its file is kept, not the one it was first written to."""
    names = NameTable(part.names)
    return replace(
        part,
        recordings=replace(part.recordings, source=names.encode([name] * part.recordings.source.size)),
        names=tuple(names.to_list()),
    )


def _write(session: Session, timeline: RankTimeline) -> None:
    session.save_job(tell_ranks=False)
    if session.parts.several:
        session.parts.save(timeline)
        return
    files = []
    traces = session.hooks.traces
    for at, file in enumerate(traces.files if traces is not None else ()):
        files.append(file.rename(file.with_name(_kept_name(at, session.rank))))
    save_rank(timeline, session.path, beside=files)
    if session.rank == 0:
        session.output.remove_older_run(session.hooks.clock.epoch_ns(session.begin_ns))


def _between(timeline: RankTimeline | None, steps: Sequence[StepBreakdown]) -> tuple[float, float] | None:
    """Return the median least and most exposed communication of the steps, None where it is determined in all."""
    stated = timeline.recorded.get("exposed_between_ns") if timeline is not None else None
    if not stated or not any(str(each.step) in stated for each in steps):
        return None
    bounds = [stated.get(str(each.step), (each.exposed_comm_ns or 0,) * 2) for each in steps]
    return median(low for low, _ in bounds), median(high for _, high in bounds)


def _summarise(session: Session, timeline: RankTimeline | None) -> CaptureSummary:
    recorded = session.recorded()
    head, steps = Headline(), list[StepBreakdown]()
    if timeline is not None:
        analysis = analyze(Run(world_size=session.world_size, ranks={session.rank: timeline}))
        head, steps = analysis.headline, [step for step in analysis.ranks[0].steps if step.complete and step.window_ns]
    own = head if head.window == "step" else Headline()
    cost = recorded["overhead"] or {}
    return CaptureSummary(
        rank=session.rank,
        host=socket.gethostname(),
        steps=own.steps,
        step_ns=own.step_ns,
        exposed_ns=own.exposed_comm_ns,
        hidden_ns=own.overlapped_ns,
        idle_ns=own.idle_ns,
        exposed_fraction=own.exposed_fraction,
        few=few_communicate(own),
        overhead_ns=cost.get("mean_ns"),
        overhead_low_ns=cost.get("mean_low_ns"),
        overhead_high_ns=cost.get("mean_high_ns"),
        exposed_between_ns=_between(timeline, steps),
        cut_steps=timeline.recorded.get("cut_steps", {}) if timeline is not None else {},
        every=recorded["sampled"][-1]["every"],
        failures=recorded["failures"],
        of_last_part=session.parts.several,
    )
