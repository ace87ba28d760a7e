"""The what-if and recommendations pages, without a browser."""

from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from overlapscope.analysis.compare.prediction_check import Outcome, Prediction
from overlapscope.analysis.dry_step import DryStep
from overlapscope.analysis.result import Recommendation
from overlapscope.cli.prediction_file import add_noted
from overlapscope.errors import InputError
from overlapscope.whatif.ddp.ddp_recording import RecordedCase, ddp_case_of_run
from overlapscope.whatif.ddp.ddp_step import HALF, Settings
from overlapscope.whatif.ddp.search import with_cap
from overlapscope.whatif.result import WhatIf
from overlapscope_dashboards.pages import recommendations as advice_page
from overlapscope_dashboards.pages import what_if as page
from overlapscope_dashboards.parts.quantities import Time, exact_text
from overlapscope_dashboards.runs.site import Site, parse_query, run_address
from overlapscope_dashboards.server import router
from overlapscope_dashboards.views import dry_price, scenarios
from overlapscope_dashboards.views import recommendations as advice_view
from overlapscope_dashboards.views import what_if as view
from tests.conftest import shared_file
from tests.support.dashboard_runs import copy_run, exact_words, ids, words
from tests.support.graph_cases import Made, recorded
from tests.unit.whatif.test_graph_predict import pipeline, tensor


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


@pytest.mark.slow
def test_the_page_says_what_a_cap_would_save(site: Site) -> None:
    said = exact_words(_page(site, "what-if", cap="1").content)
    assert "A step would take 126.335 ms instead of 140.533 ms (measured)" in said
    assert "DistributedDataParallel(model, bucket_cap_mb=1)" in said
    assert "reduce_bucket_size" in words(_page(site, "what-if", cap="1", **{"for": "deepspeed"}).content)
    assert "No setting achieves this on its own" in words(_page(site, "what-if", link="2").content)
    assert "that saves 0.000 ms, 0.0 % (" in exact_words(_page(site, "what-if", cap="25").content)
    assert "It changes numerics." in words(_page(site, "what-if", hook="16-bit").content)
    assert "ms per pass instead of" in exact_words(_page(site, "what-if", passes="4").content)


@pytest.mark.slow
def test_as_recorded_shows_what_was_measured(site: Site, case: RecordedCase) -> None:
    asked = view.replay_settings(case, case.baseline)
    assert not asked.changed
    assert asked.before == asked.after
    assert exact_text(view.lead(asked)).startswith("A step takes 140.533 ms (measured)")
    assert view.figures(asked)[0][1] == Time(asked.present.predicted_step_ns)


@pytest.mark.slow
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
    assert "No setting was replayed" in said
    assert "it holds no gradients with sizes" in said
    assert "overlapscope.profile" in said
    opened._results["prediction"] = InputError("it has no complete step")
    said = words(page.layout(opened, {}))
    assert "This recording cannot be replayed: it has no complete step." in said
    assert "overlapscope.profile(path, model=model)" in said


@pytest.mark.slow
def test_caps_as_good_as_the_best_are_those_that_the_recommendation_names(site: Site) -> None:
    assert "(1 to 10 MiB are equally good)" in exact_words(_page(site, "recommendations").content)
    for query in ({}, {"cap": "25"}):
        assert "Caps of 1 to 10 MiB (shaded green) are equally good" in exact_words(
            _page(site, "what-if", **query).content
        )


@pytest.mark.slow
def test_a_curve_under_other_settings_has_its_own_best_caps(case: RecordedCase, site: Site) -> None:
    found = site.run(ids(site)["regressed"]).prediction
    faster = view.replay_settings(case, replace(with_cap(case.baseline, 5.0), link_speed=4.0))
    curve = faster.curve
    assert view.best_caps(faster, found) == curve.good_mb
    steps = dict(zip(curve.caps_mb, (each.predicted_step_ns for each in curve.steps), strict=True))
    least = min(steps.values())
    low, high = curve.good_mb
    assert all(step <= least * (1 + case.noise) for cap, step in steps.items() if low <= cap <= high)
    around = [cap for cap in steps if cap < low][-1:] + [cap for cap in steps if cap > high][:1]
    assert all(steps[cap] > least * (1 + case.noise) for cap in around)
    rows = view.curve_rows(curve, (low, high))
    assert [row[-1] for row in rows] == ["yes" if low <= cap <= high else "" for cap in curve.caps_mb]
    assert view.best_caps_sentence((5.0, 5.0)) == "The shortest step is with a cap of 5 MiB."


