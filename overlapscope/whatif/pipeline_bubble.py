"""What a pipeline's schedule cannot avoid, beside what was recorded."""

from overlapscope.analysis.pipeline import ideal_bubble_ns, pipeline_stages
from overlapscope.analysis.steps import step_windows
from overlapscope.timeline.run import Run

MS = 1e6


def bubble_notes(run: Run) -> list[str]:
    """Say how long each pipeline's worst stage stands still, and what its schedule needs; nothing where untold."""
    windows = {rank: step_windows(each) for rank, each in run.ranks.items()}
    found = []
    for group, stages in pipeline_stages(run, windows):
        worst = max(stages, key=lambda each: each.bubble_ns)
        ideal = ideal_bubble_ns(worst.window_ns - worst.bubble_ns, len(group.ranks or ()), worst.activations)
        found.append(
            f"stage {worst.place} of pipeline {group.name} stands still, or waits for other stages, for "
            f"{worst.bubble_ns / MS:.3f} ms of its step; 1F1B needs {ideal / MS:.3f} ms with {worst.activations} "
            "activations a stage, whatever the links"
        )
    return found
