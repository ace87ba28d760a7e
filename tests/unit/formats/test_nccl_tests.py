"""nccl-tests and rccl-tests: every layout they print, against what was put in and what real files say."""

import math
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.errors import InputError
from overlapscope.ingest.formats.nccl_tests import READER
from overlapscope.ingest.formats.nccl_tests.table import BandwidthLines, BandwidthTable
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import ReadContext, Reading
from overlapscope.ingest.reference_bandwidth import reference_bandwidths
from overlapscope.ingest.registry import find_reader, read_head
from overlapscope.timeline.columns import size as rows_in
from overlapscope.whatif.cost.curves import table_curve
from tests.conftest import shared_file
from tests.support import hostile
from tests.support.hostile import edited, read_or_refuse, recognises
from tests.support.writers.bandwidth import (
    HEADER,
    PROGRAMS,
    SHARED,
    Measured,
    devices,
    row,
    setup,
    table,
    time_text,
)

SIZES = tuple(
    Measured(share=1 << k, out_us=20 + (1 << k) / 37e3, in_us=19.5 + (1 << k) / 36.5e3) for k in range(10, 25, 2)
)


read_text = partial(hostile.read_text, READER)


def collected(text: str, file_name: str = "") -> tuple[BandwidthTable, BandwidthLines]:
    """Return the only table of a text, and the collector that found it."""
    collector = BandwidthLines(file_name=file_name)
    for line in text.splitlines():
        collector.take(line)
    (found,) = collector.finish()
    return found, collector


def measured(reading: Reading) -> list[dict[str, Any]]:
    facts, rows = reading.facts, reading.facts.measurements
    return [
        {
            "op": facts.name(rows.op[at]),
            "dtype": facts.name(rows.dtype[at]),
            "bytes": int(rows.bytes[at]),
            "ranks": int(rows.ranks[at]),
            "in_place": int(rows.in_place[at]),
            "time_us": float(rows.time_ns[at]) / 1000,
            "algbw": float(rows.algbw_gbs[at]),
            "busbw": float(rows.busbw_gbs[at]),
            "wrong": int(rows.wrong[at]),
            "algorithm": facts.name(rows.algorithm[at]),
            "protocol": facts.name(rows.protocol[at]),
        }
        for at in range(len(rows.bytes))
    ]


NONE = -(2**63)

# --- real files -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "ranks", "lines"),
    [
        ("01_2xp4de_16xA100-80_EFA_allreduce.txt", 16, 29),
        ("03_1xp5_8xH100_NVSwitch_allreduce.txt", 8, 32),
        ("04_2xBM.GPU4.8_16xA100-40_RoCE_allreduce.txt", 16, 31),
        ("07_8xMI300X_RCCL_allreduce.txt", 8, 24),
        ("11_1x5090_2rank_socket_plateau_3reps.txt", 2, 8),
    ],
)
def test_real_tables_are_read_to_the_last_digit(name: str, ranks: int, lines: int, tmp_path: Path) -> None:
    path = shared_file(f"nccl_tests/{name}")
    if "allreduce" not in name:
        assert {each["op"] for each in measured(READER.read(path, ReadContext()))} == {None}
        path = Path(shutil.copy(path, tmp_path / "all_reduce.txt"))
    assert find_reader(read_head(path)) is READER
    reading = READER.read(path, ReadContext())
    assert (reading.source.events, reading.source.dropped, reading.source.warnings) == (lines, 0, ())
    expected = []
    for line in path.read_text().splitlines():
        found = re.search(r"(\d+) +(\d+) +float +sum +-1 +(.*)", line)
        if found:
            numbers = [float(each) for each in found[3].split()]
            for in_place, at in ((1, 0), (2, 4)):
                expected.append((int(found[1]), in_place, *numbers[at : at + 3], int(numbers[at + 3])))
    got = measured(reading)
    assert len(got) == 2 * lines == len(expected)
    for one, (size, in_place, time_us, algbw, busbw, wrong) in zip(got, expected, strict=True):
        assert (one["op"], one["dtype"], one["ranks"]) == ("all_reduce", "float32", ranks)
        assert (one["bytes"], one["in_place"], one["wrong"]) == (size, in_place, wrong)
        assert math.isclose(one["time_us"], time_us, rel_tol=1e-12)
        assert (one["algbw"], one["busbw"]) == (algbw, busbw)