# --- what each setting gives ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def predicted(site: Site) -> WhatIf:
    return site.run(ids(site)["regressed"]).prediction


@pytest.mark.slow
def test_an_address_without_settings_means_those_that_are_recommended(site: Site, predicted: WhatIf) -> None:
    (first, *_), _ = site.run(ids(site)["regressed"]).advice
    assert scenarios.settings_of({}, predicted) == scenarios.query_of_advice(first.id, first.knobs) == {"cap": "10"}
    assert scenarios.settings_of({"for": "horovod"}, predicted) == {"for": "horovod", "cap": "10"}
    assert "that saves 10.816 ms, 7.7 % (6.964 to 14.668 ms" in exact_words(_page(site, "what-if").content)
    assert "saves 10.816 ms a step" in exact_words(_page(site, "recommendations").content)
    now = _page(site, "what-if", set="recorded")
    assert "A step takes 140.533 ms (measured)" in exact_words(now.content)
    assert scenarios.settings_of({"set": "recorded"}, predicted) == {"set": "recorded"}


@pytest.mark.slow
def test_every_row_leads_to_its_settings_and_is_drawn_where_its_times_lie(site: Site, predicted: WhatIf) -> None:
    drawn = scenarios.forest(predicted, predicted.scenarios[0].knobs, [], str)
    assert len(drawn.rows) == len(predicted.scenarios)
    assert [each.name for each in drawn.rows if each.selected] == ["as recorded"] == [drawn.rows[0].name]
    assert [each.name for each in drawn.rows if each.is_best] == ["bucket_cap_mb=10"]
    good = {each.name for each in drawn.rows if each.is_good}
    caps = {f"bucket_cap_mb={cap:g}" for cap in predicted.flat_region["bucket_cap_mb"]}
    assert caps <= good
    assert not {each.name for each in drawn.rows if "numerics" in each.remarks or "no setting" in each.remarks} & good
    for each in drawn.rows:
        assert drawn.place(each.step_ns) == pytest.approx(
            (each.step_ns - drawn.start_ns) / (drawn.end_ns - drawn.start_ns), abs=1e-9
        )
        assert drawn.start_ns <= each.low_ns <= each.step_ns <= each.high_ns <= drawn.end_ns
    for each in predicted.scenarios:
        query = scenarios.query_of(each.knobs, predicted.baseline.knobs)
        shown = exact_words(_page(site, "what-if", **query).content)
        step = f"{each.predicted_step_ns / 1e6:,.3f} ms"
        assert step in shown, query


def test_a_recording_of_another_kind_opens_on_its_best_setting() -> None:
    place = shared_file("gloo_torch2.13")
    site = Site([place])
    (run,) = site.find_runs().runs
    page_of = run_address(run.id, "what-if")
    found = site.run(run.id).prediction
    said = exact_words(router.show(site, page_of, {}).content)
    best = next(each for each in found.scenarios if each.knobs == found.best.knobs)
    assert "Set reshard_after_forward=False: a step takes" in said
    assert (
        f"{best.predicted_step_ns / 1e6:,.3f} ms instead of {found.scenarios[0].predicted_step_ns / 1e6:,.3f}" in said
    )
    assert "Settings are those of FSDP2." in said
    assert "fully_shard(module, reshard_after_forward=False)" in said
    assert "forward_prefetch, backward_prefetch: each gather is waited for" in said
    other = exact_words(router.show(site, page_of, {"try": "reduce_dtype=16-bit"}).content)
    assert "It changes numerics." in other
    nothing = exact_words(router.show(site, page_of, {"try": "<b>"}).content)
    assert "'<b>' is not among what was replayed" in nothing
    assert "A step takes" in nothing


