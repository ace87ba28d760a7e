"""Host spans in a run directory: read when a column is accessed, kept by all that writes a run, lost alone."""

import json
import pickle
import shutil
import tracemalloc
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope.analysis.common.cause_table import WAITS_FOR_LATE_RANK
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.explained import chain_at
from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.timeline.columns import HOST_SPAN_KINDS, NONE, OPERATION, RUNTIME, HostSpans, make, size, take
from overlapscope.timeline.lazy_host_spans import LazyHostSpans, select_host_spans
from overlapscope.timeline.run import RankTimeline, Run, join_recordings
from overlapscope.timeline.store import lazy_rank as stored
from overlapscope.timeline.store.lazy_rank import StoredRank
from overlapscope.timeline.store.load_save import load_run, save_run
from overlapscope.timeline.store.manifest import SCHEMA, read_manifest, recorded_ranks
from tests.conftest import ROOT
from tests.support.builders import EPOCH_NS, flip_bit, full_timeline, spelled
from tests.support.writers.kineto import write_job
from tests.unit.analysis.graph.graph_figures import graph_figures


@pytest.fixture
def place(tmp_path: Path) -> Path:
    ranks = {rank: full_timeline(rank, tag=f" of {rank}") for rank in (0, 1)}
    save_run(Run(world_size=2, ranks=ranks), tmp_path / "run", version="1")
    return tmp_path / "run"


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The tables that are read from then on."""
    found: list[str] = []
    reading = stored.read_table
    monkeypatch.setattr(
        stored, "read_table", lambda folder, name, *rest: (found.append(name), reading(folder, name, *rest))[1]
    )
    return found


def host_of(timeline: RankTimeline) -> dict[str, list[object]]:
    return spelled(timeline.host, timeline.names)


def table(place: Path, rank: int = 0, name: str = "host") -> Path:
    return place / f"rank_{rank:05d}" / f"{name}.parquet"


@pytest.mark.parametrize("kinds", [(), (RUNTIME,), tuple(range(len(HOST_SPAN_KINDS)))])
@pytest.mark.parametrize("named", ["all", "some"])
def test_chosen_host_spans_are_those_of_the_whole_table(kinds: tuple[int, ...], named: str) -> None:
    trace = ROOT / "traces" / "baseline" / "rank_00000" / "recording0.rank0.pt.trace.json.gz"
    fresh, other = (overlapscope.load(trace).run.ranks[0] for _ in range(2))
    flagged = None if named == "all" else np.arange(len(fresh.names)) % 3 == 0
    some = select_host_spans(fresh.host, kinds, flagged)
    whole = other.host.at_hand()
    wanted = np.isin(whole.kind, kinds) & (True if flagged is None else flagged[whole.name])
    assert size(whole) > 0
    assert spelled(some, fresh.names) == spelled(take(whole, wanted), fresh.names)
    assert spelled(select_host_spans(other.host, kinds, flagged), fresh.names) == spelled(some, fresh.names)


def test_host_spans_are_read_when_a_column_is_accessed_and_not_before(place: Path, reads: list[str]) -> None:
    run = load_run(place)
    first = run.ranks[0]
    assert isinstance(first.host, LazyHostSpans)
    assert first.has_host_events
    assert first.at_hand().host is first.host
    assert first.with_calls(first.names, first.collectives).host is first.host
    assert replace(first.at_hand(), basis="log").host is first.host
    assert "host" not in reads
    assert host_of(first) == host_of(full_timeline(0, tag=" of 0"))
    assert reads.count("host") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "times"),
    [
        (["analyze", "RUN"], 1),
        (["advise", "RUN"], 1),
        (["compare", "RUN", "RUN"], 2),
        (["gate", "RUN", "RUN"], 2),
        (["whatif", "RUN", "--list"], 1),
        (["report", "RUN", "-o", "OUT.html"], 1),
        (["export", "RUN", "-o", "OUT.json.gz"], 1),
    ],
    ids=lambda value: value[0] if isinstance(value, list) else "",
)
def test_commands_read_host_spans_once_for_the_graph_of_each_rank(
    words: list[str], times: int, tmp_path: Path, reads: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    ranks = 2
    assert main(["ingest", str(write_job(tmp_path / "job", ranks)), "-o", str(tmp_path / "run")]) == 0
    given = {"RUN": str(tmp_path / "run"), "OUT.html": str(tmp_path / "o.html"), "OUT.json.gz": str(tmp_path / "o.gz")}
    assert main([given.get(word, word) for word in words]) in (0, 4), capsys.readouterr().err
    assert "spans" in reads
    assert reads.count("host") == times * ranks


def test_a_table_without_rows_is_no_missing_one(tmp_path: Path) -> None:
    none = replace(full_timeline(), host=make(HostSpans, 0))
    save_run(Run(world_size=1, ranks={0: none}), tmp_path / "run", version="1")
    run = load_run(tmp_path / "run")
    assert size(run.ranks[0].host) == 0
    assert run.ranks[0].has_host_events
    assert run.sources[0].warnings == ()


def test_copies_need_no_file(place: Path) -> None:
    first = load_run(place).ranks[0]
    copies = (pickle.loads(pickle.dumps(first)), deepcopy(first), pickle.loads(pickle.dumps(first.at_hand())))
    wanted = host_of(first)
    shutil.rmtree(place)
    for other in (*copies, deepcopy(copies[0])):
        assert host_of(other) == wanted
    assert take(first.host, np.array([1])).start_ns.tolist() == first.host.start_ns[1:2].tolist()
    with pytest.raises(AttributeError):
        assert first.host.no_such_column  # type: ignore[attr-defined]


def test_a_run_saved_over_itself_keeps_its_host_spans(place: Path) -> None:
    save_run(load_run(place), place, version="1", force=True)
    for rank, timeline in load_run(place).ranks.items():
        assert host_of(timeline) == host_of(full_timeline(rank, tag=f" of {rank}"))
        assert size(timeline.syncs) == 2


def test_host_spans_of_two_recordings_stay_in_order_and_on_their_threads() -> None:
    early, late = full_timeline(3), full_timeline(3, start_ns=EPOCH_NS + 5000, tag=" later")
    joined = join_recordings([late, early])
    host = joined.host
    keys = list(zip(host.lane.tolist(), host.start_ns.tolist(), (-host.end_ns).tolist(), strict=True))
    assert keys == sorted(keys)
    lanes = size(early.lanes)
    assert (host.lane // lanes).tolist() == host.recording.tolist() == [0] * 4 + [1] * 4
    named = [joined.name(code) for code in host.name.tolist()]
    assert named[5] == "aten::mm größer later"
    syncs = joined.syncs
    assert (syncs.awaited_lane[syncs.awaited_lane != NONE] // lanes).tolist() == [0, 1]
    assert joined.has_host_events
    without = replace(late, recordings=replace(late.recordings, host_events=np.array([False])))
    assert not join_recordings([early, without]).has_host_events


# --- older runs -------------------------------------------------------------------------------------------------------


def as_schema_1(place: Path) -> None:
    """Make a run what the first schema wrote: no host tables, nothing that speaks of them."""
    manifest = json.loads((place / "run.json").read_text())
    manifest["schema"] = "overlapscope.run/1"
    for entry in manifest["ranks"]:
        del entry["host_spans"], entry["syncs"]
    (place / "run.json").write_text(json.dumps(manifest))
    for folder in place.glob("rank_*"):
        entry = json.loads((folder / "rank.json").read_text())
        del entry["host_spans"], entry["syncs"]
        (folder / "rank.json").write_text(json.dumps(entry))
        for name in ("host", "syncs"):
            (folder / f"{name}.parquet").unlink()
        windows = pq.read_table(folder / "recordings.parquet").drop_columns(["host_events"])
        pq.write_table(windows, folder / "recordings.parquet")


def test_a_run_of_the_first_schema_opens_and_says_that_it_has_no_host_events(place: Path) -> None:
    as_schema_1(place)
    run = load_run(place)
    for rank, timeline in run.ranks.items():
        assert not timeline.has_host_events
        assert size(timeline.host) == size(timeline.syncs) == 0
        assert size(timeline.spans) == size(full_timeline(rank).spans)
    assert not [warning for source in run.sources for warning in source.warnings]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trace_run", "events_run", "ingested_run"])
def test_a_released_run_has_no_host_events(name: str, tmp_path: Path) -> None:
    run = load_run(shutil.copytree(ROOT / "tests" / "released" / "0.1" / name, tmp_path / name))
    assert run.ranks
    for timeline in run.ranks.values():
        assert not timeline.has_host_events
        assert size(timeline.host) == 0
    assert main(["ingest", str(tmp_path / name), "-o", str(tmp_path / "new")]) == 0
    assert read_manifest(tmp_path / "new").schema_ == SCHEMA == "overlapscope.run/2"
    new = load_run(tmp_path / "new")
    assert not any(timeline.has_host_events for timeline in new.ranks.values())


def test_traces_ingested_again_have_them(tmp_path: Path) -> None:
    traces = [*(ROOT / "traces" / "baseline").glob("rank_*/*.json.gz")]
    assert main(["ingest", *map(str, traces), "-o", str(tmp_path / "run")]) == 0
    entries = recorded_ranks(tmp_path / "run", read_manifest(tmp_path / "run"))
    run = load_run(tmp_path / "run")
    assert len(entries) == 2
    for entry in entries:
        assert entry.host_spans == size(run.ranks[entry.rank].host) > 0


# --- damage -----------------------------------------------------------------------------------------------------------


def damaged(path: Path, how: str) -> None:
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(path.read_bytes()[:-20])
    elif how == "of another rank":
        shutil.copyfile(path.parent.parent / "rank_00001" / path.name, path)
    else:
        pq.write_table(pq.read_table(path).slice(0, 1), path)


@pytest.mark.parametrize("how", ["gone", "cut", "of another rank", "fewer rows"])
def test_damaged_host_spans_are_left_out_alone_and_it_is_said(place: Path, how: str) -> None:
    damaged(table(place), how)
    run = load_run(place)
    assert list(run.ranks) == [0, 1]
    assert not run.ranks[0].has_host_events
    assert size(run.ranks[0].host) == size(run.ranks[0].syncs) == 0
    assert size(run.ranks[0].spans) == 4
    assert host_of(run.ranks[1]) == host_of(full_timeline(1, tag=" of 1"))
    (said,) = [warning for source in run.sources for warning in source.warnings]
    assert "rank 0: its host events left out: host.parquet: " in said


@pytest.mark.parametrize("how", ["gone", "cut", "of another rank", "fewer rows"])
def test_damaged_synchronisations_are_left_out_with_the_host_spans(place: Path, how: str) -> None:
    damaged(table(place, name="syncs"), how)
    run = load_run(place)
    assert not run.ranks[0].has_host_events
    assert run.ranks[1].has_host_events


@pytest.mark.slow
@pytest.mark.parametrize(
    ("column", "value", "said"),
    [
        ("lane", 9, "host.lane points outside its table of 2 rows"),
        ("recording", 1, "host.recording points outside its table of 1 rows"),
        ("end_ns", EPOCH_NS - 50, "end before they start"),
        ("start_ns", NONE, "host.start_ns is missing"),
    ],
)
def test_impossible_host_spans_are_an_error_where_they_are_used(
    tmp_path: Path, column: str, value: int, said: str
) -> None:
    timeline = full_timeline()
    values = getattr(timeline.host, column).copy()
    values[2] = value
    bad = replace(timeline, host=replace(timeline.host, **{column: values}))
    save_run(Run(world_size=1, ranks={0: bad}), tmp_path / "run", version="1")
    run = load_run(tmp_path / "run")
    assert size(run.ranks[0].spans) == 4
    with pytest.raises(InputError, match=said) as error:
        assert run.ranks[0].host.start_ns.size
    assert "move it away to read this rank without host events" in str(error.value)
    table(tmp_path / "run").unlink()
    assert not load_run(tmp_path / "run").ranks[0].has_host_events


@pytest.mark.parametrize(
    ("column", "value"),
    [("lane", 9), ("awaited_lane", 2), ("recording", -1), ("end_ns", EPOCH_NS - 1), ("start_ns", NONE)],
)
def test_impossible_synchronisations_cost_host_events_alone(tmp_path: Path, column: str, value: int) -> None:
    timeline = full_timeline()
    values = getattr(timeline.syncs, column).copy()
    values[1] = value
    bad = replace(timeline, syncs=replace(timeline.syncs, **{column: values}))
    save_run(Run(world_size=1, ranks={0: bad}), tmp_path / "run", version="1")
    run = load_run(tmp_path / "run")
    assert size(run.ranks[0].spans) == 4
    assert not run.ranks[0].has_host_events
    (said,) = [warning for source in run.sources for warning in source.warnings]
    assert f"syncs{'.' + column if value != EPOCH_NS - 1 else ': 1 of 2 rows end before they start'}" in said


def test_a_file_that_is_replaced_while_the_run_is_opened_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_run(Run(world_size=1, ranks={0: full_timeline()}), tmp_path / "run", version="1")
    naming = stored.words_of

    def replaced(column: pa.ChunkedArray) -> list[str]:
        content = table(tmp_path / "run").read_bytes()
        table(tmp_path / "run").unlink()
        table(tmp_path / "run").write_bytes(content)
        return naming(column)

    monkeypatch.setattr(stored, "words_of", replaced)
    run = load_run(tmp_path / "run")
    with pytest.raises(InputError, match="was changed since the run was opened"):
        assert run.ranks[0].host.start_ns.size


@pytest.mark.slow
def test_a_page_lost_later_costs_an_analysis_the_host_events_of_its_rank(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    assert main(["ingest", str(write_job(tmp_path / "job", 2)), "-o", str(run)]) == 0
    documents = []
    for damages in (False, True):
        if damages:
            flip_bit(table(run, 1))
        capsys.readouterr()
        assert main(["analyze", str(run), "--json"]) == 0
        printed = capsys.readouterr()
        documents.append(json.loads(printed.out))
        assert ("host events of rank 1 cannot be read: " in printed.err) == damages
        assert "Traceback" not in printed.err
    before, after = documents
    assert after["ranks"][0] == before["ranks"][0]
    assert after["ranks"][1]["no_causes_reason"] == "unreadable_host_events"
    assert after["ranks"][1]["whole"]["exposed_comm_ns"] == before["ranks"][1]["whole"]["exposed_comm_ns"]
    assert main(["analyze", str(run)]) == 0
    printed = capsys.readouterr()
    assert "No host events of rank 1" in printed.out
    assert "host events of rank 1 cannot be read: " in printed.err
    for verb in ("advise", "compare", "report"):
        words = {"compare": [str(run), str(run)], "report": [str(run), "--format", "md"]}.get(verb, [str(run)])
        assert main([verb, *words]) in (0, 4), verb
        assert "Traceback" not in capsys.readouterr().err


@pytest.mark.slow
def test_each_command_that_goes_on_without_host_events_says_so_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, whole = str(tmp_path / "run"), str(tmp_path / "whole")
    assert main(["ingest", str(write_job(tmp_path / "job", 2)), "-o", run]) == 0
    shutil.copytree(run, whole)
    flip_bit(table(Path(run), 1))
    for words in (
        ["advise", run],
        ["compare", whole, run],
        ["export", run, "-o", str(tmp_path / "trace.json")],
        ["explain", run, "--at", "0:0.1"],
        ["gate", whole, run],
        ["report", whole, run],
        ["whatif", run],
        ["whatif", run, "--list"],
    ):
        capsys.readouterr()
        assert main(words) in (0, 4), words
        said = [
            line for line in capsys.readouterr().err.splitlines() if "host events of rank 1 cannot be read: " in line
        ]
        assert len(said) == 1, words
        assert said[0].startswith(f"overlapscope {words[0]}: warning: "), words


def without_column(path: Path) -> None:
    pq.write_table(pq.read_table(path).drop_columns(["duration_ns"]), path)


def analysis_of(run: Path, capsys: pytest.CaptureFixture[str]) -> tuple[dict[str, Any], list[str]]:
    capsys.readouterr()
    assert main(["analyze", str(run), "--json"]) == 0
    told = capsys.readouterr()
    return json.loads(told.out), told.err.splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip_bit, without_column])
def test_what_proves_damaged_when_read_costs_no_more_than_what_is_seen_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object]
) -> None:
    assert main(["ingest", str(write_job(tmp_path / "job", 2)), "-o", str(tmp_path / "whole")]) == 0
    printed = []
    for name, lose in (("late", damage), ("at_once", Path.unlink)):
        shutil.copytree(tmp_path / "whole", tmp_path / name)
        lose(table(tmp_path / name))
        analysis, said = analysis_of(tmp_path / name, capsys)
        assert main(["explain", str(tmp_path / name), "--at", "0:0.1"]) == 0
        printed.append((analysis["ranks"], analysis["findings"], capsys.readouterr().out))
        assert len(said) == 1
    assert printed[0] == printed[1]


def _with_waits_joined(info: dict[str, Any]) -> dict[str, Any]:
    """Return a rank's figures with one cause for waiting for a late rank, whatever that one did longer, and without
    what only its operations show of its compute."""

    def joined(figures: dict[str, Any]) -> dict[str, Any]:
        causes = dict(figures["causes"])
        late = sum(causes.pop(cause, 0) for cause in WAITS_FOR_LATE_RANK)
        return {**figures, "causes": {**causes, "late": late}}

    spans = {**info, "empty_ranges_ns": None}
    return {**spans, "whole": joined(info["whole"]), "steps": list(map(joined, info["steps"]))}


@pytest.mark.slow
@pytest.mark.parametrize("damage", [flip_bit, without_column])
def test_a_cpu_run_with_a_damaged_host_is_analysed_as_before(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], object]
) -> None:
    (tmp_path / "job").mkdir()
    for trace in (ROOT / "traces" / "baseline").glob("*/*.pt.trace.json.gz"):
        shutil.copy(trace, tmp_path / "job")
    run = tmp_path / "run"
    assert main(["ingest", str(tmp_path / "job"), "-o", str(run)]) == 0
    before, _ = analysis_of(run, capsys)
    damage(table(run))
    after, said = analysis_of(run, capsys)
    # Whether a late rank stood still inside an operation is known from its host alone: it seems to have computed.
    seen, seen_before = (list(map(_with_waits_joined, each["ranks"])) for each in (after, before))
    assert seen == seen_before, "the spans say what its threads did"
    assert (before["ranks"][0]["empty_ranges_ns"], after["ranks"][0]["empty_ranges_ns"]) != (None, None)
    assert after["ranks"][0]["empty_ranges_ns"] is None, "its operations are not known"
    assert len(said) == 1
    assert "host events of rank 0 cannot be read: " in said[0]
    assert main(["explain", str(run), "--at", "0:100"]) == 0
    assert "host events of rank 0 cannot be read: " in capsys.readouterr().err


def test_what_rank_0_waited_for_is_not_known_where_the_host_of_rank_1_is_damaged(tmp_path: Path) -> None:
    assert main(["ingest", str(write_job(tmp_path / "job", 2)), "-o", str(tmp_path / "run")]) == 0
    flip_bit(table(tmp_path / "run", 1))
    chain = chain_at(load_run(tmp_path / "run"), 0, 100_000)
    assert (chain.ranks, chain.reason) == ([0], "the record of what the host did is damaged")


def test_a_graph_of_all_ranks_goes_on_without_host_events_that_are_damaged(tmp_path: Path) -> None:
    assert main(["ingest", str(write_job(tmp_path / "job", 2)), "-o", str(tmp_path / "run")]) == 0
    flip_bit(table(tmp_path / "run", 1))
    run = load_run(tmp_path / "run")
    figures = graph_figures(run, match_and_align(run))
    assert figures is not None
    assert [each.rank for each in figures.ranks] == [0, 1]


def test_a_lost_bit_is_seen(place: Path) -> None:
    flip_bit(table(place))
    run = load_run(place)
    with pytest.raises(InputError, match=r"rank_00000/host\.parquet: cannot be read"):
        assert run.ranks[0].host.start_ns.size


def test_host_spans_of_a_run_that_was_replaced_are_refused(place: Path) -> None:
    run = load_run(place)
    table(place).touch()
    with pytest.raises(InputError, match="was changed since the run was opened"):
        assert run.ranks[0].host.start_ns.size


# --- the public interface, and memory ---------------------------------------------------------------------------------


def test_load_offers_them_as_frames(place: Path) -> None:
    frame = overlapscope.load(place).table("host", 1)
    assert frame["name"].tolist()[:2] == ["ProfilerStep#0", "aten::mm größer of 1"]
    assert frame["kind"].tolist() == ["annotation", "operation", "runtime", "runtime"]
    assert frame["correlation"].isna().tolist() == [True, True, False, True]
    syncs = overlapscope.load(place).table("syncs", 1)
    assert syncs["kind"].tolist() == ["event", "stream_wait_event"]
    assert syncs["awaited_lane"].isna().tolist() == [True, False]


HOST_ROWS = 200_000
A_ROW_BYTES = 45
"""Of the columns of `HostSpans` in memory."""


def many_host_spans(rank: int) -> RankTimeline:
    start = EPOCH_NS + np.arange(HOST_ROWS) * 100
    host = make(HostSpans, HOST_ROWS, recording=0, lane=1, kind=OPERATION, name=0, start_ns=start, end_ns=start + 50)
    return replace(full_timeline(rank), host=host)


def test_opening_and_using_a_run_with_many_host_spans_holds_none_of_them(tmp_path: Path) -> None:
    save_run(Run(world_size=2, ranks={rank: many_host_spans(rank) for rank in (0, 1)}), tmp_path / "run", version="1")
    load_run(tmp_path / "run")  # what is made once in a process is no run's
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        run = load_run(tmp_path / "run")
        ranks = [each.at_hand() for each in run.ranks.values()]
        opened = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
        rows = size(ranks[0].host)
        used = tracemalloc.get_traced_memory()[0] + pa.total_allocated_bytes() - before
    finally:
        tracemalloc.stop()
    a_table = HOST_ROWS * A_ROW_BYTES
    assert rows == HOST_ROWS
    assert opened < a_table / 10
    assert used > a_table / 2


def test_no_more_tables_stay_in_memory_than_the_cache_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "KEPT_TABLES", 1)
    monkeypatch.setattr(stored.TableCache.__init__, "__defaults__", (10,))
    save_run(Run(world_size=4, ranks={rank: full_timeline(rank) for rank in range(4)}), tmp_path / "run", version="1")
    reads: list[str] = []
    reading = stored.read_table
    monkeypatch.setattr(
        stored, "read_table", lambda folder, name, *rest: (reads.append(name), reading(folder, name, *rest))[1]
    )
    run = load_run(tmp_path / "run")
    assert isinstance(run.ranks[0], StoredRank)
    for _ in range(2):
        for timeline in run.ranks.values():
            host = timeline.host
            assert host.start_ns.size == host.end_ns.size == 4
    assert reads.count("host") == 8  # each rank's again in the second round, once for both columns
