"""Run directories whose numbers or files cannot be: one line in time, or the rank is left out."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from msgspec.structs import replace

import overlapscope
from overlapscope.errors import InputError, UsageError
from overlapscope.loaded_run import LoadedRun
from overlapscope.timeline.columns import make, size
from overlapscope.timeline.facts import Facts, Links
from tests.support.writers.kineto import distributed, training, write


@pytest.fixture
def run(tmp_path: Path) -> Path:
    for rank in (0, 1):
        (tmp_path / f"rank{rank}.json").write_bytes(write(training(), metadata=distributed(rank)))
    overlapscope.write_run(tmp_path / "rank0.json", tmp_path / "rank1.json", to=tmp_path / "run")
    return tmp_path / "run"


def warnings_of(loaded: LoadedRun) -> str:
    return "\n".join(each for source in loaded.sources for each in source.warnings)


READ_EVERY_FOOTER = """
import sys
from pathlib import Path
from overlapscope.timeline.columns import column_kinds
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.run import TABLES
from overlapscope.timeline.store.lazy_rank import read_table

folder = Path(sys.argv[1])
whole = {name: (folder / f"{name}.parquet").read_bytes() for name in ("recordings", "collectives")}


def values():
    names = NameTable()
    table = read_table(folder, name, TABLES[name], names, 0)
    known = [*names.to_list(), None]
    columns = {each: (kind, getattr(table, each).tolist()) for each, kind in column_kinds(table).items()}
    return {each: [known[at] for at in row] if kind == "name" else repr(row) for each, (kind, row) in columns.items()}


for name, content in whole.items():
    sound, refused = values(), 0
    begin = len(content) - int.from_bytes(content[-8:-4], "little") - 8
    bits = [(at, at % 8) for at in range(begin, len(content), 3)]
    last = content.index(b"ARROW:schema")  # before it, how many rows there are: all bits
    bits += [(at, bit) for at in range(last - 40, last) for bit in range(8)]
    for at, bit in bits:
        damaged = bytearray(content)
        damaged[at] ^= 1 << bit
        (folder / f"{name}.parquet").write_bytes(damaged)
        try:
            assert values() == sound, (name, at, bit)
        except ValueError:
            refused += 1
    print(name, refused)
