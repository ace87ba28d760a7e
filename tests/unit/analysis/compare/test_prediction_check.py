"""Predictions are stored in a run, compared with later runs, and kept: `advise --record`, `compare`, `report`."""

import json
import os
import shlex
import shutil
from pathlib import Path

import jsonschema
import msgspec
import pytest
from msgspec.structs import replace

from overlapscope.analysis.compare.prediction_check import (
    Noted,
    ObservedRun,
    Prediction,
    add_outcomes,
    outcomes,
    same_setting,
    trust,
)
from overlapscope.cli.main import main
from overlapscope.cli.prediction_file import NAME, add_noted, read_noted
from overlapscope.errors import InputError, UsageError
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formats.json import schema as schema_of
from overlapscope.timeline.run import Run
from overlapscope.timeline.store.baselines import list_runs, save_baseline
from overlapscope.version import __version__
from overlapscope.whatif.ddp.measured_settings import observed_run
from tests.conftest import ROOT
from tests.support.ddp_cases import IN_PAIRS, MB, TICK_NS, Made, recorded, step_ns

TRACES = ROOT / "traces"


def prediction(cap: float, low: int, high: int, made_at: str = "2026-01-01") -> Prediction:
    return Prediction(
        made_at=made_at, version="0.1.0", verdict="change", recommended=False, present={"bucket_cap_mb": 25.0},
        present_step_ns=100, ranks=2, gradient_bytes=64, knobs={"bucket_cap_mb": cap}, step_ns=(low + high) // 2,
        low_ns=low, high_ns=high,
    )  # fmt: skip


def seen(cap: float, step: int, **changes: object) -> ObservedRun:
    one = ObservedRun(run="new", knobs={"bucket_cap_mb": cap}, step_ns=step, ranks=2, gradient_bytes=64)
    return replace(one, **changes)  # type: ignore[arg-type]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    for name in ("regressed", "baseline"):
        shutil.copytree(TRACES / name, tmp_path / name)
    return tmp_path


def contents(run: Path) -> dict[str, bytes]:
    return {str(each.relative_to(run)): each.read_bytes() for each in run.rglob("*") if each.is_file()}


def test_a_measured_step_is_inside_or_outside_and_its_error_is_the_predictions() -> None:
    noted = [prediction(4.0, 90, 110), prediction(1.0, 80, 100)]
    found, without = outcomes(noted, [seen(4.0, 110), seen(1.0, 120)])
    assert [(each.inside, each.error) for each in found] == [(True, 100 / 110 - 1), (False, 90 / 120 - 1)]
    assert not without
    held = trust(found)
    assert held is not None
    assert (held.measured, held.inside) == (2, 1)
    assert held.mean_error == pytest.approx((10 / 110 + 30 / 120) / 2)
    assert trust([]) is None


def test_the_last_prediction_of_a_setting_counts_and_others_say_why_they_do_not() -> None:
    noted = [prediction(4.0, 10, 20), prediction(4.0, 90, 110, "2026-02-02")]
    (found,), _ = outcomes(noted, [seen(4.0004, 100)])  # a cap in whole bytes
    assert found.prediction.made_at == "2026-02-02"
    for other, said in (
        (seen(5.0, 100), "there is no prediction for its settings, bucket_cap_mb=5"),
        (seen(4.0, 100, ranks=4), "another model or number of ranks"),
        (seen(4.0, 100, gradient_bytes=65), "another model or number of ranks"),
    ):
        found_none, (why,) = outcomes(noted, [other])
        assert not found_none
        assert said in why
    assert outcomes(noted, [seen(25.0, 100)]) == ([], [])  # the present settings again: nothing was predicted of them


def test_settings_are_one_only_where_every_knob_is() -> None:
    assert same_setting({"bucket_cap_mb_list": [1.0, 2.0]}, {"bucket_cap_mb_list": [1.0, 2.0005]})
    assert not same_setting({"bucket_cap_mb_list": [1.0, 2.0]}, {"bucket_cap_mb_list": [1.0, 2.0, 2.0]})
    assert not same_setting({"bucket_cap_mb": 1.0}, {"bucket_cap_mb": 1.0, "hook": "16-bit"})
    assert not same_setting({"no_sync": True}, {"no_sync": False})


