"""DeepSpeed's communication logger: every measurement against the call it was printed for, in all versions."""

import math
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.exposure.collectives import bus_factor
from overlapscope.analysis.result import Analysis
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.registry import find_reader, read_head
from tests.property.examples import examples
from tests.support.hostile import analyze_or_refuse, mutations, with_odd_numbers

LOGGED_AS = {
    "all_reduce": "all_reduce",
    "all_gather_into_tensor": "all_gather",
    "reduce_scatter_tensor": "reduce_scatter",
    "all_to_all_single": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "send": "send",
    "recv": "recv",
}


class Call(msgspec.Struct, frozen=True):
    """One call as it happened: the size is that of the whole buffer."""

    op: str
    size: int
    ms: float


def size_text(size: int) -> str:
    if size == 0:
        return "0B"
    power = min(int(math.log(size, 1024)), 8)
    return f"{round(size / 1024**power, 2)} {('B', 'KB', 'MB', 'GB', 'TB', 'PB', 'EB', 'ZB', 'YB')[power]}"


def printed(call: Call, ranks: int, version: str) -> tuple[int, float, float]:
    """Return logged size, algbw and busbw in Gbit/s as the version computes them."""
    kind = LOGGED_AS[call.op]
    logged = call.size // ranks if kind == "all_gather" else call.size
    factor = {"all_reduce": 2, "all_gather": ranks, "reduce_scatter": 1 if version == "2026" else ranks}.get(kind, 1)
    algbw = logged * factor / call.ms * 8 / 1e6
    spread = (ranks - 1) / ranks if kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all") else 1.0
    return logged, algbw, algbw * spread


def line(call: Call, ranks: int, version: str, *, rank: int = 0, caller: str = "") -> str:
    logged, algbw, busbw = printed(call, ranks, version)
    name = call.op + (f" | [Caller Func: {caller}]" if caller else "")
    start = f"[2023-08-15 06:31:36,508] [INFO] [logging.py:96:log_dist] [Rank {rank}] "
    if version == "2022":
        return (
            f"{start}rank={rank} | comm op: {name} | time (ms): {call.ms:.2f} | msg size: {size_text(logged)} | "
            f"algbw (Gbps): {algbw:.2f}  | busbw (Gbps): {busbw:.2f} "
        )
    return (
        f"{start}comm op: {name} | time (ms): {call.ms:.2f} | msg size: {size_text(logged)} | "
        f"algbw (Gbps): {algbw:.2f} | busbw (Gbps): {busbw:.2f}"
    )


def calls(seed: int, count: int, ops: tuple[str, ...] = tuple(LOGGED_AS)) -> list[Call]:
    random_ = random.Random(seed)
    return [
        Call(random_.choice(ops), 96 * random_.randint(100, 10**8), random_.uniform(0.5, 300)) for _ in range(count)
    ]


NOISE = [
    "Loading extension module utils...",
    "[2023-08-15 06:31:36,508] [INFO] [logging.py:96:log_dist] [Rank 0] step=1, skipped=0, lr=[0.0003]",
    "loss: 3.2 | comm | time | 9",
]


def analyzed(text: str, tmp_path: Path, name: str = "train.log") -> Analysis:
    path = tmp_path / name
    path.write_text(text)
    return analyze(read_inputs([path]))


def measured(analysis: Analysis) -> list[dict[str, Any]]:
    return list(analysis.told["measurements"].rows) if "measurements" in analysis.told else []


def figures(analysis: Analysis) -> dict[tuple[str, str], float]:
    rows = analysis.told["figures"].rows if "figures" in analysis.told else []
    return {(str(row["subject"]), str(row["name"])): float(row["value"] or 0) for row in rows}


@pytest.mark.slow
@pytest.mark.parametrize("version", ["2022", "2023", "2026"])
@pytest.mark.parametrize("ranks", [2, 4, 8, 24])
def test_every_call_is_measured_as_nccl_tests_would(version: str, ranks: int, tmp_path: Path) -> None:
    made = calls(ranks, 300)
    text = "\n".join(each for call in made for each in (line(call, ranks, version), *NOISE))
    analysis = analyzed(text, tmp_path)
    rows = measured(analysis)
    assert len(rows) == len(made)
    for call, row in zip(made, rows, strict=True):
        assert row["op"] == LOGGED_AS[call.op]
        assert row["rank"] == 0
        assert row["ranks"] == ranks
        assert row["bytes"] == pytest.approx(call.size, rel=0.005)
        assert row["time_ns"] == pytest.approx(call.ms * 1e6, abs=5_001)
        algbw = call.size / (call.ms * 1e6)
        assert row["algbw_gbs"] == pytest.approx(algbw, abs=0.005 / 8 * ranks + 1e-9)
        assert row["busbw_gbs"] == pytest.approx(algbw * bus_factor(LOGGED_AS[call.op], ranks), rel=0.01, abs=0.02)
    assert analysis.sources[0].format == "deepspeed_comms"
    assert analysis.sources[0].events == len(made)
    assert any("hundredths" in warning for warning in analysis.sources[0].warnings)
    assert any(f"assumes {ranks} ranks in every group" in warning for warning in analysis.sources[0].warnings)


