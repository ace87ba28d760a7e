"""The runner of the checks, with stand-ins that pass, fail, hang, crash and print too much."""

import gzip
import json
import os
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from overlapscope.errors import InputError, UsageError
from overlapscope.gpu_check.document import Check, CheckResult, GpuCheck, Rule
from overlapscope.gpu_check.run_checks import DOCUMENT, TABLE, as_json, run_checks
from overlapscope.gpu_check.table import as_markdown, as_text

RULES = (
    Rule(figure="error_us", means="error", at_most=20, unit="µs"),
    Rule(figure="same", means="the same", at_least=1, at_most=1),
)


def stand_in(function: str, *, limit_seconds: float = 30, needs: tuple[str, ...] = (), name: str = "") -> Check:
    return Check(
        name=name or function, title=function, shows="a stand-in", guards="nothing", needs=needs,
        measure=f"tests.unit.gpu_check.stand_in_checks:{function}", limit_seconds=limit_seconds,
        rules=RULES if function != "machine" else (Rule(figure="devices", means="devices", at_least=1),),
    )  # fmt: skip


def run(*checks: Check, keep_in: Path | None = None, chosen: Sequence[str] = ()) -> tuple[GpuCheck, list[str]]:
    said: list[str] = []
    document = run_checks(keep_in, said.append, chosen=chosen, checks=checks, inventory=stand_in("machine"))
    return document, said


def result_of(function: str, *, limit_seconds: float = 30) -> CheckResult:
    document, _ = run(stand_in(function, limit_seconds=limit_seconds))
    return document.checks[1]


@pytest.mark.slow
def test_a_check_is_accepted_only_if_each_figure_is_measured_and_within_its_limits() -> None:
    document, said = run(*map(stand_in, ("good", "beyond_its_limit", "half", "not_a_number")))
    assert [each.verdict for each in document.checks] == [
        "accepted",
        "accepted",
        "refused",
        "not run",
        "refused",
        "not run",
    ]
    assert document.versions == {"device": "a stand-in", "devices": 1}
    reasons = {each.name: each.reason for each in document.checks}
    assert reasons["good"] == ""
    assert reasons["beyond_its_limit"] == "error: 30.5 µs, wanted at most 20 µs"
    assert reasons["half"] == "the same: nothing to compare with"
    assert "wanted at most 20" in reasons["not_a_number"]
    assert any("good accepted" in line for line in said)


@pytest.mark.slow
def test_what_hangs_is_ended_with_all_that_it_started() -> None:
    begun = time.monotonic()
    result = result_of("hangs_and_starts_others", limit_seconds=5)
    assert time.monotonic() - begun < 25
    assert (result.verdict, result.figures["error_us"]) == ("refused", 3.5)
    assert result.reason.startswith("did not end in 5 seconds and was killed")
    pid = int(result.figures["pid"])
    assert not _alive(pid)


def _alive(pid: int) -> bool:
    for _ in range(50):
        try:
            with open(f"/proc/{pid}/stat", encoding="ascii") as file:
                if file.read().rsplit(")", 1)[1].split()[0] == "Z":
                    return False
        except OSError:
            return False
        time.sleep(0.1)
    return True


@pytest.mark.slow
@pytest.mark.parametrize(
    ("function", "reason"),
    [
        ("raises", "ended with exit code 1: RuntimeError: the driver returned error 700"),
        ("crashes", "ended by SIGSEGV"),
        ("leaves_early", "ended before its last figure"),
        ("no_such_function", "has no attribute 'no_such_function'"),
    ],
)
def test_what_fails_is_refused_with_its_reason_and_keeps_its_figures(function: str, reason: str) -> None:
    result = result_of(function)
    assert result.verdict == "refused"
    assert reason in result.reason
    assert "\n" not in result.reason
    if function != "no_such_function":
        assert result.figures["error_us"] == 3.5


def test_output_is_kept_to_its_end_only() -> None:
    result = result_of("prints_much")
    assert len(result.output) <= 8_000
    assert "the last line" in result.output
    assert result.figures["same"] is True


def test_lines_that_are_not_figures_cost_themselves_alone() -> None:
    result = result_of("writes_strange_lines")
    assert result.verdict == "accepted"
    assert result.figures == {"error_us": 3.5, "same": True}


