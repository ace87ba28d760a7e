"""What sources state besides times: joined, stored, listed for people and programs, alone or beside timelines."""

import json
import math
from pathlib import Path
from typing import Any

import jsonschema
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import overlapscope
from overlapscope.analysis.source_tables import Told, rows_of_sources
from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.ingest import registry as readers
from overlapscope.ingest.parsing.fact_tables import FigureRows
from overlapscope.ingest.reader import ReadContext, Reader, Reading
from overlapscope.report.formats.json import schema as schema_of
from overlapscope.report.text.source_tables import MAX_ROWS, source_table_text
from overlapscope.timeline.columns import NONE, Columns, column_kinds, enum_values, make, size
from overlapscope.timeline.facts import FACT_TABLES, Facts, Links, Messages, join_facts
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import Group, RankTimeline, Run, Source
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.support.builders import spelled, timeline
from tests.support.call_logs import Call, log, trace

# --- tables ---------------------------------------------------------------------------------------------------------

words = st.sampled_from([None, "", "NVLink", "mlx5_0", "größer\n\x1b[31m", "a" * 80])
integers = st.one_of(st.none(), st.integers(-5, 2**62))
numbers = st.one_of(st.none(), st.floats(allow_nan=False))


@st.composite
def facts(draw: st.DrawFn) -> Facts:
    """Facts with up to three rows in some tables, missing values among them."""
    names = NameTable(["never used"])
    tables: dict[str, Any] = {}
    for name, kind in FACT_TABLES.items():
        rows = draw(st.integers(0, 3))
        columns = {}
        for column, stored in column_kinds(kind).items():
            if stored == "name":
                values = draw(st.lists(words, min_size=rows, max_size=rows))
                columns[column] = [-1 if value is None else names.code(value) for value in values]
            elif stored == "enum":
                codes = st.integers(0, len(enum_values(kind, column)) - 1)
                columns[column] = draw(st.lists(codes, min_size=rows, max_size=rows))
            elif stored == "float64":
                values = draw(st.lists(numbers, min_size=rows, max_size=rows))
                columns[column] = [math.nan if value is None else value for value in values]
            else:
                values = draw(st.lists(integers, min_size=rows, max_size=rows))
                columns[column] = [NONE if value is None else value for value in values]
        tables[name] = make(kind, rows, **columns)
    return Facts(names=tuple(names.to_list()), **tables)


def shown(table: Columns, names: tuple[str, ...]) -> dict[str, list[object]]:
    """Columns spelled out; NaN as None."""
    columns = spelled(table, names)
    return {
        name: [None if isinstance(v, float) and math.isnan(v) else v for v in values]
        for name, values in columns.items()
    }


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(facts(), max_size=3))
def test_joined_facts_say_what_their_parts_say_behind_each_other(parts: list[Facts]) -> None:
    joined = join_facts(parts)
    assert bool(joined) == any(map(bool, parts))
    for name in FACT_TABLES:
        expected: dict[str, list[object]] = {column: [] for column in column_kinds(FACT_TABLES[name])}
        for part in parts:
            for column, values in shown(getattr(part, name), part.names).items():
                expected[column] += values
        assert shown(getattr(joined, name), joined.names) == expected


@pytest.mark.slow
@given(facts())
def test_listed_rows_are_those_of_the_tables(drawn: Facts) -> None:
    tables = rows_of_sources(drawn, limit=2)
    assert set(tables) == {name for name in FACT_TABLES if size(getattr(drawn, name))}
    for name, table in tables.items():
        kinds = column_kinds(FACT_TABLES[name])
        columns = shown(getattr(drawn, name), drawn.names)
        rows = [
            {
                column: enum_values(FACT_TABLES[name], column)[value] if kinds[column] == "enum" else value
                for column, value in zip(columns, row, strict=True)
            }
            for row in zip(*columns.values(), strict=True)
        ]
        assert table.rows == rows[:2]
        assert table.left_out == max(0, len(rows) - 2)


# --- text -----------------------------------------------------------------------------------------------------------


