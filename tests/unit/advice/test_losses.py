"""Losses of a rank on its own: from host events, with the chain that shows them; and what was published elsewhere."""

import json
import re
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from msgspec.structs import replace

from overlapscope.advice.advise import RULES, advise, analyze_with_advice, by_rules
from overlapscope.advice.job_kind import job_kind
from overlapscope.advice.losses.exposed_remedies import wait_by_turns
from overlapscope.advice.losses.largest_loss import MEASURED_GAPS, MEASURED_IDLE, OF_EXPOSED, OF_IDLE, largest_loss
from overlapscope.advice.model_parallel import MADE_AGAIN
from overlapscope.advice.published_effects import published_effects, with_published
from overlapscope.advice.rule_input import RuleInput
from overlapscope.advice.step_shape import CUDA, LAST_FIRST, ONE_BUCKET, ROCM, UNUSED
from overlapscope.analysis.analyze import analyze
from overlapscope.analysis.cross_rank.across_ranks import match_and_align
from overlapscope.analysis.graph.own_causes import own_causes
from overlapscope.analysis.graph.rank_causes import rank_causes
from overlapscope.analysis.rank_summaries import summarize_ranks
from overlapscope.analysis.result import Recommendation, SkewRank
from overlapscope.ingest.read_run import read_inputs
from overlapscope.report.formats import json as as_json
from overlapscope.report.redact import redacted
from overlapscope.report.text import advice as text
from overlapscope.timeline.columns import Telemetry, make, take
from overlapscope.timeline.intervals import length, union
from overlapscope.timeline.run import Group, RankTimeline, Run
from overlapscope.timeline.store.load_save import load_run, save_run
from tests.conftest import ROOT, shared_file
from tests.property.synthetic.evaluate_job_faults import analyzed
from tests.property.synthetic.job_faults import draw
from tests.support.cpu_runs.cpu_steps import Call, Mark, Op, cpu_run
from tests.support.graph_programs import Launch, Operation, Program, Simulated, Sync, Work, simulate
from tests.support.step_cases import Kernel, Range, Sent
from tests.unit.advice.calls.test_small_collectives import CUSTOM, in_kernels
from tests.unit.advice.compute.test_recomputation import BACKWARD, FORWARD
from tests.unit.advice.test_advice_rules import always, fired, on_cores
from tests.unit.analysis.graph.test_oracle import programs

US, MS = 1_000, 1_000_000
STEPS = 12


def advised(*program: Operation) -> dict[str, Recommendation]:
    return fired(simulate({0: [Launch(0, 100 * US), *program]}).run)


def repeated(*step: Operation) -> list[Operation]:
    return [each for _ in range(STEPS) for each in step]


def test_pauses_and_the_rate_of_launches_are_told_apart() -> None:
    rate = advised(*repeated(Work(50 * US), Launch(0, 10 * US)))["launch_bound"]
    pauses = advised(Work(3_000 * US), Launch(0, 500 * US))["launch_bound"]
    assert (rate.evidence["pauses_ns"], pauses.evidence["launch_rate_ns"]) == (0, pytest.approx(4 * US))
    assert "one after the other" in rate.title
    assert "host" not in rate.apply, "cores are no matter of the rate"
    assert "in pauses of the host" in pauses.title
    assert next(iter(pauses.apply)) == "host"


def test_damaged_host_events_are_no_evidence_of_launches(tmp_path: Path) -> None:
    program = [Launch(0, 100 * US), *repeated(Work(50 * US), Launch(0, 10 * US))]
    save_run(simulate({0: program, 1: program}).run, tmp_path / "run", version="0")
    whole = fired(load_run(tmp_path / "run"))["launch_bound"]
    for rank in (1, 0):
        table = tmp_path / "run" / f"rank_0000{rank}" / "host.parquet"
        table.write_bytes(table.read_bytes()[:-20])
        run = load_run(tmp_path / "run")
        damaged = [each for each in run.ranks if each >= rank]
        analysis = analyze_with_advice(run)
        found = {each.id: each for each in analysis.recommendations}
        _, reasons = advise(run, analysis)
        assert any("host, is not known: the record of what the host did is damaged" in each for each in reasons)
        assert [each.rank for each in analysis.ranks if each.no_causes_reason == "unreadable_host_events"] == damaged
        if damaged == [0, 1]:
            assert "launch_bound" not in found
            assert "the record of what the host did is damaged" in found["idle_device"].title
        else:
            assert found["launch_bound"].gain_high_ns == pytest.approx(whole.gain_high_ns, rel=1e-6), "of rank 0 alone"
            assert "rank 1, whose record of the host is damaged" in " ".join(found["launch_bound"].assumed)


def test_what_removing_a_synchronisation_saves_is_its_loss() -> None:
    kernel, work = Launch(0, 1_000 * US), Work(300 * US)
    found = advised(*repeated(kernel, Sync(), work))["blocking_calls"]
    with_it, without = (
        simulate({0: [Launch(0, 100 * US), *repeated(*step)]}).length_ns
        for step in ([kernel, Sync(), work], [kernel, work])
    )
    assert found.loss_ns == pytest.approx(with_it - without, rel=0.1)
    assert list(found.evidence["calls"]) == ["cudaDeviceSynchronize"]
    # The device waits after these calls, not in them.
    assert found.shown_by
    assert "after cudaDeviceSynchronize had emptied the device: launched by" in text.shown_text(found.shown_by)
    inside, after = re.findall(r"([0-9.]+) ms while", found.measured[0])
    assert float(after) > 50 * float(inside)
    assert (float(inside) + float(after)) * MS == pytest.approx(found.evidence["blocking_ns"], rel=0.01)


