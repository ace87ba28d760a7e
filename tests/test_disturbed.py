"""Real ranks, one of them disturbed: the clearest case, beside an undisturbed one; all of them in `make test-long`."""

from collections.abc import Sequence
from pathlib import Path

import pytest

import overlapscope
from tests.disturbed.judge import judge
from tests.disturbed.network import NotAllowedError, network
from tests.disturbed.plan import WORLD, Recording
from tests.disturbed.record import record
from tests.long_results import keep

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]


def recorded(recordings: Sequence[Recording], folder: Path) -> list[Path]:
    record(recordings, folder)
    return [folder / "runs" / each.name for each in recordings]


def test_a_rank_that_sleeps_is_named_and_held_the_others_up_as_no_undisturbed_one_does(tmp_path: Path) -> None:
    sleeping = Recording(kind="sleep", mode="events", seed=0, rank=1, place="before backward", share=2.0)
    calm = Recording(kind="control", mode="events", seed=0, rank=None, place="")
    paths = recorded([sleeping, calm], tmp_path)
    blame = [[each.blame_ns for each in overlapscope.load(path).analysis().skew.ranks] for path in paths]
    assert judge(sleeping, tmp_path).accused[:1] == ((1, "host"),)
    assert blame[0][1] > 2 * max(blame[1])


def test_a_throttled_link_is_found_and_nobody_is_said_to_be_late(tmp_path: Path) -> None:
    slow = Recording(kind="one_slow_link", mode="events", seed=0, rank=2, place="both ways")
    try:
        with network(WORLD) as links:
            record([slow], tmp_path, links)
    except NotAllowedError as error:
        pytest.skip(f"no network of namespaces can be made: {error}")
    verdict = judge(slow, tmp_path)
    assert verdict.slow_links in ((2,), (None,))


def test_a_section_of_results_takes_the_place_of_its_last_one(tmp_path: Path) -> None:
    file = tmp_path / "LONG.md"
    for title, text in (("One", "first"), ("Two", "second"), ("One", "third")):
        keep(title, text, file)
    kept = file.read_text(encoding="utf-8")
    assert [line for line in kept.splitlines() if line.startswith("#")] == [
        "# Last results of `make test-long`",
        "## One",
        "## Two",
    ]
    assert "third" in kept
    assert "second" in kept
    assert "first" not in kept
