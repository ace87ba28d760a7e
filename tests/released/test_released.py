"""What each released version wrote is opened by this one, with the same figures; schemas change only as promised."""

import json
import shutil
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from overlapscope.cli.main import main
from overlapscope_dashboards.runs.site import Site
from tests.conftest import ROOT
from tests.released.write import COMMANDS
from tests.support.documents import differences

HERE = Path(__file__).parent
VERSIONS = sorted(each.name for each in HERE.iterdir() if each.name[0].isdigit())
RUNS = ("trace_run", "regressed_run", "events_run", "ingested_run", "larger_run")
DOCUMENTS = ("analysis_trace", "analysis_events", "analysis_ingested", "comparison", "gate", "history", "scaling")
NOT_FIGURES = ("advice",)  # sentences and figures of rules, which become better


class Released:
    """A copy of what one version wrote, in which commands are run: nothing is kept beside the fixtures."""

    def __init__(self, folder: Path, captured: pytest.CaptureFixture[str]) -> None:
        self.folder, self._captured = folder, captured

    def run(self, *words: str, code: int = 0) -> str:
        """Run a command that ends with an exit code; return what it prints."""
        ended = main(words)
        printed, stderr = self._captured.readouterr()
        assert ended == code, stderr
        return printed

    def refused(self, *words: str) -> str:
        """Run a command that finds nothing usable; return what it says."""
        assert main(words) == 3
        return self._captured.readouterr().err

    def document(self, *words: str, code: int = 0) -> Any:
        """Return what a command prints with --json."""
        return json.loads(self.run(*words, "--json", code=code))

    def stored(self, name: str) -> Any:
        """Return what the released version printed."""
        return json.loads((self.folder / f"{name}.json").read_text(encoding="utf-8"))