def test_a_thread_that_woke_late_had_no_core() -> None:
    found = advised(*repeated(Launch(0, 1_000 * US), Sync(wake_ns=500 * US)))
    assert found["launch_bound"].evidence["pauses_ns"] >= (STEPS - 1) * 490 * US
    assert "blocking_calls" not in found


def test_the_longest_piece_shows_the_loss_with_the_chain_that_led_to_it() -> None:
    simulated = simulate({0: [Launch(0, 100 * US), Work(700 * US), Launch(0, 10 * US), Work(3_000 * US), Launch(0, 9)]})
    shown = fired(simulated.run)["launch_bound"].shown_by
    assert shown
    assert shown.end_ns - shown.start_ns == pytest.approx(3_000 * US, abs=20 * US)
    assert [link.kind for link in shown.chain][:2] == ["launch", "host"]
    starts = simulated.rank.spans.start_ns.tolist()
    assert shown.start_ns in simulated.rank.spans.end_ns.tolist()
    assert any(shown.end_ns <= start <= shown.end_ns + 10 * US for start in starts)


OF_HOST = ("launch_bound", "launch_latency", "blocked_host", "drained")


@pytest.mark.slow
@settings(max_examples=50)
@given(programs)
def test_host_losses_are_disjoint_and_add_up_to_the_causes_of_the_host(program: Program) -> None:
    found = own_causes(simulate({0: program}).rank)
    if found.idle is None:
        return
    times = [each.when for each in found.host_losses]
    assert sum(map(length, times)) == length(union(*times)) == sum(length(found.idle[name]) for name in OF_HOST)
    for each in found.host_losses:
        assert each.longest[1] - each.longest[0] <= length(each.when)
        assert each.longest in zip(each.when.starts.tolist(), each.when.ends.tolist(), strict=True) or each.chain


@pytest.mark.parametrize(
    ("path", "kinds"),
    [
        ("kineto/kineto_tb_resnet50_nw0_pt1.8.pt.trace.json.gz", {"data_loading": 183.673}),
        ("kineto/tracelens_b200_eager.json.gz", {}),
    ],
)
def test_losses_of_real_traces_add_up_to_the_causes_of_the_host(path: str, kinds: dict[str, float]) -> None:
    (timeline,) = read_inputs([shared_file(path)]).ranks.values()
    found = rank_causes(timeline)
    assert found.idle is not None
    of_host = sum(length(found.idle[name]) for name in OF_HOST)
    assert sum(length(each.when) for each in found.host_losses) == of_host
    for kind, ms in kinds.items():  # by hand, from raw events: tests/truth
        assert sum(length(each.when) for each in found.host_losses if each.kind == kind) / MS == pytest.approx(ms)


# --- the largest loss ------------------------------------------------------------------------------------------------


def test_the_largest_loss_is_named_where_no_rule_addresses_it() -> None:
    exposed = fired(always(Kernel(start=0, end=300), Sent(start=310, end=900, launch=5), Kernel(start=901, end=990)))
    assert next(iter(exposed)) == "exposed_communication"
    assert exposed["exposed_communication"].loss_ns == 590 * US
    assert exposed["exposed_communication"].gain_high_ns is None, "nothing says that any of it can be saved"


@pytest.mark.parametrize(("begun_us", "loss_us"), [(400, 190), (30, 590)])
def test_waiting_before_all_have_begun_to_record_is_no_loss_of_the_job(begun_us: int, loss_us: int) -> None:
    """Where it is much; less is not worth another figure than the headline's."""
    run = always(Kernel(start=0, end=300), Sent(start=310, end=900, launch=5), Kernel(start=901, end=990))
    together = match_and_align(run)
    analysis = analyze(run, together)
    causes = {"dependency": (590 - begun_us) * US, "start_of_recording": begun_us * US}
    analysis = replace(analysis, headline=replace(analysis.headline, causes=causes))
    found = {each.id: each for each in by_rules(run, analysis, together)}["exposed_communication"]
    assert found.loss_ns == loss_us * US
    assert ("without 0.4 ms at the start of the recording" in found.title) is (loss_us == 190)
    assert ": start of the recording" not in found.title


def test_a_loss_that_is_addressed_is_not_named_twice() -> None:
    found = fired(always(Kernel(start=0, end=400), Kernel(start=700, end=990, launch=699)))
    assert set(found) == {"launch_bound"}


def test_time_in_which_garbage_is_collected_is_no_lack_of_launches() -> None:
    collecting = Range(name="gc.collect", start=410, end=690)
    found = fired(always(Kernel(start=0, end=400), collecting, Kernel(start=700, end=990, launch=699)))
    assert set(found) == {"garbage_collection"}
    assert found["garbage_collection"].loss_ns == pytest.approx(280 * US, abs=20 * US)
    assert found["garbage_collection"].gain_high_ns is None, "who waits for the rank meanwhile wins, too"


