"""Measured tables kept as CSV: real ones against their own text, other spellings, and headers that are not guessed."""

import csv
import math
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from overlapscope.analysis.source_tables import rows_of_sources
from overlapscope.errors import InputError
from overlapscope.ingest.formats.measured_table import READER
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.ingest.registry import read_head
from tests.conftest import shared_file
from tests.support import hostile
from tests.support.hostile import edited, read_or_refuse, recognises

read_text = partial(hostile.read_text, READER)


def rows_of(reading: Reading, table: str) -> list[dict[str, Any]]:
    tables = rows_of_sources(reading.facts)
    return tables[table].rows if table in tables else []


def figures(reading: Reading) -> dict[tuple[str, str], float]:
    return {(each["subject"], each["name"]): each["value"] for each in rows_of(reading, "figures")}  # type: ignore[misc]


# --- real files -----------------------------------------------------------------------------------------------------


def test_the_real_table_of_collectives_is_read() -> None:
    path = shared_file("bucket_sweeps/collectives_8xRTXPRO6000.csv")
    reading = READER.read(path, ReadContext())
    assert reading.source.warnings == ()
    got = rows_of(reading, "measurements")
    with path.open() as file:
        expected = list(csv.DictReader(file))
    assert len(got) == len(expected) == 18
    for one, other in zip(got, expected, strict=True):
        assert (one["op"], one["ranks"], one["bytes"]) == (other["op"], 8, int(other["bytes"]))
        assert one["time_ns"] == pytest.approx(float(other["time_ms"]) * 1e6)
        assert (one["algbw_gbs"], one["busbw_gbs"]) == (float(other["algbw_GBps"]), float(other["busbw_GBps"]))
        # What the file says of itself: busbw follows from time and size alone.
        factor = 1.75 if other["op"] == "all_reduce" else 0.875
        assert one["busbw_gbs"] == pytest.approx(one["bytes"] / one["time_ns"] * factor, rel=0.02, abs=0.006)


def test_the_real_sweep_of_bucket_caps_is_read() -> None:
    path = shared_file("bucket_sweeps/ddp_8xRTXPRO6000_nanogpt124M.csv")
    reading = READER.read(path, ReadContext())
    got = figures(reading)
    with path.open() as file:
        expected = list(csv.DictReader(file))
    assert len(got) == 2 * len(expected)
    steps = {1: 152.74, 10: 148.94, 25: 147.12, 100: 153.07, 250: 165.25, 500: 171.98}
    assert {cap: got[f"bucket_cap_mb={cap}", "step_ms"] for cap in steps} == steps
    assert got["bucket_cap_mb=25 gas=4 no_sync=1", "step_ms"] == 521.46
    assert got["bucket_cap_mb=25 gas=4 no_sync=0", "ktok_per_s"] == 674.8
    assert got["mode=single world=1", "step_ms"] == 122.18
    assert reading.source.warnings == ("for rows that do not state otherwise: mode=ddp, world=8, gas=1",)


def test_the_real_bucket_sizes_are_read() -> None:
    reading = READER.read(shared_file("bucket_sweeps/ddp_sizes_resnet18_pytorch48880.csv"), ReadContext())
    got = figures(reading)
    for cap in (25, 35):
        sizes = [got[f"bucket_cap_mb={cap}", f"bucket{order}_bytes"] for order in range(3)]
        assert sum(sizes) == 46758048  # all of ResNet-18 in float32, as the issue says
    assert got["bucket_cap_mb=35", "bucket1_bytes"] == 38297600


def test_no_other_real_file_is_claimed() -> None:
    folder = shared_file("bucket_sweeps").parent
    claimed = [path for path in sorted(folder.rglob("*")) if path.is_file() and READER.recognises(read_head(path))]
    assert [path.parent.name for path in claimed] == ["bucket_sweeps"] * 3


# --- spellings ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("op,world_size,bytes,time_ms", "all_reduce,8,1048576,2.5"),
        ("Operation;NGPUs;Size (bytes);Time (us)", "AllReduce;8;1048576;2500"),
        ("collective\tranks\tsize_mib\tlatency_s", "allreduce\t8\t1\t0.0025"),
        ("coll, n_ranks, message_size_kib, avg_time_ns", "AllReduce, 8, 1024, 2500000"),
        ("# a note\n\nop,gpus,nbytes,elapsed_us", "all-reduce,8,1048576,2.5e3"),
    ],
)
def test_columns_have_several_spellings(header: str, row: str, tmp_path: Path) -> None:
    (got,) = rows_of(read_text(tmp_path, f"{header}\n{row}\n"), "measurements")
    assert (got["op"], got["ranks"], got["bytes"]) == ("all_reduce", 8, 1 << 20)
    assert got["time_ns"] == pytest.approx(2_500_000)
    assert got["algbw_gbs"] == pytest.approx(0.4194304)
    assert got["busbw_gbs"] == pytest.approx(0.7340032)


