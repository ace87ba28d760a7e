"""Inputs that are no files, folders that lead in circles, names and texts made to take for ever."""

import gzip
import json
import os
import re
import time
from pathlib import Path

import pytest

from overlapscope.cli.main import main
from overlapscope.cli.output import MAX_LINE, one_line
from overlapscope.errors import InputError
from overlapscope.ingest.build.kernel_names import MAX_NAME, Classifier
from overlapscope.ingest.formats.ascend import device as ascend_collectives
from overlapscope.ingest.formats.nccl_tests import table as bandwidth_lines
from overlapscope.ingest.formats.topology import matrix as topo_matrix
from overlapscope.ingest.inputs import discover
from overlapscope.ingest.parsing import json_repair as repair
from overlapscope.ingest.reader import HEAD_BYTES, Head
from overlapscope.ingest.registry import all_readers
from tests.support.writers.kineto import training, write, write_job

BLANKS = 200_000


def test_a_pipe_or_a_device_is_refused_at_once(tmp_path: Path) -> None:
    """Opening a pipe waits for its writer; its content can be read only once."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path in (pipe, Path("/dev/zero")):
        with pytest.raises(InputError, match="is a pipe or a device; save its content as a file"):
            discover([path])


def test_links_in_a_circle_come_to_an_end(tmp_path: Path) -> None:
    """Two links in each of two folders have 2^40 ways round before the system refuses."""
    for here, there in (("a", "b"), ("b", "a")):
        (tmp_path / here).mkdir()
        for name in ("x", "y"):
            (tmp_path / here / name).symlink_to(f"../{there}")
    write_job(tmp_path / "a", 1)
    assert discover([tmp_path]).files == (tmp_path / "a" / "rank0.json",)


def test_a_link_to_what_the_folder_holds_is_no_second_recording(tmp_path: Path) -> None:
    write_job(tmp_path / "run7", 1)
    (tmp_path / "latest").symlink_to("run7")
    (tmp_path / "newest.json").symlink_to("run7/rank0.json")
    assert discover([tmp_path]).files == (tmp_path / "run7" / "rank0.json",)
    assert discover([tmp_path / "latest"]).files == (tmp_path / "latest" / "rank0.json",)


def test_links_to_what_lies_elsewhere_are_followed(tmp_path: Path) -> None:
    write_job(tmp_path / "store", 1)
    write_job(tmp_path / "other", 2)
    job = tmp_path / "job"
    job.mkdir()
    (job / "day").symlink_to("../store")
    (job / "rank1.json").symlink_to("../other/rank1.json")
    assert discover([job]).files == (job / "day" / "rank0.json", job / "rank1.json")


def test_a_name_with_a_line_break_stays_on_its_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a\nb.json"
    path.write_bytes(write(training(2)))
    assert main(["analyze", str(path)]) == 0
    (line,) = capsys.readouterr().err.splitlines()
    assert "a\\x0ab.json: no rank stands" in line


def test_names_that_are_no_text_are_shown_all_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Linux lets a name hold any bytes; JSON holds text."""
    whole = write(training(2))
    contents = {
        b"1": whole,
        b"2": whole,
        b"damaged.gz": gzip.compress(whole)[:-100],
        b"cut": b'{"traceEvents": [{"ph": "X", "cat": "gpu_user_annotation"',
        b"steps.csv": b"Step,Computing,Communication(Not Overlapped),Overlapped,Communication,Free\n1,1,2,3,4,5\n",
        b"report.nsys-rep": b"QUADD file",
        b"nodes": b'{"schema": "1.1.1", "nodes": [], "pid": 1}',
        b"rank3_ok": whole,
    }
    for name, content in contents.items():
        with open(os.fsencode(tmp_path) + b"/\xff\xfe" + name, "wb") as file:
            file.write(content)
    assert main(["analyze", "--json", *(str(path) for path in tmp_path.iterdir())]) == 0
    shown = capsys.readouterr()
    document = json.loads(shown.out)
    assert {Path(source["path"]).name for source in document["sources"]} == {
        f"\ufffd\ufffd{name.decode()}" for name in contents
    }
    assert "Traceback" not in shown.err
    assert main(["analyze", str(tmp_path), "--json"]) == 0
    json.loads(capsys.readouterr().out)
    assert main(["analyze", str(tmp_path)]) == 0


def test_a_message_is_cut_where_a_value_in_it_has_no_end() -> None:
    assert one_line("9" * 10_000) == "9" * (MAX_LINE - 3) + "..."
    assert one_line("9" * MAX_LINE) == "9" * MAX_LINE


@pytest.mark.parametrize("begin", [b"", b"[", b"{", b'{"traceEvents": [', b"\n# ", b"<?xml?>"])
def test_no_reader_takes_long_to_refuse_blanks(tmp_path: Path, begin: bytes) -> None:
    content = (begin + b" " * HEAD_BYTES)[:HEAD_BYTES]
    head = Head(path=tmp_path / "blanks", content=content, tail=content)
    begun = time.process_time()
    for reader in all_readers():
        reader.recognises(head)
    assert time.process_time() - begun < 5


@pytest.mark.parametrize(
    ("pattern", "text"),
    [
        (ascend_collectives._THREAD, "Group" + " " * BLANKS),
        (ascend_collectives._THREAD, "Group Communication" + " " * BLANKS + "x"),
        (bandwidth_lines._HEADER, "size count type " * (BLANKS // 16)),
        (topo_matrix._OTHER, "a" * BLANKS),
        (topo_matrix._TITLE, "=" * BLANKS + "x"),
        (topo_matrix._TITLE, "=" + " " * BLANKS + "x"),
    ],
)
def test_patterns_take_time_in_proportion_to_the_text(pattern: re.Pattern[str], text: str) -> None:
    begun = time.process_time()
    assert pattern.fullmatch(text) is None
    assert pattern.match(text) is None or pattern is topo_matrix._TITLE
    if pattern is bandwidth_lines._HEADER:
        assert pattern.search(text) is None
    assert time.process_time() - begun < 5


def test_the_end_of_a_damaged_array_is_sought_in_proportion_to_the_text() -> None:
    begun = time.process_time()
    assert list(repair._ARRAY_END.finditer(b"}]" + b" " * BLANKS + b"x")) == []
    assert [found.end() for found in repair._ARRAY_END.finditer(b"} ] \n } ")] == [3]
    assert time.process_time() - begun < 5


def test_a_kernel_is_known_by_the_beginning_of_its_name() -> None:
    placement, _ = Classifier().place("ncclDevKernel_AllReduce_Sum_f32_RING_LL(" + "a" * 10 * MAX_NAME)
    assert placement.op == "all_reduce"


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("=== Link Type ===", "Link Type"), ("======", ""), ("== a = b ==", "a = b"), ("ACCESS TABLE:", "ACCESS TABLE"),
        ("= x", None),
    ],
)  # fmt: skip
def test_the_title_of_a_matrix_stands_between_signs(line: str, title: str | None) -> None:
    found = topo_matrix._TITLE.fullmatch(line)
    assert (found and (found[1] or found[2] or "").strip()) == title