def test_garbage_collected_in_the_compute_of_a_cpu_run_is_lost_time() -> None:
    run = always(Kernel(start=0, end=990))
    ranks = {}
    for rank, each in run.ranks.items():
        ends = each.steps.start_ns + 600 * US
        noted = make(Telemetry, ends.size, name=len(each.names), time_ns=ends, step=each.steps.step, value=300.0 * US)
        ranks[rank] = replace(each, has_device=False, telemetry=noted, names=(*each.names, "gc_pause_ns"))
    found = fired(replace(run, ranks=ranks))
    assert found["garbage_collection"].loss_ns == 300 * US
    assert "garbage_collection" not in fired(run)
    first = {rank: replace(each, telemetry=take(each.telemetry, np.arange(1))) for rank, each in ranks.items()}
    once = fired(replace(run, ranks=first))["garbage_collection"]
    assert "0.3 ms in step 0 alone pass" in once.title
    assert (once.per, once.loss_ns) == ("recording", 300 * US)


def test_recommendations_stand_by_loss_on_every_real_trace() -> None:
    for path in ("kineto/a100_rank3of8_six_steps.json.gz", "kineto/megatron_tp8", "gloo_torch2.13"):
        run = read_inputs([shared_file(path)])
        together = match_and_align(run)
        losses = [each.loss_ns or 0 for each in by_rules(run, analyze(run, together), together)]
        assert losses == sorted(losses, reverse=True)


def test_the_ids_that_address_a_loss_have_pages() -> None:
    pages = {page.stem for page in (ROOT / "docs" / "advice").glob("[a-z]*.md")}
    assert OF_EXPOSED | (OF_IDLE - {"shared_cores"}) <= pages
    assert {rule.__name__ for rule in RULES} - {"interference"} <= pages


# --- the shape of a step, tensor and expert parallelism --------------------------------------------------------------

COMPUTED = (Kernel(start=0, end=300), Kernel(start=901, end=990, launch=2))


def test_tensor_parallel_calls_are_counted_once_however_many_groups_make_them() -> None:
    call = Sent(start=301, end=500, launch=1, dimension="tensor")
    found = fired(always(*COMPUTED, call))["tensor_parallel"]
    assert found.loss_ns == 199 * US
    assert "each of a whole activation" in found.title
    pair = [msgspec.structs.replace(call, group=name) for name in ("g", "h")]
    twice = always(*COMPUTED, pair[0], msgspec.structs.replace(pair[1], start=501, end=600))
    assert fired(twice)["tensor_parallel"].loss_ns == 298 * US, "a rank in both groups"
    groups = tuple(Group(name=name, size=1, ranks=(rank,)) for rank, name in enumerate("gh"))
    half = msgspec.structs.replace(pair[1], start=501, end=600, size_bytes=1 << 19)
    ranks = {rank: always(*COMPUTED, each).ranks[rank] for rank, each in enumerate([pair[0], half])}
    apart = msgspec.structs.replace(twice, groups=groups, ranks=ranks)
    assert fired(apart)["tensor_parallel"].loss_ns == pytest.approx((199 + 99) / 2 * US), "a rank in one of them"
    gathers = always(*COMPUTED, msgspec.structs.replace(call, op="all_gather"))
    assert "--sequence-parallel" not in fired(gathers)["tensor_parallel"].apply["torch"]


@pytest.mark.parametrize(
    ("large_bytes", "until", "said"),
    [
        pytest.param(1 << 20, 510, " (all_reduce), each of a whole activation", id="little of it"),
        pytest.param(1 << 20, 520, " (all_reduce, broadcast)", id="a twentieth"),
        pytest.param((1 << 20) - 1, 510, " (all_reduce)", id="small"),
    ],
)
def test_of_tensor_parallel_calls_those_are_named_that_are_exposed_for_long_enough(
    large_bytes: int, until: int, said: str
) -> None:
    """As broadcasts of the tokens beside all-reduces of activations."""
    call = Sent(start=301, end=500, launch=1, dimension="tensor", size_bytes=large_bytes)
    tokens = Sent(start=501, end=until, launch=2, op="broadcast", dimension="tensor", size_bytes=25_088)
    assert fired(always(*COMPUTED, call, tokens))["tensor_parallel"].title.endswith(f"are exposed{said}")


def test_of_tensor_parallel_calls_that_recomputation_makes_again_this_is_said() -> None:
    names = [FORWARD] * 5 + [BACKWARD, FORWARD] * 3 + [BACKWARD]
    kernels = [Kernel(start=20 * at, end=20 * at + 15, name=name) for at, name in enumerate(names)]
    call = Sent(start=301, end=500, launch=1, dimension="tensor")
    assert MADE_AGAIN in fired(always(*kernels, COMPUTED[1], call))["tensor_parallel"].assumed
    assert MADE_AGAIN not in fired(always(*COMPUTED, call))["tensor_parallel"].assumed


@pytest.mark.parametrize(("size_bytes", "custom"), [((8 << 20) - 1, True), (8 << 20, False)])
def test_of_a_server_only_calls_that_its_own_all_reduce_takes_are_sent_to_that(
    size_bytes: int, *, custom: bool
) -> None:
    call = Sent(start=301, end=500, launch=1, dimension="tensor", size_bytes=size_bytes)
    batch = Range(name="execute_context_0(0)_generation_1(1)", start=0, end=1)
    found = fired(always(*COMPUTED, call, batch))["tensor_parallel"]
    assert found.title.startswith("Shorten or avoid the calls of tensor parallelism: ")
    assert ("--disable-custom-all-reduce" in found.apply["serving"]) == custom
    assert "fewer devices a replica" in found.apply["serving"]
    assert found.assumed == ["that all of their exposed time is gone: the gain is an upper bound"]
    made_so = in_kernels(always(*COMPUTED, call, batch), CUSTOM)
    assert "custom" not in fired(made_so)["tensor_parallel"].apply["serving"], "its own all-reduce makes them already"


