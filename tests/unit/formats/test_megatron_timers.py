"""Megatron's timer lines in training logs of all ages, among the lines of launchers, DeepSpeed and NCCL."""

import gzip
import random
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cost.throughput import Stated, with_stated
from overlapscope.analysis.result import Analysis
from overlapscope.errors import InputError
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.reader import HEAD_BYTES
from overlapscope.ingest.registry import MAX_SEARCHED_BYTES, find_reader, read_head
from tests.property.examples import examples
from tests.support.hostile import analyze_or_refuse, mutations, with_odd_numbers

Times = dict[str, list[float]]
"""Milliseconds of each rank, by timer; 0 where a rank has no such timer."""


def iteration(step: int, elapsed: float, *, style: str = "2023") -> str:
    start = {"2026": f" [2026-03-28 14:13:{step % 60:02d}.589428]", "2025": " [2025-05-27 15:23:07]"}.get(style, "")
    average = "/290.1" if style == "amd" else ""
    return (
        f"{start} iteration {step:8d}/{1000:8d} | consumed samples: {8 * step:12d} | elapsed time per iteration (ms): "
        f"{elapsed:.1f}{average} | learning rate: 4.600E-05 | global batch size:     8 | lm loss: 5.540000E+00 | loss "
        "scale: 1.0 | grad norm: 2.475 | number of skipped iterations:   0 | number of nan iterations:   0 |\n"
    )


def block(times: Times, option: str = "minmax", *, style: str = "2023") -> str:
    """Write a block of timers as timers.py does."""
    if option == "old":
        return "time (ms)" + "".join(f" | {name}: {ranks[-1]:.2f}" for name, ranks in times.items()) + "\n"
    if option == "all":
        lines = ["times across ranks (ms):"]
        for name, ranks in times.items():
            lines.append(f"  {name}:")
            lines += [f"     rank {rank:2d}: {time:.2f}" for rank, time in enumerate(ranks) if time > 0]
    else:
        lines = ["max time across ranks (ms):" if option == "max" else "(min, max) time across ranks (ms):"]
        for name, ranks in times.items():
            took = [time for time in ranks if time > 0]
            value = f"({min(took):.2f}, {max(took):.2f})" if option == "minmax" else f"{max(took):.2f}"
            lines.append(f"    {(name + ' ').ljust(48, '.')}: {value}")
    return ("INFO:megatron.core.timers:" if style == "2026" else "") + "\n".join(lines) + "\n"


TIMERS = ("forward-backward", "all-grads-sync", "params-all-gather", "optimizer-inner-step", "optimizer")
NOISE = (
    "[Rank 1] (after 1 iterations) memory (MB) | allocated: 14165.52 | max allocated: 22332.37 | reserved: 24642.0\n"
    "WARNING:megatron.core.rerun_state_machine:Result validation enabled\n"
)


SUMMARIES = ("median_share_of_iteration", "samples_per_step", "tokens_per_step", "tflop_per_gpu")
"""Figures of a whole log."""


def random_times(seed: int, ranks: int = 4) -> Times:
    random_ = random.Random(seed)
    return {name: [round(random_.uniform(0.5, 400), 2) for _ in range(ranks)] for name in TIMERS}


def analyzed(text: str | bytes, tmp_path: Path, name: str = "train.log") -> Analysis:
    path = tmp_path / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return analyze(read_inputs([path]))


def rows(analysis: Analysis) -> list[tuple[Any, ...]]:
    """Return (step, subject, name, rank, value) of the figures, in order."""
    figure_rows = analysis.told["figures"].rows if "figures" in analysis.told else []
    return [(row["step"], row["subject"], row["name"], row["rank"], row["value"]) for row in figure_rows]


