"""Forms that are not read are named, with the command that makes them readable; and that command does."""

import bz2
import gzip
import json
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest

from overlapscope.errors import InputError
from overlapscope.ingest.read_run import read_inputs
from tests.conftest import shared_file
from tests.nccl_writer import VERSIONS, Communicator, Process, initialised

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


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"\n<!DOCTYPE html><html><body>Log in</body></html>", "is a web page, as of a log-in"),
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


def test_a_table_inside_a_containers_json_lines_is_not_misread(tmp_path: Path) -> None:
    """Behind each row stands JSON, which once was read as counts of wrong results."""
    table = shared_file("nccl_log/aws_efa_eks_nccl2.9.9_p4d_16ranks_mpirun.log").read_text()
    path = tmp_path / "container-json.log"
    lines = (json.dumps({"log": line, "stream": "stdout"}, separators=(",", ":")) for line in table.splitlines())
    path.write_text("\n".join(lines))
    with pytest.raises(InputError, match="JSON lines"):
        read_inputs([path])
