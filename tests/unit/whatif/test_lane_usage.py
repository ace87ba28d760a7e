"""A replayed step as lanes, the step over the cap, and the code of a setting."""

import numpy as np
import pytest
from msgspec.structs import replace

from overlapscope.advice.setting_code import setting_code
from overlapscope.ingest.options import ReadOptions
from overlapscope.ingest.read_run import read_inputs
from overlapscope.timeline.intervals import difference, intersection, union
from overlapscope.whatif.ddp.buckets import MIB
from overlapscope.whatif.ddp.cap_curve import cap_curve, caps_to_draw
from overlapscope.whatif.ddp.ddp_predict import predict_settings
from overlapscope.whatif.ddp.ddp_recording import RecordedCase, ddp_case_of_run
from overlapscope.whatif.ddp.ddp_step import HALF, Settings, ddp_job
from overlapscope.whatif.ddp.lane_usage import replayed_step
from overlapscope.whatif.ddp.search import with_cap
from overlapscope.whatif.replay.replay import replay
from tests.conftest import ROOT


@pytest.fixture(scope="module")
def case() -> RecordedCase:
    return ddp_case_of_run(read_inputs([ROOT / "traces" / "baseline"], ReadOptions()))


def _settings(base: Settings) -> list[Settings]:
    return [
        base,
        with_cap(base, 1.0),
        with_cap(base, 1000.0),
        replace(base, accumulation=3),
        replace(base, accumulation=3, no_sync=True),
        replace(base, ddp=replace(base.ddp, find_unused_parameters=True)),
        replace(base, link_speed=2.0, late_ranks=False),
    ]


@pytest.mark.parametrize("which", range(7))
def test_the_parts_of_a_replayed_step_are_what_its_lanes_show(case: RecordedCase, which: int) -> None:
    """Exposed and hidden time counted by the replay, against sets of time made from what is drawn."""
    workload, settings = case.workload(), _settings(case.baseline)[which]
    shown = replayed_step(workload, settings)
    assert shown.step_ns == replay(ddp_job(workload, settings)).step_ns
    parts = shown.compute_only_ns + shown.hidden_ns + shown.exposed_ns + shown.idle_ns
    assert parts == pytest.approx(shown.step_ns)

    def set_of(pairs: list[tuple[float, float]]) -> object:
        ends = np.rint(np.array(pairs)).astype(np.int64)
        return union((ends[:, 0], ends[:, 1]))

    computing = set_of(list(shown.computing_ns))
    sending = set_of([(each.begun_ns, each.end_ns) for each in shown.sent])
    hidden, exposed = intersection(sending, computing), difference(sending, computing)  # type: ignore[arg-type]
    assert int((hidden.ends - hidden.starts).sum()) == pytest.approx(shown.hidden_ns, abs=50)
    assert int((exposed.ends - exposed.starts).sum()) == pytest.approx(shown.exposed_ns, abs=50)
    assert all(each.begun_ns <= each.start_ns < each.end_ns <= shown.step_ns + 1 for each in shown.sent)


def test_every_pass_that_is_reduced_sends_all_gradients(case: RecordedCase) -> None:
    workload, base = case.workload(), case.baseline
    whole = int(workload.gradients.sizes_bytes.sum())
    for settings, passes in zip(_settings(base), (1, 1, 1, 3, 1, 1, 1), strict=True):
        shown = replayed_step(workload, settings)
        assert sum(each.bytes or 0 for each in shown.sent) == passes * whole
    unused = replayed_step(workload, _settings(base)[5])
    assert [each.bytes for each in unused.sent].count(None) == 1


@pytest.mark.slow
def test_a_curve_over_caps_is_what_each_cap_alone_gives(case: RecordedCase) -> None:
    caps = caps_to_draw(case.workload(), case.baseline.ddp.bucket_cap_mb, 7.5)
    assert 7.5 in caps
    assert list(caps) == sorted(set(caps))
    # One cap that holds all gradients is enough: above it nothing changes.
    total = float(case.workload().gradients.sizes_bytes.sum()) / MIB
    assert sum(each >= total for each in caps) == 1
    found = cap_curve(case, case.baseline, caps)
    assert case.baseline.ddp.bucket_cap_mb not in found.caps_mb
    alone = {
        cap: predict_settings(case, [with_cap(case.baseline, cap)])[1].predicted_step_ns
        for cap in (1.0, 7.5, found.caps_mb[-1])
    }
    steps = dict(zip(found.caps_mb, (each.predicted_step_ns for each in found.steps), strict=True))
    assert {cap: steps[cap] for cap in alone} == alone
    least = min(steps.values())
    low, high = found.good_mb
    assert steps[found.caps_mb[-1]] > least * (1 + case.noise)
    assert [cap for cap in steps if low <= cap <= high] == [
        cap for cap, step in steps.items() if step <= least * (1 + case.noise)
    ]


def test_code_of_a_cap_is_written_for_every_framework_and_the_rest_for_ddp(case: RecordedCase) -> None:
    plain = setting_code(with_cap(replace(case.baseline, gradient_as_bucket_view=False), 5.0).knobs(), 4)
    assert plain["ddp"] == "DistributedDataParallel(model, bucket_cap_mb=5)"
    assert set(plain) == {"ddp", "fsdp2", "deepspeed", "megatron", "horovod"}
    sixteen = setting_code(replace(case.baseline, communicated=HALF).knobs(), 4)
    assert set(sixteen) == {"ddp"}
    assert sixteen["ddp"].splitlines()[0] == "DistributedDataParallel(model, bucket_cap_mb=4)"
    assert "bf16_compress_hook" in sixteen["ddp"]
    held = setting_code(replace(case.baseline, accumulation=4, no_sync=True).knobs(), 4)
    assert "no_sync()" in held["ddp"]
    assert "accumulation" not in held["ddp"]
    every = setting_code(replace(case.baseline, accumulation=4).knobs(), 4)
    assert every["ddp"] == "DistributedDataParallel(model, bucket_cap_mb=4)"


def test_what_no_setting_brings_about_has_no_code(case: RecordedCase) -> None:
    assert setting_code(replace(case.baseline, link_speed=2.0).knobs(), 4) == {}
    assert setting_code(replace(case.baseline, late_ranks=False).knobs(), 4) == {}
