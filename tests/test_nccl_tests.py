"""nccl-tests and rccl-tests: every layout they print or write, against what was put in and what real files say."""

import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.errors import InputError
from overlapscope.ingest.bandwidth_lines import BandwidthLines
from overlapscope.ingest.formats.nccl_tests import READER
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.readers import head_of, reader_of
from overlapscope.ingest.reading import ReadContext, Reading
from tests.bandwidth_writer import (
    HEADER,
    PROGRAMS,
    SHARED,
    Measured,
    devices,
    factor,
    row,
    setup,
    table,
    time_text,
)
from tests.conftest import shared_file
from tests.hostile import read_or_refuse

SIZES = tuple(
    Measured(share=1 << k, out_us=20 + (1 << k) / 37e3, in_us=19.5 + (1 << k) / 36.5e3) for k in range(10, 25, 2)
)


def read_text(tmp_path: Path, text: str, name: str = "out.txt") -> Reading:
    path = tmp_path / name
    path.write_text(text)
    assert reader_of(head_of(path)) is READER
    return READER.read(path, ReadContext())


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
def test_real_tables_are_read_to_the_last_digit(name: str, ranks: int, lines: int) -> None:
    path = shared_file(f"nccl_tests/{name}")
    assert reader_of(head_of(path)) is READER
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
    assert not READER.recognises(head_of(path))
    collector = BandwidthLines()
    for line in path.read_text().splitlines():
        collector.take(line)
    (found,) = collector.finish()
    assert (found.identity.op, found.identity.ranks, found.identity.warnings) == ("all_reduce", 16, ())
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


# --- what is measured, told by figures alone ------------------------------------------------------------------------

times = st.floats(3.0, 3e6)
shapes = st.lists(st.tuples(st.integers(0, 24), times, times), min_size=1, max_size=8)


@given(
    op=st.sampled_from(sorted(PROGRAMS)),
    ranks=st.integers(2, 600),
    shape=shapes,
    check=st.booleans(),
)
def test_an_operation_named_from_figures_is_the_right_one(
    op: str, ranks: int, shape: list[tuple[int, float, float]], check: bool
) -> None:
    rows = [Measured(share=1 << power, out_us=out, in_us=within) for power, out, within in shape]
    collector = BandwidthLines()
    for line in table(op, ranks, rows, check=check).splitlines():
        collector.take(line)
    (found,) = collector.finish()
    assert len(found.rows) == len(rows)
    assert found.identity.op in (None, op)
    assert found.identity.ranks in (None, ranks)
    assert not found.identity.warnings


@pytest.mark.parametrize("ranks", [2, 3, 8, 16, 64])
@pytest.mark.parametrize("op", sorted(PROGRAMS))
def test_figures_tell_all_operations_but_gather_from_scatter(op: str, ranks: int) -> None:
    collector = BandwidthLines()
    for line in table(op, ranks, SIZES).splitlines():
        collector.take(line)
    (found,) = collector.finish()
    assert found.identity.op == (None if op in ("gather", "scatter") else op)
    # Only all-reduce shows its ranks in busbw; the others where each rank has a share.
    assert found.identity.ranks == (ranks if op in (*SHARED, "all_reduce") else None)


@pytest.mark.parametrize("op", sorted(PROGRAMS))
def test_the_program_s_name_and_the_devices_are_believed(op: str, tmp_path: Path) -> None:
    text = f"# Collective test starting: {PROGRAMS[op]}\n" + setup() + devices(4) + table(op, 4, SIZES)
    reading = read_text(tmp_path, text + f"# Avg bus bandwidth    : 1\n# Collective test concluded: {PROGRAMS[op]}\n")
    assert {(each["op"], each["ranks"]) for each in measured(reading)} == {(op, 4)}
    assert reading.source.warnings == ()
    assert reading.fingerprint == {"device": "NVIDIA H100 80GB HBM3"}


def test_a_command_that_is_told_of_a_table_of_another_program_is_not_believed(tmp_path: Path) -> None:
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
    )  # fmt: skip
    rows = measured(read_text(tmp_path, text))
    seen = list(dict.fromkeys((each["op"], each["ranks"]) for each in rows))
    assert seen == [("all_gather", 4), ("all_reduce", 2), ("broadcast", 2)]


def test_groups_side_by_side_have_the_ranks_of_one_group(tmp_path: Path) -> None:
    text = setup() + devices(8, groups=2) + table("all_reduce", 4, SIZES)
    reading = read_text(tmp_path, text)
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
    assert [
        each for each in reading.source.warnings if "busbw contradicts all_reduce on 8 ranks" in each and "1 of" in each
    ]
    assert {each["op"] for each in measured(reading)} == {"all_reduce"}


