"""torchtitan: steps for a recording of ours, and a line on each trace that its own profiler writes.

    with overlapscope.profile("runs/titan", model=trainer.model_parts[0]) as scope:
        trainer.train_step = overlapscope.frameworks.torchtitan.train_step(scope, trainer)
        trainer.train()

    config.profiler.trace_post_processor = overlapscope.frameworks.torchtitan.trace_post_processor()

A step is one `train_step`, with the batches of its gradient accumulation. After each export rank 0 reads its own trace
and prints how much of the step is exposed communication. Reading takes as long as `overlapscope analyze` does, in a
pause that the export has made already.
"""

import sys
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

import overlapscope
from overlapscope.capture.host.environment import rank_and_world
from overlapscope.capture.lifecycle.guard import Guard
from overlapscope.capture.session import Session
from overlapscope.display import shell_words
from overlapscope.errors import UsageError
from overlapscope.frameworks.framework_steps import imported
from overlapscope.report.formatting import ms, percent


def train_step(scope: Session, trainer: Any) -> Callable[[Any], Any]:
    """Return the trainer's `train_step` as a step of the profile, with its tokens and model FLOPs.

    Ranks that are given the same batch (TP, CP, PP) count a part each, as torchtitan's own tokens/s do. Raises
    UsageError when `trainer` is none.
    """
    if not all(hasattr(trainer, name) for name in ("train_step", "parallel_dims", "metrics_processor")):
        raise UsageError(f"{type(trainer).__name__} is no torchtitan.trainer.Trainer: it has no metrics_processor")
    original = trainer.train_step
    share = 1.0 / trainer.parallel_dims.non_data_parallel_size
    flops_per_token = trainer.metrics_processor.num_flops_per_token  # -1 where torchtitan does not know it

    @wraps(original)
    def one_step(batches: Iterator[Any]) -> Any:
        with scope.step():
            return original(counted(batches))

    def counted(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            scope.guard("counting what a step processes", count, batch)
            yield batch

    def count(batch: Any) -> None:
        _, labels = batch
        tokens = labels.numel() * share
        scope.count(tokens=tokens, flops=tokens * flops_per_token if flops_per_token > 0 else None)

    return one_step


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
    analysis = overlapscope.load(path, ranks={path.name: 0}).analysis()
    figures, which = analysis.main_figures, "in the mean " * (analysis.mean_step is not None)
    sys.stdout.write(
        f"overlapscope: {path.parent.name}, rank 0: {which}{ms(figures.exposed_comm_ns)} ms of a {ms(figures.step_ns)} "
        f"ms {analysis.headline.window or 'recording'} is exposed communication ({percent(figures.exposed_fraction)}), "
        f"{ms(figures.overlapped_ns)} ms more is overlapped; "
        f"all ranks: overlapscope analyze {shell_words([str(path.parent)])}\n"
    )
    sys.stdout.flush()