@pytest.fixture(params=VERSIONS)
def released(
    request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Released:
    folder = tmp_path / str(request.param)
    shutil.copytree(HERE / request.param, folder)
    monkeypatch.chdir(folder)
    return Released(folder, capsys)


def comparable(document: Any) -> Any:
    """Return a document with the causes of a late rank as one: 0.1 took for them what the rank did while others waited;
    with those of a call that all have begun as one; and without odd steps: 0.1 named some among few that differ as
    much; with exposed time of scenarios as a share of that of the present settings: 0.1 took it from the replay.

    Parts of a time stand under their names, in whole microseconds: they are rounded to their sum, which stays.
    """
    if isinstance(document, list):
        return [comparable(each) for each in document]
    if not isinstance(document, dict):
        return document
    found = {key: comparable(each) for key, each in document.items()}
    if "findings" in found:
        found["findings"] = [each for each in found["findings"] if not each["id"].startswith("odd_step:")]
    if "scenarios" in found:
        first = found["scenarios"][0]["exposed_comm_ns"]
        for each in found["scenarios"]:
            each["exposed_comm_ns"] = round(each["exposed_comm_ns"] / first, 6)
    if "causes" in found:
        found["causes"] = _one_lateness(found["causes"].items())
    if "parts" in found and all("name" in each for each in found["parts"]):
        times = {key for each in found["parts"] for key in each if key.endswith("_ns")}
        for time in times:
            parts = _one_lateness((each["name"], each[time]) for each in found["parts"])
            found[f"parts_{time}"] = {name: round(ns, -3) for name, ns in parts.items()}
        del found["parts"]
    return found


def _one_lateness(parts: Iterable[tuple[str, int]]) -> dict[str, int]:
    """Return the parts with those of waiting for late ranks as one, and those of a call that all have begun: 0.1 took
    what a thread needs to wake up for time behind another call."""
    found: Counter[str] = Counter()
    for name, ns in parts:
        late = name.startswith("peer_") or name == "late_end"
        found["late_rank" if late else "begun" if name in ("queued", "dependency", "tail") else name] += ns
    return dict(found)


def lost(before: Any, after: Any) -> list[str]:
    """Return where figures differ or are gone; what was added is no loss, and conclusions may become better: what is
    recommended, and the critical path, which is none where it cannot be known."""
    found = (each for each in differences(comparable(before), comparable(after)) if not each.endswith(": added"))
    return [each for each in found if not each.startswith((".recommendations", ".critical_path"))]


@pytest.mark.parametrize("name", [each for each in COMMANDS if each not in NOT_FIGURES])
def test_an_older_run_has_the_figures_that_it_had(released: Released, name: str) -> None:
    assert lost(released.stored(name), released.document(*COMMANDS[name], code=int(name == "gate"))) == []


def causes_in(document: Any) -> Iterator[dict[str, int]]:
    """Yield the causes of each window of an analysis, in order."""
    if isinstance(document, list):
        for each in document:
            yield from causes_in(each)
    if isinstance(document, dict):
        for key, each in document.items():
            if key == "causes":
                yield each
            else:
                yield from causes_in(each)


@pytest.mark.parametrize("name", [each for each in DOCUMENTS if each.startswith("analysis")])
def test_time_behind_another_call_is_only_given_to_what_waited_for_the_call_itself(
    released: Released, name: str
) -> None:
    stored, now = released.stored(name), released.document(*COMMANDS[name])
    pairs = list(zip(causes_in(stored["ranks"]), causes_in(now["ranks"]), strict=True))
    assert pairs
    for before, after in pairs:
        assert after.get("queued", 0) <= before.get("queued", 0)
        # What comes behind the optimizer waits for that: 0.1 said `dependency` of such calls.
        then, today = (sum(each.get(cause, 0) for cause in ("dependency", "tail")) for each in (before, after))
        assert today >= then


@pytest.mark.slow
def test_an_older_baseline_is_held_against_a_run_of_this_version(released: Released) -> None:
    released.run("ingest", "regressed_run", "-o", "candidate")
    judged = released.document("gate", "baselines/main", "candidate", code=1)
    assert lost(released.stored("gate")["metrics"], judged["metrics"]) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", RUNS)
def test_ingest_writes_an_older_run_anew(released: Released, name: str) -> None:
    released.run("ingest", name, "-o", "new")
    before, after = (released.document("analyze", each) for each in (name, "new"))
    assert lost(before["ranks"], after["ranks"]) == []
    assert lost(before["skew"], after["skew"]) == []


@pytest.mark.parametrize("name", DOCUMENTS)
def test_older_documents_become_reports(released: Released, name: str) -> None:
    for form in ("html", "md", "junit", "openmetrics"):
        assert released.run("report", f"{name}.json", "--format", form)


@pytest.mark.parametrize("name", RUNS)
def test_every_other_command_opens_older_runs(released: Released, name: str) -> None:
    released.run("export", name, "-o", "out.json.gz")
    released.run("whatif", name, "--list")
    released.run("advise", name)


def test_an_older_floor_and_older_baselines_are_read(released: Released) -> None:
    released.run(
        "gate", "baselines/main", "regressed_run", "--floor", "floor.json"
    )  # runs may differ so much, it knows
    assert "main" in released.run("baseline", "list", "--folder", "baselines")


def test_a_run_of_a_later_version_names_the_version_that_reads_it(released: Released) -> None:
    manifest = released.folder / "trace_run" / "run.json"
    document = json.loads(manifest.read_text(encoding="utf-8"))
    for version, said in (
        ("7.1.0", "pip install 'overlapscope>=7.1.0'"),
        ("$(rm)", "reads overlapscope.run/"),
        (7, "reads"),
    ):
        manifest.write_text(
            json.dumps({**document, "schema": "overlapscope.run/99", "version": version}), encoding="utf-8"
        )
        stderr = released.refused("analyze", "trace_run")
        assert said in stderr
        assert "$" not in stderr


def test_the_dashboard_lists_older_runs(released: Released) -> None:
    found = Site([released.folder]).find_runs()
    assert {each.name for each in found.runs} >= set(RUNS)


@pytest.mark.parametrize("version", VERSIONS)
def test_published_schemas_break_no_program_that_reads_them(version: str) -> None:
    for path in sorted((HERE / version / "schemas").iterdir()):
        now = ROOT / "docs" / path.name
        assert now.exists(), f"{path.name} was published and is gone"
        old, new = (json.loads(each.read_text(encoding="utf-8")) for each in (path, now))
        assert list(breaks(old, new, old, new, path.name)) == []


def breaks(
    old: Any, new: Any, old_root: Any, new_root: Any, place: str, seen: frozenset[str] = frozenset()
) -> Iterator[str]:
    """Yield what a program that reads documents of the old schema may not get, or not expect, under the new one."""
    if "$ref" in old:
        if old["$ref"] in seen:
            return
        seen |= {old["$ref"]}
    old, new = _resolved(old, old_root), _resolved(new, new_root)
    if _kinds(new, new_root) - _kinds(old, old_root):
        yield f"{place}: may now be {sorted(_kinds(new, new_root) - _kinds(old, old_root))}"
    for name, part in old.get("properties", {}).items():
        if name not in new.get("properties", {}):
            yield f"{place}.{name}: gone"
        else:
            yield from breaks(part, new["properties"][name], old_root, new_root, f"{place}.{name}", seen)
    for name in set(old.get("required", ())) - set(new.get("required", ())):
        yield f"{place}.{name}: was always there"
    for key in ("items", "additionalProperties"):
        if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            yield from breaks(old[key], new[key], old_root, new_root, f"{place}[]", seen)
    for part in (_resolved(each, old_root) for each in old.get("anyOf", ())):
        if "title" in part:
            for other in (_resolved(each, new_root) for each in new.get("anyOf", [new])):
                if other.get("title") == part["title"]:
                    yield from breaks(part, other, old_root, new_root, place, seen | {part["title"]})


def _resolved(schema: Any, root: Any) -> Any:
    while "$ref" in schema:
        schema = root["$defs"][schema["$ref"].rpartition("/")[2]]
    return schema


def _kinds(schema: Any, root: Any) -> set[str]:
    """Return the JSON types that a value may have; a whole number is a number, too."""
    if "anyOf" in schema:
        return set().union(*(_kinds(_resolved(each, root), root) for each in schema["anyOf"]))
    if "enum" in schema:
        return {{str: "string", int: "integer", type(None): "null"}.get(type(each), "other") for each in schema["enum"]}
    kinds = schema.get("type", ["object", "array", "string", "number", "integer", "boolean", "null"])
    return {kinds} if isinstance(kinds, str) else set(kinds)


@pytest.mark.parametrize(
    ("old", "new", "broken"),
    [
        ({"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"type": "integer"}, "b": {}}}, False),
        ({"properties": {"a": {"type": "integer"}}}, {"properties": {}}, True),
        ({"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"type": "string"}}}, True),
        ({"properties": {"a": {"type": "integer"}}}, {"properties": {"a": {"type": ["integer", "null"]}}}, True),
        ({"properties": {"a": {}}, "required": ["a"]}, {"properties": {"a": {}}}, True),
        ({"properties": {"a": {"type": "string"}}}, {"properties": {"a": {"enum": ["x", "y"]}}}, False),
        ({"type": "array", "items": {"type": "integer"}}, {"type": "array", "items": {"type": "number"}}, True),
    ],
)  # fmt: skip
def test_what_counts_as_a_break(old: Any, new: Any, broken: bool) -> None:
    assert bool(list(breaks(old, new, old, new, "x"))) == broken