def table_of(rows: int, left_out: int = 0) -> dict[str, Told]:
    listed: list[dict[str, Any]] = [
        {"host": None, "a": f"GPU{row}", "lanes": row if row else None, "direct": "untold", "gbs": 1 / 3}
        for row in range(rows)
    ]
    return {"cost_models": Told(rows=listed, left_out=left_out)}


def test_the_text_table_has_no_column_that_no_row_knows() -> None:
    text = source_table_text(table_of(2))
    assert text.splitlines() == ["cost models:", "a     lanes  gbs", "GPU0  n/a    0.3333", "GPU1  1      0.3333"]


def test_a_long_table_is_cut_and_says_where_the_rest_is() -> None:
    assert source_table_text(table_of(MAX_ROWS + 3)).splitlines()[-1] == "3 more rows: --all"
    assert len(source_table_text(table_of(MAX_ROWS + 3), all_rows=True).splitlines()) == MAX_ROWS + 3 + 2
    for all_rows, hidden in ((False, 10), (True, 7)):
        last = source_table_text(table_of(MAX_ROWS + 3, left_out=7), all_rows=all_rows).splitlines()[-1]
        assert last == f"{hidden} more rows: the run's facts/cost_models.parquet"


def test_a_cell_is_one_short_line_whatever_a_log_holds() -> None:
    text = source_table_text({"messages": Told(rows=[{"text": "two\nlines " + "x" * 500}], left_out=0)})
    assert [len(line) <= 60 for line in text.splitlines()] == [True] * 3


# --- stored ---------------------------------------------------------------------------------------------------------


def test_groups_that_rank_0_is_not_in_are_those_that_their_own_ranks_list(tmp_path: Path) -> None:
    whole, own = Group(name="0", size=3, ranks=(0, 1, 2)), Group(name="1", size=2, ranks=(1, 2), description="tp")
    listed: dict[int, object] = {
        0: None,
        1: [{"name": "1", "description": "tp", "size": 2, "ranks": [1, 2]}, {"name": "0", "size": 2, "ranks": [1, 2]}],
        2: [{"size": "two"}, 3, {"name": "2", "size": 2, "ranks": [-1, 2]}],
    }
    ranks = {rank: replace(timeline(), rank=rank, recorded={"groups": each}) for rank, each in listed.items()}
    save_run(Run(world_size=3, ranks=ranks, groups=(whole,)), tmp_path / "run", version="0")
    assert load_run(tmp_path / "run").groups == (whole, own)


@pytest.mark.slow
@settings(max_examples=25)
@given(facts())
def test_facts_survive_a_run_directory_without_any_rank(tmp_path_factory: pytest.TempPathFactory, drawn: Facts) -> None:
    path = tmp_path_factory.mktemp("run") / "run"
    groups = (Group(name="0", size=2, ranks=(0, 1)),)
    save_run(Run(world_size=2, ranks={}, groups=groups, facts=drawn), path, version="0")
    if not drawn:
        with pytest.raises(InputError, match="the run is empty"):
            load_run(path)
        return
    loaded = load_run(path)
    assert (loaded.ranks, loaded.world_size, loaded.groups) == ({}, 2, groups)
    for name in FACT_TABLES:
        before, after = getattr(drawn, name), getattr(loaded.facts, name)
        assert shown(after, loaded.facts.names) == shown(before, drawn.names)


def links_and_messages() -> Facts:
    names = NameTable(["GPU0", "GPU1", "NVLink", "slow", "nccl.log"])
    return Facts(
        names=tuple(names.to_list()),
        links=make(Links, 2, a=[0, 1], b=[1, 0], kind=2, lanes=[18, NONE]),
        messages=make(Messages, 1, source=4, rank=0, kind=1, text=3, line=17),
    )


def test_a_damaged_table_costs_itself_with_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run"
    save_run(Run(world_size=None, ranks={0: log([])}, facts=links_and_messages()), path, version="0")
    (path / "facts" / "links.parquet").write_bytes(b"PAR1 not at all")
    loaded = load_run(path)
    assert list(loaded.ranks) == [0]
    assert (size(loaded.facts.links), size(loaded.facts.messages)) == (0, 1)
    warnings = [warning for source in loaded.sources for warning in source.warnings]
    assert [warning.startswith("facts/links left out: it cannot be read") for warning in warnings] == [True]
    assert main(["analyze", str(path)]) == 0
    assert "facts/links left out: it cannot be read" in capsys.readouterr().err


