"""Folders of runs for tests of the dashboard."""

import shutil
from pathlib import Path

from overlapscope_dashboards.site import Site
from tests.conftest import ROOT

SAMPLES = ROOT / "traces"


def folder_of_runs(place: Path) -> Path:
    """Copy both sample runs below a folder, without their traces."""
    for name in ("baseline", "regressed"):
        copy_run(place / name, SAMPLES / name)
    return place


def copy_run(place: Path, run: Path = SAMPLES / "baseline") -> Path:
    """Copy a run without its traces."""
    shutil.copytree(run, place, ignore=shutil.ignore_patterns("*.json.gz"))
    return place


def ids(site: Site) -> dict[str, str]:
    """Give the id of each run by its name."""
    return {each.name: each.id for each in site.places().places}


def words(component: object) -> str:
    """Give all text of a component and what is inside it."""
    if isinstance(component, str):
        return component
    if isinstance(component, (list, tuple)):
        return " ".join(filter(None, map(words, component)))
    return words(getattr(component, "children", None) or "")
