"""What the analysis and its advice say of every real trace, against a verdict written by hand from raw events.

Each `*.toml` of this folder is one verdict (README.md here says what its tables mean). A check that fails today stands
in the file as `known_wrong` with its reason; once it holds, its entry must go. Truths were measured by `measure.py`.
"""

import re
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from overlapscope.advice.advise import advise
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.result import Analysis, Recommendation
from overlapscope.errors import OverlapScopeError
from overlapscope.ingest.read_run import read_inputs
from tests.conftest import ROOT, shared_file
from tests.support.contradictions import Output, contradictions
from tests.truth.measure import measure

FOLDER = Path(__file__).parent
TRUTHS = {path.stem: tomllib.loads(path.read_text(encoding="utf-8")) for path in sorted(FOLDER.glob("*.toml"))}
LARGE = ("v100_2020", "rocprof_training", "resnet50_pt18")
"""Plain Python reads these for seconds each."""
MEASURED = [
    pytest.param(name, marks=pytest.mark.long) if name in LARGE else name
    for name, truth in TRUTHS.items()
    if "measured" in truth
]
TOLERANCE_MS = 0.011
NS_PER_MS = 1_000_000
LONG_NS = 10_000
"""Interference of shorter kernels is not in the truths."""
BLAMED_SHARE = 0.05
"""A cause of less of the exposed time than this is no claim."""
PARTS = {"window": "window_ns", "comm": "comm_ns", "compute": "compute_ns", "copy_only": "copy_only_ns",
         "overlapped": "overlapped_ns", "exposed": "exposed_comm_ns", "idle": "idle_ns"}  # fmt: skip
Failures = Iterator[tuple[str, str]]


def path_of(truth: dict[str, Any]) -> Path:
    given = truth["input"]
    return ROOT / given if given.startswith(("traces/", "tests/")) else shared_file(given)


@pytest.mark.parametrize("name", TRUTHS)
def test_what_is_said_of_a_trace_is_what_its_raw_events_show(name: str) -> None:
    truth = TRUTHS[name]
    failed = dict(failures(truth, path_of(truth)))
    known = truth.get("known_wrong", {})
    new = {check: why for check, why in failed.items() if check not in known}
    mended = [check for check in known if check not in failed]
    assert not new, f"wrong about {truth['input']}: {new}"
    assert not mended, f"no longer wrong; remove from known_wrong of {name}.toml: {mended}"


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASURED)
def test_a_truth_holds_what_the_raw_events_give(name: str) -> None:
    found = measure(path_of(TRUTHS[name]))
    for where, value in TRUTHS[name]["measured"].items():
        here: Any = found
        for key in where.replace("ascend_pt/", "ascend_pt|").split("/"):
            here = here[int(key)] if isinstance(here, list) else here[key.replace("|", "/")]
        assert here == pytest.approx(value, abs=0.0006), where


def test_the_check_finds_a_claim_that_is_wrong() -> None:
    truth = TRUTHS["traces_baseline"]
    wrong = {**truth, "between": {"0": {"exposed": [0.0, 1.0]}}, "advice": {"must": ["no_such_advice"]}}
    assert {check for check, _ in failures(wrong, path_of(truth))} >= {"between.0.exposed", "must.no_such_advice"}


def failures(truth: dict[str, Any], path: Path) -> Failures:
    """Yield each check that fails, and how."""
    try:
        run = read_inputs([path])
    except OverlapScopeError as error:
        if not truth.get("may_be_refused"):
            yield "read", str(error)
        return
    cross = match_and_align(run)
    analysis = analyze(run, cross)
    given, reasons = advise(run, analysis, cross)
    yield from _figures(truth, analysis)
    yield from _causes(truth, analysis)
    yield from _collectives(truth, analysis)
    yield from _path(truth, analysis)
    yield from _advice(truth, given)
    said_twice = contradictions(Output(run=run, analysis=analysis, advice=given, reasons=reasons))
    yield from ((f"contradiction.{name}", said) for name, said in said_twice)
    named = {each.id for each in analysis.findings}
    yield from (
        (f"finding.{each}", str(named)) for each in truth.get("claims", {}).get("must", ()) if each not in named
    )
    for claim in truth.get("claims", {}).get("must_not", ()):
        if (said := CLAIMS[claim](analysis, given)) is not None:
            yield f"claim.{claim}", said


def _figures(truth: dict[str, Any], analysis: Analysis) -> Failures:
    whole = {str(each.rank): each.whole for each in analysis.ranks}
    for rank, figures in truth.get("whole", {}).items():
        for name, ms in figures.items():
            ns = getattr(whole[rank], PARTS[name]) if rank in whole else None
            if ns is None or abs(ns / NS_PER_MS - ms) > TOLERANCE_MS:
                yield f"whole.{rank}.{name}", f"{ns} ns, by hand {ms} ms"
    for rank, figures in truth.get("between", {}).items():
        for name, (least, most) in figures.items():
            ns = getattr(whole[rank], PARTS[name]) if rank in whole else None
            if ns is None or not least <= ns / NS_PER_MS <= most:
                yield f"between.{rank}.{name}", f"{ns} ns, by hand {least} to {most} ms"
    if "interference" in truth:
        slowed = analysis.ranks[0].interference
        least, most = truth["interference"]["times"]
        long = [each for each in slowed.classes if each.from_ns >= LONG_NS] if slowed else []
        free = sum(each.beside_ns / each.times for each in long)
        times = sum(each.beside_ns for each in long) / free if free else None
        if times is None or not least <= times <= most:
            yield "interference", f"{times}, by hand {least} to {most}"


