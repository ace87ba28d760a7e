"""Where a collective belongs: the dimension of its group, the phase and module of its launch, and exposed time by each.

The oracle for real traces looks at raw events with plain loops: ranges that enclose the launch on its thread.
"""

import re
from pathlib import Path

import pytest

import overlapscope
from overlapscope.analysis.exposure.exposed import ExposedBy
from overlapscope.report.text.analysis import exposed_by_text
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.dimensions import dimension_of, with_dimensions
from overlapscope.timeline.run import Group
from tests.conftest import shared_file
from tests.support import oracle
from tests.support.rank_rows import rank_timeline
from tests.support.writers import kineto
from tests.support.writers.kineto import BACKWARD, MAIN, MS, US


@pytest.mark.parametrize(
    ("text", "dimension"),
    [
        ("mesh_tp", "tensor"),
        ("mesh_dp_shard_cp", "data"),
        ("mesh_dp_replicate", "data"),
        ("mesh_pp", "pipeline"),
        ("mesh_ep", "expert"),
        ("mesh_cp", "context"),
        ("mesh_etp", "tensor"),
        ("mesh_efsdp", "data"),
        ("mesh_data_parallel", "data"),
        ("mesh_sequence_parallel", "context"),
        ("mesh_data", "data"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "tensor"),
        ("DATA_PARALLEL_GROUP_WITH_CP", "data"),
        ("INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "data"),
        ("PIPELINE_MODEL_PARALLEL_GROUP", "pipeline"),
        ("PIPELINE", "pipeline"),
        ("CONTEXT_PARALLEL_GROUP", "context"),
        ("EXPERT_MODEL_PARALLEL_GROUP", "expert"),
        ("EXPERT_DATA_PARALLEL_GROUP", "data"),
        ("EXPERT_TENSOR_PARALLEL_GROUP", "tensor"),
        ("EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", "expert"),
        ("TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP", None),
        ("TENSOR_AND_CONTEXT_PARALLEL_GROUP", None),
        ("EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", None),
        ("MODEL_PARALLEL_GROUP", None),
        ("EMBEDDING_GROUP", None),
        ("mesh_dim_0", None),
        ("mesh_default", None),
        ("default_pg", None),
        ("data_loader_group", None),
        ("undefined", None),
        ("17", None),
        (None, None),
    ],
)
def test_names_of_the_frameworks_tell_the_dimension_and_mixed_ones_tell_none(text, dimension):
    assert dimension_of(text) == dimension


def launched(name, at_ns, number, *, thread=MAIN, group="9", op="allreduce"):
    """Return a collective launched at a time on a thread; it runs 2 ms later."""
    args = kineto.collective_args(op, elements=1 << 20, seq=number, group=group)
    args["Process Group Description"] = name
    return [
        kineto.record_param_comms(at_ns - 10 * US, 30 * US, thread=thread, args=args),
        kineto.launch(at_ns, 1000 + number, thread=thread),
        kineto.kernel(
            kineto.NCCL_KERNEL,
            at_ns + 2 * MS,
            100 * US,
            stream=kineto.COMM_STREAM,
            correlation=1000 + number,
            args=args,
        ),
    ]


def places(tmp_path: Path, events, **options):
    path = tmp_path / "rank0.pt.trace.json"
    first = [kineto.launch(5 * US, 1), kineto.kernel(kineto.GEMM, 100 * US, 50 * MS, correlation=1)]
    path.write_bytes(kineto.write([*first, *events], metadata=kineto.distributed(0), **options))
    table = overlapscope.load(path).table("collectives", 0).sort_values("seq")
    columns = ("dimension", "phase", "module")
    return [tuple(None if row[each] != row[each] else row[each] for each in columns) for _, row in table.iterrows()]


def test_ranges_around_the_launch_tell_phase_and_module(tmp_path):
    events = [
        kineto.step(1, 0, 40 * MS),
        kineto.annotation("FSDP::pre_forward (layers.7)", 1 * MS, 1 * MS),
        kineto.annotation("FSDP::all_gather (layers.7)", 1 * MS + 100 * US, 500 * US),
        *launched("mesh_dp_shard_cp", 1 * MS + 200 * US, 1),
        kineto.annotation("FSDP::pre_backward (layers.7)", 5 * MS, 2 * MS, thread=BACKWARD),
        kineto.annotation("FSDP::backward_prefetch for layers.6", 5 * MS + 200 * US, 1 * MS, thread=BACKWARD),
        kineto.annotation("FSDP::all_gather (layers.6)", 5 * MS + 300 * US, 500 * US, thread=BACKWARD),
        *launched("mesh_dp_shard_cp", 5 * MS + 400 * US, 2, thread=BACKWARD),
        kineto.annotation("FSDP::post_backward_reduce", 9 * MS, 1 * MS, thread=BACKWARD),
        *launched("mesh_dp_shard_cp", 9 * MS + 200 * US, 3, thread=BACKWARD),
        kineto.annotation("Optimizer.step#AdamW.step", 15 * MS, 5 * MS),
        *launched("mesh_dp_shard_cp", 16 * MS, 4),
        *launched("mesh_dp_shard_cp", 25 * MS, 5),
    ]
    assert places(tmp_path, events) == [
        ("data", "forward", "layers.7"),
        ("data", "backward", "layers.6"),
        ("data", "backward", None),
        ("data", "optimizer", None),
        ("data", None, None),
    ]


def test_broadcasts_inside_ddps_forward_are_those_of_its_buffers(tmp_path):
    events = [
        kineto.annotation("DistributedDataParallel.forward", 1 * MS, 2 * MS),
        *launched("default_pg", 1 * MS + 200 * US, 1, op="broadcast"),
        *launched("default_pg", 2 * MS, 2),
        *launched("default_pg", 9 * MS, 3, op="broadcast"),
    ]
    found = places(tmp_path, events)
    assert found == [("data", "forward", "DDP buffers"), (None, "forward", None), (None, None, None)]


def test_recomputation_inside_the_backward_pass_is_backward(tmp_path):
    node = "autograd::engine::evaluate_function: CheckpointFunctionBackward"
    events = [
        kineto.op(node, 1 * MS, 5 * MS, thread=BACKWARD),
        kineto.annotation("FSDP::pre_forward (layers.1)", 2 * MS, 1 * MS, thread=BACKWARD),
        *launched("mesh_tp", 2 * MS + 100 * US, 1, thread=BACKWARD),
    ]
    assert places(tmp_path, events) == [("tensor", "backward", "layers.1")]


@pytest.mark.parametrize("dialect", [kineto.TORCH_2024, kineto.ABSOLUTE_FLOATS])
def test_a_modules_call_in_the_hosts_stack_tells_its_name_and_the_forward_pass(tmp_path, dialect):
    """Stacks are written where `with_stack` is on; other ranges of them say nothing."""
    events = [
        kineto.op("nn.Module: Block_2", 1 * MS, 4 * MS, sort="python_function"),
        kineto.op("nn.Module: RowParallelLinear_7", 2 * MS, 1 * MS, sort="python_function"),
        kineto.op("layers.py(300): forward", 2 * MS + 10 * US, 900 * US, sort="python_function"),
        *launched("mesh_tp", 2 * MS + 200 * US, 1),
        *launched("mesh_tp", 4 * MS, 2),
        kineto.op("train.py(12): step", 8 * MS, 1 * MS, sort="python_function"),
        *launched("mesh_tp", 8 * MS + 100 * US, 3),
    ]
    assert places(tmp_path, events, dialect=dialect) == [
        ("tensor", "forward", "RowParallelLinear_7"),
        ("tensor", "forward", "Block_2"),
        ("tensor", None, None),
    ]


def test_what_autograds_own_thread_launches_is_backward_and_what_the_main_thread_does_besides_is_unknown(tmp_path):
    node = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        kineto.step(1, 0, 40 * MS),
        kineto.op(node, 1 * MS, 1 * MS, thread=BACKWARD),
        *launched("default_pg", 3 * MS, 1, thread=BACKWARD),
        *launched("default_pg", 3 * MS, 2),
        kineto.op(node, 5 * MS, 1 * MS),
        *launched("default_pg", 7 * MS, 3),
    ]
    assert places(tmp_path, events) == [(None, "backward", None), (None, None, None), (None, None, None)]