@pytest.mark.parametrize(
    ("op", "size_bytes", "end", "said"),
    [
        pytest.param("all_gather", 16384, 800, False, id="far larger, and exposed for longer"),
        pytest.param("all_gather", 8192, 800, True, id="not far larger"),
        pytest.param("all_gather", 16384, 520, True, id="exposed for less"),
        pytest.param("broadcast", 16384, 800, True, id="no gather"),
    ],
)
def test_small_calls_of_tensor_parallel_ranks_beside_far_larger_ones_of_nobody_knows_whom_are_not_its_activations(
    op: str, size_bytes: int, end: int, said: bool
) -> None:
    """As the sum of a norm's gradients beside gathers of sequence parallelism."""
    small = Sent(start=301, end=500, launch=1, dimension="tensor", size_bytes=4096)
    large = Sent(start=501, end=end, launch=2, op=op, group="h", size_bytes=size_bytes)
    assert ("tensor_parallel" in fired(always(*COMPUTED, small, large))) is said


@pytest.mark.parametrize(
    ("size_bytes", "phase", "scatters", "counted"),
    [
        pytest.param(8192, None, True, False, id="as of weights"),
        pytest.param(8191, None, True, True, id="not far larger"),
        pytest.param(8192, "backward", True, True, id="in backward, too"),
        pytest.param(8192, None, False, True, id="nothing shows which are activations"),
    ],
)
def test_gathers_far_larger_than_what_is_gathered_and_scattered_are_no_calls_of_layers(
    size_bytes: int, phase: str | None, scatters: bool, counted: bool
) -> None:
    given = {"dimension": "tensor", "size_bytes": 4096}
    calls = [
        Sent(start=301, end=400, launch=1, op="all_gather", **given),
        Sent(start=401, end=500, launch=2, op="reduce_scatter" if scatters else "all_gather", **given),
        Sent(start=501, end=700, launch=3, op="all_gather", **(given | {"size_bytes": size_bytes}), phase=phase),
    ]
    assert fired(always(*COMPUTED, *calls))["tensor_parallel"].loss_ns == (99 + 99 + 199 * counted) * US


def test_the_exchange_between_experts_is_known_by_its_dimension_or_its_kernels() -> None:
    for more in ({"op": "all_to_all", "dimension": "expert"}, {"op": "dispatch"}):
        found = fired(always(*COMPUTED, Sent(start=301, end=800, launch=1, **more)))  # type: ignore[arg-type]
        assert found["expert_parallel"].loss_ns == 499 * US
        few = "Buffer.set_num_sms" in found["expert_parallel"].apply.get("deepep", "")
        assert few == (more["op"] == "dispatch"), "that kernel is DeepEP's"
    embeddings = fired(always(*COMPUTED, Sent(start=301, end=800, launch=1, op="all_to_all")))
    assert "expert_parallel" not in embeddings


def test_what_another_call_beside_it_shares_counts_whole_for_the_exchange() -> None:
    exchange = Sent(start=301, end=600, launch=1, op="all_to_all", dimension="expert")
    beside = Sent(start=301, end=600, launch=2, op="reduce_scatter", group="h")
    assert fired(always(*COMPUTED, exchange, beside))["expert_parallel"].gain_high_ns == 299 * US


@pytest.mark.parametrize(
    ("start", "words"), [(301, "Overlap the "), (100, "Overlap the "), (99, "Overlap more of the ")]
)
@pytest.mark.parametrize("dimension", ["expert", "tensor"])
def test_of_calls_that_are_half_overlapped_more_is_to_be(dimension: str, start: float, words: str) -> None:
    call = Sent(start=start, end=501, launch=1, op="all_to_all", dimension=dimension)
    (found,) = (each for name, each in fired(always(*COMPUTED, call)).items() if name.startswith(dimension))
    assert found.title.startswith(words)


def test_a_giant_all_reduce_is_to_be_split() -> None:
    giant = Sent(start=301, end=900, launch=1, size_bytes=2 << 30)
    found = fired(always(*COMPUTED, giant))
    assert found["split_all_reduce"].gain_high_ns == 401 * US, "of 599, what a step has without communication"
    short = msgspec.structs.replace(giant, start=600)
    assert fired(always(*COMPUTED, short))["split_all_reduce"].gain_high_ns == 300 * US
    assert "exposed_communication" not in found
    assert "split_all_reduce" not in fired(always(*COMPUTED, msgspec.structs.replace(giant, size_bytes=1 << 30)))


@pytest.mark.slow
def test_overlap_that_was_asked_for_and_is_not_there_is_named() -> None:
    ddp = Range(name="DistributedDataParallel.forward", start=1, end=2)
    call = Sent(start=301, end=900, launch=1)
    found = fired(always(*COMPUTED, call, ddp))["overlap_without_effect"]
    assert found.gain_high_ns == 401 * US, "of 599, what a step has without communication"
    assert found.apply == {"ddp": ONE_BUCKET}
    assert "overlap_without_effect" not in fired(always(*COMPUTED, call)), "nothing says that it was asked for"
    beside = msgspec.structs.replace(call, start=250)
    assert "overlap_without_effect" not in fired(always(*COMPUTED, beside, ddp))
    other = msgspec.structs.replace(call, op="all_to_all")
    assert "overlap_without_effect" not in fired(always(*COMPUTED, other, ddp)), "DDP overlaps its all-reduces alone"


