"""Logs of several runs in one folder: a rank is one process, and logs of another run are left out with a warning."""

import random
from pathlib import Path

import pytest
from msgspec.structs import replace

from overlapscope.errors import InputError
from overlapscope.ingest.merge.assemble import assemble
from overlapscope.ingest.read_file import read_file
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.timeline.columns import size
from overlapscope.timeline.run import Run, Source
from tests.support.call_logs import Call, trace
from tests.support.writers.nccl_log import VERSIONS, Communicator, Process, Version, call, initialised

OLD, NEW = VERSIONS[3], VERSIONS[7]
"""2.14 writes no id of a communicator."""


def logs(
    folder: Path,
    comm: str,
    first_pid: int,
    calls: int,
    *,
    version: Version = NEW,
    ranks: int = 2,
    op: str = "AllReduce",
) -> list[Path]:
    """Write a file for each process of a job of as many ranks, each with as many calls."""
    known = Communicator(id=comm)
    paths = []
    for rank in range(ranks):
        process = Process(rank=rank, host="node-0", pid=first_pid + rank, device=rank)
        lines = [process.line(version.name), *initialised(version, process, rank, ranks, known)]
        pointer = known.pointer(rank)
        lines += [process.line(call("AllReduce", seq, 100 + seq, comm=pointer, nranks=ranks)) for seq in range(calls)]
        paths.append(folder / f"nccl.node-0.{first_pid + rank}.log")
        paths[-1].write_text("\n".join(lines) + "\n")
    return paths


def left_out(run: Run) -> set[str]:
    return {Path(source.path).name for source in run.sources if any("left out: rank" in w for w in source.warnings)}


def calls_of(run: Run) -> dict[int, int]:
    return {rank: size(timeline.collectives) for rank, timeline in run.ranks.items()}


def test_of_two_runs_in_one_folder_the_one_with_more_calls_counts(tmp_path: Path) -> None:
    earlier = logs(tmp_path, "0xaaa1", 4000, 5)
    logs(tmp_path, "0xbbb1", 5000, 9)
    run = read_inputs([tmp_path])
    assert calls_of(run) == {0: 9, 1: 9}
    assert left_out(run) == {path.name for path in earlier}
    assert [group.name for group in run.groups] == ["0xbbb1"]
    assert set(run.facts.members.process.tolist()) == {5000, 5001}


@pytest.mark.slow
def test_the_order_of_the_files_changes_nothing(tmp_path: Path) -> None:
    paths = logs(tmp_path, "0xaaa1", 4000, 9, ranks=4) + logs(tmp_path, "0xbbb1", 5000, 7, ranks=4)
    for seed in range(6):
        random.Random(seed).shuffle(paths)
        run = read_inputs(paths)
        assert calls_of(run) == dict.fromkeys(range(4), 9)
        assert left_out(run) == {f"nccl.node-0.{pid}.log" for pid in range(5000, 5004)}


def test_a_run_of_another_size_is_left_out_whole(tmp_path: Path) -> None:
    """Its ranks 2 and 3 contradict nothing, but are of a run that is dropped."""
    logs(tmp_path, "0xaaa1", 4000, 9)
    logs(tmp_path, "0xbbb1", 5000, 3, ranks=4)
    run = read_inputs([tmp_path])
    assert (run.world_size, calls_of(run)) == (2, {0: 9, 1: 9})
    assert len(left_out(run)) == 4


def test_without_ids_no_log_that_contradicts_another_counts(tmp_path: Path) -> None:
    logs(tmp_path, "", 4000, 9, version=OLD)
    logs(tmp_path, "", 5000, 5, version=OLD)
    third = logs(tmp_path, "", 6000, 5, version=OLD, ranks=3)[2]
    run = read_inputs([tmp_path])
    assert calls_of(run) == {2: 5}
    assert third.name not in left_out(run)
    assert len(left_out(run)) == 6


def test_logs_of_one_run_are_put_together_as_before(tmp_path: Path) -> None:
    paths = logs(tmp_path, "0xaaa1", 4000, 9, ranks=4)
    whole = tmp_path / "job.log"
    whole.write_text("".join(path.read_text() for path in paths))
    run = read_inputs([tmp_path])
    assert calls_of(run) == dict.fromkeys(range(4), 9)
    assert not left_out(run)


def test_the_warning_names_both_processes_and_the_other_file(tmp_path: Path) -> None:
    logs(tmp_path, "0xaaa1", 4000, 5, ranks=1)
    logs(tmp_path, "0xbbb1", 5000, 9, ranks=1)
    (warning,) = [text for source in read_inputs([tmp_path]).sources for text in source.warnings]
    assert "rank 0 is process 4000 on node-0, but process 5000 on node-0 in " in warning
    assert "nccl.node-0.5000.log: are these logs of two runs" in warning


def test_a_log_whose_largest_communicator_is_a_part_of_the_traced_job_is_left_out(tmp_path: Path) -> None:
    """Ranks in it are those of the part: rank 0 of a second group of two is rank 2 of the job."""
    source = Source(path="trace.json", format="kineto")
    traced = Reading(source=source, timelines=(trace([Call("all_reduce", 100)]),), world_size=4)
    paths = logs(tmp_path, "0xaaa1", 4000, 5)
    logged = [(path, each) for path in paths for each in read_file(path, ReadContext())]
    run = assemble([(Path("trace.json"), traced), *logged], {})
    assert calls_of(run) == {0: 1}
    assert run.world_size == 4
    warnings = [text for each in run.sources[1:] for text in each.warnings]
    assert len(warnings) == 2
    assert "its largest communicator has 2 ranks, and the job that was recorded 4" in warnings[0]
    of_two = replace(traced, world_size=2)
    assert set(assemble([(Path("trace.json"), of_two), *logged], {}).ranks) == {0, 1}


def test_one_log_of_a_job_that_was_restarted_says_what_to_do(tmp_path: Path) -> None:
    paths = logs(tmp_path, "0xaaa1", 4000, 5) + logs(tmp_path, "0xbbb1", 5000, 9)
    whole = tmp_path / "job.txt"
    whole.write_text("".join(path.read_text() for path in paths))
    with pytest.raises(
        InputError, match=r"job.txt: its 4 ranks are not known: .* restarted one, has to be cut to one job$"
    ):
        read_inputs([whole])