def test_a_run_of_damaged_facts_alone_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run"
    save_run(Run(world_size=None, ranks={}, facts=links_and_messages()), path, version="0")
    for file in (path / "facts").iterdir():
        file.write_bytes(b"")
    with pytest.raises(InputError, match="no rank can be read"):
        load_run(path)


# --- from files to people -------------------------------------------------------------------------------------------

FACTS, CALLS, TIMES = b"#facts", b"#calls", b"#times"


def _read(path: Path, context: ReadContext) -> Reading:
    """A topology, a log of rank 1 or a trace of rank 0, by what the file says it is."""
    del context
    content = path.read_bytes()
    calls = [Call("all_reduce", 1000, algorithm="RING" if content == CALLS else None)]
    timelines: dict[bytes, tuple[RankTimeline, ...]] = {FACTS: (), CALLS: (log(calls, rank=1),), TIMES: (trace(calls),)}
    return Reading(
        source=Source(path=path.name, format="made up", events=1),
        timelines=timelines[content],
        world_size=None if content == FACTS else 2,
        facts=links_and_messages() if content == FACTS else Facts(),
    )


@pytest.fixture
def made_up_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Reader(format="made up", recognises=lambda head: head.content in (FACTS, CALLS, TIMES), read=_read)
    monkeypatch.setattr(readers, "BUILT_IN_READERS", (reader, *readers.BUILT_IN_READERS))
    readers.all_readers.cache_clear()
    yield
    readers.all_readers.cache_clear()


def files(folder: Path, *contents: bytes) -> list[str]:
    paths = []
    for content in contents:
        paths.append(folder / f"{content[1:].decode()}.txt")
        paths[-1].write_bytes(content)
    return [str(path) for path in paths]


