"""Convert the result of a replay into predictions that a later run is compared with."""

from overlapscope.analysis.compare.prediction_check import Prediction
from overlapscope.whatif.ddp.recorded_steps import Recorded
from overlapscope.whatif.result import WhatIf


def predictions_to_record(result: WhatIf, seen: Recorded, *, made_at: str, version: str) -> list[Prediction]:
    """Return the prediction of each setting that can be measured; empty where the replay does not match the run."""
    if result.verdict == "insufficient_data":
        return []
    base = result.baseline
    return [
        Prediction(
            made_at=made_at,
            version=version,
            verdict=result.verdict,
            recommended=result.verdict == "change" and each.knobs == result.best.knobs,
            present=base.knobs,
            present_step_ns=base.measured_step_ns or base.replayed_step_ns,
            ranks=len(seen.ranks),
            gradient_bytes=int(seen.grad_bytes.sum()),
            knobs=each.knobs,
            step_ns=each.predicted_step_ns,
            low_ns=each.low_ns,
            high_ns=each.high_ns,
        )
        for each in result.scenarios
        if each.known_from == "replay" and not each.hypothetical
    ]
