"""Files that state no rank are numbered in the order of their names where that is asked for."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.merge.assemble import assemble_jobs
from overlapscope.ingest.merge.by_name import numbered_by_name
from overlapscope.ingest.merge.jobs import Readings
from overlapscope.ingest.reader import Reading
from overlapscope.timeline.run import UNKNOWN_RANK, Run, Source
from tests.support.call_logs import Call, log, reading, trace

CALLS = [Call("broadcast", 10), *(Call("all_reduce", 1000 + at) for at in range(3))]


def files_of(ranks: Mapping[str, int]) -> Readings:
    return [(Path(name), reading(name, trace(CALLS, rank=rank))) for name, rank in ranks.items()]


def silent(*names: str) -> Readings:
    return files_of(dict.fromkeys(names, UNKNOWN_RANK))


def by_device(name: str, *ranks: int) -> tuple[Path, Reading]:
    return Path(name), replace(reading(name, *(trace(CALLS, rank=rank) for rank in ranks)), ranks_assumed=True)


def run_by_name(readings: Readings, unread: Sequence[Source] = ()) -> Run:
    readings, given, failed = numbered_by_name(readings, unread)
    ((_, run),) = assemble_jobs(readings, given)
    return replace(run, sources=(*run.sources, *failed))


def ranks_of(run: Run) -> dict[str, tuple[int, ...]]:
    return {source.path: source.ranks or source.unread_ranks for source in run.sources}


def warnings(run: Run) -> list[str]:
    return [warning for source in run.sources for warning in source.warnings]


def test_numbers_in_names_count_by_value_and_two_ranks_of_a_file_take_two_places() -> None:
    names = ["host_10_results.json", "host_9_results.json"]
    run = run_by_name([*silent(*names), by_device("host_8_results.json", 0, 1)])
    assert ranks_of(run) == {
        "host_8_results.json": (0, 1), "host_9_results.json": (2,), "host_10_results.json": (3,),
    }  # fmt: skip
    assert warnings(run) == ["3 files are ranks in the order of their names; whether they have that order is not known"]
    with pytest.raises(InputError, match="use ranks='by-name' for the order of file names, or ranks="):
        assemble_jobs(silent(*names), {})


def test_a_file_that_cannot_be_read_keeps_its_place() -> None:
    unread = [
        Source(path="h_1.json", warnings=("is cut",)),
        Source(path="notes.txt", warnings=("is no trace",)),
        Source(path="rank3.json", unread_ranks=(3,)),
    ]
    run = run_by_name(silent("h_2.json", "h_3.json", "h_4.json"), unread)
    assert ranks_of(run) == {
        "h_1.json": (0,), "h_2.json": (1,), "h_3.json": (2,), "h_4.json": (4,), "notes.txt": (), "rank3.json": (3,),
    }  # fmt: skip
    assert run.unread_ranks == (0, 3)
    assert "by its name taken for rank 0" in warnings(run)


def test_an_unread_file_takes_as_many_places_as_the_others() -> None:
    run = run_by_name([by_device("n_2.sqlite", 0, 1)], [Source(path="n_1.sqlite")])
    assert ranks_of(run) == {"n_1.sqlite": (0, 1), "n_2.sqlite": (2, 3)}


@pytest.mark.parametrize(
    ("other", "unread"), [(silent("b/t.json"), []), (silent("rank1/t.json"), []), ([], [Source(path="b/t.json")])]
)
def test_files_of_one_name_cannot_be_numbered_by_it(other: Readings, unread: list[Source]) -> None:
    files = [*silent("a/t.json"), *other]
    with pytest.raises(UsageError, match=r"ranks='by-name': several inputs are named t\.json; rename them"):
        numbered_by_name(files, unread)


def test_files_of_one_name_are_to_be_renamed_at_once() -> None:
    with pytest.raises(
        InputError, match=r"says which rank it is, and several inputs are named t\.json; rename"
    ) as error:
        assemble_jobs(silent("a/t.json", "b/t.json"), {})
    assert "by-name" not in error.value.in_shell
    ((_, run),) = assemble_jobs([*silent("a/t.json", "b/t.json"), *files_of({"c.json": 0})], {})
    advised = [warning.partition("; ")[2] for warning in warnings(run)]
    assert advised == ["several inputs are named t.json; rename them, or their folders (rank0, rank1, ...)"] * 2


def test_ranks_that_other_traces_state_are_left_out() -> None:
    """Logs are of the same ranks as traces, and state nothing here."""
    files = files_of({"a.json": UNKNOWN_RANK, "b.json": 0, "c.json": UNKNOWN_RANK, "trace_rank2.json": UNKNOWN_RANK,
                      "d.json": UNKNOWN_RANK})  # fmt: skip
    run = run_by_name([*files, (Path("nccl.log"), reading("nccl.log", log(CALLS, rank=1)))])
    assert {path: ranks for path, ranks in ranks_of(run).items() if path != "nccl.log"} == {
        "a.json": (1,), "b.json": (0,), "c.json": (3,), "trace_rank2.json": (2,), "d.json": (4,),
    }  # fmt: skip


def test_files_that_state_their_rank_keep_it() -> None:
    run = run_by_name(files_of({"b.json": 0, "a.json": 1}))
    assert list(ranks_of(run).values()) == [(0,), (1,)]
    assert warnings(run) == []


@pytest.mark.parametrize("files", [[by_device("b.sqlite", 1)], [by_device("b.sqlite", 0), by_device("a.sqlite", 1)]])
def test_ranks_that_devices_tell_are_kept_without_a_second_warning(files: Readings) -> None:
    run = run_by_name(files)
    assert ranks_of(run) == {str(path): (each.timelines[0].rank,) for path, each in files}
    assert warnings(run) == []


def test_ranks_that_devices_tell_twice_are_numbered() -> None:
    run = run_by_name([by_device("b.sqlite", 0), by_device("a.sqlite", 0)])
    assert ranks_of(run) == {"a.sqlite": (0,), "b.sqlite": (1,)}


def test_one_numbered_file_is_spoken_of_as_one() -> None:
    run = run_by_name([*silent("b.json"), *files_of({"a.json": 0})])
    assert warnings(run) == ["no rank stands in the trace or its name; numbered as rank 1"]


def test_the_ranks_of_one_file_alone_have_their_order() -> None:
    run = run_by_name([by_device("a.sqlite", 0, 1)])
    assert (ranks_of(run), warnings(run)) == ({"a.sqlite": (0, 1)}, [])


def test_where_names_differ_by_the_numbers_of_all_ranks_these_are_the_ranks() -> None:
    ((_, run),) = assemble_jobs(silent("node2_pp.1.sqlite", "node2_pp.0.sqlite", "node2_pp.2.sqlite"), {})
    assert ranks_of(run) == {"node2_pp.0.sqlite": (0,), "node2_pp.1.sqlite": (1,), "node2_pp.2.sqlite": (2,)}
    assert warnings(run) == ["ranks are the numbers in the names of the files, as no file states its rank"]


def test_of_the_devices_of_a_host_some_may_be_missing() -> None:
    ((_, run),) = assemble_jobs(silent("pp.5.sqlite", "pp.7.sqlite"), {})
    assert ranks_of(run) == {"pp.5.sqlite": (5,), "pp.7.sqlite": (7,)}


@pytest.mark.parametrize(
    ("names", "advice"),
    [
        (("pp.5.sqlite", "pp.8.sqlite"), {"pp.5.sqlite": 5, "pp.8.sqlite": 8}),
        (("node1.sqlite", "node2.sqlite"), {"node1.sqlite": 1, "node2.sqlite": 2}),
        (("pp.4711.sqlite", "pp.4712.sqlite"), {"pp.4711.sqlite": 0, "pp.4712.sqlite": 1}),
        (("a0_b1.json", "a1_b0.json"), {"a0_b1.json": 0, "a1_b0.json": 1}),
        (("a0.json", "b1.json"), {"a0.json": 0, "b1.json": 1}),
    ],
)
def test_other_numbers_in_names_are_at_most_advised(names: tuple[str, str], advice: dict[str, int]) -> None:
    with pytest.raises(InputError, match=r"says which rank it is") as error:
        assemble_jobs(silent(*names), {})
    assert str(error.value).endswith(f"ranks={advice}")