@pytest.mark.parametrize(
    ("launches", "starts", "rocm", "said"),
    [
        pytest.param((100, 250), (301, 600), False,
                     {"environment": f"unset {CUDA[1]}  # one queue serialises streams"},
                     id="during backward, and not begun"),
        pytest.param((100, 250), (301, 600), True,
                     {"environment": f"unset {ROCM[1]}  # one queue serialises streams"},
                     id="with ROCm's variables"),
        pytest.param((301, 600), (301, 600), False,
                     {"environment": f"unset {CUDA[0]}  # a launch lasts until its kernel has ended"},
                     id="each launch waits for the kernel before it"),
    ],
)  # fmt: skip
def test_why_nothing_overlaps_is_what_launches_show(
    launches: tuple[float, float], starts: tuple[float, float], *, rocm: bool, said: dict[str, str]
) -> None:
    ddp = Range(name="DistributedDataParallel.forward", start=1, end=2)
    ends = (starts[1] - 1, 900)
    calls = [
        Sent(start=at, end=end, launch=launch) for at, end, launch in zip(starts, ends, launches, strict=True)
    ]  # fmt: skip
    name = "hipLaunchKernel" if rocm else "aten::mm"
    work = (Kernel(start=0, end=300, launch=0, host_op=name), Kernel(start=901, end=990, launch=launches[1] + 301))
    assert fired(always(*work, *calls, ddp))["overlap_without_effect"].apply == said


def test_a_map_of_used_parameters_is_named_where_nothing_overlaps() -> None:
    ddp = Range(name="DistributedDataParallel.forward", start=1, end=2)
    calls = [Sent(start=301, end=890, launch=301), Sent(start=891, end=900, launch=302, phase="backward", elements=99)]
    run = always(*COMPUTED, *calls, ddp)
    assert "overlap_without_effect" not in fired(run), "buckets are sent in the order in which gradients are ready"
    ranks = {rank: with_map(each) for rank, each in run.ranks.items()}
    found = fired(msgspec.structs.replace(run, ranks=ranks))["overlap_without_effect"]
    assert found.apply == {"ddp": f"{UNUSED}\n{LAST_FIRST}"}, "they are sent in the order of the parameters"


def with_map(timeline: RankTimeline) -> RankTimeline:
    """Return a rank whose calls of 99 elements are of type int32."""
    calls = timeline.collectives
    names = (*timeline.names, "int32")
    dtype = np.where(calls.elements == 99, len(timeline.names), calls.dtype).astype(calls.dtype.dtype)
    return msgspec.structs.replace(timeline, names=names, collectives=msgspec.structs.replace(calls, dtype=dtype))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("calls", "marked", "elements", "named"),
    [
        pytest.param(1, True, 1 << 19, True, id="one bucket of 2 MiB"),
        pytest.param(1, True, (1 << 19) - 1, False, id="of less: a cap of 1 MiB makes no more of it"),
        pytest.param(2, True, 1 << 20, False, id="two buckets"),
        pytest.param(1, False, 1 << 20, False, id="nothing says that it is DDP"),
    ],
)
def test_without_a_device_one_bucket_after_backward_overlaps_nothing(
    calls: int, elements: int, *, marked: bool, named: bool
) -> None:
    ddp = [Mark("DistributedDataParallel.forward", 0, 90)] * marked
    sent = [Call(start=500 + 100 * at, end=590 + 100 * at, elements=elements) for at in range(calls)]
    run = cpu_run(lambda *_: [Op("aten::mm", 10, 490), *ddp, *sent, Op("aten::mul_", 800, 990)])
    found = fired(run).get("overlap_without_effect")
    assert (found is not None) == named
    if found is not None:
        assert found.title.startswith(
            "Nothing overlaps: DDP reduces all gradients at once, when backward ends, and of "
        )
        assert found.gain_high_ns == 90 * US


def test_a_step_with_next_to_no_compute_needs_more_of_it() -> None:
    little = (Kernel(start=0, end=40), Kernel(start=950, end=990, launch=949))
    assert "little_compute" in fired(always(*little))
    assert "little_compute" not in fired(always(*COMPUTED))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "expected"), [("offload_copies", "copies_on_compute_stream"), ("allocator_churn", "allocator_churn")]
)
def test_a_generated_job_gets_the_advice_for_its_fault_first_and_its_twin_gets_none(kind: str, expected: str) -> None:
    planted = draw(kind, 3)
    said, healthy = analyzed(planted.job).recommendations, analyzed(planted.healthy).recommendations
    assert said[0].id == expected
    assert said[0].shown_by
    assert expected not in {each.id for each in healthy}


# --- CPU runs --------------------------------------------------------------------------------------------------------


def test_a_run_without_a_device_is_spoken_of_without_launches() -> None:
    analysis = analyze_with_advice(read_inputs([shared_file("gloo_torch2.13")]))
    assert not analysis.run.has_device
    from overlapscope.report.text import idle_time  # noqa: PLC0415 - the module's name is taken

    said = idle_time.idle_text(analysis)
    assert "the host had not come to it" in said
    assert not re.search("launch", said, re.I)


# --- published effects -----------------------------------------------------------------------------------------------


