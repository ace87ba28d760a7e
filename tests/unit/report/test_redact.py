"""`report --redact`: no name of a host, module, file, group or kernel is left, and every figure is."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.result import Analysis
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formats import json as as_json
from overlapscope.report.formats.json import schema
from overlapscope.report.redact import redacted
from overlapscope.report.sheet import document as saved
from overlapscope.report.sheet.document import Document
from overlapscope.timeline.run import Run
from tests.conftest import ROOT, shared_file
from tests.unit.report.test_report import EVIL, RENDERERS, documents, hostile, tells


def all_formats(document: Document) -> dict[str, str]:
    return {"json": as_json.render(document), **{name: render(document) for name, render in RENDERERS.items()}}


def figures(value: Any) -> Iterator[Any]:
    """Yield every number and truth value of a document, in its order."""
    if isinstance(value, dict):
        for each in value.values():
            yield from figures(each)
    elif isinstance(value, list):
        for each in value:
            yield from figures(each)
    elif not isinstance(value, str):
        yield value


@pytest.mark.parametrize("kind", ["run", "comparison", "gate", "history", "scaling"])
@pytest.mark.usefixtures("at_root")
def test_figures_are_untouched_and_the_sample_runs_are_not_named(kind: str) -> None:
    document = documents()[kind]
    hidden = redacted(document)
    ours, theirs = (json.loads(as_json.render(each)) for each in (document, hidden))
    assert list(figures(ours)) == list(figures(theirs))
    assert redacted(document) == hidden
    name = "analysis" if kind == "run" else kind
    jsonschema.Draft202012Validator(schema(name)).validate(theirs)
    for text in all_formats(hidden).values():
        assert not re.search("traces/(baseline|regressed)", text)
    assert "file-1" in as_json.render(hidden) or "run-1" in as_json.render(hidden)


SENTENCES = ("title", "warnings", "reasons", "verify", "measured", "assumed", "apply")


def reworded(value: Any, key: str = "") -> Any:
    """Return a document with other and with more words in every field of sentences."""
    if isinstance(value, dict):
        more = {"torch": "of /home/alice"} if key == "apply" else {}
        return {name: reworded(each, name) for name, each in value.items()} | more
    if isinstance(value, list):
        return [reworded(each, key) for each in value] + (["step 3 of /home/alice"] if key in SENTENCES else [])
    return f"host-7 10.1.2.3 {value}" if key in SENTENCES and isinstance(value, str) else value


@pytest.mark.usefixtures("at_root")
def test_rewording_a_sentence_changes_nothing_that_is_shown() -> None:
    """What is hidden depends on fields alone: no sentence passes, and none decides over another text."""
    changed = []
    for kind, document in {**documents(), "sample": sample()}.items():
        other = decoded(reworded(json.loads(as_json.render(document))))
        changed += [kind] if other != document else []
        assert redacted(other) == redacted(document)
    assert changed == ["run", "comparison", "gate", "scaling", "sample"]


OF_FORMATS = {"error", "line", "back", "more"}
"""Words that JUnit and HTML hold themselves."""


@pytest.mark.parametrize("evil", [each for each in EVIL if tells(each, each)])
def test_a_name_is_left_in_no_format_wherever_it_stood(evil: str) -> None:
    word = max(set(re.findall(r"[a-z]+", evil)) - OF_FORMATS, key=len)
    for document in hostile(evil).values():
        for name, text in all_formats(redacted(document)).items():
            assert word not in text.replace("samples", ""), name  # a field of ours, which holds "amp"


def test_the_same_name_is_the_same_placeholder_everywhere() -> None:
    document = json.loads(as_json.render(sample()))
    hidden = json.loads(as_json.render(redacted(decoded(document))))
    where = {row["group"] for row in hidden["collectives"]}
    assert where == {"group-1"}
    assert hidden["findings"][0]["title"] == "late rank (group-1): wait 3.500 ms; group group-1; host host-1"
    assert hidden["findings"][0]["id"] == "late_rank:group-1"
    assert hidden["findings"][0]["evidence"] == {"group": "group-1", "host": "host-1", "wait_ns": 3_500_000}
    assert hidden["exposed_by"]["module"] == {"module-1": 5}
    assert hidden["sources"][0]["path"] == "file-1"
    assert "secret" not in json.dumps(hidden)


def sample() -> Document:
    run = read_inputs([ROOT / "traces" / "baseline"])
    raw = json.loads(as_json.render(analyze(run)))
    raw["sources"] = [{**raw["sources"][0], "path": "/secret/place/of.json", "warnings": ["secret line 3"]}]
    raw["collectives"] = [{**raw["collectives"][0], "group": "secret_dp", "module": "secret.layers.7"}]
    raw["exposed_by"] = {"dimension": {}, "phase": {}, "module": {"secret.layers.7": 5}}
    raw["findings"] = [{
        "id": "late_rank:secret_dp", "severity": "warning", "known_from": "trace",
        "title": "rank 1 of secret_dp waits 3.500 ms for secret-node-17 in secret.layers.7, see /secret/place/of.json",
        "evidence": {"group": "secret_dp", "host": "secret-node-17", "wait_ns": 3_500_000},
    }]  # fmt: skip
    return decoded(raw)


def decoded(raw: Any) -> Document:
    return saved.decoded(json.dumps(raw).encode())


PUBLIC_FILES = (
    "gloo_torch2.13", "kineto/a100_ddp_rank0of2_collective_args.json.gz", "kineto/tracelens_b200_eager.json.gz",
    "kineto/megatron_tp8", "flight_recorder/gloo_ddp", "nccl_log", "topo", "nccl_topo_xml", "horovod", "ascend", "nsys",
)  # fmt: skip
OWN_WORDS = re.compile(r"[a-z_0-9 .,:()+-]{0,16}|[\W\d_]*|.{0,5}")
"""Names that are words of ours, or as short as one: whether one is left cannot be seen."""


@pytest.mark.slow
@pytest.mark.parametrize("place", PUBLIC_FILES)
def test_no_name_of_a_real_file_is_left(place: str) -> None:
    """Hosts, groups, files and modules of public inputs, gathered from the columns themselves."""
    path = shared_file(place)
    run = read_inputs([path])
    document = analyze(run)
    hidden = redacted(document)
    assert list(figures(json.loads(as_json.render(document)))) == list(figures(json.loads(as_json.render(hidden))))
    before, after = as_json.render(document), as_json.render(hidden)
    names = {name for name in names_of(run, document) if not OWN_WORDS.fullmatch(name)}
    assert any(name in before for name in names), "a test that cannot fail"
    left = [name for name in names if re.search(rf"(?<!\w){re.escape(json.dumps(name)[1:-1])}(?!\w)", after)]
    assert left == []


def names_of(run: Run, document: Analysis) -> Iterator[str]:
    for group in run.groups:
        yield from filter(None, (group.name, group.description))
    for source in run.sources:
        yield source.path
        yield Path(source.path).name
    for timeline in run.ranks.values():
        codes = {*timeline.collectives.group.tolist(), *timeline.collectives.module.tolist()} - {-1}
        yield from (timeline.names[code] for code in codes)
        settings = timeline.recorded.get("settings")
        if isinstance(settings, dict) and isinstance(settings.get("host"), str):
            yield settings["host"]
    facts = run.facts
    for table, columns in (
        ("members", ("host", "communicator", "group", "bus")), ("connections", ("nic", "communicator")),
        ("links", ("host", "a", "b")), ("messages", ("host", "text", "source")), ("progress", ("called_at", "source")),
        ("measurements", ("source", "communicator")), ("figures", ("source", "subject")),
    ):  # fmt: skip
        for column in columns:
            for code in getattr(getattr(facts, table), column).tolist():
                if code >= 0:
                    yield facts.names[code]
