"""The what-if and recommendations pages, without a browser."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.analysis.compare.prediction_check import Outcome, Prediction
from overlapscope.analysis.result import Recommendation
from overlapscope.cli.prediction_file import add_noted
from overlapscope.whatif.ddp.ddp_recording import RecordedCase, ddp_case_of_run
from overlapscope.whatif.ddp.ddp_step import HALF, Settings
from overlapscope.whatif.ddp.search import with_cap
from overlapscope_dashboards.pages import what_if as page
from overlapscope_dashboards.runs.site import Site, parse_query, run_address
from overlapscope_dashboards.server import router
from overlapscope_dashboards.views import recommendations as advice_view
from overlapscope_dashboards.views import what_if as view
from tests.support.dashboard_runs import copy_run, ids, words


@pytest.fixture(scope="module")
def case(site: Site) -> RecordedCase:
    opened = site.run(ids(site)["regressed"])
    return ddp_case_of_run(opened.run, opened.cross_rank)


def _page(site: Site, name: str, run: str = "regressed", **query: str) -> Any:
    return router.show(site, run_address(ids(site)[run], name), query)


def test_settings_are_the_address(case: RecordedCase) -> None:
    base = case.baseline
    assert view.read_settings({}, base) == base
    assert view.read_settings({"cap": "5"}, base) == with_cap(base, 5.0)
    asked = {"cap": "2.5", "hook": "16-bit", "views": "yes", "passes": "4", "sync": "last", "link": "2", "late": "none"}
    assert view.read_settings(asked, base) == Settings(
        ddp=replace(base.ddp, bucket_cap_mb=2.5), gradient_as_bucket_view=True, accumulation=4, no_sync=True,
        communicated=HALF, link_speed=2.0, late_ranks=False,
    )  # fmt: skip


@pytest.mark.parametrize(
    "query",
    [{"cap": "x"}, {"cap": "-1"}, {"cap": "1e99"}, {"cap": "nan"}, {"passes": "0"}, {"passes": "999999"},
     {"link": "inf"}, {"hook": "8-bit"}, {"views": ""}, {"sync": "last"}, {"late": "some"}],
)  # fmt: skip
def test_a_value_that_makes_no_sense_changes_nothing(case: RecordedCase, query: dict[str, str]) -> None:
    assert view.read_settings(query, case.baseline) == case.baseline


def test_every_choice_leads_to_an_address_that_says_it(case: RecordedCase) -> None:
    start = {"cap": "5", "passes": "2", "for": "horovod", "other": "x"}
    asked = view.read_settings(start, case.baseline)
    choices = view.choices(case, asked)
    assert [each.name for each in choices] == ["hook", "views", "passes", "sync", "link", "late"]
    for each in choices:
        assert [chosen for _, _, chosen in each.options].count(True) == 1
        for _, value, chosen in each.options:
            address = run_address("id", "what-if", view.change_setting(start, each.name, value))
            query = parse_query(address.partition("?")[2])
            assert query["cap"] == "5"
            assert query["for"] == "horovod"
            assert "other" not in query
            assert (view.read_settings(query, case.baseline) == asked) == chosen, (each.name, value)


def test_the_page_says_what_a_cap_would_save(site: Site) -> None:
    said = words(_page(site, "what-if", cap="1").content)
    assert "A step would take 126.335 ms instead of 140.533 ms (measured)" in said
    assert "DistributedDataParallel(model, bucket_cap_mb=1)" in said
    assert "reduce_bucket_size" in words(_page(site, "what-if", cap="1", **{"for": "deepspeed"}).content)
    assert "No setting achieves this on its own" in words(_page(site, "what-if", link="2").content)
    assert "that saves 0.000 ms, 0.0 % (" in words(_page(site, "what-if", cap="25").content)
    assert "It changes numerics." in words(_page(site, "what-if", hook="16-bit").content)
    assert "ms per pass instead of" in words(_page(site, "what-if", passes="4").content)


def test_as_recorded_shows_what_was_measured(site: Site, case: RecordedCase) -> None:
    asked = view.replay_settings(case, case.baseline)
    assert not asked.changed
    assert asked.before == asked.after
    assert view.lead(asked).startswith("A step takes 140.533 ms (measured)")
    assert view.figures(asked)[0][1] == "140.533"


def test_settings_are_replayed_once(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    plain = view.replay_settings
    monkeypatch.setattr(page.view, "replay_settings", lambda *given: asked.append(given) or plain(*given))
    fresh = Site(site.roots)
    for framework in ("ddp", "megatron", "ddp"):
        _page(fresh, "what-if", cap="5", **{"for": framework})
    assert len(asked) == 1


def test_a_recording_that_cannot_be_replayed_says_why(site: Site) -> None:
    opened = Site(site.roots).run(ids(site)["baseline"])
    alone = replace(opened.run, ranks={rank: replace(each.at_hand(), gradients=type(each.gradients)(
        **{name: getattr(each.gradients, name)[:0] for name in each.gradients.__struct_fields__}
    )) for rank, each in opened.run.ranks.items()})  # fmt: skip
    opened._results["run"] = alone
    said = words(page.layout(opened, {}))
    assert "cannot be replayed" in said
    assert "gradients" in said
    assert "overlapscope.profile" in said


def test_flat_regions_are_given_in_mebibytes(case: RecordedCase) -> None:
    curve = view.replay_settings(case, with_cap(case.baseline, 5.0)).curve
    near = [cap for low, high in view.best_cap_ranges(curve) for cap in curve.caps_mb if low <= cap <= high]
    assert near == list(curve.flat_mb)
    apart = replace(curve, flat_mb=(1.0, 2.0, 12.0))
    assert view.best_caps_sentence(apart).startswith("Caps of 1 to 2 or 12 MiB")
    assert view.best_caps_sentence(replace(curve, flat_mb=())) == ""
    assert "cap of 5 MiB" in view.best_caps_sentence(replace(curve, flat_mb=(5.0,)))
    assert [row[-1] for row in view.curve_rows(curve)].count("yes") == len(curve.flat_mb)


# --- recommendations --------------------------------------------------------------------------------------------------


def test_all_recommendations_stand_with_gain_risk_apply_and_verify(site: Site) -> None:
    said = words(_page(site, "recommendations").content)
    assert "10.816 ms per step to gain: Set bucket_cap_mb=10 (1 to 10 MiB are equally good)." in said
    for each in ("saves 10.816 ms per step", "Numerics changes: compare the loss", "overlapscope compare",
                 "overlapscope explain bucket_cap", "assumptions, varied within their ranges",
                 "predicted step 129.717 ms; exposed comm 21.407 ms",
                 "bf16_compress_hook", "overlap slowdown could not be measured"):  # fmt: skip
        assert each in said, each
    chosen = words(_page(site, "recommendations", **{"for": "horovod"}).content)
    assert "HOROVOD_FUSION_THRESHOLD=10485760" in chosen
    assert "Available for DDP only." in chosen


def _recommendation(**given: Any) -> Recommendation:
    known: dict[str, Any] = {
        "id": "x", "title": "Do it", "verdict": "change", "predicted_gain_ns": None, "gain_low_ns": None,
        "gain_high_ns": None, "confidence": "mixed", "memory_bytes": None, "changes_numerics": False, "apply": {},
        "verify": "look",
    }  # fmt: skip
    return Recommendation(**{**known, **given})


def test_a_bound_is_no_gain_and_memory_has_a_direction() -> None:
    (bind_all,) = advice_view.shown([_recommendation(gain_high_ns=2_000_000)], advice_view.CurrentStep())
    assert bind_all.gain == "at most 2.000 ms: the time its cause takes now"
    assert bind_all.interval is None
    facts = [
        dict(advice_view.shown([_recommendation(memory_bytes=each)], advice_view.CurrentStep())[0].facts)
        for each in (-5_000_000, 5_000_000)
    ]
    assert [each["Memory"] for each in facts] == ["5.0 MB less on each rank", "5.0 MB more on each rank"]
    assert dict(bind_all.facts)["Memory"] == "unchanged"


def test_a_framework_without_words_of_its_own_shows_another_ones() -> None:
    (both,) = advice_view.shown([_recommendation(apply={"ddp": "a", "horovod": "b"})], advice_view.CurrentStep())
    assert advice_view.code_for(both, "horovod") == ("horovod", "Horovod", "b")
    assert advice_view.code_for(both, "fsdp2") == ("ddp", "DDP", "a")
    assert advice_view.code_for(advice_view.shown([_recommendation()], advice_view.CurrentStep())[0], "ddp") is None
    assert advice_view.frameworks([both]) == ["ddp", "horovod"]


def test_without_anything_to_gain_that_is_said_first() -> None:
    assert advice_view.lead([]) == "Nothing to recommend."
    assert advice_view.lead([_recommendation(verdict="no_change", title="Leave it")]) == "Leave it."
    assert "trial" in advice_view.lead([_recommendation(verdict="trial")])


def test_earlier_predictions_are_held_against_what_was_measured() -> None:
    def one(measured_ns: int) -> advice_view.MeasuredPrediction:
        return advice_view.MeasuredPrediction(settings="bucket_cap_mb=1", predicted_ns=100_000_000, low_ns=90_000_000,
                            high_ns=110_000_000,
                            measured_ns=measured_ns, run="b", made_at="2026-11-20")  # fmt: skip

    tested = [one(100_000_000), one(125_000_000)]
    assert advice_view.earlier_words(tested) == "1 of 2 measured predictions inside the interval, mean error 10.0 %."
    assert advice_view.earlier_words([]) == ""
    assert [row[-2:] for row in advice_view.earlier_rows(tested)] == [("+0.0 %", "inside"), ("-20.0 %", "outside")]


def test_the_page_tells_what_later_runs_measured_of_this_ones_predictions(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    site = Site([run])
    (place,) = site.find_runs().runs
    address = run_address(place.id, "recommendations")
    assert "No earlier prediction for this run was measured" in words(router.show(site, address, {}).content)
    made = Prediction(
        made_at="2026-01-02", version="0.1.0", verdict="change", recommended=True, present={"bucket_cap_mb": 25.0},
        present_step_ns=120_000_000, ranks=2, gradient_bytes=64, knobs={"bucket_cap_mb": 4.0}, step_ns=90_000_000,
        low_ns=80_000_000, high_ns=99_000_000,
    )  # fmt: skip
    add_noted(
        run, [made], [Outcome(prediction=made, run="later", measured_step_ns=100_000_000, inside=False, error=-0.1)]
    )
    said = words(router.show(site, address, {}).content)
    assert "0 of 1 measured prediction inside the interval, mean error 10.0 %" in said
    for each in ("2026-01-02", "later", "90.000", "80.000 to 99.000", "100.000", "outside"):
        assert each in said
    (run / "predictions.json").write_text("{", encoding="utf-8")
    said = words(router.show(site, address, {}).content)
    assert "predictions.json: holds no predictions" in said
    assert f"{run}/predictions.json" not in said
    assert "Notes" in said
