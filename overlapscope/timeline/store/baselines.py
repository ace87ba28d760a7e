"""Baselines: a plain folder of named runs, only their columns, for a repository or an artifact store.

    BASELINES/NAME/run.json ...            one run, as any run directory
    BASELINES/NAME/run-01/run.json ...     several runs of the same code; run-001 where they are a hundred

So every verb can read a baseline, and there is no separate format to maintain.
"""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from overlapscope.errors import InputError, UsageError
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.load_save import fill_run
from overlapscope.timeline.store.manifest import Manifest
from overlapscope.timeline.store.run_directory import MANIFEST, is_run_directory
from overlapscope.timeline.store.run_folder import is_taken, require_own, write_then_replace

_ONE_OF_SEVERAL: Final = re.compile(r"run-\d{2,}")
"""Name of a run in a baseline of several."""
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
MAX_MANIFEST_BYTES: Final = 64 * 2**20


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """One baseline of a folder, described without opening its tables."""

    name: str
    path: Path
    runs: int
    ranks: int
    """Recorded in the first run."""
    world_size: int | None
    steps: int
    """Largest number of steps of a rank in the first run."""
    device: str | None
    size_bytes: int
    problem: str | None = None
    """Why it cannot be read."""


def baseline_path(folder: Path, name: str) -> Path:
    """Return the path of a baseline. Raises UsageError for a name that is not allowed."""
    if not NAME.fullmatch(name):
        raise UsageError(
            f"{name[:80]!r} is not a baseline name: use letters, digits, '.', '_' and '-', a letter or digit first"
        )
    return folder / name


def save_baseline(runs: Sequence[Run], place: Path, *, version: str, force: bool = False) -> None:
    """Write the runs as one baseline, completely or not at all.

    Raises UsageError if the path exists and `force` is not given, or if it contains no run, or files of others;
    InputError if it cannot be written.
    """
    if is_taken(place) and not force:
        raise UsageError(f"{place} exists already; choose another name, or replace it with -f")
    if place.exists() and not list_runs(place):
        raise UsageError(f"{place} contains no run, so it is not replaced; choose another name")
    if place.exists():
        inside = list_runs(place)
        several = [each.name for each in inside if each != place]
        require_own(place, besides={name for name in several if _ONE_OF_SEVERAL.fullmatch(name)})
        for each in inside:
            require_own(each)
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with write_then_replace(place) as temporary:
            if len(runs) == 1:
                fill_run(runs[0], temporary, version=version)
            else:
                width = max(2, len(str(len(runs))))  # so that their names sort as they do
                for at, run in enumerate(runs, 1):
                    each = temporary / f"run-{at:0{width}d}"
                    each.mkdir()
                    fill_run(run, each, version=version)
    except OSError as error:
        raise InputError(f"{place}: cannot be written: {error.strerror or error}") from error


def list_runs(place: Path) -> list[Path]:
    """Return the run directories of a baseline, in the order in which they were saved."""
    if is_run_directory(place):
        return [place]
    return (
        sorted(each for each in place.iterdir() if each.is_dir() and is_run_directory(each)) if place.is_dir() else []
    )


def baselines(folder: Path) -> list[Baseline]:
    """Return the baselines of a folder, by name; raises InputError where there is no such folder."""
    try:
        inside = sorted(each for each in folder.iterdir() if each.is_dir() and NAME.fullmatch(each.name))
    except OSError as error:
        raise InputError(f"{folder}: cannot be read: {error.strerror or error}") from error
    found = (_described(each) for each in inside)
    return [each for each in found if each is not None]


def _described(place: Path) -> Baseline | None:
    runs = list_runs(place)
    if not runs:
        return None
    stored = sum(file.stat().st_size for file in place.rglob("*") if file.is_file())
    try:
        content = (runs[0] / MANIFEST).read_bytes()[:MAX_MANIFEST_BYTES]
        manifest = msgspec.json.decode(content, type=Manifest)
    except (OSError, msgspec.MsgspecError, RecursionError) as error:
        why = str(error).split("\n", maxsplit=1)[0][:200]
        return Baseline(
            name=place.name, path=place, runs=len(runs), ranks=0, world_size=None, steps=0, device=None,
            size_bytes=stored, problem=f"{MANIFEST} cannot be read: {why}",
        )  # fmt: skip
    device = manifest.fingerprint.get("device")
    return Baseline(
        name=place.name,
        path=place,
        runs=len(runs),
        ranks=len(manifest.ranks),
        world_size=manifest.world_size,
        steps=max((len(each.steps) for each in manifest.ranks), default=0),
        device=None if device is None else str(device),
        size_bytes=stored,
    )