def test_a_line_of_the_tutorial_gives_what_it_says(tmp_path: Path) -> None:
    """deepspeed.ai/tutorials/comms-logging: one line cannot tell the convention of a broadcast of 0.01 Gbit/s."""
    text = (
        "[2023-01-11 13:27:07,211] [INFO] [logging.py:68:log_dist] [Rank 0] rank=0 | comm op: broadcast | "
        "[Caller Func: _broadcast_model] | time (ms): 0.16 | msg size: 576.0 KB | algbw (Gbps): 28.76  | "
        "busbw (Gbps): 28.76\n"
    )
    (row,) = measured(analyzed(text, tmp_path))
    assert (row["op"], row["bytes"], row["time_ns"]) == ("broadcast", 576 * 1024, 160_000)
    assert row["algbw_gbs"] == pytest.approx(28.76 / 8)
    assert row["ranks"] is None


def test_the_first_version_counted_twice_and_its_gathers_are_not_known(tmp_path: Path) -> None:
    """The tutorial's snippet of June 2022, of 16 ranks: 2 instead of 16 for what is gathered and scattered."""
    start = "[2022-06-26 01:39:55,722] [INFO] [logging.py:69:log_dist] [Rank 0] rank=0 | comm op: "
    text = (
        f"{start}reduce_scatter_base | time (ms): 9.46 | msg size: 678.86 MB | algbw (Gbps): 1204.52  | busbw (Gbps): "
        f"1129.23\n{start}all_gather_base | time (ms): 0.11 | msg size: 6.0 MB | algbw (Gbps): 954.41  | busbw (Gbps): "
        "894.76\n"
    )
    analysis = analyzed(text, tmp_path)
    for row in measured(analysis):
        assert (row["ranks"], row["bytes"], row["algbw_gbs"], row["busbw_gbs"]) == (16, None, None, None)
        assert row["time_ns"]
    assert any("all_gather, reduce_scatter cannot be computed" in each for each in analysis.sources[0].warnings)


def test_a_single_small_all_gather_leaves_size_and_bandwidth_open(tmp_path: Path) -> None:
    text = line(Call("all_gather_into_tensor", 1024, 0.08), 8, "2023")
    (row,) = measured(analyzed(text, tmp_path))
    assert (row["ranks"], row["bytes"], row["algbw_gbs"]) == (None, None, None)
    assert row["time_ns"] == 80_000


def test_what_rounds_to_nothing_is_missing_and_not_zero(tmp_path: Path) -> None:
    text = "[Rank 0] comm op: broadcast | time (ms): 0.00 | msg size: 8.0 B | algbw (Gbps): 0.00 | busbw (Gbps): 0.00\n"
    (row,) = measured(analyzed(text, tmp_path))
    assert (row["bytes"], row["time_ns"], row["algbw_gbs"], row["busbw_gbs"]) == (8, None, None, None)


def test_objects_are_logged_as_nothing_and_a_barrier_is_nothing(tmp_path: Path) -> None:
    rest = "| time (ms): 0.50 | msg size: 0B | algbw (Gbps): 0.00 | busbw (Gbps): 0.00\n"
    rows = measured(analyzed(f"comm op: barrier {rest}comm op: broadcast_object_list {rest}", tmp_path))
    assert [(row["op"], row["bytes"], row["rank"]) for row in rows] == [("barrier", 0, None), ("broadcast", None, None)]


def test_an_operation_of_the_users_own_name_has_a_time_alone(tmp_path: Path) -> None:
    call = line(Call("all_reduce", 1 << 30, 5.0), 8, "2023").replace("comm op: all_reduce", "comm op: my_exchange")
    (row,) = measured(analyzed(call, tmp_path))
    assert (row["op"], row["bytes"], row["algbw_gbs"], row["time_ns"]) == ("my_exchange", None, None, 5_000_000)