@pytest.mark.parametrize(
    ("unit", "scale"),
    [("GBps", 1), ("GB/s", 1), ("gbs", 1), ("MB/s", 1000), ("Gbit/s", 8), ("Gbits/s", 8)],
)
def test_bandwidths_have_units(unit: str, scale: float, tmp_path: Path) -> None:
    text = f"op,bytes,algbw ({unit}),dtype,algorithm\nbroadcast,1000,{2.5 * scale},bf16,ring\n"
    (got,) = rows_of(read_text(tmp_path, text), "measurements")
    assert got["algbw_gbs"] == pytest.approx(2.5)
    assert got["time_ns"] is None
    assert (got["dtype"], got["algorithm"]) == ("bf16", "ring")


@pytest.mark.parametrize("unit", ["gbps", "Gbps", "GiB/s", "", "Mbps"])
def test_units_of_two_meanings_are_not_guessed(unit: str, tmp_path: Path) -> None:
    assert not recognises(READER, tmp_path, f"op,bytes,algbw_{unit}\nbroadcast,1000,2.5\n")


@pytest.mark.parametrize(
    "text",
    [
        "name,value\na,1\n",
        "op,size,time_ms\nall_reduce,1,2\n",
        "op,size_mb,time_ms\nall_reduce,1,2\n",
        "op,bytes,time\nall_reduce,1,2\n",
        "op,bytes,time_ms\nmatmul,1,2\n",
        "op,bytes,time_ms\nall_reduce,big,2\n",
        "op,bytes,bytes,time_ms\nall_reduce,1,2,3\n",
        "op,bytes,time_ms\n",
        "bucket_cap_kb,step_ms\n25,100\n",
        "Step,Computing,Communication(Not Overlapped),Overlapped\n1,2,3,4\n",
        "# op,bytes,time_ms\n",
        "",
        "\x00\x01op,bytes,time_ms\nall_reduce,1,2\n",
    ],
)
def test_other_tables_are_left_to_other_readers(text: str, tmp_path: Path) -> None:
    assert not recognises(READER, tmp_path, text)


def test_contradictions_within_a_row_are_reported(tmp_path: Path) -> None:
    head = "op,ranks,bytes,time_us,algbw_GBps,busbw_GBps\n"
    text = head + "all_reduce,4,1000000,100,10,15\nall_reduce,4,1000000,100,20,30\nall_reduce,4,1000000,100,10,10\n"
    reading = read_text(tmp_path, text)
    assert reading.source.warnings == (
        "algbw is not size / time in lines 3",
        "busbw is not algbw x the operation's factor in lines 4",
    )
    assert [each["algbw_gbs"] for each in rows_of(reading, "measurements")] == [10, 20, 10]


def test_rows_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    bad = "all_reduce,,1\nall_reduce,1024\nsort,1024,1\nall_reduce,1.5,1\nall_reduce,2,\n"
    text = "op,bytes,time_ms\nall_reduce,1024,1\n" + bad
    reading = read_text(tmp_path, text)
    assert reading.source.dropped == 5
    assert "rows that cannot be used were left out: lines 3, 4, 5, 6, 7" in reading.source.warnings


def test_sizes_of_buckets_that_are_no_numbers_cost_their_row(tmp_path: Path) -> None:
    reading = read_text(tmp_path, "bucket_cap_mb,sizes_bytes\n25,205;big\n10,5;6\n")
    assert reading.source.dropped == 1
    assert figures(reading) == {("bucket_cap_mb=10", "bucket0_bytes"): 5, ("bucket_cap_mb=10", "bucket1_bytes"): 6}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("op,bytes,time_ms\nsort,1024,1\n", "no row below its header"),
        ("a,b\n1,2\n", r"its header \(a, b\) is not recognised"),
    ],
)
def test_a_table_without_a_known_header_or_row_is_refused(text: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        READER.read(path, ReadContext())


# --- hostile input --------------------------------------------------------------------------------------------------

BASES = (
    "op,world_size,bytes,time_ms,algbw_GBps,busbw_GBps\nall_gather,8,4096,0.035,0.12,0.1\nall_reduce,8,65536,0.06,0.9,1.6\n",
    "mode,world,bucket_cap_mb,gas,step_ms,ktok_per_s\nddp,8,25.0,1,147.1,668\nddp,8,10.0,1,148.9,660\n",
    "bucket_cap_mb,sizes_bytes\n25,205;2885;158\n",
)


ODD = ['"', '""', "\n", ";", "\t", "9" * 40, "-1", "nan", "inf", "1e308", "0", "," * 100]


@given(content=edited(BASES, ODD))
def test_spoiled_tables_give_a_result_or_one_error(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "t.csv"
    path.write_bytes(content)
    reading = read_or_refuse(READER, path)
    if reading is None:
        return
    for each in rows_of(reading, "measurements"):
        assert each["time_ns"] is None or each["time_ns"] > 0  # type: ignore[operator]
    for each in rows_of(reading, "figures"):
        assert math.isfinite(each["value"])  # type: ignore[arg-type]
