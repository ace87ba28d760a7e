"""Read `step_trace_time.csv`: the Ascend profiler's own sums of each step, shown beside ours.

Writer: torch_npu `profiler/analysis/prof_view/_trace_step_time_parser.py`. Overlapped is Communication less
Communication(Not Overlapped); Stage runs from the first to the last device work of the step.
"""

from pathlib import Path
from typing import Final

from overlapscope.display_path import shown, shown_name
from overlapscope.errors import InputError
from overlapscope.ingest.ascend_folder import rank_of
from overlapscope.ingest.ascend_tables import number_of, rows_of, step_of
from overlapscope.ingest.bytestream import ByteStream
from overlapscope.ingest.fact_tables import FigureRows
from overlapscope.ingest.reading import ReadContext, Reading
from overlapscope.timeline.run import UNKNOWN_RANK, Source

FIGURES: Final = {
    "Computing": "computing_us",
    "Communication(Not Overlapped)": "communication_not_overlapped_us",
    "Overlapped": "overlapped_us",
    "Communication": "communication_us",
    "Free": "free_us",
    "Stage": "stage_us",
    "Bubble": "bubble_us",
    "Communication(Not Overlapped and Exclude Receive)": "communication_not_overlapped_nor_receiving_us",
    "Preparing": "preparing_us",
}


def read_step_times(path: Path, context: ReadContext) -> Reading:
    """Read the table. Raises InputError when it has no row with a figure."""
    stream = ByteStream(path, context.max_bytes, context.progress)
    figures = FigureRows(rank_of(path))
    usable = []
    for row in rows_of(stream, path):
        device = row.get("Device_id")
        subject = f"device {device}" if device and device != "-1" else None
        step = step_of(row.get("Step"))
        added = [figures.add(subject, name, number_of(row.get(title)), step=step) for title, name in FIGURES.items()]
        usable.append(any(added))
    if not any(usable):
        raise InputError(f"{shown(path)}: holds no step with figures")
    return Reading(
        facts=figures.facts(shown_name(path)),
        source=Source(
            path=shown(path),
            ranks=() if figures.rank == UNKNOWN_RANK else (figures.rank,),
            events=len(usable),
            dropped=usable.count(False),
            truncated=stream.truncated,
            warnings=tuple(stream.warnings),
        ),
    )