def test_the_table_within_a_real_nccl_log_is_read_by_the_line_parser() -> None:
    path = shared_file("nccl_log/aws_efa_eks_nccl2.9.9_p4d_16ranks_mpirun.log")
    assert not READER.recognises(read_head(path))
    found, collector = collected(path.read_text(), "all_reduce.log")
    assert (found.op, found.ranks, collector.warnings) == ("all_reduce", 16, [])
    assert len(found.rows) == 30
    assert collector.broken == 0
    assert dict(collector.devices) == {"A100-SXM4-40GB": 16}
    last = found.rows[-1]
    assert last.size_bytes == 4294967296
    assert last.out_of_place is not None
    assert last.in_place is not None
    assert (last.out_of_place.time_us.value, last.in_place.busbw_gbs.value) == (183834, 43.72)  # type: ignore[union-attr]
    # The column holds the largest deviation there, no count of wrong elements.
    assert all(timing.wrong is None and timing.checked for each in found.rows for timing in each.timings)


def test_several_real_tables_make_one_run_without_ranks() -> None:
    run = read_inputs([shared_file("nccl_tests")])
    analysis = analyze(run)
    assert not run.ranks
    assert len(analysis.told["measurements"].rows) == 2 * (29 + 32 + 31 + 24 + 8)


# --- what is measured -----------------------------------------------------------------------------------------------

times = st.floats(3.0, 3e6)
shapes = st.lists(st.tuples(st.integers(0, 24), times, times), min_size=1, max_size=8)


@given(op=st.sampled_from(sorted(PROGRAMS)), ranks=st.integers(2, 600), shape=shapes, check=st.booleans())
def test_figures_never_contradict_the_program_that_printed_them(
    op: str, ranks: int, shape: list[tuple[int, float, float]], check: bool
) -> None:
    rows = [Measured(share=1 << power, out_us=out, in_us=within) for power, out, within in shape]
    for file_name in ("out.txt", f"{PROGRAMS[op]}.log"):
        found, collector = collected(table(op, ranks, rows, check=check), file_name)
        assert len(found.rows) == len(rows)
        assert found.op == (None if file_name == "out.txt" else op)
        assert found.ranks in (None, ranks)
        assert not collector.warnings


@pytest.mark.parametrize("ranks", [2, 3, 8, 16, 64])
@pytest.mark.parametrize("op", sorted(PROGRAMS))
def test_ranks_are_known_from_shares_and_from_the_busbw_of_an_all_reduce(op: str, ranks: int) -> None:
    found, _ = collected(table(op, ranks, SIZES), op)
    assert (found.op, found.ranks) == (op, ranks if op in (*SHARED, "all_reduce") else None)


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("h100-AllReduce.txt", "all_reduce"),
        ("all-to-all_2026.log", "all_to_all"),
        ("sendrecv_perf.txt", "send_recv"),
        ("reduce_scatter.txt", "reduce_scatter"),
        ("unreduced.txt", None),
        ("gathered.txt", None),
        ("all_reduce_and_all_gather.txt", None),
    ],
)
def test_the_file_s_name_tells_the_operation_that_the_text_does_not(name: str, op: str | None, tmp_path: Path) -> None:
    reading = read_text(tmp_path, setup() + table(op or "all_reduce", 8, SIZES), name)
    assert {each["op"] for each in measured(reading)} == {op}
    assert [each.endswith("such as all_reduce.txt") for each in reading.source.warnings] == [True] * (op is None)


def test_a_table_of_an_unknown_operation_is_refused_where_one_is_needed(tmp_path: Path) -> None:
    reading = read_text(tmp_path, setup() + table("all_reduce", 8, SIZES))
    path = tmp_path / "out.txt"
    for asked in (lambda: reference_bandwidths(str(path)), lambda: table_curve(reading.facts, "out.txt", 8)):
        with pytest.raises(InputError, match=r"name the file after it, such as all_reduce\.txt"):
            asked()
    assert rows_in(reference_bandwidths(str(path.rename(tmp_path / "all_reduce.txt"))).measurements)


@pytest.mark.parametrize("op", sorted(PROGRAMS))
def test_the_program_s_name_and_the_devices_are_believed(op: str, tmp_path: Path) -> None:
    text = f"# Collective test starting: {PROGRAMS[op]}\n" + setup() + devices(4) + table(op, 4, SIZES)
    reading = read_text(tmp_path, text + f"# Avg bus bandwidth    : 1\n# Collective test concluded: {PROGRAMS[op]}\n")
    assert {(each["op"], each["ranks"]) for each in measured(reading)} == {(op, 4)}
    assert reading.source.warnings == ()
    assert reading.fingerprint == {"device": "NVIDIA H100 80GB HBM3"}


