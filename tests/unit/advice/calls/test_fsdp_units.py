"""FSDP that gathers and reduces the whole model at once is told to shard each block on its own."""

import pytest

from overlapscope.timeline.run import Run
from tests.support.step_cases import US, Item, Kernel, Range, Sent, made
from tests.unit.advice.test_advice_rules import fired

MIB = 1 << 20


def fsdp(
    *, name: str = "FSDP::all_gather", gathered: int = 64 * MIB, again: int = 64 * MIB, reduced: int = 64 * MIB,
    kernels: int = 60, at_end: bool = False, beside: int = 0,
) -> Run:  # fmt: skip
    """Return a job whose step gathers for 90 us, and again beside compute, computes in so many kernels for 600, and
    reduces for 150 us; of both `beside` us are beside another kernel. With `at_end` it gathers only after both."""

    def step(_: int) -> list[Item]:
        each = 600 / kernels
        items: list[Item] = [Range(name=name, start=0, end=1)]
        items += [Kernel(start=100 + at * each, end=100 + (at + 1) * each, launch=at / 10) for at in range(kernels)]
        items += [Sent(start=110, end=200, launch=1, op="all_gather", size_bytes=again)] if again else []
        items += [Sent(start=700, end=850, launch=8, op="reduce_scatter", size_bytes=reduced)]
        items += [Kernel(start=700 - beside, end=700 + beside, launch=8)] if beside else []
        first = 890 if at_end else 0
        return [*items, Sent(start=first + 5, end=first + 95, launch=first, op="all_gather", size_bytes=gathered),
                Kernel(start=0, end=5), Kernel(start=850, end=890, launch=9),
                Kernel(start=990, end=999, launch=10)]  # fmt: skip

    return made(step)


def test_one_unit_for_the_whole_model_is_to_be_split() -> None:
    found = fired(fsdp())
    units = found["fsdp_units"]
    assert units.title == (
        "Shard each block on its own: the whole model is one unit of 64 MiB, gathered twice and reduced once a step, "
        "beside which none of it can compute; of these calls 0.24 ms of a 1 ms step are exposed"
    )
    assert units.gain_high_ns == 240 * US
    assert not {"overlap_without_effect", "exposed_communication"} & found.keys(), "they are of the same calls"
    assert next(iter(units.apply)) == "fsdp2"
    assert set(fired(fsdp(name="FullyShardedDataParallel.forward"))["fsdp_units"].apply) == {"torch"}


def test_what_is_overlapped_is_not_gained() -> None:
    assert fired(fsdp(beside=100))["fsdp_units"].gain_high_ns == 140 * US


@pytest.mark.parametrize(
    "alike",
    [{"again": 0}, {"name": "step"}, {"reduced": 128 * MIB}, {"gathered": 128 * MIB, "again": 128 * MIB}],
    ids=str,
)
def test_a_unit_that_stays_gathered_or_is_reduced_in_another_type_is_found_too(alike: dict[str, object]) -> None:
    assert "fsdp_units" in fired(fsdp(**alike))  # type: ignore[arg-type]


@pytest.mark.slow
@pytest.mark.parametrize(
    "other",
    [
        {"name": "step", "again": 0},  # as of a sharded optimizer
        {"at_end": True},
        {"gathered": 32 * MIB, "again": 32 * MIB, "reduced": 32 * MIB},
        {"again": 70 * MIB},
        {"reduced": 200 * MIB},
        {"kernels": 20},
        {"name": "DeepSpeedEngine.step"},
    ],
    ids=str,
)
def test_nothing_is_advised_elsewhere(other: dict[str, object]) -> None:
    assert "fsdp_units" not in fired(fsdp(**other))  # type: ignore[arg-type]