def test_published_effects_that_lose_much_and_gain_much_are_not_shown() -> None:
    exchange = Sent(start=301, end=800, launch=1, op="all_to_all", dimension="expert")
    assert fired(always(*COMPUTED, exchange))["expert_parallel"].published == []
    ends = [each.gain for each in published_effects()["expert_parallel"] if each.kind == "end-to-end"]
    assert min(ends) < -0.2 < 0.2 < max(ends), "these are known, and say nothing to act on"
    tensor = Sent(start=301, end=500, launch=1, dimension="tensor")
    assert fired(always(*COMPUTED, tensor))["tensor_parallel"].published


def test_every_published_effect_has_a_source_a_condition_and_both_values() -> None:
    effects = [each for found in published_effects().values() for each in found]
    assert len(effects) > 30
    for each in effects:
        assert re.fullmatch(r"https://[\w.-]+/\S+", each.source), each
        assert each.condition.strip(), each
        assert each.metric.strip(), each
        assert each.before > 0, each
        assert each.after > 0, each
        ratio = each.after / each.before
        assert min(abs(ratio - 1 - each.gain), abs(1 / ratio - 1 - each.gain)) < 0.001, each
    assert min(each.gain for each in effects) < -0.1, "losses are listed like gains"
    assert set(published_effects()) <= {page.stem for page in (ROOT / "docs" / "advice").glob("*.md")}


def test_they_are_quoted_with_range_and_conditions_and_as_no_prediction() -> None:
    late = fired(always(Kernel(start=0, end=400), Kernel(start=700, end=990, launch=699)))["launch_bound"]
    job = job_kind(Run(world_size=1, ranks={}))
    graphs = replace(late, apply={"megatron": "--cuda-graph-impl local"})
    (shown,) = with_published([graphs], job, has_experts=True)
    (line,) = [each for each in text.render([shown], []).splitlines() if "elsewhere:" in each]
    assert "no prediction for this one" in line
    assert "-2 % throughput" in line
    assert "16 H100" in line
    assert shown.predicted_gain_ns is None


def test_they_are_quoted_only_beside_code_that_makes_the_change_and_for_jobs_like_theirs() -> None:
    late = fired(always(Kernel(start=0, end=400), Kernel(start=700, end=990, launch=699)))["launch_bound"]
    assert "CUDA graphs" in late.apply["torch"]
    assert late.published == [], "measured with Megatron's graphs, where experts exchange tokens"
    job = job_kind(Run(world_size=1, ranks={}))
    graphs = replace(late, apply={"megatron": "--cuda-graph-impl local"})
    for has_experts in (False, True):
        assert bool(with_published([graphs], job, has_experts=has_experts)[0].published) is has_experts
    assert not with_published([late], job, has_experts=True)[0].published
    assert not with_published([graphs], replace(job, serves=True), has_experts=True)[0].published


# --- redaction -------------------------------------------------------------------------------------------------------


def test_names_in_what_shows_a_loss_are_hidden_and_those_of_the_runtime_stay() -> None:
    secret = "alices_secret_kernel"
    analysis = analyze_with_advice(_named(simulate({0: [Launch(0, 100 * US), Work(900 * US), Launch(0, 9)]}), secret))
    (late,) = [each for each in analysis.recommendations if each.id == "launch_bound"]
    assert late.shown_by
    assert secret in as_json.render(analysis)
    hidden = redacted(analysis)
    shown = json.loads(as_json.render(hidden))["recommendations"][0]
    assert secret not in as_json.render(hidden)
    assert shown["id"] == "launch_bound"
    assert shown["shown_by"]["start_ns"] == late.shown_by.start_ns
    assert [each["kind"] for each in shown["shown_by"]["chain"]] == [each.kind for each in late.shown_by.chain]
    assert set(shown["evidence"]) == set(late.evidence)


def _named(simulated: Simulated, name: str) -> Run:
    from msgspec.structs import replace  # noqa: PLC0415

    timeline = simulated.rank
    names = tuple(name if each not in ("cudaLaunchKernel",) else each for each in timeline.names)
    return replace(simulated.run, ranks={0: replace(timeline, names=names)})


@pytest.mark.slow
def test_summaries_keep_losses_of_every_rank() -> None:
    run = read_inputs([shared_file("kineto/megatron_tp8")])
    kinds: Sequence[set[str]] = [{each.kind for each in own.host_losses} for own in summarize_ranks(run).values()]
    assert all({"pause", "long_pause"} & each for each in kinds)


# --- gains by replay -------------------------------------------------------------------------------------------------


def advised_by_replay(path: Sequence[Operation]) -> dict[str, Recommendation]:
    """By id, the first recommendation first."""
    run = simulate({0: [Launch(0, 100 * US), *path]}).run
    together = match_and_align(run)
    return {each.id: each for each in advise(run, analyze(run, together), together)[0]}


def replayed(path: Sequence[Operation]) -> Recommendation:
    return next(iter(advised_by_replay(path).values()))


def test_the_bound_by_replay_is_what_the_program_gains_without_the_loss() -> None:
    kernel, work = Launch(0, 1_000 * US), Work(300 * US)
    found = replayed(repeated(kernel, Sync(), work))
    with_it, without = (
        simulate({0: [Launch(0, 100 * US), *repeated(*step)]}).length_ns
        for step in ([kernel, Sync(), work], [kernel, work])
    )
    assert found.id == "blocking_calls"
    assert found.gain_high_ns == found.evidence["replayed_gain_ns"] == pytest.approx(with_it - without, rel=0.02)
    assert found.predicted_gain_ns is None, "what never bound in the recording may bind then"


