"""Horovod timelines: every sum and share against a count of its own, and every way in which such a file is broken."""

import gzip
import json
import random
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.result import Analysis
from overlapscope.errors import InputError
from overlapscope.ingest.read_run import read_inputs
from overlapscope.ingest.registry import find_reader, read_head
from tests.conftest import shared_file
from tests.property.examples import examples
from tests.support.hostile import mutations, odd_documents, run_or_refusal

WAITS = ("WAIT_FOR_DATA", "WAIT_FOR_OTHER_TENSOR_DATA", "QUEUE")
COPIES = ("INIT_FUSION_BUFFER", "MEMCPY_IN_FUSION_BUFFER", "MEMCPY_OUT_FUSION_BUFFER")
MOVES = ("NCCL_ALLREDUCE", "MPI_ALLREDUCE", "GLOO_ALLREDUCE", "NCCL_BCAST", "MPI_CROSS_ALLGATHER", "DDL_ALLREDUCE")
PARTS = ("negotiation", "waiting", "fusion_copy", "transfer", "other", "unaccounted")
MIB = 1 << 20


class Writer:
    """Writes events as timeline.cc does, one after the other, whatever thread they come from."""

    def __init__(self, *, modern: bool = True) -> None:
        self.modern = modern
        self.events: list[str] = []
        self.tensors: dict[str, int] = {}
        if modern:
            self.events += [
                '{"name": "process_name", "ph": "M", "pid": 0, "args": '
                '{"start_time_since_epoch_in_micros":1592860687560103}}',
                '{"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}}',
            ]

    def event(self, tensor: str, phase: str, at: int, name: str = "", args: str = "") -> None:
        if tensor not in self.tensors:
            pid = self.tensors[tensor] = len(self.tensors) + 1
            self.events += [
                f'{{"name": "process_name", "ph": "M", "pid": {pid}, "args": {{"name": "{tensor}"}}}}',
                f'{{"name": "process_sort_index", "ph": "M", "pid": {pid}, "args": {{"sort_index": {pid}}}}}',
            ]
        text = f'{{"ph": "{phase}"' + (f', "name": "{name}"' if phase != "E" else "")
        text += f', "ts": {at}, "pid": {self.tensors[tensor]}' + (', "dur": 0' if phase == "X" else "")
        self.events.append(text + (f', "args": {{{args}}}' if args else "") + "}")

    def mark(self, at: int) -> None:
        self.events.append(f'{{"ph": "i", "name": "CYCLE_START", "ts": {at}, "s": "g"}}')

    def negotiate(self, tensor: str, start: int, end: int, ready: dict[int, int] | None = None) -> None:
        self.event(tensor, "B", start, "NEGOTIATE_ALLREDUCE")
        for rank, at in (ready or {}).items():
            self.event(tensor, "X", at, str(rank))
        self.event(tensor, "E", end)

    def operate(
        self, tensor: str, start: int, activities: list[tuple[str, int, int]], end: int, args: str = ""
    ) -> None:
        self.event(tensor, "B", start, "ALLREDUCE")
        for name, begin, over in activities:
            self.event(tensor, "B", begin, name)
            self.event(tensor, "E", over)
        self.event(tensor, "E", end, args=args)

    def reduce(self, tensor: str, start: int, ready: int, end: int) -> None:
        """One negotiation and a transfer behind it, without a pause."""
        self.negotiate(tensor, start, ready)
        self.operate(tensor, ready, [("NCCL_ALLREDUCE", ready, end)], end)

    def text(self, *, closed: bool | None = None) -> bytes:
        if closed if closed is not None else self.modern:
            return ("[\n" + ",".join(self.events) + "]").encode()
        return ("[\n" + "".join(event + ",\n" for event in self.events)).encode()


def shape(elements: int, dtype: str = "float32") -> str:
    return f'"dtype": "{dtype}", "shape": "[{elements}]"'


def analyzed(content: bytes, tmp_path: Path, name: str = "timeline.json") -> Analysis:
    path = tmp_path / name
    path.write_bytes(content)
    return analyze(read_inputs([path]))


def figures(analysis: Analysis) -> dict[tuple[Any, ...], float]:
    """Return the figures by (subject, name), with the rank behind where there is one."""
    rows = analysis.told["figures"].rows if "figures" in analysis.told else []
    return {
        (row["subject"], row["name"], *([row["rank"]] if row["rank"] is not None else [])): float(row["value"] or 0)
        for row in rows
    }


