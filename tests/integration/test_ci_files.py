"""The GitHub Action and the GitLab job: their shell lines run here as they stand."""

import os
import re
import subprocess
import sys
import textwrap
import tomllib
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

from overlapscope.version import __version__
from tests.conftest import ROOT

BASE, CANDIDATE = str(ROOT / "traces" / "baseline"), str(ROOT / "traces" / "regressed")


class Step(NamedTuple):
    """A step of the action."""

    environment: dict[str, str]
    """Variables, and the input each is set to."""
    script: str


def steps_of_action() -> dict[str, Step]:
    """Read the steps: a name, `env` with one input each, a script."""
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    found = {}
    for block in re.split(r"\n    - name: ", text)[1:]:
        name, _, body = block.partition("\n")
        assert "shell: bash" in body
        environment = dict(re.findall(r"^        ([A-Z_]+): \$\{\{ inputs\.([\w-]+) \}\}$", body, re.MULTILINE))
        script = body.partition("run: |\n")[2]
        assert "${{" not in script, "what a caller gives must come as a variable: in the script it would be code"
        found[name] = Step(environment, textwrap.dedent(script))
    return found


def inputs_of_action() -> dict[str, str]:
    """Return the defaults."""
    text = (ROOT / "action.yml").read_text(encoding="utf-8").partition("inputs:\n")[2].partition("\noutputs:")[0]
    found = {}
    for name, body in re.findall(r"^  ([\w-]+):\n((?:    .*\n?)+)", text, re.MULTILINE):
        default = re.search(r"    default: (.*)", body)
        found[name] = default[1].strip('"') if default else ""
    return found


def run_shell(
    script: str,
    folder: Path,
    overlapscope: str = f'exec "{sys.executable}" -m overlapscope.cli.main "$@"',
    **environment: str,
) -> subprocess.CompletedProcess[str]:
    """Run lines as runners do; `overlapscope` is the script that stands for the command."""
    command = folder / "bin"
    command.mkdir(exist_ok=True)
    for name, runs in (("overlapscope", overlapscope), ("python", f'exec "{sys.executable}" "$@"')):
        (command / name).write_text(f"#!/bin/sh\n{runs}\n", encoding="utf-8")
        (command / name).chmod(0o755)
    kept = {key: value for key, value in os.environ.items() if not key.startswith("GITHUB_")}
    path = f"{command}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", script],
        cwd=folder, env={**kept, "PATH": path, "PYTHONPATH": str(ROOT), **environment},
        capture_output=True, text=True, check=False,
    )  # fmt: skip


def act(folder: Path, overlapscope: str | None = None, **given: str) -> tuple[int, dict[str, str], str, str]:
    """Run the action's judging step; return its exit code, its outputs, its summary, and what it prints."""
    step = steps_of_action()["Judge"]
    inputs = {**inputs_of_action(), **{key.replace("_", "-"): value for key, value in given.items()}}
    assert set(step.environment.values()) <= set(inputs)
    output, summary = folder / "output", folder / "summary"
    done = run_shell(
        step.script, folder, GITHUB_ACTIONS="true", GITHUB_OUTPUT=str(output), GITHUB_STEP_SUMMARY=str(summary),
        **({"overlapscope": overlapscope} if overlapscope else {}),
        **{name: inputs[each] for name, each in step.environment.items()},
    )  # fmt: skip
    pairs = dict(line.split("=", 1) for line in output.read_text(encoding="utf-8").splitlines())
    return (
        done.returncode,
        pairs,
        summary.read_text(encoding="utf-8") if summary.exists() else "",
        done.stdout + done.stderr,
    )


def test_the_action_fails_a_regression_and_tells_why_everywhere(tmp_path: Path) -> None:
    code, outputs, summary, stderr = act(tmp_path, base=BASE, candidate=CANDIDATE)
    assert code == 1
    assert outputs == {"exit-code": "1", "verdict": "regressed"}
    assert summary.startswith("### REGRESSED: step time")
    assert "::error title=OverlapScope::" in stderr
    reports = tmp_path / "overlapscope-reports"
    assert {each.name for each in reports.iterdir()} == {"gate.json", "report.html", "junit.xml", "summary.md"}
    assert ElementTree.parse(reports / "junit.xml").find(".//failure") is not None