def test_times_that_only_ever_grow_are_sums_and_left_out(tmp_path: Path) -> None:
    """Without a reset of its timers DeepSpeed prints the sum of all calls of a name so far."""
    spent = 0.0
    summed = []
    for call in calls(1, 60, ("all_reduce",)):
        spent += call.ms
        summed.append(line(Call("all_reduce", call.size, spent), 8, "2026", caller="reduce"))
    others = [line(call, 8, "2026") for call in calls(2, 60, ("broadcast",))]
    mixed = [each for pair in zip(summed, others, strict=True) for each in pair]
    analysis = analyzed("\n".join(mixed), tmp_path)
    for row in measured(analysis):
        missing = row["op"] == "all_reduce"
        assert all((row[key] is None) is missing for key in ("time_ns", "algbw_gbs", "busbw_gbs"))
        assert row["bytes"]
    assert any("60 calls never fall" in warning for warning in analysis.sources[0].warnings)


@pytest.mark.parametrize(
    "prefix",
    [
        "[default0]:", "[rank0]:", "0: ", "  3: ", "[1,0]<stdout>:", "[0]<stderr>:",
        "(RayTrainWorker pid=615, ip=10.72.7.6) ", "2024-05-01T10:00:00.123456789Z stdout F ", "\x1b[32m", "> ",
        "\rEpoch 1:  13%|#3        | 3/23 [00:01<00:08]",
    ],
)  # fmt: skip
def test_what_a_launcher_puts_before_a_line_changes_nothing(prefix: str, tmp_path: Path) -> None:
    made = calls(3, 20)
    plain = [line(call, 8, "2023") for call in made] + summary(table(3)).split("\n")
    bare = analyzed("\n".join(plain), tmp_path)
    dressed = analyzed("".join(f"{prefix}{each}\x1b[0m\r\n" for each in plain), tmp_path)
    assert measured(dressed) == measured(bare)
    if not prefix.startswith(("\r", ">")):
        assert figures(dressed) == figures(bare)


def test_two_calls_written_on_one_line_are_two(tmp_path: Path) -> None:
    first, second = (line(call, 8, "2023", rank=rank) for rank, call in enumerate(calls(4, 2, ("broadcast",))))
    rows = measured(analyzed(first + second + "\n", tmp_path))
    assert [row["rank"] for row in rows] == [0, 1]


def test_a_call_that_is_cut_is_counted(tmp_path: Path) -> None:
    whole, cut = (line(call, 8, "2023") for call in calls(5, 2))
    analysis = analyzed(f"{whole}\n{cut[: cut.index('algbw')]}\n", tmp_path)
    assert len(measured(analysis)) == 1
    assert analysis.sources[0].dropped == 1


HEADING = (
    "Comm. Op", "Message Size", "Count", "Total Latency(ms)", "Avg Latency(ms)", "tput_avg (Gbps)", "busbw_avg (Gbps)",
)  # fmt: skip
STRAGGLERS = (
    *HEADING[:3], "Total comm lat(ms)", "Total straggler(ms)", "Avg comm lat(ms)", "Avg straggler(ms)",
)  # fmt: skip
Table = dict[str, list[tuple[int, int, tuple[float, ...]]]]


def cells(row: tuple[Any, ...]) -> str:
    return "".join(f"{each:<20.2f}" if isinstance(each, float) else f"{each:<20}" for each in row)


def summary(content: Table, heading: tuple[str, ...] = HEADING) -> str:
    lines = [cells(heading)]
    for op, rows in content.items():
        lines.append(op)
        lines += [cells((" ", size_text(size), count, *values)) for size, count, values in rows]
    return "\n".join(lines) + "\n"


def table(seed: int, *, grown: int = 0) -> Table:
    random_ = random.Random(seed)
    ops = ["broadcast", "all_gather_into_tensor | [Caller Func: allgather_fn]", "log_summary_barrier"]
    return {
        op: [
            (size, random_.randint(1, 900) + grown, tuple(round(random_.uniform(0, 9999), 2) for _ in range(4)))
            for size in sorted(random_.sample(range(1, 10**9), 4))
        ]
        for op in ops
    }


def expected(content: Table, names: tuple[str, ...]) -> dict[tuple[str, str], float]:
    return {
        (f"{op} {size_text(size)}", name): value
        for op, rows in content.items()
        for size, count, values in rows
        for name, value in zip(("calls", *names), (count, *values), strict=True)
    }


