"""An answer of the replay as predictions that a later run can be held against."""

from overlapscope.analysis.prediction_check import Prediction
from overlapscope.whatif.recorded_steps import Recorded
from overlapscope.whatif.result import WhatIf


def noted(told: WhatIf, seen: Recorded, *, made_at: str, version: str) -> list[Prediction]:
    """Return the prediction of each setting that can be measured; none where the recording is not understood."""
    if told.verdict == "insufficient_data":
        return []
    base = told.baseline
    return [
        Prediction(
            made_at=made_at,
            version=version,
            verdict=told.verdict,
            recommended=told.verdict == "change" and each.knobs == told.best.knobs,
            present=base.knobs,
            present_step_ns=base.measured_step_ns or base.replayed_step_ns,
            ranks=len(seen.ranks),
            gradient_bytes=int(seen.grad_bytes.sum()),
            knobs=each.knobs,
            step_ns=each.predicted_step_ns,
            low_ns=each.low_ns,
            high_ns=each.high_ns,
        )
        for each in told.scenarios
        if each.known_from == "replay" and not each.hypothetical
    ]
