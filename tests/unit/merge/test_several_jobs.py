"""Recordings of several jobs in one folder: one table a job, and a job that is one stays one."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.ingest.read_run import read_inputs, read_jobs
from tests.conftest import shared_file
from tests.support.writers import kineto, nsight

DAY_NS = 24 * 3600 * 10**9
HOUR_NS = 3600 * 10**9


def record(
    place: Path, rank: int | None, *, world: int | None = 2, at_ns: int = 0, process: int = kineto.PROCESS,
    first: int = 3, device: str | None = None,
) -> None:  # fmt: skip
    """Write the trace of a rank, whose recording begins so long after the first."""
    assert kineto.TORCH_2024.base_ns is not None
    dialect = replace(kineto.TORCH_2024, base_ns=kineto.TORCH_2024.base_ns + at_ns)
    events = [
        replace(each, process=process) if each.process == kineto.PROCESS else each
        for each in kineto.training(2, first=first)
    ]
    metadata: dict[str, object] = {}
    if world is not None and rank is not None:
        metadata |= kineto.distributed(rank, world)
    if device is not None:
        metadata["deviceProperties"] = [{"id": 0, "name": device}]
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(kineto.write(events, dialect, metadata=metadata))


def jobs_in(folder: Path) -> list[set[str]]:
    """Return the files of each job."""
    return [
        {Path(source.path).name for source in job.run.sources if source.events} for job in read_jobs([folder])
    ]  # fmt: skip


def test_another_world_size_is_another_job(tmp_path: Path) -> None:
    for rank in range(2):
        record(tmp_path / f"a{rank}.json", rank)
        record(tmp_path / f"b{rank}.json", rank, world=4, process=7)
    assert jobs_in(tmp_path) == [{"a0.json", "a1.json"}, {"b0.json", "b1.json"}]
    assert [job.run.world_size for job in read_jobs([tmp_path])] == [2, 4]


def test_another_device_at_another_time_is_another_job_and_beside_it_is_not(tmp_path: Path) -> None:
    for place, at_ns in (("later", HOUR_NS), ("beside", 0)):
        record(tmp_path / place / "a0.json", 0, device="NVIDIA H100")
        record(tmp_path / place / "b1.json", 1, device="NVIDIA B200", at_ns=at_ns)
    assert jobs_in(tmp_path / "later") == [{"a0.json"}, {"b1.json"}]
    assert jobs_in(tmp_path / "beside") == [{"a0.json", "b1.json"}]


@pytest.mark.parametrize("process", [kineto.PROCESS, 99])
def test_jobs_of_one_shape_on_other_days_are_two(tmp_path: Path, process: int) -> None:
    for rank in range(2):
        record(tmp_path / f"a{rank}.json", rank)
        record(tmp_path / f"b{rank}.json", rank, at_ns=2 * DAY_NS, process=process)
    assert jobs_in(tmp_path) == [{"a0.json", "a1.json"}, {"b0.json", "b1.json"}]


def test_a_job_that_was_started_again_is_another_run(tmp_path: Path) -> None:
    for rank in range(2):
        record(tmp_path / f"a{rank}.json", rank, process=10 + rank)
        record(tmp_path / f"b{rank}.json", rank, at_ns=HOUR_NS + rank, process=20 + rank)
    assert jobs_in(tmp_path) == [{"a0.json", "a1.json"}, {"b0.json", "b1.json"}]


def test_assumed_ranks_of_another_job_are_said_to_be_assumed(tmp_path: Path) -> None:
    for number in range(2):
        ids = [{"pid": 100 * number + at, "correlation": at} for at in (1, 2)]
        kernels = [nsight.Kernel(name="k", start=5, end=9, device=at, **own) for at, own in enumerate(ids)]
        calls = [nsight.Call(name="cudaLaunchKernel_v7000", start=1, end=2, **own) for own in ids]
        export = nsight.Export(kernels=kernels, calls=calls, epoch_ns=nsight.EPOCH_NS + number * HOUR_NS)
        export.write(tmp_path / f"node{number}.sqlite")
    assert [job.why for job in read_jobs([tmp_path])] == [
        "", "rank 0 is another process (ranks are assumed: if it is the same job, say them with --rank)"
    ]  # fmt: skip


@pytest.mark.parametrize("at_ns", [HOUR_NS, 3 * DAY_NS])
def test_recording_windows_of_one_process_are_one_job(tmp_path: Path, at_ns: int) -> None:
    for rank in range(2):
        record(tmp_path / f"a{rank}.json", rank, process=10 + rank)
        record(tmp_path / f"b{rank}.json", rank, process=10 + rank, at_ns=at_ns, first=1_000)
    assert len(jobs_in(tmp_path)) == 1
    assert [each.recordings.start_ns.size for each in read_inputs([tmp_path]).ranks.values()] == [2, 2]


def test_ranks_that_are_missing_or_whose_clocks_are_days_off_stay_in_the_job(tmp_path: Path) -> None:
    for rank in (0, 3, 7):
        record(tmp_path / f"a{rank}.json", rank, world=8, at_ns=rank * DAY_NS, process=rank + 1)
    assert jobs_in(tmp_path) == [{"a0.json", "a3.json", "a7.json"}]


def test_many_files_of_one_job_are_one(tmp_path: Path) -> None:
    record(tmp_path / "one.json", 0, world=300)
    text = (tmp_path / "one.json").read_bytes()
    for rank in range(1, 40):
        changed = text.replace(b'"rank": 0', b'"rank": %d' % rank).replace(b'"rank":0', b'"rank":%d' % rank)
        (tmp_path / f"r{rank}.json").write_bytes(changed)
    assert len(read_jobs([tmp_path])) == 1


def test_a_log_goes_to_the_job_of_its_folder(tmp_path: Path) -> None:
    for name, world in (("a", 2), ("b", 4)):
        record(tmp_path / name / "rank0.json", 0, world=world)
    log = [f"node:7:7 [0] NCCL INFO {said}" for said in ("Bootstrap : Using eth0:10.0.0.1<0>", "NCCL version 2.21.5")]
    (tmp_path / "b" / "nccl.log").write_text("\n".join(log) + "\n")
    with_log = [any(source.path.endswith("nccl.log") for source in job.run.sources) for job in read_jobs([tmp_path])]
    assert with_log == [False, True]
    (tmp_path / "b" / "nccl.log").rename(tmp_path / "nccl.log")
    (doubtful,) = [each for each in read_jobs([tmp_path])[0].run.sources if each.path.endswith("nccl.log")]
    assert "left out: which of the 2 jobs it is of is not known" in doubtful.warnings[-1]


@pytest.mark.slow
def test_each_job_has_its_table_and_its_document(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for rank in range(2):
        record(tmp_path / "all" / f"a{rank}.json", rank)
        record(tmp_path / "all" / f"b{rank}.json", rank, at_ns=2 * DAY_NS)
    assert main(["analyze", str(tmp_path / "all")]) == 0
    shown = capsys.readouterr().out
    assert "Job 1 of 2: world of 2, 2024-05-23 " in shown
    assert "Job 2 of 2: world of 2, 2024-05-25 " in shown
    assert "Not of the jobs above: rank 0 begins its steps again on another day." in shown
    assert main(["analyze", str(tmp_path / "all"), "--json"]) == 0
    documents: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    assert [each["schema"] for each in documents] == ["overlapscope.analysis/1"] * 2
    assert main(["analyze", *map(str, sorted((tmp_path / "all").glob("b*"))), "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert documents[1]["ranks"] == alone["ranks"]
    for verb in (["ingest", "-o", str(tmp_path / "run")], ["advise"], ["export", "-o", str(tmp_path / "out.json")]):
        assert main([verb[0], str(tmp_path / "all"), *verb[1:]]) == 3
        said = capsys.readouterr().err
        assert "recordings of 2 jobs: 1. world of 2, 2024-05-23 " in said
        assert "name the files of one" in said
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError, match="recordings of 2 jobs"):
        read_inputs([tmp_path / "all"])


def test_jobs_with_files_of_the_same_names_have_headings_of_their_own(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for folder, at_ns in (("monday", 0), ("tuesday", 2 * DAY_NS)):
        for rank in range(2):
            record(tmp_path / folder / f"rank{rank}.json", rank, at_ns=at_ns)
    assert main(["analyze", str(tmp_path)]) == 0
    headings = [line for line in capsys.readouterr().out.splitlines() if line.startswith("Job ")]
    assert [line.partition("UTC: ")[2] for line in headings] == [
        "monday/rank0.json, monday/rank1.json", "tuesday/rank0.json, tuesday/rank1.json"
    ]  # fmt: skip


@pytest.mark.slow
def test_a_folder_of_nine_real_jobs_has_nine_tables() -> None:
    jobs = read_jobs([shared_file("kineto/v100_rank1of2_2020_allreduces.json.gz").parent])
    assert sorted((job.run.world_size or 0, len(job.run.ranks)) for job in jobs) == [
        (0, 1), (0, 1), (2, 1), (2, 1), (8, 1), (8, 1), (8, 1), (8, 8), (128, 2),
    ]  # fmt: skip