def test_gradients_summed_as_they_are_accumulated_are_data_parallel(tmp_path):
    node = "autograd::engine::evaluate_function: torch::autograd::AccumulateGrad"
    other = "autograd::engine::evaluate_function: MmBackward0"
    events = [
        kineto.op(node, 1 * MS, 1 * MS, thread=BACKWARD),
        *launched("default_pg", 1 * MS + 100 * US, 1, thread=BACKWARD),
        kineto.op(other, 5 * MS, 1 * MS, thread=BACKWARD),
        *launched("default_pg", 5 * MS + 100 * US, 2, thread=BACKWARD),
        kineto.op(node, 9 * MS, 1 * MS, thread=BACKWARD),
        *launched("default_pg", 9 * MS + 100 * US, 3, thread=BACKWARD, op="broadcast"),
    ]
    assert [dimension for dimension, _, _ in places(tmp_path, events)] == ["data", None, None]


def test_the_shape_of_groups_tells_only_where_one_reading_is_possible(tmp_path):
    events = [
        kineto.annotation("## forward ##", 1 * MS, 2 * MS),
        *launched("undefined", 2 * MS, 1, group="1"),
        *launched("undefined", 9 * MS, 2, group="2"),
    ]
    path = tmp_path / "rank0.pt.trace.json"
    path.write_bytes(kineto.write(events, metadata=kineto.distributed(0, 4)))
    ranks = overlapscope.load(path).run.ranks

    def dimensions(*groups, world=4):
        timeline = with_dimensions(ranks, groups, world)[0]
        return [timeline.names[code] if code >= 0 else None for code in timeline.collectives.dimension.tolist()]

    rows, columns = Group(name="1", size=2, ranks=(0, 1)), Group(name="2", size=2, ranks=(0, 2))
    assert dimensions(rows, columns) == ["tensor", "data"]
    assert dimensions(rows, columns, world=8) == [None, None]
    assert dimensions(rows) == [None, None]
    # Neighbours that do not all-reduce in the forward pass may as well shard parameters.
    assert dimensions(Group(name="2", size=2, ranks=(0, 1)), Group(name="1", size=2, ranks=(0, 2))) == [None, None]