def test_launches_that_are_late_because_the_host_had_waited_are_laid_to_the_wait() -> None:
    # Each call alone takes nothing: without it the host would wait as long in the next.
    kernel, small = Launch(0, 2_000 * US), [Work(40 * US), Launch(0, 5 * US)] * 20
    waiting = [each for at in range(20) for each in (*small[2 * at : 2 * at + 2], Sync())]
    path = repeated(kernel, Sync(), *waiting)
    with_it, without = (
        simulate({0: [Launch(0, 100 * US), *each]}).length_ns for each in (path, repeated(kernel, *small))
    )
    (first,) = advised_by_replay(path).values()
    assert first.id == "blocking_calls"
    assert advised(*path).keys() == {"blocking_calls"}, "all of them took the host's lead together"
    assert first.gain_high_ns == pytest.approx(with_it - without, rel=0.02)
    spans = simulate({0: path}).run.ranks[0].spans
    computed_ns = STEPS * (2_000 + 20 * 5) * US
    assert first.loss_ns == spans.end_ns.max() - spans.start_ns.min() - computed_ns, "all that the device idles"
    assert "cudaDeviceSynchronize" in first.title


def test_waiting_calls_are_not_blamed_where_the_host_would_be_as_late_without_them() -> None:
    found = advised_by_replay(repeated(Launch(0, 40 * US), Sync(), *[Work(400 * US), Launch(0, 5 * US)] * 4))
    assert "launch_bound" in found
    assert "blocking_calls" not in found


def test_the_bound_of_launches_is_a_host_that_takes_no_time() -> None:
    found = replayed(repeated(Work(2_900 * US), Launch(0, 500 * US)))
    taken, instant = (
        simulate({0: [Launch(0, 100 * US), *repeated(Work(work), Launch(0, 500 * US))]}).length_ns
        for work in (2_900 * US, 0)
    )
    assert found.id == "launch_bound"
    assert found.gain_high_ns == pytest.approx(taken - instant, rel=0.02)


def test_a_graph_that_may_not_answer_leaves_the_bound_of_the_times() -> None:
    run = read_inputs([shared_file("kineto/sampled_pair")])
    together = match_and_align(run)
    given, _ = advise(run, analyze(run, together), together)
    assert all("replayed_gain_ns" not in each.evidence for each in given)


def test_the_largest_loss_of_a_cpu_run_is_that_outside_of_compute_which_may_take_longer_than_it_must() -> None:
    run = on_cores(always(Kernel(start=0, end=300), Sent(start=310, end=900, launch=5), Kernel(start=901, end=990)))
    assert fired(run)["exposed_communication"].title.startswith("Largest loss outside compute: 0.59 ms of a 1 ms step")


def waits_of_two(first: int, second: int | None) -> str:
    """Return the title and the code of the largest loss of a CPU job, of which two ranks wait for so many us for one
    that computes longer."""
    run = on_cores(always(Kernel(start=0, end=300), Sent(start=310, end=900, launch=5), Kernel(start=901, end=990)))
    run = replace(run, ranks={0: run.ranks[0], 1: replace(run.ranks[0], rank=1)}, world_size=2)
    analysis = analyze(run)
    head = replace(analysis.headline, causes={"peer_compute": 590 * US}, exposed_comm_ns=590 * US)
    ranks = [
        replace(info, whole=replace(info.whole, causes={} if each is None else {"peer_compute": each * US}), steps=[])
        for info, each in zip(analysis.ranks, (first, second), strict=True)
    ]
    given_ = RuleInput.of(run, replace(analysis, headline=head, ranks=ranks), match_and_align(run))
    named = largest_loss(given_, [])
    assert named
    return f"{named.title}\n{named.apply}"


@pytest.mark.slow
def test_who_waits_for_whom_is_said_of_two_ranks_of_which_one_waits() -> None:
    said = waits_of_two(1000, 50)
    assert "wait: the late rank computed longer (rank 0 waits for rank 1)" in said
    assert "no rank is late throughout" not in said
    for second in (200, 300):  # 20 and 30 % of what the other one waits
        assert "waits for rank" not in waits_of_two(1000, second)
    assert "no rank is late throughout" not in waits_of_two(1000, 200)
    assert "no rank is late throughout" in waits_of_two(1000, 300)
    assert "waits for rank" not in waits_of_two(1000, None), "how long the other one waits is not known"


@pytest.mark.parametrize(("blame", "by_turns"), [((90, 10), False), ((55, 45), True)])
def test_ranks_are_late_by_turns_only_where_none_has_most_of_the_blame(blame: tuple[int, int], by_turns: bool) -> None:
    run = on_cores(always(Kernel(start=0, end=300), Sent(start=310, end=900, launch=5), Kernel(start=901, end=990)))
    analysis = analyze(replace(run, ranks={0: run.ranks[0], 1: replace(run.ranks[0], rank=1)}, world_size=2))
    skew = [
        SkewRank(rank=rank, collective_ns=100, wait_ns=50, wait_fraction=0.5, blame_ns=each, blame_estimate="matched",
                 start_of_recording_ns=0, late_end_ns=0, times_last=1, idle_ns=0)
        for rank, each in enumerate(blame)
    ]  # fmt: skip
    ranks = [replace(info, whole=replace(info.whole, causes={"peer_compute": 500 * US})) for info in analysis.ranks]
    known = replace(analysis, ranks=ranks, skew=replace(analysis.skew, ranks=skew, stragglers=[]))
    assert wait_by_turns(known) is by_turns


