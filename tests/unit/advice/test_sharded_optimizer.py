"""Gradients are to be scattered during backward, and parameters gathered beside the next forward, where an optimizer
between the two leaves both, or the latter, exposed."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.advise import by_rules
from overlapscope.advice.losses import sharded_optimizer
from overlapscope.advice.losses.sharded_optimizer import SCATTER
from overlapscope.advice.rule_input import RuleInput
from overlapscope.analysis.checks.pipelines.stages import PipelineStage
from overlapscope.analysis.result import Recommendation
from overlapscope.timeline.columns import NONE
from overlapscope.timeline.intervals import union
from overlapscope.timeline.run import Group, RankTimeline, Run
from tests.support.step_cases import STEPS, US, Item, Kernel, Range, Sent, made
from tests.unit.advice.test_advice_rules import fired
from tests.unit.advice.test_exposed_calls import looked_at

MIB = 1 << 20


def sharded(
    *, before: str = "reduce_scatter", after: str = "all_gather", optimizer: bool = True, overlapped: float = 0,
    dimension: str | None = "data", size_bytes: int = 700 * MIB, group: str = "g",
) -> Run:  # fmt: skip
    """Return a job that reduces for 100 us, computes for 50, and gathers for 100."""
    reduce = Sent(start=600 - overlapped, end=700, launch=10, op=before, dimension=dimension, size_bytes=size_bytes)
    gather = Sent(
        start=750, end=850, launch=12, op=after, dimension=dimension, size_bytes=size_bytes, group=group
    )  # fmt: skip
    middle = [Kernel(start=700, end=750, launch=11)] * optimizer
    return made(lambda _: [Kernel(start=0, end=600), reduce, *middle, gather, Kernel(start=850, end=990, launch=13)])


@pytest.mark.parametrize("dimension", ["data", None])
def test_calls_around_the_optimizer_are_to_be_overlapped(dimension: str | None) -> None:
    found = fired(sharded(dimension=dimension))["sharded_optimizer"]
    assert found.gain_high_ns == 200 * US
    assert found.apply["deepspeed"] == '{"zero_optimization": {"overlap_comm": true}}'
    assert found.title.startswith("Reduce gradients during backward, and gather")


@pytest.mark.parametrize(
    "other",
    [
        {"before": "all_gather", "after": "reduce_scatter"}, {"before": "all_reduce"}, {"optimizer": False},
        {"dimension": "tensor"}, {"size_bytes": 4096}, {"group": "h"},
    ],
    ids=str,
)  # fmt: skip
def test_nothing_is_advised_elsewhere(other: dict[str, object]) -> None:
    assert "sharded_optimizer" not in fired(sharded(**other))  # type: ignore[arg-type]


def test_the_gain_is_that_of_the_rank_with_most() -> None:
    """Others wait for it; of the mean it is no bound."""
    run = sharded()
    shorter = sharded(after="all_reduce").ranks[1]
    run = replace(run, ranks={0: run.ranks[0], 1: shorter})
    found = fired(run)["sharded_optimizer"]
    assert found.gain_high_ns == 200 * US
    assert (
        "(0.1 ms of a 1 ms step) and all_gather (0.1 ms) around the optimizer, on the rank with most, are"
        in found.title
    )


@pytest.mark.parametrize(
    ("other", "said"),
    [
        pytest.param({"overlapped": 200}, "a 1 ms step, and nothing", id="gathers alike, reductions differ"),
        pytest.param(
            {"overlapped": 50, "after": "all_reduce"}, "a 1 ms step, on the rank with most, and nothing", id="gathers"
        ),
    ],
)
def test_the_rank_with_most_is_said_of_the_figures_in_the_title(other: dict[str, object], said: str) -> None:
    run = sharded(overlapped=50)
    run = replace(run, ranks={0: run.ranks[0], 1: sharded(**other).ranks[1]})  # type: ignore[arg-type]
    assert said in fired(run)["sharded_optimizer"].title


def of_pipeline(monkeypatch: pytest.MonkeyPatch, *, passes: int, wrapped: int | None) -> Recommendation:
    """Return what is advised in a pipeline of four stages that sends so many activations a step."""
    stage = PipelineStage(
        rank=0, place=0, window_ns=1e6, bubble_ns=0, activations=passes, at_most=passes, wrapped=wrapped
    )
    group = Group(name="p", size=4, ranks=(0, 1, 2, 3))
    run = sharded()
    given = looked_at(replace(run, groups=(*run.groups, group)))
    monkeypatch.setattr(RuleInput, "of", lambda *_: replace(given, stages={0: {"p": stage}}))
    return fired(run)["sharded_optimizer"]


@pytest.mark.parametrize(
    ("passes", "wrapped", "share"), [(8, 0, 1 / 8), (32, 16, 5 / 32)], ids=["8 micro-batches", "in two chunks"]
)
def test_only_passes_of_the_first_and_the_last_micro_batch_can_be_beside_these_calls(
    passes: int, wrapped: int, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = of_pipeline(monkeypatch, passes=passes, wrapped=wrapped)
    assert found.gain_high_ns == pytest.approx(share * 790 * US, abs=1), "of what a step computes"
    assert f"which is {share:.0%} of compute: the gain is an upper bound" in found.assumed[-1]


def test_no_bound_is_given_where_micro_batches_may_be_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    found = of_pipeline(monkeypatch, passes=16, wrapped=None)
    assert found.gain_high_ns is None
    assert found.loss_ns == pytest.approx(790 / 16 * US, abs=1), "what is sure orders it"
    assert found.assumed[-1].endswith("; the number of micro-batches is not known, so no bound is given")


def test_gradients_that_backward_waits_for_are_to_be_waited_for_once() -> None:
    more = {"op": "reduce_scatter", "size_bytes": 36 * MIB, "phase": "backward"}

    def step(_: int) -> list[Kernel | Sent]:
        return [
            Kernel(start=0, end=200), Sent(start=200, end=400, launch=1, **more),  # type: ignore[arg-type]
            Kernel(start=400, end=440, launch=2), Sent(start=440, end=640, launch=3, **more),  # type: ignore[arg-type]
            Kernel(start=640, end=700, launch=4),
            Sent(start=700, end=750, launch=5, op="all_gather", size_bytes=36 * MIB),
            Kernel(start=750, end=990, launch=6),
        ]  # fmt: skip

    found = fired(made(step))["sharded_optimizer"]
    assert found.gain_high_ns == (40 + 50) * US, "compute between the reductions, and the gather"
    assert found.title.startswith("Wait once for gradients, before the optimizer, and gather")


FIRST_OF_BACKWARD = Sent(start=40, end=45, op="reduce_scatter", phase="backward", size_bytes=4096)


@pytest.mark.parametrize(("more", "gain_us"), [([], 100), ([FIRST_OF_BACKWARD], 40)])
def test_where_gradients_are_overlapped_parameters_are_to_be_gathered_beside_forward_as_far_as_it_lasts(
    more: list[Sent], gain_us: int
) -> None:
    def step(number: int) -> list[Kernel | Sent]:
        reduce = Sent(start=550, end=700, launch=10, op="reduce_scatter", size_bytes=700 * MIB)
        gather = Sent(start=750, end=850, launch=12, op="all_gather", size_bytes=700 * MIB)
        last = number == STEPS - 1  # the next step would gather
        return [Kernel(start=0, end=600), *more, reduce, Kernel(start=700, end=750, launch=11), *[gather] * (not last),
                Kernel(start=850, end=990, launch=13)]  # fmt: skip

    found = fired(made(step))["sharded_optimizer"]
    assert found.title.startswith("Gather parameters beside the next forward: all_gather between the optimizer and")
    assert found.gain_high_ns == gain_us * US
    assert found.evidence["gather_ns"] == 100 * US, "of steps that gather"
    assert set(found.apply) == {"torch"}


@pytest.mark.parametrize(
    ("range_us", "least_us", "is_found"),
    [((10, 11), 80, True), (None, 80, False), ((10, 11), 120, False)],
    ids=["long, after the optimizer", "no optimizer is marked", "short"],
)
def test_gathers_of_unknown_size_are_those_of_an_optimizer_if_they_follow_it_and_last_long(
    range_us: tuple[int, int] | None, least_us: int, *, is_found: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each gathers for 100 us, and all ranks come at once."""
    monkeypatch.setattr(sharded_optimizer, "LONG_NS", least_us * US)
    marked = [] if range_us is None else [Range(name="Optimizer.step#AdamW.step", start=range_us[0], end=range_us[1])]
    unsized = {"size_bytes": NONE, "elements": NONE}

    def step(_: int) -> list[Item]:
        return [
            Kernel(start=0, end=600), Sent(start=500, end=700, launch=5, op="reduce_scatter", **unsized), *marked,
            Kernel(start=700, end=750, launch=10.5), Sent(start=750, end=850, launch=12, op="all_gather", **unsized),
            Kernel(start=850, end=990, launch=13),
        ]  # fmt: skip

    assert ("sharded_optimizer" in fired(made(step))) == is_found