@pytest.mark.parametrize(
    ("peers", "dimension"),
    [
        pytest.param({0: [1], 1: [0, 2], 2: [1]}, "pipeline", id="a chain"),
        pytest.param({0: [1, 2], 1: [0, 2], 2: [1, 0]}, None, id="a ring"),
        pytest.param({0: [1], 1: [0]}, None, id="two ranks"),
    ],
)
@pytest.mark.parametrize("op", ["send", "all_reduce"])
def test_a_group_that_only_sends_to_neighbours_is_a_pipeline(peers, dimension, op):
    def rank(number):
        calls = [
            {"op": op if at else "send", "group": "0", "peer": peer, "start_ns": at * MS, "end_ns": at * MS + US}
            for at, peer in enumerate(peers[number] * 2)
        ]
        return rank_timeline(number, calls=calls)

    group = Group(name="0", description="default_pg", size=len(peers), ranks=tuple(peers))
    found = with_dimensions({number: rank(number) for number in peers}, (group,), len(peers))
    expected = dimension if op == "send" else None
    for timeline in found.values():
        assert {None if code < 0 else timeline.names[code] for code in timeline.collectives.dimension.tolist()} == {
            expected
        }


@pytest.mark.parametrize(
    ("described", "op", "dimension"),
    [
        pytest.param(["PIPELINE", "PIPELINE"], "recv", "pipeline", id="two described ones with the same ranks"),
        pytest.param(["PIPELINE", "mesh_cp"], "recv", None, id="another dimension has the same ranks"),
        pytest.param(["PIPELINE"], "all_reduce", None, id="not only messages"),
        pytest.param([], "recv", None, id="none described"),
    ],
)
def test_messages_of_an_undescribed_group_are_of_the_pipeline_with_the_same_ranks(described, op, dimension):
    """torch makes more groups of the same ranks, and calls name one that is not described."""
    groups = [Group(name="used", description="undefined", size=2, ranks=(0, 1))]
    groups += [Group(name=str(at), description=said, size=2, ranks=(0, 1)) for at, said in enumerate(described)]
    calls = [
        {"op": name, "group": "used", "start_ns": at * MS, "end_ns": at * MS + US}
        for at, name in enumerate(("send", op, "send", "recv"))
    ]
    found = with_dimensions({number: rank_timeline(number, calls=calls) for number in (0, 1)}, tuple(groups), 2)
    codes = {code for each in found.values() for code in each.collectives.dimension.tolist()}
    assert {found[0].names[code] if code >= 0 else None for code in codes} == {dimension}