def counted(events: list[dict[str, Any]]) -> dict[str, Counter[str]]:
    """Sum up whole operations by tensor, from the pairs of events alone."""
    names = {e["pid"]: e["args"]["name"] for e in events if e["ph"] == "M" and "name" in e.get("args", {})}
    pairs: dict[int, list[tuple[int, str, int, int]]] = defaultdict(list)
    opened: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] == "B":
            opened[event["pid"]].append(event)
        elif event["ph"] == "E":
            begun = opened[event["pid"]].pop()
            depth = len(opened[event["pid"]])
            pairs[event["pid"]].append((depth, begun["name"], begun["ts"], event["ts"]))
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for pid, found in pairs.items():
        outer = sorted((start, name, end) for depth, name, start, end in found if depth == 0)
        for (start, name, middle), (begin, operation, end) in zip(outer[::2], outer[1::2], strict=True):
            assert name == f"NEGOTIATE_{operation}"
            inside = [(n, e - s) for depth, n, s, e in found if depth == 1 and begin <= s and e <= end]
            split = {
                "negotiation": middle - start,
                "waiting": sum(d for n, d in inside if n in WAITS),
                "fusion_copy": sum(d for n, d in inside if n in COPIES),
                "transfer": sum(d for n, d in inside if n in MOVES),
                "other": sum(d for n, d in inside if n not in (*WAITS, *COPIES, *MOVES)),
            }
            split["unaccounted"] = end - start - sum(split.values())
            sums[names[pid]].update(split | {"total": end - start, "calls": 1})
    return sums


def random_timeline(seed: int, *, modern: bool) -> Writer:
    """Tensors in random order, each through operations with random activities."""
    random_ = random.Random(seed)
    writer = Writer(modern=modern)
    clock = 1000
    for _ in range(random_.randint(1, 40)):
        tensor = f"grad_{random_.randint(0, 5)}"
        if random_.random() < 0.3:
            writer.mark(clock)
        start = clock
        middle = start + random_.randint(0, 5000)
        writer.negotiate(tensor, start, middle, {rank: start + rank for rank in range(random_.randint(0, 3))})
        begin = at = middle + random_.randint(0, 300)
        activities = []
        for _ in range(random_.randint(0, 6)):
            at += random_.randint(0, 30)
            over = at + random_.randint(0, 4000)
            activities.append((random_.choice([*WAITS, *COPIES, *MOVES, "ALLOCATE_OUTPUT", "INIT_NCCL"]), at, over))
            at = over
        clock = at + random_.randint(0, 50)
        writer.operate(tensor, begin, activities, clock, shape(1024) if random_.random() < 0.5 else "")
    return writer


@pytest.mark.parametrize("modern", [False, True])
@pytest.mark.parametrize("seed", range(8))
def test_every_sum_and_share_is_that_of_the_events(seed: int, modern: bool, tmp_path: Path) -> None:
    writer = random_timeline(seed, modern=modern)
    expected = counted([json.loads(event) for event in writer.events])
    by_name = figures(analyzed(writer.text(), tmp_path))
    whole: Counter[str] = Counter()
    for tensor, sums in expected.items():
        whole.update(sums)
        assert by_name[tensor, "calls"] == sums["calls"]
        for part in PARTS:
            assert by_name[tensor, f"{part}_us"] == sums[part]
            if sums["total"]:
                assert by_name[tensor, f"{part}_share"] == sums[part] / sums["total"]
    assert by_name["all tensors", "total_us"] == whole["total"]
    assert sum(by_name["all tensors", f"{part}_us"] for part in PARTS) == whole["total"]
    for part in PARTS:
        assert by_name["all tensors", f"{part}_share"] == whole[part] / whole["total"]


