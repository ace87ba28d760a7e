"""No output holds two statements that exclude each other: generated jobs of any kind, and what is damaged in them."""

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.advice.advise import advise
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.errors import InputError
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.run import Run
from overlapscope.whatif.predict import predict_recording
from overlapscope.whatif.step_graph.graph_predict import ReplayOptions
from tests.conftest import ROOT, shared_file
from tests.property.examples import examples
from tests.property.synthetic import Fault, Job, Layout, run_of, simulate, write_kineto
from tests.property.synthetic.job import MS, US
from tests.support.contradictions import FIGURES, SENTENCES, Output, contradictions

SIZES = ((1, 1, 1, 1), (1, 1, 2, 1), (2, 1, 1, 1), (1, 2, 1, 1), (2, 1, 2, 1), (1, 1, 4, 2), (1, 1, 4, 1))
LAYOUTS = [Layout(tp=tp, pp=pp, dp=dp, ep=ep) for tp, pp, dp, ep in SIZES]


@st.composite
def faults(draw: st.DrawFn) -> Fault:
    """Draw a fault, or none."""
    strong = draw(st.sampled_from([0.2, 1.0, 4.0]))
    kinds = {
        "none": Fault(),
        "late host": Fault(culprits=(0,), stall_ns=strong * 5 * MS),
        "slow device": Fault(culprits=(0,), compute_factor=1 + strong),
        "late loader": Fault(culprits=(0,), load_ns=strong * 5 * MS),
        "starts apart": Fault(start_spread_ns=strong * 10 * MS),
        "shared cores": Fault(cores=1, slice_ns=strong * MS),
        "polls": Fault(reads=1, read_work_ns=strong * 0.3 * MS, polling=True),
        "churn": Fault(churn_ns=strong * 0.5 * MS),
        "offload": Fault(offload_ns=strong * MS),
        "one by one": Fault(tensors=40, tensor_ns=strong * 20 * US),
    }
    return draw(st.sampled_from([replace(fault, kind=kind) for kind, fault in kinds.items()]))


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    """Draw a small job."""
    layout = draw(st.sampled_from(LAYOUTS))
    ranks = list(range(layout.world))
    recorded = draw(st.sampled_from([None, None, tuple(ranks[:1]), tuple(ranks[: max(1, len(ranks) // 2)])]))
    return Job(
        layout=layout, seed=draw(st.integers(0, 99)), steps=draw(st.sampled_from([1, 2, 4, 6])),
        layers=draw(st.integers(1, 3)), microbatches=draw(st.integers(1, 2)), moe=layout.ep > 1,
        layer_ns=draw(st.sampled_from([0.05 * MS, 0.5 * MS, 4 * MS])),
        layer_bytes=draw(st.sampled_from([1 << 20, 32 << 20, 512 << 20])), fsdp=draw(st.booleans()) and layout.pp == 1,
        sync_steps=draw(st.booleans()), graphs=draw(st.booleans()), launch_ns=draw(st.sampled_from([4 * US, 60 * US])),
        numbered=draw(st.booleans()), collective_args=draw(st.booleans()),
        offsets_ns=draw(st.sampled_from([0.0, 20 * MS])), recorded=recorded, fault=draw(faults()),
    )  # fmt: skip


def written(job: Job) -> Run:
    """Return a job as read from its traces, with host events."""
    with tempfile.TemporaryDirectory() as folder:
        write_kineto(simulate(job), Path(folder) / "job")
        return read_inputs([Path(folder) / "job"])


def output_of(run: Run) -> Output:
    together = match_and_align(run)
    analysis = analyze(run, together)
    found, reasons = advise(run, analysis, together)
    try:
        predicted = predict_recording(run, (), ReplayOptions(), search=False)
    except InputError:
        predicted = None
    return Output(run=run, analysis=analysis, advice=found, reasons=reasons, predicted=predicted)


@examples(60, suppress_health_check=[HealthCheck.too_slow])
@given(jobs())
def test_nothing_that_is_said_of_a_job_excludes_something_else(job: Job) -> None:
    assert list(contradictions(output_of(written(job)))) == []


@pytest.fixture(scope="module")
def sound() -> Output:
    return output_of(written(Job(layout=Layout(dp=4), fault=Fault(culprits=(0,), stall_ns=20 * MS))))


def said_of(output: Output) -> set[str]:
    return {name for name, _ in contradictions(output)}


def damaged(output: Output, **changed: Any) -> Output:
    """Return the output with an analysis whose first rank's recording, or headline, or skew says something else."""
    analysis = output.analysis
    for name, value in changed.items():
        table, _, field = name.partition("__")
        if table == "whole":
            first, *others = analysis.ranks
            analysis = replace(analysis, ranks=[replace(first, whole=replace(first.whole, **{field: value})), *others])
        else:
            analysis = replace(analysis, **{table: replace(getattr(analysis, table), **{field: value})})
    return replace(output, analysis=analysis)


@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("a window, the sum of its parts", {"whole__idle_ns": 1}),
        ("exposed or idle time, the sum of its causes", {"whole__causes": {"tail": 1}}),
        ("exposed or idle time, the sum of its causes", {"headline__idle_causes": {"unknown": 1}}),
        ("overlapped or exposed time, its wait time", {"whole__exposed_wait_ns": 1 << 50}),
        ("headline, table", {"headline__exposed_comm_ns": 1 << 50}),
        ("no communication, a figure of it", {"whole__comm_ns": 0}),
        ("no compute recorded, exposed time", {"whole__compute_ns": 0}),
        ("critical path, its parts", {"critical_path__reason": "why"}),
        ("nothing matched, what only matching shows", {"skew__matched": 0}),
        ("nothing matched, wait time of ranks", {"skew__matched": 0}),
        ("a straggler, nobody late", {"run__ranks": []}),
        ("ranks of the job, ranks recorded", {"run__world_size": 7}),
        ("GPU-hours, no GPU", {"throughput__on_device": False}),
        ("interference, none", {"whole__interference_ns": 1}),
    ],
)
def test_a_planted_contradiction_is_found(sound: Output, name: str, changed: dict[str, Any]) -> None:
    assert said_of(sound) == set()
    assert name in FIGURES.keys() | SENTENCES.keys()
    assert name in said_of(damaged(sound, **changed))


def test_a_host_path_of_a_busy_device_is_found(sound: Output) -> None:
    path = sound.analysis.critical_path
    busy = replace(path, steps=[replace(each, parts={"host": each.length_ns}) for each in path.steps])
    idle = [replace(each, idle_ns=0, exposed_comm_ns=0) for info in sound.analysis.ranks for each in info.steps]
    ranks = [replace(info, steps=idle) for info in sound.analysis.ranks]
    found = said_of(replace(sound, analysis=replace(sound.analysis, critical_path=busy, ranks=ranks)))
    assert "critical path through the host, a device that is busy" in found


def test_what_is_recommended_is_held_against_what_is_lost(sound: Output) -> None:
    advised = output_of(run_of(simulate(Job(layout=Layout(dp=2), layers=3, launch_ns=60 * US, layer_ns=0.05 * MS))))
    assert advised.advice
    (first, *_) = advised.advice
    assert said_of(advised) == set()
    for wrong in (replace(first, gain_high_ns=1 << 50), replace(first, gain_low_ns=5, gain_high_ns=4)):
        assert "a gain, what is lost" in said_of(replace(advised, advice=[wrong]))
    assert "a gain, what is lost" in said_of(replace(advised, advice=[first, first]))
    assert "nothing to recommend, a large loss" in said_of(replace(advised, advice=[], reasons=[]))


def test_a_scenario_of_communication_below_its_bound_is_found(sound: Output) -> None:
    predicted = sound.predicted
    assert predicted is not None
    (faster,) = (each for each in predicted.scenarios if "link_speed" in each.knobs)
    too_fast = predicted.bounds.no_comm_ns // 2
    beyond = replace(faster, predicted_step_ns=too_fast, low_ns=too_fast)
    assert "a scenario, its bounds" in said_of(replace(sound, predicted=replace(predicted, scenarios=[beyond])))


@pytest.mark.parametrize("name", SENTENCES)
def test_a_pair_of_sentences_excludes_only_itself(name: str) -> None:
    one, other = SENTENCES[name]
    assert one != other


@pytest.mark.slow
def test_every_sentence_of_a_pair_is_said_of_some_run(sound: Output) -> None:
    made = [
        Job(layout=Layout()),
        Job(layout=Layout(dp=4), fault=Fault(culprits=(0,), stall_ns=40 * MS, stall_at=0.2)),
        Job(layout=Layout(dp=4), fault=Fault(culprits=(0,), work_factor=3.0)),
        Job(layout=Layout(dp=2), recorded=(0,)),
    ]
    real = ["gloo_torch2.13", "kineto/sampled_pair", "kineto/a100_rank3of8_six_steps.json.gz", "kineto/megatron_tp8",
            "kineto/tracelens_mi210_gpu_only.json.gz", "kineto/tracelens_b200_eager.json.gz"]  # fmt: skip
    runs = [Run(world_size=1, ranks={}), *(run_of(simulate(job)) for job in made)]
    own = [ROOT / "traces" / name for name in ("baseline", "regressed")]
    runs += [read_inputs([path]) for path in (*own, *map(shared_file, real))]
    texts = [sound.text, *(output_of(run).text for run in runs)]
    for pattern in (each for pair in SENTENCES.values() for each in pair):
        assert any(re.search(pattern, text, re.MULTILINE) for text in texts), pattern
