"""Read one trace and break down the whole of it and each of its steps; print seconds and what came out.

python benchmarks/load_and_break_down.py TRACE.json[.gz]
"""

import sys
import time
from pathlib import Path

from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.garbage_collection import collect_rarely
from overlapscope.ingest.read_run import read_inputs

collect_rarely()  # as the command does
begin = time.perf_counter()
run = read_inputs([Path(sys.argv[1])])
(own,) = summarize_ranks(run).values()
seconds = time.perf_counter() - begin
print(f"{seconds:.3f} s, {run.sources[0].events} events, {len(own.figures) - 1} steps")
