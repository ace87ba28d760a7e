"""Where data lies, how Hypothesis runs, and a closing word on what was skipped and why."""

import fcntl
import gc
import itertools
import os
import re
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from tests.support.browser import opened_browser
from tests.support.old_torch import needs_dry_runs, rest_before_groups_are_destroyed

ROOT = Path(__file__).parent.parent
settings.register_profile("ci", derandomize=True, deadline=None, print_blob=True, max_examples=25)
settings.register_profile("quick", derandomize=True, deadline=None, print_blob=True, max_examples=20)
settings.register_profile("explore", deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Let `--update-golden` write what renderers give now as what they should give."""
    parser.addoption("--update-golden", action="store_true", help="rewrite the files in tests/golden")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[Any]:
    """Collect tests without looking for garbage, and never look for any in what is then there.

    One of xdist's workers collects before the others, for which it leaves the compiled modules.
    """
    gc.disable()
    with Path(__file__).open("rb") as file:
        if "PYTEST_XDIST_WORKER" in os.environ:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                fcntl.flock(file, fcntl.LOCK_SH)
        try:
            result = yield
        finally:
            gc.enable()
    gc.collect()
    gc.freeze()  # tests that have garbage collected would look through torch and all tests each time
    return result


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the tests of a file on one of xdist's workers, so that what they share is made once."""
    for item in items:
        if not item.get_closest_marker("xdist_group"):
            item.add_marker(pytest.mark.xdist_group(str(item.path.relative_to(ROOT))))


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare a text with its golden file, or write it there."""

    def check(name: str, text: str) -> None:
        path = ROOT / "tests" / "golden" / name
        if request.config.getoption("--update-golden"):
            path.parent.mkdir(exist_ok=True)
            path.write_text(text, encoding="utf-8")
        assert path.read_text(encoding="utf-8") == text

    return check


_folders = itertools.count()


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a folder for a test. Pytest's own fixture looks through those of all tests before it for a free number."""
    name = re.sub(r"\W", "_", request.node.name)[:30]
    place = tmp_path_factory.getbasetemp() / f"{name}_{next(_folders)}_"  # no number that others count on from
    place.mkdir(mode=0o700)
    return place


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """Open the machine's Chromium for the tests of a file."""
    with opened_browser() as opened:
        yield opened


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Keep older versions of torch from hanging the tests that need it."""
    if item.get_closest_marker("torch") and find_spec("torch"):
        rest_before_groups_are_destroyed()
        if item.get_closest_marker("dry_run"):
            needs_dry_runs()


needs_archives = pytest.mark.skipif(not hasattr(tarfile, "data_filter"), reason="archives need Python 3.11.4")


def shared_file(relative: str) -> Path:
    """Return a real public input, or skip the test, naming what is missing."""
    path = Path(os.environ.get("OVERLAPSCOPE_DATA", ROOT.parent / "shared" / "data")) / relative
    if not path.exists():
        pytest.skip(f"public input {relative} is not here (see OVERLAPSCOPE_DATA)")
    return path


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Count the skipped tests by reason."""
    reasons = Counter(
        report.longrepr[2].removeprefix("Skipped: ") for report in terminalreporter.stats.get("skipped", [])
    )
    terminalreporter.write_line(f"{sum(reasons.values())} tests skipped")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"  {count} x {reason}")
