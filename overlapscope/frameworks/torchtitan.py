"""torchtitan: a line on each trace that its own profiler writes, and steps for a recording of ours.

    config.profiler.trace_post_processor = overlapscope.frameworks.torchtitan.trace_post_processor()

After each export rank 0 reads its own trace and prints how much of the step is exposed communication. Reading takes as
long as `overlapscope analyze` does, in a pause that the export has made already. For a recording of ours there is no
adapter: `trainer.train_step = scope(trainer.train_step)`, which holds the batches of its gradient accumulation.
"""

import sys
from pathlib import Path
from typing import Any

import overlapscope
from overlapscope.capture.host.environment import rank_and_world
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.display import shell_words
from overlapscope.frameworks.framework_steps import imported
from overlapscope.report.formatting import ms, percent


def trace_post_processor() -> Any:
    """Return what `Profiler.Config.trace_post_processor` takes.

    Raises UsageError when torchtitan is not installed, or is older than this hook.
    """
    (function,) = imported(["torchtitan.config.function"], "torchtitan (with profiler.trace_post_processor)")
    return function.Function.Config(fn=print_exposed)


def print_exposed(trace_path: str) -> None:
    """Print the exposed communication of rank 0's trace on rank 0; a failure is a warning."""
    if rank_and_world()[0] == 0:
        Guard()("reading the trace", _print_exposed, Path(trace_path))


def _print_exposed(path: Path) -> None:
    figures = overlapscope.load(path, ranks={path.name: 0}).analysis().headline
    sys.stdout.write(
        f"overlapscope: {path.parent.name}, rank 0: {ms(figures.exposed_comm_ns)} ms of a {ms(figures.step_ns)} ms "
        f"{figures.window or 'recording'} is exposed communication ({percent(figures.exposed_fraction)}), "
        f"{ms(figures.overlapped_ns)} ms more is overlapped; "
        f"all ranks: overlapscope analyze {shell_words([str(path.parent)])}\n"
    )
    sys.stdout.flush()