def test_a_command_beside_a_table_of_another_program_is_not_believed(tmp_path: Path) -> None:
    text = "$ ./build/all_reduce_perf -b 8 -e 1G\n" + setup() + devices(8) + table("all_gather", 8, SIZES)
    reading = read_text(tmp_path, text)
    assert {(each["op"], each["ranks"]) for each in measured(reading)} == {(None, NONE)}
    assert any("contradicts all_reduce on 8 ranks" in each for each in reading.source.warnings)


def test_two_programs_named_before_a_table_name_neither(tmp_path: Path) -> None:
    text = "We ran broadcast_perf and reduce_perf:\n" + table("gather", 4, SIZES)
    assert {each["op"] for each in measured(read_text(tmp_path, text))} == {None}


def test_each_table_of_a_file_has_its_own_operation_and_ranks(tmp_path: Path) -> None:
    end = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 3.1\n#\n"
    text = (
        "+ mpirun -np 4 ./build/all_gather_perf -g 1\n" + setup() + devices(4) + table("all_gather", 4, SIZES) + end
        + "+ mpirun -np 2 ./build/all_reduce_perf -g 1\n" + setup() + devices(2) + table("all_reduce", 2, SIZES) + end
        + setup() + devices(2) + table("broadcast", 2, SIZES) + end
        + "# Collective test starting: broadcast_perf\n" + setup() + devices(2) + table("broadcast", 2, SIZES) + end
    )  # fmt: skip
    rows = measured(read_text(tmp_path, text))
    seen = list(dict.fromkeys((each["op"], each["ranks"]) for each in rows))
    assert seen == [("all_gather", 4), ("all_reduce", 2), (None, 2), ("broadcast", 2)]


def test_groups_side_by_side_have_the_ranks_of_one_group(tmp_path: Path) -> None:
    text = setup() + devices(8, groups=2) + table("all_reduce", 4, SIZES)
    reading = read_text(tmp_path, text, "all_reduce.txt")
    assert {each["ranks"] for each in measured(reading)} == {4}
    assert reading.source.warnings == ()


def test_a_list_of_devices_that_was_cut_tells_no_ranks(tmp_path: Path) -> None:
    listed = devices(25)  # 32 devices in one process, of which 25 fit into its line
    text = setup(gpus=32) + listed + table("broadcast", 32, SIZES)
    assert {each["ranks"] for each in measured(read_text(tmp_path, text))} == {NONE}


def test_a_busbw_that_does_not_follow_from_algbw_is_reported(tmp_path: Path) -> None:
    broken = row("all_reduce", 8, SIZES[-1]).split()
    broken[7] = "1.00"
    text = "all_reduce_perf\n" + setup() + devices(8) + table("all_reduce", 8, SIZES) + " ".join(broken) + "\n"
    reading = read_text(tmp_path, text)
    (warning,) = (each for each in reading.source.warnings if "busbw contradicts all_reduce on 8 ranks" in each)
    assert "1 of" in warning
    assert {each["op"] for each in measured(reading)} == {"all_reduce"}


def test_an_algbw_that_is_not_size_over_time_is_reported(tmp_path: Path) -> None:
    broken = row("all_reduce", 8, SIZES[-1]).split()
    broken[5] = "10.00"
    reading = read_text(tmp_path, table("all_reduce", 8, SIZES) + " ".join(broken) + "\n")
    assert [each for each in reading.source.warnings if "algbw is not size / time in 1" in each]


@pytest.mark.parametrize(("algbw", "busbw"), [("0.00", "0.00"), ("20.00", "45.00")])
def test_a_quotient_that_is_no_all_reduce_s_tells_no_ranks(algbw: str, busbw: str) -> None:
    tokens = row("all_reduce", 8, SIZES[-1]).split()
    found, _ = collected(
        HEADER + " ".join([*tokens[:6], algbw, busbw, "0", *tokens[9:10], algbw, busbw, "0"]), "all_reduce"
    )
    assert found.ranks is None