"""


@pytest.mark.slow
def test_a_flipped_bit_in_a_footer_refuses_the_table_or_changes_nothing(run: Path) -> None:
    # In a process of its own: damage of which pyarrow throws where Python cannot catch it would end the tests.
    command = [sys.executable, "-c", READ_EVERY_FOOTER, str(run / "rank_00000")]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    refused = dict(line.split() for line in ended.stdout.splitlines())
    assert all(int(refused[name]) > 100 for name in ("recordings", "collectives"))


def rewritten(run: Path, **changed: Any) -> None:
    manifest = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**manifest, **changed}))


def listed(run: Path) -> Any:
    """Return the ranks of `run.json`."""
    return json.loads((run / "run.json").read_text())["ranks"]


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        (lambda *_: {"world_size": 10**18}, f"{10**18} is no possible rank"),
        (lambda *_: {"world_size": -5}, "-5 is no possible rank"),
        (lambda *_: {"world_size": 2**62}, f"{2**62} is no possible rank"),
        (lambda one, two: {"ranks": [one | {"rank": 2**40}, two]}, f"{2**40} is no possible rank"),
        (lambda one, two: {"ranks": [one, two, two | {"folder": one["folder"]}]}, "rank 1 is listed twice"),
        (lambda one, two: {"ranks": [one, two | {"basis": "no"}]}, r"Invalid enum value 'no' - at `\$\.ranks"),
    ],
)
def test_a_manifest_that_cannot_be_is_damage(changed: Callable[..., dict[str, Any]], why: str, run: Path) -> None:
    rewritten(run, **changed(*listed(run)))
    with pytest.raises(InputError, match=rf"run\.json: damaged: {why}"):
        overlapscope.load(run)


def left_out(run: Path) -> str:
    """Return the warnings of a run of which rank 1 cannot be read."""
    loaded = overlapscope.load(run)
    assert (loaded.ranks, loaded.run.unread_ranks) == ([0], (1,))
    return warnings_of(loaded)


def test_a_pipe_in_the_place_of_a_table_costs_that_rank_and_is_not_waited_for(run: Path) -> None:
    (run / "rank_00001" / "spans.parquet").unlink()
    os.mkfifo(run / "rank_00001" / "spans.parquet")
    assert "spans.parquet: not a regular file" in left_out(run)


def test_a_pipe_in_the_place_of_the_manifest_is_not_waited_for(run: Path) -> None:
    (run / "run.json").unlink()
    os.mkfifo(run / "run.json")
    loaded = overlapscope.load(run)
    assert loaded.ranks == [0, 1]
    assert "run.json is not there: how many ranks the job had" in warnings_of(loaded)


@pytest.mark.parametrize("odd", [os.mkfifo, lambda place: place.symlink_to("/dev/zero")], ids=["a pipe", "no end"])
def test_what_is_no_file_in_the_place_of_a_rank_s_entry_is_not_waited_for(
    odd: Callable[[Path], None], run: Path
) -> None:
    rewritten(run, ranks=[])
    (run / "rank_00001" / "rank.json").unlink()
    odd(run / "rank_00001" / "rank.json")
    assert "rank_00001 left out: rank.json: not a regular file" in left_out(run)


def with_links(run: Path) -> None:
    """Write the run again with two facts."""
    links = make(Links, 2, host=0, a=[1, 2], b=[2, 1])
    whole = replace(overlapscope.load(run).run, facts=Facts(names=("node", "GPU0", "GPU1"), links=links))
    LoadedRun(whole).save(run, force=True)


@pytest.mark.parametrize("stated", [None, {}])
def test_facts_that_the_run_does_not_state_are_those_of_another(stated: object, run: Path) -> None:
    with_links(run)
    assert size(overlapscope.load(run).run.facts.links) == 2
    rewritten(run, facts=stated)
    loaded = overlapscope.load(run)
    assert size(loaded.run.facts.links) == 0
    assert "facts left out: run.json states none, so they are of another run" in warnings_of(loaded)
    (run / "run.json").unlink()
    assert size(overlapscope.load(run).run.facts.links) == 2


@pytest.mark.slow
@pytest.mark.parametrize("odd", [os.mkfifo, Path.mkdir, lambda place: place.symlink_to("nowhere")])
def test_what_is_no_file_in_the_place_of_facts_costs_those_alone(odd: Callable[[Path], None], run: Path) -> None:
    with_links(run)
    (run / "facts" / "links.parquet").unlink()
    odd(run / "facts" / "links.parquet")
    loaded = overlapscope.load(run)
    assert loaded.ranks == [0, 1]
    assert "facts/links left out: it cannot be read" in warnings_of(loaded)


def test_facts_that_are_no_folder_are_reported(run: Path) -> None:
    with_links(run)
    shutil.rmtree(run / "facts")
    (run / "facts").write_text("none")
    assert "facts left out: it is not a folder" in warnings_of(overlapscope.load(run))


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["the folder", "a table", "rows"])
def test_facts_that_are_gone_are_reported(lost: str, run: Path) -> None:
    with_links(run)
    assert warnings_of(overlapscope.load(run)) == ""
    table = run / "facts" / "links.parquet"
    if lost == "the folder":
        shutil.rmtree(run / "facts")
    elif lost == "a table":
        table.unlink()
    else:
        pq.write_table(pq.read_table(table).slice(0, 1), table)
    assert f"facts/links has {int(lost == 'rows')} rows, and was written with 2" in warnings_of(overlapscope.load(run))


# --- what run.json and the folders state ----------------------------------------------------------------------------


def test_nesting_without_end_is_damage(run: Path) -> None:
    whole = (run / "run.json").read_text().rstrip()
    (run / "run.json").write_text(f'{whole[:-1]}, "more": {"[" * 1_000_000}{"]" * 1_000_000}}}')
    with pytest.raises(InputError, match=r"run\.json: damaged: .*; move run.json away, and each rank is read by"):
        overlapscope.load(run)
    (run / "run.json").unlink()
    assert overlapscope.load(run).ranks == [0, 1]


def test_folders_that_the_manifest_exchanges_are_read_as_what_they_tell_of_themselves(run: Path) -> None:
    before = overlapscope.load(run).table("spans", 1)
    first, second = listed(run)
    rewritten(run, ranks=[{**first, "folder": second["folder"]}, {**second, "folder": first["folder"], "basis": "log"}])
    loaded = overlapscope.load(run)
    assert loaded.table("spans", 1).equals(before)
    assert loaded.run.ranks[1].basis == "trace"


def test_ranks_are_in_order_in_whatever_order_they_are_listed(run: Path) -> None:
    rewritten(run, ranks=listed(run)[::-1])
    assert overlapscope.load(run).ranks == [0, 1]


@pytest.mark.parametrize("rank", [-1, 2**63])
def test_a_folder_with_an_impossible_rank_is_reported_as_the_rank_of_its_name(rank: int, run: Path) -> None:
    rewritten(run, ranks=[])
    entry = run / "rank_00001" / "rank.json"
    entry.write_text(json.dumps({**json.loads(entry.read_text()), "rank": rank}))
    assert left_out(run).startswith(f"rank_00001 left out: rank.json is that of rank {rank} in rank_00001")


@pytest.mark.parametrize("world_size", [0, 1])
def test_ranks_beyond_the_world_are_taken_and_reported(world_size: int, run: Path) -> None:
    rewritten(run, world_size=world_size)
    loaded = overlapscope.load(run)
    assert (loaded.world_size, loaded.ranks) == (2, [0, 1])
    assert f"rank 1 is none of a world of {world_size}: 2 ranks are taken" in warnings_of(loaded)


@pytest.mark.parametrize("odd", [{"ranks": [0, 2**62]}, {"ranks": [-1, 0]}, {"ranks": [1, 1]}, {"size": -3}])
def test_a_group_that_cannot_be_is_left_out_and_reported(odd: dict[str, Any], run: Path) -> None:
    rewritten(run, groups=[{"name": "tp", "size": 2, "ranks": [0, 1]}, {"name": "dp", "size": 2, **odd}])
    loaded = overlapscope.load(run)
    assert [each.name for each in loaded.run.groups] == ["tp"]
    assert "groups whose ranks or sizes cannot be, left out: 1" in warnings_of(loaded)


@pytest.mark.parametrize("content", [None, b"", b"\xff", b'{"rank": 1}', b'{"rank": 1, "recorded": ' + b"[" * 10**5])
def test_a_rank_without_an_entry_is_reported(content: bytes | None, run: Path) -> None:
    rewritten(run, ranks=[])
    entry = run / "rank_00001" / "rank.json"
    if content is None:
        entry.unlink()
    else:
        entry.write_bytes(content)
    assert "rank_00001 left out: rank.json: " in left_out(run)


def test_a_copied_folder_of_a_rank_is_no_rank_and_reported(run: Path) -> None:
    shutil.copytree(run / "rank_00001", run / "rank_00005")
    loaded = overlapscope.load(run)
    assert (loaded.ranks, loaded.run.unread_ranks) == ([0, 1], ())
    assert "rank_00005 left out: rank.json is that of rank 1 in rank_00001: a copy, or renamed" in warnings_of(loaded)


def test_a_run_is_never_written_over_or_into_what_is_read(run: Path, tmp_path: Path) -> None:
    before = sorted(run.rglob("*"))
    (tmp_path / "link").symlink_to(run)
    for inputs, out, why in (
        (run, run, "is the same place"),
        (tmp_path / "link", run, "is the same place"),
        (run / "rank_00000", run, "is inside"),
        (run, run / "merged", "is inside the run"),
    ):
        with pytest.raises(UsageError, match=why):
            overlapscope.write_run(inputs, to=out, force=True)
    assert sorted(run.rglob("*")) == before
    overlapscope.write_run(tmp_path, to=run, force=True)  # a run that stands among its own traces is not one of them
    assert overlapscope.load(run).ranks == [0, 1]


# --- tables that are whole, or nearly, and not right ----------------------------------------------------------------


@pytest.mark.parametrize(
    "every", [199, pytest.param(19, marks=pytest.mark.slow), pytest.param(7, marks=pytest.mark.long)]
)
def test_a_single_bit_that_a_disk_lost_costs_the_rank_and_is_no_other_figure(every: int, run: Path) -> None:
    table = run / "rank_00001" / "spans.parquet"
    whole, before = table.read_bytes(), overlapscope.load(run).table("spans", 1)
    group = pq.read_metadata(table).row_group(0)
    seen = 0
    for column in map(group.column, range(group.num_columns)):
        begin = column.dictionary_page_offset or column.data_page_offset
        for at in range(begin, begin + column.total_compressed_size, every):
            damaged = bytearray(whole)
            damaged[at] ^= 1
            table.write_bytes(damaged)
            loaded = overlapscope.load(run)
            if loaded.ranks == [0, 1]:  # a page header's statistics, say, which nobody reads
                assert loaded.table("spans", 1).equals(before), (column.path_in_schema, at)
            else:
                assert "rank 1 left out: its tables cannot be read (spans.parquet: " in warnings_of(loaded)
                seen += 1
    assert seen > 950 // every


@pytest.mark.parametrize("name", ["spans", "collectives", "recordings", "lanes"])
def test_a_table_of_another_rank_costs_the_rank(name: str, run: Path) -> None:
    shutil.copyfile(run / "rank_00000" / f"{name}.parquet", run / "rank_00001" / f"{name}.parquet")
    assert f"{name}.parquet: is of rank 0" in left_out(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["spans", "collectives", "steps"])
@pytest.mark.parametrize("rows", [0, 1])
def test_a_table_that_lost_rows_costs_the_rank(name: str, rows: int, run: Path) -> None:
    place = run / "rank_00001" / f"{name}.parquet"
    table = pq.read_table(place)
    if name == "collectives":  # nothing points to what is lost
        spans = run / "rank_00001" / "spans.parquet"
        pq.write_table(
            with_column(pq.read_table(spans), "collective", lambda values: np.full_like(values, None)), spans
        )
    pq.write_table(table.slice(0, rows), place)
    assert f"{name}: the tables have {rows}, rank.json states {table.num_rows}" in left_out(run)


def with_column(table: pa.Table, name: str, change: Callable[[Any], Any]) -> pa.Table:
    """Return a table with the values of one column changed."""
    at = table.column_names.index(name)
    values = np.array(table.column(name).to_pylist(), object)
    return table.set_column(at, name, pa.array(change(values).tolist(), table.schema.field(name).type))


def first_is(value: object) -> Callable[[Any], Any]:
    return lambda values: np.array([value, *values[1:]], object)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("spans.kind", None, "kind is missing in 1 of"),
        ("spans.start_ns", None, "spans.start_ns is missing in 1 of"),
        ("spans.end_ns", None, "spans.end_ns is missing in 1 of"),
        ("steps.end_ns", None, "steps.end_ns is missing in 1 of"),
        ("spans.end_ns", 2**62, f"spans.end_ns of {2**62} cannot be, in 1 of"),
        ("spans.start_ns", -(2**63) + 1, f"spans.start_ns of {-(2**63) + 1} cannot be, in 1 of"),
        ("collectives.bytes", -8, "collectives.bytes of -8 cannot be, in 1 of"),
        ("collectives.group_size", -1, "collectives.group_size of -1 cannot be, in 1 of"),
    ],
)
def test_values_that_cannot_be_cost_the_rank(place: str, value: int | None, said: str, run: Path) -> None:
    name, column = place.split(".")
    file = run / "rank_00001" / f"{name}.parquet"
    pq.write_table(with_column(pq.read_table(file), column, first_is(value)), file)
    assert said in left_out(run)


def test_a_word_that_a_column_does_not_have_is_named(run: Path) -> None:
    file = run / "rank_00001" / "spans.parquet"
    pq.write_table(with_column(pq.read_table(file).cast(text_for_words(file)), "kind", first_is("magic")), file)
    assert "spans.parquet: kind: 'magic' is none of compute, comm, copy" in left_out(run)


@pytest.mark.parametrize(
    "words", [pa.array([1.5]), pa.array([b"\xff"]), pa.array([[1]]), pa.array([5]).dictionary_encode()]
)
def test_names_that_are_no_text_cost_the_rank(words: Any, run: Path) -> None:
    file = run / "rank_00001" / "collectives.parquet"
    table = pq.read_table(file)
    at = table.column_names.index("group")
    pq.write_table(table.set_column(at, "group", pa.concat_arrays([words] * table.num_rows)), file)
    assert "collectives.parquet: group is of " in left_out(run)


def text_for_words(file: Path) -> pa.Schema:
    """Return the schema with plain text in place of dictionaries."""
    return pa.schema(
        [
            field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field
            for field in pq.read_schema(file)
        ]
    )
