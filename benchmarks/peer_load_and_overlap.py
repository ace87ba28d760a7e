"""What HTA's users do, under its own Python: load the traces, print each rank's overlap of communication in per cent.

python peer_load_and_overlap.py TRACE.json[.gz] ...
"""

import sys

from hta.trace_analysis import TraceAnalysis

if __name__ == "__main__":
    traces = TraceAnalysis(trace_files=dict(enumerate(sys.argv[1:])), trace_dir="")
    frame = traces.get_comm_comp_overlap(visualize=False)
    print(", ".join(f"{value:.2f}" for value in frame["comp_comm_overlap_pctg"]))