def test_an_algbw_that_is_not_size_over_time_is_reported(tmp_path: Path) -> None:
    broken = row("all_reduce", 8, SIZES[-1]).split()
    broken[5] = "10.00"
    reading = read_text(tmp_path, table("all_reduce", 8, SIZES) + " ".join(broken) + "\n")
    assert [each for each in reading.source.warnings if "algbw is not size / time in 1" in each]


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
    got = measured(read_text(tmp_path, text.replace("N/A    RING", "N/A")))
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


# --- reports --------------------------------------------------------------------------------------------------------


def half(time_us: float, size: int, op: str, ranks: int) -> dict[str, float]:
    algbw = size / 1e3 / time_us
    return {
        "time": round(time_us, 6),
        "alg_bw": round(algbw, 6),
        "bus_bw": round(algbw * factor(op, ranks), 6),
        "nwrong": 0.0,
    }


def report(op: str, ranks: int, *, processes: int | None = None, gpus: int = 1) -> dict[str, Any]:
    processes = processes or ranks
    results = [
        {
            "size": each.share * 4,
            "count": each.share,
            "type": "bfloat16",
            "redop": "sum",
            "root": "    -1",
            "out_of_place": half(each.out_us, each.share * 4, op, ranks),
            "in_place": half(each.in_us, each.share * 4, op, ranks),
            "actual_iterations": 20,
            "experiment_name": "",
        }
        for each in SIZES
    ]
    listed = [
        {"rank": rank * gpus, "group": 0, "hostname": "n0", "device_info": "NVIDIA B200"} for rank in range(processes)
    ]
    return {
        "version": 2,
        "start_time": "2026-01-02 03:04:05",
        "args": [f"/opt/nccl-tests/build/{PROGRAMS[op]}", "-J", "out.json"],
        "env": ["HOME=/root", "API_TOKEN=hunter2", "NCCL_ALGO=Ring", "RCCL_X=1", "NCCL=odd"],
        "nccl_version": 22807,
        "config": {"nthreads": 1, "ngpus": gpus, "blocking_collectives": "false", "devices": listed},
        "results": results,
        "out_of_bounds": {"count": 0, "okay": "true"},
        "average_bus_bandwidth": {"bandwidth": 3.0, "okay": "unchecked"},
    }


def test_the_json_report_is_read_and_secrets_are_not(tmp_path: Path) -> None:
    reading = read_text(tmp_path, json.dumps(report("all_reduce", 16)))
    got = measured(reading)
    assert {(each["op"], each["ranks"], each["dtype"], each["wrong"]) for each in got} == {
        ("all_reduce", 16, "bfloat16", 0)
    }
    assert [each["time_us"] for each in got[:2]] == [pytest.approx(SIZES[0].out_us), pytest.approx(SIZES[0].in_us)]
    assert reading.source.warnings == ()
    known = {"nccl_version": "2.28.7", "device": "NVIDIA B200", "NCCL_ALGO": "Ring", "RCCL_X": "1"}
    assert reading.fingerprint == known
    assert "hunter2" not in repr(reading)


def test_a_report_lists_one_device_a_process(tmp_path: Path) -> None:
    reading = read_text(tmp_path, json.dumps(report("all_reduce", 16, processes=4, gpus=4)))
    assert {each["ranks"] for each in measured(reading)} == {16}
    assert reading.source.warnings == ()


def test_a_report_without_figures_says_so(tmp_path: Path) -> None:
    whole = report("all_reduce", 4)
    whole["results"] = []
    path = tmp_path / "r.json"
    path.write_text(json.dumps(whole))
    with pytest.raises(InputError, match="no line of a bandwidth table"):
        READER.read(path, ReadContext())


def test_a_report_of_a_killed_test_keeps_its_whole_results(tmp_path: Path) -> None:
    text = json.dumps(report("all_reduce", 16))
    cut = text[: text.index('"size": ' + str(SIZES[3].share * 4)) + 40]
    reading = read_text(tmp_path, cut)
    assert reading.source.truncated
    assert [each["bytes"] for each in measured(reading)][::2] == [each.share * 4 for each in SIZES[:3]]


def test_no_numbers_in_a_report_are_missing(tmp_path: Path) -> None:
    whole = report("all_reduce", 16)
    whole["results"][0]["out_of_place"] |= {"alg_bw": "nan", "bus_bw": "nan", "nwrong": None}
    whole["results"][1]["in_place"] = None
    whole["results"][2]["out_of_place"]["cpu_time"] = 1.0
    text = json.dumps(whole).replace('"count": 4096', '"count": inf')
    reading = read_text(tmp_path, text)
    first, *_ = measured(reading)
    assert math.isnan(first["algbw"])
    assert first["wrong"] == NONE
    assert len(measured(reading)) == 2 * len(SIZES) - 1


