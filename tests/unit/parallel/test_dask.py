"""A run read by the workers of a real Dask cluster, of which one is killed in the middle."""

import http.server
import os
import signal
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overlapscope.cli.main import main
from overlapscope.errors import UsageError
from overlapscope.ingest.parallel import dask as scheduler
from overlapscope.ingest.parallel.dask import dask_executor
from overlapscope.ingest.progress import NoProgress
from overlapscope.ingest.write_run import write_run
from tests.support.writers.kineto import write_job
from tests.unit.parallel.test_write_run import assert_as_if_read_at_once, files_in

RANKS = 8


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Two worker processes of this machine."""
    dask = pytest.importorskip("distributed", reason="distributed is not installed")
    with dask.LocalCluster(
        n_workers=2,
        threads_per_worker=1,
        processes=True,
        dashboard_address="127.0.0.1:0",
        host="127.0.0.1",
        silence_logs=50,
    ) as cluster:
        yield cluster


@pytest.fixture
def job(tmp_path: Path) -> Path:
    folder = write_job(tmp_path / "job", RANKS, steps=5)
    (folder / "rank8.json").write_bytes(b'{"schemaVersion": 1, "traceEvents": [{"ph": "X"}]}')
    return folder


class _Killing(NoProgress):
    """Kills a worker when the first file is done."""

    def __init__(self, cluster: Any) -> None:
        self._cluster, self._lock = cluster, threading.Lock()
        self.killed: int | None = None

    def done(self, path: Path) -> None:
        with self._lock:
            if self.killed is None:
                self.killed = next(worker.pid for worker in self._cluster.workers.values())
                os.kill(self.killed, signal.SIGKILL)


@pytest.mark.slow
def test_a_worker_killed_in_the_middle_costs_nothing(cluster: Any, job: Path, tmp_path: Path) -> None:
    killing = _Killing(cluster)
    with dask_executor(cluster.scheduler_address) as executor:
        written = assert_as_if_read_at_once([job], tmp_path, executor=executor, watch=killing)
    assert killing.killed is not None
    assert written.ranks == tuple(range(RANKS))
    (bad,) = [source for source in written.sources if source.warnings]
    assert bad.path.endswith("rank8.json")


def test_the_command_reads_on_a_cluster(
    cluster: Any, job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["ingest", str(job), "-o", str(tmp_path / "run"), "--scheduler", cluster.scheduler_address]
    assert main(command) == 0
    assert f"{RANKS} ranks" in capsys.readouterr().out
    write_run([job], tmp_path / "here", workers=1)
    assert files_in(tmp_path / "run") == files_in(tmp_path / "here")


@pytest.mark.slow
def test_where_no_scheduler_answers_the_command_says_so(
    job: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{unused.getsockname()[1]}"
        assert main(["ingest", str(job), "-o", str(tmp_path / "run"), "--scheduler", address]) == 2
    assert "no Dask scheduler answers there" in capsys.readouterr().err
    assert main(["ingest", str(job), "-o", str(tmp_path / "run"), "--scheduler", address, "--workers", "2"]) == 2
    assert "choose one" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["job"]


def test_what_is_no_scheduler_is_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="distributed is not installed")
    monkeypatch.setattr(scheduler, "CONNECT_SECONDS", 0.2)
    with http.server.HTTPServer(("127.0.0.1", 0), http.server.SimpleHTTPRequestHandler) as server:
        address = f"tcp://127.0.0.1:{server.server_port}"
        with pytest.raises(UsageError, match="no Dask scheduler answers there"), dask_executor(address):
            pass


def test_without_dask_the_command_names_what_to_install(
    job: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "distributed", None)
    assert main(["ingest", str(job), "-o", str(tmp_path / "run"), "--scheduler", "tcp://127.0.0.1:8786"]) == 2
    assert "pip install 'overlapscope[cluster]'" in capsys.readouterr().err
