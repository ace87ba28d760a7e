"""Time stamps of traces against decimal arithmetic."""

from decimal import ROUND_HALF_EVEN, Decimal, localcontext

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlapscope.ingest.parsing.timestamps import NeedsText, microseconds_to_ns, text_to_ns
from tests.property.examples import examples

BOOT_CLOCK_NS = 4_400_000_000_000_000
"""51 days of uptime, in nanoseconds: 4.4e12 microseconds, where a double steps by almost a nanosecond."""
EPOCH_NS = 1_700_000_000_123_456_789


def written(ns: int) -> str:
    """Write nanoseconds as a trace does: microseconds with three decimals."""
    sign, ns = "-" if ns < 0 else "", abs(ns)
    return f"{sign}{ns // 1000}.{ns % 1000:03d}"


def exact(text: str) -> int:
    with localcontext(prec=80):
        return int((Decimal(text) * 1000).to_integral_value(ROUND_HALF_EVEN))


@examples(300)
@given(st.lists(st.integers(-BOOT_CLOCK_NS, 2 * BOOT_CLOCK_NS - 10**13), min_size=1, max_size=20))
def test_a_double_with_three_decimals_gives_the_nanosecond_that_was_written(times):
    assert microseconds_to_ns([float(written(ns)) for ns in times]).tolist() == times


def test_a_rounded_product_loses_nanoseconds_where_ours_does_not():
    times = np.arange(BOOT_CLOCK_NS, BOOT_CLOCK_NS + 5000)
    decoded = [float(written(ns)) for ns in times.tolist()]
    naive = np.array([round(value * 1000) for value in decoded])
    assert (naive != times).any(), "the example no longer shows why the parts are rounded apart"
    assert (microseconds_to_ns(decoded) == times).all()


def test_whole_microseconds_of_our_days_are_exact():
    found = microseconds_to_ns([1_700_000_000_123_457, 1_700_000_000_123_458])
    assert found.tolist() == [1_700_000_000_123_457_000, 1_700_000_000_123_458_000]
    assert found.dtype == np.int64


def test_decimals_at_times_of_our_days_have_to_be_read_as_text():
    with pytest.raises(NeedsText):
        microseconds_to_ns([float(written(EPOCH_NS))])
    found, good = text_to_ns([written(EPOCH_NS)])
    assert found.tolist() == [EPOCH_NS]
    assert good.tolist() == [True]


def test_doubles_are_taken_up_to_where_they_lose_a_nanosecond():
    assert microseconds_to_ns([float(2**43 - 1)]).tolist() == [(2**43 - 1) * 1000]


def test_integers_and_doubles_mix():
    assert microseconds_to_ns([5, 2.125, -7, 4_400_000_000_000]).tolist() == [5000, 2125, -7000, BOOT_CLOCK_NS]


@pytest.mark.parametrize(
    ("value", "ns"), [(1e3, 1_000_000), (2.5e-3, 2), (3.5e-3, 4), (-0.001, -1), (-1234.567, -1_234_567), (0.0, 0)]
)
def test_doubles_round_to_the_nearest_nanosecond(value, ns):
    assert microseconds_to_ns([value]).tolist() == [ns]


def test_no_times_give_no_nanoseconds():
    assert microseconds_to_ns([]).tolist() == []
    found, good = text_to_ns([])
    assert (found.size, good.size) == (0, 0)


@pytest.mark.parametrize(
    "values",
    [
        ["12.5"], ["12.5", 1.0], [None], [None, 1], [1, [2]], [[1, 2], [3, 4]], [{}], [True], [True, 1], [False, 1.5],
        [float("nan")], [float("inf"), 1.0], [2**63], [2**63, -1], [2**70], [-(2**70), 0.5], [10**400], [10**400, 0.5],
        [(2**63 - 1) // 1000 + 1], [-(2**63)], [float(2**43)], [-float(2**43)],
        [1.5, 2.5, 1.7e15],  # one coarse double
        [1_700_000_000_123_457, 0.5],  # an integer of our days among doubles
    ],
    ids=lambda values: repr(values)[:30],
)  # fmt: skip
def test_what_is_no_time_and_what_a_double_does_not_hold_is_left_to_the_text(values):
    with pytest.raises(NeedsText):
        microseconds_to_ns(values)


@examples(300)
@given(st.lists(st.integers(-(2**60), 2**60), max_size=10))
def test_text_gives_the_nanosecond_that_was_written(times):
    found, good = text_to_ns([written(ns) for ns in times])
    assert found.tolist() == times
    assert good.all()


@examples(300)
@given(st.decimals(min_value=-(10**15), max_value=10**15, places=6))
def test_text_with_more_decimals_gives_the_nearest_nanosecond_ties_to_even(number):
    found, good = text_to_ns([str(number)])
    assert good.tolist() == [True]
    assert found.tolist() == [exact(str(number))]


@examples(200)
@given(st.integers(-(10**9), 10**9), st.integers(-6, 6))
def test_text_in_scientific_notation_is_exact(mantissa, exponent):
    text = f"{mantissa}e{exponent:+d}"
    assert text_to_ns([text])[0].tolist() == [exact(text)]


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1.7000000001234567E15", 1_700_000_000_123_456_700), (' "1700000000123456.789" ', EPOCH_NS), ("-0.001", -1),
        ("0", 0), ("0.0005", 0), ("0.0015", 2), ("1e-999999", 0),
    ],
)  # fmt: skip
def test_text_may_be_quoted_signed_or_scientific(text, ns):
    found, good = text_to_ns([text])
    assert (found.tolist(), good.tolist()) == ([ns], [True])


@pytest.mark.parametrize(
    "text",
    [
        "", "null", "true", "[1]", "12.5.6", "nan", "sNaN", "Infinity", "-inf", "9223372036854775.808", "1e18", "-1e18",
        "1e400", "1e999999", "1e999999999999999999999999", "9" * 5000,
    ],
    ids=lambda text: repr(text[:30]),
)  # fmt: skip
def test_text_that_is_no_possible_time_is_marked_and_costs_only_itself(text):
    found, good = text_to_ns(["1.5", text, "2.5"])
    assert good.tolist() == [True, False, True]
    assert found[good].tolist() == [1500, 2500]


TOKENS = (
    st.from_regex(r"\A[0-9]{0,18}(\.[0-9]{0,5})?\Z")
    | st.from_regex(r"\A[-+0-9eE. \"_]{0,22}\Z")
    | st.text(st.characters(), max_size=6)
    | st.sampled_from(["", ".", "1.", ".5", "1\x00", "\x001", "٣", "1_0", "9" * 16 + ".999", "9" * 20, "0" * 30])
)


@pytest.mark.slow
@examples(300)
@given(st.lists(TOKENS, min_size=1, max_size=12))
def test_texts_read_together_mean_what_each_means_alone(tokens):
    found, good = text_to_ns(tokens)
    for token, ns, is_good in zip(tokens, found.tolist(), good.tolist(), strict=True):
        try:
            wanted = (Decimal(token.strip().strip('"')) * 1000).to_integral_value(ROUND_HALF_EVEN)
            possible = wanted.is_finite() and abs(wanted) < 2**61
        except (ArithmeticError, ValueError):
            possible = False
        assert is_good == possible, token
        assert ns == (int(wanted) if possible else 0), token
