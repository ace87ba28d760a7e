"""Other numbers of NCCL's channels as trials: how a job's transfers go with them nobody measured here."""

from collections.abc import Sequence

from overlapscope.advice.nccl_settings import Library, channels_of, fewer_channels, more_channels
from overlapscope.errors import UsageError
from overlapscope.timeline.run import Run
from overlapscope.whatif.scenario import Trial

NOT_NCCL = "channels are NCCL's, and nothing says that this recording's collectives are"
VERIFY = "record a run with it, then: overlapscope compare RUN NEW_RUN"


def no_channels(run: Run) -> str:
    """Say why nothing can be said of channels; empty where something can."""
    return NOT_NCCL if Library.of(run) is None else ""


def channel_trials(run: Run, channels: Sequence[int]) -> list[Trial]:
    """Give a trial for each number. Raises UsageError where the recording's collectives are not NCCL's."""
    if not channels:
        return []
    library = Library.of(run)
    if library is None:
        raise UsageError(f"--channels: {NOT_NCCL}")
    present = channels_of(run)
    return [_trial(library, present, each) for each in dict.fromkeys(channels)]


def _trial(library: Library, present: int | None, channels: int) -> Trial:
    if present == channels:
        return Trial(knobs={"channels": channels}, why="so many are used at present", apply={}, verify="")
    more = present is not None and channels > present
    now = f"now {present}" if present is not None else "the present number is not recorded"
    effect = (
        "transfers may go faster, and take more of the device's multiprocessors from what computes beside them"
        if more
        else "what computes beside transfers has more of the device's multiprocessors, and transfers may go slower"
    )
    return Trial(
        knobs={"channels": channels},
        why=f"{now}: {effect}; not measured here, so that no gain is told",
        apply=more_channels(library, channels) if more else fewer_channels(library, channels),
        verify=VERIFY,
    )