def test_no_more_is_gathered_beside_forward_than_that_lasts() -> None:
    first = Sent(start=40, end=45, op="all_reduce", phase="backward", size_bytes=4096)
    run = made(
        lambda _: [
            Kernel(start=0, end=600), first, Sent(start=600, end=700, launch=10, op="reduce_scatter", size_bytes=MIB),
            Kernel(start=700, end=750, launch=11),
            Sent(start=750, end=850, launch=12, op="all_gather", size_bytes=MIB),
            Kernel(start=850, end=990, launch=13),
        ]
    )  # fmt: skip
    assert fired(run)["sharded_optimizer"].gain_high_ns == (100 + 40) * US


def test_gathers_that_are_overlapped_in_part_are_left_alone() -> None:
    run = made(
        lambda _: [
            Kernel(start=0, end=600), Sent(start=500, end=700, launch=10, op="reduce_scatter", size_bytes=700 * MIB),
            Kernel(start=700, end=760, launch=11),
            Sent(start=750, end=850, launch=12, op="all_gather", size_bytes=700 * MIB),
            Kernel(start=850, end=990, launch=13),
        ]
    )  # fmt: skip
    assert "sharded_optimizer" not in fired(run)


@pytest.mark.parametrize(("of_host", "ids"), [("gathers", {"blocking_calls"}), ("others", {"sharded_optimizer"})])
def test_gathers_that_only_the_host_waits_for_are_those_of_its_waits(
    of_host: str, ids: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Reductions are overlapped, 100 us of gathers are exposed in each step of 1,000."""
    run = sharded(overlapped=150)
    given = looked_at(run)
    parts = {}
    for rank, each in given.run.ranks.items():
        calls = each.collectives
        chosen = calls.op == each.names.index("all_gather" if of_host == "gathers" else "reduce_scatter")
        waited = union((calls.start_ns[chosen], calls.end_ns[chosen]))
        parts[rank] = replace(given.parts[rank], by_graph={"host_waited": waited})
    figures = replace(given.figures, causes={"host_waited": 100 * US})
    monkeypatch.setattr(RuleInput, "of", lambda *_: replace(given, parts=parts, figures=figures))
    found = {each.id for each in by_rules(run, given.analysis, given.cross_rank)}
    assert ids <= found
    assert ("sharded_optimizer" in found) == ("sharded_optimizer" in ids)


def all_reduced(
    *,
    gathered: int = 700 * MIB,
    optimizer: float = 105,
    dtype: str = "float32",
    computed_between: bool = False,
    marked: bool = True,
) -> Run:
    """Return a job that all-reduces 700 MiB of float32 beside backward for 200 us, runs its optimizer, launched so many
    us after the begin of a step, and gathers for 200 us, beside nothing; forward takes 150 us."""

    def step(_: int) -> list[Item]:
        half = gathered // 2
        return [
            Kernel(start=0, end=500), Sent(start=150, end=350, launch=100, size_bytes=700 * MIB, phase="backward"),
            Range(name="Optimizer.step#AdamW.step", start=optimizer, end=optimizer + 1),
            Kernel(start=500, end=600, launch=105.5),
            Sent(start=600, end=700, launch=110, op="all_gather", size_bytes=half),
            *[Kernel(start=700, end=740, launch=111)] * computed_between,
            Sent(start=750, end=850, launch=112, op="all_gather", size_bytes=half),
            Kernel(start=850, end=995, launch=113),
        ]  # fmt: skip

    run = made(step)
    ranks = {rank: _of_gathers(each, dtype, marked=marked) for rank, each in run.ranks.items()}
    return replace(run, ranks=ranks)


def _of_gathers(timeline: RankTimeline, dtype: str, *, marked: bool) -> RankTimeline:
    """Return a rank whose gathers are of a type, whose steps may be without marks."""
    calls, names = timeline.collectives, (*timeline.names, dtype)
    gathers = calls.op == names.index("all_gather")
    steps = timeline.steps if marked else replace(timeline.steps, **{
        name: getattr(timeline.steps, name)[:0] for name in timeline.steps.__struct_fields__
    })  # fmt: skip
    dtypes = np.where(gathers, len(names) - 1, calls.dtype).astype(calls.dtype.dtype)
    return replace(timeline, names=names, collectives=replace(calls, dtype=dtypes), steps=steps)


def test_parameters_are_gathered_in_vain_where_each_rank_has_all_gradients() -> None:
    found = fired(all_reduced())["sharded_optimizer"]
    assert found.title.startswith("Gather no parameters, or gather them beside the next forward: all_reduce leaves all")
    assert "takes 0.2 ms of a 1 ms step" in found.title
    assert found.gain_high_ns == 200 * US, "all that is gathered"
    assert found.evidence["beside_forward_ns"] == 200 * US, "forward takes 300 us until gradients are sent"
    assert '"stage": 0' in found.apply["deepspeed"]
    assert found.apply["torch"].endswith(SCATTER)


def test_steps_need_no_marks() -> None:
    found = fired(all_reduced(marked=False))["sharded_optimizer"]
    assert found.per == "recording"
    assert found.gain_high_ns == STEPS * 200 * US


def test_parameters_may_have_half_of_the_bits_of_gradients() -> None:
    assert "sharded_optimizer" in fired(all_reduced(gathered=350 * MIB, dtype="bfloat16"))


@pytest.mark.parametrize(
    "other",
    [{"gathered": 650 * MIB}, {"dtype": "bfloat16"}, {"optimizer": 120}, {"computed_between": True}],
    ids=["fewer bytes", "more elements", "the optimizer follows", "something is computed between the gathers"],
)
def test_gathers_that_are_not_those_of_an_optimizer_are_left_alone(other: dict[str, object]) -> None:
    assert "sharded_optimizer" not in fired(all_reduced(**other))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("gathered", "optimizer", "found"),
    [
        pytest.param(700, 105, True, id="as many bytes as were scattered"),
        pytest.param(600, 105, False, id="fewer"),
        pytest.param(700, 950, False, id="the optimizer follows: layers are gathered, as FSDP does"),
    ],
)
def test_steps_without_marks_may_begin_with_gathers(gathered: int, optimizer: float, *, found: bool) -> None:
    """Each step gathers what the optimizer before it updated for 100 us, beside nothing; 600 us later it reduces beside
    compute."""

    def step(_: int) -> list[Item]:
        return [
            Sent(start=0, end=100, launch=-90, op="all_gather", size_bytes=gathered * MIB), Kernel(start=100, end=900),
            Sent(start=700, end=890, launch=80, op="reduce_scatter", size_bytes=700 * MIB),
            Range(name="Optimizer.step#AdamW.step", start=optimizer, end=optimizer + 1),
            Kernel(start=900, end=1000, launch=105.5),
        ]  # fmt: skip

    run = made(step)
    run = replace(run, ranks={rank: _of_gathers(each, "float32", marked=False) for rank, each in run.ranks.items()})
    advised = fired(run).get("sharded_optimizer")
    assert (advised is not None) == found
    if advised is not None:
        assert advised.title.startswith("Gather parameters beside the next forward: all_gather between the optimizer")
        assert advised.gain_high_ns == STEPS * 100 * US, "the first of them, too"
