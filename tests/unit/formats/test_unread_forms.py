"""Forms that are not read are named, with the command that makes them readable; and that command does."""

import bz2
import gzip
import json
import lzma
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.ingest.read_run import read_inputs
from tests.conftest import needs_archives, shared_file
from tests.support.writers.nccl_log import VERSIONS, Communicator, Process, initialised

LOG = "\n".join(initialised(VERSIONS[7], Process(rank=0), 0, 1, Communicator())) + "\n"
CONTAINER = "".join(
    json.dumps({"log": line, "stream": "stdout", "time": "2024-02-22T23:29:00.1Z"}, separators=(",", ":")) + "\n"
    for line in LOG.splitlines(keepends=True)
)


@pytest.mark.parametrize(
    ("content", "said", "command"),
    [
        (bz2.compress(LOG.encode()), "compressed by bzip2", "bzip2 -d"),
        (lzma.compress(LOG.encode()), "compressed by xz", "xz -d"),
        (b"\x28\xb5\x2f\xfd" + b"\0" * 40, "compressed by zstd", "zstd -d"),
        (LOG.encode("utf-16"), "text in UTF-16", "iconv -f UTF-16 -t UTF-8"),
        (LOG.encode("utf-16-le"), "text in UTF-16", "iconv -f UTF-16LE -t UTF-8"),
        (LOG.encode("utf-16-be"), "text in UTF-16", "iconv -f UTF-16BE -t UTF-8"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 3\n", "Git LFS", "git lfs pull"),
        (CONTAINER.encode(), "container's output as JSON lines", "jq -j .log"),
    ],
    ids=["bzip2", "xz", "zstd", "utf-16", "utf-16-le", "utf-16-be", "lfs", "docker"],
)
def test_a_form_that_is_not_read_is_named_with_the_command_that_changes_it(
    content: bytes, said: str, command: str, tmp_path: Path
) -> None:
    path = tmp_path / "job.log"
    path.write_bytes(content)
    with pytest.raises(InputError, match=said) as caught:
        read_inputs([path])
    assert f"`{command}`" in str(caught.value)
    words = command.split()
    if words[0] != "git" and shutil.which(words[0]) and len(content) > 60:
        done = subprocess.run(words, input=content, capture_output=True, check=True)
        (tmp_path / "plain.log").write_bytes(done.stdout)
        assert read_inputs([tmp_path / "plain.log"]).world_size == 1


CHAKRA_NODE = b"\x08\x09\x12\x08AllGathr\x18\x07"
PLUGIN = b'[\n{"name": "Group", "cat": "GROUP", "ph": "b", "id": 0, "pid": 1, "tid": 1, "ts": 0.0, "args": {}},\n{}]\n'
REPORT = b'{"version": 2, "start_time": "2026-01-02 03:04:05", "args": ["all_reduce_perf", "-J", "o"], "results": []}'
RCCL = b'{"numCycle": 0, "name": "AllReduce", "gpus": 8, "size": 8, "type": "float", "inPlace": 0, "time": 1.5}'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"workload_graph": [{"Id": 1, "Name": "ncclKernel_AllReduce", "NodeType": 7}], "ngpus": 8}', "Chakra trace"),
        (b"\x07\n\x050.0.4" + bytes([len(CHAKRA_NODE)]) + CHAKRA_NODE, "Chakra trace"),
        (b"\x20\n\x1e\n\x06schema\xea\x01\x131.0.2-chakra.0.0.4" + CHAKRA_NODE, "Chakra trace"),
        (b"\0" + bytes([len(CHAKRA_NODE)]) + CHAKRA_NODE, "Chakra trace"),
        (REPORT, "a report of nccl-tests .* use the table that the test prints"),
        (REPORT[:70], "a report of nccl-tests"),
        (RCCL, "or rccl-tests"),
        (b"[\n" + RCCL + b"\n]", "or rccl-tests"),
        (b"numCycle,collective,gpus,size,type,redop,inplace,time,algbw,busbw,#wrong\n", "or rccl-tests"),
        (PLUGIN, "NCCL's example profiler plugin, .* use the records of NCCL Inspector"),
        (b'\xef\xbb\xbf<graphs version="1"><graph id="0"/></graphs>', "a dump of NCCL's graphs .* use the topology"),
    ],
    ids=["graph", "et", "old et", "bare et", "-J", "cut -J", "-x", "-x array", "-x csv", "plugin", "graphs"],
)
def test_a_format_that_is_not_read_is_refused_in_one_line_that_says_what_to_give(
    content: bytes, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    assert main(["analyze", str(path)]) == 3
    (line,) = capsys.readouterr().err.splitlines()
    assert re.search(f"{path}: .*{said}", line)
    assert "not read" in line


@pytest.mark.parametrize(
    "name", ["nccl_topo_xml/azure_ncv4-graph.xml", pytest.param("chakra_et/json_trace.tar.gz", marks=needs_archives)]
)
def test_real_files_that_are_not_read_are_refused(name: str) -> None:
    with pytest.raises(InputError, match=r"dump of NCCL's graphs|holds no file that can be read"):
        read_inputs([shared_file(name)])


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\n<!DOCTYPE html><html><body>Log in</body></html>", "is a web page"),
        (b"SQLite format 3\0" + bytes(4000), "is an SQLite database without the tables"),
        (bytes(4000), "it holds nothing but blanks"),
        (gzip.compress(LOG.encode())[:12], "is gzip data that is cut before anything of it can be read"),
        (gzip.compress(b""), "it is empty"),
        (b"", "it is empty"),
    ],
    ids=["page", "sqlite", "zeros", "cut gzip", "gzip of nothing", "nothing"],
)
def test_what_holds_nothing_that_is_read_is_called_what_it_is(content: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=f"rank0.json: .*{said}"):
        read_inputs([path])


@pytest.mark.slow
@pytest.mark.parametrize(("begin", "end"), [(b"", b""), (b"[", b"]"), (b'{"traceEvents": [', b"")])
def test_blanks_without_end_are_read_quickly_and_in_little_memory(begin: bytes, end: bytes, tmp_path: Path) -> None:
    path = tmp_path / "rank0.json"
    with path.open("wb") as file:
        file.write(begin)
        for _ in range(400):
            file.write(b" " * (1 << 20))
        file.write(end)
    script = (
        "import resource, sys; from overlapscope.cli.main import main;"
        "resource.setrlimit(resource.RLIMIT_DATA, (300 << 20, 300 << 20));"
        "resource.setrlimit(resource.RLIMIT_CPU, (8, 8)); sys.exit(main(['analyze', sys.argv[1]]))"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(path)], capture_output=True, text=True, check=False)
    path.unlink()
    said = "holds no device or host work (0 events)" if begin else "holds nothing but blanks"
    assert (ended.returncode, ended.stderr.count("\n")) == (3, 1), ended.stderr
    assert said in ended.stderr


def test_a_table_inside_a_containers_json_lines_is_not_misread(tmp_path: Path) -> None:
    """Behind each row stands JSON, which once was read as counts of wrong results."""
    table = shared_file("nccl_log/aws_efa_eks_nccl2.9.9_p4d_16ranks_mpirun.log").read_text()
    path = tmp_path / "container-json.log"
    lines = (json.dumps({"log": line, "stream": "stdout"}, separators=(",", ":")) for line in table.splitlines())
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="JSON lines"):
        read_inputs([path])
