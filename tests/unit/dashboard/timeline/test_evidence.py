"""From sentences and recommendations to the place on the timeline that proves them."""

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from overlapscope.analysis.common.cause_table import WAITS_FOR_ANOTHER_RANK
from overlapscope.analysis.graph.answers import CriticalPath
from overlapscope.analysis.per_rank.breakdown import Coverage
from overlapscope.analysis.per_rank.occupancy import COMPUTE_ONLY, OVERLAPPED
from overlapscope.analysis.result import ShownBy
from overlapscope.errors import UsageError
from overlapscope.timeline.intervals import difference, union
from overlapscope_dashboards.parts.bars import Segment
from overlapscope_dashboards.runs.open_run import OpenRun
from overlapscope_dashboards.runs.site import Site, run_address
from overlapscope_dashboards.timeline.blocking_chain import blocking_chain
from overlapscope_dashboards.timeline.evidence import named_moment
from overlapscope_dashboards.timeline.source import TimelineSource, source_of
from overlapscope_dashboards.views import overview
from tests.conftest import ROOT, shared_file
from tests.support.browser import watched
from tests.support.dashboard_runs import ids, served

WAIT_MS = 60_000


@pytest.fixture(scope="module")
def regressed(site: Site) -> OpenRun:
    return site.run(ids(site)["regressed"])


@pytest.fixture(scope="module")
def timeline(regressed: OpenRun) -> TimelineSource:
    return source_of(regressed)


def inside_steps(timeline: TimelineSource, rank: int, start: int, end: int) -> bool:
    return any(step.complete and start >= begin and end <= stop for step, begin, stop in timeline.steps(rank))