def analyzed(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    assert main(["analyze", *arguments, "--json"]) == 0
    shown_text = capsys.readouterr()
    assert shown_text.err == ""
    document: dict[str, Any] = json.loads(shown_text.out)
    jsonschema.validate(document, schema_of("analysis"))
    return document


@pytest.mark.usefixtures("made_up_reader")
def test_facts_alone_are_shown_in_text_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = files(tmp_path, FACTS)
    assert main(["analyze", *inputs]) == 0
    text = capsys.readouterr()
    assert text.err == ""
    assert text.out.splitlines()[:10] == [
        "no rank recorded, made up",
        "",
        "No times were recorded: exposed communication cannot be measured from these sources.",
        "",
        "links:",
        "a     b     kind    lanes",
        "GPU0  GPU1  NVLink  18",
        "GPU1  GPU0  NVLink  n/a",
        "",
        "messages:",
    ]
    document = analyzed(capsys, *inputs)
    assert (document["ranks"], document["collectives"], document["run"]["world_size"]) == ([], [], None)
    assert document["told"]["links"] == {
        "left_out": 0,
        "rows": [
            {"host": None, "a": "GPU0", "b": "GPU1", "kind": "NVLink", "lanes": 18, "bandwidth_gbs": None},
            {"host": None, "a": "GPU1", "b": "GPU0", "kind": "NVLink", "lanes": None, "bandwidth_gbs": None},
        ],
    }


@pytest.mark.slow
@pytest.mark.usefixtures("made_up_reader")
def test_facts_alone_become_a_run_with_the_same_figures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs, run = files(tmp_path, FACTS), str(tmp_path / "run")
    assert main(["ingest", *inputs, "-o", run]) == 0
    assert capsys.readouterr().out.startswith(f"{run}: 0 ranks, 0 spans")
    assert analyzed(capsys, run) == analyzed(capsys, *inputs)
    loaded = overlapscope.load(run)
    assert repr(loaded) == "<overlapscope run: ranks [] of None>"
    frame = loaded.breakdown()
    assert frame.empty
    assert {"rank", "step", "complete", "exposed_comm_ns", "overlap_efficiency"} <= set(frame.columns)


@pytest.mark.usefixtures("made_up_reader")
def test_a_log_alone_lists_its_calls_and_claims_no_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = files(tmp_path, CALLS)
    document = analyzed(capsys, *inputs)
    (rank,) = document["ranks"]
    assert rank["rank"] == 1
    assert {value for key, value in rank["whole"].items() if "causes" not in key} == {None}
    assert rank["no_causes_reason"] is None
    (row,) = document["collectives"]
    assert (row["op"], row["bytes"], row["algorithm"], row["count"]) == ("all_reduce", 4000, "RING", 1)
    assert (row["transfer_ns_median"], row["busbw_gbs"]) == (None, None)
    assert main(["analyze", *inputs]) == 0
    text = capsys.readouterr().out
    assert "No times were recorded" in text
    assert "ms  exposed" not in text.replace("   ", "  ")


@pytest.mark.slow
@pytest.mark.usefixtures("made_up_reader")
def test_timed_ranks_and_ranks_with_a_log_stand_in_one_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inputs = files(tmp_path, FACTS, CALLS, TIMES)
    document = analyzed(capsys, *inputs)
    assert document["run"]["ranks"] == [0, 1]
    assert [rank["whole"]["comm_ns"] for rank in document["ranks"]] == [60, None]
    assert set(document["told"]) == {"links", "messages"}
    assert main(["analyze", *inputs, "--all"]) == 0
    text = capsys.readouterr().out
    assert "2 ranks of 2" in text
    assert "rank 0 whole" in text
    assert "rank 1 whole" not in text
    run = str(tmp_path / "run")
    assert main(["ingest", *inputs, "-o", run]) == 0
    capsys.readouterr()
    assert analyzed(capsys, run) == document


@pytest.mark.usefixtures("made_up_reader")
def test_tables_of_the_job_are_frames_too(tmp_path: Path) -> None:
    loaded = overlapscope.load(*files(tmp_path, FACTS, CALLS))
    frame = loaded.table("links")
    assert frame.columns.tolist() == list(column_kinds(Links))
    assert frame["a"].tolist() == ["GPU0", "GPU1"]
    assert frame["lanes"].isna().tolist() == [False, True]
    assert str(frame["lanes"].dtype) == "Int64"
    assert loaded.table("messages")["kind"].tolist() == ["warning"]
    assert loaded.table("members").empty
    frame = loaded.breakdown()
    assert (frame["rank"].tolist(), frame["comm_ns"].isna().tolist()) == ([1], [True])
    assert loaded.table("collectives", rank=1)["rank"].tolist() == [1]
    for name, rank in (("links", 1), ("collectives", None), ("names", None), ("nothing", None)):
        with pytest.raises(KeyError, match="there is no table"):
            loaded.table(name, rank)


def test_long_names_keep_their_ends_by_which_tensors_differ() -> None:
    stem = "DistributedOptimizer_Allreduce/HorovodAllreduce_gradient_tape_model_dense_1_"
    rows: list[dict[str, str | int | float | None]] = [
        {"subject": stem + end, "value": 1.0} for end in ("MatMul_grad", "BiasAdd_grad")
    ]
    lines = source_table_text({"figures": Told(rows=rows, left_out=0)}).splitlines()[2:]
    assert [line.split()[0][-12:] for line in lines] == ["_MatMul_grad", "BiasAdd_grad"]
    assert all(len(line.split()[0]) == 60 for line in lines)


def test_figures_that_are_no_finite_number_are_refused_and_those_past_the_limit_counted() -> None:
    figures = FigureRows(rank=2, limit=3)
    for value in (None, "1", True, math.nan, math.inf, 10**400):
        assert not figures.add("s", "odd_us", value)
    assert figures.add("s", "a_us", 1)
    assert figures.add(None, "b_us", np.float64(2.5), step=7)
    assert figures.add("s", "c_us", np.int64(3), rank=5)
    assert figures.add("s", "d_us", 4.0)
    assert figures.left_out == 1
    kept = figures.facts("file").figures
    assert kept.rank.tolist() == [2, 2, 5]
    assert kept.step.tolist() == [NONE, 7, NONE]
    assert kept.value.tolist() == [1.0, 2.5, 3.0]
    assert kept.subject.tolist()[1] == -1