def expected_rows(step: int | None, times: Times, option: str) -> list[tuple[Any, ...]]:
    if option == "all":
        return [(step, n, "ms", rank, time) for n, ranks in times.items() for rank, time in enumerate(ranks) if time]
    if option == "old":
        return [(step, name, "ms", None, ranks[-1]) for name, ranks in times.items()]
    kinds = {"minmax": (("min_ms", min), ("max_ms", max)), "max": (("max_ms", max),)}[option]
    return [
        (step, name, kind, None, of([time for time in ranks if time]))
        for name, ranks in times.items()
        for kind, of in kinds
    ]


@pytest.mark.parametrize("option", ["minmax", "max", "all", "old"])
@pytest.mark.parametrize("style", ["2023", "2025", "2026", "amd"])
def test_every_timer_is_read_with_its_iteration(option: str, style: str, tmp_path: Path) -> None:
    text, expected = "> building model ...\n", []
    for step in range(10, 60, 10):
        times = random_times(step)
        text += iteration(step, 812.5 + step, style=style) + NOISE + block(times, option, style=style) + NOISE
        expected += [(step, "iteration", "elapsed_ms", None, 812.5 + step), *expected_rows(step, times, option)]
    analysis = analyzed(text, tmp_path)
    assert [row for row in rows(analysis) if row[2] not in SUMMARIES] == expected
    source = analysis.sources[0]
    assert (source.format, source.dropped, source.warnings) == ("megatron_timers", 0, [])


@pytest.mark.parametrize("option", ["minmax", "max", "all", "old"])
def test_the_share_of_the_iteration_is_that_of_the_slowest_rank_without_the_first(option: str, tmp_path: Path) -> None:
    text = ""
    shares: dict[str, list[float]] = {}
    for step in range(1, 12):
        times = random_times(step)
        text += iteration(step, 1000.0 + step) + block(times, option)
        for name in ("all-grads-sync", "params-all-gather"):
            slowest = times[name][-1] if option == "old" else max(times[name])
            shares.setdefault(name, []).append(slowest / (1000.0 + step))
    figure_rows = {row[1]: row[4] for row in rows(analyzed(text, tmp_path)) if row[2] == "median_share_of_iteration"}
    assert figure_rows == {name: pytest.approx(median(each[1:])) for name, each in shares.items()}


def test_one_number_under_the_heading_of_two_is_the_largest(tmp_path: Path) -> None:
    """Megatron of 2022 wrote the heading of both for `--timing-log-option max`."""
    text = iteration(5, 100.0) + block(random_times(1), "max").replace("max time", "(min, max) time")
    assert [row for row in rows(analyzed(text, tmp_path)) if row[0]][1:] == expected_rows(5, random_times(1), "max")


def test_a_long_name_has_no_dots_behind_it(tmp_path: Path) -> None:
    times = {"rl/offload-optimizer-before-inference-and-more-of-it-here": [1.0, 2.0]}
    assert rows(analyzed(block(times), tmp_path)) == expected_rows(None, times, "minmax")


def test_setup_timers_before_the_first_iteration_have_none(tmp_path: Path) -> None:
    times = {"model-and-optimizer-setup": [8274.77, 8274.9], "train/valid/test-data-iterators-setup": [67.42, 80.35]}
    assert rows(analyzed(block(times) + "training ...\n", tmp_path)) == expected_rows(None, times, "minmax")


def test_seconds_are_converted_to_milliseconds(tmp_path: Path) -> None:
    text = " iteration        2/  100 | consumed samples: 5 | elapsed time per iteration (s): 1.25 | lm loss: 1.0 |\n"
    assert rows(analyzed(text, tmp_path)) == [(2, "iteration", "elapsed_ms", None, 1250.0)]


def test_deepspeeds_clock_names_its_rank_and_has_no_iteration(tmp_path: Path) -> None:
    new = "[2024-04-04 09:36:28,429] [INFO] [logging.py:96:log_dist] [Rank 0] time (ms) | fwd: 11.3 | bwd_inner: 0.00\n"
    old = "[2023-07-19 14:09:21,612] [INFO] [logging.py:96:log_dist] [Rank 3] rank=3 time (ms) | forward: 2195.18\n"
    text = iteration(1, 50.0) + new + iteration(2, 50.0) + old
    assert [row for row in rows(analyzed(text, tmp_path)) if row[1] != "iteration"] == [
        (None, "fwd", "ms", 0, 11.3), (None, "bwd_inner", "ms", 0, 0.0), (None, "forward", "ms", 3, 2195.18),
    ]  # fmt: skip


