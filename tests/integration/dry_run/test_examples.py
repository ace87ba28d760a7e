"""Each example of plain torch communicates what its layers say by hand; none has more than 15 lines of the user's."""

import ast
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

import overlapscope
from overlapscope.dry_run.build_function import find_function
from tests.conftest import ROOT

pytest.importorskip("torch", reason="torch is not installed: no step can run")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.dry_run,
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # torch renames functions from version to version
]

FOLDER = ROOT / "examples" / "dryrun"
MOST_LINES = 15
WIDTH, HIDDEN, BLOCKS, WORLD = 512, 2048, 4, 64
ENCODER = (4 * WIDTH + 2 * HIDDEN) * WIDTH + 4 * WIDTH + HIDDEN + WIDTH + 4 * WIDTH
"""Parameters of a layer of the encoder: matrices, their biases, and two norms."""
SPLIT = 2 * HIDDEN * WIDTH // 8 + HIDDEN // 8 + WIDTH
"""Parameters of a block that a rank of 8 has: the second bias is not split."""
TOKENS = 4 * 256 * WIDTH
RING = 2 * 16 * 1024 * 64
MICRO = 256 * WIDTH
Calls = dict[tuple[str, int, int], int]
"""How often each operation is called, by group size and bytes."""
EXPECTED: dict[str, tuple[int, int, Calls]] = {
    "ddp": (WORLD, 0, {("all_reduce", WORLD, 4 * ENCODER): BLOCKS}),
    "fsdp2": (
        WORLD,
        0,
        {("all_gather", WORLD, 2 * ENCODER): 2 * BLOCKS, ("reduce_scatter", WORLD, 4 * ENCODER): BLOCKS},
    ),
    "hsdp": (
        WORLD,
        9,
        {
            ("all_gather", 8, 4 * ENCODER): 2 * BLOCKS,
            ("reduce_scatter", 8, 4 * ENCODER): BLOCKS,
            ("all_reduce", 8, 4 * ENCODER // 8): BLOCKS,
        },
    ),
    "tensor_parallel": (
        WORLD,
        0,
        {
            ("all_gather", 8, 4 * SPLIT): 2 * BLOCKS,  # of parameters; then of tokens, forward and backward
            ("all_gather", 8, 4 * TOKENS): 2 * BLOCKS,
            ("reduce_scatter", 8, 4 * TOKENS): 2 * BLOCKS - 1,  # the batch needs no gradient
            ("reduce_scatter", 8, 4 * SPLIT): BLOCKS,
        },
    ),
    "pipeline": (4, 1, {("send", 4, 4 * MICRO): 16, ("recv", 4, 4 * MICRO): 16}),
    "context_parallel": (8, 3, {("all_to_all", 8, 4 * RING): 14}),
}
"""Of each example: ranks, the rank that is run, and its collectives."""
AT_ONCE = ("ddp", "context_parallel")
"""Examples that every run of the suite tries."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name not in AT_ONCE)) for name in EXPECTED]
)
def test_an_example_communicates_what_its_layers_say(name: str) -> None:
    world, rank, expected = EXPECTED[name]
    run = overlapscope.dryrun(find_function(f"{FOLDER / name}.py:build"), world_size=world, ranks=(rank,))
    calls = run.table("collectives", rank)
    assert Counter(zip(calls.op, calls.group_size, calls.bytes, strict=True)) == Counter(expected)


def test_every_example_is_a_few_lines() -> None:
    examples = sorted(FOLDER.glob("*.py"))
    frameworks = {"trainer", "accelerate_fsdp2", "lightning_ddp", "torchtitan_llama"}
    assert {each.stem for each in examples} == EXPECTED.keys() | frameworks
    for each in examples:
        assert 5 <= len(lines_of_a_user(each)) <= MOST_LINES, each.name


def lines_of_a_user(file: Path) -> set[int]:
    """Return the lines of an example's functions, without what only begins or ends them."""
    found: set[int] = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        body: list[Any] = node.body if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef) else []
        for each in body:
            if isinstance(each, ast.Import | ast.ImportFrom | ast.FunctionDef | ast.ClassDef):
                continue
            if isinstance(each, ast.Return) and isinstance(each.value, ast.Name):  # `return step`
                continue
            if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant):  # a docstring
                continue
            found.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
    return found