def by_hand(regressed: OpenRun, timeline: TimelineSource, kind: str) -> tuple[int, int, int]:
    """Return length, rank and middle of the longest exposed or idle time within complete steps."""
    found = []
    for rank, each in regressed.run.ranks.items():
        cover = Coverage.of(each.spans)
        works = union(cover.compute)
        if kind == "exposed":
            times = difference(cover.comm, works)
        else:
            busy = union((each.spans.start_ns, each.spans.end_ns))
            times = type(busy)(busy.ends[:-1], busy.starts[1:])
        start, end = (timeline.aligned(rank, part) for part in (times.starts, times.ends))
        found += [
            (stop - begin, rank, (begin + stop) // 2)
            for begin, stop in zip(start.tolist(), end.tolist(), strict=True)
            if inside_steps(timeline, rank, begin, stop)
        ]
    return max(found, key=lambda each: (each[0], -each[1]))


def test_every_row_of_the_step_in_which_spans_run_leads_to_them(regressed: OpenRun, timeline: TimelineSource) -> None:
    found = overview.step(regressed.analysis)
    assert found is not None
    linked = {each.name: overview.place_of_part(each)[0] for each in found.segments}
    assert [name for name, chain in linked.items() if not chain] == ["outside the rank's own step"]
    assert {"compute only", "overlapped communication"} <= set(linked)
    for kind, state in (("compute", COMPUTE_ONLY), ("hidden", OVERLAPPED)):
        shown = blocking_chain(regressed, f"longest-{kind}")
        own = timeline.snapshot.occupancy[shown.marked[0]]
        at = np.flatnonzero(own.state[:-1] == state)
        lengths, steps = own.at_ns[at + 1] - own.at_ns[at], timeline.steps(shown.marked[0])
        whole = [
            any(
                step.complete
                and begin <= own.at_ns[each] - timeline.origin_ns
                and own.at_ns[each + 1] - timeline.origin_ns <= end
                for step, begin, end in steps
            )
            for each in at
        ]
        longest = at[np.where(whole, lengths, 0).argmax()]
        assert shown.reach[0] <= own.at_ns[longest] - timeline.origin_ns
        assert shown.reach[1] >= own.at_ns[longest + 1] - timeline.origin_ns
    with pytest.raises(UsageError, match="no memcpy only time was recorded"):
        blocking_chain(regressed, "longest-copy")
    for part, place in (
        (Segment(name="idle", ns=1, kind="idle"), "longest-idle"),
        (Segment(name="exposed: unknown", ns=1, kind="unknown"), "longest-unknown"),
        (Segment(name="start of recording", ns=1, kind="idle"), ""),
    ):
        assert overview.place_of_part(part)[0] == place


@pytest.mark.parametrize("kind", ["exposed", "idle"])
def test_the_longest_time_of_a_kind_is_the_longest(regressed: OpenRun, timeline: TimelineSource, kind: str) -> None:
    _, rank, middle = by_hand(regressed, timeline, kind)
    found = named_moment(regressed, timeline, f"longest-{kind}")
    assert found is not None
    assert found[0] == rank
    assert found[1] == pytest.approx(middle, abs=1)
    assert named_moment(regressed, timeline, f"longest-{kind}-{rank}") == found


def test_the_longest_wait_lies_in_time_whose_cause_is_another_rank(
    regressed: OpenRun, timeline: TimelineSource
) -> None:
    found = named_moment(regressed, timeline, "longest-waiting")
    assert found is not None
    rank, moment = found
    assert timeline.figures is not None
    held = [
        cause for cause, each in timeline.figures.causes[rank].busy.items()
        if (
            (timeline.aligned(rank, each.intervals.starts) <= moment)
            & (timeline.aligned(rank, each.intervals.ends) > moment)
        ).any()
    ]  # fmt: skip
    assert held
    assert set(held) <= set(WAITS_FOR_ANOTHER_RANK)


def test_a_recommendation_leads_to_where_it_was_shown(
    regressed: OpenRun, timeline: TimelineSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    advice, notes = regressed.advice
    own = regressed.run.ranks[1].spans
    shown = ShownBy(rank=1, start_ns=int(own.start_ns[40]), end_ns=int(own.start_ns[40]) + 1_000)
    changed = [type(each)(**{name: getattr(each, name) for name in each.__struct_fields__} | {"shown_by": shown})
               for each in advice[:1]]  # fmt: skip
    monkeypatch.setitem(regressed._results, "advice", (changed, notes))
    found = named_moment(regressed, timeline, f"advice-{advice[0].id}")
    assert found == (1, int(timeline.aligned(1, np.array([shown.start_ns + 500]))[0]))
    monkeypatch.setitem(regressed._results, "advice", (advice, notes))
    assert named_moment(regressed, timeline, f"advice-{advice[0].id}") is not None


def test_the_longest_loss_is_that_of_the_analysis(regressed: OpenRun, timeline: TimelineSource) -> None:
    loss = regressed.analysis.critical_path.longest_loss
    assert loss is not None
    shown = blocking_chain(regressed, "loss")
    assert shown.marked[0] == loss.rank
    assert shown.marked[1:] == pytest.approx((loss.start_ns / 1e6, loss.end_ns / 1e6))


@pytest.mark.parametrize(
    ("name", "words"),
    [("longest-nothing", "no time of kind"), ("longest-exposed-77", "no times of rank 77"),
     ("advice-nothing", "no recommendation"), ("longest-gil_contention", "no time of kind")],
)  # fmt: skip
def test_a_name_that_leads_nowhere_says_so(regressed: OpenRun, timeline: TimelineSource, name: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        named_moment(regressed, timeline, name)
    assert named_moment(regressed, timeline, "0@17") is None


def test_sentences_have_places_only_where_something_was_exposed(regressed: OpenRun, site: Site) -> None:
    analysis = regressed.analysis
    lead, *others = [overview.lead(analysis), *overview.happened(analysis), *overview.why(analysis)]
    assert [each.chain for each in lead.proofs] == ["longest-exposed"]
    assert all(each.proofs for each in others), [each.text for each in others if not each.proofs]
    head = msgspec.structs.replace(analysis.headline, exposed_comm_ns=None, causes={}, idle_ns=None, idle_causes={})
    silent = msgspec.structs.replace(analysis, headline=head, ranks=[], critical_path=CriticalPath())
    assert not overview.lead(silent).proofs
    assert not overview.why(silent)


# --- in a browser -----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.xdist_group("dashboard-chains")
@pytest.mark.parametrize(
    "name",
    ["kineto/megatron_tp8", "traces/regressed",
     pytest.param("kineto/v100_rank1of2_2020_allreduces.json.gz", marks=pytest.mark.long),
     pytest.param("nsys/nsysai_mfu_2gpu_before.sqlite", marks=pytest.mark.long)],
)  # fmt: skip
def test_every_sentence_and_recommendation_is_one_click_from_its_chain(browser: Any, name: str) -> None:
    folder: Path = ROOT / name if name.startswith("traces/") else shared_file(name)
    address = served([folder]).rstrip("/")
    run = Site([folder]).find_runs().runs[0].id
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.set_default_timeout(WAIT_MS)
    seen = watched(page, address)
    addresses: set[str] = set()
    for start, ready, clicked in (
        ("overview", ".recommended .evidence", (".lead .evidence", ".bars .evidence", ".recommended .evidence")),
        ("recommendations", ".advice .evidence", (".advice .chain-link", ".advice .evidence")),
    ):
        page.goto(address + run_address(run, start))
        page.wait_for_selector(ready)
        addresses |= set(page.locator("main .evidence").evaluate_all("all => all.map(e => e.getAttribute('href'))"))
        for each in clicked:
            page.locator(each).first.click()
            page.wait_for_selector(".tl-steps .tl-step")
            page.wait_for_function("() => /t0=/.test(location.search) && /chain=[0-9]+(%40|:)/.test(location.search)")
            page.wait_for_selector("#timeline-drawn .band", state="attached")
            page.go_back()
            page.wait_for_selector(ready)
        without = """() => [...document.querySelectorAll('.three .card > p, .lead')]
          .filter(each => !each.querySelector('.evidence')).map(each => each.innerText)"""
        assert page.evaluate(without) == [], "each sentence has a place that proves it"
    assert len(addresses) >= 5
    followed = """hrefs => Promise.all(hrefs.map(href => fetch(href.replace('?', '/chain?')).then(each => each.json())
      .then(each => each.steps ? each.steps.length : each.problem)))"""
    steps = page.evaluate(followed, sorted(addresses))
    assert all(isinstance(each, int) and each > 0 for each in steps), list(zip(sorted(addresses), steps, strict=True))
    assert seen == []