TOTALS = ("total_latency_ms", "avg_latency_ms", "algbw_avg_gbit_s", "busbw_avg_gbit_s")
SPLIT = ("total_transfer_ms", "total_straggler_ms", "avg_transfer_ms", "avg_straggler_ms")


def test_the_summary_is_read_as_printed(tmp_path: Path) -> None:
    content = table(1)
    analysis = analyzed("\n".join([*NOISE, summary(content), *NOISE]), tmp_path)
    assert figures(analysis) == expected(content, TOTALS)
    assert analysis.sources[0].events == 1 + 12
    assert analysis.sources[0].dropped == 0


def test_the_table_of_stragglers_is_read_beside_it(tmp_path: Path) -> None:
    totals, split = table(1), table(2)
    bar = "_______________________________\nBreakdown with straggler effect\n-------------------------------\n"
    analysis = analyzed(summary(totals) + bar + summary(split, STRAGGLERS), tmp_path)
    assert figures(analysis) == expected(totals, TOTALS) | expected(split, SPLIT)


def test_of_summaries_that_go_on_from_one_another_the_last_is_reported(tmp_path: Path) -> None:
    early, late, reset = table(1), table(1, grown=50), {"broadcast": [(77, 1, (1.0, 1.0, 1.0, 1.0))]}
    analysis = analyzed("\n".join([summary(early), *NOISE, summary(late), summary(reset)]), tmp_path)
    assert figures(analysis) == expected(late, TOTALS) | expected(reset, TOTALS)
    assert "1 summaries are contained in a later one and were left out" in analysis.sources[0].warnings


def test_sizes_that_are_written_alike_stay_apart(tmp_path: Path) -> None:
    rows = [(6291456, 219, (16.63, 0.07, 1.0, 1.0)), (6291500, 6, (0.51, 0.08, 1.0, 1.0))]
    content: Table = {"all_gather_base": rows}
    summarized = figures(analyzed(summary(content), tmp_path))
    assert summarized["all_gather_base 6.0 MB", "calls"] == 219
    assert summarized["all_gather_base 6.0 MB (2)", "calls"] == 6


def test_lines_of_other_processes_inside_a_table_cost_nothing(tmp_path: Path) -> None:
    content = table(4)
    text = "".join(f"{line}\n{NOISE[2]}\n" for line in summary(content).split("\n"))
    assert figures(analyzed(text, tmp_path)) == expected(content, TOTALS)


def test_a_row_without_an_operation_is_counted(tmp_path: Path) -> None:
    lines = summary({"broadcast": [(8, 1, (1.0, 1.0, 1.0, 1.0))]}).split("\n")
    analysis = analyzed("\n".join([lines[0], lines[2], *lines[1:]]), tmp_path)
    assert analysis.sources[0].dropped == 1
    assert figures(analysis)["broadcast 8.0 B", "calls"] == 1


@pytest.mark.parametrize(
    "text",
    [
        'log_str = f"comm op: {record_name} | time (ms): {latency:.2f} | msg size: {convert_size(msg_size)}"\n',
        "print(\"{'Comm. Op': <20}{'Message Size': <20}{'Count': <20}\")\n",
        '{"text": "comm op: all_reduce | time (ms): 9.46 | msg size: 1.2 GB"}\n',
        "comm op: is what we look for\n",
        "",
    ],
)
def test_texts_that_only_speak_of_it_are_not_claimed(text: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text(text)
    reader = find_reader(read_head(path))
    assert reader is None or reader.format == "kineto"


PIECES = (
    "\n".join(
        [*(line(call, 8, "2023", caller="f") for call in calls(7, 3)), summary(table(7)), summary(table(8), STRAGGLERS)]
    ),
    "\n".join([line(call, 4, "2022") for call in calls(8, 20, ("all_reduce", "all_gather_into_tensor"))]),
)


@pytest.mark.slow
@examples(300)
@given(st.sampled_from(PIECES).flatmap(lambda text: mutations(text.encode()) | with_odd_numbers(text)))
def test_any_change_of_the_text_gives_sound_measurements_or_a_refusal(content: bytes) -> None:
    analysis = analyze_or_refuse(content)
    for row in measured(analysis) if analysis else []:
        assert row["bytes"] is None or row["bytes"] >= 0
        assert row["time_ns"] is None or row["time_ns"] > 0