def test_the_action_passes_unchanged_code_and_hides_names_where_asked(tmp_path: Path) -> None:
    code, outputs, summary, stderr = act(tmp_path, base=BASE, candidate=BASE, redact="true", reports="kept here")
    assert (code, outputs) == (0, {"exit-code": "0", "verdict": "passed"})
    assert "PASSED" in summary
    assert "::error" not in stderr
    texts = {each.name: each.read_text(encoding="utf-8") for each in (tmp_path / "kept here").iterdir()}
    assert set(texts) == {"gate.json", "report.html", "junit.xml", "summary.md"}
    assert not any(BASE in each for each in texts.values())


@pytest.mark.slow
def test_the_action_gives_the_gates_own_code_where_nothing_could_be_judged(tmp_path: Path) -> None:
    code, outputs, summary, printed = act(tmp_path, base=BASE, candidate=str(tmp_path / "no $(touch owned) here"))
    assert (code, outputs, summary) == (3, {"exit-code": "3"}, "")
    assert not (tmp_path / "owned").exists()
    assert "::error title=OverlapScope::overlapscope gate: " in printed
    assert "baseline save" not in printed
    (tmp_path / "empty").mkdir()
    assert "::error title=OverlapScope::overlapscope gate: " in act(tmp_path, base=BASE, candidate="empty")[3]
    assert "(the first baseline: overlapscope baseline save" in act(tmp_path, base="50%", candidate=BASE)[3]
    assert (
        "::error title=OverlapScope::overlapscope gate: 50%25: no such" in act(tmp_path, base="50%", candidate=BASE)[3]
    )
    (tmp_path / "output").unlink()
    (tmp_path / "policy.toml").write_text("wrong = 1\n", encoding="utf-8")
    code, outputs, _, _ = act(tmp_path, base=BASE, candidate=BASE, policy="policy.toml")
    assert code == 2
    code, _, _, printed = act(tmp_path, base=BASE, candidate=BASE, policy="none.toml")
    assert (code, "::error title=OverlapScope::overlapscope gate: none.toml: cannot be read" in printed) == (2, True)


VERDICTS = {0: "passed", 1: "regressed", 3: "missing", 4: "inconclusive"}
FAULTS = {
    "reports fail": "exit 3",
    "reports are killed": "kill -9 $$",
    "reports are empty": ': > "$out"',
    "reports are huge": 'head -c 3000000 /dev/zero | tr "\\0" x > "$out"',
}


@pytest.mark.parametrize("code", VERDICTS)
@pytest.mark.parametrize("fault", FAULTS)
def test_no_report_replaces_the_gates_exit_code(tmp_path: Path, code: int, fault: str) -> None:
    stand_in = f"""
    for word in "$@"; do if [ "$before" = -o ]; then out=$word; fi; before=$word; done
    if [ "$1" = gate ]; then echo '{{"verdict": "{VERDICTS[code]}"}}' > "$out"; exit {code}; fi
    {FAULTS[fault]}
    """
    ended, outputs, summary, printed = act(tmp_path, stand_in, base="a", candidate="b")
    assert (ended, outputs) == (code, {"exit-code": str(code), "verdict": VERDICTS[code]})
    assert len(summary) < 1 << 20
    assert ("::warning" in printed) == (fault in ("reports fail", "reports are killed"))
    assert ("too long" in summary) == (fault == "reports are huge")


@pytest.mark.parametrize("content", ["", "{", "[]", '{"verdict": "x\\nexit-code=0"}'])
def test_a_gate_that_leaves_no_verdict_keeps_its_exit_code(tmp_path: Path, content: str) -> None:
    stand_in = f"""
    for word in "$@"; do if [ "$before" = -o ]; then out=$word; fi; before=$word; done
    if [ "$1" = gate ]; then printf %s '{content}' > "$out"; exit 4; fi
    """
    code, outputs, _, _ = act(tmp_path, stand_in, base="a", candidate="b")
    assert (code, outputs) == (4, {"exit-code": "4"})