@pytest.mark.parametrize(
    "prefix",
    [
        "[default7]:", "[default7]: ", "[rank3]: ", "3: ", " 13: ", "[1,31]<stdout>:",
        "(MegatronWorker pid=61, ip=10.2.7.6) ", "2024-05-01T10:00:00.123456789Z stdout F ", "\x1b[36m(pid=99)\x1b[0m ",
        "> ", "> > ",
    ],
)  # fmt: skip
@pytest.mark.parametrize("option", ["minmax", "all", "old"])
def test_what_a_launcher_puts_before_a_line_changes_nothing(prefix: str, option: str, tmp_path: Path) -> None:
    text = "".join(iteration(step, 300.0) + NOISE + block(random_times(step), option) for step in range(1, 5))
    dressed = "".join(f"{prefix}{line}\r\n" for line in text.splitlines())
    assert rows(analyzed(dressed, tmp_path, "dressed")) == rows(analyzed(text, tmp_path, "bare"))


def test_the_line_of_argonnes_megatron_deepspeed_gives_the_iteration(tmp_path: Path) -> None:
    """It writes `=` where others write a colon, and blocks of timers as others do."""
    text, expected = "", []
    for step in (1, 2, 3):
        times = random_times(step)
        text += (
            f"[2026-01-02 22:59:{step:02d}.287338][INFO][training_log:661] -  iteration={step:8d}/{635782:8d} | "
            f"consumed_samples={768 * step:12d} | elapsed_time_per_iteration_ms={1000.5 * step:.1f} | "
            f"learning_rate=9.4e-09 | lm loss=11.25 |\n{block(times)}"
        )
        expected += [(step, "iteration", "elapsed_ms", None, 1000.5 * step), *expected_rows(step, times, "minmax")]
    analysis = analyzed(text, tmp_path)
    assert [row for row in rows(analysis) if row[2] not in SUMMARIES] == expected
    assert analysis.sources[0].dropped == 0


def consumed(step: int, samples: int, elapsed_ms: float, more: str = "") -> str:
    return (
        f" iteration {step:8d}/{1000:8d} | consumed samples: {samples:12d} |{more} elapsed time per iteration (ms): "
        f"{elapsed_ms:.1f} | throughput per GPU (TFLOP/s/GPU): 400.0 | learning rate: 4.6E-05 | lm loss: 5.54E+00 |\n"
    )


def test_what_an_iteration_processes_is_what_is_consumed_from_line_to_line(tmp_path: Path) -> None:
    """By hand: 640 samples and 655,360 tokens in 10 iterations; without the first line 400 TFLOP/s for 2 s."""
    text = "".join(
        consumed(step, 64 * step, 9000.0 if step == 10 else 2000.0, f" consumed tokens: {65536 * step:12d} |")
        for step in (10, 20, 30)
    )
    analysis = analyzed(text, tmp_path)
    assert [row[1:] for row in rows(analysis) if row[0] is None] == [
        ("iteration", "samples_per_step", None, 64.0),
        ("iteration", "tokens_per_step", None, 65536.0),
        ("iteration", "tflop_per_gpu", None, 800.0),
    ]
    its = analysis.throughput
    assert its is not None
    assert its.tokens is not None
    assert its.flops_per_device is not None
    assert (its.time_from, its.steps, its.time_ns) == ("log", 2, 4_000_000_000)
    assert (its.tokens.known_from, its.tokens.per_second) == ("log", 32768.0)
    assert its.flops_per_device.per_second == 4e14
    assert with_stated(its, Stated(peak_tflops=800)).mfu == 0.5


