"""Readers of other packages: found by entry point, used before ours, and named when they fail."""

import os
import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterable
from contextlib import suppress
from importlib.machinery import PathFinder
from importlib.metadata import DistributionFinder, MetadataPathFinder, PathDistribution, entry_points
from importlib.util import find_spec
from pathlib import Path

import pytest

from overlapscope.errors import InputError
from overlapscope.ingest.reader import ReadContext, Reader, Reading
from overlapscope.ingest.registry import BUILT_IN_READERS, may_have_readers
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "sources.md").read_text(encoding="utf-8").split("## A reader of your own")[1].split("\n## ")[0]


def block(language: str) -> str:
    """The one block of that language in the section of the documentation."""
    found = re.findall(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert len(found) == 1
    return str(found[0])


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the documented package was built and installed, as pip does it."""
    if find_spec("setuptools") is None:
        pytest.skip("setuptools is not installed: no package can be built here")
    package, place = tmp_path_factory.mktemp("package"), tmp_path_factory.mktemp("site")
    (package / "pyproject.toml").write_text(block("toml"), encoding="utf-8")
    (package / "overlapscope_acme.py").write_text(block("python"), encoding="utf-8")
    options = ["--no-build-isolation", "--no-deps", "--no-index", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [sys.executable, "-m", "pip", "install", *options, "--target", place, package],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return place


def changed(documented: Path, folder: Path, module: str) -> Path:
    """The same package with another module, installed elsewhere."""
    place = folder / "site"
    shutil.copytree(documented, place, ignore=shutil.ignore_patterns("__pycache__"))
    (place / "overlapscope_acme.py").write_text(module, encoding="utf-8")
    return place


def analyze(place: Path, *inputs: Path) -> "subprocess.CompletedProcess[str]":
    path = os.pathsep.join([str(place), str(ROOT), os.environ.get("PYTHONPATH", "")])
    return subprocess.run(
        [sys.executable, "-m", "overlapscope.cli.main", "analyze", *(each.name for each in inputs)],
        cwd=inputs[0].parent, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False,
    )  # fmt: skip


@pytest.fixture
def sample(tmp_path: Path) -> Path:
    path = tmp_path / "acme.csv"
    path.write_text(block("text"), encoding="utf-8")
    return path


def test_the_documented_package_reads_its_file_and_prints_what_the_page_shows(documented: Path, sample: Path) -> None:
    done = analyze(documented, sample)
    assert (done.returncode, done.stderr) == (0, "")
    command, shown = block("console").split("\n", 1)
    assert command == f"$ overlapscope analyze {sample.name}"
    assert done.stdout.startswith(shown)


@pytest.mark.slow
def test_the_documented_reader_counts_broken_lines_and_refuses_an_empty_file(documented: Path, sample: Path) -> None:
    sample.write_text(block("text") + "0,compute,dancing,x,1,2\n", encoding="utf-8")
    done = analyze(documented, sample)
    assert (done.returncode, done.stderr) == (0, "")
    assert "broken events dropped: 1" in done.stdout
    sample.write_text("#acme-trace 1\n", encoding="utf-8")
    done = analyze(documented, sample)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == "overlapscope analyze: acme.csv: line 3: holds no span; is the file whole?\n"


def test_without_the_package_its_file_is_refused(sample: Path) -> None:
    done = analyze(sample.parent, sample)
    assert (done.returncode, done.stdout) == (3, "")
    assert "acme.csv" in done.stderr


IMPORT = "from overlapscope.ingest.reader import Reader\n"
FAILS = IMPORT + (
    "def read(path, context): raise ZeroDivisionError('two\\nlines')\n"
    "READER = Reader(format='acme', recognises=lambda head: b'acme' in head.content, read=read)\n"
)
FAILURES = {
    "cannot be loaded": (
        "import nowhere_to_be_found\n",
        "cannot be loaded: ModuleNotFoundError: No module named 'nowhere_to_be_found'; update or uninstall it",
    ),
    "is no reader": (
        "READER = 'reader'\n",
        "is no overlapscope.ingest.reader.Reader; update or uninstall it",
    ),
    "raises when it reads": (FAILS, "failed: ZeroDivisionError: two lines"),
    "raises when it looks": (
        IMPORT + "READER = Reader(format='acme', recognises=lambda head: head.no_such_thing, read=None)\n",
        "failed to look at it: AttributeError: 'Head' object has no attribute 'no_such_thing'",
    ),
    "raises when it looks for a part": (
        IMPORT + "no, some = (lambda head: False), (lambda head: head.no_such_thing)\n"
        "READER = Reader(format='acme', recognises=no, holds_some=some, read=None)\n",
        "failed to look at it: AttributeError: 'Head' object has no attribute 'no_such_thing'",
    ),
    "gives something else": (
        IMPORT
        + "READER = Reader(format='acme', recognises=lambda head: True, read=lambda path, context: {'spans': 0})\n",
        "returned a dict, not a Reading",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize(("module", "text"), FAILURES.values(), ids=FAILURES)
def test_a_package_whose_reader_fails_is_named_in_one_line(
    module: str, text: str, tmp_path: Path, documented: Path, sample: Path
) -> None:
    done = analyze(changed(documented, tmp_path, module), sample)
    reader = "the reader 'acme' of overlapscope-acme (overlapscope_acme:READER)"
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"overlapscope analyze: acme.csv: {reader} {text}\n"


@pytest.mark.slow
def test_a_reader_that_fails_costs_its_file_and_not_the_others(tmp_path: Path, documented: Path, sample: Path) -> None:
    """The file that another reader knows is analyzed; the reason stands with the one that failed."""
    other = tmp_path / "other.csv"
    other.write_text("#broken\n", encoding="utf-8")
    failing = FAILS.replace("b'acme'", "b'broken'").replace("READER", "FAILING")
    package = changed(documented, tmp_path, failing + block("python"))
    entry = next(package.glob("*.dist-info")) / "entry_points.txt"
    entry.write_text(entry.read_text(encoding="utf-8") + "worse = overlapscope_acme:FAILING\n", encoding="utf-8")
    done = analyze(package, sample, other)
    assert done.returncode == 0
    assert done.stdout.startswith(block("console").split("\n", 1)[1])
    assert "other.csv: the reader 'worse' of overlapscope-acme" in done.stderr


GROUP = "somebody.else.group"
ENTRY = f"[{GROUP}]\nname = module:value\n"
LAYOUTS = {
    "wheel": "site/package-1.dist-info",
    "development": "site/package.egg-info",
    "spelled in capitals": "site/Package-1.DIST-INFO",
    "egg": "package-1.egg/EGG-INFO",
}


@pytest.fixture
def usual_finders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python's own finder of packages alone: what other tests load brings another one in its place."""
    usual = [each for each in sys.meta_path if each is PathFinder or not hasattr(each, "find_distributions")]
    monkeypatch.setattr(sys, "meta_path", usual)
    monkeypatch.setattr(PathFinder, "find_distributions", MetadataPathFinder.find_distributions, raising=False)


@pytest.mark.usefixtures("usual_finders")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_what_a_package_brings_is_looked_for_where_the_library_finds_it(
    layout: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / LAYOUTS[layout]
    place.mkdir(parents=True)
    (place / ("PKG-INFO" if "egg" in place.name.lower() else "METADATA")).write_text("Name: package\nVersion: 1\n")
    (place / "entry_points.txt").write_text(ENTRY)
    assert not may_have_readers(GROUP)
    monkeypatch.syspath_prepend(place.parent)
    assert [point.value for point in entry_points(group=GROUP)] == ["module:value"]
    assert may_have_readers(GROUP)
    assert not may_have_readers("another")


@pytest.mark.usefixtures("usual_finders")
def test_packages_in_a_zip_file_or_behind_a_finder_are_left_to_the_library(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with zipfile.ZipFile(tmp_path / "packages.zip", "w") as archive:
        archive.writestr("package-1.dist-info/METADATA", "Name: package\nVersion: 1\n")
        archive.writestr("package-1.dist-info/entry_points.txt", ENTRY)
    with monkeypatch.context() as patched:
        patched.syspath_prepend(tmp_path / "packages.zip")
        assert entry_points(group=GROUP)
        assert may_have_readers(GROUP)

    class Finder(MetadataPathFinder):
        """Finds packages that stand nowhere on the path."""

        @classmethod
        def find_distributions(cls, context: DistributionFinder.Context | None = None) -> Iterable[PathDistribution]:
            return super().find_distributions(DistributionFinder.Context(path=[str(tmp_path / "packages.zip")]))

    assert not may_have_readers(GROUP)
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Finder])
    assert entry_points(group=GROUP)
    assert may_have_readers(GROUP)


@pytest.mark.parametrize("reader", BUILT_IN_READERS, ids=lambda reader: reader.format)
def test_what_a_detector_names_is_there_to_read(reader: Reader, tmp_path: Path) -> None:
    """A name that cannot be imported would be an ImportError; what is no file of the format is refused or empty."""
    (tmp_path / "x").write_bytes(b"")
    with suppress(InputError):
        assert isinstance(reader.read(tmp_path / "x", ReadContext()), Reading)