def _causes(truth: dict[str, Any], analysis: Analysis) -> Failures:
    """Compare shares of exposed and of idle time; several causes may share a band."""
    for table, field, of in (("exposed", "causes", "exposed_comm_ns"), ("idle", "idle_causes", "idle_ns")):
        for each in analysis.ranks:
            bands = truth.get(table, {}).get(str(each.rank), {})
            found = getattr(each.whole, field, None)
            total = getattr(each.whole, of)
            for causes, (least, most) in bands.items():
                share = (
                    None if found is None or not total else sum(found.get(one, 0) for one in causes.split("+")) / total
                )
                if share is None or not least <= share <= most:
                    yield f"{table}.{each.rank}.{causes}", f"{share}, by hand {least} to {most}"


def _collectives(truth: dict[str, Any], analysis: Analysis) -> Failures:
    for each in truth.get("transfer", ()):
        rows = [row for row in analysis.collectives if (row.op, row.bytes) == (each["op"], each["bytes"])]
        known = [
            row.transfer_ns_median for row in rows if row.estimate == "matched" and row.transfer_ns_median is not None
        ]
        if not rows or any(ns / NS_PER_MS > each["most_ms"] for ns in known):
            yield f"transfer.{each['op']}.{each['bytes']}", f"{known} ns, by hand at most {each['most_ms']} ms"


def _path(truth: dict[str, Any], analysis: Analysis) -> Failures:
    lengths = sum(step.length_ns for step in analysis.critical_path.steps)
    for part, (least, most) in truth.get("path", {}).items():
        share = sum(step.parts.get(part, 0) for step in analysis.critical_path.steps) / lengths if lengths else None
        if share is None or not least <= share <= most:
            yield f"path.{part}", f"{share}, by hand {least} to {most}"


def _advice(truth: dict[str, Any], given: list[Recommendation]) -> Failures:
    ids = [each.id for each in given]
    wanted = truth.get("advice", {})
    for each in wanted.get("must", ()):
        if not set(each.split("|")) & set(ids):
            yield f"must.{each}", f"recommended: {ids}"
    for each in wanted.get("must_not", ()):
        if each in ids:
            yield f"must_not.{each}", next(one.title for one in given if one.id == each)
    text = "\n".join("\n".join([one.title, one.verify, *one.apply.values(), *one.assumed]) for one in given)
    for each in wanted.get("must_not_say", ()):
        if (said := re.search(each, text)) is not None:
            yield f"must_not_say.{each}", text[max(0, said.start() - 80) : said.end() + 40]
    first = truth["loss"].get("first")
    if first and (not ids or ids[0] not in first):
        yield "first", f"{ids[:1]}, by hand {first}"


def _late(analysis: Analysis, _: list[Recommendation]) -> str | None:
    return "; ".join(f"rank {each.rank}: {each.held_by}" for each in analysis.skew.stragglers) or None


def _slow_link(analysis: Analysis, given: list[Recommendation]) -> str | None:
    named = [each.title for each in analysis.findings if each.id.startswith("slow_link")]
    return "; ".join([*named, *(each.title for each in given if each.id == "repair_link")]) or None


def _late_launch(analysis: Analysis, _: list[Recommendation]) -> str | None:
    for each in analysis.ranks:
        late = each.whole.causes.get("late_launch", 0)
        if late > BLAMED_SHARE * (each.whole.exposed_comm_ns or 0) and late:
            return f"{late} ns of rank {each.rank}"
    return None


def _exposure(analysis: Analysis, _: list[Recommendation]) -> str | None:
    said = [each.whole.exposed_comm_ns for each in analysis.ranks if each.whole.exposed_comm_ns]
    return f"{said} ns exposed" if said else None


def _path_claimed(analysis: Analysis, _: list[Recommendation]) -> str | None:
    return f"paths of {len(analysis.critical_path.steps)} windows" if analysis.critical_path.steps else None


def _gain(_: Analysis, given: list[Recommendation]) -> str | None:
    said = [each.title for each in given if each.predicted_gain_ns is not None]
    return "; ".join(said) or None


def _odd_step(analysis: Analysis, _: list[Recommendation]) -> str | None:
    return "; ".join(each.title for each in analysis.findings if each.id.startswith("odd_step")) or None


def _hang(analysis: Analysis, _: list[Recommendation]) -> str | None:
    said = [
        each.title
        for each in analysis.findings
        if re.search(r"desync|hang|stuck|behind|stopped", f"{each.id} {each.title}")
    ]
    return "; ".join(said) or None


CLAIMS = {"straggler": _late, "slow_link": _slow_link, "late_launch": _late_launch, "exposure": _exposure,
          "path": _path_claimed, "gain": _gain, "hang": _hang, "odd_step": _odd_step}  # fmt: skip
