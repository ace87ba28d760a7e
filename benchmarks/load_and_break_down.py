"""Read one trace and break down the whole of it and each of its steps; print seconds and what came out.

python benchmarks/load_and_break_down.py TRACE.json[.gz]
"""

import sys
import time
from pathlib import Path

from overlapscope.analysis.rank_summary import alone_of
from overlapscope.garbage_collection import search_seldom
from overlapscope.ingest.read_run import read_inputs

search_seldom()  # as the command does
begin = time.perf_counter()
run = read_inputs([Path(sys.argv[1])])
(own,) = alone_of(run).values()
seconds = time.perf_counter() - begin
print(f"{seconds:.3f} s, {run.sources[0].events} events, {len(own.figures) - 1} steps")
