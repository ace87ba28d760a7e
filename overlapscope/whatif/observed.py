"""What a recording tells that a prediction of its settings is held against."""

import numpy as np

from overlapscope.analysis.across import Across, across
from overlapscope.analysis.predictions import Observed
from overlapscope.errors import InputError
from overlapscope.timeline.run import Run
from overlapscope.whatif.recorded_settings import recorded_settings
from overlapscope.whatif.recorded_steps import recorded_steps


def observed(run: Run, name: str, together: Across | None = None) -> Observed:
    """Give its settings and the median of its steps. Raises InputError, saying what is missing."""
    try:
        seen = recorded_steps(run, together or across(run))
        settings, _ = recorded_settings(run, seen)
    except InputError as error:
        raise InputError(
            f"{name}: its settings are not told, so that no prediction is held against it: {error}"
        ) from None
    return Observed(
        run=name,
        knobs=settings.knobs(),
        step_ns=round(float(np.median(seen.steps_ns))),
        ranks=len(seen.ranks),
        gradient_bytes=int(seen.grad_bytes.sum()),
    )