def test_the_real_sample_has_two_whole_negotiations_and_no_share() -> None:
    path = shared_file("horovod/smdebug_horovod_timeline_small.json")
    events = json.loads(path.read_text())
    begun = {e["pid"]: e["ts"] for e in events if e["ph"] == "B"}
    ended = {e["pid"]: e["ts"] for e in events if e["ph"] == "E"}
    names = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    expected = {names[pid]: ended[pid] - begun[pid] for pid in ended}
    analysis = analyze(read_inputs([path]))
    by_name = figures(analysis)
    alone = {key[0]: value for key, value in by_name.items() if key[1] == "negotiation_alone_us"}
    assert alone == {**expected, "all tensors": sum(expected.values())}
    assert sum(expected.values()) == 681_806
    assert not [key for key in by_name if str(key[1]).endswith("_share")]
    source = analysis.sources[0]
    assert (source.format, source.events, source.dropped, source.truncated) == ("horovod", len(events), 0, False)
    ticks_outside = sum(e["ph"] == "X" and e["pid"] not in begun for e in events)  # one inside is written belatedly
    assert f"{len(begun) - len(ended)} negotiations or operations without an end were left out" in source.warnings
    assert any(warning.startswith(f"{ticks_outside} ready ticks") for warning in source.warnings)


def test_a_tick_with_a_duration_is_counted_and_adds_to_nothing(tmp_path: Path) -> None:
    """As a converter of SageMaker Debugger wrote them: names on ends, all ticks hours long."""
    text = b"""[
{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 1592860687560103}},
{"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "dense"}},
{"name": "NEGOTIATE_ALLREDUCE", "pid": 1, "ph": "B", "ts": 8440608},
{"name": "4", "pid": 1, "ph": "X", "ts": 8440610, "dur": 812355471858},
{"name": "5", "pid": 1, "ph": "X", "ts": 8781511, "dur": 812355131585},
{"name": "", "pid": 1, "ph": "E", "ts": 8781513},
{"name": "CYCLE_START", "pid": 1, "ph": "i", "ts": 8491490, "s": "g"}
]
"""
    analysis = analyzed(text, tmp_path)
    assert figures(analysis)["dense", "negotiation_alone_us"] == 8781513 - 8440608
    assert any("2 ready ticks have a duration (up to 812355471858 us)" in each for each in analysis.sources[0].warnings)


@pytest.mark.parametrize("seed", [0, 1])
def test_a_file_never_closed_gives_the_same_figures_as_a_closed_one(seed: int, tmp_path: Path) -> None:
    writer = random_timeline(seed, modern=False)
    opened = analyzed(writer.text(closed=False), tmp_path, "open.json")
    closed = analyzed(writer.text(closed=True), tmp_path, "closed.json")
    assert figures(opened) == figures(closed)
    assert not opened.sources[0].truncated
    assert any("not closed" in warning for warning in opened.sources[0].warnings)
    assert not any("not closed" in warning for warning in closed.sources[0].warnings)


def test_a_file_cut_in_an_event_tells_what_precedes_it(tmp_path: Path) -> None:
    writer = Writer()
    writer.reduce("a", 0, 10, 30)
    writer.negotiate("b", 40, 50)
    text = writer.text()
    analysis = analyzed(text[: text.rindex(b'"ts": 50')], tmp_path)
    assert analysis.sources[0].truncated
    assert figures(analysis)["a", "transfer_us"] == 20
    assert ("b", "calls") not in figures(analysis)
    assert "1 negotiations or operations without an end were left out" in analysis.sources[0].warnings


def test_a_name_with_quotes_is_mended(tmp_path: Path) -> None:
    writer = Writer(modern=False)
    writer.reduce('model"x"/grad', 0, 12, 30)
    analysis = analyzed(writer.text(), tmp_path)
    assert figures(analysis)['model"x"/grad', "transfer_us"] == 18
    assert analysis.sources[0].repaired == 1


@pytest.mark.slow
def test_a_timeline_larger_than_a_piece_is_read_whole(tmp_path: Path) -> None:
    """Later versions write all events on one line; 30,000 operations take several pieces."""
    writer = Writer()
    for call in range(30_000):
        at, tensor = 100 * call, f"t{call % 7}"
        writer.negotiate(tensor, at, at + 40)
        writer.operate(tensor, at + 41, [("NCCL_ALLREDUCE", at + 42, at + 90)], at + 95)
    text = writer.text()
    assert len(text) > 5 * MIB
    assert len(max(text.split(b"\n"), key=len)) > 4 * MIB
    plain, packed = analyzed(text, tmp_path), analyzed(gzip.compress(text), tmp_path, "timeline.gz")
    assert figures(plain) == figures(packed)
    assert figures(plain)["all tensors", "calls"] == 30_000
    assert figures(plain)["all tensors", "transfer_us"] == 30_000 * 48
    assert figures(plain)["all tensors", "unaccounted_us"] == 30_000 * 7