BESIDE = (Sent(start=905, end=970, launch=5), Kernel(start=971, end=1000))
"""65 us of communication, and 29 of compute after it."""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("items", "said"),
    [
        pytest.param((Kernel(start=0, end=901), *BESIDE), "; 93 % of the step is compute", id="nearly all of it"),
        pytest.param(
            (Kernel(start=0, end=901), Sent(start=100, end=700, launch=2), *BESIDE), "; 93 % of the step is compute",
            id="some of it beside communication",
        ),
        pytest.param((Kernel(start=0, end=751), *BESIDE), None, id="less than four fifths of it"),
        pytest.param(
            (Kernel(start=0, end=870), Sent(start=870, end=975, launch=5), Kernel(start=975, end=1000)), None,
            id="more than a tenth is exposed",
        ),
    ],
)  # fmt: skip
def test_where_little_communication_is_exposed_it_is_said_that_the_step_is_compute(
    items: Sequence[Kernel | Sent], said: str | None
) -> None:
    title = fired(on_cores(always(*items)))["exposed_communication"].title
    assert said is None or title.endswith(said)
    assert ("is compute" in title) is (said is not None)
    assert said is None or fired(always(*items))["exposed_communication"].title.endswith(said), "with a device"


@pytest.mark.parametrize(
    ("exposed", "alone", "beside", "said"),
    [
        pytest.param(100, 800, 0, "; 80 % of the step is compute", id="a tenth, and four fifths"),
        pytest.param(100, 300, 500, "; 80 % of the step is compute", id="most of it beside communication"),
        pytest.param(101, 800, 0, "", id="more than a tenth"),
        pytest.param(100, 799, 0, "", id="less than four fifths"),
        pytest.param(60, None, None, "", id="compute is not known"),
    ],
)
def test_from_a_tenth_of_the_step_on_communication_decides_too(
    exposed: int, alone: int | None, beside: int | None, said: str
) -> None:
    run = always(Kernel(start=0, end=901), *BESIDE)
    analysis = analyze(run)
    head = replace(
        analysis.headline, step_ns=1000 * MS, exposed_comm_ns=exposed * MS, idle_ns=0, causes={"queued": exposed * MS},
        compute_only_ns=None if alone is None else alone * MS, overlapped_ns=None if beside is None else beside * MS,
    )  # fmt: skip
    ranks = [replace(each, steps=[replace(step, causes={}) for step in each.steps]) for each in analysis.ranks]
    given_ = RuleInput.of(run, replace(analysis, headline=head, ranks=ranks), match_and_align(run))
    named = largest_loss(given_, [])
    assert named
    assert named.title.endswith(f"queued behind another collective{said}")


@pytest.mark.parametrize(
    ("causes", "named"),
    [
        pytest.param({"behind_compute": 45, "queued": 40}, "40 ms of it: queued behind another", id="less than half"),
        pytest.param(
            {"behind_compute": 60, "queued": 40}, "gaps between kernels beside communication take 60 ms of", id="most"
        ),
    ],
)  # fmt: skip
def test_gaps_between_kernels_are_named_where_they_are_most_of_what_is_exposed(
    causes: dict[str, int], named: str
) -> None:
    assert named in loss_of(causes, idle=0).title


def loss_of(causes: dict[str, int], idle: int) -> Recommendation:
    """Return the largest loss of steps of 1,000 ms, 100 of which are exposed for these causes; all in ms."""
    run = always(Kernel(start=0, end=901), *BESIDE)
    analysis = analyze(run)
    head = replace(
        analysis.headline, step_ns=1000 * MS, exposed_comm_ns=100 * MS, idle_ns=idle * MS,
        causes={cause: ns * MS for cause, ns in causes.items()}, idle_causes={"input": idle * MS},
    )  # fmt: skip
    ranks = [replace(each, steps=[replace(step, causes={}) for step in each.steps]) for each in analysis.ranks]
    loss = largest_loss(RuleInput.of(run, replace(analysis, headline=head, ranks=ranks), match_and_align(run)), [])
    assert loss
    return loss


@pytest.mark.parametrize(
    ("idle", "title", "loss", "measured"),
    [
        pytest.param(
            19, "gaps between kernels beside communication take 60 ms of a 1000 ms step", 60, (MEASURED_GAPS,),
            id="idle time is not worth it",
        ),
        pytest.param(
            20, "gaps between kernels take 60 ms beside communication, and the device is idle for 20 ms of a 1000 ms "
            "step, 20 ms of it: ", 80, (MEASURED_GAPS, MEASURED_IDLE), id="it is",
        ),
    ],
)  # fmt: skip
def test_beside_gaps_idle_time_is_named_only_where_it_is_worth_it(
    idle: int, title: str, loss: int, measured: tuple[str, ...]
) -> None:
    found = loss_of({"behind_compute": 60, "queued": 40}, idle)
    assert title in found.title
    assert ("idle" in found.title) is (MEASURED_IDLE in measured)
    assert found.loss_ns == loss * MS
    assert set(measured) <= set(found.measured)
    assert (MEASURED_IDLE in found.measured) is (MEASURED_IDLE in measured)


@pytest.mark.slow
def test_hosts_without_cores_are_not_told_to_load_data_beside_the_step() -> None:
    """They pause while they fetch a batch, too."""
    found = {each.id for each in analyzed(draw("shared_cores", 1042).job).recommendations}
    assert "shared_cores" in found
    assert "data_loading" not in found
