"""What a process loads before it begins to work: no more than its inputs need."""

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from pkgutil import iter_modules

import pytest

from overlapscope.ingest import formats
from tests.support.writers.kineto import distributed, training, write

FORMATS = {each.name for each in iter_modules(formats.__path__)}
OF_OTHER_INPUTS = (
    "reference_bandwidth",
    "merge.sources",
    "inputs.archives",
    "inputs.remote",
    "parsing.json_repair",
    "parallel.process_pool",
    "parallel.read_parallel",
)
OF_OTHER_VERBS = (
    "whatif.replay",
    "whatif.ddp",
    "advice.replayed_settings",
    "analysis.compare",
    "gate",
    "timeline.store.load_save",
)


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "rank0.json"
    path.write_bytes(write(training(2), metadata=distributed(0)))
    return path


def loaded_by(code: str) -> set[str]:
    """The modules that are loaded after some code ran in a fresh interpreter."""
    ask = f"import json, sys\n{code}\nprint('loaded:', json.dumps(list(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)
    return set(json.loads(done.stdout.rsplit("loaded:", 1)[1]))


@pytest.mark.slow
def test_reading_a_trace_loads_no_reader_of_another_format(trace: Path) -> None:
    reads = "from pathlib import Path\nfrom overlapscope.ingest.read_run import read_inputs\n"
    loaded = loaded_by(f"{reads}assert read_inputs([Path({str(trace)!r})]).ranks")
    assert {name for name in FORMATS if f"overlapscope.ingest.formats.{name}" in loaded} == FORMATS
    assert {name for name in FORMATS if f"overlapscope.ingest.formats.{name}.reader" in loaded} == {"kineto"}


@pytest.mark.slow
def test_analyzing_a_trace_loads_nothing_of_other_inputs_and_other_verbs(trace: Path) -> None:
    unneeded = {f"overlapscope.ingest.{name}" for name in OF_OTHER_INPUTS}
    unneeded |= {f"overlapscope.{name}" for name in OF_OTHER_VERBS}
    assert all(map(find_spec, unneeded))
    for options in ([], ["--json"]):
        words = ["analyze", str(trace), *options]
        loaded = loaded_by(f"from overlapscope.cli.main import main\nassert main({words!r}) == 0")
        assert not loaded & {*unneeded, "torch", "dash", "plotly", "pandas"}


def test_workers_are_started_before_anything_large_is_loaded() -> None:
    assert not loaded_by("import overlapscope.cli.read_run") & {"numpy", "msgspec", "pyarrow"}


@pytest.mark.slow
def test_what_analyze_loads_while_workers_start_is_all_that_it_needs_after_them(trace: Path) -> None:
    begun = loaded_by(
        "from overlapscope.cli.verbs import analyze\nanalyze._load_rooms()\nimport overlapscope.cli.read_run"
    )
    words = ["analyze", str(trace)]
    used = loaded_by(f"from overlapscope.cli.main import main\nassert main({words!r}) == 0")
    rooms = ("overlapscope.analysis", "overlapscope.advice", "overlapscope.report", "numpy")
    assert not {name for name in used - begun if name.startswith(rooms)}
