"""`report --redact`: recognisable words, planted wherever a name may stand, are left in no byte of any format."""

import json
from collections.abc import Callable, Iterator
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.compare import compare
from overlapscope.analysis.history import history
from overlapscope.analysis.replicate import replicate
from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.gate.policy import Policy
from overlapscope.gate.verdict import judge
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report import gate_text
from overlapscope.report import json as as_json
from overlapscope.report.annotations import annotations
from overlapscope.report.document import Document, decoded
from overlapscope.report.own_words import is_own
from overlapscope.report.redact import VERSIONS, redacted
from overlapscope.report.redact_names import Names
from overlapscope.timeline.run import Run
from tests.conftest import ROOT
from tests.test_redact import all_formats
from tests.test_report import documents

MARK = "zqv"
"""Begins every planted word, and stands in none of ours."""
SHAPES: tuple[Callable[[str], str], ...] = (
    lambda word: word,
    lambda word: f"{word}.layers.7.step",
    lambda word: f"data-{word}-17.cluster.local",
    lambda word: f"/home/{word}/exposed rank/of.json",
    lambda word: f"C:\\users\\{word}\\trace",
    lambda word: f"{word}@host",
    lambda word: f"void {word}::kernel<float, 3>({word}_args)",
    lambda word: f"rank 3 of {word} waits",
    lambda word: f"all_reduce_{word}",
    lambda word: f"nccl_{word}_Kernel",
    lambda word: f"autograd::{word}Backward",
    lambda word: f"环{word}\x1b[2J\n|<b>`{word}`",
    str.upper,
)
WORDS = st.text("abcdefghijklmnoprstuvwxy0123456789", min_size=4, max_size=9).map(lambda tail: MARK + tail)


@cache
def every_kind() -> dict[str, Document]:
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(ROOT)
        return documents()


def left(text: str) -> bool:
    return MARK in text.casefold()


