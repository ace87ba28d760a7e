"""Real ranks, one of them disturbed: the clearest case, beside an undisturbed one.

All of them: `tests.integration.disturbed`.
"""

from pathlib import Path

import msgspec
import pytest

import overlapscope
from tests.integration.disturbed.judge import judge
from tests.integration.disturbed.network import NotAllowedError, links_to_compare
from tests.integration.disturbed.plan import WORLD, Recording
from tests.integration.disturbed.record import record
from tests.support.long_results import keep

pytest.importorskip("torch", reason="torch is not installed: nothing can be recorded")
pytestmark = [pytest.mark.torch, pytest.mark.xdist_group("training")]


SLEEPING = Recording(kind="sleep", mode="events", seed=0, rank=1, place="before backward", share=2.0)
CALM = Recording(kind="control", mode="events", seed=0, rank=None, place="")
SHARED_CORE, OWN_CORES = (
    Recording(kind=kind, mode="events", seed=0, rank=None, place="") for kind in ("shared_core", "own_cores")
)
SLOW_LINK = Recording(kind="one_slow_link", mode="events", seed=0, rank=2, place="both ways")


class Recorded(msgspec.Struct, frozen=True):
    """Where the recordings lie, and why there is none of a slow link."""

    folder: Path
    no_links: str = ""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    """Record all in one job: its ranks take longer to start than to train."""
    folder = tmp_path_factory.mktemp("disturbed")
    try:
        with links_to_compare(WORLD) as links:
            record([SLEEPING, CALM, SHARED_CORE, OWN_CORES, SLOW_LINK], folder, links)
    except NotAllowedError as error:
        record([SLEEPING, CALM, SHARED_CORE, OWN_CORES], folder)
        return Recorded(folder, str(error))
    return Recorded(folder)


@pytest.mark.long
def test_a_rank_that_sleeps_is_named_and_held_the_others_up_as_no_undisturbed_one_does(recorded: Recorded) -> None:
    assert judge(SLEEPING, recorded.folder).accused[:1] == ((1, "host"),)
    blame = {
        made: [each.blame_ns for each in overlapscope.load(recorded.folder / "runs" / made.name).analysis().skew.ranks]
        for made in (SLEEPING, CALM)
    }
    assert blame[SLEEPING][1] > 2 * max(blame[CALM])


@pytest.mark.long
def test_two_ranks_on_one_core_wait_for_it_longer_than_with_a_core_each(recorded: Recorded) -> None:
    """A loaded machine makes ranks with a core each wait, too: how many of twenty is what `make test-long` counts."""
    share = {}
    for made in (SHARED_CORE, OWN_CORES):
        findings = overlapscope.load(recorded.folder / "runs" / made.name).analysis().findings
        share[made] = [each.evidence["median_share"] for each in findings if each.id == "shared_cores"]
    assert judge(SHARED_CORE, recorded.folder).right
    assert share[SHARED_CORE] > share[OWN_CORES]


@pytest.mark.long
def test_a_throttled_link_is_found_and_no_other_ranks_is_named(recorded: Recorded) -> None:
    if recorded.no_links:
        pytest.skip(f"no network of namespaces can be made: {recorded.no_links}")
    assert judge(SLOW_LINK, recorded.folder).slow_links in ((2,), (None,))


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