def test_batches_that_grow_and_a_single_line_leave_it_unknown(tmp_path: Path) -> None:
    growing = "".join(consumed(step, samples, 2000.0) for step, samples in ((1, 8), (2, 16), (3, 32)))
    for text in (growing, consumed(1, 8, 2000.0)):
        analysis = analyzed(text, tmp_path, f"{len(text)}.log")
        assert not [row for row in rows(analysis) if row[0] is None]
        assert analysis.throughput is not None
        assert (analysis.throughput.samples, analysis.throughput.flops_per_device) == (None, None)


def test_lines_of_other_ranks_inside_a_block_cost_nothing_and_many_end_it(tmp_path: Path) -> None:
    times = random_times(1)
    lines = block(times).splitlines()
    few = "".join(f"{line}\n[rank5]: some warning of another rank: 5\n" for line in lines)
    many = "\n".join([lines[0], lines[1], *["another line"] * 9, *lines[2:]])
    assert rows(analyzed(few, tmp_path)) == expected_rows(None, times, "minmax")
    assert rows(analyzed(many, tmp_path)) == expected_rows(None, times, "minmax")[:2]


def test_impossible_times_are_counted_and_left_out(tmp_path: Path) -> None:
    text = iteration(1, 50.0) + block({"optimizer": [2.0, 3.0], "forward-compute": [1.0, 2.0], "backward": [5.0, 9.0]})
    text = text.replace("(2.00, 3.00)", "(nan, 3.00)").replace("(1.00, 2.00)", "(2.00, 1.00)")
    analysis = analyzed(text, tmp_path)
    assert [row[1] for row in rows(analysis)] == ["iteration", "backward", "backward"]
    assert analysis.sources[0].dropped == 2


def imbalanced(slow: float, *, iterations: int = 12, only: int | None = None, timer: str = "forward-compute") -> str:
    """Rank 2 is `slow` times slower than the others: in every iteration, or in the first `only` ones."""
    text = ""
    for step in range(1, iterations + 1):
        factor = slow if only is None or step <= only else 1.0
        text += iteration(step, 500.0) + block({timer: [100.0, 101.0, 100.0 * factor, 0.0]}, "all")
    return text


def test_a_rank_that_stays_behind_is_a_finding(tmp_path: Path) -> None:
    analysis = analyzed(imbalanced(1.5), tmp_path)
    (found,) = analysis.findings
    assert found.evidence["rank"] == 2
    assert (found.evidence["apart_in"], found.evidence["iterations"]) == (11, 11)
    assert (
        "forward-compute: the slowest rank takes 1.5 times as long as the fastest (150.0 and 100.0 ms)" in found.title
    )
    minmax = "".join(iteration(step, 500.0) + block({"optimizer": [100.0, 150.0]}) for step in range(1, 13))
    (found,) = analyzed(minmax, tmp_path, "minmax.log").findings
    assert "rank" not in found.evidence
    assert found.evidence["apart_in"] == 11


@pytest.mark.parametrize(
    "text",
    [
        imbalanced(1.2),  # within a quarter
        imbalanced(1.5, iterations=5),  # too few, the first left out
        imbalanced(1.5, only=9),  # not in four of five
        imbalanced(3.0, timer="forward-recv"),  # waits, by the schedule
        imbalanced(3.0, timer="embedding-grads-all-reduce"),  # of the first and last stage alone
        imbalanced(1.5).replace("elapsed time per iteration (ms): 500.0", "elapsed time per iteration (ms): 5000.0"),
        "".join(iteration(step, 500.0) + block({"optimizer": [100.0, 150.0]}, "max") for step in range(1, 13)),
    ],
)
def test_what_may_vary_is_no_finding(text: str, tmp_path: Path) -> None:
    assert analyzed(text, tmp_path).findings == []


