"""Prices from the command line: what is asked for, calibrated, refused, and never invented."""

import json
from argparse import ArgumentParser
from collections.abc import Sequence
from pathlib import Path

import pytest

from overlapscope.cli.main import main
from overlapscope.cli.price_options import add_price_options, priced
from overlapscope.timeline.columns import MATMUL, MEMORY
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.load_save import save_run
from overlapscope.whatif.pricing.links import links, with_recorded
from overlapscope.whatif.pricing.prices import with_prices
from tests.unit.whatif.pricing.dry_runs import Row, call, dry_run, wait

RECORDED = Path(__file__).parents[3] / "traces" / "baseline"
PRICED = ("--device", "h100-sxm", "--links", "8xh100-nvswitch,roce-400")


def job(scale: int = 1, moved: int = 10**10) -> Run:
    return dry_run([
        Row(work=MATMUL, flops=10**14 * scale, read=10**9),
        Row(work=MEMORY, read=moved, fused=10**9),
        call("all_reduce", 1 << 20, ready=1, needed=4, group="1"),
        wait(2),
        Row(work=MEMORY, read=10**6),
    ], {"1": range(2)})  # fmt: skip


@pytest.fixture
def run(tmp_path: Path) -> str:
    save_run(job(), tmp_path / "dry", version="0")
    return str(tmp_path / "dry")


def prices(capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, object]:
    assert main(["whatif", *options, *PRICED, "--json"]) == 0
    document: dict[str, object] = json.loads(capsys.readouterr().out)
    return document


def refused(capsys: pytest.CaptureFixture[str], code: int, options: Sequence[str]) -> str:
    assert main(["whatif", *options]) == code
    found = capsys.readouterr()
    assert not found.out
    assert found.err.count("\n") == 1
    return found.err


def test_a_stated_step_is_met(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = prices(capsys, run, "--calibrate", "321ms")["ranks"][0]  # type: ignore[index]
    assert found["kind"] == "estimate"
    assert found["step"]["value_ns"] == pytest.approx(321e6, rel=1e-4)


def test_a_step_of_another_dry_run_under_another_recipe_calibrates(
    run: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_run(job(2), tmp_path / "double", version="0")
    found = prices(capsys, run, "--recipe", "compile", "--calibrate", f"{tmp_path}/double=0.5s:eager")
    assert found["recipe"] == "compile"
    assert found["ranks"][0]["kind"] == "estimate"  # type: ignore[index]
    assert found["measured"] == [f"{tmp_path}/double=0.5s:eager: eager, fixes pace"]


@pytest.mark.slow
def test_a_recorded_run_gives_its_step_and_its_collectives(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = prices(capsys, run, "--calibrate", str(RECORDED))
    assert main(["analyze", str(RECORDED), "--json"]) == 0
    recorded = json.loads(capsys.readouterr().out)
    assert found["ranks"][0]["step"]["value_ns"] == pytest.approx(recorded["headline"]["step_ns"], rel=1e-3)  # type: ignore[index]
    assert "all_reduce over 2 ranks: transfers of the recorded run" in found["sources"]  # type: ignore[operator]


def test_recorded_transfers_go_before_tables_and_formulas() -> None:
    from overlapscope.analysis.analyze import analyze  # noqa: PLC0415
    from overlapscope.ingest.read_run import read_inputs  # noqa: PLC0415

    rows = analyze(read_inputs([RECORDED])).collectives
    row = max((each for each in rows if each.op == "all_reduce"), key=lambda each: each.bytes or 0)
    own = with_recorded(links("8xh100-nvswitch,roce-400"), rows)
    assert own.time_ns("all_reduce", (0, 1), row.bytes or 0) == pytest.approx(row.transfer_ns_median, rel=1e-6)
    assert own.time_ns("all_reduce", (0, 8), row.bytes or 0) == pytest.approx(row.transfer_ns_median, rel=1e-6)
    assert own.time_ns("all_reduce", range(8), 1 << 20) == links("8xh100-nvswitch").time_ns(
        "all_reduce", range(8), 1 << 20
    )


def test_a_step_of_another_device_gives_a_range(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = prices(capsys, run, "--calibrate", "300ms:eager@h200")["ranks"][0]  # type: ignore[index]
    assert found["kind"] == "range"
    assert found["step"]["value_ns"] is None


@pytest.mark.slow
def test_priced_runs_are_gated_on_their_times(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As two calls of `dryrun --device` leave them, both calibrated with the base's step."""
    for name, run in (("base", job()), ("slower", job(moved=10**11))):
        save_run(run, tmp_path / f"{name}-plain", version="0")
        options = [*PRICED, "--calibrate", f"{tmp_path}/base-plain=321ms"]
        parser = ArgumentParser()
        add_price_options(parser)
        args = parser.parse_args(options)
        save_run(with_prices(run, priced(run, args)), tmp_path / name, version="0")
    policy = tmp_path / "policy.toml"
    policy.write_text("structure = { fail = [] }\n")
    for candidate, code in (("base", 0), ("slower", 1)):
        assert main(["gate", f"{tmp_path}/base", f"{tmp_path}/{candidate}", "--policy", str(policy), "--json"]) == code
        found = json.loads(capsys.readouterr().out)
        assert [each["test"] for each in found["metrics"]] == ["priced", "priced"]
    assert found["metrics"][0]["base"] == pytest.approx(321e6, rel=1e-4)
    assert main(["gate", f"{tmp_path}/base", f"{tmp_path}/base-plain"]) == 3
    assert "price" in capsys.readouterr().out


def test_text_says_that_nothing_was_measured_here(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["whatif", run, *PRICED]) == 0
    text = capsys.readouterr().out
    assert "estimated, nothing was measured here" in text
    assert "a range, no estimate" in text


def test_a_dry_run_has_no_prediction_without_a_device(run: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "whatif --device what its step may take" in refused(capsys, 3, [run])


@pytest.mark.parametrize(
    ("options", "code", "says"),
    [
        (["--device", "h100-sxm"], 2, "--device needs --links"),
        (["--links", "8xh100-nvswitch"], 2, "--links needs --device"),
        (["--calibrate", "3ms"], 2, "--calibrate needs --device"),
        (["--device", "h101", "--links", "8xh100-nvswitch"], 2, "not in the table"),
        ([*PRICED, "--recipe", "fast"], 2, "must be of compile"),
        ([*PRICED, "--calibrate", "nowhere"], 2, "no such run, and no time"),
        ([*PRICED, "--calibrate", "0ms"], 2, "takes more than 0"),
        ([*PRICED, "--calibrate", "a=b=c"], 2, "must be"),
        ([*PRICED, "--calibrate", "5ms@h99"], 2, "not in the table"),
    ],
)
def test_what_cannot_be_priced_is_refused_in_a_line(
    run: str, options: list[str], code: int, says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in refused(capsys, code, [run, *options])


def test_a_recording_is_not_priced(capsys: pytest.CaptureFixture[str]) -> None:
    assert "only a dry run has operations to price" in refused(capsys, 3, [str(RECORDED), *PRICED])
