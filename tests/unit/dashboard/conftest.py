"""The sample runs, opened once for the tests of a file."""

from pathlib import Path

import pytest

from overlapscope.analysis.result import Analysis
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site
from overlapscope_dashboards.timeline.source import TimelineSource
from tests.support.dashboard_runs import folder_of_runs, ids


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of_runs(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="module")
def site(root: Path) -> Site:
    return Site([root])


@pytest.fixture(scope="module")
def opened(site: Site) -> OpenRun:
    return site.run(ids(site)["baseline"])


@pytest.fixture(scope="module")
def analysis(opened: OpenRun) -> Analysis:
    return opened.analysis


@pytest.fixture(scope="module")
def source(opened: OpenRun) -> TimelineSource:
    return TimelineSource(opened)
