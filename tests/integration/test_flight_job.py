"""Dumps of real jobs over gloo, recorded by the torch that is installed."""

import json
import pickle
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.ingest.formats.flight_recorder.safe_pickle import decode_plain
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.run import Run
from tests.support.builders import spelled
from tests.support.fork_server import start

torch = pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
if not hasattr(torch._C._distributed_c10d, "_dump_fr_trace_json"):
    pytest.skip("this torch has no flight recorder of gloo", allow_module_level=True)
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]
WORLD = 3
TIMEOUT_SECONDS = 120


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Return a function from a scenario to the folder of its dumps; each is run once."""

    @cache
    def job(scenario: str) -> Path:
        folder = tmp_path_factory.mktemp(scenario)
        (folder / "dumps").mkdir()
        job = start(
            [
                ["-m", "tests.integration.jobs.flight_job", scenario, str(rank), str(WORLD), str(folder / "store"),
                 str(folder / "dumps" / "fr_")]
                for rank in range(WORLD)
            ],
            TORCH_FR_BUFFER_SIZE="500",
        )  # fmt: skip
        ended = job.wait(TIMEOUT_SECONDS)
        assert [each.code for each in ended] == [0] * WORLD, ended
        return folder / "dumps"

    return job


def read(folder: Path, form: str) -> Run:
    return read_inputs([folder / f"fr_{rank}{form}" for rank in range(WORLD)])


@pytest.mark.slow
def test_both_forms_of_a_run_give_the_same_calls_groups_and_progress(recorded: Any) -> None:
    folder = recorded("whole")
    pickled, text = read(folder, ""), read(folder, ".json")
    assert pickled.groups == text.groups
    assert list(pickled.ranks) == list(text.ranks) == [0, 1, 2]
    for rank, timeline in pickled.ranks.items():
        other = text.ranks[rank]
        assert spelled(timeline.collectives, timeline.names) == spelled(other.collectives, other.names)
        assert len(timeline.collectives.seq)
    without = {"source", "called_at"}
    ours, theirs = (
        {name: column for name, column in spelled(run.facts.progress, run.facts.names).items() if name not in without}
        for run in (pickled, text)
    )
    assert ours == theirs
    assert {source.format for source in (*pickled.sources, *text.sources)} == {"flight_recorder"}
    assert analyze(pickled).findings == analyze(text).findings == []


def test_the_calls_are_those_that_were_made(recorded: Any) -> None:
    run = read(recorded("whole"), "")
    for rank, timeline in run.ranks.items():
        calls = spelled(timeline.collectives, timeline.names)
        rows = list(zip(calls["group"], calls["op"], calls["dtype"], calls["elements"], calls["bytes"], strict=True))
        expected = []
        for step in range(3):
            expected += [
                ("0", "all_reduce", "float32", 100 + step, 4 * (100 + step)),
                ("0", "broadcast", "int64", 7, 56),
                ("0", "all_gather", "float32", 15, 60),
            ]
            if rank < 2:
                expected.append(("1", "all_reduce", "bfloat16", 11, 22))
        expected.append(("0", "barrier", None, None, None))
        assert rows == expected
        seqs = [seq for seq, group in zip(calls["seq"], calls["group"], strict=True) if group == "0"]
        assert seqs == list(range(1, 11))
    progress = spelled(run.facts.progress, run.facts.names)
    completed = {(group, done) for group, done in zip(progress["group"], progress["completed"], strict=True)}
    assert completed == {("0", 10), ("1", 3)}


def test_what_pickle_itself_loads_is_what_was_decoded(recorded: Any) -> None:
    for rank in range(WORLD):
        content = (recorded("whole") / f"fr_{rank}").read_bytes()
        assert decode_plain(content, "dump") == (pickle.loads(content), len(content))


def test_the_rank_that_does_not_enter_the_last_collective_is_named(recorded: Any) -> None:
    folder = recorded("missing")
    raw = [json.loads((folder / f"fr_{rank}.json").read_text(encoding="utf-8")) for rank in range(WORLD)]
    made = [sum(each["process_group"][0] == "0" for each in dump["entries"]) for dump in raw]
    assert made == [11, 11, 10]
    for form, called in (("", "tests/integration/jobs/flight_job.py"), (".json", None)):
        (finding,) = analyze(read(folder, form)).findings
        assert finding.id == "desync:missing:0:11"
        assert finding.evidence["missing_ranks"] == [2]
        assert finding.evidence["waiting_ranks"] == [0, 1]
        assert finding.evidence["last_entered"] == {"2": "barrier #10", "0": "all_reduce #11", "1": "all_reduce #11"}
        assert finding.title.startswith(
            "rank 2 had not entered all_reduce #11 of group '0' (all ranks), in which ranks 0, 1"
        )
        assert called is None or called in finding.title
