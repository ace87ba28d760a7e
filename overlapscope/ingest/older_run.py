"""What stands where a run is to be written, and when a new one may take its place."""

from collections.abc import Sequence
from pathlib import Path

from overlapscope.display_path import shown, url_of
from overlapscope.errors import InputError, NewerSchemaError, UsageError
from overlapscope.ingest.read import UNREAD
from overlapscope.timeline.manifest import read_manifest
from overlapscope.timeline.run import Source
from overlapscope.timeline.run_directory import is_run_directory
from overlapscope.timeline.run_folder import exists_already, is_taken


def require_free(out: Path, *, force: bool) -> None:
    """Raise UsageError where something stands that may not be replaced, or nothing can."""
    if url_of(out) is not None:
        raise UsageError(f"{shown(out)}: a run is written to a disk of this machine; name a path, and copy it then")
    taken = is_taken(out)
    if taken and not force:
        raise exists_already(out)
    if taken and not is_run_directory(out):
        raise UsageError(f"{shown(out)} exists and is no run directory: it is not replaced")


def require_no_less(out: Path, lost: Sequence[Source]) -> None:
    """Raise InputError where a run stands that may hold files that were lost now though they may be as good as any.

    One whose own `run.json` is damaged, or that could not read the same files, is no loss.
    """
    if not lost or not is_run_directory(out):
        return
    try:
        without = {source.path for source in read_manifest(out).sources if source.format == UNREAD}
    except NewerSchemaError:
        without = set()
    except InputError:
        return
    missing = [source for source in lost if source.path not in without]
    if missing:
        more = f" (and {len(missing) - 1} more like it)" if len(missing) > 1 else ""
        raise InputError(
            f"{shown(out)} is left as it was, since it may hold what the new run would lack: {missing[0].path}: "
            f"{missing[0].warnings[0]}{more}; the same command goes on from there, and -o with another place "
            "writes a run without them"
        )
