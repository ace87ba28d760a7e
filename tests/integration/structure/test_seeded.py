"""Regressions seeded into examples are caught with their line; neutral patches of them raise no alert."""

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from overlapscope.analysis.compare.measured_run import MeasuredRun, measure_run
from overlapscope.gate.policy import Policy
from overlapscope.gate.verdict import Gate, judge
from overlapscope.report.sheet.gate import failed_changes
from tests.integration.structure.seeded import Patch, dry_run, lines_of, neutral, patched, regressions

pytest.importorskip("torch", reason="torch is not installed: nothing can be dry-run")

pytestmark = [
    pytest.mark.torch,
    pytest.mark.dry_run,
    pytest.mark.xdist_group("seeded"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),  # torch renames functions from version to version
]

QUICK = ("stray item", "reductions awaited at once", "reductions behind backward", "layer renamed", "twice the batch")
"""Patches that are tried by `make test-all`; all others are long."""
Judged = Callable[[Patch], tuple[Gate, Path]]


def _marked(patches: list[Patch]) -> list[object]:
    short = [each for each in patches if each.name in QUICK and each.example in ("ddp.py", "own_overlap.py")]
    return [pytest.param(each, id=each.label, marks=() if each in short else (pytest.mark.long,)) for each in patches]


@pytest.fixture(scope="module")
def judged(tmp_path_factory: pytest.TempPathFactory) -> Judged:
    folder = tmp_path_factory.mktemp("seeded")

    @cache
    def measured(patch: Patch) -> MeasuredRun:
        patched(patch, folder / patch.label)
        return measure_run(dry_run(folder / patch.label, patch.example), patch.label)

    def judged_patch(patch: Patch) -> tuple[Gate, Path]:
        base = measured(Patch(name="base", example=patch.example))
        return judge([base], [measured(patch)], Policy()), folder / patch.label

    return judged_patch


def test_the_lists_hold_as_many_patches_as_promised() -> None:
    assert len(regressions()) >= 24
    assert len(neutral()) >= 60


@pytest.mark.slow
@pytest.mark.parametrize("patch", _marked(regressions()))
def test_a_seeded_regression_is_caught_with_the_line_that_launches_it(patch: Patch, judged: Judged) -> None:
    gate, folder = judged(patch)
    assert gate.verdict == "regressed"
    named = [each for each in failed_changes(gate) if each.kind in patch.kinds]
    assert {each.kind for each in named} == set(patch.kinds)
    lines = lines_of(folder, patch.line)
    first = {place for each in named for place in (*each.sources[:1], *each.set_up[:1])}
    assert first & lines


@pytest.mark.slow
@pytest.mark.parametrize("patch", _marked(neutral()))
def test_a_neutral_patch_raises_no_alert(patch: Patch, judged: Judged) -> None:
    gate, _ = judged(patch)
    assert gate.verdict == "passed"
    assert failed_changes(gate) == []
