"""`report --redact`: recognisable words, planted wherever a name may stand, are left in no byte of any format."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.compare.collective_changes import OUTSIDE
from overlapscope.analysis.compare.compare import compare
from overlapscope.analysis.compare.history import History, history
from overlapscope.analysis.compare.measured_run import measure_run
from overlapscope.analysis.exposure.exposed_causes import CAUSES
from overlapscope.analysis.graph.walk import PARTS
from overlapscope.analysis.job_step.attribution import COMPUTE, COPY, EXPOSED, IDLE, IDLE_OR_COPIES, REMAINDER
from overlapscope.analysis.job_step.metrics import METRICS
from overlapscope.analysis.stragglers.host_cause import SHARED_CORES
from overlapscope.analysis.stragglers.straggler_cause import STRAGGLER_CAUSES
from overlapscope.cli.main import main
from overlapscope.errors import InputError
from overlapscope.gate.policy import Policy
from overlapscope.gate.verdict import Gate, judge
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.registry import BUILT_IN_READERS
from overlapscope.report.formats import json as as_json
from overlapscope.report.formats.github import annotations
from overlapscope.report.redact import KNOWN, redacted
from overlapscope.report.sheet import gate_text
from overlapscope.report.sheet.document import Document, decoded
from overlapscope.report.text.cross_rank import WORDS as WORDS_OF_EVIDENCE
from overlapscope.timeline.dimensions import BACKWARD, CONTEXT, DATA, EXPERT, FORWARD, OPTIMIZER, PIPELINE, TENSOR
from overlapscope.timeline.facts import ANSWERS, FACT_TABLES, MESSAGE_KINDS, SIDES
from overlapscope.timeline.run import Run
from tests.conftest import ROOT
from tests.unit.report.test_redact import all_formats
from tests.unit.report.test_report import documents

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


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Yield every place of a document that holds a text: what holds it, and where there."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inside:
        if isinstance(each, str):
            yield value, name
        else:
            yield from places(each)


def objects(value: Any) -> Iterator[dict[str, Any]]:
    """Yield every object of a document."""
    if isinstance(value, dict):
        yield value
    for each in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from objects(each)


@pytest.mark.slow
@pytest.mark.parametrize("is_whole", [False, True])
@given(word=WORDS, start=st.integers(0, 12))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_word_anywhere_in_a_document_is_left_nowhere(is_whole: bool, word: str, start: int) -> None:
    """Titles, evidence, reasons and whatever else: nothing has to know that it is a name."""
    for document in every_kind().values():
        edited = json.loads(as_json.render(document))
        planted = 0
        shapes = count(start)
        for inside, at in list(places(edited)):
            before, shape = inside[at], SHAPES[next(shapes) % len(SHAPES)](word)
            inside[at] = shape if is_whole else f"{before}:{shape}" if at in ("name", "id") else f"{before} {shape}"
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


@given(word=WORDS, start=st.integers(0, 12))
@settings(max_examples=4, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_word_that_is_a_key_is_left_nowhere(word: str, start: int) -> None:
    """Modules are keys, and so are fields of evidence that nobody has heard of."""
    for document in every_kind().values():
        edited = json.loads(as_json.render(document))
        shapes = count(start)
        for each in list(objects(edited)):
            for value in list(each.values())[:1]:
                each[SHAPES[next(shapes) % len(SHAPES)](word)] = value
        found = decoded(json.dumps(edited).encode())
        assert left(as_json.render(found)) or not isinstance(document, Gate | History), "a test that cannot fail"
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
    side = [measure_run(run, f"{MARK}/{seed}")]
    found = (analyze(run), compare(side, side), judge(side, side, Policy()), history(side * 3))
    assert any(each.severity == "warning" for each in found[0].findings)
    for document in found:
        assert left(as_json.render(document)), "a test that cannot fail"
        for name, text in all_formats(redacted(document)).items():
            assert not left(text), (name, text[max(0, text.casefold().find(MARK) - 80) :][:160])


def test_the_gate_says_no_name_in_its_text_and_in_annotations(tmp_path: Path) -> None:
    run = planted_run(tmp_path, "gate")
    side = [measure_run(run, f"{MARK}/gate")]
    gate = judge(side, side, Policy(budgets={"exposed_comm_ns": 1}))
    assert gate.exit_code == 1
    assert left(gate_text.render(gate) + as_json.render(gate)), "a test that cannot fail"
    hidden = redacted(gate)
    assert not left(gate_text.render(hidden))
    assert annotations(hidden)
    assert not left("".join(annotations(hidden)))


@pytest.mark.slow
def test_the_command_leaves_them_nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted_run(tmp_path, "made")
    monkeypatch.chdir(tmp_path)
    for format_ in ("html", "md", "json", "junit", "openmetrics"):
        assert main(["report", f"{MARK}maderun", "--redact", "--format", format_, "-f", "-o", "out"]) == 0
        assert not left((tmp_path / "out").read_text(encoding="utf-8"))


PAGES = [each.stem for name in ("findings", "advice") for each in (ROOT / "docs" / name).glob("[a-z]*.md")]


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("kind_of_id", PAGES),
        ("format", [each.format for each in BUILT_IN_READERS]),
        ("held_by", [*STRAGGLER_CAUSES, SHARED_CORES]),
        ("evidence{}", WORDS_OF_EVIDENCE),
        ("causes{}", CAUSES),
        ("parts{}", PARTS),
        ("Part.name", [COMPUTE, EXPOSED, COPY, IDLE, IDLE_OR_COPIES, REMAINDER, OUTSIDE]),
        ("Metric.name", [each.name for each in METRICS]),
        ("told{}", FACT_TABLES),
        ("kind", MESSAGE_KINDS),
        ("side", SIDES),
        ("gpu_direct", ANSWERS),
        ("dimension", [DATA, TENSOR, PIPELINE, EXPERT, CONTEXT]),
        ("phase", [FORWARD, BACKWARD, OPTIMIZER]),
        ("op", ["all_reduce", "_all_gather_base", "reduce_scatter", "send_recv", "broadcast", "unknown"]),
        ("dtype", ["float32", "bfloat16", "c10::Half", "int8", "float8_e4m3fn"]),
        ("algorithm", ["RING", "NVLS_TREE", "COLLNET_DIRECT", "MESH-RING"]),
        ("transport", ["P2P/CUMEM", "SHM/direct/direct", "NET/IB/0/GDRDMA", "NET/AWS Libfabric"]),
        ("library", ["NCCL 2.21.5+cuda12.4"]),
        ("host_op", ["aten::copy_", "Memcpy DtoH (Device -> Pageable)", "nccl:all_reduce"]),
        ("fingerprint", ["NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "AMD Instinct MI300X", "cpu", "nccl",
                         "mixed", "NVIDIA RTX PRO 6000 Blackwell Server Edition", "2.13.0+cpu", "2.9.1+cu128"]),
        ("identity", ["data 8, tensor 2", "25", "[1, 25]", "True", "bfloat16"]),
        ("key", ["world_size", "torch_version", "ddp.bucket_cap_bytes", "recording.mode", "environment.NCCL_ALGO"]),
    ],
)  # fmt: skip
def test_what_names_nobody_stays(field: str, words: Iterable[str]) -> None:
    assert [each for each in words if not KNOWN[field].fullmatch(each)] == []


@pytest.mark.parametrize(
    ("field", "words"),
    [
        ("fingerprint", ["2.13.0+git1a2b3c4", "10.1.2.3", "ACME-9000", "alice", "H100 of alice"]),
        ("identity", ["mlx5_0", "/opt/acme", "Ring"]),
        ("key", ["environment.ACME_TOKEN", "ddp.alice"]),
        ("op", ["all_reduce_alice"]),
        ("host_op", ["acme::copy_", "nccl_acme"]),
        ("evidence{}", ["alice", "wait_ns_alice"]),
        ("kind_of_id", ["17-bob", "late_alice"]),
        ("group", ["10.1.2.3", "alice"]),
    ],
)
def test_what_may_name_somebody_goes(field: str, words: Sequence[str]) -> None:
    assert [each for each in words if KNOWN[field].fullmatch(each)] == []


def test_findings_stay_with_their_kind_severity_and_figures() -> None:
    for kind in ("run", "comparison", "gate"):
        document, hidden = (msgspec.to_builtins(each) for each in (every_kind()[kind], redacted(every_kind()[kind])))
        ours, theirs = ((each.get("comparison") or each)["findings"] for each in (document, hidden))
        for before, after in zip(ours, theirs, strict=True):
            assert (before["id"].split(":")[0], before["severity"]) == (after["id"].split(":")[0], after["severity"])
            assert before["evidence"].keys() == after["evidence"].keys()
            assert after["title"].startswith(before["id"].split(":")[0].replace("_", " "))
            assert "name-" not in after["title"]


def finding_of(id_: str, evidence: dict[str, Any]) -> dict[str, Any]:
    """Return a finding as it stands in the redacted JSON."""
    raw = json.loads(as_json.render(every_kind()["run"]))
    title = "rank 1 waits 3.500 ms for 10.1.2.3, [fe80::1]:29500, /home/alice, in torch 2.13.0"
    raw["findings"] = [{"id": id_, "severity": "warning", "known_from": "trace", "title": title, "evidence": evidence}]
    (found,) = json.loads(as_json.render(redacted(decoded(json.dumps(raw).encode()))))["findings"]
    return dict(found)


def test_addresses_are_names() -> None:
    found = finding_of("late_rank:10.1.2.3", {"host": "192.168.0.77", "hosts": ["10.1.2.4"], "wait_ns": 3_500_000})
    assert not any(address in json.dumps(found) for address in ("10.1.2.", "192.168", "2.13.0", "alice"))
    assert found["title"] == "late rank (name-1): wait 3.500 ms; host host-1; hosts host-2"
    assert found["evidence"] == {"host": "host-1", "hosts": ["host-2"], "wait_ns": 3_500_000}


WIDE = (
    "2001:470:1234::1", "2001:470:1234:1:1:1:1:1", "2001:db8:0:1:1:1:1:1", "fe80::1", "::1", "fe80::1:2%eth0",
    "::ffff:10.1.2.3",
)  # fmt: skip


@pytest.mark.parametrize("address", WIDE)
def test_addresses_of_ipv6_are_names(address: str) -> None:
    evidence: dict[str, Any] = {"place": f"of {address}"}
    for more in ({}, {"host": address}, {"group": address}):
        found = finding_of(f"late_rank:{address}", evidence := evidence | more)
        assert not any(part in json.dumps(found) for part in ("470", "db8", "fe80", "ffff", "::", "eth0"))
        assert found["title"].startswith("late rank (")


@pytest.mark.parametrize("host", ["10-1-2-3", "17", "2001:470:1234::1", "10.1.2.3", "1.2"])
def test_a_host_of_digits_is_a_name_and_no_figure_is_taken_for_it(host: str) -> None:
    found = finding_of("late_rank:rank17", {"host": host, "rank": 17, "wait_ms": 1.2})
    assert found["evidence"] == {"host": "host-1", "rank": 17, "wait_ms": 1.2}
    assert found["title"] == "late rank (rank17): rank 17; wait ms 1.2; host host-1"
