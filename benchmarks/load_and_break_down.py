"""Read one trace and break it down, as `overlapscope analyze` does; print seconds and what came out.

python benchmarks/load_and_break_down.py TRACE.json[.gz]
"""

import sys
import time
from pathlib import Path

from overlapscope.analysis.analyze import analyze
from overlapscope.ingest.read import read_inputs

begin = time.perf_counter()
analysis = analyze(read_inputs([Path(sys.argv[1])]))
seconds = time.perf_counter() - begin
print(f"{seconds:.3f} s, {analysis.sources[0].events} events, {len(analysis.ranks[0].steps)} steps")