def test_the_rank_that_comes_alone_in_a_later_cycle_is_last(tmp_path: Path) -> None:
    writer = Writer()
    for call in range(30):
        at = 100_000 * call
        late = 2 if call < 20 else 1
        ready = {rank: at + rank for rank in range(4) if rank != late}
        writer.negotiate("t", at, at + 40_010, {**ready, late: at + 40_000})
        writer.operate("t", at + 41_000, [("NCCL_ALLREDUCE", at + 41_000, at + 42_000)], at + 42_000)
    analysis = analyzed(writer.text(), tmp_path)
    by_name = figures(analysis)
    assert by_name["negotiations", "with_all_ticks"] == 30
    assert (by_name["negotiations", "times_last", 2], by_name["negotiations", "times_last", 1]) == (20, 10)
    assert by_name["negotiations", "lead_us", 2] == 20 * (40_000 - 3)
    found = [each for each in analysis.findings if each.id.startswith("horovod_negotiation")]
    assert len(found) == 1
    assert found[0].evidence["rank"] == 2
    assert "rank 2 alone was last in 20 of 30" in found[0].title


def test_the_order_of_ticks_within_a_cycle_blames_nobody(tmp_path: Path) -> None:
    """Rank 0 takes the requests of a cycle rank by rank: the highest rank's tick is always the last."""
    writer = Writer()
    tensors = [f"t{number}" for number in range(50)]
    for call in range(20):
        at = 1_000_000 * call
        for tensor in tensors:
            writer.event(tensor, "B", at, "NEGOTIATE_ALLREDUCE")
        for rank in range(8):
            for number, tensor in enumerate(tensors):
                writer.event(tensor, "X", at + 300 * rank + 3 * number, str(rank))
        for tensor in tensors:
            writer.event(tensor, "E", at + 3_000)
            writer.operate(tensor, at + 3_100, [("NCCL_ALLREDUCE", at + 3_100, at + 3_200)], at + 3_300)
    by_name = figures(analyzed(writer.text(), tmp_path))
    assert by_name["negotiations", "with_all_ticks"] == 20 * 50
    assert not [key for key in by_name if key[1] == "times_last"]


def test_negotiations_that_lost_ticks_are_not_judged(tmp_path: Path) -> None:
    writer = Writer()
    writer.negotiate("t", 0, 50_000, {0: 1, 1: 2, 2: 40_000})
    writer.operate("t", 50_000, [], 50_001)
    writer.negotiate("t", 100_000, 150_000, {0: 100_001, 2: 140_000})
    writer.operate("t", 150_000, [], 150_001)
    by_name = figures(analyzed(writer.text(), tmp_path))
    assert by_name["negotiations", "with_all_ticks"] == 1
    assert by_name["negotiations", "times_last", 2] == 1


def slow_negotiation(scale: int) -> Writer:
    """Negotiate 16 times as long as transferring, without ticks."""
    writer = Writer()
    for call in range(30):
        at = 1000 * scale * call
        writer.negotiate("t", at, at + 800 * scale)
        writer.operate("t", at + 800 * scale, [("MPI_ALLREDUCE", at + 810 * scale, at + 860 * scale)], at + 870 * scale)
    return writer


def test_without_ticks_the_finding_says_that_the_late_rank_is_not_known(tmp_path: Path) -> None:
    analysis = analyzed(slow_negotiation(10).text(), tmp_path)
    found = next(each for each in analysis.findings if each.id.startswith("horovod_negotiation"))
    assert "16.0 times" in found.title
    assert "rank" not in found.evidence
    assert "HOROVOD_CACHE_CAPACITY=0" in found.title
    assert any("ready ticks of all ranks" in warning for warning in analysis.sources[0].warnings)


def test_negotiations_within_the_cycle_time_blame_nobody(tmp_path: Path) -> None:
    assert analyzed(slow_negotiation(1).text(), tmp_path).findings == []


