"""Read what plugins of NCCL's profiler interface wrote: Inspector's records, or events as JSON lines.

They give calls in order, with sizes, algorithm and protocol, and how long each took on the device. When that was is
not on the host's clock, and computation is not in it: a timeline has the calls without times, the durations stand
beside it as measurements, and nothing is said of overlap.
"""

from pathlib import Path

from overlapscope.display_path import shown
from overlapscope.errors import InputError
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.formats.nccl_profiler import EVENT_LINES, INSPECTOR, format_of
from overlapscope.ingest.json_objects import JsonObjects
from overlapscope.ingest.nccl_event_traces import read_event_lines
from overlapscope.ingest.nccl_inspector import read_inspector
from overlapscope.ingest.reading import HEAD_BYTES, ReadContext, Reading
from overlapscope.timeline.run import Source


def read_nccl_profiler(path: Path, context: ReadContext) -> Reading:
    """Read one process's file. Raises InputError when it cannot be read or tells of no call."""
    first = next(ByteStream(path, context.max_bytes).blocks(), b"")
    format_ = format_of(first[:HEAD_BYTES])
    stream = ByteStream(path, context.max_bytes, context.progress)
    objects = JsonObjects(stream)
    if format_ == INSPECTOR:
        inspected = read_inspector(objects)
        calls, records, unusable, warnings = (
            inspected.calls,
            inspected.records,
            inspected.unusable,
            inspected.warnings(),
        )
    else:
        traced = read_event_lines(objects)
        calls, records, unusable, warnings = traced.calls, traced.events, traced.unusable, traced.warnings()
    if not len(calls):
        raise InputError(
            f"{shown(path)}: tells of no collective ({records} records); which events was the plugin asked for?"
        )
    ranks, world = calls.world_ranks()
    if world is not None and len(calls.communicators) > 1:
        warnings.append(f"ranks are those in the largest communicator, {world}")
    timelines = calls.timelines(shown(path))
    return Reading(
        source=Source(
            path=shown(path),
            format=format_ or EVENT_LINES,
            ranks=tuple(sorted(set(ranks[ranks >= 0].tolist()))),
            events=records,
            dropped=objects.dropped + unusable,
            truncated=stream.truncated or objects.truncated,
            warnings=(*stream.warnings, *warnings),
        ),
        timelines=timelines,
        world_size=calls.communicators[world].size if world else None,
        groups=calls.groups(),
        facts=calls.facts(shown(path)),
    )
