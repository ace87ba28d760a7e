"""Read from a recording the settings and the step that an earlier prediction is compared with."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import numpy as np
from msgspec.structs import replace

from overlapscope.analysis.compare.prediction_check import ObservedRun
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.errors import InputError
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp.ddp_step import Settings
from overlapscope.whatif.ddp.recorded_settings import has_buckets, recorded_settings
from overlapscope.whatif.ddp.recorded_steps import Recorded, recorded_steps

MOST_MB: Final = 1e9
"""A larger number in a prediction file is not a bucket cap."""


def observed_run(run: Run, name: str) -> ObservedRun:
    """Return the settings of a recording and its median step. Raises InputError, which says what is missing."""
    try:
        seen = recorded_steps(run, match_and_align(run))
        settings, _ = recorded_settings(run, seen)
    except InputError as error:
        raise InputError(f"{name}: its settings are not known, so it is compared with no prediction: {error}") from None
    return ObservedRun(
        run=name,
        knobs=settings.knobs(),
        step_ns=round(float(np.median(seen.steps_ns))),
        ranks=len(seen.ranks),
        gradient_bytes=int(seen.grad_bytes.sum()),
        has_buckets=partial(_has_buckets, seen, settings),
    )


def _has_buckets(seen: Recorded, settings: Settings, knobs: Mapping[str, Any]) -> bool:
    """Return whether the caps of a prediction make the recorded buckets; values from a file may not be caps."""
    cap, caps = knobs.get("bucket_cap_mb"), knobs.get("bucket_cap_mb_list") or ()
    if not isinstance(caps, list | tuple) or not all(map(_is_cap, caps)) or not (cap is None or _is_cap(cap)):
        return False
    ddp = replace(settings.ddp, bucket_cap_mb=cap, bucket_cap_mb_list=tuple(caps), small_first_bucket=None)
    return has_buckets(seen, replace(settings, ddp=ddp))


def _is_cap(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < MOST_MB
