"""Read a training log: the lines of all known formats, in one pass.

To support a further format, add a LogFormat to FORMATS.
"""

from pathlib import Path

from overlapscope.display import display_path
from overlapscope.errors import InputError
from overlapscope.ingest.formats.training_log import deepspeed as deepspeed_comms
from overlapscope.ingest.formats.training_log import megatron as megatron_timers
from overlapscope.ingest.formats.training_log.line_format import LogFormat, plain
from overlapscope.ingest.parsing.gzip_stream import ByteStream, iter_lines
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.facts import join_facts
from overlapscope.timeline.run import Source

FORMATS: tuple[LogFormat, ...] = (deepspeed_comms.LINES, megatron_timers.LINES)


def read_training_log(path: Path, context: ReadContext) -> Reading:
    """Read the lines of all known formats; the source's format names those that were found.

    Raises InputError when the file cannot be read or holds no such line.
    """
    stream = ByteStream(path, context.max_bytes, context.progress)
    takers = [(each.name, each.lines()) for each in FORMATS]
    for line in iter_lines(stream):
        for _, taker in takers:
            if taker.wants(line):
                taker.take(plain(line))
    found = [(name, taker.found(display_path(path))) for name, taker in takers]
    present = [(name, each) for name, each in found if each.lines]
    if not present:
        raise InputError(
            f"{display_path(path)}: holds no complete line of {' or '.join(each.name for each in FORMATS)}"
        )
    warnings = [*stream.warnings, *(warning for _, each in present for warning in each.warnings)]
    return Reading(
        facts=join_facts([each.facts for _, each in present]),
        source=Source(
            path=display_path(path),
            format="+".join(name for name, _ in present),
            events=sum(each.lines for _, each in present),
            dropped=sum(each.dropped for _, each in found),
            truncated=stream.truncated,
            warnings=tuple(warnings),
        ),
    )
