"""Bucket assignment: against torch's own function on drawn models, and against sizes that a real job reported."""

import csv
import json
from collections.abc import Sequence
from inspect import signature
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from overlapscope.whatif.ddp.buckets import MIB, Bucket, DdpSettings, assign, ddp_buckets
from tests.conftest import shared_file
from tests.support.fork_server import start

KINDS = ("float32", "float16", "bfloat16")
SIZES = st.lists(st.tuples(st.integers(1, 400), st.sampled_from(KINDS)), min_size=1, max_size=40)
LIMITS = st.lists(st.integers(1, 2000), min_size=1, max_size=4)
ITEM = {"float32": 4, "float16": 2, "bfloat16": 2}


def shown(buckets: Sequence[Bucket]) -> list[tuple[list[int], int]]:
    return [(list(each.parameters), each.limit_bytes) for each in buckets]


@pytest.mark.torch
@settings(max_examples=40)
@given(model=SIZES, limits=LIMITS, seed=st.randoms(use_true_random=False))
def test_buckets_are_those_of_torch(model: list[tuple[int, str]], limits: list[int], seed: object) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: its own assigner is missing")
    theirs = torch.distributed._compute_bucket_assignment_by_size
    tensors = [torch.empty(elements, dtype=getattr(torch, kind)) for elements, kind in model]
    sizes = [elements * ITEM[kind] for elements, kind in model]
    kinds = [kind for _, kind in model]
    buckets, per_bucket = theirs(tensors, limits, [])
    assert shown(assign(sizes, kinds, limits)) == list(zip(buckets, per_bucket, strict=True))

    order = list(range(len(model)))
    seed.shuffle(order)  # type: ignore[attr-defined]
    buckets, per_bucket = theirs([tensors[each] for each in order], limits, [], order)
    assert shown(assign(sizes, kinds, limits, order=order)) == list(zip(buckets, per_bucket, strict=True))


def resnet18() -> list[int]:
    """The sizes of ResNet-18's parameters as registered, from its published shapes (He et al. 2015)."""
    elements = [64 * 3 * 7 * 7, 64, 64]
    for before, width in ((64, 64), (64, 128), (128, 256), (256, 512)):
        for block in range(2):
            inputs = before if block == 0 else width
            elements += [width * inputs * 9, width, width, width * width * 9, width, width]
            if inputs != width:
                elements += [width * inputs, width, width]
    return [4 * each for each in [*elements, 1000 * 512, 1000]]


def test_resnet18_has_the_sizes_that_a_real_job_reported() -> None:
    sizes = resnet18()
    with shared_file("bucket_sweeps/ddp_sizes_resnet18_pytorch48880.csv").open() as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    assert [row["bucket_cap_mb"] for row in rows] == ["25", "35"]
    for row in rows:
        expected = [int(each) for each in row["sizes_bytes"].split(";")]
        assert sum(sizes) == sum(expected)
        # The job is of a torch whose first bucket was of 1 MiB whatever the cap.
        chosen = DdpSettings(bucket_cap_mb=float(row["bucket_cap_mb"]), small_first_bucket=True)
        buckets = ddp_buckets(sizes, ["float32"] * len(sizes), chosen)
        assert [sum(sizes[each] for each in bucket.parameters) for bucket in buckets] == expected


def test_without_a_cap_only_the_first_bucket_is_small() -> None:
    sizes, kinds = [MIB] * 60, ["float32"] * 60
    counts = [len(bucket.parameters) for bucket in ddp_buckets(sizes, kinds, DdpSettings())]
    assert counts == [1, 25, 25, 9]
    counts = [len(bucket.parameters) for bucket in ddp_buckets(sizes, kinds, DdpSettings(bucket_cap_mb=25))]
    assert counts == [25, 25, 10]


