"""torch.compile's splitting of DDP's graph is found from its marks; then no cap is replayed, and else it is."""

import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import advise
from overlapscope.analysis.analyze import analyze
from overlapscope.ingest.parsing.fact_tables import fact_table
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.columns import Annotations
from overlapscope.timeline.names import NameTable
from overlapscope.timeline.operations import COMPILED
from overlapscope.timeline.run import Run
from overlapscope.whatif.ddp.ddp_predict import predict_ddp
from overlapscope.whatif.ddp.ddp_recording import ddp_case_of_run
from tests.support.ddp_cases import IN_ONE, recorded
from tests.support.writers.kineto import TORCH_2024, Event, write


def compiled(*graphs: int, outer: bool = False) -> Run:
    """Return a recording of DDP in which every step ran compiled regions, each with so many graphs, one after another.

    With `outer` they all ran inside another region, which called no graph itself: DDP's own frame.
    """
    run = recorded(IN_ONE)
    ranks = {}
    for rank, each in run.ranks.items():
        marks: list[tuple[str, int, int]] = []
        for at, count in enumerate(graphs):
            begin = 1000 * (1 + 100 * at)
            marks.append((f"Torch-Compiled Region: {at + 1}/0", begin, begin + 90_000))
            inside = (begin + 1000 * (1 + graph) for graph in range(count))
            marks += [("CompiledFunction", start, start + 900) for start in inside]
        if outer:
            marks.append(("Torch-Compiled Region: 0/0", 500, 100_000 * (1 + len(graphs))))
        rows = [
            {"recording": 0, "lane": 0, "name": name, "start_ns": start + begin, "end_ns": start + end}
            for start in each.steps.start_ns.tolist()
            for name, begin, end in marks
        ]
        names = NameTable(each.names)
        notes = fact_table(Annotations, rows, names)
        ranks[rank] = replace(each, annotations=notes, names=tuple(names.to_list()))
    return replace(run, ranks=ranks)


def noted(run: Run, *, splits: bool) -> Run:
    ranks = {
        rank: replace(each, recorded={**each.recorded, "ddp": {**each.recorded["ddp"], "compile_splits": splits}})
        for rank, each in run.ranks.items()
    }
    return replace(run, ranks=ranks)


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [compiled(4), compiled(1, 2), compiled(2, outer=True), noted(recorded(IN_ONE), splits=True)],
    ids=["one", "of two", "inside DDP's", "noted"],
)
def test_a_region_of_several_graphs_leaves_caps_alone_and_says_why(run: Run) -> None:
    result = predict_ddp(ddp_case_of_run(run), [1.0, 4.0])
    assert result.verdict == "insufficient_data"
    assert "DDPOptimizer" in result.reasons[0]
    assert "optimize_ddp = False" in result.reasons[0]
    caps = {each.knobs.get("bucket_cap_mb") for each in result.scenarios}
    assert caps == {result.baseline.knobs["bucket_cap_mb"]}
    assert any("link_speed" in each.knobs for each in result.scenarios)
    found, reasons = advise(run, analyze(run))
    assert {each.id for each in found} == {"pausing_host"}, "nothing is recorded at the end of these steps"
    assert "DDPOptimizer" in reasons[0]


@pytest.mark.slow
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(recorded(IN_ONE), id="eager"),
        pytest.param(compiled(1), id="one graph"),
        pytest.param(compiled(1, 1, 1), id="graph breaks"),
        pytest.param(compiled(1, 1, outer=True), id="inside DDP's"),
        pytest.param(noted(recorded(IN_ONE), splits=False), id="noted"),
    ],
)
def test_whole_graphs_and_graph_breaks_are_replayed(run: Run) -> None:
    result = predict_ddp(ddp_case_of_run(run), [1.0, 4.0], search=False)
    assert result.verdict == "change"
    assert {each.knobs.get("bucket_cap_mb") for each in result.scenarios} >= {1.0, 4.0}


def test_a_trace_keeps_the_marks_of_compiled_graphs_and_no_other_operation(tmp_path) -> None:  # type: ignore[no-untyped-def]
    names = ["Torch-Compiled Region: 0/0", "CompiledFunction", "CompiledFunctionBackward", "aten::mm"]
    names.append("autograd::engine::evaluate_function: CompiledFunctionBackward")
    events = [
        Event(sort="cpu_op", name=each, start_ns=1_000_000 * at, duration_ns=500_000)
        for at, each in enumerate(names, 1)
    ]
    file = tmp_path / "rank0.json"
    file.write_bytes(write(events, TORCH_2024))
    timeline = next(iter(read_inputs([file]).ranks.values()))
    kept = [timeline.names[code] for code in timeline.annotations.name.tolist()]
    assert sorted(kept) == sorted(names[:2])
    assert [bool(COMPILED.match(each)) for each in names] == [True, True, False, False, False]
