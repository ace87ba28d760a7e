"""The run directory: what is written is read back, by us and by others, and damage costs only what it hit."""

import json
import re
import shutil
from pathlib import Path

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from overlapscope.capture.lifecycle.output import unfinished
from overlapscope.errors import InputError, NewerSchemaError, UsageError
from overlapscope.timeline.columns import NONE, column_kinds, make, size
from overlapscope.timeline.facts import FACT_TABLES
from overlapscope.timeline.run import TABLES, Group, RankTimeline, Run, Source, join_recordings
from overlapscope.timeline.run import tables_of as stored_tables
from overlapscope.timeline.store.load_save import load_run, save_run
from overlapscope.timeline.store.manifest import read_manifest
from overlapscope.timeline.store.run_directory import MANIFEST, RANK_ENTRY, foreign_entries, is_run_directory
from tests.support.builders import EPOCH_NS, full_timeline, spelled


def run_of(*ranks: int) -> Run:
    return Run(
        world_size=4,
        ranks={rank: full_timeline(rank, tag=f" of {rank}") for rank in ranks},
        groups=(
            Group(name="0", description="default_pg", size=4, ranks=(0, 1, 2, 3)),
            Group(name="tp", size=2),
        ),
        sources=(
            Source(path="a/rank0.json", format="kineto", ranks=(0,), events=12, repaired=1, dropped=2, truncated=True),
            Source(path="größer.json", format="unknown", warnings=("cannot be read",)),
        ),
        fingerprint={"torch": "2.4.0", "nccl": 22105, "driver": None},
    )


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A run of ranks 0 and 2."""
    save_run(run_of(0, 2), tmp_path / "run", version="1.2.3")
    return tmp_path / "run"


def change_manifest(path: Path, **changes: object) -> None:
    content = json.loads((path / MANIFEST).read_text())
    (path / MANIFEST).write_text(json.dumps({**content, **changes}))


def tables_of(timeline: RankTimeline) -> dict[str, dict[str, list[object]]]:
    return {name: spelled(getattr(timeline, name), timeline.names) for name in TABLES}


def everything_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# --- round trip -----------------------------------------------------------------------------------------------------


def test_a_run_is_read_back_as_it_was_written(saved):
    written, read = run_of(0, 2), load_run(saved)
    assert (read.world_size, read.groups, read.sources) == (written.world_size, written.groups, written.sources)
    assert dict(read.fingerprint) == written.fingerprint
    assert read.missing_ranks == (1, 3)
    assert sorted(read.ranks) == [0, 2]
    for rank, timeline in read.ranks.items():
        original = written.ranks[rank]
        assert tables_of(timeline) == tables_of(original)
        assert (timeline.rank, timeline.basis, timeline.has_device) == (rank, original.basis, original.has_device)


def test_columns_keep_their_types_and_missing_stays_missing(saved):
    written, read = full_timeline(), load_run(saved).ranks[0]
    for name in TABLES:
        for column in column_kinds(TABLES[name]):
            assert getattr(getattr(read, name), column).dtype == getattr(getattr(written, name), column).dtype
    assert read.spans.step.tolist() == [0, 0, NONE, 1]
    assert read.spans.launch_ns[0] == NONE
    assert read.spans.host_op.tolist()[0] == -1
    assert read.collectives.seq.tolist() == [NONE, 0]


def test_names_that_nothing_uses_are_not_stored(saved):
    assert "never used" in full_timeline().names
    assert "never used" not in load_run(saved).ranks[0].names


def test_a_run_read_and_written_again_is_the_same(saved, tmp_path):
    save_run(load_run(saved), tmp_path / "again", version="1.2.3")
    assert (tmp_path / "again" / MANIFEST).read_bytes() == (saved / MANIFEST).read_bytes()
    again = load_run(tmp_path / "again").ranks
    assert {rank: tables_of(each) for rank, each in again.items()} == {
        rank: tables_of(each) for rank, each in load_run(saved).ranks.items()
    }


def test_a_rank_whose_tables_are_empty_is_read_back(tmp_path):
    empty = {name: make(kind, 0) for name, kind in TABLES.items() if name != "recordings"}
    timeline = RankTimeline(
        rank=7,
        basis="events",
        has_device=False,
        names=(),
        recordings=make(TABLES["recordings"], 1, start_ns=EPOCH_NS, end_ns=EPOCH_NS + 1),
        **empty,
    )
    save_run(Run(world_size=None, ranks={7: timeline}), tmp_path / "run", version="1")
    read = load_run(tmp_path / "run")
    assert read.world_size is None
    assert read.missing_ranks == ()
    assert tables_of(read.ranks[7]) == tables_of(timeline)
    assert (read.ranks[7].basis, read.ranks[7].has_device) == ("events", False)


def test_the_manifest_lists_each_rank_without_its_tables(saved):
    manifest = read_manifest(saved)
    assert (manifest.version, manifest.world_size, manifest.missing_ranks) == ("1.2.3", 4, [1, 3])
    assert [(entry.rank, entry.spans, entry.collectives, entry.steps) for entry in manifest.ranks] == [
        (0, 4, 2, [0, 1]),
        (2, 4, 2, [0, 1]),
    ]
    assert [(entry.start_ns, entry.end_ns) for entry in manifest.ranks] == [(EPOCH_NS, EPOCH_NS + 1000)] * 2


# --- other readers --------------------------------------------------------------------------------------------------


def test_plain_pandas_reads_a_table_with_null_where_a_value_is_missing(saved):
    frame = pd.read_parquet(saved / "rank_00002" / "spans.parquet", dtype_backend="pyarrow")
    assert frame["rank"].tolist() == [2, 2, 2, 2]
    assert frame["kind"].tolist() == ["compute", "comm", "copy", "comm"]
    assert frame["note"].tolist() == ["unclassified", "plain", "plain", "plain"]
    assert frame["step"].isna().tolist() == [False, False, True, False]
    assert frame["launch_ns"].isna().tolist() == [True, False, False, True]
    assert frame["name"].isna().tolist() == [False, False, True, False]
    assert frame["name"].tolist()[0] == "gemm of 2"
    assert frame["start_ns"].tolist() == [EPOCH_NS + 10, EPOCH_NS + 20, EPOCH_NS + 30, EPOCH_NS + 400]


def test_plain_pyarrow_reads_every_table(saved):
    for name in stored_tables("trace"):
        table = pq.read_table(saved / "rank_00000" / f"{name}.parquet")
        written = spelled(getattr(full_timeline(tag=" of 0"), name), full_timeline(tag=" of 0").names)
        if name == "host":
            ends = zip(written["start_ns"], written.pop("end_ns"), strict=True)
            written["duration_ns"] = [end - start for start, end in ends]
        kinds = column_kinds(TABLES[name])
        assert set(table.column_names) == {"rank", *written}
        for column in written:
            if kinds.get(column) != "enum":
                assert table.column(column).to_pylist() == written[column], (name, column)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spans", "lanes", "collectives"])
def test_tables_written_again_by_another_tool_are_read(saved, name):
    """Other tools may write several row groups, and plain text in place of dictionaries."""
    before = tables_of(load_run(saved).ranks[0])
    path = saved / "rank_00000" / f"{name}.parquet"
    table = pq.read_table(path)
    plain = {
        field.name: table.column(field.name).cast(pa.string())
        if pa.types.is_dictionary(field.type)
        else table.column(field.name)
        for field in table.schema
    }
    for rewritten in (table, pa.table(plain)):
        pq.write_table(rewritten, path, row_group_size=1)
        assert tables_of(load_run(saved).ranks[0]) == before


# --- writing safely -------------------------------------------------------------------------------------------------


def test_a_run_is_not_overwritten_unless_forced(saved):
    with pytest.raises(UsageError, match=re.escape(str(saved))):
        save_run(run_of(1), saved, version="2")
    assert sorted(load_run(saved).ranks) == [0, 2]
    save_run(run_of(1), saved, version="2", force=True)
    assert sorted(load_run(saved).ranks) == [1]
    assert everything_in(saved) == ["rank_00001", MANIFEST]
    assert everything_in(saved.parent) == ["run"]


@pytest.mark.parametrize("force", [False, True])
def test_a_folder_that_is_no_run_is_never_replaced(tmp_path, force):
    theirs = tmp_path / "results" / "thesis.txt"
    theirs.parent.mkdir()
    theirs.write_text("years of work")
    with pytest.raises(UsageError):
        save_run(run_of(0), theirs.parent, version="1", force=force)
    with pytest.raises(UsageError):
        save_run(run_of(0), theirs, version="1", force=force)
    assert theirs.read_text() == "years of work"
    assert everything_in(tmp_path) == ["results"]
    assert everything_in(theirs.parent) == ["thesis.txt"]


def test_a_run_with_files_of_others_in_it_is_not_replaced(saved):
    (saved / "checkpoint.pt").write_text("years of work")
    for own in (".analysis.json", ".timeline", "predictions.json", ".session0"):
        (saved / own).write_text("")
    before = everything_in(saved)
    with pytest.raises(UsageError, match=r"run is not replaced: checkpoint\.pt would be deleted with it"):
        save_run(run_of(1), saved, version="2", force=True)
    assert everything_in(saved) == before
    (saved / "checkpoint.pt").unlink()
    save_run(run_of(1), saved, version="2", force=True)
    assert everything_in(saved) == ["rank_00001", MANIFEST]


def test_files_of_others_in_the_folders_of_a_run_keep_it_from_being_replaced(saved):
    for inside in ("rank_00000/notes.txt", "facts/mine.parquet"):
        place = saved / inside
        place.parent.mkdir(exist_ok=True)
        place.write_text("years of work")
        with pytest.raises(UsageError, match=re.escape(f"run is not replaced: {inside} would be deleted with it")):
            save_run(run_of(1), saved, version="2", force=True)
        assert place.read_text() == "years of work"
        place.unlink()
    save_run(run_of(1), saved, version="2", force=True)
    assert everything_in(saved) == ["rank_00001", MANIFEST]


def test_every_table_and_what_a_killed_capture_leaves_is_own(saved):
    (saved / "facts").mkdir()
    files = [*(f"facts/{name}.parquet" for name in FACT_TABLES), *(f"rank_00002/{name}.parquet" for name in TABLES)]
    killed = [f"{unfinished(1, 7)}.recording0.pt.trace.json.gz", "recording0.rank1.pt.trace.json.gz"]
    for file in [*files, *killed, "rank_00000/recording0.rank0.pt.trace.json.gz"]:
        (saved / file).write_text("")
    assert foreign_entries(saved) == []
    (saved / ".rank_00001.notes.gz").write_text("")
    assert foreign_entries(saved) == [".rank_00001.notes.gz"]


@pytest.mark.slow
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("a bug"), KeyboardInterrupt()])
@pytest.mark.parametrize("stands", [False, True], ids=["new place", "over an old run"])
def test_a_write_that_fails_leaves_everything_as_it_was(tmp_path, monkeypatch, error, stands):
    path = tmp_path / "run"
    if stands:
        save_run(run_of(0, 2), path, version="1")
    write, calls = pq.write_table, []

    def fails_in_the_second_rank(*args: object, **kwargs: object) -> None:
        calls.append(args)
        if len(calls) == len(TABLES) + 2:
            raise error
        write(*args, **kwargs)

    monkeypatch.setattr(pq, "write_table", fails_in_the_second_rank)
    expected = InputError if isinstance(error, OSError) else type(error)
    with pytest.raises(expected, match="No space left" if isinstance(error, OSError) else None):
        save_run(run_of(1, 3), path, version="2", force=True)
    assert everything_in(tmp_path) == (["run"] if stands else [])
    if stands:
        assert sorted(load_run(path).ranks) == [0, 2]


def test_missing_parent_folders_are_made(tmp_path):
    save_run(run_of(0), tmp_path / "runs" / "today" / "run", version="1")
    assert is_run_directory(tmp_path / "runs" / "today" / "run")


def test_a_place_below_a_file_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        save_run(run_of(0), tmp_path / "file" / "run", version="1")


def test_a_new_run_can_be_read_by_whom_the_umask_allows(saved):
    assert saved.stat().st_mode & 0o777 == (saved / "rank_00000").stat().st_mode & 0o777


# --- damage ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [3, 17])
def test_a_newer_schema_is_refused_with_its_name(saved, number):
    change_manifest(saved, schema=f"overlapscope.run/{number}", fields_of_tomorrow=[1])
    with pytest.raises(NewerSchemaError, match=f"newer OverlapScope .overlapscope.run/{number}"):
        load_run(saved)


@pytest.mark.parametrize(
    "schema", ["somebody.else/2", "overlapscope.analysis/1", "overlapscope.run/x", "overlapscope.run/0", ""]
)
def test_another_schema_is_no_newer_one(saved, schema):
    change_manifest(saved, schema=schema)
    with pytest.raises(InputError) as refused:
        load_run(saved)
    assert not isinstance(refused.value, NewerSchemaError)
    assert MANIFEST in str(refused.value)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"\xff\xfe\x00",
        b"{}",
        b'{"schema": 1}',
        b'{"schema": "overlapscope.run/1"}',
        b"[" * 10**5,
    ],
    ids=lambda content: repr(content[:20]),
)
def test_a_damaged_manifest_is_an_input_error_that_names_it(saved, content):
    (saved / MANIFEST).write_bytes(content)
    with pytest.raises(InputError, match=re.escape(str(saved / MANIFEST))):
        load_run(saved)


def test_unknown_fields_of_the_same_schema_do_not_matter(saved):
    change_manifest(saved, note="written by a friend")
    assert sorted(load_run(saved).ranks) == [0, 2]


def test_a_folder_without_manifest_is_no_run(tmp_path):
    assert not is_run_directory(tmp_path)
    with pytest.raises(InputError, match="cannot be read"):
        load_run(tmp_path)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def _rename_column(path: Path) -> None:
    table = pq.read_table(path)
    pq.write_table(table.rename_columns(["x", *table.column_names[1:-1], "y"]), path)


def _retype_column(path: Path) -> None:
    table = pq.read_table(path)
    place = table.column_names.index("start_ns")
    pq.write_table(table.set_column(place, "start_ns", pa.array(["soon"] * table.num_rows)), path)


@pytest.mark.parametrize(
    "damage",
    [
        _cut,
        Path.unlink,
        lambda path: path.write_bytes(b""),
        lambda path: path.write_bytes(b"PAR1 but not parquet PAR1"),
        lambda path: (path.unlink(), path.mkdir()),
        _rename_column,
        _retype_column,
    ],
    ids=["cut", "missing", "empty", "garbage", "a folder", "columns renamed", "text for times"],
)
def test_a_damaged_rank_costs_that_rank_only_and_is_reported(saved, damage):
    damage(saved / "rank_00002" / "spans.parquet")
    read = load_run(saved)
    assert sorted(read.ranks) == [0]
    assert read.missing_ranks == (1, 2, 3)
    assert tables_of(read.ranks[0]) == tables_of(full_timeline(0, tag=" of 0"))
    (left_out,) = [source for source in read.sources if source.path == str(saved / "rank_00002")]
    (warning,) = left_out.warnings
    assert warning.startswith("rank 2 left out")
    assert "\n" not in warning


def test_spans_that_point_nowhere_cost_their_rank(saved):
    """A table cut by a careless filter: the lanes that spans stand on are gone."""
    path = saved / "rank_00002" / "lanes.parquet"
    pq.write_table(pq.read_table(path).slice(0, 1), path)
    read = load_run(saved)
    assert sorted(read.ranks) == [0]


def test_a_run_of_which_no_rank_can_be_read_is_an_input_error(saved):
    for folder in saved.glob("rank_*"):
        _cut(folder / "spans.parquet")
    with pytest.raises(InputError, match="no rank can be read"):
        load_run(saved)


def test_a_run_without_ranks_is_an_input_error(saved):
    change_manifest(saved, ranks=[])
    for folder in saved.glob("rank_*"):
        shutil.rmtree(folder)
    with pytest.raises(InputError, match="no rank can be read"):
        load_run(saved)


def test_a_manifest_cannot_point_outside_its_run(saved, tmp_path):
    content = json.loads((saved / MANIFEST).read_text())
    elsewhere = full_timeline(2, tag=" elsewhere")
    save_run(Run(world_size=4, ranks={2: elsewhere}), tmp_path / "elsewhere", version="1")
    (saved / "rank_00002" / RANK_ENTRY).unlink()  # which would come before the manifest
    for outside in ("../elsewhere/rank_00002", str(tmp_path / "elsewhere" / "rank_00002")):
        content["ranks"][1]["folder"] = outside
        (saved / MANIFEST).write_text(json.dumps(content))
        # What is read is the folder of that name inside the run.
        assert tables_of(load_run(saved).ranks[2]) == tables_of(full_timeline(2, tag=" of 2"))


def test_a_manifest_cannot_point_to_the_folder_above(saved):
    for path in (saved / "rank_00002").iterdir():
        path.rename(saved.parent / path.name)
    content = json.loads((saved / MANIFEST).read_text())
    content["ranks"][1]["folder"] = ".."
    (saved / MANIFEST).write_text(json.dumps(content))
    assert sorted(load_run(saved).ranks) == [0]


# --- several recordings of one rank ---------------------------------------------------------------------------------

EARLY = full_timeline(3, start_ns=EPOCH_NS, source="runs/early.json", tag=" early")
LATE = full_timeline(3, start_ns=EPOCH_NS + 5000, source="runs/late.json", tag=" late")


@pytest.mark.parametrize("parts", [(EARLY, LATE), (LATE, EARLY)], ids=["in order", "out of order"])
def test_recordings_of_one_rank_are_joined_in_order_of_time(parts):
    joined = join_recordings(parts)
    assert joined.rank == 3
    apart = [tables_of(EARLY), tables_of(LATE)]
    lanes = size(EARLY.lanes)
    moved = {"recording": 1, "lane": lanes, "awaited_lane": lanes, "collective": size(EARLY.collectives)}
    for name, columns in tables_of(joined).items():
        for column, values in columns.items():
            second = apart[1][name][column]
            if column in moved:
                second = [None if value is None else value + moved[column] for value in second]
            assert values == apart[0][name][column] + second, (name, column)


def test_three_recordings_are_joined_as_two_and_one():
    last = full_timeline(3, start_ns=EPOCH_NS + 9000, source="last.json", tag=" last")
    at_once, in_turn = join_recordings([last, EARLY, LATE]), join_recordings([join_recordings([EARLY, LATE]), last])
    assert tables_of(at_once) == tables_of(in_turn)
    assert at_once.recordings.start_ns.tolist() == [EPOCH_NS, EPOCH_NS + 5000, EPOCH_NS + 9000]


def test_joined_recordings_survive_the_run_directory(tmp_path):
    joined = join_recordings([EARLY, LATE])
    save_run(Run(world_size=4, ranks={3: joined}), tmp_path / "run", version="1")
    assert tables_of(load_run(tmp_path / "run").ranks[3]) == tables_of(joined)
    entry = read_manifest(tmp_path / "run").ranks[0]
    assert (entry.start_ns, entry.end_ns) == (EPOCH_NS, EPOCH_NS + 6000)


def test_one_recording_stays_as_it_is():
    assert join_recordings([EARLY]) is EARLY


def test_recordings_may_touch():
    after = full_timeline(3, start_ns=EPOCH_NS + 1000, source="after.json")
    assert size(join_recordings([EARLY, after]).recordings) == 2


@pytest.mark.parametrize("shift", [0, 1, 999, -999])
def test_recordings_of_the_same_time_are_an_error_that_names_both(shift):
    other = full_timeline(3, start_ns=EPOCH_NS + shift, source="runs/other.json")
    for parts in ([EARLY, other], [other, EARLY], [LATE, other, EARLY]):
        with pytest.raises(InputError, match="rank 3") as refused:
            join_recordings(parts)
        assert "early.json" in str(refused.value)
        assert "other.json" in str(refused.value)
        assert "late.json" not in str(refused.value)


def test_overlapping_files_of_one_name_are_named_with_their_folders():
    first = full_timeline(0, source="monday/trace.json")
    second = full_timeline(0, start_ns=EPOCH_NS + 10, source="tuesday/trace.json")
    with pytest.raises(InputError) as refused:
        join_recordings([first, second])
    assert "monday" in str(refused.value)
    assert "tuesday" in str(refused.value)