@pytest.mark.parametrize(
    ("first", "second", "dimension"),
    [
        pytest.param("sssrrr", "rrrsss", "pipeline", id="all forward, all backward"),
        pytest.param("ssrsrr", "rsrsrs", "pipeline", id="one forward, one backward"),
        pytest.param("srsrsr", "rsrsrs", None, id="a ring"),
        pytest.param("ssrrssrr", "rrssrrss", None, id="a ring of keys and values"),
        pytest.param("sssrrr", "sssrrr", None, id="both send first"),
    ],
)
def test_two_ranks_are_a_pipeline_where_the_first_sends_ahead_and_gets_its_gradients_last(first, second, dimension):
    assert of_order([first, second], lambda number: 1 - number) == {dimension}


@pytest.mark.parametrize(
    ("orders", "dimension"),
    [
        pytest.param(["sssrrr", "rsrsrsrsrsrs", "rsrsrsrsrsrs", "rrrsss"], "pipeline", id="all forward, all backward"),
        pytest.param(["ssrsrr", "rsrsrsrsrsrs", "rsrsrs"], "pipeline", id="one forward, one backward"),
        pytest.param(["ssrr", "rsrs", "rsrs"], None, id="a ring: all do as much"),
        pytest.param(["ssrr", "ssssrrrr", "ssrr"], None, id="neighbours that exchange: all send first"),
        pytest.param(["rrss", "rsrsrsrs", "ssrr"], None, id="stages in another order"),
    ],
)
def test_of_more_ranks_the_order_of_their_messages_says_it_where_no_peer_was_recorded(orders, dimension):
    assert of_order(orders, lambda _: NONE) == {dimension}


def test_messages_of_a_rank_that_was_not_recorded_say_nothing_of_the_order():
    assert of_order(["sssrrr", "rsrsrsrsrsrs"], lambda _: NONE, members=3) == {None}


@pytest.mark.parametrize(
    ("first", "second", "dimension"),
    [
        pytest.param("ssrsrr", "rsrsrs", "pipeline", id="one forward, one backward"),
        pytest.param("ssrrssrr", "rrssrrss", None, id="a ring of keys and values"),
    ],
)
def test_where_no_step_was_marked_the_order_is_that_between_two_optimizers(first, second, dimension):
    orders = [first, second]
    assert of_order(orders, lambda number: 1 - number, optimizers=(-10, 90, 190)) == {dimension}
    assert of_order(orders, lambda number: 1 - number, optimizers=()) == {None}


def of_order(orders, peer_of, members=None, optimizers=None):
    """Return the dimensions of calls in a group whose ranks send (s) and receive (r) in these orders, in two steps;
    `optimizers` begin at these times in ms where no step was marked."""

    def rank(number, order):
        calls = [
            {
                "op": "send" if each == "s" else "recv", "group": "0", "peer": peer_of(number),
                "step": step if optimizers is None else None,
                "start_ns": (step * 100 + at) * MS, "end_ns": (step * 100 + at) * MS + US,
            }
            for step in (0, 1)
            for at, each in enumerate(order)
        ]  # fmt: skip
        notes = [
            {"name": "Optimizer.step#Adam.step", "start_ns": at * MS, "end_ns": at * MS + US} for at in optimizers or ()
        ]
        return rank_timeline(number, calls=calls, annotations=notes)

    size = members or len(orders)
    group = Group(name="0", description="default_pg", size=size, ranks=tuple(range(size)))
    found = with_dimensions({number: rank(number, order) for number, order in enumerate(orders)}, (group,), size)
    return {
        None if code < 0 else timeline.names[code]
        for timeline in found.values()
        for code in timeline.collectives.dimension.tolist()
    }


