"""Runs of a job that never was: step times and exposed times with the noise of real ones, drawn from a seed."""

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from overlapscope.analysis.common.cause_table import CAUSES
from overlapscope.analysis.compare.kernel_changes import KernelSums
from overlapscope.analysis.compare.measured_run import MeasuredRun
from overlapscope.analysis.exposure.call_kind import Shares
from overlapscope.analysis.job_step.step_table import FIGURES, WHOLE, StepTable
from overlapscope.timeline.columns import NONE

MS = 1_000_000
STEP_MS, EXPOSED_MS = 100.0, 10.0
JOB = {"world_size": "8", "device": "imagined", "dtype": "bfloat16", "parameters": "1000", "parallelism": "data 8"}


def run_of_steps(
    figures: Mapping[str, Sequence[float]], name: str = "run", identity: Mapping[str, str] | None = None, rank: int = 0
) -> MeasuredRun:
    """Return a run of one rank that knows these figures of its steps, in milliseconds, and no others."""
    count = len(next(iter(figures.values()), ()))
    columns = {each: np.full((1, count), NONE, np.int64) for each in (*FIGURES, "blame_ns")}
    for each, values in figures.items():
        columns[each] = np.rint(np.array([values]) * MS).astype(np.int64)
    if "exposed_comm_ns" in figures:
        columns["comm_ns"] = columns["exposed_comm_ns"] + 1
    return MeasuredRun(
        name=name, world_size=None, missing_ranks=(), identity=JOB if identity is None else identity,
        steps=_table(columns, tuple((step, 0) for step in range(count)), rank),
        whole=_table({each: values[:, :1] for each, values in columns.items()}, (WHOLE,), rank),
        kernels={rank: KernelSums(steps=count, sums={})}, collectives=(),
    )  # fmt: skip


def _table(figures: Mapping[str, npt.NDArray[np.int64]], steps: tuple[tuple[int, int], ...], rank: int) -> StepTable:
    shape = (1, len(steps))
    nothing = np.zeros(0, np.int64)
    empty = Shares(kinds=(), kind=nothing, column=nothing, amount=nothing)
    return StepTable(
        ranks=(rank,), steps=steps, recorded=np.ones(shape, np.bool_), figures=figures,
        causes={cause: np.zeros(shape, np.int64) for cause in CAUSES}, idle_causes={}, windows=None,
        exposed_ns=(empty,), calls=(empty,),
    )  # fmt: skip


def noisy_runs(
    generator: np.random.Generator, runs: int, *, steps: int = 20, longer_ms: float = 0.0
) -> list[MeasuredRun]:
    """Draw runs: 1 % from run to run, 2 % from step to step (each half like the one before it), a hiccup every 33.

    All of what makes a step longer is exposed; `longer_ms` is a true loss.
    """
    found = []
    for at in range(runs):
        of_run = generator.normal(0, 0.01 * STEP_MS)
        shocks = generator.normal(0, 0.02 * STEP_MS * np.sqrt(1 - 0.25), steps)
        drift = np.zeros(steps)
        drift[0] = generator.normal(0, 0.02 * STEP_MS)
        for step in range(1, steps):
            drift[step] = 0.5 * drift[step - 1] + shocks[step]
        hiccups = np.where(generator.random(steps) < 0.03, 0.5 * STEP_MS, 0.0)
        extra = of_run + drift + hiccups + longer_ms
        found.append(
            run_of_steps(
                {"window_ns": STEP_MS + extra, "exposed_comm_ns": np.maximum(EXPOSED_MS + extra, 0.0)}, f"run {at}"
            )
        )
    return found
