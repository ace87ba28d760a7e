"""Settings that are replayed where somebody asks for them: what is shown, what is said, what is refused."""

import json
from pathlib import Path

import jsonschema
import pytest
from msgspec.structs import replace

from overlapscope.advice.nccl_settings import Library, more_channels
from overlapscope.advice.nccl_trials import channel_trials
from overlapscope.cli.main import main
from overlapscope.errors import UsageError
from overlapscope.report.formats.json import schema as schema_of
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp.ddp_recording import RecordedCase, ddp_case_of_run
from overlapscope.whatif.predict import predict_recording
from overlapscope.whatif.requested import RequestedSettings, with_requested
from overlapscope.whatif.result import WhatIf
from overlapscope.whatif.step_graph.graph_predict import ReplayOptions
from tests.conftest import ROOT, shared_file
from tests.support.ddp_cases import Made, recorded
from tests.unit.cli.test_whatif_cli import SMALL

REGRESSED = str(ROOT / "traces" / "regressed")
EXAMPLE = str(ROOT / "examples" / "gpt2_8gpu.toml")
MADE = Made(ready=(600, 800, 1000, 1200), elements=(2**18,) * 4, buckets=((0, 1), (2, 3)), ticks_per_mb=200)


def answered(asked: RequestedSettings) -> tuple[RecordedCase, WhatIf]:
    run = recorded(MADE)
    return ddp_case_of_run(run), predict_recording(run, [2.0], ReplayOptions(), asked, search=False)


@pytest.mark.slow
def test_what_is_asked_for_stands_behind_the_rest_and_is_never_the_best() -> None:
    _, plain = answered(RequestedSettings())
    _, found = answered(RequestedSettings(zero_stages=(1, 2, 3), partitions_mb=(0.5,), priority=True))
    count = len(plain.scenarios)
    assert found.scenarios[:count] == plain.scenarios
    assert (found.best, found.verdict) == (plain.best, plain.verdict)
    knobs = [{name: value for name, value in each.knobs.items() if name in ("zero_stage", "partition_mb", "priority")}
             for each in found.scenarios[count:]]  # fmt: skip
    assert knobs == [
        {"zero_stage": 1}, {"zero_stage": 2}, {"zero_stage": 3},
        {"partition_mb": 0.5}, {"priority": True}, {"partition_mb": 0.5, "priority": True},
    ]  # fmt: skip
    assert all(each.hypothetical for each in found.scenarios[-3:])


@pytest.mark.slow
def test_intervals_of_stages_span_what_was_not_measured_and_memory_is_adams_where_nothing_tells() -> None:
    case, found = answered(RequestedSettings(zero_stages=(1, 3)))
    first, third = found.scenarios[-2:]
    for each in (first, third):
        assert each.low_ns < each.predicted_step_ns < each.high_ns
        assert each.gain_low < each.gain < each.gain_high
    # Two ranks, 4 MiB of gradients in 32 bits: half of 8 MiB of states.
    assert first.memory_bytes - found.scenarios[0].memory_bytes == -(4 << 20)
    assert any("with Adam, as its optimizer is not known: 8 bytes" in each for each in found.reasons)
    assert any("reduce-scatter and all-gather are assumed" in each for each in found.reasons)
    named = with_requested(found, case, RequestedSettings(zero_stages=(1,)), optimizer="sgd")
    assert named.scenarios[-1].memory_bytes == found.scenarios[0].memory_bytes
    assert any("with sgd: 0 bytes a parameter" in each for each in named.reasons)


@pytest.mark.slow
def test_an_order_that_gains_nothing_is_said_to() -> None:
    _, found = answered(RequestedSettings(partitions_mb=(0.5,)))
    (said,) = [each for each in found.reasons if each.startswith("partition_mb")]
    assert "pieces alone gain nothing" in said
    assert not any(each.startswith("priority") for each in found.reasons)
    _, found = answered(RequestedSettings(priority=True))
    assert any(each.startswith("priority: not a setting of DDP") for each in found.reasons)