def batch(writer: Writer, tensors: list[str], at: int, *, copy: int, transfer: int, elements: int) -> None:
    """One fused batch, each tensor stamped 2 us after the other."""
    stamps = {tensor: 2 * number for number, tensor in enumerate(tensors)}
    for tensor, late in stamps.items():
        writer.negotiate(tensor, at + late, at + 200 + late)
        writer.event(tensor, "B", at + 300 + late, "ALLREDUCE")
    clock = at + 1000
    copies = [("MEMCPY_IN_FUSION_BUFFER", copy)] if len(tensors) > 1 else []
    for name, length in [*copies, ("NCCL_ALLREDUCE", transfer), *[("MEMCPY_OUT_FUSION_BUFFER", copy) for _ in copies]]:
        for tensor, late in stamps.items():
            writer.event(tensor, "B", clock + late, name)
        for tensor, late in stamps.items():
            writer.event(tensor, "E", clock + length + late)
        clock += length + 2 * len(tensors)
    for tensor, late in stamps.items():
        writer.event(tensor, "E", clock + 10 + late, args=shape(elements))


def test_tensors_that_move_together_are_one_transfer(tmp_path: Path) -> None:
    writer = Writer()
    for call in range(4):
        at = 100_000 * call
        batch(writer, [f"a{n}" for n in range(40)], at, copy=100, transfer=5_000, elements=1 << 20)
        batch(writer, ["lone"], at + 50_000, copy=0, transfer=900, elements=16)
    by_name = figures(analyzed(writer.text(), tmp_path))
    assert by_name["transfers", "transfers"] == 8
    assert by_name["transfers", "of_one_tensor"] == 4
    assert by_name["transfers", "tensors_mean"] == 41 * 4 / 8
    assert by_name["transfers", "duration_us"] == 4 * (5_000 + 2 * 39) + 4 * 900
    # The first time a tensor is seen its size is not known yet.
    assert (by_name["transfers", "of_known_size"], by_name["transfers", "below_1_mib"]) == (6, 3)
    assert by_name["a3", "output_bytes"] == 4 * MIB


def test_tensors_whose_transfers_end_apart_are_no_batch(tmp_path: Path) -> None:
    writer = Writer()
    for tensor in ("a", "b"):
        writer.negotiate(tensor, 0, 10)
        writer.event(tensor, "B", 20, "ALLREDUCE")
    for tensor in ("a", "b"):
        writer.event(tensor, "B", 30, "NCCL_ALLREDUCE")
    for tensor, end in (("a", 1000), ("b", 9000)):
        writer.event(tensor, "E", end)
        writer.event(tensor, "E", end + 1)
    by_name = figures(analyzed(writer.text(), tmp_path))
    assert by_name["transfers", "unclear"] == 1
    assert ("transfers", "transfers") not in by_name
    assert (by_name["a", "transfer_us"], by_name["b", "transfer_us"]) == (970, 8970)


def test_copies_that_take_longer_than_the_transfer_are_a_finding(tmp_path: Path) -> None:
    writer = Writer()
    for call in range(25):
        batch(writer, ["a", "b"], 100_000 * call, copy=3_000, transfer=2_000, elements=1 << 22)
    analysis = analyzed(writer.text(), tmp_path)
    found = next(each for each in analysis.findings if each.id.startswith("horovod_fusion_copies"))
    assert found.evidence["fusion_copy_us"] == 25 * 2 * 2 * 3_000
    assert "3.0 times" in found.title


def test_many_tiny_transfers_of_one_tensor_are_a_finding_and_large_ones_are_not(tmp_path: Path) -> None:
    tiny, large = Writer(), Writer()
    for call in range(130):
        batch(tiny, ["t"], 10_000 * call, copy=0, transfer=2_000, elements=1000)
        batch(large, ["t"], 10_000 * call, copy=0, transfer=2_000, elements=10 * MIB)
    ids = [each.id for each in analyzed(tiny.text(), tmp_path, "tiny").findings]
    assert [each.split(":")[0] for each in ids] == ["horovod_unfused"]
    assert not analyzed(large.text(), tmp_path, "large").findings


def test_operations_that_end_before_they_begin_are_counted_and_left_out(tmp_path: Path) -> None:
    writer = Writer()
    writer.negotiate("t", 100, 50)
    writer.operate("t", 60, [("NCCL_ALLREDUCE", 90, 70)], 95)
    writer.reduce("u", 0, 10, 20)
    analysis = analyzed(writer.text(), tmp_path)
    by_name = figures(analysis)
    assert by_name["all tensors", "total_us"] == 20
    assert ("t", "calls") not in by_name
    assert any(each.startswith("2 operations or negotiations whose times") for each in analysis.sources[0].warnings)