@pytest.mark.parametrize(
    ("made", "kind"), [(tensor(), "tensor parallelism (TP)"), (pipeline(), "pipeline parallelism (PP)")]
)
def test_settings_are_those_of_the_recordings_kind(site: Site, made: Made, kind: str) -> None:
    opened = Site(site.roots).run(ids(site)["baseline"])
    opened._results["run"] = recorded(made)
    said = exact_words(page.layout(opened, {}))
    assert f"Settings are those of {kind}." in said
    found = opened.prediction
    for each in found.scenarios[1:]:
        name = scenarios.knobs_text(each.knobs, {})
        assert name in said
        query = scenarios.query_of(each.knobs, found.baseline.knobs)
        assert query == {"try": name}
        assert f"{each.predicted_step_ns / 1e6:,.3f} ms" in exact_words(page.layout(opened, query))
    assert "bucket_cap_mb" not in said


def test_a_dry_run_is_priced_for_a_machine_of_the_tables(site: Site) -> None:
    asked = dry_price.read_machine({"device": "a100-80", "inside": "/etc/passwd", "between": "ib-200"})
    assert asked == dry_price.Machine(device="a100-80", inside=dry_price.FIRST["inside"], between="ib-200")
    assert dry_price.terms(asked).links.name == "8xh100-nvswitch,ib-200"
    assert all(any(chosen for _, _, chosen in each.options) for each in dry_price.choices(asked))
    opened = Site(site.roots).run(ids(site)["baseline"])
    analysis = opened.analysis
    untimed = replace(analysis, headline=replace(analysis.headline, window=None), dry_step=DryStep(ranks=[]))
    opened._results["analysis"] = untimed
    said = exact_words(page.layout(opened, {"device": "h200"}))
    assert "This dry run cannot be priced for h200 with 8xh100-nvswitch,roce-400" in said
    assert "--device h200 --links 8xh100-nvswitch,roce-400" in said


@pytest.mark.slow
def test_a_hypothetical_is_tried_by_the_name_of_its_knob() -> None:
    site = Site([shared_file("kineto/megatron_tp8")])
    (run,) = site.find_runs().runs
    (first, *_), _ = site.run(run.id).advice
    asked = scenarios.query_of_advice(first.id, first.knobs)
    assert asked == {"try": "host_pauses_ms"}
    said = exact_words(router.show(site, run_address(run.id, "what-if"), asked).content)
    assert "With host_pauses_ms=3" in said
    assert "No setting achieves this on its own." in said
    unasked = exact_words(router.show(site, run_address(run.id, "what-if"), {}).content)
    assert "Leave it" not in unasked
    assert "No setting was replayed. The largest gain on this page is that of host_pauses_ms=3 " \
        "(no setting does this): 341.809 ms, 54.2 %." in unasked  # fmt: skip


# --- recommendations --------------------------------------------------------------------------------------------------


def test_all_recommendations_stand_with_gain_risk_apply_and_verify(site: Site) -> None:
    said = exact_words(_page(site, "recommendations").content)
    assert "Set bucket_cap_mb=10 (1 to 10 MiB are equally good): saves 10.816 ms a step." in said
    for each in ("saves 10.816 ms a step (7.7\N{NO-BREAK SPACE}%)",
                 "overlapscope compare",
                 "Predicted by a replay: 6.964 to 14.668 ms with 90 %; from assumptions, varied within their ranges.",
                 "predicted step 129.717 ms; exposed comm 16.852 ms", "Also for DeepSpeed, Horovod",
                 "HOROVOD_FUSION_THRESHOLD=10485760", "Most of these 47.629 ms",
                 "overlap slowdown could not be measured"):  # fmt: skip
        assert each in said, each
    assert "numerics unchanged" in said