def rccl_records(op: str = "AllReduce", *, mpi: bool = True) -> list[dict[str, Any]]:
    records = []
    for each in SIZES:
        for in_place, time_us in ((0, each.out_us), (1, each.in_us)):
            algbw = each.share * 4 / 1e3 / time_us
            places = {"nodes": 1, "ranks": 16, "ranksPerNode": 8, "gpusPerRank": 1} if mpi else {"gpus": 8}
            records.append(
                {"numCycle": 0, "name": op, **places, "size": each.share * 4, "type": "float", "redop": "sum",
                 "inPlace": in_place, "time": time_us, "algBw": algbw, "busBw": algbw * 1.75, "wrong": "0"}
            )  # fmt: skip
    return records


@pytest.mark.parametrize("mpi", [True, False])
@pytest.mark.parametrize("layout", ["array", "lines", "csv", "csv without nodes"])
def test_what_rccl_tests_writes_is_read(layout: str, mpi: bool, tmp_path: Path) -> None:
    records = rccl_records(mpi=mpi)
    if layout == "array":
        text = "[\n" + ",\n".join(json.dumps(each) for each in records) + "\n]\n"
    elif layout == "lines":
        text = "\n".join(json.dumps(each) for each in records)
    else:
        places = "nodes,ranks,ranksPerNode,gpusPerRank," if mpi else "gpus,"
        if layout == "csv without nodes" and mpi:
            places = "ranks,rankspernode,gpusperrank,"
        text = f"numCycle,collective,{places}size,type,redop,inplace,time,algbw,busbw,#wrong\n"
        text += "".join(
            ",".join(f'"{value}"' if isinstance(value, str) else f"{value}" for value in each.values()) + "\n"
            for each in records
        )
    reading = read_text(tmp_path, text)
    got = measured(reading)
    # 16 processes in groups of 8: busbw tells that 8 took part.
    assert {(each["op"], each["ranks"], each["wrong"]) for each in got} == {("all_reduce", 8, 0)}
    assert [each["in_place"] for each in got[:2]] == [1, 2]
    assert [each["time_us"] for each in got[:2]] == [pytest.approx(SIZES[0].out_us), pytest.approx(SIZES[0].in_us)]
    assert reading.source.warnings == ()


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
    path = tmp_path / "x"
    path.write_text(text)
    assert not READER.recognises(head_of(path))


def test_a_readme_that_shows_a_table_among_its_prose_is_left_alone(tmp_path: Path) -> None:
    prose = "\n".join(f"Sentence number {number} tells how the cluster is set up." for number in range(60))
    path = tmp_path / "README.md"
    path.write_text(prose + "\n```\n" + table("all_reduce", 8, SIZES) + "```\n" + prose)
    assert not READER.recognises(head_of(path))


def test_a_log_of_the_library_is_left_to_its_reader(tmp_path: Path) -> None:
    path = tmp_path / "log"
    log = "node-0:1:2 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM\n"
    path.write_text(log * 30 + table("all_reduce", 8, SIZES))
    assert not READER.recognises(head_of(path))
    path.write_text(log * 3 + table("all_reduce", 8, SIZES))
    assert READER.recognises(head_of(path))


# --- hostile input --------------------------------------------------------------------------------------------------

ALPHABET = '0123456789.eE+-# \t\n"{}[],:NaA/<>xX'


@st.composite
def spoiled(draw: st.DrawFn) -> bytes:
    base = draw(st.sampled_from([
        setup() + devices(4) + table("all_reduce", 4, SIZES[:3]),
        table("all_to_all", 3, SIZES[:3], check=False),
        json.dumps(report("all_reduce", 4)),
        json.dumps(rccl_records()[:4]),
        "numCycle,collective,gpus,size,type,redop,inplace,time,algbw,busbw,#wrong\n0,\"AllReduce\",8,8,float,sum,0,1.5,2,3,\"N/A\"\n",
    ]))  # fmt: skip
    text = list(base)
    for _ in range(draw(st.integers(0, 12))):
        at = draw(st.integers(0, len(text)))
        cut = draw(st.integers(0, 40))
        new = draw(
            st.one_of(
                st.text(ALPHABET, max_size=12), st.sampled_from(["9" * 400, "-1", "1e999", "null", "true", "[" * 300])
            )
        )
        text[at : at + cut] = list(new)
    return "".join(text).encode() + draw(st.binary(max_size=4))


@given(content=spoiled())
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