def test_buckets_that_are_never_rebuilt_have_a_small_first_one_only_below_the_cap() -> None:
    unused = DdpSettings(bucket_cap_mb=0.5, small_first_bucket=True, find_unused_parameters=True)
    assert unused.limits() == (MIB // 2,)
    assert replace(unused, static_graph=True).limits() == (MIB, MIB // 2)


def test_caps_are_soft() -> None:
    sizes = [10 * MIB] * 4
    buckets = ddp_buckets(sizes, ["float32"] * 4, DdpSettings(bucket_cap_mb=25))
    assert [each.parameters for each in buckets] == [(3, 2, 1), (0,)]


def test_a_list_of_caps_is_walked_along_and_its_last_repeats() -> None:
    sizes = [MIB] * 12
    chosen = DdpSettings(bucket_cap_mb=7, bucket_cap_mb_list=(1, 4, 2))
    buckets = ddp_buckets(sizes, ["float32"] * 12, chosen)
    assert [(len(each.parameters), each.limit_bytes // MIB) for each in buckets] == [
        (1, 1), (4, 4), (2, 2), (2, 2), (2, 2), (1, 2),
    ]  # fmt: skip


def test_unused_parameters_keep_buckets_in_registered_order_with_the_small_one_last() -> None:
    sizes = [MIB] * 30
    unused = DdpSettings(find_unused_parameters=True)
    buckets = ddp_buckets(sizes, ["float32"] * 30, unused, ready_order=list(range(30)))
    assert [each.parameters for each in buckets] == [tuple(range(26, 30)), tuple(range(1, 26)), (0,)]
    static = DdpSettings(find_unused_parameters=True, static_graph=True)
    buckets = ddp_buckets(sizes, ["float32"] * 30, static, ready_order=list(range(30)))
    assert [len(each.parameters) for each in buckets] == [1, 25, 4]
    assert buckets[0].parameters == (0,)


def test_the_small_bucket_can_be_the_last() -> None:
    sizes = [MIB] * 30
    buckets = ddp_buckets(sizes, ["float32"] * 30, DdpSettings(small_last_bucket=True))
    assert [len(each.parameters) for each in buckets] == [4, 25, 1]
    assert buckets[-1].parameters == (0,)
    buckets = ddp_buckets(sizes[:3], ["float32"] * 3, DdpSettings(small_last_bucket=True), ready_order=[1, 2, 0])
    assert [each.parameters for each in buckets] == [(2, 1), (0,)]


def test_types_fill_buckets_of_their_own() -> None:
    sizes = [MIB, MIB // 2] * 4
    kinds = ["float32", "float16"] * 4
    buckets = assign(sizes, kinds, [MIB, 2 * MIB], order=range(8))
    assert [each.parameters for each in buckets] == [(0,), (1, 3), (2, 4), (5, 7), (6,)]
    assert [each.parameters for each in assign(sizes, kinds, [MIB, 2 * MIB])] == [(0,), (1, 3), (2, 4), (5, 7), (6,)]


def test_each_bucket_is_filled_from_nothing() -> None:
    assert [each.parameters for each in assign([9, 1] * 2, ["float32"] * 4, [10])] == [(0, 1), (2, 3)]


@settings(max_examples=40)
@given(model=SIZES, cap=st.floats(0.0001, 0.002), unused=st.booleans(), small=st.sampled_from((None, True, False)))
def test_every_parameter_is_in_one_bucket_of_its_kind(
    model: list[tuple[int, str]], cap: float, unused: bool, small: bool | None
) -> None:
    sizes = [elements * ITEM[kind] for elements, kind in model]
    kinds = [kind for _, kind in model]
    chosen = DdpSettings(bucket_cap_mb=cap, find_unused_parameters=unused, small_first_bucket=small)
    buckets = ddp_buckets(sizes, kinds, chosen)
    assert sorted(each for bucket in buckets for each in bucket.parameters) == list(range(len(model)))
    for bucket in buckets:
        assert len({kinds[each] for each in bucket.parameters}) == 1
        assert all(before != after for before, after in pairwise(bucket.parameters))
        # What is in it but the last did not fill it.
        assert sum(sizes[each] for each in bucket.parameters[:-1]) < bucket.limit_bytes


TRAIN = """
import json, sys, torch, torch.distributed as dist

folder, cases = sys.argv[1], json.loads(sys.argv[2])
torch.set_num_threads(1)
dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", 1), rank=0, world_size=1)


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.last = torch.nn.Linear(300, 300)  # registered first, used last: readiness is not registration reversed
        self.body = torch.nn.Sequential(*[torch.nn.Linear(300, 300) for _ in range(6)])
        self.wide = torch.nn.Parameter(torch.zeros(70_000, dtype=torch.float64))

    def forward(self, x):
        return self.last(self.body(x)).sum() + self.wide.sum()


for case in cases:
    model = torch.nn.parallel.DistributedDataParallel(Model(), **case)
    for _ in range(3):
        model(torch.ones(2, 300)).backward()
    logged = model._get_ddp_logging_data()
    names = ("bucket_sizes", "rebuilt_bucket_sizes", "prev_iteration_grad_ready_order_indices")
    sizes = [parameter.numel() * parameter.element_size() for parameter in model.parameters()]
    kinds = [str(parameter.dtype) for parameter in model.parameters()]
    print(json.dumps({"sizes": sizes, "kinds": kinds, **{name: logged.get(name) for name in names}}))
dist.destroy_process_group()
"""


@pytest.mark.torch
@pytest.mark.xdist_group("training")
def test_a_real_model_gets_the_buckets_that_its_reducer_reports(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed: there is no reducer to ask")
    cases: list[dict[str, Any]] = [
        {}, {"bucket_cap_mb": 1}, {"bucket_cap_mb": 0.5}, {"find_unused_parameters": True},
        {"bucket_cap_mb": 1, "find_unused_parameters": True},
    ]  # fmt: skip
    if "bucket_cap_mb_list" in signature(torch.nn.parallel.DistributedDataParallel).parameters:  # torch 2.13
        cases.append({"bucket_cap_mb_list": [0.35, 1.5]})
    (ended,) = start([["-c", TRAIN, str(tmp_path), json.dumps(cases)]]).wait(300)
    assert ended.code == 0, ended.output
    lines = [line for line in ended.stdout.splitlines() if line.startswith("{")]  # gloo writes lines, too
    for case, line in zip(cases, lines, strict=True):
        logged = json.loads(line)
        chosen = DdpSettings(**{**case, "bucket_cap_mb_list": tuple(case.get("bucket_cap_mb_list", ()))})
        sizes = logged["sizes"]
        order = [int(each) for each in logged["prev_iteration_grad_ready_order_indices"].split(",")]
        steady = logged["rebuilt_bucket_sizes"] if chosen.rebuilds else logged["bucket_sizes"]
        buckets = ddp_buckets(sizes, logged["kinds"], chosen, ready_order=order)
        assert [sum(sizes[each] for each in one.parameters) for one in buckets] == numbers(steady), case


def numbers(text: str) -> list[int]:
    return [int(each) for each in text.split(",")]