def test_a_run_measured_twice_for_a_prediction_stands_once() -> None:
    noted = [prediction(4.0, 90, 110)]
    kept = add_outcomes(Noted(), noted, outcomes(noted, [seen(4.0, 100)])[0])
    kept = add_outcomes(kept, (), outcomes(noted, [seen(4.0, 105)])[0])
    kept = add_outcomes(kept, (), outcomes(noted, [seen(4.0, 103, run="other")])[0])
    assert [(each.run, each.measured_step_ns) for each in kept.outcomes] == [("new", 105), ("other", 103)]


def test_what_two_recordings_predicted_of_one_setting_stands_twice() -> None:
    one = prediction(4.0, 90, 110)
    for changes in ({"present": {"bucket_cap_mb": 1.0}}, {"present_step_ns": 101}, {"step_ns": 95}):
        other = replace(one, **changes)
        tested = [outcome for each in (one, other) for outcome in outcomes([each], [seen(4.0, 100)])[0]]
        kept = add_outcomes(Noted(), tested=tested)
        assert [each.prediction for each in kept.outcomes] == [one, other], changes


def test_a_recording_tells_the_settings_and_the_step_it_was_made_with() -> None:
    observed = observed_run(recorded(IN_PAIRS), "made")
    assert observed.knobs == {"bucket_cap_mb": 2.0, "gradient_as_bucket_view": True}
    assert observed.step_ns == pytest.approx(step_ns(IN_PAIRS), abs=2 * TICK_NS)
    assert (observed.ranks, observed.gradient_bytes) == (2, 8 * 2**20)
    with pytest.raises(InputError, match="empty: its settings are not known"):
        observed_run(Run(world_size=2, ranks={}), "empty")


def test_caps_that_make_the_same_buckets_are_one_setting_and_others_are_not() -> None:
    """torch's default is 25 MiB after a first bucket of 1: of gradients of 1 MiB it makes (1, 7), a cap of 25 (8);
    where the first gradient alone is of 30 MiB both make the same.
    """
    eighths = replace(IN_PAIRS, buckets=((0,), (1, 2, 3, 4, 5, 6, 7)))
    observed = observed_run(under_torchs_default(eighths), "new")
    assert observed.knobs["bucket_cap_mb"] is None
    views = {"gradient_as_bucket_view": True}
    noted = [of_buckets(observed, {"bucket_cap_mb": 25.0, **views})]
    found, (why,) = outcomes(noted, [observed])
    assert not found
    assert "bucket_cap_mb=None, gradient_as_bucket_view=True (torch's default is 25 after a first bucket of 1)" in why
    for knobs in ({"bucket_cap_mb_list": [1.0, 25.0]}, {"bucket_cap_mb_list": [1.0, 1000.0]}, {"bucket_cap_mb": None}):
        assert len(outcomes([of_buckets(observed, {**knobs, **views})], [observed])[0]) == 1, knobs
        assert not outcomes([of_buckets(observed, knobs)], [observed])[0]  # no views
    large = Made(ready=(600, 1200), elements=(30 * MB, MB), buckets=((0,), (1,)), ticks_per_mb=20)
    observed = observed_run(under_torchs_default(large), "new")
    for cap in (25.0, 29.0, None):
        assert len(outcomes([of_buckets(observed, {"bucket_cap_mb": cap, **views})], [observed])[0]) == 1
    here = replace(of_buckets(observed, {"bucket_cap_mb": 29.0, **views}), present={**observed.knobs, **views})
    assert outcomes([here], [observed]) == ([], [])  # the recording itself tests no prediction made from it
    for nothing in (31.0, 0.0, -1.0, float("nan"), float("inf"), "25", True, 10**18):
        assert not outcomes([of_buckets(observed, {"bucket_cap_mb": nothing, **views})], [observed])[0], nothing


def under_torchs_default(made: Made) -> Run:
    """Return a recording whose DDP said that its cap is 25 MiB, as it does for its default."""
    run = recorded(made)
    said = {"ddp": {"bucket_cap_bytes": 25 << 20, "gradient_as_bucket_view": True}}
    ranks = {rank: replace(each, recorded={**each.recorded, **said}) for rank, each in run.ranks.items()}
    return replace(run, ranks=ranks)


def of_buckets(run: ObservedRun, knobs: dict[str, object]) -> Prediction:
    one = prediction(1.0, 90, 110)
    return replace(one, knobs=knobs, ranks=run.ranks, gradient_bytes=run.gradient_bytes)