def test_an_end_that_is_lost_costs_its_operation_alone(tmp_path: Path) -> None:
    writer = Writer()
    writer.negotiate("t", 0, 10)
    writer.event("t", "B", 10, "ALLREDUCE")
    writer.event("t", "B", 11, "NCCL_ALLREDUCE")
    writer.event("t", "E", 30, args=shape(8))  # the end of the activity is missing
    writer.negotiate("t", 100, 110)
    writer.operate("t", 120, [("NCCL_ALLREDUCE", 121, 140)], 150)
    by_name = figures(analyzed(writer.text(), tmp_path))
    assert (by_name["t", "calls"], by_name["t", "transfer_us"], by_name["t", "total_us"]) == (1, 19, 50)


def test_a_timeline_that_begins_inside_an_operation_counts_from_the_next_one_on(tmp_path: Path) -> None:
    writer = Writer()
    writer.event("t", "B", 0, "NCCL_ALLREDUCE")
    writer.event("t", "E", 20)
    writer.event("t", "E", 25, args=shape(8))
    writer.reduce("t", 100, 110, 130)
    analysis = analyzed(writer.text(), tmp_path)
    assert figures(analysis)["t", "transfer_us"] == 20
    assert "1 ends without a beginning" in analysis.sources[0].warnings


@pytest.mark.parametrize("args", ['"dtype": 5, "shape": "[8]"', shape(8, "odd"), '"dtype": "float32", "shape": "8"'])
def test_an_output_of_unknown_type_or_shape_has_no_size(args: str, tmp_path: Path) -> None:
    writer = Writer()
    writer.negotiate("t", 0, 10)
    writer.operate("t", 10, [("NCCL_ALLREDUCE", 10, 30)], 30, args)
    assert ("t", "output_bytes") not in figures(analyzed(writer.text(), tmp_path))


def test_it_shows_no_overlap_and_no_rank(tmp_path: Path) -> None:
    analysis = analyzed(random_timeline(1, modern=True).text(), tmp_path)
    assert analysis.ranks == []
    assert analysis.collectives == []


@pytest.mark.parametrize(
    "text",
    [
        b"[\n",
        b'[{"ph": "i", "name": "CYCLE_START", "ts": 0, "s": "g"}]',
        b'[{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": "x", "pid": 1}]',
        b'[{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": true}]',
    ],
)
def test_a_timeline_of_no_tensor_is_refused(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=r"timeline\.json"):
        read_inputs([path])


@pytest.mark.parametrize(
    ("content", "known_as"),
    [
        (random_timeline(3, modern=True).text(), "horovod"),
        (random_timeline(3, modern=False).text(), "horovod"),
        (b'[{"ph": "X", "name": "NEGOTIATE_ALLREDUCE_x", "cat": "kernel", "ts": 1, "dur": 2}]', "kineto"),
        (b'{"traceEvents": [{"ph": "B", "name": "NEGOTIATE_ALLREDUCE", "ts": 1, "pid": 2}]}', "kineto"),
        (b'[{"name": "process_name", "ph": "M", "pid": 0, "args": {"start_time_since_epoch_in_micros": 5}}]', "kineto"),
    ],
)
def test_only_horovods_own_files_are_claimed(content: bytes, known_as: str, tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_bytes(content)
    reader = find_reader(read_head(path))
    assert reader is not None
    assert reader.format == known_as


def check_sums(content: bytes) -> None:
    """Figures of a file of this content add up, or it is refused."""
    run = run_or_refusal(content)
    if run is None:
        return
    by_name = figures(analyze(run))
    for subject, name in {key[:2] for key in by_name}:
        if name == "total_us":
            parts = [by_name[subject, f"{part}_us"] for part in PARTS]
            assert min(parts) >= 0
            assert sum(parts) == by_name[subject, name]


@pytest.mark.slow
@examples(200)
@given(data=st.data(), seed=st.integers(0, 5), modern=st.booleans())
def test_any_change_of_the_text_gives_figures_that_add_up_or_a_refusal(
    data: st.DataObject, seed: int, modern: bool
) -> None:
    check_sums(data.draw(mutations(random_timeline(seed, modern=modern).text())))


@pytest.mark.slow
@examples(200)
@given(data=st.data(), seed=st.integers(0, 5))
def test_any_value_in_any_place_gives_figures_that_add_up_or_a_refusal(data: st.DataObject, seed: int) -> None:
    events = [json.loads(event) for event in random_timeline(seed, modern=True).events]
    check_sums(json.dumps(data.draw(odd_documents(events))).encode())