def places(value: Any, key: str = "", above: str = "") -> Iterator[tuple[Any, Any]]:
    """Give every place of a document that may hold a word that is not ours: what holds it, and where there."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inside:
        field, around = (name, key) if isinstance(value, dict) else (key, above)
        if not isinstance(each, str):
            yield from places(each, field, around)
            continue
        about = str(value.get("key", "")) if isinstance(value, dict) else ""
        versions = around in ("fingerprint", "identity") and VERSIONS.fullmatch(field)
        if not versions and not VERSIONS.fullmatch(about) and not _of_json(field):
            yield value, name


def _of_json(field: str) -> bool:
    """Whether only one of a few words may stand in a field, or one that is looked up by it."""
    return field in ("schema", "unit")


@given(word=WORDS, start=st.integers(0, 12))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_word_anywhere_in_a_document_is_left_nowhere(word: str, start: int) -> None:
    """Titles, evidence, reasons and whatever else: nothing has to know that it is a name."""
    for document in every_kind().values():
        edited = json.loads(as_json.render(document))
        planted = 0
        shapes = count(start)
        for inside, at in list(places(edited)):
            before, shape = inside[at], SHAPES[next(shapes) % len(SHAPES)](word)
            inside[at] = f"{before} {shape}" if at not in ("name", "id") else f"{before}:{shape}"
            try:
                decoded(json.dumps(edited).encode())
            except InputError:
                inside[at] = before  # one of a few words, which are ours
                continue
            planted += 1
        assert planted > 5
        found = decoded(json.dumps(edited).encode())
        for name, text in all_formats(redacted(found)).items():
            assert not left(text), (name, text[max(0, text.casefold().find(MARK) - 80) :][:160])


def planted_trace(word: Callable[[], str], rank: int) -> dict[str, Any]:
    """A rank's trace in which each thing that has a name is named by a new word."""
    events: list[dict[str, Any]] = [
        {"ph": "M", "name": "process_name", "pid": 7, "tid": 0, "ts": 0, "args": {"name": word()}},
        {"ph": "M", "name": "thread_name", "pid": 7, "tid": 7, "ts": 0, "args": {"name": word()}},
    ]

    def add(name: str, ts: float, dur: float, cat: str, tid: int, **args: Any) -> None:
        pid = 0 if cat == "kernel" else 7
        events.append({"ph": "X", "cat": cat, "name": name, "pid": pid, "tid": tid, "ts": ts, "dur": dur, "args": args})

    module, group, gemm, odd = word(), word(), word(), word()
    for step in range(5):
        at = 10_000.0 * step
        add(f"ProfilerStep#{step}", at, 9_900, "user_annotation", 7)
        add(f"FSDP::all_gather ({module})", at + 50, 100, "user_annotation", 7)
        add(word(), at + 10, 900, "cpu_op", 7)
        add(word(), at + 20, 90, "python_function", 7, **{"Call stack": word(), "Python module id": 1})
        launches = (
            (gemm, 200, 3_000, 7, {}),
            ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)", 1_500 + 200 * rank, 5_000, 20,
             {"Collective name": "allreduce", "In msg nelems": 1 << 20, "Out msg nelems": 1 << 20, "Group size": 2,
              "dtype": "Float", "Process Group Name": group, "Process Group Description": word(),
              "Process Group Ranks": "[0, 1]"}),
            (odd, 7_000, 1_200, 31, {}),
        )  # fmt: skip
        for number, (name, begin, length, stream, args) in enumerate(launches):
            link = 10 * step + number + 1
            add("cudaLaunchKernel", at + 60 + number, 1, "cuda_runtime", 7, correlation=link)
            add(name, at + begin, length, "kernel", stream, correlation=link, stream=stream, device=0, **args)
    return {
        "schemaVersion": 1,
        "traceName": f"/home/{word()}/trace.json",
        "trace_id": word(),
        "hostname": word(),
        "distributedInfo": {
            "rank": rank, "world_size": 2, "backend": "nccl", "hostname": word(),
            "pg_config": [{"pg_name": group, "pg_desc": word(), "pg_size": 2, "ranks": [0, 1]}],
        },
        "traceEvents": events,
    }  # fmt: skip


def planted_run(folder: Path, seed: str) -> Run:
    numbers = count()
    folder = folder / f"{MARK}{seed}run"
    folder.mkdir(parents=True)
    for rank in range(2):
        trace = planted_trace(lambda: SHAPES[(at := next(numbers)) % len(SHAPES)](f"{MARK}{seed}{at}"), rank)
        (folder / f"{MARK}{seed}host.rank{rank}.json").write_text(json.dumps(trace), encoding="utf-8")
    return read_inputs([folder])


@pytest.mark.parametrize("seed", ["kilo", "9x4b"])
def test_the_names_of_a_trace_are_left_nowhere(tmp_path: Path, seed: str) -> None:
    run = planted_run(tmp_path, seed)
    side = [replicate(run, f"{MARK}/{seed}")]
    found = (analyze(run), compare(side, side), judge(side, side, Policy()), history(side * 3))
    assert any(each.severity == "warning" for each in found[0].findings)
    for document in found:
        assert left(as_json.render(document)), "a test that cannot fail"
        for name, text in all_formats(redacted(document)).items():
            assert not left(text), (name, text[max(0, text.casefold().find(MARK) - 80) :][:160])


def test_the_gate_says_no_name_in_its_text_and_in_annotations(tmp_path: Path) -> None:
    run = planted_run(tmp_path, "gate")
    side = [replicate(run, f"{MARK}/gate")]
    gate = judge(side, side, Policy(budgets={"exposed_comm_ns": 1}))
    assert gate.exit_code == 1
    assert left(gate_text.render(gate) + as_json.render(gate)), "a test that cannot fail"
    hidden = redacted(gate)
    assert not left(gate_text.render(hidden))
    assert annotations(hidden)
    assert not left("".join(annotations(hidden)))