def test_nothing_is_replayed_that_has_no_meaning() -> None:
    case, found = answered(RequestedSettings())
    with pytest.raises(UsageError, match="pieces; at most 5000"):
        with_requested(found, case, RequestedSettings(partitions_mb=(1e-4,)))
    many = replace(case, baseline=replace(case.baseline, accumulation=2))
    of_one_pass = float(case.workload().gradients.sizes_bytes.sum()) / (3_000 << 20)
    with pytest.raises(UsageError, match="makes 6000 pieces"):
        with_requested(found, many, RequestedSettings(partitions_mb=(of_one_pass,)))
    with pytest.raises(UsageError, match="every pass of a step reduces"):
        with_requested(found, many, RequestedSettings(priority=True))


@pytest.mark.slow
def test_the_commands_show_them_under_the_published_schema(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--no-search", "--bucket-cap-mb", "4", "--zero-stage", "1,3", "--partition-mb", "4", "--priority"]
    assert main(["whatif", REGRESSED, *options]) == 0
    said = capsys.readouterr().out
    assert "zero_stage=3" in said
    assert "-18.02 MiB a rank" in said
    assert "-27.04 MiB a rank" in said
    assert "Record a run with bucket_cap_mb=4" in said
    assert main(["plan", EXAMPLE, *options, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schema_of("whatif")).validate(document)
    stages = {each["knobs"]["zero_stage"]: each for each in document["scenarios"] if "zero_stage" in each["knobs"]}
    assert stages.keys() == {1, 3}
    # GPT-2 without biases: embeddings, 12 layers of 12 matrices of 768 x 768, 25 norms; in 32 bits, AdamW keeps two.
    gradients = 4 * ((50304 + 1024) * 768 + 12 * 12 * 768**2 + 25 * 768)
    before = document["scenarios"][0]["memory_bytes"]
    assert stages[1]["memory_bytes"] - before == pytest.approx(-2 * gradients * 7 / 8, rel=1e-9)
    assert main(["whatif", REGRESSED, "--list"]) == 0
    assert "--zero-stage 1,2,3" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--zero-stage", "4"], "a stage is 1, 2 or 3"),
        (["--zero-stage", "1.5"], "a stage is 1, 2 or 3"),
        (["--zero-stage", "two"], "give numbers"),
        (["--partition-mb", "0"], "more than 0"),
        (["--partition-mb", "nan"], "give numbers"),
        (["--partition-mb", ",".join("1" * 21)], "at most 20"),
        (["--channels", "65"], "whole numbers from 1 to 64"),
        (["--channels", "4"], "channels are a setting of NCCL"),
    ],
)
def test_wrong_options_are_answered_in_one_line(
    options: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["whatif", REGRESSED, "--no-search", *options]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert len(error.splitlines()) == 1


def test_two_tables_of_one_number_of_channels_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", EXAMPLE, "--channels", "8=one.txt,8=other.txt"]) == 2
    assert "one table for each number" in capsys.readouterr().err


def test_a_recording_of_another_kind_takes_none_of_them(capsys: pytest.CaptureFixture[str]) -> None:
    folder = str(shared_file("gloo_torch2.13"))
    for option in (["--zero-stage", "1"], ["--partition-mb", "4"], ["--priority"]):
        assert main(["whatif", folder, *option]) == 2
        assert f"{option[0]} cannot be used with a recording of kind fsdp" in capsys.readouterr().err


# --- a description with tables --------------------------------------------------------------------------------------

ROWS = "op,ranks,bytes,time_us\nallreduce,2,65536,{0}\nallreduce,2,16777216,{1}\n"
OTHERS = "reducescatter,2,65536,50\nreducescatter,2,16777216,4000\nallgather,2,65536,30\nallgather,2,16777216,2000\n"


def described(folder: Path, table: str) -> str:
    (folder / "table.csv").write_text(table)
    text = SMALL.replace("points = [[65536, 0.1], [1048576, 1.0], [16777216, 15.0]]", 'file = "table.csv"')
    (folder / "w.toml").write_text(text)
    return str(folder / "w.toml")


@pytest.mark.slow
def test_channels_take_what_their_table_measured(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The present table again changes nothing; one in which all takes half is as good as links twice as fast."""
    workload = described(tmp_path, ROWS.format(100, 15000))
    (tmp_path / "half.csv").write_text(ROWS.format(50, 7500))
    pairs = f"16={tmp_path / 'table.csv'},8={tmp_path / 'half.csv'}"
    assert main(["plan", workload, "--no-search", "--channels", pairs, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    rows = {each["knobs"].get("channels"): each for each in document["scenarios"][-2:]}
    faster = next(each for each in document["scenarios"] if "link_speed" in each["knobs"])
    assert rows[16]["gain"] == pytest.approx(0, abs=1e-9)
    assert rows[8]["predicted_step_ns"] == pytest.approx(faster["predicted_step_ns"], rel=1e-6)
    assert any(each.startswith("channels: transfer times are from the tables") for each in document["reasons"])
    for wrong, code in (("8", 2), ("8=", 2), ("0=a.csv", 2), (f"8={tmp_path / 'none.csv'}", 3)):
        assert main(["plan", workload, "--no-search", "--channels", wrong]) == code, wrong
        assert len(capsys.readouterr().err.splitlines()) == 1
    assert main(["plan", EXAMPLE, "--no-search", "--channels", pairs]) == 3  # the tables are of two ranks
    (tmp_path / "eight.csv").write_text(ROWS.format(50, 7500).replace(",2,", ",8,"))
    capsys.readouterr()
    assert main(["plan", EXAMPLE, "--no-search", "--channels", f"8={tmp_path / 'eight.csv'}"]) == 2
    assert "the present all-reduces are priced by a formula" in capsys.readouterr().err


def test_a_table_of_what_stages_call_is_taken_for_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4 MiB between 64 KiB and 16 MiB: a scatter of 1,000 us and a gather of 500, as each is as its bytes; no cover."""
    workload = described(tmp_path, ROWS.format(100, 15000) + OTHERS.replace("65536,50", "65536,15.625").replace(
        "65536,30", "65536,7.8125"))  # fmt: skip
    assert main(["plan", workload, "--no-search", "--zero-stage", "1,3", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    first, third = document["scenarios"][-2:]
    assert first["exposed_comm_ns"] == pytest.approx(1_500_000, rel=0.03)
    assert third["exposed_comm_ns"] == pytest.approx(2_000_000, rel=0.03)
    assert not any("assumed to take shares" in each for each in document["reasons"])


# --- channels -------------------------------------------------------------------------------------------------------


def over_nccl() -> Run:
    return replace(recorded(MADE), fingerprint={"backend": "nccl", "nccl_version": "2.21.5", "torch_version": "2.6.0"})


def test_channels_are_a_trial_with_its_settings_and_no_gain() -> None:
    (trial,) = channel_trials(over_nccl(), [4, 4])
    assert trial.knobs == {"channels": 4}
    assert "no gain is predicted" in trial.why
    assert trial.apply["nccl_variables"].startswith("NCCL_MAX_CTAS=4 ")
    assert "config.max_ctas = 4" in trial.apply["nccl_communicator"]
    assert "compare" in trial.verify
    assert channel_trials(recorded(MADE), []) == []
    with pytest.raises(UsageError, match="channels are a setting of NCCL"):
        channel_trials(recorded(MADE), [4])


def test_more_channels_than_now_are_a_least_number_and_as_many_are_named() -> None:
    run = over_nccl()
    calls = run.ranks[0].collectives
    with_channels = replace(run.ranks[0], collectives=replace(calls, channels=calls.channels * 0 + 8))
    run = replace(run, ranks={**run.ranks, 0: with_channels})
    fewer, same, more = channel_trials(run, [4, 8, 16])
    assert "NCCL_MAX_CTAS=4" in fewer.apply["nccl_variables"]
    assert (same.apply, same.why) == ({}, "this is the present number")
    assert "NCCL_MIN_CTAS=16" in more.apply["nccl_variables"]
    assert "now 8" in more.why
    old = more_channels(Library(version=(2, 12, 0), torch=(1, 12, 0)), 16)
    assert old == {"nccl_variables": "NCCL_MIN_NCHANNELS=16  # for all communicators of the process"}


@pytest.mark.slow
def test_no_channels_are_tried_where_a_late_rank_dominates(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", str(shared_file("kineto/megatron_tp8")), "--channels", "4", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["waiting"]
    assert document["trials"] == []