@pytest.mark.slow
def test_a_prediction_is_noted_beside_the_columns_and_the_later_run_is_held_against_it(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`traces/` holds one job under two caps: from that of 1000 the step of the other, 4, is predicted."""
    base, candidate = runs / "regressed", runs / "baseline"
    before = contents(base)
    advise = ["advise", str(base), "--bucket-cap-mb", "4,25"]
    assert main([*advise, "--record", "--date", "2026-01-31"]) == 0
    said = capsys.readouterr()
    assert f"stored in {base / NAME}" in said.err
    after = contents(base)
    kept = msgspec.json.decode(after.pop(NAME), type=Noted)
    assert after == before
    four = next(each for each in kept.predictions if each.knobs.get("bucket_cap_mb") == 4.0)
    assert (four.made_at, four.version, four.verdict) == ("2026-01-31", __version__, "change")
    assert four.present["bucket_cap_mb"] == 1000.0
    assert four.low_ns < four.step_ns < four.high_ns
    assert not any("link_speed" in each.knobs or "late_ranks" in each.knobs for each in kept.predictions)

    compare = ["compare", str(base), str(candidate)]
    assert main([*compare, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    jsonschema.Draft202012Validator(schema_of("comparison")).validate(document)
    (outcome,) = document["predictions"]
    measured = observed_ns(candidate)
    assert outcome["measured_step_ns"] == measured
    assert outcome["error"] == pytest.approx(four.step_ns / measured - 1)
    assert outcome["inside"] is (four.low_ns <= measured <= four.high_ns)
    assert not read_noted([base]).outcomes

    gate = ["gate", str(base), str(candidate), "--json"]
    assert main(gate) == 0
    assert json.loads(capsys.readouterr().out)["comparison"]["predictions"] == [outcome]

    assert main([*compare, "--record"]) == 0
    assert "1 of 1 measured prediction inside the interval, mean error" in capsys.readouterr().out
    assert [each.measured_step_ns for each in read_noted([base]).outcomes] == [measured]
    assert main(advise) == 0
    shown = capsys.readouterr().out
    assert "the last on 2026-01-31; measured:" in shown
    assert "bucket_cap_mb=4" in shown
    assert main(["report", str(base), str(candidate), "--redact", "--json"]) == 0
    hidden = json.loads(capsys.readouterr().out)
    assert hidden["predictions"][0]["run"] == hidden["candidate"][0]["name"] == "run-2"
    for extra in ([], ["--history"]):
        assert main(["report", str(base), str(candidate), *extra]) == 0
        assert "1 of 1 measured prediction inside the interval" in capsys.readouterr().out


def observed_ns(run: Path) -> int:
    return observed_run(read_inputs([run]), "run").step_ns


@pytest.mark.slow
def test_a_baseline_keeps_what_its_run_keeps(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["advise", str(runs / "regressed"), "--bucket-cap-mb", "4", "--record"]) == 0
    folder = ["--folder", str(runs / "kept")]
    assert main(["baseline", "save", "main", str(runs / "regressed"), *folder]) == 0
    assert main(["baseline", "save", "other", str(runs / "baseline"), *folder]) == 0
    assert read_noted([runs / "kept" / "main"]) == read_noted([runs / "regressed"])
    assert not (runs / "kept" / "other" / NAME).exists()
    capsys.readouterr()
    assert main(["compare", str(runs / "kept" / "main"), str(runs / "baseline")]) == 0
    assert "1 of 1 measured prediction" in capsys.readouterr().out


def test_a_broken_file_leaves_no_baseline_behind(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, folder = runs / "baseline", runs / "kept"
    save = ["baseline", "save", "main", str(run), "--folder", str(folder)]
    (run / NAME).write_text("{", encoding="utf-8")
    assert main(save) == 3
    said = capsys.readouterr().err
    assert NAME in said
    assert len(said.splitlines()) == 1
    assert not folder.exists() or not list(folder.iterdir())
    (run / NAME).unlink()
    assert main(save) == 0
    before = contents(folder / "main")
    (run / NAME).write_text("{", encoding="utf-8")
    assert main([*save, "-f"]) == 3
    assert contents(folder / "main") == before


def test_a_hundred_runs_stand_in_a_baseline_in_their_order(tmp_path: Path) -> None:
    save_baseline([Run(world_size=at, ranks={}) for at in range(1, 102)], tmp_path / "main", version="0.1.0")
    stored = [json.loads((each / "run.json").read_text(encoding="utf-8")) for each in list_runs(tmp_path / "main")]
    assert [each["world_size"] for each in stored] == list(range(1, 102))


def test_what_keeps_no_predictions_is_refused_before_anything_is_read(
    runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = next((runs / "regressed").rglob("*.json.gz"))
    inputs = [str(runs / "regressed"), str(runs / "baseline")]
    for arguments, said in (
        (["advise", str(trace), "--record"], "is not a run directory"),
        (["advise", str(runs / "none"), "--record"], "is not a run directory"),
        (["compare", str(trace), inputs[1], "--record"], "is not a run directory"),
        (["compare", *inputs, "--scale", "--record"], "cannot be used with --scale"),
        (["advise", *inputs, "--record"], "name one run"),
        (["advise", inputs[0], "--date", "2026-01-31"], "add --record"),
        (["advise", inputs[0], "--record", "--date", "yesterday"], "takes a date"),
    ):
        assert main(arguments) == 2, arguments
        shown = capsys.readouterr()
        assert said in shown.err
        assert len(shown.err.splitlines()) == 1
        assert not shown.out
    assert not list(runs.rglob(NAME))


def test_a_place_that_cannot_be_written_is_named_and_left_as_it_was(runs: Path) -> None:
    run = runs / "baseline"
    (run / NAME).mkdir()
    before = contents(run)
    with pytest.raises(InputError, match=NAME):
        add_noted(run, [prediction(4.0, 90, 110)])
    assert contents(run) == before
    with pytest.raises(UsageError):
        add_noted(runs, [prediction(4.0, 90, 110)])


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"\xff\xfe", b'{"schema": "overlapscope.run/1"}', b"[" * 100_000,
                b'{"schema": "overlapscope.predictions/1", "predictions": [{}]}'],
)  # fmt: skip
def test_a_damaged_file_is_answered_in_one_line(content: bytes, runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (runs / "baseline" / NAME).write_bytes(content)
    assert main(["advise", str(runs / "baseline")]) == 3
    said = capsys.readouterr()
    assert NAME in said.err
    assert len(said.err.splitlines()) == 1
    assert not said.out


def test_a_pipe_in_its_place_is_not_waited_for(runs: Path) -> None:
    os.mkfifo(runs / "baseline" / NAME)
    with pytest.raises(InputError, match=rf"{NAME}: cannot be read: .*not a regular file"):
        read_noted([runs / "baseline"])


HUGE = "1" * 400


@pytest.mark.parametrize(
    ("field", "value"),
    [("step_ns", HUGE), ("low_ns", f"-{HUGE}"), ("high_ns", HUGE), ("ranks", HUGE), ("gradient_bytes", "0"),
     ("present_step_ns", str(2**63)), ("knobs", f'{{"bucket_cap_mb": {HUGE}}}'),
     ("present", f'{{"bucket_cap_mb_list": [{HUGE}]}}'), ("knobs", '{"bucket_cap_mb": ' + "[" * 500 + "]" * 500 + "}")],
)  # fmt: skip
def test_what_cannot_be_reckoned_with_is_answered_in_one_line(
    field: str, value: str, runs: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The predictions are of the candidate's workload, so that every figure of them would be used."""
    base, candidate = runs / "regressed", runs / "baseline"
    observed = observed_run(read_inputs([candidate]), "run")
    one = msgspec.to_builtins(prediction(4.0, 90, 110))
    content = {
        **one,
        "ranks": observed.ranks,
        "gradient_bytes": observed.gradient_bytes,
        "knobs": observed.knobs,
        field: "HERE",
    }
    text = json.dumps({"schema": "overlapscope.predictions/1", "predictions": [content]})
    (base / NAME).write_text(text.replace('"HERE"', value), encoding="utf-8")
    assert main(["compare", str(base), str(candidate)]) == 3
    said = capsys.readouterr()
    assert NAME in said.err
    assert len(said.err.splitlines()) == 1
    assert not said.out


def test_a_candidate_of_another_model_is_still_compared(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    add_noted(runs / "regressed", [prediction(4.0, 90, 110)])
    assert main(["compare", str(runs / "regressed"), str(runs / "baseline"), "--json"]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["predictions"] == []
    assert "another model or number of ranks" in said.err


@pytest.mark.slow
def test_the_page_shows_what_the_commands_print(
    runs: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (runs / "traces").mkdir()
    for name in ("regressed", "baseline"):
        (runs / name).rename(runs / "traces" / name)
    monkeypatch.chdir(runs)
    page = (ROOT / "docs" / "whatif.md").read_text(encoding="utf-8").partition("## Was it right?")[2]
    commands = page.split("```bash\n")[1].split("```")[0].splitlines()
    for command in commands[:3]:
        capsys.readouterr()
        assert main(shlex.split(command)[1:]) == 0
    assert capsys.readouterr().out.endswith(page.split("```text\n")[1].split("```")[0])