def _recommendation(**given: Any) -> Recommendation:
    known: dict[str, Any] = {
        "id": "x", "title": "Do it", "verdict": "change", "predicted_gain_ns": None, "gain_low_ns": None,
        "gain_high_ns": None, "confidence": "mixed", "memory_bytes": None, "changes_numerics": False, "apply": {},
        "verify": "look",
    }  # fmt: skip
    return Recommendation(**{**known, **given})


def test_a_bound_is_no_gain_and_memory_has_a_direction() -> None:
    step = advice_view.CurrentStep(step_ns=8e6)
    (bound,) = advice_view.shown([_recommendation(gain_high_ns=2_000_000)], step)
    assert exact_text(bound.gain_words) == "saves at most 2.000 ms a step (25.0\N{NO-BREAK SPACE}%)"
    assert bound.why_words.startswith("A bound, not a prediction")
    assert bound.gain == advice_view.ShownGain(whole_ns=8e6, gain_ns=None, low_ns=0, high_ns=2_000_000)
    tags = [dict.fromkeys(words for words, _ in advice_view.shown([_recommendation(memory_bytes=each)], step)[0].tags)
            for each in (-5_000_000, 5_000_000)]  # fmt: skip
    assert ["5.0 MB less memory" in tags[0], "5.0 MB more memory" in tags[1]] == [True, True]
    assert ("memory unchanged", "") in bound.tags
    of_recording = _recommendation(gain_high_ns=2_000_000, per="recording", evidence={"recorded_ns": 4_000_000})
    assert advice_view.shown([of_recording], step)[0].gain.whole_ns == 4_000_000


def test_the_bar_of_a_gain_ends_where_the_step_would() -> None:
    gain = advice_view.ShownGain(whole_ns=1000.0, gain_ns=250, low_ns=-100, high_ns=400)
    drawn, note = advice_page._bar(gain)
    left, saved, interval, dot = drawn.children
    assert [left.style["width"], saved.style["width"], dot.style["left"]] == ["75.0000%", "25.0000%", "75.0000%"]
    assert interval.style == {"left": "60.0000%", "width": "40.0000%"}, "a cost is cut at the step of now"
    assert "predicted" in note.children
    assert advice_page._bar(replace(gain, whole_ns=None)) == []


def test_what_the_run_uses_is_shown_first_and_the_rest_is_folded() -> None:
    (both,) = advice_view.shown([_recommendation(apply={"ddp": "a", "horovod": "b"})], advice_view.CurrentStep())
    assert both.apply == (("ddp", "DDP", "a"), ("horovod", "Horovod", "b"))


def test_without_anything_to_gain_that_is_said_first() -> None:
    assert exact_text(advice_view.lead([])) == "Nothing to recommend."
    assert exact_text(advice_view.lead([_recommendation(verdict="no_change", title="Leave it")])) == "Leave it."


def test_earlier_predictions_are_held_against_what_was_measured() -> None:
    def one(measured_ns: int) -> advice_view.MeasuredPrediction:
        return advice_view.MeasuredPrediction(settings="bucket_cap_mb=1", predicted_ns=100_000_000, low_ns=90_000_000,
                            high_ns=110_000_000,
                            measured_ns=measured_ns, run="b", made_at="2026-11-20")  # fmt: skip

    tested = [one(100_000_000), one(125_000_000)]
    assert advice_view.earlier_words(tested) == "1 of 2 measured predictions inside the interval, mean error 10.0 %."
    assert advice_view.earlier_words([]) == ""
    assert [row[-2:] for row in advice_view.earlier_rows(tested)] == [("+0.0 %", "inside"), ("-20.0 %", "outside")]


@pytest.mark.slow
def test_the_page_tells_what_later_runs_measured_of_this_ones_predictions(tmp_path: Path) -> None:
    run = copy_run(tmp_path / "run")
    site = Site([run])
    (place,) = site.find_runs().runs
    address = run_address(place.id, "recommendations")
    assert "No prediction of this run was measured by a later run yet" in words(router.show(site, address, {}).content)
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
    assert "Predicted against measured" in said