@pytest.mark.parametrize(
    "given",
    [
        {"candidate": BASE},
        {"base": BASE},
        {"base": BASE, "candidate": BASE, "fail_on": "anything"},
        {"base": BASE, "candidate": BASE, "redact": "yes"},
        {"base": BASE, "candidate": BASE, "reports": ""},
        {"base": BASE, "candidate": BASE, "reports": "/proc/none"},
    ],
)
def test_the_action_refuses_inputs_that_mean_nothing(tmp_path: Path, given: dict[str, str]) -> None:
    code, outputs, _, printed = act(tmp_path, **given)
    assert (code, outputs) == (2, {"exit-code": "2"})
    assert "::error title=OverlapScope::input '" in printed


@pytest.mark.slow
def test_what_an_earlier_step_left_is_not_published_again(tmp_path: Path) -> None:
    assert act(tmp_path, base=BASE, candidate=CANDIDATE)[0] == 1
    for each in ("output", "summary"):
        (tmp_path / each).unlink()
    code, outputs, summary, _ = act(tmp_path, base=BASE, candidate=str(tmp_path / "none"))
    assert (code, outputs, summary) == (3, {"exit-code": "3"}, "")


@pytest.mark.slow
def test_a_name_that_looks_like_an_option_is_a_name(tmp_path: Path) -> None:
    code, _, _, printed = act(tmp_path, base="--help", candidate=BASE)
    assert code == 3
    assert "--help" in printed


def test_the_action_installs_only_where_asked(tmp_path: Path) -> None:
    script = steps_of_action()["Install"].script
    done = run_shell(script, tmp_path, INSTALL="")
    assert (done.returncode, done.stdout) == (0, "")
    assert inputs_of_action()["install"] == "${{ github.action_path }}"


@pytest.mark.slow
def test_the_gitlab_job_ends_with_the_gates_code_and_leaves_its_reports(tmp_path: Path) -> None:
    text = (ROOT / "examples" / "ci" / "gitlab.yml").read_text(encoding="utf-8")
    script = text.partition("  script:\n")[2].partition("  artifacts:")[0]
    lines = re.findall(r"^    - (.*)$", script, re.MULTILINE)
    assert len(lines) == len(script.splitlines())
    done = run_shell("\n".join(lines), tmp_path, BASE=BASE, CANDIDATE=CANDIDATE)
    assert done.returncode == 1
    named = re.search(r"paths: \[(.*)\]", text)
    kept = re.findall(r"(?:junit|metrics): (\S+)", text)
    assert named
    files = [each.replace("$CANDIDATE", str(CANDIDATE)) for each in named[1].split(", ")]
    assert all((tmp_path / each).stat().st_size for each in [*files, *kept])


def test_the_workflow_names_inputs_that_the_action_has() -> None:
    text = (ROOT / "examples" / "ci" / "github.yml").read_text(encoding="utf-8")
    given = re.search(r"uses: OWNER/overlapscope@v[\d.]+\n        with:\n((?:          .*\n)+)", text)
    assert given
    assert set(re.findall(r"^ {10}([\w-]+):", given[1], re.MULTILINE)) <= set(inputs_of_action())
    page = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
    for example in (ROOT / "examples" / "ci").iterdir():
        text = example.read_text(encoding="utf-8")
        assert text in page
        assert set(re.findall(r"OWNER/overlapscope@v([^\s\"]+)", text)) == {__version__}, example.name
    for name in inputs_of_action():
        assert f"`{name}`" in page


def test_the_modules_and_tests_of_make_mutants_are_there() -> None:
    table = tomllib.loads((ROOT / "tests" / "mutants.toml").read_text(encoding="utf-8"))
    for module, tests in table.items():
        for path in (module, *(f"tests/{name}" for name in tests)):
            assert (ROOT / path).is_file(), path