def test_what_the_machine_lacks_is_not_run_and_never_accepted() -> None:
    needs = ("nccl", "nccl 2.30", "nvml", "two devices", "nsys", "tests", "kernels", "gloo")
    document, _ = run(*(stand_in("good", needs=(need,), name=need) for need in needs))
    results = document.checks[1:-1]
    assert {each.verdict for each in results} == {"not run"}
    assert [rule.verdict for each in results for rule in each.rules] == ["not run"] * 2 * len(needs)
    reasons = {each.name: each.reason for each in results}
    assert reasons["nccl"] == reasons["nccl 2.30"] == "this torch has no NCCL"
    assert reasons["two devices"] == "there is one device only"
    assert all(reasons.values())


def test_without_a_device_nothing_is_run() -> None:
    said: list[str] = []
    with pytest.raises(InputError, match="torch finds no CUDA device; doctor --gpu needs an NVIDIA GPU") as error:
        run_checks(None, said.append, checks=(stand_in("good"),), inventory=stand_in("no_machine"))
    assert error.value.exit_code == 3
    assert said == []


def test_checks_can_be_chosen_by_name() -> None:
    document, _ = run(stand_in("good"), stand_in("raises"), chosen=["good"])
    assert [each.verdict for each in document.checks[1:3]] == ["accepted", "not run"]
    with pytest.raises(UsageError, match="there is no check C99"):
        run(stand_in("good"), chosen=["C99"])


@pytest.mark.slow
def test_recordings_are_kept_small_and_without_the_host_s_name(tmp_path: Path) -> None:
    document, _ = run(stand_in("keeps"), stand_in("good"), keep_in=tmp_path)
    kept = document.checks[-1]
    assert document.checks[1].kept == ("recordings/keeps.small.json.gz",)
    content = gzip.decompress((tmp_path / "recordings" / "keeps.small.json.gz").read_bytes())
    assert json.loads(content)["host_name"] == "host"
    assert (kept.figures["files"], kept.figures["left_out"], kept.verdict) == (1, 1, "refused")
    assert sum(path.stat().st_size for path in (tmp_path / "recordings").iterdir()) < 3_000_000
    assert json.loads((tmp_path / DOCUMENT).read_text(encoding="utf-8"))["checks"][-1]["name"] == "C15"
    assert (tmp_path / TABLE).read_text(encoding="utf-8") == as_markdown(document)


def test_the_document_states_schema_versions_figures_and_verdicts() -> None:
    document, _ = run(stand_in("good"), stand_in("not_a_number"))
    said = json.loads(as_json(document))
    assert said["schema"] == "overlapscope.gpu_check/1"
    assert said["versions"]["device"] == "a stand-in"
    first = said["checks"][1]
    assert first["figures"] == {"error_us": 3.5, "same": True}
    assert first["rules"][0] | {"means": ""} == {
        "figure": "error_us", "means": "", "at_least": None, "at_most": 20, "unit": "µs", "value": 3.5,
        "verdict": "accepted", "reason": "",
    }  # fmt: skip


def test_text_and_markdown_show_every_check_and_each_figure_with_its_limit() -> None:
    document, _ = run(stand_in("good"), stand_in("beyond_its_limit"), stand_in("half"))
    text, table = as_text(document), as_markdown(document)
    assert text.startswith("a stand-in\n")  # one device needs no number
    assert "2 accepted, 1 refused, 2 not run." in text
    assert "2 accepted, 1 refused, 2 not run." in table
    assert "error: 30.5 µs, wanted at most 20 µs" in text
    rows = [line for line in table.splitlines() if line.startswith("| ")]
    assert all(line.count("|") == 7 for line in rows)
    assert "| good good | a stand-in | error | 3.5 µs | at most 20 µs | accepted |" in rows
    assert "|  |  | the same | yes | 1 | accepted |" in rows
    assert "|  |  | the same |  | 1 | not run |" in rows


def test_a_process_finds_the_packages_that_this_one_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "json.py").write_text("raise RuntimeError('the wrong json')", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    assert result_of("good").verdict == "accepted"
    assert os.getcwd() == str(tmp_path)
