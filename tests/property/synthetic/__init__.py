"""Traces of training jobs that never ran: a physical model of hosts, devices and links, with known truth.

It shares no code with the analysis, nor with any replay: it moves time forward (a host launches, a lane runs what it
was given, a collective starts on each member when that one comes and ends when the last has come and the bytes are
across), where the analysis looks back at what was recorded. What it knows and a recording does not is its `Truth`.

    from tests.property.synthetic import Job, Layout, plant, run_of, simulate, write_kineto
    job = plant(Job(layout=Layout(tp=2, dp=4), seed=3), "slow_compute", share=0.2)
    simulated = simulate(job)
    run = run_of(simulated)                  # the columns, as the reader would give them
    write_kineto(simulated, folder)          # the files, as torch.profiler would write them

What a job would take otherwise is the same job with a figure changed, run again: `replace(job, fault=Fault())`,
`replace(job, intra_gbs=2 * job.intra_gbs)`, `replace(job, hiccup_cap_ns=...)`; nothing else in it moves, since no draw
depends on time.

`job_faults.py` draws jobs of 8 or 16 ranks with faults of the whole job (starved hosts, polls, profilers that start
apart) and their healthy twins. Kernels of experts' own library have sizes in the columns that their files lack; such
jobs are judged from files.

`draw.py` draws whole jobs (64 ranks, at most 16 recorded) from wide ranges that were fixed before anything was tuned
on them; `simulate` takes a few seconds for 1,024 ranks and millions of spans.
"""

from tests.property.synthetic.columns import run_of
from tests.property.synthetic.faults import FAULTS, plant
from tests.property.synthetic.job import Fault, Job, Layout
from tests.property.synthetic.kineto import write_kineto
from tests.property.synthetic.machine import Simulated, simulate

__all__ = ["FAULTS", "Fault", "Job", "Layout", "Simulated", "plant", "run_of", "simulate", "write_kineto"]
