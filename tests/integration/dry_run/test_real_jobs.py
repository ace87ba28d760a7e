"""The collectives of a dry run are those that `overlapscope.profile` records of the same code on 4 real processes."""

import json
from pathlib import Path

import pandas as pd
import pytest

import overlapscope
from overlapscope.analysis.structure.conformance import conformance
from overlapscope.loaded_run import LoadedRun
from tests.support.fork_server import start
from tests.support.old_torch import pipelines_run_over_gloo

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.dry_run,
    pytest.mark.xdist_group("training"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # torch renames functions from version to version
]

WORLD = 4
AT_ONCE = ("ddp_no_sync", "fsdp_mixed_precision", "pipeline", "by_hand")
"""Kinds that each change is tried with; the others are tried with `long`."""
LATER = (
    "ddp_fp16", "hsdp", "tensor_sequence", "experts", "fsdp_tensor",
    "ddp", "ddp_static_graph", "ddp_views", "ddp_unused", "ddp_buffers", "ddp_accumulates", "ddp_power_sgd", "fsdp",
    "fsdp_no_reshard", "fsdp_prefetch", "fsdp_accumulates", "fsdp_checkpointed", "tensor", "pipeline_interleaved",
    "ring", "functional", "coalesced",
)  # fmt: skip
EXAMPLES = (
    "ddp.py", "fsdp.py", "tensor_parallel.py", "two_d.py", "own_overlap.py", "conv.py", "grouped_query.py", "hybrid.py",
    "experts.py", "sharded_optimizer.py", "ring.py",
)  # fmt: skip
"""Models of the seeded changes."""
OVERLAP = {"prefetch_lost", "overlap_lost"}
Calls = dict[tuple[int, ...], list[tuple[str, int | None, str | None]]]
Modules = dict[tuple[int, ...], list[str | None]]


def trained(kinds: tuple[str, ...], folder: Path, timeout: float) -> Path:
    """Run every kind on real processes; each leaves its run in a folder of its name."""
    words = [str(WORLD), str(folder / "store"), str(folder), *kinds]
    job = start([["-m", "tests.integration.jobs.dry_truth", str(rank), *words] for rank in range(WORLD)])
    ended = job.wait(timeout)
    assert [each.code for each in ended] == [0] * WORLD, ended[0].output[-2000:]
    return folder


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    runnable = tuple(kind for kind in AT_ONCE if kind != "pipeline" or pipelines_run_over_gloo())
    return trained(runnable, tmp_path_factory.mktemp("real"), timeout=240)


@pytest.fixture(scope="module")
def really(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained((*LATER, *EXAMPLES), tmp_path_factory.mktemp("really"), timeout=600)


def dry(kind: str) -> LoadedRun:
    from tests.integration.jobs import dry_steps  # noqa: PLC0415 - it imports torch

    return overlapscope.dryrun(dry_steps.build_of(kind), world_size=WORLD, ranks=range(WORLD))


def by_group(
    calls: pd.DataFrame, members: dict[str, list[int]]
) -> tuple[Calls, dict[tuple[int, ...], list[str | None]]]:
    """Operation, bytes and dtype of the calls on each group in their order, and the modules that they are of."""
    found: Calls = {}
    modules: Modules = {}
    for call in calls.itertuples():
        group = tuple(members[call.group])
        size = None if pd.isna(call.bytes) else int(call.bytes)
        found.setdefault(group, []).append((call.op, size, None if pd.isna(call.dtype) else call.dtype))
        modules.setdefault(group, []).append(None if pd.isna(call.module) else call.module)
    return found, modules


def check(kind: str, folder: Path) -> None:
    recorded, dried = overlapscope.load(folder / kind), dry(kind)
    assert len(recorded.ranks) == WORLD
    named = {group.name: list(group.ranks or ()) for group in dried.run.groups}
    for rank in range(WORLD):
        table = recorded.table("collectives", rank).sort_values("launch_ns", kind="stable")
        members = json.loads((folder / f"{kind}.groups{rank}.json").read_text())
        real_calls, real_modules = by_group(table[table.step == table.step.max()], members)
        dry_calls, dry_modules = by_group(dried.table("collectives", rank), named)
        assert real_calls
        assert dry_calls == real_calls, f"rank {rank}"
        for group, modules in real_modules.items():  # a recording knows the modules of FSDP's calls alone
            pairs = zip(modules, dry_modules[group], strict=True)
            assert all(ours == theirs for theirs, ours in pairs if theirs is not None), f"rank {rank}"
        program = json.loads((folder / f"{kind}.program{rank}.json").read_text())
        assert products_and_waits(dried.table("operations", rank)) == program, f"rank {rank}"
    held = conformance(dried.run, recorded.run)
    assert held is not None
    assert {each.kind for each in held.changes} <= OVERLAP  # gloo takes its time from the same cores
    assert held.ranks == list(range(WORLD))


def products_and_waits(operations: pd.DataFrame) -> list[str]:
    """The order of matrix products, functional collectives, and waits for these."""
    from tests.integration.jobs.dry_truth import PRODUCTS  # noqa: PLC0415 - it imports torch

    rows: list[str] = []
    calls: dict[int, int] = {}
    for each in operations.itertuples():
        if each.name.split(".")[1:2] in ([name] for name in PRODUCTS):
            rows.append(each.name.split(".")[1])
        elif each.name.startswith("_c10d_functional."):
            rows.append(f"call {len(calls)}")
            calls[each.order] = len(calls)
        elif each.work == "wait" and each.awaited in calls:
            rows.append(f"wait {calls[each.awaited]}")
    return rows


@pytest.mark.parametrize("kind", AT_ONCE)
def test_a_dry_run_has_the_collectives_of_the_real_job(kind: str, real: Path) -> None:
    if kind == "pipeline" and not pipelines_run_over_gloo():
        pytest.skip("this torch's pipelines hang over gloo")
    check(kind, real)


@pytest.mark.long
@pytest.mark.parametrize("kind", [*LATER, *EXAMPLES])
def test_a_dry_run_of_a_rarer_kind_has_the_collectives_of_the_real_job(kind: str, really: Path) -> None:
    check(kind, really)


def test_every_kind_is_tried() -> None:
    from tests.integration.jobs import dry_steps  # noqa: PLC0415 - as above

    assert {each.__name__ for each in dry_steps.KINDS} == {*AT_ONCE, *LATER}
