"""What host events cost `ingest`: room in the run directory, and processor time."""

import sys
from statistics import median
from tempfile import TemporaryDirectory

from benchmarks.inputs import million_events
from benchmarks.processes import run_measured

TURNS = 5
PROGRAM = """
import sys, time
import overlapscope
from overlapscope.timeline.columns import size
from overlapscope.timeline.store.rank_files import table_file, write_table
(timeline,) = overlapscope.load(sys.argv[1]).run.ranks.values()
folder = Path(sys.argv[2])
print(time.process_time())
for name in ("spans", "host", "syncs"):
    begun = time.process_time()
    table = getattr(timeline, name)
    rows = size(table)
    write_table(table, timeline.names, 0, table_file(folder, name))
    print(rows, table_file(folder, name).stat().st_size, time.process_time() - begun)
"""


def table() -> str:
    """Measure, and give a table in markdown."""
    with TemporaryDirectory() as made:
        turns = [
            [float(word) for word in run_measured(command).output.split()]
            for command in [[sys.executable, "-c", PROGRAM, million_events(), made]] * TURNS
        ]
    _, spans, room_spans, _, rows, room, _, _, room_syncs, _ = map(round, turns[0])
    reading, writing = (median(each) for each in zip(*((turn[0], turn[6] + turn[9]) for turn in turns), strict=True))
    return "\n".join(
        [
            "| trace | spans | host spans | spans kB | host events kB | bytes each | reading s | host events s |",
            "|---|---|---|---|---|---|---|---|",
            f"| {million_events().name} | {spans:,} | {rows:,} | {room_spans / 1e3:.0f} "
            f"| **{(room + room_syncs) / 1e3:.0f}** | {room / rows:.1f} | {reading:.2f} | **{writing:.2f}** |",
        ]
    )