def test_a_file_without_a_row_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.txt"
    path.write_text(HEADER)
    with pytest.raises(InputError, match=r"holds no row of a bandwidth table; did the test end before its first"):
        READER.read(path, ReadContext())


# --- layouts --------------------------------------------------------------------------------------------------------


def test_wrong_results_are_counted_and_reported(tmp_path: Path) -> None:
    bad = row("all_reduce", 8, SIZES[0]).rsplit(None, 1)[0] + "  1.23457e+06\n"
    reading = read_text(tmp_path, HEADER + row("all_reduce", 8, SIZES[1]) + bad)
    assert [each["wrong"] for each in measured(reading)] == [0, 0, 0, 1234570]
    assert [each for each in reading.source.warnings if "wrong results in 1 lines, first at 4096 bytes" in each]


OLD = "#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error\n"


@pytest.mark.parametrize(
    ("header", "between"),
    [
        (OLD, "   float     sum"),
        (OLD.replace("redop", " root"), "   float       3"),
        (OLD.replace("redop", "     "), "   float"),
    ],
)
def test_the_columns_before_2_11_are_read(header: str, between: str, tmp_path: Path) -> None:
    lines = "".join(
        f"  {size}  {size // 4} {between}   {size / 2000:.1f} 2.00 2.00  0e+00  {size / 1000:.1f} 1.00 1.00  2e-07\n"
        for size in (1 << 20, 1 << 21)
    )
    got = measured(read_text(tmp_path, header + lines))
    assert [each["bytes"] for each in got] == [1 << 20, 1 << 20, 1 << 21, 1 << 21]
    assert [each["busbw"] for each in got] == [2.0, 1.0, 2.0, 1.0]
    assert {each["wrong"] for each in got} == {NONE}


def test_a_host_time_is_no_time_of_the_operation(tmp_path: Path) -> None:
    text = table("all_reduce", 8, SIZES).replace("time ", "cputime ")
    reading = read_text(tmp_path, text)
    assert all(math.isnan(each["time_us"]) for each in measured(reading))
    assert measured(reading)[-1]["busbw"] > 0
    assert [each for each in reading.source.warnings if "host time" in each]


def test_time_stamps_and_per_iteration_columns_are_passed_over(tmp_path: Path) -> None:
    plain = measured(read_text(tmp_path, table("all_reduce", 8, SIZES)))
    stamped = "".join(f"{line}  2026-03-01 10:11:12\n" for line in table("all_reduce", 8, SIZES).splitlines())
    assert measured(read_text(tmp_path, stamped)) == plain
    head = "# size  count  type  redop  root" + "  time  algbw  busbw  #wrong  i_min  i_max  i_p99  i_cv%" * 2 + "\n"
    iterated = head
    for each in SIZES:
        tokens = row("all_reduce", 8, each).split()
        iterated += " ".join([*tokens[:9], "1.0", "9.0", "8.0", "3.3", *tokens[9:], "1.0", "9.0", "8.0", "3.3"]) + "\n"
    assert measured(read_text(tmp_path, iterated)) == plain


def test_algorithm_and_protocol_of_rccl_tests_are_read(tmp_path: Path) -> None:
    text = "".join(f"{line}    RING    SIMPLE          56\n" for line in table("all_reduce", 8, SIZES).splitlines())
    got = measured(read_text(tmp_path, text.replace("N/A    RING", "N/A"), "all_reduce.txt"))
    assert {(each["op"], each["algorithm"], each["protocol"]) for each in got} == {("all_reduce", "RING", "SIMPLE")}


@pytest.mark.parametrize(("banner", "place"), [("out-of-place", 1), ("in-place", 2)])
def test_a_table_of_one_place_says_which(banner: str, place: int, tmp_path: Path) -> None:
    head = f"#    {banner}\n# size  count  type  redop  root  time  algbw  busbw  #wrong\n"
    text = head + "".join(" ".join(row("all_reduce", 8, each).split()[:9]) + "\n" for each in SIZES)
    assert {each["in_place"] for each in measured(read_text(tmp_path, text))} == {place}


def test_a_blank_first_half_is_a_measurement_in_place(tmp_path: Path) -> None:
    text = HEADER
    for each in SIZES:
        line = row("all_reduce", 8, each)
        tail = line.split()[9:]
        text += line[: line.index("-1") + 2] + " " * 32 + "  ".join(["", *tail]) + "\n"
    got = measured(read_text(tmp_path, text))
    assert [each["in_place"] for each in got] == [2] * len(SIZES)
    assert [each["time_us"] for each in got] == [pytest.approx(float(time_text(each.in_us))) for each in SIZES]