def phases_by_hand(path: Path) -> dict[str, int]:
    """Count the communicating kernels by the phase of the ranges around their launch, by loops over raw events."""
    trace = oracle.load(path)
    events = [e for e in trace["traceEvents"] if e.get("ph") == "X"]
    launches = {}
    for event in sorted(events, key=lambda e: e["ts"]):
        if event.get("cat") in ("cuda_runtime", "cuda_driver"):
            launches.setdefault((event.get("args") or {}).get("correlation"), event)
    ranges = [e for e in events if e.get("cat") in ("cpu_op", "user_annotation")]
    counted: dict[str, int] = {}
    for event in events:
        launch = launches.get((event.get("args") or {}).get("correlation"))
        if event.get("cat") != "kernel" or "nccl" not in event["name"].lower() or launch is None:
            continue
        around = [
            str(r["name"])
            for r in ranges
            if (r["pid"], r["tid"]) == (launch["pid"], launch["tid"]) and r["ts"] <= launch["ts"] < r["ts"] + r["dur"]
        ]
        if any(name.startswith("autograd::engine::evaluate_function") for name in around):
            phase = "backward"
        elif any(name.startswith("Optimizer.step#") for name in around):
            phase = "optimizer"
        elif any(re.fullmatch(r"## forward ##|DistributedDataParallel\.forward", name) for name in around):
            phase = "forward"
        else:
            phase = "none"
        counted[phase] = counted.get(phase, 0) + 1
    return counted


@pytest.mark.parametrize(
    "name",
    [
        "kineto/a100_ddp_rank0of2_collective_args.json.gz",
        "kineto/sampled_pair/sampled_rank-0.json.gz",
        "kineto/tracelens_mi300_resnet_act_checkpoint.json.gz",
    ],
)
def test_phases_of_real_traces_agree_with_plain_loops(name):
    path = shared_file(name)
    table = overlapscope.load(path)
    calls = table.table("collectives", table.ranks[0])
    known = calls[calls.launch_ns.notna()]
    counted = {
        str(phase): int(count) for phase, count in known.phase.astype("object").fillna("none").value_counts().items()
    }
    assert {phase: count for phase, count in counted.items() if count} == phases_by_hand(path)


def test_exposed_time_by_each_place_shares_out_one_sum():
    analysis = overlapscope.load(shared_file("gloo_torch2.13")).analysis()
    exposed = analysis.exposed_by
    total = sum(exposed.dimension.values())
    assert total > MS
    assert sum(exposed.phase.values()) == pytest.approx(total, abs=20)
    assert sum(exposed.module.values()) == pytest.approx(total, abs=20)
    assert set(exposed.dimension) == {"data"}
    assert set(exposed.phase) == {"forward", "backward"}
    assert {"l.0", "l.1", "l.2", "l.3", "unknown"} >= set(exposed.module)
    steps = [step.exposed_comm_ns for rank in analysis.ranks for step in rank.steps if step.complete]
    assert total == pytest.approx(sum(steps) / len(steps), rel=0.02)
    shown = analysis.headline.exposed_comm_ns
    assert shown is not None
    text = exposed_by_text(exposed, shown)
    assert f"exposed by dimension: data {shown / 1e6:.3f} ms" in text


def test_long_names_keep_their_two_ends():
    name = "model.language_model.layers.17.mlp.experts"
    text = exposed_by_text(ExposedBy(module={name: 5 * MS, "unknown": MS}), 6 * MS)
    assert text == "exposed by module: model.langua...7.mlp.experts 5.000 ms, unknown 1.000 ms"
    assert len("model.langua...7.mlp.experts") == 28


def test_nothing_is_said_where_nothing_can_be_placed():
    analysis = overlapscope.load(shared_file("kineto/megatron_tp8/megatron_kineto_0.json.gz")).analysis()
    assert set(analysis.exposed_by.phase) == {"unknown"}
    assert exposed_by_text(analysis.exposed_by, MS) == ""