def test_the_command_leaves_them_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted_run(tmp_path, "made")
    monkeypatch.chdir(tmp_path)
    for format_ in ("html", "md", "json", "junit", "openmetrics"):
        assert main(["report", f"{MARK}maderun", "--redact", "--format", format_, "-f", "-o", "out"]) == 0
        assert not left((tmp_path / "out").read_text(encoding="utf-8"))


def test_what_we_say_ourselves_stays() -> None:
    """What is told of the sample runs has no name but theirs: all other words are as they were."""
    for kind in ("run", "comparison", "gate"):
        content = msgspec.to_builtins(redacted(every_kind()[kind]))
        findings = content.get("findings") or content.get("comparison", {}).get("findings") or []
        assert not any("name-" in each["title"] for each in findings)
    assert is_own("exposed")
    assert is_own("all_reduce")
    assert is_own("3.5ms")
    assert not is_own("layers.19")
    assert is_own("2.13.0")
    assert not is_own("17-bob")
    assert not is_own("alice")


def test_addresses_are_names() -> None:
    raw = json.loads(as_json.render(every_kind()["run"]))
    raw["findings"] = [{
        "id": "late_rank:10.1.2.3", "severity": "warning", "known_from": "trace",
        "title": "rank 1 waits 3.500 ms for 10.1.2.3, in torch 2.13.0",
        "evidence": {"host": "192.168.0.77", "hosts": ["10.1.2.4"]},
    }]  # fmt: skip
    text = as_json.render(redacted(decoded(json.dumps(raw).encode())))
    assert not any(address in text for address in ("10.1.2.", "192.168"))
    assert "3.500 ms" in text
    assert "torch 2.13.0" in text


WIDE = ("2001:470:1234::1", "2001:db8:0:1:1:1:1:1", "fe80::1", "::1", "fe80::1:2%eth0", "::ffff:10.1.2.3")


@pytest.mark.parametrize("address", WIDE)
def test_addresses_of_ipv6_are_names(address: str) -> None:
    raw = json.loads(as_json.render(every_kind()["run"]))
    raw["findings"] = [{
        "id": f"late_rank:{address}", "severity": "warning", "known_from": "trace",
        "title": f"rank 1 waits 3.500 ms for {address}: [{address}]:29500, {address}:29500, host {address}.",
        "evidence": {"place": f"of {address}"},
    }]  # fmt: skip
    for evidence in ({}, {"host": address}, {"group": address}):
        raw["findings"][0]["evidence"] |= evidence
        (finding,) = json.loads(as_json.render(redacted(decoded(json.dumps(raw).encode()))))["findings"]
        assert not any(part in json.dumps(finding) for part in ("470", "db8", "fe80", "ffff", "::", "eth0"))
        assert "rank 1 waits 3.500 ms for" in finding["title"]


@pytest.mark.parametrize("host", ["10-1-2-3", "17", "2001:470:1234::1", "10.1.2.3", "1.2"])
def test_a_host_of_digits_is_a_name_and_no_figure_is_taken_for_it(host: str) -> None:
    raw = json.loads(as_json.render(every_kind()["run"]))
    raw["findings"] = [{
        "id": "late_rank:dp", "severity": "warning", "known_from": "trace",
        "title": "rank 17 waits 1.2 ms and 17 MiB", "evidence": {"host": host},
    }]  # fmt: skip
    (finding,) = json.loads(as_json.render(redacted(decoded(json.dumps(raw).encode()))))["findings"]
    assert finding["evidence"]["host"] == "host-1"
    assert finding["title"] == "rank 17 waits 1.2 ms and 17 MiB"


@pytest.mark.parametrize("text", ["12:30:45", "at 03:02:01", "0000:1b:00.0", "c10d::add", "aten::add", "a :: b", "1:2"])
def test_what_only_looks_like_an_address_stays(text: str) -> None:
    assert "address" not in Names().sentence(text)