def test_a_cut_line_keeps_its_first_half(tmp_path: Path) -> None:
    cut = " ".join(row("all_reduce", 8, SIZES[-1]).split()[:9])
    got = measured(read_text(tmp_path, table("all_reduce", 8, SIZES[:2]) + cut))
    assert [each["in_place"] for each in got] == [1, 2, 1, 2, 1]


@pytest.mark.parametrize(
    "prefix",
    ["", "[1,0]<stdout>:", "[0]<stdout>:", "0: ", "\x1b[36m(RayTrainWorker pid=615, ip=10.72.7.6)\x1b[0m ", "[rank0]:"],
)
def test_prefixes_of_launchers_do_no_harm(prefix: str, tmp_path: Path) -> None:
    plain = measured(read_text(tmp_path, table("all_reduce", 8, SIZES)))
    text = "".join(f"{prefix}{line}\r\n" for line in table("all_reduce", 8, SIZES).splitlines())
    assert measured(read_text(tmp_path, text)) == plain


def test_lines_that_the_library_s_log_tore_apart_are_put_together() -> None:
    log = "node-0:4000:4033 [0] NCCL INFO AllReduce: opCount 2 sendbuff 0x7f count 256 datatype 7 op 0 root 0"
    collector, plain = BandwidthLines(), BandwidthLines()
    for each in SIZES:
        line = row("all_reduce", 8, each).rstrip()
        places = [line.index("-1") + 2, len(line.rsplit(None, 4)[0])]
        for piece in (line[: places[0]], line[places[0] : places[1]]):
            assert collector.take(piece + log)
        assert collector.take(line[places[1] :])
        plain.take(line)
    assert collector.finish()[0].rows == plain.finish()[0].rows


# --- what it is not -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "# Readme\n\nRun `all_reduce_perf -b 8 -e 8G`; its columns: size count type redop root time algbw busbw\n",
        "size,count,type\n8,2,float\n",
        '[{"name": "a", "ph": "X", "ts": 1, "pid": 1}]',
        "8 2 float sum -1 xx.xx xx.xx xx.xx 0 xx.xx xx.xx xx.xx 0\n",
        "12 13 float 1 2 3 4 5 6 7 8\n13 14 float 1 2 3 4 5 6 7 8\n",
        HEADER,
        "",
    ],
)
def test_other_texts_are_left_to_other_readers(text: str, tmp_path: Path) -> None:
    assert not recognises(READER, tmp_path, text)


def test_a_readme_that_shows_a_table_among_its_prose_is_left_alone(tmp_path: Path) -> None:
    prose = "\n".join(f"Sentence number {number} tells how the cluster is set up." for number in range(60))
    assert not recognises(READER, tmp_path, prose + "\n```\n" + table("all_reduce", 8, SIZES) + "```\n" + prose)


def test_a_log_of_the_library_is_left_to_its_reader(tmp_path: Path) -> None:
    log = "node-0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    for lines, known in ((30, False), (3, True)):
        assert recognises(READER, tmp_path, log * lines + table("all_reduce", 8, SIZES)) is known


# --- hostile input --------------------------------------------------------------------------------------------------

TEXTS = (
    setup() + devices(4) + table("all_reduce", 4, SIZES[:3]),
    table("all_to_all", 3, SIZES[:3], check=False),
)


@pytest.mark.slow
@given(content=edited(TEXTS, ["9" * 400, "-1", "1e999", "null", "true", "[" * 300]))
def test_spoiled_files_give_a_result_or_one_error(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    path = tmp_path_factory.mktemp("fuzz") / "f"
    path.write_bytes(content)
    reading = read_or_refuse(READER, path)
    if reading is None:
        return
    rows = reading.facts.measurements
    assert (rows.bytes >= 0).all()
    assert not np.isinf(rows.time_ns).any()
    assert not (rows.time_ns <= 0).any()


def test_long_lines_of_nothing_take_no_time() -> None:
    collector = BandwidthLines()
    for character in (" ", "#", "#  Rank ", "size count type ", "8 ", "(", "[", "a:1:", "-", "out-of-place "):
        for _ in range(20):
            collector.take((character * (1 << 20))[: 1 << 20])
    assert collector.finish() == []
