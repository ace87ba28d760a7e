"""Recordings that are kept name no machine."""

import gzip
import socket
from pathlib import Path

from overlapscope.gpu_check.kept_files import clean_log, clean_text, clean_trace, keep


def test_logs_keep_all_but_hosts_processes_and_addresses() -> None:
    host = socket.gethostname().partition(".")[0]
    line = f"{host}:4711:4712 [0] NCCL INFO NET/Socket : Using [0]lo:10.1.2.3<0> NCCL version 2.27.3+cuda12.9"
    assert (
        clean_log(line, 1)
        == "host:1001:2001 [0] NCCL INFO NET/Socket : Using [0]lo:127.0.0.1<0> NCCL version 2.27.3+cuda12.9"
    )
    assert clean_text(f"{host}.example.org said") == "host said"
    assert clean_text(f"{Path.home()}/job.py") == "~/job.py"


def test_traces_keep_all_but_the_host_and_the_file() -> None:
    trace = b'{"traceName": "/home/me/a.json", "host_name": "node7", "traceEvents": [{"name": "k"}]}'
    assert (
        clean_trace(trace, "b.json") == b'{"traceName": "b.json", "host_name": "host", "traceEvents": [{"name": "k"}]}'
    )


def test_files_are_kept_while_they_fit_the_smallest_first(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text("{}")
    (tmp_path / "b.json.gz").write_bytes(gzip.compress(b'{"host_name": "x"}'))
    (tmp_path / "broken.json.gz").write_bytes(b"\x1f\x8bnot gzip")
    (tmp_path / "large.bin").write_bytes(bytes(range(256)) * 40)
    kept, lost = keep(tmp_path.iterdir(), tmp_path / "out", "C4", 200)
    assert sorted(path.name for path in kept) == ["C4.a.json.gz", "C4.b.json.gz"]
    assert lost == 2
    assert gzip.decompress((tmp_path / "out" / "C4.b.json.gz").read_bytes()) == b'{"host_name": "host"}'