def test_a_log_of_deepspeed_and_megatron_gives_both(tmp_path: Path) -> None:
    call = (
        "[2024-04-04 09:36:28,430] [INFO] [logging.py:96:log_dist] [Rank 0] comm op: broadcast | time (ms): 1.60 | "
        "msg size: 5.0 MB | algbw (Gbps): 26.21 | busbw (Gbps): 26.21\n"
    )
    text = iteration(1, 50.0) + call + block(random_times(1)) + call
    analysis = analyzed(text, tmp_path)
    assert analysis.sources[0].format == "deepspeed_comms+megatron_timers"
    assert len(analysis.told["measurements"].rows) == 2
    assert rows(analysis)[1:] == expected_rows(1, random_times(1), "minmax")


def test_timers_far_behind_the_head_are_found(tmp_path: Path) -> None:
    filler = "[2024-01-01 00:00:00,000] building index 0123456789\n"
    text = filler * (3 * HEAD_BYTES // len(filler)) + iteration(1, 50.0) + block(random_times(1))
    near, packed, far = tmp_path / "near", tmp_path / "packed", tmp_path / "far"
    near.write_text(text)
    packed.write_bytes(gzip.compress(text.encode()))
    far.write_text(filler * (MAX_SEARCHED_BYTES // len(filler) + 40_000) + text)
    for path, known in ((near, True), (packed, True), (far, False)):
        reader = find_reader(read_head(path))
        assert (reader is not None and reader.format == "training_log") is known, path.name
    folder = tmp_path / "folder"
    folder.mkdir()
    near.rename(folder / "near")
    far.rename(folder / "far")
    assert len(rows(analyze(read_inputs([folder])))) == 1 + 2 * len(TIMERS)


@pytest.mark.slow
@pytest.mark.parametrize(
    "shift", [pytest.param(at, marks=() if at % 3 == 0 else (pytest.mark.long,)) for at in range(0, 200, 23)]
)
def test_a_heading_at_the_end_of_a_part_is_found(shift: int, tmp_path: Path) -> None:
    """The text is searched in parts of a MiB."""
    text = block(random_times(1))
    path = tmp_path / "log"
    path.write_text("x\n" * (((1 << 20) - shift) // 2) + text + "y\n" * 100_000)
    reader = find_reader(read_head(path))
    assert reader is not None
    assert reader.format == "training_log"


def test_a_binary_file_with_timers_inside_is_not_searched(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint.pt"
    path.write_bytes(bytes(range(256)) * 4096 + (iteration(1, 50.0) * 5).encode())
    assert find_reader(read_head(path)) is None


@pytest.mark.parametrize(
    "text",
    [
        "            output_string = '(min, max) time across ranks (ms):'\n        for name in name_to_min_max_time:\n",
        "log_string += ' elapsed time per iteration (ms): {:.1f} |'.format(elapsed)\n",
        "string = 'time (ms) | '\n",
        "iteration 5 took 3 ms\n",
    ],
)
def test_texts_that_only_speak_of_timers_are_not_claimed(text: str, tmp_path: Path) -> None:
    path = tmp_path / "timers.py"
    path.write_text(text)
    assert find_reader(read_head(path)) is None


def test_a_log_whose_only_line_is_broken_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "train.log"
    path.write_text(iteration(3, 50.0).replace("50.0", "nan"))
    with pytest.raises(InputError, match="holds no complete line of deepspeed_comms or megatron_timers"):
        read_inputs([path])


PIECES = tuple(
    "".join(iteration(step, 300.0, style="2026") + NOISE + block(random_times(step), option) for step in range(1, 5))
    for option in ("minmax", "max", "all", "old")
)


@pytest.mark.slow
@examples(300)
@given(st.sampled_from(PIECES).flatmap(lambda text: mutations(text.encode()) | with_odd_numbers(text)))
def test_any_change_of_the_text_gives_times_or_a_refusal(content: bytes) -> None:
    analysis = analyze_or_refuse(content)
    assert all(row[4] is not None and 0 <= row[4] < float("inf") for row in (rows(analysis) if analysis else []))
